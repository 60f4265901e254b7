//! The task hints that identify communities, for a scheduler that matches hints.

use std::collections::{BTreeMap, BTreeSet};

use super::members::{CommunityIndex, Members, Verdict};
use super::note::Note;
use super::tally::CellIndex;
use crate::hint::MAX_HINT;

/// A community that hints identify.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Hinted {
    pub community: CommunityIndex,
    pub cell: CellIndex,
    /// The values that no thread of another community has.
    pub values: BTreeSet<u64>,
    /// Samples of its threads.
    pub samples: f64,
    /// What its threads share, or its samples if that is unknown.
    pub value: f64,
    /// All of its threads have one of the values.
    pub is_whole: bool,
}

/// The communities that hints identify, by number, and notes on values that identify none.
///
/// A scheduler matches a value completely: a value of threads of several communities identifies none of them.
pub(super) fn hinted(members: &Members) -> (Vec<Hinted>, Vec<Note>) {
    let mut of_value: BTreeMap<u64, BTreeSet<CommunityIndex>> = BTreeMap::new();
    let mut samples_of_value: BTreeMap<u64, f64> = BTreeMap::new();
    for member in &members.threads {
        if let (Some(hint), Verdict::Community(community)) = (member.hint, member.verdict) {
            of_value.entry(hint).or_default().insert(community);
            *samples_of_value.entry(hint).or_default() += member.samples;
        }
    }
    let total: f64 = members.threads.iter().map(|member| member.samples).sum();
    let mut notes = Vec::new();
    let mut tells: BTreeMap<u64, CommunityIndex> = BTreeMap::new();
    for (&hint, communities) in &of_value {
        let share = samples_of_value.get(&hint).copied().unwrap_or(0.0) / total.max(f64::MIN_POSITIVE);
        match communities.first() {
            _ if hint > MAX_HINT => notes.push(Note::HintAboveLimit { hint, share }),
            Some(&community) if communities.len() == 1 => {
                tells.insert(hint, community);
            }
            _ => notes.push(Note::HintOfSeveral { hint, communities: communities.len(), share }),
        }
    }
    let mut hinted: BTreeMap<CommunityIndex, Hinted> = BTreeMap::new();
    for member in &members.threads {
        let Verdict::Community(community) = member.verdict else { continue };
        let entry = hinted.entry(community).or_insert_with(|| Hinted {
            community,
            cell: member.cell,
            values: BTreeSet::new(),
            samples: 0.0,
            value: 0.0,
            is_whole: true,
        });
        entry.samples += member.samples;
        match member.hint.filter(|hint| tells.get(hint) == Some(&community)) {
            Some(hint) => {
                entry.values.insert(hint);
            }
            None => entry.is_whole = false,
        }
    }
    let mut hinted: Vec<Hinted> = hinted.into_values().filter(|it| !it.values.is_empty()).collect();
    for it in &mut hinted {
        let shared = members.affinity.get(it.community, it.community);
        it.value = if members.affinity.is_empty() { it.samples } else { shared };
    }
    (hinted, notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Member;
    use crate::sample::Comm;

    fn members(threads: &[(Option<u64>, Option<CommunityIndex>)]) -> Members {
        let member = |(thread, &(hint, community)): (usize, &(Option<u64>, Option<CommunityIndex>))| Member {
            thread: thread as u32,
            pid: 1,
            tid: thread as u32,
            comm: Some(Comm::from("worker")),
            hint,
            cell: 0,
            samples: 100.0,
            verdict: community.map_or(Verdict::Alone, Verdict::Community),
        };
        Members { threads: threads.iter().enumerate().map(member).collect(), ..Members::default() }
    }

    #[test]
    fn a_value_tells_one_community_or_none() {
        let (hinted, notes) = hinted(&members(&[
            (Some(1), Some(0)),
            (Some(2), Some(0)),
            (Some(3), Some(1)),
            (None, Some(1)),
            (Some(4), Some(0)),
            (Some(4), Some(1)),
            (Some(0), Some(2)),
            (Some(2000), Some(3)),
            (Some(7), None),
        ]));
        let told: Vec<_> = hinted
            .iter()
            .map(|it| (it.community, it.values.iter().copied().collect::<Vec<_>>(), it.is_whole))
            .collect();
        assert_eq!(told, [(0, vec![1, 2], false), (1, vec![3], false), (2, vec![0], true)]);
        let several = Note::HintOfSeveral { hint: 4, communities: 2, share: 2.0 / 9.0 };
        assert_eq!(notes, [several, Note::HintAboveLimit { hint: 2000, share: 1.0 / 9.0 }]);
    }

    #[test]
    fn a_community_is_worth_what_it_shares_where_that_is_known() {
        let mut members = members(&[(Some(MAX_HINT), Some(0)), (None, Some(0)), (Some(3), Some(1))]);
        let told = |members: &Members| -> Vec<(f64, f64)> {
            let (hinted, notes) = hinted(members);
            assert!(notes.is_empty(), "the largest hint is one: {notes:?}");
            hinted.iter().map(|it| (it.samples, it.value)).collect()
        };
        assert_eq!(told(&members), [(200.0, 200.0), (100.0, 100.0)]);
        members.affinity.add(0, 0, 7.0);
        assert_eq!(told(&members), [(200.0, 7.0), (100.0, 0.0)]);
    }
}
