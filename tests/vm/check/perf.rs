//! Checks the simulator itself: `perf script` shows of a recording what the module sent.

use std::fs;

use anyhow::{ensure, Context, Result};

use crate::truth::{self, Sent};

/// `vm-check perf FILE`: FILE is the output of
/// `perf script --ns -F tid,cpu,time,ip,addr,data_src,weight,phys_addr` (without phys_addr where perf has none).
pub fn check(arguments: &[String]) -> Result<()> {
    let file = arguments.first().context("vm-check perf FILE")?;
    let text = fs::read_to_string(file).with_context(|| file.clone())?;
    let mut sent = truth::by_time(truth::sent()?)?;
    let (mut same, mut memory) = (0, 0);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let shown = parse(line).with_context(|| format!("perf script: {line}"))?;
        let sent =
            sent.remove(&(shown.cpu, shown.time)).with_context(|| format!("never sent, or only once: {line}"))?;
        let expected = Sent {
            time: sent.time,
            cpu: sent.cpu,
            tid: sent.tid,
            addr: sent.addr,
            latency: sent.latency,
            data_src: sent.data_src,
            ..Sent::default()
        };
        ensure!(shown == expected, "perf shows {shown:?}, sent was {sent:?}");
        same += 1;
        memory += u32::from(shown.addr != 0);
    }
    ensure!(sent.is_empty(), "perf does not show {} samples, such as {:?}", sent.len(), sent.values().next());
    ensure!(memory >= 200, "only {memory} samples of memory");
    println!("perf: {same} samples as sent, {memory} of them of memory");
    Ok(())
}

/// TID [CPU] TIME: ADDR DATA_SRC |OP ...| WEIGHT
fn parse(line: &str) -> Result<Sent> {
    let (numbers, rest) = line.split_once('|').context("no data source")?;
    let mut words = numbers.split_whitespace();
    let mut next = |what: &'static str| words.next().context(what);
    let tid = next("no tid")?.parse()?;
    let cpu = next("no CPU")?.trim_matches(['[', ']']).parse()?;
    let time = next("no time")?.trim_end_matches(':').replace('.', "").parse()?;
    let addr = u64::from_str_radix(next("no address")?, 16)?;
    let data_src = u64::from_str_radix(next("no data source")?, 16)?;
    let latency = rest.split_whitespace().last().context("no weight")?.parse()?;
    Ok(Sent { time, cpu, tid, addr, latency, data_src, ..Sent::default() })
}
