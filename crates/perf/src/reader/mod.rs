//! Reads perf.data: the records of a file, one at a time, in the byte order of this machine.
//!
//! The crate linux-perf-data was evaluated and is not used: it stops at the first invalid record, sorts all records itself (the
//! session does that for the rings too), and copies each one more than once. This reader continues after damage and counts it,
//! needs one buffer, and passes records to the decoder of live rings.

use std::io::{ErrorKind, Read, Seek, SeekFrom};

use perf_event_open_sys::bindings as sys;
use rustc_hash::FxHashMap;

use super::budget::Budget;
use super::buildid;
use super::format::{
    self, feature, user, Attr, FILE_HEADER_SIZE, MAGIC, MAX_ATTR_SIZE, PIPE_HEADER_SIZE, SECTION_SIZE,
};
use super::section::{Cursor, Section};
use super::{swap, topology, tracing};
use crate::buildid::BuildId;
use crate::record::{sample_type, Header, Layout, HEADER_SIZE};
use crate::tracepoint::{FormatError, SchedDecoder};
use scxprof_base::sample::places::CpuPlaces;

mod auxtrace;
mod damage;
mod events;
mod guess;
mod inflate;
mod own;

pub use auxtrace::{AuxBuffer, AuxChunk, Auxtrace, TimeConv};
pub use damage::{Damage, PerfDataError};
use inflate::Inflate;

/// Bytes that are read from a file at a time; more than the largest record (65,535 bytes).
const BUFFER: usize = 256 << 10;
/// Events of a file; a host with 1,000 CPUs has one per kind of event, with as many ids.
const MAX_EVENTS: u64 = 1 << 16;
/// Ids of all events: 1,000 CPUs with as many events. Each takes 40 bytes.
const MAX_IDS: usize = 1 << 20;
/// A section of strings that is read whole.
const MAX_SECTION: u64 = 16 << 20;
/// Bytes of build ids that a file from a pipe may have between its records.
const MAX_BUILD_IDS: usize = 4 << 20;
/// Consecutive valid records that are needed to continue after damage.
const RECORDS_IN_A_ROW: usize = 3;

/// An event of the recording.
#[derive(Debug, Clone, Default)]
pub struct Event {
    /// How it was opened.
    pub attr: Attr,
    /// The ids in its records.
    pub ids: Vec<u64>,
    /// Its name in perf: the one in the file, or else what its attr says.
    pub name: Option<String>,
    /// The name is not from the file.
    pub is_guessed: bool,
    /// It is a tracepoint of the scheduler that the file describes.
    pub is_sched: bool,
}

/// One step through the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// A record of the kernel.
    Record {
        /// All of it, in the byte order of this machine.
        bytes: &'a [u8],
        /// The number of its event.
        event: usize,
        /// Its layout.
        layout: &'a Layout,
        /// The number of events that a sample represents, if the sample does not contain it.
        period: Option<u64>,
        /// For an event of the scheduler: decodes its samples.
        sched: Option<&'a SchedDecoder>,
    },
    /// Every ring was read once (`PERF_RECORD_FINISHED_ROUND`): all records up to the newest time at the last such mark are
    /// here.
    Round,
}

/// A perf.data file that is being read.
#[derive(Debug)]
pub struct PerfData<R> {
    inner: R,
    swapped: bool,
    piped: bool,
    events: Vec<Event>,
    by_id: FxHashMap<u64, usize>,
    /// Ids of all events.
    ids: usize,
    /// All events before this one have a name of the file.
    nameless: usize,
    /// All events have the same layout, so the event of a record does not matter.
    uniform: bool,
    sections: Vec<(u8, Section)>,
    /// What a file from a pipe has instead, records of at most 64 KiB each.
    piped_sections: Vec<(u8, Vec<u8>)>,
    /// Records with build ids, their headers in our byte order.
    build_ids: Vec<u8>,
    /// Where the records begin in the file, in bytes.
    data_at: u64,
    /// Where they end, according to the header.
    data_end: Option<u64>,
    /// Remaining bytes of data according to the header.
    left: Option<u64>,
    /// Bytes that were read from the file and not returned yet, from `start` on; or an inflated compressed record.
    buffer: Vec<u8>,
    start: usize,
    /// The same of the file, while the buffer contains an inflated record.
    file: Option<(Vec<u8>, usize)>,
    /// The size of the last item; skipped at the next.
    taken: usize,
    ended: bool,
    /// Bytes of data before `start`.
    position: u64,
    counts: Vec<u64>,
    damage: Damage,
    /// The stream of compressed records, if there is one, and the position after the last inflated one.
    inflate: Option<Box<Inflate>>,
    inflated_until: u64,
    /// Decodes the tracepoints of the scheduler that the file describes.
    sched: SchedDecoder,
    /// Why others of them cannot be decoded.
    undecodable: Vec<FormatError>,
    /// Bytes that compressed records may still unpack to.
    budget: Budget,
}

