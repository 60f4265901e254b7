//! Runs the program of writer.c, and reads its log.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

/// A write that succeeded at some time between `before` and `after`.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    pub before: u64,
    pub after: u64,
    pub tid: u32,
    /// `None` for a delete.
    pub hint: Option<u64>,
}

/// The program's final log.
#[derive(Debug, Default)]
pub struct Log {
    pub writes: Vec<Written>,
    /// The process whose thread called exec with a hint.
    pub exec: Option<(u32, u64)>,
    /// The process with the id of one that has ended.
    pub reused: Option<u32>,
    pub failed: u64,
    pub flood: u64,
    pub complete: bool,
}

/// The program, which has written its first hints and waits.
pub struct Writer {
    child: Child,
    pub map_id: u32,
    reader: Option<JoinHandle<Log>>,
}

/// A directory with a bpffs, unmounted when dropped.
pub struct BpfFs {
    dir: tempfile::TempDir,
}

impl BpfFs {
    pub fn mount() -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let status = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(dir.path()).output();
        match status {
            Ok(output) if output.status.success() => Ok(Self { dir }),
            Ok(output) => Err(format!("no bpffs: {}", String::from_utf8_lossy(&output.stderr).trim())),
            Err(error) => Err(format!("mount: {error}")),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for BpfFs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.dir.path()).status();
    }
}

/// The built program, or the one in `SCXPROF_HINT_WRITER` if there is no compiler.
pub fn program(dir: &Path) -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("SCXPROF_HINT_WRITER") {
        return Ok(path.into());
    }
    let path = dir.join("writer");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hints/writer.c");
    let output = Command::new("cc").args(["-O1", "-pthread", "-o"]).arg(&path).arg(source).output();
    match output {
        Ok(output) if output.status.success() => Ok(path),
        Ok(output) => panic!("cc failed on writer.c: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => Err(format!("cc: {error}")),
    }
}

impl Writer {
    /// Starts it; threads become processes if the kernel has no pidfds for threads.
    pub fn start(program: &Path, pin: &Path, arguments: &[&str]) -> Result<Self, String> {
        let processes = if has_thread_pidfds() { None } else { Some("-P") };
        let mut child = Command::new(program)
            .args(arguments)
            .args(processes)
            .arg(pin)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let map_id = lines.next().and_then(|line| line.strip_prefix("map=")?.parse().ok());
        let ready = lines.next().is_some_and(|line| line == "ready");
        let (Some(map_id), true) = (map_id, ready) else {
            let _ = child.kill();
            let output = child.wait_with_output().unwrap();
            return Err(format!("no hint map here: {}", String::from_utf8_lossy(&output.stderr).trim()));
        };
        let reader = Some(std::thread::spawn(move || read(lines)));
        Ok(Self { child, map_id, reader })
    }

    /// The name of its map.
    pub fn map_name(&self) -> String {
        format!("hints_{}", self.child.id())
    }

    /// Starts the phases; the second call ends them.
    pub fn next(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// True if its log is complete.
    pub fn has_ended(&self) -> bool {
        self.reader.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Its log.
    pub fn log(mut self) -> Log {
        self.reader.take().unwrap().join().unwrap()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn has_thread_pidfds() -> bool {
    let thread = || {
        // SAFETY: the calls take plain numbers; the descriptor has no other owner.
        unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, libc::gettid(), libc::O_EXCL);
            fd >= 0 && libc::close(fd as i32) == 0
        }
    };
    std::thread::spawn(thread).join().unwrap()
}

fn read(lines: impl Iterator<Item = String>) -> Log {
    let mut log = Log::default();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].rsplit('=').next().unwrap().parse::<i64>().unwrap();
        match words[0] {
            "write" => log.writes.push(Written {
                before: number(1) as u64,
                after: number(2) as u64,
                tid: number(4) as u32,
                hint: u64::try_from(number(5)).ok(),
            }),
            "exec" => log.exec = u64::try_from(number(2)).ok().map(|hint| (number(1) as u32, hint)),
            "reused" => log.reused = u32::try_from(number(1)).ok(),
            "counts" => (log.failed, log.flood) = (number(2) as u64, number(3) as u64),
            "end" => log.complete = true,
            _ => {}
        }
    }
    log.writes.sort_by_key(|write| write.before);
    log
}
