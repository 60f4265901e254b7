//! Scheduling events as text: perf.sched.script, what `perf script` prints of tracepoints, and perf.sched.jsonl, which
//! scx_characterize makes of that; reading and writing.
//!
//! ```text
//! COMM PID/TID [CPU] TIME: SYSTEM:NAME: TRACE
//! {"comm":"web","pid":7,"tid":8,"cpu":1,"time":1.5,"event":"sched:sched_waking","trace":"comm=io pid=9 ...","fields":{...},"hint":0}
//! ```

pub(crate) mod trace;
mod writer;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, BufRead, Read};

use rustc_hash::FxHashMap;
use serde::Deserialize;

use super::disorder::Disorder;
use super::script::{head, Head};
use crate::sample::sched::{SchedEvent, SchedWhat, WakenBy};
use crate::sample::Comm;
use scxprof_base::cpus::MAX_CPUS;

pub(crate) use writer::Writer;

/// Bytes of a line.
const MAX_LINE: usize = 64 << 10;
/// Threads whose hint, and processes whose name, is remembered.
const MAX_NAMES: usize = 1 << 18;
/// The systems of the tracepoints that scx_characterize records.
const SYSTEMS: [&str; 5] = ["sched", "irq", "irq_vectors", "nmi", "sched_ext"];

/// A line of JSON, with the fields that are read.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    comm: Cow<'a, str>,
    pid: i64,
    tid: i64,
    cpu: u32,
    time: f64,
    #[serde(borrow)]
    event: Cow<'a, str>,
    #[serde(borrow)]
    trace: Cow<'a, str>,
    #[serde(default)]
    hint: Option<u64>,
}

/// The contents of a line.
struct Line<'a> {
    comm: Comm,
    pid: u32,
    tid: u32,
    cpu: u32,
    time: u64,
    event: Cow<'a, str>,
    trace: Cow<'a, [u8]>,
    hint: Option<u64>,
}

/// Reads lines of either form; counts those that it cannot parse.
#[derive(Debug)]
pub struct Reader<R> {
    inner: R,
    line: Vec<u8>,
    /// Lines that are not empty.
    pub lines: u64,
    /// Of these, lines that are no event.
    pub unreadable: u64,
    /// The number of the first of them.
    pub first_unreadable: Option<u64>,
    /// Events that say nothing of threads and CPUs.
    pub others: u64,
    /// The file ends within a line.
    pub cut: bool,
    /// Lines that came after later ones of their thread.
    pub disorder: Disorder,
    /// Names of processes, those of their main threads.
    pub processes: FxHashMap<u32, Comm>,
    waiting: VecDeque<SchedEvent>,
    hints: FxHashMap<u32, u64>,
    /// How many interrupts and softirqs each CPU is in.
    interrupted: FxHashMap<u32, [u32; 2]>,
    /// `sched_waking` comes before each `sched_wakeup`, which then says nothing new.
    has_waking: bool,
}

impl<R: BufRead> Reader<R> {
    /// Reads from the beginning.
    pub fn new(inner: R) -> Self {
        Self {
            inner,
            line: Vec::new(),
            lines: 0,
            unreadable: 0,
            first_unreadable: None,
            others: 0,
            cut: false,
            disorder: Disorder::default(),
            processes: FxHashMap::default(),
            waiting: VecDeque::new(),
            hints: FxHashMap::default(),
            interrupted: FxHashMap::default(),
            has_waking: false,
        }
    }

