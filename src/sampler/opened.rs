//! The open events of every CPU, with their rings, before they are enabled.

use std::collections::BTreeMap;
use std::sync::Arc;

use perf_event_open_sys::bindings as sys;

use super::attr::{self, Features, RefusedFeature};
use super::cpus::{CpuEvents, Recipe, RingOf};
use super::error::{SamplerError, NOFILE_HELP};
use super::opener::{Choice, Opener};
use super::options::SamplerOptions;
use super::plan::{self, AddressFrom, Plan};
use super::worker::{CpuRing, Identity};
use crate::bpf::{Dsqs, Snapshots};
use crate::host::limits;
use crate::sample::Source;
use scxprof_base::cpus::format_cpu_list;
use scxprof_perf::tracepoint;
use scxprof_perf::writer::EventDesc;

/// The default number of CPUs per worker: at the usual rates, a worker is mostly idle.
const CPUS_PER_WORKER: usize = 16;

/// Events that are open and not yet enabled.
#[derive(Debug)]
pub struct Sampler {
    pub(super) recipe: Recipe,
    pub(super) cpus: BTreeMap<u32, CpuEvents>,
    /// The rings to read, with their CPUs.
    pub(super) rings: Vec<(u32, CpuRing)>,
    /// Reads the memory around the registers.
    pub(super) snapshots: Option<Snapshots>,
    /// Observes dispatch queues.
    pub(super) dsqs: Option<Dsqs>,
    refused: Vec<RefusedFeature>,
    /// [`Plan::rate`].
    rate: Option<f64>,
    chosen: Vec<String>,
    notes: Vec<String>,
    pub(super) workers: usize,
    pub(super) realtime: Option<u8>,
    pub(super) identity: Identity,
    pub(super) address_from: AddressFrom,
}

impl Sampler {
    /// Opens the events on every CPU and maps their rings.
    ///
    /// # Errors
    /// [`SamplerError`]; then no event stays open.
    pub fn open(options: &SamplerOptions) -> Result<Self, SamplerError> {
        let batched = options.hardware.batched && options.source == Source::Pebs;
        let sampler = Self::open_as(options, batched)?;
        if !batched || sampler.rings.iter().all(|(_, cpu)| cpu.offset.is_some()) {
            return Ok(sampler);
        }
        drop(sampler);
        let mut sampler = Self::open_as(options, false)?;
        sampler.notes.push(
            "batched changes nothing here: the kernel does not say how its clock relates to the TSC (cap_user_time_zero), \
             so times of batches could not be compared"
                .to_owned(),
        );
        Ok(sampler)
    }

