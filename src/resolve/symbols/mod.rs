//! Names of code. While samples arrive, [`Modules`] records the file of each instruction; at the end [`symbolize`] names each
//! instruction once.
//!
//! If a name is not certain, the result is file and offset. A file is read only if it is the one that was mapped, by its build
//! id, or by device and inode if it did not change since the capture began. For a recording, the build ids are those of its
//! records and of its section of build ids.
//!
//! Files belong to containers, may contain anything and change while they are read. So they are read in pieces and never
//! mapped, and the cost is in proportion to the number of instructions to name.
//!
//! `perf script` gives the same names for the same recording, except that it names a stub after its target, extends a symbol
//! without a size to the next one, shows versions (`@@GLIBC_2.17`), names the code that boots the kernel and is then freed, and
//! trusts any JIT map with the pid.

mod demangle;
mod elf;
mod file;
mod image;
mod jit;
mod kernel;
mod lack;
mod lines;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustc_hash::FxHashMap;

use super::mapping::Mapping;
use super::Maps;
use crate::host::{aside, Roots};
use crate::sample::{printable, CodeAddr, CpuMode};
use elf::DebugInfo;
use lack::Lack;
use scxprof_base::tables::Tables;
use scxprof_perf::buildid::BuildId;

pub(crate) use image::Image;
// For the command: it is the process that computes source lines.
pub(crate) use lines::{answer as answer_source_lines, ARGUMENT as SOURCE_LINES};

/// Files and other objects that contain code; instructions in later ones have no location.
const MAX_MODULES: usize = 1 << 16;
/// The bytes of their paths.
const MAX_PATH_BYTES: usize = 16 << 20;
/// Processes that are kept for each file, to open it through them.
const PIDS: usize = 4;
/// Cached locations of code, as the bits of their number: 40 KiB.
const SPOT_BITS: u32 = 10;
/// Addresses at and above this are the kernel's (Documentation/arch/x86/x86_64/mm.rst).
pub(crate) const KERNEL: u64 = 1 << 63;

/// How long to wait for the names of one file and for its source lines, and when no more files are started.
const FILE_NAMES: Duration = Duration::from_secs(5);
const FILE_LINES: Duration = Duration::from_secs(5);
const ALL_NAMES: Duration = Duration::from_secs(20);

/// The kernel's name, as in perf.
const KERNEL_NAME: &[u8] = b"[kernel.kallsyms]";
const VDSO: &[u8] = b"[vdso]";
/// Executable memory without a file.
const ANONYMOUS: &[u8] = b"[anon]";

/// The identity of an object that contains code.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Kernel,
    Vdso,
    /// Executable memory of one address space, possibly of a JIT compiler.
    Anonymous {
        pid: u32,
        space: u32,
    },
    /// A file as its mapping describes it: device and inode, or the build id, or neither.
    File {
        path: Arc<[u8]>,
        dev: u64,
        ino: u64,
        build_id: Option<BuildId>,
    },
}

impl Key {
    fn of_file(mapping: &Mapping) -> Self {
        let build_id = mapping.build_id.filter(|id| !id.as_bytes().is_empty());
        Self::File { path: Arc::clone(&mapping.path), dev: mapping.dev, ino: mapping.ino, build_id }
    }
}

#[derive(Debug, Clone)]
struct Module {
    key: Key,
    /// Its build id in a recording, besides its mapping.
    build_id: Option<BuildId>,
    /// The last processes that ran its code.
    pids: [u32; PIDS],
    /// False if the address space of anonymous memory had ended at the end.
    is_live: bool,
    /// True if it comes from a recording.
    is_recorded: bool,
}

/// The location of a process's code while its mappings stay the same.
#[derive(Debug, Clone, Copy)]
struct Spot {
    pid: u32,
    module: NonZeroU32,
    /// See [`Maps::changes`].
    changes: u64,
    start: u64,
    end: u64,
    /// Add this to an address to get [`CodeAddr::offset`].
    shift: u64,
}

/// The objects that contain the code of a capture: files, the kernel, the memory of JIT compilers.
#[derive(Debug, Clone, Default)]
pub struct Modules {
    list: Vec<Module>,
    numbers: FxHashMap<Key, NonZeroU32>,
    /// The bytes of their paths.
    path_bytes: usize,
    /// The last results; most samples are at the location of an earlier one.
    spots: Vec<Option<Spot>>,
    /// A symbol of the kernel and its address in the recording; the address changes at each boot.
    kernel: Option<(Box<[u8]>, u64)>,
    unlisted: u64,
    /// The build ids of paths, of a recording that has ended.
    build_ids: Option<Vec<(Vec<u8>, BuildId)>>,
}

