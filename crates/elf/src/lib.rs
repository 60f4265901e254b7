//! The reader of untrusted ELF files: headers, build id, frame descriptions, symbol tables and the link to a debug file.
//!
//! It reads in small pieces directly from the file, each within a bound: a file that is truncated meanwhile ends there, and a
//! symbol table of a gigabyte costs no memory. It reads little-endian files of 64 and 32 bits; frame descriptions only of
//! x86-64, and the ranges of functions that they give also of arm64.

#![forbid(unsafe_code)]

mod frames;
mod packed;
mod symbols;
mod unwind;

pub use packed::Packing;
pub use symbols::Symbol;
pub use unwind::{Cfa, FrameIndex, Saved, UnwindRule};

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use scxprof_base::arch::Arch;

/// `e_machine` of x86-64.
const EM_X86_64: u16 = 62;
const EM_AARCH64: u16 = 183;
const PF_X: u32 = 1;
/// Segment and section headers beyond this number are ignored; real files have ten and fifty.
const MAX_SEGMENTS: u16 = 256;
const MAX_SECTIONS: u16 = 4096;
/// Bytes of a note segment that are searched for the build id.
const MAX_NOTES: usize = 4096;

/// Reads at an offset; a file, its cached pages, or bytes.
pub trait ReadAt {
    /// Fills `buffer` from `offset`, in bytes; `None` if the file ends before or cannot be read.
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

impl ReadAt for &File {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        self.read_exact_at(buffer, offset).ok()
    }
}

/// Why a file is no usable ELF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// The magic is missing, or the file is too short for a header.
    #[error("no ELF file")]
    NotElf,
    /// Not a little-endian file.
    #[error("an ELF file for another machine")]
    OtherMachine,
    /// The program headers are not at the offset in the header.
    #[error("a damaged ELF file")]
    Damaged,
}

/// The offsets of fields in files of 64 and of 32 bits (elf.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Class {
    is_64: bool,
}

impl Class {
    fn pick<T>(self, of_64: T, of_32: T) -> T {
        if self.is_64 {
            of_64
        } else {
            of_32
        }
    }

    /// A field with the size of an address.
    fn word(self, bytes: &[u8], of_64: usize, of_32: usize) -> u64 {
        if self.is_64 {
            u64_at(bytes, of_64)
        } else {
            u32_at(bytes, of_32).into()
        }
    }
}

/// A loaded segment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    /// Bytes of the file.
    file: Range<u64>,
    /// The address of the first of them, before relocation.
    vaddr: u64,
    /// Bytes of memory from there on: zeros follow where the file has fewer.
    memory: u64,
    executable: bool,
}

/// A table of headers: its offset, the size of each and their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Headers {
    start: u64,
    size: u16,
    count: u16,
}

/// The parts of an ELF file. All addresses are those before relocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    class: Class,
    segments: Vec<Segment>,
    sections: Headers,
    /// The section of section names.
    section_names: u16,
    /// Whose code it is, if that is understood.
    arch: Option<Arch>,
    table: Option<frames::SearchTable>,
    build_id: Option<Vec<u8>>,
}

