//! Which code a group, process or thread runs: its call stacks, sampled while its details are open and the user asks for it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context, Result};
use scxprof_base::columns::{fitted, Column};

use super::sched_views;
use super::state::{Kind, State, View};
use super::views;
use crate::host::priority;
use crate::session::{default_event, parse_event, By, HostOptions, Profiler, Roots, Snapshot, Whose};
use crate::stacks::{self, StackProfile, Thread};

/// How often it is looked at what was sampled: naming code takes its time.
const EVERY: Duration = Duration::from_secs(1);
/// How often the end is looked for.
const NAP: Duration = Duration::from_millis(50);
/// Functions that are shown.
const SHOWN: usize = 40;

/// Whose samples count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Members {
    /// Those of a process with all its threads, without its descendants.
    Process(u32),
    /// Those of these threads, each with its process.
    Threads(BTreeSet<(u32, u32)>),
}

impl Members {
    /// The processes that are sampled.
    fn pids(&self) -> Vec<u32> {
        let pids: BTreeSet<u32> = match self {
            Self::Process(pid) => [*pid].into(),
            Self::Threads(threads) => threads.iter().map(|(pid, _)| *pid).collect(),
        };
        pids.into_iter().collect()
    }

    /// A session of a process has its descendants too, which do not count.
    pub(super) fn has(&self, thread: &Thread) -> bool {
        match self {
            Self::Process(pid) => thread.pid == *pid,
            Self::Threads(threads) => threads.contains(&(thread.pid, thread.tid)),
        }
    }
}

/// Whose code is that of the row with this key.
///
/// # Errors
/// The row is gone, or its process is not known.
pub(super) fn members(state: &State, key: &str, now: &Snapshot) -> Result<Members> {
    let (pid, tid) = match (state.view, state.kind()) {
        (View::Groups, _) => {
            let report = views::report(now).context("it is gone")?;
            let found = report.groups().find(|(cell, group)| cell.path_of(group) == key);
            let (_, group) = found.context("it is gone")?;
            let threads: BTreeSet<_> = group.threads.iter().map(|thread| (thread.pid, thread.tid)).collect();
            if threads.is_empty() {
                bail!("it has no threads");
            }
            return Ok(Members::Threads(threads));
        }
        (View::Scheduling, Kind::By(by)) => {
            let lines = now.scheduling.iter().flat_map(|scheduling| &scheduling.lines).filter(|lines| lines.by == by);
            let mut lines = lines.flat_map(|lines| lines.window.iter().chain(&lines.total));
            let line = lines.find(|line| sched_views::key_of(line) == key).context("it is gone")?;
            (line.pid, line.tid)
        }
        (_, Kind::By(by)) => {
            let mut lines = now.accesses.iter().filter(|lines| lines.by == by).flat_map(|lines| &lines.lines);
            let line = lines.find(|line| views::key_of_accesses(line) == key).context("it is gone")?;
            (line.pid, line.tid.filter(|_| by == By::Thread))
        }
        _ => bail!("it has no code"),
    };
    let pid = pid.context("its process is not known")?;
    Ok(tid.map_or(Members::Process(pid), |tid| Members::Threads([(pid, tid)].into())))
}

/// What was found so far.
#[derive(Debug, Default)]
enum Found {
    /// The session is being started.
    #[default]
    Nothing,
    /// It could not be started.
    Failed(String),
    /// The functions, since then.
    Functions(Instant, Vec<stacks::SymbolLine>),
}

/// The code of a group, process or thread.
#[derive(Debug)]
pub(super) struct Code {
    /// The row that it is about.
    pub(super) key: String,
    found: Arc<Mutex<Found>>,
    is_over: Arc<AtomicBool>,
}

impl Code {
    /// Samples the CPU time of these in a thread of its own, until this is dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn sample(key: &str, members: Members) -> Result<Self> {
        let (found, is_over) = (Arc::<Mutex<Found>>::default(), Arc::new(AtomicBool::new(false)));
        let (of_thread, end) = (Arc::clone(&found), Arc::clone(&is_over));
        let put = move |now: Found| *of_thread.lock().unwrap_or_else(PoisonError::into_inner) = now;
        let follow = move || match started(&members) {
            Err(error) => put(Found::Failed(format!("{error:#}"))),
            Ok(mut profiler) => {
                let begin = Instant::now();
                while !end.load(Ordering::Relaxed) {
                    put(Found::Functions(begin, functions(&profiler.results(), &members)));
                    for _ in 0..EVERY.as_millis() / NAP.as_millis() {
                        if !end.load(Ordering::Relaxed) {
                            std::thread::sleep(NAP);
                        }
                    }
                }
                profiler.stop();
            }
        };
        // Naming the code of a large program may take long: the end is not waited for.
        drop(priority::spawn("code", follow)?);
        Ok(Self { key: key.to_owned(), found, is_over })
    }

    /// The time since it is sampled, and the functions with most samples as a table.
    pub(super) fn text(&self, width: usize) -> String {
        match &*self.found.lock().unwrap_or_else(PoisonError::into_inner) {
            Found::Nothing => "CODE THAT RUNS\nthe sampling of call stacks is being started\n".to_owned(),
            Found::Failed(error) => format!("CODE THAT RUNS\n{error}\n"),
            Found::Functions(begin, lines) => {
                format!("CODE THAT RUNS, since p {} s ago\n{}", begin.elapsed().as_secs(), table(lines, width))
            }
        }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Starts a session of call stacks.
fn started(members: &Members) -> Result<Profiler> {
    let roots = Roots::default();
    let event = parse_event(default_event(&roots), None, &roots)?;
    let host = HostOptions { whose: Whose::Pids(members.pids()), ..HostOptions::default() };
    let mut profiler = Profiler::new();
    profiler.start(event, None, |builder| builder.host(host)).map_err(|error| anyhow!("call stacks: {error}"))?;
    Ok(profiler)
}

/// The functions of these threads.
fn functions(profile: &StackProfile, members: &Members) -> Vec<stacks::SymbolLine> {
    let mut lines = stacks::symbols(profile, &|thread| members.has(thread));
    lines.truncate(SHOWN);
    lines
}

fn table(lines: &[stacks::SymbolLine], width: usize) -> String {
    if lines.is_empty() {
        return "no call stack was sampled yet\n".to_owned();
    }
    let head = ["FUNCTION", "SELF%", "TOTAL%", "SOURCE OR FILE"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(lines.iter().map(|line| {
        let file = line.module.rsplit('/').next().unwrap_or_default().to_owned();
        let place = line.source.clone().unwrap_or(file);
        [line.symbol.clone(), format!("{:.1}", line.self_percent), format!("{:.1}", line.total_percent), place]
    }));
    fitted(&rows, &[Column::name(0).at_least(24), Column::number(0), Column::number(1), Column::name(2)], Some(width))
}
