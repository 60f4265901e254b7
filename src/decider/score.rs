//! How much of the avoidable misses a configuration avoids.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::decided::Decided;
use super::decider::{Decider, Facts};
use crate::cluster::layout::{Group, Layout, Load};
use crate::cluster::score::{Avoidable, Avoided};
use crate::config::mitosis::{MitosisError, MAX_CELLS};
use crate::config::{base_of, Decision, Laid, OnCaches, Place, Placement, Scheduler, Task};
use crate::report::score::{CellScore, MisplacedThreads, PairScore, Score, SubcellScore, UnmatchedThreads};
use crate::sample::{printable, Comm};

/// The number of pairs and names of threads that are listed for a configuration.
const LISTED: usize = 64;

/// The groups of a configuration: its subcells or layers with threads.
struct Groups {
    all: Vec<Place>,
    /// The name of each.
    names: Vec<String>,
    /// The group of each thread.
    labels: Vec<u32>,
    /// How many threads each has.
    threads: Vec<usize>,
    /// The parts of the CPUs that they and their cells have.
    cpus: Vec<(f64, f64)>,
    /// The groups of each cell.
    cells: Vec<Vec<usize>>,
    layout: Layout,
}

impl Groups {
    fn name(&self, label: u32) -> String {
        self.names.get(label as usize).cloned().unwrap_or_default()
    }
}

/// A score, and the same from each replicate.
pub(crate) struct Judged {
    pub(crate) score: Score,
    replicates: Vec<f64>,
}

/// From the least to the most of some numbers; `None` if there are none.
fn hull(numbers: impl Iterator<Item = f64>) -> Option<[f64; 2]> {
    numbers
        .fold(None, |hull: Option<[f64; 2]>, it| Some(hull.map_or([it, it], |[low, high]| [low.min(it), high.max(it)])))
}

/// The name of a cell spec or layer for people.
fn cell_name(place: &Place) -> String {
    place.cell.as_ref().map_or_else(|| "(no cell)".to_owned(), |cell| printable(cell.as_bytes()))
}

/// The same of a subcell.
fn subcell_name(place: &Place) -> String {
    place.subcell.as_ref().map_or_else(|| "(rest)".to_owned(), |subcell| printable(subcell.as_bytes()))
}

impl Decider {
    /// The avoidable misses.
    pub(crate) fn avoidable(&self) -> Avoidable {
        Avoidable::new(&self.sharing, self.slices.as_ref())
    }

    /// The place of each thread in a configuration. Hints that were not recorded are not known.
    fn places(&self, placement: &Placement, knows_hints: bool) -> Vec<Place> {
        // Lines of JSON have the hints of their samples, although none were followed.
        let knows_hints = knows_hints || self.facts.iter().any(|it| it.hint.is_some());
        let mut placement = placement.clone();
        placement.know_cgroups(self.cell_of_cgroup.values().filter_map(|it| it.1.as_deref()));
        let processes = self.processes();
        let place = |facts: &Facts| {
            let task = Task::new(self.path_of(facts), facts.last.1.as_bytes()).ids(facts.pid, facts.tid);
            let task = task.process(processes.get(&facts.pid).map(Comm::as_bytes));
            placement.place_of(&if knows_hints { task.hinted(facts.hint) } else { task })
        };
        self.facts.iter().map(place).collect()
    }

    /// The names of processes, as far as they are known.
    pub(super) fn processes(&self) -> FxHashMap<u32, Comm> {
        let main = self.facts.iter().filter(|facts| facts.pid == facts.tid);
        let sampled = main.map(|facts| (facts.pid, facts.last.1));
        self.process_names.iter().map(|(&pid, &comm)| (pid, comm)).chain(sampled).collect()
    }

