//! The command line: one file per subcommand, and their common parts.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::resolve::{answer_source_lines, SOURCE_LINES};

// First, because all others use its macro.
#[macro_use]
mod say;

mod analyze;
mod args;
#[cfg_attr(not(feature = "mcp"), allow(dead_code))]
mod call;
mod capture;
mod cgroups;
mod command;
mod completions;
mod controllers;
mod decision;
mod destination;
mod diff;
mod doctor;
mod dsqs;
mod ends;
mod events;
mod evidence;
mod export;
mod extract;
mod failure;
mod filter;
mod format;
mod habits;
mod hints;
mod input;
mod lines_dir;
mod load;
mod man;
#[cfg(feature = "mcp")]
mod mcp;
mod merge;
mod messages;
mod names;
mod observe;
mod output;
mod outputs;
mod own_input;
mod parquet;
mod process;
mod progress;
mod query;
mod record;
mod replay;
mod report;
mod run;
mod sched;
mod score;
mod selection;
mod short_help;
mod signals;
mod source;
mod stacks;
mod timeline;
mod times;
mod top;
mod trace;
mod trace_diff;
mod wakers;
mod watch;
mod width;
mod windows;

use failure::Failure;
use output::Stdout;
use say::say_lines;

/// Columns of `-h` where there is no terminal, as in `--help`.
const HELP_WIDTH: usize = 100;

const AFTER_HELP: &str = "\
Exit codes:
  0  the result was written
  1  no usable samples, or the result could not be written
  2  wrong usage, also a profile that cannot be opened or an output that cannot be made
  3  not supported or not permitted here
  4  the result was written, but more samples were lost than --max-loss allows, or a profile is damaged
  5  the target host has no CPU for anything that was found, so no configuration was written, only the finding; or a
     locality is below --at-least
  128 + N  ended at once by a second signal N (130: Ctrl-C); the first one ends the capture, and the result is written
With a COMMAND, 1, 3 and 5 come first, then the command's own status (128 + its signal), then 4.";

/// Finds the threads that share memory, and prints the cell configuration that a sched_ext scheduler loads.
#[derive(Debug, Parser)]
#[command(version, about, after_help = AFTER_HELP, propagate_version = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::RunArgs>),
    Record(Box<record::RecordArgs>),
    Process(Box<process::ProcessArgs>),
    Extract(Box<extract::ExtractArgs>),
    Report(Box<report::ReportArgs>),
    Sched(Box<sched::SchedArgs>),
    Replay(Box<replay::ReplayArgs>),
    Stacks(Box<stacks::StacksArgs>),
    Trace(trace::TraceArgs),
    Export(Box<export::ExportArgs>),
    Diff(Box<diff::DiffArgs>),
    Score(Box<score::ScoreArgs>),
    Merge(merge::MergeArgs),
    Watch(Box<watch::WatchingArgs>),
    Top(Box<top::TopArgs>),
    #[cfg(feature = "mcp")]
    Mcp(mcp::McpArgs),
    Doctor(doctor::DoctorArgs),
    /// The load that `doctor --self-test` samples
    #[command(name = doctor::LOAD, hide = true)]
    DoctorLoad,
    /// What reads debug information for a report, see [`crate::resolve`]
    #[command(name = SOURCE_LINES, hide = true)]
    SourceLines {
        /// In hexadecimal
        addresses: Vec<OsString>,
    },
    Completions(completions::CompletionArgs),
    #[command(hide = true)]
    Man(man::ManArgs),
}

