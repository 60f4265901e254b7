//! The decision on cells and subcells, from the tally.

use thiserror::Error;

use super::cell::{Basis, Cell};
use super::cell_specs::{CellSpecs, SpecIndex};
use super::express::ROOM;
use super::layered::MAX_LAYERS;
use super::members::Members;
use super::mitosis::{MitosisError, MAX_CELLS};
use super::note::Note;
use super::owners::ByCell;
use super::scheduler::Scheduler;
use super::specs::{specs, Room, Specs};
use super::tally::{CellIndex, Tally};
use crate::sample::caches::Caches;

/// The options of the decision.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct DecisionOptions {
    /// `--min-share` as a fraction: the smallest share of the samples with which a class gets its own subcell.
    pub min_share: f64,
    /// `--target-cpus`: the number of CPUs of the target host.
    pub target_cpus: usize,
    /// `--target`: the target scheduler.
    pub scheduler: Scheduler,
    /// The cells of the target host with that of the root, if they are not those with samples.
    pub cells: Option<usize>,
    /// The last-level caches of the target host, if they are known: subcells of scx_mitosis then fit them.
    pub caches: Option<Caches>,
    /// `--this-host`: layers may match properties of this host, such as process ids.
    pub this_host: bool,
}

impl DecisionOptions {
    /// For classes of at least `min_share`, from 0 to 1, and scx_mitosis on a host with this many CPUs.
    #[must_use]
    pub const fn new(min_share: f64, target_cpus: usize) -> Self {
        Self { min_share, target_cpus, scheduler: Scheduler::Mitosis, cells: None, caches: None, this_host: false }
    }
}

/// There were no samples, so there is nothing to decide: a scheduler rejects an empty list of cells.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
#[error("there are no samples, so there is no configuration")]
pub struct NoSamples;

/// The decision, and the notes for the user.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Decision {
    /// The cells, in the order of the cell specs.
    pub cells: Vec<Cell>,
    /// The basis of each subcell, in the order of the cells and of their subcells.
    pub bases: Vec<Vec<Basis>>,
    /// Facts that the cells do not show.
    pub notes: Vec<Note>,
    /// Why scx_mitosis would reject the cells on the target host, whatever their subcells are.
    pub refused: Option<MitosisError>,
    /// The number of CPUs of the target host.
    pub target_cpus: usize,
    /// The last-level caches of the target host, if they are known.
    pub caches: Option<Caches>,
    /// The scheduler that they are for: scx_layered takes more subcells in a cell than scx_mitosis.
    pub scheduler: Scheduler,
}

