//! Memory bandwidth and L3 occupancy by LLC, as the CPU counts them for groups of tasks: the file system resctrl
//! (Documentation/filesystems/resctrl.rst). It reads all groups, and makes only monitoring groups of its own.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rustc_hash::FxHashSet;
use rustix::fs::{flock, FlockOperation};
use serde::{Deserialize, Serialize};

use super::{clock, mountinfo, number, read, read_part, topology, Roots};

/// Bytes that are read of a file with a figure or a list of names.
const MAX_BYTES: u64 = 4 << 10;
/// Caches whose figures are read. A host has one for each 4 to 16 cores.
const MAX_DOMAINS: usize = 1024;
/// Control groups, and monitoring groups of others, that are looked at. There are at most as many as the hardware has numbers for
/// them: 16 and some hundred on CPUs by Intel and AMD.
const MAX_GROUPS: usize = 4096;
/// Bytes of a list of tasks that are read: `PID_MAX_LIMIT` of them (linux/threads.h).
const MAX_TASKS_BYTES: u64 = 8 << 22;
/// The names of our groups: `scxprof-PID-N`.
const PREFIX: &str = "scxprof-";

/// One group is made, or what dead processes left is removed, at a time.
static CHANGING: Mutex<()> = Mutex::new(());
/// The number of the next group that this process makes.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Why there are no figures of caches and memory, or no group of our own.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoResctrl {
    /// The file system is not mounted in our mount namespace.
    #[error("resctrl is not mounted (searched {}); mount -t resctrl resctrl /sys/fs/resctrl", mountinfo.display())]
    NotMounted {
        /// The list of mounts that was searched.
        mountinfo: PathBuf,
    },
    /// The CPU or the kernel can only allocate, or not even that: `info/L3_MON/mon_features` has no feature that is known here.
    #[error("resctrl at {} does not monitor: the CPU or the kernel has no monitoring of the L3 cache", point.display())]
    NoMonitoring {
        /// The mount point.
        point: PathBuf,
    },
    /// All monitoring ids (RMIDs) of the hardware are in use: `info/L3_MON/num_rmids`.
    #[error("no monitoring id is free for {} (the CPU has {num_rmids}); remove monitoring groups", group.display())]
    NoRmid {
        /// The group that was to be made.
        group: PathBuf,
        /// How many the hardware has.
        num_rmids: u64,
    },
    /// All monitoring ids that are not in use wait until the cache has lost the lines of their last user.
    #[error("no monitoring id is free yet for {}: the cache still holds data of removed groups; try again later", group.display())]
    RmidsBusy {
        /// The group that was to be made.
        group: PathBuf,
    },
    /// The right to make a group is missing, or the file system is mounted read-only.
    #[error("cannot make {}: {source}; run as root on a resctrl that is mounted read-write", group.display())]
    Denied {
        /// The group that was to be made.
        group: PathBuf,
        /// The errno and its text.
        source: io::Error,
    },
    /// Any other error.
    #[error("{}: {source}", path.display())]
    Failed {
        /// The file or directory.
        path: PathBuf,
        /// The errno and its text.
        source: io::Error,
    },
}

/// Why there is no figure of one cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NoFigure {
    /// The CPU does not count this.
    #[error("not counted by this CPU")]
    NotCounted,
    /// "Unavailable": the hardware has no value at this moment, as shortly after it lacked a counter.
    #[error("unavailable at this moment")]
    Unavailable,
    /// "Error": the hardware does not know the group's id or the event.
    #[error("the hardware reports an error")]
    Error,
    /// "Unassigned": the group has no counter (`mbm_event` mode on CPUs by AMD).
    #[error("no counter is assigned to the group")]
    Unassigned,
    /// The file cannot be read, or holds something else.
    #[error("unreadable")]
    Unreadable,
}

/// The hardware's counts for the tasks of a group in one cache, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Their part of the cache now: `llc_occupancy`.
    pub occupancy: Result<u64, NoFigure>,
    /// Bytes that the cache has moved from and to memory so far: `mbm_total_bytes`.
    pub total: Result<u64, NoFigure>,
    /// The part of it whose memory is of the cache's own node: `mbm_local_bytes`.
    pub local: Result<u64, NoFigure>,
}

