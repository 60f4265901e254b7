//! What the kernel's trace says: who ran on which CPU from when to when, and which CPUs the scheduler had assigned.
//!
//! Text alone, without I/O, so that tests of the project read made traces too.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{bail, Context, Result};

/// Index of a layer and 0, or numbers of a cell and a subcell.
pub type Place = (usize, usize);
/// The CPUs that a scheduler assigned to each place.
pub type Assignment = BTreeMap<Place, BTreeSet<u32>>;

/// The threads that ran, and what the scheduler said of itself.
#[derive(Debug, Default)]
pub struct Trace {
    /// Each time on a CPU.
    pub runs: Vec<Run>,
    /// Each dump of the scheduler's state.
    pub dumps: Vec<Dump>,
}

/// A thread's time on a CPU.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    /// The thread.
    pub tid: i32,
    /// The CPU.
    pub cpu: u32,
    /// When it got the CPU, us.
    pub from: u64,
    /// When another thread got it, us.
    pub to: u64,
}

/// What a scheduler says when it is asked for its state (`ops.dump`).
#[derive(Debug, Default)]
pub struct Dump {
    /// When it began, us.
    pub time: u64,
    /// What it assigned.
    pub assignment: Assignment,
    /// The places of threads, in the scheduler's own numbers; only scx_mitosis says them, of runnable threads.
    pub threads: BTreeMap<i32, Place>,
    /// Layers that have no CPUs.
    without: BTreeSet<Place>,
}

impl Trace {
    /// Reads the text of tracefs's `trace`, which has events in order of time. A dump begins where `is_begin` is written.
    ///
    /// # Errors
    /// Events that the buffer had no room for, and lines that are not as the kernel writes them.
    pub fn parse(text: &str, begin: &str) -> Result<Self> {
        let mut trace = Self::default();
        // The thread that runs on each CPU, and since when. A CPU counts from its first switch on.
        let mut running: BTreeMap<u32, (i32, u64)> = BTreeMap::new();
        for line in text.lines() {
            if let Some(counts) = line.strip_prefix("# entries-in-buffer/entries-written: ") {
                let (kept, written) =
                    counts.split_whitespace().next().and_then(|it| it.split_once('/')).context("no counts")?;
                if kept != written {
                    bail!("the trace has only {kept} of {written} events");
                }
            }
            let Some((head, event)) = event(line) else { continue };
            let (cpu, time) = head_of(head).with_context(|| format!("no CPU and time: {line}"))?;
            match event {
                Event::Switch(text) => {
                    let tid = number_after(text, " next_pid=").with_context(|| format!("no thread: {line}"))?;
                    if let Some((tid, from)) = running.insert(cpu, (i32::try_from(tid)?, time)) {
                        trace.runs.push(Run { tid, cpu, from, to: time });
                    }
                }
                Event::Marker(text) if text.trim() == begin => trace.dumps.push(Dump { time, ..Dump::default() }),
                Event::Marker(_) => {}
                Event::Dump(text) => {
                    if let Some(dump) = trace.dumps.last_mut() {
                        dump.line(text.trim()).with_context(|| format!("not as the scheduler writes it: {line}"))?;
                    }
                }
            }
        }
        Ok(trace)
    }
}

enum Event<'a> {
    Switch(&'a str),
    Dump(&'a str),
    Marker(&'a str),
}

/// What is before an event's name, and its text.
fn event(line: &str) -> Option<(&str, Event<'_>)> {
    if let Some((head, text)) = line.split_once(": sched_switch: ") {
        return Some((head, Event::Switch(text)));
    }
    if let Some((head, text)) = line.split_once(": sched_ext_dump: ") {
        return Some((head, Event::Dump(text)));
    }
    line.split_once(": tracing_mark_write: ").map(|(head, text)| (head, Event::Marker(text)))
}

/// `  name-12   [003] d..2.  1234.567890`: the CPU, and the time in us.
fn head_of(head: &str) -> Option<(u32, u64)> {
    let (_, rest) = head.rsplit_once('[')?;
    let (cpu, rest) = rest.split_once(']')?;
    let (seconds, micros) = rest.split_whitespace().last()?.split_once('.')?;
    let time = seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros.parse().ok()?)?;
    Some((cpu.parse().ok()?, time))
}

/// The number behind the last `name`, which a thread's name before it cannot spoil.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let (_, rest) = text.rsplit_once(name)?;
    let digits = rest.find(|it: char| !it.is_ascii_digit()).map_or(rest, |end| rest.get(..end).unwrap_or_default());
    digits.parse().ok()
}

impl Dump {
    /// Gives the places the numbers of others. Places without one, and without a runnable thread, lend their CPUs to all places of their
    /// cell.
    pub fn renumber(&mut self, numbers: &BTreeMap<Place, Place>) {
        let old = std::mem::take(&mut self.assignment);
        for (theirs, ours) in numbers {
            let is_idle = |place: &Place| !numbers.contains_key(place) && !self.threads.values().any(|it| it == place);
            let idle = old.iter().filter(|(place, _)| place.0 == theirs.0 && is_idle(place));
            let lent: BTreeSet<u32> = idle.flat_map(|(_, cpus)| cpus).copied().collect();
            self.assignment.insert(*ours, old.get(theirs).into_iter().flatten().copied().chain(lent).collect());
        }
    }

    /// A line of scx_layered or scx_mitosis; `None` if it is one that says an assignment and cannot be read.
    fn line(&mut self, line: &str) -> Option<()> {
        let index = |text: &str| text.split_once(']').and_then(|(index, _)| index.parse::<usize>().ok());
        if let Some(rest) = line.strip_prefix("LAYER[") {
            // LAYER[3](name) CPUS=00000000,0000000c
            // Before it, for each last-level cache: LAYER[3](name)-DSQ[18] nr_cpus=2 nr_queued=0 +0ms
            let place = (index(rest)?, 0);
            if let Some((_, words)) = rest.rsplit_once(") CPUS=") {
                // A layer that never had CPUs still has the mask of all of them that it began with.
                let has_none = self.without.contains(&place);
                self.assignment.insert(place, if has_none { BTreeSet::new() } else { cpus(words)? });
            } else if number_after(rest, " nr_cpus=") == Some(0) {
                self.without.insert(place);
            }
        } else if let Some(rest) = line.strip_prefix("CPU[") {
            // CPU[3] cell=1 subcell=2 vtime=0 nr_queued=0
            let field = |name| number_after(rest, name).and_then(|it| usize::try_from(it).ok());
            let place = (field(" cell=")?, field(" subcell=")?);
            self.assignment.entry(place).or_default().insert(u32::try_from(index(rest)?).ok()?);
        } else if let Some(rest) = line.strip_prefix("Task[") {
            // Task[17] vtime=0 basis_vtime=0 cell=1 subcell=2 llc=0
            let field = |name| number_after(rest, name).and_then(|it| usize::try_from(it).ok());
            if let (Some(cell), Some(subcell)) = (field(" cell="), field(" subcell=")) {
                self.threads.insert(i32::try_from(index(rest)?).ok()?, (cell, subcell));
            }
        }
        Some(())
    }
}

/// The CPUs of words of 32 bits in hexadecimal, the highest first.
fn cpus(words: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for (word, at) in words.split(',').rev().zip(0_u32..) {
        let bits = u32::from_str_radix(word, 16).ok()?;
        cpus.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| 32 * at + bit));
    }
    Some(cpus)
}
