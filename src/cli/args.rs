//! What options of several commands have in common: their headings, the parsers of their values, and the options themselves.
//! Each command flattens those that it has; if an option means something else there, [`text`] replaces its help.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args, ValueEnum};

use super::failure::Failure;
use super::format::Format;
use super::output::{is_stdout, Output, Stdout};
use crate::config::Scheduler;
use crate::sample::caches::Caches;

/// Headings of the options in every help.
pub(super) const WATCH: &str = "What to watch";
pub(super) const INPUT: &str = "Input";
pub(super) const RESULT: &str = "Result";
pub(super) const TUNING: &str = "Tuning";

/// For `mut_args`: replaces the help of an option in its place. `mut_arg` would move it behind all others in completions.
pub(super) fn text(id: &'static str, help: &'static str) -> impl FnMut(Arg) -> Arg {
    move |arg| if arg.get_id() == id { arg.help(help) } else { arg }
}

/// The memory that a command may use.
#[derive(Debug, Args)]
pub(super) struct MemoryArgs {
    /// Memory for the sketch, queues and mappings
    #[arg(
        long,
        value_name = "MIB",
        default_value = "64",
        value_parser = clap::value_parser!(u32).range(8..),
        help_heading = TUNING
    )]
    memory: u32,
}

impl MemoryArgs {
    /// The number that was given.
    pub(super) fn mebibytes(&self) -> u32 {
        self.memory
    }

    pub(super) fn bytes(&self) -> usize {
        (self.memory as usize).saturating_mul(1 << 20)
    }
}

/// How much may be lost.
#[derive(Debug, Args)]
pub(super) struct MaxLossArgs {
    /// Exit with 4 if more samples than this were lost
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "1",
        allow_negative_numbers = true,
        value_parser = percent,
        help_heading = TUNING
    )]
    pub(super) max_loss: f64,
}

/// The scheduler.
#[derive(Debug, Args)]
pub(super) struct TargetArgs {
    /// The scheduler that the configuration is for
    #[arg(long, value_name = "SCHEDULER", default_value = "mitosis", help_heading = RESULT)]
    target: Target,
}

/// The name of a scheduler.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Target {
    Mitosis,
    Layered,
}

impl TargetArgs {
    pub(super) fn scheduler(&self) -> Scheduler {
        match self.target {
            Target::Mitosis => Scheduler::Mitosis,
            Target::Layered => Scheduler::Layered,
        }
    }
}

/// The most CPUs of a host: eight times as many as Linux can be built for (`NR_CPUS`).
pub(super) const MAX_CPUS: i64 = 1 << 16;
/// The most last-level caches of a host.
pub(super) const MAX_LLCS: i64 = crate::cluster::layout::MAX_CACHES as i64;

/// The size of the host that runs the scheduler.
#[derive(Debug, Args)]
pub(super) struct TargetCpusArgs {
    /// CPUs of the host that will run the scheduler [default: as many as the sampled host has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_CPUS), help_heading = RESULT)]
    target_cpus: Option<u32>,
    /// Last-level caches of the host that will run the scheduler, with CPUs side by side
    /// [default: those of the sampled host, if --target-cpus is not given]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_LLCS), help_heading = RESULT)]
    target_llcs: Option<u32>,
}

impl TargetCpusArgs {
    pub(super) fn cpus(&self) -> Option<usize> {
        self.target_cpus.map(|cpus| cpus as usize)
    }

    pub(super) fn llcs(&self) -> Option<u32> {
        self.target_llcs
    }

    /// The last-level caches, if they are given.
    pub(super) fn caches(&self) -> Option<Caches> {
        self.target_llcs.map(Caches::side_by_side)
    }
}

/// Which threads get a subcell though they share with no other.
#[derive(Debug, Args)]
pub(super) struct MinShareArgs {
    /// Threads of one name get a subcell if they have this share of their cell's samples
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "5",
        allow_negative_numbers = true,
        value_parser = percent,
        help_heading = RESULT
    )]
    min_share: f64,
}

impl MinShareArgs {
    /// As a fraction.
    pub(super) fn part(&self) -> f64 {
        self.min_share / 100.0
    }
}

/// Where the result of a command that has one goes.
#[derive(Debug, Args)]
pub(super) struct ResultFileArgs {
    /// Write the result to FILE instead of stdout
    #[arg(short = 'o', long = "output", value_name = "FILE", help_heading = RESULT)]
    output: Option<PathBuf>,
}

impl ResultFileArgs {
    pub(super) fn is_stdout(&self) -> bool {
        is_stdout(self.output.as_deref())
    }

    /// Opens it, which must be possible.
    pub(super) fn open(&self, stdout: Stdout) -> Result<Output, Failure> {
        stdout.open(self.output.as_deref())
    }

    /// Refuses a closed stdout, if the result would go there.
    pub(super) fn check(&self, stdout: Stdout) -> Result<(), Failure> {
        stdout.check(self.output.as_deref())
    }
}

/// How the result of a command is printed, and to which file.
#[derive(Debug, Args)]
pub(super) struct ResultArgs {
    /// Print JSON
    #[arg(long, help_heading = RESULT)]
    json: bool,
    #[command(flatten)]
    pub(super) file: ResultFileArgs,
}

impl ResultArgs {
    pub(super) fn format(&self) -> Format {
        Format::new(self.json)
    }
}

/// The name of a value, as it is typed.
pub(super) fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A percentage on the command line.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("must be a percentage from 0 to 100".to_owned()),
    }
}

/// Units of times on the command line, in seconds; `ms` stands before its last letter.
const UNITS: [(&str, f64); 4] = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// A time on the command line, in seconds: a number of them, or a number with a unit.
fn number_of_seconds(text: &str) -> Result<f64, String> {
    let with_unit = UNITS.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?.trim_end(), *seconds)));
    let (number, unit) = with_unit.unwrap_or((text, 1.0));
    let number = number.parse::<f64>();
    number.map(|it| it * unit).map_err(|_| "not a number of seconds, nor a time such as 500ms, 5s or 1m".to_owned())
}

/// How long something takes: more than nothing.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = number_of_seconds(text)?;
    if seconds <= 0.0 || seconds.is_nan() {
        return Err("must be more than 0 seconds".to_owned());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| "too many seconds".to_owned())
}

/// A time after the beginning, which may be 0.
pub(super) fn moment(text: &str) -> Result<Duration, String> {
    Duration::try_from_secs_f64(number_of_seconds(text)?)
        .map_err(|_| "must be a number of seconds from 0 on".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit_or_is_in_seconds() {
        for (text, ms) in [
            ("5", 5_000),
            ("0.25", 250),
            ("1e3", 1_000_000),
            ("5s", 5_000),
            ("1m", 60_000),
            ("500ms", 500),
            ("1.5h", 5_400_000),
            ("2 s", 2_000),
        ] {
            assert_eq!(seconds(text), Ok(Duration::from_millis(ms)), "{text}");
            assert_eq!(moment(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(moment("0"), Ok(Duration::ZERO));
        for wrong in ["", "s", "ms", "5x", "5 5s", "5sm", "soon", "0", "0s", "-1s", "nan", "inf", "1e300h"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "m", "-1", "-1ms", "nan", "inf"] {
            assert!(moment(wrong).is_err(), "{wrong}");
        }
    }
}
