//! Runs a command and measures it by wait4(2): CPU seconds, wall time, peak memory.
//!
//! The kernel counts the memory of the process that called fork towards the peak of the new program. So a small process of
//! this program runs the command and measures it; the peak is at least that of this process, some 5 MiB.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{kill_process, pidfd_open, Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

/// The hidden subcommand of the small process.
pub const SUBCOMMAND: &str = "measure";

/// A command to measure.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Task {
    pub argv: Vec<String>,
    /// Where its stdout goes; away without.
    pub stdout: Option<PathBuf>,
    pub stderr: PathBuf,
    /// A file that appears when the last sample is taken.
    pub stamp: Option<PathBuf>,
    /// The number of CPUs that it may use; all without.
    pub cpus: Option<u32>,
    /// It is killed after this number of seconds.
    pub limit: f64,
}

/// What a command took.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Usage {
    pub wall_s: f64,
    pub user_s: f64,
    pub system_s: f64,
    pub peak_kib: u64,
    /// Wall time from the stamp to the end, and its CPU time in that.
    pub after: Option<(f64, f64)>,
    /// Its exit code, or 128 + the signal that killed it.
    pub status: i32,
    pub timed_out: bool,
}

impl Usage {
    pub fn cpu_s(&self) -> f64 {
        self.user_s + self.system_s
    }
}

/// Runs the task in the small process.
///
/// # Errors
/// The command cannot be run.
pub fn run(task: &Task) -> Result<Usage> {
    if cfg!(test) {
        // The test's own binary has no subcommand.
        return run_here(task);
    }
    let own = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new(own);
    command.arg(SUBCOMMAND).stdin(Stdio::piped()).stdout(Stdio::piped());
    end_with_parent(&mut command);
    let mut child = command.spawn().context("cannot start the process that measures")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(serde_json::to_string(task)?.as_bytes()).context("the process that measures")?;
    }
    let answer = child.wait_with_output().context("the process that measures")?;
    let answer: Result<Usage, String> =
        serde_json::from_slice(&answer.stdout).context("the process that measures gave no answer")?;
    answer.map_err(anyhow::Error::msg)
}

/// The small process: reads a task from stdin, writes the usage to stdout.
pub fn serve() -> ExitCode {
    let mut text = String::new();
    let done = std::io::stdin()
        .read_to_string(&mut text)
        .map_err(anyhow::Error::from)
        .and_then(|_| Ok(serde_json::from_str(&text)?))
        .and_then(|task: Task| run_here(&task));
    let answer = done.map_err(|error| format!("{error:#}"));
    match serde_json::to_string(&answer) {
        Ok(answer) if writeln!(std::io::stdout(), "{answer}").is_ok() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Makes the child end with the thread that started it.
pub fn end_with_parent(command: &mut Command) {
    // SAFETY: the closure makes one system call and no allocation, as between fork and exec it must.
    unsafe {
        command.pre_exec(|| Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?));
    }
}

fn run_here(task: &Task) -> Result<Usage> {
    let (program, arguments) = task.argv.split_first().context("no command")?;
    let create = |path: &Path| File::create(path).with_context(|| path.display().to_string());
    let stdout = task.stdout.as_deref().map(create).transpose()?.map_or_else(Stdio::null, Stdio::from);
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(stdout).stderr(create(&task.stderr)?);
    end_with_parent(&mut command);
    if let Some(count) = task.cpus {
        let set = first_cpus(count)?;
        // SAFETY: as in end_with_parent; the set was made before.
        unsafe {
            command.pre_exec(move || Ok(rustix::thread::sched_setaffinity(None, &set)?));
        }
    }
    let begin = Instant::now();
    let child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    let pid = Pid::from_child(&child);
    let (stamped, timed_out) = watch(task, pid, begin)?;
    let (status, usage) = wait4(pid)?;
    let wall_s = begin.elapsed().as_secs_f64();
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let (user_s, system_s) = (seconds(usage.ru_utime), seconds(usage.ru_stime));
    Ok(Usage {
        wall_s,
        user_s,
        system_s,
        peak_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
        // What was waited for is in the sum, and in the other clock not.
        after: stamped.map(|(wall, cpu)| (wall_s - wall, (user_s + system_s - cpu).max(0.0))),
        status: if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) },
        timed_out,
    })
}

