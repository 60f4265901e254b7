//! The options of [`Sharing::solve`](super::Sharing::solve), and its result.

use std::fmt;

use super::lines::LineSharing;
use super::rules::{OverTime, Region};
use super::shared::Shared;
use super::sketch::SketchStats;
use crate::sample::{CodeAddr, MemoryId};

/// Threads with fewer accesses are not judged, by default.
pub const MIN_ACCESSES: u32 = 20;

/// Why there is no verdict on a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// Fewer samples than [`ClusterOptions::min_accesses`].
    TooFewSamples,
    /// The same with a source that takes each event, so that only a longer capture has more samples.
    TooFewEvents,
    /// Enough samples, but so few possible misses that nothing can be said about what it shares.
    TooFewMisses,
    /// The cell has more threads than are compared with each other; the most active ones are compared.
    TooManyThreads,
    /// The source samples only first touches of pages, which cannot tell the threads of one process apart.
    FirstTouches,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::TooFewSamples | Self::TooFewEvents => "too few samples",
            Self::TooFewMisses => "too few misses",
            Self::TooManyThreads => "too many threads to compare, and others are more active",
            Self::FirstTouches => "first touches of pages cannot tell the threads of one process apart",
        })
    }
}

/// The verdict on a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The thread shares memory with the others of this community, an index of [`Clusters::communities`].
    Community(u32),
    /// The thread has enough samples, and shares little of what it may miss with any other thread of its cell.
    Alone,
    /// It shares with most threads that could use the same memory, and with none of them in particular.
    SharesWithAll,
    /// It shares with some threads, and with no community enough to belong there.
    SharesWithSome,
    /// There is no verdict.
    Unknown(Reason),
}

/// How much [`Sharing::solve`](super::Sharing::solve) computes; each variant includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// The communities, and the locality of partitions of the threads.
    Communities,
    /// [`Community::over_time`].
    OverTime,
    /// All that a report shows: [`Community::stability`], and the pages and lines that are shared. It takes three times as long.
    Report,
}

/// Options of [`Sharing::solve`](super::Sharing::solve).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ClusterOptions<'a> {
    /// The cell of each thread; threads of different cells never join. Threads beyond its end are in cell 0.
    pub cells: &'a [u32],
    /// A thread with fewer accesses gets no verdict.
    pub min_accesses: u32,
    /// The largest number of threads of one cell that are compared; work and memory grow with its square, 18 MB for 2,000.
    pub max_threads: usize,
    /// The process of each thread, if the samples are first touches of pages (source `faults`).
    pub first_touches: Option<&'a [u32]>,
    /// How much is computed.
    pub detail: Detail,
}

impl Default for ClusterOptions<'_> {
    fn default() -> Self {
        Self { cells: &[], min_accesses: MIN_ACCESSES, max_threads: 3000, first_touches: None, detail: Detail::Report }
    }
}

/// Threads that share memory.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Community {
    /// The cell that the threads are in.
    pub cell: u32,
    /// The threads, in ascending order.
    pub threads: Vec<u32>,
    /// The accesses of its threads.
    pub accesses: f64,
    /// Its part of all accesses on the host.
    pub share_of_accesses: f64,
    /// The part of a member's possible misses that it has in common with another member, on average.
    pub common: f64,
    /// The part of the misses in their regions that are transfers: another thread had written the line; with [`Detail::Report`].
    pub transfers: f64,
    /// True if it contains all threads of a process, or of processes that share memory, so that there are no other threads to
    /// compare with.
    pub is_all: bool,
    /// The mean overlap (Jaccard) of this community with the nearest one of each half of the samples, 1 for the same; `None`
    /// without [`Detail::Report`].
    pub stability: Option<f64>,
    /// Whether they share with the same threads all the time; `None` for runs of less than half a second, for samples without
    /// times, and without [`Detail::OverTime`].
    pub over_time: Option<OverTime>,
    /// The part of communities with as much evidence that were right in streams of known truth; see [`super`]. It is complete with
    /// [`Detail::Report`].
    pub confidence: f64,
    /// The largest regions that its threads share, by the misses that a shared cache avoids; with [`Detail::Report`].
    pub regions: Vec<Structure>,
    /// The hottest pages that its threads share, the hottest first; with [`Detail::Report`].
    pub pages: Vec<Hot>,
    /// The hottest lines of those pages that more than one thread touched.
    pub lines: Vec<Hot>,
}

