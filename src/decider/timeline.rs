//! Samples of subcells over time, for a report.

use super::decider::Decider;
use super::matrix::subcells;
use crate::report::{Report, SubcellTimeline, TimelineReport};
use crate::timeline::{Moment, Timeline};

impl Decider {
    /// The samples of the subcells in `report` over time, beside what the session counted.
    pub(crate) fn timeline(&self, report: &Report, timeline: &Timeline) -> TimelineReport {
        let names: Vec<String> =
            report.cells.iter().flat_map(|cell| cell.subcells.iter().map(|subcell| cell.path_of(subcell))).collect();
        let of_thread = subcells(report);
        let label = |name: &String| names.iter().position(|it| it == name);
        let labels = self.facts.iter().map(|facts| of_thread.get(&(facts.tid, facts.hint)).and_then(label));
        let labels: Vec<Option<usize>> = labels.collect();
        let mut samples = self.over_time.by_label(&labels, names.len());
        let mut moments = timeline.moments.clone();
        samples.align(&mut moments);
        let is_counted = !moments.values().is_empty();
        let (mut first, mut end) = samples.range();
        if is_counted {
            let of_moments = moments.range();
            (first, end) = (first.min(of_moments.0), end.max(of_moments.1));
        }
        let counts = |of: fn(&Moment) -> u64| {
            let range = if is_counted { first..end } else { 0..0 };
            range.map(|number| moments.get(number).map_or(0, of)).collect()
        };
        let of_label = |label: usize| {
            let at = |number| samples.get(number).and_then(|it| it.0.get(label)).copied().unwrap_or(0.0);
            (first..end).map(|number| (at(number) * 1000.0).round() / 1000.0).collect()
        };
        let named = names.iter().enumerate();
        TimelineReport {
            step_ns: samples.step(),
            begin_ns: first.saturating_mul(samples.step()),
            records: counts(|moment| moment.records),
            located: counts(|moment| moment.located),
            lost: counts(|moment| moment.lost),
            subcells: named
                .map(|(label, name)| SubcellTimeline { name: name.clone(), samples: of_label(label) })
                .collect(),
        }
    }
}
