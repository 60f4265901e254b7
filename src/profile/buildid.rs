//! The section of build ids: which file was which build, so that symbols can be found later and elsewhere.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::sampler::operand::elf::Elf;

/// `PERF_RECORD_MISC_USER`.
const MISC_USER: u16 = 2;
/// The size of the id is said behind it (`PERF_RECORD_MISC_BUILD_ID_SIZE`).
const MISC_BUILD_ID_SIZE: u16 = 1 << 15;
/// Bytes that an id may have.
const MAX_ID: usize = 20;
/// Of whom the mapping is: of nobody in particular.
const ANY_PID: i32 = -1;
const NAME_ALIGN: usize = 64;

/// One entry a file that has a build id (struct perf_record_header_build_id).
pub(super) fn section<'a>(files: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut files: Vec<&[u8]> = files.collect();
    files.sort_unstable();
    let mut bytes = Vec::new();
    for path in files {
        let Some(id) = build_id(Path::new(OsStr::from_bytes(path))) else { continue };
        let name = (path.len() + 1).next_multiple_of(NAME_ALIGN);
        let Ok(size) = u16::try_from(36 + name) else { continue };
        // The type is not used.
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(&(MISC_USER | MISC_BUILD_ID_SIZE).to_ne_bytes());
        bytes.extend_from_slice(&size.to_ne_bytes());
        bytes.extend_from_slice(&ANY_PID.to_ne_bytes());
        let mut field = [0; 24];
        for (to, &from) in field.iter_mut().zip(id.iter().take(MAX_ID)) {
            *to = from;
        }
        field[MAX_ID] = id.len().min(MAX_ID) as u8;
        bytes.extend_from_slice(&field);
        bytes.extend_from_slice(path);
        bytes.resize(bytes.len() + name - path.len(), 0);
    }
    bytes
}

fn build_id(path: &Path) -> Option<Vec<u8>> {
    // A device or a pipe under that name now would make us wait.
    let file = path.metadata().ok().filter(std::fs::Metadata::is_file).and_then(|_| File::open(path).ok())?;
    Elf::parse(&mut &file).ok()?.build_id().map(<[u8]>::to_vec)
}
