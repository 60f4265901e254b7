//! Average linkage: repeatedly joins the two clusters with the largest certain affinity, as long as any two should join.

use super::rules::{Demand, RawCommunity, Region, Rules};

/// Additions that the affinities of a component may cost; beyond it only a random part of the regions is read.
const WORK: usize = 40_000_000;

/// For each pair of threads, the part of their possible misses that falls on the same regions.
#[derive(Debug, Clone)]
pub(crate) struct Affinity {
    values: Vec<f32>,
    len: usize,
}

impl Affinity {
    /// The affinities in `regions`; `local` maps each sharer to its index here.
    pub(crate) fn new<'a>(
        len: usize,
        regions: impl Iterator<Item = &'a Region> + Clone,
        local: &[u32],
        demand: &[Demand],
    ) -> Self {
        Self::by(f32::min, len, regions, local, demand)
    }

    /// The same, with a function for what two threads have in common of their misses on a region.
    pub(crate) fn by<'a>(
        common: fn(f32, f32) -> f32,
        len: usize,
        regions: impl Iterator<Item = &'a Region> + Clone,
        local: &[u32],
        demand: &[Demand],
    ) -> Self {
        let mut affinity = Self { values: vec![0.0; len * len.saturating_sub(1) / 2], len };
        let work: usize = regions.clone().map(|it| it.sharers.len() * it.sharers.len() / 2).sum();
        let part = (WORK as f64 / work.max(1) as f64).min(1.0);
        let mut parts: Vec<(usize, f32)> = Vec::new();
        for region in regions {
            if region.coin() > part {
                continue;
            }
            parts.clear();
            let part_of = |it| (region.part(it, demand) / part) as f32;
            parts.extend(region.sharers.iter().map(|it| (local[it.thread as usize] as usize, part_of(it))));
            for (at, &(a, part_a)) in parts.iter().enumerate() {
                for &(b, part_b) in &parts[at + 1..] {
                    affinity.add(a, b, common(part_a, part_b));
                }
            }
        }
        affinity
    }

    fn at(&self, a: usize, b: usize) -> usize {
        let (a, b) = if a < b { (a, b) } else { (b, a) };
        // Row a begins after (len-1) + (len-2) + ... values and holds b = a+1.. .
        a * (2 * self.len - a - 1) / 2 + b - a - 1
    }

    pub(crate) fn get(&self, a: usize, b: usize) -> f64 {
        f64::from(self.values[self.at(a, b)])
    }

    fn add(&mut self, a: usize, b: usize, value: f32) {
        let at = self.at(a, b);
        self.values[at] += value;
    }

    /// What these threads have in common; `None` for fewer than two.
    pub(crate) fn found(&self, members: &[u32], demand: &[Demand], rules: &Rules) -> Option<RawCommunity> {
        let others = members.len().checked_sub(1).filter(|&others| others > 0)? as f64;
        let (mut common, mut weight, mut counted) = (0.0, 0.0, 0.0);
        for &a in members {
            let with = members.iter().filter(|&&b| b != a).map(|&b| self.get(a as usize, b as usize)).sum::<f64>();
            let demand = demand[a as usize];
            common += with / others * demand.misses;
            weight += demand.misses;
            counted += demand.counted;
        }
        let common = common / weight;
        let deviations = (common - rules.worth) / (common / counted).sqrt().max(f64::MIN_POSITIVE) - rules.sure;
        Some(RawCommunity {
            members: members.to_vec(),
            common,
            deviations,
            is_all: false,
            is_contended: false,
            stability: None,
            over_time: None,
        })
    }
}

/// A cluster while it grows.
#[derive(Debug, Clone, Default)]
struct Cluster {
    members: Vec<u32>,
    counted: f64,
    /// The mean affinity of its pairs.
    within: f64,
}

/// Joins threads until no two clusters should join; returns those of two threads or more.
pub(crate) fn link(affinity: &Affinity, demand: &[Demand], rules: &Rules) -> Vec<Vec<u32>> {
    let mut sums = affinity.clone();
    let mut clusters: Vec<Cluster> = demand
        .iter()
        .zip(0..)
        .map(|(demand, at)| Cluster { members: vec![at], counted: demand.counted, within: 0.0 })
        .collect();
    for part in parts(affinity, rules) {
        join(&mut sums, &mut clusters, part, rules);
    }
    let joined = clusters.into_iter().map(|cluster| cluster.members).filter(|members| members.len() > 1);
    joined
        .map(|mut members| {
            members.sort_unstable();
            members
        })
        .collect()
}

/// Threads that are connected by pairs with enough in common. Two clusters with a sufficient mean have a sufficient pair, so
/// threads of different parts can never join.
fn parts(affinity: &Affinity, rules: &Rules) -> Vec<Vec<usize>> {
    let mut left: Vec<usize> = (0..affinity.len).collect();
    let mut parts = Vec::new();
    while let Some(first) = left.pop() {
        let mut part = vec![first];
        let mut next = 0;
        while let Some(&a) = part.get(next) {
            next += 1;
            left.retain(|&b| {
                let meet = affinity.get(a, b) >= rules.worth;
                if meet {
                    part.push(b);
                }
                !meet
            });
        }
        if part.len() > 1 {
            part.sort_unstable();
            parts.push(part);
        }
    }
    parts
}

