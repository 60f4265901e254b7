//! The archive for minimal hosts, and its binary in an empty root directory.

use std::ffi::{CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SCXPROF: &str = env!("CARGO_BIN_EXE_scxprof");

/// What `make dist` calls. For a test its binary is neither optimized as a release nor as small.
fn script() -> Command {
    let mut script = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/dist.sh"));
    script.env("MAX_SIZE", "64").env("PATH", super::path_with_cargo());
    script
}

/// The archive of which the script's last line tells.
fn archive(output: &Output) -> PathBuf {
    let lines = String::from_utf8_lossy(&output.stdout);
    let name = lines.lines().last().unwrap().split(':').next().unwrap();
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    assert!(archive.is_file(), "{}", archive.display());
    archive
}

/// The directory that was packed as this archive.
fn tree(archive: &Path) -> PathBuf {
    PathBuf::from(archive.to_str().unwrap().strip_suffix(".tar.gz").unwrap())
}

/// Builds the archive as `make dist` does, but faster; returns the packed directory. `None` if this machine has no static C
/// library.
fn dist(test: &str) -> Option<PathBuf> {
    // Not into target/dist, where the user may have a real one.
    let output = script().env("QUICK", "1").env("CARGO_TARGET_DIR", super::target()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success()
        && ["cannot find -l", "to link in (packages", "can't find crate for `std`"].iter().any(|it| said.contains(it))
    {
        println!("SKIP: {test}: no static C library here: {}", said.lines().last().unwrap_or_default());
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(tree(&archive(&output)))
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

/// A mount that ends with the test.
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

/// doctor's checks of BPF, each row as JSON.
fn bpf_rows(binary: &Path) -> Vec<serde_json::Value> {
    let output = Command::new(binary).args(["doctor", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let rows = report["checks"].as_array().unwrap().iter();
    rows.filter(|row| row["section"] == "bpf").cloned().collect()
}

/// The BPF programs are built in, and the kernel accepts the same as of this build.
fn bpf_is_built_in(binary: &Path) {
    let rows = bpf_rows(binary);
    assert!(rows.iter().any(|row| row["name"] == "hints-syscall"), "{rows:?}");
    let not_built = scxprof::bpf::HintsError::NotBuilt.to_string();
    assert!(rows.iter().all(|row| !row["why"].as_str().unwrap().contains(&not_built)), "{rows:?}");
    if cfg!(feature = "bpf") {
        assert_eq!(rows, bpf_rows(Path::new(SCXPROF)));
    }
}

/// A recording of this build gives the same configuration, report and lines with `binary`, byte for byte.
fn reads_what_this_build_recorded(test: &str, binary: &Path) {
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("p.tar.gz");
    let mut record = Command::new(SCXPROF);
    record.args(["record", "--source", "faults", "--max-loss", "100", "-o"]).arg(dir.path().join("p"));
    let load = "for i in 1 2 3 4; do dd if=/dev/zero of=/dev/null bs=2M count=2 2>/dev/null & done; wait";
    let output = record.args(["--", "sh", "-c", load]).output().unwrap();
    if output.status.code() == Some(3) {
        return println!("SKIP: {test}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(output.status.success(), "{output:?}");
    let [ours, theirs] = [Path::new(SCXPROF), binary].map(|program| {
        let report = dir.path().join("report.json");
        let extract = ["extract", "-v", "--max-loss", "100", "--report"].map(OsStr::new);
        let extracted =
            Command::new(program).args(extract).arg(&report).arg("-f").arg(&profile).env("TMPDIR", dir.path()).output();
        let extracted = extracted.unwrap();
        assert!(extracted.stdout.starts_with(b"["), "{extracted:?}");
        let processed = Command::new(program).args(["process", "-f"]).arg(&profile).output().unwrap();
        assert!(processed.status.success(), "{processed:?}");
        let out = dir.path().join("p.out");
        let lines = fs::read(out.join("perf.jsonl")).unwrap();
        fs::remove_dir_all(out).unwrap();
        (extracted.stdout, extracted.stderr, fs::read(&report).unwrap(), lines)
    });
    assert!(ours == theirs, "{ours:?}\n{theirs:?}");
}

/// Of the files that go with the binary, those that any archive has; each has something in it.
fn is_whole(tree: &Path) {
    let files = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "licences/LIST"];
    let pages = ["man/man1/scxprof.1", "man/man1/scxprof-run.1"];
    let completions = ["completions/scxprof", "completions/_scxprof", "completions/scxprof.fish"];
    let units = ["systemd/scxprof.service", "systemd/scxprof-watch.service"];
    for file in files.iter().chain(&pages).chain(&completions).chain(&units) {
        assert!(fs::metadata(tree.join(file)).unwrap().len() > 0, "{file}");
    }
    assert!(tree.join("licences/clap").read_dir().unwrap().next().is_some());
}

/// All but the static binary: the archive has a program that starts that of this build.
#[test]
fn the_archive_has_what_goes_with_the_binary() {
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("scxprof");
    let starter = format!("#!/bin/sh\nexec '{SCXPROF}' \"$@\"\n");
    fs::write(&binary, &starter).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    // Not into target/dist, where the user may have a real one.
    let output = script().env("BINARY", &binary).env("CARGO_TARGET_DIR", dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let archive = archive(&output);
    let name = format!("scxprof-{}-{}-linux", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    assert_eq!(archive, dir.path().join(format!("dist/{name}.tar.gz")));

    let unpacked = dir.path().join("unpacked");
    tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(&archive).unwrap())).unpack(&unpacked).unwrap();
    let tree = unpacked.join(&name);
    is_whole(&tree);
    assert_eq!(fs::read_to_string(tree.join("scxprof")).unwrap(), starter);
    assert_eq!(fs::metadata(tree.join("scxprof")).unwrap().permissions().mode() & 0o111, 0o111);
}

#[test]
#[ignore = "builds all again, as a static binary: make test-dist"]
fn the_archive_runs_where_there_is_nothing_else() {
    let test = "the_archive_runs_where_there_is_nothing_else";
    let Some(tree) = dist(test) else { return };
    is_whole(&tree);
    bpf_is_built_in(&tree.join("scxprof"));
    reads_what_this_build_recorded(test, &tree.join("scxprof"));
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: {test}: a root directory of its own takes root");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    fs::copy(tree.join("scxprof"), root.path().join("scxprof")).unwrap();
    let output = in_root(root.path(), &["--version"]);
    assert!(output.stdout.starts_with(b"scxprof "), "{output:?}");
    // Without procfs it reports what is missing.
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
