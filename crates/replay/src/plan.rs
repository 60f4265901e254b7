//! From scheduling events to what each thread did, step by step: pure.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use scxprof_base::sample::sched::{SchedEvent, SchedWhat, TaskState, WakenBy};
use scxprof_base::sample::Comm;
use scxprof_sched::{Durations, Fact, Facts, Slot, Threads, Tracker, Why, MAX_CPUS};

/// Threads of a plan, also those that have ended; events of later ones are counted.
pub const MAX_THREADS: usize = 1 << 15;
/// Steps of a plan, of 24 bytes each.
pub const MAX_STEPS: usize = 1 << 22;

/// A thread that is woken sooner than this, in ns, before it leaves its CPU is woken from that sleep.
const EARLY: u64 = 100_000;

/// The number of a thread in [`Plan::threads`].
pub type ThreadNumber = u32;

/// One thing that a thread did. Times are CLOCK_MONOTONIC of the recorded host, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It was on a CPU for this number of ns.
    Run(u64),
    /// It woke a thread.
    Wake {
        /// The thread.
        thread: ThreadNumber,
        /// The thread was about to sleep, and had not left its CPU.
        is_early: bool,
    },
    /// It slept.
    Sleep {
        /// When it was woken.
        until: u64,
        /// us that it slept until then.
        asleep: u32,
        /// The thread that woke it; `None` for an interrupt, and if it is not known.
        waker: Option<ThreadNumber>,
    },
    /// It made a thread or process.
    Fork(ThreadNumber),
    /// It has another name from now on.
    Name(Comm),
    /// It ended.
    Exit,
}

/// The recorded facts about a thread.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    /// ns on CPUs.
    pub run: u64,
    /// Times that it left its CPU to sleep.
    pub sleeps: u64,
    /// Times that another thread took its CPU.
    pub preemptions: u64,
    /// Sleeps that were ended by a wakeup of another thread.
    pub woken: u64,
    /// ns that it was runnable without a CPU.
    pub wait: u64,
    /// From a wakeup to the CPU.
    pub latency: Durations,
    /// Times that it was moved to another CPU.
    pub migrations: u64,
}

/// A thread of the recording.
#[derive(Debug, Clone, Default)]
pub struct Planned {
    /// Thread id.
    pub tid: u32,
    /// Process id; 0 if unknown.
    pub pid: u32,
    /// Its first name.
    pub first_comm: Comm,
    /// Its last name.
    pub comm: Comm,
    /// Id of its cgroup; 0 if unknown.
    pub cgroup: u64,
    /// Its priority, as in [`SchedTask`](scxprof_base::sample::sched::SchedTask).
    pub prio: i32,
    /// The thread that made it, and when; `None` if it existed before.
    pub made: Option<(ThreadNumber, u64)>,
    /// Its recorded steps.
    pub steps: Vec<Step>,
    /// The recorded values to compare with the replay.
    pub recorded: Recorded,
    state: RecordedState,
    /// ns that it was charged with since its last switch.
    charged: u64,
    /// A wakeup while it ran: it was about to sleep, or does not.
    early: Option<Early>,
}

/// A wakeup of a running thread. The kernel wakes a thread that has said that it will sleep, before it has left its CPU.
#[derive(Debug, Clone, Copy)]
struct Early {
    at: u64,
    /// The waker, and the number of the step in which it is [`Step::Run`] of 0 until it is known to be a wakeup.
    by: Option<(ThreadNumber, usize)>,
    in_softirq: bool,
}

#[derive(Debug, Clone, Copy, Default)]
enum RecordedState {
    /// Before its first event: it was asleep, unless it was running.
    #[default]
    Begin,
    /// It has just been made.
    New,
    Running {
        since: u64,
        /// Its steps contain its time until here.
        until: u64,
    },
    Waiting,
    Asleep {
        since: u64,
        /// It waits for I/O, mostly ([`TaskState::Blocked`]).
        is_blocked: bool,
    },
    Ended,
}

