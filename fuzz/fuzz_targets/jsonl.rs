//! The readers of lines on any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use scxprof::testing::profile::hints::Hints;
use scxprof::testing::profile::jsonl::Reader;
use scxprof::testing::profile::recovered::Recovered;
use scxprof::testing::profile::script;

fuzz_target!(|data: &[u8]| {
    let mut reader = Reader::new(data);
    while let Ok(Some(_)) = reader.next_line() {}
    let mut lines = script::Reader::new(data);
    while let Ok(Some(_)) = lines.next_line() {}
    let mut hints = Hints::new(data);
    while hints.next_until(u64::MAX).is_some() {}
    let _ = Recovered::new(data).take(u64::MAX / 2, 0, 0);
});
