//! Events of tracks, with categories and annotations by their numbers.

use std::borrow::Cow;

use crate::write::Message;

/// Categories and names of annotations; their numbers begin at 1.
pub(super) const CATEGORIES: [&str; 24] = [
    "ONCPU",
    "WAKER",
    "WAKEE",
    "WAKER_NEW",
    "WAKEE_NEW",
    "PREEMPTOR",
    "PREEMPTEE",
    "HARDIRQ",
    "SOFTIRQ",
    "WQ",
    "IPI",
    "IPI_SEND",
    "SCX_DSQ",
    "FORKING",
    "FORKED",
    "EXEC",
    "EXIT",
    "FREE",
    "RENAME",
    "TIMER",
    "REQUEST",
    "REQUEST_SET",
    "REQUEST_UNSET",
    "REQUEST_END",
];
pub(super) const ARGS: [&str; 24] = [
    "cpu",
    "numa_node",
    "offcpu_reason",
    "offcpu_dur_us",
    "waking_reason",
    "waking_delay_us",
    "waker",
    "waker_tid",
    "waker_pid",
    "waker_cpu",
    "compound_delay_us",
    "compound_chain_len",
    "wakee",
    "wakee_tid",
    "wakee_pid",
    "irq",
    "action",
    "target_cpu",
    "sender_cpu",
    "ipi_delay_us",
    "forked_into",
    "forked_into_tid",
    "scx_dsq_id",
    "scx_layer_id",
];

/// An event of a track, as it is built.
pub(super) struct Event(pub(super) Message);

impl Event {
    pub(super) const BEGIN: u64 = 1;
    pub(super) const END: u64 = 2;
    pub(super) const INSTANT: u64 = 3;

    pub(super) fn new(kind: u64, track: u64, category: &str, name: &str) -> Self {
        let event = Message::new().int(9, kind).int(11, track).text(23, name.as_bytes());
        Self(match number(&CATEGORIES, category) {
            Some(category) => event.int(3, category),
            None => event.text(22, category.as_bytes()),
        })
    }

    pub(super) fn arg(self, name: &str, value: impl FnOnce(Message) -> Message) -> Self {
        let named = match number(&ARGS, name) {
            Some(name) => Message::new().int(1, name),
            None => Message::new().text(10, name.as_bytes()),
        };
        Self(self.0.message(4, &value(named)))
    }

    pub(super) fn int(self, name: &str, value: Option<impl Into<i128>>) -> Self {
        // Of 64 bits, as two's complement.
        match value {
            Some(value) => self.arg(name, |arg| arg.int(4, value.into() as u64)),
            None => self,
        }
    }

    pub(super) fn text(self, name: &str, value: Option<&Cow<'_, str>>) -> Self {
        match value {
            Some(value) => self.arg(name, |arg| arg.text(6, value.as_bytes())),
            None => self,
        }
    }

    /// Seconds, as microseconds.
    pub(super) fn us(self, name: &str, seconds: Option<f64>) -> Self {
        match seconds {
            Some(seconds) => self.arg(name, |arg| arg.double(5, seconds * 1e6)),
            None => self,
        }
    }

    pub(super) fn flow(self, id: u64) -> Self {
        Self(self.0.fixed(47, id))
    }

    pub(super) fn stack(self, id: Option<u64>) -> Self {
        match id {
            Some(id) if id != 0 => Self(self.0.int(56, id)),
            _ => self,
        }
    }
}

/// The number of an interned text.
fn number(table: &[&str], text: &str) -> Option<u64> {
    table.iter().position(|entry| *entry == text).map(|at| at as u64 + 1)
}
