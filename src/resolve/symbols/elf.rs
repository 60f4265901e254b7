//! Functions of an ELF file: from its own symbol tables, else from those of the debug file that was split off it.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use blazesym::symbolize::source::{Elf as ElfSource, Source};
use blazesym::symbolize::{Input, Reason, Symbolized, Symbolizer};

use super::super::mapping::{parse_line, BuildId};
use super::demangle::demangle;
use super::file::{build_id_name, At, Found};
use super::image::{Image, Symbol, DYNSYM, SYMTAB};
use super::{copy, Named, VDSO};
use crate::elf::ReadAt;
use crate::host::open;
use crate::host::{read, Roots};

/// Where distributions put debug files.
const DEBUG_DIR: &str = "usr/lib/debug";
/// Bytes of a debug file whose checksum is looked at.
const MAX_CHECKED: u64 = 1 << 32;
/// The vdso is two pages; more than this is none.
const MAX_VDSO: u64 = 1 << 20;

/// Names for sorted offsets in the file.
pub(super) fn names(found: &Found, offsets: &[u64], roots: &Roots) -> Vec<Option<Named>> {
    let addresses: Vec<Option<u64>> = offsets.iter().map(|&offset| found.image.address(offset)).collect();
    let mut names = symbols(&found.image, &mut At(&found.file), &addresses, roots);
    if names.iter().zip(&addresses).any(|(name, address)| name.is_none() && address.is_some()) {
        if let Some((debug, image)) = debug_file(found) {
            let more = symbols(&image, &mut At(&debug), &addresses, roots);
            for (name, more) in names.iter_mut().zip(more) {
                if name.is_none() {
                    *name = more;
                }
            }
        }
    }
    names
}

/// Names for sorted offsets in the vdso, which all 64-bit programs of a host have alike: from our own.
pub(super) fn vdso_names(roots: &Roots, offsets: &[u64]) -> Vec<Option<Named>> {
    let Some(vdso) = vdso(roots) else { return Vec::new() };
    let Some(image) = Image::parse(&mut &vdso[..]) else { return Vec::new() };
    let addresses: Vec<Option<u64>> = offsets.iter().map(|&offset| image.address(offset)).collect();
    symbols(&image, &mut &vdso[..], &addresses, roots)
}

/// The build id of this host's vdso.
pub(super) fn vdso_build_id(roots: &Roots) -> Option<BuildId> {
    Image::parse(&mut &vdso(roots)?[..])?.build_id()
}

fn vdso(roots: &Roots) -> Option<Vec<u8>> {
    let own = roots.proc.join("self");
    let maps = read(&own.join("maps")).ok()?;
    let vdso = maps.split(|&byte| byte == b'\n').filter_map(parse_line).find(|mapping| &*mapping.path == VDSO)?;
    let mut image = vec![0; usize::try_from(vdso.len).ok().filter(|&len| len as u64 <= MAX_VDSO)?];
    File::open(own.join("mem")).ok()?.read_exact_at(&mut image, vdso.start).ok()?;
    Some(image)
}

/// What the symbol tables of one file say of addresses, one for each; none where there is no address.
fn symbols(image: &Image, reader: &mut impl ReadAt, addresses: &[Option<u64>], roots: &Roots) -> Vec<Option<Named>> {
    let mut wanted: Vec<u64> = addresses.iter().copied().flatten().collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut nearest = |table| image.nearest(reader, table, &wanted).unwrap_or_default();
    let (symtab, dynsym) = (nearest(SYMTAB), nearest(DYNSYM));
    let found = look_up(&symtab, &dynsym, &wanted, roots).unwrap_or_default();
    let named = |address: &Option<u64>| {
        let index = wanted.binary_search(&(*address)?).ok()?;
        found.get(index)?.clone()
    };
    addresses.iter().map(named).collect()
}

/// The names of addresses among a few symbols.
fn look_up(symtab: &[Symbol], dynsym: &[Symbol], addresses: &[u64], roots: &Roots) -> Option<Vec<Option<Named>>> {
    let file = copy::file(symtab, dynsym).ok()?;
    let builder = Symbolizer::builder().enable_code_info(false).enable_inlined_fns(false);
    let mut source = ElfSource::new(roots.proc.join(format!("self/fd/{}", file.as_raw_fd())));
    source.debug_syms = false;
    let symbolizer = builder.enable_demangling(false).build();
    let symbols = symbolizer.symbolize(&Source::Elf(source), Input::VirtOffset(addresses)).ok()?;
    let named = |symbol: Symbolized<'_>| match symbol {
        Symbolized::Sym(symbol) => {
            Some(Named { name: demangle(&symbol.name), offset: symbol.offset as u64, dso: None })
        }
        Symbolized::Unknown(Reason::MissingSyms | _) => None,
    };
    Some(symbols.into_iter().map(named).collect())
}

/// The file with the symbols that were stripped off: by build id, else by `.gnu_debuglink` where its checksum is right
/// (gdb's manual, "Debugging Information in Separate Files").
fn debug_file(found: &Found) -> Option<(File, Image)> {
    let build_id = found.image.build_id();
    let open = |(root, path): (&PathBuf, PathBuf)| {
        let file = open::regular_inside(root, &path).ok()?;
        let image = Image::parse(&mut At(&file))?;
        Some((file, image))
    };
    let is_same = |(_, image): &(File, Image)| build_id.is_some() && image.build_id() == build_id;
    let debug_dir = Path::new(DEBUG_DIR);
    if let Some(name) = build_id.as_ref().and_then(build_id_name) {
        let path = debug_dir.join(format!(".build-id/{name}.debug"));
        if let Some(debug) = found.roots.iter().filter_map(|root| open((root, path.clone()))).find(is_same) {
            return Some(debug);
        }
    }
    let (name, checksum) = found.image.debug_link(&mut At(&found.file))?;
    let name = Path::new(std::ffi::OsStr::from_bytes(&name));
    // A name alone, no way out of the directory.
    if name.components().count() != 1 || name.file_name().is_none() {
        return None;
    }
    let dir = found.path.parent()?.strip_prefix("/").ok()?;
    let beside = |root| [(root, dir.join(name)), (root, dir.join(".debug").join(name))];
    let below = found.roots.iter().map(|root| (root, debug_dir.join(dir).join(name)));
    let candidates = found.roots.iter().flat_map(beside).chain(below);
    candidates.filter_map(open).find(|debug| match build_id {
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
