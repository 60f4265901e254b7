//! `scxprof top`: shows while it runs who shares memory, what threads access, and what the scheduler does.

mod details;
mod draw;
mod files;
mod first;
mod help;
mod keys;
mod page;
mod run;
mod sched_views;
mod stacks;
mod state;
mod table;
mod terminal;
#[cfg(test)]
mod tests;
mod views;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;

use super::args::{seconds, text, RESULT, TUNING};
use super::capture::{self, CaptureArgs};
use super::command::{Held, Running};
use super::decision::{DecisionArgs, Made};
use super::ends::{Ends, Step};
use super::failure::{Done, Failure};
use super::messages;
use super::output::Stdout;
use super::signals::Signals;
use super::{input, width};
use crate::session::{Around, AroundNow, HostOptions, Live, LiveError, LiveOptions};
use draw::Theme;
use first::First;
use page::Page;
use run::Engine;
use state::{State, View};

const EXAMPLES: &str = "\
Examples:
  sudo scxprof top                               the host; ? says which keys there are
  scxprof top -p 1234                            a process and its descendants
  scxprof top -- ./server --port 80              a command while it runs; its output is not shown
  sudo scxprof top --config cells.json           what the loaded configuration keeps together
  sudo scxprof top --view scheduling --interval 2
  sudo scxprof top --once -t 10 --view threads   one page as text, for a script
  sudo scxprof top --once --view cpus --by last-level-cache --sort BUSY%";

/// How long `--once` samples.
const ONCE: Duration = Duration::from_secs(5);
/// The shortest and the longest interval.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(3600);

/// Show live which threads share memory, what they access, and what the scheduler does
#[derive(Debug, Args)]
#[command(
    after_help = EXAMPLES,
    mut_args(text("time", "End after this time: seconds, or a time such as 500ms or 5m [default: never; with --once 5]")),
    mut_args(text("command", "A command to sample while it runs; its output is not shown, but with --once it goes to stderr")),
    mut_arg("sched", |arg| arg.hide(true)),
)]
pub(super) struct TopArgs {
    #[command(flatten)]
    capture: CaptureArgs,
    /// How often the screen is drawn, and the window of its figures
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds, help_heading = TUNING)]
    interval: Duration,
    /// The time over which samples are collected to find shared memory
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, help_heading = TUNING)]
    sharing_window: Duration,
    /// Print one page as text, with all rows, and end
    #[arg(long, help_heading = RESULT)]
    once: bool,
    /// The view that is shown first
    #[arg(long, value_enum, value_name = "VIEW", default_value = "groups", help_heading = RESULT)]
    view: View,
    /// The kind of rows of the view, as the key c selects it: thread, process, cgroup, cell, CPU, LLC, dispatch-queue,
    /// last-level-cache, figures-of-the-scheduler [default: the first of the view]
    #[arg(long, value_name = "KIND", help_heading = RESULT)]
    by: Option<String>,
    /// The column to sort by, as its head says
    #[arg(long, value_name = "HEAD", help_heading = RESULT)]
    sort: Option<String>,
    /// Only rows that contain this text
    #[arg(long, value_name = "TEXT", help_heading = RESULT)]
    filter: Option<String>,
    /// A configuration to load: top shows which threads it keeps together, and the figures of its cells
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    config: Option<PathBuf>,
    /// Colours [default: dark; none if NO_COLOR is set]
    #[arg(long, value_enum, value_name = "THEME", help_heading = RESULT)]
    theme: Option<Theme>,
    #[command(flatten)]
    decision: DecisionArgs,
    /// Say why a source does not work here
    #[arg(short = 'v', long = "verbose", action = clap::ArgAction::Count, help_heading = RESULT)]
    verbose: u8,
}

