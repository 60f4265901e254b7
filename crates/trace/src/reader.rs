//! The second pass: chunks are decoded when their time comes, and their events merged.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{Read, Seek, SeekFrom};

use super::clock::Sums;
use super::container::{self, packets_of, Damage, Input, Packets, Step};
use super::derive::{Derive, Rules, Tables};
use super::event::{Args, Edge, Event, TraceEvent, TraceWhat};
use super::ftrace::Decoder;
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

/// Bytes of decoded events that wait for their time.
const MAX_PENDING: usize = 256 << 20;
/// Bytes that the allocator takes for itself with each piece of memory.
const ALLOCATED: usize = 16;
/// Events of one time that are looked at together.
const MAX_GROUP: usize = 1 << 14;

/// A decoded event.
#[derive(Debug)]
struct Decoded {
    time: u64,
    /// The offset of its packet: of two of a time, the first in the file comes first.
    offset: u64,
    raw: Raw,
}

const _: () = assert!(size_of::<Decoded>() <= 80, "MAX_PENDING is some 3.3 million of them");

impl Decoded {
    /// Bytes that it takes.
    fn bytes(&self) -> usize {
        let more = match &self.raw {
            Raw::Track(event) => ALLOCATED + size_of_val(&**event) + ALLOCATED + size_of_val(&*event.args.0),
            Raw::Trace(event) => ALLOCATED + size_of_val(&**event) + ALLOCATED,
            _ => 0,
        };
        size_of::<Self>() + more
    }
}

/// The events of a chunk while it is decoded, as far as there is room.
#[derive(Debug)]
struct Batch {
    events: Vec<Decoded>,
    bytes: usize,
    room: usize,
    /// There were more.
    is_full: bool,
}

impl Batch {
    fn new(room: usize) -> Self {
        Self { events: Vec::new(), bytes: 0, room, is_full: false }
    }

    /// False if there is no room.
    fn push(&mut self, time: u64, offset: u64, raw: Raw) -> bool {
        let event = Decoded { time, offset, raw };
        let bytes = event.bytes();
        if self.is_full || bytes > self.room - self.bytes {
            self.is_full = true;
            return false;
        }
        if self.events.len() == self.events.capacity() {
            // Twice as many, but not more than there is room for.
            let most = (self.room - self.bytes) / size_of::<Decoded>();
            self.events.reserve_exact(self.events.len().clamp(16, most.max(16)));
        }
        self.bytes += bytes;
        self.events.push(event);
        true
    }
}

/// The events of a chunk that were not taken yet.
#[derive(Debug)]
struct Cursor {
    events: std::vec::IntoIter<Decoded>,
    /// How many they were when their memory was taken, and its bytes.
    count: usize,
    bytes: usize,
}

impl Cursor {
    fn new(events: Vec<Decoded>, bytes: usize) -> Self {
        Self { count: events.len(), bytes: bytes + size_of::<Option<Self>>(), events: events.into_iter() }
    }

    fn first(&self) -> Option<(u64, u64)> {
        self.events.as_slice().first().map(|event| (event.time, event.offset))
    }

    /// Gives back the memory of those that were taken, if most were: one late event would keep that of its whole chunk.
    fn shrink(&mut self) {
        let left = self.events.as_slice();
        if left.len() < self.count / 4 && self.count > 64 {
            let bytes = left.iter().map(Decoded::bytes).sum();
            let mut events = Vec::with_capacity(left.len());
            events.extend(&mut self.events);
            *self = Self::new(events, bytes);
        }
    }
}

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
    cursors: Vec<Option<Cursor>>,
    free: Vec<usize>,
    heap: BinaryHeap<Reverse<(u64, u64, usize)>>,
    /// Events before this time are decoded: that of the next stray and chunk.
    due: u64,
    /// Bytes of all cursors.
    pending: usize,
    group: Vec<Raw>,
    queue: VecDeque<Event>,
}

