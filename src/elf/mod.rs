//! What the timer source needs of an ELF file: where its segments are, where its functions begin, its build id.
//!
//! Function starts come from the search table of `.eh_frame_hdr` (Linux Standard Base, "Exception Frames"), which the
//! C++ runtime needs and stripping therefore leaves. The table is searched in the file: a library of a gigabyte costs
//! the few pages that the search passes.

use std::ops::Range;

/// `e_machine` of x86-64.
const EM_X86_64: u16 = 62;
const PF_X: u32 = 1;
/// Program headers beyond this many are not looked at; real files have about ten.
const MAX_HEADERS: u16 = 256;
/// Bytes of a note segment that are searched for the build id.
const MAX_NOTES: usize = 4096;

/// Reads at an offset; a file, its cached pages, or bytes.
pub trait ReadAt {
    /// Fills `buffer` from `offset`, in bytes; `None` where the file ends before or cannot be read.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Option<()>;

    /// `N` bytes from `offset`.
    fn array<const N: usize>(&mut self, offset: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read_at(offset, &mut bytes).map(|()| bytes)
    }
}

impl ReadAt for &[u8] {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        let start = usize::try_from(offset).ok()?;
        buffer.copy_from_slice(self.get(start..start.checked_add(buffer.len())?)?);
        Some(())
    }
}

/// Why a file is no ELF file that we can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// The magic is missing, or the file is too short for a header.
    #[error("no ELF file")]
    NotElf,
    /// Not a 64-bit little-endian x86-64 file.
    #[error("an ELF file for another machine")]
    OtherMachine,
    /// The program headers are not where the header says.
    #[error("a damaged ELF file")]
    Damaged,
}

/// A loaded segment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    /// Bytes of the file.
    file: Range<u64>,
    /// Where the first of them is loaded, before relocation.
    vaddr: u64,
    executable: bool,
}

/// The search table of `.eh_frame_hdr`: pairs of 32-bit offsets from the section's own address, sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Table {
    /// The section's address before relocation.
    vaddr: u64,
    /// File offset of the first pair.
    offset: u64,
    count: u64,
}

/// The parts of an ELF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    segments: Vec<Segment>,
    table: Option<Table>,
    build_id: Option<Vec<u8>>,
}

impl Elf {
    /// Reads the headers. Addresses are those before relocation throughout.
    ///
    /// # Errors
    /// Where it is no ELF file for x86-64 or its program headers cannot be read. A damaged table or note is no error:
    /// the file then has none.
    pub fn parse(reader: &mut impl ReadAt) -> Result<Self, ElfError> {
        let header: [u8; 64] = reader.array(0).ok_or(ElfError::NotElf)?;
        if !header.starts_with(b"\x7fELF") {
            return Err(ElfError::NotElf);
        }
        // Class 2 is 64-bit, data 1 is little-endian.
        if header[4] != 2 || header[5] != 1 || u16_at(&header, 18) != EM_X86_64 {
            return Err(ElfError::OtherMachine);
        }
        let (start, size, count) = (u64_at(&header, 32), u16_at(&header, 54), u16_at(&header, 56));
        if size != 56 {
            return Err(ElfError::Damaged);
        }
        let mut elf = Self { segments: Vec::new(), table: None, build_id: None };
        for index in 0..u64::from(count.min(MAX_HEADERS)) {
            let at = start.checked_add(index * 56).ok_or(ElfError::Damaged)?;
            let program: [u8; 56] = reader.array(at).ok_or(ElfError::Damaged)?;
            let (offset, vaddr, size) = (u64_at(&program, 8), u64_at(&program, 16), u64_at(&program, 32));
            match u32_at(&program, 0) {
                libc::PT_LOAD => elf.segments.push(Segment {
                    file: offset..offset.checked_add(size).ok_or(ElfError::Damaged)?,
                    vaddr,
                    executable: u32_at(&program, 4) & PF_X != 0,
                }),
                libc::PT_GNU_EH_FRAME if elf.table.is_none() => elf.table = table(reader, offset, vaddr, size),
                libc::PT_NOTE if elf.build_id.is_none() => elf.build_id = build_id(reader, offset, size),
                _ => {}
            }
        }
        Ok(elf)
    }

