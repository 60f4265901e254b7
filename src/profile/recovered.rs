//! The accesses that the timer source recovered: the side file of a recording, one line of JSON per sample.
//!
//! The code and the pages that an operand is recovered from are gone when a profile is read, so the profile contains the
//! accesses. Lines are in the order in which the session passed on the samples, which is that of time; they are found by time,
//! CPU and thread.

use std::io::{BufRead, BufReader, Read, Write};

use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use crate::sample::{Access, MemoryId, MemoryScope, Method, Sample};
use scxprof_recover::KERNEL_HALF;

/// How far a line may be from its sample in time, ns: late samples are passed on late.
const SLACK: u64 = 1_000_000_000;
/// Lines that wait for their sample, and accesses of all of them: 40 MiB.
const MAX_WAITING: usize = 1 << 16;
const MAX_ACCESSES: usize = 1 << 18;
/// Files with a path.
const MAX_NAMED: usize = 1 << 16;
/// The most bytes of a line; one with 64 accesses has some 6 KiB.
const MAX_LINE: u64 = 64 << 10;

/// One access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveredAccess {
    /// Address of the instruction.
    pub ip: u64,
    /// Virtual address of the data.
    pub addr: u64,
    /// Its physical address, 0 if unknown.
    pub phys: u64,
    /// The kind of access: "load", "store", "update" or "unknown".
    pub op: String,
    /// Bytes.
    pub size: u16,
    /// How it was recovered, the letter of [`Method`]; empty if the hardware gave it.
    pub method: String,
    /// The mappings show shared memory, but its page is not: a mapping ended without a record.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub anonymous: bool,
    /// Its page is one of a file or of shared memory, and no mapping of these was known there: one moved without a record.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unmapped: bool,
    /// Kernel code accessed a page of a file: its device, as `makedev` packs it, its inode number and the offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<(u64, u64, u64)>,
    /// Kernel code accessed an object: the name of its cache, and the physical address that stands for the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slab: Option<(String, u64)>,
    /// The path of the file, at the first access that has it; bytes that are not UTF-8 are U+FFFD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// The accesses of one sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveredSample {
    /// The sample's, CLOCK_MONOTONIC ns.
    pub time: u64,
    /// The sample's.
    pub cpu: u32,
    /// The sample's.
    pub tid: u32,
    /// The recovered accesses.
    pub accesses: Vec<RecoveredAccess>,
}

/// The word for an access in our files.
#[must_use]
pub fn op_name(access: Access) -> &'static str {
    match access {
        Access::Unknown => "unknown",
        Access::Load => "load",
        Access::Store => "store",
        Access::Update => "update",
    }
}

/// The access for a word of our files.
#[must_use]
pub fn op(name: impl AsRef<[u8]>) -> Access {
    match name.as_ref() {
        b"load" => Access::Load,
        b"store" => Access::Store,
        b"update" => Access::Update,
        _ => Access::Unknown,
    }
}

/// The method for a letter of our files.
#[must_use]
pub fn method(name: impl AsRef<[u8]>) -> Option<Method> {
    Method::ALL.into_iter().find(|method| method.name().as_bytes() == name.as_ref())
}

fn offset(memory: MemoryId) -> Option<u64> {
    match memory {
        MemoryId::Shared { offset, .. } => Some(offset),
        _ => None,
    }
}

/// The name of the memory of an access of kernel code.
#[derive(Debug, Clone, Copy, Default)]
pub struct Names<'a> {
    /// Of an object, its cache.
    pub slab: Option<&'a [u8]>,
    /// Of a file in memory, its path.
    pub path: Option<&'a [u8]>,
}

/// Writes the side file.
#[derive(Debug)]
pub struct RecoveredWriter<W: Write> {
    out: W,
    record: u64,
    line: Option<RecoveredSample>,
    /// Files whose path was written.
    named: FxHashSet<(MemoryScope, u64)>,
    failed: Option<std::io::Error>,
}

impl<W: Write> RecoveredWriter<W> {
    /// Writes to `out`, which should be buffered.
    pub fn new(out: W) -> Self {
        Self { out, record: 0, line: None, named: FxHashSet::default(), failed: None }
    }

