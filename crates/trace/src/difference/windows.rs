//! The windows of a trace, with the sums of what threads did in each.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::analyze::{By, Subcells};
use crate::{Event, TraceWhat};
use scxprof_base::sample::printable;
use scxprof_sched::{Fact, Facts, Slot, Threads, Tracker, Why};

/// Windows at most; then two become one.
pub(super) const WINDOWS: usize = 64;
/// The first width, ns.
const WIDTH: u64 = 1 << 16;
/// Groups that are told apart; what later ones did is left out.
const MAX_GROUPS: usize = 4096;
/// Waits that are kept one by one for their 99th percentile, of 16 bytes each.
const MAX_WAITS: usize = 1 << 22;
/// Sums of a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) run: u64,
    /// Waits since a wakeup: their number and their sum.
    pub(super) woken: u64,
    pub(super) latency: u64,
    /// All waits, since a preemption too.
    pub(super) wait: u64,
    pub(super) moves: u64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.run = self.run.saturating_add(other.run);
        self.woken += other.woken;
        self.latency = self.latency.saturating_add(other.latency);
        self.wait = self.wait.saturating_add(other.wait);
        self.moves += other.moves;
    }
}

/// What the threads of a group did.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) windows: Vec<Sums>,
    /// Waits since a wakeup, each with its window.
    pub(super) waits: Vec<(u64, u8)>,
    /// Their number in each window, when all are there.
    pub(super) kept: Vec<u64>,
}

impl Group {
    fn window(&mut self, at: usize) -> Option<&mut Sums> {
        if self.windows.len() <= at {
            self.windows.resize((at + 1).min(WINDOWS), Sums::default());
        }
        self.windows.get_mut(at)
    }

    /// Makes one window of two.
    fn halve(&mut self) {
        self.windows = self
            .windows
            .chunks(2)
            .map(|two| {
                two.iter().fold(Sums::default(), |mut sum, one| {
                    sum.add(one);
                    sum
                })
            })
            .collect();
        for (_, window) in &mut self.waits {
            *window /= 2;
        }
    }
}

/// A thread.
#[derive(Debug, Clone, Copy, Default)]
struct Member {
    layer: Option<u64>,
    /// The CPU that it ran on last, plus 1; 0 if it is not known.
    last_cpu: u32,
    /// When its wait ended, how long it was, and whether it began with a wakeup. Which layer it is of, wprof says after it.
    waited: Option<(u64, u64, bool)>,
    is_moved: bool,
}

/// The windows of a trace.
#[derive(Debug)]
pub struct Windowed {
    tracker: Tracker,
    pub(super) sums: Adding,
}

#[derive(Debug)]
pub(super) struct Adding {
    pub(super) by: By,
    subcells: Option<Subcells>,
    first: Option<u64>,
    now: u64,
    pub(super) width: u64,
    pub(super) groups: BTreeMap<String, Group>,
    members: FxHashMap<Slot, Member>,
    waits: usize,
    pub(super) no_room: u64,
}

impl Windowed {
    /// Before the first event. `by` is a name, a layer or a subcell: ids of threads and processes mean nothing in another trace.
    #[must_use]
    pub fn new(by: By, subcells: Option<Subcells>) -> Self {
        let sums = Adding {
            by,
            subcells,
            first: None,
            now: 0,
            width: WIDTH,
            groups: BTreeMap::new(),
            members: FxHashMap::default(),
            waits: 0,
            no_room: 0,
        };
        Self { tracker: Tracker::default(), sums }
    }

    /// Takes the next event.
    pub fn take(&mut self, event: &Event) {
        match event {
            Event::Sched(event) => {
                self.sums.begin(event.time);
                self.tracker.take(event, &mut self.sums);
            }
            Event::Trace(event) => {
                let (TraceWhat::Waited { layer: Some(layer), .. } | TraceWhat::Dsq { layer: Some(layer), .. }) =
                    event.what
                else {
                    return;
                };
                if let Some(slot) = self.tracker.threads().find(event.tid) {
                    self.sums.members.entry(slot).or_default().layer = Some(layer);
                }
            }
        }
    }

