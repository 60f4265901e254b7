//! The lines that the plugin and the guest's driver wrote: one JSON object each.

use std::collections::BTreeMap;

use anyhow::{ensure, Context, Result};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::Value;

/// The first group that belongs to the workload; those before are the idle task, the kernel, the tool and the scheduler.
const FIRST_OF_WORKLOAD: u32 = 4;
/// The arms in the order in which they are shown; others come after them.
pub const ARMS: [&str; 6] = ["none", "name", "scxprof", "best", "each", "crossed"];

/// What was counted of the workload between BEGIN and END.
#[derive(Debug, Clone, Default)]
pub struct Round {
    pub instructions: f64,
    pub units: f64,
    /// Last-level misses by cause.
    pub written: f64,
    pub capacity: f64,
    pub first: f64,
    pub transfers: f64,
    /// Those of the misses that are by kernel code.
    pub kernel: f64,
    /// Migrations to a CPU of another last-level cache.
    pub crossings: f64,
    /// Of the guest's time.
    pub seconds: f64,
}

impl Round {
    /// Last-level misses per unit of work.
    pub fn misses(&self) -> f64 {
        (self.written + self.capacity + self.first) / self.units
    }
}

/// A number with its interval, as far as there is one.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Figure {
    pub mid: f64,
    pub low: Option<f64>,
    pub high: Option<f64>,
}

/// What `scxprof score` says of the arm.
#[derive(Debug, Clone, Default)]
pub struct Prediction {
    pub score: Option<Figure>,
    pub locality: Option<Figure>,
    pub avoidable: Option<f64>,
}

/// A configuration of a scheduler for a workload, and its rounds.
#[derive(Debug, Clone)]
pub struct Arm {
    pub machine: String,
    pub scheduler: String,
    pub workload: String,
    pub name: String,
    pub rounds: BTreeMap<u32, Round>,
    pub prediction: Option<Prediction>,
}

/// How many of a workload's accesses samples would have found, and where its misses were.
#[derive(Debug, Clone, Default)]
pub struct Oracle {
    pub samples: u64,
    pub accesses: u64,
    pub asked: u64,
    pub found: u64,
    pub misses: u64,
    pub seen: u64,
    pub pages: u64,
    /// Of as many accesses that have not happened, those that the plugin's filter has by chance.
    pub by_chance: u64,
}

/// All that was read.
#[derive(Debug, Default)]
pub struct Input {
    pub arms: Vec<Arm>,
    /// By workload, in the order of the files.
    pub oracles: Vec<(String, Oracle)>,
    /// Where rounds began that have no end, or did no work.
    pub unfinished: Vec<String>,
}

#[derive(Deserialize)]
struct Place {
    machine: String,
    scheduler: String,
    workload: String,
    arm: String,
}

#[derive(Deserialize)]
struct Begin {
    #[serde(flatten)]
    place: Place,
    round: u32,
}

#[derive(Deserialize)]
struct End {
    seconds: f64,
    crossings: u64,
    /// Where the workload counts its work and not the plugin.
    units: Option<u64>,
    /// A million instructions are a unit.
    #[serde(default)]
    by_instructions: bool,
}

#[derive(Deserialize)]
struct Window {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(rename = "group")]
    number: u32,
    instructions: u64,
    units: u64,
    first: u64,
    capacity: u64,
    written: u64,
    transfers: u64,
    kernel: u64,
}

#[derive(Deserialize)]
struct Predicted {
    #[serde(flatten)]
    place: Place,
    score: Option<Figure>,
    locality: Option<Figure>,
    avoidable: Option<f64>,
}

#[derive(Deserialize)]
struct Asking {
    workload: String,
    samples: u64,
    accesses: u64,
}

#[derive(Deserialize)]
struct Asked {
    asked: u64,
    found: u64,
}

#[derive(Deserialize)]
struct Missed {
    misses: u64,
    seen: u64,
    pages: u64,
}

/// What the plugin is being asked for.
enum Question {
    Oracle(String),
    Control(String),
}

/// A round of which the end was not read yet.
struct Open {
    begin: Begin,
    at: String,
    window: Option<Round>,
}

