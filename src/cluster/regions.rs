//! Regions: the data structures of an object (an address space, a file), found as the pieces of its lines within which the
//! accesses of the threads are mixed alike.
//!
//! A block is an aligned range of lines whose size is a power of two. For each block there are three explanations: one
//! structure that its threads use alike throughout; two structures side by side; or pieces of one size (a line, a page ...)
//! with one user each. The evidence for an explanation is its probability given the threads of the touches, and given the lines
//! of the touches if it says that they are evenly spread. The best explanation of each block, from single lines up to the whole
//! object, is kept (dynamic programming over the binary tree of blocks), and the regions are read from it at the end.

use rustc_hash::FxHashMap;

use super::misses::Use;

/// Sizes of the pieces that may have one user each, as powers of two of lines: a line, 512 bytes, a page, 8 pages.
const PIECES: [u32; 4] = [0, 3, 6, 9];
/// How evenly a block's users may be mixed: the mass of a symmetric Dirichlet prior, from "mostly one of them" to "any mix". A
/// mass equal to the number of threads is uniform over all mixes; with an infinite mass all threads use the block alike.
const MASSES: [Mass; 3] = [Mass::Fixed(0.1), Mass::Fixed(1.0), Mass::Threads];
/// A page as a power of two of lines.
const PAGE: u32 = 6;
/// The prior odds against a boundary in the middle of a block: even.
const BOUNDARY: f64 = std::f64::consts::LN_2;
/// The prior odds against pieces with one user each, as a logarithm: 1 in 50.
const MOSAIC: f64 = 3.9;
/// Parts of more touches than this make no difference.
const WHOLE: f64 = 64.0;
/// The number of accesses to a line by one thread that show which thread uses it, if most of them cannot have missed.
const TELLING: u32 = 4;

#[derive(Debug, Clone, Copy)]
enum Mass {
    Fixed(f64),
    Threads,
}

/// Finds the regions of `uses`, which all belong to one object that `threads` threads could touch, sorted by line and then by
/// thread. A region is a range of indices of them; some uses are in none. `is_thinned`: only some pages were kept.
pub(crate) fn regions(uses: &[Use], threads: usize, is_thinned: bool) -> Vec<std::ops::Range<usize>> {
    if uses.is_empty() {
        return Vec::new();
    }
    let touches = touches(uses);
    let mut finder = Finder::new(&touches, threads, is_thinned);
    finder.block(0, touches.len());
    finder.regions.into_iter().filter_map(|region| clip(uses, region)).collect()
}

/// A thread's use of a line as evidence of which threads use the memory.
#[derive(Debug, Clone, Copy)]
struct Touch {
    line: u64,
    thread: u32,
    /// Its weight in samples.
    count: f32,
}

/// The evidence of each use: a sample of a loop finds the next lines of a buffer too, which says no more about their user than
/// one line does. So lines beside each other share the samples that found them.
fn touches(uses: &[Use]) -> Vec<Touch> {
    // For each use how many lines that its thread uses are beside each other there: from the first one to the last.
    let mut runs: Vec<(u64, u32)> = Vec::new();
    let mut last: FxHashMap<u32, (u64, u32)> = FxHashMap::default();
    let mut run_of: Vec<u32> = Vec::with_capacity(uses.len());
    for it in uses {
        let run = match last.get(&it.thread) {
            Some(&(line, run)) if line + 1 == it.line => run,
            _ => {
                runs.push((it.line, 0));
                runs.len() as u32 - 1
            }
        };
        if let Some(run) = runs.get_mut(run as usize) {
            run.1 += 1;
        }
        last.insert(it.thread, (it.line, run));
        run_of.push(run);
    }
    let touch = |(it, run): (&Use, &u32)| {
        let lines = runs.get(*run as usize).map_or(1, |run| run.1);
        // Not weighted by cost: an expensive miss is no better evidence of which thread uses the line.
        let count = it.count.round().max(it.accesses.min(TELLING) as f32);
        Touch { line: it.line, thread: it.thread, count: count / it.run.clamp(1.0, lines as f32) }
    };
    uses.iter().zip(&run_of).map(touch).collect()
}

