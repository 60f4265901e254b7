//! Which events of a trace are looked at: by type, thread, CPU and time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use regex::bytes::Regex;
use rustc_hash::FxHashMap;

use super::args::moment;
use super::failure::Failure;
use crate::config::mistake;
use crate::sample::Comm;
use scxprof_trace::analyze::{Select, ThreadTest};
use scxprof_trace::timeline::Target;
use scxprof_trace::{Event, Names, TraceEvent, TraceThreads};

/// Types that a message lists.
const LISTED: usize = 12;

/// Which events to look at; an event must pass all of these
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Selection")]
pub(super) struct SelectionArgs {
    /// Only events of these types, as `trace events` prints them; * stands for any text, such as sched_* or track:*
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Only these processes
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pid: Vec<u32>,
    /// Only these threads, and events that name them
    #[arg(long, value_name = "TID", value_delimiter = ',')]
    tid: Vec<u32>,
    /// Only what happened on these CPUs, such as 0-3,8
    #[arg(long, value_name = "CPUS", value_delimiter = ',', value_parser = range)]
    cpu: Vec<(u32, u32)>,
    /// Only threads whose name matches (repeatable: any of them)
    #[arg(long, value_name = "REGEX")]
    comm: Vec<String>,
    /// Start this long after the first event, such as 10, 500ms or 1m
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = moment)]
    from: Option<Duration>,
    /// End this long after the first event
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = moment)]
    to: Option<Duration>,
}

impl SelectionArgs {
    /// The thread or the CPU that `trace timeline` is about.
    pub(super) fn target(&self) -> Result<Target, Failure> {
        if !(self.types.is_empty() && self.pid.is_empty() && self.comm.is_empty()) {
            return Err(Failure::Usage(anyhow!(
                "a timeline is of one thread or one CPU: leave out --type, --pid and --comm"
            )));
        }
        match (self.tid.as_slice(), self.cpu.as_slice()) {
            ([tid], []) => Ok(Target::Thread(*tid)),
            ([], [(first, last)]) if first == last => Ok(Target::Cpu(*first)),
            _ => Err(Failure::Usage(anyhow!("a timeline is of one thread (--tid TID) or of one CPU (--cpu CPU)"))),
        }
    }

    /// The selected time alone.
    pub(super) fn times(&self) -> Self {
        Self { from: self.from, to: self.to, ..Self::default() }
    }
}

/// A range of CPUs, or one.
pub(super) fn range(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| text.parse::<u32>().ok().filter(|cpu| *cpu < 1 << 16);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        _ => Err("must be a CPU or a range of CPUs, such as 0-7".to_owned()),
    }
}

/// What an event is to a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Selected {
    Yes,
    No,
    /// It is after the selected time, as are all later ones.
    Past,
}

/// The compiled selection.
#[derive(Debug)]
pub(super) struct Selection {
    types: Vec<String>,
    pid: Vec<u32>,
    tid: Vec<u32>,
    cpu: Vec<(u32, u32)>,
    comm: Vec<Regex>,
    from: u64,
    to: Option<u64>,
    /// The time of the first event.
    first: Option<u64>,
    kept: bool,
    /// The types of events, until one was selected.
    seen: BTreeSet<String>,
}

impl Selection {
    pub(super) fn new(args: &SelectionArgs) -> Result<Self, Failure> {
        let one = |pattern: &String| {
            Regex::new(pattern).map_err(|error| {
                let (offset, reason) = mistake(pattern, &error);
                let at = offset.map_or(String::new(), |offset| format!(" at byte {offset}"));
                Failure::Usage(anyhow!("--comm {pattern}: the regular expression is wrong{at}: {reason}"))
            })
        };
        let ns = |time: Duration| time.as_nanos().min(u128::from(u64::MAX)) as u64;
        let (from, to) = (args.from.map_or(0, ns), args.to.map(ns));
        if to.is_some_and(|to| from >= to) {
            return Err(Failure::Usage(anyhow!("--from must be before --to")));
        }
        Ok(Self {
            types: args.types.clone(),
            pid: args.pid.clone(),
            tid: args.tid.clone(),
            cpu: args.cpu.clone(),
            comm: args.comm.iter().map(one).collect::<Result<_, _>>()?,
            from,
            to,
            first: None,
            kept: false,
            seen: BTreeSet::new(),
        })
    }

    fn has_threads(&self) -> bool {
        !(self.pid.is_empty() && self.tid.is_empty() && self.comm.is_empty())
    }

