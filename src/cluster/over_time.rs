//! Whether the threads of a community share with the same threads all the time.
//!
//! The sketch says in which spans of the run a thread touched which lines, and so in which it used which regions. The threads with
//! which it shared in a span are a vector: its misses in each region, divided among the other users of the region in proportion to
//! theirs, whenever those used it. So neither idle threads nor data that move to other memory are a change, and a thread that
//! begins to use what others use is one. The product of the vectors of two spans does not depend on how few samples each has, as
//! these are independent. If a thread shares with the same threads all the time, products of neighbouring spans are no larger than
//! those of others. A permutation test of the spans' order tells that from chance.

use rustc_hash::FxHashMap;

use super::misses::{Misses, Use};
use super::rules::{OverTime, RawCommunity, Region};
use super::sketch::Sharing;
use super::spans::{Spans, MOST};
use super::truth::Rng;

/// With fewer spans, change cannot be detected.
const LEAST: usize = 6;
/// The number of members of a community that are examined.
const MEMBERS: usize = 24;
/// Orders of the spans that are tried, and how many of them may have as large products of neighbours...
const ORDERS: usize = 199;
const BY_CHANCE: usize = 1;
/// ...or this number, if the constancy is as low as this: partners that alternate with few spans each.
const RARELY: usize = 9;
const MUCH: f64 = 0.9;
/// A change is one, and not many, if spans on either side have this part in common of what neighbours have.
const ONE: f64 = 0.93;
/// Spans in which a community shares less than this part of what it does in its busiest one are idle...
const IDLE: f64 = 0.1;
/// ...if the average number of touches in a span is high enough that it isn't by chance.
const SEEN: f64 = 10.0;

/// A value for each span.
type Row = [f64; MOST];

/// What members share in each span, with another member or with all threads of another community.
#[derive(Debug, Default)]
struct Common {
    rows: FxHashMap<u32, FxHashMap<With, Row>>,
    /// Lines that were touched, each once for each span in which its page was.
    touches: Row,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum With {
    Member(u32),
    Community(u32),
}

/// Of each community, in their order; `None` without times, or with too few spans.
pub(crate) fn over_time(
    sharing: &Sharing,
    misses: &Misses,
    regions: &[Region],
    found: &[(u32, RawCommunity)],
) -> Vec<Option<OverTime>> {
    let Some(spans) = sharing.spans().filter(|spans| spans.begins().0.len() >= LEAST) else {
        return vec![None; found.len()];
    };
    let mut community_of = vec![u32::MAX; sharing.threads().len()];
    let mut is_member = vec![false; community_of.len()];
    for ((_, community), number) in found.iter().zip(0..) {
        for &thread in &community.members {
            community_of[thread as usize] = number;
        }
        for &thread in community.members.iter().step_by(community.members.len().div_ceil(MEMBERS).max(1)) {
            is_member[thread as usize] = true;
        }
    }
    let mut common: Vec<Common> = found.iter().map(|_| Common::default()).collect();
    for region in regions.iter().filter(|it| it.fits > 0.0) {
        let place = |it: &Use| (it.object, it.line);
        let from = misses.uses.partition_point(|it| place(it) < (region.object, region.first));
        let to = misses.uses.partition_point(|it| place(it) <= (region.object, region.last));
        // The misses of each thread, and its touches.
        let mut rows: FxHashMap<u32, (Row, Row)> =
            region.sharers.iter().map(|it| (it.thread, ([0.0; MOST], [0.0; MOST]))).collect();
        for it in misses.uses.get(from..to).unwrap_or_default() {
            if let Some((row, touches)) = rows.get_mut(&it.thread) {
                let each = f64::from(it.misses * it.stands_for) / f64::from(it.when.count_ones().max(1));
                spans_of(it.when).for_each(|at| row[at] += each);
                spans_of(it.when_page).for_each(|at| touches[at] += 1.0);
            }
        }
        let mut of_communities: FxHashMap<u32, (Vec<u32>, f64)> = FxHashMap::default();
        let mut all = 0.0;
        for sharer in &region.sharers {
            let of = of_communities.entry(community_of[sharer.thread as usize]).or_default();
            of.0.push(sharer.thread);
            of.1 += sharer.misses;
            all += sharer.misses;
        }
        let misses_of: FxHashMap<u32, f64> = region.sharers.iter().map(|it| (it.thread, it.misses)).collect();
        for (&number, (threads, _)) in &of_communities {
            let Some((_, community)) = found.get(number as usize) else { continue };
            // Hubs are memory of all threads; they join only a community of all threads.
            if region.is_hub && !community.is_all {
                continue;
            }
            let Some(common) = common.get_mut(number as usize) else { continue };
            let members = || threads.iter().filter(|&&it| is_member[it as usize]);
            for a in members() {
                let Some((row, touches)) = rows.get(a) else { continue };
                common.touches = add(common.touches, *touches, 1.0);
                let own = misses_of.get(a).copied().unwrap_or_default();
                let partners = members()
                    .filter(|b| *b != a)
                    .map(|b| (With::Member(*b), misses_of.get(b).copied().unwrap_or_default()));
                let others =
                    of_communities.iter().filter(|it| *it.0 != number).map(|it| (With::Community(*it.0), it.1 .1));
                let of_a = common.rows.entry(*a).or_default();
                for (with, misses) in partners.chain(others).filter(|it| it.1 > 0.0) {
                    let sum = of_a.entry(with).or_insert([0.0; MOST]);
                    *sum = add(*sum, *row, region.fits * misses / (all - own));
                }
            }
        }
    }
    common.iter().map(|common| common.over_time(spans)).collect()
}

fn spans_of(when: u32) -> impl Iterator<Item = usize> {
    (0..MOST).filter(move |at| when >> at & 1 == 1)
}

fn add(sum: Row, more: Row, factor: f64) -> Row {
    std::array::from_fn(|at| sum[at] + factor * more[at])
}

/// The products of the vectors of each two spans, summed over the members, and those of their lengths.
struct Products {
    of: [Row; MOST],
    lengths: [Row; MOST],
    /// The spans in which members shared.
    used: Vec<usize>,
}

impl Products {
    fn new(common: &Common) -> Self {
        let (mut of, mut lengths) = ([[0.0; MOST]; MOST], [[0.0; MOST]; MOST]);
        for rows in common.rows.values() {
            let all = rows.values().fold([0.0; MOST], |sum, row| add(sum, *row, 1.0));
            multiply(&mut lengths, &all);
            for row in rows.values() {
                multiply(&mut of, row);
            }
        }
        let used = (0..MOST).filter(|&at| lengths[at][at] > 0.0).collect();
        Self { of, lengths, used }
    }

