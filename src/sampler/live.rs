//! The open events of a running capture, including those of CPUs that come online during it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustc_hash::FxHashSet;

use super::counted::Counted;
use super::cpus::{CpuEvents, Recipe, RingOf};
use super::error::SamplerError;
use super::loss::Loss;
use super::open::{Event, Sampling};
use super::opener::Opener;
use super::options::{Target, TargetKind};
use super::plan::Planned;
use super::tee::Tee;
use super::worker::{CpuRing, Inbox, Joining};
use crate::host::clock::boottime_ns;
use crate::host::{tasks, Roots};

/// How often the target's threads are listed again while their events are opened.
const TRIES: usize = 5;

/// The events. The thread that watches CPUs opens further ones; the thread that ends the capture closes them.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) recipe: Recipe,
    pub(super) cpus: BTreeMap<u32, CpuEvents>,
    ended: Ended,
    workers: Vec<Reader>,
    tee: Option<Arc<dyn Tee>>,
    ids: Ids,
    begin: Instant,
    /// The threads that were watched from the start, and when their events were open (CLOCK_BOOTTIME in ns).
    tids: Vec<u32>,
    opened: u64,
    is_stopped: bool,
}

/// A worker, and the CPUs whose rings it reads.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub(super) inbox: Arc<Inbox>,
    pub(super) cpus: Vec<u32>,
}

/// Counts of closed events.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Indexed by the plan's events.
    counted: Vec<Counted>,
    /// Lost samples, indexed by the plan's events.
    lost: Vec<u64>,
    /// Lost records of the side-band.
    side_band: u64,
}

/// The ids by which a recording identifies the events: one for each kind.
#[derive(Debug, Default)]
struct Ids {
    /// Indexed by the plan's events.
    sampling: Vec<Option<u64>>,
    side_band: Option<u64>,
}

