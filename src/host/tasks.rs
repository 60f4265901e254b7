//! The running threads, from procfs.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{pid_of, proc, Error, Roots};
use crate::sample::Comm;

/// The links of a process's `task` if it has one thread: procfs counts threads there as other file systems do directories
/// (`proc_task_getattr` in fs/proc/base.c).
const LINKS_OF_ONE: u64 = 3;

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
        let stat = proc::stat(&roots.proc.join(pid.to_string()));
        if let Some(parent) = stat.and_then(|stat| u32::try_from(stat.ppid).ok()) {
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

/// When a thread began, in ns of CLOCK_BOOTTIME cut to hundredths of a second; `None` if it has ended.
pub(crate) fn began(roots: &Roots, pid: u32, tid: u32) -> Option<u64> {
    // In ticks of 1/100 s (USER_HZ).
    proc::stat(&roots.proc.join(format!("{pid}/task/{tid}")))?.starttime.checked_mul(10_000_000)
}

/// The threads of a process; none if it has ended.
pub(crate) fn of_process(roots: &Roots, pid: u32) -> Vec<TaskSeen> {
    let process = roots.proc.join(pid.to_string());
    let tasks = process.join("task");
    // Most have one, whose name is that of the process: to list the threads would take as long as to read the name.
    let is_one = fs::metadata(&tasks).is_ok_and(|tasks| tasks.nlink() == LINKS_OF_ONE);
    if let Some(comm) = is_one.then(|| proc::comm(&process)).flatten() {
        return vec![TaskSeen { pid, tid: pid, comm }];
    }
    let tasks = fs::read_dir(tasks).into_iter().flatten().flatten();
    let seen = tasks.filter_map(|task| {
        let tid = pid_of(&task.file_name())?;
        Some(TaskSeen { pid, tid, comm: proc::comm(&task.path())? })
    });
    seen.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_at_any_depth_and_each_once() {
        let dir = tempfile::tempdir().unwrap();
        // 7 is another's, 9 has a parent that is gone; names may look like anything.
        for (pid, parent, name) in
            [(1, 0, "init"), (2, 1, "a) R 9 ("), (3, 2, "b c"), (4, 3, "d"), (5, 2, ")"), (7, 1, "x"), (9, 8, "y")]
        {
            let path = dir.path().join(pid.to_string());
            fs::create_dir(&path).unwrap();
            fs::write(path.join("stat"), proc::tests::stat_text(pid, name, parent)).unwrap();
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

    /// Calls of read(2) by this thread so far; `None` if the kernel does not count them.
    fn reads() -> Option<u64> {
        let text = fs::read_to_string("/proc/thread-self/io").ok()?;
        text.lines().find_map(|line| line.strip_prefix("syscr: "))?.parse().ok()
    }

    /// The system calls needed to find this number of threads, in processes of ten.
    fn reads_for(threads: u32) -> Option<u64> {
        let dir = tempfile::tempdir().unwrap();
        for tid in 0..threads {
            let task = dir.path().join(format!("{}/task/{}", 10 + tid / 10 * 10, 10 + tid));
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("comm"), format!("worker-{}\n", tid % 10)).unwrap();
        }
        let roots = Roots { proc: dir.path().to_owned(), ..Roots::default() };
        // To count the calls takes some too.
        let (first, before) = (reads()?, reads()?);
        assert_eq!(snapshot(&roots).unwrap().len(), threads as usize);
        Some(reads()? - before - (before - first))
    }

    #[test]
    fn a_thread_takes_as_many_reads_on_a_large_host_as_on_a_small_one() {
        for threads in [1_550, 6_250] {
            let expected = u64::from(threads);
            assert!(reads_for(threads).is_none_or(|reads| reads == expected), "{threads}: {:?}", reads_for(threads));
        }
    }

    #[test]
    fn the_only_thread_of_a_process_is_not_listed() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, name: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("comm"), format!("{name}\n")).unwrap();
        };
        write("10", "process");
        write("10/task/10", "first");
        let roots = Roots { proc: dir.path().to_owned(), ..Roots::default() };
        let seen =
            || of_process(&roots, 10).into_iter().map(|task| (task.tid, task.comm.to_string())).collect::<Vec<_>>();
        if fs::metadata(dir.path().join("10/task")).unwrap().nlink() != 3 {
            println!("SKIP: the_only_thread_of_a_process_is_not_listed: this file system does not count directories");
            return;
        }
        assert_eq!(seen(), [(10, "process".to_owned())]);
        write("10/task/11", "second");
        let mut both = seen();
        both.sort_unstable();
        assert_eq!(both, [(10, "first".to_owned()), (11, "second".to_owned())]);
    }

    #[test]
    fn live_the_threads_of_a_process_are_those_of_its_directory() {
        let roots = Roots::default();
        let pid = std::process::id();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || wait.recv().is_err());
        let listed = fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
        assert!(listed >= 2 && of_process(&roots, pid).len() >= 2, "{listed}");
        drop(end);
        assert!(thread.join().unwrap());
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let seen = of_process(&roots, child.id());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(seen.iter().map(|task| (task.pid, task.tid)).collect::<Vec<_>>(), [(child.id(), child.id())]);
    }

    #[test]
    fn a_thread_began_before_now() {
        let pid = std::process::id();
        let began = began(&Roots::default(), pid, pid).unwrap();
        assert!(began > 0 && began <= super::super::clock::boottime_ns());
    }
}
