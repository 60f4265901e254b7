//! The workloads: how each is started, when it is ready, and how much work it did.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use crate::who;

/// Where the servers listen.
const REDIS: u16 = 6400;
const MEMCACHED: u16 = 6401;
/// What the build prints a line to for each file that it compiled.
const BUILT: &str = "/tmp/built";
/// What `scxprof record` says.
const RECORD_SAID: &str = "/tmp/record.out";
/// Options of `scxprof record` for samples of kernel code too: in rings of the usual size nearly half of the samples at 4 kHz were lost.
pub const WITH_KERNEL: [&str; 3] = ["--kernel", "--mmap-pages", "4096"];
/// How long threads stay where they are put, so that each has run there.
const SHUFFLED: Duration = Duration::from_millis(30);
/// How long after threads that are sampled were moved they are moved again.
const STAYS: Duration = Duration::from_millis(250);
/// How long anything may take to start or end.
const PATIENCE: Duration = Duration::from_secs(120);

/// How the work of a workload is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// By an instruction in its programs that the plugin counts.
    Plugin,
    /// Requests that the servers answered.
    Requests,
    /// Instructions: what the build compiles takes longer than a window.
    Instructions,
}

/// A workload that runs. It ends when this is dropped.
pub struct Workload {
    /// The first process of each session.
    children: Vec<Child>,
    unit: Unit,
}

impl Workload {
    /// Starts a workload by name: `demo`, `servers`, `build`, or scenarios of tests/sharing/programs, with a `+` between each two.
    pub fn start(name: &str, seed: u32) -> Result<Self> {
        let mut workload = Self { children: Vec::new(), unit: Unit::Plugin };
        match name {
            "demo" => {
                let words = ["--here", "--seconds", "3600"];
                workload.spawn_until_ready(Command::new("demo-workload").args(words))?;
            }
            "servers" => {
                workload.unit = Unit::Requests;
                workload.start_servers()?;
            }
            "build" => {
                workload.unit = Unit::Instructions;
                fs::write(BUILT, "")?;
                let forever = "while :; do make -s -B -j8 -C /build || exit 1; done";
                workload.spawn(Command::new("sh").args(["-c", forever]))?;
                wait_for("the build compiled nothing", || Ok(lines_of(BUILT)? > 0))?;
            }
            _ => {
                for scenario in name.split('+') {
                    let mut command = Command::new("family");
                    command.args([scenario, "3600"]).env("FAMILY_SEED", seed.to_string());
                    workload.spawn_until_ready(&mut command)?;
                }
            }
        }
        Ok(workload)
    }

