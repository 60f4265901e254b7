//! The real binary: `top`, on a terminal of tmux and printed once.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::output::output_of;
use super::watches::Workload;
use super::SCXPROF;
use crate::support::alone;

/// A terminal with an interactive shell in it, until it is dropped.
struct Terminal {
    socket: String,
    directory: tempfile::TempDir,
}

impl Terminal {
    /// `None` without tmux, which is said.
    fn start(test: &str) -> Option<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            println!("SKIP: {test}: no tmux");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let terminal = Self { socket: directory.path().join("tmux").display().to_string(), directory };
        // A shell with job control and a prompt that is known.
        let shell = "exec env -u COLUMNS PS1='READY$ ' bash --norc --noprofile -i";
        let cwd = terminal.directory.path().to_str().unwrap().to_owned();
        let started =
            terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "-c", &cwd, shell]);
        if !started.status.success() {
            println!("SKIP: {test}: tmux does not start: {}", String::from_utf8_lossy(&started.stderr));
            return None;
        }
        terminal.wait_for("the shell", |screen| screen.contains("READY$"));
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        Command::new("tmux").arg("-S").arg(&self.socket).args(arguments).output().unwrap()
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p"]).stdout).into_owned()
    }

    /// Waits for something to be shown; minutes are for busy machines.
    fn wait_for(&self, what: &str, is_shown: impl Fn(&str) -> bool) -> String {
        let begin = Instant::now();
        loop {
            let screen = self.screen();
            if is_shown(&screen) {
                return screen;
            }
            assert!(begin.elapsed() < Duration::from_secs(180), "{what} is not shown:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn press(&self, keys: &[&str]) {
        assert!(self.tmux(&[&["send-keys"][..], keys].concat()).status.success());
    }

    /// Types a line in the shell.
    fn shell(&self, line: &str) {
        self.press(&["-l", line]);
        self.press(&["Enter"]);
    }

    /// Starts scxprof with these arguments; false if this host does not let it sample, which is said.
    fn top(&self, test: &str, arguments: &str) -> bool {
        self.shell(&format!("{SCXPROF} top {arguments}; echo EN''DED:$?"));
        let screen =
            self.wait_for("the first frame", |screen| screen.contains("1 groups") || screen.contains("ENDED:"));
        if screen.contains("1 groups") {
            return true;
        }
        assert!(screen.contains("ENDED:3"), "{screen}");
        println!("SKIP: {test}: it cannot sample here: {}", screen.lines().nth(1).unwrap_or_default());
        false
    }

    /// The process that runs in it.
    fn pid(&self) -> u32 {
        let shell =
            String::from_utf8_lossy(&self.tmux(&["display-message", "-p", "#{pane_pid}"]).stdout).trim().to_owned();
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
        children.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// The shell is there again, with a terminal that echoes what is typed and has its cursor, and ended with this status.
    fn is_as_before(&self, status: &str) {
        self.wait_for("the end", |screen| screen.contains(&format!("ENDED:{status}")) && !screen.contains("1 groups"));
        let flags = self.tmux(&["display-message", "-p", "#{cursor_flag} #{alternate_on}"]);
        assert_eq!(String::from_utf8_lossy(&flags.stdout).trim(), "1 0");
        self.shell("stty -a | tr ' ;' '\\n\\n' | grep -xE '(icanon|echo|isig|opost|icrnl)' | sort | xargs echo MODES");
        self.wait_for("its modes", |screen| screen.contains("MODES echo icanon icrnl isig opost"));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: a signal to a process that the terminal has started, and that runs.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

#[test]
fn views_keys_and_sizes_on_a_terminal() {
    let _alone = alone();
    let test = "views_keys_and_sizes_on_a_terminal";
    let Some(terminal) = Terminal::start(test) else { return };
    if !terminal.top(test, "--interval 0.2 -- sleep 1000") {
        return;
    }
    for (key, text) in [
        ("2", "by thread"),
        ("3", "by process"),
        ("c", "by cgroup"),
        ("4", "4 lines"),
        ("6", "SAMPLES/s"),
        ("c", "MEMORY-MB/s"),
        ("7", "memory of scxprof"),
        ("?", "1-7 Tab"),
    ] {
        terminal.press(&[key]);
        terminal.wait_for(text, |screen| screen.contains(text));
    }
    terminal.press(&["Escape"]);
    terminal.wait_for("the view below the help", |screen| screen.contains("memory of scxprof"));
    terminal.press(&["/"]);
    terminal.press(&["-l", "tables"]);
    terminal.wait_for("the filter", |screen| screen.contains("rows with: tables") && !screen.contains("late windows"));
    terminal.press(&["Enter"]);
    terminal.wait_for("its rows", |screen| screen.contains("with \"tables\"") && screen.contains("q quit"));
    terminal.press(&["Escape"]);
    terminal.wait_for("all rows", |screen| screen.contains("late windows"));
    terminal.press(&["Space"]);
    terminal.wait_for("a frozen page", |screen| screen.contains("FROZEN"));
    terminal.press(&["Space"]);
    terminal.wait_for("a page that goes on", |screen| !screen.contains("FROZEN"));
    // The configuration cannot be written yet, and a file that is none cannot be loaded.
    terminal.press(&["s"]);
    terminal.press(&["-l", "nothing.json"]);
    terminal.press(&["Enter"]);
    terminal.wait_for("an error", |screen| screen.contains("nothing.json: No such file"));
    for (width, height, text) in [("40", "10", "7 losses"), ("120", "40", "5 scheduling"), ("20", "3", "scxprof top")] {
        terminal.tmux(&["resize-window", "-x", width, "-y", height]);
        terminal.wait_for("another size", |screen| {
            screen.contains(text) && screen.lines().count() <= height.parse().unwrap()
        });
    }
    terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]);
    terminal.wait_for("the first size", |screen| screen.contains("5 scheduling"));
    terminal.press(&["q"]);
    // The command was asked to end.
    terminal.is_as_before("0");
}

#[test]
fn the_terminal_is_as_it_was_after_any_end() {
    let _alone = alone();
    let test = "the_terminal_is_as_it_was_after_any_end";
    let Some(terminal) = Terminal::start(test) else { return };
    for end in ["C-c", "INT", "TERM", "HUP", "q"] {
        terminal.shell("clear");
        if !terminal.top(test, "-- sleep 1000") {
            return;
        }
        match end {
            "INT" => signal(terminal.pid(), libc::SIGINT),
            "TERM" => signal(terminal.pid(), libc::SIGTERM),
            "HUP" => signal(terminal.pid(), libc::SIGHUP),
            key => terminal.press(&[key]),
        }
        terminal.is_as_before("0");
    }
}

#[test]
fn it_ends_with_its_terminal() {
    let _alone = alone();
    let test = "it_ends_with_its_terminal";
    let Some(terminal) = Terminal::start(test) else { return };
    if !terminal.top(test, "-- sleep 1000") {
        return;
    }
    let pid = terminal.pid();
    drop(terminal);
    let begin = Instant::now();
    while fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|it| it.contains("top")) {
        assert!(begin.elapsed() < Duration::from_secs(180), "it goes on without a terminal");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn it_is_suspended_and_goes_on() {
    let _alone = alone();
    let test = "it_is_suspended_and_goes_on";
    let Some(terminal) = Terminal::start(test) else { return };
    if !terminal.top(test, "-- sleep 1000") {
        return;
    }
    for by_key in [true, false] {
        if by_key {
            terminal.press(&["C-z"]);
        } else {
            signal(terminal.pid(), libc::SIGTSTP);
        }
        let screen =
            terminal.wait_for("the shell", |screen| screen.contains("Stopped") && !screen.contains("1 groups"));
        assert!(screen.contains("READY$"), "{screen}");
        terminal.shell("clear; echo GOES ON");
        terminal.wait_for("the shell", |screen| screen.lines().any(|line| line == "GOES ON"));
        // What the shell had to do after it, it has done when it was stopped.
        terminal.shell("clear; fg; echo EN''DED:$?");
        terminal.wait_for("the page", |screen| screen.contains("1 groups"));
        terminal.press(&["2"]);
        terminal.wait_for("another view", |screen| screen.contains("by thread"));
        terminal.press(&["1"]);
    }
    terminal.press(&["q"]);
    terminal.is_as_before("0");
}

#[test]
fn a_configuration_is_written_and_its_file_not_replaced_unasked() {
    let _alone = alone();
    let test = "a_configuration_is_written_and_its_file_not_replaced_unasked";
    let Some(terminal) = Terminal::start(test) else { return };
    let Some(_workload) = Workload::start(test) else { return };
    if !terminal.top(test, "--target-cpus 64 --sharing-window 4") {
        return;
    }
    let path = terminal.directory.path().join("mine.json");
    // A capture of a busy host may need several windows.
    let begin = Instant::now();
    loop {
        terminal.press(&["w", "C-u"]);
        terminal.press(&["-l", "mine.json"]);
        terminal.press(&["Enter"]);
        let said = |screen: &str| {
            screen.lines().last().is_some_and(|foot| !foot.starts_with("writ") && !foot.starts_with("q quit"))
        };
        let screen = terminal.wait_for("an answer", |screen| said(screen.trim_end()));
        if screen.contains("wrote mine.json") {
            break;
        }
        // A screen that was looked at while it was drawn does not tell.
        if path.exists() {
            terminal.press(&["Escape"]);
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(180), "{screen}");
    }
    let cells: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert!(!cells.as_array().unwrap().is_empty(), "{cells}");
    fs::write(&path, "[]").unwrap();
    terminal.press(&["w", "C-u"]);
    terminal.press(&["-l", "mine.json"]);
    terminal.press(&["Enter"]);
    terminal.wait_for("the question", |screen| screen.contains("it exists, Enter replaces it"));
    assert_eq!(fs::read(&path).unwrap(), b"[]");
    terminal.press(&["Enter"]);
    terminal.wait_for("the answer", |screen| screen.contains("wrote mine.json"));
    assert_ne!(fs::read(&path).unwrap(), b"[]");
    // Loaded, it says what it keeps.
    terminal.press(&["s"]);
    terminal.press(&["-l", "mine.json"]);
    terminal.press(&["Enter"]);
    terminal.wait_for("what it keeps", |screen| screen.contains("mine.json") && screen.contains("KEPT%"));
    // The code of a group, and help that comes back to it.
    terminal.tmux(&["resize-window", "-x", "80", "-y", "200"]);
    terminal.press(&["Enter"]);
    terminal.wait_for("details", |screen| screen.contains("p code that runs"));
    terminal.press(&["p"]);
    let is_code = |screen: &str| screen.contains("CODE THAT RUNS, since p ") && screen.contains("SELF%");
    let screen = terminal.wait_for("code", |screen| is_code(screen) || screen.contains("call stacks: "));
    terminal.press(&["?"]);
    terminal.wait_for("help", |screen| screen.contains("1-7 Tab") && !screen.contains("CODE THAT RUNS"));
    terminal.press(&["?"]);
    terminal.wait_for("the code again", |screen| screen.contains("CODE THAT RUNS"));
    if !is_code(&screen) {
        println!("SKIP: {test}: no call stacks here: {screen}");
    }
    terminal.press(&["Escape"]);
    // Escape and q that come together are one key, Alt-q.
    terminal.wait_for("the groups", |screen| !screen.contains("CODE THAT RUNS"));
    terminal.press(&["q"]);
    terminal.is_as_before("0");
}

#[test]
fn a_page_is_printed_once() {
    let _alone = alone();
    let test = "a_page_is_printed_once";
    let Some(_workload) = Workload::start(test) else { return };
    let once = |arguments: &[&str]| {
        output_of(Command::new(SCXPROF).args(["top", "--once"]).args(arguments).stdout(Stdio::piped()))
    };
    // On a busy host a short capture has too few samples for all groups.
    let mut seconds = 8;
    loop {
        let output = once(&["-t", &seconds.to_string(), "--target-cpus", "64", "--max-loss", "100"]);
        let text = String::from_utf8(output.stdout).unwrap();
        if output.status.code() == Some(3) {
            let why = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
            return println!("SKIP: {test}: {why}");
        }
        assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
        // The page is no screen.
        assert!(
            text.starts_with("scxprof top  source ") && !text.contains('\x1b') && !text.contains("q quit"),
            "{text}"
        );
        let has = |names: &str| text.lines().skip(4).any(|line| line.starts_with("allotment/") && line.contains(names));
        if ["reader-a", "reader-b", "pool-"].into_iter().all(has) {
            break;
        }
        assert!(seconds < 60, "{text}");
        seconds *= 2;
    }
    // Every kind of rows can be printed.
    let kinds = [
        (vec!["--view", "scheduling", "--sort", "wait%", "--filter", "pool-"], "by thread", "sorted by WAIT%", "pool-"),
        (vec!["--view", "processes", "--by", "cgroup"], "by cgroup", "CGROUP", "/"),
        (vec!["--view", "cpus", "--by", "last-level-cache"], "by last-level cache", "MEMORY-MB/s", ""),
    ];
    for (arguments, by, head, begins) in kinds {
        let mut seconds = 3;
        loop {
            let output = once(&[&["-t", &seconds.to_string(), "--max-loss", "100"][..], &arguments].concat());
            let text = String::from_utf8(output.stdout).unwrap();
            // The scheduling events need more rights than accesses do.
            if output.status.code() == Some(3) {
                let why = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
                println!("SKIP: {test}: {arguments:?}: {why}");
                break;
            }
            assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
            assert!(text.contains(by), "{text}");
            if text.contains(head) && text.lines().skip(5).any(|line| line.starts_with(begins)) {
                break;
            }
            assert!(seconds < 60, "{text}");
            seconds *= 2;
        }
    }
}

#[test]
fn what_cannot_be_shown_is_refused() {
    let refusal = |arguments: &[&str]| {
        let output = output_of(Command::new(SCXPROF).arg("top").args(arguments).stdout(Stdio::piped()));
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refusal(&[]).contains("stdout is no terminal; --once prints one page"), "{}", refusal(&[]));
    assert!(refusal(&["--interval", "0.01"]).contains("--interval: it is from 0.1 to"));
    assert!(refusal(&["--once", "--config", "/nonexistent"]).contains("--config /nonexistent"));
    let by = refusal(&["--once", "--view", "cpus", "--by", "queue"]);
    assert!(
        by.contains("--by queue: the view cpus has rows by: CPU, last-level cache, figures of the scheduler"),
        "{by}"
    );
    let sort = refusal(&["--once", "--view", "cpus", "--by", "cpu", "--sort", "RUN%"]);
    assert!(sort.contains("--sort RUN%: the columns of this table are: CPU, LLC, NODE, BUSY%, SAMPLES/s"), "{sort}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cells.json");
    fs::write(&path, "[{").unwrap();
    assert!(refusal(&["--once", "--config", path.to_str().unwrap()]).contains("cells.json"));
}