    fn open_as(options: &SamplerOptions, batched: bool) -> Result<Self, SamplerError> {
        let opener = Opener::new(options, batched);
        let Choice { plan, features, side_features, aside_features, refused } = opener.choose()?;
        let Plan { mut events, address_from, sched, rate, notes: chosen } = plan;
        let wants_kernel = options.source == Source::Timer && options.hardware.kernel;
        // The source timer recovers accesses of kernel code only if they were requested.
        let matters = |refused: &&RefusedFeature| {
            refused.feature != attr::Feature::Kernel || !address_from.recovers() || wants_kernel
        };
        let mut notes: Vec<String> =
            chosen.iter().cloned().chain(refused.iter().filter(matters).map(RefusedFeature::to_string)).collect();
        let snapshots = match opener.snapshots(&address_from) {
            Some(Ok(snapshots)) => Some(snapshots),
            // The same program takes the samples of kernel code.
            Some(Err(refusal)) if wants_kernel => return Err(SamplerError::Kernel(refusal.to_string())),
            Some(Err(refusal)) => {
                notes.push(without_snapshots(&refusal));
                None
            }
            None => None,
        };
        let dsqs = match opener.dsqs() {
            Some(Ok(dsqs)) => {
                let spec = attr::EventSpec::sched(tracepoint::DSQ, tracepoint::DSQ_ID.into());
                events.push(plan::Planned {
                    spec,
                    cpus: options.cpus.clone(),
                    probe: None,
                    steer: None,
                    is_aside: false,
                });
                Some(dsqs)
            }
            Some(Err(refusal)) => {
                notes.push(without_dsqs(&refusal));
                None
            }
            None => None,
        };
        let recipe = Recipe {
            options: options.clone(),
            batched,
            events,
            sched,
            features,
            side_features,
            aside_features,
            mmap_pages: options.mmap_pages,
            snapshots: snapshots.as_ref().map(|snapshots| Arc::clone(snapshots.outputs())),
            dsqs: dsqs.as_ref().map(|dsqs| Arc::clone(dsqs.outputs())),
        };
        let mut sampler = Self {
            recipe,
            cpus: BTreeMap::new(),
            rings: Vec::new(),
            snapshots,
            dsqs,
            refused,
            rate,
            chosen,
            notes,
            workers: options
                .workers
                .unwrap_or(options.cpus.len().div_ceil(CPUS_PER_WORKER))
                .clamp(1, options.cpus.len().max(1)),
            realtime: options.realtime,
            identity: Identity {
                own_pid: std::process::id(),
                child_pid_namespace: options.child_pid_namespace,
                without_profilers: !matches!(options.target, super::Target::Tasks { .. }),
            },
            address_from,
        };
        let mut no_room = None;
        while let Err(error) = sampler.open_cpus(&opener) {
            if matches!(error, SamplerError::Dsqs(_)) {
                sampler.close();
                (sampler.dsqs, sampler.recipe.dsqs) = (None, None);
                sampler.recipe.events.retain(|event| event.spec.name != tracepoint::DSQ);
                sampler.notes.push(without_dsqs(&error));
                continue;
            }
            if sampler.snapshots.is_some() && !error.is_no_room() {
                if wants_kernel {
                    return Err(SamplerError::Kernel(error.to_string()));
                }
                // Without batching, the events are those of every other kernel.
                sampler.close();
                (sampler.snapshots, sampler.recipe.snapshots) = (None, None);
                sampler.notes.push(without_snapshots(&error));
                continue;
            }
            if !error.is_no_room() || sampler.recipe.mmap_pages <= 1 {
                return Err(error);
            }
            // Open all events again: the first rings would leave no locked memory for the others, and the watermark of
            // a ring is an attribute of its event.
            sampler.close();
            sampler.recipe.mmap_pages /= 2;
            no_room = Some(error);
        }
        if let Some(error) = no_room {
            let why = match error {
                SamplerError::NoLockedMemory { mlock_kb, memlock, .. } => format!(
                    "kernel.perf_event_mlock_kb is {mlock_kb} KiB a CPU for all of this user's rings and RLIMIT_MEMLOCK is \
                     {memlock}"
                ),
                other => format!("larger ones do not fit into memory ({other})"),
            };
            let (got, asked) = (sampler.recipe.mmap_pages, options.mmap_pages);
            sampler.notes.push(format!("rings of {got} instead of {asked} pages a CPU: {why}"));
        }
        let needed = opener.needed;
        let limits::Limit { soft, hard } = limits::file_limit();
        if soft < needed {
            // The events are open, but the remaining files may be too few to read each process.
            sampler.notes.push(format!(
                "names or addresses may be missing: {needed} open files are wanted and RLIMIT_NOFILE allows {soft} (hard limit \
                 {hard}); {NOFILE_HELP}"
            ));
        }
        Ok(sampler)
    }

    /// Sentences for the report on features that the kernel rejected and sizes that were reduced.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// How to decode scheduling events, if there are any.
    #[must_use]
    pub fn sched(&self) -> Option<&Arc<tracepoint::SchedDecoder>> {
        self.recipe.sched.as_ref()
    }

    /// The event, and its samples per second on a busy CPU, if that is known.
    #[must_use]
    pub fn samples_per_second(&self) -> Option<(String, f64)> {
        self.recipe.events.first().map(|event| event.spec.name.to_string()).zip(self.rate)
    }

    /// The sampling events, by their names in perf.
    pub fn event_names(&self) -> impl Iterator<Item = &str> {
        self.recipe.events.iter().map(|event| &*event.spec.name)
    }

    /// The least accepted `precise_ip` of the events that need one.
    #[must_use]
    pub fn precise(&self) -> Option<u8> {
        self.recipe.events.iter().map(|event| event.spec.precise).filter(|&precise| precise > 0).min()
    }

    /// Sentences on why these events were chosen; [`Sampler::notes`] contains them too.
    #[must_use]
    pub fn choice(&self) -> &[String] {
        &self.chosen
    }

