//! The answer: what was found, in a headline and in about ten lines, before all tables.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::memory::{Granule, LineThread};
use super::model::{CellReport, Report, SubcellKind, SubcellReport, ThreadReport};
use crate::cluster::LineSharing;
use crate::config::base_of;
use scxprof_base::columns::{fitted, Column};
use scxprof_base::source_file::is_of_library;

/// Groups in the headline.
const IN_HEADLINE: usize = 4;
/// Names of threads of a group.
const NAMES: usize = 3;
/// Groups in the answer.
const ROWS: usize = 5;
/// Lines of false sharing in the answer.
const FALSE_LINES: usize = 2;
/// A line with a smaller part of the accesses of its threads is not worth a word.
const LEAST_PART: f64 = 0.01;
/// Samples of which less than this part, in percent, was lost are as good as all.
const LOST_PERCENT: f64 = 0.1;
/// Threads in no group are worth a line from this part of the samples on.
const LEAST_UNGROUPED: f64 = 0.25;
/// Bytes of a unit.
const UNIT: f64 = 1024.0;

/// How the columns of groups give way where a line has no room.
const COLUMNS: [Column; 6] = [
    Column::name(0).at_least(12),
    Column::number(4),
    Column::number(2),
    Column::number(3),
    Column::name(1).at_least(3),
    Column::name(1).at_least(16),
];

/// A group of threads that share memory. A subcell can have several, where names do not tell them apart or there is no room.
struct Group<'a> {
    cell: &'a CellReport,
    subcell: &'a SubcellReport,
    /// It has the subcell for itself.
    is_alone: bool,
    /// Its threads are in the subcells of their names: the cell is grouped by name.
    is_by_name: bool,
    threads: Vec<&'a ThreadReport>,
    /// Its names of threads, each with its number.
    names: String,
    samples: f64,
    /// The lines that its threads share falsely.
    false_lines: Vec<&'a Granule>,
}

impl<'a> Group<'a> {
    fn new(
        (cell, subcell): (&'a CellReport, &'a SubcellReport),
        threads: Vec<&'a ThreadReport>,
        is_alone: bool,
        report: &'a Report,
    ) -> Self {
        let samples = threads.iter().fold(0.0, |sum, thread| sum + thread.samples);
        let names = names(&threads);
        let mut group =
            Self { cell, subcell, is_alone, is_by_name: false, threads, names, samples, false_lines: Vec::new() };
        let is_worth = |line: &&Granule| line.accesses >= LEAST_PART * samples;
        group.false_lines = false_lines(report).filter(|line| group.uses(line) && is_worth(line)).collect();
        group
    }

    /// The groups of a subcell: by their communities, if it has several.
    fn of_subcell(of: (&'a CellReport, &'a SubcellReport), report: &'a Report) -> Vec<Self> {
        let mut communities: BTreeMap<&str, Vec<&'a ThreadReport>> = BTreeMap::new();
        for thread in of.1.threads.iter().filter(|thread| thread.verdict.starts_with("community ")) {
            communities.entry(&thread.verdict).or_default().push(thread);
        }
        if communities.len() < 2 {
            return vec![Self::new(of, of.1.threads.iter().collect(), true, report)];
        }
        communities.into_values().map(|threads| Self::new(of, threads, false, report)).collect()
    }

    /// The communities of a cell that is grouped by name, where that avoids more: their threads are in the subcells of their names.
    fn by_name(cell: &'a CellReport, report: &'a Report) -> Vec<Self> {
        let mut communities: BTreeMap<&str, Vec<(&'a SubcellReport, &'a ThreadReport)>> = BTreeMap::new();
        for subcell in &cell.subcells {
            for thread in subcell.threads.iter().filter(|thread| thread.verdict.starts_with("community ")) {
                communities.entry(&thread.verdict).or_default().push((subcell, thread));
            }
        }
        let is_by_name = |threads: &&Vec<(&SubcellReport, &ThreadReport)>| {
            threads.len() > 1 && threads.iter().all(|(subcell, _)| subcell.kind == SubcellKind::Class)
        };
        let mut groups = Vec::new();
        for threads in communities.values().filter(is_by_name) {
            let Some((subcell, _)) = threads.iter().max_by(|a, b| a.0.share.total_cmp(&b.0.share)) else { continue };
            let threads = threads.iter().map(|(_, thread)| *thread).collect();
            groups.push(Self { is_by_name: true, ..Self::new((cell, subcell), threads, false, report) });
        }
        groups
    }

