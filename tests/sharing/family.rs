//! Compiled programs of known sharing, some at once and each in its own cell, and two in one cell.

use serde_json::Value;

use super::capture::{own_cgroup, Decision, Scxprof, Unsupported};
use super::cgroup::Cgroup;
use super::programs::{Program, Programs, Running};
use super::score::{score, Thread};
use crate::support::alone;

/// The number of samples of a thread that suffices.
const ENOUGH: f64 = 200.0;
/// Seconds of sampling, in all runs of a test.
const MAX_SECONDS: f64 = 24.0;
/// Seconds of the first run.
const FIRST: f64 = 6.0;
/// Samples a second and CPU.
const FREQ: &str = "2000";
/// Seconds after which the programs end, in case this test is killed.
const LIFE: u32 = 120;

/// Samples until every program has enough, longer if the machine is busy; the error is the reason to skip.
pub fn run_until_enough(programs: &[&[Thread]], options: &[&str]) -> Result<Decision, String> {
    run_until(ENOUGH, programs, options)
}

/// The same, with this number of samples of each thread.
pub fn run_until(enough: f64, programs: &[&[Thread]], options: &[&str]) -> Result<Decision, String> {
    let scxprof = Scxprof { binary: env!("CARGO_BIN_EXE_scxprof").into() };
    let options = [&["--freq", FREQ], options].concat();
    let (mut left, mut seconds) = (MAX_SECONDS, FIRST);
    loop {
        let decision = match scxprof.run(seconds, &options) {
            Err(error) if error.is::<Unsupported>() => return Err(error.to_string()),
            decision => decision.unwrap(),
        };
        left -= seconds;
        let rates = programs.iter().map(|threads| decision.samples(threads) / threads.len() as f64 / seconds);
        let needed = enough / rates.fold(f64::INFINITY, f64::min).max(1e-3);
        if needed <= seconds {
            return Ok(decision);
        }
        if needed > left {
            return Err(format!("the machine is busy: {enough} samples of each thread would take {needed:.0} s"));
        }
        // More than it should need: the machine may become busier.
        seconds = (needed * 1.5).min(left);
    }
}

/// Builds the programs; `None`, with the reason printed, if one of them cannot be built.
pub fn find(test: &str, names: &[&str]) -> Option<(Programs, Vec<Program>)> {
    let built = Programs::build().unwrap();
    let found = names.iter().map(|name| built.find(name)).collect::<Option<Vec<_>>>();
    let Some(found) = found else {
        println!("SKIP: {test}: {}", built.skipped.join("; "));
        return None;
    };
    Some((built, found))
}

/// Runs the programs at once, each in a cgroup that is a cell, and compares the configuration of each with its truth. Returns
/// the decision and the running programs; `None`, with the reason printed, if that is not possible here.
fn check_in_cells(test: &str, names: &[&str]) -> Option<(Decision, Vec<(Running, Cgroup)>)> {
    let (_built, programs) = find(test, names)?;
    let start = |program: &Program| {
        let cgroup = Cgroup::new()?;
        let running = Running::start(program, LIFE, "", |command| cgroup.prepare(command));
        Ok((running.map_err(|error| format!("{error:#}"))?, cgroup))
    };
    let done = programs.iter().map(start).collect::<Result<Vec<_>, String>>().and_then(|started| {
        let cells: Vec<_> = names.iter().zip(&started).map(|(name, (_, cgroup))| cgroup.cell(name)).collect();
        let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
        let threads: Vec<_> = started.iter().map(|(running, _)| running.threads.as_slice()).collect();
        Ok((run_until_enough(&threads, &cells)?, started))
    });
    let (decision, started) = match done {
        Ok(done) => done,
        Err(why) => {
            println!("SKIP: {test}: {why}");
            return None;
        }
    };
    let mut wrong = Vec::new();
    for (name, (running, cgroup)) in names.iter().zip(&started) {
        let score = score(&running.threads, &cgroup.path(), &decision.json).unwrap();
        let line = format!("{name}: {score:?} from {:.0} samples", decision.samples(&running.threads));
        println!("{line}");
        if !score.is_right() {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{}\n{}\n{}", wrong.join("\n"), decision.said, decision.json);
    Some((decision, started))
}

#[test]
fn groups_are_found_and_strangers_are_not_joined() {
    let _alone = alone();
    check_in_cells("groups and strangers", &["hotfield", "constants", "state", "hash", "pool", "rust-private"]);
}

#[test]
fn threads_that_fight_for_lines_are_together_and_their_lines_are_named() {
    let _alone = alone();
    let test = "threads that fight for lines";
    let names = ["contended", "falseshare", "half", "counters"];
    let Some((decision, running)) = check_in_cells(test, &names) else { return };
    for (name, (running, _)) in names.iter().zip(&running).filter(|(name, _)| name.starts_with("falseshare")) {
        let community = community_of(&decision, &running.threads[0]).expect(name);
        let named = community["lines"].as_array().unwrap();
        for line in running.lines() {
            let place = format!("{line:#x}");
            let of_line = named.iter().find(|it| it["identity"]["addr"] == line);
            let of_line = of_line.unwrap_or_else(|| panic!("{name}: {place} is not named: {named:#?}"));
            let code = of_line["code"].as_array().unwrap();
            assert!(code.iter().any(|it| it["sym"] == "field_work"), "{name}: {of_line:#}");
        }
    }
}

/// The community that a thread is in.
fn community_of<'a>(decision: &'a Decision, thread: &Thread) -> Option<&'a Value> {
    let has = |community: &&Value| {
        let threads = community["threads"].as_array().map_or(&[][..], Vec::as_slice);
        threads.iter().any(|listed| listed["tid"] == thread.tid)
    };
    decision.communities().into_iter().find(has)
}

#[test]
fn two_programs_in_one_cell() {
    let _alone = alone();
    let test = "two programs in one cell";
    let Some((_built, programs)) = find(test, &["hotfield", "rings"]) else { return };
    let running = [("", &programs[0]), ("x", &programs[1])];
    let running = running.map(|(tag, program)| Running::start(program, LIFE, tag, |_| {}).unwrap());
    let decision = match run_until_enough(&running.each_ref().map(|it| it.threads.as_slice()), &[]) {
        Ok(decision) => decision,
        Err(why) => return println!("SKIP: {test}: {why}"),
    };
    let tagged = running.iter().flat_map(|running| {
        running.threads.iter().map(|thread| {
            let group = thread.group.as_ref().map(|group| format!("{} {group}", thread.pid));
            Thread { group, ..thread.clone() }
        })
    });
    let threads: Vec<Thread> = tagged.collect();
    let score = score(&threads, &own_cgroup(), &decision.json).unwrap();
    println!("{score:?}");
    assert!(score.is_right(), "{score:?}\n{}\n{}", decision.said, decision.json);
}
