//! How much of the avoidable misses a configuration avoids, by evidence.

use std::collections::BTreeMap;

use super::key::{Class, RowKind};
use super::rows::{Evidence, Sum, Sums};
use super::totals::{threads_of_run, Totals};
use crate::cluster::layout::{Group, Layout, Load};
use crate::cluster::rules::Rules;
use crate::config::{Laid, OnCaches, Place, Placement, Scheduler, Task};

/// The groups of classes in a configuration, and how often two groups share a last-level cache.
#[derive(Debug)]
pub struct Judge {
    group_of: BTreeMap<Class, u32>,
    /// The groups that keep no threads together: catch-alls, and cells that are not divided.
    is_rest: Vec<bool>,
    layout: Layout,
}

/// Avoidable misses, and those that a configuration avoids beyond what unplaced threads avoid by chance.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Avoided {
    /// Avoidable misses.
    pub avoidable: f64,
    /// Those that are avoided; below 0 if fewer are than without a configuration.
    pub avoided: f64,
}

impl Avoided {
    /// The score; `None` if nothing is avoidable.
    #[must_use]
    pub fn score(self) -> Option<f64> {
        (self.avoidable > 0.0).then(|| self.avoided / self.avoidable)
    }
}

impl Judge {
    /// Of a configuration on hosts with the classes of `evidence` and these last-level caches (their number is enough); without a
    /// configuration, all threads run anywhere.
    ///
    /// It judges as [`crate::session::Analysis::score`], but each class is a whole: cgroups of one folded path are one cell.
    #[must_use]
    pub fn new(evidence: &Evidence, placement: Option<&Placement>, caches: impl Into<OnCaches>) -> Self {
        let order = caches.into();
        let totals = Totals::new(evidence);
        let mut places: BTreeMap<Place, u32> = BTreeMap::new();
        let mut groups: Vec<(usize, f64)> = Vec::new();
        let mut loads: Vec<Load> = Vec::new();
        let runs = evidence.total(RowKind::Run, Sum::Runs).max(1.0);
        // Sums do not say how much threads sleep: the busiest one stands for one that never does.
        let busiest = totals.classes.values().map(|it| it.value(Sum::Samples) / threads_of(it, runs) as f64);
        let busiest = busiest.fold(f64::MIN_POSITIVE, f64::max);
        let mut group_of: BTreeMap<Class, u32> = BTreeMap::new();
        // Where hints were not followed, no class has one.
        let has_hints = totals.classes.keys().any(|class| !class.hint.is_empty());
        for (class, sums) in &totals.classes {
            let cgroup = if class.cgroup.is_empty() { "/" } else { &class.cgroup };
            let task = Task::new(cgroup.as_bytes(), class.comm.as_bytes());
            let task = if has_hints { task.hinted(class.hint.parse().ok()) } else { task };
            let place = placement.map(|it| it.place_of(&task)).unwrap_or_default();
            let next = places.len() as u32;
            let group = *places.entry(place).or_insert(next);
            if group == next {
                groups.push((0, 0.0));
                loads.push(Load::default());
            }
            let threads = threads_of(sums, runs);
            let samples = sums.value(Sum::Samples);
            if let (Some(it), Some(load)) = (groups.get_mut(group as usize), loads.get_mut(group as usize)) {
                *it = (it.0.saturating_add(threads), it.1 + samples);
                load.add(threads, samples / threads as f64 / busiest);
            }
            group_of.insert(class.clone(), group);
        }
        let mut all: Vec<(&Place, f64)> = Vec::with_capacity(places.len());
        let mut ordered: Vec<(&Place, u32)> = places.iter().map(|(place, &group)| (place, group)).collect();
        ordered.sort_by_key(|it| it.1);
        all.extend(ordered.iter().zip(&groups).map(|(it, group)| (it.0, group.1)));
        let cpus = placement.map_or_else(|| vec![(1.0, 1.0); all.len()], |it| it.cpus(&all));
        let mut cells: BTreeMap<(Option<&String>, &[u8]), u32> = BTreeMap::new();
        let mut laid: Vec<Group> = Vec::with_capacity(all.len());
        for ((&(place, _), &(threads, _)), &(cpus, _)) in all.iter().zip(&groups).zip(&cpus) {
            let next = cells.len() as u32;
            let cell = *cells.entry((place.cell.as_ref(), place.cgroup.as_slice())).or_insert(next);
            laid.push(Group { cell, cpus, threads });
        }
        let is_layered = placement.is_some_and(|it| it.scheduler() == Scheduler::Layered);
        let known = placement.and_then(|it| Laid::new(it, all.iter().map(|it| it.0), order));
        let is_rest = |place: &Place| {
            let is_alone = place.is_rest || !place.maybe.is_empty() || (!is_layered && place.subcell.is_none());
            is_alone && !known.as_ref().is_some_and(|it| it.is_near(place))
        };
        let is_rest = all.iter().map(|(place, _)| is_rest(place)).collect();
        let layout = match &known {
            Some(known) => {
                let places: Vec<Place> = all.iter().map(|(place, _)| (*place).clone()).collect();
                known.layout(&places, &loads)
            }
            None => Layout::new(&laid, order.llcs()),
        };
        Self { group_of, is_rest, layout }
    }

