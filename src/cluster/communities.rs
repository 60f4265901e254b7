//! Communities: threads whose possible misses fall on the same regions, joined as long as the evidence suffices.

use super::linkage::{link, Affinity};
use super::misses::{Misses, Use, L1_LINES};
use super::regions::regions;
use super::rules::{Demand, RawCommunity, Region, Rules, Sharer};
use super::unions::Sets;

/// Lines of a last-level cache (32 MiB). Of a larger region, the next thread finds at most this much in the cache.
const LLC_LINES: f64 = 524_288.0;

/// The largest number of transfers to a thread for one transfer to the threads that contend with it.
pub(crate) const BACK_AND_FORTH: f64 = 3.0;

/// The regions of one cell and its communities; `threads` are its threads by rank, and `uses` their accesses, by rank.
pub(crate) fn solve(
    misses: &Misses,
    uses: Vec<Use>,
    threads: &[u32],
    owner: impl Fn(u32) -> u32,
    rules: &Rules,
) -> (Vec<Region>, Vec<RawCommunity>) {
    let (regions, scopes, demand) = shared(misses, uses, threads, owner, Some(rules));
    let mut found = Vec::new();
    for component in &scopes.components {
        found.append(&mut in_component(component, &scopes, &regions, &demand, rules));
    }
    (regions, found)
}

/// The regions that these threads share, by rank; none counts as a hub.
pub(crate) fn shared_regions(misses: &Misses, threads: &[u32], owner: impl Fn(u32) -> u32) -> Vec<Region> {
    let ranks = Ranks::new(misses, std::iter::once(threads));
    shared(misses, ranks.uses(misses, 0), threads, owner, None).0
}

/// The uses of each of several cells, found in one pass: a host can have a thousand cells, and a search for each would read all uses
/// as often.
pub(crate) struct Ranks {
    /// Of each thread its rank in its cell.
    rank_of: Vec<u32>,
    /// The uses by cell, each as its index, in their order.
    uses: Vec<u32>,
    /// Where those of each cell begin, and the end.
    begins: Vec<usize>,
}

impl Ranks {
    /// For the threads of these cells by rank; no thread is in two.
    pub(crate) fn new<'a>(misses: &Misses, cells: impl Iterator<Item = &'a [u32]>) -> Self {
        let mut rank_of = vec![u32::MAX; misses.demand.len()];
        let mut cell_of = vec![usize::MAX; misses.demand.len()];
        let mut count = 0;
        for (cell, threads) in cells.enumerate() {
            for (&thread, rank) in threads.iter().zip(0..) {
                rank_of[thread as usize] = rank;
                cell_of[thread as usize] = cell;
            }
            count = cell + 1;
        }
        let of = |it: &Use| Some(cell_of[it.thread as usize]).filter(|&cell| cell != usize::MAX);
        let mut begins = vec![0; count + 1];
        for cell in misses.uses.iter().filter_map(of) {
            begins[cell + 1] += 1;
        }
        for cell in 0..count {
            begins[cell + 1] += begins[cell];
        }
        let mut next = begins.clone();
        let mut uses = vec![0; begins[count]];
        for (it, at) in misses.uses.iter().zip(0..) {
            if let Some(cell) = of(it) {
                uses[next[cell]] = at;
                next[cell] += 1;
            }
        }
        Self { rank_of, uses, begins }
    }

    /// The accesses of the threads of a cell, by their ranks.
    pub(crate) fn uses(&self, misses: &Misses, cell: usize) -> Vec<Use> {
        let of_cell = self.uses[self.begins[cell]..self.begins[cell + 1]].iter().map(|&at| &misses.uses[at as usize]);
        of_cell.map(|it| Use { thread: self.rank_of[it.thread as usize], ..*it }).collect()
    }
}

