//! What threads of different cells share. Communities are found within a cell, so they do not show this.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::rules::Rules;
use super::score::Avoidable;
use super::sharers::{by_label, compared, main_number, LabelUse, Shared};
use super::sketch::Sharing;
use crate::sample::{MemoryId, LINE_SIZE, PAGE_SIZE};

/// Pairs of cells that are reported: those that share most.
const PAIRS: usize = 64;
/// Pairs of cells that are remembered. A host with thousands of containers has millions of them.
const REMEMBERED: usize = 8192;

/// What cells share with each other.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Across {
    /// The pairs of cells that would certainly gain from one cache, those that lose most first.
    pub pairs: Vec<CellPair>,
    /// How many more such pairs there are.
    pub left_out: usize,
    /// For each thread, whether it and the threads of all other cells would certainly gain from one cache.
    pub shares: Vec<bool>,
}

/// Two cells that share memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CellPair {
    /// The cell with fewer possible misses.
    pub smaller: u32,
    /// The other one.
    pub larger: u32,
    /// The part of the smaller one's possible misses that one cache for both avoids.
    pub part: f64,
    /// The possible misses of both that it avoids.
    pub misses: f64,
    /// The first byte of the region in which it avoids most; `None` for a file beyond the number that the sketch can name.
    pub memory: Option<MemoryId>,
    /// The thread of the smaller one, and that of the larger one, with most misses there.
    pub threads: [u32; 2],
}

/// A part of the possible misses, with its variance.
#[derive(Debug, Clone, Copy, Default)]
struct Gain {
    misses: f64,
    variance: f64,
}

impl Gain {
    /// Adds a value that rests on `counted` misses: a Poisson count is uncertain by its square root.
    fn add(&mut self, misses: f64, counted: f64) {
        self.misses += misses;
        self.variance += misses * misses / counted.max(1.0);
    }

    /// True if it is certainly as large a part of `demand` as is worth it.
    fn is_worth(self, demand: f64) -> bool {
        let Rules { worth, sure, .. } = Rules::default();
        self.misses > 0.0 && self.misses - sure * self.variance.sqrt() >= worth * demand
    }
}

/// What two cells avoid with one cache for both.
#[derive(Debug, Clone, Copy, Default)]
struct Between {
    /// Misses of the first one, and of the second.
    gains: [Gain; 2],
    /// Those of both in the region with most, its index, and the most active threads there.
    most: f64,
    region: usize,
    threads: [u32; 2],
}

impl Between {
    fn misses(&self) -> f64 {
        self.gains[0].misses + self.gains[1].misses
    }
}

impl Sharing {
    /// What cells share with each other, by the cell of each thread. Nothing is computed if no memory is shared by two cells.
    pub(crate) fn across(&self, cells: &[u32]) -> Across {
        let none = Across { shares: vec![false; cells.len()], ..Across::default() };
        if !self.is_any_of_two(cells) {
            return none;
        }
        let avoidable = Avoidable::new(self, None);
        let (found, regions) = avoidable.across(cells);
        // The pages in which the regions begin.
        let lines = PAGE_SIZE / LINE_SIZE;
        let mut first: FxHashMap<(u64, u64), Option<MemoryId>> =
            regions.iter().map(|region| ((region.object, region.first), None)).collect();
        for page in self.pages() {
            let (object, begin, _) = self.address(page);
            for line in 0..lines {
                if let Some(place) = first.get_mut(&(object, begin + line)) {
                    *place = self.line_place(page, line as u32);
                }
            }
        }
        let memory = |region: &&Shared| first.get(&(region.object, region.first)).copied().flatten();
        let pairs = found.pairs.into_iter().zip(regions.iter().map(memory));
        Across { pairs: pairs.map(|(pair, memory)| CellPair { memory, ..pair }).collect(), ..found }
    }

