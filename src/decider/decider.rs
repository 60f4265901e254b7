//! The sink from which a configuration is computed: counts of samples by cell and thread, and the sketch, each within bounds.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::over_time::OfThreads;
use crate::cluster::slices::Slices;
use crate::cluster::Sharing;
use crate::config::{awake, CellIndex, CellSpecs, NameIndex, Tally};
use crate::memory::prefetch;
use crate::resolve::Cgroups;
use crate::sample::{Comm, MemoryId, RawSample, Sample, Source, ThreadIndex};
use crate::sinks::Sink;
use scxprof_base::tables::Tables;

/// This many threads are judged from their first sample on; later ones need [`ADMISSION_SAMPLES`] samples first, so that
/// short-lived processes do not displace long-lived ones.
const ADMIT_FREELY: usize = 1 << 14;
/// Samples that a thread needs to be judged if there are many threads.
const ADMISSION_SAMPLES: u8 = 8;
/// The number of threads that are judged; all others are known only by their name.
const MAX_THREADS: usize = 1 << 16;
/// The number of cgroups with a cached cell.
const MAX_CGROUPS: usize = 1 << 16;

/// Counts samples by cell and name, and sketches which threads touch which memory; `session::Sampled` makes the decision.
#[derive(Debug)]
pub struct Decider {
    pub(super) specs: CellSpecs,
    pub(super) source: Source,
    pub(super) tally: Tally,
    pub(super) sharing: Sharing,
    /// Each cgroup's cell and its path, if it has one.
    pub(super) cell_of_cgroup: FxHashMap<u64, CellOf>,
    /// The last cgroup with a path, and its cell: many consecutive samples belong to one.
    pub(super) last_cgroup: Option<(u64, CellIndex)>,
    /// True if a thread with another hint belongs to another class.
    pub(super) use_hints: bool,
    /// The sketch's numbers of threads, one for each hint of a thread if hints are used.
    pub(super) known: FxHashMap<(ThreadIndex, Option<u64>), u32>,
    /// The same by the thread's index, without hints and for the first threads; [`u32::MAX`] for the others.
    pub(super) direct: Vec<u32>,
    /// The numbers of each thread, the first of them first, where hints are used.
    pub(super) numbers: FxHashMap<ThreadIndex, Vec<u32>>,
    pub(super) candidates: FxHashMap<(ThreadIndex, Option<u64>), u8>,
    pub(super) facts: Vec<Facts>,
    pub(super) no_cgroup_path: u64,
    pub(super) unlisted: u64,
    /// Some sample had an address.
    pub(super) has_address: bool,
    pub(super) wants_code: bool,
    /// A report will be made of the decision.
    pub(super) reports: bool,
    /// Samples of each thread over time.
    pub(super) over_time: OfThreads,
    /// The samples in slices of time, for scores.
    pub(super) slices: Option<Slices>,
    /// The names of the processes with threads in the sketch; complete when the last sample was given.
    pub(super) process_names: FxHashMap<u32, Comm>,
    /// CPUs that were busy on average, if that is known and all samples were counted.
    pub(super) busy_cpus: Option<f64>,
    pub(super) memory: usize,
}

/// The cell of a cgroup, and its path if it has one.
type CellOf = (CellIndex, Option<Arc<[u8]>>);

/// Facts about a thread in the sketch.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) hint: Option<u64>,
    pub(super) cell: CellIndex,
    /// The cgroup of its last sample.
    pub(super) cgroup: u64,
    /// The cell of its last sample and its last name, that name's place in the tally for them, and its samples there.
    pub(super) last: (CellIndex, Comm),
    pub(super) name: NameIndex,
    pub(super) here: f64,
    /// The same of cells that it was in before, a few of them.
    pub(super) elsewhere: Vec<(CellIndex, NameIndex, f64)>,
    /// How many more samples were in `cell` than elsewhere since `cell` last changed.
    pub(super) lead: u32,
    pub(super) samples: f64,
}

