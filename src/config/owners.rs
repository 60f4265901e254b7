//! Owners: which community each name belongs to among the threads of some cells, before prefixes are chosen.

use std::collections::{BTreeMap, BTreeSet};

use super::members::{Affinity, CommunityIndex, Member, Members, Unknown, Verdict};
use super::note::Note;
use super::tally::{CellIndex, Tally};
use crate::sample::Comm;

/// The members by cell.
pub(super) struct ByCell<'a> {
    cells: BTreeMap<CellIndex, Vec<&'a Member>>,
    affinity: &'a Affinity,
}

/// Communities that will be one subcell, with their names.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SharingGroup {
    /// The communities; several if comm cannot distinguish them, or if several cells have one each of the same names.
    pub communities: BTreeSet<CommunityIndex>,
    /// Samples by name.
    pub names: BTreeMap<Comm, f64>,
    /// Threads by name.
    pub threads: BTreeMap<Comm, usize>,
    /// Accesses that they share with each other.
    pub value: f64,
    /// The decisions about them, in sentences.
    pub why: Vec<String>,
}

/// The owners of names.
#[derive(Debug, Default, PartialEq)]
pub(super) struct NameOwnership {
    /// Communities, the most valuable first.
    pub sharers: Vec<SharingGroup>,
    /// Names of threads without shared memory, or of threads that the source cannot distinguish, by name and cell.
    pub classes: Vec<(Comm, CellIndex, f64)>,
    /// Names of threads with too few samples.
    pub unknown: BTreeSet<Comm>,
    /// Names that several communities of a cell have.
    pub notes: Vec<Note>,
}

/// A name in one cell.
#[derive(Default)]
struct Name {
    /// Samples and threads by community, a thread under several hints once.
    communities: BTreeMap<CommunityIndex, (f64, BTreeSet<u32>)>,
    /// It has a thread that may belong to a class.
    has_class: bool,
}

impl<'a> ByCell<'a> {
    pub(super) fn new(members: &'a Members) -> Self {
        let mut cells: BTreeMap<CellIndex, Vec<&Member>> = BTreeMap::new();
        for member in &members.threads {
            cells.entry(member.cell).or_default().push(member);
        }
        Self { cells, affinity: &members.affinity }
    }

    /// Threads and samples of the cells without a verdict, by reason.
    pub(super) fn unknown(&self, cells: &[CellIndex]) -> BTreeMap<Unknown, (usize, f64)> {
        let mut unknown: BTreeMap<Unknown, (BTreeSet<(u32, u32)>, f64)> = BTreeMap::new();
        for member in cells.iter().filter_map(|cell| self.cells.get(cell)).flatten() {
            if let Verdict::Unknown(why) = member.verdict {
                let sum = unknown.entry(why).or_default();
                // Under several hints it is one thread.
                sum.0.insert((member.pid, member.tid));
                sum.1 += weight(member);
            }
        }
        unknown.into_iter().map(|(why, (threads, samples))| (why, (threads.len(), samples))).collect()
    }

