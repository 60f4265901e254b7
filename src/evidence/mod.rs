//! Evidence: the sharing between classes of threads, as rows that can be added over runs and hosts.
//!
//! [`Evidence`] is a table. Rows of one key are added by adding their numbers, which are integers: so the sum of many hosts is the
//! same in any order, in any number of steps, and by any engine that knows `GROUP BY` and `SUM`. [`Evidence::decide`] finds the
//! communities of classes, and from them the configuration; [`Evidence::score`] judges a configuration. docs/evidence.md
//! describes the table. There are no addresses in it, and no names but those of cells, cgroups and threads.
//!
//! This module does no I/O but that of [`mod@file`], which reads and writes the table as Parquet.

mod decide;
mod fading;
#[cfg(feature = "parquet")]
pub mod file;
mod fold;
#[cfg(feature = "parquet")]
mod footer;
mod hosts;
mod key;
mod link;
mod page;
#[cfg(feature = "parquet")]
mod pages;
mod report;
mod rows;
mod score;
#[cfg(feature = "parquet")]
mod thrift;
mod totals;

pub use decide::{FleetDecision, FleetError};
pub use fading::{FadingEvidence, Interval, WatchError, MAX_CONFIGURATION};
pub use fold::{FoldError, Folds};
pub(crate) use hosts::part_of;
pub use hosts::{HostReport, PARTS};
pub use key::{Class, Key, RowKind, Scope, KEY_NUMBERS, KEY_TEXTS};
pub use page::fleet_page;
pub use report::{ClassReport, CommunityReport, FleetReport, PairReport};
pub use rows::{Evidence, EvidenceError, Sum, Sums, MEMORY, VERSION};
pub use score::{Avoided, Judge};
