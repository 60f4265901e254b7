//! A capture of the kernel's events: from the start of the workers to the last sample in the sink.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::TryRecvError;
use rustc_hash::{FxHashMap, FxHashSet};

use super::rescan::ProcfsRescan;
use crate::bpf::HintWatch;
use crate::host::aside;
use crate::host::clock::boottime_ns;
use crate::host::priority;
use crate::host::usage::BusyTime;
use crate::host::{proc, topology, Roots};
use crate::outcome::Outcome;
use crate::profile::Recorder;
use crate::resolve::{Cgroups, SymbolOptions, Unwinder};
use crate::sample::batch::{Batch, PendingSample};
use crate::sample::Source;
use crate::sampler::attr::Feature;
use crate::sampler::event::CHAIN_SIZE;
use crate::sampler::loss::Loss;
use crate::sampler::tee::Tee;
use crate::sampler::{Running, Sampler, SamplerError, SamplerOptions, Target};
use crate::session::error::SessionError;
use crate::session::inlet::Inlet;
use crate::session::namer::{Accesses, KernelRecovery, Namer, Recoverer, Wakeups};
use crate::session::options::HostOptions;
use crate::session::order::Order;
use crate::session::origin::{Ending, Filled, Origin};
use crate::session::pipeline::{self, Names, Pipeline};
use crate::session::stop::{Progress, StopPoll, TICK};
use crate::sinks::Sink;
use scxprof_base::arch::Arch;
use scxprof_base::tables::{Tables, TablesHandle};
use scxprof_recover::REGS_MASK;

/// Bytes of the registers and the stack of a queued sample.
const CONTEXT_SIZE: usize = 768;
/// Bytes of the memory around the registers of a queued sample, if it is read.
const SNAPSHOT_SIZE: usize = 2048;

/// The options of a capture.
#[derive(Debug)]
pub(super) struct CaptureOptions {
    /// What to sample and how.
    pub(super) sampler: SamplerOptions,
    /// The other options: which hints to follow, what to record.
    pub(super) host: HostOptions,
    /// The directories under which the host is read.
    pub(super) roots: Roots,
    /// Bytes for queues and caches; the rings are not included.
    pub(super) memory: usize,
    /// Where to find the files of unwound code.
    pub(super) symbols: SymbolOptions,
    /// For the source `wakeups`: the processes that are watched with their descendants; `None` for all processes.
    pub(super) only: Option<FxHashSet<u32>>,
}

/// Bytes of registers and stack in each sample, if stacks are unwound from them.
fn stack_size(options: &CaptureOptions) -> usize {
    let context = options.sampler.stacks.as_ref().and_then(|event| event.context);
    context.map_or(0, |context| context.stack as usize + 8 * REGS_MASK.count_ones() as usize)
}

/// CAP_SYS_PTRACE as a bit of `CapEff` (linux/capability.h).
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// What cannot be read about other users' processes without the right to inspect them.
fn strangers(roots: &Roots, source: Source) -> Option<String> {
    if proc::capabilities(roots)? & CAP_SYS_PTRACE != 0 {
        return None;
    }
    let what = if roots.proc.join("1").exists() {
        "procfs does not show what other users' processes map"
    } else {
        // The options hidepid and subset=pid of procfs.
        "procfs hides the processes of other users, so that their threads have no names"
    };
    let effect = if source == Source::Timer {
        "most of their samples give no address"
    } else {
        "memory that they share is not always recognised"
    };
    Some(format!("{what}, and {effect}; it takes CAP_SYS_PTRACE"))
}

/// A running capture.
#[derive(Debug)]
pub(in super::super) struct Capture {
    kernel: Kernel,
    pipeline: Pipeline<PendingSample>,
    begin: Instant,
    /// When all events were open, CLOCK_BOOTTIME in ns: threads that a watched thread creates later inherit them.
    pub(super) opened: u64,
    /// The event, and its samples per second on a busy CPU, if that is known.
    pub(in super::super) rate: Option<(String, f64)>,
}

