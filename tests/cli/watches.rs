//! The real binary: `watch`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::output::{fifo, has_ended, is_root, output_of};
use super::SCXPROF;
use crate::profile::fields::metrics_differ;
use crate::support::alone;

/// The example workload, until it is dropped.
pub(crate) struct Workload(Child);

impl Workload {
    /// `None` if it cannot have its cgroups here, which is said.
    pub(crate) fn start(test: &str) -> Option<Self> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_demo-workload"));
        let mut child = command.args(["--seconds", "300"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let started = Self(child);
        if line.trim() == "ready" {
            return Some(started);
        }
        println!("SKIP: {test}: the example workload has no cgroups of its own here: {}", line.trim());
        None
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // SAFETY: a signal to a child that was not waited for. It takes its cgroups away then.
        unsafe { libc::kill(self.0.id().cast_signed(), libc::SIGTERM) };
        let _ = self.0.wait();
    }
}

fn refusal(arguments: &[&str]) -> String {
    let output: Output = output_of(Command::new(SCXPROF).arg("watch").args(arguments));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    said
}

/// Waits for something to happen; a minute is for busy machines.
fn wait_for(what: &str, happened: impl Fn() -> bool) {
    let begin = Instant::now();
    while !happened() {
        assert!(begin.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(child.id().cast_signed(), signal) };
}

/// The value of a metric.
fn metric(path: &Path, name: &str) -> Option<f64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(&format!("scxprof_watch_{name} "))?.parse().ok())
}

#[test]
fn a_watch_writes_a_configuration_and_goes_on_after_a_restart() {
    const TEST: &str = "a_watch_writes_a_configuration_and_goes_on_after_a_restart";
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    let _alone = alone();
    let Some(workload) = Workload::start(TEST) else { return };
    let socket = UnixDatagram::bind(at("notify")).unwrap();
    let (told, notified) = std::sync::mpsc::channel();
    // Unread messages fill the socket, and the watch would wait for systemd.
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(bytes) = socket.recv(&mut buffer) {
            let _ = told.send(String::from_utf8_lossy(&buffer[..bytes]).into_owned());
        }
    });
    let start = || {
        let mut command = Command::new(SCXPROF);
        command.args(["watch", "--source", "timer", "--interval", "2", "--duty", "100", "--target-cpus", "64"]);
        command.args(["-o", &path("cells.json"), "--state", &path("state"), "--metrics", &path("scxprof.prom")]);
        command.args(["--evidence", &path("evidence.parquet"), "-v"]);
        // Fails at first.
        let (tried, loaded) = (path("tried"), path("loaded.json"));
        let once = format!("[ -e {tried} ] || {{ touch {tried}; exit 7; }}; cp \"$SCXPROF_CONFIG\" {loaded}");
        command.args(["--exec", &once]);
        command.env("NOTIFY_SOCKET", at("notify")).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut first = start();
    // It ends at once where it cannot sample.
    wait_for("neither ready nor ended", || at("scxprof.prom").exists() || first_ended(&first));
    if let Some(status) = first.try_wait().unwrap() {
        let said = std::io::read_to_string(first.stderr.take().unwrap()).unwrap();
        assert_eq!(status.code(), Some(3), "{said}");
        println!("SKIP: {TEST}: {}", said.trim());
        return;
    }
    wait_for("no configuration", || at("loaded.json").exists());
    let cells = fs::read_to_string(at("cells.json")).unwrap();
    assert!(cells.contains("pool-") && cells.contains("allotment"), "{cells}");
    wait_for("no metrics", || metric(&at("scxprof.prom"), "changes_total") == Some(1.0));
    // An interval with few samples has not all of them.
    let differ = || {
        let written = fs::read_to_string(at("scxprof.prom")).unwrap();
        metrics_differ(("watch.md", "Metrics", "| metric"), (&written, "scxprof_watch_"), &[])
    };
    wait_for("metrics are not those of docs/watch.md", || differ().is_none());
    let prom = |name: &str| metric(&at("scxprof.prom"), name);
    assert_eq!(prom("failed_execs_total"), Some(1.0));
    assert!(
        prom("samples_total") > Some(0.0)
            && prom("cpu_seconds_total") > Some(0.0)
            && prom("resident_bytes") > Some(0.0)
    );
    // It told systemd.
    let said: Vec<String> = notified.try_iter().collect();
    assert!(
        said.iter().any(|it| it.contains("READY=1")) && said.iter().any(|it| it.contains("STATUS=locality")),
        "{said:?}"
    );
    // A second one would spoil the state.
    let other = refusal(&["-o", &path("other.json"), "--state", &path("state")]);
    assert!(other.contains("another scxprof watch uses this directory"), "{other}");
    // What is loaded may be changed by others: nothing but a cell for all is worse.
    fs::write(at("cells.json"), r#"[{"name": "all", "matches": {}}]"#).unwrap();
    signal(&first, libc::SIGHUP);
    wait_for("what is worse was not replaced", || prom("changes_total") == Some(2.0));
    assert!(fs::read_to_string(at("cells.json")).unwrap().contains("pool-"));
    let intervals = prom("intervals_total").unwrap();
    signal(&first, libc::SIGTERM);
    let output = first.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("was read again") && said.contains("a new configuration, which avoids"), "{said}");
    // After a restart it counts on. On a busy host another configuration may be better by chance, but it keeps the groups together too.
    let second = start();
    wait_for("the second does not go on", || prom("intervals_total") > Some(intervals + 1.0));
    assert!(prom("changes_total") >= Some(2.0), "{:?}", prom("changes_total"));
    assert!(fs::read_to_string(at("cells.json")).unwrap().contains("pool-"));
    signal(&second, libc::SIGINT);
    let output = second.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    drop(workload);
    // Its evidence can be merged.
    let merged =
        Command::new(SCXPROF).args(["merge", &path("evidence.parquet"), "--target-cpus", "64"]).output().unwrap();
    assert!(String::from_utf8_lossy(&merged.stdout).contains("pool-"), "{}", String::from_utf8_lossy(&merged.stderr));
    // A state that no watch wrote is refused.
    fs::write(at("state/state.json"), "{").unwrap();
    let damaged = refusal(&["-o", &path("cells.json"), "--state", &path("state")]);
    assert!(damaged.contains("state.json: it is damaged"), "{damaged}");
    fs::write(at("state/state.json"), r#"{"version": 99, "others": []}"#).unwrap();
    let newer = refusal(&["-o", &path("cells.json"), "--state", &path("state")]);
    assert!(newer.contains("it is of version 99"), "{newer}");
}

/// True if the process has ended and was not waited for.
fn first_ended(child: &Child) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
}