    /// Adds one access; those of a sample follow one another. `other_kind`: whether its page is one of a file or of shared memory,
    /// if the mappings show something else ([`RecoveredAccess::unmapped`], [`RecoveredAccess::anonymous`]). `names`: see there.
    pub fn add(&mut self, sample: &Sample, other_kind: Option<bool>, names: Names<'_>) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let is_new = match sample.memory {
            Some(MemoryId::Shared { scope, ino, .. }) if names.path.is_some() => {
                self.named.len() < MAX_NAMED && self.named.insert((scope, ino))
            }
            _ => false,
        };
        if self.record != sample.record || self.line.is_none() {
            self.write_line();
            self.record = sample.record;
            self.line = Some(RecoveredSample {
                time: sample.raw.time,
                cpu: sample.raw.cpu,
                tid: sample.raw.tid,
                accesses: Vec::new(),
            });
        }
        if let Some(line) = &mut self.line {
            line.accesses.push(RecoveredAccess {
                ip: sample.raw.ip,
                addr: sample.raw.addr,
                phys: sample.raw.phys,
                op: op_name(sample.raw.access).to_owned(),
                size: sample.raw.size,
                method: sample.raw.method.map_or("", Method::name).to_owned(),
                anonymous: other_kind == Some(false),
                unmapped: other_kind == Some(true),
                file: match sample.memory {
                    Some(MemoryId::Shared { scope, ino, offset })
                        if sample.raw.addr >= KERNEL_HALF && scope != MemoryScope::Kernel =>
                    {
                        Some((scope.number(), ino, offset))
                    }
                    _ => None,
                },
                slab: names.slab.map(text).zip(sample.memory.and_then(offset)),
                path: names.path.filter(|_| is_new).map(text),
            });
        }
    }

    fn write_line(&mut self) {
        let Some(line) = self.line.take() else { return };
        if self.failed.is_none() {
            let written = serde_json::to_writer(&mut self.out, &line)
                .map_err(std::io::Error::from)
                .and_then(|()| self.out.write_all(b"\n"));
            self.failed = written.err();
        }
    }

    /// Writes the rest.
    ///
    /// # Errors
    /// The first error so far.
    pub fn finish(mut self) -> std::io::Result<()> {
        self.write_line();
        match self.failed {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }
}

/// Reads the side file along with the samples.
#[derive(Debug)]
pub struct Recovered<R> {
    lines: BufReader<R>,
    waiting: FxHashMap<(u64, u32, u32), Vec<RecoveredAccess>>,
    /// The number of waiting accesses.
    accesses: usize,
    /// Lines have been read up to this time.
    until: u64,
    ended: bool,
    /// Malformed lines, or a line truncated at the end of the file.
    pub unreadable: u64,
    /// Lines that were dropped because too many waited for their samples.
    pub left_out: u64,
}

impl<R: Read> Recovered<R> {
    /// Reads from the beginning.
    pub fn new(inner: R) -> Self {
        Self {
            lines: BufReader::with_capacity(1 << 16, inner),
            waiting: FxHashMap::default(),
            accesses: 0,
            until: 0,
            ended: false,
            unreadable: 0,
            left_out: 0,
        }
    }

    /// The accesses of a sample; none if nothing was recovered. Samples come in the order of time.
    pub fn take(&mut self, time: u64, cpu: u32, tid: u32) -> Vec<RecoveredAccess> {
        while !self.ended && self.until < time.saturating_add(SLACK / 10) {
            if self.waiting.len() >= MAX_WAITING || self.accesses >= MAX_ACCESSES {
                self.make_room(time);
            }
            self.read_line();
        }
        let found = self.waiting.remove(&(time, cpu, tid)).unwrap_or_default();
        self.accesses -= found.len();
        found
    }

    /// Drops lines whose samples can no longer come. If these are few, drops the older half of the others: so the cost is in
    /// proportion to what is dropped.
    fn make_room(&mut self, now: u64) {
        let mut times: Vec<u64> = self.waiting.keys().map(|key| key.0).collect();
        let middle = times.len() / 2;
        let median = *times.select_nth_unstable(middle).1;
        let begin = now.saturating_sub(SLACK);
        let (accesses, left_out) = (&mut self.accesses, &mut self.left_out);
        self.waiting.retain(|key, found| {
            let stays = if begin > median { key.0 >= begin } else { key.0 > median };
            *left_out += u64::from(!stays && key.0 >= begin);
            *accesses -= if stays { 0 } else { found.len() };
            stays
        });
    }

