//! Real programs: recorded, replayed, and the replay recorded. Nothing else is to run meanwhile.

mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde_json::Value;
use tables::Tables;

use crate::support::alone;

const SCXPROF: &str = env!("CARGO_BIN_EXE_scxprof");

/// Why a test is skipped.
struct Skip(String);

fn is_here(program: &str) -> Result<(), Skip> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|path| path.join(program).is_file());
    found.then_some(()).ok_or_else(|| Skip(format!("{program} is not installed")))
}

/// Records into `to`; `more` is for how long, or a command.
fn record(to: &Path, more: &[&str]) -> Result<(), Skip> {
    let mut command = Command::new(SCXPROF);
    command.args(["record", "--sched", "--max-loss", "100", "--disable-archive", "-o"]).arg(to).args(more);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(3) => Err(Skip(text.trim().to_owned())),
        Some(0) => Ok(()),
        _ => panic!("{text}"),
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// True if the replayed count is further from the recorded one than 5 % and its standard deviation (Poisson): with make's 200 sleeps
/// chance decides about more than 10 of them.
fn is_off(count: &Value) -> bool {
    let [recorded, replayed] = ["recorded", "replayed"].map(|which| number(&count[which]));
    recorded.abs_diff(replayed) as f64 > recorded as f64 / 20.0 + (recorded as f64).sqrt()
}

/// The CPU time of one sleep and one wakeup on this machine as it is now, in ns: two threads wake each other in turn.
fn sleep_ns() -> u64 {
    const TURNS: u64 = 2000;
    let (first, second) = (Barrier::new(2), Barrier::new(2));
    let turns = || {
        let begin = thread_ns();
        for _ in 0..TURNS {
            first.wait();
            second.wait();
        }
        thread_ns() - begin
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(turns);
        (turns() + other.join().unwrap()) / (2 * TURNS)
    })
}