impl Decider {
    /// A decider for these cell specs. Of `memory` bytes, the same as those of the capture or replay, the sketch takes three
    /// eighths.
    #[must_use]
    pub fn new(specs: CellSpecs, source: Source, memory: usize) -> Self {
        Self {
            specs,
            source,
            tally: Tally::default(),
            sharing: Sharing::new(memory / 8 * 3),
            cell_of_cgroup: FxHashMap::default(),
            last_cgroup: None,
            use_hints: false,
            known: FxHashMap::default(),
            direct: Vec::new(),
            numbers: FxHashMap::default(),
            candidates: FxHashMap::default(),
            facts: Vec::new(),
            no_cgroup_path: 0,
            unlisted: 0,
            has_address: false,
            wants_code: false,
            reports: true,
            over_time: OfThreads::new(memory / 16),
            slices: None,
            process_names: FxHashMap::default(),
            busy_cpus: None,
            memory,
        }
    }

    /// Records which code touches the hottest shared lines, for the report.
    #[must_use]
    pub fn keep_code(self) -> Self {
        Self { wants_code: true, ..self }
    }

    /// Computes only what a configuration needs, unless it leaves out some of the groups.
    #[must_use]
    pub fn without_report(self) -> Self {
        Self { reports: false, ..self }
    }

    /// Keeps the data for the certainty of a score, in another eighth of the memory.
    #[must_use]
    pub fn keep_slices(self) -> Self {
        Self { slices: Some(Slices::new(self.memory / 8)), ..self }
    }

    /// For samples of a recording: reads them faster where huge pages are allowed. During a capture, the kernel would compact
    /// memory for these.
    #[must_use]
    pub(crate) fn of_recording(mut self) -> Self {
        self.sharing.use_huge_pages();
        self
    }

    /// Makes the hint a part of the class: a thread that changes its hint counts as one thread for each hint.
    #[must_use]
    pub fn use_hints(self) -> Self {
        Self { use_hints: true, ..self }
    }

    /// Sets how many CPUs were busy on average during a capture of the whole host.
    pub(crate) fn know_busy_cpus(&mut self, cpus: Option<f64>) {
        self.busy_cpus = cpus;
    }

    /// Samples that a thread would have that never sleeps.
    pub(super) fn samples_of_awake(&self) -> f64 {
        let busiest = self.facts.iter().map(|facts| facts.samples).fold(0.0, f64::max);
        awake(busiest, self.tally.total(), self.busy_cpus)
    }

    /// True after [`Decider::keep_code`].
    pub(crate) fn keeps_code(&self) -> bool {
        self.wants_code
    }

    /// True after [`Decider::use_hints`].
    pub(crate) fn uses_hints(&self) -> bool {
        self.use_hints
    }

    /// The source of the addresses.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// The cell specs.
    #[must_use]
    pub(crate) fn specs(&self) -> &CellSpecs {
        &self.specs
    }

    /// The counts of samples.
    #[must_use]
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Samples of cgroups without a path; they count for the last cell.
    #[must_use]
    pub(crate) fn no_cgroup_path(&self) -> u64 {
        self.no_cgroup_path
    }

    /// Samples of threads beyond the number that is judged.
    #[must_use]
    pub(crate) fn unlisted(&self) -> u64 {
        self.unlisted
    }

