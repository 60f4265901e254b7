//! Functions of an ELF file: from its own symbol tables, else from those of the debug file that was split off it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use blazesym::symbolize::source::{Elf as ElfSource, Source};
use blazesym::symbolize::{Input, Reason, Symbolized, Symbolizer};

use super::super::mapping::{parse_line, BuildId};
use super::super::{read, Roots};
use super::file::{build_id_name, open_regular, At, Found};
use super::{Named, VDSO};
use crate::sampler::operand::elf::{Elf, ReadAt};

/// Where distributions put debug files.
const DEBUG_DIR: &str = "usr/lib/debug";
/// Sections beyond this many are not looked at.
const MAX_SECTIONS: u16 = 4096;
/// The vdso is two pages; more than this is none.
const MAX_VDSO: u64 = 1 << 20;

/// Names for offsets in the file.
pub(super) fn names(found: &Found, offsets: &[u64], roots: &Roots) -> Vec<Option<Named>> {
    let addresses: Option<Vec<Option<u64>>> =
        found.elf.as_ref().map(|elf| offsets.iter().map(|&offset| elf.vaddr(offset)).collect());
    let Some(addresses) = addresses else {
        // Not x86-64: as the symbol reader sees it.
        return symbols(&found.file, Input::FileOffset(offsets), roots);
    };
    // What is in no segment of code has no address: 0, which is no function's, stands for it.
    let plain: Vec<u64> = addresses.iter().map(|address| address.unwrap_or(0)).collect();
    let mut names = symbols(&found.file, Input::VirtOffset(&plain), roots);
    names.resize(offsets.len(), None);
    if names.iter().any(Option::is_none) {
        if let Some(debug) = debug_file(found) {
            let more = symbols(&debug, Input::VirtOffset(&plain), roots);
            for (name, more) in names.iter_mut().zip(more) {
                if name.is_none() {
                    *name = more;
                }
            }
        }
    }
    for (name, address) in names.iter_mut().zip(addresses) {
        if address.is_none() {
            *name = None;
        }
    }
    names
}

/// Names for offsets in the vdso, which all 64-bit programs of a host have alike: from our own.
pub(super) fn vdso_names(roots: &Roots, offsets: &[u64]) -> Vec<Option<Named>> {
    let image = || {
        let mut file = tempfile::tempfile().ok()?;
        file.write_all(&vdso(roots)?).ok()?;
        file.seek(SeekFrom::Start(0)).ok()?;
        Some(file)
    };
    let Some(file) = image() else { return Vec::new() };
    symbols(&file, Input::FileOffset(offsets), roots)
}

/// The build id of this host's vdso.
pub(super) fn vdso_build_id(roots: &Roots) -> Option<BuildId> {
    Elf::parse(&mut &vdso(roots)?[..]).ok()?.build_id().map(BuildId::new)
}

fn vdso(roots: &Roots) -> Option<Vec<u8>> {
    let own = roots.proc.join("self");
    let maps = read(&own.join("maps")).ok()?;
    let vdso = maps.split(|&byte| byte == b'\n').filter_map(parse_line).find(|mapping| &*mapping.path == VDSO)?;
    let mut image = vec![0; usize::try_from(vdso.len).ok().filter(|&len| len as u64 <= MAX_VDSO)?];
    File::open(own.join("mem")).ok()?.read_exact_at(&mut image, vdso.start).ok()?;
    Some(image)
}

/// What the symbol tables of one file say; the memory for them is given back.
fn symbols(file: &File, input: Input<&[u64]>, roots: &Roots) -> Vec<Option<Named>> {
    let symbolizer = Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false).build();
    let mut source = ElfSource::new(roots.proc.join(format!("self/fd/{}", file.as_raw_fd())));
    source.debug_syms = false;
    let Ok(symbols) = symbolizer.symbolize(&Source::Elf(source), input) else { return Vec::new() };
    let named = |symbol: Symbolized<'_>| match symbol {
        // A symbol without a size ends nobody knows where: what follows it may be a stub or code without a symbol.
        Symbolized::Sym(symbol) if symbol.size.is_some_and(|size| symbol.offset < size) => {
            Some(Named { name: symbol.name.into_owned(), offset: symbol.offset as u64, dso: None })
        }
        Symbolized::Sym(_) | Symbolized::Unknown(Reason::MissingSyms | _) => None,
    };
    symbols.into_iter().map(named).collect()
}

