//! Layers: expresses cells and subcells for scx_layered.

use std::collections::BTreeSet;

use super::cell::{Basis, Cell, CATCH_ALL};
use super::decide::Decision;
use super::hints::{hinted, Hinted};
use super::layer_cgroups::{condition, piece};
use super::layered::{Layer, LayerKind, LayerMatch, MAX_ANDS, MAX_LAYERS, MAX_NAME, MAX_ORS, MAX_REGEXES};
use super::members::{CommunityIndex, Members};
use super::note::Note;

/// The layers of a decision.
#[derive(Debug, Clone, PartialEq)]
// Clippy looks at it only where no feature makes this module public.
#[allow(clippy::struct_field_names)]
pub struct Layers {
    /// In the scheduler's order; the last takes all other threads.
    pub layers: Vec<Layer>,
    /// The cell and the subcell of each, as their indices in the decision; no subcell for the rest of a cell, no cell if no
    /// cell takes everything.
    pub of: Vec<(Option<usize>, Option<usize>)>,
    /// Notes on what did not fit.
    pub notes: Vec<Note>,
}

/// Makes layers of cells and subcells.
///
/// If there are more than the scheduler takes, the least valuable subcells are left out, classes first; their threads stay with
/// the rest of the cell. If that is not enough, whole cells are left out, and later layers get their threads.
#[must_use]
pub fn layers(decision: &Decision) -> Layers {
    room_for(decision, &[])
}

/// The same if hints distinguish threads: threads are matched by hints if hints identify them, and by names otherwise.
///
/// A hint precedes all names and applies to every cgroup. A community gets a layer of hints alone if all its threads have hints
/// that no others have. If only some have, its layer matches either, if it has a subcell.
#[must_use]
pub fn layers_by_hint(decision: &Decision, members: &Members) -> Layers {
    let (hinted, notes) = hinted(members);
    let mut layers = room_for(decision, &hinted);
    layers.notes.extend(notes);
    layers
}

fn room_for(decision: &Decision, hinted: &[Hinted]) -> Layers {
    let mut without: BTreeSet<Key> = BTreeSet::new();
    let mut left_out = Vec::new();
    loop {
        let mut drafts = drafts(decision, hinted, &without, &BTreeSet::new());
        let unsure = if drafts.len() <= MAX_LAYERS { too_many_regexes(&drafts) } else { BTreeSet::new() };
        if !unsure.is_empty() {
            drafts = self::drafts(decision, hinted, &without, &unsure);
        }
        let regexes = drafts.iter().map(Draft::regexes).sum::<usize>();
        if drafts.len() <= MAX_LAYERS && regexes <= MAX_REGEXES {
            let names: Vec<String> =
                drafts.iter().filter(|it| unsure.contains(&it.key)).map(|it| it.name.clone()).collect();
            let mut layers = finish(drafts, left_out, decision.target_cpus);
            if !names.is_empty() {
                layers.notes.push(Note::UnsureLayers { layers: names });
            }
            return layers;
        }
        let spare = |draft: &&Draft| drafts.len() > MAX_LAYERS || draft.regexes() > 0;
        let subcells = drafts.iter().filter(spare).filter(|draft| draft.key.1.is_some());
        let least = subcells.min_by(|a, b| a.worth().partial_cmp(&b.worth()).unwrap_or(std::cmp::Ordering::Equal));
        // The last one is required.
        let cells = drafts.get(..drafts.len().saturating_sub(1)).unwrap_or_default();
        let Some(draft) = least.or_else(|| cells.iter().rfind(spare)) else {
            return finish(drafts, left_out, decision.target_cpus);
        };
        left_out.push(draft.name.clone());
        without.insert(draft.key);
    }
}

