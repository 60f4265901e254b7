//! The library's public API as an embedding program uses it: values in, values out, and no side effects.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{mpsc, Mutex};
use std::time::{Duration, Instant};

use rustix::stdio::{dup2_stderr, dup2_stdout, stderr, stdout};
use scxprof::bpf;
use scxprof::config::CellOptions;
use scxprof::host::Roots;
use scxprof::profile::Profile;
use scxprof::resolve::Cgroups;
use scxprof::sample::{RawSample, Sample, Source};
use scxprof::session::{
    Analysis, AnalysisOptions, Batch, Builder, By, Error, ErrorKind, Feed, Hardware, HostOptions, Live, LiveError,
    LiveOptions, LiveState, NotStarted, SamplerError, SessionError, SideBand, Sink, Snapshot, StopHandle, Whose,
};
use scxprof::Session;

/// The time after which a test gives up.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Two threads that write to the same pages, for `left` batches; it stops its capture in the middle if it has a handle.
struct Pair {
    left: u64,
    names: [&'static str; 2],
    stop: Option<StopHandle>,
}

impl Pair {
    fn new(left: u64) -> Self {
        Self { left, names: ["reader", "writer"], stop: None }
    }
}

impl Feed for Pair {
    fn next_batch(&mut self) -> Option<Batch> {
        self.left = self.left.checked_sub(1)?;
        let time = 1_000_000_000_000 - self.left * 1_000_000;
        let mut batch = Batch::until(time);
        for (tid, name) in [7, 8].into_iter().zip(self.names) {
            batch.side_band(time, SideBand::Comm { pid: 7, tid, exec: false, comm: name.into() });
            let addr = 0x1000 + self.left % 512 * 64;
            batch.samples.push(RawSample { time, pid: 7, tid, addr, ..RawSample::default() });
        }
        if let Some(stop) = self.stop.take() {
            stop.stop();
            // It is checked every 50 ms.
            std::thread::sleep(Duration::from_millis(60));
        }
        Some(batch)
    }
}

#[derive(Default)]
struct Count(u64);

impl Sink for Count {
    fn sample(&mut self, sample: &Sample, _cgroups: &mut Cgroups) {
        assert!(sample.comm.is_some() && sample.memory.is_some());
        self.0 += 1;
    }
}

/// Counts the samples of a real capture.
struct CountAny<'a>(&'a AtomicU64);

impl Sink for CountAny<'_> {
    fn sample(&mut self, _sample: &Sample, _cgroups: &mut Cgroups) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Minor faults of this host.
fn faults<'a>() -> Builder<'a> {
    Session::builder().host(HostOptions::source(Source::Faults))
}

fn of_host(options: HostOptions) -> Result<Analysis, Error> {
    Session::builder().host(options).run()
}

/// Threads are told apart by their hints.
fn by_hint() -> AnalysisOptions {
    AnalysisOptions { use_hints: true, ..AnalysisOptions::default() }
}

/// Code has names.
fn named() -> AnalysisOptions {
    AnalysisOptions { symbols: true, ..AnalysisOptions::default() }
}

/// Page faults of another process, which every start of a program has.
fn fault() {
    let _ = Command::new("true").status();
}

/// Prints why a capture of the kernel's events cannot start here; any other error fails.
fn skip(test: &str, error: &Error) {
    let Error::Start(error) = error else { panic!("{error}") };
    println!("SKIP: {test}: {error}");
}