impl Modules {
    /// Starts without modules.
    #[doc(hidden)]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The location of the instruction at `ip`, by the current mappings of the process. `None` if no known object is mapped
    /// there, and for guests.
    #[doc(hidden)]
    pub fn locate(&mut self, maps: &mut Maps, pid: u32, mode: CpuMode, ip: u64) -> Option<CodeAddr> {
        if mode == CpuMode::Kernel || ip >= KERNEL {
            let module = self.number(Key::Kernel, 0)?;
            return Some(CodeAddr { module, offset: ip });
        }
        if matches!(mode, CpuMode::Hypervisor | CpuMode::GuestKernel | CpuMode::GuestUser) {
            return None;
        }
        // Fibonacci hashing (Knuth) by process and MiB.
        let place =
            ((u64::from(pid) << 32 ^ ip >> 20).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SPOT_BITS)) as usize;
        let known = self.spots.get(place).copied().flatten();
        let is_there =
            |spot: &Spot| spot.pid == pid && spot.changes == maps.changes() && (spot.start..spot.end).contains(&ip);
        let spot = match known.filter(is_there) {
            Some(spot) => spot,
            None => self.look_up(maps, pid, ip, place)?,
        };
        Some(CodeAddr { module: spot.module, offset: ip.wrapping_add(spot.shift) })
    }

    fn look_up(&mut self, maps: &mut Maps, pid: u32, ip: u64, place: usize) -> Option<Spot> {
        let space = maps.generation(pid);
        let mapping = maps.find(pid, ip).filter(|mapping| mapping.is_executable())?;
        let (start, end, path) = (mapping.start, mapping.end(), &mapping.path);
        // The vdso of 32-bit programs is another one, below 4 GiB; it counts as a file that does not exist.
        let (key, shift) = if &**path == VDSO && start > u32::MAX.into() {
            (Key::Vdso, start.wrapping_neg())
        // "//anon" in a record is an empty path in procfs.
        } else if &**path != VDSO && !path.starts_with(b"/") || path.starts_with(b"//") {
            (Key::Anonymous { pid, space }, 0)
        } else {
            (Key::of_file(mapping), mapping.pgoff.wrapping_sub(start))
        };
        let module = self.number(key, pid)?;
        let spot = Spot { pid, module, changes: maps.changes(), start, end, shift };
        self.spots.resize(1 << SPOT_BITS, None);
        if let Some(kept) = self.spots.get_mut(place) {
            *kept = Some(spot);
        }
        Some(spot)
    }

    /// Where data at `addr` is in the image whose code `mapping` maps, which lies before it: at what would be its offset in the
    /// file if all of that were mapped as the code is.
    pub(crate) fn data(&mut self, pid: u32, mapping: &Mapping, addr: u64) -> Option<CodeAddr> {
        let module = self.number(Key::of_file(mapping), pid)?;
        Some(CodeAddr { module, offset: mapping.pgoff.wrapping_sub(mapping.start).wrapping_add(addr) })
    }

    /// Call this after the last sample: anonymous memory of an address space that has ended cannot be read.
    #[doc(hidden)]
    pub fn finish(&mut self, maps: &Maps) {
        for module in &mut self.list {
            if let Key::Anonymous { pid, space } = module.key {
                module.is_live = maps.has_generation(pid, space);
            }
        }
    }

    /// The same for a recording; its section of build ids gives the build ids of paths. Meanwhile, another process may have the
    /// pid of one that JIT compiled.
    pub(crate) fn finish_recorded(&mut self, build_ids: Vec<(Vec<u8>, BuildId)>) {
        self.build_ids = Some(build_ids);
        self.finish_found();
    }

    /// Call this after modules were found that are in no sample, as those of variables: does nothing but for a recording.
    pub(crate) fn finish_found(&mut self) {
        let Some(build_ids) = &self.build_ids else { return };
        let mut by_path: FxHashMap<&[u8], Vec<BuildId>> = FxHashMap::default();
        for (path, build_id) in build_ids {
            by_path.entry(path).or_default().push(*build_id);
        }
        let mut files: FxHashMap<Vec<u8>, usize> = FxHashMap::default();
        for module in &self.list {
            *files.entry(module.path().to_vec()).or_default() += 1;
        }
        for module in &mut self.list {
            module.is_recorded = true;
            // In containers, several files may have one path: use an entry only if all entries of the path agree on the build
            // id.
            let path = module.path();
            let Some([first, rest @ ..]) = by_path.get(path).map(Vec::as_slice) else { continue };
            let is_of_all = files.get(path).is_some_and(|&files| files <= 1 + rest.len());
            module.build_id = (is_of_all && rest.iter().all(|other| other == first)).then_some(*first);
        }
    }

    /// Takes a recorded mapping of the kernel: perf calls it `[kernel.kallsyms]_text` after a symbol, and stores the symbol's
    /// address as the offset (`perf_event__synthesize_kernel_mmap` in tools/perf/util/synthetic-events.c).
    pub(crate) fn kernel_mapping(&mut self, path: &[u8], address: u64) {
        let symbol = path.strip_prefix(KERNEL_NAME).filter(|symbol| !symbol.is_empty() && address >= KERNEL);
        self.kernel = symbol.map(|symbol| (symbol.into(), address)).or(self.kernel.take());
    }

    /// Instructions in modules beyond the bound.
    #[must_use]
    pub fn unlisted(&self) -> u64 {
        self.unlisted
    }

    /// Its size.
    pub(crate) fn measure(&self, tables: &mut Tables) {
        let list = self.list.capacity() * size_of::<Module>() + self.spots.capacity() * size_of::<Option<Spot>>();
        let (count, room) = (self.numbers.len(), self.numbers.capacity());
        tables.set_map::<(Key, NonZeroU32)>("files with sampled code", count, room, list + self.path_bytes);
    }

    /// The same in a sentence.
    pub(crate) fn left_out(&self) -> Option<String> {
        let unlisted = self.unlisted;
        (unlisted > 0).then(|| {
            format!(
                "the code of {unlisted} accesses has no name: more than {MAX_MODULES} files, or {} MiB of their paths",
                MAX_PATH_BYTES >> 20
            )
        })
    }

    fn number(&mut self, key: Key, pid: u32) -> Option<NonZeroU32> {
        if let Some(&number) = self.numbers.get(&key) {
            if let Some(module) = self.list.get_mut(number.get() as usize - 1) {
                if module.pids.first() != Some(&pid) && !module.pids.contains(&pid) {
                    module.pids.rotate_right(1);
                    module.pids[0] = pid;
                }
            }
            return Some(number);
        }
        let path = if let Key::File { path, .. } = &key { path.len() } else { 0 };
        if self.list.len() >= MAX_MODULES || self.path_bytes + path > MAX_PATH_BYTES {
            self.unlisted += 1;
            return None;
        }
        self.path_bytes += path;
        let mut pids = [0; PIDS];
        pids[0] = pid;
        self.list.push(Module { key: key.clone(), build_id: None, pids, is_live: true, is_recorded: false });
        let number = NonZeroU32::new(self.list.len() as u32)?;
        self.numbers.insert(key, number);
        Some(number)
    }

    fn get(&self, number: NonZeroU32) -> Option<&Module> {
        self.list.get(number.get() as usize - 1)
    }
}

