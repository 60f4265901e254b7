//! What schedulers did with configurations on emulated machines: tables, verdicts and plots of what tests/vm/caches counted.
//!
//! `proof-report [--markdown FILE] [--plots DIR] [--mislead WORKLOAD]... [--at-least PART] OUT...` reads the files that the emulator's
//! plugin wrote. `--mislead` names a workload whose threads have names that say nothing of what they share. With `--at-least`, scxprof
//! must save this part of the misses. The exit code is 0, or 1 where a
//! verdict failed, or 2 where something could not be read or written; then one sentence on stderr says what.

/// What the guest compares has its tests here, as the guest has no others.
#[cfg(test)]
#[path = "../guest/arms.rs"]
#[expect(dead_code)]
mod arms;
mod input;
mod numbers;
mod output;
mod plots;
mod stats;
#[cfg(test)]
mod tests;
mod verdicts;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{bail, ensure, Context, Result};

use input::Input;
use output::{markdown, text};

const USAGE: &str = "proof-report [--markdown FILE] [--plots DIR] [--mislead WORKLOAD]... [--at-least PART] OUT...";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words, &mut std::io::stdout().lock()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("proof-report: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Prints the report; false if a verdict failed.
fn run(words: &[String], out: &mut dyn Write) -> Result<bool> {
    let (mut page, mut plots, mut mislead, mut least, mut files) = (None, None, Vec::new(), None, Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value: {USAGE}"));
        match word.as_str() {
            "--markdown" => page = Some(PathBuf::from(value()?)),
            "--plots" => plots = Some(PathBuf::from(value()?)),
            "--mislead" => mislead.push(value()?.clone()),
            "--at-least" => {
                let part = value()?;
                least = Some(part.parse().with_context(|| format!("--at-least {part}: it is no number"))?);
            }
            option if option.starts_with('-') => bail!("no option {option}: {USAGE}"),
            file => files.push(PathBuf::from(file)),
        }
    }
    ensure!(!files.is_empty(), "{USAGE}");
    let mut input = Input::default();
    for file in &files {
        let name = file.display().to_string();
        input.add(&name, &std::fs::read(file).with_context(|| name.clone())?)?;
    }
    input.sort();
    for workload in &mislead {
        ensure!(input.arms.iter().any(|arm| arm.workload == *workload), "--mislead: no workload {workload} was run");
    }
    let arms = numbers::compared(&input.arms);
    let ranks = numbers::ranks(&arms);
    let (said, held) = verdicts::all(&arms, &ranks, &input.oracles, &mislead, least);
    let parts = output::parts(&input, &arms, &ranks, said);
    out.write_all(text(&parts).as_bytes()).context("stdout")?;
    if let Some(page) = page {
        std::fs::write(&page, markdown(&parts)).with_context(|| page.display().to_string())?;
    }
    if let Some(dir) = plots {
        std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        for (name, svg) in [("proof-misses.svg", plots::misses(&arms)), ("proof-score.svg", plots::score(&arms))] {
            let path = dir.join(name);
            std::fs::write(&path, svg).with_context(|| path.display().to_string())?;
        }
    }
    Ok(held)
}
