//! Decodes bundles of ftrace events (protos/perfetto/trace/ftrace/*.proto).

use std::cell::Cell;

use rustc_hash::FxHashMap;

use super::compact;
use super::dynamic::{self, Descriptor, DYNAMIC};
use super::event::{BlockStep, TraceWhat};
use super::names::{Name, Names};
use super::placing::{Place, Placing};
use super::raw::{thread, Raw, Typed, MAX_CPUS};
use super::tally::{count, Counts, Kinds, MAX_NUMBERS};
use super::threads::Moment;
use super::usual::{self, Outer};
use super::wire::{Fields, Value};
use scxprof_base::sample::sched::{SchedEvent, SchedTask, SchedWhat, StateBits, WakenBy};
use scxprof_base::sample::Comm;

/// `FtraceEvent.generic`: the older way.
pub(super) const GENERIC: u32 = 327;
/// `CLONE_THREAD` (include/uapi/linux/sched.h).
const CLONE_THREAD: u64 = 0x10000;

/// `FtraceEventBundle.event`.
const EVENT: u32 = 2;

const SWITCH: u32 = 4;
const WAKEUP: u32 = 17;
const WAKING: u32 = 20;
const WAKEUP_NEW: u32 = 114;
const NEWTASK: u32 = 235;
const EXIT: u32 = 238;
const FORK: u32 = 239;

/// The events that have a type here, by their field in `FtraceEvent`.
const NAMES: &[(u32, &str)] = &[
    (SWITCH, "sched_switch"),
    (11, "cpu_frequency"),
    (13, "cpu_idle"),
    (WAKEUP, "sched_wakeup"),
    (18, "sched_blocked_reason"),
    (WAKING, "sched_waking"),
    (21, "ipi_entry"),
    (22, "ipi_exit"),
    (23, "ipi_raise"),
    (24, "softirq_entry"),
    (25, "softirq_exit"),
    (26, "softirq_raise"),
    (36, "irq_handler_entry"),
    (37, "irq_handler_exit"),
    (43, "ext4_sync_file_enter"),
    (44, "ext4_sync_file_exit"),
    (45, "block_rq_issue"),
    (46, "mm_vmscan_direct_reclaim_begin"),
    (47, "mm_vmscan_direct_reclaim_end"),
    (57, "workqueue_execute_end"),
    (58, "workqueue_execute_start"),
    (113, "suspend_resume"),
    (WAKEUP_NEW, "sched_wakeup_new"),
    (125, "block_rq_complete"),
    (126, "block_rq_insert"),
    (NEWTASK, "task_newtask"),
    (236, "task_rename"),
    (237, "sched_process_exec"),
    (EXIT, "sched_process_exit"),
    (FORK, "sched_process_fork"),
    (240, "sched_process_free"),
    (307, "mm_page_alloc"),
    (310, "mm_page_free"),
    (360, "netif_receive_skb"),
    (361, "net_dev_xmit"),
    (491, "sched_migrate_task"),
    // These are counted and have no type.
    (3, "print"),
    (59, "workqueue_queue_work"),
    (241, "sched_process_hang"),
    (242, "sched_process_wait"),
];

/// The name of an event, if it is known without a description.
pub(super) fn name_of(number: u32) -> Option<&'static str> {
    NAMES.iter().find(|(its, _)| *its == number).map(|(_, name)| *name)
}

/// What the whole trace has, which decides how its events are understood.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) has_switch: bool,
    pub(super) has_waking: bool,
    pub(super) has_fork: bool,
    pub(super) has_compact: bool,
    /// What the states of threads mean to the recorded kernel.
    pub(super) states: StateBits,
    /// Descriptions of dynamic events, by their field number.
    pub(super) dynamic: FxHashMap<u32, Descriptor>,
}

/// The parts of a bundle besides its events.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bundle<'a> {
    pub(super) cpu: u32,
    pub(super) lost: bool,
    pub(super) compact: Option<&'a [u8]>,
    /// The last event that was read of the CPU before this bundle: those between are known to be none, or lost.
    previous_end: Option<u64>,
    clock: u64,
    clocks: (Option<u64>, Option<u64>),
    pub(super) is_broken: bool,
    count: usize,
    bytes: &'a [u8],
}

