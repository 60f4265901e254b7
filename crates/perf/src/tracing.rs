//! The section that describes tracepoints (tools/perf/util/trace-event-info.c).

use rustc_hash::FxHashMap;

use super::tracepoint::{FormatError, SchedDecoder};

/// The beginning of a tracing file, then its version, the byte order and the size of a long.
pub const MAGIC: &[u8] = b"\x17\x08\x44tracing0.6\0";

/// Formats that are read of a section.
const MAX_FORMATS: u32 = 1 << 14;

/// Reads a section from its front. Numbers are in the byte order of the machine that wrote them.
struct Front<'a> {
    bytes: &'a [u8],
    is_big: bool,
}

impl<'a> Front<'a> {
    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(usize::try_from(count).ok()?)?;
        self.bytes = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        let bytes = self.take(4)?.try_into().ok()?;
        Some(if self.is_big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn file(&mut self) -> Option<&'a [u8]> {
        let bytes = self.take(8)?.try_into().ok()?;
        self.take(if self.is_big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
    }

    /// A string that ends with NUL.
    fn string(&mut self) -> Option<&'a [u8]> {
        let end = self.bytes.iter().position(|&byte| byte == 0)?;
        let text = self.take(end as u64)?;
        self.take(1)?;
        Some(text)
    }
}

/// The decoder of the scheduler's events that a section describes, and why others of them cannot be decoded. A section that
/// ends early describes those before its end. `swapped`: records are of the other byte order. `release`: the kernel's, or nothing.
pub(super) fn decoder(section: &[u8], swapped: bool, release: &str) -> (SchedDecoder, Vec<FormatError>) {
    let mut decoder = SchedDecoder::new(swapped).of_release(release);
    let mut wrong = Vec::new();
    let add = |name: &str, format: &[u8]| match decoder.add(name, &String::from_utf8_lossy(format)) {
        Ok(_) => {}
        Err(error) => wrong.push(error),
    };
    // What is cut off is missing.
    let _ = formats(section, add);
    decoder.prefer_waking();
    (decoder, wrong)
}

/// The tracepoints that a section describes: `system:name` by the id that is their events' config.
pub(super) fn names(section: &[u8]) -> FxHashMap<u64, String> {
    let mut names = FxHashMap::default();
    let add = |name: &str, format: &[u8]| {
        let id = format.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"ID: "));
        let id = id.and_then(|id| std::str::from_utf8(id.trim_ascii()).ok()?.parse().ok());
        if let Some(id) = id {
            names.insert(id, name.to_owned());
        }
    };
    // What is cut off is missing.
    let _ = formats(section, add);
    names
}

/// Calls `each` with `system:name` and the text of every format.
fn formats(section: &[u8], mut each: impl FnMut(&str, &[u8])) -> Option<()> {
    let mut front = Front { bytes: section.strip_prefix(MAGIC.get(..10)?)?, is_big: false };
    // The version.
    front.string()?;
    front.is_big = front.take(1)? != [0];
    // The size of a long, that of a page.
    front.take(1)?;
    front.u32()?;
    for _ in ["header_page", "header_event"] {
        front.string()?;
        front.file()?;
    }
    for _ in 0..front.u32()?.min(MAX_FORMATS) {
        front.file()?;
    }
    let mut left = MAX_FORMATS;
    for _ in 0..front.u32()?.min(MAX_FORMATS) {
        let system = String::from_utf8_lossy(front.string()?);
        for _ in 0..front.u32()? {
            left = left.checked_sub(1)?;
            let format = front.file()?;
            let name = format.split(|&byte| byte == b'\n').next().and_then(|line| line.strip_prefix(b"name: "));
            if let Some(name) = name {
                each(&format!("{system}:{}", String::from_utf8_lossy(name.trim_ascii())), format);
            }
        }
    }
    Some(())
}
