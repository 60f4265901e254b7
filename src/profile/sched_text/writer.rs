//! Writes perf.sched.jsonl: scheduling events with the fields of scx_characterize.

use std::io::{self, Write};

use rustc_hash::FxHashMap;
use serde_json::{json, Map, Value};

use crate::sample::sched::{SchedEvent, SchedTask, SchedWhat};
use crate::sample::Comm;
use scxprof_base::escape;

/// Threads whose name and hint are remembered.
const MAX_THREADS: usize = 1 << 18;
/// The kernel's names of softirqs.
const SOFTIRQS: [&str; 10] =
    ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];

/// Writes lines.
#[derive(Debug)]
pub(crate) struct Writer<W> {
    out: W,
    comms: FxHashMap<u32, Comm>,
    hints: FxHashMap<u32, u64>,
    /// Lines so far.
    pub(crate) lines: u64,
}

impl<W: Write> Writer<W> {
    /// Writes to `out`, which should be buffered.
    pub(crate) fn new(out: W) -> Self {
        Self { out, comms: FxHashMap::default(), hints: FxHashMap::default(), lines: 0 }
    }

    /// Writes one event; of those that no tracepoint has it keeps what they say.
    ///
    /// # Errors
    /// The errors of the writer.
    pub(crate) fn write(&mut self, event: &SchedEvent) -> io::Result<()> {
        let SchedEvent { time, cpu, pid, tid, .. } = *event;
        if let SchedWhat::Hint { tid, hint } = event.what {
            if self.hints.len() < MAX_THREADS || self.hints.contains_key(&tid) {
                self.hints.insert(tid, hint.unwrap_or(0));
            }
            return Ok(());
        }
        for (tid, comm) in names(&event.what).into_iter().flatten().filter(|(tid, _)| *tid != 0) {
            if self.comms.len() < MAX_THREADS || self.comms.contains_key(&tid) {
                self.comms.insert(tid, comm);
            }
        }
        let Some((name, trace, fields)) = self.text(&event.what) else { return Ok(()) };
        let comm = match (tid, self.comms.get(&tid)) {
            (0, _) => "swapper".to_owned(),
            (_, Some(comm)) => text(*comm),
            (_, None) => format!(":{tid}"),
        };
        let (seconds, ns) = (time / 1_000_000_000, time % 1_000_000_000);
        let id = |id: u32| if id == SchedEvent::UNKNOWN { -1 } else { i64::from(id) };
        let rest = json!({"event": name, "trace": trace, "fields": fields, "hint": self.hint(tid)});
        // A time has more digits than a number of JSON's may have in other programs.
        let rest = rest.to_string();
        let line = format!(
            "{{\"comm\":{},\"pid\":{},\"tid\":{},\"cpu\":{cpu},\"time\":{seconds}.{ns:09},{}\n",
            Value::from(comm),
            id(pid),
            id(tid),
            rest.get(1..).unwrap_or_default()
        );
        self.lines += 1;
        self.out.write_all(escape::json(line).as_bytes())
    }

