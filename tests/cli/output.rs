//! Tests the real binary: where results go, and where they must not go even if another user wants it.

use std::fs::{self, File, Permissions};
use std::io::{Read, Seek};
use std::os::unix::fs::{chown, lchown, symlink, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Another user, and a group without members.
const OTHER: u32 = 65_534;
const GROUP: u32 = 65_433;
/// Bytes that a configuration must not replace.
const PRECIOUS: &str = "precious\n";

/// Lines of two threads that share a page, to be decided about without any rights.
fn lines(directory: &Path) -> PathBuf {
    let path = directory.join("perf.jsonl");
    let line = |at: u64| {
        let tid = 10 + at % 2;
        format!(
            "{{\"comm\":\"web\",\"tid\":{tid},\"pid\":10,\"time\":\"5.{at:09}\",\"addr\":\"{:x}\",\"cgroup\":\"/a\",\"ip\":\"40\"}}\n",
            0x7f00 + at % 64 * 8
        )
    };
    fs::write(&path, (0..400).map(line).collect::<String>()).unwrap();
    path
}

fn command(subcommand: &str, profile: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scxprof"));
    command.arg(subcommand).arg("-f").arg(profile).args(arguments).stdin(Stdio::null());
    command
}

fn extract(profile: &Path, arguments: &[&str]) -> Output {
    output_of(command("extract", profile, arguments).stdout(Stdio::piped()))
}

/// The command's output; fails if the command blocks.
pub(crate) fn output_of(command: &mut Command) -> Output {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    assert!(has_ended(&mut child), "it waits for somebody");
    child.wait_with_output().unwrap()
}

/// True once it has ended; kills a process that does not end.
pub(crate) fn has_ended(child: &mut Child) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(60) {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    false
}

#[track_caller]
fn expect(output: &Output, code: i32, sentence: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(sentence), "expected \"{sentence}\" in:\n{said}");
}

#[track_caller]
fn assert_cells(bytes: &[u8]) {
    let cells: serde_json::Value = serde_json::from_slice(bytes).unwrap();
    assert!(cells.as_array().is_some_and(|cells| !cells.is_empty()));
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// True if files can be given to other users; otherwise prints why `test` is skipped.
pub(crate) fn is_root(test: &str) -> bool {
    // SAFETY: takes and changes nothing.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        println!("SKIP: {test}: the test must be root to make files of another user");
    }
    is_root
}

/// A directory with the mode of /tmp.
fn sticky() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o1777)).unwrap();
    directory
}

pub(crate) fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn links_of_another_user_are_not_followed() {
    if !is_root("links of another user") {
        return;
    }
    let own = tempfile::tempdir().unwrap();
    let lines = lines(own.path());
    let victim = own.path().join("victim");
    fs::write(&victim, PRECIOUS).unwrap();
    fs::set_permissions(&victim, Permissions::from_mode(0o600)).unwrap();
    let directory = sticky();
    let link = directory.path().join("cells.json");
    symlink(&victim, &link).unwrap();
    let to_directory = directory.path().join("results");
    symlink(own.path(), &to_directory).unwrap();
    // Our link to their file no longer helps them.
    let indirect = own.path().join("indirect");
    symlink(&link, &indirect).unwrap();
    for link in [&link, &to_directory] {
        lchown(link, Some(OTHER), Some(OTHER)).unwrap();
    }
    let (link, below) = (link.to_str().unwrap(), to_directory.join("victim"));
    for option in ["-o", "--report"] {
        for path in [link, below.to_str().unwrap(), indirect.to_str().unwrap()] {
            let output = extract(&lines, &[option, path]);
            expect(&output, 2, "is a symbolic link of another user (uid 65534), which is not followed");
            assert!(output.stdout.is_empty());
        }
    }
    let out = to_directory.join("out");
    let process = output_of(&mut command("process", &lines, &["-o", out.to_str().unwrap()]));
    expect(&process, 2, "is a symbolic link of another user (uid 65534)");
    let record = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scxprof"));
        output_of(command.args(["record", "--source", "faults", "-t", "0.1"]).args(arguments))
    };
    expect(&record(&["-o", out.to_str().unwrap()]), 2, "is a symbolic link of another user (uid 65534)");
    let (elsewhere, archive) = (own.path().join("web"), to_directory.join("web.tar.gz"));
    let output = record(&["-o", elsewhere.to_str().unwrap(), "-f", archive.to_str().unwrap()]);
    expect(&output, 2, "is a symbolic link of another user (uid 65534)");
    assert_eq!((fs::read_to_string(&victim).unwrap().as_str(), mode(&victim)), (PRECIOUS, 0o600));
    assert_eq!(names(own.path()), ["indirect", "perf.jsonl", "victim"]);
}