impl Module {
    /// Its name; the path of a file.
    fn path(&self) -> &[u8] {
        match &self.key {
            Key::Kernel => KERNEL_NAME,
            Key::Vdso => VDSO,
            Key::Anonymous { .. } => ANONYMOUS,
            Key::File { path, .. } => path,
        }
    }
}

/// Where to look for names.
#[derive(Debug, Clone, Default)]
pub struct SymbolOptions {
    /// The host.
    pub roots: Roots,
    /// When the capture began, if it was on this host since it booted. `None` for a recording from elsewhere: then a file, the
    /// kernel and the vdso must have the build id of the recording, and code of a JIT compiler is not named.
    pub begin: Option<SystemTime>,
    /// perf's cache of files by their build id, `~/.debug`, if it is to be searched too.
    pub cache: Option<PathBuf>,
    /// The program `scxprof`, which reads debug information in a separate process, if source lines are wanted.
    pub lines: Option<PathBuf>,
}

/// The name of one instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Symbol {
    /// The function, or the variable of data, and the offset from its beginning; `None` if the name is not certain.
    pub function: Option<(Arc<str>, u64)>,
    /// The path of the file, as the process that maps it sees it, any bytes; or `[kernel.kallsyms]`, `[a_module]`, `[vdso]`,
    /// `[anon]`.
    pub dso: Arc<[u8]>,
    /// As in [`CodeAddr::offset`].
    pub offset: u64,
    /// `FILE:LINE` from the debug information, with the path given to the compiler; only with [`SymbolOptions::lines`].
    pub line: Option<String>,
    /// Where `line` is code of a library that was inlined: the line of the innermost function around it that is not.
    pub caller_line: Option<String>,
    /// The functions that were inlined around the instruction, the outermost first; with the same condition.
    pub inlined: Vec<String>,
}

