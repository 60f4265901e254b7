//! Whatever ends a replay, nothing of it is left.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use scxprof::replay::{Groups, Guard};

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
        let path = recording(dir.path());
        let root = format!("/scxprof-test-{name}-{}", std::process::id());
        let mut command = Command::new(SCXPROF);
        command.args(["replay", "--overcommit", "--json", "--time-scale", "500", "-f"]).arg(path);
        if mount().is_some() {
            command.args(["--cgroup-root", &root]);
        }
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let running = Self { child, root, _dir: dir };
        // `ping` and others are there from the beginning.
        until("the replay", || running.mocks().len() >= 2);
        running
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

    fn signal(&self, signal: i32) {
        kill(self.child.id(), signal);
    }

    /// Nothing is left of these processes and the cgroups.
    fn is_gone(&self, mocks: &BTreeSet<u32>) {
        until("the end of all mock processes", || !mocks.iter().any(|&pid| family(pid).is_some()));
        if let Some(mount) = mount() {
            let directory = mount.join(self.root.trim_start_matches('/'));
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
    if let Some(mount) = mount() {
        let root = mount.join(running.root.trim_start_matches('/'));
        until("removable cgroups", || remove(&root));
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
    command.args(["--exact", "ends::makes_cgroups_until_it_is_killed"]).env(ROOT, &root);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let made = || fs::read_dir(directory.join("a")).map_or(0, Iterator::count);
    until("some cgroups", || made() > 20);
    kill(child.id(), libc::SIGKILL);
    child.wait().unwrap();
    until("the end of the cgroups", || !directory.exists());
}
