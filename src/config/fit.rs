//! All groups that were found, and those that a host can load.

use super::aligned::aligned;
use super::better::better;
use super::cell::{Basis, Cell, CellMatch, Subcell};
use super::cell_specs::{CellSpecs, SpecIndex};
use super::decide::{decide, Decision, DecisionOptions, Host, NoSamples};
use super::members::Members;
use super::mitosis::MitosisError;
use super::note::Note;
use super::order::OnCaches;
use super::scheduler::Scheduler;
use super::shares::CellCpus;
use super::tally::{CellIndex, Tally};
use super::written::{labels, labels_on};

/// A smaller difference of localities does not justify a cell spec.
const CLEARLY: f64 = 0.01;
/// More CPUs than any decision needs.
const ENOUGH_CPUS: usize = usize::MAX;

/// All groups that were found, also those for which the host has no CPUs, and those that it can load.
#[derive(Debug)]
pub(crate) struct Found {
    /// All groups that were found. Its notes are those on the groups, and not on the host.
    pub(crate) finding: Decision,
    /// The written decision: the same, or the part for which the host has CPUs.
    pub(crate) configuration: Decision,
    /// For each subcell of each cell of the finding, the subcell of the configuration that takes its threads; an undivided cell has
    /// one entry.
    pub(crate) taken_by: Vec<Vec<Option<String>>>,
    /// The label of each thread with the configuration; see [`labels`].
    pub(crate) labels: Option<Vec<u32>>,
    /// The same with the finding.
    pub(crate) labels_of_finding: Option<Vec<u32>>,
    /// The cell specs that the configuration leaves out.
    left_out: Vec<SpecIndex>,
}

impl Found {
    /// The labels of the threads with the configuration for the same host if only their names were known.
    pub(crate) fn labels_by_name(
        &self,
        specs: &CellSpecs,
        tally: &Tally,
        members: &Members,
        options: &DecisionOptions,
    ) -> Result<Option<Vec<u32>>, NoSamples> {
        let fewer = Fewer::new(specs, tally, options, self.left_out.clone());
        let by_name = decide(&fewer.specs, &fewer.tally, &Members::default(), &fewer.options())?;
        Ok(fewer.labels(&by_name, &fewer.moved(members)))
    }
}

/// Decides twice: as if there were CPUs for all, and for the host of the options. See [`better`] for `locality`.
///
/// A host without a CPU for each cell gets the cells with most samples; the threads of the others are in the remaining cells.
///
/// # Errors
/// [`NoSamples`].
pub(crate) fn find(
    specs: &CellSpecs,
    tally: &Tally,
    members: &Members,
    options: &DecisionOptions,
    locality: impl Fn(&[bool], &[u32]) -> Option<f64>,
) -> Result<Found, NoSamples> {
    let roomy = DecisionOptions { target_cpus: ENOUGH_CPUS, ..*options };
    let mut finding = better(specs, tally, members, &roomy, &locality)?;
    (finding.target_cpus, finding.refused) = (options.target_cpus, None);
    let host = Host::new(specs, tally, options);
    let labels_of_finding = labels(&finding, tally, members);
    let has_room = |cell: &Cell| finding.scheduler == Scheduler::Layered || cell.subcells.len() <= host.share;
    let Fitting { mut configuration, mut labels, left_out } =
        if host.refuses().is_none() && finding.cells.iter().all(has_room) {
            Fitting { configuration: finding.clone(), labels: labels_of_finding.clone(), left_out: Vec::new() }
        } else {
            best_that_fits(specs, tally, members, options, &locality)?
        };
    let mut taken_by = taken_by(&finding, &configuration);
    let mut fitted = Vec::new();
    if options.caches.is_some() {
        let fewer = Fewer::new(specs, tally, options, left_out.clone());
        let moved = fewer.moved(members);
        if let Some(cpus) = fewer.cpus().filter(|_| fewer.host().refuses().is_none()) {
            // All groups in the cells that there are.
            let whole = if left_out.is_empty() { finding.clone() } else { fewer.whole(&moved, &locality)? };
            if let Some(found) = aligned(&whole, &configuration, &fewer.tally, &moved, &cpus) {
                let of_whole = self::taken_by(&finding, &whole);
                for (taker, of_whole) in taken_by.iter_mut().flatten().zip(of_whole.into_iter().flatten()) {
                    let place = of_whole.and_then(|name| found.taken_by.get(&name));
                    if let Some(place) = place {
                        *taker = Some(place.clone());
                    }
                }
                (configuration, fitted) = (found.configuration, found.notes);
            }
        }
        labels = fewer.labels(&configuration, &moved);
    }
    // Without a configuration the scheduler has the root's cell, too.
    let is_nothing =
        |cells: &[Cell]| matches!(cells, [Cell { matches: CellMatch::All, subcells, .. }] if subcells.is_empty());
    let refused = || host.refuses().unwrap_or(MitosisError::NothingFits { target_cpus: options.target_cpus });
    let is_refused = is_nothing(&configuration.cells) && !is_nothing(&finding.cells);
    configuration.refused = is_refused.then(refused);
    let mut notes = finding.notes.clone();
    notes.extend(too_few(&finding, &taken_by, &host));
    let is_fitted = |of: &String| fitted.iter().any(|it| matches!(it, Note::Aligned(it) if it.cell == *of));
    let is_of_host = |note: &&Note| match note {
        Note::Merged { cell, .. } => !is_fitted(cell) && !finding.notes.contains(note),
        _ => false,
    };
    notes.extend(configuration.notes.iter().filter(is_of_host).cloned());
    notes.extend(fitted);
    configuration.notes = notes;
    Ok(Found { finding, configuration, taken_by, labels, labels_of_finding, left_out })
}

