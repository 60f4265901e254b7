//! Converts times to CLOCK_MONOTONIC: times of the scheduler's clock, as in batched PEBS, and timer counts, as in
//! records of SPE.

use super::ring::{Ring, TimeConversion};
use crate::host::clock::monotonic_ns;

/// The number of readings; the tightest one is used.
const READINGS: usize = 5;

/// The offset from the scheduler's clock to CLOCK_MONOTONIC. It changes by some us a second while CLOCK_MONOTONIC is
/// slewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Offset(u64);

impl Offset {
    /// The current offset, by the conversion in the ring's control page; `None` if there is none.
    pub(super) fn now(ring: &Ring) -> Option<Self> {
        let conversion = ring.time_conversion()?;
        let reading = |_| {
            let before = monotonic_ns();
            let cycles = tsc()?;
            Some((before, cycles, monotonic_ns()))
        };
        Self::of(conversion, (0..READINGS).filter_map(reading))
    }

    /// From readings of CLOCK_MONOTONIC, the TSC, and CLOCK_MONOTONIC again.
    fn of(conversion: TimeConversion, readings: impl Iterator<Item = (u64, u64, u64)>) -> Option<Self> {
        let (before, cycles, after) = readings.min_by_key(|(before, _, after)| after.saturating_sub(*before))?;
        let monotonic = before.midpoint(after);
        Some(Self(monotonic.wrapping_sub(conversion.ns(cycles))))
    }

    /// CLOCK_MONOTONIC at a time of the scheduler's clock.
    pub(super) fn monotonic(self, time: u64) -> u64 {
        time.wrapping_add(self.0)
    }
}

/// Converts counts of the processor's clock to CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CountClock {
    conversion: TimeConversion,
    offset: Offset,
}

impl CountClock {
    /// The current conversion, from the control page of a ring; `None` if the kernel gives none.
    pub(super) fn now(ring: &Ring) -> Option<Self> {
        Some(Self { conversion: ring.time_conversion()?, offset: Offset::now(ring)? })
    }

    /// A conversion with a fixed offset, for tests.
    #[cfg(test)]
    pub(super) fn exact(conversion: TimeConversion) -> Self {
        Self { conversion, offset: Offset(0) }
    }

    pub(super) fn monotonic(self, count: u64) -> u64 {
        self.offset.monotonic(self.conversion.ns(count))
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::unnecessary_wraps)] // Other architectures have none.
fn tsc() -> Option<u64> {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets user code use it unless a process forbids it itself.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

/// The virtual count of the generic timer, with which SPE stamps its records.
#[cfg(target_arch = "aarch64")]
#[allow(clippy::unnecessary_wraps)] // Other architectures have none.
fn tsc() -> Option<u64> {
    let count: u64;
    // SAFETY: Linux lets user code read the register (arch_timer_set_cntkctl_el1() in arch/arm64/include/asm/arch_timer.h), or reads
    // it for it where a processor's erratum forbids that; it changes no memory. The barrier keeps it from being read early.
    unsafe {
        std::arch::asm!("isb", "mrs {count}, cntvct_el0", count = out(reg) count, options(nostack, preserves_flags))
    };
    Some(count)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn tsc() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_pair_of_readings_tells_the_offset() {
        // 2 GHz: half a ns per cycle.
        let conversion = TimeConversion { zero: 1_000, mult: 1 << 9, shift: 10 };
        assert_eq!(conversion.ns(4_000), 3_000);
        let readings = [(500_000, 4_100, 600_000), (503_090, 4_200, 503_110), (500_000, 4_300, 509_000)];
        let offset = Offset::of(conversion, readings.into_iter()).unwrap();
        assert_eq!(offset.monotonic(3_100), 503_100);
        assert_eq!(offset.monotonic(3_000), 503_000);
        assert_eq!(Offset::of(conversion, std::iter::empty()), None);
    }

    #[test]
    fn a_clock_ahead_of_monotonic_is_set_back() {
        let conversion = TimeConversion { zero: u64::MAX - 9, mult: 1, shift: 0 };
        let offset = Offset::of(conversion, [(50, 1_010, 50)].into_iter()).unwrap();
        assert_eq!(offset.monotonic(1_000), 50);
        assert_eq!(offset.monotonic(1_001), 51);
    }
}
