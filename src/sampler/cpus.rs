//! The events of each CPU: how they are opened, and which ring they write into.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::attr::Features;
use super::choose;
use super::clock::{CountClock, Offset};
use super::error::SamplerError;
use super::open::{Event, EventError, EventScope, Sampling};
use super::opener::Opener;
use super::options::{SamplerOptions, Target, TargetKind};
use super::plan::Planned;
use super::ring::Ring;
use super::spe::midr_in;
use super::worker::{CpuAux, CpuRing, RingKind};
use crate::bpf::{DsqOutputs, SnapshotOutputs};
use crate::host::limits;
use crate::sample::Source;
use scxprof_perf::record::Layout;
use scxprof_perf::spe::Cores;
use scxprof_perf::tracepoint::{self, SchedDecoder};

/// The least pages of an AUX area (`arm_spe_pmu_setup_aux()` in drivers/perf/arm_spe_pmu.c).
const LEAST_AUX: usize = 2;

/// How the events of every CPU are opened, with the features that the kernel accepted.
#[derive(Debug)]
pub(super) struct Recipe {
    /// The requested options, with the CPUs that are sampled.
    pub(super) options: SamplerOptions,
    /// The times in the rings are those of the scheduler's clock.
    pub(super) batched: bool,
    /// The plan's events.
    pub(super) events: Vec<Planned>,
    /// How to decode scheduling events.
    pub(super) sched: Option<Arc<SchedDecoder>>,
    pub(super) features: Features,
    pub(super) side_features: Features,
    /// The features of the event that samples call stacks beside memory.
    pub(super) aside_features: Features,
    pub(super) mmap_pages: usize,
    /// Connects the program that reads the memory around the registers, if there is one.
    pub(super) snapshots: Option<Arc<SnapshotOutputs>>,
    /// Connects the programs that observe dispatch queues, if there are any.
    pub(super) dsqs: Option<Arc<DsqOutputs>>,
}

/// The events that own the rings of a CPU. An event may have ended when its CPU went offline; its ring stays in use.
///
/// Scheduling events have a separate ring, so that a burst of them causes no loss of memory samples.
#[derive(Debug, Clone)]
pub(super) struct Owners {
    pub(super) memory: Arc<Event>,
    pub(super) sched: Option<Arc<Event>>,
    /// Call stacks beside memory have a separate ring too, because they are long.
    pub(super) aside: Option<Arc<Event>>,
    /// Number of samples in the AUX area so far.
    pub(super) in_aux: Arc<AtomicU64>,
}

impl Owners {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Event>> {
        [Some(&self.memory), self.sched.as_ref(), self.aside.as_ref()].into_iter().flatten()
    }
}

/// The open events of one CPU.
#[derive(Debug)]
pub(super) struct CpuEvents {
    pub(super) owners: Owners,
    pub(super) sampling: Vec<Sampling>,
    pub(super) side_band: Vec<Arc<Event>>,
    /// The events that call the program that reads memory, unless the program is attached to a tracepoint.
    pub(super) clocks: Vec<Event>,
    /// When the events were enabled: ns since those of the capture's start were enabled.
    pub(super) since: u64,
}

