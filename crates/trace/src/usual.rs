//! Events of ftrace as perfetto writes them most often, their fields in order. Those that are written in another way, or are out of
//! range, are read field by field.

use super::raw::{thread, MAX_CPUS};
use super::wire::{self, short_bytes, varint, varying_varint, Value};
use scxprof_base::sample::sched::SchedTask;
use scxprof_base::sample::Comm;

/// Takes fields that have a byte for their number and their kind.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    #[inline]
    fn is_next(&self, tag: u8) -> bool {
        self.0.first() == Some(&tag)
    }

    #[expect(
        clippy::inline_always,
        reason = "what it returns is stored once, in the event, and not copied from call to call"
    )]
    #[inline(always)]
    fn number_by(&mut self, read: impl FnOnce(&'a [u8]) -> Option<(u64, &'a [u8])>, field: u8) -> Option<u64> {
        let (tag, rest) = self.0.split_first()?;
        if *tag != field << 3 {
            return None;
        }
        let (value, rest) = read(rest)?;
        self.0 = rest;
        Some(value)
    }

    /// A number that most often has one byte.
    #[expect(
        clippy::inline_always,
        reason = "what it returns is stored once, in the event, and not copied from call to call"
    )]
    #[inline(always)]
    fn number(&mut self, field: u8) -> Option<u64> {
        self.number_by(varint, field)
    }

    /// A number whose length differs from event to event.
    #[expect(
        clippy::inline_always,
        reason = "what it returns is stored once, in the event, and not copied from call to call"
    )]
    #[inline(always)]
    fn varying(&mut self, field: u8) -> Option<u64> {
        self.number_by(varying_varint, field)
    }

    #[expect(
        clippy::inline_always,
        reason = "what it returns is stored once, in the event, and not copied from call to call"
    )]
    #[inline(always)]
    fn text(&mut self, field: u8) -> Option<&'a [u8]> {
        let (text, rest) = short_bytes(self.0, field)?;
        self.0 = rest;
        Some(text)
    }

    /// A name, a thread and a priority.
    #[expect(
        clippy::inline_always,
        reason = "what it returns is stored once, in the event, and not copied from call to call"
    )]
    #[inline(always)]
    fn task(&mut self, from: u8) -> Option<SchedTask> {
        let comm = Comm::new(self.text(from)?);
        let tid = thread(self.varying(from + 1)?)?;
        let prio = i32::try_from(self.number(from + 2)?).ok()?;
        Some(SchedTask { tid, prio, comm })
    }
}

/// An event without what it says itself.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outer<'a> {
    pub(super) time: u64,
    pub(super) tid: u32,
    pub(super) flags: u64,
    pub(super) number: u32,
    pub(super) payload: &'a [u8],
    pub(super) is_broken: bool,
    pub(super) is_out_of_range: bool,
}

impl<'a> Outer<'a> {
    #[inline]
    pub(super) fn parse(event: &'a [u8]) -> Self {
        match outer(event) {
            Some((time, tid, number, payload)) => Self { time, tid, number, payload, ..Self::default() },
            None => Self::any(event),
        }
    }

    fn any(event: &'a [u8]) -> Self {
        let mut outer = Self::default();
        let is_broken = wire::Fields::new(event).each(|number, value| match (number, value) {
            (1, _) => outer.time = value.uint(),
            (2, _) => match thread(value.uint()) {
                Some(tid) => outer.tid = tid,
                None => outer.is_out_of_range = true,
            },
            (5, Value::Varint(flags)) => outer.flags = flags,
            (_, Value::Bytes(payload)) => (outer.number, outer.payload) = (number, payload),
            _ => {}
        });
        outer.is_broken = is_broken;
        outer
    }
}

/// The time, the thread, the number and the content of an event.
#[expect(
    clippy::inline_always,
    reason = "what it returns is stored once, in the event, and not copied from call to call"
)]
#[inline(always)]
fn outer(event: &[u8]) -> Option<(u64, u32, u32, &[u8])> {
    let mut fields = Fields(event);
    let (time, tid) = (fields.varying(1)?, fields.varying(2)?);
    let (tag, rest) = varying_varint(fields.0)?;
    let (len, content) = varint(rest)?;
    // The others are the time and the thread again.
    let number = u32::try_from(tag >> 3).ok().filter(|number| (3..1 << 29).contains(number))?;
    if tag & 7 != 2 || content.len() as u64 != len {
        return None;
    }
    Some((time, thread(tid)?, number, content))
}

/// The content of `sched_switch`: the thread that ran, its state, and the one that runs now.
#[expect(
    clippy::inline_always,
    reason = "what it returns is stored once, in the event, and not copied from call to call"
)]
#[inline(always)]
pub(super) fn switch(content: &[u8]) -> Option<(SchedTask, u64, SchedTask)> {
    let mut fields = Fields(content);
    let (prev, state, next) = (fields.task(1)?, fields.number(4)?, fields.task(5)?);
    fields.0.is_empty().then_some((prev, state, next))
}

/// The content of `sched_waking` and `sched_wakeup`: the thread and its CPU.
#[expect(
    clippy::inline_always,
    reason = "what it returns is stored once, in the event, and not copied from call to call"
)]
#[inline(always)]
pub(super) fn woken(content: &[u8]) -> Option<(SchedTask, u32)> {
    let mut fields = Fields(content);
    let task = fields.task(1)?;
    if fields.is_next(4 << 3) {
        // Success, which older kernels say.
        fields.number(4)?;
    }
    let cpu = u32::try_from(fields.number(5)?).ok().filter(|cpu| *cpu < MAX_CPUS)?;
    fields.0.is_empty().then_some((task, cpu))
}
