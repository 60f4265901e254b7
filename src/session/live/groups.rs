//! The groups of a report, and which part of each a loaded configuration keeps together.

use rustc_hash::{FxHashMap, FxHashSet};

use super::snapshot::Group;
use crate::config::{Place, Placement, Scheduler};
use crate::report::{Granule, MatrixThread, Report, ThreadReport};
use crate::sample::Task;

/// Names of threads that a group has.
const MAX_NAMES: usize = 8;

/// The groups of a report, those with most samples first.
pub(super) fn of_report(report: &Report, placement: Option<&Placement>) -> Vec<Group> {
    let known: FxHashMap<_, _> = report.matrix.threads.iter().map(|it| ((it.pid, it.tid, it.hint), it)).collect();
    let groups = report.groups().map(|(cell, subcell)| {
        let mut names: Vec<String> = Vec::new();
        for comm in subcell.threads.iter().filter_map(|thread| thread.comm.as_ref()) {
            if names.len() < MAX_NAMES && !names.contains(comm) {
                names.push(comm.clone());
            }
        }
        let is_variable = |granule: &&Granule| granule.symbol.is_some();
        let hottest = subcell.lines.iter().find(is_variable).or(subcell.lines.first());
        let hottest = hottest.map(|line| line.memory.clone());
        let hottest = hottest.or_else(|| subcell.regions.first().map(|region| region.memory.clone()));
        Group {
            name: cell.path_of(subcell),
            threads: subcell.threads.len(),
            names,
            samples: subcell.samples,
            share: subcell.share,
            cpus: None,
            avoidable: subcell.locality,
            kept: placement.and_then(|placement| kept(placement, &subcell.threads, &known)),
            hottest,
        }
    });
    let mut groups: Vec<Group> = groups.collect();
    groups.sort_by(|a, b| b.samples.total_cmp(&a.samples));
    groups
}

/// The part of the pairs of threads, weighted by their samples, that a configuration keeps in one subcell or layer; `None` if there are
/// no pairs.
fn kept(
    placement: &Placement,
    threads: &[ThreadReport],
    known: &FxHashMap<(u32, u32, Option<u64>), &MatrixThread>,
) -> Option<f64> {
    let is_layered = placement.scheduler() == Scheduler::Layered;
    let mut weights: FxHashMap<Place, f64> = FxHashMap::default();
    let (mut all, mut squares, mut own) = (0.0, 0.0, 0.0);
    for thread in threads {
        // Of threads beyond those of the matrix, the cgroup is not known.
        let Some(it) = known.get(&(thread.pid, thread.tid, thread.hint)) else { continue };
        let cgroup = it.cgroup.as_deref().unwrap_or("/");
        let comm = thread.comm.as_deref().unwrap_or_default();
        let process = it.process.as_deref().map(str::as_bytes);
        let task = Task::new(cgroup.as_bytes(), comm.as_bytes()).ids(thread.pid, thread.tid).process(process);
        let place = placement.place_of(&if placement.uses_hints() { task.hinted(thread.hint) } else { task });
        let square = thread.samples * thread.samples;
        (all, squares) = (all + thread.samples, squares + square);
        // A catch-all, and a cell that is not divided, keep no threads together.
        if !place.is_rest && place.maybe.is_empty() && (is_layered || place.subcell.is_some()) {
            *weights.entry(place).or_default() += thread.samples;
            own += square;
        }
    }
    let pairs = all * all - squares;
    let together: f64 = weights.values().map(|weight| weight * weight).sum::<f64>() - own;
    (pairs > 0.0).then(|| (together / pairs).clamp(0.0, 1.0) + 0.0)
}

/// The threads of groups: process and thread.
pub(super) fn threads(report: &Report) -> impl Iterator<Item = (u32, u32)> + '_ {
    report.groups().flat_map(|(_, subcell)| subcell.threads.iter().map(|thread| (thread.pid, thread.tid)))
}

/// Gives each group the CPUs that its threads used: `run` has the ns on a CPU by thread id, in a window of `window` ns.
pub(super) fn count_cpus(groups: &mut [Group], report: &Report, run: &FxHashMap<u32, u64>, window: u64) {
    let of_groups = report.groups().map(|(cell, subcell)| {
        // A thread with several hints is listed once for each.
        let tids: FxHashSet<u32> = subcell.threads.iter().map(|thread| thread.tid).collect();
        let ns: u64 = tids.iter().filter_map(|tid| run.get(tid)).sum();
        (cell.path_of(subcell), ns as f64 / window as f64)
    });
    let cpus: FxHashMap<String, f64> = of_groups.collect();
    for group in groups {
        group.cpus = cpus.get(&group.name).copied();
    }
}
