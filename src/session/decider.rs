//! The sink that a configuration is made of: who was sampled where, and who touched what, each within bounds.

use rustc_hash::FxHashMap;

use super::Sink;
use crate::cluster::{self, Clusters, Hot, Sharing};
use crate::config::report::{report, CommunityEvidence, Edge, Evidence, Granule, Report, ReportError};
use crate::config::{self, Affinity, CellIndex, Decision, Groups, Member, Members, NoSamples, Tally, Unknown, Verdict};
use crate::resolve::Cgroups;
use crate::sample::{Comm, Place, Sample, Source, ThreadIndex};

/// Threads that are looked at from their first sample on; later ones must show up [`INSIST`] times first, so that
/// processes that come and go do not crowd out those that stay.
const WELCOME: usize = 1 << 14;
/// Samples that a thread needs to be looked at where there are many.
const INSIST: u8 = 8;
/// Threads that are looked at; all others are known by their name only.
const MAX_THREADS: usize = 1 << 16;
/// Cgroups whose cell is remembered.
const MAX_CGROUPS: usize = 1 << 16;

/// Counts samples by cell and name, and sketches who touched what.
#[derive(Debug)]
pub struct Decider {
    groups: Groups,
    source: Source,
    tally: Tally,
    sharing: Sharing,
    /// Each cgroup's cell, and whether it has a path.
    cell_of_cgroup: FxHashMap<u64, (CellIndex, bool)>,
    /// The numbers that the sketch knows threads by.
    known: FxHashMap<ThreadIndex, u32>,
    candidates: FxHashMap<ThreadIndex, u8>,
    facts: Vec<Facts>,
    no_cgroup_path: u64,
    unlisted: u64,
}

/// What is known of a thread in the sketch.
#[derive(Debug, Clone, Copy)]
struct Facts {
    pid: u32,
    tid: u32,
    comm: Option<Comm>,
    cell: CellIndex,
    /// How many more samples were in `cell` than elsewhere since it was last another.
    lead: u32,
    samples: f64,
}

/// A decision and what it was made of.
#[derive(Debug)]
pub struct Decided {
    /// The cells.
    pub decision: Decision,
    /// The threads with their verdicts.
    pub members: Members,
    /// What the sketch says.
    pub clusters: Clusters,
}

impl Decider {
    /// For the groups of a configuration; the sketch takes about `memory` bytes.
    #[must_use]
    pub fn new(groups: Groups, source: Source, memory: usize) -> Self {
        Self {
            groups,
            source,
            tally: Tally::default(),
            sharing: Sharing::new(memory),
            cell_of_cgroup: FxHashMap::default(),
            known: FxHashMap::default(),
            candidates: FxHashMap::default(),
            facts: Vec::new(),
            no_cgroup_path: 0,
            unlisted: 0,
        }
    }

    /// The groups.
    #[must_use]
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Who was sampled.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Samples of cgroups without a path; they count for the last cell.
    #[must_use]
    pub fn no_cgroup_path(&self) -> u64 {
        self.no_cgroup_path
    }

    /// Samples of threads that were too many to be looked at one by one.
    #[must_use]
    pub fn unlisted(&self) -> u64 {
        self.unlisted
    }

    /// Decides.
    ///
    /// # Errors
    /// [`NoSamples`] where nothing was seen.
    pub fn decide(&self, options: &config::Options) -> Result<Decided, NoSamples> {
        let cells: Vec<u32> = self.facts.iter().map(|facts| facts.cell).collect();
        let pids: Vec<u32> = self.facts.iter().map(|facts| facts.pid).collect();
        let first_touches = (self.source == Source::Faults).then_some(&pids[..]);
        let solve = cluster::Options { groups: &cells, first_touches, ..cluster::Options::default() };
        let clusters = self.sharing.solve(&solve);
        let members = self.members(&clusters);
        let decision = config::decide(&self.groups, &self.tally, &members, options)?;
        Ok(Decided { decision, members, clusters })
    }

