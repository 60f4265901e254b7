//! The types of samples and accesses, for all sources.

pub mod batch;
pub mod caches;
mod counts;
mod data_source;
mod memory;
pub mod places;
pub mod sched;
mod task;

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use thiserror::Error;

use crate::escape;

pub use batch::{FileId, SideBand, TimedSideBand};
pub use counts::sentences;
pub use data_source::{Cost, DataSource};
pub use memory::{MemoryId, MemoryScope, LINE_SIZE, PAGE_SIZE};
pub use task::{Task, TaskHint};

/// A thread's name as in the kernel: up to 15 bytes, any value but NUL (`TASK_COMM_LEN` in linux/sched.h is 16).
///
/// Names are bytes. They may contain spaces, slashes and bytes that are not UTF-8.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Comm {
    /// The name, NULs, and in the last byte its length: one array is copied and compared at once.
    bytes: [u8; Comm::MAX + 1],
}

impl Comm {
    /// The longest name in bytes.
    pub const MAX: usize = 15;

    /// The name up to its first NUL, truncated to [`Comm::MAX`] bytes as in the kernel.
    #[inline]
    #[must_use]
    pub fn new(name: &[u8]) -> Self {
        const ONES: u128 = u128::MAX / 0xff;
        let all = word(name.get(..Self::MAX).unwrap_or(name));
        // The lowest of these bits is that of the first NUL; the last byte is one.
        let nuls = all.wrapping_sub(ONES) & !all & ONES << 7;
        let bits = nuls.trailing_zeros() & !7;
        let mut bytes = (all & ((1 << bits) - 1)).to_le_bytes();
        bytes[Self::MAX] = (bits / 8) as u8;
        Self { bytes }
    }

    /// The bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.bytes[Self::MAX])).unwrap_or_default()
    }

    /// True for the empty name, which `prctl(PR_SET_NAME, "")` gives.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }

    /// The longest leading part of the name that is UTF-8; all of it for most names.
    #[must_use]
    pub fn utf8_prefix(&self) -> &str {
        let bytes = self.as_bytes();
        match std::str::from_utf8(bytes) {
            Ok(name) => name,
            Err(error) => {
                bytes.get(..error.valid_up_to()).and_then(|valid| std::str::from_utf8(valid).ok()).unwrap_or_default()
            }
        }
    }
}

/// At most 16 bytes as a number, the first one lowest. Each byte is read once or twice, but none alone.
#[inline]
fn word(bytes: &[u8]) -> u128 {
    let bits = 8 * bytes.len();
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        return u128::from(u64::from_le_bytes(*first)) | u128::from(u64::from_le_bytes(*last)) << (bits - 64);
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        return u128::from(u32::from_le_bytes(*first)) | u128::from(u32::from_le_bytes(*last)) << (bits - 32);
    }
    bytes.iter().rev().fold(0, |all, byte| all << 8 | u128::from(*byte))
}

impl From<&str> for Comm {
    fn from(name: &str) -> Self {
        Self::new(name.as_bytes())
    }
}

/// For display: all but printable UTF-8 is escaped as `\xNN`, so every name is safe for a terminal.
impl fmt::Display for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&printable(self.as_bytes()))
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Escapes untrusted bytes for a terminal: printable UTF-8 is kept, all else becomes `\xNN`.
#[must_use]
pub fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if escape::is_hidden(character) {
                escape::push(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(character);
            }
        }
        escape::push(&mut text, chunk.invalid());
    }
    text
}

/// Where samples and their addresses come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// Intel's PEBS: loads with latency, and stores on request; the hardware gives the address.
    Pebs,
    /// AMD's IBS: loads and stores among sampled ops; the hardware gives the address.
    Ibs,
    /// Arm's SPE: loads and stores among sampled operations; the hardware gives the address.
    Spe,
    /// The scheduler's tick: the operand of the interrupted code is recovered from its registers.
    Timer,
    /// Minor page faults: the first touch of a page by an address space.
    Faults,
    /// Events of the scheduler: which threads wake each other. It has no addresses.
    Wakeups,
    /// Call stacks at an event of the user's choice. It has no addresses.
    Stacks,
    /// A recording by another program, with events that it chose.
    Recorded,
}

impl Source {
    /// Those that sample memory, in the order in which `auto` tries them.
    pub const ALL: [Self; 5] = [Self::Pebs, Self::Ibs, Self::Spe, Self::Timer, Self::Faults];

