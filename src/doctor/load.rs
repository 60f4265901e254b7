//! A load with known accesses: the self-test samples it and compares.
//!
//! The load consists of a separate process (because the sampler leaves itself out) and its child; this is the parent's
//! side.

use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

/// A thread of the load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Worker {
    /// Its process.
    pub pid: u32,
    /// Its thread id.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// True if the thread shares its buffer with a thread of another process, and its pages are faulted in repeatedly.
    pub shared: bool,
    /// The address of its buffer.
    pub begin: u64,
    /// The bytes of its buffer.
    pub len: u64,
}

impl Worker {
    /// True for an address in the thread's buffer.
    #[must_use]
    pub fn contains(&self, addr: u64) -> bool {
        addr.checked_sub(self.begin).is_some_and(|offset| offset < self.len)
    }

    /// The line that describes the thread.
    pub(crate) fn line(&self) -> String {
        let Self { pid, tid, name, shared, begin, len } = self;
        format!("{pid} {tid} {name} {shared} {begin} {len}\n")
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let mut next = || words.next();
        Some(Self {
            pid: next()?.parse().ok()?,
            tid: next()?.parse().ok()?,
            name: next()?.to_owned(),
            shared: next()?.parse().ok()?,
            begin: next()?.parse().ok()?,
            len: next()?.parse().ok()?,
        })
    }
}

/// A running load; dropping it ends the load.
#[derive(Debug)]
pub(crate) struct Load {
    child: Child,
    /// Its threads.
    pub workers: Vec<Worker>,
}

impl Load {
    /// Starts `command`, which must be the load, and waits until all its threads work.
    ///
    /// # Errors
    /// The load does not start, or ends too early.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut load = Self { child, workers: Vec::new() };
        for line in BufReader::new(out.take(1 << 16)).lines() {
            let line = line?;
            if line == "ready" {
                return Ok(load);
            }
            let worker = Worker::parse(&line).ok_or_else(|| io::Error::other(format!("the load said \"{line}\"")))?;
            load.workers.push(worker);
        }
        Err(io::Error::other("the load ended before it began"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // The load ends when its stdin is closed, and its child with it.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_read_as_it_is_said() {
        let worker = Worker { pid: 3, tid: 4, name: "load-x".to_owned(), shared: true, begin: 0x7000, len: 16 };
        assert_eq!(Worker::parse(&worker.line()), Some(worker.clone()));
        assert!(worker.contains(0x7000) && worker.contains(0x700f) && !worker.contains(0x7010) && !worker.contains(1));
        assert_eq!(Worker::parse("1 2 x true"), None);
    }
}
