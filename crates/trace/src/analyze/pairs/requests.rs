//! Requests of a service, as wprof records them: slices of the category REQUEST on a track for each.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{line, Open, Unpaired};
use crate::analyze::text_table::{of_all, us, Spread, TextTable};
use crate::analyze::Context;
use crate::names::{REQUEST, REQ_ID, REQ_LATENCY_US};
use crate::{Arg, Args, Edge, Name, TraceEvent, TraceWhat, TrackId};
use scxprof_base::sample::printable;
use scxprof_sched::Durations;

/// The slowest requests that are kept.
const MAX_SLOW: usize = 1024;

/// The id of a request.
fn id_of(args: &Args) -> Option<u64> {
    match args.get(REQ_ID)? {
        Arg::Uint(id) => Some(id),
        Arg::Int(id) => u64::try_from(id).ok(),
        _ => None,
    }
}

/// A request that has begun.
#[derive(Debug, Clone, Copy)]
struct Begun {
    time: u64,
    name: Name,
    id: Option<u64>,
}

/// Follows requests.
#[derive(Debug, Default)]
pub(super) struct Served {
    open: Open<TrackId, Begun>,
    lines: FxHashMap<Name, Durations>,
    all: Durations,
    slow: Vec<(u64, Begun)>,
    no_room: u64,
}

impl Served {
    pub(super) fn take(&mut self, event: &TraceEvent) {
        let TraceWhat::Slice { edge, track, category: REQUEST, name, args, .. } = &event.what else { return };
        match edge {
            // The threads of a request may each say that it begins: the first one counts.
            Edge::Begin if self.open.open.contains_key(track) => {}
            Edge::Begin => self.open.begin(*track, Begun { time: event.time, name: *name, id: id_of(args) }),
            Edge::End => {
                // Of one that began before the trace, wprof says how long it took.
                let before = || {
                    let ns = args.us(REQ_LATENCY_US)?;
                    Some(Begun { time: event.time.checked_sub(ns)?, name: *name, id: id_of(args) })
                };
                let begun = match self.open.open.remove(track) {
                    Some(begun) => Some(begun),
                    None => before(),
                };
                match begun {
                    Some(begun) => self.served(event.time.saturating_sub(begun.time), begun),
                    None => self.open.counts.ends += 1,
                }
            }
            Edge::Instant => {}
        }
    }

    fn served(&mut self, ns: u64, begun: Begun) {
        self.all.add(ns);
        match line(&mut self.lines, begun.name) {
            Some(durations) => durations.add(ns),
            None => self.no_room += 1,
        }
        self.slow.push((ns, begun));
        if self.slow.len() >= 2 * MAX_SLOW {
            self.keep_slowest();
        }
    }

    fn keep_slowest(&mut self) {
        self.slow.sort_by_key(|(ns, begun)| (Reverse(*ns), begun.time));
        self.slow.truncate(MAX_SLOW);
    }

    pub(super) fn finish(mut self, context: &Context<'_>) -> Requests {
        self.keep_slowest();
        let text = |name: Name| printable(context.names.text(name));
        let mut requests: Vec<RequestLine> = self
            .lines
            .iter()
            .map(|(name, durations)| RequestLine { name: text(*name), latency: Spread::from(durations) })
            .collect();
        requests.sort_by_cached_key(|line| (Reverse(line.latency.total_ns), line.name.clone()));
        let request_count = requests.len();
        requests.truncate(context.options.limit);
        let slowest = self.slow.iter().take(context.options.limit);
        let slowest = slowest
            .map(|(ns, begun)| SlowRequest { name: text(begun.name), id: begun.id, begin_ns: begun.time, ns: *ns })
            .collect();
        let mut unpaired = self.open.finish();
        unpaired.no_room += self.no_room;
        Requests { latency: Spread::from(&self.all), request_count, requests, slowest, unpaired }
    }
}

/// The requests of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestLine {
    /// The name.
    pub name: String,
    /// How long they took.
    #[serde(flatten)]
    pub latency: Spread,
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlowRequest {
    /// Its name.
    pub name: String,
    /// Its id, if the trace says it.
    pub id: Option<u64>,
    /// When it began, ns of BOOTTIME.
    pub begin_ns: u64,
    /// How long it took, ns.
    pub ns: u64,
}

/// The result of `requests`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Requests {
    /// How long all of them took.
    pub latency: Spread,
    /// How many names there are.
    pub request_count: usize,
    /// By name, those of the longest time first.
    pub requests: Vec<RequestLine>,
    /// Those that took longest.
    pub slowest: Vec<SlowRequest>,
    /// Those that are in no other number: `begins` had not ended.
    pub unpaired: Unpaired,
}

impl Requests {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let mut table = TextTable::of_spreads(of_all("Requests", self.requests.len(), self.request_count), "REQUEST");
        for line in &self.requests {
            table.push_spread(line.name.clone(), &line.latency);
        }
        table.push_spread("all".to_owned(), &self.latency);
        let mut slow = TextTable::new("Slowest", &["REQUEST", "ID", "BEGAN(s)", "TOOK(us)"]);
        for line in &self.slowest {
            let id = line.id.map_or("-".to_owned(), |id| id.to_string());
            slow.push(vec![line.name.clone(), id, format!("{:.9}", line.begin_ns as f64 / 1e9), us(Some(line.ns))]);
        }
        vec![table, slow, TextTable::of_values("", &[self.unpaired.row()])]
    }
}
