//! What is installed, the archive for hosts without anything, packages, the image, and what would be published as a crate.

mod crates;
mod dist;
mod install;
mod packages;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// PATH with this cargo and its rustc first, which sudo may have taken out.
fn path_with_cargo() -> OsString {
    let cargo = Path::new(env!("CARGO")).parent().map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(cargo.into_iter().chain(std::env::split_paths(&path))).unwrap()
}

/// Where the long tests build, and keep what is built for the next time.
fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/test-packages")
}
