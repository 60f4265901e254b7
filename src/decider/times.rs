//! Communities that change during the run, for people.

use super::decider::Decider;
use crate::cluster::{Clusters, Community, OverTime};
use crate::config::{spelled, Note};
use crate::report::TimeReport;
use crate::sample::Comm;

/// Communities that have a note.
const NOTES: usize = 3;
/// With less constancy, partners count as changing.
const CHANGES: f64 = 0.9;
/// Communities that share in less of the run share only then...
const ONLY: f64 = 0.5;
/// ...if that is less of the time in which they ran.
const LIFE: f64 = 0.75;
/// Steps of time with less of the samples of the busiest one are idle.
const IDLE: f64 = 0.1;

impl Decider {
    /// The notes on communities that are not the same all the time: those with most accesses.
    pub(super) fn time_notes(&self, clusters: &Clusters) -> Vec<Note> {
        let mut communities: Vec<&Community> = clusters.communities.iter().collect();
        communities.sort_by(|a, b| b.accesses.total_cmp(&a.accesses));
        let mut notes: Vec<Note> = communities.iter().filter_map(|community| self.time_note(community)).collect();
        let more = notes.len().saturating_sub(NOTES);
        notes.truncate(NOTES);
        notes.extend((more > 0).then_some(Note::MoreChange { communities: more }));
        notes
    }

    fn time_note(&self, community: &Community) -> Option<Note> {
        let OverTime { constancy, change, mostly, from, to, busy, .. } = community.over_time?;
        let of_thread = |thread: &u32| self.facts.get(*thread as usize).map(|facts| facts.last.1);
        let names: std::collections::BTreeSet<Comm> = community.threads.iter().filter_map(of_thread).collect();
        let cell = self.tally.get(community.cell)?;
        let (cell, threads) = (self.specs.specs().get(cell.spec)?.name.clone(), spelled(names.iter()));
        if constancy < CHANGES {
            let (at, is_mostly) = (change.map(seconds), mostly >= OverTime::MOSTLY);
            return Some(Note::PartnersChange { cell, threads, at, constancy, is_mostly });
        }
        // Threads that ran only then shared all the time.
        (busy < ONLY && busy < LIFE * self.ran(community)).then(|| Note::OnlyThen {
            cell,
            threads,
            from: seconds(from),
            to: seconds(to),
            busy,
        })
    }

    /// The part of the run in which a community's threads had samples, from 0 to 1.
    fn ran(&self, community: &Community) -> f64 {
        let samples = self.over_time.sum_of(&community.threads);
        let (first, end) = samples.range();
        let of_step = |step| samples.get(step).copied().unwrap_or_default();
        let most = (first..end).map(of_step).fold(0.0, f64::max);
        let busy = (first..end).filter(|&step| of_step(step) >= IDLE * most).count();
        busy as f64 / (end - first).max(1) as f64
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// How the sharing of a community is spread over the run, for the report.
pub(super) fn report(it: OverTime) -> TimeReport {
    TimeReport {
        constancy: it.constancy,
        change: it.change.map(seconds),
        from: seconds(it.from),
        to: seconds(it.to),
        busy: it.busy,
    }
}
