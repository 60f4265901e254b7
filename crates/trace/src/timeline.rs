//! What a thread or a CPU did over time: one span after the other. Pure.

use serde::{Serialize, Serializer};

use super::Event;
use scxprof_base::sample::Comm;
use scxprof_sched::{Fact, Facts, Slot, Threads, Tracker, Why};

/// Whose timeline it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A thread, by its id.
    Thread(u32),
    /// A CPU.
    Cpu(u32),
}

/// What a thread or a CPU did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// A thread was on a CPU.
    Running,
    /// The thread was runnable without a CPU.
    Waiting,
    /// It slept.
    Sleeping,
    /// It slept uninterruptibly (D).
    Blocked,
    /// The CPU was idle.
    Idle,
    /// Events were lost.
    Unknown,
}

impl State {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Sleeping => "sleeping",
            Self::Blocked => "blocked",
            Self::Idle => "idle",
            Self::Unknown => "unknown",
        }
    }
}

/// A thread by its id and name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Named {
    /// Thread id.
    pub tid: u32,
    /// Its name at the time.
    #[serde(serialize_with = "text")]
    pub comm: Comm,
}

fn text<S: Serializer>(comm: &Comm, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(comm)
}

/// A time in which something held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Span {
    /// When it began, ns of the trace's clock.
    pub begin_ns: u64,
    /// How long it lasted, ns.
    pub ns: u64,
    /// What held.
    pub state: State,
    /// The CPU that the thread ran on; of a wait, the one that it got.
    pub cpu: Option<u32>,
    /// The thread; of a CPU that was idle, none.
    pub thread: Option<Named>,
    /// Of a wait: the thread that woke it, or took its CPU; none for an interrupt, or if it is not known.
    pub by: Option<Named>,
    /// Of a wait: `woken`, `new` or `preempted`.
    pub why: Option<&'static str>,
    /// Of a run: the state in which the thread left its CPU, as the kernel writes it.
    pub end: Option<&'static str>,
    /// Of a run: ns that the thread had waited before.
    pub waited_ns: Option<u64>,
    /// It had not ended when the trace did.
    pub is_open: bool,
}

impl Span {
    fn new(begin: u64, until: u64, state: State) -> Self {
        let (thread, by, why, end) = (None, None, None, None);
        let ns = until.saturating_sub(begin);
        Self { begin_ns: begin, ns, state, cpu: None, thread, by, why, end, waited_ns: None, is_open: false }
    }
}

/// What is known at a time.
#[derive(Debug)]
struct Follower {
    target: Target,
    /// The run that a switch ends: its state comes with the switch.
    ended: Option<Span>,
    /// The thread that got the CPU of the target's thread while that still wanted to run.
    preempted_by: Option<Named>,
    /// Since when, and who is on the CPU, or where the thread is.
    runs: Option<(u64, u32, Option<Slot>)>,
    waited: Option<u64>,
    now: u64,
    spans: Vec<Span>,
}

/// Follows the events of a trace.
#[derive(Debug)]
pub struct Timeline {
    tracker: Tracker,
    follower: Follower,
}

impl Timeline {
    /// Before the first event.
    #[must_use]
    pub fn new(target: Target) -> Self {
        let follower =
            Follower { target, ended: None, preempted_by: None, runs: None, waited: None, now: 0, spans: Vec::new() };
        Self { tracker: Tracker::default(), follower }
    }

    /// Before `time` not all CPUs were observed.
    pub fn unobserved_before(&mut self, time: u64) {
        self.tracker.unobserved_before(time);
    }

