//! The sketch: who touched which page and line how often, in bounded memory and whatever the order of the samples.

use rustc_hash::{FxHashMap, FxHashSet};

use super::codes::Codes;
use super::graph::Seen;
use super::table::{Slot, Table};
use crate::sample::{Access, CodeAddr, Place, Sample, LINE_SIZE, PAGE_SIZE};

/// Units of weight in one event: a sample whose event gave n accesses counts 1/n, to this precision.
///
/// Weights are integers because a sum of integers is the same in every order.
pub const EVENT: u32 = 16;

/// A page is hot, and outlives evictions, from this part of all events on.
const HOT: u64 = 4096;
/// Files and shared memory objects that are remembered by name for the report.
const OBJECTS: usize = 16_384;

/// The accesses of one thread to one page.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Touch {
    pub page: u64,
    pub lines: u64,
    pub thread: u32,
    pub weight: u32,
    pub writes: u32,
}

/// What all threads together did to one page.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Page {
    pub key: u64,
    number: u64,
    object: u32,
    pub weight: u32,
    /// Threads that touched it.
    pub threads: u32,
    /// Kilocycles of latency.
    pub latency: u32,
    pub hitm: u32,
}

/// What all threads together did to one cache line.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Line {
    pub key: u64,
    number: u64,
    object: u32,
    first: u32,
    pub weight: u32,
    pub writes: u32,
    pub hitm: u32,
    pub shared: bool,
}

impl Slot for Touch {
    fn hash(&self) -> u64 {
        touch_hash(self.page, self.thread)
    }
    fn is_empty(&self) -> bool {
        self.weight == 0
    }
}

impl Slot for Page {
    fn hash(&self) -> u64 {
        mix(self.key)
    }
    fn is_empty(&self) -> bool {
        self.weight == 0
    }
}

impl Slot for Line {
    fn hash(&self) -> u64 {
        mix(self.key)
    }
    fn is_empty(&self) -> bool {
        self.weight == 0
    }
}

/// Where a sample belongs in the tables.
#[derive(Debug, Clone, Copy, Default)]
struct Keys {
    page: u64,
    line: u64,
    touch: u64,
}

impl Keys {
    fn new(thread: u32, place: Option<Place>) -> Self {
        let Some(place) = place else { return Self::default() };
        let page = place_key(place.granule(PAGE_SIZE));
        Self { page, line: place_key(place.granule(LINE_SIZE)), touch: touch_hash(page, thread) }
    }
}

/// What one thread did in all, evicted pages included.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Activity {
    pub samples: u64,
    pub weight: u64,
    pub writes: u64,
}

/// Counts of what the sketch saw and what it had to let go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SketchStats {
    /// Samples with a place, all of which count for their thread's activity.
    pub samples: u64,
    /// Samples without a place, which say nothing about sharing.
    pub without_place: u64,
    /// Samples of threads beyond the number that the budget has room for.
    pub without_thread: u64,
    /// Samples on pages that are not in the kept part.
    pub not_kept: u64,
    /// Pages that were let go when the tables were full.
    pub pages_evicted: u64,
    /// Pages that are kept with exact counts.
    pub pages: u64,
    /// Lines that are kept with exact counts.
    pub lines: u64,
    /// The part of all pages that is kept, as a power of two: 0 is all of them, 3 is one in eight. Hot pages are kept besides.
    pub thinned: u32,
    /// Bytes that the tables take.
    pub bytes: u64,
}

/// The sketch that [`Sharing::add`] feeds and [`Sharing::solve`] reads.
///
/// A page is kept while its hash is below a threshold. When a table is full the threshold is halved and the pages above it
/// go, so what is left is a fair part of all pages, each with its counts since the beginning: nothing is forgotten because
/// it is old, and the end is the same whatever the order of the samples. Pages that are hot when they would go (a group may
/// live in a single one) stay; which ones are hot depends on when the tables filled, and on nothing else that has an order.
#[derive(Debug, Clone)]
pub struct Sharing {
    touches: Table<Touch>,
    pages: Table<Page>,
    lines: Table<Line>,
    /// From the first sample on that says its code.
    codes: Option<Codes>,
    codes_budget: usize,
    threshold: u64,
    line_threshold: u64,
    /// The lines above it that are kept because they are hot.
    hot_lines: FxHashSet<u64>,
    threads: Vec<Activity>,
    thread_limit: usize,
    /// Where a thread has several numbers: for each the first of them.
    owners: Vec<u32>,
    objects: FxHashMap<(u64, u64), u32>,
    names: Vec<(u64, u64)>,
    weight: u64,
    stats: SketchStats,
    /// Those of the samples that are being added.
    keys: Vec<Keys>,
}

