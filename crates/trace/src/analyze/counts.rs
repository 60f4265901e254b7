//! The engine of counts.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::text_table::{of_all, us, Spread, TextTable, ThreadName};
use super::{Context, Findings, Id};
use crate::{Event, Name, TraceEvent, TraceWhat};
use scxprof_base::sample::printable;
use scxprof_sched::report::Times;
use scxprof_sched::{Durations, Sums};

/// Network devices that are counted one by one; packets of later ones are only in the totals.
const MAX_DEVICES: usize = 4096;
/// Threads whose chains of waits are told apart.
const MAX_CHAINED: usize = 1 << 16;

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

/// The longest chains of waits of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CompoundLine {
    /// The thread.
    #[serde(flatten)]
    pub thread: ThreadName,
    /// All waits of the chain that led to each of its runs.
    #[serde(flatten)]
    pub delay: Times,
    /// The most waits of a chain.
    pub longest_chain: u64,
}

/// The result of `compound_delay`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CompoundDelay {
    /// All waits of the chain that led to a run.
    pub delay: Spread,
    /// The mean number of waits of a chain.
    pub mean_chain: Option<f64>,
    /// The most.
    pub longest_chain: u64,
    /// How many threads there are.
    pub thread_count: usize,
    /// Those of the longest delay first.
    pub threads: Vec<CompoundLine>,
    /// Runs of threads for which there was no room.
    pub no_room: u64,
}

impl CompoundDelay {
    pub(super) fn tables(&self) -> Vec<TextTable> {
        let mut all = TextTable::of_spreads("Waits of the whole chain before a run", "RUNS");
        all.push_spread("all".to_owned(), &self.delay);
        let mean = self.mean_chain.map_or("-".to_owned(), |mean| format!("{mean:.2}"));
        let values = [("waits of a chain, mean", mean), ("waits of a chain, most", self.longest_chain.to_string())];
        let mut head = ThreadName::HEAD.to_vec();
        head.extend(["COUNT", "MEAN(us)", "MAX(us)", "CHAIN"]);
        let mut threads = TextTable::new(of_all("Threads", self.threads.len(), self.thread_count), &head);
        for line in &self.threads {
            let Times { count, mean_ns, max_ns, .. } = line.delay;
            let mut row = line.thread.cells();
            row.extend([count.to_string(), us(mean_ns), us(max_ns), line.longest_chain.to_string()]);
            threads.push(row);
        }
        vec![all, TextTable::of_values("", &values), threads]
    }
}

/// Adds up what wprof says of chains of waits.
#[derive(Debug, Default)]
struct Compound {
    all: Durations,
    chains: u64,
    threads: FxHashMap<u32, (Sums, u64)>,
    no_room: u64,
}

impl Compound {
    fn take(&mut self, tid: u32, delay: u64, chain: u64) {
        self.all.add(delay);
        self.chains = self.chains.saturating_add(chain);
        if self.threads.len() < MAX_CHAINED || self.threads.contains_key(&tid) {
            let (sums, longest) = self.threads.entry(tid).or_default();
            sums.add(delay);
            *longest = chain.max(*longest);
        } else {
            self.no_room += 1;
        }
    }

    fn finish(self, context: &Context<'_>) -> CompoundDelay {
        let line = |(&tid, (sums, longest)): (&u32, &(Sums, u64))| {
            let known = context.threads.get(tid);
            let pid = known.map(|known| known.pid).filter(|pid| *pid != TraceEvent::UNKNOWN);
            let name = known.map_or_else(String::new, |known| known.comm.to_string());
            let thread = ThreadName { name, tid, pid };
            CompoundLine { thread, delay: Times::from(sums), longest_chain: *longest }
        };
        let longest_chain = self.threads.values().map(|(_, longest)| *longest).max().unwrap_or(0);
        let mut threads: Vec<CompoundLine> = self.threads.iter().map(line).collect();
        threads.sort_by_key(|line| (Reverse(line.delay.max_ns), line.thread.tid));
        let thread_count = threads.len();
        threads.truncate(context.options.limit);
        let count = self.all.count();
        let mean_chain = (count > 0).then(|| self.chains as f64 / count as f64);
        CompoundDelay {
            delay: Spread::from(&self.all),
            mean_chain,
            longest_chain,
            thread_count,
            threads,
            no_room: self.no_room,
        }
    }
}

/// Counts events.
#[derive(Debug, Default)]
pub(super) struct Counts {
    compound: Compound,
    /// Received and sent packets, by device.
    devices: FxHashMap<Name, [Packets; 2]>,
    all: [Packets; 2],
    no_room: u64,
}

impl Counts {
    pub(super) fn take(&mut self, event: &Event) {
        let Event::Trace(event) = event else { return };
        if let TraceWhat::Waited { compound: Some(delay), chain, .. } = event.what {
            self.compound.take(event.tid, delay, chain.unwrap_or(0));
        }
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
        if context.options.wants(Id::CompoundDelay) {
            out.push(self.compound.finish(context).into());
        }
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
