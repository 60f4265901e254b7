//! The fields that samples can contain on this host.

use super::check::{Check, Section};
use super::trial::Trial;
use crate::sample::Source;
use crate::sampler::attr::Feature;
use crate::sampler::SamplerError;

/// The row of each feature, and its use.
const ROWS: [(Feature, &str, &str); 6] = [
    (Feature::PhysAddr, "phys", "physical addresses"),
    (Feature::DataPageSize, "page-size", "the size of the page"),
    (Feature::Cgroup, "cgroup", "the cgroup at the time of the access"),
    (Feature::WeightStruct, "latency", "the parts of the latency"),
    (Feature::Kernel, "kernel", "events in kernel code"),
    (Feature::FormatLost, "lost-counts", "lost samples are counted for each event"),
];

pub(super) fn checks(trials: &[Trial]) -> Vec<Check> {
    let all: Vec<_> = trials.iter().collect();
    // The kernel accepts this field for any event, but only these sources fill it.
    let latency: Vec<_> =
        trials.iter().filter(|trial| matches!(trial.source, Source::Pebs | Source::Ibs | Source::Spe)).collect();
    let no_pmu = |trial: &&Trial| {
        use SamplerError as E;
        matches!(trial.host, Err(E::NoPebs(_) | E::NoIbs(_) | E::NoSpe(_) | E::Architecture { .. }))
    };
    let row = |&(feature, name, what): &(Feature, &'static str, &str)| match feature {
        Feature::WeightStruct if latency.iter().all(no_pmu) => {
            Check::fails(Section::Fields, name, "no memory PMU here: only pebs, ibs and spe have a latency")
        }
        Feature::WeightStruct => field(&latency, feature, name, what),
        _ => field(&all, feature, name, what),
    };
    let mut checks: Vec<_> = ROWS.iter().map(row).collect();
    let clock = "clock";
    checks.push(if trials.iter().any(|trial| trial.attempt().is_some()) {
        Check::works(Section::Fields, clock, "CLOCK_MONOTONIC in every record (attr.use_clockid)")
    } else {
        Check::not_tested(Section::Fields, clock, "no source works")
    });
    checks
}

/// The result of the first source that can have the feature.
fn field(trials: &[&Trial], feature: Feature, name: &'static str, what: &str) -> Check {
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