/// Decides on cells and subcells.
///
/// Each cell spec with samples is written, in order. `rest` is left out too if it has none: the scheduler has its cell 0 for
/// such threads anyway.
///
/// Threads that share memory come first: each community gets a subcell, or the 7 most valuable ones if there are more (for
/// scx_layered as many as it has layers beside those of the cells). A
/// community is described by the names of its threads; [`Note`] says what is done if other threads have these names too. If the
/// threads of some cgroups share otherwise than those of the others, these cgroups get their own specs before the general one.
///
/// A class of threads without shared memory gets a subcell if there is room and it has `min_share` of the cell spec's samples.
/// A cell spec with several cgroups gives several cells with the same subcells. So a class also gets a subcell if it has that
/// share in one of them (of at least 100 samples): otherwise the main thread of a small allotment would vanish beside a large
/// one. A cell spec without communities and classes is not divided.
///
/// Without members only names are known, and all threads are in classes.
///
/// If scx_mitosis would not have a CPU for every subcell, cells get fewer of them; see [`Note::FewCpus`]. If it would not have one
/// for every cell, [`Decision::refused`] says so. [`super::find`] decides what to do then.
///
/// # Errors
/// [`NoSamples`] if the tally is empty.
pub fn decide(
    cell_specs: &CellSpecs,
    tally: &Tally,
    members: &Members,
    options: &DecisionOptions,
) -> Result<Decision, NoSamples> {
    let mut decision = Decision {
        cells: Vec::new(),
        bases: Vec::new(),
        notes: Vec::new(),
        refused: None,
        target_cpus: options.target_cpus,
        caches: options.caches,
        scheduler: options.scheduler,
    };
    let by_cell = ByCell::new(members);
    let present = |index: &SpecIndex| tally.spec_total(*index) > 0.0;
    let count = (0..cell_specs.specs().len()).filter(present).count();
    let host = Host::new(cell_specs, tally, options);
    let mut left_out = Vec::new();
    // What the general specs leave; each spec takes at least one cell.
    let mut room = Room { specs: MAX_CELLS.saturating_sub(count), subcells: host.subcells() };
    for (index, spec) in cell_specs.specs().iter().enumerate().filter(|(index, _)| present(index)) {
        let own = specs(index, spec, tally, &by_cell, options.min_share, room);
        if room.subcells < host.most() {
            let more = Room { subcells: host.most(), ..room };
            let all = specs(index, spec, tally, &by_cell, options.min_share, more);
            left_out.extend(missing(&all, &own));
        }
        room.specs = room.specs.saturating_sub(own.cells.len());
        decision.cells.extend(own.cells);
        decision.bases.extend(own.bases);
        decision.notes.extend(own.notes);
        let of_spec = || tally.cells().filter(|(_, cell)| cell.spec == index);
        let untold: f64 = of_spec().map(|(_, cell)| cell.untold).sum();
        if untold > 0.0 {
            let share = untold / tally.spec_total(index);
            decision.notes.push(Note::TooManyNames { cell: spec.name.clone(), share });
        }
        let cells: Vec<CellIndex> = of_spec().map(|it| it.0).collect();
        for (why, (threads, samples)) in by_cell.unknown(&cells) {
            let share = samples / tally.spec_total(index);
            decision.notes.push(Note::Unknown { cell: spec.name.clone(), threads, share, why });
        }
    }
    if decision.cells.is_empty() {
        return Err(NoSamples);
    }
    unique_names(&mut decision.cells);
    decision.refused = host.refuses();
    if !left_out.is_empty() && decision.refused.is_none() {
        let Host { target_cpus, cells, share, .. } = host;
        decision.notes.push(Note::FewCpus { target_cpus, cells, share, left_out });
    }
    Ok(decision)
}

/// The subcells of `all` for which `own` has neither the communities nor the class, by their cells.
fn missing(all: &Specs, own: &Specs) -> Vec<(String, Vec<String>)> {
    let mut missing = Vec::new();
    for (cell, bases) in all.cells.iter().zip(&all.bases) {
        let at = own.cells.iter().position(|it| it.name == cell.name);
        let kept = at.and_then(|at| own.bases.get(at)).map(Vec::as_slice).unwrap_or_default();
        let is_kept = |basis: &Basis| match &basis.class {
            Some(_) => kept.iter().any(|it| it.class == basis.class),
            None => basis.communities.iter().all(|community| kept.iter().any(|it| it.communities.contains(community))),
        };
        let lost = cell.subcells.iter().zip(bases).filter(|(_, basis)| !is_kept(basis));
        let lost: Vec<String> = lost.map(|(subcell, _)| subcell.name.clone()).collect();
        if !lost.is_empty() {
            missing.push((cell.name.clone(), lost));
        }
    }
    missing
}

/// Makes names unique by a number.
fn unique_names(cells: &mut [Cell]) {
    for index in 0..cells.len() {
        let (before, after) = cells.split_at_mut(index);
        let Some(cell) = after.first_mut() else { return };
        let numbered = (2_usize..).map(|number| format!("{}-{number}", cell.name));
        let mut names = std::iter::once(cell.name.clone()).chain(numbered);
        cell.name = names.find(|name| !before.iter().any(|it| it.name == *name)).unwrap_or_default();
    }
}

