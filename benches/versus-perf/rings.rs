//! The drain: rings in memory, and the code that reads them. Needs no rights.
//!
//! The time of a pass over all rings is measured, as CPU time of the one thread that reads them. What a producer would have
//! written meanwhile at a given rate is written between the passes, and does not count. A ring is read when it is half full, as
//! in a capture, or when the last pass took longer than that; a ring that overflows is a loss. The rate doubles until there is
//! one, and is then narrowed down.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use scxprof::testing::sampler::attr::{layout, sampling, EventSpec, Features, Scope};
use scxprof::testing::sampler::encode::encode;
use scxprof::testing::sampler::intake::Intake;
use scxprof::testing::sampler::record::{Layout, Record, SampleId, SampleRecord};
use scxprof::testing::sampler::ring::Ring;
use scxprof::testing::sampler::{AddressFrom, Identity};

use crate::host::{meminfo, refused};
use crate::result::{Comparison, Measure, Plot, Run};
use crate::tools::{progress, Bench};

const PAGE: usize = 4096;
/// Samples of a batch (the workers have it too).
const BATCH: usize = 1024;
/// The rate from which it doubles, a second; where that is too high already, it is halved first.
const FIRST_RATE: f64 = 4e6;
const LEAST_RATE: f64 = 1_000.0;
/// Steps that halve the interval between the last rate without a loss and the first with one: to 3 %.
const STEPS: u32 = 5;
/// A rate is kept up with if that many passes in a row are not above the watermark, or that many do not overflow. Passes
/// are counted and not time: with many rings one takes a tenth of a second, and at a rate just too high the rings fill slowly.
const SETTLED: u32 = 8;
const PASSES: u32 = 60;

const KEPT: Measure =
    Measure { key: "samples_per_s", heading: "million samples/s of one core", decimals: 1, ratio: false };
const EACH: Measure = Measure { key: "per_ring", heading: "samples/s of a ring", decimals: 0, ratio: false };
const RINGS: Measure = Measure { key: "rings", heading: "rings", decimals: 0, ratio: false };

pub fn compare(bench: &Bench) -> Result<Comparison> {
    let mut compared = Comparison::new("rings", "Draining replayed rings");
    compared.measures = vec![RINGS, KEPT, EACH];
    compared.method = vec![
        format!(
            "Rings of {} pages in ordinary memory are filled with minor faults of {} bytes. One thread reads and decodes them as \
             scxprof's readers do; nothing is named or clustered.",
            bench.args.mmap_pages,
            sample(0)?.0.len()
        ),
        "The figure is the highest rate without a loss, in samples a second of CPU time of that thread. Writing is not in it: the \
         kernel does that on the CPUs that are sampled. There is no perf in this table."
            .to_owned(),
    ];
    let most = bench.args.rings.iter().copied().max().unwrap_or(0) as usize;
    let needed = (most * (1 + bench.args.mmap_pages as usize) * PAGE) as u64;
    let free = meminfo("MemAvailable").unwrap_or(u64::MAX);
    if needed > free / 2 {
        return Err(refused(format!(
            "{most} rings take {} MiB, and this machine has {} MiB left: choose fewer --rings or --mmap-pages",
            needed >> 20,
            free >> 20
        )));
    }
    for round in 1..=bench.args.rounds {
        for &count in &bench.args.rings {
            progress(&format!("round {round}: {count} rings"));
            let mut drain = Drain::new(count as usize, bench.args.mmap_pages as usize)?;
            let rate = drain.highest()?;
            let values =
                [("rings", f64::from(count)), ("samples_per_s", rate / 1e6), ("per_ring", rate / f64::from(count))];
            compared.runs.push(Run {
                case: format!("{count} rings"),
                tool: "scxprof's reader".to_owned(),
                round,
                command: String::new(),
                values: BTreeMap::from(values),
            });
        }
    }
    compared.plots = vec![Plot::Lines {
        key: "samples_per_s",
        along: "rings",
        title: "Replayed rings that one core drains without a loss",
        values: "million samples a second of one core",
        axis: "rings (logarithmic)",
        is_log: false,
    }];
    Ok(compared)
}

fn sample(number: u64) -> Result<(Vec<u8>, Layout)> {
    let layout = layout(&sampling(&EventSpec::minor_faults(), Features::all(), Scope::default(), 0));
    let sample =
        SampleRecord { ip: number, pid: 7, tid: 8, time: number, addr: number << 12, ..SampleRecord::default() };
    let mut bytes = Vec::new();
    anyhow::ensure!(
        encode(&Record::Sample(sample), &SampleId::default(), 2, &layout, &mut bytes),
        "a sample does not encode"
    );
    Ok((bytes, layout))
}