    /// The features that the kernel rejected.
    #[must_use]
    pub fn refused(&self) -> &[RefusedFeature] {
        &self.refused
    }

    /// The features of the samples.
    #[must_use]
    pub fn features(&self) -> Features {
        self.recipe.features
    }

    /// The open events; events with the same attr (one kind on all CPUs) are one entry.
    ///
    /// # Errors
    /// The errno of the ioctl that returns an event's id.
    pub fn events(&self) -> Result<Vec<OpenEvents>, SamplerError> {
        let mut all: Vec<OpenEvents> = Vec::new();
        let is_aside = |plan: usize| self.recipe.events.get(plan).is_some_and(|event| event.is_aside);
        let sampling = self.cpus.values().flat_map(|cpu| cpu.sampling.iter());
        let sampling = sampling.map(|sampling| (&sampling.event, is_aside(sampling.plan)));
        let side_band = self.cpus.values().flat_map(|cpu| &cpu.side_band).map(|event| (event, false));
        for (event, is_aside) in sampling.chain(side_band) {
            let id = event.id()?;
            let same = |events: &&mut OpenEvents| {
                (&events.name, events.attr.type_, events.attr.config, events.is_aside)
                    == (&event.name, event.attr.type_, event.attr.config, is_aside)
            };
            match all.iter_mut().find(same) {
                Some(events) => events.ids.push(id),
                None => {
                    all.push(OpenEvents { name: Arc::clone(&event.name), attr: event.attr, ids: vec![id], is_aside });
                }
            }
        }
        Ok(all)
    }

    /// How to read a recording of these rings.
    #[must_use]
    pub fn address_from(&self) -> (&Identity, &AddressFrom) {
        (&self.identity, &self.address_from)
    }

    /// The number of threads that will read the rings; each reads at least one ring.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Pages of data in each ring.
    #[must_use]
    pub fn mmap_pages(&self) -> usize {
        self.recipe.mmap_pages
    }

    /// Closes all events and unmaps their rings.
    fn close(&mut self) {
        self.rings.clear();
        self.cpus.clear();
    }

    /// Opens the CPUs that are online; the others are opened when they come back.
    fn open_cpus(&mut self, opener: &Opener<'_>) -> Result<(), SamplerError> {
        let (mut gone, mut without) = (None, Vec::new());
        for &cpu in &opener.options.cpus {
            match self.recipe.open(opener, &opener.watches(), cpu, RingOf::New) {
                // The CPU went offline after the list was made.
                Err(error @ SamplerError::NoSuchCpu { .. }) if opener.options.cpus.len() > 1 => gone = Some(error),
                Err(error @ SamplerError::NoSuchEvent { .. }) if opener.options.cpus.len() > 1 => {
                    without.push(cpu);
                    gone = Some(error);
                }
                Err(error) => return Err(error),
                Ok((events, rings)) => {
                    self.cpus.insert(cpu, events);
                    self.rings.extend(rings.into_iter().map(|ring| (cpu, ring)));
                }
            }
        }
        match gone {
            Some(error) if self.cpus.is_empty() => Err(error),
            Some(error @ SamplerError::NoSuchEvent { .. }) => {
                self.notes.push(format!("nothing is sampled on CPU {}: {error}", format_cpu_list(&without)));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The note on a run without snapshots.
fn without_snapshots(why: &dyn std::fmt::Display) -> String {
    format!("timer: fewer addresses are recovered without BPF; {why}")
}

/// The note on a run without the programs that observe dispatch queues.
fn without_dsqs(why: &dyn std::fmt::Display) -> String {
    format!("what the sched_ext scheduler does with its dispatch queues (DSQs) is not known: {why}")
}

/// Events that differ only in their CPU and task.
#[derive(Debug, Clone)]
pub struct OpenEvents {
    /// Their name in perf.
    pub name: Arc<str>,
    /// Their attr.
    pub attr: sys::perf_event_attr,
    /// The ids in their records.
    pub ids: Vec<u64>,
    /// The events sample call stacks beside memory.
    pub is_aside: bool,
}

impl OpenEvents {
    /// The description of the events in a perf.data.
    #[must_use]
    pub fn desc(&self) -> EventDesc {
        EventDesc { name: self.name.to_string(), attr: attr::attr_bytes(&self.attr), ids: self.ids.clone() }
    }
}
