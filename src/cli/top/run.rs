//! The capture that is shown, and the loop of keys and frames.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context, Result};
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::super::command::Running;
use super::super::failure::{Done, Failure};
use super::super::input;
use super::super::output::{is_stdout, Output, Readers};
use super::super::signals::{self, Signals};
use super::draw::{draw, Theme};
use super::keys::{press, Action, Key, Replace, Shown};
use super::page::Page;
use super::stacks::Code;
use super::state::{Asked, Kind, Over, Prompt, State, View};
use super::terminal::{self, Screen};
use super::views::key_of_accesses;
use crate::report::html;
use crate::sample::Source;
use crate::session::{Around, AroundNow, By, Live, Outcome, Snapshot};

/// How often signals, keys and the command are looked at, at least.
const NAP: Duration = Duration::from_millis(100);
/// Keys that are taken between two frames.
const MAX_KEYS: usize = 256;
/// All that a view can be about, for a frozen one.
const ALL: [By; 6] = [By::Thread, By::Process, By::Cgroup, By::Cell, By::Cpu, By::Llc];

/// The capture, and what was last known.
#[derive(Debug)]
pub(super) struct Engine {
    live: Live,
    around: Around,
    now: Snapshot,
    around_now: AroundNow,
    /// The code of the row whose details are open.
    code: Option<Code>,
    /// Why the scheduler's events could not be switched on.
    refused: Option<String>,
    has_stopped: bool,
}

impl Engine {
    pub(super) fn new(live: Live, around: Around) -> Self {
        let (now, around_now) = (Snapshot::default(), AroundNow::default());
        Self { live, around, now, around_now, code: None, refused: None, has_stopped: false }
    }

    /// What is known now, as far as the model shows it.
    pub(super) fn look(&mut self, state: &State) -> (&Snapshot, &AroundNow) {
        let needs = state.needs_scheduling();
        // What was refused is tried again when the view is shown anew.
        if !self.has_stopped && (!needs || self.refused.is_none()) {
            self.refused = self.live.schedule(needs).err().map(|error| error.to_string());
        }
        let by = if state.is_frozen { ALL.to_vec() } else { state.lines() };
        self.now = self.live.snapshot(&by);
        let is = |kind: By| state.view == View::Processes && state.kind() == Kind::By(kind);
        self.around.watch_cells(&if is(By::Cell) { cells(&self.now) } else { BTreeMap::new() });
        let (cgroups, cells) = (state.is_frozen || is(By::Cgroup), state.is_frozen || is(By::Cell));
        let lines = |by: By, is_wanted: bool| {
            let lines = self.now.accesses.iter().filter(move |lines| is_wanted && lines.by == by);
            lines.flat_map(|lines| &lines.lines)
        };
        let named = lines(By::Cgroup, cgroups).map(|line| line.cgroup.as_deref().unwrap_or(&line.name));
        // A cell has the cgroups of its threads.
        let of_cells = lines(By::Thread, cells).filter(|line| line.subcell.is_some());
        let paths: BTreeSet<&str> = named.chain(of_cells.filter_map(|line| line.cgroup.as_deref())).collect();
        self.around_now = self.around.look(paths.into_iter());
        (&self.now, &self.around_now)
    }

    /// What was known at the last look.
    pub(super) fn known(&self) -> (&Snapshot, &AroundNow) {
        (&self.now, &self.around_now)
    }

    /// Ends sampling; what was found stays.
    pub(super) fn stop_sampling(&mut self) {
        if !self.has_stopped {
            self.live.stop();
            self.has_stopped = true;
        }
    }

    /// Ends all of it.
    pub(super) fn stop(&mut self) {
        self.stop_sampling();
        self.around.watch_cells(&BTreeMap::new());
    }

    pub(super) fn source(&self) -> Option<Source> {
        self.live.source()
    }

    /// Why the scheduler's events could not be switched on.
    pub(super) fn refused(&self) -> Option<String> {
        self.refused.clone()
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        self.live.outcome()
    }

