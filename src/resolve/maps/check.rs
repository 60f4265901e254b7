//! Reads `/proc/PID/maps`, within bounds, and again if it may differ from the records: munmap(2) and mremap(2) leave no record.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::super::mapping::{parse_line, Mapping};
use super::super::mappings::Mappings;
use super::{identify, intern, Check, Maps, MemoryId, Process};

/// Bytes of `/proc/PID/maps` that are read. 65,530 mappings (`vm.max_map_count`) of 100 bytes are 6.5 MB; a hostile process can
/// have paths of 4 KiB.
const MAX_TEXT: u64 = 16 << 20;
/// Bytes of a line: numbers, and a path of 4 KiB.
const MAX_LINE: usize = 4300;
/// The shortest time after which a process is read again, ns: if a page was of another kind than its table says, and otherwise.
const DOUBTED: u64 = 50_000_000;
const BUSY: u64 = 1_000_000_000;
/// It is not read again for this many times as long as the reading took.
const COST: u64 = 200;
/// Private mappings of files that are kept for a process, of 16 bytes each: those beyond `vm.max_map_count` (65,530) are unknown.
const MAX_FILES: usize = 1 << 16;

/// The private mappings of files of a process, as `/proc/PID/maps` gives them one after the other.
#[derive(Debug, Default)]
pub(crate) struct PrivateFiles {
    ranges: Vec<(u64, u64)>,
    is_full: bool,
}

impl PrivateFiles {
    /// Takes the next mapping.
    pub(crate) fn see(&mut self, mapping: &Mapping) {
        if !mapping.is_shared() && mapping.ino != 0 {
            self.is_full |= self.ranges.len() >= MAX_FILES;
            if !self.is_full {
                self.ranges.push((mapping.start, mapping.end()));
            }
        }
    }

    /// Start and end of each, by start; `None` if there are more than are kept, or some were not read.
    pub(crate) fn ranges(self, unread: u64) -> Option<Vec<(u64, u64)>> {
        (!self.is_full && unread == 0).then_some(self.ranges)
    }
}

/// Passes each mapping in `/proc/PID/maps` to `each`, line by line, and the number of those left out: their line is too long,
/// or there are too many (then it is at least 1).
///
/// # Errors
/// It cannot be opened or read.
pub(crate) fn read_lines(path: &Path, mut each: impl FnMut(Mapping)) -> std::io::Result<u64> {
    let mut text = BufReader::with_capacity(1 << 16, File::open(path)?.take(MAX_TEXT));
    let (mut line, mut left_out) = (Vec::new(), 0);
    loop {
        line.clear();
        (&mut text).take(MAX_LINE as u64).read_until(b'\n', &mut line)?;
        let Some((&last, content)) = line.split_last() else { break };
        if last == b'\n' {
            parse_line(content).into_iter().for_each(&mut each);
            continue;
        }
        // A line that is too long, or the end of the part that is read.
        left_out += u64::from(line.len() >= MAX_LINE || text.get_ref().limit() == 0);
        if line.len() < MAX_LINE {
            if text.get_ref().limit() > 0 {
                parse_line(&line).into_iter().for_each(&mut each);
            }
            break;
        }
        text.skip_until(b'\n')?;
    }
    Ok(left_out)
}

impl Maps {
    /// The process's table; `None` if it cannot be read.
    pub(super) fn read_procfs(&mut self, pid: u32) -> Option<Mappings> {
        let path = self.roots.as_ref()?.proc.join(format!("{pid}/maps"));
        self.counts.read += 1;
        let ipc = self.processes.get(&pid).and_then(|process| process.ipc);
        let room = self.limit / 2;
        let (mut table, mut files, mut left_out) = (Mappings::default(), PrivateFiles::default(), 0);
        let nothing = Mappings::default();
        let lines = read_lines(&path, |mut mapping| {
            files.see(&mapping);
            if !nothing.is_changed_by(&mapping) {
                return;
            }
            if table.bytes_with_paths() >= room {
                left_out += 1;
                return;
            }
            identify(&mut self.identities, pid, ipc, &mut mapping);
            intern(&mut self.paths, &mut self.path_bytes, &mut mapping);
            table.add(&mapping);
        });
        let Ok(unread) = lines else {
            self.counts.unreadable += 1;
            return None;
        };
        // A shared mapping that had no room is not among the known ones.
        let files = files.ranges(left_out + unread);
        self.counts.left_out += left_out + unread;
        table.set_files(files);
        Some(table)
    }

