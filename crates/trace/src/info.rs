//! A description of a trace: `scxprof trace info`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::analyze::{capabilities, Capability};
use super::clock;
use super::container::Damage;
use super::derive::{Derive, Said};
use super::dynamic;
use super::event::TraceEvent;
use super::ftrace;
use super::index::{text_of, PacketState};
use super::tally::{self, Tally};

/// What recorded a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Source {
    /// wprof: slices of threads on CPUs, with wakers and delays.
    Wprof,
    /// scxtop: ftrace events, counters of dispatch queues.
    Scxtop,
    /// systing: one bundle of compact events for each CPU; wakeups have no waker.
    Systing,
    /// perfetto: bundles of ftrace events.
    Ftrace,
    /// Chrome's own events.
    Chrome,
    /// A perf.data, or another recording that is no trace.
    Perf,
    /// A profile of scxprof.
    Scxprof,
    /// Another program that writes the format.
    Unknown,
}

impl Source {
    pub(super) fn of(state: &PacketState) -> Self {
        let categories = ["ONCPU", "WAKER"];
        if categories.iter().all(|category| state.has_category(category.as_bytes())) {
            Self::Wprof
        } else if state.is_scxtop {
            Self::Scxtop
        } else if state.has_bare_compact {
            Self::Systing
        } else if state.packets.contains_key(&1) {
            Self::Ftrace
        } else if state.is_chrome {
            Self::Chrome
        } else {
            Self::Unknown
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Wprof => "wprof",
            Self::Scxtop => "scxtop",
            Self::Systing => "systing",
            Self::Ftrace => "ftrace",
            Self::Chrome => "chrome",
            Self::Perf => "perf",
            Self::Scxprof => "scxprof",
            Self::Unknown => "unknown",
        }
    }
}

/// How often something is in the trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Count {
    /// What.
    pub name: String,
    /// How often.
    pub count: u64,
}

/// Losses before the trace was written, and events that could not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Lost {
    /// Bundles of ftrace events before which events of their CPU were lost.
    pub bundles: u64,
    /// Events that the kernel's buffer overwrote or dropped while the trace was recorded, as far as it says it.
    pub overruns: u64,
    /// Times at which packets of a sequence were lost.
    pub sequences: u64,
    /// Packets of other machines than the one that is read: they are left out.
    pub other_machines: u64,
    /// Packets that refer to lost ones: they are left out.
    pub packets: u64,
    /// Track events without a time: they are left out.
    pub untimed: u64,
    /// Compact events whose arrays have different lengths: the bundles.
    pub uneven: u64,
    /// Wakeups whose woken thread is not known: they are slices.
    pub unnamed_wakeups: u64,
    /// Ends of slices that did not begin in the trace.
    pub ends_without_begin: u64,
    /// Switches of wprof with a known previous thread but no next one.
    pub half_switches: u64,
    /// Events older than one before them.
    pub late: u64,
    /// Names, threads, tracks and table entries for which there was no room.
    pub no_room: u64,
}

impl Lost {
    /// True if anything was lost.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}

/// A description of a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Info {
    /// What recorded it.
    pub source: Source,
    /// The tool and its version, as the trace says it.
    pub tool: String,
    /// `uname -r` of the recorded host.
    pub kernel: String,
    /// CPUs of the host, as the trace says it; 0 if it does not.
    pub cpus: u32,
    /// CPUs with scheduling events.
    pub cpus_seen: Vec<u32>,
    /// The CPUs of each NUMA node, as far as wprof said them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<u32, Vec<u32>>,
    /// The first and the last event, ns of `clock`.
    pub first_ns: u64,
    /// The last one.
    pub last_ns: u64,
    /// Between them.
    pub duration_ns: u64,
    /// Since when all CPUs were observed, if that is after the first event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_from_ns: Option<u64>,
    /// The clock of all times.
    pub clock: String,
    /// Clocks that are mapped to it.
    pub clocks: Vec<String>,
    /// Times of other clocks, which are used as they are, by clock.
    pub unmapped_clocks: Vec<Count>,
    /// Seconds since 1970 of the first event, if the trace has the real time.
    pub begin_unix: Option<f64>,
    /// Threads with a name or a process.
    pub threads: usize,
    /// Processes.
    pub processes: usize,
    /// Tracks with a description, or events.
    pub tracks: usize,
    /// Different call stacks that events have.
    pub stacks: usize,
    /// Sequences of packets.
    pub sequences: usize,
    /// Events that are decoded, by their name, the most frequent first.
    pub events: Vec<Count>,
    /// Events without a type: they are counted only.
    pub unknown: Vec<Count>,
    /// Packets by what they are about; of a perf.data, records by their kind.
    pub packets: Vec<Count>,
    /// What was lost.
    pub lost: Lost,
    /// Facts that the trace states about itself.
    pub attributes: Vec<(String, String)>,
    /// Which analysers can run on it.
    pub analysers: Vec<Capability>,
    /// What could not be read, one sentence each.
    pub damage: Vec<String>,
}

/// What a packet is about, by its field.
fn packet_name(kind: u32) -> String {
    let name = match kind {
        0 => "interned_data or flags only",
        1 => "ftrace_events",
        2 => "process_tree",
        5 => "chrome_events",
        6 => "clock_snapshot",
        9 => "process_stats",
        11 => "track_event",
        33 => "trace_config",
        34 => "ftrace_stats",
        35 => "trace_stats",
        36 => "synchronization_marker",
        43 => "process_descriptor",
        44 => "thread_descriptor",
        45 => "system_info",
        51 => "chrome_metadata",
        60 => "track_descriptor",
        66 => "perf_sample",
        67 => "cpu_info",
        69 => "service_event",
        89 => "trace_uuid",
        122 => "generic_kernel_process_tree",
        124 => "trace_provenance",
        126 => "trace_attributes",
        tally::OTHERS => "other packets",
        kind => return format!("packet field {kind}"),
    };
    name.to_owned()
}

