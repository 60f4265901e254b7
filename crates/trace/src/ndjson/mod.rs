//! The JSON lines of wprof (`wprof -J`), as the packets that wprof would have written (`wprof -T`): one capture gives both.
//!
//! The fields are those of JSON_SCHEMA.md of wprof 228b169 (3.1), and of 2.0 where they differ. Times are seconds since the
//! beginning of the session; what has a duration stands at its end.

mod event;
mod line;

use std::borrow::Cow;
use std::io::{self, BufRead, Read as _, Write};

use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;

use self::event::{Event, ARGS, CATEGORIES};
use self::line::{since_1970, Line, Stack, Task};
use super::write::Message;

/// A longer line does not come from wprof: its longest lines have deep stacks.
const MAX_LINE: usize = 4 << 20;
/// Tracks, frames and functions that are kept.
const MAX_ENTRIES: usize = 1 << 20;
/// The sequence of all packets, and a process for idle threads as wprof has it.
const SEQUENCE: u64 = 7;
const IDLE: u32 = 2_000_000_000;

/// True if a file that begins so is one: its first line is the header, or, where lines were selected, an event or a stack.
pub(super) fn is_ndjson(head: &[u8]) -> bool {
    let head = head.get(..4096).unwrap_or(head).trim_ascii_start();
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let has = |name: &[u8]| line.windows(name.len()).any(|part| part == name);
    let is_event = has(b"\"ts\":") && has(b"\"t\":\"");
    let is_stack = has(b"\"id\":") && has(b"\"frames\":[");
    line.first() == Some(&b'{') && (has(b"\"version\"") && has(b"\"timer_freq_hz\"") || is_event || is_stack)
}

/// What has a track.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    Thread(u32),
    /// The idle thread of a CPU.
    Idle(u32),
    Process(u32),
    Request(u32, u64),
}

fn ns(seconds: f64) -> Option<u64> {
    (0.0..1e9).contains(&seconds).then(|| (seconds * 1e9).round() as u64)
}

/// Writes what the lines say.
struct Converter<'w, W> {
    out: &'w mut W,
    tracks: FxHashMap<Owner, u64>,
    /// The last name of each thread that was written.
    names: FxHashMap<u32, String>,
    functions: FxHashMap<String, u64>,
    frames: FxHashMap<(u64, u64), u64>,
    /// Threads that are on a CPU, as far as a line said it.
    running: FxHashSet<Owner>,
    counters: Vec<String>,
}

/// What could not be converted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LostLines {
    /// The last line ends within a line.
    pub(super) is_cut: bool,
    /// Lines that make no sense.
    pub(super) count: u64,
}

/// Converts the lines of a file; what makes no sense is counted.
///
/// # Errors
/// Those of the input and of the output.
pub(super) fn convert(mut lines: impl BufRead, out: &mut impl Write) -> io::Result<LostLines> {
    let mut lost = LostLines::default();
    let mut converter = Converter {
        out,
        tracks: FxHashMap::default(),
        names: FxHashMap::default(),
        functions: FxHashMap::default(),
        frames: FxHashMap::default(),
        running: FxHashSet::default(),
        counters: Vec::new(),
    };
    let (mut line, mut is_first) = (Vec::new(), true);
    loop {
        line.clear();
        let read = lines.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line)?;
        if read == 0 {
            return Ok(lost);
        }
        let is_whole = line.last() == Some(&b'\n');
        if line.trim_ascii().is_empty() {
            continue;
        }
        let is_known = converter.line(&line, std::mem::take(&mut is_first))?;
        if is_known {
            continue;
        }
        // The last line of a recorder that was killed is cut; a longer one than any goes on.
        lost.is_cut |= !is_whole && read < MAX_LINE;
        lost.count += u64::from(is_whole || read >= MAX_LINE);
        while !is_whole && skip_to_line_end(&mut lines)? {}
    }
}

/// Skips what is buffered of a line; false at its end.
fn skip_to_line_end(lines: &mut impl BufRead) -> io::Result<bool> {
    let buffer = lines.fill_buf()?;
    let end = buffer.iter().position(|&byte| byte == b'\n');
    let (length, goes_on) = (end.map_or(buffer.len(), |end| end + 1), end.is_none() && !buffer.is_empty());
    lines.consume(length);
    Ok(goes_on)
}