/// The evidence on a block.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// The size of the block as a power of two of lines.
    level: u32,
    /// The best explanation.
    best: f64,
    /// How evenly the touches lie among the lines, against any other way.
    even: f64,
    /// What is counted for evenness: touches, or pages if only some pages were kept.
    count: f64,
    total: f64,
    /// Sums over the threads, for each of [`MASSES`].
    mixed: [f64; 3],
    /// For each of [`PIECES`], the evidence that each piece has mostly one user.
    owned: [f64; 4],
}

struct Finder<'a> {
    uses: &'a [Touch],
    threads: f64,
    is_thinned: bool,
    rising: [Rising; 3],
    /// The threads of the blocks that are open with their counts; a block's follow those of the block before it.
    counts: Vec<(u32, f32)>,
    /// The regions of the best explanations of these blocks.
    regions: Vec<std::ops::Range<usize>>,
    spare: Vec<(u32, f32)>,
}

impl<'a> Finder<'a> {
    fn new(uses: &'a [Touch], threads: usize, is_thinned: bool) -> Self {
        let threads = threads.max(2) as f64;
        let rising = MASSES.map(|mass| match mass {
            Mass::Fixed(mass) => Rising::new(mass / threads, mass),
            Mass::Threads => Rising::new(1.0, threads),
        });
        Self { uses, threads, is_thinned, rising, counts: Vec::new(), regions: Vec::new(), spare: Vec::new() }
    }

    /// Explains the uses from `begin` to `end`; leaves their counts and regions on top of the stacks.
    fn block(&mut self, begin: usize, end: usize) -> Block {
        let (first, last) = (self.uses[begin].line, self.uses[end - 1].line);
        if first == last {
            return self.line(begin, end);
        }
        let (counts, regions) = (self.counts.len(), self.regions.len());
        let level = 64 - (first ^ last).leading_zeros();
        let middle = last >> (level - 1) << (level - 1);
        let split = begin + self.uses[begin..end].partition_point(|it| it.line < middle);
        let left = self.block(begin, split);
        let other = self.counts.len();
        let right = self.block(split, end);
        let mixed = self.merge(counts, other, &left, &right);
        let (left, right) = (self.within(left, level), self.within(right, level));
        let count = left.count + right.count;
        // If a child is smaller than half the block, the rest of that half is empty.
        let even = left.even + right.even + empty(&left, level) + empty(&right, level) + ln_factorial(count)
            - ln_factorial(left.count)
            - ln_factorial(right.count)
            + evenness(count);
        let mut block = Block {
            level,
            best: left.best + right.best - BOUNDARY,
            even,
            count,
            total: left.total + right.total,
            mixed,
            owned: [0.0; 4],
        };
        let alike = self.alike(&block) + even;
        let owned = self.evidence(&block)[0];
        for (at, piece) in PIECES.into_iter().enumerate() {
            block.owned[at] = if level <= piece { owned } else { left.owned[at] + right.owned[at] };
        }
        let pieces = PIECES
            .into_iter()
            .zip(block.owned)
            .filter(|&(piece, _)| level > piece)
            .map(|(piece, evidence)| (evidence + even - MOSAIC, piece))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let both = alike.max(block.best);
        match pieces {
            Some((evidence, piece)) if evidence > both => {
                block.best = evidence;
                self.regions.truncate(regions);
                let mut at = begin;
                for uses in self.uses[begin..end].chunk_by(|a, b| a.line >> piece == b.line >> piece) {
                    self.regions.push(at..at + uses.len());
                    at += uses.len();
                }
            }
            _ if alike >= block.best => {
                block.best = alike;
                self.regions.truncate(regions);
                self.regions.push(begin..end);
            }
            _ => {}
        }
        block
    }

