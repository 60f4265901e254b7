//! The script of the mock threads: the selected part of a plan, with times from the beginning of the replay on.

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::{FxHashMap, FxHashSet};

use super::kernel::is_kernel;
use super::plan::{Plan, Planned, Recorded, Step};
use scxprof_base::sample::Comm;

/// One thing that a mock thread does. Times are ns from the beginning of the replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Works for this number of ns of CPU time.
    Run(u64),
    /// Wakes a thread.
    Wake {
        /// Its number.
        thread: u32,
        /// Which of its [`Op::Wait`]s this ended in the recording, from 1 on.
        nth: u32,
        /// It also wakes this thread at some time, and slept when it was woken: the one that comes first waits for the other.
        is_mutual: bool,
    },
    /// Waits for its next wakeup by a thread.
    Wait,
    /// Sleeps.
    Sleep {
        /// Until this time.
        until: u64,
        /// us that it slept in the recording: a late thread sleeps half of it at least, for a sleep is a switch.
        asleep: u32,
    },
    /// Starts the thread of this number, or its process.
    Fork(u32),
    /// Takes the name of this number.
    Name(u32),
    /// Ends.
    Exit,
}

/// A mock thread.
#[derive(Debug, Clone, Default)]
pub struct Mock {
    /// Thread id in the recording.
    pub tid: u32,
    /// Process in [`Script::processes`].
    pub process: u32,
    /// Its first name in [`Script::names`].
    pub name: u32,
    /// The name that the report has.
    pub comm: Comm,
    /// Nice value.
    pub nice: i8,
    /// It is the main thread of its process.
    pub is_main: bool,
    /// It is there before the replay begins.
    pub is_initial: bool,
    /// The first of its operations in [`Script::ops`], and the one after the last.
    pub ops: (u32, u32),
    /// The recorded values of it, with recorded times.
    pub recorded: Recorded,
    /// It did something; otherwise it is only there as the main thread of its process.
    pub is_active: bool,
}

/// A mock process.
#[derive(Debug, Clone, Default)]
pub struct MockProcess {
    /// Process id in the recording.
    pub pid: u32,
    /// Its main thread.
    pub main: u32,
    /// Its other threads that are there before the replay begins.
    pub initial: Vec<u32>,
    /// It is there before the replay begins.
    pub is_initial: bool,
    /// Its cgroup in [`Script::cgroups`].
    pub cgroup: Option<u32>,
}

/// The threads that a replay leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct LeftOut {
    /// Threads of the kernel.
    pub kernel: u64,
    /// Threads of the recorder.
    pub recorder: u64,
    /// Threads that are not selected.
    pub not_selected: u64,
    /// Threads that did not run.
    pub idle: u64,
    /// Threads with a real-time priority, which are replayed without it.
    pub realtime: u64,
}

/// The script of all mock threads.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// The threads.
    pub threads: Vec<Mock>,
    /// Their processes.
    pub processes: Vec<MockProcess>,
    /// The operations of all threads.
    pub ops: Vec<Op>,
    /// Names of threads, as the kernel takes them.
    pub names: Vec<[u8; 16]>,
    /// Paths of cgroups, from the root of their hierarchy.
    pub cgroups: Vec<Vec<u8>>,
    /// ns from the first event to the last, scaled.
    pub window: u64,
    /// By what the recorded times were multiplied.
    pub scale: f64,
    /// What was left out.
    pub left_out: LeftOut,
}

/// A thread, for a selection.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Its last name.
    pub comm: &'a Comm,
    /// The path of its cgroup, if it is known.
    pub cgroup: Option<&'a [u8]>,
}

/// The part of a plan that is replayed.
pub struct Selection<'a> {
    /// True for a thread that is.
    pub is_selected: &'a mut dyn FnMut(&Candidate<'_>) -> bool,
    /// The processes that map memory, as all do but the kernel's threads; empty if that is not known. If the first process of the host
    /// (1) is not among them, they are those of a command, and other threads are told by what else is known of them.
    pub user: &'a FxHashSet<u32>,
    /// The process that recorded, if it is known.
    pub recorder: Option<u32>,
    /// By what times are multiplied.
    pub scale: f64,
}

impl std::fmt::Debug for Selection<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Selection")
            .field("recorder", &self.recorder)
            .field("scale", &self.scale)
            .finish_non_exhaustive()
    }
}

/// Why a thread is not replayed.
fn is_kept(thread: &Planned, plan: &Plan, selection: &mut Selection<'_>, left_out: &mut LeftOut) -> bool {
    let pid = if thread.pid == 0 { thread.tid } else { thread.pid };
    let process = plan.processes.get(&pid).unwrap_or(&thread.comm);
    if !selection.user.is_empty() && is_kernel(thread, pid, plan, selection.user) {
        left_out.kernel += 1;
        return false;
    }
    let is_perf = |comm: &Comm| comm.as_bytes() == b"perf" || comm.as_bytes() == b"perf-exec";
    if selection.recorder.map_or_else(|| is_perf(process) || is_perf(&thread.comm), |recorder| recorder == pid) {
        left_out.recorder += 1;
        return false;
    }
    let cgroup = plan.cgroups.get(&thread.cgroup).map(Vec::as_slice);
    if !(selection.is_selected)(&Candidate { pid, tid: thread.tid, comm: &thread.comm, cgroup }) {
        left_out.not_selected += 1;
        return false;
    }
    if thread.recorded.run == 0 {
        left_out.idle += 1;
        return false;
    }
    true
}