impl<R: Read + Seek> Trace<R> {
    /// Opens a trace: reads it once.
    ///
    /// # Errors
    /// It is none, or cannot be read. One that is damaged is read as far as it goes ([`Trace::damage`]).
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
            cursors: Vec::new(),
            free: Vec::new(),
            heap: BinaryHeap::new(),
            due: 0,
            pending: 0,
            group: Vec::new(),
            queue: VecDeque::new(),
        })
    }

    /// The next event, in order of time; of two of one time the first in the file comes first. `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read, or is out of order beyond any bound.
    pub fn next_event(&mut self) -> Result<Option<Event>, TraceError> {
        while self.queue.is_empty() {
            let Some(time) = self.first_time()? else { break };
            let mut group = std::mem::take(&mut self.group);
            while group.len() < MAX_GROUP {
                let Some(raw) = self.take(time)? else { break };
                group.push(raw);
            }
            let PacketState { names, threads, tracks, .. } = &mut self.state;
            let mut tables = Tables { names, threads, tracks };
            self.derive.group(time, &mut group, &mut tables, &mut self.queue);
            self.group = group;
            self.tally.late += u64::from(self.tally.first.is_some() && time < self.tally.last);
            self.tally.first.get_or_insert(time);
            self.tally.last = self.tally.last.max(time);
        }
        let event = self.queue.pop_front();
        if let Some(event) = &event {
            self.state.threads.see(event);
        }
        if let Some(Event::Sched(event)) = &event {
            self.tally.see(event.cpu);
        }
        Ok(event)
    }

    /// The earliest time of the events that are left.
    #[inline]
    fn first_time(&mut self) -> Result<Option<u64>, TraceError> {
        match self.heap.peek() {
            Some(Reverse((time, ..))) if *time < self.due => Ok(Some(*time)),
            _ => self.decode_due(),
        }
    }

    /// Decodes what may have the earliest time, and returns that.
    fn decode_due(&mut self) -> Result<Option<u64>, TraceError> {
        loop {
            let first = self.heap.peek().map(|Reverse((time, ..))| *time);
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

    /// The next event, if it has this time.
    fn take(&mut self, time: u64) -> Result<Option<Raw>, TraceError> {
        if self.first_time()? != Some(time) {
            return Ok(None);
        }
        let Some(mut top) = self.heap.peek_mut() else { return Ok(None) };
        let Reverse((_, _, slot)) = *top;
        let Some(place @ Some(_)) = self.cursors.get_mut(slot) else {
            PeekMut::pop(top);
            return Ok(None);
        };
        let Some(cursor) = place else { return Ok(None) };
        let taken = cursor.events.next();
        let before = cursor.bytes;
        let after = if let Some((time, offset)) = cursor.first() {
            // Most often it stays the first one.
            *top = Reverse((time, offset, slot));
            cursor.shrink();
            cursor.bytes
        } else {
            PeekMut::pop(top);
            *place = None;
            self.free.push(slot);
            0
        };
        self.pending = self.pending.saturating_sub(before) + after;
        Ok(taken.map(|decoded| decoded.raw))
    }

    fn push(&mut self, batch: Batch) -> Result<(), TraceError> {
        let Batch { mut events, bytes, is_full, .. } = batch;
        if is_full {
            return Err(TraceError::Disorder { limit: MAX_PENDING });
        }
        if !events.is_sorted_by_key(|event| event.time) {
            // Of events of 130 bytes it is quicker to sort the times alone first.
            events.sort_by_cached_key(|event| event.time);
        }
        events.shrink_to_fit();
        let cursor = Cursor::new(events, bytes);
        let Some((time, offset)) = cursor.first() else { return Ok(()) };
        self.pending += cursor.bytes;
        let slot = self.free.pop().unwrap_or(self.cursors.len());
        if slot == self.cursors.len() {
            self.cursors.push(None);
        }
        if let Some(place) = self.cursors.get_mut(slot) {
            *place = Some(cursor);
        }
        self.heap.push(Reverse((time, offset, slot)));
        Ok(())
    }

    /// For the events of a chunk, as many as there is room for beside those that wait.
    fn batch(&self) -> Batch {
        Batch::new(MAX_PENDING.saturating_sub(self.pending))
    }

    fn decode_stray(&mut self, stray: Stray) -> Result<(), TraceError> {
        self.input.seek(SeekFrom::Start(stray.offset))?;
        let mut bytes = Vec::with_capacity((stray.end - stray.offset) as usize);
        (&mut self.input).take(stray.end - stray.offset).read_to_end(&mut bytes)?;
        let mut batch = self.batch();
        if let Some((offset, packet)) = packets_of(&bytes, stray.offset).next() {
            let (known, mut sums) = (Some(stray.time), Sums::default());
            let of = (&mut self.state, &mut self.tally);
            decode(of, &Head::parse(packet), offset, known, &mut sums, &mut batch);
        }
        self.push(batch)
    }

    fn decode_chunk(&mut self, at: usize) -> Result<(), TraceError> {
        let mut batch = self.batch();
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
            decode((&mut self.state, &mut self.tally), &head, offset, None, &mut sums, &mut batch);
            if batch.is_full {
                break;
            }
        }
        self.push(batch)
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
    fn a_late_event_does_not_keep_the_memory_of_its_chunk() {
        let event = |time| {
            let lost = Raw::Sched { cpu: 0, tid: 0, what: scxprof_base::sample::sched::SchedWhat::Lost };
            Decoded { time, offset: 0, raw: lost }
        };
        let mut cursor = super::Cursor::new((0..1000).map(event).collect(), 1000 * size_of::<Decoded>());
        let before = cursor.bytes;
        for time in 0..1000 {
            assert_eq!(cursor.events.next().map(|event| event.time), Some(time));
            cursor.shrink();
            let left = size_of_val(cursor.events.as_slice());
            assert!(cursor.bytes <= before && cursor.bytes < 4 * left + before / 10, "{time}: {}", cursor.bytes);
        }
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
                most = most.max(trace.pending / (size_of::<Decoded>() + size_of::<TrackEvent>() + 2 * ALLOCATED));
                read += 1;
            }
            assert_eq!(read, 2 * count);
            let in_a_chunk = read as usize * (128 << 10) / size;
            // The memory of a chunk counts until most of its events were taken.
            assert!(most <= 3 * in_a_chunk, "{most} events at a time, {in_a_chunk} in a chunk");
            assert_eq!(trace.pending, 0);
        }
    }
}
