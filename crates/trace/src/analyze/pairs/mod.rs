//! The engine of pairs: something begins and ends, such as an interrupt on a CPU or a request to a device.

mod devices;
mod dsq;
mod interrupts;
mod requests;

use std::hash::Hash;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{Context, Findings, Id, Options};
use crate::Event;
pub use devices::*;
pub(super) use dsq::{dsq_name, real};
pub use dsq::{DsqLatency, DsqLine};
pub use interrupts::{CpuInterrupts, IpiAnalysis, IpiCpu, IpiLine, IrqAnalysis, IrqLine};
pub use requests::{RequestLine, Requests, SlowRequest};
use scxprof_base::sample::sched::SchedWhat;

/// What may have begun and not ended, of each analyser.
const MAX_OPEN: usize = 1 << 16;
/// Lines that are told apart, such as devices or interrupts, of up to 10 KiB each for a distribution.
const MAX_LINES: usize = 1024;

/// Beginnings and ends that have no other half. They are in no number but these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Unpaired {
    /// Beginnings without an end: the same began again, or the trace ended.
    pub begins: u64,
    /// Ends without a beginning, as at the start of the trace.
    pub ends: u64,
    /// Beginnings before a loss of events: an end may be lost, so they are dropped.
    pub lost: u64,
    /// Beginnings, and lines, for which there was no room.
    pub no_room: u64,
}

impl Unpaired {
    pub(super) fn row(&self) -> (&'static str, String) {
        let Self { begins, ends, lost, no_room } = self;
        let text = format!("{begins} beginnings, {ends} ends; {lost} dropped at losses, {no_room} beyond the bounds");
        ("without their other half", text)
    }
}

/// What has begun and not ended.
#[derive(Debug)]
struct Open<K, V> {
    open: FxHashMap<K, V>,
    counts: Unpaired,
}

impl<K, V> Default for Open<K, V> {
    fn default() -> Self {
        Self { open: FxHashMap::default(), counts: Unpaired::default() }
    }
}

impl<K: Eq + Hash, V> Open<K, V> {
    fn begin(&mut self, key: K, value: V) {
        if self.open.len() >= MAX_OPEN && !self.open.contains_key(&key) {
            self.counts.no_room += 1;
        } else if self.open.insert(key, value).is_some() {
            self.counts.begins += 1;
        }
    }

    fn end(&mut self, key: &K) -> Option<V> {
        let value = self.open.remove(key);
        self.counts.ends += u64::from(value.is_none());
        value
    }

    /// Events were lost: what ends from now on may be another one.
    fn lost(&mut self) {
        self.counts.lost += self.open.len() as u64;
        self.open.clear();
    }

    fn finish(&self) -> Unpaired {
        Unpaired { begins: self.counts.begins + self.open.len() as u64, ..self.counts }
    }
}

/// The value of `key`, a new one if there is room.
fn line<K: Eq + Hash, V: Default>(lines: &mut FxHashMap<K, V>, key: K) -> Option<&mut V> {
    if lines.len() >= MAX_LINES && !lines.contains_key(&key) {
        return None;
    }
    Some(lines.entry(key).or_default())
}

/// The engine.
#[derive(Debug)]
pub(super) struct Pairs {
    irqs: Option<interrupts::Irqs>,
    ipis: Option<interrupts::Ipis>,
    block: Option<devices::Block>,
    files: Option<devices::Files>,
    memory: Option<devices::Memory>,
    power: Option<devices::Power>,
    dsqs: Option<dsq::Dsqs>,
    requests: Option<requests::Served>,
}

impl Pairs {
    pub(super) fn new(options: &Options) -> Self {
        let wants = |id| options.wants(id);
        Self {
            irqs: wants(Id::IrqAnalysis).then(Default::default),
            ipis: wants(Id::IpiAnalysis).then(Default::default),
            block: wants(Id::BlockIo).then(Default::default),
            files: wants(Id::FileIo).then(Default::default),
            memory: wants(Id::MemoryPressure).then(Default::default),
            power: wants(Id::PowerState).then(Default::default),
            dsqs: wants(Id::DsqLatency).then(Default::default),
            requests: wants(Id::Requests).then(Default::default),
        }
    }

    pub(super) fn take(&mut self, event: &Event) {
        match event {
            Event::Sched(event) => {
                if let Some(irqs) = &mut self.irqs {
                    irqs.take(event);
                }
                if event.what == SchedWhat::Lost {
                    self.lost(event.cpu);
                }
            }
            Event::Trace(event) => {
                if let Some(ipis) = &mut self.ipis {
                    ipis.take(event);
                }
                if let Some(block) = &mut self.block {
                    block.take(event);
                }
                if let Some(files) = &mut self.files {
                    files.take(event);
                }
                if let Some(memory) = &mut self.memory {
                    memory.take(event);
                }
                if let Some(power) = &mut self.power {
                    power.take(event);
                }
                if let Some(dsqs) = &mut self.dsqs {
                    dsqs.take(event);
                }
                if let Some(requests) = &mut self.requests {
                    requests.take(event);
                }
            }
        }
    }

    /// Events of the CPU were lost. What begins and ends on different CPUs may have lost its end there.
    fn lost(&mut self, cpu: u32) {
        if let Some(ipis) = &mut self.ipis {
            ipis.lost(cpu);
        }
        if let Some(block) = &mut self.block {
            block.open.lost();
        }
        if let Some(files) = &mut self.files {
            files.open.lost();
        }
        if let Some(memory) = &mut self.memory {
            memory.open.lost();
        }
        if let Some(power) = &mut self.power {
            power.open.lost();
        }
        if let Some(dsqs) = &mut self.dsqs {
            dsqs.open.lost();
        }
    }

    pub(super) fn finish(self, context: &Context<'_>, out: &mut Vec<Findings>) {
        out.extend(self.irqs.map(|irqs| irqs.finish(context).into()));
        out.extend(self.ipis.map(|ipis| ipis.finish(context).into()));
        out.extend(self.block.map(|block| block.finish(context).into()));
        out.extend(self.files.map(|files| files.finish(context).into()));
        out.extend(self.memory.map(|memory| memory.finish().into()));
        out.extend(self.power.map(|power| power.finish(context).into()));
        out.extend(self.dsqs.map(|dsqs| dsqs.finish(context).into()));
        out.extend(self.requests.map(|requests| requests.finish(context).into()));
    }
}