    fn spawn(&mut self, command: &mut Command) -> Result<&mut Child> {
        // SAFETY: setsid is safe in a forked child (signal-safety(7)).
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                Ok(())
            });
        }
        let child = command.stdin(Stdio::null()).spawn().with_context(|| format!("{command:?}"))?;
        self.children.push(child);
        self.children.last_mut().context("no child")
    }

    /// Starts a program, and waits until it is ready and each thread that it announces has its name: a scheduler matches names.
    fn spawn_until_ready(&mut self, command: &mut Command) -> Result<()> {
        let child = self.spawn(command.stdout(Stdio::piped()))?;
        let mut lines = BufReader::new(child.stdout.take().context("no stdout")?).lines();
        let (mut is_ready, mut announced, mut named) = (false, 0, 0);
        for line in lines.by_ref() {
            let line = line?;
            is_ready |= line.starts_with("ready");
            named += usize::from(line.starts_with("thread "));
            if let Some(threads) = line.strip_prefix("program threads=") {
                announced = threads.parse()?;
            }
            if is_ready && named >= announced {
                // Whoever writes more has a reader.
                thread::spawn(move || lines.count());
                return Ok(());
            }
        }
        bail!("{command:?} ended before it was ready")
    }

    fn start_servers(&mut self) -> Result<()> {
        let port = REDIS.to_string();
        self.spawn(Command::new("redis-server").stdout(Stdio::null()).args([
            "--port",
            &port,
            "--io-threads",
            "3",
            "--io-threads-do-reads",
            "yes",
            "--save",
            "",
            "--appendonly",
            "no",
        ]))?;
        let port = MEMCACHED.to_string();
        self.spawn(Command::new("memcached").args(["-u", "root", "-l", "127.0.0.1", "-p", &port, "-t", "3"]))?;
        wait_for("the servers do not listen", || {
            Ok([REDIS, MEMCACHED].iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok()))
        })?;
        let port = REDIS.to_string();
        self.spawn(Command::new("redis-benchmark").stdout(Stdio::null()).args([
            "-p",
            &port,
            "-l",
            "-q",
            "-t",
            "set,get",
            "-c",
            "8",
            "-d",
            "256",
            "-r",
            "4000",
            "--threads",
            "2",
        ]))?;
        let myself = std::env::current_exe()?;
        self.spawn(Command::new(myself).args(["client", &MEMCACHED.to_string()]))?;
        let before = requests()?;
        wait_for("the servers answer nothing", || Ok(requests()? > before + 5000))
    }

    /// Gives each process a group, and its children with it; returns the processes with their groups.
    pub fn put(&self, who: &who::Who) -> Result<Vec<(u32, u32)>> {
        let mut put: Vec<(u32, u32)> = Vec::new();
        loop {
            // One that was forked before its parent had a group is found the next time.
            let missing = |process: &u32| !put.iter().any(|(known, _)| known == process);
            let new: Vec<u32> = self.processes()?.into_iter().filter(missing).collect();
            if new.is_empty() {
                return Ok(put);
            }
            for process in new {
                let group = who::FIRST + u32::try_from(put.len())?;
                who.put(process, group)?;
                put.push((process, group));
            }
        }
    }

    /// All of its processes that run now.
    pub fn processes(&self) -> Result<Vec<u32>> {
        let mut processes = Vec::new();
        for child in &self.children {
            processes.extend(who::processes_of(child.id())?);
        }
        ensure!(!processes.is_empty(), "the workload has ended");
        Ok(processes)
    }

    /// The names of its threads, each with the CPU where it ran last.
    pub fn places(&self) -> Result<Vec<(String, u32)>> {
        let mut places = Vec::new();
        for process in self.processes()? {
            // Processes and threads may end in the meantime.
            for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
                let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                // proc_pid_stat(5): the name is in parentheses, and `processor` is the field 39.
                let name = stat.split_once('(').zip(stat.rsplit_once(')')).map(|((_, name), (_, rest))| (name, rest));
                let Some((name, fields)) = name else { continue };
                let name = name.rsplit_once(')').map_or(name, |(name, _)| name).to_owned();
                places
                    .extend(fields.split_whitespace().nth(36).and_then(|cpu| cpu.parse().ok()).map(|cpu| (name, cpu)));
            }
        }
        Ok(places)
    }

    /// Moves each thread to a random CPU, and lets it go again. Threads that start one after the other get neighbouring CPUs, so
    /// without this those that share would be together only because of the order in which the program starts them.
    pub fn shuffle(&self, seed: u32, cpus: u32) -> Result<()> {
        let threads = self.threads()?;
        let mut random = u64::from(seed) + 1;
        for thread in &threads {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let cpu = (random >> 33) % u64::from(cpus);
            pin(*thread, cpu as usize..cpu as usize + 1);
        }
        thread::sleep(SHUFFLED);
        for thread in &threads {
            pin(*thread, 0..cpus as usize);
        }
        Ok(())
    }

    fn threads(&self) -> Result<Vec<i32>> {
        let mut threads = Vec::new();
        for process in self.processes()? {
            let entries = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
            threads.extend(entries.filter_map(|thread| thread.file_name().to_str()?.parse::<i32>().ok()));
        }
        Ok(threads)
    }

    /// Stops all of its threads while `start` starts something else: all CPUs of the emulated machine share one of the host, so that
    /// a busy workload would make that many times slower.
    pub fn stopped_while<T>(&self, start: impl FnOnce() -> Result<T>) -> Result<T> {
        let processes = self.processes()?;
        let signal = |signal| {
            for process in &processes {
                // SAFETY: it takes numbers; at worst the process is gone.
                unsafe { libc::kill(process.cast_signed(), signal) };
            }
        };
        signal(libc::SIGSTOP);
        let started = start();
        signal(libc::SIGCONT);
        started
    }

    /// How much work was done until now; `None` where the plugin counts it.
    pub fn units(&self) -> Result<Option<u64>> {
        match self.unit {
            Unit::Requests => requests().map(Some),
            Unit::Plugin | Unit::Instructions => Ok(None),
        }
    }

    /// True if its instructions are the work.
    pub fn is_counted_by_instructions(&self) -> bool {
        self.unit == Unit::Instructions
    }

    fn end(&mut self) -> Result<()> {
        let sessions: Vec<u32> = self.children.iter().map(Child::id).collect();
        let all = || {
            let processes = sessions.iter().map(|session| who::processes_of(*session)).collect::<Result<Vec<_>>>()?;
            anyhow::Ok(processes.concat())
        };
        for process in all()? {
            // SAFETY: it takes numbers; at worst the process is gone.
            unsafe { libc::kill(process.cast_signed(), libc::SIGKILL) };
        }
        for child in &mut self.children {
            child.wait()?;
        }
        self.children.clear();
        wait_for("the workload does not end", || Ok(all()?.is_empty()))
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("workload: {error}");
        }
    }
}

