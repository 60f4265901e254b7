//! Events of parts of a trace that wait for their time.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::BinaryHeap;

use super::ftrace::Decoder;
use super::placing::{Place, Placing};
use super::raw::{self, Raw, Typed, ALLOCATED};
use super::TraceError;

/// Bytes of events that wait for their time.
pub(super) const MAX_PENDING: usize = 256 << 20;

/// A decoded event.
#[derive(Debug)]
pub(super) struct Decoded {
    time: u64,
    /// The offset of its packet: of two of a time, the first in the file comes first.
    offset: u64,
    raw: Raw,
}

const _: () = assert!(size_of::<Decoded>() <= 80, "MAX_PENDING is some 3.3 million of them");

impl Decoded {
    /// Bytes that it takes.
    fn bytes(&self) -> usize {
        size_of::<Self>() + raw::bytes_beside(&self.raw)
    }
}

/// The events of a chunk while it is decoded, as far as there is room.
#[derive(Debug)]
pub(super) struct Batch {
    events: Vec<Decoded>,
    bytes: usize,
    room: usize,
    /// There were more.
    pub(super) is_full: bool,
}

impl Batch {
    /// False if there is no room.
    pub(super) fn push(&mut self, time: u64, offset: u64, raw: Raw) -> bool {
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

/// The events of a bundle of ftrace. Those of the usual kinds are decoded when their time comes, and take half of the memory until then;
/// those whose decoding adds a name are decoded, and take more, as the bytes of the whole bundle are kept.
#[derive(Debug, Default)]
pub(super) struct Bundled {
    pub(super) cpu: u32,
    offset: u64,
    payload: Vec<u8>,
    /// In order of time.
    places: std::vec::IntoIter<Place>,
    /// Those that are decoded.
    decoded: Vec<Option<Raw>>,
}

impl Bundled {
    /// The events, of a packet at this offset.
    pub(super) fn of(placing: Placing<'_>, offset: u64) -> Self {
        let Placing { cpu, payload, mut places, decoded, .. } = placing;
        if !places.is_sorted_by_key(|place| place.time) {
            places.sort_by_key(|place| place.time);
        }
        // Some may have been out of range.
        places.shrink_to_fit();
        Self { cpu, offset, payload: payload.to_vec(), places: places.into_iter(), decoded }
    }

    /// Bytes that its memory has.
    fn bytes(&self) -> usize {
        let decoded: usize = self.decoded.iter().flatten().map(raw::bytes_beside).sum();
        let lists = self.decoded.capacity() * size_of::<Option<Raw>>() + self.places.len() * size_of::<Place>();
        self.payload.len() + lists + decoded
    }

    /// The next event, if it is decoded; one that is decoded now goes to `give`, unless its ids are out of range.
    #[expect(
        clippy::inline_always,
        reason = "what it returns is stored once, in the event, and not copied from call to call"
    )]
    #[inline(always)]
    fn next(&mut self, decoder: &mut Decoder<'_>, mut give: impl FnMut(u32, u32, Typed)) -> Option<Raw> {
        let place = self.places.next()?;
        if place.number == 0 {
            return self.decoded.get_mut(place.at as usize)?.take();
        }
        let payload = self.payload.get(place.at as usize..)?.get(..usize::from(place.len))?;
        let cpu = self.cpu;
        decoder.placed(&place, payload, |tid, typed| give(cpu, tid, typed));
        None
    }

    /// Keeps only what is left.
    fn shrink(&mut self) {
        let before = std::mem::take(self);
        let (payload, mut decoded, mut places) = (before.payload, before.decoded, Vec::new());
        let mut kept = Self { cpu: before.cpu, offset: before.offset, ..Self::default() };
        places.reserve_exact(before.places.len());
        for mut place in before.places {
            if place.number != 0 {
                let (at, len) = (place.at as usize, usize::from(place.len));
                place.at = kept.payload.len() as u32;
                kept.payload.extend_from_slice(payload.get(at..).and_then(|rest| rest.get(..len)).unwrap_or_default());
            } else {
                let raw = decoded.get_mut(place.at as usize).and_then(Option::take);
                place.at = kept.decoded.len() as u32;
                kept.decoded.push(raw);
            }
            places.push(place);
        }
        kept.payload.shrink_to_fit();
        kept.decoded.shrink_to_fit();
        kept.places = places.into_iter();
        *self = kept;
    }
}

/// Events in order of time.
#[derive(Debug)]
enum Events {
    Decoded(std::vec::IntoIter<Decoded>),
    Bundled(Box<Bundled>),
}

impl Events {
    fn len(&self) -> usize {
        match self {
            Self::Decoded(events) => events.len(),
            Self::Bundled(bundled) => bundled.places.len(),
        }
    }

    /// The turn of the first one.
    #[inline]
    fn first(&self, slot: usize) -> Option<Turn> {
        let (time, offset) = match self {
            Self::Decoded(events) => events.as_slice().first().map(|event| (event.time, event.offset))?,
            Self::Bundled(bundled) => bundled.places.as_slice().first().map(|place| (place.time, bundled.offset))?,
        };
        Some(Turn { key: u128::from(time) << 64 | u128::from(offset), slot })
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Decoded(events) => events.as_slice().iter().map(Decoded::bytes).sum(),
            Self::Bundled(bundled) => bundled.bytes() + size_of::<Bundled>() + ALLOCATED,
        }
    }
}

