//! The running threads, from procfs.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

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

    proptest! {
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
