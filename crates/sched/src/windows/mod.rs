//! Which threads use how many CPUs, in windows of time, from the scheduler's events.
//!
//! At any time, a CPU is in one state: in an interrupt, in a softirq, running a thread of some category, idle, or unknown. An
//! interrupt takes the time of the softirq or thread that it interrupts, a softirq that of the thread. The kernel thread
//! ksoftirqd runs softirqs; these are softirq time too.
//!
//! The thread is known from a `Switch` on. What is known lasts until the CPU's last event: an event that was lost leaves a
//! `Lost`, so that what comes before the next event has not changed. Unknown, and not idle, is a CPU:
//!
//! - before its first `Switch`,
//! - from its last event on, when the stream ends,
//! - from its last event before a `Lost` until its next `Switch`.
//!
//! A softirq or interrupt within an unknown time is known if both its ends are seen.
//!
//! A window is passed on when nothing can change it any more: when each CPU whose state is known has an event after it. A CPU
//! may be silent for long, idle or not. When [`MAX_OPEN`] windows wait for it, its state counts as lasting, and nothing is
//! taken back later. So at the end of a stream at most [`MAX_OPEN`] windows count a silent CPU as unknown.

mod category;
mod members;
#[cfg(test)]
mod property_tests;
mod summary;
#[cfg(test)]
mod tests;
mod text;

use std::collections::VecDeque;

use scxprof_base::sample::sched::{SchedEvent, SchedWhat};
use scxprof_base::sample::Comm;
use scxprof_base::tables::Tables;

pub use category::{Category, CategoryError, Glob};
use members::Members;
use summary::Totals;
pub use summary::{ColumnSummary, Summary};
pub use text::{csv_header, csv_row, NamedWindow};

/// Windows that wait for a CPU without events, at most.
pub const MAX_OPEN: usize = 1 << 12;
/// Windows without an event on any CPU, at most; of a longer gap nothing is known, and it has no windows.
pub const MAX_GAP: u64 = 1 << 20;
/// The longest window in ns, a day: the CPU time of all CPUs in it fits into 64 bits.
pub const MAX_WIDTH: u64 = 86_400_000_000_000;
/// CPU numbers at and above this are ignored.
const MAX_CPUS: u32 = 1 << 16;

/// What [`Windows`] computes.
#[derive(Debug, Clone)]
pub struct WindowOptions {
    /// The width of a window in ns, 1 to [`MAX_WIDTH`].
    pub width: u64,
    /// A thread belongs to the first one that matches.
    pub categories: Vec<Category>,
    /// The CPUs that are counted from the start, even without an event. Others are counted from the first window that was
    /// still open at their first event.
    pub cpus: Vec<u32>,
}

/// The CPU time of a window of time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Window {
    /// Its begin: CLOCK_MONOTONIC, ns.
    pub begin: u64,
    /// ns; the last one of a stream may be narrower than the others.
    pub width: u64,
    /// The number of CPUs that were known when it was passed on.
    pub cpus: u32,
    /// CPU time in ns of each of [`Windows::columns`]. Their sum is `width` times `cpus`.
    pub ns: Vec<u64>,
}

impl Window {
    /// CPU time of the window as the mean number of CPUs in use.
    #[must_use]
    pub fn in_use(&self, ns: u64) -> f64 {
        ns as f64 / self.width.max(1) as f64
    }
}

/// The columns of a window: the categories in their order, then these.
#[derive(Debug)]
struct Columns {
    names: Vec<String>,
    uncategorised: usize,
    irq: usize,
    softirq: usize,
    idle: usize,
    unknown: usize,
}

