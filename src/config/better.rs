//! The better one of two decisions, community by community: by what threads share, or by their names alone.

use std::collections::{BTreeMap, BTreeSet};

use super::cell_specs::{CellSpecs, SpecIndex};
use super::decide::{decide, Decision, DecisionOptions, NoSamples};
use super::express::spelled;
use super::members::{CommunityIndex, Member, Members, Verdict};
use super::note::Note;
use super::prefixes::base_of;
use super::tally::Tally;
use super::written::labels;
use crate::sample::Comm;

/// A smaller difference is ignored.
const CLEARLY: f64 = 0.01;
/// Communities of a cell spec that may be restored: each takes a decision.
const MAX_RESTORED: usize = 64;

/// Less than this counts as nothing.
const NOTHING: f64 = 1e-9;

/// The decision, in which communities are replaced by groups by name if that avoids more misses and puts no two
/// communities into one subcell; with the notes of either.
///
/// Each cell spec is judged by its own threads: those of another one, which may be kept apart because they are not trusted, do
/// not count. If names alone avoid clearly more of a cell spec, its communities are restored one by one, the largest first, as
/// long as that avoids no less. So only communities that gain from it are grouped by name.
///
/// `locality` gives the part of the avoidable misses of some threads that labels of all threads avoid; `None` if too few are
/// avoidable. Its first argument says of each thread whether it counts.
///
/// # Errors
/// [`NoSamples`].
pub(crate) fn better(
    specs: &CellSpecs,
    tally: &Tally,
    members: &Members,
    options: &DecisionOptions,
    locality: impl Fn(&[bool], &[u32]) -> Option<f64>,
) -> Result<Decision, NoSamples> {
    let locality = |spec: SpecIndex, labels: &[u32]| locality(&of_spec(spec, tally, members, labels.len()), labels);
    let judge = Judge { specs, tally, members, options, locality: &locality };
    let by_sharing = decide(specs, tally, members, options)?;
    let Some(ours) = labels(&by_sharing, tally, members) else { return Ok(by_sharing) };
    let (mut notes, mut named) = (Vec::new(), Named::default());
    for (at, spec) in specs.specs().iter().enumerate() {
        let Some(by_sharing) = locality(at, &ours) else { continue };
        let Some((found, by_name)) = judge.by_name(at, by_sharing)? else { continue };
        let is_whole = !found.specs.is_empty();
        let groups = if is_whole { Vec::new() } else { judge.names(&found.communities) };
        notes.push(Note::ByName { cell: spec.name.clone(), groups, by_sharing, by_name });
        named.communities.extend(found.communities);
        named.specs.extend(found.specs);
    }
    if notes.is_empty() {
        return Ok(by_sharing);
    }
    let mut decision = judge.without(&named)?;
    decision.notes.extend(notes);
    Ok(decision)
}

/// The threads of a cell spec.
fn of_spec(spec: SpecIndex, tally: &Tally, members: &Members, threads: usize) -> Vec<bool> {
    let mut is_of = vec![false; threads];
    for member in &members.threads {
        if let Some(it) = is_of.get_mut(member.thread as usize) {
            *it = tally.get(member.cell).is_some_and(|cell| cell.spec == spec);
        }
    }
    is_of
}

/// What is grouped by name.
#[derive(Debug, Clone, Default, PartialEq)]
struct Named {
    communities: BTreeSet<CommunityIndex>,
    /// Cell specs as a whole.
    specs: BTreeSet<SpecIndex>,
}

/// Judges decisions in which some communities are grouped by name.
struct Judge<'a> {
    specs: &'a CellSpecs,
    tally: &'a Tally,
    members: &'a Members,
    options: &'a DecisionOptions,
    locality: &'a dyn Fn(SpecIndex, &[u32]) -> Option<f64>,
}