/// The layers that have `CgroupContains` in the place of expressions that are too many, the least valuable ones. Where scx_layered does
/// not find it, their threads stay with the rest of the cell, as if the layers were left out.
fn too_many_regexes(drafts: &[Draft]) -> BTreeSet<Key> {
    let mut uses: usize = drafts.iter().map(Draft::regexes).sum();
    let mut subcells: Vec<&Draft> = drafts.iter().filter(|draft| draft.key.1.is_some()).collect();
    subcells.sort_by(|a, b| a.worth().partial_cmp(&b.worth()).unwrap_or(std::cmp::Ordering::Equal));
    let mut unsure = BTreeSet::new();
    for draft in subcells {
        let conditions = draft.matches.iter().flatten();
        let pieces =
            conditions.filter(|it| matches!(it, LayerMatch::CgroupRegex(regex) if piece(regex).is_some())).count();
        if uses > MAX_REGEXES && pieces > 0 {
            uses -= pieces;
            unsure.insert(draft.key);
        }
    }
    unsure
}

/// The key of a left-out layer: its cell and its subcell, or [`BY_HINT`] and the index of its community.
type Key = (usize, Option<usize>);
const BY_HINT: usize = usize::MAX;

/// A layer that may still be left out.
struct Draft {
    key: Key,
    cell: Option<usize>,
    subcell: Option<usize>,
    name: String,
    matches: Vec<Vec<LayerMatch>>,
    basis: Basis,
}

impl Draft {
    fn regexes(&self) -> usize {
        self.matches.iter().flatten().filter(|it| matches!(it, LayerMatch::CgroupRegex(_))).count()
    }

    /// What would be lost without it; communities count more than classes.
    fn worth(&self) -> (bool, f64, f64) {
        (!self.basis.communities.is_empty(), self.basis.value, self.basis.samples)
    }
}

/// All layers but those left out; the unsure ones have `CgroupContains`.
fn drafts(decision: &Decision, hinted: &[Hinted], without: &BTreeSet<Key>, unsure: &BTreeSet<Key>) -> Vec<Draft> {
    let mut drafts = Vec::new();
    let mut last = Draft {
        key: (BY_HINT, None),
        cell: None,
        subcell: None,
        name: CATCH_ALL.to_owned(),
        matches: vec![Vec::new()],
        basis: Basis::default(),
    };
    for (index, (cell, bases)) in decision.cells.iter().zip(&decision.bases).enumerate() {
        if without.contains(&(index, None)) {
            continue;
        }
        let cgroup = condition(&cell.matches);
        divide((index, cell, bases), cgroup.as_ref(), (without, unsure), &mut drafts);
        let Some(cgroup) = cgroup else {
            (last.cell, last.name) = (Some(index), cell.name.clone());
            continue;
        };
        drafts.push(Draft {
            key: (index, None),
            cell: Some(index),
            subcell: None,
            name: cell.name.clone(),
            matches: vec![vec![cgroup]],
            basis: Basis::default(),
        });
    }
    drafts.push(last);
    by_hint(hinted, without, drafts)
}

/// The layers, preceded by those of hints.
fn by_hint(hinted: &[Hinted], without: &BTreeSet<Key>, mut drafts: Vec<Draft>) -> Vec<Draft> {
    let mut own = Vec::new();
    for (at, it) in hinted.iter().enumerate() {
        let key = (BY_HINT, Some(at));
        if without.contains(&key) {
            continue;
        }
        let hints = || it.values.iter().take(MAX_ORS / 2).map(|&hint| vec![LayerMatch::HintEquals(hint)]);
        let named = drafts.iter_mut().find(|draft| draft.basis.communities.contains(&it.community));
        if let (false, Some(named)) = (it.is_whole, named) {
            if named.basis.communities.len() == 1 && named.matches.len() <= MAX_ORS / 2 {
                named.matches.extend(hints());
                continue;
            }
        }
        let first = it.values.first().copied().unwrap_or(0);
        let basis = Basis { communities: vec![it.community], value: it.value, samples: it.samples, ..Basis::default() };
        own.push(Draft {
            key,
            cell: None,
            subcell: None,
            name: format!("hint-{first}"),
            matches: hints().collect(),
            basis,
        });
    }
    // A community that hints identify completely must not match names too, because others have these names.
    for draft in &mut drafts {
        let is_by_hint = |community: &CommunityIndex| hinted.iter().any(|it| it.is_whole && it.community == *community);
        let before = draft.basis.communities.len();
        draft.basis.communities.retain(|community| !is_by_hint(community));
        if before > 0 && draft.basis.communities.is_empty() {
            draft.matches.clear();
        }
    }
    drafts.retain(|draft| !draft.matches.is_empty());
    own.extend(drafts);
    own
}

