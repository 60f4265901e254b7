//! Starts a capture with the first source that works, such that every thread of the requested processes is watched.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::kernel::{Capture, CaptureOptions};
use crate::host::namespace::{self, PidNamespace};
use crate::host::{self, priority, proc, tasks, topology, Roots};
use crate::resolve::{Cgroups, SymbolOptions};
use crate::sample::Source;
use crate::sampler::{SamplerError, SamplerOptions, Target};
use crate::session::error::{Error, NoProcess, NotStarted, SessionError, Skipped};
use crate::session::options::{HostOptions, Whose};

/// How often the threads of processes are listed again while their events are opened.
const TRIES: usize = 5;

/// A thread of a process that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Task {
    pid: u32,
    tid: u32,
}

/// The threads of processes, which must all exist, and of their descendants.
///
/// # Errors
/// The first process that does not exist.
fn tasks_of(pids: &[u32], roots: &Roots) -> Result<Vec<Task>, NoProcess> {
    let mut found = Vec::new();
    for pid in tasks::with_descendants(roots, pids) {
        let path = roots.proc.join(pid.to_string()).join("task");
        match fs::read_dir(&path) {
            Ok(threads) => {
                let tids = threads.flatten().filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
                found.extend(tids.map(|tid| Task { pid, tid }));
            }
            Err(source) if pids.contains(&pid) => return Err(NoProcess { pid, path, source }),
            // A descendant that has ended in the meantime.
            Err(_) => {}
        }
    }
    Ok(found)
}

/// A capture of this host that has started.
#[derive(Debug)]
pub(in super::super) struct Started {
    pub(in super::super) capture: Capture,
    pub(in super::super) source: Source,
    pub(in super::super) skipped: Skipped,
    /// Why kernel code is not sampled, if it was requested only where possible.
    pub(in super::super) no_kernel: Option<SamplerError>,
    /// The watched processes, if not the whole host is sampled.
    pub(in super::super) pids: Vec<u32>,
}

/// Starts to sample this host with the first source that works, within `memory` bytes.
///
/// # Errors
/// [`Error`]; then all events are closed.
pub(in super::super) fn start_host(
    mut host: HostOptions,
    roots: &Roots,
    memory: usize,
    symbols: SymbolOptions,
) -> Result<Started, Error> {
    let _raised = host.priority().and_then(|_| priority::raise().ok());
    let child_pid_namespace = match namespace::pid_namespace(roots) {
        PidNamespace::ProcfsElsewhere { ours, .. } => {
            return Err(Error::ProcfsElsewhere { proc: roots.proc.clone(), ours })
        }
        namespace => matches!(namespace, PidNamespace::Child),
    };
    if host.record.is_some() && host.hardware.batched {
        return Err(Error::BatchedRecording);
    }
    if host.sources == [Source::Wakeups] && matches!(host.whose, Whose::Cgroup(_) | Whose::Target(Target::Cgroup(_))) {
        return Err(Error::WakeupsOfCgroup);
    }
    let all_cpus = host.cpus.is_empty();
    let cpus = if all_cpus { topology::online_cpus(roots)? } else { std::mem::take(&mut host.cpus) };
    let mut pids = Vec::new();
    let target = match std::mem::take(&mut host.whose) {
        Whose::Host => Target::System,
        Whose::Target(target) => target,
        Whose::Pids(of) => {
            pids = of;
            let tids = tasks_of(&pids, roots)?.into_iter().map(|task| task.tid).collect();
            Target::Tasks { tids, enable_on_exec: false }
        }
        Whose::Cgroup(path) => Target::Cgroup(Arc::new(open_cgroup(&path, roots)?)),
    };
    let sampler = SamplerOptions {
        source: Source::Faults,
        freq: host.freq,
        target,
        cpus,
        all_cpus,
        mmap_pages: host.mmap_pages,
        workers: host.workers,
        realtime: host.priority(),
        queue: memory / 8,
        features: host.features,
        hardware: host.hardware.clone(),
        sched: host.sched,
        proc: roots.proc.clone(),
        sys: roots.sys.clone(),
        child_pid_namespace,
        raise_open_files: host.raise_open_files,
        stacks: host.stacks.take(),
        snapshots: true,
    };
    let mut sources = std::mem::take(&mut host.sources);
    if host.hardware.kernel && sources.len() > 1 {
        // Faults are always of user code, and a user who requests kernel code must be told that it cannot be sampled.
        sources.retain(|source| *source != Source::Faults);
    }
    let mut options = CaptureOptions { sampler, host, roots: roots.clone(), memory, symbols, only: None };
    let Begun { capture, skipped, no_kernel } = start_first(&mut options, &sources, &pids)?;
    Ok(Started { capture, source: options.sampler.source, skipped, no_kernel, pids })
}

