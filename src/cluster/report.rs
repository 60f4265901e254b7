//! What the report says of communities and classes: what they share, where it is, and how much of it stays together.

use rustc_hash::FxHashMap;

use super::graph::{events_of, is_hub, Seen};
use super::sharing::{Line, Sharing, EVENT};
use super::solve::{Clusters, Community, Found, Verdict};
use crate::sample::{CodeAddr, Place, PAGE_SIZE};

/// Pages and lines that are named for each community.
const NAMED: usize = 8;

/// A page or a line, and what was done to it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Hot {
    /// Its first byte; `None` for a file beyond the number that the sketch keeps the names of.
    pub place: Option<Place>,
    /// Events on it by all threads.
    pub events: f64,
    /// Those that wrote.
    pub writes: f64,
    /// Samples that found it modified in another cache.
    pub hitm: u64,
    /// Threads that touched it; for a line 2 stands for two or more.
    pub threads: u32,
    /// Mean latency in kilocycles where the source has latencies, rounded up a sample; 0 else.
    pub kilocycles: f64,
    /// The code that touched it most since two threads did, with its events, where samples say their code; of lines alone.
    pub code: Vec<(CodeAddr, f64)>,
}

/// How two classes of threads share memory, what everybody touches left out.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Edge {
    /// The one class.
    pub a: u32,
    /// The other, or the same one for sharing between threads within it.
    pub b: u32,
    /// Accesses of either class to a page that the other's accesses to it account for.
    pub events: f64,
    /// The part of them on pages that were seen to be written.
    pub written: f64,
    /// Events as a part of all accesses of the class that has fewer.
    pub share: f64,
    /// Events relative to what there were if every class met every other alike.
    pub lift: f64,
    /// Standard deviations from that.
    pub significance: f64,
}

/// What is counted of one community while the pages pass by.
#[derive(Debug, Clone, Default)]
struct Sum {
    shared: f64,
    written: f64,
    pages: Vec<(u64, u32)>,
}

/// Fills in what the communities share.
pub(crate) fn describe(
    sharing: &Sharing,
    of_thread: Vec<Verdict>,
    found: &[Found],
    seen: &[Seen],
    hubs: &[u64],
) -> Clusters {
    let activity = sharing.threads();
    let total: f64 = activity.iter().map(|a| a.weight as f64).sum();
    let community = |thread: u32| match of_thread.get(thread as usize) {
        Some(Verdict::Community(community)) => Some(*community as usize),
        _ => None,
    };
    let mut sums = vec![Sum::default(); found.len()];
    let mut here: FxHashMap<usize, (u32, u32, u32)> = FxHashMap::default();
    for page in seen.chunk_by(|a, b| (a.cell, a.page) == (b.cell, b.page)) {
        here.clear();
        for touch in page {
            if let Some(community) = community(touch.thread) {
                let sum = here.entry(community).or_default();
                sum.0 += 1;
                sum.1 = sum.1.saturating_add(touch.weight);
                sum.2 = sum.2.saturating_add(touch.writes);
            }
        }
        let Some(first) = page.first() else { continue };
        let Some(facts) = sharing.page(first.page) else { continue };
        let stands_for = f64::from(sharing.stands_for(facts));
        for (&community, &(members, weight, writes)) in &here {
            if members > 1 {
                let sum = &mut sums[community];
                sum.shared += stands_for * f64::from(weight);
                sum.written += if writes > 0 { stands_for * f64::from(weight) } else { 0.0 };
                // A page that others use more is not the community's own.
                if u64::from(weight) * 2 > u64::from(facts.weight) {
                    sum.pages.push((first.page, facts.weight));
                }
            }
        }
    }
    let mut owner: FxHashMap<u64, usize> = FxHashMap::default();
    for (sum, number) in sums.iter_mut().zip(0..) {
        sum.pages.sort_unstable_by_key(|&(key, weight)| (std::cmp::Reverse(weight), key));
        owner.extend(sum.pages.iter().map(|&(key, _)| (key, number)));
    }
    let mut lines = shared_lines(sharing, &owner, found.len());
    let writes = writes_of(seen, &sums, hubs);
    let hot = |key: u64| hot_page(sharing, key, &writes);
    let communities = found
        .iter()
        .zip(sums)
        .zip(&mut lines)
        .map(|((found, sum), lines)| {
            let weight: f64 = found.threads.iter().map(|&t| activity[t as usize].weight as f64).sum();
            let (within, outside) = (f64::from(found.within), f64::from(found.outside));
            Community {
                group: found.group,
                threads: found.threads.clone(),
                events: weight / f64::from(EVENT),
                share_of_accesses: weight / total,
                shared: (sum.shared / weight).min(1.0),
                written: if sum.shared > 0.0 { sum.written / sum.shared } else { 0.0 },
                contrast: if outside > 0.0 { within / outside } else { f64::INFINITY },
                stability: None,
                confidence: 0.0,
                pages: sum.pages.iter().take(NAMED).filter_map(|&(key, _)| hot(key)).collect(),
                lines: std::mem::take(lines),
            }
        })
        .collect();
    let mut by_heat: Vec<u64> = hubs.to_vec();
    by_heat.sort_by_key(|&key| (std::cmp::Reverse(sharing.page(key).map_or(0, |page| page.weight)), key));
    let hubs = by_heat.into_iter().take(NAMED).filter_map(hot).collect();
    let mut clusters =
        Clusters { of_thread, communities, locality: 0.0, stability: None, hubs, stats: sharing.stats() };
    // Not from `seen`, where a page of several groups is in pieces, of which those of a single thread may be left out.
    clusters.locality = sharing.locality(&clusters.labels());
    clusters
}

