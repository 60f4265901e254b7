//! `scxprof mcp` by a client that writes and reads the protocol's messages itself, so that it can also write wrong ones, and by the
//! client of the official SDK.

mod client;
mod equal;
mod http;
mod live;
mod made;
mod protocol;
mod safety;
mod schema;
mod sdk;

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

/// True if this host or the rights of the test do not allow what was asked for; any other error is one.
#[track_caller]
fn is_unsupported(test: &str, answer: &Value) -> bool {
    let Some(error) = answer.get("error") else { return false };
    assert_eq!(error["kind"], "unsupported", "{answer}");
    println!("SKIP: {test}: {answer}");
    true
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
