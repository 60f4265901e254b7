//! A capture of the kernel's events: from the start of the workers to the last sample in the sink.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;
use rustc_hash::{FxHashMap, FxHashSet};

use super::hints::Hints;
use super::names::Names;
use super::order::Order;
use super::recovery::Recoverer;
use super::rescan::ProcfsRescan;
use super::stop::{StopPoll, TICK};
use super::wakeups::Wakeups;
use super::{Outcome, Progress, SessionError, Sink, TablesHandle};
use crate::bpf::{self, Watch};
use crate::host::aside;
use crate::host::clock::boottime_ns;
use crate::host::priority;
use crate::host::{proc, Roots};
use crate::profile::Recorder;
use crate::resolve::{Cgroups, Maps, SymbolOptions, Threads, Unwinder};
use crate::sample::batch::{Batch, PendingSample};
use crate::sample::Source;
use crate::sampler::attr::Feature;
use crate::sampler::event::CHAIN_SIZE;
use crate::sampler::loss::Loss;
use crate::sampler::tee::Tee;
use crate::sampler::{self, Running, Sampler, Target};
use scxprof_recover::REGS_MASK;

/// How often the sizes of the tables are measured.
const MEASURE: Duration = Duration::from_secs(1);
/// Bytes of a sample's registers and stack while it waits.
const CONTEXT_SIZE: usize = 768;
/// Bytes of the memory around the registers of a sample, if it is read.
const SNAPSHOT_SIZE: usize = 2048;

/// The options of a running capture.
#[derive(Debug)]
pub(super) struct CaptureOptions {
    /// What to sample and how.
    pub(super) sampler: sampler::SamplerOptions,
    /// The directories under which the host is read.
    pub(super) roots: Roots,
    /// Bytes for queues and caches, without the rings.
    pub(super) memory: usize,
    /// Which task hints to follow, if any.
    pub(super) hints: Option<bpf::HintOptions>,
    /// The directory of a profile to record, if any.
    pub(super) record: Option<PathBuf>,
    /// Where the files of unwound code are.
    pub(super) symbols: SymbolOptions,
    /// Keeps the memory in samples.
    pub(super) keep_memory: bool,
    /// For the source `wakeups`: the processes that are watched with what they fork; `None` for all.
    pub(super) only: Option<FxHashSet<u32>>,
}

/// Bytes of registers and of the stack in each sample, if stacks are unwound from them.
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
        // hidepid, or subset=pid.
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
pub(super) struct Capture {
    running: Running,
    /// Task hints, if they can be followed.
    watch: Option<Watch>,
    begin: Instant,
    /// When all events were open, CLOCK_BOOTTIME in ns: what a watched thread makes from then on inherits them.
    pub(super) opened: u64,
    roots: Roots,
    /// What existed before the first record, while it is still being read.
    snapshot: Option<JoinHandle<Names>>,
    names: Option<Names>,
    recorder: Option<Arc<Recorder>>,
    order: Order,
    /// Look-ups without an answer before this capture.
    unanswered: u64,
    pub(super) notes: Vec<String>,
    pub(super) tables: TablesHandle,
    /// The event, and its samples per second on a busy CPU, if that is known.
    pub(super) rate: Option<(String, f64)>,
}

