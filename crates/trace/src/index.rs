//! The first pass over a trace: what packets refer to, and where in the file the events of which times are.

use std::collections::BTreeMap;
use std::io::{Read, Seek};

use rustc_hash::{FxHashMap, FxHashSet};

use super::clock::{Clocks, Sums, BOOTTIME};
use super::container::{Budget, Packets, Step, ZLIB, ZSTD};
use super::event::TraceEvent;
use super::ftrace::{self, Bundle, Facts};
use super::names::{Name, Names};
use super::raw::MAX_CPUS;
use super::sequence::{Head, Sequences};
use super::slices::Parts;
use super::stacks::Stacks;
use super::tally;
use super::threads::{process_of, thread_of, TraceThreads, Tracks};
use super::wire::Fields;
use super::{Damage, TraceError};
use scxprof_base::sample::sched::StateBits;

/// Fields of a packet that have events.
pub(super) const BUNDLE: u32 = 1;
pub(super) const TRACK_EVENT: u32 = 11;
pub(super) const SNAPSHOT: u32 = 6;
pub(super) const SAMPLE: u32 = 66;

/// Bytes of a chunk, but for its last packet.
const CHUNK: u64 = 128 << 10;
/// An older packet of up to this many bytes is indexed alone; a larger one begins a chunk.
const MAX_STRAY: u64 = 512;
/// Packets that are indexed alone; later ones make their chunk older.
const MAX_STRAYS: usize = 1 << 20;
/// After this number of older packets in a row, a chunk begins.
const MAX_IN_A_ROW: u32 = 32;
/// Packets without a time that a chunk reads over.
const MAX_GAP: u64 = 16 << 10;
/// Kinds of packets that are told apart.
const MAX_KINDS: usize = 1 << 12;
/// Sums of clocks of all chunks, of about 35 bytes each; then the last chunk goes on.
const MAX_SUMS: usize = 1 << 20;
/// Attributes that are kept.
const MAX_ATTRIBUTES: usize = 256;
/// Machines that are told apart.
const MAX_MACHINES: usize = 256;

/// A part of the file whose events are not older than `floor`, except strays.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) floor: u64,
    pub(super) offset: u64,
    pub(super) end: u64,
    /// The strays within it, in the order of the file.
    pub(super) strays: (u32, u32),
    /// Sums of clocks of differences before its first packet.
    pub(super) sums: Option<Box<Sums>>,
}

/// A packet that is older than its chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stray {
    pub(super) time: u64,
    pub(super) offset: u64,
    pub(super) end: u64,
}

/// Where the events are.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) chunks: Vec<Chunk>,
    pub(super) strays: Vec<Stray>,
    open: Option<Chunk>,
    in_a_row: u32,
    /// Sums of clocks of all chunks.
    sums: usize,
}

impl Index {
    /// Adds a packet; `time` is that of its first event, `None` for one without.
    fn add(&mut self, time: Option<u64>, offset: u64, end: u64, sums: &Sums) {
        let Some(time) = time else {
            if end - offset > MAX_GAP {
                self.close();
            } else if let Some(open) = &mut self.open {
                open.end = end;
            }
            return;
        };
        if let Some(open) = &mut self.open {
            let has_room = self.sums + sums.len() <= MAX_SUMS;
            let is_full = end - open.offset > CHUNK && has_room;
            let is_stray = time < open.floor;
            if !is_full && (!is_stray || !has_room || self.strays.len() >= MAX_STRAYS) {
                open.end = end;
                open.floor = open.floor.min(time);
                self.in_a_row = 0;
                return;
            }
            if !is_full && end - offset <= MAX_STRAY && self.in_a_row < MAX_IN_A_ROW {
                self.strays.push(Stray { time, offset, end });
                open.end = end;
                open.strays.1 = self.strays.len() as u32;
                self.in_a_row += 1;
                return;
            }
        }
        self.close();
        let strays = self.strays.len() as u32;
        self.sums += sums.len();
        let sums = (!sums.is_empty()).then(|| Box::new(sums.clone()));
        self.open = Some(Chunk { floor: time, offset, end, strays: (strays, strays), sums });
    }

