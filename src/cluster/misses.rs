//! Possible misses: how often each thread may have had to fetch each line, from the counts of the sketch or from the costs that
//! the source measured.

use rustc_hash::FxHashMap;

use super::keys::mix;
use super::sketch::{Activity, LineUse, Sharing, Touch};

/// Lines of a first-level cache (32 KiB). A thread that uses more may find a line evicted by its own accesses.
pub(crate) const L1_LINES: f64 = 512.0;
/// The cost of a transfer from another core's cache relative to a fill: about 100 cycles and 30 on current servers.
const TRANSFER: f32 = 3.0;

/// A thread counts as waiting if this part of its accesses or more reads one line: its code only reads a flag until another
/// thread writes it.
const WAITING: f64 = 0.95;
/// The fewest accesses for this verdict.
const WAITING_LEAST: u32 = 30;

/// What one thread did to one line of an object that more than one thread touches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    /// The address space or file.
    pub object: u64,
    /// The line's number in it.
    pub line: u64,
    pub thread: u32,
    pub accesses: u32,
    pub writes: u32,
    /// Possible misses weighted by cost; a fill is 1.
    pub misses: f32,
    /// The number of possible misses.
    pub count: f32,
    /// The number of them that are transfers: another thread wrote the line in between, or read what this one writes.
    pub transfers: f32,
    /// The part of `misses` that are transfers.
    pub moved: f32,
    /// Accesses that found the line modified in another cache.
    pub hitm: u32,
    /// The number of lines that it represents, if the sketch was thinned.
    pub stands_for: f32,
    /// See [`LineUse`].
    pub when: u32,
    pub when_page: u32,
    /// The mean number of adjacent lines that a sample of the thread found, if it found several.
    pub run: f32,
}

/// The possible misses of all threads.
#[derive(Debug, Clone, Default)]
pub(crate) struct Misses {
    /// Sorted by object, line and thread.
    pub uses: Vec<Use>,
    /// For each thread, all of its possible misses weighted by cost, including private memory and what was thinned out.
    pub demand: Vec<f64>,
    /// The number of them.
    pub count: Vec<f64>,
    /// The number that was counted, without what was thinned out.
    pub counted: Vec<f64>,
    /// For each thread, the objects that it touched, sorted; private memory (`true`) is a process.
    pub objects: Vec<Vec<(u64, bool)>>,
    /// The sketch kept only some pages.
    pub is_thinned: bool,
}

/// Costs that the source measured, scaled to counts: a miss of mean cost is a fill.
#[derive(Debug, Clone, Copy)]
struct Price {
    cycles: f32,
}

/// A line's accesses before they are weighted.
#[derive(Debug, Clone, Copy)]
struct Raw {
    object: u64,
    line: u64,
    stands_for: f32,
    count: LineUse,
}

/// Which accesses are read: all of them, or one of two halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    Half(u64),
}

impl Misses {
    /// Weights what the sketch counted.
    pub(crate) fn new(sharing: &Sharing, part: Part) -> Self {
        Self::of(sharing, part, sharing, |_| false)
    }

    /// As if no thread had touched anything.
    pub(crate) fn none(sharing: &Sharing) -> Self {
        let threads = sharing.threads().len();
        Self {
            uses: Vec::new(),
            demand: vec![0.0; threads],
            count: vec![0.0; threads],
            counted: vec![0.0; threads],
            objects: vec![Vec::new(); threads],
            is_thinned: sharing.is_thinned(),
        }
    }

    /// The same of a slice of the time of `whole`, in which all touches count of objects that several threads use in the whole.
    pub(crate) fn of_slice(sharing: &Sharing, whole: &Sharing, is_shared: impl Fn(u64) -> bool) -> Self {
        Self::of(sharing, Part::All, whole, is_shared)
    }

