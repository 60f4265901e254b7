//! A sink that makes a profile of call stacks.

use rustc_hash::FxHashMap;

use super::sink::Sink;
use crate::resolve::symbols::KERNEL;
use crate::resolve::{Cgroups, Stacks, Symbol, Symbols};
use crate::sample::{CodeAddr, Comm, Sample, StackId};
use crate::stacks::{At, Builder, Frame, Row, StackProfile, Thread, TracedStacks};
use scxprof_base::tables::Tables;
use scxprof_trace::Event;

/// Threads of one name, cgroup and hint that are told apart; samples of later ones are of a thread without a name.
const MAX_THREADS: usize = 1 << 18;
/// Different pairs of a thread and a stack.
const MAX_ROWS: usize = 1 << 21;
/// Samples that are kept one by one, of 32 bytes each.
const MAX_SAMPLES: usize = 1 << 20;

/// The key that identifies a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    pid: u32,
    tid: u32,
    comm: Option<Comm>,
    cgroup: u64,
    hint: Option<u64>,
}

/// Adds up samples of call stacks. [`StackSink::profile`] names their code when the session has ended.
#[derive(Debug, Clone, Default)]
pub struct StackSink {
    /// The only event of a recording whose samples are taken.
    only: Option<Vec<u16>>,
    /// Samples of other events, by their number.
    others: FxHashMap<u16, u64>,
    threads: FxHashMap<Key, u32>,
    list: Vec<Key>,
    rows: FxHashMap<(u32, Option<StackId>), (u64, u64)>,
    samples: Vec<(u64, u32, u32, Option<StackId>, u64)>,
    cgroups: FxHashMap<u64, String>,
    processes: FxHashMap<u32, Comm>,
    count: u64,
    /// Samples for which there was no room.
    left_out: u64,
}

impl StackSink {
    /// Takes only the samples of these events of a recording, by their numbers.
    #[must_use]
    pub fn of_events(numbers: &[u16]) -> Self {
        Self { only: Some(numbers.to_vec()), ..Self::default() }
    }

    /// Samples of an event whose samples are not taken.
    #[must_use]
    pub fn of_other(&self, number: u16) -> u64 {
        self.others.get(&number).copied().unwrap_or(0)
    }

    /// Samples so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Samples that are in no row, as there were too many different ones.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Forgets all samples.
    pub fn clear(&mut self) {
        *self = Self { only: self.only.take(), ..Self::default() };
    }

    /// The profile, with the stacks of `Outcome::stacks` and these names of their code. The caller adds what it knows of the event
    /// and of the time.
    #[must_use]
    pub fn profile(&self, stacks: &Stacks, symbols: &Symbols) -> StackProfile {
        let mut builder = Builder::default();
        let mut frames_of: FxHashMap<Option<CodeAddr>, Vec<u32>> = FxHashMap::default();
        for (_, stack) in stacks.iter() {
            let mut frames = Vec::with_capacity(stack.len());
            for &code in stack {
                let named = frames_of.entry(code).or_insert_with(|| {
                    let symbol = code.and_then(|code| symbols.get(code));
                    let is_kernel = code.is_some_and(|code| code.offset >= KERNEL);
                    frames_at(symbol, is_kernel).into_iter().map(|frame| builder.frame(frame)).collect()
                });
                frames.extend_from_slice(named);
            }
            builder.profile.stacks.push(frames);
        }
        // Samples without a stack.
        let nowhere = builder.profile.stacks.len() as u32;
        let unknown = frames_at(None, false).into_iter().map(|frame| builder.frame(frame)).collect();
        builder.profile.stacks.push(unknown);
        let number = |stack: Option<StackId>| stack.map_or(nowhere, |stack| stack.0);
        let mut profile = builder.profile;
        profile.threads = self.list.iter().map(|key| self.thread(key)).collect();
        let rows = self.rows.iter().map(|(&(thread, stack), &(samples, events))| {
            let stack = number(stack);
            Row { thread, stack, samples, events }
        });
        profile.rows = rows.collect();
        profile.rows.sort_unstable_by_key(|row| (row.thread, row.stack));
        let samples = self.samples.iter().map(|&(time, cpu, thread, stack, events)| {
            let stack = number(stack);
            At { time, cpu, thread, stack, events }
        });
        profile.samples = samples.collect();
        profile
    }

