//! The ring of a perf event, and the AUX area beside it. Both are memory shared with the kernel, which only this file
//! accesses.

use std::io;
#[cfg(any(test, feature = "testing"))]
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use perf_event_open_sys::bindings::perf_event_mmap_page;
use rustix::param::page_size;
use thiserror::Error;

use scxprof_perf::record::{Header, HEADER_SIZE};

/// The most bytes of one copy out of the ring; more than the largest record (65,528 bytes).
const CHUNK: usize = 256 * 1024;

/// A ring with invalid content. What the kernel wrote is broken, so nothing after it can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "a ring is corrupt at position {position}: a record's header says {size} bytes (0: its end is no possible one)"
)]
pub struct Corrupt {
    /// Free-running position, bytes.
    pub position: u64,
    /// The size in the header.
    pub size: u16,
}

/// `cap_user_time_zero` among the capabilities of the control page (linux/perf_event.h).
const CAP_USER_TIME_ZERO: u64 = 1 << 4;

/// Converts the TSC to ns of the scheduler's clock (linux/perf_event.h on `time_zero`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeConversion {
    /// The clock at TSC 0.
    pub zero: u64,
    /// ns per cycle, times 2^shift.
    pub mult: u32,
    /// See `mult`; less than 64.
    pub shift: u16,
}

impl TimeConversion {
    /// The scheduler's clock at `cycles` of the TSC, in ns.
    #[must_use]
    pub fn ns(self, cycles: u64) -> u64 {
        let scaled = (u128::from(cycles) * u128::from(self.mult)) >> self.shift;
        self.zero.wrapping_add(scaled as u64)
    }
}

/// One perf ring: a control page and 2^n pages of data (`perf_mmap()` in kernel/events/core.c).
#[derive(Debug)]
pub struct Ring {
    map: MmapRaw,
    data_offset: usize,
    /// A power of two.
    data_size: usize,
    /// The position up to which we have read; only this side writes it.
    tail: u64,
    aux: Option<AuxArea>,
}

/// The memory that the hardware writes; its positions are separate fields of the control page.
#[derive(Debug)]
struct AuxArea {
    map: MmapRaw,
    tail: u64,
}

impl Ring {
    /// Maps the ring of a perf event: `pages` pages of data (a power of two) after the control page.
    ///
    /// Only for [`Event::ring`](super::open::Event::ring): another kind of file could be truncated while it is mapped.
    ///
    /// # Errors
    /// The errno of mmap: EPERM if the locked-memory budget is too small, EINVAL if `pages` is no power of two.
    pub(super) fn of_event(fd: BorrowedFd<'_>, pages: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len((1 + pages) * page_size()).map_raw(fd.as_raw_fd())?;
        Self::of_mapping(map)
    }

    /// Maps the AUX area of the same event: `pages` pages, a power of two and at least 2. The mapping is writable, so
    /// the kernel stops the hardware before it overwrites data that has not been read (`rb_alloc_aux()` in
    /// kernel/events/ring_buffer.c).
    ///
    /// # Errors
    /// The errno of mmap: see the ring, and EOPNOTSUPP if the event has no AUX area.
    pub(super) fn map_aux(&mut self, fd: BorrowedFd<'_>, pages: usize) -> io::Result<()> {
        let (offset, size) = (self.map.len() as u64, pages * page_size());
        let page = control_page(&self.map);
        // SAFETY: the control page lies within the mapping; these two fields are ours to write until the area is mapped, and the
        // kernel reads them in mmap, which comes after (perf_mmap() in kernel/events/core.c).
        unsafe {
            (&raw mut (*page).aux_offset).write_volatile(offset);
            (&raw mut (*page).aux_size).write_volatile(size as u64);
        }
        let map = MmapOptions::new().offset(offset).len(size).map_raw(fd.as_raw_fd())?;
        self.aux = Some(AuxArea { map, tail: self.position(Field::AuxTail).load(Ordering::Relaxed) });
        Ok(())
    }

