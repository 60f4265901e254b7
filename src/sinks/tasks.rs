//! A sink that reads what procfs says of the threads in samples, for the conditions of schedulers.

use rustc_hash::FxHashSet;

use super::sink::Sink;
use crate::host::facts::Tasks;
use crate::host::Roots;
use crate::resolve::Cgroups;
use crate::sample::{Comm, Sample};

/// Threads that are looked up.
const MAX_SEEN: usize = 1 << 18;

/// Facts about the threads in samples, each read when the thread's first sample comes. A thread that has ended by then has none.
#[derive(Debug)]
pub struct TaskSink {
    roots: Roots,
    with_cmdline: bool,
    tasks: Tasks,
    seen: FxHashSet<(u32, u32)>,
    processes: FxHashSet<u32>,
    last: (u32, u32, Comm),
}

impl TaskSink {
    /// Nothing is known yet. The command lines of processes are read only if they are asked for: they may hold secrets.
    #[must_use]
    pub fn new(roots: &Roots, with_cmdline: bool) -> Self {
        Self {
            roots: roots.clone(),
            with_cmdline,
            tasks: Tasks::default(),
            seen: FxHashSet::default(),
            processes: FxHashSet::default(),
            last: (0, 0, Comm::default()),
        }
    }

    /// The facts, read again of all threads that still live: they may have changed. With `all`, of those without samples too.
    #[must_use]
    pub fn finish(mut self, all: bool) -> Tasks {
        let pids: Vec<u32> = self.processes.iter().copied().collect();
        // Without procfs there are no facts, as for each thread before.
        let _ = self.tasks.read(&self.roots, (!all).then_some(&pids), self.with_cmdline);
        self.tasks
    }

    fn look_up(&mut self, pid: u32, tid: u32, comm: Option<Comm>) {
        let comm = comm.unwrap_or_default();
        if self.last == (pid, tid, comm) {
            return;
        }
        self.last = (pid, tid, comm);
        if pid == tid && comm != Comm::default() {
            let name = String::from_utf8_lossy(comm.as_bytes());
            if self.tasks.process(pid).is_some_and(|known| known != name) {
                self.tasks.rename_process(pid, &name);
            }
        }
        if pid == 0 || self.seen.len() >= MAX_SEEN || !self.seen.insert((pid, tid)) {
            return;
        }
        if self.processes.insert(pid) {
            // A process that cannot be read has no facts.
            let _ = self.tasks.read(&self.roots, Some(&[pid]), self.with_cmdline);
        } else if self.tasks.get(pid, tid).is_none() {
            self.tasks.read_thread(&self.roots, pid, tid);
        }
    }
}

impl Sink for TaskSink {
    fn sample(&mut self, sample: &Sample, _: &mut Cgroups) {
        self.look_up(sample.raw.pid, sample.raw.tid, sample.comm);
    }
}
