//! Writes traces in Perfetto's format: scheduling events as ftrace has them, and tracks with instants, slices and counters.
//!
//! Times are CLOCK_MONOTONIC, ns, and stand as BOOTTIME in the trace, which has no clock for ftrace that is MONOTONIC. The packets are
//! not in order of time, as those of no recorder are.

mod message;

use std::collections::BTreeMap;
use std::io::{self, Write};

pub use message::Message;
use rustc_hash::FxHashMap;

use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat, TaskState};
use scxprof_base::sample::Comm;

/// Events of a CPU in one bundle.
const BUNDLE: usize = 512;
/// Threads that are named, of about 40 bytes each; later ones have numbers only.
const MAX_THREADS: usize = 1 << 18;
/// `trusted_packet_sequence_id` of the bundles, and of the tracks.
const SCHED: u64 = 1;
const TRACKS: u64 = 2;
/// `builtin_clock`: BOOTTIME, REALTIME, MONOTONIC.
const BOOTTIME: u64 = 6;
const REALTIME: u64 = 1;
const MONOTONIC: u64 = 3;

/// A category of events on tracks, as its number among the interned ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Category {
    /// Accesses to memory.
    Memory = 1,
    /// Hints that were written.
    Hint = 2,
    /// Times in dispatch queues of a sched_ext scheduler.
    Dsq = 3,
}

const CATEGORIES: [&str; 3] = ["memory", "hint", "dsq"];
/// Names of arguments, likewise from 1.
const ARGS: [&str; 7] = ["addr", "phys", "page_size", "latency_cycles", "data_src", "community", "hint"];

/// An argument of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arg {
    /// Virtual address of the data.
    Addr = 1,
    /// Physical address of the data.
    Phys = 2,
    /// Bytes of the page.
    PageSize = 3,
    /// Cycles.
    Latency = 4,
    /// Where the data came from, as the kernel encodes it.
    DataSrc = 5,
    /// The community of the thread.
    Community = 6,
    /// The hint.
    Hint = 7,
}

/// What a trace is of.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    /// `uname -r`, empty if unknown.
    pub kernel: String,
    /// CPUs of the host, 0 if unknown.
    pub cpus: usize,
    /// A time, and the same in ns since 1970.
    pub real_time: Option<(u64, u64)>,
}

/// A track, by its uuid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Track(u64);

