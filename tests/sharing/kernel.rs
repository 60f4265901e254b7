//! Processes that share only through the kernel, which `--kernel` finds: some programs at once, each in its own cell with
//! strangers beside it.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

use super::cgroup::Cgroup;
use super::family::{find, run_until};
use super::programs::{Program, Running};
use super::score::{score, Thread};
use crate::support::alone;

/// The number of samples of a thread that suffices: with half as many, pairs are missed.
const ENOUGH: f64 = 400.0;
/// Seconds after which the programs end, in case this test is killed.
const LIFE: u32 = 120;
/// The time after which threads are on another CPU.
const TURN: Duration = Duration::from_millis(200);
/// The prefix of the strangers' thread names.
const TAG: &str = "x";

/// Work in a program's cgroup that runs the same kernel code, but on other objects.
#[derive(Clone, Copy)]
enum Strangers {
    Nobody,
    /// A second program, whose processes share nothing.
    Of(&'static str),
    /// An archiver, which reads many files.
    Archiver,
}

/// A shell and what it has started; all of it is killed when this is dropped.
struct Shell(Child);

impl Shell {
    fn start(script: &str, cgroup: &Cgroup) -> Result<Self, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // A process group, so that all of it can be ended. Not a session: with autogroups, it would have a share of the CPUs
        // as large as that of scxprof, whatever its priority.
        command.process_group(0);
        cgroup.prepare(&mut command);
        command.spawn().map(Self).map_err(|error| format!("cannot start a shell in a cgroup: {error}"))
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // SAFETY: the call takes numbers; the group is that of our child, which has not been waited for.
        unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

/// A program and strangers in one cgroup, which is a cell.
struct Scene {
    name: &'static str,
    /// The program's own.
    threads: Vec<Thread>,
    strangers: Vec<Thread>,
    _movers: Vec<Mover>,
    _programs: Vec<Running>,
    _shell: Option<Shell>,
    // Dropped last.
    cgroup: Cgroup,
}

impl Scene {
    /// Starts them and waits until the program runs; `program` and `second` are those of the names.
    fn start(name: &'static str, program: &Program, second: Option<&Program>, archiver: bool) -> Result<Self, String> {
        let cgroup = Cgroup::new()?;
        let (mut programs, mut shell, mut strangers) = (Vec::new(), None, Vec::new());
        for (program, tag) in [(Some(program), ""), (second, TAG)] {
            let Some(program) = program else { continue };
            let running = Running::start(program, LIFE, tag, |command| cgroup.prepare(command));
            programs.push(running.map_err(|error| format!("{error:#}"))?);
        }
        let threads = programs[0].threads.clone();
        let movers = programs.iter().map(|running| Mover::start(&running.threads)).collect::<Result<_, _>>()?;
        for second in &programs[1..] {
            // Were one of them not alone, its set would be another than the program's of that number.
            let tagged = |thread: &Thread| {
                let group = thread.group.as_ref().map(|group| format!("{TAG}{group}"));
                Thread { group, ..thread.clone() }
            };
            strangers.extend(second.threads.iter().map(tagged));
        }
        if archiver {
            shell = Some(Shell::start("while tar cf - /usr | cat; do sleep 0.1; done", &cgroup)?);
            // It shares a pipe with cat, but nothing with the program.
            strangers.push(Thread { group: None, name: "tar".into(), pid: 0, tid: 0 });
        }
        Ok(Self { name, threads, strangers, _movers: movers, _programs: programs, _shell: shell, cgroup })
    }

