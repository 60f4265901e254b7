//! What a host costs by its size, by simulation: `big_host [CPUS...]`, by default 8 32 128 512.
//!
//! A host of N CPUs has about 195 threads for each CPU, in processes of 10 and cgroups of 50. Its procfs and its cgroups are made as
//! directories, its rings are replayed, and its samples are a recording in which each group of ten threads of a cgroup, two of each
//! process, uses a buffer of its own. Each part runs in a process of its own, which tells its peak of memory.
//!
//! For each step a table has the CPU seconds, user and system, with the ns for each item, and the growth from one size to the next:
//! log(ratio of the costs) / log(ratio of the sizes), which is 1 for what is linear and 2 for what is quadratic.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use rustix::time::{clock_gettime, ClockId};
use scxprof::profile::Profile;
use scxprof::session::{AnalysisOptions, Phase, Roots, Session};
use scxprof::testing::host::tasks;
use scxprof::testing::profile::writer::{finished_round, PerfDataWriter};
use scxprof::testing::resolve::threads::Threads;
use scxprof::testing::resolve::{Cgroups, Maps};
use scxprof::testing::sampler::attr::{self, EventSpec, Features, Scope};
use scxprof::testing::sampler::encode::encode;
use scxprof::testing::sampler::intake::Intake;
use scxprof::testing::sampler::record::{Layout, MappedFile, Record, SampleId, SampleRecord};
use scxprof::testing::sampler::ring::Ring;
use scxprof::testing::sampler::{AddressFrom, Identity, OpenEvents};

/// Threads of a process, processes of a cgroup, and groups of a cgroup that share a buffer.
const THREADS: u32 = 10;
const PROCESSES: u32 = 5;
const GROUPS: u32 = 5;
/// Samples of a thread, and how many of them follow each other on a CPU.
const SAMPLES: u64 = 100;
const BURST: u64 = 20;
/// Samples of a CPU between two reports that all rings were read, and ns between two of them.
const CHUNK: u64 = 20;
const STEP: u64 = 200_000;
/// The pages of a replayed ring.
const PAGES: usize = 64;
/// The memory of a session by default, and by size: as much for each CPU as by default on one of 8.
const MEMORY: usize = 64 << 20;
/// Where the page of all is mapped.
const OF_ALL: u64 = 0x7800_0000;
/// Mappings of a process, as of a server with some libraries.
const MAPPINGS: u64 = 40;

/// The parts, each with its arguments.
const PARTS: [&[&str]; 7] = [
    &["start"],
    &["rings"],
    &["session", "default memory", "with a report", "a cell for each cgroup"],
    &["session", "memory by size", "with a report", "a cell for each cgroup"],
    &["session", "memory by size", "without a report", "a cell for each cgroup"],
    &["session", "memory by size", "with a report", "one cell"],
    &["session", "memory by size", "with a report", "a cell for each cgroup", "a page of all"],
];

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "--part") {
        let cpus = args.get(1).and_then(|cpus| cpus.parse().ok()).context("--part CPUS PART...")?;
        let part: Vec<&str> = args.iter().skip(2).map(String::as_str).collect();
        return run(&Host::of(cpus), &part);
    }
    let mut sizes = Vec::new();
    for arg in &args {
        sizes.push(
            arg.parse::<u32>().ok().filter(|cpus| *cpus > 1).with_context(|| format!("{arg} is no number of CPUs"))?,
        );
    }
    if sizes.is_empty() {
        sizes = vec![8, 32, 128, 512];
    }
    for part in PARTS {
        let mut table = Table::default();
        for &cpus in &sizes {
            eprintln!("{}: {cpus} CPUs", part.join(" "));
            let own = std::env::current_exe().context("the path of this program")?;
            let output = Command::new(own).args(["--part", &cpus.to_string()]).args(part).output().context("a part")?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            table.take(cpus, &String::from_utf8_lossy(&output.stdout));
        }
        println!("### {}\n\n{}", part.join(", "), table.text(&sizes));
    }
    Ok(())
}

/// What is measured of all sizes, by its name.
#[derive(Default)]
struct Table {
    names: Vec<String>,
    rows: BTreeMap<String, BTreeMap<u32, (f64, f64)>>,
}

