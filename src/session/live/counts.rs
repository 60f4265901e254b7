//! Accesses by thread and CPU, of the last window and since the start, within bounds.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::snapshot::{AccessCounts, AccessLine, CpuNow};
use crate::config::Placement;
use crate::sample::places::CpuPlaces;
use crate::sample::{Access, Comm, Sample, Task, ThreadIndex};
use scxprof_base::sample::printable;
use scxprof_base::tables::Tables;
use scxprof_sched::report::By;

/// The fewest and the most threads with counts of their own. If there are more, those that were not sampled for longest are added up by
/// name and cgroup.
const THREADS: (usize, usize) = (1 << 10, 1 << 16);
/// The part of all memory that these counts take.
const PART: usize = 64;
/// Names and cgroups of such threads; later ones are one row.
const MAX_GONE: usize = 1 << 12;
/// CPUs with this number or a higher one are not counted separately.
const MAX_CPUS: usize = 1 << 13;

/// Counts of the window that is filled, of the last complete one, and of all complete ones.
#[derive(Debug, Clone, Copy, Default)]
struct Spans {
    open: AccessCounts,
    window: AccessCounts,
    total: AccessCounts,
}

impl Spans {
    fn add(&mut self, sample: &Sample) {
        let share = f64::from(sample.raw.share);
        self.open.samples += share;
        if sample.memory.is_some() {
            self.open.located += share;
        }
        if matches!(sample.raw.access, Access::Store | Access::Update) {
            self.open.writes += share;
        }
    }

    fn end(&mut self) {
        self.window = std::mem::take(&mut self.open);
        self.total.add(&self.window);
    }
}

impl AccessCounts {
    fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.located += other.located;
        self.writes += other.writes;
    }
}

/// A thread.
#[derive(Debug, Clone, Copy)]
struct ThreadRow {
    pid: u32,
    tid: u32,
    comm: Option<Comm>,
    cgroup: u64,
    hint: Option<u64>,
    counts: Spans,
    /// The window of its last sample.
    seen: u64,
}

/// Accesses by thread and CPU.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    threads: FxHashMap<ThreadIndex, ThreadRow>,
    /// Threads that have no row any more, by name and cgroup: how many, and their accesses.
    gone: FxHashMap<(Option<Comm>, u64), (u64, AccessCounts)>,
    cpus: Vec<Spans>,
    windows: u64,
    /// The most threads.
    pub(super) limit: usize,
}

/// The names of threads, and their cgroups and processes.
pub(super) struct Names<'a> {
    pub(super) processes: &'a FxHashMap<u32, Comm>,
    pub(super) cgroups: &'a FxHashMap<u64, Arc<[u8]>>,
    pub(super) places: &'a CpuPlaces,
    pub(super) placement: Option<&'a Placement>,
}

impl Counts {
    /// For a capture within this number of bytes.
    pub(super) fn within(memory: usize) -> Self {
        let limit = (memory / PART / size_of::<(ThreadIndex, ThreadRow)>()).clamp(THREADS.0, THREADS.1);
        Self { limit, ..Self::default() }
    }

    pub(super) fn add(&mut self, samples: &[Sample]) {
        for sample in samples {
            let raw = &sample.raw;
            if !self.threads.contains_key(&sample.thread) && self.threads.len() >= self.limit {
                self.evict();
            }
            let row = self.threads.entry(sample.thread).or_insert(ThreadRow {
                // Threads without a name have one number, whichever they are.
                pid: if sample.comm.is_some() { raw.pid } else { 0 },
                tid: if sample.comm.is_some() { raw.tid } else { 0 },
                comm: None,
                cgroup: 0,
                hint: None,
                counts: Spans::default(),
                seen: 0,
            });
            row.comm = sample.comm.or(row.comm);
            (row.cgroup, row.hint, row.seen) = (raw.cgroup, sample.hint, self.windows);
            row.counts.add(sample);
            let cpu = raw.cpu as usize;
            if cpu < MAX_CPUS {
                if self.cpus.len() <= cpu {
                    self.cpus.resize(cpu + 1, Spans::default());
                }
                if let Some(counts) = self.cpus.get_mut(cpu) {
                    counts.add(sample);
                }
            }
        }
    }

