//! `scxprof watch`: samples a little all the time, and replaces the configuration when another one is better.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::anyhow;
use clap::Args;
use rustix::process::{kill_process_group, Pid, Signal};
use rustix::thread::{nanosleep, Timespec};

use super::args::{percent, seconds, MAX_LLCS, RESULT, TUNING};
use super::capture::{self, CaptureArgs};
use super::decision::DecisionArgs;
use super::evidence::{self, EvidenceArgs, Facts};
use super::failure::Failure;
use super::output::{Output, Readers};
use super::outputs::check_distinct;
use super::say::IS_SERVICE;
use super::signals::Signals;
use crate::config::{DecisionOptions, OnCaches};
use crate::evidence::{Evidence, FadingEvidence, Interval};
use crate::host::topology;
use crate::profile::meta::Host;

mod budget;
mod metrics;
mod store;
mod systemd;
mod writes;

use budget::Budget;
use metrics::metrics;
use store::{loaded, Store, Stored, Totals};
use systemd::Systemd;
use writes::Writes;

const EXAMPLES: &str = "\
Examples:
  sudo scxprof watch -o /var/lib/scxprof/cells.json --exec 'systemctl restart scx_mitosis'
  sudo scxprof watch -o cells.json --metrics /var/lib/node_exporter/scxprof.prom
  sudo scxprof watch -o cells.json --interval 60 --duty 5    more often, and more of the time
  sudo systemctl enable --now scxprof-watch      contrib/scxprof-watch.service has the least rights
Signals:
  SIGHUP  reads the loaded configuration again, from the file that -o names
  SIGINT, SIGTERM  save the state and end; the next watch goes on";

/// How long a slice is, if the interval has room for enough of them.
const SLICE: Duration = Duration::from_secs(1);
/// Fewer slices do not tell how certain a gain is.
const SLICES: u32 = 6;
/// A slice is not shorter.
const SHORTEST: Duration = Duration::from_millis(200);
/// Sums of slices that are kept.
const MAX_SUMS: usize = 48;
/// The longest interval.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long CMD may run.
const EXEC_LIMIT: Duration = Duration::from_secs(60);
/// How long it sleeps at most. A signal ends a sleep; one that comes just before it waits for its end.
const NAP: Duration = Duration::from_secs(5);
/// How often CMD is looked at.
const EXEC_NAP: Duration = Duration::from_millis(50);
/// Slices that fail one after the other before the watch ends.
const MAX_FAILED: u32 = 60;

/// Sample continuously at a low rate, and replace the configuration when a better one is found
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    mut_arg("time", |arg| arg.hide(true)),
    mut_arg("command", |arg| arg.hide(true)),
    mut_arg("max_loss", |arg| arg.hide(true)),
    mut_arg("sched", |arg| arg.hide(true)),
    mut_arg("no_symbols", |arg| arg.hide(true)),
)]
pub(super) struct WatchingArgs {
    #[command(flatten)]
    capture: CaptureArgs,
    /// How often to decide again
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds, help_heading = TUNING)]
    interval: Duration,
    /// The part of the time in which to sample, in slices of up to 1 s, and the part of one CPU that watch may use in all
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percent, help_heading = TUNING)]
    duty: f64,
    /// End after N intervals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = TUNING)]
    intervals: Option<u64>,
    /// Last-level caches of this host [default: as --target-llcs says or as many as it has, at least 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=MAX_LLCS), help_heading = TUNING)]
    llcs: Option<u32>,
    /// The file of the configuration: its content is the loaded one, and watch replaces it with a better one
    #[arg(short = 'o', long = "output", value_name = "FILE", required = true, help_heading = RESULT)]
    output: PathBuf,
    /// Run CMD with a shell after each replacement of the configuration; $SCXPROF_CONFIG is its path
    #[arg(long, value_name = "CMD", help_heading = RESULT)]
    exec: Option<String>,
    /// Keep the evidence and the counts in DIR, so that watch continues from them after a restart
    #[arg(long, value_name = "DIR", help_heading = RESULT)]
    state: Option<PathBuf>,
    /// Write figures to FILE for Prometheus after each interval
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    metrics: Option<PathBuf>,
    #[command(flatten)]
    evidence: EvidenceArgs,
    #[command(flatten)]
    decision: DecisionArgs,
    /// Also print the scores on which decisions are based (docs/watch.md)
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count, help_heading = RESULT)]
    verbose: u8,
}