#[test]
fn a_live_capture_of_this_host_can_be_looked_at() {
    let options = LiveOptions { interval: Duration::from_millis(200), ..LiveOptions::default() };
    let live = match Live::start(options, HostOptions::source(Source::Faults)) {
        Ok(live) => live,
        Err(LiveError::Session(error)) => return skip("a live capture", &error),
        Err(error) => panic!("{error}"),
    };
    let until = |what: &str, is_so: &dyn Fn(&Snapshot) -> bool| {
        let begin = Instant::now();
        while !is_so(&live.snapshot(&[By::Thread, By::Cpu])) {
            fault();
            assert!(begin.elapsed() < TIMEOUT, "{what}: {:?}", live.snapshot(&[By::Thread]).losses);
        }
    };
    until("accesses", &|now| now.accesses.iter().all(|lines| lines.lines.iter().any(|it| it.total.samples > 0.0)));
    until("sharing", &|now| now.sharing.is_some());
    until("busy CPUs", &|now| now.cpus.iter().any(|cpu| cpu.busy.is_some()) && now.cost.rss_bytes > 0);
    assert!(live.snapshot(&[]).scheduling.is_none() && !live.is_scheduling());
    match live.schedule(true) {
        Ok(()) => {
            let has_events =
                |now: &Snapshot| now.scheduling.as_ref().is_some_and(|it| it.events > 0 && it.window_s > 0.0);
            until("scheduling events", &has_events);
            live.schedule(false).unwrap();
            assert!(live.snapshot(&[By::Thread]).scheduling.is_none());
        }
        Err(LiveError::Session(error)) => skip("scheduling events of a live capture", &error),
        Err(error) => panic!("{error}"),
    }
    live.stop();
    let last = live.snapshot(&[By::Process]);
    assert_eq!(last.state, LiveState::Ended);
    assert!(live.outcome().is_some_and(|outcome| outcome.samples > 0) && last.losses.samples > 0);
}

#[test]
fn a_source_and_sinks_of_ones_own() {
    let (mut one, mut two) = (Count::default(), Count::default());
    let found = Session::builder().feed(&mut Pair::new(500)).sink(&mut one).sink(&mut two).run().unwrap();
    assert_eq!((one.0, two.0, found.outcome.samples, found.outcome.accesses), (1000, 1000, 1000, 1000));
    assert_eq!((found.source, found.outcome.loss.lost()), (Source::Recorded, 0));
    let json: serde_json::Value = serde_json::from_str(&found.mitosis().unwrap()).unwrap();
    assert!(json.is_array());
    assert!(found.layered().unwrap().0.starts_with('['));
    let report = found.report().unwrap();
    let threads: usize = report.cells.iter().flat_map(|cell| &cell.subcells).map(|it| it.threads.len()).sum();
    assert_eq!(threads, 2);
}

#[test]
fn a_sink_alone_decides_nothing() {
    let (mut own, mut given) = (Count::default(), Count::default());
    let mut feed = Pair::new(20);
    let session = Session::builder().feed(&mut feed).sink(&mut given).start().unwrap();
    assert_eq!((session.source(), session.skipped().len()), (Source::Recorded, 0));
    let outcome = session.run_into(&mut own, |_| false);
    assert_eq!((own.0, given.0, outcome.accesses), (40, 40, 40));
}

#[test]
fn what_was_sampled_is_there_before_it_is_decided() {
    let mut feed = Pair::new(900_000);
    let session = Session::builder().feed(&mut feed).analysis(AnalysisOptions::for_cpus(4)).start().unwrap();
    let sampled = session.run_until(|progress| progress.samples > 100);
    let samples = sampled.outcome.samples;
    assert!(samples > 100);
    assert_eq!(sampled.decide().unwrap().outcome.samples, samples);
}

/// Threads of one name under two hints, each with its own pages.
struct Hinted(u64);

impl Feed for Hinted {
    fn next_batch(&mut self) -> Option<Batch> {
        self.0 += 1;
        let time = self.0 * 1_000_000;
        let mut batch = Batch::until(time);
        for tid in 1..=6 {
            let hint = u64::from(tid % 2 + 1);
            if self.0 == 1 {
                batch.side_band(time, SideBand::Comm { pid: 1, tid, exec: false, comm: "worker".into() });
                batch.side_band(time, SideBand::Hint { time, pid: 1, tid, hint: Some(hint) });
            }
            let addr = (hint << 32) + self.0 % 64 * 4096;
            let access = scxprof::sample::Access::Store;
            batch.samples.push(RawSample { time, pid: 1, tid, addr, access, ..RawSample::default() });
        }
        (self.0 < 2000).then_some(batch)
    }
}

#[test]
fn a_feed_s_hints_tell_threads_apart_where_asked() {
    let found = Session::builder().feed(&mut Hinted(0)).analysis(by_hint()).run().unwrap();
    let (layers, _) = found.layered().unwrap();
    assert!(layers.contains("HintEquals"), "{layers}");
    assert_eq!(found.outcome.hints.as_ref().map(|hints| hints.values), Some(2));
    assert!(found.mitosis().unwrap().starts_with('['));
    let found = Session::builder().feed(&mut Hinted(0)).run().unwrap();
    let (layers, _) = found.layered().unwrap();
    assert!(!layers.contains("HintEquals"), "{layers}");
}