    /// The owners of the names in these cells, for notes on the cell spec `cell`.
    ///
    /// A name of two communities in one cell goes to the one with most of its samples, because that loses least; if most of the
    /// other one has that name, the two are merged. A name that both communities and other threads have belongs to the
    /// communities.
    pub(super) fn resolve_names(
        &self,
        cell: &str,
        cells: &[CellIndex],
        tally: &Tally,
        names: &[(Comm, CellIndex, f64)],
    ) -> NameOwnership {
        let mut owned = NameOwnership::default();
        let mut joined = Joined::default();
        // For each name the owner with its weight and number of threads, over all cells.
        let mut of_name: BTreeMap<Comm, (Node, f64, usize)> = BTreeMap::new();
        let mut has_class: BTreeMap<Comm, bool> = BTreeMap::new();
        for &index in cells {
            let (seen, samples) = self.names(index);
            // The entry for all further cells of a cell spec is no cell, so its threads do not belong together.
            let is_cell = tally.get(index).is_some_and(|tally| tally.cgroup.is_some());
            for (comm, name) in &seen {
                *has_class.entry(*comm).or_default() |= name.has_class || !is_cell;
                if !is_cell {
                    continue;
                }
                let mut by_weight: Vec<_> = name.communities.iter().collect();
                by_weight.sort_by(|a, b| b.1 .0.total_cmp(&a.1 .0).then_with(|| a.0.cmp(b.0)));
                let Some((&winner, _)) = by_weight.first() else { continue };
                let winner = joined.node(index, winner);
                let mostly = |&&(community, (weight, _)): &&(&u32, &(f64, BTreeSet<u32>))| {
                    *weight * 2.0 >= samples.get(community).copied().unwrap_or(0.0)
                };
                let (same, other): (Vec<_>, Vec<_>) = by_weight.iter().skip(1).partition(|it| mostly(it));
                for (&community, _) in &same {
                    let same = joined.node(index, community);
                    joined.join(winner, same);
                }
                if by_weight.len() > 1 {
                    let tids = by_weight.iter().map(|it| it.1 .1.iter().copied().collect()).collect();
                    let (name, merged) = (*comm, same.len());
                    let note = Note::OneName { cell: cell.to_owned(), name, communities: tids, merged };
                    joined.why.entry(winner).or_default().push(note.to_string());
                    owned.notes.push(note);
                }
                let lost = |it: &(&u32, &(f64, BTreeSet<u32>))| other.iter().any(|other| other.0 == it.0);
                let kept: Vec<_> = by_weight.iter().filter(|it| !lost(it)).collect();
                let weight: f64 = kept.iter().map(|it| it.1 .0).sum();
                let threads: usize = kept.iter().map(|it| it.1 .1.len()).sum();
                match of_name.get_mut(comm) {
                    // Another cell has such a community too: they get one subcell, which exists in each cell.
                    Some(there) => {
                        joined.join(there.0, winner);
                        there.1 += weight;
                        there.2 += threads;
                    }
                    None => {
                        of_name.insert(*comm, (winner, weight, threads));
                    }
                }
            }
        }
        joined.join_apart();
        owned.sharers = joined.sharers(&of_name);
        // A single thread shares nothing: the names of the others belong to another community.
        owned.sharers.retain(|sharers| {
            let is_lone = sharers.threads.values().sum::<usize>() < 2;
            if is_lone {
                of_name.retain(|name, _| !sharers.names.contains_key(name));
                has_class.extend(sharers.names.keys().map(|name| (*name, true)));
            }
            !is_lone
        });
        for &(comm, index, count) in names {
            if of_name.contains_key(&comm) {
                continue;
            }
            // A name that no thread has any more is an ordinary class.
            if has_class.get(&comm).is_none_or(|&has_class| has_class) {
                owned.classes.push((comm, index, count));
            } else {
                owned.unknown.insert(comm);
            }
        }
        for sharers in &mut owned.sharers {
            sharers.value = self.value(&sharers.communities, &sharers.names);
        }
        owned.sharers.sort_by(|a, b| b.value.total_cmp(&a.value).then_with(|| a.names.keys().cmp(b.names.keys())));
        owned
    }

    /// The names of a cell, and the samples of its communities.
    fn names(&self, cell: CellIndex) -> (BTreeMap<Comm, Name>, BTreeMap<CommunityIndex, f64>) {
        let members = self.cells.get(&cell).map(Vec::as_slice).unwrap_or_default();
        let mut sizes: BTreeMap<CommunityIndex, BTreeSet<u32>> = BTreeMap::new();
        let mut samples: BTreeMap<CommunityIndex, f64> = BTreeMap::new();
        for member in members {
            if let Verdict::Community(community) = member.verdict {
                sizes.entry(community).or_default().insert(member.tid);
                *samples.entry(community).or_default() += weight(member);
            }
        }
        let mut names: BTreeMap<Comm, Name> = BTreeMap::new();
        for member in members {
            let Some(comm) = member.comm else { continue };
            let name = names.entry(comm).or_default();
            match member.verdict {
                // The others are in other cells, so no subcell can contain two of them.
                Verdict::Community(community) if sizes.get(&community).is_some_and(|tids| tids.len() > 1) => {
                    let sum = name.communities.entry(community).or_default();
                    sum.0 += weight(member);
                    sum.1.insert(member.tid);
                }
                Verdict::Community(_)
                | Verdict::Alone
                | Verdict::SharesWithAll
                | Verdict::SharesWithSome
                | Verdict::Unknown(Unknown::FirstTouches | Unknown::TooFewMisses) => name.has_class = true,
                Verdict::Unknown(_) => {}
            }
        }
        (names, samples)
    }

