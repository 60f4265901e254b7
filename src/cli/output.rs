//! The destination of a result: stdout, or a file that is either complete or absent.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{fchown, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use rustix::fs::{FileType, Stat};
use tempfile::NamedTempFile;

use super::destination::{find, Destination, Directory, Refused, There};

/// Writes all of `bytes` to stdout.
pub(super) fn print(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).context("cannot write to stdout")
}

/// The users who may read a new file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readers {
    /// According to the umask.
    All,
    /// Only its owner: it contains addresses of other processes.
    Owner,
}

/// A result's destination, resolved before the capture begins so that a wrong path cannot fail after it.
#[derive(Debug)]
pub(super) enum Output {
    Stdout,
    /// A file that is replaced when the result is complete.
    File(Replaced),
    /// A device, a pipe or a file that is already open, which must not be replaced by a file.
    Special {
        path: PathBuf,
        file: File,
    },
}

/// The name of a complete file.
#[derive(Debug)]
pub(super) struct Replaced {
    /// The path as given.
    path: PathBuf,
    directory: Directory,
    name: OsString,
    mode: u32,
    /// The owner and the group of an existing file.
    owner: Option<(u32, u32)>,
}

impl Output {
    /// `None` and `-` stand for stdout.
    pub(super) fn open(path: Option<&Path>, readers: Readers) -> Result<Self> {
        let Some(path) = path.filter(|path| *path != Path::new("-")) else { return Ok(Self::Stdout) };
        Self::at(path, readers).map_err(|error| match error.downcast_ref() {
            Some(Refused::Open { at, source }) if at == path => {
                anyhow::anyhow!("cannot write {}: {}", path.display(), source.kind())
            }
            _ => anyhow::anyhow!("cannot write {}: {error}", path.display()),
        })
    }

    fn at(path: &Path, readers: Readers) -> Result<Self> {
        let new = if readers == Readers::All { 0o644 } else { 0o600 };
        let replaced = match find(path)? {
            Destination::Directory(_) => bail!("is a directory"),
            Destination::New { directory, name } => {
                Replaced { path: path.to_owned(), directory, name, mode: new, owner: None }
            }
            Destination::There { directory, name, there } => {
                let is_trusted = is_trusted(&there.stat, &directory.stat()?, readers);
                if there.kind() != FileType::RegularFile {
                    if there.kind() == FileType::Fifo && !is_trusted {
                        bail!("is a FIFO of another user (uid {}): name another place", there.stat.st_uid);
                    }
                    return special(path, &there);
                }
                // A file that another user left in a shared directory no longer belongs to that user.
                let Stat { st_mode, st_uid, st_gid, .. } = there.stat;
                let (mode, owner) = if is_trusted { (st_mode & 0o777, Some((st_uid, st_gid))) } else { (new, None) };
                Replaced { path: path.to_owned(), directory, name, mode, owner }
            }
            Destination::Open(there) => return special(path, &there),
        };
        // Created only to check that it can be: a capture that is killed leaves none.
        replaced.temporary().map_err(|error| anyhow::anyhow!("{}", error.kind()))?;
        Ok(Self::File(replaced))
    }

    /// True if both would write the same file.
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(a), Self::File(b)) => {
                let place = |it: &Replaced| it.directory.stat().ok().map(|stat| (stat.st_dev, stat.st_ino));
                a.name == b.name && place(a) == place(b)
            }
            _ => false,
        }
    }

    /// Writes all that `from` has. A file that cannot be written leaves no trace.
    pub(super) fn copy(self, from: &mut impl io::Read) -> Result<()> {
        let (path, result) = match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                (PathBuf::from("stdout"), io::copy(from, &mut stdout).and_then(|_| stdout.flush()))
            }
            Self::Special { path, mut file } => (path, io::copy(from, &mut file).map(drop)),
            Self::File(replaced) => {
                let result = replaced.write(from);
                (replaced.path, result)
            }
        };
        result.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes the result. A file that cannot be written leaves no trace, and the result goes to stdout instead, if that is
    /// `free`.
    pub(super) fn write(self, bytes: &[u8], free: bool) -> Result<()> {
        let (path, result) = match self {
            Self::Stdout => return print(bytes),
            Self::Special { path, mut file } => (path, file.write_all(bytes)),
            Self::File(replaced) => {
                let result = replaced.write(&mut &*bytes);
                (replaced.path, result)
            }
        };
        if let Err(error) = result {
            let what = format!("cannot write {}", path.display());
            if free && print(bytes).is_ok() {
                return Err(error).context(format!("{what} (the result went to stdout instead)"));
            }
            return Err(error).context(what);
        }
        Ok(())
    }
}

/// True if the existing file was not put there by another user for us to write to, in the spirit of fs.protected_regular and
/// fs.protected_fifos (`may_create_in_sticky` in fs/namei.c): it belongs to root or us, or, for results that others may read
/// anyway, it is in a directory in which not every user can create files.
fn is_trusted(file: &Stat, directory: &Stat, readers: Readers) -> bool {
    let is_ours = [0, rustix::process::geteuid().as_raw()].contains(&file.st_uid);
    is_ours || readers == Readers::All && directory.st_mode & 0o002 == 0
}

fn special(path: &Path, there: &There) -> Result<Output> {
    match there.kind() {
        FileType::Directory => bail!("is a directory"),
        FileType::BlockDevice => bail!("is a block device, which is not written to"),
        FileType::Socket => bail!("is a socket, which cannot be opened"),
        _ => {}
    }
    let file = there.write().map_err(|error| match error.raw_os_error() {
        Some(libc::ENXIO) if there.kind() == FileType::Fifo => {
            anyhow::anyhow!("is a FIFO without a reader: start its reader first")
        }
        _ => anyhow::anyhow!("{}", error.kind()),
    })?;
    Ok(Output::Special { path: path.to_owned(), file })
}

impl Replaced {
    /// A new file beside it, which is deleted unless it gets the name.
    fn temporary(&self) -> io::Result<NamedTempFile> {
        tempfile::Builder::new()
            .prefix(".scxprof-")
            .suffix(".tmp")
            .permissions(Permissions::from_mode(self.mode))
            .tempfile_in(self.directory.path())
    }

    fn write(&self, from: &mut impl io::Read) -> io::Result<()> {
        let mut temporary = self.temporary()?;
        io::copy(from, &mut temporary)?;
        if let Some((user, group)) = self.owner {
            // Without the right to change the owner it stays ours, as when `mv` replaces a file.
            let _ = fchown(temporary.as_file(), Some(user), Some(group));
            // Independent of the umask.
            temporary.as_file().set_permissions(Permissions::from_mode(self.mode))?;
        }
        temporary.as_file().sync_all()?;
        temporary.persist(self.directory.path().join(&self.name)).map(drop).map_err(|error| error.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cells.json");
        let output = Output::open(Some(&path), Readers::All).unwrap();
        assert!(!path.exists());
        output.write(b"[]\n", true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"[]\n");
        drop(Output::open(Some(&path), Readers::All).unwrap());
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn a_wrong_path_is_told_before_the_capture() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Output::open(Some(directory.path()), Readers::All).is_err());
        assert!(Output::open(Some(&directory.path().join("no/such/cells.json")), Readers::All).is_err());
    }
}
