//! Names of code. While samples pass by, [`Modules`] keeps in which file each instruction lies; at the end [`symbolize`] names
//! each once.
//!
//! What cannot be named for sure is left as file and offset: a file is only read where it is the one that was mapped, by its
//! build id, or by device and inode where it did not change since the capture began.

mod elf;
mod file;
mod jit;
mod kernel;

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::SystemTime;

use rustc_hash::FxHashMap;

use super::mapping::BuildId;
use super::{Mapping, Maps, Roots};
use crate::sample::{printable, CodeAddr, CpuMode};

/// Files and other things that hold code, beyond which instructions stay without a place.
const MAX_MODULES: usize = 1 << 16;
/// Processes that are remembered for each file, to find it through.
const PIDS: usize = 4;
/// Addresses at and above this are the kernel's (Documentation/arch/x86/x86_64/mm.rst).
const KERNEL: u64 = 1 << 63;

/// What the kernel is called, as perf calls it.
const KERNEL_NAME: &[u8] = b"[kernel.kallsyms]";
const VDSO: &[u8] = b"[vdso]";
/// Executable memory without a file.
const ANONYMOUS: &[u8] = b"[anon]";

/// What holds code, as it is told apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Kernel,
    Vdso,
    /// Executable memory of one address space, which a JIT compiler may have filled.
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

#[derive(Debug, Clone)]
struct Module {
    key: Key,
    /// The last processes that ran its code.
    pids: [u32; PIDS],
    /// False where the address space of anonymous memory was gone at the end.
    is_live: bool,
    /// True where it was not seen just now.
    is_recorded: bool,
}

/// What a file's mapping was known by; its path by where it is kept, since each is kept once.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Last {
    space: u32,
    path: usize,
    dev: u64,
    ino: u64,
    build_id: Option<BuildId>,
}

/// What the code of a capture is in: files, the kernel, the memory of JIT compilers.
#[derive(Debug, Clone, Default)]
pub struct Modules {
    list: Vec<Module>,
    numbers: FxHashMap<Key, NonZeroU32>,
    /// The last answer, as most samples of a program are in one file.
    last: Option<(Last, NonZeroU32)>,
    unlisted: u64,
}

impl Modules {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Where the instruction at `ip` is, by the mappings that the process has now. `None` where nothing that is known is
    /// mapped there, and for guests.
    pub fn locate(&mut self, maps: &mut Maps, pid: u32, mode: CpuMode, ip: u64) -> Option<CodeAddr> {
        if mode == CpuMode::Kernel || ip >= KERNEL {
            let module = self.number(Key::Kernel, 0)?;
            return Some(CodeAddr { module, offset: ip });
        }
        if matches!(mode, CpuMode::Hypervisor | CpuMode::GuestKernel | CpuMode::GuestUser) {
            return None;
        }
        let space = maps.generation(pid);
        let mapping = maps.find(pid, ip).filter(|mapping| mapping.is_executable())?;
        let offset = ip - mapping.start;
        if &*mapping.path == VDSO {
            return Some(CodeAddr { module: self.number(Key::Vdso, pid)?, offset });
        }
        // "//anon" is what a record says where procfs says nothing.
        if !mapping.path.starts_with(b"/") || mapping.path.starts_with(b"//") {
            return Some(CodeAddr { module: self.number(Key::Anonymous { pid, space }, pid)?, offset: ip });
        }
        let offset = mapping.pgoff.wrapping_add(offset);
        let Mapping { dev, ino, build_id, .. } = *mapping;
        let last = Last { space, path: mapping.path.as_ptr() as usize, dev, ino, build_id };
        if let Some((_, module)) = self.last.as_ref().filter(|(known, _)| *known == last) {
            return Some(CodeAddr { module: *module, offset });
        }
        let build_id = build_id.filter(|id| !id.as_bytes().is_empty());
        let module = self.number(Key::File { path: Arc::clone(&mapping.path), dev, ino, build_id }, pid)?;
        self.last = Some((last, module));
        Some(CodeAddr { module, offset })
    }

    /// To be called when the last sample has passed: anonymous memory whose address space is gone cannot be asked about.
    pub fn finish(&mut self, maps: &Maps) {
        for module in &mut self.list {
            if let Key::Anonymous { pid, space } = module.key {
                module.is_live = maps.has_generation(pid, space);
            }
        }
    }

    /// The same for what comes from a recording: by now, the pid of a process that JIT compiled may be another's.
    pub fn finish_recorded(&mut self) {
        for module in &mut self.list {
            module.is_recorded = true;
        }
    }

