//! Wires the parts: rings to samples in order of time, each with its thread's name and the memory it touched, to a sink.

use std::collections::hash_map::Entry;
use std::fs::File;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;
use rustc_hash::FxHashMap;
use thiserror::Error;

use crate::bpf::{self, HintCounts, Watch};
use crate::profile::hints::HintRecord;
use crate::profile::recovered::{self, Recovered};
use crate::profile::{ProfileError, Recorder};
use crate::resolve::mapping::BuildId;
use crate::resolve::{threads, Cgroups, Mapping, Maps, Modules, Roots, Threads};
use crate::sample::{Sample, Source, ThreadIndex};
use crate::sampler::attr::Feature;
use crate::sampler::loss::Loss;
use crate::sampler::tee::Tee;
use crate::sampler::{self, Batch, Captured, FileId, Running, Sampler, SamplerError, SideBand, Target, TimedSideBand};

mod builder;
mod decider;
mod feed;
mod hints;
mod order;
mod recovery;
mod replay;
mod reread;
mod start;
mod text;

pub use builder::{Builder, CaptureError, Found, StopHandle};
pub use decider::{Decided, Decider};
pub use feed::Feed;
use hints::Hints;
use order::{Order, Released};
use recovery::Recoverer;
pub use recovery::{Yield, FRAMES_HIDDEN};
pub use replay::replay;
use reread::Reread;
pub use start::{start_first, threads_of, NoProcess, NotStarted, Open, Skipped};
pub(crate) use text::Numbers;

/// How often a capture looks up where nothing arrives.
const TICK: Duration = Duration::from_millis(50);
/// A cgroup that was read from procfs is read again after so many ns: threads move.
const CGROUP_AGE: u64 = 1_000_000_000;
/// Threads whose cgroup from procfs is remembered.
const MAX_CGROUPS_READ: usize = 1 << 16;

/// Samples that are handed to the sink at once.
const READY: usize = 64;

/// Bytes of a sample's registers and stack while it waits.
const CONTEXT_SIZE: usize = 768;

/// Where samples end up, in order of time.
pub trait Sink {
    /// Takes one sample. The names resolve its cgroup's id.
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups);

    /// Takes samples that follow one another, as if each were given to [`Sink::sample`].
    fn samples(&mut self, samples: &[Sample], cgroups: &mut Cgroups) {
        for sample in samples {
            self.sample(sample, cgroups);
        }
    }

    /// True where samples shall say which code made the access ([`Sample::code`]), to be named at the end.
    fn wants_code(&self) -> bool {
        false
    }
}

/// What a session works on.
#[derive(Debug)]
pub struct Options {
    /// What to sample and how.
    pub sampler: sampler::Options,
    /// Where the host is read.
    pub roots: Roots,
    /// Bytes for queues and caches, beside the rings.
    pub memory: usize,
    /// Which task hints to follow, if any.
    pub hints: Option<bpf::Options>,
}

/// Why a session cannot begin.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// No events.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// No names.
    #[error(transparent)]
    Resolve(#[from] crate::resolve::Error),
    /// A recording that could not be begun.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A thread that could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
}

/// How far a capture is.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Progress {
    /// Since its beginning.
    pub elapsed: Duration,
    /// Samples so far.
    pub samples: u64,
}

/// What a capture gave beside the samples.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Outcome {
    /// Samples that were named.
    pub samples: u64,
    /// Accesses that the sink took: one a sample, or as many as were recovered from it.
    pub accesses: u64,
    /// Events that happened, sampled or not.
    pub events: u64,
    /// From the first event enabled to the last disabled.
    pub duration: Duration,
    /// What was recovered, for a source that recovers addresses.
    pub recovery: Option<Yield>,
    /// What is known of task hints, where they were asked for.
    pub hints: Option<HintCounts>,
    /// What was lost and left out.
    pub loss: Loss,
    /// What the kernel refused, and other facts a person should know.
    pub notes: Vec<String>,
    /// What the code of the samples is in, where the sink wanted to know.
    pub modules: Modules,
}

