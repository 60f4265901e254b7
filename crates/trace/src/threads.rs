//! Threads, processes and tracks of a trace.

use rustc_hash::FxHashMap;

use super::event::{Event, TraceEvent, TraceWhat, TrackId};
use super::names::{Name, Names};
use super::raw::idle;
use super::wire::{Fields, Value};
use scxprof_base::sample::sched::SchedWhat;
use scxprof_base::sample::Comm;

/// Threads that are kept, of about 40 bytes each.
const MAX_THREADS: usize = 1 << 20;
/// Tracks that are kept, of about 100 bytes each.
const MAX_TRACKS: usize = 1 << 19;
/// Parents of a track that are followed.
const MAX_DEPTH: usize = 32;
/// wprof's process of the idle threads, whose thread ids are those of CPUs plus 1, and that of kernel threads.
const IDLE: u32 = 2_000_000_000;
const KERNEL: u32 = 2_000_000_001;

/// A thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TraceThread {
    /// Its process; [`TraceEvent::UNKNOWN`] if the trace does not say it.
    pub pid: u32,
    /// Its last known name.
    pub comm: Comm,
}

/// What a trace says of a thread at a time.
#[derive(Debug, Clone, Copy)]
struct Said {
    tid: u32,
    time: u64,
    moment: Moment,
    pid: u32,
}

/// The part of a thread's life that something is said of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Moment {
    /// It ends.
    End,
    /// It begins.
    Begin,
    /// It lives.
    Within,
}

/// A thread of a number that several threads had, since when it has it.
#[derive(Debug, Clone, Copy)]
struct Life {
    from: u64,
    thread: TraceThread,
}

/// The threads and processes that a trace describes.
#[derive(Debug, Default)]
pub struct TraceThreads {
    threads: FxHashMap<u32, TraceThread>,
    said: Vec<Said>,
    /// The threads of each number that threads of several processes had, in order of time.
    lives: FxHashMap<u32, Vec<Life>>,
    /// Descriptions whose ids are beyond what fits.
    pub(super) out_of_range: u64,
    /// Those for which there was no room.
    left_out: u64,
}

impl TraceThreads {
    /// The thread.
    #[must_use]
    pub fn get(&self, tid: u32) -> Option<&TraceThread> {
        self.threads.get(&tid)
    }

