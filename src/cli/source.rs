//! Where the samples come from: the options of the sources, and the choice among them.

use clap::Args;

use super::Failure;
use crate::sample::Source;
use crate::sampler::hardware::{DEFAULT_LDLAT, DEFAULT_RATE};
use crate::sampler::{Hardware, Pace, SamplerError};
use crate::session::{of_source, Builder, NotStarted, SessionError};

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
    /// `builder` with the requested sources: for `auto` the first that works.
    pub(super) fn configure<'a>(&self, builder: Builder<'a>) -> Builder<'a> {
        let mut builder = builder.hardware(self.hardware());
        if let Ok(source) = self.source.parse() {
            builder = builder.sources(&[source]);
        }
        if let Some(freq) = self.freq {
            builder = builder.freq(freq);
        }
        builder
    }

    /// The options of pebs and ibs.
    fn hardware(&self) -> Hardware {
        let Self { rate, period, freq, ldlat, stores, kernel, exact: _, batched, .. } = *self;
        let pace = match (period, freq) {
            (Some(period), _) => Pace::Period(period),
            (_, Some(freq)) => Pace::Frequency(freq),
            _ => Pace::Rate(rate.unwrap_or(DEFAULT_RATE)),
        };
        Hardware { pace, ldlat, stores, kernel, batched }
    }
}

/// Reports which sources do not work here.
pub(super) fn say_skipped(skipped: &[(Source, SamplerError)]) {
    for (source, error) in skipped {
        say!("scxprof: {}", of_source(*source, error));
    }
}

pub(super) fn failure_of(error: NotStarted) -> Failure {
    match error.error {
        SessionError::Sampler(error) if !error.is_unsupported() => Failure::Usage(error.into()),
        SessionError::Sampler(_) => {
            say!("scxprof: `scxprof doctor` shows what this host allows");
            Failure::Unsupported(anyhow::anyhow!("{error}"))
        }
        SessionError::Profile(error) => Failure::Usage(error.into()),
        error => Failure::Unsupported(error.into()),
    }
}
