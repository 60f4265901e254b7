//! Subcells that fit the caches: of fixed cases, and what always holds.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::aligned_cell::AlignedCell;
use super::consumer::{subcell_of, Consumer};
use super::fit::{find, Found};
use super::{mitosis, Cell, CellOptions, CellSpecs, DecisionOptions, Member, Members, Note, Tally, Verdict};
use crate::sample::caches::Caches;
use crate::sample::Comm;

/// A thread: its cgroup, its name, its samples, and its community.
type Thread = (&'static str, String, u32, Option<u32>);

struct Case {
    specs: CellSpecs,
    tally: Tally,
    members: Members,
}

impl Case {
    fn new(threads: &[Thread]) -> Self {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let (mut tally, mut members) = (Tally::default(), Members::default());
        for ((cgroup, name, samples, community), thread) in threads.iter().zip(0..) {
            let (cell, comm) = (tally.cell(specs.assign(cgroup.as_bytes())), Some(Comm::from(name.as_str())));
            let samples = f64::from(*samples);
            tally.add(cell, comm, samples);
            let verdict = community.map_or(Verdict::Alone, Verdict::Community);
            members.threads.push(Member { thread, pid: 1, tid: thread, comm, hint: None, cell, samples, verdict });
        }
        Self { specs, tally, members }
    }

    fn find(&self, target_cpus: usize, caches: Option<Caches>) -> Found {
        let options = DecisionOptions { caches, ..DecisionOptions::new(0.05, target_cpus) };
        find(&self.specs, &self.tally, &self.members, &options, |_, _| None).unwrap()
    }
}

/// The given number of groups with the given number of busy threads each, in a cgroup.
fn groups(cgroup: &'static str, groups: u32, threads: u32) -> Vec<Thread> {
    let name = |group: u32| char::from(b'a' + group as u8);
    let thread = |group: u32| (cgroup, format!("{0}{0}{0}", name(group)), 100, Some(group));
    (0..groups).flat_map(|group| (0..threads).map(move |_| thread(group))).collect()
}

/// The subcells of the last cell, as `found` has them for this host.
fn subcells(threads: &[Thread], cpus: usize, caches: Caches) -> Vec<String> {
    let found = Case::new(threads).find(cpus, Some(caches));
    found.configuration.cells.last().unwrap().subcells.iter().map(|it| it.name.clone()).collect()
}

const fn caches(count: u32) -> Caches {
    Caches::side_by_side(count)
}

#[test]
fn there_are_as_many_subcells_as_fit_the_caches() {
    let count = |groups_: u32, threads: u32, cpus, of| subcells(&groups("/", groups_, threads), cpus, of).len();
    // Of three subcells on eight CPUs, one would be on both caches.
    assert_eq!(count(2, 4, 8, caches(2)), 2);
    // With a CPU each, threads run on lent CPUs of the other cache.
    assert_eq!(count(7, 2, 8, caches(2)), 2);
    assert_eq!(count(4, 4, 16, caches(4)), 4);
    // With SMT, two subcells would each be on both caches.
    assert_eq!(count(4, 8, 32, Caches { count: 2, turns: 2 }), 4);
    // Each of these has its own cache already, or all have the same.
    assert_eq!(count(3, 8, 32, caches(4)), 4);
    assert_eq!(count(2, 4, 8, caches(1)), 3);
    // A host of one CPU has no place for two.
    assert_eq!(count(2, 4, 1, caches(2)), 0);
    assert_eq!(count(2, 4, 8, Caches { count: 1024, turns: 64 }), 3);
}

#[test]
fn subcells_without_threads_make_the_others_as_small_as_a_cache() {
    // Of three subcells on 16 CPUs two would be on two caches each, and of two both.
    assert_eq!(subcells(&groups("/", 2, 4), 16, caches(4)), ["aaa", "bbb", "spare", "rest"]);
    assert_eq!(subcells(&groups("/", 1, 4), 16, caches(4)), ["aaa", "spare", "spare-2", "rest"]);
    assert_eq!(subcells(&groups("/", 1, 4), 16, Caches { count: 2, turns: 2 }), ["aaa", "spare", "spare-2", "rest"]);
    // Where a group has too many threads for one cache, smaller subcells are of no use.
    assert_eq!(subcells(&groups("/", 1, 16), 16, caches(2)).len(), 2);
    // Twelve caches: eight subcells are on one and a half each, six on two.
    assert_eq!(subcells(&groups("/", 2, 4), 192, caches(12)).len(), 8);
    let case = Case::new(&groups("/", 2, 4));
    let found = case.find(16, Some(caches(4)));
    let cell = &found.configuration.cells[0];
    assert_eq!(cell.subcells[2].matches, [["no-such-thread1"]]);
    assert_eq!(found.configuration.bases[0].iter().map(|it| it.communities.len()).collect::<Vec<_>>(), [1, 1, 0, 0]);
    let taken: Vec<_> = found.taken_by[0].iter().flatten().map(String::as_str).collect();
    assert_eq!(taken, ["rest/aaa", "rest/bbb", "rest/rest"]);
    let notes: Vec<String> = found.configuration.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        ["rest: 4 subcells fit the host's 4 last-level caches better than 3: \"aaa\" in \"aaa\"; \"bbb\" in \"bbb\"; no group in \
          \"rest\"; one without threads, which lends its CPUs (by the order in which scx_mitosis gives out CPUs, 100% of what they share stays \
          in one cache, instead of 60%; --target-llcs 1 ignores the caches)"]
    );
    // No thread has the name of that empty subcell, so none is sent there.
    let mut threads = groups("/", 2, 4);
    threads.extend((0..4).map(|_| ("/", "no-such-thread1".to_owned(), 100, None)));
    assert!(!subcells(&threads, 16, caches(4)).contains(&"spare".to_owned()));
}

