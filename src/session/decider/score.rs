//! How much of the avoidable misses a configuration avoids.

use std::collections::BTreeMap;

use super::{Decider, Facts};
use crate::cluster::score::{Avoidable, Avoided};
use crate::config::score::{
    interval, within_one, CellScore, MisplacedThreads, PairScore, Score, SubcellScore, UnmatchedThreads,
};
use crate::config::{base_of, Group, Placement, Scheduler};
use crate::sample::{printable, Source};

/// Pairs and names of threads that are listed of a configuration.
const LISTED: usize = 64;

/// The groups of a configuration.
struct Groups {
    all: Vec<Group>,
    /// The group of each thread.
    labels: Vec<u32>,
    /// Threads and samples.
    threads: Vec<usize>,
    /// The parts of the CPUs that they and their cells have.
    cpus: Vec<(f64, f64)>,
    /// The part of its avoided misses that counts.
    weights: Vec<f64>,
}

impl Groups {
    fn place(&self, label: u32) -> String {
        let Some(group) = self.all.get(label as usize) else { return String::new() };
        let cell = group.cell.as_deref().unwrap_or("(no cell)");
        group.subcell.as_ref().map_or_else(|| cell.to_owned(), |subcell| format!("{cell}/{subcell}"))
    }

    /// The score that these misses are.
    fn part(&self, avoided: &Avoided, of: &[usize]) -> f64 {
        let weighted = |&at: &usize| Some(avoided.of_group.get(at)? * self.weights.get(at)?);
        // A sum of nothing is -0.
        of.iter().filter_map(weighted).fold(0.0, |sum, it| sum + it) / avoided.all.max(f64::MIN_POSITIVE)
    }
}

/// A score, and the same from each replicate.
pub(in crate::session) struct Judged {
    pub(in crate::session) score: Score,
    replicates: Vec<f64>,
}

impl Decider {
    /// What can be avoided.
    pub(in crate::session) fn avoidable(&self) -> Avoidable {
        let pids: Vec<u32> = self.facts.iter().map(|facts| facts.pid).collect();
        let first_touches = (self.source == Source::Faults).then_some(&pids[..]);
        Avoidable::new(&self.sharing, self.slices.as_ref(), first_touches)
    }

    fn groups(&self, placement: &Placement, llcs: u32) -> Groups {
        let mut number: BTreeMap<Group, u32> = BTreeMap::new();
        let mut counts: Vec<(usize, f64)> = Vec::new();
        let mut labels = Vec::with_capacity(self.facts.len());
        for facts in &self.facts {
            let next = number.len() as u32;
            let label =
                *number.entry(placement.seat(self.path_of(facts), facts.last.1.as_bytes(), facts.hint)).or_insert(next);
            if label == next {
                counts.push((0, 0.0));
            }
            if let Some(count) = counts.get_mut(label as usize) {
                *count = (count.0 + 1, count.1 + facts.samples);
            }
            labels.push(label);
        }
        let mut all = vec![Group::default(); number.len()];
        for (group, label) in number {
            if let Some(slot) = all.get_mut(label as usize) {
                *slot = group;
            }
        }
        let with_samples: Vec<(&Group, f64)> = all.iter().zip(&counts).map(|(group, count)| (group, count.1)).collect();
        let cpus = placement.cpus(&with_samples);
        // What any two threads avoid by chance is no merit of a configuration.
        let chance = 1.0 / f64::from(llcs.max(2));
        let weights = cpus.iter().map(|(part, _)| {
            let spans = (part / chance).max(1.0);
            ((1.0 / spans - chance) / (1.0 - chance)).max(0.0)
        });
        Groups { labels, threads: counts.iter().map(|it| it.0).collect(), weights: weights.collect(), cpus, all }
    }

    /// The path of a thread's cgroup, as far as it is known.
    fn path_of(&self, facts: &Facts) -> &[u8] {
        self.cell_of_cgroup.get(&facts.cgroup).and_then(|it| it.1.as_deref()).unwrap_or(b"/")
    }

