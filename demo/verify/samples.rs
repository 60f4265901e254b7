//! Samples of the workload, from the text of `perf script` and from the lines that scxprof writes, and their summary.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Bits of `perf_mem_data_src.mem_op` (linux/perf_event.h): a load or a store.
const ACCESS: u64 = 2 | 4;

/// The event that leads the group of mem-loads on some Intel CPUs. perf samples it too, scxprof only counts it.
const AUXILIARY: &str = "mem-loads-aux";

/// One access: thread, time, address, physical address, data source and latency.
pub type Access = (u32, u64, u64, u64, u64, u64);

/// The samples of the workload's user code in one file.
#[derive(Default)]
pub struct Samples {
    /// All of them.
    pub count: usize,
    /// Those with an address.
    pub accesses: Vec<Access>,
    /// How many of these come from each level of memory, by perf's name of it.
    pub levels: BTreeMap<String, usize>,
    /// How many of these were modified in the cache of another core.
    pub hitm: usize,
    /// Of the whole host.
    pub lost: u64,
    /// Of any process and of kernel code too.
    pub records: usize,
}

/// User addresses are in the lower half, on every architecture.
fn is_user(address: u64) -> bool {
    address != 0 && address >> 63 == 0
}

/// Nanoseconds of "28143.984786154".
fn nanoseconds(time: &str) -> Option<u64> {
    let (seconds, fraction) = time.split_once('.')?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction.parse().ok()?)
}

impl Samples {
    /// Reads what `perf script --ns -F pid,tid,time,event,ip,addr,phys_addr,data_src,weight --show-lost-events` prints:
    /// `PID/TID TIME: EVENT: ADDR DATA_SRC |OP ...|LVL ...|SNP ...|... WEIGHT IP PHYS_ADDR`.
    pub fn of_script(lines: impl BufRead, pids: &BTreeSet<u32>) -> Result<Self> {
        let mut samples = Self::default();
        let (mut lost, mut by_events) = (0, 0u64);
        for line in lines.lines() {
            let line = line.context("perf script")?;
            if let Some((_, said)) = line.split_once("PERF_RECORD_LOST") {
                let number = said.split_whitespace().last().and_then(|word| word.parse().ok()).unwrap_or(0);
                // The kernel's records, and the events' own counts, which perf reads at the end.
                let sum = if said.starts_with("_SAMPLES") { &mut by_events } else { &mut lost };
                *sum = sum.saturating_add(number);
                continue;
            }
            if line.trim().is_empty() {
                continue;
            }
            samples.add(&line, pids).with_context(|| format!("no sample of perf script: {line}"))?;
        }
        samples.lost = lost.max(by_events);
        Ok(samples)
    }

    fn add(&mut self, line: &str, pids: &BTreeSet<u32>) -> Option<()> {
        let (numbers, rest) = line.split_once('|')?;
        let mut words = numbers.split_whitespace();
        // Both are padded, so that there may be a space behind the slash.
        let (pid, tid) = words.next()?.split_once('/')?;
        let tid = if tid.is_empty() { words.next()? } else { tid }.parse().ok()?;
        let time = nanoseconds(words.next()?.strip_suffix(':')?)?;
        let event = words.next()?;
        let hex = |word: &str| u64::from_str_radix(word, 16).ok();
        let (addr, data_src) = (hex(words.next()?)?, hex(words.next()?)?);
        let mut last = rest.split_whitespace().rev();
        let (phys, ip) = (hex(last.next()?)?, hex(last.next()?)?);
        let latency = last.next()?.parse().ok()?;
        self.records += 1;
        if event.contains(AUXILIARY) || !pids.contains(&pid.parse().ok()?) || !is_user(ip) {
            return Some(());
        }
        self.count += 1;
        if is_user(addr) && data_src & ACCESS != 0 {
            self.accesses.push((tid, time, addr, phys, data_src, latency));
            let field = |name: &str| rest.split('|').find_map(|field| field.strip_prefix(name)).map(str::trim);
            *self.levels.entry(field("LVL ").unwrap_or("N/A").to_owned()).or_default() += 1;
            self.hitm += usize::from(field("SNP ").is_some_and(|snoop| snoop.to_ascii_lowercase().contains("hitm")));
        }
        Some(())
    }

    /// Reads the lines of `scxprof process` (docs/profile.md).
    pub fn of_lines(lines: impl BufRead, pids: &BTreeSet<u32>) -> Result<Self> {
        let mut samples = Self::default();
        for line in lines.lines() {
            let line = line.context("perf.jsonl")?;
            let value: Value = serde_json::from_str(&line).with_context(|| format!("perf.jsonl: {line}"))?;
            let number = |key: &str| value.get(key).and_then(Value::as_u64).unwrap_or(0);
            let hex = |key: &str| {
                let text = value.get(key).and_then(Value::as_str);
                text.and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0)
            };
            samples.records += 1;
            let pid = u32::try_from(number("pid")).unwrap_or(0);
            let event = value.get("event").and_then(Value::as_str).unwrap_or_default();
            if event.contains(AUXILIARY) || !pids.contains(&pid) || !is_user(hex("ip")) {
                continue;
            }
            samples.count += 1;
            if is_user(hex("addr")) && hex("data_src") & ACCESS != 0 {
                let time = value.get("time").and_then(Value::as_str).and_then(nanoseconds).unwrap_or(0);
                let tid = u32::try_from(number("tid")).unwrap_or(0);
                let (addr, phys, data_src) = (hex("addr"), hex("phys_addr"), hex("data_src"));
                samples.accesses.push((tid, time, addr, phys, data_src, number("weight")));
            }
        }
        Ok(samples)
    }

    /// How many accesses have a physical address.
    pub fn with_phys(&self) -> usize {
        self.accesses.iter().filter(|access| access.3 != 0).count()
    }

    /// Of those accesses that have a latency, this quantile; `None` if none has.
    pub fn latency(&self, quantile: f64) -> Option<u64> {
        let mut latencies: Vec<u64> =
            self.accesses.iter().map(|access| access.5).filter(|&cycles| cycles > 0).collect();
        latencies.sort_unstable();
        latencies.get(((latencies.len() as f64 * quantile) as usize).min(latencies.len().saturating_sub(1))).copied()
    }
}

/// Accesses of the first that the second does not have.
pub fn missing(first: &Samples, second: &Samples) -> usize {
    let mut have: BTreeMap<Access, usize> = BTreeMap::new();
    for access in &second.accesses {
        *have.entry(*access).or_default() += 1;
    }
    let lacks = |access: &&Access| match have.get_mut(access) {
        Some(left) if *left > 0 => {
            *left -= 1;
            false
        }
        _ => true,
    };
    first.accesses.iter().filter(lacks).count()
}