    /// All of them, by thread id.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &TraceThread)> {
        self.threads.iter().map(|(tid, thread)| (*tid, thread))
    }

    /// Their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.threads.len()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// The process of a thread; 0 of the idle task.
    #[must_use]
    pub fn pid(&self, tid: u32) -> u32 {
        if tid == 0 {
            return 0;
        }
        self.get(tid).map_or(TraceEvent::UNKNOWN, |thread| thread.pid)
    }

    /// The process at this time of a thread; 0 of the idle task.
    #[must_use]
    pub fn pid_at(&self, tid: u32, time: u64) -> u32 {
        let lives = if self.lives.is_empty() { None } else { self.lives.get(&tid) };
        lives.and_then(|lives| at(lives, time)).map_or_else(|| self.pid(tid), |life| life.thread.pid)
    }

    /// The processes with the names of their main threads.
    pub fn processes(&self) -> impl Iterator<Item = (u32, Comm)> + '_ {
        let lives = self.lives.iter().flat_map(|(tid, lives)| lives.iter().map(|life| (*tid, &life.thread)));
        let single = self.iter().filter(|(tid, _)| !self.lives.contains_key(tid));
        let all = single.chain(lives).filter(|(tid, thread)| thread.pid == *tid && thread.pid != TraceEvent::UNKNOWN);
        all.map(|(tid, thread)| (tid, thread.comm))
    }

    /// Keeps what is said of a thread at a time, for [`TraceThreads::resolve`].
    pub(super) fn says(&mut self, tid: u32, time: u64, moment: Moment, pid: u32) {
        if tid == 0 || pid == TraceEvent::UNKNOWN {
            return;
        }
        if self.said.len() < MAX_THREADS {
            self.said.push(Said { tid, time, moment, pid });
        } else {
            self.left_out += 1;
        }
    }

    /// Finds the numbers that threads of several processes had, one after the other.
    pub(super) fn resolve(&mut self) {
        let mut said = std::mem::take(&mut self.said);
        said.sort_by_key(|said| (said.tid, said.time, said.moment));
        for of_tid in said.chunk_by(|a, b| a.tid == b.tid) {
            let Some(first) = of_tid.first().filter(|first| of_tid.iter().any(|said| said.pid != first.pid)) else {
                continue;
            };
            let life = |from, pid| Life { from, thread: TraceThread { pid, comm: Comm::default() } };
            let mut lives = Vec::new();
            if first.moment == Moment::Begin {
                // Whose number it was before is not said.
                lives.push(life(0, TraceEvent::UNKNOWN));
                lives.push(life(first.time, first.pid));
            } else {
                lives.push(life(0, first.pid));
            }
            for (before, said) in of_tid.iter().zip(of_tid.iter().skip(1)) {
                if said.pid != before.pid {
                    // A thread still runs after the event of its end.
                    lives.push(life(said.time, said.pid));
                }
            }
            self.lives.insert(first.tid, lives);
        }
    }

    /// Takes what is said of a thread; what is not said stays.
    pub(super) fn set(&mut self, tid: u32, pid: Option<u32>, comm: &[u8]) {
        if tid == 0 || tid == TraceEvent::UNKNOWN {
            return;
        }
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            self.left_out += 1;
            return;
        }
        let unknown = TraceThread { pid: TraceEvent::UNKNOWN, comm: Comm::default() };
        let thread = self.threads.entry(tid).or_insert(unknown);
        thread.pid = pid.unwrap_or(thread.pid);
        if !comm.is_empty() {
            thread.comm = Comm::new(comm);
        }
    }

    /// Takes the names of threads in an event; the last one counts.
    pub(super) fn see(&mut self, event: &Event) {
        let time = event.time();
        let mut rename = |tid: u32, comm: &Comm| {
            let lives = if self.lives.is_empty() { None } else { self.lives.get_mut(&tid) };
            if let Some(life) = lives.filter(|_| !comm.is_empty()).and_then(|lives| {
                let at = lives.partition_point(|life| life.from <= time).checked_sub(1)?;
                lives.get_mut(at)
            }) {
                life.thread.comm = *comm;
            }
            if let Some(thread) = self.threads.get_mut(&tid).filter(|_| !comm.is_empty()) {
                thread.comm = *comm;
            }
        };
        match event {
            Event::Sched(event) => match &event.what {
                SchedWhat::Switch { prev, next, .. } => {
                    rename(prev.tid, &prev.comm);
                    rename(next.tid, &next.comm);
                }
                SchedWhat::Waking { task, .. } | SchedWhat::WakeupNew { task, .. } | SchedWhat::Exit { task } => {
                    rename(task.tid, &task.comm);
                }
                _ => {}
            },
            Event::Trace(TraceEvent { what: TraceWhat::Rename { tid, comm }, .. }) => rename(*tid, comm),
            Event::Trace(_) => {}
        }
    }

    /// `ProcessTree` and `generic_kernel_process_tree`, of this time.
    pub(super) fn add_tree(&mut self, tree: &[u8], time: u64, is_generic: bool) {
        for (number, value) in Fields::new(tree) {
            let (mut ids, mut is_wrong) = ([0; 4], false);
            let mut is_comm = false;
            let (mut name, mut is_idle) = (&[][..], false);
            for (field, value) in Fields::new(value.bytes()) {
                match (field, value) {
                    (1..=3, Value::Varint(_)) => {
                        if let Some(id) = ids.get_mut(field as usize) {
                            is_wrong |= i32::try_from(value.uint() as i64).is_err();
                            *id = value.low();
                        }
                    }
                    (2 | 3, Value::Bytes(text)) if name.is_empty() => name = text,
                    (8 | 9, Value::Varint(value)) if !is_generic => is_comm |= value != 0,
                    (5, Value::Varint(value)) if is_generic => is_idle = value != 0,
                    _ => {}
                }
            }
            if is_wrong {
                self.left_out += 1;
                continue;
            }
            let base = if is_comm { name } else { program(name) };
            match number {
                1 => {
                    let known = self.get(ids[1]).is_some_and(|thread| !thread.comm.is_empty());
                    let (tid, pid) = real(ids[1], ids[1]);
                    if ids[1] != IDLE && ids[1] != KERNEL {
                        self.says(tid, time, Moment::Within, pid);
                        self.set(tid, Some(pid), if known { &[] } else { base });
                    }
                }
                2 if !is_idle => {
                    let pid = if is_generic { ids[2] } else { ids[3] };
                    let (tid, pid) = real(ids[1], pid);
                    self.says(tid, time, Moment::Within, pid);
                    self.set(tid, Some(pid), name);
                }
                _ => {}
            }
        }
    }

    /// Threads for which there was no room.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }
}

