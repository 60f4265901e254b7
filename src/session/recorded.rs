//! Reads a recorded profile instead of rings: the same order, the same names, the same sinks.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::hints::Hints;
use super::stages::{self, RecordReader, SinkEnd};
use super::stop::StopPoll;
use super::wakeups::Wakeups;
use super::{lines, text, Loss, Names, Outcome, Progress, SchedLoss, Sink};
use crate::profile::{Profile, Records};
use crate::resolve::{Cgroups, SymbolOptions, Unwinder};
use crate::sample::batch::PendingSample;
use crate::sample::Source;
use crate::sampler::event::CHAIN_SIZE;
use crate::sampler::AddressFrom;
use scxprof_perf::buildid::BuildId;

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
    symbols: &SymbolOptions,
    sink: &mut dyn Sink,
    ended: &mut dyn FnMut(Progress) -> bool,
) -> Outcome {
    let ends = StopPoll::new(Instant::now(), ended);
    let reads_aside = sink.wants_stacks() && profile.aside_event().is_some();
    let mut outcome = match &mut profile.records {
        Records::PerfData(_) => records(profile, memory, symbols, sink, ends),
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
    outcome.notes.extend(profile.unreadable_lines().map(|lines| lines.sentence));
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
    if reads_aside {
        // What is known of memory's samples says nothing of these, but for the recording's own losses.
        outcome.loss.add(&Loss {
            dead_workers: meta.loss.dead_workers,
            corrupt_rings: meta.loss.corrupt_rings,
            ..Loss::default()
        });
        outcome.notes.splice(..0, meta.notes.iter().cloned());
        return outcome;
    }
    outcome.loss = if is_lines {
        // What the session had to drop is in the recording and in the lines; the rest is counted again.
        let Loss { no_user_address, malformed, .. } = outcome.loss;
        let malformed = meta.loss.malformed.saturating_add(malformed);
        Loss { channel_full: 0, no_cgroup_path: 0, evicted: 0, no_user_address, malformed, ..meta.loss }
    } else {
        // At their end, the events knew losses that no record could report any more. A record of loss does not tell whether
        // samples or names were lost either.
        let Loss { ring_full, corrupt_rings, dead_workers, side_band, unsampled, sched, .. } = meta.loss;
        let sched = SchedLoss { ring_full: sched.ring_full, unsampled: sched.unsampled, ..outcome.loss.sched };
        Loss { ring_full, corrupt_rings, dead_workers, side_band, unsampled, sched, ..outcome.loss }
    };
    outcome.notes.splice(..0, meta.notes.iter().cloned());
    outcome
}

/// As [`run`], for a perf.data.
fn records(
    profile: &mut Profile,
    memory: usize,
    symbols: &SymbolOptions,
    sink: &mut dyn Sink,
    ends: StopPoll<'_>,
) -> Outcome {
    // What another program recorded may have any addresses, but a sink of stacks wants none.
    let is_foreign = profile.meta.is_none();
    let aside = profile.aside_event();
    let reads_stacks = sink.wants_stacks() && (is_foreign || aside.is_some());
    let address_from = if reads_stacks { AddressFrom::Callchain } else { profile.address_from() };
    let recovers = address_from.recovers();
    let identity = profile.identity();
    let wants_code = sink.wants_code() || sink.wants_stacks();
    let mut names = Names::recorded(memory / 4, identity.child_pid_namespace);
    // They exist for this case, if nothing else tells more.
    names.recovered = profile.recovered.take().filter(|_| recovers || profile.meta.is_none());
    let watched = profile.meta.as_ref().and_then(|meta| meta.watched.as_ref());
    let watched = watched.map(|pids| pids.iter().copied().collect());
    names.wakeups = (profile.source() == Source::Wakeups).then(|| Wakeups::new(watched, identity.own_pid));
    names.hints = profile.hints.is_some().then(Hints::default);
    names.keep(sink);
    let mut cgroups = Cgroups::recorded();
    for (id, path) in profile.meta.as_ref().map(|meta| meta.cgroups.as_slice()).unwrap_or_default() {
        if let Some(path) = crate::profile::meta::from_hex(path) {
            cgroups.record(*id, &path);
        }
    }
    let mut chain = 0;
    if let (AddressFrom::Callchain, Records::PerfData(perf_data)) = (&address_from, &mut profile.records) {
        // The timer's samples have registers, too.
        let is_read = |number: usize| aside.is_none_or(|aside| usize::from(aside) == number);
        let events = perf_data.events().iter().enumerate().filter(|(number, _)| is_read(*number));
        let stack = events.map(|(_, event)| event.attr.stack_user).max().unwrap_or(0) as usize;
        chain = CHAIN_SIZE + stack;
        if stack > 0 {
            names.unwinder = Some(Unwinder::new(symbols.clone(), unambiguous(perf_data.build_ids())));
        }
    }
    let waiting = size_of::<PendingSample>() + chain;
    let mut reader = RecordReader::new(profile, identity, address_from, memory / 4 / waiting);
    reader.only = aside.map(|aside| (aside, reads_stacks));
    reader.reads_stacks = reads_stacks;
    let mut end = SinkEnd { sink, cgroups, accesses: 0, ends };
    let failed = stages::run(&mut reader, &mut names, &mut end).err();
    let RecordReader { order, intake, is_untimed, is_named_at_end, guests, .. } = reader;
    let SinkEnd { sink, cgroups, accesses, .. } = end;
    (names.cgroups, names.accesses) = (cgroups, accesses);
    let mut outcome = names.outcome(&order, intake.loss(), sink);
    // Of all records, not only of the samples.
    outcome.duration = Duration::from_nanos(intake.newest().saturating_sub(order.first));
    profile.times = Some((order.first, intake.newest()));
    outcome.recovery = None;
    profile.recovered = names.recovered;
    outcome.modules = names.modules.take().unwrap_or_default();
    if let (true, Records::PerfData(perf_data)) = (wants_code, &mut profile.records) {
        outcome.modules.finish_recorded(&perf_data.build_ids());
    }
    if is_named_at_end && outcome.loss.unnamed > 0 && profile.meta.is_none() {
        outcome.notes.insert(0, NAMED_AT_END.to_owned());
    }
    if guests > 0 {
        let note = format!("{guests} samples of KVM guests are left out: their code and memory are not the host's");
        outcome.notes.insert(0, note);
    }
    if is_untimed {
        outcome.notes.insert(0, UNTIMED.to_owned());
    }
    profile.note_failed(failed);
    outcome
}

/// The build ids of the paths that have one alone: in containers several files may have one path.
fn unambiguous(build_ids: Vec<(Vec<u8>, BuildId)>) -> FxHashMap<Vec<u8>, BuildId> {
    let mut by_path: FxHashMap<Vec<u8>, Option<BuildId>> = FxHashMap::default();
    for (path, build_id) in build_ids {
        let known = by_path.entry(path).or_insert(Some(build_id));
        *known = known.filter(|known| *known == build_id);
    }
    by_path.into_iter().filter_map(|(path, build_id)| Some((path, build_id?))).collect()
}
