//! Interrupts, softirqs, and interrupts between CPUs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{line, Unpaired};
use crate::analyze::text_table::{ms, of_all, Spread, TextTable};
use crate::analyze::Context;
use crate::derive::SOFTIRQS;
use crate::raw::MAX_CPUS;
use crate::{Name, TraceEvent, TraceWhat};
use scxprof_base::sample::printable;
use scxprof_base::sample::sched::{SchedEvent, SchedWhat};
use scxprof_sched::Durations;

/// Handlers that interrupt each other on a CPU.
const MAX_NESTED: usize = 16;

/// A handler at work.
#[derive(Debug, Clone, Copy)]
struct Handling<K> {
    what: K,
    since: u64,
    /// ns of those that interrupted it.
    inner: u64,
}

/// The handlers at work on a CPU.
#[derive(Debug)]
struct Stack<K>(Vec<Handling<K>>);

impl<K> Default for Stack<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Copy + PartialEq> Stack<K> {
    fn begin(&mut self, what: K, since: u64, counts: &mut Unpaired) {
        if self.0.len() < MAX_NESTED {
            self.0.push(Handling { what, since, inner: 0 });
        } else {
            counts.no_room += 1;
        }
    }

    /// The whole time of the innermost such handler, and that without those which interrupted it.
    fn end(&mut self, what: K, time: u64, counts: &mut Unpaired) -> Option<(u64, u64)> {
        let Some(at) = self.0.iter().rposition(|handling| handling.what == what) else {
            counts.ends += 1;
            return None;
        };
        // Those within it cannot go on.
        counts.begins += (self.0.len() - at - 1) as u64;
        let handled = *self.0.get(at)?;
        self.0.truncate(at);
        let whole = time.saturating_sub(handled.since);
        if let Some(outer) = self.0.last_mut() {
            outer.inner = outer.inner.saturating_add(whole);
        }
        Some((whole, whole.saturating_sub(handled.inner)))
    }

    fn lost(&mut self, counts: &mut Unpaired) {
        counts.lost += self.0.len() as u64;
        self.0.clear();
    }
}

fn stack<K>(cpus: &mut Vec<Stack<K>>, cpu: u32) -> Option<&mut Stack<K>> {
    if cpu >= MAX_CPUS {
        return None;
    }
    if cpus.len() <= cpu as usize {
        cpus.resize_with(cpu as usize + 1, Stack::default);
    }
    cpus.get_mut(cpu as usize)
}

/// Interrupts of a number, or softirqs of a kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IrqLine {
    /// It is a softirq.
    pub is_soft: bool,
    /// Its number; `None` if it is not known.
    pub number: Option<u32>,
    /// The kind of a softirq.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// From entry to exit, with what interrupted it.
    #[serde(flatten)]
    pub handled: Spread,
    /// Without what interrupted it.
    pub own_ns: u64,
}

/// Interrupts of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct CpuInterrupts {
    /// The CPU.
    pub cpu: u32,
    /// Interrupts, or softirqs of both kinds.
    pub irqs: u64,
    /// ns in interrupts, without what interrupted them.
    pub irq_ns: u64,
    /// Softirqs.
    pub softirqs: u64,
    /// ns in softirqs, without what interrupted them.
    pub softirq_ns: u64,
}

/// Follows interrupts and softirqs.
#[derive(Debug, Default)]
pub(super) struct Irqs {
    stacks: Vec<Stack<(bool, u32)>>,
    lines: FxHashMap<(bool, u32), (Durations, u64)>,
    cpus: BTreeMap<u32, CpuInterrupts>,
    counts: Unpaired,
}

impl Irqs {
    pub(super) fn take(&mut self, event: &SchedEvent) {
        let (what, is_begin) = match event.what {
            SchedWhat::IrqEntry { irq } => ((false, irq), true),
            SchedWhat::IrqExit { irq } => ((false, irq), false),
            SchedWhat::SoftirqEntry { vec } => ((true, vec), true),
            SchedWhat::SoftirqExit { vec } => ((true, vec), false),
            SchedWhat::Lost => {
                if let Some(stack) = self.stacks.get_mut(event.cpu as usize) {
                    stack.lost(&mut self.counts);
                }
                return;
            }
            _ => return,
        };
        let Some(stack) = stack(&mut self.stacks, event.cpu) else { return };
        if is_begin {
            return stack.begin(what, event.time, &mut self.counts);
        }
        let Some((whole, own)) = stack.end(what, event.time, &mut self.counts) else { return };
        let cpu = self.cpus.entry(event.cpu).or_insert(CpuInterrupts { cpu: event.cpu, ..CpuInterrupts::default() });
        let (count, ns) =
            if what.0 { (&mut cpu.softirqs, &mut cpu.softirq_ns) } else { (&mut cpu.irqs, &mut cpu.irq_ns) };
        *count += 1;
        *ns = ns.saturating_add(own);
        match line(&mut self.lines, what) {
            Some((durations, sum)) => {
                durations.add(whole);
                *sum = sum.saturating_add(own);
            }
            None => self.counts.no_room += 1,
        }
    }