    /// Takes a page-aligned, writable mapping with an initialised control page.
    ///
    /// # Errors
    /// `InvalidData` if the control page describes no ring within the mapping.
    fn of_mapping(map: MmapRaw) -> io::Result<Self> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        if map.len() < size_of::<perf_event_mmap_page>() {
            return Err(invalid("a ring's mapping is smaller than its control page"));
        }
        let page = control_page(&map);
        // SAFETY: the mapping is page aligned and at least as long as the control page; the kernel writes these two
        // fields before mmap returns and never again (perf_event_init_userpage, kernel/events/core.c).
        let (offset, size) = unsafe {
            (ptr::read_volatile(&raw const (*page).data_offset), ptr::read_volatile(&raw const (*page).data_size))
        };
        let fits = offset.checked_add(size).is_some_and(|end| end <= map.len() as u64);
        if !fits || !size.is_power_of_two() || offset < size_of::<perf_event_mmap_page>() as u64 {
            return Err(invalid("a ring's control page does not describe its mapping (Linux before 4.1?)"));
        }
        let mut ring = Self { map, data_offset: offset as usize, data_size: size as usize, tail: 0, aux: None };
        ring.tail = ring.position(Field::Tail).load(Ordering::Relaxed);
        Ok(ring)
    }

    /// The conversion from the TSC to the scheduler's clock, which stamps the records of an event without `use_clockid`; `None`
    /// if the kernel gives none (`cap_user_time_zero` in linux/perf_event.h: no stable TSC, or another clock).
    #[must_use]
    pub fn time_conversion(&self) -> Option<TimeConversion> {
        let page = control_page(&self.map);
        for _ in 0..1000 {
            // SAFETY: the control page lies within the mapping, which lives as long as self; the kernel writes these fields
            // while the lock is odd, so they are read as volatile and discarded unless the lock stayed even and unchanged.
            let (before, capabilities, conversion, after) = unsafe {
                let lock = AtomicU32::from_ptr(&raw mut (*page).lock);
                let before = lock.load(Ordering::Acquire);
                let capabilities = (&raw const (*page).__bindgen_anon_1.capabilities).read_volatile();
                let conversion = TimeConversion {
                    zero: (&raw const (*page).time_zero).read_volatile(),
                    mult: (&raw const (*page).time_mult).read_volatile(),
                    shift: (&raw const (*page).time_shift).read_volatile(),
                };
                std::sync::atomic::fence(Ordering::Acquire);
                (before, capabilities, conversion, lock.load(Ordering::Relaxed))
            };
            if before == after && before & 1 == 0 {
                return (capabilities & CAP_USER_TIME_ZERO != 0 && conversion.shift < 64).then_some(conversion);
            }
        }
        None
    }

    /// Calls `record` with the bytes of each record that was complete when the call began, oldest first.
    ///
    /// Records are copied to `scratch`, and their space is returned to the kernel before `record` is called. Returns
    /// the number of bytes read.
    ///
    /// # Errors
    /// [`Corrupt`] at an impossible header; the ring must not be read again.
    pub fn drain(&mut self, scratch: &mut Vec<u8>, mut record: impl FnMut(&[u8])) -> Result<u64, Corrupt> {
        // Acquire pairs with the kernel's store of data_head after the records (perf_output_put_handle() in
        // kernel/events/ring_buffer.c).
        let head = self.position(Field::Head).load(Ordering::Acquire);
        let begin = self.tail;
        if head.wrapping_sub(begin) > self.data_size as u64 {
            return Err(Corrupt { position: begin, size: 0 });
        }
        while self.tail != head {
            let available = head.wrapping_sub(self.tail) as usize;
            scratch.clear();
            self.copy_out(available.min(CHUNK), scratch);
            let whole = self.whole_records(scratch)?;
            self.tail = self.tail.wrapping_add(whole as u64);
            // Release: the copy is complete before the kernel sees that it may write there again.
            self.position(Field::Tail).store(self.tail, Ordering::Release);
            let mut rest = scratch.get(..whole).unwrap_or_default();
            while let Some(header) = Header::read(rest) {
                let Some((one, after)) = rest.split_at_checked(usize::from(header.size)) else { break };
                record(one);
                rest = after;
            }
        }
        Ok(head.wrapping_sub(begin))
    }

    /// The position up to which the hardware has written; `None` without an AUX area. The ring contains the records
    /// that describe the data before it.
    #[must_use]
    pub fn aux_head(&self) -> Option<u64> {
        // Acquire pairs with the kernel's store of aux_head after the data and its record (perf_aux_output_end() in
        // kernel/events/ring_buffer.c).
        self.aux.as_ref().map(|_| self.position(Field::AuxHead).load(Ordering::Acquire))
    }

    /// Calls `take` with the data that the hardware has written up to `head` ([`Ring::aux_head`]): the position and the
    /// bytes of each piece. Pieces follow each other without gaps. They are copied, and their space is returned to the
    /// kernel before the call.
    ///
    /// # Errors
    /// [`Corrupt`] if the kernel's position is impossible; the area must not be read again.
    pub fn drain_aux(
        &mut self,
        head: u64,
        scratch: &mut Vec<u8>,
        mut take: impl FnMut(u64, &[u8]),
    ) -> Result<(), Corrupt> {
        let Some(AuxArea { tail, .. }) = self.aux else { return Ok(()) };
        let mut at = tail;
        while let Some(AuxArea { map, tail }) = self.aux.as_mut().filter(|_| at != head) {
            let (size, available) = (map.len(), head.wrapping_sub(at));
            if available > size as u64 {
                return Err(Corrupt { position: at, size: 0 });
            }
            scratch.clear();
            let count = (available as usize).min(CHUNK);
            // The size is a power of two.
            copy_around(map, 0, size, (at & (size as u64 - 1)) as usize, count, scratch);
            let position = at;
            at = at.wrapping_add(count as u64);
            *tail = at;
            // Release: the copy is complete before the kernel sees that the hardware may write there again.
            self.position(Field::AuxTail).store(at, Ordering::Release);
            take(position, scratch);
        }
        Ok(())
    }

    /// The bytes at the front of `scratch` that are complete records.
    fn whole_records(&self, scratch: &[u8]) -> Result<usize, Corrupt> {
        let mut end = 0;
        while let Some(header) = scratch.get(end..).and_then(Header::read) {
            let corrupt = Corrupt { position: self.tail.wrapping_add(end as u64), size: header.size };
            if !header.is_sane() {
                return Err(corrupt);
            }
            let next = end + usize::from(header.size);
            if next > scratch.len() {
                // The rest of this record is in the next chunk, unless the kernel's head lies within it.
                if end == 0 {
                    return Err(corrupt);
                }
                break;
            }
            end = next;
        }
        if end == 0 {
            return Err(Corrupt { position: self.tail, size: 0 });
        }
        debug_assert!(end >= HEADER_SIZE);
        Ok(end)
    }

    /// Appends `count` bytes from the tail on, around the end of the ring if necessary.
    fn copy_out(&self, count: usize, scratch: &mut Vec<u8>) {
        let start = (self.tail & (self.data_size as u64 - 1)) as usize;
        copy_around(&self.map, self.data_offset, self.data_size, start, count, scratch);
    }

    fn position(&self, field: Field) -> &AtomicU64 {
        let page = control_page(&self.map);
        // SAFETY: the control page lies within the mapping, which lives as long as self; all these fields are 8-aligned u64s that
        // kernel and user space share as atomics, and after the ring is made nothing here accesses them otherwise.
        unsafe { AtomicU64::from_ptr(field.of(page)) }
    }

    /// Writes `records` at the head as the kernel would, for tests, benches and fuzzing; false if they do not fit.
    #[cfg(any(test, feature = "testing"))]
    pub fn replay(&mut self, records: &[u8]) -> bool {
        self.writer().write(records)
    }

    /// Writes `bytes` at the head of the AUX area as the hardware and the kernel would; false if they do not fit.
    #[cfg(any(test, feature = "testing"))]
    pub fn replay_aux(&mut self, bytes: &[u8]) -> bool {
        let page = control_page(&self.map);
        self.aux.as_mut().is_some_and(|AuxArea { map, .. }| {
            let (data, size) = (map.as_mut_ptr(), map.len());
            Writer { page, data, size, head: Field::AuxHead, tail: Field::AuxTail }.write(bytes)
        })
    }

    #[cfg(any(test, feature = "testing"))]
    fn writer(&mut self) -> Writer {
        // SAFETY: the data area begins within the mapping (checked when the ring was made).
        let data = unsafe { self.map.as_mut_ptr().add(self.data_offset) };
        Writer { page: control_page(&self.map), data, size: self.data_size, head: Field::Head, tail: Field::Tail }
    }

    /// Adds an AUX area in ordinary memory for [`Ring::replay_aux`], with its first byte at `position`; `pages` is a power of two.
    ///
    /// # Errors
    /// The errno of mmap.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_aux_in_memory(mut self, pages: usize, position: u64) -> io::Result<Self> {
        let map = MmapRaw::from(memmap2::MmapMut::map_anon(pages * 4096)?);
        for field in [Field::AuxHead, Field::AuxTail] {
            self.position(field).store(position, Ordering::Relaxed);
        }
        self.aux = Some(AuxArea { map, tail: position });
        Ok(self)
    }

    /// Sets the conversion of AUX times, as the kernel does in the control page.
    #[cfg(any(test, feature = "testing"))]
    pub fn set_time_conversion(&mut self, conversion: TimeConversion) {
        let page = control_page(&self.map);
        // SAFETY: the control page lies within the mapping; &mut self excludes another writer or reader in this process.
        unsafe {
            (&raw mut (*page).__bindgen_anon_1.capabilities).write_volatile(CAP_USER_TIME_ZERO);
            (&raw mut (*page).time_zero).write_volatile(conversion.zero);
            (&raw mut (*page).time_mult).write_volatile(conversion.mult);
            (&raw mut (*page).time_shift).write_volatile(conversion.shift);
        }
    }

    /// A ring in ordinary memory for [`Ring::replay`], with `pages` pages of data and its first byte at `position`.
    ///
    /// # Errors
    /// The errno of mmap.
    #[cfg(any(test, feature = "testing"))]
    pub fn in_memory(pages: usize, position: u64) -> io::Result<Self> {
        const PAGE: usize = 4096;
        let mut map = memmap2::MmapMut::map_anon((1 + pages) * PAGE)?;
        for (at, value) in [
            (offset_of!(perf_event_mmap_page, data_offset), PAGE as u64),
            (offset_of!(perf_event_mmap_page, data_size), (pages * PAGE) as u64),
            (offset_of!(perf_event_mmap_page, data_head), position),
            (offset_of!(perf_event_mmap_page, data_tail), position),
        ] {
            map.iter_mut().skip(at).zip(value.to_ne_bytes()).for_each(|(to, byte)| *to = byte);
        }
        Self::of_mapping(MmapRaw::from(map))
    }
}

