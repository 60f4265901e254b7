//! Which wakeups the configuration keeps together, and which of them carry data.

use rustc_hash::{FxHashMap, FxHashSet};

use super::decided::Decided;
use super::decider::Decider;
use crate::config::{Placement, Task};
use crate::report::{WakeupReport, Within};
use crate::sinks::SchedSink;
use scxprof_sched::wakers::Locality;

/// Wakeups within one last-level cache, and those for which the caches are known.
fn near(places: &Locality) -> (u64, u64) {
    (places.same_cpu + places.core + places.llc, places.total() - places.unknown)
}

impl Decider {
    /// The wakeups of `stats` and the configuration. Threads share memory if they have an edge in the graph of threads, which needs
    /// 1 % of the possible misses of the one that has fewer.
    pub(crate) fn wakeups(&self, decided: &Decided, placement: &Placement, stats: &SchedSink) -> WakeupReport {
        let all = stats.within(&|task| placement.group(task)).unwrap_or_default();
        let all = Within::new(all.wakeups, all.within, near(&stats.wakeup_places()));
        // The numbers of threads in the sketch are labels of their own here.
        let labels: Vec<u32> = (0..self.facts.len() as u32).collect();
        let tid = |number: u32| self.facts.get(number as usize).map(|facts| facts.tid);
        let edges = decided.clusters.edges(&labels).into_iter().filter(|edge| edge.a != edge.b);
        let sharing: FxHashSet<(u32, u32)> =
            edges.filter_map(|edge| Some((tid(edge.a)?, tid(edge.b)?))).flat_map(|(a, b)| [(a, b), (b, a)]).collect();
        // A thread with several hints has several numbers; its cell and name are the same.
        let mut groups: FxHashMap<u32, Option<String>> = FxHashMap::default();
        for facts in &self.facts {
            groups.entry(facts.tid).or_insert_with(|| {
                let cgroup = self.tally.get(facts.cell)?.cgroup.as_deref()?;
                placement.group(&Task::new(cgroup, facts.last.1.as_bytes()).ids(facts.pid, facts.tid))
            });
        }
        let (mut wakeups, mut within, mut places, mut unsampled) = (0, 0, (0, 0), 0);
        for (waker, wakee, edge) in stats.wakeup_pairs() {
            let (Some(of_waker), Some(of_wakee)) = (groups.get(&waker), groups.get(&wakee)) else {
                unsampled += edge.wakeups;
                continue;
            };
            if sharing.contains(&(waker, wakee)) {
                wakeups += edge.wakeups;
                within += if of_waker.is_some() && of_waker == of_wakee { edge.wakeups } else { 0 };
                let (near, known) = near(&edge.places);
                places = (places.0 + near, places.1 + known);
            }
        }
        WakeupReport { all, carrying: Within::new(wakeups, within, places), unsampled }
    }
}
