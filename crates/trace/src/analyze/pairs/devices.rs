//! Requests to block devices, waits for files, memory that has to be freed, and steps of suspend.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{line, Open, Unpaired};
use crate::analyze::text_table::{of_all, Spread, TextTable};
use crate::analyze::Context;
use crate::{BlockStep, Name, TraceEvent, TraceWhat};
use scxprof_base::sample::printable;
use scxprof_sched::Durations;

/// A device as the kernel prints it: `MAJOR:MINOR`.
fn device(dev: u64) -> String {
    format!("{}:{}", dev >> 20, dev & 0xf_ffff)
}

/// A request on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    inserted: Option<u64>,
    issued: Option<u64>,
}

/// What is known of a device in one direction.
#[derive(Debug, Default)]
struct Requests {
    count: u64,
    bytes: u64,
    errors: u64,
    queue: Durations,
    device: Durations,
}

impl Requests {
    fn finish(&self, name: String, is_write: Option<bool>) -> BlockLine {
        BlockLine {
            device: name,
            is_write,
            completed: self.count,
            bytes: self.bytes,
            errors: self.errors,
            queue: Spread::from(&self.queue),
            in_device: Spread::from(&self.device),
        }
    }
}

/// Follows requests to block devices.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub(super) open: Open<(u64, u64), Request>,
    all: Requests,
    lines: FxHashMap<(u64, bool), Requests>,
    no_room: u64,
}

impl Block {
    pub(super) fn take(&mut self, event: &TraceEvent) {
        let TraceWhat::Block { step, dev, sector, bytes, write, error } = event.what else { return };
        let (time, key) = (event.time, (dev, sector));
        match step {
            BlockStep::Insert => self.open.begin(key, Request { inserted: Some(time), issued: None }),
            BlockStep::Issue => match self.open.open.get_mut(&key).filter(|request| request.issued.is_none()) {
                Some(request) => {
                    request.issued = Some(time);
                    if let Some(inserted) = request.inserted {
                        let ns = time.saturating_sub(inserted);
                        self.all.queue.add(ns);
                        if let Some(of) = line(&mut self.lines, (dev, write)) {
                            of.queue.add(ns);
                        }
                    }
                }
                // Without a scheduler a request is issued at once.
                None => self.open.begin(key, Request { inserted: None, issued: Some(time) }),
            },
            BlockStep::Complete => {
                let issued = self.open.end(&key).and_then(|request| request.issued);
                let of = line(&mut self.lines, (dev, write));
                self.no_room += u64::from(of.is_none());
                for sums in [Some(&mut self.all), of].into_iter().flatten() {
                    sums.count += 1;
                    sums.bytes = sums.bytes.saturating_add(bytes);
                    sums.errors += u64::from(error != 0);
                    if let Some(issued) = issued {
                        sums.device.add(time.saturating_sub(issued));
                    }
                }
            }
        }
    }

    pub(super) fn finish(self, context: &Context<'_>) -> BlockIo {
        let of = |(&(dev, is_write), requests): (&(u64, bool), &Requests)| requests.finish(device(dev), Some(is_write));
        let mut devices: Vec<BlockLine> = self.lines.iter().map(of).collect();
        devices.sort_by_cached_key(|line| (Reverse(line.bytes), line.device.clone(), line.is_write));
        let device_count = devices.len();
        devices.truncate(context.options.limit);
        let mut unpaired = self.open.finish();
        unpaired.no_room += self.no_room;
        BlockIo { all: self.all.finish("all".to_owned(), None), device_count, devices, unpaired }
    }
}

/// Requests to a block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockLine {
    /// `MAJOR:MINOR`.
    pub device: String,
    /// They write; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_write: Option<bool>,
    /// Completed requests.
    pub completed: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them that failed.
    pub errors: u64,
    /// From `block_rq_insert` to `block_rq_issue`.
    pub queue: Spread,
    /// From `block_rq_issue` to `block_rq_complete`.
    pub in_device: Spread,
}

/// The result of `block_io`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlockIo {
    /// All requests.
    pub all: BlockLine,
    /// How many lines there are.
    pub device_count: usize,
    /// By device and direction, those of the most bytes first.
    pub devices: Vec<BlockLine>,
    /// Steps that are in no latency.
    pub unpaired: Unpaired,
}