#[derive(Default)]
struct Names {
    names: Vec<[u8; 16]>,
    numbers: FxHashMap<Comm, u32>,
}

impl Names {
    fn number(&mut self, comm: Comm) -> u32 {
        *self.numbers.entry(comm).or_insert_with(|| {
            let mut name = [0; 16];
            for (to, &from) in name.iter_mut().zip(comm.as_bytes()) {
                *to = from;
            }
            self.names.push(name);
            self.names.len() as u32 - 1
        })
    }
}

/// The selected part of the plan.
#[must_use]
pub fn select(plan: &Plan, selection: &mut Selection<'_>) -> Script {
    let mut left_out = LeftOut::default();
    let (first, last) = plan.span.unwrap_or_default();
    let scale = selection.scale;
    let scaled = |ns: u64| (ns as f64 * scale).round() as u64;
    // The number of each planned thread in the script.
    let mut numbers: Vec<Option<u32>> = Vec::with_capacity(plan.threads.len());
    let mut kept: Vec<&Planned> = Vec::new();
    for thread in &plan.threads {
        let is_kept = is_kept(thread, plan, selection, &mut left_out);
        numbers.push(is_kept.then_some(kept.len() as u32));
        if is_kept {
            kept.push(thread);
        }
    }
    let number = |planned: u32| numbers.get(planned as usize).copied().flatten();
    let mut names = Names::default();
    let mut script = Script { window: scaled(last.saturating_sub(first)), scale, ..Script::default() };
    // A thread that no replayed thread can make is there from the beginning: another process makes main threads only.
    let is_made = |thread: &Planned| {
        let by = thread.made.filter(|&(by, _)| number(by).is_some());
        let by = by.and_then(|(by, _)| plan.threads.get(by as usize));
        by.is_some_and(|by| by.pid == thread.pid || thread.pid == thread.tid || thread.pid == 0)
    };
    let mut waits = waits(plan, &number);
    let pairs: FxHashSet<(u32, u32)> = waits.keys().copied().collect();
    for (own, thread) in kept.iter().enumerate() {
        let own = own as u32;
        let made = thread.made.filter(|_| is_made(thread));
        let begin = script.ops.len() as u32;
        if let (None, Some((_, at))) = (made, thread.made) {
            script.ops.push(Op::Sleep { until: scaled(at.saturating_sub(first)), asleep: 0 });
        }
        for step in &thread.steps {
            let op = match *step {
                Step::Run(ns) => Op::Run(scaled(ns)),
                Step::Wake { thread: woken, is_early } => match number(woken) {
                    Some(thread) => {
                        let Some(nth) = waits.get_mut(&(own, thread)).and_then(VecDeque::pop_front) else { continue };
                        Op::Wake { thread, nth, is_mutual: !is_early && pairs.contains(&(thread, own)) }
                    }
                    None => continue,
                },
                Step::Sleep { waker: Some(waker), .. } if number(waker).is_some() => Op::Wait,
                Step::Sleep { until, asleep, .. } => {
                    Op::Sleep { until: scaled(until.saturating_sub(first)), asleep: (f64::from(asleep) * scale) as u32 }
                }
                Step::Fork(child) => {
                    match number(child).filter(|_| plan.threads.get(child as usize).is_some_and(is_made)) {
                        Some(child) => Op::Fork(child),
                        None => continue,
                    }
                }
                Step::Name(comm) => Op::Name(names.number(comm)),
                Step::Exit => Op::Exit,
            };
            match (script.ops.get_mut(begin as usize..).and_then(<[Op]>::last_mut), op) {
                // Between them was a wakeup of a thread that is not replayed.
                (Some(Op::Run(before)), Op::Run(ns)) => *before = before.saturating_add(ns),
                _ => script.ops.push(op),
            }
        }
        let is_realtime = thread.prio < 100;
        left_out.realtime += u64::from(is_realtime);
        // Who is woken by a thread that is not replayed sleeps for a time.
        let waits = script.ops.iter().skip(begin as usize).filter(|op| **op == Op::Wait).count() as u64;
        let recorded = Recorded { woken: waits, ..thread.recorded.clone() };
        script.threads.push(Mock {
            tid: thread.tid,
            process: 0,
            name: names.number(thread.first_comm),
            comm: thread.comm,
            nice: if is_realtime { 0 } else { (thread.prio - 120).clamp(-20, 19) as i8 },
            is_main: false,
            is_initial: made.is_none(),
            ops: (begin, script.ops.len() as u32),
            recorded,
            is_active: true,
        });
    }
    processes(plan, &kept, &mut script, &mut names);
    script.names = names.names;
    script.left_out = left_out;
    script
}