    fn groups(&self, placement: &Placement, places: &[Place], order: OnCaches) -> Groups {
        let mut number: BTreeMap<Place, u32> = BTreeMap::new();
        let mut counts: Vec<(usize, f64)> = Vec::new();
        let mut labels = Vec::with_capacity(self.facts.len());
        for (facts, place) in self.facts.iter().zip(places) {
            let next = number.len() as u32;
            let place = place.clone();
            let label = *number.entry(place).or_insert(next);
            if label == next {
                counts.push((0, 0.0));
            }
            if let Some(count) = counts.get_mut(label as usize) {
                *count = (count.0 + 1, count.1 + facts.samples);
            }
            labels.push(label);
        }
        let mut all = vec![Place::default(); number.len()];
        for (place, label) in number {
            if let Some(slot) = all.get_mut(label as usize) {
                *slot = place;
            }
        }
        let with_samples: Vec<(&Place, f64)> = all.iter().zip(&counts).map(|(place, count)| (place, count.1)).collect();
        let cpus = placement.cpus(&with_samples);
        let mut cells: BTreeMap<(Option<&String>, &[u8]), Vec<usize>> = BTreeMap::new();
        for (at, place) in all.iter().enumerate() {
            cells.entry((place.cell.as_ref(), &place.cgroup)).or_default().push(at);
        }
        let mut cells_of: BTreeMap<Option<&String>, usize> = BTreeMap::new();
        for (cell, _) in cells.keys() {
            *cells_of.entry(*cell).or_default() += 1;
        }
        let name = |place: &Place| {
            let cell = cell_name(place);
            let subcell = place.subcell.as_ref().map_or_else(String::new, |_| format!("/{}", subcell_name(place)));
            // Several cells of one spec have the same subcells.
            let is_one = cells_of.get(&place.cell.as_ref()).is_none_or(|&count| count < 2);
            let of = if is_one { String::new() } else { format!(" of {}", printable(&place.cgroup)) };
            format!("{cell}{subcell}{of}")
        };
        let names = all.iter().map(name).collect();
        let cells: Vec<Vec<usize>> = cells.into_values().collect();
        let layout = match Laid::new(placement, all.iter(), order) {
            Some(known) => {
                let mut loads = vec![Load::default(); all.len()];
                let awake = self.samples_of_awake();
                for (facts, &label) in self.facts.iter().zip(&labels) {
                    if let Some(load) = loads.get_mut(label as usize) {
                        load.add(1, facts.samples / awake);
                    }
                }
                known.layout(&all, &loads)
            }
            None => random(&cells, &cpus, &counts, order.llcs()),
        };
        Groups { names, labels, threads: counts.iter().map(|it| it.0).collect(), cpus, cells, layout, all }
    }

    /// The path of a thread's cgroup, as far as it is known; that of its cell where it was forgotten.
    pub(super) fn path_of(&self, facts: &Facts) -> &[u8] {
        let known = self.cell_of_cgroup.get(&facts.cgroup).and_then(|it| it.1.as_deref());
        let of_cell = || self.tally.get(facts.cell)?.cgroup.as_deref().filter(|path| !path.is_empty());
        known.or_else(of_cell).unwrap_or(b"/")
    }

    /// Why scx_mitosis would not run a configuration on a host with `target_cpus` CPUs, as far as the sampled cgroups show.
    pub(crate) fn refuses(&self, placement: &Placement, target_cpus: usize) -> Option<MitosisError> {
        let places =
            self.facts.iter().map(|it| placement.place_of(&Task::new(self.path_of(it), it.last.1.as_bytes())).cgroup);
        // The root's cell always exists.
        let cells = places.chain([Vec::new()]).collect::<BTreeSet<_>>().len();
        match placement.scheduler() {
            Scheduler::Layered => None,
            Scheduler::Mitosis if cells > MAX_CELLS => Some(MitosisError::TooManyCells { cells }),
            Scheduler::Mitosis => (cells > target_cpus).then_some(MitosisError::FewCpus { target_cpus, cells }),
        }
    }

    /// A label for each thread with a configuration: threads in one subcell, or layer, of one cell have the same. One that nothing
    /// but a catch-all takes has its own, as has one in a cell that is not divided.
    ///
    /// So has one that several layers may take: what its scheduler keeps together is at least this.
    ///
    /// On last-level caches that are known, the catch-all of a divided cell of scx_mitosis keeps its threads together if it has CPUs of
    /// one of them only.
    fn labels(&self, placement: &Placement, places: &[Place], decision: &Decision) -> Vec<u32> {
        let is_layered = placement.scheduler() == Scheduler::Layered;
        let cells = OnCaches::known(decision.caches, decision.target_cpus)
            .and_then(|on| Laid::new(placement, places.iter(), on));
        let is_near = |place: &Place| cells.as_ref().is_some_and(|it| it.is_near(place));
        let mut number: BTreeMap<&Place, u32> = BTreeMap::new();
        let mut labels = Vec::with_capacity(places.len());
        for (place, own) in places.iter().zip(0..) {
            let is_alone = place.is_rest || !place.maybe.is_empty() || (!is_layered && place.subcell.is_none());
            if is_alone && !is_near(place) {
                labels.push(own);
                continue;
            }
            let next = (self.facts.len() + number.len()) as u32;
            labels.push(*number.entry(place).or_insert(next));
        }
        labels
    }

