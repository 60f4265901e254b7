//! Reads our own lines of JSON instead of records: accesses with their names, in the order in which they were written.

use std::fs::File;
use std::io::{self, BufReader};
use std::time::Duration;

use super::numbers::Numbers;
use super::stop::StopPoll;
use super::{Outcome, Sink};
use crate::profile::jsonl::Reader;
use crate::resolve::Cgroups;

/// Accesses that are passed to the sink at once.
const TOGETHER: usize = 64;

/// Passes the accesses of `lines` to `sink` until their end, or until it must end; returns the reason for an early end.
pub(super) fn run(
    lines: &mut Reader<BufReader<File>>,
    sink: &mut dyn Sink,
    mut ends: StopPoll<'_>,
) -> (Outcome, Option<io::Error>) {
    let mut cgroups = Cgroups::recorded();
    let mut numbers = Numbers::default();
    let mut outcome = Outcome::default();
    let (mut first, mut last, mut record) = (None, 0, None);
    let mut ready = Vec::with_capacity(TOGETHER);
    let failed = loop {
        let line = match lines.next_line() {
            Ok(Some(line)) => line,
            Ok(None) => break None,
            Err(error) => break Some(error),
        };
        let mut sample = line.sample;
        if !line.has_thread {
            sample.thread = numbers.thread(sample.pid, sample.tid);
        }
        if let Some(path) = lines.cgroup() {
            sample.cgroup = numbers.cgroup(path, &mut cgroups);
        }
        first.get_or_insert(sample.time);
        last = last.max(sample.time);
        outcome.accesses += 1;
        outcome.loss.no_user_address += u64::from(sample.memory.is_none());
        outcome.samples += u64::from(record != Some(sample.record));
        record = Some(sample.record);
        ready.push(sample);
        if ready.len() >= TOGETHER {
            sink.samples(&ready, &mut cgroups);
            ready.clear();
            if ends.met(outcome.samples) {
                break None;
            }
        }
    };
    sink.samples(&ready, &mut cgroups);
    outcome.events = outcome.samples;
    outcome.loss.samples = outcome.samples;
    outcome.duration = Duration::from_nanos(last.saturating_sub(first.unwrap_or(last)));
    outcome.notes.extend(lines.missing.lines());
    outcome.notes.extend(numbers.left_out().into_iter().chain(cgroups.left_out()));
    (outcome, failed)
}
