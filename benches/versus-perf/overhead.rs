//! What sampling costs those that are sampled: the throughput of servers, and their CPU time for a request, with each sampler in turn
//! and with none.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use crate::cli::ServerName;
use crate::host::{need_root, Refused};
use crate::measure::end_with_parent;
use crate::result::{Comparison, Measure, Plot, Run, Skip};
use crate::servers::Server;
use crate::statistics::in_turn;
use crate::tools::{progress, shown, words, Bench};

const THROUGHPUT: Measure = Measure { key: "requests_per_s", heading: "requests/s", decimals: 0, ratio: false };
const KEPT: Measure = Measure { key: "kept_percent", heading: "% of undisturbed", decimals: 2, ratio: false };
const CPU: Measure = Measure { key: "cpu_us", heading: "server CPU us/request", decimals: 3, ratio: false };
const MORE: Measure = Measure { key: "cpu_more_percent", heading: "% more CPU", decimals: 2, ratio: false };
const NOTHING: &str = "nothing";
/// How long a sampler runs before the throughput counts.
const SETTLE: Duration = Duration::from_millis(500);
const READY: Duration = Duration::from_secs(60);

/// A program that samples the host, or none.
struct Sampler {
    name: &'static str,
    argv: Vec<String>,
}

pub fn compare(bench: &Bench) -> Result<Comparison> {
    need_root("overhead")?;
    let perf = bench.perf()?;
    let scxprof = bench.scxprof();
    let cells = bench.at("cells.json").display().to_string();
    let data = bench.at("perf.data").display().to_string();
    let ours = ["run", "-t", "86400", "--source", "timer", "-o", &cells];
    let theirs = ["record", "-q", "-a", "-o", &data, "-F"];
    let sampler = |name, program: &str, before: &[&str], after: &[&str]| {
        let argv = if program.is_empty() { Vec::new() } else { words(&[&[program], before, after].concat()) };
        Sampler { name, argv }
    };
    let samplers = [
        sampler(NOTHING, "", &[], &[]),
        sampler("scxprof run, tick", &scxprof, &ours, &[]),
        sampler("scxprof run, 1 kHz", &scxprof, &ours, &["--freq", "1000"]),
        sampler("perf record -F 250", &perf, &theirs, &["250"]),
        sampler("perf record -F 1000", &perf, &theirs, &["1000"]),
        sampler(NOTHING, "", &[], &[]),
    ];
    let mut compared = Comparison::new("overhead", "Throughput of servers while they are sampled");
    compared.measures = vec![THROUGHPUT, KEPT, CPU, MORE];
    compared.method = vec![
        format!(
            "Server and client run on this host and use loopback. Each sampler watches the whole host for {} s of load, in turn; each \
             round begins and ends with none. The other columns with % compare with the mean of these two; the server's CPU time has the \
             interrupts that sample it, and usually varies a little less than the throughput.",
            bench.args.seconds
        ),
        "perf record has its default event, and writes to a file.".to_owned(),
    ];
    for name in &bench.args.servers {
        let mut server = match Server::start(*name) {
            Err(error) if error.is::<Refused>() => {
                let what = format!("overhead: {}", name.text());
                compared.skipped.push(Skip { what, reason: error.to_string() });
                continue;
            }
            started => started?,
        };
        let case = format!("{}: {}", name.text(), name.requests());
        for (round, side) in in_turn(bench.args.rounds, samplers.len()) {
            let Some(sampler) = samplers.get(side) else { continue };
            progress(&format!("{}, round {round}: {}", name.text(), sampler.name));
            let running = Running::start(bench, sampler)?;
            std::thread::sleep(SETTLE);
            let cpu_before = server.cpu_seconds()?;
            let begin = Instant::now();
            let throughput = server.throughput(bench.args.seconds)?;
            let took = begin.elapsed().as_secs_f64();
            // pgbench takes whole seconds, and some time around them.
            let loaded = if *name == ServerName::Postgres { bench.args.seconds.ceil() } else { took };
            let requests = throughput * loaded;
            let cpu_us = (server.cpu_seconds()? - cpu_before) / requests * 1e6;
            running.stop()?;
            compared.runs.push(Run {
                case: case.clone(),
                tool: sampler.name.to_owned(),
                round,
                command: shown(&sampler.argv),
                values: BTreeMap::from([("requests_per_s", throughput), ("cpu_us", cpu_us)]),
            });
        }
    }
    relate(&mut compared.runs);
    compared.plots = vec![Plot::Bars {
        key: "kept_percent",
        title: "Throughput while a host is sampled",
        values: "% of the throughput without a sampler",
        decimals: 1,
    }];
    Ok(compared)
}

