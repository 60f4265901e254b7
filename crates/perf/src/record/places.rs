//! Reads samples with fields of fixed size by their offsets.

use perf_event_open_sys::bindings as sys;

use super::decode::split;
use super::{sample_type, Header, Malformed, SampleRecord};

/// The words after a sample's header.
pub type SampleWords<'a> = &'a [[u8; 8]];

/// The offsets of a sample's fields, in words after its header, if none has a variable length: most samples are read faster so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    words: usize,
    identifier: u16,
    ip: u16,
    tid: u16,
    time: u16,
    addr: u16,
    id: u16,
    stream_id: u16,
    cpu: u16,
    period: u16,
    weight: u16,
    data_src: u16,
    transaction: u16,
    phys_addr: u16,
    cgroup: u16,
    data_page_size: u16,
    code_page_size: u16,
}

impl Places {
    /// The offset of a field that a layout lacks: no record is this long.
    const NONE: u16 = u16::MAX;

    /// For all layouts with this `sample_type`; `None` if a field has a variable length.
    #[must_use]
    pub fn new(bits: u64) -> Option<Self> {
        use sample_type as t;
        let varying =
            t::READ | t::CALLCHAIN | t::RAW | t::BRANCH_STACK | t::REGS_USER | t::STACK_USER | t::REGS_INTR | t::AUX;
        if bits & varying != 0 {
            return None;
        }
        let mut words = 0;
        let mut next = |which: u64| {
            if bits & which == 0 {
                return Self::NONE;
            }
            words += 1;
            words - 1
        };
        // In the order of sample().
        let places = Self {
            words: 0,
            identifier: next(t::IDENTIFIER),
            ip: next(t::IP),
            tid: next(t::TID),
            time: next(t::TIME),
            addr: next(t::ADDR),
            id: next(t::ID),
            stream_id: next(t::STREAM_ID),
            cpu: next(t::CPU),
            period: next(t::PERIOD),
            weight: next(t::WEIGHT | t::WEIGHT_STRUCT),
            data_src: next(t::DATA_SRC),
            transaction: next(t::TRANSACTION),
            phys_addr: next(t::PHYS_ADDR),
            cgroup: next(t::CGROUP),
            data_page_size: next(t::DATA_PAGE_SIZE),
            code_page_size: next(t::CODE_PAGE_SIZE),
        };
        Some(Self { words: usize::from(words), ..places })
    }

    /// The words of the sample that fills `bytes`, for [`Places::sample`]; `None` for any other record.
    ///
    /// # Errors
    /// The record is malformed.
    #[inline]
    pub fn words<'a>(&self, bytes: &'a [u8]) -> Result<Option<(Header, SampleWords<'a>)>, Malformed> {
        let (header, body) = split(bytes)?;
        if header.kind != sys::PERF_RECORD_SAMPLE {
            return Ok(None);
        }
        let words = body.as_chunks().0;
        if words.len() < self.words {
            return Err(Malformed::Short { kind: header.kind });
        }
        Ok(Some((header, words)))
    }

    /// The fields.
    // Always inlined, with few cases, so that a caller that reads only a few fields does not pay for 400 bytes.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    #[must_use]
    pub fn sample(&self, words: SampleWords<'_>) -> SampleRecord<'static> {
        let word = |at: u16| words.get(usize::from(at)).map_or(0, |word| u64::from_ne_bytes(*word));
        // Two 32-bit fields share the word, in memory order.
        let pair = |at: u16| {
            let (low, high) = (word(at) as u32, (word(at) >> 32) as u32);
            if cfg!(target_endian = "big") {
                (high, low)
            } else {
                (low, high)
            }
        };
        let (pid, tid) = pair(self.tid);
        SampleRecord {
            identifier: word(self.identifier),
            ip: word(self.ip),
            pid,
            tid,
            time: word(self.time),
            addr: word(self.addr),
            id: word(self.id),
            stream_id: word(self.stream_id),
            cpu: pair(self.cpu).0,
            period: word(self.period),
            weight: word(self.weight),
            data_src: word(self.data_src),
            transaction: word(self.transaction),
            phys_addr: word(self.phys_addr),
            cgroup: word(self.cgroup),
            data_page_size: word(self.data_page_size),
            code_page_size: word(self.code_page_size),
            ..SampleRecord::default()
        }
    }
}
