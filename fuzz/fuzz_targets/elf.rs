//! The ELF reader on any bytes, a sound header before them or not, and the functions that it finds there.

#![no_main]

use libfuzzer_sys::fuzz_target;
use scxprof::testing::elf::Elf;

/// The identification, and what the header must say for the rest to be looked at at all: type, machine, version, entry,
/// program headers at 64, their size and number.
fn header(count: u8) -> Vec<u8> {
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(16, 0);
    header.extend([3, 0, 62, 0, 1, 0, 0, 0]);
    header.extend([0; 8]);
    header.extend(64u64.to_le_bytes());
    header.extend([0; 12]);
    header.extend([64, 0, 56, 0, count % 8, 0, 64, 0, 0, 0, 0, 0]);
    header
}

fuzz_target!(|data: &[u8]| {
    let Some(([choice, low, high], bytes)) = data.split_first_chunk::<3>() else { return };
    let mut file = if choice & 1 == 0 { Vec::new() } else { header(choice >> 1) };
    file.extend_from_slice(bytes);
    let mut reader = &*file;
    let Ok(elf) = Elf::parse(&mut reader) else { return };
    let _ = (elf.build_id(), elf.function_count());
    let index = elf.frame_index(&mut reader);
    let offset = u64::from(u16::from_le_bytes([*low, *high]));
    for vaddr in [Some(offset), elf.vaddr(offset), Some(u64::MAX - offset)].into_iter().flatten() {
        let _ = elf.unwind_rule(&mut reader, index.as_ref(), vaddr);
        if let Some(function) = elf.function(&mut reader, vaddr) {
            assert!(function.contains(&vaddr));
        }
    }
});
