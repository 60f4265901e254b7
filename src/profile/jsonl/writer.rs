//! Writes perf.jsonl.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::profile::meta::to_hex;
use crate::profile::recovered::op_name;
use crate::profile::text::{Snippet, Text};
use crate::resolve::Symbol;
use crate::sample::{printable, Access, Comm, MemoryId, RawSample, Sample, Source};
use scxprof_base::escape;

/// Bytes that are written at a time.
pub(crate) const BUFFER: usize = 256 << 10;
/// What a line says of code without a name, as perf prints it: scx_characterize reads no line without these fields.
const UNKNOWN_CODE: &[u8] = b",\"sym\":\"[unknown]\",\"dso\":\"[unknown]\"";
/// Threads with cached text.
const THREADS: usize = 1024;

/// A part of lines that is the same for most of them, and what it says.
#[derive(Debug, Clone)]
struct Cached<K> {
    of: Option<K>,
    text: Snippet,
}

impl<K: PartialEq> Cached<K> {
    const fn new() -> Self {
        Self { of: None, text: Snippet::new() }
    }

    /// Adds the text of `key`, which `make` makes, to a line.
    #[inline]
    fn put(&mut self, line: &mut Text, key: K, make: impl FnOnce(&mut Vec<u8>)) {
        if self.of.as_ref() != Some(&key) {
            let mut text = Vec::new();
            make(&mut text);
            self.text.set(&text);
            self.of = Some(key);
        }
        self.text.put(line);
    }
}

/// Makes lines.
#[derive(Debug)]
pub(crate) struct Formatter {
    /// The lines so far.
    pub(crate) lines: Text,
    source: Source,
    /// Lines say something of code, even without a name.
    names_code: bool,
    /// What the lines say of each event.
    events: Vec<Box<[u8]>>,
    /// The beginning of the lines of threads, at the last bits of their ids.
    threads: Vec<Cached<(Option<Comm>, u32, u32)>>,
    /// The last cgroup and its text; most samples belong to few cgroups.
    cgroup: (Vec<u8>, Snippet),
    /// The hint and the kind of access.
    access: Cached<(Option<u64>, Access)>,
    /// The period and the event.
    period: Cached<(u64, u16)>,
}

impl Formatter {
    /// For samples of this source; with `names_code`, lines say of code without a name that it has none.
    pub(crate) fn new(source: Source, names_code: bool) -> Self {
        Self {
            lines: Text::default(),
            source,
            names_code,
            events: Vec::new(),
            threads: vec![Cached::new(); THREADS],
            cgroup: (Vec::new(), Snippet::new()),
            access: Cached::new(),
            period: Cached::new(),
        }
    }

    /// With the names of the events by their number ([`RawSample::event`](crate::sample::RawSample::event)), where they are known.
    #[must_use]
    pub(crate) fn with_events<'a>(mut self, names: impl Iterator<Item = Option<&'a str>>) -> Self {
        let text = |name: Option<&str>| {
            let mut text = Vec::new();
            if let Some(name) = name {
                text.extend_from_slice(b",\"event\":");
                string(&mut text, name);
            }
            text.into()
        };
        self.events = names.map(text).collect();
        self.period = Cached::new();
        self
    }

    /// Adds the line of one access; `code` is the [`code_text`] of its instruction.
    pub(crate) fn add(&mut self, sample: &Sample, cgroup: Option<&[u8]>, code: Option<&Snippet>) {
        let raw = &sample.raw;
        let line = &mut self.lines;
        let (comm, pid, tid) = (sample.comm, raw.pid, raw.tid);
        // The remainder is below the number of threads.
        self.threads[tid as usize % THREADS].put(line, (comm, pid, tid), |text| thread(text, comm, pid, tid));
        if raw.cpu != RawSample::NO_CPU {
            line.put(b",\"cpu\":");
            line.number(raw.cpu.into());
        }
        line.put(b",\"time\":\"");
        line.number(raw.time / 1_000_000_000);
        line.decimals((raw.time % 1_000_000_000) as u32);
        line.put(b"\",\"ip\":\"");
        line.hex(raw.ip);
        line.put(b"\",\"addr\":\"");
        line.hex(raw.addr);
        line.put(b"\",\"phys_addr\":\"");
        line.hex(raw.phys);
        line.put(b"\",\"data_page_size\":");
        line.number(raw.page_size);
        if let Some(path) = cgroup {
            if self.cgroup.0 != path || path.is_empty() {
                let mut text = Vec::new();
                name(&mut text, ",\"cgroup\":", "cgroup_hex", path);
                self.cgroup.1.set(&text);
                self.cgroup.0 = path.to_vec();
            }
            self.cgroup.1.put(line);
        } else {
            line.put(b",\"cgroup\":\"unknown\"");
        }
        self.access.put(line, (sample.hint, raw.access), |line| {
            number(line, ",\"hint\":", sample.hint.unwrap_or(0));
            if sample.hint == Some(0) {
                line.extend_from_slice(b",\"hinted\":true");
            }
            text(line, ",\"op\":\"", op_name(raw.access));
            line.extend_from_slice(b"\",\"weight\":");
        });
        line.number(raw.latency.into());
        line.put(b",\"data_src\":\"");
        line.hex(raw.data_src.0);
        let Self { events, source, .. } = self;
        self.period.put(line, (raw.period, raw.event), |line| {
            number(line, "\",\"period\":", raw.period);
            text(line, ",\"source\":\"", source.name());
            line.push(b'"');
            line.extend_from_slice(events.get(usize::from(raw.event)).map_or(&[][..], |event| event));
            line.extend_from_slice(b",\"thread\":");
        });
        line.number(sample.thread.into());
        line.put(b",\"record\":");
        line.number(sample.record);
        if raw.share < 1.0 {
            let accesses = (1.0 / f64::from(raw.share)).round();
            if accesses > 1.0 {
                line.put(b",\"accesses\":");
                line.number(accesses as u64);
            }
        }
        if raw.size > 0 {
            line.put(b",\"size\":");
            line.number(raw.size.into());
        }
        if let Some(method) = raw.method {
            line.put(b",\"method\":\"");
            line.bytes(method.name().as_bytes());
            line.put(b"\"");
        }
        match sample.memory {
            None => line.put(b",\"memory\":\"none\""),
            Some(MemoryId::Frame { .. }) => line.put(b",\"memory\":\"frame\""),
            Some(MemoryId::Private { space, .. }) => {
                line.put(b",\"memory\":\"private\",\"space\":");
                line.number(space.into());
            }
            Some(MemoryId::Shared { scope, ino, offset }) => {
                line.put(b",\"memory\":\"shared\",\"dev\":");
                line.number(scope.number());
                line.put(b",\"ino\":");
                line.number(ino);
                line.put(b",\"offset\":");
                line.number(offset);
            }
        }
        if let Some(code) = code {
            code.put(line);
        } else if self.names_code {
            line.bytes(UNKNOWN_CODE);
        }
        line.put(b"}\n");
    }
}