impl Columns {
    fn new(categories: &[Category]) -> Self {
        let mut names: Vec<String> = Vec::new();
        for Category { name, .. } in categories {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        let first = names.len();
        names.extend(category::FIXED.map(String::from));
        Self { names, uncategorised: first, irq: first + 1, softirq: first + 2, idle: first + 3, unknown: first + 4 }
    }
}

/// The state of a CPU.
#[derive(Debug, Clone, Default)]
struct Cpu {
    /// It counts: it had an event, or the caller named it.
    is_counted: bool,
    /// What it runs, if that is known.
    running: Option<Running>,
    /// Interrupts and softirqs that have begun and not ended.
    irqs: u32,
    softirqs: u32,
    /// The time up to which its state is in the windows; while that is unknown, at least the time up to which it was.
    until: u64,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    tid: u32,
    comm: Comm,
    column: usize,
}

impl Cpu {
    /// The column that its time belongs to; `None` while its state is unknown.
    #[inline]
    fn column(&self, columns: &Columns) -> Option<usize> {
        if self.irqs > 0 {
            Some(columns.irq)
        } else if self.softirqs > 0 {
            Some(columns.softirq)
        } else {
            self.running.map(|running| running.column)
        }
    }

    fn lose(&mut self) {
        (self.running, self.irqs, self.softirqs) = (None, 0, 0);
    }
}

/// Computes the CPU time of each category in windows of time, from the events of all CPUs in order of time.
///
/// Windows begin at the first event. An event that comes late counts as coming at the time of the last one of its CPU.
#[derive(Debug)]
pub struct Windows {
    width: u64,
    columns: Columns,
    members: Members,
    cpus: Vec<Cpu>,
    /// Of them, those that count.
    counted: u32,
    /// The windows that may still change, adjacent; the last one contains `newest`. Empty before the first event.
    open: VecDeque<Window>,
    /// The time of the newest event.
    newest: u64,
    /// A window to use again.
    spare: Option<Window>,
    totals: Totals,
    left_out: u64,
}

impl Windows {
    /// Without any event yet.
    #[must_use]
    pub fn new(options: WindowOptions) -> Self {
        let width = options.width.clamp(1, MAX_WIDTH);
        let columns = Columns::new(&options.categories);
        let mut windows = Self {
            width,
            totals: Totals::new(width, &columns),
            members: Members::new(options.categories, &columns),
            columns,
            cpus: Vec::new(),
            counted: 0,
            open: VecDeque::new(),
            newest: 0,
            spare: None,
            left_out: 0,
        };
        for cpu in options.cpus {
            windows.count(cpu);
        }
        windows
    }

    /// The names of the columns of each window: the categories, each name once, then uncategorised, irq, softirq, idle and unknown.
    #[must_use]
    pub fn columns(&self) -> &[String] {
        &self.columns.names
    }

    /// Windows that were left out, because no CPU had an event in more than [`MAX_GAP`] of them.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Mean, quantiles and maximum over the windows that were passed on.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.totals.summary(&self.columns)
    }

    /// Measures its tables: open windows, hints and names.
    pub fn measure(&self, tables: &mut Tables) {
        let bytes = self.open.capacity() * size_of::<Window>() + self.open.len() * self.columns.names.len() * 8;
        tables.set("windows", self.open.len(), bytes);
        self.members.measure(tables);
    }

