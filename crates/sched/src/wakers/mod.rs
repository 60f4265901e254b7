//! Which threads wake and preempt each other, and chains of wakeups.
//!
//! An edge is a pair of threads; one woke the other. A wakeup from an interrupt has no waker thread; a wakeup from a
//! softirq counts as the thread that the CPU ran, as the kernel does not say more of it. The idle task is no thread.
//!
//! A chain is the waits that led to a run. A thread that an interrupt wakes, or a thread whose own chain is not known,
//! begins one: its latency is the wait, its length 1. A thread that is woken by one with a chain gets that chain, as it is
//! at this time, and adds its own wait; so does a thread that was preempted. This is what the tool wprof calls the
//! compound delay. A thread has no chain from its next sleep on, and after a loss.

mod chains;
mod pairs;
pub mod report;
#[cfg(test)]
mod tests;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use self::chains::{Chain, Chains};
use self::pairs::{Merge, Pairs};
use super::{Class, Fact, Facts, Slot, Sums, Thread, Threads, Why};
use scxprof_base::sample::places::{CpuPlaces, Distance};

pub use self::chains::{MAX_LENGTH, MAX_PATH, TOP};

/// Edges between threads that live, of about 150 bytes each. If there are more, at least half of them, those of the fewest
/// wakeups, are added up by class.
pub const MAX_EDGES: usize = 1 << 16;
/// Edges by class, of about 150 bytes each and as many for each class. If there are more, they lose their processes; then later ones are only counted.
pub const MAX_CLASS_EDGES: usize = 1 << 15;
/// Preemptions by class, of about 30 bytes each and 150 for each class; likewise.
pub const MAX_PREEMPTIONS: usize = 1 << 14;

/// Folded edges that are kept by the threads' ids beside those by class, of about 100 bytes each: those of threads that have ended,
/// and those for which there was no room.
pub const MAX_ENDED_PAIRS: usize = 1 << 15;

/// Wakeups by the distance between the CPU of the waker and the one where the woken thread then ran. A wakeup counts once,
/// for the smallest distance; those whose thread was not seen to run do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Locality {
    /// The same CPU.
    pub same_cpu: u64,
    /// Another CPU of the core.
    pub core: u64,
    /// Another core of the last-level cache.
    pub llc: u64,
    /// Another last-level cache of the node.
    pub node: u64,
    /// Another node.
    pub nodes: u64,
    /// Another CPU; how far is not known.
    pub unknown: u64,
}

impl Locality {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.same_cpu + self.core + self.llc + self.node + self.nodes + self.unknown
    }

    fn add(&mut self, places: &CpuPlaces, from: u32, to: u32) {
        let count = match places.distance(from, to) {
            _ if from == to => &mut self.same_cpu,
            Some(Distance::Core) => &mut self.core,
            Some(Distance::Llc) => &mut self.llc,
            Some(Distance::Node) => &mut self.node,
            Some(Distance::Nodes) => &mut self.nodes,
            None => &mut self.unknown,
        };
        *count += 1;
    }

    fn merge(&mut self, other: &Self) {
        self.same_cpu += other.same_cpu;
        self.core += other.core;
        self.llc += other.llc;
        self.node += other.node;
        self.nodes += other.nodes;
        self.unknown += other.unknown;
    }
}

/// The wakeups of one thread by another, or between those of two classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Edge {
    /// Wakeups, also those of a thread that was runnable already.
    pub wakeups: u64,
    /// The waits that they began, ns. The wait of a wakeup may be missing, as at the end of the events.
    pub latency: Sums,
    /// The same wakeups by distance.
    pub places: Locality,
}

impl Merge for Edge {
    fn merge(&mut self, other: &Self) {
        self.wakeups += other.wakeups;
        self.latency.merge(&other.latency);
        self.places.merge(&other.places);
    }
}

/// The waker of a waiting thread. By the time it runs, the waker may have ended and its slot may be another thread's.
#[derive(Debug, Clone, Copy)]
enum Waker {
    /// An interrupt, or the idle task.
    Interrupt,
    Thread {
        slot: Slot,
        serial: u32,
        class: Class,
    },
    /// A thread of the process that is left out.
    Own,
}