#[test]
fn little_memory_is_no_reason_to_fail() {
    for memory in [0, 1, 4096, 1 << 20] {
        let found = Session::builder().feed(&mut Pair::new(100)).memory(memory).run().unwrap();
        assert_eq!(found.outcome.samples, 200, "{memory}");
    }
}

#[test]
fn a_handle_stops_a_source_of_ones_own() {
    let builder = Session::builder();
    let mut feed = Pair { stop: Some(builder.stop_handle()), ..Pair::new(500) };
    let found = builder.feed(&mut feed).run().unwrap();
    assert_eq!(found.outcome.samples, 2, "one batch of two");
}

#[test]
fn a_handle_stops_a_capture_from_another_thread() {
    let test = "a_handle_stops_a_capture_from_another_thread";
    let count = AtomicU64::new(0);
    let mut sink = CountAny(&count);
    // What else runs on this host may be in many cells.
    let builder = faults().sink(&mut sink).analysis(AnalysisOptions::for_cpus(64));
    let stop = builder.stop_handle();
    let (tell, told) = mpsc::channel::<()>();
    let stopper = std::thread::spawn(move || {
        // The capture has started, or could not.
        let _ = told.recv();
        stop.stop();
    });
    let found = builder.start().and_then(|session| {
        let sampled = session.run_until(|_| {
            fault();
            let _ = tell.send(());
            false
        });
        sampled.decide()
    });
    drop(tell);
    stopper.join().unwrap();
    match found {
        // No thread may have run that long.
        Err(Error::NoSamples { .. }) => {}
        Err(error) => skip(test, &error),
        Ok(found) => {
            assert_eq!(found.source, Source::Faults);
            assert!(found.mitosis().unwrap().starts_with('['));
            assert_eq!(count.load(Ordering::Relaxed), found.outcome.accesses);
        }
    }
}

#[test]
fn a_capture_ends_with_its_processes() {
    let test = "a_capture_ends_with_its_processes";
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let whose = Whose::Pids(vec![child.id()]);
    match Session::builder().host(HostOptions { whose, ..HostOptions::source(Source::Faults) }).start() {
        Err(error) => skip(test, &error),
        Ok(session) => {
            let begin = Instant::now();
            let sampled = session.run_until(|_| {
                // Its stdin ends, and so does it; until it is waited for it is a zombie.
                drop(child.stdin.take());
                begin.elapsed() > TIMEOUT
            });
            assert!(sampled.outcome.duration < TIMEOUT);
        }
    }
    drop(child.stdin.take());
    child.wait().unwrap();
}

/// Roots with as little as a capture needs, for a process whose own `proc/self` points to `own`.
fn made(dir: &std::path::Path, own: &str) -> Roots {
    let mut roots = Roots::default();
    (roots.proc, roots.sys) = (dir.join("proc"), dir.join("sys"));
    fs::create_dir_all(&roots.proc).unwrap();
    fs::create_dir_all(roots.sys.join("devices/system/cpu")).unwrap();
    fs::write(roots.sys.join("devices/system/cpu/online"), "0\n").unwrap();
    std::os::unix::fs::symlink(own, roots.proc.join("self")).unwrap();
    roots
}

