//! Chains of wakeups: a thread that was woken wakes another one.

use crate::{Durations, Sums, Thread};
use scxprof_base::sample::Comm;

/// Chains of this length may be longer: two threads that wake each other make an endless one.
pub const MAX_LENGTH: usize = 64;
/// The last threads of a chain, which are kept.
pub const MAX_PATH: usize = 8;
/// The longest chains, which are kept.
pub const TOP: usize = 20;

/// A thread of a chain, as it was then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Link {
    /// Thread id.
    pub tid: u32,
    /// Its name.
    pub comm: Comm,
}

/// The waits that led to a run of a thread, one after the other.
#[derive(Debug, Clone, Copy, Default)]
pub struct Chain {
    /// Waits, at most [`MAX_LENGTH`].
    length: u8,
    /// Those of them that began with a preemption.
    preempted: u8,
    /// Threads, those of `path` included, at most 255.
    threads: u8,
    /// ns of all its waits.
    latency: u64,
    path: [Link; MAX_PATH],
}

impl Chain {
    /// Its waits; [`MAX_LENGTH`] for more too.
    pub fn length(&self) -> usize {
        usize::from(self.length)
    }

    /// Those of them that began with a preemption.
    pub fn preempted(&self) -> u8 {
        self.preempted
    }

    /// ns of all its waits.
    pub fn latency(&self) -> u64 {
        self.latency
    }

    /// Its last threads, the first woken first.
    pub fn path(&self) -> &[Link] {
        self.path.get(..usize::from(self.threads)).unwrap_or(&self.path)
    }

    /// True if it has more threads than its path.
    pub fn is_cut(&self) -> bool {
        usize::from(self.threads) > MAX_PATH
    }

    /// A thread ran `ns` after this chain's last one, or an interrupt if it is empty, woke it.
    pub fn woken(&mut self, ns: u64, thread: &Thread) {
        self.waited(ns);
        if usize::from(self.threads) >= MAX_PATH {
            self.path.rotate_left(1);
        }
        let at = usize::from(self.threads).min(MAX_PATH - 1);
        if let Some(link) = self.path.get_mut(at) {
            *link = Link { tid: thread.tid, comm: thread.comm };
        }
        self.threads = self.threads.saturating_add(1);
    }

    /// The last thread ran again `ns` after it was preempted.
    pub fn resumed(&mut self, ns: u64) {
        self.waited(ns);
        self.preempted = self.preempted.saturating_add(1);
    }

    fn waited(&mut self, ns: u64) {
        self.length = self.length.saturating_add(1).min(MAX_LENGTH as u8);
        self.latency = self.latency.saturating_add(ns);
    }

    fn is_like(&self, other: &Self) -> bool {
        let shown = |chain: &Self| chain.threads.min(MAX_PATH as u8 + 1);
        // Where they differ, the last one most often does.
        let mut both = self.path.iter().zip(&other.path).rev();
        shown(self) == shown(other) && both.all(|(link, other)| link.comm == other.comm)
    }
}

/// The sums of the chains. Each counts whenever a wait of it ends.
#[derive(Debug, Default)]
pub struct Chains {
    /// Latency by length; the first has length 1.
    lengths: Vec<Sums>,
    latency: Durations,
    top: Vec<Chain>,
}

impl Chains {
    /// Takes a chain that a wait has ended.
    pub fn add(&mut self, chain: &Chain) {
        let at = chain.length().saturating_sub(1);
        if self.lengths.len() <= at {
            self.lengths.resize(at + 1, Sums::default());
        }
        if let Some(sums) = self.lengths.get_mut(at) {
            sums.add(chain.latency);
        }
        // The latency of an endless chain has no meaning, and would push all others out.
        if chain.length() < MAX_LENGTH {
            self.latency.add(chain.latency);
            self.offer(chain);
        }
    }

    /// Lengths with their latencies, those that occurred.
    pub fn lengths(&self) -> impl Iterator<Item = (usize, &Sums)> {
        (1..).zip(&self.lengths).filter(|(_, sums)| sums.count() > 0)
    }

    /// Latencies of chains shorter than [`MAX_LENGTH`].
    pub fn latency(&self) -> &Durations {
        &self.latency
    }

    /// The chains shorter than [`MAX_LENGTH`] of the greatest latency, the greatest first; one for each sequence of names.
    pub fn top(&self) -> &[Chain] {
        &self.top
    }

    /// Bytes of memory beside the value itself, about.
    pub fn bytes(&self) -> usize {
        self.lengths.capacity() * size_of::<Sums>() + self.top.capacity() * size_of::<Chain>() + self.latency.bytes()
    }

    fn offer(&mut self, chain: &Chain) {
        if self.top.len() >= TOP && self.top.last().is_some_and(|last| chain.latency <= last.latency) {
            return;
        }
        if let Some(at) = self.top.iter().position(|other| other.is_like(chain)) {
            match self.top.get(at) {
                Some(known) if known.latency < chain.latency => drop(self.top.remove(at)),
                _ => return,
            }
        }
        let at = self.top.partition_point(|other| other.latency >= chain.latency);
        self.top.insert(at, *chain);
        self.top.truncate(TOP);
    }
}
