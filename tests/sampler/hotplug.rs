//! CPUs that come online during a capture, as a sysfs of the test's own says: its events are opened, a worker reads them, and no
//! event is counted twice or not at all. tests/vm/guest/hotplug.sh has CPUs that really go offline.
//!
//! A child is this binary again, which runs the test `child` on the CPU that its environment names. The tests need root (or
//! CAP_PERFMON) and two CPUs; otherwise each prints SKIP.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::thread::{sched_setaffinity, CpuSet};
use scxprof::host::Roots;
use scxprof::sample::{SideBand, Source};
use scxprof::testing::host::topology;
use scxprof::testing::sampler::attr::Features;
use scxprof::testing::sampler::tee::Tee;
use scxprof::testing::sampler::{Batch, Hardware, Running, Sampler, SamplerOptions, Target};

/// One in this number of faults may have no sample: on Linux 6.18 it is about one in 500,000 (tests/soak). A count that is added twice, or
/// not at all, is most of them.
const UNSAMPLED: u64 = 100;
/// The time after which a test gives up.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a child says once it only runs on its CPU.
const PINNED: &str = "pinned";

/// Children that make page faults on one CPU each, until dropped.
struct Children(Vec<Child>);

impl Children {
    fn on(cpus: &[u32]) -> Self {
        let start = |cpu: &u32| {
            Command::new(std::env::current_exe().unwrap())
                .args(["sampler::hotplug::child", "--exact", "--nocapture", "--test-threads=1"])
                .env("SCXPROF_TEST_CPU", cpu.to_string())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let mut children = Self(cpus.iter().map(start).collect());
        for child in &mut children.0 {
            // Until then it may run on any CPU.
            let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
            assert!(lines.map(Result::unwrap).any(|line| line.ends_with(PINNED)), "a child has ended");
        }
        children
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn child() {
    let Ok(cpu) = std::env::var("SCXPROF_TEST_CPU") else { return };
    let mut set = CpuSet::new();
    set.set(cpu.parse().unwrap());
    sched_setaffinity(None, &set).unwrap();
    println!("{PINNED}");
    let fault = || loop {
        // Fewer than the rate at which only a part of the faults is sampled.
        let mut pages = memmap2::MmapMut::map_anon(1 << 20).unwrap();
        pages.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        drop(black_box(pages));
        std::thread::sleep(Duration::from_millis(20));
    };
    let thread = std::thread::spawn(fault);
    fault();
    drop(thread);
}

/// Notes the events that are opened during a capture.
#[derive(Debug, Default)]
struct Opened(Mutex<Vec<(u64, Option<u64>)>>);

impl Tee for Opened {
    fn records(&self, _: &[u8], _: u64, _: bool) {}

    fn opened(&self, id: u64, like: Option<u64>) {
        self.0.lock().unwrap().push((id, like));
    }

    fn complete(&self, _: usize, _: u64) {}
}

/// A capture of faults that begins on the first of two CPUs.
struct Capture {
    running: Running,
    opened: Arc<Opened>,
    sys: tempfile::TempDir,
    cpus: [u32; 2],
    /// The ids of the events that were open at the start.
    begin: BTreeSet<u64>,
}

/// `None`, with the reason printed, if this machine does not allow it.
fn start(test: &str, cpus: [u32; 2], target: Target, all_cpus: bool) -> Option<Capture> {
    let sys = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(sys.path().join("devices/system/cpu")).unwrap();
    online(sys.path(), &cpus[..1]);
    let options = SamplerOptions {
        source: Source::Faults,
        freq: None,
        target,
        cpus: cpus[..1].to_vec(),
        all_cpus,
        mmap_pages: 256,
        workers: None,
        realtime: None,
        queue: 0,
        features: Features::all(),
        hardware: Hardware::default(),
        proc: "/proc".into(),
        sys: sys.path().to_owned(),
        child_pid_namespace: false,
        sched: None,
        raise_open_files: false,
        stacks: None,
        snapshots: false,
    };
    let sampler = match Sampler::open(&options) {
        Err(error) if error.is_unsupported() => {
            println!("SKIP: {test}: {error}");
            return None;
        }
        opened => opened.unwrap(),
    };
    let begin = sampler.events().unwrap().into_iter().flat_map(|event| event.ids).collect();
    let opened = Arc::new(Opened::default());
    let running = sampler.start(Some(&(Arc::clone(&opened) as Arc<dyn Tee>))).unwrap();
    Some(Capture { running, opened, sys, cpus, begin })
}

/// Two CPUs on which we may run; `None`, with the reason printed, if there are none.
fn two_cpus(test: &str) -> Option<[u32; 2]> {
    let online = topology::online_cpus(&Roots::default()).unwrap();
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let is_ours = |cpu: &u32| (*cpu as usize) < CpuSet::MAX_CPU && allowed.is_set(*cpu as usize);
    let mut cpus = online.into_iter().filter(is_ours);
    let two = cpus.next().and_then(|first| Some([first, cpus.next()?]));
    if two.is_none() {
        println!("SKIP: {test}: needs two CPUs");
    }
    two
}

/// Makes these the CPUs that are online.
fn online(sys: &Path, cpus: &[u32]) {
    let list = cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    // A reader sees the old list or the new one.
    let new = sys.join("devices/system/cpu/new");
    std::fs::write(&new, format!("{list}\n")).unwrap();
    std::fs::rename(new, sys.join("devices/system/cpu/online")).unwrap();
}

impl Capture {
    /// Waits for a batch that `is_it` accepts.
    fn wait_for(&self, what: &str, mut is_it: impl FnMut(&Batch) -> bool) {
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT {
            if self.running.batches().recv_timeout(Duration::from_millis(100)).is_ok_and(|batch| is_it(&batch)) {
                return;
            }
        }
        panic!("no batch with {what} in {TIMEOUT:?}");
    }

    fn wait_for_cpu(&self, cpu: u32) {
        self.wait_for(&format!("a sample of CPU {cpu}"), |batch| batch.samples.iter().any(|it| it.raw.cpu == cpu));
    }

    fn opened(&self) -> usize {
        self.opened.0.lock().unwrap().len()
    }

    /// Takes the second CPU offline, and back, until it is noticed.
    fn bounce(&self) {
        let before = self.opened();
        let begin = Instant::now();
        while self.opened() == before {
            assert!(begin.elapsed() < TIMEOUT, "its events were not opened again");
            online(self.sys.path(), &self.cpus[..1]);
            std::thread::sleep(Duration::from_millis(300));
            online(self.sys.path(), &self.cpus);
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

#[test]
fn a_cpu_that_comes_online_is_sampled_and_every_event_is_counted_once() {
    let test = "a_cpu_that_comes_online_is_sampled_and_every_event_is_counted_once";
    let Some(cpus) = two_cpus(test) else { return };
    let _children = Children::on(&cpus);
    let Some(capture) = start(test, cpus, Target::System, true) else { return };
    capture.wait_for_cpu(cpus[0]);
    online(capture.sys.path(), &cpus);
    let mut is_suspect = false;
    capture.wait_for("a sample of the new CPU", |batch| {
        is_suspect |=
            batch.side_band.iter().any(|side| matches!(side.what, SideBand::Lost { cpu, .. } if cpu == cpus[1]));
        batch.samples.iter().any(|sample| sample.raw.cpu == cpus[1])
    });
    assert!(is_suspect, "what the new CPU's tasks did before is not known");
    for _ in 0..2 {
        capture.bounce();
        // What was sampled before the events were opened again.
        std::thread::sleep(Duration::from_millis(200));
        capture.running.batches().try_iter().for_each(drop);
        capture.wait_for_cpu(cpus[1]);
    }
    let opened = capture.opened.0.lock().unwrap().clone();
    let ids: BTreeSet<u64> = opened.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids.len(), opened.len(), "each is opened once");
    assert!(ids.is_disjoint(&capture.begin));
    let like: BTreeSet<u64> = opened.iter().filter_map(|(_, like)| *like).collect();
    assert_eq!(like, capture.begin, "one of each kind, which was open at the start");
    capture.running.stop();
    for _ in capture.running.batches() {}
    let totals = capture.running.join();
    let loss = totals.loss;
    let seen = loss.samples + loss.own + loss.idle + loss.exiting + loss.outside_pid_namespace + loss.ring_full;
    assert!(totals.events.abs_diff(seen) <= totals.events / UNSAMPLED, "{} events, {loss:?}", totals.events);
    let said = totals.notes.join("\n");
    let expected = format!("CPU {} was offline", cpus[1]);
    assert!(said.contains(&expected) && said.contains("sampled again"), "{said}");
}

#[test]
fn the_threads_of_a_process_are_sampled_on_a_cpu_that_comes_online() {
    let test = "the_threads_of_a_process_are_sampled_on_a_cpu_that_comes_online";
    let Some(cpus) = two_cpus(test) else { return };
    let children = Children::on(&cpus[1..]);
    let pid = children.0[0].id();
    // Its other threads are found when the CPU comes.
    let target = Target::Tasks { tids: vec![pid], enable_on_exec: false };
    let Some(capture) = start(test, cpus, target, true) else { return };
    online(capture.sys.path(), &cpus);
    let mut threads = BTreeSet::new();
    capture.wait_for("samples of two of its threads on the new CPU", |batch| {
        for sample in &batch.samples {
            assert_eq!((sample.raw.pid, sample.raw.cpu), (pid, cpus[1]));
            threads.insert(sample.raw.tid);
        }
        threads.len() >= 2
    });
    // The events of a task stay with it.
    let opened = capture.opened();
    online(capture.sys.path(), &cpus[..1]);
    std::thread::sleep(Duration::from_millis(600));
    online(capture.sys.path(), &cpus);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(capture.opened(), opened);
    capture.running.stop();
    for _ in capture.running.batches() {}
    let loss = capture.running.join().loss;
    assert!(loss.unsampled <= loss.samples / UNSAMPLED, "{loss:?}");
}

#[test]
fn a_cpu_that_nobody_asked_for_is_not_sampled() {
    let test = "a_cpu_that_nobody_asked_for_is_not_sampled";
    let Some(cpus) = two_cpus(test) else { return };
    let _children = Children::on(&cpus);
    let Some(capture) = start(test, cpus, Target::System, false) else { return };
    online(capture.sys.path(), &cpus);
    std::thread::sleep(Duration::from_secs(1));
    capture.wait_for_cpu(cpus[0]);
    capture.running.stop();
    assert!(capture.running.batches().iter().all(|batch| batch.samples.iter().all(|it| it.raw.cpu == cpus[0])));
    let (opened, mut notes) = (capture.opened(), capture.running.join().notes);
    // A host with compilers has more faults than are to be sampled.
    notes.retain(|note| !note.contains("while it was steered"));
    assert_eq!((opened, notes), (0, Vec::new()));
}
