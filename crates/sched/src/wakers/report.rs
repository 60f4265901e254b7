//! Edges, preemptions and chains with names, to print.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::chains::{Chain, Chains, Link};
use super::{Counts, Edge, Locality, Merge, Wakers};
use crate::report::{Labels, Quantiles, Times};
use crate::{Class, Thread, Threads};
use scxprof_base::sample::Comm;

/// What an edge connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Threads; those that have ended are added up by process, cgroup and name.
    Thread,
    /// All threads of a cgroup that have the same name.
    Class,
}

/// A thread, or several.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Party {
    /// Their name.
    pub name: String,
    /// Thread id; `None` for several, and for threads that have ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Process id, if it is known and all have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Path of the cgroup, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

/// Wakeups of one party by another.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EdgeLine {
    /// The waker; `None` for an interrupt, and for the idle task.
    pub waker: Option<Party>,
    /// The woken thread.
    pub wakee: Party,
    /// Wakeups, also those of a thread that was runnable already.
    pub wakeups: u64,
    /// The waits that they began. The wait of a wakeup may be missing, as at the end of the events.
    pub latency: Times,
    /// Those with a known wait, by the distance between the waker's CPU and the one where the woken thread then ran.
    pub places: Locality,
}

/// Preemptions of one party by another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PreemptionLine {
    /// The thread that got the CPU; `None` for the idle task, as when the thread was throttled or moved.
    pub by: Option<Party>,
    /// The thread that wanted to continue.
    pub thread: Party,
    /// How often.
    pub preemptions: u64,
}

/// Chains of a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LengthLine {
    /// Waits; [`MAX_LENGTH`](super::MAX_LENGTH) stands for that and more.
    pub length: usize,
    /// The latencies of the chains: all waits of each.
    pub latency: Times,
}

/// A thread of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChainThread {
    /// Its name.
    pub name: String,
    /// Its thread id.
    pub tid: u32,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ChainLine {
    /// ns of all its waits.
    pub latency_ns: u64,
    /// Its waits.
    pub length: usize,
    /// Those of them that began with a preemption.
    pub preempted: u8,
    /// Its last threads; each woke the next one.
    pub threads: Vec<ChainThread>,
    /// There were more threads before these.
    pub is_cut: bool,
}

/// The report on wakeups, preemptions and chains.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// What an edge connects.
    pub level: Level,
    /// Counts.
    #[serde(flatten)]
    pub counts: Counts,
    /// Wakeups by threads whose wait is known, by the distance between the waker's CPU and the one where the woken thread
    /// then ran.
    pub places: Locality,
    /// The same of wakeups by interrupts and the idle task.
    pub interrupt_places: Locality,
    /// How many edges there are; `edges` has the first of them.
    pub edge_count: usize,
    /// The edges, those of the most wakeups first.
    pub edges: Vec<EdgeLine>,
    /// How many lines of preemptions there are; `preempted` has the first of them.
    pub preempted_count: usize,
    /// Which thread preempted which, the most frequent first.
    pub preempted: Vec<PreemptionLine>,
    /// Chains by their length; one counts whenever a wait of it ends.
    pub chain_lengths: Vec<LengthLine>,
    /// Latencies of chains shorter than [`MAX_LENGTH`](super::MAX_LENGTH), as longer ones may be endless.
    pub chain_latency: Quantiles,
    /// Those of them with the greatest latency, one for each sequence of names.
    pub chains: Vec<ChainLine>,
}

/// How many wakeups stay within a group, such as a subcell of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Within {
    /// Wakeups by threads.
    pub wakeups: u64,
    /// Those of a thread of the waker's group.
    pub within: u64,
    /// Those where the waker or the woken thread is in no group that is known.
    pub unknown: u64,
}

/// The report; at most `limit` edges and lines of preemptions.
#[must_use]
pub fn report((wakers, threads): (&Wakers, &Threads), level: Level, limit: usize, labels: &Labels) -> Report {
    let names = Names { level, labels };
    let mut edges: Vec<EdgeLine> = names.edges(wakers, threads).into_iter().map(EdgeLine::from).collect();
    let edge_count = edges.len();
    let by_wakeups = |edge: &EdgeLine| (Reverse(edge.wakeups), edge.waker.clone(), edge.wakee.clone());
    edges.sort_by_cached_key(by_wakeups);
    edges.truncate(limit);
    let mut preempted = names.preempted(wakers);
    let preempted_count = preempted.len();
    preempted.sort_by_cached_key(|line| (Reverse(line.preemptions), line.by.clone(), line.thread.clone()));
    preempted.truncate(limit);
    let (places, interrupt_places) = wakers.places();
    let chains: &Chains = &wakers.chains;
    Report {
        level,
        counts: wakers.counts(),
        places,
        interrupt_places,
        edge_count,
        edges,
        preempted_count,
        preempted,
        chain_lengths: chains
            .lengths()
            .map(|(length, sums)| LengthLine { length, latency: Times::from(sums) })
            .collect(),
        chain_latency: Quantiles::from(chains.latency()),
        chains: chains.top().iter().map(ChainLine::from).collect(),
    }
}

