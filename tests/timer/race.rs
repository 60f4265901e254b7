//! Memory that other threads change all the time: how often addresses that depend on it are wrong, and that its other words are known.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use scxprof::sample::{Access, Method};
use scxprof::testing::sampler::Target;

use super::programs::{build, start};
use super::{recovery, timer};
use crate::support::alone;
use crate::support::capture::capture_until;

/// The most wrong addresses in 100 that depend on memory, in a program that was written to race; and additional ones from
/// before the changing lines were known.
const MOST: usize = 3;
const FIRST: usize = 4;

#[test]
fn few_addresses_are_wrong_where_threads_race() {
    let _alone = alone();
    let test = "race";
    let Some(built) = build(test, 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let running = start(&built.path, 600.0, 2);
    let reader = running.threads.iter().find(|thread| thread.group == "reader").expect("the reader");
    let slots = &running.buffers[&(reader.pid, "reader".to_owned())];
    let memory = File::open(format!("/proc/{}/mem", reader.pid)).expect("/proc/PID/mem");
    let target = Target::Tasks { tids: vec![reader.tid as u32], enable_on_exec: false };
    let options = timer(target, Some(4000));
    let Some((got, outcome)) = capture_until(test, options, |progress| progress.elapsed > Duration::from_secs(2))
    else {
        return;
    };
    let (mut by_memory, mut wrong) = (0, 0);
    for sample in &got.samples {
        let depends = sample.raw.method == Some(Method::Racy);
        by_memory += usize::from(depends);
        let mut mark = [0; 8];
        if slots.contains(&sample.raw.addr)
            && memory.read_exact_at(&mut mark, sample.raw.addr & !15).is_ok()
            && mark == [0; 8]
        {
            assert!(depends, "an exact method is wrong: {sample:x?}");
            wrong += 1;
        }
    }
    println!("{test}: {wrong} wrong of {by_memory} by memory of {}, {:?}", got.samples.len(), recovery(&outcome));
    if by_memory == 0 {
        println!("SKIP: {test}: no memory around the registers: {:?}", outcome.notes);
    }
    assert!(wrong <= FIRST + by_memory * MOST / 100, "{wrong} of {by_memory}");
}

/// The words beside one that is written all the time are known: else the thread that writes it would seem to only read the line, and
/// false sharing would not be found.
#[test]
fn a_word_beside_one_that_changes_is_known() {
    let _alone = alone();
    let test = "beside";
    let Some(built) = build(test, 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let running = start(&built.path, 600.0, 2);
    let writer = running.threads.iter().find(|thread| thread.group == "writer").expect("the writer");
    let line = &running.buffers[&(writer.pid, "line".to_owned())];
    let tids = running.threads.iter().map(|thread| thread.tid as u32).collect();
    let options = timer(Target::Tasks { tids, enable_on_exec: false }, Some(2000));
    let Some((got, outcome)) = capture_until(test, options, |progress| progress.elapsed > Duration::from_secs(3))
    else {
        return;
    };
    let of_writer = got.samples.iter().filter(|sample| sample.raw.tid == writer.tid as u32);
    let of_line: Vec<_> = of_writer.filter(|sample| line.contains(&sample.raw.addr)).collect();
    if !of_line.iter().any(|sample| sample.raw.method == Some(Method::Racy)) {
        println!("SKIP: {test}: no memory around the registers: {:?}", outcome.notes);
        return;
    }
    let updates = of_line.iter().filter(|sample| sample.raw.access == Access::Update).count();
    println!("{test}: {updates} updates of {} accesses of the line, {:?}", of_line.len(), recovery(&outcome));
    assert!(of_line.iter().all(|sample| (sample.raw.access == Access::Update) == (sample.raw.addr == line.start)));
    // Half of them, but for those from before it was known which memory the code needs.
    assert!(updates * 3 > of_line.len(), "{updates} of {}", of_line.len());
}