fn open_cgroup(path: &Path, roots: &Roots) -> Result<OwnedFd, Error> {
    let mut cgroups = Cgroups::new(roots)?;
    let dir = cgroups.find(path).map_err(Error::NoCgroup)?.dir;
    let file = File::open(&dir).map_err(|source| Error::NoCgroup(host::Error::Read { path: dir, source }))?;
    Ok(file.into())
}

/// The process of a thread.
fn process_of(tid: u32, roots: &Roots) -> Option<u32> {
    proc::status_id(&roots.proc.join(tid.to_string()), "Tgid")
}

/// A capture, the sources that do not work here, and why it excludes kernel code, if that was requested only where
/// possible.
struct Begun {
    capture: Capture,
    skipped: Skipped,
    no_kernel: Option<SamplerError>,
}

/// Starts with the first of `sources` that works here, and stores it in `options`. If the target is the threads of
/// `pids`, threads created in the meantime are found.
///
/// # Errors
/// [`NotStarted`]: the last source does not work here, or one fails for another reason.
fn start_first(options: &mut CaptureOptions, sources: &[Source], pids: &[u32]) -> Result<Begun, NotStarted> {
    let (mut skipped, mut no_kernel) = (Skipped::new(), None);
    let mut rest = sources.iter().copied().peekable();
    loop {
        // Without a source in the list, use the one in the options.
        let source_name = rest.next().unwrap_or(options.sampler.source);
        options.sampler.source = source_name;
        if source_name == Source::Wakeups {
            // The source's events are those of the whole host.
            if let Target::Tasks { tids, .. } = &options.sampler.target {
                options.only = Some(tids.iter().filter_map(|&tid| process_of(tid, &options.roots)).collect());
                options.sampler.target = Target::System;
            }
        }
        if source_name == Source::Timer && options.host.kernel_if_possible && !options.sampler.hardware.kernel {
            options.sampler.hardware.kernel = true;
            match start(options, pids) {
                Ok(capture) => return Ok(Begun { capture, skipped, no_kernel }),
                Err(SessionError::Sampler(error)) => no_kernel = Some(error),
                Err(error) => return Err(NotStarted { source_name, error, skipped }),
            }
            options.sampler.hardware.kernel = false;
        }
        match start(options, pids) {
            Ok(capture) => return Ok(Begun { capture, skipped, no_kernel }),
            Err(SessionError::Sampler(error)) if error.is_unsupported() && rest.peek().is_some() => {
                skipped.push((source_name, error));
            }
            Err(error) => return Err(NotStarted { source_name, error, skipped }),
        }
    }
}

/// Threads and processes that were created while the events were opened, by threads without an event yet, are found by
/// listing them again. Those that a thread with an event creates later inherit the event.
fn start(options: &mut CaptureOptions, pids: &[u32]) -> Result<Capture, SessionError> {
    let mut capture = Capture::start(options)?;
    for _ in 0..TRIES {
        let Target::Tasks { tids, enable_on_exec: false } = &mut options.sampler.target else { return Ok(capture) };
        // A process that has ended in the meantime was watched to its end.
        let Ok(now) = tasks_of(pids, &options.roots) else { return Ok(capture) };
        let known: FxHashSet<u32> = tids.iter().copied().collect();
        let is_missed = |task: &Task| {
            let began = || tasks::began(&options.roots, task.pid, task.tid);
            !known.contains(&task.tid) && began().is_some_and(|began| began <= capture.opened)
        };
        if !now.iter().any(is_missed) {
            return Ok(capture);
        }
        *tids = now.into_iter().map(|task| task.tid).collect();
        drop(capture);
        capture = Capture::start(options)?;
    }
    capture.note("threads are being created faster than events can be opened; some may be missed".to_owned());
    Ok(capture)
}
