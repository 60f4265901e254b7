//! The report as text and as Markdown.

use std::fmt::Write as _;

use crate::input::{Arm, Figure, Input, Oracle};
use crate::numbers::{Compared, Rank};
use crate::stats::Mean;

/// Columns of names, which stand to the left.
type Names = usize;

/// A piece of the report.
#[derive(Debug)]
pub enum Part {
    Heading(String),
    Table(Names, Vec<Vec<String>>),
    Lines(Vec<String>),
}

/// What there is to say.
pub fn parts(input: &Input, arms: &[Compared], ranks: &[Rank], verdicts: Vec<String>) -> Vec<Part> {
    let mut parts = Vec::new();
    for of in arms.chunk_by(|a, b| (&a.arm.machine, &a.arm.scheduler) == (&b.arm.machine, &b.arm.scheduler)) {
        let Some(first) = of.first() else { continue };
        parts.push(Part::Heading(format!("{}: {}", first.arm.machine, first.arm.scheduler)));
        let head = "workload|arm|misses|written|capacity|first|transfers|kernel|saved|score|locality|avoidable|instructions|units a second|moves|rounds";
        parts.push(Part::Table(2, table(head, of.iter().map(measured))));
    }
    if !arms.is_empty() {
        parts.push(Part::Lines(vec![
            "misses: of the last-level caches, by the workload per unit of its work; written, capacity and first are their causes,"
                .to_owned(),
            "kernel those by kernel code".to_owned(),
            "saved: the part of the misses of none that an arm does not have, by the means of both; instructions, moves to another"
                .to_owned(),
            "last-level cache: per unit, too; ± and [ ]: 95 % intervals".to_owned(),
            "score, locality, avoidable: what scxprof score says beforehand; without a locality it says that there is nothing to judge"
                .to_owned(),
        ]));
        parts.push(Part::Heading("Rank correlation with the saved part".to_owned()));
        parts.push(Part::Table(1, table("workload|arms|score|score x avoidable", ranks.iter().map(ranked))));
    }
    if !input.oracles.is_empty() {
        parts.push(Part::Heading("What samples saw, beside all accesses".to_owned()));
        let head = "workload|samples|accesses|asked|found|part|by chance|misses|in pages seen|part|pages";
        parts.push(Part::Table(1, table(head, input.oracles.iter().map(asked))));
    }
    parts.push(Part::Heading("Verdicts".to_owned()));
    parts.push(Part::Lines(verdicts));
    parts.push(Part::Lines(vec![
        "ok or FAILED: the whole interval is on that side, where scxprof may be behind by 2 points; open: it holds the bound"
            .to_owned(),
    ]));
    if !input.unfinished.is_empty() {
        parts.push(Part::Lines(
            input
                .unfinished
                .iter()
                .map(|at| format!("a round without an end or without work is left out: {at}"))
                .collect(),
        ));
    }
    parts
}

fn table(head: &str, rows: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    std::iter::once(head.split('|').map(str::to_owned).collect()).chain(rows).collect()
}

fn measured(of: &Compared) -> Vec<String> {
    let figure = |of: Option<Figure>| of.map_or_else(none, interval);
    let prediction = of.arm.prediction.clone().unwrap_or_default();
    let bare = |it: Option<Mean>| it.map_or_else(none, |it| short(it.mid, None));
    vec![
        of.arm.workload.clone(),
        of.arm.name.clone(),
        of.per_unit(|it| it.misses() * it.units).map_or_else(none, |it| short(it.mid, it.half)),
        bare(of.per_unit(|it| it.written)),
        bare(of.per_unit(|it| it.capacity)),
        bare(of.per_unit(|it| it.first)),
        bare(of.per_unit(|it| it.transfers)),
        bare(of.per_unit(|it| it.kernel)),
        // Of itself it is 0 by definition.
        percent(of.saved().filter(|_| of.arm.name != crate::numbers::NONE)),
        figure(prediction.score),
        figure(prediction.locality),
        prediction.avoidable.map_or_else(none, fixed),
        bare(of.per_unit(|it| it.instructions)),
        of.rate().map_or_else(none, |it| short(it.mid, it.half)),
        bare(of.per_unit(|it| it.crossings)),
        of.arm.rounds.len().to_string(),
    ]
}

fn ranked(of: &Rank) -> Vec<String> {
    let rank = |it: Option<f64>| it.map_or_else(none, fixed);
    let workload = of.workload.clone().unwrap_or_else(|| "all".to_owned());
    let score = match (of.score, of.interval) {
        (Some(mid), Some([low, high])) => interval(Figure { mid, low: Some(low), high: Some(high) }),
        (score, _) => rank(score),
    };
    vec![workload, of.points.to_string(), score, rank(of.product)]
}