impl Sharing {
    /// The budget that a run with the default `--memory` gives, in bytes.
    pub const BUDGET: usize = 24 << 20;

    /// A sketch that takes about `budget` bytes, and for a moment a half more while it thins out; 64 KiB at least.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        let budget = budget.max(1 << 16);
        Self {
            touches: Table::new(budget / 2),
            pages: Table::new(budget / 4),
            lines: Table::new(budget / 8),
            codes: None,
            codes_budget: budget / 64,
            threshold: u64::MAX,
            line_threshold: u64::MAX,
            hot_lines: FxHashSet::default(),
            threads: Vec::new(),
            thread_limit: budget / 8 / size_of::<Activity>(),
            owners: Vec::new(),
            objects: FxHashMap::default(),
            names: Vec::new(),
            weight: 0,
            stats: SketchStats::default(),
            keys: Vec::new(),
        }
    }

    /// Says that two numbers are one thread, at different times: what only that thread touches is shared with nobody.
    /// To be said before the first sample of `thread`.
    pub fn same_thread(&mut self, thread: u32, as_thread: u32) {
        let (at, owner) = (thread as usize, self.owner(as_thread));
        while self.owners.len() <= at {
            self.owners.push(self.owners.len() as u32);
        }
        if let Some(slot) = self.owners.get_mut(at) {
            *slot = owner;
        }
    }

    fn owner(&self, thread: u32) -> u32 {
        self.owners.get(thread as usize).copied().unwrap_or(thread)
    }

    /// Leaves out the pages that a single thread touched; those of a page must be next to each other.
    pub(crate) fn retain_shared(&self, seen: &mut Vec<Seen>) {
        if self.owners.is_empty() {
            return;
        }
        let shared = |page: &&[Seen]| {
            page.iter().any(|it| Some(self.owner(it.thread)) != page.first().map(|it| self.owner(it.thread)))
        };
        *seen = seen.chunk_by(|a, b| (a.cell, a.page) == (b.cell, b.page)).filter(shared).flatten().copied().collect();
    }

    /// Counts one sample. It looks at `thread`, `place`, `access`, `share`, `latency` and `data_src`; never at time or tid.
    pub fn add(&mut self, sample: &Sample) {
        self.add_as(sample.thread, sample, Keys::new(sample.thread, sample.place));
    }

    /// Counts samples, each for the thread beside it.
    pub fn add_all(&mut self, samples: &[(u32, &Sample)]) {
        self.keys.clear();
        self.keys.extend(samples.iter().map(|(thread, sample)| Keys::new(*thread, sample.place)));
        // Each slot is somewhere else in memory: asked for one after the other, nobody waits for the one before.
        let seen = self.keys.iter().fold(0, |seen, keys| {
            let line = if keys.line < self.line_threshold { self.lines.peek(mix(keys.line)) } else { 0 };
            seen ^ self.pages.peek(mix(keys.page)) ^ line ^ self.touches.peek(keys.touch)
        });
        std::hint::black_box(seen);
        for (at, (thread, sample)) in samples.iter().enumerate() {
            if let Some(&keys) = self.keys.get(at) {
                self.add_as(*thread, sample, keys);
            }
        }
    }

    /// As [`Sharing::add`], for a thread of that number in place of the sample's.
    fn add_as(&mut self, thread: u32, sample: &Sample, keys: Keys) {
        let (Some(place), Some((weight, writes))) = (sample.place, self.count(thread, sample)) else { return };
        let hitm = u32::from(sample.data_src.is_hitm());
        let (page, object) = (keys.page, self.object(place));
        if self.add_line(place, keys.line, object, thread, weight, writes, hitm) {
            if let Some(code) = sample.code {
                let codes = self.codes.get_or_insert_with(|| Codes::new(self.codes_budget));
                codes.add(keys.line, code, weight);
            }
        }

        let at = self.pages.find(mix(page), |slot| slot.key == page);
        if self.pages.slots[at].is_empty() {
            if page >= self.threshold {
                self.stats.not_kept += 1;
                return;
            }
            self.pages.slots[at] =
                Page { key: page, number: offset(place.granule(PAGE_SIZE)), object, ..Page::default() };
            self.pages.len += 1;
        }
        let slot = &mut self.pages.slots[at];
        slot.weight = slot.weight.saturating_add(weight);
        slot.hitm = slot.hitm.saturating_add(hitm);
        slot.latency = slot.latency.saturating_add(sample.latency.div_ceil(1024));

        let found = self.touches.find(keys.touch, |slot| slot.page == page && slot.thread == thread);
        let touch = &mut self.touches.slots[found];
        if touch.is_empty() {
            *touch = Touch { page, thread, ..Touch::default() };
            self.touches.len += 1;
            slot.threads += 1;
        }
        touch.weight = touch.weight.saturating_add(weight);
        touch.writes = touch.writes.saturating_add(writes);
        touch.lines |= 1 << ((offset(place) / LINE_SIZE) % 64);
        self.touches.grow();
        self.pages.grow();
        if self.touches.len > self.touches.limit || self.pages.len > self.pages.limit {
            self.thin();
        }
    }

    /// Counts one sample for its thread's activity alone, where it is known that no other thread can touch that memory.
    /// Gives its weight, and that weight again if it wrote; `None` where the sample does not count.
    pub(crate) fn count(&mut self, thread: u32, sample: &Sample) -> Option<(u32, u32)> {
        if sample.place.is_none() {
            self.stats.without_place += 1;
            return None;
        }
        let thread = thread as usize;
        if thread >= self.threads.len() {
            if thread >= self.thread_limit {
                self.stats.without_thread += 1;
                return None;
            }
            self.threads.resize(thread + 1, Activity::default());
        }
        // A share from outside may be anything; the cast takes NaN to 0.
        let weight =
            if sample.share >= 1.0 { EVENT } else { ((sample.share * EVENT as f32).round() as u32).clamp(1, EVENT) };
        let writes = if matches!(sample.access, Access::Store | Access::Update) { weight } else { 0 };
        let activity = self.threads.get_mut(thread)?;
        activity.samples += 1;
        activity.weight += u64::from(weight);
        activity.writes += u64::from(writes);
        self.stats.samples += 1;
        self.weight += u64::from(weight);
        Some((weight, writes))
    }

    /// True where more than one thread touched the line.
    #[allow(clippy::too_many_arguments)] // What add_as has at hand anyway.
    fn add_line(
        &mut self,
        place: Place,
        line: u64,
        object: u32,
        thread: u32,
        weight: u32,
        writes: u32,
        hitm: u32,
    ) -> bool {
        if line >= self.line_threshold && !self.hot_lines.contains(&line) {
            return false;
        }
        let owner = self.owner(thread);
        let at = self.lines.find(mix(line), |slot| slot.key == line);
        let slot = &mut self.lines.slots[at];
        if slot.is_empty() {
            *slot =
                Line { key: line, number: offset(place.granule(LINE_SIZE)), object, first: owner, ..Line::default() };
            self.lines.len += 1;
        }
        slot.weight = slot.weight.saturating_add(weight);
        slot.writes = slot.writes.saturating_add(writes);
        slot.hitm = slot.hitm.saturating_add(hitm);
        slot.shared |= slot.first != owner;
        let shared = slot.shared;
        self.lines.grow();
        if self.lines.len > self.lines.limit {
            // Of so much weight there is at most a quarter of what the table takes, so that halving always makes room in the end.
            let hot = self.weight / HOT.min((self.lines.limit / 4).max(1) as u64);
            while self.lines.len > self.lines.limit {
                self.line_threshold /= 2;
                let threshold = self.line_threshold;
                self.lines.retain(|slot| slot.key < threshold || u64::from(slot.weight) > hot);
                self.hot_lines = self.lines.iter().map(|slot| slot.key).filter(|&key| key >= threshold).collect();
            }
        }
        shared
    }

    /// Halves the part of the pages that is kept until the tables have room.
    fn thin(&mut self) {
        while self.touches.len > self.touches.limit || self.pages.len > self.pages.limit {
            self.threshold /= 2;
            let hot = self.weight / HOT;
            let mut candidates: Vec<&Page> =
                self.pages.iter().filter(|page| page.key >= self.threshold && u64::from(page.weight) > hot).collect();
            candidates.sort_unstable_by_key(|page| (std::cmp::Reverse(page.weight), page.key));
            // Hot pages may take a quarter of the table, so that halving always makes room in the end.
            let mut room = self.touches.limit / 4;
            let mut spare: Vec<u64> = Vec::new();
            for page in candidates {
                let Some(left) = room.checked_sub(page.threads as usize) else { continue };
                if spare.len() >= self.pages.limit / 4 {
                    break;
                }
                room = left;
                spare.push(page.key);
            }
            spare.sort_unstable();
            let threshold = self.threshold;
            let keep = |page: u64| page < threshold || spare.binary_search(&page).is_ok();
            self.stats.pages_evicted += self.pages.retain(|slot| keep(slot.key)) as u64;
            self.touches.retain(|slot| keep(slot.page));
        }
    }

    fn object(&mut self, place: Place) -> u32 {
        match place {
            Place::Private { space, .. } => space,
            Place::Frame { .. } => 0,
            Place::Shared { dev, ino, .. } => {
                if let Some(&object) = self.objects.get(&(dev, ino)) {
                    return object;
                }
                if self.names.len() >= OBJECTS {
                    return u32::MAX;
                }
                let object = self.names.len() as u32;
                self.names.push((dev, ino));
                self.objects.insert((dev, ino), object);
                object
            }
        }
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> SketchStats {
        SketchStats {
            pages: self.pages.len as u64,
            lines: self.lines.len as u64,
            thinned: self.threshold.leading_zeros(),
            bytes: (self.touches.bytes()
                + self.pages.bytes()
                + self.lines.bytes()
                + self.codes.as_ref().map_or(0, Codes::bytes)
                + self.threads.capacity() * size_of::<Activity>()) as u64,
            ..self.stats
        }
    }

    pub(crate) fn threads(&self) -> &[Activity] {
        &self.threads
    }

    pub(crate) fn touches(&self) -> impl Iterator<Item = &Touch> {
        self.touches.iter()
    }

    pub(crate) fn page(&self, key: u64) -> Option<&Page> {
        self.pages.slots.get(self.pages.find(mix(key), |slot| slot.key == key)).filter(|slot| !slot.is_empty())
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter()
    }

    /// The code that touched a line most, with its events.
    pub(crate) fn codes(&self, line: &Line) -> Vec<(CodeAddr, f64)> {
        self.codes.as_ref().map(|codes| codes.of(line.key)).unwrap_or_default()
    }

    /// How many pages a kept page stands for.
    pub(crate) fn stands_for(&self, page: &Page) -> f32 {
        if u64::from(page.weight) > self.weight / HOT {
            1.0
        } else {
            2f32.powi(self.threshold.leading_zeros() as i32)
        }
    }

    pub(crate) fn page_place(&self, page: &Page) -> Option<Place> {
        self.place(page.key, page.object, page.number)
    }

    pub(crate) fn line_place(&self, line: &Line) -> Option<Place> {
        self.place(line.key, line.object, line.number)
    }

    /// The place that a slot's key was made from: of the three kinds the one that has this key.
    fn place(&self, key: u64, object: u32, number: u64) -> Option<Place> {
        let shared = self.names.get(object as usize).map(|&(dev, ino)| Place::Shared { dev, ino, offset: number });
        [Some(Place::Private { space: object, addr: number }), Some(Place::Frame { phys: number }), shared]
            .into_iter()
            .flatten()
            .find(|&place| place_key(place) == key)
    }
}

fn offset(place: Place) -> u64 {
    match place {
        Place::Shared { offset, .. } => offset,
        Place::Frame { phys } => phys,
        Place::Private { addr, .. } => addr,
    }
}

/// The finalizer of splitmix64: every bit of the input moves every bit of the output.
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn touch_hash(page: u64, thread: u32) -> u64 {
    mix(page ^ u64::from(thread).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A granule's key; two granules of a run have the same one with a chance of about 1 in 10^8.
pub(crate) fn place_key(place: Place) -> u64 {
    let (kind, number) = match place {
        Place::Private { space, addr } => (mix(u64::from(space) + 1), addr),
        Place::Frame { phys } => (0x5bd1_e995_0000_0001, phys),
        Place::Shared { dev, ino, offset } => (mix(mix(ino) ^ dev.wrapping_mul(0x9e37_79b9_7f4a_7c15)) ^ 0x77, offset),
    };
    mix(mix(number ^ kind).wrapping_add(kind))
}

#[cfg(test)]
mod tests;
