//! Work to watch: processes that fault at a known rate, processes that read memory, and commands.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};

use crate::measure::end_with_parent;

/// Pages that a process faults on at most before it looks at the clock.
const BATCH: u64 = 256;
const PAGE: usize = 4096;
/// Bytes between the counters of two processes: no line is shared.
const COUNTER: usize = 128;
/// Bytes that a reader walks over.
const WALK: usize = 1 << 20;

/// Memory that this process and its children share.
struct Shared {
    at: *mut u8,
    len: usize,
}

impl Shared {
    fn new(len: usize) -> Result<Self> {
        Ok(Self { at: map(len, libc::MAP_SHARED)?, len })
    }

    fn counter(&self, index: usize) -> &AtomicU64 {
        let offset = (index * COUNTER).min(self.len - COUNTER);
        // SAFETY: the offset is within the mapping, a multiple of 128, and all access to it is atomic.
        unsafe { AtomicU64::from_ptr(self.at.add(offset).cast()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference to it outlives self.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

fn map(len: usize, sharing: i32) -> Result<*mut u8> {
    // SAFETY: a new anonymous mapping touches no memory that is in use.
    let at = unsafe {
        libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS | sharing, -1, 0)
    };
    if at == libc::MAP_FAILED {
        bail!("mmap: {}", std::io::Error::last_os_error());
    }
    Ok(at.cast())
}

/// Processes that are forked off and do not exec; they are killed when this is dropped.
#[derive(Default)]
struct Forked(Vec<libc::pid_t>);

impl Forked {
    /// Forks a child that calls `work`, which must do nothing but system calls and access memory: other threads of this process
    /// may have held locks. It ends with the thread that made it.
    fn add(&mut self, work: impl FnOnce()) -> Result<()> {
        // SAFETY: the child makes system calls and accesses memory that it inherits, allocates nothing, and never returns.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            bail!("fork: {}", std::io::Error::last_os_error());
        }
        if pid == 0 {
            // SAFETY: see above.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                work();
                libc::_exit(0);
            }
        }
        self.0.push(pid);
        Ok(())
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        for &pid in &self.0 {
            // SAFETY: these are children of this process that have not been waited for, so the ids are theirs.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, ptr::null_mut(), 0);
            }
        }
    }
}

/// Processes that fault on fresh pages at a rate.
pub struct Faults {
    _processes: Forked,
    counters: Shared,
    count: usize,
}

impl Faults {
    /// Starts `count` processes that make `rate` faults a second together; as many as they can without.
    ///
    /// # Errors
    /// fork or mmap fail.
    pub fn start(count: usize, rate: Option<u64>) -> Result<Self> {
        let counters = Shared::new(count.max(1) * COUNTER)?;
        let memory = map(BATCH as usize * PAGE, libc::MAP_PRIVATE)?;
        let mut processes = Forked::default();
        for index in 0..count {
            let counter = counters.counter(index);
            let pace = rate.map(|rate| Pace::new(rate as f64 / count as f64));
            processes.add(|| fault(memory, counter, pace))?;
        }
        // SAFETY: the children have copies of their own.
        unsafe { libc::munmap(memory.cast(), BATCH as usize * PAGE) };
        Ok(Self { _processes: processes, counters, count })
    }

    /// Faults so far.
    pub fn made(&self) -> u64 {
        (0..self.count).map(|index| self.counters.counter(index).load(Ordering::Relaxed)).sum()
    }
}

/// How many faults at once, and how long until the next ones.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pace {
    batch: u64,
    period_ns: i64,
}

impl Pace {
    /// At most 1,000 wake-ups a second, unless the faults do not fit into a batch.
    fn new(rate: f64) -> Self {
        let batch = ((rate / 1000.0).ceil() as u64).clamp(1, BATCH);
        Self { batch, period_ns: (batch as f64 / rate.max(1e-3) * 1e9) as i64 }
    }
}

