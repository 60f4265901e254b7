//! The table of one process's mappings; new mappings replace what they overlap. Pure.
//!
//! It consists of chunks: a process can have 65,000 mappings (`vm.max_map_count`) and more, and a new one moves at most one
//! chunk of them. A copy of a table, for a fork, shares all chunks that do not change.

use std::sync::Arc;

#[cfg(test)]
use super::mapping::parse_line;
use super::mapping::Mapping;

/// Mappings of a chunk.
const CHUNK: usize = 256;

/// The mappings of one process that matter: code, and memory that other processes can share.
#[derive(Debug, Clone, Default)]
pub struct Mappings {
    /// The first address of each chunk.
    starts: Vec<u64>,
    /// None of them is empty. All mappings are sorted by start and do not overlap.
    chunks: Vec<Arc<Vec<Mapping>>>,
    /// The capacity of the chunks in mappings.
    room: usize,
    /// Bytes of the paths, including repetitions.
    path_bytes: usize,
    /// There may be shared ones.
    has_shared: bool,
    /// Private mappings of files when procfs was read, start and end. They are kept if there are shared ones; `None` if procfs was
    /// not read, or has more than are kept.
    files: Option<Vec<(u64, u64)>>,
    /// Where the heap and the stack of the first thread lie, from the first address to the one after the last; nowhere as 0 and 0.
    areas: [(u64, u64); 2],
}

/// What the kernel calls [`Mappings::areas`].
const AREAS: [&str; 2] = ["[heap]", "[stack]"];
/// The farthest from the program that the kernel puts the heap (`arch_randomize_brk` of x86).
const FARTHEST_HEAP: u64 = 1 << 30;

impl Mappings {
    /// The mappings of `/proc/PID/maps`. Malformed lines are left out.
    #[cfg(test)]
    pub fn parse(text: &[u8]) -> Self {
        let mut table = Self::default();
        for line in text.split(|&byte| byte == b'\n') {
            if let Some(mapping) = parse_line(line) {
                table.add(&mapping);
            }
        }
        table
    }

    /// The kept mappings, by start.
    pub fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// Completes the mappings that `wanted` accepts. Starts, lengths and paths stay the same.
    pub(super) fn fill(&mut self, wanted: impl Fn(&Mapping) -> bool, mut fill: impl FnMut(&mut Mapping)) {
        for chunk in &mut self.chunks {
            if chunk.iter().any(&wanted) {
                Arc::make_mut(chunk).iter_mut().filter(|mapping| wanted(mapping)).for_each(&mut fill);
            }
        }
    }