    fn of(sharing: &Sharing, part: Part, whole: &Sharing, is_shared_there: impl Fn(u64) -> bool) -> Self {
        let threads = sharing.threads();
        let mut misses = Self::none(sharing);
        let price = Price::of(sharing);
        let scale = if part == Part::All { 1.0f64 } else { 0.5 };
        let reuse = Reuse::of(sharing, part, scale);
        // If several threads use an object, every touch of it counts, even on pages with one user: in a large buffer that is
        // sampled sparsely most pages have one.
        let mut first_user: FxHashMap<u64, (u32, bool)> = FxHashMap::default();
        for (touch, page) in sharing.touches_and_pages(false) {
            let user = first_user.entry(sharing.address(page).0).or_insert((touch.thread, false));
            user.1 |= user.0 != touch.thread;
        }
        let mut raw: Vec<Raw> = Vec::new();
        // Accesses of each thread, including those thinned out, as far as the kept ones represent them.
        let mut seen = vec![0.0; threads.len()];
        for (touch, page) in sharing.touches_and_pages(true) {
            let (object, first, is_private) = sharing.address(page);
            let stands_for = sharing.stands_for(page);
            let is_shared = first_user.get(&object).is_some_and(|user| user.1) || is_shared_there(object);
            let mut is_seen = false;
            let of_thread = threads[touch.thread as usize];
            for count in sharing.lines_of(touch).filter_map(|count| part.of(touch, of_thread, count)) {
                is_seen = true;
                seen[touch.thread as usize] += f64::from(count.accesses) * f64::from(stands_for);
                let it = Raw { object, line: first + u64::from(count.line), stands_for, count };
                if is_shared {
                    raw.push(it);
                } else {
                    misses.add(&it, 0, reuse[touch.thread as usize], price);
                }
            }
            if is_seen {
                misses.objects[touch.thread as usize].push((object, is_private));
            }
        }
        for objects in &mut misses.objects {
            objects.sort_unstable();
            objects.dedup();
        }
        raw.sort_unstable_by_key(|it| (it.object, it.line, it.count.thread));
        misses.uses.reserve_exact(raw.len());
        for line in raw.chunk_by(|a, b| (a.object, a.line) == (b.object, b.line)) {
            let Own { writes, accesses } = Own::sum(line.iter());
            // A thread that waits for a write rarely sees it: it is one access among thousands, but it is there.
            let is_flag = line.len() > 1 && line.iter().any(|it| waits(it.count, threads, scale));
            for it in line {
                // A write finds the line taken away by any access of another thread since the own last write.
                let own = of_owner(whole, line, it);
                let foreign = writes - own.writes + own.writes.min(accesses - own.accesses);
                let foreign = if is_flag { u64::MAX } else { foreign };
                let added = misses.add(it, foreign, reuse[it.count.thread as usize], price);
                let run = threads.get(it.count.thread as usize).map_or(1.0, Activity::run);
                misses.uses.push(Use { run, ..added });
            }
        }
        misses.scale(threads, scale, &seen);
        misses
    }

    /// Scales a thread's counts to all it did: its number of accesses is known exactly, whatever pages were dropped.
    fn scale(&mut self, threads: &[Activity], part: f64, seen: &[f64]) {
        let sums = self.demand.iter_mut().zip(&mut self.count).zip(&mut self.counted);
        for ((((demand, count), counted), thread), &seen) in sums.zip(threads).zip(seen) {
            if seen > 0.0 {
                let scale = thread.accesses as f64 * part / seen;
                *demand *= scale;
                *count *= scale;
                *counted *= scale;
            }
        }
    }

    /// Weights a thread's accesses to one line that others wrote `foreign` times.
    fn add(&mut self, raw: &Raw, foreign: u64, reuse: Reuse, price: Price) -> Use {
        let LineUse { thread, accesses, writes, priced, misses, cycles, hitm, when, when_page, .. } = raw.count;
        // Accesses without a measured cost can miss once for the first access (more often if the thread touches more than a
        // cache holds), and once for each write by another thread.
        let unpriced = accesses.saturating_sub(priced) as f32;
        let fills = unpriced.min(reuse.fills(unpriced));
        let transfers = unpriced.min(fills + foreign as f32) - fills;
        // The first access with a measured cost would have missed anyway.
        let later = if foreign > 0 || hitm > 0 { misses.saturating_sub(1) as f32 } else { 0.0 };
        let count = fills + transfers + misses as f32;
        let priced_cost = cycles as f32 / price.cycles;
        let total = fills + transfers * TRANSFER + priced_cost;
        let moved = transfers * TRANSFER + priced_cost * later / (misses as f32).max(1.0);
        let at = thread as usize;
        self.demand[at] += f64::from(total * raw.stands_for);
        self.count[at] += f64::from(count * raw.stands_for);
        self.counted[at] += f64::from(count);
        Use {
            object: raw.object,
            line: raw.line,
            thread,
            accesses,
            writes,
            misses: total,
            count,
            transfers: transfers + later,
            moved,
            hitm,
            stands_for: raw.stands_for,
            when,
            when_page,
            run: 1.0,
        }
    }
}

