//! The parts of a perf.data file: magic, sections, feature numbers, record types and attrs (tools/perf/util/header.h and
//! tools/lib/perf/include/perf/event.h in the kernel's sources).

use perf_event_open_sys::bindings as sys;

use crate::record::{sample_type, Header, Layout};

/// The first eight bytes of every file, read as a number of the writer's byte order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"PERFILE2");
/// Bytes of the header of a seekable file.
pub const FILE_HEADER_SIZE: u64 = 104;
/// Bytes of the header of a file that was written into a pipe.
pub const PIPE_HEADER_SIZE: u64 = 16;
/// Bytes of a `perf_file_section`: offset and size.
pub const SECTION_SIZE: usize = 16;
/// Sizes that `perf_event_attr` has had (`PERF_ATTR_SIZE_VER*`, linux/perf_event.h).
const ATTR_SIZES: [usize; 9] = [64, 72, 80, 96, 104, 112, 120, 128, 136];
/// The largest attr that is read; additional fields of newer ones do not change the layout of records.
pub const MAX_ATTR_SIZE: usize = 4096;

/// Sections after the data, by their bit in the header (`HEADER_*`).
#[allow(missing_docs)]
pub mod feature {
    pub const TRACING_DATA: u8 = 1;
    pub const BUILD_ID: u8 = 2;
    pub const HOSTNAME: u8 = 3;
    pub const OSRELEASE: u8 = 4;
    pub const VERSION: u8 = 5;
    pub const ARCH: u8 = 6;
    pub const NRCPUS: u8 = 7;
    pub const CPUDESC: u8 = 8;
    pub const CPUID: u8 = 9;
    pub const TOTAL_MEM: u8 = 10;
    pub const CMDLINE: u8 = 11;
    pub const EVENT_DESC: u8 = 12;
    pub const CPU_TOPOLOGY: u8 = 13;
    pub const NUMA_TOPOLOGY: u8 = 14;
    pub const AUXTRACE: u8 = 18;
    pub const CACHE: u8 = 20;
    pub const SAMPLE_TIME: u8 = 21;
    pub const CLOCKID: u8 = 23;
    pub const DIR_FORMAT: u8 = 24;
}

/// Records that perf itself writes (`PERF_RECORD_USER_TYPE_START` is 64).
#[allow(missing_docs)]
pub mod user {
    pub const START: u32 = 64;
    pub const HEADER_ATTR: u32 = 64;
    pub const HEADER_TRACING_DATA: u32 = 66;
    pub const HEADER_BUILD_ID: u32 = 67;
    pub const FINISHED_ROUND: u32 = 68;
    pub const AUXTRACE_INFO: u32 = 70;
    pub const AUXTRACE: u32 = 71;
    pub const EVENT_UPDATE: u32 = 78;
    pub const TIME_CONV: u32 = 79;
    pub const HEADER_FEATURE: u32 = 80;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
    pub const MAX: u32 = 90;
}

/// The names of record types in `perf report --stats`.
#[must_use]
pub fn record_name(kind: u32) -> &'static str {
    match kind {
        sys::PERF_RECORD_MMAP => "MMAP",
        sys::PERF_RECORD_LOST => "LOST",
        sys::PERF_RECORD_COMM => "COMM",
        sys::PERF_RECORD_EXIT => "EXIT",
        sys::PERF_RECORD_THROTTLE => "THROTTLE",
        sys::PERF_RECORD_UNTHROTTLE => "UNTHROTTLE",
        sys::PERF_RECORD_FORK => "FORK",
        sys::PERF_RECORD_READ => "READ",
        sys::PERF_RECORD_SAMPLE => "SAMPLE",
        sys::PERF_RECORD_MMAP2 => "MMAP2",
        sys::PERF_RECORD_AUX => "AUX",
        sys::PERF_RECORD_ITRACE_START => "ITRACE_START",
        sys::PERF_RECORD_LOST_SAMPLES => "LOST_SAMPLES",
        sys::PERF_RECORD_SWITCH => "SWITCH",
        sys::PERF_RECORD_SWITCH_CPU_WIDE => "SWITCH_CPU_WIDE",
        sys::PERF_RECORD_NAMESPACES => "NAMESPACES",
        sys::PERF_RECORD_KSYMBOL => "KSYMBOL",
        sys::PERF_RECORD_BPF_EVENT => "BPF_EVENT",
        sys::PERF_RECORD_CGROUP => "CGROUP",
        sys::PERF_RECORD_TEXT_POKE => "TEXT_POKE",
        sys::PERF_RECORD_AUX_OUTPUT_HW_ID => "AUX_OUTPUT_HW_ID",
        64 => "ATTR",
        65 => "EVENT_TYPE",
        66 => "TRACING_DATA",
        67 => "BUILD_ID",
        68 => "FINISHED_ROUND",
        69 => "ID_INDEX",
        70 => "AUXTRACE_INFO",
        71 => "AUXTRACE",
        72 => "AUXTRACE_ERROR",
        73 => "THREAD_MAP",
        74 => "CPU_MAP",
        75 => "STAT_CONFIG",
        76 => "STAT",
        77 => "STAT_ROUND",
        78 => "EVENT_UPDATE",
        79 => "TIME_CONV",
        80 => "FEATURE",
        81 => "COMPRESSED",
        82 => "FINISHED_INIT",
        _ => "of another kind",
    }
}