    /// The sketch's number of a thread; `None` if there are too many.
    fn number(&mut self, sample: &Sample, comm: Comm, cell: CellIndex) -> Option<u32> {
        // If hints make no difference, most threads are found without hashing.
        let direct = sample.thread as usize;
        if let Some(&number) = self.direct.get(direct).filter(|&&number| number != u32::MAX) {
            return Some(number);
        }
        let hint = sample.hint.filter(|_| self.use_hints);
        let key = (sample.thread, hint);
        if let Some(&number) = self.known.get(&key) {
            return Some(number);
        }
        if self.facts.len() >= MAX_THREADS {
            return None;
        }
        if self.facts.len() >= ADMIT_FREELY {
            if self.candidates.len() >= ADMIT_FREELY {
                self.candidates.clear();
            }
            let seen = self.candidates.entry(key).or_default();
            *seen += 1;
            if *seen < ADMISSION_SAMPLES {
                return None;
            }
            self.candidates.remove(&key);
        }
        let number = self.facts.len() as u32;
        self.known.insert(key, number);
        if !self.use_hints && direct < MAX_THREADS {
            self.direct.resize(self.direct.len().max(direct + 1), u32::MAX);
            self.direct[direct] = number;
        }
        if self.use_hints {
            let numbers = self.numbers.entry(sample.thread).or_default();
            if let Some(&first) = numbers.first() {
                self.sharing.same_thread(number, first);
            }
            numbers.push(number);
        }
        let Sample { raw: RawSample { pid, tid, cgroup, .. }, .. } = *sample;
        let name = self.tally.name(cell, comm);
        let last = (cell, comm);
        let elsewhere = Vec::new();
        self.facts.push(Facts {
            pid,
            tid,
            hint,
            cell,
            cgroup,
            last,
            name,
            here: 0.0,
            elsewhere,
            lead: 0,
            samples: 0.0,
        });
        Some(number)
    }

    /// Gives a thread another name, under each of its numbers. Its samples so far count by that too: the scheduler matches the name
    /// that a thread has, and a name that it had before its exec would make a class without threads.
    fn rename(&mut self, thread: ThreadIndex, comm: Comm) {
        let Self { facts, tally, numbers, known, .. } = self;
        let several = numbers.get(&thread).into_iter().flatten();
        for number in several.chain(known.get(&(thread, None))) {
            if let Some(facts) = facts.get_mut(*number as usize).filter(|facts| facts.last.1 != comm) {
                facts.rename(comm, tally);
            }
        }
    }

    /// The cell of a sample's cgroup.
    fn cell(&mut self, cgroup: u64, cgroups: &mut Cgroups) -> CellIndex {
        if self.cell_of_cgroup.len() >= MAX_CGROUPS {
            self.cell_of_cgroup.clear();
        }
        let Self { specs, tally, cell_of_cgroup, .. } = self;
        let known = cell_of_cgroup.get(&cgroup);
        // The next reading of cgroupfs makes up for a lost record.
        let known = known.filter(|known| known.1.is_some() || cgroups.path(cgroup).is_none());
        let (cell, has_path) = if let Some((cell, path)) = known {
            (*cell, path.is_some())
        } else {
            let path = cgroups.path(cgroup);
            let cell = tally.cell(specs.assign(path.map_or(&b"/"[..], |path| path)));
            cell_of_cgroup.insert(cgroup, (cell, path.cloned()));
            (cell, path.is_some())
        };
        self.no_cgroup_path += u64::from(!has_path);
        self.last_cgroup = has_path.then_some((cgroup, cell));
        cell
    }

    /// Counts a sample for its cell and thread; returns the thread's number if it has one.
    fn count(&mut self, sample: &Sample, cgroups: &mut Cgroups) -> Option<u32> {
        let cell = match self.last_cgroup {
            Some((cgroup, cell)) if cgroup == sample.raw.cgroup => cell,
            _ => self.cell(sample.raw.cgroup, cgroups),
        };
        let share = f64::from(sample.raw.share);
        let Some(comm) = sample.comm else {
            self.tally.add(cell, None, share);
            return None;
        };
        let Some(number) = self.number(sample, comm, cell) else {
            self.tally.add(cell, Some(comm), share);
            self.unlisted += 1;
            return None;
        };
        if self.facts.get(number as usize).is_some_and(|facts| facts.last.1 != comm) {
            self.rename(sample.thread, comm);
        }
        if let Some(facts) = self.facts.get_mut(number as usize) {
            facts.cgroup = sample.raw.cgroup;
            if facts.last.0 != cell {
                facts.move_to(cell, &mut self.tally);
            }
            self.tally.count(cell, Some(facts.name), share);
            self.over_time.add(sample.raw.time, number, sample.raw.share);
            facts.here += share;
            facts.samples += share;
            match (facts.cell == cell, facts.lead) {
                (true, _) => facts.lead += 1,
                (false, 0) => facts.cell = cell,
                (false, _) => facts.lead -= 1,
            }
        }
        Some(number)
    }
}