fn shared(
    misses: &Misses,
    mut uses: Vec<Use>,
    threads: &[u32],
    owner: impl Fn(u32) -> u32,
    rules: Option<&Rules>,
) -> (Vec<Region>, Scopes, Vec<Demand>) {
    let demand: Vec<Demand> = threads
        .iter()
        .map(|&thread| Demand {
            misses: misses.demand[thread as usize].max(f64::MIN_POSITIVE),
            count: misses.count[thread as usize].max(f64::MIN_POSITIVE),
            counted: misses.counted[thread as usize].max(f64::MIN_POSITIVE),
        })
        .collect();
    let scopes = Scopes::new(misses, threads);
    uses.sort_unstable_by_key(|it| (it.object, it.line, it.thread));
    let owners: Vec<u32> = threads.iter().map(|&thread| owner(thread)).collect();
    let mut found_regions = Vec::new();
    for uses in uses.chunk_by(|a, b| a.object == b.object) {
        let first = owners[uses[0].thread as usize];
        if uses.iter().all(|it| owners[it.thread as usize] == first) {
            continue;
        }
        let users = scopes.users_of(uses[0].object, uses[0].thread);
        for range in regions(uses, users.len(), misses.is_thinned) {
            if let Some(mut region) = Region::new(&uses[range], &owners, scopes.is_private(uses[0].object)) {
                region.is_hub = rules.is_some_and(|rules| is_hub(&region, users, &demand, rules));
                found_regions.push(region);
            }
        }
    }
    fit(&mut found_regions, threads.len());
    (found_regions, scopes, demand)
}

/// Which threads could use which memory.
struct Scopes {
    /// For each object that more than one thread touches, sorted: whether it is private, and its threads.
    objects: Vec<(u64, bool, Vec<u32>)>,
    /// Threads that are connected by objects that they touch. No other thread affects the verdict on these.
    components: Vec<Vec<u32>>,
    component_of: Vec<usize>,
}

impl Scopes {
    fn new(misses: &Misses, threads: &[u32]) -> Self {
        let mut touched: Vec<(u64, bool, u32)> = Vec::new();
        for (&thread, rank) in threads.iter().zip(0..) {
            let objects = misses.objects.get(thread as usize).map(Vec::as_slice).unwrap_or_default();
            touched.extend(objects.iter().map(|&(object, is_private)| (object, is_private, rank)));
        }
        touched.sort_unstable();
        let mut parent: Vec<u32> = (0..threads.len() as u32).collect();
        let mut objects = Vec::new();
        for object in touched.chunk_by(|a, b| a.0 == b.0).filter(|object| object.len() > 1) {
            for pair in object.windows(2) {
                let (a, b) = (root(&mut parent, pair[0].2), root(&mut parent, pair[1].2));
                parent[a.max(b) as usize] = a.min(b);
            }
            objects.push((object[0].0, object[0].1, object.iter().map(|it| it.2).collect()));
        }
        let mut component_of = vec![usize::MAX; threads.len()];
        let mut components: Vec<Vec<u32>> = Vec::new();
        for rank in 0..threads.len() as u32 {
            let root = root(&mut parent, rank) as usize;
            if component_of[root] == usize::MAX {
                component_of[root] = components.len();
                components.push(Vec::new());
            }
            component_of[rank as usize] = component_of[root];
            components[component_of[root]].push(rank);
        }
        Self { objects, components, component_of }
    }

    fn object(&self, object: u64) -> Option<&(u64, bool, Vec<u32>)> {
        self.objects.get(self.objects.binary_search_by_key(&object, |it| it.0).ok()?)
    }

    fn is_private(&self, object: u64) -> bool {
        self.object(object).is_some_and(|it| it.1)
    }

    /// The threads that could use an object that `user` uses: those of the process, or all that it is connected with.
    fn users_of(&self, object: u64, user: u32) -> &[u32] {
        match self.object(object) {
            Some((_, true, threads)) => threads,
            _ => &self.components[self.component_of[user as usize]],
        }
    }

