//! From decoded events in order of time to typed ones: who ran before and who woke where the trace does not say it, and
//! scheduling events of the slices that wprof writes.

use rustc_hash::FxHashMap;

use super::event::{Args, Edge, Event, TraceEvent, TraceWhat, TrackId};
use super::names::{self as known, Name, Names};
use super::nodes::Nodes;
use super::raw::{Raw, Typed, MAX_CPUS};
use super::slices::{TrackEvent, TrackEventKind};
use super::threads::{TraceThreads, Tracks};
use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat, TaskState, WakenBy};
use scxprof_base::sample::Comm;

/// Slices that are open on a track, and tracks with open slices.
const MAX_OPEN: usize = 64;
const MAX_TRACKS: usize = 1 << 19;
/// Events of one time that are looked at for their other half: hardly a host has more CPUs, and each is compared with each.
const MAX_AT_ONCE: usize = 1024;
const UNKNOWN: u32 = SchedEvent::UNKNOWN;

/// Softirqs by the number of their vector.
pub(super) const SOFTIRQS: [&[u8]; 10] =
    [b"hi", b"timer", b"net_tx", b"net_rx", b"block", b"irq_poll", b"tasklet", b"sched", b"hrtimer", b"rcu"];

/// A thread that is not known.
fn nobody() -> SchedTask {
    SchedTask { tid: UNKNOWN, ..SchedTask::default() }
}

/// What is known about the whole trace.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rules {
    /// Its categories are those of wprof.
    pub(super) is_wprof: bool,
    /// ftrace has the switches, so those of slices are left.
    pub(super) has_switch: bool,
    /// Compact wakeups stand on CPU 0, wherever they happened (systing).
    pub(super) no_wakers: bool,
}

/// A slice that has begun.
#[derive(Debug, Clone, Copy)]
struct Open {
    category: Name,
    name: Name,
    cpu: u32,
    number: u32,
}

/// What is followed through the events.
#[derive(Debug, Default)]
pub(super) struct Derive {
    rules: Rules,
    running: Vec<Option<SchedTask>>,
    open: FxHashMap<TrackId, Vec<Open>>,
    /// The sum of a counter of differences, and since which generation.
    counters: FxHashMap<TrackId, (u32, f64)>,
    /// The thread of each name that only one has.
    by_name: Option<FxHashMap<Comm, Option<u32>>>,
    /// Wakeups whose woken thread is not known.
    pub(super) unnamed_wakeups: u64,
    /// Ends of slices that did not begin.
    pub(super) ends_without_begin: u64,
    /// Switches that have only one side.
    pub(super) half_switches: u64,
    pub(super) nodes: Nodes,
    /// What wprof says beside its slices.
    pub(super) said: Said,
}

/// How often wprof says what is no event of its own.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Said {
    /// Counts of hardware counters.
    pub(super) pmu: u64,
    /// Waits of chains of wakeups.
    pub(super) compound: u64,
    /// Runs and waits in queues of threads of a layer.
    pub(super) layers: u64,
}

/// The tables of the trace.
pub(super) struct Tables<'a> {
    pub(super) names: &'a mut Names,
    pub(super) threads: &'a TraceThreads,
    pub(super) tracks: &'a Tracks,
}

/// The process of the thread that runs at this time.
fn pid_at(threads: &TraceThreads, tid: u32, time: u64) -> u32 {
    if tid == UNKNOWN {
        UNKNOWN
    } else {
        threads.pid_at(tid, time)
    }
}

/// The events of one time.
struct Group<'a, 'b> {
    time: u64,
    tables: &'a mut Tables<'b>,
    out: &'a mut Vec<Event>,
    /// Track events of this time whose other half may follow, with what has become of them.
    woken: Vec<(TrackEvent, bool)>,
    forked: Vec<TrackId>,
    /// Threads that left their CPU.
    left: Vec<(u32, SchedTask, TaskState)>,
}

