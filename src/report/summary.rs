//! The summary: the counts of samples, as the text that `-v` and `-vv` print.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::config::{CellSpecs, Tally};
use crate::sample::Comm;

/// Names below this share of their cell spec's samples are only counted, unless `all` are requested.
const SMALL: f64 = 0.01;

/// The counts of samples: the total, each cell spec's share of it, and each name's share of its cell spec, most sampled first.
///
/// Names below 1 % are folded into one line unless `all` are requested (`-vv`). Weights are rounded to whole samples.
#[must_use]
pub fn summary(specs: &CellSpecs, tally: &Tally, all: bool) -> String {
    let total = tally.total();
    let mut text = format!("Total samples: {total:.0} with an address\n");
    for (index, spec) in specs.specs().iter().enumerate() {
        let in_spec = tally.spec_total(index);
        if in_spec <= 0.0 {
            continue;
        }
        let share = in_spec / total * 100.0;
        let _ = writeln!(text, "{}: {} samples ({share:.1}%)", spec.name, whole(in_spec));
        let mut counts: BTreeMap<Comm, f64> = BTreeMap::new();
        for (comm, _, count) in tally.names_of(index) {
            *counts.entry(comm).or_default() += count;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let mut folded = 0_usize;
        for (comm, count) in counts {
            let share = count / in_spec;
            if all || share >= SMALL {
                let _ = writeln!(text, "  {comm}: {} ({:.1}%)", whole(count), share * 100.0);
            } else {
                folded += 1;
            }
        }
        if folded > 0 {
            let _ = writeln!(text, "  ... {folded} more below 1%");
        }
        let cells = || tally.cells().filter(|(_, cell)| cell.spec == index);
        let unnamed: f64 = cells().map(|(_, cell)| cell.unnamed).sum();
        let untold: f64 = cells().map(|(_, cell)| cell.untold).sum();
        for (what, count) in [("threads without a known name", unnamed), ("names too many to count", untold)] {
            if count > 0.0 {
                let _ = writeln!(text, "  ({what}): {count:.0} ({:.1}%)", count / in_spec * 100.0);
            }
        }
    }
    text
}

/// A weight in whole samples; a fraction of one is not shown as none.
fn whole(weight: f64) -> String {
    if weight > 0.0 && weight < 0.5 {
        return "less than 1".to_owned();
    }
    format!("{weight:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cell_specs::CellOptions;

    #[test]
    fn small_names_are_folded_unless_all_are_wanted() {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let mut tally = Tally::new(6);
        let one = tally.cell(specs.assign(b"/workload-tw-1.allotment.slice"));
        let two = tally.cell(specs.assign(b"/workload-tw-2.allotment.slice"));
        let root = tally.cell(specs.assign(b"/x"));
        for (cell, name, count) in
            [(one, "web", 500.0), (two, "web", 300.0), (one, "a b", 194.0), (one, "x\n", 2.0), (two, "y", 4.0)]
        {
            tally.add(cell, Some(name.into()), count);
        }
        tally.add(root, Some("init".into()), 800.0);
        tally.add(root, None, 100.0);
        tally.add(root, Some("late".into()), 100.0);
        let head = "Total samples: 2000 with an address\nallotment: 1000 samples (50.0%)\n  web: 800 (80.0%)\n  a b: 194 (19.4%)\n";
        let tail = "rest: 1000 samples (50.0%)\n  init: 800 (80.0%)\n  (threads without a known name): 100 (10.0%)\n  \
                    (names too many to count): 100 (10.0%)\n";
        assert_eq!(summary(&specs, &tally, false), format!("{head}  ... 2 more below 1%\n{tail}"));
        assert_eq!(summary(&specs, &tally, true), format!("{head}  y: 4 (0.4%)\n  x\\x0a: 2 (0.2%)\n{tail}"));
    }

    #[test]
    fn a_part_of_a_sample_is_not_none() {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let mut tally = Tally::new(6);
        let cell = tally.cell(specs.assign(b"/x"));
        tally.add(cell, Some("web".into()), 0.25);
        assert!(summary(&specs, &tally, true).contains("  web: less than 1 (100.0%)\n"));
    }

    #[test]
    fn nothing_is_a_total_of_nothing() {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        assert_eq!(summary(&specs, &Tally::default(), true), "Total samples: 0 with an address\n");
    }
}
