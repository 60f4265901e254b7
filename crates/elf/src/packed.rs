//! Compressed sections of debug information: how a file has them, and a copy of the file in which they are not compressed.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;

use flate2::bufread::ZlibDecoder;
use ruzstd::decoding::StreamingDecoder;

use super::symbols::Section;
use super::{u32_at, Elf, ReadAt};

/// `SHF_COMPRESSED`, and how a section is compressed (elf.h).
const COMPRESSED: u64 = 1 << 11;
const ZLIB: u32 = 1;
const ZSTD: u32 = 2;
/// The names of compressed sections before there was that flag, and what these begin with; the size follows.
const OLD_NAME: &[u8; 8] = b".zdebug_";
const OLD_MAGIC: &[u8; 4] = b"ZLIB";
/// Bytes that are copied at a time.
const PIECE: usize = 1 << 18;

/// How debug information is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Packing {
    /// `ELFCOMPRESS_ZLIB`, and the older `.zdebug` sections.
    Zlib,
    /// `ELFCOMPRESS_ZSTD`.
    Zstd,
    /// In a way that has this number, or as the head of the section does not say.
    Unknown(u32),
}

impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zlib => f.write_str("zlib"),
            Self::Zstd => f.write_str("zstd"),
            Self::Unknown(number) => write!(f, "method {number}"),
        }
    }
}

/// A compressed section.
#[derive(Debug)]
struct Packed {
    /// Its number.
    index: u64,
    section: Section,
    packing: Packing,
    /// Bytes before the compressed ones.
    head: u64,
    /// Bytes without compression, and their alignment; 0 if it does not say.
    size: u64,
    align: u64,
    /// Its name begins with [`OLD_NAME`].
    is_old: bool,
}

impl Elf {
    /// How the debug information of the file is compressed; `None` if none of it is.
    pub fn packing(&self, reader: &mut impl ReadAt) -> Option<Packing> {
        self.packed(reader).first().map(|section| section.packing)
    }

    /// Writes to the empty file `copy` what `file` has, with debug information that is not compressed. `None` if it cannot be
    /// read, or if the copy would be larger than `limit`; what the file claims is not believed.
    #[must_use]
    pub fn unpack(&self, mut file: &File, copy: &File, limit: u64) -> Option<()> {
        let sections = self.packed(&mut file);
        let len = file.metadata().ok()?.len();
        let claimed = sections.iter().try_fold(len, |sum, section| sum.checked_add(section.size));
        if claimed.is_none_or(|claimed| claimed > limit) {
            return None;
        }
        let mut end = write(&mut Part { file, at: 0, end: len }, copy, 0, limit)?;
        for packed in sections {
            let Packed { index, section, packing, head, size, align, is_old } = packed;
            let at = section.offset.checked_add(head)?;
            let part = Part { file, at, end: section.offset.checked_add(section.size)? };
            let mut part = BufReader::with_capacity(PIECE, part);
            let start = end.checked_next_multiple_of(16)?;
            let last = start.checked_add(size)?;
            end = match packing {
                Packing::Zlib => write(&mut ZlibDecoder::new(part), copy, start, last)?,
                Packing::Zstd => {
                    let mut at = start;
                    // A section may have several frames.
                    while at < last {
                        let frame = StreamingDecoder::new_with_max_window_size(&mut part, limit).ok();
                        let end = write(&mut frame?, copy, at, last)?;
                        at = (end > at).then_some(end)?;
                    }
                    at
                }
                Packing::Unknown(_) => return None,
            };
            if end != last {
                return None;
            }
            // Its header: no flag, the place of the bytes in the copy, and their alignment.
            let header = self.sections.start.checked_add(index * u64::from(self.sections.size))?;
            let put = |at: u64, value: u64| {
                let bytes = value.to_le_bytes();
                let width = self.class.pick(8, 4);
                copy.write_all_at(bytes.get(..width)?, header.checked_add(at)?).ok()
            };
            put(8, section.flags & !COMPRESSED)?;
            put(self.class.pick(24, 16), start)?;
            put(self.class.pick(32, 20), size)?;
            put(self.class.pick(48, 32), align.max(1))?;
            if is_old {
                // ".debug_" from the second byte of its name on.
                let names = self.sections(&mut file).get(usize::from(self.section_names))?.offset;
                copy.write_all_at(b".", names.checked_add(u64::from(section.name) + 1)?).ok()?;
                copy.write_all_at(&section.name.checked_add(1)?.to_le_bytes(), header).ok()?;
            }
        }
        Some(())
    }

