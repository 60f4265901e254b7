//! What is installed, and the archive for hosts without anything.

mod dist;
mod install;
