//! Connects the parts: from the rings to samples in order of time, each with its thread's name and its memory, to a sink.
//!
//! [`Session::builder`] sets up a capture, [`Builder::start`] opens the events, [`Session::run`] samples and decides. For
//! custom steps, [`Session::run_until`] returns what was [`Sampled`] before the decision, and [`Session::run_into`] samples
//! into a [`Sink`] and decides nothing. Samples come from the kernel, from a recording ([`Builder::profile`]) or from a
//! [`Feed`].

use std::time::Duration;

pub use crate::outcome::{Outcome, RecoveryStats, UnresolvedPlace};
use crate::resolve::{Cgroups, Modules, Stacks};
use crate::sample::sched::SchedEvent;
use crate::sample::{Comm, Sample, ThreadIndex};

mod analysis;
mod analyzed;
mod builder;
mod capture;
mod decider;
mod error;
mod feed;
mod hints;
mod lines;
mod names;
mod numbers;
mod order;
mod profiler;
mod ready;
mod recorded;
mod recovery;
mod rescan;
mod running;
mod sched;
mod stacked;
mod stages;
mod start;
mod stop;
#[cfg(feature = "parquet")]
mod tabled;
mod text;
mod traced;
mod unresolved;
mod wakeups;

pub use analysis::{Analysis, Sampled};
pub use analyzed::ToAnalysis;
pub use builder::Builder;
use capture::{Capture, CaptureOptions};
pub use decider::Decider;
pub(crate) use error::of_source;
pub use error::{Error, ErrorKind, NoProcess, NotStarted, SessionError, Skipped};
pub use feed::{Batch, Feed};
use names::Names;
pub use profiler::{Profiler, ProfilerError, ProfilerStatus};
pub use running::Session;
pub use sched::SchedStats;
pub use stacked::StackSink;
pub use stop::StopHandle;
#[cfg(feature = "parquet")]
pub use tabled::Tabled;
pub use traced::{PlaceOf, ToTrace, TraceCounts, TraceOptions};

pub use crate::sample::{FileId, SideBand, TimedSideBand};
pub use crate::sampler::attr::{EventSpec, Rate};
pub use crate::sampler::event::{default_name as default_event, parse as parse_event, EventNameError};
pub use crate::sampler::loss::Loss;
pub use crate::sampler::loss::SchedLoss;
pub use crate::sampler::open::EventError;
pub use crate::sampler::pmu::{NoIbs, NoPebs, PmuError};
pub use crate::sampler::sched::SchedOptions;
pub use crate::sampler::{Hardware, Pace, SamplerError, Target};
pub use crate::tables::{TableSize, Tables, TablesHandle};

/// How often a capture checks its rings when nothing arrives.
const TICK: Duration = Duration::from_millis(50);

/// Receives samples in order of time.
pub trait Sink {
    /// Takes one sample. `cgroups` resolves its cgroup's id.
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups);

    /// Takes consecutive samples, as if each were passed to [`Sink::sample`].
    fn samples(&mut self, samples: &[Sample], cgroups: &mut Cgroups) {
        for sample in samples {
            self.sample(sample, cgroups);
        }
    }

    /// Takes consecutive events of the scheduler, in order of time with the samples; hints are among them where they are followed.
    /// There are none without [`Builder::sched`], unless a recording has them.
    fn sched(&mut self, events: &[SchedEvent], cgroups: &mut Cgroups) {
        let _ = (events, cgroups);
    }

    /// The last event was given; these are the names of processes (those of their main threads) by their id, as far as they are
    /// known. `cgroups` resolves the ids of cgroups.
    fn processes(&mut self, names: &[(u32, Comm)], cgroups: &mut Cgroups) {
        let _ = (names, cgroups);
    }

    /// The last sample was given; `names` are the last names of threads, as far as they are known. A thread may have taken another
    /// name since its last sample. Not called where samples are selected, and not for lines, which have names of their own.
    fn ended(&mut self, names: &[(ThreadIndex, Comm)]) {
        let _ = names;
    }

    /// Sets the sizes of its tables.
    fn measure(&self, tables: &mut Tables) {
        let _ = tables;
    }

    /// Lends the call stacks so far, with the objects that contain their code, from time to time while samples arrive: for a sink
    /// that has results before the end. Not for recordings, which are read in several threads.
    fn stacks(&mut self, stacks: &Stacks, modules: &Modules) {
        let _ = (stacks, modules);
    }

    /// True if samples must contain the code that made the access ([`Sample::code`]), to be named at the end.
    fn wants_code(&self) -> bool {
        false
    }

    /// True if samples must contain their call stack ([`Sample::stack`](crate::sample::Sample)), which
    /// [`Outcome::stacks`] has at the end.
    fn wants_stacks(&self) -> bool {
        false
    }
}

/// Decides whether a sample is used, see [`Builder::select`]. `cgroups` resolves its cgroup's id.
pub type Select<'a> = &'a mut dyn FnMut(&Sample, &mut Cgroups) -> bool;

/// The progress of a capture.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Progress {
    /// Time since its beginning.
    pub elapsed: Duration,
    /// Samples so far.
    pub samples: u64,
}