    /// The processes of a component that have more than one thread.
    fn processes<'a>(&'a self, component: &'a [u32]) -> impl Iterator<Item = &'a [u32]> {
        let of = component.first().map(|&rank| self.component_of[rank as usize]);
        self.objects
            .iter()
            .filter(move |it| it.1 && it.2.first().map(|&rank| self.component_of[rank as usize]) == of)
            .map(|it| &it.2[..])
    }
}

fn root(parent: &mut [u32], mut at: u32) -> u32 {
    while parent[at as usize] != at {
        parent[at as usize] = parent[parent[at as usize] as usize];
        at = parent[at as usize];
    }
    at
}

impl Region {
    /// `None` if only one thread uses it.
    fn new(uses: &[Use], owners: &[u32], is_private: bool) -> Option<Self> {
        let (first, last) = (uses.first()?, uses.last()?);
        let mut by_thread: Vec<&Use> = uses.iter().collect();
        by_thread.sort_by_key(|it| it.thread);
        let sharers: Vec<Sharer> = by_thread
            .chunk_by(|a, b| a.thread == b.thread)
            .map(|uses| {
                let sum = |of: fn(&Use) -> f32| uses.iter().map(|it| f64::from(of(it))).sum::<f64>();
                Sharer {
                    thread: uses[0].thread,
                    misses: sum(|it| it.misses * it.stands_for),
                    transfers: sum(|it| it.transfers * it.stands_for),
                    moved: sum(|it| it.moved * it.stands_for),
                    accesses: sum(|it| it.accesses as f32 * it.stands_for),
                    writes: sum(|it| it.writes as f32 * it.stands_for),
                    counted: sum(|it| it.count),
                }
            })
            .collect();
        let owner = owners[sharers[0].thread as usize];
        if sharers.iter().all(|it| owners[it.thread as usize] == owner) {
            return None;
        }
        let touches = uses.len() as f64;
        // With few touches, the ends of a range lie a little beyond the first and the last touch.
        let span = (last.line - first.line + 1) as f64 * (touches + 1.0) / (touches - 1.0).max(1.0);
        // Chao's estimate of the number of lines, from those seen once and twice.
        let (mut seen, mut once, mut twice, mut all) = (0.0, 0.0, 0.0, 0);
        let mut stands_for = 0.0;
        for line in uses.chunk_by(|a, b| a.line == b.line) {
            let accesses: u64 = line.iter().map(|it| u64::from(it.accesses)).sum();
            all += accesses;
            seen += 1.0;
            once += f64::from(u8::from(accesses == 1));
            twice += f64::from(u8::from(accesses == 2));
            stands_for += f64::from(line[0].stands_for);
        }
        let unseen = once * (once - 1.0).max(0.0) / (2.0 * (twice + 1.0));
        let lines = (stands_for * (1.0 + unseen / seen)).min(span.max(seen));
        // Data that no thread writes, that the threads use again and that fits into a core's own cache is fetched once by each.
        let is_written = uses.iter().any(|it| it.writes > 0 || it.transfers > 0.0 || it.hitm > 0);
        let is_kept = !is_written && lines <= L1_LINES && all as f64 >= 2.0 * touches;
        Some(Self {
            object: first.object,
            is_private,
            first: first.line,
            last: last.line,
            lines,
            fits: if is_kept { 0.0 } else { 1.0 },
            is_hub: false,
            sharers,
        })
    }

    /// The part of a sharer's possible misses that falls on the part of the region that fits into a cache.
    pub(crate) fn part(&self, sharer: &Sharer, demand: &[Demand]) -> f64 {
        self.fits * sharer.misses / demand[sharer.thread as usize].misses
    }
}

