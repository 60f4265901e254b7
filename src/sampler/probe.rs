//! Tests whether an event that opens also counts. Some do not: on hosts with a hypervisor that passes a PMU through
//! only partly, or if another user of the PMU holds the counter that the event needs.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::attr::{EventSpec, Features, Scope};
use super::busy;
use super::error::SamplerError;
use super::open::{Event, EventScope};

/// An event that has been on the PMU for this long without a count, on a CPU that loads and stores, will never count.
const RUNNING: u64 = 100_000_000;
/// An event that has been enabled for this long and was never on the PMU has no counter, because another user holds it.
const ENABLED: u64 = 300_000_000;
/// If the thread got too little CPU time for a verdict by then, the probe ends.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Words of the touched memory, 8 MiB: most accesses miss the first two caches.
const WORDS: usize = 1 << 20;

/// Counts the event for a thread that loads and stores on `cpu`, until it counts.
///
/// If the event cannot be tried (the thread cannot run on the CPU, or the event cannot watch a thread), it is assumed
/// to count.
///
/// # Errors
/// [`SamplerError::NeverCounts`].
pub(super) fn counts(spec: &EventSpec, features: Features, cpu: u32) -> Result<(), SamplerError> {
    busy::beside(cpu, touch_memory, |tid, pinned| if pinned { watch(spec, features, tid, cpu) } else { Ok(()) })
}

fn watch(spec: &EventSpec, features: Features, tid: u32, cpu: u32) -> Result<(), SamplerError> {
    let open = |watch| Event::sampling(spec, features, Scope::default(), 1, watch, cpu);
    // A thread's event can wait forever if another user's event of the whole CPU holds the PMU; events of CPUs are
    // multiplexed.
    let Ok((event, _)) = open(EventScope::All).or_else(|_| open(EventScope::Task(tid))) else { return Ok(()) };
    let begin = Instant::now();
    if event.enable().is_err() {
        return Ok(());
    }
    while begin.elapsed() < PROBE_TIMEOUT {
        std::thread::sleep(Duration::from_millis(5));
        let Ok(value) = event.read() else { return Ok(()) };
        if value.value > 0 {
            return Ok(());
        }
        if value.time_running >= RUNNING || (value.time_running == 0 && value.time_enabled >= ENABLED) {
            return Err(SamplerError::NeverCounts {
                event: spec.name.to_string(),
                cpu,
                enabled: value.time_enabled / 1_000_000,
                running: value.time_running / 1_000_000,
            });
        }
    }
    Ok(())
}

/// Loads and stores all over a range of memory until `stop`.
fn touch_memory(stop: &AtomicBool) {
    let mut words = vec![1u64; WORDS];
    let mut at = 0usize;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..1 << 12 {
            if let Some(word) = words.get_mut(at % WORDS) {
                *word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(at as u64 | 1);
                // The next address depends on the load, so that loads cannot overlap.
                at = (*word >> 33) as usize ^ at.wrapping_mul(0x9e37_79b1);
            }
        }
        black_box(&words);
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::super::attr::Feature;
    use super::super::pmu::Config;
    use super::*;
    use perf_event_open_sys::bindings as sys;

    fn software(config: u32) -> EventSpec {
        let config = Config([u64::from(config), 0, 0, 0, 0]);
        EventSpec { name: Cow::Borrowed("software"), config, ..EventSpec::minor_faults() }
    }

    #[test]
    fn an_event_that_never_counts_is_told_from_one_that_does() {
        let features = Features::all().less(Feature::Kernel).less(Feature::PhysAddr);
        let dummy = software(sys::PERF_COUNT_SW_DUMMY);
        let own = EventScope::Task(std::process::id());
        if let Err(error) = Event::sampling(&dummy, features, Scope::default(), 1, own, 0) {
            println!("SKIP: never counts: {error}");
            return;
        }
        assert!(counts(&software(sys::PERF_COUNT_SW_TASK_CLOCK), features, 0).is_ok());
        // Under load the thread may not get enough of the CPU for a verdict.
        let silent = (0..5).any(|_| counts(&dummy, features, 0).is_err());
        assert!(silent, "the dummy event never counts");
    }
}
