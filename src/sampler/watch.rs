//! A first look at an event's samples: the threads and callchains of one CPU, once, before real sampling begins.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapMut, MmapOptions};
use perf_event_open_sys as sys;

/// Data bytes of the ring, some 300 samples. With the first page they are within what `perf_event_mlock_kb` grants.
const DATA: usize = 256 << 10;
/// Bytes of the mapping's first page, whatever the sample says; x86-64 has no other size.
const FIRST: usize = 4096;
/// Where `perf_event_mmap_page` keeps `data_head` (linux/perf_event.h).
const HEAD: usize = 1024;

/// Whose sample it is, and its callchain, innermost address first.
pub(super) type Seen = (u32, Vec<u64>);

/// The ring of an event that was opened with the attributes of a tracepoint plan.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    fd: &'a OwnedFd,
    map: MmapMut,
}

impl<'a> Watch<'a> {
    /// Maps a ring and starts the event.
    pub fn start(fd: &'a OwnedFd) -> io::Result<Self> {
        // SAFETY: the mapping is of a perf event, which nobody can truncate. The kernel writes to it while the event is
        // on, and meanwhile nothing here reads it.
        let map = unsafe { MmapOptions::new().len(FIRST + DATA).map_mut(fd.as_raw_fd())? };
        // SAFETY: the descriptor is an open perf event; the call takes a number.
        if unsafe { sys::ioctls::ENABLE(fd.as_raw_fd(), 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { fd, map })
    }

    /// Stops the event and returns what it gave until the ring was full.
    pub fn stop(mut self) -> io::Result<Vec<Seen>> {
        // SAFETY: the descriptor is an open perf event; the call takes a number.
        if unsafe { sys::ioctls::DISABLE(self.fd.as_raw_fd(), 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the first page is mapped and holds an aligned u64 there, which the kernel writes atomically.
        let head = unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(HEAD).cast()) }.load(Ordering::Acquire);
        let data = self.map.get(FIRST..).unwrap_or_default();
        Ok(samples(data.get(..usize::try_from(head).unwrap_or(DATA).min(DATA)).unwrap_or_default()))
    }
}

/// The samples among whole records: header, ip, pid and tid, time, CPU, period, callchain, and what follows.
fn samples(mut records: &[u8]) -> Vec<Seen> {
    let mut seen = Vec::new();
    while let Some((header, _)) = records.split_first_chunk::<8>() {
        let [a, b, c, d, _, _, low, high] = *header;
        let size = usize::from(u16::from_le_bytes([low, high]));
        let (Some(record), true) = (records.get(..size), size >= 8) else { break };
        if u32::from_le_bytes([a, b, c, d]) == sys::bindings::PERF_RECORD_SAMPLE {
            let word = |index: usize| Some(u64::from_le_bytes(*record.get(index * 8..)?.first_chunk()?));
            let length = word(6).unwrap_or(0).min(size as u64 / 8) as usize;
            seen.push(((word(2).unwrap_or(0) >> 32) as u32, (7..7 + length).map_while(word).collect()));
        }
        records = records.get(size..).unwrap_or_default();
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u32, words: &[u64]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0, 0]);
        bytes.extend((8 + 8 * words.len() as u16).to_le_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    #[test]
    fn threads_and_chains_are_read() {
        let sample = |tid: u64, chain: &[u64]| {
            let mut words = vec![0xffff, tid << 32 | 7, 1, 2, 3, chain.len() as u64];
            words.extend(chain);
            words.extend([2, 99]);
            record(sys::bindings::PERF_RECORD_SAMPLE, &words)
        };
        let bytes = [sample(8, &[1, 2]), record(2, &[5, 6]), sample(9, &[])].concat();
        assert_eq!(samples(&bytes), [(8, vec![1, 2]), (9, vec![])]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let _ = samples(&bytes);
            let _ = samples(&record(sys::bindings::PERF_RECORD_SAMPLE, &bytes.iter().map(|&byte| byte.into()).collect::<Vec<_>>()));
        }
    }
}
