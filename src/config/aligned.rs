//! Subcells that fit the last-level caches of the host.
//!
//! scx_mitosis gives the subcells of a cell equal, adjacent parts of its CPUs, and lends idle CPUs to the others. So a subcell
//! can lie on two caches, or run on lent CPUs of another one, and what its threads share is in both. Subcells that each fill whole
//! caches avoid both, and because several groups can share a subcell, such a configuration often exists. If there are more
//! caches than groups, subcells without threads make the others small enough for a cache; their CPUs are lent.

use std::collections::{BTreeMap, BTreeSet};

use super::aligned_cell::AlignedCell;
use super::cell::{Basis, Cell, Subcell};
use super::consumer::{subcell_of, Consumer};
use super::decide::Decision;
use super::express::joint_name;
use super::members::{CommunityIndex, Member, Members, Verdict};
use super::mitosis::{self, MAX_ORS, MAX_SUBCELLS};
use super::note::Note;
use super::prefixes::tidy;
use super::shares::CellCpus;
use super::tally::{CellIndex, Tally};
use crate::cluster::layout::{lent, share, Load};
use crate::sample::Comm;

/// A smaller difference in what stays in one cache counts as no difference.
const CLEARLY: f64 = 0.01;
/// The name of a subcell without threads.
const SPARE: &str = "spare";
/// The prefix that it matches, followed by a number: 15 bytes, the most that a name can have.
const NOBODY: &str = "no-such-thread";

/// A configuration whose subcells fit the caches.
pub(super) struct Aligned {
    pub(super) configuration: Decision,
    /// The subcell that takes each subcell of the finding, in the cells that have such subcells. Both are called `cell/subcell`.
    pub(super) taken_by: BTreeMap<String, String>,
    pub(super) notes: Vec<Note>,
}

/// Distributes the groups of the finding over the caches, cell by cell, if that keeps clearly more of what they share in one cache
/// than `fits`, the decision that fits the host; `None` if it does so in no cell.
pub(super) fn aligned(
    finding: &Decision,
    fits: &Decision,
    tally: &Tally,
    members: &Members,
    cpus: &CellCpus,
) -> Option<Aligned> {
    let consumer = Consumer::of(&finding.cells, finding.scheduler).ok()?;
    let mut of_cell: BTreeMap<usize, Vec<CellIndex>> = BTreeMap::new();
    for (index, cell) in tally.cells() {
        if let Some(at) = cell.cgroup.as_deref().and_then(|cgroup| consumer.cell_for(cgroup)) {
            of_cell.entry(at).or_default().push(index);
        }
    }
    let mut aligned = Aligned { configuration: fits.clone(), taken_by: BTreeMap::new(), notes: Vec::new() };
    for (at, (cell, bases)) in finding.cells.iter().zip(&finding.bases).enumerate() {
        let same = |it: &Cell| it.name == cell.name && it.matches == cell.matches;
        let Some(to) = fits.cells.iter().position(same) else { continue };
        let Some(now) = fits.cells.get(to) else { continue };
        let cells = of_cell.get(&at).map(Vec::as_slice).unwrap_or_default();
        let facts = CellFacts { members, cells, cpus };
        let Some((arrangement, kept)) = facts.best(cell, now) else { continue };
        let Some(found) = arrangement.subcells(cell, bases, members) else { continue };
        let is_as_meant = |(comm, cell_of_name): (Comm, CellIndex)| {
            !cells.contains(&cell_of_name) || {
                let unit = subcell_of(&cell.subcells, comm.as_bytes());
                let place = subcell_of(&found.subcells, comm.as_bytes());
                unit.and_then(|unit| found.place_of.get(unit)) == place.as_ref()
            }
        };
        if !tally.counts().all(|(cell, comm, _)| is_as_meant((comm, cell))) {
            continue;
        }
        let name = |subcell: &Subcell| format!("{}/{}", cell.name, subcell.name);
        let taken = cell.subcells.iter().zip(&found.place_of);
        let taken = taken.filter_map(|(subcell, place)| Some((name(subcell), name(found.subcells.get(*place)?))));
        aligned.taken_by.extend(taken);
        aligned.notes.push(Note::Aligned(AlignedCell {
            cell: cell.name.clone(),
            caches: cpus.caches.count,
            groups: found.groups(&cell.subcells),
            spare: arrangement.spare,
            subcells: now.subcells.len().max(1),
            kept,
        }));
        if let (Some(cell), Some(bases)) =
            (aligned.configuration.cells.get_mut(to), aligned.configuration.bases.get_mut(to))
        {
            (cell.subcells, *bases) = (found.subcells, found.bases);
        }
    }
    (!aligned.notes.is_empty() && mitosis::check(&aligned.configuration.cells).is_ok()).then_some(aligned)
}

