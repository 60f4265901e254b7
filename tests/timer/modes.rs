//! Only samples of user code are recovered; those of the kernel are counted apart.

use std::time::Duration;

use scxprof::testing::sampler::Target;

use super::programs::{build, start};
use super::{recovery, timer};
use crate::support::alone;
use crate::support::capture::capture_until;

fn modes(test: &str, freq: Option<u32>, limit: Duration) {
    let _alone = alone();
    let Some(built) = build("modes", 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let running = start(&built.path, 600.0, 3);
    for (name, low, high) in [("spin", 0.9, 1.0), ("syscalls", 0.0, 0.3), ("faults", 0.0, 0.6)] {
        let thread = running.threads.iter().find(|thread| thread.group == name).unwrap();
        let options = timer(Target::Tasks { tids: vec![thread.tid as u32], enable_on_exec: false }, freq);
        let Some((_, outcome)) = capture_until(test, options, |progress| progress.elapsed > limit) else { return };
        let (user, kernel) = (recovery(&outcome).user_samples, outcome.loss.in_kernel);
        let share = user as f64 / (user + kernel).max(1) as f64;
        println!("{test}: {name}: user {user}, kernel {kernel}, {:?}", outcome.notes);
        if user + kernel < 50 {
            println!("SKIP: {test}: {name}: only {} samples", user + kernel);
            continue;
        }
        assert!((low..=high).contains(&share), "{test}: {name}: {share} of the samples are user code");
    }
}

#[test]
fn cpu_clock_tells_user_code_from_the_kernel() {
    modes("modes by cpu-clock", Some(2000), Duration::from_millis(700));
}

#[test]
fn the_tick_tells_user_code_from_the_kernel() {
    modes("modes by the tick", None, Duration::from_millis(1500));
}
