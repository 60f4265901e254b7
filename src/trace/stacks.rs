//! Call stacks that events refer to: `InternedData.callstacks` and `frames`, or a `Callstack` within the event.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::names::{Name, Names};
use super::sequence::{Generation, Sequences, Table};
use super::wire::{Fields, Packed, Value};

/// The number of a stack in a trace; [`Trace::stack`](super::Trace::stack) has its frames.
pub type StackId = u32;

/// Stacks that events name, of about 24 bytes each.
const MAX_STACKS: usize = 1 << 20;
/// Frames of a stack that are kept: those of the innermost functions.
const MAX_DEPTH: usize = 1024;
/// Frames of all stacks that are within events.
const MAX_INLINE: usize = 1 << 20;

/// A frame of a call stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StackFrame {
    /// The function; [`Name::NONE`] if the trace does not say it.
    pub function: Name,
    /// The path of its file; [`Name::NONE`] if the trace does not say it.
    pub module: Name,
    /// Its address in the file.
    pub rel_pc: u64,
    /// The line of its source, 0 if unknown.
    pub line: u32,
}

/// A frame as it stands in a table.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Frame {
    function: u64,
    mapping: u64,
    rel_pc: u64,
    line: u32,
}

/// The stacks that events name. What they refer to may come after them, so it is looked up at the end.
#[derive(Debug, Default)]
pub struct Stacks {
    list: Vec<Known>,
    numbers: FxHashMap<(u32, u64), StackId>,
    of_inline: FxHashMap<Box<[StackFrame]>, StackId>,
    inline_frames: usize,
    left_out: u64,
}

#[derive(Debug)]
enum Known {
    /// By the generation of a sequence and the number in its table.
    Interned(u32, u64),
    /// Root first.
    Inline(Box<[StackFrame]>),
}

/// Adds a frame. If they are too many the outermost one goes, so that a stack of any size takes the memory of [`MAX_DEPTH`].
fn push_innermost<T>(frames: &mut VecDeque<T>, frame: T) {
    if frames.len() >= MAX_DEPTH {
        frames.pop_front();
    }
    frames.push_back(frame);
}

impl Stacks {
    /// The number of a stack of the tables of a generation; `None` if there is no room.
    pub(super) fn interned(&mut self, generation: u32, iid: u64) -> Option<StackId> {
        if let Some(&stack) = self.numbers.get(&(generation, iid)) {
            return Some(stack);
        }
        let stack = self.push(Known::Interned(generation, iid))?;
        self.numbers.insert((generation, iid), stack);
        Some(stack)
    }

    /// `TrackEvent.Callstack`: 1 of frames {1 function_name, 2 source_file, 3 line_number}.
    pub(super) fn inline(&mut self, callstack: &[u8], names: &mut Names) -> Option<StackId> {
        let mut frames = VecDeque::new();
        for (_, frame) in Fields::new(callstack).filter(|(number, _)| *number == 1) {
            let mut read = StackFrame::default();
            for (number, value) in Fields::new(frame.bytes()) {
                match number {
                    1 => read.function = names.add(value.bytes()),
                    2 => read.module = names.add(value.bytes()),
                    3 => read.line = u32::try_from(value.uint()).unwrap_or(0),
                    _ => {}
                }
            }
            push_innermost(&mut frames, read);
        }
        let frames = Vec::from(frames).into_boxed_slice();
        if let Some(&stack) = self.of_inline.get(&frames) {
            return Some(stack);
        }
        if self.inline_frames + frames.len() > MAX_INLINE {
            self.left_out += 1;
            return None;
        }
        let stack = self.push(Known::Inline(frames.clone()))?;
        self.inline_frames += frames.len();
        self.of_inline.insert(frames, stack);
        Some(stack)
    }

    fn push(&mut self, known: Known) -> Option<StackId> {
        if self.list.len() >= MAX_STACKS {
            self.left_out += 1;
            return None;
        }
        self.list.push(known);
        Some(self.list.len() as StackId - 1)
    }

    /// The frames of a stack, root first; none if the trace does not have them.
    pub(super) fn frames(&self, stack: StackId, sequences: &Sequences) -> Vec<StackFrame> {
        match self.list.get(stack as usize) {
            None => Vec::new(),
            Some(Known::Inline(frames)) => frames.to_vec(),
            Some(&Known::Interned(generation, iid)) => {
                sequences.generation(generation).map_or_else(Vec::new, |tables| tables.stack(iid))
            }
        }
    }

    /// The number of stacks that events name.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Stacks for which there was no room.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }
}

/// The stacks and frames of a generation.
#[derive(Debug, Default)]
pub(super) struct StackTables {
    stacks: FxHashMap<u64, Box<[u64]>>,
    frames: FxHashMap<u64, Frame>,
    /// The last part of the path of each mapping.
    mappings: FxHashMap<u64, u64>,
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

impl Generation {
    /// The frames of a stack, root first.
    fn stack(&self, iid: u64) -> Vec<StackFrame> {
        let tables = &self.stacks;
        let frame = |iid: &u64| {
            let frame = tables.frames.get(iid)?;
            let path = tables.mappings.get(&frame.mapping).copied().unwrap_or(0);
            Some(StackFrame {
                function: self.name(Table::Function, frame.function),
                module: self.name(Table::MappingPath, path),
                rel_pc: frame.rel_pc,
                line: frame.line,
            })
        };
        // A frame that is not there has no name, but is one.
        tables.stacks.get(&iid).into_iter().flatten().map(|iid| frame(iid).unwrap_or_default()).collect()
    }
}