impl<'a> Bundle<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Self {
        let mut bundle = Self { bytes, ..Self::default() };
        let mut fields = Fields::new(bytes);
        loop {
            while fields.short_bytes(EVENT as u8).is_some() {
                bundle.count += 1;
            }
            let Some((number, value)) = fields.next() else { break };
            match number {
                EVENT => bundle.count += 1,
                1 => bundle.cpu = u32::try_from(value.uint()).unwrap_or(MAX_CPUS),
                3 => bundle.lost = value.uint() != 0,
                4 => bundle.compact = Some(value.bytes()),
                5 => bundle.clock = value.uint(),
                6 => bundle.clocks.0 = Some(value.uint()),
                7 => bundle.clocks.1 = Some(value.uint()),
                // What perfetto wrote before it had the other one.
                9 if bundle.previous_end.is_none() => bundle.previous_end = Some(value.uint()),
                10 => bundle.previous_end = Some(value.uint()),
                _ => {}
            }
        }
        bundle.is_broken = fields.is_broken();
        bundle
    }

    /// A time of the bundle as BOOTTIME.
    pub(super) fn boot(&self, time: u64) -> u64 {
        match self.clocks {
            (Some(ftrace), Some(boot)) if self.clock != 0 => {
                boot.saturating_add_signed(time.wrapping_sub(ftrace) as i64)
            }
            _ => time,
        }
    }

    /// Since when its CPU was observed, if this is the CPU's first bundle, whose first event is `earliest`.
    pub(super) fn observed_from(&self, earliest: Option<u64>) -> Option<u64> {
        let end = self.previous_end.filter(|end| *end != 0).map(|end| self.boot(end));
        end.map(|end| earliest.map_or(end, |earliest| earliest.min(end)))
    }

    /// True if its times are of a clock that nothing maps to BOOTTIME.
    pub(super) fn has_unknown_clock(&self) -> bool {
        self.clock != 0 && (self.clocks.0.is_none() || self.clocks.1.is_none())
    }

    fn events(&self) -> Events<'a> {
        Events(Fields::new(self.bytes))
    }

    fn descriptors(&self) -> impl Iterator<Item = &'a [u8]> {
        Fields::new(self.bytes).filter(|(number, _)| *number == 11).map(|(_, value)| value.bytes())
    }
}

/// The events of a bundle.
struct Events<'a>(Fields<'a>);

impl<'a> Events<'a> {
    /// The next one, whatever is before it.
    #[inline(never)]
    fn seek(&mut self) -> Option<&'a [u8]> {
        self.0.find(|(number, _)| *number == EVENT).map(|(_, value)| value.bytes())
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        self.0.short_bytes(EVENT as u8).or_else(|| self.seek())
    }
}

/// The fields of an event by their numbers, which are small.
struct Inner<'a> {
    numbers: [u64; 8],
    texts: [&'a [u8]; 6],
    is_broken: bool,
    /// A number that was asked for is beyond what the kernel gives.
    is_out_of_range: Cell<bool>,
}

impl<'a> Inner<'a> {
    fn parse(payload: &'a [u8]) -> Self {
        let mut inner = Self { numbers: [0; 8], texts: [&[]; 6], is_broken: false, is_out_of_range: Cell::new(false) };
        let is_broken = Fields::new(payload).each(|number, value| {
            let at = number as usize;
            if let Value::Bytes(text) = value {
                if let Some(place) = inner.texts.get_mut(at) {
                    *place = text;
                }
            } else if let Some(place) = inner.numbers.get_mut(at) {
                *place = value.uint();
            }
        });
        inner.is_broken = is_broken;
        inner
    }

    fn id(&self, at: usize) -> u32 {
        let number = self.number(at);
        // Negative ones are of an int32.
        let negative = || i32::try_from(number as i64).ok().filter(|number| *number < 0).map(i32::cast_unsigned);
        self.in_range(u32::try_from(number).ok().or_else(negative))
    }

    fn number(&self, at: usize) -> u64 {
        self.numbers.get(at).copied().unwrap_or(0)
    }

    fn in_range(&self, id: Option<u32>) -> u32 {
        if id.is_none() {
            self.is_out_of_range.set(true);
        }
        id.unwrap_or(SchedEvent::UNKNOWN)
    }

    fn tid(&self, at: usize) -> u32 {
        self.in_range(thread(self.number(at)))
    }