struct Watcher<'a> {
    args: &'a WatchingArgs,
    watch: FadingEvidence,
    facts: Facts,
    signals: Signals,
    store: Option<Store>,
    totals: Totals,
    is_exec_due: bool,
    is_first: bool,
    failed: u32,
    systemd: Systemd,
    budget: Budget,
    /// It was said that the slices are late.
    is_late: bool,
    writes: Writes,
    /// The last sentence on groups that the host cannot load.
    limit: Option<String>,
}

/// Watches until a signal comes.
pub(super) fn run(args: &WatchingArgs) -> Result<(), Failure> {
    IS_SERVICE.store(true, Ordering::Relaxed);
    let roots = args.capture.watch.roots();
    if args.capture.watch.has_command() {
        return Err(Failure::Usage(anyhow!("watch takes no COMMAND: it watches the host, -p PID or --cgroup PATH")));
    }
    if args.capture.watch.has_time() {
        return Err(Failure::Usage(anyhow!("watch takes no -t: --interval and --duty set how long it samples")));
    }
    if args.decision.use_hints && !args.capture.hints.are_followed() {
        return Err(Failure::Usage(anyhow!("--use-hints needs --hints-map, which names the map of the hints")));
    }
    if args.duty <= 0.0 {
        return Err(Failure::Usage(anyhow!("--duty 0: it would never sample")));
    }
    if args.interval < SHORTEST * SLICES {
        return Err(Failure::Usage(anyhow!("--interval: the shortest is {} s", (SHORTEST * SLICES).as_secs_f64())));
    }
    if args.interval > LONGEST {
        return Err(Failure::Usage(anyhow!("--interval: the longest is {} s", LONGEST.as_secs())));
    }
    if args.interval.mul_f64(args.duty / 100.0) < SHORTEST * SLICES {
        let least = (SHORTEST * SLICES).as_secs_f64();
        say!("note: {SLICES} slices of {} s are {least} s of each interval, more than --duty", SHORTEST.as_secs_f64());
    }
    // From here on a signal ends it as it should.
    let signals = Signals::handle_and_reload().map_err(Failure::Unsupported)?;
    let cpus = topology::online_cpus(&roots).unwrap_or_default();
    let target_cpus = args.decision.target_cpus().unwrap_or(cpus.len().max(1));
    let mut options = DecisionOptions::new(args.decision.min_share(), target_cpus);
    options.scheduler = args.decision.scheduler();
    let is_this_host = args.decision.target_cpus().is_none();
    let of_this_host = || is_this_host.then(|| topology::caches(&roots, &cpus)).flatten();
    options.caches = args.decision.caches().or_else(of_this_host);
    let llcs = || {
        if let Some(llcs) = args.decision.target_llcs() {
            return llcs.max(2);
        }
        let places = topology::places(&roots, &cpus);
        let llcs: BTreeSet<u32> = places.iter().map(|(_, place)| place.llc).collect();
        u32::try_from(llcs.len()).unwrap_or(u32::MAX).max(2)
    };
    let known = || OnCaches::known(options.caches, options.target_cpus);
    let order = args.llcs.map(OnCaches::Random).or_else(known).unwrap_or_else(|| OnCaches::Random(llcs()));
    // To tell now what cannot be written later.
    let mut opened: Vec<(&str, Output)> = Vec::new();
    let outputs = [
        ("-o", Some(&args.output)),
        ("--metrics", args.metrics.as_ref()),
        ("--evidence", args.evidence.evidence.as_ref()),
    ];
    for (option, path) in outputs.into_iter().filter_map(|(option, path)| Some((option, path?))) {
        if path == Path::new("-") {
            return Err(Failure::Usage(anyhow!("{option} -: a watch replaces a file, which stdout is not")));
        }
        let output = to(path, Readers::All).map_err(|error| Failure::Usage(error.context(option)))?;
        check_distinct((option, &output), opened.iter().map(|(option, output)| (*option, output)))?;
        opened.push((option, output));
    }
    drop(opened);
    let store = args.state.as_deref().map(Store::open).transpose()?;
    let mut watch = FadingEvidence::new(options, order);
    let mut totals = Totals::default();
    let loaded = loaded(&args.output)?;
    watch.load(loaded);
    let mut is_exec_due = false;
    if let Some((state, evidence)) = store.as_ref().map(Store::read).transpose()?.flatten() {
        totals = state.totals;
        is_exec_due = state.is_exec_due;
        // What was better than another configuration need not be better than this one.
        let candidate = state.candidate.filter(|_| state.loaded.as_deref() == watch.loaded());
        watch = watch.resume(evidence, candidate);
    }
    let facts = args.evidence.facts(&Host::here(&roots))?;
    // What it samples at least is what it may use at least.
    let least = (SHORTEST * SLICES).as_secs_f64() / args.interval.as_secs_f64();
    let mut watcher = Watcher {
        args,
        watch,
        facts,
        signals,
        store,
        totals,
        is_exec_due,
        is_first: true,
        failed: 0,
        systemd: Systemd::of_environment(),
        budget: Budget::new((args.duty / 100.0).max(least)),
        is_late: false,
        writes: Writes::default(),
        limit: None,
    };
    let done = watcher.run();
    watcher.systemd.stopping();
    done.and(watcher.save())
}

