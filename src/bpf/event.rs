//! A hint event, in the layout of the BPF programs.

use std::mem::offset_of;

use super::probe::event;
use crate::sample::{SideBand, TimedSideBand};

/// Bytes of an event in the ring.
pub(super) const EVENT_SIZE: usize = size_of::<event>();

/// A hint that was written (`Some`) or deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RawEvent {
    pub time: u64,
    pub hint: Option<u64>,
    pub pid: u32,
    pub tid: u32,
}

impl RawEvent {
    /// Parses `struct event`; `None` if it is malformed.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let long = |at: usize| Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let int = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
        let hint = match int(offset_of!(event, kind))? {
            0 => Some(long(offset_of!(event, hint))?),
            1 => None,
            _ => return None,
        };
        let (time, pid, tid) = (offset_of!(event, time), offset_of!(event, pid), offset_of!(event, tid));
        Some(Self { time: long(time)?, hint, pid: int(pid)?, tid: int(tid)? })
    }

    pub(super) fn side_band(self) -> TimedSideBand {
        let Self { time, hint, pid, tid } = self;
        TimedSideBand { time, what: SideBand::Hint { time, pid, tid, hint } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(kind: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&7u64.to_ne_bytes());
        bytes.extend_from_slice(&1024u64.to_ne_bytes());
        for field in [40u32, 41, kind, 0] {
            bytes.extend_from_slice(&field.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn an_event_is_read_as_the_program_writes_it() {
        let set = bytes(0);
        assert_eq!(set.len(), EVENT_SIZE);
        assert_eq!(RawEvent::parse(&set), Some(RawEvent { time: 7, hint: Some(1024), pid: 40, tid: 41 }));
        assert_eq!(RawEvent::parse(&bytes(1)), Some(RawEvent { time: 7, hint: None, pid: 40, tid: 41 }));
        assert_eq!(RawEvent::parse(&bytes(2)), None);
        for end in 0..28 {
            assert_eq!(RawEvent::parse(&set[..end]), None);
        }
    }
}