fn source_lines(addresses: Vec<OsString>) -> ExitCode {
    if answer_source_lines(addresses.into_iter()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Parses the command line, runs the command and returns the exit code.
pub fn main(args: impl IntoIterator<Item = OsString>, stdout_is_open: bool) -> ExitCode {
    let stdout = Stdout::new(stdout_is_open);
    let args: Vec<OsString> = args.into_iter().collect();
    let args = match parse(&args) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let result = match args.command {
        Command::SourceLines { addresses } => return source_lines(addresses),
        command => dispatch(command, stdout),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}

/// Runs a command line for a call of `scxprof mcp`.
#[cfg(feature = "mcp")]
fn run_line(words: &[OsString]) -> Result<(), Failure> {
    let line = std::iter::once(OsString::from("scxprof")).chain(words.iter().cloned());
    // The name of the option, the wrong value and why it is wrong stand in the first line; the others are for people.
    let wrong = |error: &clap::Error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        Failure::Usage(anyhow::anyhow!("{}", first.strip_prefix("error: ").unwrap_or(first)))
    };
    let args = Args::try_parse_from(line).map_err(|error| wrong(&error))?;
    dispatch(args.command, Stdout::new(true))
}

/// Runs a command.
fn dispatch(command: Command, stdout: Stdout) -> Result<(), Failure> {
    match command {
        Command::Run(args) => run::run(&args, stdout),
        Command::Top(args) => top::run(&args, stdout),
        Command::Doctor(args) => doctor::run(&args),
        Command::DoctorLoad => doctor::load(),
        // It has an exit code alone, see `main`.
        Command::SourceLines { .. } => Ok(()),
        Command::Record(args) => record::run(&args),
        Command::Process(args) => process::run(&args, stdout),
        Command::Extract(args) => extract::run(&args, stdout),
        Command::Sched(args) => sched::run(&args, stdout),
        Command::Replay(args) => replay::run(&args, stdout),
        Command::Stacks(args) => stacks::run(&args, stdout),
        Command::Export(args) => export::run(&args, stdout),
        Command::Trace(args) => trace::run(&args, stdout),
        Command::Report(args) => report::run(&args, stdout),
        Command::Diff(args) => diff::run(&args, stdout),
        Command::Score(args) => score::run(&args, stdout),
        Command::Merge(args) => merge::run(&args, stdout),
        Command::Watch(args) => watch::run(&args),
        #[cfg(feature = "mcp")]
        Command::Mcp(args) => mcp::run(&args, stdout, run_line),
        Command::Completions(args) => completions::run(&args, &Args::command()),
        Command::Man(args) => man::man(&args, Args::command()),
    }
}

/// Parses the command line. A command that reads a profile and names none gets the newest one here, and perf's way to say how long to
/// sample becomes ours.
fn parse(args: &[OsString]) -> Result<Args, ExitCode> {
    habits::check(args).map_err(Failure::exit)?;
    let args = &*habits::without_kind(args);
    let mut command = Args::command();
    let mut matches = command.try_get_matches_from_mut(args).map_err(|error| tell(error, args))?;
    let mut changed = names::with_newest(&command, args, &matches).map_err(Failure::exit)?;
    if changed.is_none() {
        changed = habits::with_time(args, &matches).map_err(Failure::exit)?;
    }
    if let Some(args) = changed {
        matches = command.try_get_matches_from_mut(&args).map_err(|error| tell(error, &args))?;
    }
    own_input::check(&matches).map_err(Failure::exit)?;
    Args::from_arg_matches(&matches).map_err(|error| tell(error.format(&mut Args::command()), args))
}

/// Prints what clap says in place of arguments: help, the version, or what is wrong.
fn tell(mut error: clap::Error, args: &[OsString]) -> ExitCode {
    if let Some(failure) = habits::option(&error, args) {
        return failure.exit();
    }
    if error.use_stderr() {
        habits::without_wrong_tips(&mut error);
        // This contains the arguments, which may be names of files.
        say_lines(&error.render().to_string());
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    }
    let is_help = error.kind() == clap::error::ErrorKind::DisplayHelp;
    let width = width::of(&std::io::stdout()).unwrap_or(HELP_WIDTH);
    let short = is_help.then(|| short_help::text(Args::command(), args, width)).flatten();
    // A closed stdout must not cause a panic.
    let _ = match short {
        Some(text) => output::print(text.as_bytes()).is_ok(),
        None => error.print().is_ok(),
    };
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_subcommand_has_examples() {
        let mut command = Args::command();
        for subcommand in command.get_subcommands_mut().filter(|it| !it.is_hide_set()) {
            let name = subcommand.get_name().to_owned();
            let help = subcommand.render_long_help().to_string();
            assert!(help.contains("\nExamples:\n  "), "scxprof {name} --help has no examples:\n{help}");
        }
    }

    #[test]
    fn a_command_needs_no_dashes() {
        let parse = |line: &str| Args::command().try_get_matches_from(line.split(' '));
        for (line, command) in [
            ("scxprof run true", "true"),
            ("scxprof run -- true", "true"),
            ("scxprof record -t 5 sleep 10", "sleep 10"),
            ("scxprof record -a sh -c -- x --help -h", "sh -c -- x --help -h"),
            ("scxprof stacks -g ./server --port 80", "./server --port 80"),
            ("scxprof sched --by cpu make -j8", "make -j8"),
            ("scxprof run -v cargo run -- -v", "cargo run -- -v"),
        ] {
            let matches = parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            let (_, below) = matches.subcommand().unwrap();
            let words: Vec<_> = below.get_many::<OsString>("command").unwrap().map(|it| it.to_str().unwrap()).collect();
            assert_eq!(words.join(" "), command, "{line}");
        }
        // A misspelt option before it does not belong to the command.
        assert!(parse("scxprof run --frobnicate true").is_err());
        assert!(parse("scxprof extract a b").is_err());
    }

    #[test]
    fn perf_habits_work() {
        for line in [
            "run -a -F 99",
            "run -a -- sleep 10",
            "run -p 1,2",
            "record -F 999 -g -p 1 -- sleep 3",
            "sched -a -- sleep 3",
            "report --stdio -i web",
            "record -c 1000",
            "record -g",
            "record -g --call-graph dwarf,4096 --stacks-freq 49",
            "record --call-graph fp -a sleep 1",
            "record --duration 5s -o perf.data",
            "stacks -g --call-graph dwarf -t 1m",
            "report -i web",
            "report --input web",
            "sched -i web",
            "extract web.tar.gz",
            "extract",
            "process web",
        ] {
            let args = format!("scxprof {line}");
            assert!(Args::try_parse_from(args.split(' ')).is_ok(), "{line}");
        }
        let error = |line: &str| Args::try_parse_from(line.split(' ')).unwrap_err().to_string();
        assert!(error("scxprof run -p abc").contains("'abc' for '--pid <PID>': not a process id"));
        assert!(error("scxprof run -e cycles").contains("--source pebs, ibs, spe, timer, faults or wakeups"));
        // No host has as many.
        assert!(error("scxprof score -f x --config y --llcs 4294967295").contains("4294967295 is not in 2..=1024"));
        assert!(error("scxprof run --target-cpus 4294967295").contains("4294967295 is not in 1..=65536"));
        assert!(error("scxprof run --target-llcs 0").contains("0 is not in 1..=1024"));
        assert!(error("scxprof record --call-graph lbr").contains("not one of fp, dwarf and dwarf,BYTES"));
    }

    #[test]
    fn every_option_stands_below_a_heading() {
        let command = Args::command();
        for subcommand in ["run", "record", "process", "extract", "sched", "replay", "stacks", "top"] {
            let subcommand = command.find_subcommand(subcommand).unwrap();
            for option in subcommand.get_arguments().filter(|it| !it.is_hide_set()) {
                assert!(option.get_help_heading().is_some(), "{} {}", subcommand.get_name(), option.get_id());
            }
        }
    }
}
