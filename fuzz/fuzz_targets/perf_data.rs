//! The reader of perf.data on any bytes, and what a session makes of them.

#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use scxprof::profile::{Item, PerfData};
use scxprof::sampler::record::decode;

fuzz_target!(|data: &[u8]| {
    // Half of the inputs begin as a file does, so that there is something behind the header.
    let Some((choice, rest)) = data.split_first() else { return };
    let mut bytes = Vec::new();
    match choice % 4 {
        0 => bytes.extend_from_slice(b"PERFILE2"),
        1 => bytes.extend_from_slice(b"2ELIFREP"),
        2 => bytes.extend_from_slice(&[&b"PERFILE2"[..], &16u64.to_le_bytes()].concat()),
        _ => {}
    }
    bytes.extend_from_slice(rest);
    let Ok(mut file) = PerfData::open(Cursor::new(bytes)) else { return };
    while let Ok(Some(item)) = file.next_item() {
        if let Item::Record { bytes, layout, .. } = item {
            let _ = decode(bytes, layout);
        }
    }
    let _ = file.damage();
});