    /// Says what a decision of this decider rests on.
    ///
    /// # Errors
    /// [`ReportError`], which would be a bug for a decision of the same samples.
    pub fn report(&self, decided: &Decided, options: &config::Options) -> Result<Report, ReportError> {
        let Decided { decision, members, clusters } = decided;
        let granules = |hot: &[Hot], pid: Option<u32>| -> Vec<Granule> {
            let granule = |hot: &Hot| Granule {
                place: place_text(hot.place, pid),
                accesses: hot.events,
                writes: hot.writes,
                hitm: hot.hitm,
                threads: hot.threads,
            };
            hot.iter().map(granule).collect()
        };
        let evidence_of = |community: &cluster::Community| {
            let pid =
                community.threads.first().and_then(|&thread| self.facts.get(thread as usize)).map(|facts| facts.pid);
            CommunityEvidence {
                stability: community.stability,
                confidence: community.confidence,
                pages: granules(&community.pages, pid),
                lines: granules(&community.lines, pid),
            }
        };
        let locality = |labels: &[u32]| self.sharing.locality(labels);
        let sharing = |labels: &[u32]| -> Vec<Edge> {
            let edges = self.sharing.edges(labels);
            edges.iter().map(|edge| Edge { a: edge.a, b: edge.b, accesses: edge.events }).collect()
        };
        let evidence = Evidence {
            source: self.source.name(),
            sight: self.source.sight(),
            communities: clusters.communities.iter().map(evidence_of).collect(),
            stability: clusters.stability,
            hubs: granules(&clusters.hubs, None),
            locality: Some(&locality),
            sharing: Some(&sharing),
        };
        report(&self.groups, &self.tally, members, options, decision, &evidence)
    }

    fn members(&self, clusters: &Clusters) -> Members {
        let threads = self.facts.iter().enumerate().map(|(index, facts)| Member {
            // By the sketch's number, which is what labels of threads are by.
            thread: index as u32,
            pid: facts.pid,
            tid: facts.tid,
            comm: facts.comm,
            cell: facts.cell,
            samples: facts.samples,
            verdict: verdict(clusters.of_thread.get(index).copied()),
        });
        let mut affinity = Affinity::default();
        let communities: Vec<u32> = (0..self.facts.len()).map(|index| community(clusters, index)).collect();
        for edge in self.sharing.edges(&communities) {
            if edge.a != u32::MAX && edge.b != u32::MAX {
                affinity.add(edge.a, edge.b, edge.events);
            }
        }
        Members { threads: threads.collect(), affinity }
    }

    /// The sketch's number of a thread; `None` where there are too many.
    fn number(&mut self, sample: &Sample, cell: CellIndex) -> Option<u32> {
        if let Some(&number) = self.known.get(&sample.thread) {
            return Some(number);
        }
        if self.facts.len() >= MAX_THREADS {
            return None;
        }
        if self.facts.len() >= WELCOME {
            if self.candidates.len() >= WELCOME {
                self.candidates.clear();
            }
            let seen = self.candidates.entry(sample.thread).or_default();
            *seen += 1;
            if *seen < INSIST {
                return None;
            }
            self.candidates.remove(&sample.thread);
        }
        let number = self.facts.len() as u32;
        self.known.insert(sample.thread, number);
        self.facts.push(Facts { pid: sample.pid, tid: sample.tid, comm: sample.comm, cell, lead: 0, samples: 0.0 });
        Some(number)
    }
}

