//! The matrix of a report: what each thread shares with each other.

use rustc_hash::FxHashMap;

use super::decided::{community, Decided};
use super::decider::Decider;
use super::memory::MemoryNames;
use crate::cluster::rules::Sharer;
use crate::report::{Matrix, MatrixLeftOut, MatrixLine, MatrixPage, MatrixRegion, MatrixThread, Report};
use crate::sample::{printable, LINE_SIZE};

/// The most threads.
const MAX_THREADS: usize = 2_000;

impl Decider {
    /// The matrix of the threads in `report`, which says where the configuration puts them.
    pub(super) fn matrix(&self, decided: &Decided, names: &MemoryNames<'_>, report: &Report) -> Matrix {
        let clusters = &decided.clusters;
        let mut numbers: Vec<u32> = (0..self.facts.len() as u32).collect();
        let samples = |number: u32| self.facts.get(number as usize).map_or(0.0, |facts| facts.samples);
        numbers.sort_by(|a, b| samples(*b).total_cmp(&samples(*a)).then(a.cmp(b)));
        numbers.truncate(MAX_THREADS);
        let places: FxHashMap<u32, u32> = numbers.iter().copied().zip(0..).collect();
        let subcells = subcells(report);
        let mut processes: FxHashMap<u32, String> = FxHashMap::default();
        for facts in self.facts.iter().filter(|facts| facts.pid == facts.tid) {
            processes.insert(facts.pid, facts.last.1.to_string());
        }
        let threads = numbers.iter().filter_map(|&number| {
            let facts = self.facts.get(number as usize)?;
            let cgroup = self.cell_of_cgroup.get(&facts.cgroup).and_then(|it| it.1.as_deref());
            Some(MatrixThread {
                pid: facts.pid,
                tid: facts.tid,
                comm: Some(facts.last.1.to_string()),
                hint: facts.hint,
                process: processes.get(&facts.pid).cloned(),
                cgroup: cgroup.map(printable),
                subcell: subcells.get(&(facts.tid, facts.hint)).cloned(),
                samples: (facts.samples * 1000.0).round() / 1000.0,
            })
        });
        let shared = &clusters.shared;
        let made = shared.regions.iter().filter_map(|it| {
            let region = clusters.regions.get(it.index)?;
            let (memory, identity) = names.named(it.memory, self.pid_of(region.sharers.first()));
            let sharer = |it: &Sharer| {
                let misses = (it.misses * region.fits * 1000.0).round() / 1000.0;
                (misses > 0.0).then_some((*places.get(&it.thread)?, misses))
            };
            Some(MatrixRegion {
                memory,
                identity,
                bytes: (region.last - region.first + 1) * LINE_SIZE,
                // A community of all threads of a process has what looks like a hub in common.
                hub: region.is_hub && !is_of_one_community(decided, &region.sharers),
                sharers: region.sharers.iter().filter_map(sharer).collect(),
            })
        });
        let lines = shared.regions.iter().zip(0..).filter_map(|(it, at)| {
            let region = clusters.regions.get(it.index)?;
            Some((region.object, region.first, region.last, at))
        });
        let mut by_line: Vec<(u64, u64, u64, u32)> = lines.collect();
        by_line.sort_unstable();
        let region_of = |object: u64, line: u64| {
            let at = by_line.partition_point(|it| (it.0, it.1) <= (object, line)).checked_sub(1)?;
            by_line.get(at).filter(|it| it.0 == object && line <= it.2).map(|it| it.3)
        };
        let pages = shared.pages.iter().map(|page| {
            let first = page.lines.iter().flat_map(|line| &line.by_thread).next();
            let pid = first.and_then(|it| self.facts.get(it.0 as usize)).map(|facts| facts.pid);
            let lines = page.lines.iter().map(|line| MatrixLine {
                memory: names.line(line.memory, pid),
                offset: line.number * LINE_SIZE as u32,
                sharing: line.sharing,
                by_thread: line.by_thread.iter().filter_map(|it| Some((*places.get(&it.0)?, it.1, it.2))).collect(),
            });
            let hottest = page.lines.first().map_or(0, |line| page.first + u64::from(line.number));
            MatrixPage {
                memory: names.named(page.memory, pid).0,
                region: region_of(page.object, hottest),
                accesses: page.accesses,
                lines: lines.collect(),
            }
        });
        let left_out = MatrixLeftOut {
            threads: (self.facts.len() - numbers.len()) as u64,
            regions: shared.regions_left_out.0 as u64,
            misses: shared.regions_left_out.1,
            pages: shared.pages_left_out as u64,
        };
        Matrix { threads: threads.collect(), regions: made.collect(), pages: pages.collect(), left_out }
    }

    fn pid_of(&self, sharer: Option<&Sharer>) -> Option<u32> {
        self.facts.get(sharer?.thread as usize).map(|facts| facts.pid)
    }
}

/// True if all of them are in the same community.
fn is_of_one_community(decided: &Decided, sharers: &[Sharer]) -> bool {
    let mut of = sharers.iter().map(|it| community(&decided.clusters, it.thread as usize));
    let first = of.next().unwrap_or(u32::MAX);
    first != u32::MAX && of.all(|it| it == first)
}

/// The subcell of each thread and hint, by its path.
pub(super) fn subcells(report: &Report) -> FxHashMap<(u32, Option<u64>), String> {
    let mut of = FxHashMap::default();
    for cell in &report.cells {
        for subcell in &cell.subcells {
            let path = cell.path_of(subcell);
            of.extend(subcell.threads.iter().map(|thread| ((thread.tid, thread.hint), path.clone())));
        }
    }
    of
}
