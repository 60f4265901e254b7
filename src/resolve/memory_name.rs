//! The name of memory: the variable, heap, stack or file that contains a byte, by the mappings of the processes that touched it.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::kernel_names::KernelNames;
use super::mappings::Mappings;
use super::maps::Maps;
use super::symbols::Modules;
use crate::sample::{CodeAddr, MemoryId, MemoryScope};

/// The mappings of processes, those of ended ones as they were last.
#[derive(Debug, Clone, Default)]
pub struct AddressSpaces {
    /// By the number of the address space, with its process.
    private: FxHashMap<u32, (u32, Arc<Mappings>)>,
    /// Those of processes that touched no private memory.
    others: Vec<Arc<Mappings>>,
    kernel_names: KernelNames,
}

/// The known location of a byte of memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Located {
    /// The process whose private memory it is.
    pub(crate) pid: Option<u32>,
    /// `[heap]` or `[stack]` of it.
    pub(crate) area: Option<&'static str>,
    /// The file or shared memory that is mapped, as the kernel prints its path, any bytes; of memory of the kernel, the cache of the
    /// object.
    pub(crate) path: Option<Arc<[u8]>>,
    /// No process maps it.
    pub(crate) is_cached: bool,
    /// Where it is in the image of a program or library, if it is one of its variables: [`super::symbolize`] says that.
    pub(crate) image: Option<CodeAddr>,
}

impl AddressSpaces {
    /// Those of all processes that are known, for the names of what lies in them.
    #[must_use]
    pub(crate) fn of(maps: &Maps) -> Self {
        let mut all = Self { kernel_names: maps.kernel_names.clone(), ..Self::default() };
        for (space, pid, table) in maps.tables() {
            match space {
                Some(space) => drop(all.private.insert(space, (pid, table))),
                None => all.others.push(table),
            }
        }
        all
    }

