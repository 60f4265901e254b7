//! Reads a recorded profile instead of rings: the same order, the same names, the same sinks.

use std::time::{Duration, Instant};

use perf_event_open_sys::bindings as sys;

use super::hints::Hints;
use super::order::Order;
use super::stop::StopPoll;
use super::{lines, text, Loss, Names, Outcome, Progress, Sink};
use crate::profile::{Item, PerfDataError, Profile, Records};
use crate::resolve::Modules;
use crate::sample::batch::PendingSample;
use crate::sample::RawSample;
use crate::sampler::intake::Intake;
use crate::sampler::record::{sample_type, Header};

/// Records that are read before they are sorted.
const TAKE_EVERY: u32 = 1 << 10;
/// Why names may be wrong: perf reads one ring after the other.
const UNTIMED: &str =
    "the recording has no times: what came first is guessed from its position in the file (`perf record -T` records times)";
/// Why threads lack names that the recording has.
const NAMED_AT_END: &str =
    "most names and mappings come at the end of the recording, too late for its samples: record without --tail-synthesize";

/// Passes the samples of `profile` to `sink` until its end, or until `ended` returns true. Sorting and the mappings take a part
/// of `memory` bytes each. Afterwards the profile reports what could not be read.
pub(super) fn run(
    profile: &mut Profile,
    memory: usize,
    sink: &mut dyn Sink,
    ended: &mut dyn FnMut(Progress) -> bool,
) -> Outcome {
    let ends = StopPoll::new(Instant::now(), ended);
    let mut outcome = match &mut profile.records {
        Records::PerfData(_) => records(profile, memory, sink, ends),
        Records::Script(lines) => {
            let (outcome, failed) = text::run(lines, profile.hints.as_mut(), memory, sink, ends);
            profile.note_failed(failed);
            outcome
        }
        Records::Lines(lines) => {
            let (outcome, failed) = lines::run(lines, sink, ends);
            profile.note_failed(failed);
            outcome
        }
    };
    let is_lines = matches!(profile.records, Records::Lines(_));
    let Some(meta) = &profile.meta else { return outcome };
    if let (Some(hints), Some(recorded)) = (&mut outcome.hints, &meta.hints) {
        // How hints were observed and what was lost before they were written.
        (hints.probe, hints.missing, hints.counts) = (recorded.probe, recorded.missing.clone(), recorded.counts);
    }
    if meta.unfinished {
        return outcome;
    }
    outcome.events = meta.event_count;
    outcome.duration = Duration::try_from_secs_f64(meta.duration).unwrap_or(outcome.duration);
    outcome.loss = if is_lines {
        // What the session had to drop is in the recording and in the lines; the rest is counted again.
        let no_user_address = outcome.loss.no_user_address;
        Loss { channel_full: 0, no_cgroup_path: 0, evicted: 0, no_user_address, ..meta.loss }
    } else {
        // At their end, the events knew losses that no record could report any more. A record of loss does not tell whether
        // samples or names were lost either.
        let Loss { ring_full, corrupt_rings, dead_workers, side_band, unsampled, .. } = meta.loss;
        Loss { ring_full, corrupt_rings, dead_workers, side_band, unsampled, ..outcome.loss }
    };
    outcome.notes.splice(..0, meta.notes.iter().cloned());
    outcome
}

/// As [`run`], for a perf.data.
fn records(profile: &mut Profile, memory: usize, sink: &mut dyn Sink, mut ends: StopPoll<'_>) -> Outcome {
    let address_from = profile.address_from();
    let recovers = address_from.recovers();
    let identity = profile.identity();
    let mut replay = RecordedPass {
        order: Order::new(1, memory / 4 / size_of::<PendingSample>()),
        intake: Intake::new(identity, address_from),
        names: Names::recorded(memory / 4, identity.child_pid_namespace),
        mark: 0,
        is_untimed: false,
        is_named_at_end: false,
    };
    // They exist for this case, if nothing else tells more.
    replay.names.recovered = profile.recovered.take().filter(|_| recovers || profile.meta.is_none());
    replay.names.hints = profile.hints.is_some().then(Hints::default);
    replay.names.modules = sink.wants_code().then(Modules::new);
    for (id, path) in profile.meta.as_ref().map(|meta| meta.cgroups.as_slice()).unwrap_or_default() {
        if let Some(path) = crate::profile::meta::from_hex(path) {
            replay.names.cgroups.record(*id, &path);
        }
    }
    let failed = replay.read(profile, sink, &mut ends).err();
    let newest = replay.intake.newest();
    replay.names.take_hints(profile.hints.as_mut(), u64::MAX, &mut replay.order, sink);
    replay.complete(u64::MAX, sink);
    let RecordedPass { mut names, order, intake, is_untimed, is_named_at_end, .. } = replay;
    let mut outcome = names.outcome(&order, intake.loss(), sink);
    // Of all records, not only of the samples.
    outcome.duration = Duration::from_nanos(newest.saturating_sub(order.first));
    outcome.recovery = None;
    profile.recovered = names.recovered;
    outcome.modules = names.modules.take().unwrap_or_default();
    if let (true, Records::PerfData(perf_data)) = (sink.wants_code(), &mut profile.records) {
        outcome.modules.finish_recorded(&perf_data.build_ids());
    }
    if is_named_at_end && outcome.loss.unnamed > 0 && profile.meta.is_none() {
        outcome.notes.insert(0, NAMED_AT_END.to_owned());
    }
    if is_untimed {
        outcome.notes.insert(0, UNTIMED.to_owned());
    }
    profile.note_failed(failed);
    outcome
}