impl Table {
    /// Takes what a part has written: lines with name, value and items.
    fn take(&mut self, cpus: u32, text: &str) {
        for line in text.lines() {
            let mut fields = line.split('\t');
            let (Some(name), Some(value), Some(items)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let (Ok(value), Ok(items)) = (value.parse(), items.parse()) else { continue };
            if !self.rows.contains_key(name) {
                self.names.push(name.to_owned());
            }
            self.rows.entry(name.to_owned()).or_default().insert(cpus, (value, items));
        }
    }

    fn text(&self, sizes: &[u32]) -> String {
        let mut text = String::from("| step |");
        for cpus in sizes {
            let host = Host::of(*cpus);
            let _ = write!(text, " {cpus} CPUs, {} threads, {} cgroups |", host.threads(), host.cgroups);
        }
        let _ = writeln!(text, " growth |\n|---|{}---|", "---|".repeat(sizes.len()));
        for name in &self.names {
            let Some(row) = self.rows.get(name) else { continue };
            let _ = write!(text, "| {name} |");
            for cpus in sizes {
                let _ = match row.get(cpus) {
                    None => write!(text, " |"),
                    Some((value, _)) if name.ends_with("bytes") => write!(text, " {:.1} MiB |", value / 1_048_576.0),
                    Some((value, items)) if *items > 0.0 => {
                        write!(text, " {value:.3} s, {:.0} ns |", value * 1e9 / items)
                    }
                    Some((value, _)) => write!(text, " {value:.2} |"),
                };
            }
            let growth = |pair: &[u32]| {
                let [a, b] = pair else { return None };
                let (one, two) = (row.get(a)?.0, row.get(b)?.0);
                // What takes less than this is only noise, and what is neither time nor bytes does not grow like them.
                let is_cost = name.ends_with("bytes") || row.get(b)?.1 > 0.0;
                let is_some = one > 0.002 && two > 0.002;
                (is_cost && is_some).then(|| (two / one).ln() / (f64::from(*b) / f64::from(*a)).ln())
            };
            let growths = sizes.windows(2).map(|pair| growth(pair).map_or("–".to_owned(), |it| format!("{it:.2}")));
            let _ = writeln!(text, " {} |", growths.collect::<Vec<_>>().join(" "));
        }
        text
    }
}

/// Prints a value of a part: what `items` take in seconds, or a number if there are none.
fn tell(name: &str, value: f64, items: f64) {
    println!("{name}\t{value}\t{items}");
}

/// CPU time of all threads, user and system.
fn cpu() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Does `work` on this number of items as a step.
fn step<T>(name: &str, items: f64, work: impl FnOnce() -> T) -> T {
    let begin = cpu();
    let done = work();
    tell(name, cpu() - begin, items);
    done
}

/// The peak of the memory of this process.
fn peak() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let kib: f64 =
        text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kib * 1024.0)
}

/// A host.
struct Host {
    cpus: u32,
    cgroups: u32,
}

impl Host {
    fn of(cpus: u32) -> Self {
        Self { cpus, cgroups: (cpus * 125 / 32).max(1) }
    }

    fn processes(&self) -> u32 {
        self.cgroups * PROCESSES
    }

    fn threads(&self) -> u32 {
        self.processes() * THREADS
    }
}

/// The ids of a thread by its number.
fn ids(thread: u32) -> (u32, u32) {
    let pid = 1000 + thread / THREADS * THREADS;
    (pid, pid + thread % THREADS)
}

/// The group of a thread in its cgroup, and its name.
fn group(thread: u32) -> (u32, String) {
    let at = thread % (THREADS * PROCESSES);
    let group = at % GROUPS;
    let name = ["parse", "index", "store", "fetch", "serve"].get(group as usize).copied().unwrap_or("other");
    (group, format!("{name}-{}", at / GROUPS))
}

fn run(host: &Host, part: &[&str]) -> Result<()> {
    let dir = tempfile::tempdir().context("a temporary directory")?;
    match part {
        ["start"] => start(host, dir.path())?,
        ["rings"] => rings(host)?,
        ["session", options @ ..] => {
            let path = dir.path().join("perf.data");
            let is = |option: &str| options.contains(&option);
            record(host, is("a cell for each cgroup"), is("a page of all"), &path)?;
            session(host, &path, is("with a report"), is("memory by size"))?;
        }
        _ => anyhow::bail!("no part {part:?}"),
    }
    if let Some(peak) = peak() {
        tell("peak of memory, bytes", peak, 0.0);
    }
    Ok(())
}

