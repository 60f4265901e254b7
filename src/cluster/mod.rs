//! Which threads share memory: from a stream of samples to communities of threads.
//!
//! [`Sharing::add`] counts each sample in a sketch of bounded size; [`Sharing::solve`] says at any time which threads belong
//! together. Pure computation: no input or output, no clock, no randomness.
//!
//! # How
//!
//! What costs time is not that two threads access the same memory, but that one of them must fetch what the other one has. So
//! the unit of evidence is the *possible miss*.
//!
//! - **Sketch** (`sketch`): for each thread and page which lines it touched and which of them it wrote, and for lines that it came
//!   back to how often. An address that depends on memory which others may write (method `m`) counts 31 times in 32, for it may be wrong
//!   so often where threads race. What has no room is left out by a hash of the page, never because it is old, so the counts of what is
//!   kept are exact. Several accesses of one sample to one line count once.
//! - **Possible misses** (`misses`): `n` accesses of a thread to a line can miss at most `min(n, 1 + w)` times, where the other
//!   threads wrote it `w` times: once to fetch it, and again after each of these writes, which is a transfer from another cache
//!   and counts three times. (A thread that uses more lines than a first-level cache holds fetches the seldom used ones more
//!   often, by the model of Che, Tung and Wang, 2002.) So a constant that all read counts 1 however
//!   hot it is, a contended counter counts in full, and a buffer counts once for each line seen. A thread that reads little but one
//!   line waits for somebody to write it, seen or not. Where the source says what an
//!   access cost (PEBS, IBS), this is the evidence in place of the estimate: what missed the core's own caches counts,
//!   in proportion to its latency.
//! - **Regions** (`regions`): two threads that share 4 MiB hardly ever hit one page, so single pages are no evidence where samples
//!   are sparse. The data structures are found first: each address space and each file is divided into ranges of lines
//!   within which the threads are mixed alike, by Bayesian segmentation over the binary tree of aligned blocks. How fine it
//!   gets is decided by the data: a line where samples are dense, megabytes where they are not. Lines that are interleaved but have
//!   owners of their own (a slab, a heap) are told from a structure that all use. Lines behind each other that a thread touched once
//!   each are one touch here: one sample of a loop finds the next lines of a buffer together.
//!   Of a region that is larger than a last-level cache only that part counts, and data that nobody writes and that each core's own
//!   cache holds counts nothing.
//! - **Hubs** (`communities`): a region of which no more than a quarter of the threads that could use it surely do not says
//!   nothing about who belongs to whom. Those that could use private memory are the threads of its process; those that could use
//!   shared memory are all that are connected with its users by any memory at all. So the verdict on a process does not
//!   depend on unrelated ones.
//! - **Communities** (`linkage`): the affinity of two threads is the part of their possible misses that falls on the same regions,
//!   hubs left out. Average linkage joins those first that surely have most in common. A thread that is left joins the community
//!   that avoids half of its misses or more, however little of the others' that is (a worker that waits for a dispatcher).
//! - **All of a process**: one group that is everybody makes its memory look like what everybody touches. Threads that are in no
//!   community are one where enough of their possible misses falls on the same data, or where no finer group exists and they
//!   fight for few lines that they all write (false sharing, a contended lock).
//!
//! # Parameters
//!
//! | parameter | value | meaning |
//! |---|---|---|
//! | significance | 2.33 standard deviations | one community in a hundred may be worth less than it must be |
//! | worth | 2 % | the part of their possible misses that the members of a community have in common, beyond what all use |
//! | worth of all | 7 %, in 48 lines or more | the same where there is nobody to compare with |
//! | contention | 33 % | the same for transfers of few lines that all threads of a process write |
//! | cohesion | 1/2 | two communities join that have half as much in common as each has within |
//! | hub | 3/4 | the part of the threads that may use a region of a hub |
//! | joining | 1.64 standard deviations | above zero, for what two have in common; 1.3 for "surely does not use it" |
//! | caches | 512 lines, 32 MiB | of a core, and of the last level: of a region that is larger only that part can be shared |
//! | prior odds | 1 : 1, 1 : 50 | of a boundary within a block, and of pieces with users of their own |
//!
//! # What is measured by
//!
//! *Locality* ([`Clusters::locality_of`]) is the part of the avoidable misses that a partition of the threads avoids: in each
//! region all possible misses but those of one thread, who must fetch the data anyway, are avoidable. Everything in one subcell
//! avoids all of them, so the number compares partitions of similar size, and says little about others.
//!
//! *Confidence* of a community is the part of communities with as much evidence that were exactly a group in streams of known
//! truth. Of 679 communities in streams with few samples (`cargo test --test cluster_truth confidence -- --nocapture`):
//!
//! | confidence | communities | of them right |
//! |---|---|---|
//! | below 0.8 | 236 | 63 % |
//! | 0.8 to 0.9 | 126 | 87 % |
//! | 0.9 to 0.95 | 83 | 96 % |
//! | above | 234 | 100 % |
//!
//! Most of those that are not right lack some of their threads. There is no floor beside the significance: of 1,000 streams of private
//! memory none has a community at all, and of 655 communities that neither half of their samples knows, in streams that are short of
//! samples, 71 % are right and 91 % have no stranger, whatever their deviations: to leave them out would lose more than it saves.
//!
//! # Quality
//!
//! Adjusted Rand index, mean of 10 seeds, 1,000 samples a thread of which 20 % go to the group's buffer, 32 threads in 4
//! groups where nothing else is said (`tests/decision/cluster_others.rs` prints this):
//!
//! | stream | raw cosine, cut 0.05 | IDF cosine, cut 0.25 of the largest | IDF cosine, Louvain | this |
//! |---|---|---|---|---|
//! | 64 pages | 0.00 | 1.00 | 1.00 | 1.00 |
//! | 1,024 pages | 0.00 | 1.00 | 1.00 | 1.00 |
//! | 1,024 pages, 200 samples | 0.04 | 0.62 | 1.00 | 1.00 |
//! | one page | 0.00 | 1.00 | 1.00 | 1.00 |
//! | one group | 1.00 | 0.00 | 0.00 | 1.00 |
//! | two groups | 0.00 | 1.00 | 1.00 | 1.00 |
//! | one group of 90 % of the threads | 0.16 | 0.00 | 1.00 | 1.00 |
//! | 10 % overlap | 0.00 | 1.00 | 1.00 | 1.00 |
//! | 20 % hot globals | 0.00 | 1.00 | 1.00 | 1.00 |
//! | private memory only | 0.00 | 0.00 | 0.00 | 1.00 |
//!
//! Where it ends, mean of 10 seeds at 1,000 and at 200 samples a thread (`cargo test --test cluster_truth -- --ignored
//! --nocapture`):
//!
//! | stream | 1,000 | 200 |
//! |---|---|---|
//! | 64 pages, share 5 % / 10 % | 1.00 / 1.00 | 0.96 / 1.00 |
//! | one group, 64 pages, share 5 % / 10 % | 0.00 / 1.00 | 0.00 / 1.00 |
//! | 1,024 pages, share 5 % / 10 % / 20 % | 1.00 / 1.00 / 1.00 | 0.96 / 1.00 / 1.00 |
//! | 4,096 pages, share 5 % / 10 % / 20 % | 1.00 / 1.00 / 1.00 | 0.96 / 1.00 / 1.00 |
//! | 1,024 pages, share 20 %, 10 % overlap / 15 % drift / 16 pairs | 1.00 / 1.00 / 1.00 | 1.00 / 1.00 / 1.00 |
//! | 64 pages, share 20 %, overlap 30 % / 40 % | 1.00 / 1.00 | 0.97 / 0.66 |
//! | the same, drift 30 % / 40 % | 1.00 / 1.00 | 1.00 / 0.73 |
//! | private memory and 30 % on 16 pages of globals | 1.00 | 1.00 |
//!
//! What everybody uses becomes a community if it takes 7 % of the possible misses and is more than 48 lines: hot globals on 64 pages
//! cannot be told from one group that is everybody.

mod clusters;
mod communities;
mod keys;
mod lines;
mod linkage;
mod misses;
pub(crate) mod quality;
mod regions;
mod report;
mod rules;
mod sketch;
mod solve;
mod table;
pub(crate) mod truth;

pub use clusters::{
    ClusterOptions, Clusters, Community, Edge, Hot, LineSharing, LineThread, Reason, Structure, Verdict,
};
pub use sketch::{Sharing, SketchStats};