    /// The score of a configuration with this name, for the samples of this decision.
    pub(crate) fn score(
        &self,
        decided: &Decided,
        avoidable: &Avoidable,
        (name, placement): (&str, &Placement),
        knows_hints: bool,
        order: OnCaches,
    ) -> Judged {
        let decision = &decided.found.configuration;
        let llcs = order.llcs();
        let places = self.places(placement, knows_hints);
        let groups = self.groups(placement, &places, order);
        let is_worth = avoidable.is_worth();
        let ways = self.ways(&places, &decided.members);
        let locality = |places: &[Place]| {
            decided.clusters.locality_of(&self.labels(placement, places, decision)).map(|it| it + 0.0)
        };
        let locality_range =
            (!ways.is_empty()).then(|| hull(ways.iter().chain([&places]).filter_map(|it| locality(it))));
        let score = Score {
            name: printable(name.as_bytes()),
            scheduler: if placement.scheduler() == Scheduler::Layered { "layered" } else { "mitosis" }.to_owned(),
            locality: locality(&places),
            locality_range: locality_range.flatten(),
            locality_below_best: None,
            score: None,
            interval: None,
            below_best: None,
            below_best_interval: None,
            cells: Vec::new(),
            pairs: Vec::new(),
            misplaced: Vec::new(),
            unmatched: self.unmatched(&groups),
            depends: self.depends(&places),
        };
        if !is_worth {
            return Judged { score, replicates: Vec::new() };
        }
        let whole = avoidable.avoided(&groups.labels, &groups.layout);
        let drawn = avoidable.replicates(&groups.labels, &groups.layout);
        let replicates: Vec<f64> = drawn.iter().map(Avoided::score).collect();
        let doubt = |of: &[usize]| {
            let values: Vec<f64> = drawn.iter().map(|it| it.part(of.iter().copied())).collect();
            let part = whole.part(of.iter().copied());
            avoidable.margin(&values).map(|margin| [part - margin, part + margin])
        };
        let interval = avoidable.margin(&replicates).map(|margin| [whole.score() - margin, whole.score() + margin]);
        let of_ways = ways.iter().map(|places| {
            let groups = self.groups(placement, places, order);
            let score = avoidable.avoided(&groups.labels, &groups.layout).score();
            let drawn = avoidable.replicates(&groups.labels, &groups.layout);
            let margin = avoidable.margin(&drawn.iter().map(Avoided::score).collect::<Vec<f64>>()).unwrap_or(0.0);
            [score - margin, score + margin]
        });
        let interval = if ways.is_empty() { interval } else { hull(of_ways.chain(interval).flatten()) };
        let pairs = avoidable.pairs(&groups.labels, &groups.layout).into_iter().take(LISTED);
        let pairs = pairs.map(|pair| {
            let mut names = [groups.name(pair.a), groups.name(pair.b)];
            names.sort();
            let [a, b] = names;
            PairScore { a, b, misses: pair.misses / whole.all.max(f64::MIN_POSITIVE) }
        });
        let score = Score {
            score: Some(whole.score()),
            interval,
            cells: cells(&groups, avoidable, &whole, &doubt, llcs),
            pairs: pairs.collect(),
            misplaced: self.misplaced(avoidable, &groups, whole.all),
            ..score
        };
        Judged { score, replicates }
    }

    fn misplaced(&self, avoidable: &Avoidable, groups: &Groups, all: f64) -> Vec<MisplacedThreads> {
        let mut found: BTreeMap<(&[u8], u32, u32), (usize, f64)> = BTreeMap::new();
        for it in avoidable.misplaced(&groups.labels, &groups.layout) {
            let at = it.thread as usize;
            let (Some(facts), Some(&label)) = (self.facts.get(at), groups.labels.get(at)) else { continue };
            let sum = found.entry((base_of(facts.last.1.as_bytes()), label, it.better)).or_default();
            *sum = (sum.0 + 1, sum.1 + it.misses / all.max(f64::MIN_POSITIVE));
        }
        let named = |((comm, from, to), (threads, misses)): ((&[u8], u32, u32), (usize, f64))| MisplacedThreads {
            comm: printable(comm),
            threads,
            from: groups.name(from),
            to: groups.name(to),
            misses,
        };
        let mut found: Vec<MisplacedThreads> = found.into_iter().map(named).collect();
        found.sort_by(|a, b| b.misses.total_cmp(&a.misses).then_with(|| (&a.comm, &a.from).cmp(&(&b.comm, &b.from))));
        found.truncate(LISTED);
        found
    }