impl Capture {
    /// Opens and enables the events, then reads what exists already in the background, so that nothing is missed in between.
    ///
    /// A capture that records takes names only from what it records, so that its replay gives the same samples.
    ///
    /// # Errors
    /// [`SessionError`]; then all events are closed.
    pub(super) fn start(options: &CaptureOptions) -> Result<Self, SessionError> {
        let cgroups = Cgroups::new(&options.roots)?;
        let sampler = Sampler::open(&options.sampler)?;
        let opened = boottime_ns();
        let mut notes = sampler.notes().to_vec();
        let rate = sampler.samples_per_second();
        if !matches!(options.sampler.target, Target::Tasks { .. }) {
            notes.extend(strangers(&options.roots, options.sampler.source));
        }
        // Before the first sample, so that each has its thread's hint.
        let mut hints = options.hints.is_some().then(Hints::default);
        let watch = match options.hints.as_ref().map(|hints| Watch::start(hints, &options.roots.proc)) {
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
        let recorder = match &options.record {
            Some(dir) => {
                let CaptureOptions {
                    sampler: sampler::SamplerOptions { source, .. }, roots, hints, keep_memory, ..
                } = options;
                let watched = options.only.as_ref().map(|pids| pids.iter().copied().collect());
                Some(Arc::new(Recorder::new(&sampler, *source, roots, hints.is_some(), *keep_memory, watched, dir)?))
            }
            None => None,
        };
        let tee = recorder.clone().map(|recorder| recorder as Arc<dyn Tee>);
        let running = sampler.start(tee.as_ref())?;
        let begin = Instant::now();
        let recovers = options.sampler.source == Source::Timer;
        // A quarter for samples that wait for their order or for code, an eighth for mappings; the sink gets the rest.
        let context = match (recovers, options.sampler.snapshots) {
            (true, true) => CONTEXT_SIZE + SNAPSHOT_SIZE,
            (true, false) => CONTEXT_SIZE,
            (false, _) if options.sampler.source == Source::Stacks => CHAIN_SIZE + stack_size(options),
            (false, _) => 0,
        };
        let waiting = size_of::<PendingSample>() + context;
        let share = if recovers { options.memory / 8 } else { options.memory / 4 };
        let joins_hints = options.sampler.sched.is_some() || options.sampler.source == Source::Wakeups;
        let mut order = Order::new(running.workers() + usize::from(watch.is_some()), share / waiting);
        order.joins_hints = joins_hints;
        let child_pid_namespace = options.sampler.child_pid_namespace;
        let mut names = Names::recorded(options.memory / 8, child_pid_namespace);
        (names.cgroups, names.hints, names.recorder) = (cgroups, hints, recorder.clone());
        if options.sampler.source == Source::Stacks && stack_size(options) > 0 {
            names.unwinder = Some(Unwinder::new(options.symbols.clone(), FxHashMap::default()));
        }
        names.recoverer = recovers.then(|| Recoverer::new(&options.roots.proc, options.memory / 4, running.wanted()));
        if recorder.is_none() {
            names.threads = Threads::new(&options.roots);
            names.maps = Maps::new(&options.roots, options.memory / 8);
            names.cgroup_of_thread = ask_for_cgroups.then(FxHashMap::default);
        }
        if options.sampler.source == Source::Wakeups {
            names.wakeups = Some(Wakeups::new(options.only.clone(), std::process::id()));
        }
        let tids = match &options.sampler.target {
            Target::Tasks { tids, .. } => Some(tids.clone()),
            Target::System | Target::Cgroup(_) => None,
        };
        let roots = options.roots.clone();
        let recorded = recorder.clone();
        let seed = move || {
            match recorded {
                Some(recorder) => names.seed_recorded(&roots, &recorder, tids.as_deref()),
                None => names.seed(&roots, tids.is_none()),
            }
            names
        };
        let snapshot = priority::spawn("snapshot", seed).map_err(SessionError::Thread)?;
        Ok(Self {
            running,
            watch,
            begin,
            opened,
            roots: options.roots.clone(),
            snapshot: Some(snapshot),
            names: None,
            recorder,
            order,
            unanswered: aside::unanswered(),
            notes,
            tables: TablesHandle::default(),
            rate,
        })
    }

    /// The recorder, if the capture records.
    pub(super) fn recorder(&self) -> Option<&Arc<Recorder>> {
        self.recorder.as_ref()
    }

    /// Passes samples to `sink` until `stop`, which is called about every 50 ms, returns true; then the rest of the rings.
    pub(super) fn run(mut self, sink: &mut dyn Sink, stop: &mut dyn FnMut(Progress) -> bool) -> Outcome {
        let mut reread = ProcfsRescan::new(&self.roots, self.recorder.as_ref());
        let mut ends = StopPoll::new(self.begin, stop);
        let mut measured = self.begin;
        loop {
            if self.names.is_none() && self.order.is_full() {
                // Reading procfs takes long. The workers count what they cannot pass on meanwhile.
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
                self.take_snapshot(sink);
            }
            if let Some(names) = &mut self.names {
                if self.order.is_due() {
                    names.release(&mut self.order, sink);
                    names.lend(sink);
                }
                reread.poll(names, &mut self.order);
                if measured.elapsed() >= MEASURE {
                    measured = Instant::now();
                    self.tables.measure(|tables| {
                        names.measure(&self.order, sink, tables);
                        reread.measure(tables);
                    });
                }
            }
            if ends.met(self.names.as_ref().map_or(0, |names| names.records)) {
                break;
            }
        }
        self.finish(sink, reread)
    }

    /// Stops the events, and passes on what is left of them.
    fn finish(mut self, sink: &mut dyn Sink, reread: ProcfsRescan) -> Outcome {
        self.running.stop();
        if let Some(watch) = &self.watch {
            watch.stop();
        }
        reread.stop(&mut self.order);
        let duration = self.begin.elapsed();
        self.take_snapshot(sink);
        let Self { running, watch, names, recorder, unanswered, mut order, notes, tables, .. } = self;
        if let Some(watch) = &watch {
            for batch in watch.batches() {
                order.push(Batch { worker: running.workers(), ..batch });
            }
        }
        let mut outcome = Outcome { notes, ..Outcome::default() };
        if let Some(mut names) = names {
            for batch in running.batches() {
                order.push(batch);
                if order.is_due() {
                    names.release(&mut order, sink);
                }
            }
            order.end();
            names.release(&mut order, sink);
            if let Some(recorder) = &recorder {
                recorder.note_cgroups(&names.cgroups);
            }
            let mut notes = std::mem::take(&mut outcome.notes);
            outcome = names.outcome(&order, Loss::default(), sink);
            tables.measure(|tables| names.measure(&order, sink, tables));
            outcome.tables = tables.now();
            notes.append(&mut outcome.notes);
            notes.extend(recorder.iter().flat_map(|recorder| recorder.left_out()));
            notes.append(&mut names.failures);
            outcome.notes = notes;
            outcome.modules = names.modules.take().unwrap_or_default();
            outcome.modules.finish(&names.maps);
        }
        if let Some(watch) = watch {
            let probe = watch.probe();
            let (counts, said) = watch.join();
            if let Some(hints) = &mut outcome.hints {
                (hints.probe, hints.counts) = (Some(probe), counts);
                hints.missing = said.first().cloned();
                hints.late += order.late_hints;
            }
            outcome.notes.extend(said);
        }
        let totals = running.join();
        if let Some(recorder) = recorder {
            recorder.lost(&totals.lost);
        }
        (outcome.events, outcome.duration, outcome.realtime) = (totals.events, duration, totals.realtime);
        outcome.loss.add(&totals.loss);
        outcome.notes.extend(totals.notes);
        let unanswered = aside::unanswered().saturating_sub(unanswered);
        if unanswered > 0 {
            outcome.notes.push(format!(
                "{unanswered} look-ups of files or memory were given up: a file system or a process did not answer in {} ms",
                aside::SHORT.as_millis()
            ));
        }
        outcome
    }

    /// Takes waiting hint events, as long as there is room for them.
    fn take_hints(&mut self) {
        let Some(watch) = &self.watch else { return };
        let worker = self.running.workers();
        while self.order.takes_hints(worker) {
            let Ok(batch) = watch.batches().try_recv() else { return };
            self.order.push(Batch { worker, ..batch });
        }
    }

    /// Waits for the background reading.
    fn take_snapshot(&mut self, sink: &dyn Sink) {
        if let Some(snapshot) = self.snapshot.take() {
            match snapshot.join() {
                Ok(mut names) => {
                    names.keep(sink);
                    self.names = Some(names);
                }
                Err(_) => self.notes.push("the thread that reads procfs died: no sample could be named".to_owned()),
            }
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