/// The known facts about a cell spec's threads and CPUs.
struct CellFacts<'a> {
    members: &'a Members,
    /// Its cells.
    cells: &'a [CellIndex],
    cpus: &'a CellCpus,
}

/// Threads by the subcell that takes them, in the order in which the scheduler numbers subcells: the catch-all is first.
struct Census {
    /// How much the threads of each run, in one cell.
    loads: Vec<Load>,
    /// What the communities of each two share, from 0 to 1.
    shared: Vec<Vec<f64>>,
}

/// CPUs in equal parts, for the mean of the cells.
struct Parts {
    /// CPUs of each.
    cpus: Vec<f64>,
    /// The probability that a CPU of one and a CPU of another are in one cache.
    near: Vec<Vec<f64>>,
}

/// Which groups are in which place.
#[derive(Debug, Clone, PartialEq)]
struct Arrangement {
    /// The place of each subcell, in the scheduler's numbering; that of the catch-all is 0.
    place_of: Vec<usize>,
    places: usize,
    /// Places without threads behind them.
    spare: usize,
}

/// The number of a subcell for the scheduler, of its place in the file.
fn number(subcells: &[Subcell], at: usize) -> usize {
    let catch_all = subcells.iter().position(Subcell::is_catch_all);
    match catch_all {
        Some(it) if it == at => 0,
        Some(it) if it < at => at,
        _ => at + 1,
    }
}

