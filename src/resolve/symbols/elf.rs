//! Functions of an ELF file: from its own symbol tables, else from those of its separate debug file.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::super::mapping::parse_line;
use super::demangle::demangle;
use super::file::{build_id, build_id_name, OpenedImage};
use super::{Named, VDSO};
use crate::host::{open, read, Roots};
use scxprof_elf::{Elf, Packing, ReadAt, Symbol};
use scxprof_perf::buildid::BuildId;

/// The directory of debug files in distributions.
const DEBUG_DIR: &str = "usr/lib/debug";
/// Debug files up to this many bytes are checked by their checksum.
const MAX_CHECKED: u64 = 1 << 32;
/// The vdso is two pages; a larger object is not the vdso.
const MAX_VDSO: u64 = 1 << 20;

/// Names for sorted offsets in the file: of code, and of data (see [`super::Modules::data`]) the variable, else its section.
pub(super) fn names(found: &OpenedImage, offsets: &[u64]) -> Vec<Option<Named>> {
    let code: Vec<Option<u64>> = offsets.iter().map(|&offset| found.elf.vaddr(offset)).collect();
    let is_data = |(&offset, code): (&u64, &Option<u64>)| match code {
        Some(_) => None,
        None => found.elf.data_vaddr(offset),
    };
    let data: Vec<Option<u64>> = offsets.iter().zip(&code).map(is_data).collect();
    let mut names = symbols(&found.elf, &mut &found.file, &code, &data);
    let is_known =
        names.iter().zip(code.iter().zip(&data)).all(|(name, at)| name.is_some() || at.0.is_none() && at.1.is_none());
    if !is_known {
        let debug = debug_file(found);
        let more = debug.map(|(debug, elf)| symbols(&elf, &mut &debug, &code, &data)).unwrap_or_default();
        for (name, more) in names.iter_mut().zip(more) {
            *name = name.take().or(more);
        }
        for (name, &address) in names.iter_mut().zip(&data) {
            let section = || found.elf.section_at(&mut &found.file, address?);
            *name = name.take().or_else(|| named(section(), address));
        }
    }
    names
}

fn named(symbol: Option<Symbol>, address: Option<u64>) -> Option<Named> {
    let (symbol, address) = (symbol?, address?);
    Some(Named { name: demangle(&symbol.name), offset: address.checked_sub(symbol.start)?, dso: None })
}

/// A file with debug information, and how that is compressed.
#[derive(Debug)]
pub(super) struct DebugInfo {
    pub file: File,
    /// Those of the instructions in it.
    pub addresses: Vec<Option<u64>>,
    pub packing: Option<Packing>,
}

/// The file with the debug information of code at these offsets, and their addresses in it.
pub(super) fn debug_info(found: OpenedImage, offsets: &[u64]) -> Option<DebugInfo> {
    let addresses = offsets.iter().map(|&offset| found.elf.vaddr(offset)).collect();
    if found.elf.has_debug_info(&mut &found.file) {
        let packing = found.elf.packing(&mut &found.file);
        return Some(DebugInfo { file: found.file, addresses, packing });
    }
    let (file, elf) = debug_file(&found)?;
    let packing = elf.packing(&mut &file);
    elf.has_debug_info(&mut &file).then_some(DebugInfo { file, addresses, packing })
}

/// Names for sorted offsets in the vdso. All 64-bit programs of a host have the same one, so our own is read.
pub(super) fn vdso_names(roots: &Roots, offsets: &[u64]) -> Vec<Option<Named>> {
    let Some(vdso) = vdso(roots) else { return Vec::new() };
    let Ok(elf) = Elf::parse(&mut &vdso[..]) else { return Vec::new() };
    let addresses: Vec<Option<u64>> = offsets.iter().map(|&offset| elf.vaddr(offset)).collect();
    symbols(&elf, &mut &vdso[..], &addresses, &[])
}

/// The build id of this host's vdso.
pub(super) fn vdso_build_id(roots: &Roots) -> Option<BuildId> {
    build_id(&Elf::parse(&mut &vdso(roots)?[..]).ok()?)
}

pub(super) fn vdso(roots: &Roots) -> Option<Vec<u8>> {
    let own = roots.proc.join("self");
    let maps = read(&own.join("maps")).ok()?;
    let vdso = maps.split(|&byte| byte == b'\n').filter_map(parse_line).find(|mapping| &*mapping.path == VDSO)?;
    let mut image = vec![0; usize::try_from(vdso.len).ok().filter(|&len| len as u64 <= MAX_VDSO)?];
    File::open(own.join("mem")).ok()?.read_exact_at(&mut image, vdso.start).ok()?;
    Some(image)
}

/// What the symbol tables of one file say of addresses of code, and where there is none of data; one for each of code's.
fn symbols(elf: &Elf, reader: &mut impl ReadAt, code: &[Option<u64>], data: &[Option<u64>]) -> Vec<Option<Named>> {
    let sorted = |addresses: &[Option<u64>]| {
        let mut wanted: Vec<u64> = addresses.iter().copied().flatten().collect();
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    };
    let mut names = vec![None; code.len()];
    for (addresses, is_code) in [(code, true), (data, false)] {
        let wanted = sorted(addresses);
        if wanted.is_empty() {
            continue;
        }
        let found = if is_code { elf.functions(reader, &wanted) } else { elf.variables(reader, &wanted) };
        for (name, &address) in names.iter_mut().zip(addresses) {
            let at = address.and_then(|address| wanted.binary_search(&address).ok());
            let symbol = at.and_then(|at| found.get(at)).cloned().flatten();
            *name = name.take().or_else(|| named(symbol, address));
        }
    }
    names
}

/// The file with the stripped symbols: by build id, else by `.gnu_debuglink` if its checksum is right (gdb's manual, "Debugging
/// Information in Separate Files").
pub(super) fn debug_file(found: &OpenedImage) -> Option<(File, Elf)> {
    let id = build_id(&found.elf);
    let open = |(root, path): (&PathBuf, PathBuf)| {
        let file = open::regular_inside(root, &path).ok()?;
        let elf = Elf::parse(&mut &file).ok()?;
        Some((file, elf))
    };
    let is_same = |(_, elf): &(File, Elf)| id.is_some() && build_id(elf) == id;
    let debug_dir = Path::new(DEBUG_DIR);
    if let Some(name) = id.as_ref().and_then(build_id_name) {
        let path = debug_dir.join(format!(".build-id/{name}.debug"));
        if let Some(debug) = found.roots.iter().filter_map(|root| open((root, path.clone()))).find(is_same) {
            return Some(debug);
        }
    }
    let (name, checksum) = found.elf.debug_link(&mut &found.file)?;
    let name = Path::new(std::ffi::OsStr::from_bytes(&name));
    // Only a name, no way out of the directory.
    if name.components().count() != 1 || name.file_name().is_none() {
        return None;
    }
    let dir = found.path.parent()?.strip_prefix("/").ok()?;
    let beside = |root| [(root, dir.join(name)), (root, dir.join(".debug").join(name))];
    let below = found.roots.iter().map(|root| (root, debug_dir.join(dir).join(name)));
    let candidates = found.roots.iter().flat_map(beside).chain(below);
    candidates.filter_map(open).find(|debug| match id {
        Some(_) => is_same(debug),
        None => crc32(&debug.0) == Some(checksum),
    })
}

fn crc32(mut file: &File) -> Option<u32> {
    if file.metadata().ok()?.len() > MAX_CHECKED {
        return None;
    }
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
