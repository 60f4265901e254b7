//! Tests on small files written by hand, on our own binary, and on damaged files.

use super::*;
use proptest::prelude::*;

/// Counts the bytes read, as for a file that is slow to read.
struct Counted<'a>(&'a [u8], u64);

impl ReadAt for Counted<'_> {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        self.1 += buffer.len() as u64;
        self.0.read_at(offset, buffer)
    }
}

/// A file with code at vaddr 0x11000 = offset 0x1000, functions at 0x11000..0x11040, 0x11040..0x11050 and 0x11080..0x11100, and
/// none at 0x11050..0x11080.
fn file() -> Vec<u8> {
    let mut bytes = vec![0u8; 0x1200];
    let mut put = |at: usize, what: &[u8]| bytes[at..at + what.len()].copy_from_slice(what);
    put(0, b"\x7fELF\x02\x01\x01");
    put(18, &EM_X86_64.to_le_bytes());
    put(32, &64u64.to_le_bytes());
    put(54, &56u16.to_le_bytes());
    put(56, &4u16.to_le_bytes());
    let programs: [(u32, u32, u64, u64, u64); 4] = [
        (libc::PT_LOAD, 4, 0, 0, 0x800),
        (libc::PT_LOAD, 5, 0x1000, 0x11000, 0x200),
        (libc::PT_GNU_EH_FRAME, 4, 0x200, 0x200, 0x100),
        (libc::PT_NOTE, 4, 0x400, 0x400, 0x40),
    ];
    for (index, (kind, flags, offset, vaddr, size)) in programs.into_iter().enumerate() {
        let at = 64 + 56 * index;
        put(at, &kind.to_le_bytes());
        put(at + 4, &flags.to_le_bytes());
        put(at + 8, &offset.to_le_bytes());
        put(at + 16, &vaddr.to_le_bytes());
        put(at + 32, &size.to_le_bytes());
    }
    put(0x200, &[1, 0x1b, 0x03, 0x3b, 0, 0, 0, 0, 3, 0, 0, 0]);
    for (index, (start, length)) in [(0x11000u32, 0x40u32), (0x11040, 0x10), (0x11080, 0x80)].into_iter().enumerate() {
        let frame = 0x300 + 0x20 * index as u32;
        put(0x20c + 8 * index, &(start - 0x200).to_le_bytes());
        put(0x210 + 8 * index, &(frame - 0x200).to_le_bytes());
        put(frame as usize, &0x14u32.to_le_bytes());
        put(frame as usize + 4, &1u32.to_le_bytes());
        put(frame as usize + 8, &(start - frame - 8).to_le_bytes());
        put(frame as usize + 12, &length.to_le_bytes());
    }
    put(0x400, &[4, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
    put(0x40c, b"GNU\0ab\0\0");
    put(0x414, &[4, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 0]);
    put(0x420, b"GNU\0\xaa\xbb\xcc\0");
    bytes
}

#[test]
fn functions_are_found_and_gaps_are_none() {
    let bytes = file();
    let elf = Elf::parse(&mut &*bytes).unwrap();
    let function = |vaddr| elf.function(&mut &*bytes, vaddr);
    assert_eq!(function(0x11000), Some(0x11000..0x11040));
    assert_eq!(function(0x1103f), Some(0x11000..0x11040));
    assert_eq!(function(0x11040), Some(0x11040..0x11050));
    assert_eq!(function(0x11050), None, "code without a frame description");
    assert_eq!(function(0x110ff), Some(0x11080..0x11100));
    assert_eq!(function(0x11100), None);
    assert_eq!(function(0x10fff), None);
    assert_eq!(function(u64::MAX), None);
    assert_eq!(elf.vaddr(0x1010), Some(0x11010));
    assert_eq!(elf.vaddr(0x100), None, "no code");
    assert_eq!(elf.build_id(), Some(&b"\xaa\xbb\xcc"[..]));
    assert_eq!(elf.function_count(), 3);
}

#[test]
fn a_frame_that_cannot_be_read_ends_at_the_next_function() {
    let mut bytes = file();
    // The frame description belongs to another function, so its length is not ours.
    bytes[0x308] ^= 1;
    bytes[0x30c] = 0x20;
    bytes[0x344] = 0;
    bytes[0x345] = 0;
    let elf = Elf::parse(&mut &*bytes).unwrap();
    assert_eq!(elf.function(&mut &*bytes, 0x11004), Some(0x11000..0x11040));
    // The last function is the last of the segment.
    bytes[0x348] ^= 1;
    assert_eq!(elf.function(&mut &*bytes, 0x11180), Some(0x11080..0x11200));
}

#[test]
fn other_files_are_refused() {
    let parse = |bytes: &[u8]| Elf::parse(&mut &*bytes).unwrap_err();
    assert_eq!(parse(b""), ElfError::NotElf);
    assert_eq!(parse(&[b'x'; 100]), ElfError::NotElf);
    let mut bytes = file();
    bytes[0x208..0x20c].fill(0xff);
    assert_eq!(Elf::parse(&mut &*bytes).unwrap().function_count(), (0x100 - 12) / 8, "no more than there is room");
    // arm64, and RISC-V.
    bytes[18] = 183;
    let arm64 = Elf::parse(&mut &*bytes).unwrap();
    assert_eq!(arm64.function_count(), (0x100 - 12) / 8, "its functions are found");
    bytes[18] = 243;
    assert_eq!(Elf::parse(&mut &*bytes).unwrap().function_count(), 0, "frames of another machine are not read");
    bytes[5] = 2;
    assert_eq!(parse(&bytes), ElfError::OtherMachine);
    assert_eq!(parse(&file()[..100]), ElfError::Damaged);
}

/// Our own test binary: gimli finds the same functions.
#[test]
#[cfg_attr(miri, ignore = "this program is too large for Miri")]
fn agrees_with_gimli_about_this_program() {
    use gimli::{BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, UnwindSection};
    let path = std::env::current_exe().unwrap();
    let bytes = std::fs::read(path).unwrap();
    let mut reader = Counted(&bytes, 0);
    let elf = Elf::parse(&mut reader).unwrap();
    let table = elf.table.clone().unwrap();
    assert!(table.count > 1000, "{} functions", table.count);
    let data = elf.segments.iter().find(|segment| segment.vaddr <= table.vaddr).unwrap();
    let section = &bytes[data.file.start as usize + (table.vaddr - data.vaddr) as usize..];
    let bases = BaseAddresses::default().set_eh_frame_hdr(table.vaddr);
    let header = EhFrameHdr::new(section, LittleEndian).parse(&bases, 8).unwrap();
    let gimli::Pointer::Direct(frames) = header.eh_frame_ptr() else { panic!("an indirect pointer") };
    let bases = bases.set_eh_frame(frames);
    let start = data.file.start as usize + (frames - data.vaddr) as usize;
    let frames = EhFrame::from(EndianSlice::new(&bytes[start..], LittleEndian));
    reader.1 = 0;
    let mut entries = frames.entries(&bases);
    let mut seen = 0u64;
    while let Some(entry) = entries.next().unwrap() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let frame = partial.parse(|_, bases, offset| frames.cie_from_offset(bases, offset)).unwrap();
        let expected = frame.initial_address()..frame.initial_address() + frame.len();
        if expected.is_empty() {
            continue;
        }
        assert_eq!(elf.function(&mut reader, expected.start), Some(expected.clone()));
        assert_eq!(elf.function(&mut reader, expected.end - 1), Some(expected));
        seen += 1;
    }
    assert!(seen > 1000, "{seen} functions");
    assert!(reader.1 < seen * 2 * 8 * 25, "{} bytes for {seen} functions", reader.1);
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..600), vaddr in any::<u64>()) {
        if let Ok(elf) = Elf::parse(&mut &*bytes) {
            let _ = elf.function(&mut &*bytes, vaddr);
        }
    }

    #[test]
    fn a_damaged_file_costs_no_more_than_a_sound_one(
        damage in prop::collection::vec((0..0x440usize, any::<u8>()), 1..20),
        length in 0..0x1200usize,
        cut in any::<bool>(),
        vaddr in prop_oneof![0x10f00..0x11300u64, any::<u64>()],
        offset in prop_oneof![0..0x1300u64, any::<u64>()],
    ) {
        let mut bytes = file();
        for (at, value) in damage {
            bytes[at] = value;
        }
        if cut {
            bytes.truncate(length);
        }
        let mut reader = Counted(&bytes, 0);
        if let Ok(elf) = Elf::parse(&mut reader) {
            prop_assert!(reader.1 <= 16 + 64 + u64::from(MAX_SEGMENTS) * (56 + MAX_NOTES as u64));
            reader.1 = 0;
            let function = elf.function(&mut reader, vaddr);
            prop_assert!(function.is_none_or(|function| function.contains(&vaddr)));
            prop_assert!(reader.1 <= 8 * 70);
            let _ = elf.vaddr(offset);
        }
    }
}