    fn read_line(&mut self) {
        let mut text = Vec::new();
        match Read::by_ref(&mut self.lines).take(MAX_LINE).read_until(b'\n', &mut text) {
            Ok(0) => self.ended = true,
            Ok(_) => match serde_json::from_slice::<RecoveredSample>(&text) {
                Ok(line) => {
                    self.until = self.until.max(line.time);
                    self.accesses += line.accesses.len();
                    let before = self.waiting.insert((line.time, line.cpu, line.tid), line.accesses);
                    self.accesses -= before.map_or(0, |before| before.len());
                }
                Err(_) => self.unreadable += 1,
            },
            Err(_) => {
                self.unreadable += 1;
                self.ended = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::RawSample;

    /// Reads this many lines with this many accesses each; returns how much waits at most.
    fn waiting(lines: u64, accesses: usize, time: impl Fn(u64) -> u64) -> (Recovered<std::io::Cursor<Vec<u8>>>, usize) {
        let access = RecoveredAccess {
            ip: 1,
            addr: 2,
            phys: 0,
            op: "load".into(),
            size: 8,
            method: "a".into(),
            anonymous: false,
            unmapped: false,
            file: None,
            slab: None,
            path: None,
        };
        let mut text = Vec::new();
        for number in 0..lines {
            let line = RecoveredSample {
                time: time(number),
                cpu: number as u32,
                tid: 7,
                accesses: vec![access.clone(); accesses],
            };
            serde_json::to_writer(&mut text, &line).unwrap();
            text.push(b'\n');
        }
        let mut recovered = Recovered::new(std::io::Cursor::new(text));
        let mut most = 0;
        for number in 0..lines {
            recovered.take(time(number), u32::MAX, 7);
            assert!(recovered.waiting.len() <= MAX_WAITING && recovered.accesses < MAX_ACCESSES + accesses);
            most = most.max(recovered.accesses);
        }
        assert_eq!(recovered.waiting.values().map(Vec::len).sum::<usize>(), recovered.accesses);
        (recovered, most)
    }

    #[test]
    fn what_waits_for_its_sample_is_bounded() {
        let (recovered, most) = waiting(2_000, 600, |_| 5);
        assert!(most > MAX_ACCESSES / 2 && recovered.left_out > 1_000, "{most}, {}", recovered.left_out);
        let (recovered, _) = waiting(100_000, 0, |number| number);
        assert!(recovered.left_out > 30_000 && recovered.unreadable == 0, "{}", recovered.left_out);
        // Lines that are too old for any sample are no loss.
        let (recovered, _) = waiting(100_000, 0, |number| number * SLACK / 1000);
        assert_eq!(recovered.left_out, 0);
    }

    #[test]
    fn accesses_of_kernel_code_keep_their_file() {
        let file = MemoryId::Shared { scope: MemoryScope::device(0x801, 0), ino: 7, offset: 0x1040 };
        let (user, kernel) = (0x7fff_0000_1040, 0xffff_8881_0000_1040);
        let (timers, hardware) = (Some(Method::AtIp), None);
        let cases = [
            (timers, kernel, file, Some((0x801, 7, 0x1040))),
            (hardware, kernel, file, Some((0x801, 7, 0x1040))),
            (timers, user, file, None),
            (timers, kernel, MemoryId::kernel(64), None),
        ];
        for (how, addr, memory, expected) in cases {
            let mut text = Vec::new();
            let mut writer = RecoveredWriter::new(&mut text);
            let raw = RawSample { time: 5, cpu: 1, tid: 7, addr, method: how, ..RawSample::default() };
            writer.add(&Sample { raw, record: 1, memory: Some(memory), ..Sample::default() }, None, Names::default());
            writer.finish().unwrap();
            let accesses = Recovered::new(std::io::Cursor::new(text)).take(5, 1, 7);
            let read = accesses.iter().map(|access| (access.file, method(&access.method)));
            assert_eq!(read.collect::<Vec<_>>(), [(expected, how)]);
        }
    }

    #[test]
    fn accesses_are_found_again_by_their_sample() {
        let mut file = Vec::new();
        let mut writer = RecoveredWriter::new(&mut file);
        let access = |record, time, addr| Sample {
            raw: RawSample {
                time,
                addr,
                cpu: 1,
                tid: 9,
                access: Access::Store,
                size: 8,
                method: Some(Method::Emulated),
                ..RawSample::default()
            },
            record,
            ..Sample::default()
        };
        for sample in [access(1, 10, 0x10), access(1, 10, 0x20), access(3, 30, 0x30)] {
            writer.add(&sample, None, Names::default());
        }
        writer.finish().unwrap();
        file.extend_from_slice(b"{\"time\":5");
        let mut recovered = Recovered::new(&file[..]);
        let found = recovered.take(10, 1, 9);
        assert_eq!(found.iter().map(|access| access.addr).collect::<Vec<_>>(), [0x10, 0x20]);
        assert_eq!((op(&found[0].op), method(&found[0].method)), (Access::Store, Some(Method::Emulated)));
        assert!(recovered.take(20, 1, 9).is_empty());
        assert_eq!(recovered.take(30, 1, 9).len(), 1);
        assert_eq!(recovered.unreadable, 1, "the cut line");
    }
}