#[test]
fn places_are_equally_busy() {
    let mut threads = groups("/", 3, 4);
    threads.extend(groups("/", 1, 1).into_iter().map(|it| ("/", "log".to_owned(), 100, it.3.and(None))));
    let found = Case::new(&threads).find(8, Some(caches(2)));
    // Threads that share with no other thread are in "rest", so "rest" has one group and the other place two.
    assert_eq!(subcells(&threads, 8, caches(2)), ["bbb+ccc", "rest"]);
    let taken: Vec<_> = found.taken_by[0].iter().flatten().map(String::as_str).collect();
    assert_eq!(taken, ["rest/rest", "rest/bbb+ccc", "rest/bbb+ccc", "rest/rest", "rest/rest"]);
    let notes: Vec<String> = found.configuration.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        ["rest: 2 subcells fit the host's 2 last-level caches better than 5: \"bbb\", \"ccc\" in \"bbb+ccc\"; \"aaa\", \"log\" in \
          \"rest\" (by the order in which scx_mitosis gives out CPUs, 100% of what they share stays in one cache, instead of 72%; \
          --target-llcs 1 ignores the caches)"]
    );
    // Threads in one place have one label, and so have those of the catch-all in its cache.
    let labels = found.labels.unwrap();
    assert!(labels[4..12].iter().all(|it| *it == labels[4]), "{labels:?}");
    assert!(labels[..4].iter().all(|it| *it == labels[12]) && labels[4] != labels[12], "{labels:?}");
}

#[test]
fn a_name_that_begins_another_one_is_kept_out_of_its_place() {
    let thread = |name: &str, community| ("/", name.to_owned(), 100, Some(community));
    let threads: Vec<Thread> = [("webserver", 0), ("web", 1), ("db", 2)]
        .into_iter()
        .flat_map(|(name, community)| (0..4).map(move |_| thread(name, community)))
        .collect();
    let case = Case::new(&threads);
    let found = case.find(8, Some(caches(2)));
    let cell = &found.configuration.cells[0];
    assert_eq!(cell.subcells.len(), 2);
    // "web" in a place of its own would take "webserver" from the catch-all.
    let named: Vec<_> = cell.subcells[0].matches.iter().flatten().map(String::as_str).collect();
    assert!(!named.contains(&"web") || named == ["web"] && found.taken_by[0][0] == found.taken_by[0][1], "{named:?}");
    let kept = found.configuration.notes.iter().find_map(|note| match note {
        Note::Aligned(it) => Some(it.kept),
        _ => None,
    });
    assert!(kept.is_some_and(|[_, after]| after > 0.99), "{kept:?}");
}