    /// The compressed sections of debug information.
    fn packed(&self, reader: &mut impl ReadAt) -> Vec<Packed> {
        let sections = self.sections(reader);
        let Some(names) = sections.get(usize::from(self.section_names)) else { return Vec::new() };
        let mut packed = Vec::new();
        for (index, section) in sections.iter().enumerate().filter(|(_, section)| !section.is_nobits()) {
            let name = names.offset.checked_add(section.name.into()).and_then(|at| reader.array(at));
            let Some(name): Option<[u8; 8]> = name else { continue };
            let index = index as u64;
            if &name == OLD_NAME {
                let head: Option<[u8; 12]> = reader.array(section.offset);
                let (packing, size) = match head.as_ref().and_then(|head| head.split_first_chunk::<4>()) {
                    Some((OLD_MAGIC, size)) => (Packing::Zlib, size.try_into().map_or(0, u64::from_be_bytes)),
                    _ => (Packing::Unknown(0), 0),
                };
                packed.push(Packed { index, section: *section, packing, head: 12, size, align: 1, is_old: true });
            } else if section.flags & COMPRESSED != 0 && name.starts_with(b".debug_") {
                let mut bytes = [0; 24];
                let head = self.class.pick(24, 12);
                let is_read = bytes.get_mut(..head).and_then(|head| reader.read_at(section.offset, head)).is_some();
                let size = self.class.word(&bytes, 8, 4);
                let align = self.class.word(&bytes, 16, 8);
                let packing = match u32_at(&bytes, 0) {
                    ZLIB if is_read => Packing::Zlib,
                    ZSTD if is_read => Packing::Zstd,
                    other => Packing::Unknown(other),
                };
                let head = head as u64;
                packed.push(Packed { index, section: *section, packing, head, size, align, is_old: false });
            }
        }
        packed
    }
}

/// Writes the bytes of `from` to `copy` from `at` on; returns their end. `None` if they cannot be read, or go beyond `last`.
fn write(from: &mut impl Read, copy: &File, mut at: u64, last: u64) -> Option<u64> {
    let mut buffer = vec![0; PIECE];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Some(at),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return None,
        };
        let end = at.checked_add(count as u64).filter(|&end| end <= last)?;
        copy.write_all_at(buffer.get(..count)?, at).ok()?;
        at = end;
    }
}

