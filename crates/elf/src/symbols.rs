//! Functions and variables from the symbol tables of a file, and the name of its separate debug file.

use super::{u16_at, u32_at, Class, Elf, ReadAt};
use scxprof_base::sample::printable;

/// Bytes of a symbol table that are read at a time, and the largest table that is read: 44 million symbols.
const PIECE: u64 = 1 << 16;
const MAX_TABLE: u64 = 1 << 30;
/// Names of one function that are compared, and bytes of a name.
const MAX_ALIASES: usize = 16;
const MAX_NAME: usize = 1 << 13;

/// Section types (elf.h): the symbol table, and that of dynamic linking.
const SYMTAB: u32 = 2;
const DYNSYM: u32 = 11;
const NOBITS: u32 = 8;
/// Symbol types and bindings: of assembler code without a type, of functions, of functions chosen by a resolver.
const FUNCTIONS: [u8; 3] = [0, 2, 10];
/// Of data, and of data that the linker placed.
const VARIABLES: [u8; 2] = [1, 5];
const GLOBAL: u8 = 1;
const WEAK: u8 = 2;

#[derive(Debug, Clone, Copy)]
pub(super) struct Section {
    pub(super) name: u32,
    kind: u32,
    pub(super) flags: u64,
    link: u32,
    pub(super) addr: u64,
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// A function or a variable in a symbol table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Its first address.
    pub start: u64,
    /// Its name in the file; bytes that are not UTF-8 are escaped.
    pub name: String,
}

/// The symbol so far that begins nearest before an address. Of several at one address, prefer the longest, then those that
/// are not weak, then global ones (as in perf: `choose_best_symbol` in tools/perf/util/symbol.c).
#[derive(Debug, Clone, Default)]
struct Best {
    value: u64,
    /// The size, which is preferred not to be 0, and what decides between equal sizes.
    rank: (u64, bool, bool),
    /// The offsets of their names.
    names: Vec<u32>,
}

impl Elf {
    /// The functions around sorted addresses, one for each: from the symbol table, else from that of dynamic linking.
    ///
    /// A symbol without a size is ignored: its end is unknown, and a stub or code without a symbol may follow it.
    pub fn functions(&self, reader: &mut impl ReadAt, addresses: &[u64]) -> Vec<Option<Symbol>> {
        self.symbols_at(reader, addresses, &FUNCTIONS)
    }

    /// The variables that sorted addresses are in, likewise.
    pub fn variables(&self, reader: &mut impl ReadAt, addresses: &[u64]) -> Vec<Option<Symbol>> {
        self.symbols_at(reader, addresses, &VARIABLES)
    }

    /// The section that is loaded at the address, such as `.bss`.
    pub fn section_at(&self, reader: &mut impl ReadAt, address: u64) -> Option<Symbol> {
        let sections = self.sections(reader);
        let is_in = |it: &&Section| it.addr != 0 && address.checked_sub(it.addr).is_some_and(|at| at < it.size);
        let section = sections.iter().find(is_in)?;
        let name = sections.get(usize::from(self.section_names))?.string(reader, section.name)?;
        let name = String::from_utf8(name).unwrap_or_else(|error| printable(error.as_bytes()));
        (!name.is_empty()).then_some(Symbol { start: section.addr, name })
    }

    fn symbols_at(&self, reader: &mut impl ReadAt, addresses: &[u64], types: &[u8]) -> Vec<Option<Symbol>> {
        let sections = self.sections(reader);
        let mut functions = vec![None; addresses.len()];
        for kind in [SYMTAB, DYNSYM] {
            let found = sections.iter().find(|section| section.kind == kind).and_then(|table| {
                let strings = sections.get(table.link as usize)?;
                Some((strings, table.nearest(reader, self.class, addresses, types)?))
            });
            let Some((strings, nearest)) = found else { continue };
            // Each was kept for the first address that is not below it; the addresses after that look back.
            let mut current = None;
            for ((&address, best), function) in addresses.iter().zip(&nearest).zip(&mut functions) {
                if best.rank.0 > 0 {
                    current = Some((best, None));
                }
                let Some((best, name)) = &mut current else { continue };
                if function.is_none() && address - best.value < best.rank.0 {
                    let name = name.get_or_insert_with(|| best.name(reader, strings)).clone();
                    *function = name.map(|name| Symbol { start: best.value, name });
                }
            }
        }
        functions
    }