/// The CPU time of this thread.
fn thread_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time`, which outlives the call.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A replay beside its recording.
struct Beside {
    result: Value,
    wakes: [BTreeMap<(String, String), u64>; 2],
}

impl Beside {
    /// Replays the threads with these names, and records that.
    fn new(original: &Path, names: &str, dir: &Path) -> Result<Self, Skip> {
        let (again, result) = (dir.join("again"), dir.join("result.json"));
        let replay = ["replay", "-f", original.to_str().unwrap(), "--comm", names, "--overcommit", "--no-memory"];
        let output = ["--json", "-o", result.to_str().unwrap()];
        record(&again, &[&["--", SCXPROF], &replay[..], &output[..]].concat())?;
        let result: Value = serde_json::from_slice(&std::fs::read(&result).unwrap()).unwrap();
        let comms: Vec<&Value> = result["threads"].as_array().unwrap().iter().map(|thread| &thread["comm"]).collect();
        let wakes = [original, &again].map(|path| Tables::of(path, |name| comms.iter().any(|it| **it == name)).wakes);
        Ok(Self { result, wakes })
    }

    /// What is further from the recording than a bar allows: 5 % for the run time of each thread, and for run time, sleeps and
    /// wakeups of all together, with chance ([`is_off`]). Between two sleeps a mock thread runs for at least as long as it takes to
    /// sleep and to wake another, so that it may run for longer than a program that does less: the bar has that from this machine,
    /// twice, as the measured threads are not recorded.
    /// A preemption is what the scheduler chose, so that of the switches the sleeps are compared. Threads that ran for less
    /// than 20 ms are compared together: a mock process is made by fork(2), which takes some 100 us more than the vfork(2) of make.
    fn beyond(&self) -> Vec<String> {
        let sleep_ns = (2 * sleep_ns()).max(5_000);
        let runs_otherwise = |it: &Value| {
            let [recorded, replayed] = ["recorded", "replayed"].map(|which| number(&it["run_ns"][which]));
            let least = recorded - recorded / 20;
            let most = recorded + recorded / 20 + sleep_ns * number(&it["sleeps"]["recorded"]);
            !(least..=most).contains(&replayed)
        };
        let mut beyond = Vec::new();
        for thread in self.result["threads"].as_array().unwrap() {
            if number(&thread["run_ns"]["recorded"]) >= 20_000_000 && runs_otherwise(thread) {
                beyond.push(format!("run time, {sleep_ns} ns a sleep: {thread}"));
            }
        }
        let total = &self.result["total"];
        if runs_otherwise(total) {
            beyond.push(format!("run time, {sleep_ns} ns a sleep: {total}"));
        }
        for field in ["sleeps", "wakeups"] {
            if is_off(&total[field]) {
                beyond.push(format!("{field}: {}", total[field]));
            }
        }
        beyond
    }

    /// Pairs that wake each other in one graph and not in the other, or together more or less often than `within` and chance (four
    /// standard deviations) allow; of those with at least `least` wakeups. Of two that wake each other, the one that comes first sleeps, and chance has a part in which that is.
    fn graph(&self, least: u64, within: f64) -> Vec<String> {
        let [recorded, replayed] = &self.wakes;
        let of = |graph: &BTreeMap<(String, String), u64>, a: &str, b: &str| {
            graph.get(&(a.to_owned(), b.to_owned())).copied().unwrap_or(0)
        };
        let mut beyond = Vec::new();
        for (a, b) in recorded.keys().chain(replayed.keys()).collect::<BTreeSet<_>>() {
            let [before, after] = [recorded, replayed].map(|graph| of(graph, a, b));
            if before.max(after) >= least && before.min(after) < least / 4 {
                beyond.push(format!("{a} wakes {b} {before} times, replayed {after}"));
            }
            let [before, after] = [recorded, replayed].map(|graph| of(graph, a, b) + of(graph, b, a));
            let margin = within * before as f64 + 4.0 * (before as f64).sqrt();
            if before.max(after) >= least && before.abs_diff(after) as f64 > margin {
                beyond.push(format!("{a} and {b} wake each other {before} times, replayed {after}"));
            }
        }
        beyond
    }
}

/// Measures once, and up to three times more if that was beyond a bar: the machine may be busy with something else. `measure` gets
/// 1, 2, 4 and 8, so that it can record for longer each time.
fn several_times(test: &str, measure: impl Fn(u32) -> Result<Vec<String>, Skip>) {
    let _alone = alone();
    let mut beyond = Vec::new();
    for longer in [1, 2, 4, 8] {
        match measure(longer) {
            Ok(found) if found.is_empty() => return,
            Ok(found) => beyond.push(found),
            Err(Skip(reason)) => return println!("SKIP: {test}: {reason}"),
        }
    }
    panic!("{beyond:#?}");
}

/// A server that ends when it is dropped.
struct Server(Child);

impl Server {
    fn new(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn connect(socket: &Path) -> UnixStream {
    let begin = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(20), "{}: {error}", socket.display()),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Stores 50 values, asks for them and looks at the answer, with a pause of 1 ms, until `stop`. Between two sleeps all have
/// some 100 us to do, as mock threads cannot do less than sleep and wake.
fn client(mut stream: UnixStream, stop: &AtomicBool) {
    const KEYS: u32 = 50;
    let mut first = 0u32;
    let mut answer = Vec::new();
    let mut read = |stream: &mut UnixStream, end: &[u8]| {
        answer.clear();
        let mut piece = [0; 8 << 10];
        while !answer.ends_with(end) {
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0);
            answer.extend_from_slice(&piece[..count]);
        }
        answer.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"x")).count()
    };
    while !stop.load(Ordering::Relaxed) {
        first = (first + KEYS) % 1000;
        let keys = first..first + KEYS;
        let value = "x".repeat(500);
        let mut sets: String = keys.clone().map(|key| format!("set k{key} 0 0 500 noreply\r\n{value}\r\n")).collect();
        sets += "version\r\n";
        stream.write_all(sets.as_bytes()).unwrap();
        read(&mut stream, b"\r\n");
        let names: Vec<String> = keys.map(|key| format!("k{key}")).collect();
        stream.write_all(format!("get {}\r\n", names.join(" ")).as_bytes()).unwrap();
        assert_eq!(read(&mut stream, b"END\r\n"), KEYS as usize);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn servers(longer: u32) -> Result<Vec<String>, Skip> {
    for program in ["redis-server", "redis-benchmark", "memcached"] {
        is_here(program)?;
    }
    let dir = tempfile::tempdir().unwrap();
    let (redis, memcached) = (dir.path().join("redis"), dir.path().join("memcached"));
    let original = dir.path().join("original");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&redis);
        let _redis = Server::new(command.current_dir(dir.path()));
        let mut command = Command::new("memcached");
        // SAFETY: asks for the user of this process.
        if unsafe { libc::geteuid() } == 0 {
            command.args(["-u", "root"]);
        }
        let _memcached = Server::new(command.args(["-t", "2", "-s"]).arg(&memcached));
        let clients: Vec<_> = (0..3)
            .map(|number| {
                let (stream, stop) = (connect(&memcached), &stop);
                let name = format!("client-{number}");
                std::thread::Builder::new().name(name).spawn_scoped(scope, move || client(stream, stop)).unwrap()
            })
            .collect();
        drop(connect(&redis));
        let mut command = Command::new("redis-benchmark");
        // More requests than it can do meanwhile.
        let _load = Server::new(command.args(["-n", "100000000", "-c", "20", "-t", "set", "-q", "-s"]).arg(&redis));
        std::thread::sleep(Duration::from_millis(300));
        let recorded = record(&original, &["-t", &(3 * longer).to_string()]);
        stop.store(true, Ordering::Relaxed);
        // Before their server.
        for client in clients {
            client.join().unwrap();
        }
        recorded
    })?;
    let beside = Beside::new(&original, "^(redis-|memcached|mc-worker|client-)", dir.path())?;
    let mut beyond = beside.beyond();
    // Both programs of redis, and three clients with a worker of memcached each: as connections are given to workers.
    beyond.extend(beside.graph(100, 0.1));
    let pairs = beside.wakes[0].values().filter(|times| **times >= 100).count();
    if pairs < 2 + 3 + 3 {
        beyond.push(format!("too few pairs wake each other 100 times: {:?}", beside.wakes[0]));
    }
    Ok(beyond)
}

#[test]
fn servers_under_load_replay() {
    several_times("servers_under_load_replay", servers);
}

/// A program of 24 files, each of which takes a compiler some 0.1 s.
fn sources(dir: &Path) {
    for file in 0..24 {
        let function = |number: u32| {
            let body = "int s = a; for (int k = 0; k < a; k++) { s += b[k % 9] * k; if (s % 7 == 2) s ^= strlen(b); }";
            format!("int f{file}_{number}(int a, char *b) {{ {body} printf(\"%d\\n\", s + {number}); return s; }}\n")
        };
        let text: String = (0..12).map(function).collect();
        let text = format!("#include <stdio.h>\n#include <string.h>\n{text}");
        std::fs::write(dir.join(format!("f{file}.c")), text).unwrap();
    }
    std::fs::write(dir.join("main.c"), "int main(void) { return 0; }\n").unwrap();
    let objects: Vec<String> = (0..24).map(|file| format!("f{file}.o")).collect();
    let rules = format!("prog: {} main.o\n\tcc -o $@ $^\n%.o: %.c\n\tcc -O2 -c -o $@ $<\n", objects.join(" "));
    std::fs::write(dir.join("Makefile"), rules).unwrap();
}

fn compilers() -> Result<Vec<String>, Skip> {
    for program in ["make", "cc"] {
        is_here(program)?;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    sources(&source);
    let original = dir.path().join("original");
    record(&original, &["--", "make", "-s", "-j3", "-C", source.to_str().unwrap()])?;
    assert!(source.join("prog").is_file());
    let beside = Beside::new(&original, "^(make|sh|cc|cc1|as|collect2|ld)$", dir.path())?;
    let mut beyond = beside.beyond();
    // Each job has a cc, cc1 and as; make, and the last cc with collect2 and ld.
    let threads = beside.result["threads"].as_array().unwrap().len();
    assert!(threads >= 1 + 25 * 3 + 2, "{threads}");
    // Of processes that live for some ms, one recording or the other misses up to a fifth, all pairs alike (seen beside a compiler).
    beyond.extend(beside.graph(20, 0.4));
    let pairs = beside.wakes[0].iter().filter(|(_, times)| **times >= 20).count();
    if pairs < 3 {
        beyond.push(format!("too few pairs wake each other 20 times: {:?}", beside.wakes[0]));
    }
    Ok(beyond)
}

#[test]
fn a_parallel_make_replays() {
    several_times("a_parallel_make_replays", |_| compilers());
}
