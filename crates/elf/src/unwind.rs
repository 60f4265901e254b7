//! Call frame information: how to get from the registers of a function to those of its caller, at any of its instructions
//! (DWARF 5, section 6.4; for `.eh_frame` the Linux Standard Base).
//!
//! One frame description is read for one address, found by the search table of `.eh_frame_hdr`, or by an index where the file
//! has no such table. So a library of a gigabyte costs the pages that the search reads.

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, DebugFrame, EhFrame, EndianSlice, LittleEndian, Reader as _, Register,
    RegisterRule, UnwindContext, UnwindExpression, UnwindSection, UnwindTableRow, Vendor,
};
use scxprof_base::arch::Arch;

use super::symbols::Section;
use super::{u32_at, Elf, ReadAt};

/// Bytes of a frame description that are read; compilers write some hundred.
const MAX_FRAME: usize = 1 << 16;
/// Bytes of a section that is read to make an index of it, and functions in it.
const MAX_SECTION: u64 = 64 << 20;
const MAX_INDEX: usize = 1 << 20;

/// `mov x8, #139` (`__NR_rt_sigreturn`, asm-generic/unistd.h) and `svc #0`.
const SIGNAL_RETURN: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];
/// The stack pointer in DWARF for the Arm 64-bit Architecture.
const SP_ARM64: u8 = 31;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// How the registers of a caller are computed from those of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnwindRule {
    /// The canonical frame address: the caller's stack pointer.
    pub cfa: Cfa,
    /// The caller's registers by their number in DWARF: figure 3.36 of the System V ABI for x86-64, whose 16 is where the caller goes
    /// on; DWARF for the Arm 64-bit Architecture, which knows that by the link register, 30.
    pub saved: Box<[(u8, Saved)]>,
    /// The function was called by the kernel to handle a signal, so that its caller was interrupted at any instruction.
    pub is_signal: bool,
}

/// The canonical frame address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cfa {
    /// A register plus an offset.
    Register(u8, i64),
    /// The result of an expression.
    Expression(Box<[u8]>),
}

/// Where the caller's value of a register is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saved {
    /// Nowhere. For the address where the caller goes on: there is no caller.
    Undefined,
    /// In the register itself.
    Same,
    /// In memory, at this offset from the canonical frame address.
    At(i64),
    /// It is the canonical frame address plus this.
    Is(i64),
    /// In another register.
    Register(u8),
    /// In memory, at the result of an expression, which begins with the canonical frame address on its stack.
    AtExpression(Box<[u8]>),
    /// It is the result of an expression.
    IsExpression(Box<[u8]>),
}

/// Where the frame descriptions of a file without a search table are.
#[derive(Debug)]
pub struct FrameIndex {
    /// The section's address; `None` for `.debug_frame`, which is not loaded.
    address: Option<u64>,
    /// The section's offset in the file.
    offset: u64,
    /// Sorted by the start of their functions.
    frames: Vec<Frame>,
}

/// A function, and its frame description.
#[derive(Debug)]
struct Frame {
    start: u64,
    /// Offsets in the section of the description, and of the common part.
    description: u32,
    common: u32,
}

/// A frame description with its common part.
struct Description {
    common: Vec<u8>,
    frame: Vec<u8>,
    /// The address of the description.
    address: u64,
    is_eh: bool,
}

impl Elf {
    /// True if frame descriptions are found without an index.
    #[must_use]
    pub fn has_frame_table(&self) -> bool {
        self.function_count() > 0
    }

