//! Adds names to samples before the sink gets them: the thread, its cgroup and hint, the memory and the code.

use std::collections::hash_map::Entry;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::hints::Hints;
use super::order::{Order, Released, Timed};
use super::ready::{Ready, READY};
use super::recovery::Recoverer;
use super::wakeups::{Wakeups, Woken};
use super::{Outcome, Sink, Tables};
use crate::host::clock::monotonic_ns;
use crate::host::{tasks, Roots};
use crate::profile::hints::{self, HintRecord};
use crate::profile::recovered::{self, Recovered};
use crate::profile::Recorder;
use crate::resolve::identity::scope;
use crate::resolve::threads::Thread;
use crate::resolve::{AddressSpaces, Cgroups, Mapping, Maps, Modules, Stacks, Threads, Unwinder};
use crate::sample::batch::{PendingSample, UserContext};
use crate::sample::sched::SchedEvent;
use crate::sample::{Access, CodeAddr, CpuMode, RawSample, Sample, ThreadIndex};
use crate::sample::{FileId, SideBand, TimedSideBand};
use crate::sampler::loss::Loss;
use crate::timeline::Timeline;
use scxprof_perf::buildid::BuildId;

/// A cgroup that was read from procfs is read again after this many ns, because threads move.
const CGROUP_AGE: u64 = 1_000_000_000;
/// Threads with a cached cgroup from procfs.
const MAX_CGROUPS_READ: usize = 1 << 16;
/// Reading mappings again ends after this time, and starts again 20 times this later.
const MAPS_ROUND: Duration = Duration::from_millis(2);
/// Recorded hints that are read before they are sorted.
const TAKEN: usize = 1 << 10;

/// Takes some of the recorded hints up to `until`; false if there were none.
pub(super) fn take_some_hints<S: Timed>(recorded: &mut hints::Hints<File>, until: u64, order: &mut Order<S>) -> bool {
    let next = std::iter::from_fn(|| recorded.next_until(until)).map(|record| {
        let HintRecord { tid, pid, hint, time, .. } = record;
        TimedSideBand { time, what: SideBand::Hint { time, pid, tid, hint } }
    });
    let side_band: Vec<_> = next.take(TAKEN).collect();
    let has_some = !side_band.is_empty();
    order.extend(side_band);
    has_some
}

/// Objects that can get names: what a sampler read, or a line of text that contains names.
pub(super) trait Nameable: Timed {
    /// Adds the accesses that it gives to `ready`.
    fn name(&self, names: &mut Names, ready: &mut Ready);
}

impl Nameable for PendingSample {
    fn name(&self, names: &mut Names, ready: &mut Ready) {
        names.pending(self, ready);
    }
}

impl Nameable for Sample {
    fn name(&self, names: &mut Names, ready: &mut Ready) {
        names.line(self, ready);
    }
}

/// The code at `ip` in the process of the sample, if code is to be named.
fn locate(modules: &mut Option<Modules>, maps: &mut Maps, sample: &Sample, ip: u64) -> Option<CodeAddr> {
    modules.as_mut().and_then(|modules| modules.locate(maps, sample.raw.pid, sample.raw.mode, ip))
}

