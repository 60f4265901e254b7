//! The engine of steps: a value holds from one event to the next, such as a CPU's frequency. What it was before the first
//! event, after the last one and around losses is not known, and counts as neither.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::pairs::{dsq_name, real};
use super::text_table::{ms, of_all, percent, share, us, Spread, TextTable};
use super::{Context, Findings, Id, Options};
use crate::raw::MAX_CPUS;
use crate::{Event, TraceEvent, TraceWhat, TrackId};
use scxprof_base::sample::printable;
use scxprof_base::sample::sched::SchedWhat;
use scxprof_sched::report::is_much;
use scxprof_sched::Durations;

/// Values of a CPU that are told apart, of about 50 bytes each; the time of others is only in sums.
const MAX_VALUES: usize = 256;
/// Counters that are followed, of about 80 bytes each.
const MAX_COUNTERS: usize = 1 << 14;
/// Dispatch queues that are told apart, of about 50 bytes each.
const MAX_DSQS: usize = 1 << 14;

/// A value that holds until the next one.
#[derive(Debug, Clone, Copy, Default)]
struct Step<T>(Option<(T, u64)>);

impl<T: Copy> Step<T> {
    /// The value until now, and for how many ns it held.
    fn set(&mut self, value: T, now: u64) -> Option<(T, u64)> {
        self.0.replace((value, now)).map(|(before, since)| (before, now.saturating_sub(since)))
    }
}

/// The frequency of a CPU.
#[derive(Debug, Default)]
struct Frequency {
    step: Step<u64>,
    ns: BTreeMap<u64, u64>,
    /// The sum of kHz times ns, and the ns.
    weighted: (f64, u64),
    min: Option<u64>,
    max: u64,
    changes: u64,
    losses: u64,
}

impl Frequency {
    fn set(&mut self, khz: u64, now: u64) {
        self.min = Some(self.min.map_or(khz, |min| min.min(khz)));
        self.max = self.max.max(khz);
        let Some((before, ns)) = self.step.set(khz, now) else { return };
        // The kernel says it again at times.
        self.changes += u64::from(before != khz);
        self.weighted.0 += before as f64 * ns as f64;
        self.weighted.1 += ns;
        if self.ns.len() < MAX_VALUES || self.ns.contains_key(&before) {
            *self.ns.entry(before).or_default() += ns;
        }
    }
}

/// The idle states of a CPU.
#[derive(Debug, Default)]
struct Idle {
    step: Step<Option<u32>>,
    active: u64,
    states: BTreeMap<u32, Durations>,
    losses: u64,
}

/// The value of a counter.
#[derive(Debug, Default)]
struct Gauge {
    step: Step<f64>,
    weighted: (f64, u64),
    max: f64,
    values: u64,
}

/// What went through a dispatch queue.
#[derive(Debug, Clone, Copy, Default)]
struct Through {
    inserted: u64,
    runs: u64,
}

/// The engine.
#[derive(Debug)]
pub(super) struct Steps {
    frequency: Option<BTreeMap<u32, Frequency>>,
    idle: Option<BTreeMap<u32, Idle>>,
    gauges: Option<FxHashMap<TrackId, Gauge>>,
    dsqs: FxHashMap<u64, Through>,
    without: Through,
    no_room: u64,
}