/// Adds to each run how its throughput and the server's CPU time compare with the mean of those without a sampler in the same round.
fn relate(runs: &mut [Run]) {
    for key in ["requests_per_s", "cpu_us"] {
        let mut alone: BTreeMap<(String, u32), (f64, f64)> = BTreeMap::new();
        for run in runs.iter().filter(|run| run.tool == NOTHING) {
            let (sum, count) = alone.entry((run.case.clone(), run.round)).or_default();
            *sum += run.values.get(key).copied().unwrap_or(0.0);
            *count += 1.0;
        }
        for run in runs.iter_mut().filter(|run| run.tool != NOTHING) {
            let (sum, count) = alone.get(&(run.case.clone(), run.round)).copied().unwrap_or_default();
            let Some(&with) = run.values.get(key).filter(|_| sum > 0.0) else { continue };
            let percent = 100.0 * with * count / sum;
            let (key, value) =
                if key == "cpu_us" { ("cpu_more_percent", percent - 100.0) } else { ("kept_percent", percent) };
            run.values.insert(key, value);
        }
    }
}

/// A sampler at work; it is killed when this is dropped.
struct Running {
    child: Option<Child>,
    stderr: std::path::PathBuf,
}

impl Running {
    /// Starts it; returns when it samples.
    fn start(bench: &Bench, sampler: &Sampler) -> Result<Self> {
        let stderr = bench.clear("stderr")?;
        let Some((program, arguments)) = sampler.argv.split_first() else { return Ok(Self { child: None, stderr }) };
        bench.clear("perf.data")?;
        let file = fs::File::create(&stderr).with_context(|| stderr.display().to_string())?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        end_with_parent(&mut command);
        let child = command.spawn().with_context(|| program.clone())?;
        let mut running = Self { child: Some(child), stderr };
        let begin = Instant::now();
        while !running.samples() {
            let has_ended =
                running.child.as_mut().is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_some()));
            if has_ended || begin.elapsed() > READY {
                bail!(
                    "{} does not sample: {}",
                    shown(&sampler.argv),
                    fs::read_to_string(&running.stderr).unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(running)
    }

    /// True where its events are on: scxprof then has threads that read rings, perf has mapped them.
    fn samples(&self) -> bool {
        let Some(child) = &self.child else { return true };
        let proc = format!("/proc/{}", child.id());
        let tasks = fs::read_dir(format!("{proc}/task")).into_iter().flatten().flatten();
        let reads = tasks
            .into_iter()
            .any(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.starts_with("ring")));
        let is_perf = fs::read_to_string(format!("{proc}/comm")).is_ok_and(|comm| comm.starts_with("perf"));
        let maps =
            || fs::read_to_string(format!("{proc}/maps")).is_ok_and(|maps| maps.contains("anon_inode:[perf_event]"));
        reads || (is_perf && maps())
    }

    /// Ends it as Ctrl-C does.
    fn stop(mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        // SAFETY: the child has not been waited for, so the id is its own.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
        let begin = Instant::now();
        while child.try_wait().context("the sampler")?.is_none() {
            if begin.elapsed() > READY {
                let _ = child.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_related_to_that_of_the_same_round() {
        let run = |tool: &str, round, throughput: f64| Run {
            case: "x".into(),
            tool: tool.into(),
            round,
            command: String::new(),
            values: BTreeMap::from([("requests_per_s", throughput), ("cpu_us", 200.0 - throughput)]),
        };
        let mut runs = [
            run(NOTHING, 1, 80.0),
            run("a", 1, 90.0),
            run(NOTHING, 1, 120.0),
            run(NOTHING, 2, 200.0),
            run("a", 2, 150.0),
        ];
        relate(&mut runs);
        let kept: Vec<_> = runs.iter().map(|run| run.values.get("kept_percent").copied()).collect();
        assert_eq!(kept, [None, Some(90.0), None, None, Some(75.0)]);
        let more: Vec<_> = runs.iter().map(|run| run.values.get("cpu_more_percent").copied()).collect();
        assert!(more[1].is_some_and(|more| (more - 10.0).abs() < 1e-9), "110 us instead of 120 and 80");
        assert_eq!((more[0], more[4]), (None, None), "nothing to compare with");
    }
}
