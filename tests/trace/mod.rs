//! `scxprof` on traces of other tools. What the crate reads of them is tested in crates/trace/tests.

pub mod commands;
mod export;
mod hostile;
mod identity;
mod lines;
#[cfg(feature = "parquet")]
mod queries;

// What makes and reads traces for the tests of the crate; these here use a part of it.
#[path = "../../crates/trace/tests/trace/encode.rs"]
#[allow(dead_code)]
mod encode;
#[path = "../../crates/trace/tests/trace/files.rs"]
#[allow(dead_code)]
mod files;
#[cfg(feature = "parquet")]
#[path = "../../crates/trace/tests/trace/oracle.rs"]
#[allow(dead_code)]
mod oracle;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use files::{fixture, path, read, ALL};

/// The traces of the crate.
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/trace/tests/fixtures");
