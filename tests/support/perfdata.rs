//! Reads the records of a perf.data file: enough of the format to feed a decoder with real recordings.

use scxprof::testing::sampler::record::{Header, Layout};

use super::fixtures::fixtures;

/// An attr with the ids of its events.
pub struct Attr {
    pub config: u64,
    pub config1: u64,
    pub layout: Layout,
    pub ids: Vec<u64>,
}

/// A file in the byte order of this machine.
pub struct PerfData {
    pub attrs: Vec<Attr>,
    bytes: Vec<u8>,
    data: std::ops::Range<usize>,
}

/// Reads a recording; `None`, with the skip printed, if it is absent.
pub fn recording(test: &str, name: &str) -> Option<PerfData> {
    let path = fixtures(test)?.join(name);
    match std::fs::read(&path) {
        Ok(bytes) => Some(PerfData::new(bytes)),
        Err(error) => {
            println!("SKIP: {test}: {}: {error}", path.display());
            None
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl PerfData {
    fn new(bytes: Vec<u8>) -> Self {
        assert_eq!(&bytes[..8], b"PERFILE2");
        let [attr_size, attrs, attrs_size, data, data_size] = [16, 24, 32, 40, 48].map(|at| word(&bytes, at) as usize);
        let attr = |at: usize| {
            let attr = &bytes[at..at + attr_size];
            let (ids, ids_size) = (word(attr, attr_size - 16) as usize, word(attr, attr_size - 8) as usize);
            Attr {
                config: word(attr, 8),
                config1: word(attr, 56),
                layout: Layout {
                    sample_type: word(attr, 24),
                    read_format: word(attr, 32),
                    sample_id_all: word(attr, 40) >> 18 & 1 != 0,
                    ..Layout::default()
                },
                ids: (ids..ids + ids_size).step_by(8).map(|at| word(&bytes, at)).collect(),
            }
        };
        let attrs = (attrs..attrs + attrs_size).step_by(attr_size).map(attr).collect();
        Self { attrs, bytes, data: data..data + data_size }
    }

    /// The kernel's records in the order of the file; perf's own, from type 64 on, are left out.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[self.data.clone()];
        std::iter::from_fn(move || {
            let header = Header::read(rest)?;
            let (record, after) = rest.split_at(usize::from(header.size));
            rest = after;
            Some((header, record))
        })
        .filter(|(header, _)| header.kind < 64)
        .map(|(_, record)| record)
    }
}