/// Rings, and what reads them.
struct Drain {
    rings: Vec<Ring>,
    layout: Layout,
    intake: Intake,
    /// As many samples as a ring holds.
    records: Vec<u8>,
    /// Bytes of a sample, and samples of a full ring.
    size: usize,
    room: usize,
}

/// What came of a rate.
#[derive(Debug, PartialEq)]
struct Trial {
    read: u64,
    lost: u64,
}

impl Drain {
    fn new(count: usize, pages: usize) -> Result<Self> {
        let (one, layout) = sample(0)?;
        let size = one.len();
        let room = pages * PAGE / size;
        let mut records = Vec::with_capacity(room * size);
        for number in 0..room as u64 {
            records.extend(sample(number)?.0);
        }
        // Each begins elsewhere, so that they do not all wrap at once.
        let rings = (0..count).map(|index| Ring::in_memory(pages, (index * 8) as u64)).collect::<Result<_, _>>();
        let identity = Identity { own_pid: 1, child_pid_namespace: false, without_profilers: false };
        let intake = Intake::new(identity, AddressFrom::Fault);
        Ok(Self { rings: rings.context("memory for the rings")?, layout, intake, records, size, room })
    }

    /// The highest rate without a loss, in samples a second of all rings.
    fn highest(&mut self) -> Result<f64> {
        let mut rate = FIRST_RATE;
        while rate > LEAST_RATE && self.run(rate)?.lost > 0 {
            rate /= 2.0;
        }
        while self.run(rate)?.lost == 0 {
            rate *= 2.0;
        }
        let (mut kept, mut lost) = (rate / 2.0, rate);
        for _ in 0..STEPS {
            let middle = f64::midpoint(kept, lost);
            if self.run(middle)?.lost == 0 {
                kept = middle;
            } else {
                lost = middle;
            }
        }
        Ok(kept)
    }

    /// Runs at a rate until a ring overflows, or long enough.
    fn run(&mut self, rate: f64) -> Result<Trial> {
        let each = rate / self.rings.len().max(1) as f64;
        let mut trial = Trial { read: 0, lost: 0 };
        let watermark = self.room / 2;
        let (mut last, mut settled) = (0.0, 0);
        for _ in 0..PASSES {
            // The reader wakes up at the watermark, half a ring; later where the last pass took longer than that.
            let due = ((each * last) as usize).max(watermark);
            let fits = due.min(self.room);
            for ring in &mut self.rings {
                let bytes = self.records.get(..fits * self.size).unwrap_or_default();
                anyhow::ensure!(ring.replay(bytes), "a ring that was emptied has no room");
            }
            let begin = thread_seconds();
            trial.read += self.pass()?;
            last = thread_seconds() - begin;
            trial.lost += ((due - fits) * self.rings.len()) as u64;
            settled = if due == watermark { settled + 1 } else { 0 };
            if trial.lost > 0 || settled >= SETTLED {
                break;
            }
        }
        Ok(trial)
    }

    /// Reads every ring once; returns the samples.
    fn pass(&mut self) -> Result<u64> {
        let Self { rings, layout, intake, .. } = self;
        let mut scratch = Vec::new();
        let mut read = 0;
        for ring in rings {
            ring.drain(&mut scratch, |bytes| {
                intake.take(bytes, layout);
                let samples = &mut intake.batch().samples;
                if samples.len() >= BATCH {
                    read += samples.len() as u64;
                    // A worker gives the batch away too.
                    drop(std::mem::take(samples));
                }
            })?;
        }
        let rest = std::mem::take(&mut intake.batch().samples);
        Ok(read + rest.len() as u64)
    }
}

/// CPU time of this thread.
fn thread_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_read_and_what_does_not_is_lost() {
        let mut drain = Drain::new(4, 4).unwrap();
        let slow = drain.run(1.0).unwrap();
        assert_eq!(slow.lost, 0);
        assert_eq!(slow.read % (4 * (drain.room as u64 / 2)), 0);
        assert!(slow.read > 0);
        // No reader is as fast.
        let fast = drain.run(1e15).unwrap();
        assert!(fast.lost > 0, "{fast:?}");
        assert!(drain.highest().unwrap() > 0.0);
    }
}
