//! A running session: it samples until something ends it.

use std::fmt;
use std::sync::Arc;

use super::origins::{self, Capture};
use super::stop::StopConditions;
use super::{Analysis, AnalysisOptions, Decider, Error, Feed, Outcome, Progress, Sampled, Select, Sink, Skipped};
use super::{Meanwhile, Tables, TablesHandle, TraceInput};
use crate::config::{CellSpecs, DecisionOptions};
use crate::host::priority::raised;
use crate::profile::{Profile, Recorder};
use crate::resolve::{Cgroups, SymbolOptions};
use crate::sample::caches::Caches;
use crate::sample::sched::SchedEvent;
use crate::sample::{Comm, Sample, Source, ThreadIndex};
use scxprof_trace::Event;

/// Where the samples come from, once it is open.
pub(super) enum OpenInput<'a> {
    /// The kernel.
    Kernel(Box<Capture>),
    /// A recording, and where the files of its unwound code are.
    Profile(&'a mut Profile, SymbolOptions),
    /// A caller's feed.
    Feed(&'a mut dyn Feed),
    /// A trace.
    Trace(&'a mut TraceInput),
}

/// The samples on their way to the sinks.
pub(super) struct Sampling<'a> {
    pub(super) from: OpenInput<'a>,
    pub(super) sinks: Vec<&'a mut dyn Sink>,
    /// Which samples the sinks get.
    pub(super) select: Option<Select<'a>>,
    pub(super) stop: StopConditions,
    /// Bytes for all of it.
    pub(super) memory: usize,
    /// Threads are distinguished by hints, which a feed may provide.
    pub(super) use_hints: bool,
}

impl Sampling<'_> {
    fn run(self, sink: &mut dyn Sink, mut ended: impl FnMut(Progress) -> bool) -> Outcome {
        let Self { from, sinks, select, stop, memory, use_hints } = self;
        let is_selection = select.is_some();
        let mut all = All { first: sink, others: sinks, select, selected: Vec::new() };
        let mut ended = |now: Progress| ended(now) || stop.met(now);
        let outcome = match from {
            OpenInput::Kernel(capture) => capture.run(&mut all, &mut ended),
            OpenInput::Profile(profile, symbols) => {
                origins::run_profile(profile, memory, &symbols, &mut all, &mut ended)
            }
            OpenInput::Feed(feed) => origins::run_feed(feed, memory, use_hints, &mut all, &mut ended),
            OpenInput::Trace(trace) => origins::run_trace(trace, &mut all, &mut ended),
        };
        // It is that of all threads.
        let cpu_time = outcome.cpu_time.filter(|_| !is_selection);
        Outcome { cpu_time, ..outcome }
    }
}

/// What to compute from the samples.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) specs: CellSpecs,
    pub(super) analysis: AnalysisOptions,
    pub(super) target_cpus: usize,
    pub(super) caches: Option<Caches>,
    pub(super) symbols: SymbolOptions,
}

impl Plan {
    /// Makes the decider, which gets a part of `memory`.
    pub(super) fn decider(&self, source: Source, memory: usize) -> Decider {
        let mut decider = Decider::new(self.specs.clone(), source, memory);
        if self.analysis.symbols {
            decider = decider.keep_code();
        }
        if !self.analysis.report {
            decider = decider.without_report();
        }
        if self.analysis.score {
            decider = decider.keep_slices();
        }
        if self.analysis.use_hints {
            decider = decider.use_hints();
        }
        decider
    }

    /// The options of the decision.
    pub(super) fn decision(&self) -> DecisionOptions {
        let AnalysisOptions { min_share, scheduler, this_host, .. } = self.analysis;
        let caches = self.caches;
        DecisionOptions { scheduler, caches, this_host, ..DecisionOptions::new(min_share, self.target_cpus) }
    }
}

/// A session that already samples, see [`Builder::start`](super::Builder::start). Samples that arrive before it runs wait
/// for it, while there is room.
pub struct Session<'a> {
    pub(super) source: Source,
    pub(super) skipped: Skipped,
    pub(super) no_kernel: Option<crate::sampler::SamplerError>,
    pub(super) sampling: Sampling<'a>,
    /// Its thread has a nice value of -20 while it works.
    pub(super) raises: bool,
    pub(super) plan: Plan,
}

impl fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("source", &self.source)
            .field("skipped", &self.skipped)
            .field("sinks", &self.sampling.sinks.len())
            .finish_non_exhaustive()
    }
}

