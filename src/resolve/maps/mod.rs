//! Address spaces of all processes, and the memory that an address refers to.

pub(crate) mod check;
mod sizes;
mod spots;

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::identity::{Identities, Shown};
use super::kernel_names::KernelNames;
use super::mapping::Mapping;
use super::mappings::Mappings;
use super::threads::is_named;
use crate::host::tasks::TaskSeen;
use crate::host::Roots;
use crate::sample::MemoryId;
use spots::{Spot, Spots};

/// User addresses are below this. User space ends at 1 << 47, with five-level page tables at 1 << 56
/// (Documentation/arch/x86/x86_64/mm.rst).
pub const USER_END: u64 = 1 << 56;
/// Address spaces that are gone whose mappings are kept.
const MAX_ENDED: usize = 256;
/// Processes that are known to be none of the kernel's, of 5 bytes each.
const MAX_USER: usize = 1 << 18;

/// Counts of what the tables read, dropped and left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MapCounts {
    /// How often a process's mappings were read from procfs.
    pub read: u64,
    /// Of these, how often that failed.
    pub unreadable: u64,
    /// Tables dropped to stay within the limit.
    pub dropped: u64,
    /// Shared mappings without an inode, which count as private.
    pub without_inode: u64,
    /// How often a process's mappings were read again.
    pub refreshed: u64,
    /// Of these, how often the table was different.
    pub corrected: u64,
    /// Mappings of processes that have more than half of the room, or a list that is too long; their memory counts as private.
    pub left_out: u64,
}

#[derive(Debug)]
struct Process {
    /// Grows with each exec and fork of a process; for caches of address spaces.
    generation: u32,
    /// The number of the address space, given at the first access to it. So it depends only on the order of the samples, and a
    /// recording gives the same numbers.
    space: Option<u32>,
    /// `None` if it has not been read yet or was dropped. A fork shares its parent's table until one of them changes.
    table: Option<Arc<Mappings>>,
    used: u64,
    /// Its IPC namespace, if a record gave it.
    ipc: Option<u32>,
    check: Check,
}

/// Whether the process's table is to be compared with procfs: munmap(2) and mremap(2) leave no record.
#[derive(Debug, Clone, Default)]
struct Check {
    /// Addresses looked up since the last time.
    places: u32,
    /// A page was of another kind than the table says.
    doubted: bool,
    /// Not before this time, ns.
    not_before: u64,
}

/// The mappings of all processes.
#[derive(Debug)]
pub struct Maps {
    /// `None` if there are only records.
    roots: Option<Roots>,
    limit: usize,
    bytes: usize,
    processes: FxHashMap<u32, Process>,
    /// Processes that a record says map memory, also ended ones.
    user: FxHashSet<u32>,
    /// Address spaces that had samples and are gone, with their pid: what was in them is named at the end.
    ended: VecDeque<(u32, u32, Arc<Mappings>)>,
    /// Paths, each stored once: every process maps the same libraries.
    paths: FxHashSet<Arc<[u8]>>,
    path_bytes: usize,
    /// The number of paths at which unused ones are searched for.
    sweep_at: usize,
    generations: u32,
    spaces: u32,
    clock: u64,
    /// Grows whenever any table changes.
    changes: u64,
    identities: Identities,
    /// Of what no process maps.
    pub(crate) kernel_names: KernelNames,
    counts: MapCounts,
    /// The last results for a recording: most addresses are in the mapping of an earlier one.
    spots: Spots,
}

impl Maps {
    /// Starts without processes. Above `limit_bytes` the tables of the least recently used processes are dropped, and read
    /// again from procfs when needed.
    #[must_use]
    pub fn new(roots: &Roots, limit_bytes: usize) -> Self {
        Self { roots: Some(roots.clone()), identities: Identities::new(roots), ..Self::recorded(limit_bytes) }
    }

    /// Starts without processes and without procfs: for a recording, whose records contain all mappings. A table dropped
    /// above `limit_bytes` is lost, and its memory counts as private from then on.
    #[must_use]
    pub fn recorded(limit_bytes: usize) -> Self {
        Self {
            roots: None,
            limit: limit_bytes,
            bytes: 0,
            processes: FxHashMap::default(),
            user: FxHashSet::default(),
            ended: VecDeque::new(),
            paths: FxHashSet::default(),
            path_bytes: 0,
            sweep_at: 4096,
            generations: 0,
            spaces: 0,
            clock: 0,
            changes: 0,
            kernel_names: KernelNames::default(),
            identities: Identities::default(),
            counts: MapCounts::default(),
            spots: Spots::default(),
        }
    }

