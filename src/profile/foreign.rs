//! Formats that scxprof does not read, recognized by the beginning of the file, and commands that convert them.

use std::io::Read;

use flate2::read::MultiGzDecoder;
use serde::de::IgnoredAny;
use serde_json::{Deserializer, Value};

/// Bytes to which the beginning of a gzip is inflated.
const INFLATED: u64 = 64 << 10;

/// Compressed files, by their first bytes: what compressed them, and what unpacks them.
const COMPRESSED: [(&[u8], &str, &str); 11] = [
    (b"\xfd7zXZ\0", "xz", "xz -dk"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"),
    (b"BZh", "bzip2", "bzip2 -dk"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -d"),
    (b"\x02\x21\x4c\x18", "lz4", "lz4 -d"),
    (b"LZIP", "lzip", "lzip -dk"),
    (b"\x5d\0\0", "lzma", "xz -dk"),
    (b"\x1f\x9d", "compress", "uncompress"),
    (b"PK\x03\x04", "zip", "unzip"),
    (b"7z\xbc\xaf\x27\x1c", "7-Zip", "7z x"),
    (b"Rar!\x1a\x07", "RAR", "unrar x"),
];

/// Other files, by their first bytes: what they are and what to do instead.
const KNOWN: [(&[u8], &str); 15] = [
    (b"WPROF\0", "the raw data of wprof: `wprof -R -D FILE -T trace.pb` makes a trace of it that scxprof reads"),
    (b"\x17\x08\x44tracing", "a trace.dat of trace-cmd: record with `scxprof record --sched`, `perf sched record` or perfetto instead"),
    (b"PERFFILE", "a perf.data of perf before Linux 2.6.37: record it again with a newer perf"),
    (b"PAR1", "a Parquet file: `scxprof merge` reads those of `--evidence`, and DuckDB reads all"),
    (b"SQLite format 3\0", "an SQLite database: name the recording from which it was made"),
    (b"\x7fELF", "a program (ELF) and no recording: `perf record -g` or `scxprof record` with it as the command makes one"),
    (b"JiTD", JITDUMP),
    (b"DTiJ", JITDUMP),
    (b"FLR\0", "a recording of Java Flight Recorder: `jfrconv` of async-profiler makes folded stacks of it, which `scxprof stacks -f` reads"),
    (b"\xc1\x1f\xfc\xc1", CTF),
    (b"\xc1\xfc\x1f\xc1", CTF),
    (b"\x75\xd1\x1d\x57", CTF),
    (b"<svg", PICTURE),
    (b"<?xml", PICTURE),
    (b"# tracer:", "the text of ftrace: record with `scxprof record --sched`, `perf sched record` or perfetto instead"),
];
const JITDUMP: &str = "a jitdump, which has code and no samples: name the perf.data that was recorded with it";
const CTF: &str =
    "a trace of LTTng (CTF): record with `scxprof record --sched`, `perf sched record` or perfetto instead";
const PICTURE: &str = "a picture or XML: name the recording or the folded stacks from which it was made";
const HTML: &str = "a page (HTML): name the recording or the trace from which it was made";
const PPROF: &str =
    "a profile of pprof: `go tool pprof -raw FILE | stackcollapse-go.pl` makes folded stacks of it, which \
                     `scxprof stacks -f` reads";

/// JSON by a name in it: what it is, and what to do instead.
const OBJECTS: [(&str, &str); 10] = [
    ("\"traceEvents\"", CHROME),
    ("\"ph\"", CHROME),
    ("\"displayTimeUnit\"", CHROME),
    (
        "www.speedscope.app",
        "a profile of speedscope (JSON): name the recording or the folded stacks from which it was made",
    ),
    (
        "\"linux-perf-json-version\"",
        "what `perf data convert --to-json` printed: name the perf.data from which it was made",
    ),
    (
        "\"callFrame\"",
        "a CPU profile of Chrome or Node (JSON): record with `perf record -g` (node --perf-basic-prof) instead",
    ),
    ("\"preprocessedProfileVersion\"", FIREFOX),
    ("\"resourceSpans\"", "traces of OpenTelemetry (JSON), which have no samples"),
    ("\"timer_freq_hz\"", WPROF),
    ("\"resourceProfiles\"", "profiles of OpenTelemetry (JSON): name the recording from which they were made"),
];
const CHROME: &str = "a Chrome JSON trace, which no program converts to what scxprof reads: name the trace from which it was made \
                      (Perfetto's own format, as `wprof -T FILE` and `perfetto -o FILE` write it), or record with `scxprof record --sched`";
const FIREFOX: &str = "a profile for the Firefox Profiler (JSON): name the recording from which it was made";
const WPROF: &str =
    "lines of `wprof -J` (JSON), which have no memory samples: `scxprof trace` and `scxprof sched -f` read them";
pub(super) const JSON: &str = "JSON, but not the lines of `process` (perf.jsonl), which have pid, tid, time and addr";

/// The format of a file that begins with `head`, if scxprof does not read it; `None` if it is unknown or may be read.
pub(super) fn what(head: &[u8]) -> Option<String> {
    if head.starts_with(&[0x1f, 0x8b]) {
        let mut inner = Vec::new();
        // The head may be cut.
        let _ = MultiGzDecoder::new(head).take(INFLATED).read_to_end(&mut inner);
        // The reader of archives says of lines that they are to be unpacked.
        return plain(&inner)
            .filter(|what| what != JSON)
            .map(|what| format!("compressed with gzip, and in it is {what}"));
    }
    plain(head)
}

fn plain(head: &[u8]) -> Option<String> {
    for (magic, program, command) in COMPRESSED {
        // The header of bzip2 is text but for the number of its first block.
        let is_whole = program != "bzip2" || head.get(4..10) == Some(b"\x31\x41\x59\x26\x53\x59");
        if head.starts_with(magic) && is_whole {
            return Some(format!("compressed with {program}: unpack it first (`{command}`)"));
        }
    }
    if is_pprof(head) {
        return Some(PPROF.to_owned());
    }
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let known = KNOWN.iter().find(|(magic, _)| text.starts_with(magic)).map(|(_, what)| *what);
    let is_page = || [&b"<!doctype html"[..], b"<html"].iter().any(|tag| begins(text, tag));
    known.or_else(|| is_page().then_some(HTML)).or_else(|| json(text)).map(str::to_owned)
}

fn begins(text: &[u8], tag: &[u8]) -> bool {
    text.get(..tag.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(tag))
}

/// An uncompressed tar, which is no profile until it is unpacked.
pub(super) fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

/// The format of JSON that is not a line of a profile.
fn json(text: &[u8]) -> Option<&'static str> {
    let is_array = text.strip_prefix(b"[").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"{"));
    if !is_array && !text.starts_with(b"{") {
        return None;
    }
    // Text may begin with a brace, too, as folded stacks of PHP do.
    match Deserializer::from_slice(text).into_iter::<IgnoredAny>().next()? {
        Ok(_) => {}
        Err(error) if error.is_eof() => {}
        Err(_) => return None,
    }
    let has = |name: &str| memchr::memmem::find(text, name.as_bytes()).is_some();
    let first = Deserializer::from_slice(text).into_iter::<Value>().next();
    if let Some(Ok(Value::Object(fields))) = first {
        if fields.contains_key("t") && fields.contains_key("ts") {
            return Some(WPROF);
        }
    }
    Some(OBJECTS.iter().find(|(name, _)| has(name)).map_or(JSON, |(_, what)| what))
}

