//! `scxprof mcp` by a client that writes and reads the protocol's messages itself, so that it can also write wrong ones.

mod client;
mod equal;
mod http;
mod live;
mod made;
mod protocol;
mod safety;
mod schema;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const SCXPROF: &str = env!("CARGO_BIN_EXE_scxprof");

fn scxprof(args: &[&str]) -> Output {
    Command::new(SCXPROF).args(args).output().unwrap()
}

/// What a command prints as JSON.
#[track_caller]
fn json(args: &[&str]) -> Value {
    let output = scxprof(args);
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {said}"))
}

/// What it prints as lines of JSON.
#[track_caller]
fn json_lines(args: &[&str]) -> Vec<Value> {
    let output = scxprof(args);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