impl CellFacts<'_> {
    fn threads(&self) -> impl Iterator<Item = &Member> {
        self.members.threads.iter().filter(|it| self.cells.contains(&it.cell))
    }

    fn census(&self, subcells: &[Subcell]) -> Census {
        let count = subcells.len().max(1);
        let mut loads = vec![Load::default(); count];
        let awake = self.members.awake();
        let mut of_community: BTreeMap<CommunityIndex, (CellIndex, Vec<f64>)> = BTreeMap::new();
        for member in self.threads() {
            let at = subcell_of(subcells, member.comm.unwrap_or_default().as_bytes());
            let at = at.map_or(0, |at| number(subcells, at));
            if let Some(load) = loads.get_mut(at) {
                load.add(1, member.samples / awake);
            }
            if let Verdict::Community(community) = member.verdict {
                let (_, samples) = of_community.entry(community).or_insert_with(|| (member.cell, vec![0.0; count]));
                if let Some(samples) = samples.get_mut(at) {
                    *samples += member.samples;
                }
            }
        }
        let home = |samples: &[f64]| {
            let most = samples.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
            most.map_or(0, |it| it.0)
        };
        // Threads of different cells have different CPUs, wherever their subcells are.
        let mut homes: BTreeMap<CellIndex, Vec<(CommunityIndex, usize, f64)>> = BTreeMap::new();
        for (community, (cell, samples)) in of_community {
            homes.entry(cell).or_default().push((community, home(&samples), samples.iter().sum()));
        }
        let mut shared = vec![vec![0.0; count]; count];
        let affinity = &self.members.affinity;
        for homes in homes.values() {
            for (at, &(a, from, samples)) in homes.iter().enumerate() {
                for &(b, to, _) in homes.iter().skip(at) {
                    let is_worth_samples = affinity.is_empty() && a == b;
                    let accesses = if is_worth_samples { samples } else { affinity.get(a, b) };
                    if let Some(it) = shared.get_mut(from).and_then(|it| it.get_mut(to)) {
                        *it += accesses;
                    }
                }
            }
        }
        let all: f64 = shared.iter().flatten().sum();
        shared.iter_mut().flatten().for_each(|it| *it /= all.max(f64::MIN_POSITIVE));
        let cells = self.cells.len().max(1) as f64;
        let of_one = |it: Load| Load { busy: it.busy / cells, squares: it.squares / cells, ..it };
        Census { loads: loads.into_iter().map(of_one).collect(), shared }
    }

    /// The mean of the cells.
    fn parts(&self, count: usize) -> Parts {
        let mut parts = Parts { cpus: vec![0.0; count], near: vec![vec![0.0; count]; count] };
        let ranges: Vec<_> = self.cells.iter().flat_map(|cell| self.cpus.of(*cell)).collect();
        let mut by_range: BTreeMap<(usize, usize), f64> = BTreeMap::new();
        for range in &ranges {
            *by_range.entry((range.start, range.end)).or_default() += 1.0 / ranges.len() as f64;
        }
        for ((begin, end), weight) in by_range {
            let of: Vec<_> = (0..count).map(|at| share(begin..end, count, at)).collect();
            let inside: Vec<_> = of.iter().map(|it| self.cpus.caches.parts(it.clone(), self.cpus.cpus)).collect();
            for (at, (of, a)) in of.iter().zip(&inside).enumerate() {
                if let Some(cpus) = parts.cpus.get_mut(at) {
                    *cpus += weight * of.len() as f64;
                }
                let Some(near) = parts.near.get_mut(at) else { continue };
                for (near, b) in near.iter_mut().zip(&inside) {
                    *near += weight * a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                }
            }
        }
        parts
    }

    /// The best places for the subcells of the finding, if they are clearly better than those of now, and what stays in one cache
    /// with those of now and with these.
    fn best(&self, found: &Cell, now: &Cell) -> Option<(Arrangement, [f64; 2])> {
        let census = self.census(&found.subcells);
        if found.subcells.is_empty() || census.shared.iter().flatten().all(|it| *it <= 0.0) {
            return None;
        }
        let of_now = self.census(&now.subcells);
        let places: Vec<usize> = (0..of_now.loads.len()).collect();
        let kept_now = of_now.worth(&places, &self.parts(places.len())).kept;
        // As `decide` counts them: the first cells may have one CPU more, but not if an idle cgroup is one more cell.
        let room = MAX_SUBCELLS.min(self.cpus.share());
        let most = found.subcells.len().min(room);
        let parts: Vec<Parts> = (0..=room).map(|count| self.parts(count)).collect();
        // More parts than runs of CPUs with one cache are not more often within one.
        let runs = (self.cpus.caches.count as usize).saturating_mul(self.cpus.caches.turns as usize).min(room);
        let units = Units::new(&found.subcells);
        let mut candidates: Vec<(Arrangement, Worth)> = Vec::new();
        for place_of in arrangements(found.subcells.len(), most) {
            let places = place_of.iter().max().map_or(1, |it| it + 1);
            if places < 2 {
                continue;
            }
            let Some(arrangement) = units.in_order(&place_of, places) else { continue };
            for (spare, parts) in parts.iter().take(runs.max(places) + 1).skip(places).enumerate() {
                let worth = census.worth(&arrangement.place_of, parts);
                candidates.push((Arrangement { spare, ..arrangement.clone() }, worth));
            }
        }
        let best = candidates.iter().map(|it| it.1.kept).fold(0.0, f64::max);
        candidates.retain(|it| it.1.kept >= best - CLEARLY);
        // Fewer places leave each thread more CPUs; and threads that were not sampled run in the catch-all.
        let (arrangement, worth) = candidates.into_iter().min_by(|(a, of_a), (b, of_b)| {
            let by_load = of_a.busiest.total_cmp(&of_b.busiest).then(of_a.catch_all.total_cmp(&of_b.catch_all));
            (a.places + a.spare).cmp(&(b.places + b.spare)).then(by_load).then(of_b.kept.total_cmp(&of_a.kept))
        })?;
        (worth.kept > kept_now + CLEARLY).then_some((arrangement, [kept_now, worth.kept]))
    }
}

