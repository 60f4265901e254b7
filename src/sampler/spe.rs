//! Converts records of Arm's SPE, from a ring or from a file, to samples, and finds the thread that ran (pure).

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::sample::{Access, CpuMode, RawSample};
use scxprof_perf::record::{Record, SampleId};
use scxprof_perf::spe::{self, Cores};

/// The most context switches of a CPU that are remembered.
const MAX_RAN: usize = 1 << 16;
/// First exception level of the kernel.
const KERNEL: u8 = 1;

/// The thread that a CPU ran from a time on: its process and its id; `None` if unknown.
type Ran = (u64, Option<(u32, u32)>);

/// Which threads ran on which CPUs, and their processes.
#[derive(Debug)]
pub(crate) struct Threads {
    /// The process of each thread.
    processes: FxHashMap<u32, u32>,
    /// The most threads whose process is remembered.
    most: usize,
    /// Records contain the thread's id.
    has_contexts: bool,
    /// For each CPU, the threads that it ran, as far as known; for samples without the thread's id.
    ran: FxHashMap<u32, VecDeque<Ran>>,
}

impl Threads {
    pub(crate) fn new(most: usize) -> Self {
        Self { processes: FxHashMap::default(), most, has_contexts: false, ran: FxHashMap::default() }
    }

    /// Takes the thread from the record of a context switch.
    pub(crate) fn take(&mut self, record: &Record<'_>, id: &SampleId) {
        let thread = match *record {
            Record::SwitchCpuWide { out: true, next_prev_pid, next_prev_tid, .. } => {
                // The thread that is switched out may have run since before the first record.
                self.is_of(id.tid, id.pid);
                Some((next_prev_pid, next_prev_tid))
            }
            // After a recorded thread is switched out, any thread may run.
            Record::Switch { out: true, .. } => None,
            Record::SwitchCpuWide { .. } | Record::Switch { .. } => Some((id.pid, id.tid)),
            _ => return,
        };
        self.runs(id.cpu, id.time, thread);
    }

    /// The CPU runs this thread from now on, or an unknown one.
    pub(crate) fn runs(&mut self, cpu: u32, time: u64, thread: Option<(u32, u32)>) {
        if let Some((pid, tid)) = thread {
            self.is_of(tid, pid);
        }
        if self.has_contexts {
            return;
        }
        let ran = self.ran.entry(cpu).or_default();
        if ran.len() >= MAX_RAN {
            ran.pop_front();
        }
        ran.push_back((time, thread));
    }

    /// The thread belongs to that process.
    pub(crate) fn is_of(&mut self, tid: u32, pid: u32) {
        if !self.is_full() || self.processes.contains_key(&tid) {
            self.processes.insert(tid, pid);
        }
    }

    /// True if no further thread's process can be remembered.
    pub(crate) fn is_full(&self) -> bool {
        self.processes.len() >= self.most
    }

    /// Forgets the processes of all threads.
    pub(crate) fn forget_processes(&mut self) {
        self.processes.clear();
    }

    /// The process, if known, and the thread of a record; `followed` is the thread that a buffer belongs to, if any.
    /// Times must not decrease.
    pub(crate) fn of(
        &mut self,
        record: &spe::Record,
        time: u64,
        cpu: Option<u32>,
        followed: Option<u32>,
    ) -> Option<(Option<u32>, u32)> {
        // A missing thread id is 0, like the idle task's.
        let context = record.context.filter(|&context| context != 0 || self.has_contexts);
        if context.is_some() && !self.has_contexts {
            self.has_contexts = true;
            self.ran.clear();
        }
        match context.or(followed) {
            Some(0) => Some((Some(0), 0)),
            Some(tid) => Some((self.processes.get(&tid).copied(), tid)),
            None => cpu.and_then(|cpu| self.ran_at(cpu, time)).map(|(pid, tid)| (Some(pid), tid)),
        }
    }

    fn ran_at(&mut self, cpu: u32, time: u64) -> Option<(u32, u32)> {
        let ran = self.ran.get_mut(&cpu)?;
        ran_until(ran, time);
        ran.front().filter(|(from, _)| *from <= time).and_then(|(_, thread)| *thread)
    }

    /// Forgets the threads that ran before `time`.
    pub(crate) fn forget_before(&mut self, time: u64) {
        for ran in self.ran.values_mut() {
            ran_until(ran, time);
        }
    }
}

/// Forgets the threads that ran before `time`, except for the last one.
fn ran_until(ran: &mut VecDeque<Ran>, time: u64) {
    while ran.get(1).is_some_and(|(from, _)| *from <= time) {
        ran.pop_front();
    }
}

/// A sample with the contents of a record; the caller adds the rest.
pub(crate) fn sample(record: &spe::Record, cores: Cores) -> RawSample {
    let data_src = if record.is_access() { cores.data_source(record) } else { crate::sample::DataSource(0) };
    RawSample {
        mode: match record.level {
            Some(level) if level >= KERNEL => CpuMode::Kernel,
            Some(_) => CpuMode::User,
            None => CpuMode::Unknown,
        },
        access: if data_src.access() == Access::Unknown { record.access() } else { data_src.access() },
        ip: record.ip,
        addr: record.addr.unwrap_or(0),
        phys: record.phys,
        latency: u32::from(record.latency),
        data_src,
        ..RawSample::default()
    }
}

/// The MIDR in a text: perf's description of a CPU, or `regs/identification/midr_el1` of sysfs (`0x00000000410fd0c0`;
/// perf adds the variant and the revision by which it matches events).
pub(crate) fn midr_in(text: &str) -> Option<u64> {
    let digits = text.split(',').next()?.trim().strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok()
}
