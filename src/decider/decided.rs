//! A decision of a decider, with the facts behind it.

use super::decider::Decider;
use super::memory::{self, Locations};
use crate::cluster::across::Across;
use crate::cluster::{self, Clusters};
use crate::config::{self, Affinity, Decision, Member, Members, NoSamples, Unknown, Verdict};
use crate::resolve::{AddressSpaces, Modules};
use crate::sample::{CodeAddr, Source};

/// A decision and the facts behind it.
#[derive(Debug)]
pub(crate) struct Decided {
    /// The cells.
    pub(crate) decision: Decision,
    /// The threads with their verdicts.
    pub(crate) members: Members,
    /// The result of the sketch.
    pub(super) clusters: Clusters,
    /// What cells share with each other.
    pub(super) across: Across,
    /// Where the memory lies that a report names.
    pub(super) locations: Locations,
}

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
        let pids: Vec<u32> = self.facts.iter().map(|facts| facts.pid).collect();
        let first_touches = (self.source == Source::Faults).then_some(&pids[..]);
        let solve = cluster::ClusterOptions { cells: &cells, first_touches, ..cluster::ClusterOptions::default() };
        let clusters = self.sharing.solve(&solve);
        let members = self.members(&clusters);
        let mut decision = self.better(&members, &clusters, options)?;
        for note in &mut decision.notes {
            self.say_whose(note);
        }
        decision.notes.extend(self.time_notes(&clusters));
        let across = self.sharing.across(&cells);
        decision.notes.extend(self.across_notes(&across, options.scheduler));
        Ok(Decided { decision, members, clusters, across, locations: Locations::default() })
    }

    fn members(&self, clusters: &Clusters) -> Members {
        let threads = self.facts.iter().enumerate().map(|(index, facts)| Member {
            // The sketch's number, as labels of threads use it.
            thread: index as u32,
            pid: facts.pid,
            tid: facts.tid,
            comm: Some(facts.last.1),
            hint: facts.hint,
            cell: facts.cell,
            samples: facts.samples,
            // A thread without any memory that can be shared has too few samples as well.
            verdict: clusters.of_thread.get(index).copied().unwrap_or(Verdict::Unknown(Unknown::TooFewSamples)),
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
        Members { threads: threads.collect(), affinity }
    }
}

impl Decided {
    /// Finds out where the memory lies that a report names.
    pub(crate) fn locate(&mut self, spaces: &AddressSpaces, modules: &mut Modules) {
        self.locations = memory::locate((&self.clusters, &self.across), spaces, modules);
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