pub(super) fn sorted(counts: impl IntoIterator<Item = (String, u64)>) -> Vec<Count> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for (name, count) in counts {
        *sums.entry(name).or_default() += count;
    }
    let mut counts: Vec<Count> = sums.into_iter().map(|(name, count)| Count { name, count }).collect();
    counts.sort_by_key(|count| std::cmp::Reverse(count.count));
    counts
}

impl Info {
    pub(super) fn new(source: Source, state: &PacketState, tally: &Tally, derive: &Derive, damage: &Damage) -> Self {
        let (mut events, mut unknown) = (Vec::new(), Vec::new());
        for (&number, &count) in &tally.ftrace.by_number {
            match (ftrace::name_of(number), state.facts.dynamic.get(&number)) {
                (Some(name), _) => events.push((name.to_owned(), count)),
                (None, Some(descriptor)) if dynamic::is_typed(state.names.text(descriptor.name)) => {
                    events.push((state.text(descriptor.name), count));
                }
                (None, Some(descriptor)) => unknown.push((state.text(descriptor.name), count)),
                // Counted by their own name below.
                (None, None) if number == ftrace::GENERIC => {}
                (None, None) if number == tally::OTHERS => unknown.push(("other ftrace fields".to_owned(), count)),
                (None, None) => unknown.push((format!("ftrace field {number}"), count)),
            }
        }
        unknown.extend(tally.ftrace.generic.iter().map(|(name, count)| (state.text(*name), *count)));
        events
            .extend(tally.tracks.iter().map(|(category, count)| (format!("track:{}", state.text(*category)), *count)));
        events.push(("track:counter".to_owned(), tally.counters));
        events.push(("track:no category".to_owned(), tally.without_category));
        events.push(("perf_sample".to_owned(), tally.samples));
        let Said { pmu, compound, layers } = derive.said;
        events.extend(
            [("wprof:pmu", pmu), ("wprof:compound_delay", compound), ("wprof:layer", layers)]
                .map(|(name, count)| (name.to_owned(), count)),
        );
        let [before, after] = state.overruns;
        let lost = Lost {
            bundles: tally.ftrace.lost_bundles,
            overruns: after.saturating_sub(before).saturating_add(state.samples_lost),
            sequences: state.sequences.losses,
            other_machines: state.of_other_machines,
            packets: state.packets_left_out,
            untimed: state.untimed,
            uneven: tally.ftrace.uneven,
            unnamed_wakeups: derive.unnamed_wakeups,
            ends_without_begin: derive.ends_without_begin,
            half_switches: derive.half_switches,
            late: tally.late,
            no_room: state.names.dropped()
                + state.sequences.left_out
                + state.threads.left_out()
                + state.tracks.left_out()
                + state.stacks.left_out(),
        };
        let damage = Damage { malformed: damage.malformed + tally.malformed + tally.ftrace.malformed, ..*damage };
        let first_ns = tally.first.unwrap_or(0);
        let begin = tally.first.zip(state.real_time).map(|(first, offset)| first.saturating_add_signed(offset));
        let mut unmapped: Vec<(String, u64)> =
            state.clocks.unmapped.iter().map(|(clock, count)| (clock::name_of(*clock), *count)).collect();
        if tally.ftrace.unknown_clock > 0 {
            unmapped.push(("ftrace clock".to_owned(), tally.ftrace.unknown_clock));
        }
        let processes: std::collections::BTreeSet<u32> =
            state.threads.iter().map(|(_, thread)| thread.pid).filter(|pid| *pid != TraceEvent::UNKNOWN).collect();
        let mut info = Self {
            source,
            tool: state.tool.clone(),
            kernel: state.release.clone(),
            cpus: state.cpus,
            cpus_seen: (0..).zip(&tally.cpus).filter(|(_, seen)| **seen).map(|(cpu, _)| cpu).collect(),
            nodes: derive.nodes.by_node(),
            first_ns,
            last_ns: tally.last,
            duration_ns: tally.last.saturating_sub(first_ns),
            observed_from_ns: state.observed_from(),
            clock: "BOOTTIME".to_owned(),
            clocks: state.clocks.names(),
            unmapped_clocks: sorted(unmapped),
            begin_unix: begin.map(|ns| ns as f64 / 1e9),
            threads: state.threads.len(),
            processes: processes.len(),
            tracks: state.tracks.iter().count(),
            stacks: state.stacks.len(),
            sequences: state.sequences.len(),
            events: sorted(events.into_iter().filter(|(_, count)| *count > 0)),
            unknown: sorted(unknown),
            packets: sorted(state.packets.iter().map(|(kind, count)| (packet_name(*kind), *count))),
            lost,
            attributes: state.attributes.clone(),
            analysers: Vec::new(),
            damage: damage.sentences(),
        };
        let out_of_range = tally.ftrace.out_of_range;
        if out_of_range > 0 {
            info.damage.push(format!(
                "{out_of_range} events name a CPU or a thread beyond the numbers that a kernel gives, and are left out"
            ));
        }
        let out_of_range = state.threads.out_of_range;
        if out_of_range > 0 {
            info.damage.push(format!(
                "{out_of_range} packets or descriptions name a thread, process, sequence or clock beyond the numbers that there \
                 are, and are left out"
            ));
        }
        info.analysers = capabilities(&info, false);
        info
    }
}

impl PacketState {
    /// True if a table of a sequence, or an event, names this category.
    fn has_category(&self, category: &[u8]) -> bool {
        self.sequences.categories().any(|name| text_of(self.names.text(name)).as_bytes() == category)
    }
}
