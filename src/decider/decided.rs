//! A decision of a decider, with the facts behind it.

use super::decider::Decider;
use super::memory::{self, Locations};
use super::other_cells::OtherCells;
use crate::cluster::across::Across;
use crate::cluster::{self, Clusters, Detail};
use crate::config::{
    self, Affinity, CellIndex, Decision, Found, Member, Members, NoSamples, Note, OneCell, Unknown, Verdict,
};
use crate::host::phases::{Begun, Phases};
use crate::resolve::{AddressSpaces, Modules};
use crate::sample::{CodeAddr, Source};

/// A decision and the facts behind it.
#[derive(Debug)]
pub(crate) struct Decided {
    /// All groups that were found, and those that the host can load.
    pub(crate) found: Found,
    /// The threads with their verdicts.
    pub(crate) members: Members,
    /// The result of the sketch.
    pub(super) clusters: Clusters,
    /// What cells share with each other.
    pub(super) across: Across,
    /// How the cells of each pair become one.
    pub(super) one_cells: Vec<Option<OneCell>>,
    /// The places of the memory that a report names.
    pub(super) locations: Locations,
    /// The times of its phases.
    pub(crate) phases: Phases,
}

/// The phases of a decision.
const GROUPS: &str = "find groups";
const CELLS: &str = "make cells";

impl Decider {
    /// Makes the decision.
    ///
    /// # Errors
    /// [`NoSamples`] if no sample has an address of user memory.
    pub(crate) fn decide(&self, options: &config::DecisionOptions) -> Result<Decided, NoSamples> {
        if !self.has_address {
            return Err(NoSamples);
        }
        let cells: Vec<u32> = self.facts.iter().map(|facts| facts.cell).collect();
        let mut phases = Phases::default();
        let detail = if self.reports { Detail::Report } else { Detail::OverTime };
        let mut clusters = phases.measure(GROUPS, || self.solve(&cells, detail));
        let began = Begun::now();
        let members = self.members(&clusters, &cells);
        let mut found = Self::find((&self.specs, &self.tally), &members, &clusters, options)?;
        found.configuration.notes.extend(config::strays(&found.finding, &self.tally, &members));
        let across = self.sharing.across(&cells);
        let others = OtherCells::new(self, *options, &found);
        let one_cells = self.one_cells(&across, options.scheduler, &others);
        let cost = others.cost_of_cells();
        let notes = &mut found.configuration.notes;
        for note in notes.iter_mut() {
            self.say_whose(note);
        }
        notes.extend(self.time_notes(&clusters));
        notes.extend(self.across_notes(&across, &one_cells));
        notes.extend(cost);
        if !self.reports && found.configuration.notes.iter().any(Note::leaves_out) {
            clusters = self.solve(&cells, Detail::Report);
        }
        phases.push(began.end(CELLS));
        Ok(Decided { found, members, clusters, across, one_cells, locations: Locations::default(), phases })
    }

    /// The threads with their verdicts, each in its cell.
    pub(super) fn members(&self, clusters: &Clusters, cells: &[CellIndex]) -> Members {
        // A thread without any memory that can be shared has too few samples as well.
        let few = Verdict::Unknown(Unknown::TooFewSamples);
        let takes_each_event = matches!(self.source(), Source::Faults | Source::Wakeups);
        let verdict = |index: usize| match clusters.of_thread.get(index).copied().unwrap_or(few) {
            it if it == few && takes_each_event => Verdict::Unknown(Unknown::TooFewEvents),
            it => it,
        };
        let threads = self.facts.iter().zip(cells).enumerate().map(|(index, (facts, &cell))| Member {
            // The sketch's number, as labels of threads use it.
            thread: index as u32,
            pid: facts.pid,
            tid: facts.tid,
            comm: Some(facts.last.1),
            hint: facts.hint,
            cell,
            samples: facts.samples,
            verdict: verdict(index),
        });
        let mut affinity = Affinity::default();
        let communities: Vec<u32> = (0..self.facts.len()).map(|index| community(clusters, index)).collect();
        // Without communities there is no edge to report.
        let edges = if clusters.communities.is_empty() { Vec::new() } else { clusters.edges(&communities) };
        for edge in edges {
            if edge.a != u32::MAX && edge.b != u32::MAX {
                affinity.add(edge.a, edge.b, edge.misses);
            }
        }
        Members { threads: threads.collect(), affinity, awake: self.samples_of_awake() }
    }
}

impl Decided {
    /// The locality if the host had CPUs for all groups.
    pub(crate) fn locality_found(&self) -> Option<f64> {
        self.found.labels_of_finding.as_ref().and_then(|labels| self.clusters.locality_of(labels))
    }

    /// The decision that is written for the host.
    pub(crate) fn configuration(&self) -> &Decision {
        &self.found.configuration
    }

    /// The decision with all groups that were found.
    pub(crate) fn finding(&self) -> &Decision {
        &self.found.finding
    }

    /// Finds the places of the memory that a report names.
    pub(crate) fn locate(&mut self, spaces: &AddressSpaces, modules: &mut Modules) {
        self.locations = memory::locate((&self.clusters, &self.across), spaces, modules);
        modules.finish_found();
    }

    /// The code that touches the hottest shared lines, and the data in images, to be named for the report.
    pub(crate) fn codes(&self) -> impl Iterator<Item = CodeAddr> + '_ {
        let of_communities = self.clusters.communities.iter().flat_map(|community| &community.lines);
        let lines = of_communities.chain(&self.clusters.lines);
        lines.flat_map(|line| line.code.iter().map(|&(code, _)| code)).chain(memory::images(&self.locations))
    }
}

/// The community of a thread; [`u32::MAX`] for none.
pub(super) fn community(clusters: &Clusters, thread: usize) -> u32 {
    match clusters.of_thread.get(thread) {
        Some(cluster::Verdict::Community(community)) => *community,
        _ => u32::MAX,
    }
}