/// A capture at work.
#[derive(Debug)]
pub struct Session {
    running: Running,
    /// Task hints, where they can be followed.
    watch: Option<Watch>,
    begin: Instant,
    roots: Roots,
    /// What was there before the first record, while it is still being read.
    snapshot: Option<JoinHandle<Names>>,
    names: Option<Names>,
    recorder: Option<Arc<Recorder>>,
    order: Order,
    notes: Vec<String>,
}

impl Session {
    /// Opens and enables the events; what exists already is then read in the background, so that nothing falls between.
    ///
    /// # Errors
    /// [`SessionError`]; nothing is left open then.
    pub fn start(options: &Options) -> Result<Self, SessionError> {
        Self::open(options, |_| Ok(None))
    }

    /// As [`Session::start`], and records everything. Names are then taken from what is recorded and from nothing else, so
    /// that [`replay()`] gives the same samples.
    ///
    /// # Errors
    /// [`SessionError`]; nothing is left open then.
    pub fn record(
        options: &Options,
        begin: impl FnOnce(&Sampler) -> Result<Arc<Recorder>, ProfileError>,
    ) -> Result<Self, SessionError> {
        Self::open(options, |sampler| begin(sampler).map(Some))
    }

    fn open(
        options: &Options,
        recorder: impl FnOnce(&Sampler) -> Result<Option<Arc<Recorder>>, ProfileError>,
    ) -> Result<Self, SessionError> {
        let cgroups = Cgroups::new(&options.roots)?;
        let sampler = Sampler::open(&options.sampler)?;
        let mut notes = sampler.notes().to_vec();
        // Before the first sample, so that each has its thread's hint.
        let mut hints = options.hints.is_some().then(Hints::default);
        let watch = match options.hints.as_ref().map(Watch::start) {
            Some(Ok(watch)) => {
                notes.extend_from_slice(watch.notes());
                Some(watch)
            }
            Some(Err(error)) => {
                notes.push(format!("{error}; hints are missing, the memory profile goes on without them"));
                if let Some(hints) = &mut hints {
                    hints.counts.missing = Some(error.to_string());
                }
                None
            }
            None => None,
        };
        let ask_for_cgroups = !sampler.features().has(Feature::Cgroup);
        let recorder = recorder(&sampler)?;
        let tee = recorder.clone().map(|recorder| recorder as Arc<dyn Tee>);
        let running = sampler.start(tee.as_ref())?;
        let begin = Instant::now();
        let recovers = options.sampler.source == Source::Timer;
        // A quarter for samples that wait for their order or for code, an eighth for mappings; the rest is the sink's.
        let waiting = if recovers { size_of::<Captured>() + CONTEXT_SIZE } else { size_of::<Captured>() };
        let share = if recovers { options.memory / 8 } else { options.memory / 4 };
        let order = Order::new(running.workers() + usize::from(watch.is_some()), share / waiting);
        let mut names = Names {
            threads: Threads::new(&options.roots),
            maps: Maps::new(&options.roots, options.memory / 8),
            cgroups,
            cgroup_of_thread: ask_for_cgroups.then(FxHashMap::default),
            modules: None,
            hints,
            recorder: recorder.clone(),
            loss: Loss::default(),
            suspect: false,
            recoverer: recovers.then(|| Recoverer::new(&options.roots.proc, options.memory / 4)),
            recovered: None,
            records: 0,
            failures: Vec::new(),
            child_pid_namespace: options.sampler.child_pid_namespace,
        };
        if recorder.is_some() {
            names.threads = Threads::recorded();
            names.maps = Maps::recorded(options.memory / 8);
            names.cgroup_of_thread = None;
        }
        // Of a few processes the mappings are read when they are needed; a host's must be read before its processes end.
        let tids = match &options.sampler.target {
            Target::Tasks { tids, .. } => Some(tids.clone()),
            Target::System | Target::Cgroup(_) => None,
        };
        let roots = options.roots.clone();
        let recorded = recorder.clone();
        let snapshot = std::thread::Builder::new()
            .name("snapshot".to_owned())
            .spawn(move || {
                match recorded {
                    Some(recorder) => names.seed_recorded(&roots, &recorder, tids.as_deref()),
                    None => names.seed(&roots, tids.is_none()),
                }
                names
            })
            .map_err(SessionError::Thread)?;
        Ok(Self {
            running,
            watch,
            begin,
            roots: options.roots.clone(),
            snapshot: Some(snapshot),
            names: None,
            recorder,
            order,
            notes,
        })
    }

