//! Which threads share what: the regions in which misses can be avoided, and the hottest pages with the accesses of their threads
//! to each line. For the matrix of a report.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;

use super::lines::{self, LineSharing};
use super::misses::{Misses, Use};
use super::rules::Region;
use super::sketch::{Page, Sharing};
use crate::sample::{MemoryId, LINE_SIZE, PAGE_SIZE};

/// Uses of a region by a thread, in all regions.
const MAX_SHARERS: usize = 60_000;
/// The most pages, and uses of a line by a thread in all of them.
const MAX_PAGES: usize = 100;
const MAX_USES: usize = 10_000;
/// The most threads of a line: those with most accesses.
const MAX_THREADS: usize = 200;
const LINES: u64 = PAGE_SIZE / LINE_SIZE;

/// The part that a report shows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Shared {
    /// The regions in which most misses can be avoided.
    pub regions: Vec<SharedRegion>,
    /// How many more regions there are, and the misses that can be avoided there.
    pub regions_left_out: (usize, f64),
    /// The pages with most accesses beyond those of their most active thread.
    pub pages: Vec<SharedPage>,
    /// How many more shared pages there are.
    pub pages_left_out: usize,
}

/// A region.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SharedRegion {
    /// Its index in [`super::Clusters`].
    pub index: usize,
    /// Its first byte; `None` for a file beyond the number of files that the sketch can name.
    pub memory: Option<MemoryId>,
    /// The misses that are avoided if all of its threads use one cache.
    pub avoidable: f64,
}

/// A page that several threads touched.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SharedPage {
    /// Its first byte; `None` for a file beyond the number of files that the sketch can name.
    pub memory: Option<MemoryId>,
    /// The object that it is in, and the number of its first line there.
    pub object: u64,
    pub first: u64,
    /// Accesses of all threads.
    pub accesses: u64,
    /// Its lines that threads touched, the hottest first.
    pub lines: Vec<SharedLine>,
}

/// A line of such a page.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SharedLine {
    /// Its first byte that is known to be touched, or its first one.
    pub memory: Option<MemoryId>,
    /// Its number in the page.
    pub number: u32,
    /// How its threads share it.
    pub sharing: LineSharing,
    /// Thread, loads and stores, the most active thread first.
    pub by_thread: Vec<(u32, u32, u32)>,
}

/// The sketch's pages, by object and number.
type Pages<'a> = FxHashMap<(u64, u64), &'a Page>;

impl Shared {
    pub(super) fn new(sharing: &Sharing, misses: &Misses, regions: &[Region], pages: &Pages<'_>) -> Self {
        let (kept, regions_left_out) = best(sharing, regions, pages);
        let (pages, pages_left_out) = hottest(sharing, misses, pages);
        Self { regions: kept, regions_left_out, pages, pages_left_out }
    }
}

/// The regions in which most misses can be avoided, and what is left out.
fn best(sharing: &Sharing, regions: &[Region], pages: &Pages<'_>) -> (Vec<SharedRegion>, (usize, f64)) {
    let mut sorted: Vec<(f64, usize, &Region)> =
        regions.iter().enumerate().map(|(index, region)| (region.avoided(|_| true), index, region)).collect();
    sorted.retain(|it| it.0 > 0.0);
    sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let (mut kept, mut left_out) = (Vec::new(), (0, 0.0));
    let mut sharers = 0;
    for (avoidable, index, region) in sorted {
        if sharers + region.sharers.len() > MAX_SHARERS {
            left_out = (left_out.0 + 1, left_out.1 + avoidable);
            continue;
        }
        sharers += region.sharers.len();
        let page = pages.get(&(region.object, region.first / LINES));
        let memory = page.and_then(|page| sharing.line_place(page, (region.first % LINES) as u32));
        kept.push(SharedRegion { index, memory, avoidable });
    }
    (kept, left_out)
}

/// The pages with most accesses beyond those of their most active thread, and how many are left out.
fn hottest(sharing: &Sharing, misses: &Misses, pages: &Pages<'_>) -> (Vec<SharedPage>, usize) {
    let mut shared: Vec<(u64, &[Use])> = Vec::new();
    let mut of_thread: Vec<(u32, u64)> = Vec::new();
    for page in misses.uses.chunk_by(|a, b| (a.object, a.line / LINES) == (b.object, b.line / LINES)) {
        of_thread.clear();
        of_thread.extend(page.iter().map(|it| (sharing.owner(it.thread), u64::from(it.accesses))));
        of_thread.sort_unstable();
        let sums = of_thread.chunk_by(|a, b| a.0 == b.0).map(|uses| uses.iter().map(|it| it.1).sum::<u64>());
        let (all, most) = sums.fold((0, 0), |(all, most), sum| (all + sum, sum.max(most)));
        if all > most {
            shared.push((all - most, page));
        }
    }
    shared.sort_by_key(|(weight, page)| (Reverse(*weight), page.first().map(|it| (it.object, it.line))));
    let count = shared.len();
    let mut uses = 0;
    let fits = |page: &&[Use]| {
        let is_room = uses + page.len() <= MAX_USES;
        uses += if is_room { page.len() } else { 0 };
        is_room
    };
    let kept = shared.into_iter().map(|it| it.1).filter(fits).take(MAX_PAGES);
    let made = |page: &[Use]| {
        let first = page.first()?;
        let known = pages.get(&(first.object, first.line / LINES))?;
        let lines = page.chunk_by(|a, b| a.line == b.line);
        let mut lines: Vec<SharedLine> = lines.filter_map(|line| made_line(sharing, known, line)).collect();
        let heat = |line: &SharedLine| line.by_thread.iter().map(|it| u64::from(it.1) + u64::from(it.2)).sum::<u64>();
        lines.sort_by_cached_key(|line| (Reverse(heat(line)), line.number));
        Some(SharedPage {
            memory: sharing.page_place(known),
            object: first.object,
            first: first.line / LINES * LINES,
            accesses: page.iter().map(|it| u64::from(it.accesses)).sum(),
            lines,
        })
    };
    let kept: Vec<SharedPage> = kept.filter_map(made).collect();
    let left_out = count - kept.len();
    (kept, left_out)
}

fn made_line(sharing: &Sharing, page: &Page, uses: &[Use]) -> Option<SharedLine> {
    let number = (uses.first()?.line % LINES) as u32;
    let bytes = sharing.bytes_of(page.key, number);
    let touched = bytes.iter().fold(0, |all, it| all | it.loaded | it.stored);
    let is_written = uses.iter().any(|it| it.writes > 0);
    let is_modified = uses.iter().any(|it| it.hitm > 0);
    let mut by_thread: Vec<(u32, u32, u32)> =
        uses.iter().map(|it| (it.thread, it.accesses.saturating_sub(it.writes), it.writes)).collect();
    by_thread.sort_by_key(|it| (Reverse(u64::from(it.1) + u64::from(it.2)), it.0));
    by_thread.truncate(MAX_THREADS);
    let place = sharing.line_place(page, number);
    Some(SharedLine {
        memory: place.map(|place| place.byte(if touched == 0 { 0 } else { touched.trailing_zeros() })),
        number,
        sharing: lines::sharing(&bytes, |thread| sharing.owner(thread), is_written, is_modified),
        by_thread,
    })
}