/// Writes lines.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    formatter: Formatter,
}

impl<W: Write> Writer<W> {
    /// Writes to `out`, which need not be buffered.
    pub fn new(out: W, source: Source) -> Self {
        Self { out, formatter: Formatter::new(source, false) }
    }

    /// Writes one access, without the name of its code.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&mut self, sample: &Sample, cgroup: Option<&[u8]>) -> io::Result<()> {
        self.formatter.add(sample, cgroup, None);
        let lines = &mut self.formatter.lines;
        if lines.len() >= BUFFER {
            self.out.write_all(lines.as_bytes())?;
            lines.clear();
        }
        Ok(())
    }

    /// Writes the rest and returns the writer.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(self.formatter.lines.as_bytes())?;
        self.out.flush()?;
        Ok(self.out)
    }
}

/// The beginning of the lines of a thread.
fn thread(line: &mut Vec<u8>, comm: Option<Comm>, pid: u32, tid: u32) {
    if let Some(comm) = comm {
        name(line, "{\"comm\":", "comm_hex", comm.as_bytes());
    } else {
        // As perf prints it; its readers want a name.
        number(line, "{\"comm\":\":", tid.into());
        line.extend_from_slice(b"\",\"unnamed\":true");
    }
    number(line, ",\"pid\":", pid.into());
    number(line, ",\"tid\":", tid.into());
}

/// The part of a line that names its instruction.
#[must_use]
pub fn code_text(symbol: &Symbol) -> Vec<u8> {
    let mut text = b",\"sym\":".to_vec();
    string(&mut text, symbol.function.as_ref().map_or("[unknown]", |(name, _)| name));
    text.extend_from_slice(b",\"dso\":");
    string(&mut text, &printable(&symbol.dso));
    text
}

fn text(line: &mut Vec<u8>, key: &str, text: &str) {
    line.extend_from_slice(key.as_bytes());
    line.extend_from_slice(text.as_bytes());
}

fn number(line: &mut Vec<u8>, key: &str, value: u64) {
    line.extend_from_slice(key.as_bytes());
    line.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Bytes as a JSON string, and also in hex if they are not UTF-8.
fn name(line: &mut Vec<u8>, key: &str, hex_key: &str, bytes: &[u8]) {
    line.extend_from_slice(key.as_bytes());
    let lossy = String::from_utf8_lossy(bytes);
    string(line, &lossy);
    if matches!(lossy, Cow::Owned(_)) {
        text(line, ",\"", hex_key);
        text(line, "\":\"", &to_hex(bytes));
        line.push(b'"');
    }
}

/// A JSON string.
fn string(line: &mut Vec<u8>, text: &str) {
    // Serializing a string cannot fail.
    let json = serde_json::to_string(text).unwrap_or_default();
    line.extend_from_slice(escape::json(json).as_bytes());
}