    /// After records were lost: all tables are read again when needed, and processes that have ended are dropped. Address
    /// spaces keep their numbers, because it is unknown which of them ended.
    pub fn reseed(&mut self, seen: &[TaskSeen]) {
        let live: FxHashSet<u32> = seen.iter().map(|task| task.pid).collect();
        self.processes.retain(|pid, process| {
            process.table = None;
            live.contains(pid)
        });
        self.ended.clear();
        self.bytes = 0;
        self.changes += 1;
    }

    /// A new mapping of any kind: it replaces what it overlaps.
    pub fn mmap(&mut self, pid: u32, mapping: &Mapping) {
        if self.roots.is_none() && is_named(pid) {
            self.maps_memory(pid);
        }
        // For an unknown process, this record may be all that will ever be known: the process may have ended.
        if is_named(pid) && (self.roots.is_none() || !self.processes.contains_key(&pid)) {
            self.table(pid);
        }
        // A dropped table is read again when needed, and contains this mapping then.
        let Some(Process { table: Some(table), ipc, .. }) = self.processes.get_mut(&pid) else { return };
        if mapping.start >= USER_END || !table.is_changed_by(mapping) {
            return;
        }
        self.changes += 1;
        // A table shared with a fork is copied here, and both count from now on.
        let before = if Arc::strong_count(table) == 1 { table.bytes() } else { 0 };
        let table = Arc::make_mut(table);
        if table.bytes_with_paths() < self.limit / 2 {
            let mut mapping = mapping.clone();
            identify(&mut self.identities, pid, *ipc, &mut mapping);
            intern(&mut self.paths, &mut self.path_bytes, &mut mapping);
            table.add(&mapping);
        } else {
            self.counts.left_out += 1;
            table.clip(mapping);
        }
        self.bytes = self.bytes.saturating_sub(before) + table.bytes();
        self.stay_within_limit(pid);
    }

    /// The process executes another program: a new address space without mappings; records of them follow.
    pub fn exec(&mut self, pid: u32) {
        let ipc = self.processes.get(&pid).and_then(|process| process.ipc);
        self.begin(pid, Some(Arc::default()), ipc);
    }

    /// From now on, the process is in the IPC namespace of that inode number. Without this call procfs is read, if there is
    /// one.
    pub fn ipc_namespace(&mut self, pid: u32, namespace: u32) {
        if is_named(pid) {
            self.generation(pid);
            if let Some(process) = self.processes.get_mut(&pid) {
                process.ipc = Some(namespace);
            }
        }
    }

    /// A new process: a new address space, with the mappings of its parent. Do not call it for new threads.
    pub fn fork(&mut self, child: u32, parent: u32) {
        if self.user.contains(&parent) {
            self.maps_memory(child);
        }
        // What a parent has that never ran before: its child may have ended before it can be read.
        let unreadable = self.counts.unreadable;
        if self.roots.is_some() && is_named(parent) {
            self.table(parent);
        }
        let could_read = self.counts.unreadable == unreadable;
        let parent = self.processes.get(&parent);
        let (table, ipc) = (parent.and_then(|parent| parent.table.clone()), parent.and_then(|parent| parent.ipc));
        // The child of a parent that could not be read is read when needed. That of a kernel thread has none.
        let table = table.filter(|_| could_read);
        self.begin(child, table, ipc);
    }

    /// The process has ended.
    pub fn exit(&mut self, pid: u32) {
        if let Some(process) = self.processes.remove(&pid) {
            self.changes += 1;
            self.end(pid, process);
        }
    }

    /// The address space is gone. Its mappings are kept for a while where there were samples in it.
    fn end(&mut self, pid: u32, process: Process) {
        let Process { space: Some(space), table: Some(table), .. } = process else {
            return self.release(process.table);
        };
        self.ended.push_back((space, pid, table));
        if self.ended.len() > MAX_ENDED {
            self.forget_ended();
        }
    }

