//! Opens the file that was mapped: through a process that still maps it, else by its path, and only if it is the same.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::super::maps::check::read_lines;
use super::super::Mapping;
use super::lack::Lack;
use super::SymbolOptions;
use crate::host::open;
use crate::host::Roots;
use scxprof_elf::Elf;
use scxprof_perf::buildid::BuildId;

/// Mappings of one process that are searched.
const MAX_MAPPED: usize = 8;
/// Directories in which distributions link files by build id: Fedora since 27, and before.
const BY_BUILD_ID: [&str; 2] = ["usr/lib/.build-id", "usr/lib/debug/.build-id"];

/// The file that a mapping described.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub path: &'a [u8],
    /// 0, as is `ino`, if the mapping had its build id instead.
    pub dev: u64,
    pub ino: u64,
    pub build_id: Option<&'a BuildId>,
}

/// The file that was found.
#[derive(Debug)]
pub(super) struct OpenedImage {
    pub file: File,
    /// Its headers.
    pub elf: Elf,
    /// Its path as its process sees it.
    pub path: PathBuf,
    /// The roots that may contain its path, for files that belong to it.
    pub roots: Vec<PathBuf>,
}

/// The build id that a file contains.
pub(super) fn build_id(elf: &Elf) -> Option<BuildId> {
    elf.build_id().map(BuildId::new)
}

/// Opens the file. `pids` are processes that may still map it.
pub(super) fn open(wanted: &Wanted<'_>, pids: &[u32], options: &SymbolOptions) -> Option<OpenedImage> {
    open_or_why(wanted, pids, options, &mut None)
}

/// The same; `why` is set to the reason if the file at its path may be another one.
pub(super) fn open_or_why(
    wanted: &Wanted<'_>,
    pids: &[u32],
    options: &SymbolOptions,
    why: &mut Option<Lack>,
) -> Option<OpenedImage> {
    let SymbolOptions { roots, begin, .. } = options;
    let pids = || pids.iter().filter(|&&pid| pid != 0);
    let relative = Path::new(OsStr::from_bytes(wanted.path)).strip_prefix("/").ok()?.to_owned();
    // A deleted file may exist again, as the same build.
    let again = Path::new(OsStr::from_bytes(undeleted(wanted.path))).strip_prefix("/").ok()?.to_owned();
    // Links of a container stay within it.
    let by_path = |base: &PathBuf, path: &Path| Some((open::regular_inside(base, path).ok()?, false));
    let mut bases: Vec<PathBuf> = pids().map(|pid| roots.proc.join(format!("{pid}/root"))).collect();
    bases.push(roots.files.clone());
    let mapped = pids().flat_map(|&pid| still_mapped(wanted, pid, roots)).map(|file| (file, true));
    let by_path = bases.iter().flat_map(|base| [by_path(base, &relative), by_path(base, &again)]).flatten();
    let by_id = wanted.build_id.into_iter().flat_map(|id| by_build_id(id, options));
    let opened = |path: PathBuf| Some((open::regular(&path).ok()?, false));
    let candidates = by_path.chain(mapped).chain(by_id.filter_map(opened));
    let (file, elf) = candidates.into_iter().find_map(|(file, is_mapped)| {
        let elf = Elf::parse(&mut &file).ok()?;
        match is_wanted(wanted, &file, &elf, is_mapped, *begin) {
            Ok(()) => Some((file, elf)),
            Err(lack) => {
                // That it was changed says more than that another one has its path somewhere else.
                *why = [*why, lack].into_iter().flatten().min();
                None
            }
        }
    })?;
    Some(OpenedImage { file, elf, path: Path::new("/").join(relative), roots: bases })
}

/// The files of a process's mappings that may be it, whatever their paths are now. Only root may follow these links (proc(5)).
///
/// Paths depend on the root directory, so only the last part of the path is compared.
fn still_mapped(wanted: &Wanted<'_>, pid: u32, roots: &Roots) -> Vec<File> {
    let process = roots.proc.join(pid.to_string());
    let may_be = |mapping: &Mapping| {
        let same = match wanted.ino {
            0 => file_name(&mapping.path) == file_name(wanted.path),
            ino => (mapping.dev, mapping.ino) == (wanted.dev, ino),
        };
        mapping.is_executable() && same
    };
    let mut mappings = Vec::new();
    let _ = read_lines(&process.join("maps"), |mapping| {
        if mappings.len() < MAX_MAPPED && may_be(&mapping) {
            mappings.push(mapping);
        }
    });
    mappings.iter().filter_map(|mapping| open::mapped(&process, mapping.start, mapping.end()).ok()).collect()
}

fn file_name(path: &[u8]) -> &[u8] {
    undeleted(path).rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

fn undeleted(path: &[u8]) -> &[u8] {
    path.strip_suffix(b" (deleted)").unwrap_or(path)
}

/// The files that may have this build id, by its name alone.
fn by_build_id(build_id: &BuildId, options: &SymbolOptions) -> Vec<PathBuf> {
    let Some(name) = build_id_name(build_id) else { return Vec::new() };
    let links = BY_BUILD_ID.iter().map(|dir| options.roots.files.join(dir).join(&name));
    // One directory per file (build_id_cache__linkname in tools/perf/util/build-id.c).
    let cached = options.cache.iter().map(|cache| cache.join(".build-id").join(&name).join("elf"));
    links.chain(cached).collect()
}

/// `ab/cdef...`, as in directories of build ids; `None` for fewer than two bytes.
pub(super) fn build_id_name(build_id: &BuildId) -> Option<String> {
    let (first, rest) = build_id.as_bytes().split_first().filter(|(_, rest)| !rest.is_empty())?;
    let hex: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("{first:02x}/{hex}"))
}

/// Ok if the file contains what was mapped. An equal build id proves it; without one the file must not have been written
/// since the capture began and, if it was found by its path, must not have been replaced.
fn is_wanted(
    wanted: &Wanted<'_>,
    file: &File,
    elf: &Elf,
    is_mapped: bool,
    begin: Option<SystemTime>,
) -> Result<(), Option<Lack>> {
    if wanted.build_id.is_some() {
        return if build_id(elf).as_ref() == wanted.build_id { Ok(()) } else { Err(None) };
    }
    let begin = begin.ok_or(Some(Lack::Foreign))?;
    let metadata = file.metadata().map_err(|_| None)?;
    let same_inode = is_mapped || (metadata.dev(), metadata.ino()) == (wanted.dev, wanted.ino);
    // Removing a name changes the inode's time too, which does not matter to processes that map it.
    let changed = if is_mapped { modified(&metadata) } else { modified(&metadata).max(inode_changed(&metadata)) };
    match changed {
        _ if wanted.ino == 0 || !same_inode => Err(Some(Lack::Replaced)),
        Some(changed) if changed <= begin => Ok(()),
        _ => Err(Some(Lack::Changed)),
    }
}

fn modified(metadata: &Metadata) -> Option<SystemTime> {
    metadata.modified().ok()
}

fn inode_changed(metadata: &Metadata) -> Option<SystemTime> {
    let since = Duration::new(metadata.ctime().try_into().ok()?, metadata.ctime_nsec().try_into().ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}
