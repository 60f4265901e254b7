//! Finds the instructions before and after an ip, and how far back control certainly came through them.
//!
//! The instruction before ip (by address) ran before it only if no branch leads to ip. So this module searches for
//! branches: it decodes the whole function if its range is known, else it treats every byte near ip that could begin a
//! branch as one.

use std::ops::Range;

use super::candidates::MAX_STEPS;
use super::insn::{Flow, Insn};
use super::isa::Isa;
use super::semantics::Semantics;

/// Bytes on either side of a piece of code that are searched for branches into it. Callers should provide this much
/// code around ip or, if they know the range of the function, around the function.
pub const LEADER_SPAN: usize = 4096;
/// A longer range is taken for an error in the file.
const MAX_FUNCTION: u64 = 4 * 1024 * 1024;
/// The most places outside a function that it branches to and that are searched for branches back (`.cold` parts).
const MAX_OUTSIDE: usize = 64;

/// A piece of code as the caller provides it.
#[derive(Debug, Clone)]
pub struct CodeWindow<'a> {
    /// The identity of the code for as long as its bytes stay the same: one for each file and build, or for each
    /// address space and generation of changing code. Code that was decoded under a key is not read again.
    pub key: u64,
    /// The load bias of an ELF file, else 0. In every process, addresses of the same code minus `bias` are the same.
    pub bias: u64,
    /// Address of the first byte in this process.
    pub base: u64,
    /// The bytes.
    pub bytes: &'a [u8],
    /// The function around the requested address, from `.eh_frame`; `None` if unknown. The given end may be after the
    /// true end (at the start of the next function), but not before it.
    pub function: Option<Range<u64>>,
    /// The process itself (a JIT compiler) wrote the code, so there may be data between functions.
    pub jit: bool,
}

/// Provides the code bytes of one process.
pub trait CodeSource {
    /// The code around the address `ip` of the process, `None` if there is none.
    ///
    /// The window should reach from the start of the function to its end, or [`LEADER_SPAN`] to both sides. If it stops
    /// before the given end of the function, branches from the missing part may lead anywhere, so little is recovered
    /// before ip. If it has less than 15 bytes from ip on, the instruction at ip may be missed.
    fn window(&mut self, ip: u64) -> Option<CodeWindow<'_>>;

    /// The `size` bytes (at most 8) at `addr` as a little-endian number, if the process can read but not write them,
    /// and no other process can write them.
    fn constant(&mut self, addr: u64, size: u32) -> Option<u64> {
        let _ = (addr, size);
        None
    }
}

impl CodeSource for CodeWindow<'_> {
    fn window(&mut self, ip: u64) -> Option<CodeWindow<'_>> {
        self.contains(ip).then(|| self.clone())
    }
}

impl CodeWindow<'_> {
    /// True if the window contains the byte at `ip`.
    #[must_use]
    pub fn contains(&self, ip: u64) -> bool {
        ip.wrapping_sub(self.base) < self.bytes.len() as u64
    }

    /// The first byte's address, relative to the code's base.
    fn own_base(&self) -> u64 {
        self.base.wrapping_sub(self.bias)
    }

    /// The range of the function's bytes in `bytes`, possibly without its end; `None` if its start is missing.
    fn function_bytes(&self) -> Option<Range<usize>> {
        let function = self.function.as_ref()?;
        let start = function.start.checked_sub(self.base)?;
        let end = function.end.checked_sub(self.base)?.min(self.bytes.len() as u64);
        (start < end && end - start <= MAX_FUNCTION).then_some(start as usize..end as usize)
    }
}

/// Why the sequence of instructions before ip ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// The sequence has the maximum length.
    Full,
    /// A branch may lead here.
    Leader,
    /// Other code ran in between: a call returned.
    Call,
    /// The boundaries are unknown.
    Unsynchronised,
}

/// The instructions that certainly ran in sequence before an ip, the nearest first.
#[derive(Debug, Clone)]
pub(super) struct Backward<I: Isa> {
    pub(super) insns: Box<[Insn<I>]>,
    pub(super) cut: Cut,
}

/// A bit for each byte of a range.
#[derive(Debug, Clone, Default)]
struct Bits(Box<[u64]>);

impl Bits {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)].into())
    }

    fn set(&mut self, index: usize) {
        if let Some(word) = self.0.get_mut(index / 64) {
            *word |= 1 << (index % 64);
        }
    }

    fn get(&self, index: usize) -> bool {
        self.0.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }
}

/// The boundaries and branch targets of one function.
#[derive(Debug, Clone)]
pub(super) struct FunctionMap {
    starts: Bits,
    leaders: Bits,
    /// A branch may lead anywhere in the function: it contains an indirect jump, or code that branches into it is
    /// missing.
    table: bool,
    /// Targets outside, relative to the code's base.
    pub(super) outside: Vec<u64>,
}