/// The value of an arrangement.
struct Worth {
    /// The part of what communities share that stays in one cache.
    kept: f64,
    /// Busy threads for each CPU of the place that has most of them.
    busiest: f64,
    /// The same of the catch-all.
    catch_all: f64,
}

impl Census {
    /// The value if the subcells are in these places.
    ///
    /// Threads that find all CPUs of their place busy run on idle ones of the others. That is how [`Layout::known`] has it, which a test
    /// holds; but here thousands of arrangements are compared, so what two parts of the CPUs have in common is computed once.
    ///
    /// [`Layout::known`]: crate::cluster::layout::Layout::known
    fn worth(&self, place_of: &[usize], parts: &Parts) -> Worth {
        let mut of_places: Vec<(f64, Load)> = parts.cpus.iter().map(|cpus| (*cpus, Load::default())).collect();
        for (load, &place) in self.loads.iter().zip(place_of) {
            if let Some((_, of_place)) = of_places.get_mut(place) {
                of_place.join(load);
            }
        }
        let on = lent(&of_places);
        let near = |a: &[f64], b: &[f64]| -> f64 {
            let of = |(a, near): (&f64, &Vec<f64>)| a * near.iter().zip(b).map(|(near, b)| near * b).sum::<f64>();
            a.iter().zip(&parts.near).map(of).sum()
        };
        let mut kept = 0.0;
        for (shared, a) in self.shared.iter().zip(place_of) {
            for (shared, b) in shared.iter().zip(place_of).filter(|it| *it.0 > 0.0) {
                let (Some(a), Some(b)) = (on.get(*a), on.get(*b)) else { continue };
                kept += shared * near(a, b);
            }
        }
        let load = of_places.iter().map(|(cpus, load)| load.busy / cpus.max(f64::MIN_POSITIVE));
        let load: Vec<f64> = load.collect();
        let catch_all = load.first().copied().unwrap_or_default();
        Worth { kept, busiest: load.into_iter().fold(0.0, f64::max), catch_all }
    }
}

/// All ways to put `subcells` into at most `most` places, the catch-all into the first: each place appears for the first
/// time after those before it.
fn arrangements(subcells: usize, most: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![0]];
    for _ in 1..subcells {
        let next = |it: &Vec<usize>| {
            let places = it.iter().max().map_or(0, |it| it + 1);
            let it = it.clone();
            (0..(places + 1).min(most)).map(move |place| it.iter().copied().chain([place]).collect())
        };
        all = all.iter().flat_map(next).collect();
    }
    all
}

/// The subcells of the finding but the catch-all, in the scheduler's numbering: the first is 1.
struct Units {
    prefixes: Vec<Vec<String>>,
    /// Those before each one that have a prefix which begins with one of its own: what they take, it would take too.
    within: Vec<Vec<usize>>,
}

impl Units {
    fn new(subcells: &[Subcell]) -> Self {
        let mut prefixes = vec![Vec::new(); subcells.len()];
        for (at, subcell) in subcells.iter().enumerate().filter(|it| !it.1.is_catch_all()) {
            if let Some(of) = prefixes.get_mut(number(subcells, at)) {
                *of = subcell.matches.iter().flatten().cloned().collect();
            }
        }
        let takes = |own: &[String], other: &[String]| {
            other.iter().any(|it| own.iter().any(|own| it.starts_with(own.as_str())))
        };
        let within = |(at, own): (usize, &Vec<String>)| {
            prefixes.iter().take(at).enumerate().filter(|it| takes(own, it.1)).map(|it| it.0).collect()
        };
        let within = prefixes.iter().enumerate().map(within).collect();
        Self { prefixes, within }
    }