/// Writes to the pages that will be named.
fn writes_of(seen: &[Seen], sums: &[Sum], hubs: &[u64]) -> FxHashMap<u64, u64> {
    let named =
        sums.iter().flat_map(|sum| sum.pages.iter().take(NAMED).map(|&(key, _)| key)).chain(hubs.iter().copied());
    let mut writes: FxHashMap<u64, u64> = named.map(|key| (key, 0)).collect();
    for touch in seen {
        if let Some(sum) = writes.get_mut(&touch.page) {
            *sum += u64::from(touch.writes);
        }
    }
    writes
}

fn hot_page(sharing: &Sharing, key: u64, writes: &FxHashMap<u64, u64>) -> Option<Hot> {
    let page = sharing.page(key)?;
    let events = f64::from(page.weight) / f64::from(EVENT);
    Some(Hot {
        place: sharing.page_place(page),
        events,
        writes: writes.get(&key).copied().unwrap_or(0) as f64 / f64::from(EVENT),
        hitm: u64::from(page.hitm),
        threads: page.threads,
        kilocycles: f64::from(page.latency) / events,
        code: Vec::new(),
    })
}

/// The hottest lines that more than one thread touched, of the pages of each community.
fn shared_lines(sharing: &Sharing, owner: &FxHashMap<u64, usize>, count: usize) -> Vec<Vec<Hot>> {
    let mut lines: Vec<Vec<(&Line, Hot)>> = vec![Vec::new(); count];
    for line in sharing.lines().filter(|line| line.shared) {
        let Some(place) = sharing.line_place(line) else { continue };
        let Some(&community) = owner.get(&super::sharing::place_key(place.granule(PAGE_SIZE))) else { continue };
        let events = f64::from(line.weight) / f64::from(EVENT);
        let writes = f64::from(line.writes) / f64::from(EVENT);
        let hitm = u64::from(line.hitm);
        let hot = Hot { place: Some(place), events, writes, hitm, threads: 2, kilocycles: 0.0, code: Vec::new() };
        lines[community].push((line, hot));
    }
    lines
        .into_iter()
        .map(|mut lines| {
            lines.sort_unstable_by_key(|(line, _)| (std::cmp::Reverse(line.weight), line.key));
            let named = lines.into_iter().take(NAMED);
            named.map(|(line, hot)| Hot { code: sharing.codes(line), ..hot }).collect()
        })
        .collect()
}

