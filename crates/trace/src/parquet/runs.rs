//! The tables of runs, states of threads and wakeups, from what the tracker says.

use std::io::Write;

use super::people::{People, Person};
use super::schema::ParquetTable;
use super::write::{Cell, Out};
use super::{Knows, UNKNOWN};
use crate::TraceThreads;
use scxprof_base::sample::sched::{SchedEvent, SchedWhat, WakenBy};
use scxprof_sched::{Fact, Facts, Slot, Thread, Threads, Tracker, Why};

/// An uninterruptible sleep that has ended; what it waited for is said just after that.
#[derive(Debug, Clone, Copy)]
struct Slept {
    from: u64,
    until: u64,
    tid: u32,
    pid: Cell<'static>,
    io: Option<bool>,
}

/// A wakeup whose thread has not run since.
#[derive(Debug, Clone, Copy)]
struct Woken {
    time: u64,
    row: [Cell<'static>; 7],
}

/// Threads by their slot; the number of slots is bounded.
#[derive(Debug, Default)]
pub(super) struct Pending {
    slept: Vec<Option<Slept>>,
    woken: Vec<Option<Woken>>,
}

fn set<T>(all: &mut Vec<Option<T>>, slot: Slot, value: T) {
    let at = slot as usize;
    if all.len() <= at {
        all.resize_with(at + 1, || None);
    }
    if let Some(place) = all.get_mut(at) {
        *place = Some(value);
    }
}

fn take<T>(all: &mut [Option<T>], slot: Slot) -> Option<T> {
    all.get_mut(slot as usize)?.take()
}

impl Slept {
    fn write<W: Write + Send>(self, out: &mut Out<W>) {
        let ids = (Cell::id(self.tid), self.pid);
        let state = StateRow::new((self.from, Some(self.until)), ids, "blocked");
        StateRow { io: Cell::or_null(self.io.map(Cell::Bool)), ..state }.write(out);
    }
}

impl Woken {
    fn write<W: Write + Send>(self, latency: Option<u64>, out: &mut Out<W>) {
        let [time, tid, waker, cpu, target, context, is_new] = self.row;
        let latency = Cell::or_null(latency.map(Cell::uint));
        out.row(ParquetTable::Wakeup, &[time, tid, waker, cpu, target, context, is_new, latency]);
    }
}

/// A row of `thread_state`.
struct StateRow {
    from: u64,
    until: Option<u64>,
    tid: Cell<'static>,
    pid: Cell<'static>,
    name: &'static str,
    cpu: Cell<'static>,
    io: Cell<'static>,
    waker: Cell<'static>,
}

impl StateRow {
    fn new((from, until): (u64, Option<u64>), (tid, pid): (Cell<'static>, Cell<'static>), name: &'static str) -> Self {
        Self { from, until, tid, pid, name, cpu: Cell::Null, io: Cell::Null, waker: Cell::Null }
    }

    fn write<W: Write + Send>(self, out: &mut Out<W>) {
        let Self { from, until, tid, pid, name, cpu, io, waker } = self;
        let dur = Cell::or_null(until.map(|until| Cell::uint(until.saturating_sub(from))));
        out.row(ParquetTable::ThreadState, &[Cell::uint(from), dur, tid, pid, cpu, Cell::Text(name), io, waker]);
    }
}

fn name_of(why: Why) -> &'static str {
    match why {
        Why::Woken(_) | Why::New => "runnable",
        Why::Preempted => "preempted",
    }
}

/// Writes the rows of what one event says.
pub(super) struct Follow<'a, W: Write + Send> {
    pub(super) pending: &'a mut Pending,
    pub(super) people: &'a mut People,
    pub(super) out: &'a mut Out<W>,
    pub(super) event: &'a SchedEvent,
    pub(super) knows: Knows,
    /// What a trace says of threads.
    pub(super) described: Option<&'a TraceThreads>,
}

