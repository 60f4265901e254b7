//! Samples a thread with cpu-clock, as the timer source does: user registers and a piece of stack.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys as sys;
use scxprof_recover::{Regs, REGS_MASK, STACK_DUMP_SIZE};
use sys::bindings;

const PAGE: usize = 4096;
const DATA: usize = 256 * PAGE;

/// One sample.
pub struct Sample {
    pub tid: i32,
    pub regs: Regs,
    pub stack: Vec<u8>,
}

/// The ring of one thread's event.
pub struct Ring {
    _file: File,
    map: memmap2::MmapRaw,
}

impl Ring {
    pub fn open(tid: i32, hz: u64) -> io::Result<Self> {
        let mut attr = bindings::perf_event_attr {
            size: std::mem::size_of::<bindings::perf_event_attr>() as u32,
            type_: bindings::PERF_TYPE_SOFTWARE,
            config: u64::from(bindings::PERF_COUNT_SW_CPU_CLOCK),
            sample_type: u64::from(
                bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_REGS_USER | bindings::PERF_SAMPLE_STACK_USER,
            ),
            sample_regs_user: REGS_MASK,
            sample_stack_user: u32::from(STACK_DUMP_SIZE),
            ..Default::default()
        };
        attr.__bindgen_anon_1.sample_period = 1_000_000_000 / hz;
        attr.set_exclude_kernel(1);
        // SAFETY: `attr` is a whole perf_event_attr whose size field is right.
        let fd = unsafe { sys::perf_event_open(&raw mut attr, tid, -1, -1, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call returned this descriptor, and it has no other owner.
        let file = unsafe { File::from_raw_fd(fd) };
        let map = memmap2::MmapOptions::new().len(PAGE + DATA).map_raw(file.as_raw_fd())?;
        Ok(Self { _file: file, map })
    }

    /// Takes the samples that have come in.
    pub fn drain(&mut self, mut each: impl FnMut(Sample)) {
        let page = self.map.as_mut_ptr().cast::<bindings::perf_event_mmap_page>();
        // SAFETY: the first page of the mapping is a perf_event_mmap_page; both fields are 8-aligned and only ever
        // accessed atomically while the mapping lives.
        let (head, tail) = unsafe {
            (AtomicU64::from_ptr(&raw mut (*page).data_head), AtomicU64::from_ptr(&raw mut (*page).data_tail))
        };
        let end = head.load(Ordering::Acquire);
        let mut at = tail.load(Ordering::Relaxed);
        while at < end {
            let word = |index: u64| {
                let offset = PAGE + ((at + index * 8) as usize & (DATA - 1));
                // SAFETY: `offset` is 8-aligned and within the mapping; the kernel does not write before data_tail moves.
                unsafe { self.map.as_ptr().add(offset).cast::<u64>().read_volatile() }
            };
            let header = word(0);
            let (kind, size) = (header as u32, (header >> 48) & 0xffff);
            if size == 0 {
                break;
            }
            if kind == bindings::PERF_RECORD_SAMPLE {
                let registers = u64::from(REGS_MASK.count_ones());
                let abi = word(2);
                if abi == 2 {
                    let values: Vec<u64> = (0..registers).map(|register| word(3 + register)).collect();
                    let dump = word(3 + registers);
                    let used = if dump == 0 { 0 } else { word(4 + registers + dump / 8) };
                    let stack = (0..dump / 8).flat_map(|index| word(4 + registers + index).to_le_bytes());
                    each(Sample {
                        tid: (word(1) >> 32) as i32,
                        regs: Regs::of_host(abi, &values).expect("a whole record"),
                        stack: stack.take(used as usize).collect(),
                    });
                }
            }
            at += size;
        }
        tail.store(at, Ordering::Release);
    }
}
