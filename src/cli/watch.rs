//! `scxprof watch`: samples a little all the time, and replaces the configuration when another one is better.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{anyhow, Context};
use clap::Args;
use rustix::fs::{flock, FlockOperation};
use rustix::process::{kill_process_group, Pid, Signal};
use rustix::thread::{nanosleep, Timespec};
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};

use super::capture::{self, CaptureArgs, RESULT, TUNING};
use super::decision::DecisionArgs;
use super::evidence::{self, EvidenceArgs, Facts};
use super::output::{Output, Readers};
use super::outputs::check_distinct;
use super::signals::Signals;
use super::{percent, Failure};
use crate::config::{DecisionOptions, Placement};
use crate::evidence::{file, Evidence, Interval, Watch};
use crate::host::topology;
use crate::profile::meta::Host;

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
/// Bytes of a configuration, and of the state, that are read.
const MAX_READ: u64 = 16 << 20;
/// How long it sleeps at most. A signal ends a sleep; one that comes just before it waits for its end.
const NAP: Duration = Duration::from_secs(5);
/// How often CMD is looked at.
const EXEC_NAP: Duration = Duration::from_millis(50);
/// Slices that fail one after the other before the watch ends.
const MAX_FAILED: u32 = 60;

/// Sample a little all the time, and replace the configuration when another one is better
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
    /// How often it is decided again
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = super::seconds, help_heading = TUNING)]
    interval: Duration,
    /// The part of the time in which it samples, in slices of up to 1 s
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percent, help_heading = TUNING)]
    duty: f64,
    /// End after so many intervals
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = TUNING)]
    intervals: Option<u64>,
    /// Last-level caches of this host [default: as many as it has, at least 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..), help_heading = TUNING)]
    llcs: Option<u32>,
    /// The configuration: what is there is the loaded one, and it is replaced when another one is better
    #[arg(short = 'o', long = "output", value_name = "FILE", required = true, help_heading = RESULT)]
    output: PathBuf,
    /// Run CMD with a shell after the configuration was replaced; $SCXPROF_CONFIG is its path
    #[arg(long, value_name = "CMD", help_heading = RESULT)]
    exec: Option<String>,
    /// Keep what was seen in DIR, so that a watch that is started again goes on
    #[arg(long, value_name = "DIR", help_heading = RESULT)]
    state: Option<PathBuf>,
    /// Write figures to FILE for Prometheus after each interval
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    metrics: Option<PathBuf>,
    #[command(flatten)]
    evidence: EvidenceArgs,
    #[command(flatten)]
    decision: DecisionArgs,
    /// Print what each interval showed to stderr
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count, help_heading = RESULT)]
    verbose: u8,
}

/// The version of the state on disk.
const STATE_VERSION: u32 = 1;

/// What is kept beside the evidence.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    version: u32,
    /// The loaded configuration, and what was better than it in the last interval.
    loaded: Option<String>,
    candidate: Option<String>,
    /// CMD has not been run, or not with success, since the configuration was replaced.
    is_exec_due: bool,
    totals: Totals,
}

/// What every version of the state has.
#[derive(Debug, Deserialize)]
struct Versioned {
    version: u32,
}

/// Sums since the state was made.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Totals {
    intervals: u64,
    changes: u64,
    samples: f64,
    lost: u64,
    failed_slices: u64,
    failed_execs: u64,
}

/// The directory of the state, which is locked.
struct Store {
    directory: PathBuf,
    _lock: fs::File,
}

impl Store {
    fn open(directory: &Path) -> Result<Self, Failure> {
        let open = || -> anyhow::Result<fs::File> {
            fs::create_dir_all(directory)?;
            let lock = fs::OpenOptions::new().create(true).truncate(false).write(true).open(directory.join("lock"))?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive)
                .map_err(|_| anyhow!("another scxprof watch uses this directory"))?;
            Ok(lock)
        };
        let lock = open().with_context(|| format!("--state {}", directory.display())).map_err(Failure::Usage)?;
        Ok(Self { directory: directory.to_owned(), _lock: lock })
    }

    fn read(&self) -> Result<Option<(State, Evidence)>, Failure> {
        let path = self.directory.join("state.json");
        let text = match read_bounded(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::Usage(anyhow!("{}: {error}", path.display()))),
        };
        let wrong = |what: String| {
            Failure::Usage(anyhow!("{}: {what}; remove the directory's files to begin again", path.display()))
        };
        let damaged = |error| wrong(format!("it is damaged: {error}"));
        let Versioned { version: found } = serde_json::from_str(&text).map_err(damaged)?;
        if found != STATE_VERSION {
            return Err(wrong(format!("it is of version {found}, and this scxprof reads version {STATE_VERSION}")));
        }
        let state: State = serde_json::from_str(&text).map_err(damaged)?;
        let mut evidence = Evidence::default();
        file::read(&self.directory.join("evidence.parquet"), &mut evidence, &mut |key| key)
            .map_err(|error| wrong(error.to_string()))?;
        Ok(Some((state, evidence)))
    }

    fn write(&self, state: &State, evidence: &Evidence) -> Result<(), Failure> {
        let to = |name: &str| Output::open(Some(&self.directory.join(name)), Readers::Owner).map_err(Failure::NoResult);
        evidence::write(evidence, to("evidence.parquet")?)?;
        let text = serde_json::to_string(state).context("the state").map_err(Failure::NoResult)?;
        to("state.json")?.write(text.as_bytes(), false).map_err(Failure::NoResult)
    }
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    fs::File::open(path)?.take(MAX_READ).read_to_string(&mut text)?;
    Ok(text)
}

