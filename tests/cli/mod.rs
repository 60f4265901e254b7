//! Tests the real binary: exit codes, messages, signals, and the destination of the result.

mod answer;
mod fleets;
mod habits;
mod output;
mod priority;
mod scores;
mod signals;
mod summaries;
mod tables;
mod top;
mod watches;

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const SCXPROF: &str = env!("CARGO_BIN_EXE_scxprof");

/// Runs with a source that samples even short programs, unless the test names another.
fn scxprof(arguments: &[&str]) -> Output {
    let mut command = Command::new(SCXPROF);
    command.arg("run");
    if !arguments.iter().any(|argument| ["--source", "--freq"].contains(argument)) {
        command.args(["--source", "faults"]);
    }
    command.args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn expect(output: &Output, code: i32, sentence: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(sentence), "expected \"{sentence}\" in:\n{said}");
    assert!(!said.contains("panicked"), "{said}");
}

/// True if system-wide sampling is allowed; otherwise prints why `test` is skipped.
fn is_root(test: &str) -> bool {
    let output = scxprof(&["-t", "0.1", "--cell", "x=^$"]);
    let allowed = output.status.code() != Some(3);
    if !allowed {
        println!("SKIP: {test}: {}", text(&output.stderr).trim());
    }
    allowed
}

/// Those who make packages run programs there. Clocks and the like come from the vDSO, which valgrind hides.
#[test]
fn it_runs_under_valgrind() {
    const TEST: &str = "it_runs_under_valgrind";
    // Its checks of memory do not know all that the kernel writes; what is asked here is that it runs.
    let command = |arguments: &[&str]| {
        Command::new("valgrind").args(["--quiet", "--tool=none", SCXPROF]).args(arguments).output().unwrap()
    };
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("SKIP: {TEST}: valgrind is not installed");
        return;
    }
    expect(&command(&["--version"]), 0, "");
    let directory = tempfile::tempdir().unwrap();
    let lines = directory.path().join("lines");
    fs::write(&lines, "web;main 1\n").unwrap();
    expect(&command(&["stacks", "-f", lines.to_str().unwrap()]), 0, "");
    // It reads clocks; a signal would leave no code.
    let doctor = command(&["doctor"]);
    assert!(doctor.status.code().is_some(), "{:?}: {}", doctor.status, text(&doctor.stderr));
}

/// Something that page-faults for as long as the test lasts.
struct Load(std::process::Child);

impl Load {
    fn new() -> Self {
        let script = "while :; do dd if=/dev/zero of=/dev/null bs=1M count=1 2>/dev/null; done";
        Self::of(Command::new("sh").args(["-c", script]))
    }

