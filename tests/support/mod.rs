//! A small reader of perf rings, enough to look at the samples of one event on one CPU.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapMut, MmapOptions};
use perf_event_open_sys as sys;
use scxprof::sampler::tick::REGS;

/// Bytes of the ring's data part.
const DATA: usize = 4 << 20;

/// A sample with the fields that `TickPlan::attr` asks for.
#[derive(Debug, Clone, Default)]
pub struct TickSample {
    /// Bytes of the record.
    pub size: usize,
    /// `PERF_RECORD_MISC_CPUMODE_MASK` of the header.
    pub mode: u16,
    /// Kernel's or, for cpu-clock, the interrupted ip.
    pub ip: u64,
    /// Process and thread.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// CPU.
    pub cpu: u32,
    /// CLOCK_MONOTONIC, ns.
    pub time: u64,
    /// Kernel callchain, innermost first.
    pub callchain: Vec<u64>,
    /// `PERF_SAMPLE_REGS_ABI_*`.
    pub abi: u64,
    /// The registers of `REGS`, in the order of its bits.
    pub regs: Vec<u64>,
    /// Bytes of user stack that were copied.
    pub stack: u64,
}

/// The samples of one event.
pub struct Ring {
    fd: OwnedFd,
    map: MmapMut,
    callchain: bool,
}

impl Ring {
    /// Maps the ring of an event that was opened with `TickPlan::attr`, with callchains or without.
    pub fn new(fd: OwnedFd, callchain: bool) -> Self {
        // SAFETY: the ring is shared with the kernel, which writes to it; it is read below only behind data_head.
        let map = unsafe { MmapOptions::new().len(4096 + DATA).map_mut(fd.as_raw_fd()) }.expect("mmap of the ring");
        Self { fd, map, callchain }
    }

    /// Starts the event.
    pub fn enable(&self) {
        // SAFETY: the descriptor is an open perf event; the call takes a number.
        assert_eq!(unsafe { sys::ioctls::ENABLE(self.fd.as_raw_fd(), 0) }, 0);
    }

    /// All samples so far; panics where one was lost.
    pub fn peek(&mut self) -> Vec<TickSample> {
        // SAFETY: offset 1024 of the first page is data_head, aligned and atomically written by the kernel.
        let head = unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(1024).cast()) }.load(Ordering::Acquire);
        let data = &self.map[4096..];
        let head = usize::try_from(head).unwrap();
        assert!(head <= DATA, "the ring is full");
        let mut at = 0;
        let mut samples = Vec::new();
        while at < head {
            let kind = u32::from_ne_bytes(data[at..at + 4].try_into().unwrap());
            let misc = u16::from_ne_bytes(data[at + 4..at + 6].try_into().unwrap());
            let size = usize::from(u16::from_ne_bytes(data[at + 6..at + 8].try_into().unwrap()));
            assert_ne!(kind, sys::bindings::PERF_RECORD_LOST, "lost samples");
            if kind == sys::bindings::PERF_RECORD_SAMPLE {
                samples.push(self.parse(misc, &data[at + 8..at + size]));
            }
            at += size;
        }
        samples
    }

    fn parse(&self, misc: u16, record: &[u8]) -> TickSample {
        let mut words = record.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        let mut next = || words.next().unwrap();
        let mut sample = TickSample { size: record.len() + 8, mode: misc & 7, ip: next(), ..TickSample::default() };
        let ids = next();
        (sample.pid, sample.tid) = (ids as u32, (ids >> 32) as u32);
        sample.time = next();
        sample.cpu = next() as u32;
        let _period = next();
        if self.callchain {
            sample.callchain = (0..next()).map(|_| next()).collect();
        }
        sample.abi = next();
        if sample.abi != 0 {
            sample.regs = (0..REGS.count_ones()).map(|_| next()).collect();
        }
        let size = next();
        if size > 0 {
            for _ in 0..size / 8 {
                next();
            }
            sample.stack = next();
        }
        assert!(words.next().is_none(), "a record of {} bytes is longer than its fields", record.len());
        sample
    }
}