/// The configuration that is there; `None` if there is none, or only an empty file.
fn loaded(path: &Path) -> Result<Option<String>, Failure> {
    let text = match read_bounded(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::Usage(anyhow!("-o {}: {error}", path.display()))),
    };
    if text.trim().is_empty() {
        return Ok(None);
    }
    Placement::parse(&text).with_context(|| format!("-o {}", path.display())).map_err(Failure::Usage)?;
    Ok(Some(text))
}

/// Tells systemd; without it, nobody.
fn notify(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

struct Watcher<'a> {
    args: &'a WatchingArgs,
    watch: Watch,
    facts: Facts,
    signals: Signals,
    store: Option<Store>,
    totals: Totals,
    is_exec_due: bool,
    is_first: bool,
    failed: u32,
}

/// Watches until a signal comes.
pub(super) fn run(args: &WatchingArgs) -> Result<(), Failure> {
    let roots = args.capture.watch.roots();
    if args.capture.watch.has_command() {
        return Err(Failure::Usage(anyhow!("watch takes no COMMAND: it watches the host, -p PID or --cgroup PATH")));
    }
    if args.capture.watch.has_time() {
        return Err(Failure::Usage(anyhow!("watch takes no -t: --interval and --duty say how long it samples")));
    }
    if args.decision.use_hints && !args.capture.hints.are_followed() {
        return Err(Failure::Usage(anyhow!("--use-hints needs --hints-map, which says where the hints are")));
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
    let cpus = topology::online_cpus(&roots).unwrap_or_default();
    let target_cpus = args.decision.target_cpus().unwrap_or(cpus.len().max(1));
    let mut options = DecisionOptions::new(args.decision.min_share(), target_cpus);
    options.scheduler = args.decision.scheduler();
    let llcs = args.llcs.unwrap_or_else(|| {
        let places = topology::places(&roots, &cpus);
        let llcs: BTreeSet<u32> = places.iter().map(|(_, place)| place.llc).collect();
        u32::try_from(llcs.len()).unwrap_or(u32::MAX).max(2)
    });
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
        let output = Output::open(Some(path), Readers::All).map_err(Failure::Usage)?;
        check_distinct((option, &output), opened.iter().map(|(option, output)| (*option, output)))?;
        opened.push((option, output));
    }
    drop(opened);
    let store = args.state.as_deref().map(Store::open).transpose()?;
    let mut watch = Watch::new(options, llcs);
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
    let signals = Signals::handle_and_reload().map_err(Failure::Unsupported)?;
    let mut watcher = Watcher { args, watch, facts, signals, store, totals, is_exec_due, is_first: true, failed: 0 };
    let done = watcher.run();
    notify(&[NotifyState::Stopping]);
    done.and(watcher.save())
}

