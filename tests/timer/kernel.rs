//! Accesses of kernel code, for threads whose system calls access known memory.

use std::collections::HashSet;
use std::ops::Range;
use std::time::Duration;

use scxprof::sample::{CpuMode, MemoryId, PAGE_SIZE};
use scxprof::session::HostOptions;
use scxprof::testing::sampler::Target;

use super::programs::{build, start, Running};
use super::{recovery, timer};
use crate::support::alone;
use crate::support::capture::capture_until;

/// The accesses of the kernel that are needed.
const WANTED: usize = 2_000;
const LIMIT: Duration = Duration::from_secs(8);

/// The frames of the process's memory in `range`.
fn frames(pid: i32, range: &Range<u64>) -> HashSet<u64> {
    use std::os::unix::fs::FileExt;
    let pagemap = std::fs::File::open(format!("/proc/{pid}/pagemap")).unwrap();
    let frame = |page: u64| {
        let mut entry = [0; 8];
        pagemap.read_exact_at(&mut entry, page * 8).unwrap();
        u64::from_ne_bytes(entry) & ((1 << 55) - 1)
    };
    (range.start / PAGE_SIZE..range.end / PAGE_SIZE).map(frame).collect()
}

fn kernel(target: Target, freq: Option<u32>) -> HostOptions {
    let mut options = timer(target, freq);
    options.hardware.kernel = true;
    options
}

fn threads(running: &Running) -> Target {
    let tids = running.threads.iter().map(|thread| thread.tid as u32).collect();
    Target::Tasks { tids, enable_on_exec: false }
}

/// What a thread reads of a file in memory: the kernel loads from its frames and stores to the buffer, and nothing else of either.
fn copies(test: &str, freq: Option<u32>) {
    let _alone = alone();
    let Some(built) = build("copies", 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let running = start(&built.path, 600.0, 2);
    let options = kernel(threads(&running), freq);
    let Some((got, outcome)) =
        capture_until(test, options, |progress| progress.samples as usize > WANTED || progress.elapsed > LIMIT)
    else {
        return;
    };
    let recovered = recovery(&outcome);
    println!("{test}: {recovered:?}, {:?}, {:?}", outcome.loss, outcome.notes);
    let (mut user, mut of_file, mut others) = (0, 0, 0);
    for thread in &running.threads {
        let buffer = |group: &str| running.buffers.get(&(thread.pid, group.to_owned())).unwrap();
        let other = if thread.group == "left" { "right-file" } else { "left-file" };
        let (file, other) =
            (frames(thread.pid, buffer(&format!("{}-file", thread.group))), frames(thread.pid, buffer(other)));
        let of_thread = got.samples.iter().filter(|sample| sample.raw.tid == thread.tid as u32);
        for sample in of_thread.filter(|sample| sample.raw.mode == CpuMode::Kernel) {
            if sample.raw.addr < 1 << 63 {
                assert!(
                    buffer(&thread.group).contains(&sample.raw.addr),
                    "{test}: {sample:x?} is no byte of the buffer"
                );
                assert!(matches!(sample.memory, Some(MemoryId::Private { .. })), "{test}: {sample:x?}");
                user += 1;
                continue;
            }
            assert_eq!(sample.memory, Some(MemoryId::kernel(sample.raw.phys)), "{test}: {sample:x?}");
            let frame = sample.raw.phys / PAGE_SIZE;
            assert!(!other.contains(&frame), "{test}: {sample:x?} is of the other thread's file");
            if file.contains(&frame) {
                of_file += 1;
            } else {
                others += 1;
            }
        }
    }
    println!("{test}: {user} accesses of the buffers, {of_file} of the files, {others} of other memory");
    if recovered.kernel_samples < 300 {
        println!("SKIP: {test}: only {} samples of kernel code", recovered.kernel_samples);
        return;
    }
    assert!(user >= 50 && of_file >= 50, "{test}");
    let none: u64 = recovered.kernel_unrecovered.values().sum();
    assert_eq!(recovered.kernel_samples, recovered.kernel_recovered + none);
    assert_eq!(outcome.loss.in_kernel, 0);
}

#[test]
fn the_kernel_copies_from_the_file_to_the_buffer() {
    copies("copies by cpu-clock", Some(2000));
}

#[test]
fn at_the_tick_too() {
    copies("copies by the tick", None);
}