/// For each waker and the thread that it wakes, which waits of that thread it ends.
fn waits(plan: &Plan, number: &impl Fn(u32) -> Option<u32>) -> FxHashMap<(u32, u32), VecDeque<u32>> {
    let mut waits: FxHashMap<(u32, u32), VecDeque<u32>> = FxHashMap::default();
    for (planned, thread) in plan.threads.iter().enumerate() {
        let Some(woken) = number(planned as u32) else { continue };
        let wakers = thread.steps.iter().filter_map(|step| match step {
            Step::Sleep { waker: Some(waker), .. } => number(*waker),
            _ => None,
        });
        for (waker, nth) in wakers.zip(1..) {
            waits.entry((waker, woken)).or_default().push_back(nth);
        }
    }
    waits
}

/// Puts the threads into processes.
fn processes(plan: &Plan, kept: &[&Planned], script: &mut Script, names: &mut Names) {
    // The threads of each process; its main thread, if it is among them; and the last process of each process id.
    let mut groups: Vec<(u32, Option<u32>, Vec<u32>)> = Vec::new();
    let mut last: FxHashMap<u32, usize> = FxHashMap::default();
    for (number, thread) in kept.iter().enumerate() {
        let number = number as u32;
        let pid = if thread.pid == 0 { thread.tid } else { thread.pid };
        let is_main = thread.tid == pid;
        let is_initial = script.threads.get(number as usize).is_some_and(|thread| thread.is_initial);
        let of_last = last.get(&pid).and_then(|&at| groups.get_mut(at));
        match of_last {
            // A main thread that is made begins a process, also where the id was another one's before.
            Some((_, main, numbers)) if !is_main || (is_initial && main.is_none()) => {
                numbers.push(number);
                *main = main.or(is_main.then_some(number));
            }
            _ => {
                last.insert(pid, groups.len());
                groups.push((pid, is_main.then_some(number), vec![number]));
            }
        }
    }
    let mut cgroups: BTreeMap<&[u8], u32> = BTreeMap::new();
    for (pid, main, numbers) in groups {
        let process = script.processes.len() as u32;
        let is_there = |it: u32| script.threads.get(it as usize).is_some_and(|thread| thread.is_initial);
        // A process that is made is made with its main thread; its others are made by threads of it.
        let is_initial = main.is_none_or(is_there);
        let main = main.unwrap_or_else(|| {
            let comm = plan.processes.get(&pid).copied();
            let comm = comm.or_else(|| Some(kept.get(*numbers.first()? as usize)?.comm)).unwrap_or_default();
            let end = script.ops.len() as u32;
            script.threads.push(Mock {
                tid: pid,
                name: names.number(comm),
                comm,
                is_initial: true,
                ops: (end, end),
                ..Mock::default()
            });
            script.threads.len() as u32 - 1
        });
        // The cgroup in which it ran most.
        let mut run_in: BTreeMap<u64, u64> = BTreeMap::new();
        for &number in &numbers {
            let Some(thread) = kept.get(number as usize) else { continue };
            *run_in.entry(thread.cgroup).or_default() += thread.recorded.run;
        }
        let most = run_in.iter().max_by_key(|(_, &run)| run).map(|(&id, _)| id);
        let path = most.and_then(|id| plan.cgroups.get(&id)).map(Vec::as_slice);
        let cgroup = path.map(|path| {
            let next = cgroups.len() as u32;
            *cgroups.entry(path).or_insert(next)
        });
        let others = numbers.iter().copied().filter(|&it| it != main);
        let mut initial = Vec::new();
        for number in others.chain([main]) {
            let Some(thread) = script.threads.get_mut(number as usize) else { continue };
            thread.process = process;
            thread.is_main = number == main;
            if number != main && thread.is_initial {
                initial.push(number);
            }
        }
        script.processes.push(MockProcess { pid, main, initial, is_initial, cgroup });
    }
    let mut paths: Vec<(&[u8], u32)> = cgroups.into_iter().collect();
    paths.sort_by_key(|&(_, number)| number);
    script.cgroups = paths.into_iter().map(|(path, _)| path.to_vec()).collect();
}

impl Script {
    /// The operations of a thread.
    #[must_use]
    pub fn ops(&self, thread: &Mock) -> &[Op] {
        self.ops.get(thread.ops.0 as usize..thread.ops.1 as usize).unwrap_or_default()
    }

    /// ns of CPU time that all threads take.
    #[must_use]
    pub fn cpu_time(&self) -> u64 {
        let runs = self.ops.iter().map(|op| if let Op::Run(ns) = op { *ns } else { 0 });
        runs.fold(0, u64::saturating_add)
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.ops.capacity() * size_of::<Op>() + self.threads.capacity() * size_of::<Mock>()
    }
}