    fn of(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // SAFETY: the call takes numbers; the group is that of our child, which has not been waited for.
        unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

#[test]
fn wrong_usage_is_2_and_says_what_is_wrong() {
    for (arguments, sentence) in [
        (&["--memory", "4294967295"][..], "--memory 4294967295: this machine has"),
        (&["--cgroup-root", "/nonexistent"][..], "--cgroup-root /nonexistent: not a directory"),
        (&["--source", "pebbles"][..], "invalid value 'pebbles' for '--source"),
        (&["-t", "-5"], "must be more than 0 seconds"),
        (&["-t", "0"], "must be more than 0 seconds"),
        (&["-t", "soon"], "not a number of seconds"),
        (&["-C", "9999"], "CPU 9999 is not online"),
        (&["-C", "0-"], "not a list of CPUs"),
        (&["-p", "4194399"], "no such process"),
        (&["-p", "x"], "invalid value 'x' for '--pid"),
        (&["--cgroup", "/no/such/cgroup"], "no cgroup \"/no/such/cgroup\""),
        (&["--cell", "db=("], "--cell: cell number 1"),
        (&["--cell", "nothing"], "is not NAME=REGEX"),
        (&["--cell", "a="], "cell number 1, \"a=\", has no regular expression after the \"=\""),
        (&["--cgroup-root", "/tmp"], "--cgroup-root /tmp: not a cgroup hierarchy"),
        (&["--workload-cgroup-regex", "["], "--workload-cgroup-regex"),
        (&["--mmap-pages", "3"], "must be a power of two"),
        (&["--max-loss", "101"], "must be a percentage"),
        (&["--min-share", "-1"], "must be a percentage"),
        (&["-o", "/no/such/directory/cells.json"], "/no/such/directory"),
        (&["-o", "/"], "cannot write /: is a directory"),
        (&["--report", "/no/such/directory/report.json"], "cannot write /no/such/directory/report.json: there is no"),
        (&["--frobnicate"], "unexpected argument"),
        (&["-p", "1", "--cgroup", "/"], "cannot be used with"),
    ] {
        let output = scxprof(arguments);
        expect(&output, 2, sentence);
        assert!(output.stdout.is_empty(), "{arguments:?} printed a result");
    }
}

#[test]
fn a_command_that_does_not_exist_is_2() {
    let output = scxprof(&["--", "/no/such/command"]);
    if output.status.code() == Some(3) {
        println!("SKIP: command that does not exist: {}", text(&output.stderr).trim());
        return;
    }
    expect(&output, 2, "cannot run /no/such/command: No such file or directory");
    assert!(output.stdout.is_empty());
}

#[test]
fn the_command_s_status_is_ours() {
    if !is_root("status of the command") {
        return;
    }
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)] {
        let output = scxprof(&["--", "sh", "-c", &format!("echo to the terminal; ls / >/dev/null; {script}")]);
        expect(&output, code, "to the terminal");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(json.as_array().is_some_and(|cells| !cells.is_empty()), "the command's stdout stays out of the result");
    }
}

#[test]
fn a_command_is_ended_by_the_time_limit() {
    if !is_root("time limit of a command") {
        return;
    }
    let output = scxprof(&["-t", "0.5", "--", "sh", "-c", "while :; do ls / >/dev/null; done"]);
    expect(&output, 0, "");
    assert!(!output.stdout.is_empty());
}

