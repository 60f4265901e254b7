//! Call stacks that events refer to: `InternedData.callstacks` and `frames`, or a `Callstack` within the event.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::names::{Name, Names};
use super::sequence::{Generation, Interned, Sequences};
use super::stack_tables::push_innermost;
use super::wire::Fields;

/// The number of a stack in a trace; [`Trace::stack`](super::Trace::stack) has its frames.
pub type StackId = u32;

/// Stacks that events name, of about 24 bytes each.
const MAX_STACKS: usize = 1 << 20;
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

impl Generation {
    /// The frames of a stack, root first.
    fn stack(&self, iid: u64) -> Vec<StackFrame> {
        let tables = &self.stacks;
        let frame = |iid: &u64| {
            let frame = tables.frames.get(iid)?;
            let path = tables.mappings.get(&frame.mapping).copied().unwrap_or(0);
            Some(StackFrame {
                function: self.name(Interned::Function, frame.function),
                module: self.name(Interned::MappingPath, path),
                rel_pc: frame.rel_pc,
                line: frame.line,
            })
        };
        // A frame that is not there has no name, but is one.
        tables.stacks.get(&iid).into_iter().flatten().map(|iid| frame(iid).unwrap_or_default()).collect()
    }
}