impl fmt::Display for Symbol {
    /// `function+0x12 (libx.so)`, or `libx.so+0x1234` if it has no name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.dso.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let file = printable(file);
        match &self.function {
            Some((name, offset)) => write!(f, "{name}+{offset:#x} ({file})"),
            None => write!(f, "{file}+{:#x}", self.offset),
        }
    }
}

/// The names of instructions.
#[derive(Debug, Clone, Default)]
pub struct Symbols {
    by_code: FxHashMap<CodeAddr, Symbol>,
    unanswered: usize,
    lacks: Vec<(Arc<[u8]>, Lack)>,
}

impl Symbols {
    /// The name of an instruction passed to [`symbolize`].
    #[must_use]
    pub fn get(&self, code: CodeAddr) -> Option<&Symbol> {
        self.by_code.get(&code)
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (CodeAddr, &Symbol)> {
        self.by_code.iter().map(|(&code, symbol)| (code, symbol))
    }

    /// Files and processes without names because they did not answer in time.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// A sentence for each reason why files that were found gave no names or no source lines.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = lack::sentences(&self.lacks);
        if self.unanswered > 0 {
            let unanswered = self.unanswered;
            notes.push(format!("the code of {unanswered} files or processes has no names: reading it took too long"));
        }
        notes
    }

    /// The number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_code.len()
    }

    /// True if there are no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_code.is_empty()
    }
}

/// A name: the function and the offset from its beginning, and the module if it differs from the known one.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    name: String,
    offset: u64,
    dso: Option<Vec<u8>>,
}

/// Names each of `codes` once, one file after the other: the memory for one file's symbols is freed before the next.
///
/// The result grows with the number of different codes, which the caller bounds. It takes at most 25 s: code in files that do
/// not answer in time, or that are not reached by then, has no names.
#[must_use]
pub fn symbolize(modules: &Modules, codes: impl IntoIterator<Item = CodeAddr>, options: &SymbolOptions) -> Symbols {
    let mut offsets: BTreeMap<NonZeroU32, Vec<u64>> = BTreeMap::new();
    for code in codes {
        offsets.entry(code.module).or_default().push(code.offset);
    }
    let mut names: FxHashMap<String, Arc<str>> = FxHashMap::default();
    let mut symbols = Symbols::default();
    let begin = Instant::now();
    for (number, mut offsets) in offsets {
        let Some(module) = modules.get(number) else { continue };
        offsets.sort_unstable();
        offsets.dedup();
        let dso: Arc<[u8]> = match &module.key {
            Key::File { path, .. } => Arc::clone(path),
            _ => module.path().into(),
        };
        let is_stuck = |dev| aside::is_stuck(aside::about(("device", dev)));
        let is_stuck = matches!(module.key, Key::File { dev, .. } if is_stuck(dev));
        let found = if begin.elapsed() < ALL_NAMES && !is_stuck {
            let (kernel, module, offsets, options) =
                (modules.kernel.clone(), module.clone(), offsets.clone(), options.clone());
            let about = aside::about((&module.key, "names"));
            aside::within(about, FILE_NAMES, move || find(kernel.as_ref(), &module, &offsets, &options))
        } else {
            Err(aside::NoAnswer)
        };
        symbols.unanswered += usize::from(found.is_err());
        let (found, debug_info, why) = found.unwrap_or_default();
        symbols.lacks.extend(why.map(|why| (Arc::clone(&dso), why)));
        let mut lines = FxHashMap::default();
        if let (Some(debug_info), Some(program)) = (debug_info, &options.lines) {
            let packing = debug_info.packing;
            let is_in_time = begin.elapsed() < ALL_NAMES;
            match is_in_time.then(|| source_lines(&module.key, program, debug_info)).flatten() {
                Some(found) => lines = found,
                None => symbols.lacks.extend(packing.map(|packing| (Arc::clone(&dso), Lack::Packed(packing)))),
            }
        }
        for (index, offset) in offsets.into_iter().enumerate() {
            let named = found.get(index).and_then(Option::as_ref);
            let function = named.map(|named| {
                let name = names.entry(named.name.clone()).or_insert_with(|| named.name.as_str().into());
                (Arc::clone(name), named.offset)
            });
            let dso = named.and_then(|named| named.dso.as_deref()).map_or_else(|| Arc::clone(&dso), Arc::from);
            let (line, caller_line, inlined) =
                lines.remove(&index).map_or_else(Default::default, |it| (it.source, it.caller, it.inlined));
            let symbol = Symbol { function, dso, offset, line, caller_line, inlined };
            symbols.by_code.insert(CodeAddr { module: number, offset }, symbol);
        }
    }
    symbols
}

