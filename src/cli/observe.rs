//! Reads a trace, or a profile as one.

use std::path::Path;

use super::ends::{Ends, Step};
use super::failure::{Done, Failure};
use super::input::{self, Damage, InputKind};
use super::messages;
use super::signals::Signals;
use crate::sample::places::CpuPlaces;
use crate::session::AnalysisSink;
use scxprof_trace::analyze::{Analysis, Report};
use scxprof_trace::{Count, Info};

/// Memory for a profile's samples, mappings and queues, bytes.
const MEMORY: usize = 64 << 20;
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
    lines: Done,
    damage: Damage,
    pub(super) has_events: bool,
    pub(super) is_trace: bool,
}

impl Observed {
    /// The failure that reports unreadable parts, if there are any.
    pub(super) fn check(self) -> Done {
        let mut ends = Ends::default();
        ends.note(Step::Damage, self.damage.check());
        ends.note(Step::Loss, self.lines);
        ends.end()
    }
}

/// Reads a trace or a profile once. `analysis` gets the places of CPUs, as far as the file has them.
pub(super) fn observe(
    path: &Path,
    signals: &Signals,
    analysis: impl FnOnce(CpuPlaces) -> Option<Analysis>,
) -> Result<Observed, Failure> {
    match input::kind(path) {
        // The reader of traces says what it is none of.
        InputKind::Trace | InputKind::Unknown => observe_trace(path, signals, analysis(CpuPlaces::default())),
        InputKind::Profile => observe_profile(path, signals, analysis),
    }
}

fn observe_trace(path: &Path, signals: &Signals, mut analysis: Option<Analysis>) -> Result<Observed, Failure> {
    let trace = input::trace(path)?;
    if let Some(analysis) = &mut analysis {
        analysis.unobserved_before(trace.observed_from().unwrap_or(0));
    }
    let mut sink = AnalysisSink::new(analysis);
    let trace = input::read_trace(trace, path, None, &mut sink, &|| signals.seen())?;
    let info = trace.info();
    let has_events = sink.traced() > 0;
    let report = sink.report_of_trace(&trace);
    let losses = losses(&info);
    let damage = Damage::of_trace(info.damage.clone());
    Ok(Observed { info, report, losses, lines: Ok(()), damage, has_events, is_trace: true })
}

fn observe_profile(
    path: &Path,
    signals: &Signals,
    analysis: impl FnOnce(CpuPlaces) -> Option<Analysis>,
) -> Result<Observed, Failure> {
    let stop = || signals.seen();
    let mut profile = input::sched_profile(path, &stop)?;
    let mut sink = AnalysisSink::new(analysis(profile.places()));
    let outcome = input::read(input::session(&mut profile, MEMORY), &mut sink, &stop)?;
    messages::say_loss(&outcome.loss, false);
    let info = sink.info(&profile.recorded());
    let report = sink.report(&info);
    let mut losses = profile.sched_lacks();
    losses.extend(self::losses(&info));
    losses.extend(profile.unreadable_lines().map(|lines| lines.sentence));
    let lines = input::check_lines(MAX_LOSS, &profile);
    let damage = Damage::of_profile(&profile);
    Ok(Observed { lines, damage, has_events: !info.events.is_empty(), info, report, losses, is_trace: false })
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