/// The rings that the events of a CPU write into.
#[derive(Debug, Clone, Copy)]
pub(super) enum RingOf<'a> {
    /// New rings.
    New,
    /// The rings of events that ended when the CPU went offline.
    Ended(&'a Owners),
    /// The rings of events that are still open; the new events are for additional tasks.
    Open(&'a Owners),
}

/// What has been opened so far.
#[derive(Default)]
struct Opening {
    owner: Option<Arc<Event>>,
    sched_owner: Option<Arc<Event>>,
    aside_owner: Option<Arc<Event>>,
    in_aux: Arc<AtomicU64>,
    rings: Vec<CpuRing>,
    sampling: Vec<Sampling>,
    side_band: Vec<Arc<Event>>,
    clocks: Vec<Event>,
}

impl Recipe {
    /// The kind of target.
    pub(super) fn target(&self) -> TargetKind {
        match self.options.target {
            Target::Tasks { enable_on_exec, .. } => TargetKind::Tasks { enable_on_exec },
            Target::System => TargetKind::System,
            Target::Cgroup(_) => TargetKind::Cgroup,
        }
    }

    /// Adds a CPU that has come online.
    pub(super) fn add_cpu(&mut self, cpu: u32) -> Result<(), SamplerError> {
        let options = &mut self.options;
        if options.cpus.contains(&cpu) {
            return Ok(());
        }
        let has_kinds = matches!(options.source, Source::Pebs | Source::Spe);
        let there = if has_kinds {
            // Cores of another kind have another PMU.
            let alone = SamplerOptions { cpus: vec![cpu], ..options.clone() };
            choose::plan(&alone, self.batched)?.events.into_iter().map(|event| event.spec.name).collect()
        } else {
            Vec::new()
        };
        options.cpus.push(cpu);
        for event in &mut self.events {
            if !has_kinds || there.contains(&event.spec.name) {
                event.cpus.push(cpu);
            }
        }
        Ok(())
    }

    /// Opens the events of `cpu` for `watches`, disabled. With [`RingOf::New`], returns rings to read.
    pub(super) fn open(
        &self,
        opener: &Opener<'_>,
        watches: &[EventScope<'_>],
        cpu: u32,
        ring: RingOf<'_>,
    ) -> Result<(CpuEvents, Vec<CpuRing>), SamplerError> {
        let mut opening = match ring {
            RingOf::New => Opening::default(),
            RingOf::Ended(owners) | RingOf::Open(owners) => Opening {
                owner: Some(Arc::clone(&owners.memory)),
                sched_owner: owners.sched.clone(),
                aside_owner: owners.aside.clone(),
                in_aux: Arc::clone(&owners.in_aux),
                ..Opening::default()
            },
        };
        // Threads can end between listing and opening; it is an error only if all of them have ended.
        let several = watches.len() > 1;
        let mut is_watched = false;
        let here = || self.events.iter().enumerate().filter(|(_, event)| event.cpus.contains(&cpu));
        let plans = || here().filter(|(_, event)| !event.is_beside());
        if let (Some(snapshots), RingOf::New | RingOf::Ended(_)) = (&self.snapshots, ring) {
            // All snapshots of a CPU go to one event, whatever is watched.
            if let Some((plan, Planned { spec, .. })) = plans().next() {
                let (event, layout) = opener.snapshot_output(spec, self.features, self.mmap_pages, snapshots, cpu)?;
                let event = Arc::new(event);
                self.give_ring(&mut opening, RingKind::Source, &event, layout)?;
                opening.sampling.push(Sampling { event, plan, last: 0 });
            }
        }
        for &watch in watches {
            for (plan, Planned { spec, .. }) in plans() {
                if let Some(snapshots) = &self.snapshots {
                    match opener.clock(spec, self.features, snapshots, watch, cpu) {
                        Err(SamplerError::NoSuchTask { .. }) if several => {}
                        clock => opening.clocks.extend(clock?),
                    }
                    continue;
                }
                let (event, layout) = match opener.sampling(spec, self.features, self.mmap_pages, watch, cpu) {
                    Err(SamplerError::NoSuchTask { .. }) if several => continue,
                    opened => opened?,
                };
                let event = Arc::new(event);
                self.give_ring(&mut opening, RingKind::Source, &event, layout)?;
                // When a CPU comes back, the count of its AUX area continues, while that of the new event begins at 0.
                let last = spec.aux.map_or(0, |_| opening.in_aux.load(Ordering::Relaxed));
                opening.sampling.push(Sampling { event, plan, last });
            }
            for (plan, Planned { spec, .. }) in here().filter(|(_, event)| event.is_aside) {
                let (event, layout) = match opener.sampling(spec, self.aside_features, self.mmap_pages, watch, cpu) {
                    Err(SamplerError::NoSuchTask { .. }) if several => continue,
                    // Without this event, the CPU's memory samples are still taken.
                    Err(SamplerError::NoSuchEvent { .. }) => continue,
                    opened => opened?,
                };
                let event = Arc::new(event);
                self.give_ring(&mut opening, RingKind::Aside, &event, layout)?;
                opening.sampling.push(Sampling { event, plan, last: 0 });
            }
            // The side-band also follows tasks on CPUs without a sampling event.
            let (side, layout) = match opener.side_band(self.side_features, self.mmap_pages, watch, cpu) {
                Err(SamplerError::NoSuchTask { .. }) if several => continue,
                opened => opened?,
            };
            let side = Arc::new(side);
            self.give_ring(&mut opening, RingKind::Source, &side, layout)?;
            opening.side_band.push(side);
            is_watched = true;
        }
        // Scheduling events watch the whole CPU whatever the target, so additional tasks need no further ones.
        if !matches!(ring, RingOf::Open(_)) {
            for (plan, Planned { spec, .. }) in here().filter(|(_, event)| event.spec.is_sched) {
                let dsqs = self.dsqs.as_deref().filter(|_| spec.name == tracepoint::DSQ);
                let (event, layout) = match dsqs {
                    Some(dsqs) => opener.dsq_output(spec, self.features, self.mmap_pages, dsqs, cpu)?,
                    None => opener.sched(spec, self.features, self.mmap_pages, cpu)?,
                };
                let event = Arc::new(event);
                // Without a decoder there are no such events.
                let Some(decoder) = self.sched.clone() else { continue };
                self.give_ring(&mut opening, RingKind::Sched(decoder), &event, layout)?;
                opening.sampling.push(Sampling { event, plan, last: 0 });
            }
        }
        let Opening { owner, sched_owner, aside_owner, in_aux, rings: new, sampling, side_band, clocks } = opening;
        match (owner, &self.options.target) {
            (Some(memory), _) if is_watched || !matches!(ring, RingOf::New) => {
                let owners = Owners { memory, sched: sched_owner, aside: aside_owner, in_aux };
                Ok((CpuEvents { owners, sampling, side_band, clocks, since: 0 }, new))
            }
            (_, Target::Tasks { tids, .. }) => {
                Err(SamplerError::NoSuchTask { pid: tids.first().copied().unwrap_or(0) })
            }
            _ => Err(SamplerError::NoSuchCpu { cpu }),
        }
    }

    /// Enables the events that watch no task; exec enables the others.
    pub(super) fn enable_at_once(&self, events: &CpuEvents) -> Result<(), SamplerError> {
        let is = |plan: usize, which: fn(&Planned) -> bool| self.events.get(plan).is_some_and(which);
        for sampling in &events.sampling {
            // Events of tasks produce the snapshots.
            let is_of_snapshots = self.snapshots.is_some() && !is(sampling.plan, |event| event.is_aside);
            if is_of_snapshots || is(sampling.plan, |event| event.spec.is_sched) {
                sampling.event.enable()?;
            }
        }
        Ok(())
    }

    /// Redirects an event into a ring of this kind; the first event becomes the owner of a new ring.
    fn give_ring(
        &self,
        opening: &mut Opening,
        kind: RingKind,
        event: &Arc<Event>,
        layout: Layout,
    ) -> Result<(), SamplerError> {
        let owner = match kind {
            RingKind::Source => &mut opening.owner,
            RingKind::Sched(_) => &mut opening.sched_owner,
            RingKind::Aside => &mut opening.aside_owner,
        };
        if let Some(owner) = owner {
            return Ok(event.output_to(owner)?);
        }
        let (ring, offset) = self.map(event)?;
        let mut ring = CpuRing { ring, layout, corrupt: false, offset, kind, aux: None };
        if self.has_aux(event) {
            ring.aux = Some(self.map_aux(event, &mut ring.ring, &opening.in_aux)?);
        }
        opening.rings.push(ring);
        *owner = Some(Arc::clone(event));
        Ok(())
    }

    /// Maps the ring of an event, and reads the conversion of its times to CLOCK_MONOTONIC.
    fn map(&self, event: &Event) -> Result<(Ring, Option<Offset>), SamplerError> {
        let ring = event.ring(self.mmap_pages).map_err(|source| self.not_mapped(source))?;
        let offset = if self.batched { Offset::now(&ring) } else { None };
        Ok((ring, offset))
    }

    /// Maps the AUX area of an event, with the size of its ring.
    fn map_aux(&self, event: &Event, ring: &mut Ring, count: &Arc<AtomicU64>) -> Result<Box<CpuAux>, SamplerError> {
        event.aux_area(ring, self.mmap_pages.max(LEAST_AUX)).map_err(|source| self.not_mapped(source))?;
        let no_clock = || SamplerError::NoCountClock { event: event.name.to_string(), cpu: event.cpu };
        let clock = CountClock::now(ring).ok_or_else(no_clock)?;
        let path = format!("devices/system/cpu/cpu{}/regs/identification/midr_el1", event.cpu);
        // Without the MIDR, the data sources that are specific to a core cannot be decoded.
        let midr = std::fs::read_to_string(self.options.sys.join(path)).ok();
        let cores = midr.and_then(|text| midr_in(&text)).map_or(Cores::Other, Cores::of);
        let child = self.options.child_pid_namespace;
        Ok(Box::new(CpuAux::new(event.cpu, event.id()?, cores, clock, child, Arc::clone(count))))
    }

    fn not_mapped(&self, source: EventError) -> SamplerError {
        if source.errno() == libc::EPERM {
            let mlock_kb = limits::sysctl(&self.options.proc, "perf_event_mlock_kb").unwrap_or(0);
            SamplerError::NoLockedMemory { source, mlock_kb, memlock: limits::memlock_limit().kib() }
        } else {
            source.into()
        }
    }

    /// True for an event with an AUX area.
    pub(super) fn has_aux(&self, event: &Event) -> bool {
        self.events.iter().any(|planned| planned.spec.aux.is_some() && planned.spec.kind == event.attr.type_)
    }

    /// The events of a CPU that have AUX areas.
    pub(super) fn buffered(&self, events: &CpuEvents) -> Vec<Arc<Event>> {
        let sampling = events.sampling.iter().map(|sampling| &sampling.event);
        sampling.filter(|event| self.has_aux(event)).cloned().collect()
    }
}

impl CpuEvents {
    /// Enables all events, the side-band first, so that the name and the mappings of a thread are known before its
    /// first sample.
    pub(super) fn enable(&self) -> Result<(), SamplerError> {
        for event in &self.side_band {
            event.enable()?;
        }
        self.enable_sampling()?;
        for clock in &self.clocks {
            clock.enable()?;
        }
        Ok(())
    }

    /// Enables the events that sample.
    pub(super) fn enable_sampling(&self) -> Result<(), SamplerError> {
        for sampling in &self.sampling {
            sampling.event.enable()?;
        }
        Ok(())
    }

    /// Stops all events.
    pub(super) fn disable(&self) {
        let sampling = self.sampling.iter().map(|sampling| &*sampling.event);
        for event in sampling.chain(self.side_band.iter().map(|event| &**event)).chain(&self.clocks) {
            // Disabling fails only if the event is gone, that is, has stopped.
            let _ = event.disable();
        }
    }

    /// Adds events that write into the same ring.
    pub(super) fn append(&mut self, mut more: Self) {
        self.sampling.append(&mut more.sampling);
        self.side_band.append(&mut more.side_band);
        self.clocks.append(&mut more.clocks);
    }
}