    /// True if most of the threads that use a line are its own.
    fn uses(&self, line: &Granule) -> bool {
        let here = line.by_thread.iter().filter(|it| self.threads.iter().any(|thread| thread.tid == it.tid)).count();
        here * 2 > line.by_thread.len()
    }

    fn is_left_out(&self) -> bool {
        self.subcell.in_configuration.is_none()
    }
}

/// The groups of a report, those with most samples first.
fn groups(report: &Report) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = report.groups().flat_map(|of| Group::of_subcell(of, report)).collect();
    groups.extend(report.cells.iter().flat_map(|cell| Group::by_name(cell, report)));
    groups.sort_by(|a, b| b.samples.total_cmp(&a.samples));
    groups
}

fn false_lines(report: &Report) -> impl Iterator<Item = &Granule> {
    report.lines.iter().filter(|line| line.sharing == Some(LineSharing::False))
}

/// The names of a group's threads without the numbers at their ends, each with how many threads have it: `parse x3, reader-a`.
fn names(threads: &[&ThreadReport]) -> String {
    let mut families: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for thread in threads {
        let name = thread.comm.as_deref().unwrap_or("?");
        let base = name.get(..base_of(name.as_bytes()).len()).unwrap_or(name);
        let family = families.entry(base).or_default();
        *family = (family.0 + 1, family.1 + thread.samples);
    }
    let mut families: Vec<(&str, (usize, f64))> = families.into_iter().collect();
    families.sort_by(|a, b| b.1 .1.total_cmp(&a.1 .1).then(a.0.cmp(b.0)));
    let more = families.len().saturating_sub(NAMES);
    let shown = families.iter().take(NAMES).map(|(name, (threads, _))| match threads {
        1 => (*name).to_owned(),
        threads => format!("{name} x{threads}"),
    });
    let mut text = shown.collect::<Vec<_>>().join(" + ");
    if more > 0 {
        let _ = write!(text, " + {more} more");
    }
    text
}

/// The source line of the hottest code that uses a line, if it is not one of a library.
fn source(line: &Granule) -> Option<&str> {
    let sources = line.code.iter().filter_map(|code| code.caller_line.as_deref().or(code.line.as_deref()));
    sources.into_iter().find(|source| !is_of_library(source))
}

/// Where a line is used: its source line, else the function, else the variable, else the memory.
fn place(line: &Granule) -> String {
    let source = source(line).map(|line| line.rsplit('/').next().unwrap_or(line).to_owned());
    let function = || line.code.iter().find_map(|code| code.sym.clone());
    let variable = || line.symbol.as_ref().map(|symbol| symbol.name.clone());
    source.or_else(function).or_else(variable).unwrap_or_else(|| line.memory.clone())
}

/// What memory is called: a variable and its file, else as the report has it.
fn memory(line: &Granule) -> String {
    let Some(symbol) = &line.symbol else { return line.memory.clone() };
    let file = symbol.dso.rsplit('/').next().unwrap_or(&symbol.dso);
    format!("{} in {file}", symbol.name)
}

