//! Converts the text that the kernel or perf's plugins print for a tracepoint to fields, and back.
//!
//! `sched_switch` and the wakeups have two forms: that of the kernel (`prev_comm=a prev_pid=1 ...`), and that of libtraceevent's plugin
//! (`a:1 [120] S ==> b:2 [120]`). Names may contain anything, so all is read from its end.

use memchr::memmem;

use crate::sample::sched::{SchedTask, SchedWhat, TaskState, WakenBy};
use crate::sample::Comm;

/// The fields of the tracepoint `name`; `None` if it is not supported, and an error if its text cannot be parsed.
pub(crate) fn parse(name: &str, trace: &[u8], by: WakenBy) -> Option<Result<SchedWhat, ()>> {
    let what = match name {
        "sched_switch" => switch(trace),
        "sched_waking" | "sched_wakeup" => {
            woken(trace).map(|(task, target_cpu)| SchedWhat::Waking { task, target_cpu, by })
        }
        "sched_wakeup_new" => woken(trace).map(|(task, target_cpu)| SchedWhat::WakeupNew { task, target_cpu }),
        "sched_migrate_task" => migrate(trace),
        "sched_process_fork" => fork(trace),
        "sched_process_exec" => exec(trace),
        "sched_process_exit" => task(trace).map(|task| SchedWhat::Exit { task }),
        "sched_stat_runtime" => runtime(trace),
        "irq_handler_entry" => first(trace, "irq=").map(|irq| SchedWhat::IrqEntry { irq }),
        "irq_handler_exit" => first(trace, "irq=").map(|irq| SchedWhat::IrqExit { irq }),
        "softirq_entry" => first(trace, "vec=").map(|vec| SchedWhat::SoftirqEntry { vec }),
        "softirq_exit" => first(trace, "vec=").map(|vec| SchedWhat::SoftirqExit { vec }),
        _ => return None,
    };
    Some(what.ok_or(()))
}

/// The text around the last `key`.
fn around<'a>(text: &'a [u8], key: &str) -> Option<(&'a [u8], &'a [u8])> {
    let at = memmem::rfind(text, key.as_bytes())?;
    Some((text.get(..at)?, text.get(at + key.len()..)?))
}

/// The number that the text begins with, which may be -1; other negative ones are none.
fn number(text: &[u8]) -> Option<u64> {
    if text.starts_with(b"-1") {
        return Some(u64::from(u32::MAX));
    }
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    std::str::from_utf8(text.get(..end)?).ok()?.parse().ok()
}

fn id(text: &[u8]) -> Option<u32> {
    u32::try_from(number(text)?).ok()
}

/// The kernel's priority, which is negative for deadlines.
fn prio(text: &[u8]) -> Option<i32> {
    if text.starts_with(b"-1") {
        return Some(-1);
    }
    i32::try_from(number(text)?).ok()
}

/// The number after the first `key`, before which there are no names.
fn first(text: &[u8], key: &str) -> Option<u32> {
    id(text.strip_prefix(key.as_bytes())?)
}

/// `comm=NAME pid=N prio=N`, with what follows it.
fn task(text: &[u8]) -> Option<SchedTask> {
    named_task(text, "")
}

/// The same with a word before each key.
fn named_task(text: &[u8], prefix: &str) -> Option<SchedTask> {
    let (before, after_pid) = around(text, &format!(" {prefix}pid="))?;
    let comm = before.strip_prefix(format!("{prefix}comm=").as_bytes())?;
    // Some tracepoints have no prio.
    let prio = around(after_pid, &format!(" {prefix}prio=")).map_or(Some(0), |it| prio(it.1))?;
    Some(SchedTask { tid: id(after_pid)?, prio, comm: Comm::new(comm) })
}

/// `NAME:PID [PRIO]`, with what follows it.
fn plugin_task(text: &[u8]) -> Option<(SchedTask, &[u8])> {
    let (before, after) = around(text, " [")?;
    let (comm, tid) = around(before, ":")?;
    let end = memchr::memchr(b']', after)?;
    Some((SchedTask { tid: id(tid)?, prio: prio(after)?, comm: Comm::new(comm) }, after.get(end + 1..)?))
}

fn switch(text: &[u8]) -> Option<SchedWhat> {
    if let Some((before, after)) = around(text, " ==> next_comm=") {
        let (prev, state) = around(before, " prev_state=")?;
        let next = [b"next_comm=", after].concat();
        return Some(SchedWhat::Switch {
            prev: named_task(prev, "prev_")?,
            state: state_of(state),
            next: named_task(&next, "next_")?,
        });
    }
    let (before, after) = around(text, " ==> ")?;
    let (prev, state) = plugin_task(before)?;
    Some(SchedWhat::Switch { prev, state: state_of(state.trim_ascii()), next: plugin_task(after)?.0 })
}

/// The letters of a state, such as `R+`, `S`, `D` or `X|Z`.
fn state_of(letters: &[u8]) -> TaskState {
    let has = |letter: u8| letters.contains(&letter);
    if has(b'X') || has(b'Z') || has(b'x') {
        TaskState::Dead
    } else if has(b'+') {
        TaskState::Preempted
    } else if has(b'R') {
        TaskState::Runnable
    } else if has(b'D') && !has(b'N') {
        TaskState::Blocked
    } else {
        TaskState::Sleeping
    }
}

fn woken(text: &[u8]) -> Option<(SchedTask, u32)> {
    if text.starts_with(b"comm=") {
        return Some((task(text)?, id(around(text, " target_cpu=")?.1)?));
    }
    let (before, cpu) = around(text, "CPU:")?;
    Some((plugin_task(before)?.0, id(cpu)?))
}

fn migrate(text: &[u8]) -> Option<SchedWhat> {
    let (from, to) = (id(around(text, " orig_cpu=")?.1)?, id(around(text, " dest_cpu=")?.1)?);
    Some(SchedWhat::Migrate { task: task(text)?, from, to })
}

fn fork(text: &[u8]) -> Option<SchedWhat> {
    let (before, child) = around(text, " child_pid=")?;
    let (before, comm) = around(before, " child_comm=")?;
    let parent = id(around(before, " pid=")?.1)?;
    Some(SchedWhat::Fork { parent, child: id(child)?, comm: Comm::new(comm) })
}

fn exec(text: &[u8]) -> Option<SchedWhat> {
    let (before, old_tid) = around(text, " old_pid=")?;
    Some(SchedWhat::Exec { tid: id(around(before, " pid=")?.1)?, old_tid: id(old_tid)? })
}

fn runtime(text: &[u8]) -> Option<SchedWhat> {
    let (before, ns) = around(text, " runtime=")?;
    Some(SchedWhat::Runtime { task: task(before)?, ns: number(ns)? })
}
