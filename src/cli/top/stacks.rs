//! Which code a process runs: its call stacks, sampled while its details are open and the user asks for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{anyhow, Result};
use scxprof_base::columns::{fitted, Column};

use crate::host::priority;
use crate::session::{default_event, parse_event, HostOptions, Profiler, Roots, Whose};
use crate::stacks::{self, StackProfile};

/// How often it is looked at what was sampled: naming code takes its time.
const EVERY: Duration = Duration::from_secs(1);
/// How often the end is looked for.
const NAP: Duration = Duration::from_millis(50);
/// Functions that are shown.
const SHOWN: usize = 40;

/// The code of a process.
#[derive(Debug)]
pub(super) struct Code {
    /// The row that it is about.
    pub(super) key: String,
    found: Arc<Mutex<Vec<stacks::SymbolLine>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Code {
    /// Samples the CPU time of a process, or of one thread of it, until this is dropped.
    pub(super) fn sample(key: &str, pid: u32, tid: Option<u32>) -> Result<Self> {
        let roots = Roots::default();
        let event = parse_event(default_event(&roots), None, &roots)?;
        let host = HostOptions { whose: Whose::Pids(vec![pid]), ..HostOptions::default() };
        let mut profiler = Profiler::new();
        profiler.start(event, None, |builder| builder.host(host)).map_err(|error| anyhow!("call stacks: {error}"))?;
        let (found, is_over) = (Arc::<Mutex<Vec<_>>>::default(), Arc::new(AtomicBool::new(false)));
        let (of_thread, end) = (Arc::clone(&found), Arc::clone(&is_over));
        let follow = move || {
            while !end.load(Ordering::Relaxed) {
                let lines = functions(&profiler.results(), tid);
                *of_thread.lock().unwrap_or_else(PoisonError::into_inner) = lines;
                for _ in 0..EVERY.as_millis() / NAP.as_millis() {
                    if !end.load(Ordering::Relaxed) {
                        std::thread::sleep(NAP);
                    }
                }
            }
            profiler.stop();
        };
        let thread = priority::spawn("code", follow)?;
        Ok(Self { key: key.to_owned(), found, is_over, thread: Some(thread) })
    }

    /// The functions with most samples as a table, the first line of which is its head.
    pub(super) fn table(&self, width: usize) -> String {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        table(&found, width)
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Naming the code of a large program may take long: it is not waited for.
        drop(self.thread.take());
    }
}

/// The functions of a thread, or of all.
fn functions(profile: &StackProfile, tid: Option<u32>) -> Vec<stacks::SymbolLine> {
    let mut lines = stacks::symbols(profile, &|thread| tid.is_none_or(|tid| thread.tid == tid));
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
