//! False sharing: which cache lines threads share falsely, the code that does so, and which thread writes which bytes.

use std::collections::BTreeMap;

use super::memory::{Granule, LineThread};
use super::model::{Report, ThreadReport};
use crate::cluster::LineSharing;
use scxprof_base::source_file::is_of_library;

/// Names of threads, and ranges of bytes, in a sentence.
const NAMES: usize = 3;
/// A line with a smaller part of the accesses of its threads is not reported.
pub(super) const LEAST_PART: f64 = 0.01;

/// The lines that threads share falsely.
pub(super) fn lines(report: &Report) -> impl Iterator<Item = &Granule> {
    report.lines.iter().filter(|line| line.sharing == Some(LineSharing::False))
}

/// The source line of the hottest code that uses a line, if it is not one of a library.
fn source(line: &Granule) -> Option<&str> {
    let sources = line.code.iter().filter_map(|code| code.caller_line.as_deref().or(code.line.as_deref()));
    sources.into_iter().find(|source| !is_of_library(source))
}

/// The code or memory of a line: its source line, else the function, else the variable, else the memory.
pub(super) fn place(line: &Granule) -> String {
    let source = source(line).map(|line| line.rsplit('/').next().unwrap_or(line).to_owned());
    let function = || line.code.iter().find_map(|code| code.sym.clone());
    let variable = || line.symbol.as_ref().map(|symbol| symbol.name.clone());
    source.or_else(function).or_else(variable).unwrap_or_else(|| line.memory.clone())
}

/// The name of memory: a variable and its file, else the name in the report.
pub(super) fn memory(line: &Granule) -> String {
    let Some(symbol) = &line.symbol else { return line.memory.clone() };
    let file = symbol.dso.rsplit('/').next().unwrap_or(&symbol.dso);
    format!("{} in {file}", symbol.name)
}

/// True if the line has a noticeable part of the accesses of its threads.
pub(super) fn is_hot(report: &Report, line: &Granule) -> bool {
    let of_threads = |it: &&ThreadReport| line.by_thread.iter().any(|thread| thread.tid == it.tid);
    let threads = report.cells.iter().flat_map(|cell| &cell.subcells).flat_map(|subcell| &subcell.threads);
    let samples: f64 = threads.filter(of_threads).map(|thread| thread.samples).sum();
    line.accesses >= LEAST_PART * samples
}

/// A line that threads share falsely: its threads, its variable, and the source line.
pub(super) fn sentence(line: &Granule) -> String {
    // A report may have any numbers.
    let accesses = |thread: &LineThread| thread.loads.saturating_add(thread.stores);
    let most = line.by_thread.iter().map(accesses).max().unwrap_or(0);
    // As for the verdict on the line (docs/report.md).
    let counts = |thread: &&LineThread| accesses(thread).saturating_mul(20) >= most;
    let (writers, readers): (Vec<_>, Vec<_>) =
        line.by_thread.iter().filter(counts).partition(|thread| !thread.stored.is_empty());
    let who = if writers.is_empty() || readers.is_empty() {
        format!("{} use different bytes", counted(&[writers, readers].concat()))
    } else {
        let verb = |threads: &[&LineThread], verb: &str| {
            let plural = if threads.len() == 1 { "s" } else { "" };
            format!("{} {verb}{plural}", counted(threads))
        };
        let written = bytes(&writers, |thread| &thread.stored);
        let read = bytes(&readers, |thread| &thread.loaded);
        format!("{} {written}, and {} {read}", verb(&writers, "write"), verb(&readers, "read"))
    };
    let code = source(line).map(|line| format!(", at {line}"));
    let function = || line.code.iter().find_map(|code| Some(format!(", in {}", code.sym.as_ref()?)));
    let code = code.or_else(function).unwrap_or_default();
    format!("False sharing: {who} of one cache line of {}{code}", memory(line))
}

/// The bytes that threads touch: `byte 8`, `bytes 0-7, 16-23`; without numbers where they are many.
fn bytes(threads: &[&LineThread], of: fn(&LineThread) -> &Vec<[u8; 2]>) -> String {
    let mut ranges: Vec<[u8; 2]> = threads.iter().flat_map(|thread| of(thread).clone()).collect();
    ranges.sort_unstable();
    ranges.dedup();
    match ranges.as_slice() {
        [[first, last]] if first == last => format!("byte {first}"),
        ranges if !ranges.is_empty() && ranges.len() <= NAMES => {
            let named = ranges.iter().map(
                |[first, last]| {
                    if first == last {
                        first.to_string()
                    } else {
                        format!("{first}-{last}")
                    }
                },
            );
            format!("bytes {}", named.collect::<Vec<_>>().join(", "))
        }
        _ => "other bytes".to_owned(),
    }
}

