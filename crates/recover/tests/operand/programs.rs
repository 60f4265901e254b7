//! Builds and starts the programs of `PROGRAMS`, and reads their description of themselves.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Lines};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A built program; its file goes with it.
pub struct Built {
    _dir: Option<tempfile::TempDir>,
    pub path: PathBuf,
}

/// Builds `name` with cc, or with rustc, at this level of optimisation; `None` if there is no compiler. `SCXPROF_BUILT` is a folder that has the programs for a machine without
/// one.
pub fn build(name: &str, level: u8) -> Option<Built> {
    if let Some(built) = std::env::var_os("SCXPROF_BUILT") {
        let path = Path::new(&built).join(format!("{name}-O{level}"));
        return path.exists().then(|| Built { _dir: None, path });
    }
    let source = |language: &str| Path::new(super::PROGRAMS).join(format!("{name}.{language}"));
    let dir = tempfile::tempdir().ok()?;
    let path = dir.path().join(format!("{name}-O{level}"));
    if source("rs").exists() {
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition=2021", "-C", &format!("opt-level={level}"), "-o"]).arg(&path).arg(source("rs"));
        assert!(rustc.status().ok()?.success(), "rustc failed on {name}.rs");
        return Some(Built { _dir: Some(dir), path });
    }
    let mut cc = Command::new("cc");
    cc.arg(format!("-O{level}")).args(["-pthread", "-g0"]);
    #[cfg(target_arch = "x86_64")]
    if matches!(name, "special" | "stream") && std::is_x86_feature_detected!("avx2") {
        cc.arg("-mavx2");
    }
    let status = cc.arg(source("c")).arg("-o").arg(&path).status().ok()?;
    assert!(status.success(), "cc failed on {name}.c");
    Some(Built { _dir: Some(dir), path })
}

/// A thread of a group.
#[derive(Debug, Clone)]
pub struct Thread {
    pub group: String,
    pub pid: i32,
    pub tid: i32,
}

/// A running program; killed when dropped.
pub struct Running {
    child: Child,
    /// Kept open: the program may have more to say.
    lines: Lines<BufReader<ChildStdout>>,
    pub threads: Vec<Thread>,
    /// By process and group.
    pub buffers: HashMap<(i32, String), Range<u64>>,
    /// By group: the lines that it touches, modulo 2.
    pub parity: HashMap<String, u64>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a program for `seconds` and waits until its `threads` threads have described themselves.
pub fn start(program: &Path, seconds: f64, threads: usize) -> Running {
    start_command(Command::new(program).arg(seconds.to_string()), threads)
}

/// Starts a command that finally runs one of the programs, and waits likewise.
pub fn start_command(command: &mut Command, threads: usize) -> Running {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
    let lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
    let mut running = Running { child, lines, threads: Vec::new(), buffers: HashMap::new(), parity: HashMap::new() };
    let begin = Instant::now();
    while running.threads.len() < threads && begin.elapsed() < Duration::from_secs(10) {
        let Some(Ok(line)) = running.lines.next() else { break };
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let fields: HashMap<&str, &str> = words.filter_map(|word| word.split_once('=')).collect();
        let number = |key: &str| fields.get(key).and_then(|value| value.parse().ok()).unwrap_or(0);
        let hex = |key: &str| {
            fields.get(key).and_then(|value| u64::from_str_radix(value.trim_start_matches("0x"), 16).ok()).unwrap_or(0)
        };
        let group = fields.get("group").copied().unwrap_or_default().to_owned();
        match kind {
            "buffer" => drop(running.buffers.insert((number("pid"), group), hex("start")..hex("end"))),
            "thread" => running.threads.push(Thread { group, pid: number("pid"), tid: number("tid") }),
            "parity" => drop(running.parity.insert(group, u64::try_from(number("value")).unwrap_or(0))),
            _ => {}
        }
    }
    assert_eq!(running.threads.len(), threads, "{command:?}");
    running
}