    /// True if threads of two cells touched one object: a file, or an address space.
    fn is_any_of_two(&self, cells: &[u32]) -> bool {
        let mut cell_of: FxHashMap<u64, u32> = FxHashMap::default();
        self.touches_and_pages(false).any(|(touch, page)| {
            let cell = cells.get(touch.thread as usize).copied().unwrap_or(0);
            *cell_of.entry(self.address(page).0).or_insert(cell) != cell
        })
    }
}

impl Avoidable {
    /// What cells share, without the memory, and the region in which each pair shares most.
    fn across(&self, cells: &[u32]) -> (Across, Vec<&Shared>) {
        let mut demand: BTreeMap<u32, f64> = BTreeMap::new();
        let cell_of = |thread: u32| cells.get(thread as usize).copied().unwrap_or(0);
        for (thread, misses) in (0u32..).zip(&self.demand) {
            *demand.entry(cell_of(thread)).or_default() += misses;
        }
        let mut pairs: FxHashMap<(u32, u32), Between> = FxHashMap::default();
        let mut of_thread: Vec<Gain> = vec![Gain::default(); self.demand.len()];
        for (index, region) in self.regions.iter().enumerate() {
            let by_owner = region.by_owner(cell_of);
            let uses = by_label(&by_owner, usize::MAX);
            if region.fits <= 0.0 || uses.len() < 2 {
                continue;
            }
            region.add_threads(&uses, &cell_of, &mut of_thread);
            add_pairs(index, region.fits, &compared(&by_owner), &mut pairs);
        }
        let demand_of = |cell: u32| demand.get(&cell).copied().unwrap_or_default();
        let mut worth: Vec<(CellPair, usize)> = Vec::new();
        for (&(a, b), between) in &pairs {
            let at = usize::from(demand_of(b) < demand_of(a));
            let (smaller, larger) = if at == 0 { (a, b) } else { (b, a) };
            let (gain, demand) = (between.gains[at], demand_of(smaller));
            if gain.is_worth(demand) {
                let threads = [between.threads[at], between.threads[1 - at]];
                let part = (gain.misses / demand.max(f64::MIN_POSITIVE)).min(1.0);
                let pair = CellPair { smaller, larger, part, misses: between.misses(), memory: None, threads };
                worth.push((pair, between.region));
            }
        }
        let order = |(a, _): &(CellPair, usize), (b, _): &(CellPair, usize)| {
            b.misses.total_cmp(&a.misses).then_with(|| (a.smaller, a.larger).cmp(&(b.smaller, b.larger)))
        };
        worth.sort_by(order);
        let left_out = worth.len().saturating_sub(PAIRS);
        worth.truncate(PAIRS);
        let shares = cells.iter().enumerate().map(|(thread, _)| {
            let demand = self.demand.get(thread).copied().unwrap_or_default();
            of_thread.get(thread).is_some_and(|gain| gain.is_worth(demand))
        });
        let across = Across { pairs: worth.iter().map(|it| it.0).collect(), left_out, shares: shares.collect() };
        (across, worth.iter().filter_map(|it| self.regions.get(it.1)).collect())
    }
}

impl Shared {
    /// Adds what each thread avoids in one cache with the threads of all other cells.
    fn add_threads(&self, cells: &[LabelUse<u32>], cell_of: &impl Fn(u32) -> u32, of_thread: &mut [Gain]) {
        let mut by_fills: Vec<&LabelUse<u32>> = cells.iter().collect();
        by_fills.sort_by(|a, b| b.together.most().total_cmp(&a.together.most()));
        let Some((first, others)) = by_fills.split_first() else { return };
        let mut all = **first;
        for it in others {
            all.add(it);
        }
        let mut uses = self.all_uses().into_iter();
        for sharers in self.sharers.chunk_by(|a, b| a.owner == b.owner) {
            let main = main_number(sharers).map(cell_of);
            for (it, together) in sharers.iter().zip(&mut uses) {
                let cell = cell_of(it.seen.thread);
                // Under another hint it may be of another cell: the thread's uses are none of these.
                let own = [Some(cell), main.filter(|main| *main != cell)];
                let most =
                    by_fills.iter().find(|it| !own.contains(&Some(it.label))).map_or(0.0, |it| it.together.most());
                let at = |cell: u32| cells.binary_search_by_key(&cell, |it| it.label).ok().and_then(|at| cells.get(at));
                let others = own.into_iter().flatten().filter_map(at).fold(all, |rest, it| rest.less(it, most));
                if let Some(gain) = of_thread.get_mut(it.seen.thread as usize) {
                    let [misses, _] = LabelUse::new(cell, it, together).between(&others);
                    gain.add(self.fits * misses, it.seen.counted.min(others.counted));
                }
            }
        }
    }
}

