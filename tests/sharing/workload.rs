//! The example workload: its threads are together as it describes, by the written configuration alone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use scxprof::config::{mitosis, Consumer};
use scxprof::testing::cluster::quality::adjusted_rand_index;
use serde::Deserialize;

use super::cgroup::Cgroup;
use crate::support::alone;

const SCXPROF: &str = env!("CARGO_BIN_EXE_scxprof");
const WORKLOAD: &str = env!("CARGO_BIN_EXE_demo-workload");

/// The number of samples of the workload that suffices.
const ENOUGH: f64 = 5_000.0;
/// Seconds of sampling, in all runs of a scenario.
const MAX_SECONDS: f64 = 60.0;
/// Seconds of the first run.
const FIRST: f64 = 2.5;

/// A scenario that runs in its own cgroup.
struct Workload {
    child: Child,
    groups: Vec<Truth>,
    // Dropped last.
    cgroup: Cgroup,
}

/// Threads that share memory with each other and with no others.
#[derive(Deserialize)]
struct Truth {
    threads: Vec<String>,
}

impl Workload {
    fn new(scenario: &str) -> Result<Self, String> {
        let truth = Command::new(WORKLOAD).args(["--print-truth", "--scenario", scenario]).output();
        let groups = serde_json::from_slice(&truth.map_err(|error| format!("{WORKLOAD}: {error}"))?.stdout);
        let groups = groups.map_err(|error| format!("the truth of {scenario}: {error}"))?;
        let cgroup = Cgroup::new()?;
        let mut command = Command::new(WORKLOAD);
        command.args(["--scenario", scenario, "--seconds", "120", "--busy", "--here"]).stdout(Stdio::piped());
        cgroup.prepare(&mut command);
        let mut child = command.spawn().map_err(|error| format!("cannot start it in a cgroup: {error}"))?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let workload = Self { child, groups, cgroup };
        assert_eq!(line, "ready without cgroups\n", "the workload did not start");
        Ok(workload)
    }

    fn threads(&self) -> impl Iterator<Item = (u32, &str)> {
        (0..).zip(&self.groups).flat_map(|(group, truth)| truth.threads.iter().map(move |name| (group, name.as_str())))
    }

    /// A label for each thread name, by the scheduler's assignment with the written configuration.
    ///
    /// The catch-all does not mean that its threads share: each thread there has its own label.
    fn assigned(&self, json: &str) -> Vec<u32> {
        let cells = mitosis::parse(json).unwrap();
        let consumer = Consumer::new(&cells).unwrap();
        let path = self.cgroup.path();
        let mut labels: BTreeMap<(usize, usize), u32> = BTreeMap::new();
        let mut next = 0..;
        let mut label = |name: &str| {
            let assigned = consumer.assign(path.as_bytes(), name.as_bytes());
            let cell = assigned.cell.unwrap();
            assert_eq!(cells[cell].name, "workload");
            match assigned.subcell.filter(|&subcell| !cells[cell].subcells[subcell].is_catch_all()) {
                Some(subcell) => *labels.entry((cell, subcell)).or_insert_with(|| next.next().unwrap()),
                None => next.next().unwrap(),
            }
        };
        self.threads().map(|(_, name)| label(name)).collect()
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // SAFETY: the call takes numbers; the process is our child, which has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let _ = self.child.wait();
    }
}

/// A run's configuration and its output on stderr.
struct Run {
    json: String,
    said: String,
    /// Samples of the workload.
    samples: f64,
}

/// Samples the machine; the error is why a test is to be skipped.
fn run(workload: &Workload, source: &[&str], seconds: f64) -> Result<Run, String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("cells.json");
    let output = Command::new(SCXPROF)
        // For a host that has a CPU for each subcell.
        .args(["run", "--target-cpus", "64", "-v", "-t", &seconds.to_string(), &workload.cgroup.cell("workload"), "-o"])
        .arg(&file)
        .args(source)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        // 4: samples were lost, which is fine if enough are left.
        Some(0 | 4) => {}
        Some(3) => return Err(said.trim().to_owned()),
        _ => panic!("{said}"),
    }
    let line = said.lines().find_map(|line| line.strip_prefix("workload: ")?.split_once(" samples ("));
    let samples = line.map_or(0.0, |(count, _)| count.parse().unwrap());
    Ok(Run { json: fs::read_to_string(&file).unwrap(), said, samples })
}

