//! On which CPU threads run again.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{at, forget};
use crate::analyze::text_table::{of_all, percent, share, Spread, TextTable};
use scxprof_base::sample::places::{CpuPlaces, Distance};
use scxprof_sched::{Durations, Fact, Why};

/// Pairs of CPUs that are counted, of about 30 bytes each; moves of later ones are only in the totals.
const MAX_ROUTES: usize = 1 << 16;

/// Where something continued, relative to where it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Places {
    /// On the same CPU.
    pub same_cpu: u64,
    /// On another CPU of the same last-level cache.
    pub same_llc: u64,
    /// On one of another last-level cache of the same NUMA node.
    pub other_llc: u64,
    /// On another CPU of the same NUMA node, whose last-level caches are not known.
    pub same_node: u64,
    /// On one of another NUMA node.
    pub other_node: u64,
    /// On another CPU; how far is not known.
    pub unknown: u64,
}

impl Places {
    /// `nodes` are those that the trace says, `places` what the recording or the user does.
    fn add(&mut self, places: &CpuPlaces, nodes: &[Option<u32>], from: u32, to: u32) {
        let node = |cpu: u32| nodes.get(cpu as usize).copied().flatten();
        let is_same_node = node(from).zip(node(to)).map(|(from, to)| from == to);
        let count = match places.distance(from, to) {
            _ if from == to => &mut self.same_cpu,
            Some(Distance::Core | Distance::Llc) => &mut self.same_llc,
            Some(Distance::Nodes) => &mut self.other_node,
            Some(Distance::Node) | None if is_same_node == Some(false) => &mut self.other_node,
            Some(Distance::Node) => &mut self.other_llc,
            None if is_same_node == Some(true) => &mut self.same_node,
            None => &mut self.unknown,
        };
        *count += 1;
    }

    fn total(&self) -> u64 {
        self.same_cpu + self.same_llc + self.other_llc + self.same_node + self.other_node + self.unknown
    }

    /// The part within a last-level cache, if all are known.
    fn within(&self) -> Option<f64> {
        share(self.same_cpu + self.same_llc, self.total()).filter(|_| self.unknown + self.same_node == 0)
    }

    fn row(&self, name: &str) -> Vec<String> {
        let counts = [self.same_cpu, self.same_llc, self.other_llc, self.same_node, self.other_node, self.unknown];
        let part = percent(self.within());
        let cells = counts.iter().map(u64::to_string).chain([part]);
        std::iter::once(name.to_owned()).chain(cells).collect()
    }
}

/// What is known of a thread.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    /// The CPU that it ran on, plus 1; 0 if it is not known.
    cpu: u32,
    /// The CPU of the thread that woke it, plus 1; 0 if there is none.
    waker: u32,
    /// It runs on another CPU than before.
    is_moved: bool,
}

/// Follows on which CPU threads run.
#[derive(Debug)]
pub(super) struct Moves {
    places: CpuPlaces,
    /// The NUMA node of each CPU, as far as the trace says it.
    nodes: Vec<Option<u32>>,
    threads: Vec<Last>,
    runs: Places,
    wakeups: Places,
    stayed: Durations,
    moved: Durations,
    routes: FxHashMap<(u32, u32), u64>,
    no_room: u64,
    events: u64,
}

impl Moves {
    pub(super) fn new(places: CpuPlaces) -> Self {
        Self {
            places,
            nodes: Vec::new(),
            threads: Vec::new(),
            runs: Places::default(),
            wakeups: Places::default(),
            stayed: Durations::default(),
            moved: Durations::default(),
            routes: FxHashMap::default(),
            no_room: 0,
            events: 0,
        }
    }

    /// The trace says which NUMA node a CPU is of; the reader bounds its number.
    pub(super) fn node(&mut self, cpu: u32, node: u32) {
        *at(&mut self.nodes, cpu) = Some(node);
    }

    pub(super) fn fact(&mut self, fact: &Fact) {
        match *fact {
            Fact::Switched { cpu, prev, next, .. } => {
                if let Some(prev) = prev {
                    // A wakeup while it ran is of no wait.
                    let last = at(&mut self.threads, prev);
                    (last.cpu, last.waker) = (cpu + 1, 0);
                }
                let Some(next) = next else { return };
                let last = at(&mut self.threads, next);
                let before = std::mem::replace(&mut last.cpu, cpu + 1).checked_sub(1);
                last.is_moved = before.is_some_and(|before| before != cpu);
                let Some(before) = before else { return };
                self.runs.add(&self.places, &self.nodes, before, cpu);
                if before == cpu {
                    return;
                }
                if let Some(count) = self.routes.get_mut(&(before, cpu)) {
                    *count += 1;
                } else if self.routes.len() < MAX_ROUTES {
                    self.routes.insert((before, cpu), 1);
                } else {
                    self.no_room += 1;
                }
            }
            Fact::Woken { thread, cpu, waker, .. } => {
                let last = at(&mut self.threads, thread);
                // The first wakeup since it ran is the one that counts.
                if last.waker == 0 && waker.is_some() {
                    last.waker = cpu + 1;
                }
            }
            Fact::Waited { thread, cpu, from, until, why } => {
                let last = at(&mut self.threads, thread);
                let waker = std::mem::take(&mut last.waker).checked_sub(1);
                if last.is_moved { &mut self.moved } else { &mut self.stayed }.add(until - from);
                if let (Why::Woken(Some(_)), Some(waker)) = (why, waker) {
                    self.wakeups.add(&self.places, &self.nodes, waker, cpu);
                }
            }
            Fact::Migrated { .. } => self.events += 1,
            Fact::Touched { thread } | Fact::Ended { thread } => forget(&mut self.threads, thread),
            _ => {}
        }
    }