    /// The window is over.
    pub(super) fn end_window(&mut self) {
        self.windows += 1;
        self.threads.values_mut().for_each(|row| row.counts.end());
        self.cpus.iter_mut().for_each(Spans::end);
    }

    /// Adds up the half of the threads that were not sampled for longest.
    fn evict(&mut self) {
        let mut seen: Vec<u64> = self.threads.values().map(|row| row.seen).collect();
        let middle = seen.len() / 2;
        let last = *seen.select_nth_unstable(middle).1;
        let mut left = seen.len() - middle;
        let gone = &mut self.gone;
        self.threads.retain(|_, row| {
            // Of those that were sampled in the same window, only as many as must go.
            if row.seen > last || (row.seen == last && left == 0) {
                return true;
            }
            left = left.saturating_sub(usize::from(row.seen == last));
            let mut key = (row.comm, row.cgroup);
            if gone.len() >= MAX_GONE && !gone.contains_key(&key) {
                key = (None, 0);
            }
            let sum = gone.entry(key).or_default();
            sum.0 += 1;
            sum.1.add(&row.counts.total);
            sum.1.add(&row.counts.open);
            false
        });
    }

    /// Cgroups of rows.
    pub(super) fn cgroups(&self) -> impl Iterator<Item = u64> + '_ {
        self.threads.values().map(|row| row.cgroup).chain(self.gone.keys().map(|key| key.1))
    }

    /// The lines of `by`, those with most samples in the last window first.
    pub(super) fn lines(&self, by: By, names: &Names<'_>) -> Vec<AccessLine> {
        let mut lines = match by {
            By::Cpu | By::Llc | By::Node => self.of_cpus(by, names.places),
            By::Thread | By::Process | By::Cgroup | By::Cell => self.of_threads(by, names),
        };
        lines.sort_by(|a, b| {
            let by_count =
                b.window.samples.total_cmp(&a.window.samples).then(b.total.samples.total_cmp(&a.total.samples));
            by_count.then_with(|| (&a.name, a.tid).cmp(&(&b.name, b.tid)))
        });
        lines
    }

    fn of_threads(&self, by: By, names: &Names<'_>) -> Vec<AccessLine> {
        let mut lines: FxHashMap<(String, Option<u32>, Option<u32>), AccessLine> = FxHashMap::default();
        let name_of = |comm: Option<Comm>| comm.map_or_else(|| "?".to_owned(), |comm| comm.to_string());
        let mut put = |(pid, tid, comm, cgroup, hint): (Option<u32>, Option<u32>, Option<Comm>, u64, Option<u64>),
                       threads: u64,
                       (window, total): (AccessCounts, AccessCounts)| {
            let path = names.cgroups.get(&cgroup);
            let subcell = || {
                let placement = names.placement?;
                let task = Task::new(path.map_or(&b""[..], |path| path), comm.as_ref().map_or(&[][..], Comm::as_bytes));
                let process = pid.and_then(|pid| names.processes.get(&pid)).map(Comm::as_bytes);
                let task = task.ids(pid.unwrap_or(0), tid.unwrap_or(0)).process(process);
                placement.taker(&if placement.uses_hints() { task.hinted(hint) } else { task })
            };
            let key = match by {
                By::Process => {
                    let process = pid.and_then(|pid| names.processes.get(&pid).copied());
                    (name_of(process.or(comm)), pid, None)
                }
                By::Cgroup => (path.map_or_else(|| "?".to_owned(), |path| printable(path)), None, None),
                By::Cell => (subcell().unwrap_or_else(|| "(no cell)".to_owned()), None, None),
                _ => (name_of(comm), pid, tid),
            };
            let line = lines.entry(key).or_insert_with_key(|(name, pid, tid)| AccessLine {
                name: name.clone(),
                pid: *pid,
                tid: *tid,
                ..AccessLine::default()
            });
            if matches!(by, By::Thread | By::Process) && line.cgroup.is_none() {
                line.cgroup = path.map(|path| printable(path));
            }
            if by == By::Thread && line.subcell.is_none() {
                line.subcell = subcell();
            }
            line.threads += threads;
            line.window.add(&window);
            line.total.add(&total);
        };
        for row in self.threads.values() {
            let ThreadRow { pid, tid, comm, cgroup, hint, counts, .. } = *row;
            let (pid, tid) = ((pid > 0).then_some(pid), (tid > 0).then_some(tid));
            put((pid, tid, comm, cgroup, hint), 1, (counts.window, counts.total));
        }
        for (&(comm, cgroup), &(threads, total)) in &self.gone {
            put((None, None, comm, cgroup, None), threads, (AccessCounts::default(), total));
        }
        lines.into_values().collect()
    }

    fn of_cpus(&self, by: By, places: &CpuPlaces) -> Vec<AccessLine> {
        let mut lines: FxHashMap<String, AccessLine> = FxHashMap::default();
        for (cpu, counts) in (0..).zip(&self.cpus).filter(|(_, counts)| counts.total.samples > 0.0) {
            let place = places.get(cpu);
            let name = match by {
                By::Cpu => Some(format!("CPU {cpu}")),
                By::Llc => place.map(|place| format!("LLC of CPU {}", place.llc)),
                _ => place.map(|place| format!("node {}", place.node)),
            };
            let name = name.unwrap_or_else(|| "(unknown)".to_owned());
            let line = lines.entry(name.clone()).or_insert_with(|| AccessLine { name, ..AccessLine::default() });
            line.window.add(&counts.window);
            line.total.add(&counts.total);
        }
        lines.into_values().collect()
    }

    /// The samples of a CPU in the last window, and since the start.
    fn of_cpu(&self, cpu: u32) -> (f64, f64) {
        self.cpus.get(cpu as usize).map_or((0.0, 0.0), |counts| (counts.window.samples, counts.total.samples))
    }

    pub(super) fn measure(&self, tables: &mut Tables) {
        let Self { threads, gone, cpus, .. } = self;
        let cpus = cpus.capacity() * size_of::<Spans>();
        let name = "accesses by thread and CPU";
        tables.set_map::<(ThreadIndex, ThreadRow)>(name, threads.len(), threads.capacity(), cpus);
        let name = "accesses of earlier threads";
        tables.set_map::<((Option<Comm>, u64), (u64, AccessCounts))>(name, gone.len(), gone.capacity(), 0);
    }
}

