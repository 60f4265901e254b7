//! The running threads, from procfs.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{pid_of, Error, Roots};
use crate::sample::Comm;

/// A thread as procfs shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskSeen {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Its name.
    pub comm: Comm,
}

/// Every thread in procfs. Threads that end meanwhile are left out.
///
/// # Errors
/// The directory itself cannot be read.
pub fn snapshot(roots: &Roots) -> Result<Vec<TaskSeen>, Error> {
    Ok(processes(roots)?.into_iter().flat_map(|pid| of_process(roots, pid)).collect())
}

/// Every process in procfs.
///
/// # Errors
/// The directory itself cannot be read.
pub(crate) fn processes(roots: &Roots) -> Result<Vec<u32>, Error> {
    let failed = |source| Error::Read { path: roots.proc.clone(), source };
    let mut pids = Vec::new();
    for entry in fs::read_dir(&roots.proc).map_err(failed)? {
        pids.extend(pid_of(&entry.map_err(failed)?.file_name()));
    }
    Ok(pids)
}

/// These processes and all that descend from them, each once, as procfs shows them. One whose parent has ended is its child no more.
#[must_use]
pub(crate) fn with_descendants(roots: &Roots, pids: &[u32]) -> Vec<u32> {
    let mut children: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
    for pid in processes(roots).unwrap_or_default() {
        if let Some(parent) = stat(roots, pid).as_deref().and_then(parent) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut seen) = (Vec::new(), FxHashSet::default());
    let mut next: Vec<u32> = pids.iter().rev().copied().collect();
    while let Some(pid) = next.pop() {
        if seen.insert(pid) {
            found.push(pid);
            next.extend(children.get(&pid).into_iter().flatten());
        }
    }
    found
}

/// When a thread began, in ns of CLOCK_BOOTTIME cut to hundredths of a second; `None` where it has ended.
pub(crate) fn began(roots: &Roots, pid: u32, tid: u32) -> Option<u64> {
    let stat = fs::read(roots.proc.join(format!("{pid}/task/{tid}/stat"))).ok()?;
    // The 22nd field, the first after the name being the third, in ticks of 1/100 s (USER_HZ).
    let ticks = super::number(fields(&stat)?.nth(22 - 3)?, 10)?;
    ticks.checked_mul(10_000_000)
}

fn stat(roots: &Roots, pid: u32) -> Option<Vec<u8>> {
    fs::read(roots.proc.join(format!("{pid}/stat"))).ok()
}

/// The fourth field of a stat file (proc_pid_stat(5)).
fn parent(stat: &[u8]) -> Option<u32> {
    u32::try_from(super::number(fields(stat)?.nth(1)?, 10)?).ok()
}

/// The fields after the name, which is in parentheses and may hold any byte.
fn fields(stat: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    Some(stat.get(name_end + 1..)?.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()))
}

/// The threads of a process; none if it has ended.
pub(crate) fn of_process(roots: &Roots, pid: u32) -> Vec<TaskSeen> {
    let tasks = fs::read_dir(roots.proc.join(format!("{pid}/task"))).into_iter().flatten().flatten();
    let seen = tasks.filter_map(|task| {
        let tid = pid_of(&task.file_name())?;
        Some(TaskSeen { pid, tid, comm: read_comm(&task.path().join("comm"))? })
    });
    seen.collect()
}

pub(crate) fn read_comm(path: &Path) -> Option<Comm> {
    // Longer than any name with the work that procfs appends to it, 64 bytes (`proc_task_name` in fs/proc/array.c).
    let mut buffer = [0; 128];
    let mut len = 0;
    let mut file = File::open(path).ok()?;
    while let Some(rest) = buffer.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    Some(parse_comm(buffer.get(..len)?))
}

/// The name in a `comm` file, without the newline at its end.
///
/// procfs shows a workqueue worker with its current work, "kworker/0:1-events" or "kworker/0:1+events". The thread's name,
/// which records contain and schedulers match, is the part before it (`wq_worker_comm` in kernel/workqueue.c).
fn parse_comm(text: &[u8]) -> Comm {
    let mut name = text.strip_suffix(b"\n").unwrap_or(text);
    if name.starts_with(b"kworker/") {
        let colon = name.iter().position(|&byte| byte == b':').unwrap_or(name.len());
        let work = name.iter().skip(colon).position(|&byte| byte == b'-' || byte == b'+');
        name = work.and_then(|at| name.get(..colon + at)).unwrap_or(name);
    }
    Comm::new(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn kworkers_are_named_without_their_work() {
        assert_eq!(parse_comm(b"kworker/0:1-events\n"), Comm::from("kworker/0:1"));
        assert_eq!(parse_comm(b"kworker/u8:1+flush-254:0\n"), Comm::from("kworker/u8:1"));
        assert_eq!(parse_comm(b"kworker/R-xfs-a\n"), Comm::from("kworker/R-xfs-a"));
        assert_eq!(parse_comm(b"web-1:2-x\n"), Comm::from("web-1:2-x"));
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_each_once() {
        let dir = tempfile::tempdir().unwrap();
        // 7 is another's, 9 has a parent that is gone; names may look like anything.
        for (pid, parent, name) in
            [(1, 0, "init"), (2, 1, "a) R 9 ("), (3, 2, "b c"), (4, 3, "d"), (5, 2, ")"), (7, 1, "x"), (9, 8, "y")]
        {
            let path = dir.path().join(pid.to_string());
            fs::create_dir(&path).unwrap();
            fs::write(path.join("stat"), format!("{pid} ({name}) S {parent} {pid} 0 0 -1\n")).unwrap();
        }
        fs::create_dir(dir.path().join("6")).unwrap();
        let roots = Roots { proc: dir.path().to_owned(), ..Roots::default() };
        let of = |pids: &[u32]| {
            let mut found = with_descendants(&roots, pids);
            found.sort_unstable();
            found
        };
        assert_eq!(of(&[2]), [2, 3, 4, 5]);
        assert_eq!(of(&[3, 2, 3]), [2, 3, 4, 5]);
        assert_eq!(of(&[7, 4]), [4, 7]);
        assert_eq!(of(&[6]), [6], "that it is there is found by its threads");
    }

    #[test]
    fn a_thread_began_before_now() {
        let pid = std::process::id();
        let began = began(&Roots::default(), pid, pid).unwrap();
        assert!(began > 0 && began <= super::super::clock::boottime_ns());
    }

    proptest! {
        #[test]
        fn any_stat_has_a_parent_or_none(stat in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = parent(&stat);
        }

        #[test]
        fn any_name_is_read_back(comm in proptest::collection::vec(1u8.., 0..15)) {
            prop_assume!(!comm.starts_with(b"kworker/"));
            let mut text = comm.clone();
            text.push(b'\n');
            let parsed = parse_comm(&text);
            prop_assert_eq!(parsed.as_bytes(), &comm[..]);
        }
    }
}
