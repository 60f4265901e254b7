//! The memory that cells share with each other, for people: their names, the memory, and how they become one cell.

use super::decided::Decided;
use super::decider::Decider;
use super::memory::MemoryNames;
use super::other_cells::OtherCells;
use crate::cluster::across::{Across, CellPair};
use crate::config::{CellIndex, InCell, Note, OneCell, Scheduler};
use crate::report::{CellName, CellSharing};
use crate::resolve::Symbols;

/// Pairs of cells that have a note each.
const NOTES: usize = 3;
/// Ways to make one cell of two that are compared with the cells as they are.
const CHECKED: usize = 4;

impl Decider {
    /// The notes on the cells that share most.
    pub(super) fn across_notes(&self, across: &Across, one_cells: &[Option<OneCell>]) -> Vec<Note> {
        let named = |(pair, one_cell): (&CellPair, &Option<OneCell>)| {
            let cells = [self.cell_name(pair.smaller)?, self.cell_name(pair.larger)?];
            Some(Note::AcrossCells { cells, part: pair.part, one_cell: one_cell.clone()? })
        };
        let mut notes: Vec<Note> = across.pairs.iter().zip(one_cells).filter_map(named).take(NOTES).collect();
        let pairs = (across.pairs.len() + across.left_out).saturating_sub(notes.len());
        if notes.len() == NOTES && pairs > 0 {
            notes.push(Note::MoreAcrossCells { pairs });
        }
        notes
    }

    /// How the cells of each pair become one, if that is better.
    pub(super) fn one_cells(
        &self,
        across: &Across,
        scheduler: Scheduler,
        others: &OtherCells<'_>,
    ) -> Vec<Option<OneCell>> {
        let mut known: Vec<(OneCell, OneCell)> = Vec::new();
        let checked = |pair: &CellPair| {
            let one_cell = self.one_cell(pair, scheduler)?;
            if let Some((_, checked)) = known.iter().find(|it| it.0 == one_cell) {
                return Some(checked.clone());
            }
            // Each takes a decision.
            let checked = if known.len() < CHECKED { others.checked(one_cell.clone()) } else { OneCell::NotBetter };
            known.push((one_cell, checked.clone()));
            Some(checked)
        };
        across.pairs.iter().map(checked).collect()
    }

    /// What cells share, for a report.
    pub(crate) fn across_cells(&self, decided: &Decided, symbols: &Symbols) -> Vec<CellSharing> {
        let names = MemoryNames { decider: self, locations: &decided.locations, symbols };
        let named = |(pair, one_cell): (&CellPair, &Option<OneCell>)| {
            let one_cell = one_cell.as_ref()?;
            let pid = self.facts.get(pair.threads[0] as usize).map(|facts| facts.pid);
            let (memory, identity) = names.named(pair.memory, pid);
            Some(CellSharing {
                smaller: self.cell_name(pair.smaller)?,
                larger: self.cell_name(pair.larger)?,
                part: pair.part,
                misses: pair.misses,
                memory,
                identity,
                option: one_cell.given().map(str::to_owned),
                advice: one_cell.to_string(),
            })
        };
        decided.across.pairs.iter().zip(&decided.one_cells).filter_map(named).collect()
    }

    /// `None` for the entry of all cells beyond those that are distinguished.
    fn cell_name(&self, cell: CellIndex) -> Option<CellName> {
        let cell = self.tally.get(cell)?;
        let spec = self.specs.specs().get(cell.spec)?;
        Some(CellName::new(&spec.name, cell.cgroup.as_deref()?))
    }