#[allow(clippy::cast_ptr_alignment)] // A mapping begins at a page.
fn control_page(map: &MmapRaw) -> *mut perf_event_mmap_page {
    map.as_mut_ptr().cast()
}

/// The kernel's side of a ring or of an AUX area, which must outlive it.
#[cfg(any(test, feature = "testing"))]
struct Writer {
    page: *mut perf_event_mmap_page,
    data: *mut u8,
    /// A power of two.
    size: usize,
    head: Field,
    tail: Field,
}

// SAFETY: as the kernel, it writes only where no reader reads: between the head and, a size further, the tail. The positions are
// atomics.
#[cfg(any(test, feature = "testing"))]
unsafe impl Send for Writer {}

#[cfg(any(test, feature = "testing"))]
impl Writer {
    /// Appends `bytes`; false if they do not fit.
    fn write(&mut self, bytes: &[u8]) -> bool {
        // SAFETY: the control page is mapped for as long as the ring is; see [`Ring::position`].
        let (head, tail) =
            unsafe { (AtomicU64::from_ptr(self.head.of(self.page)), AtomicU64::from_ptr(self.tail.of(self.page))) };
        let at = head.load(Ordering::Relaxed);
        // Acquire pairs with the reader's store after it has copied the data (`perf_output_begin()` relies on a
        // dependency).
        if at.wrapping_sub(tail.load(Ordering::Acquire)) as usize + bytes.len() > self.size {
            return false;
        }
        let start = (at & (self.size as u64 - 1)) as usize;
        let (first, second) = bytes.split_at(bytes.len().min(self.size - start));
        for (to, bytes) in [(start, first), (0, second)] {
            // SAFETY: to + len <= size, the length of the data; there is one writer, and no reader reads there.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.data.add(to), bytes.len()) }
        }
        head.store(at.wrapping_add(bytes.len() as u64), Ordering::Release);
        true
    }
}