/// Cells of a thread beside its last one whose samples are moved with its name.
const MAX_ELSEWHERE: usize = 8;

impl Facts {
    /// From here on its samples are of another cell.
    fn move_to(&mut self, cell: CellIndex, tally: &mut Tally) {
        let left = (self.last.0, self.name, self.here);
        let known = self.elsewhere.iter().position(|it| it.0 == cell).map(|at| self.elsewhere.swap_remove(at));
        let (_, name, here) = known.unwrap_or_else(|| (cell, tally.name(cell, self.last.1), 0.0));
        if left.2 > 0.0 && self.elsewhere.len() < MAX_ELSEWHERE {
            self.elsewhere.push(left);
        }
        (self.last.0, self.name, self.here) = (cell, name, here);
    }

    fn rename(&mut self, comm: Comm, tally: &mut Tally) {
        self.last.1 = comm;
        let here = (self.last.0, &mut self.name, self.here);
        for (cell, name, samples) in self.elsewhere.iter_mut().map(|it| (it.0, &mut it.1, it.2)).chain([here]) {
            let renamed = tally.name(cell, comm);
            tally.shift(cell, *name, renamed, samples);
            *name = renamed;
        }
    }
}

/// The number of samples whose memory is prefetched in the sketch before the first of them is counted.
const TOGETHER: usize = 64;

impl Sink for Decider {
    fn processes(&mut self, names: &[(u32, Comm)], _: &mut Cgroups) {
        let known: FxHashSet<u32> = self.facts.iter().map(|facts| facts.pid).collect();
        self.process_names.extend(names.iter().copied().filter(|(pid, _)| known.contains(pid)));
    }

    fn ended(&mut self, names: &[(ThreadIndex, Comm)]) {
        for &(thread, comm) in names {
            self.rename(thread, comm);
        }
    }

    fn measure(&self, tables: &mut Tables) {
        self.sharing.measure(tables);
        self.tally.measure(tables);
        self.over_time.measure(tables);
        if let Some(slices) = &self.slices {
            tables.set("slices of the score", slices.count(), slices.bytes());
        }
        let Self { known, candidates, cell_of_cgroup: cgroups, facts, .. } = self;
        let facts = facts.capacity() * size_of::<Facts>();
        tables.set_map::<((ThreadIndex, Option<u64>), u32)>(
            "threads of the decision",
            known.len(),
            known.capacity(),
            facts,
        );
        let (count, room) = (candidates.len(), candidates.capacity());
        tables.set_map::<((ThreadIndex, Option<u64>), u8)>("threads with few samples", count, room, 0);
        tables.set_map::<(u64, CellOf)>("cgroups of the decision", cgroups.len(), cgroups.capacity(), 0);
    }

    fn wants_code(&self) -> bool {
        self.wants_code
    }

    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        self.samples(std::slice::from_ref(sample), cgroups);
    }

    fn samples(&mut self, samples: &[Sample], cgroups: &mut Cgroups) {
        for samples in samples.chunks(TOGETHER) {
            let Some(first) = samples.first() else { return };
            let mut sharing = [(0, first); TOGETHER];
            let mut count = 0;
            for number in samples.iter().filter_map(|sample| self.direct.get(sample.thread as usize)) {
                if let Some(facts) = self.facts.get(*number as usize) {
                    prefetch(facts);
                }
            }
            for sample in samples {
                self.has_address |= sample.memory.is_some();
                let Some(number) = self.count(sample, cgroups) else { continue };
                if self.source == Source::Faults && matches!(sample.memory, Some(MemoryId::Private { .. })) {
                    // The threads of one process cannot be distinguished, and no other process touches its private memory.
                    self.sharing.count(number, sample);
                } else if let Some(place) = sharing.get_mut(count) {
                    self.sharing.expect(number, sample);
                    *place = (number, sample);
                    count += 1;
                }
            }
            let sharing = sharing.get(..count).unwrap_or_default();
            if let Some(slices) = &mut self.slices {
                slices.add(sharing);
            }
            self.sharing.add_expected(sharing);
        }
    }
}
