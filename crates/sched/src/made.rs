//! Scheduling events for the tests, with the names and numbers that do not matter to them.

use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat, TaskState, WakenBy};
use scxprof_base::sample::Comm;

pub(crate) fn task(tid: u32) -> SchedTask {
    SchedTask { tid, prio: 120, comm: Comm::from(format!("t{tid}").as_str()) }
}

/// On CPU 0, by the thread `tid` of the process 100.
pub(crate) fn event(time: u64, tid: u32, what: SchedWhat) -> SchedEvent {
    SchedEvent { time, cpu: 0, pid: if tid == 0 { 0 } else { 100 }, tid, cgroup: 7, what }
}

pub(crate) fn switch(time: u64, prev: u32, state: TaskState, next: u32) -> SchedEvent {
    event(time, prev, SchedWhat::Switch { prev: task(prev), state, next: task(next) })
}

pub(crate) fn waking(time: u64, waker: u32, wakee: u32) -> SchedEvent {
    event(time, waker, SchedWhat::Waking { task: task(wakee), target_cpu: 0, by: WakenBy::Thread })
}

pub(crate) fn on(cpu: u32, event: SchedEvent) -> SchedEvent {
    SchedEvent { cpu, ..event }
}
