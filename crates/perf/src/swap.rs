//! Converts records of the other byte order in place.
//!
//! Nearly all fields are words of 64 bits; the others are two numbers of 32 bits that share a word, or bytes. A weight in its
//! structured form and a data source are words: the other kind of machine lays out their parts in reverse order.

use perf_event_open_sys::bindings as sys;

use super::format::user;
use crate::record::{build_id, sample_type, Header, Layout, HEADER_SIZE, MISC_MMAP_BUILD_ID};

/// A cursor that converts fields as it advances; it stops at the end, whatever lengths say.
struct Turn<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Turn<'_> {
    fn reverse(&mut self, size: usize) {
        if let Some(field) = self.bytes.get_mut(self.at..).and_then(|rest| rest.get_mut(..size)) {
            field.reverse();
        }
        self.at = self.at.saturating_add(size);
    }

    fn u64s(&mut self, count: u64) {
        let left = (self.bytes.len().saturating_sub(self.at) / 8) as u64;
        for _ in 0..count.min(left) {
            self.reverse(8);
        }
    }

    fn u32s(&mut self, count: usize) {
        for _ in 0..count {
            self.reverse(4);
        }
    }

    fn u16s(&mut self, count: usize) {
        for _ in 0..count {
            self.reverse(2);
        }
    }

    /// Converts a word and returns its value.
    fn word(&mut self) -> u64 {
        let at = self.at;
        self.reverse(8);
        self.bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    fn half(&mut self) -> u32 {
        let at = self.at;
        self.reverse(4);
        self.bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    fn skip(&mut self, count: u64) {
        self.at = self.at.saturating_add(usize::try_from(count).unwrap_or(usize::MAX));
    }
}

/// Converts a header, to know a record's size.
pub fn header(bytes: &mut [u8]) {
    let mut turn = Turn { bytes, at: 0 };
    turn.u32s(1);
    turn.u16s(2);
}

/// Converts a record whose header is already converted.
pub fn record(bytes: &mut [u8], layout: &Layout) {
    let Some(header) = Header::read(bytes) else { return };
    if header.kind >= user::START {
        return user_record(bytes, header.kind);
    }
    if header.kind == sys::PERF_RECORD_SAMPLE {
        return sample(&mut Turn { bytes, at: HEADER_SIZE }, layout);
    }
    let trailer_at = bytes.len().saturating_sub(layout.trailer_size()).max(HEADER_SIZE);
    let (fields, trailer) = bytes.split_at_mut(trailer_at.min(bytes.len()));
    let mut turn = Turn { bytes: fields, at: HEADER_SIZE };
    match header.kind {
        sys::PERF_RECORD_MMAP => {
            turn.u32s(2);
            turn.u64s(3);
        }
        sys::PERF_RECORD_MMAP2 => {
            turn.u32s(2);
            turn.u64s(3);
            let field = turn.bytes.get(turn.at..).unwrap_or_default();
            if header.misc & MISC_MMAP_BUILD_ID != 0 && build_id(field).is_some() {
                turn.skip(24);
            } else {
                turn.u32s(2);
                turn.u64s(2);
            }
            turn.u32s(2);
        }
        sys::PERF_RECORD_COMM | sys::PERF_RECORD_ITRACE_START | sys::PERF_RECORD_SWITCH_CPU_WIDE => turn.u32s(2),
        sys::PERF_RECORD_EXIT | sys::PERF_RECORD_FORK => {
            turn.u32s(4);
            turn.u64s(1);
        }
        sys::PERF_RECORD_READ | sys::PERF_RECORD_NAMESPACES => {
            turn.u32s(2);
            turn.u64s(u64::MAX);
        }
        sys::PERF_RECORD_KSYMBOL => {
            turn.u64s(1);
            turn.u32s(1);
            turn.u16s(2);
        }
        sys::PERF_RECORD_BPF_EVENT => {
            turn.u16s(2);
            turn.u32s(1);
        }
        sys::PERF_RECORD_CGROUP => turn.u64s(1),
        sys::PERF_RECORD_TEXT_POKE => {
            turn.u64s(1);
            turn.u16s(2);
        }
        _ => turn.u64s(u64::MAX),
    }
    let mut turn = Turn { bytes: trailer, at: 0 };
    let has = |bit: u64| layout.sample_id_all && layout.sample_type & bit != 0;
    if has(sample_type::TID) {
        turn.u32s(2);
    }
    for bit in [sample_type::TIME, sample_type::ID, sample_type::STREAM_ID] {
        if has(bit) {
            turn.u64s(1);
        }
    }
    if has(sample_type::CPU) {
        turn.u32s(2);
    }
    if has(sample_type::IDENTIFIER) {
        turn.u64s(1);
    }
}

/// The fields in the order of `perf_output_sample()` (kernel/events/core.c).
fn sample(turn: &mut Turn<'_>, layout: &Layout) {
    use sample_type as t;
    let has = |bit: u64| layout.sample_type & bit != 0;
    for (bit, pair) in [
        (t::IDENTIFIER, false),
        (t::IP, false),
        (t::TID, true),
        (t::TIME, false),
        (t::ADDR, false),
        (t::ID, false),
        (t::STREAM_ID, false),
        (t::CPU, true),
        (t::PERIOD, false),
    ] {
        if has(bit) && pair {
            turn.u32s(2);
        } else if has(bit) {
            turn.u64s(1);
        }
    }
    if has(t::READ) {
        read_values(turn, layout.read_format);
    }
    if has(t::CALLCHAIN) {
        let count = turn.word();
        turn.u64s(count);
    }
    if has(t::RAW) {
        let size = turn.half();
        turn.skip(u64::from(size));
    }
    if has(t::BRANCH_STACK) {
        let count = turn.word();
        let index = u64::from(layout.branch_sample_type & crate::record::BRANCH_HW_INDEX != 0);
        let counters = u64::from(layout.branch_sample_type & crate::record::BRANCH_COUNTERS != 0);
        turn.u64s(count.saturating_mul(3 + counters).saturating_add(index));
    }
    let registers = |turn: &mut Turn<'_>, mask: u64| {
        if turn.word() != 0 {
            turn.u64s(u64::from(mask.count_ones()));
        }
    };
    if has(t::REGS_USER) {
        registers(turn, layout.regs_user);
    }
    if has(t::STACK_USER) {
        let size = turn.word();
        if size != 0 {
            turn.skip(size);
            turn.u64s(1);
        }
    }
    if has(t::WEIGHT | t::WEIGHT_STRUCT) {
        turn.u64s(1);
    }
    for bit in [t::DATA_SRC, t::TRANSACTION] {
        if has(bit) {
            turn.u64s(1);
        }
    }
    if has(t::REGS_INTR) {
        registers(turn, layout.regs_intr);
    }
    for bit in [t::PHYS_ADDR, t::CGROUP, t::DATA_PAGE_SIZE, t::CODE_PAGE_SIZE, t::AUX] {
        if has(bit) {
            turn.u64s(1);
        }
    }
}

