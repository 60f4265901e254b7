//! The code files in a recording; their build ids are looked up when it ends.

use rustc_hash::FxHashMap;

use scxprof_base::tables::Tables;
use scxprof_perf::record::{decode, Layout, MappedFile, Record};

/// The number of files that are kept.
const MAX_FILES: usize = 1 << 14;
/// Bytes of their paths.
pub(super) const MAX_PATH_BYTES: usize = 8 << 20;
/// Processes that are kept for each file, to open it through them.
const PIDS: usize = 4;

/// A file of code.
#[derive(Debug)]
pub(super) struct CodeFile {
    pub(super) dev: u64,
    pub(super) ino: u64,
    /// The last processes that mapped it.
    pub(super) pids: [u32; PIDS],
    /// When the first of them mapped it.
    pub(super) since: u64,
}

/// Code files by their path (containers can have several of one path); none if there were more than the bound.
#[derive(Debug, Default)]
pub(super) struct CodeFiles {
    by_path: FxHashMap<Vec<u8>, Vec<CodeFile>>,
    count: usize,
    pub(super) path_bytes: usize,
    left_out: u64,
}

impl CodeFiles {
    /// The files, by their path.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Vec<u8>, &Vec<CodeFile>)> {
        self.by_path.iter()
    }

    /// Its size.
    pub(super) fn measure(&self, tables: &mut Tables) {
        let more = self.path_bytes + self.count * size_of::<CodeFile>();
        let room = self.by_path.capacity();
        tables.set_map::<(Vec<u8>, Vec<CodeFile>)>("code files of the recording", self.count, room, more);
    }

    /// Mappings of files that did not fit.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Records the file that a record maps.
    pub(super) fn note(&mut self, record: &[u8], layout: &Layout) {
        let Ok((_, Record::Mmap2 { pid, file, filename, .. }, id)) = decode(record, layout) else { return };
        // A record in its build-id form already has the id.
        let MappedFile::Inode { major, minor, inode, .. } = file else { return };
        if !filename.starts_with(b"/") || filename.starts_with(b"//") {
            return;
        }
        let (dev, ino) = (libc::makedev(major, minor), inode);
        let known = self.by_path.get_mut(filename);
        let path_bytes = if known.is_some() { 0 } else { filename.len() };
        if self.count >= MAX_FILES || self.path_bytes + path_bytes > MAX_PATH_BYTES {
            let is_known = known.as_ref().is_some_and(|it| it.iter().any(|file| (file.dev, file.ino) == (dev, ino)));
            if !is_known {
                self.left_out += 1;
                known.into_iter().for_each(Vec::clear);
            }
            return;
        }
        self.path_bytes += path_bytes;
        let files = match known {
            Some(files) => files,
            None => self.by_path.entry(filename.to_vec()).or_default(),
        };
        let index = files.iter().position(|file| (file.dev, file.ino) == (dev, ino)).unwrap_or_else(|| {
            self.count += 1;
            files.push(CodeFile { dev, ino, pids: [0; PIDS], since: id.time });
            files.len() - 1
        });
        if let Some(file) = files.get_mut(index) {
            file.since = file.since.min(id.time);
            if !file.pids.contains(&pid) {
                file.pids.rotate_right(1);
                file.pids[0] = pid;
            }
        }
    }
}
