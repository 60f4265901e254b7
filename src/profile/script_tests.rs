//! Tests of lines as perf prints them, of the lines in upstream's tests, and of damaged lines.

use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::sample::Access;

fn read(text: &[u8]) -> (Vec<ScriptSample>, Reader<&[u8]>) {
    let mut reader = Reader::new(text);
    let mut lines = Vec::new();
    while let Some(line) = reader.next_line().unwrap() {
        lines.push(line);
    }
    (lines, reader)
}

#[test]
fn what_perf_prints_is_read() {
    // The first three are perf's own.
    let text = b"              sh 19583/19583 13430.091666:     5615323af240 __environ (/usr/bin/dash) ffffffff8175336a elf_load ([kernel.kallsyms])       3f6c72240 4K
            perf  1922/1922  [003]   843.633738:          1         cpu/mem-stores/P: ffff95522dc32988         5080144 |OP STORE|LVL L1 hit|SNP N/A|TLB N/A|LCK N/A|BLK  N/A              27 ffffffff8f3a1dd2 [unknown] (/lib/vmlinux)       42dc32988
            perf  1922/1922    843.633744: fffffe525ce5dde0 ffffffff8f27eaa6 [unknown] (/lib/vmlinux)               0
         job 3/4    10/11    5.000000123:     7f0000001040 /workload.slice/my app.slice cafe     55d0c0de1234 std::f<int (*)()>(long) (/memfd:jit x (deleted))       123456040 2M
           :1234    -1/1234     5.000001:     7f0000001040 unknown     55d0c0de1234 [unknown] ([unknown])               0 N/A
";
    // Lines that one recording would not mix.
    let lines: Vec<ScriptSample> = text.split_inclusive(|&byte| byte == b'\n').flat_map(|line| read(line).0).collect();
    assert_eq!(lines.len(), 5);
    let Sample { raw: RawSample { pid, time, addr, ip, phys, page_size, .. }, comm, memory, .. } = lines[0].sample;
    assert_eq!((comm, pid, time), (Some("sh".into()), 19583, 13_430_091_666_000));
    assert_eq!((addr, ip, phys, page_size), (0x5615_323a_f240, 0xffff_ffff_8175_336a, 0x3_f6c7_2240, 4096));
    assert_eq!((memory, &lines[0].cgroup), (Some(MemoryId::Frame { phys: 0x3_f6c7_2240 }), &None));
    let Sample { raw: RawSample { access, cpu, latency, addr, .. }, memory, .. } = lines[1].sample;
    assert_eq!((access, cpu, latency), (Access::Store, 3, 27));
    assert_eq!((addr, memory), (0xffff_9552_2dc3_2988, None), "the kernel's memory");
    assert_eq!((lines[2].sample.raw.ip, lines[2].sample.raw.phys), (0xffff_ffff_8f27_eaa6, 0));
    assert_eq!(
        (lines[3].sample.comm, lines[3].sample.raw.pid, lines[3].sample.raw.tid),
        (Some("job 3/4".into()), 10, 11)
    );
    assert_eq!(lines[3].cgroup.as_deref(), Some(&b"/workload.slice/my app.slice cafe"[..]));
    assert_eq!((lines[3].sample.raw.time, lines[3].sample.raw.page_size), (5_000_000_123, 2 << 20));
    assert_eq!((lines[3].sample.raw.ip, lines[3].sample.raw.phys), (0x55d0_c0de_1234, 0x1_2345_6040));
    let Sample { raw: RawSample { pid, page_size, .. }, comm, memory, .. } = lines[4].sample;
    assert_eq!((comm, pid, page_size), (None, u32::MAX, 0));
    assert_eq!(
        (memory, &lines[4].cgroup),
        (Some(MemoryId::Private { space: u32::MAX, addr: 0x7f00_0000_1040 }), &None)
    );
}

#[test]
fn lines_without_columns_are_read() {
    let (lines, reader) = read(b"alpha worker 1000/2001 0.000000050: 1 /cg 2 foo (bar.so) 3 4K\n\n\nbeta 1/2 0.5: ab /c d 12 f (x (deleted)) 3 4K\n");
    assert_eq!((reader.lines, reader.unreadable), (2, 0));
    let Sample { raw: RawSample { pid, tid, time, addr, ip, phys, page_size, .. }, comm, .. } = lines[0].sample;
    assert_eq!((comm, pid, tid, time), (Some("alpha worker".into()), 1000, 2001, 50));
    assert_eq!((addr, ip, phys, page_size), (1, 2, 3, 4096));
    assert_eq!(lines[0].cgroup.as_deref(), Some(&b"/cg"[..]));
    assert_eq!((lines[1].sample.raw.ip, lines[1].cgroup.as_deref()), (0xd, Some(&b"/c"[..])), "nobody can know better");
}

