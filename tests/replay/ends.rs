//! Whatever ends a replay, nothing of it is left.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use scxprof_replay::{Groups, Guard};

use super::grouped::in_cgroups;
use super::{recording, SCXPROF};

/// Waits until something happens.
fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !happens() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what} does not happen");
        sleep(Duration::from_millis(20));
    }
}

/// Parent and process group of a process that is not a zombie.
fn family(pid: u32) -> Option<(u32, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    if fields.next()? == "Z" {
        return None;
    }
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

fn pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// A replay that would last for minutes, in a cgroup root of its own.
struct Running {
    child: Child,
    root: String,
    _dir: tempfile::TempDir,
}

impl Running {
    fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        recording(dir.path());
        let running = Self::of(name, dir, "500");
        // The guard, the first mock process, and two that are there from the beginning.
        until("the replay", || running.mocks().len() >= 4);
        running
    }

    /// Of the recording in this directory; it may not have begun.
    fn of(name: &str, dir: tempfile::TempDir, time_scale: &str) -> Self {
        let root = format!("/scxprof-test-{name}-{}", std::process::id());
        let mut command = Command::new(SCXPROF);
        command.args(["replay", "--overcommit", "--json", "--time-scale", time_scale, "-f"]);
        command.arg(dir.path().join("perf.data"));
        if mount().is_some() {
            command.args(["--cgroup-root", &root]);
        }
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Self { child, root, _dir: dir }
    }

    /// Of a recording with a process in each of these cgroups.
    fn in_cgroups(name: &str, paths: &[Vec<u8>]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("perf.data"), in_cgroups(paths, 60_000_000_000)).unwrap();
        Self::of(name, dir, "1")
    }

    fn children(&self) -> Vec<u32> {
        pids().filter(|&pid| family(pid).is_some_and(|(parent, _)| parent == self.child.id())).collect()
    }

    /// The processes in the process groups of its children.
    fn mocks(&self) -> BTreeSet<u32> {
        let children = self.children();
        pids().filter(|&pid| family(pid).is_some_and(|(_, group)| children.contains(&group))).collect()
    }

    /// The child without children of its own, which leads its group.
    fn guard(&self) -> u32 {
        let of = |pid: u32| family(pid).unwrap_or_default();
        let is_guard = |&child: &u32| of(child).1 == child && !pids().any(|pid| of(pid).0 == child);
        self.children().into_iter().find(is_guard).unwrap()
    }

    /// The first mock process, which made the others.
    fn first(&self) -> u32 {
        let guard = self.guard();
        self.children().into_iter().find(|&child| child != guard).unwrap()
    }

    /// The cgroup that all are in.
    fn directory(&self) -> Option<PathBuf> {
        Some(mount()?.join(self.root.trim_start_matches('/')))
    }

    fn signal(&self, signal: i32) {
        kill(self.child.id(), signal);
    }

    /// Nothing is left of these processes and the cgroups.
    fn is_gone(&self, mocks: &BTreeSet<u32>) {
        until("the end of all mock processes", || !mocks.iter().any(|&pid| family(pid).is_some()));
        if let Some(directory) = self.directory() {
            until("the end of the cgroups", || !directory.exists());
        }
    }
}

fn kill(pid: u32, signal: i32) {
    // SAFETY: a signal to a process of this test.
    assert_eq!(unsafe { libc::kill(pid.cast_signed(), signal) }, 0);
}

/// Where cgroups can be made.
fn mount() -> Option<PathBuf> {
    let text = fs::read_to_string("/proc/self/mounts").ok()?;
    let mut points = text.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (point, kind) = (fields.nth(1)?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(point))
    });
    let can_make = |point: &Path| {
        let path = point.join(format!("scxprof-test-{}-{:?}", std::process::id(), std::thread::current().id()));
        let made = fs::create_dir(&path).is_ok();
        let _ = fs::remove_dir(&path);
        made
    };
    let perf_event = fs::read_to_string("/proc/self/cgroup").ok()?.contains("perf_event");
    points.next().filter(|point| !perf_event && can_make(point))
}

