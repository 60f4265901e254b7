//! Reads a trace, or a profile as one.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{anyhow, Context};

use super::failure::Failure;
use super::signals::Signals;
use super::{decision, process};
use crate::host::open;
use crate::profile::{Profile, ProfileError};
use crate::resolve::Cgroups;
use crate::sample::places::CpuPlaces;
use crate::sample::sched::{SchedEvent, SchedWhat};
use crate::sample::Comm;
use crate::session::{AnalysisSink, Session, Sink};
use scxprof_trace::analyze::{Analysis, Report};
use scxprof_trace::{Count, Event, Info, Trace, TraceError, TraceEvent, TraceWhat};

/// Bytes by which a trace is known.
const HEAD: u64 = 64 << 10;
/// Memory for a profile's samples, mappings and queues, bytes.
const MEMORY: usize = 64 << 20;
/// Events that are passed on at once.
const BATCH: usize = 1024;
/// Percent of the lines of a text that may be no samples, as `--max-loss` of other commands has it.
const MAX_LOSS: f64 = 1.0;

/// What a file contains.
pub(super) struct Observed {
    pub(super) info: Info,
    /// The results of the analysers, if there were any.
    pub(super) report: Option<Report>,
    /// What was lost, one sentence each.
    pub(super) losses: Vec<String>,
    /// The failure of a text with too many lines that are no samples.
    lines: Result<(), Failure>,
    pub(super) has_events: bool,
    pub(super) is_trace: bool,
}

impl Observed {
    /// The failure that reports unreadable parts, if there are any.
    pub(super) fn check(self) -> Result<(), Failure> {
        if self.is_trace {
            process::damaged_trace(&self.info.damage)
        } else {
            process::damaged(&self.info.damage)?;
            self.lines
        }
    }
}

/// Reads a trace or a profile once. `analysis` gets the places of CPUs, as far as the file has them.
pub(super) fn observe(
    path: &Path,
    signals: &Signals,
    analysis: impl FnOnce(CpuPlaces) -> Option<Analysis>,
) -> Result<Observed, Failure> {
    let is_unknown = || matches!(Profile::check(path), Err(ProfileError::Unknown { .. }));
    if is_trace(path) || !path.is_dir() && is_unknown() {
        observe_trace(path, signals, analysis(CpuPlaces::default()))
    } else {
        observe_profile(path, signals, analysis)
    }
}

fn observe_trace(path: &Path, signals: &Signals, mut analysis: Option<Analysis>) -> Result<Observed, Failure> {
    let mut trace = open_trace(path)?;
    if let Some(analysis) = &mut analysis {
        analysis.unobserved_before(trace.observed_from().unwrap_or(0));
    }
    let mut count = 0u64;
    while let Some(event) = trace.next_event().map_err(|error| failed(&error, path))? {
        if let Some(analysis) = &mut analysis {
            analysis.take(&event);
        }
        count += 1;
        if count.is_multiple_of(BATCH as u64) && signals.seen() {
            return Err(process::interrupted());
        }
    }
    let info = trace.info();
    let report = analysis.map(|analysis| analysis.finish(&trace));
    let losses = losses(&info);
    Ok(Observed { info, report, losses, lines: Ok(()), has_events: count > 0, is_trace: true })
}

fn observe_profile(
    path: &Path,
    signals: &Signals,
    analysis: impl FnOnce(CpuPlaces) -> Option<Analysis>,
) -> Result<Observed, Failure> {
    let stop = || signals.seen();
    let mut profile = process::open(path, &stop)?;
    let mut sink = AnalysisSink::new(analysis(profile.places()));
    let session = Session::builder().profile(&mut profile).memory(MEMORY).start();
    let outcome = session.map_err(|error| Failure::Unsupported(error.into()))?.run_into(&mut sink, |_| stop());
    if stop() {
        return Err(process::interrupted());
    }
    decision::say_loss(&outcome.loss, false);
    let info = sink.info(&profile.recorded());
    let report = sink.report(&info);
    let mut losses = profile.sched_lacks();
    losses.extend(self::losses(&info));
    losses.extend(profile.unreadable_lines().map(|lines| lines.sentence));
    let lines = process::check_lines(MAX_LOSS, &profile);
    Ok(Observed { lines, has_events: !info.events.is_empty(), info, report, losses, is_trace: false })
}