/// The wakeups of threads of one group by threads of another one: of the waker first. `group_of` gives a class its group; it is asked
/// once for each.
#[must_use]
pub fn between(
    wakers: &Wakers,
    threads: &Threads,
    group_of: &dyn Fn(&Class) -> Option<String>,
) -> BTreeMap<(Option<String>, Option<String>), u64> {
    let mut groups: FxHashMap<Class, Option<String>> = FxHashMap::default();
    let mut group = |class: Class| groups.entry(class).or_insert_with(|| group_of(&class)).clone();
    let living = wakers.thread_edges(threads);
    let living = living.map(|(waker, wakee, edge)| (waker.map(Class::of_any_hint), Class::of_any_hint(wakee), edge));
    let ended = wakers.class_edges();
    let mut between = BTreeMap::new();
    for (waker, wakee, edge) in living.chain(ended) {
        let Some(waker) = waker else { continue };
        *between.entry((group(waker), group(wakee))).or_default() += edge.wakeups;
    }
    between
}

/// How many wakeups by threads stay within a group, which `group_of` gives as for [`between`].
#[must_use]
pub fn within(wakers: &Wakers, threads: &Threads, group_of: &dyn Fn(&Class) -> Option<String>) -> Within {
    let mut within = Within::default();
    for ((waker, wakee), wakeups) in between(wakers, threads, group_of) {
        within.wakeups += wakeups;
        match (waker, wakee) {
            (Some(waker), Some(wakee)) if waker == wakee => within.within += wakeups,
            (Some(_), Some(_)) => {}
            _ => within.unknown += wakeups,
        }
    }
    within
}

/// What an edge connects, before it has a name: thread id (0 for several), process id (0 for any), cgroup, name.
type Key<'a> = (u32, u32, Option<&'a [u8]>, Comm);

struct Names<'a> {
    level: Level,
    labels: &'a Labels,
}

impl<'a> Names<'a> {
    fn class(&self, class: &Class) -> Key<'a> {
        let cgroup = self.labels.cgroups.get(&class.cgroup).map(Vec::as_slice);
        let pid = if self.level == Level::Thread { class.pid } else { 0 };
        (0, pid, cgroup, class.comm)
    }

    fn thread(&self, thread: &Thread) -> Key<'a> {
        let (_, pid, cgroup, comm) = self.class(&Class::of_any_hint(thread));
        (if self.level == Level::Thread { thread.tid } else { 0 }, pid, cgroup, comm)
    }

    fn edges(&self, wakers: &Wakers, threads: &Threads) -> FxHashMap<(Option<Key<'a>>, Key<'a>), Edge> {
        let mut edges: FxHashMap<_, Edge> = FxHashMap::default();
        for (waker, wakee, edge) in wakers.thread_edges(threads) {
            let key = (waker.map(|waker| self.thread(waker)), self.thread(wakee));
            edges.entry(key).or_default().merge(edge);
        }
        for (waker, wakee, edge) in wakers.class_edges() {
            let key = (waker.map(|waker| self.class(&waker)), self.class(&wakee));
            edges.entry(key).or_default().merge(edge);
        }
        edges
    }

    fn preempted(&self, wakers: &Wakers) -> Vec<PreemptionLine> {
        let mut lines: FxHashMap<_, u64> = FxHashMap::default();
        for (by, of, count) in wakers.preemptions() {
            *lines.entry((by.map(|by| self.class(&by)), self.class(&of))).or_default() += count;
        }
        let line = |((by, thread), preemptions): ((Option<Key<'_>>, Key<'_>), u64)| PreemptionLine {
            by: by.map(Party::from),
            thread: thread.into(),
            preemptions,
        };
        lines.into_iter().map(line).collect()
    }
}

impl From<Key<'_>> for Party {
    fn from((tid, pid, cgroup, comm): Key<'_>) -> Self {
        Self {
            name: comm.to_string(),
            tid: (tid > 0).then_some(tid),
            pid: (pid > 0).then_some(pid),
            cgroup: cgroup.map(scxprof_base::sample::printable),
        }
    }
}

impl From<((Option<Key<'_>>, Key<'_>), Edge)> for EdgeLine {
    fn from(((waker, wakee), edge): ((Option<Key<'_>>, Key<'_>), Edge)) -> Self {
        Self {
            waker: waker.map(Party::from),
            wakee: wakee.into(),
            wakeups: edge.wakeups,
            latency: Times::from(&edge.latency),
            places: edge.places,
        }
    }
}

impl From<&Chain> for ChainLine {
    fn from(chain: &Chain) -> Self {
        let thread = |link: &Link| ChainThread { name: link.comm.to_string(), tid: link.tid };
        Self {
            latency_ns: chain.latency(),
            length: chain.length(),
            preempted: chain.preempted(),
            threads: chain.path().iter().map(thread).collect(),
            is_cut: chain.is_cut(),
        }
    }
}
