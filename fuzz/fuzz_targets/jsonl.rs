//! The readers of lines on any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use scxprof::profile::hints::Hints;
use scxprof::profile::jsonl::Reader;
use scxprof::profile::recovered::Recovered;

fuzz_target!(|data: &[u8]| {
    let mut reader = Reader::new(data);
    while let Ok(Some(_)) = reader.next_line() {}
    let _ = Hints::new(data).at(1, u64::MAX);
    let _ = Recovered::new(data).take(u64::MAX / 2, 0, 0);
});