/// The figures of one moment, by cache: the number in `mon_L3_NN`, which is the cache's id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figured {
    /// When they were read, in ns of CLOCK_MONOTONIC.
    pub time: u64,
    /// By the id of the cache.
    pub caches: BTreeMap<u32, Figures>,
    /// The groups that they are the sum of.
    groups: Vec<PathBuf>,
}

/// Bytes a second between two moments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// From and to memory.
    pub total: Option<f64>,
    /// From and to memory of the cache's own node.
    pub local: Option<f64>,
}

impl Figured {
    /// The rates since `earlier`, by cache. There is no rate if a figure is missing or has gone back, if no time has passed, or
    /// where the figures are of other groups.
    #[must_use]
    pub fn rates_since(&self, earlier: &Self) -> BTreeMap<u32, Rates> {
        let passed = self.time.checked_sub(earlier.time).filter(|&ns| ns > 0 && self.groups == earlier.groups);
        let rate = |now: Result<u64, NoFigure>, before: Result<u64, NoFigure>| {
            Some(now.ok()?.checked_sub(before.ok()?)? as f64 * 1e9 / passed? as f64)
        };
        let rates = self.caches.iter().map(|(&id, now)| {
            let before = earlier.caches.get(&id);
            let rates = before
                .map(|before| Rates { total: rate(now.total, before.total), local: rate(now.local, before.local) });
            (id, rates.unwrap_or_default())
        });
        rates.collect()
    }
}

/// The file system resctrl of a host that monitors.
#[derive(Debug, Clone)]
pub struct Resctrl {
    point: PathBuf,
    features: Vec<Vec<u8>>,
    num_rmids: u64,
}

impl Resctrl {
    /// Finds it, and removes the groups that dead processes of ours have left.
    ///
    /// # Errors
    /// It is not mounted, or does not monitor.
    pub fn find(roots: &Roots) -> Result<Self, NoResctrl> {
        let mountinfo = roots.proc.join("self/mountinfo");
        let text = read(&mountinfo).unwrap_or_default();
        let mount = mountinfo::parse(&text).find(|mount| mount.kind == b"resctrl");
        let point = mount.ok_or(NoResctrl::NotMounted { mountinfo })?.point;
        let info = point.join("info/L3_MON");
        let features = read_part(&info.join("mon_features"), MAX_BYTES).unwrap_or_default();
        let features: Vec<Vec<u8>> = features.split(u8::is_ascii_whitespace).map(<[u8]>::to_vec).collect();
        let is_known = |name: &str| features.iter().any(|feature| feature == name.as_bytes());
        if !NAMES.iter().any(|name| is_known(name)) {
            return Err(NoResctrl::NoMonitoring { point });
        }
        let num_rmids = read_part(&info.join("num_rmids"), MAX_BYTES).ok();
        let num_rmids = num_rmids.and_then(|text| number(text.trim_ascii(), 10)).unwrap_or_default();
        let found = Self { point, features, num_rmids };
        found.remove_leftovers();
        Ok(found)
    }

    /// The figures of all tasks of the host: of the root group and all other control groups; each counts those of its
    /// monitoring groups too. It needs no group of our own.
    #[must_use]
    pub fn of_host(&self) -> Figured {
        let own = directories(&self.point).filter(|dir| dir.join("tasks").exists() && dir.join("mon_data").exists());
        let mut groups: Vec<PathBuf> = own.collect();
        groups.sort_unstable();
        groups.insert(0, self.point.clone());
        let mut sum = Figured { time: clock::monotonic_ns(), ..Figured::default() };
        for group in &groups {
            for (id, figures) in self.caches_of(group) {
                let add = |sum: Result<u64, NoFigure>, more: Result<u64, NoFigure>| Ok(sum?.saturating_add(more?));
                let adds = |sum: Figures| Figures {
                    occupancy: add(sum.occupancy, figures.occupancy),
                    total: add(sum.total, figures.total),
                    local: add(sum.local, figures.local),
                };
                sum.caches.entry(id).and_modify(|sum| *sum = adds(*sum)).or_insert(figures);
            }
        }
        sum.groups = groups;
        sum
    }

