//! The results of other methods on the same streams; the documentation of `scxprof::cluster` contains the figures.
//!
//! `cargo test --test suite cluster_others -- --ignored --nocapture` prints them.

use std::collections::{BTreeMap, BTreeSet};

use scxprof::cluster::{ClusterOptions, Detail, Sharing};
use scxprof::sample::PAGE_SIZE;
use scxprof::testing::cluster::quality::adjusted_rand_index;
use scxprof::testing::cluster::truth::{Scenario, Stream};

type Matrix = Vec<Vec<f64>>;

/// Cosine of the threads' page counts, log(1 + n) each, with or without inverse document frequency.
fn cosine(stream: &Stream, idf: bool) -> Matrix {
    let threads = stream.truth.len();
    let mut pages: BTreeMap<_, BTreeMap<usize, f64>> = BTreeMap::new();
    for sample in &stream.samples {
        let page = sample.memory.map(|memory| memory.granule(PAGE_SIZE));
        *pages.entry(page).or_default().entry(sample.thread as usize).or_default() += 1.0;
    }
    let mut product = vec![vec![0.0; threads]; threads];
    for touches in pages.values() {
        let weight = if idf { (threads as f64 / touches.len() as f64).ln() } else { 1.0 };
        let values: Vec<(usize, f64)> = touches.iter().map(|(&t, n): (_, &f64)| (t, n.ln_1p() * weight)).collect();
        for &(a, x) in &values {
            for &(b, y) in &values {
                product[a][b] += x * y;
            }
        }
    }
    let norm: Vec<f64> = (0..threads).map(|t| f64::max(product[t][t], 1e-12).sqrt()).collect();
    (0..threads).map(|a| (0..threads).map(|b| product[a][b] / norm[a] / norm[b]).collect()).collect()
}

/// Average linkage down to the threshold `cut`.
fn linkage(matrix: &Matrix, cut: f64) -> Vec<u32> {
    let mut clusters: Vec<Vec<usize>> = (0..matrix.len()).map(|t| vec![t]).collect();
    let mut sums = matrix.clone();
    loop {
        let mut best = (cut, 0, 0);
        for a in 0..clusters.len() {
            for b in a + 1..clusters.len() {
                let mean = sums[a][b] / (clusters[a].len() * clusters[b].len()) as f64;
                if mean > best.0 {
                    best = (mean, a, b);
                }
            }
        }
        let (_, a, b) = best;
        if a == b {
            break;
        }
        let gone = clusters.remove(b);
        clusters[a].extend(gone);
        let row = sums.remove(b);
        for (sum, more) in sums[a].iter_mut().zip(&row) {
            *sum += more;
        }
        for row in &mut sums {
            let more = row.remove(b);
            row[a] += more;
        }
    }
    let mut labels = vec![0; matrix.len()];
    for (label, members) in (0..).zip(&clusters) {
        for &t in members {
            labels[t] = label;
        }
    }
    labels
}

/// Louvain (Blondel et al. 2008): local moves for modularity, then the same among the communities, until none moves.
fn louvain(matrix: &Matrix) -> Vec<u32> {
    let mut weights = matrix.clone();
    for (t, row) in weights.iter_mut().enumerate() {
        row[t] = 0.0;
    }
    let mut labels: Vec<usize> = (0..matrix.len()).collect();
    loop {
        let count = weights.len();
        let degree: Vec<f64> = weights.iter().map(|row| row.iter().sum()).collect();
        let total: f64 = degree.iter().sum::<f64>().max(1e-12);
        let mut of: Vec<usize> = (0..count).collect();
        let mut any = false;
        for _ in 0..20 {
            let mut moved = false;
            for node in 0..count {
                let mut gain = vec![0.0; count];
                for other in (0..count).filter(|&other| other != node) {
                    gain[of[other]] += weights[node][other] - degree[node] * degree[other] / total;
                }
                let best = (0..count).fold(of[node], |best, c| if gain[c] > gain[best] + 1e-12 { c } else { best });
                moved |= best != of[node];
                of[node] = best;
            }
            any |= moved;
            if !moved {
                break;
            }
        }
        let used: Vec<usize> = of.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let index = |community: usize| used.iter().position(|&other| other == community).unwrap_or_default();
        for label in &mut labels {
            *label = index(of[*label]);
        }
        if !any || used.len() == count {
            return labels.iter().map(|&label| label as u32).collect();
        }
        let mut merged = vec![vec![0.0; used.len()]; used.len()];
        for a in 0..count {
            for b in 0..count {
                merged[index(of[a])][index(of[b])] += weights[a][b];
            }
        }
        weights = merged;
    }
}

fn largest(matrix: &Matrix) -> f64 {
    (0..matrix.len()).flat_map(|a| (0..a).map(move |b| matrix[a][b])).fold(0.0, f64::max)
}

#[test]
#[ignore = "prints figures, checks nothing"]
fn other_methods() {
    let base = Scenario { share: 0.2, samples: 1000, ..Scenario::default() };
    println!("| stream | raw cosine, cut 0.05 | IDF cosine, cut 0.25 of the largest | IDF cosine, Louvain | this |");
    for (name, scenario) in [
        ("plain, 64 pages", base.clone()),
        ("1,024 pages", Scenario { pages: 1024, ..base.clone() }),
        ("1,024 pages, 200 samples", Scenario { pages: 1024, samples: 200, ..base.clone() }),
        ("one page", Scenario { pages: 1, ..base.clone() }),
        ("one group", Scenario { groups: 1, threads: 16, ..base.clone() }),
        ("two groups", Scenario { groups: 2, threads: 16, ..base.clone() }),
        ("one group of 90 %", Scenario { groups: 3, threads: 100, dominant: 0.9, ..base.clone() }),
        ("overlap 10 %", Scenario { overlap: 0.1, ..base.clone() }),
        ("20 % hot globals", Scenario { globals: 0.2, global_pages: 8, ..base.clone() }),
        ("private only", Scenario { groups: 0, ..base.clone() }),
    ] {
        let mut sums = [0.0; 4];
        for seed in 0..10 {
            let stream = scenario.stream(seed);
            let (raw, idf) = (cosine(&stream, false), cosine(&stream, true));
            let mut sharing = Sharing::new(Sharing::BUDGET / 8);
            for sample in &stream.samples {
                sharing.add(sample);
            }
            let mut options = ClusterOptions::default();
            options.detail = Detail::Communities;
            let own = sharing.solve(&options).labels();
            let all = [linkage(&raw, 0.05), linkage(&idf, 0.25 * largest(&idf)), louvain(&idf), own];
            for (sum, labels) in sums.iter_mut().zip(all) {
                *sum += adjusted_rand_index(&labels, &stream.truth) / 10.0;
            }
        }
        println!("| {name} | {:.2} | {:.2} | {:.2} | {:.2} |", sums[0], sums[1], sums[2], sums[3]);
    }
}
