//! The names of the memory in a report, and which threads touched which bytes of it.

use rustc_hash::FxHashMap;

use super::decider::Decider;
use crate::cluster::across::Across;
use crate::cluster::{Clusters, Hot, LineUse, Structure};
use crate::report::{Code, DataSymbol, Granule, Identity, LineThread, RegionReport};
use crate::resolve::identity::{is_sysv, scope_text};
use crate::resolve::{AddressSpaces, Located, Modules, Symbol, Symbols};
use crate::sample::{printable, CodeAddr, MemoryId, MemoryScope, LINE_SIZE};

/// The places of the memory that a report names.
pub(super) type Locations = FxHashMap<MemoryId, Located>;

/// Finds the places of all memory that a report of these clusters names, and of the memory that cells share.
pub(super) fn locate(
    (clusters, across): (&Clusters, &Across),
    spaces: &AddressSpaces,
    modules: &mut Modules,
) -> Locations {
    let communities = clusters.communities.iter();
    let hot = communities.clone().flat_map(|it| it.pages.iter().chain(&it.lines));
    let hot = hot.chain(&clusters.hubs).chain(&clusters.lines);
    let bytes = hot.flat_map(|hot| {
        let of_threads = hot.by_thread.iter().filter_map(|thread| first_byte(hot, thread));
        [hot.memory, hot.hottest].into_iter().flatten().chain(of_threads)
    });
    let regions = communities.flat_map(|it| &it.regions).filter_map(|region| region.memory);
    let shared = &clusters.shared;
    let pages = shared.pages.iter().flat_map(|page| page.lines.iter().map(|line| line.memory).chain([page.memory]));
    let shared = shared.regions.iter().map(|region| region.memory).chain(pages).flatten();
    let across = across.pairs.iter().filter_map(|pair| pair.memory);
    spaces.locate(bytes.chain(regions).chain(shared).chain(across), modules)
}

/// The images that may have a symbol for it.
pub(super) fn images(locations: &Locations) -> impl Iterator<Item = CodeAddr> + '_ {
    locations.values().filter_map(|located| located.image)
}

/// The first byte of a line that a thread touched.
fn first_byte(line: &Hot, thread: &LineUse) -> Option<MemoryId> {
    let touched = thread.loaded | thread.stored;
    (touched != 0).then_some(line.memory?.byte(touched.trailing_zeros()))
}

/// Names memory for a report.
pub(super) struct MemoryNames<'a> {
    pub(super) decider: &'a Decider,
    pub(super) locations: &'a Locations,
    pub(super) symbols: &'a Symbols,
}

impl MemoryNames<'_> {
    /// Pages or lines; private memory without further identity belongs to process `pid`.
    pub(super) fn granules(&self, hot: &[Hot], pid: Option<u32>) -> Vec<Granule> {
        hot.iter().map(|hot| self.granule(hot, pid)).collect()
    }

    fn granule(&self, hot: &Hot, pid: Option<u32>) -> Granule {
        let symbol = hot.hottest.and_then(|memory| self.symbol(memory));
        let code = |&(code, events)| Some(code_of(self.symbols.get(code)?, events));
        let mut memory = symbol.as_ref().map_or_else(|| self.text(hot.memory, pid), ToString::to_string);
        if let Some(MemoryId::Shared { scope: MemoryScope::Kernel, .. }) = hot.memory {
            // Its data have no names; the code that uses them has.
            let user = hot.code.first().and_then(|&(code, _)| self.symbols.get(code)?.function.as_ref());
            memory.extend(user.map(|(name, _)| format!(" of {name}")));
        }
        Granule {
            memory,
            identity: self.identity(hot.memory, pid),
            symbol,
            accesses: hot.accesses,
            writes: hot.writes,
            hitm: hot.hitm,
            transfers: hot.transfers.map(|transfers| (transfers * 1000.0).round() / 1000.0),
            threads: hot.threads,
            code: hot.code.iter().filter_map(code).collect(),
            sharing: hot.sharing,
            by_thread: hot.by_thread.iter().filter_map(|thread| self.thread(hot, thread)).collect(),
        }
    }

    fn thread(&self, line: &Hot, thread: &LineUse) -> Option<LineThread> {
        let facts = self.decider.facts.get(thread.thread as usize)?;
        Some(LineThread {
            pid: facts.pid,
            tid: facts.tid,
            comm: Some(facts.last.1.to_string()),
            loads: thread.loads.into(),
            stores: thread.stores.into(),
            hitm: thread.hitm.into(),
            loaded: ranges(thread.loaded),
            stored: ranges(thread.stored),
            symbol: first_byte(line, thread).and_then(|memory| self.symbol(memory)),
        })
    }

    pub(super) fn region(&self, region: &Structure, pid: Option<u32>) -> RegionReport {
        let symbol = region.memory.and_then(|memory| self.symbol(memory));
        RegionReport {
            memory: symbol.as_ref().map_or_else(|| self.text(region.memory, pid), ToString::to_string),
            identity: self.identity(region.memory, pid),
            bytes: region.bytes,
            threads: region.threads,
            misses: region.misses,
            transfers: region.transfers,
        }
    }

    /// The name of memory, and its identity for programs.
    pub(super) fn named(&self, memory: Option<MemoryId>, pid: Option<u32>) -> (String, Option<Identity>) {
        let symbol = memory.and_then(|memory| self.symbol(memory));
        (symbol.map_or_else(|| self.text(memory, pid), |symbol| symbol.to_string()), self.identity(memory, pid))
    }

    /// The name of the line with this byte: by the variable of the byte, else by its own first byte.
    pub(super) fn line(&self, byte: Option<MemoryId>, pid: Option<u32>) -> String {
        match byte {
            Some(byte) if self.symbol(byte).is_none() => {
                Self::located_text(byte.granule(LINE_SIZE), self.locations.get(&byte), pid)
            }
            _ => self.named(byte, pid).0,
        }
    }

    /// The variable that contains a byte.
    fn symbol(&self, memory: MemoryId) -> Option<DataSymbol> {
        let symbol = self.symbols.get(self.locations.get(&memory)?.image?)?;
        let (name, offset) = symbol.function.as_ref()?;
        Some(DataSymbol { name: name.to_string(), offset: *offset, dso: printable(&symbol.dso) })
    }

    fn identity(&self, memory: Option<MemoryId>, pid: Option<u32>) -> Option<Identity> {
        Some(match memory? {
            MemoryId::Shared { scope, ino, offset } => Identity::Shared { dev: scope.number(), ino, offset },
            MemoryId::Frame { phys } => Identity::Physical { addr: phys },
            MemoryId::Private { addr, .. } => Identity::Private { pid: self.pid(memory?, pid), addr },
        })
    }

    fn pid(&self, memory: MemoryId, pid: Option<u32>) -> Option<u32> {
        self.locations.get(&memory).and_then(|located| located.pid).or(pid)
    }

    /// A description of memory, for people.
    fn text(&self, memory: Option<MemoryId>, pid: Option<u32>) -> String {
        let Some(memory) = memory else { return "a file beyond those that are remembered".to_owned() };
        Self::located_text(memory, self.locations.get(&memory), pid)
    }

    fn located_text(memory: MemoryId, located: Option<&Located>, pid: Option<u32>) -> String {
        match memory {
            MemoryId::Shared { scope: MemoryScope::Wakeups, ino, .. } => format!("wakeups of pair {ino}"),
            MemoryId::Shared { scope: MemoryScope::Kernel, offset, .. } => {
                let cache = located.and_then(|located| located.path.as_deref()).map(printable);
                cache.map_or_else(|| format!("kernel memory {offset:#x}"), |cache| format!("slab {cache} {offset:#x}"))
            }
            MemoryId::Shared { scope, ino, offset } => {
                let path = located.and_then(|located| located.path.as_deref()).and_then(path_text);
                let of = if located.is_some_and(|located| located.is_cached) { "[page cache] " } else { "" };
                path.map_or_else(
                    || format!("{} {ino} + {offset:#x}", scope_text(scope)),
                    |path| format!("{of}{path}+{offset:#x}"),
                )
            }
            MemoryId::Frame { phys } => format!("physical {phys:#x}"),
            MemoryId::Private { space, addr } => {
                let area = located.and_then(|located| located.area).map_or(String::new(), |area| format!("{area} "));
                match located.and_then(|located| located.pid).or(pid) {
                    Some(pid) => format!("{area}pid {pid} {addr:#x}"),
                    None => format!("{area}address space {space} {addr:#x}"),
                }
            }
        }
    }
}