    /// Takes the next event; `out` gets the windows that cannot change any more, in their order.
    pub fn take(&mut self, event: &SchedEvent, out: &mut impl FnMut(&Window)) {
        let SchedEvent { time, cpu, .. } = *event;
        self.reach(time, out);
        match event.what {
            // It may come from elsewhere than the CPU on which the thread runs, if it runs.
            SchedWhat::Hint { tid, hint } => return self.hint(time, tid, hint),
            SchedWhat::Lost if cpu >= MAX_CPUS => return self.cpus.iter_mut().for_each(Cpu::lose),
            _ => {}
        }
        let Some(index) = self.count(cpu) else { return };
        if matches!(event.what, SchedWhat::Lost) {
            self.cpus.get_mut(index).into_iter().for_each(Cpu::lose);
            return;
        }
        if let (SchedWhat::Switch { prev, .. }, Some(cpu)) = (event.what, self.cpus.get_mut(index)) {
            // Another thread leaves the CPU than the one that got it: events between are missing, without a loss that was said.
            if cpu.running.is_some_and(|running| running.tid != prev.tid) {
                cpu.lose();
            }
        }
        self.account(index, time);
        let Some(cpu) = self.cpus.get_mut(index) else { return };
        match event.what {
            SchedWhat::Switch { prev, state, next } => {
                self.members.switched_out(prev.tid, state);
                let column = if next.tid == 0 { self.columns.idle } else { self.members.column(next.tid, &next.comm) };
                cpu.running = Some(Running { tid: next.tid, comm: next.comm, column });
                // The kernel switches in neither of them, except with PREEMPT_RT in softirqs: these end here.
                (cpu.irqs, cpu.softirqs) = (0, 0);
            }
            SchedWhat::IrqEntry { .. } => cpu.irqs = cpu.irqs.saturating_add(1),
            // Without an entry it began in an unknown time.
            SchedWhat::IrqExit { .. } => cpu.irqs = cpu.irqs.saturating_sub(1),
            SchedWhat::SoftirqEntry { .. } => cpu.softirqs = cpu.softirqs.saturating_add(1),
            SchedWhat::SoftirqExit { .. } => cpu.softirqs = cpu.softirqs.saturating_sub(1),
            SchedWhat::Fork { child, .. } => self.members.forget(child),
            SchedWhat::Exit { task } => self.members.forget(task.tid),
            SchedWhat::Exec { tid, old_tid } => {
                self.members.renumber(old_tid, tid);
                if let Some(running) = cpu.running.as_mut().filter(|running| running.tid == old_tid) {
                    running.tid = tid;
                }
            }
            _ => {}
        }
    }

    /// Ends the stream at its newest event: `out` gets the windows that are left, the last one as narrow as it is.
    pub fn finish(&mut self, out: &mut impl FnMut(&Window)) {
        while let Some(mut window) = self.open.pop_front() {
            if self.open.is_empty() {
                window.width = self.newest.saturating_sub(window.begin);
            }
            if window.width > 0 {
                self.pass_on(window, out);
            }
        }
        self.cpus.iter_mut().for_each(Cpu::lose);
    }

    /// Counts a CPU from now on; returns its index.
    #[inline]
    fn count(&mut self, cpu: u32) -> Option<usize> {
        let index = cpu as usize;
        if cpu >= MAX_CPUS {
            return None;
        }
        if index >= self.cpus.len() {
            self.cpus.resize(index + 1, Cpu::default());
        }
        let cpu = self.cpus.get_mut(index)?;
        if !cpu.is_counted {
            cpu.is_counted = true;
            self.counted += 1;
        }
        Some(index)
    }

    /// Opens the windows up to this time.
    #[inline]
    fn reach(&mut self, time: u64, out: &mut impl FnMut(&Window)) {
        if let Some(last) = self.open.back() {
            self.newest = self.newest.max(time);
            if self.newest - last.begin >= self.width {
                self.open_more(out);
            }
        } else {
            self.newest = time;
            self.open_at(time);
        }
    }

    fn open_more(&mut self, out: &mut impl FnMut(&Window)) {
        self.pass_on_known(out);
        let Some(mut begin) = self.open.back().map(|last| last.begin) else { return };
        let windows = (self.newest - begin) / self.width;
        if windows > MAX_GAP {
            while let Some(window) = self.open.pop_front() {
                self.pass_on(window, out);
            }
            self.cpus.iter_mut().for_each(Cpu::lose);
            self.left_out += windows - 1;
            return self.open_at(begin + windows * self.width);
        }
        while self.newest - begin >= self.width {
            if self.open.len() >= MAX_OPEN {
                self.pass_on_silent(out);
            }
            begin += self.width;
            self.open_at(begin);
        }
    }

    fn open_at(&mut self, begin: u64) {
        let mut window = self.spare.take().unwrap_or_default();
        (window.begin, window.width) = (begin, self.width);
        window.ns.clear();
        window.ns.resize(self.columns.names.len(), 0);
        self.open.push_back(window);
    }

