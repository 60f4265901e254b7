//! Writes samples as the text that `perf script` prints of them, for programs that read only that; [`super::script`] reads it.

use std::io::{self, Write};

use crate::resolve::Symbol;
use crate::sample::{printable, Sample};

/// The file of a profile that scx_characterize reads in place of its perf.mem.data.
pub(crate) const FILE: &str = "perf.mem.script";
/// perf's text for code without a name.
const UNKNOWN: &str = "[unknown]";

/// Writes one access with the fields that scx_characterize asks perf for
/// (`comm,tid,pid,time,cgroup,ip,addr,phys_addr,data_page_size,dso,sym`) and all digits of its time; `code` is its [`code_text`].
///
/// # Errors
/// The errors of the writer.
pub(crate) fn write(
    out: &mut impl Write,
    sample: &Sample,
    cgroup: Option<&[u8]>,
    code: Option<&[u8]>,
) -> io::Result<()> {
    let raw = &sample.raw;
    let comm = sample.comm.map_or_else(|| format!(":{}", raw.tid), |comm| one_line(comm.as_bytes()));
    let cgroup = cgroup.map_or_else(|| "unknown".to_owned(), one_line);
    let ids = format!("{}/{}", raw.pid, raw.tid);
    let (seconds, ns) = (raw.time / 1_000_000_000, raw.time % 1_000_000_000);
    write!(out, "{comm:>16} {ids:<15} {seconds:5}.{ns:09}: {:16x} {cgroup} {:16x} ", raw.addr, raw.ip)?;
    out.write_all(code.unwrap_or(b"[unknown] ([unknown])"))?;
    writeln!(out, " {:16x} {}", raw.phys, page_size(raw.page_size))
}

/// The part of a line that names its instruction.
pub(crate) fn code_text(symbol: &Symbol) -> Vec<u8> {
    let name = symbol.function.as_ref().map_or(UNKNOWN, |(name, _)| name);
    format!("{} ({})", one_line(name.as_bytes()), printable(&symbol.dso)).into_bytes()
}

/// A name as it is, unless it would end the line or is no text: scx_characterize reads no bytes that are none.
fn one_line(name: &[u8]) -> String {
    String::from_utf8_lossy(name).replace(char::is_control, "?")
}

/// As `get_page_size_name` in tools/perf/util/event.c.
fn page_size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 3] = [(30, "G"), (20, "M"), (10, "K")];
    match UNITS.iter().find(|(shift, _)| bytes >> shift > 0 && bytes.trailing_zeros() >= *shift) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => "N/A".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::script::Reader;
    use crate::sample::{Comm, RawSample};

    #[test]
    fn what_is_written_is_read_again() {
        let names: [&[u8]; 5] = [b"web", b"job 3/4", b"a b  c", b"1234567890abcde", b":7"];
        for (at, name) in names.into_iter().enumerate() {
            let raw = RawSample {
                time: 12_345_678_900_001 + at as u64,
                pid: 4_000_000,
                tid: 4_000_001,
                ip: 0xffff_ffff_8100_0000,
                addr: 0x7f00_0000_1000,
                phys: 0x12_3000,
                page_size: [4096, 2 << 20, 1 << 30, 0, 65536][at],
                ..RawSample::default()
            };
            let sample = Sample { raw, comm: Some(Comm::new(name)), ..Sample::default() };
            let mut text = Vec::new();
            let path: &[u8] = b"/workload.slice/my app.slice";
            write(&mut text, &sample, Some(path), Some(b"operator()(int) const (/usr/lib/x (deleted))")).unwrap();
            let mut reader = Reader::new(text.as_slice());
            let line = reader.next_line().unwrap().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&text)));
            let read = line.sample;
            assert_eq!((read.comm, line.cgroup.as_deref()), (sample.comm, Some(path)));
            let of =
                |raw: &RawSample| [raw.time, raw.ip, raw.addr, raw.phys, raw.page_size, raw.pid.into(), raw.tid.into()];
            assert_eq!(of(&read.raw), of(&raw), "{}", String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn what_is_not_known_is_no_name() {
        let sample = Sample { raw: RawSample { pid: 7, tid: 8, ..RawSample::default() }, ..Sample::default() };
        let mut text = Vec::new();
        write(&mut text, &sample, None, None).unwrap();
        let line = Reader::new(text.as_slice()).next_line().unwrap().unwrap();
        assert_eq!((line.sample.comm, line.cgroup, line.sample.raw.page_size), (None, None, 0));
        assert_eq!(one_line(b"a\nb\xff"), "a?b\u{fffd}");
    }
}
