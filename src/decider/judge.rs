//! Judges decisions by the threads that were sampled, and finds which threads' names get in the way.

use std::collections::BTreeMap;

use super::decider::{Decider, Facts};
use crate::cluster::Clusters;
use crate::config::{self, Decision, Members, NoSamples, Note, SpecIndex, ThreadRef};

impl Decider {
    /// The decision, by sharing or by names alone for each cell spec, with its notes.
    pub(super) fn better(
        &self,
        members: &Members,
        clusters: &Clusters,
        options: &config::DecisionOptions,
    ) -> Result<Decision, NoSamples> {
        let locality = |group, labels: &[u32]| clusters.locality_of(&self.of_spec(group, labels));
        let mut decision = config::better(&self.specs, &self.tally, members, options, locality)?;
        let strays = config::strays(&decision, &self.tally, members);
        decision.notes.extend(strays);
        Ok(decision)
    }

    fn spec_of(&self, cell: config::CellIndex) -> Option<SpecIndex> {
        self.tally.get(cell).map(|cell| cell.spec)
    }

    /// The labels of a cell spec's threads; each of the others has its own label.
    fn of_spec(&self, spec: SpecIndex, labels: &[u32]) -> Vec<u32> {
        let is_in = |at: usize| self.facts.get(at).is_some_and(|facts| self.spec_of(facts.cell) == Some(spec));
        labels.iter().enumerate().map(|(at, &label)| if is_in(at) { label } else { at as u32 }).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::truth::Rng;
    use crate::config::{CellOptions, CellSpecs};
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
        sampled(threads, cells).decide(&config::DecisionOptions::new(0.05, 256)).unwrap().decision
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
    fn a_group_is_judged_by_its_own_threads() {
        let threads: Vec<Spec> =
            [APP, APP, EVIL, EVIL].into_iter().map(|cgroup| spec(cgroup, "x", 30, Some(cgroup))).collect();
        let decider = sampled(&threads, &["evil=/evil\\.slice$"]);
        let pids: Vec<u32> = decider.facts.iter().map(|facts| facts.pid).collect();
        // In the order of their first samples.
        let labels: Vec<u32> = pids.iter().map(|&pid| 1000 + pid).collect();
        let own = |of: u32| -> Vec<u32> {
            (0..).zip(&pids).map(|(at, &pid)| if pid == of { 1000 + pid } else { at }).collect()
        };
        let rest = decider.specs.specs().len() - 1;
        assert_eq!((decider.of_spec(0, &labels), decider.of_spec(rest, &labels)), (own(600), own(9)));
        // Numbers beyond the threads belong to no thread.
        assert_eq!(decider.of_spec(1, &labels), [0, 1, 2, 3]);
    }
}
