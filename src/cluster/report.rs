//! The report's part on communities and classes: what they share, where that memory is, and how much of it stays together.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use super::clusters::{Clusters, Community, Edge, Hot, LineUse, Structure, Verdict};
use super::lines;
use super::misses::{Misses, Use};
use super::rules::{RawCommunity, Region, Rules};
use super::shared::Shared;
use super::sketch::{Page, Sharing};
use crate::sample::{MemoryId, LINE_SIZE, PAGE_SIZE};

/// The number of regions, pages and lines that are named for each community.
const NAMED: usize = 8;
/// The number of lines that are named for all threads together, and of threads of a line.
const LINES_OF_ALL: usize = 32;
const THREADS_OF_LINE: usize = 16;

/// The communities, without what [`describe`] adds.
pub(crate) fn communities(sharing: &Sharing, found: &[(u32, RawCommunity)]) -> Vec<Community> {
    let activity = sharing.threads();
    let total: f64 = activity.iter().map(|a| a.accesses as f64).sum::<f64>().max(1.0);
    let of = |(cell, found): &(u32, RawCommunity)| {
        let accesses: f64 = found.members.iter().map(|&t| activity[t as usize].accesses as f64).sum();
        Community {
            cell: *cell,
            threads: found.members.clone(),
            accesses,
            share_of_accesses: accesses / total,
            common: found.common.min(1.0),
            transfers: 0.0,
            is_all: found.is_all,
            stability: found.stability,
            over_time: found.over_time,
            confidence: super::quality::confidence(found),
            regions: Vec::new(),
            pages: Vec::new(),
            lines: Vec::new(),
        }
    };
    found.iter().map(of).collect()
}

/// Adds the part for reports only: the memory that the communities share.
pub(crate) fn describe(sharing: &Sharing, misses: &Misses, clusters: &mut Clusters) {
    let pages: FxHashMap<(u64, u64), &Page> = sharing
        .pages()
        .map(|page| {
            let (object, line, _) = sharing.address(page);
            ((object, line / LINES), page)
        })
        .collect();
    let named = Named { sharing, pages };
    let of_community = |thread: u32| community_of(clusters, thread).map(|community| community as usize);
    let mut shared = vec![Vec::new(); clusters.communities.len()];
    for page in misses.uses.chunk_by(|a, b| (a.object, a.line / LINES) == (b.object, b.line / LINES)) {
        for (community, weight) in own_page(page, &of_community) {
            shared[community].push((weight, page));
        }
    }
    let hot = |shared: &mut Vec<(u64, &[Use])>| {
        shared.sort_by_key(|(weight, page)| (Reverse(*weight), page[0].object, page[0].line));
        let mut lines: Vec<&[Use]> = shared
            .iter()
            .flat_map(|(_, page)| page.chunk_by(|a, b| a.line == b.line))
            .filter(|line| is_shared(sharing, line))
            .collect();
        lines.sort_by_key(|line| (Reverse(accesses(line)), line[0].object, line[0].line));
        let pages: Vec<Hot> = shared.iter().take(NAMED).filter_map(|(_, page)| named.page(page)).collect();
        (pages, lines.into_iter().take(NAMED).filter_map(|line| named.line(line)).collect::<Vec<Hot>>())
    };
    let Clusters { communities, regions, .. } = clusters;
    let of_communities = regions_of(communities, regions);
    for ((community, shared), of_community) in communities.iter_mut().zip(&mut shared).zip(of_communities) {
        (community.pages, community.lines) = hot(shared);
        let own = of_community.iter().filter_map(|&at| regions.get(at as usize));
        (community.regions, community.transfers) = named.structures(own, &community.threads);
    }
    // Memory that one community alone uses, or only two threads, does not make communities hard to tell apart.
    let is_of_several = |page: &&[Use]| {
        let threads: BTreeSet<u32> = page.iter().map(|it| it.thread).collect();
        let communities: BTreeSet<Option<u32>> = threads.iter().map(|&it| community_of(clusters, it)).collect();
        threads.len() > 2 && (communities.len() > 1 || communities.contains(&None))
    };
    let mut hubs: Vec<(u64, &[Use])> = Vec::new();
    // Memory that the threads of all cells use is a region of each of these cells.
    let mut known: FxHashSet<(u64, u64, u64)> = FxHashSet::default();
    let mut is_new = |region: &Region| known.insert((region.object, region.first, region.last));
    for region in clusters.regions.iter().filter(|region| region.is_hub && is_new(region)) {
        let from = misses.uses.partition_point(|it| (it.object, it.line) < (region.object, region.first));
        let to = misses.uses.partition_point(|it| (it.object, it.line) <= (region.object, region.last));
        let pages = misses.uses[from..to].chunk_by(|a, b| a.line / LINES == b.line / LINES);
        hubs.extend(
            pages.filter(is_of_several).map(|page| (page.iter().map(|it| u64::from(it.accesses)).sum::<u64>(), page)),
        );
    }
    hubs.sort_by_key(|(accesses, page)| (Reverse(*accesses), page[0].object, page[0].line));
    // A page may hold several regions.
    hubs.dedup_by_key(|(_, page)| (page[0].object, page[0].line / LINES));
    clusters.hubs = hubs.into_iter().take(NAMED).filter_map(|(_, page)| named.page(page)).collect();
    clusters.shared = Shared::new(sharing, misses, &clusters.regions, &named.pages);
    clusters.lines = hottest(sharing, misses).into_iter().filter_map(|line| named.line(line)).collect();
}

