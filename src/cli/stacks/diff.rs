//! `scxprof stacks --diff`: what one recording has more and less of than another.

use std::path::PathBuf;

use anyhow::anyhow;
use serde::Serialize;

use super::super::failure::Failure;
use super::super::output::Stdout;
use super::super::{capture, format, messages};
use super::read::read;
use super::{Observed, StacksArgs};
use crate::stacks::{self, Change, DiffLine};
use scxprof_base::columns::{fitted, wrapped, Column};

/// The result as JSON.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    a: &'a Side,
    b: &'a Side,
    symbols: &'a [DiffLine],
}

/// One of the recordings.
#[derive(Serialize)]
struct Side {
    file: String,
    event: String,
    samples: u64,
}

/// Reads both, and prints.
pub(super) fn run(args: &StacksArgs, pair: &[PathBuf], stdout: Stdout) -> Result<(), Failure> {
    let [a, b] = pair else { return Err(Failure::Usage(anyhow!("--diff needs two recordings"))) };
    let output = args.result.file.open(stdout)?;
    let mut sides = Vec::new();
    for path in [a, b] {
        let Observed { profile, outcome, damage, .. } = read(args, path)?;
        capture::say_notes(&outcome, None);
        messages::say_loss(&outcome.loss, args.verbose > 0);
        damage.check()?;
        if profile.count() == 0 {
            return Err(Failure::NoResult(anyhow!("{} has no samples of {}", path.display(), profile.event)));
        }
        let side = Side { file: path.display().to_string(), event: profile.event.clone(), samples: profile.count() };
        sides.push((side, profile));
    }
    let mut sides = sides.into_iter();
    let (Some((a, of_a)), Some((b, of_b))) = (sides.next(), sides.next()) else { return Ok(()) };
    if a.event != b.event {
        say!("note: {} is of {}, {} of {}", a.file, a.event, b.file, b.event);
    }
    let mut lines = stacks::diff(&of_a, &of_b);
    let count = lines.len();
    lines.truncate(if args.limit == 0 { usize::MAX } else { args.limit });
    let table = || table(&lines, count, [&a, &b], output.width());
    let document = || format::json(&Document { version: 1, a: &a, b: &b, symbols: &lines });
    let text = args.result.format().render(document, table)?;
    output.write(text.as_bytes(), true).map_err(Failure::NoResult)
}

/// How columns give way: a change stays with what it is a change of.
const COLUMNS: [Column; 10] = [
    Column::name(0).at_least(24),
    Column::number(2),
    Column::number(2),
    Column::number(0),
    Column::number(1),
    Column::number(4),
    Column::number(4),
    Column::number(5),
    Column::number(6),
    Column::name(3),
];

/// The first lines of `count`; each has a function.
fn table(lines: &[DiffLine], count: usize, [a, b]: [&Side; 2], width: Option<usize>) -> String {
    let head = ["FUNCTION", "A-SELF%", "B-SELF%", "CHANGE", "+-", "A-TOTAL%", "B-TOTAL%", "CHANGE", "+-", "MODULE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let cells = |change: &Change| {
        let Change { a_percent, b_percent, change, margin, .. } = change;
        [format!("{a_percent:.2}"), format!("{b_percent:.2}"), format!("{change:+.2}"), format!("{margin:.2}")]
    };
    rows.extend(lines.iter().map(|line| {
        let mut row = vec![line.symbol.clone()];
        row.extend(cells(&line.own));
        row.extend(cells(&line.total));
        row.push(if line.module.is_empty() { "-".to_owned() } else { line.module.clone() });
        row
    }));
    let mut text = fitted(&rows, &COLUMNS, width);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let (a, b) = (format!("{} samples of {}", a.samples, a.file), format!("{} of {}", b.samples, b.file));
    let text = format!("{text}\nA: {a}, B: {b}, {count} functions; +- is the 95 % interval of a change\n");
    wrapped(&text, width)
}