fn read_values(turn: &mut Turn<'_>, format: u64) {
    use crate::record::read_format as f;
    let bits = |bits: u64| u64::from((format & bits).count_ones());
    let times = bits(f::TOTAL_TIME_ENABLED | f::TOTAL_TIME_RUNNING);
    let each = 1 + bits(f::ID | f::LOST);
    let words = if format & f::GROUP == 0 { each } else { turn.word().saturating_mul(each) };
    turn.u64s(words.saturating_add(times));
}

fn user_record(bytes: &mut [u8], kind: u32) {
    let mut turn = Turn { bytes, at: HEADER_SIZE };
    match kind {
        user::AUXTRACE | user::HEADER_FEATURE | user::COMPRESSED2 => turn.u64s(1),
        user::EVENT_UPDATE => turn.u64s(2),
        user::HEADER_TRACING_DATA => turn.u32s(1),
        // perf's other records are not used, or are converted when used (an attr).
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_can_be_turned(
            kind in 0u32..100, misc in any::<u16>(), mut body in proptest::collection::vec(any::<u8>(), 0..300),
            sample_type in any::<u64>(), read_format in 0u64..32, sample_id_all in any::<bool>(),
        ) {
            let layout = Layout { sample_type, read_format, regs_user: 0xff, sample_id_all, ..Layout::default() };
            let size = (8 + body.len()) as u16;
            let mut bytes = [&kind.to_ne_bytes()[..], &misc.to_ne_bytes(), &size.to_ne_bytes()].concat();
            bytes.append(&mut body);
            record(&mut bytes, &layout);
        }
    }
}
