//! The soak: scxprof samples the whole host at a high rate while processes, threads, cgroups, mappings and files come and go by
//! the thousand. Its tables, its memory, its file descriptors and its threads must stay as they were in the first quarter of the
//! time, and every event must be a sample or a counted loss.
//!
//! SOAK_SECONDS is how long; 60 without it. `make soak` takes 30 minutes. With SOAK_CPUS=1, CPU 1 also goes offline and comes back:
//! tests/vm/guest/soak.sh. It needs root; otherwise it prints SKIP.

mod load;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use load::Load;
use rustix::process::{getuid, kill_process, Pid, Signal};
use scxprof::report::Report;

use crate::support::alone;

/// Seconds without SOAK_SECONDS.
const SECONDS: u64 = 60;
/// The time after which scxprof should have begun, or ended.
const PATIENCE: Duration = Duration::from_secs(120);
/// A table, or the memory of all, is flat if in the last quarter it is at most this much larger than in the first: hash tables
/// double, and what is in a table at a moment depends on what else runs on the host.
const MARGIN: f64 = 1.25;
/// The same in addition, for small ones.
const ENTRIES: u64 = 512;
const KIB: u64 = 512;
/// For the memory of the process, which an allocator gives back late.
const PROCESS_KIB: u64 = 8 << 10;
/// File descriptors: files of processes are read one by one in several threads.
const FILES: u64 = 24;
/// Threads: one that reads procfs again, and those of look-ups that have not returned.
const THREADS: u64 = 2;

/// The part of a process's page faults that are events at least: the others are the kernel's own accesses to its memory, such as those
/// of exec, for which `mm_account_fault()` in mm/memory.c counts no event.
const COUNTED: f64 = 0.9;
/// The same where a CPU comes back every two seconds: scxprof looks once a second whether there are new ones.
const COUNTED_OF_NEW_CPUS: f64 = 0.5;
/// One in this number of faults may have no sample, nor a loss that the kernel reports (`unsampled` in src/sampler/loss.rs). On
/// Linux 6.18 it was one in 500,000, and once, for an unknown reason, one in 400.
const UNSAMPLED: u64 = 100;
/// One in this number of events may be neither read nor lost.
const UNACCOUNTED: u64 = 1000;

/// `--memory` of the runs, MiB: little, so that the tables reach their bounds soon.
const MEMORY: u64 = 16;

/// Tables that fill up to a bound on purpose, because they remember what is gone, and queues: entries and KiB (src/lib.rs, "Bounds").
const BOUNDED: &[(&str, u64, u64)] = &[
    // Up to 4096 of them have ended.
    ("threads", 6_144, 1 << 10),
    ("cgroups", 65_536, 24 << 10),
    ("cgroups of the decision", 65_536, u64::MAX),
    ("cgroups of threads", 65_536, u64::MAX),
    ("threads of the decision", 65_536, u64::MAX),
    ("threads with few samples", 65_536, u64::MAX),
    // Its steps get longer.
    ("samples of threads over time", u64::MAX, MEMORY * 1024 / 16),
    ("names of the decision", 16_384, u64::MAX),
    ("files of the sketch", 16_384, u64::MAX),
    ("pages of the sketch", u64::MAX, MEMORY * 1024 / 16 * 9),
    // Of `run --score` alone.
    ("slices of the score", 48, MEMORY * 1024 / 8),
    ("files with sampled code", 65_536, 32 << 10),
    ("inode numbers", 8_192, u64::MAX),
    // Unused ones are dropped when there are 4096 or more.
    ("paths of mappings", u64::MAX, MEMORY * 1024 / 8),
    ("stacks", 65_536, u64::MAX),
    ("code places with wanted memory", 16_384, u64::MAX),
    ("decoded instructions", u64::MAX, MEMORY * 1024 / 8),
    ("open code files", 256, u64::MAX),
    ("pages of code", u64::MAX, MEMORY * 1024 / 4),
    ("page frames", 16_384, u64::MAX),
    ("samples to be sorted", u64::MAX, MEMORY * 1024 / 2),
    ("records to be sorted", u64::MAX, MEMORY * 1024 / 2),
];

