//! The statistics by thread, process, cgroup or CPU, as rows to print.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{Class, CpuRow, Durations, Migrations, Row, Stats, Sums, Threads};
use scxprof_base::sample::{printable, Comm, Task, TaskHint};

/// Percent of a line's events whose loss is worth a mark.
pub const MUCH_PERCENT: f64 = 0.1;

/// True if these losses beside these events are more than [`MUCH_PERCENT`] of both.
#[must_use]
pub fn is_much(losses: u64, events: u64) -> bool {
    losses as f64 * 100.0 > MUCH_PERCENT * (losses as f64 + events as f64)
}

/// What a line of the report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// Each CPU.
    Cpu,
    /// Each thread that lives; those that have ended by process and name.
    Thread,
    /// Each process.
    Process,
    /// Each cgroup.
    Cgroup,
    /// Each cell and subcell of a configuration.
    Cell,
    /// Each last-level cache.
    Llc,
    /// Each NUMA node.
    Node,
}

impl By {
    /// The word for it in command lines and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Thread => "thread",
            Self::Process => "process",
            Self::Cgroup => "cgroup",
            Self::Cell => "cell",
            Self::Llc => "llc",
            Self::Node => "node",
        }
    }
}

/// What lines are sorted by, the largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Time on a CPU.
    Run,
    /// Time runnable without a CPU.
    Wait,
    /// The longest time from a wakeup to the CPU.
    Latency,
    /// Switches.
    Switches,
    /// Wakeups.
    Wakeups,
    /// Migrations.
    Migrations,
    /// The name, ascending; CPUs by their number.
    Name,
}

/// Durations in ns. A field is `None` where there was none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Times {
    /// Their sum.
    pub total_ns: u64,
    /// Their number.
    pub count: u64,
    /// The shortest.
    pub min_ns: Option<u64>,
    /// The mean.
    pub mean_ns: Option<u64>,
    /// The longest.
    pub max_ns: Option<u64>,
}

impl From<&Sums> for Times {
    fn from(sums: &Sums) -> Self {
        Self { total_ns: sums.sum(), count: sums.count(), min_ns: sums.min(), mean_ns: sums.mean(), max_ns: sums.max() }
    }
}

/// Durations with quantiles, which are within 1 %.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    /// Sum, number, extremes.
    #[serde(flatten)]
    pub times: Times,
    /// The median.
    pub p50_ns: Option<u64>,
    /// 95 % are at most as long.
    pub p95_ns: Option<u64>,
    /// 99 % are at most as long.
    pub p99_ns: Option<u64>,
}

impl From<&Durations> for Quantiles {
    fn from(durations: &Durations) -> Self {
        Self {
            times: Times::from(&**durations),
            p50_ns: durations.quantile(0.5),
            p95_ns: durations.quantile(0.95),
            p99_ns: durations.quantile(0.99),
        }
    }
}