impl Derive {
    pub(super) fn new(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    fn runs(&self, cpu: u32) -> Option<SchedTask> {
        self.running.get(cpu as usize).copied().flatten()
    }

    fn set(&mut self, cpu: u32, task: Option<SchedTask>) {
        let at = cpu as usize;
        if cpu >= MAX_CPUS {
            return;
        }
        if self.running.len() <= at {
            self.running.resize(at + 1, None);
        }
        if let Some(running) = self.running.get_mut(at) {
            *running = task;
        }
    }

    /// The only thread of this name, if there is one.
    fn named(&mut self, threads: &TraceThreads, comm: &Comm) -> Option<u32> {
        let by_name = self.by_name.get_or_insert_with(|| {
            let mut by_name = FxHashMap::default();
            for (tid, thread) in threads.iter() {
                by_name.entry(thread.comm).and_modify(|only| *only = None).or_insert(Some(tid));
            }
            by_name
        });
        by_name.get(comm).copied().flatten()
    }

    /// True if what an event means depends on the others of its time.
    pub(super) fn looks_at_groups(&self) -> bool {
        self.rules.is_wprof
    }

    /// Takes an event of a CPU and a thread that has just been decoded, where none depends on others.
    #[expect(
        clippy::inline_always,
        reason = "what it returns is stored once, in the event, and not copied from call to call"
    )]
    #[inline(always)]
    pub(super) fn typed(
        &mut self,
        time: u64,
        (cpu, tid, typed): (u32, u32, Typed),
        threads: &TraceThreads,
        out: &mut Vec<Event>,
    ) {
        match typed {
            Typed::Sched(what) => {
                self.follow(cpu, &what);
                let pid = pid_at(threads, tid, time);
                out.push(Event::Sched(SchedEvent { time, cpu, pid, tid, cgroup: 0, what }));
            }
            Typed::Trace(what) => {
                let pid = threads.pid_at(tid, time);
                out.push(Event::Trace(TraceEvent { time, cpu, pid, tid, what }));
            }
        }
    }

    /// Takes another event, where none depends on others.
    pub(super) fn one(&mut self, time: u64, raw: Raw, tables: &mut Tables<'_>, out: &mut Vec<Event>) {
        let mut group = Group { time, tables, out, woken: Vec::new(), forked: Vec::new(), left: Vec::new() };
        self.raw(raw, &mut group);
    }

    /// Takes all events of `time`, in order.
    pub(super) fn group(&mut self, time: u64, raws: &mut Vec<Raw>, tables: &mut Tables<'_>, out: &mut Vec<Event>) {
        let mut group = Group { time, tables, out, woken: Vec::new(), forked: Vec::new(), left: Vec::new() };
        if self.rules.is_wprof {
            group.find_halves(raws, self);
            self.nodes.see(raws, time, group.tables.names, group.out);
        }
        for raw in raws.drain(..) {
            self.raw(raw, &mut group);
        }
        for (cpu, prev, state) in std::mem::take(&mut group.left) {
            // Who got the CPU is missing, and what happened since.
            self.half_switches += 1;
            group.sched(cpu, prev.tid, SchedWhat::Switch { prev, state, next: nobody() });
            group.sched(cpu, UNKNOWN, SchedWhat::Lost);
        }
    }

    /// Follows what runs on the CPU.
    fn follow(&mut self, cpu: u32, what: &SchedWhat) {
        match what {
            SchedWhat::Switch { next, .. } => self.set(cpu, Some(*next)),
            SchedWhat::Lost => self.set(cpu, None),
            _ => {}
        }
    }

    fn raw(&mut self, raw: Raw, group: &mut Group<'_, '_>) {
        let time = group.time;
        match raw {
            Raw::Sched { cpu, tid, what } => {
                self.follow(cpu, &what);
                group.sched(cpu, tid, what);
            }
            Raw::SwitchTo { cpu, state, next } => {
                let prev = self.runs(cpu).unwrap_or(nobody());
                if next.tid == UNKNOWN {
                    self.set(cpu, None);
                    return;
                }
                self.set(cpu, Some(next));
                group.sched(cpu, prev.tid, SchedWhat::Switch { prev, state, next });
            }
            Raw::WokenOn { cpu, task, target_cpu, by } => {
                let waker = self.runs(cpu).filter(|_| !self.rules.no_wakers).unwrap_or(nobody());
                group.sched(cpu, waker.tid, SchedWhat::Waking { task, target_cpu, by });
            }
            Raw::Trace(mut event) => {
                event.time = time;
                event.pid = group.tables.threads.pid_at(event.tid, time);
                group.out.push(Event::Trace(*event));
            }
            Raw::Track(event) => self.track(group, *event),
        }
    }

    fn track(&mut self, group: &mut Group<'_, '_>, event: TrackEvent) {
        match event.kind {
            TrackEventKind::Counter(value) => {
                let track = group.tables.tracks.get(event.track);
                let mut value = value * track.and_then(|track| track.multiplier).unwrap_or(1) as f64;
                if track.is_some_and(|track| track.is_incremental) && self.counters.len() < MAX_TRACKS {
                    let (generation, sum) = self.counters.entry(event.track).or_default();
                    if std::mem::replace(generation, event.generation) != event.generation {
                        *sum = 0.0;
                    }
                    *sum += value;
                    value = *sum;
                }
                let cpu = group.cpu(&event);
                group.trace(&event, cpu, TraceWhat::Counter { track: event.track, value });
            }
            TrackEventKind::Slice(edge) => {
                let opened = self.edge(edge, &event, group);
                let stack = event.stack.map(|stack| {
                    let category = opened.map_or(event.category, |open| open.category);
                    let cpu = opened.map_or(UNKNOWN, |open| open.cpu);
                    group.stack(&event, cpu, TraceWhat::Stack { category, stack })
                });
                if !self.rules.is_wprof || !self.wprof(edge, &event, opened, group) {
                    group.slice(edge, event, opened);
                }
                group.out.extend(stack);
            }
            TrackEventKind::Complete(_) | TrackEventKind::Other => group.slice(Edge::Instant, event, None),
        }
    }

    /// Follows which slices of the track are open; returns the slice that this event begins or ends.
    fn edge(&mut self, edge: Edge, event: &TrackEvent, group: &Group<'_, '_>) -> Option<Open> {
        match edge {
            Edge::Instant => None,
            Edge::Begin => {
                let number = event.args.id(known::IRQ, group.tables.names).unwrap_or(UNKNOWN);
                let open = Open { category: event.category, name: event.name, cpu: group.cpu(event), number };
                if self.open.len() < MAX_TRACKS || self.open.contains_key(&event.track) {
                    let stack = self.open.entry(event.track).or_default();
                    if stack.len() >= MAX_OPEN {
                        // The oldest one will hardly end any more.
                        stack.remove(0);
                    }
                    stack.push(open);
                }
                Some(open)
            }
            Edge::End => {
                let stack = self.open.get_mut(&event.track);
                // Those of wprof do not nest; an end without a category ends the last one.
                let is_its = |open: &Open| event.category.is_none() || open.category == event.category;
                let at = stack.as_ref().and_then(|stack| stack.iter().rposition(is_its));
                let open = stack.zip(at).map(|(stack, at)| stack.remove(at));
                self.ends_without_begin += u64::from(open.is_none());
                open
            }
        }
    }

    /// The events of wprof that have a type of their own; false if this one has none.
    fn wprof(&mut self, edge: Edge, event: &TrackEvent, opened: Option<Open>, group: &mut Group<'_, '_>) -> bool {
        let cpu =
            Some(group.cpu(event)).filter(|cpu| *cpu != UNKNOWN).or(opened.map(|open| open.cpu)).unwrap_or(UNKNOWN);
        let name = if event.name.is_none() { opened.map_or(Name::NONE, |open| open.name) } else { event.name };
        let category =
            if event.category.is_none() { opened.map_or(Name::NONE, |open| open.category) } else { event.category };
        let tid = group.tid(event.track);
        let args = &event.args;
        match (category, edge) {
            (known::ONCPU, Edge::Begin) => {
                self.switch_to(event, cpu, group);
                group.waited(event, cpu, &mut self.said);
            }
            (known::ONCPU, Edge::End) => self.said.pmu += group.pmu(event, cpu),
            (known::WAKER, Edge::Instant) if !self.rules.has_switch => self.woken(event, cpu, false, group),
            (known::WAKER_NEW, Edge::Instant) if !self.rules.has_switch => self.woken(event, cpu, true, group),
            // The other half of what WAKER says.
            (known::WAKEE | known::WAKEE_NEW, Edge::Instant) if !self.rules.has_switch => {}
            (known::HARDIRQ, Edge::Begin | Edge::End) => {
                let irq = args.id(known::IRQ, group.tables.names).or(opened.map(|open| open.number)).unwrap_or(UNKNOWN);
                let is_begin = edge == Edge::Begin;
                let what = if is_begin { SchedWhat::IrqEntry { irq } } else { SchedWhat::IrqExit { irq } };
                group.sched(cpu, tid, what);
            }
            (known::SOFTIRQ, Edge::Begin | Edge::End) => {
                let vec = group.after_colon(name);
                let vec = SOFTIRQS.iter().position(|name| *name == vec).map_or(UNKNOWN, |vec| vec as u32);
                let is_begin = edge == Edge::Begin;
                let what = if is_begin { SchedWhat::SoftirqEntry { vec } } else { SchedWhat::SoftirqExit { vec } };
                group.sched(cpu, tid, what);
            }
            (known::IPI, Edge::Begin | Edge::End) => {
                let kind = group.kind(name);
                let delay = args.us(known::IPI_DELAY_US);
                let is_begin = edge == Edge::Begin;
                let what =
                    if is_begin { TraceWhat::IpiEntry { kind, delay } } else { TraceWhat::IpiExit { kind, delay } };
                group.trace(event, cpu, what);
            }
            (known::IPI_SEND, Edge::Instant) => {
                let target = args.id(known::TARGET_CPU, group.tables.names);
                let kind = group.kind(name);
                group.trace(event, cpu, TraceWhat::IpiSend { target, kind });
            }
            (known::WQ, Edge::Begin) => {
                let name = group.kind(name);
                group.trace(event, cpu, TraceWhat::WorkBegin { work: u64::from(event.track), name });
            }
            (known::WQ, Edge::End) => group.trace(event, cpu, TraceWhat::WorkEnd { work: u64::from(event.track) }),
            (known::SCX_DSQ, Edge::Begin | Edge::End) => {
                let dsq = args.uint(known::DSQ_ID, group.tables.names).or_else(|| group.dsq_of(name));
                let layer = args.uint(known::LAYER_ID, group.tables.names);
                self.said.layers += u64::from(layer.is_some());
                group.trace(event, cpu, TraceWhat::Dsq { is_begin: edge == Edge::Begin, dsq, layer, name });
            }
            (known::FORKING, Edge::Instant) => {
                let comm = args.text(known::FORKED_INTO).map_or(&[][..], |name| group.tables.names.text(name));
                let named = self.named(group.tables.threads, &Comm::new(comm));
                return group.fork(event, cpu, named);
            }
            (known::FORKED, Edge::Instant) => {}
            (known::EXEC, Edge::Instant) => group.sched(cpu, tid, SchedWhat::Exec { tid, old_tid: tid }),
            (known::EXIT, Edge::Instant) => {
                let task = group.task(event);
                group.sched(cpu, tid, SchedWhat::Exit { task });
            }
            (known::FREE, Edge::Instant) => group.trace(event, cpu, TraceWhat::Free { tid }),
            (known::RENAME, Edge::Instant) => {
                let comm = args.text(known::NEW_NAME).map_or(&[][..], |name| group.tables.names.text(name));
                let comm = Comm::new(comm);
                group.trace(event, cpu, TraceWhat::Rename { tid, comm });
            }
            _ => return false,
        }
        true
    }

    /// The thread of the track gets the CPU.
    fn switch_to(&mut self, event: &TrackEvent, cpu: u32, group: &mut Group<'_, '_>) {
        if self.rules.has_switch {
            return;
        }
        let tid = group.tid(event.track);
        let next = SchedTask { tid, prio: 0, comm: Comm::new(group.tables.names.text(event.name)) };
        let left = group.left.iter().position(|(of, ..)| *of == cpu).map(|at| group.left.swap_remove(at));
        // At the beginning of a session there is no thread before.
        let (prev, state) = left.map_or((nobody(), TaskState::Runnable), |(_, prev, state)| (prev, state));
        self.set(cpu, Some(next));
        group.sched(cpu, prev.tid, SchedWhat::Switch { prev, state, next });
    }

    /// A thread wakes another one, which its own event of the same flow names.
    fn woken(&mut self, event: &TrackEvent, cpu: u32, is_new: bool, group: &mut Group<'_, '_>) {
        let names = &*group.tables.names;
        let comm = event.args.text(known::WAKEE_NAME).map_or(&[][..], |name| names.text(name));
        let comm = Comm::new(comm);
        let tracks = group.tables.tracks;
        let threads = group.tables.threads;
        let of = |track| tracks.get(track).map_or(UNKNOWN, |track| track.tid);
        let category = if is_new { known::WAKEE_NEW } else { known::WAKEE };
        let pairs = |(other, is_used): &(TrackEvent, bool)| {
            !is_used && other.category == category && other.flow == event.flow && event.flow.is_some()
        };
        // Flows are times of wakeups, which two CPUs may share.
        let is_named = |(other, _): &(TrackEvent, bool)| {
            threads.get(of(other.track)).is_none_or(|thread| comm.is_empty() || thread.comm == comm)
        };
        let at = group.woken.iter().position(|half| pairs(half) && is_named(half));
        let at = at.or_else(|| group.woken.iter().position(pairs));
        let (mut wakee, mut target_cpu) = (None, cpu);
        if let Some((other, is_used)) = at.and_then(|at| group.woken.get_mut(at)) {
            *is_used = true;
            wakee = Some(of(other.track));
            target_cpu = other.args.id(known::CPU, names).unwrap_or(cpu);
        }
        let by_id = || event.args.id(known::WAKEE_TID, names).or_else(|| event.args.id(known::WAKEE_PID, names));
        let wakee = wakee.or_else(by_id).or_else(|| self.named(threads, &comm)).filter(|tid| *tid != UNKNOWN);
        let Some(wakee) = wakee else {
            self.unnamed_wakeups += 1;
            let waker = event.clone();
            group.slice(Edge::Instant, waker, None);
            return;
        };
        let waker = group.tid(event.track);
        let task = SchedTask { tid: wakee, prio: 0, comm };
        let what = if is_new {
            SchedWhat::WakeupNew { task, target_cpu }
        } else {
            SchedWhat::Waking { task, target_cpu, by: WakenBy::Thread }
        };
        group.sched(cpu, waker, what);
    }
}

