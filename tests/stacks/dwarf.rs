//! Stacks of programs without frame pointers, against the depth that the programs know, and beside perf's way to unwind them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{json, said, stacks};

/// Some compilers touch each page of a new frame by default.
const FLAGS: [&str; 6] =
    ["-O2", "-g", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-inline", "-fno-stack-clash-protection"];

fn build(test: &str, dir: &Path, name: &str, more: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/unwind.c");
    let path = dir.join(name);
    let output = Command::new("cc").args(FLAGS).args(more).arg(source).arg("-o").arg(&path).output();
    if output.as_ref().is_ok_and(|output| output.status.success()) {
        return Some(path);
    }
    println!("SKIP: {test}: cc cannot build tests/programs/unwind.c: {output:?}");
    None
}

/// The stacks of user code in a file of folded text, without the thread's name and what is before main, and their samples.
fn folded(path: &Path) -> BTreeMap<String, u64> {
    let mut stacks = BTreeMap::new();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let frames = stack.split(';').skip(1).skip_while(|frame| *frame != "main");
        let stack = frames.filter(|frame| !frame.ends_with("_[k]")).collect::<Vec<_>>().join(";");
        *stacks.entry(stack).or_default() += count.parse::<u64>().unwrap();
    }
    stacks
}

/// main at the bottom of the stack, and what it calls.
fn chain(depth: usize) -> String {
    format!("aligned;{}bottom", "down;".repeat(depth))
}

fn in_all(stacks: &BTreeMap<String, u64>, wanted: &[&str]) -> (u64, u64) {
    (wanted.iter().filter_map(|stack| stacks.get(*stack)).sum(), stacks.values().sum())
}

/// Most samples have one of these stacks; all are complete.
fn check(test: &str, program: &Path, args: [&str; 2], wanted: &[&str]) -> bool {
    let file = program.with_extension("folded");
    let watched = ["-e", "cpu-clock:u", "-F", "499", "--unwind", "dwarf,16384", "--no-lines", "--json", "--folded"];
    let command = [file.to_str().unwrap(), "--", program.to_str().unwrap(), args[0], args[1]];
    let Some(output) = stacks(test, &[&watched[..], &command].concat()) else { return false };
    let found = folded(&file);
    let (same, all) = in_all(&found, wanted);
    assert!(all > 30 && same * 100 >= all * 97, "{args:?}: {same} of {all}: {found:#?}");
    for stack in wanted {
        assert!(found.get(*stack).is_some_and(|count| *count > 5), "{args:?}: {stack}: {found:#?}");
    }
    let unwound = &json(&output)["unwound"];
    // The first samples may be of the dynamic linker, before there is a stack.
    let [complete, cut, broken] = ["complete", "cut", "broken"].map(|how| unwound[how].as_u64().unwrap());
    assert!(cut == 0 && broken * 50 <= complete, "{args:?}: {unwound}");
    true
}

#[test]
fn a_stack_without_frame_pointers_is_as_deep_as_the_program() {
    let test = "a_stack_without_frame_pointers_is_as_deep_as_the_program";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "depth", &[]) else { return };
    for depth in [1, 40] {
        let wanted = format!("main;{}", chain(depth));
        if !check(test, &program, ["depth", &depth.to_string()], &[&wanted]) {
            return;
        }
    }
    let main = format!("main;{}", chain(20));
    let handled = format!("{main};[libc.so.6];handler;{}", chain(3)).replace("[libc.so.6]", "RESTORE");
    // The C library has no symbol for where a handler returns to, or it has one.
    let names = ["__restore_rt", "[libc.so.6]"].map(|name| handled.replace("RESTORE", name));
    let file = program.with_extension("folded");
    let watched = ["-e", "cpu-clock:u", "-F", "499", "--unwind", "dwarf,16384", "--no-lines", "--folded"];
    let command = [file.to_str().unwrap(), "--", program.to_str().unwrap(), "signal", "20"];
    if stacks(test, &[&watched[..], &command].concat()).is_none() {
        return;
    }
    let found = folded(&file);
    let (same, all) = in_all(&found, &[&main, &names[0], &names[1]]);
    assert!(all > 30 && same * 100 >= all * 95, "{same} of {all}: {found:#?}");
    assert!(names.iter().filter_map(|name| found.get(name)).sum::<u64>() > 1, "{found:#?}");
}