/// Names samples, and is kept up to date by the side-band.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) threads: Threads,
    pub(super) maps: Maps,
    pub(super) cgroups: Cgroups,
    /// If the kernel puts no cgroup into samples: the cgroup from procfs, with the time of that reading.
    pub(super) cgroup_of_thread: Option<FxHashMap<ThreadIndex, (u64, u64)>>,
    /// The objects that contain code, if code is to be named.
    pub(super) modules: Option<Modules>,
    /// The call stacks of samples, if they are wanted.
    pub(super) stacks: Option<Stacks>,
    /// Unwinds user code, if samples have registers and a copy of the stack.
    pub(super) unwinder: Option<Unwinder>,
    /// If task hints were requested.
    pub(super) hints: Option<Hints>,
    /// Writes hints and recovered accesses, in their order.
    pub(super) recorder: Option<Arc<Recorder>>,
    pub(super) loss: Loss,
    /// Side-band was lost since procfs was last read.
    pub(super) suspect: bool,
    /// For a source with registers instead of an address in its samples.
    pub(super) recoverer: Option<Recoverer>,
    /// The accesses recovered when a profile was recorded.
    pub(super) recovered: Option<Recovered<File>>,
    /// The number of samples so far, which numbers their accesses.
    pub(super) records: u64,
    /// Accesses that the sink took.
    pub(super) accesses: u64,
    pub(super) failures: Vec<String>,
    pub(super) child_pid_namespace: bool,
    /// For the source that makes samples of wakeups.
    pub(super) wakeups: Option<Wakeups>,
    /// Samples, yield and loss over time.
    pub(super) timeline: Timeline,
}

impl Names {
    /// For records that are complete: mappings take at most `memory` bytes.
    pub(super) fn recorded(memory: usize, child_pid_namespace: bool) -> Self {
        Self {
            threads: Threads::recorded(),
            maps: Maps::recorded(memory),
            cgroups: Cgroups::recorded(),
            cgroup_of_thread: None,
            modules: None,
            stacks: None,
            unwinder: None,
            hints: None,
            recorder: None,
            loss: Loss::default(),
            suspect: false,
            recoverer: None,
            recovered: None,
            records: 0,
            accesses: 0,
            failures: Vec::new(),
            child_pid_namespace,
            wakeups: None,
            timeline: Timeline::default(),
        }
    }

    /// Reads what exists.
    pub(super) fn seed(&mut self, roots: &Roots, whole_host: bool) {
        match tasks::snapshot(roots) {
            Ok(seen) => {
                self.threads.seed(&seen);
                if self.cgroup_of_thread.is_some() {
                    for task in &seen {
                        self.cgroup_from_procfs(task.pid, task.tid, 0);
                    }
                }
            }
            Err(error) => self.failures.push(error.to_string()),
        }
        let maps = if whole_host { self.maps.seed_all() } else { Ok(()) };
        for result in [maps, self.cgroups.walk()] {
            if let Err(error) = result {
                self.failures.push(error.to_string());
            }
        }
        self.failures.extend(self.cgroups.warning());
    }

    /// Records what exists, and reads it from there.
    pub(super) fn seed_recorded(&mut self, roots: &Roots, recorder: &Recorder, tids: Option<&[u32]>) {
        if let Err(error) = self.cgroups.walk() {
            self.failures.push(error.to_string());
        }
        self.failures.extend(self.cgroups.warning());
        // The cgroups are known already; all else is read, process by process.
        let cgroups = std::mem::replace(&mut self.cgroups, Cgroups::recorded());
        let result = recorder.snapshot(roots, tids, &cgroups, &mut |side: TimedSideBand| self.side_band(side.what));
        self.cgroups = cgroups;
        if let Err(error) = result {
            self.failures.push(error.to_string());
        }
    }

    /// Keeps the code, and the stacks, that the sink wants.
    pub(super) fn keep(&mut self, sink: &dyn Sink) {
        let wants_stacks = sink.wants_stacks();
        self.modules = (sink.wants_code() || wants_stacks).then(Modules::new);
        self.stacks = wants_stacks.then(Stacks::default);
    }

    /// Lends the call stacks so far to the sink.
    pub(super) fn lend(&self, sink: &mut dyn Sink) {
        if let (Some(stacks), Some(modules)) = (&self.stacks, &self.modules) {
            sink.stacks(stacks, modules);
        }
    }

    /// What did not fit into the tables, one sentence each.
    pub(super) fn left_out(&self) -> Vec<String> {
        let code = self.modules.as_ref().and_then(Modules::left_out);
        let without_stack = self.stacks.as_ref().map_or(0, Stacks::left_out);
        let without_stack = (without_stack > 0)
            .then(|| format!("{without_stack} samples have no call stack: there was no room for more different ones"));
        self.threads
            .left_out()
            .into_iter()
            .chain(self.maps.left_out())
            .chain(self.cgroups.left_out())
            .chain(code)
            .chain(without_stack)
            .collect()
    }