/// Faults until it is killed.
fn fault(memory: *mut u8, counter: &AtomicU64, pace: Option<Pace>) {
    const SECOND: i64 = 1_000_000_000;
    let Pace { batch, period_ns } = pace.unwrap_or(Pace { batch: BATCH, period_ns: 0 });
    let len = batch as usize * PAGE;
    let mut next = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the memory is this process's own copy, at least `len` bytes, and nothing else refers to it.
    unsafe {
        libc::madvise(memory.cast(), len, libc::MADV_NOHUGEPAGE);
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut next);
        loop {
            libc::madvise(memory.cast(), len, libc::MADV_DONTNEED);
            for page in 0..batch as usize {
                ptr::write_volatile(memory.add(page * PAGE), 1);
            }
            counter.fetch_add(batch, Ordering::Relaxed);
            if pace.is_none() {
                continue;
            }
            let at = next.tv_sec * SECOND + next.tv_nsec + period_ns;
            (next.tv_sec, next.tv_nsec) = (at / SECOND, at % SECOND);
            // One that is late makes up for it at once.
            libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const next, ptr::null_mut());
        }
    }
}

/// Processes that read memory all the time.
pub struct Readers {
    _processes: Forked,
}

impl Readers {
    /// # Errors
    /// fork or mmap fail.
    pub fn start(count: usize) -> Result<Self> {
        let memory = map(WALK, libc::MAP_PRIVATE)?;
        let mut processes = Forked::default();
        for _ in 0..count {
            processes.add(|| walk(memory))?;
        }
        // SAFETY: as above.
        unsafe { libc::munmap(memory.cast(), WALK) };
        Ok(Self { _processes: processes })
    }
}

fn walk(memory: *mut u8) {
    loop {
        for line in 0..WALK / 64 {
            // SAFETY: within this process's own copy of the memory.
            unsafe {
                let at = memory.add(line * 64);
                ptr::write_volatile(at, ptr::read_volatile(at).wrapping_add(1));
            }
        }
    }
}

/// A command that works until it is killed.
pub struct Workload {
    child: Child,
    _out: BufReader<ChildStdout>,
}

impl Workload {
    /// Starts it, and waits for its line that begins with "ready".
    ///
    /// # Errors
    /// It ends or closes its stdout before.
    pub fn start(command: &str) -> Result<Self> {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {command}")]).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        end_with_parent(&mut shell);
        let mut child = shell.spawn().with_context(|| format!("cannot run {command}"))?;
        let mut out = BufReader::new(child.stdout.take().context("no stdout")?);
        let mut line = String::new();
        while !line.starts_with("ready") {
            line.clear();
            if out.read_line(&mut line).context("the load's stdout")? == 0 {
                let _ = child.kill();
                let _ = child.wait();
                bail!("{command} ended before it was ready");
            }
        }
        Ok(Self { child, _out: out })
    }

    /// Its processes.
    pub fn pids(&self) -> Vec<u32> {
        descendants(self.child.id())
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let group = -(self.child.id() as libc::pid_t);
        // SAFETY: the child leads a group of its own, and has not been waited for.
        unsafe { libc::kill(group, libc::SIGTERM) };
        let begin = Instant::now();
        while self.child.try_wait().is_ok_and(|status| status.is_none()) {
            if begin.elapsed() > Duration::from_secs(10) {
                // SAFETY: as above.
                unsafe { libc::kill(group, libc::SIGKILL) };
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A process and all that it started.
fn descendants(root: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = pids
        .filter_map(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?))
        })
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| pid));
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_becomes_batches() {
        assert_eq!(Pace::new(100.0), Pace { batch: 1, period_ns: 10_000_000 });
        assert_eq!(Pace::new(50_000.0), Pace { batch: 50, period_ns: 1_000_000 });
        assert_eq!(Pace::new(1e6), Pace { batch: 256, period_ns: 256_000 });
    }

    #[test]
    fn faults_are_made_and_counted() {
        let faults = Faults::start(2, Some(1_000)).unwrap();
        while faults.made() < 20 {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(Readers::start(1).unwrap());
    }

    #[test]
    fn a_workload_is_known_with_what_it_starts() {
        let load = Workload::start("sh -c 'sleep 600 & echo ready; wait'").unwrap();
        let pids = load.pids();
        assert!(pids.len() >= 2, "{pids:?}");
        drop(load);
        assert!(Workload::start("true").is_err());
    }
}
