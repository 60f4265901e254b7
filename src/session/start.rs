//! Starts a capture with the first source that works, so that every thread of the requested processes is watched.

use std::fs;

use super::{Capture, CaptureOptions, NoProcess, NotStarted, SessionError, Skipped};
use crate::host::Roots;
use crate::sample::Source;
use crate::sampler::Target;

/// How often the threads of processes are listed again while their events are opened.
const TRIES: usize = 5;

/// The threads of processes, which must all exist.
///
/// # Errors
/// The first process that does not exist.
pub(super) fn threads_of(pids: &[u32], roots: &Roots) -> Result<Vec<u32>, NoProcess> {
    let mut tids = Vec::new();
    for &pid in pids {
        let path = roots.proc.join(pid.to_string()).join("task");
        let tasks = fs::read_dir(&path).map_err(|source| NoProcess { pid, path: path.clone(), source })?;
        tids.extend(tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok()));
    }
    Ok(tids)
}

/// True if processes were requested and none is left.
pub(super) fn all_gone(pids: &[u32], roots: &Roots) -> bool {
    // The state follows the name in parentheses (proc_pid_stat(5)); a zombie runs no more.
    let runs = |pid: &u32| {
        let stat = fs::read(roots.proc.join(pid.to_string()).join("stat")).ok()?;
        let name_end = stat.iter().rposition(|&byte| byte == b')')?;
        stat.get(name_end + 2).filter(|state| !b"ZX".contains(state)).copied()
    };
    !pids.is_empty() && pids.iter().all(|pid| runs(pid).is_none())
}

/// Starts with the first of `sources` that works here, and stores it in `options`; returns also those that do not work. If the
/// target is the threads of `pids`, threads created meanwhile are found.
///
/// # Errors
/// [`NotStarted`]: the last source does not work here, or one fails for another reason.
pub(super) fn start_first(
    options: &mut CaptureOptions,
    sources: &[Source],
    pids: &[u32],
) -> Result<(Capture, Skipped), NotStarted> {
    let mut skipped = Skipped::new();
    let mut rest = sources.iter().copied().peekable();
    loop {
        // Without any source, use the one in the options.
        let source_name = rest.next().unwrap_or(options.sampler.source);
        options.sampler.source = source_name;
        match start(options, pids) {
            Ok(capture) => return Ok((capture, skipped)),
            Err(SessionError::Sampler(error)) if error.is_unsupported() && rest.peek().is_some() => {
                skipped.push((source_name, error));
            }
            Err(error) => return Err(NotStarted { source_name, error, skipped }),
        }
    }
}

/// Threads created while the events were opened, by threads without an event yet, are found by listing them again.
fn start(options: &mut CaptureOptions, pids: &[u32]) -> Result<Capture, SessionError> {
    let mut capture = Capture::start(options)?;
    for _ in 0..TRIES {
        let Target::Tasks { tids, enable_on_exec: false } = &mut options.sampler.target else { return Ok(capture) };
        // A process that has ended meanwhile was watched to its end.
        let Ok(now) = threads_of(pids, &options.roots) else { return Ok(capture) };
        if now.iter().all(|tid| tids.contains(tid)) {
            return Ok(capture);
        }
        *tids = now;
        drop(capture);
        capture = Capture::start(options)?;
    }
    capture.notes.push("threads are made so fast that some may not be watched".to_owned());
    Ok(capture)
}