/// The destination of a file, which must not block.
fn to(path: &Path, readers: Readers) -> anyhow::Result<Output> {
    let output = Output::open(Some(path), readers)?;
    if output.may_wait() {
        return Err(anyhow!("{} is not a file, and a watch waits for no reader: name a file", path.display()));
    }
    Ok(output)
}

impl Watcher<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        let mut left = self.args.intervals;
        let mut is_first = true;
        while left != Some(0) && !self.signals.seen() {
            let begin = Instant::now();
            // The first result comes as soon as it can; the next ones are of the whole interval.
            let slices = self.slices(begin, is_first)?;
            let end = begin + self.args.interval;
            if !is_first {
                self.wait_until(end);
            }
            if self.signals.seen() {
                break;
            }
            self.end_interval(&slices)?;
            left = left.map(|left| left - 1);
            if is_first && left != Some(0) {
                self.wait_until(end);
            }
            is_first = false;
        }
        Ok(())
    }

    /// Samples the slices of an interval, evenly spread over it, or one after the other. If they cost more CPU time than there is,
    /// they come later: there are fewer, and if they are too few then, the interval takes longer. What is sampled at once is paid
    /// for after it.
    fn slices(&mut self, begin: Instant, at_once: bool) -> Result<Vec<Evidence>, Failure> {
        let interval = self.args.interval;
        let all = interval.mul_f64(self.args.duty / 100.0);
        let count = (all.as_secs_f64() / SLICE.as_secs_f64()).ceil().max(SLICES.into()) as u32;
        let slice = (all / count).max(SHORTEST);
        let count = if at_once { SLICES } else { count };
        // However many there are, few sums tell as well how certain a gain is.
        let mut slices: Vec<Evidence> = Vec::new();
        let mut late = 0;
        for at in 0..count {
            let planned = if at_once { begin } else { begin + interval / count * at };
            let free = if at_once { planned } else { self.budget.free() };
            if free > planned {
                late += 1;
            }
            if at >= SLICES && free >= begin + interval {
                late += u64::from(count - at - 1);
                break;
            }
            self.wait_until(planned.max(free));
            if self.signals.seen() {
                break;
            }
            self.budget.begin();
            match self.sample(slice) {
                Ok(found) => {
                    self.failed = 0;
                    if slices.len() < MAX_SUMS {
                        slices.extend(found);
                    } else if let (Some(found), Some(sum)) = (found, slices.get_mut(at as usize % MAX_SUMS)) {
                        sum.merge(&found).map_err(|error| Failure::NoResult(error.into()))?;
                    }
                }
                // What cannot be done at all is said at once; later something may be missing for a while.
                Err(error) if self.is_first => return Err(error),
                Err(error) => {
                    self.failed += 1;
                    self.totals.failed_slices += 1;
                    if self.failed >= MAX_FAILED {
                        return Err(error);
                    }
                    if self.failed == 1 {
                        say!("note: a slice could not be sampled, the watch goes on: {}", error.sentence());
                    }
                }
            }
            if self.is_first {
                self.is_first = false;
                self.systemd.ready();
            }
        }
        self.totals.late_slices += late;
        if late > 0 && !self.is_late {
            say!(
                "note: slices need so much CPU time on this host that watch takes fewer of them than --duty allows, to stay within \
                 {:.3} % of a CPU. Raise --duty or --interval, or sample less with -p or --cgroup",
                self.budget.percent()
            );
        }
        self.is_late = late > 0;
        Ok(slices)
    }

    /// Samples one slice; `None` if there were no samples.
    fn sample(&mut self, slice: Duration) -> Result<Option<Evidence>, Failure> {
        let wanted = &self.args.capture;
        let (builder, host) = capture::builder(wanted)?;
        let builder = builder.analysis(self.args.decision.analysis(super::decision::Made::Configuration)).time(slice);
        // Which source it is, is said once.
        let start = if self.is_first { capture::start } else { capture::begin };
        let session = start(&wanted.watch, self.args.verbose, (builder, host), None)?;
        let signals = &self.signals;
        let sampled = session.run_until(|_| signals.seen());
        self.totals.lost += sampled.outcome.loss.lost();
        if self.is_first {
            capture::say_notes(&sampled.outcome, None);
        }
        let samples = sampled.decider.tally().total();
        self.totals.samples += samples;
        if samples <= 0.0 {
            return Ok(None);
        }
        self.facts.unfolded(&sampled).map(Some)
    }

    /// Waits, but for signals; reads the configuration again if one asks for it.
    fn wait_until(&mut self, end: Instant) {
        loop {
            self.systemd.alive();
            if self.signals.take_reload() {
                self.reload();
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.signals.seen() {
                return;
            }
            nap(left.min(NAP));
        }
    }

    fn reload(&mut self) {
        match loaded(&self.args.output) {
            Ok(configuration) => {
                self.watch.load(configuration);
                say!("note: {} was read again", self.args.output.display());
            }
            Err(error) => say!("note: the configuration stays as it was: {}", error.sentence()),
        }
    }

    fn end_interval(&mut self, slices: &[Evidence]) -> Result<(), Failure> {
        self.totals.intervals += 1;
        let before = self.watch.loaded().map(str::to_owned);
        let mut found = self.watch.interval(slices).unwrap_or_else(|error| {
            say!("note: this interval has no result: {error}");
            Interval::without(error.to_string())
        });
        self.totals.too_large += u64::from(found.is_too_large);
        if let Some(new) = found.new.take() {
            let was_due = self.is_exec_due;
            // First, so that CMD is run even if the watch is killed before it could.
            self.is_exec_due = self.args.exec.is_some();
            self.totals.changes += 1;
            let saved = self.save();
            self.note_write("--state", saved)?;
            // The new one is whole, or the old one stays.
            let written = to(&self.args.output, Readers::All).and_then(|output| output.write(new.as_bytes(), false));
            let is_written = written.is_ok();
            self.note_write("-o", written.map_err(Failure::NoResult))?;
            if is_written {
                say!(
                    "{}: a new configuration, which avoids {} of the avoidable misses; the one before avoids {}",
                    self.args.output.display(),
                    part(found.best_locality),
                    part(found.locality)
                );
            } else {
                // It is judged again after the next interval.
                self.watch.unload(before);
                self.is_exec_due = was_due;
                self.totals.changes -= 1;
            }
        }
        if self.is_exec_due {
            self.exec();
        }
        let text = describe(&found, self.args.verbose > 0);
        self.systemd.status(&text);
        say!("{} {text}", now());
        if let Some(limit) = found.limit.take().filter(|limit| self.limit.as_ref() != Some(limit)) {
            say!("note: {limit}");
            self.limit = Some(limit);
        }
        let saved = self.save();
        self.note_write("--state", saved)?;
        let written = self.write_evidence(slices);
        self.note_write("--evidence", written)?;
        if let Some(path) = &self.args.metrics {
            let text = metrics(&found, &self.totals);
            let written = to(path, Readers::All).and_then(|output| output.write(text.as_bytes(), false));
            self.note_write("--metrics", written.map_err(Failure::NoResult))?;
        }
        Ok(())
    }

    /// Writes what a fleet gets of the interval.
    fn write_evidence(&self, slices: &[Evidence]) -> Result<(), Failure> {
        let Some(path) = &self.args.evidence.evidence else { return Ok(()) };
        let mut all = Evidence::default();
        if slices.iter().try_for_each(|slice| all.merge(slice)).is_err() {
            return Ok(());
        }
        evidence::write(&self.facts.folded(&all)?, to(path, Readers::Owner).map_err(Failure::NoResult)?)
    }

    /// Counts what could not be written; fails if it stays so.
    fn note_write(&mut self, what: &'static str, written: Result<(), Failure>) -> Result<(), Failure> {
        self.totals.failed_writes += u64::from(written.is_err());
        if let Some(note) = self.writes.note(what, written)? {
            say!("note: {note}");
        }
        Ok(())
    }

    fn save(&self) -> Result<(), Failure> {
        let Some(store) = &self.store else { return Ok(()) };
        let owned = |json: Option<&str>| json.map(str::to_owned);
        let state = Stored {
            loaded: owned(self.watch.loaded()),
            candidate: owned(self.watch.candidate()),
            is_exec_due: self.is_exec_due,
            totals: self.totals,
            ..Stored::default()
        };
        store.write(state, self.watch.evidence())
    }

    /// Runs CMD; the watch goes on whatever it does, and tries it again after the next interval if it fails.
    fn exec(&mut self) {
        let Some(command) = &self.args.exec else {
            self.is_exec_due = false;
            return;
        };
        let config = fs::canonicalize(&self.args.output).unwrap_or_else(|_| self.args.output.clone());
        // In a group of its own, so that what it starts can be ended too.
        let started = Command::new("/bin/sh")
            .args(["-c", command])
            .env("SCXPROF_CONFIG", config)
            .stdin(Stdio::null())
            .process_group(0)
            .spawn();
        let failed = match started {
            Ok(child) => wait(child, &self.signals),
            Err(error) => Some(format!("it did not start: {error}")),
        };
        self.is_exec_due = failed.is_some();
        if let Some(failed) = failed {
            self.totals.failed_execs += 1;
            say!("note: --exec: {failed}; it is run again after the next interval");
        }
    }
}

