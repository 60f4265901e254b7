//! The second look: each thread against whole communities, and what each community shares.

use super::communities::Rules;
use super::graph::{events_of, Graph, Seen};

/// Rounds in which threads may move; few move in the second and hardly any in the third.
const ROUNDS: usize = 3;
/// How much more strongly a thread must meet another community to leave its own.
const LEAVE: f32 = 1.2;
/// How much more strongly a thread without a community must meet the best than the next to join on little.
const CLEARLY: f32 = 2.0;
/// Accesses to a page below which it says nothing that no line was used by two.
const BRIEF: f32 = 8.0;
const NONE: u32 = u32::MAX;

/// Moves threads that joined on little evidence to the community that all the evidence points to.
///
/// All moves of a round are decided on the same state, so their order does not matter.
pub(crate) fn settle(graph: &Graph, seen: &[Seen], rules: &Rules, mut found: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    let len = graph.events.len();
    for _ in 0..ROUNDS {
        let count = found.len();
        if count == 0 {
            break;
        }
        let mut label = vec![NONE; len];
        for (members, number) in found.iter().zip(0..) {
            for &rank in members {
                label[rank as usize] = number;
            }
        }
        let (strength, meetings) = against(graph, seen, &label, count);
        let mean = |rank: usize, community: usize| {
            let own = label[rank] == community as u32;
            let others = found[community].len() - usize::from(own);
            strength[rank * count + community] / others.max(1) as f32
        };
        let cohesion: Vec<f32> = found
            .iter()
            .zip(0..)
            .map(|(members, c)| members.iter().map(|&rank| mean(rank as usize, c)).sum::<f32>() / members.len() as f32)
            .collect();
        let mut moved = label.clone();
        for rank in 0..len {
            let best = (0..count).max_by(|&a, &b| mean(rank, a).total_cmp(&mean(rank, b)).then(b.cmp(&a)));
            let Some(best) = best else { continue };
            let met = meetings[rank * count + best] as f32;
            if label[rank] == best as u32 || met < rules.meetings {
                continue;
            }
            if met * graph.thinned < rules.noise * graph.events[rank] {
                continue;
            }
            let enough = if label[rank] == NONE {
                // A thread of its own may meet the community rarely by chance, if it meets no other one.
                let next = (0..count).filter(|&c| c != best).map(|c| mean(rank, c)).fold(0.0, f32::max);
                (rules.cohesion * cohesion[best]).min((CLEARLY * next).max(rules.cohesion / 2.0 * cohesion[best]))
            } else {
                (LEAVE * mean(rank, label[rank] as usize)).max(rules.cohesion * cohesion[best])
            };
            if mean(rank, best) >= enough {
                moved[rank] = best as u32;
            }
        }
        if moved == label {
            break;
        }
        for members in &mut found {
            members.clear();
        }
        for (&to, rank) in moved.iter().zip(0..) {
            if to != NONE {
                found[to as usize].push(rank);
            }
        }
        found.retain(|members| members.len() > 1);
    }
    found
}

/// How strongly and on how many pages each thread meets the other members of each community, as rows of `count`.
fn against(graph: &Graph, seen: &[Seen], label: &[u32], count: usize) -> (Vec<f32>, Vec<u32>) {
    let mut strength = vec![0.0f32; graph.events.len() * count];
    let mut meetings = vec![0u32; graph.events.len() * count];
    let mut sums = vec![(0.0f32, 0u32); count];
    let mut present: Vec<usize> = Vec::new();
    for page in &graph.pages {
        let touches = &seen[page.begin as usize..page.end as usize];
        for touch in touches {
            let rank = touch.rank as usize;
            if label[rank] == NONE {
                continue;
            }
            let sum = &mut sums[label[rank] as usize];
            if sum.1 == 0 {
                present.push(label[rank] as usize);
            }
            sum.0 += events_of(touch) / graph.events[rank];
            sum.1 += 1;
        }
        for touch in touches {
            let rank = touch.rank as usize;
            let rate = events_of(touch) / graph.events[rank];
            for &community in &present {
                let own = label[rank] == community as u32;
                let (mut sum, mut others) = sums[community];
                if own {
                    sum -= rate;
                    others -= 1;
                }
                if others > 0 {
                    strength[rank * count + community] += page.weight * rate * sum.max(0.0);
                    meetings[rank * count + community] += 1;
                }
            }
        }
        for community in present.drain(..) {
            sums[community] = (0.0, 0);
        }
    }
    (strength, meetings)
}

