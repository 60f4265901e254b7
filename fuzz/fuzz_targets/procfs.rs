//! What procfs shows of a process, as any bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use scxprof::testing::host::proc::{field, first_number, parse_stat};

fuzz_target!(|data: &[u8]| {
    let _ = parse_stat(data);
    for name in ["Uid", "MemTotal"] {
        let _ = field(data, name).and_then(first_number);
    }
});
