//! A recorded profile in place of rings: the same order, the same names, the same sinks.

use std::fs::File;
use std::time::Duration;

use perf_event_open_sys::bindings as sys;

use super::hints::Hints;
use super::order::Order;
use super::{text, Names, Outcome, Sink};
use crate::profile::hints::{self, HintRecord};
use crate::profile::{Item, PerfDataError, Profile, Records};
use crate::resolve::Modules;
use crate::sample::batch::{Batch, Captured};
use crate::sample::{SideBand, TimedSideBand};
use crate::sampler::intake::Intake;
use crate::sampler::loss::Loss;
use crate::sampler::record::{sample_type, Header};

/// Records between two questions whether to stop.
const STOP_EVERY: u32 = 1 << 16;

/// Why names may be wrong: perf reads one ring after the other.
const UNTIMED: &str =
    "the recording has no times: what came first is guessed from its place in the file (`perf record -T` records times)";

/// Why threads have no names that the recording has.
const NAMED_AT_END: &str =
    "most names and mappings come at the end of the recording, too late for its samples: record without --tail-synthesize";

/// Records, or hints, that are read before they are put in order.
const TAKE_EVERY: u32 = 1 << 10;

/// Hands the samples of `profile` to `sink`; what is held back while it is put in order, and the mappings, take some part
/// of `memory` bytes. It ends early where `stop`, which is asked from time to time, says so. What was damaged is asked of the
/// profile afterwards.
///
/// # Errors
/// The file cannot be read any further; the sink has what came before.
pub fn replay(
    profile: &mut Profile,
    memory: usize,
    sink: &mut dyn Sink,
    mut stop: impl FnMut() -> bool,
) -> Result<Outcome, PerfDataError> {
    if let Records::Script(lines) = &mut profile.records {
        return Ok(text::replay(lines, profile.hints.as_mut(), memory, sink, stop)?);
    }
    let reading = profile.reading();
    let recovers = reading.recovers();
    let identity = profile.identity();
    let mut replay = Replay {
        order: Order::new(1, memory / 4 / size_of::<Captured>()),
        intake: Intake::new(identity, reading),
        names: Names::recorded(memory / 4, identity.child_pid_namespace),
        accesses: 0,
        mark: 0,
        is_untimed: false,
        is_named_at_end: false,
    };
    // They are there for that, where nothing says more.
    replay.names.recovered = profile.recovered.take().filter(|_| recovers || profile.meta.is_none());
    replay.names.hints = profile.hints.is_some().then(Hints::default);
    replay.names.modules = sink.wants_code().then(Modules::new);
    for (id, path) in profile.meta.as_ref().map(|meta| meta.cgroups.as_slice()).unwrap_or_default() {
        if let Some(path) = crate::profile::meta::from_hex(path) {
            replay.names.cgroups.record(*id, &path);
        }
    }
    // What was newest at one mark is complete at the next (`perf_event__process_finished_round` in tools/perf/util).
    let mut newest = 0;
    let mut count = 0u32;
    let ended = loop {
        count = count.wrapping_add(1);
        if count.is_multiple_of(STOP_EVERY) && stop() {
            break Ok(());
        }
        let Records::PerfData(perf_data) = &mut profile.records else { break Ok(()) };
        match perf_data.next_item() {
            Ok(Some(Item::Record { bytes, layout, period, .. })) => {
                let is_timed = layout.sample_type & sample_type::TIME != 0;
                if !is_timed {
                    replay.untimed(bytes, sink);
                }
                let malformed = replay.intake.malformed();
                let (newest, batch) = (replay.intake.newest(), replay.intake.batch());
                let (before, sides) = (batch.samples.len(), batch.side_band.len());
                replay.intake.take(bytes, layout);
                // perf's own records of what exists have time 0.
                if let Some(side) = replay.intake.batch().side_band.get(sides) {
                    replay.is_named_at_end |= side.time == 0 && newest > 0 && is_timed && layout.sample_id_all;
                }
                if let (Some(period), Some(captured)) = (period, replay.intake.batch().samples.get_mut(before)) {
                    captured.period = period;
                }
                if replay.intake.malformed() > malformed {
                    let header = Header::read(bytes);
                    profile.note_unparseable(header);
                }
                if count.is_multiple_of(TAKE_EVERY) {
                    replay.take_hints(profile.hints.as_mut(), replay.intake.newest(), sink);
                    replay.take_read(sink);
                }
            }
            Ok(Some(Item::Round)) => {
                replay.take_hints(profile.hints.as_mut(), replay.intake.newest(), sink);
                replay.complete(newest, sink);
                newest = replay.intake.newest();
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    replay.take_hints(profile.hints.as_mut(), u64::MAX, sink);
    replay.complete(u64::MAX, sink);
    let Replay { mut names, order, intake, accesses, is_untimed, is_named_at_end, .. } = replay;
    let left_out = names.left_out();
    profile.recovered = names.recovered;
    let mut modules = names.modules.take().unwrap_or_default();
    if sink.wants_code() {
        if let Records::PerfData(perf_data) = &mut profile.records {
            modules.finish_recorded(&perf_data.build_ids());
        }
    }
    let mut loss = names.loss;
    loss.add(&intake.loss());
    (loss.late, loss.late_side_band) = (order.late, order.late_side_band);
    let span = Duration::from_nanos(intake.newest().saturating_sub(order.first));
    let mut outcome = Outcome {
        samples: names.records,
        accesses,
        events: loss.samples,
        duration: span,
        recovery: None,
        hints: names.hints.take().map(|hints| hints.counts),
        loss,
        notes: Vec::new(),
        modules,
    };
    if is_untimed {
        outcome.notes.push(UNTIMED.to_owned());
    }
    if is_named_at_end && loss.unnamed > 0 && profile.meta.is_none() {
        outcome.notes.push(NAMED_AT_END.to_owned());
    }
    if let (Some(hints), Some(recorded)) =
        (&mut outcome.hints, profile.meta.as_ref().and_then(|meta| meta.hints.clone()))
    {
        // How they were seen and what was lost before they were written.
        (hints.rung, hints.missing, hints.counts) = (recorded.rung, recorded.missing, recorded.counts);
    }
    if let Some(meta) = profile.meta.as_ref().filter(|meta| !meta.unfinished) {
        outcome.events = meta.happened;
        outcome.duration = Duration::try_from_secs_f64(meta.duration).unwrap_or(span);
        // The events knew at their end what no record could say any more. A record of loss does not say either whether samples
        // were lost or names.
        let Loss { ring_full, corrupt_rings, dead_workers, side_band, unsampled, .. } = meta.loss;
        outcome.loss = Loss { ring_full, corrupt_rings, dead_workers, side_band, unsampled, ..outcome.loss };
        outcome.notes.clone_from(&meta.notes);
    }
    outcome.notes.extend(left_out);
    ended.map(|()| outcome)
}

/// The next hints up to `until`, not all at once.
pub(super) fn hints_until(hints: &mut hints::Hints<File>, until: u64) -> Vec<TimedSideBand> {
    let next = std::iter::from_fn(|| hints.next_until(until)).map(|record| {
        let HintRecord { tid, pid, hint, time, .. } = record;
        TimedSideBand { time, what: SideBand::Hint { time, pid, tid, hint } }
    });
    next.take(TAKE_EVERY as usize).collect()
}

/// A replay at work.
struct Replay {
    order: Order,
    intake: Intake,
    names: Names,
    accesses: u64,
    /// Until when all has been read.
    mark: u64,
    /// There were samples without a time.
    is_untimed: bool,
    /// perf said what existed when it had recorded samples already.
    is_named_at_end: bool,
}

impl Replay {
    /// Takes the hints up to `until`, which must come before the samples of their time.
    fn take_hints(&mut self, hints: Option<&mut hints::Hints<File>>, until: u64, sink: &mut dyn Sink) {
        let Some(hints) = hints else { return };
        loop {
            let side_band = hints_until(hints, until);
            let is_last = side_band.is_empty();
            self.order.push(Batch { side_band, ..Batch::default() });
            if self.order.is_crowded() {
                self.accesses += self.names.release(&mut self.order, sink);
            }
            if is_last {
                break;
            }
        }
    }

    /// Before a record without a time is taken: what it says holds for the samples behind it in the file, not for those before.
    fn untimed(&mut self, record: &[u8], sink: &mut dyn Sink) {
        if Header::read(record).is_some_and(|header| header.kind == sys::PERF_RECORD_SAMPLE) {
            self.is_untimed = true;
        } else if self.is_untimed {
            self.order.take(self.intake.batch());
            self.accesses += self.names.release(&mut self.order, sink);
        }
    }

    /// Takes what was read, and makes room where too much waits.
    fn take_read(&mut self, sink: &mut dyn Sink) {
        self.order.take(self.intake.batch());
        if self.order.is_full() || self.order.is_crowded() {
            self.accesses += self.names.release(&mut self.order, sink);
        }
    }

    /// All older than `until` has been read.
    fn complete(&mut self, until: u64, sink: &mut dyn Sink) {
        self.mark = self.mark.max(until);
        let batch = self.intake.batch();
        batch.complete_until = self.mark;
        self.order.take(batch);
        if self.order.is_due() {
            self.accesses += self.names.release(&mut self.order, sink);
        }
    }
}
