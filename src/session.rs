//! Wires the parts: rings to samples in order of time, each with its thread's name and the memory it touched, to a sink.
//!
//! [`Session::builder`] sets up, [`Builder::start`] opens the events, [`Session::run`] samples and decides. The steps between
//! are there for those who want something of their own: [`Session::run_until`] gives what was [`Sampled`], before anything is
//! decided, and [`Session::run_into`] samples into a [`Sink`] and decides nothing. Samples come from the kernel, from a
//! recording ([`Builder::profile`]) or from a [`Feed`].

use std::time::Duration;

pub use crate::outcome::{Outcome, RecoveryStats};
use crate::resolve::Cgroups;
use crate::sample::Sample;

mod analysis;
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
mod recorded;
mod recovery;
mod rescan;
mod running;
mod start;
mod stop;
mod text;

pub use analysis::{Analysis, Sampled};
pub use builder::Builder;
use capture::{Capture, CaptureOptions};
pub use decider::Decider;
pub(crate) use error::of_source;
pub use error::{Error, ErrorKind, NoProcess, NotStarted, SessionError, Skipped};
pub use feed::{Batch, Feed};
use names::Names;
pub use running::Session;
pub use stop::StopHandle;

pub use crate::sample::{FileId, SideBand, TimedSideBand};
pub use crate::sampler::loss::Loss;
pub use crate::sampler::open::EventError;
pub use crate::sampler::pmu::{NoIbs, NoPebs, PmuError};
pub use crate::sampler::{Hardware, Pace, SamplerError, Target};

/// How often a capture looks up where nothing arrives.
const TICK: Duration = Duration::from_millis(50);

/// Where samples end up, in order of time.
pub trait Sink {
    /// Takes one sample. The names resolve its cgroup's id.
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups);

    /// Takes samples that follow one another, as if each were given to [`Sink::sample`].
    fn samples(&mut self, samples: &[Sample], cgroups: &mut Cgroups) {
        for sample in samples {
            self.sample(sample, cgroups);
        }
    }

    /// True if samples shall say which code made the access ([`Sample::code`]), to be named at the end.
    fn wants_code(&self) -> bool {
        false
    }
}

/// Says of a sample whether it is looked at, see [`Builder::select`]. The names resolve its cgroup's id.
pub type Select<'a> = &'a mut dyn FnMut(&Sample, &mut Cgroups) -> bool;

/// How far a capture is.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Progress {
    /// Since its beginning.
    pub elapsed: Duration,
    /// Samples so far.
    pub samples: u64,
}
