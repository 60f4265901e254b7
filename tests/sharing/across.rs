//! Two cells that share memory: it is said, and the `--cell` that is printed makes one cell of them.

use serde_json::Value;

use super::capture::Decision;
use super::cgroup::Cgroup;
use super::family::{find, run_until_enough};
use super::programs::Running;
use super::score::Thread;
use crate::support::alone;

/// Seconds after which the program ends, in case this test is killed.
const LIFE: u32 = 120;

/// The processes of group 1, of one thread each, which map one file: each of them in a cgroup of its own below one.
fn start(program: &super::programs::Program) -> Result<(Running, [Cgroup; 2], Cgroup), String> {
    let above = Cgroup::new()?;
    let cgroups = [above.child("left")?, above.child("right")?];
    let running = Running::start(program, LIFE, "", |_| {}).map_err(|error| format!("{error:#}"))?;
    for (cgroup, thread) in cgroups.iter().zip(sharers(&running)) {
        cgroup.add(thread.pid)?;
    }
    Ok((running, cgroups, above))
}

fn sharers(running: &Running) -> Vec<Thread> {
    running.threads.iter().filter(|thread| thread.group.as_deref() == Some("1")).cloned().collect()
}

/// The verdict on a thread.
fn verdict<'a>(report: &'a Value, thread: &Thread) -> &'a str {
    let list = |value: &'a Value, key: &str| value[key].as_array().map_or(&[][..], Vec::as_slice);
    let subcells = list(report, "cells").iter().flat_map(|cell| list(cell, "subcells"));
    let mut threads = subcells.flat_map(|subcell| list(subcell, "threads"));
    threads.find(|listed| listed["tid"] == thread.tid).and_then(|listed| listed["verdict"].as_str()).unwrap_or_default()
}

#[test]
fn what_two_cells_share_is_said_and_the_option_makes_one_cell() {
    let _alone = alone();
    let test = "what two cells share";
    let Some((_built, programs)) = find(test, &["file"]) else { return };
    let (running, cgroups, above) = match start(&programs[0]) {
        Ok(started) => started,
        Err(why) => return println!("SKIP: {test}: {why}"),
    };
    let two = sharers(&running);
    let run = |cells: &[&str]| run_until_enough(&[&two], cells);
    let [left, right] = [cgroups[0].cell("left"), cgroups[1].cell("right")];
    let apart = match run(&[&left, &right]) {
        Ok(decision) => decision,
        Err(why) => return println!("SKIP: {test}: {why}"),
    };
    let Decision { report, said, .. } = &apart;
    let pairs = report["across_cells"].as_array().unwrap();
    let is_it = |pair: &&Value| {
        let mut cgroups = [&pair["smaller"], &pair["larger"]].map(|cell| cell["cgroup"].as_str().unwrap_or_default());
        cgroups.sort_unstable();
        cgroups == [format!("{}/left", above.path()), format!("{}/right", above.path())]
    };
    let pair = pairs.iter().find(is_it).unwrap_or_else(|| panic!("{pairs:#?}\n{said}"));
    // Half of the accesses are to the file.
    assert!(pair["part"].as_f64().unwrap() > 0.1, "{pair:#}");
    assert!(pair["memory"].as_str().unwrap().contains("family-"), "{pair:#}");
    let verdicts: Vec<&str> = two.iter().map(|thread| verdict(report, thread)).collect();
    assert_eq!(verdicts, ["shares with other cells"; 2], "{said}");
    let option = pair["option"].as_str().unwrap();
    assert!(said.contains("share memory: one cache for both") && said.contains(option), "{option}\n{said}");
    // One cell for both.
    let one_cell = format!("--cell={option}");
    let together = match run(&[&one_cell, &left, &right]) {
        Ok(decision) => decision,
        Err(why) => return println!("SKIP: {test}: {why}"),
    };
    assert!(verdict(&together.report, &two[0]).starts_with("community"), "{}", together.said);
    assert_eq!(verdict(&together.report, &two[0]), verdict(&together.report, &two[1]), "{}", together.said);
    let left = together.report["across_cells"].as_array().unwrap();
    assert!(!left.iter().any(|pair| is_it(&pair)), "{left:#?}");
}
