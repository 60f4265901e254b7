//! Analysers of a trace: a table of them, one pass over the events for those that are asked for, and their results. Pure.
//!
//! [`ANALYSERS`] says what each needs. [`Analysis::take`] gives an event to the four engines: `runs` (runs and waits of
//! threads, built on [`scxprof_sched::Tracker`]), `pairs` (something begins and ends), `steps` (a value holds until the next
//! one) and `counts`. [`Analysis::finish`] gives a typed result for each analyser whose events the trace has.

mod counts;
mod kinds;
mod pairs;
mod report;
mod runs;
mod select;
mod steps;
mod text_table;

use serde::Serialize;

use super::{Event, Info, Names, Trace, TraceThreads, Tracks};
pub use counts::*;
pub use kinds::{capabilities, Analyser, Capability, Engine, EventKind, Id, ANALYSERS};
pub use pairs::*;
pub use report::{Report, Unavailable};
pub use runs::*;
use scxprof_base::sample::places::CpuPlaces;
pub use select::{Select, ThreadTest};
pub use steps::*;
pub use text_table::{Spread, TextTable, ThreadName};

/// How outliers are told from the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// More than 1.5 times the interquartile range below the first or above the third quartile.
    #[default]
    Iqr,
    /// More than 3.5 times 1.4826 times the median absolute deviation from the median.
    Mad,
    /// More than 3 standard deviations from the mean.
    Stddev,
    /// Above the 99th percentile, or below the 1st.
    Percentile,
}

/// What the lines of `groups` are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// All threads of a name.
    #[default]
    Name,
    /// Each thread.
    Thread,
    /// Each process.
    Process,
    /// Each layer of scx_layered, as wprof says it.
    Layer,
    /// Each cell and subcell of a configuration.
    Subcell,
}

impl By {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Thread => "thread",
            Self::Process => "process",
            Self::Layer => "layer",
            Self::Subcell => "subcell",
        }
    }
}

/// Finds the cell and subcell of a thread by its name.
type SubcellOf = dyn Fn(&[u8]) -> String + Send + Sync;

/// The cell and subcell of a thread, by its name.
#[derive(Clone)]
pub struct Subcells(pub std::sync::Arc<SubcellOf>);

impl std::fmt::Debug for Subcells {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Subcells")
    }
}

/// The request.
#[derive(Debug, Clone)]
pub struct Options {
    /// The analysers; none: all.
    pub only: Vec<Id>,
    /// Lines of each list.
    pub limit: usize,
    /// How outliers are told from the rest.
    pub method: Method,
    /// Places of CPUs, empty if they are not known.
    pub places: CpuPlaces,
    /// What the lines of `groups` are about.
    pub by: By,
    /// The subcells of [`By::Subcell`].
    pub subcells: Option<Subcells>,
    /// The part of the trace that counts.
    pub select: Select,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            only: Vec::new(),
            limit: 20,
            method: Method::default(),
            places: CpuPlaces::default(),
            by: By::default(),
            subcells: None,
            select: Select::default(),
        }
    }
}

impl Options {
    /// True if the analyser is asked for.
    #[must_use]
    pub fn wants(&self, id: Id) -> bool {
        self.only.is_empty() || self.only.contains(&id)
    }
}

/// Declares the result of each analyser.
macro_rules! outcomes {
    ($($id:ident($result:path),)+) => {
        /// What an analyser found.
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(untagged)]
        #[non_exhaustive]
        pub enum Findings {
            $(#[doc = concat!("Of `", stringify!($id), "`.")] $id(Box<$result>),)+
        }

        impl Findings {
            /// Whose it is.
            #[must_use]
            pub fn id(&self) -> Id {
                match self {
                    $(Self::$id(_) => Id::$id,)+
                }
            }

            /// For people.
            #[must_use]
            pub fn tables(&self) -> Vec<TextTable> {
                match self {
                    $(Self::$id(result) => result.tables(),)+
                }
            }
        }

        $(impl From<$result> for Findings {
            fn from(result: $result) -> Self {
                Self::$id(Box::new(result))
            }
        })+
    };
}

