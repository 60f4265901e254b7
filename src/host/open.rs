//! Opens files that other users chose: only regular ones, and only those inside the process's own root.
//!
//! Opening a device or a pipe can have effects, and can block. So a file is opened only after it is known to be regular: a
//! descriptor that only refers to the file (`O_PATH`, open(2)) is checked, and the same file is opened through it.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{openat, openat2, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Opens a regular file for reading. Links are followed as usual.
///
/// # Errors
/// Those of open(2); [`io::ErrorKind::InvalidInput`] if it is no regular file.
pub(crate) fn regular(path: &Path) -> io::Result<File> {
    let named = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    open_named(&named)
}

/// As [`regular`], for a path without a leading `/`, as a process with the root directory `root` sees it: absolute links and
/// `..` stay inside. Before Linux 5.6 they are resolved in our own root.
///
/// # Errors
/// As there.
pub(crate) fn regular_inside(root: &Path, relative: &Path) -> io::Result<File> {
    inside(root, relative, OFlags::empty())
}

/// As [`regular_inside`], for a path whose last part must not be a link.
///
/// # Errors
/// As there.
pub(crate) fn regular_itself_inside(root: &Path, relative: &Path) -> io::Result<File> {
    inside(root, relative, OFlags::NOFOLLOW)
}

/// Opens the file at an absolute path as the process of this procfs directory sees it.
///
/// # Errors
/// As [`regular_inside`]; [`io::ErrorKind::NotFound`] for a path that is not absolute.
pub(crate) fn of_process(process: &Path, path: &[u8]) -> io::Result<File> {
    let path = path.strip_prefix(b"/").ok_or(io::ErrorKind::NotFound)?;
    regular_inside(&process.join("root"), Path::new(OsStr::from_bytes(path)))
}

/// Opens the file that the process of this procfs directory maps from `start` to `end`, whatever its path is now. This needs
/// `CAP_CHECKPOINT_RESTORE`.
///
/// # Errors
/// As [`regular`].
pub(crate) fn mapped(process: &Path, start: u64, end: u64) -> io::Result<File> {
    regular(&process.join(format!("map_files/{start:x}-{end:x}")))
}

fn inside(root: &Path, relative: &Path, flags: OFlags) -> io::Result<File> {
    let directory = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(root)?;
    match named_inside(&directory, relative, flags) {
        Ok(named) => open_named(&named),
        // The kernel lacks it, or a system call filter that does not know it rejects it.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            let flags = OFlags::PATH | OFlags::CLOEXEC | flags;
            open_named(rustix::fs::open(root.join(relative), flags, Mode::empty())?)
        }
        Err(error) => Err(error),
    }
}

/// A descriptor that only refers to `relative` inside `directory`.
fn named_inside(directory: &File, relative: &Path, flags: OFlags) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | flags;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(directory, relative, flags, Mode::empty(), resolve)?.into())
}

/// As [`regular`], for a path whose last part must not be a link: a file found beside another one may lead anywhere.
///
/// # Errors
/// As there.
pub(crate) fn regular_itself(path: &Path) -> io::Result<File> {
    let named = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path)?;
    open_named(&named)
}

/// Opens `name` in a directory for writing, with what it has, or makes it: for a file that is locked. A link is not followed.
///
/// # Errors
/// As [`regular_itself`].
pub(crate) fn kept_in(directory: impl AsFd, name: &OsStr) -> io::Result<File> {
    let named = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // It may come and go between the two calls.
    for _ in 0..8 {
        match openat(&directory, name, named, Mode::empty()) {
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
            Ok(there) if is_link(&there)? => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "it is a symbolic link, which is not followed",
                ));
            }
            Ok(there) => return referred(&there, OpenOptions::new().write(true)),
        }
        match openat(&directory, name, made, Mode::RUSR | Mode::WUSR) {
            Err(Errno::EXIST) => {}
            made => return Ok(made?.into()),
        }
    }
    Err(Errno::EXIST.into())
}

fn is_link(named: impl AsFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(named)?.st_mode) == FileType::Symlink)
}

