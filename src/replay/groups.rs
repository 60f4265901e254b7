//! The cgroups of a replay, below a root of its own.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::director::ReplayError;
use crate::host::hierarchy::Mount;
use crate::host::{Error, Roots};

/// Cgroups that were made for a replay.
#[derive(Debug, Default)]
pub struct Groups {
    /// `cgroup.procs` of each.
    files: Vec<CString>,
    /// The directories that were made, parents first.
    made: Vec<CString>,
}

/// Cgroups that are made for a replay; processes of later ones stay where they are.
const MAX_MADE: usize = 4096;
/// Names in a path of a cgroup.
const MAX_DEPTH: usize = 32;

/// The directory of a recorded cgroup below `root`; what would lead out of it is left out.
fn below(root: &Path, path: &[u8]) -> PathBuf {
    let names = path.split(|&byte| byte == b'/').filter(|name| !matches!(*name, b"" | b"." | b".."));
    names.take(MAX_DEPTH).fold(root.to_owned(), |path, name| path.join(std::ffi::OsStr::from_bytes(name)))
}

fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)
}

impl Groups {
    /// Where cgroups are on this host.
    ///
    /// # Errors
    /// There are none.
    pub fn mount(roots: &Roots) -> Result<PathBuf, Error> {
        Mount::find(roots).map(|mount| mount.point)
    }

    /// Makes the cgroups with these paths below `root` in the hierarchy that is mounted at `mount`. They are removed at the end of
    /// a replay, and when this is dropped.
    ///
    /// # Errors
    /// A directory cannot be made; those that were made are removed.
    pub fn make(mount: &Path, root: &str, paths: &[Vec<u8>]) -> Result<Self, ReplayError> {
        let mut groups = Self::default();
        let root = below(mount, root.as_bytes());
        for path in paths {
            // Beyond the bound they are in the root of all.
            let directory = if groups.made.len() < MAX_MADE { below(&root, path) } else { root.clone() };
            groups.make_one(mount, &directory).map_err(|(path, source)| ReplayError::Cgroup { path, source })?;
        }
        Ok(groups)
    }

    fn make_one(&mut self, mount: &Path, directory: &Path) -> Result<(), (PathBuf, io::Error)> {
        let ancestors: Vec<&Path> = directory.ancestors().take_while(|path| *path != mount).collect();
        for path in ancestors.iter().rev() {
            let failed = |source| ((*path).to_owned(), source);
            match fs::create_dir(path) {
                Ok(()) => self.made.push(c_string(path).map_err(failed)?),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let file = directory.join("cgroup.procs");
        let file = c_string(&file).map_err(|source| (file.clone(), source))?;
        self.files.push(file);
        Ok(())
    }

    /// `cgroup.procs` of each path that was given.
    #[must_use]
    pub fn files(&self) -> &[CString] {
        &self.files
    }

    /// The directories that were made, parents first.
    pub(super) fn made(&self) -> &[CString] {
        &self.made
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for directory in self.made.iter().rev() {
            let path = Path::new(std::ffi::OsStr::from_bytes(directory.as_bytes()));
            let _ = fs::remove_dir(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_out_of_the_root() {
        let below = |path: &[u8]| below(Path::new("/sys/fs/cgroup/replay"), path);
        assert_eq!(below(b"/a/b"), Path::new("/sys/fs/cgroup/replay/a/b"));
        assert_eq!(below(b"/"), Path::new("/sys/fs/cgroup/replay"));
        assert_eq!(below(b"/../../etc//./x"), Path::new("/sys/fs/cgroup/replay/etc/x"));
    }
}
