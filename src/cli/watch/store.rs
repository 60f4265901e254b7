//! The files of a watch: its state and its configuration. It never writes more than it can read again.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, ensure, Context};
use rustix::fs::{flock, FileType, FlockOperation};
use serde::{Deserialize, Serialize};

use super::super::destination::{find, Destination, DestinationError, Directory};
use super::super::evidence;
use super::super::failure::Failure;
use super::super::output::{Output, Readers};
use crate::config::Placement;
use crate::evidence::{file, Evidence, MAX_CONFIGURATION};

/// Bytes of the state that are read and written: two configurations, whose quotes take two bytes each, and figures.
const MAX_STATE: usize = 4 * MAX_CONFIGURATION + (1 << 20);
/// The version of the state on disk.
const STATE_VERSION: u32 = 1;

/// The state beside the evidence.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) version: u32,
    /// The loaded configuration, and what was better than it in the last interval.
    pub(super) loaded: Option<String>,
    pub(super) candidate: Option<String>,
    /// CMD has not been run, or not with success, since the configuration was replaced.
    pub(super) is_exec_due: bool,
    pub(super) totals: Totals,
}

/// The fields that every version of the state has.
#[derive(Debug, Deserialize)]
struct Versioned {
    version: u32,
}

/// Sums since the state was made.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Totals {
    pub(super) intervals: u64,
    pub(super) changes: u64,
    pub(super) samples: f64,
    pub(super) lost: u64,
    pub(super) failed_slices: u64,
    pub(super) failed_execs: u64,
    /// Files that could not be written.
    #[serde(default)]
    pub(super) failed_writes: u64,
    /// Configurations that are larger than is read again.
    #[serde(default)]
    pub(super) too_large: u64,
    /// Slices that came later, or not at all, as they cost too much.
    #[serde(default)]
    pub(super) late_slices: u64,
}

/// The directory of the state, which is locked.
pub(super) struct Store {
    path: PathBuf,
    _lock: File,
}

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let open = || -> anyhow::Result<File> {
            let lock = Directory::make(path)?.keep("lock").context("lock")?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive)
                .map_err(|_| anyhow!("another scxprof watch uses this directory"))?;
            Ok(lock)
        };
        let lock = open().with_context(|| format!("--state {}", path.display())).map_err(Failure::Usage)?;
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    pub(super) fn read(&self) -> Result<Option<(Stored, Evidence)>, Failure> {
        let path = self.path.join("state.json");
        let failed = |what: &dyn std::fmt::Display| Failure::Usage(anyhow!("{}: {what}", path.display()));
        let text = read_bounded(&path, MAX_STATE).map_err(|error| failed(&error))?;
        let Some(text) = text else { return Ok(None) };
        let wrong = |what: String| failed(&format!("{what}; remove the directory's files to begin again"));
        let damaged = |error| wrong(format!("it is damaged: {error}"));
        let Versioned { version: found } = serde_json::from_str(&text).map_err(damaged)?;
        if found != STATE_VERSION {
            return Err(wrong(format!("it is of version {found}, and this scxprof reads version {STATE_VERSION}")));
        }
        let state: Stored = serde_json::from_str(&text).map_err(damaged)?;
        let mut evidence = Evidence::default();
        file::read(&self.path.join("evidence.parquet"), &mut evidence, &mut |key| key)
            .map_err(|error| wrong(error.to_string()))?;
        Ok(Some((state, evidence)))
    }

    pub(super) fn write(&self, state: Stored, evidence: &Evidence) -> Result<(), Failure> {
        let to = |name: &str| Output::open(Some(&self.path.join(name)), Readers::Owner).map_err(Failure::NoResult);
        let state = Stored { version: STATE_VERSION, ..state };
        let text = serde_json::to_string(&state).context("the state").map_err(Failure::NoResult)?;
        if text.len() > MAX_STATE {
            let most = MAX_STATE >> 20;
            return Err(Failure::NoResult(anyhow!(
                "the state has more than {most} MiB, which would not be read again"
            )));
        }
        evidence::write(evidence, to("evidence.parquet")?)?;
        to("state.json")?.write(text.as_bytes(), false).map_err(Failure::NoResult)
    }
}

/// A text of at most this number of bytes; `None` if there is no such file. Another user's link is not followed, and nothing is waited
/// for.
fn read_bounded(path: &Path, most: usize) -> anyhow::Result<Option<String>> {
    let there = match find(path) {
        Ok(Destination::There { there, .. } | Destination::Open(there)) => there,
        Ok(Destination::New { .. }) | Err(DestinationError::Missing { .. }) => return Ok(None),
        Ok(Destination::Directory(_)) => return Err(anyhow!("it is a directory")),
        Err(error) => return Err(error.into()),
    };
    // A write into it leaves nothing to read: /dev/null.
    if there.kind() == FileType::CharacterDevice {
        return Ok(None);
    }
    let mut text = String::new();
    there.read()?.take(most as u64 + 1).read_to_string(&mut text)?;
    ensure!(text.len() <= most, "it has more than {} MiB", most >> 20);
    Ok(Some(text))
}

/// The configuration that is there; `None` if there is none, or only an empty file.
pub(super) fn loaded(path: &Path) -> Result<Option<String>, Failure> {
    let read = || -> anyhow::Result<Option<String>> {
        let text = read_bounded(path, MAX_CONFIGURATION)?.filter(|text| !text.trim().is_empty());
        if let Some(text) = &text {
            let undecided = Placement::parse(text)?.undecided();
            if !undecided.is_empty() {
                let kinds = Vec::from_iter(undecided).join(", ");
                say!(
                    "note: {}: the evidence of a watch has cgroups, names and hints of threads, and does not decide {kinds}: a thread \
                     counts as kept with none where that decides",
                    path.display()
                );
            }
        }
        Ok(text)
    };
    read().with_context(|| format!("-o {}", path.display())).map_err(Failure::Usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_state_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("state/of/a watch")).unwrap();
        assert!(store.read().unwrap().is_none());
        // Each quote takes two bytes.
        let large = "\"".repeat(MAX_CONFIGURATION);
        let state = |loaded: &str| Stored {
            loaded: Some(loaded.to_owned()),
            candidate: Some(large.clone()),
            totals: Totals { intervals: 7, ..Totals::default() },
            ..Stored::default()
        };
        store.write(state(&large), &Evidence::default()).unwrap();
        let (read, _) = store.read().unwrap().unwrap();
        assert!(read.loaded.as_deref() == Some(&large) && read.candidate.as_deref() == Some(&large));
        assert_eq!(read.totals.intervals, 7);
        // What would not be read is not written; what was there stays.
        assert!(store.write(state(&large.repeat(2)), &Evidence::default()).is_err());
        assert_eq!(store.read().unwrap().unwrap().0.totals.intervals, 7);
    }

    #[test]
    fn a_configuration_is_as_long_as_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cells.json");
        assert!(loaded(&path).unwrap().is_none());
        let cells = r#"[{"name": "all", "matches": {}}]"#;
        let text = |bytes: usize| format!("{cells}{}", " ".repeat(bytes - cells.len()));
        std::fs::write(&path, text(MAX_CONFIGURATION)).unwrap();
        assert_eq!(loaded(&path).unwrap().unwrap().len(), MAX_CONFIGURATION);
        std::fs::write(&path, text(MAX_CONFIGURATION + 1)).unwrap();
        assert!(loaded(&path).unwrap_err().sentence().contains("it has more than 16 MiB"));
    }
}
