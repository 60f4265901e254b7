//! A sink that gives the events of a recording to the analysers of traces.

use super::sink::Sink;
use crate::resolve::Cgroups;
use crate::sample::sched::SchedEvent;
use crate::sample::{Comm, Sample};
use scxprof_trace::analyze::{Analysis, Report};
use scxprof_trace::{Info, Recorded, Recording};

/// Analyses a recording. It is complete when the session has ended.
#[derive(Debug, Default)]
pub struct AnalysisSink {
    recording: Recording,
    analysis: Option<Analysis>,
}

impl AnalysisSink {
    /// Without analysers it only counts, for [`AnalysisSink::info`].
    #[must_use]
    pub fn new(analysis: Option<Analysis>) -> Self {
        Self { recording: Recording::default(), analysis }
    }

    /// What the recording is.
    #[must_use]
    pub fn info(&self, recorded: &Recorded) -> Info {
        self.recording.info(recorded)
    }

    /// The results; `None` without analysers.
    #[must_use]
    pub fn report(self, info: &Info) -> Option<Report> {
        Some(self.recording.analyze(self.analysis?, info))
    }
}

impl Sink for AnalysisSink {
    fn sample(&mut self, sample: &Sample, _: &mut Cgroups) {
        self.recording.access(sample);
    }

    fn sched(&mut self, events: &[SchedEvent], _: &mut Cgroups) {
        let Self { recording, analysis } = self;
        for event in events {
            recording.sched(event, &mut |event| {
                if let Some(analysis) = analysis {
                    analysis.take(event);
                }
            });
        }
    }

    fn processes(&mut self, names: &[(u32, Comm)], _: &mut Cgroups) {
        for &(pid, comm) in names {
            self.recording.process(pid, comm);
        }
    }
}
