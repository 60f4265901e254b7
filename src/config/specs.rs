//! Specs: which cgroups of a cell spec can have the same subcells, and which need their own spec before the general one.

use std::collections::{BTreeMap, BTreeSet};

use super::cell::{Basis, Cell, CellMatch, Subcell};
use super::cell_specs::{CellSpec, CgroupMatcher, SpecIndex, CGROUP_ROOT};
use super::consumer::subcell_of;
use super::express::{express, Ask, Expressed};
use super::note::Note;
use super::owners::{ByCell, NameOwnership};
use super::tally::{CellIndex, Tally};
use crate::sample::{printable, Comm};

/// The specs made of one cell spec.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Specs {
    pub cells: Vec<Cell>,
    pub bases: Vec<Vec<Basis>>,
    pub notes: Vec<Note>,
}

/// A name, its cell, and its samples there.
type Named = (Comm, CellIndex, f64);

/// The sharing in one cgroup, by name.
struct Sharing {
    cell: CellIndex,
    communities: Vec<BTreeSet<Comm>>,
    alone: BTreeSet<Comm>,
}

/// How many specs and subcells fit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Specs besides the general one.
    pub specs: usize,
    /// Subcells of each besides the catch-all.
    pub subcells: usize,
}

/// The general spec, preceded by those of cgroups with different sharing, as many as fit.
pub(super) fn specs(
    index: SpecIndex,
    spec: &CellSpec,
    tally: &Tally,
    by_cell: &ByCell<'_>,
    min_share: f64,
    room: Room,
) -> Specs {
    let names = tally.names_of(index);
    let mut cells: Vec<(CellIndex, f64)> = tally
        .cells()
        .filter(|(_, cell)| cell.spec == index)
        .map(|(cell_index, cell)| (cell_index, cell.total))
        .collect();
    cells.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let cells: Vec<CellIndex> = cells.into_iter().map(|it| it.0).collect();
    let mut of_cells: BTreeMap<CellIndex, Vec<Named>> = BTreeMap::new();
    for &named in &names {
        of_cells.entry(named.1).or_default().push(named);
    }
    let of_cell = |cell: &CellIndex| of_cells.get(cell).map(Vec::as_slice).unwrap_or_default();
    let expressed = |name: &str, cells: &[CellIndex]| {
        let names: Vec<Named> = if let [cell] = cells {
            of_cell(cell).to_vec()
        } else {
            let cells: BTreeSet<CellIndex> = cells.iter().copied().collect();
            names.iter().filter(|(_, cell, _)| cells.contains(cell)).copied().collect()
        };
        express(&Ask { spec: name, cells, names: &names, tally, by_cell, min_share, room: room.subcells })
    };

    let sharing: Vec<Sharing> = cells.iter().map(|&cell| Sharing::new(cell, tally, by_cell, of_cell(&cell))).collect();
    let (mut agreed, mut own) = agree(&sharing);
    let mut general = expressed(&spec.name, &agreed);
    // A cgroup gets its own subcells if the general ones keep fewer of its communities together.
    let better_alone: Vec<CellIndex> = sharing
        .iter()
        .filter(|it| agreed.contains(&it.cell))
        .filter(|it| it.kept(&general.subcells) < it.communities.len())
        .filter(|it| it.kept(&expressed(&spec.name, &[it.cell]).subcells) > it.kept(&general.subcells))
        .map(|it| it.cell)
        .collect();
    if !better_alone.is_empty() {
        // If no two agree, the general spec is that of the first, the largest.
        let first = agreed.first().copied();
        agreed.retain(|cell| !better_alone.contains(cell));
        if agreed.is_empty() {
            agreed.extend(first);
        }
        own.extend(better_alone.into_iter().filter(|cell| !agreed.contains(cell)));
        general = expressed(&spec.name, &agreed);
    }

    let mut specs = Specs::default();
    own.retain(|&cell| is_cell(cell, tally));
    // The largest come first, as in `cells`.
    own.sort_by_key(|own| cells.iter().position(|cell| cell == own));
    if own.len() > room.specs {
        specs.notes.push(Note::TooManySpecs { cell: spec.name.clone(), cgroups: own.len() - room.specs });
        own.truncate(room.specs);
    }
    for cell in own {
        let Some(cgroup) = tally.get(cell).and_then(|cell| cell.cgroup.as_deref()) else { continue };
        let last = cgroup.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let name = format!("{}:{}", spec.name, printable(last));
        let path = format!("{CGROUP_ROOT}{}", String::from_utf8_lossy(cgroup));
        let matches = CellMatch::CgroupRegex(format!("^{}$", regex::escape(&path)));
        let Expressed { subcells, bases, notes } = expressed(&name, &[cell]);
        specs.push(Cell { name, matches, subcells }, bases, notes);
    }
    let cell = Cell { name: spec.name.clone(), matches: cell_match(spec), subcells: general.subcells };
    specs.push(cell, general.bases, general.notes);
    specs
}

