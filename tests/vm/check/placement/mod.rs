//! Where a scheduler runs the threads of the workload: each place that the configuration names has CPUs of its own.

mod tally;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use scxprof::config::{layered, mitosis, Consumer};

use tally::Tally;
use trace::{Assignment, Place, Trace};

/// The cgroup of the workload, below [`MOUNT`].
const CGROUP: &str = "workload.slice";
const MOUNT: &str = "/sys/fs/cgroup";
/// A buffer of the trace for this check alone.
const INSTANCE: &str = "/sys/kernel/tracing/instances/placement";
/// What is written into the trace where a dump begins.
const DUMP: &str = "placement: dump";
/// The scheduler may change its assignment, so it is asked for it so often.
const WINDOW: Duration = Duration::from_millis(500);
const WINDOWS: usize = 20;
/// Fewer places or less CPU time of their threads show nothing.
const MIN_PLACES: usize = 3;
const MIN_SECONDS: f64 = 5.0;

/// `vm-check placement layered|mitosis FILE keep=ASSIGNED|from=ASSIGNED at-least=PERCENT|below=PERCENT`: of the CPU time of the
/// workload's threads that FILE gives a place with CPUs of its own, so much is on the CPUs that the scheduler assigned to this
/// place. `keep` asks the scheduler for its assignment, and keeps it in a file. `from` takes the assignment from there: it is for
/// measuring the same without the scheduler.
pub fn check(arguments: &[String]) -> Result<()> {
    let [scheduler, file, assigned, bound] = arguments else {
        bail!("vm-check placement layered|mitosis FILE keep=ASSIGNED|from=ASSIGNED at-least=PERCENT|below=PERCENT")
    };
    let json = fs::read_to_string(file).with_context(|| file.clone())?;
    let (tally, assignment) = match assigned.split_once('=') {
        Some(("keep", path)) => {
            let mut trace = record(true)?;
            let places = places(scheduler, &json)?;
            renumber(&places, &mut trace)?;
            let assignment = trace.dumps.last().context("no dump of the scheduler")?.assignment.clone();
            fs::write(path, written(&assignment)).with_context(|| path.to_owned())?;
            (Tally::watched(&trace.runs, &trace.dumps, &places), assignment)
        }
        Some(("from", path)) => {
            let text = fs::read_to_string(path).with_context(|| path.to_owned())?;
            let assignment = read(&text).with_context(|| path.to_owned())?;
            let trace = record(false)?;
            (Tally::fixed(&trace.runs, &assignment, &places(scheduler, &json)?), assignment)
        }
        _ => bail!("no assignment \"{assigned}\""),
    };
    let (percent, (seconds, left_out)) = (tally.percent(), tally.seconds());
    print!("{}", tally.lines(&assignment));
    println!("placement: {percent:.2} % of {seconds:.1} CPU s on CPUs of their own place; {left_out:.1} s left out");
    ensure!(tally.places() >= MIN_PLACES, "only {} places had threads that ran", tally.places());
    ensure!(seconds >= MIN_SECONDS, "too little CPU time");
    match bound.split_once('=').map(|(kind, limit)| (kind, limit.parse::<f64>())) {
        Some(("at-least", Ok(limit))) => ensure!(percent >= limit, "that is less than {limit} %"),
        Some(("below", Ok(limit))) => ensure!(percent < limit, "that is not below {limit} %"),
        _ => bail!("no bound \"{bound}\""),
    }
    Ok(())
}

/// Gives the assignments the numbers of the file's places. A scheduler that says the places of threads must have put those of one
/// place into one, and no others there; scx_layered says none, and numbers layers as the file does.
fn renumber(places: &BTreeMap<i32, Place>, trace: &mut Trace) -> Result<()> {
    let mut numbers: BTreeMap<Place, Place> = BTreeMap::new();
    for (tid, theirs) in trace.dumps.iter().flat_map(|dump| &dump.threads) {
        let Some(&ours) = places.get(tid) else { continue };
        let number = *numbers.entry(*theirs).or_insert(ours);
        ensure!(
            number == ours,
            "the scheduler has thread {tid} of {ours:?} in {theirs:?}, beside threads of {number:?}"
        );
    }
    let owners: BTreeSet<Place> = numbers.values().copied().collect();
    ensure!(owners.len() == numbers.len(), "the scheduler has threads of one place in several: {numbers:?}");
    if !numbers.is_empty() {
        for dump in &mut trace.dumps {
            dump.renumber(&numbers);
        }
    }
    Ok(())
}

/// A line for each place: its two numbers and its CPUs.
fn written(assignment: &Assignment) -> String {
    let line = |(place, cpus): (&Place, &BTreeSet<u32>)| {
        let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
        format!("{} {} {}\n", place.0, place.1, cpus.join(" "))
    };
    assignment.iter().map(line).collect()
}

fn read(text: &str) -> Result<Assignment> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let mut number = || words.next().context("a line without two numbers");
        let place = (number()?.parse()?, number()?.parse()?);
        Ok((place, words.map(str::parse).collect::<Result<_, _>>()?))
    };
    text.lines().map(line).collect()
}

/// Traces for a while; with dumps, the scheduler is asked for its state meanwhile.
fn record(with_dumps: bool) -> Result<Trace> {
    fs::create_dir_all(INSTANCE).context(INSTANCE)?;
    let set = |name: &str, value: &str| {
        let file = format!("{INSTANCE}/{name}");
        fs::write(&file, value).with_context(|| file)
    };
    set("tracing_on", "0")?;
    set("buffer_size_kb", "8192")?;
    set("trace_clock", "mono")?;
    set("events/sched/sched_switch/enable", "1")?;
    if with_dumps {
        set("events/sched_ext/sched_ext_dump/enable", "1")?;
    }
    set("trace", "")?;
    set("tracing_on", "1")?;
    for window in 0..=WINDOWS {
        if window > 0 {
            thread::sleep(WINDOW);
        }
        if with_dumps {
            set("trace_marker", DUMP)?;
            fs::write("/proc/sysrq-trigger", "D").context("/proc/sysrq-trigger")?;
        }
    }
    set("tracing_on", "0")?;
    set("events/enable", "0")?;
    let text = fs::read(format!("{INSTANCE}/trace")).context(INSTANCE)?;
    Trace::parse(&String::from_utf8_lossy(&text), DUMP)
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
