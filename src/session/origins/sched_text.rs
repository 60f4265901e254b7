//! An origin for scheduling events as text, which are sorted by time as far as memory allows.

use std::io;
use std::time::Duration;

use crate::outcome::Outcome;
use crate::profile::{Profile, Records};
use crate::sample::batch::Batch;
use crate::sample::sched::{SchedEvent, SchedWhat};
use crate::sample::{Comm, Sample};
use crate::sampler::loss::{Loss, SchedLoss};
use crate::session::inlet::Inlet;
use crate::session::namer::Namer;
use crate::session::order::Order;
use crate::session::origin::{Ending, Filled, Origin};
use crate::session::pipeline::{self, Pipeline, Stages};
use crate::session::stop::StopPoll;
use crate::sinks::Sink;

/// Events per batch.
const BATCH: usize = 4096;

/// The events of a profile that consists of their text.
struct SchedTextOrigin<'p> {
    profile: &'p mut Profile,
    loss: SchedLoss,
    /// The times of the first and the last event.
    times: Option<(u64, u64)>,
    /// Everything before this time is complete: the lines of different CPUs may be slightly out of order, so this is
    /// the time of the batch before the last one.
    before: u64,
    batch: Batch<Sample>,
}

/// Passes the events of the text to `sink` until their end, or until it must end.
pub(super) fn run(profile: &mut Profile, memory: usize, sink: &mut dyn Sink, ends: &mut StopPoll<'_>) -> Outcome {
    let mut order = Order::new(1, memory / 4 / size_of::<Sample>());
    order.joins_hints = true;
    let mut namer = Namer::of_lines(false);
    if profile.hints.is_some() {
        namer = namer.with_hints(None);
    }
    let (loss, batch) = (SchedLoss::default(), Batch::default());
    let origin = SchedTextOrigin { profile, loss, times: None, before: 0, batch };
    pipeline::run(Pipeline::new(order, namer), origin, Stages::InThreads, sink, ends)
}

impl SchedTextOrigin<'_> {
    /// Reads some events.
    fn read(&mut self) -> io::Result<Filled> {
        let Self { profile, loss, times, batch, .. } = self;
        let Records::Sched(lines) = &mut profile.records else { return Ok(Filled::End) };
        while batch.sched.len() < BATCH {
            let Some(event) = lines.next_event()? else { return Ok(Filled::End) };
            let SchedEvent { time, what, .. } = event;
            let is_hint = matches!(what, SchedWhat::Hint { .. });
            loss.events += u64::from(!is_hint);
            loss.of_runtime += u64::from(matches!(what, SchedWhat::Runtime { .. }));
            let (first, last) = times.get_or_insert((time, time));
            (*first, *last) = ((*first).min(time), (*last).max(time));
            batch.sched.push(event);
        }
        Ok(Filled::More)
    }
}

impl Origin for SchedTextOrigin<'_> {
    type Sample = Sample;

    fn fill(&mut self, inlet: &mut Inlet<'_, Sample>) -> Filled {
        let filled = self.read().unwrap_or_else(|error| {
            self.profile.note_failed(Some(error));
            Filled::End
        });
        let last = self.times.map_or(0, |times| times.1);
        if let Some(hints) = &mut self.profile.hints {
            inlet.take_hints(hints, if filled == Filled::End { u64::MAX } else { last });
        }
        self.batch.complete_until = std::mem::replace(&mut self.before, last);
        inlet.take(&mut self.batch);
        inlet.release();
        filled
    }

    fn loss(&self) -> Loss {
        Loss { sched: self.loss, ..Loss::default() }
    }

    fn processes(&self) -> Option<Vec<(u32, Comm)>> {
        let Records::Sched(lines) = &self.profile.records else { return None };
        Some(lines.processes.iter().map(|(pid, comm)| (*pid, *comm)).collect())
    }

    fn end(self, outcome: &mut Outcome, _: Ending<Sample>) {
        let Records::Sched(lines) = &self.profile.records else { return };
        outcome.loss.sched.malformed = lines.unreadable;
        outcome.duration = self.times.map_or(Duration::ZERO, |(first, last)| Duration::from_nanos(last - first));
        outcome.notes.splice(..0, lines.disorder.sentence("events", "the text"));
        self.profile.times = self.times;
    }
}
