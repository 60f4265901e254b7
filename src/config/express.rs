//! Turns sharing threads into the subcells of one cell spec, within the scheduler's limits.

use std::collections::{BTreeMap, BTreeSet};

use super::assign::{assign, Assignment, Assignments, Other, Unit};
use super::cell::{Basis, Subcell, CATCH_ALL};
use super::classes::{families, Family};
use super::mitosis::MAX_SUBCELLS;
use super::note::{first, Note};
use super::owners::{ByCell, NameOwnership, SharingGroup};
use super::tally::{CellIndex, Tally};
use crate::sample::{printable, Comm};

/// With fewer samples in a cell, the shares of its threads are unknown.
const MIN_CELL_SAMPLES: f64 = 100.0;
/// Classes of a cell spec that are considered, largest first; at most 7 of them get a subcell.
const MAX_CANDIDATES: usize = 64;
/// Communities of a cell spec that are considered, most valuable first; merging compares all pairs of them.
const MAX_COMMUNITIES: usize = 64;
/// Names of a community in a note.
const NAMES: usize = 4;
/// Subcells besides the catch-all, if there is a CPU for each.
pub(super) const ROOM: usize = MAX_SUBCELLS - 1;

/// The input: these cells of a cell spec.
pub(super) struct Ask<'a> {
    /// The spec's name, for the notes.
    pub spec: &'a str,
    pub cells: &'a [CellIndex],
    /// Samples by name and cell of these cells.
    pub names: &'a [(Comm, CellIndex, f64)],
    pub tally: &'a Tally,
    pub by_cell: &'a ByCell<'a>,
    pub min_share: f64,
    /// Subcells besides the catch-all.
    pub room: usize,
}

/// The subcells of one spec.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Expressed {
    /// With the catch-all last; empty if the cell spec is not divided.
    pub subcells: Vec<Subcell>,
    /// The basis of each.
    pub bases: Vec<Basis>,
    pub notes: Vec<Note>,
}

impl Ask<'_> {
    fn total(&self) -> f64 {
        self.cells.iter().filter_map(|&cell| self.tally.get(cell)).map(|cell| cell.total).sum()
    }

    fn is_large(&self, family: &Family, total: f64) -> bool {
        let large_in_cell = |&(cell, count): &(CellIndex, f64)| {
            self.tally.get(cell).is_some_and(|cell| {
                cell.cgroup.is_some() && cell.total >= MIN_CELL_SAMPLES && count / cell.total >= self.min_share
            })
        };
        // Divided, not multiplied: 7 of 140 are 5 %, but 0.05 * 140 is above 7.
        family.count / total >= self.min_share || family.by_cell.iter().any(large_in_cell)
    }
}