/// Makes a procfs and cgroups, and reads them as a capture does when it begins.
fn start(host: &Host, dir: &Path) -> Result<()> {
    let mut roots = Roots::default();
    (roots.proc, roots.cgroup) = (dir.join("proc"), Some(dir.join("cgroup")));
    let own = roots.proc.join("self");
    fs::create_dir_all(&own)?;
    fs::write(own.join("cgroup"), "0::/\n")?;
    fs::write(
        own.join("mountinfo"),
        format!("25 1 0:22 / {} rw - cgroup2 cgroup2 rw\n", dir.join("cgroup").display()),
    )?;
    for cgroup in 0..host.cgroups {
        let path = dir.join("cgroup/workload.slice").join(format!("workload-tw-{cgroup}.allotment.slice"));
        fs::create_dir_all(&path)?;
        // As many files as a cgroup has with the usual controllers.
        for file in 0..40 {
            File::create(path.join(format!("controller.{file}")))?;
        }
    }
    for process in 0..host.processes() {
        let (pid, _) = ids(process * THREADS);
        let path = roots.proc.join(pid.to_string());
        for thread in process * THREADS..(process + 1) * THREADS {
            let task = path.join("task").join(ids(thread).1.to_string());
            fs::create_dir_all(&task)?;
            fs::write(task.join("comm"), group(thread).1 + "\n")?;
        }
        let mut maps = String::new();
        for at in 0..MAPPINGS {
            let begin = 0x7f00_0000_0000 + at * 0x20_0000;
            let (prot, file) = match at % 4 {
                0 => ("r-xp", format!("08:01 {} /usr/lib/lib{at}.so", 100 + at)),
                1 => ("rw-s", format!("00:19 {} /dev/shm/{at}-{}", 1000 + u64::from(process) * MAPPINGS + at, process)),
                _ => ("rw-p", "00:00 0".to_owned()),
            };
            let _ = writeln!(maps, "{begin:x}-{:x} {prot} 00000000 {file}", begin + 0x10_0000);
        }
        fs::write(path.join("maps"), maps)?;
    }
    let threads = f64::from(host.threads());
    let seen = step("list the threads with their names (of a thread)", threads, || tasks::snapshot(&roots))?;
    ensure!(seen.len() == host.threads() as usize, "{} threads were found", seen.len());
    let mut table = Threads::new(&roots);
    step("the table of threads (of a thread)", threads, || table.seed(&seen));
    let mut cgroups = Cgroups::new(&roots)?;
    step("walk the cgroups (of a cgroup)", f64::from(host.cgroups), || cgroups.walk())?;
    for (name, memory) in [("by default", MEMORY / 8), ("by size", wide(host) / 8)] {
        let mut maps = Maps::new(&roots, memory);
        let what = format!("mappings of all processes, memory {name} (of a process)");
        step(&what, f64::from(host.processes()), || {
            for process in 0..host.processes() {
                maps.memory(ids(process * THREADS).0, 0x7f00_0020_0000, 0);
            }
        });
        tell(&format!("tables of mappings, memory {name}, bytes"), maps.bytes() as f64, 0.0);
        tell(&format!("tables dropped, memory {name}"), maps.counts().dropped as f64, 0.0);
    }
    // What is left is removed by the parent's directory; that takes as long as to make it.
    Ok(())
}

/// The memory of a session that has as much for each CPU as the default on 8.
fn wide(host: &Host) -> usize {
    MEMORY / 8 * host.cpus as usize
}

