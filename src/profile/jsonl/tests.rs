//! Tests of JSON lines that are written and read again, of lines by other programs, and of damaged lines.

use proptest::prelude::*;

use super::*;
use crate::sample::{Access, Method};

fn written(sample: &Sample, cgroup: Option<&[u8]>, source: Source) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), source);
    writer.write(sample, cgroup, None).unwrap();
    writer.finish().unwrap()
}

fn read(text: &[u8]) -> (Vec<JsonSample>, Reader<&[u8]>) {
    let mut reader = Reader::new(text);
    let mut lines = Vec::new();
    while let Some(line) = reader.next_line().unwrap() {
        lines.push(line);
    }
    (lines, reader)
}

/// A line of our own writer, unnumbered; `None` if it is left to the other parser.
fn quickly(line: &[u8]) -> Option<JsonSample> {
    let mut into = JsonSample::default();
    let used = quick(line, &mut into, &mut None, &mut Counts::default())?;
    assert_eq!(used, line.len());
    Some(JsonSample { number: 0, ..into })
}

#[test]
fn a_line_has_the_known_fields() {
    let sample = Sample {
        raw: RawSample {
            time: 123_456_789_012,
            pid: 7,
            tid: 8,
            addr: 0x7fff,
            phys: 0xabc,
            page_size: 4096,
            ..RawSample::default()
        },
        comm: Some(Comm::new(b"job 3/4")),
        memory: Some(MemoryId::Private { space: 3, addr: 0x7fff }),
        hint: Some(9),
        ..Sample::default()
    };
    let out = written(&sample, Some(b"/a b"), Source::Faults);
    let text = String::from_utf8(out).unwrap();
    let expected = concat!(
        r#"{"comm":"job 3/4","pid":7,"tid":8,"cpu":0,"time":"123.456789012","ip":"0","addr":"7fff","#,
        r#""phys_addr":"abc","data_page_size":4096,"cgroup":"/a b","hint":9,"op":"unknown","weight":0,"#,
        r#""data_src":"0","period":1,"source":"faults","thread":0,"record":0,"memory":"private","space":3}"#,
        "\n"
    );
    assert_eq!(text, expected);
}

#[test]
fn a_line_says_its_event_and_no_cpu_that_nobody_knows() {
    let names = [Some("cpu/mem-loads/"), None, Some("a \"b\"")];
    let mut writer = Writer::new(Vec::new(), Source::Pebs).with_events(names.into_iter());
    let sample = |cpu, event| Sample {
        raw: RawSample { cpu, event, time: 5, ..RawSample::default() },
        comm: Some(Comm::new(b"web")),
        ..Sample::default()
    };
    for (cpu, event) in [(3, 0), (RawSample::NO_CPU, 1), (RawSample::NO_CPU, 2), (0, 7)] {
        writer.write(&sample(cpu, event), None, None).unwrap();
    }
    let out = writer.finish().unwrap();
    let lines: Vec<serde_json::Value> =
        out.split_inclusive(|&byte| byte == b'\n').map(|line| serde_json::from_slice(line).unwrap()).collect();
    let said = |field: &str| lines.iter().map(|line| line.get(field).cloned()).collect::<Vec<_>>();
    assert_eq!(said("event"), [Some("cpu/mem-loads/".into()), None, Some("a \"b\"".into()), None]);
    assert_eq!(said("cpu"), [Some(3.into()), None, None, Some(0.into())]);
    let quick = out.split_inclusive(|&byte| byte == b'\n').map(quickly);
    assert_eq!(
        quick.map(|line| line.is_some()).collect::<Vec<_>>(),
        [true, true, false, true],
        "escapes are left to a parser"
    );
    let (lines, _) = read(&out);
    let cpus: Vec<u32> = lines.iter().map(|line| line.sample.raw.cpu).collect();
    assert_eq!(cpus, [3, RawSample::NO_CPU, RawSample::NO_CPU, 0]);
}

#[test]
fn our_own_lines_are_read_quickly() {
    let sample = Sample {
        raw: RawSample { time: 5, ..RawSample::default() },
        comm: Some(Comm::new(b"job 3/4")),
        record: 1,
        ..Sample::default()
    };
    let out = written(&sample, Some(b"/a b"), Source::Faults);
    assert!(quickly(&out).is_some());
    // With the line ends of other systems too.
    let other = [out.trim_ascii_end(), b"\r\n"].concat();
    assert_eq!(quickly(&other), quickly(&out));
    // The parser must judge what follows the object.
    let more = [out.trim_ascii_end(), b"x"].concat();
    assert!(quickly(&more).is_none());
    assert!(parse(&more, &mut None, &mut Missing::default()).is_err());
}