    /// A block as its parent of this size sees it. If only some pages were kept, a page counts as one touch: many touches
    /// beside none show which pages were kept, not how the threads use them.
    fn within(&self, block: Block, parent: u32) -> Block {
        if self.is_thinned && block.level <= PAGE && parent > PAGE {
            let even = block.even + f64::from(PAGE - block.level) * evenness(block.count);
            Block { level: PAGE, even, count: 1.0, ..block }
        } else {
            block
        }
    }

    /// A single line is one structure.
    fn line(&mut self, begin: usize, end: usize) -> Block {
        let uses = &self.uses[begin..end];
        let mut block = Block {
            level: 0,
            best: 0.0,
            even: 0.0,
            count: uses.iter().map(|it| f64::from(it.count.min(1.0))).sum(),
            total: 0.0,
            mixed: [0.0; 3],
            owned: [0.0; 4],
        };
        for it in uses {
            self.counts.push((it.thread, it.count));
            block.total += f64::from(it.count);
            for (sum, rising) in block.mixed.iter_mut().zip(&self.rising) {
                *sum += rising.log(it.count.into());
            }
        }
        self.regions.push(begin..end);
        block.best = self.alike(&block);
        block.owned = [self.evidence(&block)[0]; 4];
        block
    }

    /// The evidence of the mix of the threads for each of [`MASSES`].
    fn evidence(&self, block: &Block) -> [f64; 3] {
        let mut evidence = block.mixed;
        for (evidence, rising) in evidence.iter_mut().zip(&self.rising) {
            *evidence -= rising.mass_log(block.total);
        }
        evidence
    }

    /// The evidence that the block's threads use it alike throughout, in whatever mix.
    fn alike(&self, block: &Block) -> f64 {
        let all_alike = -block.total * self.threads.ln();
        let [a, b, c] = self.evidence(block);
        let most = a.max(b).max(c).max(all_alike);
        most + (((a - most).exp() + (b - most).exp() + (c - most).exp() + (all_alike - most).exp()) / 4.0).ln()
    }

    /// Adds up the counts of two blocks on top of the stack; returns the sums over the threads.
    fn merge(&mut self, left: usize, right: usize, a: &Block, b: &Block) -> [f64; 3] {
        let mut mixed = [0, 1, 2].map(|at| a.mixed[at] + b.mixed[at]);
        self.spare.clear();
        let (mut one, mut two) = (self.counts[left..right].iter().peekable(), self.counts[right..].iter().peekable());
        loop {
            match (one.peek(), two.peek()) {
                (Some(&&x), Some(&&y)) if x.0 == y.0 => {
                    let sum = x.1 + y.1;
                    self.spare.push((x.0, sum));
                    for (mixed, rising) in mixed.iter_mut().zip(&self.rising) {
                        *mixed += rising.log(sum.into()) - rising.log(x.1.into()) - rising.log(y.1.into());
                    }
                    one.next();
                    two.next();
                }
                (Some(&&x), Some(&&y)) if x.0 < y.0 => {
                    self.spare.push(x);
                    one.next();
                }
                (_, Some(&&y)) => {
                    self.spare.push(y);
                    two.next();
                }
                (Some(&&x), None) => {
                    self.spare.push(x);
                    one.next();
                }
                (None, None) => break,
            }
        }
        self.counts.truncate(left);
        self.counts.extend_from_slice(&self.spare);
        mixed
    }
}

/// What the touches of a block that may lie in either half add to its evenness, besides the number of ways to choose them.
fn evenness(count: f64) -> f64 {
    between(count, |count| (count + 1.0).ln() - count * std::f64::consts::LN_2)
}

fn ln_factorial(count: f64) -> f64 {
    between(count, |count| ln_gamma(count + 1.0))
}