/// A decision for a host, the labels of the threads with it, and the cell specs that it leaves out.
struct Fitting {
    configuration: Decision,
    labels: Option<Vec<u32>>,
    left_out: Vec<SpecIndex>,
}

/// The decision for a host without a CPU for each cell or subcell: among the ways to leave out cell specs, the one that avoids most.
/// A `--cell` of the user is left out only if the host has no CPU for it.
fn best_that_fits(
    specs: &CellSpecs,
    tally: &Tally,
    members: &Members,
    options: &DecisionOptions,
    locality: &impl Fn(&[bool], &[u32]) -> Option<f64>,
) -> Result<Fitting, NoSamples> {
    let mut fewer = Fewer::new(specs, tally, options, Vec::new());
    while fewer.host().refuses().is_some() && fewer.leave_out_next(0) {}
    let mut best: Option<(f64, Fitting)> = None;
    loop {
        let found = fewer.decide(members, locality)?;
        let avoids = found.labels.as_ref().and_then(|labels| locality(&vec![true; labels.len()], labels));
        let avoids = avoids.unwrap_or_default();
        if best.as_ref().is_none_or(|(most, _)| avoids > most + CLEARLY) {
            best = Some((avoids, found));
        }
        if !fewer.leave_out_next(specs.given()) {
            return best.map(|it| it.1).ok_or(NoSamples);
        }
    }
}

/// A decision without some of the cell specs: the threads of their cells are in the other cells.
struct Fewer<'a> {
    all: &'a CellSpecs,
    of_all: &'a Tally,
    options: DecisionOptions,
    left_out: Vec<SpecIndex>,
    specs: CellSpecs,
    tally: Tally,
    /// The new cell of each cell.
    cell_of: Vec<CellIndex>,
}

impl<'a> Fewer<'a> {
    fn new(all: &'a CellSpecs, of_all: &'a Tally, options: &DecisionOptions, left_out: Vec<SpecIndex>) -> Self {
        let specs = all.without(&left_out);
        let (tally, cell_of) = of_all.under(&specs);
        Self { all, of_all, options: *options, left_out, specs, tally, cell_of }
    }

    /// The options, with as many cells as the host has then, if that was given.
    fn options(&self) -> DecisionOptions {
        let sampled = |specs: &CellSpecs, tally: &Tally| Host::new(specs, tally, &self.options).sampled;
        let (before, after) = (sampled(self.all, self.of_all), sampled(&self.specs, &self.tally));
        DecisionOptions { cells: self.options.cells.map(|cells| scaled(cells, before, after)), ..self.options }
    }