impl<R: Read + Seek> PerfData<R> {
    /// Reads the header, the events and the sections of the file; the next item is the first record.
    ///
    /// # Errors
    /// [`PerfDataError`] if there can be no record.
    pub fn open(mut inner: R) -> Result<Self, PerfDataError> {
        let mut magic = [0; 16];
        read_exact(&mut inner, &mut magic)?;
        let [first, second] = words(&magic);
        let swapped = match first {
            MAGIC => false,
            other if other == MAGIC.swap_bytes() => true,
            _ => return Err(PerfDataError::NotPerfData),
        };
        // MAGIC is a little-endian number; a big-endian machine reads its own files the other way round.
        let swapped = swapped ^ cfg!(target_endian = "big");
        let own = |value: u64| if swapped { value.swap_bytes() } else { value };
        let mut file = Self {
            inner,
            swapped,
            piped: own(second) == PIPE_HEADER_SIZE,
            events: Vec::new(),
            by_id: FxHashMap::default(),
            ids: 0,
            nameless: 0,
            uniform: true,
            sections: Vec::new(),
            piped_sections: Vec::new(),
            build_ids: Vec::new(),
            data_at: PIPE_HEADER_SIZE,
            data_end: None,
            left: None,
            buffer: Vec::with_capacity(BUFFER),
            start: 0,
            file: None,
            taken: 0,
            ended: false,
            position: 0,
            counts: vec![0; user::MAX as usize],
            damage: Damage::default(),
            inflate: None,
            inflated_until: 0,
            sched: SchedDecoder::default(),
            undecodable: Vec::new(),
            budget: Budget::of(0),
        };
        let end = file.inner.seek(SeekFrom::End(0))?;
        file.inner.seek(SeekFrom::Start(16))?;
        file.budget = Budget::of(end);
        if file.piped {
            file.read_ahead()?;
            return Ok(file);
        }
        let mut rest = [0; FILE_HEADER_SIZE as usize - 16];
        read_exact(&mut file.inner, &mut rest)?;
        let [attr_size, attrs_at, attrs_size, data_at, data_size, _, _, bits @ ..] = words::<11>(&rest).map(own);
        file.read_attrs(attr_size, attrs_at, attrs_size)?;
        if data_size == 0 {
            file.damage.unfinished = true;
        } else {
            file.left = Some(data_size);
            file.data_end = Some(data_at.saturating_add(data_size));
            file.damage.missing = data_at.saturating_add(data_size).saturating_sub(end);
            file.read_sections(data_at.saturating_add(data_size), bits);
        }
        if data_at < FILE_HEADER_SIZE || data_at > end {
            return Err(PerfDataError::Header("the records would be outside the file"));
        }
        file.inner.seek(SeekFrom::Start(data_at))?;
        file.data_at = data_at;
        Ok(file)
    }

    /// Counts the unpacked size of compressed records together with that of the archive that contained the file.
    pub fn unpack_within(&mut self, budget: Budget) {
        self.budget = budget;
    }

    fn own(&self, word: u64) -> u64 {
        if self.swapped {
            word.swap_bytes()
        } else {
            word
        }
    }