#[test]
fn frame_descriptions_are_found_in_debug_information() {
    let test = "frame_descriptions_are_found_in_debug_information";
    let dir = tempfile::tempdir().unwrap();
    let flags = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let Some(program) = build(test, dir.path(), "debug", &flags) else { return };
    let wanted = format!("main;{}", chain(12));
    check(test, &program, ["depth", "12"], &[&wanted]);
}

/// The samples of what is watched whose innermost functions are `inner`, and those of them that have all their callers.
fn with_callers(test: &str, dir: &Path, whom: &[&str], depth: usize, inner: fn(&str) -> bool) -> Option<(u64, u64)> {
    let file = dir.join("folded");
    let watched = ["-e", "cpu-clock:u", "-F", "997", "--unwind", "dwarf", "--no-lines", "--folded"];
    stacks(test, &[&watched[..], &[file.to_str().unwrap()], whom].concat())?;
    let outer = format!("main;aligned;{}bottom", "down;".repeat(depth));
    let (mut same, mut all) = (0, 0);
    for line in std::fs::read_to_string(&file).unwrap().lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let user: Vec<&str> = stack.split(';').skip(1).filter(|frame| !frame.ends_with("_[k]")).collect();
        if user.last().is_some_and(|last| inner(last)) {
            let count: u64 = count.parse().unwrap();
            all += count;
            same += if user.join(";").contains(&outer) { count } else { 0 };
        }
    }
    println!("{test}: {whom:?}: {same} of {all} samples have all callers");
    Some((same, all))
}

#[test]
fn the_vdso_and_written_code_have_callers() {
    let test = "the_vdso_and_written_code_have_callers";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "callers", &[]) else { return };
    let program = program.to_str().unwrap();
    let is_vdso = |last: &str| last.contains("vdso");
    let Some((same, all)) = with_callers(test, dir.path(), &["--", program, "vdso", "9"], 9, is_vdso) else { return };
    if all < 100 {
        println!("SKIP: {test}: the vdso does not read the clock here: {all} samples in it");
    } else {
        assert!(same * 100 >= all * 97, "vdso: {same} of {all}");
    }
    let is_written = |last: &str| last == "[anon]" || last == "[unknown]";
    let Some((same, all)) = with_callers(test, dir.path(), &["--", program, "jit", "9"], 9, is_written) else { return };
    assert!(all > 50 && same * 100 >= all * 97, "written code: {same} of {all}");
}

#[test]
fn a_stack_that_was_not_in_memory_is_counted() {
    let test = "a_stack_that_was_not_in_memory_is_counted";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "fresh", &[]) else { return };
    let program = program.to_str().unwrap();
    let args =
        ["-e", "cpu-clock:u", "-F", "499", "--unwind", "dwarf", "--no-lines", "--json", "--", program, "fresh", "5"];
    let Some(output) = stacks(test, &args) else { return };
    let found = json(&output);
    let [all, without] = [&found["samples"], &found["unwound"]["no_copy"]].map(|count| count.as_u64().unwrap());
    assert!(all > 30 && without * 100 >= all * 90, "{}", found["unwound"]);
    let frames = |stack: &serde_json::Value| stack["frames"].as_array().unwrap().clone();
    assert!(found["stacks"].as_array().unwrap().iter().any(|stack| frames(stack) == ["fresh"]), "{}", found["stacks"]);
    assert!(said(&output).contains(&format!("{without} have only their innermost function")), "{}", said(&output));
}