/// What only CPUs have, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CpuTimes {
    /// CPUs of the line.
    pub cpus: u64,
    /// In the idle task.
    pub idle_ns: u64,
    /// State unknown: before a CPU's first switch, after its last, and after losses.
    pub unknown_ns: u64,
    /// In interrupts, if they were recorded.
    pub irq_ns: u64,
    /// In softirqs, if they were recorded.
    pub softirq_ns: u64,
    /// In which events were lost.
    pub lost_ns: u64,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Line {
    /// What it is about: a name, a path, a number.
    pub name: String,
    /// Thread id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Process id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Path of the cgroup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// What only CPUs have.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuTimes>,
    /// Threads that it adds up, and those of them that have ended.
    pub threads: u64,
    /// See `threads`.
    pub ended: u64,
    /// Switches to another thread; for CPUs, from a thread.
    pub switches: u64,
    /// Voluntary ones: it slept or ended.
    pub voluntary: u64,
    /// Those while it wanted to run.
    pub involuntary: u64,
    /// Those of `involuntary` in the middle of kernel code.
    pub preempted: u64,
    /// Wakeups of it; for CPUs, wakeups by what ran there.
    pub wakeups: u64,
    /// Wakeups by it.
    pub wakes: u64,
    /// Moves to another CPU; for CPUs, moves there.
    pub migrations: Migrations,
    /// Times on a CPU.
    pub run: Times,
    /// Times runnable without a CPU.
    pub wait: Times,
    /// Sleeps that a signal can end.
    pub sleep: Times,
    /// Sleeps that none can end.
    pub blocked: Times,
    /// Times from a wakeup to the CPU.
    pub latency: Quantiles,
    /// CPU time that the kernel charged, if `sched_stat_runtime` was recorded.
    #[serde(skip_serializing_if = "is_zero")]
    pub charged_ns: u64,
    /// Switches to it that are its first event: perf counts each as a wait of 0.
    pub first_seen: u64,
    /// Losses of events that touch this line; if there are any, counts are too low and times may be.
    pub losses: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde calls it.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Line {
    fn new(name: String, row: &Row) -> Self {
        Self {
            name,
            tid: None,
            pid: None,
            cgroup: None,
            cpu: None,
            threads: row.threads,
            ended: row.ended,
            switches: row.switches(),
            voluntary: row.voluntary,
            involuntary: row.involuntary,
            preempted: row.preempted,
            wakeups: row.wakeups,
            wakes: row.wakes,
            migrations: row.migrations,
            run: Times::from(&row.run),
            wait: Times::from(&row.wait),
            sleep: Times::from(&row.sleep),
            blocked: Times::from(&row.blocked),
            latency: Quantiles::from(&row.latency),
            charged_ns: row.charged,
            first_seen: row.first_seen,
            losses: row.touched,
        }
    }

    fn of_cpus(name: String, row: &CpuRow, window: u64) -> Self {
        let cpu = CpuTimes {
            cpus: row.cpus,
            idle_ns: row.idle,
            unknown_ns: row.unknown(window),
            irq_ns: row.irq,
            softirq_ns: row.softirq,
            lost_ns: row.lost,
        };
        Self { cpu: Some(cpu), ..Self::new(name, &row.row) }
    }

    fn by(&self, order: Order) -> u64 {
        match order {
            Order::Run => self.run.total_ns,
            Order::Wait => self.wait.total_ns,
            Order::Latency => self.latency.times.max_ns.unwrap_or(0),
            Order::Switches => self.switches,
            Order::Wakeups => self.wakeups,
            Order::Migrations => self.migrations.total,
            Order::Name => 0,
        }
    }
}

/// The names of threads and CPUs.
#[derive(Debug, Clone, Default)]
pub struct Labels {
    /// Names of processes, by their id.
    pub processes: FxHashMap<u32, Comm>,
    /// Paths of cgroups, by their id.
    pub cgroups: FxHashMap<u64, Vec<u8>>,
    /// The process that is left out: scxprof itself.
    pub own_pid: Option<u32>,
}

impl Labels {
    pub(super) fn cgroup(&self, id: u64) -> Option<String> {
        self.cgroups.get(&id).map(|path| printable(path))
    }

    /// A thread of a class. An unknown cgroup has no path.
    #[must_use]
    pub fn task<'a>(&'a self, class: &'a Class) -> Task<'a> {
        let path = self.cgroups.get(&class.cgroup).map_or(&b""[..], |path| path);
        let process = self.processes.get(&class.pid).map(Comm::as_bytes);
        Task { hint: class.hint, ..Task::new(path, class.comm.as_bytes()).ids(class.pid, 0).process(process) }
    }
}

/// Gives the cell of a thread.
pub type CellOf<'a> = &'a dyn Fn(&Task<'_>) -> String;

/// The lines of `by`, all of them, sorted. `window` is the observed time in ns. Lines by cell need `cell_of`.
#[must_use]
pub fn lines(
    (stats, threads): (&Stats, &Threads),
    by: By,
    order: Order,
    window: u64,
    labels: &Labels,
    cell_of: CellOf<'_>,
) -> Vec<Line> {
    let mut lines = match by {
        By::Cpu => stats.cpus().map(|(cpu, row)| Line::of_cpus(format!("CPU {cpu}"), row, window)).collect(),
        By::Llc | By::Node => of_places(stats, by, window),
        By::Thread => of_threads(stats, threads, labels),
        By::Process | By::Cgroup | By::Cell => grouped(stats, threads, by, labels, cell_of),
    };
    // CPUs are in their order.
    if order != Order::Name || !matches!(by, By::Cpu | By::Llc | By::Node) {
        sort(&mut lines, order);
    }
    lines
}

/// Sorts lines.
pub fn sort(lines: &mut [Line], order: Order) {
    if order == Order::Name {
        lines.sort_by(|a, b| (&a.name, a.tid, a.pid).cmp(&(&b.name, b.tid, b.pid)));
    } else {
        lines.sort_by(|a, b| b.by(order).cmp(&a.by(order)).then_with(|| (&a.name, a.tid).cmp(&(&b.name, b.tid))));
    }
}

/// All threads as one line, scxprof's own left out; its own as another.
#[must_use]
pub fn totals(stats: &Stats, threads: &Threads, labels: &Labels) -> (Line, Line) {
    let (mut all, mut own) = (Row::default(), Row::default());
    each_row(stats, threads, false, |(_, class), row| {
        (if labels.own_pid == Some(class.pid) { &mut own } else { &mut all }).merge(row);
    });
    (Line::new("all threads".to_owned(), &all), Line::new("scxprof".to_owned(), &own))
}

/// Thread id (0 for threads that have ended), and what threads have in common.
type Who = (u32, Class);

/// Each row; of a thread that was in several cgroups, or had several hints, one for each of them, if they are asked for.
fn each_row(stats: &Stats, threads: &Threads, by_home: bool, mut each: impl FnMut(Who, &Row)) {
    let mut one;
    for (slot, thread) in threads.iter() {
        let Some(row) = stats.thread(slot) else { continue };
        one = row.clone();
        one.threads = 1;
        for (home, part) in stats.left(slot) {
            if by_home {
                each((thread.tid, Class::from(thread).at(home)), part);
            } else {
                one.merge(part);
            }
        }
        each((thread.tid, Class::from(thread)), &one);
    }
    for (class, row) in stats.ended() {
        each((0, *class), row);
    }
}

fn of_threads(stats: &Stats, threads: &Threads, labels: &Labels) -> Vec<Line> {
    let mut lines = Vec::new();
    each_row(stats, threads, false, |(tid, Class { pid, cgroup, comm, .. }), row| {
        if labels.own_pid == Some(pid) {
            return;
        }
        let line = Line::new(comm.to_string(), row);
        lines.push(Line {
            tid: (tid > 0).then_some(tid),
            pid: (pid > 0).then_some(pid),
            cgroup: labels.cgroup(cgroup),
            // The part of one that has ended elsewhere.
            threads: if tid == 0 { row.threads + row.parts } else { 1 },
            ..line
        });
    });
    lines
}

fn grouped(stats: &Stats, threads: &Threads, by: By, labels: &Labels, cell_of: CellOf<'_>) -> Vec<Line> {
    let mut groups: BTreeMap<(u32, String), (Row, Option<String>)> = BTreeMap::new();
    let by_home = matches!(by, By::Cgroup | By::Cell);
    // The groups of the thread whose rows come now: it is one thread of a group, in however many cgroups of it it was.
    let mut of_thread: (u32, Vec<(u32, String)>) = (0, Vec::new());
    each_row(stats, threads, by_home, |(tid, class), row| {
        let Class { pid, cgroup, comm, .. } = class;
        if labels.own_pid == Some(pid) {
            return;
        }
        let path = || labels.cgroup(cgroup).unwrap_or_else(|| "(unknown cgroup)".to_owned());
        let key = match by {
            By::Process if pid > 0 => (pid, String::new()),
            By::Process => (0, comm.to_string()),
            By::Cell => {
                // Where no thread had one, nothing is known of hints.
                let hint = if threads.have_hints() { class.hint } else { TaskHint::Unknown };
                (0, cell_of(&labels.task(&Class { hint, ..class }).ids(pid, tid)))
            }
            _ => (0, path()),
        };
        if of_thread.0 != tid {
            of_thread = (tid, Vec::new());
        }
        let is_counted = tid > 0 && of_thread.1.contains(&key);
        if tid > 0 && by_home && !is_counted {
            of_thread.1.push(key.clone());
        }
        let (sum, name) = groups.entry(key).or_default();
        sum.merge(row);
        if is_counted {
            (sum.threads, sum.parts) = (sum.threads - row.threads, sum.parts - row.parts);
        }
        // A process whose main thread is not known has the name of one of its threads.
        name.get_or_insert_with(|| labels.processes.get(&pid).map_or(comm, |name| *name).to_string());
    });
    let line = |((pid, key), (row, name)): ((u32, String), (Row, Option<String>))| {
        let name = if pid > 0 { name.unwrap_or_default() } else { key };
        let threads = row.threads + if by_home { row.parts } else { 0 };
        Line { pid: (pid > 0).then_some(pid), threads, ..Line::new(name, &row) }
    };
    groups.into_iter().map(line).collect()
}

fn of_places(stats: &Stats, by: By, window: u64) -> Vec<Line> {
    let mut groups: BTreeMap<Option<u32>, CpuRow> = BTreeMap::new();
    for (cpu, row) in stats.cpus() {
        let place = stats.places().get(cpu).map(|place| if by == By::Llc { place.llc } else { place.node });
        groups.entry(place).or_default().merge(row);
    }
    let name = |place| match (place, by) {
        (Some(cpu), By::Llc) => format!("LLC of CPU {cpu}"),
        (Some(node), _) => format!("node {node}"),
        (None, _) => "(unknown place)".to_owned(),
    };
    groups.into_iter().map(|(place, row)| Line::of_cpus(name(place), &row, window)).collect()
}
