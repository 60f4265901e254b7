//! The memory that the mock threads and their director share.

// Mappings begin at a page, and offsets in them are multiples of what is read there.
#![allow(clippy::cast_ptr_alignment)]

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

/// Below this many ns, all times are in the first bucket.
const LEAST: u32 = 8;
/// Buckets of each power of two.
const STEPS: u32 = 8;
/// Powers of two: up to 2^36 ns, about a minute.
const POWERS: u32 = 28;
const BUCKETS: usize = (STEPS * POWERS) as usize;

/// Times in ns, counted in buckets that are at most an eighth of their value wide.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Histogram([AtomicU32; BUCKETS]);

fn bucket(ns: u64) -> usize {
    let power = ns.checked_ilog2().unwrap_or(0);
    if power < LEAST {
        return 0;
    }
    let step = (ns >> (power - 3)) & u64::from(STEPS - 1);
    (u64::from((power - LEAST) * STEPS) + step).min(BUCKETS as u64 - 1) as usize
}

/// The middle of a bucket in ns.
fn value(bucket: usize) -> u64 {
    let (power, step) = (bucket as u32 / STEPS + LEAST, bucket as u64 % u64::from(STEPS));
    let width = 1u64 << (power - 3);
    (1 << power) + step * width + width / 2
}

impl Histogram {
    pub fn add(&self, ns: u64) {
        if let Some(count) = self.0.get(bucket(ns)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Each time that was counted, about, and how often.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let counts = self.0.iter().enumerate();
        counts.map(|(at, count)| (value(at), u64::from(count.load(Ordering::Relaxed)))).filter(|&(_, count)| count > 0)
    }
}

/// The part that all threads share.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Head {
    /// Not 0 when the processes may be made.
    pub open: AtomicU32,
    /// Threads that wait for the beginning.
    pub ready: AtomicU32,
    /// Not 0 when the replay has begun.
    pub go: AtomicU32,
    /// Threads that did all that they had to.
    pub done: AtomicU32,
    /// Not 0 when all threads are to end.
    pub end: AtomicU32,
    /// Processes that could not go into their cgroup.
    pub astray: AtomicU32,
    /// The errno of a thread or process that could not be made.
    pub failed: AtomicU32,
    /// When the director lived, CLOCK_MONOTONIC, ns.
    pub alive: AtomicU64,
    /// When the replay begins, CLOCK_MONOTONIC, ns.
    pub begin: AtomicU64,
}

/// The shared part of a mock thread.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Slot {
    /// Wakeups that others gave it. Each ends one of its waits, in their order.
    pub wakeups: AtomicU32,
    /// The futex on which the thread waits; its value changes if a later wakeup must not find it asleep.
    pub word: AtomicU32,
    /// Waits that it has come to: what threads wait on that are to wake it.
    pub arrived: AtomicU32,
    /// Waits that it has ended.
    pub left: AtomicU32,
    /// Threads that wait for it to come to a wait.
    pub watchers: AtomicU32,
    /// Its thread id.
    pub tid: AtomicU32,
    /// Until when it sleeps, CLOCK_MONOTONIC, ns.
    pub sleeps_until: AtomicU64,
    /// When it was woken last, and when it came to its last wait.
    pub woken_at: AtomicU64,
    pub arrived_at: AtomicU64,
    /// Operations that it has done.
    pub ops: AtomicU64,
    /// ns on CPUs.
    pub run: AtomicU64,
    /// Units of work.
    pub work: AtomicU64,
    /// Wakeups by other threads that ended a sleep.
    pub woken: AtomicU64,
    /// As the kernel counts them; `u64::MAX` if it did not live to tell.
    pub sleeps: AtomicU64,
    pub preemptions: AtomicU64,
    /// ns runnable without a CPU.
    pub wait: AtomicU64,
    /// Times that it was on another CPU after a sleep or a piece of work.
    pub migrations: AtomicU64,
    /// From a wakeup by another thread until it ran.
    pub latency: Histogram,
    /// From the time until which it slept until it ran.
    pub late: Histogram,
}

/// The memory that mock threads touch: words that are shared with all processes that are forked later.
#[derive(Debug)]
pub(super) struct Arena {
    map: Option<MmapRaw>,
}

impl Arena {
    /// Of this number of bytes, which take memory when they are touched.
    pub fn new(bytes: u64) -> io::Result<Self> {
        if bytes == 0 {
            return Ok(Self { map: None });
        }
        let file = memfd_create("scxprof-replay-memory", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, bytes)?;
        let len = usize::try_from(bytes).map_err(io::Error::other)?;
        Ok(Self { map: Some(MmapOptions::new().len(len).no_reserve_swap().map_raw(&file)?) })
    }

