//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, ValueEnum};

use crate::host::refused;

/// Compares scxprof with perf on the same work, in turn and in one run
#[derive(Debug, Clone, Parser)]
#[command(name = "versus-perf", version)]
pub struct Args {
    /// What to compare
    #[arg(value_name = "COMPARISON")]
    pub which: Which,
    /// How often each is run; the order is reversed every other round
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,
    /// How long each run samples; overhead: how long each load runs
    #[arg(long, value_name = "SECONDS", default_value = "5", allow_negative_numbers = true, value_parser = seconds)]
    pub seconds: f64,
    /// files: samples of each recording
    #[arg(long, value_name = "N", num_args = 1.., default_values = ["100000", "1000000", "10000000"],
        value_parser = clap::value_parser!(u64).range(1..))]
    pub samples: Vec<u64>,
    /// files: run all on N CPUs (repeatable) [default: all CPUs]
    #[arg(long, value_name = "N", num_args = 1.., value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: Vec<u32>,
    /// rates: faults a second that the load makes; it is also run as fast as it can
    #[arg(long, value_name = "N", num_args = 1.., default_values = ["1000", "10000", "50000", "100000", "200000", "400000"],
        value_parser = clap::value_parser!(u64).range(1..))]
    pub rates: Vec<u64>,
    /// rings: how many
    #[arg(long, value_name = "N", num_args = 1.., default_values = ["16", "32", "64", "128", "256", "512"],
        value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub rings: Vec<u32>,
    /// rings: pages of each, a power of two
    #[arg(long, value_name = "N", default_value = "256", value_parser = pages)]
    pub mmap_pages: u32,
    /// overhead: the servers
    #[arg(long, value_name = "NAME", num_args = 1.., default_values = ["redis", "memcached", "postgres"])]
    pub servers: Vec<ServerName>,
    /// pmu: the source [default: what this host has]
    #[arg(long, value_name = "SOURCE")]
    pub source: Option<Hardware>,
    /// pmu: loads that took at least so long (pebs)
    #[arg(long, value_name = "CYCLES", default_value = "30", value_parser = clap::value_parser!(u32).range(3..=65_535))]
    pub ldlat: u32,
    /// pmu: a sample every N events
    #[arg(long, value_name = "N", default_value = "2003", value_parser = clap::value_parser!(u64).range(1..))]
    pub period: u64,
    /// pmu: a command whose threads are compared; it prints a line that begins with "ready" when they run, and is killed at the
    /// end [default: demo-workload --busy]
    #[arg(long, value_name = "COMMAND")]
    pub load: Option<String>,
    /// Where the results are written [default: benches/runs/DATE/versus-perf]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// A directory for recordings, which are deleted at the end [default: $TMPDIR]
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// The scxprof to run [default: the one that was built with this program]
    #[arg(long, value_name = "PATH")]
    pub scxprof: Option<PathBuf>,
    /// The perf to run [default: the one in the PATH]
    #[arg(long, value_name = "PATH", default_value = "perf")]
    pub perf: PathBuf,
}

/// What to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Which {
    Pmu,
    Software,
    Files,
    Rates,
    Rings,
    Overhead,
    All,
}

impl Which {
    /// The comparisons that it stands for. The rings come last: they take much memory.
    pub fn each(self) -> Vec<Self> {
        match self {
            Self::All => {
                vec![Self::Pmu, Self::Software, Self::Rates, Self::Files, Self::Overhead, Self::Rings]
            }
            one => vec![one],
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Pmu => "pmu",
            Self::Software => "software",
            Self::Files => "files",
            Self::Rates => "rates",
            Self::Rings => "rings",
            Self::Overhead => "overhead",
            Self::All => "all",
        }
    }
}

/// A memory PMU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Hardware {
    Pebs,
    Ibs,
}

impl Hardware {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pebs => "pebs",
            Self::Ibs => "ibs",
        }
    }
}

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServerName {
    Redis,
    Memcached,
    Postgres,
}

/// What a command line asks for.
pub enum Command {
    Compare(Box<Args>),
    /// The help or the version.
    Print(String),
}

impl Args {
    /// Reads the words after the program's name.
    ///
    /// # Errors
    /// One sentence, the first that clap has.
    pub fn read(words: &[OsString]) -> Result<Command> {
        let words = std::iter::once(OsString::from("versus-perf")).chain(words.iter().cloned());
        match Self::try_parse_from(words) {
            Ok(args) => Ok(Command::Compare(Box::new(args))),
            Err(error) if !error.use_stderr() => Ok(Command::Print(error.render().to_string())),
            Err(error) => {
                let text = error.render().to_string();
                // Its first paragraph; then come usage and hints.
                let first: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
                let sentence = first.join(" ");
                let sentence = sentence.strip_prefix("error: ").unwrap_or(&sentence);
                Err(refused(format!("{sentence} (--help lists all options)")))
            }
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("must be a number of seconds from 0.05 to 86400".to_owned()),
    }
}

fn pages(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(pages) if pages.is_power_of_two() && pages <= 1 << 16 => Ok(pages),
        _ => Err("must be a power of two from 1 to 65536".to_owned()),
    }
}
