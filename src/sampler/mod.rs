//! From perf events to samples and side-band records.
//!
//! [`Sampler::open`] opens the events of every CPU, with one ring per CPU. [`Sampler::start`] enables them and passes the rings
//! to worker threads. [`Running`] is the receiving end.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use perf_event_open_sys::bindings as sys;

pub mod attr;
mod busy;
mod choose;
mod clock;
pub mod encode;
mod error;
pub mod hardware;
pub mod intake;
pub mod loss;
pub mod open;
mod opener;
pub mod plan;
pub mod pmu;
mod probe;
pub mod record;
pub mod ring;
mod running;
mod steer;
pub mod tee;
pub mod tick;
pub mod user;
mod worker;

#[cfg(test)]
mod record_tests;

pub use error::{SamplerError, MLOCK_HELP, NOFILE_HELP};
pub use hardware::{Hardware, Pace};

use attr::{Features, Refused};
use clock::Offset;
use open::Event;
use open::Sampling;
use opener::Opener;
pub use plan::AddressFrom;
use plan::{Plan, Planned};
use ring::Ring;
pub use running::{Running, Totals};
use worker::CpuRing;
pub use worker::Identity;

use crate::bpf::Snapshots;
use crate::host::limits;
pub use crate::sample::batch::{Batch, PendingSample, UserContext};
use crate::sample::Source;

/// The default number of CPUs per worker: at the usual rates a worker is idle nearly all the time.
const CPUS_PER_WORKER: usize = 16;

/// What to sample.
#[derive(Debug)]
#[non_exhaustive]
pub enum Target {
    /// Every task of the host.
    System,
    /// These threads, and the threads and processes that they create.
    Tasks {
        /// Thread ids.
        tids: Vec<u32>,
        /// Sampling begins when the task calls exec.
        enable_on_exec: bool,
    },
    /// The tasks of a cgroup and of those below it.
    Cgroup(OwnedFd),
}

/// How to sample.
#[derive(Debug)]
pub struct SamplerOptions {
    /// The source of the addresses.
    pub source: Source,
    /// The requested samples a second and CPU of the timer source; `None` for the tick if that works.
    pub freq: Option<u32>,
    /// The tasks to sample.
    pub target: Target,
    /// The CPUs; all of them must be online.
    pub cpus: Vec<u32>,
    /// Pages of data in each CPU's ring, a power of two.
    pub mmap_pages: usize,
    /// Threads that read the rings; `None` for one per 16 CPUs.
    pub workers: Option<usize>,
    /// The priority of SCHED_FIFO, 1 to 99, of the threads that read the rings; `None` for that of the thread that starts them.
    /// A thread that takes more than half a CPU gives it up.
    pub realtime: Option<u8>,
    /// The features to request; a subset behaves like an older kernel.
    pub features: Features,
    /// How pebs and ibs sample.
    pub hardware: Hardware,
    /// procfs, for the limits that an error message names.
    pub proc: PathBuf,
    /// sysfs, for the PMUs and the CPUs that are online.
    pub sys: PathBuf,
    /// True if our pid namespace is not the host's.
    pub child_pid_namespace: bool,
    /// Raises this process's soft `RLIMIT_NOFILE`, up to the hard limit, if the events need more open files.
    pub raise_open_files: bool,
    /// Adds the memory around the registers to samples of the timer source, if BPF can read it.
    pub snapshots: bool,
}

/// A plan, and which of its features this kernel accepts.
struct Choice {
    plan: Plan,
    features: Features,
    side_features: Features,
    /// The features that the kernel rejected.
    refused: Vec<Refused>,
}

/// Events that are open and not yet enabled.
#[derive(Debug)]
pub struct Sampler {
    rings: Vec<CpuRing>,
    /// The event of each ring, in the same order.
    owners: Vec<Arc<Event>>,
    /// All events that sample.
    sampling: Vec<Sampling>,
    side_band: Vec<Arc<Event>>,
    /// Reads the memory around the registers.
    snapshots: Option<Snapshots>,
    /// The events that call it, unless that is a tracepoint.
    clocks: Vec<Event>,
    /// The plan's events.
    events: Vec<Planned>,
    features: Features,
    side_features: Features,
    refused: Vec<Refused>,
    /// [`Plan::rate`].
    rate: Option<f64>,
    chosen: Vec<String>,
    notes: Vec<String>,
    target: TargetKind,
    workers: usize,
    realtime: Option<u8>,
    identity: Identity,
    mmap_pages: usize,
    address_from: AddressFrom,
    /// The times in the rings are those of the scheduler's clock.
    batched: bool,
    sys: PathBuf,
}

/// The kind of target, once its events are open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetKind {
    System,
    Cgroup,
    Tasks { enable_on_exec: bool },
}

