//! Tests of what groups are expected to avoid.

use super::*;
use crate::cluster::layout::Group;
use crate::cluster::rules::Region;
use crate::cluster::score::{Avoidable, Grouped};
use crate::cluster::{shared, Clusters, SketchStats};
use proptest::collection::vec;
use proptest::prelude::{prop_assert, proptest};

/// Misses, moved, accesses and writes.
type Seen = (f64, f64, f64, f64);

fn region(first: u64, sharers: &[Seen]) -> Region {
    let sharer = |(&(misses, moved, accesses, writes), thread): (&Seen, u32)| rules::Sharer {
        thread,
        misses,
        moved,
        accesses,
        writes,
        counted: misses,
        ..rules::Sharer::default()
    };
    Region { first, sharers: sharers.iter().zip(0..).map(sharer).collect(), fits: 1.0, ..Region::default() }
}

fn avoidable(regions: &[Region], owner: impl Fn(u32) -> u32) -> Avoidable {
    let sharers = |it: &rules::Sharer| Sharer { owner: owner(it.thread), seen: *it, slices: 0..0 };
    let shared = |it: &Region| Shared {
        object: 0,
        first: it.first,
        fits: it.fits,
        sharers: it.sharers.iter().map(sharers).collect(),
    };
    let threads = regions.iter().flat_map(|it| &it.sharers).map(|it| it.thread + 1).max().unwrap_or_default();
    let mut demand = vec![0.0; threads as usize];
    for it in regions.iter().flat_map(|it| &it.sharers) {
        demand[it.thread as usize] += it.misses;
    }
    Avoidable { regions: regions.iter().map(shared).collect(), in_slices: Vec::new(), slices: 0, demand }
}

/// Groups that each have a cache for themselves.
fn own_caches(groups: usize, threads: usize) -> Layout {
    Layout::new(&vec![Group { cell: 0, cpus: 1.0 / groups as f64, threads }; groups], groups as u32)
}

/// What each group avoids of the first region, and what by chance; and all.
fn expected(found: &Avoidable, labels: &[u32], layout: &Layout) -> (Vec<(f64, f64)>, f64) {
    let grouped = Grouped::new(found, labels, layout);
    let mut expected = Expected::default();
    let (groups, places) = &grouped.places[0];
    let all = expected.compute(&found.regions[0], groups, places, layout, |_| 1.0);
    (expected.kept, all)
}

fn near(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-9 * a.abs().max(1.0), "{a} {b}");
}

const TWO: [u32; 8] = [0, 1, 0, 1, 0, 1, 0, 1];

#[test]
fn of_eight_threads_that_contend_half_avoid_three_of_seven_which_is_chance() {
    let found = avoidable(&[region(0, &[(100.0, 100.0, 100.0, 100.0); 8])], |it| it);
    let (kept, all) = expected(&found, &TWO, &own_caches(2, 4));
    near(all, 800.0);
    near(found.all(), 800.0);
    for (kept, base) in kept {
        near(kept, 400.0 * 3.0 / 7.0);
        near(base, 400.0 * 3.0 / 7.0);
    }
    near(found.avoided(&TWO, &own_caches(2, 4)).score(), 0.0);
    near(found.avoided(&[], &Layout::one_each(1, 8, 2)).score(), 1.0);
}

