//! Finds where the path of an output leads, and follows no link of another user on the way.
//!
//! The kernel's own protection (fs.protected_symlinks, `may_follow_link` in fs/namei.c) applies to the last part of a path in a
//! sticky directory; a program that resolves a path before opening it loses this protection. So each found directory is held
//! open, and all further steps are relative to it, so that no other user can change the path meanwhile.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{openat, FileType, Mode, OFlags, Stat, CWD, PROC_SUPER_MAGIC};
use rustix::io::Errno;

use crate::host::open;

/// The number of links that are followed, as in the kernel (`MAXSYMLINKS`).
const MAX_LINKS: u32 = 40;

/// Why a path cannot be written to.
#[derive(Debug, thiserror::Error)]
pub(super) enum DestinationError {
    /// A directory in the path does not exist.
    #[error("there is no directory {}", at.display())]
    Missing { at: PathBuf },
    /// A part of the path cannot be opened.
    #[error("cannot open {}: {source}", at.display())]
    Open { at: PathBuf, source: io::Error },
    /// A part of the path is a symbolic link of another user.
    #[error("{} is a symbolic link of another user (uid {uid}), which is not followed: name the file itself", at.display())]
    Link { at: PathBuf, uid: u32 },
}

/// A directory that is held open.
#[derive(Debug)]
pub(super) struct Directory(OwnedFd);

impl Directory {
    /// Opens the directory `path`.
    pub(super) fn open(path: &Path) -> Result<Self, DestinationError> {
        match find(path)? {
            Destination::Directory(directory) => Ok(directory),
            Destination::New { .. } => Err(DestinationError::Missing { at: path.to_owned() }),
            Destination::There { .. } | Destination::Open { .. } => Err(failed(path, Errno::NOTDIR)),
        }
    }

    /// The same, but made with those above it if it is not there.
    pub(super) fn make(path: &Path) -> Result<Self, DestinationError> {
        match find(path) {
            Ok(Destination::New { directory, name }) => {
                match rustix::fs::mkdirat(&directory.0, &name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => Self::open(path),
                    Err(error) => Err(failed(path, error)),
                }
            }
            Err(DestinationError::Missing { .. }) => {
                let missing = || failed(path, Errno::NOENT);
                Self::make(path.parent().filter(|it| !it.as_os_str().is_empty()).ok_or_else(missing)?)?;
                match find(path)? {
                    Destination::New { .. } => Self::make(path),
                    _ => Self::open(path),
                }
            }
            Ok(_) => Self::open(path),
            Err(error) => Err(error),
        }
    }

    /// Opens the regular file `name` in it for writing, or makes it; a link is not followed.
    pub(super) fn keep(&self, name: &str) -> io::Result<File> {
        open::kept_in(&self.0, OsStr::new(name))
    }

    /// A new file in it that has no name, with this mode but for the umask.
    pub(super) fn unnamed(&self, mode: u32) -> io::Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        Ok(openat(&self.0, ".", flags, Mode::from_raw_mode(mode))?.into())
    }

    /// A path to it that stays valid if its name changes, for as long as this value lives.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// `name` in it, as the user knows it.
    fn below(&self, name: &OsStr) -> PathBuf {
        let above = rustix::fs::readlink(self.path(), Vec::new()).unwrap_or_default().into_bytes();
        PathBuf::from(OsString::from_vec(above)).join(name)
    }

    /// Its attributes.
    pub(super) fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.0)?)
    }
}

/// An existing file, opened without reading or writing it (`O_PATH`).
#[derive(Debug)]
pub(super) struct There {
    fd: OwnedFd,
    pub(super) stat: Stat,
}

impl There {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Opens a regular file for reading.
    pub(super) fn read(&self) -> io::Result<File> {
        open::open_named(&self.fd)
    }

    /// Opens it for appending; this does not block, though writing may.
    pub(super) fn write(&self) -> io::Result<File> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = File::options()
            .append(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))?;
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
        Ok(file)
    }
}

/// The target of a path.
#[derive(Debug)]
pub(super) enum Destination {
    Directory(Directory),
    /// No such name in this directory.
    New {
        directory: Directory,
        name: OsString,
    },
    /// Something other than a directory.
    There {
        directory: Directory,
        name: OsString,
        there: There,
    },
    /// A file that a process has open (`/dev/stdout`, `/dev/fd/N`): it has no name, or not this one.
    Open(There),
}

/// Follows `path` to its end. Symbolic links of root and of our own user are followed.
///
/// # Errors
/// [`DestinationError`]; only the last part may be missing.
pub(super) fn find(path: &Path) -> Result<Destination, DestinationError> {
    let own = rustix::process::geteuid().as_raw();
    let (mut at, mut rest) = begin(path)?;
    let mut links = 0;
    while let Some(name) = rest.pop() {
        let fd = match open_at(&at.0, &name, OFlags::NOFOLLOW) {
            Err(Errno::NOENT) if rest.is_empty() => return Ok(Destination::New { directory: at, name }),
            Err(Errno::NOENT) => return Err(DestinationError::Missing { at: at.below(&name) }),
            fd => fd.map_err(|error| failed(path, error))?,
        };
        let stat = rustix::fs::fstat(&fd).map_err(|error| failed(path, error))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => at = Directory(fd),
            FileType::Symlink => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(failed(path, Errno::LOOP));
                }
                if rustix::fs::fstatfs(&fd).is_ok_and(|it| it.f_type == PROC_SUPER_MAGIC) {
                    // The kernel created it, and knows its target better than its text.
                    let fd = open_at(&at.0, &name, OFlags::empty()).map_err(|error| failed(path, error))?;
                    let stat = rustix::fs::fstat(&fd).map_err(|error| failed(path, error))?;
                    match FileType::from_raw_mode(stat.st_mode) {
                        FileType::Directory => at = Directory(fd),
                        _ if rest.is_empty() => return Ok(Destination::Open(There { fd, stat })),
                        _ => return Err(failed(path, Errno::NOTDIR)),
                    }
                    continue;
                }
                if stat.st_uid != own && stat.st_uid != 0 {
                    return Err(DestinationError::Link { at: at.below(&name), uid: stat.st_uid });
                }
                let target = rustix::fs::readlinkat(&fd, "", Vec::new()).map_err(|error| failed(path, error))?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                if target.is_absolute() {
                    at = begin(&target)?.0;
                }
                rest.extend(parts(&target));
            }
            _ if rest.is_empty() => return Ok(Destination::There { directory: at, name, there: There { fd, stat } }),
            _ => return Err(failed(path, Errno::NOTDIR)),
        }
    }
    Ok(Destination::Directory(at))
}

/// The beginning of a path, and its parts, the last one first.
fn begin(path: &Path) -> Result<(Directory, Vec<OsString>), DestinationError> {
    let root = if path.is_absolute() { "/" } else { "." };
    let fd = open_at(CWD, OsStr::new(root), OFlags::DIRECTORY).map_err(|error| failed(Path::new(root), error))?;
    Ok((Directory(fd), parts(path).collect()))
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    let part = |part: Component<'_>| match part {
        Component::Normal(_) | Component::ParentDir => Some(part.as_os_str().to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(part)
}

fn open_at(at: impl AsFd, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    openat(at, name, OFlags::PATH | OFlags::CLOEXEC | flags, Mode::empty())
}

fn failed(path: &Path, error: Errno) -> DestinationError {
    DestinationError::Open { at: path.to_owned(), source: error.into() }
}
