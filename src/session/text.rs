//! Reads the text of a recording instead of its records: all facts come from the lines.

use std::fs::File;
use std::io::{self, BufReader};

use super::hints::Hints;
use super::numbers::Numbers;
use super::order::Order;
use super::stop::StopPoll;
use super::{Loss, Names, Outcome, Sink};
use crate::profile::hints;
use crate::profile::script::Reader;
use crate::resolve::Cgroups;
use crate::sample::batch::Batch;
use crate::sample::{RawSample, Sample};

/// Lines that are read at a time.
const BATCH: usize = 1024;

/// Passes the samples of `lines` to `sink` until their end, or until it must end; returns the reason for an early end. They are
/// sorted by time as far as a part of `memory` holds them.
pub(super) fn run(
    lines: &mut Reader<BufReader<File>>,
    mut recorded: Option<&mut hints::Hints<File>>,
    memory: usize,
    sink: &mut dyn Sink,
    mut ends: StopPoll<'_>,
) -> (Outcome, Option<io::Error>) {
    let mut order = Order::<Sample>::new(1, memory / 4 / size_of::<Sample>());
    let mut names = Names::recorded(memory / 4, false);
    names.hints = recorded.is_some().then(Hints::default);
    let mut numbers = Numbers::default();
    let mut loss = Loss::default();
    let failed = loop {
        let mut batch = Batch::default();
        let result = take(lines, &mut batch.samples, &mut numbers, &mut names.cgroups, &mut loss);
        order.push(batch);
        names.take_hints(recorded.as_deref_mut(), order.last, &mut order, sink);
        if order.is_full() {
            names.release(&mut order, sink);
        }
        match result {
            Ok(true) if !ends.met(names.records) => {}
            Ok(_) => break None,
            Err(error) => break Some(error),
        }
    };
    names.take_hints(recorded, u64::MAX, &mut order, sink);
    order.end();
    names.release(&mut order, sink);
    loss.malformed = lines.unreadable;
    let mut outcome = names.outcome(&order, loss, sink);
    outcome.notes.splice(..0, lines.missing.lines().into_iter().chain(numbers.left_out()));
    (outcome, failed)
}

/// Reads some lines; false if there are no more.
fn take(
    lines: &mut Reader<BufReader<File>>,
    samples: &mut Vec<Sample>,
    numbers: &mut Numbers,
    cgroups: &mut Cgroups,
    loss: &mut Loss,
) -> io::Result<bool> {
    while samples.len() < BATCH {
        let Some(line) = lines.next_line()? else { return Ok(false) };
        let sample = Sample {
            raw: RawSample { cgroup: line.cgroup.map_or(0, |path| numbers.cgroup(&path, cgroups)), ..line.sample.raw },
            thread: numbers.thread(line.sample.raw.pid, line.sample.raw.tid),
            ..line.sample
        };
        if is_wanted(&sample, loss) {
            samples.push(sample);
        }
    }
    Ok(true)
}

/// False, and counted, for samples that would have been left out of records too.
fn is_wanted(sample: &Sample, loss: &mut Loss) -> bool {
    let Loss { samples, idle, exiting, bogus, no_memory_op, .. } = loss;
    let (count, wanted) = if sample.raw.pid == 0 {
        (idle, false)
    } else if sample.raw.pid == u32::MAX || sample.raw.tid == u32::MAX {
        (exiting, false)
    } else if sample.raw.ip == 0 && sample.raw.addr == 0 {
        (bogus, false)
    } else if sample.raw.data_src.is_no_access() && sample.raw.addr == 0 {
        (no_memory_op, false)
    } else {
        (samples, true)
    };
    *count += 1;
    wanted
}
