//! The record decoder on any bytes under any layout, and the ring that hands it records.

#![no_main]

use libfuzzer_sys::fuzz_target;
use scxprof::testing::sampler::record::{decode, Layout};
use scxprof::testing::sampler::ring::Ring;

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_at_checked(40) else { return };
    let word = |index: usize| {
        let bytes: [u8; 8] = choice[index * 8..index * 8 + 8].try_into().expect("40 bytes are five words");
        u64::from_ne_bytes(bytes)
    };
    let layout = Layout {
        sample_type: word(0),
        read_format: word(1) & 0x1f,
        branch_sample_type: word(2),
        regs_user: word(3),
        regs_intr: word(4),
        sample_id_all: word(1) & 0x20 != 0,
    };
    let _ = decode(bytes, &layout);
    // The same bytes as the content of a ring that begins anywhere.
    let Ok(mut ring) = Ring::in_memory(16, word(4) & !7) else { return };
    if ring.replay(&bytes[..bytes.len() / 8 * 8]) {
        let mut scratch = Vec::new();
        let _ = ring.drain(&mut scratch, |record| {
            let _ = decode(record, &layout);
        });
    }
});
