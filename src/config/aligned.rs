//! Subcells that fit the last-level caches of the host.
//!
//! scx_mitosis gives the subcells of a cell equal, adjacent parts of its CPUs, and lends idle CPUs to the others. So a subcell
//! can lie on two caches, or run on lent CPUs of another one, and what its threads share is in both. Subcells that each fill whole
//! caches avoid both, and because several groups can share a subcell, such a configuration often exists. If there are more
//! caches than groups, subcells without threads make the others small enough for a cache; their CPUs are lent.

use std::collections::BTreeMap;

use super::aligned_cell::AlignedCell;
use super::arranged::{arrangements, number, Arrangement, Units};
use super::cell::{Basis, Cell, Subcell};
use super::consumer::{subcell_of, Consumer};
use super::decide::Decision;
use super::members::{CommunityIndex, Member, Members, Verdict};
use super::mitosis::{self, MAX_SUBCELLS};
use super::note::Note;
use super::parted::Parted;
use super::shares::CellCpus;
use super::tally::{CellIndex, Tally};
use crate::cluster::layout::{lent, share, Load};
use crate::sample::Comm;

/// A smaller difference in what stays in one cache counts as no difference.
const CLEARLY: f64 = 0.01;

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
        let Some(Best { of: parted, arrangement, worth }) = facts.best_of_all(cell, bases, now) else { continue };
        let Some(found) = arrangement.subcells(&parted.cell, &parted.bases, members) else { continue };
        let is_as_meant = |(comm, cell_of_name): (Comm, CellIndex)| {
            !cells.contains(&cell_of_name) || {
                let unit = subcell_of(&parted.cell.subcells, comm.as_bytes());
                let place = subcell_of(&found.subcells, comm.as_bytes());
                unit.and_then(|unit| found.place_of.get(unit)) == place.as_ref()
            }
        };
        if !tally.counts().all(|(cell, comm, _)| is_as_meant((comm, cell))) {
            continue;
        }
        let name = |subcell: &Subcell| format!("{}/{}", cell.name, subcell.name);
        let place = |at: usize| found.subcells.get(*found.place_of.get(parted.largest(at)?)?);
        let taken = cell.subcells.iter().enumerate();
        let taken = taken.filter_map(|(at, subcell)| Some((name(subcell), name(place(at)?))));
        aligned.taken_by.extend(taken);
        aligned.notes.push(Note::Aligned(AlignedCell {
            cell: cell.name.clone(),
            caches: cpus.caches.count,
            groups: found.groups(&parted.cell.subcells),
            parted: found.parted(&parted, cell),
            spare: arrangement.spare,
            subcells: now.subcells.len().max(1),
            kept: worth.each_ref().map(|it| it.kept),
            stays: worth.each_ref().map(|it| it.stays),
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

/// Where a community is.
struct Home {
    community: CommunityIndex,
    /// Subcells with its share in each: one, or the parts of a subcell that is divided.
    parts: Vec<(usize, f64)>,
    samples: f64,
}

/// CPUs in equal parts, for the mean of the cells.
struct Parts {
    /// CPUs of each.
    cpus: Vec<f64>,
    /// The probability that a CPU of one and a CPU of another are in one cache.
    near: Vec<Vec<f64>>,
}

impl CellFacts<'_> {
    fn threads(&self) -> impl Iterator<Item = &Member> {
        self.members.threads.iter().filter(|it| self.cells.contains(&it.cell))
    }

    fn census(&self, of: &Parted) -> Census {
        let subcells = &of.cell.subcells;
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
        // The subcell that it is most in; if that is divided, the share of each part.
        let home = |samples: &[f64]| -> Vec<(usize, f64)> {
            let mut by_subcell: BTreeMap<usize, Vec<(usize, f64)>> = BTreeMap::new();
            for (at, whole) in of.of.iter().enumerate() {
                let at = number(subcells, at);
                by_subcell.entry(*whole).or_default().push((at, samples.get(at).copied().unwrap_or_default()));
            }
            let sum = |parts: &[(usize, f64)]| parts.iter().map(|it| it.1).sum::<f64>();
            let first = |parts: &[(usize, f64)]| parts.iter().map(|it| it.0).min();
            let most = by_subcell.into_values().max_by(|a, b| sum(a).total_cmp(&sum(b)).then(first(b).cmp(&first(a))));
            match most.as_deref() {
                None => vec![(0, 1.0)],
                Some([(at, _)]) => vec![(*at, 1.0)],
                Some(parts) => parts.iter().map(|(at, of)| (*at, of / sum(parts).max(f64::MIN_POSITIVE))).collect(),
            }
        };
        // Threads of different cells have different CPUs, wherever their subcells are.
        let mut homes: BTreeMap<CellIndex, Vec<Home>> = BTreeMap::new();
        for (community, (cell, samples)) in of_community {
            let of = Home { community, parts: home(&samples), samples: samples.iter().sum() };
            homes.entry(cell).or_default().push(of);
        }
        let mut shared = vec![vec![0.0; count]; count];
        let affinity = &self.members.affinity;
        for homes in homes.values() {
            for (at, from) in homes.iter().enumerate() {
                for to in homes.iter().skip(at) {
                    let is_worth_samples = affinity.is_empty() && from.community == to.community;
                    let known = affinity.get(from.community, to.community);
                    let accesses = if is_worth_samples { from.samples } else { known };
                    for ((a, part), (b, of)) in from.parts.iter().flat_map(|a| to.parts.iter().map(move |b| (a, b))) {
                        if let Some(it) = shared.get_mut(*a).and_then(|it| it.get_mut(*b)) {
                            *it += accesses * part * of;
                        }
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

    /// The best places for the subcells of the finding, if they are clearly better than those of now.
    ///
    /// Groups with more threads awake than a cache has CPUs are divided if then clearly more of what they share is between threads that
    /// stay in one cache, and each place has CPUs for all of its threads.
    fn best_of_all(&self, found: &Cell, bases: &[Basis], now: &Cell) -> Option<Best> {
        let of_now = self.census(&Parted::whole(now, &[]));
        let places: Vec<usize> = (0..of_now.loads.len()).collect();
        let worth_now = of_now.worth(&places, &self.parts(places.len()));
        let whole = Parted::whole(found, bases);
        let census = self.census(&whole);
        let best = self.best(whole, &census, |it| it.kept).filter(|it| it.2.kept > worth_now.kept + CLEARLY);
        let worth = best.as_ref().map_or(worth_now, |it| it.2);
        let load = |at: usize| census.loads.get(number(&found.subcells, at)).map_or(0.0, |it| it.busy);
        let room = self.cpus_of_cache();
        let divided = Parted::new(found, bases, |at| load(at) > room, |at, prefix| self.share(found, at, prefix));
        let is_better = |it: &Worth| it.stays > worth.stays + CLEARLY && it.busiest <= 1.0;
        let divided = divided.and_then(|it| {
            let census = self.census(&it);
            self.best(it, &census, |it| it.stays).filter(|it| is_better(&it.2))
        });
        let (of, arrangement, worth) = divided.or(best)?;
        Some(Best { of, arrangement, worth: [worth_now, worth] })
    }

    /// The most CPUs of the cells that are in one cache.
    fn cpus_of_cache(&self) -> f64 {
        let ranges = self.cells.iter().flat_map(|cell| self.cpus.of(*cell));
        let most = |range: std::ops::Range<usize>| {
            let cpus = range.len() as f64;
            self.cpus.caches.parts(range, self.cpus.cpus).into_iter().fold(0.0, f64::max) * cpus
        };
        ranges.map(most).fold(0.0, f64::max)
    }

    /// The part of the samples of this subcell that threads have whose names begin with a prefix.
    fn share(&self, found: &Cell, at: usize, prefix: &str) -> f64 {
        let (mut all, mut part) = (0.0, 0.0);
        for member in self.threads() {
            let name = member.comm.unwrap_or_default();
            if subcell_of(&found.subcells, name.as_bytes()) == Some(at) {
                all += member.samples;
                part += if name.as_bytes().starts_with(prefix.as_bytes()) { member.samples } else { 0.0 };
            }
        }
        part / f64::max(all, f64::MIN_POSITIVE)
    }

    /// The best places for these subcells, whose threads `census` has, by this value of them.
    fn best(&self, of: Parted, census: &Census, value: fn(&Worth) -> f64) -> Option<(Parted, Arrangement, Worth)> {
        let subcells = &of.cell.subcells;
        if subcells.is_empty() || census.shared.iter().flatten().all(|it| *it <= 0.0) {
            return None;
        }
        // As `decide` counts them: the first cells may have one CPU more, but not if an idle cgroup is one more cell.
        let room = MAX_SUBCELLS.min(self.cpus.share());
        let most = subcells.len().min(room);
        let parts: Vec<Parts> = (0..=room).map(|count| self.parts(count)).collect();
        // More parts than runs of CPUs with one cache are not more often within one.
        let runs = (self.cpus.caches.count as usize).saturating_mul(self.cpus.caches.turns as usize).min(room);
        let units = Units::new(subcells);
        let mut candidates: Vec<(Arrangement, Worth)> = Vec::new();
        for place_of in arrangements(subcells.len(), most) {
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
        let best = candidates.iter().map(|it| value(&it.1)).fold(0.0, f64::max);
        candidates.retain(|it| value(&it.1) >= best - CLEARLY);
        // Fewer places leave each thread more CPUs; and threads that were not sampled run in the catch-all.
        let (arrangement, worth) = candidates.into_iter().min_by(|(a, of_a), (b, of_b)| {
            let by_load = of_a.busiest.total_cmp(&of_b.busiest).then(of_a.catch_all.total_cmp(&of_b.catch_all));
            (a.places + a.spare).cmp(&(b.places + b.spare)).then(by_load).then(value(of_b).total_cmp(&value(of_a)))
        })?;
        Some((of, arrangement, worth))
    }
}

/// The best places that were found.
struct Best {
    /// The subcells that are in them.
    of: Parted,
    arrangement: Arrangement,
    /// The value of the subcells of now, and of these.
    worth: [Worth; 2],
}

/// The value of an arrangement.
#[derive(Debug, Clone, Copy)]
struct Worth {
    /// The part of what communities share that stays in one cache.
    kept: f64,
    /// The same without what threads share while one of them is on a lent CPU of another cache: such threads move.
    stays: f64,
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
        // While they are on CPUs of the own cache.
        let of_own = |(at, on): (usize, &Vec<f64>)| -> Vec<f64> {
            let near = parts.near.get(at).into_iter().flatten();
            let of = |(to, (on, near)): (usize, (&f64, &f64))| if to == at { *on } else { on * near };
            on.iter().zip(near).enumerate().map(of).collect()
        };
        let own: Vec<Vec<f64>> = on.iter().enumerate().map(of_own).collect();
        let (mut kept, mut stays) = (0.0, 0.0);
        for (shared, a) in self.shared.iter().zip(place_of) {
            for (shared, b) in shared.iter().zip(place_of).filter(|it| *it.0 > 0.0) {
                let of = |on: &[Vec<f64>]| on.get(*a).zip(on.get(*b)).map_or(0.0, |(a, b)| shared * near(a, b));
                kept += of(&on);
                stays += of(&own);
            }
        }
        let load = of_places.iter().map(|(cpus, load)| load.busy / cpus.max(f64::MIN_POSITIVE));
        let load: Vec<f64> = load.collect();
        let catch_all = load.first().copied().unwrap_or_default();
        Worth { kept, stays, busiest: load.into_iter().fold(0.0, f64::max), catch_all }
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
