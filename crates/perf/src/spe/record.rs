//! What one sampled operation did.

use super::packet::Packet;
use scxprof_base::sample::Access;

/// The bits of [`Record::events`].
#[allow(missing_docs)]
pub mod event {
    pub const RETIRED: u64 = 1 << 1;
    pub const L1D_ACCESS: u64 = 1 << 2;
    pub const L1D_MISS: u64 = 1 << 3;
    pub const TLB_ACCESS: u64 = 1 << 4;
    pub const TLB_WALK: u64 = 1 << 5;
    pub const LLC_ACCESS: u64 = 1 << 8;
    pub const LLC_MISS: u64 = 1 << 9;
    pub const REMOTE: u64 = 1 << 10;
    /// No lane of a vector was active, so that nothing was accessed.
    pub const EMPTY_PREDICATE: u64 = 1 << 18;
    pub const L2D_ACCESS: u64 = 1 << 19;
    pub const L2D_MISS: u64 = 1 << 20;
    /// A cache held the data modified (`FEAT_SPEv1p4`).
    pub const MODIFIED: u64 = 1 << 21;
    /// The data came from another core's cache (`FEAT_SPEv1p4`).
    pub const SNOOPED: u64 = 1 << 23;
}

/// Bits of an address.
pub(super) const ADDRESS: u64 = (1 << 56) - 1;
/// The top byte, which is all ones in addresses of the kernel.
const TOP: u64 = 0xff << 56;

/// A sampled operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Record {
    /// Address of the instruction.
    pub ip: u64,
    /// The exception level that executed it: 0 is user code; `None` if the record has no instruction address.
    pub level: Option<u8>,
    /// The target of a branch.
    pub target: u64,
    /// Virtual address of the data without its tag; `None` if the operation accessed none.
    pub addr: Option<u64>,
    /// Physical address of the data; 0 unless it was asked for.
    pub phys: u64,
    /// What happened, as bits of [`event`].
    pub events: u64,
    /// Class and payload of the operation.
    pub operation: Option<(u8, u8)>,
    /// Where loaded data came from, by the core's own numbers.
    pub source: Option<u16>,
    /// Cycles from the dispatch of the operation to its completion; 0 if unknown.
    pub latency: u16,
    /// The thread's id in the host's pid namespace, if the kernel writes it (`CONFIG_PID_IN_CONTEXTIDR`).
    pub context: Option<u32>,
    /// The generic timer's count.
    pub timestamp: Option<u64>,
}

impl Record {
    /// Whether the operation loads, stores or does both; unknown for one that does neither.
    #[must_use]
    pub fn access(&self) -> Access {
        /// An atomic operation among those of bits 7 to 5 clear and bit 1 set.
        const ATOMIC: u8 = 1 << 2;
        match self.operation {
            Some((1, payload)) if payload & 0xe2 == 0x02 && payload & ATOMIC != 0 => Access::Update,
            Some((1, payload)) if payload & 1 != 0 => Access::Store,
            Some((1, _)) => Access::Load,
            _ => Access::Unknown,
        }
    }

    /// True if it accessed the memory at [`Record::addr`].
    #[must_use]
    pub fn is_access(&self) -> bool {
        self.addr.is_some() && self.access() != Access::Unknown && self.events & event::EMPTY_PREDICATE == 0
    }

    /// Adds what a packet says.
    pub(super) fn take(&mut self, packet: Packet) {
        match packet {
            Packet::Events(events) => self.events = events,
            Packet::DataSource(source) => self.source = Some(source),
            Packet::Context { id, .. } => self.context = Some(id),
            Packet::Operation { class, payload } => self.operation = Some((class, payload)),
            Packet::Address { index: 0, payload } => {
                self.ip = code_address(payload);
                self.level = Some((payload >> 61 & 3) as u8);
            }
            Packet::Address { index: 1, payload } => self.target = code_address(payload),
            // The top byte is the tag of a pointer. Addresses of the kernel have ones below it, too.
            Packet::Address { index: 2, payload } => {
                let is_of_kernel = payload >> 52 & 0xf == 0xf;
                self.addr = Some(payload & ADDRESS | if is_of_kernel { TOP } else { 0 });
            }
            Packet::Address { index: 3, payload } => self.phys = payload & ADDRESS,
            Packet::Counter { index: 0, cycles } => self.latency = cycles,
            _ => {}
        }
    }
}

/// Bits 62 and 61 are the exception level, of which 1 and 2 are the kernel's, and bit 63 says that it is not the secure world.
fn code_address(payload: u64) -> u64 {
    let is_of_kernel = payload >> 63 == 1 && matches!(payload >> 61 & 3, 1 | 2);
    payload & ADDRESS | if is_of_kernel { TOP } else { 0 }
}