/// The part of sharing that stays within the labels: of all pairs of accesses to a page by different threads, those of
/// threads with one label, each page counting as much as it is used.
fn locality(sharing: &Sharing, seen: &[Seen], labels: &[u32]) -> f64 {
    let mut by_page: FxHashMap<u64, Vec<(u32, f64)>> = FxHashMap::default();
    for touch in seen {
        let label = labels.get(touch.thread as usize).copied().unwrap_or(u32::MAX);
        by_page.entry(touch.page).or_default().push((label, f64::from(touch.weight)));
    }
    let (mut kept, mut all) = (0.0, 0.0);
    let mut pages: Vec<_> = by_page.into_iter().collect();
    pages.sort_unstable_by_key(|&(key, _)| key);
    for (key, mut touches) in pages {
        let Some(page) = sharing.page(key) else { continue };
        // Whole numbers, so that the order within a page does not show.
        touches.sort_unstable_by_key(|&(label, _)| label);
        let total: f64 = touches.iter().map(|touch| touch.1).sum();
        let own: f64 = touches.iter().map(|touch| touch.1 * touch.1).sum();
        let pairs = total * total - own;
        if pairs <= 0.0 {
            continue;
        }
        let within: f64 = touches
            .chunk_by(|a, b| a.0 == b.0)
            .map(|class| {
                let sum: f64 = class.iter().map(|touch| touch.1).sum();
                sum * sum - class.iter().map(|touch| touch.1 * touch.1).sum::<f64>()
            })
            .sum();
        let weight = total * f64::from(sharing.stands_for(page));
        kept += weight * within / pairs;
        all += weight;
    }
    if all > 0.0 {
        kept / all
    } else {
        1.0
    }
}

impl Sharing {
    /// The part of all shared accesses whose sharers have one label (a subcell), from 0 to 1; 1 where nothing is shared.
    ///
    /// Threads beyond the end of `labels` have a label in common.
    #[must_use]
    pub fn locality(&self, labels: &[u32]) -> f64 {
        locality(self, &self.by_page(), labels)
    }

    /// How classes of threads (comm, cgroup, process, hint: any labels) share memory: those pairs that meet more than
    /// chance explains, the most significant first. With a label for each thread it is the graph of the threads.
    #[must_use]
    pub fn edges(&self, labels: &[u32]) -> Vec<Edge> {
        let seen = self.by_page();
        let label = |thread: u32| labels.get(thread as usize).copied().unwrap_or(u32::MAX);
        let events: Vec<f32> =
            self.threads().iter().map(|a| a.weight as f32 / EVENT as f32).filter(|&events| events > 0.0).collect();
        let total: f32 = events.iter().sum();
        let mut size: FxHashMap<u32, f64> = FxHashMap::default();
        for (thread, activity) in (0u32..).zip(self.threads()) {
            *size.entry(label(thread)).or_default() += activity.weight as f64 / f64::from(EVENT);
        }
        let mut met: FxHashMap<(u32, u32), (f64, f64)> = FxHashMap::default();
        // What each thread meets of all others.
        let mut degree = vec![0.0; self.threads().len()];
        for page in seen.chunk_by(|a, b| a.page == b.page) {
            if page.len() < 2 || is_hub(page, &events, total) {
                continue;
            }
            let mut classes: Vec<(u32, f64, f64)> = page
                .iter()
                .map(|t| (label(t.thread), f64::from(events_of(t)), f64::from(events_of(t)).powi(2)))
                .collect();
            classes.sort_unstable_by_key(|class| class.0);
            classes.dedup_by(|next, kept| {
                let same = next.0 == kept.0;
                if same {
                    kept.1 += next.1;
                    kept.2 += next.2;
                }
                same
            });
            let all: f64 = classes.iter().map(|class| class.1).sum();
            let written = page.iter().any(|touch| touch.writes > 0);
            for touch in page {
                let events = f64::from(events_of(touch));
                degree[touch.thread as usize] += events * (all - events) / all;
            }
            for (n, &(a, events_a, squares)) in classes.iter().enumerate() {
                let within = (a, a, (events_a * events_a - squares) / all);
                let between =
                    classes.iter().skip(n + 1).map(|&(b, events_b, _)| (a, b, 2.0 * events_a * events_b / all));
                for (a, b, events) in std::iter::once(within).chain(between).filter(|meeting| meeting.2 > 0.0) {
                    let sum = met.entry((a, b)).or_default();
                    sum.0 += events;
                    sum.1 += if written { events } else { 0.0 };
                }
            }
        }
        let mut of_class: FxHashMap<u32, (f64, f64)> = FxHashMap::default();
        for (thread, degree) in (0u32..).zip(degree) {
            let sum = of_class.entry(label(thread)).or_default();
            *sum = (sum.0 + degree, sum.1 + degree * degree);
        }
        significant(&met, &size, &of_class)
    }