/// The CPUs that the host has for the cells.
///
/// scx_mitosis gives every cell an equal share of the CPUs, and each subcell needs one of its cell's (`compute_targets`). Cells
/// are counted by samples: an idle cgroup that matches is one more.
pub(super) struct Host {
    scheduler: Scheduler,
    target_cpus: usize,
    /// One for each matched cgroup, and the root's, which always exists.
    pub(super) cells: usize,
    /// Those of them that have samples, and the root's.
    pub(super) sampled: usize,
    /// The smallest number of CPUs of a cell.
    pub(super) share: usize,
    /// The layers that scx_layered needs for what is left of each cell, and for all other threads.
    layers: usize,
}

impl Host {
    pub(super) fn new(cell_specs: &CellSpecs, tally: &Tally, options: &DecisionOptions) -> Self {
        let is_root = |index: SpecIndex| index + 1 == cell_specs.specs().len();
        let sampled = 1 + tally.cells().filter(|(_, cell)| !is_root(cell.spec)).count();
        let DecisionOptions { target_cpus, scheduler, .. } = *options;
        let cells = options.cells.unwrap_or(sampled);
        let specs = cell_specs.specs().len();
        let layers = 1 + (0..specs).filter(|&index| !is_root(index) && tally.spec_total(index) > 0.0).count();
        Self { scheduler, target_cpus, cells, sampled, share: target_cpus / cells, layers }
    }

    /// Subcells that a cell can have besides its catch-all.
    fn subcells(&self) -> usize {
        match self.scheduler {
            Scheduler::Mitosis => self.share.saturating_sub(1).min(ROOM),
            Scheduler::Layered => self.most(),
        }
    }

    /// The same if there are CPUs for all of them. A cell cannot know how many layers another one needs: if there are too many in
    /// all, the least valuable are left out when layers are made.
    fn most(&self) -> usize {
        match self.scheduler {
            Scheduler::Mitosis => ROOM,
            Scheduler::Layered => MAX_LAYERS.saturating_sub(self.layers),
        }
    }

