//! Builds, lists and starts the programs of known sharing, and other work beside them.

#![allow(dead_code)] // The tests use some of it, the table of `make truth` some.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{bail, ensure, Context, Result};

use super::score::{self, Thread};

/// A program of known sharing.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its name in the table.
    pub name: String,
    file: PathBuf,
    scenario: String,
    /// Its number of threads, unless it is the scenario's own.
    threads: Option<usize>,
}

/// The scenarios of kernel.c.
const OF_KERNEL: [&str; 10] =
    ["pipes", "unixes", "loopback", "readers", "written", "events", "futexes", "listeners", "ownpipes", "ownfiles"];

impl Program {
    /// True if its processes share through the kernel only, so that it takes `--kernel` to see it.
    pub fn is_of_kernel(&self) -> bool {
        OF_KERNEL.contains(&self.scenario.as_str())
    }
}

/// The work beside a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    Nothing,
    /// As many compilers as there are CPUs, one after the other.
    Compilers,
    /// A second instance, with other thread names.
    Itself,
}

impl Beside {
    pub const ALL: [Self; 3] = [Self::Nothing, Self::Compilers, Self::Itself];

    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "quiet",
            Self::Compilers => "compilers",
            Self::Itself => "itself",
        }
    }
}

/// The prefix of a second instance's thread names.
const TAG: &str = "x";

/// The built programs; their files go with it.
pub struct Programs {
    dir: tempfile::TempDir,
    /// All scenarios, except those in a language without a compiler here.
    pub all: Vec<Program>,
    /// What was left out, and why.
    pub skipped: Vec<String>,
}

impl Programs {
    /// Builds them; if a compiler is missing, its programs are skipped.
    pub fn build() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sharing/programs");
        let source = |name: &str| sources.join(name);
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-g0", "-pthread"]);
        cc.args(["family.c", "memory.c", "structures.c", "contention.c"].map(source));
        cc.args(["protocols.c", "phases.c", "kernel.c"].map(source));
        let mut rustc = Command::new("rustc");
        rustc.args(["-O", "--edition=2021"]).arg(source("service.rs"));
        let mut programs = Self { dir, all: Vec::new(), skipped: Vec::new() };
        programs.add("family", &mut cc)?;
        programs.add("service", &mut rustc)?;
        Ok(programs)
    }

    fn add(&mut self, name: &str, compiler: &mut Command) -> Result<()> {
        let file = self.dir.path().join(name);
        match compiler.arg("-o").arg(&file).current_dir(self.dir.path()).output() {
            Err(error) => {
                let compiler = compiler.get_program().to_string_lossy();
                self.skipped.push(format!("the scenarios of {name}: cannot run {compiler}: {error}"));
                return Ok(());
            }
            Ok(output) => {
                ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            }
        }
        let list = Command::new(&file).output().with_context(|| name.to_owned())?.stdout;
        for line in String::from_utf8(list)?.lines() {
            let (scenario, _) = line.split_once(' ').with_context(|| format!("{name} lists {line:?}"))?;
            let program =
                Program { name: scenario.into(), file: file.clone(), scenario: scenario.into(), threads: None };
            self.all.push(program);
        }
        Ok(())
    }

    /// A scenario by its name, with `:THREADS` for another number of threads than its own.
    pub fn find(&self, name: &str) -> Option<Program> {
        let (scenario, threads) = match name.split_once(':') {
            Some((scenario, threads)) => (scenario, Some(threads.parse().ok()?)),
            None => (name, None),
        };
        let program = self.all.iter().find(|program| program.scenario == scenario)?;
        Some(Program { name: name.replace(':', "-"), threads, ..program.clone() })
    }
}

