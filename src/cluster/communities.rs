//! The communities: threads joined from the strongest pair on, while the evidence of all their members says so.

use super::graph::{Graph, Seen};
use super::settle::{footprints, settle, Footprint};

/// The part of all threads from which a community is nearly everybody.
const MOST: f32 = 0.6;

/// What it takes to join; the defaults were chosen on `tests/cluster_truth.rs`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Meetings between two communities that may still be chance.
    pub meetings: f32,
    /// Meetings per event that may still be noise.
    pub noise: f32,
    /// Meetings of two threads, relative to the most that each has with any, that are no reason to compare them.
    pub chance: f32,
    /// How strongly two communities must meet, relative to how strongly each meets within.
    pub cohesion: f32,
    /// The part of a community's accesses that must go to what it shares, where it stands out from the others.
    pub share: f32,
    /// The same where it hardly stands out.
    pub minor_share: f32,
    /// The same where nobody else is there to stand out from, hubs included.
    pub world_share: f32,
    /// How much more strongly a community meets within than with the others, if it is more than a piece of all.
    pub contrast: f32,
    /// Lines in use from which what everybody shares is data and no lock words.
    pub world_lines: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            meetings: 3.0,
            noise: 0.0025,
            chance: 0.05,
            cohesion: 0.5,
            share: 0.04,
            minor_share: 0.1,
            world_share: 0.12,
            contrast: 2.0,
            world_lines: 16,
        }
    }
}

/// One community while it grows.
#[derive(Debug, Clone, Default)]
struct Cluster {
    members: Vec<u32>,
    events: f32,
    /// Sums over the pairs within.
    strength: f32,
    meetings: f32,
}

impl Cluster {
    fn pairs(&self) -> f32 {
        let count = self.members.len() as f32;
        count * (count - 1.0) / 2.0
    }

    /// The mean strength within, at the lower end of what the number of meetings allows.
    fn cohesion(&self) -> f32 {
        if self.members.len() < 2 {
            return 0.0;
        }
        let sure = 1.0 - 1.0 / self.meetings.max(4.0).sqrt();
        self.strength / self.pairs() * sure
    }
}

/// Ranks of the members of each community of two or more, the largest first.
pub(crate) fn communities(graph: &mut Graph, seen: &[Seen], rules: &Rules) -> Vec<(Vec<u32>, Footprint)> {
    let found = agglomerate(graph, rules);
    let found = settle(graph, seen, rules, found);
    let mut found = weigh(graph, seen, rules, found);
    for members in &mut found {
        members.sort_unstable();
    }
    found.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    let prints = footprints(graph, seen, &found);
    found.into_iter().zip(prints).collect()
}

