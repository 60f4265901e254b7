//! The cgroups of a replay, below a root of its own.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::board::Arena;
use super::error::ReplayError;

/// Cgroups of a replay: first planned, so that a guard knows them, then made.
#[derive(Debug)]
pub struct Groups {
    root: PathBuf,
    /// The directory of each recorded cgroup; `None` if it cannot be one.
    wanted: Vec<Option<PathBuf>>,
    /// The directories that have to be made, parents first.
    planned: Vec<CString>,
    /// Of each of them, whether it was made; processes that are forked later share it.
    flags: Arena,
    /// `cgroup.procs` of each recorded cgroup.
    files: Vec<CString>,
    left_out: usize,
}

/// Cgroups that are made for a replay; processes of later ones are in the root of all.
const MAX_MADE: usize = 4096;
/// Names in a path of a cgroup.
const MAX_DEPTH: usize = 32;
/// Bytes of a name (`NAME_MAX`).
const MAX_NAME: usize = 255;

/// The directory of a recorded cgroup below `root`; what would lead out of it is left out. `None` if no cgroup can have such a
/// name: `cgroup_mkdir` (kernel/cgroup/cgroup.c) refuses the end of a line in it.
fn below(root: &Path, path: &[u8]) -> Option<PathBuf> {
    let names = path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"." | b".."));
    let names = names.take(MAX_DEPTH).collect::<Vec<_>>();
    let is_one = |name: &&[u8]| name.len() <= MAX_NAME && !name.iter().any(|byte| matches!(byte, b'\n' | 0));
    names
        .iter()
        .all(is_one)
        .then(|| names.iter().fold(root.to_owned(), |path, name| path.join(std::ffi::OsStr::from_bytes(name))))
}

fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)
}

impl Groups {
    /// Plans the cgroups with these paths below `root` in the hierarchy that is mounted at `mount`; nothing is made yet.
    ///
    /// # Errors
    /// `root` cannot be the path of a cgroup, or there is no memory.
    pub fn plan(mount: &Path, root: &str, paths: &[Vec<u8>]) -> Result<Self, ReplayError> {
        let failed = |path: &Path, source| ReplayError::Cgroup { path: path.to_owned(), source };
        let root = below(mount, root.as_bytes())
            .ok_or_else(|| failed(Path::new(root), io::Error::from(io::ErrorKind::InvalidInput)))?;
        let (mut seen, mut planned) = (HashSet::new(), Vec::new());
        let mut plan = |directory: &Path| {
            let ancestors: Vec<&Path> = directory.ancestors().take_while(|path| *path != mount).collect();
            for path in ancestors.into_iter().rev() {
                // What is there is not ours to remove.
                if seen.insert(path.to_owned()) && path.symlink_metadata().is_err() {
                    planned.push(c_string(path).map_err(|source| failed(path, source))?);
                }
            }
            Ok(())
        };
        plan(&root)?;
        let mut wanted = Vec::new();
        for (number, path) in paths.iter().enumerate() {
            let directory = if number < MAX_MADE { below(&root, path) } else { Some(root.clone()) };
            if let Some(directory) = &directory {
                plan(directory)?;
            }
            wanted.push(directory);
        }
        let flags = Arena::new(8 * planned.len() as u64)
            .map_err(|source| ReplayError::System { what: "share memory with the guard", source })?;
        Ok(Self { root, wanted, planned, flags, files: Vec::new(), left_out: 0 })
    }

