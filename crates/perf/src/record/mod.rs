//! The records of a perf ring, and their decoder: pure, and safe for any bytes.
//!
//! They are those of `enum perf_event_type` in linux/perf_event.h. The byte order is the machine's own, as in a ring.

use perf_event_open_sys::bindings as sys;
use thiserror::Error;

mod decode;
mod places;

pub use decode::build_id;
pub use decode::decode;
pub use decode::decode_sample;
pub use places::{Places, SampleWords};

/// Bytes of `struct perf_event_header`.
pub const HEADER_SIZE: usize = 8;

const MISC_CPUMODE: u16 = 0x7;
const MISC_MMAP_DATA: u16 = 1 << 13;
const MISC_COMM_EXEC: u16 = 1 << 13;
/// A fork without the parent's mappings: perf writes it for tasks that exist already.
pub const MISC_FORK_EXEC: u16 = 1 << 13;
/// `PERF_RECORD_MISC_LOST_SAMPLES_BPF` (tools/lib/perf/include/perf/event.h).
pub const MISC_LOST_SAMPLES_BPF: u16 = 1 << 15;
const MISC_SWITCH_OUT: u16 = 1 << 13;
const MISC_SWITCH_OUT_PREEMPT: u16 = 1 << 14;
/// The record contains the file's build id; see [`build_id`].
pub const MISC_MMAP_BUILD_ID: u16 = 1 << 14;

/// `PERF_SAMPLE_BRANCH_HW_INDEX`: the stack of branches has an index.
pub const BRANCH_HW_INDEX: u64 = sys::PERF_SAMPLE_BRANCH_HW_INDEX as u64;
/// `PERF_SAMPLE_BRANCH_COUNTERS`: each branch has counters.
pub const BRANCH_COUNTERS: u64 = 1 << 19;

/// The `PERF_SAMPLE_*` bits of `perf_event_attr.sample_type` (linux/perf_event.h).
#[allow(missing_docs)]
pub mod sample_type {
    pub const IP: u64 = 1 << 0;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ADDR: u64 = 1 << 3;
    pub const READ: u64 = 1 << 4;
    pub const CALLCHAIN: u64 = 1 << 5;
    pub const ID: u64 = 1 << 6;
    pub const CPU: u64 = 1 << 7;
    pub const PERIOD: u64 = 1 << 8;
    pub const STREAM_ID: u64 = 1 << 9;
    pub const RAW: u64 = 1 << 10;
    pub const BRANCH_STACK: u64 = 1 << 11;
    pub const REGS_USER: u64 = 1 << 12;
    pub const STACK_USER: u64 = 1 << 13;
    pub const WEIGHT: u64 = 1 << 14;
    pub const DATA_SRC: u64 = 1 << 15;
    pub const IDENTIFIER: u64 = 1 << 16;
    pub const TRANSACTION: u64 = 1 << 17;
    pub const REGS_INTR: u64 = 1 << 18;
    pub const PHYS_ADDR: u64 = 1 << 19;
    pub const AUX: u64 = 1 << 20;
    pub const CGROUP: u64 = 1 << 21;
    pub const DATA_PAGE_SIZE: u64 = 1 << 22;
    pub const CODE_PAGE_SIZE: u64 = 1 << 23;
    pub const WEIGHT_STRUCT: u64 = 1 << 24;
    /// All bits that this decoder knows.
    pub const KNOWN: u64 = (1 << 25) - 1;
}

/// The `PERF_FORMAT_*` bits of `perf_event_attr.read_format` (linux/perf_event.h).
#[allow(missing_docs)]
pub mod read_format {
    pub const TOTAL_TIME_ENABLED: u64 = 1 << 0;
    pub const TOTAL_TIME_RUNNING: u64 = 1 << 1;
    pub const ID: u64 = 1 << 2;
    pub const GROUP: u64 = 1 << 3;
    pub const LOST: u64 = 1 << 4;
}

/// The fields of a `perf_event_attr` that determine the layout of its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Layout {
    /// `attr.sample_type`.
    pub sample_type: u64,
    /// `attr.read_format`.
    pub read_format: u64,
    /// `attr.branch_sample_type`.
    pub branch_sample_type: u64,
    /// `attr.sample_regs_user`, a mask of registers.
    pub regs_user: u64,
    /// `attr.sample_regs_intr`, a mask of registers.
    pub regs_intr: u64,
    /// `attr.sample_id_all`: records other than samples end with a [`SampleId`].
    pub sample_id_all: bool,
}