    /// Name and checksum from the section `.gnu_debuglink`.
    pub fn debug_link(&self, reader: &mut impl ReadAt) -> Option<(Vec<u8>, u32)> {
        let section = self.section(reader, b".gnu_debuglink\0")?;
        // A file's name, zeros up to a multiple of 4, the checksum.
        let mut bytes = vec![0; usize::try_from(section.size).ok().filter(|size| (8..=4096).contains(size))?];
        reader.read_at(section.offset, &mut bytes)?;
        let (name, checksum) = bytes.split_last_chunk::<4>()?;
        let name = name.split(|&byte| byte == 0).next().filter(|name| !name.is_empty())?;
        Some((name.to_owned(), u32::from_le_bytes(*checksum)))
    }

    /// True if the file itself contains debug information (DWARF).
    pub fn has_debug_info(&self, reader: &mut impl ReadAt) -> bool {
        self.section(reader, b".debug_info\0").or_else(|| self.section(reader, b".zdebug_info\0")).is_some()
    }

    /// The section of this name (with its NUL), if its bytes are in the file.
    pub(super) fn section<const N: usize>(&self, reader: &mut impl ReadAt, wanted: &[u8; N]) -> Option<Section> {
        let sections = self.sections(reader);
        let names = sections.get(usize::from(self.section_names))?;
        let mut is_it = |section: &&Section| {
            let name = names.offset.checked_add(section.name.into()).and_then(|at| reader.array(at));
            section.kind != NOBITS && name == Some(*wanted)
        };
        sections.iter().find(&mut is_it).copied()
    }

    /// The sections; none if the end of the file is missing.
    pub(super) fn sections(&self, reader: &mut impl ReadAt) -> Vec<Section> {
        let class = self.class;
        let headers = self.sections.read(reader, class.pick(64, 40)).unwrap_or_default();
        let section = |bytes: &Vec<u8>| Section {
            name: u32_at(bytes, 0),
            kind: u32_at(bytes, 4),
            flags: class.word(bytes, 8, 8),
            addr: class.word(bytes, 16, 12),
            link: u32_at(bytes, class.pick(40, 24)),
            offset: class.word(bytes, 24, 16),
            size: class.word(bytes, 32, 20),
        };
        headers.iter().map(section).collect()
    }
}

impl Best {
    /// The name with the fewest leading underscores, of these the longest.
    fn name(&self, reader: &mut impl ReadAt, strings: &Section) -> Option<String> {
        let names = self.names.iter().filter_map(|&name| strings.string(reader, name)).filter(|it| !it.is_empty());
        let underscores = |name: &[u8]| name.iter().take_while(|&&byte| byte == b'_').count();
        let name = names.max_by_key(|name| (std::cmp::Reverse(underscores(name)), name.len()))?;
        Some(String::from_utf8(name).unwrap_or_else(|error| printable(error.as_bytes())))
    }
}

impl Section {
    /// True if the file has no bytes for it.
    pub(super) fn is_nobits(&self) -> bool {
        self.kind == NOBITS
    }

