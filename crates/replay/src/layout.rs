//! CPUs for the groups of a configuration, where no scheduler gives them: pure.

use std::collections::{BTreeMap, BTreeSet};

use super::script::Script;
use scxprof_base::sample::places::CpuPlaces;
use scxprof_base::sample::Task;

/// The CPUs that each mock thread may use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// Sets of CPUs, with the names of the groups that have them.
    pub sets: Vec<(String, Vec<u32>)>,
    /// The set of each thread of the script; `None` for all CPUs.
    pub of_thread: Vec<Option<u32>>,
}

/// The cell and the subcell of a cgroup's path and a thread's name; `None` if nothing takes the thread.
pub type GroupOf<'a> = &'a dyn Fn(&Task<'_>) -> Option<(String, String)>;

/// Part `index` of `count` of the CPUs: as many as the others have, neighbours, and at least one.
fn part(cpus: &[u32], index: usize, count: usize) -> &[u32] {
    let begin = index * cpus.len() / count.max(1);
    let end = ((index + 1) * cpus.len() / count.max(1)).max(begin + 1);
    cpus.get(begin..end).unwrap_or_default()
}

impl Layout {
    /// The CPUs of each thread of the script.
    pub(super) fn of_threads(&self) -> Vec<Option<&[u32]>> {
        let set = |number: &Option<u32>| Some(self.sets.get((*number)? as usize)?.1.as_slice());
        self.of_thread.iter().map(set).collect()
    }

    /// Gives each cell, and in it each subcell, an equal part of the CPUs, as scx_mitosis does without rebalancing: CPUs of one
    /// last-level cache are neighbours. Where there are more groups than CPUs, several have the same. Threads that nothing takes
    /// have all CPUs.
    ///
    /// `group_of` gives the cell and the subcell (empty if the cell is not divided) of a thread.
    #[must_use]
    pub fn new(script: &Script, group_of: GroupOf<'_>, cpus: &[u32], places: &CpuPlaces) -> Self {
        let mut cpus = cpus.to_vec();
        cpus.sort_unstable_by_key(|&cpu| places.get(cpu).map_or((0, 0, cpu), |place| (place.llc, place.core, cpu)));
        // Cell by cell, the subcells of each.
        let mut cells: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut of_thread = Vec::with_capacity(script.threads.len());
        for mock in &script.threads {
            let process = script.processes.get(mock.process as usize);
            let path = process.and_then(|process| script.cgroups.get(process.cgroup? as usize));
            let path = path.map_or(&b""[..], Vec::as_slice);
            let pid = process.map_or(0, |process| process.pid);
            let main = process.and_then(|process| script.threads.get(process.main as usize));
            let task = Task::new(path, mock.comm.as_bytes()).ids(pid, mock.tid);
            let group = group_of(&task.process(main.map(|main| main.comm.as_bytes())));
            if let Some((cell, subcell)) = &group {
                cells.entry(cell.clone()).or_default().insert(subcell.clone());
            }
            of_thread.push(group);
        }
        let mut sets = Vec::new();
        let mut numbers: BTreeMap<(String, String), u32> = BTreeMap::new();
        let count = cells.len();
        for (index, (cell, subcells)) in cells.into_iter().enumerate() {
            let of_cell = part(&cpus, index, count);
            let count = subcells.len();
            for (index, subcell) in subcells.into_iter().enumerate() {
                numbers.insert((cell.clone(), subcell.clone()), sets.len() as u32);
                let name = if subcell.is_empty() { cell.clone() } else { format!("{cell}/{subcell}") };
                sets.push((name, part(of_cell, index, count).to_vec()));
            }
        }
        let of_thread = of_thread.into_iter().map(|group| numbers.get(&group?).copied()).collect();
        Self { sets, of_thread }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mock, MockProcess};
    use scxprof_base::sample::places::CpuPlace;
    use scxprof_base::sample::Comm;

    fn script(threads: &[(&str, &str)]) -> Script {
        let mut script = Script::default();
        for (number, (path, comm)) in threads.iter().enumerate() {
            script.cgroups.push(path.as_bytes().to_vec());
            let number = number as u32;
            script.processes.push(MockProcess { main: number, cgroup: Some(number), ..MockProcess::default() });
            let comm = Comm::new(comm.as_bytes());
            script.threads.push(Mock { process: number, comm, is_active: true, ..Mock::default() });
        }
        script
    }

    /// A cell of two subcells, and one of all else.
    #[allow(clippy::unnecessary_wraps)]
    fn group_of(task: &Task<'_>) -> Option<(String, String)> {
        let (cell, subcell) = match (task.cgroup, task.comm) {
            (b"/db.service", comm) if comm.starts_with(b"pool-") => ("db", "pool"),
            (b"/db.service", _) => ("db", "rest"),
            _ => ("rest", ""),
        };
        Some((cell.to_owned(), subcell.to_owned()))
    }

    #[test]
    fn each_group_has_neighbours() {
        let script =
            script(&[("/db.service", "pool-1"), ("/db.service", "log"), ("/db.service", "pool-2"), ("/x", "web")]);
        let mut places = CpuPlaces::default();
        // Even CPUs have one last-level cache, odd ones another.
        for cpu in 0..8 {
            places.set(cpu, CpuPlace { core: cpu, llc: cpu % 2, node: 0 });
        }
        let layout = Layout::new(&script, &group_of, &[0, 1, 2, 3, 4, 5, 6, 7], &places);
        let of = |thread: usize| layout.of_thread[thread].map(|set| layout.sets[set as usize].1.clone());
        assert_eq!((of(0), of(2)), (Some(vec![0, 2]), Some(vec![0, 2])));
        assert_eq!((of(1), of(3)), (Some(vec![4, 6]), Some(vec![1, 3, 5, 7])));
        assert_eq!(layout.sets.len(), 3);
    }

    #[test]
    fn more_groups_than_cpus_share_them() {
        let script = script(&[("/db.service", "pool-1"), ("/db.service", "log"), ("/x", "web")]);
        let layout = Layout::new(&script, &group_of, &[5], &CpuPlaces::default());
        assert!(layout.sets.iter().all(|(_, cpus)| cpus == &[5]), "{layout:?}");
    }
}
