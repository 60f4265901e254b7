//! Whether each access that scxprof recovered has happened: the plugin keeps all accesses of the workload in the meantime.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use crate::plugin::{self, Page, PAIRS, TRIPLES};
use crate::who::Who;
use crate::workloads::{self, Workload};

/// Where kernel addresses begin.
const KERNEL: u64 = 1 << 63;

/// How a workload is sampled.
pub struct Sampling<'a> {
    pub seconds: &'a str,
    /// Samples per second on each CPU.
    pub freq: &'a str,
    /// Kernel code too; then only its accesses are asked for.
    pub kernel: bool,
}

/// Samples a workload while the plugin keeps its accesses, and asks it for each access of a sample.
pub fn check(name: &str, sampling: &Sampling, who: &Who, page: &mut Page) -> Result<()> {
    let workload = Workload::start(name, 1)?;
    let groups: BTreeMap<u64, u64> =
        workload.put(who)?.into_iter().map(|(process, group)| (u64::from(process), u64::from(group))).collect();
    // While the plugin keeps accesses, a CPU is so slow that a thread which reads samples of kernel code may not sleep for 2 s, and the kernel
    // ends real-time threads that don't.
    let mut options = vec!["--freq", sampling.freq, "--realtime", "0"];
    if sampling.kernel {
        options.extend(workloads::WITH_KERNEL);
    }
    // Not before and after: scxprof reads the kernel's symbols, which takes long with the model.
    let begin = || {
        plugin::warm();
        plugin::record();
    };
    workloads::sample(&workload, sampling.seconds, &options, "/tmp/oracle.tar.gz", (begin, plugin::end))?;
    drop(workload);
    let lines = format!("/tmp/oracle-{name}");
    let words = ["process", "-f", "/tmp/oracle.tar.gz", "-o", &lines];
    let processed = Command::new("scxprof").args(words).stdin(Stdio::null()).output()?;
    ensure!(matches!(processed.status.code(), Some(0 | 4)), "scxprof: {}", String::from_utf8_lossy(&processed.stderr));

    let (mut triples, mut samples) = (Vec::new(), BTreeSet::new());
    for line in BufReader::new(File::open(format!("{lines}/perf.jsonl"))?).lines() {
        let line: Value = serde_json::from_str(&line?)?;
        let Some(group) = line["pid"].as_u64().and_then(|process| groups.get(&process)) else { continue };
        let [ip, addr] = [hex(&line["ip"])?, hex(&line["addr"])?];
        if sampling.kernel && ip < KERNEL {
            continue;
        }
        samples.insert((line["tid"].as_u64(), line["time"].to_string()));
        triples.push([*group, ip, addr]);
    }
    // The guest's files are in its RAM.
    fs::remove_dir_all(&lines)?;
    page.line(&json!({"oracle": {"workload": name, "samples": samples.len(), "accesses": triples.len()}}));
    for some in triples.chunks(TRIPLES) {
        page.ask(some);
    }
    page.ask(&[]);
    // Addresses of which the process has none: how many a filter of this size finds by chance.
    page.line(&json!({"control": name}));
    for some in triples.chunks(TRIPLES) {
        let never: Vec<[u64; 3]> = some.iter().map(|[group, ip, addr]| [*group, *ip, addr ^ 1 << 46]).collect();
        page.ask(&never);
    }
    page.ask(&[]);
    let of_user = triples.iter().filter(|[_, _, addr]| *addr < KERNEL);
    let pages: BTreeSet<[u64; 2]> = of_user.map(|[group, _, addr]| [*group, addr >> 12]).collect();
    let pages: Vec<[u64; 2]> = pages.into_iter().collect();
    for some in pages.chunks(PAIRS) {
        page.seen(some);
    }
    page.seen(&[]);
    Ok(())
}

fn hex(value: &Value) -> Result<u64> {
    let text = value.as_str().with_context(|| format!("no number in {value}"))?;
    Ok(u64::from_str_radix(text.trim_start_matches("0x"), 16)?)
}