/// True if it begins with a `sample_type` (profile.proto): two numbers of the table of strings.
fn is_pprof(head: &[u8]) -> bool {
    // Tag and length; fields 1 and 2 are varints.
    matches!(head, [0x0a, 4, 0x08, kind, 0x10, unit, ..] if kind < &0x80 && unit < &0x80)
        || matches!(head, [0x0a, 2, 0x08, kind, 0x0a | 0x12 | 0x1a, ..] if kind < &0x80)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::write::GzEncoder;
    use flate2::Compression;

    use super::*;

    #[test]
    fn files_of_others_are_known_by_their_beginning() {
        for (head, expected) in [
            (&b"\xfd7zXZ\0\0\x04"[..], "compressed with xz: unpack it first"),
            (b"\x28\xb5\x2f\xfd\x04", "compressed with zstd"),
            (b"BZh91AY&SY", "compressed with bzip2"),
            (b"PK\x03\x04\x14\0", "compressed with zip"),
            (b"WPROF\0\x01", "wprof -R -D FILE -T trace.pb"),
            (b"\x17\x08\x44tracing6\0", "trace-cmd"),
            (b"\x7fELF\x02\x01\x01", "a program (ELF)"),
            (b"PAR1\x15\x04", "a Parquet file"),
            (b" <!DOCTYPE HTML><html>", "a page (HTML)"),
            (b"{\"traceEvents\":[{\"name\":\"a\",\"ph\":\"X\"}]}", "a Chrome JSON trace"),
            (b"\xef\xbb\xbf[ {\"ph\": \"X\", \"ts\": 1,", "a Chrome JSON trace"),
            (b"[\n{\"name\":\"a\",\"ph\":\"B\"},\n", "a Chrome JSON trace"),
            (b"{\"ts\":0.1,\"t\":\"switch\",\"cpu\":1}\n{", "lines of `wprof -J`"),
            (b"{\"version\":\"3.1\",\"dur\":1.0,\"timer_freq_hz\":100}\n", "lines of `wprof -J`"),
            (b"{\"meta\":{\"preprocessedProfileVersion\":47}}", "Firefox"),
            (b"{\"a\": 1}\n", "not the lines of `process`"),
            (b"\x0a\x04\x08\x01\x10\x02\x0a\x04\x08\x03\x10\x04", "a profile of pprof"),
        ] {
            let what = what(head).unwrap_or_default();
            assert!(what.contains(expected), "{head:?}: {what}");
        }
        let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
        gz.write_all(b"{\"traceEvents\":[]}").unwrap();
        let what_in_gzip = what(&gz.finish().unwrap()).unwrap_or_default();
        assert!(what_in_gzip.starts_with("compressed with gzip, and in it is a Chrome JSON trace"), "{what_in_gzip}");
    }

    #[test]
    fn text_that_begins_alike_is_not_refused() {
        for head in [
            &b"{closure};main 5\n"[..],
            b"{main};f 1\n",
            b"[unknown];main 4\n",
            b"[libc.so.6] 4\n",
            b"BZhang 100/101 10.000001: 7f00 401000\n",
            b"web;main 3\n",
            b"",
            b"{",
            b"[",
            b"PERFILE2",
        ] {
            assert_eq!(what(head).filter(|what| what != JSON), None, "{head:?}");
        }
    }
}