/// Lets a thread run on these CPUs. It may have ended.
fn pin(thread: i32, cpus: std::ops::Range<usize>) {
    // SAFETY: all zeroes are a set without CPUs.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus {
        // SAFETY: the set is ours, and it checks the number.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the set is as long as it says.
    unsafe { libc::sched_setaffinity(thread, size_of_val(&set), &raw const set) };
}

/// Samples a workload for some seconds of its work into a profile, which takes the place of an earlier one. `more` are options of
/// `scxprof record`; `begin` is called when that is ready, before the workload goes on, and `end` when it has taken its last sample.
pub fn sample(
    workload: &Workload,
    seconds: &str,
    more: &[&str],
    profile: &str,
    (begin, end): (impl FnOnce(), impl FnOnce()),
) -> Result<()> {
    let words = [&["record", "-v", "--source", "timer", "-t", seconds, "-o", profile], more].concat();
    let cpus = thread::available_parallelism()?.get();
    let mut shuffled = 0;
    if fs::exists(profile)? {
        fs::remove_file(profile)?;
    }
    let said = || fs::read_to_string(RECORD_SAID).unwrap_or_default();
    let out = fs::File::create(RECORD_SAID)?;
    let mut record =
        Command::new("scxprof").args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(out).spawn()?;
    let fds = format!("/proc/{}/fd", record.id());
    let samples = || -> Result<bool> {
        let mut links = fs::read_dir(&fds)?.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        Ok(links.any(|link| link.to_string_lossy().contains("perf_event")))
    };
    let begun = workload.stopped_while(|| {
        // Each CPU has its event then, and what it reads first was read.
        wait_for("scxprof record does not begin", || {
            ensure!(record.try_wait()?.is_none(), "scxprof record ended before it began");
            Ok(said().contains("using the timer source"))
        })?;
        begin();
        Ok(())
    });
    if begun.is_err() {
        record.kill()?;
        record.wait()?;
    }
    begun.with_context(said)?;
    // Without the model a CPU waits for its turn longer than a tick, so that some CPUs get half of the ticks, and of the samples, of others.
    // No thread is always on these.
    let mut end = Some(end);
    let status = loop {
        if samples().is_ok_and(|samples| !samples) {
            if let Some(end) = end.take() {
                end();
            }
        }
        if let Some(status) = record.try_wait()? {
            break status;
        }
        workload.shuffle(record.id().wrapping_add(shuffled), u32::try_from(cpus)?)?;
        shuffled += 1;
        thread::sleep(STAYS);
    };
    if let Some(end) = end {
        end();
    }
    // 4: samples were lost, which is said; the result is there.
    ensure!(matches!(status.code(), Some(0 | 4)), "scxprof record: {status}: {}", said());
    Ok(())
}

/// Waits until something holds.
pub fn wait_for(else_what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let begin = Instant::now();
    while !holds()? {
        ensure!(begin.elapsed() < PATIENCE, "{else_what}");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn lines_of(path: &str) -> Result<u64> {
    Ok(fs::read_to_string(path)?.lines().count() as u64)
}

/// Requests that both servers answered until now.
fn requests() -> Result<u64> {
    Ok(figure(REDIS, "info stats\r\n", "total_commands_processed:")?
        + figure(MEMCACHED, "stats\r\n", "STAT cmd_get ")?
        + figure(MEMCACHED, "stats\r\n", "STAT cmd_set ")?)
}

/// The number behind a word in what a server answers.
fn figure(port: u16, question: &str, word: &str) -> Result<u64> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(question.as_bytes())?;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if let Some(number) = line.strip_prefix(word) {
            return Ok(number.trim().parse()?);
        }
        ensure!(line.trim() != "END", "no {word} in what port {port} says");
    }
    bail!("no {word} in what port {port} says")
}

/// Asks memcached from two threads until somebody ends it: nine of ten requests get.
pub fn client(port: u16) -> Result<()> {
    const KEYS: u64 = 4000;
    let ask = move |seed: u64| -> Result<()> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        let mut answers = BufReader::new(stream.try_clone()?);
        let (mut random, mut line, mut value) = (seed, String::new(), Vec::new());
        loop {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = (random >> 33) % KEYS;
            let set = (random >> 20) % 10 == 0;
            if set {
                write!(&stream, "set key{key} 0 0 256\r\n{key:256}\r\n")?;
            } else {
                write!(&stream, "get key{key}\r\n")?;
            }
            line.clear();
            ensure!(answers.read_line(&mut line)? > 0, "memcached has ended");
            if line.starts_with("VALUE") {
                value.resize(256 + 2 + 5, 0);
                answers.read_exact(&mut value)?;
            }
        }
    };
    let other = thread::Builder::new().name("asker".into()).spawn(move || ask(1))?;
    ask(2)?;
    other.join().map_err(|_| anyhow::anyhow!("a thread of the client panicked"))?
}
