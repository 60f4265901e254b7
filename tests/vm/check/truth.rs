//! The samples that the simulated PMU sent (tests/vm/module/log.c).

use std::collections::BTreeMap;
use std::fs;

use anyhow::{bail, ensure, Context, Result};

pub const SAMPLES: &str = "/sys/kernel/debug/simpmu/samples";
const COUNTS: &str = "/sys/kernel/debug/simpmu/counts";

/// A sample as the PMU sent it. Fields that an event did not request are 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sent {
    pub time: u64,
    pub cpu: u32,
    pub pid: u32,
    pub tid: u32,
    pub user: bool,
    pub ip: u64,
    pub addr: u64,
    pub phys: u64,
    pub page_size: u64,
    pub cgroup: u64,
    pub period: u64,
    pub latency: u64,
    pub data_src: u64,
    pub comm: Vec<u8>,
}

/// The `key=value` words of a line.
pub fn fields(line: &str) -> BTreeMap<&str, &str> {
    line.split_whitespace().filter_map(|word| word.split_once('=')).collect()
}

pub fn number(text: &str) -> Result<u64> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.with_context(|| format!("\"{text}\" is no number"))
}

/// The bytes that a row of hexadecimal digits stands for.
pub fn bytes(hex: &str) -> Result<Vec<u8>> {
    (0..hex.len() / 2)
        .map(|at| hex.get(at * 2..at * 2 + 2).context("half a byte").and_then(|two| Ok(u8::from_str_radix(two, 16)?)))
        .collect()
}

/// All that was sent since the log was emptied.
pub fn sent() -> Result<Vec<Sent>> {
    let counts = fs::read_to_string(COUNTS).context(COUNTS)?;
    ensure!(counts.contains("unlogged=0"), "the module's log is full: {counts}");
    let text = fs::read_to_string(SAMPLES).context(SAMPLES)?;
    text.lines()
        .map(|line| {
            let fields = fields(line);
            let field = |name: &str| fields.get(name).copied().with_context(|| format!("no {name} in {line}"));
            let value = |name: &str| field(name).and_then(number);
            Ok(Sent {
                time: value("time")?,
                cpu: value("cpu")? as u32,
                pid: value("pid")? as u32,
                tid: value("tid")? as u32,
                user: value("user")? == 1,
                ip: value("ip")?,
                addr: value("addr")?,
                phys: value("phys")?,
                page_size: value("page")?,
                cgroup: value("cgroup")?,
                period: value("period")?,
                latency: value("latency")?,
                data_src: value("src")?,
                comm: bytes(field("comm")?)?,
            })
        })
        .collect()
}

/// The same by CPU and time, which identify a sample of a PMU.
pub fn by_time(sent: Vec<Sent>) -> Result<BTreeMap<(u32, u64), Sent>> {
    let mut by_time = BTreeMap::new();
    for sample in sent {
        if let Some(twice) = by_time.insert((sample.cpu, sample.time), sample) {
            bail!("two samples at once: {twice:?}");
        }
    }
    Ok(by_time)
}
