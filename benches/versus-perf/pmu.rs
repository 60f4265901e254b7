//! Captures with a memory PMU: what they cost, and whether perf and scxprof see the same.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::agreement::{distributions, groups, Groups, Sides};
use crate::capture::Captured;
use crate::cli::Hardware;
use crate::host::{need_root, refused};
use crate::load::Workload;
use crate::recording::{parse, Observed, FIELDS};
use crate::result::{Check, Comparison, Measure, Plot, BYTES, CPU, LOST, PEAK, SAMPLES};
use crate::statistics::in_turn;
use crate::tools::{beside, progress, words, Bench};

const TO_CONFIGURATION: Measure =
    Measure { key: "answer_wall_s", heading: "s to a configuration", decimals: 2, ratio: false };
const CPU_TO_CONFIGURATION: Measure =
    Measure { key: "answer_cpu_s", heading: "CPU s to a configuration", decimals: 2, ratio: false };
/// User addresses; an access of the kernel is not what scxprof samples.
const USER_END: u64 = 1 << 47;
const SECONDS: f64 = 3600.0;

/// One program with its options.
struct Tool {
    name: &'static str,
    options: Vec<String>,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// perf; true where `--` goes before the command.
    Perf(bool),
    Record,
    Run,
}

/// What a tool saw, of the load.
#[derive(Default)]
struct Seen {
    observed: Vec<Observed>,
    /// Of each round.
    groups: Vec<Groups>,
}

pub fn compare(bench: &Bench) -> Result<Comparison> {
    need_root("pmu")?;
    bench.perf()?;
    let hardware = bench.args.source.map_or_else(|| found(Path::new("/sys/bus/event_source/devices")), Ok)?;
    let command = match &bench.args.load {
        Some(command) => command.clone(),
        None => format!("{} --busy --seconds 86400", beside("demo-workload")?.display()),
    };
    progress(&command);
    let load = Workload::start(&command)?;
    let pids: BTreeSet<u32> = load.pids().into_iter().collect();
    let mut compared = Comparison::new("pmu", "Captures with a memory PMU");
    compared.measures = vec![CPU, PEAK, BYTES, SAMPLES, LOST, TO_CONFIGURATION, CPU_TO_CONFIGURATION];
    compared.method = vec![
        format!(
            "Source {}, a sample every {} events{}; each program samples the whole host for {} s, in turn, while one load runs: `{command}`.",
            hardware.name(),
            bench.args.period,
            if hardware == Hardware::Pebs { format!(", loads of at least {} cycles", bench.args.ldlat) } else { String::new() },
            bench.args.seconds
        ),
        "\"To a configuration\" is from the end of sampling: of `scxprof run` until it has ended; of the others until they have ended, \
         and then `scxprof extract` of what they wrote."
            .to_owned(),
        "What both saw is read from their files by `perf script`. Each quantity is compared thread by thread; its limit is the \
         greatest distance of 1,999 random divisions of the same samples."
            .to_owned(),
    ];
    let mut all = Vec::new();
    for (case, tools) in cases(bench, hardware) {
        let mut seen: Vec<Seen> = tools.iter().map(|_| Seen::default()).collect();
        for (round, side) in in_turn(bench.args.rounds, tools.len()) {
            let (Some(tool), Some(seen)) = (tools.get(side), seen.get_mut(side)) else { continue };
            capture(bench, &mut compared, case, round, tool, &pids, seen)?;
        }
        all.push((case, tools, seen));
    }
    drop(load);
    progress("comparing what they saw");
    compared.checks.extend(all.iter().flat_map(|(case, tools, seen)| checks(case, tools, seen)));
    progress("done");
    let plot = |key, title, values, decimals| Plot::Bars { key, title, values, decimals };
    compared.plots = vec![
        plot("cpu_s", "CPU time of a capture with a memory PMU", "CPU seconds", 2),
        plot("answer_wall_s", "From the last sample to a configuration", "seconds", 2),
    ];
    Ok(compared)
}