impl BlockIo {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let head = ["DEVICE", "DIRECTION", "COMPLETED", "BYTES", "ERRORS"];
        let mut table = TextTable::new(of_all("Requests", self.devices.len(), self.device_count), &head);
        let mut queue = TextTable::of_spreads("From block_rq_insert to block_rq_issue", "DEVICE");
        let mut in_device = TextTable::of_spreads("From block_rq_issue to block_rq_complete", "DEVICE");
        for line in self.devices.iter().chain([&self.all]) {
            let direction = line.is_write.map_or("", |is_write| if is_write { "write" } else { "read" });
            let counts = [line.completed, line.bytes, line.errors].map(|count| count.to_string());
            table.push([line.device.clone(), direction.to_owned()].into_iter().chain(counts).collect());
            queue.push_spread(format!("{} {direction}", line.device), &line.queue);
            in_device.push_spread(format!("{} {direction}", line.device), &line.in_device);
        }
        vec![table, queue, in_device, TextTable::of_values("", &[self.unpaired.row()])]
    }
}

/// Follows waits for files to be written.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// By thread, device and inode.
    pub(super) open: Open<(u32, u64, u64), u64>,
    all: Durations,
    errors: u64,
    lines: FxHashMap<(u64, u64), Durations>,
    no_room: u64,
}

impl Files {
    pub(super) fn take(&mut self, event: &TraceEvent) {
        match event.what {
            TraceWhat::SyncEnter { dev, inode } => self.open.begin((event.tid, dev, inode), event.time),
            TraceWhat::SyncExit { dev, inode, result } => {
                self.errors += u64::from(result < 0);
                let Some(since) = self.open.end(&(event.tid, dev, inode)) else { return };
                let ns = event.time.saturating_sub(since);
                self.all.add(ns);
                match line(&mut self.lines, (dev, inode)) {
                    Some(durations) => durations.add(ns),
                    None => self.no_room += 1,
                }
            }
            _ => {}
        }
    }

    pub(super) fn finish(self, context: &Context<'_>) -> FileIo {
        let of = |(&(dev, inode), durations): (&(u64, u64), &Durations)| FileLine {
            device: device(dev),
            inode,
            syncs: Spread::from(durations),
        };
        let mut files: Vec<FileLine> = self.lines.iter().map(of).collect();
        files.sort_by_cached_key(|line| (Reverse(line.syncs.total_ns), line.device.clone(), line.inode));
        let file_count = files.len();
        files.truncate(context.options.limit);
        let mut unpaired = self.open.finish();
        unpaired.no_room += self.no_room;
        FileIo { syncs: Spread::from(&self.all), errors: self.errors, file_count, files, unpaired }
    }
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileLine {
    /// `MAJOR:MINOR`.
    pub device: String,
    /// Its inode.
    pub inode: u64,
    /// Waits for it.
    #[serde(flatten)]
    pub syncs: Spread,
}

/// The result of `file_io`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileIo {
    /// All waits.
    pub syncs: Spread,
    /// Those that failed.
    pub errors: u64,
    /// How many files there are.
    pub file_count: usize,
    /// Those of the longest time first.
    pub files: Vec<FileLine>,
    /// Those that no other number counts.
    pub unpaired: Unpaired,
}

impl FileIo {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let mut table = TextTable::of_spreads(of_all("fsync", self.files.len(), self.file_count), "FILE");
        for line in &self.files {
            table.push_spread(format!("{} inode {}", line.device, line.inode), &line.syncs);
        }
        table.push_spread("all".to_owned(), &self.syncs);
        let values = [("errors", self.errors.to_string()), self.unpaired.row()];
        vec![table, TextTable::of_values("", &values)]
    }
}

/// Follows memory.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// By thread.
    pub(super) open: Open<u32, u64>,
    counts: [MemoryCounts; 2],
    reclaim: Durations,
    reclaimed: u64,
}

/// Pages that were allocated, or freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MemoryCounts {
    /// Events.
    pub count: u64,
    /// Pages: 2 to the power of the order of each.
    pub pages: u64,
}

