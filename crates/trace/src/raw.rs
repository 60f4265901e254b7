//! Events as they are decoded, and the numbers of threads and CPUs in them.

use super::event::{TraceEvent, TraceWhat};
use super::slices::TrackEvent;
use scxprof_base::sample::sched::{SchedTask, SchedWhat, TaskState, WakenBy};

/// CPU numbers from here on are not followed.
pub(super) const MAX_CPUS: u32 = 1 << 16;

/// What is decoded, before it is known what ran on the CPU and what else happened at the time.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Raw {
    /// A scheduling event, caused by the thread `tid`.
    Sched { cpu: u32, tid: u32, what: SchedWhat },
    /// A switch that does not say from which thread.
    SwitchTo { cpu: u32, state: TaskState, next: SchedTask },
    /// A wakeup that does not say by whom.
    WokenOn { cpu: u32, task: SchedTask, target_cpu: u32, by: WakenBy },
    /// Another event. These and the events of tracks are boxed, because they are larger than the others, of which many may be kept.
    Trace(Box<TraceEvent>),
    /// An event of a track.
    Track(Box<TrackEvent>),
}

impl Raw {
    /// An event of ftrace.
    pub(super) fn of(cpu: u32, tid: u32, typed: Typed) -> Self {
        match typed {
            Typed::Sched(what) => Self::Sched { cpu, tid, what },
            Typed::Trace(what) => Self::other(cpu, tid, what),
        }
    }

    /// An event that does not come from the scheduler.
    pub(super) fn other(cpu: u32, tid: u32, what: TraceWhat) -> Self {
        Self::Trace(Box::new(TraceEvent { time: 0, cpu, pid: TraceEvent::UNKNOWN, tid, what }))
    }
}

/// Ids below 0 are idle tasks in some traces.
pub(super) fn idle(tid: u32) -> u32 {
    if (tid as i32) < 0 {
        0
    } else {
        tid
    }
}

/// A thread id of the trace: 0 for one below 0, `None` for one that no kernel gives.
#[inline]
pub(super) fn thread(number: u64) -> Option<u32> {
    if let Ok(tid) = i32::try_from(number) {
        return Some(tid.cast_unsigned());
    }
    match i64::try_from(number).ok().and_then(|tid| u32::try_from(tid).ok()) {
        // -1 as an unsigned number.
        Some(u32::MAX) => Some(0),
        Some(tid) => i32::try_from(tid).is_ok().then_some(tid),
        None => (number > i64::MAX as u64).then_some(0),
    }
}

/// What an event is.
#[derive(Debug)]
pub(super) enum Typed {
    Sched(SchedWhat),
    Trace(TraceWhat),
}

/// Bytes that the allocator takes for itself with each piece of memory.
pub(super) const ALLOCATED: usize = 16;

/// Bytes that an event takes beside its own.
pub(super) fn bytes_beside(raw: &Raw) -> usize {
    match raw {
        Raw::Track(event) => ALLOCATED + size_of_val(&**event) + ALLOCATED + size_of_val(&*event.args.0),
        Raw::Trace(event) => ALLOCATED + size_of_val(&**event) + ALLOCATED,
        _ => 0,
    }
}
