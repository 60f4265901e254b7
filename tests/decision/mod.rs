//! Tests of the decision alone, without kernel, clock and files of the host; and of the dependencies between the source's
//! modules.

mod cluster_others;
mod cluster_truth;
mod config;
mod express;
mod rooms;
mod scx_layered;