    fn forget_ended(&mut self) {
        if let Some((_, _, table)) = self.ended.pop_front() {
            self.release(Some(table));
        }
    }

    /// The mappings of all known processes, each with the number of its address space, if it has one, and its process.
    pub(super) fn tables(&self) -> impl Iterator<Item = (Option<u32>, u32, Arc<Mappings>)> + '_ {
        let ended = self.ended.iter().map(|(space, pid, table)| (Some(*space), *pid, Arc::clone(table)));
        let live = self
            .processes
            .iter()
            .filter_map(|(&pid, process)| Some((process.space, pid, Arc::clone(process.table.as_ref()?))));
        live.chain(ended)
    }

    fn maps_memory(&mut self, pid: u32) {
        if self.user.len() < MAX_USER {
            self.user.insert(pid);
        }
    }

    /// The processes that records say map memory, as all do but those of the kernel; also those that have ended.
    pub(crate) fn take_user(&mut self) -> FxHashSet<u32> {
        std::mem::take(&mut self.user)
    }

    /// True for a process that maps memory, as all do but those of the kernel.
    pub(crate) fn has_process(&mut self, pid: u32) -> bool {
        if self.roots.is_some() && is_named(pid) && !self.processes.contains_key(&pid) {
            self.table(pid);
        }
        // A table that was dropped was not empty.
        let process = self.processes.get(&pid);
        process.is_some_and(|process| process.table.as_ref().is_none_or(|table| table.mappings().next().is_some()))
    }

    /// A number of the process's address space: each exec and each fork of a process begins a new one. It is not the one of
    /// [`MemoryId::Private`].
    pub fn generation(&mut self, pid: u32) -> u32 {
        if let Some(process) = self.processes.get(&pid) {
            return process.generation;
        }
        self.begin(pid, None, None);
        self.generations
    }

    /// The memory that the address refers to. `None` for addresses outside user space (`USER_END`), for 0, which means that the
    /// address is unknown, and for pid 0, which is no process.
    ///
    /// If a process's mappings cannot be read, all its memory counts as private. `phys` is the physical address if known, else
    /// 0: it identifies shared memory that nothing else identifies.
    pub fn memory(&mut self, pid: u32, addr: u64, phys: u64) -> Option<MemoryId> {
        let mut memory = None;
        self.put_memory(pid, addr, phys, &mut memory);
        memory
    }

    /// Stores the result of [`Maps::memory`] in place if it is needed: moving it costs as much as finding it.
    #[inline]
    pub(crate) fn put_memory(&mut self, pid: u32, addr: u64, phys: u64, memory: &mut Option<MemoryId>) {
        if addr == 0 || addr >= USER_END || !is_named(pid) {
            *memory = None;
            return;
        }
        self.clock += 1;
        if let Some(found) = self.spots.find(pid, addr, self.changes, self.clock) {
            *memory = Some(found);
            return;
        }
        *memory = self.look_up_place(pid, addr, phys);
    }

    /// A spot of the process was last used then.
    fn was_used(&mut self, (pid, used): (u32, u64)) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.used = process.used.max(used);
        }
    }

    /// The same without a spot, which there is afterwards.
    fn look_up_place(&mut self, pid: u32, addr: u64, phys: u64) -> Option<MemoryId> {
        if let Some(Process { table: Some(table), space, used, check, .. }) = self.processes.get_mut(&pid) {
            *used = self.clock;
            check.places = check.places.saturating_add(1);
            let (found, file) = match (table.shared(addr), *space) {
                (Some(mapping), _) if mapping.ino != 0 => {
                    let shift = mapping.pgoff.wrapping_sub(mapping.start);
                    (shared_place(mapping, addr), mapping.scope.map(|scope| (scope, mapping.ino, shift)))
                }
                (None, Some(space)) => (Some(MemoryId::Private { space, addr }), None),
                _ => (None, None),
            };
            if found.is_some() {
                if self.roots.is_none() {
                    let (start, end) = table.around(addr);
                    let (space, changes, used) = (space.unwrap_or(0), self.changes, *used);
                    let replaced = self.spots.keep(Spot { pid, space, changes, start, end, used, file }, addr);
                    self.was_used(replaced);
                }
                return found;
            }
        }
        self.first_place(pid, addr, phys)
    }

    /// As [`Maps::memory`], if something about the process or the mapping is still unknown.
    #[cold]
    fn first_place(&mut self, pid: u32, addr: u64, phys: u64) -> Option<MemoryId> {
        if self.table(pid)?.shared(addr).is_some_and(Mapping::lacks_inode) {
            self.fill_inodes(pid);
        }
        let process = self.processes.get_mut(&pid)?;
        if let Some(mapping) = process.table.as_ref().and_then(|table| table.shared(addr)) {
            if let Some(memory) = shared_place(mapping, addr) {
                return Some(memory);
            }
            if phys != 0 {
                return Some(MemoryId::Frame { phys });
            }
        }
        self.private(pid, addr)
    }

    /// The address as private memory.
    fn private(&mut self, pid: u32, addr: u64) -> Option<MemoryId> {
        let process = self.processes.get_mut(&pid)?;
        let space = *process.space.get_or_insert_with(|| {
            self.spaces = self.spaces.wrapping_add(1);
            self.spaces
        });
        Some(MemoryId::Private { space, addr })
    }

    /// The code mapping or the shared mapping at the address; other mappings are not kept.
    pub fn find(&mut self, pid: u32, addr: u64) -> Option<&Mapping> {
        if addr >= USER_END || !is_named(pid) {
            return None;
        }
        self.table(pid)?.find(addr)
    }

    /// A result stays valid as long as this number does not change.
    #[must_use]
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// True if the process still has the address space of that [`Maps::generation`].
    #[must_use]
    pub fn has_generation(&self, pid: u32, generation: u32) -> bool {
        self.processes.get(&pid).is_some_and(|process| process.generation == generation)
    }

    /// Counts of what the tables read, dropped and left out.
    #[must_use]
    pub fn counts(&self) -> MapCounts {
        self.counts
    }

    /// What did not fit and cannot be found again, one sentence each.
    pub(crate) fn left_out(&self) -> Vec<String> {
        let MapCounts { dropped, left_out, without_inode, .. } = self.counts;
        let dropped = if self.roots.is_none() { dropped } else { 0 };
        crate::sample::sentences(&[
            (dropped, "processes' mappings were forgotten for lack of room (--memory): their memory counts as private from there on"),
            (left_out, "mappings of processes with very many had no room (--memory): their memory counts as private"),
            (without_inode, "shared mappings without a known file count as private"),
        ])
    }

    /// Approximate bytes in use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let user = self.user.capacity() * (size_of::<u32>() + 1);
        self.bytes + self.path_bytes + user + self.processes.capacity() * size_of::<(u32, Process)>()
    }

    fn begin(&mut self, pid: u32, table: Option<Arc<Mappings>>, ipc: Option<u32>) {
        if !is_named(pid) {
            return;
        }
        self.generations = self.generations.wrapping_add(1);
        self.changes += 1;
        self.clock += 1;
        let process = {
            let (generation, used) = (self.generations, self.clock);
            Process { generation, space: None, table, used, ipc, check: Check::default() }
        };
        if let Some(old) = self.processes.insert(pid, process) {
            self.end(pid, old);
        }
    }

    fn release(&mut self, table: Option<Arc<Mappings>>) {
        if let Some(table) = table.filter(|table| Arc::strong_count(table) == 1) {
            self.bytes = self.bytes.saturating_sub(table.bytes());
        }
    }

    /// The process's table, read from procfs if it is not there.
    fn table(&mut self, pid: u32) -> Option<&Mappings> {
        self.clock += 1;
        let known = self.processes.get_mut(&pid).is_some_and(|process| {
            process.used = self.clock;
            process.table.is_some()
        });
        if !known {
            let table = self.read_table(pid);
            self.generation(pid);
            self.bytes += table.bytes();
            if let Some(process) = self.processes.get_mut(&pid) {
                process.table = Some(Arc::new(table));
            }
            self.stay_within_limit(pid);
        }
        self.processes.get(&pid)?.table.as_deref()
    }

    /// Empty if it cannot be read: records fill it from then on, and it is not read again.
    fn read_table(&mut self, pid: u32) -> Mappings {
        self.read_procfs(pid).unwrap_or_default()
    }

    /// A record in its build-id form has no dev and inode (struct perf_record_mmap2): they come from procfs. Memory that procfs
    /// does not know either is private from now on, so that procfs is read once.
    fn fill_inodes(&mut self, pid: u32) {
        let fresh = self.read_table(pid);
        let Some(table) = self.processes.get_mut(&pid).and_then(|process| process.table.as_mut()) else { return };
        let before = if Arc::strong_count(table) == 1 { table.bytes() } else { 0 };
        let table = Arc::make_mut(table);
        let counts = &mut self.counts;
        let lacks_inode = |mapping: &Mapping| mapping.is_shared() && mapping.lacks_inode();
        table.fill(lacks_inode, |mapping| {
            let offset_at = |from: &Mapping| from.pgoff.wrapping_sub(from.start);
            match fresh.find(mapping.start) {
                Some(found) if found.is_shared() && !found.lacks_inode() && offset_at(found) == offset_at(mapping) => {
                    mapping.dev = found.dev;
                    mapping.ino = found.ino;
                    mapping.scope = found.scope;
                }
                _ => {
                    counts.without_inode += 1;
                    mapping.flags = libc::MAP_PRIVATE as u32;
                }
            }
        });
        self.bytes = self.bytes.saturating_sub(before) + table.bytes();
    }

    /// Drops tables, the least recently used first, and then whole processes, until a quarter is free. `pid` stays.
    fn stay_within_limit(&mut self, pid: u32) {
        if self.paths.len() >= self.sweep_at {
            self.sweep_paths();
        }
        // Dead processes first: their mappings need not be read again.
        while self.bytes() > self.limit && !self.ended.is_empty() {
            self.forget_ended();
        }
        if self.bytes() <= self.limit {
            return;
        }
        let goal = self.limit / 4 * 3;
        self.changes += 1;
        for (pid, used) in self.spots.uses() {
            self.was_used((pid, used));
        }
        let mut by_use: Vec<(u64, u32)> = self.processes.iter().map(|(&pid, process)| (process.used, pid)).collect();
        by_use.retain(|&(_, other)| other != pid);
        by_use.sort_unstable();
        for &(_, other) in &by_use {
            if self.bytes() <= goal {
                break;
            }
            if let Some(table) = self.processes.get_mut(&other).and_then(|process| process.table.take()) {
                self.counts.dropped += 1;
                self.release(Some(table));
            }
        }
        self.sweep_paths();
        if self.bytes() > self.limit {
            // Only numbers are left: half of the processes lose theirs, and get a new one at their next sample.
            for &(_, other) in by_use.iter().take(by_use.len() / 2) {
                self.exit(other);
            }
            self.processes.shrink_to_fit();
        }
    }

    fn sweep_paths(&mut self) {
        self.paths.retain(|path| Arc::strong_count(path) > 1);
        self.path_bytes = self.paths.iter().map(path_cost).sum();
        self.sweep_at = (self.paths.len() * 2).max(4096);
    }
}

