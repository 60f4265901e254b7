//! From events to rows of slices, counters and events.

use std::io::Write;

use serde_json::{json, Map, Value};

use super::schema::ParquetTable;
use super::slices::{Loose, Place, Said, Slices};
use super::write::{Cell, Out};
use super::UNKNOWN;
use crate::derive::SOFTIRQS;
use crate::{Arg, Args, BlockStep, Edge, Name, Names, TraceEvent, TraceWhat, Tracks};
use scxprof_base::sample::printable;
use scxprof_base::sample::sched::{SchedEvent, SchedWhat};

/// What events of a trace have numbers of.
pub(super) struct Texts<'a> {
    pub(super) names: &'a Names,
    pub(super) tracks: &'a Tracks,
}

impl Texts<'_> {
    fn name(&self, name: Name) -> String {
        printable(self.names.text(name))
    }

    fn args(&self, args: &Args) -> Map<String, Value> {
        let value = |arg| match arg {
            Arg::Int(value) => json!(value),
            Arg::Uint(value) => json!(value),
            Arg::Double(value) => json!(value),
            Arg::Text(name) => json!(self.name(name)),
        };
        args.iter().map(|(name, arg)| (self.name(name), value(arg))).collect()
    }
}

/// The members of an object, without those that are not known.
fn args<const N: usize>(members: [(&str, Value); N]) -> Map<String, Value> {
    members.into_iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.to_owned(), value)).collect()
}

/// An id that is known.
fn id(id: u32) -> Option<u32> {
    Some(id).filter(|id| *id != UNKNOWN)
}

/// A device as the kernel prints it: `MAJOR:MINOR`.
fn device(dev: u64) -> String {
    format!("{}:{}", dev >> 20, dev & 0xf_ffff)
}

/// A row of `event`.
fn event<W: Write + Send>(
    out: &mut Out<W>,
    time: u64,
    [cpu, tid, pid]: [u32; 3],
    name: &str,
    args: &Map<String, Value>,
) {
    let args = if args.is_empty() { String::new() } else { Value::Object(args.clone()).to_string() };
    let row = [Cell::uint(time), Cell::id(cpu), Cell::id(tid), Cell::id(pid), Cell::text(name), Cell::text(&args)];
    out.row(ParquetTable::Event, &row);
}

/// An interrupt of a CPU.
fn interrupt(cpu: u32, [tid, pid]: [u32; 2], category: &str, name: String) -> Said {
    let (category, track) = (category.to_owned(), format!("interrupts of CPU {cpu}"));
    Said { category, name, track, cpu, tid, pid, args: Map::new() }
}

/// Scheduling events that are neither runs nor wakeups.
pub(super) fn sched<W: Write + Send>(from: &SchedEvent, slices: &mut Slices, out: &mut Out<W>) {
    let SchedEvent { time, cpu, pid, tid, .. } = *from;
    let ids = [cpu, tid, pid];
    let number = |number: u32| id(number).map_or_else(String::new, |number| number.to_string());
    let softirq = |vec: u32| SOFTIRQS.get(vec as usize).map_or_else(|| number(vec), |name| printable(name));
    let at = Place::Interrupts(cpu);
    match from.what {
        SchedWhat::IrqEntry { irq } => {
            slices.begin(time, at, interrupt(cpu, [tid, pid], "irq", number(irq)), out);
        }
        SchedWhat::SoftirqEntry { vec } => {
            slices.begin(time, at, interrupt(cpu, [tid, pid], "softirq", softirq(vec)), out);
        }
        SchedWhat::IrqExit { irq } => {
            let name = number(irq);
            slices.end(time, at, &|said| said.category == "irq" && said.name == name, Map::new(), out);
        }
        SchedWhat::SoftirqExit { vec } => {
            let name = softirq(vec);
            slices.end(time, at, &|said| said.category == "softirq" && said.name == name, Map::new(), out);
        }
        SchedWhat::Migrate { task, from, to } => {
            let args = args([("tid", json!(task.tid)), ("from", json!(id(from))), ("to", json!(id(to)))]);
            event(out, time, ids, "sched_migrate_task", &args);
        }
        SchedWhat::Fork { parent, child, comm } => {
            let comm = printable(comm.as_bytes());
            let args = args([("parent", json!(id(parent))), ("child", json!(child)), ("comm", json!(comm))]);
            event(out, time, ids, "sched_process_fork", &args);
        }
        SchedWhat::Exec { tid, old_tid } => {
            let args = args([("tid", json!(id(tid))), ("old_tid", json!(id(old_tid)))]);
            event(out, time, ids, "sched_process_exec", &args);
        }
        SchedWhat::Exit { task } => {
            event(out, time, ids, "sched_process_exit", &args([("tid", json!(id(task.tid)))]));
        }
        SchedWhat::Runtime { task, ns } => {
            event(out, time, ids, "sched_stat_runtime", &args([("tid", json!(task.tid)), ("ns", json!(ns))]));
        }
        SchedWhat::DsqInsert { tid, dsq, slice, is_moved } => {
            let args = args([
                ("tid", json!(tid)),
                ("dsq", json!(dsq)),
                ("slice_ns", json!(slice)),
                ("is_moved", json!(is_moved)),
            ]);
            event(out, time, ids, "dsq_insert", &args);
        }
        SchedWhat::DsqSwitch { prev, dsq, next, slice } => {
            let args =
                args([("prev", json!(prev)), ("dsq", json!(dsq)), ("next", json!(next)), ("slice_ns", json!(slice))]);
            event(out, time, ids, "dsq_switch", &args);
        }
        SchedWhat::Hint { tid, hint } => {
            event(out, time, ids, "hint", &args([("tid", json!(tid)), ("hint", json!(hint))]));
        }
        SchedWhat::Lost => {
            slices.lost(cpu, out);
            event(out, time, [cpu, UNKNOWN, UNKNOWN], "lost", &Map::new());
        }
        SchedWhat::Switch { .. } | SchedWhat::Waking { .. } | SchedWhat::WakeupNew { .. } => {}
    }
}