/// Expresses communities first, most valuable first, then the most sampled classes in the remaining room.
pub(super) fn express(ask: &Ask<'_>) -> Expressed {
    let NameOwnership { sharers, classes, unknown, mut notes } =
        ask.by_cell.resolve_names(ask.spec, ask.cells, ask.tally, ask.names);
    let all: BTreeSet<Comm> = sharers.iter().flat_map(|it| it.names.keys().copied()).collect();
    let mut sharers = reduce(sharers, ask, &mut notes);
    let total = ask.total();
    let families = families(&classes);
    let mut candidates: Vec<&Family> = families.iter().filter(|family| ask.is_large(family, total)).collect();
    // The families come by base, which decides between equal ones.
    candidates.sort_by(|a, b| b.count.total_cmp(&a.count));
    let unseen = candidates.split_off(candidates.len().min(MAX_CANDIDATES));
    // Classes that get a subcell only because they get in the way of a community.
    let mut shields: Vec<&Family> = Vec::new();
    let mut hopeless: BTreeSet<Vec<u8>> = BTreeSet::new();

    let (assignments, chosen) = loop {
        let room = ask.room.saturating_sub(sharers.len() + shields.len());
        let chosen: Vec<&Family> = shields.iter().chain(candidates.iter().take(room)).copied().collect();
        let mut units: Vec<Unit> = sharers.iter().map(SharingGroup::unit).collect();
        units.extend(chosen.iter().map(|family| family.unit()));
        let elsewhere = all.iter().chain(families.iter().flat_map(|family| &family.names));
        let elsewhere = elsewhere.map(|name| (*name, Other::Elsewhere));
        let assignments = assign(&units, elsewhere.chain(unknown.iter().map(|name| (*name, Other::Unknown))));

        let mut in_the_way = in_the_way(&assignments, &units, &families, &chosen, sharers.len());
        in_the_way.retain(|family| !hopeless.contains(&family.base));
        // A class that only has its share gives way.
        let room = ask.room.saturating_sub(sharers.len() + shields.len());
        if !in_the_way.is_empty() && in_the_way.len() <= room {
            candidates.retain(|family| !in_the_way.iter().any(|it| it.base == family.base));
            shields.extend(in_the_way);
            continue;
        }
        if assignments.refused.is_empty() {
            break (assignments, chosen);
        }
        let communities = sharers.len();
        for &(index, takes) in &assignments.refused {
            if let Some(family) = index.checked_sub(communities).and_then(|index| chosen.get(index)) {
                let (class, share) = (printable(&family.base), family.count / total);
                notes.push(Note::NotDescribable { cell: ask.spec.to_owned(), class, share, takes, whose: None });
            } else if let Some(sharers) = sharers.get(index) {
                let (threads, share) = (sharers.spelled(), sharers.samples() / total);
                notes.push(Note::CommunityRefused { cell: ask.spec.to_owned(), threads, share, takes, whose: None });
            }
        }
        let is_refused = |index: usize| assignments.refused.iter().any(|it| it.0 == index);
        let refused = chosen.iter().enumerate().filter(|(index, _)| is_refused(communities + index));
        hopeless.extend(refused.map(|(_, family)| family.base.clone()));
        candidates.retain(|family| !hopeless.contains(&family.base));
        shields.retain(|family| !hopeless.contains(&family.base));
        let mut index = 0..communities;
        sharers.retain(|_| !index.next().is_some_and(is_refused));
    };

    let is_chosen = |family: &Family| chosen.iter().any(|it| it.base == family.base);
    let mut crowded_out: Vec<&Family> = candidates.into_iter().filter(|family| !is_chosen(family)).collect();
    crowded_out.extend(unseen);
    if !crowded_out.is_empty() {
        let share = crowded_out.iter().map(|family| family.count).sum::<f64>() / total;
        let classes = crowded_out.iter().map(|family| printable(&family.base)).collect();
        notes.push(Note::TooManyClasses { cell: ask.spec.to_owned(), classes, share });
    }
    subcells(ask.spec, &sharers, &chosen, assignments, total, notes)
}

/// Makes the subcells of the places.
fn subcells(
    spec: &str,
    sharers: &[SharingGroup],
    chosen: &[&Family],
    assignments: Assignments,
    total: f64,
    mut notes: Vec<Note>,
) -> Expressed {
    let mut expressed = Expressed::default();
    let mut taken = BTreeSet::from([CATCH_ALL.to_owned()]);
    for Assignment { unit, prefixes, left_out, taken_along } in assignments.assigned {
        let mut basis = Basis::default();
        let base = if let Some(sharers) = sharers.get(unit) {
            basis.communities = sharers.communities.iter().copied().collect();
            basis.value = sharers.value;
            basis.samples = sharers.samples();
            basis.why.clone_from(&sharers.why);
            joint_name(&prefixes)
        } else {
            let base = unit.checked_sub(sharers.len()).and_then(|unit| chosen.get(unit));
            basis.samples = base.map_or(0.0, |family| family.count);
            let base = base.map(|family| printable(&family.base)).unwrap_or_default();
            basis.class = Some(base.clone());
            base
        };
        let numbered = (2_usize..).map(|number| format!("{base}-{number}"));
        let name = std::iter::once(base.clone()).chain(numbered).find(|name| !taken.contains(name)).unwrap_or_default();
        taken.insert(name.clone());
        let said = |names: &[Comm]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let cell = || (spec.to_owned(), name.clone());
        if let (false, Some(sharers)) = (left_out.is_empty(), sharers.get(unit)) {
            let (cell, subcell) = cell();
            let weight: f64 = left_out.iter().filter_map(|name| sharers.names.get(name)).sum();
            let note = Note::LeftOut { cell, subcell, names: said(&left_out), share: weight / total, whose: None };
            basis.why.push(note.to_string());
            notes.push(note);
        }
        if !taken_along.is_empty() {
            let (cell, subcell) = cell();
            let note = Note::TakenAlong { cell, subcell, names: said(&taken_along) };
            basis.why.push(note.to_string());
            notes.push(note);
        }
        let matches = prefixes.into_iter().map(|prefix| vec![prefix]).collect();
        expressed.subcells.push(Subcell { name, matches, hints: Vec::new() });
        expressed.bases.push(basis);
    }
    if !expressed.subcells.is_empty() {
        expressed.subcells.push(Subcell::catch_all());
        expressed.bases.push(Basis::default());
    }
    expressed.notes = notes;
    expressed
}

