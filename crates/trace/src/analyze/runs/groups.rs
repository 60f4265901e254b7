//! Sums over threads by their name, process, layer or subcell: time, waits, moves, and the hardware counters of wprof.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::at;
use crate::analyze::text_table::{ms, of_all, percent, share, us, Spread, TextTable};
use crate::analyze::{By, Context, Options, Subcells};
use crate::{Name, TraceEvent, TraceWhat};
use scxprof_base::sample::printable;
use scxprof_base::sample::sched::TaskState;
use scxprof_base::sample::Comm;
use scxprof_sched::report::Times;
use scxprof_sched::{Durations, Fact, Slot, Sums, Threads, Why};

/// Groups that are told apart, of up to 10 KiB each for a distribution; what later ones did is in one line.
const MAX_GROUPS: usize = 4096;
/// Threads that are counted once in each group.
const MAX_COUNTED: usize = 1 << 20;
/// Hardware counters of a group.
const MAX_COUNTERS: usize = 64;
/// Counts of threads that no scheduling event has named yet.
const MAX_LOOSE: usize = 1 << 16;

/// The name of a group, before it is text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    Named(String),
    Thread(String, u32),
    /// By its id, or by one of its threads where no event has said it.
    Process(Result<u32, u32>),
    Layer(Option<u64>),
    /// Those for which there was no room.
    Others,
}

/// What the threads of a group did.
#[derive(Debug, Default)]
struct Group {
    threads: u64,
    run: Sums,
    latency: Durations,
    resumed: Sums,
    switches: u64,
    preemptions: u64,
    moves: u64,
    compound: Sums,
    longest_chain: u64,
    counters: BTreeMap<Name, f64>,
}

/// What a thread did since it got its CPU: which layer it is of, wprof says after the switch.
#[derive(Debug, Clone, Copy, Default)]
struct Member {
    layer: Option<u64>,
    /// The CPU that it ran on last, plus 1; 0 if it is not known.
    last_cpu: u32,
    waited: Option<(u64, bool)>,
    compound: Option<(u64, u64)>,
    is_moved: bool,
    /// The number of its group, and by what it was found.
    group: Option<(Found, usize)>,
}

/// What the group of a thread depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    comm: Comm,
    ids: [u32; 2],
    layer: Option<u64>,
}

/// Adds up.
#[derive(Debug)]
pub(super) struct Grouping {
    by: By,
    subcells: Option<Subcells>,
    keys: FxHashMap<Key, usize>,
    groups: Vec<Group>,
    members: Vec<Member>,
    counted: FxHashSet<(usize, u32)>,
    loose: Vec<(u32, Name, f64)>,
    /// Counters that have been no whole number: wprof derives them from two others, and sums of them say nothing.
    ratios: FxHashSet<Name>,
    no_room: u64,
}

