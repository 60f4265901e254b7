//! The report's part on memory: regions, pages and lines, the threads that touched them, and the code.

use serde::{Deserialize, Serialize};

use crate::cluster::LineSharing;

/// A data structure: a range of memory that threads use alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RegionReport {
    /// The name of the memory, as of a [`Granule`]; of its first byte.
    pub memory: String,
    /// Its first byte; `null` if it is not known any more.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// From its first byte to its last.
    pub bytes: u64,
    /// Threads of the subcell's communities that use it.
    pub threads: u32,
    /// Their possible misses there weighted by cost; a fill of a line is 1.
    pub misses: f64,
    /// How many of them are transfers: another thread had written the line.
    pub transfers: f64,
}

/// A page or a cache line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Granule {
    /// The name of the memory: a variable, `[heap]` or `[stack]` of a process, or a file and the offset in it; else the process and the
    /// address, or the device, the inode and the offset. Of a page, the variable of its hottest line, if there is one.
    pub memory: String,
    /// Its first byte; `null` if it is not known any more.
    #[serde(default)]
    pub identity: Option<Identity>,
    /// The variable of `memory`; left out if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol: Option<DataSymbol>,
    /// Accesses by all threads.
    pub accesses: f64,
    /// Those that wrote.
    pub writes: f64,
    /// Samples that found it modified in another CPU's cache.
    pub hitm: u64,
    /// Of lines alone: accesses after another thread took the line away, by which lines without `hitm` are sorted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfers: Option<f64>,
    /// Threads that touched it.
    pub threads: u32,
    /// For lines, the code that touched it most; empty if not requested or unknown.
    #[serde(default)]
    pub code: Vec<Code>,
    /// How its threads share it, of lines alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<LineSharing>,
    /// The accesses of each thread, of lines alone: the 16 most active threads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_thread: Vec<LineThread>,
}

impl Granule {
    /// True for a line that no sample wrote and that counts as written nevertheless, because a thread does little but read it: it waits
    /// for a write, because writes may be too rare to be sampled.
    #[must_use]
    pub fn is_waited_on(&self) -> bool {
        let is_read_alone = self.sharing == Some(LineSharing::None) && self.writes <= 0.0;
        is_read_alone && self.transfers.is_some_and(|transfers| transfers * 2.0 > self.accesses)
    }
}

/// A byte of memory, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Identity {
    /// Of a file or shared memory that is mapped shared.
    Shared {
        /// What the inode number belongs to: the [`crate::sample::MemoryScope::number`], which is `st_dev` of most files, as `makedev` packs it.
        dev: u64,
        /// The inode number.
        ino: u64,
        /// Bytes from its beginning.
        offset: u64,
    },
    /// Of the private memory of a process.
    Private {
        /// The process; `null` if it is not known.
        pid: Option<u32>,
        /// The virtual address.
        addr: u64,
    },
    /// Memory of which nothing else is known.
    Physical {
        /// The physical address.
        addr: u64,
    },
}

/// A variable of a program or library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DataSymbol {
    /// Its name, or that of a section (`.bss`) if the file names no variable there.
    pub name: String,
    /// Bytes from its beginning.
    pub offset: u64,
    /// The file, as the process that maps it has it.
    pub dso: String,
}

/// The accesses of one thread to a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LineThread {
    /// Its process.
    pub pid: u32,
    /// Its thread id.
    pub tid: u32,
    /// Its name, as in [`super::ThreadReport`].
    pub comm: Option<String>,
    /// Accesses that did not write.
    pub loads: u64,
    /// Accesses that wrote.
    pub stores: u64,
    /// Accesses that found the line modified in another CPU's cache.
    pub hitm: u64,
    /// The bytes of the line that it read, as pairs of the first and the last; empty where they were not kept.
    pub loaded: Vec<[u8; 2]>,
    /// Those that it wrote.
    pub stored: Vec<[u8; 2]>,
    /// The variable that contains the first of these bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol: Option<DataSymbol>,
}

impl std::fmt::Display for DataSymbol {
    /// `counters+0x8 (server)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let file = self.dso.rsplit('/').next().unwrap_or_default();
        write!(f, "{}+{:#x} ({file})", crate::sample::printable(self.name.as_bytes()), self.offset)
    }
}

/// An instruction that touched a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Code {
    /// Its function; `null` if that is not certain.
    pub sym: Option<String>,
    /// Offset from the function's beginning, or from the file's if the function is unknown.
    pub offset: u64,
    /// The file, as the process that maps it sees it, or `[kernel.kallsyms]`, `[vdso]`, `[anon]`.
    pub dso: String,
    /// Approximate accesses since the line was found to be shared.
    pub accesses: f64,
    /// `FILE:LINE` of the source, if the file has debug information.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// If `line` is inlined library code: the `FILE:LINE` of the innermost function around it that is no library code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller_line: Option<String>,
    /// The functions that were inlined around it, the outermost first, if the file has debug information.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inlined: Vec<String>,
}

impl std::fmt::Display for Code {
    /// `function+0x12 (libx.so)`, or `libx.so+0x1234` if it has no name; then `in inlined outer, inner at x.c:12
    /// (header.h:3)` as far as known.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let file = self.dso.rsplit('/').next().unwrap_or_default();
        match &self.sym {
            Some(sym) => write!(f, "{}+{:#x} ({file})", crate::sample::printable(sym.as_bytes()), self.offset)?,
            None => write!(f, "{file}+{:#x}", self.offset)?,
        }
        if !self.inlined.is_empty() {
            write!(f, " in inlined {}", self.inlined.join(", "))?;
        }
        let short = |line: &str| line.rsplit('/').next().unwrap_or_default().to_owned();
        match (self.caller_line.as_deref().map(short), self.line.as_deref().map(short)) {
            (Some(caller), Some(line)) => write!(f, " at {caller} ({line})"),
            (Some(line), None) | (None, Some(line)) => write!(f, " at {line}"),
            (None, None) => Ok(()),
        }
    }
}
