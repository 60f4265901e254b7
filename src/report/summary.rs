//! The summary: the counts of samples, as the text that `-v` and `-vv` print.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::config::tally::{CellIndex, CellTally};
use crate::config::{CellSpecs, Tally};
use crate::sample::Comm;

/// Names below this share of their cell spec's samples are only counted, unless `all` are requested.
const SMALL: f64 = 0.01;

/// The counts of samples: the total, each cell spec's share of it, and each name's share of its cell spec, most sampled first. Each
/// allotment has a line of its own, as scx_characterize prints them.
///
/// Names below 1 % are folded into one line unless `all` are requested (`-vv`). Weights are rounded to whole samples.
#[must_use]
pub fn summary(specs: &CellSpecs, tally: &Tally, all: bool) -> String {
    let total = tally.total();
    let mut text = format!("Total samples: {total:.0} with an address\n");
    for spec in 0..specs.specs().len() {
        let mut groups: BTreeMap<String, Vec<CellIndex>> = BTreeMap::new();
        for (index, cell) in tally.cells().filter(|(_, cell)| cell.spec == spec) {
            groups.entry(specs.group(spec, cell.cgroup.as_deref())).or_default().push(index);
        }
        let names = tally.names_of(spec);
        for (name, cells) in groups {
            add_group(&mut text, tally, &name, &cells, &names, all);
        }
    }
    text
}

/// Adds cells that have one name in the summary; `names` has the names of their cell spec.
fn add_group(
    text: &mut String,
    tally: &Tally,
    group: &str,
    cells: &[CellIndex],
    names: &[(Comm, CellIndex, f64)],
    all: bool,
) {
    let of_cells = |of: fn(&CellTally) -> f64| cells.iter().filter_map(|cell| tally.get(*cell)).map(of).sum::<f64>();
    let in_group = of_cells(|cell| cell.total);
    let percent = |count: f64, of: f64| 100.0 * count / of;
    let _ = writeln!(text, "{group}: {} samples ({:.2}%)", whole(in_group), percent(in_group, tally.total()));
    let mut counts: BTreeMap<Comm, f64> = BTreeMap::new();
    for (comm, _, count) in names.iter().filter(|(_, cell, _)| cells.contains(cell)) {
        *counts.entry(*comm).or_default() += count;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let mut folded = 0_usize;
    for (comm, count) in counts {
        if all || count / in_group >= SMALL {
            let _ = writeln!(text, "  {comm}: {} ({:.2}%)", whole(count), percent(count, in_group));
        } else {
            folded += 1;
        }
    }
    if folded > 0 {
        let _ = writeln!(text, "  ... {folded} more below 1%");
    }
    let (unnamed, untold) = (of_cells(|cell| cell.unnamed), of_cells(|cell| cell.untold));
    for (what, count) in [("threads without a known name", unnamed), ("names too many to count", untold)] {
        if count > 0.0 {
            let _ = writeln!(text, "  ({what}): {count:.0} ({:.2}%)", percent(count, in_group));
        }
    }
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
        let head = "Total samples: 2000 with an address\nworkload-tw-1.allotment.slice: 696 samples (34.80%)\n  web: 500 (71.84%)\n  \
                    a b: 194 (27.87%)\n";
        let second = "workload-tw-2.allotment.slice: 304 samples (15.20%)\n  web: 300 (98.68%)\n  y: 4 (1.32%)\n";
        let tail =
            "rest: 1000 samples (50.00%)\n  init: 800 (80.00%)\n  (threads without a known name): 100 (10.00%)\n  \
                    (names too many to count): 100 (10.00%)\n";
        assert_eq!(summary(&specs, &tally, false), format!("{head}  ... 1 more below 1%\n{second}{tail}"));
        assert_eq!(summary(&specs, &tally, true), format!("{head}  x\\x0a: 2 (0.29%)\n{second}{tail}"));
    }

    #[test]
    fn an_allotment_is_called_as_its_expression_matches_it() {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let mut tally = Tally::default();
        for path in [
            "/a/workload-tw-x.allotment.slice/web",
            "/b/workload-tw-x.allotment.slice",
            "/workload-tw-9.allotment.slice/y",
        ] {
            let cell = tally.cell(specs.assign(path.as_bytes()));
            tally.add(cell, Some("web".into()), 1.0);
        }
        let text = summary(&specs, &tally, false);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(" samples (")).collect();
        assert_eq!(
            lines,
            ["workload-tw-9.allotment.slice: 1 samples (33.33%)", "workload-tw-x.allotment.slice: 2 samples (66.67%)"]
        );
    }

    #[test]
    fn a_part_of_a_sample_is_not_none() {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let mut tally = Tally::new(6);
        let cell = tally.cell(specs.assign(b"/x"));
        tally.add(cell, Some("web".into()), 0.25);
        assert!(summary(&specs, &tally, true).contains("  web: less than 1 (100.00%)\n"));
    }

    #[test]
    fn nothing_is_a_total_of_nothing() {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        assert_eq!(summary(&specs, &Tally::default(), true), "Total samples: 0 with an address\n");
    }
}