impl Waker {
    fn slot(&self) -> Option<Slot> {
        match self {
            Self::Thread { slot, .. } => Some(*slot),
            Self::Interrupt | Self::Own => None,
        }
    }
}

/// A wakeup whose thread has not run yet.
#[derive(Debug, Clone, Copy)]
struct Pending {
    time: u64,
    /// The CPU of the waker.
    cpu: u32,
    waker: Waker,
}

/// The state of a thread.
#[derive(Debug, Default)]
struct Node {
    /// Tells threads apart that had the slot one after the other.
    serial: u32,
    /// Whom it woke.
    wakees: FxHashMap<Slot, Edge>,
    /// The threads that have it among their wakees.
    wakers: FxHashSet<Slot>,
    pending: Option<Pending>,
    /// Its chain; while a wakeup is pending, the one of its waker.
    chain: Option<Chain>,
}

impl Node {
    fn forget(&mut self) {
        (self.pending, self.chain) = (None, None);
    }
}

/// The bounds of the tables.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    edges: usize,
    class_edges: usize,
    preemptions: usize,
}

const BOUNDS: Bounds = Bounds { edges: MAX_EDGES, class_edges: MAX_CLASS_EDGES, preemptions: MAX_PREEMPTIONS };

/// Adds up who wakes whom. Beside the edges it takes about 400 bytes for each thread that lives.
#[derive(Debug)]
pub struct Wakers {
    places: CpuPlaces,
    /// The process whose threads are left out.
    own_pid: Option<u32>,
    nodes: Vec<Node>,
    /// The wakees of interrupts and of the idle task.
    no_waker: FxHashMap<Slot, Edge>,
    /// Those of `nodes` and `no_waker`.
    edges: usize,
    max_edges: usize,
    /// Edges that were folded, by the threads' ids; they are in `classes` too.
    ended: FxHashMap<(u32, u32), Edge>,
    /// Edges of threads that have ended, or had no room.
    classes: Pairs<Edge>,
    preemptions: Pairs<u64>,
    chains: Chains,
    by_threads: Locality,
    by_interrupts: Locality,
    counts: Counts,
}

/// What [`Wakers`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    /// All wakeups: those of the edges and the next two.
    pub wakeups: u64,
    /// Wakeups that no edge has, as there was no room.
    pub wakeups_uncounted: u64,
    /// Wakeups by or of scxprof itself, which no edge has.
    pub wakeups_own: u64,
    /// Preemptions of threads other than those of scxprof itself.
    pub preemptions: u64,
    /// Preemptions whose threads are not known, as there was no room.
    pub preemptions_uncounted: u64,
}

impl Wakers {
    /// With the places of CPUs, for distances; wakeups of and by the threads of `own_pid`, and preemptions of them, are left
    /// out.
    #[must_use]
    pub fn new(places: CpuPlaces, own_pid: Option<u32>) -> Self {
        Self::bounded(places, own_pid, BOUNDS)
    }

    /// Without edges, which take most of the time and memory: for chains and preemptions.
    #[must_use]
    pub fn without_edges() -> Self {
        Self::bounded(CpuPlaces::default(), None, Bounds { edges: 0, ..BOUNDS })
    }

    fn bounded(places: CpuPlaces, own_pid: Option<u32>, bounds: Bounds) -> Self {
        Self {
            places,
            own_pid,
            nodes: Vec::new(),
            no_waker: FxHashMap::default(),
            edges: 0,
            max_edges: bounds.edges,
            ended: FxHashMap::default(),
            classes: Pairs::new(bounds.class_edges),
            preemptions: Pairs::new(bounds.preemptions),
            chains: Chains::default(),
            by_threads: Locality::default(),
            by_interrupts: Locality::default(),
            counts: Counts::default(),
        }
    }