/// The result of [`Sharing::solve`](super::Sharing::solve).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Clusters {
    /// The verdict on each thread.
    pub of_thread: Vec<Verdict>,
    /// The communities, by cell and then by size.
    pub communities: Vec<Community>,
    /// See [`Clusters::locality_of`], of these communities.
    pub locality: Option<f64>,
    /// The adjusted Rand index between the communities of the two halves of the samples.
    pub stability: Option<f64>,
    /// The hottest pages of hubs; like all that follows but the counts, with [`Detail::Report`].
    pub hubs: Vec<Hot>,
    /// The hottest lines that threads share and that are written, by how often another cache had them: the most first.
    pub lines: Vec<Hot>,
    /// What the sketch counted and dropped.
    pub stats: SketchStats,
    /// All regions that threads of one cell share, by thread and not by rank.
    pub(crate) regions: Vec<Region>,
    /// Which threads share what, region by region and line by line.
    pub(crate) shared: Shared,
    /// The possible misses of each thread that was compared.
    pub(crate) demand: Vec<f64>,
    /// The number of possible misses that was counted of each thread.
    pub(crate) counted: Vec<f64>,
}

impl Clusters {
    /// The partition as labels; each thread without a community has its own label.
    #[must_use]
    pub fn labels(&self) -> Vec<u32> {
        let alone = self.communities.len() as u32;
        (alone..)
            .zip(&self.of_thread)
            .map(|(label, verdict)| match verdict {
                Verdict::Community(community) => *community,
                _ => label,
            })
            .collect()
    }
}

/// A page or a line, and the accesses to it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Hot {
    /// Its first byte; `None` for a file beyond the number of files that the sketch can name.
    pub memory: Option<MemoryId>,
    /// Accesses to it by all threads; several by one sample to one line count once.
    pub accesses: f64,
    /// Those that wrote.
    pub writes: f64,
    /// Samples that found it modified in another cache.
    pub hitm: u64,
    /// Accesses after another thread took the line away; of lines alone.
    pub transfers: Option<f64>,
    /// Threads that touched it.
    pub threads: u32,
    /// Mean latency in kilocycles if the source measures latency, rounded up per sample; otherwise, and for lines, 0.
    pub kilocycles: f64,
    /// For lines, if the samples have code addresses: the code that touched it most since two threads touched its page, with
    /// its accesses.
    pub code: Vec<(CodeAddr, f64)>,
    /// The first byte that was touched of its hottest line, as far as that is known; else of the page or line.
    pub hottest: Option<MemoryId>,
    /// How its threads share it; of lines alone.
    pub sharing: Option<LineSharing>,
    /// Its most active threads; of lines alone.
    pub by_thread: Vec<LineUse>,
}

/// The accesses of one thread to a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LineUse {
    /// The thread.
    pub thread: u32,
    /// Accesses that did not write.
    pub loads: u32,
    /// Accesses that wrote.
    pub stores: u32,
    /// Accesses that found the line modified in another cache.
    pub hitm: u32,
    /// Bytes of the line that it read, each a bit; 0 where they were not kept. Of an access of unknown size the first byte.
    pub loaded: u64,
    /// Bytes that it wrote, likewise.
    pub stored: u64,
}

/// A region that a community shares.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Structure {
    /// Its first byte; `None` for a file beyond the number of files that the sketch can name.
    pub memory: Option<MemoryId>,
    /// From its first byte to its last.
    pub bytes: u64,
    /// Threads of the community that use it.
    pub threads: u32,
    /// Their possible misses there.
    pub misses: f64,
    /// Those of them that are transfers from a cache of another thread that had written the line.
    pub transfers: f64,
}

/// How two classes of threads share memory.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Edge {
    /// One class.
    pub a: u32,
    /// The other class, or the same for sharing between threads within it.
    pub b: u32,
    /// Possible misses that one cache for both avoids, beyond those that each class avoids by itself.
    pub misses: f64,
    /// The part of all possible misses of the class that has fewer.
    pub share: f64,
}
