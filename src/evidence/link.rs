//! Average linkage of classes, as that of threads in `cluster`, but from sums: a pair of classes counts for as many pairs of
//! threads, and as many possible misses, as its rows have.

/// When classes join; as `cluster`'s rules for threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// The part of their possible misses that classes must have in common.
    pub worth: f64,
    /// Two communities join if they have in common at least this part of what each has within.
    pub cohesion: f64,
    /// Standard deviations above zero of what two have in common.
    pub join: f64,
    /// Standard deviations by which a community must exceed `worth`.
    pub sure: f64,
}

/// Possible misses of pairs of threads, and those of them that are shared.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pair {
    pub possible: f64,
    pub shared: f64,
}

impl Pair {
    fn part(self) -> Option<f64> {
        (self.possible > 0.0).then(|| self.shared / self.possible)
    }

    fn add(&mut self, other: Self) {
        self.possible += other.possible;
        self.shared += other.shared;
    }
}

/// A community while it grows.
#[derive(Debug, Clone)]
struct Cluster {
    members: Vec<usize>,
    counted: f64,
    within: Pair,
}

/// The communities of classes, given their counted possible misses; `pairs` has a row for each class, also with itself. A
/// class whose own threads share is a community too.
pub(super) fn link(counted: &[f64], mut pairs: Vec<Vec<Pair>>, rules: &Rules) -> Vec<Vec<usize>> {
    let cluster = |(at, &counted): (usize, &f64)| {
        let own = pairs.get(at).and_then(|row| row.get(at)).copied().unwrap_or_default();
        // The threads of a class that share with other classes need not share with each other.
        let within = if own.part().is_some_and(|part| part >= rules.worth) { own } else { Pair::default() };
        Cluster { members: vec![at], counted, within }
    };
    let mut clusters: Vec<Cluster> = counted.iter().enumerate().map(cluster).collect();
    let mut active: Vec<usize> = (0..clusters.len()).collect();
    loop {
        let mut best: Option<(f64, usize, usize)> = None;
        for (at, &a) in active.iter().enumerate() {
            for &b in active.iter().skip(at + 1) {
                let Some(score) = score(&pairs, &clusters, a, b, rules) else { continue };
                if best.is_none_or(|(most, _, _)| score > most) {
                    best = Some((score, a, b));
                }
            }
        }
        let Some((_, a, b)) = best else { break };
        let gone =
            std::mem::replace(&mut clusters[b], Cluster { members: Vec::new(), counted: 0.0, within: Pair::default() });
        clusters[a].within.add(gone.within);
        clusters[a].within.add(pairs[a][b]);
        clusters[a].members.extend(gone.members);
        clusters[a].counted += gone.counted;
        active.retain(|&other| other != b);
        for &other in active.iter().filter(|&&other| other != a) {
            let more = pairs[other][b];
            pairs[other][a].add(more);
            pairs[a][other] = pairs[other][a];
        }
    }
    let is_sure = |it: &Cluster| {
        it.within.part().is_some_and(|common| {
            (common - rules.worth) / (common / it.counted.max(f64::MIN_POSITIVE)).sqrt().max(f64::MIN_POSITIVE)
                >= rules.sure
        })
    };
    let sorted = |mut it: Cluster| {
        it.members.sort_unstable();
        it.members
    };
    clusters.into_iter().filter(is_sure).map(sorted).collect()
}

/// A lower bound of what two clusters have in common, one standard deviation below; `None` if they should not join.
fn score(pairs: &[Vec<Pair>], clusters: &[Cluster], a: usize, b: usize, rules: &Rules) -> Option<f64> {
    let common = pairs.get(a)?.get(b)?.part()?;
    let (one, two) = (clusters.get(a)?, clusters.get(b)?);
    let counted = one.counted.min(two.counted);
    let deviation = (common / counted).sqrt();
    let within = match (one.within.part(), two.within.part()) {
        (Some(one), Some(two)) => (one * two).sqrt(),
        (one, two) => one.or(two).unwrap_or_default(),
    };
    let is_enough = common >= rules.worth
        && common * counted >= rules.join * rules.join
        && common + deviation >= rules.cohesion * within;
    (is_enough && common > deviation).then_some(common - deviation)
}