#[test]
fn no_samples_is_1_and_prints_nothing() {
    if !is_root("no samples") {
        return;
    }
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let output = scxprof(&["-t", "0.3", "-p", &sleeper.id().to_string()]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    expect(&output, 1, "no usable samples");
    assert!(output.stdout.is_empty());
}

#[test]
fn a_process_that_ends_ends_the_capture() {
    if !is_root("end of -p") {
        return;
    }
    let mut child = Command::new("sh").args(["-c", "sleep 0.3; ls / >/dev/null; sleep 0.3"]).spawn().unwrap();
    let pid = child.id().to_string();
    let reaper = std::thread::spawn(move || child.wait());
    let output = scxprof(&["-t", "60", "-p", &pid]);
    let _ = reaper.join().unwrap();
    expect(&output, 0, "");
    assert!(text(&output.stdout).contains("\"rest\""));
}

#[test]
fn loss_over_the_limit_is_4_and_the_result_is_printed() {
    if !is_root("loss over the limit") {
        return;
    }
    let command = "dd if=/dev/zero of=/dev/null bs=64M count=4 2>/dev/null";
    let arguments = ["--mmap-pages", "1", "--max-loss", "0", "--", "sh", "-c", command];
    let output = scxprof(&arguments);
    if output.status.code() == Some(0) {
        println!("SKIP: loss over the limit: 65,536 faults fitted rings of one page this time");
        return;
    }
    expect(&output, 4, "of the samples were lost, more than --max-loss 0");
    assert!(text(&output.stderr).contains("lost in full rings (--mmap-pages of run and record makes the rings larger)"));
    assert!(text(&output.stderr).contains("--mmap-pages"));
    assert!(!output.stdout.is_empty());
    let mut allowed = arguments.to_vec();
    allowed[3] = "100";
    // Whether it loses samples again or not.
    expect(&scxprof(&allowed), 0, "");
}

#[test]
fn signals_end_the_capture_with_a_result() {
    if !is_root("signals") {
        return;
    }
    let _load = Load::new();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut command = Command::new(SCXPROF);
        command.args(["run", "--source", "faults", "-t", "300"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: signal() is async-signal-safe and takes no memory.
        unsafe {
            command.pre_exec(|| {
                // The caller of the tests may have ignored it.
                libc::signal(libc::SIGHUP, libc::SIG_DFL);
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(700));
        // SAFETY: the call takes numbers; the process is our child, which has not been waited for.
        unsafe { libc::kill(child.id() as i32, signal) };
        let output = child.wait_with_output().unwrap();
        expect(&output, 0, "");
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(!json.as_array().unwrap().is_empty());
    }
    // As nohup(1) does.
    let script = format!("trap '' HUP; {SCXPROF} run --source faults -v -t 1 & sleep 0.5; kill -HUP $!; wait $!");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    expect(&output, 0, "Sampled ");
    assert!(!text(&output.stderr).contains(" ms: "), "it was not ended before its time");
}

#[test]
fn a_closed_stdout_is_told_before_the_capture() {
    let script = format!("exec {SCXPROF} run -t 60 >&-");
    expect(&Command::new("sh").args(["-c", &script]).output().unwrap(), 2, "stdout is closed");
}

#[test]
fn a_reader_that_has_gone_is_told() {
    if !is_root("broken pipe") {
        return;
    }
    let _load = Load::new();
    let mut child = Command::new(SCXPROF)
        .args(["run", "--source", "faults", "-t", "0.5"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    expect(&output, 1, "cannot write to stdout: Broken pipe");
}

#[test]
fn a_stderr_that_takes_nothing_costs_no_result() {
    if !is_root("a full stderr") {
        return;
    }
    let _load = Load::new();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output =
        Command::new(SCXPROF).args(["run", "--source", "faults", "-t", "0.5", "-v"]).stderr(full).output().unwrap();
    expect(&output, 0, "");
    assert!(text(&output.stdout).contains("\"name\": \"rest\""));
}

#[test]
fn a_full_disk_leaves_nothing_half_written_and_loses_nothing() {
    if !is_root("full disk") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4k", "scxprof-test"])
        .arg(directory.path())
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        println!("SKIP: full disk: cannot mount a small tmpfs");
        return;
    }
    fs::write(directory.path().join("fill"), vec![0; 4096]).unwrap();
    let _load = Load::new();
    let path = directory.path().join("cells.json");
    let output = scxprof(&["-t", "0.5", "-o", path.to_str().unwrap()]);
    let profile = ["record", "--source", "faults", "-t", "0.5", "-o", path.to_str().unwrap()];
    let recorded = Command::new(SCXPROF).args(profile).output().unwrap();
    let left: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    Command::new("umount").arg(directory.path()).status().unwrap();
    expect(&output, 1, "No space left on device");
    expect(&recorded, 2, "No space left on device");
    assert_eq!(left, ["fill"]);
    assert!(text(&output.stdout).contains("\"rest\""), "the result went to stdout instead");
    let output = scxprof(&["-t", "0.5", "--report", "/dev/full"]);
    expect(&output, 1, "cannot write /dev/full: No space left on device");
    let written: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(written.is_array(), "the configuration, and not the report in its place");
}

#[test]
fn devices_are_written_to_and_files_replaced_when_whole() {
    if !is_root("-o FILE") {
        return;
    }
    let _load = Load::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cells.json");
    fs::write(&path, "old").unwrap();
    let output = scxprof(&["-t", "0.5", "-o", path.to_str().unwrap()]);
    expect(&output, 0, "");
    assert!(output.stdout.is_empty());
    let written: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert!(!written.as_array().unwrap().is_empty());
    let output = scxprof(&["--source", "faults", "--freq", "50", "-t", "0.5", "-o", "/dev/null"]);
    expect(&output, 0, "freq has no effect with source faults");
    assert!(!Path::new("/dev/null").metadata().unwrap().is_file(), "/dev/null is still a device");
}

#[test]
fn few_open_files_are_raised_where_allowed_and_told_where_not() {
    if !is_root("RLIMIT_NOFILE") {
        return;
    }
    let _load = Load::new();
    let limited = |limits: &str| {
        let script = format!("{limits}; exec {SCXPROF} run --source faults -t 0.5");
        Command::new("sh").args(["-c", &script]).output().unwrap()
    };
    expect(&limited("ulimit -Sn 6"), 0, "");
    let output = limited("ulimit -n 6");
    expect(&output, 3, "RLIMIT_NOFILE allows 6 (hard limit 6)");
    assert!(text(&output.stderr).contains("Too many open files"));
    // On one CPU the events still open.
    let script = format!("ulimit -n 32; exec {SCXPROF} run --source faults -C 0 -t 0.1");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("66 open files are wanted and RLIMIT_NOFILE allows 32"), "{said}");
}

#[test]
fn too_many_threads_are_told_with_the_limit() {
    if !is_root("RLIMIT_NOFILE") {
        return;
    }
    // They live until the end of the test.
    let end = std::sync::Arc::new(std::sync::RwLock::new(()));
    let held = end.write().unwrap();
    let stay = || {
        let end = std::sync::Arc::clone(&end);
        std::thread::spawn(move || drop(end.read()))
    };
    let threads: Vec<_> = (0..70).map(|_| stay()).collect();
    let pid = std::process::id();
    // The first cannot be enough; the second is too little for their events.
    for (limit, source) in [(64, ""), (200, "--source faults")] {
        let script = format!("ulimit -n {limit}; exec {SCXPROF} run {source} -p {pid} -C 0,1 -t 0.1");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let said = text(&output.stderr);
        if said.contains("not online") {
            println!("SKIP: too_many_threads_are_told_with_the_limit: {said}");
            return;
        }
        expect(&output, 3, &format!("RLIMIT_NOFILE allows {limit} (hard limit {limit}); raise it with `ulimit -Hn`"));
        let (said, _) = said.split_once(" open files").unwrap();
        assert!(said.contains("error: watching ") && said.contains(" threads on 2 CPUs takes up to "), "{said}");
    }
    drop(held);
    for thread in threads {
        thread.join().unwrap();
    }
}

/// A copy of the binary that a user without rights can run.
fn for_nobody(directory: &Path) -> Option<Command> {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    let binary = directory.join("scxprof");
    fs::copy(SCXPROF, &binary).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(binary);
    command.uid(65534).gid(65534).arg("run");
    Some(command)
}

fn paranoid() -> i32 {
    fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap().trim().parse().unwrap()
}

#[test]
fn without_rights_the_host_is_3_and_a_command_works() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut host) = for_nobody(directory.path()) else {
        println!("SKIP: without rights: the test must be root to become nobody");
        return;
    };
    if paranoid() <= 0 {
        println!("SKIP: without rights: kernel.perf_event_paranoid is {}", paranoid());
        return;
    }
    let output = host.args(["-t", "0.2"]).output().unwrap();
    expect(&output, 3, "needs root or CAP_PERFMON (kernel.perf_event_paranoid is ");
    assert!(output.stdout.is_empty());

    if paranoid() > 2 {
        println!("SKIP: a command without rights: kernel.perf_event_paranoid is {}", paranoid());
        return;
    }
    let mut command = for_nobody(directory.path()).unwrap();
    // The timer may not fire in such a short command.
    let output = command.args(["--source", "faults", "--", "sh", "-c", "ls / >/dev/null"]).output().unwrap();
    expect(&output, 0, "no physical addresses");
    assert!(text(&output.stdout).contains("CommPrefix"));
}

#[test]
fn without_rights_the_timer_source_recovers_a_command() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut command) = for_nobody(directory.path()) else {
        println!("SKIP: timer without rights: the test must be root to become nobody");
        return;
    };
    if paranoid() > 2 {
        println!("SKIP: timer without rights: kernel.perf_event_paranoid is {}", paranoid());
        return;
    }
    // `shared` of tests/programs documents its sharing; here it only has to run and to share.
    let program = directory.path().join("shared");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/shared.c");
    if !Command::new("cc").args(["-O2", "-pthread", "-o"]).arg(&program).arg(source).status().is_ok_and(|s| s.success())
    {
        println!("SKIP: timer without rights: no cc");
        return;
    }
    command.args(["--source", "timer", "-v", "--"]).arg(&program).arg("1");
    // On a busy machine its threads get little of the time.
    let enough = |output: &Output| !output.status.success() || text(&output.stdout).contains("shared-");
    let mut outputs = (0..10).map(|_| command.output().unwrap());
    let output = outputs.find(enough).expect("too few samples in ten runs");
    let frames =
        "Physical addresses are hidden without CAP_SYS_ADMIN: shared memory is identified by its file and offset";
    expect(&output, 0, frames);
    let said = text(&output.stderr);
    assert!(said.contains("cpu-clock"), "{said}");
    assert!(said.contains("Recovered: ") && !said.contains("Recovered: 0 "), "{said}");
    assert!(text(&output.stdout).contains("shared-"), "{}", text(&output.stdout));
}