    /// The edges between threads that live: the waker, `None` for an interrupt, and the woken thread.
    pub fn thread_edges<'a>(
        &'a self,
        threads: &'a Threads,
    ) -> impl Iterator<Item = (Option<&'a Thread>, &'a Thread, &'a Edge)> {
        self.slot_edges().filter_map(|(waker, wakee, edge)| {
            let waker = waker.map(|slot| threads.get(slot).ok_or(())).transpose().ok()?;
            Some((waker, threads.get(wakee)?, edge))
        })
    }

    /// The wakeups between threads: thread id of the waker, and of the woken thread. Of threads that have ended, the first
    /// [`MAX_ENDED_PAIRS`] pairs are there.
    pub fn pairs<'a>(&'a self, threads: &'a Threads) -> impl Iterator<Item = (u32, u32, &'a Edge)> + 'a {
        let edges = self.thread_edges(threads);
        let living = edges.filter_map(|(waker, wakee, edge)| Some((waker?.tid, wakee.tid, edge)));
        living.chain(self.ended.iter().map(|(&(waker, wakee), edge)| (waker, wakee, edge)))
    }

    /// The edges of threads that have ended, or had no room, by class.
    pub fn class_edges(&self) -> impl Iterator<Item = (Option<Class>, Class, &Edge)> {
        self.classes.iter().map(|((waker, wakee), edge)| (waker, wakee, edge))
    }

    /// Preemptions by class: by whom, `None` for the idle task, and of whom.
    pub fn preemptions(&self) -> impl Iterator<Item = (Option<Class>, Class, u64)> + '_ {
        self.preemptions.iter().map(|((by, of), count)| (by, of, *count))
    }

    /// Counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The wakeups of the edges by distance: those by threads, and those by interrupts.
    #[must_use]
    pub fn places(&self) -> (Locality, Locality) {
        (self.by_threads, self.by_interrupts)
    }

    /// Ids of the cgroups of classes.
    pub fn cgroups(&self) -> impl Iterator<Item = u64> + '_ {
        let pairs = self.classes.iter().map(|(pair, _)| pair).chain(self.preemptions.iter().map(|(pair, _)| pair));
        pairs.flat_map(|(by, of)| by.into_iter().chain([of])).map(|class| class.cgroup)
    }

    /// Edges and preemptions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.edges + self.classes.len() + self.preemptions.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let edges = |map: &FxHashMap<Slot, Edge>| map.capacity() * (size_of::<(Slot, Edge)>() + 1);
        let node = |node: &Node| edges(&node.wakees) + node.wakers.capacity() * (size_of::<Slot>() + 1);
        self.nodes.capacity() * size_of::<Node>()
            + self.nodes.iter().map(node).sum::<usize>()
            + edges(&self.no_waker)
            + self.ended.capacity() * (size_of::<((u32, u32), Edge)>() + 1)
            + self.classes.bytes()
            + self.preemptions.bytes()
            + self.chains.bytes()
    }

    fn slot_edges(&self) -> impl Iterator<Item = (Option<Slot>, Slot, &Edge)> {
        let of_threads = (0..).zip(&self.nodes).flat_map(|(waker, node)| {
            let waker: Slot = waker;
            node.wakees.iter().map(move |(&wakee, edge)| (Some(waker), wakee, edge))
        });
        of_threads.chain(self.no_waker.iter().map(|(&wakee, edge)| (None, wakee, edge)))
    }

    fn node(&mut self, slot: Slot) -> &mut Node {
        let at = slot as usize;
        if self.nodes.len() <= at {
            self.nodes.resize_with(at + 1, Node::default);
        }
        &mut self.nodes[at]
    }

    fn wakees(&mut self, waker: Option<Slot>) -> &mut FxHashMap<Slot, Edge> {
        match waker {
            Some(slot) => &mut self.node(slot).wakees,
            None => &mut self.no_waker,
        }
    }

    /// The edge of two threads, a new one if there is none.
    fn edge(&mut self, threads: &Threads, waker: Option<Slot>, wakee: Slot) -> &mut Edge {
        if !self.wakees(waker).contains_key(&wakee) {
            if self.edges >= self.max_edges {
                self.make_room(threads);
            }
            self.edges += 1;
            if let Some(waker) = waker {
                self.node(wakee).wakers.insert(waker);
            }
        }
        self.wakees(waker).entry(wakee).or_default()
    }

    fn remove(&mut self, waker: Option<Slot>, wakee: Slot) -> Option<Edge> {
        let edge = self.wakees(waker).remove(&wakee)?;
        if let Some(waker) = waker {
            self.node(wakee).wakers.remove(&waker);
        }
        self.edges -= 1;
        Some(edge)
    }

    /// Adds an edge to that of the classes.
    fn fold(&mut self, threads: &Threads, waker: Option<Slot>, wakee: Slot) {
        let Some(edge) = self.remove(waker, wakee) else { return };
        let tid = |slot| threads.get(slot).map(|thread| thread.tid);
        if let Some(pair) = waker.and_then(tid).zip(tid(wakee)) {
            if self.ended.len() < MAX_ENDED_PAIRS || self.ended.contains_key(&pair) {
                self.ended.entry(pair).or_default().merge(&edge);
            }
        }
        let class = |slot| threads.get(slot).map(Class::of_any_hint);
        let waker = waker.map_or(Some(None), |slot| class(slot).map(Some));
        let sum = waker.zip(class(wakee)).and_then(|pair| self.classes.value(pair));
        match sum {
            Some(sum) => sum.merge(&edge),
            None => self.counts.wakeups_uncounted += edge.wakeups,
        }
    }

    /// Folds the edges that have at most the median of wakeups.
    fn make_room(&mut self, threads: &Threads) {
        let mut counts: Vec<u64> = self.slot_edges().map(|(_, _, edge)| edge.wakeups).collect();
        let middle = counts.len() / 2;
        let Some(median) = (!counts.is_empty()).then(|| *counts.select_nth_unstable(middle).1) else { return };
        let few = self.slot_edges().filter(|(_, _, edge)| edge.wakeups <= median);
        let few: Vec<_> = few.map(|(waker, wakee, _)| (waker, wakee)).collect();
        for (waker, wakee) in few {
            self.fold(threads, waker, wakee);
        }
        for node in &mut self.nodes {
            node.wakees.shrink_to_fit();
            node.wakers.shrink_to_fit();
        }
    }

    fn is_own(&self, thread: &Thread) -> bool {
        self.own_pid == Some(thread.pid)
    }

    fn woken(&mut self, threads: &Threads, slot: Slot, (cpu, time): (u32, u64), waker: Option<Slot>, is_new: bool) {
        let Some(thread) = threads.get(slot) else { return };
        let by = waker.and_then(|waker| Some((waker, threads.get(waker)?)));
        self.counts.wakeups += 1;
        let is_own = self.is_own(thread) || by.is_some_and(|(_, by)| self.is_own(by));
        if is_own {
            self.counts.wakeups_own += 1;
        } else if self.max_edges > 0 {
            self.edge(threads, waker, slot).wakeups += 1;
        }
        // A thread that is runnable already goes on with the wait that it is in.
        let begins = thread.waits().is_some_and(|(since, why)| {
            let why_now = if is_new { Why::New } else { Why::Woken(waker) };
            since == time && why == why_now
        });
        if !begins {
            return;
        }
        self.node(slot);
        let waker = match by {
            _ if is_own => Waker::Own,
            None => Waker::Interrupt,
            Some((slot, by)) => Waker::Thread { slot, serial: self.node(slot).serial, class: Class::of_any_hint(by) },
        };
        // It goes on with the chain of its waker, as far as there is one.
        let from = waker.slot().and_then(|from| self.nodes.get(from as usize));
        let chain = from.filter(|from| from.pending.is_none()).and_then(|from| from.chain).unwrap_or_default();
        if let Some(node) = self.nodes.get_mut(slot as usize) {
            (node.pending, node.chain) = (Some(Pending { time, cpu, waker }), Some(chain));
        }
    }

    fn waited(&mut self, threads: &Threads, slot: Slot, cpu: u32, (from, until): (u64, u64), why: Why) {
        let Some(thread) = threads.get(slot) else { return };
        let is_own = self.is_own(thread);
        let ns = until.saturating_sub(from);
        self.node(slot);
        let Self { nodes, chains, .. } = self;
        let Some(node) = nodes.get_mut(slot as usize) else { return };
        let pending = node.pending.take();
        let chain = node.chain.as_mut().filter(|_| !is_own);
        match (why, chain, pending) {
            (Why::Preempted, Some(chain), None) => {
                chain.resumed(ns);
                chains.add(chain);
            }
            (Why::Woken(_) | Why::New, Some(chain), Some(pending)) if pending.time == from => {
                chain.woken(ns, thread);
                chains.add(chain);
                self.ran(thread, slot, cpu, ns, pending);
            }
            _ => node.forget(),
        }
    }

    /// A thread ran on the CPU, `ns` after it was woken.
    fn ran(&mut self, thread: &Thread, slot: Slot, cpu: u32, ns: u64, pending: Pending) {
        let (waker, waker_class) = match pending.waker {
            Waker::Own => return,
            Waker::Interrupt => (Some(None), None),
            Waker::Thread { slot, serial, class } => {
                let lives = self.node(slot).serial == serial;
                (lives.then_some(Some(slot)), Some(class))
            }
        };
        let sum = if waker_class.is_none() { &mut self.by_interrupts } else { &mut self.by_threads };
        sum.add(&self.places, pending.cpu, cpu);
        if self.max_edges == 0 {
            return;
        }
        let mut of_wait = Edge::default();
        of_wait.latency.add(ns);
        of_wait.places.add(&self.places, pending.cpu, cpu);
        // The edge may have been folded in between.
        let edge = match waker {
            Some(Some(slot_of_waker)) => {
                self.nodes.get_mut(slot_of_waker as usize).and_then(|node| node.wakees.get_mut(&slot))
            }
            Some(None) => self.no_waker.get_mut(&slot),
            None => None,
        };
        if let Some(edge) = edge.or_else(|| self.classes.known((waker_class, Class::of_any_hint(thread)))) {
            edge.merge(&of_wait);
        }
    }

    fn preempted(&mut self, threads: &Threads, thread: Slot, by: Option<Slot>) {
        let Some(thread) = threads.get(thread).filter(|thread| !self.is_own(thread)) else { return };
        self.counts.preemptions += 1;
        let by = by.and_then(|by| threads.get(by)).map(Class::of_any_hint);
        match self.preemptions.value((by, Class::of_any_hint(thread))) {
            Some(count) => *count += 1,
            None => self.counts.preemptions_uncounted += 1,
        }
    }

    fn ended(&mut self, threads: &Threads, slot: Slot) {
        let node = self.node(slot);
        let wakees: Vec<Slot> = node.wakees.keys().copied().collect();
        let wakers: Vec<Slot> = node.wakers.iter().copied().collect();
        for wakee in wakees {
            self.fold(threads, Some(slot), wakee);
        }
        for waker in wakers {
            self.fold(threads, Some(waker), slot);
        }
        self.fold(threads, None, slot);
        let serial = self.node(slot).serial.wrapping_add(1);
        *self.node(slot) = Node { serial, ..Node::default() };
    }
}

