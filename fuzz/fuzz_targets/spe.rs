//! The decoder of SPE on any bytes, whole and in pieces.

#![no_main]

use libfuzzer_sys::fuzz_target;
use scxprof::testing::sampler::spe::{Cores, Decoder};

fuzz_target!(|data: &[u8]| {
    let Some((&size, bytes)) = data.split_first() else { return };
    let (mut whole, mut pieces) = (Decoder::default(), Decoder::default());
    let (mut first, mut second) = (Vec::new(), Vec::new());
    whole.decode(bytes, &mut |record| first.push(*record));
    for piece in bytes.chunks(usize::from(size).max(1)) {
        pieces.decode(piece, &mut |record| second.push(*record));
    }
    assert_eq!((&first, whole.counts(), whole.position()), (&second, pieces.counts(), pieces.position()));
    for record in &first {
        for cores in [Cores::Neoverse, Cores::AmpereOne, Cores::Other] {
            let source = cores.data_source(record);
            assert!(!source.is_no_access());
            let _ = source.cost();
        }
    }
});