    /// Passes on the windows that every CPU is past.
    fn pass_on_known(&mut self, out: &mut impl FnMut(&Window)) {
        // A CPU in an unknown state changes nothing in the past.
        let known = self.cpus.iter().filter(|cpu| cpu.column(&self.columns).is_some());
        let until = known.map(|cpu| cpu.until).min().unwrap_or(self.newest);
        let width = self.width;
        let is_past = |window: &Window| until.saturating_sub(window.begin) >= width;
        // The last one stays: the next begins where it ends.
        while self.open.len() > 1 && self.open.front().is_some_and(is_past) {
            if let Some(window) = self.open.pop_front() {
                self.pass_on(window, out);
            }
        }
    }

    /// Passes on the first window: the CPUs that have no event after it go on as they are.
    fn pass_on_silent(&mut self, out: &mut impl FnMut(&Window)) {
        let Some(mut window) = self.open.pop_front() else { return };
        for cpu in &mut self.cpus {
            let Some(column) = cpu.column(&self.columns) else { continue };
            let rest = self.width.saturating_sub(cpu.until.saturating_sub(window.begin));
            if let Some(ns) = window.ns.get_mut(column) {
                *ns += rest;
            }
            cpu.until += rest;
        }
        self.pass_on(window, out);
    }

    fn pass_on(&mut self, mut window: Window, out: &mut impl FnMut(&Window)) {
        window.cpus = self.counted;
        let known: u64 = window.ns.iter().sum();
        let idle = window.ns.get(self.columns.idle).copied().unwrap_or(0);
        if let Some(unknown) = window.ns.get_mut(self.columns.unknown) {
            *unknown = (window.width * u64::from(window.cpus)).saturating_sub(known);
        }
        self.totals.add(&window, known - idle);
        out(&window);
        self.spare = Some(window);
    }

    /// Adds the time of a CPU since its last event to the column of its state.
    #[inline]
    fn account(&mut self, index: usize, time: u64) {
        let (Some(cpu), Some(last)) = (self.cpus.get_mut(index), self.open.back_mut()) else { return };
        let Some(column) = cpu.column(&self.columns) else {
            // A late event does not count a time again that came before a loss, nor one that was passed on.
            let first = if time < last.begin { self.open.front().map_or(time, |first| first.begin) } else { time };
            cpu.until = cpu.until.max(time).max(first);
            return;
        };
        let (from, to) = (cpu.until, time.max(cpu.until));
        cpu.until = to;
        if from < last.begin {
            return self.spread(column, from, to);
        }
        if let Some(ns) = last.ns.get_mut(column) {
            *ns += to - from;
        }
    }

    /// Adds a time that begins before the last window.
    fn spread(&mut self, column: usize, mut from: u64, to: u64) {
        let Some(begin) = self.open.front().map(|first| first.begin) else { return };
        let first = (from.saturating_sub(begin) / self.width) as usize;
        for window in self.open.range_mut(first.min(self.open.len())..) {
            let part = (to - from).min(self.width - (from - window.begin));
            if let Some(ns) = window.ns.get_mut(column) {
                *ns += part;
            }
            from += part;
            if from >= to {
                break;
            }
        }
    }

    /// The hint of a thread from now on, also if it runs.
    fn hint(&mut self, time: u64, tid: u32, hint: Option<u64>) {
        if !self.members.hint(tid, hint) {
            return;
        }
        for index in 0..self.cpus.len() {
            let running = self.cpus.get(index).and_then(|cpu| cpu.running).filter(|running| running.tid == tid);
            let Some(Running { comm, .. }) = running else { continue };
            self.account(index, time);
            let column = self.members.column(tid, &comm);
            if let Some(running) = self.cpus.get_mut(index).and_then(|cpu| cpu.running.as_mut()) {
                running.column = column;
            }
        }
    }
}