    /// The rule at the instruction at `vaddr`. `None` without a description of it, and if it is damaged.
    pub fn unwind_rule(&self, reader: &mut impl ReadAt, index: Option<&FrameIndex>, vaddr: u64) -> Option<UnwindRule> {
        let arch = self.arch?;
        let by_table = self.table.as_ref().and_then(|table| {
            let (_, _, frame) = table.last_before(reader, vaddr)?;
            let at = self.offset(frame)?;
            let bytes = record(reader, at)?;
            // It points back to its common part, from this very field.
            let common = at.checked_add(4)?.checked_sub(u32_at(&bytes, 4).into())?;
            Some(Description { common: record(reader, common)?, frame: bytes, address: frame, is_eh: true })
        });
        if let Some(rule) = by_table.and_then(|description| description.rule(arch, vaddr)) {
            return Some(rule);
        }
        let index = index?;
        let at = index.frames.partition_point(|frame| frame.start <= vaddr).checked_sub(1)?;
        let frame = index.frames.get(at)?;
        let place = |offset: u32| index.offset.checked_add(offset.into());
        let description = Description {
            common: record(reader, place(frame.common)?)?,
            frame: record(reader, place(frame.description)?)?,
            address: index.address.unwrap_or(0).checked_add(frame.description.into())?,
            is_eh: index.address.is_some(),
        };
        description.rule(arch, vaddr)
    }

    /// The rule where a signal handler returns to on arm64, which has no description: the kernel's vdso has none at all. It is known
    /// by its instructions, as to debuggers. `offset` is that of one of them in the file, or of the byte before, for what a call
    /// returns to.
    ///
    /// The registers of what was interrupted are in the signal's frame, at the stack pointer.
    pub fn signal_return(&self, reader: &mut impl ReadAt, offset: u64) -> Option<UnwindRule> {
        if self.arch != Some(Arch::Arm64) {
            return None;
        }
        let first = offset.checked_add(1)? & !3;
        let is_there = |at: Option<u64>| {
            let mut bytes = [0; SIGNAL_RETURN.len()];
            at.and_then(|at| reader.read_at(at, &mut bytes)).is_some() && bytes == SIGNAL_RETURN
        };
        let is_any = [Some(first), first.checked_sub(4)].into_iter().any(is_there);
        is_any.then(|| UnwindRule { cfa: Cfa::Register(SP_ARM64, 0), saved: Box::new([]), is_signal: true })
    }

    /// An index of `.debug_frame`, or of `.eh_frame` if the file has no table of it. `None` if there is nothing to index, if it is
    /// compressed or too long, and for other machines than x86-64 and arm64.
    pub fn frame_index(&self, reader: &mut impl ReadAt) -> Option<FrameIndex> {
        self.arch?;
        let section = if self.has_frame_table() { None } else { self.section(reader, b".eh_frame\0") };
        if let Some((section, bytes)) = section.and_then(|section| whole(reader, section)) {
            let mut frames = EhFrame::new(&bytes, LittleEndian);
            frames.set_address_size(8);
            let bases = BaseAddresses::default().set_eh_frame(section.addr);
            let frames = indexed(&frames, &bases)?;
            if !frames.is_empty() {
                return Some(FrameIndex { address: Some(section.addr), offset: section.offset, frames });
            }
        }
        let section = self.section(reader, b".debug_frame\0")?;
        let (section, bytes) = whole(reader, section)?;
        let mut frames = DebugFrame::new(&bytes, LittleEndian);
        frames.set_address_size(8);
        let frames = indexed(&frames, &BaseAddresses::default())?;
        (!frames.is_empty()).then_some(FrameIndex { address: None, offset: section.offset, frames })
    }
}

impl FrameIndex {
    /// Bytes of memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.frames.capacity() * size_of::<Frame>()
    }
}

fn whole(reader: &mut impl ReadAt, section: Section) -> Option<(Section, Vec<u8>)> {
    let mut bytes = vec![0; usize::try_from(section.size).ok().filter(|&size| size as u64 <= MAX_SECTION)?];
    reader.read_at(section.offset, &mut bytes)?;
    Some((section, bytes))
}

/// All functions of a section.
fn indexed<'a, S: UnwindSection<Slice<'a>>>(section: &S, bases: &BaseAddresses) -> Option<Vec<Frame>> {
    let mut frames = Vec::new();
    let mut entries = section.entries(bases);
    // What follows damage is unknown.
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let Ok(frame) = partial.parse(S::cie_from_offset) else { continue };
        let (description, common) = (frame.offset().try_into().ok()?, frame.cie().offset().try_into().ok()?);
        frames.push(Frame { start: frame.initial_address(), description, common });
        if frames.len() > MAX_INDEX {
            return None;
        }
    }
    frames.sort_unstable_by_key(|frame| frame.start);
    frames.shrink_to_fit();
    Some(frames)
}