/// The thread that has the number at this time.
fn at(lives: &[Life], time: u64) -> Option<&Life> {
    lives.get(lives.partition_point(|life| life.from <= time).checked_sub(1)?)
}

/// The name of a program by its command line, for a process whose name is in no event. Only the first
/// argument can be a path, and those of kernel threads (`kworker/0:1`) are none.
fn program(command: &[u8]) -> &[u8] {
    let first = command.split(|&byte| byte == b' ').next().unwrap_or(command);
    if matches!(first.first(), Some(b'/' | b'.')) {
        return first.rsplit(|&byte| byte == b'/').next().unwrap_or(first);
    }
    first.strip_suffix(b":").unwrap_or(first)
}

/// The ids of a thread without those that wprof makes up.
fn real(tid: u32, pid: u32) -> (u32, u32) {
    match pid {
        IDLE => (0, 0),
        KERNEL => (tid, tid),
        pid => (idle(tid), idle(pid)),
    }
}

/// A track.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Track {
    /// Its name; a thread's or a process's own track may have none.
    pub name: Name,
    /// Its process; [`TraceEvent::UNKNOWN`] if it belongs to none.
    pub pid: u32,
    /// Its thread, 0 for an idle task; [`TraceEvent::UNKNOWN`] if it belongs to none.
    pub tid: u32,
    /// The CPU of an idle task of wprof.
    pub cpu: Option<u32>,
    /// It is a counter; its values are multiplied with this.
    pub multiplier: Option<i64>,
    /// The unit of the counter, if the trace says it.
    pub unit: Name,
    /// The counter's values are differences.
    pub is_incremental: bool,
    parent: u64,
}

/// The tracks of a trace.
#[derive(Debug, Default)]
pub struct Tracks {
    list: Vec<Track>,
    numbers: FxHashMap<u64, TrackId>,
    /// Those for which there was no room.
    left_out: u64,
}

