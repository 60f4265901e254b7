//! The text of a recording in place of its records: what a line says of itself is all that there is to know.

use std::fs::File;
use std::io::{self, BufReader};

use rustc_hash::FxHashMap;

use super::hints::Hints;
use super::order::Order;
use super::running::Ends;
use super::{Loss, Names, Outcome, Sink};
use crate::profile::hints;
use crate::profile::script::Reader;
use crate::resolve::Cgroups;
use crate::sample::batch::Batch;
use crate::sample::{RawSample, Sample, ThreadIndex};

/// Threads and cgroups of lines that are remembered by number, and bytes of the cgroups' paths.
const MAX_NUMBERED: usize = 1 << 20;
const MAX_PATH_BYTES: usize = crate::resolve::cgroups::MAX_PATH_BYTES;
/// Lines that are taken at a time.
const BATCH: usize = 1024;

/// Numbers for what lines say by name.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    threads: FxHashMap<(u32, u32), ThreadIndex>,
    cgroups: FxHashMap<Vec<u8>, u64>,
    path_bytes: usize,
    /// Times that all numbers of threads or of cgroups were forgotten.
    forgotten: u64,
    /// The last one and its number, which is not 0.
    last_cgroup: (Vec<u8>, u64),
    next: u64,
}

impl Numbers {
    /// The thread of that tid, whoever had it.
    pub(super) fn thread(&mut self, pid: u32, tid: u32) -> ThreadIndex {
        if self.threads.len() >= MAX_NUMBERED {
            self.threads.clear();
            self.forgotten += 1;
        }
        let next = &mut self.next;
        *self.threads.entry((pid, tid)).or_insert_with(|| {
            *next += 1;
            *next as ThreadIndex
        })
    }

    /// The cgroup of that path, which `cgroups` knows by its number then.
    pub(super) fn cgroup(&mut self, path: &[u8], cgroups: &mut Cgroups) -> u64 {
        if self.last_cgroup.0 != path || self.last_cgroup.1 == 0 {
            self.last_cgroup = (path.to_vec(), self.other_cgroup(path, cgroups));
        }
        self.last_cgroup.1
    }

    fn other_cgroup(&mut self, path: &[u8], cgroups: &mut Cgroups) -> u64 {
        if let Some(&id) = self.cgroups.get(path) {
            return id;
        }
        if self.cgroups.len() >= MAX_NUMBERED || self.path_bytes + path.len() > MAX_PATH_BYTES {
            self.cgroups.clear();
            self.path_bytes = 0;
            self.forgotten += 1;
        }
        self.path_bytes += path.len();
        self.next += 1;
        self.cgroups.insert(path.to_vec(), self.next);
        cgroups.record(self.next, path);
        self.next
    }

    /// What was forgotten to stay within bounds, in a sentence.
    pub(super) fn left_out(&self) -> Option<String> {
        (self.forgotten > 0).then(|| {
            format!(
                "{} times there were more threads or cgroups than are told apart ({MAX_NUMBERED}, and paths of {} MiB): those that \
                 came again count as others",
                self.forgotten,
                MAX_PATH_BYTES >> 20
            )
        })
    }
}

/// Hands the samples of `lines` to `sink` until their end, or until it is to end; with what ended it early. They are put in order
/// of time as far as a part of `memory` holds them.
pub(super) fn run(
    lines: &mut Reader<BufReader<File>>,
    mut recorded: Option<&mut hints::Hints<File>>,
    memory: usize,
    sink: &mut dyn Sink,
    mut ends: Ends<'_>,
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
            Ok(true) if !ends.are_there(names.records) => {}
            Ok(_) => break None,
            Err(error) => break Some(error),
        }
    };
    names.take_hints(recorded, u64::MAX, &mut order, sink);
    order.end();
    names.release(&mut order, sink);
    let mut outcome = names.outcome(&order, loss);
    outcome.notes.splice(..0, lines.missing.lines().into_iter().chain(numbers.left_out()));
    (outcome, failed)
}

/// Takes some lines; false where there are no more.
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
            thread: numbers.thread(line.sample.pid, line.sample.tid),
            ..line.sample
        };
        if is_wanted(&sample, loss) {
            samples.push(sample);
        }
    }
    Ok(true)
}

/// False, and counted, for what the records would have been left out for.
fn is_wanted(sample: &Sample, loss: &mut Loss) -> bool {
    let Loss { samples, idle, exiting, bogus, no_memory_op, .. } = loss;
    let (count, wanted) = if sample.pid == 0 {
        (idle, false)
    } else if sample.pid == u32::MAX || sample.tid == u32::MAX {
        (exiting, false)
    } else if sample.ip == 0 && sample.addr == 0 {
        (bogus, false)
    } else if sample.data_src.is_no_access() && sample.addr == 0 {
        (no_memory_op, false)
    } else {
        (samples, true)
    };
    *count += 1;
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_have_numbers_are_bounded() {
        let (mut numbers, mut cgroups) = (Numbers::default(), Cgroups::recorded());
        assert_eq!(numbers.left_out(), None);
        for number in 0..MAX_PATH_BYTES / 60_000 * 3 {
            let path = [number.to_string().as_bytes(), &vec![b'x'; 60_000][..]].concat();
            let id = numbers.cgroup(&path, &mut cgroups);
            assert_eq!(numbers.cgroup(&path, &mut cgroups), id);
            assert!(numbers.path_bytes <= MAX_PATH_BYTES);
        }
        assert_eq!(numbers.cgroups.keys().map(Vec::len).sum::<usize>(), numbers.path_bytes);
        assert!(numbers.left_out().unwrap().starts_with(&format!("{} times", numbers.forgotten)));
    }
}
