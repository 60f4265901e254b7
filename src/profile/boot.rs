//! Whether a recording of perf was made since this host booted.

use std::time::{Duration, SystemTime};

/// When perf began to record, from the times of the first and the last sample (the scheduler's clock, ns since the boot), if the
/// file was last written when this host had been up for as long as the last sample says. perf notes neither the boot nor the time
/// of day. `now` is the time of day, and CLOCK_MONOTONIC in ns.
pub(super) fn began((first, last): (u64, u64), written: SystemTime, now: (SystemTime, u64)) -> Option<SystemTime> {
    // The clocks differ by what NTP corrects, at most 500 ppm; the last sample is some time before the end.
    let tolerance = now.1 / 2000 + 10_000_000_000;
    let since_written = u64::try_from(now.0.duration_since(written).ok()?.as_nanos()).ok()?;
    let uptime = now.1.checked_sub(since_written)?;
    let since_first = now.1.checked_sub(first)?;
    if uptime.abs_diff(last) > tolerance || first > last {
        return None;
    }
    now.0.checked_sub(Duration::from_nanos(since_first.checked_add(tolerance)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_of_this_boot_is_known_by_its_times() {
        const S: u64 = 1_000_000_000;
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let at = |ago: u64| now - Duration::from_secs(ago);
        // The host is up for 5,000 s; the file was written 1,000 s ago, so at 4,000 s.
        let here = |first, last, ago| began((first * S, last * S), at(ago), (now, 5_000 * S));
        assert_eq!(here(3_990, 3_999, 1_000), Some(at(1_010) - Duration::from_millis(12_500)));
        assert_eq!(here(3_990, 3_980, 1_000), None, "its times go backwards");
        assert_eq!(here(2_000, 2_010, 1_000), None, "of another boot, or copied later");
        assert_eq!(here(3_990, 3_999, 6_000), None, "before this boot");
        assert_eq!(here(6_000, 6_010, 0), None, "of a host that is up for longer");
        assert_eq!(began((0, 0), now + Duration::from_secs(1), (now, S)), None, "written in the future");
    }
}
