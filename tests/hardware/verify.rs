//! `make verify-hardware` without hardware: what its script says where there is no memory PMU, and that its report tells made
//! recordings that differ from those that agree. The guests of tests/vm run all of it on a simulated PMU.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/verify-hardware.sh");
const VERIFY: &str = env!("CARGO_BIN_EXE_demo-verify");
/// Processes of the workload, and another one.
const PIDS: [u32; 2] = [100, 200];
const STRANGER: u32 = 300;

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The script with these settings, and its output folder.
fn script(out: &Path, settings: &[(&str, &str)]) -> Output {
    let bin = Path::new(env!("CARGO_BIN_EXE_scxprof")).parent().unwrap();
    let mut command = Command::new(SCRIPT);
    for name in ["SOURCE", "TIME", "PERIOD", "WORKLOAD", "TRUTH", "PERF", "SELF_TEST"] {
        command.env_remove(name);
    }
    command.env("NO_SUDO", "1").env("BIN", bin).env("OUT", out);
    command.envs(settings.iter().copied()).output().unwrap()
}

#[test]
fn without_a_memory_pmu_the_reason_for_each_source_is_said() {
    let doctor = Command::new(env!("CARGO_BIN_EXE_scxprof")).args(["doctor", "--json"]).output().unwrap();
    let doctor: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let checks = doctor["checks"].as_array().unwrap();
    let of = |source: &str| checks.iter().find(|check| check["name"] == source).unwrap();
    if let Some(source) = ["pebs", "ibs", "spe"].into_iter().find(|source| of(source)["state"] == "works") {
        println!("SKIP: without_a_memory_pmu_the_reason_for_each_source_is_said: {source} works here");
        return;
    }
    let out = tempfile::tempdir().unwrap();
    let ended = script(out.path(), &[]);
    let said = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{said}");
    for source in ["pebs", "ibs", "spe"] {
        let reason = of(source)["why"].as_str().unwrap();
        assert!(said.lines().any(|line| line.starts_with(&format!("verify-hardware: {source}: {reason}"))), "{said}");
    }
    assert!(said.lines().last().unwrap().contains("what would help"), "{said}");
    assert!(ended.stdout.is_empty() && fs::read_dir(out.path()).unwrap().count() == 0, "there is no report");
    let one = script(out.path(), &[("SOURCE", "ibs")]);
    assert_eq!(one.status.code(), Some(3));
    assert!(!text(&one.stderr).contains("pebs"), "{}", text(&one.stderr));
}

#[test]
fn wrong_settings_are_refused() {
    let out = tempfile::tempdir().unwrap();
    for (name, value) in
        [("SOURCE", "timer"), ("TIME", "soon"), ("PERIOD", "-1"), ("WORKLOAD", "true"), ("BIN", "/nonexistent")]
    {
        let ended = script(out.path(), &[(name, value)]);
        assert_eq!(ended.status.code(), Some(2), "{name}={value}: {}", text(&ended.stderr));
    }
}

/// A sample.
#[derive(Clone)]
struct Made {
    pid: u32,
    time: u64,
    addr: u64,
    phys: u64,
    event: &'static str,
    level: &'static str,
    hitm: bool,
    latency: u64,
}

impl Made {
    fn data_src(&self) -> u64 {
        // A load; the rest only has to be the same for both.
        2 | self.latency << 5
    }

    fn script(&self) -> String {
        let Self { pid, time, addr, phys, level, latency, event, .. } = self;
        let snoop = if self.hitm { "HitM" } else { "None" };
        format!(
            "{pid:>5}/{pid:<5} {}.{:09}: {event}: {addr:>16x} {:>16x} |OP LOAD|LVL {level}|SNP {snoop}|TLB L1 hit|LCK No|BLK  N/A {latency:>9} {:>16x} {phys:>16x}",
            time / 1_000_000_000,
            time % 1_000_000_000,
            self.data_src(),
            0x0040_1000
        )
    }

    fn line(&self) -> String {
        let Self { pid, time, addr, phys, latency, event, .. } = self;
        let time = format!("{}.{:09}", time / 1_000_000_000, time % 1_000_000_000);
        let data_src = self.data_src();
        format!(
            r#"{{"comm":"x","pid":{pid},"tid":{pid},"time":"{time}","ip":"401000","event":"{event}","addr":"{addr:x}","phys_addr":"{phys:x}","weight":{latency},"data_src":"{data_src:x}"}}"#
        )
    }
}

/// Samples of two processes and a stranger; one in five was modified in another cache, one in ten is far.
fn made(first: u64) -> Vec<Made> {
    (0..3000u64)
        .map(|index| {
            let at = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            let (hitm, far) = (index % 5 == 0, index % 10 == 3);
            Made {
                pid: [PIDS[0], PIDS[1], STRANGER][index as usize % 3],
                time: first + index * 1_000_000,
                addr: 0x7f00_0000_0000 + at,
                phys: 0x1000_0000 + at,
                event: "cpu/mem-loads,ldlat=10/P",
                level: if far { "Local RAM hit" } else { "L1 hit" },
                hitm,
                latency: if far { 300 + at % 50 } else { 20 + at % 20 },
            }
        })
        .collect()
}

