//! Decodes the tracepoints of the scheduler, by the descriptions of their fields that the kernel gives: pure.
//!
//! The fields are described by the files `events/*/*/format` of tracefs, which a perf.data contains too
//! (`HEADER_TRACING_DATA`). Their offsets differ between kernels: nothing here assumes one.

use thiserror::Error;

use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat, StateBits, WakenBy};
use scxprof_base::sample::Comm;

/// The tracepoints that can be decoded, as `system:name`.
pub const SCHED: [&str; 8] = [
    "sched:sched_switch",
    "sched:sched_waking",
    "sched:sched_wakeup_new",
    "sched:sched_migrate_task",
    "sched:sched_process_fork",
    "sched:sched_process_exec",
    "sched:sched_process_exit",
    "sched:sched_stat_runtime",
];
/// The tracepoint whose count is in ns of CPU time: a hit counts as many events.
pub const RUNTIME: &str = "sched:sched_stat_runtime";
/// Those of interrupts.
pub const IRQ: [&str; 4] = ["irq:irq_handler_entry", "irq:irq_handler_exit", "irq:softirq_entry", "irq:softirq_exit"];

/// The events of dispatch queues. They are no tracepoint of the kernel: a BPF program writes them in the form of one.
pub const DSQ: &str = "sched_ext:dsq";
/// Its number, the highest that a tracepoint could have (`TRACE_EVENT_TYPE_MAX` in kernel/trace/trace.h); the kernel counts up
/// from low ones.
pub const DSQ_ID: u16 = 65535;
/// The description of its fields, as the kernel describes those of its own.
pub const DSQ_FORMAT: &str = "\
name: dsq
ID: 65535
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:u32 kind;\toffset:8;\tsize:4;\tsigned:0;
\tfield:pid_t pid;\toffset:12;\tsize:4;\tsigned:1;
\tfield:u64 dsq;\toffset:16;\tsize:8;\tsigned:0;
\tfield:u64 slice;\toffset:24;\tsize:8;\tsigned:0;
\tfield:pid_t prev_pid;\toffset:32;\tsize:4;\tsigned:1;

print fmt: \"kind=%u pid=%d dsq=0x%llx slice=%llu prev_pid=%d\", REC->kind, REC->pid, REC->dsq, REC->slice, REC->prev_pid
";

/// `SCX_DSQ_INVALID` (include/linux/sched/ext.h).
const NO_DSQ: u64 = 1 << 63;

/// Why a tracepoint cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FormatError {
    /// The text is no description.
    #[error("{event}: its format is not understood")]
    Text {
        /// `system:name`.
        event: String,
    },
    /// A field is missing, or has another type.
    #[error("{event}: the kernel gives no field {field} that can be read")]
    Field {
        /// `system:name`.
        event: String,
        /// The field.
        field: &'static str,
    },
}

/// Where a field is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Place {
    offset: u16,
    size: u16,
    /// It is 4 bytes that say where in the record the text is: low half offset, high half length.
    data_loc: bool,
}

/// The description of a tracepoint: its number and its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Format {
    id: u16,
    fields: Vec<(String, Place)>,
}

impl Format {
    /// Reads the text of a file `format`; `None` if there is no number in it.
    fn parse(text: &str) -> Option<Self> {
        let mut id = None;
        let mut fields = Vec::new();
        for line in text.lines() {
            if let Some(number) = line.strip_prefix("ID:") {
                id = number.trim().parse().ok();
            } else if let Some(field) = line.trim_start().strip_prefix("field:") {
                fields.extend(field_of(field));
            }
        }
        Some(Self { id: id?, fields })
    }

    fn place(&self, name: &str) -> Option<Place> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, place)| *place)
    }
}