    /// The touches of pages that more than one thread touches, in the order of the pages.
    fn by_page(&self) -> Vec<Seen> {
        let mut seen: Vec<Seen> = self
            .touches()
            .filter(|touch| self.page(touch.page).is_some_and(|page| page.threads > 1))
            .map(|touch| Seen {
                page: touch.page,
                lines: touch.lines,
                cell: 0,
                rank: touch.thread,
                thread: touch.thread,
                weight: touch.weight,
                writes: touch.writes,
            })
            .collect();
        seen.sort_unstable_by_key(|seen| (seen.page, seen.weight, seen.lines, seen.thread));
        self.retain_shared(&mut seen);
        seen
    }
}

/// The edges beyond chance, where a thread meets any other one in proportion to what both meet of all (the configuration
/// model); `degree` has for each class the sum of what its threads meet, and of the squares.
fn significant(
    met: &FxHashMap<(u32, u32), (f64, f64)>,
    size: &FxHashMap<u32, f64>,
    degree: &FxHashMap<u32, (f64, f64)>,
) -> Vec<Edge> {
    /// Standard deviations below which there is no edge.
    const SIGNIFICANT: f64 = 3.0;
    /// The part of what chance gives by which the model itself may be wrong.
    const MODEL: f64 = 0.03;
    let mut pairs: Vec<(u32, u32, f64, f64)> =
        met.iter().map(|(&(a, b), &(sum, written))| (a, b, sum, written)).collect();
    pairs.sort_unstable_by_key(|&(a, b, ..)| (a, b));
    let mut classes: Vec<(&u32, &(f64, f64))> = degree.iter().filter(|(_, sums)| sums.0 > 0.0).collect();
    classes.sort_unstable_by_key(|class| class.0);
    let total: f64 = pairs.iter().map(|pair| pair.2).sum();
    let all: f64 = classes.iter().map(|(_, sums)| sums.0).sum();
    let apart = all * all - classes.iter().map(|(_, sums)| sums.1).sum::<f64>();
    let mut edges: Vec<Edge> = pairs
        .into_iter()
        .filter_map(|(a, b, events, written)| {
            let (of_a, of_b) = (degree.get(&a)?, degree.get(&b)?);
            let chance = total / apart * if a == b { of_a.0 * of_a.0 - of_a.1 } else { 2.0 * of_a.0 * of_b.0 };
            // With one class there is nothing to compare with, and any sharing is beyond chance.
            let significance = if classes.len() > 1 {
                (events - chance) / (chance.max(1.0) + (MODEL * chance).powi(2)).sqrt()
            } else {
                events.sqrt()
            };
            let smaller = size.get(&a)?.min(*size.get(&b)?);
            let edge = Edge {
                a,
                b,
                events,
                written: written / events,
                share: (events / smaller).min(1.0),
                lift: events / chance,
                significance,
            };
            (significance >= SIGNIFICANT).then_some(edge)
        })
        .collect();
    edges.sort_by(|x, y| y.significance.total_cmp(&x.significance).then_with(|| (x.a, x.b).cmp(&(y.a, y.b))));
    edges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Options;
    use crate::sample::{Access, DataSource, Sample};

    /// Two pairs of threads that meet on 11 pages each, on page n n times each, where the first one writes on every other
    /// page; two pages that all four touch, 10 and 5 times each; and memory of their own.
    fn pairs() -> Sharing {
        let mut sharing = Sharing::new(4 << 20);
        let mut add = |thread: u32, page: u64, count: u64, access: Access| {
            let place = Some(Place::Private { space: 0, addr: page * PAGE_SIZE });
            let (latency, data_src) = (2500, DataSource(0x2 | 0x10 << 19));
            for _ in 0..count {
                sharing.add(&Sample { access, latency, data_src, thread, place, ..Sample::default() });
            }
        };
        for thread in 0..4 {
            for page in 2..=12 {
                let writes = page % 2 == 0 && thread % 2 == 0;
                let base = 1000 * u64::from(thread / 2);
                add(thread, base + page, page, if writes { Access::Store } else { Access::Load });
            }
            add(thread, 5000, 10, Access::Load);
            add(thread, 5001, 5, Access::Store);
            add(thread, 6000 + u64::from(thread), 23, Access::Store);
        }
        sharing
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn what_a_community_shares_is_counted() {
        let sharing = pairs();
        let clusters = sharing.solve(&Options::default());
        assert_eq!(clusters.communities.len(), 2);
        for community in &clusters.communities {
            let base = u64::from(community.threads[0] / 2) * 1000;
            assert!(close(community.events, 230.0) && close(community.share_of_accesses, 0.5), "{community:?}");
            assert!(close(community.shared, 184.0 / 230.0) && close(community.written, 94.0 / 184.0), "{community:?}");
            assert!(community.contrast.is_infinite() && community.confidence > 0.8, "{community:?}");
            // The hottest eight are named, the hottest first.
            let told = |hot: &[Hot]| -> Vec<(u64, f64, f64, u64, u32)> {
                let page = |hot: &Hot| match hot.place {
                    Some(Place::Private { addr, .. }) => addr / PAGE_SIZE - base,
                    _ => 0,
                };
                hot.iter().map(|it| (page(it), it.events, it.writes, it.hitm, it.threads)).collect()
            };
            let expected: Vec<(u64, f64, f64, u64, u32)> = (5..=12_u32)
                .rev()
                .map(|n| {
                    let count = f64::from(n);
                    (u64::from(n), 2.0 * count, if n % 2 == 0 { count } else { 0.0 }, 2 * u64::from(n), 2)
                })
                .collect();
            assert_eq!(told(&community.pages), expected);
            assert_eq!(told(&community.lines), expected);
            assert!(community.pages.iter().all(|page| close(page.kilocycles, 3.0)));
        }
        let hubs: Vec<_> = clusters.hubs.iter().map(|hub| (hub.events, hub.writes, hub.threads)).collect();
        assert_eq!(hubs, [(40.0, 0.0, 4), (20.0, 20.0, 4)]);
        // Of two accesses to what all four touch a third is within a pair.
        assert!(close(clusters.locality, (2.0 * 154.0 + 60.0 / 3.0) / (2.0 * 154.0 + 60.0)), "{}", clusters.locality);
    }

    #[test]
    fn edges_are_what_is_beyond_chance() {
        let sharing = pairs();
        let told = |labels: &[u32]| -> Vec<(u32, u32)> {
            let edges = sharing.edges(labels);
            edges.iter().map(|edge| (edge.a, edge.b)).collect()
        };
        let within = sharing.edges(&[0, 0, 1, 1]);
        assert_eq!(told(&[0, 0, 1, 1]), [(0, 0), (1, 1)]);
        for edge in within {
            assert!(close(edge.events, 77.0) && close(edge.written, 42.0 / 77.0), "{edge:?}");
            assert!(close(edge.share, 77.0 / 230.0) && close(edge.lift, 3.0), "{edge:?}");
            assert!(close(edge.significance, (77.0 * 2.0 / 3.0) / (77.0 / 3.0 + 0.77_f64.powi(2)).sqrt()), "{edge:?}");
        }
        // Each class has one of each pair.
        let [edge] = sharing.edges(&[0, 1, 0, 1])[..] else { panic!() };
        assert!(close(edge.events, 154.0) && close(edge.lift, 1.5) && close(edge.share, 154.0 / 230.0), "{edge:?}");
        // A class that is smaller, and one that meets nobody.
        assert_eq!(told(&[0, 1, 2, 2]), [(0, 1), (2, 2)]);
        assert!(close(sharing.edges(&[7; 4])[0].significance, 154.0_f64.sqrt()), "with nothing to compare");
    }
}
