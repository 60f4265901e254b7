//! The answer: the groups, in a headline and about ten lines, before all tables.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use super::false_sharing::{self, is_hot, memory, place, LEAST_PART};
use super::memory::Granule;
use super::model::{CellReport, Report, SubcellKind, SubcellReport, ThreadReport};
use crate::config::base_of;
use scxprof_base::columns::{fitted, Column};

/// Groups in the headline.
const IN_HEADLINE: usize = 4;
/// Names of threads of a group.
const NAMES: usize = 3;
/// Groups in the answer.
const ROWS: usize = 5;
/// Lines of false sharing in the answer.
const FALSE_LINES: usize = 2;
/// A loss of less than this percentage of the samples does not matter.
const LOST_PERCENT: f64 = 0.1;
/// Threads in no group are worth a line from this part of the samples on.
const LEAST_UNGROUPED: f64 = 0.25;
/// Bytes of a unit.
const UNIT: f64 = 1024.0;

/// Which columns of groups are cut or left out if a line has no room.
const COLUMNS: [Column; 6] = [
    Column::name(0).at_least(12),
    Column::number(4),
    Column::number(2),
    Column::number(3),
    Column::name(1).at_least(3),
    Column::name(1).at_least(16),
];

/// A group of threads that share memory. A subcell can have several, if names do not tell them apart or there is no room.
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
        group.false_lines = false_sharing::lines(report).filter(|line| group.uses(line) && is_worth(line)).collect();
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

    /// The communities of a cell that is grouped by name because that avoids more: their threads are in the subcells of their names.
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

/// The groups in one line, as `3 groups: parse x3, index x3, stat x2 (false sharing at pool.cpp:14); this host fits 1`.
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
    if let Some(line) = false_sharing::lines(report).find(|line| is_hot(report, line) && !of_groups(line)) {
        let _ = write!(text, "; false sharing at {}", place(line));
    }
    let fitting = groups.iter().filter(|group| !group.is_left_out()).count();
    if fitting < groups.len() {
        let fitting = if fitting == 0 { "none".to_owned() } else { fitting.to_string() };
        let _ = write!(text, "; this host fits {fitting}");
    }
    text
}

/// What was sampled, if no group was found.
fn nothing(report: &Report) -> String {
    let threads =
        report.cells.iter().flat_map(|cell| &cell.subcells).map(|subcell| subcell.threads.len()).sum::<usize>();
    let threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    format!("no groups of threads that share memory were found among {threads} with {:.0} samples", report.samples)
}

/// Why threads are in no group, with the number of threads for each reason; `None` if they have few of the samples.
fn ungrouped(report: &Report, groups: &[Group<'_>]) -> Option<String> {
    let grouped: HashSet<(u32, u32)> =
        groups.iter().flat_map(|group| &group.threads).map(|it| (it.pid, it.tid)).collect();
    let mut reasons: BTreeMap<String, (usize, f64)> = BTreeMap::new();
    let threads = report.cells.iter().flat_map(|cell| &cell.subcells).flat_map(|subcell| &subcell.threads);
    for thread in threads.filter(|thread| !grouped.contains(&(thread.pid, thread.tid))) {
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

/// The lines that most threads use, if there is no group whose memory could be named.
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
    lines.extend(
        false_sharing::lines(report).filter(|line| is_hot(report, line)).take(FALSE_LINES).map(false_sharing::sentence),
    );
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

/// The region that a group shares most, with its size.
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
        // A thread in a group is not counted as in none.
        let said = ungrouped(&report, &groups).unwrap_or_default();
        assert!(!said.contains("their names"), "{said}");
    }
}