impl Tracks {
    /// The track.
    #[must_use]
    pub fn get(&self, track: TrackId) -> Option<&Track> {
        self.list.get(track as usize)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Track> {
        self.list.iter()
    }

    /// The track that a track is below; `None` for one at the top.
    #[must_use]
    pub fn parent(&self, track: &Track) -> Option<&Track> {
        self.get(*self.numbers.get(&track.parent)?)
    }

    /// The number of a track by its uuid; a new one without any facts if it has no description.
    pub(super) fn number(&mut self, uuid: u64) -> TrackId {
        if let Some(&number) = self.numbers.get(&uuid) {
            return number;
        }
        if self.list.len() >= MAX_TRACKS {
            self.left_out += 1;
            return TraceEvent::UNKNOWN;
        }
        let unknown = TraceEvent::UNKNOWN;
        let track = Track {
            name: Name::NONE,
            pid: unknown,
            tid: unknown,
            cpu: None,
            multiplier: None,
            unit: Name::NONE,
            is_incremental: false,
            parent: 0,
        };
        self.list.push(track);
        let number = self.list.len() as TrackId - 1;
        self.numbers.insert(uuid, number);
        number
    }

    /// `TrackDescriptor`.
    pub(super) fn describe(&mut self, descriptor: &[u8], threads: &mut TraceThreads, names: &mut Names) {
        let (mut uuid, mut parent, mut name) = (0, 0, &[][..]);
        let (mut process, mut thread, mut counter) = (None, None, None);
        for (number, value) in Fields::new(descriptor) {
            match number {
                1 => uuid = value.uint(),
                5 => parent = value.uint(),
                2 | 10 | 13 => name = value.bytes(),
                3 => process = Some(process_of(value.bytes())),
                4 => thread = Some(thread_of(value.bytes())),
                8 => counter = Some(value.bytes()),
                _ => {}
            }
        }
        let number = self.number(uuid);
        let name = if name.is_empty() { Name::NONE } else { names.add(name) };
        let Some(track) = self.list.get_mut(number as usize) else { return };
        if !name.is_none() {
            track.name = name;
        }
        if parent != 0 {
            track.parent = parent;
        }
        let is_out = |id: Option<u32>| id.is_none();
        if process.is_some_and(|(pid, _)| is_out(pid)) || thread.is_some_and(|(pid, tid, _)| is_out(pid) || is_out(tid))
        {
            threads.out_of_range += 1;
        }
        if let Some((Some(pid), name)) = process {
            let (tid, own) = real(pid, pid);
            track.pid = own;
            if pid != IDLE && pid != KERNEL {
                let known = threads.get(tid).is_some_and(|thread| !thread.comm.is_empty());
                threads.set(tid, Some(own), if known { &[] } else { name });
            }
        }
        if let Some((Some(pid), Some(tid), name)) = thread {
            if pid == IDLE {
                track.cpu = tid.checked_sub(1);
            }
            (track.tid, track.pid) = real(tid, pid);
            threads.set(track.tid, Some(track.pid), name);
        }
        if let Some(counter) = counter {
            let mut multiplier = 1;
            for (number, value) in Fields::new(counter) {
                match number {
                    // `CounterDescriptor.Unit`.
                    3 => track.unit = unit(value.uint(), names),
                    6 => track.unit = names.add(value.bytes()),
                    4 => multiplier = value.uint() as i64,
                    5 => track.is_incremental = value.uint() != 0,
                    _ => {}
                }
            }
            track.multiplier = Some(multiplier);
        }
    }

    /// Tracks for which there was no room.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Gives each track the thread and process of the nearest track above it that has them.
    pub(super) fn resolve(&mut self) {
        let resolved: Vec<(u32, u32, Option<u32>)> = self.list.iter().map(|track| self.owner(track)).collect();
        for (track, (pid, tid, cpu)) in self.list.iter_mut().zip(resolved) {
            (track.pid, track.tid, track.cpu) = (pid, tid, cpu);
        }
    }

    fn owner(&self, track: &Track) -> (u32, u32, Option<u32>) {
        let mut at = track;
        for _ in 0..MAX_DEPTH {
            if at.tid != TraceEvent::UNKNOWN || at.pid != TraceEvent::UNKNOWN {
                return (at.pid, at.tid, at.cpu);
            }
            let parent = Some(at.parent).filter(|uuid| *uuid != 0).and_then(|uuid| self.numbers.get(&uuid));
            let Some(parent) = parent.and_then(|number| self.get(*number)) else { break };
            at = parent;
        }
        (TraceEvent::UNKNOWN, TraceEvent::UNKNOWN, None)
    }
}

/// A unit by its number in the format.
fn unit(number: u64, names: &mut Names) -> Name {
    match number {
        1 => names.add(b"ns"),
        2 => names.add(b"count"),
        3 => names.add(b"bytes"),
        _ => Name::NONE,
    }
}

/// The id of a thread or process; those of idle threads may be below 0. `None` for one that does not fit.
fn id_of(number: u64) -> Option<u32> {
    let negative = || i32::try_from(number as i64).ok().map(i32::cast_unsigned);
    u32::try_from(number).ok().or_else(negative).filter(|id| *id != TraceEvent::UNKNOWN)
}

/// `ProcessDescriptor`: process and name.
pub(super) fn process_of(descriptor: &[u8]) -> (Option<u32>, &[u8]) {
    let (mut pid, mut name) = (Some(0), &[][..]);
    for (number, value) in Fields::new(descriptor) {
        match number {
            1 => pid = id_of(value.uint()),
            6 => name = value.bytes(),
            _ => {}
        }
    }
    (pid, name)
}

/// `ThreadDescriptor`: process, thread and name.
pub(super) fn thread_of(descriptor: &[u8]) -> (Option<u32>, Option<u32>, &[u8]) {
    let (mut pid, mut tid, mut name) = (Some(0), Some(0), &[][..]);
    for (number, value) in Fields::new(descriptor) {
        match number {
            1 => pid = id_of(value.uint()),
            2 => tid = id_of(value.uint()),
            5 => name = value.bytes(),
            _ => {}
        }
    }
    (pid, tid, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_track_has_the_thread_of_those_above_it() {
        let (mut tracks, mut threads, mut names) = (Tracks::default(), TraceThreads::default(), Names::default());
        let mut describe = |bytes: &[u8]| tracks.describe(bytes, &mut threads, &mut names);
        // A child before its parent, a thread, and two that are each other's parents.
        describe(&[8, 3, 40, 2, 0x12, 1, b'c']);
        describe(&[8, 2, 40, 1, 0x22, 7, 8, 100, 16, 101, 0x2a, 1, b't']);
        describe(&[8, 1, 0x1a, 2, 8, 100]);
        describe(&[8, 4, 40, 5]);
        describe(&[8, 5, 40, 4]);
        describe(&[8, 6, 0x42, 4, 0x20, 3, 0x28, 1]);
        tracks.resolve();
        let owner = |uuid| {
            let track = tracks.get(tracks.numbers[&uuid]).unwrap();
            (track.pid, track.tid)
        };
        let unknown = TraceEvent::UNKNOWN;
        assert_eq!([owner(1), owner(2), owner(3)], [(100, unknown), (100, 101), (100, 101)]);
        assert_eq!(owner(4), (unknown, unknown));
        let counter = tracks.get(tracks.numbers[&6]).unwrap();
        assert_eq!((counter.multiplier, counter.is_incremental), (Some(3), true));
        assert_eq!(threads.get(101), Some(&TraceThread { pid: 100, comm: Comm::from("t") }));
    }

    #[test]
    fn idle_and_kernel_threads_of_wprof_are_told() {
        assert_eq!(real(3, IDLE), (0, 0));
        assert_eq!(real(51, KERNEL), (51, 51));
        assert_eq!(real(-3i32 as u32, 7), (0, 7));
        let mut threads = TraceThreads::default();
        // Processes 100 ("/bin/x") and its thread 101.
        threads.add_tree(&[0x0a, 10, 8, 100, 0x1a, 6, b'/', b'b', b'/', b'x', b'y', b'z'], 0, false);
        threads.add_tree(&[0x12, 7, 8, 101, 0x12, 1, b'w', 24, 100], 0, false);
        assert_eq!(threads.get(100), Some(&TraceThread { pid: 100, comm: Comm::from("xyz") }));
        assert_eq!(threads.get(101), Some(&TraceThread { pid: 100, comm: Comm::from("w") }));
        assert_eq!((threads.pid(101), threads.pid(0), threads.pid(7)), (100, 0, TraceEvent::UNKNOWN));
    }
}