const LINES: u64 = PAGE_SIZE / LINE_SIZE;

/// For each community, the regions that a thread of it uses, in their order: a search for each among all would cost the
/// square of the host.
fn regions_of(communities: &[Community], regions: &[Region]) -> Vec<Vec<u32>> {
    let mut of_thread: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
    for (community, at) in communities.iter().zip(0..) {
        for &thread in &community.threads {
            of_thread.entry(thread).or_default().push(at);
        }
    }
    let mut found: Vec<Vec<u32>> = vec![Vec::new(); communities.len()];
    for (region, at) in regions.iter().zip(0..) {
        for &community in region.sharers.iter().filter_map(|it| of_thread.get(&it.thread)).flatten() {
            if let Some(own) = found.get_mut(community as usize).filter(|own| own.last() != Some(&at)) {
                own.push(at);
            }
        }
    }
    found
}

/// The community of a thread, if it is in one.
fn community_of(clusters: &Clusters, thread: u32) -> Option<u32> {
    match clusters.of_thread.get(thread as usize) {
        Some(Verdict::Community(community)) => Some(*community),
        _ => None,
    }
}

fn accesses(uses: &[Use]) -> u64 {
    uses.iter().map(|it| u64::from(it.accesses)).sum()
}

/// True if more than one thread touched the line.
fn is_shared(sharing: &Sharing, line: &[Use]) -> bool {
    let owner = line.first().map(|it| sharing.owner(it.thread));
    line.iter().any(|it| Some(sharing.owner(it.thread)) != owner)
}

/// The lines that move between caches: first those found modified in another cache most often, then those whose
/// accesses may have found them so.
fn hottest<'a>(sharing: &Sharing, misses: &'a Misses) -> Vec<&'a [Use]> {
    let of_line = |line: &'a [Use]| {
        let hitm: u64 = line.iter().map(|it| u64::from(it.hitm)).sum();
        let transfers: f32 = line.iter().map(|it| it.transfers).sum();
        (hitm > 0 || transfers > 0.0).then_some((hitm, transfers, line))
    };
    let lines = misses.uses.chunk_by(|a, b| (a.object, a.line) == (b.object, b.line));
    let mut lines: Vec<_> = lines.filter(|line| is_shared(sharing, line)).filter_map(of_line).collect();
    lines.sort_by(|a, b| {
        let place = |line: &[Use]| line.first().map(|it| (it.object, it.line));
        let by_heat = b.0.cmp(&a.0).then(b.1.total_cmp(&a.1)).then(accesses(b.2).cmp(&accesses(a.2)));
        by_heat.then_with(|| place(a.2).cmp(&place(b.2)))
    });
    lines.into_iter().take(LINES_OF_ALL).map(|it| it.2).collect()
}