/// The layers of a cell's subcells.
fn divide(
    (index, cell, bases): (usize, &Cell, &[Basis]),
    cgroup: Option<&LayerMatch>,
    (without, unsure): (&BTreeSet<Key>, &BTreeSet<Key>),
    drafts: &mut Vec<Draft>,
) {
    let contains = match cgroup {
        Some(LayerMatch::CgroupRegex(regex)) => piece(regex).map(LayerMatch::CgroupContains),
        _ => None,
    };
    // The prefixes of left-out and unsure subcells: no later one may take their threads.
    let mut gone: Vec<&String> = Vec::new();
    let subcells = cell.subcells.iter().zip(bases).enumerate().filter(|(_, (subcell, _))| !subcell.is_catch_all());
    for (at, (subcell, basis)) in subcells {
        let key = (index, Some(at));
        let prefixes = || subcell.matches.iter().filter_map(|ands| ands.iter().max_by_key(|it| it.len()));
        if without.contains(&key) {
            gone.extend(prefixes());
            continue;
        }
        let cgroup = contains.as_ref().filter(|_| unsure.contains(&key)).or(cgroup);
        let matches = subcell.matches.iter().filter_map(|ands| alternative(ands, cgroup, &gone)).collect();
        if unsure.contains(&key) {
            gone.extend(prefixes());
        }
        let name = format!("{}/{}", cell.name, subcell.name);
        drafts.push(Draft { key, cell: Some(index), subcell: Some(at), name, matches, basis: basis.clone() });
    }
    drafts.retain(|draft| !draft.matches.is_empty());
}

fn alternative(ands: &[String], cgroup: Option<&LayerMatch>, gone: &[&String]) -> Option<Vec<LayerMatch>> {
    let longest = ands.iter().max_by_key(|prefix| prefix.len())?;
    let mut conditions: Vec<LayerMatch> = cgroup.cloned().into_iter().collect();
    conditions.extend(ands.iter().map(|prefix| LayerMatch::CommPrefix(prefix.clone())));
    let mut beginnings: Vec<&String> = gone.iter().copied().filter(|it| it.starts_with(longest.as_str())).collect();
    beginnings.sort_unstable();
    beginnings.dedup_by(|later, kept| later.starts_with(kept.as_str()));
    conditions.extend(beginnings.into_iter().map(|it| LayerMatch::CommPrefixExclude(it.clone())));
    (conditions.len() <= MAX_ANDS).then_some(conditions)
}

fn finish(drafts: Vec<Draft>, left_out: Vec<String>, target_cpus: usize) -> Layers {
    let mut layers: Layers = Layers { layers: Vec::new(), of: Vec::new(), notes: Vec::new() };
    for Draft { cell, subcell, name, matches, basis, .. } in drafts {
        let kind = match matches.as_slice() {
            [ands] if ands.is_empty() => LayerKind::rest(target_cpus),
            _ if basis.communities.is_empty() => LayerKind::class(),
            _ => LayerKind::community(),
        };
        let name = free_name(&name, &layers.layers);
        layers.layers.push(Layer { name, template: None, matches, kind });
        layers.of.push((cell, subcell));
    }
    if !left_out.is_empty() {
        layers.notes.push(Note::TooManyLayers { left_out });
    }
    layers
}

