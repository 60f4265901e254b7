//! Values in memory that a process maps from a file and can only read: tables, and addresses that the loader stored and then
//! protected.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::mapped::{read_memory, PAGE};
use scxprof_base::cache::Cache;
use scxprof_base::tables::Tables;

/// How long the list of read-only ranges is valid, ns: `mprotect(2)` leaves no record.
const RANGES_LIFE: u64 = 5_000_000_000;
/// How long a page's bytes are valid, ns.
const PAGE_LIFE: u64 = 1_000_000_000;
/// At most one part in this many of the time is spent on finding the read-only ranges.
const REST_FACTOR: u64 = 200;
/// Processes that are cached, ranges of each, and bytes of its list of mappings.
const MAX_PROCESSES: usize = 256;
const MAX_RANGES: usize = 512;
const MAX_BYTES: u64 = 8 << 20;

#[derive(Debug)]
struct Ranges {
    read: u64,
    /// Sorted and disjoint.
    ranges: Vec<Range<u64>>,
}

#[derive(Debug)]
struct ConstantPage {
    read: u64,
    /// `None` if it cannot be read.
    bytes: Option<Box<[u8]>>,
}

/// The read-only memory of all processes, cached within bounds.
#[derive(Debug)]
pub struct Constants {
    procfs: PathBuf,
    ranges: Cache<u32, Ranges>,
    pages: Cache<(u32, u64), ConstantPage>,
    /// When a list of mappings may be read again.
    rest_until: u64,
}

impl Constants {
    /// Reads the processes under `procfs` (`/proc`); caches about `bytes` of their memory.
    #[must_use]
    pub fn new(procfs: &Path, bytes: usize) -> Self {
        Self {
            procfs: procfs.to_owned(),
            ranges: Cache::new(MAX_PROCESSES),
            pages: Cache::new(bytes / PAGE as usize),
            rest_until: 0,
        }
    }

    /// Its sizes.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        let bytes = self.pages.bytes() + self.pages.len() * PAGE as usize;
        tables.set("pages of read-only memory", self.pages.len(), bytes);
        tables.set("processes with read-only memory", self.ranges.len(), self.ranges.bytes());
    }

    /// The `size` bytes (at most 8) at `addr` of process `pid` with the address space number `space`, as a little-endian
    /// number. `now` is the caller's clock in ns.
    pub fn value(&mut self, pid: u32, space: u32, addr: u64, size: u32, now: u64) -> Option<u64> {
        let (number, offset, size) = (addr / PAGE, (addr % PAGE) as usize, size as usize);
        if size > 8 || !self.is_constant(pid, space, addr, now) {
            return None;
        }
        let key = (space, number);
        if self.pages.get(&key).is_none_or(|page| now.saturating_sub(page.read) >= PAGE_LIFE) {
            let bytes = self.read_page(pid, number);
            self.pages.insert(key, ConstantPage { read: now, bytes });
        }
        let bytes = self.pages.get(&key)?.bytes.as_ref()?.get(offset..offset.checked_add(size)?)?;
        Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn is_constant(&mut self, pid: u32, space: u32, addr: u64, now: u64) -> bool {
        if self.ranges.get(&space).is_none_or(|ranges| now.saturating_sub(ranges.read) >= RANGES_LIFE) {
            if now < self.rest_until {
                return false;
            }
            let begin = Instant::now();
            let ranges = self.read_ranges(pid);
            let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.rest_until = now.saturating_add(took.saturating_mul(REST_FACTOR));
            self.ranges.insert(space, Ranges { read: now, ranges });
        }
        let Some(Ranges { ranges, .. }) = self.ranges.get(&space) else { return false };
        let after = ranges.partition_point(|range| range.start <= addr);
        after.checked_sub(1).and_then(|at| ranges.get(at)).is_some_and(|range| range.contains(&addr))
    }

    /// Empty if they cannot be read.
    fn read_ranges(&self, pid: u32) -> Vec<Range<u64>> {
        let mut text = Vec::new();
        let path = self.procfs.join(pid.to_string()).join("maps");
        match File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut text)) {
            Ok(_) => parse(&text),
            Err(_) => Vec::new(),
        }
    }

    fn read_page(&self, pid: u32, number: u64) -> Option<Box<[u8]>> {
        let bytes = read_memory(&self.procfs, pid, number).ok()?;
        (bytes.len() == PAGE as usize).then(|| bytes.into_boxed_slice())
    }
}

