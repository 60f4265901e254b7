//! The differences of two decisions, by their reports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use serde::Serialize;

use super::false_sharing::by_code;
use super::model::{Report, SubcellReport};
use scxprof_base::escape;

/// The differences of two decisions, with the figures of both. As in a report, parts are fractions from 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Difference {
    /// True if both make the same cells and subcells and put threads of the same names into them. Figures are not compared.
    pub same: bool,
    /// Samples, before and after.
    pub samples: [f64; 2],
    /// [`Report::locality`], before and after.
    pub locality: [Option<f64>; 2],
    /// Cells that only the second one has.
    pub cells_added: Vec<String>,
    /// Cells that only the first one has.
    pub cells_removed: Vec<String>,
    /// The subcells of both, in the order of the second one, then those that are gone.
    pub subcells: Vec<SubcellDifference>,
    /// Threads of one name in one cell that are in other subcells than before.
    pub threads: Vec<ThreadMove>,
    /// False sharing that only the first one has, as a sentence for each line; known by its code and its variable.
    pub false_sharing_gone: Vec<String>,
    /// The same that only the second one has.
    pub false_sharing_new: Vec<String>,
    /// The same that both have, as the second one has it.
    pub false_sharing_kept: Vec<String>,
}

/// A subcell before and after.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SubcellDifference {
    /// Its cell.
    pub cell: String,
    /// Its name.
    pub subcell: String,
    /// Its name in the first one, if that was another: more than half of the thread names of both are in both.
    pub renamed_from: Option<String>,
    /// `added`, `removed`, `changed` (it matches other threads, or is renamed) or `same`.
    pub change: &'static str,
    /// Before; `null` if it was added.
    pub before: Option<SubcellFacts>,
    /// After; `null` if it was removed.
    pub after: Option<SubcellFacts>,
}

/// The compared properties of a subcell, as in its [`SubcellReport`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SubcellFacts {
    /// Its `matches`.
    pub prefixes: Vec<Vec<String>>,
    /// Its part of all samples.
    pub share: f64,
    /// The part of the avoidable misses that it avoids.
    pub locality: Option<f64>,
    /// The confidence in its communities.
    pub confidence: Option<f64>,
}

/// Threads of one name that moved to other subcells.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ThreadMove {
    /// Their cell.
    pub cell: String,
    /// Their name.
    pub comm: String,
    /// The subcells that they were in.
    pub before: Vec<String>,
    /// Those that they are in.
    pub after: Vec<String>,
}

impl SubcellFacts {
    fn new(subcell: &SubcellReport) -> Self {
        let SubcellReport { prefixes, share, locality, confidence, .. } = subcell;
        Self { prefixes: prefixes.clone(), share: *share, locality: *locality, confidence: *confidence }
    }
}

/// A cell and a subcell, or a cell and a thread's name.
type Key<'a> = (&'a str, &'a str);

/// The subcells, by cell and name.
fn subcells(report: &Report) -> BTreeMap<Key<'_>, &SubcellReport> {
    let cells = report.cells.iter();
    cells.flat_map(|cell| cell.subcells.iter().map(|it| ((cell.name.as_str(), it.name.as_str()), it))).collect()
}

/// The subcells that threads of each name are in, by cell; where `renamed` has one, by its new name.
fn names<'a>(report: &'a Report, renamed: &BTreeMap<Key<'a>, &'a str>) -> BTreeMap<Key<'a>, BTreeSet<&'a str>> {
    let mut names: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
    for ((cell, name), subcell) in subcells(report) {
        let name = renamed.get(&(cell, name)).copied().unwrap_or(name);
        for comm in comms(subcell) {
            names.entry((cell, comm)).or_default().insert(name);
        }
    }
    names
}

fn comms(subcell: &SubcellReport) -> BTreeSet<&str> {
    subcell.threads.iter().filter_map(|thread| thread.comm.as_deref()).collect()
}