impl Sampler {
    /// Opens the events on every CPU and maps their rings.
    ///
    /// # Errors
    /// [`SamplerError`], with nothing left open.
    pub fn open(options: &SamplerOptions) -> Result<Self, SamplerError> {
        let batched = options.hardware.batched && options.source == Source::Pebs;
        let sampler = Self::open_as(options, batched)?;
        if !batched || sampler.rings.iter().all(|cpu| cpu.offset.is_some()) {
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
        let Choice { plan, features, side_features, refused } = opener.choose()?;
        let Plan { events, address_from, rate, notes: chosen } = plan;
        let mut notes: Vec<String> = chosen.iter().cloned().chain(refused.iter().map(Refused::to_string)).collect();
        let snapshots = match opener.snapshots(&address_from) {
            Some(Ok(snapshots)) => Some(snapshots),
            Some(Err(refusal)) => {
                notes.push(without_snapshots(&refusal));
                None
            }
            None => None,
        };

        let mut sampler = Self {
            rings: Vec::new(),
            owners: Vec::new(),
            sampling: Vec::new(),
            side_band: Vec::new(),
            snapshots,
            clocks: Vec::new(),
            events,
            features,
            side_features,
            refused,
            rate,
            chosen,
            notes,
            target: match options.target {
                Target::Tasks { enable_on_exec, .. } => TargetKind::Tasks { enable_on_exec },
                Target::System => TargetKind::System,
                Target::Cgroup(_) => TargetKind::Cgroup,
            },
            workers: options
                .workers
                .unwrap_or(options.cpus.len().div_ceil(CPUS_PER_WORKER))
                .clamp(1, options.cpus.len().max(1)),
            realtime: options.realtime,
            identity: Identity { own_pid: std::process::id(), child_pid_namespace: options.child_pid_namespace },
            mmap_pages: options.mmap_pages,
            address_from,
            batched,
            sys: options.sys.clone(),
        };
        let mut no_room = None;
        while let Err(error) = sampler.open_cpus(&opener) {
            if sampler.snapshots.is_some() && !error.is_no_room() {
                // The events are then those of every other kernel.
                sampler.close();
                sampler.snapshots = None;
                sampler.notes.push(without_snapshots(&error));
                continue;
            }
            if !error.is_no_room() || sampler.mmap_pages <= 1 {
                return Err(error);
            }
            // Open all of them again: the first rings would leave no memory for the others, and a ring's watermark is its
            // event's.
            sampler.close();
            sampler.mmap_pages /= 2;
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
            let (got, asked) = (sampler.mmap_pages, options.mmap_pages);
            sampler.notes.push(format!("rings of {got} instead of {asked} pages a CPU: {why}"));
        }
        let needed = opener.needed;
        let limits::Limit { soft, hard } = limits::file_limit();
        if soft < needed {
            // The events are open; the remaining files may be too few to read each process.
            sampler.notes.push(format!(
                "names or addresses may be missing: {needed} open files are wanted and RLIMIT_NOFILE allows {soft} (hard limit \
                 {hard}); {NOFILE_HELP}"
            ));
        }
        Ok(sampler)
    }

    /// Features that the kernel rejected and sizes that were reduced, as sentences for the report.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The event, and its samples per second on a busy CPU, if that is known.
    #[must_use]
    pub fn samples_per_second(&self) -> Option<(String, f64)> {
        self.events.first().map(|event| event.spec.name.to_string()).zip(self.rate)
    }

    /// The sampling events, by their names in perf.
    pub fn event_names(&self) -> impl Iterator<Item = &str> {
        self.events.iter().map(|event| &*event.spec.name)
    }

    /// The least `precise_ip` that was accepted, of the events that need one.
    #[must_use]
    pub fn precise(&self) -> Option<u8> {
        self.events.iter().map(|event| event.spec.precise).filter(|&precise| precise > 0).min()
    }

    /// Why these events were chosen, as sentences; [`Sampler::notes`] contains them too.
    #[must_use]
    pub fn choice(&self) -> &[String] {
        &self.chosen
    }

    /// The features that the kernel rejected.
    #[must_use]
    pub fn refused(&self) -> &[Refused] {
        &self.refused
    }

    /// The features of the samples.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
    }

    /// The open events; those with the same attr (of one kind on all CPUs) are one entry.
    ///
    /// # Errors
    /// The errno of the ioctl that returns an event's id.
    pub fn events(&self) -> Result<Vec<OpenEvents>, SamplerError> {
        let mut all: Vec<OpenEvents> = Vec::new();
        let sampling = self.sampling.iter().map(|sampling| &sampling.event);
        for event in sampling.chain(&self.side_band) {
            let id = event.id()?;
            let same = |events: &&mut OpenEvents| {
                (&events.name, events.attr.type_, events.attr.config)
                    == (&event.name, event.attr.type_, event.attr.config)
            };
            match all.iter_mut().find(same) {
                Some(events) => events.ids.push(id),
                None => all.push(OpenEvents { name: Arc::clone(&event.name), attr: event.attr, ids: vec![id] }),
            }
        }
        Ok(all)
    }

    /// How to read a recording of these rings.
    #[must_use]
    pub fn address_from(&self) -> (&Identity, &AddressFrom) {
        (&self.identity, &self.address_from)
    }

