//! Opens the events of one request, with the features that this kernel accepts, and explains why it rejects the others.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use perf_event_open_sys::bindings as sys;

use super::attr::{self, EventSpec, Exclude, Feature, Features, RefusedFeature, Scope};
use super::choose;
use super::error::SamplerError;
use super::open::{self, Event, EventError, EventScope, Privilege};
use super::options::{SamplerOptions, Target};
use super::plan::{AddressFrom, Plan, Planned};
use super::{probe, tracepoints};
use crate::bpf::{Clockwork, DsqOutputs, Dsqs, Refusal, SnapshotOutputs, Snapshots, Step, Watched};
use crate::host::limits::{self, Limit};
use crate::host::{topology, Roots};
use crate::sample::Source;
use scxprof_perf::record::Layout;
use scxprof_perf::tracepoint;

/// The dummy event that provides tasks, mappings and cgroups.
const SIDE_BAND: &str = "dummy (side-band)";

/// A plan, and which of its features this kernel accepts.
pub(super) struct Choice {
    pub(super) plan: Plan,
    pub(super) features: Features,
    pub(super) side_features: Features,
    pub(super) aside_features: Features,
    /// The features that the kernel rejected.
    pub(super) refused: Vec<RefusedFeature>,
}

/// Opens events for one request, and turns the kernel's errors into messages with a remedy.
pub(super) struct Opener<'a> {
    pub(super) options: &'a SamplerOptions,
    /// The number of files needed.
    pub(super) needed: u64,
    /// Use only what large PEBS allows: fewer fields, and the scheduler's clock.
    batched: bool,
}

impl<'a> Opener<'a> {
    /// `batched` is the requested value, or false if batching does not work here.
    pub(super) fn new(options: &'a SamplerOptions, batched: bool) -> Self {
        let tasks = match &options.target {
            Target::Tasks { tids, .. } => tids.len(),
            Target::System | Target::Cgroup(_) => 1,
        };
        // Loads with a leader, stores, side-band.
        let events = match (options.source, options.hardware.stores) {
            (Source::Pebs, true) => 4,
            (Source::Pebs, false) => 3,
            _ => 2,
        };
        let sched = if self::is_sched(options) { tracepoint::SCHED.len() + tracepoint::IRQ.len() } else { 0 };
        let events = events + usize::from(options.stacks.is_some() && options.source != Source::Stacks);
        let needed = open::files_needed(options.cpus.len() * tasks, events) + (options.cpus.len() * sched) as u64;
        if options.raise_open_files {
            // If the limit cannot be raised, opening an event fails with both limits in the message.
            let _ = limits::raise_file_limit(needed);
        }
        Self { options, needed, batched: batched && options.source == Source::Pebs }
    }

    /// Fails early if the threads need more files than the limit allows: opening most of the events in vain takes
    /// seconds.
    pub(super) fn check_threads(&self) -> Result<(), SamplerError> {
        let (least, limit) = ((self.threads() * self.cpus_watched()) as u64, limits::file_limit());
        if self.threads() > 1 && least > limit.soft {
            return Err(self.too_many_threads(limit));
        }
        Ok(())
    }

    fn too_many_threads(&self, limit: Limit) -> SamplerError {
        let (threads, cpus, needed) = (self.threads(), self.cpus_watched(), self.needed);
        SamplerError::TooManyThreads { threads, cpus, needed, soft: limit.soft, hard: limit.hard }
    }

    /// The number of threads that are watched separately.
    fn threads(&self) -> usize {
        match &self.options.target {
            Target::Tasks { tids, .. } => tids.len(),
            Target::System | Target::Cgroup(_) => 0,
        }
    }

    fn cpus_watched(&self) -> usize {
        self.options.cpus.iter().collect::<BTreeSet<_>>().len()
    }