    /// Accesses that communities share within and between each other, or their samples if that is unknown.
    fn value(&self, communities: &BTreeSet<CommunityIndex>, names: &BTreeMap<Comm, f64>) -> f64 {
        if self.affinity.is_empty() {
            return names.values().sum();
        }
        let communities: Vec<CommunityIndex> = communities.iter().copied().collect();
        let pairs = communities
            .iter()
            .enumerate()
            .flat_map(|(at, &a)| communities.iter().skip(at).map(move |&b| self.affinity.get(a, b)));
        pairs.sum()
    }

    /// Accesses that two shared with each other.
    pub(super) fn between(&self, a: &SharingGroup, b: &SharingGroup) -> f64 {
        a.communities.iter().flat_map(|&a| b.communities.iter().map(move |&b| self.affinity.get(a, b))).sum()
    }
}

fn weight(member: &Member) -> f64 {
    if member.samples.is_finite() {
        member.samples.max(0.0)
    } else {
        0.0
    }
}

/// A community in one cell. In another cell its threads may have names that belong to another community here.
type Node = (CellIndex, CommunityIndex);

/// Merged communities.
#[derive(Default)]
struct Joined {
    above: BTreeMap<Node, Node>,
    /// The cells of each root.
    cells: BTreeMap<Node, BTreeSet<CellIndex>>,
    why: BTreeMap<Node, Vec<String>>,
}

impl Joined {
    fn node(&mut self, cell: CellIndex, community: CommunityIndex) -> Node {
        let node = (cell, community);
        if !self.above.contains_key(&node) {
            self.cells.entry(node).or_insert_with(|| BTreeSet::from([cell]));
        }
        node
    }

    fn root(&self, mut node: Node) -> Node {
        while let Some(&above) = self.above.get(&node) {
            node = above;
        }
        node
    }

    fn join(&mut self, a: Node, b: Node) {
        let (a, b) = (self.root(a), self.root(b));
        if a != b {
            let (above, below) = (a.min(b), a.max(b));
            self.above.insert(below, above);
            let cells = self.cells.remove(&below).unwrap_or_default();
            self.cells.entry(above).or_default().extend(cells);
        }
    }

    /// Merges parts of a community in several cells if that puts no two of a cell together: one subcell serves them all.
    fn join_apart(&mut self) {
        let nodes: BTreeSet<Node> = self.cells.keys().chain(self.above.keys()).copied().collect();
        let mut roots: BTreeMap<CommunityIndex, Vec<Node>> = BTreeMap::new();
        for node in nodes {
            let roots = roots.entry(node.1).or_default();
            let own = self.root(node);
            if roots.iter().any(|root| self.root(*root) == own) {
                continue;
            }
            let own_cells = self.cells.get(&own);
            let is_apart = |root: &&Node| {
                let cells = self.cells.get(&self.root(**root));
                cells.zip(own_cells).is_some_and(|(there, here)| there.is_disjoint(here))
            };
            match roots.iter().find(is_apart).copied() {
                Some(other) => self.join(other, own),
                None => roots.push(own),
            }
        }
    }