    /// Takes the next event; returns the spans that it ends.
    pub fn take(&mut self, event: &Event) -> std::vec::Drain<'_, Span> {
        if let Event::Sched(event) = event {
            self.follower.now = event.time;
            self.tracker.take(event, &mut self.follower);
        }
        self.follower.spans.drain(..)
    }

    /// What holds at the end of the trace.
    #[must_use]
    pub fn finish(self) -> Option<Span> {
        let Self { tracker, follower } = self;
        let threads = tracker.threads();
        let now = follower.now;
        let open = |span: Span| Some(Span { is_open: true, ..span });
        if let Some((since, cpu, slot)) = follower.runs {
            let state =
                if slot.is_none() && matches!(follower.target, Target::Cpu(_)) { State::Idle } else { State::Running };
            let thread = slot.and_then(|slot| named(threads, slot));
            let waited_ns = follower.waited;
            return open(Span { cpu: Some(cpu), thread, waited_ns, ..Span::new(since, now, state) });
        }
        let Target::Thread(tid) = follower.target else { return None };
        let slot = threads.find(tid)?;
        let known = threads.get(slot)?;
        let thread = named(threads, slot);
        if let Some((since, why)) = known.waits() {
            let (why, by) = cause(threads, why, follower.preempted_by);
            return open(Span { thread, why: Some(why), by, ..Span::new(since, now, State::Waiting) });
        }
        let (since, is_blocked) = known.sleeps()?;
        let state = if is_blocked { State::Blocked } else { State::Sleeping };
        open(Span { thread, ..Span::new(since, now, state) })
    }
}

fn named(threads: &Threads, slot: Slot) -> Option<Named> {
    threads.get(slot).map(|thread| Named { tid: thread.tid, comm: thread.comm })
}

/// Why a thread waited, and who caused it.
fn cause(threads: &Threads, why: Why, preempted_by: Option<Named>) -> (&'static str, Option<Named>) {
    match why {
        Why::Woken(by) => ("woken", by.and_then(|slot| named(threads, slot))),
        Why::New => ("new", None),
        Why::Preempted => ("preempted", preempted_by),
    }
}

impl Follower {
    fn is_of(&self, threads: &Threads, slot: Option<Slot>, cpu: u32) -> bool {
        match self.target {
            Target::Cpu(of) => of == cpu,
            Target::Thread(tid) => slot.and_then(|slot| threads.get(slot)).is_some_and(|thread| thread.tid == tid),
        }
    }
}

impl Facts for Follower {
    fn fact(&mut self, threads: &Threads, fact: &Fact) {
        match *fact {
            Fact::Ran { cpu, thread, is_thread, from, until } if self.is_of(threads, thread, cpu) => {
                let state = if is_thread { State::Running } else { State::Idle };
                let thread = thread.and_then(|slot| named(threads, slot));
                self.ended = Some(Span { cpu: Some(cpu), thread, ..Span::new(from, until, state) });
            }
            Fact::Switched { cpu, prev, state, next, is_thread, .. } => {
                if let Some(mut span) = self.ended.take() {
                    span.end = is_thread.then(|| state.letters());
                    span.waited_ns = self.waited.take();
                    self.spans.push(span);
                }
                if self.is_of(threads, prev, cpu) {
                    self.runs = None;
                }
                if self.is_of(threads, next, cpu) {
                    self.runs = Some((self.now, cpu, next));
                    self.waited = None;
                }
            }
            Fact::Preempted { thread, by } if self.is_of(threads, Some(thread), u32::MAX) => {
                self.preempted_by = by.and_then(|slot| named(threads, slot));
            }
            Fact::Waited { thread, cpu, from, until, why } if self.is_of(threads, Some(thread), cpu) => {
                self.waited = Some(until - from);
                // On a timeline of a CPU only what it did has a line.
                if matches!(self.target, Target::Thread(_)) {
                    let (why, by) = cause(threads, why, self.preempted_by.take());
                    let span = Span::new(from, until, State::Waiting);
                    self.spans.push(Span {
                        cpu: Some(cpu),
                        thread: named(threads, thread),
                        why: Some(why),
                        by,
                        ..span
                    });
                }
            }
            Fact::Slept { thread, from, until, is_blocked } if self.is_of(threads, Some(thread), u32::MAX) => {
                let state = if is_blocked { State::Blocked } else { State::Sleeping };
                self.spans.push(Span { thread: named(threads, thread), ..Span::new(from, until, state) });
            }
            Fact::Lost { cpu, from, until } if self.target == Target::Cpu(cpu) => {
                (self.runs, self.ended) = (None, None);
                self.spans.push(Span { cpu: Some(cpu), ..Span::new(from, until, State::Unknown) });
            }
            Fact::Touched { thread } if self.is_of(threads, Some(thread), u32::MAX) => {
                (self.runs, self.ended) = (None, None);
                self.spans
                    .push(Span { thread: named(threads, thread), ..Span::new(self.now, self.now, State::Unknown) });
            }
            _ => {}
        }
    }
}