/// Opens the file that a descriptor refers to.
///
/// # Errors
/// As [`regular`].
pub(crate) fn open_named(named: impl AsFd) -> io::Result<File> {
    referred(named, OpenOptions::new().read(true))
}

fn referred(named: impl AsFd, how: &mut OpenOptions) -> io::Result<File> {
    let reason = match FileType::from_raw_mode(rustix::fs::fstat(&named)?.st_mode) {
        FileType::RegularFile => {
            let path = format!("/proc/self/fd/{}", named.as_fd().as_raw_fd());
            return how.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
        }
        FileType::Symlink => "it is a symbolic link, and those within a profile are not followed",
        FileType::Directory => "it is a directory",
        _ => "it is not a regular file but a pipe, a socket or a device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use rustix::fs::{mknodat, FileType, CWD};

    use super::*;

    fn text(file: io::Result<File>) -> String {
        let mut text = String::new();
        file.unwrap().read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn nothing_but_regular_files_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        symlink("/dev/null", dir.path().join("device")).unwrap();
        std::fs::write(dir.path().join("file"), "x").unwrap();
        symlink("file", dir.path().join("link")).unwrap();
        // A writer would find the reader that opening the pipe creates for a moment.
        let opens_for_writing = || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&fifo).is_ok();
        let watched = std::thread::scope(|scope| {
            let opener = scope.spawn(|| {
                for name in ["fifo", "device", "."] {
                    for _ in 0..2000 {
                        let error = regular(&dir.path().join(name)).unwrap_err();
                        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}");
                        assert!(regular_inside(dir.path(), Path::new(name)).is_err());
                    }
                }
            });
            let mut seen = 0;
            while !opener.is_finished() {
                seen += u32::from(opens_for_writing());
            }
            seen
        });
        assert_eq!(watched, 0, "the pipe was opened");
        assert_eq!(text(regular(&dir.path().join("link"))), "x");
        assert_eq!(text(regular_inside(dir.path(), Path::new("link"))), "x");
        assert_eq!(text(regular_itself(&dir.path().join("file"))), "x");
        assert!(regular_itself(&dir.path().join("link")).unwrap_err().to_string().contains("symbolic link"));
        assert!(regular(&dir.path().join("none")).is_err());
    }

    #[test]
    fn a_kept_file_is_opened_or_made_and_is_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let held = File::open(dir.path()).unwrap();
        let kept = |name: &str| kept_in(&held, OsStr::new(name));
        kept("new").unwrap();
        std::fs::write(dir.path().join("old"), "x").unwrap();
        kept("old").unwrap();
        assert_eq!(std::fs::read(dir.path().join("old")).unwrap(), b"x", "it keeps what it has");
        mknodat(CWD, dir.path().join("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        symlink("elsewhere", dir.path().join("link")).unwrap();
        std::fs::create_dir(dir.path().join("directory")).unwrap();
        for name in ["fifo", "link", "directory"] {
            assert_eq!(kept(name).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        assert!(!dir.path().join("elsewhere").exists(), "a link makes no file");
    }

    #[test]
    fn links_stay_inside_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("lib")).unwrap();
        std::fs::write(dir.path().join("secret"), "ours").unwrap();
        std::fs::write(root.join("secret"), "theirs").unwrap();
        symlink("../../../../../../secret", root.join("lib/up")).unwrap();
        symlink(dir.path().join("secret"), root.join("lib/absolute")).unwrap();
        symlink("/secret", root.join("lib/own")).unwrap();
        if named_inside(&File::open(&root).unwrap(), Path::new("secret"), OFlags::empty()).is_err() {
            println!("SKIP: links_stay_inside_the_root: no openat2");
            return;
        }
        assert_eq!(text(regular_inside(&root, Path::new("lib/up"))), "theirs");
        assert_eq!(text(regular_inside(&root, Path::new("lib/own"))), "theirs");
        assert!(regular_inside(&root, Path::new("lib/absolute")).is_err());
        assert!(regular_itself_inside(&root, Path::new("lib/own")).is_err());
        assert_eq!(text(regular_itself_inside(&root, Path::new("secret"))), "theirs");
        assert_eq!(text(regular_inside(Path::new("/"), dir.path().join("secret").strip_prefix("/").unwrap())), "ours");
    }
}