    /// Does what a key asks for beside the model; what to say of it.
    pub(super) fn act(&mut self, state: &mut State, action: Action) -> Option<String> {
        match action {
            Action::SetInterval(interval) => {
                self.live.set_interval(interval);
                Some(format!("every {} s", interval.as_secs_f64()))
            }
            Action::Write(path, replace) => {
                let text = self.configuration();
                Some(told(state, Asked::Write, &path, text.and_then(|text| write(&path, &text, Readers::All, replace))))
            }
            Action::Report(path, replace) => {
                let text = self.report(&path);
                Some(told(
                    state,
                    Asked::Report,
                    &path,
                    text.and_then(|text| write(&path, &text, Readers::Owner, replace)),
                ))
            }
            Action::Stacks(key) => match self.code.take() {
                Some(code) if code.key == key => None,
                _ => self.sample_code(&key).err().map(|error| format!("{error:#}")),
            },
            Action::Load(None) => {
                let unloaded = self.live.load(None);
                Some(unloaded.map_or_else(|error| error.to_string(), |()| "no configuration is loaded".to_owned()))
            }
            Action::Load(Some(path)) => Some(match self.load(&path) {
                Ok(()) => format!("loaded {}", path.display()),
                Err(error) => format!("{error:#}"),
            }),
            _ => None,
        }
    }

    /// Samples the code of a thread or process.
    fn sample_code(&mut self, key: &str) -> Result<()> {
        let lines = self.now.accesses.iter().flat_map(|lines| &lines.lines);
        let line = lines.into_iter().find(|line| key_of_accesses(line) == key).context("it is gone")?;
        let pid = line.pid.context("its process is not known")?;
        self.code = Some(Code::sample(key, pid, line.tid)?);
        Ok(())
    }

    /// Gives the model the code of the row whose details are open; that of another one is sampled no more.
    fn show_code(&mut self, state: &mut State, width: usize) {
        let is_open = |code: &Code| matches!(&state.over, Over::Details(key, _) if *key == code.key);
        self.code = self.code.take().filter(is_open);
        state.code = self.code.as_ref().map(|code| code.table(width));
    }

    fn load(&self, path: &Path) -> Result<()> {
        let text =
            input::configuration_text("", path).map_err(|failure| anyhow!("{}", failure.sentence().trim_start()))?;
        let name = path.display().to_string();
        self.live.load(Some((name, text))).with_context(|| path.display().to_string())
    }

    /// The configuration of what was sampled so far.
    fn configuration(&self) -> Result<String> {
        let sharing = self.now.sharing.as_ref().context("nothing was decided yet: wait for the first groups")?;
        let reason = || sharing.interval.reason.clone().unwrap_or_else(|| "nothing was found to configure".to_owned());
        sharing.configuration.clone().ok_or_else(|| anyhow!("there is no configuration: {}", reason()))
    }

    /// The report of the last window, for a name that ends in `.html` as a page; for `.jsonl` the last accesses.
    fn report(&self, path: &Path) -> Result<String> {
        let is = |wanted: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted));
        if is("jsonl") {
            let mut lines = Vec::new();
            self.live.write_accesses(&mut lines)?;
            return Ok(String::from_utf8(lines)?);
        }
        let sharing = self.now.sharing.as_ref();
        let report = sharing.and_then(|sharing| sharing.report.as_ref());
        let report = report.context("there is no report yet: wait for the first groups")?;
        if is("html") {
            return Ok(html::page(report)?);
        }
        Ok(report.to_json()?)
    }
}

/// Waits until the time is over, the command has ended or a signal came.
pub(super) fn wait(limit: Option<Duration>, mut command: Option<&mut Running>, signals: &Signals) {
    let begin = Instant::now();
    loop {
        if signals.seen() || command.as_mut().is_some_and(|command| command.has_ended()) {
            return;
        }
        let left = limit.map_or(NAP, |limit| limit.saturating_sub(begin.elapsed()));
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(NAP));
    }
}

/// The threads of each cell that have accesses.
fn cells(now: &Snapshot) -> BTreeMap<String, Vec<u32>> {
    let mut cells: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for line in now.accesses.iter().filter(|lines| lines.by == By::Thread).flat_map(|lines| &lines.lines) {
        if let (Some(cell), Some(tid)) = (&line.subcell, line.tid) {
            cells.entry(cell.clone()).or_default().push(tid);
        }
    }
    cells
}

