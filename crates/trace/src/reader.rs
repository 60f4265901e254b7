//! The second pass: chunks are decoded when their time comes, and their events merged.

use std::collections::VecDeque;
use std::io::{Read, Seek, SeekFrom};

use super::clock::Sums;
use super::container::{self, packets_of, Damage, Input, Packets, Step};
use super::cursor::{Batch, Bundled, Waiting};
use super::derive::{Derive, Rules, Tables};
use super::event::{Args, Edge, Event, TraceEvent, TraceWhat};
use super::ftrace::{Decoder, Placed};
use super::index::{self, Index, PacketState, Pass, Stray, BUNDLE, SAMPLE, SNAPSHOT, TRACK_EVENT};
use super::info::{Info, Source};
use super::names::Names;
use super::raw::{thread, Raw};
use super::sequence::{Generation, Head};
use super::slices::{self, Parts, TrackEvent};
use super::stacks::{StackFrame, StackId, Stacks};
use super::tally::Tally;
use super::threads::{TraceThreads, Tracks};
use super::wire::Fields;
use super::TraceError;

/// Events of one time that are looked at together.
const MAX_GROUP: usize = 1 << 14;

/// `PerfSample`: 1 cpu, 2 pid, 3 tid, 4 callstack_iid, 5 cpu_mode (1 is the kernel).
fn sample(sample: &[u8], tables: Option<&Generation>, stacks: &mut Stacks) -> TraceEvent {
    let (mut cpu, mut tid, mut stack, mut mode) = (TraceEvent::UNKNOWN, TraceEvent::UNKNOWN, None, 0);
    for (number, value) in Fields::new(sample) {
        match number {
            1 => cpu = u32::try_from(value.uint()).unwrap_or(TraceEvent::UNKNOWN),
            3 => tid = thread(value.uint()).unwrap_or(TraceEvent::UNKNOWN),
            4 if value.uint() != 0 => stack = tables.and_then(|tables| stacks.interned(tables.number, value.uint())),
            5 => mode = value.uint(),
            _ => {}
        }
    }
    let what = TraceWhat::Sample { stack, in_kernel: mode == 1 };
    // The process is that of the thread.
    TraceEvent { time: 0, cpu, pid: TraceEvent::UNKNOWN, tid, what }
}

/// Decodes the events of a packet, whose time is `known` if it stands alone in the index.
fn decode(
    (state, tally): (&mut PacketState, &mut Tally),
    head: &Head<'_>,
    offset: u64,
    known: Option<u64>,
    sums: &mut Sums,
    batch: &mut Batch,
) {
    match head.kind {
        _ if !state.is_taken(head) => {}
        SNAPSHOT => state.clocks.restart(head.payload, head.sequence, sums),
        _ if !state.has_state(head, offset) => {}
        BUNDLE => {
            let PacketState { facts, names, .. } = &mut *state;
            let mut decoder = Decoder { facts, names, counts: &mut tally.ftrace };
            decoder.bundle(head.payload, |time, raw| batch.push(time, offset, raw));
        }
        TRACK_EVENT => {
            let parts = Parts::parse(head.payload);
            let time = known.or_else(|| state.time_of(head, &parts, offset, sums));
            let Some(time) = time else { return };
            tally.malformed += u64::from(parts.is_broken);
            let PacketState { sequences, tracks, names, stacks, .. } = &mut *state;
            let tables = sequences.at(head.sequence, offset).map(|(tables, _)| tables);
            let uuid = parts.track.or_else(|| tables.and_then(|tables| tables.track));
            // Events of old Chrome have no track but the thread of their sequence.
            let uuid = uuid.or(parts.legacy_id).unwrap_or_else(|| u64::from(head.sequence) | 1 << 63);
            let track = tracks.number(uuid);
            let event = slices::decode(head.payload, &parts, track, tables, names, stacks);
            match event.kind {
                slices::TrackEventKind::Counter(_) => tally.counters += 1,
                _ if event.category.is_none() => tally.without_category += 1,
                _ => *tally.tracks.entry(event.category).or_default() += 1,
            }
            let mut counter = |uuid, value| {
                let counter = TrackEvent::counter(tracks.number(uuid), value, event.generation);
                batch.push(time, offset, Raw::Track(Box::new(counter)))
            };
            if parts.has_counters {
                slices::extra_counters(head.payload, tables, &mut counter);
            }
            if let slices::TrackEventKind::Complete(ns) = event.kind {
                let end = TrackEvent {
                    kind: slices::TrackEventKind::Slice(Edge::End),
                    args: Args::default(),
                    stack: None,
                    ..event.clone()
                };
                let begin = TrackEvent { kind: slices::TrackEventKind::Slice(Edge::Begin), ..event };
                batch.push(time, offset, Raw::Track(Box::new(begin)));
                batch.push(time.saturating_add(ns), offset, Raw::Track(Box::new(end)));
            } else {
                batch.push(time, offset, Raw::Track(Box::new(event)));
            }
        }
        SAMPLE => {
            let said = head.timestamp.filter(|_| known.is_none());
            let known = known.or_else(|| said.and_then(|_| state.time_of(head, &Parts::default(), offset, sums)));
            let Some(time) = known else { return };
            let PacketState { sequences, stacks, .. } = &mut *state;
            let tables = sequences.at(head.sequence, offset).map(|(tables, _)| tables);
            tally.samples += 1;
            batch.push(time, offset, Raw::Trace(Box::new(sample(head.payload, tables, stacks))));
        }
        _ => {}
    }
}

