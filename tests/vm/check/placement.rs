//! Where a scheduler runs the threads of the workload: each place that the configuration names has CPUs of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use scxprof::config::{layered, mitosis, Consumer};

/// The cgroup of the workload, below [`MOUNT`].
const CGROUP: &str = "workload.slice";
const MOUNT: &str = "/sys/fs/cgroup";
/// Counts by thread and CPU how often the thread was put on the CPU.
const TRIGGER: &str = "hist:keys=next_pid,common_cpu:size=8192";
const EVENT: &str = "/sys/kernel/tracing/events/sched/sched_switch";
/// A scheduler may give a place other CPUs later, so a CPU has an owner for so long only.
const WINDOW: Duration = Duration::from_millis(500);
const WINDOWS: usize = 20;
/// Fewer places or switches of their threads show nothing.
const MIN_PLACES: usize = 3;
const MIN_SWITCHES: u64 = 500;

/// Index of a layer, or indices of a cell and a subcell.
type Place = (usize, usize);
/// Switches to a thread on a CPU.
type Switches = BTreeMap<(i32, u32), u64>;

/// `vm-check placement layered|mitosis FILE at-least=PERCENT|below=PERCENT`: of the switches to threads of the workload that
/// FILE gives a place with CPUs of its own, so many are on a CPU of that place. A CPU is that of the place whose threads it
/// was switched to most often.
pub fn check(arguments: &[String]) -> Result<()> {
    let [scheduler, file, bound] = arguments else {
        bail!("vm-check placement layered|mitosis FILE at-least=PERCENT|below=PERCENT")
    };
    let json = fs::read_to_string(file).with_context(|| file.clone())?;
    let places = places(scheduler, &json)?;
    let mut tally = Tally::default();
    let histogram = Histogram::start()?;
    let mut before = Histogram::read()?;
    for _ in 0..WINDOWS {
        thread::sleep(WINDOW);
        let now = Histogram::read()?;
        tally.add(&places, &before, &now);
        before = now;
    }
    drop(histogram);
    let percent = tally.percent();
    println!("placement: {percent:.2} % of {} switches on CPUs of their own place; {}", tally.all, tally.by_place());
    ensure!(tally.cpus.len() >= MIN_PLACES, "only {} places had threads that ran", tally.cpus.len());
    ensure!(tally.all >= MIN_SWITCHES, "only {} switches", tally.all);
    match bound.split_once('=').map(|(kind, limit)| (kind, limit.parse::<f64>())) {
        Some(("at-least", Ok(limit))) => ensure!(percent >= limit, "that is less than {limit} %"),
        Some(("below", Ok(limit))) => ensure!(percent < limit, "that is not below {limit} %"),
        _ => bail!("no bound \"{bound}\""),
    }
    Ok(())
}

/// The places of the workload's threads, by thread id. Of layers only `Confined` ones: threads of others may run elsewhere.
fn places(scheduler: &str, json: &str) -> Result<BTreeMap<i32, Place>> {
    let threads = threads()?;
    let mut places = BTreeMap::new();
    match scheduler {
        "layered" => {
            let layers = layered::parse(json)?;
            let consumer = layered::Consumer::new(&layers)?;
            for Thread { tid, cgroup, comm } in threads {
                let layer = consumer.assign(&cgroup, &comm).context("a thread without a layer")?;
                if layers.get(layer).is_some_and(|layer| matches!(layer.kind, layered::LayerKind::Confined { .. })) {
                    places.insert(tid, (layer, 0));
                }
            }
        }
        "mitosis" => {
            let consumer = Consumer::new(&mitosis::parse(json)?)?;
            for Thread { tid, cgroup, comm } in threads {
                let assigned = consumer.assign(&cgroup, &comm);
                let cell = assigned.cell.context("a thread without a cell")?;
                places.insert(tid, (cell, assigned.subcell.unwrap_or_default()));
            }
        }
        _ => bail!("no scheduler \"{scheduler}\""),
    }
    Ok(places)
}

/// A thread of the workload.
struct Thread {
    tid: i32,
    /// The path below [`MOUNT`], with a `/` at its beginning.
    cgroup: Vec<u8>,
    comm: Vec<u8>,
}