/// A community's name: the first three of its prefixes.
pub(super) fn joint_name(prefixes: &[String]) -> String {
    let shown: Vec<String> = prefixes.iter().take(3).map(|prefix| printable(prefix.as_bytes())).collect();
    let more = prefixes.len() - shown.len();
    shown.join("+") + &if more > 0 { format!("+{more}") } else { String::new() }
}

/// Classes without a place, if one of their names has a prefix because of which a community's name is left out.
fn in_the_way<'a>(
    assignments: &Assignments,
    units: &[Unit],
    families: &'a [Family],
    chosen: &[&Family],
    communities: usize,
) -> Vec<&'a Family> {
    let partly =
        assignments.assigned.iter().filter(|it| it.unit < communities).flat_map(|place| place.left_out.clone());
    let refused = assignments.refused.iter().filter(|it| it.0 < communities).filter_map(|it| units.get(it.0));
    let refused = refused.flat_map(|unit| unit.names.iter().map(|it| it.0));
    let left_out: Vec<Comm> = partly.chain(refused).collect();
    let takes = |name: &Comm| {
        let begins = |left_out: &Comm| {
            let text = left_out.utf8_prefix().as_bytes();
            !text.is_empty() && name.as_bytes().starts_with(text)
        };
        left_out.iter().any(begins)
    };
    let is_chosen = |family: &Family| chosen.iter().any(|it| it.base == family.base);
    families.iter().filter(|family| !is_chosen(family) && family.names.iter().any(takes)).collect()
}

/// The names of a community's threads, for people.
pub(crate) fn spelled<'a>(names: impl ExactSizeIterator<Item = &'a Comm>) -> String {
    first(NAMES, names, ", ")
}

/// Merges communities or leaves them to the catch-all until there is room for each, with the least loss of locality.
///
/// A community in the catch-all loses all that it shares. Two merged communities lose what the smaller one shares within
/// itself, minus what the two share with each other: the other one fills that much of its caches.
fn reduce(mut sharers: Vec<SharingGroup>, ask: &Ask<'_>, notes: &mut Vec<Note>) -> Vec<SharingGroup> {
    let total: f64 = sharers.iter().map(|it| it.value).sum();
    let part = |value: f64| if total > 0.0 { value / total } else { 0.0 };
    let cell = || ask.spec.to_owned();
    // Without any room, merging gains nothing.
    let mut left = sharers.split_off(sharers.len().min(if ask.room == 0 { 0 } else { MAX_COMMUNITIES }));
    while sharers.len() > ask.room {
        let mut best: Option<(f64, usize, usize)> = None;
        for (at, a) in sharers.iter().enumerate() {
            for (to, b) in sharers.iter().enumerate().skip(at + 1) {
                let between = ask.by_cell.between(a, b);
                let loss = (a.value.min(b.value) - between).max(0.0);
                if best.is_none_or(|best| loss < best.0) {
                    best = Some((loss, at, to));
                }
            }
        }
        let Some(last) = sharers.last() else { break };
        // Merging two that share nothing with each other never loses less.
        match best.filter(|best| best.0 < last.value) {
            Some((loss, at, to)) => {
                let other = sharers.remove(to);
                let between = sharers.get(at).map_or(0.0, |it| ask.by_cell.between(it, &other));
                if let Some(kept) = sharers.get_mut(at) {
                    let note =
                        Note::Merged { cell: cell(), one: kept.spelled(), other: other.spelled(), loss: part(loss) };
                    kept.merge(other, between);
                    kept.why.push(note.to_string());
                    notes.push(note);
                }
                sharers.sort_by(|a, b| b.value.total_cmp(&a.value));
            }
            None => left.extend(sharers.pop()),
        }
    }
    if !left.is_empty() {
        let loss = part(left.iter().map(|it| it.value).sum());
        let communities = left.iter().map(SharingGroup::spelled).collect();
        notes.push(Note::TooManyCommunities { cell: cell(), communities, loss });
    }
    sharers
}