/// Follows what an event says beside itself, when it is returned.
#[inline]
fn see(state: &mut PacketState, tally: &mut Tally, event: &Event) {
    state.threads.see(event);
    if let Event::Sched(event) = event {
        tally.see(event.cpu);
    }
}

/// A trace that is open for reading.
#[derive(Debug)]
pub struct Trace<R> {
    input: Input<R>,
    index: Index,
    state: PacketState,
    damage: Damage,
    source: Source,
    derive: Derive,
    tally: Tally,
    /// Strays by time.
    strays: Vec<Stray>,
    next_stray: usize,
    /// Chunks by time; those taken have been decoded.
    order: Vec<u32>,
    next_chunk: usize,
    waiting: Waiting,
    /// Events before this time are decoded: that of the next stray and chunk.
    due: u64,
    group: Vec<Raw>,
    /// Events that were not returned yet, and a list for those of the next time.
    queue: VecDeque<Event>,
    derived: Vec<Event>,
}

impl<R: Read + Seek> Trace<R> {
    /// Opens a trace: reads it once.
    ///
    /// # Errors
    /// It is no trace, or cannot be read. A damaged trace is read up to the damage ([`Trace::damage`]).
    pub fn open(input: R) -> Result<Self, TraceError> {
        Self::open_within(input, None)
    }

    /// The same; what is compressed may inflate to `limit` bytes. The default is 50 times the size of the file, at least
    /// 32 MiB.
    ///
    /// # Errors
    /// As there.
    pub fn open_within(input: R, limit: Option<u64>) -> Result<Self, TraceError> {
        let mut damage = Damage::default();
        let (input, budget) = container::open(input, limit, &mut damage)?;
        let mut packets = Packets::new(input)?;
        let mut pass = index::walk(&mut packets, 0, budget)?;
        if matches!(pass, Pass::Compressed) {
            let file = container::inflate_packets(packets.into_inner(), budget, limit, &mut damage)?;
            packets = Packets::new(Input::Inflated(file))?;
            // Its packets were counted as they were inflated.
            pass = index::walk(&mut packets, 0, None)?;
        }
        if let Pass::Done(done) = &pass {
            if let Some(machine) = done.1.only_other_machine() {
                packets = Packets::new(packets.into_inner())?;
                pass = index::walk(&mut packets, machine, None)?;
            }
        }
        let Pass::Done(done) = pass else { return Err(TraceError::NotATrace) };
        let (index, state) = *done;
        index::merge(&mut damage, packets.damage);
        let source = Source::of(&state);
        let rules = Rules {
            is_wprof: source == Source::Wprof,
            has_switch: state.facts.has_switch,
            no_wakers: source == Source::Systing,
        };
        let mut order: Vec<u32> = (0..index.chunks.len() as u32).collect();
        order.sort_by_key(|at| index.chunks.get(*at as usize).map(|chunk| chunk.floor));
        let mut strays = index.strays.clone();
        strays.sort_by_key(|stray| stray.time);
        Ok(Self {
            input: packets.into_inner(),
            index,
            state,
            damage,
            source,
            derive: Derive::new(rules),
            tally: Tally::default(),
            strays,
            next_stray: 0,
            order,
            next_chunk: 0,
            waiting: Waiting::default(),
            due: 0,
            group: Vec::new(),
            queue: VecDeque::new(),
            derived: Vec::new(),
        })
    }

    /// The next event, in order of time; of two of one time the first in the file comes first. `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read, or is out of order beyond any bound.
    pub fn next_event(&mut self) -> Result<Option<Event>, TraceError> {
        while self.queue.is_empty() {
            let mut derived = std::mem::take(&mut self.derived);
            let is_more = self.derive_next(&mut derived);
            self.queue.extend(derived.drain(..));
            self.derived = derived;
            if !is_more? {
                break;
            }
        }
        let event = self.queue.pop_front();
        if let Some(event) = &event {
            see(&mut self.state, &mut self.tally, event);
        }
        Ok(event)
    }