#[test]
fn foreign_lines_work_and_what_they_lack_is_counted() {
    let text = br#"{"comm":"web","tid":11,"pid":10,"time":"5.000001","addr":"7f00","cgroup":"/a","ip":"40","sym":"main","dso":"/x (deleted)","phys_addr":"1240","data_page_size":4096,"hint":3}

{"comm":"web","tid":11
{"comm":"db","tid":"12","pid":"12","time":"6","addr":"0x10","phys_addr":""}
"#;
    let (lines, reader) = read(text);
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0].sample.memory, Some(MemoryId::Frame { phys: 0x1240 }));
    assert_eq!((lines[0].sample.raw.time, lines[0].sample.hint, lines[0].has_thread), (5_000_001_000, Some(3), false));
    assert_eq!(lines[1].sample.memory, Some(MemoryId::Private { space: 12, addr: 0x10 }));
    assert_eq!((reader.counts.lines, reader.counts.unreadable), (3, 1));
    let Missing { memory, op, weight, cgroup, thread, page_size } = reader.counts.missing;
    assert_eq!((memory, op, weight, cgroup, thread, page_size), (2, 2, 2, 1, 2, 1));
    assert_eq!(reader.counts.missing.sentence().map(|it| it.split("; ").count()), Some(6));
}

proptest! {
    #[test]
    fn lines_survive_the_round_trip(
        comm in proptest::option::of(proptest::collection::vec(1u8.., 0..16)),
        cgroup in proptest::option::of(proptest::collection::vec(any::<u8>(), 1..40)),
        ids in any::<(u32, u32, u32, u32)>(), words in any::<(u64, u64, u64, u64)>(), kind in 0u8..4,
        accesses in 1u8..20, op in 0usize..4, method in 0usize..7, hint in any::<Option<u8>>(), latency in any::<u32>(),
    ) {
        let memory = match kind {
            0 => None,
            1 => Some(MemoryId::Frame { phys: words.1 }),
            2 => Some(MemoryId::Private { space: ids.3, addr: words.0 }),
            _ => Some(MemoryId::Shared { scope: MemoryScope::from_number(words.1), ino: words.2, offset: words.3 }),
        };
        let sample = Sample { raw: RawSample { time: words.2, pid: ids.0, tid: ids.1, cpu: ids.2, addr: words.0, phys: words.1, ip: words.3, latency, data_src: DataSource(words.3), page_size: words.2, period: words.1, share: 1.0 / f32::from(accesses), access: [Access::Unknown, Access::Load, Access::Store, Access::Update][op], method: Method::ALL.get(method).copied(), size: accesses.into(), ..RawSample::default() }, thread: ids.3, record: u64::from(ids.0).max(1), comm: comm.as_deref().map(Comm::new), memory, hint: hint.map(|hint| u64::from(hint / 16)), ..Sample::default() };
        let out = written(&sample, cgroup.as_deref(), Source::Timer);
        let (lines, reader) = read(&out);
        prop_assert_eq!(reader.counts.unreadable, 0);
        prop_assert_eq!(reader.counts.missing, Missing { cgroup: u64::from(cgroup.is_none()), ..Missing::default() });
        let expected = JsonSample { sample, source: Some(Source::Timer), has_thread: true, number: 1 };
        let unnumbered = JsonSample { number: 0, ..expected.clone() };
        prop_assert_eq!(reader.cgroup(), cgroup.as_deref());
        prop_assert_eq!(&lines[..], std::slice::from_ref(&expected));
        // Both parsers give the same result.
        let mut slow = None;
        prop_assert_eq!(&parse(&out, &mut slow, &mut Missing::default()).unwrap(), &unnumbered);
        prop_assert_eq!(slow.as_deref(), cgroup.as_deref());
        if let Some(line) = quickly(&out) {
            prop_assert_eq!(&line, &unnumbered);
        }
    }

    #[test]
    fn a_changed_line_is_read_by_both_ways_alike(
        at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in 0usize..4, kind in 0u8..4, words in any::<(u64, u64)>(),
    ) {
        let memory = match kind {
            0 => None,
            1 => Some(MemoryId::Frame { phys: words.1 }),
            2 => Some(MemoryId::Private { space: 3, addr: words.0 }),
            _ => Some(MemoryId::Shared { scope: MemoryScope::device(1, 0), ino: words.1, offset: 5 }),
        };
        let sample = Sample { raw: RawSample { time: words.0, addr: words.0, phys: words.1, size: 8, share: 0.5, method: Some(Method::Emulated), ..RawSample::default() }, comm: Some(Comm::new(b"web")), record: 1, memory, hint: Some(0), ..Sample::default() };
        let mut line = written(&sample, Some(b"/a b"), Source::Timer);
        let at = at.index(line.len());
        line[at] = byte;
        line.truncate(line.len() - cut);
        if let Some(quickly) = quickly(&line) {
            let text = String::from_utf8_lossy(&line);
            prop_assert_eq!(parse(&line, &mut None, &mut Missing::default()), Ok(quickly), "{}", text);
        }
    }

    #[test]
    fn any_bytes_are_lines_or_counted(text in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (lines, reader) = read(&text);
        prop_assert_eq!(lines.len() as u64 + reader.counts.unreadable, reader.counts.lines);
    }

    #[test]
    fn blocks_have_the_lines_of_the_file(
        kinds in proptest::collection::vec((0usize..6, 1usize..400_000), 1..12), chunk in 1usize..1_000_000,
    ) {
        let sample = Sample { comm: Some(Comm::new(b"web")), ..Sample::default() };
        let (one, other) = (written(&sample, Some(b"/a"), Source::Timer), written(&sample, None, Source::Timer));
        let mut text = Vec::new();
        for (kind, len) in kinds {
            match kind {
                0 => (0..len % 2000).for_each(|_| text.extend_from_slice(&one)),
                1 => (0..len % 2000).for_each(|_| text.extend_from_slice(&other)),
                2 => text.extend_from_slice(b"\n"),
                3 => text.extend_from_slice(b"{\"pid\": 1}\n"),
                // Too long, or not, and the last line may end without a mark.
                4 => text.extend(std::iter::repeat_n(b'x', len).chain(*b"\n")),
                _ => text.extend(std::iter::repeat_n(b'x', len)),
            }
        }
        let (mut reader, mut lines) = (Reader::new(&text[..]), Vec::new());
        while let Some(line) = reader.next_line().unwrap() {
            lines.push((line, reader.cgroup().map(<[u8]>::to_vec)));
        }
        let mut blocks = Blocks::new(Chunks { text: &text, chunk, fails: false });
        let (mut found, mut block) = (Vec::new(), Vec::new());
        loop {
            block = blocks.next_block(block).unwrap();
            if block.is_empty() {
                break;
            }
            let parsed = parse_block(&block);
            let mut cgroups = parsed.cgroups.iter().peekable();
            let mut cgroup = None;
            for (at, line) in parsed.lines.iter().enumerate() {
                if let Some((_, path)) = cgroups.next_if(|(from, _)| *from == at) {
                    cgroup = path.clone();
                }
                found.push((JsonSample { number: blocks.counts.lines + line.number, ..line.clone() }, cgroup.clone()));
            }
            blocks.counts.add(&parsed);
        }
        prop_assert_eq!(blocks.counts, reader.counts);
        prop_assert!(found == lines, "{} lines instead of {}", found.len(), lines.len());
    }
}