impl Group<'_, '_> {
    fn sched(&mut self, cpu: u32, tid: u32, what: SchedWhat) {
        let pid = pid_at(self.tables.threads, tid, self.time);
        self.out.push(Event::Sched(SchedEvent { time: self.time, cpu, pid, tid, cgroup: 0, what }));
    }

    fn trace(&mut self, event: &TrackEvent, cpu: u32, what: TraceWhat) {
        let track = self.tables.tracks.get(event.track);
        let (pid, tid) = track.map_or((UNKNOWN, UNKNOWN), |track| (track.pid, track.tid));
        self.out.push(Event::Trace(TraceEvent { time: self.time, cpu, pid, tid, what }));
    }

    /// The call stack of an event, which comes after it.
    fn stack(&self, event: &TrackEvent, opened_on: u32, what: TraceWhat) -> Event {
        let track = self.tables.tracks.get(event.track);
        let (pid, tid) = track.map_or((UNKNOWN, UNKNOWN), |track| (track.pid, track.tid));
        let cpu = Some(self.cpu(event)).filter(|cpu| *cpu != UNKNOWN).unwrap_or(opened_on);
        Event::Trace(TraceEvent { time: self.time, cpu, pid, tid, what })
    }

    fn slice(&mut self, edge: Edge, event: TrackEvent, opened: Option<Open>) {
        let mut cpu = self.cpu(&event);
        if let (UNKNOWN, Some(open)) = (cpu, opened) {
            cpu = open.cpu;
        }
        let track = self.tables.tracks.get(event.track);
        let (pid, tid) = track.map_or((UNKNOWN, UNKNOWN), |track| (track.pid, track.tid));
        let TrackEvent { track, category, name, flow, args, .. } = event;
        let what = TraceWhat::Slice { edge, track, category, name, flow, args };
        self.out.push(Event::Trace(TraceEvent { time: self.time, cpu, pid, tid, what }));
    }

