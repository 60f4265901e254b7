//! A trace that another program wrote: scheduling and other events, but no samples.

use std::fs::File;
use std::time::Instant;

use crate::outcome::Outcome;
use crate::sample::batch::PendingSample;
use crate::sample::Comm;
use crate::sampler::loss::Loss;
use crate::session::inlet::Inlet;
use crate::session::namer::{Accesses, Namer};
use crate::session::order::Order;
use crate::session::origin::{Ending, Filled, Origin};
use crate::session::pipeline::{self, Pipeline, Stages};
use crate::session::stop::{Progress, StopPoll};
use crate::sinks::Sink;
use scxprof_trace::{Event, Trace, TraceError};

/// The most events that are passed on at once.
const BATCH: usize = 256;

/// A trace that a session reads, see [`Builder::trace`](crate::session::Builder::trace).
#[derive(Debug)]
pub struct TraceInput {
    /// The trace, at the position up to which it was read.
    pub trace: Trace<File>,
    failed: Option<TraceError>,
}

impl TraceInput {
    /// Reads from the current position of the trace.
    #[must_use]
    pub fn new(trace: Trace<File>) -> Self {
        Self { trace, failed: None }
    }

    /// Whether the trace was read to its end.
    ///
    /// # Errors
    /// The error that ended the reading.
    pub fn result(&mut self) -> Result<(), TraceError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// The origin for a trace.
struct TraceOrigin<'a> {
    input: &'a mut TraceInput,
    events: Vec<Event>,
}

/// Passes the events of the trace to `sink` until their end, or until `ended` returns true.
pub(in super::super) fn run(
    input: &mut TraceInput,
    sink: &mut dyn Sink,
    ended: &mut dyn FnMut(Progress) -> bool,
) -> Outcome {
    // The reader of the trace has already sorted and named the events.
    let pipeline = Pipeline::new(Order::new(1, 0), Namer::recorded(0, false, Accesses::InSamples));
    let origin = TraceOrigin { input, events: Vec::with_capacity(BATCH) };
    pipeline::run(pipeline, origin, Stages::InThreads, sink, &mut StopPoll::new(Instant::now(), ended))
}

impl Origin for TraceOrigin<'_> {
    type Sample = PendingSample;

    fn fill(&mut self, inlet: &mut Inlet<'_, PendingSample>) -> Filled {
        let filled = match self.input.trace.next_events(&mut self.events, BATCH) {
            Ok(true) => Filled::More,
            Ok(false) => Filled::End,
            Err(error) => {
                self.input.failed = Some(error);
                Filled::End
            }
        };
        inlet.events(&mut self.events);
        filled
    }

    fn loss(&self) -> Loss {
        // The trace reports its losses.
        Loss::default()
    }

    fn processes(&self) -> Option<Vec<(u32, Comm)>> {
        Some(self.input.trace.threads().processes().collect())
    }

    fn end(self, _: &mut Outcome, _: Ending<PendingSample>) {}
}
