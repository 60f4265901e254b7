//! The command line: one file per subcommand, and their common parts.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::resolve::{answer_source_lines, SOURCE_LINES};

/// Prints a line to stderr, in one piece and escaped for a terminal, because a COMMAND may write there too. If stderr is full
/// or has no reader, the line is lost, but not the run: `eprintln!` would panic.
macro_rules! say {
    ($($text:tt)*) => {{
        let line = format!("{}\n", $crate::escape::line(&format!($($text)*)));
        $crate::cli::to_stderr(line.as_bytes());
    }};
}

/// True in a service, which must not wait for who reads its messages.
static IS_SERVICE: AtomicBool = AtomicBool::new(false);
/// How long a service waits for the reader of its stderr.
const READER: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Writes to stderr. What cannot be written is lost.
fn to_stderr(bytes: &[u8]) {
    use std::io::Write;
    let mut stderr = std::io::stderr();
    if !IS_SERVICE.load(Ordering::Relaxed) {
        let _ = stderr.write_all(bytes);
        return;
    }
    // A pipe that has room takes so much without waiting (PIPE_BUF, pipe(7)).
    for part in bytes.chunks(4096) {
        let has_room = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&READER));
        if !has_room.is_ok_and(|ready| ready > 0) || stderr.write_all(part).is_err() {
            return;
        }
    }
}

/// The same for text of several lines.
fn say_lines(text: &str) {
    to_stderr((crate::escape::lines(text.trim_end()) + "\n").as_bytes());
}

mod analyze;
mod capture;
mod cgroups;
mod command;
mod controllers;
mod decision;
mod destination;
mod diff;
mod doctor;
mod dsqs;
mod evidence;
mod export;
mod extract;
mod filter;
mod hints;
mod load;
mod man;
mod merge;
mod output;
mod outputs;
mod own_input;
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
mod tables;
mod trace;
mod wakers;
mod watch;
mod windows;

const AFTER_HELP: &str = "\
Exit codes:
  0  the result was written
  1  no usable samples, or the result could not be written
  2  wrong usage, also a profile that cannot be opened or an output that cannot be made
  3  not supported or not permitted here
  4  the result was written, but more samples were lost than --max-loss allows, or a profile is damaged
  5  scx_mitosis would have more cells than CPUs or than it takes, so no configuration was written; or a score is below
     --at-least
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

/// An unsuccessful end, as its exit code and its message.
#[derive(Debug)]
pub(crate) enum Failure {
    /// 1: there is no result, or it could not be written.
    NoResult(anyhow::Error),
    /// 2: the request is invalid.
    Usage(anyhow::Error),
    /// 3: this machine or these rights do not allow it.
    Unsupported(anyhow::Error),
    /// 4: more was lost than allowed; the result was printed.
    Loss(anyhow::Error),
    /// 5: scx_mitosis would reject the configuration on the target host, so there is none; or one is worse than wanted.
    DoesNotFit(anyhow::Error),
    /// The status of the command that was profiled.
    Command(u8),
}

impl Failure {
    /// Its message.
    fn sentence(&self) -> String {
        match self {
            Self::NoResult(error)
            | Self::Usage(error)
            | Self::Unsupported(error)
            | Self::Loss(error)
            | Self::DoesNotFit(error) => sentence(error),
            Self::Command(status) => format!("the command ended with {status}"),
        }
    }

    fn exit(self) -> ExitCode {
        let (error, code) = match self {
            Self::NoResult(error) => (Some(error), 1),
            Self::Usage(error) => (Some(error), 2),
            Self::Unsupported(error) => (Some(error), 3),
            Self::Loss(error) => (Some(error), 4),
            Self::DoesNotFit(error) => (Some(error), 5),
            Self::Command(status) => (None, status),
        };
        if let Some(error) = error {
            say!("error: {}", sentence(&error));
        }
        ExitCode::from(code)
    }
}

/// The error and its causes, each printed once: many of our errors contain the text of their cause.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
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
        Command::Run(args) => run::run(&args, stdout_is_open),
        Command::Doctor(args) => doctor::run(&args),
        Command::DoctorLoad => doctor::load(),
        Command::SourceLines { addresses } => return source_lines(addresses),
        Command::Record(args) => record::run(&args),
        Command::Process(args) => process::run(&args, stdout_is_open),
        Command::Extract(args) => extract::run(&args, stdout_is_open),
        Command::Sched(args) => sched::run(&args, stdout_is_open),
        Command::Replay(args) => replay::run(&args, stdout_is_open),
        Command::Stacks(args) => stacks::run(&args, stdout_is_open),
        Command::Export(args) => export::run(&args, stdout_is_open),
        Command::Trace(args) => trace::run(&args, stdout_is_open),
        Command::Report(args) => report::run(&args, stdout_is_open),
        Command::Diff(args) => diff::run(&args, stdout_is_open),
        Command::Score(args) => score::run(&args, stdout_is_open),
        Command::Merge(args) => merge::run(&args, stdout_is_open),
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

/// A percentage on the command line.
fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("must be a percentage from 0 to 100".to_owned()),
    }
}

/// A number of seconds on the command line.
fn seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if seconds <= 0.0 || seconds.is_nan() {
        return Err("must be more than 0 seconds".to_owned());
    }
    std::time::Duration::try_from_secs_f64(seconds).map_err(|_| "too many seconds".to_owned())
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

    #[test]
    fn a_cause_is_said_once() {
        use anyhow::Context;
        let cause = || std::io::Error::from_raw_os_error(libc::EACCES);
        let own = crate::host::Error::Read { path: "/x".into(), source: cause() };
        assert_eq!(sentence(&own.into()), "cannot read /x: Permission denied (os error 13)");
        let context = Err::<(), _>(cause()).context("cannot write").unwrap_err();
        assert_eq!(sentence(&context), "cannot write: Permission denied (os error 13)");
    }
}
