//! Compares the samples of a recording session with those of its recording.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use scxprof::resolve::Cgroups;
use scxprof::sample::{MemoryId, Sample, Source};
use scxprof::session::{AnalysisOptions, Builder, Error, HostOptions, NotStarted, Sampled, SessionError, Sink, Whose};
use scxprof::testing::host::{topology, Roots};
use scxprof::testing::profile::{Item, PerfData};
use scxprof::testing::sampler::attr::{sampling, side_band, EventSpec, Features, Scope};
use scxprof::testing::sampler::open::{Event, EventScope};
use scxprof::testing::sampler::record::{decode, Record};
use scxprof::Session;

use super::{replayed, said, scxprof, Collect, BUILD_IDS};

/// Threads that are renamed, fork, fault, compute and share memory.
const WORK: &str = "
import ctypes, mmap, os, threading, time
shared = mmap.mmap(-1, 1 << 20)
libc = ctypes.CDLL(None)
def work(name):
    libc.prctl(15, name, 0, 0, 0)
    end = time.monotonic() + 0.6
    while time.monotonic() < end:
        own = mmap.mmap(-1, 1 << 18)
        for page in range(0, 1 << 18, 4096):
            own[page] = 1
            shared[page] = (shared[page] + 1) % 256
children = []
for name in (b'job 3/4', b'caf\\xc3\\xff'):
    pid = os.fork()
    if pid == 0:
        other = threading.Thread(target=work, args=(b'helper',))
        other.start()
        work(name)
        other.join()
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
";

/// A sink of the session while it records.
#[derive(Default)]
struct LookOn {
    collect: Collect,
    /// Samples of `STORM` at its shared memory.
    after_storm: Arc<AtomicUsize>,
}

impl Sink for LookOn {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        if is_after_storm(sample) {
            self.after_storm.fetch_add(1, Ordering::Relaxed);
        }
        self.collect.sample(sample, cgroups);
    }
}

/// Starts a program without input and output; `None` if it does not exist.
fn spawn(test: &str, command: &mut Command) -> Option<Child> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    child.inspect_err(|error| println!("SKIP: {test}: {command:?}: {error}")).ok()
}

fn python(test: &str, program: &str) -> Option<Child> {
    spawn(test, Command::new("python3").args(["-c", program]))
}