#[test]
fn errors_have_types() {
    let mut wrong = CellOptions::default();
    wrong.cells.push("x=(".to_owned());
    let error = Session::builder()
        .analysis(AnalysisOptions { cells: wrong, ..AnalysisOptions::default() })
        .feed(&mut Pair::new(1))
        .run()
        .unwrap_err();
    assert!(matches!(error, Error::CellSpecs(_)) && error.kind() == ErrorKind::Request, "{error}");
    let error = Session::builder().feed(&mut Pair::new(0)).run().unwrap_err();
    assert!(matches!(error, Error::NoSamples { .. }) && error.kind() == ErrorKind::NoSamples, "{error}");
    let profile = || -> Result<Profile, Error> { Ok(Profile::open("/nonexistent".as_ref())?) };
    let error = profile().unwrap_err();
    assert!(matches!(error, Error::Profile(_)) && error.kind() == ErrorKind::Profile, "{error}");
    let error = of_host(HostOptions { whose: Whose::Pids(vec![u32::MAX - 1]), ..HostOptions::default() }).unwrap_err();
    assert!(matches!(error, Error::NoProcess(ref gone) if gone.pid == 4_294_967_294), "{error}");
    let mut nowhere = Roots::default();
    (nowhere.proc, nowhere.sys) = ("/nonexistent".into(), "/nonexistent".into());
    let error = Session::builder().roots(nowhere).run().unwrap_err();
    assert!(matches!(error, Error::Host(_)), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let error = Session::builder().roots(made(dir.path(), "1")).run().unwrap_err();
    assert!(matches!(error, Error::ProcfsElsewhere { ours, .. } if ours == std::process::id()), "{error}");
    let mut batched = Hardware::default();
    batched.batched = true;
    let error = of_host(HostOptions { hardware: batched, record: Some(dir.path().into()), ..HostOptions::default() })
        .unwrap_err();
    assert!(matches!(error, Error::BatchedRecording), "{error}");
    if let Err(error) = Cgroups::new(&Roots::default()) {
        println!("SKIP: errors_have_types: those of a cgroup and of a source: {error}");
        return;
    }
    let error =
        of_host(HostOptions { whose: Whose::Cgroup("/no/such/cgroup".into()), ..HostOptions::default() }).unwrap_err();
    assert!(matches!(error, Error::NoCgroup(scxprof::host::Error::NoCgroup { .. })), "{error}");
    let error = of_host(HostOptions::source(Source::Recorded)).unwrap_err();
    let Error::Start(NotStarted { source_name: Source::Recorded, error, .. }) = error else { panic!("{error}") };
    assert!(matches!(error, SessionError::Sampler(SamplerError::Recorded)), "{error}");
}

/// The names of a pair of threads in its own capture.
fn subcells(names: [&'static str; 2]) -> BTreeSet<String> {
    let mut feed = Pair { names, ..Pair::new(400) };
    let found = Session::builder().feed(&mut feed).run().unwrap();
    assert_eq!(found.outcome.samples, 800);
    let report = found.report().unwrap();
    let threads = report.cells.iter().flat_map(|cell| &cell.subcells).flat_map(|subcell| &subcell.threads);
    threads.filter_map(|thread| thread.comm.clone()).collect()
}

#[test]
fn captures_of_one_process_know_nothing_of_each_other() {
    let expected = |names: [&str; 2]| names.map(str::to_owned).into();
    let (one, two) = (["red", "blue"], ["tick", "tock"]);
    assert_eq!(subcells(one), expected(one));
    assert_eq!(subcells(two), expected(two), "one after the other");
    std::thread::scope(|scope| {
        for names in [one, two, one, two].into_iter().cycle().take(16) {
            scope.spawn(move || assert_eq!(subcells(names), expected(names), "at the same time"));
        }
    });
}

/// Captures until `enough` samples have been counted; returns the count.
fn sampled(enough: u64, other: &AtomicU64, own: &AtomicU64) -> Result<u64, Error> {
    let mut sink = CountAny(own);
    let session = faults().start()?;
    let begin = Instant::now();
    // Both continue until both have enough, so that they sample at the same time.
    let done = || own.load(Ordering::Relaxed) >= enough && other.load(Ordering::Relaxed) >= enough;
    let outcome = session.run_into(&mut sink, |_| {
        fault();
        done() || begin.elapsed() > TIMEOUT
    });
    Ok(outcome.accesses)
}

#[test]
fn two_captures_of_the_host_one_after_the_other_and_at_the_same_time() {
    let test = "two_captures_of_the_host_one_after_the_other_and_at_the_same_time";
    let enough = AtomicU64::new(u64::MAX);
    for _ in 0..2 {
        let count = AtomicU64::new(0);
        match sampled(20, &enough, &count) {
            Err(error) => return skip(test, &error),
            Ok(accesses) => assert!(accesses >= 20 && accesses == count.load(Ordering::Relaxed), "{accesses}"),
        }
    }
    let (one, two) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| sampled(20, &one, &two).unwrap());
        assert!(sampled(20, &two, &one).unwrap() >= 20);
        assert!(other.join().unwrap() >= 20);
    });
}

/// Set in the process that [`in_a_process_of_its_own`] is the only test of.
const ALONE: &str = "SCXPROF_TEST_ALONE";