/// A program that runs; it is killed when this is dropped.
pub struct Running {
    child: Child,
    /// Its description of its threads.
    pub threads: Vec<Thread>,
    /// All that it printed until its threads ran.
    pub said: String,
    /// Kept open: it may print more.
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    /// Starts a program and waits until all of its threads run. `prepare` may add options, such as a cgroup.
    pub fn start(program: &Program, seconds: u32, tag: &str, prepare: impl FnOnce(&mut Command)) -> Result<Self> {
        let mut command = Command::new(&program.file);
        command.args([&program.scenario, &seconds.to_string(), tag]);
        command.args(program.threads.map(|threads| threads.to_string()));
        // A scenario creates and removes its files there.
        command.current_dir(program.file.parent().unwrap_or(Path::new("/")));
        prepare(&mut command);
        let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| program.name.clone())?;
        let stdout = child.stdout.take().context("no stdout")?;
        let lines = BufReader::new(stdout).lines();
        let mut running = Self { child, threads: Vec::new(), said: String::new(), lines };
        let mut expected = usize::MAX;
        while running.threads.len() < expected {
            let Some(line) = running.lines.next() else { bail!("{} ended early: {}", program.name, running.said) };
            let line = line?;
            if let Some(count) = line.strip_prefix("program threads=") {
                expected = count.parse()?;
            }
            running.threads.extend(score::threads(&line));
            running.said.push_str(&line);
            running.said.push('\n');
        }
        Ok(running)
    }

    /// The cache lines of the buffers that it has named.
    pub fn lines(&self) -> Vec<u64> {
        let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
        let buffer = |line: &str| {
            let (start, end) = line.strip_prefix("buffer ")?.split_once(" start=")?.1.split_once(" end=")?;
            Some((hex(start)?..hex(end)?).step_by(64))
        };
        self.said.lines().filter_map(buffer).flatten().collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Running compilers, until this is dropped.
pub struct Compilers {
    stop: Arc<AtomicBool>,
    loops: Vec<JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

/// Functions of the source that is compiled again and again: a second of work.
const FUNCTIONS: usize = 250;

impl Compilers {
    pub fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let source = dir.path().join("long.c");
        let mut file = std::fs::File::create(&source)?;
        for header in ["stdio", "stdlib", "string", "math", "pthread"] {
            writeln!(file, "#include <{header}.h>")?;
        }
        for n in 0..FUNCTIONS {
            writeln!(
                file,
                "int f{n}(int a, const char *b) {{ int s = 0; for (int i = 0; i < a * {n}; i++) {{ s += b[i % 17] * {n}; \
                 if (s & 64) s ^= (int)strlen(b); }} return s; }}"
            )?;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let compile = |_| {
            let (stop, source) = (Arc::clone(&stop), source.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let done = Command::new("cc").args(["-O2", "-c", "-o", "/dev/null"]).arg(&source).status();
                    if !done.is_ok_and(|status| status.success()) {
                        break;
                    }
                }
            })
        };
        let loops = (0..cpus).map(compile).collect();
        Ok(Self { stop, loops, _dir: dir })
    }
}

impl Drop for Compilers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for compile in self.loops.drain(..) {
            let _ = compile.join();
        }
    }
}

/// A program and the work beside it.
pub struct Scene {
    /// Threads of the program and of a second instance, if there is one; and a compiler, which shares nothing.
    pub threads: Vec<Thread>,
    _programs: Vec<Running>,
    _compilers: Option<Compilers>,
}

impl Scene {
    /// Starts them and waits until they run. They end when dropped, and by themselves after `seconds`.
    pub fn start(program: &Program, beside: Beside, seconds: u32) -> Result<Self> {
        let first = Running::start(program, seconds, "", |_| {})?;
        let mut threads = first.threads.clone();
        let mut programs = vec![first];
        let mut compilers = None;
        match beside {
            Beside::Nothing => {}
            Beside::Compilers => {
                compilers = Some(Compilers::start()?);
                threads.push(Thread { group: None, name: "cc1".into(), pid: 0, tid: 0 });
            }
            Beside::Itself => {
                let second = Running::start(program, seconds, TAG, |_| {})?;
                let tagged = |thread: &Thread| {
                    let group = thread.group.as_ref().map(|group| format!("{TAG}{group}"));
                    Thread { group, ..thread.clone() }
                };
                threads.extend(second.threads.iter().map(tagged));
                programs.push(second);
            }
        }
        Ok(Self { threads, _programs: programs, _compilers: compilers })
    }
}

/// The lines that [`score::threads`] reads.
pub fn truth(threads: &[Thread]) -> String {
    let line = |thread: &Thread| {
        let Thread { group, name, pid, tid } = thread;
        format!("thread group={} pid={pid} tid={tid} name={name}\n", group.as_deref().unwrap_or("-"))
    };
    threads.iter().map(line).collect()
}
