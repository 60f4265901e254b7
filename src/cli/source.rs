//! Where the samples come from: the options of the sources, and the choice among them.

use anyhow::anyhow;
use clap::{Args, ValueEnum};

use super::failure::Failure;
use crate::host::limits::sysctl;
use crate::host::Roots;
use crate::sample::Source;
use crate::sampler::hardware::{DEFAULT_LDLAT, DEFAULT_RATE};
use crate::sampler::{Hardware, Pace, SamplerError};
use crate::session::{of_source, HostOptions, NotStarted, SessionError};

/// The sampled events and their rate.
#[derive(Debug, Args)]
#[command(next_help_heading = "How to sample")]
pub(super) struct SourceArgs {
    /// Where samples and their addresses come from; auto takes the first that works, but never wakeups
    #[arg(long, value_name = "SOURCE", default_value = "auto")]
    source: Wanted,
    #[arg(
        long,
        value_name = "N",
        group = "pace",
        value_parser = clap::value_parser!(u32).range(1..=100_000),
        help = format!(
            "pebs, ibs, spe: aim at N samples per second on the busiest CPU [default: {DEFAULT_RATE}]"
        )
    )]
    rate: Option<u32>,
    /// pebs, ibs, spe: sample every N events (loads of at least --ldlat; ops; operations)
    #[arg(short = 'c', long, value_name = "N", group = "pace", value_parser = clap::value_parser!(u64).range(1..1 << 40))]
    period: Option<u64>,
    /// Samples per second and CPU: pebs and ibs let the kernel adjust the period; timer uses its own clock instead of the
    /// scheduler's tick
    #[arg(short = 'F', long, value_name = "HZ", group = "pace", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    freq: Option<u32>,
    #[arg(
        short = 'l',
        long,
        value_name = "CYCLES",
        value_parser = clap::value_parser!(u32).range(1..=65_535),
        help = format!("pebs, ibs, spe: sample only loads, with spe also stores, that took at least CYCLES [default: pebs {DEFAULT_LDLAT}, others all]")
    )]
    ldlat: Option<u32>,
    /// pebs: also sample stores (ibs and spe always do)
    #[arg(long)]
    stores: bool,
    /// Also sample accesses of kernel code (pebs, ibs, spe, timer) [default: if auto takes timer, where that is possible]
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "yes")]
    kernel: Option<KernelCode>,
    /// pebs: one interrupt per sample, with all fields (the default)
    #[arg(long, conflicts_with = "batched")]
    exact: bool,
    /// pebs: fewer interrupts; no page sizes, cgroups come from procfs, times are converted
    #[arg(long)]
    batched: bool,
    /// perf's option for events
    #[arg(short = 'e', long = "event", value_name = "EVENT", hide = true, value_parser = not_an_event)]
    event: Option<String>,
}

/// Whether kernel code is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum KernelCode {
    Yes,
    No,
}

/// A source, or the choice among them.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Wanted {
    Auto,
    Pebs,
    Ibs,
    Spe,
    Timer,
    Faults,
    Wakeups,
}

impl Wanted {
    /// `None` for the first that works.
    fn source(self) -> Option<Source> {
        match self {
            Self::Auto => None,
            Self::Pebs => Some(Source::Pebs),
            Self::Ibs => Some(Source::Ibs),
            Self::Spe => Some(Source::Spe),
            Self::Timer => Some(Source::Timer),
            Self::Faults => Some(Source::Faults),
            Self::Wakeups => Some(Source::Wakeups),
        }
    }
}

/// The answer to a user of perf who types `-e`.
fn not_an_event(_: &str) -> Result<String, String> {
    Err("scxprof has no events to choose from; --source pebs, ibs, spe, timer, faults or wakeups chooses what to sample"
        .to_owned())
}

impl SourceArgs {
    /// The options of the requested sources: for `auto` the first that works.
    pub(super) fn host(&self) -> HostOptions {
        let host = self.source.source().map_or_else(HostOptions::default, HostOptions::source);
        let kernel_if_possible = self.source.source().is_none() && self.kernel.is_none();
        HostOptions { hardware: self.hardware(), freq: self.freq, kernel_if_possible, ..host }
    }

    /// The options of pebs, ibs and spe.
    fn hardware(&self) -> Hardware {
        let Self { rate, period, freq, ldlat, stores, kernel, exact: _, batched, .. } = *self;
        let pace = match (period, freq) {
            (Some(period), _) => Pace::Period(period),
            (_, Some(freq)) => Pace::Frequency(freq),
            _ => Pace::Rate(rate.unwrap_or(DEFAULT_RATE)),
        };
        Hardware { pace, ldlat, stores, kernel: kernel == Some(KernelCode::Yes), batched }
    }
}

/// Says why the sources before the one in use do not work here.
pub(super) fn say_skipped(skipped: &[(Source, SamplerError)]) {
    for (source, error) in skipped {
        say!("note: {}", of_source(*source, error));
    }
}