impl Judge<'_> {
    /// The communities of a cell spec's threads, those with most samples first.
    fn communities(&self, spec: SpecIndex) -> Vec<CommunityIndex> {
        let mut samples: BTreeMap<CommunityIndex, f64> = BTreeMap::new();
        for member in &self.members.threads {
            let is_in = self.tally.get(member.cell).is_some_and(|cell| cell.spec == spec);
            if let (true, Verdict::Community(community)) = (is_in, member.verdict) {
                *samples.entry(community).or_default() += member.samples;
            }
        }
        let mut communities: Vec<(CommunityIndex, f64)> = samples.into_iter().collect();
        communities.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        communities.into_iter().map(|it| it.0).collect()
    }

    /// The part of a cell spec that is better grouped by name, and the misses which that avoids; `None` if there is none.
    fn by_name(&self, spec: SpecIndex, by_sharing: f64) -> Result<Option<(Named, f64)>, NoSamples> {
        let all = self.communities(spec);
        let mut named = Named { communities: all.iter().copied().collect(), specs: BTreeSet::from([spec]) };
        let mut best = loop {
            let Some(labels) = self.labels(&named)? else { return Ok(None) };
            let mixed = self.mixed(&labels, &named);
            if mixed.is_empty() {
                break (self.locality)(spec, &labels).unwrap_or_default();
            }
            named.specs.clear();
            named.communities.retain(|community| !mixed.contains(community));
            if named.communities.is_empty() {
                return Ok(None);
            }
        };
        if best <= by_sharing + CLEARLY {
            return Ok(None);
        }
        for &community in all.iter().take(MAX_RESTORED) {
            let mut fewer = Named { specs: BTreeSet::new(), ..named.clone() };
            if !fewer.communities.remove(&community) || fewer.communities.is_empty() {
                continue;
            }
            let Some(labels) = self.labels(&fewer)? else { continue };
            let with = (self.locality)(spec, &labels).unwrap_or_default();
            if with >= best - NOTHING && self.mixed(&labels, &fewer).is_empty() {
                (named, best) = (fewer, with);
            }
        }
        Ok(Some((named, best)))
    }

    /// The decision if only names are known of these.
    fn without(&self, named: &Named) -> Result<Decision, NoSamples> {
        let is_of =
            |member: &Member| matches!(member.verdict, Verdict::Community(it) if named.communities.contains(&it));
        let base = |member: &Member| member.comm.map(|comm| base_of(comm.as_bytes()).to_vec());
        let bases: BTreeSet<_> =
            self.members.threads.iter().filter(|it| is_of(it)).map(|it| (it.cell, base(it))).collect();
        let is_kept = |member: &&Member| {
            let is_whole = self.tally.get(member.cell).is_some_and(|cell| named.specs.contains(&cell.spec));
            // An unknown thread does not keep those of its name from being a class.
            let is_like =
                || matches!(member.verdict, Verdict::Unknown(_)) && bases.contains(&(member.cell, base(member)));
            !is_whole && !is_of(member) && !is_like()
        };
        let threads = self.members.threads.iter().filter(is_kept).copied().collect();
        let members = Members { threads, affinity: self.members.affinity.clone(), awake: self.members.awake };
        decide(self.specs, self.tally, &members, self.options)
    }

    /// The labels of all threads with that decision; `None` if the scheduler rejects it.
    fn labels(&self, named: &Named) -> Result<Option<Vec<u32>>, NoSamples> {
        Ok(labels(&self.without(named)?, self.tally, self.members))
    }

    /// The communities of those that have a label in common with another one.
    fn mixed(&self, labels: &[u32], named: &Named) -> BTreeSet<CommunityIndex> {
        let mut of_label: BTreeMap<u32, BTreeSet<CommunityIndex>> = BTreeMap::new();
        for member in &self.members.threads {
            if let (Verdict::Community(community), Some(&label)) = (member.verdict, labels.get(member.thread as usize))
            {
                of_label.entry(label).or_default().insert(community);
            }
        }
        let mixed = of_label.into_values().filter(|communities| communities.len() > 1).flatten();
        mixed.filter(|community| named.communities.contains(community)).collect()
    }

    /// The names of each community's threads, for people.
    fn names(&self, communities: &BTreeSet<CommunityIndex>) -> Vec<String> {
        let mut names: BTreeMap<CommunityIndex, BTreeSet<Comm>> =
            communities.iter().map(|it| (*it, BTreeSet::new())).collect();
        for member in &self.members.threads {
            if let (Verdict::Community(community), Some(comm)) = (member.verdict, member.comm) {
                if let Some(names) = names.get_mut(&community) {
                    names.insert(comm);
                }
            }
        }
        names.values().map(|names| spelled(names.iter())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CellOptions;

    /// The notes of the decision for threads with these names and communities, where names avoid more.
    fn notes(threads: &[(&str, u32)]) -> Vec<String> {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let (mut tally, mut members) = (Tally::default(), Members::default());
        let cell = tally.cell(specs.assign(b"/"));
        for (&(name, community), thread) in threads.iter().zip(0..) {
            let (comm, verdict) = (Some(Comm::from(name)), Verdict::Community(community));
            tally.add(cell, comm, 100.0);
            let member = Member { thread, pid: 1, tid: thread, comm, hint: None, cell, samples: 100.0, verdict };
            members.threads.push(member);
        }
        let calls = std::cell::Cell::new(0);
        let locality = |of: &[bool], labels: &[u32]| {
            assert_eq!((labels.len(), of.len()), (threads.len(), threads.len()));
            // The first is by sharing, and the next by names; all threads are in the last cell spec.
            of.iter().all(|is_of| *is_of).then(|| {
                calls.set(calls.get() + 1);
                [0.2, 0.9].get(calls.get() - 1).copied().unwrap_or(0.3)
            })
        };
        let decision = better(&specs, &tally, &members, &DecisionOptions::new(0.05, 64), locality).unwrap();
        decision.notes.iter().map(ToString::to_string).filter(|note| note.contains("grouped by name")).collect()
    }

    #[test]
    fn names_decide_where_they_avoid_more_and_mix_no_communities() {
        let found = notes(&[("web", 0), ("web", 0), ("db", 1), ("db", 1)]);
        assert!(found.iter().any(|note| note.starts_with("rest: ") && note.contains("90% of the")), "{found:?}");
        assert_eq!(notes(&[("web", 0), ("web", 1), ("web", 0), ("web", 1)]), Vec::<String>::new());
    }

    #[test]
    fn a_community_for_which_names_avoid_no_more_is_kept() {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let (mut tally, mut members) = (Tally::default(), Members::default());
        let cell = tally.cell(specs.assign(b"/"));
        // The name "b" is of a thread of a community and of one beside it: a prefix for "b" would take "b2" as well.
        let of = [("a", Some(0)), ("b", Some(0)), ("b2", None), ("web", Some(1)), ("db", Some(1))];
        for ((name, community), thread) in of.into_iter().zip(0..) {
            let (comm, verdict) = (Some(Comm::from(name)), community.map_or(Verdict::Alone, Verdict::Community));
            tally.add(cell, comm, 100.0);
            let member = Member { thread, pid: 1, tid: thread, comm, hint: None, cell, samples: 100.0, verdict };
            members.threads.push(member);
        }
        // What is avoided by each pair that is together.
        let locality = |of: &[bool], labels: &[u32]| {
            let pairs = [(0, 1, 0.05), (1, 2, 0.5), (3, 4, 0.2)];
            let kept = pairs.iter().filter(|(a, b, _)| labels[*a] == labels[*b]);
            of.iter().all(|is_of| *is_of).then(|| kept.map(|it| it.2).sum())
        };
        let decision = better(&specs, &tally, &members, &DecisionOptions::new(0.05, 64), locality).unwrap();
        let names: Vec<&str> = decision.cells[0].subcells.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["db+web", "b", "a", "rest"]);
        let notes: Vec<String> = decision.notes.iter().map(ToString::to_string).collect();
        let note = "rest: grouping by name avoids 70% of the avoidable misses and grouping by shared memory 25%, so these threads \
                    are grouped by name: a, b";
        assert!(notes.iter().any(|it| it == note), "{notes:?}");
    }
}