impl FunctionMap {
    /// The size in bytes.
    pub(super) fn bytes(&self) -> usize {
        std::mem::size_of::<Self>() + (self.starts.0.len() + self.leaders.0.len() + self.outside.len()) * 8
    }

    /// Decodes the function of `window`; `None` if its range is unknown or incomplete at the start.
    pub(super) fn new<I: Semantics>(window: &CodeWindow<'_>) -> Option<Self> {
        let range = window.function_bytes()?;
        let own_base = window.own_base();
        let len = range.len();
        // A missing tail may contain branches to anywhere.
        let here = window.base.saturating_add(window.bytes.len() as u64);
        let cut = window.function.as_ref().is_none_or(|function| function.end > here);
        let mut map = Self { starts: Bits::new(len), leaders: Bits::new(len), table: cut, outside: Vec::new() };
        let function = own_base.wrapping_add(range.start as u64);
        map.leaders.set(0);
        I::sweep(window.bytes, own_base, range.clone(), |at, branch| {
            map.starts.set(at - range.start);
            if let Some(target) = branch.target {
                let offset = target.wrapping_sub(function);
                if offset < len as u64 {
                    map.leaders.set(offset as usize);
                } else if map.outside.contains(&target) {
                } else if map.outside.len() < MAX_OUTSIDE {
                    map.outside.push(target);
                } else {
                    // The code there is not read, and may branch back to anywhere.
                    map.table = true;
                }
            }
            map.table |= branch.table;
        });
        // Branches from neighbouring code: hand-written functions share tails.
        for around in [
            range.start.saturating_sub(LEADER_SPAN)..range.start,
            range.end..range.end.saturating_add(LEADER_SPAN).min(window.bytes.len()),
        ] {
            I::possible_targets(window.bytes, own_base, around, |target| {
                if let Some(offset) = target.checked_sub(range.start as i64).and_then(|at| usize::try_from(at).ok()) {
                    map.leaders.set(offset);
                }
            });
        }
        Some(map)
    }

    /// This function (`function`: its range relative to the code's base) branches to `target` in `other`. Marks the
    /// branches that lead back from there; returns the addresses of the code that was read.
    pub(super) fn add_branches_from<I: Semantics>(
        &mut self,
        other: &CodeWindow<'_>,
        target: u64,
        function: &Range<u64>,
    ) -> Range<u64> {
        let own_base = other.own_base();
        let holds = |function: &Range<u64>| function.contains(&target.wrapping_add(other.bias));
        if let Some(range) = other.function_bytes().filter(|_| other.function.as_ref().is_some_and(holds)) {
            let addresses = own_base.wrapping_add(range.start as u64)..own_base.wrapping_add(range.end as u64);
            I::sweep(other.bytes, own_base, range, |_, branch| {
                if let Some(target) = branch.target {
                    if function.contains(&target) {
                        self.leaders.set((target - function.start) as usize);
                    }
                }
            });
            return addresses;
        }
        let Ok(at) = usize::try_from(target.wrapping_sub(own_base)) else {
            self.open();
            return target..target;
        };
        // The code continues in code that is not read.
        if other.function.is_some() || at.saturating_add(LEADER_SPAN) > other.bytes.len() {
            self.open();
        }
        let around = at.saturating_sub(LEADER_SPAN)..at.saturating_add(LEADER_SPAN).min(other.bytes.len());
        I::possible_targets(other.bytes, own_base, around, |target| {
            let target = own_base.wrapping_add_signed(target);
            if function.contains(&target) {
                self.leaders.set((target - function.start) as usize);
            }
        });
        target..target
    }

    /// Marks that a branch may lead anywhere in the function.
    pub(super) fn open(&mut self) {
        self.table = true;
    }
}

/// True if `range` contains a jump that may lead to several places. Decoding finds the right boundaries soon after the
/// beginning of the range, and after data in it.
fn has_table_jump<I: Semantics>(bytes: &[u8], own_base: u64, range: Range<usize>) -> bool {
    let mut found = false;
    I::sweep(bytes, own_base, range, |_, branch| found |= branch.table);
    found
}

/// The instructions from `ip` on, in order, up to [`MAX_STEPS`]; the first one that does not continue with the next is
/// the last. Empty if there is no instruction at `ip`.
pub(super) fn forward<I: Semantics>(window: &CodeWindow<'_>, ip: u64, decoder: &mut I::Decoder) -> Vec<Insn<I>> {
    let mut insns = Vec::new();
    let Ok(mut at) = usize::try_from(ip.wrapping_sub(window.base)) else { return insns };
    while insns.len() < MAX_STEPS {
        let Some(insn) = I::decode(window.bytes, window.own_base(), at, decoder) else { break };
        at += usize::from(insn.len);
        let goes_on = insn.flow == Flow::Next;
        insns.push(insn);
        if !goes_on {
            break;
        }
    }
    insns
}