/// The communities with two threads or more that touch the page, and with most of its accesses; with these accesses.
fn own_page(page: &[Use], of_community: &impl Fn(u32) -> Option<usize>) -> Vec<(usize, u64)> {
    let mut by_community: Vec<(usize, u32, u64)> =
        page.iter().filter_map(|it| Some((of_community(it.thread)?, it.thread, u64::from(it.accesses)))).collect();
    by_community.sort_unstable();
    let all: u64 = page.iter().map(|it| u64::from(it.accesses)).sum();
    by_community
        .chunk_by(|a, b| a.0 == b.0)
        .filter(|uses| uses.iter().any(|it| it.1 != uses[0].1))
        .map(|uses| (uses[0].0, uses.iter().map(|it| it.2).sum::<u64>()))
        .filter(|&(_, own)| own * 2 > all)
        .map(|(community, _)| (community, all))
        .collect()
}

/// Names memory for the report.
struct Named<'a> {
    sharing: &'a Sharing,
    /// By object and number.
    pages: FxHashMap<(u64, u64), &'a Page>,
}

impl Named<'_> {
    fn page_of(&self, it: &Use) -> Option<&Page> {
        self.pages.get(&(it.object, it.line / LINES)).copied()
    }

    fn page(&self, uses: &[Use]) -> Option<Hot> {
        let page = self.page_of(uses.first()?)?;
        let accesses = f64::from(page.accesses);
        Some(Hot {
            memory: self.sharing.page_place(page),
            hottest: self.hottest_byte(uses),
            accesses,
            writes: uses.iter().map(|it| f64::from(it.writes)).sum(),
            hitm: u64::from(page.hitm),
            transfers: None,
            threads: page.threads,
            kilocycles: f64::from(page.latency) / accesses,
            code: Vec::new(),
            sharing: None,
            by_thread: Vec::new(),
        })
    }

    /// The first byte that was touched in the hottest line of these.
    fn hottest_byte(&self, uses: &[Use]) -> Option<MemoryId> {
        let line = uses.chunk_by(|a, b| a.line == b.line).max_by_key(|line| (accesses(line), Reverse(line[0].line)))?;
        let first = line.first()?;
        let page = self.page_of(first)?;
        let number = (first.line % LINES) as u32;
        let touched = self.sharing.bytes_of(page.key, number).iter().fold(0, |all, it| all | it.loaded | it.stored);
        Some(self.sharing.line_place(page, number)?.byte(if touched == 0 { 0 } else { touched.trailing_zeros() }))
    }

    fn line(&self, uses: &[Use]) -> Option<Hot> {
        let first = uses.first()?;
        let page = self.page_of(first)?;
        let number = (first.line % LINES) as u32;
        let bytes = self.sharing.bytes_of(page.key, number);
        let of_thread = |it: &Use| {
            let bytes = bytes.iter().find(|bytes| bytes.thread == it.thread);
            LineUse {
                thread: it.thread,
                loads: it.accesses.saturating_sub(it.writes),
                stores: it.writes,
                hitm: it.hitm,
                loaded: bytes.map_or(0, |bytes| bytes.loaded),
                stored: bytes.map_or(0, |bytes| bytes.stored),
            }
        };
        let mut by_thread: Vec<LineUse> = uses.iter().map(of_thread).collect();
        by_thread.sort_by_key(|it| (Reverse(it.loads.saturating_add(it.stores)), it.thread));
        by_thread.truncate(THREADS_OF_LINE);
        let hitm = uses.iter().map(|it| u64::from(it.hitm)).sum();
        let writes = uses.iter().map(|it| f64::from(it.writes)).sum();
        Some(Hot {
            memory: self.sharing.line_place(page, number),
            hottest: self.hottest_byte(uses),
            accesses: uses.iter().map(|it| f64::from(it.accesses)).sum(),
            writes,
            hitm,
            transfers: Some(uses.iter().map(|it| f64::from(it.transfers)).sum()),
            threads: uses.len() as u32,
            kilocycles: 0.0,
            code: self.sharing.codes(page.key, number),
            sharing: Some(lines::sharing(&bytes, |thread| self.sharing.owner(thread), writes > 0.0, hitm > 0)),
            by_thread,
        })
    }

    /// Those of these regions that the threads share, the largest first, and the part of all their misses that are transfers.
    fn structures<'r>(&self, regions: impl Iterator<Item = &'r Region>, threads: &[u32]) -> (Vec<Structure>, f64) {
        let mut structures: Vec<(f64, Structure)> = Vec::new();
        let (mut misses, mut transfers) = (0.0, 0.0);
        for region in regions {
            let sharers = region.sharers.iter().filter(|it| threads.binary_search(&it.thread).is_ok());
            let (mut sum, mut written, mut count) = (0.0, 0.0, 0);
            for it in sharers {
                sum += it.misses;
                written += it.transfers;
                count += 1;
            }
            if count < 2 {
                continue;
            }
            misses += sum;
            transfers += written;
            let page = self.pages.get(&(region.object, region.first / LINES));
            let memory = page.and_then(|page| self.sharing.line_place(page, (region.first % LINES) as u32));
            let bytes = (region.last - region.first + 1) * LINE_SIZE;
            let structure = Structure { memory, bytes, threads: count, misses: sum, transfers: written };
            structures.push((region.avoided(|thread| threads.binary_search(&thread).is_ok()), structure));
        }
        structures.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.memory.cmp(&b.1.memory)));
        let part = if misses > 0.0 { transfers / misses } else { 0.0 };
        (structures.into_iter().take(NAMED).map(|it| it.1).collect(), part)
    }
}