    /// The sums over pairs of spans.
    fn sums(&self, pairs: impl Iterator<Item = (usize, usize)>) -> (f64, f64) {
        pairs.fold((0.0, 0.0), |sum, (a, b)| (sum.0 + self.of[a][b], sum.1 + self.lengths[a][b]))
    }

    /// What each span has in common with the next one, relative to what they have.
    fn of_neighbours(&self, order: &[usize]) -> f64 {
        let (both, all) = self.sums(order.windows(2).map(|pair| (pair[0], pair[1])));
        both / all.max(f64::MIN_POSITIVE)
    }

    /// The sums over all pairs of these spans.
    fn of_all(&self, spans: &[usize]) -> (f64, f64) {
        self.sums(spans.iter().enumerate().flat_map(|(at, &a)| spans[at + 1..].iter().map(move |&b| (a, b))))
    }

    /// See [`OverTime::constancy`]; 1 if a lower one may be by chance.
    fn constancy(&self) -> f64 {
        let within = self.of_neighbours(&self.used);
        let mut rng = Rng::new(self.used.len() as u64);
        let mut order = self.used.clone();
        let is_as_large = |_: &usize| {
            rng.shuffle(&mut order);
            self.of_neighbours(&order) >= within
        };
        let as_large = (0..ORDERS).filter(is_as_large).take(RARELY + 1).count();
        let (both, all) = self.of_all(&self.used);
        let constancy = (both / all.max(f64::MIN_POSITIVE) / within).clamp(0.0, 1.0);
        if as_large > RARELY || as_large > BY_CHANCE && constancy > MUCH {
            1.0
        } else {
            constancy
        }
    }

    /// The span in which partners changed, if those before it have as much in common as neighbours there, and those after it too.
    fn change(&self) -> Option<usize> {
        let cut = |at: usize| {
            let sides = [&self.used[..at], &self.used[at + 1..]];
            let (both, expected) = sides.iter().fold((0.0, 0.0), |sum, side| {
                let (both, all) = self.of_all(side);
                (sum.0 + both, sum.1 + self.of_neighbours(side) * all)
            });
            (self.used[at], both / expected.max(f64::MIN_POSITIVE))
        };
        // With two spans on each side.
        let cuts = (2..self.used.len().saturating_sub(2)).map(cut);
        cuts.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|it| it.1 >= ONE).map(|it| it.0)
    }
}

/// Adds the products of each two values.
fn multiply(products: &mut [Row; MOST], row: &Row) {
    for (products, a) in products.iter_mut().zip(row).filter(|it| *it.1 > 0.0) {
        products.iter_mut().zip(row).for_each(|(product, b)| *product += a * b);
    }
}