#[test]
fn rings_are_halved_until_they_fit_the_locked_memory() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut command) = for_nobody(directory.path()) else {
        println!("SKIP: locked memory: the test must be root to become nobody");
        return;
    };
    if !(0..=2).contains(&paranoid()) {
        println!("SKIP: locked memory: kernel.perf_event_paranoid is {}", paranoid());
        return;
    }
    let output = command
        .args(["--source", "faults", "--mmap-pages", "16384", "--", "sh", "-c", "ls / >/dev/null"])
        .output()
        .unwrap();
    expect(&output, 0, "instead of 16384 pages a CPU: kernel.perf_event_mlock_kb is");
    assert!(text(&output.stderr).contains("RLIMIT_MEMLOCK is"));
}

#[test]
fn every_cpu_gets_a_ring_of_one_size_where_locked_memory_is_short() {
    let directory = tempfile::tempdir().unwrap();
    if for_nobody(directory.path()).is_none() || !(0..=2).contains(&paranoid()) {
        println!("SKIP: rings of one size: the test must be root, kernel.perf_event_paranoid from 0 to 2");
        return;
    }
    // A user for this test alone: a user's rings share one budget. It has room for one ring of 256 pages on two CPUs.
    let script = "ulimit -l 0; exec \"$0\" run --source faults -- sh -c 'ls / >/dev/null'";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(directory.path().join("scxprof")).uid(65_433).gid(65_433);
    expect(&command.output().unwrap(), 0, "rings of 128 instead of 256 pages a CPU");
}