    fn close(&mut self) {
        self.chunks.extend(self.open.take());
        self.in_a_row = 0;
    }
}

/// What packets refer to, and what the trace says of itself.
#[derive(Debug, Default)]
pub(super) struct PacketState {
    pub(super) names: Names,
    pub(super) sequences: Sequences,
    pub(super) clocks: Clocks,
    pub(super) threads: TraceThreads,
    pub(super) tracks: Tracks,
    pub(super) facts: Facts,
    /// Packets by the field that says what they are about.
    pub(super) packets: FxHashMap<u32, u64>,
    /// Packets of a sequence that lost what they refer to.
    pub(super) packets_left_out: u64,
    /// Track events without a time.
    pub(super) untimed: u64,
    pub(super) attributes: Vec<(String, String)>,
    pub(super) release: String,
    pub(super) tool: String,
    pub(super) cpus: u32,
    /// Events that the kernel overwrote or dropped, at the beginning and at the end.
    pub(super) overruns: [u64; 2],
    /// Samples that the kernel lost, as samples say.
    pub(super) samples_lost: u64,
    pub(super) stacks: Stacks,
    /// A bundle of compact events without a sequence: systing writes so.
    pub(super) has_bare_compact: bool,
    /// A track whose name is scxtop's.
    pub(super) is_scxtop: bool,
    /// A packet of Chrome.
    pub(super) is_chrome: bool,
    pub(super) real_time: Option<i64>,
    /// The machine whose packets are taken, the packets of others, and those with events by machine.
    machine: u64,
    pub(super) of_other_machines: u64,
    machines: BTreeMap<u64, u64>,
    /// The CPUs that bundles are of, the first ftrace event, and since when all CPUs were observed.
    bundled: FxHashSet<u32>,
    first_ftrace: Option<u64>,
    observed_from: u64,
}

/// The result of the first pass.
pub(super) enum Pass {
    Done(Box<(Index, PacketState)>),
    /// It has compressed packets, which must be inflated before.
    Compressed,
}

/// Walks the file, and takes the packets of one machine; 0 is the one that recorded. `budget` is that of a file that is compressed
/// as a whole.
pub(super) fn walk<R: Read + Seek>(
    packets: &mut Packets<R>,
    machine: u64,
    mut budget: Option<Budget>,
) -> Result<Pass, TraceError> {
    let (mut index, mut state) = (Index::default(), PacketState { machine, ..PacketState::default() });
    let mut sums = Sums::default();
    let mut malformed = 0;
    loop {
        let (offset, end, bytes) = match packets.next()? {
            Step::Packet { offset, end, bytes } => (offset, end, bytes),
            Step::Skipped => {
                index.close();
                continue;
            }
            Step::End => break,
        };
        if let Some(budget) = &mut budget {
            budget.packet()?;
        }
        let head = Head::parse(bytes);
        if matches!(head.kind, ZLIB | ZSTD) {
            return Ok(Pass::Compressed);
        }
        if !state.is_taken(&head) {
            state.leave_out(&head);
            index.add(None, offset, end, &sums);
            continue;
        }
        malformed += u64::from(head.is_broken);
        let time = state.take(&head, offset, &mut sums);
        index.add(time, offset, end, &sums);
    }
    index.close();
    packets.damage.malformed += malformed;
    state.tracks.resolve();
    state.threads.resolve();
    state.facts.states = StateBits::of_release(&state.release);
    state.real_time = state.clocks.real_time;
    Ok(Pass::Done(Box::new((index, state))))
}

impl PacketState {
    /// The time of a track event, by the clock of the packet or of its sequence.
    pub(super) fn time_of(&mut self, head: &Head<'_>, parts: &Parts, offset: u64, sums: &mut Sums) -> Option<u64> {
        let Some(time) = head.timestamp else {
            return parts.absolute_us.map(|us| us.saturating_mul(1000));
        };
        let of_sequence = || self.sequences.at(head.sequence, offset).and_then(|(tables, _)| tables.clock);
        let clock = head.clock.or_else(of_sequence).unwrap_or(BOOTTIME);
        Some(self.clocks.map((clock, head.sequence), time, offset, sums))
    }

