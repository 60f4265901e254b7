//! What users of perf type: commands without dashes, names that they know, and the profile that was recorded last.

use std::fs;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{expect, is_root, text, Load, SCXPROF};

fn run_in(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(SCXPROF).args(arguments).current_dir(directory).output().unwrap()
}

fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|it| it.unwrap().file_name().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn subcommands_of_perf_say_what_to_type() {
    let directory = tempfile::tempdir().unwrap();
    for (line, instead) in [
        ("c2c record", "`scxprof run -vv -- COMMAND`"),
        ("mem report", "`scxprof report`"),
        ("stat ls", "`scxprof stacks -e EVENT COMMAND`"),
        ("script -i perf.data", "`scxprof process -o -`"),
        ("annotate main", "`scxprof stacks`"),
        ("sched record", "`sudo scxprof record --sched`"),
        ("list", "`scxprof doctor`"),
        ("lock contention", "`sudo scxprof stacks -e lock:contention_begin`"),
        ("kmem stat", "`sudo scxprof stacks -e kmem:kmalloc`"),
        ("run -g", "run has no -g: `scxprof stacks` prints"),
        ("run -u root", "run has no -u: processes are named by their ids: type `-p $(pgrep -d, -u USER)`"),
        ("record --tid=3 true", "record has no --tid: `-p PID`"),
        ("run -d true", "run has no -d: leave it out"),
        ("report -n", "report has no -n: leave it out"),
        ("top -d 2", "top has no -d: the time between two frames is `--interval SECONDS`"),
        ("report --sort comm", "report has no --sort: it is about threads that share memory"),
        ("sched -p 1 -- sleep 3", "sched has no -p: it always watches the whole host"),
        // What is for --score.
        (
            "run -t 3 --json",
            "--json is for --score FILE; the whole report as JSON is `--report FILE`, or `--report - -o FILE`",
        ),
        ("run --at-least 80", "--at-least is for --score FILE"),
        ("run --llcs 3", "--llcs is for --score FILE"),
        // What is sampled is not the command.
        (
            "run -p 1 -- make -j8",
            "with -p no command is run: type how long to sample, such as `-t 5s`, in place of `make -j8`",
        ),
        ("stacks --cgroup / make", "with --cgroup no command is run"),
        ("record -t 5 -p 1 sleep 3", "-t cannot be used with `sleep 3`"),
    ] {
        let output = run_in(directory.path(), &line.split(' ').collect::<Vec<_>>());
        expect(&output, 2, instead);
        assert_eq!(text(&output.stderr).lines().count(), 1, "one sentence: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn an_option_that_is_none_gets_no_tip_to_run_a_program_of_its_name() {
    let directory = tempfile::tempdir().unwrap();
    for line in
        ["run --frobnicate", "run -Z 3", "stacks --frobnicate ls", "report --frobnicate", "merge -Z", "trace info -Z"]
    {
        let output = run_in(directory.path(), &line.split(' ').collect::<Vec<_>>());
        expect(&output, 2, "unexpected argument");
        assert!(!text(&output.stderr).contains("tip:"), "{line}: {}", text(&output.stderr));
    }
    expect(&run_in(directory.path(), &["run", "--tim", "3"]), 2, "a similar argument exists: '--time'");
}

#[test]
fn a_command_that_is_not_sampled_says_how_long() {
    if !is_root("run -p PID -- sleep TIME") {
        return;
    }
    let _load = Load::new();
    let directory = tempfile::tempdir().unwrap();
    let pid = std::process::id().to_string();
    for line in [
        &["record", "-F", "999", "--source", "faults", "-p", &pid, "-o", "a.tar.gz", "--", "sleep", "0.5", "0.5"][..],
        &["run", "--source", "faults", "-a", "-o", "/dev/null", "sleep", "1"],
        &["sched", "-a", "--", "/bin/sleep", "1s"],
    ] {
        // What a busy machine loses is beside the point.
        let line = [&line[..1], &["--max-loss", "100"], &line[1..]].concat();
        let begin = Instant::now();
        let output = run_in(directory.path(), &line);
        let took = begin.elapsed();
        let said = text(&output.stderr);
        // The scheduler's events may not be there, and the host may have too few CPUs.
        assert!(matches!(output.status.code(), Some(0 | 3 | 5)), "{line:?}: {said}");
        assert!(output.status.code() == Some(3) || took >= Duration::from_secs(1), "{line:?} took {took:?}: {said}");
    }
}

/// The path of the binary where another user can run it.
fn for_others(directory: &Path) -> std::path::PathBuf {
    let copy = directory.join("scxprof");
    fs::copy(SCXPROF, &copy).unwrap();
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

#[test]
fn a_process_of_another_user_is_said_to_be_one() {
    // SAFETY: the call takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: a process of another user: this takes root");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = for_others(directory.path());
    // A number that no user has, and the process of another such.
    let as_user = |arguments: &[&str]| {
        Command::new(&program).args(arguments).uid(54_321).gid(54_321).current_dir("/").output().unwrap()
    };
    let mut other = Command::new("sleep").arg("60").uid(54_322).spawn().unwrap();
    let pid = other.id().to_string();
    let root = as_user(&["run", "-p", "1", "-t", "0.2"]);
    let stranger = as_user(&["run", "-p", &pid, "-t", "0.2"]);
    let verbose = as_user(&["run", "-v", "-p", "1", "-t", "0.2"]);
    other.kill().unwrap();
    other.wait().unwrap();
    expect(&root, 3, "error: process 1 belongs to root (uid 0): run scxprof as root");
    assert_eq!(text(&root.stderr).lines().count(), 1, "{}", text(&root.stderr));
    expect(&stranger, 3, &format!("error: process {pid} belongs to uid 54322: run scxprof as that user, or as root"));
    assert_eq!(text(&stranger.stderr).lines().count(), 1, "{}", text(&stranger.stderr));
    expect(&verbose, 3, "not permitted");
}

#[test]
fn an_answer_has_no_offer_of_what_was_given() {
    if !is_root("an answer at a terminal") {
        return;
    }
    let _load = Load::new();
    for (option, offers) in [(None, true), (Some("-v"), false), (Some("-vv"), false)] {
        let (ours, its) = terminal(200);
        let mut command = Command::new(SCXPROF);
        command
            .args(["run", "--source", "faults", "-t", "0.5", "--target-cpus", "64", "--max-loss", "100"])
            .args(option);
        let mut child = command.env("TERM", "xterm").stdout(Stdio::from(its)).stderr(Stdio::null()).spawn().unwrap();
        // The command keeps the other end open until it is dropped.
        drop(command);
        let mut shown = Vec::new();
        // The other end is gone when the child has ended: EIO.
        let _ = fs::File::from(ours).read_to_end(&mut shown);
        assert_eq!(child.wait().unwrap().code(), Some(0), "{option:?}: {}", text(&shown));
        let shown = text(&shown);
        assert!(shown.contains("To write the configuration: "), "{option:?}: {shown}");
        assert_eq!(shown.contains("-v shows more"), offers, "{option:?}: {shown}");
    }
}

/// A process that waits for its input and has no page fault any more.
fn calm() -> Child {
    let mut calm = Command::new("sh")
        .args(["-c", "echo ready; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    calm.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let stat = format!("/proc/{}/stat", calm.id());
    while !fs::read_to_string(&stat).unwrap().contains(") S ") {
        thread::sleep(Duration::from_millis(1));
    }
    calm
}

#[test]
fn a_short_capture_says_how_short_it_was() {
    if !is_root("a capture that is too short") {
        return;
    }
    let mut calm = calm();
    let output = Command::new(SCXPROF)
        .args(["run", "--source", "faults", "-t", "0.05", "-p", &calm.id().to_string()])
        .output()
        .unwrap();
    calm.kill().unwrap();
    calm.wait().unwrap();
    expect(&output, 1, "error: no usable samples in ");
    let said = text(&output.stderr);
    let said = said.lines().last().unwrap();
    // On a busy machine it may be a second and more.
    assert!(said.contains("sample ") && said.contains("longer"), "{said}");
    assert!(!said.contains("0.0 s") && !said.contains("above"), "{said}");
}

#[test]
fn a_command_that_reads_takes_the_newest_profile_here() {
    let directory = tempfile::tempdir().unwrap();
    for command in ["report", "extract", "process"] {
        let output = run_in(directory.path(), &[command]);
        expect(&output, 2, "there is no profile here");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{}", text(&output.stderr));
    }
    // Damaged, but it is what is read.
    fs::write(directory.path().join("perf.data"), "PERFILE2").unwrap();
    expect(&run_in(directory.path(), &["report"]), 1, "note: report reads perf.data, the newest profile here");
    // An output that is the input is refused as if it was named.
    expect(&run_in(directory.path(), &["extract", "-o", "perf.data"]), 2, "this is what is read");
    let named = run_in(directory.path(), &["report", "-i", "other"]);
    expect(&named, 2, "other");
    assert!(!text(&named.stderr).contains("newest"), "{}", text(&named.stderr));
}

#[test]
fn profiles_get_the_name_of_the_host_and_the_time() {
    if !is_root("default names") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let record = ["record", "--source", "faults", "sh", "-c", "ls / >/dev/null"];
    for _ in 0..2 {
        expect(&run_in(directory.path(), &record), 0, "wrote scxprof-");
    }
    let names = names_in(directory.path());
    assert_eq!(names.len(), 2, "the second has a name of its own: {names:?}");
    for name in &names {
        let stem = name.strip_suffix(".tar.gz").unwrap();
        let parts: Vec<&str> = stem.split('-').collect();
        let is_number = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
        assert!(parts.iter().any(|part| part.len() == 8 && is_number(part)), "{name} has the date");
        assert!(parts.iter().any(|part| part.len() == 4 && is_number(part)), "{name} has the time");
    }
    let report = run_in(directory.path(), &["report"]);
    expect(&report, 0, "the newest profile here");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert!(names[0].contains(host.trim().split('.').next().unwrap()), "{names:?}");
    // A name that was given is never replaced.
    let again = run_in(directory.path(), &["record", "--source", "faults", "-o", &names[0], "true"]);
    expect(&again, 2, "exists");
}

#[test]
fn a_name_that_ends_in_data_is_a_file_for_perf() {
    if !is_root("record -o FILE.data") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let record = ["record", "--source", "faults", "-g", "-o", "f.data", "sh", "-c", "ls / >/dev/null"];
    expect(&run_in(directory.path(), &record), 0, "wrote f.data");
    assert_eq!(names_in(directory.path()), ["f.data"], "nothing else stays");
    assert!(fs::read(directory.path().join("f.data")).unwrap().starts_with(b"PERFILE2"));
    expect(&run_in(directory.path(), &["extract", "-f", "f.data"]), 0, "");
    expect(&run_in(directory.path(), &["trace", "info", "f.data"]), 0, "");
    expect(&run_in(directory.path(), &record), 2, "exists");
    for option in [&["-f", "a.tar.gz"][..], &["--samples-jsonl"]] {
        let output = run_in(directory.path(), &[&["record", "-o", "g.data"], option, &["true"]].concat());
        expect(&output, 2, "a perf.data alone is written");
    }
    // The source timer keeps its addresses in another file of the profile.
    let _load = Load::new();
    let timer = ["record", "--source", "timer", "-t", "0.5", "--max-loss", "100", "-o", "t.data"];
    let timer = run_in(directory.path(), &timer);
    if timer.status.code() == Some(0) {
        expect(&timer, 0, "a perf.data alone has no addresses of the source timer; -o t.tar.gz keeps them");
        for command in ["report", "extract"] {
            let read = run_in(directory.path(), &[command, "-i", "t.data"]);
            expect(&read, 1, "scxprof wrote this perf.data alone");
            let said = text(&read.stderr);
            assert!(said.contains("`scxprof record -o x.tar.gz`") && !said.contains("perf mem"), "{said}");
        }
        let info = text(&run_in(directory.path(), &["trace", "info", "t.data"]).stdout);
        assert!(info.contains(" scxprof-") && !info.contains("perf scxprof"), "{info}");
    }
}

#[test]
fn call_graphs_are_recorded_by_the_names_of_perf() {
    if !is_root("record -g") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    for (name, options) in
        [("fp", &["-g"][..]), ("dwarf", &["--call-graph", "dwarf"]), ("both", &["-g", "--call-graph", "fp"])]
    {
        let record =
            [&["record", "--source", "faults", "-o", name, "--disable-archive"], options, &["sh", "-c", script]];
        let output = run_in(directory.path(), &record.concat());
        if output.status.code() == Some(3) {
            println!("SKIP: record -g: {}", text(&output.stderr).trim());
            return;
        }
        expect(&output, 0, "wrote ");
        let stacks = run_in(directory.path(), &["stacks", "-f", name]);
        expect(&stacks, 0, "");
        assert!(text(&stacks.stdout).contains("FUNCTION"), "{}", text(&stacks.stdout));
    }
}

#[test]
fn the_short_help_is_short_and_the_long_one_whole() {
    let help = |arguments: &[&str]| {
        let output = Command::new(SCXPROF).args(arguments).env("COLUMNS", "100").output().unwrap();
        expect(&output, 0, "");
        text(&output.stdout)
    };
    let (short, long) = (help(&["run", "-h"]), help(&["run", "--help"]));
    assert!(short.lines().count() < 50 && long.lines().count() > 90, "{short}\n{long}");
    assert!(short.lines().all(|line| line.chars().count() <= 100 || !line.starts_with(' ')), "{short}");
    for part in ["Examples:", "Tuning:", "--mmap-pages"] {
        assert!(long.contains(part) && !short.contains(part), "{part}");
    }
    assert!(short.contains("-t, --time <TIME>") && long.contains("-t, --time <TIME>"));
    assert!(help(&["-h"]).contains("  record  "));
}

#[test]
fn a_query_is_not_offered_but_answered() {
    let output = |arguments: &[&str]| Command::new(SCXPROF).args(arguments).output().unwrap();
    for arguments in [&["trace", "--help"][..], &["trace", "-h"], &["completions", "bash"], &["completions", "zsh"]] {
        let shown = text(&output(arguments).stdout);
        assert!(shown.contains("analyze") && !shown.contains("query"), "{arguments:?}: {shown}");
    }
    let answered = output(&["trace", "query", "trace.pb", "SELECT 1"]);
    assert!(answered.status.success() && text(&answered.stdout).contains("duckdb -cmd"), "{answered:?}");
}

#[test]
fn a_source_that_takes_each_event_is_not_to_sample_more_often() {
    if !is_root("advice of --source wakeups") {
        return;
    }
    let _load = Load::new();
    for source in ["wakeups", "faults"] {
        // What the kernel did not sample of an idle CPU changes no advice.
        let args = ["run", "--source", source, "-t", "1", "--max-loss", "100"];
        let output = Command::new(SCXPROF).args(args).output().unwrap();
        let said = text(&output.stderr);
        if output.status.code() == Some(3) {
            println!("SKIP: advice of --source {source}: {said}");
            continue;
        }
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(!said.contains("--freq"), "{source}: {said}");
    }
}

/// A pseudo-terminal of this number of columns: its end for us, and the one for a program.
fn terminal(columns: u16) -> (OwnedFd, OwnedFd) {
    let (mut ours, mut its) = (-1, -1);
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the pointers are to values that live for the call; no name is asked for.
    let made =
        unsafe { libc::openpty(&raw mut ours, &raw mut its, std::ptr::null_mut(), std::ptr::null(), &raw const size) };
    assert_eq!(made, 0, "openpty");
    // SAFETY: the call has just made both, and nothing else has them.
    unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(its)) }
}

/// The rows of a terminal that wraps what it shows again when it is made narrower, as most do.
struct Screen {
    rows: Vec<String>,
    row: usize,
    column: usize,
}

impl Screen {
    fn new() -> Self {
        Self { rows: vec![String::new()], row: 0, column: 0 }
    }

    fn resize(&mut self, columns: usize) {
        let rows: Vec<String> = self
            .rows
            .iter()
            .flat_map(|row| {
                let cells: Vec<char> = row.chars().collect();
                let parts: Vec<String> = cells.chunks(columns).map(|part| part.iter().collect()).collect();
                if parts.is_empty() {
                    vec![String::new()]
                } else {
                    parts
                }
            })
            .collect();
        // The cursor was behind the last character.
        self.rows = rows;
        self.row = self.rows.len() - 1;
        self.column = self.rows[self.row].chars().count();
    }

    fn take(&mut self, text: &str) {
        let mut left = text;
        while let Some(first) = left.chars().next() {
            let mut used = first.len_utf8();
            match first {
                '\r' => self.column = 0,
                '\n' => {
                    self.row += 1;
                    self.rows.resize(self.rows.len().max(self.row + 1), String::new());
                }
                '\x1b' => {
                    let end = left.find(|c: char| c.is_ascii_alphabetic()).unwrap();
                    match &left[end..=end] {
                        "A" => self.row -= left[2..end].parse::<usize>().unwrap().min(self.row),
                        "J" => {
                            self.rows.truncate(self.row + 1);
                            self.rows[self.row] = self.rows[self.row].chars().take(self.column).collect();
                        }
                        other => panic!("{other}"),
                    }
                    used = end + 1;
                }
                _ => {
                    let mut cells: Vec<char> = self.rows[self.row].chars().collect();
                    cells.resize(cells.len().max(self.column + 1), ' ');
                    cells[self.column] = first;
                    self.rows[self.row] = cells.into_iter().collect();
                    self.column += 1;
                }
            }
            left = &left[used..];
        }
    }
}

#[test]
fn a_terminal_that_was_made_narrower_keeps_no_stale_line() {
    if !is_root("a resized terminal") {
        return;
    }
    let _load = Load::new();
    let (ours, its) = terminal(80);
    let mut child = Command::new(SCXPROF)
        .args(["run", "--source", "faults", "-t", "3", "-o", "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("COLUMNS")
        .stderr(Stdio::from(its))
        .spawn()
        .unwrap();
    let mut reader = fs::File::from(ours.try_clone().unwrap());
    let (mut screen, mut widest, mut begin) = (Screen::new(), 0, None);
    let mut is_narrow = false;
    let mut bytes = [0; 4096];
    // The other end is gone when the child has ended: EIO.
    while let Ok(count @ 1..) = reader.read(&mut bytes) {
        screen.take(std::str::from_utf8(&bytes[..count]).unwrap());
        let line = screen.rows.iter().filter(|row| row.contains(" samples")).map(|row| row.chars().count()).max();
        if let (Some(line), false) = (line, is_narrow) {
            widest = widest.max(line);
        }
        let begin = begin.get_or_insert_with(Instant::now);
        if !is_narrow && widest > 0 && begin.elapsed() > Duration::from_secs(1) {
            let size = libc::winsize { ws_row: 24, ws_col: 20, ws_xpixel: 0, ws_ypixel: 0 };
            // SAFETY: the call reads a winsize.
            assert_eq!(unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }, 0);
            screen.resize(20);
            is_narrow = true;
        }
    }
    // Whatever it found: the host may have too few CPUs for a configuration.
    assert!(child.wait().unwrap().code().is_some());
    assert!(widest > 20 && is_narrow, "a line was seen: {widest}");
    let stale: Vec<&String> = screen.rows.iter().filter(|row| row.contains(" s, ") || row.contains('█')).collect();
    assert!(stale.is_empty(), "{:?}", screen.rows);
}