/// Says in one line which source `auto` took, and with which event if `verbose`.
pub(super) fn say_chosen(source: Source, rate: Option<(&str, f64)>, skipped: &[(Source, SamplerError)], verbose: bool) {
    let rate = rate.map_or_else(String::new, |(event, rate)| {
        let event = if verbose { format!(" ({event})") } else { String::new() };
        format!("{event}, about {rate:.0} samples a second and CPU")
    });
    if skipped.is_empty() {
        if verbose {
            say!("note: using the {source} source{rate}");
        }
        return;
    }
    let no_pmu = |error: &SamplerError| {
        use SamplerError as E;
        matches!(error, E::NoPebs(_) | E::NoIbs(_) | E::NoSpe(_) | E::Architecture { .. })
    };
    let why = if skipped.iter().all(|(_, error)| no_pmu(error)) {
        "no memory PMU here".to_owned()
    } else {
        let failed: Vec<&str> = skipped.iter().filter(|it| !no_pmu(&it.1)).map(|it| it.0.name()).collect();
        let more = if verbose { "" } else { "; -v shows why" };
        format!("{} failed{more}", failed.join(" and "))
    };
    say!("note: using the {source} source{rate} ({why})");
}

/// What is watched, which determines what helps if the kernel forbids it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watched {
    /// All tasks, though some would be possible too.
    Host,
    /// The tasks of a cgroup, which takes the same rights.
    Cgroup,
    /// Some tasks.
    Some,
    /// The scheduler's events, which are always of the whole host.
    Sched,
}

/// True if rights are missing for a capture.
pub(super) fn is_forbidden(error: &NotStarted) -> bool {
    matches!(&error.error, SessionError::Sampler(error) if error.is_forbidden())
}

/// A capture that could not begin, with one sentence for the refusal of each source, which `verbose` adds.
pub(super) fn forbidden(error: &NotStarted, verbose: u8, sentence: String) -> Failure {
    if verbose > 0 {
        say_skipped(&error.skipped);
        say!("note: {error}");
    }
    Failure::Unsupported(anyhow!(sentence))
}

/// The sentence for a capture that could not begin; `verbose` adds the refusal of each source.
pub(super) fn failure_of(error: NotStarted, watched: Watched, verbose: u8) -> Failure {
    let is_tracefs = matches!(&error.error, SessionError::Sampler(SamplerError::Tracefs(_)));
    if is_forbidden(&error) && watched != Watched::Some && !(watched == Watched::Sched && is_tracefs) {
        let level = sysctl(&Roots::default().proc, "perf_event_paranoid");
        let level = level.map_or_else(String::new, |level| format!(" (kernel.perf_event_paranoid is {level})"));
        let sentence = match watched {
            Watched::Sched => format!(
                "the scheduler's events need root, or CAP_PERFMON{level} and the right to read tracefs. Run it with sudo. Details: \
                 scxprof doctor"
            ),
            Watched::Host | Watched::Cgroup | Watched::Some => {
                let what = if watched == Watched::Cgroup { "a cgroup" } else { "the whole host" };
                format!(
                    "sampling {what} needs root or CAP_PERFMON{level}. Run it with sudo, or watch your own processes: -p PID or \
                     -- COMMAND. Details: scxprof doctor"
                )
            }
        };
        return forbidden(&error, verbose, sentence);
    }
    match error.error {
        // The last source needs the fewest files; what the others lacked would not help.
        SessionError::Sampler(error @ SamplerError::TooManyThreads { .. }) => Failure::Unsupported(error.into()),
        SessionError::Sampler(error) if !error.is_unsupported() => Failure::Usage(error.into()),
        // Its only source is how it opens events, which says nothing useful.
        SessionError::Sampler(error) if watched == Watched::Sched => {
            Failure::Unsupported(anyhow!("{error}. Details: scxprof doctor"))
        }
        SessionError::Sampler(_) => {
            say_skipped(&error.skipped);
            Failure::Unsupported(anyhow!("{error}. Details: scxprof doctor"))
        }
        SessionError::Profile(error) => Failure::Usage(error.into()),
        error => Failure::Unsupported(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        source: SourceArgs,
    }

    #[test]
    fn kernel_code_is_sampled_if_asked_for_or_where_auto_can() {
        let host = |words: &[&str]| {
            let words = ["scxprof"].iter().chain(words);
            let host = Command::try_parse_from(words).unwrap().source.host();
            (host.hardware.kernel, host.kernel_if_possible)
        };
        assert_eq!(host(&[]), (false, true));
        assert_eq!(host(&["--source", "timer"]), (false, false));
        assert_eq!(host(&["--source", "pebs", "--kernel"]), (true, false));
        assert_eq!(host(&["--kernel"]), (true, false));
        assert_eq!(host(&["--kernel=yes", "--source", "timer"]), (true, false));
        assert_eq!(host(&["--kernel=no"]), (false, false));
        assert!(Command::try_parse_from(["scxprof", "--kernel=maybe"]).is_err());
    }
}
