//! The planner of a replay, which takes events and samples as a sink.

use super::sink::Sink;
use crate::resolve::Cgroups;
use crate::sample::sched::SchedEvent;
use crate::sample::{Comm, Sample};
use scxprof_replay::{Planner, Touches};

impl Sink for Planner {
    fn sample(&mut self, _: &Sample, _: &mut Cgroups) {}

    fn samples(&mut self, _: &[Sample], _: &mut Cgroups) {}

    fn sched(&mut self, events: &[SchedEvent], _: &mut Cgroups) {
        for event in events {
            self.event(event);
        }
    }

    fn processes(&mut self, names: &[(u32, Comm)], cgroups: &mut Cgroups) {
        self.names(names, &mut |id| cgroups.path(id).map(|path| path.to_vec()));
    }
}

impl Sink for Touches {
    fn sample(&mut self, sample: &Sample, _: &mut Cgroups) {
        self.access(sample);
    }
}