/// True if the file was written, false if it exists and is not to be replaced.
fn write(path: &Path, text: &str, readers: Readers, replace: Replace) -> Result<bool> {
    if is_stdout(Some(path)) {
        bail!("name a file: stdout is the screen");
    }
    if replace == Replace::No && path.symlink_metadata().is_ok() {
        return Ok(false);
    }
    let output = Output::open(Some(path), readers)?;
    if output.may_wait() {
        bail!("{} is no file", path.display());
    }
    output.write(text.as_bytes(), false)?;
    Ok(true)
}

/// What is said of a file that was to be written; one that exists is asked about.
fn told(state: &mut State, asked: Asked, path: &Path, written: Result<bool>) -> String {
    match written {
        Ok(true) => format!("wrote {}", path.display()),
        Ok(false) => {
            state.prompt = Some(Prompt { asked, text: path.display().to_string(), replaces: true });
            String::new()
        }
        Err(error) => format!("{error:#}"),
    }
}

/// Shows the host until the user or a signal ends it, or the time is over.
pub(super) fn watch(
    mut state: State,
    engine: &mut Engine,
    theme: Theme,
    limit: Option<Duration>,
    mut command: Option<&mut Running>,
    signals: &Signals,
) -> Done {
    signals::at_exit(terminal::leave);
    let mut screen = Screen::enter().map_err(Failure::Usage)?;
    let failed = |error: anyhow::Error| Failure::NoResult(error.context("the terminal"));
    let begin = Instant::now();
    let mut due = begin;
    let mut shown = Shown::default();
    // The picture that is on the screen is not of the model.
    let mut is_stale = true;
    let mut is_typing = false;
    while !signals.seen() && limit.is_none_or(|limit| begin.elapsed() < limit) {
        if screen.is_anew().map_err(failed)? {
            is_stale = true;
        }
        if !terminal::is_ours() {
            return Err(Failure::NoResult(anyhow!("a part of scxprof died; what it said is above")));
        }
        if command.as_mut().is_some_and(|command| command.has_ended()) {
            command = None;
            state.message = Some("the command has ended; q ends scxprof".to_owned());
            is_stale = true;
        }
        if Instant::now() >= due {
            due = Instant::now() + state.interval;
            if !state.is_frozen {
                engine.look(&state);
                state.refused.clone_from(&engine.refused);
                is_stale = true;
            }
        }
        if is_stale {
            let width = screen.terminal().size().map_or(80, |size| size.width);
            engine.show_code(&mut state, width.into());
            let (now, around) = engine.known();
            let mut page: Option<Page> = None;
            let drawn = screen.terminal().draw(|frame| page = Some(draw(frame, theme, &state, now, around)));
            drawn.map_err(|error| failed(error.into()))?;
            shown = page.map(|page| page.shown).unwrap_or_default();
            is_stale = false;
        }
        // Keys that were read already are taken at once.
        let nap = if is_typing { Duration::ZERO } else { due.saturating_duration_since(Instant::now()).min(NAP) };
        if !terminal::wait(nap).map_err(failed)? {
            return Ok(());
        }
        is_typing = event::poll(Duration::ZERO).map_err(|error| failed(error.into()))?;
        if !is_typing {
            continue;
        }
        for _ in 0..MAX_KEYS {
            is_stale = true;
            let event = event::read().map_err(|error| failed(error.into()))?;
            let key = match event {
                Event::Key(event) if event.kind != KeyEventKind::Release => Key::of(event),
                _ => None,
            };
            let Some(key) = key else { break };
            let was_frozen = state.is_frozen;
            match press(&mut state, key, &shown) {
                Action::Quit => return Ok(()),
                Action::Suspend => screen.suspend().map_err(failed)?,
                Action::Redraw => screen.terminal().clear().map_err(|error| failed(error.into()))?,
                // A frozen picture has all that can be looked at.
                Action::Refresh if state.is_frozen && !was_frozen => {
                    engine.look(&state);
                    state.refused.clone_from(&engine.refused);
                }
                Action::Refresh => due = Instant::now(),
                action => {
                    let message = engine.act(&mut state, action);
                    state.message = message.filter(|message| !message.is_empty());
                }
            }
            // What the next key means depends on the picture.
            if !event::poll(Duration::ZERO).map_err(|error| failed(error.into()))? || state.prompt.is_none() {
                break;
            }
        }
    }
    Ok(())
}