    /// The words from `offset` on.
    pub fn words(&self, offset: u64, bytes: u64) -> &[AtomicU64] {
        let Some(map) = &self.map else { return &[] };
        let (Ok(offset), Ok(bytes)) = (usize::try_from(offset), usize::try_from(bytes)) else { return &[] };
        if offset % 8 != 0 || offset.checked_add(bytes).is_none_or(|end| end > map.len()) {
            return &[];
        }
        // SAFETY: within the mapping, aligned, and only ever accessed as atomics, for which any bytes are valid; the mapping lives as
        // long as `self`.
        unsafe { std::slice::from_raw_parts(map.as_mut_ptr().add(offset).cast::<AtomicU64>(), bytes / 8) }
    }
}

/// Memory that is shared with all processes that are forked later.
#[derive(Debug)]
pub struct Board {
    map: MmapRaw,
    threads: usize,
}

const _: () = assert!(size_of::<Head>() <= 64 && align_of::<Slot>() <= 64);

impl Board {
    /// For this number of threads.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(threads: usize) -> io::Result<Self> {
        let file = memfd_create("scxprof-replay", MemfdFlags::CLOEXEC)?;
        let bytes = 64 + threads * size_of::<Slot>();
        ftruncate(&file, bytes as u64)?;
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        Ok(Self { map, threads })
    }

    pub(super) fn head(&self) -> &Head {
        // SAFETY: the mapping is page-aligned, has 64 bytes and more, lives as long as `self`, and holds only atomics there, for which
        // any bytes are valid.
        unsafe { &*self.map.as_mut_ptr().cast::<Head>() }
    }

    pub(super) fn slot(&self, thread: u32) -> Option<&Slot> {
        if thread as usize >= self.threads {
            return None;
        }
        // SAFETY: the mapping has `threads` of them from byte 64 on, which is aligned for them; as for `head`.
        Some(unsafe { &*self.map.as_mut_ptr().add(64).cast::<Slot>().add(thread as usize) })
    }

    /// The results of the thread so far.
    #[must_use]
    pub fn results(&self, thread: u32) -> Option<Results> {
        let slot = self.slot(thread)?;
        let of = |it: &AtomicU64| it.load(Ordering::Relaxed);
        let ended = of(&slot.sleeps) != u64::MAX && of(&slot.ops) > 0;
        Some(Results {
            tid: slot.tid.load(Ordering::Relaxed),
            ops: of(&slot.ops),
            run: of(&slot.run),
            work: of(&slot.work),
            woken: of(&slot.woken),
            sleeps: ended.then(|| of(&slot.sleeps)),
            preemptions: ended.then(|| of(&slot.preemptions)),
            wait: ended.then(|| of(&slot.wait)),
            migrations: of(&slot.migrations),
            latency: slot.latency.counts().collect(),
            late: slot.late.counts().collect(),
        })
    }
}

/// The results of a mock thread. Times in ns.
#[derive(Debug, Clone, Default)]
pub struct Results {
    /// Its thread id on this host; 0 if it was never made.
    pub tid: u32,
    /// Operations that it did.
    pub ops: u64,
    /// On CPUs.
    pub run: u64,
    /// Units of work.
    pub work: u64,
    /// Wakeups by other threads that ended a sleep.
    pub woken: u64,
    /// Times that it left its CPU to sleep; `None` if it did not live to tell.
    pub sleeps: Option<u64>,
    /// Times that another thread took its CPU.
    pub preemptions: Option<u64>,
    /// Runnable without a CPU; 0 without CONFIG_SCHED_INFO.
    pub wait: Option<u64>,
    /// Times that it was found on another CPU.
    pub migrations: u64,
    /// From wakeups by other threads until it ran: ns within an eighth, and how often.
    pub latency: Vec<(u64, u64)>,
    /// From the end of sleeps until it ran.
    pub late: Vec<(u64, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn a_bucket_is_near_its_times(ns in 256u64..1 << 36) {
            let found = value(bucket(ns));
            proptest::prop_assert!(found.abs_diff(ns) * 8 <= ns, "{ns} {found}");
        }
    }

    #[test]
    fn slots_are_apart() {
        let board = Board::new(3).unwrap();
        board.slot(1).unwrap().run.store(7, Ordering::Relaxed);
        let run = |thread| board.results(thread).map(|results| results.run);
        assert_eq!((run(0), run(1), run(2), run(3)), (Some(0), Some(7), Some(0), None));
        board.slot(0).unwrap().late.add(u64::MAX);
        assert_eq!(board.results(0).unwrap().late, [(value(BUCKETS - 1), 1)]);
    }
}
