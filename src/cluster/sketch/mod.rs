//! The sketch: which thread touched which line how often, in bounded memory and independent of the order of the samples.

use rustc_hash::{FxHashMap, FxHashSet};

use super::keys::{line_key, mix, place_key, repeat_key, touch_hash};
use super::lines::{HotLines, Touched};
use super::slot_table::{Slot as _, SlotTable};
use super::spans::{Merged, Spans};
use crate::memory::Pages;
use crate::sample::{Access, Cost, MemoryId, MemoryScope, Method, RawSample, Sample, LINE_SIZE, PAGE_SIZE};
use scxprof_base::tables::Tables;

/// A page is hot, and is never dropped, if it has this part of all accesses or more.
const HOT: u64 = 4096;
/// One in this many accesses whose address depends on memory that other threads may write is left out: about as many are wrong
/// when threads race (tests/timer/race.rs).
const UNSURE: u64 = 32;
/// The number of files and shared memory objects that the report can name.
const OBJECTS: usize = 16_384;

/// Where a sample belongs in the tables.
#[derive(Debug, Clone, Copy, Default)]
struct Keys {
    page: u64,
    /// The hash of the page's key.
    place: u64,
    touch: u64,
}

impl Keys {
    fn new(thread: u32, page: u64) -> Self {
        Self { page, place: mix(page), touch: touch_hash(page, thread) }
    }
}

#[inline]
fn page_key(memory: MemoryId) -> u64 {
    place_key(memory.granule(PAGE_SIZE))
}

/// The number of the line in its page.
fn line_of(memory: MemoryId) -> u32 {
    ((offset(memory) / LINE_SIZE) % (PAGE_SIZE / LINE_SIZE)) as u32
}

/// All accesses of one thread, including those to evicted pages.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Activity {
    pub accesses: u64,
    pub writes: u64,
    /// Lines beside each other that one sample found, and the runs that they make.
    pub run_lines: u64,
    pub runs: u64,
}

impl Activity {
    /// The mean number of lines of a run; at least one.
    pub(crate) fn run(&self) -> f32 {
        if self.runs > 0 {
            self.run_lines as f32 / self.runs as f32
        } else {
            1.0
        }
    }
}

/// A line that the event touched.
#[derive(Debug, Clone, Copy)]
struct EventLine {
    page: u64,
    line: u32,
    is_written: bool,
    /// It also touched an adjacent line.
    is_in_run: bool,
}

/// The counts of the sketch, and what it had to drop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SketchStats {
    /// Samples with an address, all of which count for their thread's activity.
    pub samples: u64,
    /// Samples without an address, which say nothing about sharing.
    pub without_place: u64,
    /// Samples of threads beyond the number that fits into the budget.
    pub without_thread: u64,
    /// Samples on pages that the sketch does not keep.
    pub not_kept: u64,
    /// Pages that were dropped when the tables were full.
    pub pages_evicted: u64,
    /// Pages that are kept with exact counts.
    pub pages: u64,
    /// Lines that are kept, counted once for each thread that touched them.
    pub lines: u64,
    /// The part of all pages that is kept, as a power of two: 0 is all of them, 3 is one in eight. Hot pages are kept in
    /// addition.
    pub thinned: u32,
    /// Bytes that the tables take.
    pub bytes: u64,
}

/// The sketch that [`Sharing::add`] feeds and [`Sharing::solve`] reads.
///
/// For each thread and page it keeps, as bits, which lines were touched and which were written, and for lines that a thread
/// touched again how often: most lines of a large buffer are sampled once, and cost a bit. If the source measures the cost of
/// accesses (see [`Cost`]), each line has an entry.
///
/// A page is kept while its hash is below a threshold. If a table is full, the threshold is halved and the pages above it are
/// dropped. So what is left is a random part of all pages, each with its counts since the beginning: nothing is dropped because
/// it is old, and the result does not depend on the order of the samples. Hot pages stay (a community may use only one); which
/// pages are hot depends on when the tables filled, and on nothing else about the order.
#[derive(Debug, Clone)]
pub struct Sharing {
    touches: SlotTable<Touch>,
    pages: SlotTable<Page>,
    repeats: SlotTable<Repeat>,
    /// From the first sample on of a page that two threads touched.
    hot_lines: Option<HotLines>,
    hot_lines_budget: usize,
    threshold: u64,
    /// The pages above the threshold that are kept.
    spared: FxHashSet<u64>,
    threads: Vec<Activity>,
    thread_limit: usize,
    /// If threads have several numbers: for each number the first one of its thread.
    owners: Vec<u32>,
    objects: FxHashMap<(MemoryScope, u64), u32>,
    names: Vec<(MemoryScope, u64)>,
    accesses: u64,
    stats: SketchStats,
    /// The keys of the samples that were announced.
    keys: Vec<Keys>,
    /// The event of the last sample that was one of several, and the lines that these touched so far, and whether they wrote
    /// them.
    event: (u32, u64),
    event_lines: Vec<EventLine>,
    /// The time of the samples so far; `None` if it is not used.
    spans: Option<Spans>,
}

