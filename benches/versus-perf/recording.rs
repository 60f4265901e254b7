//! Counts the samples of a perf.data and those that it lost, and reads samples from the text of `perf script`.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use scxprof::testing::profile::{Item, PerfData};

/// Types of records (linux/perf_event.h).
const LOST: u32 = 2;
const SAMPLE: u32 = 9;
const LOST_SAMPLES: u32 = 13;

/// What a recording has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub samples: u64,
    pub lost: u64,
}

/// Counts the records of a perf.data, whoever wrote it.
///
/// The kernel's records of loss are written only when there is room again. So both tools add the events' own counts at the
/// end, which have all; the larger sum is taken.
///
/// # Errors
/// It cannot be read.
pub fn count(path: &Path) -> Result<Counts> {
    let shown = || path.display().to_string();
    let mut file = PerfData::open(File::open(path).with_context(shown)?).with_context(shown)?;
    let (mut samples, mut lost, mut by_events) = (0, 0u64, 0u64);
    while let Some(item) = file.next_item().with_context(shown)? {
        let Item::Record { bytes, .. } = item else { continue };
        let word = |at: usize| bytes.get(at..at + 8).and_then(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)));
        match bytes.first_chunk().map(|kind| u32::from_ne_bytes(*kind)) {
            Some(SAMPLE) => samples += 1,
            // After the header: the event's id, and the number.
            Some(LOST) => lost = lost.saturating_add(word(16).unwrap_or(0)),
            Some(LOST_SAMPLES) => by_events = by_events.saturating_add(word(8).unwrap_or(0)),
            _ => {}
        }
    }
    Ok(Counts { samples, lost: lost.max(by_events) })
}

/// A memory access that a PMU sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    pub pid: u32,
    pub tid: u32,
    pub addr: u64,
    pub data_src: u64,
    pub latency: u64,
}

/// The fields of [`parse`].
pub const FIELDS: &str = "pid,tid,time,addr,data_src,weight";

/// A line of `perf script --ns -F` [`FIELDS`]: `PID/TID TIME: ADDR DATA_SRC |OP ...| WEIGHT`.
///
/// # Errors
/// It is none.
pub fn parse(line: &str) -> Result<Observed> {
    let of = || format!("perf script: {line}");
    let (numbers, rest) = line.split_once('|').with_context(of)?;
    let mut words = numbers.split_whitespace();
    let mut next = || words.next().with_context(of);
    // Both are padded, so that there may be a space behind the slash.
    let ids = next()?;
    let (pid, tid) = ids.split_once('/').with_context(of)?;
    let pid = pid.parse().with_context(of)?;
    let tid = if tid.is_empty() { next()? } else { tid }.parse().with_context(of)?;
    next()?.strip_suffix(':').with_context(of)?;
    let mut hex = || u64::from_str_radix(next()?, 16).with_context(of);
    let (addr, data_src) = (hex()?, hex()?);
    let latency = rest.split_whitespace().last().and_then(|word| word.parse().ok()).with_context(of)?;
    Ok(Observed { pid, tid, addr, data_src, latency })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_perf_script_are_read() {
        let line = "  612/  614    12.345678901:     7f0000a1b2c8        1e05080021 |OP LOAD|LVL L1 hit|SNP N/A|TLB N/A|LCK N/A|BLK  N/A                 37 ";
        let observed = Observed { pid: 612, tid: 614, addr: 0x7f00_00a1_b2c8, data_src: 0x1e_0508_0021, latency: 37 };
        assert_eq!(parse(line).unwrap(), observed);
        assert_eq!(parse(&line.replace("/  614", "/614")).unwrap(), observed);
        for bad in ["", "612/614 1.0: 7f 5", "612 1.0: 7f 5 |x| 3", "612/614 1.0: 7f 5 |x| y", "612/614 1.0 7f 5 |x| 3"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