    /// The bytes of a section after the data, or of the record that a file from a pipe has instead; `None` if it is missing or
    /// incomplete.
    pub fn section(&mut self, bit: u8) -> Option<Vec<u8>> {
        let Some(section) = self.sections.iter().find(|(which, _)| *which == bit).map(|(_, section)| *section) else {
            return self.piped_sections.iter().find(|(which, _)| *which == bit).map(|(_, bytes)| bytes.clone());
        };
        let size = usize::try_from(section.size).ok().filter(|&size| size as u64 <= MAX_SECTION)?;
        let here = self.inner.stream_position().ok()?;
        let mut bytes = Vec::new();
        let read = self
            .inner
            .seek(SeekFrom::Start(section.offset))
            .and_then(|_| Read::by_ref(&mut self.inner).take(section.size).read_to_end(&mut bytes));
        self.inner.seek(SeekFrom::Start(here)).ok()?;
        read.ok().filter(|&read| read == size).map(|_| bytes)
    }

    /// The build id of each file, by its path, as far as the file contains it; from a pipe, as far as it was read.
    pub fn build_ids(&mut self) -> Vec<(Vec<u8>, BuildId)> {
        let section = self.section(feature::BUILD_ID).unwrap_or_default();
        let mut build_ids = buildid::read(&section, self.swapped);
        build_ids.extend(buildid::read(&self.build_ids, false));
        build_ids
    }

    /// How its events of the scheduler are decoded, and why some cannot be.
    #[must_use]
    pub fn sched(&self) -> (&SchedDecoder, &[FormatError]) {
        (&self.sched, &self.undecodable)
    }

    /// Reads the descriptions of tracepoints.
    fn take_tracing(&mut self, section: &[u8]) {
        let release = self.text(feature::OSRELEASE).unwrap_or_default();
        (self.sched, self.undecodable) = tracing::decoder(section, self.swapped, &release);
        let sched = &self.sched;
        self.events.iter_mut().for_each(|event| event.is_sched = is_sched(sched, &event.attr));
        let wanted = |event: &&mut Event| event.is_guessed && event.attr.kind == sys::PERF_TYPE_TRACEPOINT;
        let nameless: Vec<&mut Event> = self.events.iter_mut().filter(wanted).collect();
        if nameless.is_empty() {
            return;
        }
        let names = tracing::names(section);
        for event in nameless {
            event.name = names.get(&event.attr.config).cloned().or(event.name.take());
        }
    }

    /// A text of the header: `HEADER_OSRELEASE`, `HEADER_VERSION` and their like.
    pub fn text(&mut self, bit: u8) -> Option<String> {
        let bytes = self.section(bit)?;
        let mut cursor = Cursor { bytes: &bytes, swapped: self.swapped };
        Some(String::from_utf8_lossy(cursor.string()?).into_owned())
    }

    /// Where the CPUs of the recorded host are, as far as the file contains it.
    pub fn places(&mut self) -> CpuPlaces {
        let [cpus, nodes, caches] =
            [feature::CPU_TOPOLOGY, feature::NUMA_TOPOLOGY, feature::CACHE].map(|bit| self.section(bit));
        topology::places(&cpus.unwrap_or_default(), nodes.as_deref(), &caches.unwrap_or_default(), self.swapped)
    }

    /// The last-level cache that each CPU uses, by its lowest CPU, in the order of the CPUs; of those whose caches the file has.
    #[must_use]
    pub fn caches(&mut self) -> Vec<u32> {
        topology::caches(&self.section(feature::CACHE).unwrap_or_default(), self.swapped)
    }