    /// Adds the next events to `events`, until it has this number or a few more; false at the end.
    ///
    /// # Errors
    /// As [`Trace::next_event`].
    pub fn next_events(&mut self, events: &mut Vec<Event>, count: usize) -> Result<bool, TraceError> {
        let mut seen = events.len();
        events.extend(self.queue.drain(..));
        loop {
            for event in events.get(seen..).unwrap_or_default() {
                see(&mut self.state, &mut self.tally, event);
            }
            seen = events.len();
            if seen >= count {
                return Ok(true);
            }
            if !self.derive_next(events)? {
                return Ok(false);
            }
        }
    }

    /// Adds the events of the next time to `out`, or some of them; false if there are no more.
    fn derive_next(&mut self, out: &mut Vec<Event>) -> Result<bool, TraceError> {
        let Some(time) = self.first_time()? else { return Ok(false) };
        if self.derive.looks_at_groups() {
            return self.derive_group(time, out).map(|()| true);
        }
        let Self { waiting, state, tally, derive, .. } = self;
        let PacketState { facts, names, threads, tracks, .. } = state;
        let mut decoder = Decoder { facts, names, counts: &mut tally.ftrace };
        let before = out.len();
        let raw = waiting.take(&mut decoder, |cpu, tid, typed| derive.typed(time, (cpu, tid, typed), threads, out));
        if let Some(raw) = raw {
            derive.one(time, raw, &mut Tables { names, threads, tracks }, out);
        } else if out.len() == before {
            return Ok(true);
        }
        tally.passed(time);
        Ok(true)
    }

    /// The same, of all events of this time.
    fn derive_group(&mut self, time: u64, out: &mut Vec<Event>) -> Result<(), TraceError> {
        let mut group = std::mem::take(&mut self.group);
        while group.len() < MAX_GROUP && self.first_time()? == Some(time) {
            let PacketState { facts, names, .. } = &mut self.state;
            let mut decoder = Decoder { facts, names, counts: &mut self.tally.ftrace };
            let raw = self.waiting.take(&mut decoder, |cpu, tid, typed| group.push(Raw::of(cpu, tid, typed)));
            group.extend(raw);
        }
        if !group.is_empty() {
            let PacketState { names, threads, tracks, .. } = &mut self.state;
            self.derive.group(time, &mut group, &mut Tables { names, threads, tracks }, out);
            self.tally.passed(time);
        }
        self.group = group;
        Ok(())
    }

    /// The earliest time of the events that are left.
    #[inline]
    fn first_time(&mut self) -> Result<Option<u64>, TraceError> {
        match self.waiting.first() {
            Some(time) if time < self.due => Ok(Some(time)),
            _ => self.decode_due(),
        }
    }

    /// Decodes what may have the earliest time, and returns that.
    fn decode_due(&mut self) -> Result<Option<u64>, TraceError> {
        loop {
            let first = self.waiting.first();
            let is_due = |time: u64| first.is_none_or(|first| time <= first);
            let next_stray = self.strays.get(self.next_stray).copied();
            let stray = next_stray.filter(|stray| is_due(stray.time));
            let chunk = self.order.get(self.next_chunk).copied();
            let floor = chunk.and_then(|at| self.index.chunks.get(at as usize)).map(|chunk| chunk.floor);
            if let Some(stray) = stray {
                self.next_stray += 1;
                self.decode_stray(stray)?;
            } else if let (Some(chunk), true) = (chunk, floor.is_some_and(is_due)) {
                self.next_chunk += 1;
                self.decode_chunk(chunk as usize)?;
            } else {
                self.due = next_stray.map_or(u64::MAX, |stray| stray.time).min(floor.unwrap_or(u64::MAX));
                return Ok(first);
            }
        }
    }

    fn decode_stray(&mut self, stray: Stray) -> Result<(), TraceError> {
        self.input.seek(SeekFrom::Start(stray.offset))?;
        let mut bytes = Vec::with_capacity((stray.end - stray.offset) as usize);
        (&mut self.input).take(stray.end - stray.offset).read_to_end(&mut bytes)?;
        let mut batch = self.waiting.batch();
        if let Some((offset, packet)) = packets_of(&bytes, stray.offset).next() {
            let (known, mut sums) = (Some(stray.time), Sums::default());
            let of = (&mut self.state, &mut self.tally);
            decode(of, &Head::parse(packet), offset, known, &mut sums, &mut batch);
        }
        self.waiting.push(batch)
    }

