//! Finds the address range of a thread's own stack.

use std::ops::Range;

/// Bytes below sp that count as stack: the red zone and what a call pushes.
const BELOW: u64 = 512;
/// Bytes above the highest sampled sp that count as stack: the outermost frame. Not more, because the kernel places
/// mappings side by side, so other memory may follow. The rest of the thread's own memory above it (frames that were
/// never sampled, its thread-local block) is not accessed by other threads.
const ABOVE: u64 = 1024;
/// A stack pointer at least this far from the last one belongs to another stack (of a coroutine, of a signal handler).
const JUMP: u64 = 1024 * 1024;

/// The stack of one thread according to its samples: from 512 bytes below sp to 1 KiB above the highest sampled sp.
///
/// The VMA of sp cannot be used: a thread's stack often shares a VMA with adjacent anonymous memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StackRange {
    top: u64,
    last: u64,
}

impl StackRange {
    /// Adds the sp of a sample of the thread, and returns the range to leave out for that sample.
    pub fn update(&mut self, sp: u64) -> Range<u64> {
        if sp > self.top || self.last.abs_diff(sp) > JUMP {
            self.top = sp;
        }
        self.last = sp;
        sp.saturating_sub(BELOW)..self.top.saturating_add(ABOVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_reaches_above_the_outermost_frame_seen() {
        let mut stack = StackRange::default();
        assert_eq!(stack.update(0x7000_8000), 0x7000_7e00..0x7000_8400);
        assert_eq!(stack.update(0x7000_1000), 0x7000_0e00..0x7000_8400);
    }

    #[test]
    fn another_stack_is_another_range() {
        let mut stack = StackRange::default();
        stack.update(0x7fff_0000_0000);
        // The stack of a coroutine in the heap: the memory in between is not stack.
        assert_eq!(stack.update(0x5555_0000_0000), 0x5554_ffff_fe00..0x5555_0000_0400);
    }

    #[test]
    fn damaged_pointers_do_no_harm() {
        let mut stack = StackRange::default();
        assert_eq!(stack.update(u64::MAX).end, u64::MAX);
        assert_eq!(stack.update(0), 0..0x400);
    }
}
