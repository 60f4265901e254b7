//! Counts an event, such as cache misses, in a process and its later children.

use std::mem::size_of;

use perf_event_open_sys::bindings as sys;

use super::open::{Event, EventError, EventScope};
use scxprof_perf::record::ReadValue;

/// An event to count: a type and a config of perf_event_open(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counter {
    /// Its name in perf.
    pub name: &'static str,
    /// `attr.type`.
    pub kind: u32,
    /// `attr.config`.
    pub config: u64,
}

impl Counter {
    /// Cache misses as the CPU counts them, mostly those of the last level.
    pub const CACHE_MISSES: Self =
        Self { name: "cache-misses", kind: sys::PERF_TYPE_HARDWARE, config: sys::PERF_COUNT_HW_CACHE_MISSES as u64 };
    /// Page faults, which the kernel counts on every host.
    pub const PAGE_FAULTS: Self =
        Self { name: "page-faults", kind: sys::PERF_TYPE_SOFTWARE, config: sys::PERF_COUNT_SW_PAGE_FAULTS as u64 };

    /// Starts counting in user code of the process and of the threads and processes that it creates from now on; this
    /// needs no privilege. Returns a function that reads the count so far: `None` if the PMU had no free counter.
    ///
    /// # Errors
    /// The host cannot count the event, usually because it has no PMU.
    pub fn start(self, pid: u32) -> Result<impl Fn() -> Option<u64>, EventError> {
        /// Any CPU (perf_event_open(2)).
        const ANY: u32 = u32::MAX;
        let mut attr = sys::perf_event_attr {
            type_: self.kind,
            size: size_of::<sys::perf_event_attr>() as u32,
            config: self.config,
            read_format: u64::from(sys::PERF_FORMAT_TOTAL_TIME_ENABLED | sys::PERF_FORMAT_TOTAL_TIME_RUNNING),
            ..sys::perf_event_attr::default()
        };
        attr.set_inherit(1);
        attr.set_exclude_kernel(1);
        attr.set_exclude_hv(1);
        let event = Event::open(self.name, &attr, EventScope::Task(pid), ANY)?;
        Ok(move || event.read().ok().and_then(scaled))
    }
}

/// The count, scaled up if the event was multiplexed.
fn scaled(read: ReadValue) -> Option<u64> {
    let ReadValue { value, time_enabled, time_running, .. } = read;
    if time_running >= time_enabled {
        return Some(value);
    }
    let scaled = u128::from(value) * u128::from(time_enabled) / u128::from(time_running).max(1);
    (time_running > 0).then(|| u64::try_from(scaled).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_took_turns_is_scaled() {
        let of = |value, time_enabled, time_running| {
            scaled(ReadValue { value, time_enabled, time_running, ..ReadValue::default() })
        };
        assert_eq!(
            (of(10, 0, 0), of(10, 7, 7), of(10, 400, 100), of(10, 400, 0)),
            (Some(10), Some(10), Some(40), None)
        );
        assert_eq!(of(u64::MAX, u64::MAX, 1), Some(u64::MAX));
    }
}