impl Watcher<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        let mut left = self.args.intervals;
        while left != Some(0) && !self.signals.seen() {
            let begin = Instant::now();
            let slices = self.slices(begin)?;
            self.wait_until(begin + self.args.interval);
            if self.signals.seen() {
                break;
            }
            self.end_interval(&slices)?;
            left = left.map(|left| left - 1);
        }
        Ok(())
    }

    /// Samples the slices of an interval, evenly spread over it.
    fn slices(&mut self, begin: Instant) -> Result<Vec<Evidence>, Failure> {
        let all = self.args.interval.mul_f64(self.args.duty / 100.0);
        let count = (all.as_secs_f64() / SLICE.as_secs_f64()).ceil().max(SLICES.into()) as u32;
        let slice = (all / count).max(SHORTEST);
        // However many there are, few sums tell as well how certain a gain is.
        let mut slices: Vec<Evidence> = Vec::new();
        for at in 0..count {
            self.wait_until(begin + self.args.interval / count * at);
            if self.signals.seen() {
                break;
            }
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
                notify(&[NotifyState::Ready]);
            }
        }
        Ok(slices)
    }

    /// Samples one slice; `None` if there were no samples.
    fn sample(&mut self, slice: Duration) -> Result<Option<Evidence>, Failure> {
        let wanted = &self.args.capture;
        let builder =
            self.args.decision.configure(capture::builder(wanted)?, super::decision::Named::Nothing).time(slice);
        // Which source it is, is said once.
        let start = if self.is_first { capture::start } else { capture::begin };
        let session = start(&wanted.watch, self.args.verbose, builder, None)?;
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
            notify(&[NotifyState::Watchdog]);
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
        let found = self.watch.interval(slices).unwrap_or_else(|error| {
            say!("note: this interval has no result: {error}");
            Interval::without(error.to_string())
        });
        if let Some(new) = &found.new {
            self.totals.changes += 1;
            // First, so that CMD is run even if the watch is killed before it could.
            self.is_exec_due = self.args.exec.is_some();
            self.save()?;
            // The new one is whole, or the old one stays.
            let output = Output::open(Some(&self.args.output), Readers::All).map_err(Failure::NoResult)?;
            output.write(new.as_bytes(), false).map_err(Failure::NoResult)?;
            let gain = |it: Option<f64>| it.unwrap_or_default() * 100.0;
            say!(
                "{}: a new configuration, which avoids {:.1} % more of the avoidable misses than the one before ({:.1} %)",
                self.args.output.display(),
                gain(found.gain),
                gain(found.score)
            );
        }
        if self.is_exec_due {
            self.exec();
        }
        let text = describe(&found);
        notify(&[NotifyState::Status(&text)]);
        if self.args.verbose > 0 {
            say!("{text}");
        }
        self.save()?;
        if let Some(path) = &self.args.evidence.evidence {
            let mut all = Evidence::default();
            if slices.iter().try_for_each(|slice| all.merge(slice)).is_ok() {
                evidence::write(
                    &self.facts.folded(&all)?,
                    Output::open(Some(path), Readers::Owner).map_err(Failure::NoResult)?,
                )?;
            }
        }
        if let Some(path) = &self.args.metrics {
            let output = Output::open(Some(path), Readers::All).map_err(Failure::NoResult)?;
            output.write(metrics(&found, &self.totals).as_bytes(), false).map_err(Failure::NoResult)?;
        }
        Ok(())
    }

    fn save(&self) -> Result<(), Failure> {
        let Some(store) = &self.store else { return Ok(()) };
        let owned = |json: Option<&str>| json.map(str::to_owned);
        let state = State {
            version: STATE_VERSION,
            loaded: owned(self.watch.loaded()),
            candidate: owned(self.watch.candidate()),
            is_exec_due: self.is_exec_due,
            totals: self.totals,
        };
        store.write(&state, self.watch.evidence())
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
                    Err(error) => format!("nobody knows how it ended: {error}"),
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

/// What an interval showed, in a line.
fn describe(found: &Interval) -> String {
    let percent = |it: Option<f64>| it.map_or_else(|| "-".to_owned(), |it| format!("{:.1} %", it * 100.0));
    if let Some(reason) = &found.reason {
        return reason.clone();
    }
    format!(
        "score {}, best {}, gain {} within {}",
        percent(found.score),
        percent(found.best),
        percent(found.gain),
        percent(found.doubt)
    )
}

/// CPU time in s and resident bytes of this process, as far as procfs tells.
fn own_use() -> (f64, u64) {
    let stat = fs::read("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(|&byte| byte == b')').next().unwrap_or_default();
    let fields: Vec<u64> = String::from_utf8_lossy(after)
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse().unwrap_or_default())
        .collect();
    // After the state: utime is the 11th and stime the 12th, rss the 21st field (proc_pid_stat(5)).
    let field = |at: usize| fields.get(at).copied().unwrap_or_default();
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    ((field(10) + field(11)) as f64 / ticks as f64, field(20) * rustix::param::page_size() as u64)
}

/// The figures for Prometheus.
fn metrics(found: &Interval, totals: &Totals) -> String {
    let (cpu, bytes) = own_use();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            let name = format!("scxprof_watch_{name}");
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        }
    };
    add("score", "gauge", "Part of the avoidable misses that the loaded configuration avoids.", found.score);
    add("best_score", "gauge", "The same of the configuration that would be decided now.", found.best);
    add("gain", "gauge", "The difference of the two.", found.gain);
    add("gain_doubt", "gauge", "Half the width of the 95 % interval of the gain.", found.doubt);
    add("intervals_total", "counter", "Intervals.", Some(totals.intervals as f64));
    add("changes_total", "counter", "New configurations.", Some(totals.changes as f64));
    add("samples_total", "counter", "Accesses that were sampled.", Some(totals.samples));
    add("lost_samples_total", "counter", "Samples that were lost.", Some(totals.lost as f64));
    add(
        "failed_slices_total",
        "counter",
        "Slices of time that could not be sampled.",
        Some(totals.failed_slices as f64),
    );
    add("failed_execs_total", "counter", "Runs of --exec that failed.", Some(totals.failed_execs as f64));
    add("cpu_seconds_total", "counter", "CPU time of this process.", Some(cpu));
    add("resident_bytes", "gauge", "Memory of this process.", Some(bytes as f64));
    add("last_interval_timestamp_seconds", "gauge", "When the last interval ended.", Some(time));
    text
}
