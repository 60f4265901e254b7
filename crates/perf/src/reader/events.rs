//! The events of a file: their attrs, the ids in their records, their names.

use std::io::{Read, Seek, SeekFrom};

use super::{
    format, guess, read_exact, words, Attr, Event, PerfData, PerfDataError, MAX_ATTR_SIZE, MAX_EVENTS, MAX_IDS,
    SECTION_SIZE,
};
use crate::section::{event_desc, Section};

/// Bytes of an event's name that are kept.
const MAX_NAME: usize = 512;

impl<R: Read + Seek> PerfData<R> {
    pub(super) fn read_attrs(&mut self, entry: u64, offset: u64, size: u64) -> Result<(), PerfDataError> {
        let attr_size = usize::try_from(entry)
            .ok()
            .and_then(|entry| entry.checked_sub(SECTION_SIZE))
            .filter(|size| (64..=MAX_ATTR_SIZE).contains(size))
            .ok_or(PerfDataError::Header("the size of its attrs is invalid"))?;
        let count = size / entry;
        if count == 0 || count > MAX_EVENTS {
            return Err(PerfDataError::Header("it has no events"));
        }
        self.inner.seek(SeekFrom::Start(offset))?;
        let mut places = Vec::new();
        let mut bytes = vec![0; attr_size + SECTION_SIZE];
        for _ in 0..count {
            read_exact(&mut self.inner, &mut bytes)?;
            let (attr, ids) = bytes.split_at(attr_size);
            places.push(words::<2>(ids).map(|word| self.own(word)));
            let attr = Attr::read(attr, self.swapped);
            self.add_event(Event { attr, ..Event::default() });
        }
        for (index, [offset, size]) in places.into_iter().enumerate() {
            let count = usize::try_from(size / 8).unwrap_or(usize::MAX);
            self.ids = self.ids.saturating_add(count);
            if self.ids > MAX_IDS {
                return Err(PerfDataError::Header("it has more ids than events can have"));
            }
            self.inner.seek(SeekFrom::Start(offset))?;
            for _ in 0..count {
                let mut word = [0; 8];
                read_exact(&mut self.inner, &mut word)?;
                let id = self.own(u64::from_ne_bytes(word));
                self.by_id.insert(id, index);
                if let Some(event) = self.events.get_mut(index) {
                    event.ids.push(id);
                }
            }
        }
        Ok(())
    }

    /// The table of sections follows the data: one entry for each bit, lowest first.
    pub(super) fn read_sections(&mut self, offset: u64, bits: [u64; 4]) {
        if self.inner.seek(SeekFrom::Start(offset)).is_err() {
            return;
        }
        for bit in
            (0..=255u8).filter(|&bit| bits.get(usize::from(bit / 64)).is_some_and(|word| word >> (bit % 64) & 1 == 1))
        {
            let mut bytes = [0; SECTION_SIZE];
            if read_exact(&mut self.inner, &mut bytes).is_err() {
                return;
            }
            let [offset, size] = words(&bytes).map(|word| self.own(word));
            self.sections.push((bit, Section { offset, size }));
        }
        if let Some(bytes) = self.section(format::feature::TRACING_DATA) {
            self.take_tracing(&bytes);
        }
        if let Some(bytes) = self.section(format::feature::EVENT_DESC) {
            event_desc(&bytes, self.swapped, |name, ids| self.name_event(name, ids));
        }
    }

    pub(super) fn name_event(&mut self, name: &[u8], mut ids: impl Iterator<Item = u64>) {
        let by_id = ids.find_map(|id| self.by_id.get(&id).copied());
        // Without ids the events of the section are in the order of the attrs. Names are never removed, so earlier events are
        // not checked again.
        while by_id.is_none() && self.events.get(self.nameless).is_some_and(|event| !event.is_guessed) {
            self.nameless += 1;
        }
        if let Some(event) = self.events.get_mut(by_id.unwrap_or(self.nameless)) {
            event.name = Some(String::from_utf8_lossy(name.get(..MAX_NAME).unwrap_or(name)).into_owned());
            event.is_guessed = false;
        }
    }

    pub(super) fn add_event(&mut self, mut event: Event) {
        event.is_sched = super::is_sched(&self.sched, &event.attr);
        (event.name, event.is_guessed) = (Some(guess::name(&event.attr)), true);
        self.uniform &= self.events.last().is_none_or(|last| last.attr.layout == event.attr.layout);
        self.events.push(event);
    }
}
