//! The sink from which a configuration is computed: counts of samples by cell and thread, and the sketch, each within bounds; then the
//! decision, its report, its score and its evidence.

mod across;
mod decided;
#[allow(clippy::module_inception)]
mod decider;
mod evidence;
mod judge;
mod matrix;
mod memory;
mod other_cells;
mod over_time;
mod report;
mod score;
mod timeline;
mod times;
mod wakeups;
mod ways;

#[cfg(test)]
mod evidence_tests;
#[cfg(test)]
mod tests;

pub(crate) use decided::Decided;
pub use decider::Decider;