#[test]
fn a_line_without_a_name_is_none() {
    // perf prints no column for a missing name; a line with an empty column has an empty name.
    let (lines, reader) = read(b"  648/648    4638.685409:     7f4a48eee408     55b77681843d\n");
    assert_eq!((lines.len(), &reader.listed[..]), (0, &[(1, Unreadable::Head)][..]));
    let (lines, _) = read(b"                   648/648    4638.685409:     7f4a48eee408     55b77681843d\n");
    assert_eq!(lines[0].sample.comm, Some("".into()));
}

#[test]
fn damage_is_counted_and_what_is_missing_is_said() {
    use Unreadable as U;
    let good =
        "              sh    10/11       5.000000:     7f0000001040 /a     55d0c0de1234 f (/x)       123456040 4K\n";
    let no_page =
        "              sh    10/11       5.000000:     7f0000001040 /a     55d0c0de1234 f (/x)       123456040\n";
    let text = [
        good,
        no_page,
        "              sh    10/11       5.000000:     7f0000001040 /a     55d0c0de1234 f (/x\n",
        "              sh    10/11       5.000000:     7f0000001040\n",
        "              sh    10\n",
        "perf: Segmentation fault\n",
        "\n",
        good,
        good.trim_end(),
    ]
    .concat();
    let (lines, reader) = read(text.as_bytes());
    assert_eq!((lines.len(), reader.lines, reader.unreadable), (2, 8, 6));
    let listed = [(2, U::Fewer), (3, U::Fields), (4, U::Fields), (5, U::Head), (6, U::Head), (9, U::Cut)];
    assert_eq!(reader.listed, listed);
    let Missing { memory, op, weight, cgroup, thread, page_size } = reader.missing;
    assert_eq!((memory, op, weight, cgroup, thread, page_size), (2, 2, 2, 0, 2, 0));
    let text = [no_page, no_page, good].concat();
    let (lines, reader) = read(text.as_bytes());
    assert_eq!((lines.len(), reader.missing.page_size, reader.unreadable), (3, 2, 0));
    let long = [vec![b'x'; 3 * MAX_LINE], b"\n".to_vec(), good.into()].concat();
    let (lines, reader) = read(&long);
    assert_eq!((lines.len(), reader.listed), (1, vec![(1, U::Long)]));
}

#[test]
fn a_header_is_no_damage() {
    let good =
        "              sh    10/11       5.000000:     7f0000001040 /a     55d0c0de1234 f (/x)       123456040 4K\n";
    let named = good.replacen("              sh", "            # sh", 1).trim_start().to_owned();
    let text = ["# ========\n# hostname : host\n#\n", good, "# event : name = cpu-clock\n", &named, "x\n"].concat();
    let (lines, reader) = read(text.as_bytes());
    assert_eq!((lines.len(), reader.lines, reader.unreadable), (2, 3, 1), "{:?}", reader.listed);
    assert_eq!(lines[1].sample.comm, Some("# sh".into()));
    // The end of it is no line.
    assert_eq!(read(b"# host").1.unreadable, 1);
}

#[test]
fn every_prefix_gives_its_whole_lines() {
    let good =
        "         job 3/4    10/11       5.000000:     7f0000001040 /a b     55d0c0de1234 f (/x)       123456040 4K\n";
    let text = good.repeat(3);
    for len in 0..text.len() {
        let (lines, reader) = read(&text.as_bytes()[..len]);
        assert_eq!(lines.len(), len / good.len(), "{len} bytes");
        let rest = &text[len / good.len() * good.len()..len];
        assert_eq!(reader.unreadable, u64::from(!rest.trim().is_empty()), "{len} bytes");
    }
}

