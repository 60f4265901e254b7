//! How numbers and strings are written in the sections after the data of a perf.data file (tools/perf/util/header.c).

/// The position of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// Bytes from the beginning of the file.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// perf pads its strings to a multiple of this (`NAME_ALIGN`).
const NAME_ALIGN: usize = 64;

/// Reads numbers and strings from a section.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a> {
    /// What is left of it.
    pub bytes: &'a [u8],
    /// It is in the other byte order.
    pub swapped: bool,
}

impl<'a> Cursor<'a> {
    /// A number of 4 bytes; `None` where the section ends before.
    pub fn u32(&mut self) -> Option<u32> {
        let (taken, rest) = self.bytes.split_first_chunk::<4>()?;
        self.bytes = rest;
        let value = u32::from_ne_bytes(*taken);
        Some(if self.swapped { value.swap_bytes() } else { value })
    }

    fn u64(&mut self) -> Option<u64> {
        let (taken, rest) = self.bytes.split_first_chunk::<8>()?;
        self.bytes = rest;
        let value = u64::from_ne_bytes(*taken);
        Some(if self.swapped { value.swap_bytes() } else { value })
    }

    /// Leaves out bytes.
    pub fn skip(&mut self, count: usize) -> Option<()> {
        self.bytes = self.bytes.get(count..)?;
        Some(())
    }

    /// A length, then this number of bytes with NULs at their end.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        let (taken, rest) = self.bytes.split_at_checked(len)?;
        self.bytes = rest;
        taken.split(|&byte| byte == 0).next()
    }
}

/// Passes the events of `HEADER_EVENT_DESC` to `event`: their names and ids, while they are complete.
pub fn event_desc(bytes: &[u8], swapped: bool, mut event: impl FnMut(&[u8], Ids<'_>)) {
    let mut cursor = Cursor { bytes, swapped };
    let (Some(count), Some(attr_size)) = (cursor.u32(), cursor.u32()) else { return };
    for _ in 0..count {
        let mut next = || {
            cursor.skip(attr_size as usize)?;
            let ids = cursor.u32()? as usize;
            let name = cursor.string()?;
            let len = ids.saturating_mul(8).min(cursor.bytes.len());
            let (ids, rest) = cursor.bytes.split_at_checked(len)?;
            cursor.bytes = rest;
            Some((name, Ids(Cursor { bytes: ids, swapped })))
        };
        let Some((name, ids)) = next() else { break };
        event(name, ids);
    }
}

/// The ids of an event.
#[derive(Debug)]
pub struct Ids<'a>(Cursor<'a>);

impl Iterator for Ids<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0.u64()
    }
}

/// Builds a section.
#[derive(Debug, Default)]
pub struct Builder(pub Vec<u8>);

impl Builder {
    /// Adds a number of 4 bytes.
    pub fn u32(&mut self, value: usize) -> &mut Self {
        self.0.extend_from_slice(&(value as u32).to_ne_bytes());
        self
    }

    /// Adds a number of 8 bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Adds a text, padded as perf pads it.
    pub fn string(&mut self, text: &[u8]) -> &mut Self {
        let padded = (text.len() + 1).next_multiple_of(NAME_ALIGN);
        self.u32(padded);
        self.0.extend_from_slice(text);
        self.0.resize(self.0.len() + padded - text.len(), 0);
        self
    }
}