    /// The events. A file from a pipe describes them between its records.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The sections that the file has, by their bit.
    pub fn features(&self) -> impl Iterator<Item = u8> + '_ {
        self.sections.iter().map(|(bit, _)| *bit).chain(self.piped_sections.iter().map(|(bit, _)| *bit))
    }

    /// True if the file was written on a machine of the other byte order.
    #[must_use]
    pub fn is_swapped(&self) -> bool {
        self.swapped
    }

    /// Records so far by their type, as `perf report --stats` counts them.
    pub fn counts(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        (0..).zip(self.counts.iter().copied()).filter(|(_, count)| *count > 0)
    }

    /// The position of the last record, in bytes from the first one.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The parts that could not be read so far.
    #[must_use]
    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// The next record or mark; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read; damage is no error, see [`PerfData::damage`].
    pub fn next_item(&mut self) -> Result<Option<Item<'_>>, PerfDataError> {
        loop {
            let Some((kind, size)) = self.step()? else { return Ok(None) };
            if kind >= user::START {
                if self.user_record(kind, size)? {
                    return Ok(Some(Item::Round));
                }
                continue;
            }
            let event = self.event_of(kind, size);
            let (layout, period, is_sched) = self
                .events
                .get(event)
                .map_or((&NO_LAYOUT, None, false), |event| (&event.attr.layout, event.attr.period, event.is_sched));
            let sched = is_sched.then_some(&self.sched);
            let bytes = self.buffer.get_mut(self.start..self.start + size).unwrap_or_default();
            if self.swapped {
                swap::record(bytes, layout);
            }
            return Ok(Some(Item::Record { bytes, event, layout, period, sched }));
        }
    }

    /// Advances to the next record, which is in the buffer then; returns its kind and its size.
    #[inline]
    fn step(&mut self) -> Result<Option<(u32, usize)>, PerfDataError> {
        self.advance(self.taken);
        self.taken = 0;
        let header = match self.whole_header() {
            None => self.next_header()?,
            header => header,
        };
        let Some(Header { kind, size, .. }) = header else { return Ok(None) };
        if let Some(count) = self.counts.get_mut(kind as usize) {
            *count += 1;
        }
        self.taken = usize::from(size);
        Ok(Some((kind, self.taken)))
    }

    /// The header of the next record, in our byte order; the complete record is in the buffer then.
    fn next_in_file(&mut self) -> Result<Option<Header>, PerfDataError> {
        if self.ended {
            return Ok(None);
        }
        if self.left == Some(0) || !self.fill(HEADER_SIZE)? {
            self.ended = true;
            let rest = self.buffer.len() - self.start;
            self.damage.cut |= self.left != Some(0) && rest > 0;
            return Ok(None);
        }
        let mut header = self.header_at(0);
        if !header.is_some_and(is_possible) {
            self.damage.gaps += 1;
            self.note_gap();
            if !self.look_for_record()? {
                self.ended = true;
                return Ok(None);
            }
            header = self.header_at(0);
        }
        let Some(header) = header else { return Ok(None) };
        let size = usize::from(header.size);
        let beyond = self.left.is_some_and(|left| left < size as u64);
        if beyond || !self.fill(size)? {
            self.ended = true;
            self.damage.cut = true;
            return Ok(None);
        }
        if self.swapped {
            if let Some(bytes) = self.buffer.get_mut(self.start..self.start + HEADER_SIZE) {
                swap::header(bytes);
            }
        }
        Ok(Some(header))
    }

    /// The header of a record that is already in the buffer and needs no further check, as nearly all.
    #[inline]
    fn whole_header(&self) -> Option<Header> {
        let bytes = self.buffer.get(self.start..)?;
        let header = Header::read(bytes.first_chunk::<HEADER_SIZE>()?)?;
        let size = usize::from(header.size);
        let whole = size <= bytes.len() && self.left.is_none_or(|left| size as u64 <= left);
        (whole && is_possible(header) && !self.swapped && !self.ended).then_some(header)
    }

    /// The header `ahead` bytes from here, in our byte order.
    fn header_at(&self, ahead: usize) -> Option<Header> {
        let mut bytes = *self.buffer.get(self.start + ahead..)?.first_chunk::<HEADER_SIZE>()?;
        if self.swapped {
            swap::header(&mut bytes);
        }
        Header::read(&bytes)
    }

    /// Skips words until some consecutive records are valid; false at the end of the file.
    fn look_for_record(&mut self) -> Result<bool, PerfDataError> {
        loop {
            self.damage.skipped += 8;
            self.advance(8);
            if self.left == Some(0) || !self.fill(HEADER_SIZE)? {
                return Ok(false);
            }
            let mut ahead = 0;
            let mut good = 0;
            while good < RECORDS_IN_A_ROW {
                // The end of the records counts as a record.
                if self.left.is_some_and(|left| ahead as u64 >= left) || !self.fill(ahead + HEADER_SIZE)? {
                    good += 1;
                    break;
                }
                let Some(header) = self.header_at(ahead).filter(|&header| is_possible(header) && is_usual(header))
                else {
                    good = 0;
                    break;
                };
                ahead += usize::from(header.size);
                good += 1;
            }
            if good > 1 {
                return Ok(true);
            }
        }
    }

    /// The event of the record at the front, in its original byte order. A record without a known id (perf's own have 0)
    /// belongs to the first event.
    fn event_of(&self, kind: u32, size: usize) -> usize {
        let [first, _, ..] = self.events.as_slice() else { return 0 };
        let bits = first.attr.layout.sample_type;
        let offset = if kind == sys::PERF_RECORD_SAMPLE {
            format::id_offset(bits)
        } else if self.uniform {
            return 0;
        } else {
            format::id_offset_from_end(bits).and_then(|from_end| size.checked_sub(from_end))
        };
        let record = self.buffer.get(self.start..self.start + size).unwrap_or_default();
        let id = offset.and_then(|offset| record.get(offset..)).and_then(|rest| rest.first_chunk::<8>());
        id.and_then(|id| self.by_id.get(&self.own(u64::from_ne_bytes(*id))).copied()).unwrap_or(0)
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        self.start = (self.start + count).min(self.buffer.len());
        self.position += count as u64;
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(count as u64);
        }
    }

    /// Reads until `count` bytes are in the buffer; false if the file ends before.
    #[inline]
    fn fill(&mut self, count: usize) -> Result<bool, PerfDataError> {
        if self.buffer.len() - self.start >= count {
            return Ok(true);
        }
        self.refill(count)
    }

    #[cold]
    fn refill(&mut self, count: usize) -> Result<bool, PerfDataError> {
        self.resurface();
        if self.buffer.len() - self.start >= count {
            return Ok(true);
        }
        let mut have = self.buffer.len() - self.start;
        self.buffer.copy_within(self.start.., 0);
        self.start = 0;
        // What was read before is read over: after a full buffer, nothing is filled with zeros.
        self.buffer.resize(count.max(BUFFER), 0);
        let mut read = Ok(());
        while have < count {
            match self.inner.read(self.buffer.get_mut(have..).unwrap_or_default()) {
                Ok(0) => break,
                Ok(more) => have += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    read = Err(error.into());
                    break;
                }
            }
        }
        self.buffer.truncate(have);
        read.map(|()| have >= count)
    }
}

