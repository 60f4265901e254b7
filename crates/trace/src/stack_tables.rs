//! The tables of call stacks and their frames that a generation of a sequence has (`InternedData`).

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::wire::{Fields, Packed, Value};

/// Frames of a stack that are kept: those of the innermost functions.
const MAX_DEPTH: usize = 1024;

/// A frame as it stands in a table.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Frame {
    pub(super) function: u64,
    pub(super) mapping: u64,
    pub(super) rel_pc: u64,
    pub(super) line: u32,
}

/// Adds a frame. If they are too many the outermost one goes, so that a stack of any size takes the memory of [`MAX_DEPTH`].
pub(super) fn push_innermost<T>(frames: &mut VecDeque<T>, frame: T) {
    if frames.len() >= MAX_DEPTH {
        frames.pop_front();
    }
    frames.push_back(frame);
}

/// The stacks and frames of a generation.
#[derive(Debug, Default)]
pub(super) struct StackTables {
    pub(super) stacks: FxHashMap<u64, Box<[u64]>>,
    pub(super) frames: FxHashMap<u64, Frame>,
    /// The last part of the path of each mapping.
    pub(super) mappings: FxHashMap<u64, u64>,
}

impl StackTables {
    /// Takes an entry of `InternedData`: of `frames` (6), `callstacks` (7) or `mappings` (19); the number of values that it keeps,
    /// `None` for another table.
    pub(super) fn take(&mut self, table: u32, entry: &[u8]) -> Option<usize> {
        let mut iid = 0;
        match table {
            6 => {
                let mut frame = Frame::default();
                for (number, value) in Fields::new(entry) {
                    match number {
                        1 => iid = value.uint(),
                        2 => frame.function = value.uint(),
                        3 => frame.mapping = value.uint(),
                        4 => frame.rel_pc = value.uint(),
                        6 => frame.line = u32::try_from(value.uint()).unwrap_or(0),
                        _ => {}
                    }
                }
                self.frames.insert(iid, frame);
                Some(1)
            }
            7 => {
                let mut frames = VecDeque::new();
                for (number, value) in Fields::new(entry) {
                    match (number, value) {
                        (1, _) => iid = value.uint(),
                        (2, Value::Varint(frame)) => push_innermost(&mut frames, frame),
                        (2, Value::Bytes(packed)) => {
                            Packed::new(packed).for_each(|frame| push_innermost(&mut frames, frame));
                        }
                        _ => {}
                    }
                }
                let count = 1 + frames.len();
                self.stacks.insert(iid, Vec::from(frames).into_boxed_slice());
                Some(count)
            }
            19 => {
                let mut path = 0;
                for (number, value) in Fields::new(entry) {
                    match (number, value) {
                        (1, _) => iid = value.uint(),
                        (7, Value::Varint(part)) => path = part,
                        (7, Value::Bytes(packed)) => path = Packed::new(packed).last().unwrap_or(path),
                        _ => {}
                    }
                }
                self.mappings.insert(iid, path);
                Some(1)
            }
            _ => None,
        }
    }
}