    /// The sizes of all tables: its own, and those of what is before and after it.
    pub(super) fn measure<S: Timed>(&self, order: &Order<S>, sink: &dyn Sink, tables: &mut Tables) {
        order.measure(tables);
        self.threads.measure(tables);
        self.maps.measure(tables);
        self.cgroups.measure(tables);
        if let Some(cgroups) = &self.cgroup_of_thread {
            tables.set_map::<(ThreadIndex, (u64, u64))>("cgroups of threads", cgroups.len(), cgroups.capacity(), 0);
        }
        if let Some(modules) = &self.modules {
            modules.measure(tables);
        }
        if let Some(stacks) = &self.stacks {
            stacks.measure(tables);
        }
        if let Some(unwinder) = &self.unwinder {
            unwinder.measure(tables);
        }
        if let Some(hints) = &self.hints {
            hints.measure(tables);
        }
        if let Some(recoverer) = &self.recoverer {
            recoverer.measure(tables);
        }
        if let Some(wakeups) = &self.wakeups {
            tables.set("pairs of threads that wake each other", wakeups.pairs(), wakeups.bytes());
        }
        if let Some(recorder) = &self.recorder {
            recorder.measure(tables);
        }
        sink.measure(tables);
    }

    /// The outcome at the end, when all of `order` is released: `loss` was counted before sorting. The caller adds the code.
    pub(super) fn outcome<S: Timed>(&mut self, order: &Order<S>, mut loss: Loss, sink: &mut dyn Sink) -> Outcome {
        sink.ended(&self.threads.names());
        sink.processes(&self.threads.processes(), &mut self.cgroups);
        loss.add(&self.loss);
        let mut tables = Tables::default();
        self.measure(order, sink, &mut tables);
        (loss.late, loss.late_side_band) = (order.late, order.late_side_band);
        loss.sched.late = order.late_sched;
        Outcome {
            samples: self.records,
            accesses: self.accesses,
            events: loss.samples,
            duration: Duration::from_nanos(order.last.saturating_sub(order.first)),
            recovery: self.recoverer.as_ref().map(Recoverer::counts),
            hints: self.hints.as_ref().map(|hints| hints.counts.clone()),
            loss,
            notes: self.left_out(),
            modules: Modules::default(),
            stacks: self.stacks.take().unwrap_or_default(),
            unwound: self.unwinder.as_ref().map(|unwinder| unwinder.counts),
            address_spaces: AddressSpaces::of(&self.maps),
            user_processes: self.maps.take_user(),
            realtime: None,
            tables,
            timeline: std::mem::take(&mut self.timeline),
        }
    }

    /// Takes the recorded hints up to `until`, which must precede the samples of their time.
    pub(super) fn take_hints<S: Nameable>(
        &mut self,
        recorded: Option<&mut hints::Hints<File>>,
        until: u64,
        order: &mut Order<S>,
        sink: &mut dyn Sink,
    ) {
        let Some(recorded) = recorded else { return };
        while take_some_hints(recorded, until, order) {
            if order.is_crowded() {
                self.release(order, sink);
            }
        }
    }

    /// Passes what is complete to the sink.
    pub(super) fn release<S: Nameable>(&mut self, order: &mut Order<S>, sink: &mut dyn Sink) {
        let mut accesses = 0;
        // The next samples for the sink; all of them are older than the next side-band.
        let mut ready = Ready::default();
        let mut hand_on = |ready: &mut Ready, cgroups: &mut Cgroups, sink: &mut dyn Sink| {
            if ready.len() > 0 {
                accesses += ready.len() as u64;
                sink.samples(ready.samples(), cgroups);
                ready.truncate(0);
            }
        };
        order.release(|released| match released {
            Released::SideBand(what) => {
                hand_on(&mut ready, &mut self.cgroups, sink);
                self.side_band(what);
            }
            Released::Sample(sample) => {
                sample.name(self, &mut ready);
                if ready.len() >= READY {
                    hand_on(&mut ready, &mut self.cgroups, sink);
                }
            }
            Released::Sched(events) => {
                hand_on(&mut ready, &mut self.cgroups, sink);
                self.woken(events, &mut ready);
                hand_on(&mut ready, &mut self.cgroups, sink);
                sink.sched(events, &mut self.cgroups);
            }
        });
        hand_on(&mut ready, &mut self.cgroups, sink);
        self.accesses += accesses;
    }