    /// How both cells become one.
    fn one_cell(&self, pair: &CellPair, scheduler: Scheduler) -> Option<OneCell> {
        let in_cell = |(cell, thread): (CellIndex, u32)| {
            let cell = self.tally.get(cell)?;
            let cgroup = match cell.cgroup.as_deref()? {
                // Many cgroups are in the root's cell. The cgroup of the thread that shares most is used.
                [] => self.facts.get(thread as usize).map_or(&b"/"[..], |facts| self.path_of(facts)),
                cgroup => cgroup,
            };
            Some(InCell { spec: cell.spec, cgroup })
        };
        let [smaller, larger] = [(pair.smaller, pair.threads[0]), (pair.larger, pair.threads[1])].map(in_cell);
        Some(OneCell::new(&self.specs, [smaller?, larger?], scheduler))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::truth::Rng;
    use crate::config::{self, CellOptions, CellSpecs};
    use crate::resolve::Cgroups;
    use crate::sample::{Access, Comm, MemoryId, MemoryScope, RawSample, Sample, Source};
    use crate::sinks::Sink;

    /// One thread in each cgroup, which makes half of its stores to a file that all share, and its cell specs.
    fn decider(cgroups: &[&str], cells: &[&str]) -> Decider {
        let cells = cells.iter().map(|&cell| cell.to_owned()).collect();
        let specs = CellSpecs::new(&CellOptions { cells, ..CellOptions::default() }).unwrap();
        let mut decider = Decider::new(specs, Source::Timer, 12 << 20);
        let mut paths = Cgroups::recorded();
        for (id, path) in (1..).zip(cgroups) {
            paths.record(id, path.as_bytes());
        }
        let mut rng = Rng::new(5);
        for turn in 0..2000 * cgroups.len() {
            let thread = (turn % cgroups.len()) as u32;
            let offset = rng.below(4096) << 6;
            let memory = match rng.below(2) {
                0 => MemoryId::Shared { scope: MemoryScope::device(1, 0), ino: 2, offset },
                _ => MemoryId::Private { space: thread, addr: offset },
            };
            let (pid, cgroup) = (10 + thread, u64::from(thread) + 1);
            let sample = Sample {
                raw: RawSample { pid, tid: pid, cgroup, access: Access::Store, ..RawSample::default() },
                thread,
                comm: Some(Comm::from(format!("t{thread}x").as_str())),
                memory: Some(memory),
                ..Sample::default()
            };
            decider.sample(&sample, &mut paths);
        }
        decider
    }

    /// The pairs in the report, the notes on them, and the verdicts.
    fn told(decider: &Decider, scheduler: Scheduler) -> (Vec<CellSharing>, Vec<String>, Vec<String>) {
        let options = config::DecisionOptions { scheduler, ..config::DecisionOptions::new(0.05, 256) };
        let decided = decider.decide(&options).unwrap();
        let notes = decided.configuration().notes.iter().map(ToString::to_string).filter(|it| it.contains(" memory: "));
        let report = decider.report(&decided, &Symbols::default(), &options).unwrap();
        let threads = report.cells.iter().flat_map(|cell| &cell.subcells).flat_map(|subcell| &subcell.threads);
        let verdicts = threads.map(|thread| thread.verdict.clone()).collect();
        (report.across_cells.clone(), notes.collect(), verdicts)
    }

    #[test]
    fn what_two_cells_share_is_said_with_what_to_do() {
        let both = decider(&["/shop/a", "/shop/b"], &["a=/a$", "b=/b$"]);
        let (pairs, notes, verdicts) = told(&both, Scheduler::Mitosis);
        let [pair] = &pairs[..] else { panic!("{pairs:?}") };
        let mut cells = [pair.smaller.to_string(), pair.larger.to_string()];
        cells.sort();
        assert_eq!(cells, ["a of /shop/a", "b of /shop/b"]);
        assert!((0.15..0.5).contains(&pair.part) && pair.memory.contains(" 2 + 0x"), "{pair:?}");
        assert_eq!(pair.option.as_deref(), Some("shop=^/sys/fs/cgroup/shop$"));
        let [note] = &notes[..] else { panic!("{notes:?}") };
        let begin = format!("{} and {} share memory: one cache for both would avoid ", pair.smaller, pair.larger);
        assert!(note.starts_with(&begin) && note.contains("--cell 'shop=^/sys/fs/cgroup/shop$' before"), "{note}");
        assert_eq!(verdicts, ["shares with other cells"; 2]);
        // The note is right.
        let option = pair.option.clone().unwrap();
        let one = told(&decider(&["/shop/a", "/shop/b"], &[&option, "a=/a$", "b=/b$"]), Scheduler::Mitosis);
        assert_eq!((one.0, one.1, &one.2[0]), (Vec::new(), Vec::new(), &one.2[1]));
        assert!(one.2[0].starts_with("community"), "{:?}", one.2);
    }

    #[test]
    fn two_cgroups_of_one_cell_spec_are_two_cells() {
        let both = decider(&["/a/web1", "/b/web2"], &["web=/web[0-9]$"]);
        let (pairs, notes, _) = told(&both, Scheduler::Mitosis);
        assert_eq!((pairs.len(), pairs[0].smaller.name.as_str(), pairs[0].larger.name.as_str()), (1, "web", "web"));
        assert!(notes[0].ends_with("without the --cell \"web\" both are in the root's cell"), "{notes:?}");
        let (pairs, notes, _) = told(&both, Scheduler::Layered);
        assert_eq!(pairs[0].option, None);
        assert!(notes[0].ends_with("scx_layered has both in the layers of \"web\""), "{notes:?}");
    }

    #[test]
    fn the_root_s_cell_is_where_its_thread_is() {
        let both = decider(&["/shop/a", "/shop/other"], &["a=/a$"]);
        let (pairs, _, _) = told(&both, Scheduler::Mitosis);
        assert!(pairs[0].smaller.cgroup.is_none() || pairs[0].larger.cgroup.is_none(), "{pairs:?}");
        assert_eq!(pairs[0].option.as_deref(), Some("shop=^/sys/fs/cgroup/shop$"));
    }

    #[test]
    fn three_pairs_have_a_note_each() {
        let cgroups: Vec<String> = (0..5).map(|at| format!("/shop/x{at}")).collect();
        let cgroups: Vec<&str> = cgroups.iter().map(String::as_str).collect();
        let (pairs, notes, _) = told(&decider(&cgroups, &["x=/x[0-9]$"]), Scheduler::Mitosis);
        assert_eq!((pairs.len(), notes.len()), (10, 4), "{notes:?}");
        assert!(notes[3].starts_with("7 more pairs of cells share memory: "), "{notes:?}");
    }
}
