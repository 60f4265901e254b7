//! Each structure of a program gets as many of the recovered accesses as the program itself counts.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use scxprof::testing::sampler::Target;

use super::programs::{build, start, Running};
use super::{recovery, timer};
use crate::support::alone;
use crate::support::capture::capture_until;

const STRUCTURES: usize = 8;
/// The accesses of a thread that are needed to check it.
const LEAST: usize = 2_000;
/// Samples near an access show it more often than others: this part of a structure's accesses may be too many or too few,
/// besides the sampling error.
const BIAS: f64 = 0.15;
/// Standard deviations of the sampling error that are allowed.
const DEVIATIONS: f64 = 5.0;

/// What the thread of `group` has counted so far.
fn counted(running: &Running, pid: i32, group: &str) -> [u64; STRUCTURES] {
    let at = running.buffers[&(pid, format!("{group}-counts"))].start;
    let memory = File::open(format!("/proc/{pid}/mem")).expect("the memory of a child");
    let mut bytes = [0; STRUCTURES * 8];
    memory.read_exact_at(&mut bytes, at).expect("its counts");
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|structure| u64::from_le_bytes(words[structure]))
}

#[test]
fn pointers_below_the_stack_pointer_are_followed_as_often_as_others() {
    let _alone = alone();
    let test = "redzone";
    let Some(built) = build("redzone", 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let running = start(&built.path, 600.0, 9);
    let tids = running.threads.iter().map(|thread| thread.tid as u32).collect();
    let options = timer(Target::Tasks { tids, enable_on_exec: false }, Some(2000));
    let all = |running: &Running| -> Vec<_> {
        running.threads.iter().map(|thread| counted(running, thread.pid, &thread.group)).collect()
    };
    let before = all(&running);
    // Until there are enough, on a busy machine too.
    let enough =
        |progress: scxprof::session::Progress| progress.samples > 18_000 || progress.elapsed > Duration::from_secs(30);
    let Some((got, outcome)) = capture_until(test, options, enough) else { return };
    let after = all(&running);
    println!("{test}: {:?}", recovery(&outcome));
    if let Some(note) = outcome.notes.iter().find(|note| note.contains("memory around the registers")) {
        println!("SKIP: {test}: {note}");
        return;
    }
    let mut wrong = Vec::new();
    for (thread, (before, after)) in running.threads.iter().zip(before.iter().zip(&after)) {
        let found: [usize; STRUCTURES] = std::array::from_fn(|structure| {
            let buffer = &running.buffers[&(thread.pid, format!("{}-{structure}", thread.group))];
            let own = got.samples.iter().filter(|sample| sample.raw.tid == thread.tid as u32);
            own.filter(|sample| buffer.contains(&sample.raw.addr)).count()
        });
        let made: [u64; STRUCTURES] = std::array::from_fn(|structure| after[structure] - before[structure]);
        println!("{test}: {}: found {found:?}, made {made:?}", thread.group);
        let (total, all_made) = (found.iter().sum::<usize>(), made.iter().sum::<u64>());
        if total < LEAST {
            println!("SKIP: {test}: {}: {total} of {LEAST} accesses", thread.group);
            continue;
        }
        for structure in 0..STRUCTURES {
            let expected = total as f64 * made[structure] as f64 / all_made as f64;
            let margin = DEVIATIONS * expected.sqrt() + BIAS * expected;
            if (found[structure] as f64 - expected).abs() > margin {
                let found = found[structure];
                wrong.push(format!("{}-{structure}: {found} instead of {expected:.0}", thread.group));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("; "));
}