    fn decode_chunk(&mut self, at: usize) -> Result<(), TraceError> {
        let mut batch = self.waiting.batch();
        let Some(chunk) = self.index.chunks.get_mut(at) else { return Ok(()) };
        let (offset, end, strays) = (chunk.offset, chunk.end, chunk.strays);
        let mut sums = chunk.sums.take().map_or_else(Sums::default, |sums| *sums);
        self.input.seek(SeekFrom::Start(offset))?;
        // A chunk may be as large as the file, as packets without a time belong to the one before them.
        let mut packets = Packets::of_part(&mut self.input, offset, end);
        let mut next = strays.0;
        while let Step::Packet { offset, bytes, .. } = packets.next_read()? {
            let head = Head::parse(bytes);
            let is_stray =
                next < strays.1 && self.index.strays.get(next as usize).is_some_and(|stray| stray.offset == offset);
            if is_stray {
                next += 1;
                // Its time may be a difference that later ones count on.
                if head.kind == TRACK_EVENT {
                    self.state.time_of(&head, &Parts::parse(head.payload), offset, &mut sums);
                }
                continue;
            }
            if head.kind == BUNDLE && self.state.is_taken(&head) && self.state.has_state(&head, offset) {
                let PacketState { facts, names, .. } = &mut self.state;
                let mut decoder = Decoder { facts, names, counts: &mut self.tally.ftrace };
                match decoder.places(head.payload, self.waiting.room_beside(&batch)) {
                    Placed::Done(placing) => {
                        self.waiting.push_bundle(Bundled::of(placing, offset), &mut batch);
                        continue;
                    }
                    Placed::NoRoom => batch.is_full = true,
                    Placed::Not => {}
                }
            }
            if !batch.is_full {
                decode((&mut self.state, &mut self.tally), &head, offset, None, &mut sums, &mut batch);
            }
            if batch.is_full {
                break;
            }
        }
        self.waiting.push(batch)
    }

    /// The frames of a call stack, root first; none if the trace does not have them.
    #[must_use]
    pub fn stack(&self, stack: StackId) -> Vec<StackFrame> {
        self.state.stacks.frames(stack, &self.state.sequences)
    }

    /// What is known of the trace. Counts of events are complete when [`Trace::next_event`] has returned `None`.
    #[must_use]
    pub fn info(&self) -> Info {
        Info::new(self.source, &self.state, &self.tally, &self.derive, &self.damage)
    }

    /// What could not be read, one sentence each.
    #[must_use]
    pub fn damage(&self) -> Vec<String> {
        self.info().damage
    }

    /// What recorded it.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// The time from which on all CPUs were observed, if that is after the first event: before it, the recorder's buffers have
    /// overwritten the events of some of them.
    #[must_use]
    pub fn observed_from(&self) -> Option<u64> {
        self.state.observed_from()
    }

    /// True if it has `sched_switch`: else switches are made of slices.
    #[must_use]
    pub fn has_switches(&self) -> bool {
        self.state.facts.has_switch
    }

    /// The names that events have numbers of.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.state.names
    }

    /// The threads that the trace describes.
    #[must_use]
    pub fn threads(&self) -> &TraceThreads {
        &self.state.threads
    }

    /// The tracks.
    #[must_use]
    pub fn tracks(&self) -> &Tracks {
        &self.state.tracks
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::cursor::Decoded;
    use crate::raw::ALLOCATED;

    fn put(bytes: &mut Vec<u8>, mut value: u64) {
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
    }

    /// A packet with a slice event at a time: 1 begin, 2 end.
    fn slice(file: &mut Vec<u8>, time: u64, kind: u8) {
        let mut packet = vec![8 << 3];
        put(&mut packet, time);
        packet.extend([11 << 3 | 2, 4, 9 << 3, kind, 11 << 3, 1]);
        file.push(0x0a);
        put(file, packet.len() as u64);
        file.extend(packet);
    }

    #[test]
    fn memory_depends_on_what_overlaps_and_not_on_the_size() {
        for late in [0, 10] {
            let mut file = Vec::new();
            let count = 100_000u64;
            for number in 0..count {
                let time = 1_000_000 + number * 1000;
                // Some slices began at the beginning of the trace, and are written at their end.
                let is_late = late > 0 && number % late == 3;
                slice(&mut file, if is_late { 1_000_000 + number } else { time - 500 }, 1);
                slice(&mut file, time, 2);
            }
            let size = file.len();
            let mut trace = Trace::open(Cursor::new(file)).unwrap();
            assert!(trace.index.chunks.len() <= 2 * size / (128 << 10), "{} chunks", trace.index.chunks.len());
            let (mut most, mut read, mut last) = (0, 0, 0);
            while let Some(event) = trace.next_event().unwrap() {
                assert!(event.time() >= last);
                last = event.time();
                most =
                    most.max(trace.waiting.pending / (size_of::<Decoded>() + size_of::<TrackEvent>() + 2 * ALLOCATED));
                read += 1;
            }
            assert_eq!(read, 2 * count);
            let in_a_chunk = read as usize * (128 << 10) / size;
            // The memory of a chunk counts until most of its events were taken.
            assert!(most <= 3 * in_a_chunk, "{most} events at a time, {in_a_chunk} in a chunk");
            assert_eq!(trace.waiting.pending, 0);
        }
    }
}
