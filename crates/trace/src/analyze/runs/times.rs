//! Results about time: use of CPUs, latency of wakeups, states of threads, preemptions.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::mark;
use super::sums::{Cpus, Rows, Sum};
use crate::analyze::text_table::{ms, of_all, percent, share, us, Spread, TextTable, ThreadName};
use crate::analyze::Context;
use scxprof_sched::report::{Labels, Times};
use scxprof_sched::wakers::report::{self, Level, PreemptionLine};
use scxprof_sched::{Durations, Threads, Wakers};

/// The use of a CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuLine {
    /// Its number.
    pub cpu: u32,
    /// ns in which a thread ran.
    pub run_ns: u64,
    /// ns in the idle task.
    pub idle_ns: u64,
    /// ns of unknown state: before its first switch, after its last, and after losses. They are not idle.
    pub unknown_ns: u64,
    /// `run_ns` as a part of the time whose state is known.
    pub busy: Option<f64>,
    /// Switches from a thread.
    pub switches: u64,
    /// How long threads kept the CPU.
    pub slices: Spread,
    /// Losses of its events.
    pub losses: u64,
}

/// The use of CPUs by a process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessLine {
    /// Its name, or that of a thread whose process is not known.
    pub name: String,
    /// Process id; `None` if it is not known.
    pub pid: Option<u32>,
    /// Its threads.
    pub threads: u64,
    /// ns in which they ran.
    pub run_ns: u64,
    /// As a part of the time of all threads.
    pub share: Option<f64>,
    /// Switches from them.
    pub switches: u64,
}

/// The result of `cpu_utilization`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuUtilization {
    /// From the first to the last scheduling event, ns.
    pub window_ns: u64,
    /// ns in which threads ran.
    pub run_ns: u64,
    /// ns in idle tasks.
    pub idle_ns: u64,
    /// ns of unknown state.
    pub unknown_ns: u64,
    /// `run_ns` as a part of the time whose state is known.
    pub busy: Option<f64>,
    /// The CPUs that have events.
    pub cpus: Vec<CpuLine>,
    /// How many processes there are.
    pub process_count: usize,
    /// Those that ran longest first.
    pub processes: Vec<ProcessLine>,
}

pub(super) fn cpu_utilization(cpus: &Cpus, rows: &Rows, window: u64, context: &Context<'_>) -> CpuUtilization {
    let line = |(number, cpu): (u32, &super::sums::Cpu)| CpuLine {
        cpu: number,
        run_ns: cpu.run.sum(),
        idle_ns: cpu.idle,
        unknown_ns: window.saturating_sub(cpu.run.sum()).saturating_sub(cpu.idle),
        busy: share(cpu.run.sum(), cpu.run.sum() + cpu.idle),
        switches: cpu.switches,
        slices: Spread::from(&cpu.run),
        losses: cpu.losses,
    };
    let lines: Vec<CpuLine> = cpus.iter().map(line).collect();
    let mut sums: BTreeMap<(Option<u32>, &str), Sum> = BTreeMap::new();
    for (name, sum) in &rows.rows {
        let key = if name.pid.is_some() { (name.pid, "") } else { (None, name.name.as_str()) };
        sums.entry(key).or_default().merge(sum);
    }
    if rows.others.threads > 0 {
        sums.entry((None, "(ended)")).or_default().merge(&rows.others);
    }
    let all = rows.total().run.sum();
    let process = |((pid, name), sum): ((Option<u32>, &str), Sum)| {
        let main = pid.and_then(|pid| context.threads.get(pid)).map(|main| main.comm.to_string());
        let first = || rows.rows.iter().find(|(of, _)| of.pid == pid).map(|(of, _)| of.name.clone());
        let name = if pid.is_none() { Some(name.to_owned()) } else { main.filter(|name| !name.is_empty()) };
        ProcessLine {
            name: name.or_else(first).unwrap_or_default(),
            pid,
            threads: sum.threads,
            run_ns: sum.run.sum(),
            share: share(sum.run.sum(), all),
            switches: sum.switches(),
        }
    };
    let mut processes: Vec<ProcessLine> = sums.into_iter().map(process).collect();
    processes.sort_by_key(|line| Reverse(line.run_ns));
    let process_count = processes.len();
    processes.truncate(context.options.limit);
    let sum = |of: fn(&CpuLine) -> u64| lines.iter().map(of).sum::<u64>();
    let (run_ns, idle_ns) = (sum(|line| line.run_ns), sum(|line| line.idle_ns));
    CpuUtilization {
        window_ns: window,
        run_ns,
        idle_ns,
        unknown_ns: sum(|line| line.unknown_ns),
        busy: share(run_ns, run_ns + idle_ns),
        cpus: lines,
        process_count,
        processes,
    }
}

