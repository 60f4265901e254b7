//! How much of the avoidable misses a configuration avoids, by evidence.

use std::collections::BTreeMap;

use super::decide::{threads_of_run, Totals};
use super::table::{Class, Evidence, Kind, Sum};
use crate::cluster::layout::{Group, Layout};
use crate::config::{Place, Placement};

impl Evidence {
    /// The part of the avoidable misses that a configuration avoids on a host with this many last-level caches, beyond what
    /// threads avoid that run anywhere; `None` if nothing is avoidable. See docs/score.md.
    ///
    /// It is the score of [`crate::session::Analysis::score`], but each class is a whole: cgroups of one folded path are one cell.
    #[must_use]
    pub fn score(&self, placement: &Placement, llcs: u32) -> Option<f64> {
        let totals = Totals::new(self);
        let mut places: BTreeMap<Place, u32> = BTreeMap::new();
        let mut groups: Vec<(usize, f64)> = Vec::new();
        let mut group_of: BTreeMap<&Class, u32> = BTreeMap::new();
        let runs = self.total(Kind::Run, Sum::Runs).max(1.0);
        for (class, sums) in &totals.classes {
            let cgroup = if class.cgroup.is_empty() { "/" } else { &class.cgroup };
            let place = placement.place_of(cgroup.as_bytes(), class.comm.as_bytes(), class.hint.parse().ok());
            let next = places.len() as u32;
            let group = *places.entry(place).or_insert(next);
            if group == next {
                groups.push((0, 0.0));
            }
            if let Some(it) = groups.get_mut(group as usize) {
                let threads = threads_of_run(sums) * sums.get(Sum::Runs) as f64 / runs;
                *it = (it.0 + (threads.ceil() as usize).max(1), it.1 + sums.value(Sum::Samples));
            }
            group_of.insert(class, group);
        }
        let mut all: Vec<&Place> = vec![places.keys().next()?; places.len()];
        for (place, &group) in &places {
            all[group as usize] = place;
        }
        let with_samples: Vec<(&Place, f64)> = all.iter().zip(&groups).map(|(place, it)| (*place, it.1)).collect();
        let cpus = placement.cpus(&with_samples);
        let mut cells: BTreeMap<(Option<&String>, &[u8]), u32> = BTreeMap::new();
        let laid: Vec<Group> = all
            .iter()
            .zip(&groups)
            .zip(&cpus)
            .map(|((place, &(threads, _)), &(cpus, _))| {
                let next = cells.len() as u32;
                let cell = *cells.entry((place.cell.as_ref(), &place.cgroup)).or_insert(next);
                Group { cell, cpus, threads }
            })
            .collect();
        let layout = Layout::new(&laid, llcs);
        let (mut avoided, mut avoidable) = (0.0, 0.0);
        for ((a, b), sums) in totals.pairs.iter().chain(&totals.across) {
            let misses = sums.value(Sum::Avoidable);
            let (Some(&a), Some(&b)) = (group_of.get(a), group_of.get(b)) else { continue };
            avoidable += misses;
            avoided += misses * (layout.near(a, b) - layout.chance()) / (1.0 - layout.chance());
        }
        (avoidable > 0.0).then(|| avoided / avoidable)
    }

    /// The part of all possible misses that is avoidable.
    #[must_use]
    pub fn avoidable(&self) -> f64 {
        self.total(Kind::Pair, Sum::Avoidable) / self.total(Kind::Class, Sum::Misses).max(1.0)
    }
}
