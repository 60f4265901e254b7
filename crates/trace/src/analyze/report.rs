//! The results of all analysers that were asked for.

use serde::{Serialize, Serializer};

use super::kinds::{Id, ANALYSERS};
use super::{Findings, Options};
use crate::{Info, Lost, Source};

/// An analyser that has nothing to say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unavailable {
    /// Which.
    pub id: Id,
    /// What the trace lacks.
    pub needs: Vec<&'static str>,
}

impl Unavailable {
    /// A sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        format!("no applicable events: {} needs {}", self.id.name(), self.needs.join(" and "))
    }
}

/// All results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What recorded the trace.
    pub source: Source,
    /// From the first to the last event, ns.
    pub duration_ns: u64,
    /// What was lost. If anything was, counts are too low and times may be.
    pub lost: Lost,
    /// The results by the name of the analyser, in the order of the table.
    #[serde(serialize_with = "by_name")]
    pub analyses: Vec<Findings>,
    /// Analysers that were asked for, and whose events are not in the trace.
    pub unavailable: Vec<Unavailable>,
}

fn by_name<S: Serializer>(outcomes: &[Findings], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(outcomes.iter().map(|outcome| (outcome.id().name(), outcome)))
}

impl Report {
    pub(super) fn new(mut outcomes: Vec<Findings>, info: &Info, options: &Options) -> Self {
        let wanted = ANALYSERS.iter().filter(|analyser| options.wants(analyser.id));
        let lacks = wanted.map(|analyser| (analyser.id, analyser.lacks(info, !options.places.is_empty())));
        let unavailable = lacks.filter(|(_, needs)| !needs.is_empty()).map(|(id, needs)| Unavailable { id, needs });
        let unavailable: Vec<Unavailable> = unavailable.collect();
        outcomes.retain(|outcome| unavailable.iter().all(|lacking| lacking.id != outcome.id()));
        outcomes.sort_by_key(Findings::id);
        Self { source: info.source, duration_ns: info.duration_ns, lost: info.lost, analyses: outcomes, unavailable }
    }

    /// The result of an analyser, if it has one.
    #[must_use]
    pub fn get(&self, id: Id) -> Option<&Findings> {
        self.analyses.iter().find(|outcome| outcome.id() == id)
    }
}