/// Code that touched memory, for a report.
fn code_of(symbol: &Symbol, accesses: f64) -> Code {
    let (sym, offset) = match &symbol.function {
        Some((name, offset)) => (Some(name.to_string()), *offset),
        None => (None, symbol.offset),
    };
    let (line, caller_line) = (symbol.line.clone(), symbol.caller_line.clone());
    Code { sym, offset, dso: printable(&symbol.dso), accesses, line, caller_line, inlined: symbol.inlined.clone() }
}

/// A mapped file by the path that the kernel prints, for people; `None` if the path says less than the inode.
fn path_text(path: &[u8]) -> Option<String> {
    // A segment has no path: the key of another namespace may be the same.
    if path.is_empty() || is_sysv(1, path) {
        return None;
    }
    let (path, is_deleted) = match path.strip_suffix(b" (deleted)") {
        Some(path) => (path, true),
        None => (path, false),
    };
    Some(match path.strip_prefix(b"/memfd:") {
        Some(name) => format!("memfd:{}", printable(name)),
        None if path == b"/dev/zero" => "[shared anon]".to_owned(),
        None if is_deleted => format!("{} (deleted)", printable(path)),
        None => printable(path),
    })
}

/// The bits that are set, as pairs of the first and the last of each row.
fn ranges(bits: u64) -> Vec<[u8; 2]> {
    let is_set = |bit: u8| bit < 64 && bits >> bit & 1 == 1;
    let firsts = (0..64u8).filter(|&bit| is_set(bit) && (bit == 0 || !is_set(bit - 1)));
    firsts.map(|first| [first, (first..64).take_while(|&bit| is_set(bit)).last().unwrap_or(first)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_ranges() {
        assert_eq!(ranges(0), Vec::<[u8; 2]>::new());
        assert_eq!(ranges(0xff), [[0, 7]]);
        assert_eq!(ranges(u64::MAX), [[0, 63]]);
        assert_eq!(ranges(1 << 63 | 0b1101), [[0, 0], [2, 3], [63, 63]]);
    }

    #[test]
    fn files_have_names_that_a_terminal_bears() {
        let text = |path: &[u8]| path_text(path);
        assert_eq!(text(b"/dev/shm/x").as_deref(), Some("/dev/shm/x"));
        assert_eq!(text(b"/memfd:ring\x1b[m (deleted)").as_deref(), Some("memfd:ring\\x1b[m"));
        assert_eq!(text(b"/dev/zero (deleted)").as_deref(), Some("[shared anon]"));
        assert_eq!(text(b"/tmp/x (deleted)").as_deref(), Some("/tmp/x (deleted)"));
        assert_eq!(text(b"/SYSV0000cafe (deleted)"), None);
        assert_eq!(text(b""), None);
    }
}
