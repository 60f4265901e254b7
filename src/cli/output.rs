//! Where a result goes: stdout, or a file that is whole or not there.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

/// Writes all of `bytes` to stdout.
pub(super) fn print(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).context("cannot write to stdout")
}

/// A result's destination, made before the capture begins so that it cannot fail for a wrong path after it.
#[derive(Debug)]
pub(super) enum Output {
    Stdout,
    /// A file that is replaced when the result is whole.
    File {
        path: PathBuf,
        temporary: NamedTempFile,
    },
    /// A device or a pipe, which must not be replaced by a file.
    Special {
        path: PathBuf,
        file: File,
    },
}

impl Output {
    /// `None` and `-` stand for stdout; `option` is what named the path.
    pub(super) fn open(option: &str, path: Option<&Path>) -> Result<Self> {
        let Some(path) = path.filter(|path| *path != Path::new("-")) else { return Ok(Self::Stdout) };
        let exists = path.metadata().ok();
        if exists.as_ref().is_some_and(std::fs::Metadata::is_dir) {
            anyhow::bail!("{option} {}: is a directory", path.display());
        }
        if exists.as_ref().is_some_and(|metadata| !metadata.is_file()) {
            let file = File::options()
                .write(true)
                .open(path)
                .with_context(|| format!("{option} {}: cannot write", path.display()))?;
            return Ok(Self::Special { path: path.to_owned(), file });
        }
        // What a link points to is replaced, not the link.
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let path = real.as_path();
        let name = path.file_name().with_context(|| format!("{option} {}: not a file's name", path.display()))?;
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if !directory.is_dir() {
            anyhow::bail!("{option} {}: there is no directory {}", path.display(), directory.display());
        }
        let permissions = exists.map_or_else(|| Permissions::from_mode(0o644), |metadata| metadata.permissions());
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        let temporary = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".tmp")
            .permissions(permissions)
            .tempfile_in(directory)
            .with_context(|| format!("{option} {}: cannot write in {}", path.display(), directory.display()))?;
        Ok(Self::File { path: path.to_owned(), temporary })
    }

    /// Writes the result. A file that cannot be written leaves no trace, and the result goes to stdout instead, where that is
    /// `free`.
    pub(super) fn write(self, bytes: &[u8], free: bool) -> Result<()> {
        let (path, result) = match self {
            Self::Stdout => return print(bytes),
            Self::Special { path, mut file } => (path, file.write_all(bytes)),
            Self::File { path, mut temporary } => {
                let written = temporary.write_all(bytes).and_then(|()| temporary.as_file().sync_all());
                let result = match written {
                    Ok(()) => temporary.persist(&path).map(drop).map_err(|error| error.error),
                    Err(error) => Err(error),
                };
                (path, result)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cells.json");
        let output = Output::open("-o", Some(&path)).unwrap();
        assert!(!path.exists());
        output.write(b"[]\n", true).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"[]\n");
        drop(Output::open("-o", Some(&path)).unwrap());
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn a_wrong_path_is_told_before_the_capture() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Output::open("-o", Some(directory.path())).is_err());
        assert!(Output::open("-o", Some(&directory.path().join("no/such/cells.json"))).is_err());
    }
}