/// The events of a chunk or of a bundle that were not taken yet.
#[derive(Debug)]
struct Cursor {
    events: Events,
    /// How many they were when their memory was taken, and its bytes.
    count: usize,
    bytes: usize,
}

impl Cursor {
    fn new(events: Events) -> Self {
        Self { count: events.len(), bytes: events.bytes() + size_of::<Option<Self>>(), events }
    }

    /// Gives back the memory of those that were taken, if most were: one late event would keep that of its whole chunk.
    #[inline]
    fn shrink(&mut self) {
        if self.events.len() < self.count / 4 && self.count > 64 {
            self.give_back();
        }
    }

    #[cold]
    fn give_back(&mut self) {
        let events = match std::mem::replace(&mut self.events, Events::Decoded(Vec::new().into_iter())) {
            Events::Decoded(mut left) => {
                let mut events = Vec::with_capacity(left.len());
                events.extend(&mut left);
                Events::Decoded(events.into_iter())
            }
            Events::Bundled(mut bundled) => {
                bundled.shrink();
                Events::Bundled(bundled)
            }
        };
        *self = Self::new(events);
    }
}

/// When it is a cursor's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    /// Time and offset of its first event, as one number, which is compared at once.
    key: u128,
    slot: usize,
}

impl Turn {
    fn time(self) -> u64 {
        (self.key >> 64) as u64
    }
}

/// All events that wait for their time and are decoded.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    cursors: Vec<Option<Cursor>>,
    free: Vec<usize>,
    turns: BinaryHeap<Reverse<Turn>>,
    /// Bytes of all cursors.
    pub(super) pending: usize,
}

impl Waiting {
    /// Bytes that there is room for.
    pub(super) fn room(&self) -> usize {
        MAX_PENDING.saturating_sub(self.pending)
    }

    /// For the events of a chunk, as many as there is room for beside those that wait.
    pub(super) fn batch(&self) -> Batch {
        Batch { events: Vec::new(), bytes: 0, room: self.room(), is_full: false }
    }

    /// The earliest time.
    #[inline]
    pub(super) fn first(&self) -> Option<u64> {
        self.turns.peek().map(|Reverse(turn)| turn.time())
    }

    /// Takes the events of a chunk.
    ///
    /// # Errors
    /// There was no room for all.
    pub(super) fn push(&mut self, batch: Batch) -> Result<(), TraceError> {
        let Batch { mut events, is_full, bytes, .. } = batch;
        if is_full || bytes > self.room() {
            return Err(TraceError::Disorder { limit: MAX_PENDING });
        }
        if !events.is_sorted_by_key(|event| event.time) {
            // Of events of this size it is quicker to sort the times alone first.
            events.sort_by_cached_key(|event| event.time);
        }
        events.shrink_to_fit();
        self.insert(Cursor::new(Events::Decoded(events.into_iter())));
        Ok(())
    }

    /// Room for a bundle beside the events of `batch`, which will wait too.
    pub(super) fn room_beside(&self, batch: &Batch) -> usize {
        self.room().saturating_sub(batch.bytes)
    }

    /// Takes the events of a bundle, which leave `batch` less room.
    pub(super) fn push_bundle(&mut self, bundled: Bundled, batch: &mut Batch) {
        let before = self.pending;
        self.push_events(bundled);
        batch.room = batch.room.saturating_sub(self.pending.saturating_sub(before)).max(batch.bytes);
    }

    fn push_events(&mut self, bundled: Bundled) {
        self.insert(Cursor::new(Events::Bundled(Box::new(bundled))));
    }

    fn insert(&mut self, cursor: Cursor) {
        let slot = self.free.last().copied().unwrap_or(self.cursors.len());
        let Some(turn) = cursor.events.first(slot) else { return };
        self.free.pop();
        self.pending += cursor.bytes;
        if slot == self.cursors.len() {
            self.cursors.push(None);
        }
        if let Some(place) = self.cursors.get_mut(slot) {
            *place = Some(cursor);
        }
        self.turns.push(Reverse(turn));
    }

    /// Takes the earliest event, if it is decoded; one that is decoded now goes to `give` with its CPU and its thread, unless its ids
    /// are out of range.
    #[expect(
        clippy::inline_always,
        reason = "what it returns is stored once, in the event, and not copied from call to call"
    )]
    #[inline(always)]
    pub(super) fn take(&mut self, decoder: &mut Decoder<'_>, give: impl FnMut(u32, u32, Typed)) -> Option<Raw> {
        let mut top = self.turns.peek_mut()?;
        let slot = top.0.slot;
        let Some(place @ Some(_)) = self.cursors.get_mut(slot) else {
            PeekMut::pop(top);
            return None;
        };
        let cursor = place.as_mut()?;
        let taken = match &mut cursor.events {
            Events::Decoded(events) => events.next().map(|decoded| decoded.raw),
            Events::Bundled(bundled) => bundled.next(decoder, give),
        };
        let before = cursor.bytes;
        let after = if let Some(turn) = cursor.events.first(slot) {
            // Most often it stays the first one.
            *top = Reverse(turn);
            cursor.shrink();
            cursor.bytes
        } else {
            PeekMut::pop(top);
            *place = None;
            self.free.push(slot);
            0
        };
        self.pending = self.pending.saturating_sub(before) + after;
        taken
    }
}

#[cfg(test)]
#[path = "cursor_tests.rs"]
mod tests;