/// The memory PMU of this host.
fn found(devices: &Path) -> Result<Hardware> {
    if devices.join("ibs_op").exists() {
        return Ok(Hardware::Ibs);
    }
    let entries = fs::read_dir(devices).into_iter().flatten().flatten();
    if entries.into_iter().any(|device| device.path().join("events/mem-loads").exists()) {
        return Ok(Hardware::Pebs);
    }
    Err(refused(format!(
        "this host has no memory PMU: neither ibs_op nor a mem-loads event is in {}; the guests of tests/vm have a simulated one \
         (`make test-vm ARGS=versus-perf-intel`)",
        devices.display()
    )))
}

/// What is captured, and by which programs; the first ones are perf's.
fn cases(bench: &Bench, hardware: Hardware) -> Vec<(&'static str, Vec<Tool>)> {
    let (period, ldlat) = (bench.args.period.to_string(), bench.args.ldlat.to_string());
    let count = format!("--count={period}");
    let memory = ["--phys-data", "--data-page-size", "--all-cgroups"];
    // perf 6.1 and 6.12 cannot ask IBS for the size of the page.
    let memory = if hardware == Hardware::Ibs { vec!["--phys-data", "--all-cgroups"] } else { memory.to_vec() };
    let perf = |name, before: &[&str], dashes| {
        let options = [before, &["-a", "-N", &count], &memory[..]].concat();
        Tool { name, options: words(&options), what: What::Perf(dashes) }
    };
    let ours = |stores: bool, what: What| {
        let mut options = words(&["--source", hardware.name(), "--period", &period]);
        if hardware == Hardware::Pebs {
            options.extend(words(&["-l", &ldlat]));
        }
        if stores {
            options.push("--stores".to_owned());
        }
        let name = if what == What::Record { "scxprof record" } else { "scxprof run" };
        Tool { name, options, what }
    };
    match hardware {
        Hardware::Pebs => vec![
            (
                "loads",
                vec![
                    perf("perf mem record", &["mem", "-t", "load", "record", "-U", "--ldlat", &ldlat], true),
                    ours(false, What::Record),
                    ours(false, What::Run),
                ],
            ),
            (
                "loads and stores",
                vec![
                    // Here "--" is where the options of perf record begin.
                    perf("perf c2c record", &["c2c", "record", "-u", "-l", &ldlat, "--"], false),
                    ours(true, What::Record),
                    ours(true, What::Run),
                ],
            ),
        ],
        Hardware::Ibs => vec![(
            "ops",
            vec![
                perf("perf mem record", &["mem", "record"], true),
                perf("perf c2c record", &["c2c", "record", "--"], false),
                ours(false, What::Record),
                ours(false, What::Run),
            ],
        )],
    }
}

fn capture(
    bench: &Bench,
    compared: &mut Comparison,
    case: &str,
    round: u32,
    tool: &Tool,
    pids: &BTreeSet<u32>,
    seen: &mut Seen,
) -> Result<()> {
    let report = bench.clear("report.json")?;
    let report_path = report.display().to_string();
    let decision = ["--target-cpus", "64", "--report", &report_path];
    let options: Vec<&str> = tool.options.iter().map(String::as_str).collect();
    let mut captured = match tool.what {
        What::Perf(dashes) => bench.perf_record(&options, dashes)?,
        What::Record => bench.scxprof_record(&options)?,
        What::Run => bench.scxprof_run(&[&options[..], &decision].concat())?,
    };
    let (mut wall, mut cpu) = captured.ended.usage.after.unwrap_or_default();
    if tool.what != What::Run {
        let configuration = bench.clear("cells.json")?.display().to_string();
        let path = captured.file.display().to_string();
        let mut argv = words(&[&bench.scxprof(), "extract", "--no-symbols", "-f", &path, "-o", &configuration]);
        argv.extend(words(&decision));
        let extracted = bench.run(&argv, SECONDS, |_| ())?;
        wall += extracted.usage.wall_s;
        cpu += extracted.usage.cpu_s();
        observe(bench, &captured, pids, &mut seen.observed)?;
    }
    captured.values.extend([("answer_wall_s", wall), ("answer_cpu_s", cpu)]);
    compared.add(case, tool.name, round, &captured.ended, &captured.values);
    let text = fs::read_to_string(&report).with_context(|| report_path.clone())?;
    let report: Value = serde_json::from_str(&text).with_context(|| report_path.clone())?;
    seen.groups.push(communities(&report, pids));
    Ok(())
}