/// Writes a trace.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    /// Events of each CPU that are not written yet, and whether some were lost before them.
    bundles: BTreeMap<u32, (Vec<Message>, bool)>,
    /// Process and name by thread id.
    threads: FxHashMap<u32, (u32, Comm)>,
    tracks: u64,
    first: Option<u64>,
    /// Scheduling events that the format has no place for.
    pub left_out: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn new(out: W, recorded: &Recorded) -> io::Result<Self> {
        let (bundles, threads) = (BTreeMap::new(), FxHashMap::default());
        let mut writer = Self { out, bundles, threads, tracks: 0, first: None, left_out: 0 };
        let clock = |id: u64, time: u64| Message::new().int(1, id).int(2, time);
        let (time, real) = recorded.real_time.unwrap_or((0, 0));
        let mut clocks = Message::new().message(1, &clock(BOOTTIME, time)).message(1, &clock(MONOTONIC, time));
        if recorded.real_time.is_some() {
            clocks = clocks.message(1, &clock(REALTIME, real));
        }
        writer.packet(&Message::new().int(10, TRACKS).message(6, &clocks.int(2, BOOTTIME)))?;
        let name = Message::new().text(1, b"Linux").text(3, recorded.kernel.as_bytes());
        let system = Message::new().message(1, &name).int(8, recorded.cpus as u64);
        writer.packet(&Message::new().int(10, TRACKS).message(45, &system))?;
        let table = |field, names: &[&str], message: Message| {
            (1u64..).zip(names).fold(message, |message, (id, name)| {
                message.message(field, &Message::new().int(1, id).text(2, name.as_bytes()))
            })
        };
        let interned = table(3, &ARGS, table(1, &CATEGORIES, Message::new()));
        // Incremental state begins here.
        writer.packet(&Message::new().int(10, TRACKS).int(13, 1).message(12, &interned))?;
        Ok(writer)
    }

    fn packet(&mut self, packet: &Message) -> io::Result<()> {
        self.out.write_all(Message::new().message(1, packet).as_bytes())
    }

    /// Says which process a thread belongs to and what it is called. 0 is the idle task, and an unknown process.
    pub fn thread(&mut self, tid: u32, pid: u32, comm: Option<Comm>) {
        if tid == 0 || tid == SchedEvent::UNKNOWN || pid == SchedEvent::UNKNOWN {
            return;
        }
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&tid) {
            return;
        }
        let known = self.threads.entry(tid).or_default();
        known.0 = if pid == 0 { known.0 } else { pid };
        known.1 = comm.unwrap_or(known.1);
    }

    /// Adds a track below another one. A counter has values instead of events.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn track(&mut self, name: &str, parent: Option<Track>, is_counter: bool) -> io::Result<Track> {
        self.tracks += 1;
        let mut descriptor = Message::new().int(1, self.tracks).text(2, name.as_bytes());
        if let Some(parent) = parent {
            descriptor = descriptor.int(5, parent.0);
        }
        if is_counter {
            descriptor = descriptor.message(8, &Message::new());
        }
        self.packet(&Message::new().int(10, TRACKS).message(60, &descriptor))?;
        Ok(Track(self.tracks))
    }

    fn event(&mut self, time: u64, event: &Message) -> io::Result<()> {
        self.first = Some(self.first.map_or(time, |first| first.min(time)));
        // It needs the incremental state.
        self.packet(&Message::new().int(10, TRACKS).int(13, 2).int(8, time).message(11, event))
    }

    /// A point in time on a track, with arguments.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn instant(
        &mut self,
        time: u64,
        track: Track,
        category: Category,
        name: &str,
        args: &[(Arg, u64)],
    ) -> io::Result<()> {
        const INSTANT: u64 = 3;
        let event = Message::new().int(9, INSTANT).int(11, track.0).int(3, category as u64).text(23, name.as_bytes());
        let event = args.iter().fold(event, |event, &(arg, value)| {
            // Addresses are pointers, which the UI shows in hexadecimal.
            let field = if matches!(arg, Arg::Addr | Arg::Phys | Arg::DataSrc) { 7 } else { 3 };
            event.message(4, &Message::new().int(1, arg as u64).int(field, value))
        });
        self.event(time, &event)
    }

    /// Begins a slice on a track.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn begin(&mut self, time: u64, track: Track, category: Category, name: &str) -> io::Result<()> {
        const BEGIN: u64 = 1;
        let event = Message::new().int(9, BEGIN).int(11, track.0).int(3, category as u64).text(23, name.as_bytes());
        self.event(time, &event)
    }

    /// Ends the slice that began last on a track.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn end(&mut self, time: u64, track: Track) -> io::Result<()> {
        const END: u64 = 2;
        self.event(time, &Message::new().int(9, END).int(11, track.0))
    }

    /// The value of a counter from this time on.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn counter(&mut self, time: u64, track: Track, value: f64) -> io::Result<()> {
        const COUNTER: u64 = 4;
        self.event(time, &Message::new().int(9, COUNTER).int(11, track.0).double(44, value))
    }

    /// A scheduling event, as ftrace has it.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn sched(&mut self, event: &SchedEvent) -> io::Result<()> {
        if event.what == SchedWhat::Lost {
            self.flush(event.cpu)?;
            self.bundles.entry(event.cpu).or_default().1 = true;
            return Ok(());
        }
        let Some((field, inner)) = inner(&event.what) else {
            self.left_out += 1;
            return Ok(());
        };
        let flags = match event.what {
            SchedWhat::Waking { by, .. } => by.to_flags(),
            _ => 0,
        };
        self.first = Some(self.first.map_or(event.time, |first| first.min(event.time)));
        let tid = if event.tid == SchedEvent::UNKNOWN { 0 } else { event.tid };
        let mut message = Message::new().int(1, event.time).int(2, u64::from(tid));
        if flags != 0 {
            message = message.int(5, flags);
        }
        let bundle = &mut self.bundles.entry(event.cpu).or_default().0;
        bundle.push(message.message(field, &inner));
        let is_full = bundle.len() >= BUNDLE;
        self.thread(event.tid, event.pid, None);
        let named = |task: &SchedTask, writer: &mut Self| writer.thread(task.tid, 0, Some(task.comm));
        match &event.what {
            SchedWhat::Switch { prev, next, .. } => {
                named(prev, self);
                named(next, self);
            }
            SchedWhat::Waking { task, .. } | SchedWhat::WakeupNew { task, .. } | SchedWhat::Migrate { task, .. } => {
                named(task, self);
            }
            _ => {}
        }
        if is_full {
            self.flush(event.cpu)?;
        }
        Ok(())
    }

    /// Writes the events of a CPU.
    fn flush(&mut self, cpu: u32) -> io::Result<()> {
        let Some((events, lost)) = self.bundles.get_mut(&cpu) else { return Ok(()) };
        if events.is_empty() {
            return Ok(());
        }
        let bundle = Message::new().int(1, u64::from(cpu));
        let bundle = if std::mem::take(lost) { bundle.int(3, 1) } else { bundle };
        let bundle = events.drain(..).fold(bundle, |bundle, event| bundle.message(2, &event));
        self.packet(&Message::new().int(10, SCHED).message(1, &bundle))
    }

    /// Writes what is left, and the processes with their threads. `processes` are names of processes by their id.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn finish(mut self, processes: &[(u32, Comm)]) -> io::Result<W> {
        let cpus: Vec<u32> = self.bundles.keys().copied().collect();
        for cpu in cpus {
            self.flush(cpu)?;
        }
        let mut names: BTreeMap<u32, Comm> = BTreeMap::new();
        for (&tid, &(pid, comm)) in &self.threads {
            if pid == tid {
                names.insert(pid, comm);
            } else if pid != 0 {
                names.entry(pid).or_default();
            }
        }
        names.extend(processes.iter().copied().filter(|(pid, _)| *pid != 0));
        let threads: BTreeMap<u32, (u32, Comm)> = self.threads.drain().collect();
        let mut tree = Message::new();
        for (pid, comm) in names {
            let process = Message::new().int(1, u64::from(pid)).text(3, comm.as_bytes());
            tree = tree.message(1, &process);
        }
        for (tid, (pid, comm)) in threads.into_iter().filter(|(_, (pid, _))| *pid != 0) {
            let thread = Message::new().int(1, u64::from(tid)).text(2, comm.as_bytes()).int(3, u64::from(pid));
            tree = tree.message(2, &thread);
        }
        let time = self.first.unwrap_or(0);
        self.packet(&Message::new().int(10, TRACKS).int(8, time).message(2, &tree))?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// `prev_state` of a switch.
