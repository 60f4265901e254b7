//! Accesses of kernel code, for threads whose system calls access known memory.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use scxprof::profile::Profile;
use scxprof::sample::{CpuMode, MemoryId, MemoryScope, Sample, PAGE_SIZE};
use scxprof::session::{HostOptions, Progress};
use scxprof::testing::sampler::Target;
use scxprof::Session;

use super::programs::{build, start, Running};
use super::{recovery, timer};
use crate::support::alone;
use crate::support::capture::{capture_until, Collect};
use crate::support::replay::replay;

/// The accesses of the kernel that are needed.
const WANTED: usize = 2_000;
const LIMIT: Duration = Duration::from_secs(8);

/// A file that a process maps: its inode, and the frames of its pages.
struct File {
    inode: u64,
    frames: Vec<u64>,
}

impl File {
    /// The one that is mapped in `range`.
    fn new(pid: i32, range: &Range<u64>) -> Self {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let line = maps.lines().find(|line| line.starts_with(&format!("{:x}-", range.start))).unwrap();
        let inode = line.split_ascii_whitespace().nth(4).unwrap().parse().unwrap();
        let pagemap = std::fs::File::open(format!("/proc/{pid}/pagemap")).unwrap();
        let frame = |page: u64| {
            let mut entry = [0; 8];
            pagemap.read_exact_at(&mut entry, page * 8).unwrap();
            u64::from_ne_bytes(entry) & ((1 << 55) - 1)
        };
        Self { inode, frames: (range.start / PAGE_SIZE..range.end / PAGE_SIZE).map(frame).collect() }
    }