/// All threads of the workload.
fn threads() -> Result<Vec<Thread>> {
    let mut threads = Vec::new();
    let mut cgroups = vec![Path::new(MOUNT).join(CGROUP)];
    while let Some(directory) = cgroups.pop() {
        let at = || directory.display().to_string();
        for entry in fs::read_dir(&directory).with_context(at)? {
            let entry = entry.with_context(at)?;
            if entry.file_type().with_context(at)?.is_dir() {
                cgroups.push(entry.path());
            }
        }
        let cgroup = directory.strip_prefix(MOUNT)?.as_os_str().as_encoded_bytes();
        for pid in fs::read_to_string(directory.join("cgroup.procs")).with_context(at)?.lines() {
            for task in fs::read_dir(format!("/proc/{pid}/task")).with_context(|| format!("process {pid}"))? {
                let task = task?;
                let mut comm = fs::read(task.path().join("comm"))?;
                comm.pop();
                let tid = task.file_name().to_string_lossy().parse()?;
                threads.push(Thread { tid, cgroup: [b"/", cgroup].concat(), comm });
            }
        }
    }
    ensure!(!threads.is_empty(), "no threads in {CGROUP}");
    Ok(threads)
}

/// The kernel's own histogram of the event, which is taken away at the end.
struct Histogram;

impl Histogram {
    fn start() -> Result<Self> {
        let file = format!("{EVENT}/trigger");
        fs::write(&file, TRIGGER).with_context(|| file)?;
        Ok(Self)
    }

    fn read() -> Result<Switches> {
        let file = format!("{EVENT}/hist");
        let text = fs::read_to_string(&file).with_context(|| file)?;
        // { next_pid:         12, common_cpu:          1 } hitcount:        130
        let rows = text.lines().filter(|line| line.starts_with('{'));
        rows.map(|line| {
            let mut numbers = line.split_ascii_whitespace().map(|word| word.trim_end_matches(','));
            let mut number = || numbers.find(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
            let row = (number(), number(), number());
            let (Some(tid), Some(cpu), Some(count)) = row else { bail!("a row without three numbers: {line}") };
            Ok(((tid.parse()?, cpu.parse()?), count.parse()?))
        })
        .collect()
    }
}

impl Drop for Histogram {
    fn drop(&mut self) {
        // The guest ends soon anyway.
        let _ = fs::write(format!("{EVENT}/trigger"), format!("!{TRIGGER}"));
    }
}

/// Switches of all windows.
#[derive(Default)]
struct Tally {
    all: u64,
    /// Those on a CPU of the thread's place.
    own: u64,
    /// The CPUs that each place had in some window.
    cpus: BTreeMap<Place, BTreeSet<u32>>,
}

impl Tally {
    fn add(&mut self, places: &BTreeMap<i32, Place>, before: &Switches, now: &Switches) {
        let mut by_cpu: BTreeMap<u32, BTreeMap<Place, u64>> = BTreeMap::new();
        for (&(tid, cpu), &count) in now {
            let new = count.saturating_sub(before.get(&(tid, cpu)).copied().unwrap_or_default());
            if let (Some(&place), 1..) = (places.get(&tid), new) {
                *by_cpu.entry(cpu).or_default().entry(place).or_default() += new;
                self.cpus.entry(place).or_default();
            }
        }
        for (cpu, counts) in by_cpu {
            self.all += counts.values().sum::<u64>();
            let Some((&owner, &most)) = counts.iter().max_by_key(|&(_, &count)| count) else { continue };
            self.own += most;
            self.cpus.entry(owner).or_default().insert(cpu);
        }
    }

    fn percent(&self) -> f64 {
        self.own as f64 * 100.0 / self.all.max(1) as f64
    }

    fn by_place(&self) -> String {
        let place = |(&(first, second), cpus): (&Place, &BTreeSet<u32>)| format!("{first}.{second} on CPUs {cpus:?}");
        self.cpus.iter().map(place).collect::<Vec<_>>().join(", ")
    }
}