fn asked((workload, of): &(String, Oracle)) -> Vec<String> {
    let part = |part: u64, of: u64| {
        if of == 0 {
            none()
        } else {
            format!("{:.1} %", part as f64 / of as f64 * 100.0)
        }
    };
    let mut row = vec![workload.clone()];
    row.extend([of.samples, of.accesses, of.asked, of.found].map(|it| it.to_string()));
    row.push(part(of.found, of.asked));
    row.push(of.by_chance.to_string());
    row.extend([of.misses, of.seen].map(|it| it.to_string()));
    row.push(part(of.seen, of.misses));
    row.push(of.pages.to_string());
    row
}

/// For people: columns of equal width.
pub fn text(parts: &[Part]) -> String {
    let mut text = String::new();
    for part in parts {
        match part {
            Part::Heading(heading) => {
                let _ = writeln!(text, "{heading}");
            }
            Part::Lines(lines) => lines.iter().for_each(|line| {
                let _ = writeln!(text, "  {line}");
            }),
            Part::Table(names, rows) => {
                let columns = rows.first().map_or(0, Vec::len);
                let wide = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|it| it.chars().count()).max();
                let widths: Vec<usize> = (0..columns).map(|at| wide(at).unwrap_or(0)).collect();
                for (number, row) in rows.iter().enumerate() {
                    let mut line = String::new();
                    for (at, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                        let cell = if number == 0 { cell.to_uppercase().replace(' ', "-") } else { cell.clone() };
                        let _ = if at < *names {
                            write!(line, "  {cell:<width$}")
                        } else {
                            write!(line, "  {cell:>width$}")
                        };
                    }
                    let _ = writeln!(text, "{}", line.trim_end());
                }
            }
        }
        if !matches!(part, Part::Heading(_)) {
            text.push('\n');
        }
    }
    text
}

/// For docs: the same.
pub fn markdown(parts: &[Part]) -> String {
    let mut page = String::new();
    for part in parts {
        let _ = match part {
            Part::Heading(heading) => writeln!(page, "### {heading}"),
            Part::Lines(lines) => lines.iter().try_for_each(|line| writeln!(page, "- {line}")),
            Part::Table(names, rows) => rows.iter().enumerate().try_for_each(|(number, row)| {
                writeln!(page, "| {} |", row.join(" | "))?;
                if number == 0 {
                    let rule: String = (0..row.len()).map(|at| if at < *names { "---|" } else { "---:|" }).collect();
                    writeln!(page, "|{rule}")?;
                }
                Ok(())
            }),
        };
        page.push('\n');
    }
    page
}

fn none() -> String {
    "-".to_owned()
}

/// Where an arm ran.
pub fn place(of: &Arm) -> String {
    format!("{}, {}, {}", of.scheduler, of.workload, of.machine)
}

/// Two digits are as many as intervals leave; `-0.00` is 0.
pub fn fixed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.strip_prefix('-').filter(|rest| rest.bytes().all(|it| b"0.".contains(&it))).unwrap_or(&text).to_owned()
}

fn interval(of: Figure) -> String {
    match (of.low, of.high) {
        (Some(low), Some(high)) => format!("{} [{}, {}]", fixed(of.mid), fixed(low), fixed(high)),
        _ => fixed(of.mid),
    }
}

/// A part as a percentage, with half of its interval.
pub fn percent(of: Option<Mean>) -> String {
    let Some(of) = of else { return none() };
    let half = of.half.map_or_else(String::new, |half| format!(" ±{:.1}", half * 100.0));
    format!("{:.1} %{half}", of.mid * 100.0)
}

/// Three digits or more of a count, with half of its interval to as many places.
fn short(value: f64, half: Option<f64>) -> String {
    let size = value.abs().max(half.unwrap_or(0.0));
    let (divisor, unit) = match size {
        _ if size >= 1e9 => (1e9, " G"),
        _ if size >= 1e6 => (1e6, " M"),
        _ if size >= 1e4 => (1e3, " k"),
        _ => (1.0, ""),
    };
    let size = size / divisor;
    let places = match size {
        _ if size >= 100.0 || size == 0.0 => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 1.0 => 2,
        _ if size >= 0.1 => 3,
        _ => 4,
    };
    let half = half.map_or_else(String::new, |half| format!(" ±{:.places$}", half / divisor));
    format!("{:.places$}{unit}{half}", value / divisor)
}
