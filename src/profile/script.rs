//! Reads the text of `perf script`, if a recording has nothing else left: one sample per line.
//!
//! perf prints the fields in this order, whatever the order of its `-F` (`process_event` in tools/perf/builtin-script.c):
//!
//! ```text
//! COMM PID/TID [CPU] TIME: PERIOD EVENT: ADDR SYM (DSO) DATA_SRC WEIGHT CGROUP IP SYM (DSO) PHYS_ADDR DATA_PAGE_SIZE
//! ```
//!
//! scx_characterize requests `comm,tid,pid,time,cgroup,ip,addr,phys_addr,data_page_size,dso,sym`; the first `SYM (DSO)` is that
//! of the data, and present only for page faults. COMM, PID, TID, TIME, ADDR and IP are required. Names are printed unchanged,
//! with spaces and slashes; only perf's right alignment of most numbers in columns distinguishes them from names.

use std::io::{self, BufRead, Read};

use super::disorder::Disorder;
use super::jsonl::{parse_time, Missing};
use crate::resolve::maps::USER_END;
use crate::sample::{Comm, DataSource, MemoryId, RawSample, Sample};

/// Bytes of a line: the paths of a cgroup and of two files have at most 4 KiB each, C++ symbols some more.
const MAX_LINE: usize = 64 << 10;
/// The number of unreadable lines that are listed.
const MAX_LISTED: usize = 1000;
/// The width of the column in which perf right-aligns a name or an address.
const COLUMN: usize = 16;
/// The most bytes of a name that is not aligned.
const MAX_NAME: usize = 64;

/// Prints all that a line needs; `cpu`, `data_src`, `weight`, `cgroup`, `phys_addr` and `data_page_size` add more if they were
/// recorded.
pub(crate) const COMMAND: &str = "perf script -F comm,pid,tid,time,addr,ip";

/// Why a line is no valid sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// No process, thread and time, which precede all other fields.
    #[error("it has no COMM PID/TID TIME:")]
    Head,
    /// An address is missing, or a name is truncated.
    #[error("its fields are not those of -F comm,pid,tid,time,addr,ip and others (with -G if calls were recorded)")]
    Fields,
    /// It has fewer fields than the other lines of the file.
    #[error("it lacks fields that the lines before it have")]
    Fewer,
    /// It is longer than any valid line.
    #[error("it has more than 64 KiB")]
    Long,
    /// Its end is missing.
    #[error("the file ends within it")]
    Cut,
}

/// Which optional fields a line has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Has {
    cgroup: bool,
    dso: bool,
    phys: bool,
    page_size: bool,
}