/// Replays as many rings, each full, and reads them as a worker does.
fn rings(host: &Host) -> Result<()> {
    const ROUNDS: u32 = 4;
    let (layout, _) = event();
    let mut records = Vec::new();
    let mut count = 0u64;
    while records.len() + 256 <= PAGES * 4096 {
        let (pid, tid) = ids(count as u32 % host.threads());
        let sample = SampleRecord { pid, tid, time: count, addr: 0x1000 + count * 64, ..SampleRecord::default() };
        ensure!(encode(&Record::Sample(sample), &SampleId::default(), 2, &layout, &mut records), "a sample");
        count += 1;
    }
    let mut rings = Vec::new();
    for cpu in 0..host.cpus {
        rings.push(Ring::in_memory(PAGES, u64::from(cpu) * 8).context("memory for a ring")?);
    }
    let mut intake = Intake::new(identity(), AddressFrom::OtherTool);
    let (mut scratch, mut taken, mut seconds) = (Vec::new(), 0u64, 0.0);
    for _ in 0..ROUNDS {
        for ring in &mut rings {
            ensure!(ring.replay(&records), "a ring that was emptied has no room");
        }
        let begin = cpu();
        for ring in &mut rings {
            ring.drain(&mut scratch, |bytes| {
                intake.take(bytes, &layout);
                if intake.batch().samples.len() >= 1024 {
                    taken += std::mem::take(&mut intake.batch().samples).len() as u64;
                }
            })?;
        }
        seconds += cpu() - begin;
    }
    taken += intake.batch().samples.len() as u64;
    ensure!(taken == count * u64::from(host.cpus) * u64::from(ROUNDS), "{taken} samples were read");
    tell("read and decode full rings, each 4 times (of a sample)", seconds, taken as f64);
    tell("rings, bytes", f64::from(host.cpus) * (PAGES * 4096) as f64, 0.0);
    Ok(())
}

fn identity() -> Identity {
    Identity { own_pid: 1, child_pid_namespace: false, without_profilers: false }
}

/// An event like those of memory PMUs, and its records.
fn event() -> (Layout, OpenEvents) {
    /// `PERF_TYPE_RAW` (linux/perf_event.h).
    const RAW: u32 = 4;
    let mut attr = attr::sampling(&EventSpec::minor_faults(), Features::all(), Scope::default(), 4096);
    (attr.type_, attr.config) = (RAW, 0x1cd);
    let layout = attr::layout(&attr);
    (layout, OpenEvents { name: "cpu/mem-loads/".into(), attr, ids: vec![1], is_aside: false })
}

/// Writes the recording of a host; its cgroups are cells of their own, or together one. With `of_all`, one sample in 20 is in a page
/// that all threads use.
fn record(host: &Host, are_cells: bool, of_all: bool, path: &Path) -> Result<()> {
    let (layout, event) = event();
    let out = BufWriter::with_capacity(1 << 20, File::create_new(path)?);
    let mut writer = PerfDataWriter::new(out, vec![event.desc()])?;
    let (id, mut bytes) = (SampleId::default(), Vec::new());
    for cgroup in 0..host.cgroups {
        let name = if are_cells { format!("workload-tw-{cgroup}.allotment") } else { format!("service-{cgroup}") };
        let path = format!("/workload.slice/{name}.slice");
        encode(&Record::Cgroup { id: 1000 + u64::from(cgroup), path: path.as_bytes() }, &id, 0, &layout, &mut bytes);
        for process in cgroup * PROCESSES..(cgroup + 1) * PROCESSES {
            let (pid, _) = ids(process * THREADS);
            for thread in process * THREADS..(process + 1) * THREADS {
                let (comm, tid) = (group(thread).1, ids(thread).1);
                encode(&Record::Comm { pid, tid, exec: false, comm: comm.as_bytes() }, &id, 0, &layout, &mut bytes);
            }
            let text = (0x40_0000, 2, 5, 5, "/usr/bin/server".to_owned());
            let page_of_all = (OF_ALL, 1, 7, 3, "/dev/shm/all".to_owned());
            let anonymous = (0x9000_0000, 2, 0, 3, "//anon".to_owned());
            let buffer = |group: u32| {
                let inode = u64::from(100 + cgroup * GROUPS + group);
                (0x7000_0000 + u64::from(group) * 0x10_0000, 1, inode, 3, format!("/dev/shm/buffer-{inode}"))
            };
            for (addr, flags, inode, prot, name) in
                [text, anonymous, page_of_all].into_iter().chain((0..GROUPS).map(buffer))
            {
                let len = if addr == 0x9000_0000 { 0x1000_0000 } else { 0x10_0000 };
                let file = MappedFile::Inode { major: 8, minor: 1, inode, generation: 0 };
                let (data, filename) = (prot & 4 == 0, name.as_bytes());
                let mapping = Record::Mmap2 { pid, tid: pid, addr, len, pgoff: 0, file, prot, flags, data, filename };
                encode(&mapping, &id, 2, &layout, &mut bytes);
            }
        }
        writer.write(&bytes)?;
        bytes.clear();
    }
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random >> 11
    };
    let (cpus, visits) = (u64::from(host.cpus), u64::from(host.threads()) * (SAMPLES / BURST));
    let rounds = visits.div_ceil(cpus) * BURST / CHUNK;
    for round in 0..rounds {
        for cpu in 0..cpus {
            for at in round * CHUNK..(round + 1) * CHUNK {
                let visit = at / BURST * cpus + cpu;
                if visit >= visits {
                    break;
                }
                let thread = (visit % u64::from(host.threads())) as u32;
                let (pid, tid) = ids(thread);
                let base = if of_all && next() % 20 == 0 {
                    OF_ALL + next() % 4096
                } else if next() % 5 < 2 {
                    // 16 pages.
                    0x7000_0000 + u64::from(group(thread).0) * 0x10_0000 + next() % 0x1_0000
                } else {
                    // 32 pages.
                    0x9000_0000 + u64::from(tid - pid) * 0x100_0000 + next() % 0x2_0000
                };
                let sample = SampleRecord {
                    identifier: 1,
                    ip: 0x40_1000 + next() % 4096,
                    pid,
                    tid,
                    time: 1_000_000_000 + at * STEP + cpu,
                    addr: base & !7,
                    cpu: cpu as u32,
                    period: 1,
                    // A load or a store.
                    data_src: if next() % 4 == 0 { 4 } else { 2 },
                    cgroup: 1000 + u64::from(thread / (THREADS * PROCESSES)),
                    ..SampleRecord::default()
                };
                encode(&Record::Sample(sample), &id, 2, &layout, &mut bytes);
            }
        }
        writer.write(&bytes)?;
        bytes.clear();
        writer.write(&finished_round())?;
    }
    writer.finish(Vec::new())?;
    Ok(())
}