/// All that the script leaves, where all agrees.
struct Evidence {
    dir: tempfile::TempDir,
}

impl Evidence {
    fn new() -> Self {
        let evidence = Self { dir: tempfile::tempdir().unwrap() };
        for step in ["scxprof", "perf"] {
            evidence.ran(step, 400);
        }
        evidence.write("facts", "CPU\tmade | up\n");
        evidence.write("source", "ibs\n");
        evidence.write("pids", "100\n200\n");
        let steps = ["run", "scxprof", "perf", "run.groups"];
        let of_recordings =
            ["extract", "groups", "jsonl", "script"].map(|kind| [format!("scxprof.{kind}"), format!("perf.{kind}")]);
        let steps = steps.iter().map(|name| (*name).to_owned()).chain(of_recordings.into_iter().flatten());
        evidence.write("status", &steps.fold(String::new(), |text, step| text + &step + " 0\n"));
        evidence.doctor(true);
        evidence.run(0.5);
        for step in ["run", "scxprof", "perf"] {
            evidence.write(&format!("{step}.groups"), "Expected a; found a. 2 of 2 groups as expected.\n");
        }
        evidence.recording("scxprof", &made(1_000_000_000));
        evidence.recording("perf", &made(9_000_000_000));
        evidence
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }

    /// The CPU time that the workload had during a recording, in ticks.
    fn ran(&self, step: &str, ticks: u64) {
        let stat = |ticks: u64| format!("100 (a) b) R 1 1 1 0 -1 4194304 1 0 0 0 {ticks} 7 0 0 20 0 2 0\n");
        self.write(&format!("{step}.before"), &(stat(50) + &stat(60)));
        self.write(&format!("{step}.after"), &(stat(50 + ticks / 2) + &stat(60 + ticks / 2)));
    }

    fn doctor(&self, passed: bool) {
        let failures = if passed { vec![] } else { vec!["no access of \"a\""] };
        let doctor = serde_json::json!({
            "checks": [
                {"section": "sources", "name": "ibs", "state": "works", "why": "ibs_op/cnt_ctl=1/", "help": null},
                {"section": "rights", "name": "lockdown", "state": "works", "why": "secret", "help": null}],
            "self_test": [{"source": "ibs", "passed": passed, "failures": failures, "seen": {"accesses": 50}}]});
        self.write("doctor.json", &doctor.to_string());
    }

    fn run(&self, lost: f64) {
        let run = serde_json::json!({
            "samples": 8000, "event_count": 9, "loss": {"samples": 8100, "own": 100, "ring_full": 0},
            "run": {"lost_percent": lost, "seconds": 4.0, "host": "secret"},
            "cells": [{"subcells": [{"threads": [{"pid": 100, "samples": 6000, "comm": "secret"}, {"pid": 9, "samples": 1}]}]}]});
        self.write("run.report", &run.to_string());
    }

    fn recording(&self, step: &str, samples: &[Made]) {
        self.script(step, samples);
        let lines = samples.iter().fold(String::new(), |mut text, sample| {
            writeln!(text, "{}", sample.line()).unwrap();
            text
        });
        self.write(&format!("{step}.jsonl"), &lines);
    }

    fn script(&self, step: &str, samples: &[Made]) {
        let lines = samples.iter().fold(String::new(), |mut text, sample| {
            writeln!(text, "{}", sample.script()).unwrap();
            text
        });
        self.write(&format!("{step}.script"), &lines);
    }

    /// The step ended so.
    fn status(&self, step: &str, status: &str) {
        let path = self.dir.path().join("status");
        let before = fs::read_to_string(path).unwrap();
        let lines = before.lines().filter(|line| line.split(' ').next() != Some(step));
        let mut text = lines.fold(String::new(), |text, line| text + line + "\n");
        writeln!(text, "{step} {status}").unwrap();
        self.write("status", &text);
    }

    /// The report, its exit code, and which comparisons differ.
    fn report(&self) -> (String, i32, Vec<String>) {
        let ended = Command::new(VERIFY).arg(self.dir.path()).output().unwrap();
        let report = text(&ended.stdout);
        let differ = report.lines().filter(|line| line.ends_with("| **differs** |"));
        let differ = differ.map(|line| line.split('|').nth(1).unwrap().trim().to_owned()).collect();
        let code = ended.status.code().unwrap();
        assert!(code < 2, "{}", text(&ended.stderr));
        (report, code, differ)
    }

    /// These comparisons differ, and no others.
    fn differs(&self, what: &[&str]) {
        let (report, code, differ) = self.report();
        assert_eq!(differ, what, "{report}");
        assert_eq!(code, i32::from(!what.is_empty()), "{report}");
    }
}