    pub(super) fn refuses(&self) -> Option<MitosisError> {
        let Self { target_cpus, cells, .. } = *self;
        match self.scheduler {
            Scheduler::Layered => None,
            Scheduler::Mitosis if cells > MAX_CELLS => Some(MitosisError::TooManyCells { cells }),
            Scheduler::Mitosis => (cells > target_cpus).then_some(MitosisError::FewCpus { target_cpus, cells }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cell_specs::CellOptions;
    use crate::config::written::Places;
    use crate::config::{layered, layers, CellMatch, Member, Verdict};
    use crate::sample::Comm;

    const PAIR: [&str; 2] =
        ["/workload.slice/workload-tw-a.allotment.slice", "/workload.slice/workload-tw-b.allotment.slice"];

    fn decided(samples: &[(&str, &str, u32)], options: &DecisionOptions) -> Decision {
        let cell_specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let mut tally = Tally::default();
        for &(path, comm, count) in samples {
            let cell = tally.cell(cell_specs.assign(path.as_bytes()));
            tally.add(cell, Some(Comm::from(comm)), f64::from(count));
        }
        decide(&cell_specs, &tally, &Members::default(), options).unwrap()
    }

    fn names(cell: &Cell) -> Vec<&str> {
        cell.subcells.iter().map(|subcell| subcell.name.as_str()).collect()
    }

    const OPTIONS: DecisionOptions = DecisionOptions::new(0.05, 64);

    #[test]
    fn no_samples_are_an_error_not_a_configuration() {
        let cell_specs = CellSpecs::new(&CellOptions::default()).unwrap();
        assert_eq!(decide(&cell_specs, &Tally::default(), &Members::default(), &OPTIONS), Err(NoSamples));
    }

    #[test]
    fn groups_without_samples_are_left_out() {
        let decision = decided(&[("/workload.slice", "web", 10)], &OPTIONS);
        assert_eq!(decision.cells.len(), 1);
        assert_eq!(decision.cells[0].matches, CellMatch::CgroupContains("workload.slice".to_owned()));
        assert_eq!(names(&decision.cells[0]), ["web", "rest"]);
        let decision = decided(&[("/", "init", 1), (PAIR[0], "web", 1)], &OPTIONS);
        let cells: Vec<_> = decision.cells.iter().map(|cell| cell.name.as_str()).collect();
        assert_eq!(cells, ["allotment", "rest"]);
    }

    #[test]
    fn min_share_is_reached_exactly() {
        let decision = decided(&[("/", "seven", 7), ("/", "six", 6), ("/", "other", 127)], &OPTIONS);
        assert_eq!(names(&decision.cells[0]), ["other", "seven", "rest"]);
        // Likewise in a small cgroup.
        let decision = decided(&[(PAIR[0], "web", 2400), (PAIR[1], "db", 95), (PAIR[1], "logger", 5)], &OPTIONS);
        assert_eq!(names(&decision.cells[0]), ["logger", "web", "db", "rest"]);
        assert_eq!(decision.bases[0].iter().map(|it| it.samples).collect::<Vec<_>>(), [5.0, 2400.0, 95.0, 0.0]);
    }

    #[test]
    fn a_share_of_what_stands_for_many_cgroups_is_none() {
        let paths: Vec<_> = (0..=Tally::MAX_CELLS).map(|at| format!("/workload-tw-{at}.allotment.slice")).collect();
        let mut samples: Vec<_> = paths.iter().map(|path| (path.as_str(), "web", 10)).collect();
        samples.push((paths[Tally::MAX_CELLS].as_str(), "db", 400));
        let decision = decided(&samples, &DecisionOptions { target_cpus: 1 << 20, ..OPTIONS });
        assert_eq!(names(&decision.cells[0]), ["web", "rest"]);
    }

    #[test]
    fn a_group_without_a_class_is_not_divided() {
        let samples: Vec<_> = (0..26).map(|at| format!("{}x", (b'a' + at) as char)).collect();
        let samples: Vec<_> = samples.iter().map(|name| ("/", name.as_str(), 1)).collect();
        let decision = decided(&samples, &OPTIONS);
        assert!(decision.cells[0].subcells.is_empty());
    }

    #[test]
    fn the_seven_most_sampled_classes_are_taken_and_it_is_said() {
        let samples: Vec<_> =
            (0..10_u32).map(|at| (format!("{}name", char::from(b'a' + at as u8)), 100 + at)).collect();
        let mut samples: Vec<_> = samples.iter().map(|(name, count)| ("/", name.as_str(), *count)).collect();
        // A name without a prefix gets no subcell either.
        samples.push(("/", "", 150));
        let decision = decided(&samples, &OPTIONS);
        assert_eq!(decision.cells[0].subcells.len(), 8);
        let said: Vec<_> = decision.notes.iter().map(ToString::to_string).collect();
        assert!(said[1].contains("(25.4% of its samples): cname, bname, aname"), "{said:?}");
    }

    #[test]
    fn upstream_bug_15_a_thread_without_a_name_is_no_class() {
        let cell_specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let mut tally = Tally::default();
        let cell = tally.cell(cell_specs.assign(b"/"));
        tally.add(cell, None, 90.0);
        tally.add(cell, Some(Comm::from(":1234")), 5.0);
        tally.add(cell, Some(Comm::from("9")), 5.0);
        let decision = decide(&cell_specs, &tally, &Members::default(), &OPTIONS).unwrap();
        // A thread may really be called ":1234" or "9": these are ordinary names.
        let prefixes: Vec<_> = decision.cells[0].subcells.iter().map(|subcell| subcell.matches.clone()).collect();
        assert_eq!(prefixes, [vec![vec![":1234".to_owned()]], vec![vec!["9".to_owned()]], vec![vec![]]]);
    }

    #[test]
    fn upstream_bug_17_a_small_allotment_keeps_its_main_thread() {
        let decision = decided(&[(PAIR[0], "web", 2400), (PAIR[1], "db", 100)], &OPTIONS);
        assert_eq!(names(&decision.cells[0]), ["web", "db", "rest"]);
        // The same beside other cell specs.
        let decision = decided(&[("/", "sys", 100_000), (PAIR[0], "web", 10)], &OPTIONS);
        assert_eq!(names(&decision.cells[0]), ["web", "rest"]);
        // Too few samples show nothing.
        let decision = decided(&[(PAIR[0], "web", 2400), (PAIR[1], "db", 99)], &OPTIONS);
        assert_eq!(names(&decision.cells[0]), ["web", "rest"]);
    }

    #[test]
    fn names_that_were_too_many_are_said() {
        let cell_specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let mut tally = Tally::new(1);
        let cell = tally.cell(cell_specs.assign(b"/"));
        for name in ["a", "b"] {
            tally.add(cell, Some(Comm::from(name)), 5.0);
        }
        let decision = decide(&cell_specs, &tally, &Members::default(), &OPTIONS).unwrap();
        assert_eq!(decision.notes, [Note::TooManyNames { cell: "rest".to_owned(), share: 0.5 }]);
    }

    #[test]
    fn names_of_subcells_are_unique() {
        let decision = decided(&[("/", "rest", 50), ("/", "other", 50)], &OPTIONS);
        assert_eq!(names(&decision.cells[0]), ["other", "rest-2", "rest"]);
    }

    #[test]
    fn the_least_valuable_subcells_are_left_out_until_every_one_has_a_cpu() {
        let samples = [(PAIR[0], "web", 600), (PAIR[0], "db", 500), (PAIR[1], "log", 550), ("/", "init", 1)];
        let with = |target_cpus: usize| decided(&samples, &DecisionOptions { target_cpus, ..OPTIONS });
        let enough = with(12);
        assert_eq!((names(&enough.cells[0]), &enough.notes[..]), (vec!["web", "log", "db", "rest"], &[][..]));
        // Three cells including the root's: 3, 2 and 1 CPU each.
        for (target_cpus, share, kept, lost) in [
            (11, 3, &["web", "log", "rest"][..], &["db"][..]),
            (6, 2, &["web", "rest"], &["log", "db"]),
            (5, 1, &[], &["web", "log", "db"]),
        ] {
            let decision = with(target_cpus);
            assert_eq!(names(&decision.cells[0]), kept, "{target_cpus}");
            assert_eq!(decision.bases[0].len(), kept.len());
            let lost: Vec<_> = lost.iter().map(|&name| name.to_owned()).collect();
            let left_out = |it: &(String, Vec<String>)| it.0 == "allotment" && it.1 == lost;
            let is_said = |note: &Note| match note {
                Note::FewCpus { cells: 3, share: has, left_out: out, .. } => *has == share && out.iter().any(left_out),
                _ => false,
            };
            assert!(decision.notes.iter().any(is_said), "{:?}", decision.notes);
            let crowded = decision.cells.iter().filter(|cell| cell.subcells.len() > share).count();
            assert_eq!((crowded, decision.refused), (0, None));
        }
        let layered = decided(&samples, &DecisionOptions { target_cpus: 2, scheduler: Scheduler::Layered, ..OPTIONS });
        assert_eq!((layered.cells, layered.refused), (enough.cells, None), "layers share CPUs");
    }

    #[test]
    fn a_subcell_that_is_left_out_does_not_fall_to_another() {
        let samples = [("/", "web", 600), ("/", "webserver", 500), ("/", "log", 300)];
        let decision = decided(&samples, &DecisionOptions { target_cpus: 4, ..OPTIONS });
        assert_eq!(names(&decision.cells[0]), ["webserver", "web", "log", "rest"]);
        // A prefix of "web" would take the threads of the other, so it gets no subcell without it.
        let decision = decided(&samples, &DecisionOptions { target_cpus: 2, ..OPTIONS });
        assert_eq!(names(&decision.cells[0]), ["webserver", "rest"]);
    }

    #[test]
    fn cells_that_cannot_have_a_cpu_each_are_refused() {
        let samples = [(PAIR[0], "web", 600), (PAIR[1], "log", 550)];
        let decision = decided(&samples, &DecisionOptions { target_cpus: 2, ..OPTIONS });
        assert_eq!(decision.refused, Some(MitosisError::FewCpus { target_cpus: 2, cells: 3 }));
        assert_eq!(decided(&samples, &DecisionOptions { target_cpus: 3, ..OPTIONS }).refused, None);
        let paths: Vec<_> = (0..256).map(|at| format!("/workload-tw-{at}.allotment.slice")).collect();
        let samples: Vec<_> = paths.iter().map(|path| (path.as_str(), "a", 1)).collect();
        let options = DecisionOptions { target_cpus: 10_000, ..OPTIONS };
        assert_eq!(decided(&samples, &options).refused, Some(MitosisError::TooManyCells { cells: 257 }));
        assert_eq!(decided(&samples[1..], &options).refused, None);
    }

    #[test]
    fn layered_has_as_many_communities_as_layers() {
        let decide_for = |pairs: u32, cgroup: &str| {
            let cell_specs = CellSpecs::new(&CellOptions::default()).unwrap();
            let (mut tally, mut members) = (Tally::default(), Members::default());
            let cell = tally.cell(cell_specs.assign(cgroup.as_bytes()));
            for (thread, community) in (0..2 * pairs).zip((0..pairs).flat_map(|pair| [pair, pair])) {
                let end = if thread % 2 == 0 { "reader" } else { "writer" };
                let comm = Some(Comm::from(format!("{}-{end}", char::from(b'a' + community as u8)).as_str()));
                tally.add(cell, comm, 10.0);
                let verdict = Verdict::Community(community);
                let member = Member { thread, pid: 1, tid: thread, comm, hint: None, cell, samples: 10.0, verdict };
                members.threads.push(member);
                members.affinity.add(community, community, f64::from(100 - community));
            }
            let options = DecisionOptions { scheduler: Scheduler::Layered, ..OPTIONS };
            let decision = decide(&cell_specs, &tally, &members, &options).unwrap();
            let made = layers(&decision);
            assert_eq!(layered::check(&made.layers), Ok(()));
            let consumer = layered::Consumer::new(&made.layers).unwrap();
            let of = |it: &Member| consumer.assign(cgroup.as_bytes(), it.comm.unwrap_or_default().as_bytes()).unwrap();
            let places: Vec<usize> = members.threads.iter().map(of).collect();
            // Those that share a layer: only a community does, and the last layer keeps no threads together.
            let rest = made.of.iter().position(|it| it.1.is_none()).unwrap();
            let kept = places.chunks(2).filter(|pair| pair[0] == pair[1] && pair[0] != rest).count();
            assert!(Places::new(&decision, &tally, &members).is_ok(), "there is a report");
            let notes: Vec<String> = decision.notes.iter().chain(&made.notes).map(ToString::to_string).collect();
            (kept, notes)
        };
        assert_eq!(decide_for(12, "/"), (12, Vec::new()));
        assert_eq!(decide_for(15, "/"), (15, Vec::new()));
        // A layer for what is left of the cell, and one for all others.
        let (kept, notes) = decide_for(14, "/workload.slice");
        assert_eq!((kept, notes.len()), (14, 1));
        assert!(
            notes[0].starts_with("scx_layered takes 16 uses of CgroupRegex, so these layers have CgroupContains"),
            "{notes:?}"
        );
        let (kept, notes) = decide_for(18, "/");
        assert_eq!(kept, 15);
        // The least valuable ones.
        let left_out = "p-reader, p-writer; q-reader, q-writer; r-reader, r-writer";
        assert!(notes.len() == 1 && left_out.split("; ").all(|it| notes[0].contains(it)), "{notes:?}");
    }
}