/// The noticeable false sharing of a report: by what identifies it in another run, its code and its variable, the sentence
/// about it. Which threads use a line a little differs from run to run.
pub(super) fn by_code(report: &Report) -> BTreeMap<(String, String), String> {
    let hot = lines(report).filter(|line| is_hot(report, line));
    let mut found = BTreeMap::new();
    for line in hot {
        let key = (place(line), line.symbol.as_ref().map_or_else(String::new, |symbol| symbol.name.clone()));
        found.entry(key).or_insert_with(|| sentence(line));
    }
    found
}

/// The names of threads, at most a few, equal ones with their number.
fn counted(threads: &[&LineThread]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for thread in threads {
        *counts.entry(thread.comm.as_deref().unwrap_or("?")).or_default() += 1;
    }
    let named = counts.iter().take(NAMES).map(|(name, threads)| match threads {
        1 => (*name).to_owned(),
        threads => format!("{name} x{threads}"),
    });
    let names = named.collect::<Vec<_>>().join(", ");
    let more = counts.len().saturating_sub(NAMES);
    if more > 0 {
        format!("{names} and {more} more")
    } else {
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::text::tests::made;

    #[test]
    fn the_place_is_in_code_of_the_user() {
        let mut line = made().lines[0].clone();
        assert_eq!(place(&line), "queue.c:12");
        let header =
            |line: &str| crate::report::Code { line: Some(line.to_owned()), ..made().lines[0].code[0].clone() };
        line.code.insert(0, header("/usr/include/c++/12/bits/atomic_base.h:618"));
        assert_eq!(place(&line), "queue.c:12");
        line.code.pop();
        assert_eq!(place(&line), "push");
        line.code.clear();
        assert_eq!((place(&line).as_str(), memory(&line).as_str()), ("total", "total in server"));
    }

    #[test]
    fn false_sharing_says_who_writes_which_bytes() {
        let mut line = made().lines[0].clone();
        let of = |comm: &str, loaded: &[[u8; 2]], stored: &[[u8; 2]]| LineThread {
            comm: Some(comm.to_owned()),
            loaded: loaded.to_vec(),
            stored: stored.to_vec(),
            loads: 100,
            stores: 100,
            ..made().lines[0].by_thread[0].clone()
        };
        let said = |line: &Granule| sentence(line).split(" of one cache line").next().unwrap().to_owned();
        line.by_thread = vec![of("a", &[[0, 8]], &[[0, 7]]), of("b", &[[8, 8]], &[]), of("b", &[[8, 8]], &[])];
        assert_eq!(said(&line), "False sharing: a writes bytes 0-7, and b x2 read byte 8");
        // As a thread that reads the line once to add up.
        line.by_thread.push(LineThread { loads: 1, stores: 0, ..of("sum", &[[0, 8]], &[]) });
        assert_eq!(said(&line), "False sharing: a writes bytes 0-7, and b x2 read byte 8");
        // The report of another program has any numbers.
        line.by_thread.iter_mut().for_each(|it| (it.loads, it.stores) = (u64::MAX, u64::MAX));
        assert!(said(&line).starts_with("False sharing: a writes bytes 0-7, and b x2, sum read "), "{}", said(&line));
        line.by_thread = vec![of("a", &[], &[[0, 7]]), of("b", &[], &[[8, 15]])];
        assert_eq!(said(&line), "False sharing: a, b use different bytes");
        line.by_thread.push(of("c", &[[16, 16], [20, 20], [24, 24], [28, 28]], &[]));
        assert_eq!(said(&line), "False sharing: a, b write bytes 0-7, 8-15, and c reads other bytes");
        // The caller of what a library's header has inlined is the user's own code.
        line.code[0].line = Some("/usr/include/c++/12/bits/atomic_base.h:618".to_owned());
        line.code[0].caller_line = Some("/src/pool.cpp:66".to_owned());
        assert_eq!(place(&line), "pool.cpp:66");
        assert!(line.code[0].to_string().ends_with(" at pool.cpp:66 (atomic_base.h:618)"), "{}", line.code[0]);
    }
}