/// For threads that use more than a last-level cache holds: finds which part of each region fits. A cache keeps what is used
/// most densely, so data used half as densely as a region, or less, takes no room from it.
fn fit(regions: &mut [Region], threads: usize) {
    let span = |region: &Region| (region.last - region.first + 1) as f64;
    let mut used: Vec<Vec<(f64, usize)>> = vec![Vec::new(); threads];
    for (at, region) in regions.iter().enumerate() {
        let density = region.sharers.iter().map(|it| it.misses).sum::<f64>() / span(region);
        for it in &region.sharers {
            used[it.thread as usize].push((density, at));
        }
    }
    // Per region: misses that fit, and all.
    let mut fits = vec![(0.0, 0.0); regions.len()];
    for (thread, used) in (0..).zip(&mut used) {
        used.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (mut taken, mut next) = (0.0, 0);
        for at in 0..used.len() {
            let (density, region) = used[at];
            while let Some(&(_, other)) = used.get(next).filter(|it| it.0 > density / 2.0) {
                taken += span(&regions[other]);
                next += 1;
            }
            let sharer = regions[region].sharers.binary_search_by_key(&thread, |it| it.thread);
            let misses = sharer.map_or(0.0, |at| regions[region].sharers[at].misses);
            fits[region].0 += misses * (LLC_LINES / taken).min(1.0);
            fits[region].1 += misses;
        }
    }
    for (region, (fits, all)) in regions.iter_mut().zip(fits) {
        region.fits *= if all > 0.0 { fits / all } else { 1.0 };
    }
}

/// True if few of the threads that could use the region certainly do not. A thread certainly does not use it if one that used
/// it as the others do would rarely have so few accesses. Threads with so few samples that none in the region would tell nothing
/// do not count, unless they use it: many short processes would make the memory of a pair that of all.
fn is_hub(region: &Region, users: &[u32], demand: &[Demand], rules: &Rules) -> bool {
    let sum = |of: &dyn Fn(&Sharer) -> f64| region.sharers.iter().map(of).sum::<f64>();
    let rate = sum(&|it| it.counted) / sum(&|it| demand[it.thread as usize].counted);
    let z = rules.surely;
    let upper = |count: f64| count + z * (count + z * z / 4.0).sqrt() + z * z / 2.0;
    let few = |rank: u32, count: f64| upper(count) < demand[rank as usize].counted * rate / 2.0;
    let none = users.iter().filter(|&&rank| few(rank, 0.0)).count();
    let touching = region.sharers.iter().filter(|it| few(it.thread, 0.0)).count();
    let hardly = region.sharers.iter().filter(|it| few(it.thread, it.counted)).count();
    let told = none + region.sharers.len() - touching.min(region.sharers.len());
    ((none - touching.min(none) + hardly) as f64) < rules.others * told as f64
}

/// The communities of threads that are connected.
fn in_component(
    component: &[u32],
    scopes: &Scopes,
    regions: &[Region],
    demand: &[Demand],
    rules: &Rules,
) -> Vec<RawCommunity> {
    if component.len() < 2 {
        return Vec::new();
    }
    let of = scopes.component_of[component[0] as usize];
    let own: Vec<&Region> =
        regions.iter().filter(|it| scopes.component_of[it.sharers[0].thread as usize] == of).collect();
    let mut local = vec![u32::MAX; demand.len()];
    for (&rank, at) in component.iter().zip(0..) {
        local[rank as usize] = at;
    }
    let affinity = Affinity::new(component.len(), own.iter().filter(|it| !it.is_hub).copied(), &local, demand);
    let demands: Vec<Demand> = component.iter().map(|&rank| demand[rank as usize]).collect();
    let linked: Vec<RawCommunity> = link(&affinity, &demands, rules)
        .into_iter()
        .filter_map(|members| affinity.found(&members, &demands, rules).filter(|it| it.deviations >= 0.0))
        .collect();
    let mut found = unite(&linked, &own, &affinity, component, demand, rules);
    // The rest may be one community of all threads, and its memory then looks like a hub.
    let mut is_open = vec![false; demand.len()];
    for &rank in component {
        is_open[rank as usize] = true;
    }
    for &rank in found.iter().flat_map(|it| &it.members) {
        is_open[rank as usize] = false;
    }
    // Threads that each contend with one central thread (workers that wait for a dispatcher) have little in common in pairs.
    for process in scopes.processes(component) {
        let Some(all) = whole(process, true, false, &own, demand, rules).filter(|all| all.is_contended) else {
            continue;
        };
        if captured(&found, &own, process) < rules.cohesion {
            found.retain(|it| it.members.iter().all(|rank| process.binary_search(rank).is_err()));
            for &rank in process {
                is_open[rank as usize] = true;
            }
            for &rank in &all.members {
                is_open[rank as usize] = false;
            }
            found.push(all);
        }
    }
    let all_of = |scope: &[u32], spans_processes: bool| {
        let open: Vec<u32> = scope.iter().copied().filter(|&rank| is_open[rank as usize]).collect();
        whole(&open, open.len() == scope.len(), spans_processes, &own, demand, rules)
    };
    let processes: Vec<RawCommunity> = scopes.processes(component).filter_map(|it| all_of(it, false)).collect();
    // Judge a process separately, unless it has about as much in common with the other processes.
    let most = processes.iter().map(|it| it.common).fold(0.0, f64::max);
    let spans_processes = scopes.processes(component).all(|it| it.len() < component.len());
    let together = all_of(component, spans_processes).filter(|it| it.common >= rules.cohesion * most);
    match together {
        Some(together) => found.push(together),
        None => found.extend(processes),
    }
    found
}