#[test]
fn a_command_that_ignores_sigterm_does_not_keep_the_result() {
    if !is_root("a stubborn command") {
        return;
    }
    let script = "trap '' TERM; ls / >/dev/null; exec sleep 60";
    let mut child = Command::new(SCXPROF)
        .args(["run", "--source", "faults", "-t", "0.5", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert!(lines.map_while(Result::ok).any(|line| line == "]"), "the whole result");
    assert!(child.try_wait().unwrap().is_none(), "it waits for the command");
    // Once more if the first comes before it waits.
    let status = loop {
        // SAFETY: the call takes numbers; the process is our child, which has not been waited for.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        std::thread::sleep(Duration::from_millis(200));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
    };
    assert_eq!(status.code(), Some(0));
}

#[test]
fn cpu_clock_counts_events_and_not_ns() {
    if !is_root("events of cpu-clock") {
        return;
    }
    let _load = Load::new();
    let output = scxprof(&["-t", "0.5", "-v", "--freq", "200"]);
    let said = text(&output.stderr);
    let events = said.split_once(" events,").and_then(|(before, _)| before.rsplit(' ').next()?.parse::<u64>().ok());
    assert!(events.is_some_and(|events| events < 1_000_000), "{said}");
}

#[test]
fn a_procfs_of_another_pid_namespace_is_3() {
    let output = Command::new("unshare")
        .args(["--pid", "--fork", SCXPROF, "run", "--source", "faults", "-t", "1"])
        .output()
        .unwrap();
    if text(&output.stderr).contains("unshare:") {
        println!("SKIP: procfs of another pid namespace: {}", text(&output.stderr).trim());
        return;
    }
    expect(&output, 3, "/proc is of another pid namespace than ours");
}

#[test]
fn in_a_child_pid_namespace_strangers_are_counted_as_such() {
    if !is_root("pid namespace") {
        return;
    }
    let _load = Load::new();
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", SCXPROF, "run", "--source", "faults", "-t", "1"])
        .output()
        .unwrap();
    if text(&output.stderr).contains("unshare") {
        println!("SKIP: pid namespace: {}", text(&output.stderr).trim());
        return;
    }
    expect(&output, 1, "outside this pid namespace (in a container, start the container with --pid=host to see them)");
    assert!(output.stdout.is_empty(), "strangers make no configuration");
}

/// A server whose first process only waits for others, two levels down.
#[test]
fn the_descendants_of_a_process_are_sampled_too() {
    if !is_root("descendants") {
        return;
    }
    let script = "sh -c 'while :; do dd if=/dev/zero of=/dev/null bs=1M count=1 2>/dev/null; done' & wait";
    let tree = Command::new("sh")
        .args(["-c", &format!("sh -c \"{script}\" & echo ready; wait")])
        .process_group(0)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut tree = Load(tree);
    let mut line = [0; 6];
    tree.0.stdout.take().unwrap().read_exact(&mut line).unwrap();
    let pid = tree.0.id().to_string();
    // Until the others are there.
    std::thread::sleep(Duration::from_millis(500));
    let output = scxprof(&["-p", &pid, "-t", "2", "-v", "--max-loss", "100"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("  dd: "), "{}", text(&output.stderr));
}

#[test]
fn one_cell_for_a_named_cgroup() {
    if !is_root("--cell") {
        return;
    }
    let root = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].into_iter().map(Path::new);
    let Some(root) = root.into_iter().find(|root| root.join("cgroup.controllers").exists()) else {
        println!("SKIP: --cell: no cgroup2 at a usual place");
        return;
    };
    let cgroup = root.join(format!("scxprof cell {}", std::process::id()));
    fs::create_dir(&cgroup).unwrap();
    let load = Load::new();
    fs::write(cgroup.join("cgroup.procs"), load.0.id().to_string()).unwrap();
    let output =
        scxprof(&["-t", "1", "-v", "--max-loss", "100", "--target-cpus", "64", "--cell", "db=scxprof cell [0-9]+$"]);
    drop(load);
    for _ in 0..50 {
        if fs::remove_dir(&cgroup).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    expect(&output, 0, "db: ");
    let cells: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(cells[0]["name"], "db");
    assert_eq!(cells[0]["matches"]["CgroupRegex"], "scxprof cell [0-9]+$");
    assert!(text(&output.stdout).contains("{\"CommPrefix\": \"dd\"}"), "{}", text(&output.stdout));
}

#[test]
fn nothing_is_written_to_disk_unless_asked() {
    if !is_root("no byte on disk") {
        return;
    }
    let Ok(output) = Command::new("strace")
        .args([
            "-f",
            "-qq",
            "-e",
            "trace=openat,open,creat,rename,mkdir,memfd_create",
            SCXPROF,
            "run",
            "--source",
            "faults",
            "-t",
            "0.5",
        ])
        .output()
    else {
        println!("SKIP: no byte on disk: strace is not installed");
        return;
    };
    let said = text(&output.stderr);
    assert!(said.contains("openat("), "strace saw nothing: {said}");
    let writes: Vec<_> = said
        .lines()
        .filter(|line| ["O_WRONLY", "O_RDWR", "O_CREAT", "rename(", "mkdir("].iter().any(|flag| line.contains(flag)))
        .collect();
    assert!(writes.is_empty(), "{writes:?}");
}

#[test]
fn help_has_examples_and_exit_codes() {
    let help = text(&Command::new(SCXPROF).args(["run", "--help"]).output().unwrap().stdout);
    assert!(help.contains("sudo scxprof run -t 30 > cells.json"), "{help}");
    let help = text(&Command::new(SCXPROF).arg("--help").output().unwrap().stdout);
    assert!(help.contains("3  not supported or not permitted here"), "{help}");
    let mut completions = String::new();
    let mut child = Command::new(SCXPROF).args(["completions", "bash"]).stdout(Stdio::piped()).spawn().unwrap();
    child.stdout.take().unwrap().read_to_string(&mut completions).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(completions.contains("--mmap-pages"));
    assert_eq!(std::process::ExitStatus::from_raw(0).code(), Some(0));
}