    /// Says where each of these lies. Images are numbered in `modules`.
    pub(crate) fn locate(
        &self,
        memory: impl IntoIterator<Item = MemoryId>,
        modules: &mut Modules,
    ) -> FxHashMap<MemoryId, Located> {
        let mut located: FxHashMap<MemoryId, Located> =
            memory.into_iter().map(|memory| (memory, Located::default())).collect();
        let mut paths = FxHashMap::default();
        for memory in located.keys() {
            if let MemoryId::Shared { scope, ino, .. } = *memory {
                paths.insert((scope, ino), None);
            }
        }
        if !paths.is_empty() {
            let tables = self.private.values().map(|(_, table)| table).chain(&self.others);
            for mapping in tables.flat_map(|table| table.mappings()).filter(|mapping| mapping.is_shared()) {
                if let Some(path) = mapping.scope.and_then(|scope| paths.get_mut(&(scope, mapping.ino))) {
                    // Of several names the least, so that it is the same one each time.
                    let is_new = path.as_ref().is_none_or(|known| mapping.path < *known);
                    if is_new {
                        *path = Some(Arc::clone(&mapping.path));
                    }
                }
            }
        }
        for (memory, located) in &mut located {
            match *memory {
                MemoryId::Shared { scope: MemoryScope::Kernel, .. } => {
                    located.path = self.kernel_names.cache(*memory).cloned();
                }
                MemoryId::Shared { scope, ino, .. } => {
                    let mapped = paths.get(&(scope, ino)).cloned().flatten();
                    located.is_cached = mapped.is_none();
                    located.path = mapped.or_else(|| self.kernel_names.file(*memory).cloned());
                }
                MemoryId::Private { space, addr } => {
                    let Some((pid, table)) = self.private.get(&space) else { continue };
                    located.pid = Some(*pid);
                    located.area = table.area(addr);
                    located.image = table.code_before(addr).and_then(|code| modules.data(*pid, code, addr));
                }
                MemoryId::Frame { .. } => {}
            }
        }
        located
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Roots;
    use crate::resolve::mapping::parse_line;

    const MAPS: &str = "\
00400000-00401000 r--p 00000000 fe:01 7 /usr/bin/server
00401000-00402000 r-xp 00001000 fe:01 7 /usr/bin/server
00402000-00404000 rw-p 00002000 fe:01 7 /usr/bin/server
00500000-00521000 rw-p 00000000 00:00 0 [heap]
00600000-00610000 rw-s 00003000 00:01 9 /dev/shm/queue
00700000-00710000 rw-s 00000000 00:01 10 /memfd:ring (deleted)
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0 [stack]
";

    fn maps() -> Maps {
        let mut maps = Maps::recorded(1 << 20);
        for line in MAPS.lines() {
            maps.mmap(5, &parse_line(line.as_bytes()).unwrap());
        }
        maps
    }

    /// What is known of the address, and the offset of the image.
    fn at(spaces: &AddressSpaces, memory: MemoryId) -> (Option<u32>, Option<&'static str>, String, Option<u64>) {
        let located = spaces.locate([memory], &mut Modules::new()).remove(&memory).unwrap();
        let path = located.path.map(|path| String::from_utf8_lossy(&path).into_owned()).unwrap_or_default();
        (located.pid, located.area, path, located.image.map(|code| code.offset))
    }

    #[test]
    fn memory_is_known_by_its_mapping() {
        let mut maps = maps();
        let memory = [0x402_010, 0x500_010, 0x7ffc_0000_0010, 0x900_000, 0x600_010, 0x700_010]
            .map(|addr| maps.memory(5, addr, 0).unwrap());
        // The heap grows.
        maps.mmap(5, &parse_line(b"00500000-00542000 rw-p 00000000 00:00 0 [heap]").unwrap());
        let grown = maps.memory(5, 0x541_000, 0).unwrap();
        let expected = |spaces: &AddressSpaces| {
            let [data, heap, stack, other, file, memfd] = memory.map(|memory| at(spaces, memory));
            // By the place that it would have in the file if all were mapped as the code is.
            assert_eq!(data, (Some(5), None, String::new(), Some(0x2010)));
            assert_eq!((heap.0, heap.1), (Some(5), Some("[heap]")));
            assert_eq!((stack.0, stack.1), (Some(5), Some("[stack]")));
            assert_eq!((other.0, other.1), (Some(5), None));
            assert_eq!(file.2, "/dev/shm/queue");
            assert_eq!(memfd.2, "/memfd:ring (deleted)");
            assert_eq!(at(spaces, grown).1, Some("[heap]"));
        };
        expected(&AddressSpaces::of(&maps));
        // What is gone is known, until there are too many; another process of that pid is another one.
        maps.exec(5);
        expected(&AddressSpaces::of(&maps));
        for pid in 100..400 {
            maps.exec(pid);
            maps.memory(pid, 0x1000, 0);
            maps.exit(pid);
        }
        assert_eq!(at(&AddressSpaces::of(&maps), memory[1]), (None, None, String::new(), None));
    }

    /// As the kernel records a program that calls brk(2) once: its .bss and its heap have the same name.
    #[test]
    fn the_first_heap_of_a_program_is_known_by_its_place() {
        let mut maps = Maps::recorded(1 << 20);
        for line in [
            "7ffc00000000-7ffc00021000 rw-p 7fffffffe000 00:00 0 [stack]",
            "562c18019000-562c1801f000 r-xp 00002000 fe:00 7 /usr/bin/server",
            "562c1801f000-562c18022000 rw-p 00008000 fe:00 7 /usr/bin/server",
            "562c18022000-562c18026000 rw-p 562c18022000 00:00 0 //anon",
            "7f64cb580000-7f64cb5a6000 r-xp 00001000 fe:00 8 /usr/lib/ld.so",
            "7f64cb57d000-7f64cb57f000 r-xp 00000000 00:00 0 [vdso]",
            "7f64cb575000-7f64cb577000 rw-p 7f64cb575000 00:00 0 //anon",
            "562c50c58000-562c50c79000 rw-p 562c50c58000 00:00 0 //anon",
            "562c50d00000-562c50d10000 rw-p 562c50d00000 00:00 0 //anon",
        ] {
            maps.mmap(5, &parse_line(line.as_bytes()).unwrap());
        }
        let [bss, loader, heap, other] = [0x562c_1802_2010, 0x7f64_cb57_5010, 0x562c_50c5_8010, 0x562c_50d0_0010]
            .map(|addr| maps.memory(5, addr, 0).unwrap());
        let spaces = AddressSpaces::of(&maps);
        let area = |memory| at(&spaces, memory).1;
        assert_eq!((area(heap), area(bss), area(loader), area(other)), (Some("[heap]"), None, None, None));
    }

    #[test]
    fn procfs_says_where_heap_and_stack_are() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join("5")).unwrap();
        std::fs::write(proc.path().join("5/maps"), MAPS).unwrap();
        let mut maps = Maps::new(&Roots { proc: proc.path().to_owned(), ..Roots::default() }, 1 << 20);
        let memory = maps.memory(5, 0x500_010, 0).unwrap();
        assert_eq!(at(&AddressSpaces::of(&maps), memory).1, Some("[heap]"));
        // A fork has what its parent has.
        maps.fork(6, 5);
        let memory = maps.memory(6, 0x7ffc_0000_0010, 0).unwrap();
        assert_eq!(
            (at(&AddressSpaces::of(&maps), memory).0, at(&AddressSpaces::of(&maps), memory).1),
            (Some(6), Some("[stack]"))
        );
    }
}