/// The recorded steps of all threads.
#[derive(Debug, Default)]
pub struct Plan {
    /// The threads, in order of their first event.
    pub threads: Vec<Planned>,
    /// The time of the first event, and of the last.
    pub span: Option<(u64, u64)>,
    /// Sleeps whose end no event told.
    pub unknown_ends: u64,
    /// Events of threads beyond the bounds.
    pub beyond: u64,
    /// The paths of cgroups by their id.
    pub cgroups: BTreeMap<u64, Vec<u8>>,
    /// The names of processes.
    pub processes: FxHashMap<u32, Comm>,
    steps: usize,
    by_slot: FxHashMap<Slot, ThreadNumber>,
    /// The time of the event that is being taken.
    now: u64,
    /// The event that is being taken is a loss, after which nothing is known of threads.
    is_loss: bool,
    /// It is a wakeup by a softirq.
    in_softirq: bool,
    /// Threads are charged with CPU time by events of their own, which are exact.
    has_charges: bool,
}

impl Plan {
    /// The thread of the slot, a new one if it has none.
    fn number(&mut self, threads: &Threads, slot: Slot) -> Option<ThreadNumber> {
        if let Some(&number) = self.by_slot.get(&slot) {
            return Some(number);
        }
        let thread = threads.get(slot)?;
        if self.threads.len() >= MAX_THREADS {
            self.beyond += 1;
            return None;
        }
        let number = self.threads.len() as ThreadNumber;
        let (tid, pid, comm, cgroup) = (thread.tid, thread.pid, thread.comm, thread.cgroup);
        self.threads.push(Planned { tid, pid, first_comm: comm, comm, cgroup, prio: 120, ..Planned::default() });
        self.by_slot.insert(slot, number);
        Some(number)
    }

    fn get_mut(&mut self, number: ThreadNumber) -> Option<&mut Planned> {
        self.threads.get_mut(number as usize)
    }

    fn push(&mut self, number: ThreadNumber, step: Step) {
        if self.steps >= MAX_STEPS {
            self.beyond += 1;
            return;
        }
        let Some(thread) = self.threads.get_mut(number as usize) else { return };
        if let (Some(Step::Run(before)), Step::Run(ns)) = (thread.steps.last_mut(), step) {
            *before = before.saturating_add(ns);
            return;
        }
        thread.steps.push(step);
        self.steps += 1;
    }

    fn run(&mut self, number: ThreadNumber, ns: u64) {
        if ns > 0 {
            self.push(number, Step::Run(ns));
        }
        if let Some(thread) = self.get_mut(number) {
            thread.recorded.run = thread.recorded.run.saturating_add(ns);
        }
    }

    /// Adds what a running thread did until now; false if it does not run.
    fn cut(&mut self, number: ThreadNumber) -> bool {
        let now = self.now;
        let Some(Planned { state: RecordedState::Running { until, .. }, .. }) = self.get_mut(number) else {
            return false;
        };
        let ns = now.saturating_sub(std::mem::replace(until, now));
        self.run(number, ns);
        true
    }

    /// The same for a thread that an event shows to run: the switch to it may have been lost. False if it has ended.
    fn cut_running(&mut self, number: ThreadNumber) -> bool {
        let (now, first) = (self.now, self.span.map_or(self.now, |(first, _)| first));
        let Some(thread) = self.get_mut(number) else { return false };
        let (state, charged) = (thread.state, thread.charged);
        let began = now.saturating_sub(charged);
        match state {
            RecordedState::Running { .. } => {
                // It does something, so that it does not fall asleep.
                if let Some(thread) = self.get_mut(number) {
                    thread.early = None;
                }
                return self.cut(number);
            }
            RecordedState::Ended => return false,
            RecordedState::Asleep { since, .. } => self.ends_asleep(number, began.max(since)),
            RecordedState::Begin | RecordedState::New | RecordedState::Waiting => {}
        }
        let since = if matches!(state, RecordedState::Begin) && !self.has_charges { first } else { began };
        if let Some(thread) = self.get_mut(number) {
            thread.state = RecordedState::Running { since, until: since };
        }
        self.cut(number)
    }

