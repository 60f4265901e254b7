//! Finds the recordings of real machines, made by others: they are not part of the project.

use std::path::PathBuf;

/// `perf-data` in the directory that `SCXPROF_FIXTURES` names; `None`, with the skip printed, if it is not set.
pub fn fixtures(test: &str) -> Option<PathBuf> {
    let dir = std::env::var_os("SCXPROF_FIXTURES").map(|dir| PathBuf::from(dir).join("perf-data"));
    if dir.is_none() {
        println!("SKIP: {test}: SCXPROF_FIXTURES does not say where the recordings of real machines are");
    }
    dir
}
