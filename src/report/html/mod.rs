//! The report as one HTML file for a browser: no server, no network, at most 1.5 MB.
//!
//! The page contains the report's JSON, compressed, and the scripts that show it: those beside this file, and the chart library
//! uPlot (`vendor/`, MIT). Names are data: they reach the page as base64 only, and its scripts only ever make text of them. Its
//! Content-Security-Policy forbids every request, and markup from strings.

use std::io::{self, Write};

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use flate2::write::GzEncoder;
use flate2::Compression;
use serde::Serialize;

use crate::report::Report;
use scxprof_base::escape;

/// The most bytes of a page.
pub const MAX_BYTES: usize = 1_500_000;
/// The page, with a mark for each of its parts.
const TEMPLATE: &str = include_str!("page.html");
const STYLE: &[&str] = &[include_str!("vendor/uPlot.min.css"), include_str!("page.css")];
const SCRIPT: &[&str] = &[
    include_str!("vendor/uPlot.iife.min.js"),
    // What follows has names of its own.
    "\n(() => {\n\"use strict\";\n",
    include_str!("base.js"),
    include_str!("unseen.js"),
    include_str!("answer.js"),
    include_str!("matrix.js"),
    include_str!("lines.js"),
    include_str!("threads.js"),
    include_str!("flame.js"),
    include_str!("main.js"),
    "})();\n",
];

/// The report as the page has it.
#[derive(Serialize)]
struct Data<'a> {
    #[serde(flatten)]
    report: &'a Report,
    page: About,
}

/// What the page has of the report.
#[derive(Serialize)]
struct About {
    /// The number of threads of each subcell of each cell.
    threads: Vec<Vec<usize>>,
    /// Threads that are not in it for lack of room: those with fewest samples.
    threads_left_out: usize,
    /// Whether lists are shorter than those of the report.
    is_shortened: bool,
}

/// The page of a report.
///
/// # Errors
/// None with these types; compression and `serde_json` require the result.
pub fn page(report: &Report) -> io::Result<String> {
    let threads = threads_of(report);
    let text = made(report, About { threads: threads.clone(), threads_left_out: 0, is_shortened: false })?;
    if text.len() <= MAX_BYTES {
        return Ok(text);
    }
    let mut report = report.clone();
    let count = |threads: &[Vec<usize>]| threads.iter().flatten().sum::<usize>();
    loop {
        let is_all = !halve(&mut report);
        let threads_left_out = count(&threads) - count(&threads_of(&report));
        let text = made(&report, About { threads: threads.clone(), threads_left_out, is_shortened: true })?;
        if text.len() <= MAX_BYTES || is_all {
            return Ok(text);
        }
    }
}

/// The number of threads of each subcell of each cell.
fn threads_of(report: &Report) -> Vec<Vec<usize>> {
    report.cells.iter().map(|cell| cell.subcells.iter().map(|subcell| subcell.threads.len()).collect()).collect()
}

/// Halves a list, whose least important entries are at its end; returns whether there was something to leave out.
fn halve_list<T>(list: &mut Vec<T>) -> bool {
    let is_any = !list.is_empty();
    list.truncate(list.len() / 2);
    is_any
}

/// Leaves out half of the lists that may be too long; false if nothing was left to leave out.
fn halve(report: &mut Report) -> bool {
    let mut is_any = !report.matrix.threads.is_empty();
    let matrix = &mut report.matrix;
    let kept = matrix.pages.len() / 2;
    matrix.left_out.pages += (matrix.pages.len() - kept) as u64;
    matrix.pages.truncate(kept);
    let kept = matrix.threads.len() / 2;
    matrix.left_out.threads += (matrix.threads.len() - kept) as u64;
    matrix.threads.truncate(kept);
    let is_kept = |thread: u32| (thread as usize) < kept;
    for region in &mut matrix.regions {
        region.sharers.retain(|it| is_kept(it.0));
    }
    for line in matrix.pages.iter_mut().flat_map(|page| &mut page.lines) {
        line.by_thread.retain(|it| is_kept(it.0));
    }
    if let Some(stacks) = &mut report.stacks {
        for subcell in &mut stacks.subcells {
            let kept = subcell.nodes.len() / 2;
            // The samples of a frame are also those of the frame that called it.
            let is_top = |node: &(i64, u32, u8, u64)| node.0 < kept as i64;
            let left_out: Vec<_> = subcell.nodes.drain(kept..).collect();
            stacks.hidden += left_out.iter().filter(|node| is_top(node)).map(|node| node.3).sum::<u64>();
        }
    }
    // The threads with most samples come first in their subcells.
    for subcell in report.cells.iter_mut().flat_map(|cell| &mut cell.subcells) {
        is_any |= halve_list(&mut subcell.threads);
        is_any |= halve_list(&mut subcell.lines);
        is_any |= halve_list(&mut subcell.regions);
        is_any |= halve_list(&mut subcell.pages);
    }
    is_any |= halve_list(&mut report.across_cells);
    is_any | halve_list(&mut report.sharing)
}

fn made(report: &Report, page: About) -> io::Result<String> {
    let json = serde_json::to_string(&Data { report, page })?;
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(escape::json(json).as_bytes())?;
    let data = STANDARD.encode(packed.finish()?);
    Ok(filled(&[("title", &title(report)), ("style", &STYLE.concat()), ("script", &SCRIPT.concat()), ("data", &data)]))
}

/// The title of the browser's tab: which host or profile the report is about.
fn title(report: &Report) -> String {
    let of = report.run.profile.as_deref().or(report.run.host.as_deref());
    let title = of.map_or_else(|| "scxprof".to_owned(), |of| format!("{of} - scxprof"));
    let mut escaped = String::with_capacity(title.len());
    for character in escape::line(&title).chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            character => escaped.push(character),
        }
    }
    escaped
}

/// The template with its marks replaced, each once and in one pass: what replaces one may look like another.
fn filled(parts: &[(&str, &String)]) -> String {
    let mut text = String::with_capacity(TEMPLATE.len() + parts.iter().map(|it| it.1.len()).sum::<usize>());
    let mut rest = TEMPLATE;
    while let Some((before, after)) = rest.split_once("{{") {
        text.push_str(before);
        let Some((mark, after)) = after.split_once("}}") else { break };
        if let Some((_, part)) = parts.iter().find(|it| it.0 == mark) {
            text.push_str(part);
        }
        rest = after;
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_in_the_page_once_and_is_not_read_again() {
        let part = |text: &str| text.to_owned();
        let (title, style, script, data) = (part("{{data}}"), part("S1"), part("{{script}}"), part("D1"));
        let page = filled(&[("title", &title), ("style", &style), ("script", &script), ("data", &data)]);
        for part in ["<title>{{data}}</title>", "S1", "{{script}}", "D1"] {
            assert_eq!(page.matches(part).count(), 1, "{part} in {page}");
        }
    }

    #[test]
    fn scripts_cannot_end_their_element() {
        for script in SCRIPT {
            assert!(!script.to_lowercase().contains("</script"), "{script}");
        }
        let style = STYLE.concat().to_lowercase();
        assert!(!style.contains("</style") && !style.contains("url("), "the page loads nothing");
    }
}