    /// Completes one sample and adds it, or each access that it gives, to `ready`.
    fn pending(&mut self, pending: &PendingSample, ready: &mut Ready) {
        let sample = ready.next();
        *sample = pending.raw.into();
        if !self.numbered(sample) {
            return;
        }
        if self.stacks.is_some() {
            self.stacked(sample, pending.context.as_deref());
            ready.count += 1;
            return;
        }
        let Self { recoverer, maps, modules, recorder, timeline, .. } = self;
        let (Some(context), Some(recoverer)) = (&pending.context, recoverer) else {
            self.placed(sample);
            ready.count += 1;
            return;
        };
        let sample = *sample;
        let before = ready.count;
        recoverer.recover(&sample, context, maps, |access, other_kind, maps| {
            if let Some(recorder) = recorder {
                recorder.access(&access, other_kind);
            }
            ready.push(Sample { code: locate(modules, maps, &access, access.raw.ip), ..access });
        });
        timeline.record(sample.raw.time, ready.count > before);
    }

    /// Names the thread of a sample and numbers the sample; false if it is not one of ours.
    pub(super) fn numbered(&mut self, sample: &mut Sample) -> bool {
        if !self.complete(sample) {
            return false;
        }
        self.records += 1;
        sample.record = self.records;
        true
    }

    /// Adds the call stack of a sample.
    pub(super) fn stacked(&mut self, sample: &mut Sample, context: Option<&UserContext>) {
        let Self { maps, modules, stacks, unwinder, .. } = self;
        if let (Some(stacks), Some(modules)) = (stacks, modules) {
            let at = (sample.raw.pid, sample.raw.mode, sample.raw.ip);
            sample.stack = stacks.intern(modules, maps, unwinder.as_mut(), at, context);
        }
    }

    /// Adds the memory and the code of a sample that has an address.
    pub(super) fn placed(&mut self, sample: &mut Sample) {
        let Self { maps, modules, loss, timeline, .. } = self;
        maps.put_memory(sample.raw.pid, sample.raw.addr, sample.raw.phys, &mut sample.memory);
        sample.code = locate(modules, maps, sample, sample.raw.ip);
        loss.no_user_address += u64::from(sample.memory.is_none());
        timeline.record(sample.raw.time, sample.memory.is_some());
    }

    /// Adds a sample that contains its names to `ready`: only its hint is missing.
    fn line(&mut self, sample: &Sample, ready: &mut Ready) {
        let hint = self.hints.as_mut().and_then(|hints| hints.of_sample(sample.raw.pid, sample.raw.tid));
        self.records += 1;
        self.loss.no_user_address += u64::from(sample.memory.is_none());
        self.loss.unnamed += u64::from(sample.comm.is_none());
        self.timeline.record(sample.raw.time, sample.memory.is_some());
        ready.push(Sample { record: self.records, hint, ..*sample });
    }