    /// Writes the rest.
    ///
    /// # Errors
    /// The errors of the writer.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn hint(&self, tid: u32) -> u64 {
        self.hints.get(&tid).copied().unwrap_or(0)
    }

    /// The tracepoint, its text, and its fields.
    fn text(&self, what: &SchedWhat) -> Option<(&'static str, String, Map<String, Value>)> {
        let of_task = |task: &SchedTask| {
            let SchedTask { tid, prio, comm } = *task;
            vec![("comm", Value::from(text(comm))), ("pid", tid.into()), ("prio", prio.into())]
        };
        let irq = |name, irq: u32| (name, vec![("irq", Value::from(irq))]);
        let softirq = |name, vec: u32| {
            let action = SOFTIRQS.get(vec as usize).copied().unwrap_or("UNKNOWN");
            (name, vec![("vec", Value::from(vec)), ("action", action.into())])
        };
        let (name, fields) = match what {
            SchedWhat::Switch { prev, state, next } => {
                let trace = format!(
                    "{}:{} [{}] {} ==> {}:{} [{}]",
                    text(prev.comm),
                    prev.tid,
                    prev.prio,
                    state.letters(),
                    text(next.comm),
                    next.tid,
                    next.prio
                );
                let fields = json!({
                    "prev_comm": text(prev.comm), "prev_pid": prev.tid, "prev_prio": prev.prio, "prev_state": state.letters(),
                    "next_comm": text(next.comm), "next_pid": next.tid, "next_prio": next.prio,
                    "cpu_idle": next.tid == 0, "prev_idle": prev.tid == 0,
                    "prev_hint": self.hint(prev.tid), "next_hint": self.hint(next.tid),
                });
                let Value::Object(fields) = fields else { return None };
                return Some(("sched:sched_switch", trace, fields));
            }
            SchedWhat::Waking { task, target_cpu, .. } => {
                ("sched:sched_waking", [of_task(task), vec![("target_cpu", (*target_cpu).into())]].concat())
            }
            SchedWhat::WakeupNew { task, target_cpu } => {
                ("sched:sched_wakeup_new", [of_task(task), vec![("target_cpu", (*target_cpu).into())]].concat())
            }
            SchedWhat::Migrate { task, from, to } => (
                "sched:sched_migrate_task",
                [of_task(task), vec![("orig_cpu", (*from).into()), ("dest_cpu", (*to).into())]].concat(),
            ),
            SchedWhat::Fork { parent, child, comm } => {
                let of_parent = self.comms.get(parent).map_or_else(String::new, |comm| text(*comm));
                let of_child = [("child_comm", text(*comm).into()), ("child_pid", (*child).into())];
                let all = [("comm", of_parent.into()), ("pid", (*parent).into())];
                ("sched:sched_process_fork", all.into_iter().chain(of_child).collect())
            }
            SchedWhat::Exec { tid, old_tid } => (
                "sched:sched_process_exec",
                vec![("filename", "".into()), ("pid", (*tid).into()), ("old_pid", (*old_tid).into())],
            ),
            SchedWhat::Exit { task } => ("sched:sched_process_exit", of_task(task)),
            SchedWhat::Runtime { task, ns } => {
                let all = [("comm", text(task.comm).into()), ("pid", task.tid.into()), ("runtime", (*ns).into())];
                ("sched:sched_stat_runtime", all.into())
            }
            SchedWhat::IrqEntry { irq: number } => irq("irq:irq_handler_entry", *number),
            SchedWhat::IrqExit { irq: number } => irq("irq:irq_handler_exit", *number),
            SchedWhat::SoftirqEntry { vec } => softirq("irq:softirq_entry", *vec),
            SchedWhat::SoftirqExit { vec } => softirq("irq:softirq_exit", *vec),
            SchedWhat::DsqInsert { .. } | SchedWhat::DsqSwitch { .. } | SchedWhat::Hint { .. } | SchedWhat::Lost => {
                return None
            }
        };
        let word = |(key, value): &(&str, Value)| match (*key, value) {
            ("action", Value::String(action)) => format!("[action={action}]"),
            ("target_cpu", Value::Number(cpu)) => format!("target_cpu={:03}", cpu.as_u64().unwrap_or(0)),
            ("runtime", ns) => format!("runtime={ns} [ns]"),
            (key, Value::String(text)) => format!("{key}={text}"),
            (key, value) => format!("{key}={value}"),
        };
        let trace = fields.iter().map(word).collect::<Vec<_>>().join(" ");
        Some((name, trace, fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()))
    }
}

/// The threads that an event names.
fn names(what: &SchedWhat) -> [Option<(u32, Comm)>; 2] {
    let of = |task: &SchedTask| Some((task.tid, task.comm));
    match what {
        SchedWhat::Switch { prev, next, .. } => [of(prev), of(next)],
        SchedWhat::Waking { task, .. }
        | SchedWhat::WakeupNew { task, .. }
        | SchedWhat::Migrate { task, .. }
        | SchedWhat::Exit { task }
        | SchedWhat::Runtime { task, .. } => [of(task), None],
        SchedWhat::Fork { child, comm, .. } => [Some((*child, *comm)), None],
        _ => [None, None],
    }
}

/// A name as text; bytes that are none are replaced, as its reader takes text only.
fn text(comm: Comm) -> String {
    String::from_utf8_lossy(comm.as_bytes()).into_owned()
}