/// The bytes of a description, or of a common part, at an offset of the file.
fn record(reader: &mut impl ReadAt, at: u64) -> Option<Vec<u8>> {
    // A length of 0xffffffff announces one of 64 bits, which no compiler writes here.
    let length = u32::from_le_bytes(reader.array(at)?) as usize;
    let mut bytes = vec![0; length.checked_add(4).filter(|size| (12..=MAX_FRAME).contains(size))?];
    reader.read_at(at, &mut bytes)?;
    Some(bytes)
}

impl Description {
    /// The rule at `vaddr`, if the description is of a function around it.
    fn rule(self, arch: Arch, vaddr: u64) -> Option<UnwindRule> {
        let Self { common: mut bytes, frame, address, is_eh } = self;
        // A section that has nothing but them: the common part first, to which the description points.
        let begin = bytes.len();
        bytes.extend_from_slice(&frame);
        let pointer = if is_eh { u32::try_from(begin + 4).ok()? } else { 0 };
        bytes.get_mut(begin + 4..begin + 8)?.copy_from_slice(&pointer.to_le_bytes());
        let base = address.wrapping_sub(begin as u64);
        // One instruction of frame descriptions has a meaning of its own on arm64.
        let vendor = if arch == Arch::Arm64 { Vendor::AArch64 } else { Vendor::Default };
        if is_eh {
            let mut section = EhFrame::new(&bytes, LittleEndian);
            section.set_address_size(8);
            section.set_vendor(vendor);
            rule_in(&section, &BaseAddresses::default().set_eh_frame(base), begin, (arch, vaddr))
        } else {
            let mut section = DebugFrame::new(&bytes, LittleEndian);
            section.set_address_size(8);
            section.set_vendor(vendor);
            rule_in(&section, &BaseAddresses::default(), begin, (arch, vaddr))
        }
    }
}

fn rule_in<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    bases: &BaseAddresses,
    begin: usize,
    (arch, vaddr): (Arch, u64),
) -> Option<UnwindRule> {
    let frame = section.fde_from_offset(bases, S::Offset::from(begin), S::cie_from_offset).ok()?;
    let mut context = UnwindContext::new();
    let row = frame.unwind_info_for_address(section, bases, &mut context, vaddr).ok()?;
    rule_of_row(section, row, arch, frame.is_signal_trampoline())
}