/// Repeatedly joins the two clusters with the largest certain affinity, as long as any two should join.
fn join(sums: &mut Affinity, clusters: &mut [Cluster], mut active: Vec<usize>, rules: &Rules) {
    let mut best: Vec<Option<(f64, usize)>> = vec![None; clusters.len()];
    for &a in &active {
        best[a] = nearest(sums, clusters, &active, a, rules);
    }
    loop {
        let top = active
            .iter()
            .filter_map(|&a| best[a].map(|(score, b)| (score, a.min(b), a.max(b))))
            .max_by(|x, y| x.0.total_cmp(&y.0).then_with(|| (y.1, y.2).cmp(&(x.1, x.2))));
        let Some((_, a, b)) = top else { break };
        let gone = std::mem::take(&mut clusters[b]);
        let grown = &mut clusters[a];
        let pairs = |count: usize| (count * (count - 1) / 2) as f64;
        let (one, two) = (grown.members.len(), gone.members.len());
        grown.within = (grown.within * pairs(one) + gone.within * pairs(two) + sums.get(a, b)) / pairs(one + two);
        grown.members.extend(gone.members);
        grown.counted += gone.counted;
        active.retain(|&other| other != b);
        best[b] = None;
        for &other in active.iter().filter(|&&other| other != a) {
            let more = sums.get(other, b) as f32;
            sums.add(other, a, more);
        }
        for &other in &active {
            if other == a || best[other].is_some_and(|(_, to)| to == a || to == b) {
                best[other] = nearest(sums, clusters, &active, other, rules);
            } else if let Some(score) = score(sums, clusters, other, a, rules) {
                if best[other].is_none_or(|(most, _)| score > most) {
                    best[other] = Some((score, a));
                }
            }
        }
    }
}

fn nearest(sums: &Affinity, clusters: &[Cluster], active: &[usize], a: usize, rules: &Rules) -> Option<(f64, usize)> {
    let others = active.iter().filter(|&&b| b != a);
    let scores = others.filter_map(|&b| score(sums, clusters, a, b, rules).map(|score| (score, b)));
    scores.max_by(|x, y| x.0.total_cmp(&y.0).then(y.1.cmp(&x.1)))
}

/// A lower bound of what two clusters have in common, one standard deviation below; `None` if they should not join.
fn score(sums: &Affinity, clusters: &[Cluster], a: usize, b: usize, rules: &Rules) -> Option<f64> {
    let sum = sums.get(a, b);
    if sum <= 0.0 {
        return None;
    }
    let (one, two) = (&clusters[a], &clusters[b]);
    let common = sum / (one.members.len() * two.members.len()) as f64;
    let counted = one.counted.min(two.counted);
    let deviation = (common / counted).sqrt();
    let within = if one.members.len() > 1 && two.members.len() > 1 {
        (one.within * two.within).sqrt()
    } else {
        one.within.max(two.within)
    };
    let is_enough = common >= rules.worth
        && common * counted >= rules.join * rules.join
        && common + deviation >= rules.cohesion * within;
    (is_enough && common > deviation).then_some(common - deviation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::rules::Sharer;

    fn region(first: u64, misses: &[(u32, f64)]) -> Region {
        let sharer = |&(thread, misses): &(u32, f64)| Sharer { thread, misses, counted: misses, ..Sharer::default() };
        let sharers = misses.iter().map(sharer).collect();
        Region { object: 1, is_private: true, first, last: first + 99, lines: 100.0, fits: 1.0, is_hub: false, sharers }
    }

    fn linked(regions: &[Region], count: usize) -> Vec<Vec<u32>> {
        let demand = vec![Demand { misses: 1000.0, count: 1000.0, counted: 1000.0 }; count];
        let local: Vec<u32> = (0..count as u32).collect();
        let affinity = Affinity::new(count, regions.iter(), &local, &demand);
        link(&affinity, &demand, &Rules::default())
    }

    #[test]
    fn pairs_have_a_place_each() {
        let mut pairs = Affinity { values: vec![0.0; 10], len: 5 };
        let mut value = 0.0;
        for a in 0..5 {
            for b in a + 1..5 {
                value += 1.0;
                pairs.add(b, a, value);
            }
        }
        assert_eq!(pairs.values, (1..=10).map(|n| n as f32).collect::<Vec<_>>());
        assert!((pairs.get(4, 3) - 10.0).abs() < f64::EPSILON);
    }

    #[test]
    fn those_join_that_have_enough_in_common() {
        let two = [region(0, &[(0, 200.0), (1, 200.0)]), region(100, &[(2, 100.0), (3, 300.0)])];
        assert_eq!(linked(&two, 5), [[0, 1], [2, 3]]);
        // Little in common is not enough to join, much is.
        let with = |misses: f64| {
            let all: Vec<(u32, f64)> = (0..4).map(|thread| (thread, misses)).collect();
            linked(&[two[0].clone(), two[1].clone(), region(200, &all)], 5).len()
        };
        assert_eq!((with(30.0), with(500.0)), (2, 1));
        // Less than 2 % of their misses is not worth it.
        assert_eq!(linked(&[region(0, &[(0, 19.0), (1, 19.0)])], 2).len(), 0);
    }
}
