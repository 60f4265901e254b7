//! Compares a configuration with the truth of the example workload: `compare TRUTH CELLS [--without-cgroups]`.
//!
//! TRUTH is what `workload --print-truth` prints, CELLS what `scxprof run` prints. The comparison reads CELLS as
//! scx_mitosis does: the first cell whose `matches` takes a cgroup has its threads, and in it the first subcell whose
//! prefixes take a thread's name has the thread; what no subcell takes is in the catch-all.
//!
//! Prints one paragraph. The exit code is 0 where every group is as expected, 1 where one is not, 2 where the files cannot
//! be read. Whether 1 is a failure depends on the source of the samples: not every one can see which threads of one
//! process share memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{bail, Context as _, Result};
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

/// Threads that share memory with each other and with no others; a single thread shares with none.
#[derive(Deserialize)]
struct Group {
    cell: String,
    cgroup: String,
    threads: Vec<String>,
}

/// Index of a subcell; `None` is the catch-all.
type Subcell = Option<usize>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        [truth, cells] => compare(truth, cells, true),
        [truth, cells, "--without-cgroups"] => compare(truth, cells, false),
        _ => Err(anyhow::anyhow!("usage: compare TRUTH CELLS [--without-cgroups]")),
    };
    match done {
        Ok((paragraph, exact)) => {
            println!("{paragraph}");
            if exact {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            eprintln!("compare: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The paragraph, and whether every group is as expected.
fn compare(truth: &str, cells: &str, with_cgroups: bool) -> Result<(String, bool)> {
    let mut groups: Vec<Group> = serde_json::from_str(&read(truth)?).with_context(|| truth.to_owned())?;
    let cells: Vec<Value> = serde_json::from_str(&read(cells)?).with_context(|| cells.to_owned())?;
    if !with_cgroups {
        for group in &mut groups {
            // All of it is in one cgroup, which only the configuration's last cell is sure to take.
            "rest".clone_into(&mut group.cell);
            group.cgroup.clear();
        }
    }
    let mut by_cell: BTreeMap<(&str, &str), Vec<&Group>> = BTreeMap::new();
    for group in &groups {
        by_cell.entry((&group.cell, &group.cgroup)).or_default().push(group);
    }

    let (mut expected, mut found, mut right, mut missing) = (Vec::new(), Vec::new(), 0, Vec::new());
    for ((name, cgroup), groups) in by_cell {
        let together: Vec<String> = groups.iter().map(|group| braces(&group.threads)).collect();
        expected.push(format!("{name} with {}", together.join(" ")));
        match cell_of(&cells, cgroup)? {
            Some(cell) if !with_cgroups || !is_catch_all(cell) => {
                right += groups.iter().filter(|group| is_right(group, &groups, cell)).count();
                found.push(format!("{} with {}", text(cell, "name"), subcells(&groups, cell)));
            }
            _ => missing.push(name),
        }
    }
    let mut paragraph = format!("Expected {}; found {}.", expected.join(", and "), found.join(", and "));
    if found.is_empty() {
        paragraph = format!("Expected {}; found none of it.", expected.join(", and "));
    }
    for name in &missing {
        let _ = write!(paragraph, " The cell {name} is missing.");
    }
    let _ = write!(paragraph, " {right} of {} groups as expected.", groups.len());
    Ok((paragraph, right == groups.len()))
}

/// True where the threads of the group are together, and apart from all others.
fn is_right(group: &Group, groups: &[&Group], cell: &Value) -> bool {
    let alone = group.threads.len() == 1;
    let mut places = group.threads.iter().map(|thread| subcell_of(cell, thread));
    let Some(place) = places.next() else { return true };
    // Threads that share with no other thread may be in the catch-all together.
    let is_stranger = |other: &&&Group| other.threads != group.threads;
    let may_be_near = |other: &Group| alone && place.is_none() && other.threads.len() == 1;
    places.all(|other| other == place)
        && groups
            .iter()
            .filter(is_stranger)
            .filter(|other| !may_be_near(other))
            .all(|other| other.threads.iter().all(|thread| subcell_of(cell, thread) != place))
}

/// The threads of the cell as the configuration has them, the catch-all last.
fn subcells(groups: &[&Group], cell: &Value) -> String {
    let mut subcells: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for thread in groups.iter().flat_map(|group| &group.threads) {
        subcells.entry(subcell_of(cell, thread).unwrap_or(usize::MAX)).or_default().push(thread.clone());
    }
    let named = subcells.iter().map(|(&index, threads)| {
        let divided = cell.get("subcells").is_some();
        let rest = if divided && index == usize::MAX { "the rest " } else { "" };
        format!("{rest}{}", braces(threads))
    });
    named.collect::<Vec<_>>().join(" ")
}

/// The first cell that takes the cgroup. Mitosis matches the full path under its usual mount.
fn cell_of<'a>(cells: &'a [Value], cgroup: &str) -> Result<Option<&'a Value>> {
    let path = format!("/sys/fs/cgroup{cgroup}");
    for cell in cells {
        let matches =
            cell.get("matches").with_context(|| format!("the cell \"{}\" has no matches", text(cell, "name")))?;
        let taken = if let Some(expression) = matches.get("CgroupRegex").and_then(Value::as_str) {
            Regex::new(expression)?.is_match(&path)
        } else if let Some(part) = matches.get("CgroupContains").and_then(Value::as_str) {
            path.contains(part)
        } else if is_catch_all(cell) {
            true
        } else {
            bail!("the cell \"{}\" has matches that scx_mitosis does not know: {matches}", text(cell, "name"));
        };
        if taken {
            return Ok(Some(cell));
        }
    }
    Ok(None)
}

fn is_catch_all(cell: &Value) -> bool {
    cell.get("matches").and_then(Value::as_object).is_some_and(serde_json::Map::is_empty)
}

/// The first subcell that takes the thread by an OR of ANDs of prefixes.
fn subcell_of(cell: &Value, thread: &str) -> Subcell {
    let takes = |all: &Value| {
        all.as_array().is_some_and(|all| {
            let prefix = |one: &Value| one.get("CommPrefix").and_then(Value::as_str).map(str::to_owned);
            !all.is_empty() && all.iter().all(|one| prefix(one).is_some_and(|prefix| thread.starts_with(&prefix)))
        })
    };
    let subcells = cell.get("subcells").and_then(Value::as_array)?;
    subcells
        .iter()
        .position(|subcell| subcell.get("matches").and_then(Value::as_array).is_some_and(|any| any.iter().any(takes)))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn braces(threads: &[String]) -> String {
    format!("{{{}}}", threads.join(" "))
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.to_owned())
}