/// The CPUs with a known place, or with samples.
pub(super) fn cpus(counts: &Counts, places: &CpuPlaces, busy: &FxHashMap<u32, f64>) -> Vec<CpuNow> {
    let most = places.iter().map(|(cpu, _)| cpu + 1).max().unwrap_or(0).max(counts.cpus.len() as u32);
    let all = (0..most).map(|cpu| {
        let place = places.get(cpu);
        let (llc, node) = (place.map(|place| place.llc), place.map(|place| place.node));
        let (samples, total_samples) = counts.of_cpu(cpu);
        CpuNow { cpu, llc, node, busy: busy.get(&cpu).copied(), samples, total_samples }
    });
    all.filter(|it| it.llc.is_some() || it.total_samples > 0.0 || it.busy.is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::RawSample;

    fn sample(thread: u32, cpu: u32) -> Sample {
        let raw = RawSample { pid: thread / 2, tid: thread, cpu, share: 1.0, ..RawSample::default() };
        Sample { thread, comm: Some("t".into()), ..Sample::from(raw) }
    }

    fn names<'a>(
        processes: &'a FxHashMap<u32, Comm>,
        cgroups: &'a FxHashMap<u64, Arc<[u8]>>,
        places: &'a CpuPlaces,
    ) -> Names<'a> {
        Names { processes, cgroups, places, placement: None }
    }

    #[test]
    fn no_sample_is_lost_whatever_the_number_of_threads() {
        let mut counts = Counts::within(16 << 20);
        for round in 0..4 {
            for thread in 0..20_000 {
                counts.add(&[sample(round * 5000 + thread, thread % 3)]);
            }
            counts.end_window();
        }
        assert!(counts.threads.len() <= counts.limit && counts.limit < 10_000);
        let (processes, cgroups, places) = Default::default();
        let names = names(&processes, &cgroups, &places);
        for by in [By::Thread, By::Process, By::Cgroup, By::Cpu, By::Llc] {
            let lines = counts.lines(by, &names);
            let total: f64 = lines.iter().map(|line| line.total.samples).sum();
            assert!((total - 80_000.0).abs() < 1e-6, "{by:?}: {total}");
        }
        // A window in which nothing happens.
        counts.end_window();
        assert!(counts.lines(By::Thread, &names).iter().all(|line| line.window == AccessCounts::default()));
    }
}