#[test]
fn readers_of_a_table_fetch_it_once_for_each_cache() {
    let found = avoidable(&[region(0, &[(100.0, 0.0, 100.0, 0.0); 8])], |it| it);
    let (kept, all) = expected(&found, &TWO, &own_caches(2, 4));
    near(all, 700.0);
    near(kept[0].0, 300.0);
    near(kept[1].0, 300.0);
    // The i-th thread finds the data unless it is far from all before it.
    let base: f64 = (1..8).map(|before| 100.0 * (1.0 - (4.0f64 / 7.0).powi(before))).sum();
    near(kept[0].1 + kept[1].1, base);
    near(found.avoided(&TWO, &own_caches(2, 4)).score(), (600.0 - base) / (700.0 - base));
    // In classes, one thread's fetch of each class but one is spared by any of the others: it counts once.
    let classes = found.pairs_of_threads(&[0; 8], &[0, 0, 0, 0, 1, 1, 2, 2]);
    near(classes.values().sum(), 700.0);
    near(classes[&[(0, 0), (0, 0)]], 300.0);
    near(classes[&[(0, 0), (0, 1)]], 100.0);
    near(classes[&[(0, 0), (0, 2)]], 50.0);
    // Those of a thread with more data are not avoided by one with less.
    let found = avoidable(&[region(0, &[(50.0, 0.0, 50.0, 0.0), (80.0, 0.0, 80.0, 0.0)])], |it| it);
    let (kept, all) = expected(&found, &[0, 0], &own_caches(2, 1));
    near(all, 50.0);
    near(kept[0].0, 50.0);
}

#[test]
fn with_many_groups_what_two_of_them_share_is_the_mean() {
    let count = COMPARED + 8;
    let seen: Vec<Seen> = (0..2 * count).map(|at| (100.0 + at as f64, 30.0, 100.0, 40.0)).collect();
    let found = avoidable(&[region(0, &seen)], |it| it);
    let labels: Vec<u32> = (0..2 * count as u32).map(|at| at / 2).collect();
    let group = |thread: u32| Some(thread / 2);
    let (kept, _) = expected(&found, &labels, &own_caches(count, 2));
    for ((kept, _), (_, together)) in kept.iter().zip(region(0, &seen).by_label(group)) {
        near(*kept, together.avoided());
    }
    // The same as for groups that are compared in pairs.
    let layout = Layout::one_each(9, 99, 4);
    let (mut pairs, mut mean) = (Far::default(), Far::default());
    pairs.set(&(0..9).collect::<Vec<u32>>(), &layout);
    mean = Far { own: pairs.own.clone(), apart: pairs.apart, added: vec![0; 9], ..mean };
    assert!(pairs.is_compared() && !mean.is_compared());
    for place in [3, 3, 5, 0] {
        pairs.add(place);
        mean.add(place);
        (0..9).for_each(|place| near(pairs.alone_so_far(place), mean.alone_so_far(place)));
    }
}

#[test]
fn a_thread_under_two_numbers_does_not_share_with_itself() {
    // Numbers 0 and 1 are one thread, which contends with 2.
    let seen = [(40.0, 30.0, 30.0, 30.0), (50.0, 30.0, 60.0, 20.0), (35.0, 30.0, 10.0, 5.0)];
    let owner = |it: u32| if it == 1 { 0 } else { it };
    let found = avoidable(&[region(0, &seen)], owner);
    let one = avoidable(&[region(0, &[(90.0, 60.0, 90.0, 50.0), seen[2]])], |it| it);
    near(one.all(), 60.0 + 30.0 + 5.0);
    near(found.all(), one.all());
    let layout = own_caches(2, 2);
    // Both in one group are one thread; alone they avoid nothing.
    for (labels, kept_all) in [([0, 0, 0], [95.0, 0.0]), ([0, 0, 1], [0.0, 0.0])] {
        let (kept, all) = expected(&found, &labels, &layout);
        near(all, 95.0);
        kept.iter().zip(kept_all).for_each(|(it, expected)| near(it.0, expected));
    }
    // In two groups, one of them with the other thread.
    let (kept, all) = expected(&found, &[0, 1, 1], &layout);
    near(all, 95.0);
    near(kept[0].0, 0.0);
    // Transfers of 1 that 2 took, those of 2 that 1 took, and the fills of 2.
    let taken = |writes: f64, accesses: f64, part: f64| (1.0 - part) * writes + part * accesses;
    near(kept[1].0, 30.0 + 30.0 * taken(20.0, 60.0, 0.5) / taken(50.0, 90.0, 0.5) + 5.0);
    let all_near = Layout::one_each(1, 3, 2);
    near(found.avoided(&[], &all_near).score(), 1.0);
    // On one cache, the two groups are as one.
    let quarter = |cell: u32| Group { cell, cpus: 0.25, threads: 2 };
    let beside = Layout::new(&[quarter(0), quarter(0), quarter(1), quarter(1)], 2);
    near(found.avoided(&[0, 1, 1], &beside).score(), 1.0);
    // What is left for one cache for both groups.
    let pair = found.pairs(&[0, 1, 1], &layout);
    let base: f64 = kept.iter().map(|it| it.1).sum();
    near(pair[0].misses, (95.0 - kept[1].0) * 95.0 / (95.0 - base));
    let found = avoidable(&[region(0, &[(40.0, 30.0, 30.0, 30.0), (50.0, 30.0, 60.0, 20.0)])], |_| 0);
    assert_eq!((found.pairs(&[0, 1], &layout), found.misplaced(&[0, 1], &layout)), (Vec::new(), Vec::new()));
    assert!(found.all().abs() < 1e-9);
}