/// The fields of a recorded `perf_event_attr` that a reader needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attr {
    /// `attr.type`.
    pub kind: u32,
    /// `attr.config`.
    pub config: u64,
    /// `attr.config1`.
    pub config1: u64,
    /// `attr.bp_type`.
    pub bp_type: u32,
    /// The bit fields of the attr.
    pub flags: u64,
    /// `attr.clockid`, if `attr.use_clockid` is set.
    pub clockid: Option<i32>,
    /// `attr.sample_period`, if samples do not contain theirs and it is no frequency.
    pub period: Option<u64>,
    /// `attr.sample_stack_user`, bytes, if samples have a copy of the stack.
    pub stack_user: u32,
    /// The layout of the records.
    pub layout: Layout,
}

const FLAG_FREQ: u64 = 1 << 10;
const FLAG_SAMPLE_ID_ALL: u64 = 1 << 18;
const FLAG_USE_CLOCKID: u64 = 1 << 25;

impl Attr {
    /// Reads the attr that fills `bytes`, of whatever size, in the byte order of this machine or the other one.
    #[must_use]
    pub fn read(bytes: &[u8], swapped: bool) -> Self {
        let take = |offset: usize, size: usize| {
            let mut value = [0; 8];
            for (to, &from) in value.iter_mut().zip(bytes.iter().skip(offset).take(size)) {
                *to = from;
            }
            value
        };
        let u64_at = |offset| {
            let value = u64::from_ne_bytes(take(offset, 8));
            if swapped {
                value.swap_bytes()
            } else {
                value
            }
        };
        let u32_at = |offset| {
            let [a, b, c, d, ..] = take(offset, 4);
            let value = u32::from_ne_bytes([a, b, c, d]);
            if swapped {
                value.swap_bytes()
            } else {
                value
            }
        };
        // With the other byte order, bit fields begin at the other end of each byte.
        let flags = take(40, 8).map(|byte| if swapped { byte.reverse_bits() } else { byte });
        let flags = u64::from_ne_bytes(flags);
        let layout = Layout {
            sample_type: u64_at(24),
            read_format: u64_at(32),
            branch_sample_type: u64_at(72),
            regs_user: u64_at(80),
            regs_intr: u64_at(96),
            sample_id_all: flags & FLAG_SAMPLE_ID_ALL != 0,
        };
        let unsaid = layout.sample_type & sample_type::PERIOD == 0 && flags & FLAG_FREQ == 0;
        Self {
            kind: u32_at(0),
            config: u64_at(8),
            config1: u64_at(56),
            bp_type: u32_at(52),
            flags,
            clockid: (flags & FLAG_USE_CLOCKID != 0).then(|| u32_at(92) as i32),
            period: unsaid.then(|| u64_at(16)),
            stack_user: if layout.sample_type & sample_type::STACK_USER == 0 { 0 } else { u32_at(88) },
            layout,
        }
    }
}

/// The smallest size that contains all set fields of `attr`: readers reject attrs larger than theirs.
#[must_use]
pub fn attr_size(bytes: &[u8]) -> usize {
    let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    ATTR_SIZES.into_iter().find(|&size| size >= used).unwrap_or(bytes.len())
}

/// The offset of the id in a sample, from its beginning (`__evsel__calc_id_pos` in tools/perf/util/evsel.c).
#[must_use]
pub fn id_offset(bits: u64) -> Option<usize> {
    use sample_type as t;
    if bits & t::IDENTIFIER != 0 {
        return Some(8);
    }
    let before = (bits & (t::IP | t::TID | t::TIME | t::ADDR)).count_ones() as usize;
    (bits & t::ID != 0).then_some(8 + 8 * before)
}

/// The offset of the id in any other record, from its end (`__evsel__calc_is_pos`).
#[must_use]
pub fn id_offset_from_end(bits: u64) -> Option<usize> {
    use sample_type as t;
    if bits & t::IDENTIFIER != 0 {
        return Some(8);
    }
    let after = (bits & (t::STREAM_ID | t::CPU)).count_ones() as usize;
    (bits & t::ID != 0).then_some(8 + 8 * after)
}

/// The records in `bytes`.
pub fn records(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let size = usize::from(Header::read(bytes)?.size).max(8);
        let (record, rest) = bytes.split_at_checked(size)?;
        bytes = rest;
        Some(record)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_where_the_layout_says() {
        use sample_type as t;
        assert_eq!(id_offset(t::IP | t::TID | t::ID), Some(24));
        assert_eq!(id_offset(t::IP | t::ID | t::IDENTIFIER), Some(8));
        assert_eq!(id_offset_from_end(t::IP | t::ID | t::CPU), Some(16));
        assert_eq!((id_offset(t::IP), id_offset_from_end(t::CPU)), (None, None));
    }
}
