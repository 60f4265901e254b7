//! What is installed, the archive for hosts without anything, packages, the image, and what would be published as a crate.

mod crates;
mod dist;
mod install;
mod packages;