#[test]
fn data_lies_where_the_code_is_shifted_to() {
    let bytes = file();
    let mut elf = Elf::parse(&mut &bytes[..]).unwrap();
    // Code of offset 0x1000 at 0x11000; data of offset 0x2000 at 0x13000, and zeros behind it.
    let data = Segment { file: 0x2000..0x2100, vaddr: 0x1_3000, memory: 0x400, executable: false };
    elf.segments.push(data);
    // As if all were shifted as the code is: 0x13000 would be at 0x3000.
    let found = [0x2fff, 0x3000, 0x33ff, 0x3400, u64::MAX].map(|offset| elf.data_vaddr(offset));
    assert_eq!(found, [None, Some(0x1_3000), Some(0x1_33ff), None, None]);
    assert_eq!(elf.data_vaddr(0x1010), None, "that is code");
    // Code that is shifted in two ways says nothing.
    elf.segments.push(Segment { file: 0x5000..0x6000, vaddr: 0x9_0000, memory: 0x1000, executable: true });
    assert_eq!(elf.data_vaddr(0x3000), None);
    elf.segments.retain(|segment| !segment.executable);
    assert_eq!(elf.data_vaddr(0x3000), None);
}

#[test]
fn data_of_our_own_binary_has_a_name_or_a_section() {
    static COUNTER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(7);
    COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let own = std::fs::File::open("/proc/self/exe").unwrap();
    let elf = Elf::parse(&mut &own).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let exe = std::fs::read_link("/proc/self/exe").unwrap();
    let code = maps.lines().find(|line| line.contains(" r-xp ") && line.ends_with(exe.to_str().unwrap())).unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let mut fields = code.split_whitespace();
    let start = hex(fields.next().unwrap().split('-').next().unwrap());
    let offset = hex(fields.nth(1).unwrap());
    let address = std::ptr::from_ref(&COUNTER) as u64;
    let vaddr = elf.data_vaddr(address.wrapping_sub(start).wrapping_add(offset)).unwrap();
    let section = elf.section_at(&mut &own, vaddr).unwrap();
    assert_eq!(section.name, ".data");
    let variable = elf.variables(&mut &own, &[vaddr]).remove(0).unwrap();
    assert!(variable.name.contains("COUNTER"), "{variable:?}");
    assert_eq!(variable.start, vaddr);
}

