//! Runs the scxprof binary: live, to a recording, and from one.

#![allow(dead_code)] // The tests use some of it, the table of `make truth` some.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{anyhow, Context, Result};
use serde_json::Value;

use super::score::Thread;

/// The binary.
pub struct Scxprof {
    pub binary: PathBuf,
}

/// The decision.
pub struct Decision {
    /// The configuration.
    pub json: String,
    pub report: Value,
    /// The output on stderr.
    pub said: String,
}

/// This host does not allow sampling.
#[derive(Debug)]
pub struct Unsupported(String);

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unsupported {}

impl Scxprof {
    /// Runs it, and returns its stderr.
    fn said(&self, args: &[&OsStr]) -> Result<String> {
        let output = Command::new(&self.binary)
            .args(args)
            .output()
            .with_context(|| format!("cannot run {}", self.binary.display()))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            // 4: samples were lost, which is fine if enough are left.
            Some(0 | 4) => Ok(said),
            Some(3) => Err(Unsupported(said.trim().to_owned()).into()),
            _ => Err(anyhow!("{}", said.lines().last().unwrap_or("scxprof failed and said nothing"))),
        }
    }

    /// Runs the command that decides.
    fn decide(&self, args: &[&OsStr]) -> Result<Decision> {
        let directory = tempfile::tempdir()?;
        let (cells, report) = (directory.path().join("cells.json"), directory.path().join("report.json"));
        // For a host that has a CPU for each subcell.
        let outputs = ["--target-cpus", "64", "-v", "-o"]
            .map(OsStr::new)
            .into_iter()
            .chain([cells.as_os_str(), OsStr::new("--report")]);
        let args: Vec<&OsStr> = args.iter().copied().chain(outputs).chain([report.as_os_str()]).collect();
        let said = self.said(&args)?;
        let report = serde_json::from_slice(&std::fs::read(report)?)?;
        Ok(Decision { json: std::fs::read_to_string(cells)?, report, said })
    }

    /// Samples the whole host with the timer source.
    ///
    /// # Errors
    /// [`Unsupported`] if that is not possible here, and others.
    pub fn run(&self, seconds: f64, options: &[&str]) -> Result<Decision> {
        let seconds = seconds.to_string();
        let args = [&["run", "--source", "timer", "-t", &seconds], options].concat();
        self.decide(&args.into_iter().map(OsStr::new).collect::<Vec<_>>())
    }

    /// Records the whole host with the timer source to lines of JSON.
    pub fn record(&self, lines: &Path, seconds: u32) -> Result<()> {
        // Beside its destination: the recording is large, and is moved.
        let directory = tempfile::tempdir_in(lines.parent().unwrap_or(Path::new(".")))?;
        let profile = directory.path().join("profile");
        let seconds = seconds.to_string();
        let args = [
            "record",
            "--source",
            "timer",
            "--disable-archive",
            "--keep-memory",
            "--samples-jsonl",
            "-t",
            &seconds,
            "-o",
        ];
        let args: Vec<&OsStr> = args.into_iter().map(OsStr::new).chain([profile.as_os_str()]).collect();
        self.said(&args)?;
        Ok(std::fs::rename(profile.join("perf.jsonl"), lines)?)
    }

    /// Reads a recording.
    pub fn extract(&self, recording: &Path, options: &[&str]) -> Result<Decision> {
        let args = ["extract", "-f"].into_iter().map(OsStr::new).chain([recording.as_os_str()]);
        self.decide(&args.chain(options.iter().map(OsStr::new)).collect::<Vec<_>>())
    }
}

/// The elements of a list in a report.
fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

/// The subcells of a report.
fn subcells(report: &Value) -> impl Iterator<Item = &Value> {
    list(report, "cells").flat_map(|cell| list(cell, "subcells"))
}

impl Decision {
    /// The subcells that are communities.
    pub fn communities(&self) -> Vec<&Value> {
        subcells(&self.report).filter(|subcell| subcell["kind"] == "community").collect()
    }

    /// Samples of these threads.
    pub fn samples(&self, threads: &[Thread]) -> f64 {
        let is_one = |listed: &&Value| {
            let id = |key: &str| listed[key].as_u64().and_then(|id| u32::try_from(id).ok());
            threads.iter().any(|thread| (id("pid"), id("tid")) == (Some(thread.pid), Some(thread.tid)))
        };
        let listed = subcells(&self.report).flat_map(|subcell| list(subcell, "threads"));
        listed.filter(is_one).filter_map(|thread| thread["samples"].as_f64()).sum()
    }
}

/// The cgroup of programs that are started here, on a hierarchy of version 2.
pub fn own_cgroup() -> String {
    let table = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    table.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").to_owned()
}
