//! Scheduling events in a file of their own, beside that with memory, as scx_characterize records them.

use std::path::{Path, PathBuf};

use super::{Profile, Records, SCHED_FILES};
use crate::profile::error::ProfileError;

impl Profile {
    /// True if it has only scheduling events, as one of the files of scx_characterize that have them.
    pub(crate) fn has_only_sched(&self) -> bool {
        let is_named_so = SCHED_FILES.iter().any(|name| self.data.file_name().is_some_and(|file| file == *name));
        matches!(self.records, Records::Sched(_)) || is_named_so
    }

    /// The profile of the file with scheduling events that lies beside its own, if there is one. The result must not outlive it.
    ///
    /// # Errors
    /// As [`Profile::open`].
    pub(crate) fn sched_beside(&self) -> Result<Option<Self>, ProfileError> {
        let is_ours = self.meta.is_some() && self.perf_data().is_some();
        if self.has_only_sched() || is_ours {
            return Ok(None);
        }
        let Some(path) = sched_in(&self.data) else { return Ok(None) };
        let dir = self.unpacked.as_ref().map(|unpacked| unpacked.dir.path().to_owned());
        let opened = Self::open_files(&path, None).map_err(|error| match &dir {
            Some(dir) => error.in_archive(dir, &self.path),
            None => error,
        });
        opened.map(Some)
    }

    /// The same profile, but with its scheduling events if they are in a file of their own beside its memory.
    ///
    /// # Errors
    /// As [`Profile::open`].
    pub(crate) fn into_sched(self) -> Result<Self, ProfileError> {
        let Some(sched) = self.sched_beside()? else { return Ok(self) };
        // The file lies in the directory to which an archive was unpacked.
        let (path, unpacked) = (self.path, self.unpacked);
        Ok(Self { path, unpacked, ..sched })
    }
}

/// The file with scheduling events beside `data`.
fn sched_in(data: &Path) -> Option<PathBuf> {
    let files = SCHED_FILES.iter().map(|name| data.with_file_name(name));
    files.into_iter().find(|path| path.symlink_metadata().is_ok_and(|it| it.is_file() || it.is_symlink()))
}