    /// Bytes of memory that it takes, without the paths; chunks shared with another table count in both.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.room * size_of::<Mapping>()
            + self.chunks.len() * (size_of::<u64>() + size_of::<Arc<Vec<Mapping>>>())
            + self.files.as_ref().map_or(0, Vec::capacity) * size_of::<(u64, u64)>()
    }

    /// False if no mapping was ever shared.
    #[must_use]
    pub(super) fn has_shared(&self) -> bool {
        self.has_shared
    }

    /// Stores the private mappings of files, by start.
    pub(super) fn set_files(&mut self, files: Option<Vec<(u64, u64)>>) {
        if self.has_shared {
            self.files = files;
            self.files.iter_mut().for_each(Vec::shrink_to_fit);
        }
    }

    /// True if both know the same private mappings of files.
    #[must_use]
    pub(super) fn has_files_of(&self, other: &Self) -> bool {
        self.files == other.files
    }

    /// True if a page of a file at the address is in no mapping that is known: it may be shared memory that mremap(2) moved there. Only
    /// a process with shared memory can have such.
    #[must_use]
    pub(super) fn is_unmapped(&self, addr: u64) -> bool {
        self.has_shared && self.find(addr).is_none() && self.is_private_file(addr) != Some(true)
    }

    /// True if procfs showed a private mapping of a file at the address; `None` if that is not known.
    #[must_use]
    fn is_private_file(&self, addr: u64) -> Option<bool> {
        let files = self.files.as_ref()?;
        let after = files.partition_point(|&(start, _)| start <= addr);
        Some(after.checked_sub(1).and_then(|at| files.get(at)).is_some_and(|&(_, end)| addr < end))
    }

    /// True if both give the same memory and the same code for every address.
    #[must_use]
    pub(super) fn says_as(&self, other: &Self) -> bool {
        let of = |mapping: &Mapping| {
            let Mapping { start, len, pgoff, scope, ino, .. } = *mapping;
            (start, len, pgoff, scope, ino, mapping.is_shared(), mapping.is_executable())
        };
        self.mappings().map(of).eq(other.mappings().map(of))
    }

    /// The same with the paths, as if no other table had them.
    #[must_use]
    pub fn bytes_with_paths(&self) -> usize {
        self.bytes() + self.path_bytes
    }

    /// The mapping that contains the address.
    #[must_use]
    #[inline]
    pub fn find(&self, addr: u64) -> Option<&Mapping> {
        let chunk = self.starts.partition_point(|&start| start <= addr).checked_sub(1)?;
        let chunk = self.chunks.get(chunk)?;
        let after = chunk.partition_point(|mapping| mapping.start <= addr);
        chunk.get(after.checked_sub(1)?).filter(|mapping| addr < mapping.end())
    }

    /// The addresses around this one for which [`Mappings::find`] has the same result, from the first to the one after the last.
    #[must_use]
    pub(super) fn around(&self, addr: u64) -> (u64, u64) {
        let chunks = self.starts.partition_point(|&start| start <= addr);
        let next_chunk = self.starts.get(chunks).copied().unwrap_or(u64::MAX);
        let Some(chunk) = chunks.checked_sub(1).and_then(|at| self.chunks.get(at)) else { return (0, next_chunk) };
        let after = chunk.partition_point(|mapping| mapping.start <= addr);
        let next = chunk.get(after).map_or(next_chunk, |mapping| mapping.start);
        match after.checked_sub(1).and_then(|at| chunk.get(at)) {
            Some(mapping) if addr < mapping.end() => (mapping.start, mapping.end()),
            before => (before.map_or(0, Mapping::end), next),
        }
    }

    /// The last mapping of a file's code that begins at or before the address: that of the image whose data the address may be.
    #[must_use]
    pub(super) fn code_before(&self, addr: u64) -> Option<&Mapping> {
        let chunks = self.starts.partition_point(|&start| start <= addr);
        let mappings = self.chunks.get(..chunks)?.iter().rev().flat_map(|chunk| chunk.iter().rev());
        let is_code = |it: &&Mapping| it.is_executable() && it.path.starts_with(b"/") && !it.path.starts_with(b"//");
        mappings.filter(|mapping| mapping.start <= addr).find(is_code)
    }

    /// `[heap]` or `[stack]`, where the address is in one of them.
    #[must_use]
    pub(super) fn area(&self, addr: u64) -> Option<&'static str> {
        let at = self.areas.iter().position(|&(start, end)| (start..end).contains(&addr))?;
        AREAS.get(at).copied()
    }

    /// The area of the mapping, and its range at that time: it grows, and parts of it may be separate mappings.
    fn grown(&self, new: &Mapping) -> Option<(usize, (u64, u64))> {
        let named = AREAS.iter().position(|name| &*new.path == name.as_bytes());
        let at = named.or_else(|| self.is_new_heap(new).then_some(0))?;
        let &(start, end) = self.areas.get(at)?;
        let grown = if end == 0 { (new.start, new.end()) } else { (start.min(new.start), end.max(new.end())) };
        (grown != (start, end)).then_some((at, grown))
    }

    /// True for the first memory that brk(2) gave to a program: its record says `//anon`, because the kernel writes it before the heap
    /// has an end (`do_brk_flags` and `brk` in mm/mmap.c). It lies behind the program, and was mapped after the loader or vdso. (The
    /// program's own .bss is mapped before these.)
    fn is_new_heap(&self, new: &Mapping) -> bool {
        if self.areas[0] != (0, 0) || &*new.path != b"//anon" || new.is_shared() || new.is_executable() {
            return false;
        }
        let is_behind = |program: &Mapping| {
            (program.end()..program.end().saturating_add(FARTHEST_HEAP)).contains(&new.start)
                && self.code_before(new.start).is_some_and(|before| before.start == program.start)
        };
        let program = self.mappings().find(|mapping| mapping.is_executable());
        let last = self.chunks.last().and_then(|chunk| chunk.last());
        program.is_some_and(is_behind) && last.is_some_and(|last| last.start > new.start)
    }

    /// The mapping at the address if its memory has an identity of its own in all processes.
    #[must_use]
    #[inline]
    pub fn shared(&self, addr: u64) -> Option<&Mapping> {
        self.find(addr).filter(|mapping| mapping.is_shared() && mapping.has_identity())
    }

    /// True if [`Mappings::add`] would change anything; most mappings are private data that overlaps nothing.
    #[must_use]
    pub fn is_changed_by(&self, new: &Mapping) -> bool {
        new.len != 0 && (keeps(new) || self.grown(new).is_some() || self.is_overlaid_by(new))
    }

    /// True if it overlaps an existing mapping.
    fn is_overlaid_by(&self, new: &Mapping) -> bool {
        if self.find(new.start).is_some() {
            return true;
        }
        let chunk = self.starts.partition_point(|&start| start <= new.start);
        let next = self.starts.get(chunk).copied();
        let within = chunk.checked_sub(1).and_then(|chunk| self.chunks.get(chunk));
        let later = within.and_then(|within| {
            let after = within.partition_point(|mapping| mapping.start <= new.start);
            within.get(after).map(|mapping| mapping.start)
        });
        later.or(next).is_some_and(|start| start < new.end())
    }

    /// A new mapping: it replaces what it overlaps, because an munmap leaves no record, and is kept if it matters.
    pub fn add(&mut self, new: &Mapping) {
        self.put(new, keeps(new));
    }

    /// As [`Mappings::add`] for a mapping that does not fit: its memory is unknown from then on.
    pub fn clip(&mut self, new: &Mapping) {
        self.put(new, false);
    }

    fn put(&mut self, new: &Mapping, keep: bool) {
        if new.len == 0 {
            return;
        }
        self.has_shared |= keep && new.is_shared();
        if let Some((at, grown)) = self.grown(new) {
            if let Some(area) = self.areas.get_mut(at) {
                *area = grown;
            }
        }
        // The chunks that it can touch: the one with the mapping at or before its start, and those that begin in it.
        let first = self.starts.partition_point(|&start| start <= new.start).saturating_sub(1);
        let behind = self.starts.partition_point(|&start| start < new.end()).max(first + 1).min(self.chunks.len());
        if first >= self.chunks.len() {
            if keep {
                self.insert_chunk(first, vec![new.clone()]);
            }
            return;
        }
        // It covers all of the others but the last.
        for chunk in (first + 1..behind).rev() {
            self.edit(chunk, |mappings| {
                let under = mappings.partition_point(|mapping| mapping.end() <= new.end());
                let piece =
                    mappings.get(under).filter(|it| it.start < new.end()).map(|it| it.part(new.end(), it.end()));
                match piece {
                    Some(piece) => drop(mappings.splice(..=under, [piece])),
                    None => drop(mappings.drain(..under)),
                }
            });
        }
        self.edit(first, |mappings| {
            let from = mappings.partition_point(|mapping| mapping.end() <= new.start);
            let to = mappings.partition_point(|mapping| mapping.start < new.end()).max(from);
            let left = mappings.get(from..to).and_then(<[_]>::first).filter(|it| it.start < new.start);
            let right = mappings.get(from..to).and_then(<[_]>::last).filter(|it| it.end() > new.end());
            let left = left.map(|it| it.part(it.start, new.start));
            let right = right.map(|it| it.part(new.end(), it.end()));
            let pieces: Vec<_> = left.into_iter().chain(keep.then(|| new.clone())).chain(right).collect();
            mappings.splice(from..to, pieces);
        });
    }

    /// Changes a chunk, then keeps chunks from being empty, too large, or many and small.
    fn edit(&mut self, index: usize, change: impl FnOnce(&mut Vec<Mapping>)) {
        let Some(chunk) = self.chunks.get_mut(index) else { return };
        let paths = |chunk: &[Mapping]| chunk.iter().map(|mapping| mapping.path.len()).sum::<usize>();
        self.room -= chunk.capacity();
        self.path_bytes -= paths(chunk);
        let mappings = Arc::make_mut(chunk);
        change(mappings);
        let mut more = None;
        if mappings.len() > CHUNK {
            // Mappings of a new process come in order: a mapping after the last one begins a chunk, so all chunks are full.
            let at = if index + 1 == self.starts.len() { CHUNK } else { mappings.len() / 2 };
            more = Some(mappings.split_off(at));
            mappings.shrink_to_fit();
        }
        if mappings.len() < mappings.capacity() / 4 {
            mappings.shrink_to(mappings.len() * 2);
        }
        self.room += mappings.capacity();
        self.path_bytes += paths(mappings);
        let start = mappings.first().map(|mapping| mapping.start);
        let (Some(start), Some(first)) = (start, self.starts.get_mut(index)) else {
            self.room -= mappings.capacity();
            self.starts.remove(index);
            self.chunks.remove(index);
            return;
        };
        *first = start;
        if let Some(more) = more {
            self.insert_chunk(index + 1, more);
        } else {
            self.join(index);
            self.join(index.saturating_sub(1));
        }
    }

    fn insert_chunk(&mut self, index: usize, mappings: Vec<Mapping>) {
        let Some(start) = mappings.first().map(|mapping| mapping.start) else { return };
        self.room += mappings.capacity();
        self.path_bytes += mappings.iter().map(|mapping| mapping.path.len()).sum::<usize>();
        self.starts.insert(index, start);
        self.chunks.insert(index, Arc::new(mappings));
    }

    /// Merges the next chunk into this one if both together are small.
    fn join(&mut self, index: usize) {
        let Some([one, other]) = self.chunks.get(index..).and_then(|rest| rest.first_chunk::<2>()) else { return };
        if one.len() + other.len() > CHUNK / 2 {
            return;
        }
        self.starts.remove(index + 1);
        let other = self.chunks.remove(index + 1);
        self.room -= other.capacity();
        if let Some(one) = self.chunks.get_mut(index) {
            self.room -= one.capacity();
            let one = Arc::make_mut(one);
            one.extend(other.iter().cloned());
            self.room += one.capacity();
        }
    }

    /// Mappings in the chunks of this table that `other` does not share.
    #[cfg(test)]
    fn mappings_beside(&self, other: &Self) -> usize {
        let is_new = |chunk: &&Arc<Vec<Mapping>>| !other.chunks.iter().any(|it| Arc::ptr_eq(it, chunk));
        self.chunks.iter().filter(is_new).map(|chunk| chunk.len()).sum()
    }

    #[cfg(test)]
    fn check(&self) {
        assert_eq!(self.chunks.iter().map(|chunk| chunk.capacity()).sum::<usize>(), self.room);
        assert_eq!(self.mappings().map(|mapping| mapping.path.len()).sum::<usize>(), self.path_bytes);
        assert!(self.chunks.iter().all(|chunk| (1..=CHUNK).contains(&chunk.len())));
        let starts: Vec<u64> = self.chunks.iter().map(|chunk| chunk[0].start).collect();
        assert_eq!(starts, self.starts);
        let all: Vec<_> = self.mappings().collect();
        assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].start));
        assert!(all.iter().all(|mapping| mapping.len > 0));
    }
}