    /// The thread leaves its CPU, or has left it at an unknown time.
    fn leaves(&mut self, number: ThreadNumber) {
        let (now, first) = (self.now, self.span.map_or(self.now, |(first, _)| first));
        let is_running = self.cut(number);
        let has_charges = self.has_charges;
        let Some(thread) = self.get_mut(number) else { return };
        let charged = std::mem::take(&mut thread.charged);
        match thread.state {
            RecordedState::Running { since, .. } if is_running && charged > 0 => {
                let seen = now.saturating_sub(since);
                if charged >= seen {
                    self.run(number, charged - seen);
                } else if let Some(Step::Run(last)) = thread.steps.last_mut() {
                    // Interrupts and other guests took the rest.
                    let less = (seen - charged).min(last.saturating_sub(1));
                    *last -= less;
                    thread.recorded.run = thread.recorded.run.saturating_sub(less);
                }
            }
            RecordedState::Running { .. } => {}
            // Its CPU was its own before the first event.
            RecordedState::Begin if !has_charges => self.run(number, now.saturating_sub(first)),
            RecordedState::Begin => self.run(number, charged),
            // The switch to it was lost, and its wakeup too if it slept.
            state => {
                if let RecordedState::Asleep { .. } = state {
                    self.ends_asleep(number, now.saturating_sub(charged));
                }
                self.run(number, charged);
            }
        }
    }

    /// A sleep ended without a wakeup: it was woken as it fell asleep, or the wakeup was lost and it ended at about `until`.
    fn ends_asleep(&mut self, number: ThreadNumber, until: u64) {
        let Some(thread) = self.get_mut(number) else { return };
        let RecordedState::Asleep { since, is_blocked } = thread.state else { return };
        let early = thread.early.take().filter(|early| early.at.saturating_add(EARLY) >= since);
        let Some(Early { at, by, in_softirq }) = early else {
            self.unknown_ends += 1;
            return self.sleeps(number, since, until, None);
        };
        let by = by.filter(|_| !(in_softirq && is_blocked));
        if let Some((waker, step)) = by {
            if let Some(step) = self.get_mut(waker).and_then(|waker| waker.steps.get_mut(step)) {
                *step = Step::Wake { thread: number, is_early: true };
            }
            if let Some(thread) = self.get_mut(number) {
                thread.recorded.woken += 1;
            }
        }
        self.sleeps(number, since, at.max(since), by.map(|(waker, _)| waker));
    }

    /// Adds a step that may become a wakeup, and returns its number.
    fn mark(&mut self, number: ThreadNumber) -> Option<usize> {
        if self.steps >= MAX_STEPS {
            return None;
        }
        let thread = self.threads.get_mut(number as usize)?;
        thread.steps.extend([Step::Run(0), Step::Run(0)]);
        self.steps += 2;
        Some(thread.steps.len() - 2)
    }

    fn sleeps(&mut self, number: ThreadNumber, since: u64, until: u64, waker: Option<ThreadNumber>) {
        let asleep = u32::try_from(until.saturating_sub(since) / 1000).unwrap_or(u32::MAX);
        self.push(number, Step::Sleep { until, asleep, waker });
    }

    /// A switch.
    fn switched(&mut self, threads: &Threads, prev: Option<Slot>, state: TaskState, next: Option<Slot>) {
        let now = self.now;
        if let Some(number) = prev.and_then(|slot| self.number(threads, slot)) {
            self.leaves(number);
            if let Some(known) = prev.and_then(|slot| threads.get(slot)) {
                self.named(number, known.comm);
                if let Some(thread) = self.get_mut(number) {
                    (thread.pid, thread.cgroup) = (known.pid, known.cgroup);
                }
            }
            let Some(thread) = self.get_mut(number) else { return };
            thread.state = match state {
                TaskState::Runnable | TaskState::Preempted => {
                    thread.recorded.preemptions += 1;
                    RecordedState::Waiting
                }
                TaskState::Sleeping | TaskState::Blocked => {
                    thread.recorded.sleeps += 1;
                    RecordedState::Asleep { since: now, is_blocked: state == TaskState::Blocked }
                }
                TaskState::Dead => RecordedState::Ended,
            };
            if state == TaskState::Dead {
                self.push(number, Step::Exit);
            }
        }
        let Some(slot) = next else { return };
        let Some(number) = self.number(threads, slot) else { return };
        let first = self.span.map_or(now, |(first, _)| first);
        let before = self.get_mut(number).map(|thread| thread.state);
        match before {
            Some(RecordedState::Asleep { .. }) => self.ends_asleep(number, now),
            Some(RecordedState::Begin) => self.sleeps(number, first, now, None),
            _ => {}
        }
        let named = threads.get(slot).map(|thread| thread.comm);
        let Some(thread) = self.get_mut(number) else { return };
        (thread.state, thread.charged, thread.early) = (RecordedState::Running { since: now, until: now }, 0, None);
        if let Some(comm) = named {
            self.named(number, comm);
        }
    }

