//! Orders the subcells of a cell and gives each its prefixes, so that the first subcell that matches a thread is the right one.

use std::collections::{BTreeMap, BTreeSet};

use super::prefixes::{base_of, cover, Cover};
use crate::sample::Comm;

/// Threads that should get one subcell, by their names.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Unit {
    /// The names and their weights, sorted; no other unit has one of them.
    pub names: Vec<(Comm, f64)>,
    /// Threads of each name if they share memory; empty for a class.
    pub threads: BTreeMap<Comm, usize>,
}

impl Unit {
    /// True for threads that share memory: a part of them is better than none, and unknown threads may be taken too.
    fn is_community(&self) -> bool {
        !self.threads.is_empty()
    }
}

/// Where the threads belong whose name no unit has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Other {
    /// Its threads belong elsewhere.
    Elsewhere,
    /// Unknown.
    Unknown,
}

/// A unit with a place.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Assignment {
    /// The index of the unit.
    pub unit: usize,
    pub prefixes: Vec<String>,
    /// Its names that the prefixes do not take.
    pub left_out: Vec<Comm>,
    /// Names of unknown threads that the prefixes take as well.
    pub taken_along: Vec<Comm>,
}

/// A unit without a place, with a name that its prefixes would take as well; `None` if no part of its name is UTF-8.
pub(super) type Unplaced = (usize, Option<Comm>);

/// The places in the scheduler's order, and the units without one.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Assignments {
    pub assigned: Vec<Assignment>,
    pub refused: Vec<Unplaced>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// A unit that has no place, or none yet.
    Waiting(usize),
    /// A unit with a place: prefixes of later units may take the name.
    Assigned,
    Elsewhere,
    Unknown,
}

/// The owner of each name, sorted by name.
struct Owners(Vec<(Comm, Owner)>);

impl Owners {
    /// The names with this prefix, with their owners.
    fn with(&self, prefix: &str) -> impl Iterator<Item = (Comm, Owner)> + '_ {
        let prefix = prefix.as_bytes().to_vec();
        let begin = self.0.partition_point(|(name, _)| name.as_bytes() < prefix.as_slice());
        let names = self.0.get(begin..).unwrap_or_default().iter().copied();
        names.take_while(move |(name, _)| name.as_bytes().starts_with(&prefix))
    }

    fn set(&mut self, name: Comm, owner: Owner) {
        if let Ok(at) = self.0.binary_search_by_key(&name, |it| it.0) {
            if let Some(entry) = self.0.get_mut(at) {
                entry.1 = owner;
            }
        }
    }

    /// The prefixes of a unit if it were next. `lenient` takes names of unknown threads; those of its own families are always
    /// taken, because they differ only in a number.
    fn cover(&self, index: usize, unit: &Unit, lenient: bool) -> Cover {
        let bases: BTreeSet<&[u8]> = unit.names.iter().map(|(name, _)| base_of(name.as_bytes())).collect();
        cover(&unit.names, |prefix| {
            self.with(prefix).all(|(name, owner)| match owner {
                Owner::Waiting(other) => other == index,
                Owner::Assigned => true,
                Owner::Elsewhere => false,
                Owner::Unknown => lenient || bases.contains(base_of(name.as_bytes())),
            })
        })
    }

    /// A name that gets in the way of a unit.
    fn in_the_way(&self, index: usize, unit: &Unit) -> Option<Comm> {
        let foreign = |owner: Owner| !matches!(owner, Owner::Assigned) && owner != Owner::Waiting(index);
        let texts = unit.names.iter().map(|(name, _)| name.utf8_prefix());
        let bases = unit.names.iter().filter_map(|(name, _)| std::str::from_utf8(base_of(name.as_bytes())).ok());
        texts
            .chain(bases)
            .filter(|text| !text.is_empty())
            .find_map(|text| self.with(text).find(|it| foreign(it.1)).map(|it| it.0))
    }

    fn assign(&mut self, index: usize, unit: &Unit, cover: Cover) -> Assignment {
        let Cover { prefixes, left_out } = cover;
        for (name, _) in &unit.names {
            self.set(*name, if left_out.contains(name) { Owner::Elsewhere } else { Owner::Assigned });
        }
        let unknown = |prefix: &String| {
            self.with(prefix).filter(|(_, owner)| *owner == Owner::Unknown).map(|it| it.0).collect::<Vec<_>>()
        };
        let taken_along: Vec<Comm> = prefixes.iter().flat_map(unknown).collect();
        for name in &taken_along {
            self.set(*name, Owner::Assigned);
        }
        Assignment { unit: index, prefixes, left_out, taken_along }
    }
}