/// A line of a format: `char prev_comm[16]; offset:8; size:16; signed:0;`, with tabs.
fn field_of(line: &str) -> Option<(String, Place)> {
    let mut parts = line.split(';').map(str::trim);
    let declaration = parts.next()?;
    let mut place = Place { data_loc: declaration.starts_with("__data_loc "), ..Place::default() };
    for part in parts {
        if let Some(offset) = part.strip_prefix("offset:") {
            place.offset = offset.parse().ok()?;
        } else if let Some(size) = part.strip_prefix("size:") {
            place.size = size.parse().ok()?;
        }
    }
    let name = declaration.split('[').next()?;
    // `__data_loc char[] comm` has its brackets before the name.
    let name = if place.data_loc { declaration } else { name };
    let name = name.trim_end().rsplit([' ', '*']).next()?;
    Some((name.to_owned(), place))
}

/// A thread's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TaskPlaces {
    comm: Place,
    pid: Place,
    prio: Place,
}

/// The tracepoints, each with the places of the fields that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SchedTracepoint {
    Switch { prev: TaskPlaces, state: Place, next: TaskPlaces, bits: StateBits },
    Waking { task: TaskPlaces, target_cpu: Place, flags: Place },
    WakeupNew { task: TaskPlaces, target_cpu: Place },
    Migrate { task: TaskPlaces, from: Place, to: Place },
    Fork { parent: Place, child: Place, comm: Place },
    Exec { pid: Place, old_pid: Place },
    Exit { task: TaskPlaces },
    Runtime { task: TaskPlaces, ns: Place },
    IrqEntry { irq: Place },
    IrqExit { irq: Place },
    SoftirqEntry { vec: Place },
    SoftirqExit { vec: Place },
    Dsq { kind: Place, pid: Place, dsq: Place, slice: Place, prev_pid: Place },
}

/// Decodes the tracepoints that were added to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SchedDecoder {
    kinds: Vec<(u16, SchedTracepoint)>,
    /// Of the same order.
    names: Vec<String>,
    /// The records are of the other byte order.
    swapped: bool,
    /// What states mean if the format does not say it.
    states: StateBits,
}

impl SchedDecoder {
    /// For records of this machine's byte order, or, if `swapped`, of the other.
    #[must_use]
    pub fn new(swapped: bool) -> Self {
        Self { swapped, ..Self::default() }
    }

    /// For records of a kernel of this release (`uname -r`), as far as the formats do not say what states mean.
    #[must_use]
    pub fn of_release(mut self, release: &str) -> Self {
        self.states = StateBits::of_release(release);
        self
    }

