//! `scxprof replay --compare`: two configurations in turn on the same work.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::cli::failure::Failure;
use crate::cli::input;
use crate::config::{self, Placement, Task};
use crate::host::facts::Tasks;
use crate::sample::places::CpuPlaces;
use scxprof_base::columns::{fitted, wrapped, Column};
use scxprof_replay::{difference, Difference, Layout, ReplayError, ReplayTotals, Script};

/// In place of a configuration: no configuration.
const NONE: &str = "none";
/// The scheduler that takes the configurations.
const SCHEDULER: &str = "scx_mitosis";
/// It must have started after this time.
const STARTS: Duration = Duration::from_secs(15);
/// What the kernel says of sched_ext schedulers (Documentation/scheduler/sched-ext.rst).
const STATE: &str = "/sys/kernel/sched_ext/state";

/// How a configuration takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum By {
    /// scx_mitosis loads it.
    Scheduler,
    /// Threads may only use the CPUs of their group.
    Affinity,
}

impl By {
    /// The scheduler, if it is installed and the kernel has sched_ext.
    pub(super) fn here(configurations: [&Configuration; 2]) -> Self {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let is_installed = std::env::split_paths(&paths).any(|path| path.join(SCHEDULER).is_file());
        let are_its = configurations
            .iter()
            .all(|one| one.placement.as_ref().is_none_or(|it| it.scheduler() != config::Scheduler::Layered));
        if is_installed && are_its && Path::new(STATE).exists() {
            Self::Scheduler
        } else {
            Self::Affinity
        }
    }
}

/// A configuration to compare.
pub(super) struct Configuration {
    pub(super) path: PathBuf,
    placement: Option<Placement>,
}

impl Configuration {
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let placement = if path.as_os_str() == NONE { None } else { Some(input::configuration("--compare", path)?) };
        Ok(Self { path: path.to_owned(), placement })
    }

    /// What the recording says of threads, and which cgroups there are.
    pub(super) fn know(&mut self, tasks: &Arc<Tasks>, script: &Script) {
        self.placement = self.placement.take().map(|placement| {
            let mut placement = placement.with_tasks(tasks.clone());
            placement.know_cgroups(script.cgroups.iter().map(Vec::as_slice));
            placement
        });
    }

    /// The CPUs of each thread.
    pub(super) fn layout(&self, script: &Script, cpus: &[u32], places: &CpuPlaces) -> Option<Layout> {
        let placement = self.placement.as_ref()?;
        Some(Layout::new(script, &|task| group_of(placement, task), cpus, places))
    }
}

/// The cell and the subcell that get CPUs of their own for a thread.
fn group_of(placement: &Placement, task: &Task<'_>) -> Option<(String, String)> {
    let (cell, subcell) = placement.place(task)?;
    // After what takes it, its name has the cgroup of the cell.
    let (group, taker) = (placement.group(task)?, placement.taker(task)?);
    Some((cell + group.strip_prefix(&taker)?, subcell.unwrap_or_default()))
}

/// Without it a scheduler from before September 2026 needs the cpu controller in the cgroups of the cells; since sched-ext/scx #3769
/// it does nothing, and may be gone.
const CONTROLLER_OPTION: &str = "--cpu-controller-disabled";

/// True if the scheduler's help has the option.
fn has_option(option: &str) -> bool {
    let help = Command::new(SCHEDULER).arg("--help").stdin(Stdio::null()).output();
    help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains(option))
}

/// The scheduler, which ends when this is dropped.
#[derive(Default)]
pub(super) struct Scheduler(RefCell<Option<Child>>);

