//! Names the threads, the memory and the code of a session's samples.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::accesses::Accesses;
use super::cgroups::CgroupsOfThreads;
use super::hints::Hints;
use crate::host::clock::monotonic_ns;
use crate::host::tasks::{self, TaskSeen};
use crate::host::Roots;
use crate::outcome::Outcome;
use crate::profile::recovered::Recovered;
use crate::profile::{FilesOf, Recorder};
use crate::resolve::{AddressSpaces, Cgroups, Maps, Modules, Stacks, Threads, Unwinder};
use crate::sample::{Comm, SideBand, ThreadIndex, TimedSideBand};
use crate::sampler::loss::Loss;
use crate::sampler::pool::Pool;
use crate::session::piece::Ready;
use crate::sinks::Sink;
use crate::timeline::Timeline;
use scxprof_base::tables::Tables;

/// Reading mappings again ends after this time, and starts again 20 times this later.
const MAPS_ROUND: Duration = Duration::from_millis(2);

/// Names samples, and is kept up to date by the side-band between them.
///
/// Its facts about threads and mappings come from one place: from procfs and records ([`Namer::of_host`]), from records that a
/// recorder makes complete ([`Namer::of_recorder`]), from records that are complete ([`Namer::recorded`]), or from each line
/// ([`Namer::of_lines`]).
#[derive(Debug)]
pub(in crate::session) struct Namer {
    pub(super) threads: Threads,
    pub(super) maps: Maps,
    pub(super) accesses: Accesses,
    /// If samples have no cgroup.
    pub(super) cgroups_of_threads: Option<CgroupsOfThreads>,
    /// Paths of cgroups that were read for the next sample.
    pub(super) cgroups_read: Vec<SideBand>,
    /// The objects that contain code, if code is to be named.
    pub(super) modules: Option<Modules>,
    /// For call stacks, if samples have registers and a copy of the stack.
    pub(super) unwinder: Option<Unwinder>,
    /// If task hints are followed.
    pub(super) hints: Option<Hints>,
    /// Writes hints and recovered accesses, in their order.
    pub(super) recorder: Option<Arc<Recorder>>,
    pub(super) child_pid_namespace: bool,
    /// Leaves out every scxprof of the host: it is no workload.
    pub(super) leaves_out_profilers: bool,
    /// Side-band was lost since procfs was last read.
    pub(super) is_suspect: bool,
    /// The number of samples so far, which numbers their accesses.
    pub(super) records: u64,
    pub(super) loss: Loss,
    pub(super) failures: Vec<String>,
    /// Samples, yield and loss over time.
    pub(super) timeline: Timeline,
    /// Accesses where samples give several; reused.
    pub(super) spare: Ready,
    /// Where the memory of contexts goes when they were read.
    pub(super) pool: Option<Pool>,
}

/// How a [`Namer`] is made.
impl Namer {
    /// For records that are complete: mappings take at most `memory` bytes.
    pub(in crate::session) fn recorded(memory: usize, child_pid_namespace: bool, accesses: Accesses) -> Self {
        Self {
            threads: Threads::recorded(),
            maps: Maps::recorded(memory),
            accesses,
            cgroups_of_threads: None,
            cgroups_read: Vec::new(),
            modules: None,
            unwinder: None,
            hints: None,
            recorder: None,
            child_pid_namespace,
            leaves_out_profilers: false,
            is_suspect: false,
            records: 0,
            loss: Loss::default(),
            failures: Vec::new(),
            timeline: Timeline::default(),
            spare: Ready::default(),
            pool: None,
        }
    }

    /// For records of this host: what they do not tell is read from procfs. `cgroups` finds the cgroups of threads there, if the
    /// kernel does not tell them.
    pub(in crate::session) fn of_host(
        roots: &Roots,
        memory: usize,
        child: bool,
        accesses: Accesses,
        cgroups: Option<Cgroups>,
    ) -> Self {
        Self {
            threads: Threads::new(roots),
            maps: Maps::new(roots, memory),
            cgroups_of_threads: cgroups.map(|cgroups| CgroupsOfThreads::new(Some(cgroups))),
            ..Self::recorded(memory, child, accesses)
        }
    }

    /// For records of this host that are recorded: all names come from them, as at a replay, and what was there before is recorded
    /// too. `cgroups` as in [`Namer::of_host`]; what it finds is recorded.
    pub(in crate::session) fn of_recorder(
        memory: usize,
        child: bool,
        accesses: Accesses,
        cgroups: Option<Cgroups>,
        recorder: Arc<Recorder>,
    ) -> Self {
        Self {
            recorder: Some(recorder),
            cgroups_of_threads: cgroups.map(|cgroups| CgroupsOfThreads::new(Some(cgroups))),
            ..Self::recorded(memory, child, accesses)
        }
    }

