//! What an ELF file says of itself, read in small pieces wherever it lies: a file that is cut while it is read ends there, and a
//! symbol table of a gigabyte costs no memory.

use std::ops::Range;

use super::super::mapping::BuildId;
use crate::elf::{self, ReadAt};
use crate::sample::printable;

/// Headers of segments and of sections beyond so many are not looked at; real files have ten and fifty.
const MAX_SEGMENTS: u16 = 256;
const MAX_SECTIONS: u16 = 4096;
/// Bytes of a symbol table that are read at a time, and of one that is read at all: 44 million symbols.
const PIECE: u64 = 1 << 16;
const MAX_TABLE: u64 = 1 << 30;
/// Names of one function that are looked at, and bytes of a name.
const MAX_ALIASES: usize = 16;
const MAX_NAME: usize = 1 << 13;

const PF_X: u32 = 1;
/// Section types (elf.h): the symbol table, and that of dynamic linking.
pub(super) const SYMTAB: u32 = 2;
pub(super) const DYNSYM: u32 = 11;
const NOBITS: u32 = 8;
/// Symbol types and bindings: of assembler code without one, of functions, of functions that a resolver chooses.
const TYPES: [u8; 3] = [0, 2, 10];
const GLOBAL: u8 = 1;
const WEAK: u8 = 2;