    /// The program's threads and the strangers.
    fn all(&self) -> Vec<Thread> {
        [self.threads.as_slice(), self.strangers.as_slice()].concat()
    }
}

/// Moves the threads of a program from CPU to CPU until it is dropped, those of a group together. The kernel may leave both ends of a
/// connection on one CPU for as long as a test samples; scxprof does not count an object that only one CPU uses.
struct Mover {
    ended: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Mover {
    fn start(threads: &[Thread]) -> Result<Self, String> {
        let allowed =
            sched_getaffinity(None).map_err(|error| format!("cannot get the CPUs of this process: {error}"))?;
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
        if cpus.len() < 2 {
            return Err("there is only one CPU".into());
        }
        // A thread alone is a group of its own.
        let mut groups: BTreeMap<String, Vec<Pid>> = BTreeMap::new();
        for thread in threads {
            let group = thread.group.as_ref().unwrap_or(&thread.name);
            groups.entry(group.clone()).or_default().extend(Pid::from_raw(thread.tid as i32));
        }
        let (ended, end) = channel();
        let move_all = move || {
            for turn in 0.. {
                for (number, tids) in groups.values_mut().enumerate() {
                    let mut one = CpuSet::new();
                    one.set(cpus[(number + turn) % cpus.len()]);
                    tids.retain(|&tid| match sched_setaffinity(Some(tid), &one) {
                        Ok(()) => true,
                        Err(Errno::SRCH) => false,
                        Err(error) => panic!("cannot move thread {tid:?}: {error}"),
                    });
                }
                if end.recv_timeout(TURN) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        };
        Ok(Self { ended, thread: Some(std::thread::spawn(move_all)) })
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        let _ = self.ended.send(());
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the threads were not moved");
    }
}

/// Runs the programs at once and compares the configuration of each with its truth; prints the reason if that is not
/// possible here.
fn check(test: &str, cases: &[(&'static str, Strangers)]) {
    let _alone = alone();
    let second = |strangers: Strangers| match strangers {
        Strangers::Of(name) => Some(name),
        Strangers::Nobody | Strangers::Archiver => None,
    };
    let names: Vec<&str> = cases.iter().flat_map(|&(name, beside)| [Some(name), second(beside)]).flatten().collect();
    let Some((_built, programs)) = find(test, &names) else { return };
    let program = |name: &str| &programs[names.iter().position(|it| *it == name).unwrap()];
    let start = |&(name, beside): &(&'static str, Strangers)| {
        let archiver = matches!(beside, Strangers::Archiver);
        Scene::start(name, program(name), second(beside).map(program), archiver)
    };
    let scenes: Result<Vec<Scene>, String> = cases.iter().map(start).collect();
    let scenes = match scenes {
        Ok(scenes) => scenes,
        Err(why) => return println!("SKIP: {test}: {why}"),
    };
    let cells: Vec<String> = scenes.iter().map(|scene| scene.cgroup.cell(scene.name)).collect();
    let options: Vec<&str> = std::iter::once("--kernel").chain(cells.iter().map(String::as_str)).collect();
    let threads: Vec<&[Thread]> = scenes.iter().map(|scene| scene.threads.as_slice()).collect();
    let mut failed = None;
    // On a busy machine, fewer samples of the kernel give an address: then once more, with twice as many.
    for enough in [ENOUGH, 2.0 * ENOUGH] {
        let decision = match run_until(enough, &threads, &options) {
            Ok(decision) => decision,
            Err(why) if failed.is_none() => return println!("SKIP: {test}: {why}"),
            Err(_) => break,
        };
        let mut wrong = Vec::new();
        for scene in &scenes {
            let score = score(&scene.all(), &scene.cgroup.path(), &decision.json).unwrap();
            let line = format!("{}: {score:?} from {:.0} samples", scene.name, decision.samples(&scene.threads));
            println!("{line}");
            if !score.is_right() {
                wrong.push(line);
            }
        }
        if wrong.is_empty() {
            return;
        }
        failed = Some(format!("{}\n{}\n{}", wrong.join("\n"), decision.said, decision.json));
    }
    panic!("{}", failed.unwrap_or_default());
}

#[test]
fn processes_that_share_only_through_the_kernel_are_together() {
    let mut cases = vec![("readers", Strangers::Of("ownpipes")), ("written", Strangers::Nobody)];
    // Not found there, probably as ticks seldom see copies of a page that are one instruction (fast short rep movsb): docs/verified.md.
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if cpuinfo.lines().any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "fsrm")) {
        println!("SKIP: sharing through files: written: this processor copies pages with one instruction");
        cases.pop();
    }
    check("sharing through files", &cases);
}

#[test]
fn connections_and_events_are_apart_though_the_kernel_reuses_the_memory_of_messages() {
    let alone = |name| (name, Strangers::Nobody);
    check("sharing through connections", &[alone("loopback"), alone("unixes"), alone("events")]);
}

#[test]
fn processes_with_kernel_objects_of_their_own_are_apart() {
    check("kernel objects of their own", &[("ownpipes", Strangers::Archiver), ("strangers", Strangers::Nobody)]);
}