/// Places the units, which are sorted with the most valuable first and communities before classes; names in `others` that a
/// unit also has are ignored.
///
/// The next unit is one that can be described without a name of the units still to be placed; of several, the one with the
/// longest prefix. So "webserver" comes before "web", and no choice spoils a later one, because a placed unit's names get in no
/// unit's way. If there is none, the most valuable community takes unknown threads along, or is described in part. If there is
/// no community, all remaining units are refused, the least valuable first.
pub(super) fn assign(units: &[Unit], others: impl Iterator<Item = (Comm, Other)>) -> Assignments {
    let mut owners: Vec<(Comm, Owner)> = units
        .iter()
        .enumerate()
        .flat_map(|(index, unit)| unit.names.iter().map(move |(name, _)| (*name, Owner::Waiting(index))))
        .collect();
    owners.extend(others.map(|(name, other)| match other {
        Other::Elsewhere => (name, Owner::Elsewhere),
        Other::Unknown => (name, Owner::Unknown),
    }));
    owners.sort_by_key(|it| it.0);
    // A unit's names belong to it, whatever `others` says; and known names belong elsewhere.
    owners.dedup_by_key(|it| it.0);
    let mut owners = Owners(owners);
    let mut assignments = Assignments::default();
    let mut waiting: Vec<usize> = (0..units.len()).collect();
    loop {
        let found = next(&owners, units, &waiting, false).or_else(|| next(&owners, units, &waiting, true));
        let Some((index, cover)) = found.or_else(|| in_part(&owners, units, &waiting)) else { break };
        waiting.retain(|&it| it != index);
        if let Some(unit) = units.get(index) {
            assignments.assigned.push(owners.assign(index, unit, cover));
        }
    }
    let refused = waiting.into_iter().rev().filter_map(|index| Some((index, units.get(index)?)));
    assignments.refused = refused.map(|(index, unit)| (index, owners.in_the_way(index, unit))).collect();
    assignments
}

/// The next unit, with all of its names described. Only communities are lenient, and the first possible one is taken.
fn next(owners: &Owners, units: &[Unit], waiting: &[usize], lenient: bool) -> Option<(usize, Cover)> {
    let mut best: Option<(usize, usize, Cover)> = None;
    for &index in waiting {
        let unit = units.get(index)?;
        if lenient && !unit.is_community() {
            continue;
        }
        let cover = owners.cover(index, unit, lenient);
        let longest = cover.prefixes.iter().map(String::len).max().unwrap_or(0);
        if cover.left_out.is_empty() && longest > 0 && best.as_ref().is_none_or(|best| longest > best.0) {
            best = Some((longest, index, cover));
            if lenient {
                break;
            }
        }
    }
    best.map(|(_, index, cover)| (index, cover))
}

