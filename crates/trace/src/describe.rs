//! An event as a line: its type, as `trace info` counts it, the threads that it names, and what it says.

use std::borrow::Cow;

use serde_json::{json, Value};

use super::derive::SOFTIRQS;
use super::event::{Arg, BlockStep, Edge, Event, TraceWhat};
use super::names::{Name, Names};
use super::threads::Tracks;
use super::TraceEvent;
use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat, WakenBy};
use scxprof_base::sample::{printable, Comm};

/// What an event says beside its time, its CPU and its thread.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// Names and values, in order.
    pub args: Vec<(Cow<'static, str>, Value)>,
}

impl Event {
    /// The CPU that it happened on; [`TraceEvent::UNKNOWN`] if it is not known.
    #[must_use]
    pub fn cpu(&self) -> u32 {
        match self {
            Self::Sched(event) => event.cpu,
            Self::Trace(event) => event.cpu,
        }
    }

    /// The thread id and the process id of the thread that ran, or whose track it is; [`TraceEvent::UNKNOWN`] if they are not known.
    #[must_use]
    pub fn thread(&self) -> (u32, u32) {
        match self {
            Self::Sched(event) => (event.tid, event.pid),
            Self::Trace(event) => (event.tid, event.pid),
        }
    }

    /// The type of the event, by which it is asked for: the kernel's name, or `track:CATEGORY` as [`Info::events`](super::Info) has
    /// it.
    #[must_use]
    pub fn kind(&self, names: &Names) -> Cow<'static, str> {
        match self {
            Self::Sched(event) => Cow::Borrowed(event.what.name()),
            Self::Trace(event) => trace_kind(&event.what, names),
        }
    }

    /// Calls `each` with the id and the name of each thread that it names, its own first. A name is `None` if it does not say it.
    pub fn each_thread(&self, mut each: impl FnMut(u32, Option<&Comm>)) {
        let (own, _) = self.thread();
        let mut task = |task: &SchedTask| each(task.tid, Some(&task.comm).filter(|comm| !comm.is_empty()));
        match self {
            Self::Sched(SchedEvent { what, .. }) => match what {
                SchedWhat::Switch { prev, next, .. } => {
                    task(prev);
                    task(next);
                    return;
                }
                SchedWhat::Waking { task: it, .. }
                | SchedWhat::WakeupNew { task: it, .. }
                | SchedWhat::Migrate { task: it, .. }
                | SchedWhat::Exit { task: it }
                | SchedWhat::Runtime { task: it, .. } => task(it),
                SchedWhat::Fork { parent, child, comm } => {
                    each(*parent, None);
                    each(*child, Some(comm));
                }
                SchedWhat::Exec { tid, .. } | SchedWhat::DsqInsert { tid, .. } | SchedWhat::Hint { tid, .. } => {
                    each(*tid, None);
                }
                SchedWhat::DsqSwitch { prev, next, .. } => {
                    each(*prev, None);
                    each(*next, None);
                }
                _ => {}
            },
            Self::Trace(event) => match &event.what {
                TraceWhat::Wakeup { tid, .. }
                | TraceWhat::Blocked { tid, .. }
                | TraceWhat::NewTask { tid, .. }
                | TraceWhat::Free { tid } => each(*tid, None),
                TraceWhat::Rename { tid, comm } => each(*tid, Some(comm)),
                _ => {}
            },
        }
        each(own, None);
    }

    /// What it says.
    #[must_use]
    pub fn said(&self, names: &Names, tracks: &Tracks) -> Said {
        let mut said = Said { args: Vec::new() };
        match self {
            Self::Sched(event) => said.sched(&event.what),
            Self::Trace(event) => said.other(&event.what, names, tracks),
        }
        said
    }
}