impl Common {
    fn over_time(&self, spans: &Spans) -> Option<OverTime> {
        let (begins, end) = spans.begins();
        let start = *begins.first()?;
        let run = (end - start) as f64;
        let end_of = |at: usize| begins.get(at + 1).copied().unwrap_or(end);
        let length = |at: usize| (end_of(at) - begins[at]) as f64;
        let busy = self.busy(begins.len(), length);
        let (&first, &last) = (busy.first()?, busy.last()?);
        let mut found = OverTime {
            constancy: 1.0,
            change: None,
            mostly: 1.0,
            from: begins[first] - start,
            to: end_of(last) - start,
            busy: busy.iter().map(|&at| length(at)).sum::<f64>() / run,
        };
        let products = Products::new(self);
        if products.used.len() >= LEAST {
            found.constancy = products.constancy();
        }
        if found.constancy < 1.0 {
            found.change = products.change().map(|at| begins[at] - start + (length(at) / 2.0) as u64);
            let before = found.change.unwrap_or_default() as f64 / run;
            found.mostly = before.max(1.0 - before);
        }
        Some(found)
    }

    /// Of this number of spans, those in which the members shared.
    fn busy(&self, count: usize, length: impl Fn(usize) -> f64) -> Vec<usize> {
        let rate = |at: usize| self.touches[at] / length(at);
        let most = (0..count).map(rate).fold(0.0, f64::max);
        let is_seen = self.touches.iter().sum::<f64>() >= SEEN * count as f64;
        let is_busy = |at: usize| !is_seen || rate(at) >= IDLE * most;
        // The last span has hardly begun: it is as the one before.
        (0..count).filter(|&at| is_busy(at.min(count.saturating_sub(2)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::truth::Scenario;
    use crate::cluster::{ClusterOptions, Community, Sharing};

    fn communities(scenario: &Scenario, seed: u64) -> Vec<Community> {
        let mut sharing = Sharing::new(4 << 20);
        for sample in &scenario.stream(seed).samples {
            sharing.add(sample);
        }
        sharing.solve(&ClusterOptions::default()).communities
    }

    /// Groups of four whose buffer is one line, a page or more.
    fn each(change: impl Fn(Scenario) -> Scenario, check: impl Fn(&[Community], &str)) {
        for (pages, samples) in [(0, 1000), (1, 1000), (64, 300), (64, 1000), (1024, 1000)] {
            let base =
                Scenario { threads: 16, samples, pages: pages.max(1), one_line: pages == 0, ..Scenario::default() };
            let found = communities(&change(base), 1);
            assert!(!found.is_empty());
            check(&found, &format!("{pages} pages, {samples} samples: {found:?}"));
        }
    }

    fn time(it: &Community) -> OverTime {
        it.over_time.unwrap()
    }

    #[test]
    fn constant_partners_are_not_said_to_change() {
        each(
            |base| base,
            |found, what| {
                assert!(found.iter().all(|it| time(it).constancy > 0.95 && it.confidence > 0.9), "{what}");
                assert!(found.iter().all(|it| time(it).from < 1_000_000_000 && time(it).busy > 0.9), "{what}");
            },
        );
    }

    #[test]
    fn one_change_has_a_time_and_lowers_the_confidence() {
        each(
            |base| Scenario { phases: 2, ..base },
            |found, what| {
                let is_half =
                    |it: &Community| time(it).change.is_some_and(|at| at.abs_diff(5_000_000_000) < 1_000_000_000);
                assert!(found.iter().all(|it| is_half(it) && it.confidence < 0.5), "{what}");
            },
        );
        each(
            |base| Scenario { warm_up: 0.15, ..base },
            |found, what| {
                let is_early =
                    |it: &Community| time(it).change.is_some_and(|at| at.abs_diff(1_500_000_000) < 1_000_000_000);
                assert!(found.iter().all(|it| is_early(it) && it.threads.len() == 4), "{what}");
                assert!(found.iter().all(|it| (0.5..0.9).contains(&it.confidence)), "{what}");
            },
        );
    }

    #[test]
    fn partners_that_alternate_have_no_time_of_change() {
        each(
            |base| Scenario { phases: 4, ..base },
            |found, what| {
                assert!(found.iter().all(|it| time(it).change.is_none() && it.confidence < 0.5), "{what}");
            },
        );
    }

    #[test]
    fn what_shares_only_for_a_time_says_when() {
        each(
            |base| Scenario { job: 0.2, samples: 1000, ..base },
            |found, what| {
                assert!(found.iter().all(|it| time(it).constancy > 0.9), "{what}");
                let is_then = |it: &Community| {
                    let OverTime { from, to, busy, .. } = time(it);
                    busy < 0.5 && from > 2_000_000_000 && to < 6_000_000_000
                };
                // Threads that contend for one line touch few others there.
                assert!(what.starts_with("0 pages") || found.iter().all(is_then), "{what}");
            },
        );
    }

    #[test]
    fn without_times_nothing_is_said() {
        let stream = Scenario::default().stream(1);
        let mut sharing = Sharing::new(4 << 20);
        for sample in &stream.samples {
            let mut sample = *sample;
            sample.raw.time = 0;
            sharing.add(&sample);
        }
        let found = sharing.solve(&ClusterOptions::default()).communities;
        assert!(found.len() == 4 && found.iter().all(|it| it.over_time.is_none()), "{found:?}");
    }
}