    /// Adds a tracepoint (`system:name`) by the text of its file `format`; false if it cannot be used.
    ///
    /// # Errors
    /// [`FormatError`]: it could be used, but its fields cannot be read.
    pub fn add(&mut self, event: &str, text: &str) -> Result<bool, FormatError> {
        let Some((_, name)) =
            event.split_once(':').filter(|(system, _)| matches!(*system, "sched" | "irq" | "sched_ext"))
        else {
            return Ok(false);
        };
        let Some(format) = Format::parse(text) else { return Err(FormatError::Text { event: event.to_owned() }) };
        let number = |field: &'static str| {
            let place = format.place(field).filter(|place| !place.data_loc && matches!(place.size, 1 | 2 | 4 | 8));
            place.ok_or_else(|| FormatError::Field { event: event.to_owned(), field })
        };
        let name_at = |field: &'static str| {
            let place = format.place(field).filter(|place| !place.data_loc || place.size == 4);
            place.ok_or_else(|| FormatError::Field { event: event.to_owned(), field })
        };
        // Some tracepoints have no prio.
        let prio = |field| format.place(field).filter(|place| place.size == 4).unwrap_or_default();
        let task = || Ok(TaskPlaces { comm: name_at("comm")?, pid: number("pid")?, prio: prio("prio") });
        let kind = match name {
            "sched_switch" => SchedTracepoint::Switch {
                prev: TaskPlaces { comm: name_at("prev_comm")?, pid: number("prev_pid")?, prio: prio("prev_prio") },
                state: number("prev_state")?,
                next: TaskPlaces { comm: name_at("next_comm")?, pid: number("next_pid")?, prio: prio("next_prio") },
                bits: StateBits::of_format(text).unwrap_or(self.states),
            },
            "sched_waking" | "sched_wakeup" => SchedTracepoint::Waking {
                task: task()?,
                target_cpu: number("target_cpu")?,
                flags: number("common_flags")?,
            },
            "sched_wakeup_new" => SchedTracepoint::WakeupNew { task: task()?, target_cpu: number("target_cpu")? },
            "sched_migrate_task" => {
                SchedTracepoint::Migrate { task: task()?, from: number("orig_cpu")?, to: number("dest_cpu")? }
            }
            "sched_process_fork" => SchedTracepoint::Fork {
                parent: number("parent_pid")?,
                child: number("child_pid")?,
                comm: name_at("child_comm")?,
            },
            "sched_process_exec" => SchedTracepoint::Exec { pid: number("pid")?, old_pid: number("old_pid")? },
            "sched_process_exit" => SchedTracepoint::Exit { task: task()? },
            "sched_stat_runtime" => SchedTracepoint::Runtime { task: task()?, ns: number("runtime")? },
            "irq_handler_entry" => SchedTracepoint::IrqEntry { irq: number("irq")? },
            "irq_handler_exit" => SchedTracepoint::IrqExit { irq: number("irq")? },
            "softirq_entry" => SchedTracepoint::SoftirqEntry { vec: number("vec")? },
            "softirq_exit" => SchedTracepoint::SoftirqExit { vec: number("vec")? },
            "dsq" => SchedTracepoint::Dsq {
                kind: number("kind")?,
                pid: number("pid")?,
                dsq: number("dsq")?,
                slice: number("slice")?,
                prev_pid: number("prev_pid")?,
            },
            _ => return Ok(false),
        };
        self.kinds.push((format.id, kind));
        self.names.push(event.to_owned());
        Ok(true)
    }

    /// Leaves out `sched_wakeup` if there is `sched_waking`, which comes before it for every wakeup.
    pub fn prefer_waking(&mut self) {
        if self.names.iter().any(|name| name == "sched:sched_waking") {
            while let Some(at) = self.names.iter().position(|name| name == "sched:sched_wakeup") {
                self.names.remove(at);
                self.kinds.remove(at);
            }
        }
    }

    /// The tracepoints that it decodes, as `system:name`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// True if it decodes the tracepoint of that number (`attr.config`).
    #[must_use]
    pub fn knows(&self, id: u64) -> bool {
        self.kinds.iter().any(|(known, _)| u64::from(*known) == id)
    }

    /// What the raw data of a sample says; `None` if it is of a tracepoint that was not added, shorter than its
    /// fields, or has a number that no thread or CPU has.
    #[must_use]
    pub fn decode(&self, raw: &[u8]) -> Option<SchedWhat> {
        let fields = Fields { raw, swapped: self.swapped };
        let id = fields.number(Place { offset: 0, size: 2, data_loc: false })? as u16;
        let kind = self.kinds.iter().find(|(known, _)| *known == id).map(|(_, kind)| kind)?;
        Some(match kind {
            SchedTracepoint::Switch { prev, state, next, bits } => SchedWhat::Switch {
                prev: fields.task(prev)?,
                state: bits.state(fields.number(*state)?),
                next: fields.task(next)?,
            },
            SchedTracepoint::Waking { task, target_cpu, flags } => SchedWhat::Waking {
                task: fields.task(task)?,
                target_cpu: fields.id(*target_cpu)?,
                by: WakenBy::from_flags(fields.number(*flags)?),
            },
            SchedTracepoint::WakeupNew { task, target_cpu } => {
                SchedWhat::WakeupNew { task: fields.task(task)?, target_cpu: fields.id(*target_cpu)? }
            }
            SchedTracepoint::Migrate { task, from, to } => {
                SchedWhat::Migrate { task: fields.task(task)?, from: fields.id(*from)?, to: fields.id(*to)? }
            }
            SchedTracepoint::Fork { parent, child, comm } => {
                SchedWhat::Fork { parent: fields.id(*parent)?, child: fields.id(*child)?, comm: fields.name(*comm)? }
            }
            SchedTracepoint::Exec { pid, old_pid } => {
                SchedWhat::Exec { tid: fields.id(*pid)?, old_tid: fields.id(*old_pid)? }
            }
            SchedTracepoint::Exit { task } => SchedWhat::Exit { task: fields.task(task)? },
            SchedTracepoint::Runtime { task, ns } => {
                SchedWhat::Runtime { task: fields.task(task)?, ns: fields.number(*ns)? }
            }
            SchedTracepoint::IrqEntry { irq } => SchedWhat::IrqEntry { irq: fields.id(*irq)? },
            SchedTracepoint::IrqExit { irq } => SchedWhat::IrqExit { irq: fields.id(*irq)? },
            SchedTracepoint::SoftirqEntry { vec } => SchedWhat::SoftirqEntry { vec: fields.id(*vec)? },
            SchedTracepoint::SoftirqExit { vec } => SchedWhat::SoftirqExit { vec: fields.id(*vec)? },
            SchedTracepoint::Dsq { kind, pid, dsq, slice, prev_pid } => {
                let (tid, dsq, slice) = (fields.id(*pid)?, fields.number(*dsq)?, fields.number(*slice)?);
                // As in dsq.bpf.c.
                match fields.number(*kind)? {
                    kind @ (0 | 1) => SchedWhat::DsqInsert { tid, dsq, slice, is_moved: kind == 1 },
                    2 => SchedWhat::DsqSwitch {
                        prev: fields.id(*prev_pid)?,
                        dsq: (dsq != NO_DSQ).then_some(dsq),
                        next: tid,
                        slice: (slice != 0).then_some(slice),
                    },
                    _ => return None,
                }
            }
        })
    }
}

