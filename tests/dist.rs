//! The archive for hosts that have nothing, and its binary in a root directory that has nothing.

#![allow(clippy::unwrap_used)] // A test that cannot go on must fail.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Builds the archive as `make dist` does, but faster; gives the directory that was packed. `None` where this machine
/// has no static C library.
fn dist(test: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut script = Command::new(root.join("scripts/dist.sh"));
    // Neither optimized as a release nor as small.
    let output = script.env("PROFILE", "dev").env("MAX_SIZE", "64").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success()
        && ["cannot find -l", "to link in (packages", "can't find crate for `std`"].iter().any(|it| said.contains(it))
    {
        println!("SKIP: {test}: no static C library here: {}", said.lines().last().unwrap_or_default());
        return None;
    }
    assert!(output.status.success(), "{said}");
    let line = String::from_utf8(output.stdout).unwrap();
    let archive = line.lines().last().unwrap().split(':').next().unwrap().to_owned();
    let archive = root.join(archive);
    assert!(archive.is_file(), "{}", archive.display());
    Some(PathBuf::from(archive.to_str().unwrap().strip_suffix(".tar.gz").unwrap()))
}

/// Runs the program at `/scxprof` of a root directory.
fn in_root(root: &Path, arguments: &[&str]) -> Output {
    let root = CString::new(root.as_os_str().as_bytes()).unwrap();
    let mut command = Command::new("/scxprof");
    command.args(arguments).env_clear();
    // SAFETY: chroot and chdir are async-signal-safe, and the name was made before the fork.
    unsafe {
        command.pre_exec(move || {
            if libc::chroot(root.as_ptr()) == 0 && libc::chdir(c"/".as_ptr()) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    command.output().unwrap()
}

/// A mount that goes with the test.
struct Mount(CString);

impl Mount {
    fn new(kind: &str, at: &Path) -> Option<Self> {
        fs::create_dir(at).unwrap();
        let kind = CString::new(kind).unwrap();
        let at = CString::new(at.as_os_str().as_bytes()).unwrap();
        // SAFETY: all are NUL-terminated, and no data is given.
        let mounted =
            unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), libc::MS_NOSUID, std::ptr::null()) };
        (mounted == 0).then_some(Self(at))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // SAFETY: a NUL-terminated name.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}

#[test]
fn the_archive_runs_where_there_is_nothing_else() {
    let test = "the_archive_runs_where_there_is_nothing_else";
    let Some(tree) = dist(test) else { return };
    for file in ["man/man1/scxprof.1", "man/man1/scxprof-run.1", "completions/_scxprof", "licences/LIST", "LICENSE-MIT"]
    {
        assert!(fs::metadata(tree.join(file)).unwrap().len() > 0, "{file}");
    }
    assert!(tree.join("licences/clap").read_dir().unwrap().next().is_some());
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: {test}: a root directory of its own takes root");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    fs::copy(tree.join("scxprof"), root.path().join("scxprof")).unwrap();
    let output = in_root(root.path(), &["--version"]);
    assert!(output.stdout.starts_with(b"scxprof "), "{output:?}");
    // Without procfs it says what is missing.
    let output = in_root(root.path(), &["run", "-t", "0.2", "--source", "faults"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("/proc") || said.contains("/sys"), "{said}");

    let places = [("proc", "proc"), ("sysfs", "sys"), ("cgroup2", "cgroup")];
    let mounts: Vec<_> = places.iter().filter_map(|(kind, at)| Mount::new(kind, &root.path().join(at))).collect();
    if mounts.len() < places.len() {
        println!("SKIP: {test}: may not mount procfs, sysfs and cgroup2");
        return;
    }
    let output = in_root(root.path(), &["run", "-t", "1", "--source", "faults", "--max-loss", "100"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(0) => assert!(output.stdout.starts_with(b"["), "{output:?}"),
        Some(1) => assert!(said.contains("no usable samples"), "{said}"),
        Some(3) => println!("SKIP: {test}: {said}"),
        _ => panic!("{:?}: {said}", output.status),
    }
}