/// The most valuable community with at least two threads that can be described.
fn in_part(owners: &Owners, units: &[Unit], waiting: &[usize]) -> Option<(usize, Cover)> {
    waiting.iter().find_map(|&index| {
        let unit = units.get(index).filter(|unit| unit.is_community())?;
        let cover = owners.cover(index, unit, true);
        let left_out = |name: &Comm| cover.left_out.contains(name);
        let threads: usize = unit.threads.iter().filter(|(name, _)| !left_out(name)).map(|it| it.1).sum();
        (threads > 1).then_some((index, cover))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::consumer::subcell_of;
    use crate::config::Subcell;

    fn unit(names: &[&[u8]]) -> Unit {
        let mut names: Vec<_> = names.iter().map(|name| (Comm::new(name), 10.0)).collect();
        names.sort_by_key(|it| it.0);
        Unit { names, threads: BTreeMap::new() }
    }

    fn community(names: &[&[u8]]) -> Unit {
        let threads = names.iter().map(|name| (Comm::new(name), 1)).collect();
        Unit { threads, ..unit(names) }
    }

    /// Names by family, as for classes.
    fn classes(names: &[&[u8]]) -> Vec<Unit> {
        let mut bases: BTreeMap<&[u8], Vec<&[u8]>> = BTreeMap::new();
        for name in names {
            bases.entry(base_of(name)).or_default().push(name);
        }
        bases.values().map(|names| unit(names)).collect()
    }

    fn elsewhere(names: &[&[u8]]) -> Vec<(Comm, Other)> {
        names.iter().map(|name| (Comm::new(name), Other::Elsewhere)).collect()
    }

    /// The prefixes in order, and for refused units the name in the way.
    fn described(names: &[&[u8]], small: &[&[u8]]) -> (Vec<Vec<String>>, Vec<Option<Comm>>) {
        let assignments = assign(&classes(names), elsewhere(small).into_iter());
        let refused = assignments.refused.into_iter().map(|it| it.1).collect();
        (assignments.assigned.into_iter().map(|place| place.prefixes).collect(), refused)
    }

    fn prefixes(names: &[&[u8]], small: &[&[u8]]) -> Vec<Vec<String>> {
        described(names, small).0
    }

    #[test]
    fn upstream_bug_14_the_longer_prefix_stands_first() {
        assert_eq!(prefixes(&[b"web", b"webserver"], &[]), [["webserver"], ["web"]]);
    }

    #[test]
    fn upstream_bug_14_a_small_class_is_not_taken_either() {
        assert_eq!(described(&[b"web"], &[b"webserver"]), (vec![], vec![Some("webserver".into())]));
    }

    #[test]
    fn upstream_bug_14_a_number_cut_off_takes_no_others() {
        assert_eq!(prefixes(&[b"a1", b"a2"], &[]), [["a"]]);
        assert_eq!(prefixes(&[b"a1", b"a2"], &[b"apache", b"awk", b"agent"]), [["a1", "a2"]]);
        let workers: Vec<&[u8]> = vec![b"w0", b"w1", b"w2", b"w3", b"w4", b"w5"];
        assert_eq!(prefixes(&workers, &[]), [["w"]]);
        // Six first digits exceed the four alternatives of a subcell, and half a class is useless.
        assert_eq!(described(&workers, &[b"watchdog"]), (vec![], vec![Some("watchdog".into())]));
        assert_eq!(prefixes(&[b"w10", b"w11", b"w23", b"w2"], &[b"watchdog"]), [["w1", "w2"]]);
    }

    #[test]
    fn upstream_bug_14_a_lone_number_stands_for_its_like() {
        assert_eq!(prefixes(&[b"web1"], &[]), [["web"]]);
        assert_eq!(prefixes(&[b"web1", b"web10"], &[]), [["web"]]);
        assert_eq!(prefixes(&[b"web1"], &[b"webserver"]), [["web1"]]);
        assert_eq!(prefixes(&[b"x264"], &[]), [["x264"]]);
    }

    #[test]
    fn names_of_digits_only_are_names() {
        assert_eq!(prefixes(&[b"1", b"10"], &[]), [["10"], ["1"]]);
        assert_eq!(described(&[b"1"], &[b"10"]), (vec![], vec![Some("10".into())]));
        assert_eq!(prefixes(&[b":1234"], &[]), [[":1234"]]);
    }

    #[test]
    fn a_name_that_is_no_utf8_is_matched_by_its_utf8_part() {
        assert_eq!(prefixes(&[b"caf\xc3"], &[]), [["caf"]]);
        assert_eq!(described(&[b"caf\xc3"], &[b"cafe"]), (vec![], vec![Some("cafe".into())]));
        assert_eq!(described(&[b"caf\xc3", b"caf\xff"], &[]).1.len(), 2);
        assert_eq!(described(&[b"\xff", b""], &[]), (vec![], vec![None, None]));
        // A number after such a byte folds too, and its digits cannot distinguish names.
        assert_eq!(prefixes(&[b"x\xff1", b"x\xff2"], &[]), [["x"]]);
        assert_eq!(described(&[b"x\xff1", b"x\xff2"], &[b"xy"]).1, [Some("xy".into())]);
    }

    #[test]
    fn two_halves_of_a_pool_are_told_apart() {
        let units = [community(&[b"pool-1", b"pool-2"]), community(&[b"pool-3", b"pool-4"])];
        let placed: Vec<_> = assign(&units, std::iter::empty()).assigned.into_iter().map(|it| it.prefixes).collect();
        // The second to be placed may fold, because the ones before it already have their subcells.
        assert_eq!(placed, [vec!["pool-1", "pool-2"], vec!["pool-"]]);
        let units = [community(&[b"pool-1", b"pool-2"]), community(&[b"pool-10", b"pool-11"])];
        let placed: Vec<_> = assign(&units, std::iter::empty()).assigned.into_iter().map(|it| it.prefixes).collect();
        assert_eq!(placed, [vec!["pool-10", "pool-11"], vec!["pool-"]]);
    }

    #[test]
    fn unknown_threads_are_in_the_way_only_where_it_can_be_helped() {
        let unknown = |names: &[&[u8]]| names.iter().map(|it| (Comm::new(it), Other::Unknown)).collect::<Vec<_>>();
        let placed = |units: &[Unit], others: &[&[u8]]| assign(units, unknown(others).into_iter());
        let lone = placed(&[community(&[b"db", b"web1"])], &[b"webx", b"web2"]);
        assert_eq!(lone.assigned[0].prefixes, ["db", "web1"], "lengthened");
        let with = placed(&[community(&[b"db", b"web"])], &[b"webx"]);
        assert_eq!((with.assigned[0].prefixes.len(), &with.assigned[0].taken_along[..]), (2, &["webx".into()][..]));
        assert_eq!(
            placed(&[unit(&[b"web"])], &[b"webx"]).refused,
            [(0, Some("webx".into()))],
            "a class shares nothing"
        );
        // Names that differ only in a number are taken in any case.
        let pool = placed(&[community(&[b"pool-1", b"pool-2"])], &[b"pool-3"]);
        assert_eq!(
            (&pool.assigned[0].prefixes[..], &pool.assigned[0].taken_along[..]),
            (&["pool-".to_owned()][..], &["pool-3".into()][..])
        );
        // Names taken along no longer get in the way.
        let both = placed(&[community(&[b"db", b"web"]), unit(&[b"we"])], &[b"webx"]);
        assert_eq!(both.assigned.iter().map(|it| &it.prefixes[..]).collect::<Vec<_>>(), [&["db", "web"][..], &["we"]]);
        // The most valuable first, and not the one with the longest prefix.
        let two = placed(&[community(&[b"db", b"web"]), community(&[b"log", b"server"])], &[b"webx", b"serverx"]);
        assert_eq!(two.assigned.iter().map(|it| it.unit).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn a_part_of_a_community_is_better_than_none() {
        let assignments = assign(&[community(&[b"web", b"db", b"log"])], elsewhere(&[b"webserver"]).into_iter());
        assert_eq!(assignments.assigned[0].prefixes, ["db", "log"]);
        assert_eq!(assignments.assigned[0].left_out, ["web".into()]);
        // Unknown threads go along with a part too.
        let others = elsewhere(&[b"webserver"]).into_iter().chain([("dbx".into(), Other::Unknown)]);
        let assignments = assign(&[community(&[b"web", b"db", b"log"])], others);
        assert_eq!(assignments.assigned[0].taken_along, ["dbx".into()]);
        // Names that it left out are not free for others.
        let units = [community(&[b"web", b"db", b"log"]), unit(&[b"we"])];
        let assignments = assign(&units, elsewhere(&[b"webserver"]).into_iter());
        assert_eq!((assignments.assigned.len(), &assignments.refused[..]), (1, &[(1, Some("web".into()))][..]));
        // A placed unit is not reported as getting in the way either.
        let assignments = assign(&[unit(&[b"web"]), unit(&[b"we"])], elsewhere(&[b"wex"]).into_iter());
        assert_eq!(assignments.refused, [(1, Some("wex".into()))]);
        let assignments = assign(&[community(&[b"web", b"db"])], elsewhere(&[b"webserver"]).into_iter());
        assert_eq!(assignments.refused, [(0, Some("webserver".into()))], "one thread is no community");
    }

    /// True if some order of the units, each with its whole names as prefixes, takes every name to its unit.
    fn is_possible(units: &[&Unit]) -> bool {
        let takes = |unit: &Unit, name: &Comm| unit.names.iter().any(|it| name.as_bytes().starts_with(it.0.as_bytes()));
        let is_free = |at: usize| {
            let others = units.iter().enumerate().filter(|it| it.0 != at).flat_map(|it| &it.1.names);
            others.map(|it| &it.0).all(|name| !units.get(at).is_some_and(|unit| takes(unit, name)))
        };
        units.len() < 2
            || (0..units.len()).any(|at| {
                let rest: Vec<&Unit> = units.iter().enumerate().filter(|it| it.0 != at).map(|it| *it.1).collect();
                is_free(at) && is_possible(&rest)
            })
    }

    /// The unit to whose subcell the scheduler sends a name.
    fn taker(assignments: &Assignments, name: &Comm) -> Option<usize> {
        let subcell = |it: &Assignment| Subcell {
            name: it.unit.to_string(),
            matches: it.prefixes.iter().map(|prefix| vec![prefix.clone()]).collect(),
            hints: Vec::new(),
        };
        let subcells: Vec<Subcell> = assignments.assigned.iter().map(subcell).collect();
        assignments.assigned.get(subcell_of(&subcells, name.as_bytes())?).map(|it| it.unit)
    }

    /// Communities of the names, by the group of each.
    fn communities(names: &[Vec<u8>], groups: &[usize]) -> Vec<Unit> {
        let of = |group: usize| {
            let own = names.iter().zip(groups).filter(|it| *it.1 == group).map(|it| it.0.as_slice());
            community(&own.collect::<Vec<_>>())
        };
        (0..3).map(of).filter(|unit| !unit.names.is_empty()).collect()
    }

    #[test]
    fn names_that_begin_with_each_other_are_told_apart_if_an_order_can() {
        let names: Vec<Vec<u8>> = ["a", "ab", "abc", "abcd"].iter().map(|it| it.as_bytes().to_vec()).collect();
        let mut possible = 0;
        for groups in 0..16_usize {
            let units = communities(&names, &[0, 1, 2, 3].map(|at| groups >> at & 1));
            let assignments = assign(&units, std::iter::empty());
            if !is_possible(&units.iter().collect::<Vec<_>>()) {
                continue;
            }
            possible += 1;
            for (at, unit) in units.iter().enumerate() {
                assert!(
                    unit.names.iter().all(|it| taker(&assignments, &it.0) == Some(at)),
                    "{units:?} {assignments:?}"
                );
            }
        }
        // All in one, or those from one length on: no prefix takes a short name and not the longer ones.
        assert_eq!(possible, 2 + 6);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn whatever_order_can_tell_apart_is_told_apart(
            names in prop::collection::btree_set("[ab]{1,5}".prop_map(String::into_bytes), 2..9),
            groups in prop::collection::vec(0..3_usize, 9),
        ) {
            let names: Vec<Vec<u8>> = names.into_iter().collect();
            let units = communities(&names, &groups);
            // The number of prefixes of a subcell is limited.
            prop_assume!(units.iter().all(|unit| unit.names.len() <= crate::config::mitosis::MAX_ORS));
            prop_assume!(is_possible(&units.iter().collect::<Vec<_>>()));
            let assignments = assign(&units, std::iter::empty());
            for (at, unit) in units.iter().enumerate() {
                for (name, _) in &unit.names {
                    prop_assert_eq!(taker(&assignments, name), Some(at), "{} {:?}", name, assignments);
                }
            }
        }
    }
}
