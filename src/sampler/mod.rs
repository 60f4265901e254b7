//! From perf events to samples and side-band records.
//!
//! [`Sampler::open`] opens the events of every CPU into one ring a CPU, [`Sampler::start`] enables them and gives the rings
//! to worker threads, and [`Running`] is the receiving end.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::Receiver;
use perf_event_open_sys::bindings as sys;

pub mod attr;
pub mod encode;
mod error;
pub mod loss;
pub mod open;
pub mod operand;
mod plan;
pub mod record;
pub mod ring;
mod worker;

#[cfg(test)]
mod record_tests;

pub use error::SamplerError;

use attr::{EventSpec, Feature, Features, Scope};
use loss::Loss;
use open::{Event, EventError, Watch};
use plan::{Plan, Reading};
use ring::Ring;
pub use worker::{Batch, Captured, FileId, SideBand, TimedSideBand, UserContext};
use worker::{CpuRing, Identity, Worker};

use crate::sample::Source;

/// CPUs that one worker serves where nobody says otherwise: at the usual rates a worker is idle nearly all the time.
const CPUS_PER_WORKER: usize = 16;

/// What to sample.
#[derive(Debug)]
pub enum Target {
    /// Every task of the host.
    System,
    /// These threads, and the threads and processes that they make.
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
pub struct Options {
    /// Where the addresses come from.
    pub source: Source,
    /// Samples a second and CPU that somebody asked of the timer source; `None` for the tick where it serves.
    pub freq: Option<u32>,
    /// Whose accesses.
    pub target: Target,
    /// On which CPUs; all of them must be online.
    pub cpus: Vec<u32>,
    /// Pages of data in each CPU's ring, a power of two.
    pub mmap_pages: usize,
    /// Threads that read the rings; `None` for one for each 16 CPUs.
    pub workers: Option<usize>,
    /// What to ask the kernel for; less than all of it is what an older kernel would give.
    pub features: Features,
    /// procfs, for the limits that an error message names.
    pub proc: PathBuf,
    /// True where our pid namespace is not the host's.
    pub child_pid_namespace: bool,
}

/// Events that are open and not yet enabled.
#[derive(Debug)]
pub struct Sampler {
    rings: Vec<CpuRing>,
    /// The event that each ring was made of, in the same order.
    owners: Vec<Arc<Event>>,
    /// All events that sample.
    sampling: Vec<Arc<Event>>,
    side_band: Vec<Event>,
    features: Features,
    side_features: Features,
    notes: Vec<String>,
    enable_on_exec: bool,
    workers: usize,
    identity: Identity,
    mmap_pages: usize,
    reading: Reading,
    /// What the sampling event counts by one event: cpu-clock counts ns.
    counted: u64,
}

impl Sampler {
    /// Opens the events on every CPU and maps their rings.
    ///
    /// # Errors
    /// [`SamplerError`], with nothing left open.
    pub fn open(options: &Options) -> Result<Self, SamplerError> {
        let mut notes = Vec::new();
        let tasks = match &options.target {
            Target::Tasks { tids, .. } => tids.len(),
            Target::System | Target::Cgroup(_) => 1,
        };
        let needed = (options.cpus.len() * tasks * 2) as u64 + 64;
        // What cannot be raised shows when an event does not open, with both limits.
        let _ = open::raise_file_limit(needed);
        let opener = Opener { options, needed };
        let Plan { spec, reading, notes: chosen } = plan::plan(options)?;
        notes.extend(chosen);
        let (features, side_features) = opener.features(&spec)?;
        let wanted = spec.features();
        let refused = |feature: &Feature| match feature {
            Feature::BuildId => !side_features.has(*feature),
            _ => wanted.has(*feature) && !features.has(*feature),
        };
        notes
            .extend(Feature::ALL.iter().filter(|feature| refused(feature)).map(|feature| feature.without().to_owned()));

        let mut sampler = Self {
            rings: Vec::new(),
            owners: Vec::new(),
            sampling: Vec::new(),
            side_band: Vec::new(),
            features,
            side_features,
            notes,
            enable_on_exec: matches!(options.target, Target::Tasks { enable_on_exec: true, .. }),
            workers: options
                .workers
                .unwrap_or(options.cpus.len().div_ceil(CPUS_PER_WORKER))
                .clamp(1, options.cpus.len().max(1)),
            identity: Identity { own_pid: std::process::id(), child_pid_namespace: options.child_pid_namespace },
            mmap_pages: options.mmap_pages,
            reading,
            counted: match (spec.kind, spec.rate) {
                (sys::PERF_TYPE_SOFTWARE, attr::Rate::Period(ns)) if spec.config == CPU_CLOCK => ns.max(1),
                _ => 1,
            },
        };
        let mut refused = None;
        while let Err(error) = options.cpus.iter().try_for_each(|&cpu| sampler.open_cpu(&opener, &spec, cpu)) {
            if !error.is_no_room() || sampler.mmap_pages <= 1 {
                return Err(error);
            }
            // All of them anew: the first rings would leave nothing for the others, and a ring's watermark is its event's.
            sampler.close();
            sampler.mmap_pages /= 2;
            refused = Some(error);
        }
        if let Some(error) = refused {
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
        Ok(sampler)
    }

    /// What the kernel refused and what was made smaller, as sentences for the report.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What the samples carry.
    #[must_use]
    pub fn features(&self) -> Features {
        self.features
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
    }

    fn open_cpu(&mut self, opener: &Opener<'_>, spec: &EventSpec, cpu: u32) -> Result<(), SamplerError> {
        let options = opener.options;
        let first = self.sampling.len();
        for watch in opener.watches() {
            let opened = opener.sampling(spec, self.features, self.mmap_pages, watch, cpu);
            let (event, layout) = match opened {
                Ok(opened) => opened,
                // Threads end between being listed and being opened; only the absence of all of them is an error.
                Err(SamplerError::NoSuchTask { .. }) if opener.watches().len() > 1 => continue,
                Err(error) => return Err(error),
            };
            let event = Arc::new(event);
            if let Some(owner) = self.sampling.get(first) {
                event.output_to(owner)?;
            } else {
                let ring = self.map(&event, options)?;
                self.rings.push(CpuRing { ring, layout, corrupt: false });
                self.owners.push(Arc::clone(&event));
            }
            self.sampling.push(event);
            match opener.side_band(self.side_features, self.mmap_pages, watch, cpu) {
                Ok(side) => {
                    if let Some(owner) = self.owners.last() {
                        side.output_to(owner)?;
                    }
                    self.side_band.push(side);
                }
                Err(SamplerError::NoSuchTask { .. }) if opener.watches().len() > 1 => {}
                Err(error) => return Err(error),
            }
        }
        if self.sampling.len() == first {
            if let Target::Tasks { tids, .. } = &options.target {
                return Err(SamplerError::NoSuchTask { pid: tids.first().copied().unwrap_or(0) });
            }
        }
        Ok(())
    }

    fn map(&self, event: &Event, options: &Options) -> Result<Ring, SamplerError> {
        Ring::of_event(event, self.mmap_pages, open::page_size()).map_err(|error| {
            let source = EventError { call: "mmap", event: event.name, cpu: event.cpu, source: error };
            if source.errno() == libc::EPERM {
                let mlock_kb = open::sysctl(&options.proc, "perf_event_mlock_kb").unwrap_or(0);
                SamplerError::NoLockedMemory { source, mlock_kb, memlock: memlock() }
            } else {
                source.into()
            }
        })
    }

    /// Enables the events and starts the workers.
    ///
    /// # Errors
    /// The errno of the ioctl, or of a thread that could not be started.
    pub fn start(self) -> Result<Running, SamplerError> {
        let (out, batches) = crossbeam_channel::bounded(worker::QUEUE);
        // Where a later step fails, its drop ends the workers that run already.
        let stop = Stop(Arc::new(AtomicBool::new(false)));
        let mut shares: Vec<(Vec<CpuRing>, Vec<Arc<Event>>)> =
            (0..self.workers).map(|_| (Vec::new(), Vec::new())).collect();
        for (position, (ring, owner)) in self.rings.into_iter().zip(self.owners).enumerate() {
            if let Some(share) = shares.get_mut(position % self.workers) {
                share.0.push(ring);
                share.1.push(owner);
            }
        }
        if !self.enable_on_exec {
            // The side-band first: what happens to a thread before its first sample is then known.
            for event in &self.side_band {
                event.enable()?;
            }
            for event in &self.sampling {
                event.enable()?;
            }
        }
        let workers = shares
            .into_iter()
            .enumerate()
            .map(|(index, (rings, wake))| {
                let worker = Worker {
                    index,
                    rings,
                    wake,
                    identity: self.identity,
                    reading: self.reading.clone(),
                    out: out.clone(),
                    stop: Arc::clone(&stop.0),
                };
                std::thread::Builder::new().name(format!("ring-{index}")).spawn(move || worker.run())
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(SamplerError::Thread)?;
        let knows_lost = self.features.has(Feature::FormatLost) && self.side_features.has(Feature::FormatLost);
        Ok(Running {
            batches,
            workers,
            stop,
            sampling: self.sampling,
            side_band: self.side_band,
            knows_lost,
            counted: self.counted,
        })
    }
}

/// A capture that goes on until [`Running::stop`].
#[derive(Debug)]
pub struct Running {
    batches: Receiver<Batch>,
    workers: Vec<JoinHandle<Loss>>,
    stop: Stop,
    sampling: Vec<Arc<Event>>,
    side_band: Vec<Event>,
    knows_lost: bool,
    counted: u64,
}

/// Tells the workers to end; also where a capture is dropped half-way.
#[derive(Debug)]
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What the events say of themselves when a capture has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// What was lost on the way here.
    pub loss: Loss,
    /// The events that happened, sampled or not.
    pub events: u64,
}

impl Running {
    /// Where the batches arrive; it disconnects after [`Running::stop`], when the rings are empty.
    #[must_use]
    pub fn batches(&self) -> &Receiver<Batch> {
        &self.batches
    }

    /// Number of workers, which batches name by index.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Stops the events. The workers empty the rings, send what they hold and end.
    pub fn stop(&self) {
        for event in &self.sampling {
            // An event that cannot be disabled is gone, and then it has stopped.
            let _ = event.disable();
        }
        for event in &self.side_band {
            let _ = event.disable();
        }
        self.stop.0.store(true, Ordering::Release);
    }

    /// Waits for the workers and adds up what was lost. Call it when the batches have been read to their end.
    #[must_use]
    pub fn join(self) -> Totals {
        let Self { batches, workers, sampling, side_band, knows_lost, counted, .. } = self;
        // A worker that still waits for room must not wait for ever.
        drop(batches);
        let mut totals = Totals::default();
        for worker in workers {
            if let Ok(loss) = worker.join() {
                totals.loss.add(&loss);
            }
        }
        let values: Vec<_> = sampling.iter().filter_map(|event| event.read().ok()).collect();
        totals.events = values.iter().map(|value| value.value / counted).sum();
        if knows_lost {
            // A LOST record is written only when there is room again, and does not say what was lost; the events do.
            totals.loss.ring_full = values.iter().map(|value| value.lost).sum();
            totals.loss.side_band =
                side_band.iter().filter_map(|event| event.read().ok()).map(|value| value.lost).sum();
        }
        totals
    }
}

fn memlock() -> String {
    match open::memlock_limit() {
        Ok(limit) if limit.soft == u64::MAX => "unlimited".to_owned(),
        Ok(limit) => format!("{} KiB", limit.soft / 1024),
        Err(error) => format!("unknown ({error})"),
    }
}

/// Opens events for one request and turns what the kernel says into what a person can act on.
struct Opener<'a> {
    options: &'a Options,
    needed: u64,
}

impl Opener<'_> {
    fn watches(&self) -> Vec<Watch<'_>> {
        match &self.options.target {
            Target::System => vec![Watch::All],
            Target::Tasks { tids, .. } => tids.iter().map(|&tid| Watch::Task(tid)).collect(),
            Target::Cgroup(directory) => vec![Watch::Cgroup(directory)],
        }
    }

