//! Reads a trace, or a profile as one.

use std::cell::RefCell;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;

use super::ends::{Ends, Step};
use super::failure::{Done, Failure};
use super::input::{self, Damage, InputKind};
use super::messages;
use super::selection::{Selected, Selection};
use super::signals::Signals;
use crate::resolve::Cgroups;
use crate::sample::places::CpuPlaces;
use crate::sample::sched::SchedEvent;
use crate::sample::Sample;
use crate::session::{AnalysisSink, Sink};
use scxprof_trace::analyze::{Analysis, Report};
use scxprof_trace::{Count, Event, Info, Names, Recording, Trace, TraceThreads, Tracks};

/// Memory for a profile's samples, mappings and queues, bytes.
const MEMORY: usize = 64 << 20;
/// Events between two looks at whether to end.
const BATCH: u64 = 1024;
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

/// The events of a file, one by one, with the tables that they refer to.
pub(super) type Each<'a> =
    &'a mut dyn FnMut(&Event, &Names, &TraceThreads, &Tracks) -> Result<ControlFlow<()>, Failure>;

/// What is known before the first event: the places of CPUs, as far as the file has them; of a trace its threads, and since when all
/// CPUs were observed.
type Begin<'a> = &'a mut dyn FnMut(CpuPlaces, Option<&TraceThreads>, u64);

/// The inputs of the analysers' results.
enum Whole {
    Trace(Box<Trace<File>>),
    Profile(Box<Recording>),
}

/// Reads the events of a trace or a profile in order of time, until the end or `each` wants no more; of a profile also its accesses.
pub(super) fn each_event(path: &Path, signals: &Signals, each: Each<'_>) -> Result<Observed, Failure> {
    Ok(read_each(path, signals, &mut |_, _, _| {}, each)?.0)
}

fn read_each(path: &Path, signals: &Signals, begin: Begin<'_>, each: Each<'_>) -> Result<(Observed, Whole), Failure> {
    match input::kind(path) {
        InputKind::Trace | InputKind::Unknown => {
            let mut trace = input::trace(path)?;
            begin(CpuPlaces::default(), Some(trace.threads()), trace.observed_from().unwrap_or(0));
            let mut count = 0u64;
            while let Some(event) = trace.next_event().map_err(|error| input::wrong_trace(&error, path))? {
                count += 1;
                if count.is_multiple_of(BATCH) && signals.seen() {
                    return Err(input::interrupted());
                }
                if each(&event, trace.names(), trace.threads(), trace.tracks())?.is_break() {
                    break;
                }
            }
            let info = trace.info();
            let (losses, damage) = (losses(&info), Damage::of_trace(info.damage.clone()));
            let has_events = count > 0;
            let observed = Observed { info, report: None, losses, lines: Ok(()), damage, has_events, is_trace: true };
            Ok((observed, Whole::Trace(Box::new(trace))))
        }
        InputKind::Profile => {
            let stop = || signals.seen();
            let mut profile = input::profile(path, &stop)?;
            begin(profile.places(), None, 0);
            let mut sink = EachSink { recording: Recording::default(), each, ended: Ok(ControlFlow::Continue(())) };
            let outcome = input::read(input::session(&mut profile, MEMORY), &mut sink, &stop)?;
            let EachSink { recording, ended, .. } = sink;
            let _ = ended?;
            messages::say_loss(&outcome.loss, false);
            let info = recording.info(&profile.recorded());
            let mut losses = profile.sched_lacks();
            losses.extend(self::losses(&info));
            let lines = input::check_lines(MAX_LOSS, &profile);
            let damage = Damage::of_profile(&profile);
            let has_events = !info.events.is_empty();
            let observed = Observed { lines, damage, has_events, info, report: None, losses, is_trace: false };
            Ok((observed, Whole::Profile(Box::new(recording))))
        }
    }
}

/// Analyses what is selected of a trace or a profile.
pub(super) fn analyze(
    path: &Path,
    signals: &Signals,
    selection: &mut Selection,
    analysis: impl FnOnce(CpuPlaces, &Selection, Option<&TraceThreads>) -> Analysis,
) -> Result<Observed, Failure> {
    if selection.is_empty() {
        return observe(path, signals, |places| Some(analysis(places, selection, None)));
    }
    let (mut make, running) = (Some(analysis), RefCell::new(None));
    let select = RefCell::new(selection);
    let mut begin = |places: CpuPlaces, threads: Option<&TraceThreads>, observed_from| {
        let Some(make) = make.take() else { return };
        let mut analysis = make(places, *select.borrow(), threads);
        analysis.unobserved_before(observed_from);
        *running.borrow_mut() = Some(analysis);
    };
    let mut each = |event: &Event, names: &Names, threads: &TraceThreads, _: &Tracks| {
        let mut selection = select.borrow_mut();
        if selection.keeps(event, names, threads) == Selected::Past {
            return Ok(ControlFlow::Break(()));
        }
        // The analysers follow what is not selected, so that it is known who runs.
        if let Some(analysis) = running.borrow_mut().as_mut().filter(|_| selection.is_of_type(event, names)) {
            analysis.take(event);
        }
        Ok(ControlFlow::Continue(()))
    };
    let (mut observed, whole) = read_each(path, signals, &mut begin, &mut each)?;
    observed.report = running.into_inner().map(|analysis: Analysis| match &whole {
        Whole::Trace(trace) => analysis.finish(trace),
        Whole::Profile(recording) => recording.analyze(analysis, &observed.info),
    });
    Ok(observed)
}

/// Gives the events of a profile as those of a trace.
struct EachSink<'a> {
    recording: Recording,
    each: Each<'a>,
    ended: Result<ControlFlow<()>, Failure>,
}

impl EachSink<'_> {
    fn give(&mut self, event: &Event) {
        if matches!(self.ended, Ok(ControlFlow::Continue(()))) {
            let (names, threads, tracks) = self.recording.tables();
            self.ended = (self.each)(event, names, threads, tracks);
        }
    }
}

impl Sink for EachSink<'_> {
    fn sample(&mut self, sample: &Sample, _: &mut Cgroups) {
        let event = self.recording.access(sample);
        self.give(&event);
    }

    fn sched(&mut self, events: &[SchedEvent], _: &mut Cgroups) {
        for event in events {
            let mut made = Vec::new();
            self.recording.sched(event, &mut |event| made.push(event.clone()));
            for event in &made {
                self.give(event);
            }
        }
    }
}

/// Reads a trace or a profile once. `analysis` gets the places of CPUs, as far as the file has them.
pub(super) fn observe(
    path: &Path,
    signals: &Signals,
    analysis: impl FnOnce(CpuPlaces) -> Option<Analysis>,
) -> Result<Observed, Failure> {
    match input::kind(path) {
        // The reader of traces says which formats it is not.
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