impl Clusters {
    /// The part of the avoidable misses that a configuration avoids, from 0 to 1. `labels` gives each thread the label of its
    /// CPUs; threads with the same label share them. Threads beyond its end share one label.
    ///
    /// In each region all fills are avoidable but those of one thread, which must fetch the data anyway, and so are all
    /// transfers; a transfer is avoided only if the thread that took the line away shares the cache. `None` if less than 2 % of
    /// all possible misses are avoidable.
    #[must_use]
    pub fn locality_of(&self, labels: &[u32]) -> Option<f64> {
        let label = |thread: u32| labels.get(thread as usize).copied().unwrap_or(u32::MAX);
        let (mut kept, mut all) = (0.0, 0.0);
        for region in &self.regions {
            let sets = region.by_label(|thread| Some(label(thread)));
            kept += region.fits * sets.iter().map(|it| it.1.avoided()).sum::<f64>();
            all += region.avoided(|_| true);
        }
        let demand: f64 = self.demand.iter().sum();
        (all > 0.0 && all >= Rules::default().worth * demand).then(|| kept / all)
    }

    /// How classes of threads (comm, cgroup, process, hint: any labels) share memory: the pairs that share at least 1 % of the
    /// possible misses of the class that has fewer, in descending order. With one label per thread it is the graph of the
    /// threads.
    #[must_use]
    pub fn edges(&self, labels: &[u32]) -> Vec<Edge> {
        /// Pairs below this part of the possible misses have no edge.
        const LEAST: f64 = 0.01;
        let label = |thread: u32| labels.get(thread as usize).copied().unwrap_or(u32::MAX);
        let mut demand: FxHashMap<u32, f64> = FxHashMap::default();
        for (thread, misses) in (0..).zip(&self.demand) {
            *demand.entry(label(thread)).or_default() += misses;
        }
        let mut met: FxHashMap<(u32, u32), f64> = FxHashMap::default();
        for region in &self.regions {
            let classes = region.by_label(|thread| Some(label(thread)));
            for (at, (a, uses)) in classes.iter().enumerate() {
                let within = uses.avoided();
                if within > 0.0 {
                    *met.entry((*a, *a)).or_default() += region.fits * within;
                }
                for (b, other) in &classes[at + 1..] {
                    *met.entry((*a, *b)).or_default() += region.fits * uses.between(other);
                }
            }
        }
        let mut edges: Vec<Edge> = met
            .into_iter()
            .filter_map(|((a, b), misses)| {
                let smaller = demand.get(&a)?.min(*demand.get(&b)?);
                let share = (misses / smaller).min(1.0);
                (share >= LEAST).then_some(Edge { a, b, misses, share })
            })
            .collect();
        edges.sort_by(|x, y| y.misses.total_cmp(&x.misses).then_with(|| (x.a, x.b).cmp(&(y.a, y.b))));
        edges
    }
}