fn is_cell(cell: CellIndex, tally: &Tally) -> bool {
    tally.get(cell).is_some_and(|cell| cell.cgroup.is_some())
}

impl Specs {
    fn push(&mut self, cell: Cell, bases: Vec<Basis>, notes: Vec<Note>) {
        self.cells.push(cell);
        self.bases.push(bases);
        self.notes.extend(notes);
    }
}

impl Sharing {
    fn new(cell: CellIndex, tally: &Tally, by_cell: &ByCell<'_>, names: &[Named]) -> Self {
        let NameOwnership { sharers, classes, .. } = by_cell.resolve_names("", &[cell], tally, names);
        let communities: Vec<BTreeSet<Comm>> = sharers.iter().map(|it| it.names.keys().copied().collect()).collect();
        Self { cell, communities, alone: classes.iter().map(|it| it.0).collect() }
    }

    /// The communities that a cell with these subcells keeps together and separate from all other known threads.
    fn kept(&self, subcells: &[Subcell]) -> usize {
        let own = |name: &Comm| {
            subcell_of(subcells, name.as_bytes()).filter(|&at| subcells.get(at).is_some_and(|it| !it.is_catch_all()))
        };
        let mut there: BTreeMap<usize, usize> = BTreeMap::new();
        for at in self.communities.iter().flat_map(|names| names.iter().filter_map(own).collect::<BTreeSet<_>>()) {
            *there.entry(at).or_default() += 1;
        }
        for at in self.alone.iter().filter_map(own) {
            *there.entry(at).or_default() += 1;
        }
        let is_kept = |names: &&BTreeSet<Comm>| {
            let places: BTreeSet<Option<usize>> = names.iter().map(own).collect();
            let place = places.first().copied().flatten().filter(|_| places.len() == 1);
            place.is_some_and(|at| there.get(&at) == Some(&1))
        };
        self.communities.iter().filter(is_kept).count()
    }
}

/// The cgroups that one set of subcells can serve, beginning with the largest, and the others.
///
/// A cgroup agrees with those before it if no name of a community here is alone or in another community there.
fn agree(sharing: &[Sharing]) -> (Vec<CellIndex>, Vec<CellIndex>) {
    let (mut agreed, mut own) = (Vec::new(), Vec::new());
    let mut communities: Vec<BTreeSet<Comm>> = Vec::new();
    let mut of_name: BTreeMap<Comm, usize> = BTreeMap::new();
    let mut alone: BTreeSet<Comm> = BTreeSet::new();
    for it in sharing {
        let joined: Vec<BTreeSet<usize>> = it
            .communities
            .iter()
            .map(|names| names.iter().filter_map(|name| of_name.get(name).copied()).collect())
            .collect();
        let mut taken: BTreeSet<usize> = BTreeSet::new();
        let agrees = it.alone.iter().all(|name| !of_name.contains_key(name))
            && it.communities.iter().flatten().all(|name| !alone.contains(name))
            && joined.iter().all(|joined| joined.len() < 2 && joined.iter().all(|&at| taken.insert(at)));
        if !agrees {
            own.push(it.cell);
            continue;
        }
        agreed.push(it.cell);
        alone.extend(&it.alone);
        for (names, joined) in it.communities.iter().zip(joined) {
            let at = joined.first().copied().unwrap_or_else(|| {
                communities.push(BTreeSet::new());
                communities.len() - 1
            });
            if let Some(community) = communities.get_mut(at) {
                community.extend(names);
            }
            of_name.extend(names.iter().map(|name| (*name, at)));
        }
    }
    (agreed, own)
}

