//! A sink that writes a trace in Perfetto's format: what a profile has, for ui.perfetto.dev.

use std::fmt;
use std::io::{self, Write};

use rustc_hash::FxHashMap;

use super::queues::{Depth, Dsqs};
use super::sink::Sink;
use crate::resolve::Cgroups;
use crate::sample::places::CpuPlaces;
use crate::sample::sched::{SchedEvent, SchedTask, SchedWhat};
use crate::sample::{Access, Comm, Sample, Task, TaskHint};
use scxprof_trace::write::{Arg, Category, Recorded, Track, Writer};

/// The counters of a subcell are sums over this number of ns.
const WINDOW: u64 = 10_000_000;
/// Stands for the cache of a CPU whose place is not known.
const UNPLACED: u32 = u32::MAX;
/// Threads with a track, by number and name; what later ones did is on the track of their subcell.
const MAX_THREADS: usize = 1 << 16;
/// Threads whose cgroup or state is followed.
const MAX_FOLLOWED: usize = 1 << 18;

/// The cell and the subcell of a thread, found by its cgroup and its name; `None` if it is in no cell.
pub type PlaceOf<'a> = &'a dyn Fn(&Task<'_>) -> Option<(String, Option<String>)>;

/// The facts about a profile beside its samples and events.
#[derive(Clone)]
pub struct TraceOptions<'a> {
    /// The cells: each is a track, with one for each subcell below it.
    pub place_of: PlaceOf<'a>,
    /// The cells depend on the hints of threads, which were followed.
    pub by_hint: bool,
    /// The communities of threads, by thread id.
    pub communities: FxHashMap<u32, u32>,
    /// The places of CPUs, for run queues of last-level caches.
    pub places: CpuPlaces,
    /// `uname -r` of the recorded host, empty if unknown: it tells readers what the states of threads mean.
    pub kernel: String,
    /// A time in ns of CLOCK_MONOTONIC, and the same in ns since 1970.
    pub real_time: Option<(u64, u64)>,
}

impl fmt::Debug for TraceOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceOptions").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}

/// Counts of what was written to a trace, and what was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TraceCounts {
    /// Accesses.
    pub accesses: u64,
    /// Scheduling events.
    pub sched: u64,
    /// Of these, events that the format has no place for: charged CPU time.
    pub left_out: u64,
    /// Threads without a track of their own.
    pub without_track: u64,
}

/// A sum over windows of time.
#[derive(Debug)]
struct Windowed {
    track: Track,
    window: u64,
    sum: f64,
}

/// A subcell.
#[derive(Debug)]
struct Group {
    track: Track,
    samples: Windowed,
    migrations: Windowed,
}

/// The hint of a thread, as a slice.
#[derive(Debug)]
struct HintTrack {
    track: Track,
    hint: Option<u64>,
}

/// Writes a trace. It is complete after [`TraceSink::finish`].
pub struct TraceSink<'a, W> {
    options: TraceOptions<'a>,
    writer: Writer<W>,
    cells: FxHashMap<String, Track>,
    names: FxHashMap<(String, String), usize>,
    groups: Vec<Group>,
    /// By cgroup, name and hint.
    group_of: FxHashMap<(u64, Comm, TaskHint), usize>,
    /// By thread id, name and the index of the subcell.
    threads: FxHashMap<(u32, Comm, usize), Track>,
    hints: FxHashMap<u32, HintTrack>,
    cgroup_of: FxHashMap<u32, u64>,
    queues: FxHashMap<u32, Depth>,
    queues_track: Option<Track>,
    dsqs: Dsqs,
    waiting: FxHashMap<u32, u32>,
    running: FxHashMap<u32, u32>,
    processes: Vec<(u32, Comm)>,
    counts: TraceCounts,
    last: u64,
    failed: Option<io::Error>,
}