impl Elf {
    /// Reads the headers.
    ///
    /// # Errors
    /// It is no little-endian ELF file, or its program headers cannot be read. A damaged table or note is no error: the file
    /// then has none.
    pub fn parse(reader: &mut impl ReadAt) -> Result<Self, ElfError> {
        let ident: [u8; 16] = reader.array(0).ok_or(ElfError::NotElf)?;
        if !ident.starts_with(b"\x7fELF") {
            return Err(ElfError::NotElf);
        }
        // Class 1 is 32-bit and 2 is 64-bit, data 1 is little-endian.
        let class = match ident {
            [_, _, _, _, class @ (1 | 2), 1, ..] => Class { is_64: class == 2 },
            _ => return Err(ElfError::OtherMachine),
        };
        let mut header = [0; 64];
        let header = &mut header[..class.pick(64, 52)];
        reader.read_at(0, header).ok_or(ElfError::NotElf)?;
        let half = |of_64, of_32| u16_at(header, class.pick(of_64, of_32));
        let word = |of_64, of_32| class.word(header, of_64, of_32);
        let segments = Headers { start: word(32, 28), size: half(54, 42), count: half(56, 44).min(MAX_SEGMENTS) };
        let sections = Headers { start: word(40, 32), size: half(58, 46), count: half(60, 48).min(MAX_SECTIONS) };
        let section_names = half(62, 50);
        let arch = match u16_at(header, 18) {
            EM_X86_64 if class.is_64 => Some(Arch::X86_64),
            EM_AARCH64 if class.is_64 => Some(Arch::Arm64),
            _ => None,
        };
        let mut elf = Self { class, segments: Vec::new(), sections, section_names, arch, table: None, build_id: None };
        for segment in segments.read(reader, class.pick(56, 32)).ok_or(ElfError::Damaged)? {
            let word = |of_64, of_32| class.word(&segment, of_64, of_32);
            let (offset, vaddr, size) = (word(8, 4), word(16, 8), word(32, 16));
            match u32_at(&segment, 0) {
                libc::PT_LOAD => elf.segments.push(Segment {
                    file: offset..offset.checked_add(size).ok_or(ElfError::Damaged)?,
                    vaddr,
                    memory: word(40, 20),
                    executable: u32_at(&segment, class.pick(4, 24)) & PF_X != 0,
                }),
                libc::PT_GNU_EH_FRAME if arch.is_some() && elf.table.is_none() => {
                    elf.table = frames::table(reader, offset, vaddr, size);
                }
                libc::PT_NOTE if elf.build_id.is_none() => elf.build_id = build_id(reader, offset, size),
                _ => {}
            }
        }
        Ok(elf)
    }

    /// The build id (`NT_GNU_BUILD_ID`), usually 20 bytes.
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        self.build_id.as_deref()
    }

    /// The address of the code byte at `offset` of the file; `None` outside the executable segments.
    #[must_use]
    pub fn vaddr(&self, offset: u64) -> Option<u64> {
        let segment = self.segments.iter().find(|segment| segment.executable && segment.file.contains(&offset))?;
        segment.vaddr.checked_add(offset - segment.file.start)
    }

    /// The offset in the file of the byte at `vaddr`; `None` outside of the segments that the file has bytes for.
    fn offset(&self, vaddr: u64) -> Option<u64> {
        let inside = |segment: &&Segment| {
            vaddr.checked_sub(segment.vaddr).is_some_and(|at| at < segment.file.end - segment.file.start)
        };
        let segment = self.segments.iter().find(inside)?;
        segment.file.start.checked_add(vaddr - segment.vaddr)
    }

    /// The address of data at what would be `offset` of the file if all of it were loaded as its code is; `None` outside of the
    /// segments of data, and where two segments of code are not loaded alike.
    #[must_use]
    pub fn data_vaddr(&self, offset: u64) -> Option<u64> {
        let mut code = self.segments.iter().filter(|segment| segment.executable);
        let shift = |segment: &Segment| segment.vaddr.wrapping_sub(segment.file.start);
        let first = shift(code.next()?);
        let address = offset.wrapping_add(first);
        let is_in = |segment: &Segment| address.checked_sub(segment.vaddr).is_some_and(|at| at < segment.memory);
        let is_data = self.segments.iter().any(|segment| !segment.executable && is_in(segment));
        (is_data && code.all(|segment| shift(segment) == first)).then_some(address)
    }
}

impl Headers {
    /// The headers, which must have `size` bytes; `None` if the file ends before them.
    fn read(self, reader: &mut impl ReadAt, size: u16) -> Option<Vec<Vec<u8>>> {
        if self.count > 0 && self.size != size {
            return None;
        }
        let mut header = |index: u64| {
            let mut bytes = vec![0; size.into()];
            reader.read_at(self.start.checked_add(index * u64::from(size))?, &mut bytes).map(|()| bytes)
        };
        (0..self.count.into()).map(&mut header).collect()
    }
}

/// The build id among the notes: name size, description size, type, name, description, each padded to 4 bytes.
pub fn build_id(reader: &mut impl ReadAt, offset: u64, size: u64) -> Option<Vec<u8>> {
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

/// A number at an index that the caller's constants keep within the array; 0 beyond its end.
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
mod tests;