/// A line as perf prints it.
fn print(
    sample: &Sample,
    comm: &[u8],
    cgroup: Option<&[u8]>,
    data: Option<&str>,
    cpu: bool,
    dso: &str,
    phys: bool,
) -> Vec<u8> {
    let mut line = vec![b' '; COLUMN - comm.len()];
    line.extend_from_slice(comm);
    let mut text = format!(" {:>7}/{:<7} ", sample.raw.pid, sample.raw.tid);
    if cpu {
        let _ = write!(text, "[{:03}] ", sample.raw.cpu);
    }
    let _ = write!(
        text,
        "{:>5}.{:09}: {:16x}",
        sample.raw.time / 1_000_000_000,
        sample.raw.time % 1_000_000_000,
        sample.raw.addr
    );
    if let Some(data) = data {
        let _ = write!(text, " {data}");
    }
    if sample.raw.data_src.0 != 0 {
        let _ = write!(
            text,
            " {:16x} |OP LOAD|LVL Any cache hit|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A",
            sample.raw.data_src.0
        );
        if sample.raw.latency != 0 {
            let _ = write!(text, "{:16}", sample.raw.latency);
        }
    }
    line.extend_from_slice(text.as_bytes());
    if let Some(cgroup) = cgroup {
        line.push(b' ');
        line.extend_from_slice(cgroup);
    }
    let mut text = format!(" {:16x} {dso}", sample.raw.ip);
    if phys {
        let size = match sample.raw.page_size {
            0 => "N/A".to_owned(),
            size if size >= 1 << 30 => format!("{}G", size >> 30),
            size if size >= 1 << 20 => format!("{}M", size >> 20),
            size => format!("{}K", size >> 10),
        };
        let _ = write!(text, "{:16x} {size}", sample.raw.phys);
    }
    line.extend_from_slice(text.as_bytes());
    line.push(b'\n');
    line
}

/// Bytes of names, more often those that separate fields.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        4 => prop::sample::select(&b" /:.()[]0123abcdefxunkow|"[..]),
        1 => any::<u8>().prop_filter("one line, one name", |&byte| byte != b'\n' && byte != 0),
    ]
}

proptest! {
    #[test]
    fn lines_survive_being_printed(
        first in prop::sample::select(&b"/0[ax-"[..]), comm in prop::collection::vec(byte(), 0..15), cgroup in prop::option::of(prop::collection::vec(byte(), 0..40)),
        ids in any::<(u32, u32, u8)>(), time in 0u64..1 << 60, words in any::<(u64, u64, u64)>(), shift in 0u32..52,
        page in prop::sample::select(&[0u64, 4096, 1 << 16, 2 << 20, 1 << 30][..]), data_src in prop::option::of(1u64..),
        latency in any::<u32>(), cpu in any::<bool>(), phys in any::<bool>(),
        data in prop::option::of(prop::sample::select(&["[unknown] ([heap])", "a b::c(int) (/memfd:x (deleted))", "x (/a b)"][..])),
        dso in prop::sample::select(&["main (/usr/bin/x)", "[unknown] ([unknown])", "f<(a)1>(int) (/memfd:x y (deleted))"][..]),
    ) {
        // perf aligns a name, so leading spaces of the name cannot be recognized.
        let comm = [&[first], &comm[..]].concat();
        // A path that contains as many spaces and digits in a row as an address has is read only up to there.
        let path = cgroup.map(|rest| [&b"/"[..], &rest].concat());
        prop_assume!(path.as_ref().is_none_or(|path| !path.windows(3).any(|bytes| bytes == b"   ")));
        let sample = Sample::from(RawSample { pid: ids.0, tid: ids.1, cpu: if cpu { ids.2.into() } else { RawSample::NO_CPU }, time, addr: words.0 >> shift, ip: words.1 >> shift, phys: if phys { words.2 >> shift >> 12 } else { 0 }, page_size: if phys { page } else { 0 }, data_src: DataSource(data_src.unwrap_or(0)), latency: if data_src.is_some() { latency } else { 0 }, ..RawSample::default() });
        let line = print(&sample, &comm, path.as_deref(), data, cpu, dso, phys);
        let (lines, reader) = read(&line);
        prop_assert_eq!(reader.unreadable, 0, "{}", String::from_utf8_lossy(&line));
        let Sample { raw: RawSample { pid, tid, cpu, time, addr, ip, phys, page_size, data_src, latency, .. }, comm: name, .. } = lines[0].sample;
        let read = Sample::from(RawSample { time, pid, tid, cpu, ip, addr, phys, page_size, latency, data_src, ..RawSample::default() });
        prop_assert_eq!(read, sample, "{}", String::from_utf8_lossy(&line));
        prop_assert_eq!(name, Some(Comm::new(&comm)), "{}", String::from_utf8_lossy(&line));
        prop_assert_eq!(&lines[0].cgroup, &path, "{}", String::from_utf8_lossy(&line));
    }

    #[test]
    fn any_bytes_are_lines_or_counted(text in prop::collection::vec(byte().prop_map(|byte| if byte == b'|' { b'\n' } else { byte }), 0..400)) {
        let (lines, reader) = read(&text);
        prop_assert_eq!(lines.len() as u64 + reader.unreadable, reader.lines);
    }
}