    /// True if all events pass.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_threads() && self.types.is_empty() && self.cpu.is_empty() && self.from == 0 && self.to.is_none()
    }

    /// ns since the first event.
    pub(super) fn since(&self, time: u64) -> u64 {
        time.saturating_sub(self.first.unwrap_or(time))
    }

    pub(super) fn keeps(&mut self, event: &Event, names: &Names, threads: &TraceThreads) -> Selected {
        let first = *self.first.get_or_insert(event.time());
        let since = event.time().saturating_sub(first);
        if self.to.is_some_and(|to| since >= to) {
            return Selected::Past;
        }
        let is_kept = since >= self.from
            && self.is_of_cpu(event.cpu())
            && self.is_of_type(event, names)
            && self.is_of_thread(event, threads);
        self.kept |= is_kept;
        if is_kept {
            Selected::Yes
        } else {
            Selected::No
        }
    }

    /// True if the time of a span, from `begin`, is looked at.
    pub(super) fn overlaps(&self, begin: u64, until: u64) -> bool {
        let (begin, until) = (self.since(begin), self.since(until));
        until >= self.from && self.to.is_none_or(|to| begin < to)
    }

    fn is_of_cpu(&self, cpu: u32) -> bool {
        self.cpu.is_empty() || self.cpu.iter().any(|(first, last)| (*first..=*last).contains(&cpu))
    }

    /// True if the type of the event is asked for.
    pub(super) fn is_of_type(&mut self, event: &Event, names: &Names) -> bool {
        if self.types.is_empty() {
            return true;
        }
        let kind = event.kind(names);
        if !self.kept && self.seen.len() < 256 && !self.seen.contains(&*kind) {
            self.seen.insert(kind.clone().into_owned());
        }
        self.types.iter().any(|wanted| is_like(wanted, &kind))
    }

    fn is_of_thread(&self, event: &Event, threads: &TraceThreads) -> bool {
        if !self.has_threads() {
            return true;
        }
        let (own, own_pid) = event.thread();
        let mut is_of = false;
        event.each_thread(|tid, comm| {
            let pid = || if tid == own { own_pid } else { threads.pid_at(tid, event.time()) };
            let known = || threads.get(tid).map(|thread| thread.comm);
            let comm = || comm.copied().or_else(known);
            is_of |= tid != TraceEvent::UNKNOWN
                && (self.tid.is_empty() || self.tid.contains(&tid))
                && (self.pid.is_empty() || self.pid.contains(&pid()))
                && (self.comm.is_empty() || matches(&self.comm, comm().as_ref()));
        });
        is_of
    }

    /// The same for the analysers, by what the trace says of its threads.
    pub(super) fn select(&self, threads: Option<&TraceThreads>) -> Select {
        let known: FxHashMap<u32, (u32, Comm)> = match threads {
            Some(threads) if self.has_threads() => {
                threads.iter().map(|(tid, thread)| (tid, (thread.pid, thread.comm))).collect()
            }
            _ => FxHashMap::default(),
        };
        let (pids, tids, comms) = (self.pid.clone(), self.tid.clone(), self.comm.clone());
        let test = move |tid: u32, pid: u32, comm: Option<&Comm>| {
            let of = known.get(&tid);
            let is_said = pid != 0 && pid != TraceEvent::UNKNOWN || tid == 0;
            let pid = if is_said { pid } else { of.map_or(pid, |(pid, _)| *pid) };
            let comm = comm.filter(|comm| !comm.is_empty()).or(of.map(|(_, comm)| comm));
            (tids.is_empty() || tids.contains(&tid))
                && (pids.is_empty() || pids.contains(&pid))
                && (comms.is_empty() || matches(&comms, comm))
        };
        Select {
            threads: self.has_threads().then(|| ThreadTest(Arc::new(test))),
            cpus: self.cpu.clone(),
            from: self.from,
            to: self.to,
        }
    }

    /// Why nothing was selected; `None` if something was.
    pub(super) fn nothing(&self) -> Option<String> {
        if self.kept || self.is_empty() {
            return None;
        }
        let mut types: Vec<&str> = self.seen.iter().map(String::as_str).collect();
        let more = types.len().saturating_sub(LISTED);
        types.truncate(LISTED);
        let types = match (types.is_empty(), more) {
            (true, _) => String::new(),
            (false, 0) => format!("; its types are {}", types.join(", ")),
            (false, more) => format!("; its types are {} and {more} more", types.join(", ")),
        };
        Some(format!("no event matches the selection{types}"))
    }
}

fn matches(patterns: &[Regex], comm: Option<&Comm>) -> bool {
    comm.is_some_and(|comm| patterns.iter().any(|pattern| pattern.is_match(comm.as_bytes())))
}

/// True if `text` is `wanted`, in which * stands for any text. The name of a category needs no `track:`.
fn is_like(wanted: &str, text: &str) -> bool {
    let like = |text: &str| {
        let mut parts = wanted.split('*');
        let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
        let mut parts = parts.peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return rest.ends_with(part);
            }
            let Some((_, after)) = rest.split_once(part) else { return false };
            rest = after;
        }
        rest.is_empty()
    };
    like(text) || text.strip_prefix("track:").is_some_and(like)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (wanted, text) in [
            ("sched_switch", "sched_switch"),
            ("sched_*", "sched_waking"),
            ("*", ""),
            ("*_entry", "irq_handler_entry"),
            ("s*_w*g", "sched_waking"),
            ("WAKER", "track:WAKER"),
            ("track:W*", "track:WAKEE"),
        ] {
            assert!(is_like(wanted, text), "{wanted} {text}");
        }
        for (wanted, text) in [("sched", "sched_switch"), ("s*x", "sched"), ("a*a", "a"), ("track:A", "A")] {
            assert!(!is_like(wanted, text), "{wanted} {text}");
        }
    }

    #[test]
    fn a_range_is_of_cpus() {
        assert_eq!((range("0-7"), range("3")), (Ok((0, 7)), Ok((3, 3))));
        for wrong in ["7-0", "x", "-", "0-65536", "1-2-3"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }
}