/// Threads between which there is a way of pairs that meet at all; joining looks at each such part by itself.
fn parts(graph: &Graph, rules: &Rules) -> Vec<Vec<usize>> {
    let len = graph.events.len();
    let mut most = vec![0.0f32; len];
    for a in 0..len {
        for b in a + 1..len {
            let meetings = graph.meetings.get(a, b);
            most[a] = most[a].max(meetings);
            most[b] = most[b].max(meetings);
        }
    }
    let mut left: Vec<usize> = (0..len).collect();
    let mut parts = Vec::new();
    while let Some(first) = left.pop() {
        let mut part = vec![first];
        let mut next = 0;
        while let Some(&a) = part.get(next) {
            next += 1;
            left.retain(|&b| {
                let enough = (rules.meetings / 2.0).max(rules.chance * most[a].min(most[b]));
                let meet = graph.meetings.get(a, b) >= enough;
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

fn agglomerate(graph: &mut Graph, rules: &Rules) -> Vec<Vec<u32>> {
    let mut clusters: Vec<Cluster> = graph
        .events
        .iter()
        .zip(0..)
        .map(|(&events, rank)| Cluster { members: vec![rank], events, ..Cluster::default() })
        .collect();
    for part in parts(graph, rules) {
        join(graph, rules, &mut clusters, part);
    }
    clusters.into_iter().map(|cluster| cluster.members).filter(|members| members.len() > 1).collect()
}

/// Joins the two clusters that meet most strongly, again and again, as long as any two should be one.
fn join(graph: &mut Graph, rules: &Rules, clusters: &mut [Cluster], mut active: Vec<usize>) {
    let mut best: Vec<Option<(f32, usize)>> = vec![None; clusters.len()];
    for &a in &active {
        best[a] = nearest(graph, rules, clusters, &active, a);
    }
    loop {
        let top = active
            .iter()
            .filter_map(|&a| best[a].map(|(strength, b)| (strength, a.min(b), a.max(b))))
            .max_by(|x, y| x.0.total_cmp(&y.0).then_with(|| (y.1, y.2).cmp(&(x.1, x.2))));
        let Some((_, a, b)) = top else { break };
        let (strength, meetings) = (graph.strength.get(a, b), graph.meetings.get(a, b));
        let gone = std::mem::take(&mut clusters[b]);
        let grown = &mut clusters[a];
        grown.members.extend(gone.members);
        grown.events += gone.events;
        grown.strength += gone.strength + strength;
        grown.meetings += gone.meetings + meetings;
        active.retain(|&other| other != b);
        best[b] = None;
        for &other in active.iter().filter(|&&other| other != a) {
            let (strength, meetings) = (graph.strength.get(other, b), graph.meetings.get(other, b));
            graph.strength.add(a, other, strength);
            graph.meetings.add(a, other, meetings);
        }
        best[a] = nearest(graph, rules, clusters, &active, a);
        for &other in active.iter().filter(|&&other| other != a) {
            match best[other] {
                Some((_, to)) if to == a || to == b => best[other] = nearest(graph, rules, clusters, &active, other),
                known => {
                    let met = meet(graph, rules, clusters, a, other);
                    if met > known.map_or(0.0, |(strength, _)| strength) {
                        best[other] = Some((met, a));
                    }
                }
            }
        }
    }
}

/// The cluster that `a` would join, and how strongly they meet.
fn nearest(graph: &Graph, rules: &Rules, clusters: &[Cluster], active: &[usize], a: usize) -> Option<(f32, usize)> {
    let mut best: Option<(f32, usize)> = None;
    for &b in active.iter().filter(|&&b| b != a) {
        let met = meet(graph, rules, clusters, a, b);
        if met > best.map_or(0.0, |(strength, _)| strength) {
            best = Some((met, b));
        }
    }
    best
}

/// How strongly two clusters meet; 0 where they should stay apart.
fn meet(graph: &Graph, rules: &Rules, clusters: &[Cluster], a: usize, b: usize) -> f32 {
    let meetings = graph.meetings.get(a, b);
    if meetings < rules.meetings {
        return 0.0;
    }
    let (first, second) = (&clusters[a], &clusters[b]);
    let (count_a, count_b) = (first.members.len() as f32, second.members.len() as f32);
    let pairs = count_a * count_b;
    let events = (first.events / count_a).min(second.events / count_b);
    if meetings * graph.thinned < rules.noise * events * pairs {
        return 0.0;
    }
    let strength = graph.strength.get(a, b) / pairs;
    let (within_a, within_b) = (first.cohesion(), second.cohesion());
    let within = match (first.members.len(), second.members.len()) {
        (1, _) => within_b,
        (_, 1) => within_a,
        _ => (within_a * within_b).sqrt(),
    };
    if strength * (1.0 + 1.0 / meetings.sqrt()) < rules.cohesion * within {
        return 0.0;
    }
    strength * (1.0 - 1.0 / meetings.sqrt())
}

/// Lets stand what stands out, and decides on what is left as a whole.
///
/// Where one community is nearly everybody, its memory looks like memory that everybody touches, and where there is only
/// one there is nothing to compare it with. So pieces that hardly meet more within than with the others are put together
/// with the threads that have nothing else, and are a community if a good part of what they do goes to what they share.
fn weigh(graph: &Graph, seen: &[Seen], rules: &Rules, found: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    let prints = footprints(graph, seen, &found);
    let len = graph.events.len();
    let mut standing = Vec::new();
    // What the accesses of a thread's piece say for it beside its accesses to hubs; `None` where it is settled.
    let mut open: Vec<Option<f32>> = vec![Some(0.0); len];
    let mut lines = graph.hub_lines;
    for (members, print) in found.into_iter().zip(&prints) {
        let sure = 1.0 - 1.0 / print.meetings.max(1.0).sqrt();
        let times = if print.outside > 0.0 { print.within * sure / print.outside } else { f32::INFINITY };
        let most = members.len() as f32 > MOST * len as f32;
        let need = if times >= 1.5 * rules.contrast && !most { rules.share } else { rules.minor_share };
        let hub = members.iter().map(|&rank| graph.hub_share[rank as usize]).sum::<f32>() / members.len() as f32;
        // The pages that a few threads of one large community happen to have missed are no hubs, and tell nothing.
        let remnant =
            print.share < rules.minor_share && hub > 2.0 * print.share && hub + print.share >= rules.world_share;
        if members.len() < len && times >= rules.contrast && !remnant {
            if print.share >= need {
                for &rank in &members {
                    open[rank as usize] = None;
                }
                standing.push(members);
            }
        } else {
            lines = lines.saturating_add(print.lines);
            for &rank in &members {
                open[rank as usize] = Some(print.share);
            }
        }
    }
    if lines < rules.world_lines {
        return standing;
    }
    let world: Vec<(u32, f32, f32)> = (0u32..)
        .zip(open.iter().zip(&graph.hub_share))
        .filter_map(|(rank, (&piece, &hub))| piece.map(|piece| (rank, piece, hub)))
        .collect();
    let sure: Vec<_> = world.iter().filter(|(_, piece, hub)| piece + hub >= rules.world_share).collect();
    let mean = sure.iter().map(|(_, piece, hub)| piece + hub).sum::<f32>() / sure.len().max(1) as f32;
    let members: Vec<u32> =
        world.iter().filter(|(_, piece, hub)| piece + hub >= mean / 2.0).map(|&(rank, ..)| rank).collect();
    if sure.len() >= 2 && sure.len() * 2 > members.len() {
        standing.push(members);
    }
    standing
}