#[derive(Debug, Clone, Copy)]
enum Field {
    Head,
    Tail,
    AuxHead,
    AuxTail,
}

/// Appends `count` bytes of the area of `size` bytes at `offset` of a mapping, from `start` on, around the end of the
/// area if necessary.
fn copy_around(map: &MmapRaw, offset: usize, size: usize, start: usize, count: usize, scratch: &mut Vec<u8>) {
    let fits = offset.checked_add(size).is_some_and(|end| end <= map.len()) && start < size && count <= size;
    if !fits {
        return;
    }
    let first = count.min(size - start);
    scratch.reserve(count);
    for (from, len) in [(start, first), (0, count - first)] {
        // SAFETY: from + len <= size, and the area lies within the mapping (both checked above); `count` bytes are reserved. Neither side
        // writes between tail and head, and no reference to the shared bytes is made.
        unsafe {
            let source = map.as_ptr().add(offset + from);
            ptr::copy_nonoverlapping(source, scratch.as_mut_ptr().add(scratch.len()), len);
            scratch.set_len(scratch.len() + len);
        }
    }
}

impl Field {
    fn of(self, page: *mut perf_event_mmap_page) -> *mut u64 {
        // SAFETY: the caller's page is that of a mapping; only the address of a field is computed.
        unsafe {
            match self {
                Self::Head => &raw mut (*page).data_head,
                Self::Tail => &raw mut (*page).data_tail,
                Self::AuxHead => &raw mut (*page).aux_head,
                Self::AuxTail => &raw mut (*page).aux_tail,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(size: u16, fill: u8) -> Vec<u8> {
        let mut bytes = vec![fill; usize::from(size)];
        bytes[..4].copy_from_slice(&9u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&0u16.to_ne_bytes());
        bytes[6..8].copy_from_slice(&size.to_ne_bytes());
        bytes
    }

    #[test]
    fn records_come_out_whole_wherever_the_ring_wraps() {
        for position in (0..4096u64).step_by(8).map(|offset| offset + (u64::MAX - 4095)) {
            let mut ring = Ring::in_memory(1, position).unwrap();
            let sent: Vec<_> = [(104, 1), (8, 2), (1000, 3), (40, 4)].map(|(size, fill)| record(size, fill)).to_vec();
            assert!(ring.replay(&sent.concat()));
            let (mut got, mut scratch) = (Vec::new(), Vec::new());
            let read = ring.drain(&mut scratch, |bytes| got.push(bytes.to_vec())).unwrap();
            assert_eq!(got, sent, "at {position:#x}");
            assert_eq!(read, 1152);
            assert_eq!(ring.drain(&mut scratch, |_| panic!("read twice")).unwrap(), 0);
        }
    }

    /// Miri reorders what the memory orderings of the positions allow, so this fails there if one of them is relaxed.
    #[test]
    fn records_are_whole_beside_a_writer_on_another_cpu() {
        const RECORDS: usize = if cfg!(miri) { 100 } else { 100_000 };
        let size = |number: usize| 8 + (number % 7) as u16 * 104;
        let mut ring = Ring::in_memory(1, u64::MAX - 2047).unwrap();
        let mut writer = ring.writer();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..RECORDS {
                    let bytes = record(size(number), number as u8);
                    while !writer.write(&bytes) {
                        std::thread::yield_now();
                    }
                }
            });
            let (mut number, mut scratch) = (0, Vec::new());
            while number < RECORDS {
                let drained = ring.drain(&mut scratch, |bytes| {
                    assert_eq!(bytes, record(size(number), number as u8));
                    number += 1;
                });
                assert!(drained.is_ok());
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn a_full_ring_is_read_to_its_last_byte_and_has_room_again() {
        let mut ring = Ring::in_memory(1, 512).unwrap();
        let full = record(4096, 7);
        assert!(ring.replay(&full));
        assert!(!ring.replay(&record(8, 1)), "the ring was full");
        let mut scratch = Vec::new();
        assert_eq!(ring.drain(&mut scratch, |bytes| assert_eq!(bytes, &full[..])).unwrap(), 4096);
        assert!(ring.replay(&full));
    }

    #[test]
    fn chunks_larger_than_one_copy_lose_nothing() {
        let mut ring = Ring::in_memory(512, 64).unwrap();
        let sent: Vec<_> = (0..40_000u32).map(|index| record(8 + (index % 5) as u16 * 8, index as u8)).collect();
        assert!(ring.replay(&sent.concat()));
        let (mut got, mut scratch) = (Vec::new(), Vec::new());
        ring.drain(&mut scratch, |bytes| got.push(bytes.to_vec())).unwrap();
        assert!(got == sent);
    }

    #[test]
    fn aux_data_comes_out_whole_wherever_the_area_wraps() {
        for position in [0, 1, 63, 4096, 8191, u64::MAX - 100, u64::MAX - 8191] {
            let mut ring = Ring::in_memory(1, 0).unwrap().with_aux_in_memory(2, position).unwrap();
            let (mut got, mut scratch, mut expected) = (Vec::new(), Vec::new(), Vec::new());
            let mut next = position;
            for round in 0..7u8 {
                let sent: Vec<u8> = (0..2500 + usize::from(round)).map(|at| at as u8 ^ round).collect();
                assert!(ring.replay_aux(&sent));
                expected.extend_from_slice(&sent);
                ring.drain_aux(ring.aux_head().unwrap(), &mut scratch, |at, bytes| {
                    assert_eq!(at, next);
                    next = at.wrapping_add(bytes.len() as u64);
                    got.extend_from_slice(bytes);
                })
                .unwrap();
            }
            assert!(got == expected, "at {position:#x}");
            ring.drain_aux(ring.aux_head().unwrap(), &mut scratch, |_, _| panic!("read twice")).unwrap();
        }
    }

    #[test]
    fn a_full_aux_area_is_read_to_its_last_byte_and_an_impossible_one_is_not() {
        let mut ring = Ring::in_memory(1, 0).unwrap().with_aux_in_memory(2, 77).unwrap();
        assert!(ring.replay_aux(&[7; 8192]) && !ring.replay_aux(&[1]), "it is full");
        let (mut count, mut scratch) = (0, Vec::new());
        ring.drain_aux(ring.aux_head().unwrap(), &mut scratch, |_, bytes| count += bytes.len()).unwrap();
        assert_eq!(count, 8192);
        assert!(ring.replay_aux(&[1]), "there is room again");
        ring.position(Field::AuxHead).store(77 + 8192 + 8193, Ordering::Release);
        assert!(ring
            .drain_aux(ring.aux_head().unwrap(), &mut scratch, |_, _| panic!("more than there is room for"))
            .is_err());
    }

    #[test]
    fn a_corrupt_header_stops_the_ring() {
        for size in [0, 4, 12, 4088] {
            let mut ring = Ring::in_memory(1, 0).unwrap();
            let mut bytes = [record(24, 1), record(16, 2)].concat();
            bytes[30..32].copy_from_slice(&(size as u16).to_ne_bytes());
            assert!(ring.replay(&bytes));
            let mut scratch = Vec::new();
            let result = (0..2).find_map(|_| ring.drain(&mut scratch, |_| ()).err());
            assert_eq!(result.map(|corrupt| corrupt.size), Some(size as u16));
        }
    }

    #[test]
    fn a_control_page_that_lies_is_refused() {
        let mut map = memmap2::MmapMut::map_anon(8192).unwrap();
        map[1040..1048].copy_from_slice(&4096u64.to_ne_bytes());
        map[1048..1056].copy_from_slice(&8192u64.to_ne_bytes());
        assert!(Ring::of_mapping(MmapRaw::from(map)).is_err());
    }
}
