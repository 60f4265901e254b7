//! The call stacks of each subcell as trees, for a page that draws flame graphs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::flame::{tree, Node};
use super::profile::StackProfile;
use crate::report::{StacksReport, SubcellStacks};

/// The most frames of all subcells; each has its part of what those before it left.
const MAX_NODES: usize = 20_000;
/// Frames with a smaller part of the samples of their subcell are left out: on a screen they are narrower than a pixel.
const LEAST: f64 = 0.0005;
/// Subcells of threads without one.
const NONE: &str = "(no cell)";

/// The stacks of each subcell that threads have.
#[must_use]
pub fn trees(profile: &StackProfile) -> StacksReport {
    let mut subcells: BTreeMap<&str, u64> = BTreeMap::new();
    for row in &profile.rows {
        let Some(thread) = profile.thread(row) else { continue };
        *subcells.entry(thread.subcell.as_deref().unwrap_or(NONE)).or_default() += row.samples;
    }
    let mut sorted: Vec<(&str, u64)> = subcells.into_iter().collect();
    sorted.sort_by_key(|(name, samples)| (Reverse(*samples), *name));
    let mut made = Made::default();
    let mut report = StacksReport { event: profile.event.clone(), samples: profile.count(), ..StacksReport::default() };
    let mut room = MAX_NODES;
    for (left, (name, samples)) in (1..=sorted.len()).rev().zip(sorted) {
        let (root, _) = tree(profile, &|thread| thread.subcell.as_deref().unwrap_or(NONE) == name);
        made.nodes = Vec::new();
        made.most = room / left;
        made.least = ((samples as f64 * LEAST) as u64).max(1);
        made.add(&root, -1, ("all", 0));
        room -= made.nodes.len();
        report.subcells.push(SubcellStacks { name: name.to_owned(), samples, nodes: std::mem::take(&mut made.nodes) });
    }
    (report.names, report.hidden) = (made.names, made.hidden);
    report
}

#[derive(Default)]
struct Made {
    numbers: FxHashMap<String, u32>,
    names: Vec<String>,
    nodes: Vec<(i64, u32, u8, u64)>,
    /// Frames for which there is room.
    most: usize,
    least: u64,
    hidden: u64,
}

impl Made {
    fn add(&mut self, node: &Node, caller: i64, (name, kind): (&str, u8)) {
        if node.samples < self.least || self.most == 0 {
            self.hidden += node.samples;
            return;
        }
        self.most -= 1;
        let at = self.nodes.len() as i64;
        let number = self.numbers.get(name).copied().unwrap_or_else(|| {
            let number = self.names.len() as u32;
            self.names.push(name.to_owned());
            self.numbers.insert(name.to_owned(), number);
            number
        });
        self.nodes.push((caller, number, kind, node.samples));
        for ((name, kind), callee) in &node.callees {
            self.add(callee, at, (name, *kind));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::profile::tests::made;
    use super::*;

    #[test]
    fn each_subcell_has_its_stacks() {
        let mut profile = made(&[("web", "main;f", 30), ("web", "main", 10), ("db", "main;g", 50), ("other", "x", 1)]);
        for thread in &mut profile.threads {
            thread.subcell = (thread.comm != "other").then(|| format!("cell/{}", thread.comm));
        }
        let report = trees(&profile);
        let of: Vec<(&str, u64)> = report.subcells.iter().map(|it| (it.name.as_str(), it.samples)).collect();
        assert_eq!(of, [("cell/db", 50), ("cell/web", 40), (NONE, 1)]);
        let named = |at: usize| {
            let nodes = report.subcells[at].nodes.iter();
            nodes.map(|it| (it.0, report.names[it.1 as usize].as_str(), it.2, it.3)).collect::<Vec<_>>()
        };
        assert_eq!(named(1), [(-1, "all", 0, 40), (0, "web", 0, 40), (1, "main", 1, 40), (2, "f", 1, 30)]);
        assert_eq!(report.hidden, 0);
    }

    #[test]
    fn frames_that_nobody_sees_are_counted() {
        let profile = made(&[("web", "main;f", 9_999), ("web", "main;rare", 1)]);
        let report = trees(&profile);
        assert_eq!((report.subcells[0].nodes.len(), report.hidden), (4, 1));
    }
}