    /// Hands samples to `sink` until `stop`, which is asked about every 50 ms, says so; then what is left in the rings.
    pub fn run(mut self, sink: &mut dyn Sink, mut stop: impl FnMut(Progress) -> bool) -> Outcome {
        let wants_code = sink.wants_code();
        let mut accesses = 0;
        let mut reread = Reread::new(&self.roots, self.recorder.as_ref());
        let mut asked: Option<Instant> = None;
        loop {
            if self.names.is_none() && self.order.is_full() {
                // procfs takes long to read. The workers count what they cannot hand on meanwhile.
                std::thread::sleep(TICK / 10);
            } else {
                match self.running.batches().recv_timeout(TICK) {
                    Ok(batch) => self.order.push(batch),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                self.take_hints();
            }
            reread.take(&mut self.order);
            if self.snapshot.as_ref().is_some_and(JoinHandle::is_finished) {
                self.take_snapshot(wants_code);
            }
            if let Some(names) = &mut self.names {
                if self.order.is_due() {
                    accesses += names.release(&mut self.order, sink);
                }
                reread.look(names, &mut self.order);
            }
            if asked.is_none_or(|asked| asked.elapsed() >= TICK) {
                asked = Some(Instant::now());
                let samples = self.names.as_ref().map_or(0, |names| names.records);
                if stop(Progress { elapsed: self.begin.elapsed(), samples }) {
                    break;
                }
            }
        }
        self.running.stop();
        if let Some(watch) = &self.watch {
            watch.stop();
        }
        reread.stop(&mut self.order);
        let duration = self.begin.elapsed();
        self.take_snapshot(wants_code);
        let Self { running, watch, names, recorder, mut order, mut notes, .. } = self;
        let mut loss = Loss::default();
        let (mut samples, mut recovery, mut hints, mut modules) = (0, None, None, Modules::new());
        if let Some(watch) = &watch {
            for batch in watch.batches() {
                order.push(Batch { worker: running.workers(), ..batch });
            }
        }
        if let Some(mut names) = names {
            for batch in running.batches() {
                order.push(batch);
                if order.is_due() {
                    accesses += names.release(&mut order, sink);
                }
            }
            accesses += names.release(&mut order, sink);
            if let Some(recorder) = recorder {
                recorder.note_cgroups(&names.cgroups);
            }
            samples = names.records;
            loss = names.loss;
            recovery = names.recoverer.as_ref().map(Recoverer::counts);
            hints = names.hints.map(|hints| hints.counts);
            notes.append(&mut names.failures);
            modules = names.modules.unwrap_or_default();
            modules.finish(&names.maps);
        }
        if let Some(watch) = watch {
            let rung = watch.rung();
            let (counts, said) = watch.join();
            if let Some(hints) = &mut hints {
                (hints.rung, hints.counts) = (Some(rung), counts);
                hints.missing = said.first().cloned();
                hints.late += order.late_hints;
            }
            notes.extend(said);
        }
        let totals = running.join();
        loss.add(&totals.loss);
        notes.extend(totals.notes);
        loss.late = order.late;
        Outcome { samples, accesses, events: totals.events, duration, recovery, hints, loss, notes, modules }
    }

    /// Takes what is there of hint events, as long as there is room for it.
    fn take_hints(&mut self) {
        let Some(watch) = &self.watch else { return };
        let worker = self.running.workers();
        while self.order.takes_hints(worker) {
            let Ok(batch) = watch.batches().try_recv() else { return };
            self.order.push(Batch { worker, ..batch });
        }
    }

    /// Waits for what is read in the background.
    fn take_snapshot(&mut self, wants_code: bool) {
        if let Some(snapshot) = self.snapshot.take() {
            match snapshot.join() {
                Ok(names) => self.names = Some(Names { modules: wants_code.then(Modules::new), ..names }),
                Err(_) => self.notes.push("the thread that reads procfs died: no sample could be named".to_owned()),
            }
        }
    }
}

/// What names samples, kept up to date by the side-band.
#[derive(Debug)]
struct Names {
    threads: Threads,
    maps: Maps,
    cgroups: Cgroups,
    /// Where the kernel puts no cgroup into the samples: from procfs, with the time of that reading.
    cgroup_of_thread: Option<FxHashMap<ThreadIndex, (u64, u64)>>,
    /// What holds the code, where somebody wants to know.
    modules: Option<Modules>,
    /// Where task hints were asked for.
    hints: Option<Hints>,
    /// What hints are written to, in their order.
    recorder: Option<Arc<Recorder>>,
    loss: Loss,
    /// Side-band was lost since procfs was last read.
    suspect: bool,
    /// For a source whose samples carry registers in place of an address.
    recoverer: Option<Recoverer>,
    /// What was recovered when a profile was recorded.
    recovered: Option<Recovered<File>>,
    /// Samples so far, which number their accesses.
    records: u64,
    failures: Vec<String>,
    child_pid_namespace: bool,
}

impl Names {
    /// For records that say all there is to know: mappings take at most `memory` bytes.
    fn recorded(memory: usize, child_pid_namespace: bool) -> Self {
        Self {
            threads: Threads::recorded(),
            maps: Maps::recorded(memory),
            cgroups: Cgroups::recorded(),
            cgroup_of_thread: None,
            modules: None,
            hints: None,
            recorder: None,
            loss: Loss::default(),
            suspect: false,
            recoverer: None,
            recovered: None,
            records: 0,
            failures: Vec::new(),
            child_pid_namespace,
        }
    }

