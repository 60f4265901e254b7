//! The state of every thread and CPU, followed through the events.

use super::facts::{Fact, Facts, QueuedBy};
use super::threads::{Dsq, Home, Slot, Thread, ThreadState, Threads, Why};
use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat, TaskState, WakenBy};
use scxprof_base::sample::Comm;

/// CPU numbers at and above this are not followed.
pub const MAX_CPUS: u32 = 1 << 16;
/// Hints of threads at a time, also of threads that have not been seen.
const MAX_HINTS: usize = 1 << 18;

/// An interrupt that is being handled.
#[derive(Debug, Clone, Copy)]
struct Handling {
    is_soft: bool,
    since: u64,
    /// ns of interrupts that interrupted it.
    inner: u64,
}

/// A softirq can be interrupted by an interrupt, hardly by more.
const MAX_NESTED: usize = 4;

/// A CPU.
#[derive(Debug, Clone, Default)]
struct Cpu {
    /// The thread id that runs, since when, and its slot.
    running: Option<(u32, u64, Option<Slot>)>,
    handling: Vec<Handling>,
    /// The last event.
    last: u64,
}

/// Counts of events that could not be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gaps {
    /// Losses that were reported.
    pub losses: u64,
    /// Switches from another thread than the one that was switched to: events were lost without a report.
    pub mismatches: u64,
    /// Events that are older than an earlier one of their CPU.
    pub backwards: u64,
    /// Events of threads and CPUs beyond the bound.
    pub no_room: u64,
}

/// Follows threads and CPUs through events in order of time.
#[derive(Debug, Default)]
pub struct Tracker {
    threads: Threads,
    cpus: Vec<Cpu>,
    gaps: Gaps,
    switches: u64,
    /// One of them was from an idle task.
    from_idle: bool,
    /// The first and the last event.
    span: Option<(u64, u64)>,
    events: u64,
    /// Before this time not all CPUs were observed.
    unobserved_before: u64,
    unwoken: Unwoken,
}

/// Times that a thread got a CPU after it had left one to sleep, without a wakeup in between: nothing says when its sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unwoken {
    /// How many.
    pub count: u64,
    /// How long they were, ns: they are neither sleep nor wait.
    pub total_ns: u64,
}

impl Tracker {
    /// The threads.
    #[must_use]
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Sleeps without a wakeup.
    #[must_use]
    pub fn unwoken(&self) -> Unwoken {
        self.unwoken
    }

    /// Counts of events that could not be followed.
    #[must_use]
    pub fn gaps(&self) -> Gaps {
        self.gaps
    }

    /// True if switches are missing that were not lost: those from other threads, which a recording of some threads lacks. There are
    /// none from idle tasks then, and a switch from another thread than expected is no exception.
    #[must_use]
    pub fn is_of_some_threads(&self) -> bool {
        let is_usual = self.gaps.mismatches.saturating_mul(10) >= self.switches;
        self.gaps.losses == 0 && self.gaps.mismatches > 0 && is_usual && !self.from_idle
    }

    /// The time of the first and of the last event, CLOCK_MONOTONIC in ns; `None` if there was none.
    #[must_use]
    pub fn span(&self) -> Option<(u64, u64)> {
        self.span
    }

    /// Events so far, without losses and hints.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Threads that are runnable and have not run since, and the longest such wait in ns.
    #[must_use]
    pub fn still_waiting(&self) -> (u64, u64) {
        let Some((_, end)) = self.span else { return (0, 0) };
        self.threads.iter().fold((0, 0), |(count, longest), (_, thread)| match thread.state {
            ThreadState::Waiting { since, .. } => (count + 1, longest.max(end.saturating_sub(since))),
            _ => (count, longest),
        })
    }

