//! Which files may be read and written: nothing outside of one directory each, whatever links there are.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{openat, openat2, renameat_with, unlinkat, AtFlags, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use super::error::{Kind, ToolError};

/// Bytes that are copied between two looks at whether to stop.
const PIECE: u64 = 1 << 20;

/// A directory that paths are below.
#[derive(Debug)]
pub(super) struct Below {
    dir: File,
    path: PathBuf,
}

impl Below {
    /// # Errors
    /// It is no directory, or cannot be opened.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let dir = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(&path)?;
        Ok(Self { dir, path })
    }

    #[cfg(test)]
    fn path(&self) -> &Path {
        &self.path
    }

    /// A given path as one relative to the directory.
    fn relative(&self, given: &str) -> Result<PathBuf, ToolError> {
        if given.is_empty() || given.contains('\0') {
            return Err(ToolError::new(Kind::InvalidArguments, "the path is empty, or has a byte of zero"));
        }
        let path = Path::new(given);
        let relative = if path.is_absolute() { path.strip_prefix(&self.path).ok() } else { Some(path) };
        let relative = relative.ok_or_else(|| self.outside(given))?;
        Ok(if relative.as_os_str().is_empty() { PathBuf::from(".") } else { relative.to_owned() })
    }

    fn outside(&self, given: &str) -> ToolError {
        let root = self.path.display();
        ToolError::new(
            Kind::OutsideRoot,
            format!("{given}: it is not below {root}, or a link in it is absolute or leads out of it"),
        )
    }

    /// The path, without links, of what exists below the directory.
    ///
    /// # Errors
    /// [`Kind::OutsideRoot`] if it is not below, [`Kind::NotFound`] if it does not exist, [`Kind::InvalidArguments`] for what is neither
    /// a regular file nor a directory: to open a pipe waits for its other end.
    pub(super) fn existing(&self, given: &str) -> Result<PathBuf, ToolError> {
        let relative = self.relative(given)?;
        let found = self.open(&relative, ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS);
        let found = found.map_err(|error| self.refused(given, error))?;
        if !found.metadata().is_ok_and(|it| it.is_file() || it.is_dir()) {
            let message = format!("{given}: it is neither a regular file nor a directory");
            return Err(ToolError::new(Kind::InvalidArguments, message));
        }
        let path = std::fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd()));
        let path = path.map_err(|error| ToolError::new(Kind::NotFound, format!("{given}: {error}")))?;
        if path.starts_with(&self.path) {
            Ok(path)
        } else {
            Err(self.outside(given))
        }
    }

    fn refused(&self, given: &str, error: Errno) -> ToolError {
        match error {
            Errno::XDEV | Errno::LOOP => self.outside(given),
            _ => ToolError::new(Kind::NotFound, format!("{given}: {}", io::Error::from(error))),
        }
    }

    /// A descriptor that refers to what a path leads to.
    fn open(&self, relative: &Path, resolve: ResolveFlags) -> Result<File, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match openat2(&self.dir, relative, flags, Mode::empty(), resolve) {
            // The kernel lacks it, or a system call filter that does not know it rejects it: links are not followed then.
            Err(Errno::NOSYS | Errno::PERM) => self.step_by_step(relative),
            found => Ok(found?.into()),
        }
    }

    fn step_by_step(&self, relative: &Path) -> Result<File, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mut at = File::from(openat(&self.dir, ".", flags, Mode::empty())?);
        for part in relative.components() {
            match part {
                Component::CurDir => {}
                Component::Normal(name) => {
                    at = openat(&at, name, flags, Mode::empty())?.into();
                    if at.metadata().is_ok_and(|it| it.file_type().is_symlink()) {
                        return Err(Errno::LOOP);
                    }
                }
                _ => return Err(Errno::XDEV),
            }
        }
        Ok(at)
    }

    /// Where a new file or directory can be made: the open directory and the name in it.
    ///
    /// # Errors
    /// As [`Self::existing`]; [`Kind::Exists`] if it exists.
    pub(super) fn new_place(&self, given: &str) -> Result<Place, ToolError> {
        let relative = self.relative(given)?;
        let name = match relative.components().next_back() {
            Some(Component::Normal(name)) => PathBuf::from(name),
            _ => return Err(ToolError::new(Kind::InvalidArguments, format!("{given}: it has no name of a file"))),
        };
        let parent = relative.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = self.open(parent, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS);
        let parent = parent.map_err(|error| self.refused(given, error))?;
        let parent = openat(&parent, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let parent = File::from(parent.map_err(|error| self.refused(given, error))?);
        let there = rustix::fs::statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW);
        if !matches!(there, Err(Errno::NOENT)) {
            return Err(ToolError::new(Kind::Exists, format!("{given}: it exists")));
        }
        Ok(Place { dir: parent, name, shown: self.path.join(relative) })
    }
}

/// Where something new is made.
#[derive(Debug)]
pub(super) struct Place {
    dir: File,
    name: PathBuf,
    /// The path that is told.
    pub(super) shown: PathBuf,
}