/// Locks the events.
pub(super) fn lock(live: &Mutex<Live>) -> MutexGuard<'_, Live> {
    // At worst, a panic elsewhere leaves a CPU without events, which a note reports as offline.
    live.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live {
    /// Takes events that are open and not yet enabled.
    ///
    /// # Errors
    /// The errno of the ioctl that returns an event's id.
    pub(super) fn new(
        recipe: Recipe,
        cpus: BTreeMap<u32, CpuEvents>,
        workers: Vec<Reader>,
        tee: Option<Arc<dyn Tee>>,
    ) -> Result<Self, SamplerError> {
        let plans = recipe.events.len();
        let mut ids = Ids { sampling: vec![None; plans], side_band: None };
        if tee.is_some() {
            for sampling in cpus.values().flat_map(|cpu| &cpu.sampling) {
                if let Some(id @ None) = ids.sampling.get_mut(sampling.plan) {
                    *id = Some(sampling.event.id()?);
                }
            }
            let side_band = cpus.values().find_map(|cpu| cpu.side_band.first());
            ids.side_band = side_band.map(|event| event.id()).transpose()?;
        }
        let ended = Ended { counted: vec![Counted::default(); plans], lost: vec![0; plans], side_band: 0 };
        let tids = match &recipe.options.target {
            Target::Tasks { tids, .. } => tids.clone(),
            Target::System | Target::Cgroup(_) => Vec::new(),
        };
        let (begin, opened) = (Instant::now(), boottime_ns());
        Ok(Self { recipe, cpus, ended, workers, tee, ids, begin, tids, opened, is_stopped: false })
    }

    /// Stops all events, and prevents that more are opened.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
        self.cpus.values().for_each(CpuEvents::disable);
    }

    /// True after [`Live::stop`].
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// The events that sample.
    pub(super) fn sampling(&self) -> impl Iterator<Item = &Sampling> {
        self.cpus.values().flat_map(|cpu| &cpu.sampling)
    }

    /// The counts of an event of the plan, on all CPUs.
    pub(super) fn counted(&self, plan: usize) -> Counted {
        let open = self.sampling().filter(|sampling| sampling.plan == plan);
        let mut counted = Counted::of(open.filter_map(|sampling| sampling.event.read().ok()));
        if let Some(ended) = self.ended.counted.get(plan) {
            counted.add(ended);
        }
        counted
    }

    /// Samples in the AUX areas of CPUs.
    pub(super) fn in_aux(&self, cpus: &[u32]) -> u64 {
        let owners = self.cpus.iter().filter(|(cpu, _)| cpus.contains(cpu)).map(|(_, events)| &events.owners);
        owners.map(|owners| owners.in_aux.load(Ordering::Relaxed)).sum()
    }

    /// The number of pinned events of a plan without a counter.
    pub(super) fn refused(&self, plan: usize) -> usize {
        self.sampling().filter(|sampling| sampling.plan == plan && sampling.event.is_refused()).count()
    }

    /// Lost samples by the ids that the recording uses.
    pub(super) fn lost(&self) -> Vec<(u64, u64)> {
        let ended = self.ids.sampling.iter().zip(&self.ended.lost);
        let ended = ended.filter(|(_, &lost)| lost > 0).filter_map(|(id, &lost)| Some(((*id)?, lost)));
        self.sampling().filter_map(|sampling| sampling.event.lost()).chain(ended).collect()
    }

    /// What each worker lost so far.
    pub(super) fn losses_of_workers(&self) -> impl Iterator<Item = Loss> + '_ {
        self.workers.iter().map(|reader| reader.inbox.loss())
    }

    /// Lost records of the side-band.
    pub(super) fn lost_side_band(&self) -> u64 {
        let open = self.cpus.values().flat_map(|cpu| &cpu.side_band);
        open.filter_map(|event| event.read().ok()).map(|value| value.lost).sum::<u64>() + self.ended.side_band
    }

    /// How long the events that end with the CPU have been enabled, in ns; `None` if there are none, or if they are not
    /// enabled all the time.
    pub(super) fn enabled(&self, cpu: u32) -> Option<u64> {
        let events = self.cpus.get(&cpu)?;
        let event = match self.recipe.target() {
            TargetKind::System => events.side_band.first()?,
            // The events of snapshots watch the whole CPU whatever the target. The events of a cgroup are enabled only
            // while it is on the CPU.
            _ if self.recipe.snapshots.is_some() => &events.sampling.first()?.event,
            _ => return None,
        };
        Some(event.read().ok()?.time_enabled)
    }

    /// For each CPU, this duration plus the time before its events were opened.
    pub(super) fn enabled_until(&self) -> Vec<(u32, u64)> {
        let until = |(&cpu, events): (&u32, &CpuEvents)| Some((cpu, self.enabled(cpu)?.saturating_add(events.since)));
        self.cpus.iter().filter_map(until).collect()
    }

    /// Opens and enables the events of a CPU that has come online; false after the end of the capture.
    ///
    /// # Errors
    /// [`SamplerError`]; the events of the CPU are then unchanged.
    pub(super) fn open(&mut self, cpu: u32) -> Result<bool, SamplerError> {
        if self.is_stopped {
            return Ok(false);
        }
        match self.cpus.remove(&cpu) {
            Some(events) => {
                let (events, result) = self.open_again(cpu, events);
                self.cpus.insert(cpu, events);
                result?;
            }
            None => self.open_new(cpu)?,
        }
        Ok(true)
    }

    /// Replaces the events that ended when the CPU went offline. Its ring stays in use, so the remaining records are
    /// read in order.
    fn open_again(&mut self, cpu: u32, mut events: CpuEvents) -> (CpuEvents, Result<(), SamplerError>) {
        // Events that watch tasks end with the tasks, not with the CPU.
        let of_tasks = matches!(self.recipe.target(), TargetKind::Tasks { .. });
        let opener = Opener::new(&self.recipe.options, self.recipe.batched);
        let watches = if of_tasks { Vec::new() } else { opener.watches() };
        let new = match self.recipe.open(&opener, &watches, cpu, RingOf::Ended(&events.owners)) {
            Ok((new, _)) => new,
            Err(error) => return (events, Err(error)),
        };
        if let Err(error) = self.begin(&new, Vec::new()) {
            return (events, Err(error));
        }
        // Only the events that watch the CPU ended with it: scheduling events and snapshots.
        let has_snapshots = self.recipe.snapshots.is_some();
        let is_of_tasks = |event: &Planned| if has_snapshots { event.is_aside } else { !event.spec.is_sched };
        let goes_on = |plan: usize| of_tasks && self.recipe.events.get(plan).is_some_and(is_of_tasks);
        for sampling in std::mem::replace(&mut events.sampling, new.sampling) {
            if goes_on(sampling.plan) {
                events.sampling.push(sampling);
            } else {
                self.ended.add(&sampling.event, sampling.plan);
            }
        }
        if !of_tasks {
            for event in std::mem::replace(&mut events.side_band, new.side_band) {
                self.ended.side_band += event.read().map_or(0, |value| value.lost);
            }
            events.clocks = new.clocks;
        }
        events.since = since(self.begin);
        (events, Ok(()))
    }

    fn open_new(&mut self, cpu: u32) -> Result<(), SamplerError> {
        self.recipe.add_cpu(cpu)?;
        let mut known = FxHashSet::default();
        self.list_tasks(&mut known);
        let opener = Opener::new(&self.recipe.options, self.recipe.batched);
        let (mut events, rings) = self.recipe.open(&opener, &opener.watches(), cpu, RingOf::New)?;
        // Threads and processes that a watched thread creates from now on inherit its events.
        for _ in 0..TRIES {
            if !self.list_tasks(&mut known) {
                break;
            }
            let opener = Opener::new(&self.recipe.options, self.recipe.batched);
            let watches = opener.watches();
            let (more, _) = self.recipe.open(&opener, &watches, cpu, RingOf::Open(&events.owners))?;
            events.append(more);
        }
        self.begin(&events, rings)?;
        events.since = since(self.begin);
        self.cpus.insert(cpu, events);
        Ok(())
    }

    /// Announces the new events to the recording and to a worker, then enables them.
    fn begin(&mut self, new: &CpuEvents, rings: Vec<CpuRing>) -> Result<(), SamplerError> {
        let wake = self.waking(new);
        let Some(cpu) = wake.first().map(|event| event.cpu) else { return Ok(()) };
        if let Some(tee) = &self.tee {
            for Sampling { event, plan, .. } in &new.sampling {
                tee.opened(event.id()?, self.ids.sampling.get(*plan).copied().flatten());
            }
            for event in &new.side_band {
                tee.opened(event.id()?, self.ids.side_band);
            }
        }
        let of_cpu = self.workers.iter().position(|worker| worker.cpus.contains(&cpu));
        let least =
            || (0..self.workers.len()).min_by_key(|&at| self.workers.get(at).map_or(0, |worker| worker.cpus.len()));
        if let Some(worker) = of_cpu.or_else(least).and_then(|at| self.workers.get_mut(at)) {
            if of_cpu.is_none() {
                worker.cpus.push(cpu);
            }
            // Before the first record, so that no record is older than what the worker has declared complete.
            let buffered = self.recipe.buffered(new);
            worker.inbox.put(Joining { cpu, rings, wake, buffered });
        }
        if self.recipe.target() == (TargetKind::Tasks { enable_on_exec: true }) && !self.has_begun() {
            // Exec enables the other events.
            return self.recipe.enable_at_once(new);
        }
        new.enable()
    }

    /// The events whose file descriptors wake the reader: one for each ring.
    fn waking(&self, new: &CpuEvents) -> Vec<Arc<Event>> {
        let first = |which: fn(&Planned) -> bool| {
            let is = |sampling: &&Sampling| self.recipe.events.get(sampling.plan).is_some_and(which);
            new.sampling.iter().find(is).map(|sampling| &sampling.event)
        };
        let memory = first(|event| !event.is_beside());
        let beside = [first(|event| event.spec.is_sched), first(|event| event.is_aside)];
        memory.or(new.side_band.first()).into_iter().chain(beside.into_iter().flatten()).cloned().collect()
    }

    /// True if the task has called exec, which enabled its events.
    fn has_begun(&self) -> bool {
        let mut side_band = self.cpus.values().flat_map(|cpu| &cpu.side_band);
        side_band.any(|event| event.read().is_ok_and(|value| value.time_enabled > 0))
    }

    /// Replaces the list of threads to watch by those threads of the target that are not `known`; false if there are
    /// none. A process is not found if its parent has ended.
    fn list_tasks(&mut self, known: &mut FxHashSet<u32>) -> bool {
        let Target::Tasks { tids, .. } = &mut self.recipe.options.target else { return false };
        let roots = Roots { proc: self.recipe.options.proc.clone(), ..Roots::default() };
        // The id may belong to another thread since then.
        self.tids.retain(|&tid| tasks::began(&roots, tid, tid).is_some_and(|began| began <= self.opened));
        let processes = tasks::with_descendants(&roots, &self.tids);
        let threads = processes.iter().flat_map(|&pid| tasks::of_process(&roots, pid)).map(|task| task.tid);
        *tids = threads.filter(|&tid| known.insert(tid)).collect();
        !tids.is_empty()
    }
}

impl Ended {
    fn add(&mut self, event: &Event, plan: usize) {
        // Disabling fails only for an event that ended with its CPU.
        let _ = event.disable();
        let Ok(value) = event.read() else { return };
        if let (Some(counted), Some(lost)) = (self.counted.get_mut(plan), self.lost.get_mut(plan)) {
            *lost = lost.saturating_add(value.lost);
            counted.add(&Counted::of(std::iter::once(value)));
        }
    }
}

/// ns since `begin`.
fn since(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
