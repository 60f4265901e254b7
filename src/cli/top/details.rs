//! The details that Enter opens: all facts about a row.

use std::fmt::Write as _;

use scxprof_base::columns::{fitted, wrapped, Column};
use scxprof_base::escape;

use super::state::{Kind, State, View};
use super::table::Table;
use super::views;
use crate::report::{hot_lines, Granule, Report, SubcellReport};
use crate::session::{AroundNow, By, Snapshot};

/// Rows of a list.
const LISTED: usize = 200;
/// Pages and regions of a group.
const FEW: usize = 12;

/// The lines about the row with this key, in this width.
pub(super) fn details(state: &State, key: &str, now: &Snapshot, around: &AroundNow, width: usize) -> Vec<String> {
    let mut text = String::new();
    let mut unfiltered = state.clone();
    unfiltered.filter.clear();
    let row = facts(&views::table(&unfiltered, now, around), key);
    match (state.view, state.kind()) {
        (View::Groups, _) => group(key, now, width, &mut text),
        (View::Lines, _) => line(key, now, width, &mut text),
        (View::Threads, _) | (View::Scheduling, Kind::By(By::Thread)) => thread(key, now, width, &mut text),
        (View::Processes, Kind::By(by)) => threads_of(by, key, now, width, &mut text),
        _ => {}
    }
    if let Some(code) = &state.code {
        let _ = write!(text, "\n{code}");
    }
    let row = row.unwrap_or_else(|| "It is gone: Esc goes back".to_owned());
    let text = wrapped(&format!("{row}\n{text}"), Some(width.max(1)));
    text.trim_end().lines().map(|line| escape::line(line).into_owned()).collect()
}

/// The cells of the row, whole, each with the head of its column.
fn facts(table: &Table, key: &str) -> Option<String> {
    let row = table.rows.iter().find(|row| row.key == key)?;
    let heads = table.heads.iter().map(|(head, _)| head.trim_start_matches("ITS "));
    let widest = heads.clone().map(|head| head.chars().count()).max().unwrap_or(0);
    let facts = heads.zip(&row.cells).map(|(head, cell)| format!("{head:widest$}  {}\n", cell.shown()));
    Some(facts.collect())
}

fn cells<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(|text| escape::line(text).into_owned()).to_vec()
}

fn report(now: &Snapshot) -> Option<&Report> {
    views::report(now)
}

fn group(key: &str, now: &Snapshot, width: usize, text: &mut String) {
    let found = report(now).and_then(|report| report.groups().find(|(cell, group)| cell.path_of(group) == key));
    let Some((_, group)) = found else { return };
    for why in &group.why {
        let _ = writeln!(text, "{why}");
    }
    members(group, width, text);
    let mut rows = vec![cells(["MEMORY THAT IT SHARES", "BYTES", "THREADS", "MISSES"])];
    for region in group.regions.iter().take(FEW) {
        let numbers = [region.bytes.to_string(), region.threads.to_string(), format!("{:.1}", region.misses)];
        rows.push(cells([&region.memory, &numbers[0], &numbers[1], &numbers[2]]));
    }
    let columns = [Column::name(0), Column::number(1), Column::number(2), Column::number(0)];
    add_table(&rows, &columns, width, text);
    let mut rows = vec![cells(["HOT PAGE", "ACCESSES", "WRITES", "THREADS"])];
    for page in group.pages.iter().take(FEW) {
        let numbers = [format!("{:.0}", page.accesses), format!("{:.0}", page.writes), page.threads.to_string()];
        rows.push(cells([&page.memory, &numbers[0], &numbers[1], &numbers[2]]));
    }
    add_table(&rows, &columns, width, text);
    add_lines(group.lines.clone(), width, text);
}

fn members(group: &SubcellReport, width: usize, text: &mut String) {
    let mut rows = vec![cells(["THREAD", "TID", "PID", "SAMPLES", "ITS VERDICT"])];
    for thread in group.threads.iter().take(LISTED) {
        let numbers = [thread.tid.to_string(), thread.pid.to_string(), format!("{:.0}", thread.samples)];
        let comm = thread.comm.as_deref().unwrap_or("?");
        rows.push(cells([comm, &numbers[0], &numbers[1], &numbers[2], &thread.verdict]));
    }
    let columns = [Column::name(0), Column::number(1), Column::number(3), Column::number(0), Column::name(2)];
    add_table(&rows, &columns, width, text);
    more(group.threads.len(), text);
}

/// Says what a list leaves out.
fn more(count: usize, text: &mut String) {
    if count > LISTED {
        let _ = writeln!(text, "and {} more threads", count - LISTED);
    }
}

fn line(key: &str, now: &Snapshot, width: usize, text: &mut String) {
    let found = report(now).and_then(|report| report.lines.iter().find(|line| views::key_of(line) == key));
    if let Some(line) = found {
        add_lines(vec![line.clone()], width, text);
    }
}

/// A thread: what it shares.
fn thread(key: &str, now: &Snapshot, width: usize, text: &mut String) {
    let (Some(report), Ok(tid)) = (report(now), key.parse::<u32>()) else { return };
    let all = report.cells.iter().flat_map(|cell| cell.subcells.iter().map(move |subcell| (cell, subcell)));
    for (cell, subcell) in all {
        for thread in subcell.threads.iter().filter(|thread| thread.tid == tid) {
            let _ = writeln!(text, "In {}, by its memory: {}", cell.path_of(subcell), thread.verdict);
        }
    }
    let of_it = |line: &&Granule| line.by_thread.iter().any(|thread| thread.tid == tid);
    let lines = report.lines.iter().filter(of_it).cloned().collect();
    add_lines(lines, width, text);
}

/// The threads of a process, a cgroup or a cell, those with most samples first.
fn threads_of(by: By, key: &str, now: &Snapshot, width: usize, text: &mut String) {
    let lines = |wanted: By| {
        let found = now.accesses.iter().find(move |lines| lines.by == wanted);
        found.map(|found| found.lines.as_slice()).unwrap_or_default()
    };
    let Some(whole) = lines(by).iter().find(|line| views::key_of_accesses(line) == key) else { return };
    let is_of = |line: &&crate::session::AccessLine| match by {
        By::Process => line.pid == whole.pid,
        By::Cgroup => line.cgroup.as_deref() == Some(whole.cgroup.as_deref().unwrap_or(&whole.name)),
        _ => line.subcell.as_deref() == Some(&whole.name),
    };
    let mut rows = vec![cells(["THREAD", "TID", "SAMPLES", "TOTAL"])];
    let threads: Vec<_> = lines(By::Thread).iter().filter(is_of).collect();
    for line in threads.iter().take(LISTED) {
        let tid = line.tid.map_or_else(|| "-".to_owned(), |tid| tid.to_string());
        let samples = [line.window.samples, line.total.samples].map(|samples| format!("{samples:.0}"));
        rows.push(cells([&line.name, &tid, &samples[0], &samples[1]]));
    }
    add_table(&rows, &[Column::name(0), Column::number(1), Column::number(0), Column::number(2)], width, text);
    more(threads.len(), text);
}

/// A table after an empty line; nothing if it has only a head.
fn add_table(rows: &[Vec<String>], columns: &[Column], width: usize, text: &mut String) {
    if rows.len() > 1 {
        let _ = write!(text, "\n{}", fitted(rows, columns, Some(width)));
    }
}

fn add_lines(lines: Vec<Granule>, width: usize, text: &mut String) {
    let report = Report { lines, ..Report::default() };
    let lines = hot_lines(&report, Some(width));
    if !lines.is_empty() {
        let _ = write!(text, "\n{lines}");
    }
}
