//! The real binary: its threads go before those that it watches, and what it runs does not.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SCXPROF: &str = env!("CARGO_BIN_EXE_scxprof");
/// Long enough for a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A thread as procfs shows it: its name, nice value, real-time priority and policy (proc_pid_stat(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    comm: String,
    nice: i32,
    realtime: u32,
    policy: i32,
}

fn seen(stat: &str) -> Option<Seen> {
    let (before, after) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = after.split_whitespace().collect();
    // The first field after the name is the third of all.
    let field = |number: usize| fields.get(number - 3);
    Some(Seen {
        comm: before.split_once('(')?.1.to_owned(),
        nice: field(19)?.parse().ok()?,
        realtime: field(40)?.parse().ok()?,
        policy: field(41)?.parse().ok()?,
    })
}

/// The threads of a process.
fn threads(pid: u32) -> Vec<Seen> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| seen(&fs::read_to_string(task.path().join("stat")).ok()?)).collect()
}

/// The command that `pid` runs, a `cat`.
fn command_of(pid: u32) -> Option<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|child| {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        parent == Some(pid) && stat.contains("(cat)")
    })
}

/// `scxprof run` of a command that waits for its stdin to end, once its command runs and its thread `ring-0` is what `wanted` says.
fn running(arguments: &[&str], wanted: impl Fn(&Seen) -> bool) -> (Child, Option<Vec<Seen>>) {
    let mut child = Command::new(SCXPROF)
        .args(["run", "--source", "faults", "-vv", "-o", "/dev/null"])
        .args(arguments)
        .args(["--", "cat"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while begin.elapsed() < LONG && child.try_wait().unwrap().is_none() {
        let threads = threads(child.id());
        if command_of(child.id()).is_some() && threads.iter().any(|thread| thread.comm == "ring-0" && wanted(thread)) {
            return (child, Some(threads));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    (child, None)
}

fn ended(mut child: Child) -> String {
    drop(child.stdin.take());
    String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr).into_owned()
}

#[test]
fn the_readers_are_real_time_and_the_command_is_not() {
    let test = "the_readers_are_real_time_and_the_command_is_not";
    // SAFETY: the call takes numbers.
    let may = unsafe { libc::geteuid() } == 0;
    if !may {
        println!("SKIP: {test}: not root");
        return;
    }
    let own = seen(&fs::read_to_string("/proc/thread-self/stat").unwrap()).unwrap();
    for (arguments, priority) in [(&[][..], 1), (&["-r", "7"], 7)] {
        let (child, threads) = running(arguments, |reader| reader.realtime > 0);
        let Some(threads) = threads else {
            let said = ended(child);
            assert!(said.contains("have no real-time priority (sched_setattr:"), "{said}");
            println!("SKIP: {test}: {said}");
            return;
        };
        let command = command_of(child.id()).unwrap();
        let of_command = self::threads(command);
        // The thread that samples, which is the first, is raised when its events are open.
        let begin = Instant::now();
        while begin.elapsed() < LONG
            && !self::threads(child.id()).iter().any(|it| it.comm == "scxprof" && it.nice == -20)
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        let main = self::threads(child.id()).into_iter().find(|thread| thread.comm == "scxprof").unwrap();
        let said = ended(child);
        let reader = threads.iter().find(|thread| thread.comm == "ring-0").unwrap();
        assert_eq!((reader.policy, reader.realtime), (libc::SCHED_FIFO, priority), "{said}");
        assert_eq!((main.policy, main.nice), (own.policy, -20), "{said}");
        assert!(threads.iter().all(|thread| thread.comm == "ring-0" || thread.realtime == 0), "{threads:?}");
        assert_eq!((of_command[0].policy, of_command[0].nice), (own.policy, own.nice), "the command inherits nothing");
        assert!(said.contains(&format!("SCHED_FIFO, priority {priority}")), "{said}");
    }
}

#[test]
fn priorities_are_left_alone_where_that_is_asked_for() {
    let own = seen(&fs::read_to_string("/proc/thread-self/stat").unwrap()).unwrap();
    let (child, threads) = running(&["-r", "0"], |_| true);
    let said = ended(child);
    let Some(threads) = threads else {
        println!("SKIP: priorities_are_left_alone_where_that_is_asked_for: {said}");
        return;
    };
    assert!(threads.iter().all(|thread| (thread.policy, thread.nice) == (own.policy, own.nice)), "{threads:?}");
    assert!(!said.contains("SCHED_FIFO") && !said.contains("real-time"), "{said}");
}
