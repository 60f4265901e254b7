//! The reader of traces on any bytes, and statistics of what it reads.

#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use scxprof::sched::{Stats, Tracker};
use scxprof::trace::{Event, Trace};

/// Bytes to which an input may inflate.
const LIMIT: u64 = 16 << 20;

fuzz_target!(|data: &[u8]| {
    let Ok(mut trace) = Trace::open_within(Cursor::new(data), Some(LIMIT)) else { return };
    let (mut tracker, mut stats) = (Tracker::default(), Stats::default());
    while let Ok(Some(event)) = trace.next_event() {
        if let Event::Sched(event) = event {
            tracker.take(&event, &mut stats);
        }
    }
    for line in trace.info().damage {
        assert!(!line.is_empty());
    }
});
