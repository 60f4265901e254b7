//! Talks to the cache model in the emulator (caches.c): instructions that do nothing on a CPU, and that the plugin knows.
//!
//! They are the seven-byte nop `0f 1f 80` with a displacement that no compiler makes. Where one needs data, the next store of the
//! same thread shows the plugin a page of memory, which it reads.

use std::arch::asm;
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;

use anyhow::{ensure, Result};

/// Bytes of a page that are data; behind them is what is stored last.
const ROOM: usize = 4088;
/// u64s of a page that are data, in whole triples and in whole pairs.
pub const TRIPLES: usize = 170;
pub const PAIRS: usize = 255;

macro_rules! say {
    ($number:literal) => {
        // SAFETY: a nop.
        unsafe { asm!(".byte 0x0f, 0x1f, 0x80", ".long 0x5cac0000 + {n}", n = const $number, options(nostack, preserves_flags)) }
    };
}

macro_rules! show {
    ($number:literal, $at:expr, $value:expr) => {
        // SAFETY: a nop, and a store of 8 bytes to memory that the caller owns.
        unsafe {
            asm!(".byte 0x0f, 0x1f, 0x80", ".long 0x5cac0000 + {n}", "mov qword ptr [{at}], {value}",
                n = const $number, at = in(reg) $at, value = in(reg) $value, options(nostack, preserves_flags))
        }
    };
}

/// The caches become empty, and the model runs.
pub fn warm() {
    say!(2);
}

/// Accesses are counted from now on.
pub fn begin() {
    say!(3);
}

/// The counts become a line, and the model stops.
pub fn end() {
    say!(4);
}

/// As [`begin`], and each access of the workload is kept to be asked for.
pub fn record() {
    say!(6);
}

/// Shows the page in which stores say who runs. The page begins at `page`, is mapped for writing, and stays so.
pub fn table(page: NonNull<u64>) {
    show!(1, page.as_ptr(), 0_u64);
}

/// A page that stays where it is in physical memory.
pub struct Page(NonNull<u8>);

impl Page {
    pub fn new() -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                ROOM + 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE | libc::MAP_LOCKED,
                -1,
                0,
            )
        };
        ensure!(page != libc::MAP_FAILED, "a page: {}", io::Error::last_os_error());
        Ok(Self(NonNull::new(page.cast()).ok_or_else(|| io::Error::other("a page at address 0"))?))
    }

    /// Copies as much as a page holds; returns how much.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        let length = bytes.len().min(ROOM);
        // SAFETY: the page has ROOM bytes and is ours alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.as_ptr(), length) };
        length
    }

    /// What is stored last: the plugin reads the page then.
    fn last(&self) -> *mut c_void {
        // SAFETY: it is within the page.
        unsafe { self.0.as_ptr().add(ROOM) }.cast()
    }

    /// Appends bytes to the emulator's file of this channel: 0 for lines, 1 for files.
    pub fn send(&mut self, channel: u32, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let length = self.fill(bytes);
            show!(8, self.last(), length as u64 | u64::from(channel) << 32);
            bytes = bytes.get(length..).unwrap_or_default();
        }
    }

    /// Appends a line.
    pub fn line(&mut self, line: &serde_json::Value) {
        self.send(0, format!("{line}\n").as_bytes());
    }

    /// Asks for up to [`TRIPLES`] accesses: group, address of the instruction, address of the data. None ends the question.
    pub fn ask(&mut self, triples: &[[u64; 3]]) {
        let triples = triples.get(..TRIPLES).unwrap_or(triples);
        self.fill(&bytes(triples.as_flattened()));
        show!(7, self.last(), triples.len() as u64);
    }

    /// Names up to [`PAIRS`] pages that samples saw: group, number of the page. None ends the question.
    pub fn seen(&mut self, pairs: &[[u64; 2]]) {
        let pairs = pairs.get(..PAIRS).unwrap_or(pairs);
        self.fill(&bytes(pairs.as_flattened()));
        show!(9, self.last(), pairs.len() as u64);
    }
}

fn bytes(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}
