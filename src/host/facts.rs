//! Properties by which schedulers match threads beside names and cgroups: user, parent, nice value, pid namespace.

use std::fs;
use std::io::Read;
use std::path::Path;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::tasks::{self, TaskSeen};
use super::{proc, Error, Roots};

/// `PF_KTHREAD` (linux/sched.h).
const PF_KTHREAD: u32 = 0x0020_0000;
/// Threads whose facts are kept.
const MAX_TASKS: usize = 1 << 16;
/// Bytes of a command line that are kept.
const MAX_CMDLINE: u64 = 4 << 10;

/// Facts about a thread that its samples do not carry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFacts {
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// The name of the process, which is that of its main thread.
    #[serde(default)]
    pub process: Option<String>,
    /// The process id of the parent.
    #[serde(default)]
    pub ppid: Option<u32>,
    /// The effective user id.
    #[serde(default)]
    pub uid: Option<u32>,
    /// The effective group id.
    #[serde(default)]
    pub gid: Option<u32>,
    /// The nice value, -20 to 19.
    #[serde(default)]
    pub nice: Option<i32>,
    /// It is a kernel thread.
    #[serde(default)]
    pub kthread: Option<bool>,
    /// The pid namespace, by its inode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_ns: Option<u64>,
    /// The thread id in that namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_tid: Option<u32>,
    /// The command line of the process, its words with a space between them, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmdline: Option<String>,
}

/// Facts about threads, by process and thread id.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    by_id: FxHashMap<(u32, u32), TaskFacts>,
    /// The name of each process.
    processes: FxHashMap<u32, String>,
    /// Threads that did not fit.
    left_out: u64,
}

impl Tasks {
    /// Adds a thread; what is known of it already gives way.
    pub fn add(&mut self, task: TaskFacts) {
        let id = (task.pid, task.tid);
        if self.by_id.len() >= MAX_TASKS && !self.by_id.contains_key(&id) {
            self.left_out += 1;
            return;
        }
        if let Some(name) = &task.process {
            if self.processes.get(&task.pid) != Some(name) {
                self.processes.insert(task.pid, name.clone());
            }
        }
        self.by_id.insert(id, task);
    }

    /// Adds the name of a process, if there is none yet.
    pub fn add_process(&mut self, pid: u32, name: &str) {
        if self.processes.len() < MAX_TASKS {
            self.processes.entry(pid).or_insert_with(|| name.to_owned());
        }
    }

    /// The process has another name now.
    pub(crate) fn rename_process(&mut self, pid: u32, name: &str) {
        self.processes.insert(pid, name.to_owned());
    }

    /// A thread, if it is known.
    #[must_use]
    pub fn get(&self, pid: u32, tid: u32) -> Option<&TaskFacts> {
        self.by_id.get(&(pid, tid))
    }

    /// The name of a process, if it is known.
    #[must_use]
    pub fn process(&self, pid: u32) -> Option<&str> {
        self.processes.get(&pid).map(String::as_str)
    }

    /// Reads one thread of a process whose main thread is known already: its nice value is its own, and the rest is the process's.
    pub(crate) fn read_thread(&mut self, roots: &Roots, pid: u32, tid: u32) {
        let Some(main) = self.get(pid, pid).cloned() else { return };
        let dir = roots.proc.join(format!("{pid}/task/{tid}"));
        let Some(stat) = proc::stat(&dir) else { return };
        let ns_tid = match main.ns_tid {
            Some(ns_tid) if ns_tid != pid => innermost(&dir),
            known => known.map(|_| tid),
        };
        self.add(TaskFacts { tid, nice: i32::try_from(stat.nice).ok(), ns_tid, ..main });
    }

    /// All threads, in the order of their ids.
    #[must_use]
    pub fn sorted(&self) -> Vec<&TaskFacts> {
        let mut all: Vec<&TaskFacts> = self.by_id.values().collect();
        all.sort_unstable_by_key(|task| (task.pid, task.tid));
        all
    }

    /// True if nothing is known of any thread.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Threads that did not fit.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Reads those that live, of these processes or of all: one file for each thread, and some for each process.
    ///
    /// # Errors
    /// procfs cannot be read. A thread that ends meanwhile is left out.
    pub(crate) fn read(&mut self, roots: &Roots, pids: Option<&[u32]>, with_cmdline: bool) -> Result<(), Error> {
        let pids = match pids {
            Some(pids) => pids.to_vec(),
            None => tasks::processes(roots)?,
        };
        for pid in pids {
            for task in of_process(roots, pid, with_cmdline) {
                self.add(task);
            }
        }
        Ok(())
    }
}