impl<W: Write> Converter<'_, W> {
    fn packet(&mut self, packet: &Message) -> io::Result<()> {
        self.out.write_all(Message::new().message(1, packet).as_bytes())
    }

    fn event(&mut self, time: u64, event: &Event) -> io::Result<()> {
        self.packet(&Message::new().int(10, SEQUENCE).int(8, time).message(11, &event.0))
    }

    /// Writes a line; false if it makes no sense.
    fn line(&mut self, line: &[u8], is_first: bool) -> io::Result<bool> {
        if is_first {
            let header = serde_json::from_slice::<Value>(line).ok();
            let is_header = header.as_ref().is_some_and(|it| it.get("version").is_some());
            // Where lines were selected it is missing, and with it the kernel, the time of day and the names of counters.
            self.header(header.as_ref().filter(|_| is_header).unwrap_or(&Value::Null))?;
            if is_header {
                return Ok(true);
            }
        }
        if let Ok(line) = serde_json::from_slice::<Line<'_>>(line) {
            let Some(time) = ns(line.ts) else { return Ok(false) };
            return self.of_type(time, &line);
        }
        match serde_json::from_slice::<Stack<'_>>(line) {
            Ok(stack) => self.call_stack(&stack).map(|()| true),
            Err(_) => Ok(false),
        }
    }

    fn header(&mut self, header: &Value) -> io::Result<()> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &header["metadata"];
        let kernel = text(&metadata["kernel"]);
        let clock = |id: u64, time: u64| Message::new().int(1, id).int(2, time);
        let mut clocks = Message::new().message(1, &clock(6, 0));
        if let Some(began) = header["timestamp"].as_str().and_then(since_1970) {
            clocks = clocks.message(1, &clock(1, began));
        }
        self.packet(&Message::new().int(10, SEQUENCE).message(6, &clocks.int(2, 6)))?;
        let system = Message::new().text(1, b"Linux").text(3, kernel.as_bytes());
        let system = Message::new().message(1, &system).text(4, b"wprof");
        self.packet(&Message::new().int(10, SEQUENCE).message(45, &system))?;
        let attributes = [
            ("uuid", text(&metadata["uuid"])),
            ("hostname", text(&metadata["hostname"])),
            ("capture_time", text(&header["timestamp"])),
            ("json_version", text(&header["version"])),
        ];
        let all = attributes.iter().filter(|(_, value)| !value.is_empty()).fold(Message::new(), |all, (key, value)| {
            all.message(1, &Message::new().text(1, key.as_bytes()).text(3, value.as_bytes()))
        });
        self.packet(&Message::new().int(10, SEQUENCE).message(126, &all))?;
        let table = |field, names: &[&str], message: Message| {
            (1u64..).zip(names).fold(message, |message, (id, name)| {
                message.message(field, &Message::new().int(1, id).text(2, name.as_bytes()))
            })
        };
        let interned = table(3, &ARGS, table(1, &CATEGORIES, Message::new()));
        self.packet(&Message::new().int(10, SEQUENCE).int(13, 1).message(12, &interned))?;
        let names = header["pmus"].as_array().map(Vec::as_slice).unwrap_or_default();
        self.counters = names.iter().map(|name| format!("pmu:{}", text(name))).collect();
        Ok(())
    }

    /// The stack with the numbers of its frames, each function and frame the first time that it is seen.
    fn call_stack(&mut self, stack: &Stack<'_>) -> io::Result<()> {
        let mut interned = Message::new();
        let mut callstack = Message::new().int(1, stack.id);
        for (at, frame) in stack.frames.iter().enumerate() {
            // As in the trace: without the offset in the function.
            let function = frame.rsplit_once("+0x").map_or(&**frame, |(function, _)| function);
            let next = self.functions.len() as u64 + 1;
            let function = match self.functions.get(function) {
                Some(&known) => known,
                None if self.functions.len() >= MAX_ENTRIES => continue,
                None => {
                    self.functions.insert(function.to_owned(), next);
                    interned = interned.message(5, &Message::new().int(1, next).text(2, function.as_bytes()));
                    next
                }
            };
            let line = stack.srcs.get(at).and_then(|source| source.rsplit_once(':')?.1.parse::<u32>().ok());
            let key = (function, u64::from(line.unwrap_or(0)));
            let next = self.frames.len() as u64 + 1;
            let frame = match self.frames.get(&key) {
                Some(&known) => known,
                None if self.frames.len() >= MAX_ENTRIES => continue,
                None => {
                    self.frames.insert(key, next);
                    interned = interned.message(6, &Message::new().int(1, next).int(2, key.0).int(6, key.1));
                    next
                }
            };
            callstack = callstack.int(2, frame);
        }
        self.packet(&Message::new().int(10, SEQUENCE).message(12, &interned.message(7, &callstack)))
    }

    /// The track of a thread, which is described when it is new or has another name; `None` if there is no room.
    fn track(&mut self, task: &Task<'_>, cpu: Option<u32>) -> io::Result<Option<u64>> {
        let is_idle = task.pid == 0 && task.tid.unwrap_or(0) == 0;
        let owner = owner_of(task, cpu);
        let Some((track, is_new)) = self.number(owner) else { return Ok(None) };
        let (tid, pid) = match owner {
            Owner::Idle(cpu) => (cpu.saturating_add(1), IDLE),
            _ => (task.tid.unwrap_or(task.pid), task.pid),
        };
        if let Some(pcomm) = task.pcomm.as_ref().filter(|_| !is_idle) {
            if let Some((process, true)) = self.number(Owner::Process(pid)) {
                let described = Message::new().int(1, u64::from(pid)).text(6, pcomm.as_bytes());
                let described = Message::new().int(1, process).message(3, &described);
                self.packet(&Message::new().int(10, SEQUENCE).message(60, &described))?;
            }
        }
        let is_renamed = !is_idle && self.names.get(&tid).is_none_or(|name| *name != task.comm);
        if is_new || is_renamed {
            if !is_idle {
                self.names.insert(tid, task.comm.clone().into_owned());
            }
            let thread = Message::new().int(1, u64::from(pid)).int(2, u64::from(tid)).text(5, task.comm.as_bytes());
            let described = Message::new().int(1, track).message(4, &thread);
            self.packet(&Message::new().int(10, SEQUENCE).message(60, &described))?;
        }
        Ok(Some(track))
    }

    /// The number of a track, and whether it is new.
    fn number(&mut self, owner: Owner) -> Option<(u64, bool)> {
        if let Some(&known) = self.tracks.get(&owner) {
            return Some((known, false));
        }
        let next = self.tracks.len() as u64 + 1;
        (self.tracks.len() < MAX_ENTRIES).then(|| {
            self.tracks.insert(owner, next);
            (next, true)
        })
    }

    /// An event of the task of the line.
    fn of_task(&mut self, line: &Line<'_>, kind: u64, category: &str, name: &str) -> io::Result<Option<Event>> {
        let Some(task) = &line.task else { return Ok(None) };
        let track = self.track(task, line.cpu)?;
        Ok(track.map(|track| placed(Event::new(kind, track, category, name), line)))
    }

    fn instant(&mut self, time: u64, line: &Line<'_>, category: &str, name: &str) -> io::Result<bool> {
        let Some(event) = self.of_task(line, Event::INSTANT, category, name)? else { return Ok(false) };
        let event = event.int("target_cpu", line.target_cpu).stack(line.stack_id);
        self.event(time, &event)?;
        Ok(true)
    }

    /// A slice that stands at its end.
    fn slice(
        &mut self,
        time: u64,
        line: &Line<'_>,
        category: &str,
        name: &str,
        end: impl FnOnce(Event) -> Event,
    ) -> io::Result<bool> {
        // One that began before the session begins with it.
        let began = line.start_ts.or_else(|| line.dur.map(|dur| line.ts - dur)).and_then(ns).unwrap_or(0);
        let Some(begin) = self.of_task(line, Event::BEGIN, category, name)? else { return Ok(false) };
        let begin = begin.int("irq", line.irq).text("action", line.action.as_ref());
        self.event(began.min(time), &begin)?;
        let Some(event) = self.of_task(line, Event::END, category, name)? else { return Ok(false) };
        self.event(time, &end(event))?;
        Ok(true)
    }

    fn of_type(&mut self, time: u64, line: &Line<'_>) -> io::Result<bool> {
        let text = |text: &Option<Cow<'_, str>>| text.as_deref().unwrap_or_default().to_owned();
        match &*line.t {
            "switch" => self.switch(time, line),
            "waking" => self.waking(time, line, "WAKER"),
            "wakeup_new" => self.waking(time, line, "WAKER_NEW"),
            "softirq" => self.slice(time, line, "SOFTIRQ", &format!("SOFTIRQ:{}", text(&line.action)), |end| end),
            "hardirq" => self.slice(time, line, "HARDIRQ", "HARDIRQ", |end| end),
            "wq" => self.slice(time, line, "WQ", &format!("WQ:{}", text(&line.desc)), |end| end),
            "ipi" => self.slice(time, line, "IPI", &format!("IPI:{}", text(&line.kind)), |end| {
                end.int("sender_cpu", line.sender_cpu).us("ipi_delay_us", line.ipi_delay)
            }),
            "ipi_send" => self.instant(time, line, "IPI_SEND", &format!("IPI_SEND:{}", text(&line.kind))),
            "scx_dsq" => {
                let id = line.dsq_id.map_or(0, |id| id as u64);
                let name = format!("DSQ:{}_{id:#x}", text(&line.insert_type));
                self.slice(time, line, "SCX_DSQ", &name, |end| {
                    end.int("scx_dsq_id", line.dsq_id).int("scx_layer_id", line.layer_id)
                })
            }
            "timer" => self.instant(time, line, "TIMER", "TIMER"),
            "fork" => self.fork(time, line),
            "exec" => self.instant(time, line, "EXEC", "EXEC"),
            "task_rename" => self.renamed(time, line),
            "task_exit" => self.instant(time, line, "EXIT", "EXIT"),
            "task_free" => self.instant(time, line, "FREE", "FREE"),
            "req_event" => self.request(time, line),
            other => {
                let category = other.to_ascii_uppercase();
                self.instant(time, line, &category, other)
            }
        }
    }

    fn switch(&mut self, time: u64, line: &Line<'_>) -> io::Result<bool> {
        let (Some(prev), Some(next)) = (&line.prev, &line.next) else { return Ok(false) };
        let (Some(of_prev), Some(of_next)) = (self.track(prev, line.cpu)?, self.track(next, line.cpu)?) else {
            return Ok(true);
        };
        let is_idle = matches!(owner_of(prev, line.cpu), Owner::Idle(_));
        if !is_idle && line.prev_state.as_deref() == Some("preempted") {
            let event = placed(Event::new(Event::INSTANT, of_next, "PREEMPTOR", "PREEMPTOR"), line);
            self.event(time, &wakee(event, prev).flow(time))?;
        }
        if !self.running.remove(&owner_of(prev, line.cpu)) {
            // It was on its CPU when the session began.
            self.event(0, &placed(Event::new(Event::BEGIN, of_prev, "ONCPU", &prev.comm), line))?;
        }
        let mut end = placed(Event::new(Event::END, of_prev, "ONCPU", &prev.comm), line);
        if !is_idle {
            end = end.text("offcpu_reason", line.prev_state.as_ref());
        }
        for (counter, value) in self.counters.iter().zip(line.pmus.iter().flatten()) {
            end = end.arg(counter, |arg| arg.double(5, value.unwrap_or(f64::NAN)));
        }
        self.event(time, &end.stack(line.offcpu_stack_id))?;
        let woken = line.waking_ts.and_then(ns).filter(|woken| *woken <= time);
        let reason = line.waking_reason.as_deref();
        if let Some(woken) = woken {
            let category = match reason {
                Some("preempted") => "PREEMPTEE",
                Some("woken_new") => "WAKEE_NEW",
                _ => "WAKEE",
            };
            let event = placed(Event::new(Event::INSTANT, of_next, category, category), line);
            self.event(woken, &event.flow(woken))?;
        }
        let mut begin = placed(Event::new(Event::BEGIN, of_next, "ONCPU", &next.comm), line)
            .us("offcpu_dur_us", line.offcpu_dur)
            .us("compound_delay_us", line.compound_delay)
            .int("compound_chain_len", line.compound_chain_len);
        if let Some(since) = line.waking_ts {
            let waker = line.waker.as_ref();
            begin = begin
                .text("waker", waker.map(|waker| &waker.comm))
                .int("waker_tid", waker.and_then(|waker| waker.tid))
                .text("waking_reason", line.waking_reason.as_ref())
                .int("waker_cpu", line.waking_cpu)
                .us("waking_delay_us", Some(line.ts - since));
        }
        if let Some(woken) = woken {
            begin = begin.flow(woken);
        }
        self.event(time, &begin)?;
        if self.running.len() < MAX_ENTRIES {
            self.running.insert(owner_of(next, line.cpu));
        }
        Ok(true)
    }

    fn waking(&mut self, time: u64, line: &Line<'_>, category: &str) -> io::Result<bool> {
        let (Some(waker), Some(woken)) = (&line.waker, &line.wakee) else { return Ok(false) };
        // That it has a process and a name.
        self.track(woken, None)?;
        let Some(track) = self.track(waker, line.cpu)? else { return Ok(true) };
        let event = wakee(placed(Event::new(Event::INSTANT, track, category, category), line), woken);
        self.event(time, &event.flow(time).stack(line.waker_stack_id))?;
        Ok(true)
    }

    fn fork(&mut self, time: u64, line: &Line<'_>) -> io::Result<bool> {
        let (Some(task), Some(child)) = (&line.task, &line.child) else { return Ok(false) };
        let (Some(parent), Some(made)) = (self.track(task, line.cpu)?, self.track(child, None)?) else {
            return Ok(true);
        };
        let event = placed(Event::new(Event::INSTANT, parent, "FORKING", "FORKING"), line)
            .text("forked_into", Some(&child.comm))
            .int("forked_into_tid", child.tid);
        self.event(time, &event.flow(time))?;
        self.event(time, &placed(Event::new(Event::INSTANT, made, "FORKED", "FORKED"), line).flow(time))?;
        Ok(true)
    }

    fn renamed(&mut self, time: u64, line: &Line<'_>) -> io::Result<bool> {
        let Some(event) = self.of_task(line, Event::INSTANT, "RENAME", "RENAME")? else { return Ok(false) };
        let event = event.text("new_name", line.task.as_ref().map(|task| &task.comm));
        self.event(time, &event)?;
        Ok(true)
    }

    /// A request has a track of its own, on which it begins and ends.
    fn request(&mut self, time: u64, line: &Line<'_>) -> io::Result<bool> {
        let (Some(task), Some(id)) = (&line.task, line.req_id) else { return Ok(false) };
        let Some(thread) = self.track(task, line.cpu)? else { return Ok(true) };
        let Some((track, _)) = self.number(Owner::Request(task.pid, id)) else { return Ok(true) };
        let name = line.req_name.as_deref().unwrap_or_default();
        let of = |kind, track, category| {
            let event = placed(Event::new(kind, track, category, name), line);
            event.text("req_name", line.req_name.as_ref()).int("req_id", Some(id))
        };
        let event = match line.event.as_deref() {
            Some("begin" | "start") => of(Event::BEGIN, track, "REQUEST"),
            // wprof of today ends a request with "clear", which has its latency; before, with "end".
            Some("clear" | "end") if line.latency.is_some() => {
                of(Event::END, track, "REQUEST").us("req_latency_us", line.latency)
            }
            Some("set") => of(Event::INSTANT, thread, "REQUEST_SET"),
            Some("unset") => of(Event::INSTANT, thread, "REQUEST_UNSET"),
            _ => of(Event::INSTANT, thread, "REQUEST_END"),
        };
        self.event(time, &event)?;
        Ok(true)
    }
}