#[test]
fn ctrl_c_ends_it_with_a_result() {
    let mut running = Running::new("int");
    let mocks = running.mocks();
    running.signal(libc::SIGINT);
    let mut text = String::new();
    running.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(running.child.wait().unwrap().success());
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["loops"][0]["is_stopped"], true);
    assert!(mocks.len() >= 2);
    running.is_gone(&mocks);
}

#[test]
fn nothing_is_left_if_it_is_killed() {
    let mut running = Running::new("kill");
    let mocks = running.mocks();
    running.signal(libc::SIGKILL);
    running.child.wait().unwrap();
    running.is_gone(&mocks);
}

#[test]
fn it_ends_although_its_guard_was_killed() {
    let mut running = Running::new("guard");
    let mocks = running.mocks();
    kill(running.guard(), libc::SIGKILL);
    running.signal(libc::SIGINT);
    assert!(running.child.wait().unwrap().success());
    running.is_gone(&mocks);
}

#[test]
fn sleeping_mock_threads_end_although_the_guard_was_killed_with_it() {
    let mut running = Running::new("both");
    let mocks = running.mocks();
    let guard = running.guard();
    running.signal(libc::SIGSTOP);
    kill(guard, libc::SIGKILL);
    running.signal(libc::SIGKILL);
    running.child.wait().unwrap();
    // They would sleep for minutes. Nothing removes the cgroups then.
    until("the end of all mock processes", || !mocks.iter().any(|&pid| family(pid).is_some()));
    if let Some(root) = running.directory() {
        until("removable cgroups", || remove(&root));
    }
}

#[test]
fn sleeping_mock_threads_end_although_the_first_of_them_was_killed_with_it() {
    let mut running = Running::new("guarded");
    let mocks = running.mocks();
    let first = running.first();
    running.signal(libc::SIGSTOP);
    kill(first, libc::SIGKILL);
    running.signal(libc::SIGKILL);
    running.child.wait().unwrap();
    running.is_gone(&mocks);
}

#[test]
fn orphans_among_mock_processes_become_children_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    recording(dir.path());
    let mut running = Running::of("orphan", dir, "40");
    // A thread of a process that was there from the beginning makes others.
    let mut made = None;
    until("a process of a mock process", || {
        let children = running.children();
        let parent = |pid: u32| family(pid).map_or(0, |(parent, _)| parent);
        made = pids().map(|pid| (pid, parent(pid))).find(|(_, by)| children.contains(&parent(*by)));
        made.is_some()
    });
    let (orphan, parent) = made.unwrap();
    let first = running.first();
    kill(parent, libc::SIGKILL);
    // It may have ended by itself meanwhile. The first thread may end before others, whose child it is until then.
    let mut by = None;
    until("another parent", || {
        by = family(orphan).map(|(parent, _)| parent);
        by != Some(parent)
    });
    assert!(by.is_none_or(|by| by == first), "{by:?} instead of {first}");
    let mocks = running.mocks();
    running.signal(libc::SIGINT);
    running.child.wait().unwrap();
    running.is_gone(&mocks);
}

/// What the process that a test starts as the reaper of all kills: scxprof, or the first mock process.
const KILLED: &str = "SCXPROF_TEST_REPLAY_KILLED";

/// Not a test of its own: its process is as the first one of a container.
#[test]
fn adopts_what_a_killed_replay_leaves() {
    let Ok(killed) = std::env::var(KILLED) else { return };
    // SAFETY: changes a flag of this process.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) }, 0);
    let running = Running::new(&killed);
    let (first, guard) = (running.first(), running.guard());
    let mocks = running.mocks();
    kill(if killed == "first" { first } else { running.child.id() }, libc::SIGKILL);
    let mut adopted = Vec::new();
    until("the end of all children", || loop {
        // SAFETY: waits for children of ours, without their status.
        match unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } {
            0 => return false,
            -1 => return true,
            pid => adopted.push(pid.cast_unsigned()),
        }
    });
    // Their own parent is gone.
    let is_wrong = |pid: &u32| mocks.contains(pid) && ![first, guard].contains(pid);
    assert!(!adopted.iter().any(is_wrong), "{adopted:?} of {mocks:?}, {first} and {guard}");
    running.is_gone(&mocks);
}

