//! `scxprof sched`: a recording against what perf says of it, and programs of known pattern on a live kernel.

mod bad;
mod live;
mod record;
mod recorded;
mod wakeups;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Runs `scxprof sched`.
fn sched(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scxprof")).arg("sched").args(args).output().unwrap()
}

/// The same with `--json`, which must succeed.
fn json(args: &[&str]) -> Value {
    let output = sched(&[&["--json", "--limit", "0"], args].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A file of tests/fixtures/sched, unpacked.
fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sched").join(name);
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).unwrap();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(file), &mut bytes).unwrap();
    bytes
}

/// The recording of perf in a directory.
fn recording(dir: &Path) -> PathBuf {
    let path = dir.join("perf.data");
    std::fs::write(&path, fixture("perf-sched.data.gz")).unwrap();
    path
}

/// A configuration of scx_layered with threads whose names begin with `prefix` in a layer, and all others in another. It
/// needs no cgroups, of which recordings and containers may have none.
fn layers(dir: &Path, prefix: &str) -> PathBuf {
    let path = dir.join("layers.json");
    let kind = r#""kind": {"Grouped": {"util_range": [0.1, 0.2], "growth_algo": "StickyDynamic"}}"#;
    let first = format!(r#"{{"name": "some", "matches": [[{{"CommPrefix": "{prefix}"}}]], {kind}}}"#);
    let rest = format!(r#"{{"name": "rest", "matches": [[]], {kind}}}"#);
    std::fs::write(&path, format!("[{first}, {rest}]")).unwrap();
    path
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}