    fn cpu(&self, at: usize) -> u32 {
        self.in_range(u32::try_from(self.number(at)).ok().filter(|cpu| *cpu < MAX_CPUS))
    }

    fn text(&self, at: usize) -> &'a [u8] {
        self.texts.get(at).copied().unwrap_or_default()
    }

    fn task(&self, comm: usize, pid: usize, prio: usize) -> SchedTask {
        SchedTask { tid: self.tid(pid), prio: self.id(prio) as i32, comm: Comm::new(self.text(comm)) }
    }
}

/// What the first pass takes from a bundle: its earliest time, and facts of the whole trace. `process` is told the process
/// of each thread that an event names with it, and `None` for that of the thread's parent.
pub(super) fn scan(
    bundle: &Bundle<'_>,
    facts: &mut Facts,
    names: &mut Names,
    mut process: impl FnMut(u32, (u64, Moment), Result<u32, u32>, &[u8]),
) -> Option<u64> {
    for descriptor in bundle.descriptors() {
        dynamic::describe(descriptor, &mut facts.dynamic, names);
    }
    let mut earliest: Option<u64> = None;
    for event in bundle.events() {
        let outer = Outer::parse(event);
        let time = bundle.boot(outer.time);
        earliest = Some(earliest.map_or(time, |earliest| earliest.min(time)));
        match outer.number {
            _ if outer.is_out_of_range => {}
            SWITCH => facts.has_switch = true,
            WAKING => facts.has_waking = true,
            FORK => facts.has_fork = true,
            NEWTASK => {
                let inner = Inner::parse(outer.payload);
                let tid = inner.tid(1);
                if inner.is_out_of_range.get() {
                    continue;
                }
                let is_thread = inner.numbers[3] & CLONE_THREAD != 0;
                let begins = (time, Moment::Begin);
                process(tid, begins, if is_thread { Err(outer.tid) } else { Ok(tid) }, inner.text(2));
            }
            EXIT => {
                let inner = Inner::parse(outer.payload);
                let (tid, pid) = (inner.tid(2), inner.tid(3));
                if pid != 0 && !inner.is_out_of_range.get() {
                    process(tid, (time, Moment::End), Ok(pid), inner.text(1));
                }
            }
            _ => {}
        }
    }
    if let Some(compact) = bundle.compact {
        let arrays = compact::Arrays::parse(compact);
        facts.has_compact = true;
        facts.has_switch |= arrays.has_switches();
        facts.has_waking |= arrays.has_wakings();
        let first = arrays.earliest().map(|time| bundle.boot(time));
        earliest = [earliest, first].into_iter().flatten().min();
    }
    earliest
}

/// Bundles of fewer bytes are decoded at once.
const LEAST_PLACED: usize = 1 << 10;

/// What came of a bundle whose events are to be decoded when their time comes.
pub(super) enum Placed<'a> {
    Done(Placing<'a>),
    /// It is decoded as a whole.
    Not,
    NoRoom,
}

/// Kinds of events that are read without a table of names: names get their numbers in the order of the file. A bit for each.
const WITHOUT_NAMES: [u64; 8] = {
    let numbers = [
        SWITCH, 11, 13, WAKEUP, 18, WAKING, 24, 25, 26, 36, 37, 43, 44, 45, 46, 47, 57, 58, WAKEUP_NEW, 125, 126,
        NEWTASK, 236, 237, EXIT, FORK, 240, 307, 310, 491,
    ];
    let (mut bits, mut at) = ([0; 8], 0);
    while at < numbers.len() {
        bits[numbers[at] as usize / 64] |= 1 << (numbers[at] % 64);
        at += 1;
    }
    bits
};

fn has_no_names(number: u32) -> bool {
    WITHOUT_NAMES.get(number as usize / 64).is_some_and(|bits| bits >> (number % 64) & 1 != 0)
}

/// Decodes bundles.
pub(super) struct Decoder<'a> {
    pub(super) facts: &'a Facts,
    pub(super) names: &'a mut Names,
    pub(super) counts: &'a mut Counts,
}

