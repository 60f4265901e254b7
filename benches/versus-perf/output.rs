//! Writes a comparison: tables in Markdown, JSON, plots.

use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cli::Args;
use crate::host::{refused, today, Machine};
use crate::result::{shown, Comparison, Measure, Row};

/// The version of the JSON.
const FORMAT: u32 = 1;

/// Where the results go.
pub struct Places {
    dir: PathBuf,
    /// We made the directory.
    is_new: bool,
}

impl Drop for Places {
    fn drop(&mut self) {
        if self.is_new {
            // Only where nothing was written.
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

/// The JSON of one comparison.
#[derive(Serialize)]
struct Document<'a> {
    format: u32,
    machine: &'a Machine,
    comparison: &'a Comparison,
    /// Medians with 95 % intervals, of the runs.
    rows: &'a [Row],
}

impl Places {
    /// # Errors
    /// A result is there already, or the directory cannot be made.
    pub fn new(args: &Args) -> Result<Self> {
        let dir = args.out.clone().unwrap_or_else(|| Path::new("benches/runs").join(today()).join("versus-perf"));
        for which in args.which.each() {
            let path = dir.join(format!("{}.json", which.name()));
            if path.symlink_metadata().is_ok() {
                return Err(refused(format!(
                    "{} exists already: remove it, or name another directory with --out",
                    path.display()
                )));
            }
        }
        let is_new = !dir.exists();
        fs::create_dir_all(&dir).map_err(|error| refused(format!("cannot make {} (--out): {error}", dir.display())))?;
        Ok(Self { dir, is_new })
    }

    /// Writes the files of a comparison, and its tables to `out` too.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&mut self, machine: &Machine, compared: &Comparison, out: &mut dyn Write) -> Result<()> {
        let rows = compared.rows();
        let text = markdown(machine, compared, &rows);
        write!(out, "{text}").and_then(|()| out.flush()).context("stdout")?;
        for plot in &compared.plots {
            if let Some(svg) = plot.draw(&rows, machine) {
                self.put(&format!("{}-{}.svg", compared.name, plot.name()), svg.as_bytes())?;
            }
        }
        self.put(&format!("{}.md", compared.name), text.as_bytes())?;
        let document = Document { format: FORMAT, machine, comparison: compared, rows: &rows };
        let mut json = serde_json::to_string_pretty(&document).context("the results as JSON")?;
        json.push('\n');
        self.put(&format!("{}.json", compared.name), json.as_bytes())
    }

    /// Writes one file, whole or not at all.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.dir.join(name);
        let written = || -> std::io::Result<()> {
            let mut file = tempfile::Builder::new()
                .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
                .tempfile_in(&self.dir)?;
            file.write_all(bytes)?;
            file.persist(&path)?;
            Ok(())
        };
        written().with_context(|| path.display().to_string())
    }
}

/// The tables.
pub fn markdown(machine: &Machine, compared: &Comparison, rows: &[Row]) -> String {
    let mut text = format!("## {}\n\n{}, `{}`.\n", compared.title, machine.sentence(), machine.command);
    if !compared.method.is_empty() {
        let _ = write!(text, "\n{}\n", compared.method.join(" "));
    }
    if !rows.is_empty() {
        text.push('\n');
        table(&mut text, compared, rows);
        let most = rows.iter().map(|row| row.rounds).max().unwrap_or(0);
        if most > 1 {
            let _ = write!(text, "\nMedians of {most} rounds, with the 95 % interval of the median.");
            if let Some(baseline) = compared.baseline.as_ref().filter(|_| rows.iter().any(|row| !row.ratios.is_empty()))
            {
                let _ = write!(
                    text,
                    " The columns \"less\" are the value of `{baseline}` in the same round, divided by this one."
                );
            }
            text.push('\n');
        }
    }
    if !compared.checks.is_empty() {
        text.push('\n');
        for check in &compared.checks {
            let verdict = if check.holds { "holds" } else { "FAILS" };
            let _ = writeln!(text, "- {verdict}: {} ({})", check.what, check.because);
        }
    }
    if !compared.skipped.is_empty() {
        text.push('\n');
        for skip in &compared.skipped {
            let _ = writeln!(text, "SKIP: {}: {}", skip.what, skip.reason);
        }
    }
    text.push('\n');
    text
}

fn table(text: &mut String, compared: &Comparison, rows: &[Row]) {
    let used = |measure: &&Measure| rows.iter().any(|row| row.values.contains_key(measure.key));
    let measures: Vec<&Measure> = compared.measures.iter().filter(used).collect();
    let has_ratio = |measure: &Measure| rows.iter().any(|row| row.ratios.contains_key(measure.key));
    let mut head = vec!["case".to_owned(), "program".to_owned()];
    for measure in &measures {
        head.push(measure.heading.to_owned());
        if has_ratio(measure) {
            head.push("less".to_owned());
        }
    }
    let _ = writeln!(text, "| {} |", head.join(" | "));
    let _ = writeln!(text, "|---|---|{}", "---:|".repeat(head.len() - 2));
    let mut case = None;
    for row in rows {
        // Once a case, as people read it.
        let mut cells = vec![if case == Some(&row.case) { String::new() } else { cell(&row.case) }, cell(&row.tool)];
        case = Some(&row.case);
        for measure in &measures {
            cells.push(shown(row.values.get(measure.key), measure.decimals));
            if has_ratio(measure) {
                cells.push(row.ratios.get(measure.key).map_or_else(|| "-".to_owned(), |ratio| shown(Some(ratio), 1)));
            }
        }
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
}

/// A bar would end the cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