    /// What CPUs run at this time, idle tasks left out: CPU, thread id, since when, and the thread, if there was room for it.
    pub fn running(&self) -> impl Iterator<Item = (u32, u32, u64, Option<Slot>)> + '_ {
        let running = (0..).zip(&self.cpus).filter_map(|(cpu, state)| Some((cpu, state.running?)));
        running
            .map(|(cpu, (tid, since, slot))| (cpu, tid, since, slot))
            .filter(|(_, tid, ..)| !matches!(*tid, 0 | SchedEvent::UNKNOWN))
    }

    /// What CPUs run at this time, as of [`Fact::Ran`]: CPU, thread, whether it is one, since when.
    pub(crate) fn on_cpus(&self) -> impl Iterator<Item = (u32, Option<Slot>, bool, u64)> + '_ {
        let running = (0..).zip(&self.cpus).filter_map(|(cpu, state)| Some((cpu, state.running?)));
        let known = running.filter(|(_, (tid, ..))| *tid != SchedEvent::UNKNOWN);
        known.map(|(cpu, (tid, since, slot))| (cpu, slot, tid != 0, since))
    }

    /// Before `time` events of some CPUs are missing: what a thread does after it leaves its CPU is not known, as it may run on
    /// another one. Its times on CPUs that were seen count.
    pub fn unobserved_before(&mut self, time: u64) {
        self.unobserved_before = time;
    }

    /// From now on, follows the task hints of threads.
    pub fn follow_hints(&mut self) {
        self.threads.hints.get_or_insert_default();
    }

    /// Takes the next event.
    pub fn take(&mut self, event: &SchedEvent, facts: &mut impl Facts) {
        if let SchedWhat::Hint { tid, hint } = event.what {
            return self.hint(tid, hint, facts);
        }
        if event.cpu >= MAX_CPUS {
            match event.what {
                SchedWhat::Lost => self.gaps.losses += 1,
                _ => self.gaps.no_room += 1,
            }
            return;
        }
        let at = event.cpu as usize;
        if self.cpus.len() <= at {
            self.cpus.resize(at + 1, Cpu::default());
        }
        let is_observed = event.time >= self.unobserved_before;
        let Self { threads, cpus, gaps, unwoken, .. } = self;
        let Some(cpu) = cpus.get_mut(at) else { return };
        if event.what == SchedWhat::Lost {
            gaps.losses += 1;
            let from = if cpu.last == 0 { event.time } else { cpu.last };
            let running = cpu.running.and_then(|(_, _, slot)| slot);
            *cpu = Cpu { last: cpu.last.max(event.time), ..Cpu::default() };
            return Self::lost(threads, (event.cpu, running), from, event.time, facts);
        }
        gaps.backwards += u64::from(event.time < cpu.last);
        cpu.last = cpu.last.max(event.time);
        self.events += 1;
        if let SchedWhat::Switch { prev, .. } = &event.what {
            self.switches += 1;
            self.from_idle |= prev.tid == 0;
        }
        let (first, last) = self.span.get_or_insert((event.time, event.time));
        (*first, *last) = ((*first).min(event.time), (*last).max(event.time));
        Steps { threads, cpu, gaps, unwoken, event, facts, is_observed }.take();
    }

    /// A thread has another hint, or none any more: what ends from now on counts for that, as for a cgroup.
    fn hint(&mut self, tid: u32, hint: Option<u64>, facts: &mut impl Facts) {
        let Self { threads, gaps, .. } = self;
        let Some(hints) = &mut threads.hints else { return };
        threads.had_hint |= hint.is_some();
        match hint {
            Some(hint) if hints.len() < MAX_HINTS || hints.contains_key(&tid) => drop(hints.insert(tid, hint)),
            Some(_) => return gaps.no_room += 1,
            None => drop(hints.remove(&tid)),
        }
        let hint = hint.into();
        let Some(slot) = threads.find(tid) else { return };
        let Some(before) = threads.get(slot).map(Thread::home).filter(|home| home.hint != hint) else { return };
        facts.fact(threads, &Fact::Left { thread: slot, to: Home { hint, ..before } });
        if let Some(thread) = threads.get_mut(slot) {
            thread.hint = hint;
        }
    }

    /// What threads did is not known, except of those that ran on another CPU all the time.
    fn lost(threads: &mut Threads, (cpu, running): (u32, Option<Slot>), from: u64, until: u64, facts: &mut impl Facts) {
        facts.fact(threads, &Fact::Lost { cpu, from, until });
        let (mut touched, mut queued) = (Vec::new(), Vec::new());
        for &slot in threads.by_tid.values() {
            let Some(thread) = threads.slots.get_mut(slot as usize) else { continue };
            match thread.state {
                ThreadState::Running { since } if since <= from && Some(slot) != running => continue,
                // What it did before may be wrong.
                ThreadState::Running { .. } if Some(slot) != running => {}
                _ => thread.state = ThreadState::Unknown,
            }
            if let Some(dsq) = thread.dsq.take().filter(|dsq| dsq.is_queued) {
                queued.push(dsq.id);
            }
            touched.push(slot);
        }
        for dsq in queued {
            facts.fact(threads, &Fact::Unqueued { dsq, time: until });
        }
        for thread in touched {
            facts.fact(threads, &Fact::Touched { thread });
        }
    }
}