#[test]
fn the_return_of_a_signal_handler_is_known_by_its_instructions() {
    let mut bytes = file();
    bytes[0x1050..0x1058].copy_from_slice(&[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4]);
    let found = |bytes: &[u8], offset| Elf::parse(&mut &*bytes).unwrap().signal_return(&mut &*bytes, offset);
    assert_eq!(found(&bytes, 0x104f), None, "x86-64 has a description of it");
    bytes[18..20].copy_from_slice(&EM_AARCH64.to_le_bytes());
    for offset in [0x104f, 0x1050, 0x1054] {
        assert!(found(&bytes, offset).is_some_and(|rule| rule.is_signal), "{offset:#x}");
    }
    for offset in [0, 2, 0x104b, 0x1058, 0x11fc, u64::MAX] {
        assert_eq!(found(&bytes, offset), None, "{offset:#x}");
    }
}

/// Our own test binary: a rule that is read alone is that of the whole section.
#[test]
fn a_rule_is_that_of_the_whole_section() {
    use gimli::{BaseAddresses, EhFrame, EndianSlice, LittleEndian, UnwindContext, UnwindSection, X86_64};

    use super::unwind::{Cfa, Saved};

    let file = std::fs::read("/proc/self/exe").unwrap();
    let mut reader = &file[..];
    let elf = Elf::parse(&mut reader).unwrap();
    let section = elf.section(&mut reader, b".eh_frame\0").unwrap();
    let bytes = &file[section.offset as usize..(section.offset + section.size) as usize];
    let frames = EhFrame::from(EndianSlice::new(bytes, LittleEndian));
    let bases = BaseAddresses::default().set_eh_frame(section.addr);
    let mut entries = frames.entries(&bases);
    let (mut number, mut rules) = (0, 0);
    let mut context = UnwindContext::new();
    while let Some(entry) = entries.next().unwrap() {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        number += 1;
        if number % 97 != 0 {
            continue;
        }
        let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
        for vaddr in (fde.initial_address()..fde.initial_address() + fde.len()).step_by(5) {
            let row = fde.unwind_info_for_address(&frames, &bases, &mut context, vaddr).unwrap();
            let rule = elf.unwind_rule(&mut reader, None, vaddr).unwrap();
            match (row.cfa(), &rule.cfa) {
                (gimli::CfaRule::RegisterAndOffset { register, offset }, Cfa::Register(ours, our_offset)) => {
                    assert_eq!((register.0, *offset), (u16::from(*ours), *our_offset), "{vaddr:#x}");
                }
                (gimli::CfaRule::Expression(_), Cfa::Expression(code)) => assert!(!code.is_empty()),
                other => panic!("{vaddr:#x}: {other:?}"),
            }
            let saved = |register: u8| rule.saved.iter().find(|(its, _)| *its == register).map(|(_, saved)| saved);
            assert_eq!(saved(X86_64::RA.0 as u8), Some(&Saved::At(-8)), "{vaddr:#x}");
            assert_eq!(rule.saved.len(), row.registers().count());
            rules += 1;
        }
    }
    assert!(rules > 1000, "{rules} of {number} functions");
}