    fn host(&self) -> Host {
        Host::new(&self.specs, &self.tally, &self.options())
    }

    /// Leaves out that one with fewest samples for a cell, but none before `first`; false if there is none, but for the last, which
    /// always exists.
    fn leave_out_next(&mut self, first: SpecIndex) -> bool {
        let last = self.all.specs().len().saturating_sub(1);
        let kept = (0..last).filter(|spec| !self.left_out.contains(spec));
        let density = |place: usize| {
            let cells = self.tally.cells().filter(|(_, cell)| cell.spec == place).count();
            (cells > 0).then(|| self.tally.spec_total(place) / cells as f64)
        };
        // Their places among those that are left.
        let open = kept.enumerate().filter_map(|(place, spec)| Some((spec, density(place)?)));
        let next = open.filter(|(spec, _)| *spec >= first).min_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        let Some((next, _)) = next else { return false };
        let mut left_out = std::mem::take(&mut self.left_out);
        left_out.push(next);
        *self = Self::new(self.all, self.of_all, &self.options, left_out);
        true
    }

    /// The decision for these cells as if there were CPUs for all.
    fn whole(
        &self,
        moved: &Members,
        locality: &impl Fn(&[bool], &[u32]) -> Option<f64>,
    ) -> Result<Decision, NoSamples> {
        let roomy = DecisionOptions { target_cpus: ENOUGH_CPUS, ..self.options() };
        better(&self.specs, &self.tally, moved, &roomy, locality)
    }

    /// The CPUs of the cells of scx_mitosis, if the host has several caches and they are known.
    fn cpus(&self) -> Option<CellCpus> {
        let options = self.options();
        let known = OnCaches::known(options.caches, options.target_cpus);
        let OnCaches::Known { caches, .. } = known.filter(|_| options.scheduler == Scheduler::Mitosis)? else {
            return None;
        };
        Some(CellCpus::new(&self.specs, &self.tally, &options, caches))
    }

    /// The labels of the threads with a decision for these cells.
    fn labels(&self, decision: &Decision, moved: &Members) -> Option<Vec<u32>> {
        match self.cpus() {
            Some(cpus) => labels_on(&cpus, decision, &self.tally, moved),
            None => labels(decision, &self.tally, moved),
        }
    }

    /// The members, each in its new cell.
    fn moved(&self, members: &Members) -> Members {
        let mut moved = members.clone();
        for member in &mut moved.threads {
            member.cell = self.cell_of.get(member.cell as usize).copied().unwrap_or(CellIndex::MAX);
        }
        moved
    }

    fn decide(
        &self,
        members: &Members,
        locality: &impl Fn(&[bool], &[u32]) -> Option<f64>,
    ) -> Result<Fitting, NoSamples> {
        let moved = self.moved(members);
        let configuration = better(&self.specs, &self.tally, &moved, &self.options(), locality)?;
        let labels = labels(&configuration, &self.tally, &moved);
        Ok(Fitting { configuration, labels, left_out: self.left_out.clone() })
    }
}

/// How many cells a host has with fewer cell specs, given the number before: reduced in the same proportion as the cells with samples.
fn scaled(cells: usize, before: usize, after: usize) -> usize {
    // That of the root is one of them in any case.
    1 + (cells.saturating_sub(1) * after.saturating_sub(1)).div_ceil(before.saturating_sub(1).max(1))
}