/// How long a thread's own first-level cache keeps a line, in accesses of the thread.
#[derive(Debug, Clone, Copy)]
struct Reuse {
    /// Divided by all of its accesses; infinite if all that it uses fits.
    time: f32,
}

impl Reuse {
    /// The reuse times of all threads. In an LRU cache a line that is used at a rate r is present with the probability 1 -
    /// exp(-r T), for the one time T that fills the cache (Che, Tung and Wang 2002).
    fn of(sharing: &Sharing, part: Part, scale: f64) -> Vec<Self> {
        let threads = sharing.threads();
        let mut counts: Vec<Vec<(u32, f32)>> = vec![Vec::new(); threads.len()];
        // Most often, all that the threads use fits.
        let is_large = |thread: &Activity| thread.accesses as f64 * scale > L1_LINES;
        for (touch, page) in sharing.touches_and_pages(threads.iter().any(is_large)) {
            let of_thread = threads[touch.thread as usize];
            if !is_large(&of_thread) {
                continue;
            }
            let stands_for = sharing.stands_for(page);
            let lines = sharing.lines_of(touch).filter_map(|count| part.of(touch, of_thread, count));
            counts[touch.thread as usize].extend(lines.map(|count| (count.accesses, stands_for)));
        }
        let time = |(thread, mut counts): (usize, Vec<(u32, f32)>)| {
            counts.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
            counts.dedup_by(|next, kept| {
                let same = next.0 == kept.0;
                if same {
                    kept.1 += next.1;
                }
                same
            });
            let all = threads[thread].accesses as f64 * scale;
            let held = |time: f64| {
                let lines = counts.iter().map(|&(count, lines)| (f64::from(count) / all, f64::from(lines)));
                lines.map(|(rate, lines)| -lines * (-rate * time).exp_m1()).sum::<f64>()
            };
            if counts.iter().map(|it| f64::from(it.1)).sum::<f64>() <= L1_LINES {
                return Self { time: f32::INFINITY };
            }
            // Between one access and more than any thread has.
            let (mut low, mut high) = (0.0f64, 80.0f64);
            for _ in 0..40 {
                let middle = f64::midpoint(low, high);
                if held(middle.exp2()) < L1_LINES {
                    low = middle;
                } else {
                    high = middle;
                }
            }
            Self { time: (low.exp2() / all) as f32 }
        };
        counts.into_iter().enumerate().map(time).collect()
    }

    /// How many of this many accesses to a line must fetch it, if no other thread writes it.
    fn fills(self, accesses: f32) -> f32 {
        if self.time.is_finite() {
            (accesses * (-accesses * self.time).exp()).max(1.0)
        } else {
            1.0
        }
    }
}

/// Accesses to a line, and those of them that write.
#[derive(Debug, Clone, Copy)]
struct Own {
    accesses: u64,
    writes: u64,
}

impl Own {
    fn sum<'a>(uses: impl Iterator<Item = &'a Raw>) -> Self {
        uses.fold(Self { accesses: 0, writes: 0 }, |sum, it| Self {
            accesses: sum.accesses + u64::from(it.count.accesses),
            writes: sum.writes + u64::from(it.count.writes),
        })
    }
}

/// What the thread of this use did to the line, under any of its numbers.
fn of_owner(sharing: &Sharing, line: &[Raw], it: &Raw) -> Own {
    if !sharing.has_owners() {
        return Own::sum(std::iter::once(it));
    }
    let owner = sharing.owner(it.count.thread);
    Own::sum(line.iter().filter(|it| sharing.owner(it.count.thread) == owner))
}