    /// The symbols of these types in this symbol table that begin nearest before each of the sorted addresses and after the
    /// previous one.
    fn nearest(&self, reader: &mut impl ReadAt, class: Class, addresses: &[u64], types: &[u8]) -> Option<Vec<Best>> {
        let size = class.pick(24, 16);
        let mut best: Vec<Best> = vec![Best::default(); addresses.len()];
        let mut piece = vec![0; (PIECE / size * size) as usize];
        if self.size > MAX_TABLE {
            return None;
        }
        let (mut at, end) = (self.offset, self.offset.checked_add(self.size / size * size)?);
        while at < end {
            let count = (end - at).min(piece.len() as u64) as usize;
            let bytes = piece.get_mut(..count)?;
            reader.read_at(at, bytes)?;
            at += count as u64;
            for symbol in bytes.chunks_exact(size as usize) {
                let (value, size) = (class.word(symbol, 8, 4), class.word(symbol, 16, 8));
                let info = symbol.get(class.pick(4, 12)).copied().unwrap_or(0);
                let is_defined = u16_at(symbol, class.pick(6, 14)) != 0;
                if !is_defined || size == 0 || value.checked_add(size).is_none() || !types.contains(&(info & 15)) {
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
        Some(best)
    }

    /// The string at `index` of a string section, up to its NUL.
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

    /// A file with code at offset 0x1000, address 0x401000, a symbol table and a debug link; of 64 bits if `is_64`, else 32.
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
            let elf = Elf::parse(&mut &bytes[..]).unwrap();
            assert_eq!(elf.vaddr(0x1010), Some(0x40_1010));
            assert_eq!((elf.vaddr(0xfff), elf.vaddr(0x1100)), (None, None));
            let name = |address: u64| elf.functions(&mut &bytes[..], &[0x40_0fff, address]).remove(1).map(|it| it.name);
            for (address, expected) in [
                (0x40_1000, Some("first")),
                (0x40_101f, Some("first")),
                (0x40_1020, None),
                (0x40_1040, Some("second")),
                (0x40_104f, Some("second")),
                (0x40_1050, None),
                (u64::MAX, None),
            ] {
                assert_eq!(name(address).as_deref(), expected, "{address:#x}");
            }
            let variables = elf.variables(&mut &bytes[..], &[0x40_1000, 0x40_1018, 0x40_1030]);
            let data = Symbol { start: 0x40_1010, name: "data".to_owned() };
            assert_eq!(variables, [None, Some(data), None]);
            let all: Vec<_> = elf.functions(&mut &bytes[..], &[0x40_1008, 0x40_1010, 0x40_1030, 0x40_1080]);
            let starts: Vec<_> = all.iter().map(|it| it.as_ref().map(|it| it.start)).collect();
            assert_eq!(starts, [Some(0x40_1000), Some(0x40_1000), None, Some(0x40_1080)]);
            assert_eq!(elf.debug_link(&mut &bytes[..]), Some((b"x.debug".to_vec(), 0x0403_0201)));
        }
    }

    #[test]
    fn dynamic_symbols_come_second() {
        let mut bytes = file(true, &[("first", 0x40_1000, 0x20, FUNCTION)]);
        // The symbol table becomes the one of dynamic linking.
        bytes[0x200 + 2 * 64 + 4..][..4].copy_from_slice(&DYNSYM.to_le_bytes());
        let elf = Elf::parse(&mut &bytes[..]).unwrap();
        assert_eq!(elf.functions(&mut &bytes[..], &[0x40_1000])[0].as_ref().unwrap().name, "first");
    }

    /// A file that is truncated after some reads.
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
            let functions = Elf::parse(&mut cut).map(|elf| elf.functions(&mut cut, &[0x40_1000]));
            found += usize::from(functions.is_ok_and(|functions| functions[0].is_some()));
        }
        assert!((5..15).contains(&found), "{found}");
    }

    proptest! {
        #[test]
        fn damaged_files_are_read(is_64 in any::<bool>(), at in 0usize..0x400, with in any::<[u8; 4]>(), value in any::<u64>()) {
            let mut bytes = file(is_64, &[("first", value, 0x20, FUNCTION), ("second", 0x40_1000, value, FUNCTION)]);
            bytes[at..at + 4].copy_from_slice(&with);
            if let Ok(elf) = Elf::parse(&mut &bytes[..]) {
                let _ = elf.vaddr(value);
                let _ = elf.functions(&mut &bytes[..], &[0x40_1000, value.max(0x40_1001)]);
                let _ = elf.variables(&mut &bytes[..], &[0x40_1008, value.max(0x40_1009)]);
                let _ = elf.section_at(&mut &bytes[..], value);
                let _ = elf.data_vaddr(value);
                let _ = elf.debug_link(&mut &bytes[..]);
            }
        }
    }
}