    fn tid(&self, track: TrackId) -> u32 {
        self.tables.tracks.get(track).map_or(UNKNOWN, |track| track.tid)
    }

    fn cpu(&self, event: &TrackEvent) -> u32 {
        let said = event.args.id(known::CPU, self.tables.names);
        said.or_else(|| self.tables.tracks.get(event.track)?.cpu).unwrap_or(UNKNOWN)
    }

    /// The thread of a track, with the name that the trace has last for it.
    fn task(&self, event: &TrackEvent) -> SchedTask {
        let tid = self.tid(event.track);
        let comm = self.tables.threads.get(tid).map_or_else(Comm::default, |thread| thread.comm);
        SchedTask { tid, prio: 0, comm }
    }

    /// Finds the events that say the other half of another one at this time.
    fn find_halves(&mut self, raws: &[Raw], derive: &Derive) {
        for raw in raws {
            let Raw::Track(event) = raw else { continue };
            match (event.category, event.kind) {
                (known::WAKEE | known::WAKEE_NEW, TrackEventKind::Slice(Edge::Instant))
                    if self.woken.len() < MAX_AT_ONCE =>
                {
                    self.woken.push(((**event).clone(), false));
                }
                (known::FORKED, TrackEventKind::Slice(Edge::Instant)) => self.forked.push(event.track),
                (known::ONCPU, TrackEventKind::Slice(Edge::End))
                    if !derive.rules.has_switch && self.left.len() < MAX_AT_ONCE =>
                {
                    let opened = derive
                        .open
                        .get(&event.track)
                        .and_then(|stack| stack.iter().rev().find(|open| open.category == known::ONCPU));
                    let cpu = self.cpu(event);
                    let cpu = if cpu == UNKNOWN { opened.map_or(UNKNOWN, |open| open.cpu) } else { cpu };
                    let tid = self.tid(event.track);
                    let comm = opened.map_or(&[][..], |open| self.tables.names.text(open.name));
                    let reason = event.args.text(known::OFFCPU_REASON).map_or(&[][..], |it| self.tables.names.text(it));
                    let prev = SchedTask { tid, prio: 0, comm: Comm::new(comm) };
                    self.left.push((cpu, prev, state_of(reason)));
                }
                _ => {}
            }
        }
    }