/// The lines of the instructions that have one, by their number. `None` if the debug information cannot be read.
fn source_lines(key: &Key, program: &Path, debug_info: DebugInfo) -> Option<FxHashMap<usize, lines::SourceLine>> {
    let DebugInfo { file, addresses, .. } = debug_info;
    let (numbers, addresses): (Vec<usize>, Vec<u64>) =
        addresses.iter().enumerate().filter_map(|(number, &address)| Some((number, address?))).unzip();
    let program = program.to_owned();
    let job = move || lines::ask(&program, &file, &addresses);
    let lines = aside::within(aside::about((key, "lines")), FILE_LINES, job).ok()??;
    Some(numbers.into_iter().zip(lines).filter_map(|(number, line)| Some((number, line?))).collect())
}

/// Names for sorted offsets, in their order, fewer if the rest has none; the location of their debug information; and why a file
/// that is there has none.
fn find(
    kernel_symbol: Option<&(Box<[u8]>, u64)>,
    module: &Module,
    offsets: &[u64],
    options: &SymbolOptions,
) -> (Vec<Option<Named>>, Option<DebugInfo>, Option<Lack>) {
    let SymbolOptions { roots, begin, .. } = options;
    let is_same = |own: Option<BuildId>| own.is_some() && own == module.build_id;
    let (mut debug_info, mut why) = (None, None);
    let names = match (&module.key, begin) {
        (Key::File { path, dev, ino, build_id }, begin) => {
            let build_id = build_id.as_ref().or(module.build_id.as_ref());
            let wanted = file::Wanted { path, dev: *dev, ino: *ino, build_id };
            // For a recording from elsewhere, other processes have these pids.
            let pids = if begin.is_some() { &module.pids[..] } else { &[] };
            let found = file::open_or_why(&wanted, pids, options, &mut why);
            why = why.filter(|_| found.is_none());
            let names = found.as_ref().map(|found| elf::names(found, offsets)).unwrap_or_default();
            debug_info = found.filter(|_| options.lines.is_some()).and_then(|it| elf::debug_info(it, offsets));
            names
        }
        (Key::Kernel, Some(_)) => kernel::names(roots, offsets),
        (Key::Kernel, None) => match kernel_symbol {
            Some((symbol, address)) if is_same(kernel::build_id(roots)) => {
                kernel::names_of_another_boot(roots, offsets, symbol, *address)
            }
            _ => Vec::new(),
        },
        (Key::Vdso, Some(_)) => elf::vdso_names(roots, offsets),
        (Key::Vdso, None) if is_same(elf::vdso_build_id(roots)) => elf::vdso_names(roots, offsets),
        (Key::Anonymous { pid, .. }, Some(begin)) if !module.is_recorded => {
            jit::names(roots, *pid, module.is_live, *begin, offsets)
        }
        (Key::Vdso | Key::Anonymous { .. }, _) => Vec::new(),
    };
    (names, debug_info, why)
}

/// The build ids that a recording needs besides those of files: of the kernel and the vdso, by their names in perf.
pub(crate) fn host_build_ids<'a>(roots: &Roots) -> Vec<(&'a [u8], BuildId)> {
    let known = [(KERNEL_NAME, kernel::build_id(roots)), (VDSO, elf::vdso_build_id(roots))];
    known.into_iter().filter_map(|(name, build_id)| Some((name, build_id?))).collect()
}

/// From `_text` to `_etext`.
pub(crate) fn kernel_code(roots: &Roots) -> Option<std::ops::Range<u64>> {
    let [start, end] = [&b"_text"[..], b"_etext"].map(|symbol| kernel::address_of(roots, symbol));
    start.zip(end).filter(|(start, end)| start < end).map(|(start, end)| start..end)
}

/// The build id of the file that processes mapped at `since`, if it has one and has not changed since then.
pub(crate) fn mapped_build_id(
    roots: &Roots,
    (path, dev, ino): (&[u8], u64, u64),
    pids: &[u32],
    since: SystemTime,
) -> Option<BuildId> {
    let options = SymbolOptions { roots: roots.clone(), begin: Some(since), ..SymbolOptions::default() };
    let (path, pids) = (path.to_vec(), pids.to_vec());
    let build_id = aside::within(aside::about(("device", dev)), aside::SHORT, move || {
        let found = file::open(&file::Wanted { path: &path, dev, ino, build_id: None }, &pids, &options)?;
        file::build_id(&found.elf)
    });
    build_id.ok()?
}

#[cfg(test)]
mod tests;