outcomes! {
    CpuUtilization(runs::CpuUtilization),
    WakeupLatency(runs::WakeupLatency),
    LatencyBreakdown(runs::LatencyBreakdown),
    WakeupCorrelation(runs::WakeupCorrelation),
    TaskStates(runs::TaskStates),
    Preemptions(runs::Preemptions),
    MigrationPatterns(runs::MigrationPatterns),
    LlcLocality(runs::LlcLocality),
    RunQueue(runs::RunQueue),
    WakeupChains(runs::WakeupChains),
    Fairness(runs::Fairness),
    Outliers(runs::Outliers),
    Bottlenecks(runs::Bottlenecks),
    Groups(runs::Groups),
    CompoundDelay(counts::CompoundDelay),
    Requests(pairs::Requests),
    IrqAnalysis(pairs::IrqAnalysis),
    IpiAnalysis(pairs::IpiAnalysis),
    BlockIo(pairs::BlockIo),
    NetworkIo(counts::NetworkIo),
    FileIo(pairs::FileIo),
    MemoryPressure(pairs::MemoryPressure),
    PowerState(pairs::PowerState),
    DsqLatency(pairs::DsqLatency),
    CpuFrequency(steps::CpuFrequency),
    CpuIdle(steps::CpuIdle),
    DsqSummary(steps::DsqSummary),
}

/// What engines need to name what they found.
pub(super) struct Context<'a> {
    names: &'a Names,
    threads: &'a TraceThreads,
    tracks: &'a Tracks,
    info: &'a Info,
    options: &'a Options,
}

/// The analysers at work.
#[derive(Debug)]
pub struct Analysis {
    options: Options,
    selection: select::Selection,
    runs: Option<runs::Runs>,
    pairs: Option<pairs::Pairs>,
    steps: Option<steps::Steps>,
    counts: Option<counts::Counts>,
}

impl Analysis {
    /// Those that are asked for.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let has = |engine| ANALYSERS.iter().any(|analyser| analyser.engine == engine && options.wants(analyser.id));
        Self {
            runs: has(Engine::Runs).then(|| runs::Runs::new(&options)),
            pairs: has(Engine::Pairs).then(|| pairs::Pairs::new(&options)),
            steps: has(Engine::Steps).then(|| steps::Steps::new(&options)),
            counts: has(Engine::Counts).then(counts::Counts::default),
            selection: select::Selection::new(options.select.clone()),
            options,
        }
    }

    /// Before `time` not all CPUs were observed; see [`Trace::observed_from`].
    pub fn unobserved_before(&mut self, time: u64) {
        if let Some(runs) = &mut self.runs {
            runs.unobserved_before(time);
        }
    }

    /// Takes the next event.
    pub fn take(&mut self, event: &Event) {
        if !self.selection.begins(event.time()) {
            return;
        }
        let is_selected = self.selection.keeps(event);
        if let Some(runs) = &mut self.runs {
            runs.take(event, &self.selection, is_selected);
        }
        if !is_selected {
            return;
        }
        if let Some(pairs) = &mut self.pairs {
            pairs.take(event);
        }
        if let Some(steps) = &mut self.steps {
            steps.take(event);
        }
        if let Some(counts) = &mut self.counts {
            counts.take(event);
        }
    }

    /// The results, after the last event of `trace`.
    #[must_use]
    pub fn finish<R: std::io::Read + std::io::Seek>(self, trace: &Trace<R>) -> Report {
        self.finish_with(trace.names(), trace.threads(), trace.tracks(), &trace.info())
    }

    /// The same of a recording that is no trace.
    pub(super) fn finish_with(self, names: &Names, threads: &TraceThreads, tracks: &Tracks, info: &Info) -> Report {
        let options = self.options;
        let context = Context { names, threads, tracks, info, options: &options };
        let mut outcomes = Vec::new();
        if let Some(runs) = self.runs {
            runs.finish(&context, &self.selection, &mut outcomes);
        }
        if let Some(pairs) = self.pairs {
            pairs.finish(&context, &mut outcomes);
        }
        if let Some(steps) = self.steps {
            steps.finish(&context, &mut outcomes);
        }
        if let Some(counts) = self.counts {
            counts.finish(&context, &mut outcomes);
        }
        Report::new(outcomes, info, &options)
    }
}