    /// The name that `--source` and the report use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pebs => "pebs",
            Self::Ibs => "ibs",
            Self::Spe => "spe",
            Self::Timer => "timer",
            Self::Faults => "faults",
            Self::Wakeups => "wakeups",
            Self::Stacks => "stacks",
            Self::Recorded => "recorded",
        }
    }

    /// What the source can and cannot sample, in one sentence for the report.
    #[must_use]
    pub fn coverage(self) -> &'static str {
        match self {
            Self::Pebs => {
                "loads of at least the requested latency, with address, latency and where the data came from; stores only if \
                 requested"
            }
            Self::Ibs => {
                "loads and stores among evenly sampled ops, with address, where the data came from, and the latency of loads \
                 that missed the L1 cache"
            }
            Self::Spe => {
                "loads and stores among evenly sampled operations, with address and latency, and where the data came from if the \
                 core says it"
            }
            Self::Timer => {
                "accesses of running code near each timer tick, without latency; accesses of kernel code if that is sampled; no \
                 accesses to thread-local memory, of gather instructions, or whose address registers were overwritten before the tick"
            }
            Self::Faults => {
                "first touches of pages only: it shows which threads are active and which pages processes share, \
                 not which threads of one process share memory"
            }
            Self::Wakeups => {
                "no accesses: threads that wake each other count as sharing memory, and those that never wait for each other do not"
            }
            Self::Stacks => "no accesses: call stacks at an event",
            Self::Recorded => "what another program recorded, with events of its choice",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No source has this name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown source \"{0}\"")]
pub struct UnknownSource(pub String);

impl FromStr for Source {
    type Err = UnknownSource;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().chain([Self::Wakeups, Self::Stacks]).find(|source| source.name() == name);
        known.ok_or_else(|| UnknownSource(name.to_owned()))
    }
}

/// The processor mode of a sample (`PERF_RECORD_MISC_CPUMODE_MASK`, linux/perf_event.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CpuMode {
    /// Unknown.
    #[default]
    Unknown,
    /// Kernel code.
    Kernel,
    /// User code.
    User,
    /// The hypervisor.
    Hypervisor,
    /// Kernel code of a guest.
    GuestKernel,
    /// User code of a guest.
    GuestUser,
}

/// The kind of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Access {
    /// Unknown: the source does not give it.
    #[default]
    Unknown,
    /// A read.
    Load,
    /// A write.
    Store,
    /// A read and a write by one instruction (`lock add`, `inc`).
    Update,
}

/// How an address was recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// The instruction at ip.
    AtIp,
    /// An instruction before ip; its address registers have not been written since.
    Before,
    /// An instruction straight after ip; its address registers are not written before it.
    After,
    /// An instruction after ip, reached by running the code forward.
    Emulated,
    /// An instruction before ip; its registers were computed backward.
    Inverted,
    /// An instruction before ip, found by going back and running forward again with the stack.
    Replayed,
    /// An instruction after ip, reached by running the code forward with the values at the moment of the sample of memory that
    /// other threads can write. Only this method can be wrong, if one of them wrote in between.
    Racy,
}

impl Method {
    /// All methods, the most reliable first.
    pub const ALL: [Self; 7] =
        [Self::AtIp, Self::Before, Self::After, Self::Emulated, Self::Inverted, Self::Replayed, Self::Racy];

    /// The letter in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AtIp => "a",
            Self::Before => "c",
            Self::After => "b",
            Self::Emulated => "e",
            Self::Inverted => "i",
            Self::Replayed => "r",
            Self::Racy => "m",
        }
    }

    /// True if the access was made before the sample; false if it comes after it.
    #[must_use]
    pub fn is_backward(self) -> bool {
        matches!(self, Self::Before | Self::Inverted | Self::Replayed)
    }
}

/// A code address, the same in every process that maps the same file. `resolve::Modules` of scxprof makes and names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CodeAddr {
    /// The session's number of the file or other object that contains the code.
    pub module: NonZeroU32,
    /// Offset from the file's beginning; for objects without a file (the kernel, anonymous memory) the address itself.
    pub offset: u64,
}

/// The session's number of a call stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StackId(pub u32);

/// The session's number of a thread: a reused tid is a new thread.
pub type ThreadIndex = u32;

