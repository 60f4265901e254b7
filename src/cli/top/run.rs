//! The capture that is shown, and the loop of keys and frames.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, Result};
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::super::command::Running;
use super::super::failure::{Done, Failure};
use super::super::signals::{self, Signals};
use super::draw::{draw, Theme};
use super::files;
use super::keys::{press, Action, Key, Shown};
use super::page::Page;
use super::stacks::{members, Code};
use super::state::{Asked, Kind, Prompt, State, View};
use super::terminal::{self, Screen};
use super::worker::{Answer, Worker};
use crate::sample::Source;
use crate::session::{Around, AroundNow, By, Live, Outcome, Snapshot};

/// How often signals, keys and the command are looked at, at least.
const NAP: Duration = Duration::from_millis(100);
/// Keys that are taken between two frames.
const MAX_KEYS: usize = 256;
/// How long the end waits for what is under way: longer than it takes where no mount is dead.
const LAST: Duration = Duration::from_secs(2);
/// What the worker does for a view: it need not be finished at the end.
const OPENING: &str = "opening the scheduling events";
const CLOSING: &str = "closing the scheduling events";
/// All that a view can be about, for a frozen one.
const ALL: [By; 6] = [By::Thread, By::Process, By::Cgroup, By::Cell, By::Cpu, By::Llc];

/// The capture, and what was last known.
#[derive(Debug)]
pub(super) struct Engine {
    live: Arc<Live>,
    around: Around,
    now: Snapshot,
    around_now: AroundNow,
    /// The code of the row whose details are open.
    code: Option<Code>,
    pub(super) worker: Worker,
    /// The scheduling events as they were last switched, which may have been refused.
    is_on: bool,
    is_switching: bool,
    /// Why the scheduler's events could not be switched on.
    refused: Option<String>,
    has_stopped: bool,
}

impl Engine {
    /// # Errors
    /// The thread of what may take long cannot be started.
    pub(super) fn new(live: Live, around: Around) -> std::io::Result<Self> {
        Ok(Self {
            live: Arc::new(live),
            around,
            now: Snapshot::default(),
            around_now: AroundNow::default(),
            code: None,
            worker: Worker::start()?,
            is_on: false,
            is_switching: false,
            refused: None,
            has_stopped: false,
        })
    }

    /// Switches the scheduling events on and waits for that.
    pub(super) fn switch_on(&mut self) {
        self.is_on = true;
        self.refused = self.live.schedule(true).err().map(|error| error.to_string());
    }

    /// Lets the worker switch the scheduling events. What was refused is tried again when the view is shown anew.
    fn switch(&mut self, needs: bool) {
        if self.has_stopped || self.is_switching || self.is_on == needs {
            return;
        }
        let does = if needs { OPENING } else { CLOSING };
        let live = Arc::clone(&self.live);
        let switch = move || Answer::Switched(needs, live.schedule(needs).err().map(|error| error.to_string()));
        // What is under way is over some time, and then it is tried again.
        self.is_switching = self.worker.give(does.to_owned(), switch).is_ok();
    }