#[test]
fn programs_that_ended_and_those_of_containers_are_unwound() {
    let test = "programs_that_ended_and_those_of_containers_are_unwound";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "ended", &[]) else { return };
    let is_bottom = |last: &str| last == "bottom";
    // Each ends before its samples are unwound.
    let many = format!("for at in $(seq 20); do {} brief 7; done", program.display());
    let Some((same, all)) = with_callers(test, dir.path(), &["--", "sh", "-c", &many], 7, is_bottom) else { return };
    assert!(all > 30 && same * 100 >= all * 97, "of programs that ended: {same} of {all}");

    // A file that no other process sees, in a separate file system.
    let Some(program) = build(test, dir.path(), "contained", &["-static"]) else { return };
    let jail = dir.path().join("jail");
    std::fs::create_dir(&jail).unwrap();
    let (jail, program) = (jail.display(), program.display());
    let contained =
        format!("mount -t tmpfs none {jail} && cp {program} {jail}/contained && exec chroot {jail} /contained long 7");
    let mut unshare = Command::new("unshare");
    let Ok(mut child) = unshare.args(["--mount", "sh", "-c", &contained]).stderr(Stdio::null()).spawn() else {
        println!("SKIP: {test}: no unshare here");
        return;
    };
    let pid = child.id().to_string();
    let comm = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let has_ended = loop {
        if comm().trim_end() == "contained" {
            break false;
        }
        if child.try_wait().unwrap().is_some() {
            break true;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // Its names are looked up at the end, when it must still be there.
    let of_child = ["-p", &pid, "-t", "2"];
    let found = if has_ended { None } else { with_callers(test, dir.path(), &of_child, 7, is_bottom) };
    let _ = child.kill();
    child.wait().unwrap();
    match found {
        Some((same, all)) => assert!(all > 30 && same * 100 >= all * 97, "of a container: {same} of {all}"),
        None => println!("SKIP: {test}: no file system of its own can be made here"),
    }
}

/// As many complete stacks as perf's, and those that both have are the same.
#[test]
fn a_recording_of_perf_with_stacks_gives_its_call_chains() {
    let test = "a_recording_of_perf_with_stacks_gives_its_call_chains";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "recorded", &[]) else { return };
    for how in ["signal", "other"] {
        let data = dir.path().join(how);
        let record = ["record", "-q", "-F", "499", "-e", "cpu-clock:u", "--call-graph", "dwarf", "--buildid-all", "-o"];
        let command = Command::new("perf").args(record).arg(&data).arg("--").arg(&program).args([how, "20"]).output();
        if !command.as_ref().is_ok_and(|output| output.status.success()) {
            println!("SKIP: {test}: perf record does not work: {command:?}");
            return;
        }
        let script = ["script", "--no-inline", "-F", "comm,ip,sym", "-i"];
        let script = Command::new("perf").args(script).arg(&data).output().unwrap();
        let mut theirs: BTreeMap<String, u64> = BTreeMap::new();
        for sample in String::from_utf8_lossy(&script.stdout).split("\n\n").filter(|text| !text.trim().is_empty()) {
            let symbol = |line: &str| line.trim().split_once(' ').map_or("", |(_, symbol)| symbol).to_owned();
            let mut frames: Vec<String> = sample.trim().lines().skip(1).map(symbol).collect();
            frames.reverse();
            let at = frames.iter().position(|frame| frame == "main").unwrap_or(frames.len());
            *theirs.entry(frames.split_off(at).join(";")).or_default() += 1;
        }
        let file = dir.path().join("folded");
        let output =
            stacks(test, &["-f", data.to_str().unwrap(), "--no-lines", "--folded", file.to_str().unwrap()]).unwrap();
        let ours = folded(&file);
        assert_eq!(ours.values().sum::<u64>(), theirs.values().sum::<u64>(), "{}", said(&output));
        let complete = |stacks: &BTreeMap<String, u64>| {
            stacks.iter().filter(|(stack, _)| stack.starts_with("main;")).map(|(_, count)| count).sum::<u64>()
        };
        let [mine, perf] = [complete(&ours), complete(&theirs)];
        println!("{test}: {how}: complete stacks: {mine}, of perf {perf}");
        assert!(mine >= perf && mine > 30, "{how}: {mine} of {perf}: {ours:#?} {theirs:#?}");
        // What perf has no name for is shown as [FILE] by us; names of the C library have versions there.
        let known = theirs.iter().filter(|(stack, _)| stack.starts_with("main;") && !stack.contains(['[', '@']));
        for (stack, count) in known {
            let mut same = ours.iter().filter(|(ours, _)| ours.replace("[libc.so.6]", "__restore_rt") == *stack);
            assert_eq!(same.next().map(|(_, count)| count), Some(count), "{how}: {stack}: {ours:#?} {theirs:#?}");
        }
    }
}
