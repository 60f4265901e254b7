//! The text of a recording in place of its records: what a line says of itself is all that there is to know.

use std::fs::File;
use std::io::{self, BufReader};
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::hints::Hints;
use super::order::{Order, Released};
use super::replay::hints_until;
use super::{Outcome, Sink};
use crate::profile::hints;
use crate::profile::script::Reader;
use crate::resolve::Cgroups;
use crate::sample::batch::Batch;
use crate::sample::SideBand;
use crate::sample::{Sample, ThreadIndex};
use crate::sampler::loss::Loss;

/// Threads and cgroups of lines that are remembered by number, and bytes of the cgroups' paths.
const MAX_NUMBERED: usize = 1 << 20;
const MAX_PATH_BYTES: usize = crate::resolve::cgroups::MAX_PATH_BYTES;
/// Lines that are taken at a time.
const BATCH: usize = 1024;

/// Numbers for what lines say by name.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
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
    pub(crate) fn thread(&mut self, pid: u32, tid: u32) -> ThreadIndex {
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
    pub(crate) fn cgroup(&mut self, path: &[u8], cgroups: &mut Cgroups) -> u64 {
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
    pub(crate) fn left_out(&self) -> Option<String> {
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

/// As [`replay`](super::replay()), of lines. They are put in order of time as far as a part of `memory` holds them.
pub(super) fn replay(
    lines: &mut Reader<BufReader<File>>,
    mut recorded: Option<&mut hints::Hints<File>>,
    memory: usize,
    sink: &mut dyn Sink,
    mut stop: impl FnMut() -> bool,
) -> io::Result<Outcome> {
    let mut text = Text {
        order: Order::new(1, memory / 4 / size_of::<Sample>()),
        numbers: Numbers::default(),
        cgroups: Cgroups::recorded(),
        hints: recorded.is_some().then(Hints::default),
        loss: Loss::default(),
        records: 0,
        span: (u64::MAX, 0),
    };
    let ended = loop {
        let result = text.take(lines);
        text.take_hints(recorded.as_deref_mut(), text.span.1, sink);
        if text.order.is_full() {
            text.release(sink);
        }
        match result {
            Ok(true) if !stop() => {}
            Ok(_) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    text.take_hints(recorded, u64::MAX, sink);
    text.order.push(Batch { complete_until: u64::MAX, ..Batch::default() });
    text.release(sink);
    let Text { order, hints, mut loss, records, span: (first, last), numbers, cgroups } = text;
    (loss.late, loss.late_side_band) = (order.late, order.late_side_band);
    ended.map(|()| Outcome {
        samples: records,
        accesses: records,
        events: loss.samples,
        duration: Duration::from_nanos(last.saturating_sub(first)),
        hints: hints.map(|hints| hints.counts),
        loss,
        notes: lines.missing.lines().into_iter().chain(numbers.left_out()).chain(cgroups.left_out()).collect(),
        ..Outcome::default()
    })
}

/// A replay at work.
struct Text {
    order: Order<Sample>,
    numbers: Numbers,
    cgroups: Cgroups,
    /// Where there are any.
    hints: Option<Hints>,
    loss: Loss,
    /// Samples so far, which are numbered by it.
    records: u64,
    /// Times of the first and of the last sample.
    span: (u64, u64),
}

impl Text {
    /// Takes some lines; false where there are no more.
    fn take(&mut self, lines: &mut Reader<BufReader<File>>) -> io::Result<bool> {
        let mut batch = Batch::default();
        let mut result = Ok(true);
        while batch.samples.len() < BATCH {
            match lines.next_line() {
                Ok(Some(line)) => {
                    let sample = Sample {
                        thread: self.numbers.thread(line.sample.pid, line.sample.tid),
                        cgroup: line.cgroup.map_or(0, |path| self.numbers.cgroup(&path, &mut self.cgroups)),
                        ..line.sample
                    };
                    if self.is_wanted(&sample) {
                        self.span = (self.span.0.min(sample.time), self.span.1.max(sample.time));
                        batch.samples.push(sample);
                    }
                }
                Ok(None) => {
                    result = Ok(false);
                    break;
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.order.push(batch);
        result
    }

    /// False, and counted, for what the records would have been left out for.
    fn is_wanted(&mut self, sample: &Sample) -> bool {
        let Loss { samples, idle, exiting, bogus, no_memory_op, .. } = &mut self.loss;
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

    /// Takes the hints up to `until`, which must come before the samples of their time.
    fn take_hints(&mut self, recorded: Option<&mut hints::Hints<File>>, until: u64, sink: &mut dyn Sink) {
        let Some(recorded) = recorded else { return };
        loop {
            let side_band = hints_until(recorded, until);
            let is_last = side_band.is_empty();
            self.order.push(Batch { side_band, ..Batch::default() });
            if self.order.is_crowded() {
                self.release(sink);
            }
            if is_last {
                break;
            }
        }
    }

    /// Hands on what is in its order.
    fn release(&mut self, sink: &mut dyn Sink) {
        let Self { order, cgroups, hints, loss, records, .. } = self;
        order.release(|released| match (released, &mut *hints) {
            (Released::SideBand(SideBand::Hint { time, pid, tid, hint }), Some(hints)) => {
                hints.event(time, pid, tid, hint);
            }
            (Released::SideBand(_), _) => {}
            (Released::Sample(sample), hints) => {
                let hint = hints.as_mut().and_then(|hints| hints.of_sample(sample.pid, sample.tid));
                *records += 1;
                let sample = Sample { record: *records, hint, ..*sample };
                loss.no_user_address += u64::from(sample.place.is_none());
                loss.unnamed += u64::from(sample.comm.is_none());
                sink.sample(&sample, cgroups);
            }
        });
    }
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
