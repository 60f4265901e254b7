//! Where the samples come from: the options of the sources, and the choice among them.

use clap::Args;

use super::Failure;
use crate::sample::Source;
use crate::sampler::hardware::{DEFAULT_LDLAT, DEFAULT_RATE};
use crate::sampler::{Hardware, Pace, SamplerError};
use crate::session::{self, NotStarted, Open, Session, SessionError};

/// What is sampled and how often.
#[derive(Debug, Args)]
pub(super) struct SourceArgs {
    /// Where data addresses come from; auto takes the first that works
    #[arg(long, value_name = "SOURCE", default_value = "auto", value_parser = ["auto", "pebs", "ibs", "timer", "faults"])]
    pub(super) source: String,
    #[arg(
        long,
        value_name = "N",
        group = "pace",
        value_parser = clap::value_parser!(u32).range(1..=100_000),
        help = format!(
            "pebs, ibs: samples a second on the busiest CPU, to which a fixed period is steered [default: {DEFAULT_RATE}]"
        )
    )]
    rate: Option<u32>,
    /// pebs, ibs: a sample every so many events (loads of at least --ldlat; ops)
    #[arg(long, value_name = "N", group = "pace", value_parser = clap::value_parser!(u64).range(1..1 << 40))]
    period: Option<u64>,
    /// Samples a second and CPU: as the kernel steers pebs and ibs; of the timer source a clock of its own [default: the
    /// scheduler's tick]
    #[arg(long, value_name = "HZ", group = "pace", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    freq: Option<u32>,
    #[arg(
        short = 'l',
        long,
        value_name = "CYCLES",
        value_parser = clap::value_parser!(u32).range(1..=65_535),
        help = format!("pebs, ibs: only loads that took at least so long [default: pebs {DEFAULT_LDLAT}, ibs all]")
    )]
    ldlat: Option<u32>,
    /// pebs: stores too (ibs has them anyway)
    #[arg(long)]
    stores: bool,
    /// pebs, ibs: accesses of kernel code too
    #[arg(long)]
    kernel: bool,
    /// All fields in each sample, on CLOCK_MONOTONIC (the default)
    #[arg(long, conflicts_with = "batched")]
    exact: bool,
    /// pebs: fewer interrupts, without page sizes; cgroups come from procfs, times are converted
    #[arg(long)]
    batched: bool,
}

impl SourceArgs {
    /// The rate of the timer source's own clock.
    pub(super) fn timer_freq(&self) -> Option<u32> {
        self.freq
    }

    /// What is asked of pebs and ibs.
    pub(super) fn hardware(&self) -> Hardware {
        let Self { rate, period, freq, ldlat, stores, kernel, exact: _, batched, .. } = *self;
        let pace = match (period, freq) {
            (Some(period), _) => Pace::Period(period),
            (_, Some(freq)) => Pace::Frequency(freq),
            _ => Pace::Rate(rate.unwrap_or(DEFAULT_RATE)),
        };
        Hardware { pace, ldlat, stores, kernel, batched }
    }

    /// Starts with the source that was asked for; `auto` takes the first that works and says why the others did not.
    pub(super) fn start(
        &self,
        options: &mut session::Options,
        pids: &[u32],
        open: Open<'_>,
    ) -> Result<Session, Failure> {
        let asked: Option<Source> = self.source.parse().ok();
        let sources = asked.map_or_else(|| Source::ALL.to_vec(), |source| vec![source]);
        let (result, skipped) = match session::start_first(options, &sources, pids, open) {
            Ok((session, skipped)) => (Ok(session), skipped),
            Err(NotStarted { source_name, error, skipped, .. }) => (Err((error, source_name)), skipped),
        };
        for (source, error) in &skipped {
            say!("scxprof: {}", said(error, *source));
        }
        result.map_err(|(error, source)| failure_of(error, source))
    }
}

/// The sentence with the source's name in it.
fn said(error: &SamplerError, source: Source) -> String {
    let text = error.to_string();
    if text.starts_with("source ") {
        return text;
    }
    format!("source {source}: {text}")
}

fn failure_of(error: SessionError, source: Source) -> Failure {
    match error {
        SessionError::Sampler(error) if !error.is_unsupported() => Failure::Usage(error.into()),
        SessionError::Sampler(error) => {
            say!("scxprof: `scxprof doctor` shows what this host allows");
            Failure::Unsupported(anyhow::anyhow!("{}", said(&error, source)))
        }
        error => Failure::Unsupported(error.into()),
    }
}