#[test]
fn a_place_stands_after_those_whose_names_it_would_take() {
    let thread = |(name, community, count): (&'static str, u32, u32)| {
        (0..count).map(move |_| ("/", name.to_owned(), 100, Some(community)))
    };
    let groups = [("longest-name", 0, 2), ("web", 1, 3), ("webserver", 2, 5), ("db", 3, 4)];
    let mut case = Case::new(&groups.into_iter().flat_map(thread).collect::<Vec<_>>());
    // "longest-name" is the first, and shares with "web", which stands after "webserver".
    for (a, b) in [(0, 0), (1, 1), (2, 2), (3, 3), (0, 1)] {
        case.members.affinity.add(a, b, 100.0);
    }
    // "db", with the fewest busy threads, is in the catch-all.
    let found = case.find(15, Some(caches(3)));
    let names: Vec<&str> = found.configuration.cells[0].subcells.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["webserver", "longest-name+web", "rest"]);
}

#[test]
fn a_prefix_that_begins_another_one_of_its_place_is_enough() {
    let thread = |(name, community, count): (&'static str, u32, u32)| {
        (0..count).map(move |_| ("/", name.to_owned(), 100, Some(community)))
    };
    let groups = [("webserver", 0, 2), ("web", 1, 3), ("db", 2, 4)];
    let mut case = Case::new(&groups.into_iter().flat_map(thread).collect::<Vec<_>>());
    for (a, b) in [(0, 0), (1, 1), (2, 2), (0, 1)] {
        case.members.affinity.add(a, b, 100.0);
    }
    let subcells = &case.find(10, Some(caches(2))).configuration.cells[0].subcells;
    assert_eq!(subcells.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["web", "rest"]);
}

#[test]
fn what_the_host_has_no_cpus_for_is_in_a_place_and_nothing_else_is_said_of_it() {
    let mut case = Case::new(&groups("/", 4, 2));
    for a in 0..4 {
        case.members.affinity.add(a, a, 100.0);
    }
    case.members.affinity.add(0, 1, 90.0);
    let said = |case: &Case, caches: Option<Caches>| {
        let found = case.find(4, caches);
        let notes: Vec<&'static str> = found.configuration.notes.iter().map(kind).collect();
        (found.configuration.cells[0].subcells.len(), notes)
    };
    assert_eq!(said(&case, None), (4, vec!["merged"]));
    assert_eq!(said(&case, Some(caches(2))), (2, vec!["aligned"]));
    // Cells for which there are no CPUs: their groups are laid out in the cell that takes them.
    let mut threads = groups("/", 2, 4);
    for at in 0..16 {
        let cgroup = format!("/workload.slice/workload-tw-{at}.allotment.slice").leak();
        let of_group = (at < 2).then_some((["ccc", "ddd"][at % 2], 100, Some(2 + at as u32)));
        let (name, samples, community) = of_group.unwrap_or(("idle", 1, None));
        threads.extend((0..4).map(|_| (&*cgroup, name.to_owned(), samples, community)));
    }
    let found = Case::new(&threads).find(16, Some(caches(4)));
    let count = |cell: &Cell| (cell.name.clone(), cell.subcells.len());
    let counts: Vec<_> = found.configuration.cells.iter().map(count).collect();
    assert_eq!(counts, [("workload.slice".to_owned(), 2), ("rest".to_owned(), 2)]);
    let places: BTreeSet<&String> = found.taken_by.iter().flatten().flatten().collect();
    assert_eq!(places.iter().filter(|it| it.starts_with("workload.slice/")).count(), 2, "{places:?}");
}