impl CpuUtilization {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let head = ["CPU", "BUSY%", "RUN(ms)", "IDLE(ms)", "UNKNOWN(ms)", "SWITCHES", "!"];
        let mut cpus = TextTable::new("CPUs", &head);
        let mut slices = TextTable::of_spreads("How long threads kept each CPU", "CPU");
        let row = |name: String, busy, run, idle, unknown, switches: u64, losses| {
            vec![name, percent(busy), ms(run), ms(idle), ms(unknown), switches.to_string(), mark(losses, switches)]
        };
        for line in &self.cpus {
            let name = format!("CPU {}", line.cpu);
            let CpuLine { busy, run_ns, idle_ns, unknown_ns, switches, losses, .. } = *line;
            cpus.push(row(name.clone(), busy, run_ns, idle_ns, unknown_ns, switches, losses));
            slices.push_spread(name, &line.slices);
        }
        let switches = self.cpus.iter().map(|line| line.switches).sum();
        cpus.push(row("all".to_owned(), self.busy, self.run_ns, self.idle_ns, self.unknown_ns, switches, 0));
        let title = of_all("Processes", self.processes.len(), self.process_count);
        let mut processes = TextTable::new(title, &["PROCESS", "PID", "THREADS", "RUN(ms)", "%", "SWITCHES"]);
        for line in &self.processes {
            let pid = line.pid.map_or("-".to_owned(), |pid| pid.to_string());
            let (threads, switches) = (line.threads.to_string(), line.switches.to_string());
            processes.push(vec![line.name.clone(), pid, threads, ms(line.run_ns), percent(line.share), switches]);
        }
        vec![cpus, slices, processes]
    }
}

/// Latency of wakeups on a CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuLatency {
    /// The CPU where the woken threads ran.
    pub cpu: u32,
    /// Their waits.
    #[serde(flatten)]
    pub latency: Spread,
}

/// Latency of the wakeups of a thread.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ThreadLatency {
    /// Which.
    #[serde(flatten)]
    pub thread: ThreadName,
    /// Its waits.
    #[serde(flatten)]
    pub latency: Times,
    /// Losses during which it may have run.
    pub losses: u64,
}

/// The result of `wakeup_latency`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WakeupLatency {
    /// All waits from a wakeup to the CPU.
    pub latency: Spread,
    /// By the CPU where the thread then ran.
    pub cpus: Vec<CpuLatency>,
    /// How many threads were woken and ran.
    pub thread_count: usize,
    /// Those of the longest wait first.
    pub threads: Vec<ThreadLatency>,
}

pub(super) fn wakeup_latency(cpus: &Cpus, rows: &Rows, limit: usize) -> WakeupLatency {
    let mut all = Durations::default();
    for (_, cpu) in cpus.iter() {
        all.merge(&cpu.latency);
    }
    let woken = rows.rows.iter().filter(|(_, sum)| sum.latency.count() > 0);
    let mut threads: Vec<ThreadLatency> = woken
        .map(|(thread, sum)| ThreadLatency {
            thread: thread.clone(),
            latency: Times::from(&sum.latency),
            losses: sum.losses,
        })
        .collect();
    let thread_count = threads.len();
    threads.sort_by_key(|line| (Reverse(line.latency.max_ns), line.thread.tid));
    threads.truncate(limit);
    let line = |(cpu, of): (u32, &super::sums::Cpu)| CpuLatency { cpu, latency: Spread::from(&of.latency) };
    WakeupLatency { latency: Spread::from(&all), cpus: cpus.iter().map(line).collect(), thread_count, threads }
}

