//! The report of `make verify-hardware`: `demo-verify DIR`.
//!
//! scripts/verify-hardware.sh runs scxprof and perf, and leaves in DIR what they said; this program compares, and prints the
//! report in Markdown. docs/verify-hardware.md says what the report has: no names and paths of the host. A file that is missing
//! is a comparison that was not made; `why` has the reason.
//!
//! | file | contents |
//! |---|---|
//! | `facts` | lines `NAME<tab>VALUE` about the machine |
//! | `source`, `pids` | the source; the processes of the workload |
//! | `status` | lines `NAME STATUS`: how each step ended |
//! | `why` | lines `NAME REASON`: why a step was left out |
//! | `doctor.json` | of `scxprof doctor --json --self-test` |
//! | `run.report`, `cpu` | the report of `scxprof run`, and its CPU seconds, user and system |
//! | `STEP.groups` | what demo-compare said of a configuration: of `run`, of scxprof's recording (`scxprof`), of perf's (`perf`) |
//! | `STEP.before`, `STEP.after` | `/proc/PID/stat` of the workload's processes when the recording began and ended |
//! | `STEP.script`, `STEP.jsonl` | a recording, by `perf script` and by `scxprof process` |
//!
//! The exit code is 0 where all that was compared agrees, 1 where something differs or nothing was compared, 2 where DIR cannot be
//! read.

mod checks;
mod samples;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufReader, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use serde_json::Value;

use checks::{Row, Verdict};
use samples::Samples;

/// With fewer samples of the workload, wrong groups are no failure.
const FOR_GROUPS: u64 = 5000;
/// Samples that a run may lose, as `scxprof run --max-loss` has it.
const LOST_PERCENT: f64 = 1.0;
/// USER_HZ.
const TICKS: f64 = 100.0;
/// Steps that must not fail; of perf's own recording, only the reading.
const STEPS: [(&str, &str); 7] = [
    ("run", "`scxprof run`"),
    ("scxprof", "`scxprof record`"),
    ("scxprof.jsonl", "`scxprof process` of scxprof's recording"),
    ("scxprof.extract", "`scxprof extract` of scxprof's recording"),
    ("scxprof.script", "`perf script` of scxprof's recording"),
    ("perf.jsonl", "`scxprof process` of perf's recording"),
    ("perf.extract", "`scxprof extract` of perf's recording"),
];

