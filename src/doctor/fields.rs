//! The fields of samples here.

use super::{Check, Section, Trial};
use crate::sampler::attr::Feature;

/// A feature's row, and its use.
const ROWS: [(Feature, &str, &str); 6] = [
    (Feature::PhysAddr, "phys", "physical addresses"),
    (Feature::DataPageSize, "page-size", "the size of the page"),
    (Feature::Cgroup, "cgroup", "the cgroup at the time of the access"),
    (Feature::WeightStruct, "latency", "the parts of the latency, where the source has one"),
    (Feature::Kernel, "kernel", "events in kernel code"),
    (Feature::FormatLost, "lost-counts", "lost samples are counted for each event"),
];

pub(super) fn checks(trials: &[Trial]) -> Vec<Check> {
    let mut checks: Vec<_> = ROWS.iter().map(|&(feature, name, what)| field(trials, feature, name, what)).collect();
    let clock = "clock";
    checks.push(if trials.iter().any(|trial| trial.attempt().is_some()) {
        Check::works(Section::Fields, clock, "CLOCK_MONOTONIC in every record (attr.use_clockid)")
    } else {
        Check::not_tested(Section::Fields, clock, "no source works")
    });
    checks
}

/// The result of the first source that can have the feature.
fn field(trials: &[Trial], feature: Feature, name: &'static str, what: &str) -> Check {
    for trial in trials {
        let Some(attempt) = trial.attempt() else { continue };
        if let Some(refused) = attempt.refused.iter().find(|refused| refused.feature == feature) {
            return Check::fails(Section::Fields, name, refused.why()).help(refused.help());
        }
        if attempt.features.has(feature) {
            return Check::works(Section::Fields, name, format!("{what} ({})", trial.source));
        }
    }
    Check::not_tested(Section::Fields, name, "no source that could carry it works")
}