    /// The offset of what is at a physical address.
    fn offset(&self, phys: u64) -> Option<u64> {
        let page = self.frames.iter().position(|&frame| frame == phys / PAGE_SIZE)?;
        Some(page as u64 * PAGE_SIZE + phys % PAGE_SIZE)
    }
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
    // Guests have no compiler.
    let given = std::env::var_os("SCXPROF_COPIES").map(std::path::PathBuf::from);
    let built = if given.is_some() { None } else { build("copies", 2) };
    let Some(path) = given.as_deref().or(built.as_ref().map(|built| built.path.as_path())) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let running = start(path, 600.0, 2);
    let options = kernel(threads(&running), freq);
    let Some((got, outcome)) =
        capture_until(test, options, |progress| progress.samples as usize > WANTED || progress.elapsed > LIMIT)
    else {
        return;
    };
    let recovered = recovery(&outcome);
    println!("{test}: {recovered:?}, {:?}, {:?}", outcome.loss, outcome.notes);
    let (mut user, mut of_file, mut others, mut objects) = (0, 0, 0, 0);
    for thread in &running.threads {
        let buffer = |group: &str| running.buffers.get(&(thread.pid, group.to_owned())).unwrap();
        let other = if thread.group == "left" { "right-file" } else { "left-file" };
        let file = File::new(thread.pid, buffer(&format!("{}-file", thread.group)));
        let other = File::new(thread.pid, buffer(other));
        let of_thread = got.samples.iter().filter(|sample| sample.raw.tid == thread.tid as u32);
        for sample in of_thread.filter(|sample| sample.raw.mode == CpuMode::Kernel) {
            let (addr, phys) = (sample.raw.addr, sample.raw.phys);
            if addr < 1 << 63 {
                assert!(buffer(&thread.group).contains(&addr), "{test}: {sample:x?} is no byte of the buffer");
                assert!(matches!(sample.memory, Some(MemoryId::Private { .. })), "{test}: {sample:x?}");
                user += 1;
            } else if let Some(place) = file.offset(phys) {
                let Some(MemoryId::Shared { ino, offset, .. }) = sample.memory else { panic!("{test}: {sample:x?}") };
                assert_eq!((ino, offset), (file.inode, place), "{test}: {sample:x?}");
                of_file += 1;
            } else {
                assert_eq!(other.offset(phys), None, "{test}: {sample:x?} is of the other thread's file");
                let Some(MemoryId::Shared { scope, ino, offset }) = sample.memory else {
                    panic!("{test}: {sample:x?}")
                };
                // An object begins where it does, or before.
                let is_of_object = ino > 0 && offset < phys && phys - offset < PAGE_SIZE;
                assert!(scope == MemoryScope::Kernel && (offset == phys || is_of_object), "{test}: {sample:x?}");
                objects += u64::from(ino > 0);
                others += 1;
            }
        }
    }
    println!("{test}: {user} accesses of the buffers, {of_file} of the files, {others} of other memory, {objects} of these of objects");
    if recovered.kernel_samples < 300 {
        println!("SKIP: {test}: only {} samples of kernel code", recovered.kernel_samples);
        return;
    }
    assert!(user >= 50 && of_file >= 50, "{test}");
    assert!(objects > 0 || others < 50, "{test}: no cache of objects is known");
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

/// A recording has what the code and the pages were that accesses were recovered from, and the files of the pages.
#[test]
fn a_recording_gives_the_same_accesses_again() {
    let test = "kernel code in a recording";
    let _alone = alone();
    let Some(built) = build("copies", 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let running = start(&built.path, 600.0, 2);
    let directory = tempfile::tempdir().unwrap();
    let options = HostOptions { record: Some(directory.path().into()), ..kernel(threads(&running), Some(1000)) };
    let enough = |progress: Progress| progress.samples > 1_000 || progress.elapsed > LIMIT;
    let Some((got, _)) = capture_until(test, options, enough) else { return };
    let (mut profile, mut again) = (Profile::open(directory.path()).unwrap(), Collect::default());
    replay(&mut profile, 64 << 20, &mut again);
    let is_of_file = |sample: &&Sample| {
        let is_of_file = |memory| !matches!(memory, MemoryId::Shared { scope: MemoryScope::Kernel, .. });
        sample.raw.addr >= 1 << 63 && sample.memory.is_some_and(is_of_file)
    };
    let of_files = got.samples.iter().filter(is_of_file).count();
    println!("{test}: {of_files} of {} accesses are of files in memory", got.samples.len());
    for (first, again) in got.samples.iter().zip(&again.samples) {
        assert_eq!(format!("{first:x?}"), format!("{again:x?}"), "{test}");
    }
    assert_eq!(got.samples.len(), again.samples.len(), "{test}");
    if of_files < 20 {
        println!("SKIP: {test}: only {of_files} accesses of files in memory");
        return;
    }
    // The kernel's own name of the file, which tells it where no process maps it.
    let lines = std::fs::read_to_string(directory.path().join("recovered.jsonl")).unwrap();
    let named = |name: &str| lines.matches(&format!("\"path\":\"memfd:{name}\"")).count();
    assert_eq!([named("left"), named("right")], [1, 1], "{test}: once for each file");
}

/// Whoever wants it where it is possible gets one of two: samples of kernel code, or the reason why there are none.
#[test]
fn kernel_code_where_it_is_possible() {
    let test = "kernel code where it is possible";
    let _alone = alone();
    let Some(built) = build("copies", 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let running = start(&built.path, 600.0, 2);
    let options = HostOptions { kernel_if_possible: true, ..timer(threads(&running), None) };
    let mut sink = Collect::default();
    let session = match Session::builder().host(options).time(Duration::from_secs(1)).start() {
        Ok(session) => session,
        Err(error) => return println!("SKIP: {test}: {error}"),
    };
    let refused = session.no_kernel().map(ToString::to_string);
    let outcome = session.run_into(&mut sink, |_| false);
    // They copy all the time.
    let sampled = recovery(&outcome).kernel_samples;
    match refused {
        Some(reason) => {
            println!("SKIP: {test}: {reason}");
            assert!(sampled == 0 && outcome.loss.in_kernel > 0, "{sampled}, {:?}", outcome.loss);
        }
        None => assert!(sampled > 0 && outcome.loss.in_kernel == 0, "{sampled}, {:?}", outcome.loss),
    }
}