impl Place {
    /// The directory, which was opened.
    pub(super) fn directory(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.dir.as_raw_fd()))
    }

    /// A path for what makes a directory there itself: it stays in the directory that was opened.
    pub(super) fn held(&self) -> PathBuf {
        self.directory().join(&self.name)
    }

    /// Writes a file that only its owner can read: under another name until it is whole.
    ///
    /// # Errors
    /// [`Kind::Exists`] if it exists meanwhile, [`Kind::NoResult`] if it cannot be written, [`Kind::Cancelled`] once `stop` is set;
    /// then nothing is left.
    pub(super) fn write(&self, from: &mut impl Read, stop: &AtomicBool) -> Result<u64, ToolError> {
        let temporary = format!(".scxprof-{:016x}.tmp", RandomState::new().hash_one(&self.name));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let failed = |error: io::Error| {
            let kind = if error.kind() == io::ErrorKind::AlreadyExists { Kind::Exists } else { Kind::NoResult };
            ToolError::new(kind, format!("cannot write {}: {error}", self.shown.display()))
        };
        let file = openat(&self.dir, &*temporary, flags, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(file.map_err(|error| failed(error.into()))?);
        let mut write = || -> Result<u64, ToolError> {
            let size = copy(from, &mut file, stop).map_err(failed)?;
            file.sync_all().map_err(failed)?;
            // A client that was told that the call is cancelled, or took too long, must not find the file later.
            if stop.load(Ordering::Relaxed) {
                return Err(ToolError::new(Kind::Cancelled, "the call was stopped"));
            }
            let renamed = renameat_with(&self.dir, &*temporary, &self.dir, &self.name, RenameFlags::NOREPLACE);
            renamed.map_err(|error| failed(error.into()))?;
            Ok(size)
        };
        write().inspect_err(|_| {
            let _ = unlinkat(&self.dir, &*temporary, AtFlags::empty());
        })
    }
}

/// Copies until the end, or until `stop` is set.
fn copy(from: &mut impl Read, to: &mut File, stop: &AtomicBool) -> io::Result<u64> {
    let mut size = 0;
    while !stop.load(Ordering::Relaxed) {
        match io::copy(&mut from.by_ref().take(PIECE), to)? {
            0 => break,
            copied => size += copied,
        }
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_what_is_below_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/file"), "x").unwrap();
        std::fs::write(dir.path().join("secret"), "x").unwrap();
        symlink("../a/file", root.join("a/within")).unwrap();
        symlink("../../secret", root.join("a/out")).unwrap();
        symlink(dir.path(), root.join("a/up")).unwrap();
        symlink("/proc/self/root", root.join("a/magic")).unwrap();
        let below = Below::new(&root).unwrap();
        let root = below.path().to_owned();
        let kind = |given: &str| below.existing(given).unwrap_err().kind;
        assert_eq!(below.existing("a/file").unwrap(), root.join("a/file"));
        assert_eq!(below.existing("a/b/../file").unwrap(), root.join("a/file"));
        assert_eq!(below.existing(root.join("a/file").to_str().unwrap()).unwrap(), root.join("a/file"));
        assert_eq!(below.existing(root.to_str().unwrap()).unwrap(), root);
        assert_eq!(below.existing(".").unwrap(), root);
        let wrong = ["../secret", "a/../../secret", "a/out", "a/up/secret", "/etc/passwd", "a/magic/etc/passwd"];
        assert!(wrong.iter().all(|given| kind(given) == Kind::OutsideRoot));
        assert_eq!(kind("a/none"), Kind::NotFound);
        let socket = std::os::unix::net::UnixListener::bind(root.join("a/socket")).unwrap();
        assert_eq!(kind("a/socket"), Kind::InvalidArguments);
        drop(socket);
        assert!(["", "a\0b"].iter().all(|given| kind(given) == Kind::InvalidArguments));
        // Without openat2 no link is followed at all.
        assert!(below.step_by_step(Path::new("a/./file")).is_ok());
        for (path, error) in [("a/within", Errno::LOOP), ("../secret", Errno::XDEV), ("a/up/secret", Errno::LOOP)] {
            assert_eq!(below.step_by_step(Path::new(path)).unwrap_err(), error, "{path}");
        }
    }

    #[test]
    fn a_new_file_is_whole_and_replaces_none() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("old"), "old").unwrap();
        let outside = tempfile::tempdir().unwrap();
        symlink(outside.path(), dir.path().join("link")).unwrap();
        symlink("nowhere", dir.path().join("dangling")).unwrap();
        let below = Below::new(dir.path()).unwrap();
        let (go, stopped) = (AtomicBool::new(false), AtomicBool::new(true));
        for given in ["new", "sub/new"] {
            let place = below.new_place(given).unwrap();
            assert_eq!(place.write(&mut &b"text"[..], &stopped).unwrap_err().kind, Kind::Cancelled);
            assert!(!dir.path().join(given).exists());
            assert_eq!(place.write(&mut &b"text"[..], &go), Ok(4));
            assert_eq!(std::fs::read(dir.path().join(given)).unwrap(), b"text");
            assert_eq!(place.write(&mut &b"other"[..], &go).unwrap_err().kind, Kind::Exists);
            assert_eq!(std::fs::read(dir.path().join(given)).unwrap(), b"text");
        }
        for (given, kind) in [
            ("old", Kind::Exists),
            ("dangling", Kind::Exists),
            ("sub", Kind::Exists),
            ("link/new", Kind::OutsideRoot),
            ("../new", Kind::OutsideRoot),
            ("/etc/new", Kind::OutsideRoot),
            ("sub/..", Kind::InvalidArguments),
            (".", Kind::InvalidArguments),
            ("none/new", Kind::NotFound),
        ] {
            assert_eq!(below.new_place(given).unwrap_err().kind, kind, "{given}");
        }
        let names = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!((names, std::fs::read_dir(outside.path()).unwrap().count()), (5, 0), "nothing is left behind");
    }
}
