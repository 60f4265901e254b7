//! The directory that `process` writes: it has a temporary name until it is complete, and replaces only what `process` wrote before.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, Context};
use rustix::fs::{openat, renameat_with, unlinkat, AtFlags, Mode, OFlags, RenameFlags, CWD};
use rustix::io::Errno;

use super::destination::Directory;
use super::failure::Failure;
use crate::profile::Meta;

/// The lines of accesses.
pub(super) const LINES: &str = "perf.jsonl";
/// The lines of scheduling events.
pub(super) const SCHED_LINES: &str = "perf.sched.jsonl";
/// All that `process` writes.
const WRITTEN: [&str; 4] = [LINES, SCHED_LINES, META, TASKS];
/// The file that shows that `process` wrote the others.
const META: &str = "meta.json";
const TASKS: &str = crate::profile::tasks::NAME;

/// A directory that is being filled.
pub(super) struct LinesDir {
    /// Its path once it is complete.
    pub(super) path: PathBuf,
    /// Its path leads through `parent`, which must stay open longer.
    temporary: tempfile::TempDir,
    /// The temporary directory.
    pub(super) dir: Directory,
    parent: Directory,
}

impl LinesDir {
    /// For the lines of `profile`, with the path `wanted` if that is given.
    pub(super) fn new(profile: &Path, wanted: Option<&Path>) -> Result<Self, Failure> {
        let path = wanted.map_or_else(|| beside(profile), Path::to_owned);
        let name = path.file_name();
        let name = name.ok_or_else(|| Failure::Usage(anyhow!("-o {}: not a directory's name", path.display())))?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut prefix = OsString::from(".");
        prefix.push(name);
        let failed = || format!("cannot write in {} (-o names another place)", parent.display());
        let parent = Directory::open(parent).with_context(failed).map_err(Failure::Usage)?;
        if !is_free(&parent.path().join(name)) {
            return Err(Failure::Usage(in_the_way(&path)));
        }
        let temporary = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(".tmp")
            .permissions(PermissionsExt::from_mode(0o700))
            .tempdir_in(parent.path())
            .with_context(failed)
            .map_err(Failure::Usage)?;
        let dir = Directory::open(temporary.path()).map_err(|error| Failure::Usage(error.into()))?;
        Ok(Self { path: path.clone(), temporary, dir, parent })
    }

    /// Gives it its name. What `process` wrote there before is removed.
    pub(super) fn publish(self) -> anyhow::Result<()> {
        let named = self.parent.path().join(self.path.file_name().unwrap_or_default());
        let temporary = self.temporary.path();
        if named.symlink_metadata().is_err() {
            fs::rename(temporary, &named)?;
            let _ = self.temporary.keep();
            return Ok(());
        }
        if !is_free(&named) {
            return Err(in_the_way(&self.path));
        }
        let old = match renameat_with(CWD, temporary, CWD, &named, RenameFlags::EXCHANGE) {
            Ok(()) => self.temporary,
            // Not every file system exchanges names.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                let old = tempfile::Builder::new().prefix(".").suffix(".old").tempdir_in(self.parent.path())?;
                fs::rename(&named, old.path())?;
                if let Err(error) = fs::rename(temporary, &named) {
                    fs::rename(old.path(), &named)?;
                    return Err(error.into());
                }
                let _ = self.temporary.keep();
                old
            }
            Err(error) => return Err(error.into()),
        };
        // Another program may have put something there meanwhile: nothing is removed by other names than these.
        let old = old.keep();
        let failed = || format!("the lines are whole, but what was there before stays as {}", old.display());
        remove(&old).with_context(failed)
    }
}

/// The default: `web.out` for `web` and for `web.tar.gz`.
fn beside(profile: &Path) -> PathBuf {
    let name = profile.file_name().unwrap_or(OsStr::new("profile")).as_bytes();
    let ends = [&b".tar.gz"[..], b".tgz"];
    let stem = ends.iter().find_map(|end| name.strip_suffix(*end)).filter(|stem| !stem.is_empty()).unwrap_or(name);
    let mut name = OsStr::from_bytes(stem).to_owned();
    name.push(".out");
    profile.with_file_name(name)
}

/// True if nothing has this name, or a directory with nothing else than what `process` writes.
fn is_free(path: &Path) -> bool {
    let Ok(metadata) = path.symlink_metadata() else { return true };
    if !metadata.is_dir() || !matches!(Meta::read(path), Ok(Some(_))) {
        return false;
    }
    let Ok(entries) = fs::read_dir(path) else { return false };
    let mut has_lines = false;
    for entry in entries {
        let Ok(entry) = entry else { return false };
        let name = entry.file_name();
        if !WRITTEN.iter().any(|known| name == *known) || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            return false;
        }
        has_lines |= name != META && name != TASKS;
    }
    has_lines
}

fn in_the_way(path: &Path) -> anyhow::Error {
    anyhow!(
        "{} exists already and is not what `process` wrote: it is never overwritten: remove it or name another with -o",
        path.display()
    )
}

/// Removes a directory with what `process` writes, and nothing else in it.
fn remove(path: &Path) -> std::io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let dir = openat(CWD, path, flags, Mode::empty())?;
    for name in WRITTEN {
        match unlinkat(&dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_lines_of_its_directory() {
        for (profile, out) in [
            ("web.tar.gz", "web.out"),
            ("/a/web.tgz", "/a/web.out"),
            ("web", "web.out"),
            ("web/", "web.out"),
            ("perf.data", "perf.data.out"),
            (".tar.gz", ".tar.gz.out"),
            ("x.gz", "x.gz.out"),
        ] {
            assert_eq!(beside(Path::new(profile)), Path::new(out), "{profile}");
        }
    }
}