    /// Makes a monitoring group without tasks, for what runs in the root's control group.
    ///
    /// # Errors
    /// See [`NoResctrl`].
    pub fn make_group(&self) -> Result<MonitoringGroup, NoResctrl> {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let name = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = self.point.join("mon_groups").join(name);
            match fs::create_dir(&path) {
                Ok(()) => {
                    // Held so that others see that its process lives, also from another pid namespace.
                    let held = fs::File::open(&path).and_then(|dir| lock(&dir).map(|()| dir));
                    if !path.exists() {
                        // Another process began at the same time, and no group held it yet.
                        continue;
                    }
                    return match held {
                        Ok(held) => Ok(MonitoringGroup { resctrl: self.clone(), path, _held: held }),
                        Err(source) => {
                            let _ = fs::remove_dir(&path);
                            Err(NoResctrl::Failed { path, source })
                        }
                    };
                }
                // Of a process in another pid namespace.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(self.not_made(path, error)),
            }
        }
    }

    /// `alloc_rmid` in fs/resctrl/monitor.c has the errnos.
    fn not_made(&self, group: PathBuf, source: io::Error) -> NoResctrl {
        match source.raw_os_error() {
            Some(libc::ENOSPC) => NoResctrl::NoRmid { group, num_rmids: self.num_rmids },
            Some(libc::EBUSY) => NoResctrl::RmidsBusy { group },
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => NoResctrl::Denied { group, source },
            _ => NoResctrl::Failed { path: group, source },
        }
    }

    /// Removes groups of ours that no process holds: whoever made them has ended.
    fn remove_leftovers(&self) {
        let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        for path in directories(&self.point.join("mon_groups")) {
            if path.file_name().and_then(maker).is_some() && fs::File::open(&path).is_ok_and(|dir| lock(&dir).is_ok()) {
                // As it goes with a group that another process removes at the same time.
                let _ = remove(&path);
            }
        }
    }

    fn caches_of(&self, group: &Path) -> BTreeMap<u32, Figures> {
        let caches = directories(&group.join("mon_data")).filter_map(|dir| {
            let id = dir.file_name()?.as_bytes().strip_prefix(b"mon_L3_")?;
            let id = u32::try_from(number(id, 10)?).ok()?;
            let [occupancy, total, local] = NAMES.map(|name| self.figure(&dir, name));
            Some((id, Figures { occupancy, total, local }))
        });
        caches.take(MAX_DOMAINS).collect()
    }

    fn figure(&self, dir: &Path, name: &str) -> Result<u64, NoFigure> {
        if !self.features.iter().any(|feature| feature == name.as_bytes()) {
            return Err(NoFigure::NotCounted);
        }
        let text = read_part(&dir.join(name), MAX_BYTES).map_err(|_| NoFigure::Unreadable)?;
        match text.trim_ascii() {
            b"Unavailable" => Err(NoFigure::Unavailable),
            b"Error" => Err(NoFigure::Error),
            b"Unassigned" => Err(NoFigure::Unassigned),
            figure => number(figure, 10).ok_or(NoFigure::Unreadable),
        }
    }
}

/// The files with figures, and the features that say that there are such.
const NAMES: [&str; 3] = ["llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"];

/// A monitoring group of ours. It is removed when it is dropped; its tasks are the parent's again then.
#[derive(Debug)]
pub struct MonitoringGroup {
    resctrl: Resctrl,
    path: PathBuf,
    _held: fs::File,
}

/// The result of moving threads into a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
// As for config::Layers: clippy looks at it only where no feature makes this module public.
#[allow(clippy::struct_field_names)]
pub struct Added {
    /// They are in it. Threads that they make will be too.
    pub added: usize,
    /// They have ended.
    pub ended: usize,
    /// They are in another monitoring group, which somebody made to count them: it keeps them.
    pub of_others: usize,
    /// They are in another control group, and a group counts those of its own control group only.
    pub in_other_control_group: usize,
    /// The kernel refused for another reason.
    pub refused: usize,
}