/// Samples until there are enough, but no longer; the error is the count if it is too low in the end.
fn run_until_enough(workload: &Workload) -> Result<Run, String> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(workload.threads().count());
    // An idle machine gives a fifth more than needed in the first run.
    let frequency = format!("{:.0}", ENOUGH * 1.2 / FIRST / cpus as f64);
    let (mut left, mut seconds) = (MAX_SECONDS, FIRST);
    loop {
        let run = run(workload, &["--source", "timer", "--freq", &frequency], seconds)?;
        left -= seconds;
        if run.samples >= ENOUGH {
            return Ok(run);
        }
        let needed = seconds * ENOUGH * 1.2 / run.samples.max(1.0);
        if needed > left {
            return Err(format!(
                "{} samples of the workload in {seconds:.1} s; at that rate {MAX_SECONDS} s do not give {ENOUGH}",
                run.samples
            ));
        }
        seconds = needed;
    }
}

/// The written file groups the names exactly as the workload does.
fn check(scenario: &str) {
    let _alone = alone();
    let done = Workload::new(scenario).and_then(|workload| Ok((run_until_enough(&workload)?, workload)));
    let (run, workload) = match done {
        Ok(done) => done,
        Err(why) => return println!("SKIP: sharing of {scenario}: {why}"),
    };
    let truth: Vec<u32> = workload.threads().map(|(group, _)| group).collect();
    let index = adjusted_rand_index(&truth, &workload.assigned(&run.json));
    println!("{scenario}: adjusted Rand index {index} from {} samples", run.samples);
    assert!((index - 1.0).abs() < 1e-9, "{scenario}: {index}\n{}\n{}", run.said, run.json);
}

#[test]
fn two_pairs_and_a_loner() {
    check("pairs");
}

#[test]
fn two_pairs_that_all_hammer_one_counter() {
    check("counter");
}

#[test]
fn nothing_shared_is_nothing_together() {
    check("private");
}

#[test]
fn processes_over_shared_mappings() {
    check("shared");
}

#[test]
fn names_that_begin_with_each_other() {
    check("prefix");
}

#[test]
fn numbered_pools() {
    check("pools");
}

#[test]
fn forked_children_on_copy_on_write_pages() {
    check("fork");
}

/// The name without the number at its end.
fn stem(name: &str) -> &str {
    name.trim_end_matches(|letter: char| letter.is_ascii_digit())
}

#[test]
fn first_touches_join_no_strangers() {
    let _alone = alone();
    for scenario in ["pairs", "counter", "private", "shared", "prefix", "pools", "fork"] {
        let done =
            Workload::new(scenario).and_then(|workload| Ok((run(&workload, &["--source", "faults"], 1.0)?, workload)));
        let (run, workload) = match done {
            Ok((run, workload)) if run.samples >= 100.0 => (run, workload),
            Ok((run, _)) => {
                println!("SKIP: first touches of {scenario}: {} samples of the workload in a second", run.samples);
                continue;
            }
            Err(why) => return println!("SKIP: first touches of {scenario}: {why}"),
        };
        let labels = workload.assigned(&run.json);
        let placed: Vec<_> = workload.threads().zip(labels).collect();
        for &((group, name), label) in &placed {
            for &((other_group, other), other_label) in &placed {
                // A numbered pool may be together because of its name, with a note that nothing else is known.
                let may_be_together = group == other_group || stem(name) == stem(other);
                assert!(label != other_label || may_be_together, "{name} with {other}\n{}\n{}", run.said, run.json);
            }
        }
        // Each process of "shared" has but one thread.
        let told = run.said.lines().any(|line| {
            line.starts_with("note: workload: ") && line.contains("cannot tell the threads of one process apart")
        });
        assert!(told || scenario == "shared", "{scenario}: {}", run.said);
    }
}