/// Whose track the events of a task are on. An idle thread has the number of its CPU in its name.
fn owner_of(task: &Task<'_>, cpu: Option<u32>) -> Owner {
    if task.pid != 0 || task.tid.unwrap_or(0) != 0 {
        return Owner::Thread(task.tid.unwrap_or(task.pid));
    }
    let named = task.comm.rsplit_once('/').and_then(|(_, cpu)| cpu.parse().ok());
    Owner::Idle(named.or(cpu).unwrap_or(0))
}

/// Says where the event was.
fn placed(event: Event, line: &Line<'_>) -> Event {
    event.int("cpu", line.cpu).int("numa_node", line.numa)
}

fn wakee(event: Event, task: &Task<'_>) -> Event {
    event.text("wakee", Some(&task.comm)).int("wakee_tid", task.tid).int("wakee_pid", Some(task.pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_the_calendar_is_one_since_1970() {
        assert_eq!(since_1970("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(since_1970("2000-02-29T23:59:59.5Z"), Some(951_868_799_500_000_000));
        assert_eq!(since_1970("2026-11-22T11:47:06.962Z"), Some(1_795_348_026_962_000_000));
        for wrong in ["", "2026-11-22", "2026-13-01T00:00:00Z", "2026-01-01T24:00:00Z", "x-y-zT1:2:3Z"] {
            assert_eq!(since_1970(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_header_tells_it() {
        assert!(is_ndjson(br#"{"version":"3.1","timestamp":"x","dur":1.0,"timer_freq_hz":100}"#));
        assert!(is_ndjson(b"\n{ \"version\": \"2.0\", \"timer_freq_hz\": 0 }\n{}"));
        for other in [&b"{\"version\":1}\n{\"timer_freq_hz\":1}"[..], b"", b"{}", b"x {\"version\" \"timer_freq_hz\""] {
            assert!(!is_ndjson(other), "{}", String::from_utf8_lossy(other));
        }
    }
}