impl MonitoringGroup {
    /// Moves threads into the group.
    ///
    /// # Errors
    /// Its file `tasks` cannot be opened for writing.
    pub fn add(&self, tids: &[u32]) -> Result<Added, NoResctrl> {
        let path = self.path.join("tasks");
        let failed = |source| NoResctrl::Failed { path: path.clone(), source };
        let mut tasks = fs::OpenOptions::new().write(true).open(&path).map_err(failed)?;
        let others = self.of_others(tids);
        let mut result = Added::default();
        for tid in tids {
            if others.contains(tid) {
                result.of_others += 1;
                continue;
            }
            // One write for each: before Linux 6.7 the file takes one number at a time.
            match tasks.write_all(format!("{tid}\n").as_bytes()) {
                Ok(()) => result.added += 1,
                Err(error) => match error.raw_os_error() {
                    Some(libc::ESRCH) => result.ended += 1,
                    // `__rdtgroup_move_task` in fs/resctrl/rdtgroup.c.
                    Some(libc::EINVAL) => result.in_other_control_group += 1,
                    _ => result.refused += 1,
                },
            }
        }
        Ok(result)
    }

    /// The figures of its tasks so far, those that have ended included.
    #[must_use]
    pub fn figures(&self) -> Figured {
        let caches = self.resctrl.caches_of(&self.path);
        Figured { time: clock::monotonic_ns(), caches, groups: vec![self.path.clone()] }
    }

    /// Those of the threads that are in monitoring groups which are not ours.
    fn of_others(&self, tids: &[u32]) -> FxHashSet<u32> {
        let wanted: FxHashSet<u32> = tids.iter().copied().collect();
        let mut found = FxHashSet::default();
        let own = format!("{PREFIX}{}-", std::process::id());
        let is_own = |path: &PathBuf| path.file_name().is_some_and(|name| name.as_bytes().starts_with(own.as_bytes()));
        for group in directories(&self.resctrl.point.join("mon_groups")).filter(|path| !is_own(path)) {
            // A group that ends meanwhile has no tasks.
            let Ok(file) = fs::File::open(group.join("tasks")) else { continue };
            let lines = BufReader::new(file.take(MAX_TASKS_BYTES)).split(b'\n').map_while(Result::ok);
            let tids = lines.filter_map(|line| u32::try_from(number(&line, 10)?).ok());
            found.extend(tids.filter(|tid| wanted.contains(tid)));
        }
        found
    }
}

impl Drop for MonitoringGroup {
    fn drop(&mut self) {
        // What is left here is removed by the next process that begins.
        let _ = remove(&self.path);
    }
}

/// Where the L3 caches are that resctrl has figures of: the lowest CPU of each, as in [`places`](topology::places), by its id.
#[must_use]
pub fn caches(roots: &Roots, cpus: &[u32]) -> BTreeMap<u32, u32> {
    cpus.iter().filter_map(|&cpu| topology::cache_of_level(roots, cpu, 3)).collect()
}

/// The directories in a directory, but for links; none if it cannot be read.
fn directories(path: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten().take(MAX_GROUPS);
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}

/// The process that made a group of this name, if it is one of ours.
fn maker(name: &OsStr) -> Option<u32> {
    let mut parts = name.as_bytes().strip_prefix(PREFIX.as_bytes())?.split(|&byte| byte == b'-');
    let (pid, count) = (number(parts.next()?, 10)?, number(parts.next()?, 10));
    (count.is_some() && parts.next().is_none()).then(|| u32::try_from(pid).ok())?
}

fn lock(dir: &fs::File) -> io::Result<()> {
    Ok(flock(dir, FlockOperation::NonBlockingLockExclusive)?)
}

/// The kernel removes a group with the files in it.
fn remove(group: &Path) -> io::Result<()> {
    fs::remove_dir(group)
}

#[cfg(test)]
mod tests;
