//! Where the events of a bundle of ftrace are, until each is decoded when its time comes.

use super::raw::{bytes_beside, Raw};
use scxprof_base::sample::sched::WakenBy;

/// Where an event of a bundle is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) time: u64,
    /// Its bytes in those of the bundle, or the number of one that is decoded.
    pub(super) at: u32,
    pub(super) tid: u32,
    pub(super) len: u16,
    /// Its field; 0 for one that is decoded.
    pub(super) number: u16,
    pub(super) by: WakenBy,
}

const _: () = assert!(size_of::<Place>() <= 24);

/// The events of a bundle of ftrace, as they are found.
#[derive(Debug)]
pub(super) struct Placing<'a> {
    pub(super) cpu: u32,
    pub(super) payload: &'a [u8],
    pub(super) places: Vec<Place>,
    pub(super) decoded: Vec<Option<Raw>>,
    room: usize,
}

impl<'a> Placing<'a> {
    /// For this number of events of a CPU in `payload`; `None` if there is no room.
    pub(super) fn new(payload: &'a [u8], events: usize, cpu: u32, room: usize) -> Option<Self> {
        let room = room.checked_sub(payload.len())?.checked_sub(events.checked_mul(size_of::<Place>())?)?;
        Some(Self { cpu, payload, places: Vec::with_capacity(events), decoded: Vec::new(), room })
    }

    /// An event of field `number` whose bytes are a part of the payload; false if it can't be kept so.
    #[inline]
    pub(super) fn place(&mut self, (time, tid, number, by): (u64, u32, u32, WakenBy), bytes: &[u8]) -> bool {
        let at = bytes.as_ptr().addr().wrapping_sub(self.payload.as_ptr().addr());
        let (Ok(at), Ok(len), Ok(number)) = (at.try_into(), bytes.len().try_into(), number.try_into()) else {
            return false;
        };
        self.places.push(Place { time, at, tid, len, number, by });
        true
    }

    /// One that is decoded; false if there is no room.
    pub(super) fn decoded(&mut self, time: u64, raw: Raw) -> bool {
        // The list may be twice as long as it must.
        let Some(room) = self.room.checked_sub(2 * size_of::<Option<Raw>>() + bytes_beside(&raw)) else { return false };
        self.room = room;
        let at = self.decoded.len() as u32;
        self.decoded.push(Some(raw));
        self.places.push(Place { time, at, tid: 0, len: 0, number: 0, by: WakenBy::Thread });
        true
    }
}