/// The new names of subcells, which are made of what is in them: more than half of the thread names are in both, so that no two
/// have one new name.
fn renamed<'a>(
    old: &BTreeMap<Key<'a>, &'a SubcellReport>,
    new: &BTreeMap<Key<'a>, &'a SubcellReport>,
) -> BTreeMap<Key<'a>, &'a str> {
    let added = || new.iter().filter(|(key, _)| !old.contains_key(*key));
    let gone = old.iter().filter(|(key, _)| !new.contains_key(*key));
    let renamed = gone.filter_map(|(&(cell, name), was)| {
        let was = comms(was);
        let is_it = |is: &BTreeSet<&str>| was.intersection(is).count() * 2 > was.union(is).count();
        let (&(_, is), _) = added().find(|(key, is)| key.0 == cell && is_it(&comms(is)))?;
        Some(((cell, name), is))
    });
    renamed.collect()
}

impl Difference {
    /// Compares two reports. Threads are compared by cell and name, as tids differ between runs; names of one run alone are ignored.
    #[must_use]
    pub fn new(before: &Report, after: &Report) -> Self {
        let cells = [before, after].map(|it| it.cells.iter().map(|cell| cell.name.as_str()).collect::<Vec<_>>());
        let only = |a: &[&str], b: &[&str]| -> Vec<String> {
            a.iter().filter(|name| !b.contains(name)).map(|&name| name.to_owned()).collect()
        };
        let [old, new] = [before, after].map(subcells);
        let renames = renamed(&old, &new);
        let mut compared = Vec::new();
        for cell in &after.cells {
            for subcell in &cell.subcells {
                let key = (cell.name.as_str(), subcell.name.as_str());
                let renamed_from =
                    renames.iter().find(|((cell, _), is)| (*cell, **is) == key).map(|((_, was), _)| *was);
                let was = old.get(&(key.0, renamed_from.unwrap_or(key.1)));
                let change = match was {
                    None => "added",
                    Some(was) if renamed_from.is_some() || was.prefixes != subcell.prefixes => "changed",
                    Some(_) => "same",
                };
                compared.push(SubcellDifference {
                    cell: cell.name.clone(),
                    subcell: subcell.name.clone(),
                    renamed_from: renamed_from.map(ToOwned::to_owned),
                    change,
                    before: was.map(|was| SubcellFacts::new(was)),
                    after: Some(SubcellFacts::new(subcell)),
                });
            }
        }
        for (&(cell, name), subcell) in
            old.iter().filter(|(key, _)| !new.contains_key(*key) && !renames.contains_key(*key))
        {
            compared.push(SubcellDifference {
                cell: cell.to_owned(),
                subcell: name.to_owned(),
                renamed_from: None,
                change: "removed",
                before: Some(SubcellFacts::new(subcell)),
                after: None,
            });
        }
        let (old, new) = (names(before, &renames), names(after, &BTreeMap::new()));
        let owned = |names: &BTreeSet<&str>| names.iter().map(|&name| name.to_owned()).collect();
        let moved = old.iter().filter_map(|(&(cell, comm), was)| {
            let is = new.get(&(cell, comm)).filter(|is| *is != was)?;
            Some(ThreadMove { cell: cell.to_owned(), comm: comm.to_owned(), before: owned(was), after: owned(is) })
        });
        let threads: Vec<ThreadMove> = moved.collect();
        let [was, is] = &cells;
        let (cells_added, cells_removed) = (only(is, was), only(was, is));
        let [gone, come] = [before, after].map(by_code);
        let sentences =
            |of: &BTreeMap<(String, String), String>, others: &BTreeMap<(String, String), String>, is_in: bool| {
                of.iter()
                    .filter(|(key, _)| others.contains_key(*key) == is_in)
                    .map(|(_, sentence)| sentence.clone())
                    .collect()
            };
        Self {
            same: compared.iter().all(|it| it.change == "same")
                && threads.is_empty()
                && cells_added.is_empty()
                && cells_removed.is_empty(),
            samples: [before.samples, after.samples],
            locality: [before.locality, after.locality],
            cells_added,
            cells_removed,
            subcells: compared,
            threads,
            false_sharing_gone: sentences(&gone, &come, false),
            false_sharing_new: sentences(&come, &gone, false),
            false_sharing_kept: sentences(&come, &gone, true),
        }
    }