    fn scope(&self) -> Scope {
        match self.options.target {
            Target::Tasks { enable_on_exec, .. } => Scope { inherit: true, enable_on_exec },
            Target::System | Target::Cgroup(_) => Scope::default(),
        }
    }

    /// A quarter of the ring, at most 1 MiB: often enough not to overflow, seldom enough not to disturb.
    fn watermark(pages: usize) -> u32 {
        (pages * open::page_size() / 4).min(1 << 20) as u32
    }

    /// What this kernel takes, tried with throw-away events on the first CPU.
    fn features(&self, spec: &EventSpec) -> Result<(Features, Features), SamplerError> {
        let cpu = self.options.cpus.first().copied().unwrap_or(0);
        let watches = self.watches();
        let mut last = Err(SamplerError::NoSuchTask { pid: 0 });
        for watch in watches {
            let sampling = attr::negotiate(
                self.options.features.and(spec.features()),
                |features| {
                    let attr = attr::sampling(spec, features, self.scope(), 4096);
                    Event::open(spec.name, &attr, watch, cpu)
                },
                EventError::errno,
            );
            let side = attr::negotiate(
                self.options.features,
                |features| Event::open(SIDE_BAND, &attr::side_band(features, self.scope(), 4096), watch, cpu),
                EventError::errno,
            );
            match (sampling, side) {
                (Ok((_, features)), Ok((_, side_features))) => return Ok((features, side_features)),
                (Err(error), _) | (_, Err(error)) => last = Err(self.explain(error, watch)),
            }
            // Another thread of the process may still be there.
            if !matches!(last, Err(SamplerError::NoSuchTask { .. })) {
                break;
            }
        }
        last
    }

