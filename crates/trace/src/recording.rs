//! A recording that is no trace (a profile, a perf.data) in the terms of traces, so that the analysers run on it.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::analyze::{Analysis, Report};
use super::event::{Event, TraceEvent, TraceWhat};
use super::info::{sorted, Count, Info, Lost, Source};
use super::names::{Name, Names};
use super::threads::{TraceThreads, Tracks};
use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat};
use scxprof_base::sample::{Access, Comm, Sample};

/// CPUs that are told apart.
const MAX_CPUS: usize = 1 << 16;
/// Threads whose dispatch queue is followed.
const MAX_QUEUED: usize = 1 << 18;

/// A recording's description of itself.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    /// The tool and its version, empty if unknown.
    pub tool: String,
    /// It is a profile of scxprof.
    pub is_ours: bool,
    /// `uname -r` of the recorded host, empty if unknown.
    pub kernel: String,
    /// The clock of its times, empty if unknown.
    pub clock: String,
    /// CPUs of the host; 0 if unknown.
    pub cpus: u32,
    /// A time in ns of that clock, and the same in ns since 1970.
    pub real_time: Option<(u64, u64)>,
    /// Records by their kind.
    pub records: Vec<(String, u64)>,
    /// Other facts.
    pub attributes: Vec<(String, String)>,
    /// What could not be read, one sentence each.
    pub damage: Vec<String>,
    /// The places of CPUs are known, and with them the last-level caches.
    pub has_places: bool,
    /// The names of the events of samples by their number; empty where a sample is an access to memory.
    pub events: Vec<String>,
}

/// Follows the events of a recording.
#[derive(Debug, Default)]
pub struct Recording {
    threads: TraceThreads,
    /// It has none, but analysers ask for them.
    names: Names,
    tracks: Tracks,
    counts: BTreeMap<&'static str, u64>,
    /// Samples that say no access, by the number of their event.
    samples: BTreeMap<u16, u64>,
    span: Option<(u64, u64)>,
    cpus: BTreeSet<u32>,
    /// The dispatch queue of each thread that waits in one.
    queued: FxHashMap<u32, u64>,
    lost: u64,
}

impl Recording {
    /// Takes the next scheduling event, and gives to `each` what it is in a trace.
    pub fn sched(&mut self, event: &SchedEvent, each: &mut dyn FnMut(&Event)) {
        self.count(event);
        self.name(event);
        let mut dsq = |tid: u32, is_begin: bool, dsq: u64| {
            let what = TraceWhat::Dsq { is_begin, dsq: Some(dsq), layer: None, name: Name::NONE };
            each(&Event::Trace(TraceEvent { time: event.time, cpu: event.cpu, pid: TraceEvent::UNKNOWN, tid, what }));
        };
        match event.what {
            SchedWhat::DsqInsert { tid, dsq: to, .. } => self.queues(tid, to, &mut dsq),
            SchedWhat::DsqSwitch { prev, dsq: Some(to), .. } if self.queued.get(&prev) != Some(&to) => {
                self.queues(prev, to, &mut dsq);
            }
            SchedWhat::Switch { next, .. } => {
                if let Some(from) = self.queued.remove(&next.tid) {
                    dsq(next.tid, false, from);
                }
            }
            SchedWhat::Exit { task } => {
                if let Some(from) = self.queued.remove(&task.tid) {
                    dsq(task.tid, false, from);
                }
            }
            SchedWhat::Lost => self.queued.clear(),
            _ => {}
        }
        each(&Event::Sched(*event));
    }

    /// A thread is in a queue from now on, and no more in the one before.
    fn queues(&mut self, tid: u32, to: u64, dsq: &mut impl FnMut(u32, bool, u64)) {
        if self.queued.len() >= MAX_QUEUED && !self.queued.contains_key(&tid) {
            return;
        }
        if let Some(from) = self.queued.insert(tid, to) {
            dsq(tid, false, from);
        }
        dsq(tid, true, to);
    }