    /// The build id (`NT_GNU_BUILD_ID`), 20 bytes as a rule.
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        self.build_id.as_deref()
    }

    /// Functions that the table knows.
    #[must_use]
    pub fn function_count(&self) -> u64 {
        self.table.as_ref().map_or(0, |table| table.count)
    }

    /// The address of the code byte at `offset` of the file; `None` outside of the executable segments.
    #[must_use]
    pub fn vaddr(&self, offset: u64) -> Option<u64> {
        let segment = self.segments.iter().find(|segment| segment.executable && segment.file.contains(&offset))?;
        segment.vaddr.checked_add(offset - segment.file.start)
    }

    /// The function around `vaddr`, as far as its frame description says, else up to the next function.
    ///
    /// `None` where the file has no table and where no function that it knows is there: code without frame descriptions
    /// has gaps between functions.
    pub fn function(&self, reader: &mut impl ReadAt, vaddr: u64) -> Option<Range<u64>> {
        let table = self.table.as_ref()?;
        let segment = self.segments.iter().find(|segment| {
            let inside = vaddr.checked_sub(segment.vaddr);
            segment.executable && inside.is_some_and(|inside| inside < segment.file.end - segment.file.start)
        })?;
        // The last pair whose start is not above vaddr. A table that is not sorted gives a wrong pair, which the checks
        // below see, or at worst a wrong start.
        let (mut low, mut high) = (0, table.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if table.pair(reader, middle)?.0 <= vaddr {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let (start, frame) = table.pair(reader, low.checked_sub(1)?)?;
        let end = self.frame_end(reader, start, frame).or_else(|| Some(table.pair(reader, low)?.0));
        let last = segment.vaddr.checked_add(segment.file.end - segment.file.start)?;
        let function = start..end.unwrap_or(last).min(last);
        (start >= segment.vaddr && function.contains(&vaddr)).then_some(function)
    }

    /// Where the function of a frame description ends; `None` unless it is written as every compiler for x86-64 does,
    /// with a 32-bit start relative to its own place.
    fn frame_end(&self, reader: &mut impl ReadAt, start: u64, frame: u64) -> Option<u64> {
        let segment = self.segments.iter().find(|segment| {
            let inside = frame.checked_sub(segment.vaddr);
            inside.is_some_and(|inside| inside < segment.file.end - segment.file.start)
        })?;
        let bytes: [u8; 16] = reader.array(segment.file.start.checked_add(frame - segment.vaddr)?)?;
        let (length, cie, range) = (u32_at(&bytes, 0), u32_at(&bytes, 4), u32_at(&bytes, 12));
        let begin = frame.checked_add(8)?.checked_add_signed(i64::from(u32_at(&bytes, 8).cast_signed()))?;
        (length >= 12 && length != u32::MAX && cie != 0 && begin == start && range != 0)
            .then(|| start.checked_add(range.into()))?
    }
}

impl Table {
    /// Addresses of a function and of its frame description.
    fn pair(&self, reader: &mut impl ReadAt, index: u64) -> Option<(u64, u64)> {
        if index >= self.count {
            return None;
        }
        let bytes: [u8; 8] = reader.array(self.offset.checked_add(index * 8)?)?;
        let address = |at| self.vaddr.checked_add_signed(i64::from(u32_at(&bytes, at).cast_signed()));
        Some((address(0)?, address(4)?))
    }
}

/// The head of `.eh_frame_hdr`: version 1, encodings of the pointer to `.eh_frame`, of the count and of the table.
fn table(reader: &mut impl ReadAt, offset: u64, vaddr: u64, size: u64) -> Option<Table> {
    let [version, pointer, count, pairs] = reader.array(offset)?;
    // 0x3b: signed 32-bit, relative to the section, which is what every linker writes (DW_EH_PE_datarel|sdata4).
    if version != 1 || pairs != 0x3b {
        return None;
    }
    let count_at = 4 + encoded_size(pointer)?;
    let (count, first) = match encoded_size(count)? {
        4 => (u64::from(u32::from_le_bytes(reader.array(offset.checked_add(count_at)?)?)), count_at + 4),
        _ => (u64::from_le_bytes(reader.array(offset.checked_add(count_at)?)?), count_at + 8),
    };
    let room = size.checked_sub(first)? / 8;
    Some(Table { vaddr, offset: offset.checked_add(first)?, count: count.min(room) })
}

/// Bytes of a pointer in an encoding of fixed size (`DW_EH_PE_*`, low four bits).
fn encoded_size(encoding: u8) -> Option<u64> {
    match encoding & 0xf {
        0x3 | 0xb => Some(4),
        0x0 | 0x4 | 0xc => Some(8),
        _ => None,
    }
}

/// The build id among the notes: name size, description size, type, name, description, each padded to 4 bytes.
pub(crate) fn build_id(reader: &mut impl ReadAt, offset: u64, size: u64) -> Option<Vec<u8>> {
    let mut notes = vec![0; usize::try_from(size).ok()?.min(MAX_NOTES)];
    reader.read_at(offset, &mut notes)?;
    let mut rest = notes.as_slice();
    while let Some((head, tail)) = rest.split_first_chunk::<12>() {
        let (name_size, size, kind) = (u32_at(head, 0) as usize, u32_at(head, 4) as usize, u32_at(head, 8));
        let name = tail.get(..name_size)?;
        let tail = tail.get(name_size.checked_next_multiple_of(4)?..)?;
        let description = tail.get(..size)?;
        // NT_GNU_BUILD_ID is 3.
        if kind == 3 && name == b"GNU\0" && !description.is_empty() {
            return Some(description.to_vec());
        }
        rest = tail.get(size.checked_next_multiple_of(4)?..)?;
    }
    None
}

/// A number at a place that is within the array by the caller's own constants; 0 beyond its end.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Counts what is read, as a file that costs something does.
    struct Counted<'a>(&'a [u8], u64);

    impl ReadAt for Counted<'_> {
        fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Option<()> {
            self.1 += buffer.len() as u64;
            self.0.read_at(offset, buffer)
        }
    }

    /// A file with code at vaddr 0x11000 = offset 0x1000, functions at 0x11000..0x11040, 0x11040..0x11050 and
    /// 0x11080..0x11100, and nothing known of 0x11050..0x11080.
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
        for (index, (start, length)) in
            [(0x11000u32, 0x40u32), (0x11040, 0x10), (0x11080, 0x80)].into_iter().enumerate()
        {
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
        // The frame is of another function, and its length is not ours.
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
        bytes[18] = 183;
        assert_eq!(parse(&bytes), ElfError::OtherMachine);
        assert_eq!(parse(&file()[..100]), ElfError::Damaged);
    }

    /// Our own test binary, whose functions gimli knows as well.
    #[test]
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
                prop_assert!(reader.1 <= 64 + u64::from(MAX_HEADERS) * (56 + MAX_NOTES as u64));
                reader.1 = 0;
                let function = elf.function(&mut reader, vaddr);
                prop_assert!(function.is_none_or(|function| function.contains(&vaddr)));
                prop_assert!(reader.1 <= 8 * 70);
                let _ = elf.vaddr(offset);
            }
        }
    }
}
