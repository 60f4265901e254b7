//! An ELF file in memory that holds a few symbols of another.
//!
//! blazesym maps the file that it reads: one that is cut meanwhile, as a linker or a container can do to it, would end us with
//! SIGBUS. It also sorts all symbols of a file, of which there may be millions. So it reads a file of our own, with the
//! symbols that can matter.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};

use super::image::Symbol;

/// Sizes of Elf64_Ehdr, Elf64_Shdr and Elf64_Sym (elf.h).
const HEADER: usize = 64;
const SECTION: usize = 64;
const SYMBOL: u64 = 24;

const STRTAB: u32 = 3;
const ET_DYN: u16 = 3;
const EM_X86_64: u16 = 62;
/// A global function, of some section.
const INFO: u8 = 1 << 4 | 2;
const SOME_SECTION: u16 = 1;

/// Names of sections, and where they are in the section of these names.
const NAMES: &[u8] = b"\0.symtab\0.strtab\0.dynsym\0.dynstr\0";
const NAMES_AT: [u32; 5] = [1, 9, 17, 25, 0];

/// The file: `symbols` of the symbol table and those of dynamic linking, which come second to them.
pub(super) fn file(symbols: &[Symbol], dynamic: &[Symbol]) -> io::Result<File> {
    let (symtab, strtab) = table(symbols);
    let (dynsym, dynstr) = table(dynamic);
    let contents = [&symtab, &strtab, &dynsym, &dynstr, NAMES];
    let kinds = [super::image::SYMTAB, STRTAB, super::image::DYNSYM, STRTAB, STRTAB];
    let mut headers = vec![0; SECTION];
    let mut data = Vec::new();
    let data_at = HEADER + SECTION * (1 + contents.len());
    for (index, ((content, kind), name)) in (1u32..).zip(contents.iter().zip(kinds).zip(NAMES_AT)) {
        let mut header = Vec::with_capacity(SECTION);
        header.extend(name.to_le_bytes());
        header.extend(kind.to_le_bytes());
        header.extend([0; 16]);
        header.extend(((data_at + data.len()) as u64).to_le_bytes());
        header.extend((content.len() as u64).to_le_bytes());
        // A table's strings are the next section.
        header.extend((index + 1).to_le_bytes());
        header.resize(SECTION - 8, 0);
        header.extend((if kind == STRTAB { 0 } else { SYMBOL }).to_le_bytes());
        headers.extend(header);
        data.extend_from_slice(content);
        // Symbols are read where they lie.
        data.resize(data.len().next_multiple_of(8), 0);
    }
    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(16, 0);
    header.extend(ET_DYN.to_le_bytes());
    header.extend(EM_X86_64.to_le_bytes());
    header.extend(1u32.to_le_bytes());
    // Entry, segments, sections.
    header.extend([0, 0, HEADER as u64].iter().flat_map(|word| word.to_le_bytes()));
    header.extend(0u32.to_le_bytes());
    let sections = 1 + contents.len() as u16;
    let sizes = [HEADER as u16, 0, 0, SECTION as u16, sections, sections - 1];
    header.extend(sizes.iter().flat_map(|half| half.to_le_bytes()));
    let mut file = in_memory()?;
    file.write_all(&[header, headers, data].concat())?;
    Ok(file)
}

fn table(symbols: &[Symbol]) -> (Vec<u8>, Vec<u8>) {
    // The first of each is none.
    let (mut table, mut strings) = (vec![0; SYMBOL as usize], vec![0]);
    for Symbol { value, size, name } in symbols {
        table.extend((strings.len() as u32).to_le_bytes());
        table.extend([INFO, 0]);
        table.extend(SOME_SECTION.to_le_bytes());
        table.extend(value.to_le_bytes());
        table.extend(size.to_le_bytes());
        strings.extend_from_slice(name.as_bytes());
        strings.push(0);
    }
    (table, strings)
}

fn in_memory() -> io::Result<File> {
    // SAFETY: the name is a string of C, and the call gives a new descriptor or -1.
    let fd = unsafe { libc::memfd_create(c"symbols".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}