/// A fraction of a touch has that fraction of the evidence of a whole one.
fn between(count: f64, evidence: impl Fn(f64) -> f64) -> f64 {
    let (whole, part) = (count.floor(), count.fract());
    if part == 0.0 || whole >= WHOLE {
        return evidence(count);
    }
    (1.0 - part) * evidence(whole) + part * evidence(whole + 1.0)
}

/// The same for each block between a child and its parent; one half of each is empty.
fn empty(child: &Block, parent: u32) -> f64 {
    f64::from(parent - 1 - child.level) * evenness(child.count)
}

/// A region begins where a second thread begins and ends where all but one have ended: the ends that only one thread uses are
/// not shared. `None` if nothing is left.
fn clip(uses: &[Use], region: std::ops::Range<usize>) -> Option<std::ops::Range<usize>> {
    let all = &uses[region.clone()];
    let second = |mut lines: &mut dyn Iterator<Item = &Use>| -> Option<u64> {
        let first = lines.next()?.thread;
        (&mut lines).find(|it| it.thread != first).map(|it| it.line)
    };
    let begin = second(&mut all.iter())?;
    let end = second(&mut all.iter().rev())?;
    let from = all.partition_point(|it| it.line < begin);
    let to = all.partition_point(|it| it.line <= end);
    (from < to).then(|| region.start + from..region.start + to)
}

/// ln Γ(count + a) - ln Γ(a): what a thread's count adds to the evidence under a Dirichlet prior, and what all counts take from
/// it.
struct Rising {
    each: Logs,
    mass: Logs,
}

struct Logs {
    a: f64,
    table: Vec<f64>,
    base: f64,
}

impl Rising {
    /// For a prior of `each` per thread, `mass` in total.
    fn new(each: f64, mass: f64) -> Self {
        Self { each: Logs::new(each), mass: Logs::new(mass) }
    }

    fn log(&self, count: f64) -> f64 {
        self.each.of(count)
    }

    fn mass_log(&self, total: f64) -> f64 {
        self.mass.of(total)
    }
}

impl Logs {
    fn new(a: f64) -> Self {
        let mut table = vec![0.0];
        let mut sum = 0.0;
        for count in 0..256 {
            sum += (f64::from(count) + a).ln();
            table.push(sum);
        }
        Self { a, table, base: ln_gamma(a) }
    }

    fn of(&self, count: f64) -> f64 {
        between(count, |count| {
            let known = (count.fract() == 0.0).then(|| self.table.get(count as usize).copied()).flatten();
            known.unwrap_or_else(|| ln_gamma(count + self.a) - self.base)
        })
    }
}