impl Session<'_> {
    /// The source of the addresses: the first source that worked, that of the recording, or [`Source::Recorded`] for a [`Feed`].
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// The sources that were tried before it, and why they do not work here.
    #[must_use]
    pub fn skipped(&self) -> &[(Source, crate::sampler::SamplerError)] {
        &self.skipped
    }

    /// Why no kernel code is sampled with [`HostOptions::kernel_if_possible`](super::HostOptions::kernel_if_possible).
    #[must_use]
    pub fn no_kernel(&self) -> Option<&crate::sampler::SamplerError> {
        self.no_kernel.as_ref()
    }

    /// The event of the source and its samples per second on a busy CPU, if that is known before the first sample.
    #[must_use]
    pub fn samples_per_second(&self) -> Option<(&str, f64)> {
        match &self.sampling.from {
            OpenInput::Kernel(capture) => capture.rate.as_ref().map(|(event, rate)| (event.as_str(), *rate)),
            _ => None,
        }
    }

    /// The sizes of its tables while it runs; none for a recording or a feed.
    #[must_use]
    pub fn tables(&self) -> TablesHandle {
        match &self.sampling.from {
            OpenInput::Kernel(capture) => capture.tables().clone(),
            OpenInput::Profile(..) | OpenInput::Feed(_) | OpenInput::Trace(_) => TablesHandle::default(),
        }
    }

    /// What is computed from its samples.
    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How names of code are found.
    pub(super) fn symbol_options(&self) -> &SymbolOptions {
        &self.plan.symbols
    }

    /// The recorder, which finishes the profile of [`HostOptions::record`](super::HostOptions::record).
    #[must_use]
    pub fn recorder(&self) -> Option<Arc<Recorder>> {
        self.sampling.stop.recorder.clone()
    }

    /// Samples until its end, and decides.
    ///
    /// # Errors
    /// [`Error::NoSamples`].
    pub fn run(self) -> Result<Analysis, Error> {
        self.run_until(|_| false).decide()
    }

    /// Samples until its end, or until `ended`, which is called about every 50 ms, returns true.
    pub fn run_until(self, ended: impl FnMut(Progress) -> bool) -> Sampled {
        let Self { source, skipped, sampling, raises, plan, .. } = self;
        let _raised = raised(raises);
        let mut decider = plan.decider(source, sampling.memory);
        if matches!(sampling.from, OpenInput::Profile(..)) {
            decider = decider.of_recording();
        }
        let procfs = matches!(sampling.from, OpenInput::Kernel(_)).then(|| sampling.stop.roots.proc.clone());
        let outcome = sampling.run(&mut decider, ended);
        let mut sampled = Sampled::new(decider, outcome, plan.decision(), plan.symbols);
        (sampled.skipped, sampled.procfs, sampled.raises) = (skipped, procfs, raises);
        sampled
    }

    /// As [`Session::run_until`], but decides nothing: passes the samples to `sink`, and to those of
    /// [`Builder::sink`](super::Builder::sink).
    pub fn run_into(self, sink: &mut dyn Sink, ended: impl FnMut(Progress) -> bool) -> Outcome {
        let _raised = raised(self.raises);
        self.sampling.run(sink, ended)
    }
}

/// A sink, and all others that get the selected samples.
struct All<'a, 'b> {
    first: &'a mut dyn Sink,
    others: Vec<&'b mut dyn Sink>,
    select: Option<Select<'b>>,
    /// The selected samples, while they are passed on.
    selected: Vec<Sample>,
}

impl All<'_, '_> {
    fn hand_on(&mut self, samples: &[Sample], cgroups: &mut Cgroups) {
        self.first.samples(samples, cgroups);
        for sink in &mut self.others {
            sink.samples(samples, cgroups);
        }
    }
}

impl Sink for All<'_, '_> {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        self.samples(std::slice::from_ref(sample), cgroups);
    }

    fn samples(&mut self, samples: &[Sample], cgroups: &mut Cgroups) {
        let Some(select) = &mut self.select else { return self.hand_on(samples, cgroups) };
        let mut selected = std::mem::take(&mut self.selected);
        selected.clear();
        selected.extend(samples.iter().filter(|sample| select(sample, cgroups)));
        if !selected.is_empty() {
            self.hand_on(&selected, cgroups);
        }
        self.selected = selected;
    }

    fn sched(&mut self, events: &[SchedEvent], cgroups: &mut Cgroups) {
        self.first.sched(events, cgroups);
        for sink in &mut self.others {
            sink.sched(events, cgroups);
        }
    }

    fn events(&mut self, events: &[Event], cgroups: &mut Cgroups) {
        self.first.events(events, cgroups);
        for sink in &mut self.others {
            sink.events(events, cgroups);
        }
    }

    fn processes(&mut self, names: &[(u32, Comm)], cgroups: &mut Cgroups) {
        self.first.processes(names, cgroups);
        for sink in &mut self.others {
            sink.processes(names, cgroups);
        }
    }

    fn ended(&mut self, names: &[(ThreadIndex, Comm)]) {
        if self.select.is_some() {
            // Samples may be selected by their name, and what came after the last one was not selected.
            return;
        }
        self.first.ended(names);
        for sink in &mut self.others {
            sink.ended(names);
        }
    }

    fn meanwhile(&mut self, now: &dyn Meanwhile, cgroups: &mut Cgroups) {
        self.first.meanwhile(now, cgroups);
        for sink in &mut self.others {
            sink.meanwhile(now, cgroups);
        }
    }

    fn measure(&self, tables: &mut Tables) {
        self.first.measure(tables);
        for sink in &self.others {
            sink.measure(tables);
        }
    }

    fn wants_code(&self) -> bool {
        self.first.wants_code() || self.others.iter().any(|sink| sink.wants_code())
    }

    fn wants_stacks(&self) -> bool {
        self.first.wants_stacks() || self.others.iter().any(|sink| sink.wants_stacks())
    }
}
