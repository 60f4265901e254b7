//! The load that `scxprof doctor --self-test` samples: two processes with known accesses. [`crate::doctor::load`] is the other
//! side.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{kill_process, set_parent_process_death_signal, waitpid, Pid, Signal, WaitOptions};

use crate::doctor::load::Worker;

/// Bytes of each buffer. The first exceeds a core's own caches: their accesses are too fast for the default latency threshold
/// of pebs.
const PRIVATE: usize = 4 << 20;
const SHARED: usize = 64 << 10;
const LINE: usize = 64;
/// Lines that are touched between two looks at the clock.
const STRIDE: usize = 512;
/// How long a thread of the shared buffer works until it drops its mapping of the pages, to fault them in again.
const BURST: Duration = Duration::from_millis(4);

/// The code of the load: prints its threads to stdout, then `ready`, and works until stdin ends.
///
/// # Errors
/// Memory, a thread or a process is not available.
pub(super) fn run() -> io::Result<()> {
    let shared = map(SHARED, libc::MAP_SHARED)?;
    let (hear_child, mut tell_parent) = io::pipe()?;
    let parent = std::process::id();
    // SAFETY: this process has one thread, so the child may do anything.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        end_with_parent(parent)?;
        drop(hear_child);
        let (tell, told) = mpsc::channel();
        let thread = start("load-shared-b", shared, SHARED, true, tell)?;
        tell_parent.write_all(told.recv().map_err(io::Error::other)?.line().as_bytes())?;
        return thread.join().map_err(|_| io::Error::other("a thread of the load died"));
    }
    // If the child dies, the line ends early and the other side rejects it.
    drop(tell_parent);
    let mut line = String::new();
    BufReader::new(hear_child).read_line(&mut line)?;
    say(&line)?;
    let (tell, told) = mpsc::channel();
    let mut threads = 1;
    start("load-shared-a", shared, SHARED, true, tell.clone())?;
    for name in ["load-private-a", "load-private-b"] {
        start(name, map(PRIVATE, libc::MAP_PRIVATE)?, PRIVATE, false, tell.clone())?;
        threads += 1;
    }
    for worker in told.iter().take(threads) {
        say(&worker.line())?;
    }
    say("ready\n")?;
    let mut rest = Vec::new();
    io::stdin().read_to_end(&mut rest)?;
    // The child has not been reaped yet, so the pid still belongs to it.
    if let Some(child) = Pid::from_raw(child) {
        let _ = kill_process(child, Signal::KILL);
        let _ = waitpid(Some(child), WaitOptions::empty());
    }
    // The threads end with the process.
    Ok(())
}

fn say(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush())
}

/// Ends this process when its parent does, even if the parent was killed.
fn end_with_parent(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if std::os::unix::process::parent_id() == parent {
        Ok(())
    } else {
        Err(io::Error::other("the parent is gone"))
    }
}

fn map(len: usize, flags: libc::c_int) -> io::Result<usize> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address chosen by the kernel.
    let pointer = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags | libc::MAP_ANONYMOUS, -1, 0) };
    if pointer == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(pointer.expose_provenance())
}

/// Starts a thread that works on the buffer and reports its identity.
fn start(
    name: &'static str,
    buffer: usize,
    len: usize,
    shared: bool,
    tell: mpsc::Sender<Worker>,
) -> io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let (pid, begin) = (std::process::id(), buffer as u64);
        let _ = tell.send(Worker { pid, tid, name: name.to_owned(), shared, begin, len: len as u64 });
        let words: *mut u64 = std::ptr::with_exposed_provenance_mut(buffer);
        let mut line = 0;
        loop {
            let end = Instant::now() + BURST;
            while Instant::now() < end {
                line = touch(words, len / LINE, line);
            }
            if shared {
                // SAFETY: the mapping is ours and stays; its content stays in the memory behind it.
                unsafe { libc::madvise(words.cast(), len, libc::MADV_DONTNEED) };
            }
        }
    })
}

/// Adds one to a word of each of the next lines, in an order that no prefetcher predicts: a load and a store that no compiler
/// removes. `lines` is a power of two; returns the next line.
#[inline(never)]
fn touch(words: *mut u64, lines: usize, first: usize) -> usize {
    for line in first..first + STRIDE {
        // An odd factor visits every line once.
        let at = line.wrapping_mul(0x9E37_79B1) % lines * (LINE / 8);
        // SAFETY: `at` is within the mapping; others may write the word at the same time, which is safe for volatile accesses
        // of a word on this machine, and its value is never used.
        unsafe {
            let word = words.add(at);
            word.write_volatile(word.read_volatile().wrapping_add(1));
        }
    }
    (first + STRIDE) % lines
}