    /// What the model can show now.
    pub(super) fn look(&mut self, state: &State) -> (&Snapshot, &AroundNow) {
        self.switch(state.needs_scheduling());
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

    /// Ends all of it. Waits for a short time for what is under way.
    ///
    /// # Errors
    /// What is not done, and the first that failed since the last answer was shown.
    pub(super) fn stop(&mut self) -> Result<()> {
        let begin = Instant::now();
        let mut ended = Ok(());
        while let Some(answer) = self.worker.answer(LAST.saturating_sub(begin.elapsed())) {
            let failed = match answer {
                Answer::Said(said) => said.map(drop),
                Answer::Exists(_, path) => Err(anyhow!("{} exists: it was not replaced", path.display())),
                Answer::Switched(..) => Ok(()),
            };
            ended = ended.and(failed);
        }
        if let Some(does) = self.worker.left().find(|does| ![OPENING, CLOSING].contains(does)) {
            ended = ended.and(Err(anyhow!("{does}: it was not done at the end")));
        }
        self.stop_sampling();
        self.around.watch_cells(&BTreeMap::new());
        ended
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

    /// Does what a key asks for beside the model, or lets the worker do it.
    pub(super) fn act(&mut self, state: &mut State, action: Action) {
        let said = match action {
            Action::SetInterval(interval) => {
                self.live.set_interval(interval);
                Ok(Some(format!("every {} s", interval.as_secs_f64())))
            }
            Action::Write(path, replace) => {
                let (does, sharing) = (format!("writing {}", path.display()), self.now.sharing.clone());
                let write =
                    move || files::write(Asked::Write, &path, files::configuration(sharing.as_deref()), replace);
                self.worker.give(does, write).map(|()| None)
            }
            Action::Report(path, replace) => {
                let (does, sharing) = (format!("writing {}", path.display()), self.now.sharing.clone());
                let live = Arc::clone(&self.live);
                let write = move || {
                    let text = files::report(&live, sharing.as_deref(), &path);
                    files::write(Asked::Report, &path, text, replace)
                };
                self.worker.give(does, write).map(|()| None)
            }
            Action::Load(path) => {
                let does =
                    path.as_ref().map_or_else(|| "unloading".to_owned(), |it| format!("reading {}", it.display()));
                let live = Arc::clone(&self.live);
                let load = move || Answer::Said(files::load(&live, path.as_deref()));
                self.worker.give(does, load).map(|()| None)
            }
            Action::Stacks(key) => match self.code.take() {
                Some(code) if code.key == key => Ok(None),
                _ => members(state, &key, &self.now).and_then(|members| {
                    self.code = Some(Code::sample(&key, members)?);
                    Ok(None)
                }),
            },
            _ => Ok(None),
        };
        state.message = said.unwrap_or_else(|error| Some(format!("{error:#}")));
        self.tell(state);
    }

    /// Gives the model what the worker has done, and what it does; an answer is waited for so long. True if the model has changed.
    pub(super) fn answers(&mut self, state: &mut State, limit: Duration) -> bool {
        let before = state.under_way.clone();
        let mut has_answer = false;
        while let Some(answer) = self.worker.answer(limit) {
            has_answer = true;
            match answer {
                Answer::Said(said) => state.message = Some(said.unwrap_or_else(|error| format!("{error:#}"))),
                // The user may type something else now.
                Answer::Exists(_, path) if state.prompt.is_some() => {
                    state.message = Some(format!("{} exists: it was not replaced", path.display()));
                }
                Answer::Exists(asked, path) => {
                    state.prompt = Some(Prompt { asked, text: path.display().to_string(), replaces: true });
                }
                Answer::Switched(is_on, refused) => {
                    (self.is_switching, self.is_on) = (false, is_on);
                    self.refused = refused.filter(|_| is_on);
                }
            }
        }
        self.tell(state);
        has_answer || before != state.under_way
    }

    /// Gives the model what is under way, and what was refused.
    fn tell(&self, state: &mut State) {
        state.under_way = self.worker.under_way().map(ToOwned::to_owned);
        state.refused.clone_from(&self.refused);
    }

    /// Gives the model the code of the row whose details are open; that of another one is sampled no more.
    fn show_code(&mut self, state: &mut State, width: usize) {
        let open = state.over.details();
        self.code = self.code.take().filter(|code| open == Some(code.key.as_str()));
        state.code = self.code.as_ref().map(|code| code.text(width));
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
                is_stale = true;
            }
        }
        is_stale |= engine.answers(&mut state, Duration::ZERO);
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
                }
                Action::Refresh => due = Instant::now(),
                action => engine.act(&mut state, action),
            }
            // What the next key means depends on the picture.
            if !event::poll(Duration::ZERO).map_err(|error| failed(error.into()))? || state.prompt.is_none() {
                break;
            }
        }
    }
    Ok(())
}