fn keeps(mapping: &Mapping) -> bool {
    mapping.is_shared() || mapping.is_executable()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sample::MemoryScope;

    #[derive(Debug, Clone)]
    struct New {
        start: u64,
        len: u64,
        kept: bool,
    }

    fn mapping(new: &New, id: u64) -> Mapping {
        Mapping {
            start: new.start,
            len: new.len,
            pgoff: id * 1000,
            prot: 0,
            flags: if new.kept { libc::MAP_SHARED } else { libc::MAP_PRIVATE } as u32,
            dev: 1,
            ino: id,
            generation: 0,
            scope: Some(MemoryScope::device(1, 0)),
            build_id: None,
            path: Arc::from(&b"x"[..]),
        }
    }

    /// A table of this number of mappings of a page each, with gaps of a page.
    fn large(count: u64, order: impl Fn(u64) -> u64) -> Mappings {
        let mut table = Mappings::default();
        for id in 0..count {
            table.add(&mapping(&New { start: order(id) * 0x2000, len: 0x1000, kept: true }, id));
        }
        table
    }

    #[test]
    fn a_mapping_moves_no_more_than_its_chunk() {
        let count = 65_000;
        // In ascending order, in descending order, and in no order.
        let orders: [&dyn Fn(u64) -> u64; 3] = [&|id| id, &|id| count - id, &|id| id * 7919 % count];
        for order in orders {
            let table = large(count, order);
            table.check();
            assert_eq!(table.mappings().count(), count as usize);
            for at in [0, count / 3, count + 5] {
                let mut changed = table.clone();
                changed.add(&mapping(&New { start: at * 0x2000 + 0x1000, len: 0x800, kept: true }, 1));
                changed.check();
                let moved = changed.mappings_beside(&table);
                assert!(moved <= 600, "{moved} mappings were moved");
            }
            // Mappings under one mapping are removed completely.
            let mut changed = table.clone();
            changed.add(&mapping(&New { start: 0x2800, len: 40_000 * 0x2000, kept: true }, 1));
            changed.check();
            assert!(changed.mappings_beside(&table) <= 900);
            assert!(changed.mappings().count() < 25_010 && changed.find(0x4000).is_some_and(|it| it.ino == 1));
        }
        let full = large(count, |id| id);
        assert!(full.bytes() < (count as usize + 2 * CHUNK) * size_of::<Mapping>() * 11 / 10, "{} bytes", full.bytes());
    }

    #[test]
    fn what_shrinks_takes_less() {
        let mut table = large(20_000, |id| id);
        let before = table.bytes();
        for id in (0..20_000).filter(|id| id % 100 > 0) {
            table.add(&mapping(&New { start: id * 0x2000, len: 0x1000, kept: false }, id));
        }
        table.check();
        assert_eq!(table.mappings().count(), 200);
        assert!(table.bytes() < before / 10, "{} of {before} bytes", table.bytes());
    }

    proptest! {
        #[test]
        fn clipping_agrees_with_a_map_of_bytes(
            news in proptest::collection::vec(
                (0u64..100, 0u64..40, any::<bool>()).prop_map(|(start, len, kept)| New { start, len, kept }), 0..40)
        ) {
            let mut table = Mappings::default();
            let mut bytes: Vec<Option<(u64, u64)>> = vec![None; 150];
            for (id, new) in (1u64..).zip(&news) {
                let mapping = mapping(new, id);
                let before = table.clone();
                table.add(&mapping);
                table.check();
                prop_assert!(table.mappings().eq(before.mappings()) || before.is_changed_by(&mapping));
                for addr in new.start..new.start + new.len {
                    bytes[addr as usize] = new.kept.then_some((id, id * 1000 + addr - new.start));
                }
            }
            for (addr, expected) in (0u64..).zip(&bytes) {
                let found = table.find(addr).map(|mapping| (mapping.ino, mapping.pgoff + addr - mapping.start));
                prop_assert_eq!(found, *expected);
            }
        }

        #[test]
        fn many_chunks_are_as_one(
            news in proptest::collection::vec(
                (0u64..1200, 0u64..3, 0u64..60, any::<bool>())
                    .prop_map(|(start, some, many, kept)| New { start, len: if many > 57 { many * 10 } else { some }, kept }),
                0..2500)
        ) {
            let mut table = large(0, |id| id);
            let mut bytes: Vec<Option<u64>> = vec![None; 2000];
            for (id, new) in (1u64..).zip(&news) {
                let mapping = mapping(new, id);
                let overlaid = (new.start..new.start + new.len).any(|addr| bytes[addr as usize].is_some());
                prop_assert_eq!(table.is_changed_by(&mapping), new.len > 0 && (new.kept || overlaid));
                table.add(&mapping);
                for addr in new.start..new.start + new.len {
                    bytes[addr as usize] = new.kept.then_some(id);
                }
            }
            table.check();
            for (addr, expected) in (0u64..).zip(&bytes) {
                prop_assert_eq!(table.find(addr).map(|mapping| mapping.ino), *expected);
            }
        }

        #[test]
        fn any_bytes_are_a_table(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Mappings::parse(&text);
        }

        #[test]
        fn line_like_bytes_are_a_table(
            text in "([0-9a-f]{1,17}-[0-9a-f]{1,17} [rwxps-]{4} [0-9a-f]{1,17} [0-9a-f]{1,9}:[0-9a-f]{1,9} [0-9]{1,20} .{0,9}\n){0,4}"
        ) {
            Mappings::parse(text.as_bytes()).check();
        }

        #[test]
        fn paths_are_kept_whole(path in proptest::collection::vec(1u8.., 1..60)) {
            prop_assume!(!path.starts_with(b" ") && !path.windows(4).any(|four| four == b"\\012"));
            let mut text = b"1000-2000 rw-s 00000000 00:01 7 ".to_vec();
            for &byte in &path {
                if byte == b'\n' { text.extend(b"\\012") } else { text.push(byte) }
            }
            let table = Mappings::parse(&text);
            prop_assert_eq!(&*table.mappings().next().unwrap().path, &path[..]);
        }
    }
}