/// The subcell of `configuration` that takes the threads of each subcell of `finding`.
fn taken_by(finding: &Decision, configuration: &Decision) -> Vec<Vec<Option<String>>> {
    let kept = || {
        let cells = configuration.cells.iter().zip(&configuration.bases);
        cells.flat_map(|(cell, bases)| {
            cell.subcells.iter().zip(bases).map(move |(subcell, basis)| (cell, subcell, basis))
        })
    };
    let name = |cell: &Cell, subcell: &Subcell| format!("{}/{}", cell.name, subcell.name);
    let takes = |cell: &Cell, basis: &Basis| {
        let of_class = |it: &(&Cell, &Subcell, &Basis)| it.2.class.is_some() && it.2.class == basis.class;
        let of_communities = |it: &(&Cell, &Subcell, &Basis)| {
            !basis.communities.is_empty()
                && basis.communities.iter().all(|community| it.2.communities.contains(community))
        };
        let of_all = |it: &(&Cell, &Subcell, &Basis)| it.0.name == cell.name && it.1.is_catch_all();
        let found = match (&basis.class, &basis.communities[..]) {
            // The same class can be in several cells.
            (Some(_), _) => kept().filter(of_class).max_by_key(|it| it.0.name == cell.name),
            (None, []) => kept().find(of_all),
            (None, _) => kept().find(of_communities),
        };
        let undivided = || {
            let is_rest = basis.class.is_none() && basis.communities.is_empty();
            let kept = configuration.cells.iter().find(|it| it.name == cell.name && it.subcells.is_empty());
            kept.filter(|_| is_rest).map(|cell| cell.name.clone())
        };
        found.map(|it| name(it.0, it.1)).or_else(undivided)
    };
    let of_cell = |(cell, bases): (&Cell, &Vec<Basis>)| match &bases[..] {
        [] => vec![configuration.cells.iter().find(|it| it.name == cell.name).map(|it| it.name.clone())],
        bases => bases.iter().map(|basis| takes(cell, basis)).collect(),
    };
    finding.cells.iter().zip(&finding.bases).map(of_cell).collect()
}

