//! Finds the threads that share memory: from a stream of samples to communities of threads.
//!
//! [`Sharing::add`] counts each sample in a sketch of bounded size. [`Sharing::solve`] computes the communities of the samples
//! so far, at any time. This module is pure computation: no input or output, no clock, no randomness.
//!
//! # Method
//!
//! Two threads that access the same memory lose no time by that alone: they lose time when one of them must fetch what the
//! other one has in its cache. So the unit of evidence is the *possible miss*.
//!
//! - **Sketch** (`sketch`): records for each thread and page which lines the thread touched and which it wrote, and for lines
//!   that it touched again how often. An address that depends on memory which other threads may write (method `m`) counts 31
//!   times in 32, because about 1 in 32 is wrong when threads race. If a table is full, a hash of the page decides what is
//!   dropped, never its age, so the counts of what is kept are exact. Several accesses of one sample to one line count once: they
//!   are within a few hundred instructions, and at most one of them misses.
//! - **Possible misses** (`misses`): `n` accesses of a thread to a line can miss at most `min(n, 1 + w)` times if the other
//!   threads took the line away `w` times: once to fetch it, and again after each time. Another thread takes a line away by writing
//!   it, and from a thread that writes it by any access. A miss after that is a
//!   transfer from another cache and counts three times. (A thread that uses more lines than a first-level cache holds fetches
//!   its rarely used lines more often, by the model of Che, Tung and Wang, 2002.) So a constant that all threads read counts 1
//!   however hot it is, a contended counter counts in full, and a buffer counts once for each line. A thread that reads little
//!   but one line waits for another thread to write it, even if no sample shows the write. If the source measures the cost of
//!   accesses (PEBS, IBS), that replaces this estimate: each access that missed the core's own caches counts, in proportion to
//!   its latency.
//! - **Regions** (`regions`): two threads that share 4 MiB rarely hit the same page, so single pages are no evidence if samples
//!   are sparse. So this module first finds the data structures: it divides each address space and each file into ranges of
//!   lines within which the mix of threads is the same, by Bayesian segmentation over the binary tree of aligned blocks. The
//!   data decide how fine the ranges are: a line if samples are dense, megabytes if they are sparse. The segmentation
//!   distinguishes interleaved lines with one user each (a slab, a heap) from a structure that all threads use. One sample of a
//!   loop finds the next lines of a buffer too, so each touch counts as one divided by the mean number of lines that a sample of
//!   its thread finds beside each other. Of a region that is larger than a last-level cache only the part that fits counts. Data that no thread writes and that fits
//!   into each core's own cache does not count.
//! - **Hubs** (`communities`): a region is a hub if at most a quarter of the threads that could use it certainly do not. Threads
//!   with so few samples that one could not tell do not count, unless they use it. A hub says nothing about which threads belong
//!   together. Private memory can be used by the threads of its process; shared memory by all threads that are connected with its
//!   users through any memory. So the verdict on a process does not depend on unrelated ones.
//! - **Communities** (`linkage`): the affinity of two threads is the part of their possible misses that falls on the same
//!   regions, without hubs. Average linkage joins first the pairs with the largest certain affinity.
//! - **Unions** (`unions`): average linkage cuts a pipeline, whose stages share with their neighbours alone. So the sets that it
//!   finds are settled by what they avoid (`avoided`): threads move to the set in which they certainly avoid more, and two sets
//!   become one if that certainly avoids in addition at least a third of what the smaller one avoids by itself. A thread that is in
//!   no set joins the one with which it shares, if it shares at most half as much with any other, if that avoids half of its
//!   misses (a worker that waits for a dispatcher), or if it is between two sets and adds to one at least a third of what that
//!   avoids. In the end no such merge or move is left; a split would avoid less.
//! - **All of a process**: if one community contains all threads, its memory looks like a hub. So threads that are in no
//!   community form one if enough of their possible misses falls on the same data (three or more of most threads), or if there is
//!   no finer community and they contend for few lines that all of them write (false sharing, a contended lock), or if they are of
//!   several processes and write memory that these share, which they do on purpose.
//! - **Others** (`verdicts`): a thread in no community is alone if it shares less than a quarter of its possible misses; else it
//!   shares with all (in hubs) or with some. Of fewer than 30 possible misses one can't tell, unless the thread was seen using
//!   the same few lines ten times each.
//!
//! # Parameters
//!
//! | parameter | value | meaning |
//! |---|---|---|
//! | significance | 2.33 standard deviations | one community in a hundred may be worth less than the minimum |
//! | worth | 2 % | the part of their possible misses that the members of a community have in common, beyond hubs |
//! | worth of all | 7 %, in 48 lines or more | the same if there are no other threads to compare with |
//! | contention | 33 % | the same for transfers of lines that all threads of a process write, by number |
//! | contention for few lines | 3.5 % | the same for 8 lines or fewer that are mostly written, by cost |
//! | exchange | 2 % | the same for memory that processes share and write |
//! | cohesion | 1/2 | two communities join if they have half as much in common as each has within |
//! | union | 1/3 | or if they avoid together that part of what the smaller one avoids by itself |
//! | hub | 3/4 | the part of the threads that may use a region of a hub |
//! | joining | 1.64 standard deviations | above zero, for what two have in common; 1.3 for "certainly does not use it" |
//! | caches | 512 lines, 32 MiB | of a core, and of the last level: of a larger region only that part can be shared |
//! | prior odds | 1 : 1, 1 : 50 | of a boundary within a block, and of pieces with one user each |
//!
//! # Measures
//!
//! *Locality* ([`Clusters::locality_of`]) is the part of the avoidable misses that a partition of the threads avoids. In each
//! region all fills are avoidable but those of one thread, which must fetch the data anyway, and all transfers. A transfer is
//! avoided if the thread that took the line away is in the same part: of eight threads that contend for one line, four keep three
//! sevenths of their transfers. One subcell for all threads avoids all of them, so locality compares partitions of similar size
//! only.
//!
//! *Constancy* ([`OverTime`]) says whether the members of a community share with the same threads all the time, by the spans of the
//! run in which they used which regions: two dozen at most, so that phases shorter than an eighth of the run are not seen. If
//! partners changed once, it says when.
//!
//! *Confidence* of a community is the part of communities with as much evidence, and of as much constancy, that were exactly right
//! in streams of known truth. Of 752 communities in streams with few samples (in a seventh of these streams, partners change half way)
//! (`cargo test --test suite cluster_truth::confidence -- --nocapture`):
//!
//! | confidence | communities | of these right |
//! |---|---|---|
//! | below 0.5 | 103 | 34 % |
//! | 0.5 to 0.8 | 270 | 65 % |
//! | 0.8 to 0.9 | 114 | 87 % |
//! | 0.9 to 0.95 | 66 | 97 % |
//! | above | 199 | 100 % |
//!
//! Most wrong communities lack some of their threads. There is no minimum besides the significance: of 1,000 streams of private
//! memory none has any community. Of 655 communities that neither half of their samples confirms, in streams with too few
//! samples, 71 % are right and 91 % contain no wrong thread, whatever their deviations: dropping them would lose more than it
//! saves.
//!
//! # Quality
//!
//! Adjusted Rand index, mean of 10 seeds; if the row does not say otherwise, 1,000 samples a thread, 20 % of them go to the
//! buffer of the thread's group, and 32 threads in 4 groups (`cargo test --test suite cluster_others -- --ignored
//! --nocapture` prints it):
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
//! The limits, mean of 10 seeds at 1,000 and at 200 samples a thread (`cargo test --test suite cluster_truth -- --ignored
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
//! Memory that all threads use becomes a community if it takes 7 % of the possible misses and has more than 48 lines: hot
//! globals on 64 pages look the same as one group of all threads.

pub(crate) mod across;
mod avoided;
mod classes;
mod clusters;
mod communities;
mod expected;
mod keys;
pub(crate) mod layout;
mod lines;
mod linkage;
mod misses;
mod over_time;
pub(crate) mod quality;
mod regions;
pub(crate) mod replicates;
mod report;
pub(crate) mod rules;
pub(crate) mod score;
pub(crate) mod shared;
mod sharers;
mod sketch;
pub(crate) mod slices;
mod slot_table;
mod solve;
mod spans;
pub(crate) mod truth;
mod unions;
mod verdicts;

pub use classes::{ClassSharing, ClassUse, PairUse};
pub use clusters::{
    ClusterOptions, Clusters, Community, Detail, Edge, Hot, LineUse, Reason, Structure, Verdict, MIN_ACCESSES,
};
pub use lines::LineSharing;
pub use rules::OverTime;
pub use sketch::{Sharing, SketchStats};