/// The instructions before `ip`, with their boundaries from `map` if the function is known.
pub(super) fn backward<I: Semantics>(
    window: &CodeWindow<'_>,
    map: Option<&FunctionMap>,
    ip: u64,
    decoder: &mut I::Decoder,
) -> Backward<I> {
    let nothing = Backward { insns: Box::default(), cut: Cut::Unsynchronised };
    let is_inside = window.function.as_ref().is_some_and(|function| function.contains(&ip));
    let Ok(ip) = usize::try_from(ip.wrapping_sub(window.base)) else { return nothing };
    let (boundaries, leaders, table) = match (map, window.function_bytes()) {
        (Some(map), Some(range)) if range.contains(&ip) => {
            if !map.starts.get(ip - range.start) {
                return nothing;
            }
            let mut boundaries = vec![ip];
            let mut at = ip;
            while at > range.start && boundaries.len() <= MAX_STEPS {
                at -= 1;
                if map.starts.get(at - range.start) {
                    boundaries.push(at);
                }
            }
            let first = boundaries.last().copied().unwrap_or(ip);
            let mut leaders = Bits::new(ip - first + 1);
            for at in first..=ip {
                if map.leaders.get(at - range.start) {
                    leaders.set(at - first);
                }
            }
            (boundaries, leaders, map.table)
        }
        // A part of the function is missing, and may branch to anywhere. Before code of a JIT compiler there may be
        // data: nothing shows where the function begins.
        _ if is_inside || window.jit => return nothing,
        _ => {
            let boundaries = I::boundaries(window.bytes, window.own_base(), ip);
            let first = boundaries.last().copied().unwrap_or(ip);
            let mut leaders = Bits::new(ip - first + 1);
            let around = first.saturating_sub(LEADER_SPAN)..ip.saturating_add(LEADER_SPAN).min(window.bytes.len());
            I::possible_targets(window.bytes, window.own_base(), around.clone(), |target| {
                if let Ok(target) = usize::try_from(target) {
                    if (first..=ip).contains(&target) {
                        leaders.set(target - first);
                    }
                }
            });
            (boundaries, leaders, has_table_jump::<I>(window.bytes, window.own_base(), around))
        }
    };
    walk(window, &boundaries, &leaders, table, decoder)
}

/// Walks back from boundary to boundary, for as long as control certainly came this way.
fn walk<I: Semantics>(
    window: &CodeWindow<'_>,
    boundaries: &[usize],
    leaders: &Bits,
    table: bool,
    decoder: &mut I::Decoder,
) -> Backward<I> {
    let first = boundaries.last().copied().unwrap_or_default();
    let mut insns = Vec::new();
    let mut cut = if boundaries.len() > MAX_STEPS { Cut::Full } else { Cut::Unsynchronised };
    let after = boundaries.first().and_then(|&ip| I::decode(window.bytes, window.own_base(), ip, decoder));
    let mut after = after.map(|insn| (insn.reads_flags, insn.landing));
    for pair in boundaries.windows(2) {
        let &[next, at] = pair else { break };
        // A branch may also lead into the middle of an instruction (after a lock prefix).
        let leader = (at + 1..=next).any(|byte| leaders.get(byte - first));
        // No jump table leads between a comparison and its branch.
        let anywhere = table && after.is_none_or(|(reads_flags, _)| !reads_flags);
        if leader || anywhere || after.is_some_and(|(_, landing)| landing) {
            cut = Cut::Leader;
            break;
        }
        // Padding that decodes as `add [rax],al`.
        let is_zero = window.bytes.get(at..next).is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0));
        let Some(insn) = I::decode(window.bytes, window.own_base(), at, decoder).filter(|_| !is_zero) else {
            cut = Cut::Unsynchronised;
            break;
        };
        if usize::from(insn.len) != next - at {
            cut = Cut::Unsynchronised;
            break;
        }
        match insn.flow {
            Flow::Next | Flow::Conditional => {}
            Flow::Jump | Flow::Return | Flow::ReturnAndPop | Flow::Stop | Flow::Away => {
                cut = Cut::Leader;
                break;
            }
            Flow::Call | Flow::Beyond => {
                cut = Cut::Call;
                break;
            }
        }
        after = Some((insn.reads_flags, insn.landing));
        insns.push(insn);
    }
    Backward { insns: insns.into(), cut }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