fn trace_kind(what: &TraceWhat, names: &Names) -> Cow<'static, str> {
    Cow::Borrowed(match what {
        TraceWhat::Wakeup { .. } => "sched_wakeup",
        TraceWhat::Blocked { .. } => "sched_blocked_reason",
        TraceWhat::Rename { .. } => "task_rename",
        TraceWhat::NewTask { .. } => "task_newtask",
        TraceWhat::Free { .. } => "sched_process_free",
        TraceWhat::SoftirqRaise { .. } => "softirq_raise",
        TraceWhat::Block { step: BlockStep::Insert, .. } => "block_rq_insert",
        TraceWhat::Block { step: BlockStep::Issue, .. } => "block_rq_issue",
        TraceWhat::Block { step: BlockStep::Complete, .. } => "block_rq_complete",
        TraceWhat::Net { is_sent: true, .. } => "net_dev_xmit",
        TraceWhat::Net { is_sent: false, .. } => "netif_receive_skb",
        TraceWhat::Page { is_alloc: true, .. } => "mm_page_alloc",
        TraceWhat::Page { is_alloc: false, .. } => "mm_page_free",
        TraceWhat::ReclaimBegin { .. } => "mm_vmscan_direct_reclaim_begin",
        TraceWhat::ReclaimEnd { .. } => "mm_vmscan_direct_reclaim_end",
        TraceWhat::SyncEnter { .. } => "ext4_sync_file_enter",
        TraceWhat::SyncExit { .. } => "ext4_sync_file_exit",
        TraceWhat::CpuFrequency { .. } => "cpu_frequency",
        TraceWhat::CpuIdle { .. } => "cpu_idle",
        TraceWhat::Suspend { .. } => "suspend_resume",
        TraceWhat::IpiSend { .. } => "ipi_send",
        TraceWhat::IpiEntry { .. } => "ipi_entry",
        TraceWhat::IpiExit { .. } => "ipi_exit",
        TraceWhat::WorkBegin { .. } => "workqueue_execute_start",
        TraceWhat::WorkEnd { .. } => "workqueue_execute_end",
        TraceWhat::Dsq { is_begin: true, .. } => "dsq_begin",
        TraceWhat::Dsq { is_begin: false, .. } => "dsq_end",
        TraceWhat::Waited { .. } => "waited",
        TraceWhat::Node { .. } => "numa_node",
        TraceWhat::Pmu { .. } => "pmu",
        TraceWhat::Counter { .. } => "track:counter",
        TraceWhat::Stack { .. } => "stack",
        TraceWhat::Sample { .. } => "perf_sample",
        TraceWhat::Slice { category, .. } if category.is_none() => "track:no category",
        TraceWhat::Slice { category, .. } => return Cow::Owned(format!("track:{}", printable(names.text(*category)))),
        TraceWhat::Other { event } => return Cow::Owned(printable(names.text(*event))),
    })
}

fn id(id: u32) -> Value {
    if id == TraceEvent::UNKNOWN {
        Value::Null
    } else {
        id.into()
    }
}

impl Said {
    fn push(&mut self, name: &'static str, value: Value) -> &mut Self {
        self.args.push((Cow::Borrowed(name), value));
        self
    }