    fn sharers(&self, of_name: &BTreeMap<Comm, (Node, f64, usize)>) -> Vec<SharingGroup> {
        let mut found: BTreeMap<Node, SharingGroup> = BTreeMap::new();
        for (&comm, &(node, weight, threads)) in of_name {
            let sharers = found.entry(self.root(node)).or_insert_with(|| SharingGroup {
                communities: BTreeSet::new(),
                names: BTreeMap::new(),
                threads: BTreeMap::new(),
                value: 0.0,
                why: Vec::new(),
            });
            sharers.communities.insert(node.1);
            sharers.names.insert(comm, weight);
            sharers.threads.insert(comm, threads);
        }
        for &node in self.above.keys() {
            if let Some(sharers) = found.get_mut(&self.root(node)) {
                sharers.communities.insert(node.1);
            }
        }
        for (&node, why) in &self.why {
            if let Some(sharers) = found.get_mut(&self.root(node)) {
                sharers.why.extend(why.iter().cloned());
            }
        }
        found.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cell_specs::CellKey;

    /// A thread: its cell, its name, its samples, its community; without a community it is alone.
    type Thread = (CellIndex, &'static str, f64, Option<CommunityIndex>);

    fn resolve_names(threads: &[Thread], shared: &[(CommunityIndex, CommunityIndex, f64)]) -> NameOwnership {
        let (mut tally, mut members) = (Tally::default(), Members::default());
        // One more than can be distinguished.
        for at in 0..=Tally::MAX_CELLS {
            tally.cell(CellKey { spec: 0, cgroup: format!("/{at}").into_bytes() });
        }
        for (&(cell, name, samples, community), thread) in threads.iter().zip(0..) {
            let (comm, verdict) = (Some(Comm::from(name)), community.map_or(Verdict::Alone, Verdict::Community));
            tally.add(cell, comm, samples);
            members.threads.push(Member { thread, pid: 1, tid: thread, comm, hint: None, cell, samples, verdict });
        }
        for &(a, b, accesses) in shared {
            members.affinity.add(a, b, accesses);
        }
        tally.add(0, Some("gone".into()), 1.0);
        let cells: BTreeSet<CellIndex> = threads.iter().map(|it| it.0).collect();
        let cells: Vec<CellIndex> = cells.into_iter().collect();
        ByCell::new(&members).resolve_names("cell", &cells, &tally, &tally.names_of(0))
    }

    /// The communities of each, their names with samples and threads, and the value.
    fn told(owned: &NameOwnership) -> Vec<String> {
        let names = |it: &SharingGroup| -> Vec<String> {
            it.names.iter().map(|(name, weight)| format!("{name} {weight} {}", it.threads[name])).collect()
        };
        owned.sharers.iter().map(|it| format!("{:?} {}: {}", it.communities, names(it).join(", "), it.value)).collect()
    }

    fn classes(owned: &NameOwnership) -> Vec<String> {
        owned.classes.iter().map(|it| it.0.to_string()).collect()
    }

    #[test]
    fn a_name_of_two_goes_to_the_one_with_most_of_it() {
        let of = |db: f64| {
            let first = [(0, "worker", 100.0, Some(0)), (0, "db", db, Some(0)), (0, "db", db, Some(0))];
            let other = [(0, "worker", 150.0, Some(1)); 2];
            resolve_names(&[&first[..], &other].concat(), &[])
        };
        // If half of the other one has the name, too little of it would be left.
        assert_eq!(told(&of(50.0)), ["{0, 1} db 100 2, worker 400 3: 500"]);
        let apart = of(51.0);
        assert_eq!(told(&apart), ["{1} worker 300 2: 300", "{0} db 102 2: 102"]);
        let communities = vec![vec![3, 4], vec![0]];
        let note = Note::OneName { cell: "cell".to_owned(), name: "worker".into(), communities, merged: 0 };
        assert_eq!((&apart.sharers[0].why, &apart.notes), (&vec![note.to_string()], &vec![note]));
        // A single remaining thread is no community.
        let left = resolve_names(
            &[
                (0, "worker", 1.0, Some(0)),
                (0, "log", 9.0, Some(0)),
                (0, "worker", 5.0, Some(1)),
                (0, "a", 5.0, Some(1)),
            ],
            &[],
        );
        assert_eq!(told(&left), ["{1} a 5 1, worker 5 1: 10"]);
        assert_eq!((classes(&left), left.unknown.len()), (vec!["gone".to_owned(), "log".to_owned()], 0));
    }

    #[test]
    fn cells_with_the_same_names_have_one_subcell() {
        let threads: Vec<Thread> = [(0, 30.0, 0), (1, 10.0, 1)]
            .into_iter()
            .flat_map(|(cell, samples, community)| ["web", "db"].map(|name| (cell, name, samples, Some(community))))
            .collect();
        assert_eq!(told(&resolve_names(&threads, &[])), ["{0, 1} db 40 2, web 40 2: 80"]);
        // Their value is what they share within and between each other, counted once.
        let shared = [(0, 0, 10.0), (1, 1, 20.0), (1, 0, 5.0)];
        assert_eq!(told(&resolve_names(&threads, &shared)), ["{0, 1} db 40 2, web 40 2: 35"]);
        // Only the first of them, if the other's cgroup is beyond the number that can be distinguished.
        let cell = Tally::MAX_CELLS as CellIndex;
        let further: Vec<Thread> = ["web", "x"].map(|name| (cell, name, 10.0, Some(1))).to_vec();
        let owned = resolve_names(&[&threads[..2], &further].concat(), &[]);
        assert_eq!(told(&owned), ["{0} db 30 1, web 30 1: 60"]);
        assert_eq!((classes(&owned), owned.unknown.len()), (vec!["gone".to_owned(), "x".to_owned()], 0));
    }

    #[test]
    fn the_most_valuable_come_first() {
        let of = |more: f64| {
            let threads = [("x", more, 0), ("y", 1.0, 0), ("a", 1.0, 1), ("b", 1.0, 1), ("lone", 9.0, 2)];
            resolve_names(&threads.map(|(name, samples, community)| (0, name, samples, Some(community))), &[])
        };
        assert_eq!(told(&of(2.0)), ["{0} x 2 1, y 1 1: 3", "{1} a 1 1, b 1 1: 2"]);
        // Unknown values count as 0; names decide between equal ones, not arbitrary numbers.
        assert_eq!(told(&of(1.0)), ["{1} a 1 1, b 1 1: 2", "{0} x 1 1, y 1 1: 2"]);
        for odd in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(told(&of(odd)), ["{1} a 1 1, b 1 1: 2", "{0} x 0 1, y 1 1: 1"]);
        }
        // No other thread of the third community is here.
        assert_eq!(classes(&of(1.0)), ["gone", "lone"]);
        // Nor does it take a name from one with two threads.
        let threads = [("worker", 9.0, 0), ("worker", 1.0, 1), ("a", 1.0, 1)];
        let owned = resolve_names(&threads.map(|(name, samples, community)| (0, name, samples, Some(community))), &[]);
        assert_eq!((told(&owned), owned.notes.len()), (vec!["{1} a 1 1, worker 1 1: 2".to_owned()], 0));
    }

    #[test]
    fn a_thread_under_several_hints_is_one() {
        let (mut tally, mut members) = (Tally::default(), Members::default());
        let cell = tally.cell(CellKey { spec: 0, cgroup: Vec::new() });
        let unknown = Verdict::Unknown(Unknown::TooFewSamples);
        for (thread, hint, verdict) in [
            (0, None, Verdict::Community(0)),
            (1, Some(1), Verdict::Community(0)),
            (2, None, unknown),
            (3, Some(1), unknown),
        ] {
            let comm = Some(Comm::from(if verdict == unknown { "b" } else { "a" }));
            tally.add(cell, comm, 10.0);
            // Two threads, each under two hints.
            members.threads.push(Member { thread, pid: 1, tid: thread / 2, comm, hint, cell, samples: 10.0, verdict });
        }
        let by_cell = ByCell::new(&members);
        let owned = by_cell.resolve_names("cell", &[cell], &tally, &tally.names_of(0));
        assert_eq!((told(&owned), classes(&owned)), (Vec::new(), vec!["a".to_owned()]), "it shares with nobody");
        assert_eq!(by_cell.unknown(&[cell])[&Unknown::TooFewSamples], (1, 20.0));
    }
}