/// Merges communities, and adds and moves threads, by what they avoid.
fn unite(
    linked: &[RawCommunity],
    regions: &[&Region],
    affinity: &Affinity,
    component: &[u32],
    demand: &[Demand],
    rules: &Rules,
) -> Vec<RawCommunity> {
    let rank = |at: &u32| component[*at as usize];
    let sets: Vec<Vec<u32>> = linked.iter().map(|it| it.members.iter().map(rank).collect()).collect();
    let shared = regions.iter().filter(|it| !it.is_hub).copied();
    let mut sets = Sets::new(&sets, shared, demand, rules);
    sets.settle();
    sets.add_sets(component);
    let demands: Vec<Demand> = component.iter().map(|&rank| demand[rank as usize]).collect();
    let described = |(set, members): (u32, Vec<u32>)| {
        let local: Vec<u32> =
            members.iter().filter_map(|rank| Some(component.binary_search(rank).ok()? as u32)).collect();
        let found = affinity.found(&local, &demands, rules)?;
        // It is as certain as the set to which others were added.
        let deviations = linked.get(set as usize).map_or(found.deviations, |it| it.deviations.max(found.deviations));
        Some(RawCommunity { members, deviations, ..found })
    };
    sets.members().into_iter().filter_map(described).collect()
}

/// The part of the misses in regions other than hubs that the communities avoid, of all that these threads could avoid.
fn captured(found: &[RawCommunity], regions: &[&Region], threads: &[u32]) -> f64 {
    let (mut kept, mut all) = (0.0, 0.0);
    for region in regions.iter().filter(|it| !it.is_hub) {
        all += region.avoided(|rank| threads.binary_search(&rank).is_ok());
        kept += found.iter().map(|it| region.avoided(|rank| it.members.binary_search(&rank).is_ok())).sum::<f64>();
    }
    if all > 0.0 {
        kept / all
    } else {
        1.0
    }
}