    pub(super) fn finish(self, context: &Context<'_>) -> IrqAnalysis {
        let open: usize = self.stacks.iter().map(|stack| stack.0.len()).sum();
        let of = |(&(is_soft, number), (durations, own)): (&(bool, u32), &(Durations, u64))| IrqLine {
            is_soft,
            number: Some(number).filter(|number| *number != SchedEvent::UNKNOWN),
            name: SOFTIRQS.get(number as usize).filter(|_| is_soft).map(|name| printable(name)),
            handled: Spread::from(durations),
            own_ns: *own,
        };
        let mut lines: Vec<IrqLine> = self.lines.iter().map(of).collect();
        lines.sort_by_key(|line| (Reverse(line.own_ns), line.is_soft, line.number));
        let line_count = lines.len();
        lines.truncate(context.options.limit);
        let unpaired = Unpaired { begins: self.counts.begins + open as u64, ..self.counts };
        IrqAnalysis { line_count, lines, cpus: self.cpus.into_values().collect(), unpaired }
    }
}

/// The result of `irq_analysis`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IrqAnalysis {
    /// How many interrupts and softirqs there are.
    pub line_count: usize,
    /// Those of the most time of their own first.
    pub lines: Vec<IrqLine>,
    /// By CPU.
    pub cpus: Vec<CpuInterrupts>,
    /// Those that no other number counts.
    pub unpaired: Unpaired,
}

impl IrqAnalysis {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let mut table =
            TextTable::of_spreads(of_all("From entry to exit", self.lines.len(), self.line_count), "INTERRUPT");
        if let Some(head) = table.rows.first_mut() {
            head.push("OWN(ms)".to_owned());
        }
        for line in &self.lines {
            let number = line.number.map_or("?".to_owned(), |number| number.to_string());
            let kind = if line.is_soft { "softirq" } else { "irq" };
            table.push_spread(format!("{kind} {}", line.name.as_ref().unwrap_or(&number)), &line.handled);
            if let Some(row) = table.rows.last_mut() {
                row.push(ms(line.own_ns));
            }
        }
        let mut cpus = TextTable::new("CPUs", &["CPU", "IRQS", "IRQ(ms)", "SOFTIRQS", "SOFTIRQ(ms)"]);
        for line in &self.cpus {
            let counts = [line.irqs.to_string(), ms(line.irq_ns), line.softirqs.to_string(), ms(line.softirq_ns)];
            cpus.push(std::iter::once(format!("CPU {}", line.cpu)).chain(counts).collect());
        }
        vec![table, cpus, TextTable::of_values("", &[self.unpaired.row()])]
    }
}

/// What is known of a kind of interrupts between CPUs.
#[derive(Debug, Default)]
struct Ipi {
    sent: u64,
    handled: Durations,
    delay: Durations,
}

/// Interrupts of a kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IpiLine {
    /// The kind, such as `reschedule`; empty if it is not known.
    pub kind: String,
    /// How many were sent; one to several CPUs counts once.
    pub sent: u64,
    /// From entry to exit.
    pub handled: Spread,
    /// From sending to entry, if the recorder says it.
    pub delay: Spread,
}

/// Interrupts between CPUs, of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct IpiCpu {
    /// The CPU.
    pub cpu: u32,
    /// Sent by it.
    pub sent: u64,
    /// Sent to it alone.
    pub received: u64,
    /// Handled by it.
    pub handled: u64,
    /// ns of that, without what interrupted it.
    pub handled_ns: u64,
}

/// Follows interrupts between CPUs.
#[derive(Debug, Default)]
pub(super) struct Ipis {
    stacks: Vec<Stack<Name>>,
    kinds: FxHashMap<Name, Ipi>,
    cpus: BTreeMap<u32, IpiCpu>,
    counts: Unpaired,
}

impl Ipis {
    fn cpu(&mut self, cpu: u32) -> Option<&mut IpiCpu> {
        (cpu < MAX_CPUS).then(|| self.cpus.entry(cpu).or_insert(IpiCpu { cpu, ..IpiCpu::default() }))
    }