    /// The score of a configuration with this name.
    pub(in crate::session) fn score(
        &self,
        avoidable: &Avoidable,
        (name, placement): (&str, &Placement),
        llcs: u32,
    ) -> Judged {
        let groups = self.groups(placement, llcs);
        let count = groups.all.len();
        let whole = avoidable.avoided(&groups.labels, count);
        let drawn = if avoidable.is_worth() { avoidable.replicates(&groups.labels, count) } else { Vec::new() };
        let part = |of: &[usize]| groups.part(&whole, of);
        let replicates = |of: &[usize]| -> Vec<f64> { drawn.iter().map(|it| groups.part(it, of)).collect() };
        let doubt = |of: &[usize]| interval(part(of), &replicates(of)).map(within_one);
        let mut cells: BTreeMap<(Option<&String>, &[u8]), Vec<usize>> = BTreeMap::new();
        for (at, group) in groups.all.iter().enumerate() {
            cells.entry((group.cell.as_ref(), &group.cgroup)).or_default().push(at);
        }
        let number = |at: usize| groups.threads.get(at).copied().unwrap_or_default();
        let cpus = |at: usize| groups.cpus.get(at).copied().unwrap_or_default();
        let at_most = within_cells(avoidable, &groups, cells.values());
        let cells = cells.iter().zip(at_most).map(|((&(name, cgroup), of), at_most)| {
            let subcell = |&at: &usize| {
                let group = groups.all.get(at)?;
                let is_divided = group.subcell.is_some() || of.len() > 1;
                let name = group.subcell.clone().unwrap_or_else(|| "(rest)".to_owned());
                let (threads, cpus) = (number(at), cpus(at).0);
                is_divided.then(|| SubcellScore { name, threads, cpus, avoids: part(&[at]), interval: doubt(&[at]) })
            };
            let mut subcells: Vec<SubcellScore> = of.iter().filter_map(subcell).collect();
            subcells.sort_by(|a, b| b.avoids.total_cmp(&a.avoids).then_with(|| a.name.cmp(&b.name)));
            CellScore {
                name: name.cloned().unwrap_or_else(|| "(no cell)".to_owned()),
                cgroup: (!cgroup.is_empty()).then(|| printable(cgroup)),
                threads: of.iter().map(|&at| number(at)).sum(),
                cpus: of.first().map_or(0.0, |&at| cpus(at).1),
                avoids: part(of),
                interval: doubt(of),
                at_most,
                subcells,
            }
        });
        let mut cells: Vec<CellScore> = cells.collect();
        cells.sort_by(|a, b| {
            b.avoids.total_cmp(&a.avoids).then_with(|| (&a.name, &a.cgroup).cmp(&(&b.name, &b.cgroup)))
        });
        let all: Vec<usize> = (0..count).collect();
        let replicates = replicates(&all);
        let score = avoidable.is_worth().then(|| part(&all));
        let pairs = avoidable.pairs(&groups.labels).into_iter().filter(|edge| edge.misses > 0.0).take(LISTED);
        let score = Score {
            name: printable(name.as_bytes()),
            scheduler: if placement.scheduler() == Scheduler::Layered { "layered" } else { "mitosis" }.to_owned(),
            score,
            interval: score.and_then(|score| interval(score, &replicates)).map(within_one),
            below_best: None,
            below_best_interval: None,
            cells,
            pairs: pairs
                .map(|edge| {
                    let mut places = [groups.place(edge.a), groups.place(edge.b)];
                    places.sort();
                    let [a, b] = places;
                    PairScore { a, b, misses: edge.misses / whole.all.max(f64::MIN_POSITIVE) }
                })
                .collect(),
            misplaced: self.misplaced(avoidable, &groups, whole.all),
            unmatched: self.unmatched(&groups),
        };
        Judged { score, replicates }
    }

    fn misplaced(&self, avoidable: &Avoidable, groups: &Groups, all: f64) -> Vec<MisplacedThreads> {
        let mut found: BTreeMap<(&[u8], u32, u32), (usize, f64)> = BTreeMap::new();
        if avoidable.is_worth() {
            for it in avoidable.misplaced(&groups.labels, groups.all.len()) {
                let at = it.thread as usize;
                let (Some(facts), Some(&label)) = (self.facts.get(at), groups.labels.get(at)) else { continue };
                let sum = found.entry((base_of(facts.last.1.as_bytes()), label, it.better)).or_default();
                *sum = (sum.0 + 1, sum.1 + it.misses / all.max(f64::MIN_POSITIVE));
            }
        }
        let named = |((comm, from, to), (threads, misses)): ((&[u8], u32, u32), (usize, f64))| MisplacedThreads {
            comm: printable(comm),
            threads,
            from: groups.place(from),
            to: groups.place(to),
            misses,
        };
        let mut found: Vec<MisplacedThreads> = found.into_iter().map(named).collect();
        found.sort_by(|a, b| b.misses.total_cmp(&a.misses).then_with(|| (&a.comm, &a.from).cmp(&(&b.comm, &b.from))));
        found.truncate(LISTED);
        found
    }

    fn unmatched(&self, groups: &Groups) -> Vec<UnmatchedThreads> {
        let mut found: BTreeMap<(&[u8], String), (usize, f64)> = BTreeMap::new();
        let total = self.facts.iter().map(|facts| facts.samples).sum::<f64>().max(f64::MIN_POSITIVE);
        for (facts, &label) in self.facts.iter().zip(&groups.labels) {
            if groups.all.get(label as usize).is_some_and(|group| group.is_rest) {
                let sum = found.entry((base_of(facts.last.1.as_bytes()), groups.place(label))).or_default();
                *sum = (sum.0 + 1, sum.1 + facts.samples / total);
            }
        }
        let named = |((comm, place), (threads, share)): ((&[u8], String), (usize, f64))| UnmatchedThreads {
            comm: printable(comm),
            threads,
            place,
            share,
        };
        let mut found: Vec<UnmatchedThreads> = found.into_iter().map(named).collect();
        found.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| (&a.comm, &a.place).cmp(&(&b.comm, &b.place))));
        found.truncate(LISTED);
        found
    }
}

/// The part of the avoidable misses that one cache for each of these cells would avoid.
fn within_cells<'a>(
    avoidable: &Avoidable,
    groups: &Groups,
    cells: impl ExactSizeIterator<Item = &'a Vec<usize>>,
) -> Vec<f64> {
    let count = cells.len();
    let mut cell_of = vec![0; groups.all.len()];
    for (cell, of) in (0u32..).zip(cells) {
        for &at in of {
            if let Some(slot) = cell_of.get_mut(at) {
                *slot = cell;
            }
        }
    }
    let label = |it: &u32| cell_of.get(*it as usize).copied().unwrap_or(0);
    let labels: Vec<u32> = groups.labels.iter().map(label).collect();
    let avoided = avoidable.avoided(&labels, count);
    avoided.of_group.iter().map(|it| it / avoided.all.max(f64::MIN_POSITIVE)).collect()
}

impl Judged {
    /// Compares it with the best configuration.
    pub(in crate::session) fn below(&mut self, best: &Self) {
        let (Some(ours), Some(theirs)) = (self.score.score, best.score.score) else { return };
        self.score.below_best = Some(theirs - ours);
        let below: Vec<f64> =
            self.replicates.iter().zip(&best.replicates).map(|(ours, theirs)| theirs - ours).collect();
        self.score.below_best_interval = interval(theirs - ours, &below);
    }
}