impl Sink for Decider {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        if self.cell_of_cgroup.len() >= MAX_CGROUPS {
            self.cell_of_cgroup.clear();
        }
        let Self { groups, tally, cell_of_cgroup, .. } = self;
        let mut find = || {
            let path = cgroups.path(sample.cgroup);
            (tally.cell(groups.home(path.map_or(&b"/"[..], |path| path))), path.is_some())
        };
        let known = cell_of_cgroup.entry(sample.cgroup).or_insert_with(&mut find);
        if !known.1 {
            // A record that was lost is made up for by the next reading of cgroupfs.
            *known = find();
        }
        let (cell, has_path) = *known;
        self.no_cgroup_path += u64::from(!has_path);
        self.tally.add(cell, sample.comm, f64::from(sample.share));
        if sample.comm.is_none() {
            return;
        }
        let Some(number) = self.number(sample, cell) else {
            self.unlisted += 1;
            return;
        };
        if let Some(facts) = self.facts.get_mut(number as usize) {
            facts.samples += f64::from(sample.share);
            facts.comm = sample.comm;
            match (facts.cell == cell, facts.lead) {
                (true, _) => facts.lead += 1,
                (false, 0) => facts.cell = cell,
                (false, _) => facts.lead -= 1,
            }
        }
        let sample = Sample { thread: number, ..*sample };
        if self.source == Source::Faults && matches!(sample.place, Some(Place::Private { .. })) {
            // The threads of one process are unknown to one another, and no other process touches its private memory.
            self.sharing.count(&sample);
        } else {
            self.sharing.add(&sample);
        }
    }
}

fn community(clusters: &Clusters, thread: usize) -> u32 {
    match clusters.of_thread.get(thread) {
        Some(cluster::Verdict::Community(community)) => *community,
        _ => u32::MAX,
    }
}

fn verdict(verdict: Option<cluster::Verdict>) -> Verdict {
    match verdict {
        Some(cluster::Verdict::Community(community)) => Verdict::Community(community),
        Some(cluster::Verdict::Alone) => Verdict::Alone,
        Some(cluster::Verdict::Unknown(reason)) => Verdict::Unknown(reason),
        // A thread without any place that can be shared was seen too little as well.
        None => Verdict::Unknown(Unknown::TooFewSamples),
    }
}

/// Where memory is, for people; private memory is of process `pid` where that is known.
fn place_text(place: Option<Place>, pid: Option<u32>) -> String {
    match (place, pid) {
        (Some(Place::Shared { dev, ino, offset }), _) => {
            format!("device {}:{} inode {ino} + {offset:#x}", libc::major(dev), libc::minor(dev))
        }
        (Some(Place::Frame { phys }), _) => format!("physical {phys:#x}"),
        (Some(Place::Private { addr, .. }), Some(pid)) => format!("pid {pid} {addr:#x}"),
        (Some(Place::Private { space, addr }), None) => format!("address space {space} {addr:#x}"),
        (None, _) => "a file beyond those that are remembered".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::GroupOptions;
    use crate::resolve::Roots;

    #[test]
    fn a_path_that_comes_late_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let (proc, cgroup) = (dir.path().join("proc"), dir.path().join("cgroup"));
        fs::create_dir_all(proc.join("self")).unwrap();
        fs::create_dir(&cgroup).unwrap();
        fs::write(proc.join("self/cgroup"), "0::/\n").unwrap();
        fs::write(proc.join("self/mountinfo"), "").unwrap();
        let roots = Roots { proc, cgroup: Some(cgroup), ..Roots::default() };
        let mut cgroups = Cgroups::new(&roots).unwrap();
        let groups =
            Groups::new(&GroupOptions { cells: vec!["db=/db$".to_owned()], ..GroupOptions::default() }).unwrap();
        let mut decider = Decider::new(groups, Source::Faults, 1 << 20);
        let sample = Sample { cgroup: 77, comm: Some("x".into()), share: 1.0, ..Sample::default() };
        decider.sample(&sample, &mut cgroups);
        cgroups.record(77, b"/db");
        decider.sample(&sample, &mut cgroups);
        assert_eq!(decider.no_cgroup_path(), 1);
        let cells: Vec<_> = decider.tally().cells().map(|(_, cell)| (cell.cgroup.clone(), cell.total)).collect();
        assert!(cells.contains(&(Some(b"/db".to_vec()), 1.0)), "{cells:?}");
    }
}