    /// The number of threads that will read the rings, each at least one ring.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Pages of data in each ring.
    #[must_use]
    pub fn mmap_pages(&self) -> usize {
        self.mmap_pages
    }

    /// Closes all events and unmaps their rings.
    fn close(&mut self) {
        self.rings.clear();
        self.owners.clear();
        self.sampling.clear();
        self.side_band.clear();
        self.clocks.clear();
    }

    fn open_cpus(&mut self, opener: &Opener<'_>) -> Result<(), SamplerError> {
        let mut gone = Vec::new();
        for &cpu in &opener.options.cpus {
            let (sampling, side_band) = (self.sampling.len(), self.side_band.len());
            match self.open_cpu(opener, cpu) {
                // It went offline since the list was made.
                Err(SamplerError::NoSuchCpu { .. }) if opener.options.cpus.len() > 1 => {
                    self.sampling.truncate(sampling);
                    self.side_band.truncate(side_band);
                    gone.push(cpu);
                }
                other => other?,
            }
        }
        if let (true, Some(&cpu)) = (self.rings.is_empty(), gone.first()) {
            return Err(SamplerError::NoSuchCpu { cpu });
        }
        if !gone.is_empty() {
            let gone = crate::host::topology::format_cpu_list(&gone);
            self.notes.push(format!("not sampled: CPUs that went offline during the capture ({gone})"));
        }
        Ok(())
    }

    fn open_cpu(&mut self, opener: &Opener<'_>, cpu: u32) -> Result<(), SamplerError> {
        let watches = opener.watches();
        // Threads end between listing and opening; it is an error only if all of them have ended.
        let several = watches.len() > 1;
        let mut owner: Option<Arc<Event>> = None;
        for watch in watches {
            for plan in 0..self.events.len() {
                let Some(Planned { spec, .. }) = self.events.get(plan).filter(|event| event.cpus.contains(&cpu)) else {
                    continue;
                };
                let opened = match &self.snapshots {
                    Some(snapshots) => {
                        let clock = opener.clock(spec, self.features, snapshots, watch, cpu);
                        match clock {
                            Err(SamplerError::NoSuchTask { .. }) if several => continue,
                            clock => self.clocks.extend(clock?),
                        }
                        // The snapshots of a CPU go to one event, whatever is watched.
                        if owner.is_some() {
                            continue;
                        }
                        opener.snapshot_output(spec, self.features, self.mmap_pages, snapshots, cpu)
                    }
                    None => opener.sampling(spec, self.features, self.mmap_pages, watch, cpu),
                };
                let (event, layout) = match opened {
                    Err(SamplerError::NoSuchTask { .. }) if several => continue,
                    opened => opened?,
                };
                let event = Arc::new(event);
                self.give_ring(&mut owner, &event, layout, opener.options)?;
                self.sampling.push(Sampling { event, plan });
            }
            // On a CPU without an event the tasks are still followed.
            let (side, layout) = match opener.side_band(self.side_features, self.mmap_pages, watch, cpu) {
                Err(SamplerError::NoSuchTask { .. }) if several => continue,
                opened => opened?,
            };
            let side = Arc::new(side);
            self.give_ring(&mut owner, &side, layout, opener.options)?;
            self.side_band.push(side);
        }
        match (&owner, &opener.options.target) {
            (None, Target::Tasks { tids, .. }) => {
                Err(SamplerError::NoSuchTask { pid: tids.first().copied().unwrap_or(0) })
            }
            _ => Ok(()),
        }
    }

    /// Redirects an event into the ring of `owner`; the first event of a CPU becomes the owner.
    fn give_ring(
        &mut self,
        owner: &mut Option<Arc<Event>>,
        event: &Arc<Event>,
        layout: record::Layout,
        options: &SamplerOptions,
    ) -> Result<(), SamplerError> {
        if let Some(owner) = owner {
            return Ok(event.output_to(owner)?);
        }
        let (ring, offset) = self.map(event, options)?;
        self.rings.push(CpuRing { ring, layout, corrupt: false, offset });
        self.owners.push(Arc::clone(event));
        *owner = Some(Arc::clone(event));
        Ok(())
    }

    /// Maps the ring of an event, with the conversion of its times to CLOCK_MONOTONIC.
    fn map(&self, event: &Event, options: &SamplerOptions) -> Result<(Ring, Option<Offset>), SamplerError> {
        let ring = event.ring(self.mmap_pages).map_err(|source| {
            if source.errno() == libc::EPERM {
                let mlock_kb = limits::sysctl(&options.proc, "perf_event_mlock_kb").unwrap_or(0);
                SamplerError::NoLockedMemory { source, mlock_kb, memlock: limits::memlock_limit().kib() }
            } else {
                source.into()
            }
        })?;
        let offset = if self.batched { Offset::now(&ring) } else { None };
        Ok((ring, offset))
    }
}

/// What a run lacks without snapshots.
fn without_snapshots(why: &dyn std::fmt::Display) -> String {
    format!("timer: fewer addresses are recovered, because the memory around the registers cannot be read: {why}")
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
}
