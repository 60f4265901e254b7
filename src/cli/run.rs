//! `scxprof run`: one capture, from the events to the configuration.

use std::time::SystemTime;

use anyhow::anyhow;
use clap::Args;

use super::capture::{self, CaptureArgs};
use super::command::Held;
use super::decision::{self, DecisionArgs, Host};
use super::Failure;
use crate::session::Session;

const EXAMPLES: &str = "\
Examples:
  sudo scxprof run -t 30 > cells.json            sample the host, write the configuration
  sudo scxprof run -v -o cells.json              the same, with a summary on stderr
  sudo scxprof run --cell db='db\\.service$'      a cell for a cgroup of another name
  scxprof run -p 1234 -t 10                      one process and its children
  scxprof run -- ./server --port 80              a command while it runs (Ctrl-C ends both)
Use it:
  sudo scx_mitosis --cell-config cells.json";

/// Sample memory accesses and print a cell configuration
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct RunArgs {
    #[command(flatten)]
    capture: CaptureArgs,
    #[command(flatten)]
    decision: DecisionArgs,
    /// A summary on stderr; -vv for all of it
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count)]
    verbose: u8,
}

/// Runs one capture and prints its configuration.
pub(super) fn run(args: &RunArgs, stdout_is_open: bool) -> Result<(), Failure> {
    let RunArgs { capture: wanted, decision, verbose } = args;
    let mut options = capture::session_options(wanted)?;
    if decision.use_hints && !wanted.hints.are_followed() {
        return Err(Failure::Usage(anyhow!("--use-hints needs --hints-map, which says where the hints are")));
    }
    let groups = decision.groups()?;
    decision.check_stdout(stdout_is_open)?;
    // Before anything is opened, so that the command does not inherit our limits.
    let held = capture::hold(wanted, decision.to_stdout())?;
    options.sampler.target = capture::target(wanted, &options.roots, held.as_ref())?;
    let outputs = decision.outputs(stdout_is_open)?;
    let signals = capture::signals().map_err(Failure::Unsupported)?;
    let rate_before = capture::max_sample_rate(&options.roots);
    let begin = SystemTime::now();
    let session = capture::start(wanted, &mut options, &mut |options| Session::start(options))?;
    let mut command = held.map(Held::release).transpose().map_err(Failure::Usage)?;
    let source = options.sampler.source;
    let mut decider = decision.decider(groups, source, options.memory, *verbose);
    let outcome = capture::watch(wanted, &options, session, &mut decider, command.as_mut(), &signals, &|| false);
    capture::say_notes(&outcome, rate_before, capture::max_sample_rate(&options.roots));
    decision::report(*verbose, source, &decider, &outcome);
    // The result first: a command may ignore SIGTERM. Another signal to us kills it then.
    let printed = decision::finish(decision, *verbose, &decider, &outcome, outputs, &Host::this(Some(begin)));
    let status = capture::end(command, &signals)?;
    printed?;
    match status {
        Some(status) if status != 0 => Err(Failure::Command(status)),
        _ => decision::check_loss(wanted.max_loss, &outcome),
    }
}