fn main() -> ExitCode {
    let Some(dir) = std::env::args_os().nth(1) else {
        eprintln!("usage: demo-verify DIR");
        return ExitCode::from(2);
    };
    let done = Evidence::read(dir.into()).and_then(|evidence| evidence.report());
    let written = done.and_then(|(text, agrees)| {
        std::io::stdout().write_all(text.as_bytes()).context("stdout")?;
        Ok(agrees)
    });
    match written {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo-verify: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// What the script left.
struct Evidence {
    dir: PathBuf,
    source: String,
    pids: BTreeSet<u32>,
    status: BTreeMap<String, String>,
    why: BTreeMap<String, String>,
    doctor: Value,
}

impl Evidence {
    fn read(dir: PathBuf) -> Result<Self> {
        let text = |name: &str| fs::read_to_string(dir.join(name)).with_context(|| name.to_owned());
        let pairs = |name: &str| {
            let text = text(name).unwrap_or_default();
            let pairs = text.lines().filter_map(|line| line.split_once(' '));
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        Ok(Self {
            source: text("source")?.trim().to_owned(),
            pids: text("pids")?.split_whitespace().map(str::parse).collect::<Result<_, _>>().context("pids")?,
            status: pairs("status"),
            why: pairs("why"),
            doctor: serde_json::from_str(&text("doctor.json")?).context("doctor.json")?,
            dir,
        })
    }

    /// The report, and whether all agrees.
    fn report(&self) -> Result<(String, bool)> {
        let run = self.json("run.report");
        let script = |step: &str| self.samples(step, "script", Samples::of_script);
        let lines = |step: &str| self.samples(step, "jsonl", Samples::of_lines);
        let (scxprof, perf) = (script("scxprof")?, script("perf")?);
        let (own_lines, perf_lines) = (lines("scxprof")?, lines("perf")?);

        let mut rows = vec![self.self_test(), self.losses(&run)];
        for (step, what) in STEPS {
            if let Some(status) = self.status.get(step).filter(|status| *status != "0") {
                let failed = format!("failed (exit code {status})");
                rows.push(Row::new(what, failed, "-".to_owned(), "-".to_owned(), Verdict::Differs));
            }
        }
        let sampled = self.samples_of_run(&run);
        let recorded = |samples: &Option<Samples>| samples.as_ref().map_or(0, |it| it.accesses.len() as u64);
        rows.push(self.groups("groups that `run` finds", "run", sampled));
        rows.push(self.groups("groups in scxprof's recording", "scxprof", recorded(&own_lines)));
        rows.push(self.groups("groups in perf's recording", "perf", recorded(&perf_lines)));
        let reads = [
            ("scxprof's recording, read by both", "scxprof", &own_lines, &scxprof, true),
            ("perf's recording, read by both", "perf", &perf_lines, &perf, false),
        ];
        for (what, step, ours, theirs, exact) in reads {
            rows.push(match (ours, theirs) {
                (Some(ours), Some(theirs)) => checks::readers(what, ours, theirs, exact),
                _ => Row::not_compared(what, &self.reason(&format!("{step}.script"))),
            });
        }
        match (&scxprof, &perf) {
            (Some(scxprof), Some(perf)) => {
                rows.push(checks::rate(scxprof, perf, self.cpu_seconds("scxprof")?, self.cpu_seconds("perf")?));
                rows.extend(checks::recordings(scxprof, perf));
            }
            _ => rows.push(Row::not_compared("rate, addresses, levels and latency", &self.reason("perf.script"))),
        }

        let mut text = format!("# scxprof verify-hardware: {}\n\n", self.source);
        self.facts(&mut text);
        table(&mut text, &rows);
        let paragraphs = ["run", "scxprof", "perf"].map(|step| (step, self.text(&format!("{step}.groups"))));
        for (step, said) in paragraphs.iter().filter(|(_, said)| !said.is_empty()) {
            let _ = writeln!(text, "\nGroups of {step}: {}", said.trim());
        }
        self.sampling(&mut text, &run, sampled);
        self.checks_of_doctor(&mut text);
        let count = |wanted: fn(&Verdict) -> bool| rows.iter().filter(|row| wanted(&row.verdict)).count();
        let agree = count(|verdict| matches!(verdict, Verdict::Agrees));
        let differ = count(|verdict| matches!(verdict, Verdict::Differs));
        let left = count(|verdict| matches!(verdict, Verdict::NotCompared(_)));
        let overall = if differ > 0 || agree == 0 { "differs" } else { "agrees" };
        let _ = writeln!(text, "\nVerdict: {overall} ({agree} agree, {differ} differ, {left} not compared)");
        Ok((text, differ == 0 && agree > 0))
    }

    /// What the workload spent in user code during a recording.
    fn cpu_seconds(&self, step: &str) -> Result<f64> {
        let ticks = |name: String| -> Result<u64> {
            // PID (NAME) STATE ...; a name may have spaces and parentheses. utime is the 14th field (proc(5)).
            let text = self.text(&name);
            let times =
                text.lines().map(|line| line.rsplit_once(')')?.1.split_whitespace().nth(11)?.parse::<u64>().ok());
            times.sum::<Option<u64>>().with_context(|| format!("{name} is no /proc/PID/stat"))
        };
        let spent = ticks(format!("{step}.after"))?.saturating_sub(ticks(format!("{step}.before"))?);
        Ok(spent as f64 / TICKS)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.dir.join(name)).unwrap_or_default()
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.text(name)).unwrap_or_default()
    }

    /// A recording; `None` if the step was left out or failed.
    fn samples(
        &self,
        step: &str,
        kind: &str,
        read: impl Fn(BufReader<File>, &BTreeSet<u32>) -> Result<Samples>,
    ) -> Result<Option<Samples>> {
        let name = format!("{step}.{kind}");
        if self.status.get(&name).map(String::as_str) != Some("0") {
            return Ok(None);
        }
        let file = File::open(self.dir.join(&name)).with_context(|| name.clone())?;
        read(BufReader::new(file), &self.pids).map(Some).with_context(|| name)
    }

    /// Why a step has no result: of itself, or of the first part of its name, which it needs.
    fn reason(&self, step: &str) -> String {
        let needed = step.split('.').next().unwrap_or(step);
        for name in [step, needed, "perf"] {
            if let Some(why) = self.why.get(name) {
                return why.clone();
            }
            match self.status.get(name).map(String::as_str) {
                None | Some("0") => {}
                Some(status) => return format!("the step {name} failed (exit code {status}); stderr has the reason"),
            }
        }
        "not run".to_owned()
    }

    fn self_test(&self) -> Row {
        let what = "self-test";
        let tests = self.doctor.get("self_test").and_then(Value::as_array).into_iter().flatten();
        let Some(test) = tests.into_iter().find(|test| text_of(test, "source") == self.source) else {
            return Row::not_compared(what, &self.reason("self-test"));
        };
        let passed = test.get("passed").and_then(Value::as_bool).unwrap_or(false);
        let seen = test.get("seen").map_or(0, |seen| number(seen, "accesses"));
        let failures = test.get("failures").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let failures: Vec<&str> = failures.collect();
        let said = if passed { format!("passed, {seen} accesses") } else { failures.join("; ") };
        Row::new(what, said, "each access is its thread's".to_owned(), "-".to_owned(), Verdict::of(passed))
    }

    fn losses(&self, run: &Value) -> Row {
        let what = "lost samples of `run`";
        match run.pointer("/run/lost_percent").and_then(Value::as_f64) {
            Some(lost) => {
                let verdict = Verdict::of(lost <= LOST_PERCENT);
                Row::new(what, format!("{lost:.3} %"), "0 %".to_owned(), format!("{LOST_PERCENT} %"), verdict)
            }
            None => Row::not_compared(what, &self.reason("run")),
        }
    }

    /// The workload's samples in a report.
    fn samples_of_run(&self, run: &Value) -> u64 {
        let list = |value: &Value, key: &str| value.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
        let subcells = list(run, "cells").into_iter().flat_map(|cell| list(&cell, "subcells"));
        let threads = subcells.flat_map(|subcell| list(&subcell, "threads"));
        let ours = threads.filter(|it| u32::try_from(number(it, "pid")).is_ok_and(|pid| self.pids.contains(&pid)));
        ours.map(|thread| number(&thread, "samples")).sum()
    }

    /// What demo-compare said of a configuration, from this number of samples.
    fn groups(&self, what: &str, step: &str, samples: u64) -> Row {
        let said = self.text(&format!("{step}.groups"));
        let right =
            said.trim().rsplit_once(". ").map_or_else(String::new, |(_, last)| last.trim_end_matches('.').to_owned());
        let exact = match self.status.get(&format!("{step}.groups")).map(String::as_str) {
            Some("0") => Verdict::Agrees,
            Some("1") if samples < FOR_GROUPS => {
                Verdict::NotCompared(format!("{samples} samples of the workload are fewer than {FOR_GROUPS}"))
            }
            Some(_) => Verdict::Differs,
            None => return Row::not_compared(what, &self.reason(&format!("{step}.groups"))),
        };
        Row::new(what, right, "all of the truth".to_owned(), "none".to_owned(), exact)
    }

    fn facts(&self, text: &mut String) {
        text.push_str("| machine | |\n|---|---|\n");
        for (name, value) in self.text("facts").lines().filter_map(|line| line.split_once('\t')) {
            let _ = writeln!(text, "| {name} | {} |", cell(value));
        }
        text.push('\n');
    }

    fn sampling(&self, text: &mut String, run: &Value, sampled: u64) {
        let seconds = run.pointer("/run/seconds").and_then(Value::as_f64).unwrap_or(0.0);
        let samples = number(run, "samples");
        let cpu = self.text("cpu");
        let cpu: f64 = cpu.split_whitespace().filter_map(|word| word.parse::<f64>().ok()).sum();
        text.push_str("\n| `scxprof run` | |\n|---|---|\n");
        let rate = samples as f64 / seconds.max(1e-9);
        let _ = writeln!(text, "| seconds | {seconds:.1} |");
        let _ = writeln!(
            text,
            "| samples; of these the workload's; samples per second | {samples}; {sampled}; {rate:.0} |"
        );
        let _ = writeln!(text, "| events counted | {} |", number(run, "event_count"));
        let _ = writeln!(text, "| CPU seconds of scxprof | {cpu:.2} |");
        let losses = run.get("loss").and_then(Value::as_object).into_iter().flatten();
        let losses = losses.filter(|(name, count)| *name != "samples" && count.as_u64().is_some_and(|count| count > 0));
        let losses: Vec<String> = losses.map(|(name, count)| format!("{name} {count}")).collect();
        let _ = writeln!(
            text,
            "| left out or lost | {} |",
            if losses.is_empty() { "none".to_owned() } else { losses.join(", ") }
        );
    }

    fn checks_of_doctor(&self, text: &mut String) {
        text.push_str("\n| `scxprof doctor` | state | |\n|---|---|---|\n");
        for check in self.doctor.get("checks").and_then(Value::as_array).into_iter().flatten() {
            if ["sources", "hardware", "fields"].contains(&text_of(check, "section")) {
                let (name, state, why) = (text_of(check, "name"), text_of(check, "state"), text_of(check, "why"));
                let _ = writeln!(text, "| {name} | {state} | {} |", cell(why));
            }
        }
    }
}

fn table(text: &mut String, rows: &[Row]) {
    text.push_str("| comparison | scxprof | perf, or the truth | margin | verdict |\n|---|---|---|---|---|\n");
    for row in rows {
        let verdict = match &row.verdict {
            Verdict::Agrees => "agrees".to_owned(),
            Verdict::Differs => "**differs**".to_owned(),
            Verdict::NotCompared(why) => format!("not compared: {why}"),
        };
        let cells = [&row.what, &row.scxprof, &row.other, &row.margin, &verdict].map(|it| cell(it));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
}

/// The text of a table's cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn text_of<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// A count, which may be written as a fraction.
fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_f64).unwrap_or(0.0) as u64
}