    fn thread(&self, key: &Key) -> Thread {
        let text = |comm: Option<&Comm>| comm.map_or_else(String::new, ToString::to_string);
        Thread {
            pid: key.pid,
            tid: key.tid,
            comm: text(key.comm.as_ref()),
            process: text(self.processes.get(&key.pid)),
            cgroup: self.cgroups.get(&key.cgroup).cloned().unwrap_or_default(),
            hint: key.hint,
            subcell: None,
        }
    }

    fn number(&mut self, key: Key) -> Option<u32> {
        if let Some(&number) = self.threads.get(&key) {
            return Some(number);
        }
        if self.list.len() >= MAX_THREADS {
            return None;
        }
        let number = self.list.len() as u32;
        self.list.push(key);
        self.threads.insert(key, number);
        Some(number)
    }
}

/// The functions at a location, the innermost first: those that were inlined there, and the one that they are in.
fn frames_at(symbol: Option<&Symbol>, is_kernel: bool) -> Vec<Frame> {
    let module = symbol.map_or_else(|| [][..].into(), |symbol| symbol.dso.clone());
    let (mut file, mut line) = (None, 0);
    if let Some(source) = symbol.and_then(|symbol| symbol.line.as_ref()) {
        let (path, number) = source.rsplit_once(':').unwrap_or((source, ""));
        (file, line) = (Some(path.into()), number.parse().unwrap_or(0));
    }
    let function = symbol.and_then(|symbol| symbol.function.as_ref()).map(|(name, _)| name.clone());
    let inlined = symbol.map_or(&[][..], |symbol| &symbol.inlined);
    let mut frames = Vec::with_capacity(1 + inlined.len());
    // The line is that of the innermost function.
    for name in inlined.iter().rev() {
        let function = Some(name.as_str().into());
        let frame = Frame { function, module: module.clone(), file: file.take(), line, is_kernel, is_inlined: true };
        line = 0;
        frames.push(frame);
    }
    frames.push(Frame { function, module, file, line, is_kernel, is_inlined: false });
    frames
}

/// The call stacks of a trace.
impl Sink for TracedStacks {
    fn sample(&mut self, _: &Sample, _: &mut Cgroups) {}

    fn events(&mut self, events: &[Event], _: &mut Cgroups) {
        for event in events {
            self.take(event);
        }
    }
}

impl Sink for StackSink {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        let Sample { comm, hint, stack, raw, .. } = sample;
        if self.only.as_ref().is_some_and(|only| !only.contains(&raw.event)) {
            *self.others.entry(raw.event).or_default() += 1;
            return;
        }
        let key = Key { pid: raw.pid, tid: raw.tid, comm: *comm, cgroup: raw.cgroup, hint: *hint };
        self.count += 1;
        if raw.cgroup != 0 && !self.cgroups.contains_key(&raw.cgroup) && self.cgroups.len() < MAX_THREADS {
            let path = cgroups.path(raw.cgroup).map(|path| crate::sample::printable(path)).unwrap_or_default();
            self.cgroups.insert(raw.cgroup, path);
        }
        let Some(thread) = self.number(key) else {
            self.left_out += 1;
            return;
        };
        if self.rows.len() >= MAX_ROWS && !self.rows.contains_key(&(thread, *stack)) {
            self.left_out += 1;
            return;
        }
        let (samples, events) = self.rows.entry((thread, *stack)).or_default();
        *samples += 1;
        *events = events.saturating_add(raw.period);
        if self.samples.len() < MAX_SAMPLES {
            self.samples.push((raw.time, raw.cpu, thread, *stack, raw.period));
        }
    }

    fn processes(&mut self, names: &[(u32, Comm)], _: &mut Cgroups) {
        self.processes.extend(names.iter().copied());
    }

    fn measure(&self, tables: &mut Tables) {
        let threads = self.list.len() * 2 * size_of::<Key>();
        tables.set("threads with call stacks", self.list.len(), threads);
        let rows = self.rows.capacity() * size_of::<((u32, Option<StackId>), (u64, u64))>();
        tables.set("call stacks of threads", self.rows.len(), rows + self.samples.capacity() * 32);
    }

    fn wants_stacks(&self) -> bool {
        true
    }
}