fn bits(state: TaskState) -> u64 {
    match state {
        TaskState::Runnable => 0,
        TaskState::Preempted => 0x100,
        TaskState::Sleeping => 1,
        TaskState::Blocked => 2,
        TaskState::Dead => 0x10,
    }
}

/// The number of a thread as ftrace writes it: -1 if it is not known.
fn id(tid: u32) -> u64 {
    if tid == SchedEvent::UNKNOWN {
        u64::MAX
    } else {
        u64::from(tid)
    }
}

/// The field of `FtraceEvent`, and its message; `None` for what ftrace has not.
fn inner(what: &SchedWhat) -> Option<(u32, Message)> {
    let prio = |prio: i32| i64::from(prio).cast_unsigned();
    let task = |task: &SchedTask| Message::new().text(1, task.comm.as_bytes()).int(2, id(task.tid));
    Some(match what {
        SchedWhat::Switch { prev, state, next } => {
            let prev = task(prev).int(3, prio(prev.prio)).int(4, bits(*state));
            (4, prev.text(5, next.comm.as_bytes()).int(6, id(next.tid)).int(7, prio(next.prio)))
        }
        SchedWhat::Waking { task: it, target_cpu, .. } => {
            (20, task(it).int(3, prio(it.prio)).int(4, 1).int(5, u64::from(*target_cpu)))
        }
        SchedWhat::WakeupNew { task: it, target_cpu } => {
            (114, task(it).int(3, prio(it.prio)).int(4, 1).int(5, u64::from(*target_cpu)))
        }
        SchedWhat::Migrate { task: it, from, to } => {
            (491, task(it).int(3, prio(it.prio)).int(4, u64::from(*from)).int(5, u64::from(*to)))
        }
        SchedWhat::Fork { parent, child, comm } => {
            (239, Message::new().int(2, id(*parent)).text(3, comm.as_bytes()).int(4, id(*child)))
        }
        SchedWhat::Exec { tid, old_tid } => (237, Message::new().int(2, id(*tid)).int(3, id(*old_tid))),
        SchedWhat::Exit { task: it } => (238, task(it).int(4, prio(it.prio))),
        SchedWhat::IrqEntry { irq } => (36, Message::new().int(1, u64::from(*irq))),
        SchedWhat::IrqExit { irq } => (37, Message::new().int(1, u64::from(*irq))),
        SchedWhat::SoftirqEntry { vec } => (24, Message::new().int(1, u64::from(*vec))),
        SchedWhat::SoftirqExit { vec } => (25, Message::new().int(1, u64::from(*vec))),
        // CPU time that the kernel charged, DSQs, and what is no event of the scheduler.
        _ => return None,
    })
}