/// True if the file is a trace. What cannot be opened is none; the reader of profiles says why.
pub(super) fn is_trace(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = open::regular(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    read.is_ok() && scxprof_trace::is_trace(&head)
}

/// Opens a trace.
pub(super) fn open_trace(path: &Path) -> Result<Trace<File>, Failure> {
    let file = open::regular(path).with_context(|| format!("cannot open {}", path.display()));
    Trace::open(file.map_err(Failure::Usage)?).map_err(|error| failed(&error, path))
}

pub(super) fn failed(error: &TraceError, path: &Path) -> Failure {
    let is_usage = !matches!(error, TraceError::Read(_) | TraceError::Spool(_));
    let error = match error {
        TraceError::NotATrace => anyhow!("{}: {error}; nor is it a profile or a perf.data", path.display()),
        _ => anyhow!("{}: {error}", path.display()),
    };
    if is_usage {
        Failure::Usage(error)
    } else {
        Failure::NoResult(error)
    }
}

/// Gives the scheduling events of a trace to `sinks`, and the names of its processes; true if it was interrupted.
pub(super) fn feed(
    trace: &mut Trace<File>,
    path: &Path,
    sinks: &mut [&mut dyn Sink],
    stop: &dyn Fn() -> bool,
) -> Result<bool, Failure> {
    let mut cgroups = Cgroups::recorded();
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        let event = trace.next_event().map_err(|error| failed(&error, path))?;
        let is_end = event.is_none();
        batch.extend(event.as_ref().and_then(scheduling));
        if batch.len() >= BATCH || is_end {
            for sink in &mut *sinks {
                sink.sched(&batch, &mut cgroups);
            }
            batch.clear();
            if stop() {
                return Ok(true);
            }
        }
        if is_end {
            break;
        }
    }
    let processes: Vec<(u32, Comm)> = trace.threads().processes().collect();
    for sink in sinks {
        sink.processes(&processes, &mut cgroups);
    }
    Ok(false)
}

/// The scheduling event that an event of a trace is; the beginnings of wprof's times in a dispatch queue are insertions.
fn scheduling(event: &Event) -> Option<SchedEvent> {
    match *event {
        Event::Sched(event) => Some(event),
        Event::Trace(TraceEvent {
            time,
            cpu,
            tid,
            what: TraceWhat::Dsq { is_begin: true, dsq: Some(dsq), .. },
            ..
        }) => {
            let what = SchedWhat::DsqInsert { tid, dsq, slice: 0, is_moved: false };
            Some(SchedEvent { time, cpu, pid: SchedEvent::UNKNOWN, tid: SchedEvent::UNKNOWN, cgroup: 0, what })
        }
        Event::Trace(_) => None,
    }
}

/// What was lost of a trace, one sentence each.
pub(super) fn losses(info: &Info) -> Vec<String> {
    let lost = &info.lost;
    let sentences = [
        (lost.bundles, "events of a CPU were lost, as the trace says, COUNT times: its state is unknown there"),
        (lost.overruns, "the kernel's buffer lost COUNT events during the recording"),
        (lost.sequences, "packets of the trace were lost COUNT times"),
        (
            lost.other_machines,
            "COUNT packets are of other machines, whose threads and CPUs have the same numbers: they are left out",
        ),
        (lost.packets, "COUNT packets refer to lost ones and are left out"),
        (lost.untimed, "COUNT track events have no time and are left out"),
        (lost.uneven, "COUNT bundles of compact events contradict themselves and are left out"),
        (lost.unnamed_wakeups, "of COUNT wakeups the trace does not say which thread was woken"),
        (lost.ends_without_begin, "COUNT slices end that did not begin in the trace"),
        (lost.half_switches, "COUNT switches do not say to which thread"),
        (lost.late, "COUNT events are older than others before them"),
        (lost.no_room, "there was no room for COUNT names, threads or tracks"),
    ];
    let sentences = sentences.iter().filter(|(count, _)| *count > 0);
    let mut lines: Vec<String> =
        sentences.map(|(count, sentence)| sentence.replace("COUNT", &count.to_string())).collect();
    if let Some(from) = info.observed_from_ns {
        lines.push(format!(
            "not all CPUs were observed in the first {:.3} s: what threads do off their CPUs in that time is not known, and \
             does not count",
            from.saturating_sub(info.first_ns) as f64 / 1e9
        ));
    }
    for Count { name, count } in &info.unmapped_clocks {
        lines.push(format!("{count} times are of {name}, which no snapshot of the trace maps to BOOTTIME"));
    }
    lines
}
