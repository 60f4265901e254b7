//! The report of a decision, with the names of its memory and code.

use super::decided::Decided;
use super::decider::Decider;
use super::memory::MemoryNames;
use super::times;
use crate::cluster;
use crate::config::DecisionOptions;
use crate::report::{report, CommunityEvidence, Evidence, Report, ReportError};
use crate::resolve::Symbols;

impl Decider {
    /// Reports the facts behind a decision of this decider, with these names for [`Decided::codes`]; other code is not in it.
    ///
    /// # Errors
    /// [`ReportError`], which would be a bug for a decision of the same samples.
    pub(crate) fn report(
        &self,
        decided: &Decided,
        symbols: &Symbols,
        options: &DecisionOptions,
    ) -> Result<Report, ReportError> {
        let Decided { found, members, clusters, across, locations, .. } = decided;
        let names = MemoryNames { decider: self, locations, symbols };
        let evidence_of = |community: &cluster::Community| {
            let pid =
                community.threads.first().and_then(|&thread| self.facts.get(thread as usize)).map(|facts| facts.pid);
            CommunityEvidence {
                stability: community.stability,
                confidence: community.confidence,
                over_time: community.over_time.map(times::report),
                regions: community.regions.iter().map(|region| names.region(region, pid)).collect(),
                pages: names.granules(&community.pages, pid),
                lines: names.granules(&community.lines, pid),
            }
        };
        let locality = |labels: &[u32]| clusters.locality_of(labels).unwrap_or_default();
        let sharing = |labels: &[u32]| clusters.edges(labels);
        let evidence = Evidence {
            source: self.source.name(),
            coverage: self.source.coverage(),
            communities: clusters.communities.iter().map(evidence_of).collect(),
            stability: clusters.stability,
            hubs: names.granules(&clusters.hubs, None),
            lines: names.granules(&clusters.lines, None),
            locality: clusters.locality.is_some().then_some(&locality),
            sharing: Some(&sharing),
            across_cells: self.across_cells(decided, symbols),
            shares_across: across.shares.clone(),
            misses: clusters.counted.clone(),
        };
        let mut report = report((&self.specs, &self.tally), members, options, found, &evidence)?;
        report.matrix = self.matrix(decided, &names, &report);
        Ok(report)
    }
}