    /// Takes a memory access; returns what it is in a trace.
    pub fn access(&mut self, sample: &Sample) -> Event {
        let kind = match sample.raw.access {
            Access::Load => "memory:load",
            Access::Store => "memory:store",
            Access::Update => "memory:load and store",
            Access::Unknown => "memory:access",
        };
        let count = match sample.raw.access {
            Access::Unknown => self.samples.entry(sample.raw.event).or_default(),
            _ => self.counts.entry(kind).or_default(),
        };
        *count += 1;
        self.see(sample.raw.time);
        self.names_thread(sample.raw.tid, sample.raw.pid, sample.comm.as_ref());
        let (time, cpu, pid, tid) = (sample.raw.time, sample.raw.cpu, sample.raw.pid, sample.raw.tid);
        let what = TraceWhat::Other { event: self.names.add(kind.as_bytes()) };
        Event::Trace(TraceEvent { time, cpu, pid, tid, what })
    }

    /// The names, threads and tracks of its events so far.
    #[must_use]
    pub fn tables(&self) -> (&Names, &TraceThreads, &Tracks) {
        (&self.names, &self.threads, &self.tracks)
    }

    /// Takes the name of a process, that of its main thread.
    pub fn process(&mut self, pid: u32, comm: Comm) {
        self.threads.set(pid, Some(pid), comm.as_bytes());
    }

    fn see(&mut self, time: u64) {
        let (first, last) = self.span.unwrap_or((time, time));
        self.span = Some((first.min(time), last.max(time)));
    }

    /// What was counted, by name.
    fn counts(&self, recorded: &Recorded) -> BTreeMap<String, u64> {
        let mut counts: BTreeMap<String, u64> =
            self.counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        for (event, count) in &self.samples {
            let name = recorded.events.get(usize::from(*event)).filter(|name| !name.is_empty());
            *counts.entry(name.map_or("memory:access", String::as_str).to_owned()).or_default() += count;
        }
        counts
    }

    fn count(&mut self, event: &SchedEvent) {
        if matches!(event.what, SchedWhat::Lost) {
            self.lost += 1;
            return;
        }
        self.see(event.time);
        if self.cpus.len() < MAX_CPUS {
            self.cpus.insert(event.cpu);
        }
        *self.counts.entry(event.what.name()).or_default() += 1;
    }

    /// Keeps the names and processes that the event tells.
    fn name(&mut self, event: &SchedEvent) {
        let mut named = |task: &SchedTask| self.names_thread(task.tid, SchedEvent::UNKNOWN, Some(&task.comm));
        match &event.what {
            SchedWhat::Switch { prev, next, .. } => {
                named(prev);
                named(next);
            }
            SchedWhat::Waking { task, .. }
            | SchedWhat::WakeupNew { task, .. }
            | SchedWhat::Migrate { task, .. }
            | SchedWhat::Exit { task }
            | SchedWhat::Runtime { task, .. } => named(task),
            SchedWhat::Fork { child, comm, .. } => self.names_thread(*child, SchedEvent::UNKNOWN, Some(comm)),
            _ => {}
        }
        self.names_thread(event.tid, event.pid, None);
    }

    fn names_thread(&mut self, tid: u32, pid: u32, comm: Option<&Comm>) {
        let known = self.threads.get(tid);
        let is_known = known.is_some_and(|thread| {
            (pid == TraceEvent::UNKNOWN || thread.pid == pid) && comm.is_none_or(|comm| thread.comm == *comm)
        });
        if !is_known {
            let pid = (pid != TraceEvent::UNKNOWN).then_some(pid);
            self.threads.set(tid, pid, comm.map_or(&[], Comm::as_bytes));
        }
    }