    /// True if the packet is of the machine that is read, and has the numbers that packets can have.
    pub(super) fn is_taken(&self, head: &Head<'_>) -> bool {
        // What the recorder itself says has no machine; threads, tracks and clocks are those of a machine.
        let is_of_one = matches!(head.kind, BUNDLE | TRACK_EVENT | SAMPLE | SNAPSHOT | 2 | 43 | 44 | 45 | 60 | 122);
        let is_of_all = !is_of_one && head.machine == 0;
        !head.is_out_of_range && (head.machine == self.machine || is_of_all)
    }

    fn leave_out(&mut self, head: &Head<'_>) {
        if head.is_out_of_range {
            self.threads.out_of_range += 1;
            return;
        }
        self.of_other_machines += 1;
        if matches!(head.kind, BUNDLE | TRACK_EVENT | SAMPLE) && self.machines.len() < MAX_MACHINES {
            *self.machines.entry(head.machine).or_default() += 1;
        }
    }

    /// Another machine, if the events are all of other ones: the one with the most packets.
    pub(super) fn only_other_machine(&self) -> Option<u64> {
        let is_of = |kind: &u32| self.packets.contains_key(kind);
        let most = self.machines.iter().max_by_key(|(_, packets)| **packets);
        most.map(|(machine, _)| *machine).filter(|_| ![BUNDLE, TRACK_EVENT, SAMPLE].iter().any(is_of))
    }

    /// True if the packet can be understood: its sequence lost nothing that it refers to.
    pub(super) fn has_state(&self, head: &Head<'_>, offset: u64) -> bool {
        !head.needs_state() || self.sequences.at(head.sequence, offset).is_none_or(|(_, is_whole)| is_whole)
    }

    /// Takes a packet; returns the time of its first event.
    fn take(&mut self, head: &Head<'_>, offset: u64, sums: &mut Sums) -> Option<u64> {
        tally::count(&mut self.packets, head.kind, MAX_KINDS);
        self.sequences.take(head, offset, &mut self.names);
        if !self.has_state(head, offset) {
            self.packets_left_out += 1;
            return None;
        }
        let payload = head.payload;
        match head.kind {
            BUNDLE => return self.bundle(head),
            TRACK_EVENT => {
                let time = self.time_of(head, &Parts::parse(payload), offset, sums);
                self.untimed += u64::from(time.is_none());
                return time;
            }
            SNAPSHOT => {
                self.clocks.add(payload, head.sequence, offset);
                self.clocks.restart(payload, head.sequence, sums);
            }
            SAMPLE => {
                let time = head.timestamp.and_then(|_| self.time_of(head, &Parts::default(), offset, sums));
                self.untimed += u64::from(time.is_none());
                let lost = Fields::new(payload).filter(|(number, _)| *number == 17);
                self.samples_lost = lost.fold(self.samples_lost, |sum, (_, lost)| sum.saturating_add(lost.uint()));
                return time;
            }
            2 | 122 => self.threads.add_tree(payload, head.timestamp.unwrap_or(0), head.kind == 122),
            60 => {
                self.tracks.describe(payload, &mut self.threads, &mut self.names);
                let mut names = Fields::new(payload).filter(|(number, _)| matches!(number, 2 | 10));
                self.is_scxtop |= names.any(|(_, name)| {
                    let name = name.bytes();
                    name.starts_with(b"scxtop_topo:") || (name.starts_with(b"DSQ ") && name.ends_with(b" nr_queued"))
                });
            }
            43 => {
                self.is_chrome = true;
                let (pid, name) = process_of(payload);
                match pid {
                    Some(pid) => self.threads.set(pid, Some(pid), name),
                    None => self.threads.out_of_range += 1,
                }
            }
            44 => {
                self.is_chrome = true;
                let (Some(pid), Some(tid), name) = thread_of(payload) else {
                    self.threads.out_of_range += 1;
                    return None;
                };
                self.threads.set(tid, Some(pid), name);
                if let Some(tables) = self.sequences.last(head.sequence) {
                    tables.thread = Some((pid, tid));
                }
            }
            // chrome_events, chrome_metadata, chrome_trigger.
            5 | 51 | 109 => self.is_chrome = true,
            45 => self.system_info(payload),
            34 => self.ftrace_stats(payload),
            126 => self.attributes(payload),
            _ => {}
        }
        None
    }