    fn sampling(
        &self,
        spec: &EventSpec,
        features: Features,
        pages: usize,
        watch: Watch<'_>,
        cpu: u32,
    ) -> Result<(Event, record::Layout), SamplerError> {
        let attr = attr::sampling(spec, features, self.scope(), Self::watermark(pages));
        let event = Event::open(spec.name, &attr, watch, cpu).map_err(|error| self.explain(error, watch))?;
        if let Some(filter) = &spec.filter {
            event.filter(filter).map_err(|error| self.explain(error, watch))?;
        }
        Ok((event, attr::layout(&attr)))
    }

    fn side_band(&self, features: Features, pages: usize, watch: Watch<'_>, cpu: u32) -> Result<Event, SamplerError> {
        let attr = attr::side_band(features, self.scope(), Self::watermark(pages));
        Event::open(SIDE_BAND, &attr, watch, cpu).map_err(|error| self.explain(error, watch))
    }

    fn explain(&self, source: EventError, watch: Watch<'_>) -> SamplerError {
        match (source.errno(), watch) {
            (libc::EACCES | libc::EPERM, _) => {
                let paranoid = open::sysctl(&self.options.proc, "perf_event_paranoid")
                    .map_or_else(|| "not readable".to_owned(), |level| level.to_string());
                let hint = match watch {
                    Watch::All | Watch::Cgroup(_) => format!(
                        "sampling every task needs root, CAP_PERFMON or kernel.perf_event_paranoid <= 0 (it is {paranoid}); \
                         your own processes can be sampled with -p PID or -- COMMAND"
                    ),
                    Watch::Task(_) => format!(
                        "sampling a process needs to be its user and kernel.perf_event_paranoid <= 2 (it is {paranoid}), or root \
                         or CAP_PERFMON; a container's seccomp profile can also forbid perf_event_open"
                    ),
                };
                SamplerError::NotPermitted { source, hint }
            }
            (libc::EMFILE | libc::ENFILE, _) => {
                let limit = open::file_limit().unwrap_or(open::Limit { soft: 0, hard: 0 });
                let cpus = self.options.cpus.iter().collect::<BTreeSet<_>>().len();
                SamplerError::TooManyFiles { source, cpus, needed: self.needed, soft: limit.soft, hard: limit.hard }
            }
            (libc::ENODEV, _) => SamplerError::NoSuchCpu { cpu: source.cpu },
            (libc::ESRCH, Watch::Task(pid)) => SamplerError::NoSuchTask { pid },
            (libc::ENOSYS | libc::ENOENT | libc::EINVAL | libc::EOPNOTSUPP | libc::E2BIG, _) => {
                SamplerError::Unsupported { source }
            }
            _ => source.into(),
        }
    }
}

/// The config of cpu-clock among the software events.
const CPU_CLOCK: u64 = sys::PERF_COUNT_SW_CPU_CLOCK as u64;
/// The dummy event that carries tasks, mappings and cgroups.
const SIDE_BAND: &str = "dummy (side-band)";
