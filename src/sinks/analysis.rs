//! A sink that gives the events of a recording, or of a trace, to the analysers of traces.

use std::fs::File;

use super::sink::Sink;
use crate::resolve::Cgroups;
use crate::sample::sched::SchedEvent;
use crate::sample::{Comm, Sample};
use scxprof_trace::analyze::{Analysis, Report};
use scxprof_trace::{Event, Info, Recorded, Recording, Trace};

/// Analyses a recording. It is complete when the session has ended.
#[derive(Debug, Default)]
pub struct AnalysisSink {
    recording: Recording,
    analysis: Option<Analysis>,
    /// Events of a trace.
    traced: u64,
}

impl AnalysisSink {
    /// Without analysers it only counts, for [`AnalysisSink::info`].
    #[must_use]
    pub fn new(analysis: Option<Analysis>) -> Self {
        Self { analysis, ..Self::default() }
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

    /// The number of events of a trace.
    #[must_use]
    pub fn traced(&self) -> u64 {
        self.traced
    }

    /// The results of a trace; `None` without analysers.
    #[must_use]
    pub fn report_of_trace(self, trace: &Trace<File>) -> Option<Report> {
        Some(self.analysis?.finish(trace))
    }
}

impl Sink for AnalysisSink {
    fn sample(&mut self, sample: &Sample, _: &mut Cgroups) {
        self.recording.access(sample);
    }

    fn sched(&mut self, events: &[SchedEvent], _: &mut Cgroups) {
        let Self { recording, analysis, .. } = self;
        for event in events {
            recording.sched(event, &mut |event| {
                if let Some(analysis) = analysis {
                    analysis.take(event);
                }
            });
        }
    }

    fn events(&mut self, events: &[Event], _: &mut Cgroups) {
        self.traced += events.len() as u64;
        if let Some(analysis) = &mut self.analysis {
            for event in events {
                analysis.take(event);
            }
        }
    }

    fn processes(&mut self, names: &[(u32, Comm)], _: &mut Cgroups) {
        for &(pid, comm) in names {
            self.recording.process(pid, comm);
        }
    }
}