impl Steps {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            frequency: options.wants(Id::CpuFrequency).then(BTreeMap::new),
            idle: options.wants(Id::CpuIdle).then(BTreeMap::new),
            gauges: options.wants(Id::DsqSummary).then(FxHashMap::default),
            dsqs: FxHashMap::default(),
            without: Through::default(),
            no_room: 0,
        }
    }

    pub(super) fn take(&mut self, event: &Event) {
        match event {
            Event::Sched(event) if event.what == SchedWhat::Lost => self.lost(event.cpu),
            Event::Sched(_) => {}
            Event::Trace(event) => self.take_other(event),
        }
    }

    fn take_other(&mut self, event: &TraceEvent) {
        let now = event.time;
        match event.what {
            TraceWhat::CpuFrequency { cpu, khz } if cpu < MAX_CPUS => {
                if let Some(cpus) = &mut self.frequency {
                    cpus.entry(cpu).or_default().set(khz, now);
                }
            }
            TraceWhat::CpuIdle { cpu, state } if cpu < MAX_CPUS => {
                let Some(cpus) = &mut self.idle else { return };
                let idle = cpus.entry(cpu).or_default();
                match idle.step.set(state, now) {
                    Some((Some(state), ns)) if idle.states.len() < MAX_VALUES || idle.states.contains_key(&state) => {
                        idle.states.entry(state).or_default().add(ns);
                    }
                    Some((None, ns)) => idle.active = idle.active.saturating_add(ns),
                    _ => {}
                }
            }
            TraceWhat::Counter { track, value } => {
                let Some(gauges) = &mut self.gauges else { return };
                if gauges.len() >= MAX_COUNTERS && !gauges.contains_key(&track) {
                    self.no_room += 1;
                    return;
                }
                let gauge = gauges.entry(track).or_default();
                gauge.values += 1;
                gauge.max = gauge.max.max(value);
                if let Some((before, ns)) = gauge.step.set(value, now) {
                    gauge.weighted.0 += before * ns as f64;
                    gauge.weighted.1 += ns;
                }
            }
            // wprof says at the end which queue it was.
            TraceWhat::Dsq { is_begin: false, dsq, .. } => self.through(dsq, |through| through.inserted += 1),
            TraceWhat::Waited { dsq: Some(dsq), .. } => self.through(Some(dsq), |through| through.runs += 1),
            _ => {}
        }
    }

    fn through(&mut self, dsq: Option<u64>, add: impl FnOnce(&mut Through)) {
        if self.gauges.is_none() {
            return;
        }
        match real(dsq) {
            None => add(&mut self.without),
            Some(dsq) if self.dsqs.len() < MAX_DSQS || self.dsqs.contains_key(&dsq) => {
                add(self.dsqs.entry(dsq).or_default());
            }
            Some(_) => self.no_room += 1,
        }
    }

    /// Events of the CPU were lost, its steps among them.
    fn lost(&mut self, cpu: u32) {
        if let Some(of) = self.frequency.as_mut().and_then(|cpus| cpus.get_mut(&cpu)) {
            of.step = Step::default();
            of.losses += 1;
        }
        if let Some(of) = self.idle.as_mut().and_then(|cpus| cpus.get_mut(&cpu)) {
            of.step = Step::default();
            of.losses += 1;
        }
    }

    pub(super) fn finish(self, context: &Context<'_>, out: &mut Vec<Findings>) {
        let window = context.info.duration_ns;
        if let Some(cpus) = self.frequency {
            out.push(CpuFrequency { cpus: cpus.into_iter().map(|of| FrequencyLine::new(of, window)).collect() }.into());
        }
        if let Some(cpus) = self.idle {
            out.push(cpu_idle(cpus, window).into());
        }
        let Some(gauges) = self.gauges else { return };
        let mut lengths: Vec<DsqLength> = Vec::new();
        for (track, gauge) in gauges {
            // scxtop: `DSQ <id> nr_queued`.
            let name = context.tracks.get(track).map_or(&b""[..], |track| context.names.text(track.name));
            let id = name.strip_prefix(b"DSQ ").and_then(|name| name.strip_suffix(b" nr_queued"));
            let id = id.and_then(|id| std::str::from_utf8(id).ok()?.parse().ok());
            let Some(dsq) = real(id) else { continue };
            let (sum, ns) = gauge.weighted;
            let mean = (ns > 0).then(|| sum / ns as f64);
            lengths.push(DsqLength { dsq, values: gauge.values, mean, max: gauge.max });
        }
        lengths.sort_by(|a, b| b.max.total_cmp(&a.max).then(a.dsq.cmp(&b.dsq)));
        let through = |(&dsq, through): (&u64, &Through)| DsqThrough {
            dsq,
            name: dsq_name(dsq),
            inserted: through.inserted,
            runs: through.runs,
        };
        let mut dsqs: Vec<DsqThrough> = self.dsqs.iter().map(through).collect();
        dsqs.sort_by_key(|line| (Reverse(line.inserted), Reverse(line.runs), line.dsq));
        let (dsq_count, length_count) = (dsqs.len(), lengths.len());
        dsqs.truncate(context.options.limit);
        lengths.truncate(context.options.limit);
        let is_of_scx = |(key, _): &&(String, String)| key.contains("scx") || key.contains("sched_ext");
        let attributes = context.info.attributes.iter().filter(is_of_scx).cloned().collect();
        let (without, no_room) = (self.without.inserted, self.no_room);
        out.push(DsqSummary { attributes, dsq_count, dsqs, length_count, lengths, without, no_room }.into());
    }
}

