//! scxprof and perf on the same work, in turn and in one run: `versus-perf COMPARISON [OPTIONS]`.
//!
//! | comparison | what is compared | needs |
//! |---|---|---|
//! | `pmu` | `perf mem record` and `perf c2c record` with `scxprof record` and `run`: cost, and whether both see the same | root, perf, a memory PMU |
//! | `software` | perf with `--source faults` and `--source timer`, on a load of known rate | root, perf |
//! | `files` | from a recording to text, lines and a configuration | perf |
//! | `rates` | samples and losses from 1,000 faults a second to as many as the host gives | root, perf |
//! | `rings` | how many samples a second one core reads from 16 to 512 replayed rings before the first loss | |
//! | `overhead` | throughput of redis, memcached and postgres while they are sampled | root, perf, the servers |
//! | `all` | all of these; those that this host cannot run are skipped, with the reason | |
//!
//! Prints tables in Markdown, and writes them with JSON and plots (SVG) into the directory of `--out`. The exit code is 0, or 1
//! where a check failed or a program under test did, or 2 where the command line or the host does not allow the comparison; then
//! one sentence on stderr says why.

mod agreement;
mod capture;
mod cli;
mod files;
mod host;
mod load;
mod measure;
mod output;
mod overhead;
mod plot;
mod pmu;
mod rates;
mod recording;
mod result;
mod rings;
mod servers;
mod software;
mod statistics;
mod svg;
#[cfg(test)]
mod tests;
mod tools;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};

use cli::{Args, Command, Which};
use host::{Machine, Refused};
use result::{Comparison, Skip};
use tools::Bench;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if words.first().is_some_and(|word| word == measure::SUBCOMMAND) {
        return measure::serve();
    }
    let mut out = std::io::stdout().lock();
    ExitCode::from(code(tools::handle_signals().and_then(|()| run(&words, &mut out))))
}

/// The exit code of what [`run`] returned; says on stderr what went wrong.
fn code(done: Result<bool>) -> u8 {
    match done {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) => {
            eprintln!("versus-perf: {}", one_line(&format!("{error:#}")));
            if error.downcast_ref::<Refused>().is_some() {
                2
            } else {
                1
            }
        }
    }
}

/// What other programs said may have several lines.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs what the command line asks for; false if a check failed.
fn run(words: &[OsString], out: &mut dyn Write) -> Result<bool> {
    let args = match Args::read(words)? {
        Command::Compare(args) => args,
        Command::Print(text) => {
            write!(out, "{text}").context("stdout")?;
            return Ok(true);
        }
    };
    let bench = Bench::new(*args)?;
    let machine = Machine::read(&bench.scxprof, bench.perf_version(), words);
    let mut places = output::Places::new(&bench.args)?;
    let mut agreed = true;
    for which in bench.args.which.each() {
        let compared = match compare(which, &bench) {
            Err(error) if bench.args.which == Which::All && error.is::<Refused>() => {
                let mut left_out = Comparison::new(which.name(), "Not run");
                left_out.skipped.push(Skip { what: which.name().to_owned(), reason: format!("{error:#}") });
                left_out
            }
            other => other?,
        };
        agreed &= compared.checks.iter().all(|check| check.holds);
        // Each is written as soon as it is whole: those after it may take an hour.
        places.write(&machine, &compared, out)?;
    }
    Ok(agreed)
}

fn compare(which: Which, bench: &Bench) -> Result<Comparison> {
    match which {
        Which::Pmu => pmu::compare(bench),
        Which::Software => software::compare(bench),
        Which::Files => files::compare(bench),
        Which::Rates => rates::compare(bench),
        // `all` is resolved to the others before.
        Which::Rings | Which::All => rings::compare(bench),
        Which::Overhead => overhead::compare(bench),
    }
}