/// The threads of a process; none if it has ended.
fn of_process(roots: &Roots, pid: u32, with_cmdline: bool) -> Vec<TaskFacts> {
    let dir = roots.proc.join(pid.to_string());
    let Some(status) = proc::whole_status(&dir) else { return Vec::new() };
    let text = |name: &str| proc::field(&status, name).map(|value| String::from_utf8_lossy(value).into_owned());
    // Real, effective, saved and that of the file system.
    let effective = |name: &str| text(name)?.split_whitespace().nth(1)?.parse().ok();
    let (uid, gid) = (effective("Uid"), effective("Gid"));
    // As the scheduler of this host sees it, down to the innermost.
    let is_nested = text("NSpid").is_some_and(|ids| ids.split_whitespace().count() > 1);
    let pid_ns = namespace(&dir);
    let process = proc::comm(&dir).map(|comm| String::from_utf8_lossy(comm.as_bytes()).into_owned());
    let cmdline = if with_cmdline { cmdline(&dir) } else { None };
    let facts = |TaskSeen { tid, .. }: TaskSeen| {
        let dir = dir.join(format!("task/{tid}"));
        let stat = proc::stat(&dir);
        let ns_tid = if is_nested { innermost(&dir) } else { Some(tid) };
        TaskFacts {
            pid,
            tid,
            process: process.clone(),
            ppid: stat.as_ref().and_then(|stat| u32::try_from(stat.ppid).ok()),
            uid,
            gid,
            nice: stat.as_ref().and_then(|stat| i32::try_from(stat.nice).ok()),
            kthread: stat.as_ref().map(|stat| stat.flags & PF_KTHREAD != 0),
            pid_ns,
            ns_tid: pid_ns.and(ns_tid),
            cmdline: cmdline.clone(),
        }
    };
    tasks::of_process(roots, pid).into_iter().map(facts).collect()
}

/// The pid namespace of a process.
fn namespace(process: &Path) -> Option<u64> {
    let link = fs::read_link(process.join("ns/pid")).ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// The id of a thread in its own pid namespace.
fn innermost(task: &Path) -> Option<u32> {
    let ids = proc::status(task, "NSpid")?;
    String::from_utf8_lossy(&ids).split_whitespace().next_back()?.parse().ok()
}

fn cmdline(process: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    fs::File::open(process.join("cmdline")).ok()?.take(MAX_CMDLINE).read_to_end(&mut bytes).ok()?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    let words: Vec<_> = bytes.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect();
    (!bytes.is_empty()).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_a_made_process() {
        let dir = tempfile::tempdir().unwrap();
        for tid in [70, 71] {
            let task = dir.path().join(format!("70/task/{tid}"));
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("comm"), format!("t{tid}\n")).unwrap();
            fs::write(task.join("stat"), proc::tests::stat_text(tid, "a b) c", 9)).unwrap();
            fs::write(task.join("status"), format!("NSpid:\t{tid}\t{}\n", tid - 60)).unwrap();
        }
        let process = dir.path().join("70");
        fs::write(process.join("status"), "Name:\tx\nUid:\t0\t33\t0\t0\nGid:\t0\t34\t0\t0\nNSpid:\t70\t10\n").unwrap();
        fs::write(process.join("comm"), "main\n").unwrap();
        fs::write(process.join("cmdline"), b"server\0--port\x001\0").unwrap();
        fs::create_dir(process.join("ns")).unwrap();
        std::os::unix::fs::symlink("pid:[4026532177]", process.join("ns/pid")).unwrap();
        let roots = Roots { proc: dir.path().to_owned(), ..Roots::default() };
        let mut tasks = Tasks::default();
        tasks.read(&roots, None, false).unwrap();
        let found = tasks.get(70, 71).unwrap().clone();
        assert_eq!(
            (found.process.as_deref(), found.ppid, found.uid, found.gid, found.pid_ns, found.ns_tid, found.cmdline),
            (Some("main"), Some(9), Some(33), Some(34), Some(4_026_532_177), Some(11), None)
        );
        assert_eq!((found.kthread, tasks.process(70), tasks.sorted().len()), (Some(false), Some("main"), 2));
        fs::create_dir(dir.path().join("70/task/72")).unwrap();
        fs::write(dir.path().join("70/task/72/stat"), proc::tests::stat_text(72, "late", 9)).unwrap();
        fs::write(dir.path().join("70/task/72/status"), "NSpid:\t72\t12\n").unwrap();
        tasks.read_thread(&roots, 70, 72);
        tasks.read_thread(&roots, 70, 73);
        let late = tasks.get(70, 72).unwrap();
        assert_eq!((late.uid, late.ns_tid, late.nice, tasks.get(70, 73)), (Some(33), Some(12), Some(0), None));
        tasks.read(&roots, Some(&[70, 99]), true).unwrap();
        assert_eq!(tasks.get(70, 70).unwrap().cmdline.as_deref(), Some("server --port 1"));
    }

    #[test]
    fn facts_of_this_process_and_of_a_kernel_thread() {
        let pid = std::process::id();
        let mut tasks = Tasks::default();
        tasks.read(&Roots::default(), None, false).unwrap();
        let own = tasks.get(pid, pid).unwrap();
        // SAFETY: no arguments, and no errors (getuid(2)).
        let ids = unsafe { (libc::geteuid(), libc::getegid(), libc::getppid().cast_unsigned()) };
        assert_eq!((own.uid, own.gid, own.ppid), (Some(ids.0), Some(ids.1), Some(ids.2)));
        assert_eq!((own.kthread, own.ns_tid), (Some(false), own.pid_ns.map(|_| own.tid)));
    }
}