/// The rings, and the other things that are read during a capture.
#[derive(Debug)]
struct Kernel {
    running: Running,
    /// Task hints, if they can be followed.
    watch: Option<HintWatch>,
    recorder: Option<Arc<Recorder>>,
    /// `None` after it has been stopped.
    reread: Option<ProcfsRescan>,
    begin: Instant,
    duration: Duration,
    /// Measures the CPU time of other threads, if all threads are sampled; and the result at the end.
    busy: Option<BusyTime>,
    cpu_time: Option<Duration>,
    /// Unanswered look-ups before this capture.
    unanswered: u64,
    notes: Vec<String>,
}

impl Capture {
    /// Opens and enables the events, then reads existing threads and mappings in the background. In this order, nothing
    /// is missed in between.
    ///
    /// A capture that records takes names only from what it records, so that its replay gives the same samples.
    ///
    /// # Errors
    /// [`SessionError`]; then all events are closed.
    pub(super) fn start(options: &CaptureOptions) -> Result<Self, SessionError> {
        let CaptureOptions { sampler: sampling, host, roots, memory, .. } = options;
        let cgroups = Cgroups::new(roots)?;
        let sampler = Sampler::open(sampling)?;
        let mut notes = sampler.notes().to_vec();
        let is_hardware = matches!(sampling.source, Source::Pebs | Source::Ibs | Source::Spe);
        let kernel = if sampling.hardware.kernel && (is_hardware || sampling.source == Source::Timer) {
            let has_stores = sampling.source != Source::Pebs || sampling.hardware.stores;
            // A quarter of the memory that recovery of user code has.
            let kernel = if Arch::HOST == Some(Arch::X86_64) {
                let kernel = KernelRecovery::new(&roots.proc, &roots.sys, &sampling.cpus, memory / 16, has_stores);
                kernel.map_err(|error| error.to_string())
            } else {
                Err("the kernel's page tables are read on x86-64 only".to_owned())
            };
            match kernel {
                Ok(kernel) => Some(kernel),
                Err(error) if is_hardware => {
                    notes.push(format!("what memory the kernel accesses is not known, and joins no threads: {error}"));
                    None
                }
                Err(error) => return Err(SamplerError::Kernel(error).into()),
            }
        } else {
            None
        };
        // Samples of other sources count events: that says nothing about CPU time or about accesses to cache lines.
        let takes_time = matches!(sampling.source, Source::Timer | Source::Pebs | Source::Ibs | Source::Spe);
        let opened = boottime_ns();
        let rate = sampler.samples_per_second();
        if !matches!(sampling.target, Target::Tasks { .. }) {
            notes.extend(strangers(roots, sampling.source));
        }
        if takes_time {
            notes.extend(topology::large_lines(roots, &sampling.cpus));
        }
        // Before the first sample, so that each sample has its thread's hint.
        let mut no_hints = None;
        let watch = match host.hints.as_ref().map(|hints| HintWatch::start(hints, &roots.proc)) {
            Some(Ok(watch)) => {
                notes.extend_from_slice(watch.notes());
                Some(watch)
            }
            Some(Err(error)) => {
                notes.push(format!("{error}; hints are missing, the memory profile goes on without them"));
                no_hints = Some(error.to_string());
                None
            }
            None => None,
        };
        let cgroups_of_threads =
            if sampler.features().has(Feature::Cgroup) { None } else { Some(Cgroups::new(roots)?) };
        let recorder = match &host.record {
            Some(dir) => {
                let (source, keep_memory) = (sampling.source, host.keep_memory);
                let watched = options.only.as_ref().map(|pids| pids.iter().copied().collect());
                let has_hints = host.hints.is_some();
                Some(Arc::new(Recorder::new(&sampler, source, roots, has_hints, keep_memory, watched, dir)?))
            }
            None => None,
        };
        let tee = recorder.clone().map(|recorder| recorder as Arc<dyn Tee>);
        let running = sampler.start(tee.as_ref())?;
        let begin = Instant::now();
        let takes_all = matches!(sampling.target, Target::System) && !sampling.child_pid_namespace;
        let busy = (takes_time && takes_all).then(|| BusyTime::begin(&roots.proc));
        let recovers = sampling.source == Source::Timer;
        let accesses = match sampling.source {
            Source::Timer => {
                let recoverer = Recoverer::new(&roots.proc, memory / 4, running.wanted(), kernel);
                Accesses::Recovered(Box::new(recoverer))
            }
            Source::Wakeups => Accesses::OfWakeups(Box::new(Wakeups::new(options.only.clone(), std::process::id()))),
            _ => kernel.map_or(Accesses::InSamples, |kernel| Accesses::Judged(Box::new(kernel))),
        };
        // A quarter of the memory is for samples that wait to be sorted or for code, an eighth for mappings, and an
        // eighth for queued batches; the sink gets the rest. With the source `timer`, which caches code too, the sum is
        // nine eighths if every part is full.
        let context = match (recovers, sampling.snapshots) {
            (true, true) => CONTEXT_SIZE + SNAPSHOT_SIZE,
            (true, false) => CONTEXT_SIZE,
            (false, _) if sampling.source == Source::Stacks => CHAIN_SIZE + stack_size(options),
            (false, _) => 0,
        };
        let waiting = size_of::<PendingSample>() + context;
        let share = if recovers { memory / 8 } else { memory / 4 };
        let mut order = Order::new(running.workers() + usize::from(watch.is_some()), share / waiting);
        order.joins_hints = sampling.sched.is_some() || sampling.source == Source::Wakeups;
        let child = sampling.child_pid_namespace;
        let mut namer = match recorder.clone() {
            Some(recorder) => Namer::of_recorder(memory / 8, child, accesses, cgroups_of_threads, recorder),
            None => Namer::of_host(roots, memory / 8, child, accesses, cgroups_of_threads),
        };
        namer = namer.with_pool(running.pool().clone());
        if !matches!(sampling.target, Target::Tasks { .. }) {
            namer = namer.without_profilers();
        }
        if host.hints.is_some() {
            namer = namer.with_hints(no_hints);
        }
        if sampling.source == Source::Stacks && stack_size(options) > 0 {
            namer = namer.with_unwinder(Unwinder::new(options.symbols.clone(), FxHashMap::default()));
        }
        let tids = match &sampling.target {
            Target::Tasks { tids, .. } => Some(tids.clone()),
            Target::System | Target::Cgroup(_) => None,
        };
        let of_thread = roots.clone();
        let seed = move || {
            let mut names = Names { namer, cgroups };
            names.namer.seed(&of_thread, tids.as_deref(), &mut names.cgroups);
            names
        };
        let snapshot = priority::spawn("snapshot", seed).map_err(SessionError::Thread)?;
        let mut pipeline = Pipeline::new(order, Namer::recorded(0, child, Accesses::InSamples));
        pipeline.snapshot = Some(snapshot);
        let kernel = Kernel {
            running,
            watch,
            reread: Some(ProcfsRescan::new(roots, recorder.as_ref())),
            recorder,
            begin,
            duration: Duration::ZERO,
            busy,
            cpu_time: None,
            unanswered: aside::unanswered(),
            notes,
        };
        Ok(Self { kernel, pipeline, begin, opened, rate })
    }