/// What a process has at a moment.
#[derive(Debug, Clone, Copy)]
struct Usage {
    kib: u64,
    files: u64,
    threads: u64,
}

/// A run of scxprof.
struct Run {
    name: &'static str,
    child: Child,
    said: PathBuf,
    report: PathBuf,
    used: Vec<Usage>,
}

impl Run {
    fn start(name: &'static str, options: &[&str], directory: &Path) -> Self {
        let said = directory.join(format!("{name}.said"));
        let report = directory.join(format!("{name}.json"));
        let child = Command::new(env!("CARGO_BIN_EXE_scxprof"))
            .args(["run", "-vv", "-t", "86400", "--max-loss", "100", "--target-cpus", "64"])
            .args(["--memory", &MEMORY.to_string()])
            .args(options)
            .arg("--report")
            .arg(&report)
            .stdout(Stdio::null())
            .stderr(File::create(&said).unwrap())
            .spawn()
            .unwrap();
        Self { name, child, said, report, used: Vec::new() }
    }

    fn proc(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.child.id()))
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.said).unwrap()).into_owned()
    }

    /// Waits until it samples: the last thread to start adjusts the periods.
    fn wait_for_begin(&mut self) {
        let begin = Instant::now();
        let has_begun = |task: fs::DirEntry| fs::read(task.path().join("comm")).is_ok_and(|comm| comm == b"steer\n");
        while !fs::read_dir(self.proc("task")).into_iter().flatten().flatten().any(has_begun) {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && begin.elapsed() < PATIENCE, "{}: {ended:?}: {}", self.name, self.said());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn look(&mut self) {
        let status = fs::read_to_string(self.proc("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        let files = fs::read_dir(self.proc("fd")).unwrap().count() as u64;
        self.used.push(Usage { kib: field("VmRSS:"), files, threads: field("Threads:") });
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Waits for its end, and returns its report.
    fn end(&mut self) -> Report {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begin.elapsed() < PATIENCE, "{} does not end: {}", self.name, self.said());
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(status.success(), "{}: {status}: {}", self.name, self.said());
        serde_json::from_slice(&fs::read(&self.report).unwrap()).unwrap()
    }

    /// The tables as `-vv` prints them: of each, entries and KiB every ten seconds.
    fn tables(&self) -> BTreeMap<String, Vec<(u64, u64)>> {
        let mut tables: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
        for line in self.said().lines().filter(|line| line.starts_with("Tables after ")) {
            for table in line.split(", ").skip(1) {
                let (rest, kib) = table.strip_suffix(" KiB)").and_then(|rest| rest.rsplit_once(" (")).unwrap();
                let (name, entries) = rest.rsplit_once(' ').unwrap();
                let size = (entries.parse().unwrap(), kib.parse().unwrap());
                tables.entry(name.to_owned()).or_default().push(size);
            }
        }
        tables
    }

    /// What is not flat, or not within its bound.
    fn growth(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut check = |what: &str, (first, last): (u64, u64), most: f64| {
            println!("{}: {what}: {first} in the first quarter, {last} in the last", self.name);
            if last as f64 > most {
                wrong.push(format!("{}: {what}: {first} in the first quarter, {last} in the last", self.name));
            }
        };
        // What the tables that fill up took in addition.
        let (mut filled, mut opened) = (0, 0);
        for (name, sizes) in self.tables() {
            let (entries, kib): (Vec<u64>, Vec<u64>) = sizes.into_iter().unzip();
            let (entries, kib) = (quarters(&entries), quarters(&kib));
            let (most, most_kib) = match BOUNDED.iter().find(|(table, ..)| *table == name) {
                Some((_, most, most_kib)) => {
                    filled += kib.1.saturating_sub(kib.0);
                    opened += if name == "open code files" { entries.1.saturating_sub(entries.0) } else { 0 };
                    (*most as f64, *most_kib as f64)
                }
                None => (entries.0 as f64 * MARGIN + ENTRIES as f64, kib.0 as f64 * MARGIN + KIB as f64),
            };
            check(&name, entries, most);
            check(&format!("KiB of {name}"), kib, most_kib);
        }
        let of = |value: fn(&Usage) -> u64| quarters(&self.used.iter().map(value).collect::<Vec<_>>());
        let (kib, files, threads) = (of(|used| used.kib), of(|used| used.files), of(|used| used.threads));
        check("KiB of the process", kib, kib.0 as f64 * 1.1 + (PROCESS_KIB + filled) as f64);
        check("file descriptors", files, (files.0 + FILES + opened) as f64);
        check("threads of the process", threads, (threads.0 + THREADS) as f64);
        wrong
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The largest value in the first quarter and in the last one.
fn quarters(values: &[u64]) -> (u64, u64) {
    let quarter = values.len().div_ceil(4);
    let largest = |values: &[u64]| values.iter().copied().max().unwrap_or(0);
    (largest(&values[..quarter]), largest(&values[values.len() - quarter..]))
}

/// Page faults of our children that have ended, and of theirs.
fn faults_of_children() -> u64 {
    // SAFETY: the call fills the struct, which is plain numbers.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        assert_eq!(libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage), 0);
        usage
    };
    usage.ru_minflt as u64
}

#[test]
fn tables_stay_flat_and_every_loss_is_counted() {
    let _alone = alone();
    if !getuid().is_root() {
        println!("SKIP: tables_stay_flat_and_every_loss_is_counted: needs root");
        return;
    }
    let seconds = std::env::var("SOAK_SECONDS").ok().map_or(SECONDS, |text| text.parse().expect("SOAK_SECONDS"));
    let directory = tempfile::tempdir().unwrap();
    let sources: [(&str, &[&str]); 2] =
        [("faults", &["--source", "faults"]), ("timer", &["--source", "timer", "-F", "500"])];
    let mut runs = sources.map(|(name, options)| Run::start(name, options, directory.path()));
    for run in &mut runs {
        run.wait_for_begin();
    }
    let before = faults_of_children();
    let load = Load::start(directory.path());
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_secs(1));
        runs.iter_mut().for_each(Run::look);
    }
    load.end();
    let of_load = faults_of_children() - before;
    runs.iter().for_each(Run::interrupt);
    let mut wrong = Vec::new();
    for run in &mut runs {
        let report = run.end();
        wrong.extend(run.growth());
        let loss = |name: &str| report.loss.get(name).copied().unwrap_or_else(|| panic!("no count {name}"));
        let read = ["samples", "own", "idle", "in_kernel", "exiting", "outside_pid_namespace"].map(loss);
        let lost = ["ring_full", "hardware", "malformed", "unsampled"].map(loss);
        let [read, lost] = [read.iter().sum::<u64>(), lost.iter().sum()];
        println!("{}: {} events, {read} read, {lost} lost; {:?}", run.name, report.event_count, report.loss);
        println!("{}: notes {:?}", run.name, report.notes);
        for line in run.said().lines().filter(|line| line.starts_with("note: ")) {
            println!("{}: {line}", run.name);
        }
        if report.event_count.abs_diff(read + lost) > report.event_count / UNACCOUNTED {
            wrong.push(format!("{}: {} events, but {read} read and {lost} lost", run.name, report.event_count));
        }
        for never in ["corrupt_rings", "dead_workers", "malformed"] {
            if loss(never) != 0 {
                wrong.push(format!("{}: {never}: {}", run.name, loss(never)));
            }
        }
        if run.name == "faults" {
            println!("faults: {of_load} of the load");
            let is_steady = std::env::var_os(load::CPUS).is_none();
            let counted = if is_steady { COUNTED } else { COUNTED_OF_NEW_CPUS };
            if (report.event_count as f64) < of_load as f64 * counted {
                wrong.push(format!("{} faults counted, {of_load} of the load alone", report.event_count));
            }
            if loss("unsampled") > report.event_count / UNSAMPLED {
                wrong.push(format!("{} faults without a sample", loss("unsampled")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
