//! Keys of memory in the sketch's tables: hashes, so that the sketch samples every part of the memory alike.

use crate::sample::MemoryId;

/// The finalizer of splitmix64: every bit of the input moves every bit of the output.
#[inline]
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[inline]
pub(crate) fn touch_hash(page: u64, thread: u32) -> u64 {
    mix(page ^ u64::from(thread).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The key of a thread's accesses to a line of a page; never 0.
#[inline]
pub(crate) fn repeat_key(touch: u64, line: u32) -> u64 {
    mix(touch ^ u64::from(line + 1).wrapping_mul(0xd1b5_4a32_d192_ed03)) | 1
}

#[inline]
pub(crate) fn line_key(page: u64, line: u32) -> u64 {
    mix(page ^ u64::from(line + 1).wrapping_mul(0xd1b5_4a32_d192_ed03))
}

/// A granule's key; two granules of a run have the same key with a probability of about 1 in 10^8.
#[inline]
pub(crate) fn place_key(memory: MemoryId) -> u64 {
    let (kind, number) = match memory {
        MemoryId::Private { space, addr } => (mix(u64::from(space) + 1), addr),
        MemoryId::Frame { phys } => (0x5bd1_e995_0000_0001, phys),
        MemoryId::Shared { scope, ino, offset } => {
            (mix(mix(ino) ^ scope.number().wrapping_mul(0x9e37_79b9_7f4a_7c15)) ^ 0x77, offset)
        }
    };
    mix(mix(number ^ kind).wrapping_add(kind))
}
