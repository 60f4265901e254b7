//! Why a file that was found gives no names or no source lines.

use std::sync::Arc;

use super::lines::MAX_UNPACKED;
use crate::sample::printable;
use scxprof_elf::Packing;

/// The problem with the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lack {
    /// Neither it nor its mapping has a build id, and it was changed after the capture began.
    Changed,
    /// Likewise, and it has another inode.
    Replaced,
    /// Likewise, and the recording may be of another host.
    Foreign,
    /// Its debug information is compressed, and was not read.
    Packed(Packing),
}

impl Lack {
    fn sentence(self, files: &str) -> String {
        match self {
            Self::Changed => format!(
                "{files}: no names, because the file has no build id (gcc -Wl,--build-id) and was changed after the recording \
                 began, or too shortly before to tell"
            ),
            Self::Replaced => format!(
                "{files}: no names, because the recording has no build id of it and the file has another inode than the one \
                 that ran"
            ),
            Self::Foreign => format!(
                "{files}: no names, because the recording has no build id of it and may be of another host or boot \
                 (`perf record --buildid-all` stores all)"
            ),
            Self::Packed(packing) => format!(
                "{files}: no source lines, because the debug sections are compressed ({packing}) and are damaged, take more \
                 than {} MiB or too long to read (`objcopy --decompress-debug-sections` makes them plain)",
                MAX_UNPACKED >> 20
            ),
        }
    }
}

/// A sentence for each kind.
pub(super) fn sentences(lacks: &[(Arc<[u8]>, Lack)]) -> Vec<String> {
    let mut kinds: Vec<Lack> = lacks.iter().map(|(_, lack)| *lack).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let sentence = |kind: &Lack| {
        let mut files = lacks.iter().filter(|(_, lack)| lack == kind).map(|(path, _)| path);
        let first = printable(files.next().map_or(&b""[..], |path| path));
        match files.count() {
            0 => kind.sentence(&first),
            more => kind.sentence(&format!("{first} and {more} more files")),
        }
    };
    kinds.iter().map(sentence).collect()
}
