//! The hot lines as the text that `-vv` prints: the data that perf c2c shows for a line, and how its threads share it.

use super::memory::{Granule, LineThread};
use super::model::Report;
use crate::cluster::LineSharing;
use scxprof_base::columns::{fitted, Column};

/// Which columns are cut or left out first.
const COLUMNS: [Column; 8] = [
    // Memory is told apart by the numbers at its end.
    Column::name(0).at_least(34),
    Column::name(2),
    Column::number(0),
    Column::number(5),
    Column::number(4),
    Column::number(3),
    Column::number(6),
    Column::name(1),
];

/// The hottest written lines that threads share, each with its threads and its code. Empty if there are none; no line is
/// longer than `width`.
#[must_use]
pub fn hot_lines(report: &Report, width: Option<usize>) -> String {
    if report.lines.is_empty() {
        return String::new();
    }
    let head = ["hot line", "sharing", "accesses", "loads", "stores", "hitm", "threads", "bytes or code"];
    let mut rows = vec![head.map(str::to_owned)];
    for line in &report.lines {
        rows.push(line_row(line));
        rows.extend(line.by_thread.iter().map(|thread| thread_row(line, thread)));
        let more = (line.threads as usize).saturating_sub(line.by_thread.len());
        if more > 0 && !line.by_thread.is_empty() {
            let threads = if more == 1 { "thread" } else { "threads" };
            rows.push(row(format!("  and {more} more {threads}")));
        }
        for code in line.code.iter().filter(|code| code.accesses >= 0.5) {
            let mut row = row("  code".to_owned());
            row[2] = format!("{:.0}", code.accesses);
            row[7] = code.to_string();
            rows.push(row);
        }
    }
    fitted(&rows, &COLUMNS, width)
}

fn row(first: String) -> [String; 8] {
    let mut row: [String; 8] = Default::default();
    row[0] = first;
    row
}

fn line_row(line: &Granule) -> [String; 8] {
    [
        line.memory.clone(),
        if line.is_waited_on() { "waited on" } else { line.sharing.map_or("-", LineSharing::name) }.to_owned(),
        format!("{:.0}", line.accesses),
        format!("{:.0}", line.accesses - line.writes),
        format!("{:.0}", line.writes),
        line.hitm.to_string(),
        line.threads.to_string(),
        String::new(),
    ]
}

fn thread_row(line: &Granule, thread: &LineThread) -> [String; 8] {
    let comm = thread.comm.as_deref().unwrap_or("?");
    let mut bytes = Vec::new();
    for (what, ranges) in [("read", &thread.loaded), ("written", &thread.stored)] {
        if !ranges.is_empty() {
            bytes.push(format!("{what} {}", ranges_text(ranges)));
        }
    }
    let own = thread.symbol.as_ref().filter(|symbol| line.symbol.as_ref() != Some(symbol));
    bytes.extend(own.map(ToString::to_string));
    [
        format!("  {comm} (tid {})", thread.tid),
        String::new(),
        thread.loads.saturating_add(thread.stores).to_string(),
        thread.loads.to_string(),
        thread.stores.to_string(),
        thread.hitm.to_string(),
        String::new(),
        bytes.join("; "),
    ]
}

fn ranges_text(ranges: &[[u8; 2]]) -> String {
    let range = |&[first, last]: &[u8; 2]| if first == last { first.to_string() } else { format!("{first}-{last}") };
    ranges.iter().map(range).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::text::tests::made;

    #[test]
    fn a_line_has_its_threads_and_its_code() {
        let text = hot_lines(&made(), None);
        let expected = "\
hot line               sharing  accesses  loads  stores  hitm  threads  bytes or code
total+0x0 (server)       false         5      4       1     0        3
  reader\\x0a (tid 70)                  4      4       0     0           read 0-7,16
  writer (tid 71)                      1      0       1     0           written 8-15; next+0x0 (server)
  and 1 more thread
  code                                 4                                push+0x12 (server) in inlined insert, lock at queue.c:12
";
        assert_eq!(text, expected, "\n{text}");
        let mut report = made();
        report.lines[0].code[0].accesses = 0.4;
        assert!(!hot_lines(&report, None).contains("push"), "no row of 0");
        report.lines.clear();
        assert_eq!(hot_lines(&report, None), "");
    }

    #[test]
    fn a_line_that_is_waited_on_is_no_line_that_is_only_read() {
        let line =
            Granule { sharing: Some(LineSharing::None), accesses: 100.0, writes: 0.0, ..made().lines[0].clone() };
        for (transfers, is_waited_on) in [(None, false), (Some(10.0), false), (Some(98.0), true)] {
            assert_eq!(Granule { transfers, ..line.clone() }.is_waited_on(), is_waited_on, "{transfers:?}");
        }
    }
}