    /// The part of the avoidable misses between threads of one cell that are in one subcell or layer, as
    /// [`crate::report::Report::locality`]; `None` if too little is avoidable for any configuration to matter.
    #[must_use]
    pub fn locality(&self, evidence: &Evidence) -> Option<f64> {
        let (mut kept, mut all) = (0.0, 0.0);
        for (key, sums) in evidence.of_kind(RowKind::Pair).filter(|(key, _)| key.b.cell.is_empty()) {
            let misses = sums.value(Sum::Avoidable).max(0.0);
            all += misses;
            let groups = (self.group_of.get(&*key.a), self.group_of.get(&key.second()));
            if let (Some(a), Some(b)) = groups {
                let is_rest = self.is_rest.get(*a as usize).copied().unwrap_or(true);
                kept += if a == b && !is_rest { misses } else { 0.0 };
            }
        }
        (all > 0.0 && evidence.is_worth()).then(|| kept / all)
    }

    /// The misses avoided in `evidence`, whose classes are among those that the judge knows; others count as avoidable only.
    #[must_use]
    pub fn avoided(&self, evidence: &Evidence) -> Avoided {
        let mut sum = Avoided::default();
        for (key, sums) in evidence.of_kind(RowKind::Pair) {
            let misses = sums.value(Sum::Avoidable);
            if misses <= 0.0 {
                continue;
            }
            sum.avoidable += misses;
            let (Some(&a), Some(&b)) = (self.group_of.get(&*key.a), self.group_of.get(&key.second())) else { continue };
            let chance = self.layout.chance();
            sum.avoided += misses * (self.layout.near(a, b) - chance) / (1.0 - chance);
        }
        sum
    }
}

/// Threads of a class on a host, as an average over the runs.
fn threads_of(sums: &Sums, runs: f64) -> usize {
    let threads = threads_of_run(sums) * sums.get(Sum::Runs) as f64 / runs;
    (threads.ceil().min(1e6) as usize).max(1)
}

impl Evidence {
    /// The part of the avoidable misses that a configuration avoids on a host with these last-level caches, of which a number will
    /// do, beyond what unplaced threads avoid by chance; `None` if nothing is avoidable. See docs/score.md.
    #[must_use]
    pub fn score(&self, placement: &Placement, caches: impl Into<OnCaches>) -> Option<f64> {
        Judge::new(self, Some(placement), caches).avoided(self).score()
    }

    /// The part of all possible misses that is avoidable.
    #[must_use]
    pub fn avoidable(&self) -> f64 {
        self.total(RowKind::Pair, Sum::Avoidable) / self.total(RowKind::Class, Sum::Misses).max(1.0)
    }

    /// False if too little is avoidable for any configuration to matter.
    #[must_use]
    pub fn is_worth(&self) -> bool {
        self.avoidable() >= Rules::default().worth
    }
}