    /// The recorder, if the capture records.
    pub(in super::super) fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.kernel.recorder.as_ref()
    }

    /// The sizes of the tables of the running capture.
    pub(in super::super) fn tables(&self) -> &TablesHandle {
        &self.pipeline.tables
    }

    /// Adds a note that something may be missing.
    pub(super) fn note(&mut self, note: String) {
        self.kernel.notes.push(note);
    }

    /// Passes samples to `sink` until `ended`, which is called about every 50 ms, returns true; then the rest of the
    /// rings.
    pub(in super::super) fn run(self, sink: &mut dyn Sink, ended: &mut dyn FnMut(Progress) -> bool) -> Outcome {
        let Self { kernel, pipeline, begin, .. } = self;
        pipeline::run_in_turn(pipeline, kernel, sink, &mut StopPoll::new(begin, ended))
    }
}

impl Kernel {
    /// Takes queued hint events, as long as there is room for them.
    fn take_hints(&self, order: &mut Order) {
        let Some(watch) = &self.watch else { return };
        let worker = self.running.workers();
        while order.takes_hints(worker) {
            let Ok(batch) = watch.batches().try_recv() else { return };
            order.push(Batch { worker, ..batch });
        }
    }
}

impl Origin for Kernel {
    type Sample = PendingSample;