    fn task(&mut self, [comm, tid, prio]: [&'static str; 3], task: &SchedTask) -> &mut Self {
        self.push(comm, task.comm.to_string().into()).push(tid, id(task.tid)).push(prio, task.prio.into())
    }

    fn sched(&mut self, what: &SchedWhat) {
        const TASK: [&str; 3] = ["comm", "tid", "prio"];
        match what {
            SchedWhat::Switch { prev, state, next } => {
                self.task(["prev_comm", "prev_tid", "prev_prio"], prev).push("prev_state", state.letters().into());
                self.task(["next_comm", "next_tid", "next_prio"], next);
            }
            SchedWhat::Waking { task, target_cpu, by } => {
                let by = match by {
                    WakenBy::Thread => "thread",
                    WakenBy::Softirq => "softirq",
                    WakenBy::Interrupt => "interrupt",
                };
                self.task(TASK, task).push("target_cpu", id(*target_cpu)).push("by", by.into());
            }
            SchedWhat::WakeupNew { task, target_cpu } => {
                self.task(TASK, task).push("target_cpu", id(*target_cpu));
            }
            SchedWhat::Migrate { task, from, to } => {
                self.task(TASK, task).push("orig_cpu", id(*from)).push("dest_cpu", id(*to));
            }
            SchedWhat::Fork { parent, child, comm } => {
                self.push("parent_tid", id(*parent))
                    .push("child_tid", id(*child))
                    .push("child_comm", comm.to_string().into());
            }
            SchedWhat::Exec { tid, old_tid } => {
                self.push("tid", id(*tid)).push("old_tid", id(*old_tid));
            }
            SchedWhat::Exit { task } => {
                self.task(TASK, task);
            }
            SchedWhat::Runtime { task, ns } => {
                self.task(TASK, task).push("runtime_ns", (*ns).into());
            }
            SchedWhat::IrqEntry { irq } | SchedWhat::IrqExit { irq } => {
                self.push("irq", id(*irq));
            }
            SchedWhat::SoftirqEntry { vec } | SchedWhat::SoftirqExit { vec } => {
                self.softirq(*vec);
            }
            SchedWhat::DsqInsert { tid, dsq, slice, is_moved } => {
                self.push("tid", id(*tid)).push("dsq", dsq_id(Some(*dsq))).push("slice_ns", (*slice).into());
                self.push("is_moved", (*is_moved).into());
            }
            SchedWhat::DsqSwitch { prev, dsq, next, slice } => {
                self.push("prev_tid", id(*prev)).push("prev_dsq", dsq_id(*dsq)).push("next_tid", id(*next));
                self.push("slice_ns", json!(slice));
            }
            SchedWhat::Hint { tid, hint } => {
                self.push("tid", id(*tid)).push("hint", json!(hint));
            }
            SchedWhat::Lost => {}
        }
    }

    fn softirq(&mut self, vec: u32) {
        self.push("vec", id(vec));
        if let Some(name) = SOFTIRQS.get(vec as usize) {
            self.push("action", String::from_utf8_lossy(name).into());
        }
    }

    fn other(&mut self, what: &TraceWhat, names: &Names, tracks: &Tracks) {
        let text = |name: Name| -> Value { printable(names.text(name)).into() };
        let device = |dev: u64| -> Value { format!("{}:{}", dev >> 20, dev & 0xf_ffff).into() };
        match what {
            TraceWhat::Wakeup { tid, target_cpu } => {
                self.push("tid", id(*tid)).push("target_cpu", id(*target_cpu));
            }
            TraceWhat::Blocked { tid, io } => {
                self.push("tid", id(*tid)).push("io_wait", (*io).into());
            }
            TraceWhat::Rename { tid, comm } => {
                self.push("tid", id(*tid)).push("new_comm", comm.to_string().into());
            }
            TraceWhat::NewTask { tid, is_thread } => {
                self.push("tid", id(*tid)).push("is_thread", (*is_thread).into());
            }
            TraceWhat::Free { tid } => {
                self.push("tid", id(*tid));
            }
            TraceWhat::SoftirqRaise { vec } => self.softirq(*vec),
            TraceWhat::Block { step, dev, sector, bytes, write, error } => {
                self.push("device", device(*dev)).push("sector", (*sector).into()).push("bytes", (*bytes).into());
                self.push("write", (*write).into());
                if *step == BlockStep::Complete {
                    self.push("error", (*error).into());
                }
            }
            TraceWhat::Net { bytes, device, .. } => {
                self.push("device", text(*device)).push("bytes", (*bytes).into());
            }
            TraceWhat::Page { order, pfn, .. } => {
                self.push("order", (*order).into()).push("pfn", (*pfn).into());
            }
            TraceWhat::ReclaimBegin { order } => {
                self.push("order", (*order).into());
            }
            TraceWhat::ReclaimEnd { reclaimed } => {
                self.push("reclaimed_pages", (*reclaimed).into());
            }
            TraceWhat::SyncEnter { dev, inode } => {
                self.push("device", device(*dev)).push("inode", (*inode).into());
            }
            TraceWhat::SyncExit { dev, inode, result } => {
                self.push("device", device(*dev)).push("inode", (*inode).into()).push("result", (*result).into());
            }
            TraceWhat::CpuFrequency { cpu, khz } => {
                self.push("of_cpu", id(*cpu)).push("khz", (*khz).into());
            }
            TraceWhat::CpuIdle { cpu, state } => {
                self.push("of_cpu", id(*cpu)).push("state", json!(state));
            }
            TraceWhat::Suspend { action, value, is_begin } => {
                self.push("action", text(*action)).push("value", (*value).into()).push("is_begin", (*is_begin).into());
            }
            TraceWhat::IpiSend { target, kind } => {
                self.push("kind", text(*kind)).push("target_cpu", json!(target));
            }
            TraceWhat::IpiEntry { kind, delay } | TraceWhat::IpiExit { kind, delay } => {
                self.push("kind", text(*kind)).push("delay_ns", json!(delay));
            }
            TraceWhat::WorkBegin { work, name } => {
                self.push("work", format!("{work:#x}").into()).push("name", text(*name));
            }
            TraceWhat::WorkEnd { work } => {
                self.push("work", format!("{work:#x}").into());
            }
            TraceWhat::Dsq { dsq, layer, name, .. } => {
                self.push("dsq", dsq_id(*dsq)).push("layer", json!(layer)).push("name", text(*name));
            }
            TraceWhat::Waited { delay, reason, compound, chain, dsq, layer } => {
                self.push("delay_ns", json!(delay)).push("reason", text(*reason)).push("compound_ns", json!(compound));
                self.push("chain", json!(chain)).push("dsq", dsq_id(*dsq)).push("layer", json!(layer));
            }
            TraceWhat::Node { cpu, node } => {
                self.push("of_cpu", id(*cpu)).push("node", id(*node));
            }
            TraceWhat::Pmu { counter, delta } => {
                self.push("counter", text(*counter)).push("delta", json!(delta));
            }
            TraceWhat::Slice { edge, track, name, args, .. } => {
                let edge = match edge {
                    Edge::Begin => "begin",
                    Edge::End => "end",
                    Edge::Instant => "instant",
                };
                self.push("edge", edge.into()).push("name", text(*name));
                if let Some(track) = tracks.get(*track).filter(|track| !track.name.is_none()) {
                    self.push("track", text(track.name));
                }
                for (name, arg) in args.iter() {
                    let value = match arg {
                        Arg::Int(value) => value.into(),
                        Arg::Uint(value) => value.into(),
                        Arg::Double(value) => json!(value),
                        Arg::Text(name) => text(name),
                    };
                    self.args.push((Cow::Owned(printable(names.text(name))), value));
                }
            }
            TraceWhat::Counter { track, value } => {
                if let Some(track) = tracks.get(*track) {
                    self.push("track", text(track.name));
                }
                self.push("value", json!(value));
            }
            TraceWhat::Stack { category, stack } => {
                self.push("of", text(*category)).push("stack", (*stack).into());
            }
            TraceWhat::Sample { stack, in_kernel } => {
                self.push("stack", json!(stack)).push("in_kernel", (*in_kernel).into());
            }
            TraceWhat::Other { .. } => {}
        }
    }
}

/// The id of a dispatch queue, in hexadecimal: the kernel's own ones have bit 63.
fn dsq_id(dsq: Option<u64>) -> Value {
    dsq.map_or(Value::Null, |dsq| format!("{dsq:#x}").into())
}