    /// Instructions that were in more modules than are remembered.
    #[must_use]
    pub fn unlisted(&self) -> u64 {
        self.unlisted
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
        if self.list.len() >= MAX_MODULES {
            self.unlisted += 1;
            return None;
        }
        let mut pids = [0; PIDS];
        pids[0] = pid;
        self.list.push(Module { key: key.clone(), pids, is_live: true, is_recorded: false });
        let number = NonZeroU32::new(self.list.len() as u32)?;
        self.numbers.insert(key, number);
        Some(number)
    }

    fn get(&self, number: NonZeroU32) -> Option<&Module> {
        self.list.get(number.get() as usize - 1)
    }
}

/// Where names are looked for.
#[derive(Debug, Clone, Default)]
pub struct SymbolOptions {
    /// The host.
    pub roots: Roots,
    /// When the capture began, where it was on this host since it booted. `None` for a recording from elsewhere: then a file
    /// must have the build id of the recording, and the kernel, the vdso and what a JIT compiler wrote are not named.
    pub begin: Option<SystemTime>,
}

/// One instruction's name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Symbol {
    /// The function with the bytes from its beginning; `None` where it cannot be named for sure.
    pub function: Option<(Arc<str>, u64)>,
    /// The path of the file, as the process that maps it has it, any bytes; or `[kernel.kallsyms]`, `[a_module]`, `[vdso]`,
    /// `[anon]`.
    pub dso: Arc<[u8]>,
    /// As in [`CodeAddr::offset`].
    pub offset: u64,
}

impl fmt::Display for Symbol {
    /// `function+0x12 (libx.so)`, or `libx.so+0x1234` where it has no name.
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
}

impl Symbols {
    /// The name of an instruction that was given to [`symbolize`].
    #[must_use]
    pub fn get(&self, code: CodeAddr) -> Option<&Symbol> {
        self.by_code.get(&code)
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (CodeAddr, &Symbol)> {
        self.by_code.iter().map(|(&code, symbol)| (code, symbol))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_code.len()
    }

    /// True where nothing was named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_code.is_empty()
    }
}

/// A name that was found: the function and the bytes from its beginning, and the module where it differs from what is known.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    name: String,
    offset: u64,
    dso: Option<Vec<u8>>,
}

/// Names each of `codes` once, a file after the other: the memory for one file's symbols is given back before the next.
///
/// What the result takes is in proportion to the number of different codes, which the caller bounds.
#[must_use]
pub fn symbolize(modules: &Modules, codes: impl IntoIterator<Item = CodeAddr>, options: &SymbolOptions) -> Symbols {
    let mut offsets: BTreeMap<NonZeroU32, Vec<u64>> = BTreeMap::new();
    for code in codes {
        offsets.entry(code.module).or_default().push(code.offset);
    }
    let mut names: FxHashMap<String, Arc<str>> = FxHashMap::default();
    let mut symbols = Symbols::default();
    for (number, mut offsets) in offsets {
        let Some(module) = modules.get(number) else { continue };
        offsets.sort_unstable();
        offsets.dedup();
        let dso: Arc<[u8]> = match &module.key {
            Key::Kernel => KERNEL_NAME.into(),
            Key::Vdso => VDSO.into(),
            Key::Anonymous { .. } => ANONYMOUS.into(),
            Key::File { path, .. } => Arc::clone(path),
        };
        let found = find(module, &offsets, options);
        for (index, offset) in offsets.into_iter().enumerate() {
            let named = found.get(index).and_then(Option::as_ref);
            let function = named.map(|named| {
                let name = names.entry(named.name.clone()).or_insert_with(|| named.name.as_str().into());
                (Arc::clone(name), named.offset)
            });
            let dso = named.and_then(|named| named.dso.as_deref()).map_or_else(|| Arc::clone(&dso), Arc::from);
            symbols.by_code.insert(CodeAddr { module: number, offset }, Symbol { function, dso, offset });
        }
    }
    symbols
}

/// Names for sorted offsets, in their order; fewer where the rest has none.
fn find(module: &Module, offsets: &[u64], options: &SymbolOptions) -> Vec<Option<Named>> {
    match (&module.key, options.begin) {
        (Key::File { path, dev, ino, build_id }, begin) => {
            let wanted = file::Wanted { path, dev: *dev, ino: *ino, build_id: build_id.as_ref() };
            // Of a recording from elsewhere, these are the numbers of others.
            let pids = if begin.is_some() { &module.pids[..] } else { &[] };
            file::open(&wanted, pids, &options.roots, begin)
                .map(|found| elf::names(&found, offsets, &options.roots))
                .unwrap_or_default()
        }
        (Key::Kernel, Some(_)) => kernel::names(&options.roots, offsets),
        (Key::Vdso, Some(_)) => elf::vdso_names(&options.roots, offsets),
        (Key::Anonymous { .. }, Some(_)) if module.is_recorded => Vec::new(),
        (Key::Anonymous { pid, .. }, Some(begin)) => jit::names(&options.roots, *pid, module.is_live, begin, offsets),
        (_, None) => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