/// The memory at an address of a shared mapping; `None` if its inode number does not identify it.
fn shared_place(mapping: &Mapping, addr: u64) -> Option<MemoryId> {
    let offset = mapping.pgoff.wrapping_add(addr.wrapping_sub(mapping.start));
    Some(MemoryId::Shared { scope: mapping.scope?, ino: mapping.ino, offset })
}

/// Completes the identity of a shared mapping.
fn identify(identities: &mut Identities, pid: u32, ipc: Option<u32>, mapping: &mut Mapping) {
    if mapping.is_shared() && mapping.build_id.is_none() {
        let Mapping { start, dev, ino, generation, ref path, .. } = *mapping;
        let shown = Shown { start, end: mapping.end(), dev, ino, generation, path };
        mapping.scope = identities.scope(pid, ipc, shown);
    }
}

/// Bytes that a path takes: itself, its counts, its entry in the set.
fn path_cost(path: &Arc<[u8]>) -> usize {
    path.len() + 48
}

fn intern(paths: &mut FxHashSet<Arc<[u8]>>, bytes: &mut usize, mapping: &mut Mapping) {
    if let Some(known) = paths.get(&mapping.path) {
        mapping.path = Arc::clone(known);
    } else {
        *bytes += path_cost(&mapping.path);
        paths.insert(Arc::clone(&mapping.path));
    }
}

#[cfg(test)]
mod tests;