#[test]
fn what_cannot_be_watched_is_refused_in_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("cells.json");
    let path = config.to_str().unwrap();
    for (arguments, sentence) in [
        (&["-o", path, "--duty", "0"][..], "--duty 0"),
        (&["-o", path, "--interval", "0.1"], "--interval: the shortest"),
        (&["-o", path, "--", "true"], "watch takes no COMMAND"),
        (&["-o", path, "-t", "3"], "watch takes no -t"),
        (&["-o", path, "--metrics", path], "--metrics names the same file as -o"),
        (&["-o", "-"], "-o -: a watch replaces a file"),
        (&["-o", path, "--interval", "1e12"], "--interval: the longest"),
        (&["-o", "/no/such/directory/cells.json"], "/no/such/directory"),
    ] {
        let said = refusal(arguments);
        assert!(said.lines().count() == 1 && said.contains(sentence), "{arguments:?}: {said}");
    }
    fs::write(&config, "{").unwrap();
    let said = refusal(&["-o", path]);
    assert!(said.contains("no configuration of scx_mitosis or scx_layered"), "{said}");
    assert_eq!(fs::read_to_string(&config).unwrap(), "{", "it is not touched");
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    let one = |arguments: &[&str], sentence: &str| {
        let said = refusal(arguments);
        assert!(said.lines().count() == 1 && said.contains(sentence), "{arguments:?}: {said}");
    };
    fifo(&at("fifo"));
    one(&["-o", &path("fifo")], "is a FIFO without a reader");
    one(&["-o", &path("cells.json"), "--metrics", &path("fifo")], "is a FIFO without a reader");
    // Nor is a reader waited for that reads no more.
    let reader = fs::File::options().read(true).write(true).open(at("fifo")).unwrap();
    for option in ["--metrics", "--evidence"] {
        one(&["-o", &path("cells.json"), option, &path("fifo")], "a watch waits for no reader");
    }
    one(&["-o", &path("fifo")], "a watch waits for no reader");
    drop(reader);
    for name in ["lock", "state.json"] {
        let state = at(&format!("state of {name}"));
        fs::create_dir(&state).unwrap();
        fifo(&state.join(name));
        let arguments = ["-o", &path("cells.json"), "--state", state.to_str().unwrap()];
        one(&arguments, "it is not a regular file but a pipe");
    }
    fs::create_dir(at("linked")).unwrap();
    std::os::unix::fs::symlink(at("target"), at("linked/lock")).unwrap();
    one(&["-o", &path("cells.json"), "--state", &path("linked")], "it is a symbolic link, which is not followed");
    assert!(!at("target").exists(), "the target of a link was made");
    if !is_root("the state in a directory of another user") {
        return;
    }
    // A link in the path of the directory, and one as the state.
    std::os::unix::fs::symlink(at("elsewhere"), at("theirs")).unwrap();
    fs::create_dir(at("state")).unwrap();
    fs::write(at("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(at("secret"), at("state/state.json")).unwrap();
    for name in ["theirs", "state/state.json"] {
        std::os::unix::fs::lchown(at(name), Some(65_534), Some(65_534)).unwrap();
    }
    for state in ["theirs/state", "theirs", "state"] {
        one(&["-o", &path("cells.json"), "--state", &path(state)], "is a symbolic link of another user (uid 65534)");
    }
    assert!(!at("elsewhere").exists());
}

/// Whenever a signal comes, each file of a watch is there as a whole or not at all, and nothing else is.
#[test]
fn a_signal_leaves_no_part_of_a_file() {
    let tries: Vec<_> = (0..10u64)
        .map(|at| {
            std::thread::spawn(move || {
                let directory = tempfile::tempdir().unwrap();
                let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
                let mut command = Command::new(SCXPROF);
                command.args(["watch", "--source", "faults", "--interval", "1.2", "--duty", "100"]);
                command.args(["-o", &path("cells"), "--state", &path("state"), "--metrics", &path("prom")]);
                let mut child = command.args(["--evidence", &path("evidence")]).stderr(Stdio::piped()).spawn().unwrap();
                std::thread::sleep(Duration::from_millis(1000 + at * 70));
                for _ in 0..=at % 2 {
                    signal(&child, [libc::SIGTERM, libc::SIGINT][at as usize / 2 % 2]);
                }
                assert!(has_ended(&mut child), "it goes on");
                let output = child.wait_with_output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                if output.status.code() == Some(3) {
                    return Some(said.trim().to_owned());
                }
                let files = ["", "state"].map(|name| fs::read_dir(directory.path().join(name)).into_iter().flatten());
                for entry in files.into_iter().flatten() {
                    let path = entry.unwrap().path();
                    let read = || fs::read(&path).unwrap();
                    let is_whole = match path.file_name().unwrap().to_str().unwrap() {
                        "cells" | "state.json" => serde_json::from_slice::<serde_json::Value>(&read()).is_ok(),
                        name if name.starts_with("evidence") => read().ends_with(b"PAR1"),
                        "prom" => read().ends_with(b"\n"),
                        name => matches!(name, "state" | "lock"),
                    };
                    assert!(is_whole, "{} after {at}: {said}", path.display());
                }
                None
            })
        })
        .collect();
    let ends: Vec<Option<String>> = tries.into_iter().map(|it| it.join().unwrap()).collect();
    if let Some(why) = ends.iter().flatten().next() {
        println!("SKIP: a_signal_leaves_no_part_of_a_file: {why}");
    }
}

#[test]
fn neither_a_full_socket_nor_a_full_disk_stops_a_watch() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    // Nothing reads from it.
    let socket = UnixDatagram::bind(at("notify")).unwrap();
    let filling = UnixDatagram::unbound().unwrap();
    filling.set_nonblocking(true).unwrap();
    while filling.send_to(b"x", at("notify")).is_ok() {}
    let mut command = Command::new(SCXPROF);
    command.args(["watch", "--source", "timer", "--interval", "1.2", "--duty", "100", "--intervals", "2"]);
    command.args(["-o", &path("cells.json"), "--state", &path("state"), "--metrics", &path("prom")]);
    command.args(["--evidence", "/dev/full"]).env("NOTIFY_SOCKET", at("notify"));
    let output = output_of(&mut command);
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) {
        println!("SKIP: neither_a_full_socket_nor_a_full_disk_stops_a_watch: {}", said.trim());
        return;
    }
    assert!(output.status.success(), "{said}");
    let notes = said.lines().filter(|line| line.contains("--evidence could not be written, the watch goes on")).count();
    assert_eq!(notes, 1, "{said}");
    assert_eq!(metric(&at("prom"), "failed_writes_total"), Some(2.0));
    assert_eq!(metric(&at("prom"), "intervals_total"), Some(2.0));
    // Nor do its messages that no process reads.
    let (unread, full) = std::io::pipe().unwrap();
    let mut filling =
        Command::new("timeout").args(["0.2", "cat", "/dev/zero"]).stdout(full.try_clone().unwrap()).spawn().unwrap();
    filling.wait().unwrap();
    let mut command = Command::new(SCXPROF);
    command.args(["watch", "--source", "timer", "--interval", "1.2", "--duty", "100", "--intervals", "1"]);
    let mut child = command.args(["-v", "-o", &path("cells.json")]).stderr(full).spawn().unwrap();
    assert!(has_ended(&mut child), "it waits for the reader of its messages");
    assert!(child.wait().unwrap().success());
    drop((unread, socket));
    // It counts on.
    assert!(fs::read_to_string(at("state/state.json")).unwrap().contains("\"failed_writes\":2"));
}