impl Grouping {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            by: options.by,
            subcells: options.subcells.clone(),
            keys: FxHashMap::default(),
            groups: Vec::new(),
            members: Vec::new(),
            counted: FxHashSet::default(),
            loose: Vec::new(),
            ratios: FxHashSet::default(),
            no_room: 0,
        }
    }

    fn member(&mut self, slot: Slot) -> &mut Member {
        at(&mut self.members, slot)
    }

    fn key(&self, comm: &[u8], [tid, pid]: [u32; 2], layer: Option<u64>) -> Key {
        match self.by {
            By::Name => Key::Named(printable(comm)),
            By::Thread => Key::Thread(printable(comm), tid),
            By::Process => Key::Process(if pid == 0 || pid == TraceEvent::UNKNOWN { Err(tid) } else { Ok(pid) }),
            By::Layer => Key::Layer(layer),
            By::Subcell => Key::Named(self.subcells.as_ref().map_or_else(String::new, |of| (of.0)(comm))),
        }
    }

    fn group(&mut self, key: Key, tid: u32) -> Option<&mut Group> {
        let number = self.number(key, tid);
        self.groups.get_mut(number)
    }

    /// The number of a group, in which the thread counts once.
    fn number(&mut self, key: Key, tid: u32) -> usize {
        let is_known = self.keys.contains_key(&key);
        let key = if is_known || self.keys.len() < MAX_GROUPS { key } else { Key::Others };
        let next = self.groups.len();
        let number = *self.keys.entry(key).or_insert(next);
        if number == next {
            self.groups.push(Group::default());
        }
        let is_new = self.counted.len() < MAX_COUNTED && self.counted.insert((number, tid));
        if let Some(group) = self.groups.get_mut(number) {
            group.threads += u64::from(is_new);
        }
        number
    }

    /// The group of a thread that is followed.
    fn of(&mut self, threads: &Threads, slot: Slot) -> Option<&mut Group> {
        let thread = threads.get(slot)?;
        let Member { layer, group, .. } = *self.member(slot);
        let found = Found { comm: thread.comm, ids: [thread.tid, thread.pid], layer };
        // Its text is made once, and not for each event.
        if let Some((_, number)) = group.filter(|(by, _)| *by == found) {
            return self.groups.get_mut(number);
        }
        let key = self.key(thread.comm.as_bytes(), found.ids, layer);
        let number = self.number(key, thread.tid);
        self.member(slot).group = Some((found, number));
        self.groups.get_mut(number)
    }

    /// Counts what led to the run of a thread, which ends.
    fn settle(&mut self, threads: &Threads, slot: Slot) {
        let member = self.member(slot);
        let (waited, compound) = (member.waited.take(), member.compound.take());
        let is_moved = std::mem::take(&mut member.is_moved);
        if waited.is_none() && compound.is_none() && !is_moved {
            return;
        }
        let Some(group) = self.of(threads, slot) else { return };
        match waited {
            Some((ns, true)) => group.latency.add(ns),
            Some((ns, false)) => group.resumed.add(ns),
            None => {}
        }
        if let Some((ns, chain)) = compound {
            group.compound.add(ns);
            group.longest_chain = group.longest_chain.max(chain);
        }
        group.moves += u64::from(is_moved);
    }

    pub(super) fn fact(&mut self, threads: &Threads, fact: &Fact) {
        match *fact {
            Fact::Switched { cpu, prev, state, next, .. } => {
                if let Some(prev) = prev {
                    self.settle(threads, prev);
                    self.member(prev).last_cpu = cpu + 1;
                    if let Some(group) = self.of(threads, prev) {
                        group.switches += 1;
                        let is_preempted = matches!(state, TaskState::Runnable | TaskState::Preempted);
                        group.preemptions += u64::from(is_preempted);
                    }
                }
                if let Some(next) = next {
                    let member = self.member(next);
                    member.is_moved = member.last_cpu != 0 && member.last_cpu != cpu + 1;
                    member.last_cpu = cpu + 1;
                }
            }
            Fact::Ran { thread: Some(slot), from, until, .. } => {
                self.settle(threads, slot);
                if let Some(group) = self.of(threads, slot) {
                    group.run.add(until - from);
                }
            }
            Fact::Waited { thread, from, until, why, .. } => {
                self.member(thread).waited = Some((until - from, why != Why::Preempted));
            }
            Fact::Touched { thread } => self.member(thread).last_cpu = 0,
            Fact::Ended { thread } => {
                self.settle(threads, thread);
                *self.member(thread) = Member::default();
            }
            _ => {}
        }
    }

    /// What wprof says beside the switches; the layers of threads are followed also while nothing counts.
    pub(super) fn take(&mut self, threads: &Threads, event: &TraceEvent, counts: bool) {
        let layer = match event.what {
            TraceWhat::Waited { compound, chain, layer, .. } => {
                if let (Some(slot), Some(ns)) = (threads.find(event.tid), compound.filter(|_| counts)) {
                    self.member(slot).compound = Some((ns, chain.unwrap_or(0)));
                }
                layer
            }
            TraceWhat::Dsq { layer, .. } => layer,
            TraceWhat::Pmu { .. } if !counts => return,
            TraceWhat::Pmu { counter, delta } => {
                // 0 / 0 of a run without a cycle is no number.
                if delta.fract() != 0.0 && self.ratios.len() < MAX_COUNTERS {
                    self.ratios.insert(counter);
                }
                if let Some(slot) = threads.find(event.tid) {
                    if let Some(group) = self.of(threads, slot) {
                        group.count(counter, delta);
                    }
                } else if event.tid != 0 && event.tid != TraceEvent::UNKNOWN {
                    if self.loose.len() < MAX_LOOSE {
                        self.loose.push((event.tid, counter, delta));
                    } else {
                        self.no_room += 1;
                    }
                }
                return;
            }
            _ => None,
        };
        if let (Some(slot), Some(_)) = (threads.find(event.tid), layer) {
            self.member(slot).layer = layer;
        }
    }

    pub(super) fn finish(mut self, threads: &Threads, context: &Context<'_>) -> Groups {
        for (slot, _) in threads.iter() {
            self.settle(threads, slot);
        }
        for (tid, counter, delta) in std::mem::take(&mut self.loose) {
            let known = context.threads.get(tid);
            let comm = known.map(|known| known.comm).unwrap_or_default();
            let key = self.key(comm.as_bytes(), [tid, context.threads.pid(tid)], None);
            if let Some(group) = self.group(key, tid) {
                group.count(counter, delta);
            }
        }
        let all = self.groups.iter().fold(0u64, |sum, group| sum.saturating_add(group.run.sum()));
        // A process may have threads that no event has assigned to it; it then has two keys.
        let mut sums: BTreeMap<String, Group> = BTreeMap::new();
        for (key, number) in &self.keys {
            if let Some(group) = self.groups.get(*number) {
                sums.entry(label(key, context)).or_default().merge(group);
            }
        }
        let mut groups: Vec<GroupLine> =
            sums.into_iter().map(|(label, group)| group.line(label, all, &self.ratios, context)).collect();
        groups.sort_by_key(|line| Reverse(line.run.total_ns));
        let group_count = groups.len();
        groups.truncate(context.options.limit);
        Groups { by: self.by, group_count, groups, no_room: self.no_room }
    }
}