impl Has {
    fn flags(self) -> [bool; 4] {
        [self.cgroup, self.dso, self.phys, self.page_size]
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptSample {
    /// The access; the reader fills in its `cgroup` and its `thread`.
    pub sample: Sample,
    /// The cgroup's path.
    pub cgroup: Option<Vec<u8>>,
}

/// Reads lines; counts those that it cannot parse.
#[derive(Debug)]
pub struct Reader<R> {
    inner: R,
    line: Vec<u8>,
    has: Has,
    /// All lines so far.
    number: u64,
    /// Lines so far that are neither empty nor perf's header.
    pub lines: u64,
    /// Of these, lines that are no valid sample.
    pub unreadable: u64,
    /// The first thousand of them: their numbers and the reasons.
    pub listed: Vec<(u64, Unreadable)>,
    /// The file ends within a line.
    pub cut: bool,
    /// The fields that lines lacked.
    pub missing: Missing,
    /// Lines that came after later ones of their thread.
    pub disorder: Disorder,
}

impl<R: BufRead> Reader<R> {
    /// Reads from the beginning.
    pub fn new(inner: R) -> Self {
        Self {
            inner,
            line: Vec::new(),
            has: Has::default(),
            number: 0,
            lines: 0,
            unreadable: 0,
            listed: Vec::new(),
            cut: false,
            missing: Missing::default(),
            disorder: Disorder::default(),
        }
    }

    /// The next line that is a sample; `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn next_line(&mut self) -> io::Result<Option<ScriptSample>> {
        loop {
            self.line.clear();
            let read = Read::by_ref(&mut self.inner).take(MAX_LINE as u64).read_until(b'\n', &mut self.line)?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            let whole = self.line.ends_with(b"\n");
            if self.line.trim_ascii().is_empty() {
                continue;
            }
            self.lines += 1;
            let parsed = if whole {
                parse(self.line.trim_ascii_end())
            } else if read == MAX_LINE {
                self.inner.skip_until(b'\n')?;
                Err(Unreadable::Long)
            } else {
                self.cut = true;
                Err(Unreadable::Cut)
            };
            match parsed.and_then(|(line, has)| self.judge(line, has)) {
                Ok(line) => {
                    self.disorder.observe(line.sample.raw.tid, line.sample.raw.time);
                    return Ok(Some(line));
                }
                // `perf script --header` says there what was recorded where. A thread's name may begin so, too.
                Err(_) if whole && self.line.starts_with(b"#") => self.lines -= 1,
                Err(why) => {
                    self.unreadable += 1;
                    if self.listed.len() < MAX_LISTED {
                        self.listed.push((self.number, why));
                    }
                }
            }
        }
    }

    /// Rejects a line that lost fields, and counts the fields that it never had.
    fn judge(&mut self, line: ScriptSample, has: Has) -> Result<ScriptSample, Unreadable> {
        if self.has.flags().into_iter().zip(has.flags()).any(|(before, now)| before && !now) {
            return Err(Unreadable::Fewer);
        }
        self.has = has;
        let Missing { memory, op, weight, cgroup, thread, page_size } = &mut self.missing;
        *memory += 1;
        *thread += 1;
        *op += u64::from(line.sample.raw.data_src.0 == 0);
        *weight += u64::from(line.sample.raw.latency == 0 && line.sample.raw.data_src.0 == 0);
        *cgroup += u64::from(line.cgroup.is_none());
        *page_size += u64::from(!has.page_size);
        Ok(line)
    }
}

/// The fields before the addresses.
pub(super) struct Head<'a> {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) cpu: u32,
    pub(super) time: u64,
    pub(super) rest: &'a [u8],
}

/// The fields after the time.
#[derive(Default)]
struct Fields<'a> {
    addr: u64,
    data_src: u64,
    weight: u32,
    cgroup: Option<&'a [u8]>,
    ip: u64,
    phys: u64,
    page_size: u64,
    has: Has,
}

fn parse(line: &[u8]) -> Result<(ScriptSample, Has), Unreadable> {
    let (comm, columns, Head { pid, tid, cpu, time, rest }) = head(line).ok_or(Unreadable::Head)?;
    let fields = fields(rest, columns).ok_or(Unreadable::Fields)?;
    let Fields { addr, data_src, weight, cgroup, ip, phys, page_size, has } = fields;
    // Without mappings, the frame identifies the memory, or else its process and address.
    let memory = match (addr, phys) {
        (0 | USER_END.., _) => None,
        (_, 0) => Some(MemoryId::Private { space: pid, addr }),
        _ => Some(MemoryId::Frame { phys }),
    };
    // perf prints this for a thread that it cannot name.
    let unnamed = comm.strip_prefix(b":").is_some_and(|digits| number(digits) == Some(u64::from(tid)));
    let data_src = DataSource(data_src);
    let sample = Sample {
        raw: RawSample {
            time,
            pid,
            tid,
            cpu,
            access: data_src.access(),
            ip,
            addr,
            phys,
            page_size,
            latency: weight,
            data_src,
            ..RawSample::default()
        },
        comm: (!unnamed).then(|| Comm::new(comm)),
        memory,
        ..Sample::default()
    };
    Ok((ScriptSample { sample, cgroup: cgroup.map(<[u8]>::to_vec) }, has))
}

