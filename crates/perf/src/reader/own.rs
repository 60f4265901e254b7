//! The records that perf itself writes among the kernel's: events of a file from a pipe, names, build ids, marks.

use std::io::{Read, Seek};

use super::{
    format, swap, user, Attr, Event, PerfData, PerfDataError, BUFFER, HEADER_SIZE, MAX_BUILD_IDS, MAX_EVENTS, MAX_IDS,
    MAX_SECTION,
};
use crate::record::Layout;
use crate::section::event_desc;

/// `PERF_EVENT_UPDATE__NAME` (tools/lib/perf/include/perf/event.h).
const EVENT_UPDATE_NAME: u64 = 2;

impl<R: Read + Seek> PerfData<R> {
    /// Reads the descriptions of events in a file from a pipe up to the first kernel record: the source depends on them.
    pub(super) fn read_ahead(&mut self) -> Result<(), PerfDataError> {
        loop {
            self.advance(self.taken);
            self.taken = 0;
            if !self.fill(HEADER_SIZE)? {
                return Ok(());
            }
            let next = self.header_at(0).map_or(0, |header| header.kind);
            // Marks, and records that contain records, wait until the records are read.
            if next < user::START
                || matches!(next, user::FINISHED_ROUND | user::AUXTRACE | user::COMPRESSED | user::COMPRESSED2)
            {
                let begins = (1..user::START).contains(&next) && self.events.is_empty();
                return if begins { Err(PerfDataError::NoEvents) } else { Ok(()) };
            }
            let Some((kind, size)) = self.step()? else { return Ok(()) };
            self.user_record(kind, size)?;
        }
    }

    /// True for a mark. Other relevant records of perf's own are processed.
    pub(super) fn user_record(&mut self, kind: u32, size: usize) -> Result<bool, PerfDataError> {
        let swapped = self.swapped;
        let Some(record) = self.buffer.get_mut(self.start..self.start + size) else { return Ok(false) };
        if swapped {
            swap::record(record, &Layout::default());
        }
        if kind == user::FINISHED_ROUND {
            return Ok(self.round());
        }
        // There are few of the others.
        let record = record.to_vec();
        let word = |index: usize| {
            let bytes = record.get(index * 8..).and_then(|rest| rest.first_chunk::<8>());
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        match kind {
            user::COMPRESSED | user::COMPRESSED2 => {
                self.inflate(kind, record.get(HEADER_SIZE..).unwrap_or_default());
            }
            // Their data follows the record and is not included in its size.
            user::AUXTRACE => self.pass_over(size as u64, word(1))?,
            user::HEADER_TRACING_DATA if self.piped => {
                let more = u64::from(word(1) as u32).next_multiple_of(8);
                let end = usize::try_from(more).ok().filter(|_| more <= MAX_SECTION).map(|more| size + more);
                if let Some(end) = end {
                    if self.fill(end)? {
                        let section = self.buffer.get(self.start + size..self.start + end).unwrap_or_default().to_vec();
                        self.take_tracing(&section);
                    }
                }
                self.pass_over(size as u64, more)?;
            }
            user::HEADER_BUILD_ID if self.build_ids.len() + size <= MAX_BUILD_IDS => {
                self.build_ids.extend_from_slice(&record);
            }
            user::HEADER_ATTR => {
                let body = record.get(HEADER_SIZE..).unwrap_or_default().to_vec();
                self.take_attr(&body);
            }
            user::EVENT_UPDATE if word(1) == EVENT_UPDATE_NAME => {
                let id = word(2);
                let name = record.get(24..).unwrap_or_default();
                let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
                self.name_event(name, [id].into_iter());
            }
            // Numbers in it are in the byte order of the file, as in a section.
            user::HEADER_FEATURE => self.take_feature(word(1), record.get(16..).unwrap_or_default()),
            _ => {}
        }
        Ok(false)
    }

    /// A section of a file from a pipe; a second one of the same kind is left out.
    fn take_feature(&mut self, bit: u64, body: &[u8]) {
        let Ok(bit) = u8::try_from(bit) else { return };
        if bit == format::feature::EVENT_DESC {
            event_desc(body, self.swapped, |name, ids| self.name_event(name, ids));
        } else if self.piped && !self.piped_sections.iter().any(|(known, _)| *known == bit) {
            self.piped_sections.push((bit, body.to_vec()));
        }
    }

    /// An event of a file from a pipe: its attr, then its ids.
    fn take_attr(&mut self, body: &[u8]) {
        let size = body.get(4..).and_then(|rest| rest.first_chunk::<4>()).map_or(0, |size| u32::from_ne_bytes(*size));
        let size = if self.swapped { size.swap_bytes() } else { size };
        let size = if size == 0 { 64 } else { size as usize };
        let Some((attr, ids)) = body.split_at_checked(size) else { return };
        if self.events.len() as u64 >= MAX_EVENTS || !self.piped {
            return;
        }
        if self.ids + ids.len() / 8 > MAX_IDS {
            return;
        }
        let ids: Vec<u64> =
            ids.chunks_exact(8).map(|word| self.own(word.try_into().map_or(0, u64::from_ne_bytes))).collect();
        self.ids += ids.len();
        self.by_id.extend(ids.iter().map(|&id| (id, self.events.len())));
        self.add_event(Event { attr: Attr::read(attr, self.swapped), ids, ..Event::default() });
    }

    /// Skips a record and the bytes that follow it.
    fn pass_over(&mut self, record: u64, more: u64) -> Result<(), PerfDataError> {
        self.taken = 0;
        let mut rest = record.saturating_add(more);
        while rest > 0 {
            let step = rest.min(BUFFER as u64 / 2) as usize;
            if !self.fill(step)? {
                self.damage.cut = true;
                self.ended = true;
                return Ok(());
            }
            self.advance(step);
            rest -= step as u64;
        }
        Ok(())
    }
}
