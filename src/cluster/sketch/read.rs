//! Reads the sketch line by line.

use super::{bits, Activity, Page, PageKind, Repeat, Sharing, Touch};
use crate::cluster::keys::{line_key, mix, repeat_key, touch_hash};
use crate::cluster::lines::Bytes;
use crate::cluster::slot_table::{Slot, TOGETHER};
use crate::cluster::spans::Spans;
use crate::sample::{CodeAddr, MemoryId, LINE_SIZE};

/// One thread's accesses to one line.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LineUse {
    /// The page's key.
    #[cfg(test)]
    pub page: u64,
    /// The line's number in the page.
    pub line: u32,
    pub thread: u32,
    pub accesses: u32,
    pub writes: u32,
    /// See [`Repeat`].
    pub priced: u32,
    pub misses: u32,
    pub cycles: u32,
    pub hitm: u32,
    /// The spans in which it was touched again, or of a line that was touched once those of its page.
    pub when: u32,
    /// The spans in which its page was touched.
    pub when_page: u32,
}

impl Sharing {
    pub(crate) fn threads(&self) -> &[Activity] {
        &self.threads
    }

    /// The spans of time that [`LineUse::when`] speaks of.
    pub(crate) fn spans(&self) -> Option<&Spans> {
        self.spans.as_ref()
    }

    /// The counts beyond the first access to a line.
    pub(crate) fn repeats(&self) -> impl Iterator<Item = &Repeat> {
        self.repeats.iter()
    }

    pub(crate) fn touches(&self) -> impl Iterator<Item = &Touch> {
        self.touches.iter()
    }

    /// The touches with their pages. What is read of them afterwards, with their lines if `reads_lines`, is brought into the
    /// cache before, for many at once: the tables are larger than the cache, and the misses then overlap.
    pub(crate) fn touches_and_pages(&self, reads_lines: bool) -> impl Iterator<Item = (&Touch, &Page)> {
        self.touches.slots.chunks(TOGETHER).flat_map(move |slots| {
            let touches = slots.iter().filter(|slot| !slot.is_empty());
            for touch in touches.clone() {
                self.pages.prefetch(mix(touch.page));
                let hash = touch_hash(touch.page, touch.thread);
                for line in bits(touch.lines).filter(|&line| reads_lines && touch.is_repeated(line)) {
                    self.repeats.prefetch(repeat_key(hash, line));
                }
            }
            touches.filter_map(|touch| Some((touch, self.page(touch.page)?)))
        })
    }

    /// The accesses of a touch's thread to each of its lines.
    pub(crate) fn lines_of<'a>(&'a self, touch: &'a Touch) -> impl Iterator<Item = LineUse> + 'a {
        let hash = touch_hash(touch.page, touch.thread);
        bits(touch.lines).map(move |line| {
            let key = repeat_key(hash, line);
            // An empty slot contains only zeros.
            let find = || self.repeats.slots.get(self.repeats.find(key, |slot| slot.key == key)).copied();
            let repeat = touch.is_repeated(line).then(find).flatten().unwrap_or_default();
            LineUse {
                #[cfg(test)]
                page: touch.page,
                line,
                thread: touch.thread,
                accesses: repeat.accesses.saturating_add(1),
                writes: repeat.writes.saturating_add((touch.written >> line) as u32 & 1),
                priced: repeat.priced.get(),
                misses: repeat.misses.get(),
                cycles: repeat.cycles,
                hitm: repeat.hitm.get(),
                when: if repeat.when.get() == 0 { touch.when() } else { repeat.when.get() },
                when_page: touch.when(),
            }
        })
    }

    pub(crate) fn page(&self, key: u64) -> Option<&Page> {
        self.pages.slots.get(self.pages.find(mix(key), |slot| slot.key == key)).filter(|slot| !slot.is_empty())
    }

    pub(crate) fn pages(&self) -> impl Iterator<Item = &Page> {
        self.pages.iter()
    }

    /// The code that touched a line most, with its accesses.
    pub(crate) fn codes(&self, page: u64, line: u32) -> Vec<(CodeAddr, f64)> {
        self.hot_lines.as_ref().map(|lines| lines.codes(line_key(page, line))).unwrap_or_default()
    }

    /// The bytes of a line that its threads touched, of the most active ones.
    pub(in crate::cluster) fn bytes_of(&self, page: u64, line: u32) -> Vec<Bytes> {
        self.hot_lines.iter().flat_map(|lines| lines.threads(line_key(page, line))).copied().collect()
    }

    /// The number of pages that a kept page represents.
    pub(crate) fn stands_for(&self, page: &Page) -> f32 {
        if self.is_hot(page) {
            1.0
        } else {
            2f32.powi(self.threshold.leading_zeros() as i32)
        }
    }

    /// The object that the page belongs to (the same number for all pages of one address space or file), and the number of the
    /// page's first line there. `true` for private memory, whose object is a process.
    pub(crate) fn address(&self, page: &Page) -> (u64, u64, bool) {
        let object = match page.kind {
            PageKind::Private => mix(u64::from(page.object) + 1),
            PageKind::Frame => 1,
            // A file that the sketch cannot name counts as one file per page.
            PageKind::Shared => self
                .names
                .get(page.object as usize)
                .map_or(page.key, |&(scope, ino)| mix(mix(ino) ^ scope.number().rotate_left(17)) ^ 2),
        };
        (object, page.number / LINE_SIZE, page.kind == PageKind::Private)
    }

    pub(crate) fn page_place(&self, page: &Page) -> Option<MemoryId> {
        self.line_place(page, 0)
    }

    /// The first byte of a line of the page; `None` for a file beyond the number of files that the sketch can name.
    pub(crate) fn line_place(&self, page: &Page, line: u32) -> Option<MemoryId> {
        let number = page.number + u64::from(line) * LINE_SIZE;
        match page.kind {
            PageKind::Private => Some(MemoryId::Private { space: page.object, addr: number }),
            PageKind::Frame => Some(MemoryId::Frame { phys: number }),
            PageKind::Shared => {
                let &(scope, ino) = self.names.get(page.object as usize)?;
                Some(MemoryId::Shared { scope, ino, offset: number })
            }
        }
    }
}