impl Memory {
    pub(super) fn take(&mut self, event: &TraceEvent) {
        match event.what {
            TraceWhat::Page { is_alloc, order, pfn } => {
                // An allocation that failed has no page: its number is -1 (include/trace/events/kmem.h).
                let pages = if is_alloc && pfn == u64::MAX { 0 } else { 1u64.checked_shl(order).unwrap_or(0) };
                let counts = &mut self.counts[usize::from(is_alloc)];
                counts.count += 1;
                counts.pages = counts.pages.saturating_add(pages);
            }
            TraceWhat::ReclaimBegin { .. } => self.open.begin(event.tid, event.time),
            TraceWhat::ReclaimEnd { reclaimed } => {
                self.reclaimed = self.reclaimed.saturating_add(reclaimed);
                if let Some(since) = self.open.end(&event.tid) {
                    self.reclaim.add(event.time.saturating_sub(since));
                }
            }
            _ => {}
        }
    }

    pub(super) fn finish(self) -> MemoryPressure {
        let [freed, allocated] = self.counts;
        MemoryPressure {
            allocated,
            freed,
            net_pages: allocated.pages as i64 - freed.pages as i64,
            reclaims: Spread::from(&self.reclaim),
            reclaimed_pages: self.reclaimed,
            unpaired: self.open.finish(),
        }
    }
}

/// The result of `memory_pressure`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryPressure {
    /// `mm_page_alloc`.
    pub allocated: MemoryCounts,
    /// `mm_page_free`.
    pub freed: MemoryCounts,
    /// Pages allocated without those freed.
    pub net_pages: i64,
    /// How long allocations had to free pages first (direct reclaim).
    pub reclaims: Spread,
    /// Pages that these freed.
    pub reclaimed_pages: u64,
    /// Those that no other number counts.
    pub unpaired: Unpaired,
}

impl MemoryPressure {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let mut pages = TextTable::new("Pages", &["WHAT", "EVENTS", "PAGES"]);
        for (name, counts) in [("allocated", self.allocated), ("freed", self.freed)] {
            pages.push(vec![name.to_owned(), counts.count.to_string(), counts.pages.to_string()]);
        }
        let mut reclaims = TextTable::of_spreads("Direct reclaim", "WHAT");
        reclaims.push_spread("all".to_owned(), &self.reclaims);
        let values = [
            ("pages allocated without those freed", self.net_pages.to_string()),
            ("pages that direct reclaim freed", self.reclaimed_pages.to_string()),
            self.unpaired.row(),
        ];
        vec![pages, reclaims, TextTable::of_values("", &values)]
    }
}

/// Follows steps of suspend and resume.
#[derive(Debug, Default)]
pub(super) struct Power {
    /// By step and its argument.
    pub(super) open: Open<(Name, i64), u64>,
    lines: BTreeMap<Name, Durations>,
}

impl Power {
    pub(super) fn take(&mut self, event: &TraceEvent) {
        let TraceWhat::Suspend { action, value, is_begin } = event.what else { return };
        if is_begin {
            return self.open.begin((action, value), event.time);
        }
        let Some(since) = self.open.end(&(action, value)) else { return };
        if self.lines.len() < super::MAX_LINES || self.lines.contains_key(&action) {
            self.lines.entry(action).or_default().add(event.time.saturating_sub(since));
        } else {
            self.open.counts.no_room += 1;
        }
    }

    pub(super) fn finish(self, context: &Context<'_>) -> PowerState {
        let of = |(action, durations): (&Name, &Durations)| PowerLine {
            action: printable(context.names.text(*action)),
            times: Spread::from(durations),
        };
        let mut actions: Vec<PowerLine> = self.lines.iter().map(of).collect();
        actions.sort_by_cached_key(|line| (Reverse(line.times.total_ns), line.action.clone()));
        let action_count = actions.len();
        actions.truncate(context.options.limit);
        PowerState { action_count, actions, unpaired: self.open.finish() }
    }
}

/// A step of suspend or resume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PowerLine {
    /// What the kernel does, such as `dpm_suspend`.
    pub action: String,
    /// How long.
    #[serde(flatten)]
    pub times: Spread,
}

/// The result of `power_state`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PowerState {
    /// How many steps there are.
    pub action_count: usize,
    /// Those of the longest time first.
    pub actions: Vec<PowerLine>,
    /// Those that no other number counts.
    pub unpaired: Unpaired,
}

impl PowerState {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let mut table =
            TextTable::of_spreads(of_all("Steps of suspend and resume", self.actions.len(), self.action_count), "STEP");
        for line in &self.actions {
            table.push_spread(line.action.clone(), &line.times);
        }
        vec![table, TextTable::of_values("", &[self.unpaired.row()])]
    }
}