fn cell_match(spec: &CellSpec) -> CellMatch {
    match &spec.matcher {
        CgroupMatcher::Contains(part) => CellMatch::CgroupContains(part.clone()),
        CgroupMatcher::Regex(regex) => CellMatch::CgroupRegex(regex.as_str().to_owned()),
        CgroupMatcher::All => CellMatch::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::express::tests::decided_in;
    use crate::config::Verdict;

    /// A community of two threads: the samples of each and their names.
    type Pair = (f64, String, String);

    /// A pair for each letter.
    fn pairs(letters: &str, samples: [f64; 5]) -> Vec<Pair> {
        letters.chars().zip(samples).map(|(it, samples)| (samples, format!("{it}-r"), format!("{it}-w"))).collect()
    }

    /// The specs of allotments with these pairs: the part of the cgroup's name that identifies them, and the subcells.
    fn told(allotments: &[Vec<Pair>]) -> Vec<(String, usize)> {
        let paths: Vec<String> = (0..allotments.len()).map(|at| format!("/workload-tw-{at}.allotment.slice")).collect();
        let pairs = paths.iter().zip(allotments).flat_map(|(path, pairs)| pairs.iter().map(move |pair| (path, pair)));
        let threads = pairs.zip(0..).flat_map(|((path, (samples, one, other)), community)| {
            [one, other].map(|name| (path.as_str(), (name.as_str(), *samples, Verdict::Community(community))))
        });
        let cells = decided_in(threads, &[]).cells.into_iter();
        let name = |name: String| name.replace(".allotment.slice", "").replace("allotment:workload-tw-", "");
        cells.map(|cell| (name(cell.name), cell.subcells.len())).collect()
    }

    #[test]
    fn a_cgroup_has_its_own_spec_where_that_keeps_more_together() {
        let large = pairs("abcde", [300.0, 299.0, 298.0, 297.0, 296.0]);
        let small = pairs("fghij", [60.0, 50.0, 40.0, 30.0, 20.0]);
        let spec = |name: &str, subcells: usize| (name.to_owned(), subcells);
        // Together they need ten subcells.
        let both = [large.clone(), small.clone()];
        assert_eq!(told(&both), [spec("1", 6), spec("allotment", 6)]);
        // One that disagrees, and is smaller.
        let odd = vec![(1.0, "a-r".to_owned(), "b-w".to_owned())];
        assert_eq!(told(&[odd, large, small]), [spec("2", 6), spec("0", 2), spec("allotment", 6)]);
        // If each needs its own, the general one is for the largest.
        let one = pairs("abcde", [300.0, 299.0, 298.0, 10.0, 9.0]);
        let other = pairs("fghij", [297.0, 296.0, 295.0, 12.0, 11.0]);
        assert_eq!(told(&[one.clone(), other]), [spec("1", 6), spec("allotment", 6)]);
        // Names without a prefix in either are no reason.
        let nameless = vec![(50.0, String::new(), String::new())];
        assert_eq!(told(&[one, nameless]), [spec("allotment", 6)]);
    }

    /// The sharing in a cgroup, by names in words: communities, then threads that are alone.
    fn sharing(communities: &[&str], alone: &str) -> Sharing {
        let names = |text: &str| text.split_whitespace().map(Comm::from).collect::<BTreeSet<_>>();
        Sharing { cell: 0, communities: communities.iter().map(|it| names(it)).collect(), alone: names(alone) }
    }

    #[test]
    fn a_community_is_kept_that_has_a_subcell_for_itself() {
        let subcell = |prefixes: &[&str]| Subcell {
            name: String::new(),
            matches: prefixes.iter().map(|&prefix| vec![prefix.to_owned()]).collect(),
            hints: Vec::new(),
        };
        let subcells = [subcell(&["a", "b"]), subcell(&["c"]), Subcell::catch_all()];
        for (communities, alone, kept) in [
            (&["a1 b1"][..], "", 1),
            (&["a1 b1", "c1 c2"], "x", 2),
            (&["a1 b1", "c1 c2"], "a2", 1),
            (&["a1 a2", "b1 b2"], "", 0),
            (&["a1 c1"], "", 0),
            (&["a1 x"], "", 0),
            (&["x y"], "", 0),
        ] {
            assert_eq!(sharing(communities, alone).kept(&subcells), kept, "{communities:?} {alone}");
        }
    }

    #[test]
    fn cgroups_agree_where_no_name_would_have_to_be_in_two_places() {
        let first = (&["web db", "left right"][..], "log");
        for (communities, alone, agrees) in [
            (&["web db"][..], "log other", true),
            (&["web more"], "", true),
            (&["web db"], "right", false),
            (&["log more"], "", false),
            (&["web left"], "", false),
            (&["web one", "db two"], "", false),
            (&["web one", "left two"], "", true),
        ] {
            let mut both = [sharing(first.0, first.1), sharing(communities, alone)];
            both[1].cell = 1;
            let expected = if agrees { (vec![0, 1], vec![]) } else { (vec![0], vec![1]) };
            assert_eq!(agree(&both), expected, "{communities:?} {alone}");
        }
    }
}
