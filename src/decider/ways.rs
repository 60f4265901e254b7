//! The ways in which a configuration of scx_layered may place threads, if the samples do not say whether some conditions
//! hold.

use std::collections::{BTreeMap, BTreeSet};

use super::decider::Decider;
use crate::config::{MayTake, Members, Place, Verdict};
use crate::report::score::LayerDepends;
use crate::sample::printable;

impl Decider {
    /// The layers for which it is not known whether they take some threads, because conditions are undecided; those with most samples
    /// first.
    pub(super) fn depends(&self, places: &[Place]) -> Vec<LayerDepends> {
        let total = self.facts.iter().map(|facts| facts.samples).sum::<f64>().max(f64::MIN_POSITIVE);
        let mut found: BTreeMap<(&str, &BTreeSet<&str>), (usize, f64)> = BTreeMap::new();
        for (facts, place) in self.facts.iter().zip(places) {
            for it in place.maybe.iter().filter(|it| !it.depends_on.is_empty()) {
                let sum = found.entry((&it.layer, &it.depends_on)).or_default();
                *sum = (sum.0 + 1, sum.1 + facts.samples / total);
            }
        }
        let line = |((layer, kinds), (threads, share)): ((&str, &BTreeSet<&str>), _)| LayerDepends {
            layer: printable(layer.as_bytes()),
            conditions: kinds.iter().map(|&kind| kind.to_owned()).collect(),
            threads,
            share,
        };
        let mut found: Vec<LayerDepends> = found.into_iter().map(line).collect();
        found.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| a.layer.cmp(&b.layer)));
        found
    }

    /// Ways in which the threads may be placed that several layers may take: all open conditions hold, none does, those of one layer
    /// alone do, threads of a community go where most of it is, and threads are scattered. None if every thread has one place.
    pub(super) fn ways(&self, places: &[Place], members: &Members) -> Vec<Vec<Place>> {
        let layers: BTreeSet<&str> =
            places.iter().flat_map(|place| &place.maybe).map(|layer| layer.layer.as_str()).collect();
        if layers.is_empty() {
            return Vec::new();
        }
        let community = |at: usize| match members.threads.get(at).map(|member| member.verdict) {
            Some(Verdict::Community(community)) => Some(community),
            _ => None,
        };
        // The samples of each community that each layer has or may have.
        let mut of_community: BTreeMap<(u32, &str), f64> = BTreeMap::new();
        for (at, (facts, place)) in self.facts.iter().zip(places).enumerate() {
            let Some(community) = community(at) else { continue };
            let own = place.cell.as_deref().filter(|_| place.maybe.is_empty() && !place.is_rest);
            let may = place.maybe.iter().filter(|it| !it.is_rest).map(|it| it.layer.as_str());
            for layer in own.into_iter().chain(may) {
                *of_community.entry((community, layer)).or_default() += facts.samples;
            }
        }
        let resolve = |choose: &dyn Fn(usize, &[MayTake]) -> Option<usize>| {
            let place = |(at, place): (usize, &Place)| match place.maybe.as_slice() {
                [] => place.clone(),
                maybe => choose(at, maybe)
                    .and_then(|chosen| maybe.get(chosen))
                    .or(maybe.last())
                    .map(Place::in_layer)
                    .unwrap_or_default(),
            };
            places.iter().enumerate().map(place).collect::<Vec<Place>>()
        };
        let most = |at: usize, maybe: &[MayTake]| {
            let community = community(at)?;
            let samples = |it: &MayTake| of_community.get(&(community, it.layer.as_str())).copied().unwrap_or(0.0);
            (0..maybe.len()).max_by(|a, b| {
                let of = |at: &usize| maybe.get(*at).map_or(0.0, samples);
                of(a).total_cmp(&of(b)).then(b.cmp(a))
            })
        };
        let mut ways = vec![
            resolve(&|_, _| Some(0)),
            resolve(&|_, _| None),
            resolve(&most),
            resolve(&|at, maybe| Some(at % maybe.len())),
        ];
        ways.extend(layers.iter().map(|only| resolve(&|_, maybe| maybe.iter().position(|it| it.layer == **only))));
        ways.sort_unstable();
        ways.dedup();
        ways
    }
}