fn ln_gamma(x: f64) -> f64 {
    libm::lgamma(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::truth::Rng;

    /// `count` accesses of each of these threads to lines from `first` on.
    fn touch(uses: &mut Vec<Use>, rng: &mut Rng, threads: &[u32], count: u64, line: impl Fn(u32, u64) -> u64) {
        for &thread in threads {
            for _ in 0..count {
                uses.push(Use {
                    object: 1,
                    line: line(thread, rng.bits() >> 8),
                    thread,
                    accesses: 1,
                    writes: 0,
                    misses: 1.0,
                    count: 1.0,
                    transfers: 0.0,
                    hitm: 0,
                    stands_for: 1.0,
                    moved: 0.0,
                    when: 0,
                    when_page: 0,
                    run: 1.0,
                });
            }
        }
    }

    /// The regions as first line, last line and threads; uses of one thread and line are merged.
    fn found(mut uses: Vec<Use>, threads: usize) -> Vec<(u64, u64, Vec<u32>)> {
        uses.sort_unstable_by_key(|it| (it.line, it.thread));
        uses.dedup_by(|next, kept| {
            let same = (next.line, next.thread) == (kept.line, kept.thread);
            kept.accesses += u32::from(same);
            same
        });
        let regions = regions(&uses, threads, false).into_iter();
        regions
            .map(|region| {
                let uses = &uses[region];
                let mut threads: Vec<u32> = uses.iter().map(|it| it.thread).collect();
                threads.sort_unstable();
                threads.dedup();
                (uses[0].line, uses[uses.len() - 1].line, threads)
            })
            .filter(|region| region.2.len() > 1)
            .collect()
    }

    #[test]
    fn two_buffers_beside_each_other_are_two_regions() {
        for seed in 0..20 {
            let (mut uses, mut rng) = (Vec::new(), Rng::new(seed));
            touch(&mut uses, &mut rng, &[0, 1], 200, |_, random| random % 4096);
            touch(&mut uses, &mut rng, &[2, 3], 200, |_, random| 4096 + random % 4096);
            let found = found(uses, 4);
            assert!(
                found.iter().all(|it| it.2 == [0, 1] && it.1 < 4096 || it.2 == [2, 3] && it.0 >= 4096),
                "{found:?}"
            );
            let lines: u64 = found.iter().map(|it| it.1 - it.0).sum();
            assert!(lines > 7600, "{seed}: {found:?}");
        }
    }

    /// A sample of a loop finds several adjacent lines, which does not show that only its thread uses them.
    #[test]
    fn lines_that_were_found_together_are_one_touch() {
        let mut whole = 0;
        for seed in 0..20 {
            let (mut uses, mut rng) = (Vec::new(), Rng::new(seed));
            for (threads, from) in [([0, 1], 0), ([2, 3], 16_384)] {
                for &thread in &threads {
                    for _ in 0..100 {
                        let first = from + (rng.bits() >> 8) % (16_384 - 8);
                        for line in first..first + 8 {
                            touch(&mut uses, &mut rng, &[thread], 1, |_, _| line);
                        }
                        for it in &mut uses {
                            it.run = 8.0;
                        }
                    }
                }
            }
            let found = found(uses, 4);
            assert!(found.iter().all(|it| it.2 == [0, 1] || it.2 == [2, 3]), "{seed}: {found:?}");
            let lines: u64 = found.iter().map(|it| it.1 - it.0).sum();
            whole += usize::from(lines > 28_000);
        }
        assert!(whole >= 19, "{whole}");
    }

    #[test]
    fn lines_with_owners_are_not_shared_and_lines_that_all_use_are() {
        for seed in 0..20 {
            let (mut uses, mut rng) = (Vec::new(), Rng::new(seed));
            let owner = |line: u64| (super::super::keys::mix(line) % 4) as u32;
            // The next line that only this thread uses.
            let own = |thread: u32, random: u64| (random % 1024..2048).find(|&line| owner(line) == thread).unwrap();
            touch(&mut uses, &mut rng, &[0, 1, 2, 3], 300, own);
            assert_eq!(found(uses, 4), [], "{seed}");
            let mut uses = Vec::new();
            touch(&mut uses, &mut rng, &[0, 1, 2, 3], 300, |_, random| random % 1024);
            let found = found(uses, 4);
            assert!(found.iter().all(|it| it.2 == [0, 1, 2, 3]), "{seed}: {found:?}");
            assert!(found.iter().map(|it| it.1 - it.0).sum::<u64>() > 1000, "{seed}: {found:?}");
        }
    }

    #[test]
    fn what_one_thread_has_at_an_end_is_not_shared() {
        let (mut uses, mut rng) = (Vec::new(), Rng::new(1));
        touch(&mut uses, &mut rng, &[0], 1, |_, _| 0);
        touch(&mut uses, &mut rng, &[0, 1], 40, |_, random| 8 + random % 8);
        uses.sort_unstable_by_key(|it| (it.line, it.thread));
        let all = 0..uses.len();
        assert_eq!(clip(&uses, all.clone()).map(|it| (uses[it.start].line, it.end)), Some((8, all.end)));
        assert_eq!(clip(&uses, 0..1), None);
        assert!(regions(&[], 2, false).is_empty());
    }
}