impl Input {
    /// Reads a file.
    pub fn add(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(bytes).with_context(|| format!("{name} is no text"))?;
        let before = (self.arms.len(), self.oracles.len(), self.unfinished.len());
        let (mut open, mut question) = (None, None);
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let at = format!("{name}, line {}", at + 1);
            self.line(&at, line, &mut open, &mut question).context(at)?;
        }
        self.unfinished.extend(open.map(|open| open.at));
        ensure!(before != (self.arms.len(), self.oracles.len(), self.unfinished.len()), "{name}: no line of a run");
        Ok(())
    }

    fn line(&mut self, at: &str, line: &str, open: &mut Option<Open>, question: &mut Option<Question>) -> Result<()> {
        let value: Value = serde_json::from_str(line).context("no JSON")?;
        if let Some(begin) = value.get("begin") {
            // A guest that ended within a round says nothing of it.
            self.unfinished.extend(open.take().map(|open| open.at));
            *open = Some(Open { begin: read(begin)?, at: at.to_owned(), window: None });
        } else if value.get("window").is_some() {
            let window: Window = read(&value)?;
            // Windows outside of rounds record what the oracle is asked.
            if let Some(open) = open {
                ensure!(open.window.is_none(), "a second window of one round");
                open.window = Some(sum(&window));
            }
        } else if let Some(end) = value.get("end") {
            let end: End = read(end)?;
            let Open { begin, window, at } = open.take().context("the end of a round that has no begin")?;
            let mut round = window.context("the end of a round that has no window")?;
            let counted = if end.by_instructions { round.instructions / 1e6 } else { round.units };
            round.units = end.units.map_or(counted, |units| units as f64);
            round.crossings = end.crossings as f64;
            round.seconds = end.seconds;
            if round.units <= 0.0 || round.seconds <= 0.0 {
                self.unfinished.push(at);
                return Ok(());
            }
            let twice = self.arm(begin.place)?.rounds.insert(begin.round, round);
            ensure!(twice.is_none(), "round {} is there twice", begin.round);
        } else if let Some(prediction) = value.get("prediction") {
            let Predicted { place, score, locality, avoidable } = read(prediction)?;
            let twice = self.arm(place)?.prediction.replace(Prediction { score, locality, avoidable });
            ensure!(twice.is_none(), "the prediction is there twice");
        } else if let Some(asking) = value.get("oracle") {
            let asking: Asking = read(asking)?;
            let of = self.oracle(&asking.workload)?;
            of.samples += asking.samples;
            of.accesses += asking.accesses;
            *question = Some(Question::Oracle(asking.workload));
        } else if let Some(workload) = value.get("control") {
            *question = Some(Question::Control(read(workload)?));
        } else if value.get("asked").is_some() {
            let asked: Asked = read(&value)?;
            ensure!(asked.found <= asked.asked, "more is found than was asked");
            match question.as_ref().context("asked before a line of the oracle")? {
                Question::Oracle(workload) => {
                    let of = self.oracle(workload)?;
                    of.asked += asked.asked;
                    of.found += asked.found;
                }
                Question::Control(workload) => self.oracle(workload)?.by_chance += asked.found,
            }
        } else if value.get("misses").is_some() {
            let missed: Missed = read(&value)?;
            ensure!(missed.seen <= missed.misses, "more misses are seen than there are");
            let (Question::Oracle(workload) | Question::Control(workload)) =
                question.as_ref().context("misses before a line of the oracle")?;
            let of = self.oracle(workload)?;
            of.misses += missed.misses;
            of.seen += missed.seen;
            of.pages += missed.pages;
        } else {
            anyhow::bail!("not a line of a run");
        }
        Ok(())
    }

    fn arm(&mut self, of: Place) -> Result<&mut Arm> {
        for name in [&of.machine, &of.scheduler, &of.workload, &of.arm] {
            check(name)?;
        }
        let is = |arm: &Arm| {
            (&arm.machine, &arm.scheduler, &arm.workload, &arm.name)
                == (&of.machine, &of.scheduler, &of.workload, &of.arm)
        };
        let at = self.arms.iter().position(is).unwrap_or(self.arms.len());
        if at == self.arms.len() {
            let Place { machine, scheduler, workload, arm: name } = of;
            self.arms.push(Arm { machine, scheduler, workload, name, rounds: BTreeMap::new(), prediction: None });
        }
        self.arms.get_mut(at).context("no arm")
    }

    fn oracle(&mut self, workload: &str) -> Result<&mut Oracle> {
        check(workload)?;
        let at = self.oracles.iter().position(|(name, _)| name == workload).unwrap_or(self.oracles.len());
        if at == self.oracles.len() {
            self.oracles.push((workload.to_owned(), Oracle::default()));
        }
        self.oracles.get_mut(at).map(|(_, oracle)| oracle).context("no oracle")
    }

    /// What belongs together stands together, in the order in which it was first run.
    pub fn sort(&mut self) {
        let order = |of: fn(&Arm) -> &str| -> Vec<String> {
            self.arms.iter().fold(Vec::new(), |mut names, arm| {
                if !names.iter().any(|name| name == of(arm)) {
                    names.push(of(arm).to_owned());
                }
                names
            })
        };
        let (machines, schedulers) = (order(|it| &it.machine), order(|it| &it.scheduler));
        let (workloads, names) = (order(|it| &it.workload), order(|it| &it.name));
        let place = |names: &[String], name: &str| names.iter().position(|it| it == name);
        self.arms.sort_by_cached_key(|arm| {
            (
                place(&machines, &arm.machine),
                place(&schedulers, &arm.scheduler),
                place(&workloads, &arm.workload),
                ARMS.iter().position(|name| *name == arm.name).unwrap_or(ARMS.len()),
                place(&names, &arm.name),
            )
        });
    }
}

fn read<T: DeserializeOwned>(value: &Value) -> Result<T> {
    T::deserialize(value).map_err(Into::into)
}

/// The counts of the workload's groups.
fn sum(window: &Window) -> Round {
    let mut round = Round::default();
    for group in window.groups.iter().filter(|group| group.number >= FIRST_OF_WORKLOAD) {
        round.instructions += group.instructions as f64;
        round.units += group.units as f64;
        round.written += group.written as f64;
        round.capacity += group.capacity as f64;
        round.first += group.first as f64;
        round.transfers += group.transfers as f64;
        round.kernel += group.kernel as f64;
    }
    round
}

/// Names go to terminals, tables and SVG as they are.
fn check(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || " ,.:+-_/()".contains(c);
    ensure!(!name.is_empty() && name.len() <= 60 && name.chars().all(is_plain), "the name {name:?} is not plain");
    Ok(())
}