    fn kind(&mut self, kind: Name, add: impl FnOnce(&mut Ipi)) {
        match line(&mut self.kinds, kind) {
            Some(kind) => add(kind),
            None => self.counts.no_room += 1,
        }
    }

    pub(super) fn take(&mut self, event: &TraceEvent) {
        match event.what {
            TraceWhat::IpiSend { target, kind } => {
                self.kind(kind, |kind| kind.sent += 1);
                if let Some(cpu) = self.cpu(event.cpu) {
                    cpu.sent += 1;
                }
                if let Some(cpu) = target.and_then(|target| self.cpu(target)) {
                    cpu.received += 1;
                }
            }
            TraceWhat::IpiEntry { kind, delay } => {
                if let Some(delay) = delay {
                    self.kind(kind, |kind| kind.delay.add(delay));
                }
                if let Some(stack) = stack(&mut self.stacks, event.cpu) {
                    stack.begin(kind, event.time, &mut self.counts);
                }
            }
            TraceWhat::IpiExit { kind, delay } => {
                if let Some(delay) = delay {
                    self.kind(kind, |kind| kind.delay.add(delay));
                }
                let stack = stack(&mut self.stacks, event.cpu);
                let handled = stack.and_then(|stack| stack.end(kind, event.time, &mut self.counts));
                let Some((whole, own)) = handled else { return };
                self.kind(kind, |kind| kind.handled.add(whole));
                if let Some(cpu) = self.cpu(event.cpu) {
                    cpu.handled += 1;
                    cpu.handled_ns = cpu.handled_ns.saturating_add(own);
                }
            }
            _ => {}
        }
    }

    pub(super) fn lost(&mut self, cpu: u32) {
        if let Some(stack) = self.stacks.get_mut(cpu as usize) {
            stack.lost(&mut self.counts);
        }
    }

    pub(super) fn finish(self, context: &Context<'_>) -> IpiAnalysis {
        let open: usize = self.stacks.iter().map(|stack| stack.0.len()).sum();
        let of = |(kind, ipi): (&Name, &Ipi)| IpiLine {
            kind: printable(context.names.text(*kind)),
            sent: ipi.sent,
            handled: Spread::from(&ipi.handled),
            delay: Spread::from(&ipi.delay),
        };
        let mut kinds: Vec<IpiLine> = self.kinds.iter().map(of).collect();
        kinds.sort_by_cached_key(|line| (Reverse(line.handled.total_ns), Reverse(line.sent), line.kind.clone()));
        let kind_count = kinds.len();
        kinds.truncate(context.options.limit);
        let unpaired = Unpaired { begins: self.counts.begins + open as u64, ..self.counts };
        IpiAnalysis { kind_count, kinds, cpus: self.cpus.into_values().collect(), unpaired }
    }
}

/// The result of `ipi_analysis`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IpiAnalysis {
    /// How many kinds there are.
    pub kind_count: usize,
    /// Those of the longest time first.
    pub kinds: Vec<IpiLine>,
    /// By CPU.
    pub cpus: Vec<IpiCpu>,
    /// Those that no other number counts.
    pub unpaired: Unpaired,
}

impl IpiAnalysis {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let title = of_all("From entry to exit", self.kinds.len(), self.kind_count);
        let mut table = TextTable::of_spreads(title, "KIND");
        let mut delays = TextTable::of_spreads("From sending to entry", "KIND");
        if let Some(head) = table.rows.first_mut() {
            head.push("SENT".to_owned());
        }
        for line in &self.kinds {
            let kind = if line.kind.is_empty() { "(not known)" } else { &line.kind };
            table.push_spread(kind.to_owned(), &line.handled);
            if let Some(row) = table.rows.last_mut() {
                row.push(line.sent.to_string());
            }
            if line.delay.count > 0 {
                delays.push_spread(kind.to_owned(), &line.delay);
            }
        }
        let mut cpus = TextTable::new("CPUs", &["CPU", "SENT", "SENT-TO-IT", "HANDLED", "TIME(ms)"]);
        for line in &self.cpus {
            let counts = [line.sent, line.received, line.handled].map(|count| count.to_string());
            let row = std::iter::once(format!("CPU {}", line.cpu)).chain(counts).chain([ms(line.handled_ns)]);
            cpus.push(row.collect());
        }
        let mut tables = vec![table, cpus];
        if delays.rows.len() > 1 {
            tables.push(delays);
        }
        tables.push(TextTable::of_values("", &[self.unpaired.row()]));
        tables
    }
}