/// Waits for CMD; what is wrong with its end.
fn wait(mut child: Child, signals: &Signals) -> Option<String> {
    let end = Instant::now() + EXEC_LIMIT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return None,
            Ok(Some(status)) => return Some(format!("it ended with {status}")),
            Ok(None) if Instant::now() < end && !signals.seen() => sleep(EXEC_NAP),
            ended => {
                if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                let _ = child.wait();
                return Some(match ended {
                    Err(error) => format!("its exit status is not known: {error}"),
                    _ if signals.seen() => "it was killed, as the watch ends".to_owned(),
                    _ => format!("it was killed after {} s", EXEC_LIMIT.as_secs()),
                });
            }
        }
    }
}

/// Sleeps until a signal comes, or for so long.
fn nap(time: Duration) {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) as _ };
    let _ = nanosleep(&time);
}

/// The time of day, UTC.
fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() % (24 * 3600);
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// A part as people write it: never -0.
fn part(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |it| format!("{:.1} %", (it * 1000.0).round() / 10.0 + 0.0))
}

/// The result of an interval, in a line.
fn describe(found: &Interval, with_scores: bool) -> String {
    if let Some(reason) = &found.reason {
        return reason.clone();
    }
    let better = match (found.gain, found.doubt) {
        (Some(gain), Some(doubt)) if gain > doubt => "; it replaces the loaded one if the next interval confirms it",
        _ => "",
    };
    let Interval { locality, best_locality, score, best, gain, doubt, .. } = found;
    let scores = if with_scores {
        let [score, best, gain] = [*score, *best, *gain].map(part);
        let doubt = doubt.map_or_else(|| "?".to_owned(), |doubt| format!("{:.1}", doubt * 100.0));
        format!(" (beyond chance: {score}, {best}, gain {gain} within {doubt})")
    } else {
        String::new()
    };
    format!("locality {}, of a new configuration {}{scores}{better}", part(*locality), part(*best_locality))
}
