//! Pages of a process's memory with code that the process can change: which bytes have stayed the same for long enough.

use std::io;

use super::mapped::PAGE;

/// Memory that the process can change (a JIT compiler's) is used after this many equal readings. Code that alternates with
/// other code passes with a probability of about 2^-11.
pub(super) const SETTLED: u32 = 12;
/// The same for memory that has changed before.
pub(super) const SETTLED_AGAIN: u32 = 200;
/// Readings count if they are this far apart, ns.
pub(super) const APART: u64 = 10_000_000;
/// Bytes of a piece of a page, which settles whatever changes around it. HotSpot allocates code in segments of 128 bytes
/// (`CodeCacheSegmentSize`), so a method that is added does not change a piece that contains another one.
pub(super) const PIECE: u64 = 128;
const PIECES: usize = (PAGE / PIECE) as usize;
/// The longest instruction, bytes.
const INSTRUCTION: u64 = 15;

/// A part of a page.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// When it was first read with these bytes, ns.
    since: u64,
    /// Readings that agreed, each [`APART`] from the one before.
    agreed: u32,
    /// Readings that must agree.
    needed: u32,
}

impl Piece {
    fn is_settled(&self) -> bool {
        self.agreed >= self.needed
    }
}

/// A page of a process's memory.
#[derive(Debug)]
pub(super) struct MemoryPage {
    /// When it was read last, ns.
    pub(super) read: u64,
    /// When a reading counted last, ns.
    counted: u64,
    bytes: Box<[u8]>,
    pieces: Box<[Piece; PIECES]>,
}

impl MemoryPage {
    /// Bytes of memory of a page.
    pub(super) const SIZE: usize = PAGE as usize + size_of::<[Piece; PIECES]>();

    /// A page with these bytes, which must be all of it.
    pub(super) fn new(bytes: Vec<u8>, now: u64) -> io::Result<Self> {
        if bytes.len() < PAGE as usize {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let piece = Piece { since: now, agreed: 1, needed: SETTLED };
        Ok(Self { read: now, counted: now, bytes: bytes.into_boxed_slice(), pieces: Box::new([piece; PIECES]) })
    }

    /// Compares an earlier reading with this one.
    pub(super) fn agreeing_with(self, earlier: Option<Self>) -> Self {
        let Some(Self { counted, bytes, mut pieces, .. }) = earlier else { return self };
        // A reading that does not count must not postpone the next one forever.
        let counts = self.read.saturating_sub(counted) >= APART;
        let pairs = bytes.chunks(PIECE as usize).zip(self.bytes.chunks(PIECE as usize));
        for (piece, (old, new)) in pieces.iter_mut().zip(pairs) {
            if old == new {
                piece.agreed = piece.agreed.saturating_add(u32::from(counts));
            } else {
                *piece = Piece { since: self.read, agreed: u32::from(counts), needed: SETTLED_AGAIN };
            }
        }
        Self { counted: if counts { self.read } else { counted }, pieces, ..self }
    }

    /// True if another reading may settle more of it.
    pub(super) fn is_due(&self, now: u64) -> bool {
        now.saturating_sub(self.counted) >= APART && !self.pieces.iter().all(Piece::is_settled)
    }

    /// True if some of it has not settled yet, and has never changed.
    pub(super) fn is_new(&self) -> bool {
        self.pieces.iter().any(|piece| !piece.is_settled() && piece.needed == SETTLED)
    }

    /// True if the piece at an offset in the page has settled, and has been the same since before `time`.
    fn is_settled_at(&self, offset: u64, time: u64) -> bool {
        let piece = self.pieces.get((offset / PIECE) as usize);
        piece.is_some_and(|piece| piece.is_settled() && piece.since <= time)
    }
}

/// The known bytes around an address, which grow upwards.
pub(super) struct Around {
    ip: u64,
    /// The address of the first of `bytes`.
    pub(super) begin: u64,
    pub(super) bytes: Vec<u8>,
    /// The first address above ip that is missing.
    end: Option<u64>,
    /// The first address from ip on with bytes that may have changed.
    unsettled: Option<u64>,
}

impl Around {
    pub(super) fn new(ip: u64, begin: u64, capacity: usize) -> Self {
        Self { ip, begin, bytes: Vec::with_capacity(capacity), end: None, unsettled: None }
    }

    /// Adds the bytes of `page` from `addr` to `end`: those that have been settled since before `time`, or all if that is `None`.
    pub(super) fn add(&mut self, page: &MemoryPage, mut addr: u64, end: u64, time: Option<u64>) {
        while addr < end {
            let next = (addr / PIECE + 1).saturating_mul(PIECE).min(end);
            if time.is_some_and(|time| !page.is_settled_at(addr % PAGE, time)) {
                if next > self.ip {
                    self.unsettled.get_or_insert(addr);
                }
                self.skip(addr, next);
            } else if self.end.is_none() {
                let from = (addr % PAGE) as usize;
                self.bytes.extend_from_slice(page.bytes.get(from..from + (next - addr) as usize).unwrap_or_default());
            }
            addr = next;
        }
    }

    /// The bytes from `addr` to `next` are missing.
    pub(super) fn skip(&mut self, addr: u64, next: u64) {
        if next <= self.ip {
            self.begin = next;
            self.bytes.clear();
        } else {
            self.end.get_or_insert(addr);
        }
    }

    /// True if the instruction at ip may have changed since it ran.
    pub(super) fn is_unsettled(&self) -> bool {
        self.unsettled.is_some_and(|addr| addr < self.ip.saturating_add(INSTRUCTION))
    }
}