/// Reads the recording, and decides.
fn session(host: &Host, path: &Path, report: bool, is_wide: bool) -> Result<()> {
    let mut profile = Profile::open(path)?;
    let mut options = AnalysisOptions::for_cpus(host.cpus as usize);
    options.report = report;
    let memory = if is_wide { wide(host) } else { MEMORY };
    let (samples, threads) = (f64::from(host.threads()) * SAMPLES as f64, f64::from(host.threads()));
    let begin = cpu();
    let sampled =
        Session::builder().profile(&mut profile).memory(memory).analysis(options).start()?.run_until(|_| false);
    let (read, known) = (cpu() - begin, sampled.outcome.phases.all().len());
    let found = sampled.decide()?;
    for (at, Phase { name, cpu, .. }) in found.outcome.phases.all().iter().enumerate() {
        if at < known {
            tell(&format!("{name} (of a sample)"), seconds(*cpu), samples);
        } else {
            tell(&format!("{name} (of a thread)"), seconds(*cpu), threads);
        }
    }
    tell("until the last sample, all (of a sample)", read, samples);
    tell("decide, all (of a thread)", cpu() - begin - read, threads);
    if report {
        let report = step("make the report (of a thread)", threads, || found.report())?;
        let json = step("the report as JSON (of a thread)", threads, || serde_json::to_vec(&report))?;
        tell("the report as JSON, bytes", json.len() as f64, 0.0);
    }
    let communities = found.communities();
    let distinct: BTreeSet<u32> = communities.values().copied().collect();
    tell("groups found, of all in percent", distinct.len() as f64 / f64::from(host.cgroups * GROUPS) * 100.0, 0.0);
    tell("threads in groups, in percent", communities.len() as f64 / threads * 100.0, 0.0);
    tell("samples out of order, in percent", found.outcome.loss.late as f64 / samples * 100.0, 0.0);
    for table in found.outcome.tables.iter().filter(|table| table.peak_bytes >= 1 << 16) {
        tell(&format!("table \"{}\", bytes", table.name), table.peak_bytes as f64, 0.0);
    }
    Ok(())
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