/// The ranges of `/proc/PID/maps` that neither the process nor others can write: read-only private mappings of files on a disk.
fn parse(text: &[u8]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        let Some(range) = read_only(line) else { continue };
        if let Some(last) = ranges.last_mut().filter(|last| last.end >= range.start) {
            last.end = last.end.max(range.end);
        } else if ranges.len() < MAX_RANGES {
            ranges.push(range);
        } else {
            break;
        }
    }
    ranges
}

fn read_only(line: &[u8]) -> Option<Range<u64>> {
    // start-end perms offset dev inode path; the path begins with the first slash.
    let (fields, path) = line.split_at_checked(line.iter().position(|&byte| byte == b'/')?)?;
    let fields = std::str::from_utf8(fields).ok()?;
    let mut fields = fields.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let perms = fields.next()?.as_bytes();
    let constant = matches!(perms, [b'r', b'-', _, b'p']);
    let in_memory = [&b"/dev/"[..], b"/memfd:", b"/SYSV"].iter().any(|prefix| path.starts_with(prefix));
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    let range = hex(start)?..hex(end)?;
    (constant && !in_memory && range.start < range.end).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const MAPS: &str = "\
00400000-00401000 r--p 00000000 08:01 5 /bin/a program
00401000-00402000 r-xp 00001000 08:01 5 /bin/a program
00402000-00403000 rw-p 00002000 08:01 5 /bin/a program
00500000-00501000 r--s 00000000 08:01 6 /var/shared
00600000-00601000 r--p 00000000 00:01 7 /memfd:x (deleted)
00700000-00701000 r--p 00000000 00:05 8 /dev/shm/x
00800000-00801000 r--p 00000000 00:00 0
00900000-00901000 r--p 00000000 00:00 0 [vvar]
00a00000-00a02000 r--p 00000000 08:01 9 /lib/y
";

    #[test]
    fn private_mappings_of_files_that_cannot_be_written_are_constant() {
        assert_eq!(parse(MAPS.as_bytes()), [0x0040_0000..0x0040_2000, 0x00a0_0000..0x00a0_2000]);
        assert!(parse(b"x\n/\n-/\n2-1 r--p /x\n\xff-\xff r--p /x\n").is_empty());
    }

    #[test]
    fn values_are_read_once_a_second_and_never_across_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let process = dir.path().join("42");
        std::fs::create_dir(&process).unwrap();
        std::fs::write(process.join("maps"), MAPS).unwrap();
        let memory = File::options().create(true).write(true).truncate(false).open(process.join("mem")).unwrap();
        memory.set_len(0x0100_0000).unwrap();
        memory.write_all_at(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 0x0040_0010).unwrap();
        memory.write_all_at(&[7; 16], 0x0040_2000).unwrap();
        let mut constants = Constants::new(dir.path(), 1 << 16);
        let mut value = |addr, size, now| constants.value(42, 1, addr, size, now);
        assert_eq!(value(0x0040_0010, 8, 0), Some(0x0807_0605_0403_0201));
        assert_eq!(value(0x0040_0011, 2, 0), Some(0x0302));
        assert_eq!(value(0x0040_2000, 4, 0), None, "it can be written");
        assert_eq!(value(0x0040_1ffe, 4, 0), None, "half of it can");
        assert_eq!(value(0x0040_0010, 9, 0), None);
        memory.write_all_at(&[9], 0x0040_0010).unwrap();
        assert_eq!(value(0x0040_0010, 1, PAGE_LIFE - 1), Some(1));
        assert_eq!(value(0x0040_0010, 1, PAGE_LIFE), Some(9));
        std::fs::write(process.join("maps"), "").unwrap();
        assert_eq!(value(0x0040_0010, 1, RANGES_LIFE - 1), Some(9));
        assert_eq!(value(0x0040_0010, 1, u64::MAX), None);
        assert_eq!(value(u64::MAX, 8, u64::MAX), None);
        assert_eq!(constants.value(43, 2, 0x0040_0010, 1, u64::MAX), None, "no such process");
    }
}