/// What a counter's row is about.
struct Value64<'a> {
    track: Option<u32>,
    name: &'a str,
    unit: &'a str,
    value: Option<f64>,
}

fn counter<W: Write + Send>(out: &mut Out<W>, time: u64, [cpu, tid, pid]: [u32; 3], of: &Value64<'_>) {
    let row = [
        Cell::uint(time),
        Cell::or_null(of.track.map(|track| Cell::Int(track.into()))),
        Cell::text(of.name),
        Cell::text(of.unit),
        Cell::or_null(of.value.map(Cell::Float)),
        Cell::id(cpu),
        Cell::id(tid),
        Cell::id(pid),
    ];
    out.row(ParquetTable::Counter, &row);
}

/// Any other event of a trace.
pub(super) fn other<W: Write + Send>(from: &TraceEvent, texts: &Texts<'_>, slices: &mut Slices, out: &mut Out<W>) {
    let TraceEvent { time, cpu, pid, tid, .. } = *from;
    let ids = [cpu, tid, pid];
    let said = |category: &str, name: String, args: Map<String, Value>| {
        let category = category.to_owned();
        Said { track: category.clone(), category, name, cpu, tid, pid, args }
    };
    let none = Map::new;
    let mut named = |name: &str, args: Map<String, Value>| event(out, time, ids, name, &args);
    match &from.what {
        TraceWhat::Wakeup { tid, target_cpu } => {
            named("sched_wakeup", args([("tid", json!(tid)), ("target_cpu", json!(id(*target_cpu)))]));
        }
        TraceWhat::Blocked { tid, io } => {
            named("sched_blocked_reason", args([("tid", json!(tid)), ("io_wait", json!(io))]));
        }
        TraceWhat::Rename { tid, comm } => {
            named("task_rename", args([("tid", json!(tid)), ("comm", json!(printable(comm.as_bytes())))]));
        }
        TraceWhat::NewTask { tid, is_thread } => {
            named("task_newtask", args([("tid", json!(tid)), ("is_thread", json!(is_thread))]));
        }
        TraceWhat::Free { tid } => named("sched_process_free", args([("tid", json!(tid))])),
        TraceWhat::SoftirqRaise { vec } => named("softirq_raise", args([("vec", json!(vec))])),
        TraceWhat::Net { is_sent, bytes, device } => {
            let name = if *is_sent { "net_dev_xmit" } else { "netif_receive_skb" };
            named(name, args([("bytes", json!(bytes)), ("device", json!(texts.name(*device)))]));
        }
        TraceWhat::Page { is_alloc, order, pfn } => {
            let name = if *is_alloc { "mm_page_alloc" } else { "mm_page_free" };
            named(name, args([("order", json!(order)), ("pfn", json!(pfn))]));
        }
        TraceWhat::IpiSend { target, kind } => {
            named("ipi_send", args([("target_cpu", json!(target)), ("kind", json!(texts.name(*kind)))]));
        }
        TraceWhat::Waited { delay, reason, compound, chain, dsq, layer } => named(
            "waited",
            args([
                ("delay_ns", json!(delay)),
                ("reason", json!(texts.name(*reason))),
                ("compound_ns", json!(compound)),
                ("chain", json!(chain)),
                ("dsq", json!(dsq)),
                ("layer", json!(layer)),
            ]),
        ),
        // What a stack is made of is in no table: `stack` tells those of a trace apart.
        TraceWhat::Stack { category, stack } => {
            named("stack", args([("of", json!(texts.name(*category))), ("stack", json!(stack))]));
        }
        TraceWhat::Sample { stack, in_kernel } => {
            named("perf_sample", args([("in_kernel", json!(in_kernel)), ("stack", json!(stack))]));
        }
        TraceWhat::Other { event } => named(&texts.name(*event), none()),
        TraceWhat::Block { step, dev, sector, bytes, write, error } => {
            let place = Place::Loose(Loose::Block, *dev, *sector);
            let name = format!("{} {}", if *write { "write" } else { "read" }, device(*dev));
            match step {
                BlockStep::Insert => {
                    named("block_rq_insert", args([("device", json!(device(*dev))), ("sector", json!(sector))]));
                }
                BlockStep::Issue => {
                    let args =
                        args([("device", json!(device(*dev))), ("sector", json!(sector)), ("bytes", json!(bytes))]);
                    slices.begin(time, place, said("block", name, args), out);
                }
                BlockStep::Complete => slices.end(time, place, &|_| true, args([("error", json!(error))]), out),
            }
        }
        TraceWhat::ReclaimBegin { order } => {
            let place = Place::Loose(Loose::Reclaim, tid.into(), 0);
            slices.begin(
                time,
                place,
                said("reclaim", "direct reclaim".to_owned(), args([("order", json!(order))])),
                out,
            );
        }
        TraceWhat::ReclaimEnd { reclaimed } => {
            let place = Place::Loose(Loose::Reclaim, tid.into(), 0);
            slices.end(time, place, &|_| true, args([("reclaimed_pages", json!(reclaimed))]), out);
        }
        TraceWhat::SyncEnter { dev, inode } => {
            let place = Place::Loose(Loose::Sync, tid.into(), 0);
            let args = args([("device", json!(device(*dev))), ("inode", json!(inode))]);
            slices.begin(time, place, said("sync", "ext4_sync_file".to_owned(), args), out);
        }
        TraceWhat::SyncExit { result, .. } => {
            let place = Place::Loose(Loose::Sync, tid.into(), 0);
            slices.end(time, place, &|_| true, args([("result", json!(result))]), out);
        }
        TraceWhat::Suspend { action, value, is_begin } => {
            let name = texts.name(*action);
            let place = Place::Loose(Loose::Suspend, u64::from(action.number()), *value as u64);
            if *is_begin {
                slices.begin(time, place, said("suspend", name, args([("value", json!(value))])), out);
            } else {
                slices.end(time, place, &|_| true, none(), out);
            }
        }
        TraceWhat::WorkBegin { work, name } => {
            let place = Place::Loose(Loose::Work, *work, 0);
            slices.begin(time, place, said("work", texts.name(*name), none()), out);
        }
        TraceWhat::WorkEnd { work } => slices.end(time, Place::Loose(Loose::Work, *work, 0), &|_| true, none(), out),
        TraceWhat::Dsq { is_begin, dsq, layer, name } => {
            let place = Place::Loose(Loose::Dsq, tid.into(), 0);
            if *is_begin {
                let args = args([("dsq", json!(dsq)), ("layer", json!(layer))]);
                slices.begin(time, place, said("dsq", texts.name(*name), args), out);
            } else {
                slices.end(time, place, &|_| true, none(), out);
            }
        }
        TraceWhat::IpiEntry { kind, delay } => {
            let args = args([("delay_ns", json!(delay))]);
            let said = Said { args, ..interrupt(cpu, [tid, pid], "ipi", texts.name(*kind)) };
            slices.begin(time, Place::Interrupts(cpu), said, out);
        }
        TraceWhat::IpiExit { kind, delay } => {
            let name = texts.name(*kind);
            let args = args([("delay_ns", json!(delay))]);
            slices.end(time, Place::Interrupts(cpu), &|said| said.category == "ipi" && said.name == name, args, out);
        }
        TraceWhat::CpuFrequency { cpu, khz } => {
            let of = Value64 { track: None, name: "cpu_frequency", unit: "kHz", value: Some(*khz as f64) };
            counter(out, time, [*cpu, UNKNOWN, UNKNOWN], &of);
        }
        TraceWhat::CpuIdle { cpu, state } => {
            let of = Value64 { track: None, name: "cpu_idle", unit: "state", value: state.map(f64::from) };
            counter(out, time, [*cpu, UNKNOWN, UNKNOWN], &of);
        }
        TraceWhat::Pmu { counter: name, delta } => {
            let of = Value64 { track: None, name: &texts.name(*name), unit: "count", value: Some(*delta) };
            counter(out, time, ids, &of);
        }
        TraceWhat::Node { cpu, node } => named("numa_node", args([("cpu", json!(cpu)), ("node", json!(node))])),
        TraceWhat::Counter { track, value } => {
            let known = texts.tracks.get(*track);
            let name = known.map_or_else(String::new, |known| texts.name(known.name));
            let unit = known.map_or_else(String::new, |known| texts.name(known.unit));
            let track = id(*track);
            counter(out, time, ids, &Value64 { track, name: &name, unit: &unit, value: Some(*value) });
        }
        TraceWhat::Slice { edge, track, category, name, args, .. } => {
            let args = texts.args(args);
            let category = texts.name(*category);
            if *edge == Edge::End {
                let is_its = |said: &Said| category.is_empty() || said.category == category;
                return slices.end(time, Place::Track(*track), &is_its, args, out);
            }
            let known = texts.tracks.get(*track).map_or_else(String::new, |known| texts.name(known.name));
            let said = Said { category, name: texts.name(*name), track: known, cpu, tid, pid, args };
            if *edge == Edge::Begin {
                slices.begin(time, Place::Track(*track), said, out);
            } else {
                slices.instant(time, Place::Track(*track), said, out);
            }
        }
    }
}