    /// As JSON.
    ///
    /// # Errors
    /// None with these types; `serde_json` requires the result.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|text| escape::json(text) + "\n")
    }
}

/// A part in percent, before and after.
fn percents([before, after]: [Option<f64>; 2]) -> String {
    pair([before, after], |part| format!("{:.1}%", part * 100.0))
}

fn pair(values: [Option<f64>; 2], text: impl Fn(f64) -> String) -> String {
    let [before, after] = values.map(|value| value.map_or("-".to_owned(), &text));
    if before == after {
        before
    } else {
        format!("{before} -> {after}")
    }
}

impl fmt::Display for Difference {
    /// For people, as lines. A line of a subcell begins with `+`, `-`, `~` (it matches other threads) or a blank.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [before, after] = self.samples;
        writeln!(f, "Samples: {before:.0} -> {after:.0}")?;
        writeln!(f, "Locality captured: {}", percents(self.locality))?;
        for (sign, cells) in [('+', &self.cells_added), ('-', &self.cells_removed)] {
            for cell in cells {
                writeln!(f, "{sign} cell {cell}")?;
            }
        }
        for subcell in &self.subcells {
            let sign = match subcell.change {
                "added" => '+',
                "removed" => '-',
                "changed" => '~',
                _ => ' ',
            };
            let of = |what: fn(&SubcellFacts) -> Option<f64>| match [&subcell.before, &subcell.after]
                .map(|it| it.as_ref().map(what))
            {
                [Some(before), Some(after)] => [before, after],
                [Some(one), None] | [None, Some(one)] => [one, one],
                [None, None] => [None, None],
            };
            let renamed = subcell.renamed_from.as_ref().map_or(String::new(), |was| format!(" (renamed from {was})"));
            let mut line = format!(
                "{sign} {}/{}{renamed}: {} of the samples, locality {}, confidence {}",
                subcell.cell,
                subcell.subcell,
                percents(of(|it| Some(it.share))),
                percents(of(|it| it.locality)),
                // As the table has it.
                pair(of(|it| it.confidence), |confidence| format!("{confidence:.2}"))
            );
            if subcell.change != "same" {
                let matches = [&subcell.before, &subcell.after].map(|it| it.as_ref().map(|it| matches(&it.prefixes)));
                let _ = match matches {
                    [Some(before), Some(after)] => write!(line, "; matches {before} -> {after}"),
                    [Some(one), None] | [None, Some(one)] => write!(line, "; matches {one}"),
                    [None, None] => Ok(()),
                };
            }
            writeln!(f, "{line}")?;
        }
        for ThreadMove { cell, comm, before, after } in &self.threads {
            writeln!(f, "> threads \"{comm}\" of {cell}: {} -> {}", before.join(", "), after.join(", "))?;
        }
        let lines = [
            ("Gone", &self.false_sharing_gone),
            ("New", &self.false_sharing_new),
            ("In both", &self.false_sharing_kept),
        ];
        for (what, sentences) in lines {
            for sentence in sentences {
                writeln!(f, "{what}: {sentence}")?;
            }
        }
        if self.same {
            writeln!(f, "The decisions are the same.")?;
        }
        Ok(())
    }
}