/// Adds what each two cells avoid in a region.
fn add_pairs(region: usize, fits: f64, uses: &[LabelUse<u32>], pairs: &mut FxHashMap<(u32, u32), Between>) {
    for (at, a) in uses.iter().enumerate() {
        for b in uses.get(at + 1..).unwrap_or_default() {
            let gains = a.between(b).map(|misses| fits * misses);
            let between = pairs.entry((a.label, b.label)).or_default();
            for (sum, gain) in between.gains.iter_mut().zip(gains) {
                sum.add(gain, a.counted.min(b.counted));
            }
            let both = gains[0] + gains[1];
            if both > between.most {
                (between.most, between.region, between.threads) = (both, region, [a.busiest.1, b.busiest.1]);
            }
        }
    }
    if pairs.len() > 2 * REMEMBERED {
        let mut misses: Vec<f64> = pairs.values().map(Between::misses).collect();
        misses.sort_by(|a, b| b.total_cmp(a));
        let least = misses.get(REMEMBERED).copied().unwrap_or_default();
        pairs.retain(|_, it| it.misses() > least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::truth::{Rng, Scenario};
    use crate::sample::{Access, MemoryScope, RawSample, Sample};

    fn store(thread: u32, memory: MemoryId) -> Sample {
        let raw = RawSample { pid: thread, tid: thread, access: Access::Store, ..RawSample::default() };
        Sample { raw, thread, memory: Some(memory), ..Sample::default() }
    }

    /// Threads; each makes this part of its stores to a file of 64 pages, and the others to private memory.
    fn sharing(parts: &[f64], samples: u32) -> Sharing {
        let mut rng = Rng::new(7);
        let mut sharing = Sharing::new(4 << 20);
        for _ in 0..samples {
            for (thread, &part) in (0u32..).zip(parts) {
                let at = 0x10_0000 + rng.below(64 * PAGE_SIZE) / LINE_SIZE * LINE_SIZE;
                let memory = if rng.unit() < part {
                    MemoryId::Shared { scope: MemoryScope::device(1, 0), ino: 2, offset: at }
                } else {
                    MemoryId::Private { space: thread, addr: at }
                };
                sharing.add(&store(thread, memory));
            }
        }
        sharing
    }

    #[test]
    fn what_two_cells_share_is_found_with_its_memory() {
        // Two threads of one cell use the file, and one of another; a third cell has memory of its own.
        let found = sharing(&[0.75, 0.0, 0.75, 0.0], 3000).across(&[5, 5, 6, 7]);
        let [pair] = found.pairs[..] else { panic!("{found:?}") };
        // Cell 6 has half of the misses of cell 5, and about as many of them are in the file as it says.
        assert_eq!((pair.smaller, pair.larger, pair.threads), (6, 5, [2, 0]));
        assert!((0.3..0.95).contains(&pair.part), "{pair:?}");
        let Some(MemoryId::Shared { ino: 2, offset, .. }) = pair.memory else { panic!("{pair:?}") };
        assert!((0x10_0000..0x10_0000 + 64 * PAGE_SIZE).contains(&offset), "{pair:?}");
        assert_eq!((found.shares, found.left_out), (vec![true, false, true, false], 0));
    }

    #[test]
    fn of_a_table_that_the_threads_of_two_cells_read_one_cache_spares_one_fetch() {
        let mut sharing = Sharing::new(4 << 20);
        for line in 0..1024 {
            for thread in 0..8 {
                let load = store(
                    thread,
                    MemoryId::Shared { scope: MemoryScope::device(1, 0), ino: 2, offset: line * LINE_SIZE },
                );
                sharing.add(&Sample { raw: RawSample { access: Access::Load, ..load.raw }, ..load });
            }
        }
        let [pair] = sharing.across(&[0, 1, 0, 1, 0, 1, 0, 1]).pairs[..] else { panic!("one pair") };
        // Each of eight threads fetches it; each cell has it fetched once, and whoever is first does it for both.
        assert!((pair.misses / 1024.0 - 1.0).abs() < 0.01 && (pair.part - 0.5 / 4.0).abs() < 0.01, "{pair:?}");
        // Of a thread that is alone in its cell it is seven in eight: seven times in eight another thread is first.
        let alone = sharing.across(&[0, 1, 1, 1, 1, 1, 1, 1]);
        assert!((alone.pairs[0].part - 7.0 / 8.0).abs() < 0.01, "{:?}", alone.pairs);
    }

    #[test]
    fn what_one_cell_shares_is_not_across_cells() {
        for cells in [[0, 0, 0, 0], [1, 0, 1, 0]] {
            let found = sharing(&[0.75, 0.0, 0.75, 0.0], 1000).across(&cells);
            assert_eq!((found.pairs, found.shares), (Vec::new(), vec![false; 4]), "{cells:?}");
        }
    }

    #[test]
    fn little_is_not_worth_it_and_few_samples_are_not_certain() {
        // 1 % of the accesses, for certain.
        let little = sharing(&[0.01, 0.01], 6000).across(&[0, 1]);
        assert_eq!((little.pairs.len(), little.shares), (0, vec![false; 2]));
        let few = sharing(&[0.75, 0.75], 6).across(&[0, 1]);
        assert_eq!((few.pairs.len(), few.shares), (0, vec![false; 2]));
    }

    #[test]
    fn each_pair_of_many_cells_is_one() {
        let found = sharing(&[0.75; 12], 400).across(&(0..12).collect::<Vec<_>>());
        let mut cells: Vec<_> =
            found.pairs.iter().map(|it| (it.smaller.min(it.larger), it.smaller.max(it.larger))).collect();
        cells.sort_unstable();
        cells.dedup();
        assert_eq!((found.pairs.len() + found.left_out, cells.len()), (66, PAIRS));
        assert!(found.shares.iter().all(|it| *it));
    }

    #[test]
    fn private_streams_in_two_cells_share_nothing() {
        for seed in 0..40 {
            let mut found = Sharing::new(4 << 20);
            let stream = Scenario { groups: 0, cross_process: true, globals: 0.0, noise: 0.0, ..Scenario::default() }
                .stream(seed);
            stream.samples.iter().for_each(|sample| found.add(sample));
            let cells: Vec<u32> = (0..32).map(|thread| thread % 4).collect();
            let across = found.across(&cells);
            assert_eq!((across.pairs.len(), across.shares.iter().filter(|it| **it).count()), (0, 0), "seed {seed}");
        }
    }

    #[test]
    fn a_thread_under_two_hints_does_not_share_with_itself() {
        let mut found = Sharing::new(4 << 20);
        found.same_thread(1, 0);
        for line in 0..400 {
            let memory = MemoryId::Shared { scope: MemoryScope::device(1, 0), ino: 2, offset: line % 40 * LINE_SIZE };
            found.add(&store(line as u32 % 2, memory));
        }
        let across = found.across(&[0, 1]);
        assert_eq!((across.pairs.len(), across.shares), (0, vec![false; 2]));
    }
}