#[test]
fn a_link_of_our_own_is_followed_and_its_target_keeps_its_owner() {
    let directory = sticky();
    let lines = lines(directory.path());
    let inner = directory.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let (target, link) = (inner.join("target"), directory.path().join("link"));
    symlink("inner/target", &link).unwrap();
    let is_link = || assert!(link.symlink_metadata().unwrap().is_symlink());
    let path = link.to_str().unwrap();
    expect(&extract(&lines, &["-o", path]), 0, "");
    is_link();
    assert_cells(&fs::read(&target).unwrap());
    fs::write(&target, "old").unwrap();
    fs::set_permissions(&target, Permissions::from_mode(0o640)).unwrap();
    let given_away = is_root("the owner of what a link points to");
    if given_away {
        chown(&target, Some(OTHER), Some(GROUP)).unwrap();
    }
    expect(&extract(&lines, &["-o", path]), 0, "");
    is_link();
    assert_cells(&fs::read(&target).unwrap());
    assert_eq!(mode(&target), 0o640);
    if given_away {
        let metadata = target.metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (OTHER, GROUP));
    }
    assert_eq!(names(&inner), ["target"], "nothing is left behind");
}

#[test]
fn the_report_is_for_its_owner_alone() {
    let directory = sticky();
    let lines = lines(directory.path());
    let (cells, report) = (directory.path().join("cells.json"), directory.path().join("report.json"));
    let (o, r) = (cells.to_str().unwrap(), report.to_str().unwrap());
    expect(&extract(&lines, &["-o", o, "--report", r]), 0, "");
    assert_eq!(mode(&report), 0o600);
    expect(&extract(&lines, &["-o", o, "--report", o]), 2, "-o and --report both name");
    if !is_root("a report that another user has left room for") {
        return;
    }
    for path in [&cells, &report] {
        fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
        chown(path, Some(OTHER), Some(OTHER)).unwrap();
    }
    expect(&extract(&lines, &["-o", o, "--report", r]), 0, "");
    let what = |path: &Path| (mode(path) & 0o022, path.metadata().unwrap().uid());
    assert_eq!((what(&cells), what(&report)), ((0, 0), (0, 0)), "it is no file of another user any more");
    assert_eq!(mode(&report), 0o600);
}

#[test]
fn a_report_says_what_of_its_profile_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let (lines, report) = (lines(directory.path()), directory.path().join("report.json"));
    let damage = |code: i32| -> serde_json::Value {
        let arguments = ["-o", "/dev/null", "--report", report.to_str().unwrap()];
        expect(&extract(&lines, &arguments), code, "");
        serde_json::from_slice::<serde_json::Value>(&fs::read(&report).unwrap()).unwrap()["run"]["damage"].clone()
    };
    assert_eq!(damage(0), serde_json::json!([]));
    let bytes = fs::read(&lines).unwrap();
    fs::write(&lines, &bytes[..bytes.len() - 20]).unwrap();
    assert_eq!(damage(4), serde_json::json!(["the file ends within a line: what came after it is missing"]));
}

#[test]
fn a_fifo_is_not_waited_for() {
    let directory = sticky();
    let lines = lines(directory.path());
    let path = directory.path().join("fifo");
    fifo(&path);
    for option in ["-o", "--report"] {
        let output = extract(&lines, &[option, path.to_str().unwrap()]);
        expect(&output, 2, "is a FIFO without a reader: start its reader first");
    }
    let mut reader = Command::new("cat").arg(&path).stdout(Stdio::piped()).spawn().unwrap();
    // It may not have opened it yet.
    let written = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        extract(&lines, &["-o", path.to_str().unwrap()]).status.success()
    });
    if !written {
        reader.kill().unwrap();
    }
    assert_cells(&reader.wait_with_output().unwrap().stdout);
    if !is_root("a FIFO of another user") {
        return;
    }
    lchown(&path, Some(OTHER), Some(OTHER)).unwrap();
    let mut reader = Command::new("cat").arg(&path).stdout(Stdio::piped()).spawn().unwrap();
    let output = extract(&lines, &["--report", path.to_str().unwrap()]);
    reader.kill().unwrap();
    reader.wait().unwrap();
    expect(&output, 2, "is a FIFO of another user (uid 65534)");
}

#[test]
fn devices_and_what_is_open_already_are_written_to() {
    let directory = tempfile::tempdir().unwrap();
    let lines = lines(directory.path());
    for path in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let output = extract(&lines, &["-o", path]);
        expect(&output, 0, "");
        assert_cells(&output.stdout);
        // Existing content stays, as with `>>`.
        let mut file = File::options().read(true).append(true).create(true).open(directory.path().join("all")).unwrap();
        file.set_len(0).unwrap();
        std::io::Write::write_all(&mut file, b"[]\n").unwrap();
        let stdout = Stdio::from(file.try_clone().unwrap());
        expect(&output_of(command("extract", &lines, &["-o", path]).stdout(stdout)), 0, "");
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_cells(text.strip_prefix("[]\n").unwrap().as_bytes());
    }
    expect(&extract(&lines, &["-o", "/dev/null", "--report", "/dev/null"]), 0, "");
    assert!(!Path::new("/dev/null").metadata().unwrap().is_file(), "/dev/null is still a device");
    assert_eq!(names(directory.path()), ["all", "perf.jsonl"]);
}