    /// The part of a name after its first colon: `rcu` of `SOFTIRQ:rcu`.
    fn after_colon(&self, name: Name) -> &[u8] {
        let text = self.tables.names.text(name);
        text.splitn(2, |&byte| byte == b':').nth(1).unwrap_or(text)
    }

    fn kind(&mut self, name: Name) -> Name {
        let kind = self.after_colon(name).to_vec();
        self.tables.names.add(&kind)
    }

    /// The number at the end of `DSQ:KIND_0xNUMBER`.
    fn dsq_of(&self, name: Name) -> Option<u64> {
        let text = std::str::from_utf8(self.tables.names.text(name)).ok()?;
        u64::from_str_radix(text.rsplit_once("_0x")?.1, 16).ok()
    }

    fn waited(&mut self, event: &TrackEvent, cpu: u32, said: &mut Said) {
        let names = &*self.tables.names;
        let Args(all) = &event.args;
        if all.is_empty() {
            return;
        }
        let args = &event.args;
        let delay = args.us(known::WAKING_DELAY_US);
        let reason = args.text(known::WAKING_REASON).unwrap_or(Name::NONE);
        let compound = args.us(known::COMPOUND_DELAY_US);
        let chain = args.uint(known::COMPOUND_CHAIN_LEN, names);
        let dsq = args.uint(known::DSQ_ID, names);
        let layer = args.uint(known::LAYER_ID, names);
        said.compound += u64::from(compound.is_some());
        said.layers += u64::from(layer.is_some());
        if delay.is_some() || compound.is_some() || dsq.is_some() || layer.is_some() {
            self.trace(event, cpu, TraceWhat::Waited { delay, reason, compound, chain, dsq, layer });
        }
    }

