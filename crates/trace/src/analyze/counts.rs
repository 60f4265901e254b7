//! The engine of counts.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::text_table::{of_all, TextTable};
use super::{Context, Findings, Id};
use crate::{Event, Name, TraceWhat};
use scxprof_base::sample::printable;

/// Network devices that are counted one by one; packets of later ones are only in the totals.
const MAX_DEVICES: usize = 4096;

/// Packets of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Packets {
    /// Their number.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Packets {
    fn add(&mut self, bytes: u64) {
        self.packets += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NetworkLine {
    /// Its name.
    pub device: String,
    /// Sent (`net_dev_xmit`).
    pub sent: Packets,
    /// Received (`netif_receive_skb`).
    pub received: Packets,
}

/// The result of `network_io`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NetworkIo {
    /// Of all devices.
    pub sent: Packets,
    /// Of all devices.
    pub received: Packets,
    /// Packets of devices for which there was no room.
    pub no_room: u64,
    /// How many devices there are.
    pub device_count: usize,
    /// Those of most bytes first.
    pub devices: Vec<NetworkLine>,
}

impl NetworkIo {
    pub(super) fn tables(&self) -> Vec<TextTable> {
        let head = ["DEVICE", "SENT", "BYTES", "RECEIVED", "BYTES"];
        let mut table = TextTable::new(of_all("Network devices", self.devices.len(), self.device_count), &head);
        let mut push = |name: &str, sent: Packets, received: Packets| {
            let numbers = [sent.packets, sent.bytes, received.packets, received.bytes];
            table.push(std::iter::once(name.to_owned()).chain(numbers.map(|number| number.to_string())).collect());
        };
        for line in &self.devices {
            push(&line.device, line.sent, line.received);
        }
        push("all", self.sent, self.received);
        vec![table]
    }
}

/// Counts events.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Received and sent packets, by device.
    devices: FxHashMap<Name, [Packets; 2]>,
    all: [Packets; 2],
    no_room: u64,
}

impl Counts {
    pub(super) fn take(&mut self, event: &Event) {
        let Event::Trace(event) = event else { return };
        let TraceWhat::Net { is_sent, bytes, device } = event.what else { return };
        let at = usize::from(is_sent);
        self.all[at].add(bytes);
        if self.devices.len() < MAX_DEVICES || self.devices.contains_key(&device) {
            self.devices.entry(device).or_default()[at].add(bytes);
        } else {
            self.no_room += 1;
        }
    }

    pub(super) fn finish(self, context: &Context<'_>, out: &mut Vec<Findings>) {
        if !context.options.wants(Id::NetworkIo) {
            return;
        }
        let line = |(device, [received, sent]): (&Name, &[Packets; 2])| NetworkLine {
            device: printable(context.names.text(*device)),
            sent: *sent,
            received: *received,
        };
        let mut devices: Vec<NetworkLine> = self.devices.iter().map(line).collect();
        devices.sort_by_cached_key(|line| (Reverse(line.sent.bytes + line.received.bytes), line.device.clone()));
        let device_count = devices.len();
        devices.truncate(context.options.limit);
        let [received, sent] = self.all;
        out.push(NetworkIo { sent, received, no_room: self.no_room, device_count, devices }.into());
    }
}