    fn named(&mut self, number: ThreadNumber, comm: Comm) {
        let Some(thread) = self.get_mut(number) else { return };
        if thread.comm == comm {
            return;
        }
        thread.comm = comm;
        let has_steps = !thread.steps.is_empty();
        if has_steps {
            self.push(number, Step::Name(comm));
        } else if let Some(thread) = self.get_mut(number) {
            thread.first_comm = comm;
        }
    }

    fn woken(&mut self, threads: &Threads, slot: Slot, waker: Option<Slot>) {
        let (now, in_softirq) = (self.now, self.in_softirq);
        let first = self.span.map_or(now, |(first, _)| first);
        let waker = waker.and_then(|slot| self.number(threads, slot));
        let Some(number) = self.number(threads, slot) else { return };
        let Some(thread) = self.get_mut(number) else { return };
        let (since, is_blocked) = match thread.state {
            RecordedState::Asleep { since, is_blocked } => (since, is_blocked),
            RecordedState::Begin => (first, false),
            RecordedState::Running { .. } => {
                let waker = waker.filter(|&waker| waker != number && self.cut_running(waker));
                let by = waker.and_then(|waker| Some((waker, self.mark(waker)?)));
                if let Some(thread) = self.get_mut(number) {
                    thread.early = Some(Early { at: now, by, in_softirq });
                }
                return;
            }
            // It is new and begins by itself, or was woken before.
            _ => return,
        };
        (thread.state, thread.early) = (RecordedState::Waiting, None);
        // I/O that has come to its end interrupts any thread. A message over loopback is delivered in a softirq too, by its sender;
        // who waits for one sleeps otherwise.
        let waker = waker.filter(|&waker| waker != number && !(in_softirq && is_blocked) && self.cut_running(waker));
        if let Some(waker) = waker {
            self.push(waker, Step::Wake { thread: number, is_early: false });
        }
        if let (Some(_), Some(thread)) = (waker, self.get_mut(number)) {
            thread.recorded.woken += 1;
        }
        self.sleeps(number, since, now, waker);
    }

    /// `parent` has made `child`.
    fn forked(&mut self, threads: &Threads, parent: Option<Slot>, child: u32) {
        let now = self.now;
        let parent = parent.and_then(|slot| self.number(threads, slot));
        let Some(child) = threads.find(child).and_then(|slot| self.number(threads, slot)) else { return };
        let Some(thread) = self.get_mut(child) else { return };
        if !matches!(thread.state, RecordedState::Begin) {
            return;
        }
        let Some(parent) = parent.filter(|&parent| parent != child) else { return };
        thread.state = RecordedState::New;
        thread.made = Some((parent, now));
        if self.cut_running(parent) {
            self.push(parent, Step::Fork(child));
        } else if let Some(thread) = self.get_mut(child) {
            (thread.state, thread.made) = (RecordedState::Begin, None);
        }
    }

    /// Forgets the state of a thread after a loss: a running one has stopped at an unknown time.
    fn touched(&mut self, number: ThreadNumber) {
        let (now, is_loss) = (self.now, self.is_loss);
        let Some(thread) = self.get_mut(number) else { return };
        match thread.state {
            RecordedState::Running { until, .. } => {
                let charged = std::mem::take(&mut thread.charged);
                let since = until.saturating_add(charged).min(now);
                thread.state = RecordedState::Asleep { since, is_blocked: false };
                thread.recorded.sleeps += 1;
                self.run(number, charged);
            }
            // It may have run since.
            RecordedState::Waiting if is_loss => {
                thread.state = RecordedState::Asleep { since: now, is_blocked: false };
                thread.recorded.sleeps += 1;
            }
            _ => {}
        }
    }
}

