//! Opens the files of a profile. A stranger may have made it: what is no regular file is never opened.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens the regular file that somebody named, for reading. A link leads to its file: `/dev/stdin` is one.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for what is no regular file; those of open(2).
pub(crate) fn named(path: &Path) -> Result<File> {
    regular(path, 0)
}

/// The same for a file that was found beside another: a link that lies there may lead anywhere, and is refused.
///
/// # Errors
/// As [`named`].
pub(crate) fn beside(path: &Path) -> Result<File> {
    regular(path, libc::O_NOFOLLOW)
}

fn regular(path: &Path, flags: i32) -> Result<File> {
    // To open a FIFO blocks and to open a device does something. O_PATH opens nothing, and holds what is looked at.
    let place = File::options().read(true).custom_flags(libc::O_PATH | flags).open(path)?;
    let kind = place.metadata()?.file_type();
    if kind.is_file() {
        return File::open(format!("/proc/self/fd/{}", place.as_raw_fd()));
    }
    let reason = if kind.is_symlink() {
        "it is a symbolic link, and those within a profile are not followed"
    } else if kind.is_dir() {
        "it is a directory"
    } else {
        "it is no regular file, but a pipe, a socket or a device"
    };
    Err(Error::new(ErrorKind::InvalidInput, reason))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::io::Read;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let [file, link, fifo] = ["file", "link", "fifo"].map(|name| dir.path().join(name));
        std::fs::write(&file, "x").unwrap();
        symlink(&file, &link).unwrap();
        let name = CString::new(fifo.as_os_str().as_bytes()).unwrap();
        // SAFETY: the name ends with a NUL and outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let mut text = String::new();
        named(&link).unwrap().read_to_string(&mut text).unwrap();
        beside(&file).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "xx");
        for (result, reason) in [
            (beside(&link), "symbolic link"),
            (named(&fifo), "no regular file"),
            (beside(&fifo), "no regular file"),
            (named(Path::new("/dev/null")), "no regular file"),
            (named(dir.path()), "a directory"),
        ] {
            let error = result.unwrap_err();
            assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains(reason), "{error}");
        }
        assert_eq!(named(&dir.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