impl Layout {
    /// Bytes of the [`SampleId`] at the end of each record other than a sample.
    #[must_use]
    #[inline]
    pub fn trailer_size(&self) -> usize {
        use sample_type as t;
        if !self.sample_id_all {
            return 0;
        }
        8 * (self.sample_type & (t::TID | t::TIME | t::ID | t::STREAM_ID | t::CPU | t::IDENTIFIER)).count_ones()
            as usize
    }
}

/// Why a record cannot be read. Its size is still valid, so the next one can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The header's size is no multiple of 8, less than a header, or not the number of bytes given.
    #[error("invalid record size {size}")]
    Header {
        /// The size in the header.
        size: u16,
    },
    /// A field reaches beyond the end of the record.
    #[error("a record of type {kind} ends within its fields")]
    Short {
        /// The record's type.
        kind: u32,
    },
}

/// `struct perf_event_header`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// `PERF_RECORD_*`.
    pub kind: u32,
    /// `PERF_RECORD_MISC_*`.
    pub misc: u16,
    /// Bytes of the record, header included.
    pub size: u16,
}

impl Header {
    /// Reads the header at the beginning of `bytes`; `None` if there are not enough of them.
    #[must_use]
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first_chunk::<4>()?;
        let (misc, rest) = rest.split_first_chunk::<2>()?;
        let (size, _) = rest.split_first_chunk::<2>()?;
        Some(Self { kind: u32::from_ne_bytes(*kind), misc: u16::from_ne_bytes(*misc), size: u16::from_ne_bytes(*size) })
    }

    /// True if the kernel can write this size: records are 8-aligned and contain their header.
    #[must_use]
    #[inline]
    pub fn is_sane(&self) -> bool {
        usize::from(self.size) >= HEADER_SIZE && self.size.is_multiple_of(8)
    }

    /// The cpumode bits as a [`CpuMode`](scxprof_base::sample::CpuMode).
    #[must_use]
    #[inline]
    pub fn cpu_mode(&self) -> scxprof_base::sample::CpuMode {
        use scxprof_base::sample::CpuMode;
        match self.misc & MISC_CPUMODE {
            1 => CpuMode::Kernel,
            2 => CpuMode::User,
            3 => CpuMode::Hypervisor,
            4 => CpuMode::GuestKernel,
            5 => CpuMode::GuestUser,
            _ => CpuMode::Unknown,
        }
    }
}

/// A run of 64-bit words inside a record.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Words<'a>(pub &'a [u8]);

impl<'a> Words<'a> {
    /// The words in order.
    #[must_use]
    pub fn iter(self) -> impl DoubleEndedIterator<Item = u64> + 'a {
        self.0.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes))
    }

    /// Number of words.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.len() / 8
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The word at `index`.
    #[must_use]
    pub fn get(self, index: usize) -> Option<u64> {
        let bytes = self.0.get(index.checked_mul(8)?..)?.get(..8)?;
        bytes.try_into().ok().map(u64::from_ne_bytes)
    }
}

impl std::fmt::Debug for Words<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Registers of `PERF_SAMPLE_REGS_USER` and `PERF_SAMPLE_REGS_INTR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers<'a> {
    /// `PERF_SAMPLE_REGS_ABI_*`: 0 none, 1 of a 32-bit task, 2 of a 64-bit task.
    pub abi: u64,
    /// Which registers they are: the layout's `regs_user` or `regs_intr`.
    pub mask: u64,
    /// One word for each bit of the mask, lowest bit first; none if `abi` is 0.
    pub values: Words<'a>,
}

/// `PERF_SAMPLE_BRANCH_STACK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Branches<'a> {
    /// Index of the newest entry, if `PERF_SAMPLE_BRANCH_HW_INDEX` was requested.
    pub hw_index: u64,
    /// Three words per entry: from, to, flags.
    pub entries: Words<'a>,
    /// One word per entry, if `PERF_SAMPLE_BRANCH_COUNTERS` was requested.
    pub counters: Words<'a>,
}

/// `PERF_RECORD_SAMPLE`; fields without a bit in the layout's `sample_type` are 0 or empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)] // The names are those of linux/perf_event.h.
pub struct SampleRecord<'a> {
    pub identifier: u64,
    pub ip: u64,
    pub pid: u32,
    pub tid: u32,
    pub time: u64,
    pub addr: u64,
    pub id: u64,
    pub stream_id: u64,
    pub cpu: u32,
    pub period: u64,
    /// The words of `struct read_format`, see [`ReadValue`].
    pub read: Words<'a>,
    pub callchain: Words<'a>,
    pub raw: &'a [u8],
    pub branches: Branches<'a>,
    pub regs_user: Registers<'a>,
    /// The part of the user stack that was copied (`dyn_size` bytes).
    pub stack_user: &'a [u8],
    /// Bytes reserved for the stack, more than `stack_user` if the stack ended.
    pub stack_user_size: u64,
    /// `PERF_SAMPLE_WEIGHT` or `PERF_SAMPLE_WEIGHT_STRUCT`, whichever was requested.
    pub weight: u64,
    pub data_src: u64,
    pub transaction: u64,
    pub regs_intr: Registers<'a>,
    pub phys_addr: u64,
    pub cgroup: u64,
    pub data_page_size: u64,
    pub code_page_size: u64,
    pub aux: &'a [u8],
}

