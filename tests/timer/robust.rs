//! Processes and files that are hard to decode: no address is wrong; at worst it is counted as not recovered.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use scxprof::session::Progress;
use scxprof::testing::sampler::Target;

use super::programs::{build, start, start_command, Built, Running};
use super::truth::{check, Tally};
use super::{recovery, timer};
use crate::support::alone;
use crate::support::capture::capture_until;

fn after(seconds: f64) -> impl FnMut(Progress) -> bool {
    move |progress| progress.elapsed > Duration::from_secs_f64(seconds)
}

fn random(test: &str) -> Option<Built> {
    let built = build("random", 2);
    if built.is_none() {
        println!("SKIP: {test}: no cc");
    }
    built
}

/// The accesses of `running` are right, and there are some.
fn right(test: &str, running: &Running) {
    let tids = running.threads.iter().map(|thread| thread.tid as u32).collect();
    let options = timer(Target::Tasks { tids, enable_on_exec: false }, Some(2000));
    let Some((got, outcome)) = capture_until(test, options, after(0.7)) else { return };
    let tally = Tally::of(running, &got.samples);
    let recovered = recovery(&outcome);
    println!("{test}: {tally:?}, {recovered:?}");
    assert_eq!((tally.other, tally.wrong_line), (0, 0), "{test}");
    if recovered.user_samples < 50 {
        println!("SKIP: {test}: only {} samples", recovered.user_samples);
        return;
    }
    assert!(tally.hit as f64 >= 0.9 * recovered.user_samples as f64, "{test}: {tally:?}");
}

#[test]
fn processes_that_live_a_millisecond_do_no_harm() {
    let _alone = alone();
    let test = "short processes";
    let script = "while :; do /bin/true; (exec /bin/true); done";
    let mut storm = Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().unwrap();
    let result = capture_until(test, timer(Target::System, Some(4000)), after(2.0));
    let _ = storm.kill();
    let _ = storm.wait();
    let Some((got, outcome)) = result else { return };
    let recovered = recovery(&outcome);
    println!("{test}: {recovered:?}, {:?}", outcome.loss.lines());
    assert!(recovered.user_samples > 0);
    assert_eq!(outcome.accesses as usize, got.samples.len());
    assert_eq!((outcome.loss.malformed, outcome.loss.corrupt_rings), (0, 0));
}

#[test]
fn a_stripped_program_is_read_as_well() {
    let _alone = alone();
    let test = "stripped";
    let Some(built) = random(test) else { return };
    if !Command::new("strip").arg(&built.path).status().is_ok_and(|status| status.success()) {
        println!("SKIP: {test}: no strip");
        return;
    }
    right(test, &start(&built.path, 600.0, 4));
}

#[test]
fn a_deleted_program_is_read_as_well() {
    let _alone = alone();
    let test = "deleted";
    let Some(built) = random(test) else { return };
    let running = start(&built.path, 600.0, 4);
    fs::remove_file(&built.path).unwrap();
    right(test, &running);
}

#[test]
fn a_huge_program_is_read_in_pieces() {
    let _alone = alone();
    let test = "huge";
    let Some(built) = random(test) else { return };
    let file = fs::File::options().write(true).open(&built.path).unwrap();
    if let Err(error) = file.set_len(64 << 30) {
        println!("SKIP: {test}: no sparse file of 64 GiB: {error}");
        return;
    }
    drop(file);
    right(test, &start(&built.path, 600.0, 4));
}

#[test]
fn a_program_without_sound_headers_costs_only_itself() {
    let _alone = alone();
    let test = "damaged";
    let Some(built) = random(test) else { return };
    let running = start(&built.path, 600.0, 4);
    // A running program cannot be written, but another file can replace it, and the process's own pages stay.
    let damaged = built.path.with_extension("damaged");
    let mut bytes = fs::read(&built.path).unwrap();
    bytes[32..64].fill(0xff);
    fs::write(&damaged, bytes).unwrap();
    fs::rename(&damaged, &built.path).unwrap();
    right(test, &running);
}

#[test]
fn another_mount_namespace_has_other_files_behind_the_same_path() {
    let _alone = alone();
    let test = "mount namespace";
    let (Some(built), Some(decoy)) = (random(test), build("list", 0)) else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("program");
    fs::copy(&decoy.path, &path).unwrap();
    let script = "mount -t tmpfs scxprof-test \"$1\" && cp \"$2\" \"$1/program\" && exec \"$1/program\" 600";
    let allowed = Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success());
    if !allowed {
        println!("SKIP: {test}: unshare -m is not permitted");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(directory.path()).arg(&built.path);
    right(test, &start_command(&mut command, 4));
}