/// True if a thread does little else than read this line.
fn waits(line: LineUse, threads: &[Activity], part: f64) -> bool {
    let all = threads.get(line.thread as usize).map_or(0.0, |it| it.accesses as f64 * part);
    line.accesses >= WAITING_LEAST && f64::from(line.accesses) >= WAITING * all && line.writes * 2 < line.accesses
}

impl Price {
    fn of(sharing: &Sharing) -> Self {
        let (mut misses, mut cycles) = (0u64, 0u64);
        for repeat in sharing.repeats() {
            misses += u64::from(repeat.misses.get());
            cycles += u64::from(repeat.cycles);
        }
        Self { cycles: (cycles as f32 / misses.max(1) as f32).max(1.0) }
    }
}

impl Part {
    /// The part of a line's accesses that is in this half: a hash of line and thread assigns each access to a half, so that the
    /// halves do not depend on the order of the samples.
    fn of(self, touch: &Touch, thread: Activity, count: LineUse) -> Option<LineUse> {
        let Self::Half(half) = self else { return Some(count) };
        // Identify the thread by its accesses, because its number is arbitrary.
        let thread = mix(thread.accesses ^ mix(thread.writes));
        let coins =
            mix(mix(touch.page ^ touch.lines) ^ thread ^ mix(u64::from(count.line) ^ touch.written.rotate_left(7)));
        let first = match count.accesses {
            few @ 0..=64 => (coins & (u64::MAX >> (64 - few.max(1)))).count_ones(),
            // The spread of this number of coin tosses is small.
            many => many / 2 + (coins & 1) as u32,
        };
        let accesses = if half == 0 { first } else { count.accesses - first };
        if accesses == 0 {
            return None;
        }
        // What one half gets, the other does not.
        let deal = |value: u32| {
            let exact = f64::from(value) * f64::from(first) / f64::from(count.accesses);
            let dealt = exact.floor() as u32 + u32::from(exact.fract() * 256.0 > (coins >> 56) as f64);
            if half == 0 {
                dealt
            } else {
                value.saturating_sub(dealt)
            }
        };
        Some(LineUse {
            accesses,
            writes: deal(count.writes).min(accesses),
            priced: deal(count.priced).min(accesses),
            misses: deal(count.misses).min(accesses),
            cycles: deal(count.cycles),
            hitm: deal(count.hitm),
            ..count
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{Access, DataSource, MemoryId, RawSample, Sample};

    fn sample(thread: u32, line: u64, access: Access) -> Sample {
        Sample {
            raw: RawSample { access, ..RawSample::default() },
            thread,
            memory: Some(MemoryId::Private { space: 1, addr: line << 6 }),
            ..Sample::default()
        }
    }

    /// Misses and transfers of each thread on a line.
    fn on(misses: &Misses, line: u64) -> Vec<(f32, f32)> {
        misses.uses.iter().filter(|it| it.line == line).map(|it| (it.misses, it.transfers)).collect()
    }

    /// Gives a thread other accesses, so that it does not count as waiting.
    fn own(sharing: &mut Sharing, thread: u32) {
        for line in 0..20 {
            sharing.add(&sample(thread, 1000 * u64::from(thread + 1) + line, Access::Store));
        }
    }

    #[test]
    fn a_constant_is_one_fill_and_a_counter_goes_back_and_forth() {
        let mut sharing = Sharing::new(1 << 20);
        for thread in 0..2 {
            own(&mut sharing, thread);
            for _ in 0..50 {
                sharing.add(&sample(thread, 1, Access::Load));
                sharing.add(&sample(thread, 2, Access::Update));
            }
        }
        // Read often, written by the other one three times.
        (0..30).for_each(|_| sharing.add(&sample(0, 3, Access::Load)));
        (0..3).for_each(|_| sharing.add(&sample(1, 3, Access::Store)));
        let misses = Misses::new(&sharing, Part::All);
        assert_eq!(on(&misses, 1), [(1.0, 0.0); 2]);
        assert_eq!(on(&misses, 2), [(1.0 + 49.0 * TRANSFER, 49.0); 2]);
        // The writer, too, must fetch it again each time.
        assert_eq!(on(&misses, 3), [(1.0 + 3.0 * TRANSFER, 3.0), (1.0 + 2.0 * TRANSFER, 2.0)]);
        assert!((misses.count[0] - (20.0 + 1.0 + 50.0 + 4.0)).abs() < 1e-6, "{misses:?}");
    }

    #[test]
    fn a_thread_that_only_reads_a_line_waits_for_it() {
        let mut sharing = Sharing::new(1 << 20);
        own(&mut sharing, 1);
        (0..40).for_each(|_| sharing.add(&sample(0, 1, Access::Load)));
        (0..10).for_each(|_| sharing.add(&sample(1, 1, Access::Load)));
        let misses = Misses::new(&sharing, Part::All);
        assert_eq!(on(&misses, 1), [(1.0 + 39.0 * TRANSFER, 39.0), (1.0 + 9.0 * TRANSFER, 9.0)]);
    }

    #[test]
    fn what_the_source_says_counts_in_place_of_the_estimate() {
        let mut sharing = Sharing::new(1 << 20);
        let of = |thread: u32, line: u64, data_src: u64, latency: u32| Sample {
            raw: RawSample { data_src: DataSource(data_src), latency, ..sample(thread, line, Access::Store).raw },
            ..sample(thread, line, Access::Store)
        };
        let (hit, memory) = (0x4 | 0xa << 5, 0x4 | 0x82 << 5);
        for thread in 0..2 {
            own(&mut sharing, thread);
            // Both threads write it all the time, and yet it is never evicted.
            (0..30).for_each(|_| sharing.add(&of(thread, 1, hit, 0)));
            (0..10).for_each(|n| sharing.add(&of(thread, 2, memory, if n < 5 { 100 } else { 300 })));
        }
        let misses = Misses::new(&sharing, Part::All);
        assert_eq!(on(&misses, 1), [(0.0, 0.0); 2]);
        // The mean cost is one; the first access would have missed anyway.
        assert_eq!(on(&misses, 2), [(10.0, 9.0); 2]);
    }

    #[test]
    fn a_line_that_is_used_seldom_leaves_a_full_cache() {
        let mut sharing = Sharing::new(4 << 20);
        for turn in 0..8 {
            for line in 0..2000 {
                sharing.add(&sample(0, 10_000 + line, Access::Load));
            }
            for _ in 0..100 {
                sharing.add(&sample(0, 1, Access::Load));
            }
            sharing.add(&sample(1, turn, Access::Load));
        }
        let misses = Misses::new(&sharing, Part::All);
        let of = |line: u64| misses.uses.iter().find(|it| it.thread == 0 && it.line == line).unwrap().misses;
        assert!(of(10_007) > 5.0 && of(10_007) <= 8.0, "{}", of(10_007));
        assert!((of(1) - 1.0).abs() < 1e-6, "{}", of(1));
    }

    #[test]
    fn both_halves_are_the_whole() {
        let threads = Activity { accesses: 1000, writes: 10, ..Activity::default() };
        for n in 0..200u32 {
            let count = LineUse {
                line: n % 64,
                accesses: n + 1,
                writes: n / 2,
                priced: n / 3,
                misses: n / 4,
                cycles: n,
                hitm: 0,
                ..LineUse::default()
            };
            let touch = Touch { page: mix(u64::from(n)), lines: 1 << (n % 64), ..Touch::default() };
            let halves = [0, 1].map(|half| Part::Half(half).of(&touch, threads, count).unwrap_or_default());
            let sum = |of: fn(&LineUse) -> u32| of(&halves[0]) + of(&halves[1]);
            assert_eq!(sum(|it| it.accesses), count.accesses);
            assert!(
                sum(|it| it.writes) <= count.writes && sum(|it| it.writes) + 1 >= count.writes,
                "{count:?} {halves:?}"
            );
            assert!(halves.iter().all(|it| it.writes <= it.accesses && it.misses <= it.accesses));
        }
    }
}