    /// Adds the accesses that were recovered when `sample` was recorded to `ready`.
    pub(super) fn joined(&mut self, sample: &Sample, ready: &mut Ready) {
        let Self { recovered, maps, modules, timeline, .. } = self;
        let Some(recovered) = recovered else { return };
        let accesses = recovered.take(sample.raw.time, sample.raw.cpu, sample.raw.tid);
        timeline.record(sample.raw.time, !accesses.is_empty());
        let share = 1.0 / accesses.len() as f32;
        for access in &accesses {
            // As at the capture: its page contradicted the mappings.
            let memory = if access.unmapped {
                // The mappings may be known by now.
                let memory = maps.memory(sample.raw.pid, access.addr, access.phys);
                memory.filter(|memory| !matches!(memory, crate::sample::MemoryId::Private { .. }))
            } else {
                maps.place_of_page(sample.raw.pid, access.addr, access.phys, access.anonymous.then_some(false)).0
            };
            ready.push(Sample {
                raw: RawSample {
                    ip: access.ip,
                    addr: access.addr,
                    phys: access.phys,
                    access: recovered::op(&access.op),
                    size: access.size,
                    method: recovered::method(&access.method),
                    share,
                    ..sample.raw
                },
                memory,
                code: locate(modules, maps, sample, access.ip),
                ..*sample
            });
        }
    }

    /// Adds the samples of the wakeups among these events to `ready`, if that is the source.
    pub(super) fn woken(&mut self, events: &[SchedEvent], ready: &mut Ready) {
        let Some(mut wakeups) = self.wakeups.take() else { return };
        for event in events {
            let Some(Woken { time, cpu, waker, wakee }) = wakeups.take(event) else { continue };
            let (Some(a), Some(b)) = (self.user_thread(&waker), self.user_thread(&wakee)) else { continue };
            let Some(memory) = wakeups.pair(a.thread, b.thread) else { continue };
            for half in [a, b] {
                self.records += 1;
                let raw = RawSample { time, cpu, mode: CpuMode::User, access: Access::Update, ..half.raw };
                ready.push(Sample { raw, record: self.records, memory: Some(memory), ..half });
            }
        }
        self.wakeups = Some(wakeups);
    }

    /// The thread, unless it is the kernel's: one without any mapping.
    fn user_thread(&mut self, thread: &scxprof_sched::Thread) -> Option<Sample> {
        let scxprof_sched::Thread { pid, tid, cgroup, .. } = *thread;
        if !self.maps.has_process(pid) {
            return None;
        }
        let Some(known) = self.threads.resolve(pid, tid) else {
            self.loss.unnamed += 1;
            return None;
        };
        let (index, comm) = (known.index, known.comm);
        let hint = self.hints.as_mut().and_then(|hints| hints.of_sample(pid, tid));
        let raw = RawSample { pid, tid, cgroup, ..RawSample::default() };
        Some(Sample { raw, thread: index, comm: Some(comm), hint, ..Sample::default() })
    }

    /// Reads mappings again that may have changed without a record; for a limited time per call.
    pub(super) fn read_maps_again(&mut self) {
        let (begin, now) = (Instant::now(), monotonic_ns());
        for pid in self.maps.due(now) {
            if begin.elapsed() > MAPS_ROUND {
                break;
            }
            self.maps.refresh(pid, now);
        }
    }

