//! Judges decisions by the threads that were sampled, and finds which threads' names get in the way.

use std::collections::BTreeMap;

use super::decider::{Decider, Facts};
use crate::cluster::Clusters;
use crate::config::this_host::HostThread;
use crate::config::{self, CellSpecs, Found, Member, Members, NoSamples, Note, SpecIndex, Tally, ThreadRef, Verdict};

impl Decider {
    /// The groups, by sharing or by names alone for each cell spec, with the notes.
    pub(super) fn find(
        (specs, tally): (&CellSpecs, &Tally),
        members: &Members,
        clusters: &Clusters,
        options: &config::DecisionOptions,
    ) -> Result<Found, NoSamples> {
        let locality = |of: &[bool], labels: &[u32]| clusters.locality_of(&only(of, labels));
        config::find(specs, tally, members, options, locality)
    }

    fn spec_of(&self, cell: config::CellIndex) -> Option<SpecIndex> {
        self.tally.get(cell).map(|cell| cell.spec)
    }

    /// Completes a note: the thread that it names, and a thread whose name keeps others out of a subcell.
    pub(super) fn say_whose(&self, note: &mut Note) {
        match note {
            Note::NotDescribable { cell, takes: Some(takes), whose, .. }
            | Note::CommunityRefused { cell, takes: Some(takes), whose, .. } => {
                *whose = self.whose(cell, |facts| facts.last.1 == *takes);
            }
            Note::LeftOut { cell, names, whose, .. } => {
                let is_in_the_way = |facts: &Facts| {
                    let comm = facts.last.1.to_string();
                    names.iter().any(|name| comm.len() > name.len() && comm.starts_with(name.as_str()))
                        && !names.contains(&comm)
                };
                *whose = self.whose(cell, is_in_the_way);
            }
            _ => {}
        }
    }

    /// All threads with the properties that a scheduler can match on this host.
    pub(crate) fn host_threads(&self, members: &Members) -> Vec<HostThread> {
        let processes = self.processes();
        let thread = |(facts, member): (&Facts, &Member)| HostThread {
            pid: facts.pid,
            tid: facts.tid,
            comm: facts.last.1,
            process: processes.get(&facts.pid).copied(),
            cgroup: self.path_of(facts).to_vec(),
            community: match member.verdict {
                Verdict::Community(community) => Some(community),
                _ => None,
            },
            is_known: !matches!(member.verdict, Verdict::Unknown(_)),
            samples: facts.samples,
        };
        self.facts.iter().zip(&members.threads).map(thread).collect()
    }

    /// The cgroups of all threads: the path, the samples, and whether no cell spec but the last takes it; most samples first.
    pub(crate) fn sampled_cgroups(&self) -> Vec<(Vec<u8>, f64, bool)> {
        let last = self.specs.specs().len().saturating_sub(1);
        let mut samples: BTreeMap<u64, f64> = BTreeMap::new();
        for facts in &self.facts {
            *samples.entry(facts.cgroup).or_default() += facts.samples;
        }
        let named = |(cgroup, samples): (u64, f64)| {
            let (cell, path) = self.cell_of_cgroup.get(&cgroup)?;
            Some((path.as_ref()?.to_vec(), samples, self.spec_of(*cell) == Some(last)))
        };
        let mut cgroups: Vec<_> = samples.into_iter().filter_map(named).collect();
        cgroups.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        cgroups
    }

    /// The thread with the most samples of those in a cell spec that match `such`.
    fn whose(&self, cell: &str, such: impl Fn(&Facts) -> bool) -> Option<ThreadRef> {
        // The name of a cgroup with its own spec is the spec's name followed by its own.
        let is_named =
            |name: &str| cell.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'));
        let is_there = |facts: &&Facts| {
            let spec = self.spec_of(facts.cell).and_then(|spec| self.specs.specs().get(spec));
            spec.is_some_and(|spec| is_named(&spec.name)) && such(facts)
        };
        let thread = self.facts.iter().filter(is_there).max_by(|a, b| a.samples.total_cmp(&b.samples))?;
        let process = self.facts.iter().find(|facts| facts.tid == thread.pid).map(|facts| facts.last.1);
        let cgroup = self.cell_of_cgroup.get(&thread.cgroup).and_then(|it| it.1.clone());
        Some(ThreadRef { pid: thread.pid, tid: thread.tid, comm: thread.last.1, process, cgroup, uid: None })
    }
}