/// Shows the host until the user ends it, or prints a page.
pub(super) fn run(args: &TopArgs, stdout: Stdout) -> Result<(), Failure> {
    if !(SHORTEST..=LONGEST).contains(&args.interval) {
        return Err(Failure::Usage(anyhow!("--interval: it is from 0.1 to {} s", LONGEST.as_secs())));
    }
    if !(SHORTEST..=LONGEST).contains(&args.sharing_window) {
        return Err(Failure::Usage(anyhow!("--sharing-window: it is from 0.1 to {} s", LONGEST.as_secs())));
    }
    if args.decision.use_hints && !args.capture.hints.are_followed() {
        return Err(Failure::Usage(anyhow!("--use-hints needs --hints-map, which names the map of the hints")));
    }
    let mut state = State::new(args.view, args.interval);
    // A page that is printed once is about all that was sampled.
    state.is_total = args.once;
    let wanted = First { by: args.by.as_deref(), sort: args.sort.as_deref(), filter: args.filter.as_deref() };
    first::begin(&mut state, wanted).map_err(Failure::Usage)?;
    let config = args.config.as_deref().map(|path| input::configuration_text("--config", path)).transpose()?;
    stdout.check(None)?;
    let (_, host) = capture::builder(&args.capture)?;
    let wanted = &args.capture.watch;
    let held = if args.once { capture::hold(wanted, true)? } else { wanted.hold_quietly()? };
    // Before sampling begins, as it is not worth it without a terminal.
    if !args.once && !std::io::IsTerminal::is_terminal(&std::io::stdout()) {
        return Err(Failure::Usage(anyhow!("top: stdout is no terminal; --once prints one page as text")));
    }
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let live = start(args, host, held.as_ref())?;
    if let Some((path, text)) = args.config.as_deref().zip(config) {
        let name = path.display().to_string();
        live.load(Some((name, text)))
            .map_err(|error| Failure::Usage(anyhow!("--config {}: {error}", path.display())))?;
    }
    let mut command = held.map(Held::release).transpose().map_err(Failure::Usage)?;
    let around = Around::new(&wanted.roots());
    let started = Engine::new(live, around);
    let mut engine = started.map_err(|error| Failure::Unsupported(anyhow!("cannot start a thread: {error}")))?;
    let mut ends = Ends::default();
    let shown = if args.once {
        once(args, &state, &mut engine, command.as_mut(), &signals)
    } else {
        let limit = wanted.limit_given();
        run::watch(state, &mut engine, theme(args), limit, command.as_mut(), &signals)
    };
    if let Some(command) = &mut command {
        command.terminate();
    }
    let stopped = engine.stop();
    let source = engine.source();
    if let (Some(outcome), true) = (engine.outcome(), args.once) {
        ends.loss(&args.capture.tuning.max_loss, &outcome.loss);
        if let Some(source) = source.filter(|_| outcome.loss.samples == 0) {
            ends.note(Step::Result, Err::<(), _>(Failure::NoResult(messages::no_samples(&outcome, source))));
        }
    }
    ends.note(Step::Result, shown);
    ends.note(Step::Result, stopped.map_err(Failure::NoResult));
    ends.command(capture::end(command, &signals));
    ends.end()
}

/// Starts sampling.
fn start(args: &TopArgs, host: HostOptions, held: Option<&Held>) -> Result<Live, Failure> {
    let wanted = &args.capture.watch;
    let host = capture::with_command(wanted, host, held);
    let options = LiveOptions {
        interval: args.interval,
        // What is printed once is of the whole time.
        sharing_window: once_limit(args).filter(|_| args.once).unwrap_or(args.sharing_window),
        memory: args.capture.tuning.memory(&wanted.roots())?,
        analysis: args.decision.analysis(Made::Report),
        roots: wanted.roots(),
        ..LiveOptions::default()
    };
    Live::start(options, host).map_err(|error| match error {
        LiveError::Session(error) => capture::not_started(wanted, args.verbose, error),
        error => Failure::Unsupported(error.into()),
    })
}

/// How long `--once` samples; `None` while the command runs.
fn once_limit(args: &TopArgs) -> Option<Duration> {
    let wanted = &args.capture.watch;
    wanted.limit_given().or_else(|| (!wanted.has_command()).then_some(ONCE))
}

/// The theme: none where NO_COLOR is set and not empty.
fn theme(args: &TopArgs) -> Theme {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    // Whoever names a theme wants colours, which crossterm leaves out where NO_COLOR is set.
    ratatui::crossterm::style::force_color_output(args.theme.is_some_and(|theme| theme != Theme::None) || !is_plain);
    args.theme.unwrap_or(if is_plain { Theme::None } else { Theme::Dark })
}

/// Prints a page of what was sampled for some seconds.
fn once(args: &TopArgs, state: &State, engine: &mut Engine, command: Option<&mut Running>, signals: &Signals) -> Done {
    let limit = once_limit(args);
    if state.needs_scheduling() {
        engine.switch_on();
    }
    engine.look(state);
    run::wait(limit, command, signals);
    // What it found so far is evaluated.
    engine.stop_sampling();
    let mut state = state.clone();
    state.refused = engine.refused();
    let state = &state;
    let (now, around): (_, &AroundNow) = engine.look(state);
    let page = Page::whole(state, now, around, width::of(&std::io::stdout()));
    super::output::print(page.text().as_bytes()).map_err(Failure::NoResult)?;
    match state.refused.as_ref().filter(|_| state.needs_scheduling()) {
        Some(refused) => Err(Failure::Unsupported(anyhow!("no scheduling events: {refused}"))),
        None => Ok(()),
    }
}