#[test]
fn recordings_of_the_same_work_agree() {
    let evidence = Evidence::new();
    evidence.differs(&[]);
    let (report, _, _) = evidence.report();
    assert!(report.starts_with("# scxprof verify-hardware: ibs\n"), "{report}");
    assert!(report.contains("| CPU | made \\| up |"), "{report}");
    assert!(report.ends_with("\nVerdict: agrees (15 agree, 0 differ, 0 not compared)\n"), "{report}");
    assert!(!report.contains("secret"), "names and rights stay on the host: {report}");
    for row in [
        "| groups that `run` finds | 2 of 2 groups as expected | all of the truth | none | agrees |",
        "| accesses, for each CPU second of the workload | 2000 in 4.0 s: 500/s | 2000 in 4.0 s: 500/s | 20 % | agrees |",
        "| data from: Local RAM hit | 10.0 % | 10.0 % | ",
        "| modified in another cache (HITM) | 20.0 % | 20.0 % | ",
        "| left out or lost | own 100 |",
        "| samples; of these the workload's; samples per second | 8000; 6000; 2000 |",
    ] {
        assert!(report.contains(row), "no {row} in {report}");
    }
}

#[test]
fn each_difference_is_found() {
    let perfs = || made(9_000_000_000);
    let with = |change: &dyn Fn(&mut Vec<Made>)| {
        let evidence = Evidence::new();
        let mut samples = perfs();
        change(&mut samples);
        evidence.recording("perf", &samples);
        evidence
    };
    with(&|samples| samples.iter_mut().for_each(|it| it.latency += 10)).differs(&["median of the latency"]);
    with(&|samples| samples.iter_mut().for_each(|it| it.hitm = false)).differs(&["modified in another cache (HITM)"]);
    with(&|samples| samples.iter_mut().for_each(|it| it.phys = 0)).differs(&["accesses with a physical address"]);
    with(&|samples| samples.iter_mut().enumerate().filter(|(at, _)| at / 30 % 2 == 0).for_each(|(_, it)| it.addr = 0))
        .differs(&["accesses, for each CPU second of the workload", "samples with a data address"]);
    with(&|samples| samples.iter_mut().step_by(4).for_each(|it| it.level = "L3 hit"))
        .differs(&["data from: L1 hit", "data from: L3 hit"]);
    let evidence = Evidence::new();
    evidence.ran("perf", 600);
    evidence.differs(&["accesses, for each CPU second of the workload"]);

    // The event that perf samples beside is none of the comparison.
    with(&|samples| {
        let beside =
            samples.iter().map(|it| Made { event: "cpu/mem-loads-aux/", latency: 3, level: "L1 hit", ..it.clone() });
        let beside: Vec<Made> = beside.collect();
        samples.extend(beside);
    })
    .differs(&[]);

    // perf reads one of scxprof's addresses otherwise; of its own recording, more than a few.
    let evidence = Evidence::new();
    let mut samples = made(1_000_000_000);
    samples[0].addr += 8;
    evidence.script("scxprof", &samples);
    evidence.differs(&["scxprof's recording, read by both"]);
    let evidence = Evidence::new();
    let mut samples = perfs();
    samples[0].addr += 8;
    evidence.script("perf", &samples);
    evidence.differs(&[]);
    samples.iter_mut().step_by(25).for_each(|it| it.addr += 8);
    evidence.script("perf", &samples);
    evidence.differs(&["perf's recording, read by both"]);

    let evidence = Evidence::new();
    evidence.doctor(false);
    evidence.run(1.5);
    evidence.status("run.groups", "1");
    evidence.differs(&["self-test", "lost samples of `run`", "groups that `run` finds"]);
    let evidence = Evidence::new();
    evidence.status("scxprof", "1");
    evidence.differs(&["`scxprof record`"]);
}

#[test]
fn what_was_not_compared_has_its_reason() {
    let evidence = Evidence::new();
    for kind in ["script", "jsonl", "extract", "groups"] {
        fs::remove_file(evidence.dir.path().join(format!("perf.{kind}"))).ok();
    }
    evidence.write("status", "run 0\nscxprof 0\nrun.groups 0\nscxprof.extract 0\nscxprof.groups 0\nscxprof.jsonl 0\n");
    evidence.write("why", "perf perf is not installed\n");
    let (report, code, differ) = evidence.report();
    assert_eq!((code, differ.len()), (0, 0), "{report}");
    assert_eq!(report.matches("not compared: perf is not installed").count(), 4, "{report}");

    // Few samples are no proof that the groups are wrong, and too few that anything is.
    let evidence = Evidence::new();
    evidence.status("perf.groups", "1");
    evidence.recording("perf", &made(9_000_000_000)[..300]);
    let (report, code, _) = evidence.report();
    assert_eq!(code, 0, "{report}");
    assert!(report.contains("not compared: 200 samples of the workload are fewer than 5000"), "{report}");
    assert!(report.contains("not compared: 200 accesses are fewer than 300"), "{report}");

    // Losses change the rate.
    let evidence = Evidence::new();
    let path = evidence.dir.path().join("perf.script");
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().take(1500).collect();
    fs::write(&path, format!("{}\n 0/0 1.0: PERF_RECORD_LOST lost 1500\n", lines.join("\n"))).unwrap();
    let (report, _, _) = evidence.report();
    assert!(report.contains("not compared: lost: 0.0 % by scxprof, 50.0 % by perf"), "{report}");
}