/// Records with `builder` to `dir`, until the program that `work` starts ends, or has shown enough after its storm; `None` if
/// this machine does not allow it.
fn record(
    test: &str,
    builder: Builder<'_>,
    (host, analysis): (HostOptions, AnalysisOptions),
    after_storm: &AtomicUsize,
    work: impl FnOnce() -> Option<Child>,
    dir: &Path,
) -> Option<Sampled> {
    let host = HostOptions { record: Some(dir.to_owned()), ..host };
    let analysis = AnalysisOptions { target_cpus: Some(64), ..analysis };
    let session = match builder.host(host).analysis(analysis).start() {
        Ok(session) => session,
        Err(Error::Start(NotStarted { error: SessionError::Sampler(error), .. })) if error.is_unsupported() => {
            println!("SKIP: {test}: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let recorder = session.recorder().unwrap();
    let mut child = work()?;
    let sampled = session
        .run_until(|_| child.try_wait().unwrap().is_some() || after_storm.load(Ordering::Relaxed) >= AFTER_STORM);
    let _ = child.kill();
    child.wait().unwrap();
    recorder.finish(&sampled.outcome).unwrap();
    let loss = sampled.outcome.loss;
    if loss.channel_full + loss.late > 0 {
        // The recording has what the session had to drop.
        println!("SKIP: {test}: the machine was too busy for the session: {:?}", loss.lines());
        return None;
    }
    Some(sampled)
}

/// The same samples with the same names, memory and cgroups.
fn assert_same(live: &Collect, again: &Collect) {
    assert_eq!(live.samples.len(), again.samples.len());
    for (index, (live, again)) in live.samples.iter().zip(&again.samples).enumerate() {
        assert_eq!(live, again, "sample {index}");
    }
    assert_eq!(live.paths, again.paths);
}

fn compare(test: &str, source: Source) {
    let dir = tempfile::tempdir().unwrap();
    let mut look_on = LookOn::default();
    let after_storm = Arc::clone(&look_on.after_storm);
    let builder = Session::builder().sink(&mut look_on);
    let options = (HostOptions { mmap_pages: 1024, ..HostOptions::source(source) }, AnalysisOptions::default());
    let Some(sampled) = record(test, builder, options, &after_storm, || python(test, WORK), dir.path()) else { return };
    let live = look_on.collect;
    let loss = sampled.outcome.loss;
    if loss.side_band > 0 {
        println!("SKIP: {test}: the rings were too small: {:?}", loss.lines());
        return;
    }
    let expected = sampled.decide().unwrap().mitosis().unwrap();
    let (again, outcome, damage) = replayed(dir.path());
    assert_eq!(damage, Vec::<String>::new());
    assert!(live.samples.len() > 20, "only {} samples", live.samples.len());
    assert_same(&live, &again);
    assert_eq!(outcome.loss.late, 0);
    let named =
        |name: &[u8]| again.samples.iter().any(|sample| sample.comm.is_some_and(|comm| comm.as_bytes() == name));
    // A thread need not be running at a tick.
    let names = [&b"job 3/4"[..], b"caf\xc3\xff", b"helper"].map(named);
    assert!(source == Source::Timer || names == [true; 3], "{names:?}");

    let mut profile = scxprof::profile::Profile::open(dir.path()).unwrap();
    let found = Session::builder().profile(&mut profile).analysis(AnalysisOptions::for_cpus(64)).run().unwrap();
    assert_eq!(found.mitosis().unwrap(), expected);
    // With the command line, from the profile and from its lines.
    let path = dir.path().to_str().unwrap();
    let output = scxprof(&["process", "-f", path]);
    assert!(output.status.success(), "{}", said(&output));
    let lines = format!("{path}.out");
    let extract = |more: &[&str]| {
        let output = scxprof(&[&["extract", "--target-cpus", "64", "--max-loss", "100"], more].concat());
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(extract(&["-f", path]), expected);
    // Lines, as any selection, know the name at a thread's last sample and not a later one.
    assert_eq!(extract(&["-f", &lines]), extract(&["-f", path, "--from", "0"]));
    std::fs::remove_dir_all(&lines).unwrap();
}

/// Maps more than a small ring holds, and shares memory that was mapped meanwhile.
const STORM: &str = "
import ctypes, mmap, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def storm():
    for _ in range(20000):
        libc.munmap(libc.mmap(None, 4096, 3, 0x22, -1, 0), 4096)
storm()
shared = mmap.mmap(-1, 1 << 20)
storm()
libc.prctl(15, b'after all', 0, 0, 0)
storm()
# Until it is killed.
for _ in range(3000):
    child = os.fork()
    for page in range(0, 1 << 20, 4096):
        shared[page] = (shared[page] + 1) % 256
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(0.02)
";

/// The samples of it that prove that its name and its memory are known.
const AFTER_STORM: usize = 20;

fn is_after_storm(sample: &Sample) -> bool {
    let named = sample.comm.is_some_and(|comm| comm.as_bytes() == b"after all");
    named && matches!(sample.memory, Some(MemoryId::Shared { .. }))
}

#[test]
fn what_is_read_again_after_loss_is_the_same_again() {
    let test = "what_is_read_again_after_loss_is_the_same_again";
    let dir = tempfile::tempdir().unwrap();
    let mut look_on = LookOn::default();
    let after_storm = Arc::clone(&look_on.after_storm);
    let builder = Session::builder().sink(&mut look_on);
    let options = (HostOptions { mmap_pages: 1, ..HostOptions::source(Source::Faults) }, AnalysisOptions::default());
    let Some(sampled) = record(test, builder, options, &after_storm, || python(test, STORM), dir.path()) else {
        return;
    };
    let live = look_on.collect;
    if sampled.outcome.loss.side_band == 0 {
        println!("SKIP: {test}: no side-band was lost");
        return;
    }
    let (again, outcome, damage) = replayed(dir.path());
    assert_eq!((damage, outcome.loss.late), (Vec::new(), 0));
    let lost = |loss: scxprof::session::Loss| (loss.ring_full, loss.side_band, loss.lost(), loss.total());
    assert_eq!(lost(outcome.loss), lost(sampled.outcome.loss), "names are no samples");
    assert_same(&live, &again);
    let known = again.samples.iter().filter(|sample| is_after_storm(sample)).count();
    assert!(known >= AFTER_STORM, "the memory that was mapped meanwhile and the name are known: {known}");
}

#[test]
fn faults_are_the_same_again() {
    compare("faults_are_the_same_again", Source::Faults);
}

#[test]
fn timer_samples_are_the_same_again() {
    compare("timer_samples_are_the_same_again", Source::Timer);
}

/// A report without what belongs to one session: how much was left out before it was recorded, the sizes of tables, and
/// what is known of the run.
fn comparable(report: &str) -> String {
    let mut report: serde_json::Value = serde_json::from_str(report).unwrap();
    for key in ["event_count", "loss", "tables", "run"] {
        assert!(report.as_object_mut().unwrap().remove(key).is_some(), "the report has no {key}");
    }
    serde_json::to_string_pretty(&report).unwrap()
}

#[test]
fn a_report_is_the_same_again_with_the_names_of_its_code() {
    let test = "a_report_is_the_same_again_with_the_names_of_its_code";
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("program");
    let queue = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/queue.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-g0", "-pthread", "-fno-inline", "-o"]).args([&program, &queue]);
    if !compiler.status().is_ok_and(|status| status.success()) {
        println!("SKIP: {test}: no C compiler");
        return;
    }
    // On a busy machine a recording may have too few samples.
    for attempt in 0..6 {
        let profile = dir.path().join(format!("profile-{attempt}"));
        std::fs::create_dir(&profile).unwrap();
        // Files of other programs may disappear between the two reports.
        let Some(child) = spawn(test, Command::new(&program).arg("3")) else { return };
        let whose = Whose::Pids(vec![child.id()]);
        let host = HostOptions { freq: Some(997), whose, ..HostOptions::source(Source::Timer) };
        // As the command has them: the C library may have debug information here.
        let source_lines = Some(env!("CARGO_BIN_EXE_scxprof").into());
        let analysis = AnalysisOptions { symbols: true, source_lines, ..AnalysisOptions::default() };
        let (builder, none) = (Session::builder(), AtomicUsize::new(0));
        let Some(sampled) = record(test, builder, (host, analysis), &none, || Some(child), &profile) else { return };
        if sampled.outcome.loss.side_band > 0 {
            continue;
        }
        let Ok(found) = sampled.decide() else { continue };
        let report = comparable(&found.report().unwrap().to_json().unwrap());

        let again = dir.path().join("report.json");
        let arguments = ["extract", "--target-cpus", "64", "--max-loss", "100", "-f", profile.to_str().unwrap()];
        let output = scxprof(&[&arguments[..], &["--report", again.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{}", said(&output));
        let again = comparable(&std::fs::read_to_string(again).unwrap());
        for (number, (again, live)) in again.lines().zip(report.lines()).enumerate() {
            assert_eq!(again, live, "line {number} of the report");
        }
        assert_eq!(again, report);
        if report.contains(r#""sym": "produce""#) || report.contains(r#""sym": "consume""#) {
            return;
        }
    }
    panic!("no recording saw the threads share anything");
}

/// Starts recording the host's page faults to `out`; `None` if this machine does not allow it.
fn begin(test: &str, out: &Path) -> Option<Child> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_scxprof"))
        .args(["record", "--source", "faults", "-t", "60", "--disable-archive", "--max-loss", "100", "-o"])
        .arg(out)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = || {
        let mut entries = std::fs::read_dir(out.parent().unwrap()).unwrap().flatten();
        entries.any(|entry| entry.path().join("perf.data").exists())
    };
    while !begun() {
        if let Some(status) = child.try_wait().unwrap() {
            assert_eq!(status.code(), Some(3), "it ended before it began");
            println!("SKIP: {test}: no page faults can be sampled here");
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(child)
}

/// Ends it as Ctrl-C does.
fn interrupt(child: Child) {
    // SAFETY: the child is ours and not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_signal_keeps_what_was_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("x");
    let Some(child) = begin("a_signal_keeps_what_was_recorded", &out) else { return };
    assert!(!out.exists(), "it has its name when it is whole");
    interrupt(child);
    let (_, _, damage) = replayed(&out);
    assert_eq!(damage, Vec::<String>::new());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
    assert_eq!(out.metadata().unwrap().permissions().mode() & 0o777, 0o700, "for its owner alone");
}

#[test]
fn records_are_ours_where_another_profiler_looks_on() {
    let test = "records_are_ours_where_another_profiler_looks_on";
    let _turn = BUILD_IDS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("x");
    let Some(child) = begin(test, &out) else { return };
    // The kernel first asks the event that was opened last.
    let faults = sampling(&EventSpec::minor_faults(), Features::all(), Scope::default(), 0);
    let mut mappings = side_band(Features::all(), Scope::default(), 0, false);
    mappings.set_build_id(1);
    let mut others = Vec::new();
    for cpu in topology::online_cpus(&Roots::default()).unwrap() {
        for attr in [&faults, &mappings] {
            let Ok(event) = Event::open("another", attr, EventScope::All, cpu) else { continue };
            // Without a ring the kernel does not reach the part that leaves the id behind.
            let ring = event.ring(64);
            event.enable().unwrap();
            others.push((event, ring));
        }
    }
    // Its file is there before its events are enabled, and begins with the mappings of what ran already: samples are sure when it is larger.
    let size = || {
        std::fs::read_dir(dir.path())
            .unwrap()
            .flatten()
            .find_map(|entry| Some(std::fs::metadata(entry.path().join("perf.data")).ok()?.len()))
    };
    let (before, begun) = (size().unwrap_or(0), Instant::now());
    let mut processes = 0;
    while processes < 50 || size().unwrap_or(0) < before + (2 << 20) {
        assert!(Command::new("true").status().unwrap().success());
        processes += 1;
        assert!(
            begun.elapsed() < Duration::from_secs(45),
            "after {processes} processes it has written {:?} bytes",
            size()
        );
    }
    interrupt(child);
    if others.is_empty() {
        println!("SKIP: {test}: no event of another's could be opened");
    }
    let mut file = PerfData::open(std::fs::File::open(out.join("perf.data")).unwrap()).unwrap();
    let ids: Vec<u64> = file.events().iter().flat_map(|event| event.ids.clone()).collect();
    let (mut samples, mut mappings) = (0, 0);
    while let Some(item) = file.next_item().unwrap() {
        let Item::Record { bytes, layout, .. } = item else { continue };
        let (header, record, _) = decode(bytes, layout).unwrap();
        match record {
            Record::Sample(sample) => {
                assert!(ids.contains(&sample.identifier), "sample {samples} has the id {}", sample.identifier);
                samples += 1;
            }
            Record::Mmap2 { .. } => {
                assert_eq!(
                    header.misc & (1 << 14),
                    0,
                    "a mapping says that it has a build id, which was not asked for"
                );
                mappings += 1;
            }
            _ => {}
        }
    }
    assert!(samples > 50 && mappings > 50, "{processes} processes: {samples} samples, {mappings} mappings");
}

#[test]
fn an_archive_takes_the_directorys_place() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("my profile");
    let args = [
        "record",
        "--source",
        "faults",
        "--max-loss",
        "100",
        "--samples-jsonl",
        "-o",
        out.to_str().unwrap(),
        "--",
        "true",
    ];
    let output = scxprof(&args);
    if output.status.code() == Some(3) {
        println!("SKIP: an_archive_takes_the_directorys_place: {}", said(&output).trim());
        return;
    }
    assert!(output.status.success(), "{}", said(&output));
    let archive = dir.path().join("my profile.tar.gz");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(archive.metadata().unwrap().permissions().mode() & 0o777, 0o600, "for its owner alone");
    let (collect, _, damage) = replayed(&archive);
    assert_eq!(damage, Vec::<String>::new());
    assert!(!collect.samples.is_empty());
    // Truncated in the middle it gives the part that is there, or nothing, but never a success.
    let bytes = std::fs::read(&archive).unwrap();
    std::fs::write(&archive, &bytes[..bytes.len() / 2]).unwrap();
    let output = scxprof(&["extract", "-f", archive.to_str().unwrap()]);
    assert!(matches!(output.status.code(), Some(1 | 4)), "{}", said(&output));
}