impl Decoder<'_> {
    /// Gives each event of the bundle, with its time, in the order in which the bundle has them, until `out` takes no more.
    pub(super) fn bundle(&mut self, bytes: &[u8], mut out: impl FnMut(u64, Raw) -> bool) {
        let bundle = Bundle::parse(bytes);
        let cpu = bundle.cpu;
        self.counts.malformed += u64::from(bundle.is_broken);
        self.counts.unknown_clock += u64::from(bundle.has_unknown_clock());
        if bundle.lost && cpu < MAX_CPUS {
            self.counts.lost_bundles += 1;
            let times = bundle.events().map(|event| Outer::parse(event).time);
            let first = bundle.compact.and_then(|compact| compact::Arrays::parse(compact).earliest());
            // The events are missing before the first one.
            if let Some(time) = times.chain(first).min() {
                let lost = Raw::Sched { cpu, tid: SchedEvent::UNKNOWN, what: SchedWhat::Lost };
                if !out(bundle.boot(time), lost) {
                    return;
                }
            }
        }
        for event in bundle.events() {
            let outer = Outer::parse(event);
            count(&mut self.counts.by_number, outer.number, MAX_NUMBERS);
            match self.event(&outer, cpu) {
                Some(raw) if cpu < MAX_CPUS => {
                    if !out(bundle.boot(outer.time), raw) {
                        return;
                    }
                }
                _ => self.counts.out_of_range += 1,
            }
        }
        if let Some(compact) = bundle.compact {
            let arrays = compact::Arrays::parse(compact);
            self.counts.malformed += u64::from(arrays.is_broken);
            self.counts.uneven += u64::from(arrays.uneven());
            let is_followed = cpu < MAX_CPUS;
            let found = arrays.decode(cpu, self.facts.states, |time, raw| !is_followed || out(bundle.boot(time), raw));
            *self.counts.by_number.entry(SWITCH).or_default() += found.switches;
            *self.counts.by_number.entry(WAKING).or_default() += found.wakings;
            self.counts.out_of_range += if is_followed { found.out_of_range } else { found.switches + found.wakings };
        }
    }

    /// Finds the events of a bundle, each of which is decoded when its time comes.
    pub(super) fn places<'b>(&mut self, bytes: &'b [u8], room: usize) -> Placed<'b> {
        if bytes.len() < LEAST_PLACED {
            return Placed::Not;
        }
        let bundle = Bundle::parse(bytes);
        if bundle.lost || bundle.compact.is_some() || bundle.cpu >= MAX_CPUS {
            return Placed::Not;
        }
        let Some(mut placing) = Placing::new(bytes, bundle.count, bundle.cpu, room) else { return Placed::NoRoom };
        self.counts.malformed += u64::from(bundle.is_broken);
        self.counts.unknown_clock += u64::from(bundle.has_unknown_clock());
        let mut kinds = Kinds::new();
        for event in bundle.events() {
            let outer = Outer::parse(event);
            kinds.add(outer.number, self.counts);
            let time = bundle.boot(outer.time);
            let is_plain = !outer.is_broken && !outer.is_out_of_range && has_no_names(outer.number);
            let head = (time, outer.tid, outer.number, WakenBy::from_flags(outer.flags));
            if is_plain && placing.place(head, outer.payload) {
                continue;
            }
            if let Some(raw) = self.event(&outer, bundle.cpu) {
                if !placing.decoded(time, raw) {
                    return Placed::NoRoom;
                }
            } else {
                self.counts.out_of_range += 1;
            }
        }
        kinds.finish(self.counts);
        Placed::Done(placing)
    }

    /// Gives an event of [`Decoder::places`] with its thread, unless its ids are out of range.
    #[expect(
        clippy::inline_always,
        reason = "what it returns is stored once, in the event, and not copied from call to call"
    )]
    #[inline(always)]
    pub(super) fn placed(&mut self, place: &Place, payload: &[u8], mut give: impl FnMut(u32, Typed)) {
        // Most events are of these kinds.
        let Place { tid, by, .. } = *place;
        match u32::from(place.number) {
            SWITCH => {
                if let Some((prev, state, next)) = usual::switch(payload) {
                    let state = self.facts.states.state(state);
                    return give(tid, Typed::Sched(SchedWhat::Switch { prev, state, next }));
                }
            }
            WAKEUP if self.facts.has_waking => {
                if let Some((SchedTask { tid: woken, .. }, target_cpu)) = usual::woken(payload) {
                    return give(tid, Typed::Trace(TraceWhat::Wakeup { tid: woken, target_cpu }));
                }
            }
            WAKING | WAKEUP => {
                if let Some((task, target_cpu)) = usual::woken(payload) {
                    return give(tid, Typed::Sched(SchedWhat::Waking { task, target_cpu, by }));
                }
            }
            _ => {}
        }
        if let Some(typed) = self.placed_of_any_kind(place, payload) {
            give(tid, typed);
        }
    }

    #[inline(never)]
    fn placed_of_any_kind(&mut self, place: &Place, payload: &[u8]) -> Option<Typed> {
        let inner = Inner::parse(payload);
        self.counts.malformed += u64::from(inner.is_broken);
        let typed = self.typed(u32::from(place.number), &inner, place.tid, place.by);
        let is_out_of_range = inner.is_out_of_range.get();
        self.counts.out_of_range += u64::from(is_out_of_range);
        (!is_out_of_range).then_some(typed)
    }

    /// `None` for one whose ids are out of range.
    fn event(&mut self, outer: &Outer<'_>, cpu: u32) -> Option<Raw> {
        if outer.is_out_of_range {
            return None;
        }
        let Outer { tid, number, payload, flags, .. } = *outer;
        if number >= DYNAMIC {
            return Some(self.dynamic(outer, cpu));
        }
        let inner = Inner::parse(payload);
        self.counts.malformed += u64::from(outer.is_broken || inner.is_broken);
        let raw = Raw::of(cpu, tid, self.typed(number, &inner, tid, WakenBy::from_flags(flags)));
        (!inner.is_out_of_range.get()).then_some(raw)
    }

    fn typed(&mut self, number: u32, inner: &Inner<'_>, tid: u32, by: WakenBy) -> Typed {
        Typed::Sched(match number {
            SWITCH => {
                let (prev, next) = (inner.task(1, 2, 3), inner.task(5, 6, 7));
                SchedWhat::Switch { prev, state: self.facts.states.state(inner.numbers[4]), next }
            }
            WAKING => SchedWhat::Waking { task: inner.task(1, 2, 3), target_cpu: inner.cpu(5), by },
            WAKEUP if !self.facts.has_waking => {
                SchedWhat::Waking { task: inner.task(1, 2, 3), target_cpu: inner.cpu(5), by }
            }
            WAKEUP => return Typed::Trace(TraceWhat::Wakeup { tid: inner.tid(2), target_cpu: inner.cpu(5) }),
            WAKEUP_NEW => SchedWhat::WakeupNew { task: inner.task(1, 2, 3), target_cpu: inner.cpu(5) },
            491 => SchedWhat::Migrate { task: inner.task(1, 2, 3), from: inner.cpu(4), to: inner.cpu(5) },
            237 => SchedWhat::Exec { tid: inner.tid(2), old_tid: inner.tid(3) },
            EXIT => SchedWhat::Exit { task: inner.task(1, 2, 4) },
            FORK => {
                let comm = Comm::new(inner.text(3));
                SchedWhat::Fork { parent: inner.tid(2), child: inner.tid(4), comm }
            }
            NEWTASK if !self.facts.has_fork => {
                let comm = Comm::new(inner.text(2));
                SchedWhat::Fork { parent: tid, child: inner.tid(1), comm }
            }
            36 => SchedWhat::IrqEntry { irq: inner.id(1) },
            37 => SchedWhat::IrqExit { irq: inner.id(1) },
            24 => SchedWhat::SoftirqEntry { vec: inner.id(1) },
            25 => SchedWhat::SoftirqExit { vec: inner.id(1) },
            _ => return Typed::Trace(self.other(number, inner)),
        })
    }

    fn other(&mut self, number: u32, inner: &Inner<'_>) -> TraceWhat {
        let block = |step, bytes: u64, error| TraceWhat::Block {
            step,
            dev: inner.numbers[1],
            sector: inner.numbers[2],
            bytes,
            write: inner.text(5).contains(&b'W'),
            error,
        };
        match number {
            18 => TraceWhat::Blocked { tid: inner.tid(1), io: inner.numbers[3] != 0 },
            NEWTASK => TraceWhat::NewTask { tid: inner.tid(1), is_thread: inner.numbers[3] & CLONE_THREAD != 0 },
            236 => TraceWhat::Rename { tid: inner.tid(1), comm: Comm::new(inner.text(3)) },
            240 => TraceWhat::Free { tid: inner.tid(2) },
            26 => TraceWhat::SoftirqRaise { vec: inner.id(1) },
            21 => TraceWhat::IpiEntry { kind: self.names.add(inner.text(1)), delay: None },
            22 => TraceWhat::IpiExit { kind: self.names.add(inner.text(1)), delay: None },
            23 => TraceWhat::IpiSend { target: None, kind: self.names.add(inner.text(2)) },
            45 => block(BlockStep::Issue, inner.numbers[4], 0),
            126 => block(BlockStep::Insert, inner.numbers[4], 0),
            125 => {
                let error = if inner.numbers[7] == 0 { inner.id(4) } else { inner.id(7) } as i32;
                block(BlockStep::Complete, inner.numbers[3].saturating_mul(512), error)
            }
            360 | 361 => TraceWhat::Net {
                is_sent: number == 361,
                bytes: inner.numbers[1],
                device: self.names.add(inner.text(2)),
            },
            307 => TraceWhat::Page { is_alloc: true, order: inner.id(3), pfn: inner.numbers[5] },
            310 => TraceWhat::Page { is_alloc: false, order: inner.id(1), pfn: inner.numbers[3] },
            46 => TraceWhat::ReclaimBegin { order: inner.id(1) },
            47 => TraceWhat::ReclaimEnd { reclaimed: inner.numbers[1] },
            43 => TraceWhat::SyncEnter { dev: inner.numbers[1], inode: inner.numbers[2] },
            44 => TraceWhat::SyncExit { dev: inner.numbers[1], inode: inner.numbers[2], result: inner.id(3) as i32 },
            11 => TraceWhat::CpuFrequency { cpu: inner.cpu(2), khz: inner.numbers[1] },
            // `PWR_EVENT_EXIT` is -1.
            13 => TraceWhat::CpuIdle { cpu: inner.cpu(2), state: Some(inner.id(1)).filter(|state| *state != u32::MAX) },
            113 => TraceWhat::Suspend {
                action: self.names.add(inner.text(1)),
                value: i64::from(inner.id(2) as i32),
                is_begin: inner.numbers[3] != 0,
            },
            58 => TraceWhat::WorkBegin { work: inner.numbers[1], name: Name::NONE },
            57 => TraceWhat::WorkEnd { work: inner.numbers[1] },
            GENERIC => {
                // A name, then its fields, which are messages: the name comes first.
                let name = self.names.add(inner.text(1));
                *self.counts.generic.entry(name).or_default() += 1;
                TraceWhat::Other { event: name }
            }
            number => TraceWhat::Other {
                event: match name_of(number) {
                    Some(name) => self.names.add(name.as_bytes()),
                    None => self.names.add(format!("ftrace field {number}").as_bytes()),
                },
            },
        }
    }

    /// An event that the trace describes.
    fn dynamic(&mut self, outer: &Outer<'_>, cpu: u32) -> Raw {
        let event = |what| Raw::other(cpu, outer.tid, what);
        self.counts.malformed += u64::from(outer.is_broken);
        let Some(descriptor) = self.facts.dynamic.get(&outer.number) else {
            let name = self.names.add(format!("ftrace field {}", outer.number).as_bytes());
            return event(TraceWhat::Other { event: name });
        };
        let name = self.names.text(descriptor.name);
        let name = name.rsplit(|&byte| byte == b':').next().unwrap_or(name).to_vec();
        if name == b"ipi_send_cpu" || name == b"ipi_send_cpumask" {
            let mut fields = Fields::new(outer.payload);
            let target = descriptor.cpu.and_then(|at| fields.find(|(number, _)| *number == at));
            // proto3 leaves a 0 out.
            let is_one = descriptor.cpu.is_some();
            let target = is_one.then(|| target.map_or(0, |(_, value)| u32::try_from(value.uint()).unwrap_or(MAX_CPUS)));
            return event(TraceWhat::IpiSend { target, kind: Name::NONE });
        }
        if self.names.text(descriptor.name).starts_with(b"irq_vectors:") {
            if let Some(kind) = name.strip_suffix(b"_entry") {
                return event(TraceWhat::IpiEntry { kind: self.names.add(kind), delay: None });
            }
            if let Some(kind) = name.strip_suffix(b"_exit") {
                return event(TraceWhat::IpiExit { kind: self.names.add(kind), delay: None });
            }
        }
        event(TraceWhat::Other { event: descriptor.name })
    }
}
