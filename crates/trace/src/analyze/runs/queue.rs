//! How many threads run and wait over time.

use serde::Serialize;

use super::at;
use crate::analyze::text_table::{ms, TextTable};
use scxprof_sched::{Fact, Slot, Threads};

/// More threads than this count as this many.
const MAX_DEPTH: usize = 1 << 16;

/// ns by how many there were.
#[derive(Debug, Default)]
struct Weights {
    now: usize,
    ns: Vec<u64>,
}

impl Weights {
    fn pass(&mut self, ns: u64) {
        let now = self.now.min(MAX_DEPTH);
        if ns > 0 {
            let sum = at(&mut self.ns, now as u32);
            *sum = sum.saturating_add(ns);
        }
    }

    fn depths(&self) -> Depths {
        let total: u64 = self.ns.iter().sum();
        let weighted = self.ns.iter().zip(0u64..).map(|(ns, depth)| *ns as f64 * depth as f64).sum::<f64>();
        let quantile = |q: f64| {
            let rank = ((total as f64 * q).ceil() as u64).clamp(1, total.max(1));
            let mut sum = 0u64;
            let reaches = |ns: &u64| {
                sum = sum.saturating_add(*ns);
                sum >= rank
            };
            self.ns.iter().position(reaches).map(|depth| depth as u64)
        };
        Depths {
            mean: (total > 0).then(|| weighted / total as f64),
            max: self.ns.iter().rposition(|ns| *ns > 0).map(|depth| depth as u64),
            p50: quantile(0.5),
            p95: quantile(0.95),
            p99: quantile(0.99),
        }
    }
}

/// Follows how many threads run and wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waits: Vec<bool>,
    /// CPUs that run a thread.
    busy: Vec<bool>,
    waiting: Weights,
    running: Weights,
    first: Option<u64>,
    last: u64,
}

impl Queue {
    fn set(&mut self, slot: Slot, waits: bool) {
        let before = std::mem::replace(at(&mut self.waits, slot), waits);
        self.waiting.now = self.waiting.now + usize::from(waits) - usize::from(before);
    }

    fn run(&mut self, cpu: u32, is_busy: bool) {
        let before = std::mem::replace(at(&mut self.busy, cpu), is_busy);
        self.running.now = self.running.now + usize::from(is_busy) - usize::from(before);
    }

    fn pass(&mut self, now: u64) {
        if self.first.is_none() {
            (self.first, self.last) = (Some(now), now);
        }
        let ns = now.saturating_sub(self.last);
        self.waiting.pass(ns);
        self.running.pass(ns);
        self.last = self.last.max(now);
    }

    pub(super) fn fact(&mut self, now: u64, threads: &Threads, fact: &Fact) {
        let is_waiting = |slot: Slot| threads.get(slot).is_some_and(|thread| thread.waits().is_some());
        match *fact {
            Fact::Woken { thread, .. } if is_waiting(thread) => {
                self.pass(now);
                self.set(thread, true);
            }
            Fact::Preempted { thread, .. } => {
                self.pass(now);
                self.set(thread, true);
            }
            Fact::Switched { cpu, prev, next, .. } => {
                self.pass(now);
                self.run(cpu, next.is_some());
                for slot in prev.into_iter().chain(next) {
                    self.set(slot, false);
                }
            }
            Fact::Lost { cpu, .. } => {
                self.pass(now);
                self.run(cpu, false);
            }
            Fact::Touched { thread } if is_waiting(thread) => {}
            Fact::Touched { thread } | Fact::Ended { thread } => {
                self.pass(now);
                self.set(thread, false);
            }
            _ => {}
        }
    }

    pub(super) fn finish(mut self, end: u64) -> RunQueue {
        self.pass(end);
        RunQueue {
            window_ns: self.first.map_or(0, |first| self.last - first),
            waiting: self.waiting.depths(),
            running: self.running.depths(),
        }
    }
}

/// How many there were over time: each number counts for as long as it held. Percentiles are of the nearest rank, exact.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Depths {
    /// The mean.
    pub mean: Option<f64>,
    /// In half of the time there were at most as many.
    pub p50: Option<u64>,
    /// In 95 % of the time.
    pub p95: Option<u64>,
    /// In 99 % of the time.
    pub p99: Option<u64>,
    /// The most; 65,536 stands for that and more.
    pub max: Option<u64>,
}

/// The result of `run_queue`. A thread counts from its first event on: before, it is not known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunQueue {
    /// The time that was looked at, ns.
    pub window_ns: u64,
    /// Threads that were runnable and had no CPU.
    pub waiting: Depths,
    /// Threads that had one.
    pub running: Depths,
}

impl RunQueue {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let title = format!("Threads over {} ms", ms(self.window_ns));
        let mut table = TextTable::new(title, &["THREADS", "MEAN", "P50", "P95", "P99", "MAX"]);
        for (name, depths) in [("waiting", self.waiting), ("running", self.running)] {
            let mean = depths.mean.map_or("-".to_owned(), |mean| format!("{mean:.3}"));
            let counts = [depths.p50, depths.p95, depths.p99, depths.max];
            let counts = counts.map(|count| count.map_or("-".to_owned(), |count| count.to_string()));
            table.push([name.to_owned(), mean].into_iter().chain(counts).collect());
        }
        vec![table]
    }
}