fn clusters(regions: Vec<Region>) -> Clusters {
    Clusters {
        of_thread: Vec::new(),
        communities: Vec::new(),
        locality: None,
        stability: None,
        hubs: Vec::new(),
        lines: Vec::new(),
        stats: SketchStats::default(),
        regions,
        shared: shared::Shared::default(),
        demand: Vec::new(),
        counted: Vec::new(),
    }
}

proptest! {
    /// Groups that each have a cache keep what their threads avoid together, and the score orders partitions as locality does.
    #[test]
    fn with_a_cache_for_each_group_it_is_what_its_threads_avoid(
        seen in vec(vec((1.0..100.0f64, 0.0..1.0f64, 1.0..100.0f64, 0.0..1.0f64), 2..10), 1..5),
        partitions in vec(vec(0u32..3, 10), 2),
    ) {
        // Of each second region all misses are fills.
        let moved = |at: u64, it: &Seen| if at & 1 == 0 { it.0 * it.1 } else { 0.0 };
        let made = |(at, seen): (u64, &Vec<Seen>)| {
            let seen: Vec<Seen> = seen.iter().map(|it| (it.0, moved(at, it), it.2, it.2 * it.3)).collect();
            region(at, &seen)
        };
        let regions: Vec<Region> = (0..).zip(&seen).map(made).collect();
        let found = avoidable(&regions, |it| it);
        let layout = own_caches(3, 4);
        for labels in &partitions {
            let (kept, all) = expected(&found, labels, &layout);
            prop_assert!((all - regions[0].avoided(|_| true)).abs() < 1e-6);
            let sets = regions[0].by_label(|thread| Some(labels[thread as usize]));
            for ((kept, _), (_, together)) in kept.iter().zip(sets) {
                prop_assert!((kept - together.avoided()).abs() < 1e-6, "{kept} {together:?}");
            }
        }
        // What a pair lacks is what one cache for both adds to the score.
        let score = |labels: &[u32]| found.avoided(labels, &layout).score();
        let labels = &partitions[0];
        let both: Vec<u32> = labels.iter().map(|&it| it.max(1)).collect();
        let pairs = found.pairs(labels, &layout);
        let lost = pairs.iter().find(|it| (it.a, it.b) == (0, 1)).map_or(0.0, |it| it.misses) / found.all();
        prop_assert!((score(&both) - score(labels) - lost).abs() < 1e-9, "{lost}");
        // Regions in which chance avoids another part have another weight, so this is of one.
        let one = [regions[0].clone()];
        let found = avoidable(&one, |it| it);
        let clusters = clusters(one.to_vec());
        let score = |labels: &[u32]| found.avoided(labels, &layout).score();
        let locality = |labels: &[u32]| clusters.locality_of(labels).unwrap_or_default();
        let more = score(&partitions[1]) - score(&partitions[0]);
        let kept = locality(&partitions[1]) - locality(&partitions[0]);
        prop_assert!(more * kept > 0.0 || more.abs().min(kept.abs()) < 1e-9, "{more} {kept}");
    }
}