/// What was found in a line, as `3 groups: parse x3, index x3, stat x2 (false sharing at pool.cpp:14); this host fits 1`.
#[must_use]
pub(super) fn headline(report: &Report) -> String {
    let groups = groups(report);
    let mut text = match groups.len() {
        0 => nothing(report),
        1 => "1 group: ".to_owned(),
        count => format!("{count} groups: "),
    };
    let named = groups.iter().take(IN_HEADLINE).map(|group| match group.false_lines.first() {
        Some(line) => format!("{} (false sharing at {})", group.names, place(line)),
        None => group.names.clone(),
    });
    text += &named.collect::<Vec<_>>().join(", ");
    let more = groups.len().saturating_sub(IN_HEADLINE);
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    let of_groups =
        |line: &Granule| groups.iter().any(|group| group.false_lines.iter().any(|it| std::ptr::eq(*it, line)));
    if let Some(line) = false_lines(report).find(|line| is_hot(report, line) && !of_groups(line)) {
        let _ = write!(text, "; false sharing at {}", place(line));
    }
    let fitting = groups.iter().filter(|group| !group.is_left_out()).count();
    if fitting < groups.len() {
        let fitting = if fitting == 0 { "none".to_owned() } else { fitting.to_string() };
        let _ = write!(text, "; this host fits {fitting}");
    }
    text
}

/// What was looked at, where no group was found.
fn nothing(report: &Report) -> String {
    let threads =
        report.cells.iter().flat_map(|cell| &cell.subcells).map(|subcell| subcell.threads.len()).sum::<usize>();
    let threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    format!("no groups of threads that share memory were found among {threads} with {:.0} samples", report.samples)
}