/// One event on its way through the state.
struct Steps<'a, F> {
    threads: &'a mut Threads,
    cpu: &'a mut Cpu,
    gaps: &'a mut Gaps,
    unwoken: &'a mut Unwoken,
    event: &'a SchedEvent,
    facts: &'a mut F,
    /// All CPUs are observed.
    is_observed: bool,
}

impl<F: Facts> Steps<'_, F> {
    fn take(mut self) {
        let SchedEvent { time, cpu, .. } = *self.event;
        match self.event.what {
            SchedWhat::Switch { prev, state, next } => self.switch(&prev, state, &next),
            SchedWhat::Waking { task, target_cpu, by } => {
                let waker = self.current().filter(|_| by != WakenBy::Interrupt);
                if let Some(thread) = self.named(&task) {
                    self.wakes(thread, Why::Woken(waker));
                    self.fact(Fact::Woken { thread, cpu, target_cpu, time, waker, is_new: false });
                }
            }
            SchedWhat::WakeupNew { task, target_cpu } => {
                let waker = self.current();
                if let Some(thread) = self.named(&task) {
                    self.wakes(thread, Why::New);
                    self.fact(Fact::Woken { thread, cpu, target_cpu, time, waker, is_new: true });
                }
            }
            SchedWhat::Migrate { task, from, to } => {
                self.current();
                if let Some(thread) = self.named(&task) {
                    self.fact(Fact::Migrated { thread, from, to });
                }
            }
            SchedWhat::Fork { child, comm, .. } => self.fork(child, comm),
            SchedWhat::Exec { tid, old_tid } => self.exec(tid, old_tid),
            SchedWhat::Exit { task } => {
                self.current();
                self.named(&task);
            }
            SchedWhat::Runtime { task, ns } => {
                if let Some(thread) = self.named(&task) {
                    self.fact(Fact::Charged { thread, ns });
                }
            }
            SchedWhat::IrqEntry { .. } => self.enters(false),
            SchedWhat::SoftirqEntry { .. } => self.enters(true),
            SchedWhat::IrqExit { .. } => self.leaves(false),
            SchedWhat::SoftirqExit { .. } => self.leaves(true),
            SchedWhat::DsqInsert { tid, dsq, is_moved, .. } => {
                let by = if is_moved { QueuedBy::Move } else { QueuedBy::Scheduler };
                self.queues(tid, dsq, by);
            }
            SchedWhat::DsqSwitch { prev, dsq, next, slice } => {
                if let Some(dsq) = dsq {
                    self.requeues(prev, dsq);
                }
                self.grants(next, slice);
            }
            // Taken before.
            SchedWhat::Hint { .. } | SchedWhat::Lost => {}
        }
    }

    fn fact(&mut self, fact: Fact) {
        self.facts.fact(self.threads, &fact);
    }

    /// The thread that runs on the CPU, with its process and cgroup as in the event.
    fn current(&mut self) -> Option<Slot> {
        let SchedEvent { pid, tid, cgroup, .. } = *self.event;
        let slot = match self.running(tid) {
            Some(slot) => slot,
            None => self.threads.slot(tid)?,
        };
        let slot = self.of_process(slot, pid)?;
        self.is_in(slot, cgroup);
        Some(slot)
    }

    /// The thread is of this process, if that is known. One of another process is another thread: it got the number of one
    /// whose end was not seen.
    fn of_process(&mut self, slot: Slot, pid: u32) -> Option<Slot> {
        let thread = self.threads.get_mut(slot)?;
        if pid == SchedEvent::UNKNOWN || pid == 0 || pid == thread.pid {
            return Some(slot);
        }
        if matches!(thread.pid, 0 | SchedEvent::UNKNOWN) {
            thread.pid = pid;
            return Some(slot);
        }
        let before = *thread;
        self.end(slot);
        let slot = self.threads.slot(before.tid)?;
        let thread = self.threads.get_mut(slot)?;
        // It is on the CPU: what the other one waited or slept for is not its own.
        let state =
            if matches!(before.state, ThreadState::Running { .. }) { before.state } else { ThreadState::Unknown };
        *thread = Thread { pid, cgroup: 0, hint: thread.hint, dsq: None, state, ..before };
        if let Some((tid, _, running)) = &mut self.cpu.running {
            if *tid == before.tid {
                *running = Some(slot);
            }
        }
        Some(slot)
    }

    /// The thread is in this cgroup, if it is known: what comes counts there.
    fn is_in(&mut self, slot: Slot, cgroup: u64) {
        let Some(before) = self.threads.get(slot).map(Thread::home) else { return };
        if cgroup == 0 || cgroup == before.cgroup {
            return;
        }
        if before.cgroup != 0 {
            self.fact(Fact::Left { thread: slot, to: Home { cgroup, ..before } });
        }
        if let Some(thread) = self.threads.get_mut(slot) {
            thread.cgroup = cgroup;
        }
    }

    /// The thread, if the CPU is known to run it.
    fn running(&self, tid: u32) -> Option<Slot> {
        let (running, _, slot) = self.cpu.running?;
        // Its slot may be another thread's meanwhile, if it was seen to end on another CPU.
        slot.filter(|&slot| running == tid && self.threads.get(slot).is_some_and(|thread| thread.tid == tid))
    }

    /// A thread that the event names.
    fn named(&mut self, task: &SchedTask) -> Option<Slot> {
        self.named_before(task).0
    }

    /// The same, and whether an event has named it before.
    fn named_before(&mut self, task: &SchedTask) -> (Option<Slot>, bool) {
        let slot = self.threads.slot(task.tid);
        let Some(thread) = slot.and_then(|slot| self.threads.get_mut(slot)) else {
            self.gaps.no_room += u64::from(task.tid != 0 && task.tid != SchedEvent::UNKNOWN);
            return (None, false);
        };
        thread.comm = task.comm;
        (slot, std::mem::replace(&mut thread.is_named, true))
    }

    fn switch(&mut self, prev: &SchedTask, state: TaskState, next: &SchedTask) {
        let SchedEvent { time, cpu, .. } = *self.event;
        let is_thread = prev.tid != 0 && prev.tid != SchedEvent::UNKNOWN;
        let running = self.running(prev.tid);
        let ran = self.cpu.running.take();
        let mut prev_slot = match running.and_then(|slot| self.threads.get_mut(slot)) {
            Some(thread) => {
                thread.comm = prev.comm;
                running
            }
            None => self.named(prev),
        };
        if self.event.tid == prev.tid {
            let SchedEvent { pid, cgroup, .. } = *self.event;
            prev_slot = prev_slot.and_then(|slot| self.of_process(slot, pid));
            if let Some(slot) = prev_slot {
                self.is_in(slot, cgroup);
            }
        }
        match ran {
            Some((tid, since, _)) if tid == prev.tid && since <= time => {
                self.fact(Fact::Ran { cpu, thread: prev_slot, is_thread, from: since, until: time });
            }
            Some((tid, _, running)) if tid != prev.tid => self.mismatch(running, prev_slot),
            _ => {}
        }
        let (next_slot, is_known) = self.named_before(next);
        let is_first = !is_known;
        self.fact(Fact::Switched { cpu, prev: prev_slot, state, next: next_slot, is_thread, is_first });
        if let Some(slot) = prev_slot {
            self.leaves_cpu(slot, state, next_slot);
        }
        let lives = |slot: &Slot| self.threads.get(*slot).is_some_and(|thread| thread.tid == next.tid);
        let next_slot = next_slot.filter(lives).or_else(|| self.named(next));
        if let Some(slot) = next_slot {
            self.gets_cpu(slot);
        }
        self.cpu.running = Some((next.tid, time, next_slot));
    }

    /// Another thread leaves the CPU than the one that got it: events between are missing.
    fn mismatch(&mut self, running: Option<Slot>, prev: Option<Slot>) {
        self.gaps.mismatches += 1;
        self.fact(Fact::Missed { cpu: self.event.cpu });
        if let Some(thread) = running.and_then(|slot| self.threads.get_mut(slot)) {
            if matches!(thread.state, ThreadState::Running { .. }) {
                thread.state = ThreadState::Unknown;
            }
        }
        for thread in running.into_iter().chain(prev) {
            self.fact(Fact::Touched { thread });
        }
    }

    fn leaves_cpu(&mut self, slot: Slot, state: TaskState, next: Option<Slot>) {
        let time = self.event.time;
        let is_observed = self.is_observed;
        let Some(thread) = self.threads.get_mut(slot) else { return };
        thread.state = match state {
            TaskState::Dead => return self.end(slot),
            _ if !is_observed => ThreadState::Unknown,
            TaskState::Runnable | TaskState::Preempted => ThreadState::Waiting { since: time, why: Why::Preempted },
            TaskState::Sleeping => ThreadState::Sleeping { since: time, is_blocked: false },
            TaskState::Blocked => ThreadState::Sleeping { since: time, is_blocked: true },
        };
        if state.is_runnable() {
            self.fact(Fact::Preempted { thread: slot, by: next });
        }
    }

    fn gets_cpu(&mut self, slot: Slot) {
        let SchedEvent { time, cpu, .. } = *self.event;
        let Some(thread) = self.threads.get_mut(slot) else { return };
        let dsq = thread.dsq.filter(|dsq| dsq.is_queued);
        thread.dsq = thread.dsq.map(|dsq| Dsq { is_queued: false, ..dsq });
        // A pending wakeup ends here, whatever is known of its beginning.
        let before = std::mem::replace(&mut thread.state, ThreadState::Running { since: time });
        match before {
            ThreadState::Waiting { since, why } if since <= time => {
                self.fact(Fact::Waited { thread: slot, cpu, from: since, until: time, why });
            }
            ThreadState::Sleeping { since, .. } => {
                self.unwoken.count += 1;
                self.unwoken.total_ns = self.unwoken.total_ns.saturating_add(time.saturating_sub(since));
            }
            _ => {}
        }
        if let Some(Dsq { id, since, .. }) = dsq {
            self.fact(Fact::Dispatched { thread: slot, dsq: id, from: since.min(time), until: time });
        }
    }

    /// A thread is put into a dispatch queue, out of the one that it is in.
    fn queues(&mut self, tid: u32, id: u64, by: QueuedBy) {
        let time = self.event.time;
        let Some(slot) = self.threads.slot(tid) else {
            self.gaps.no_room += u64::from(tid != 0);
            return;
        };
        let Some(thread) = self.threads.get_mut(slot) else { return };
        let before = thread.dsq.replace(Dsq { id, since: time, is_queued: true, is_granted: false });
        if let Some(before) = before.filter(|before| before.is_queued) {
            self.fact(Fact::Unqueued { dsq: before.id, time });
        }
        self.fact(Fact::Queued { thread: slot, dsq: id, time, by });
    }

    /// The thread that leaves the CPU is in a dispatch queue: if not the scheduler, the kernel put it there.
    fn requeues(&mut self, tid: u32, id: u64) {
        let thread = self.threads.by_tid.get(&tid).and_then(|&slot| self.threads.get(slot));
        if !thread.is_some_and(|thread| thread.dsq.is_some_and(|dsq| dsq.is_queued)) {
            self.queues(tid, id, QueuedBy::Kernel);
        }
    }

    /// The thread that gets the CPU may run for so long.
    fn grants(&mut self, tid: u32, slice: Option<u64>) {
        let (Some(ns), Some(slot)) = (slice, self.threads.slot(tid)) else { return };
        // This event may come before that of the switch or after it.
        let dsq = self.threads.get_mut(slot).and_then(|thread| thread.dsq.as_mut());
        let dsq = dsq.and_then(|dsq| (!std::mem::replace(&mut dsq.is_granted, true)).then_some(dsq.id));
        self.fact(Fact::Slice { dsq, ns });
    }

    /// A thread becomes runnable.
    fn wakes(&mut self, slot: Slot, why: Why) {
        if !self.is_observed {
            return;
        }
        let time = self.event.time;
        let Some(thread) = self.threads.get_mut(slot) else { return };
        match thread.state {
            ThreadState::Sleeping { since, is_blocked } => {
                thread.state = ThreadState::Waiting { since: time, why };
                if since <= time {
                    self.fact(Fact::Slept { thread: slot, from: since, until: time, is_blocked });
                }
            }
            ThreadState::Unknown => thread.state = ThreadState::Waiting { since: time, why },
            // It has not slept yet, or was woken before: the first wakeup counts.
            ThreadState::Running { .. } | ThreadState::Waiting { .. } => {}
        }
    }

    fn fork(&mut self, child: u32, comm: Comm) {
        let parent = self.current().and_then(|slot| self.threads.get(slot)).map(|parent| parent.cgroup);
        // A thread of that number has ended without being seen to.
        if let Some(&old) = self.threads.by_tid.get(&child) {
            self.end(old);
        }
        if let Some(thread) = self.threads.slot(child).and_then(|slot| self.threads.get_mut(slot)) {
            (thread.comm, thread.cgroup) = (comm, parent.unwrap_or(0));
        }
    }

    /// A thread that is not the main one takes over the number of its process; the main one has ended.
    fn exec(&mut self, tid: u32, old_tid: u32) {
        if tid == old_tid || tid == 0 || tid == SchedEvent::UNKNOWN {
            self.current();
            return;
        }
        let Some(slot) = self.threads.by_tid.remove(&old_tid) else { return };
        if let Some(&main) = self.threads.by_tid.get(&tid) {
            self.end(main);
        }
        self.threads.by_tid.insert(tid, slot);
        if let Some(hints) = &mut self.threads.hints {
            if let Some(hint) = hints.remove(&old_tid) {
                hints.insert(tid, hint);
            }
        }
        if let Some(thread) = self.threads.get_mut(slot) {
            thread.tid = tid;
        }
        if let Some((running, _, Some(of))) = &mut self.cpu.running {
            if *of == slot {
                *running = tid;
            }
        }
    }

    fn end(&mut self, slot: Slot) {
        self.fact(Fact::Ended { thread: slot });
        let dsq = self.threads.get_mut(slot).and_then(|thread| thread.dsq.take());
        if let Some(dsq) = dsq.filter(|dsq| dsq.is_queued) {
            self.fact(Fact::Unqueued { dsq: dsq.id, time: self.event.time });
        }
        if let Some(thread) = self.threads.get_mut(slot) {
            // It is not taken for a living thread.
            let tid = std::mem::replace(&mut thread.tid, SchedEvent::UNKNOWN);
            self.threads.by_tid.remove(&tid);
            if let Some(hints) = &mut self.threads.hints {
                hints.remove(&tid);
            }
            self.threads.free.push(slot);
        }
    }

    fn enters(&mut self, is_soft: bool) {
        if self.cpu.handling.len() < MAX_NESTED {
            self.cpu.handling.push(Handling { is_soft, since: self.event.time, inner: 0 });
        }
    }

    fn leaves(&mut self, is_soft: bool) {
        let SchedEvent { time, cpu, .. } = *self.event;
        // One whose beginning was not seen.
        let Some(at) = self.cpu.handling.iter().rposition(|handling| handling.is_soft == is_soft) else { return };
        self.cpu.handling.truncate(at + 1);
        let Some(handled) = self.cpu.handling.pop() else { return };
        let whole = time.saturating_sub(handled.since);
        if let Some(outer) = self.cpu.handling.last_mut() {
            outer.inner = outer.inner.saturating_add(whole);
        }
        self.fact(Fact::Handled { cpu, ns: whole.saturating_sub(handled.inner), is_soft });
    }
}

#[cfg(test)]
#[path = "tracker_tests.rs"]
mod tests;