    fn bundle(&mut self, head: &Head<'_>) -> Option<u64> {
        let bundle = Bundle::parse(head.payload);
        self.has_bare_compact |= bundle.compact.is_some() && !head.has_sequence;
        let threads = &mut self.threads;
        let earliest = ftrace::scan(&bundle, &mut self.facts, &mut self.names, |tid, (time, moment), process, comm| {
            let pid = match process {
                Ok(pid) => Some(pid),
                Err(parent) => threads.get(parent).map(|parent| parent.pid),
            };
            threads.says(tid, time, moment, pid.unwrap_or(TraceEvent::UNKNOWN));
            threads.set(tid, pid, comm);
        });
        if bundle.cpu < MAX_CPUS && self.bundled.insert(bundle.cpu) {
            // Later bundles follow the one before them.
            self.observed_from = self.observed_from.max(bundle.observed_from(earliest).unwrap_or(0));
        }
        self.first_ftrace = [self.first_ftrace, earliest].into_iter().flatten().min();
        earliest
    }

    /// Since when all CPUs were observed, if there are events before.
    pub(super) fn observed_from(&self) -> Option<u64> {
        Some(self.observed_from).filter(|from| self.first_ftrace.is_some_and(|first| first < *from))
    }

    fn system_info(&mut self, info: &[u8]) {
        for (number, value) in Fields::new(info) {
            match number {
                1 => {
                    let release = Fields::new(value.bytes()).find(|(number, _)| *number == 3);
                    self.release = release.map_or(String::new(), |(_, text)| text_of(text.bytes()));
                }
                4 => self.tool = text_of(value.bytes()),
                8 => self.cpus = u32::try_from(value.uint()).unwrap_or(0),
                _ => {}
            }
        }
    }

    /// `FtraceStats`: 1 phase (1 beginning, 2 end), 2 of CPUs {3 overrun, 4 commit overrun, 8 dropped}.
    fn ftrace_stats(&mut self, stats: &[u8]) {
        let (mut phase, mut lost) = (0, 0u64);
        for (number, value) in Fields::new(stats) {
            match number {
                1 => phase = value.uint(),
                2 => {
                    let of_cpu = Fields::new(value.bytes()).filter(|(number, _)| matches!(number, 3 | 4 | 8));
                    lost = of_cpu.fold(lost, |lost, (_, value)| lost.saturating_add(value.uint()));
                }
                _ => {}
            }
        }
        if let Some(place) = phase.checked_sub(1).and_then(|at| self.overruns.get_mut(usize::try_from(at).ok()?)) {
            *place = place.saturating_add(lost);
        }
    }

    fn attributes(&mut self, attributes: &[u8]) {
        for (_, attribute) in Fields::new(attributes).filter(|(number, _)| *number == 1) {
            let (mut key, mut text) = (String::new(), String::new());
            for (number, value) in Fields::new(attribute.bytes()) {
                match number {
                    1 => key = text_of(value.bytes()),
                    2 => text = (value.uint() as i64).to_string(),
                    3 => text = text_of(value.bytes()),
                    _ => {}
                }
            }
            if self.attributes.len() < MAX_ATTRIBUTES {
                self.attributes.push((key, text));
            }
        }
    }

    /// A name of the trace as text.
    pub(super) fn text(&self, name: Name) -> String {
        text_of(self.names.text(name))
    }
}

/// Characters of a text of the trace.
const TEXT: usize = 256;

/// Bytes of the trace as text of at most this number of characters.
pub(super) fn text_of(bytes: &[u8]) -> String {
    let bytes = bytes.get(..4 * TEXT).unwrap_or(bytes);
    String::from_utf8_lossy(bytes).chars().take(TEXT).collect()
}

/// Adds the damage of a walk to that of what came before it.
pub(super) fn merge(damage: &mut Damage, walk: Damage) {
    damage.cut |= walk.cut;
    damage.no_sense_from = damage.no_sense_from.or(walk.no_sense_from);
    damage.too_large += walk.too_large;
    damage.malformed += walk.malformed;
}
