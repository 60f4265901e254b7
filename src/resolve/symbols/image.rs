//! The bytes of a module while samples arrive: its file, or the vdso.

use std::fs::File;
use std::num::NonZeroU32;

use super::{elf, file, Key, Modules, SymbolOptions};
use scxprof_elf::{Elf, FrameIndex, ReadAt, UnwindRule};
use scxprof_perf::buildid::BuildId;

/// A module that unwind rules are read from.
#[derive(Debug)]
pub(crate) struct Image {
    elf: Elf,
    bytes: Bytes,
    /// The frame descriptions that are in no search table, with the debug file that has them if it is not itself.
    index: Option<(FrameIndex, Option<(File, Elf)>)>,
}

#[derive(Debug)]
enum Bytes {
    File(File),
    Memory(Vec<u8>),
}

impl ReadAt for &Bytes {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        match self {
            Bytes::File(file) => { file }.read_at(offset, buffer),
            Bytes::Memory(bytes) => { &bytes[..] }.read_at(offset, buffer),
        }
    }
}

/// What is needed to open a module, apart from it.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    key: Key,
    pids: [u32; super::PIDS],
    /// Its build id by the recording's list.
    build_id: Option<BuildId>,
}

impl Modules {
    /// What opens a module; `None` for the kernel, and for memory without a file. `build_id` is that of a path in a recording.
    pub(crate) fn wanted(&self, number: NonZeroU32, build_id: impl FnOnce(&[u8]) -> Option<BuildId>) -> Option<Wanted> {
        let module = self.get(number)?;
        match &module.key {
            Key::Kernel | Key::Anonymous { .. } => None,
            key @ (Key::File { .. } | Key::Vdso) => {
                let build_id = module.build_id.or_else(|| build_id(module.path()));
                Some(Wanted { key: key.clone(), pids: module.pids, build_id })
            }
        }
    }
}

impl Wanted {
    /// For [`crate::host::aside`]: the object that may not answer.
    pub(crate) fn about(&self) -> u64 {
        let device = if let Key::File { dev, .. } = &self.key { *dev } else { 0 };
        crate::host::aside::about(("device", device))
    }

    /// Opens it, if it is what was mapped.
    pub(crate) fn open(&self, options: &SymbolOptions) -> Option<Image> {
        match (&self.key, options.begin) {
            (Key::File { path, dev, ino, build_id }, begin) => {
                let build_id = build_id.as_ref().or(self.build_id.as_ref());
                let wanted = file::Wanted { path, dev: *dev, ino: *ino, build_id };
                // For a recording from elsewhere, other processes have these pids.
                let pids = if begin.is_some() { &self.pids[..] } else { &[] };
                let found = file::open(&wanted, pids, options)?;
                let index = index(&found);
                Some(Image { elf: found.elf, bytes: Bytes::File(found.file), index })
            }
            (Key::Vdso, begin) => {
                let is_same = || {
                    let own = elf::vdso_build_id(&options.roots);
                    own.is_some() && own == self.build_id
                };
                let bytes = elf::vdso(&options.roots).filter(|_| begin.is_some() || is_same())?;
                let elf = Elf::parse(&mut &bytes[..]).ok()?;
                Some(Image { elf, bytes: Bytes::Memory(bytes), index: None })
            }
            (Key::Kernel | Key::Anonymous { .. }, _) => None,
        }
    }
}

/// The frame descriptions that its search table has not, else those of its debug file.
fn index(found: &file::OpenedImage) -> Option<(FrameIndex, Option<(File, Elf)>)> {
    if let Some(index) = found.elf.frame_index(&mut &found.file) {
        return Some((index, None));
    }
    if found.elf.has_frame_table() {
        return None;
    }
    let (file, elf) = elf::debug_file(found)?;
    let index = elf.frame_index(&mut &file)?;
    Some((index, Some((file, elf))))
}

impl Image {
    /// The rule of the instruction at an offset of the file.
    pub(crate) fn unwind_rule(&self, offset: u64) -> Option<UnwindRule> {
        let vaddr = self.elf.vaddr(offset)?;
        let rule = match &self.index {
            Some((index, Some((file, elf)))) => elf.unwind_rule(&mut &*file, Some(index), vaddr),
            Some((index, None)) => self.elf.unwind_rule(&mut &self.bytes, Some(index), vaddr),
            None => self.elf.unwind_rule(&mut &self.bytes, None, vaddr),
        };
        rule.or_else(|| self.elf.signal_return(&mut &self.bytes, offset))
    }

    /// Bytes of memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let index = self.index.as_ref().map_or(0, |(index, _)| index.bytes());
        let memory = if let Bytes::Memory(bytes) = &self.bytes { bytes.len() } else { 0 };
        size_of::<Self>() + index + memory
    }
}