    /// The next event; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn next_event(&mut self) -> io::Result<Option<SchedEvent>> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(Some(event));
            }
            let mut text = std::mem::take(&mut self.line);
            text.clear();
            let read = Read::by_ref(&mut self.inner).take(MAX_LINE as u64).read_until(b'\n', &mut text)?;
            if read == 0 {
                return Ok(None);
            }
            let is_whole = text.ends_with(b"\n");
            if !is_whole && read == MAX_LINE {
                self.inner.skip_until(b'\n')?;
            }
            let line = text.trim_ascii_end();
            let is_header = text.starts_with(b"#");
            if !line.is_empty() {
                let parsed = parse(line).filter(|_| is_whole);
                // `perf script --header` says there what was recorded where.
                self.lines += u64::from(parsed.is_some() || !is_header);
                match parsed {
                    Some(line) => self.take(&line),
                    None if is_header => {}
                    None => {
                        self.unreadable += 1;
                        self.cut |= !is_whole && read < MAX_LINE;
                        self.first_unreadable.get_or_insert(self.lines);
                    }
                }
            }
            self.line = text;
        }
    }

    fn take(&mut self, line: &Line<'_>) {
        let Line { comm, pid, tid, cpu, time, event, trace, hint } = line;
        let (pid, tid, cpu, time) = (*pid, *tid, *cpu, *time);
        self.disorder.observe(tid, time);
        if pid == tid && pid != 0 && (self.processes.len() < MAX_NAMES || self.processes.contains_key(&pid)) {
            self.processes.insert(pid, *comm);
        }
        let at = |what| SchedEvent { time, cpu, pid, tid, cgroup: 0, what };
        if let Some(hint) = *hint {
            let known = self.hints.get(&tid).copied().unwrap_or(0);
            if known != hint && (self.hints.len() < MAX_NAMES || known > 0) {
                self.hints.insert(tid, hint);
                self.waiting.push_back(at(SchedWhat::Hint { tid, hint: (hint > 0).then_some(hint) }));
            }
        }
        let [interrupts, softirqs] = self.interrupted.entry(cpu).or_default();
        let (system, name) = event.split_once(':').unwrap_or_default();
        let level = match system {
            "irq_vectors" => Some(&mut *interrupts),
            "irq" if name.starts_with("irq_handler") => Some(&mut *interrupts),
            "irq" if name == "softirq_entry" || name == "softirq_exit" => Some(&mut *softirqs),
            _ => None,
        };
        match level {
            Some(level) if name.ends_with("_entry") => *level += 1,
            Some(level) if name.ends_with("_exit") => *level = level.saturating_sub(1),
            _ => {}
        }
        let by = match (*interrupts, *softirqs) {
            (0, 0) => WakenBy::Thread,
            (0, _) => WakenBy::Softirq,
            _ => WakenBy::Interrupt,
        };
        self.has_waking |= name == "sched_waking";
        if name == "sched_wakeup" && self.has_waking {
            self.others += 1;
            return;
        }
        match trace::parse(name, trace, by) {
            Some(Ok(what)) => {
                // As in `tracepoint::event`: an exiting thread has no ids any more.
                let tid = match what {
                    SchedWhat::Switch { prev, .. } if tid == SchedEvent::UNKNOWN => prev.tid,
                    _ => tid,
                };
                self.waiting.push_back(SchedEvent { tid, ..at(what) });
            }
            None => self.others += 1,
            Some(Err(())) => {
                self.unreadable += 1;
                self.first_unreadable.get_or_insert(self.lines);
            }
        }
    }
}

/// True if the beginning of a file is of this kind.
pub(crate) fn is_sched(head: &[u8]) -> bool {
    let mut lines = head.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n"));
    lines.any(|line| parse(line.trim_ascii_end()).is_some())
}

fn parse(line: &[u8]) -> Option<Line<'_>> {
    let parsed = if line.trim_ascii_start().starts_with(b"{") { of_json(line) } else { None };
    let parsed = parsed.or_else(|| of_script(line))?;
    let system = parsed.event.split_once(':')?.0;
    (SYSTEMS.contains(&system) && parsed.cpu < MAX_CPUS).then_some(parsed)
}

fn of_json(line: &[u8]) -> Option<Line<'_>> {
    let Fields { comm, pid, tid, cpu, time, event, trace, hint } = serde_json::from_slice(line).ok()?;
    let id = |number: i64| if number == -1 { Some(SchedEvent::UNKNOWN) } else { u32::try_from(number).ok() };
    let ns = (time * 1e9).round();
    let is_time = (0.0..9e18).contains(&ns);
    let trace = match trace {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    };
    let (comm, pid, tid) = (Comm::new(comm.as_bytes()), id(pid)?, id(tid)?);
    is_time.then_some(Line { comm, pid, tid, cpu, time: ns as u64, event, trace, hint })
}

fn of_script(line: &[u8]) -> Option<Line<'_>> {
    let (comm, _, Head { pid, tid, cpu, time, rest }) = head(line)?;
    let rest = rest.trim_ascii_start();
    let end = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
    let event = std::str::from_utf8(rest.get(..end)?).ok()?.strip_suffix(':')?;
    let trace = rest.get(end..)?.trim_ascii_start();
    let (event, trace) = (Cow::Borrowed(event), Cow::Borrowed(trace));
    Some(Line { comm: Comm::new(comm), pid, tid, cpu, time, event, trace, hint: None })
}

#[cfg(test)]
mod tests;