    /// For lines that have names; with `are_numbered` also the numbers of their samples.
    pub(in crate::session) fn of_lines(are_numbered: bool) -> Self {
        Self::recorded(0, false, if are_numbered { Accesses::InNumberedLines(0) } else { Accesses::InLines })
    }

    /// Follows task hints, which come as side-band. `missing` says why there will be none.
    pub(in crate::session) fn with_hints(mut self, missing: Option<String>) -> Self {
        let mut hints = Hints::default();
        hints.counts.missing = missing;
        self.hints = Some(hints);
        self
    }

    /// Takes the cgroups of threads from a recording whose samples have none.
    pub(in crate::session) fn with_recorded_cgroups(mut self) -> Self {
        self.cgroups_of_threads = Some(CgroupsOfThreads::new(None));
        self
    }

    /// Leaves out every scxprof, for what was sampled of the whole host.
    pub(in crate::session) fn without_profilers(mut self) -> Self {
        self.leaves_out_profilers = true;
        self
    }

    /// Gives the memory of contexts back when they were read.
    pub(in crate::session) fn with_pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Unwinds the stacks of samples that have registers and a copy of the stack.
    pub(in crate::session) fn with_unwinder(mut self, unwinder: Unwinder) -> Self {
        self.unwinder = Some(unwinder);
        self
    }

    /// Keeps the code, and the stacks, that the sink wants.
    pub(in crate::session) fn keep(&mut self, sink: &dyn Sink) {
        let wants_stacks = sink.wants_stacks();
        self.modules = (sink.wants_code() || wants_stacks).then(Modules::new);
        if wants_stacks && self.accesses.are_in_samples() {
            self.accesses = Accesses::Stacks(Stacks::default());
        }
    }
}

/// State that existed before the first record, or changes without a record.
impl Namer {
    /// Reads what exists: with a recorder, records it and takes it from there. `tids` are the threads that are watched, `None` for
    /// the whole host.
    pub(in crate::session) fn seed(&mut self, roots: &Roots, tids: Option<&[u32]>, cgroups: &mut Cgroups) {
        if let Some(recorder) = self.recorder.clone() {
            if let Err(error) = cgroups.walk() {
                self.failures.push(error.to_string());
            }
            self.failures.extend(cgroups.warning());
            // The cgroups are known already; all else is read, process by process.
            let result = recorder.snapshot(roots, tids, cgroups, &mut |side: TimedSideBand| self.side_band(side.what));
            self.failures.extend(result.err().map(|error| error.to_string()));
            // Those that these threads create are in their cgroups. Their names have an earlier time.
            if self.cgroups_of_threads.is_some() {
                for (pid, tid) in self.threads.alive() {
                    self.cgroup_of(pid, tid, recorder.begin());
                }
            }
            return;
        }
        match tasks::snapshot(roots) {
            Ok(seen) => {
                self.threads.seed(&seen);
                for task in &seen {
                    self.cgroup_of(task.pid, task.tid, 0);
                }
            }
            Err(error) => self.failures.push(error.to_string()),
        }
        // Mappings are read of what is sampled: most processes sleep all the time.
        self.failures.extend(cgroups.walk().err().map(|error| error.to_string()));
        self.failures.extend(cgroups.warning());
    }

    /// True if side-band was lost since procfs was last read.
    pub(in crate::session) fn is_suspect(&self) -> bool {
        self.is_suspect
    }

    /// Procfs will be read again; these are the threads that are alive, if that is recorded.
    pub(in crate::session) fn begin_reread(&mut self) -> Vec<(u32, u32)> {
        self.is_suspect = false;
        self.threads.begin_reseed();
        if self.recorder.is_some() {
            self.threads.alive()
        } else {
            Vec::new()
        }
    }

    /// Takes what procfs has now.
    pub(in crate::session) fn reread(&mut self, seen: &[TaskSeen]) {
        self.threads.reseed(seen);
        self.maps.reseed(seen);
    }

    /// Reads mappings again that may have changed without a record; for a limited time per call.
    pub(in crate::session) fn read_maps_again(&mut self) {
        let (begin, now) = (Instant::now(), monotonic_ns());
        for pid in self.maps.due(now) {
            if begin.elapsed() > MAPS_ROUND {
                break;
            }
            self.maps.refresh(pid, now);
        }
    }

    /// At most `most` of the processes whose mappings may have changed without a record; the caller records these again `now`.
    pub(in crate::session) fn take_due_maps(&mut self, now: u64, most: usize) -> Vec<u32> {
        let mut pids = self.maps.due(now);
        pids.truncate(most);
        for &pid in &pids {
            self.maps.checked(pid, now, 0);
        }
        pids
    }

