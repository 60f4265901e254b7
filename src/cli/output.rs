//! The destination of a result: stdout, or a file that is either complete or absent.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, IsTerminal, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{fchown, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail, Context};
use rustix::fs::{linkat, AtFlags, FileType, Stat, CWD};
use tempfile::NamedTempFile;

use super::call::Printer;
use super::destination::{find, Destination, DestinationError, Directory, There};
use super::failure::Failure;
use super::width;

/// The stdout of this process, as it was when it began: a result that goes to a closed stdout would be lost silently, as Rust
/// opens /dev/null in its place. Each command that prints gets it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stdout {
    is_open: bool,
}

impl Stdout {
    pub(super) fn new(is_open: bool) -> Self {
        Self { is_open }
    }

    /// Opens where `-o` wants the result: `None` and `-` stand for stdout.
    ///
    /// # Errors
    /// [`Failure::Usage`] if that is stdout, which is closed, or if the file cannot be written.
    pub(super) fn open(self, path: Option<&Path>) -> Result<Output, Failure> {
        self.check(path)?;
        Output::open(path, Readers::All).map_err(Failure::Usage)
    }

    /// The same error without opening, for what must be told before a command is held.
    pub(super) fn check(self, path: Option<&Path>) -> Result<(), Failure> {
        if is_stdout(path) {
            self.demand("there is nowhere to print to; use -o FILE")
        } else {
            Ok(())
        }
    }

    /// Refuses a closed stdout; `consequence` is the rest of the sentence.
    pub(super) fn demand(self, consequence: &str) -> Result<(), Failure> {
        if self.is_open {
            Ok(())
        } else {
            Err(Failure::Usage(anyhow!("stdout is closed, so {consequence}")))
        }
    }
}

/// True if what an option names is stdout.
pub(super) fn is_stdout(path: Option<&Path>) -> bool {
    path.is_none_or(|path| path == Path::new("-"))
}