    /// True if the mappings show shared memory at the address.
    pub(crate) fn is_shared(&self, pid: u32, addr: u64) -> bool {
        let process = self.processes.get(&pid);
        process.and_then(|process| process.table.as_ref()).is_some_and(|table| table.shared(addr).is_some())
    }

    /// As [`Mappings::is_unmapped`].
    pub(crate) fn is_unmapped(&self, pid: u32, addr: u64) -> bool {
        let process = self.processes.get(&pid);
        process.and_then(|process| process.table.as_ref()).is_some_and(|table| table.is_unmapped(addr))
    }

    /// As [`Maps::memory`], if pagemap gives the kind of the page: one of a file or of shared memory, or not. `None` if the
    /// kind is unknown. Where the mappings show another kind of memory, it is given again.
    ///
    /// A page of a file in no mapping that is known is unknown memory: a shared mapping may have been moved there. While a process is
    /// recorded, its private mappings of files are known once its mappings have been read again for the first time.
    ///
    /// An anonymous page is private memory, whatever the table says: what was mapped there is gone. (In a file system on
    /// persistent memory, DAX, kernels before 6.17 show shared pages as anonymous ones; they count as private.)
    pub(crate) fn place_of_page(
        &mut self,
        pid: u32,
        addr: u64,
        phys: u64,
        of_file: Option<bool>,
    ) -> (Option<MemoryId>, Option<bool>) {
        let memory = self.memory(pid, addr, phys);
        let process = self.processes.get_mut(&pid);
        let (Some(of_file), Some(Process { table: Some(table), check, .. })) = (of_file, process) else {
            return (memory, None);
        };
        let is_shared = matches!(memory, Some(MemoryId::Shared { .. } | MemoryId::Frame { .. }));
        if is_shared && !of_file {
            check.doubted = true;
            return (self.private(pid, addr), Some(false));
        }
        if !is_shared && of_file && table.is_unmapped(addr) {
            check.doubted = true;
            return (None, Some(true));
        }
        (memory, None)
    }

    /// The processes to read again, `now` in ns: only those that map shared memory can be wrong about what is shared. Those
    /// with a doubtful table come first, then those with most samples.
    pub(crate) fn due(&mut self, now: u64) -> Vec<u32> {
        let mut due = Vec::new();
        for (&pid, process) in &mut self.processes {
            let Check { places, doubted, not_before, .. } = process.check;
            let may_be_wrong = process.table.as_ref().is_some_and(|table| table.has_shared());
            if !may_be_wrong || places == 0 {
                continue;
            }
            let earliest = if doubted { not_before } else { not_before.saturating_add(BUSY - DOUBTED) };
            if now >= earliest && (not_before != 0 || doubted) {
                due.push((!doubted, std::cmp::Reverse(places), pid));
            } else if not_before == 0 {
                process.check.not_before = now + DOUBTED;
            }
        }
        due.sort_unstable();
        due.into_iter().map(|(_, _, pid)| pid).collect()
    }

    /// The process was read again, which took `cost` ns.
    pub(crate) fn checked(&mut self, pid: u32, now: u64, cost: u64) {
        if let Some(Process { check, .. }) = self.processes.get_mut(&pid) {
            check.places = 0;
            check.doubted = false;
            check.not_before = now.saturating_add(DOUBTED.max(cost.saturating_mul(COST)));
        }
    }

    /// Stores what was read elsewhere of the process's private mappings of files.
    pub(crate) fn set_private_files(&mut self, pid: u32, files: Option<Vec<(u64, u64)>>) {
        let Some(Process { table: Some(table), .. }) = self.processes.get_mut(&pid) else { return };
        let before = if Arc::strong_count(table) == 1 { table.bytes() } else { 0 };
        let table = Arc::make_mut(table);
        table.set_files(files);
        self.bytes = self.bytes.saturating_sub(before) + table.bytes();
    }

    /// Reads the mappings of a process again. If that fails, the table stays as it was.
    pub(crate) fn refresh(&mut self, pid: u32, now: u64) {
        let begin = Instant::now();
        let table = self.read_procfs(pid);
        self.checked(pid, now, u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let (Some(table), Some(process)) = (table, self.processes.get_mut(&pid)) else { return };
        self.counts.refreshed += 1;
        let old = process.table.as_deref();
        if !old.is_some_and(|old| old.says_as(&table)) {
            self.counts.corrected += 1;
            self.changes += 1;
        } else if old.is_some_and(|old| old.has_files_of(&table)) {
            return;
        }
        self.bytes += table.bytes();
        let old = process.table.replace(Arc::new(table));
        self.release(old);
        self.stay_within_limit(pid);
    }
}