/// The time at a frequency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FrequencyTime {
    /// kHz.
    pub khz: u64,
    /// ns.
    pub ns: u64,
}

/// The frequency of a CPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FrequencyLine {
    /// The CPU.
    pub cpu: u32,
    /// How often it changed.
    pub changes: u64,
    /// The lowest, kHz.
    pub min_khz: Option<u64>,
    /// The mean over time, kHz.
    pub mean_khz: Option<f64>,
    /// The highest, kHz.
    pub max_khz: u64,
    /// The time at each, those that are known.
    pub times: Vec<FrequencyTime>,
    /// ns for which it is not known.
    pub unknown_ns: u64,
    /// Losses of events of the CPU.
    pub losses: u64,
}

impl FrequencyLine {
    fn new((cpu, of): (u32, Frequency), window: u64) -> Self {
        let (sum, ns) = of.weighted;
        Self {
            cpu,
            changes: of.changes,
            min_khz: of.min,
            mean_khz: (ns > 0).then(|| sum / ns as f64),
            max_khz: of.max,
            times: of.ns.into_iter().map(|(khz, ns)| FrequencyTime { khz, ns }).collect(),
            unknown_ns: window.saturating_sub(ns),
            losses: of.losses,
        }
    }
}

/// The result of `cpu_frequency`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CpuFrequency {
    /// By CPU.
    pub cpus: Vec<FrequencyLine>,
}

impl CpuFrequency {
    pub(super) fn tables(&self) -> Vec<TextTable> {
        let head = ["CPU", "CHANGES", "MIN(MHz)", "MEAN(MHz)", "MAX(MHz)", "UNKNOWN(ms)", "!"];
        let mut cpus = TextTable::new("Frequencies", &head);
        let mut times = TextTable::new("Time at each", &["CPU", "MHz", "TIME(ms)", "%"]);
        let mhz = |khz: f64| format!("{:.1}", khz / 1e3);
        for line in &self.cpus {
            let name = format!("CPU {}", line.cpu);
            let mean = line.mean_khz.map_or("-".to_owned(), mhz);
            let min = line.min_khz.map_or("-".to_owned(), |khz| mhz(khz as f64));
            let mark = if is_much(line.losses, line.changes) { "!" } else { "" }.to_owned();
            let cells = [line.changes.to_string(), min, mean, mhz(line.max_khz as f64), ms(line.unknown_ns), mark];
            cpus.push(std::iter::once(name.clone()).chain(cells).collect());
            let all = line.times.iter().map(|time| time.ns).sum();
            for FrequencyTime { khz, ns } in &line.times {
                times.push(vec![name.clone(), mhz(*khz as f64), ms(*ns), percent(share(*ns, all))]);
            }
        }
        vec![cpus, times]
    }
}

fn cpu_idle(cpus: BTreeMap<u32, Idle>, window: u64) -> CpuIdle {
    let mut all: BTreeMap<u32, Durations> = BTreeMap::new();
    let mut lines = Vec::new();
    for (cpu, of) in cpus {
        let mut states = Vec::new();
        let mut known = of.active;
        for (state, durations) in &of.states {
            all.entry(*state).or_default().merge(durations);
            known = known.saturating_add(durations.sum());
            states.push(IdleState { state: *state, times: Spread::from(durations) });
        }
        let unknown_ns = window.saturating_sub(known);
        lines.push(IdleLine { cpu, active_ns: of.active, unknown_ns, states, losses: of.losses });
    }
    let state = |(state, durations): (u32, Durations)| IdleState { state, times: Spread::from(&durations) };
    CpuIdle { states: all.into_iter().map(state).collect(), cpus: lines }
}

/// Times in an idle state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct IdleState {
    /// Its number; a deeper one is higher.
    pub state: u32,
    /// Times in it.
    #[serde(flatten)]
    pub times: Spread,
}