/// The note on the subcells for which the host has no CPUs.
fn too_few(finding: &Decision, taken_by: &[Vec<Option<String>>], host: &Host) -> Option<Note> {
    if finding.scheduler != Scheduler::Mitosis {
        return None;
    }
    let mut left_out: Vec<(String, Vec<String>)> = Vec::new();
    for ((cell, bases), taken_by) in finding.cells.iter().zip(&finding.bases).zip(taken_by) {
        // Threads of a class share nothing, so they lose nothing in a catch-all.
        let is_group = |basis: &Basis| !basis.communities.is_empty();
        let lost = cell.subcells.iter().zip(bases).zip(taken_by);
        let lost: Vec<String> = lost
            .filter(|((_, basis), taken_by)| is_group(basis) && taken_by.is_none())
            .map(|((subcell, _), _)| subcell.name.clone())
            .collect();
        let is_lost = cell.subcells.is_empty() && taken_by.iter().all(Option::is_none);
        if is_lost || !lost.is_empty() {
            left_out.push((cell.name.clone(), lost));
        }
    }
    let subcells = finding.cells.iter().map(|cell| cell.subcells.len().max(1)).max().unwrap_or(1);
    let note = Note::LeftOutOfHost { target_cpus: finding.target_cpus, cells: host.cells, subcells, left_out };
    matches!(&note, Note::LeftOutOfHost { left_out, .. } if !left_out.is_empty()).then_some(note)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{mitosis, CellOptions, Member, Verdict};
    use crate::sample::Comm;

    const A: &str = "/workload.slice/workload-tw-a.allotment.slice";
    const B: &str = "/workload.slice/workload-tw-b.allotment.slice";

    /// What is found of threads with these cgroups, names, samples and communities.
    fn found(threads: &[(&str, &str, u32, Option<u32>)], target_cpus: usize) -> Found {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let (mut tally, mut members) = (Tally::default(), Members::default());
        for (&(cgroup, name, samples, community), thread) in threads.iter().zip(0..) {
            let (cell, comm) = (tally.cell(specs.assign(cgroup.as_bytes())), Some(Comm::from(name)));
            let samples = f64::from(samples);
            tally.add(cell, comm, samples);
            let verdict = community.map_or(Verdict::Alone, Verdict::Community);
            members.threads.push(Member { thread, pid: 1, tid: thread, comm, hint: None, cell, samples, verdict });
        }
        find(&specs, &tally, &members, &DecisionOptions::new(0.05, target_cpus), |_, _| None).unwrap()
    }

    fn names(decision: &Decision) -> Vec<String> {
        let names = |cell: &Cell| match &cell.subcells[..] {
            [] => vec![cell.name.clone()],
            subcells => subcells.iter().map(|it| format!("{}/{}", cell.name, it.name)).collect(),
        };
        decision.cells.iter().flat_map(names).collect()
    }

    const THREADS: [(&str, &str, u32, Option<u32>); 7] = [
        ("/", "parse1", 500, Some(0)),
        ("/", "parse2", 500, Some(0)),
        ("/", "index1", 300, Some(1)),
        ("/", "index2", 300, Some(1)),
        ("/", "stat1", 200, Some(2)),
        ("/", "stat2", 200, Some(2)),
        ("/", "log", 400, None),
    ];

    #[test]
    fn with_cpus_for_all_the_finding_is_the_configuration() {
        for target_cpus in [5, 64] {
            let found = found(&THREADS, target_cpus);
            assert_eq!(names(&found.finding), names(&found.configuration));
            assert_eq!(found.configuration.target_cpus, target_cpus);
            assert!(found.taken_by.iter().flatten().all(Option::is_some), "{:?}", found.taken_by);
            assert!(found.configuration.notes.is_empty(), "{:?}", found.configuration.notes);
            assert_eq!(found.labels, found.labels_of_finding);
        }
    }

    #[test]
    fn a_host_gets_what_fits_and_is_told_the_rest() {
        let all = names(&found(&THREADS, 64).finding);
        for target_cpus in 1..6 {
            let found = found(&THREADS, target_cpus);
            assert_eq!(names(&found.finding), all, "the host does not change what was found");
            let subcells = found.configuration.cells[0].subcells.len();
            assert!(subcells <= target_cpus && mitosis::check(&found.configuration.cells).is_ok());
            let nothing = (target_cpus == 1).then_some(MitosisError::NothingFits { target_cpus: 1 });
            assert_eq!(found.configuration.refused, nothing);
            let left_out = found.taken_by[0].iter().filter(|it| it.is_none()).count();
            let note = found.configuration.notes.iter().find(|note| note.leaves_out());
            // The fourth subcell is that of a class.
            assert_eq!(note.is_some(), target_cpus < 4, "{target_cpus}: {:?}", found.configuration.notes);
            assert_eq!(left_out, all.len() - 1 - subcells.saturating_sub(1), "{:?}", found.taken_by);
        }
        let two = found(&THREADS, 2).configuration;
        let note = two.notes.iter().map(ToString::to_string).find(|note| note.contains("is without")).unwrap();
        assert!(
            !note.contains("rest/log") && note.contains("has 2 CPUs") && note.contains("--target-cpus 64"),
            "{note}"
        );
        assert!(note.contains("(5 for all that was found)") && note.contains("--target layered"), "{note}");
    }

    #[test]
    fn a_host_with_fewer_cpus_than_cells_gets_those_with_most_samples() {
        let threads = [
            (A, "web1", 900, Some(0)),
            (A, "web2", 900, Some(0)),
            (B, "db1", 300, Some(1)),
            (B, "db2", 300, Some(1)),
            ("/workload.slice", "log", 5000, None),
            ("/", "init", 100, None),
        ];
        // The allotments are two cells, the slice and the root one each.
        let all = found(&threads, 16);
        assert!(names(&all.finding).contains(&"allotment/web".to_owned()), "{:?}", names(&all.finding));
        let three = found(&threads, 3);
        assert_eq!(names(&three.finding), names(&all.finding));
        let cells: Vec<&str> = three.configuration.cells.iter().map(|cell| cell.name.as_str()).collect();
        assert_eq!((cells, three.configuration.refused.clone()), (vec!["workload.slice", "rest"], None));
        let note = three.configuration.notes.iter().map(ToString::to_string).find(|it| it.contains("is without"));
        assert!(note.is_some_and(|note| note.contains("allotment/")), "{:?}", three.configuration.notes);
        let one = found(&threads, 1);
        assert_eq!(one.configuration.refused, Some(MitosisError::FewCpus { target_cpus: 1, cells: 4 }));
        assert_eq!(names(&one.configuration), ["rest"]);
    }
}
