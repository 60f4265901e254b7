//! Hosts that share otherwise than the others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::key::{Key, RowKind, Scope};
use super::rows::{Evidence, Sum};

/// Parts of the pairs of classes: each host has possible and shared misses of each part. Few are small, and tell most hosts apart.
pub const PARTS: u64 = 64;
/// An outlier deviates by this number of standard deviations of the deviations between similar hosts...
const SURELY: f64 = 8.0;
/// ...and by this part of what it shares.
const CLEARLY: f64 = 0.25;
/// Hosts without which nothing is said.
const LEAST_HOSTS: usize = 5;
/// Hosts that are listed.
const LISTED: usize = 64;

/// A host that shares otherwise than most.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HostReport {
    /// Its name.
    pub host: String,
    /// Runs of it.
    pub runs: i64,
    /// The part of what it shares that is not as on the others.
    pub differs: f64,
}

/// Possible and shared misses of each part.
type Parts = BTreeMap<i64, (f64, f64)>;

/// The part of the pairs that a pair belongs to (FNV-1a, which is the same everywhere).
pub(crate) fn part_of(pair: &Key) -> i64 {
    let fields = [&pair.a.cell, &pair.a.cgroup, &pair.a.comm, &pair.a.hint, &pair.b.comm, &pair.b.hint];
    let bytes = fields.into_iter().flat_map(|field| field.bytes().chain([0]));
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    // The low bits of FNV are weak.
    ((hash ^ hash >> 32) % PARTS) as i64
}

impl Evidence {
    /// The number of hosts, and those on which threads share differently than on most; the worst first.
    pub(super) fn outliers(&self) -> (usize, Vec<HostReport>) {
        // Of each part, possible and shared misses of all hosts; of each host, those of its parts and its runs.
        let mut all = Parts::new();
        let mut hosts: BTreeMap<&str, (BTreeMap<&Scope, i64>, Parts)> = BTreeMap::new();
        for (key, sums) in self.of_kind(RowKind::Host) {
            let (possible, shared) = (sums.value(Sum::Possible), sums.value(Sum::Shared));
            let host = hosts.entry(&key.host).or_default();
            let runs = host.0.entry(&*key.scope).or_default();
            *runs = sums.get(Sum::Runs).max(*runs);
            for part in [all.entry(key.part).or_default(), host.1.entry(key.part).or_default()] {
                *part = (part.0 + possible, part.1 + shared);
            }
        }
        let count = hosts.len();
        if count < LEAST_HOSTS {
            return (count, Vec::new());
        }
        let judged = hosts.into_iter().map(|(host, (runs, parts))| {
            let runs = runs.values().fold(0, |sum: i64, runs| sum.saturating_add(*runs));
            let (mut squares, mut off, mut shares) = (0.0, 0.0, 0.0);
            for (part, (possible, shared)) in &parts {
                let (of_all, shared_by_all) = all.get(part).copied().unwrap_or_default();
                let expected = possible * shared_by_all / of_all.max(f64::MIN_POSITIVE);
                squares += (shared - expected).powi(2) / (expected + 1.0);
                off += (shared - expected).abs();
                shares += shared.max(expected);
            }
            let differs = if shares > 0.0 { off / shares } else { 0.0 };
            (squares / parts.len().max(1) as f64, parts.len(), HostReport { host: host.to_owned(), runs, differs })
        });
        let mut judged: Vec<(f64, usize, HostReport)> = judged.collect();
        judged.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.2.host.cmp(&b.2.host)));
        // What hosts deviate by that are alike: that of most of them.
        let usual = judged.get(count / 2).map_or(0.0, |it| it.0).max(f64::MIN_POSITIVE);
        let is_outlier = |(squares, parts, host): &(f64, usize, HostReport)| {
            let deviation = (2.0 / (*parts).max(1) as f64).sqrt();
            *squares > usual * (1.0 + SURELY * deviation) && host.differs > CLEARLY
        };
        let outliers = judged.into_iter().filter(is_outlier).map(|it| it.2).take(LISTED);
        (count, outliers.collect())
    }
}