/// The end of every other record if `sample_id_all` is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct SampleId {
    pub pid: u32,
    pub tid: u32,
    pub time: u64,
    pub id: u64,
    pub stream_id: u64,
    pub cpu: u32,
    pub identifier: u64,
}

/// The mapped file: `PERF_RECORD_MMAP2` has one or the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MappedFile<'a> {
    Inode { major: u32, minor: u32, inode: u64, generation: u64 },
    BuildId(&'a [u8]),
}

/// A record. Names are those of linux/perf_event.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
// Boxing the sample would allocate for each; a Record lives on the stack, one at a time.
#[allow(missing_docs, clippy::large_enum_variant)]
pub enum Record<'a> {
    Mmap {
        pid: u32,
        tid: u32,
        addr: u64,
        len: u64,
        pgoff: u64,
        data: bool,
        filename: &'a [u8],
    },
    Lost {
        id: u64,
        lost: u64,
    },
    Comm {
        pid: u32,
        tid: u32,
        exec: bool,
        comm: &'a [u8],
    },
    Exit {
        pid: u32,
        ppid: u32,
        tid: u32,
        ptid: u32,
        time: u64,
    },
    Throttle {
        time: u64,
        id: u64,
        stream_id: u64,
    },
    Unthrottle {
        time: u64,
        id: u64,
        stream_id: u64,
    },
    Fork {
        pid: u32,
        ppid: u32,
        tid: u32,
        ptid: u32,
        time: u64,
    },
    Read {
        pid: u32,
        tid: u32,
        values: Words<'a>,
    },
    Sample(SampleRecord<'a>),
    Mmap2 {
        pid: u32,
        tid: u32,
        addr: u64,
        len: u64,
        pgoff: u64,
        file: MappedFile<'a>,
        prot: u32,
        flags: u32,
        data: bool,
        filename: &'a [u8],
    },
    Aux {
        offset: u64,
        size: u64,
        flags: u64,
    },
    ItraceStart {
        pid: u32,
        tid: u32,
    },
    LostSamples {
        lost: u64,
    },
    Switch {
        out: bool,
        preempt: bool,
    },
    SwitchCpuWide {
        out: bool,
        preempt: bool,
        next_prev_pid: u32,
        next_prev_tid: u32,
    },
    /// Two words per namespace: device, inode.
    Namespaces {
        pid: u32,
        tid: u32,
        links: Words<'a>,
    },
    Ksymbol {
        addr: u64,
        len: u32,
        ksym_type: u16,
        flags: u16,
        name: &'a [u8],
    },
    BpfEvent {
        event: u16,
        flags: u16,
        id: u32,
        tag: [u8; 8],
    },
    Cgroup {
        id: u64,
        path: &'a [u8],
    },
    TextPoke {
        addr: u64,
        old: &'a [u8],
        new: &'a [u8],
    },
    AuxOutputHwId {
        hw_id: u64,
    },
    CallchainDeferred {
        cookie: u64,
        ips: Words<'a>,
    },
    /// A type that this decoder does not know; newer kernels have more.
    Unknown {
        kind: u32,
    },
}

/// The fields of `struct read_format` that belong to one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadValue {
    /// The count.
    pub value: u64,
    /// ns that the event was enabled.
    pub time_enabled: u64,
    /// ns that it was counting; less if events took turns.
    pub time_running: u64,
    /// Its id.
    pub id: u64,
    /// Samples that were lost because the ring was full (`PERF_FORMAT_LOST`, Linux 6.0).
    pub lost: u64,
}

impl ReadValue {
    /// The value in `words`, in the layout of `read_format` (without `PERF_FORMAT_GROUP`).
    #[must_use]
    pub fn decode(words: Words<'_>, format: u64) -> Option<Self> {
        let mut words = words.iter();
        let mut value = Self { value: words.next()?, ..Self::default() };
        for (bit, field) in [
            (read_format::TOTAL_TIME_ENABLED, &mut value.time_enabled),
            (read_format::TOTAL_TIME_RUNNING, &mut value.time_running),
            (read_format::ID, &mut value.id),
            (read_format::LOST, &mut value.lost),
        ] {
            if format & bit != 0 {
                *field = words.next()?;
            }
        }
        Some(value)
    }
}