fn label(key: &Key, context: &Context<'_>) -> String {
    match key {
        Key::Named(name) if name.is_empty() => "(no name)".to_owned(),
        Key::Named(name) => name.clone(),
        Key::Thread(name, tid) => format!("{name} {tid}"),
        Key::Process(id) => {
            let pid = id.unwrap_or_else(|tid| context.threads.pid(tid));
            match context.threads.get(pid) {
                _ if pid == 0 || pid == TraceEvent::UNKNOWN => "(process not known)".to_owned(),
                Some(main) if !main.comm.is_empty() => format!("{} {pid}", main.comm),
                _ => pid.to_string(),
            }
        }
        Key::Layer(Some(layer)) => format!("layer {layer}"),
        Key::Layer(None) => "(no layer)".to_owned(),
        Key::Others => "(others)".to_owned(),
    }
}

impl Group {
    fn count(&mut self, counter: Name, delta: f64) {
        if !delta.is_finite() || self.counters.len() >= MAX_COUNTERS && !self.counters.contains_key(&counter) {
            return;
        }
        *self.counters.entry(counter).or_default() += delta;
    }

    fn merge(&mut self, other: &Self) {
        self.threads += other.threads;
        self.run.merge(&other.run);
        self.latency.merge(&other.latency);
        self.resumed.merge(&other.resumed);
        self.switches += other.switches;
        self.preemptions += other.preemptions;
        self.moves += other.moves;
        self.compound.merge(&other.compound);
        self.longest_chain = self.longest_chain.max(other.longest_chain);
        for (counter, sum) in &other.counters {
            *self.counters.entry(*counter).or_default() += sum;
        }
    }

    fn line(&self, group: String, all: u64, ratios: &FxHashSet<Name>, context: &Context<'_>) -> GroupLine {
        let name = |name: Name| {
            let text = printable(context.names.text(name));
            text.strip_prefix("pmu:").map(str::to_owned).unwrap_or(text)
        };
        let whole = self.counters.iter().filter(|(counter, _)| !ratios.contains(counter));
        let counters: Vec<Counted> = whole.map(|(counter, sum)| Counted { name: name(*counter), sum: *sum }).collect();
        let sum = |is: fn(&str) -> bool| counters.iter().find(|counted| is(&counted.name)).map(|counted| counted.sum);
        let ipc = sum(is_instructions).zip(sum(is_cycles)).filter(|(_, cycles)| *cycles > 0.0);
        GroupLine {
            group,
            threads: self.threads,
            run: Times::from(&self.run),
            share: share(self.run.sum(), all),
            latency: Spread::from(&self.latency),
            resumed: Times::from(&self.resumed),
            switches: self.switches,
            preemptions: self.preemptions,
            moves: self.moves,
            compound: (self.compound.count() > 0).then(|| Times::from(&self.compound)),
            longest_chain: self.longest_chain,
            ipc: ipc.map(|(instructions, cycles)| instructions / cycles),
            counters,
        }
    }
}

