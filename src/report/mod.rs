//! The report of a decision: the facts behind each subcell, as `--report FILE` writes it. docs/report.md has the schema.

mod across;
mod answer;
mod configured;
mod diff;
mod false_sharing;
mod hot_lines;
pub mod html;
mod make;
mod matrix;
mod memory;
mod model;
mod prometheus;
mod run;
mod scheduling;
pub mod score;
mod sharing_csv;
mod stacks;
pub(crate) mod summary;
mod text;
mod wakeups;

pub use across::CellSharing;
pub use answer::answer;
pub use diff::{Difference, SubcellDifference, ThreadMove};
pub use hot_lines::hot_lines;
pub use make::ReportError;
pub(crate) use make::{report, CommunityEvidence, Evidence};
pub use matrix::{Matrix, MatrixLeftOut, MatrixLine, MatrixPage, MatrixRegion, MatrixThread};
pub use memory::{Code, DataSymbol, Granule, Identity, LineThread, RegionReport};
pub use model::{CellReport, Report, Shared, SubcellKind, SubcellReport, ThreadReport, TimeReport, VERSION};
pub use prometheus::{prometheus, RunFacts};
pub use run::{Configuration, RecoveryReport, RunReport, SubcellTimeline, TimelineReport, UnresolvedPlaceReport};
pub use scheduling::{SchedulingReport, SubcellScheduling, WakeupsBetween};
pub use sharing_csv::sharing_csv;
pub use stacks::{StacksReport, SubcellStacks};
pub(crate) use summary::summary;
pub use text::{matrix, table};
pub use wakeups::{WakeupReport, Within};

pub use crate::cluster::LineSharing;
pub use crate::config::CellName;