/// Idle states of a CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IdleLine {
    /// The CPU.
    pub cpu: u32,
    /// ns in none.
    pub active_ns: u64,
    /// ns for which it is not known.
    pub unknown_ns: u64,
    /// The states that it was in.
    pub states: Vec<IdleState>,
    /// Losses of events of the CPU.
    pub losses: u64,
}

/// The result of `cpu_idle`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CpuIdle {
    /// Of all CPUs.
    pub states: Vec<IdleState>,
    /// By CPU.
    pub cpus: Vec<IdleLine>,
}

impl CpuIdle {
    pub(super) fn tables(&self) -> Vec<TextTable> {
        let mut all = TextTable::of_spreads("Times in idle states, all CPUs", "STATE");
        for line in &self.states {
            all.push_spread(format!("state {}", line.state), &line.times);
        }
        let head = ["CPU", "STATE", "ENTERED", "TIME(ms)", "KNOWN%", "MEAN(us)"];
        let mut cpus = TextTable::new("CPUs", &head);
        for line in &self.cpus {
            let entered: u64 = line.states.iter().map(|state| state.times.count).sum();
            let mark = if is_much(line.losses, entered) { "!" } else { "" };
            let name = format!("{mark}CPU {}", line.cpu);
            let known = line.active_ns + line.states.iter().map(|state| state.times.total_ns).sum::<u64>();
            let part = |ns| percent(share(ns, known));
            let dash = "-".to_owned();
            let active = [dash.clone(), ms(line.active_ns), part(line.active_ns), dash.clone()];
            cpus.push([name.clone(), "active".to_owned()].into_iter().chain(active).collect());
            for IdleState { state, times } in &line.states {
                let cells = [times.count.to_string(), ms(times.total_ns), part(times.total_ns), us(times.mean_ns)];
                cpus.push([name.clone(), state.to_string()].into_iter().chain(cells).collect());
            }
            cpus.push(vec![name, "unknown".to_owned(), dash.clone(), ms(line.unknown_ns), dash.clone(), dash]);
        }
        vec![all, cpus]
    }
}

/// What went through a dispatch queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DsqThrough {
    /// Its id.
    pub dsq: u64,
    /// The id in hexadecimal, or what the kernel calls it.
    pub name: String,
    /// Threads that were inserted and left it.
    pub inserted: u64,
    /// Runs of threads that came from it, as far as wprof says it.
    pub runs: u64,
}

/// The length of a dispatch queue.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DsqLength {
    /// Its id.
    pub dsq: u64,
    /// Values of the counter.
    pub values: u64,
    /// The mean over time.
    pub mean: Option<f64>,
    /// The longest.
    pub max: f64,
}

/// The result of `dsq_summary`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DsqSummary {
    /// What the trace says about the scheduler.
    pub attributes: Vec<(String, String)>,
    /// How many queues threads went through.
    pub dsq_count: usize,
    /// Those of the most threads first.
    pub dsqs: Vec<DsqThrough>,
    /// How many queues have a length.
    pub length_count: usize,
    /// The longest first.
    pub lengths: Vec<DsqLength>,
    /// Threads that were in no queue.
    pub without: u64,
    /// Events of queues and counters for which there was no room.
    pub no_room: u64,
}

impl DsqSummary {
    pub(super) fn tables(&self) -> Vec<TextTable> {
        let mut dsqs =
            TextTable::new(of_all("Dispatch queues", self.dsqs.len(), self.dsq_count), &["DSQ", "INSERTED", "RUNS"]);
        for line in &self.dsqs {
            dsqs.push(vec![line.name.clone(), line.inserted.to_string(), line.runs.to_string()]);
        }
        let title = of_all("Lengths", self.lengths.len(), self.length_count);
        let mut lengths = TextTable::new(title, &["DSQ", "VALUES", "MEAN", "MAX"]);
        for line in &self.lengths {
            let mean = line.mean.map_or("-".to_owned(), |mean| format!("{mean:.3}"));
            lengths.push(vec![dsq_name(line.dsq), line.values.to_string(), mean, line.max.to_string()]);
        }
        let text = |(key, value): &(String, String)| vec![printable(key.as_bytes()), printable(value.as_bytes())];
        let attributes = TextTable { title: String::new(), rows: self.attributes.iter().map(text).collect() };
        vec![attributes, dsqs, lengths]
    }
}