impl WakeupLatency {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let mut cpus = TextTable::of_spreads("From the wakeup to the CPU", "ON");
        cpus.push_spread("all".to_owned(), &self.latency);
        for line in &self.cpus {
            cpus.push_spread(format!("CPU {}", line.cpu), &line.latency);
        }
        let mut head = ThreadName::HEAD.to_vec();
        head.extend(["COUNT", "MEAN(us)", "MAX(us)", "!"]);
        let mut threads = TextTable::new(of_all("Threads", self.threads.len(), self.thread_count), &head);
        for line in &self.threads {
            let mut row = line.thread.cells();
            let Times { count, mean_ns, max_ns, .. } = line.latency;
            row.extend([count.to_string(), us(mean_ns), us(max_ns), mark(line.losses, count)]);
            threads.push(row);
        }
        vec![cpus, threads]
    }
}

/// States of one thread, or of all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct States {
    /// On a CPU.
    pub running: Times,
    /// Runnable without a CPU.
    pub runnable_ns: u64,
    /// Asleep, interruptible.
    pub sleeping: Times,
    /// Asleep, uninterruptible.
    pub blocked: Times,
    /// Waits that began with a wakeup: the scheduler's latency.
    pub latency: Times,
    /// Waits that began when it lost its CPU.
    pub resumed: Times,
    /// Switches while it slept or ended.
    pub voluntary: u64,
    /// Switches while it wanted to run, in state R.
    pub involuntary: u64,
    /// The same in the middle of kernel code (R+).
    pub preempted: u64,
    /// Losses during which it may have run.
    pub losses: u64,
}

impl From<&Sum> for States {
    fn from(sum: &Sum) -> Self {
        Self {
            running: Times::from(&sum.run),
            runnable_ns: sum.wait(),
            sleeping: Times::from(&sum.sleep),
            blocked: Times::from(&sum.blocked),
            latency: Times::from(&sum.latency),
            resumed: Times::from(&sum.resumed),
            voluntary: sum.voluntary,
            involuntary: sum.runnable,
            preempted: sum.preempted,
            losses: sum.losses,
        }
    }
}

impl States {
    /// ns of known state.
    fn known(&self) -> u64 {
        [self.running.total_ns, self.runnable_ns, self.sleeping.total_ns, self.blocked.total_ns].iter().sum()
    }

    fn cells(&self) -> Vec<String> {
        let known = self.known();
        let both = |ns| [ms(ns), percent(share(ns, known))];
        let times = [self.running.total_ns, self.runnable_ns, self.sleeping.total_ns, self.blocked.total_ns];
        let mut cells: Vec<String> = times.into_iter().flat_map(both).collect();
        cells.extend([self.voluntary, self.involuntary, self.preempted].map(|count| count.to_string()));
        let switches = self.voluntary + self.involuntary + self.preempted;
        cells.extend([us(self.latency.mean_ns), mark(self.losses, switches)]);
        cells
    }
}

/// States of a thread.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ThreadStates {
    /// Which.
    #[serde(flatten)]
    pub thread: ThreadName,
    /// What it did.
    #[serde(flatten)]
    pub states: States,
}

/// The result of `task_states`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskStates {
    /// All threads.
    pub total: States,
    /// How many there are.
    pub thread_count: usize,
    /// Threads that ended and had no room for a line: they are in `total`.
    pub not_listed: u64,
    /// Those that ran longest first.
    pub threads: Vec<ThreadStates>,
}

pub(super) fn task_states(rows: &Rows, limit: usize) -> TaskStates {
    let states = |(thread, sum): &(ThreadName, Sum)| ThreadStates { thread: thread.clone(), states: States::from(sum) };
    let mut threads: Vec<ThreadStates> = rows.rows.iter().map(states).collect();
    threads.sort_by_key(|line| (Reverse(line.states.running.total_ns), line.thread.tid));
    let thread_count = threads.len();
    threads.truncate(limit);
    TaskStates { total: States::from(&rows.total()), thread_count, not_listed: rows.others.threads, threads }
}