/// Why threads are in no group, for each reason how many they are; `None` if they have few of the samples.
fn ungrouped(report: &Report, groups: &[Group<'_>]) -> Option<String> {
    let is_grouped =
        |thread: &&ThreadReport| groups.iter().any(|group| group.threads.iter().any(|it| std::ptr::eq(*it, *thread)));
    let mut reasons: BTreeMap<String, (usize, f64)> = BTreeMap::new();
    let threads = report.cells.iter().flat_map(|cell| &cell.subcells).flat_map(|subcell| &subcell.threads);
    for thread in threads.filter(|thread| !is_grouped(thread)) {
        let reason = match thread.verdict.as_str() {
            "alone" => "mostly memory of their own".to_owned(),
            // One that is alone in its cell, or whose name is of another group.
            community if community.starts_with("community ") => {
                "their names are not told from those of others".to_owned()
            }
            "shares with all of its cell" => {
                let hubs = report.hubs.iter().take(NAMES - 1).map(|hub| hub.memory.clone()).collect::<Vec<_>>();
                let named = if hubs.is_empty() { String::new() } else { format!(", as {}", hubs.join(" and ")) };
                format!("memory that nearly all threads use{named}")
            }
            "shares with some of its cell" => "memory of several groups".to_owned(),
            "shares with other cells" => "memory of other cells".to_owned(),
            // The misses of a thread, at the end, are its own.
            other => {
                let why = other.strip_prefix("unknown: ").unwrap_or(other);
                format!("not judged: {}", why.rsplit_once(" (").map_or(why, |(why, _)| why))
            }
        };
        let sum = reasons.entry(reason).or_default();
        *sum = (sum.0 + 1, sum.1 + thread.samples);
    }
    let all: f64 = reasons.values().map(|(_, samples)| samples).sum();
    if report.samples <= 0.0 || all < LEAST_UNGROUPED * report.samples {
        return None;
    }
    let mut reasons: Vec<(String, (usize, f64))> = reasons.into_iter().collect();
    reasons.sort_by(|a, b| b.1 .1.total_cmp(&a.1 .1).then_with(|| a.0.cmp(&b.0)));
    let named = reasons.iter().take(NAMES).map(|(reason, (threads, samples))| {
        let threads = if *threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
        format!("{threads} with {} of the samples ({reason})", percent(samples / report.samples))
    });
    Some(format!("In no group: {}", named.collect::<Vec<_>>().join("; ")))
}

/// The lines that most threads use, where there is no group whose memory could be named.
fn most_shared(report: &Report) -> Option<String> {
    let mut names: Vec<String> = report.lines.iter().take(FALSE_LINES).map(memory).collect();
    names.dedup();
    (!names.is_empty()).then(|| format!("Shared most: {}", names.join(", ")))
}

/// The answer for people: the headline, a line for each group with what it shares, false sharing with its source line, the locality,
/// and what the configuration leaves out and why. No row of a group is longer than `width` characters, if there is one; sentences are
/// not divided.
#[must_use]
pub fn answer(report: &Report, width: Option<usize>) -> String {
    let groups = groups(report);
    let mut lines = vec![report.headline.clone()];
    if !groups.is_empty() {
        let head = ["  group", "samples", "locality", "confidence", "fits", "what they share"];
        let has_limits = groups.iter().any(Group::is_left_out);
        let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
        rows.extend(groups.iter().take(ROWS).map(|group| row(report, group).to_vec()));
        let mut columns = COLUMNS.to_vec();
        if !has_limits {
            columns.remove(4);
            for row in &mut rows {
                row.remove(4);
            }
        }
        lines.extend(fitted(&rows, &columns, width).lines().map(str::to_owned));
        if groups.len() > ROWS {
            lines.push(format!("  and {} more groups (-v lists all)", groups.len() - ROWS));
        }
    }
    lines.extend(false_lines(report).filter(|line| is_hot(report, line)).take(FALSE_LINES).map(false_sharing));
    if groups.is_empty() {
        lines.extend(most_shared(report));
    }
    lines.extend(ungrouped(report, &groups));
    // Without a group there is nothing to keep together.
    if let Some(locality) = report.locality.filter(|_| !groups.is_empty()) {
        let found = report.locality_found.filter(|found| *found > locality + 0.0005);
        let found = found.map_or_else(String::new, |found| format!(", {} with all groups", percent(found)));
        let by_name = report.locality_by_name.map(|by_name| format!(", {} if grouped by name", percent(by_name)));
        lines.push(format!(
            "Locality: {} of the avoidable misses are between threads that the configuration keeps together{found}{}",
            percent(locality),
            by_name.unwrap_or_default()
        ));
    }
    lines.extend(report.limits.iter().map(|limit| capital(limit)));
    if report.run.lost_percent > LOST_PERCENT {
        lines.push(format!("Lost: {:.1} % of the samples", report.run.lost_percent));
    }
    lines.join("\n") + "\n"
}

fn row(report: &Report, group: &Group<'_>) -> [String; 6] {
    let part = |part: Option<f64>| part.map_or_else(|| "-".to_owned(), percent);
    let several = report.cells.len() > 1;
    let of = if several { format!(" of {}", group.cell.name) } else { String::new() };
    let own = group.cell.path_of(group.subcell);
    let taker = match &group.subcell.in_configuration {
        Some(_) if group.is_by_name => "by name".to_owned(),
        None => "no".to_owned(),
        Some(taker) if *taker == own => "yes".to_owned(),
        Some(taker) => format!("in {taker}"),
    };
    let confidence = group.subcell.confidence;
    [
        format!("  {}{of}", group.names),
        percent(if report.samples > 0.0 { group.samples / report.samples } else { 0.0 }),
        part(group.subcell.locality.filter(|_| group.is_alone)),
        confidence.map_or_else(|| "-".to_owned(), |it| format!("{it:.2}")),
        taker,
        shared(report, group),
    ]
}

/// What a group shares most: the region with its size.
fn shared(report: &Report, group: &Group<'_>) -> String {
    if !group.is_alone {
        // The regions are those of all groups of the subcell.
        let line = group.subcell.lines.iter().chain(&report.lines).find(|line| group.uses(line));
        return line.map_or_else(|| "-".to_owned(), memory);
    }
    let Some(region) = group.subcell.regions.first() else {
        return group.subcell.pages.first().map_or_else(|| "-".to_owned(), |page| page.memory.clone());
    };
    // A variable of its hottest line says more than the address of the region.
    let line = group.subcell.lines.iter().find(|line| line.symbol.is_some());
    let is_one = group.subcell.regions.len() == 1;
    let name = line.filter(|_| is_one).map_or_else(|| region.memory.clone(), memory);
    let more = group.subcell.regions.len().saturating_sub(1);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{name} ({}){more}", size(region.bytes))
}

fn is_hot(report: &Report, line: &Granule) -> bool {
    let of_threads = |it: &&ThreadReport| line.by_thread.iter().any(|thread| thread.tid == it.tid);
    let threads = report.cells.iter().flat_map(|cell| &cell.subcells).flat_map(|subcell| &subcell.threads);
    let samples: f64 = threads.filter(of_threads).map(|thread| thread.samples).sum();
    line.accesses >= LEAST_PART * samples
}

/// A line that threads share falsely: its threads, its variable, and the source line.
fn false_sharing(line: &Granule) -> String {
    let most = line.by_thread.iter().map(|thread| thread.loads + thread.stores).max().unwrap_or(0);
    // As for the verdict on the line (docs/report.md).
    let counts = |thread: &&LineThread| (thread.loads + thread.stores) * 20 >= most;
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

/// The false sharing of a report that its threads feel: what identifies it in another run, and the sentence about it.
pub(super) fn false_sharings(report: &Report) -> BTreeMap<(String, String), String> {
    let hot = false_lines(report).filter(|line| is_hot(report, line));
    let mut found = BTreeMap::new();
    for line in hot {
        let key = (place(line), counted(&line.by_thread.iter().collect::<Vec<_>>()));
        found.entry(key).or_insert_with(|| false_sharing(line));
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

fn percent(part: f64) -> String {
    format!("{:.1} %", (part * 1000.0).round() / 10.0 + 0.0)
}

fn size(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        bytes if bytes < UNIT => format!("{bytes:.0} B"),
        bytes if bytes < UNIT * UNIT => format!("{:.1} KiB", bytes / UNIT),
        bytes => format!("{:.1} MiB", bytes / UNIT / UNIT),
    }
}

fn capital(sentence: &str) -> String {
    let mut characters = sentence.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().collect::<String>() + characters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::text::tests::made;

    #[test]
    fn the_headline_has_the_groups_and_what_does_not_fit() {
        let mut report = made();
        // The threads of the line are those of the first group.
        let groups = "2 groups: reader-a + writer-a (false sharing at queue.c:12), reader-b + writer-b";
        assert_eq!(headline(&report), groups);
        report.cells[0].subcells[1].in_configuration = None;
        assert_eq!(headline(&report), format!("{groups}; this host fits 1"));
        report.cells[0].subcells[0].in_configuration = None;
        assert_eq!(headline(&report), format!("{groups}; this host fits none"));
        report.lines.clear();
        assert_eq!(headline(&report), "2 groups: reader-a + writer-a, reader-b + writer-b; this host fits none");
        report.cells.clear();
        assert!(
            headline(&report).starts_with("no groups of threads that share memory were found among 0 threads with 50")
        );
    }

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
    fn threads_of_one_name_are_counted() {
        let thread = made().cells[0].subcells[0].threads[0].clone();
        let named = |comm: &str| ThreadReport { comm: Some(comm.to_owned()), ..thread.clone() };
        let threads = ["parse1", "parse2", "log", "a", "b", "parse10", "9"].map(named);
        assert_eq!(names(&threads.iter().collect::<Vec<_>>()), "parse x3 + 9 + a + 2 more");
    }

    #[test]
    fn communities_that_names_do_not_tell_apart_are_groups() {
        let mut report = made();
        let other = report.cells[0].subcells.remove(1);
        report.cells[0].subcells[0].threads.extend(other.threads);
        for (thread, comm) in report.cells[0].subcells[0].threads.iter_mut().zip(["a", "a", "b", "a"]) {
            thread.comm = Some(comm.to_owned());
        }
        assert_eq!(headline(&report), "2 groups: a x2 (false sharing at queue.c:12), a + b");
    }

    #[test]
    fn the_answer_is_ten_lines_and_no_row_is_too_long() {
        let mut report = made();
        report.limits = vec!["this host has 2 CPUs, so the configuration is without allotment/lone".to_owned()];
        report.headline = headline(&report);
        for width in [None, Some(40), Some(80)] {
            let text = answer(&report, width);
            assert!(text.starts_with("2 groups: reader-a"), "{text}");
            let rows = text.lines().filter(|line| line.starts_with("  "));
            let longest = rows.map(|line| line.chars().count()).max().unwrap();
            assert!(width.is_none_or(|width| longest <= width), "{text}");
        }
        let text = answer(&report, None);
        assert!(text.lines().count() <= 10, "{text}");
        assert!(text.contains("\nLocality: 90.0 % of the avoidable misses "), "{text}");
        assert!(text.contains("\nThis host has 2 CPUs, so the configuration is without allotment/lone"), "{text}");
        let line = "\nFalse sharing: writer writes bytes 8-15, and reader\\x0a reads bytes 0-7, 16 of one cache line of total in \
                    server, at /src/queue.c:12\n";
        assert!(text.contains(line), "{text}");
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
        let said = |line: &Granule| false_sharing(line).split(" of one cache line").next().unwrap().to_owned();
        line.by_thread = vec![of("a", &[[0, 8]], &[[0, 7]]), of("b", &[[8, 8]], &[]), of("b", &[[8, 8]], &[])];
        assert_eq!(said(&line), "False sharing: a writes bytes 0-7, and b x2 read byte 8");
        // As a thread that reads the line once to add up.
        line.by_thread.push(LineThread { loads: 1, stores: 0, ..of("sum", &[[0, 8]], &[]) });
        assert_eq!(said(&line), "False sharing: a writes bytes 0-7, and b x2 read byte 8");
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

    #[test]
    fn what_is_in_no_group_has_its_reason() {
        let mut report = made();
        assert_eq!(ungrouped(&report, &groups(&report)), None);
        let threads = report.cells.iter_mut().flat_map(|cell| &mut cell.subcells).flat_map(|it| &mut it.threads);
        let verdicts = ["shares with all of its cell", "alone", "unknown: too few misses (9)"];
        let mut threads: Vec<_> = threads.collect();
        threads
            .iter_mut()
            .zip(verdicts.iter().cycle())
            .for_each(|(it, verdict)| (*verdict).clone_into(&mut it.verdict));
        report.cells[0].subcells.iter_mut().for_each(|subcell| subcell.kind = crate::report::SubcellKind::Rest);
        report.hubs = vec![report.lines[0].clone()];
        let text = answer(&report, None);
        for part in [
            "\nIn no group: ",
            " (memory that nearly all threads use, as ",
            " (not judged: too few misses)",
            "\nShared most: total in server",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("Locality"), "{text}");
    }

    #[test]
    fn a_cell_that_is_grouped_by_name_has_its_groups() {
        let mut report = made();
        let subcells = &mut report.cells[0].subcells;
        let verdict = subcells[0].threads[0].verdict.clone();
        assert!(verdict.starts_with("community "), "{verdict}");
        // The threads of the first community are in the subcells of their names.
        let moved = subcells[0].threads.pop().unwrap();
        subcells[1].threads = vec![moved];
        subcells[..2].iter_mut().for_each(|subcell| subcell.kind = SubcellKind::Class);
        let samples = subcells[0].threads.iter().chain(&subcells[1].threads).map(|it| it.samples).sum::<f64>();
        let groups = groups(&report);
        assert_eq!((groups.len(), groups[0].samples, groups[0].threads.len()), (1, samples, 2));
        assert_eq!(headline(&report), "1 group: reader-a + writer-a (false sharing at queue.c:12)");
        assert_eq!(row(&report, &groups[0])[4], "by name");
        // What is in a group is not in none.
        let said = ungrouped(&report, &groups).unwrap_or_default();
        assert!(!said.contains("their names"), "{said}");
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
