//! Adds one sketch to another.

use super::{bits, Page, PageKind, Sharing, Small, Touch};
use crate::cluster::keys::{mix, repeat_key, touch_hash};
use crate::cluster::sketch::Repeat;
use crate::cluster::slot_table::Slot;

impl Sharing {
    /// Adds what `other` counted, as if its samples had been added here. Both must number threads and address spaces alike. Lines'
    /// code and bytes stay those of this sketch, and their times are forgotten.
    ///
    /// Pages that either dropped are not kept, except for hot pages: the rest is a random part of all pages with exact counts.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.spans = None;
        self.threshold = self.threshold.min(other.threshold);
        if self.threads.len() < other.threads.len() {
            self.threads.resize(other.threads.len(), super::Activity::default());
        }
        for (sum, more) in self.threads.iter_mut().zip(&other.threads) {
            sum.accesses += more.accesses;
            sum.writes += more.writes;
            sum.run_lines += more.run_lines;
            sum.runs += more.runs;
        }
        self.accesses += other.accesses;
        self.stats.samples += other.stats.samples;
        self.stats.without_place += other.stats.without_place;
        self.stats.without_thread += other.stats.without_thread;
        self.stats.not_kept += other.stats.not_kept;
        self.stats.pages_evicted += other.stats.pages_evicted;
        for page in other.pages.iter() {
            self.merge_page(page, other);
            if self.is_full() {
                self.thin();
            }
        }
        for touch in other.touches.iter() {
            self.merge_touch(touch, other);
            if self.is_full() {
                self.thin();
            }
        }
        if self.threshold < u64::MAX {
            self.drop_pages();
        }
    }

    fn merge_page(&mut self, page: &Page, other: &Self) {
        let at = self.pages.find(mix(page.key), |slot| slot.key == page.key);
        if self.pages.slots[at].is_empty() {
            if page.key >= self.threshold && !other.is_hot(page) {
                return;
            }
            let file = other.names.get(page.object as usize).filter(|_| page.kind == PageKind::Shared);
            let object = match (page.kind, file) {
                (PageKind::Shared, Some(&(scope, ino))) => self.file(scope, ino),
                (PageKind::Shared, None) => u32::MAX,
                _ => page.object,
            };
            self.pages.slots[at] = Page { object, threads: 0, ..*page };
            self.pages.len += 1;
            self.pages.grow();
            return;
        }
        let slot = &mut self.pages.slots[at];
        slot.accesses = slot.accesses.saturating_add(page.accesses);
        slot.hitm = slot.hitm.saturating_add(page.hitm);
        slot.latency = slot.latency.saturating_add(page.latency);
    }

    fn merge_touch(&mut self, touch: &Touch, other: &Self) {
        let page = self.pages.find(mix(touch.page), |slot| slot.key == touch.page);
        if self.pages.slots[page].is_empty() {
            return;
        }
        let hash = touch_hash(touch.page, touch.thread);
        let at = self.touches.find(hash, |slot| slot.page == touch.page && slot.thread == touch.thread);
        let known = self.touches.slots[at];
        if known.is_empty() {
            self.touches.len += 1;
            self.pages.slots[page].threads += 1;
        }
        let mut merged = Touch { lines: known.lines | touch.lines, written: known.written | touch.written, ..*touch };
        merged.marks |= known.marks;
        for line in bits(touch.lines) {
            let key = repeat_key(hash, line);
            // An empty slot contains only zeros.
            let more = other.repeats.slots[other.repeats.find(key, |slot| slot.key == key)];
            let has_line = known.lines >> line & 1 == 1;
            let has_write = (known.written & touch.written) >> line & 1 == 1;
            if more.is_empty() && !has_line {
                continue;
            }
            let at = self.repeats.find(key, |slot| slot.key == key);
            let repeat = &mut self.repeats.slots[at];
            if repeat.is_empty() {
                self.repeats.len += 1;
            }
            // The first access or write there is a further one here.
            let sum = |a: u32, b: u32, again: bool| a.saturating_add(b).saturating_add(u32::from(again));
            let small = |a: Small, b: Small| Small::new(a.get().saturating_add(b.get()));
            *repeat = Repeat {
                key,
                accesses: sum(repeat.accesses, more.accesses, has_line),
                writes: sum(repeat.writes, more.writes, has_write),
                cycles: sum(repeat.cycles, more.cycles, false),
                priced: small(repeat.priced, more.priced),
                misses: small(repeat.misses, more.misses),
                hitm: small(repeat.hitm, more.hitm),
                when: Small::default(),
            };
            merged.repeats(line);
            self.repeats.grow();
        }
        self.touches.slots[at] = merged;
        self.touches.grow();
    }
}