/// The layout for records without any event.
const NO_LAYOUT: Layout =
    Layout { sample_type: 0, read_format: 0, branch_sample_type: 0, regs_user: 0, regs_intr: 0, sample_id_all: false };
/// True if a record can have this header.
#[inline]
fn is_possible(header: Header) -> bool {
    usize::from(header.size) >= HEADER_SIZE
}

/// True if the kind is known; used to find records after damage.
fn is_usual(header: Header) -> bool {
    let known = (1..=sys::PERF_RECORD_CALLCHAIN_DEFERRED).contains(&header.kind)
        || (user::START..=user::COMPRESSED2).contains(&header.kind);
    // perf does not pad compressed records.
    let whole_words = header.size.is_multiple_of(8) || header.kind == user::COMPRESSED;
    known && whole_words && (header.size > 8 || header.kind == user::FINISHED_ROUND)
}

fn is_sched(decoder: &SchedDecoder, attr: &Attr) -> bool {
    // Without its fields a sample is a call stack only.
    let has_fields = attr.layout.sample_type & sample_type::RAW != 0;
    attr.kind == sys::PERF_TYPE_TRACEPOINT && has_fields && decoder.knows(attr.config)
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.try_into().map_or(0, u64::from_ne_bytes);
    }
    words
}

fn read_exact(from: &mut impl Read, into: &mut [u8]) -> Result<(), PerfDataError> {
    from.read_exact(into).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => PerfDataError::NoHeader,
        _ => PerfDataError::Read(error),
    })
}