impl<W> fmt::Debug for TraceSink<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceSink").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl<'a, W: Write> TraceSink<'a, W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(out: W, options: TraceOptions<'a>) -> io::Result<Self> {
        let recorded = Recorded {
            kernel: options.kernel.clone(),
            cpus: options.places.iter().count(),
            real_time: options.real_time,
        };
        Ok(Self {
            writer: Writer::new(out, &recorded)?,
            options,
            cells: FxHashMap::default(),
            names: FxHashMap::default(),
            groups: Vec::new(),
            group_of: FxHashMap::default(),
            threads: FxHashMap::default(),
            hints: FxHashMap::default(),
            cgroup_of: FxHashMap::default(),
            queues: FxHashMap::default(),
            queues_track: None,
            dsqs: Dsqs::default(),
            waiting: FxHashMap::default(),
            running: FxHashMap::default(),
            processes: Vec::new(),
            counts: TraceCounts::default(),
            last: 0,
            failed: None,
        })
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// It could not be written.
    pub fn finish(mut self) -> io::Result<(W, TraceCounts)> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        for hint in self.hints.values().filter(|it| it.hint.is_some()) {
            self.writer.end(self.last, hint.track)?;
        }
        for group in &mut self.groups {
            for counter in [&mut group.samples, &mut group.migrations] {
                counter.flush(&mut self.writer)?;
            }
        }
        for queue in self.queues.values_mut() {
            queue.write(self.last, &mut self.writer)?;
        }
        self.dsqs.finish(self.last, &mut self.writer)?;
        self.counts.left_out = self.writer.left_out;
        Ok((self.writer.finish(&self.processes)?, self.counts))
    }

    /// The facts by which cells match a thread with this hint.
    fn task_hint(&self, hint: Option<u64>) -> TaskHint {
        if self.options.by_hint {
            hint.into()
        } else {
            TaskHint::Unknown
        }
    }

    /// The subcell of a cgroup's threads of a name and a hint.
    fn group(&mut self, cgroup: u64, comm: Comm, hint: TaskHint, cgroups: &mut Cgroups) -> io::Result<usize> {
        if let Some(&group) = self.group_of.get(&(cgroup, comm, hint)) {
            return Ok(group);
        }
        let path = cgroups.path(cgroup).map(|path| path.to_vec()).unwrap_or_default();
        let place = (self.options.place_of)(&Task { hint, ..Task::new(&path, comm.as_bytes()) });
        let (cell, subcell) = place.unwrap_or_else(|| ("(no cell)".to_owned(), None));
        let subcell = subcell.unwrap_or_else(|| "all threads".to_owned());
        let names = (cell, subcell);
        let group = match self.names.get(&names) {
            Some(&group) => group,
            None => self.add_group(names)?,
        };
        if self.group_of.len() < MAX_FOLLOWED {
            self.group_of.insert((cgroup, comm, hint), group);
        }
        Ok(group)
    }

    /// A subcell that was not seen before.
    fn add_group(&mut self, names: (String, String)) -> io::Result<usize> {
        if !self.cells.contains_key(&names.0) {
            let track = self.writer.track(&format!("cell {}", names.0), None, false)?;
            self.cells.insert(names.0.clone(), track);
        }
        let parent = self.cells.get(&names.0).copied();
        let track = self.writer.track(&format!("subcell {}", names.1), parent, false)?;
        let mut counter = |name: &str| self.writer.track(name, Some(track), true).map(Windowed::new);
        let (samples, migrations) = (counter("samples in 10 ms")?, counter("migrations in 10 ms")?);
        self.groups.push(Group { track, samples, migrations });
        self.names.insert(names, self.groups.len() - 1);
        Ok(self.groups.len() - 1)
    }

    /// The track of the thread of a sample, and its subcell. A thread has one for each name in each subcell.
    fn thread(&mut self, sample: &Sample, cgroups: &mut Cgroups) -> io::Result<(Track, usize)> {
        let (tid, comm) = (sample.raw.tid, sample.comm.unwrap_or_default());
        let group = self.group(sample.raw.cgroup, comm, self.task_hint(sample.hint), cgroups)?;
        if let Some(&track) = self.threads.get(&(tid, comm, group)) {
            return Ok((track, group));
        }
        let Some(parent) = self.groups.get(group).map(|group| group.track) else {
            return Err(io::Error::other("a subcell without a track"));
        };
        if self.threads.len() >= MAX_THREADS {
            self.counts.without_track += 1;
            return Ok((parent, group));
        }
        let track = self.writer.track(&format!("{comm} {tid}"), Some(parent), false)?;
        self.threads.insert((tid, comm, group), track);
        Ok((track, group))
    }

    fn access(&mut self, sample: &Sample, cgroups: &mut Cgroups) -> io::Result<()> {
        self.last = self.last.max(sample.raw.time);
        self.counts.accesses += 1;
        let (track, group) = self.thread(sample, cgroups)?;
        self.writer.thread(sample.raw.tid, sample.raw.pid, sample.comm);
        let name = match sample.raw.access {
            Access::Load => "load",
            Access::Store => "store",
            Access::Update => "load and store",
            Access::Unknown => "access",
        };
        let community = self.options.communities.get(&sample.raw.tid).map(|&community| u64::from(community));
        let known = |value: u64| (value != 0).then_some(value);
        let args: Vec<(Arg, u64)> = [
            (Arg::Addr, known(sample.raw.addr)),
            (Arg::Phys, known(sample.raw.phys)),
            (Arg::PageSize, known(sample.raw.page_size)),
            (Arg::Latency, known(sample.raw.latency.into())),
            (Arg::DataSrc, known(sample.raw.data_src.0)),
            (Arg::Community, community),
            (Arg::Hint, sample.hint),
        ]
        .into_iter()
        .filter_map(|(arg, value)| Some((arg, value?)))
        .collect();
        self.writer.instant(sample.raw.time, track, Category::Memory, name, &args)?;
        if let Some(group) = self.groups.get_mut(group) {
            group.samples.add(sample.raw.time, f64::from(sample.raw.share), &mut self.writer)?;
        }
        Ok(())
    }

    fn event(&mut self, event: &SchedEvent, cgroups: &mut Cgroups) -> io::Result<()> {
        self.last = self.last.max(event.time);
        if let SchedWhat::Hint { tid, hint } = event.what {
            return self.hint(event.time, tid, hint);
        }
        self.counts.sched += u64::from(event.what != SchedWhat::Lost);
        if event.cgroup != 0 && (self.cgroup_of.len() < MAX_FOLLOWED || self.cgroup_of.contains_key(&event.tid)) {
            self.cgroup_of.insert(event.tid, event.cgroup);
        }
        self.follow(event)?;
        if let SchedWhat::Migrate { task, .. } = &event.what {
            let cgroup = self.cgroup_of.get(&task.tid).copied().unwrap_or(0);
            let hint = self.task_hint(self.hints.get(&task.tid).and_then(|it| it.hint));
            let group = self.group(cgroup, task.comm, hint, cgroups)?;
            if let Some(group) = self.groups.get_mut(group) {
                group.migrations.add(event.time, 1.0, &mut self.writer)?;
            }
        }
        let threads = &self.threads;
        let own = |tid: u32| threads.iter().find(|((of, ..), _)| *of == tid).map(|(_, &track)| track);
        if self.dsqs.take(event, &mut self.writer, own)? {
            return Ok(());
        }
        self.writer.sched(event)
    }

    fn hint(&mut self, time: u64, tid: u32, hint: Option<u64>) -> io::Result<()> {
        let track = match self.hints.get(&tid) {
            Some(known) => known.track,
            None if hint.is_none() || self.hints.len() >= MAX_THREADS => return Ok(()),
            None => {
                let own = self.threads.iter().find(|((of, ..), _)| *of == tid).map(|(_, &track)| track);
                self.writer.track(&format!("hint of {tid}"), own, false)?
            }
        };
        let known = self.hints.entry(tid).or_insert(HintTrack { track, hint: None });
        if std::mem::replace(&mut known.hint, hint).is_some() {
            self.writer.end(time, track)?;
        }
        match hint {
            Some(hint) => self.writer.begin(time, track, Category::Hint, &format!("hint {hint}")),
            None => Ok(()),
        }
    }

    /// Follows which threads wait for a CPU of which last-level cache.
    fn follow(&mut self, event: &SchedEvent) -> io::Result<()> {
        let SchedEvent { time, cpu, .. } = *event;
        match &event.what {
            SchedWhat::Waking { task, target_cpu, .. } | SchedWhat::WakeupNew { task, target_cpu }
                if !self.running.contains_key(&task.tid) && !self.waiting.contains_key(&task.tid) =>
            {
                self.waits(time, task, *target_cpu)?;
            }
            SchedWhat::Migrate { task, to, .. } if self.waiting.contains_key(&task.tid) => {
                self.waits_no_more(time, task.tid)?;
                self.waits(time, task, *to)?;
            }
            SchedWhat::Switch { prev, state, next } => {
                self.running.remove(&prev.tid);
                if state.is_runnable() {
                    self.waits(time, prev, cpu)?;
                }
                self.waits_no_more(time, next.tid)?;
                if next.tid != 0 && self.running.len() < MAX_FOLLOWED {
                    self.running.insert(next.tid, cpu);
                }
            }
            SchedWhat::Lost => {
                // Who waits is not known any more.
                self.running.clear();
                let waiting: Vec<u32> = self.waiting.keys().copied().collect();
                for tid in waiting {
                    self.waits_no_more(time, tid)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn waits(&mut self, time: u64, task: &SchedTask, cpu: u32) -> io::Result<()> {
        if task.tid == 0 || task.tid == SchedEvent::UNKNOWN || self.waiting.len() >= MAX_FOLLOWED {
            return Ok(());
        }
        let llc = self.options.places.get(cpu).map_or(UNPLACED, |place| place.llc);
        self.waiting.insert(task.tid, llc);
        self.queue(time, llc, 1)
    }

    fn waits_no_more(&mut self, time: u64, tid: u32) -> io::Result<()> {
        match self.waiting.remove(&tid) {
            Some(llc) => self.queue(time, llc, -1),
            None => Ok(()),
        }
    }

    fn queue(&mut self, time: u64, llc: u32, change: i64) -> io::Result<()> {
        if !self.queues.contains_key(&llc) {
            let parent = match self.queues_track {
                Some(parent) => parent,
                None => *self.queues_track.insert(self.writer.track("threads that wait for a CPU", None, false)?),
            };
            let name = match llc {
                UNPLACED if self.options.places.is_empty() => "all CPUs".to_owned(),
                UNPLACED => "CPUs of unknown place".to_owned(),
                llc => format!("LLC of CPU {llc}"),
            };
            let track = self.writer.track(&name, Some(parent), true)?;
            self.queues.insert(llc, Depth::new(track));
        }
        let Some(queue) = self.queues.get_mut(&llc) else { return Ok(()) };
        queue.change(time, change, &mut self.writer)
    }

    fn keep(&mut self, result: io::Result<()>) {
        if let Err(error) = result {
            self.failed = Some(error);
        }
    }
}

impl Windowed {
    fn new(track: Track) -> Self {
        Self { track, window: 0, sum: 0.0 }
    }

    fn add(&mut self, time: u64, value: f64, writer: &mut Writer<impl Write>) -> io::Result<()> {
        let window = time / WINDOW;
        if window != self.window {
            self.flush(writer)?;
            if self.sum > 0.0 && window > self.window + 1 {
                writer.counter((self.window + 1) * WINDOW, self.track, 0.0)?;
            }
            (self.window, self.sum) = (window, 0.0);
        }
        self.sum += value;
        Ok(())
    }

    /// Writes the value of the window, at its beginning.
    fn flush(&self, writer: &mut Writer<impl Write>) -> io::Result<()> {
        if self.sum > 0.0 {
            writer.counter(self.window * WINDOW, self.track, self.sum)?;
        }
        Ok(())
    }
}

impl<W: Write> Sink for TraceSink<'_, W> {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        if self.failed.is_none() {
            let written = self.access(sample, cgroups);
            self.keep(written);
        }
    }

    fn sched(&mut self, events: &[SchedEvent], cgroups: &mut Cgroups) {
        for event in events {
            if self.failed.is_none() {
                let written = self.event(event, cgroups);
                self.keep(written);
            }
        }
    }

    fn processes(&mut self, names: &[(u32, Comm)], _: &mut Cgroups) {
        self.processes.extend_from_slice(names);
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