    /// Takes what was seen of the files of a process.
    pub(in crate::session) fn set_private_files(&mut self, (pid, files): FilesOf) {
        self.maps.set_private_files(pid, files);
    }

    /// Something failed, in a sentence.
    pub(in crate::session) fn failed(&mut self, what: String) {
        self.failures.push(what);
    }
}

/// Its results at the end, or meanwhile.
impl Namer {
    /// The number of samples so far.
    pub(in crate::session) fn records(&self) -> u64 {
        self.records
    }

    /// The last names of threads.
    pub(in crate::session) fn threads(&self) -> Vec<(ThreadIndex, Comm)> {
        self.threads.names()
    }

    /// The names of processes.
    pub(in crate::session) fn processes(&self) -> Vec<(u32, Comm)> {
        self.threads.processes()
    }

    /// The call stacks so far, with the objects that contain their code, if they are wanted.
    pub(in crate::session) fn stacks(&self) -> Option<(&Stacks, &Modules)> {
        match (&self.accesses, &self.modules) {
            (Accesses::Stacks(stacks), Some(modules)) => Some((stacks, modules)),
            _ => None,
        }
    }

    /// The objects that contain the code of the samples so far, with their build ids.
    pub(in crate::session) fn modules(&self) -> Modules {
        let mut modules = self.modules.clone().unwrap_or_default();
        self.finish_code(&mut modules);
        modules
    }

    /// The mappings of processes.
    pub(in crate::session) fn address_spaces(&self) -> AddressSpaces {
        AddressSpaces::of(&self.maps)
    }

    /// The losses and omissions here so far.
    pub(in crate::session) fn loss(&self) -> &Loss {
        &self.loss
    }

    /// Finds the build ids of code by the mappings that are known.
    pub(in crate::session) fn finish_code(&self, modules: &mut Modules) {
        modules.finish(&self.maps);
    }

    /// What failed, one sentence each.
    pub(in crate::session) fn take_failures(&mut self) -> Vec<String> {
        std::mem::take(&mut self.failures)
    }

    /// The accesses that were recovered when a profile was recorded, if it has them.
    pub(in crate::session) fn take_recovered(self) -> Option<Recovered<File>> {
        match self.accesses {
            Accesses::Told(recovered) | Accesses::Joined(recovered) => Some(*recovered),
            _ => None,
        }
    }

    /// The sizes of its tables, and of those of cgroups.
    pub(in crate::session) fn measure(&self, cgroups: &Cgroups, tables: &mut Tables) {
        self.threads.measure(tables);
        self.maps.measure(tables);
        cgroups.measure(tables);
        if let Some(cgroups) = &self.cgroups_of_threads {
            cgroups.measure(tables);
        }
        if let Some(modules) = &self.modules {
            modules.measure(tables);
        }
        if let Some(unwinder) = &self.unwinder {
            unwinder.measure(tables);
        }
        if let Some(hints) = &self.hints {
            hints.measure(tables);
        }
        self.accesses.measure(tables);
        if let Some(recorder) = &self.recorder {
            recorder.measure(tables);
        }
    }

    /// What did not fit into the tables, one sentence each.
    fn left_out(&self, cgroups: &Cgroups) -> Vec<String> {
        let code = self.modules.as_ref().and_then(Modules::left_out);
        let without_stack = match &self.accesses {
            Accesses::Stacks(stacks) => stacks.left_out(),
            _ => 0,
        };
        let without_stack = (without_stack > 0)
            .then(|| format!("{without_stack} samples have no call stack: there was no room for more different ones"));
        self.threads
            .left_out()
            .into_iter()
            .chain(self.maps.left_out())
            .chain(cgroups.left_out())
            .chain(code)
            .chain(without_stack)
            .collect()
    }

    /// Its counts, beside the `loss` that was counted before it.
    pub(in crate::session) fn outcome(&mut self, mut loss: Loss, cgroups: &Cgroups) -> Outcome {
        loss.add(&self.loss);
        Outcome {
            samples: self.records,
            events: loss.samples,
            recovery: match &self.accesses {
                Accesses::Recovered(recoverer) => Some(recoverer.counts()),
                _ => None,
            },
            hints: self.hints.as_ref().map(|hints| hints.counts.clone()),
            loss,
            notes: self.left_out(cgroups),
            modules: self.modules.take().unwrap_or_default(),
            stacks: match &mut self.accesses {
                Accesses::Stacks(stacks) => std::mem::take(stacks),
                _ => Stacks::default(),
            },
            unwound: self.unwinder.as_ref().map(|unwinder| unwinder.counts),
            address_spaces: AddressSpaces::of(&self.maps),
            user_processes: self.maps.take_user(),
            timeline: std::mem::take(&mut self.timeline),
            ..Outcome::default()
        }
    }
}
