//! Times of threads in the dispatch queues of a sched_ext scheduler, as wprof records them.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{line, Open, Unpaired};
use crate::analyze::text_table::{of_all, Spread, TextTable};
use crate::analyze::Context;
use crate::{TraceEvent, TraceWhat};
use scxprof_sched::Durations;

/// `SCX_DSQ_INVALID` (include/linux/sched/ext.h): a thread is in no queue.
const INVALID: u64 = 1 << 63;

/// The name of a queue: the kernel's own queues have bit 63.
pub(in crate::analyze) fn dsq_name(id: u64) -> String {
    const LOCAL_ON: u64 = 0xc000_0000_0000_0000;
    match id {
        _ if id & LOCAL_ON == LOCAL_ON => format!("local of CPU {}", id & 0xffff_ffff),
        0x8000_0000_0000_0001 => "global".to_owned(),
        0x8000_0000_0000_0002 => "local".to_owned(),
        0x8000_0000_0000_0003 => "bypass".to_owned(),
        id => format!("{id:#x}"),
    }
}

/// The queue, if it is one.
pub(in crate::analyze) fn real(dsq: Option<u64>) -> Option<u64> {
    dsq.filter(|&id| id != INVALID && id != u64::MAX)
}

/// Follows times in queues.
#[derive(Debug, Default)]
pub(super) struct Dsqs {
    /// Since when each thread is in a queue, and in which.
    pub(super) open: Open<u32, (u64, Option<u64>, Option<u64>)>,
    lines: FxHashMap<(Option<u64>, Option<u64>), Durations>,
    all: Durations,
    no_room: u64,
}

impl Dsqs {
    pub(super) fn take(&mut self, event: &TraceEvent) {
        let TraceWhat::Dsq { is_begin, dsq, layer, .. } = event.what else { return };
        if is_begin {
            return self.open.begin(event.tid, (event.time, dsq, layer));
        }
        let Some((since, first_dsq, first_layer)) = self.open.end(&event.tid) else { return };
        let ns = event.time.saturating_sub(since);
        self.all.add(ns);
        // wprof says which queue it was at the end.
        match line(&mut self.lines, (real(dsq.or(first_dsq)), layer.or(first_layer))) {
            Some(durations) => durations.add(ns),
            None => self.no_room += 1,
        }
    }

    pub(super) fn finish(self, context: &Context<'_>) -> DsqLatency {
        let of = |(&(dsq, layer), durations): (&(Option<u64>, Option<u64>), &Durations)| DsqLine {
            dsq,
            layer,
            latency: Spread::from(durations),
        };
        let mut dsqs: Vec<DsqLine> = self.lines.iter().map(of).collect();
        dsqs.sort_by_key(|line| (Reverse(line.latency.total_ns), line.dsq, line.layer));
        let dsq_count = dsqs.len();
        dsqs.truncate(context.options.limit);
        let mut unpaired = self.open.finish();
        unpaired.no_room += self.no_room;
        DsqLatency { latency: Spread::from(&self.all), dsq_count, dsqs, unpaired }
    }
}

/// A dispatch queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DsqLine {
    /// Its id; `None` if it is not known, or there was none.
    pub dsq: Option<u64>,
    /// The layer of scx_layered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer: Option<u64>,
    /// Times in it.
    #[serde(flatten)]
    pub latency: Spread,
}

/// The result of `dsq_latency`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DsqLatency {
    /// In all queues.
    pub latency: Spread,
    /// How many queues there are, by layer.
    pub dsq_count: usize,
    /// Those of the longest time first.
    pub dsqs: Vec<DsqLine>,
    /// Those that no other number counts.
    pub unpaired: Unpaired,
}

impl DsqLatency {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let mut table =
            TextTable::of_spreads(of_all("Times in dispatch queues", self.dsqs.len(), self.dsq_count), "DSQ");
        for line in &self.dsqs {
            let name = line.dsq.map_or("(none)".to_owned(), dsq_name);
            let layer = line.layer.map_or(String::new(), |layer| format!(", layer {layer}"));
            table.push_spread(name + &layer, &line.latency);
        }
        table.push_spread("all".to_owned(), &self.latency);
        vec![table, TextTable::of_values("", &[self.unpaired.row()])]
    }
}