impl Scheduler {
    /// Starts it, and returns when it schedules.
    pub(super) fn start(&self, configuration: &Configuration) -> Result<(), ReplayError> {
        if configuration.placement.is_none() {
            return Ok(());
        }
        let failed = |reason: String| ReplayError::Scheduler { name: SCHEDULER, reason };
        let mut command = Command::new(SCHEDULER);
        command.arg("--cell-config").arg(&configuration.path);
        if has_option(CONTROLLER_OPTION) {
            command.arg(CONTROLLER_OPTION);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let child = command.spawn().map_err(|error| failed(error.to_string()))?;
        let begin = Instant::now();
        let mut slot = self.0.borrow_mut();
        let child = slot.insert(child);
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(failed(format!("it ended with {status}")));
            }
            if std::fs::read_to_string(STATE).is_ok_and(|state| state.trim() == "enabled") {
                return Ok(());
            }
            if begin.elapsed() > STARTS {
                return Err(failed(format!("{STATE} is not \"enabled\" after {} s", STARTS.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        // SAFETY: a signal to a child of ours that has not been waited for. It leaves the CPUs to the kernel then.
        unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
        let begin = Instant::now();
        while begin.elapsed() < STARTS {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A number of a replay that is compared.
struct Measure {
    name: &'static str,
    /// By what the value is divided when it is printed.
    unit: f64,
    label: &'static str,
    of: fn(&ReplayTotals) -> Option<f64>,
}

const MEASURES: [Measure; 8] = [
    Measure { name: "duration_ns", unit: 1e9, label: "time (s)", of: |it| Some(it.duration_ns as f64) },
    Measure { name: "work_per_s", unit: 1e6, label: "work/s (M)", of: |it| Some(it.work_per_s) },
    Measure { name: "cpu_ns", unit: 1e9, label: "CPU time (s)", of: |it| Some(it.cpu_ns as f64) },
    Measure { name: "wakeup_p50_ns", unit: 1e3, label: "wakeup P50 (us)", of: |it| ns(it.wakeup_latency.p50_ns) },
    Measure { name: "wakeup_p99_ns", unit: 1e3, label: "wakeup P99 (us)", of: |it| ns(it.wakeup_latency.p99_ns) },
    Measure { name: "timer_p99_ns", unit: 1e3, label: "timer P99 (us)", of: |it| ns(it.timer_latency.p99_ns) },
    Measure { name: "migrations", unit: 1.0, label: "migrations", of: |it| Some(it.migrations as f64) },
    Measure { name: "cache_misses", unit: 1e6, label: "cache misses (M)", of: |it| Some(it.cache_misses? as f64) },
];

fn ns(ns: Option<u64>) -> Option<f64> {
    ns.map(|ns| ns as f64)
}

/// How columns give way.
const COLUMNS: [Column; 5] =
    [Column::name(0), Column::number(1), Column::number(1), Column::number(0), Column::number(2)];

/// The result.
#[derive(Debug, Serialize)]
pub(super) struct Compared {
    version: u32,
    a: String,
    b: String,
    by: By,
    /// From the first recorded event to the last, scaled.
    window_ns: u64,
    rounds: usize,
    differences: Vec<Line>,
    /// The CPUs of each group, without a scheduler.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cpus: Vec<Groups>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Line {
    measure: &'static str,
    #[serde(flatten)]
    difference: Difference,
}

#[derive(Debug, Serialize)]
struct Groups {
    configuration: String,
    group: String,
    cpus: Vec<u32>,
}

impl Compared {
    /// Of the rounds with each configuration, in order.
    pub(super) fn new(
        [a, b]: [&Configuration; 2],
        by: By,
        script: &Script,
        rounds: &[(ReplayTotals, ReplayTotals)],
        layouts: [Option<&Layout>; 2],
        notes: &[String],
    ) -> Self {
        let of = |pick: fn(&ReplayTotals) -> Option<f64>| -> Vec<(f64, f64)> {
            rounds.iter().filter_map(|(a, b)| pick(a).zip(pick(b))).collect()
        };
        // What this host cannot measure is left out.
        let lines = MEASURES.iter().filter_map(|it| {
            let rounds = of(it.of);
            (!rounds.is_empty()).then(|| Line { measure: it.name, difference: difference(&rounds) })
        });
        let name = |one: &Configuration| one.path.display().to_string();
        let cpus = [a, b].into_iter().zip(layouts).filter_map(|(one, layout)| Some((one, layout?)));
        let cpus = cpus.flat_map(|(one, layout)| {
            layout.sets.iter().map(|(group, cpus)| Groups {
                configuration: name(one),
                group: group.clone(),
                cpus: cpus.clone(),
            })
        });
        Self {
            version: 1,
            a: name(a),
            b: name(b),
            by,
            window_ns: script.window,
            rounds: rounds.len(),
            differences: lines.collect(),
            cpus: cpus.collect(),
            notes: notes.to_vec(),
        }
    }

    /// A table, with what the differences mean.
    pub(super) fn table(&self, width: Option<usize>) -> String {
        let mut rows = vec![["MEASURE", "A", "B", "CHANGE(%)", "95 %"].map(str::to_owned)];
        let percent = |part: f64| format!("{:+.1}", 100.0 * part);
        for line in &self.differences {
            let Some(Measure { unit, label, .. }) = MEASURES.iter().find(|it| it.name == line.measure) else {
                continue;
            };
            let Difference { a, b, change, interval } = line.difference;
            let interval =
                interval.map_or("-".to_owned(), |(low, high)| format!("{} to {}", percent(low), percent(high)));
            rows.push([
                (*label).to_owned(),
                format!("{:.3}", a / unit),
                format!("{:.3}", b / unit),
                change.map_or("-".to_owned(), percent),
                interval,
            ]);
        }
        let how = match self.by {
            By::Scheduler => "loaded by scx_mitosis",
            By::Affinity => "CPUs set by affinity, because scx_mitosis is not installed or the kernel has no sched_ext",
        };
        let text = format!(
            "A: {}\nB: {}\n{} rounds of {:.3} s, in turn; {how}\n\n{}",
            self.a,
            self.b,
            self.rounds,
            self.window_ns as f64 / 1e9,
            fitted(&rows, &COLUMNS, width)
        );
        wrapped(&text, width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_a_subcell_of_a_cell_of_one_cgroup() {
        let cells = r#"[
            {"name": "db", "matches": {"CgroupContains": "db.service"}, "subcells": [
                {"name": "pool", "matches": [[{"CommPrefix": "pool-"}]]}, {"name": "rest", "matches": [[]]}]},
            {"name": "rest", "matches": {}}]"#;
        let placement = Placement::parse(cells).unwrap();
        let of = |path: &str, comm: &str| group_of(&placement, &Task::new(path.as_bytes(), comm.as_bytes()));
        let group = |cell: &str, subcell: &str| Some((cell.to_owned(), subcell.to_owned()));
        assert_eq!(of("/db.service", "pool-1"), group("db of /db.service", "pool"));
        assert_eq!(of("/db.service", "log"), group("db of /db.service", "rest"));
        assert_ne!(of("/a/db.service", "log"), of("/b/db.service", "log"));
        assert_eq!(of("/x", "web").map(|(_, subcell)| subcell), Some(String::new()));
    }
}