/// A file that gives a few bytes at a time, and may fail at its end.
struct Chunks<'a> {
    text: &'a [u8],
    chunk: usize,
    fails: bool,
}

impl io::Read for Chunks<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.text.is_empty() && self.fails {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let count = self.text.len().min(self.chunk).min(into.len());
        let (given, rest) = self.text.split_at(count);
        into[..count].copy_from_slice(given);
        self.text = rest;
        Ok(count)
    }
}

#[test]
fn a_line_that_never_ends_holds_up_no_caller() {
    let line = written(&Sample::default(), None, Source::Timer);
    let mut blocks = Blocks::new(io::Read::chain(&line[..], io::repeat(b'x')));
    let mut block = Vec::new();
    for _ in 0..5 {
        block = blocks.next_block(block).unwrap();
        assert!(!block.is_empty());
        let parsed = parse_block(&block);
        blocks.counts.add(&parsed);
    }
    assert_eq!((blocks.counts.lines, blocks.counts.unreadable), (2, 1));
}

#[test]
fn lines_before_an_error_are_read() {
    let line = written(&Sample::default(), None, Source::Timer);
    let text = [&line[..], &line[..], b"{\"pid\":"].concat();
    let mut blocks = Blocks::new(Chunks { text: &text, chunk: 100, fails: true });
    let first = blocks.next_block(Vec::new()).unwrap();
    assert_eq!(parse_block(&first).lines.len(), 2);
    // The rest of a line that ends there says nothing.
    let rest = blocks.next_block(first).unwrap();
    assert_eq!(parse_block(&rest).lines.len(), 0);
    assert_eq!(blocks.next_block(rest).unwrap_err().kind(), io::ErrorKind::TimedOut);
}
