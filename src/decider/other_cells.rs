//! The value of a decision with other cell specs: only cell specs that are better by computation are suggested.

use std::cell::OnceCell;

use super::decider::Decider;
use crate::cluster::{ClusterOptions, Clusters, Detail};
use crate::config::{Basis, CellIndex, CellSpecs, DecisionOptions, Found, Note, OneCell, Tally};

/// A smaller difference of localities counts as no difference.
const CLEARLY: f64 = 0.01;

/// The value of a configuration for a host.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Worth {
    /// The part of the avoidable misses between any two threads of the host that it avoids.
    locality: f64,
    /// The number of communities for which the host has no CPUs.
    left_out: usize,
}

impl Worth {
    /// True if a configuration is better than another one, and does not leave out more groups.
    fn is_better(self, than: Self) -> bool {
        self.locality > than.locality + CLEARLY && self.left_out <= than.left_out
    }
}

/// Compares the cell specs of a decision with others.
pub(super) struct OtherCells<'a> {
    decider: &'a Decider,
    options: DecisionOptions,
    /// What all threads of the host share, whatever their cells.
    host: OnceCell<Clusters>,
    now: OnceCell<Option<Worth>>,
    found: &'a Found,
}

impl<'a> OtherCells<'a> {
    /// `found` is what the decider decides with `options` and its own cell specs.
    pub(super) fn new(decider: &'a Decider, options: DecisionOptions, found: &'a Found) -> Self {
        Self { decider, options, host: OnceCell::new(), now: OnceCell::new(), found }
    }

    fn worth(&self, found: &Found) -> Option<Worth> {
        let host =
            self.host.get_or_init(|| self.decider.solve(&vec![0; self.decider.facts.len()], Detail::Communities));
        let locality = host.locality_of(found.labels.as_ref()?)?;
        let is_community = |basis: &Basis| !basis.communities.is_empty();
        let bases = found.finding.bases.iter().zip(&found.taken_by);
        let lost = bases
            .flat_map(|(bases, taken)| bases.iter().zip(taken))
            .filter(|(basis, taken)| is_community(basis) && taken.is_none());
        Some(Worth { locality, left_out: lost.count() })
    }

    fn now(&self) -> Option<Worth> {
        *self.now.get_or_init(|| self.worth(self.found))
    }

    /// The same with other cell specs; `None` if it cannot be computed.
    fn with(&self, specs: &CellSpecs) -> Option<Worth> {
        let decider = self.decider;
        let mut tally = Tally::default();
        let mut cells: Vec<CellIndex> = Vec::with_capacity(decider.facts.len());
        for facts in &decider.facts {
            let cell = tally.cell(specs.assign(decider.path_of(facts)));
            tally.add(cell, Some(facts.last.1), facts.samples);
            cells.push(cell);
        }
        let clusters = decider.solve(&cells, Detail::Communities);
        let members = decider.members(&clusters, &cells);
        self.worth(&Decider::find((specs, &tally), &members, &clusters, &self.options).ok()?)
    }

    /// The way in which two cells become one, unless that is no better by computation.
    pub(super) fn checked(&self, one_cell: OneCell) -> OneCell {
        let specs = match &one_cell {
            OneCell::Option { given, .. } => self.decider.specs.with_first(given),
            OneCell::LeaveOut(names) => Some(self.decider.specs.without_named(names)),
            _ => return one_cell,
        };
        let is_better = || Some(self.with(&specs?)?.is_better(self.now()?));
        if is_better().unwrap_or(false) {
            one_cell
        } else {
            OneCell::NotBetter
        }
    }

    /// A note if the configuration avoids less than it would without the `--cell`s.
    pub(super) fn cost_of_cells(&self) -> Option<Note> {
        let without = self.decider.specs.without_given()?;
        let (without, now) = (self.with(&without)?, self.now()?);
        (without.locality > now.locality + CLEARLY)
            .then_some(Note::CellsCost { with: now.locality, without: without.locality })
    }

    /// True if all of these `--cell`s together, before those that there are, are better than none of them.
    pub(super) fn are_better(&self, cells: &[String]) -> bool {
        let add = |specs: CellSpecs, cell: &String| specs.with_first(cell);
        let specs = cells.iter().try_fold(self.decider.specs.clone(), add);
        let is_better = || Some(self.with(&specs?)?.is_better(self.now()?));
        !cells.is_empty() && is_better().unwrap_or(false)
    }
}

impl Decider {
    /// The communities of threads in these cells.
    pub(super) fn solve(&self, cells: &[u32], detail: Detail) -> Clusters {
        let pids: Vec<u32> = self.facts.iter().map(|facts| facts.pid).collect();
        let first_touches = (self.source == crate::sample::Source::Faults).then_some(&pids[..]);
        self.sharing.solve(&ClusterOptions { cells, first_touches, detail, ..ClusterOptions::default() })
    }

    /// True if these `--cell`s were computed to be better than none of them; see [`OtherCells::are_better`].
    pub(crate) fn are_better(&self, found: &Found, options: &DecisionOptions, cells: &[String]) -> bool {
        OtherCells::new(self, *options, found).are_better(cells)
    }
}