    /// What the recording is.
    #[must_use]
    pub fn info(&self, recorded: &Recorded) -> Info {
        let (first_ns, last_ns) = self.span.unwrap_or_default();
        let unknown = TraceEvent::UNKNOWN;
        let processes: BTreeSet<u32> =
            self.threads.iter().map(|(_, thread)| thread.pid).filter(|pid| *pid != unknown).collect();
        let begin = recorded.real_time.filter(|_| self.span.is_some());
        let begin = begin.map(|(at, unix)| (i128::from(first_ns) - i128::from(at) + i128::from(unix)) as f64 / 1e9);
        let mut info = Info {
            source: if recorded.is_ours { Source::Scxprof } else { Source::Perf },
            tool: recorded.tool.clone(),
            kernel: recorded.kernel.clone(),
            cpus: recorded.cpus,
            cpus_seen: self.cpus.iter().copied().collect(),
            nodes: BTreeMap::new(),
            first_ns,
            last_ns,
            duration_ns: last_ns - first_ns,
            observed_from_ns: None,
            clock: recorded.clock.clone(),
            clocks: Vec::new(),
            unmapped_clocks: Vec::new(),
            begin_unix: begin,
            threads: self.threads.len(),
            processes: processes.len(),
            tracks: 0,
            stacks: 0,
            sequences: 0,
            events: sorted(self.counts(recorded)),
            unknown: Vec::new(),
            packets: recorded.records.iter().map(|(name, count)| Count { name: name.clone(), count: *count }).collect(),
            lost: Lost { bundles: self.lost, no_room: self.threads.left_out(), ..Lost::default() },
            attributes: recorded.attributes.clone(),
            analysers: Vec::new(),
            damage: recorded.damage.clone(),
        };
        info.analysers = super::analyze::capabilities(&info, recorded.has_places);
        info
    }

    /// The results of the analysers that got its events.
    #[must_use]
    pub fn analyze(&self, analysis: Analysis, info: &Info) -> Report {
        analysis.finish_with(&self.names, &self.threads, &self.tracks, info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::{Findings, Id, Options};
    use scxprof_base::sample::sched::TaskState;

    fn at(time: u64, what: SchedWhat) -> SchedEvent {
        SchedEvent { time, cpu: 0, pid: 10, tid: 10, cgroup: 1, what }
    }

    fn task(tid: u32) -> SchedTask {
        SchedTask { tid, prio: 120, comm: Comm::from("worker") }
    }

    #[test]
    fn dispatch_queues_of_a_profile_are_those_of_a_trace() {
        let insert = |tid, dsq| SchedWhat::DsqInsert { tid, dsq, slice: 0, is_moved: false };
        let switch = |prev, next| SchedWhat::Switch { prev: task(prev), state: TaskState::Sleeping, next: task(next) };
        let events = [
            at(100, insert(11, 7)),
            at(110, insert(12, 7)),
            // It is moved.
            at(130, insert(12, 8)),
            at(160, switch(10, 11)),
            at(200, switch(11, 12)),
            // The kernel keeps it for later.
            at(300, SchedWhat::DsqSwitch { prev: 12, dsq: Some(7), next: 0, slice: None }),
            at(300, switch(12, 0)),
            at(350, SchedWhat::Lost),
            at(400, switch(0, 12)),
        ];
        let mut recording = Recording::default();
        let mut analysis = Analysis::new(Options { only: vec![Id::DsqLatency], ..Options::default() });
        for event in &events {
            recording.sched(event, &mut |event| analysis.take(event));
        }
        let info = recording.info(&Recorded::default());
        let report = recording.analyze(analysis, &info);
        let Some(Findings::DsqLatency(found)) = report.get(Id::DsqLatency) else { panic!("{report:?}") };
        let lines: Vec<_> =
            found.dsqs.iter().map(|line| (line.dsq, line.latency.count, line.latency.total_ns)).collect();
        assert_eq!(lines, [(Some(7), 2, 60 + 20), (Some(8), 1, 70)]);
        assert_eq!((info.lost.bundles, info.duration_ns, info.threads), (1, 300, 3));
    }

    #[test]
    fn an_empty_recording_has_no_results() {
        let recording = Recording::default();
        let info = recording.info(&Recorded { real_time: Some((5, 7)), ..Recorded::default() });
        assert_eq!((info.duration_ns, info.begin_unix, info.events.len()), (0, None, 0));
        let report = recording.analyze(Analysis::new(Options::default()), &info);
        assert!(report.analyses.is_empty());
    }
}