    fn unmatched(&self, groups: &Groups) -> Vec<UnmatchedThreads> {
        let mut found: BTreeMap<(&[u8], String), (usize, f64)> = BTreeMap::new();
        let total = self.facts.iter().map(|facts| facts.samples).sum::<f64>().max(f64::MIN_POSITIVE);
        for (facts, &label) in self.facts.iter().zip(&groups.labels) {
            if groups.all.get(label as usize).is_some_and(|group| group.is_rest) {
                let sum = found.entry((base_of(facts.last.1.as_bytes()), groups.name(label))).or_default();
                *sum = (sum.0 + 1, sum.1 + facts.samples / total);
            }
        }
        let named = |((comm, place), (threads, share)): ((&[u8], String), (usize, f64))| UnmatchedThreads {
            comm: printable(comm),
            threads,
            place,
            share,
        };
        let mut found: Vec<UnmatchedThreads> = found.into_iter().map(named).collect();
        found.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| (&a.comm, &a.place).cmp(&(&b.comm, &b.place))));
        found.truncate(LISTED);
        found
    }
}

/// Where groups run whose order is unknown; their parts of the CPUs, and threads with samples.
fn random(cells: &[Vec<usize>], cpus: &[(f64, f64)], counts: &[(usize, f64)], llcs: u32) -> Layout {
    let group = |(&(cpus, _), &(threads, _)): (&(f64, f64), &(usize, f64))| Group { cell: 0, cpus, threads };
    let mut laid: Vec<Group> = cpus.iter().zip(counts).map(group).collect();
    for (number, of) in (0u32..).zip(cells) {
        for &at in of {
            if let Some(group) = laid.get_mut(at) {
                group.cell = number;
            }
        }
    }
    Layout::new(&laid, llcs)
}

/// The cells with the misses that they avoid, those that avoid most first.
fn cells(
    groups: &Groups,
    avoidable: &Avoidable,
    whole: &Avoided,
    doubt: &dyn Fn(&[usize]) -> Option<[f64; 2]>,
    llcs: u32,
) -> Vec<CellScore> {
    let number = |at: usize| groups.threads.get(at).copied().unwrap_or_default();
    let cpus = |at: usize| groups.cpus.get(at).copied().unwrap_or_default();
    let mut cell_of = vec![0; groups.all.len()];
    for (cell, of) in (0u32..).zip(&groups.cells) {
        for &at in of {
            if let Some(slot) = cell_of.get_mut(at) {
                *slot = cell;
            }
        }
    }
    let labels: Vec<u32> =
        groups.labels.iter().map(|it| cell_of.get(*it as usize).copied().unwrap_or_default()).collect();
    let in_one_cache = avoidable.avoided(&labels, &Layout::one_each(groups.cells.len(), groups.labels.len(), llcs));
    let mut cells: Vec<CellScore> = Vec::new();
    for (cell, of) in groups.cells.iter().enumerate() {
        let Some(place) = of.first().and_then(|&at| groups.all.get(at)) else { continue };
        let subcell = |&at: &usize| {
            let place = groups.all.get(at)?;
            let is_divided = place.subcell.is_some() || of.len() > 1;
            let (threads, cpus) = (number(at), cpus(at).0);
            let avoids = whole.part(std::iter::once(at));
            is_divided.then(|| SubcellScore {
                name: subcell_name(place),
                threads,
                cpus,
                avoids,
                interval: doubt(&[at]),
            })
        };
        let mut subcells: Vec<SubcellScore> = of.iter().filter_map(subcell).collect();
        subcells.sort_by(|a, b| b.avoids.total_cmp(&a.avoids).then_with(|| a.name.cmp(&b.name)));
        cells.push(CellScore {
            name: cell_name(place),
            cgroup: (!place.cgroup.is_empty()).then(|| printable(&place.cgroup)),
            threads: of.iter().map(|&at| number(at)).sum(),
            cpus: of.first().map_or(0.0, |&at| cpus(at).1),
            avoids: whole.part(of.iter().copied()),
            interval: doubt(of),
            at_most: in_one_cache.part(std::iter::once(cell)),
            subcells,
        });
    }
    cells.sort_by(|a, b| b.avoids.total_cmp(&a.avoids).then_with(|| (&a.name, &a.cgroup).cmp(&(&b.name, &b.cgroup))));
    cells
}

impl Judged {
    /// Compares it with the best configuration.
    pub(crate) fn below(&mut self, best: &Self, avoidable: &Avoidable) {
        if let (Some(ours), Some(theirs)) = (self.score.locality, best.score.locality) {
            self.score.locality_below_best = Some(theirs - ours);
        }
        let (Some(ours), Some(theirs)) = (self.score.score, best.score.score) else { return };
        self.score.below_best = Some(theirs - ours);
        let below: Vec<f64> =
            self.replicates.iter().zip(&best.replicates).map(|(ours, theirs)| theirs - ours).collect();
        self.score.below_best_interval =
            avoidable.margin(&below).map(|margin| [theirs - ours - margin, theirs - ours + margin]);
    }
}