/// The first CPUs that this process may use.
fn first_cpus(count: u32) -> Result<rustix::thread::CpuSet> {
    let all = rustix::thread::sched_getaffinity(None).context("sched_getaffinity")?;
    let mut set = rustix::thread::CpuSet::new();
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&cpu| all.is_set(cpu))
        .take(count as usize)
        .for_each(|cpu| set.set(cpu));
    Ok(set)
}

/// Waits for the end, or kills. Returns wall and CPU time at the stamp, if there was one, and whether it was killed.
fn watch(task: &Task, pid: Pid, begin: Instant) -> Result<(Option<(f64, f64)>, bool)> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?;
    let limit = Duration::from_secs_f64(task.limit.clamp(0.0, 1e6));
    let mut stamped = None;
    let mut stamp = task.stamp.as_deref();
    loop {
        let tick = if stamp.is_some() { 2_000_000 } else { 100_000_000 };
        let ended = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: tick }));
        if ended.is_ok_and(|ready| ready > 0) {
            return Ok((stamped, false));
        }
        if stamp.is_some_and(Path::exists) {
            stamp = None;
            stamped = cpu_time(pid).map(|cpu| (begin.elapsed().as_secs_f64(), cpu));
        }
        if begin.elapsed() > limit {
            kill_process(pid, Signal::KILL).context("kill")?;
            return Ok((stamped, true));
        }
    }
}

/// The CPU time of all threads of a running process, in seconds.
fn cpu_time(pid: Pid) -> Option<f64> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls write only to the local variables that they are given.
    let failed = unsafe {
        libc::clock_getcpuclockid(pid.as_raw_nonzero().get(), &raw mut clock) != 0
            || libc::clock_gettime(clock, &raw mut time) != 0
    };
    (!failed).then(|| time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
}

fn wait4(pid: Pid) -> Result<(i32, libc::rusage)> {
    // SAFETY: all fields of rusage are numbers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    loop {
        // SAFETY: wait4 writes only to the two variables that it is given.
        let waited = unsafe { libc::wait4(pid.as_raw_nonzero().get(), &raw mut status, 0, &raw mut usage) };
        if waited > 0 {
            return Ok((status, usage));
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            bail!("wait4: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(dir: &Path, script: &str) -> Task {
        let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
        Task { argv, stdout: Some(dir.join("out")), stderr: dir.join("err"), limit: 60.0, ..Task::default() }
    }

    #[test]
    fn what_a_command_takes_is_measured() {
        let dir = tempfile::tempdir().unwrap();
        let usage =
            run(&task(dir.path(), "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo said; exit 3")).unwrap();
        assert_eq!(usage.status, 3);
        assert!(usage.cpu_s() > 0.0 && usage.wall_s > 0.0 && usage.peak_kib > 100, "{usage:?}");
        assert_eq!(std::fs::read_to_string(dir.path().join("out")).unwrap(), "said\n");
        assert!(usage.after.is_none());
    }

    #[test]
    fn the_time_after_the_stamp_is_apart() {
        let dir = tempfile::tempdir().unwrap();
        let stamp = dir.path().join("stamp");
        let script = format!("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; : >{}; sleep 0.3", stamp.display());
        let usage = run(&Task { stamp: Some(stamp), ..task(dir.path(), &script) }).unwrap();
        let (wall, cpu) = usage.after.unwrap();
        assert!(wall > 0.0 && wall < usage.wall_s && cpu < usage.cpu_s(), "{usage:?}");
    }

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let usage = run(&Task { limit: 0.1, ..task(dir.path(), "exec sleep 600") }).unwrap();
        assert!(usage.timed_out);
        assert_eq!(usage.status, 128 + 9);
        let error = run(&Task { argv: vec!["/nonexistent/x".into()], ..task(dir.path(), "") }).unwrap_err();
        assert!(format!("{error:#}").contains("/nonexistent/x"));
    }

    #[test]
    fn a_command_can_be_kept_to_one_cpu() {
        let dir = tempfile::tempdir().unwrap();
        run(&Task { cpus: Some(1), ..task(dir.path(), "grep -c , /proc/self/status; nproc") }).unwrap();
        let said = std::fs::read_to_string(dir.path().join("out")).unwrap();
        assert_eq!(said.lines().last(), Some("1"));
    }
}