#[test]
fn nothing_is_printed_and_nothing_global_is_changed() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output =
        child.args(["--exact", "library::in_a_process_of_its_own", "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let ran = output.status.success() && said.contains("1 passed");
    assert!(ran, "{said}{}", String::from_utf8_lossy(&output.stderr));
    for line in said.lines().filter(|line| line.starts_with("SKIP: ")) {
        println!("{line}");
    }
}

/// The state that a library must not change: signals, limits, the working directory, the environment.
///
/// The blocked signals are those of the calling thread: while the main thread creates this one, glibc blocks all of its
/// signals, and the main thread may not have continued yet.
fn global() -> Vec<String> {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let kept = ["SigBlk", "SigIgn", "SigCgt", "Umask"];
    let kept = status.lines().filter(|line| kept.iter().any(|name| line.starts_with(name)));
    let mut all: Vec<String> = kept.map(str::to_owned).collect();
    all.push(fs::read_to_string("/proc/self/limits").unwrap());
    all.push(format!("{:?}", std::env::current_dir()));
    all.extend(std::env::vars_os().map(|variable| format!("{variable:?}")));
    all
}

/// The parts of `now` that differ.
fn changed(before: &[String], now: &[String]) -> Vec<String> {
    now.iter().filter(|it| !before.contains(it)).cloned().collect()
}

/// Threads and open files of this process.
fn left_open() -> (usize, usize) {
    let count = |dir: &str| fs::read_dir(dir).unwrap().count();
    (count("/proc/self/task"), count("/proc/self/fd"))
}

/// Runs `work` with stdout and stderr in a file, and returns its content.
fn printed(work: impl FnOnce()) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (out, err) = (rustix::io::dup(stdout()).unwrap(), rustix::io::dup(stderr()).unwrap());
    dup2_stdout(&file).unwrap();
    dup2_stderr(&file).unwrap();
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    dup2_stdout(out).unwrap();
    dup2_stderr(err).unwrap();
    let said = fs::read_to_string(file.path()).unwrap();
    // Print what a panic printed: it explains the failure.
    assert!(done.is_ok(), "{said}");
    said
}

#[test]
fn in_a_process_of_its_own() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a live rlimit.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        // Fewer files than a capture expects to need, but more than it needs on a few CPUs.
        limit.rlim_cur = 60;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    // The first run allocates what the process keeps: the clock's and the allocator's own memory.
    let _ = Session::builder().feed(&mut Pair::new(10)).run().unwrap();
    let (before, open) = (global(), left_open());
    let not_begun = Cell::new(None);
    let said = printed(|| {
        let found = Session::builder().feed(&mut Pair::new(400)).analysis(named()).run().unwrap();
        assert!(found.report().is_ok() && found.mitosis().is_ok() && found.layered().is_ok());
        assert!(Session::builder().feed(&mut Pair::new(0)).run().is_err());
        // Whatever this host allows, with a hint map that does not exist.
        let dir = tempfile::tempdir().unwrap();
        let hints = bpf::HintOptions::new("/nonexistent/map".parse().unwrap());
        let during = Mutex::new(Vec::new());
        for builder in [
            Session::builder()
                .host(HostOptions { hints: Some(hints), ..HostOptions::default() })
                .analysis(AnalysisOptions { use_hints: true, ..named() }),
            Session::builder()
                .host(HostOptions { record: Some(dir.path().into()), ..HostOptions::source(Source::Faults) }),
            Session::builder().host(HostOptions { freq: Some(100), ..HostOptions::source(Source::Timer) }),
        ] {
            match builder.start() {
                Err(error) => not_begun.set(Some(error)),
                Ok(session) => {
                    let recorder = session.recorder();
                    let sampled = session.run_until(|progress| {
                        fault();
                        during.lock().unwrap().extend(changed(&before, &global()));
                        progress.elapsed > Duration::from_millis(200)
                    });
                    if let Some(recorder) = recorder {
                        recorder.finish(&sampled.outcome).unwrap();
                    }
                    let _ = sampled.decide();
                }
            }
        }
        assert_eq!(during.into_inner().unwrap(), [""; 0], "changed while it samples");
    });
    assert_eq!(said, "");
    assert_eq!(changed(&before, &global()), [""; 0]);
    assert_eq!(global().len(), before.len(), "something was taken away");
    let begin = Instant::now();
    // A thread that reads procfs again may still be running.
    while left_open() != open && begin.elapsed() < TIMEOUT {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(left_open(), open, "threads, files");
    if let Some(error) = not_begun.take() {
        println!("SKIP: in_a_process_of_its_own: not all could be sampled: {error}");
    }
}
