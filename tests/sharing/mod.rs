//! The whole way on programs of known sharing: the real binary samples them, or reads a recording of them, and the printed
//! configuration alone decides which of their threads are together.
//!
//! Sampling needs root (or CAP_PERFMON), and separate cells need a cgroup2 mount in which cgroups can be created; otherwise
//! each such test prints SKIP. `make truth` judges all programs, at length; this runs some, in bounded time.

mod across;
mod capture;
mod cgroup;
mod family;
mod kernel;
mod lines;
mod made;
mod programs;
mod score;
mod workload;