/// The fields of one record.
#[derive(Clone, Copy)]
struct Fields<'a> {
    raw: &'a [u8],
    swapped: bool,
}

impl Fields<'_> {
    #[inline]
    fn number(&self, place: Place) -> Option<u64> {
        let at = usize::from(place.offset);
        let bytes = self.raw.get(at..)?;
        let swapped = self.swapped;
        Some(match place.size {
            4 => {
                let number = u32::from_ne_bytes(*bytes.first_chunk()?);
                u64::from(if swapped { number.swap_bytes() } else { number })
            }
            8 => {
                let number = u64::from_ne_bytes(*bytes.first_chunk()?);
                if swapped {
                    number.swap_bytes()
                } else {
                    number
                }
            }
            2 => {
                let number = u16::from_ne_bytes(*bytes.first_chunk()?);
                u64::from(if swapped { number.swap_bytes() } else { number })
            }
            1 => u64::from(*bytes.first()?),
            _ => 0,
        })
    }

    /// The number of a thread, a CPU or an interrupt, which the kernel keeps in an int; `None` if it has more bits.
    #[inline]
    fn id(&self, place: Place) -> Option<u32> {
        let number = self.number(place)?;
        let is_negative = place.size == 8 && i32::try_from(number.cast_signed()).is_ok();
        u32::try_from(number).ok().or(is_negative.then_some(number as u32))
    }

    #[inline]
    fn name(&self, place: Place) -> Option<Comm> {
        let (at, size) = if place.data_loc {
            let location = self.number(Place { size: 4, data_loc: false, ..place })? as u32;
            ((location & 0xffff) as usize, (location >> 16) as usize)
        } else {
            (usize::from(place.offset), usize::from(place.size))
        };
        Some(Comm::new(self.raw.get(at..at.checked_add(size)?)?))
    }

    #[inline]
    fn task(&self, places: &TaskPlaces) -> Option<SchedTask> {
        Some(SchedTask {
            tid: self.id(places.pid)?,
            prio: self.number(places.prio)? as i32,
            comm: self.name(places.comm)?,
        })
    }
}

/// The event of a sample's fields.
#[must_use]
pub fn event(time: u64, cpu: u32, (pid, tid): (u32, u32), cgroup: u64, what: SchedWhat) -> SchedEvent {
    // Once a thread has left its process's table, the record has no ids for it; the switch that ends it has.
    let tid = match what {
        SchedWhat::Switch { prev, .. } if tid == SchedEvent::UNKNOWN => prev.tid,
        _ => tid,
    };
    SchedEvent { time, cpu, pid, tid, cgroup, what }
}

#[cfg(test)]
mod tests;
