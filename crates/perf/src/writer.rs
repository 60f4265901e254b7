//! Writes perf.data: header, ids, attrs, then records as they come, then the sections. Until it is finished the file is marked
//! as unfinished, and readers read it up to its end.

use std::io::{self, Seek, SeekFrom, Write};

use super::format::{self, feature, FILE_HEADER_SIZE, MAGIC, SECTION_SIZE};
use super::section::Builder;

/// Events that differ only in their CPU and task, as the file describes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventDesc {
    /// Their name in perf.
    pub name: String,
    /// The bytes of their attr (`struct perf_event_attr`).
    pub attr: Vec<u8>,
    /// The ids in their records.
    pub ids: Vec<u64>,
}

/// A file that is being written.
#[derive(Debug)]
pub struct PerfDataWriter<W> {
    out: W,
    header: [u64; 13],
    data_size: u64,
    events: Vec<EventDesc>,
}

impl<W: Write + Seek> PerfDataWriter<W> {
    /// Writes all that precedes the records of `events`.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn new(mut out: W, mut events: Vec<EventDesc>) -> io::Result<Self> {
        let size = events.iter().map(|event| format::attr_size(&event.attr)).max().unwrap_or(64);
        for EventDesc { attr, .. } in &mut events {
            attr.truncate(size);
            // attr.size is the second field.
            if let Some(field) = attr.get_mut(4..8) {
                field.copy_from_slice(&(size as u32).to_ne_bytes());
            }
        }
        let ids: u64 = events.iter().map(|event| event.ids.len() as u64 * 8).sum();
        let attrs_at = FILE_HEADER_SIZE + ids;
        let attrs_size = events.len() as u64 * (size + SECTION_SIZE) as u64;
        let data_at = attrs_at + attrs_size;
        let entry = (size + SECTION_SIZE) as u64;
        // magic, size, attr_size, attrs, data, event_types, features.
        let magic = if cfg!(target_endian = "big") { MAGIC.swap_bytes() } else { MAGIC };
        let header = [magic, FILE_HEADER_SIZE, entry, attrs_at, attrs_size, data_at, 0, 0, 0, 0, 0, 0, 0];
        write_words(&mut out, &header)?;
        let mut at = FILE_HEADER_SIZE;
        for EventDesc { ids, .. } in &events {
            write_words(&mut out, ids)?;
        }
        for EventDesc { attr, ids, .. } in &events {
            out.write_all(attr)?;
            let size = ids.len() as u64 * 8;
            write_words(&mut out, &[at, size])?;
            at += size;
        }
        Ok(Self { out, header, data_size: 0, events })
    }

    /// Writes whole records.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn write(&mut self, records: &[u8]) -> io::Result<()> {
        self.out.write_all(records)?;
        self.data_size += records.len() as u64;
        Ok(())
    }

    /// Writes the sections, at most one per bit, and the final header; returns the writer.
    ///
    /// # Errors
    /// The errors of the writer.
    pub fn finish(mut self, mut sections: Vec<(u8, Vec<u8>)>) -> io::Result<W> {
        sections.push((feature::EVENT_DESC, self.event_desc()));
        sections.sort_by_key(|(bit, _)| *bit);
        let [.., data_at, data_size, _, _, a, b, c, d] = &mut self.header;
        *data_size = self.data_size;
        let bitmap = [a, b, c, d];
        let table_at = *data_at + self.data_size;
        let mut at = table_at + (sections.len() * SECTION_SIZE) as u64;
        let mut table = Vec::new();
        for (_, section) in &sections {
            table.extend([at, section.len() as u64]);
            at += section.len() as u64;
        }
        for (word, first) in bitmap.into_iter().zip([0u8, 64, 128, 192]) {
            *word = sections
                .iter()
                .filter_map(|(bit, _)| bit.checked_sub(first))
                .filter(|bit| *bit < 64)
                .fold(0, |word, bit| word | 1 << bit);
        }
        write_words(&mut self.out, &table)?;
        for (_, section) in &sections {
            self.out.write_all(section)?;
        }
        self.out.seek(SeekFrom::Start(0))?;
        write_words(&mut self.out, &self.header)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn event_desc(&self) -> Vec<u8> {
        let mut builder = Builder::default();
        let size = self.events.first().map_or(0, |event| event.attr.len());
        builder.u32(self.events.len()).u32(size);
        for EventDesc { name, attr, ids } in &self.events {
            builder.0.extend_from_slice(attr);
            builder.u32(ids.len()).string(name.as_bytes());
            for &id in ids {
                builder.u64(id);
            }
        }
        builder.0
    }
}

/// The mark that every ring was read once (`PERF_RECORD_FINISHED_ROUND`).
#[must_use]
pub fn finished_round() -> [u8; 8] {
    let mut record = [0; 8];
    let (kind, rest) = record.split_at_mut(4);
    kind.copy_from_slice(&format::user::FINISHED_ROUND.to_ne_bytes());
    if let Some(size) = rest.get_mut(2..) {
        size.copy_from_slice(&8u16.to_ne_bytes());
    }
    record
}

fn write_words(out: &mut impl Write, words: &[u64]) -> io::Result<()> {
    words.iter().try_for_each(|word| out.write_all(&word.to_ne_bytes()))
}
