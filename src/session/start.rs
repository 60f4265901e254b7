//! Starts a session with the first source that works, so that every thread of the processes that were asked for is watched.

use std::fs;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::{Options, Session, SessionError};
use crate::resolve::Roots;
use crate::sample::Source;
use crate::sampler::{SamplerError, Target};

/// How often the threads of processes are listed again while events are opened for them.
const TRIES: usize = 5;

/// Starts one session, such as [`Session::start`], or one that is recorded.
pub type Open<'a> = &'a mut dyn FnMut(&Options) -> Result<Session, SessionError>;

/// Sources that do not work here, and why.
pub type Skipped = Vec<(Source, SamplerError)>;

/// No source could begin.
#[derive(Debug, Error)]
#[error("source {source_name}: {error}")]
#[non_exhaustive]
pub struct NotStarted {
    /// The last that was tried.
    pub source_name: Source,
    /// Why it could not.
    pub error: SessionError,
    /// Those before it.
    pub skipped: Skipped,
}

/// There is no such process.
#[derive(Debug, Error)]
#[error("{pid}: no such process ({}: {source})", path.display())]
#[non_exhaustive]
pub struct NoProcess {
    /// Its id.
    pub pid: u32,
    /// Where its threads would be listed.
    pub path: PathBuf,
    /// The errno and its text.
    pub source: io::Error,
}

/// The threads of processes, which must all exist.
///
/// # Errors
/// The first that does not.
pub fn threads_of(pids: &[u32], roots: &Roots) -> Result<Vec<u32>, NoProcess> {
    let mut tids = Vec::new();
    for &pid in pids {
        let path = roots.proc.join(pid.to_string()).join("task");
        let tasks = fs::read_dir(&path).map_err(|source| NoProcess { pid, path: path.clone(), source })?;
        tids.extend(tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok()));
    }
    Ok(tids)
}

/// Starts with the first of `sources` that works here, which is in `options` then; gives also those that do not.
/// Where the target is the threads of `pids`, those made meanwhile are found.
///
/// # Errors
/// [`NotStarted`]: the last source does not work here, or one fails for another reason than that.
pub fn start_first(
    options: &mut Options,
    sources: &[Source],
    pids: &[u32],
    open: Open<'_>,
) -> Result<(Session, Skipped), NotStarted> {
    let mut skipped = Skipped::new();
    let mut rest = sources.iter().copied().peekable();
    loop {
        // Without any source the one in the options is the only one.
        let source_name = rest.next().unwrap_or(options.sampler.source);
        options.sampler.source = source_name;
        match start(options, pids, open) {
            Ok(session) => return Ok((session, skipped)),
            Err(SessionError::Sampler(error)) if error.is_unsupported() && rest.peek().is_some() => {
                skipped.push((source_name, error));
            }
            Err(error) => return Err(NotStarted { source_name, error, skipped }),
        }
    }
}

/// Threads that were made while the events were opened, by threads without an event yet, are found by listing them again.
fn start(options: &mut Options, pids: &[u32], open: Open<'_>) -> Result<Session, SessionError> {
    let mut session = open(options)?;
    for _ in 0..TRIES {
        let Target::Tasks { tids, enable_on_exec: false } = &mut options.sampler.target else { return Ok(session) };
        // A process that has ended meanwhile was watched to its end.
        let Ok(now) = threads_of(pids, &options.roots) else { return Ok(session) };
        if now.iter().all(|tid| tids.contains(tid)) {
            return Ok(session);
        }
        *tids = now;
        drop(session);
        session = open(options)?;
    }
    session.notes.push("threads are made so fast that some may not be watched".to_owned());
    Ok(session)
}