/// The facts about one access from the event, or recovered from it; a [`Sample`] adds names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RawSample {
    /// CLOCK_MONOTONIC, ns.
    pub time: u64,
    /// Process id in our pid namespace.
    pub pid: u32,
    /// Thread id in our pid namespace.
    pub tid: u32,
    /// CPU that the access ran on; [`RawSample::NO_CPU`] where a recording does not say.
    pub cpu: u32,
    /// Processor mode of the access.
    pub mode: CpuMode,
    /// Load, store or both.
    pub access: Access,
    /// Bytes accessed, 0 if unknown.
    pub size: u16,
    /// Address of the instruction.
    pub ip: u64,
    /// Virtual address of the data.
    pub addr: u64,
    /// Physical address of the data, 0 if unknown.
    pub phys: u64,
    /// Bytes of the page that maps the data, 0 if unknown.
    pub page_size: u64,
    /// Id of the thread's cgroup, 0 if unknown.
    pub cgroup: u64,
    /// The number of events that this sample represents.
    pub period: u64,
    /// Latency of the access in cycles, 0 if the source does not measure it.
    pub latency: u32,
    /// The part of one event that this access is: 1, or 1/n if one event gave n accesses.
    pub share: f32,
    /// Where the data came from, 0 if the source does not give it.
    pub data_src: DataSource,
    /// How the address was recovered; `None` if the hardware or the kernel gave it.
    pub method: Option<Method>,
    /// The number of the event in its recording, if it has several; else 0.
    pub event: u16,
}

impl RawSample {
    /// Stands in [`RawSample::cpu`] for a CPU that is not known.
    pub const NO_CPU: u32 = u32::MAX;
}

impl Default for RawSample {
    fn default() -> Self {
        Self {
            time: 0,
            pid: 0,
            tid: 0,
            cpu: 0,
            mode: CpuMode::Unknown,
            access: Access::Unknown,
            size: 0,
            ip: 0,
            addr: 0,
            phys: 0,
            page_size: 0,
            cgroup: 0,
            period: 1,
            latency: 0,
            share: 1.0,
            data_src: DataSource(0),
            method: None,
            event: 0,
        }
    }
}

/// One access, with the names that the session added.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sample {
    /// The access.
    pub raw: RawSample,
    /// The session's number of the event; accesses of one event have the same number.
    pub record: u64,
    /// The session's number of the thread.
    pub thread: ThreadIndex,
    /// The thread's name when the sample was taken; `None` if unknown.
    pub comm: Option<Comm>,
    /// The memory; `None` if the address is no user memory.
    pub memory: Option<MemoryId>,
    /// The instruction's location in its file; `None` if unknown or not requested.
    pub code: Option<CodeAddr>,
    /// The thread's hint when the sample was taken; `None` if it had none, or hints are not followed. 0 is a hint.
    pub hint: Option<u64>,
    /// The call stack, with the source `stacks`; `resolve::Stacks` of scxprof has its frames.
    pub stack: Option<StackId>,
}

impl Sample {
    /// The cost of the access: from `data_src`, with the measured latency if there is one.
    #[must_use]
    pub fn cost(&self) -> Cost {
        /// Longer latencies are caused by an interrupt or a page fault rather than by a cache.
        const LIMIT: u32 = 2000;
        match self.raw.data_src.cost() {
            Cost::Miss { .. } if self.raw.latency > 0 => Cost::Miss { cycles: self.raw.latency.min(LIMIT) },
            cost => cost,
        }
    }
}

impl From<RawSample> for Sample {
    /// A sample without names.
    #[inline]
    fn from(raw: RawSample) -> Self {
        Self { raw, record: 0, thread: 0, comm: None, memory: None, code: None, hint: None, stack: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comm_is_cut_as_the_kernel_cuts_it() {
        assert_eq!(Comm::new(b"a-name-of-more-than-15").as_bytes(), b"a-name-of-more-");
        assert_eq!(Comm::new(b"web\0junk").as_bytes(), b"web");
        assert!(Comm::new(b"").is_empty());
        for len in 0..=20 {
            let name = &b"a\xff\x80\x01bcdefghijklmnopqrstuvwxyz"[..len];
            assert_eq!(Comm::new(name).as_bytes(), &name[..len.min(15)]);
            for nul in 0..len {
                let cut = [&name[..nul], b"\0", &name[nul..]].concat();
                assert_eq!(Comm::new(&cut).as_bytes(), &name[..nul.min(15)]);
            }
        }
    }

    #[test]
    fn comm_prints_any_bytes() {
        assert_eq!(Comm::new(b"job 3/4").to_string(), "job 3/4");
        assert_eq!(Comm::new(b"a\xff\x1b[m").to_string(), "a\\xff\\x1b[m");
        assert_eq!(Comm::new(b"caf\xc3").utf8_prefix(), "caf");
        assert_eq!(Comm::new("café".as_bytes()).utf8_prefix(), "café");
    }
}