    /// What the events of each CPU watch.
    pub(super) fn watches(&self) -> Vec<EventScope<'_>> {
        match &self.options.target {
            Target::System => vec![EventScope::All],
            Target::Tasks { tids, .. } => tids.iter().map(|&tid| EventScope::Task(tid)).collect(),
            Target::Cgroup(directory) => vec![EventScope::Cgroup(directory)],
        }
    }

    fn scope(&self) -> Scope {
        let sched_clock = self.batched;
        match self.options.target {
            Target::Tasks { enable_on_exec, .. } => Scope { inherit: true, enable_on_exec, sched_clock },
            Target::System | Target::Cgroup(_) => Scope { sched_clock, ..Scope::default() },
        }
    }

    /// The attr of a sampling event.
    pub(super) fn attr(&self, spec: &EventSpec, features: Features, pages: usize) -> sys::perf_event_attr {
        attr::sampling(spec, features, self.scope(), attr::watermark(pages))
    }

    /// The attr of the side-band. Records of SPE may lack the thread; it is then found by the context switches.
    fn side_attr(&self, features: Features, pages: usize) -> sys::perf_event_attr {
        attr::side_band(features, self.scope(), attr::watermark(pages), self.options.source == Source::Spe)
    }

    /// Chooses the events, and negotiates features with the kernel by opening events and closing them again.
    pub(super) fn choose(&self) -> Result<Choice, SamplerError> {
        let mut plan = choose::plan(self.options, self.batched)?;
        self.check_threads()?;
        let mut features = self.options.features;
        let mut said = Vec::new();
        let is_all_sched = plan.events.iter().all(|event| event.spec.is_sched);
        let mut aside_features = self.options.features;
        for event in plan.events.iter_mut().filter(|event| event.is_aside) {
            let taken = self.try_each(&event.cpus.clone(), |watch, cpu| self.take(event, watch, cpu))?;
            aside_features = taken.0;
        }
        // Scheduling events have few fields, and must not limit those of the others.
        for event in plan.events.iter_mut().filter(|event| is_all_sched || !event.is_beside()) {
            let (taken, refused) = self.try_each(&event.cpus.clone(), |watch, cpu| self.take(event, watch, cpu))?;
            features = features.and(taken);
            said.extend(refused);
            if let (Some(config), Some(&cpu)) = (event.probe, event.cpus.first()) {
                probe::counts(&EventSpec { config, ..event.spec.clone() }, features, cpu)?;
            }
        }
        let precise = plan.events.iter().filter(|event| event.spec.precise == 1);
        plan.notes
            .extend(precise.map(|event| format!("{}: precise_ip 1 is the most that works here", event.spec.name)));
        let side_features = self.try_each(&self.options.cpus, |watch, cpu| {
            let open = |features| Event::open(SIDE_BAND, &self.side_attr(features, 1), watch, cpu);
            let negotiated = attr::negotiate(self.options.features, open, EventError::errno);
            negotiated.map(|(_, features, _)| features).map_err(|error| self.explain(error, watch, false))
        })?;
        let negotiated = plan.events.iter().filter(|event| is_all_sched || !event.is_beside());
        let wanted = negotiated.fold(Features::all(), |wanted, event| wanted.and(event.spec.wants));
        let refused = |feature| {
            let refused = said.iter().find(|refused| refused.feature == feature).copied();
            // Features that the options exclude were not requested.
            (wanted.has(feature) && !features.has(feature))
                .then(|| refused.unwrap_or(RefusedFeature { feature, errno: None }))
        };
        let refused = Feature::ALL.into_iter().filter_map(refused).collect();
        Ok(Choice { plan, features, side_features, aside_features, refused })
    }

    /// Tries the CPUs until one is online, and on it the threads until one has not ended.
    fn try_each<T>(
        &self,
        cpus: &[u32],
        mut attempt: impl FnMut(EventScope<'_>, u32) -> Result<T, SamplerError>,
    ) -> Result<T, SamplerError> {
        let mut last = SamplerError::NoSuchTask { pid: 0 };
        for &cpu in cpus {
            for watch in self.watches() {
                match attempt(watch, cpu) {
                    Err(error @ SamplerError::NoSuchTask { .. }) => last = error,
                    Err(error @ (SamplerError::NoSuchCpu { .. } | SamplerError::NoSuchEvent { .. })) => {
                        last = error;
                        break;
                    }
                    done => return done,
                }
            }
            if matches!(last, SamplerError::NoSuchTask { .. }) {
                break;
            }
        }
        Err(last)
    }

    /// The accepted features of an event, and its precision, which is lowered to an accepted value, but not to 0.
    fn take(
        &self,
        event: &mut Planned,
        watch: EventScope<'_>,
        cpu: u32,
    ) -> Result<(Features, Vec<RefusedFeature>), SamplerError> {
        let wanted = self.options.features.and(event.spec.wants);
        loop {
            let spec = &event.spec;
            let open = |features| self.open(spec, features, 1, watch, cpu).map(|(event, _)| event);
            let error = match attr::negotiate(wanted, open, EventError::errno) {
                Ok((_, features, refused)) => return Ok((features, refused)),
                Err(error) => error,
            };
            let imprecise = matches!(error.errno(), libc::EINVAL | libc::EOPNOTSUPP);
            match spec.precise {
                2.. if imprecise => event.spec.precise -= 1,
                0 if imprecise && event.probe.is_some() && self.opens_for_all(event, watch, cpu) => {
                    return Err(SamplerError::NoTaskEvents { source: error });
                }
                1 if imprecise => return Err(SamplerError::Imprecise { source: error }),
                _ => return Err(self.explain(error, watch, spec.exclude == Exclude::Nothing)),
            }
        }
    }

    /// For a PMU that rejects an event of a task or a cgroup: true if it accepts the event for a whole CPU.
    fn opens_for_all(&self, event: &Planned, watch: EventScope<'_>, cpu: u32) -> bool {
        let wanted = self.options.features.and(event.spec.wants);
        let open = |features| self.open(&event.spec, features, 1, EventScope::All, cpu);
        !matches!(watch, EventScope::All) && attr::negotiate(wanted, open, EventError::errno).is_ok()
    }

    fn open(
        &self,
        spec: &EventSpec,
        features: Features,
        pages: usize,
        watch: EventScope<'_>,
        cpu: u32,
    ) -> Result<(Event, Layout), EventError> {
        Event::sampling(spec, features, self.scope(), pages, watch, cpu)
    }

    /// Opens a sampling event.
    pub(super) fn sampling(
        &self,
        spec: &EventSpec,
        features: Features,
        pages: usize,
        watch: EventScope<'_>,
        cpu: u32,
    ) -> Result<(Event, Layout), SamplerError> {
        self.open(spec, features, pages, watch, cpu)
            .map_err(|error| self.explain(error, watch, spec.exclude == Exclude::Nothing))
    }

    /// Opens a scheduling event, which watches the whole CPU.
    pub(super) fn sched(
        &self,
        spec: &EventSpec,
        features: Features,
        pages: usize,
        cpu: u32,
    ) -> Result<(Event, Layout), SamplerError> {
        let scope = Scope { inherit: false, enable_on_exec: false, ..self.scope() };
        let opened = Event::sampling(spec, features, scope, pages, EventScope::All, cpu);
        opened.map_err(|error| self.explain(error, EventScope::All, true))
    }

    /// Loads the program that takes snapshots for such samples; `None` if none were requested or none would help.
    pub(super) fn snapshots(&self, address_from: &AddressFrom) -> Option<Result<Snapshots, Refusal>> {
        let clockwork = match address_from {
            AddressFrom::UserByMode => Clockwork::Clock,
            AddressFrom::UserByCallchain(_) => Clockwork::Tick,
            _ => return None,
        };
        if !self.options.snapshots {
            return None;
        }
        let refused = |reason: &str| {
            Err(Refusal { what: "memory around the registers", step: Step::Open, errno: 0, reason: reason.to_owned() })
        };
        let watched = match &self.options.target {
            Target::System => Watched::Everything,
            Target::Tasks { .. } if self.options.child_pid_namespace && clockwork == Clockwork::Tick => {
                return Some(refused("in a pid namespace tasks have other numbers"));
            }
            Target::Tasks { tids, .. } => Watched::Tasks(tids),
            Target::Cgroup(directory) if clockwork == Clockwork::Tick && !is_unified(directory) => {
                return Some(refused("it can watch cgroups of the unified hierarchy (v2) only"));
            }
            Target::Cgroup(directory) => Watched::Cgroup(directory),
        };
        Some(Snapshots::load(clockwork, &watched, self.options.hardware.kernel, self.cpus(), &self.options.proc))
    }

    /// A number above that of every possible CPU: the maps have an entry for each CPU that may come online.
    fn cpus(&self) -> u32 {
        let roots = Roots { sys: self.options.sys.clone(), ..Roots::default() };
        let possible = self.options.all_cpus.then(|| topology::possible_cpus(&roots).ok()).flatten();
        let last = possible.iter().flatten().chain(&self.options.cpus).max();
        last.map_or(1, |last| last.saturating_add(1))
    }

    /// Loads the programs that observe dispatch queues; `None` if they were not requested, or no sched_ext scheduler is
    /// loaded.
    pub(super) fn dsqs(&self) -> Option<Result<Dsqs, Refusal>> {
        let is_wanted =
            self.options.sched.is_some_and(|sched| sched.dsq) && tracepoints::has_scheduler(&self.options.sys);
        is_wanted.then(|| Dsqs::load(tracepoint::DSQ_ID, self.cpus()))
    }

    /// Opens the event of a CPU that receives the records on dispatch queues.
    pub(super) fn dsq_output(
        &self,
        spec: &EventSpec,
        features: Features,
        pages: usize,
        dsqs: &DsqOutputs,
        cpu: u32,
    ) -> Result<(Event, Layout), SamplerError> {
        let scope = Scope { inherit: false, enable_on_exec: false, ..self.scope() };
        let mut attr = attr::sampling(spec, features, scope, attr::watermark(pages));
        attr.type_ = sys::PERF_TYPE_SOFTWARE;
        attr.config = u64::from(sys::PERF_COUNT_SW_BPF_OUTPUT);
        let event = Event::open(&spec.name, &attr, EventScope::All, cpu);
        let mut event = event.map_err(|error| match self.explain(error, EventScope::All, true) {
            // The CPU is gone, or smaller rings must be tried: handled as for every event.
            error @ SamplerError::NoSuchCpu { .. } => error,
            error => SamplerError::Dsqs(error.to_string()),
        })?;
        dsqs.write_to(event.as_fd(), cpu).map_err(|refusal| SamplerError::Dsqs(refusal.to_string()))?;
        // In a recording, the event has the attr of the tracepoint whose layout its samples have, so that every reader
        // can decode them.
        (event.attr.type_, event.attr.config) = (spec.kind, u64::from(tracepoint::DSQ_ID));
        Ok((event, attr::layout(&attr)))
    }

    /// Opens the event that calls the program; `None` if the program is attached to a tracepoint.
    pub(super) fn clock(
        &self,
        spec: &EventSpec,
        features: Features,
        snapshots: &SnapshotOutputs,
        watch: EventScope<'_>,
        cpu: u32,
    ) -> Result<Option<Event>, SamplerError> {
        let Some(on_clock) = snapshots.on_clock() else { return Ok(None) };
        let mut attr = self.attr(spec, features, 1);
        // This event has no ring.
        attr.sample_type = 0;
        let event = Event::open(&spec.name, &attr, watch, cpu).map_err(|error| self.explain(error, watch, false))?;
        event.run_at_samples(on_clock).map_err(|error| SamplerError::Snapshots(error.to_string()))?;
        Ok(Some(event))
    }

    /// Opens the event of a CPU that receives the snapshots.
    pub(super) fn snapshot_output(
        &self,
        spec: &EventSpec,
        features: Features,
        pages: usize,
        snapshots: &SnapshotOutputs,
        cpu: u32,
    ) -> Result<(Event, Layout), SamplerError> {
        let mut attr = self.attr(spec, features, pages);
        attr.type_ = sys::PERF_TYPE_SOFTWARE;
        attr.config = u64::from(sys::PERF_COUNT_SW_BPF_OUTPUT);
        attr.__bindgen_anon_1.sample_period = 1;
        attr.sample_type |= scxprof_perf::record::sample_type::RAW;
        // The program writes only samples of user code.
        attr.sample_type &= !scxprof_perf::record::sample_type::CALLCHAIN;
        // The event watches its CPU; the programs select the tasks.
        attr.set_inherit(0);
        attr.set_enable_on_exec(0);
        attr.set_exclude_kernel(0);
        attr.set_exclude_idle(0);
        let event = Event::open(&spec.name, &attr, EventScope::All, cpu)
            .map_err(|error| self.explain(error, EventScope::All, false))?;
        snapshots.write_to(event.as_fd(), cpu).map_err(|refusal| SamplerError::Snapshots(refusal.to_string()))?;
        Ok((event, attr::layout(&attr)))
    }

    /// Opens the dummy event of the side-band.
    pub(super) fn side_band(
        &self,
        features: Features,
        pages: usize,
        watch: EventScope<'_>,
        cpu: u32,
    ) -> Result<(Event, Layout), SamplerError> {
        let attr = self.side_attr(features, pages);
        let event = Event::open(SIDE_BAND, &attr, watch, cpu).map_err(|error| self.explain(error, watch, false))?;
        Ok((event, attr::layout(&attr)))
    }

    /// `whole`: the event cannot exclude accesses of the kernel.
    fn explain(&self, source: EventError, watch: EventScope<'_>, whole: bool) -> SamplerError {
        match (source.errno(), watch) {
            (libc::EACCES | libc::EPERM, _) => {
                let whose = match watch {
                    EventScope::All | EventScope::Cgroup(_) => Privilege::All,
                    EventScope::Task(_) if whole => Privilege::OwnWithKernel,
                    EventScope::Task(_) => Privilege::Own,
                };
                let hint = open::rights(&self.options.proc, whose);
                SamplerError::NotPermitted { source, hint }
            }
            (libc::EMFILE, EventScope::Task(_)) if self.threads() > 1 => self.too_many_threads(limits::file_limit()),
            (libc::EMFILE | libc::ENFILE, _) => {
                let Limit { soft, hard } = limits::file_limit();
                SamplerError::TooManyFiles { source, cpus: self.cpus_watched(), needed: self.needed, soft, hard }
            }
            (libc::EBUSY, _) => SamplerError::InUse { source },
            (libc::ENODATA, _) => SamplerError::NoLeader { source },
            (libc::ENODEV, _) => SamplerError::NoSuchCpu { cpu: source.cpu },
            (libc::ESRCH, EventScope::Task(pid)) => SamplerError::NoSuchTask { pid },
            (libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP, _) if self.options.source == Source::Stacks => {
                SamplerError::NoSuchEvent { source }
            }
            (libc::ENOSYS | libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP | libc::E2BIG, _) => {
                SamplerError::Unsupported { source }
            }
            _ => source.into(),
        }
    }
}

/// True if scheduling events are sampled.
fn is_sched(options: &SamplerOptions) -> bool {
    options.sched.is_some() || options.source == Source::Wakeups
}

/// True for a directory of the unified hierarchy of cgroups (v2).
fn is_unified(directory: &OwnedFd) -> bool {
    rustix::fs::fstatfs(directory).is_ok_and(|fs| fs.f_type == libc::CGROUP2_SUPER_MAGIC)
}