#[test]
fn thousands_of_threads_are_told_apart() {
    let _alone = alone();
    let test = "2,000 threads";
    let Some(built) = build("lines", 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let mut command = Command::new(&built.path);
    let running = start_command(command.args(["600", "2000"]), 2000);
    let Some((got, outcome)) = capture_until(test, timer(Target::System, Some(4000)), after(2.0)) else { return };
    let tally = Tally::of(&running, &got.samples);
    println!("{test}: {tally:?}, {:?}", recovery(&outcome));
    assert_eq!((tally.other, tally.wrong_line), (0, 0));
    if tally.accesses < 500 {
        println!("SKIP: {test}: only {} accesses", tally.accesses);
        return;
    }
    assert!(tally.threads > 100, "{tally:?}");
}

#[test]
fn a_32_bit_task_is_counted() {
    let _alone = alone();
    let test = "32-bit task";
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("spin.c"), directory.path().join("spin"));
    fs::write(&source, "void _start(void) { volatile int words[64]; for (int i = 0;; i++) words[i & 63]++; }").unwrap();
    let built = Command::new("cc")
        .args(["-m32", "-O1", "-nostdlib", "-static", "-ffreestanding", "-fno-pic", "-no-pie", "-w", "-o"])
        .args([&program, &source])
        .status();
    if !built.is_ok_and(|status| status.success()) {
        println!("SKIP: {test}: cc -m32 does not work here");
        return;
    }
    let mut child = match Command::new(&program).spawn() {
        Ok(child) => child,
        Err(error) => {
            println!("SKIP: {test}: the kernel does not run it: {error}");
            return;
        }
    };
    let options = timer(Target::Tasks { tids: vec![child.id()], enable_on_exec: false }, Some(1000));
    let result = capture_until(test, options, after(0.5));
    let _ = child.kill();
    let _ = child.wait();
    let Some((got, outcome)) = result else { return };
    let recovered = recovery(&outcome);
    println!("{test}: {recovered:?}");
    assert!(got.samples.is_empty());
    assert_eq!(recovered.unrecovered.get("32-bit task"), Some(&recovered.user_samples));
}

/// Samples the program with or without changing code; checks that no address is found that it never touches.
fn jit(test: &str, changes: bool) -> Option<(Tally, u64)> {
    let Some(built) = build("jit", 2) else {
        println!("SKIP: {test}: no cc");
        return None;
    };
    let mut command = Command::new(&built.path);
    command.arg("600");
    if !changes {
        command.arg("still");
    }
    let running = start_command(&mut command, 2);
    let tids = running.threads.iter().map(|thread| thread.tid as u32).collect();
    let options = timer(Target::Tasks { tids, enable_on_exec: false }, Some(2000));
    let (got, outcome) = capture_until(test, options, after(4.0))?;
    let tally = Tally::of(&running, &got.samples);
    let recovered = recovery(&outcome);
    println!("{test}: {tally:?}, {recovered:?}");
    assert_eq!(tally.other, 0, "{test}: of {} accesses", tally.accesses);
    Some((tally, recovered.user_samples))
}

#[test]
fn code_that_changes_is_never_taken_for_what_it_was() {
    let _alone = alone();
    let _ = jit("changing code", true);
}

#[test]
fn code_in_memory_that_stays_is_recovered() {
    let _alone = alone();
    let Some((tally, user)) = jit("code in memory", false) else { return };
    assert!(tally.hit * 4 > user, "{tally:?} of {user}");
}

#[test]
fn the_check_itself_can_fail() {
    // With the truths of two programs swapped, the buffers of one are not the memory of the other.
    let _alone = alone();
    let test = "swapped truth";
    let Some(built) = build("lines", 2) else { return };
    let mut running = start(&built.path, 600.0, 4);
    let Some((samples, _)) = check(test, &running, false, 0.0) else { return };
    for parity in running.parity.values_mut() {
        *parity ^= 1;
    }
    let tally = Tally::of(&running, &samples);
    assert_eq!((tally.wrong_line, tally.own > 0), (tally.own, true));
}

#[test]
fn code_that_the_process_changed_is_read_from_the_process() {
    let test = "patched code";
    let _alone = alone();
    let Some(built) = build("patched", 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let running = start(&built.path, 600.0, 1);
    let (pid, tid) = (running.threads[0].pid, running.threads[0].tid as u32);
    let options = timer(Target::Tasks { tids: vec![tid], enable_on_exec: false }, Some(1000));
    let enough = |progress: scxprof::session::Progress| {
        progress.samples > 3000 && progress.elapsed > Duration::from_secs(3)
            || progress.elapsed > Duration::from_secs(30)
    };
    let Some((got, _)) = capture_until(test, options, enough) else { return };
    let of = |group: &str| {
        let range = &running.buffers[&(pid, group.to_owned())];
        got.samples.iter().filter(|sample| range.contains(&sample.raw.addr)).count()
    };
    println!("{test}: {} accesses of its own, {} of the other", of("own"), of("other"));
    assert_eq!(of("other"), 0, "what the file says is not what runs");
    if of("own") < 100 {
        println!("SKIP: {test}: too few samples: {}", got.samples.len());
    }
}