/// The labels of these threads; each of the others has its own label.
fn only(of: &[bool], labels: &[u32]) -> Vec<u32> {
    let own = labels.iter().zip(of).zip(0u32..);
    own.map(|((&label, &is_of), thread)| if is_of { label } else { thread }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::truth::Rng;
    use crate::config::{CellOptions, Decision};
    use crate::resolve::Cgroups;
    use crate::sample::{Access, Comm, MemoryId, RawSample, Sample, Source};
    use crate::sinks::Sink;

    const APP: u64 = 1;
    const EVIL: u64 = 2;

    /// A thread: its cgroup, its name, its number of samples, and the memory that it shares with others; without it, its own.
    type Spec = (u64, String, u64, Option<u64>);

    fn sampled(threads: &[Spec], cells: &[&str]) -> Decider {
        let cells = cells.iter().map(|&cell| cell.to_owned()).collect();
        let options = CellOptions { cells, ..CellOptions::default() };
        let mut cgroups = Cgroups::recorded();
        cgroups.record(APP, b"/app.slice");
        cgroups.record(EVIL, b"/evil.slice");
        let mut decider = Decider::new(CellSpecs::new(&options).unwrap(), Source::Timer, 12 << 20);
        let mut rng = Rng::new(7);
        let turns: Vec<u32> =
            (0..).zip(threads).flat_map(|(at, spec)| std::iter::repeat_n(at, spec.2 as usize)).collect();
        for at in 0..turns.len() {
            // Any order will do except one thread after the other.
            let thread = turns[at * 7_919 % turns.len()];
            let (cgroup, name, _, shared) = &threads[thread as usize];
            let addr = match shared {
                Some(shared) => (shared + 1) << 32 | rng.below(64) << 12 | rng.below(64) << 6,
                None => u64::from(thread + 1) << 40 | rng.below(4) << 12,
            };
            let sample = Sample {
                raw: RawSample {
                    pid: if *cgroup == APP { 9 } else { 600 },
                    tid: if *cgroup == APP { 10 } else { 600 } + thread,
                    cgroup: *cgroup,
                    access: Access::Store,
                    ..RawSample::default()
                },
                thread,
                comm: Some(Comm::from(name.as_str())),
                memory: Some(MemoryId::Private { space: *cgroup as u32, addr }),
                ..Sample::default()
            };
            decider.sample(&sample, &mut cgroups);
        }
        decider
    }

    fn decided(threads: &[Spec], cells: &[&str]) -> Decision {
        sampled(threads, cells).decide(&config::DecisionOptions::new(0.05, 256)).unwrap().configuration().clone()
    }

    fn spec(cgroup: u64, name: &str, samples: u64, shared: Option<u64>) -> Spec {
        (cgroup, name.to_owned(), samples, shared)
    }

    fn subcells(decision: &Decision, cell: &str) -> Vec<String> {
        let cell = decision.cells.iter().find(|it| it.name == cell).unwrap();
        cell.subcells.iter().map(|subcell| subcell.name.clone()).collect()
    }

    #[test]
    fn who_keeps_others_out_is_told_and_a_cell_keeps_them_apart() {
        let mut threads = vec![spec(APP, "web", 3000, Some(0)), spec(APP, "web", 3000, Some(0))];
        // More names with this beginning than there could be subcells before it.
        threads.extend(('a'..='j').map(|letter| spec(EVIL, &format!("web{letter}"), 1000, None)));
        let together = decided(&threads, &[]);
        assert!(!subcells(&together, "rest").contains(&"web".to_owned()), "{:?}", together.cells);
        let said: Vec<String> = together.notes.iter().map(ToString::to_string).collect();
        let whose = "of process 600, in cgroup /evil.slice: --cell keeps a cgroup that is not trusted apart";
        assert!(said.iter().any(|note| note.contains("\"web") && note.contains(whose)), "{said:?}");
        let mut apart = decided(&threads, &["evil=/evil\\.slice$"]);
        assert_eq!(subcells(&apart, "rest"), ["web", "rest"]);
        assert!(apart.notes.iter_mut().all(|note| note.thread_mut().is_none()), "{:?}", apart.notes);
    }

    #[test]
    fn threads_that_do_not_count_are_apart() {
        assert_eq!(only(&[true, false, true, true], &[7, 7, 9, 7]), [7, 1, 9, 7]);
    }
}