/// Bytes of a file from `at` to `end`.
#[derive(Debug)]
struct Part<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.end.saturating_sub(self.at).min(buffer.len() as u64) as usize;
        let count = self.file.read_at(buffer.get_mut(..count).unwrap_or_default(), self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::write::ZlibEncoder;
    use flate2::Compression;
    use ruzstd::encoding::{compress_to_vec, CompressionLevel};

    use super::*;

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    /// A section's name, its flags and its bytes, which have the head of a compressed section.
    type Made = (&'static str, u64, Vec<u8>);

    fn old(size: u64, packed: &[u8]) -> Made {
        (".zdebug_line", 0, [b"ZLIB", &size.to_be_bytes()[..], packed].concat())
    }

    fn new(method: u64, size: u64, packed: &[u8]) -> Made {
        let head = [method, size, 8].map(u64::to_le_bytes).concat();
        (".debug_info", COMPRESSED, [head, packed.to_vec()].concat())
    }

    /// A file of 64 bits with these sections after that of no name and that of names.
    fn file(sections: &[Made]) -> File {
        let mut names = b"\0.shstrtab\0".to_vec();
        let (mut headers, mut bytes) = (vec![0; 64], Vec::new());
        let mut header = |name: usize, flags: u64, data: &[u8]| {
            headers.extend(((name as u64) | 1 << 32).to_le_bytes());
            let words = [flags, 0, 64 + bytes.len() as u64, data.len() as u64, 0, 1, 0];
            headers.extend(words.map(u64::to_le_bytes).concat());
            bytes.extend(data);
        };
        let places: Vec<usize> = sections
            .iter()
            .map(|(name, ..)| {
                names.extend([name.as_bytes(), b"\0"].concat());
                names.len() - name.len() - 1
            })
            .collect();
        header(1, 0, &names);
        for (place, (_, flags, data)) in places.into_iter().zip(sections) {
            header(place, *flags, data);
        }
        let mut head = b"\x7fELF\x02\x01\x01".to_vec();
        head.resize(40, 0);
        head.extend((64 + bytes.len() as u64).to_le_bytes());
        head.extend([0, 0, 64, 56, 0, 64, sections.len() as u16 + 2, 1].map(|half: u16| half.to_le_bytes()).concat());
        head.resize(64, 0);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[head, bytes, headers].concat()).unwrap();
        file
    }

    /// The bytes of the copy's sections that no longer are compressed.
    fn unpacked(file: &File, limit: u64) -> Option<Vec<Vec<u8>>> {
        let elf = Elf::parse(&mut &*file).unwrap();
        let copy = tempfile::tempfile().unwrap();
        elf.unpack(file, &copy, limit)?;
        let elf = Elf::parse(&mut &copy).unwrap();
        assert_eq!(elf.packing(&mut &copy), None);
        let info = elf.section(&mut &copy, b".debug_info\0");
        let found = info.into_iter().chain(elf.section(&mut &copy, b".debug_line\0"));
        let read = |section: Section| {
            assert_eq!((section.flags, section.offset % 16), (0, 0));
            let mut bytes = vec![0; section.size as usize];
            copy.read_exact_at(&mut bytes, section.offset).unwrap();
            bytes
        };
        Some(found.map(read).collect())
    }

    #[test]
    fn what_was_compressed_is_as_it_was() {
        let text: Vec<u8> = (0..300_000u32).flat_map(|at| (at / 7).to_le_bytes()).collect();
        let size = text.len() as u64;
        let twice = [zstd(&text[..1000]), zstd(&text[1000..])].concat();
        for (made, packing) in [
            (new(1, size, &zlib(&text)), Packing::Zlib),
            (new(2, size, &zstd(&text)), Packing::Zstd),
            (new(2, size, &twice), Packing::Zstd),
            (old(size, &zlib(&text)), Packing::Zlib),
        ] {
            let file = file(&[made]);
            assert_eq!(Elf::parse(&mut &file).unwrap().packing(&mut &file), Some(packing));
            assert_eq!(unpacked(&file, 4 << 20), Some(vec![text.clone()]), "{packing}");
        }
        let both = file(&[old(3, &zlib(b"abc")), new(2, 4, &zstd(b"defg"))]);
        assert_eq!(unpacked(&both, 1 << 20), Some(vec![b"defg".to_vec(), b"abc".to_vec()]));
        // Others than those of debug information stay as they are.
        let other = file(&[(".data", COMPRESSED, new(1, 3, &zlib(b"abc")).2), (".debug_info", 0, b"abc".to_vec())]);
        assert_eq!(Elf::parse(&mut &other).unwrap().packing(&mut &other), None);
    }

    #[test]
    fn what_a_section_claims_is_not_believed() {
        let large = vec![0; 3 << 20];
        for made in [
            // More than may be, or than there is; less than there is.
            new(1, u64::MAX, &zlib(b"abc")),
            new(1, 1 << 40, &zlib(b"abc")),
            new(1, 4, &zlib(b"abc")),
            new(2, 4, &zstd(b"abc")),
            old(4, &zlib(b"abc")),
            new(1, 3, &zlib(&large)),
            new(2, 3, &zstd(&large)),
            new(1, 3 << 20, &zlib(&large)),
            // Another method, no bytes, others, no head.
            new(3, 3, &zlib(b"abc")),
            new(1, 3, b""),
            new(2, 3, b"abcdefgh"),
            (".debug_info", COMPRESSED, vec![1]),
            (".zdebug_line", 0, b"ZLI".to_vec()),
        ] {
            let said = format!("{:x?}", &made.2[..made.2.len().min(40)]);
            let file = file(&[made]);
            assert!(Elf::parse(&mut &file).unwrap().packing(&mut &file).is_some(), "{said}");
            assert_eq!(unpacked(&file, 2 << 20), None, "{said}");
        }
    }
}