impl Facts for Wakers {
    fn fact(&mut self, threads: &Threads, fact: &Fact) {
        match *fact {
            Fact::Woken { thread, cpu, time, waker, is_new, .. } => {
                self.woken(threads, thread, (cpu, time), waker, is_new);
            }
            Fact::Waited { thread, cpu, from, until, why } => self.waited(threads, thread, cpu, (from, until), why),
            Fact::Preempted { thread, by } => self.preempted(threads, thread, by),
            Fact::Switched { prev: Some(prev), state, .. } => {
                let node = self.node(prev);
                // It ran, so a wakeup that is pending yet has no wait that is known.
                if !state.is_runnable() || node.pending.is_some() {
                    node.forget();
                }
            }
            Fact::Touched { thread } => self.node(thread).forget(),
            Fact::Ended { thread } => self.ended(threads, thread),
            Fact::Switched { .. }
            | Fact::Ran { .. }
            | Fact::Slept { .. }
            | Fact::Migrated { .. }
            | Fact::Charged { .. }
            | Fact::Handled { .. }
            | Fact::Lost { .. }
            | Fact::Missed { .. }
            | Fact::Queued { .. }
            | Fact::Dispatched { .. }
            | Fact::Unqueued { .. }
            | Fact::Left { .. }
            | Fact::Slice { .. } => {}
        }
    }
}
