//! A workload whose sharing is known: what `make run` profiles, and what tests compare a result with.
//!
//! The default scenario, `demo`; `scenario.rs` has the others:
//!
//! ```text
//! workload.slice/
//!   workload-tw-demo.allotment.slice   one process, "shop"
//!     reader-a writer-a                share buffer A
//!     reader-b writer-b                share buffer B
//!     pool-1 pool-2 pool-3 pool-4      share buffer P
//!     webserver1 webserver2            share buffer W
//!     web, loner                       share with no other thread, each has a private buffer
//!   app.service                        two processes, "left" and "right"
//!     left right                       share one MAP_SHARED buffer
//! ```
//!
//! The supervisor makes the cgroups under the cgroup2 mount and starts itself anew for each process of the picture.
//! If it may not make cgroups, it says so on stderr, and all runs in the cgroup in which it was started, which is also
//! what `--here` asks for. It prints one line on stdout once every thread runs: `ready`, or `ready without cgroups`.
//! `--print-truth` prints the picture as JSON: which thread names share memory, by cell.
//!
//! It ends after `--seconds N` (600), on SIGTERM, SIGINT or SIGHUP, when its parent ends, or when one of its processes
//! does, and takes its cgroups away. Its threads sleep about nine tenths of the time, so that two CPUs carry it, unless
//! they are to be `--busy`. With `--wake` the threads of one process that share a buffer wake each other; otherwise timers wake
//! them all.

mod process;
mod scenario;
mod system;

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use process::{Pace, Role};
use scenario::{Kind, Scenario, SCENARIOS};
use system::{cgroup2_mount, check, end_with, memfd, open_for_writing, parent_id};

/// What the command line says.
struct Args {
    scenario: &'static Scenario,
    seconds: u32,
    pace: Pace,
    here: bool,
    print_truth: bool,
    role: Option<Role>,
}

impl Args {
    fn parse(mut words: impl Iterator<Item = String>) -> Option<Self> {
        let scenario = SCENARIOS.first()?;
        let mut args = Self {
            scenario,
            seconds: 600,
            pace: Pace { busy: false, wake: false },
            here: false,
            print_truth: false,
            role: None,
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--scenario" => args.scenario = Scenario::find(&words.next()?)?,
                "--seconds" => args.seconds = words.next()?.parse().ok()?,
                "--busy" => args.pace.busy = true,
                "--wake" => args.pace.wake = true,
                "--here" => args.here = true,
                "--print-truth" => args.print_truth = true,
                "--role" => args.role = Some(role(&words.next()?)?),
                _ => return None,
            }
        }
        Some(args)
    }
}

/// The number of a process, or with commas those of a process, a group, a thread and a descriptor.
fn role(text: &str) -> Option<Role> {
    let numbers: Vec<u16> = text.split(',').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    match numbers[..] {
        [process] => Some(Role { process: process.into(), mapped: None }),
        [process, group, thread, fd] => {
            Some(Role { process: process.into(), mapped: Some((group.into(), thread.into(), fd.into())) })
        }
        _ => None,
    }
}

fn main() -> ExitCode {
    let Some(args) = Args::parse(std::env::args().skip(1)) else {
        let names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        eprintln!(
            "usage: workload [--scenario {}] [--seconds N] [--busy] [--wake] [--here] [--print-truth]",
            names.join("|")
        );
        return ExitCode::from(2);
    };
    let done = match &args.role {
        Some(role) => process::run(args.scenario, role, args.pace),
        None if args.print_truth => writeln!(io::stdout(), "{}", args.scenario.truth()),
        None => supervise(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("workload: {error}");
            ExitCode::FAILURE
        }
    }
}

// ---- The supervisor ----

fn supervise(args: &Args) -> io::Result<()> {
    end_with(parent_id(), libc::SIGTERM)?;
    let signals = block_signals()?;
    let mut cgroups = if args.here { Err(io::Error::other("--here")) } else { Cgroups::make(&args.scenario.cgroups()) };
    if let (Err(error), false) = (&cgroups, args.here) {
        eprintln!("workload: no cgroups of its own, all runs in the cgroup it was started in: {error}");
    }
    let mut children = Children(Vec::new());
    let mut done = start(args, cgroups.as_ref().ok(), &mut children);
    if let (Ok(_), Err(error)) = (&cgroups, &done) {
        // Cgroups can be made but not entered where the mount is delegated to someone else.
        eprintln!("workload: cannot start in cgroups of its own, all runs in the cgroup it was started in: {error}");
        children.end();
        cgroups = Err(io::Error::other("not entered"));
        done = start(args, None, &mut children);
    }
    done?;
    writeln!(io::stdout(), "{}", if cgroups.is_ok() { "ready" } else { "ready without cgroups" })?;
    if wait(&signals, Duration::from_secs(args.seconds.into()), &mut children)? == Some(libc::SIGCHLD) {
        return Err(io::Error::other("a process of the workload ended early"));
    }
    Ok(())
}