/// Where fields are, in files of 64 and of 32 bits (elf.h).
#[derive(Debug, Clone, Copy)]
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

    /// A field that has the size of an address.
    fn word(self, bytes: &[u8], of_64: usize, of_32: usize) -> u64 {
        if self.is_64 {
            field(bytes, of_64).map_or(0, u64::from_le_bytes)
        } else {
            u32_at(bytes, of_32).into()
        }
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    field(bytes, at).map_or(0, u32::from_le_bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    field(bytes, at).map_or(0, u16::from_le_bytes)
}

#[derive(Debug, Clone, Copy)]
struct Section {
    name: u32,
    kind: u32,
    link: u32,
    offset: u64,
    size: u64,
}

/// A little-endian ELF file of any machine.
#[derive(Debug, Clone)]
pub(super) struct Image {
    class: Class,
    /// Bytes of the file that are code, and the address of the first.
    code: Vec<(Range<u64>, u64)>,
    sections: Vec<Section>,
    /// The section of section names.
    names: usize,
    build_id: Option<BuildId>,
}

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Symbol {
    pub value: u64,
    /// Not 0, and `value + size` is an address.
    pub size: u64,
    /// Bytes that are no UTF-8 are escaped.
    pub name: String,
}

/// The function that begins nearest before an address so far. Of several at one place those that reach furthest, are not weak
/// and are global (as perf has it: `choose_best_symbol` in tools/perf/util/symbol.c).
#[derive(Debug, Clone, Default)]
struct Best {
    value: u64,
    rank: (u64, bool, bool),
    /// Where their names are.
    names: Vec<u32>,
}

impl Image {
    /// Reads the headers; `None` where there are none, or of the other byte order.
    pub(super) fn parse(reader: &mut impl ReadAt) -> Option<Self> {
        let ident: [u8; 16] = reader.array(0)?;
        let class = Class { is_64: ident.get(4) == Some(&2) };
        if !ident.starts_with(b"\x7fELF") || !matches!(ident.get(4..6), Some([1 | 2, 1])) {
            return None;
        }
        let mut header = vec![0; class.pick(64, 52)];
        reader.read_at(0, &mut header)?;
        let half = |of_64, of_32| u16_at(&header, class.pick(of_64, of_32));
        let at = |of_64, of_32| class.word(&header, of_64, of_32);
        let mut image =
            Self { class, code: Vec::new(), sections: Vec::new(), names: half(62, 50).into(), build_id: None };
        let mut entries = |start: u64, size: u16, wanted: u16, count: u16| -> Option<Vec<Vec<u8>>> {
            // Other sizes are of no kernel that is known.
            let count = if size == wanted { u64::from(count) } else { 0 };
            let entry = |index: u64| {
                let mut bytes = vec![0; usize::from(size)];
                reader.read_at(start.checked_add(index * u64::from(size))?, &mut bytes).map(|()| bytes)
            };
            (0..count).map(entry).collect()
        };
        let segments = entries(at(32, 28), half(54, 42), class.pick(56, 32), half(56, 44).min(MAX_SEGMENTS))?;
        let sections = entries(at(40, 32), half(58, 46), class.pick(64, 40), half(60, 48).min(MAX_SECTIONS));
        for segment in segments {
            let word = |of_64, of_32| class.word(&segment, of_64, of_32);
            let (offset, address, size) = (word(8, 4), word(16, 8), word(32, 16));
            let flags = u32_at(&segment, class.pick(4, 24));
            match u32_at(&segment, 0) {
                libc::PT_LOAD if flags & PF_X != 0 => image.code.push((offset..offset.checked_add(size)?, address)),
                libc::PT_NOTE if image.build_id.is_none() => {
                    image.build_id = elf::build_id(reader, offset, size).as_deref().map(BuildId::new);
                }
                _ => {}
            }
        }
        // A file whose end is missing still has segments.
        image.sections = sections.unwrap_or_default().iter().map(|bytes| Section::read(bytes, class)).collect();
        Some(image)
    }

    pub(super) fn build_id(&self) -> Option<BuildId> {
        self.build_id
    }

    /// The address of the code byte at `offset` of the file, before relocation; `None` for what is no code.
    pub(super) fn address(&self, offset: u64) -> Option<u64> {
        let (range, address) = self.code.iter().find(|(range, _)| range.contains(&offset))?;
        address.checked_add(offset - range.start)
    }

    /// The functions of one table (`SYMTAB` or `DYNSYM`) that begin nearest before some of the sorted addresses; those that
    /// contain one are among them. A symbol without a size is none: nobody knows where it ends, and what follows it may be a
    /// stub or code without a symbol.
    pub(super) fn nearest(&self, reader: &mut impl ReadAt, table: u32, addresses: &[u64]) -> Option<Vec<Symbol>> {
        let class = self.class;
        let section = self.sections.iter().find(|section| section.kind == table)?;
        let strings = self.sections.get(section.link as usize)?;
        let size = class.pick(24, 16);
        let mut best: Vec<Best> = vec![Best::default(); addresses.len()];
        let mut piece = vec![0; (PIECE / size * size) as usize];
        if section.size > MAX_TABLE {
            return None;
        }
        let (mut at, end) = (section.offset, section.offset.checked_add(section.size / size * size)?);
        while at < end {
            let count = (end - at).min(piece.len() as u64) as usize;
            let bytes = piece.get_mut(..count)?;
            reader.read_at(at, bytes)?;
            at += count as u64;
            for symbol in bytes.chunks_exact(size as usize) {
                let (value, size) = (class.word(symbol, 8, 4), class.word(symbol, 16, 8));
                let info = symbol.get(class.pick(4, 12)).copied().unwrap_or(0);
                let is_defined = u16_at(symbol, class.pick(6, 14)) != 0;
                if !is_defined || size == 0 || value.checked_add(size).is_none() || !TYPES.contains(&(info & 15)) {
                    continue;
                }
                let slot = addresses.partition_point(|&address| address < value);
                let Some(best) = best.get_mut(slot) else { continue };
                let rank = (size, info >> 4 != WEAK, info >> 4 == GLOBAL);
                if (value, rank) > (best.value, best.rank) {
                    *best = Best { value, rank, names: Vec::new() };
                }
                if (value, rank) == (best.value, best.rank) && best.names.len() < MAX_ALIASES {
                    best.names.push(u32_at(symbol, 0));
                }
            }
        }
        let mut symbol = |best: &Best| {
            let names = best.names.iter().filter_map(|&name| strings.string(reader, name)).filter(|it| !it.is_empty());
            // Few underscores before it, and long.
            let underscores = |name: &[u8]| name.iter().take_while(|&&byte| byte == b'_').count();
            let name = names.max_by_key(|name| (std::cmp::Reverse(underscores(name)), name.len()))?;
            Some(Symbol { value: best.value, size: best.rank.0, name: text(name) })
        };
        Some(best.iter().filter_map(&mut symbol).collect())
    }

    /// Name and checksum from the section `.gnu_debuglink`.
    pub(super) fn debug_link(&self, reader: &mut impl ReadAt) -> Option<(Vec<u8>, u32)> {
        let names = self.sections.get(self.names)?;
        let wanted = b".gnu_debuglink\0";
        let mut is_it = |section: &&Section| {
            let name = names.offset.checked_add(section.name.into()).and_then(|at| reader.array(at));
            section.kind != NOBITS && name == Some(*wanted)
        };
        let section = self.sections.iter().find(&mut is_it)?;
        // A file's name, zeros up to a multiple of 4, the checksum.
        let mut bytes = vec![0; usize::try_from(section.size).ok().filter(|size| (8..=4096).contains(size))?];
        reader.read_at(section.offset, &mut bytes)?;
        let (name, checksum) = bytes.split_last_chunk::<4>()?;
        let name = name.split(|&byte| byte == 0).next().filter(|name| !name.is_empty())?;
        Some((name.to_owned(), u32::from_le_bytes(*checksum)))
    }
}

fn text(name: Vec<u8>) -> String {
    String::from_utf8(name).unwrap_or_else(|error| printable(error.as_bytes()))
}

impl Section {
    fn read(bytes: &[u8], class: Class) -> Self {
        Self {
            name: u32_at(bytes, 0),
            kind: u32_at(bytes, 4),
            link: u32_at(bytes, class.pick(40, 24)),
            offset: class.word(bytes, 24, 16),
            size: class.word(bytes, 32, 20),
        }
    }

    /// The string at `index` of a section of strings, up to its NUL.
    fn string(&self, reader: &mut impl ReadAt, index: u32) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        let (mut at, end) = (u64::from(index), self.size.min(u64::from(index) + MAX_NAME as u64));
        while at < end {
            let mut piece = [0; 256];
            let piece = piece.get_mut(..(end - at).min(256) as usize)?;
            reader.read_at(self.offset.checked_add(at)?, piece)?;
            at += piece.len() as u64;
            let mut parts = piece.splitn(2, |&byte| byte == 0);
            name.extend_from_slice(parts.next()?);
            if parts.next().is_some() {
                return Some(name);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file of code at offset 0x1000, address 0x401000, with a symbol table and a debug link; `is_64` or of 32 bits.
    fn file(is_64: bool, symbols: &[(&str, u64, u64, u8)]) -> Vec<u8> {
        let class = Class { is_64 };
        let mut bytes = vec![0; 0x1100];
        let mut put = |at: usize, what: &[u8]| {
            bytes.resize(bytes.len().max(at + what.len()), 0);
            bytes[at..at + what.len()].copy_from_slice(what);
        };
        let word =
            |value: u64| if is_64 { value.to_le_bytes().to_vec() } else { (value as u32).to_le_bytes().to_vec() };
        let names = b"\0.gnu_debuglink\0";
        let (mut table, mut strings) = (Vec::new(), vec![0]);
        for &(name, value, size, info) in symbols {
            let at = (strings.len() as u32).to_le_bytes();
            let section = 1u16.to_le_bytes();
            table.extend(if is_64 {
                [&at[..], &[info, 0], &section, &word(value), &word(size)].concat()
            } else {
                [&at[..], &word(value), &word(size), &[info, 0], &section].concat()
            });
            strings.extend(name.as_bytes());
            strings.push(0);
        }
        put(0, b"\x7fELF");
        put(4, &[class.pick(2, 1), 1]);
        put(class.pick(32, 28), &word(0x100));
        put(class.pick(40, 32), &word(0x200));
        let halves = [class.pick(56, 32), 1, class.pick(64, 40), 5, 4u16];
        put(class.pick(54, 42), &halves.map(u16::to_le_bytes).concat());
        put(0x100, &1u32.to_le_bytes());
        put(0x100 + class.pick(4, 24), &5u32.to_le_bytes());
        put(0x100 + class.pick(8, 4), &word(0x1000));
        put(0x100 + class.pick(16, 8), &word(0x40_1000));
        put(0x100 + class.pick(32, 16), &word(0x100));
        let link = b"x.debug\0\x01\x02\x03\x04";
        let sections: [(u32, u32, u64, &[u8]); 4] =
            [(1, 1, 0x2000, link), (0, SYMTAB, 0x3000, &table), (0, 3, 0x8000, &strings), (0, 3, 0x7000, names)];
        for (index, (name, kind, offset, content)) in (1usize..).zip(sections) {
            let at = 0x200 + index * class.pick(64, 40);
            put(at, &[name, kind].map(u32::to_le_bytes).concat());
            put(at + class.pick(24, 16), &word(offset));
            put(at + class.pick(32, 20), &word(content.len() as u64));
            put(at + class.pick(40, 24), &3u32.to_le_bytes());
            put(offset as usize, content);
        }
        bytes
    }

    const FUNCTION: u8 = 1 << 4 | 2;

    #[test]
    fn both_classes_are_read_alike() {
        let symbols = [
            ("after", 0x40_1080, 0x10, FUNCTION),
            ("first", 0x40_1000, 0x20, FUNCTION),
            ("local", 0x40_1000, 0x20, 2),
            ("__first", 0x40_1000, 0x20, FUNCTION),
            ("weak_name", 0x40_1000, 0x20, 2 << 4 | 2),
            ("data", 0x40_1010, 0x20, 1 << 4 | 1),
            ("label", 0x40_1018, 0, 0),
            ("second", 0x40_1040, 0x10, 0),
        ];
        for is_64 in [true, false] {
            let bytes = file(is_64, &symbols);
            let image = Image::parse(&mut &bytes[..]).unwrap();
            assert_eq!(image.address(0x1010), Some(0x40_1010));
            assert_eq!((image.address(0xfff), image.address(0x1100)), (None, None));
            let names = |addresses: &[u64]| {
                let found = image.nearest(&mut &bytes[..], SYMTAB, addresses).unwrap();
                found.into_iter().map(|symbol| symbol.name).collect::<Vec<_>>()
            };
            assert_eq!(names(&[0x40_101f]), ["first"]);
            assert_eq!(names(&[0x40_1000, 0x40_1050]), ["first", "second"]);
            assert_eq!(names(&[0x40_0fff]), [""; 0]);
            assert_eq!(image.nearest(&mut &bytes[..], DYNSYM, &[0x40_1000]), None);
            assert_eq!(image.debug_link(&mut &bytes[..]), Some((b"x.debug".to_vec(), 0x0403_0201)));
        }
    }

    /// A file that is cut after some reads.
    struct Cut<'a>(&'a [u8], usize);

    impl ReadAt for Cut<'_> {
        fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> Option<()> {
            self.1 = self.1.checked_sub(1)?;
            self.0.read_at(offset, buffer)
        }
    }

    #[test]
    fn a_file_that_is_cut_while_it_is_read_ends_there() {
        let bytes = file(true, &[("first", 0x40_1000, 0x20, FUNCTION)]);
        let mut found = 0;
        for reads in 0..20 {
            let mut cut = Cut(&bytes, reads);
            let nearest = Image::parse(&mut cut).and_then(|image| image.nearest(&mut cut, SYMTAB, &[0x40_1000]));
            found += usize::from(nearest.is_some_and(|symbols| !symbols.is_empty()));
        }
        assert!((5..15).contains(&found), "{found}");
    }

    proptest! {
        #[test]
        fn damaged_files_are_read(is_64 in any::<bool>(), at in 0usize..0x400, with in any::<[u8; 4]>(), value in any::<u64>()) {
            let mut bytes = file(is_64, &[("first", value, 0x20, FUNCTION), ("second", 0x40_1000, value, FUNCTION)]);
            bytes[at..at + 4].copy_from_slice(&with);
            if let Some(image) = Image::parse(&mut &bytes[..]) {
                let _ = image.address(value);
                let _ = image.nearest(&mut &bytes[..], SYMTAB, &[0x40_1000, value.max(0x40_1001)]);
                let _ = image.debug_link(&mut &bytes[..]);
            }
        }
    }
}
