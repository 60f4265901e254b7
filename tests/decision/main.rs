//! What is decided of samples, by itself: no kernel, no clock, no file of the host. And that the rooms of the source are in order.

#![allow(clippy::unwrap_used)] // A test that cannot go on must fail.

mod cluster_others;
mod cluster_truth;
mod config;
mod express;
mod rooms;