    pub(super) fn patterns(&self, limit: usize) -> MigrationPatterns {
        let mut routes: Vec<Route> =
            self.routes.iter().map(|(&(from, to), &count)| Route { from, to, count }).collect();
        routes.sort_by_key(|route| (Reverse(route.count), route.from, route.to));
        let route_count = routes.len();
        routes.truncate(limit);
        let moves = self.runs.total() - self.runs.same_cpu;
        MigrationPatterns {
            moves,
            moved_part: share(moves, self.runs.total()),
            runs: self.runs,
            migrate_events: self.events,
            waits_moved: Spread::from(&self.moved),
            waits_stayed: Spread::from(&self.stayed),
            no_room: self.no_room,
            route_count,
            routes,
        }
    }

    pub(super) fn locality(&self) -> LlcLocality {
        LlcLocality {
            runs: self.runs,
            runs_within: self.runs.within(),
            wakeups: self.wakeups,
            wakeups_within: self.wakeups.within(),
        }
    }
}

/// Moves from one CPU to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Route {
    /// Where the thread ran before.
    pub from: u32,
    /// Where it ran then.
    pub to: u32,
    /// How often.
    pub count: u64,
}

/// The result of `migration_patterns`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MigrationPatterns {
    /// Runs on another CPU than the one before of the thread.
    pub moves: u64,
    /// As a part of all runs whose previous CPU is known.
    pub moved_part: Option<f64>,
    /// All these runs.
    pub runs: Places,
    /// `sched_migrate_task` events: also moves of threads that did not run in between; 0 if they were not recorded.
    pub migrate_events: u64,
    /// Waits before runs on another CPU.
    pub waits_moved: Spread,
    /// Waits before runs on the same CPU, or on the first that is known.
    pub waits_stayed: Spread,
    /// Moves that are in no route, as there was no room.
    pub no_room: u64,
    /// How many pairs of CPUs there are.
    pub route_count: usize,
    /// The most frequent first.
    pub routes: Vec<Route>,
}

const HEAD: [&str; 8] = ["WHAT", "SAME-CPU", "SAME-LLC", "OTHER-LLC", "SAME-NODE", "OTHER-NODE", "UNKNOWN", "WITHIN%"];

impl MigrationPatterns {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let values = [
            ("runs on another CPU than before", self.moves.to_string()),
            ("% of all runs", percent(self.moved_part)),
            ("sched_migrate_task events", self.migrate_events.to_string()),
        ];
        let mut places = TextTable::new("Where threads ran again", &HEAD);
        places.push(self.runs.row("runs"));
        let mut waits = TextTable::of_spreads("Waits for a CPU", "THEN RAN");
        waits.push_spread("on another CPU".to_owned(), &self.waits_moved);
        waits.push_spread("on the same CPU".to_owned(), &self.waits_stayed);
        let mut routes = TextTable::new(of_all("Moves", self.routes.len(), self.route_count), &["FROM", "TO", "COUNT"]);
        for Route { from, to, count } in &self.routes {
            routes.push(vec![format!("CPU {from}"), format!("CPU {to}"), count.to_string()]);
        }
        vec![TextTable::of_values("", &values), places, waits, routes]
    }
}

/// The result of `llc_locality`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LlcLocality {
    /// Runs, seen from the run before of the thread.
    pub runs: Places,
    /// Those within the last-level cache, as a part; `None` if the cache of a CPU is not known.
    pub runs_within: Option<f64>,
    /// Wakeups by threads that led to a run, seen from the CPU of the waker.
    pub wakeups: Places,
    /// Those within the last-level cache, as a part; `None` if the cache of a CPU is not known.
    pub wakeups_within: Option<f64>,
}

impl LlcLocality {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let mut table = TextTable::new("Last-level caches", &HEAD);
        table.push(self.runs.row("runs, from the run before"));
        table.push(self.wakeups.row("wakeups, from the waker"));
        vec![table]
    }
}