/// The process of a thread, as the tracker or else the recording knows it.
fn process(
    tid: u32,
    (threads, slot): (&Threads, Option<Slot>),
    people: &People,
    (described, time): (Option<&TraceThreads>, u64),
) -> Cell<'static> {
    let said = described.map(|described| described.pid_at(tid, time)).filter(|pid| *pid != UNKNOWN);
    if let Some(said) = said {
        return Cell::id(said);
    }
    let known = slot.and_then(|slot| threads.get(slot)).map(|thread| thread.pid);
    let known = known.filter(|pid| *pid != 0 && *pid != UNKNOWN).or_else(|| people.pid(tid));
    Cell::id(known.unwrap_or(UNKNOWN))
}

impl<W: Write + Send> Follow<'_, W> {
    fn ids(&self, threads: &Threads, slot: Slot) -> (u32, Cell<'static>) {
        let tid = threads.get(slot).map_or(UNKNOWN, |thread| thread.tid);
        (tid, process(tid, (threads, Some(slot)), self.people, (self.described, self.event.time)))
    }

    fn process(&self, tid: u32, of: (&Threads, Option<Slot>)) -> Cell<'static> {
        process(tid, of, self.people, (self.described, self.event.time))
    }

    /// What waited for more to be known is written with what is.
    fn flush(&mut self, slot: Slot, latency: Option<u64>) {
        if let Some(slept) = take(&mut self.pending.slept, slot) {
            slept.write(self.out);
        }
        if let Some(woken) = take(&mut self.pending.woken, slot) {
            woken.write(latency, self.out);
        }
    }

    fn ran(&mut self, threads: &Threads, cpu: u32, slot: Option<Slot>, (from, until): (u64, u64)) {
        let SchedWhat::Switch { prev, state: end, .. } = self.event.what else { return };
        let (tid, pid) = (Cell::id(prev.tid), self.process(prev.tid, (threads, slot)));
        let priority = if self.knows.priorities { Cell::Int(prev.prio.into()) } else { Cell::Null };
        let (ts, dur) = (Cell::uint(from), Cell::uint(until.saturating_sub(from)));
        self.out.row(ParquetTable::Sched, &[ts, dur, Cell::id(cpu), tid, pid, Cell::Text(end.letters()), priority]);
        let state = StateRow::new((from, Some(until)), (tid, pid), "running");
        StateRow { cpu: Cell::id(cpu), ..state }.write(self.out);
    }

    fn woken(&mut self, threads: &Threads, slot: Slot, (cpu, target_cpu): (u32, u32), is_new: bool) {
        let time = self.event.time;
        let by = match self.event.what {
            SchedWhat::Waking { by, .. } => by,
            _ => WakenBy::Thread,
        };
        let (tid, _) = self.ids(threads, slot);
        let waker = if by == WakenBy::Interrupt { Cell::Null } else { Cell::id(self.event.tid) };
        let context = if self.knows.contexts { Cell::Bool(by != WakenBy::Thread) } else { Cell::Null };
        let (cpu, target) = (Cell::id(cpu), Cell::id(target_cpu));
        let row = [Cell::uint(time), Cell::id(tid), waker, cpu, target, context, Cell::Bool(is_new)];
        let woken = Woken { time, row };
        let begins = threads.get(slot).and_then(Thread::waits);
        let begins = matches!(begins, Some((since, Why::Woken(_) | Why::New)) if since == time);
        let before = self.pending.woken.get(slot as usize).copied().flatten();
        if !begins || before.is_some_and(|before| before.time == time) {
            // It runs, or was woken before.
            return woken.write(None, self.out);
        }
        if let Some(before) = before {
            // Its run after that was not seen.
            before.write(None, self.out);
        }
        set(&mut self.pending.woken, slot, woken);
    }
}