/// One community of the remaining threads of a scope, if they have enough in common even without other threads
/// to compare with: either data, of which no line counts for more than its part, or, if there is no finer community
/// (`is_whole`), lines that all of them write.
fn whole(
    open: &[u32],
    is_whole: bool,
    spans_processes: bool,
    regions: &[&Region],
    demand: &[Demand],
    rules: &Rules,
) -> Option<RawCommunity> {
    if open.len() < 2 {
        return None;
    }
    let mut data = vec![0.0; demand.len()];
    // By number, and by cost if few lines cause it.
    let mut contended = vec![0.0; demand.len()];
    let mut few = vec![0.0; demand.len()];
    // What processes write into memory that they share on purpose.
    let mut exchanged = vec![0.0; demand.len()];
    let mut is_open = vec![false; demand.len()];
    for &rank in open {
        is_open[rank as usize] = true;
    }
    let others = (open.len() - 1) as f64;
    for region in regions {
        let sharers: Vec<&Sharer> = region.sharers.iter().filter(|it| is_open[it.thread as usize]).collect();
        if sharers.len() < 2 {
            continue;
        }
        let part = |it: &Sharer| region.part(it, demand);
        let sum: f64 = sharers.iter().map(|it| part(it)).sum();
        let common = |part: f64| part.min((sum - part) / others);
        let mean = sharers.iter().map(|it| common(part(it))).sum::<f64>() / open.len() as f64;
        let limit = region.lines * rules.worth_of_all / rules.lines_of_all;
        let factor = (limit / mean.max(f64::MIN_POSITIVE)).min(1.0);
        let is_exchanged = spans_processes && !region.is_private && sharers.iter().any(|it| it.writes > 0.0);
        let transfers: f64 = sharers.iter().map(|it| it.transfers).sum();
        let moved: f64 = sharers.iter().map(|it| it.moved).sum();
        // Locks, counters and fields of threads; what is mostly read is a flag or a setting, and rarely waited for.
        let (accesses, writes) = sharers.iter().fold((0.0, 0.0), |sum, it| (sum.0 + it.accesses, sum.1 + it.writes));
        let is_few = region.lines <= rules.few_lines && writes * 2.0 > accesses;
        for it in sharers {
            data[it.thread as usize] += common(part(it)) * factor;
            if is_exchanged {
                exchanged[it.thread as usize] += common(part(it));
            }
            // A line goes back and forth: each of a few accesses by the others can have caused a transfer or two.
            let Demand { misses, count, .. } = demand[it.thread as usize];
            contended[it.thread as usize] += it.transfers.min(BACK_AND_FORTH * (transfers - it.transfers)) / count;
            if is_few {
                few[it.thread as usize] += it.moved.min(BACK_AND_FORTH * (moved - it.moved)) / misses;
            }
        }
    }
    of_all(open, &data, rules.worth_of_all, demand, rules).or_else(|| {
        let of = |contended: &[f64], worth| of_all(open, contended, worth, demand, rules);
        let found =
            is_whole.then(|| of(&contended, rules.contention).or_else(|| of(&few, rules.worth_of_few))).flatten();
        found.map(|found| RawCommunity { is_contended: true, ..found }).or_else(|| of(&exchanged, rules.worth))
    })
}

/// The threads with as much in common as those that certainly have enough, if these are at least two and most of them. One miss
/// of a thread with few samples is a large part of them, but not certain: of many short processes, those that happened to be
/// sampled at a common line would be a community.
fn of_all(open: &[u32], common: &[f64], worth: f64, demand: &[Demand], rules: &Rules) -> Option<RawCommunity> {
    let common_of = |rank: u32| common[rank as usize];
    let is_sure = |rank: u32| {
        let part = common_of(rank);
        part >= worth && part * demand[rank as usize].counted >= rules.join * rules.join
    };
    let sure: Vec<f64> = open.iter().filter(|&&rank| is_sure(rank)).map(|&rank| common_of(rank)).collect();
    if sure.len() < 2 {
        return None;
    }
    let mean = sure.iter().sum::<f64>() / sure.len() as f64;
    let mut members: Vec<u32> = open.iter().copied().filter(|&rank| common_of(rank) >= mean / 2.0).collect();
    if sure.len() * 2 <= members.len() {
        return None;
    }
    members.sort_unstable();
    let weight: f64 = members.iter().map(|&rank| demand[rank as usize].misses).sum();
    let counted: f64 = members.iter().map(|&rank| demand[rank as usize].counted).sum();
    let pooled = members.iter().map(|&rank| common_of(rank) * demand[rank as usize].misses).sum::<f64>() / weight;
    let deviations = (pooled - worth) / (pooled / counted).sqrt() - rules.sure;
    (deviations >= 0.0).then_some(RawCommunity {
        members,
        common: pooled,
        deviations,
        is_all: true,
        is_contended: false,
        stability: None,
        over_time: None,
    })
}
