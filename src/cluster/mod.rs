//! Which threads share memory: from a stream of samples to communities of threads.
//!
//! [`Sharing::add`] counts each sample in a sketch of bounded size; [`Sharing::solve`] says at any time which threads belong
//! together. Pure computation: no input or output, no clock, no randomness.
//!
//! # How
//!
//! - **Sketch** (`sharing`): accesses by page and thread, with the lines of the page in use, and accesses by line. What has
//!   no room is left out by a hash of the page, never because it is old, so the counts of what is kept are exact.
//! - **Graph** (`graph`): two threads meet on a page; the page counts less the more it is used, so that a group's evidence
//!   does not depend on how large its buffer is. Pages that as many threads touch as if all went there alike are hubs and
//!   count nothing. Threads that use the same page but never the same lines do not fit, and hardly count. Pages that nobody
//!   was seen to write count half.
//! - **Communities** (`communities`): average linkage on pooled evidence. Two join if they met more often than noise
//!   explains, and if they meet about as strongly as each meets within. So a cut that fits a class of hot threads does not
//!   lose a class of quiet ones.
//! - **Second look** (`settle`): a thread that joined early on little evidence moves to the community that all the evidence
//!   points to.
//! - **Weighing**: a community that does not stand out from the other threads, or shares too little, is taken apart. What is
//!   left is looked at as a whole: one community that is nearly everybody makes its memory look like memory that everybody
//!   touches, and is known by the share of accesses that go there (12 % or more).
//!
//! # What was tried
//!
//! Adjusted Rand index, mean of 10 seeds, 1,000 samples a thread of which 20 % go to the group's buffer, 32 threads in 4
//! groups where nothing else is said (`tests/cluster_others.rs` prints this):
//!
//! | stream | raw cosine, cut 0.05 | IDF cosine, cut 0.25 of the largest | IDF cosine, Louvain | this |
//! |---|---|---|---|---|
//! | 64 pages | 0.00 | 1.00 | 1.00 | 1.00 |
//! | 1,024 pages | 0.00 | 1.00 | 1.00 | 1.00 |
//! | 1,024 pages, 200 samples | 0.04 | 0.62 | 1.00 | 0.95 |
//! | one page | 0.00 | 1.00 | 1.00 | 1.00 |
//! | one group | 1.00 | 0.00 | 0.00 | 1.00 |
//! | two groups | 0.00 | 1.00 | 1.00 | 1.00 |
//! | one group of 90 % of the threads | 0.16 | 0.00 | 1.00 | 1.00 |
//! | 10 % overlap | 0.00 | 1.00 | 1.00 | 1.00 |
//! | 20 % hot globals | 0.00 | 1.00 | 1.00 | 1.00 |
//! | private memory only | 0.00 | 0.00 | 0.00 | 1.00 |
//!
//! Raw cosine is glued together by globals and by pages in which private buffers meet. A cut relative to the largest
//! similarity always joins some pair, and loses one group among classes of different rates. Louvain finds more than this
//! where samples are few, but it also finds groups where there are none, and breaks up one that is all. A first cut of this
//! module without the tolerance for few meetings, and one that took large communities apart again, were no better.
//!
//! # Where quality ends
//!
//! Mean of 10 seeds, 32 threads in 4 groups, at 1,000 and at 200 samples a thread; `cargo test --test cluster_truth --
//! --ignored --nocapture` prints more of it:
//!
//! | stream | 1,000 | 200 |
//! |---|---|---|
//! | 64 pages, share 5 % / 10 % | 0.26 / 1.00 | 0.74 / 0.99 |
//! | one group, 64 pages, share 5 % / 10 % | 0.00 / 1.00 | 0.00 / 0.80 |
//! | 1,024 pages, share 5 % / 10 % / 20 % | 0.09 / 1.00 / 1.00 | 0.00 / 0.00 / 0.95 |
//! | 4,096 pages, share 10 % / 20 % / 40 % | 0.31 / 1.00 / 1.00 | 0.00 / 0.00 / 0.87 |
//! | 1,024 pages, share 20 %, 10 % overlap / 15 % drift | 1.00 / 1.00 | 0.63 / 0.58 |
//! | 1,024 pages, share 20 %, 16 pairs | 1.00 | 0.15 |
//! | 64 pages, share 20 %, overlap 30 % / 40 % | 1.00 / 0.58 | 0.94 / 0.48 |
//! | private memory and 30 % on 16 pages of globals | 0.00 | 0.00 |
//!
//! The last is by choice: what everybody touches becomes a community if it takes 12 % or more of the accesses and is more
//! than a few lines. One group that is everybody cannot be told from it.

mod codes;
mod communities;
mod graph;
// For tests and benches.
#[doc(hidden)]
pub mod quality;
mod report;
mod settle;
mod sharing;
mod solve;
mod table;
// For tests and benches.
#[doc(hidden)]
pub mod truth;

pub use report::{Edge, Hot};
pub use sharing::{Sharing, SketchStats, EVENT};
pub use solve::{Clusters, Community, Options, Reason, Verdict};