/// Adds the accesses of the load's processes to what was seen, by the text of perf script.
fn observe(bench: &Bench, captured: &Captured, pids: &BTreeSet<u32>, observed: &mut Vec<Observed>) -> Result<()> {
    let script: PathBuf = bench.clear("script")?;
    let argv = words(&[&bench.perf()?, "script", "--ns", "-F", FIELDS, "-i", &captured.file.display().to_string()]);
    bench.run(&argv, SECONDS, |task| task.stdout = Some(script.clone()))?;
    let shown = || script.display().to_string();
    for line in BufReader::new(fs::File::open(&script).with_context(shown)?).lines() {
        let line = line.with_context(shown)?;
        if line.trim().is_empty() {
            continue;
        }
        let one = parse(&line)?;
        // perf also records ops that access no memory, and the kernel's accesses if it cannot leave them out.
        if pids.contains(&one.pid) && one.addr != 0 && one.addr < USER_END {
            observed.push(one);
        }
    }
    Ok(())
}

/// The groups of the load's threads in a report: each community is one, and each other thread.
fn communities(report: &Value, pids: &BTreeSet<u32>) -> Groups {
    let list = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let mut found = Groups::new();
    for cell in list(report, "cells") {
        let name = cell.get("name").and_then(Value::as_str).unwrap_or_default();
        for thread in list(&cell, "subcells").iter().flat_map(|subcell| list(subcell, "threads")) {
            let id = |key: &str| thread.get(key).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
            let (Some(pid), Some(tid)) = (id("pid"), id("tid")) else { continue };
            if !pids.contains(&pid) {
                continue;
            }
            let verdict = thread.get("verdict").and_then(Value::as_str).unwrap_or_default();
            let label =
                if verdict.starts_with("community ") { format!("{name}/{verdict}") } else { format!("thread {tid}") };
            found.insert((pid, tid), label);
        }
    }
    found
}

/// Each of perf's programs against `scxprof record`, and its groups against those of `scxprof run`.
fn checks(case: &str, tools: &[Tool], seen: &[Seen]) -> Vec<Check> {
    let of = |what: What| tools.iter().zip(seen).find(|(tool, _)| tool.what == what);
    let (Some((record, recorded)), Some((run, ran))) = (of(What::Record), of(What::Run)) else { return Vec::new() };
    let mut checks = Vec::new();
    for (tool, theirs) in tools.iter().zip(seen).filter(|(tool, _)| matches!(tool.what, What::Perf(_))) {
        let sides = Sides { a: tool.name, b: record.name, case };
        checks.extend(distributions(sides, &theirs.observed, &recorded.observed));
        let sides = Sides { a: tool.name, b: run.name, case };
        checks.extend(theirs.groups.iter().zip(&ran.groups).map(|(theirs, ours)| groups(sides, theirs, ours)));
    }
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_memory_pmu_is_refused() {
        let devices = tempfile::tempdir().unwrap();
        fs::create_dir_all(devices.path().join("cpu/events")).unwrap();
        let error = found(devices.path()).unwrap_err();
        assert!(error.is::<crate::host::Refused>() && error.to_string().contains("no memory PMU"), "{error}");
        fs::write(devices.path().join("cpu/events/mem-loads"), "event=0xcd").unwrap();
        assert_eq!(found(devices.path()).unwrap(), Hardware::Pebs);
        fs::create_dir(devices.path().join("ibs_op")).unwrap();
        assert_eq!(found(devices.path()).unwrap(), Hardware::Ibs);
    }

    #[test]
    fn communities_of_the_load_are_groups() {
        let report = serde_json::json!({"cells": [{"name": "rest", "subcells": [
            {"threads": [
                {"pid": 1, "tid": 1, "verdict": "community 0"}, {"pid": 1, "tid": 2, "verdict": "community 0"},
                {"pid": 1, "tid": 3, "verdict": "alone"}, {"pid": 9, "tid": 9, "verdict": "community 0"}]},
            {"threads": [{"pid": 1, "tid": 4, "verdict": "alone"}]}]}]});
        let found = communities(&report, &BTreeSet::from([1]));
        assert_eq!(found.len(), 4);
        assert_eq!(found.get(&(1, 1)), found.get(&(1, 2)));
        assert_ne!(found.get(&(1, 3)), found.get(&(1, 4)));
    }
}