impl Sharing {
    /// The budget of a run with the default `--memory`, in bytes.
    pub const BUDGET: usize = 24 << 20;

    /// Makes a sketch of about `budget` bytes, at least 64 KiB; while it thins out, it takes half as much again.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        let budget = budget.max(1 << 16);
        Self {
            touches: SlotTable::new(budget / 8 * 3),
            pages: SlotTable::new(budget / 16 * 3),
            repeats: SlotTable::new(budget / 16 * 5),
            hot_lines: None,
            hot_lines_budget: budget / 40,
            threshold: u64::MAX,
            spared: FxHashSet::default(),
            threads: Vec::new(),
            thread_limit: budget / 10 / size_of::<Activity>(),
            owners: Vec::new(),
            objects: FxHashMap::default(),
            names: Vec::new(),
            accesses: 0,
            stats: SketchStats::default(),
            keys: Vec::new(),
            event: (0, 0),
            event_lines: Vec::new(),
            spans: Some(Spans::default()),
        }
    }

    /// The same for at most this many threads, without the code and the bytes of lines, and without the time.
    pub(crate) fn with_threads(budget: usize, thread_limit: usize) -> Self {
        Self { thread_limit, hot_lines_budget: 0, spans: None, ..Self::new(budget) }
    }

    /// Maps the tables with huge pages as they grow, if the host allows it.
    pub(crate) fn use_huge_pages(&mut self) {
        let Self { touches, pages, repeats, .. } = self;
        (touches.pages, pages.pages, repeats.pages) = (Pages::Huge, Pages::Huge, Pages::Huge);
    }

    /// Declares that two numbers are one thread at different times, so memory that only this thread touches is not shared. Call
    /// it before the first sample of `thread`.
    pub fn same_thread(&mut self, thread: u32, as_thread: u32) {
        let (at, owner) = (thread as usize, self.owner(as_thread));
        while self.owners.len() <= at {
            self.owners.push(self.owners.len() as u32);
        }
        if let Some(slot) = self.owners.get_mut(at) {
            *slot = owner;
        }
    }

    /// True if some thread has several numbers.
    pub(crate) fn has_owners(&self) -> bool {
        !self.owners.is_empty()
    }

    /// The first number of the thread with this number.
    pub(crate) fn owner(&self, thread: u32) -> u32 {
        self.owners.get(thread as usize).copied().unwrap_or(thread)
    }

    /// Counts one sample. It reads `thread`, `memory`, `access`, `size`, `share`, `record`, `addr`, `method`, `latency`,
    /// `data_src` and `code`, but never the tid; and the time only for [`Community::over_time`](super::Community::over_time).
    pub fn add(&mut self, sample: &Sample) {
        self.add_for(sample.thread, sample);
    }

    /// The same for this thread instead of the sample's.
    pub(crate) fn add_for(&mut self, thread: u32, sample: &Sample) {
        let keys = sample.memory.map(|memory| Keys::new(thread, page_key(memory)));
        self.add_as(thread, sample, keys.unwrap_or_default());
    }

    /// Announces a sample of [`Sharing::add_expected`]. Its slots are scattered over the memory: the caller's work until then
    /// overlaps the cache misses.
    #[inline]
    pub(crate) fn expect(&mut self, thread: u32, sample: &Sample) {
        let Some(memory) = sample.memory else { return self.keys.push(Keys::default()) };
        let page = page_key(memory);
        if !self.is_kept(page) {
            // Nor will it be: the threshold only falls.
            return self.keys.push(Keys { page, ..Keys::default() });
        }
        let keys = Keys::new(thread, page);
        self.pages.prefetch(keys.place);
        self.touches.prefetch(keys.touch);
        // Others have an entry only if the thread touched the line before.
        if sample.cost() != Cost::Unknown || sample.raw.data_src.is_hitm() {
            self.repeats.prefetch(repeat_key(keys.touch, line_of(memory)));
        }
        self.keys.push(keys);
    }

    /// Prefetches what is kept of the line of an announced sample, if several threads touched its page.
    fn expect_line(&self, sample: &Sample, keys: &Keys) {
        let (Some(lines), Some(memory), true) = (&self.hot_lines, sample.memory, keys.touch != 0) else { return };
        let page = self.pages.slots.get(self.pages.find(keys.place, |slot| slot.key == keys.page));
        if page.is_some_and(|page| page.threads > 1) {
            lines.prefetch(line_key(keys.page, line_of(memory)));
        }
    }

    /// Counts samples, each for the thread beside it: those that were announced since the last time, in their order.
    pub(crate) fn add_expected(&mut self, samples: &[(u32, &Sample)]) {
        let keys = std::mem::take(&mut self.keys);
        for ((_, sample), keys) in samples.iter().zip(&keys) {
            self.expect_line(sample, keys);
        }
        for ((thread, sample), &keys) in samples.iter().zip(&keys) {
            self.add_as(*thread, sample, keys);
        }
        self.keys = keys;
        self.keys.clear();
    }

    /// As [`Sharing::add`], for this thread instead of the sample's.
    fn add_as(&mut self, thread: u32, sample: &Sample, keys: Keys) {
        let Some(memory) = sample.memory else {
            self.stats.without_place += 1;
            return;
        };
        // The address may be wrong, so it counts less.
        if sample.raw.method == Some(Method::Racy)
            && mix(sample.record ^ sample.raw.addr.rotate_left(32)).is_multiple_of(UNSURE)
        {
            return;
        }
        let line = line_of(memory);
        let writes = matches!(sample.raw.access, Access::Store | Access::Update);
        // Several accesses of one event to one line are one access, which writes if any of them does.
        let (again, written_again) = if sample.raw.share < 1.0 {
            self.before(thread, sample.record, (keys.page, line), writes)
        } else {
            (false, false)
        };
        let new_write = writes && !written_again;
        if !self.count_thread(thread, !again, new_write) {
            return;
        }
        let when = self.when(sample.raw.time);
        let page = keys.page;
        if !self.is_kept(page) {
            self.stats.not_kept += 1;
            return;
        }
        let at = self.pages.find(keys.place, |slot| slot.key == page);
        if self.pages.slots[at].is_empty() {
            let number = offset(memory.granule(PAGE_SIZE));
            let (kind, object) = self.object(memory);
            self.pages.slots[at] = Page { key: page, number, object, kind, ..Page::default() };
            self.pages.len += 1;
        }
        let hitm = sample.raw.data_src.is_hitm();
        let slot = &mut self.pages.slots[at];
        slot.accesses = slot.accesses.saturating_add(u32::from(!again)).max(1);
        slot.hitm = slot.hitm.saturating_add(u32::from(hitm));
        slot.latency = slot.latency.saturating_add(sample.raw.latency.div_ceil(1024));

        let found = self.touches.find(keys.touch, |slot| slot.page == page && slot.thread == thread);
        let touch = &mut self.touches.slots[found];
        if touch.is_empty() {
            *touch = Touch { page, thread, ..Touch::default() };
            self.touches.len += 1;
            slot.threads += 1;
        }
        if slot.threads > 1 && self.hot_lines_budget > 0 {
            let hot_lines = self.hot_lines.get_or_insert_with(|| HotLines::new(self.hot_lines_budget));
            let Sample { raw: RawSample { access, size, .. }, code, .. } = *sample;
            let first = offset(memory) % LINE_SIZE;
            hot_lines.add(line_key(page, line), &Touched { thread, access, first, size, code });
        }
        let bit = 1 << line;
        let (known, written) = (touch.lines & bit != 0, touch.written & bit != 0);
        touch.lines |= bit;
        touch.marks |= when << REPEATED;
        if writes {
            touch.written |= bit;
        }
        let cost = sample.cost();
        let repeated = known && !again || new_write && written;
        if repeated || cost != Cost::Unknown || hitm {
            let key = repeat_key(keys.touch, line);
            let at = self.repeats.find(key, |slot| slot.key == key);
            let repeat = &mut self.repeats.slots[at];
            if repeat.is_empty() {
                repeat.key = key;
                self.repeats.len += 1;
                touch.repeats(line);
            }
            repeat.when = Small::new(repeat.when.get() | when);
            let more = |count: &mut u32, by: u32| *count = count.saturating_add(by);
            more(&mut repeat.accesses, u32::from(known && !again));
            more(&mut repeat.writes, u32::from(new_write && written));
            repeat.hitm.add(u32::from(hitm));
            if !again {
                match cost {
                    Cost::Unknown => {}
                    Cost::Hit => repeat.priced.add(1),
                    Cost::Miss { cycles } => {
                        repeat.priced.add(1);
                        repeat.misses.add(1);
                        more(&mut repeat.cycles, cycles);
                    }
                }
            }
            self.repeats.grow();
        }
        self.touches.grow();
        self.pages.grow();
        if self.is_full() {
            self.thin();
        }
    }

    /// The bit of a time; 0 without times.
    fn when(&mut self, time: u64) -> u32 {
        let Some(spans) = &mut self.spans else { return 0 };
        if let Some(bit) = spans.bit(time) {
            return bit;
        }
        let places = spans.extend(time);
        let bit = spans.bit(time).unwrap_or_default();
        if !places.is_empty() {
            let (lines, merged) = ((1 << REPEATED) - 1, Merged::new(&places));
            for touch in self.touches.slots.iter_mut() {
                touch.marks = touch.marks & lines | merged.of(touch.when()) << REPEATED;
            }
            for repeat in self.repeats.slots.iter_mut() {
                repeat.when = Small::new(merged.of(repeat.when.get()));
            }
        }
        bit
    }

    /// Whether the event has touched the line before, and whether it has written it before.
    fn before(&mut self, thread: u32, record: u64, line: (u64, u32), writes: bool) -> (bool, bool) {
        if self.event != (thread, record) {
            self.event = (thread, record);
            self.event_lines.clear();
        }
        let (page, line) = line;
        if let Some(known) = self.event_lines.iter_mut().find(|it| (it.page, it.line) == (page, line)) {
            let written = known.is_written;
            known.is_written |= writes;
            return (true, written);
        }
        let mut new = EventLine { page, line, is_written: writes, is_in_run: false };
        let beside = self.event_lines.iter_mut().find(|it| it.page == page && it.line.abs_diff(line) == 1);
        if let (Some(beside), Some(activity)) = (beside, self.threads.get_mut(thread as usize)) {
            if !beside.is_in_run {
                activity.runs += 1;
                activity.run_lines += 1;
            }
            activity.run_lines += 1;
            (beside.is_in_run, new.is_in_run) = (true, true);
        }
        self.event_lines.push(new);
        (false, false)
    }

    /// Counts one sample only for its thread's activity, if no other thread can touch that memory.
    pub(crate) fn count(&mut self, thread: u32, sample: &Sample) {
        if sample.memory.is_none() {
            self.stats.without_place += 1;
            return;
        }
        self.count_thread(thread, true, matches!(sample.raw.access, Access::Store | Access::Update));
    }

    /// Returns false if there are too many threads.
    fn count_thread(&mut self, thread: u32, counts: bool, writes: bool) -> bool {
        let thread = thread as usize;
        if thread >= self.threads.len() {
            if thread >= self.thread_limit {
                self.stats.without_thread += 1;
                return false;
            }
            self.threads.resize(thread + 1, Activity::default());
        }
        let Some(activity) = self.threads.get_mut(thread) else { return false };
        activity.accesses += u64::from(counts);
        activity.writes += u64::from(writes);
        self.accesses += u64::from(counts);
        self.stats.samples += 1;
        true
    }

    /// True if the tables have the page, or will have it with its first sample.
    fn is_kept(&self, page: u64) -> bool {
        page < self.threshold || self.spared.contains(&page)
    }

    /// True if the page is never dropped.
    fn is_hot(&self, page: &Page) -> bool {
        u64::from(page.accesses) > self.accesses / HOT
    }

    fn is_full(&self) -> bool {
        self.touches.len > self.touches.limit
            || self.pages.len > self.pages.limit
            || self.repeats.len > self.repeats.limit
    }

    /// Halves the part of the pages that is kept, until the tables have room.
    fn thin(&mut self) {
        while self.is_full() {
            self.threshold /= 2;
            self.drop_pages();
        }
    }

    /// Drops the pages above the threshold but for hot ones.
    fn drop_pages(&mut self) {
        let mut candidates: Vec<&Page> =
            self.pages.iter().filter(|page| page.key >= self.threshold && self.is_hot(page)).collect();
        candidates.sort_unstable_by_key(|page| (std::cmp::Reverse(page.accesses), page.key));
        // Hot pages may take a quarter of each table, so that halving always makes room in the end.
        let mut lines: FxHashMap<u64, usize> = candidates.iter().map(|page| (page.key, 0)).collect();
        for touch in self.touches.iter() {
            if let Some(count) = lines.get_mut(&touch.page) {
                *count += touch.lines.count_ones() as usize;
            }
        }
        let mut room = (self.touches.limit / 4, self.repeats.limit / 4);
        self.spared.clear();
        for page in candidates {
            let lines = lines.get(&page.key).copied().unwrap_or_default();
            let left = room.0.checked_sub(page.threads as usize).zip(room.1.checked_sub(lines));
            let Some(left) = left else { continue };
            if self.spared.len() >= self.pages.limit / 4 {
                break;
            }
            room = left;
            self.spared.insert(page.key);
        }
        let Self { threshold, spared, pages, touches, repeats, stats, .. } = self;
        let keep = |page: u64| page < *threshold || spared.contains(&page);
        stats.pages_evicted += pages.retain(|slot| keep(slot.key)) as u64;
        touches.retain(|slot| keep(slot.page));
        let keys = touches.iter().flat_map(|touch| {
            let hash = touch_hash(touch.page, touch.thread);
            let repeated = bits(touch.lines).filter(|&line| touch.is_repeated(line));
            repeated.map(move |line| repeat_key(hash, line))
        });
        repeats.keep_only(keys, |slot, key| slot.key == key);
    }

    fn object(&mut self, memory: MemoryId) -> (PageKind, u32) {
        match memory {
            MemoryId::Private { space, .. } => (PageKind::Private, space),
            MemoryId::Frame { .. } => (PageKind::Frame, 0),
            MemoryId::Shared { scope, ino, .. } => (PageKind::Shared, self.file(scope, ino)),
        }
    }

    /// The number of a file; [`u32::MAX`] if there are too many.
    fn file(&mut self, scope: MemoryScope, ino: u64) -> u32 {
        if let Some(&object) = self.objects.get(&(scope, ino)) {
            return object;
        }
        if self.names.len() >= OBJECTS {
            return u32::MAX;
        }
        let object = self.names.len() as u32;
        self.names.push((scope, ino));
        self.objects.insert((scope, ino), object);
        object
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> SketchStats {
        SketchStats {
            pages: self.pages.len as u64,
            lines: self.touches.iter().map(|touch| u64::from(touch.lines.count_ones())).sum(),
            thinned: self.threshold.leading_zeros(),
            bytes: self.bytes() as u64,
            ..self.stats
        }
    }

    /// True if only some of the pages are kept.
    pub(crate) fn is_thinned(&self) -> bool {
        self.threshold < u64::MAX
    }

    pub(crate) fn bytes(&self) -> usize {
        let lines = self.hot_lines.as_ref().map_or(0, HotLines::bytes);
        let tables = self.touches.bytes() + self.pages.bytes() + self.repeats.bytes();
        let spared = self.spared.capacity() * size_of::<u64>();
        tables + lines + spared + self.threads.capacity() * size_of::<Activity>()
    }

    /// Its size.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        tables.set("pages of the sketch", self.pages.len, self.bytes());
        let objects = &self.objects;
        tables.set_map::<((MemoryScope, u64), u32)>("files of the sketch", objects.len(), objects.capacity(), 0);
    }
}

/// The numbers of the bits that are set.
fn bits(mut set: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (set != 0).then(|| set.trailing_zeros());
        set &= set.wrapping_sub(1);
        bit
    })
}

fn offset(memory: MemoryId) -> u64 {
    match memory {
        MemoryId::Shared { offset, .. } => offset,
        MemoryId::Frame { phys } => phys,
        MemoryId::Private { addr, .. } => addr,
    }
}

mod merge;
mod read;
mod slots;
mod small;
pub(crate) use read::LineUse;
pub(crate) use slots::{Page, Repeat, Touch};
use slots::{PageKind, REPEATED};
use small::Small;

#[cfg(test)]
mod tests;