impl SharingGroup {
    fn unit(&self) -> Unit {
        Unit {
            names: self.names.iter().map(|(name, weight)| (*name, *weight)).collect(),
            threads: self.threads.clone(),
        }
    }

    fn samples(&self) -> f64 {
        self.names.values().sum()
    }

    /// Its names, for display.
    fn spelled(&self) -> String {
        spelled(self.names.keys())
    }

    fn merge(&mut self, other: Self, between: f64) {
        self.value += other.value + between;
        self.communities.extend(other.communities);
        self.names.extend(other.names);
        self.threads.extend(other.threads);
        self.why.extend(other.why);
    }
}

impl Family {
    fn unit(&self) -> Unit {
        // A class is described completely or not at all, so all its names have the same weight.
        Unit { names: self.names.iter().map(|name| (*name, 0.0)).collect(), threads: BTreeMap::new() }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::decide::decide;
    use crate::config::{CellOptions, CellSpecs, Decision, DecisionOptions, Member, Members, Unknown, Verdict};

    type Thread<'a> = (&'a str, f64, Verdict);

    /// Decides on threads of one cgroup, each with its samples, by what communities share with each other.
    fn decided(threads: &[Thread], shared: &[(u32, u32, f64)]) -> Decision {
        decided_in(threads.iter().map(|it| ("/", *it)), shared)
    }

