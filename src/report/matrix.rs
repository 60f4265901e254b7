//! Which threads share what: the threads, the regions that each of them uses, and the hottest pages line by line.

use serde::{Deserialize, Serialize};

use super::memory::Identity;
use crate::cluster::LineSharing;

/// What each pair of threads shares: of each region, the possible misses of the thread that has fewer there, because these
/// are avoided if both use one cache. The shared misses of two threads are the sum over all regions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Matrix {
    /// The threads with most samples, 2,000 at most.
    pub threads: Vec<MatrixThread>,
    /// The regions that these threads share, those in which most misses can be avoided first.
    pub regions: Vec<MatrixRegion>,
    /// The hottest pages that several threads touched.
    pub pages: Vec<MatrixPage>,
    /// What the matrix leaves out.
    pub left_out: MatrixLeftOut,
}

/// A thread of the matrix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MatrixThread {
    /// Its process.
    pub pid: u32,
    /// Its thread id.
    pub tid: u32,
    /// Its name, as in [`super::ThreadReport`].
    pub comm: Option<String>,
    /// Its hint, as in [`super::ThreadReport`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<u64>,
    /// The name of its process's main thread, if that was sampled.
    pub process: Option<String>,
    /// The path of the cgroup of its last sample.
    pub cgroup: Option<String>,
    /// Its subcell, as `cell/subcell`, or the cell if that is not divided; `null` if nothing takes it.
    pub subcell: Option<String>,
    /// Its samples.
    pub samples: f64,
}

/// A region.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MatrixRegion {
    /// The name of the memory, as of a [`super::Granule`]; of its first byte.
    pub memory: String,
    /// Its first byte; `null` if it is not known any more.
    pub identity: Option<Identity>,
    /// From its first byte to its last.
    pub bytes: u64,
    /// True if nearly all threads that could use it do: a hub, which joins no threads.
    pub hub: bool,
    /// Threads by their place in [`Matrix::threads`], each with its possible misses there, as far as a last-level cache holds the
    /// region.
    pub sharers: Vec<(u32, f64)>,
}

/// A page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MatrixPage {
    /// The name of the memory, as of a [`super::Granule`].
    pub memory: String,
    /// The region of its hottest line, by its place in [`Matrix::regions`].
    pub region: Option<u32>,
    /// Accesses of all threads.
    pub accesses: u64,
    /// The lines that were touched, the hottest first.
    pub lines: Vec<MatrixLine>,
}

/// A line of a page.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MatrixLine {
    /// The name of the memory.
    pub memory: String,
    /// Its first byte in the page.
    pub offset: u32,
    /// How its threads share it.
    pub sharing: LineSharing,
    /// Threads by their place in [`Matrix::threads`], each with its loads and stores; 200 at most.
    pub by_thread: Vec<(u32, u32, u32)>,
}

/// The number of entries for which a matrix has no room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MatrixLeftOut {
    /// Threads.
    pub threads: u64,
    /// Regions, and the misses that are avoided if all their threads use one cache.
    pub regions: u64,
    /// See `regions`.
    pub misses: f64,
    /// Pages.
    pub pages: u64,
}