/// Writes all of `bytes` to stdout.
pub(super) fn print(bytes: &[u8]) -> anyhow::Result<()> {
    Printer.write_all(bytes).and_then(|()| Printer.flush()).context("cannot write to stdout")
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
    pub(super) fn open(path: Option<&Path>, readers: Readers) -> anyhow::Result<Self> {
        let Some(path) = path.filter(|path| !is_stdout(Some(path))) else { return Ok(Self::Stdout) };
        Self::at(path, readers).map_err(|error| match error.downcast_ref() {
            Some(DestinationError::Open { at, source }) if at == path => {
                anyhow!("cannot write {}: {}", path.display(), source.kind())
            }
            _ => anyhow!("cannot write {}: {error}", path.display()),
        })
    }

    fn at(path: &Path, readers: Readers) -> anyhow::Result<Self> {
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
        // Created only to check that it can be.
        replaced.check().map_err(|error| anyhow!("{}", error.kind()))?;
        Ok(Self::File(replaced))
    }

    /// The columns of text for people there; `None` if it has as many as it needs, as in a file.
    pub(super) fn width(&self) -> Option<usize> {
        match self {
            Self::Stdout => width::of(&io::stdout()),
            Self::Special { file, .. } => width::of(file),
            Self::File(_) => None,
        }
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

    /// True if a write may wait for a reader, who may never come.
    pub(super) fn may_wait(&self) -> bool {
        match self {
            Self::Stdout => true,
            Self::File(_) => false,
            Self::Special { file, .. } => {
                let is = |kind: &[FileType]| {
                    rustix::fs::fstat(file).is_ok_and(|it| kind.contains(&FileType::from_raw_mode(it.st_mode)))
                };
                !is(&[FileType::RegularFile, FileType::CharacterDevice]) || file.is_terminal()
            }
        }
    }

    /// Writes all lines that `from` has. A file that cannot be written leaves no trace. The reader of a pipe may close it when it
    /// has read enough, as head(1) does.
    pub(super) fn copy(self, from: &mut impl io::Read) -> anyhow::Result<()> {
        let (path, result) = match self {
            Self::Stdout => (PathBuf::from("stdout"), io::copy(from, &mut Printer).and_then(|_| Printer.flush())),
            Self::Special { path, mut file } => (path, io::copy(from, &mut file).map(drop)),
            Self::File(replaced) => {
                let result = replaced.write(from);
                (replaced.path, result)
            }
        };
        match result {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result.with_context(|| format!("cannot write {}", path.display())),
        }
    }

    /// Writes the result. A file that cannot be written leaves no trace, and the result goes to stdout instead, if that is
    /// `free`.
    pub(super) fn write(self, bytes: &[u8], free: bool) -> anyhow::Result<()> {
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

fn special(path: &Path, there: &There) -> anyhow::Result<Output> {
    match there.kind() {
        FileType::Directory => bail!("is a directory"),
        FileType::BlockDevice => bail!("is a block device, which is not written to"),
        FileType::Socket => bail!("is a socket, which cannot be opened"),
        _ => {}
    }
    let file = there.write().map_err(|error| match error.raw_os_error() {
        Some(libc::ENXIO) if there.kind() == FileType::Fifo => {
            anyhow!("is a FIFO without a reader: start its reader first")
        }
        _ => anyhow!("{}", error.kind()),
    })?;
    Ok(Output::Special { path: path.to_owned(), file })
}

impl Replaced {
    /// Whether a file can be created there. Where the file system can, that has no name, so that none stays behind if we are
    /// killed meanwhile.
    fn check(&self) -> io::Result<()> {
        match self.directory.unnamed(self.mode) {
            Err(error) if has_a_name(&error) => self.named(|path| self.create(path)).map(drop),
            made => made.map(drop),
        }
    }

    /// A new name beside it for what `make` makes there, which is deleted unless it gets the name.
    fn named<F>(&self, make: impl FnMut(&Path) -> io::Result<F>) -> io::Result<NamedTempFile<F>> {
        tempfile::Builder::new().prefix(".scxprof-").suffix(".tmp").make_in(self.directory.path(), make)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        File::options().read(true).write(true).create_new(true).mode(self.mode).open(path)
    }

    fn write(&self, from: &mut impl io::Read) -> io::Result<()> {
        let mut file = match self.directory.unnamed(self.mode) {
            Err(error) if has_a_name(&error) => return self.write_named(from),
            made => made?,
        };
        io::copy(from, &mut file)?;
        file.sync_all()?;
        let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
        let link = |path: &Path| Ok(linkat(CWD, &unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW)?);
        // A name that is not taken needs no other before it.
        if self.owner.is_none() && link(&self.directory.path().join(&self.name)).is_ok() {
            return Ok(());
        }
        // It has another name for the time of two system calls: only a new name can replace an old one.
        if let Ok(named) = self.named(link) {
            return self.finish(&file, named);
        }
        // Not every file system that makes one gives it a name.
        file.rewind()?;
        self.write_named(&mut file)
    }

    /// The same where each file has a name.
    fn write_named(&self, from: &mut impl io::Read) -> io::Result<()> {
        let mut named = self.named(|path| self.create(path))?;
        io::copy(from, named.as_file_mut())?;
        named.as_file().sync_all()?;
        let file = named.as_file().try_clone()?;
        self.finish(&file, named)
    }

    /// Gives a whole file its name.
    fn finish<F>(&self, file: &File, named: NamedTempFile<F>) -> io::Result<()> {
        if let Some((user, group)) = self.owner {
            // Without the right to change the owner it stays ours, as when `mv` replaces a file.
            let _ = fchown(file, Some(user), Some(group));
            // Independent of the umask.
            file.set_permissions(Permissions::from_mode(self.mode))?;
        }
        named.persist(self.directory.path().join(&self.name)).map(drop).map_err(|error| error.error)
    }
}

/// True if the file system, or an old kernel, has no files without a name (`O_TMPFILE`, open(2)).
fn has_a_name(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT | libc::EINVAL | libc::ENOSYS))
}

#[cfg(test)]
mod tests {
    use rustix::fs::inotify;

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
    fn what_is_not_whole_has_no_name() {
        /// Looks into the directory while it is read.
        struct Looking<'a>(&'a Path, bool);
        impl io::Read for Looking<'_> {
            fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
                let names: Vec<_> = std::fs::read_dir(self.0)?.map(|entry| entry.unwrap().file_name()).collect();
                assert!(names.iter().all(|name| name == "cells.json"), "{names:?}");
                let byte = usize::from(!std::mem::replace(&mut self.1, true));
                bytes[..byte].fill(b'x');
                Ok(byte)
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cells.json");
        let held = Directory::open(directory.path()).unwrap();
        if held.unnamed(0o600).is_err() {
            println!("SKIP: what_is_not_whole_has_no_name: no files without a name here");
            return;
        }
        // A name that exists for a moment is seen too.
        let made = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&made, directory.path(), inotify::WatchFlags::CREATE).unwrap();
        let output = Output::open(Some(&path), Readers::Owner).unwrap();
        assert!(rustix::io::read(&made, &mut [0; 256]).is_err(), "a name was made only to see that it can be");
        output.copy(&mut Looking(directory.path(), false)).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let output = Output::open(Some(&path), Readers::Owner).unwrap();
        output.copy(&mut Looking(directory.path(), false)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"x");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_file_system_without_unnamed_files_has_whole_ones() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cells.json");
        for (content, mode) in [("old", 0o600), ("new", 0o640)] {
            let Output::File(replaced) = Output::open(Some(&path), Readers::Owner).unwrap() else { panic!("no file") };
            replaced.write_named(&mut content.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn a_closed_stdout_is_refused_where_the_result_would_go_there() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cells.json");
        for (is_open, path, is_refused) in [
            (true, None, false),
            (true, Some(Path::new("-")), false),
            (false, None, true),
            (false, Some(Path::new("-")), true),
            (false, Some(&file), false),
        ] {
            let opened = Stdout::new(is_open).open(path);
            assert_eq!(matches!(opened, Err(Failure::Usage(_))), is_refused, "{is_open} {path:?}");
        }
    }

    #[test]
    fn a_wrong_path_is_told_before_the_capture() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Output::open(Some(directory.path()), Readers::All).is_err());
        assert!(Output::open(Some(&directory.path().join("no/such/cells.json")), Readers::All).is_err());
    }
}