/// Starts the processes, each in its cgroup, and waits until all their threads run.
fn start(args: &Args, cgroups: Option<&Cgroups>, children: &mut Children) -> io::Result<()> {
    let mut memory: Vec<OwnedFd> = Vec::new();
    for (number, process) in args.scenario.processes.iter().enumerate() {
        let mut spawn = |role: &str| {
            let mut words = vec!["--scenario", args.scenario.name, "--role", role];
            words.extend(args.pace.busy.then_some("--busy"));
            words.extend(args.pace.wake.then_some("--wake"));
            children.spawn(&words, cgroups.map(|cgroups| cgroups.path(process.cgroup)))
        };
        if process.kind != Kind::Mapped {
            spawn(&number.to_string())?;
            continue;
        }
        for (index, group) in process.groups.iter().enumerate() {
            let shared = memfd(group.size)?;
            for thread in 0..group.threads.len() {
                spawn(&format!("{number},{index},{thread},{}", shared.as_raw_fd()))?;
            }
            memory.push(shared);
        }
    }
    children.wait_ready()
}

/// The processes of the workload; they end with it.
struct Children(Vec<Child>);

impl Children {
    fn spawn(&mut self, args: &[&str], cgroup: Option<PathBuf>) -> io::Result<()> {
        let procs = match cgroup {
            Some(path) => Some(open_for_writing(&path.join("cgroup.procs"))?),
            None => None,
        };
        let parent = std::process::id().cast_signed();
        let mut command = Command::new("/proc/self/exe");
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
        let enter = move || {
            if let Some(procs) = &procs {
                // 0 is the process that writes: it is in its cgroup before its first own instruction.
                (&mut &*procs).write_all(b"0")?;
            }
            // SAFETY: system calls on numbers and on a mask that lives on this stack; all are async-signal-safe.
            unsafe {
                let mut none: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&raw mut none);
                check(libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()))?;
            }
            end_with(parent, libc::SIGKILL)
        };
        // SAFETY: between fork and exec, `enter` makes system calls only: it allocates nothing and takes no lock.
        unsafe { command.pre_exec(enter) };
        self.0.push(command.spawn()?);
        Ok(())
    }

    fn wait_ready(&mut self) -> io::Result<()> {
        for child in &mut self.0 {
            let mut line = String::new();
            if let Some(stdout) = child.stdout.take() {
                BufReader::new(stdout).read_line(&mut line)?;
            }
            if line != "ready\n" {
                return Err(io::Error::other("a process of the workload did not get ready"));
            }
        }
        Ok(())
    }

    fn any_ended(&mut self) -> bool {
        self.0.iter_mut().any(|child| !matches!(child.try_wait(), Ok(None)))
    }

    fn end(&mut self) {
        for mut child in self.0.drain(..) {
            // Errors mean that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.end();
    }
}

/// Blocks the signals that end the workload, so that they wait for [`wait`].
fn block_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: sigset_t is plain data, filled by sigemptyset and sigaddset; sigprocmask only reads it.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGCHLD] {
            libc::sigaddset(&raw mut signals, signal);
        }
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut()))?;
        Ok(signals)
    }
}

/// Waits for one of the signals, `None` when the time is over. SIGCHLD counts only for a child that is still ours.
fn wait(signals: &libc::sigset_t, time: Duration, children: &mut Children) -> io::Result<Option<i32>> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = libc::timespec { tv_sec: left.as_secs() as libc::time_t, tv_nsec: left.subsec_nanos().into() };
        // SAFETY: both pointers are to live values, and no siginfo is asked for.
        match check(unsafe { libc::sigtimedwait(signals, std::ptr::null_mut(), &raw const timeout) }) {
            Ok(libc::SIGCHLD) if !children.any_ended() => {}
            Ok(signal) => return Ok(Some(signal)),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The cgroups that the workload made, taken away when dropped.
struct Cgroups {
    mount: PathBuf,
    /// Paths from the mount on, parents first.
    made: Vec<&'static str>,
}

impl Cgroups {
    fn make(wanted: &[&'static str]) -> io::Result<Self> {
        let mount = cgroup2_mount()?;
        // What an earlier run left behind when it was killed is taken over, so that this run removes it. Only we
        // use the cgroups below the first, which is locked.
        let leftover = wanted.iter().skip(1).any(|cgroup| mount.join(cgroup).is_dir());
        let mut cgroups = Self { mount, made: Vec::new() };
        for &cgroup in wanted {
            let path = cgroups.path(cgroup);
            match fs::create_dir(&path) {
                Ok(()) => cgroups.made.push(cgroup),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if leftover {
                        cgroups.made.push(cgroup);
                    }
                }
                Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
            }
        }
        Ok(cgroups)
    }

    fn path(&self, cgroup: &str) -> PathBuf {
        self.mount.join(cgroup)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for cgroup in self.made.iter().rev() {
            // The last task may still be on its way out (EBUSY); a cgroup that others use stays.
            for _ in 0..50 {
                match fs::remove_dir(self.path(cgroup)) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => thread::sleep(Duration::from_millis(10)),
                    _ => break,
                }
            }
        }
    }
}