    /// Reads what exists.
    fn seed(&mut self, roots: &Roots, whole_host: bool) {
        match threads::snapshot(roots) {
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

    /// Records what exists, and takes it from there.
    fn seed_recorded(&mut self, roots: &Roots, recorder: &Recorder, tids: Option<&[u32]>) {
        if let Err(error) = self.cgroups.walk() {
            self.failures.push(error.to_string());
        }
        self.failures.extend(self.cgroups.warning());
        // These are the cgroups, known already; what is taken, process by process, is all else.
        let cgroups = std::mem::replace(&mut self.cgroups, Cgroups::recorded());
        let result = recorder.snapshot(roots, tids, &cgroups, &mut |side: TimedSideBand| self.side_band(side.what));
        self.cgroups = cgroups;
        if let Err(error) = result {
            self.failures.push(error.to_string());
        }
    }

    /// Hands what is complete to the sink; gives the number of accesses.
    fn release(&mut self, order: &mut Order, sink: &mut dyn Sink) -> u64 {
        let mut accesses = 0;
        // What the sink gets next; all of it is of the time before the next side-band.
        let mut ready = Vec::with_capacity(READY);
        let mut hand_on = |ready: &mut Vec<Sample>, cgroups: &mut Cgroups| {
            if !ready.is_empty() {
                accesses += ready.len() as u64;
                sink.samples(ready, cgroups);
                ready.clear();
            }
        };
        order.release(|released| match released {
            Released::SideBand(what) => {
                hand_on(&mut ready, &mut self.cgroups);
                self.side_band(what);
            }
            Released::Sample(captured) => {
                self.captured(captured, &mut ready);
                if ready.len() >= READY {
                    hand_on(&mut ready, &mut self.cgroups);
                }
            }
        });
        hand_on(&mut ready, &mut self.cgroups);
        accesses
    }

    /// Completes one sample and makes it ready, or each access that it gives.
    fn captured(&mut self, Captured { sample, context }: &Captured, ready: &mut Vec<Sample>) {
        // Completed where it lies: a sample is large.
        ready.push(*sample);
        let Some(sample) = ready.last_mut() else { return };
        if !self.complete(sample) {
            ready.pop();
            return;
        }
        self.records += 1;
        sample.record = self.records;
        if self.recovered.is_some() {
            let sample = *sample;
            ready.pop();
            return self.joined(&sample, ready);
        }
        let Self { recoverer, maps, modules, loss, .. } = self;
        let mut locate = |maps: &mut Maps, sample: &Sample| {
            modules.as_mut().and_then(|modules| modules.locate(maps, sample.pid, sample.mode, sample.ip))
        };
        let (Some(context), Some(recoverer)) = (context, recoverer) else {
            sample.place = maps.place(sample.pid, sample.addr);
            sample.code = locate(maps, sample);
            loss.no_user_address += u64::from(sample.place.is_none());
            return;
        };
        let sample = *sample;
        ready.pop();
        recoverer.recover(&sample, context, maps, |access, maps| {
            ready.push(Sample { code: locate(maps, &access), ..access });
        });
    }

    /// Makes the accesses ready that were recovered when `sample` was recorded.
    fn joined(&mut self, sample: &Sample, ready: &mut Vec<Sample>) {
        let Self { recovered, maps, modules, .. } = self;
        let Some(recovered) = recovered else { return };
        let accesses = recovered.take(sample.time, sample.cpu, sample.tid);
        let share = 1.0 / accesses.len() as f32;
        for access in &accesses {
            ready.push(Sample {
                ip: access.ip,
                addr: access.addr,
                phys: access.phys,
                access: recovered::op(&access.op),
                size: access.size,
                method: recovered::method(&access.method),
                share,
                place: maps.place(sample.pid, access.addr),
                code: modules.as_mut().and_then(|it| it.locate(maps, sample.pid, sample.mode, access.ip)),
                ..*sample
            });
        }
    }

    fn side_band(&mut self, what: SideBand) {
        match what {
            SideBand::Comm { pid, tid, exec, comm } => {
                self.threads.comm(pid, tid, comm, exec);
                if exec {
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
                    self.maps.exit(pid);
                }
            }
            SideBand::Mmap { pid, addr, len, pgoff, file, prot, flags, filename } => {
                let (dev, ino, build_id) = match file {
                    FileId::Inode { dev, ino } => (dev, ino, None),
                    FileId::BuildId(build_id) => (0, 0, Some(BuildId::new(&build_id))),
                };
                let mapping =
                    Mapping { start: addr, len, pgoff, prot, flags, dev, ino, build_id, path: filename.into() };
                if let Some(modules) = self.modules.as_mut().filter(|_| pid == u32::MAX) {
                    modules.kernel_mapping(&mapping.path, pgoff);
                }
                self.maps.mmap(pid, &mapping);
            }
            SideBand::Cgroup { id, path } => self.cgroups.record(id, &path),
            SideBand::Hint { time, pid, tid, hint } => {
                if let Some(hints) = &mut self.hints {
                    hints.event(time, pid, tid, hint);
                }
                if let Some(recorder) = &self.recorder {
                    recorder.hint(&HintRecord { tid, pid, hint, time, snapshot: false });
                }
            }
            SideBand::Lost { .. } => self.suspect = true,
        }
    }

    /// Adds what the sampler cannot know; false where the sample is none of ours.
    fn complete(&mut self, sample: &mut Sample) -> bool {
        let known = self.threads.get(sample.pid, sample.tid).copied();
        if let Some(thread) = known.or_else(|| self.threads.resolve(sample.pid, sample.tid).copied()) {
            sample.thread = thread.index;
            sample.comm = Some(thread.comm);
        } else if self.child_pid_namespace {
            // Where another profiler samples the same software event, the kernel writes the pids of that one's namespace
            // into our samples too (seen on 6.18; perf_prepare_sample() fills the ids once for all events).
            self.loss.outside_pid_namespace += 1;
            return false;
        } else {
            self.loss.unnamed += 1;
            sample.thread = ThreadIndex::MAX;
        }
        if let Some(hints) = &mut self.hints {
            sample.hint = hints.of_sample(sample.pid, sample.tid);
        }
        if self.cgroup_of_thread.is_some() {
            sample.cgroup = self.cgroup_from_procfs(sample.pid, sample.tid, sample.time);
        }
        true
    }

    /// The cgroup as procfs had it within the last second, or when the thread was last alive; 0 where nobody knows.
    fn cgroup_from_procfs(&mut self, pid: u32, tid: u32, now: u64) -> u64 {
        let (Some(known), Some(thread)) = (&mut self.cgroup_of_thread, self.threads.get(pid, tid)) else { return 0 };
        if known.len() > MAX_CGROUPS_READ {
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
