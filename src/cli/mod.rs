//! The command line: one file per subcommand, and their common parts.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::resolve::{answer_source_lines, SOURCE_LINES};

// First, because all others use its macro.
#[macro_use]
mod say;

mod analyze;
mod args;
mod capture;
mod cgroups;
mod command;
mod controllers;
mod decision;
mod destination;
mod diff;
mod doctor;
mod dsqs;
mod ends;
mod evidence;
mod export;
mod extract;
mod failure;
mod filter;
mod format;
mod hints;
mod input;
mod load;
mod man;
mod merge;
mod messages;
mod observe;
mod output;
mod outputs;
mod own_input;
mod parquet;
mod process;
mod query;
mod record;
mod replay;
mod report;
mod run;
mod sched;
mod score;
mod signals;
mod source;
mod stacks;
mod times;
mod trace;
mod wakers;
mod watch;
mod width;
mod windows;

use failure::Failure;
use output::Stdout;
use say::say_lines;

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

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  scxprof completions bash > /etc/bash_completion.d/scxprof
  scxprof completions zsh > /usr/share/zsh/site-functions/_scxprof
  scxprof completions fish > ~/.config/fish/completions/scxprof.fish";

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
    /// Print a shell's completions to stdout
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
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
    let parsed = Args::command().try_get_matches_from(&args).and_then(|matches| {
        let args = Args::from_arg_matches(&matches).map_err(|error| error.format(&mut Args::command()))?;
        Ok((args, own_input::check(&matches)))
    });
    let args = match parsed {
        Ok((args, Ok(()))) => args,
        Ok((_, Err(failure))) => return failure.exit(),
        Err(error) => {
            if error.use_stderr() {
                // This contains the arguments, which may be names of files.
                say_lines(&error.render().to_string());
                if let Some(tip) = command_tip(&error, &args) {
                    say!("{tip}");
                }
            } else {
                // --help and --version; a closed stdout must not cause a panic.
                let _ = error.print();
            }
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let result = match args.command {
        Command::Run(args) => run::run(&args, stdout),
        Command::Doctor(args) => doctor::run(&args),
        Command::DoctorLoad => doctor::load(),
        Command::SourceLines { addresses } => return source_lines(addresses),
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
        Command::Completions { shell } => completions(shell),
        Command::Man(args) => man::man(&args, Args::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}

/// What a person meant who gave `run` or `record` a command without `--`.
fn command_tip(error: &clap::Error, args: &[OsString]) -> Option<String> {
    let subcommand = args.get(1)?.to_str().filter(|name| matches!(*name, "run" | "record"))?;
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != clap::error::ErrorKind::UnknownArgument || unknown.starts_with('-') {
        return None;
    }
    let at = args.iter().position(|arg| arg.to_str() == Some(unknown))?;
    let (options, command) = args.split_at_checked(at)?;
    let text = |args: &[OsString]| args.iter().map(|arg| format!(" {}", arg.to_string_lossy())).collect::<String>();
    Some(format!(
        "to run a command: scxprof {subcommand}{} --{}",
        text(options.get(2..).unwrap_or_default()),
        text(command)
    ))
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "scxprof", &mut script);
    output::print(&script).map_err(Failure::NoResult)
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
    fn a_command_without_dashes_gets_a_tip() {
        let tip = |line: &str| {
            let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
            command_tip(&Args::try_parse_from(&args).unwrap_err(), &args)
        };
        assert_eq!(tip("scxprof run true").unwrap(), "to run a command: scxprof run -- true");
        let tip_of_two = tip("scxprof record -t 5 sleep 10").unwrap();
        assert_eq!(tip_of_two, "to run a command: scxprof record -t 5 -- sleep 10");
        assert_eq!(tip("scxprof run --frobnicate"), None);
        assert_eq!(tip("scxprof extract a b"), None);
    }

    #[test]
    fn perf_habits_work() {
        for line in
            ["run -a -F 99", "run -a -- sleep 10", "run -p 1,2", "record -c 1000", "extract web.tar.gz", "process web"]
        {
            let args = format!("scxprof {line}");
            assert!(Args::try_parse_from(args.split(' ')).is_ok(), "{line}");
        }
        let error = |line: &str| Args::try_parse_from(line.split(' ')).unwrap_err().to_string();
        assert!(error("scxprof run -p abc").contains("'abc' for '--pid <PID>': not a process id"));
        assert!(error("scxprof run -e cycles").contains("--source pebs, ibs, timer, faults or wakeups"));
        assert!(error("scxprof extract").contains("required"), "{}", error("scxprof extract"));
    }

    #[test]
    fn every_option_stands_below_a_heading() {
        let command = Args::command();
        for subcommand in ["run", "record", "process", "extract", "sched", "replay", "stacks"] {
            let subcommand = command.find_subcommand(subcommand).unwrap();
            for option in subcommand.get_arguments().filter(|it| !it.is_hide_set()) {
                assert!(option.get_help_heading().is_some(), "{} {}", subcommand.get_name(), option.get_id());
            }
        }
    }
}