/// The name truncated to the scheduler's limit, with a number if it is taken.
pub(super) fn free_name(name: &str, taken: &[Layer]) -> String {
    let cut = |end: &str| {
        let name = name.replace('\0', "");
        let room = (0..=MAX_NAME - end.len()).rev().find(|&at| name.is_char_boundary(at)).unwrap_or(0);
        format!("{}{end}", name.get(..room).unwrap_or(&name))
    };
    let numbered = (2_usize..).map(|number| cut(&format!("-{number}")));
    let free = |name: &String| !name.is_empty() && !taken.iter().any(|it| it.name == *name);
    std::iter::once(cut("")).chain(numbered).find(free).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::cell::CellMatch;
    use super::*;
    use crate::config::layered::Consumer;
    use crate::config::Task;
    use crate::host::facts::Tasks;

    /// The layer that takes a thread, if all undecided conditions are ignored.
    fn taker(consumer: &Consumer, task: &Task<'_>) -> usize {
        let takers = consumer.takers(task, &Tasks::default());
        assert_eq!(takers.maybe, [], "nothing is open");
        takers.otherwise.unwrap()
    }
    use crate::config::{Scheduler, Subcell};

    fn decision(cells: Vec<(CellMatch, Vec<(&str, f64)>)>) -> Decision {
        let mut decision = Decision {
            cells: Vec::new(),
            bases: Vec::new(),
            notes: Vec::new(),
            refused: None,
            caches: None,
            target_cpus: 8,
            scheduler: Scheduler::Layered,
        };
        for (matches, prefixes) in cells {
            let mut subcells: Vec<Subcell> = prefixes
                .iter()
                .map(|(prefix, _)| Subcell {
                    name: (*prefix).to_owned(),
                    matches: vec![vec![(*prefix).to_owned()]],
                    ..Subcell::default()
                })
                .collect();
            let basis = |value: f64| Basis { communities: vec![0], value, ..Basis::default() };
            let mut bases: Vec<Basis> = prefixes.iter().map(|(_, value)| basis(*value)).collect();
            if !subcells.is_empty() {
                subcells.push(Subcell::catch_all());
                bases.push(Basis::default());
            }
            let name = format!("cell{}", decision.cells.len());
            decision.cells.push(Cell { name, matches, subcells });
            decision.bases.push(bases);
        }
        decision
    }

    fn regex(regex: &str) -> CellMatch {
        CellMatch::CgroupRegex(regex.to_owned())
    }

    #[test]
    fn the_least_valuable_make_room_and_nobody_has_their_threads() {
        let names: Vec<String> = (0..7).map(|at| format!("n{at}")).collect();
        let own =
            |low: f64| names.iter().zip(0..).map(|(it, at)| (it.as_str(), low + f64::from(at))).collect::<Vec<_>>();
        // 8 + 8 layers and the last.
        let made = layers(&decision(vec![
            (CellMatch::CgroupContains("a".to_owned()), own(100.0)),
            (CellMatch::CgroupContains("b".to_owned()), own(0.0)),
        ]));
        assert_eq!(made.layers.len(), MAX_LAYERS);
        assert_eq!(made.notes, [Note::TooManyLayers { left_out: vec!["cell1/n0".to_owned()] }]);
        // Each use of an expression counts: 8 of the first, so that one of the second must go.
        let made = layers(&decision(vec![(regex("a+"), own(100.0)), (regex("b+"), own(0.0))]));
        assert!(super::super::layered::check(&made.layers).is_ok());
        // A shorter prefix does not take threads of a left-out subcell.
        let mut many = own(100.0);
        many.extend([("webserver-x", 1.0), ("webserver", 2.0), ("db", 3.0), ("web", 500.0)]);
        let made = layers(&decision(vec![
            (CellMatch::CgroupContains("a".to_owned()), many),
            (CellMatch::CgroupContains("b".to_owned()), own(60.0)),
        ]));
        let web = made.layers.iter().find(|layer| layer.name == "cell0/web").unwrap();
        let conditions = [
            LayerMatch::CgroupRegex("a".to_owned()),
            LayerMatch::CommPrefix("web".to_owned()),
            LayerMatch::CommPrefixExclude("webserver".to_owned()),
        ];
        assert_eq!(web.matches, [conditions.to_vec()]);
        let consumer = super::super::layered::Consumer::new(&made.layers).unwrap();
        let rest = consumer.assign(b"/a", b"webserver").unwrap();
        assert_eq!(made.of[rest], (Some(0), None));
    }

    fn left_out(made: &Layers) -> Vec<&str> {
        let all = made.notes.iter().flat_map(|note| match note {
            Note::TooManyLayers { left_out } => left_out.as_slice(),
            _ => &[],
        });
        all.map(String::as_str).collect()
    }

    #[test]
    fn classes_make_room_first_and_then_what_shares_least() {
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let cell = |part: &str, value: f64| {
            (CellMatch::CgroupContains(part.to_owned()), names.map(|name| (name, value)).to_vec())
        };
        let mut decision = decision(vec![cell("x", 20.0), cell("y", 30.0)]);
        // The one with most samples shares least.
        let least = &mut decision.bases[1][5];
        (least.value, least.samples) = (10.0, 1e6);
        assert_eq!(left_out(&layers(&decision)), ["cell1/f"]);
        // A class shares nothing, less than a community with unknown sharing.
        decision.bases[0][0].value = 0.0;
        decision.bases[0][3] = Basis { class: Some("d".to_owned()), samples: 1e6, ..Basis::default() };
        let made = layers(&decision);
        assert_eq!(left_out(&made), ["cell0/d"]);
        let kind = |name: &str| made.layers.iter().find(|layer| layer.name == name).map(|layer| layer.kind.clone());
        assert_eq!((kind("cell0/c"), kind("cell0")), (Some(LayerKind::community()), Some(LayerKind::class())));
    }

    #[test]
    fn whole_cells_make_room_where_nothing_else_does() {
        let cells = (0..20).map(|at| (CellMatch::CgroupContains(format!("x{at}.")), vec![]));
        let made = layers(&decision(cells.chain([(CellMatch::All, vec![])]).collect()));
        assert_eq!((made.layers.len(), made.of.last()), (MAX_LAYERS, Some(&(Some(20), None))));
        assert_eq!((made.layers[14].name.as_str(), made.layers[15].name.as_str()), ("cell14", "cell20"));
        assert_eq!(left_out(&made), ["cell19", "cell18", "cell17", "cell16", "cell15"]);
    }

    #[test]
    fn expressions_make_room_for_each_other_alone() {
        let own = ["n0", "n1", "n2", "n3", "n4", "n5", "n6"].into_iter().zip(1..).map(|(it, at)| (it, f64::from(at)));
        let other = (CellMatch::CgroupContains("b".to_owned()), vec![("cheap", 0.5)]);
        let mut decision = decision(vec![(regex("a+"), own.collect()), other]);
        for subcell in &mut decision.cells[0].subcells[..7] {
            subcell.matches.extend(["x", "y"].map(|end| vec![format!("{end}{}", subcell.name)]));
        }
        // 3 for each and one for the rest of the cell are 22, and there are 2 of the other cell.
        let made = layers(&decision);
        assert_eq!(left_out(&made), ["cell0/n0", "cell0/n1", "cell0/n2"]);
        assert_eq!(super::super::layered::check(&made.layers), Ok(()));
    }

    #[test]
    fn pieces_of_paths_make_room_for_expressions() {
        let own = ["n0", "n1", "n2", "n3", "n4", "n5", "n6"].into_iter().zip(1..).map(|(it, at)| (it, f64::from(at)));
        let other = (CellMatch::CgroupContains("b".to_owned()), vec![("dear", 9.0), ("cheap", 0.5)]);
        let mut decision = decision(vec![(CellMatch::CgroupContains("a".to_owned()), own.collect()), other]);
        for subcell in &mut decision.cells[0].subcells[..7] {
            subcell.matches.push(vec![format!("x{}", subcell.name)]);
        }
        // 2 for each and one for the rest of the cell are 15, and there are 3 of the other cell.
        let made = layers(&decision);
        assert_eq!(super::super::layered::check(&made.layers), Ok(()));
        assert_eq!(made.notes, [Note::UnsureLayers { layers: vec!["cell0/n0".to_owned(), "cell1/cheap".to_owned()] }]);
        let is_contains = |layer: &&Layer| layer.matches.iter().flatten().any(|it| it.kind() == "CgroupContains");
        let contains: Vec<&str> = made.layers.iter().filter(is_contains).map(|layer| layer.name.as_str()).collect();
        assert_eq!(contains, ["cell0/n0", "cell1/cheap"]);
        // A later layer with a shorter prefix does not take the threads of one that is not found.
        let mut shorter = decision.clone();
        shorter.cells[0].subcells[6].matches.push(vec!["n".to_owned()]);
        shorter.bases[0][0].value = 0.1;
        let made = layers(&shorter);
        let last = made.layers.iter().find(|layer| layer.name == "cell0/n6").map(|layer| layer.matches.last().cloned());
        let excluded = LayerMatch::CommPrefixExclude("n0".to_owned());
        assert!(last.flatten().is_some_and(|ands| ands.contains(&excluded)), "{made:?}");
        // With fewer names there is room for all.
        decision.cells[0].subcells.remove(0);
        decision.bases[0].remove(0);
        let made = layers(&decision);
        assert_eq!((made.notes.len(), made.layers.iter().filter(is_contains).count()), (0, 0));
    }

    fn hinted(community: u32, values: &[u64], is_whole: bool) -> Hinted {
        let values = values.iter().copied().collect();
        Hinted { community, cell: 0, values, samples: 100.0, value: 1000.0, is_whole }
    }

    #[test]
    fn hints_stand_alone_and_names_are_for_the_others() {
        let mut decision = decision(vec![(CellMatch::CgroupContains("a".to_owned()), vec![("web", 5.0), ("db", 4.0)])]);
        decision.bases[0][1].communities = vec![1];
        // Community 0 is identified by hints alone, 1 in part, 2 has no subcell.
        let hinted = [hinted(0, &[0, 7], true), hinted(1, &[9], false), hinted(2, &[1024], true)];
        let made = room_for(&decision, &hinted);
        let names: Vec<&str> = made.layers.iter().map(|layer| layer.name.as_str()).collect();
        assert_eq!(names, ["hint-0", "hint-1024", "cell0/db", "cell0", "rest"]);
        let consumer = super::super::layered::Consumer::new(&made.layers).unwrap();
        let layer = |comm: &str, hint| names[taker(&consumer, &Task::new(b"/a", comm.as_bytes()).hinted(hint))];
        assert_eq!((layer("web", Some(7)), layer("web", Some(0)), layer("web", None)), ("hint-0", "hint-0", "cell0"));
        assert_eq!(
            (layer("db", None), layer("x", Some(9)), layer("x", Some(1024))),
            ("cell0/db", "cell0/db", "hint-1024")
        );
        assert_eq!(made.layers[0].kind, LayerKind::community());
        // A subcell of two communities does not match the hints of one, and no layer takes any number of hints.
        decision.bases[0][1].communities.push(5);
        let many: Vec<u64> = (100..200).collect();
        let made = room_for(&decision, &[self::hinted(1, &[9], false), self::hinted(0, &many, false)]);
        let names: Vec<&str> = made.layers.iter().map(|layer| layer.name.as_str()).collect();
        assert_eq!(names, ["hint-9", "cell0/web", "cell0/db", "cell0", "rest"]);
        assert_eq!(super::super::layered::check(&made.layers), Ok(()));
    }

    #[test]
    fn many_hints_make_room_too() {
        let decision = decision(vec![(CellMatch::CgroupContains("a".to_owned()), vec![("web", 5.0)])]);
        let hinted: Vec<Hinted> = (0..20).map(|at| hinted(10 + at, &[u64::from(at)], true)).collect();
        let made = room_for(&decision, &hinted);
        assert!(super::super::layered::check(&made.layers).is_ok());
        assert_eq!(made.layers.len(), MAX_LAYERS);
        assert!(
            matches!(&made.notes[..], [Note::TooManyLayers { left_out }] if left_out.len() == 7),
            "{:?}",
            made.notes
        );
    }

    #[test]
    fn names_are_cut_and_stay_unique() {
        let long = "é".repeat(60);
        let cells = vec![
            (CellMatch::CgroupContains("a".to_owned()), vec![]),
            (CellMatch::CgroupContains("b".to_owned()), vec![]),
        ];
        let mut decision = decision(cells);
        decision.cells[0].name = format!("\0{long}1");
        decision.cells[1].name = format!("{long}2");
        assert!(super::super::layered::check(&layers(&decision).layers).is_ok());
    }
}