#[test]
fn a_socket_and_a_disk_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let lines = lines(directory.path());
    let path = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    expect(&extract(&lines, &["-o", path.to_str().unwrap()]), 2, "is a socket");
    let path = directory.path().join("disk");
    // A driver that does not exist (Documentation/admin-guide/devices.txt: 240 to 254 are for local use).
    if !Command::new("mknod").arg(&path).args(["b", "254", "250"]).status().unwrap().success() {
        println!("SKIP: a disk is refused: mknod is not permitted");
        return;
    }
    expect(&extract(&lines, &["-o", path.to_str().unwrap()]), 2, "is a block device");
}

#[test]
fn an_input_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let lines = lines(directory.path());
    let (path, before) = (lines.to_str().unwrap(), fs::read(&lines).unwrap());
    let cells = directory.path().join("cells.json");
    fs::write(&cells, r#"[{"name": "all", "matches": {}}]"#).unwrap();
    let link = directory.path().join("link");
    symlink("perf.jsonl", &link).unwrap();
    let (cells, link) = (cells.to_str().unwrap(), link.to_str().unwrap());
    for (subcommand, arguments) in [
        ("extract", &["-o", path][..]),
        ("extract", &["-o", link]),
        ("report", &["--html", path]),
        ("stacks", &["-o", path]),
        ("sched", &["-o", link]),
        ("export", &["--perfetto", path]),
        ("score", &["--config", cells, "-o", cells]),
        ("process", &["-o", path]),
    ] {
        let output = output_of(&mut command(subcommand, &lines, arguments));
        expect(&output, 2, "this is what is read");
        assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "{subcommand}");
    }
    assert_eq!(fs::read(&lines).unwrap(), before);
    // What is appended to while it is read.
    let stdout = Stdio::from(File::options().append(true).open(&lines).unwrap());
    expect(&output_of(command("extract", &lines, &["-o", "-"]).stdout(stdout)), 2, "this is what is read");
}

#[test]
fn a_configuration_is_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let lines = lines(directory.path());
    let path = directory.path().join("fifo");
    fifo(&path);
    let path = path.to_str().unwrap();
    for (subcommand, arguments) in [
        ("sched", &["--by", "cell", "--config", path][..]),
        ("stacks", &["--config", path]),
        ("export", &["--config", path, "--perfetto", "-"]),
        ("score", &["--config", path]),
        ("replay", &["--compare", path, path]),
    ] {
        expect(&output_of(&mut command(subcommand, &lines, arguments)), 2, "it is not a regular file but a pipe");
    }
    let mut diff = Command::new(env!("CARGO_BIN_EXE_scxprof"));
    expect(&output_of(diff.args(["diff", path, path])), 2, "must be a file or a directory");
}

/// `src/cli/ends.rs` has the order, and a test of each pair.
#[test]
fn of_several_failures_the_documented_one_is_the_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    let lines = lines(directory.path());
    // Half of the lines are no samples.
    let text = fs::read_to_string(&lines).unwrap();
    fs::write(&lines, text + &"no sample\n".repeat(400)).unwrap();
    let too_many: &[&str] = &["--cell", "a=/a", "--cell", "b=/b", "--target-cpus", "1"];
    let fits: &[&str] = &["--target-cpus", "8"];
    let unwritable: &[&str] = &["-o", "/dev/full"];
    let no_report: &[&str] = &["--report", "/dev/full"];
    let no_evidence: &[&str] = &["--evidence", "/dev/full"];
    let lost: &[&str] = &["--max-loss", "1"];
    let kept: &[&str] = &["--max-loss", "100"];
    for (options, code, sentence) in [
        (&[too_many, unwritable, no_report, no_evidence, lost][..], 5, "error: no configuration: "),
        (&[fits, unwritable, no_report, no_evidence, lost], 1, "error: cannot write /dev/full (the result went to"),
        (&[fits, no_report, no_evidence, lost], 1, "error: cannot write /dev/full: "),
        (&[fits, no_evidence, lost], 1, "error: cannot write /dev/full: "),
        (&[fits, lost], 4, "error: 50.0 % of the samples were lost, more than --max-loss 1"),
        (&[fits, kept], 0, ""),
    ] {
        expect(&extract(&lines, &options.concat()), code, sentence);
    }
}