fn kind(note: &Note) -> &'static str {
    match note {
        Note::Aligned(_) => "aligned",
        Note::Merged { .. } => "merged",
        Note::LeftOutOfHost { .. } => "left out",
        _ => "other",
    }
}

#[test]
fn each_place_has_as_many_names_as_a_subcell_takes() {
    // Five names each: only the catch-all can have two groups, or all of one.
    let threads: Vec<Thread> = (0..3u8)
        .flat_map(|group| (0..4u8).map(move |name| (group, name)))
        .map(|(group, name)| {
            ("/", format!("{}{}x", char::from(b'a' + group), char::from(b'p' + name)), 100, Some(group.into()))
        })
        .collect();
    let found = Case::new(&threads).find(8, Some(caches(2)));
    let subcells = &found.configuration.cells[0].subcells;
    assert_eq!(subcells.iter().map(|it| it.matches.len()).collect::<Vec<_>>(), [4, 1]);
    assert_eq!(found.taken_by[0].iter().flatten().filter(|it| *it == "rest/rest").count(), 3, "{:?}", found.taken_by);
}

/// Threads of these names that all share the same, the given number of each.
fn one_group(names: &[&'static str], threads: u32) -> Vec<Thread> {
    names.iter().flat_map(|name| (0..threads).map(move |_| ("/", (*name).to_owned(), 100, Some(0)))).collect()
}

#[test]
fn a_group_with_more_threads_than_a_cache_has_cpus_is_divided() {
    // Six threads in a subcell of four CPUs: two of them would always run on lent CPUs of the other cache.
    let threads = one_group(&["aaa", "bbb", "ccc"], 2);
    let found = Case::new(&threads).find(8, Some(caches(2)));
    assert_eq!(subcells(&threads, 8, caches(2)), ["bbb+ccc", "rest"]);
    let cell = &found.configuration.cells[0];
    assert_eq!(cell.subcells[0].matches, [["bbb"], ["ccc"]]);
    assert_eq!(found.configuration.bases[0].iter().map(|it| it.communities.len()).collect::<Vec<_>>(), [1, 1]);
    // Of 600 samples, which stand for what the group shares: the parts' own, and what they share in one place.
    let values: Vec<f64> = found.configuration.bases[0].iter().map(|it| it.value.round()).collect();
    assert_eq!(values, [267.0, 67.0]);
    let notes: Vec<String> = found.configuration.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        ["rest: 2 subcells fit the host's 2 last-level caches better than 2: \"bbb\", \"ccc\" in \"bbb+ccc\"; \"aaa\" in \"rest\" (by \
          the order in which scx_mitosis gives out CPUs, 56% of what they share stays in one cache, instead of 56%; more threads of \
          \"aaa+bbb+ccc\" are awake than a cache has CPUs, so its names are apart: without what threads share on lent CPUs of other caches, \
          56% instead of 44%; --target-llcs 1 ignores the caches)"]
    );
    // On as many CPUs, but of one cache, and with as few threads as a cache has CPUs, they stay together.
    assert_eq!(subcells(&threads, 8, caches(1)), ["aaa+bbb+ccc", "rest"]);
    assert_eq!(subcells(&one_group(&["aaa", "bbb"], 2), 8, caches(2)), ["aaa+bbb", "rest"]);
    // They are not divided either if all caches have too few CPUs: they wait for each other anyway.
    assert_eq!(subcells(&one_group(&["aaa", "bbb", "ccc"], 6), 8, caches(2)), ["aaa+bbb+ccc", "rest"]);
    // Nor are those of one name.
    assert_eq!(subcells(&one_group(&["aaa"], 6), 8, caches(2)), ["aaa", "rest"]);
    // A subcell with two caches has CPUs for all.
    assert_eq!(subcells(&one_group(&["aaa", "bbb"], 4), 32, caches(8)), ["aaa+bbb", "spare", "spare-2", "rest"]);
}