/// The name, which may look like the fields after it; whether the line has columns, which lines by other programs may lack; and
/// the fields after the name.
pub(super) fn head(line: &[u8]) -> Option<(&[u8], bool, Head<'_>)> {
    // A name is shorter than its column.
    if let Some((comm, rest)) = line.split_at_checked(COLUMN).filter(|(_, rest)| rest.starts_with(b" ")) {
        if let Some(head) = ids(rest) {
            let spaces = comm.iter().take_while(|&&byte| byte == b' ').count();
            return Some((comm.get(spaces..)?, true, head));
        }
    }
    let spaces = line.iter().take(MAX_NAME).enumerate().filter(|(_, &byte)| byte == b' ');
    let mut splits = spaces.filter_map(|(at, _)| line.split_at_checked(at));
    // Without a name, which only a column can show, the fields start earlier.
    splits.find_map(|(comm, rest)| Some((Some(comm.trim_ascii()).filter(|comm| !comm.is_empty())?, false, ids(rest)?)))
}

/// `PID/TID [CPU] TIME:`
fn ids(line: &[u8]) -> Option<Head<'_>> {
    let ids = word(line, 0)?;
    let slash = ids.text.iter().position(|&byte| byte == b'/')?;
    let (pid, tid) = (id(ids.text.get(..slash)?)?, id(ids.text.get(slash + 1..)?)?);
    let mut next = word(line, ids.end)?;
    let mut cpu = RawSample::NO_CPU;
    if let Some(digits) = next.text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]")) {
        cpu = u32::try_from(number(digits)?).ok()?;
        next = word(line, next.end)?;
    }
    let time = std::str::from_utf8(next.text.strip_suffix(b":")?).ok().filter(|time| time.contains('.'))?;
    Some(Head { pid, tid, cpu, time: parse_time(time)?, rest: line.get(next.end..)? })
}

/// The fields after the time; with `columns`, only a word that is right-aligned as in perf is an address.
fn fields(line: &[u8], columns: bool) -> Option<Fields<'_>> {
    let mut fields = Fields::default();
    let mut next = word(line, 0)?;
    // PERIOD EVENT:
    let second = word(line, next.end)?;
    if next.text.ends_with(b":") {
        next = second;
    } else if !(columns && next.width >= COLUMN) && number(next.text).is_some() && second.text.ends_with(b":") {
        next = word(line, second.end)?;
    }
    fields.addr = hex(next.text)?;
    next = word(line, next.end)?;
    let is_ip = |word: &Word<'_>| hex(word.text).is_some() && (!columns || word.width >= COLUMN);
    let begins_path = |word: &Word<'_>| word.text.starts_with(b"/") || word.text == b"unknown";
    if !is_ip(&next) && !begins_path(&next) && !follows_data_src(line, &next) {
        // The symbol of the data, followed by its file in parentheses; a name may contain some itself.
        let mut from = next.begin;
        next = loop {
            from += line.get(from..)?.windows(2).position(|pair| pair == b") ")? + 1;
            let after = word(line, from)?;
            if is_ip(&after) || begins_path(&after) || follows_data_src(line, &after) {
                break after;
            }
        };
    }
    if follows_data_src(line, &next) {
        fields.data_src = hex(next.text)?;
        // The same in words, then the weight, which may be missing; only the column separates the two.
        next = loop {
            next = word(line, next.end)?;
            let weight = number(next.text).filter(|_| !columns || next.width + 1 >= COLUMN);
            let after = word(line, next.end).filter(|after| is_ip(after) || begins_path(after));
            if let (Some(weight), Some(after)) = (weight, after) {
                fields.weight = u32::try_from(weight).ok()?;
                break after;
            }
            if is_ip(&next) || begins_path(&next) {
                break next;
            }
        };
    }
    if begins_path(&next) {
        let begin = next.begin;
        let mut end = next.end;
        next = word(line, end)?;
        while !is_ip(&next) {
            end = next.end;
            next = word(line, end)?;
        }
        // A name may end with spaces, which the columns show.
        let end = if columns { next.end.saturating_sub(COLUMN.max(next.text.len()) + 1) } else { end };
        let path = line.get(begin..end)?;
        fields.has.cgroup = true;
        fields.cgroup = Some(path).filter(|path| path.starts_with(b"/"));
    }
    if !is_ip(&next) {
        return None;
    }
    fields.ip = hex(next.text)?;
    tail(&mut fields, line.get(next.end..)?, columns)?;
    Some(fields)
}