    fn fill(&mut self, inlet: &mut Inlet<'_, PendingSample>) -> Filled {
        match self.running.next_batch(TICK) {
            Ok(batch) => self.running.pool().put_list(inlet.push(batch)),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Filled::End,
        }
        if let Some(reread) = &self.reread {
            self.take_hints(inlet.order);
            reread.take(inlet.order);
        }
        Filled::More
    }

    fn stop(&mut self, order: &mut Order) -> Filled {
        self.running.stop();
        if let Some(watch) = &self.watch {
            watch.stop();
        }
        if let Some(reread) = self.reread.take() {
            reread.stop(order);
        }
        self.duration = self.begin.elapsed();
        self.cpu_time = self.busy.as_ref().and_then(BusyTime::now);
        if let Some(watch) = &self.watch {
            for batch in watch.batches() {
                order.push(Batch { worker: self.running.workers(), ..batch });
            }
        }
        Filled::More
    }

    fn look_again(&mut self, namer: &mut Namer, cgroups: &mut Cgroups, order: &mut Order) {
        if let Some(reread) = &mut self.reread {
            reread.poll(namer, cgroups, order);
        }
    }

    fn loss(&self) -> Loss {
        // The workers report their losses at the end.
        Loss::default()
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn loss_so_far(&self) -> Loss {
        self.running.loss_so_far()
    }

    fn measure(&self, tables: &mut Tables) {
        if let Some(reread) = &self.reread {
            reread.measure(tables);
        }
        self.running.pool().measure(tables);
    }

    fn end(self, outcome: &mut Outcome, mut ending: Ending<PendingSample>) {
        let Self { running, watch, recorder, duration, cpu_time, unanswered, mut notes, .. } = self;
        ending.namer.finish_code(&mut outcome.modules);
        notes.append(&mut outcome.notes);
        if let Some(recorder) = &recorder {
            recorder.note_cgroups(&ending.cgroups);
            notes.extend(recorder.left_out());
        }
        notes.append(&mut ending.namer.take_failures());
        outcome.notes = notes;
        if let Some(watch) = watch {
            let probe = watch.probe();
            let (counts, said) = watch.join();
            if let Some(hints) = &mut outcome.hints {
                (hints.probe, hints.counts) = (Some(probe), counts);
                hints.missing = said.first().cloned();
                hints.late += ending.order.late_hints;
            }
            outcome.notes.extend(said);
        }
        let totals = running.join();
        if let Some(recorder) = recorder {
            recorder.lost(&totals.lost);
        }
        (outcome.events, outcome.duration, outcome.realtime) = (totals.events, duration, totals.realtime);
        outcome.cpu_time = cpu_time;
        outcome.loss.add(&totals.loss);
        outcome.notes.extend(totals.notes);
        let unanswered = aside::unanswered().saturating_sub(unanswered);
        if unanswered > 0 {
            outcome.notes.push(format!(
                "{unanswered} look-ups of files or memory were given up: a file system or a process did not answer in {} ms",
                aside::SHORT.as_millis()
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_of_others_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let with = |capabilities: &str| {
            std::fs::create_dir_all(dir.path().join("self")).unwrap();
            std::fs::write(dir.path().join("self/status"), format!("Name:\tx\nCapEff:\t{capabilities}\n")).unwrap();
            strangers(&Roots { proc: dir.path().to_owned(), ..Roots::default() }, Source::Timer)
        };
        let said = with("0000004000000000").unwrap();
        assert!(
            said.starts_with("procfs hides") && said.ends_with("give no address; it takes CAP_SYS_PTRACE"),
            "{said}"
        );
        std::fs::create_dir(dir.path().join("1")).unwrap();
        assert!(with("0000004000000000").unwrap().starts_with("procfs does not show"));
        assert_eq!(with("000001fffeffffff"), None);
    }
}