impl Facts for Plan {
    fn fact(&mut self, threads: &Threads, fact: &Fact) {
        match *fact {
            Fact::Switched { prev, state, next, .. } => self.switched(threads, prev, state, next),
            Fact::Woken { thread, waker, .. } => self.woken(threads, thread, waker),
            Fact::Charged { thread, ns } => {
                self.has_charges = true;
                let Some(number) = self.number(threads, thread) else { return };
                if let Some(thread) = self.get_mut(number) {
                    thread.charged = thread.charged.saturating_add(ns);
                }
            }
            Fact::Waited { thread, from, until, why, .. } => {
                let Some(number) = self.number(threads, thread) else { return };
                if let Some(thread) = self.get_mut(number) {
                    let ns = until.saturating_sub(from);
                    thread.recorded.wait = thread.recorded.wait.saturating_add(ns);
                    if matches!(why, Why::Woken(_)) {
                        thread.recorded.latency.add(ns);
                    }
                }
            }
            Fact::Migrated { thread, .. } => {
                let Some(number) = self.number(threads, thread) else { return };
                if let Some(thread) = self.get_mut(number) {
                    thread.recorded.migrations += 1;
                }
            }
            Fact::Lost { .. } => self.is_loss = true,
            Fact::Touched { thread } => {
                if let Some(&number) = self.by_slot.get(&thread) {
                    self.touched(number);
                }
            }
            Fact::Ended { thread } => {
                let Some(number) = self.by_slot.remove(&thread) else { return };
                let Some(thread) = self.get_mut(number) else { return };
                if !matches!(thread.state, RecordedState::Ended) {
                    thread.state = RecordedState::Ended;
                    self.push(number, Step::Exit);
                }
            }
            _ => {}
        }
    }
}

/// Makes a [`Plan`] of the events of a session.
#[derive(Debug, Default)]
pub struct Planner {
    tracker: Tracker,
    plan: Plan,
    /// ns after the first event from which on, and until which, events are used.
    window: (u64, Option<u64>),
    first: Option<u64>,
}

impl Planner {
    /// Of the events from `from` ns after the first one on, until `to` ns after it.
    #[must_use]
    pub fn new(from: u64, to: Option<u64>) -> Self {
        Self { window: (from, to), ..Self::default() }
    }

    /// The plan, when the session has ended.
    #[must_use]
    pub fn finish(self) -> Plan {
        let Self { mut plan, tracker, .. } = self;
        plan.span = tracker.span();
        plan.now = plan.span.map_or(0, |(_, last)| last);
        for number in 0..plan.threads.len() as ThreadNumber {
            match plan.get_mut(number).map(|thread| (thread.state, &mut thread.recorded.sleeps)) {
                Some((RecordedState::Running { .. }, _)) => plan.leaves(number),
                // That sleep lasts longer than the recording.
                Some((RecordedState::Asleep { .. }, sleeps)) => *sleeps = sleeps.saturating_sub(1),
                _ => {}
            }
        }
        plan.by_slot = FxHashMap::default();
        plan
    }

    /// After the last event: the names of processes, and `path_of`, which gives the path of a cgroup by its id.
    pub fn names(&mut self, processes: &[(u32, Comm)], path_of: &mut dyn FnMut(u64) -> Option<Vec<u8>>) {
        self.plan.processes.extend(processes.iter().copied());
        let ids: FxHashSet<u64> = self.plan.threads.iter().map(|thread| thread.cgroup).filter(|&id| id != 0).collect();
        self.plan.cgroups.extend(ids.into_iter().filter_map(|id| Some((id, path_of(id)?))));
    }

    /// Takes the next event, in order of time.
    pub fn event(&mut self, event: &SchedEvent) {
        // The tracker follows no CPU beyond.
        if event.cpu >= MAX_CPUS {
            return;
        }
        let first = *self.first.get_or_insert(event.time);
        let at = event.time.saturating_sub(first);
        if at < self.window.0 || self.window.1.is_some_and(|to| at >= to) {
            return;
        }
        (self.plan.now, self.plan.is_loss) = (event.time, false);
        self.plan.in_softirq = matches!(event.what, SchedWhat::Waking { by: WakenBy::Softirq, .. });
        if self.plan.span.is_none() {
            self.plan.span = Some((event.time, event.time));
        }
        self.tracker.take(event, &mut self.plan);
        let threads = self.tracker.threads();
        match event.what {
            SchedWhat::Fork { child, .. } => {
                let parent = threads.find(event.tid);
                self.plan.forked(threads, parent, child);
            }
            SchedWhat::Switch { next, .. } => {
                let slot = threads.find(next.tid);
                let number = slot.and_then(|slot| self.plan.by_slot.get(&slot).copied());
                if let Some(thread) = number.and_then(|number| self.plan.get_mut(number)) {
                    thread.prio = next.prio;
                }
            }
            _ => {}
        }
    }
}