const CELLS: [&str; 3] =
    ["/", "/workload.slice/workload-tw-a.allotment.slice", "/workload.slice/workload-tw-b.allotment.slice"];

fn threads() -> impl Strategy<Value = Vec<Thread>> {
    let thread = (0..CELLS.len(), "[ab]{1,4}", 1..200u32, proptest::option::of(0..6u32));
    let thread = thread.prop_map(|(cell, name, samples, community)| {
        // A community is of one cell.
        (CELLS[cell], name, samples, community.map(|it| it * 3 + cell as u32))
    });
    proptest::collection::vec(thread, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn each_name_is_where_its_group_was_put(
        threads in threads(),
        cpus in 1..64usize,
        count in 1..16u32,
        turns in 1..3u32,
    ) {
        let case = Case::new(&threads);
        let found = case.find(cpus, Some(Caches { count, turns }));
        let before = case.find(cpus, None);
        prop_assert_eq!(&found.finding.cells, &before.finding.cells);
        let mut divided: BTreeSet<(&String, &String)> = BTreeSet::new();
        let aligned: Vec<&String> = found.configuration.notes.iter().filter_map(|note| match note {
            Note::Aligned(AlignedCell { cell, kept, parted, stays, .. }) => {
                let is_better = if parted.is_empty() { kept[1] > kept[0] } else { stays[1] > stays[0] };
                let is_part = stays.iter().zip(kept).all(|(stays, kept)| *stays < kept + 1e-6 && *kept < 1.000_001);
                assert!(is_better && is_part, "{kept:?} {stays:?}");
                divided.extend(parted.iter().map(|it| (cell, it)));
                Some(cell)
            }
            _ => None,
        }).collect();
        if count == 1 {
            prop_assert!(aligned.is_empty() && found.labels == before.labels);
        }
        if aligned.is_empty() {
            prop_assert_eq!(&found.configuration.cells, &before.configuration.cells);
            prop_assert_eq!(&found.configuration.notes, &before.configuration.notes);
            prop_assert_eq!(&found.taken_by, &before.taken_by);
            return Ok(());
        }
        prop_assert!(mitosis::check(&found.configuration.cells).is_ok());
        prop_assert!(found.configuration.refused.is_none());
        if found.finding.cells.len() != found.configuration.cells.len() {
            // The groups are those of other cells.
            return Ok(());
        }
        let cgroups = case.tally.cells().filter_map(|it| it.1.cgroup.as_ref()).filter(|it| !it.is_empty()).count();
        let share = cpus / (1 + cgroups);
        let loaded = Consumer::new(&found.configuration.cells).unwrap();
        for (at, cell) in found.finding.cells.iter().enumerate() {
            if !aligned.contains(&&cell.name) {
                continue;
            }
            let now = found.configuration.cells.iter().find(|it| it.name == cell.name).unwrap();
            prop_assert!((2..=share).contains(&now.subcells.len()), "{} of {}", now.subcells.len(), share);
            let taken = &found.taken_by[at];
            prop_assert!(taken.len() == cell.subcells.len() && taken.iter().all(Option::is_some));
            for (of, name, _) in case.tally.counts() {
                let cgroup = case.tally.get(of).unwrap().cgroup.as_deref().unwrap();
                let place = loaded.assign(cgroup, name.as_bytes());
                if place.cell.map(|it| &found.configuration.cells[it].name) != Some(&cell.name) {
                    continue;
                }
                let unit = subcell_of(&cell.subcells, name.as_bytes()).unwrap();
                // Its threads are in several places.
                if divided.contains(&(&cell.name, &cell.subcells[unit].name)) {
                    continue;
                }
                let expected = taken[unit].as_deref().unwrap();
                let is = format!("{}/{}", cell.name, now.subcells[place.subcell.unwrap()].name);
                prop_assert_eq!(is, expected, "{}", name);
            }
        }
    }
}
