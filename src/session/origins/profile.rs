//! An origin for a recorded profile; the order, the names and the sinks are those of a capture.

use std::time::{Duration, Instant};

use super::{lines, perf_data, sched_text, script};
use crate::outcome::Outcome;
use crate::profile::{Profile, Records};
use crate::resolve::SymbolOptions;
use crate::sampler::loss::{Loss, SchedLoss};
use crate::session::stop::{Progress, StopPoll};
use crate::sinks::Sink;

/// Passes the samples of `profile` to `sink` until its end, or until `ended` returns true. Sorting and the mappings
/// each take a part of `memory` bytes. Afterwards, the profile reports what could not be read.
pub(in super::super) fn run(
    profile: &mut Profile,
    memory: usize,
    symbols: &SymbolOptions,
    sink: &mut dyn Sink,
    ended: &mut dyn FnMut(Progress) -> bool,
) -> Outcome {
    let ends = &mut StopPoll::new(Instant::now(), ended);
    let reads_aside = sink.wants_stacks() && profile.aside_event().is_some();
    let mut outcome = match &mut profile.records {
        Records::PerfData(_) => perf_data::run(profile, memory, symbols, sink, ends),
        Records::Script(_) => script::run(profile, memory, sink, ends),
        Records::Sched(_) => sched_text::run(profile, memory, sink, ends),
        Records::Lines(lines) => {
            let (outcome, failed) = lines::run(lines, sink, ends);
            profile.note_failed(failed);
            outcome
        }
    };
    outcome.notes.extend(profile.unreadable_lines().map(|lines| lines.sentence));
    let hints = profile.hints.as_ref();
    outcome.notes.extend(hints.and_then(|hints| hints.disorder.sentence("hints", "hints.jsonl")));
    let is_lines = matches!(profile.records, Records::Lines(_));
    let Some(meta) = &profile.meta else { return outcome };
    if let (Some(hints), Some(recorded)) = (&mut outcome.hints, &meta.hints) {
        // How hints were observed, and what was lost before they were written.
        (hints.probe, hints.missing, hints.counts) = (recorded.probe, recorded.missing.clone(), recorded.counts);
    }
    if meta.unfinished {
        return outcome;
    }
    outcome.events = meta.event_count;
    outcome.duration = Duration::try_from_secs_f64(meta.duration).unwrap_or(outcome.duration);
    outcome.cpu_time = meta.cpu_seconds.and_then(|it| Duration::try_from_secs_f64(it).ok());
    if reads_aside {
        // The recording's counts for memory samples do not apply to these stacks, except for losses of the recording
        // itself.
        outcome.loss.add(&Loss {
            dead_workers: meta.loss.dead_workers,
            corrupt_rings: meta.loss.corrupt_rings,
            ..Loss::default()
        });
        outcome.notes.splice(..0, meta.notes.iter().cloned());
        return outcome;
    }
    outcome.loss = if is_lines {
        // The lines contain the samples that the session dropped, so these counts are 0.
        let Loss { no_user_address, malformed, .. } = outcome.loss;
        let malformed = meta.loss.malformed.saturating_add(malformed);
        Loss { channel_full: 0, no_cgroup_path: 0, evicted: 0, no_user_address, malformed, ..meta.loss }
    } else {
        // At the end of the recording, the events reported losses for which no record could be written any more.
        // Records of loss also do not say whether samples or side-band were lost.
        let Loss { ring_full, corrupt_rings, dead_workers, side_band, unsampled, sched, .. } = meta.loss;
        let sched = SchedLoss { ring_full: sched.ring_full, unsampled: sched.unsampled, ..outcome.loss.sched };
        // Damage in AUX data has no record, so it is not in the recording.
        let malformed = outcome.loss.malformed.max(meta.loss.malformed);
        Loss {
            ring_full,
            malformed,
            corrupt_rings,
            dead_workers,
            side_band,
            aux_bad_bytes: meta.loss.aux_bad_bytes,
            aux_unknown: meta.loss.aux_unknown,
            unsampled,
            sched,
            ..outcome.loss
        }
    };
    outcome.notes.splice(..0, meta.notes.iter().cloned());
    outcome
}