/// The lists of prefixes; one of them must hold.
fn matches(prefixes: &[Vec<String>]) -> String {
    if prefixes.is_empty() {
        return "the rest".to_owned();
    }
    prefixes.iter().map(|all| all.join(" and ")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::text::tests::made;

    #[test]
    fn one_decision_is_the_same_whatever_its_figures() {
        let before = made();
        let mut after = made();
        after.samples *= 2.0;
        after.locality = Some(0.5);
        for subcell in after.cells.iter_mut().flat_map(|cell| &mut cell.subcells) {
            subcell.threads.iter_mut().for_each(|thread| thread.tid += 1000);
            subcell.share /= 2.0;
        }
        let difference = Difference::new(&before, &after);
        assert!(difference.same, "{difference}");
        let text = difference.to_string();
        assert!(text.contains("Locality captured: 90.0% -> 50.0%\n"), "{text}");
        assert!(text.ends_with("The decisions are the same.\n"), "{text}");
        // A thread that only one of them saw is no difference.
        after.cells[0].subcells[0].threads.truncate(1);
        assert!(Difference::new(&before, &after).same);
    }

    #[test]
    fn false_sharing_that_was_mended_is_said() {
        let before = made();
        let mut after = made();
        after.lines.clear();
        let text = Difference::new(&before, &after).to_string();
        assert!(text.contains("\nGone: False sharing: writer writes bytes 8-15, and "), "{text}");
        assert!(Difference::new(&after, &before).to_string().contains("\nNew: False sharing: writer writes "));
        // In another run, threads have other numbers, and the heap other addresses.
        let mut again = made();
        again.lines[0].memory = "[heap] pid 7 0x1000".to_owned();
        again.lines[0].by_thread.iter_mut().for_each(|thread| thread.tid += 1000);
        for thread in again.cells.iter_mut().flat_map(|cell| &mut cell.subcells).flat_map(|it| &mut it.threads) {
            thread.tid += 1000;
        }
        let difference = Difference::new(&before, &again);
        assert!(difference.false_sharing_kept.len() == 1 && difference.same, "{difference}");
        assert!(difference.false_sharing_gone.is_empty() && difference.false_sharing_new.is_empty(), "{difference}");
    }

    #[test]
    fn what_came_went_and_moved_is_said() {
        let before = made();
        let mut after = made();
        let subcells = &mut after.cells[0].subcells;
        let moved = subcells[2].threads.remove(0);
        subcells[1].threads.push(moved);
        subcells[1].prefixes.push(vec!["lone".to_owned()]);
        subcells.remove(2);
        let mut added = subcells[0].clone();
        added.name = "new".to_owned();
        added.threads.clear();
        subcells.insert(2, added);
        after.cells.push(before.cells[0].clone());
        after.cells[1].name = "second".to_owned();
        let difference = Difference::new(&before, &after);
        assert!(!difference.same);
        let changes: Vec<_> = difference.subcells.iter().map(|it| (it.subcell.as_str(), it.change)).collect();
        assert_eq!(
            changes[..4],
            [("reader-a+writer-a", "same"), ("reader-b+writer-b", "changed"), ("new", "added"), ("rest", "same")]
        );
        assert_eq!(changes.last(), Some(&("lone\\x0a", "removed")));
        assert_eq!(difference.cells_added, ["second"]);
        let moved = ThreadMove {
            cell: "allotment".to_owned(),
            comm: "lone\\x0a".to_owned(),
            before: vec!["lone\\x0a".to_owned()],
            after: vec!["reader-b+writer-b".to_owned()],
        };
        assert_eq!(difference.threads, [moved]);
        let text = difference.to_string();
        for line in [
            "+ cell second\n",
            "\n~ allotment/reader-b+writer-b: ",
            "\n+ allotment/new: 39.9% of the samples, locality 60.0%, confidence 0.80; matches ",
            "\n- allotment/lone\\x0a: ",
            "\n> threads \"lone\\x0a\" of allotment: lone\\x0a -> reader-b+writer-b\n",
        ] {
            assert!(text.contains(line), "{line:?} is missing:\n{text}");
        }
        // A name that joins gives the subcell another name, and does not move the threads that were there.
        let mut joined = made();
        let subcells = &mut joined.cells[0].subcells;
        let moved = subcells.remove(2).threads;
        subcells[0].threads.extend(moved);
        subcells[0].name = "lone+reader-a+writer-a".to_owned();
        let difference = Difference::new(&before, &joined);
        assert_eq!(difference.subcells[0].renamed_from.as_deref(), Some("reader-a+writer-a"));
        assert_eq!(difference.threads.len(), 1, "{difference}");
        assert_eq!(difference.threads[0].after, ["lone+reader-a+writer-a"]);
        assert!(difference
            .to_string()
            .contains("~ allotment/lone+reader-a+writer-a (renamed from reader-a+writer-a): "));
        // The other way round.
        let back = Difference::new(&after, &before);
        assert_eq!(back.cells_removed, ["second"]);
        assert!(!back.same);
    }
}
