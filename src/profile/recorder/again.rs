//! What is recorded again during a recording: all processes after records were lost, and processes whose mappings changed
//! without a record.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use super::{records, Intake, Recorder, Snapshot, TimedSideBand};
use crate::host::clock::monotonic_ns;
use crate::host::Roots;
use crate::resolve::maps::check::{read_lines, PrivateFiles};
use crate::resolve::Mapping;
use crate::sampler::tee::Tee;

/// The private mappings of files of a process, start and end; `None` if they are not known.
type Files = Option<Vec<(u64, u64)>>;
/// A process with these.
pub(crate) type FilesOf = (u32, Files);

/// The number of processes whose mappings are compared with the recorded ones.
const MAX_CHECKED: usize = 1 << 14;

impl Recorder {
    /// After records were lost: writes the threads and mappings of all processes again, and the ends of those of `alive` that
    /// have exited. Passes them to `known`, process by process with its time, as a later reader would get them, until that
    /// returns false.
    pub(crate) fn renew(
        &self,
        roots: &Roots,
        alive: &[(u32, u32)],
        known: &mut dyn FnMut(u64, Vec<TimedSideBand>) -> bool,
    ) {
        self.renewed(known, |snapshot, now| {
            // Processes that cannot be read stay as they were, and the loss is counted already.
            if snapshot.processes(roots, None, now).is_ok() {
                snapshot.ends(roots, alive, now);
            }
        });
    }

    /// Writes the records that `write` makes, and passes them to `known`.
    fn renewed(
        &self,
        known: &mut dyn FnMut(u64, Vec<TimedSideBand>) -> bool,
        write: impl FnOnce(&mut Snapshot<'_>, &dyn Fn() -> u64),
    ) {
        let mut intake = Intake::new(self.identity, self.address_from.clone());
        let layout = self.layout;
        let mut out = |bytes: &[u8], time| {
            self.records(bytes, time, false);
            for record in records(bytes) {
                intake.take(record, &layout);
            }
            known(time, std::mem::take(&mut intake.batch().side_band))
        };
        // Until they are written, no mark may declare their time complete.
        let now = || {
            let mut state = self.lock();
            state.renewing = monotonic_ns();
            state.renewing
        };
        write(&mut Snapshot { layout, out: &mut out }, &now);
        self.lock().renewing = u64::MAX;
    }

    /// Writes the mappings of `pids` again if relevant ones differ from `known`, and passes them to `give` as
    /// [`Recorder::renew`] does. Returns their private mappings of files, which are not recorded.
    pub(crate) fn refresh(
        &self,
        roots: &Roots,
        pids: &[u32],
        known: &mut FxHashMap<u32, u64>,
        give: &mut dyn FnMut(u64, Vec<TimedSideBand>) -> bool,
    ) -> Vec<FilesOf> {
        let (mut changed, mut files) = (Vec::new(), Vec::new());
        for &pid in pids {
            let Some((differs, of_files)) = compare(roots, pid, known) else { continue };
            if differs {
                changed.push(pid);
            }
            files.push((pid, of_files));
        }
        if !changed.is_empty() {
            self.renewed(give, |snapshot, now| {
                let _ = changed.iter().all(|&pid| snapshot.process(roots, pid, None, now));
            });
        }
        files
    }
}

/// Whether the shared mappings and those of code differ from `known`, which is updated; and the private ones of files. `None` if
/// they cannot be read.
fn compare(roots: &Roots, pid: u32, known: &mut FxHashMap<u32, u64>) -> Option<(bool, Files)> {
    let (mut hash, mut files) = (FxHasher::default(), PrivateFiles::default());
    let read = read_lines(&roots.proc.join(format!("{pid}/maps")), |mapping| {
        files.see(&mapping);
        if mapping.is_shared() || mapping.is_executable() {
            let Mapping { start, len, pgoff, dev, ino, .. } = mapping;
            (start, len, pgoff, dev, ino).hash(&mut hash);
        }
    });
    if known.len() >= MAX_CHECKED {
        known.clear();
    }
    let unread = read.ok()?;
    Some((known.insert(pid, hash.finish()) != Some(hash.finish()), files.ranges(unread)))
}
