//! Names as numbers: each text is kept once.

use std::sync::Arc;

use rustc_hash::FxHashMap;

/// Bytes of a name that are kept.
const MAX_NAME: usize = 4 << 10;
/// Bytes of all names, each with 64 bytes for its entry.
const MAX_BYTES: usize = 64 << 20;
const ENTRY: usize = 64;

/// The number of a text in [`Names`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Name(u32);

impl Name {
    /// The empty text, which also stands for one that is not known.
    pub const NONE: Self = Self(0);

    /// The number itself.
    #[cfg(feature = "parquet")]
    pub(super) fn number(self) -> u32 {
        self.0
    }

    /// True for [`Name::NONE`].
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
}

/// Declares names that have fixed numbers.
macro_rules! known {
    ($($name:ident = $text:literal),+ $(,)?) => {
        known!(@ 1u32; $($name)+);
        const KNOWN: &[&str] = &[$($text),+];
    };
    (@ $number:expr; $name:ident $($rest:ident)*) => {
        pub(super) const $name: Name = Name($number);
        known!(@ $number + 1; $($rest)*);
    };
    (@ $number:expr;) => {};
}

known! {
    CPU = "cpu",
    // Categories of wprof.
    ONCPU = "ONCPU",
    WAKER = "WAKER",
    WAKEE = "WAKEE",
    WAKER_NEW = "WAKER_NEW",
    WAKEE_NEW = "WAKEE_NEW",
    HARDIRQ = "HARDIRQ",
    SOFTIRQ = "SOFTIRQ",
    WQ = "WQ",
    IPI = "IPI",
    IPI_SEND = "IPI_SEND",
    SCX_DSQ = "SCX_DSQ",
    FORKING = "FORKING",
    FORKED = "FORKED",
    EXEC = "EXEC",
    EXIT = "EXIT",
    FREE = "FREE",
    RENAME = "RENAME",
    // Their annotations.
    OFFCPU_REASON = "offcpu_reason",
    WAKING_REASON = "waking_reason",
    WAKING_DELAY_US = "waking_delay_us",
    COMPOUND_DELAY_US = "compound_delay_us",
    COMPOUND_CHAIN_LEN = "compound_chain_len",
    WAKEE_NAME = "wakee",
    WAKEE_TID = "wakee_tid",
    WAKEE_PID = "wakee_pid",
    IRQ = "irq",
    TARGET_CPU = "target_cpu",
    FORKED_INTO = "forked_into",
    FORKED_INTO_TID = "forked_into_tid",
    NEW_NAME = "new_name",
    DSQ_ID = "scx_dsq_id",
    LAYER_ID = "scx_layer_id",
    IPI_DELAY_US = "ipi_delay_us",
    NUMA_NODE = "numa_node",
    WAKER_CPU = "waker_cpu",
    WAKER_NUMA_NODE = "waker_numa_node",
    // Requests.
    REQUEST = "REQUEST",
    REQ_ID = "req_id",
    REQ_LATENCY_US = "req_latency_us",
}

/// The texts of a trace.
#[derive(Debug)]
pub struct Names {
    texts: Vec<Arc<[u8]>>,
    numbers: FxHashMap<Arc<[u8]>, Name>,
    bytes: usize,
    dropped: u64,
}

impl Default for Names {
    fn default() -> Self {
        let empty: Arc<[u8]> = Arc::from(&[][..]);
        let numbers = FxHashMap::from_iter([(empty.clone(), Name::NONE)]);
        let mut names = Self { texts: vec![empty], numbers, bytes: 0, dropped: 0 };
        for known in KNOWN {
            names.add(known.as_bytes());
        }
        names
    }
}

impl Names {
    /// The number of `text`; [`Name::NONE`] for a new one for which there is no room.
    pub(super) fn add(&mut self, text: &[u8]) -> Name {
        let text = text.get(..MAX_NAME).unwrap_or(text);
        if let Some(&name) = self.numbers.get(text) {
            return name;
        }
        let cost = text.len() + ENTRY;
        if self.bytes + cost > MAX_BYTES {
            self.dropped += 1;
            return Name::NONE;
        }
        self.bytes += cost;
        let name = Name(self.texts.len() as u32);
        let text: Arc<[u8]> = Arc::from(text);
        self.texts.push(text.clone());
        self.numbers.insert(text, name);
        name
    }

    /// The name that stands for the entry of a table which the trace does not have.
    pub(super) fn unknown(&mut self, iid: u64) -> Name {
        self.add(format!("<iid:{iid}>").as_bytes())
    }

    /// The text. It may hold any bytes.
    #[must_use]
    pub fn text(&self, name: Name) -> &[u8] {
        self.texts.get(name.0 as usize).map_or(&[], |text| text)
    }

    /// Texts for which there was no room.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_once_and_within_a_bound() {
        let mut names = Names::default();
        assert_eq!(names.text(ONCPU), b"ONCPU");
        assert_eq!(names.text(IPI_DELAY_US), b"ipi_delay_us");
        assert_eq!(names.add(b"cpu"), CPU);
        assert_eq!(names.add(b""), Name::NONE);
        let name = names.add(b"\xff");
        assert_eq!((names.add(b"\xff"), names.text(name)), (name, &b"\xff"[..]));
        let mut long = vec![b'x'; MAX_NAME + 1];
        for at in 0..=MAX_BYTES / MAX_NAME {
            long[..8].copy_from_slice(&at.to_le_bytes());
            names.add(&long);
        }
        assert!(names.dropped() > 0 && names.bytes <= MAX_BYTES);
        assert_eq!(names.add(b"cpu"), CPU);
    }
}
