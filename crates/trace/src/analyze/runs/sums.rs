//! Sums of each thread and each CPU.

use super::at;
use crate::analyze::text_table::ThreadName;
use crate::analyze::Context;
use crate::TraceEvent;
use scxprof_base::sample::sched::TaskState;
use scxprof_sched::{Durations, Fact, Slot, Sums, Thread, Threads, Why};

/// Threads that have ended and are kept one by one, of about 350 bytes each; later ones are added up.
const MAX_ENDED: usize = 1 << 15;

/// A CPU.
#[derive(Debug, Clone, Default)]
pub(super) struct Cpu {
    /// Something happened there.
    pub(super) is_seen: bool,
    /// Times of threads, from one switch to the next.
    pub(super) run: Durations,
    /// ns in the idle task.
    pub(super) idle: u64,
    /// Switches from a thread.
    pub(super) switches: u64,
    /// Waits of woken threads that ended there.
    pub(super) latency: Durations,
    /// Losses of its events.
    pub(super) losses: u64,
}

/// The CPUs by their numbers, which may have holes.
#[derive(Debug, Default)]
pub(super) struct Cpus(Vec<Cpu>);

impl Cpus {
    fn cpu(&mut self, cpu: u32) -> &mut Cpu {
        let cpu = at(&mut self.0, cpu);
        cpu.is_seen = true;
        cpu
    }

    /// Those on which something happened.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Cpu)> {
        (0..).zip(&self.0).filter(|(_, cpu)| cpu.is_seen)
    }

    pub(super) fn fact(&mut self, fact: &Fact) {
        match *fact {
            Fact::Switched { cpu, is_thread, .. } => self.cpu(cpu).switches += u64::from(is_thread),
            Fact::Ran { cpu, is_thread: true, from, until, .. } => self.cpu(cpu).run.add(until - from),
            Fact::Ran { cpu, from, until, .. } => {
                let cpu = self.cpu(cpu);
                cpu.idle = cpu.idle.saturating_add(until - from);
            }
            Fact::Waited { cpu, from, until, why: Why::Woken(_) | Why::New, .. } => {
                self.cpu(cpu).latency.add(until - from);
            }
            Fact::Lost { cpu, .. } | Fact::Missed { cpu } => self.cpu(cpu).losses += 1,
            _ => {}
        }
    }
}

/// What a thread did. Times are ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sum {
    /// On a CPU.
    pub(super) run: Sums,
    /// Waits that began with a wakeup.
    pub(super) latency: Sums,
    /// Waits that began when it lost its CPU.
    pub(super) resumed: Sums,
    /// Interruptible sleeps.
    pub(super) sleep: Sums,
    /// Uninterruptible ones.
    pub(super) blocked: Sums,
    /// Switches while it slept or ended.
    pub(super) voluntary: u64,
    /// Switches in state R.
    pub(super) runnable: u64,
    /// Switches in state R+.
    pub(super) preempted: u64,
    /// Runs on another CPU than the one before.
    pub(super) moves: u64,
    /// Losses during which it may have run.
    pub(super) losses: u64,
    /// Threads that it adds up, if they are several.
    pub(super) threads: u64,
    /// The CPU that it ran on last, plus 1; 0 if it is not known.
    last_cpu: u32,
}

impl Sum {
    /// ns runnable without a CPU.
    pub(super) fn wait(&self) -> u64 {
        self.latency.sum().saturating_add(self.resumed.sum())
    }

    pub(super) fn switches(&self) -> u64 {
        self.voluntary + self.runnable + self.preempted
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.run.merge(&other.run);
        self.latency.merge(&other.latency);
        self.resumed.merge(&other.resumed);
        self.sleep.merge(&other.sleep);
        self.blocked.merge(&other.blocked);
        self.voluntary += other.voluntary;
        self.runnable += other.runnable;
        self.preempted += other.preempted;
        self.moves += other.moves;
        self.losses += other.losses;
        self.threads += other.threads.max(1);
    }
}

/// The threads, those that have ended included.
#[derive(Debug, Default)]
pub(super) struct PerThread {
    slots: Vec<Sum>,
    ended: Vec<(Thread, Sum)>,
    /// Those that had no room.
    others: Sum,
}

/// The sums of each thread, with its name.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) rows: Vec<(ThreadName, Sum)>,
    /// Threads that ended and had no room in `rows`, added up.
    pub(super) others: Sum,
}

impl Rows {
    /// All of them.
    pub(super) fn total(&self) -> Sum {
        let mut total = self.others;
        for (_, sum) in &self.rows {
            total.merge(sum);
        }
        total
    }
}

impl PerThread {
    fn row(&mut self, slot: Slot) -> &mut Sum {
        at(&mut self.slots, slot)
    }

    pub(super) fn fact(&mut self, threads: &Threads, fact: &Fact) {
        match *fact {
            Fact::Switched { cpu, prev, state, next, .. } => {
                if let Some(prev) = prev {
                    let row = self.row(prev);
                    match state {
                        TaskState::Runnable => row.runnable += 1,
                        TaskState::Preempted => row.preempted += 1,
                        _ => row.voluntary += 1,
                    }
                    row.last_cpu = cpu + 1;
                }
                if let Some(next) = next {
                    let row = self.row(next);
                    row.moves += u64::from(row.last_cpu != 0 && row.last_cpu != cpu + 1);
                    row.last_cpu = cpu + 1;
                }
            }
            Fact::Ran { thread: Some(thread), from, until, .. } => self.row(thread).run.add(until - from),
            Fact::Waited { thread, from, until, why, .. } => {
                let row = self.row(thread);
                let sums = if why == Why::Preempted { &mut row.resumed } else { &mut row.latency };
                sums.add(until - from);
            }
            Fact::Slept { thread, from, until, is_blocked } => {
                let row = self.row(thread);
                if is_blocked { &mut row.blocked } else { &mut row.sleep }.add(until - from);
            }
            Fact::Touched { thread } => {
                let row = self.row(thread);
                row.losses += 1;
                row.last_cpu = 0;
            }
            Fact::Ended { thread } => {
                let sum = std::mem::take(self.row(thread));
                let Some(&thread) = threads.get(thread).filter(|_| sum != Sum::default()) else { return };
                if self.ended.len() < MAX_ENDED {
                    self.ended.push((thread, sum));
                } else {
                    self.others.merge(&sum);
                }
            }
            _ => {}
        }
    }

    /// The rows, by thread id.
    pub(super) fn finish(self, threads: &Threads, context: &Context<'_>) -> Rows {
        let living = threads.iter().filter_map(|(slot, thread)| Some((*thread, *self.slots.get(slot as usize)?)));
        let named = |(thread, sum): (Thread, Sum)| {
            let said = context.threads.pid(thread.tid);
            let pid = if thread.pid == 0 { said } else { thread.pid };
            let pid = Some(pid).filter(|pid| *pid != TraceEvent::UNKNOWN && *pid != 0);
            // Compact events do not name the thread that runs first.
            let comm = context.threads.get(thread.tid).map(|known| known.comm);
            let comm = if thread.comm.is_empty() { comm.unwrap_or_default() } else { thread.comm };
            (ThreadName { name: comm.to_string(), tid: thread.tid, pid }, sum)
        };
        let living = living.filter(|(_, sum)| *sum != Sum::default());
        let mut rows: Vec<(ThreadName, Sum)> = self.ended.iter().copied().chain(living).map(named).collect();
        rows.sort_by_key(|(name, _)| name.tid);
        Rows { rows, others: self.others }
    }
}