    /// The prefixes of a place.
    fn of_place(&self, place_of: &[usize], place: usize) -> Vec<String> {
        let of = self.prefixes.iter().zip(place_of).filter(|it| *it.1 == place);
        let mut prefixes: Vec<String> = of.flat_map(|it| it.0.clone()).collect();
        tidy(&mut prefixes);
        prefixes
    }

    /// The places in an order in which each takes its own threads; `None` if there is none, or if a place has too many prefixes.
    fn in_order(&self, place_of: &[usize], places: usize) -> Option<Arrangement> {
        // The places that must be before each one.
        let mut before: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); places];
        for (within, &place) in self.within.iter().zip(place_of).filter(|it| *it.1 > 0) {
            for &unit in within {
                let other = place_of.get(unit).copied().unwrap_or_default();
                if other == 0 {
                    return None;
                }
                if other != place {
                    before.get_mut(place)?.insert(other);
                }
            }
        }
        let mut order: Vec<usize> = vec![0];
        while order.len() < places {
            let is_next = |place: &usize| {
                !order.contains(place) && before.get(*place).is_some_and(|it| it.iter().all(|it| order.contains(it)))
            };
            let next = (1..places).find(is_next)?;
            order.push(next);
        }
        if (1..places).any(|place| self.of_place(place_of, place).len() > MAX_ORS) {
            return None;
        }
        let number = |place: &usize| order.iter().position(|it| it == place);
        Some(Arrangement { place_of: place_of.iter().map(number).collect::<Option<_>>()?, places, spare: 0 })
    }
}

/// The subcells of an arrangement, as they are written: with the catch-all last.
struct Arranged {
    subcells: Vec<Subcell>,
    bases: Vec<Basis>,
    /// The place in `subcells` of each subcell of the finding, in its order.
    place_of: Vec<usize>,
}

impl Arrangement {
    fn subcells(&self, found: &Cell, bases: &[Basis], members: &Members) -> Option<Arranged> {
        let units = Units::new(&found.subcells);
        let place_of = |at: usize| self.place_of.get(number(&found.subcells, at)).copied();
        let basis_of = |place: usize| {
            let of = bases.iter().enumerate().filter(|it| place_of(it.0) == Some(place)).map(|it| it.1);
            joint_basis(&of.collect::<Vec<_>>(), members)
        };
        let mut arranged = Arranged { subcells: Vec::new(), bases: Vec::new(), place_of: Vec::new() };
        let mut taken = BTreeSet::from([Subcell::catch_all().name]);
        let mut name_of = |base: &str| {
            let numbered = (2_usize..).map(|number| format!("{base}-{number}"));
            let name = std::iter::once(base.to_owned()).chain(numbered).find(|name| !taken.contains(name))?;
            taken.insert(name.clone());
            Some(name)
        };
        for place in 1..self.places {
            arranged.bases.push(basis_of(place));
            let prefixes = units.of_place(&self.place_of, place);
            let name = name_of(&joint_name(&prefixes))?;
            let matches = prefixes.into_iter().map(|prefix| vec![prefix]).collect();
            arranged.subcells.push(Subcell { name, matches, hints: Vec::new() });
        }
        for number in 1..=self.spare {
            let matches = vec![vec![format!("{NOBODY}{number}")]];
            arranged.bases.push(Basis::default());
            arranged.subcells.push(Subcell { name: name_of(SPARE)?, matches, hints: Vec::new() });
        }
        arranged.bases.push(Basis { class: None, ..basis_of(0) });
        arranged.subcells.push(Subcell::catch_all());
        let last = arranged.subcells.len().checked_sub(1)?;
        let written = |at: usize| Some(place_of(at)?.checked_sub(1).unwrap_or(last));
        arranged.place_of = (0..found.subcells.len()).map(written).collect::<Option<_>>()?;
        Some(arranged)
    }
}