#[test]
fn the_first_process_of_a_container_gets_no_mock_process_to_wait_for() {
    for killed in ["scxprof", "first"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "replay::ends::adopts_what_a_killed_replay_leaves"]).env(KILLED, killed);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{killed}: {said}");
    }
}

/// Removes a cgroup and those below it; false if one of them is not empty.
fn remove(directory: &Path) -> bool {
    let below = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut all = true;
    for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        all &= remove(&entry.path());
    }
    all && (!directory.exists() || fs::remove_dir(directory).is_ok())
}

/// Where the process that a test starts makes cgroups.
const ROOT: &str = "SCXPROF_TEST_REPLAY_ROOT";

/// Not a test of its own: what the next one kills.
#[test]
fn makes_cgroups_until_it_is_killed() {
    let (Ok(root), Some(mount)) = (std::env::var(ROOT), mount()) else { return };
    let paths: Vec<Vec<u8>> = (0..4000).map(|number| format!("/a/{number}").into_bytes()).collect();
    let mut groups = Groups::plan(&mount, &root, &paths).unwrap();
    let _guard = Guard::start(Some(&groups)).unwrap();
    groups.make(&|| false).unwrap();
    sleep(Duration::from_secs(60));
}

#[test]
fn a_replay_that_is_killed_while_it_makes_cgroups_leaves_none() {
    let Some(mount) = mount() else {
        return println!("SKIP: a_replay_that_is_killed_while_it_makes_cgroups_leaves_none: no cgroup can be made");
    };
    let root = format!("/scxprof-test-many-{}", std::process::id());
    let directory = mount.join(root.trim_start_matches('/'));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "replay::ends::makes_cgroups_until_it_is_killed"]).env(ROOT, &root);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let made = || fs::read_dir(directory.join("a")).map_or(0, Iterator::count);
    until("some cgroups", || made() > 20);
    kill(child.id(), libc::SIGKILL);
    child.wait().unwrap();
    until("the end of the cgroups", || !directory.exists());
}

#[test]
fn the_command_that_is_killed_while_it_makes_cgroups_leaves_none() {
    if mount().is_none() {
        return println!("SKIP: the_command_that_is_killed_while_it_makes_cgroups_leaves_none: no cgroup can be made");
    }
    // As deep as they may be.
    let path = |number: u32| (0..30).map(|depth| format!("/{number}.{depth}")).collect::<String>().into_bytes();
    let paths: Vec<Vec<u8>> = (0..100).map(path).collect();
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let mut running = Running::in_cgroups("early", &paths);
        let directory = running.directory().unwrap();
        until("some cgroups", || fs::read_dir(&directory).is_ok_and(|made| made.count() > 3));
        running.signal(signal);
        running.child.wait().unwrap();
        until("the end of the cgroups", || !directory.exists());
    }
}

#[test]
fn a_cgroup_that_cannot_be_made_is_left_out_alone() {
    if mount().is_none() {
        return println!("SKIP: a_cgroup_that_cannot_be_made_is_left_out_alone: no cgroup can be made");
    }
    let mut running = Running::in_cgroups("newline", &[b"/good".to_vec(), b"/bad\nname".to_vec()]);
    let directory = running.directory().unwrap();
    let members = |of: &Path| fs::read_to_string(of.join("cgroup.procs")).map_or(0, |text| text.lines().count());
    until("a mock process in each", || [members(&directory), members(&directory.join("good"))] == [1, 1]);
    running.signal(libc::SIGINT);
    running.child.wait().unwrap();
    let mut said = String::new();
    running.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("note: 1 cgroups cannot have their names here"), "{said}");
    until("the end of the cgroups", || !directory.exists());
}