    pub(super) fn side_band(&mut self, what: SideBand) {
        if let Some(wakeups) = &mut self.wakeups {
            wakeups.side_band(&what);
        }
        match what {
            SideBand::Comm { pid, tid, exec, comm } => {
                self.threads.comm(pid, tid, comm, exec);
                if exec {
                    self.end_space(pid);
                    self.maps.exec(pid);
                }
            }
            SideBand::Fork { pid, ppid, tid, ptid } => {
                self.threads.fork(pid, tid, ppid, ptid);
                if let Some(hints) = &mut self.hints {
                    hints.fork(tid);
                }
                if let Some(cgroup_of_thread) = &mut self.cgroup_of_thread {
                    let parent =
                        self.threads.get(ppid, ptid).and_then(|parent| cgroup_of_thread.get(&parent.index).copied());
                    let parent = parent.filter(|_| cgroup_of_thread.len() < MAX_CGROUPS_READ);
                    if let (Some(cgroup), Some(child)) = (parent, self.threads.get(pid, tid)) {
                        cgroup_of_thread.insert(child.index, cgroup);
                    }
                }
                if pid != ppid {
                    self.maps.fork(pid, ppid);
                }
            }
            SideBand::Exit { pid, tid } => {
                if self.threads.exit(pid, tid) {
                    self.end_space(pid);
                    self.maps.exit(pid);
                }
            }
            SideBand::Mmap { pid, addr, len, pgoff, file, prot, flags, filename } => {
                let (dev, ino, generation, build_id) = match file {
                    FileId::Inode { dev, ino, generation } => (dev, ino, generation, None),
                    FileId::BuildId(build_id) => (0, 0, 0, Some(BuildId::new(&build_id))),
                };
                let scope = scope(dev, &filename);
                let (start, path) = (addr, filename.into());
                let mapping = Mapping { start, len, pgoff, prot, flags, dev, ino, generation, scope, build_id, path };
                if let Some(modules) = self.modules.as_mut().filter(|_| pid == u32::MAX) {
                    modules.kernel_mapping(&mapping.path, pgoff);
                }
                self.maps.mmap(pid, &mapping);
            }
            SideBand::Ipc { pid, namespace } => self.maps.ipc_namespace(pid, namespace),
            SideBand::Cgroup { id, path } => self.cgroups.record(id, &path),
            SideBand::Hint { time, pid, tid, hint } => {
                if let Some(hints) = &mut self.hints {
                    hints.event(time, pid, tid, hint);
                }
                if let Some(recorder) = &self.recorder {
                    recorder.hint(&HintRecord { tid, pid, hint, time, snapshot: false });
                }
            }
            SideBand::Lost { lost, .. } => {
                self.suspect = true;
                self.timeline.lost(lost);
            }
        }
    }

    /// The address space of a process ends.
    fn end_space(&mut self, pid: u32) {
        if let (Some(recoverer), Some(space)) = (&mut self.recoverer, self.maps.known_generation(pid)) {
            recoverer.forget(space);
        }
    }

    /// Adds what the sampler cannot know; false if the sample is not one of ours.
    fn complete(&mut self, sample: &mut Sample) -> bool {
        let known = |sample: &mut Sample, thread: &Thread| {
            sample.thread = thread.index;
            sample.comm = Some(thread.comm);
        };
        if let Some(thread) = self.threads.get(sample.raw.pid, sample.raw.tid) {
            known(sample, thread);
        } else if let Some(thread) = self.threads.resolve(sample.raw.pid, sample.raw.tid) {
            known(sample, thread);
        } else if self.child_pid_namespace {
            // If another profiler samples the same software event, the kernel writes pids of that one's namespace into our
            // samples too (observed on 6.18; perf_prepare_sample() fills the ids once for all events).
            self.loss.outside_pid_namespace += 1;
            return false;
        } else {
            self.loss.unnamed += 1;
            sample.thread = ThreadIndex::MAX;
        }
        if let Some(hints) = &mut self.hints {
            sample.hint = hints.of_sample(sample.raw.pid, sample.raw.tid);
        }
        if self.cgroup_of_thread.is_some() {
            sample.raw.cgroup = self.cgroup_from_procfs(sample.raw.pid, sample.raw.tid, sample.raw.time);
        }
        true
    }

    /// The cgroup from procfs within the last second, or when the thread was last alive; 0 if unknown.
    fn cgroup_from_procfs(&mut self, pid: u32, tid: u32, now: u64) -> u64 {
        let (Some(known), Some(thread)) = (&mut self.cgroup_of_thread, self.threads.get(pid, tid)) else { return 0 };
        if known.len() >= MAX_CGROUPS_READ {
            known.clear();
        }
        let (cgroup, read) = match known.entry(thread.index) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert((self.cgroups.of_thread(pid, tid).unwrap_or(0), now)),
        };
        if now.saturating_sub(*read) >= CGROUP_AGE {
            *cgroup = self.cgroups.of_thread(pid, tid).unwrap_or(*cgroup);
            *read = now;
        }
        *cgroup
    }
}
