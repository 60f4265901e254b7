//! The section of build ids: the build of each file, so that symbols can be found later and elsewhere.

use crate::record::{Header, HEADER_SIZE};

/// A build id: up to 20 bytes (`BUILD_ID_SIZE_MAX` in include/linux/buildid.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BuildId {
    bytes: [u8; 20],
    len: u8,
}

impl BuildId {
    /// The first 20 bytes of a record's build id.
    #[must_use]
    pub fn new(id: &[u8]) -> Self {
        let mut build_id = Self::default();
        for (to, &from) in build_id.bytes.iter_mut().zip(id) {
            *to = from;
            build_id.len += 1;
        }
        build_id
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// `PERF_RECORD_MISC_KERNEL` and `PERF_RECORD_MISC_USER`, of `PERF_RECORD_MISC_CPUMODE_MASK`.
const MISC_KERNEL: u16 = 1;
const MISC_USER: u16 = 2;
const MISC_MODE: u16 = 7;
/// The size of the id follows it (`PERF_RECORD_MISC_BUILD_ID_SIZE`).
const MISC_BUILD_ID_SIZE: u16 = 1 << 15;
/// The most bytes of an id.
const MAX_ID: usize = 20;
/// The offsets of the id, its size and the path in an entry, which begins with a header and a pid.
const ID_AT: usize = HEADER_SIZE + 4;
const SIZE_AT: usize = ID_AT + MAX_ID;
const PATH_AT: usize = ID_AT + 24;
/// The pid of a mapping that belongs to no process in particular.
const ANY_PID: i32 = -1;
const NAME_ALIGN: usize = 64;

/// One entry per file (struct perf_record_header_build_id).
#[must_use]
pub fn write(mut files: Vec<(&[u8], BuildId)>) -> Vec<u8> {
    files.sort_unstable_by_key(|&(path, _)| path);
    let mut bytes = Vec::new();
    for (path, build_id) in files {
        let name = (path.len() + 1).next_multiple_of(NAME_ALIGN);
        let Ok(size) = u16::try_from(PATH_AT + name) else { continue };
        let id = build_id.as_bytes();
        let mode = if path.starts_with(b"[kernel.") { MISC_KERNEL } else { MISC_USER };
        // The type is not used.
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(&(mode | MISC_BUILD_ID_SIZE).to_ne_bytes());
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

/// The complete entries of a section: paths, and the kernel and the vdso by their names in perf. Those of guests are left out.
pub(super) fn read(mut bytes: &[u8], swapped: bool) -> Vec<(Vec<u8>, BuildId)> {
    let mut found = Vec::new();
    while let Some(header) = header(bytes, swapped) {
        let Some((entry, rest)) = bytes.split_at_checked(usize::from(header.size).max(HEADER_SIZE)) else { break };
        bytes = rest;
        let Some(id) = entry.get(ID_AT..SIZE_AT) else { continue };
        // perf before 5.12 did not write the size, and wrote only complete ids.
        let size = match entry.get(SIZE_AT) {
            Some(&size) if header.misc & MISC_BUILD_ID_SIZE != 0 => usize::from(size),
            _ => MAX_ID,
        };
        let path = entry.get(PATH_AT..).and_then(|rest| rest.split(|&byte| byte == 0).next()).unwrap_or_default();
        let id = id.get(..size).filter(|id| id.iter().any(|&byte| byte != 0));
        if let (Some(id), false, MISC_KERNEL | MISC_USER) = (id, path.is_empty(), header.misc & MISC_MODE) {
            found.push((path.to_vec(), BuildId::new(id)));
        }
    }
    found
}

fn header(bytes: &[u8], swapped: bool) -> Option<Header> {
    let mut bytes = *bytes.first_chunk::<HEADER_SIZE>()?;
    if swapped {
        super::swap::header(&mut bytes);
    }
    Header::read(&bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_read_on_every_machine() {
        let ids = [
            (&b"/bin/a b"[..], BuildId::new(&[7; 20])),
            (b"/bin/\xff", BuildId::new(&[1, 2, 3])),
            (b"[kernel.kallsyms]", BuildId::new(&[9; 20])),
            (b"[vdso]", BuildId::new(&[8; 16])),
        ];
        let bytes = write(ids.into_iter().rev().collect());
        let expected: Vec<_> = ids.iter().map(|(path, id)| (path.to_vec(), *id)).collect();
        assert_eq!(read(&bytes, false), expected);
        let mut other = Vec::new();
        let mut rest = &bytes[..];
        while let Some(header) = Header::read(rest) {
            let (entry, after) = rest.split_at(header.size.into());
            rest = after;
            let mut entry = entry.to_vec();
            super::super::swap::header(&mut entry);
            entry[8..12].reverse();
            other.extend(entry);
        }
        assert_eq!(read(&other, true), expected);
        assert_eq!(read(&bytes[..bytes.len() - 1], false), expected[..3]);
    }

    #[test]
    fn an_old_perf_says_no_size() {
        let mut bytes = write(vec![(&b"/bin/x"[..], BuildId::new(&[7; 20]))]);
        bytes[5] &= 0x7f;
        bytes[SIZE_AT] = 0;
        assert_eq!(read(&bytes, false), [(b"/bin/x".to_vec(), BuildId::new(&[7; 20]))]);
        // An entry of a guest's program, and one of a file without an id.
        let mut guest = bytes.clone();
        guest[4] = 5;
        assert_eq!(read(&guest, false), []);
        bytes[ID_AT..SIZE_AT].fill(0);
        assert_eq!(read(&bytes, false), []);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..300), swapped in any::<bool>()) {
            let _ = read(&bytes, swapped);
        }
    }
}
