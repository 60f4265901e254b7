//! Keeps a CPU busy while an event is tried there.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::{gettid, sched_setaffinity, CpuSet};

use crate::host::priority;

/// Runs `work` on `cpu` until `watch` returns. `watch` gets the thread's id, and whether the thread runs on the
/// requested CPU: without the right to choose the CPU, the scheduler chooses it.
pub(super) fn beside<T>(cpu: u32, work: fn(&AtomicBool), watch: impl FnOnce(u32, bool) -> T) -> T {
    let stop = AtomicBool::new(false);
    let (told, thread) = crossbeam_channel::bounded(1);
    let like = priority::like_caller();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // With normal priority, the event would be tried on other threads of a busy host.
            let _raised = like.apply();
            // The receiver waits for this message.
            let _ = told.send((gettid().as_raw_pid().cast_unsigned(), pin(cpu)));
            work(&stop);
        });
        let (tid, pinned) = thread.recv().unwrap_or_default();
        let result = watch(tid, pinned);
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// Pins the calling thread to `cpu`; false if the kernel refuses.
fn pin(cpu: u32) -> bool {
    let mut set = CpuSet::new();
    if cpu as usize >= CpuSet::MAX_CPU {
        return false;
    }
    set.set(cpu as usize);
    sched_setaffinity(None, &set).is_ok()
}