fn rule_of_row<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    row: &UnwindTableRow<usize>,
    arch: Arch,
    is_signal: bool,
) -> Option<UnwindRule> {
    // The return address of x86-64, and the stack pointer of arm64.
    let last = if arch == Arch::Arm64 { 31 } else { 16 };
    let number = |register: Register| u8::try_from(register.0).ok().filter(|&register| register <= last);
    let code = |expression: &UnwindExpression<usize>| {
        let expression = expression.get(section).ok()?;
        Some(expression.0.to_slice().ok()?.into_owned().into_boxed_slice())
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => Cfa::Register(number(*register)?, *offset),
        CfaRule::Expression(expression) => Cfa::Expression(code(expression)?),
    };
    let mut saved = Vec::new();
    for (register, rule) in row.registers() {
        // Vector registers and others are not needed.
        let Some(register) = number(*register) else { continue };
        let rule = match rule {
            RegisterRule::SameValue => Saved::Same,
            RegisterRule::Offset(offset) => Saved::At(*offset),
            RegisterRule::ValOffset(offset) => Saved::Is(*offset),
            RegisterRule::Register(other) => number(*other).map_or(Saved::Undefined, Saved::Register),
            RegisterRule::Expression(expression) => Saved::AtExpression(code(expression)?),
            RegisterRule::ValExpression(expression) => Saved::IsExpression(code(expression)?),
            _ => Saved::Undefined,
        };
        saved.push((register, rule));
    }
    Some(UnwindRule { cfa, saved: saved.into(), is_signal })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The description at 0x2000 of a function at 0x1000 of 0x20 bytes, which pushes rbp by its first instruction, of one byte.
    fn description() -> Description {
        let sized = |body: &[u8]| {
            let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
            bytes.extend_from_slice(body);
            bytes
        };
        // Version 1, "zR": code by 1, data by -8, rip is 16, addresses are relative and of 4 bytes; rsp + 8, rip at -8.
        let common = [0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0];
        let mut frame = vec![0, 0, 0, 0];
        frame.extend_from_slice(&(0x1000 - 0x2008i32).to_le_bytes());
        frame.extend_from_slice(&[0x20, 0, 0, 0, 0, 0x41, 0x0e, 16, 0x86, 2, 0, 0]);
        Description { common: sized(&common), frame: sized(&frame), address: 0x2000, is_eh: true }
    }

    #[test]
    fn a_rule_depends_on_the_instruction() {
        let rule = |vaddr| description().rule(Arch::X86_64, vaddr);
        let at_entry = rule(0x1000).unwrap();
        assert_eq!((at_entry.cfa, &*at_entry.saved), (Cfa::Register(7, 8), &[(16, Saved::At(-8))][..]));
        let pushed = rule(0x101f).unwrap();
        assert_eq!(pushed.cfa, Cfa::Register(7, 16));
        assert!(pushed.saved.contains(&(6, Saved::At(-16))), "{pushed:?}");
        assert!(!pushed.is_signal);
        assert_eq!((rule(0xfff), rule(0x1020)), (None, None), "it is of another function");
    }

    /// That of a function of arm64 at 0x1000, of 0x20 bytes: it signs the link register, and saves it and x29 by the next instruction.
    fn arm64() -> Description {
        let mut made = description();
        // "zR": code by 4, data by -8, x30; sp + 0.
        made.common.splice(10.., [b'R', 0, 4, 0x78, 30, 1, 0x1b, 0x0c, 31, 0, 0, 0, 0, 0]);
        // After 1 instruction the sign, after 2 a frame of 32 bytes.
        made.frame.splice(17.., [0x41, 0x2d, 0x41, 0x0e, 32, 0x9d, 4, 0x9e, 3, 0, 0]);
        for bytes in [&mut made.common, &mut made.frame] {
            let length = bytes.len() as u32 - 4;
            bytes[..4].copy_from_slice(&length.to_le_bytes());
        }
        made
    }

    #[test]
    fn a_signed_return_address_of_arm64_is_found() {
        let rule = |vaddr| arm64().rule(Arch::Arm64, vaddr).unwrap();
        assert_eq!((rule(0x1004).cfa, &*rule(0x1004).saved), (Cfa::Register(31, 0), &[][..]));
        let saved = rule(0x1008);
        assert_eq!(saved.cfa, Cfa::Register(31, 32));
        assert_eq!(&*saved.saved, &[(29, Saved::At(-32)), (30, Saved::At(-24))]);
        assert_eq!(arm64().rule(Arch::X86_64, 0x1008), None, "the sign means nothing there");
    }

    proptest! {
        #[test]
        fn any_description_gives_a_rule_or_none(
            damage in prop::collection::vec((0..60usize, any::<u8>()), 0..8),
            cut in 0..60usize,
            is_eh in any::<bool>(),
            arch in prop_oneof![Just(Arch::X86_64), Just(Arch::Arm64)],
            vaddr in prop_oneof![0xff0..0x1030u64, any::<u64>()],
            address in prop_oneof![Just(0x2000u64), any::<u64>()],
        ) {
            let mut made = Description { address, is_eh, ..description() };
            let common = made.common.len();
            for (at, value) in damage {
                let bytes = if at < common { made.common.get_mut(at) } else { made.frame.get_mut(at - common) };
                if let Some(byte) = bytes {
                    *byte = value;
                }
            }
            if cut < 12 {
                made.frame.truncate(12 + cut);
            }
            let _ = made.rule(arch, vaddr);
        }
    }
}