impl Arranged {
    /// The names of the subcells that have threads, each with those of the finding that it has.
    fn groups(&self, found: &[Subcell]) -> Vec<(String, Vec<String>)> {
        let of = |place: usize| {
            let of = found.iter().zip(&self.place_of).filter(|(it, to)| **to == place && !it.is_catch_all());
            of.map(|(it, _)| it.name.clone()).collect()
        };
        let is_used = |place: &usize| self.place_of.contains(place) || *place + 1 == self.subcells.len();
        let used = self.subcells.iter().enumerate().filter(|it| is_used(&it.0));
        used.map(|(place, it)| (it.name.clone(), of(place))).collect()
    }
}

/// The basis of a subcell that has several groups.
fn joint_basis(of: &[&Basis], members: &Members) -> Basis {
    let communities: BTreeSet<CommunityIndex> = of.iter().flat_map(|it| it.communities.iter().copied()).collect();
    let classes: Vec<&str> = of.iter().filter_map(|it| it.class.as_deref()).collect();
    let mut value: f64 = of.iter().map(|it| it.value).sum();
    for (index, a) in of.iter().enumerate() {
        for b in of.iter().skip(index + 1) {
            let pairs = a.communities.iter().flat_map(|a| b.communities.iter().map(move |b| (*a, *b)));
            value += pairs.map(|(a, b)| members.affinity.get(a, b)).sum::<f64>();
        }
    }
    Basis {
        class: (communities.is_empty() && !classes.is_empty()).then(|| classes.join(", ")),
        communities: communities.into_iter().collect(),
        value,
        samples: of.iter().map(|it| it.samples).sum(),
        why: of.iter().flat_map(|it| it.why.iter().cloned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cluster::layout::{Layout, Part};
    use crate::config::tally::Tally;
    use crate::config::{CellOptions, CellSpecs, DecisionOptions};
    use crate::sample::caches::Caches;

    #[test]
    fn each_arrangement_comes_once() {
        // The Bell numbers: all ways to divide a set.
        let counts: Vec<usize> = (1..=8).map(|subcells| arrangements(subcells, 8).len()).collect();
        assert_eq!(counts, [1, 2, 5, 15, 52, 203, 877, 4140]);
        assert_eq!(arrangements(3, 2), [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]);
    }

    proptest! {
        #[test]
        fn arrangements_are_judged_as_layouts_are(
            threads in prop::collection::vec((0..30usize, 0.0..1.2f64, 0..9usize), 2..6),
            cpus in 6..40usize,
            count in 2..6u32,
            turns in 1..3u32,
        ) {
            let specs = CellSpecs::new(&CellOptions::default()).unwrap();
            let mut tally = Tally::default();
            let cell = tally.cell(specs.assign(b"/"));
            tally.add(cell, None, 1.0);
            let caches = Caches { count, turns };
            let cell_cpus = CellCpus::new(&specs, &tally, &DecisionOptions::new(0.05, cpus), caches);
            let facts = CellFacts { members: &Members::default(), cells: &[cell], cpus: &cell_cpus };
            let load = |(many, each, awake): &(usize, f64, usize)| {
                let mut load = Load::default();
                load.add(*many, *each);
                load.add(*awake, 1.0);
                load
            };
            let loads: Vec<Load> = threads.iter().map(load).collect();
            let parts = facts.parts(loads.len());
            let part = |(at, load): (usize, &Load)| {
                let of = share(0..cpus, parts.cpus.len(), at);
                // There are so many threads that a single one does not matter.
                Part { cell: 0, cpus: of, load: Load { threads: 1 << 40, ..*load }, group: Some(at) }
            };
            let layout = Layout::known(&loads.iter().enumerate().map(part).collect::<Vec<_>>(), caches, cpus);
            let places: Vec<usize> = (0..loads.len()).collect();
            for (a, b) in places.iter().flat_map(|a| places.iter().map(move |b| (*a, *b))) {
                let mut shared = vec![vec![0.0; loads.len()]; loads.len()];
                shared[a][b] = 1.0;
                let kept = Census { loads: loads.clone(), shared }.worth(&places, &parts).kept;
                prop_assert!((kept - layout.near(a as u32, b as u32)).abs() < 1e-6, "{} {}: {} {:?}", a, b, kept, layout);
            }
        }
    }
}