/// The name of an event without its PMU and its modifiers: `cpu/instructions/u` and `instructions:u` are `instructions`.
fn bare(name: &str) -> String {
    let name = name.split_once('/').map_or(name, |(_, event)| event.split('/').next().unwrap_or(event));
    name.split(':').next().unwrap_or(name).replace('_', "-").to_ascii_lowercase()
}

fn is_instructions(name: &str) -> bool {
    matches!(bare(name).as_str(), "instructions" | "inst-retired" | "cpu-insns")
}

fn is_cycles(name: &str) -> bool {
    matches!(bare(name).as_str(), "cycles" | "cpu-cycles")
}

/// The sum of a hardware counter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Counted {
    /// Its name.
    pub name: String,
    /// Counts while threads of the group ran.
    pub sum: f64,
}

/// What the threads of a group did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupLine {
    /// The name, thread, process, layer or subcell.
    pub group: String,
    /// Its threads.
    pub threads: u64,
    /// Their runs, from one switch to the next.
    pub run: Times,
    /// Their time as a part of that of all threads.
    pub share: Option<f64>,
    /// From a wakeup to the CPU.
    pub latency: Spread,
    /// Waits after they had lost their CPU.
    pub resumed: Times,
    /// Switches from them.
    pub switches: u64,
    /// Those in which they still wanted to run.
    pub preemptions: u64,
    /// Runs on another CPU than the one before.
    pub moves: u64,
    /// All waits of the chain that led to a run, as wprof adds them up; `None` without.
    pub compound: Option<Times>,
    /// The most waits of such a chain.
    pub longest_chain: u64,
    /// Instructions in a cycle, where both were counted.
    pub ipc: Option<f64>,
    /// The sums of hardware counters. Ratios that wprof derives are left out, as their sums say nothing.
    pub counters: Vec<Counted>,
}

/// The result of `groups`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Groups {
    /// What a line is about.
    pub by: By,
    /// How many groups there are.
    pub group_count: usize,
    /// Those that ran longest first.
    pub groups: Vec<GroupLine>,
    /// Counts of hardware counters that are in no line.
    pub no_room: u64,
}

impl Groups {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let what = self.by.name();
        let head = what.to_uppercase();
        let has_compound = self.groups.iter().any(|line| line.compound.is_some());
        let mut columns = vec![head.as_str(), "THREADS", "RUN(ms)", "%", "WAKEUPS", "LAT(us)", "P99(us)", "MAX(us)"];
        columns.extend(["RESUMED(ms)", "SWITCHES", "PREEMPTED", "MOVES"]);
        if has_compound {
            columns.extend(["CHAIN-MEAN(us)", "CHAIN-MAX(us)", "CHAIN"]);
        }
        let mut table = TextTable::new(of_all(&format!("By {what}"), self.groups.len(), self.group_count), &columns);
        let mut counters = TextTable::new("Hardware counters", &[head.as_str(), "COUNTER", "SUM"]);
        for line in &self.groups {
            let Spread { count, mean_ns, p99_ns, max_ns, .. } = line.latency;
            let mut row =
                vec![line.group.clone(), line.threads.to_string(), ms(line.run.total_ns), percent(line.share)];
            row.extend([count.to_string(), us(mean_ns), us(p99_ns), us(max_ns), ms(line.resumed.total_ns)]);
            row.extend([line.switches, line.preemptions, line.moves].map(|count| count.to_string()));
            if has_compound {
                let of = |ns: fn(&Times) -> Option<u64>| us(line.compound.as_ref().and_then(ns));
                row.extend([of(|times| times.mean_ns), of(|times| times.max_ns), line.longest_chain.to_string()]);
            }
            table.push(row);
            for counted in &line.counters {
                counters.push(vec![line.group.clone(), counted.name.clone(), format!("{:.0}", counted.sum)]);
            }
            if let Some(ipc) = line.ipc {
                counters.push(vec![line.group.clone(), "IPC".to_owned(), format!("{ipc:.3}")]);
            }
        }
        if counters.rows.len() > 1 {
            vec![table, counters]
        } else {
            vec![table]
        }
    }
}