    /// Counts the waits whose threads run at the end.
    pub(super) fn settle(&mut self) {
        let threads = self.tracker.threads();
        let slots: Vec<Slot> = threads.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.sums.settle(threads, slot);
        }
    }

    /// ns from the first to the last event.
    pub(super) fn duration(&self) -> u64 {
        self.sums.now.saturating_sub(self.sums.first.unwrap_or(self.sums.now))
    }

    /// The windows that its time takes.
    pub(super) fn count(&self) -> usize {
        (self.duration() / self.sums.width) as usize + 1
    }
}

impl Adding {
    fn begin(&mut self, time: u64) {
        let first = *self.first.get_or_insert(time);
        self.now = self.now.max(time);
        while time.saturating_sub(first) / self.width >= WINDOWS as u64 {
            self.width = self.width.saturating_mul(2);
            self.groups.values_mut().for_each(Group::halve);
        }
    }

    fn window(&self, time: u64) -> usize {
        let at = time.saturating_sub(self.first.unwrap_or(time)) / self.width;
        (at as usize).min(WINDOWS - 1)
    }

    fn group(&mut self, threads: &Threads, slot: Slot) -> Option<&mut Group> {
        let thread = threads.get(slot)?;
        let comm = thread.comm.as_bytes();
        let key = match self.by {
            By::Layer => match self.members.get(&slot).and_then(|member| member.layer) {
                Some(layer) => format!("layer {layer}"),
                None => "(no layer)".to_owned(),
            },
            By::Subcell => self.subcells.as_ref().map_or_else(String::new, |of| (of.0)(comm)),
            _ => printable(comm),
        };
        if self.groups.len() >= MAX_GROUPS && !self.groups.contains_key(&key) {
            self.no_room += 1;
            return None;
        }
        Some(self.groups.entry(key).or_default())
    }

    fn settle(&mut self, threads: &Threads, slot: Slot) {
        let Some(member) = self.members.get_mut(&slot) else { return };
        let (waited, is_moved) = (member.waited.take(), std::mem::take(&mut member.is_moved));
        let Some(time) = waited.map(|(time, ..)| time).or(is_moved.then_some(self.now)) else { return };
        let at = self.window(time);
        let has_room = self.waits < MAX_WAITS;
        let Some(group) = self.group(threads, slot) else { return };
        let mut kept = 0;
        if let Some((_, ns, true)) = waited.filter(|_| has_room) {
            group.waits.push((ns, at as u8));
            kept = 1;
        }
        let Some(sums) = group.window(at) else { return };
        sums.moves += u64::from(is_moved);
        if let Some((_, ns, is_woken)) = waited {
            sums.wait = sums.wait.saturating_add(ns);
            sums.woken += u64::from(is_woken);
            sums.latency = sums.latency.saturating_add(if is_woken { ns } else { 0 });
        }
        self.waits += kept;
    }

    /// A run counts in each window that it is in.
    fn ran(&mut self, threads: &Threads, slot: Slot, mut from: u64, until: u64) {
        let (first, width) = (self.first.unwrap_or(from), self.width);
        while from < until {
            let at = self.window(from);
            let end = first.saturating_add(width.saturating_mul(at as u64 + 1));
            let end = if at + 1 >= WINDOWS { until } else { end.min(until) };
            if end <= from {
                return;
            }
            let Some(sums) = self.group(threads, slot).and_then(|group| group.window(at)) else { return };
            sums.run = sums.run.saturating_add(end - from);
            from = end;
        }
    }
}

impl Facts for Adding {
    fn fact(&mut self, threads: &Threads, fact: &Fact) {
        match *fact {
            Fact::Switched { cpu, prev, next, .. } => {
                if let Some(prev) = prev {
                    self.settle(threads, prev);
                    self.members.entry(prev).or_default().last_cpu = cpu + 1;
                }
                if let Some(next) = next {
                    let member = self.members.entry(next).or_default();
                    member.is_moved = member.last_cpu != 0 && member.last_cpu != cpu + 1;
                    member.last_cpu = cpu + 1;
                }
            }
            Fact::Ran { thread: Some(slot), from, until, .. } => {
                self.settle(threads, slot);
                self.ran(threads, slot, from, until);
            }
            Fact::Waited { thread, from, until, why, .. } => {
                self.members.entry(thread).or_default().waited = Some((until, until - from, why != Why::Preempted));
            }
            Fact::Touched { thread } => self.members.entry(thread).or_default().last_cpu = 0,
            Fact::Ended { thread } => {
                self.settle(threads, thread);
                self.members.remove(&thread);
            }
            _ => {}
        }
    }
}