/// A running replay.
struct RecordedPass {
    order: Order,
    intake: Intake,
    names: Names,
    /// Everything older than this has been read.
    mark: u64,
    /// There were samples without a time.
    is_untimed: bool,
    /// perf wrote what existed only after it had recorded samples.
    is_named_at_end: bool,
}

impl RecordedPass {
    /// Reads the records until there are no more, or it must end.
    fn read(
        &mut self,
        profile: &mut Profile,
        sink: &mut dyn Sink,
        ends: &mut StopPoll<'_>,
    ) -> Result<(), PerfDataError> {
        // What was newest at one mark is complete at the next (`perf_event__process_finished_round` in tools/perf/util).
        let mut newest = 0;
        let mut count = 0u32;
        loop {
            count = count.wrapping_add(1);
            if count.is_multiple_of(TAKE_EVERY) && ends.met(self.names.records) {
                return Ok(());
            }
            let Records::PerfData(perf_data) = &mut profile.records else { return Ok(()) };
            match perf_data.next_item()? {
                Some(Item::Record { bytes, layout, period, event }) => {
                    let is_timed = layout.sample_type & sample_type::TIME != 0;
                    if !is_timed {
                        self.untimed(bytes, sink);
                    }
                    let malformed = self.intake.malformed();
                    let (newest, batch) = (self.intake.newest(), self.intake.batch());
                    let (before, sides) = (batch.samples.len(), batch.side_band.len());
                    self.intake.take(bytes, layout);
                    // perf's own records of existing threads and mappings have time 0.
                    if let Some(side) = self.intake.batch().side_band.get(sides) {
                        self.is_named_at_end |= side.time == 0 && newest > 0 && is_timed && layout.sample_id_all;
                    }
                    if let Some(PendingSample { raw, .. }) = self.intake.batch().samples.get_mut(before) {
                        raw.period = period.unwrap_or(raw.period);
                        raw.event = u16::try_from(event).unwrap_or(u16::MAX);
                        if layout.sample_type & sample_type::CPU == 0 {
                            raw.cpu = RawSample::NO_CPU;
                        }
                    }
                    if self.intake.malformed() > malformed {
                        let header = Header::read(bytes);
                        profile.note_unparseable(header);
                    }
                    if count.is_multiple_of(TAKE_EVERY) {
                        self.take_hints(profile, sink);
                        self.take_read(sink);
                    }
                }
                Some(Item::Round) => {
                    self.take_hints(profile, sink);
                    self.complete(newest, sink);
                    newest = self.intake.newest();
                }
                None => return Ok(()),
            }
        }
    }

    /// Takes the hints that were written before the last record.
    fn take_hints(&mut self, profile: &mut Profile, sink: &mut dyn Sink) {
        self.names.take_hints(profile.hints.as_mut(), self.intake.newest(), &mut self.order, sink);
    }

    /// Call this before a record without a time: it applies to the samples after it in the file, not to those before it.
    fn untimed(&mut self, record: &[u8], sink: &mut dyn Sink) {
        if Header::read(record).is_some_and(|header| header.kind == sys::PERF_RECORD_SAMPLE) {
            self.is_untimed = true;
        } else if self.is_untimed {
            self.order.take(self.intake.batch());
            self.names.release(&mut self.order, sink);
        }
    }

    /// Takes what was read, and makes room if too much waits.
    fn take_read(&mut self, sink: &mut dyn Sink) {
        self.order.take(self.intake.batch());
        if self.order.is_full() || self.order.is_crowded() {
            self.names.release(&mut self.order, sink);
        }
    }

    /// Everything older than `until` has been read.
    fn complete(&mut self, until: u64, sink: &mut dyn Sink) {
        self.mark = self.mark.max(until);
        let batch = self.intake.batch();
        batch.complete_until = self.mark;
        self.order.take(batch);
        if self.order.is_due() {
            self.names.release(&mut self.order, sink);
        }
    }
}