impl<W: Write + Send> Facts for Follow<'_, W> {
    fn fact(&mut self, threads: &Threads, fact: &Fact) {
        match *fact {
            Fact::Ran { cpu, thread, is_thread: true, from, until } => self.ran(threads, cpu, thread, (from, until)),
            Fact::Waited { thread, cpu, from, until, why } => {
                // A preemption may begin at the same time.
                let begins = |woken: &Woken| woken.time == from && why != Why::Preempted;
                let woken = self.pending.woken.get(thread as usize).and_then(Option::as_ref).filter(|it| begins(it));
                let waker = woken.map_or(Cell::Null, |woken| woken.row[2]);
                let latency = woken.map(|_| until.saturating_sub(from));
                self.flush(thread, latency);
                let (tid, pid) = self.ids(threads, thread);
                let state = StateRow::new((from, Some(until)), (Cell::id(tid), pid), name_of(why));
                StateRow { cpu: Cell::id(cpu), waker, ..state }.write(self.out);
            }
            Fact::Slept { thread, from, until, is_blocked } => {
                let (tid, pid) = self.ids(threads, thread);
                // One whose run after it was not seen.
                if let Some(slept) = take(&mut self.pending.slept, thread) {
                    slept.write(self.out);
                }
                if is_blocked {
                    set(&mut self.pending.slept, thread, Slept { from, until, tid, pid, io: None });
                } else {
                    StateRow::new((from, Some(until)), (Cell::id(tid), pid), "sleeping").write(self.out);
                }
            }
            Fact::Woken { thread, cpu, target_cpu, is_new, .. } => {
                self.woken(threads, thread, (cpu, target_cpu), is_new);
            }
            // One that still waits will run.
            Fact::Touched { thread } if threads.get(thread).is_none_or(|it| it.waits().is_none()) => {
                self.flush(thread, None);
            }
            Fact::Ended { thread } => {
                self.flush(thread, None);
                if let Some(ended) = threads.get(thread) {
                    let (pid, comm, cgroup) = (ended.pid, ended.comm, ended.cgroup);
                    self.people.see(ended.tid, Person { pid, comm, cgroup, hint: None });
                }
            }
            _ => {}
        }
    }
}

impl Pending {
    /// `sched_blocked_reason`, which comes just after the wakeup.
    pub(super) fn blocked(&mut self, threads: &Threads, tid: u32, io: bool) {
        let slot = threads.find(tid).and_then(|slot| self.slept.get_mut(slot as usize));
        if let Some(Some(slept)) = slot {
            slept.io = Some(io);
        }
    }

    /// Writes what goes on at the end: its duration is not known.
    pub(super) fn finish<W: Write + Send>(
        &mut self,
        tracker: &Tracker,
        people: &mut People,
        out: &mut Out<W>,
        described: Option<&TraceThreads>,
    ) {
        for slept in self.slept.drain(..).flatten() {
            slept.write(out);
        }
        let threads = tracker.threads();
        for (cpu, tid, since, slot) in tracker.running() {
            let pid = process(tid, (threads, slot), people, (described, u64::MAX));
            let (cpu, tid) = (Cell::id(cpu), Cell::id(tid));
            out.row(ParquetTable::Sched, &[Cell::uint(since), Cell::Null, cpu, tid, pid, Cell::Null, Cell::Null]);
            StateRow { cpu, ..StateRow::new((since, None), (tid, pid), "running") }.write(out);
        }
        let mut all: Vec<_> = threads.iter().collect();
        all.sort_unstable_by_key(|(_, thread)| thread.tid);
        for (slot, thread) in all {
            let (pid, comm, cgroup) = (thread.pid, thread.comm, thread.cgroup);
            people.see(thread.tid, Person { pid, comm, cgroup, hint: None });
            let ids = (Cell::id(thread.tid), process(thread.tid, (threads, Some(slot)), people, (described, u64::MAX)));
            let woken = take(&mut self.woken, slot);
            if let Some((since, why)) = thread.waits() {
                let waker = woken
                    .filter(|woken| woken.time == since && why != Why::Preempted)
                    .map_or(Cell::Null, |woken| woken.row[2]);
                StateRow { waker, ..StateRow::new((since, None), ids, name_of(why)) }.write(out);
            } else if let Some((since, is_blocked)) = thread.sleeps() {
                let name = if is_blocked { "blocked" } else { "sleeping" };
                StateRow::new((since, None), ids, name).write(out);
            }
            if let Some(woken) = woken {
                woken.write(None, out);
            }
        }
    }
}