impl TaskStates {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let mut head = ThreadName::HEAD.to_vec();
        head.extend(["RUN(ms)", "%", "WAIT(ms)", "%", "SLEEP(ms)", "%", "BLOCKED(ms)", "%"]);
        head.extend(["VOL", "R", "R+", "LAT(us)", "!"]);
        let title =
            of_all("States of threads; % of the time whose state is known", self.threads.len(), self.thread_count);
        let mut table = TextTable::new(title, &head);
        for line in &self.threads {
            table.push(line.thread.cells().into_iter().chain(line.states.cells()).collect());
        }
        let all = ["all", "-", "-"].map(str::to_owned);
        table.push(all.into_iter().chain(self.total.cells()).collect());
        vec![table]
    }
}

/// Preemptions of a thread.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Preempted {
    /// Which.
    #[serde(flatten)]
    pub thread: ThreadName,
    /// Switches from it in state R.
    pub involuntary: u64,
    /// Switches from it in state R+.
    pub preempted: u64,
    /// Its waits for a CPU after these.
    pub waits: Times,
}

/// The result of `preemptions`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Preemptions {
    /// Switches from threads that wanted to run, in state R: at a tick or a wakeup, or `sched_yield`.
    pub involuntary: u64,
    /// The same in the middle of kernel code (R+).
    pub preempted: u64,
    /// Their waits for a CPU after these.
    pub waits: Times,
    /// How many threads were.
    pub thread_count: usize,
    /// The most frequent first.
    pub threads: Vec<Preempted>,
    /// How many pairs there are.
    pub pair_count: usize,
    /// Which threads took the CPU of which, by process and name; the most frequent first.
    pub pairs: Vec<PreemptionLine>,
}

pub(super) fn preemptions(rows: &Rows, wakers: (&Wakers, &Threads), limit: usize) -> Preemptions {
    let report = report::report(wakers, Level::Thread, limit, &Labels::default());
    let total = rows.total();
    let lines = rows.rows.iter().filter(|(_, sum)| sum.runnable + sum.preempted > 0);
    let mut threads: Vec<Preempted> = lines
        .map(|(thread, sum)| Preempted {
            thread: thread.clone(),
            involuntary: sum.runnable,
            preempted: sum.preempted,
            waits: Times::from(&sum.resumed),
        })
        .collect();
    threads.sort_by_key(|line| (Reverse(line.involuntary + line.preempted), line.thread.tid));
    let thread_count = threads.len();
    threads.truncate(limit);
    Preemptions {
        involuntary: total.runnable,
        preempted: total.preempted,
        waits: Times::from(&total.resumed),
        thread_count,
        threads,
        pair_count: report.preempted_count,
        pairs: report.preempted,
    }
}

impl Preemptions {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let mut head = ThreadName::HEAD.to_vec();
        head.extend(["R", "R+", "WAITS", "TOTAL(ms)", "MEAN(us)", "MAX(us)"]);
        let mut threads =
            TextTable::new(of_all("Threads that lost their CPU", self.threads.len(), self.thread_count), &head);
        let cells = |involuntary: u64, preempted: u64, waits: Times| {
            let Times { count, total_ns, mean_ns, max_ns, .. } = waits;
            [involuntary.to_string(), preempted.to_string(), count.to_string(), ms(total_ns), us(mean_ns), us(max_ns)]
        };
        for line in &self.threads {
            let numbers = cells(line.involuntary, line.preempted, line.waits);
            threads.push(line.thread.cells().into_iter().chain(numbers).collect());
        }
        let all = ["all", "-", "-"].map(str::to_owned);
        threads.push(all.into_iter().chain(cells(self.involuntary, self.preempted, self.waits)).collect());
        let mut pairs =
            TextTable::new(of_all("By whom", self.pairs.len(), self.pair_count), &["BY", "THREAD", "PID", "COUNT"]);
        for line in &self.pairs {
            let by = line.by.as_ref().map_or("(idle)".to_owned(), |by| by.name.clone());
            let pid = line.thread.pid.map_or("-".to_owned(), |pid| pid.to_string());
            pairs.push(vec![by, line.thread.name.clone(), pid, line.preemptions.to_string()]);
        }
        vec![threads, pairs]
    }
}