/// The file with the symbols that were stripped off: by build id, else by `.gnu_debuglink` where its checksum is right
/// (gdb's manual, "Debugging Information in Separate Files").
fn debug_file(found: &Found) -> Option<File> {
    let build_id = found.elf.as_ref()?.build_id();
    let debug_dirs = || found.roots.iter().map(|root| root.join(DEBUG_DIR));
    if let Some(name) = build_id.and_then(build_id_name) {
        let name = format!(".build-id/{name}.debug");
        let mut files = debug_dirs().filter_map(|dir| open_regular(&dir.join(&name)).ok());
        if let Some(file) = files.find(|file| has_build_id(file, build_id)) {
            return Some(file);
        }
    }
    let (name, checksum) = debug_link(&mut At(&found.file))?;
    let name = Path::new(std::ffi::OsStr::from_bytes(&name));
    // A name alone, no way out of the directory.
    if name.components().count() != 1 || name.file_name().is_none() {
        return None;
    }
    let dir = found.path.parent()?.strip_prefix("/").ok()?;
    let beside = |root: &PathBuf| {
        let dir = root.join(dir);
        [dir.join(name), dir.join(".debug").join(name)]
    };
    let below = debug_dirs().map(|debug| debug.join(dir).join(name));
    let candidates = found.roots.iter().flat_map(beside).chain(below);
    candidates.filter_map(|path| open_regular(&path).ok()).find(|file| match build_id {
        Some(_) => has_build_id(file, build_id),
        None => crc32(file) == Some(checksum),
    })
}

fn has_build_id(file: &File, build_id: Option<&[u8]>) -> bool {
    let elf = Elf::parse(&mut At(file)).ok();
    let own = elf.as_ref().and_then(Elf::build_id);
    own.is_some() && own.map(BuildId::new) == build_id.map(BuildId::new)
}

fn crc32(mut file: &File) -> Option<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Some(hasher.finalize()),
            Ok(count) => hasher.update(buffer.get(..count)?),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// Name and checksum from the section `.gnu_debuglink`.
fn debug_link(reader: &mut impl ReadAt) -> Option<(Vec<u8>, u32)> {
    // Elf64_Ehdr and Elf64_Shdr (elf.h).
    let header: [u8; 64] = reader.array(0)?;
    let start = u64::from_le_bytes(header.get(40..48)?.try_into().ok()?);
    let half = |at: usize| Some(u16::from_le_bytes(header.get(at..at + 2)?.try_into().ok()?));
    let (size, count, names) = (half(58)?, half(60)?.min(MAX_SECTIONS), half(62)?);
    if size != 64 {
        return None;
    }
    let mut section = |index: u16| -> Option<(u32, u64, u64)> {
        let section: [u8; 64] = reader.array(start.checked_add(u64::from(index) * 64)?)?;
        let word = |at: usize| Some(u64::from_le_bytes(section.get(at..at + 8)?.try_into().ok()?));
        Some((u32::from_le_bytes(section.get(..4)?.try_into().ok()?), word(24)?, word(32)?))
    };
    let (_, names, _) = section(names)?;
    let sections: Vec<_> = (0..count).map_while(section).collect();
    let (_, offset, size) = sections.into_iter().find(|&(name, ..)| {
        let wanted = b".gnu_debuglink\0";
        names.checked_add(name.into()).and_then(|at| reader.array(at)).is_some_and(|found: [u8; 15]| found == *wanted)
    })?;
    // A file's name, zeros up to a multiple of 4, the checksum.
    let mut bytes = vec![0; usize::try_from(size).ok().filter(|size| (8..=4096).contains(size))?];
    reader.read_at(offset, &mut bytes)?;
    let (name, checksum) = bytes.split_at(bytes.len() - 4);
    let name = name.split(|&byte| byte == 0).next().filter(|name| !name.is_empty())?;
    Some((name.to_owned(), u32::from_le_bytes(checksum.try_into().ok()?)))
}