/// What a community shares, hubs left out.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Footprint {
    /// The part of its accesses that goes to pages that at least two members touch, those that were not seen twice
    /// estimated.
    pub share: f32,
    /// Such pages, and the lines in use on them.
    pub pages: u32,
    pub lines: u32,
    /// Accesses to them beyond the first on each.
    pub meetings: f32,
    /// Mean strength between two members, and between a member and another thread.
    pub within: f32,
    pub outside: f32,
}

/// The footprint of each community.
pub(crate) fn footprints(graph: &Graph, seen: &[Seen], found: &[Vec<u32>]) -> Vec<Footprint> {
    let len = graph.events.len();
    let mut label = vec![NONE; len];
    for (members, number) in found.iter().zip(0..) {
        for &rank in members {
            label[rank as usize] = number;
        }
    }
    // Per community on the page at hand: sum of rates, of their squares, events, members.
    let mut here = vec![(0.0f32, 0.0f32, 0.0f32, 0u32); found.len()];
    // And the lines of it in use, with how many there were if no two members used the same one.
    let mut lines = vec![(0u64, 0u32); found.len()];
    let mut sums = vec![(0.0f32, 0.0f32); found.len()];
    let mut prints = vec![Footprint::default(); found.len()];
    let mut present: Vec<usize> = Vec::new();
    for page in &graph.pages {
        let mut all = 0.0;
        for touch in &seen[page.begin as usize..page.end as usize] {
            let rank = touch.rank as usize;
            let rate = events_of(touch) / graph.events[rank];
            all += rate;
            if label[rank] == NONE {
                continue;
            }
            let sum = &mut here[label[rank] as usize];
            if sum.3 == 0 {
                present.push(label[rank] as usize);
            }
            *sum = (sum.0 + rate, sum.1 + rate * rate, sum.2 + events_of(touch), sum.3 + 1);
            let used = &mut lines[label[rank] as usize];
            *used = (used.0 | touch.lines, used.1 + touch.lines.count_ones());
        }
        for community in present.drain(..) {
            let (rates, squares, events, members) = std::mem::take(&mut here[community]);
            let (used, apart) = std::mem::take(&mut lines[community]);
            let print = &mut prints[community];
            print.within += page.weight * (rates * rates - squares).max(0.0);
            print.outside += page.weight * rates * (all - rates).max(0.0);
            // Private buffers that meet in a page have no line in common, however much they are used.
            if members > 1 && (used.count_ones() < apart || events < BRIEF) {
                print.pages += 1;
                print.lines += used.count_ones();
                sums[community].0 += events;
                sums[community].1 += events * page.stands_for;
            }
        }
    }
    for ((print, members), (events, scaled)) in prints.iter_mut().zip(found).zip(sums) {
        let count = members.len() as f32;
        print.within /= (count * (count - 1.0)).max(1.0);
        print.outside /= (count * (len as f32 - count)).max(1.0);
        let total: f32 = members.iter().map(|&rank| graph.events[rank as usize]).sum();
        // The mean of few counts near two says little on the pages that were seen once; so it is taken somewhat high.
        let pages = print.pages.max(1) as f32;
        print.meetings = events - pages;
        print.share = (scaled / total / seen_part(events / pages + 0.25 / pages.sqrt())).min(1.0);
    }
    prints
}

/// The part of all accesses that falls on pages with two or more of them, from the mean count of such pages, where
/// accesses fall on pages evenly (Poisson): 1 - exp(-rate), with the rate from the mean of the counts above one.
fn seen_part(mean: f32) -> f32 {
    let of_rate = |rate: f32| {
        let none = (-rate).exp();
        rate * (1.0 - none) / (1.0 - none - rate * none).max(1e-6)
    };
    let (mut low, mut high) = (0.1f32, 50.0f32);
    for _ in 0..20 {
        let middle = f32::midpoint(low, high);
        if of_rate(middle) < mean {
            low = middle;
        } else {
            high = middle;
        }
    }
    1.0 - (-low).exp()
}