    /// Makes them, until `stop` says so: then some are missing. A cgroup that this host cannot have is left out, and its processes
    /// go to the root. All that were made are removed by the guard, and when this is dropped.
    ///
    /// # Errors
    /// This user may make none there.
    pub fn make(&mut self, stop: &dyn Fn() -> bool) -> Result<(), ReplayError> {
        for (directory, is_made) in self.planned.iter().zip(self.flags()) {
            if stop() {
                return Ok(());
            }
            if is_made.load(Ordering::Acquire) != 0 {
                continue;
            }
            let path = Path::new(std::ffi::OsStr::from_bytes(directory.as_bytes()));
            // First, so that it is known whatever happens in between.
            is_made.store(1, Ordering::Release);
            if let Err(source) = fs::create_dir(path) {
                is_made.store(0, Ordering::Release);
                let is_of_path = matches!(
                    source.kind(),
                    io::ErrorKind::AlreadyExists
                        | io::ErrorKind::NotFound
                        | io::ErrorKind::NotADirectory
                        | io::ErrorKind::InvalidInput
                        | io::ErrorKind::InvalidFilename
                );
                if path == self.root || !is_of_path {
                    return Err(ReplayError::Cgroup { path: path.to_owned(), source });
                }
            }
        }
        self.files.clear();
        self.left_out = 0;
        let file = |path: &Path| c_string(&path.join("cgroup.procs")).ok();
        for directory in &self.wanted {
            let found = directory.as_deref().filter(|path| path.join("cgroup.procs").exists());
            self.left_out += usize::from(found.is_none());
            self.files.extend(file(found.unwrap_or(&self.root)));
        }
        Ok(())
    }

    /// `cgroup.procs` of each path that was given, once they are made.
    #[must_use]
    pub fn files(&self) -> &[CString] {
        &self.files
    }

    /// Cgroups that this host cannot have.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    fn flags(&self) -> &[AtomicU64] {
        self.flags.words(0, 8 * self.planned.len() as u64)
    }

    /// The directories that were made, parents last. Takes no memory.
    pub(super) fn made_last_first(&self) -> impl Iterator<Item = &CStr> {
        let all = self.planned.iter().zip(self.flags()).rev();
        all.filter(|(_, is_made)| is_made.load(Ordering::Acquire) != 0).map(|(directory, _)| directory.as_c_str())
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for directory in self.made_last_first() {
            let _ = fs::remove_dir(Path::new(std::ffi::OsStr::from_bytes(directory.to_bytes())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_out_of_the_root() {
        let below = |path: &[u8]| below(Path::new("/sys/fs/cgroup/replay"), path);
        let at = |path: &str| Some(PathBuf::from(path));
        assert_eq!(below(b"/a/b"), at("/sys/fs/cgroup/replay/a/b"));
        assert_eq!(below(b"/"), at("/sys/fs/cgroup/replay"));
        assert_eq!(below(b"/../../etc//./x"), at("/sys/fs/cgroup/replay/etc/x"));
        assert_eq!((below(b"/a\nb"), below(b"/a\0b"), below(&[b'x'; 256])), (None, None, None));
    }

    #[test]
    fn what_was_made_is_known_before_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let mount = directory.path();
        fs::create_dir(mount.join("there")).unwrap();
        let made = |groups: &Groups| groups.made_last_first().map(|path| path.to_bytes().to_vec()).collect::<Vec<_>>();
        let paths: Vec<Vec<u8>> = [&b"/a/b"[..], b"/x\ny", b"/a"].map(<[u8]>::to_vec).to_vec();
        let mut groups = Groups::plan(mount, "/there/root", &paths).unwrap();
        assert!(made(&groups).is_empty() && !mount.join("there/root").exists(), "a plan makes nothing");
        // It is asked before each.
        let asked = std::cell::Cell::new(0);
        groups.make(&|| asked.replace(asked.get() + 1) >= 2).unwrap();
        assert_eq!(made(&groups).len(), 2);
        groups.make(&|| false).unwrap();
        assert_eq!(made(&groups).first().map(Vec::as_slice), Some(mount.join("there/root/a/b").as_os_str().as_bytes()));
        // These are no cgroups, and one could not be one.
        assert_eq!((groups.files().len(), groups.left_out()), (3, 3));
        drop(groups);
        assert!(mount.join("there").exists() && !mount.join("there/root").exists());
        // A root that cannot be made.
        fs::write(mount.join("file"), "").unwrap();
        assert!(Groups::plan(mount, "/file/root", &paths).unwrap().make(&|| false).is_err());
    }
}