    /// The same for threads of several cgroups.
    pub(in crate::config) fn decided_in<'a>(
        threads: impl Iterator<Item = (&'a str, Thread<'a>)>,
        shared: &[(u32, u32, f64)],
    ) -> Decision {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let (mut tally, mut members) = (Tally::default(), Members::default());
        for ((path, (name, samples, verdict)), thread) in threads.zip(0..) {
            let (cell, comm) = (tally.cell(specs.assign(path.as_bytes())), Some(Comm::from(name)));
            tally.add(cell, comm, samples);
            members.threads.push(Member { thread, pid: 1, tid: thread, comm, hint: None, cell, samples, verdict });
        }
        for &(a, b, accesses) in shared {
            members.affinity.add(a, b, accesses);
        }
        decide(&specs, &tally, &members, &DecisionOptions::new(0.05, 64)).unwrap()
    }

    fn names(decision: &Decision) -> Vec<&str> {
        decision.cells[0].subcells.iter().map(|it| it.name.as_str()).collect()
    }

    #[test]
    fn a_class_in_the_way_that_cannot_be_told_is_given_up() {
        let own = Verdict::Community(0);
        let decision = decided(
            &[
                ("web", 100.0, own),
                ("db", 100.0, own),
                ("log", 197.0, own),
                ("webserver", 2.0, Verdict::Alone),
                ("webserver-x", 1.0, Verdict::Unknown(Unknown::TooFewSamples)),
            ],
            &[],
        );
        assert_eq!(names(&decision), ["db+log", "rest"]);
        let (cell, class) = ("rest".to_owned(), "webserver".to_owned());
        let refused = Note::NotDescribable {
            cell: cell.clone(),
            class,
            share: 0.005,
            takes: Some("webserver-x".into()),
            whose: None,
        };
        let left_out = Note::LeftOut {
            cell,
            subcell: "db+log".to_owned(),
            names: vec!["web".to_owned()],
            share: 0.25,
            whose: None,
        };
        assert_eq!(decision.notes[..2], [refused, left_out.clone()]);
        assert_eq!(decision.bases[0][0].why, [left_out.to_string()]);
        assert!((decision.bases[0][0].samples - 397.0).abs() < 1e-9);
        // A name without text is left out too, but it gets in no way.
        let rare = ("rare", 1.0, Verdict::Alone);
        let decision = decided(&[("", 100.0, own), ("web", 100.0, own), ("db", 100.0, own), rare], &[]);
        assert_eq!(names(&decision), ["db+web", "rest"]);
    }

    #[test]
    fn what_is_merged_and_left_out_is_counted() {
        let threads: Vec<(String, Verdict)> = ('a'..='i')
            .zip(0..)
            .flat_map(|(it, at)| ["r", "w"].map(|end| (format!("{it}-{end}"), Verdict::Community(at))))
            .collect();
        let threads: Vec<(&str, f64, Verdict)> = threads.iter().map(|it| (it.0.as_str(), 10.0, it.1)).collect();
        // Nine communities that share 100, 99, ... 92 within.
        let within = (0..9).map(|at| (at, at, f64::from(100 - at)));
        // Which two share how much, what that loses, their joint value, and which one is left out then.
        for (one, other, between, loss, value, left) in
            [(0, 1, 60.0, 39.0, 259.0, 8), (7, 8, 60.0, 32.0, 245.0, 6), (0, 8, 300.0, 0.0, 492.0, 7)]
        {
            let shared: Vec<_> = within.clone().chain([(one, other, between)]).collect();
            let decision = decided(&threads, &shared);
            let spelled = |at: u32| {
                let letter = char::from(b'a' + at as u8);
                format!("{letter}-r, {letter}-w")
            };
            let (cell, total) = ("rest".to_owned(), 864.0);
            let merged =
                Note::Merged { cell: cell.clone(), one: spelled(one), other: spelled(other), loss: loss / total };
            let lost = f64::from(100 - left) / total;
            let too_many = Note::TooManyCommunities { cell, communities: vec![spelled(left)], loss: lost };
            assert_eq!(decision.notes, [merged.clone(), too_many]);
            let basis = decision.bases[0].iter().find(|it| it.communities == [one, other]).unwrap();
            assert_eq!((basis.value, basis.samples, &basis.why[..]), (value, 40.0, &[merged.to_string()][..]));
        }
        // A community that is merged twice keeps both reasons.
        let shared = (1..7).map(|at| (at, at, 90.0));
        let shared = shared.chain([(0, 0, 900.0), (7, 7, 20.0), (8, 8, 10.0), (7, 8, 5.0), (0, 7, 5.0)]);
        let decision = decided(&threads, &shared.collect::<Vec<_>>());
        let basis = decision.bases[0].iter().find(|it| it.communities == [0, 7, 8]).unwrap();
        assert_eq!(basis.why[..2], [0, 1].map(|at| decision.notes[at].to_string()));
        // Without a reason to merge, the last two are left out, and the loss of both is reported.
        let decision = decided(&threads, &within.collect::<Vec<_>>());
        let [Note::TooManyCommunities { communities, loss, .. }] = &decision.notes[..] else {
            panic!("{:?}", decision.notes)
        };
        assert_eq!((communities.len(), *loss), (2, (92.0 + 93.0) / 864.0));
    }

    #[test]
    fn long_lists_of_names_are_cut() {
        let own = ["one", "two", "three", "four", "five"].map(|name| (name, 1.0, Verdict::Community(0)));
        assert_eq!(names(&decided(&own[..4], &[])), ["four+one+three+1", "rest"]);
        let others: Vec<String> = ('a'..='n').map(|it| format!("{it}-other")).collect();
        let others = others.iter().zip(2..).map(|(it, at)| (it.as_str(), 10.0, Verdict::Community(at / 2)));
        let note = &decided(&own.into_iter().chain(others).collect::<Vec<_>>(), &[]).notes[0];
        assert!(
            matches!(note, Note::TooManyCommunities { communities, .. }
            if *communities == ["five, four, one, three and 1 more"]),
            "{note}"
        );
    }
}