/// `SYM (DSO) PHYS_ADDR DATA_PAGE_SIZE`, from its end.
fn tail(fields: &mut Fields<'_>, line: &[u8], columns: bool) -> Option<()> {
    let mut rest = line.trim_ascii_end();
    let last = |rest: &[u8]| rest.iter().rposition(|&byte| byte == b' ' || byte == b')').map(|at| at + 1);
    if let Some((before, size)) = last(rest).and_then(|at| rest.split_at_checked(at)) {
        if let Some(size) = page_size(size) {
            fields.page_size = size;
            fields.has.page_size = true;
            rest = before.trim_ascii_end();
        }
    }
    if let Some((before, word)) = last(rest).and_then(|at| rest.split_at_checked(at)) {
        let trimmed = before.trim_ascii_end();
        let aligned = before.len() - trimmed.len() + word.len() >= COLUMN;
        if let Some(phys) = hex(word).filter(|_| trimmed.ends_with(b")") || columns && aligned) {
            fields.phys = phys;
            fields.has.phys = true;
            rest = trimmed;
        }
    }
    fields.has.dso = rest.ends_with(b")");
    // A name without its closing parenthesis was truncated.
    let opened = rest.windows(2).any(|pair| pair == b" (");
    (fields.has.dso || !opened).then_some(())
}

/// True if the word is a data source in hex, followed by its decoded form.
fn follows_data_src(line: &[u8], word: &Word<'_>) -> bool {
    let after = line.get(word.end..).unwrap_or_default().trim_ascii_start();
    hex(word.text).is_some() && after.starts_with(b"|")
}

/// A word between spaces.
struct Word<'a> {
    text: &'a [u8],
    begin: usize,
    end: usize,
    /// Including the spaces before it, except the separating one.
    width: usize,
}

/// The next word of the line from there on.
fn word(line: &[u8], from: usize) -> Option<Word<'_>> {
    let rest = line.get(from..)?;
    let spaces = rest.iter().position(|&byte| byte != b' ')?;
    let rest = rest.get(spaces..)?;
    let text = rest.get(..rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len()))?;
    let begin = from + spaces;
    Some(Word { text, begin, end: begin + text.len(), width: (spaces + text.len()).saturating_sub(1) })
}

fn number(digits: &[u8]) -> Option<u64> {
    let plain = digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| plain)?.parse().ok()
}

fn hex(digits: &[u8]) -> Option<u64> {
    let plain = digits.iter().all(u8::is_ascii_hexdigit);
    u64::from_str_radix(std::str::from_utf8(digits).ok().filter(|_| plain)?, 16).ok()
}

/// perf prints -1 for a task that has exited.
fn id(text: &[u8]) -> Option<u32> {
    if text == b"-1" {
        return Some(u32::MAX);
    }
    u32::try_from(number(text)?).ok()
}

/// "4K", "2M", "N/A" (`get_page_size_name` in tools/perf/util/event.c).
fn page_size(text: &[u8]) -> Option<u64> {
    if text == b"N/A" {
        return Some(0);
    }
    let (&unit, digits) = text.split_last()?;
    let shift = match unit {
        b'B' => 0,
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        _ => return None,
    };
    number(digits)?.checked_mul(1 << shift)
}

#[cfg(test)]
#[path = "script_tests.rs"]
mod tests;