    /// The counts of hardware counters since the thread got its CPU; returns how many there are.
    fn pmu(&mut self, event: &TrackEvent, cpu: u32) -> u64 {
        let mut count = 0;
        for (counter, arg) in event.args.iter() {
            if !self.tables.names.text(counter).starts_with(b"pmu:") {
                continue;
            }
            let delta = match arg {
                super::event::Arg::Double(delta) => delta,
                super::event::Arg::Int(delta) => delta as f64,
                super::event::Arg::Uint(delta) => delta as f64,
                super::event::Arg::Text(_) => continue,
            };
            count += 1;
            self.trace(event, cpu, TraceWhat::Pmu { counter, delta });
        }
        count
    }

    /// The thread of the track makes another one.
    fn fork(&mut self, event: &TrackEvent, cpu: u32, named: Option<u32>) -> bool {
        let names = &*self.tables.names;
        let comm = event.args.text(known::FORKED_INTO).map_or(&[][..], |name| names.text(name));
        let comm = Comm::new(comm);
        let forked = self.forked.first().map(|track| self.tid(*track)).filter(|_| self.forked.len() == 1);
        let child = event.args.id(known::FORKED_INTO_TID, names).or(forked).or(named);
        let Some(child) = child.filter(|child| *child != UNKNOWN) else { return false };
        let parent = self.tid(event.track);
        self.sched(cpu, parent, SchedWhat::Fork { parent, child, comm });
        true
    }
}

/// The state that wprof names as the reason why a thread left its CPU.
fn state_of(reason: &[u8]) -> TaskState {
    match reason {
        b"preempted" => TaskState::Preempted,
        b"runnable" | b"running" => TaskState::Runnable,
        b"uninterruptible_sleep" | b"killable_sleep" => TaskState::Blocked,
        b"exit_dead" | b"exit_zombie" | b"dead" => TaskState::Dead,
        _ => TaskState::Sleeping,
    }
}
