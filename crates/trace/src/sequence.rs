//! The state of sequences of packets: tables of names that packets refer to, and where they begin anew.
//!
//! A table belongs to a sequence and a *generation*: each clearing of the incremental state begins a new one. All are kept,
//! because packets are decoded in order of time, and a name may come after the packets that use it (wprof writes its stacks
//! last).

use rustc_hash::FxHashMap;

use super::names::{Name, Names};
use super::stack_tables::StackTables;
use super::wire::{Fields, Value};

/// `SEQ_INCREMENTAL_STATE_CLEARED` and `SEQ_NEEDS_INCREMENTAL_STATE` of `TracePacket.sequence_flags`.
const CLEARED: u64 = 1;
const NEEDED: u64 = 2;
/// Entries of all tables, of about 24 bytes each.
const MAX_ENTRIES: usize = 2 << 20;
/// Extra counters of a generation.
const MAX_COUNTERS: usize = 64;
/// Generations of all sequences.
const MAX_GENERATIONS: usize = 1 << 18;

/// The part of a packet that says what it is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Head<'a> {
    pub(super) timestamp: Option<u64>,
    pub(super) clock: Option<u32>,
    pub(super) sequence: u32,
    flags: u64,
    pub(super) dropped: bool,
    /// The number of the field that has what the packet is about, and its bytes; 0 for none.
    pub(super) kind: u32,
    pub(super) payload: &'a [u8],
    pub(super) interned: Option<&'a [u8]>,
    defaults: Option<&'a [u8]>,
    /// The packet has bytes that are no field.
    /// The machine that it is of; 0 is the one that recorded.
    pub(super) machine: u64,
    /// Its sequence or its clock has a number that none has.
    pub(super) is_out_of_range: bool,
    pub(super) is_broken: bool,
    pub(super) has_sequence: bool,
}

impl<'a> Head<'a> {
    pub(super) fn parse(packet: &'a [u8]) -> Self {
        let mut head = Self::default();
        let mut fields = Fields::new(packet);
        for (number, value) in fields.by_ref() {
            match number {
                8 => head.timestamp = Some(value.uint()),
                10 => {
                    let sequence = u32::try_from(value.uint());
                    head.is_out_of_range |= sequence.is_err();
                    (head.sequence, head.has_sequence) = (sequence.unwrap_or(0), true);
                }
                12 => head.interned = Some(value.bytes()),
                13 => head.flags = value.uint(),
                41 if value.uint() != 0 => head.flags |= CLEARED,
                42 => head.dropped = value.uint() != 0,
                58 => {
                    head.clock = u32::try_from(value.uint()).ok();
                    head.is_out_of_range |= head.clock.is_none();
                }
                59 => head.defaults = Some(value.bytes()),
                // Ids of the writer, and marks of the service: uid, pid, trusted pid, machine.
                98 => head.machine = value.uint(),
                3 | 16 | 41 | 79 | 87 | 88 | 99 => {}
                number => {
                    if let Value::Bytes(payload) = value {
                        (head.kind, head.payload) = (number, payload);
                    } else if head.kind == 0 {
                        head.kind = number;
                    }
                }
            }
        }
        head.is_broken = fields.is_broken();
        head
    }

    fn clears(&self) -> bool {
        self.flags & CLEARED != 0
    }

    pub(super) fn needs_state(&self) -> bool {
        self.flags & NEEDED != 0
    }
}

/// The tables of [`InternedData`] that are read, by their field.
///
/// [`InternedData`]: https://perfetto.dev/docs/reference/trace-packet-proto#InternedData
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Interned {
    Category = 1,
    EventName = 2,
    ArgName = 3,
    Function = 5,
    MappingPath = 17,
    Text = 29,
}

impl Interned {
    fn of(field: u32) -> Option<Self> {
        match field {
            1 => Some(Self::Category),
            2 => Some(Self::EventName),
            3 => Some(Self::ArgName),
            5 => Some(Self::Function),
            17 => Some(Self::MappingPath),
            29 => Some(Self::Text),
            _ => None,
        }
    }
}

/// What the packets of a sequence refer to, until its state is cleared.
#[derive(Debug, Default)]
pub(super) struct Generation {
    /// Which one of all.
    pub(super) number: u32,
    names: FxHashMap<(Interned, u64), Name>,
    pub(super) stacks: StackTables,
    /// The clock and the track of packets that state none.
    pub(super) clock: Option<u32>,
    pub(super) track: Option<u64>,
    /// The tracks of extra counters, of integers and of doubles.
    pub(super) counters: Vec<u64>,
    pub(super) double_counters: Vec<u64>,
    /// The process and thread of events without a track (old Chrome).
    pub(super) thread: Option<(u32, u32)>,
}

impl Generation {
    /// [`Name::NONE`] for a number that the table does not have.
    pub(super) fn name(&self, table: Interned, iid: u64) -> Name {
        self.find(table, iid).unwrap_or_default()
    }

    /// `None` for a number that the table does not have.
    pub(super) fn find(&self, table: Interned, iid: u64) -> Option<Name> {
        self.names.get(&(table, iid)).copied()
    }
}

/// From a packet on, the state of its sequence.
#[derive(Debug, Clone, Copy)]
struct Span {
    /// The offset of the packet.
    from: u64,
    generation: u32,
    /// Packets were lost: what needs the state is not understood until it is cleared.
    is_lost: bool,
}

/// All sequences.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    spans: FxHashMap<u32, Vec<Span>>,
    generations: Vec<Generation>,
    entries: usize,
    /// Times at which packets of a sequence were lost after its first one.
    pub(super) losses: u64,
    /// Entries for which there was no room.
    pub(super) left_out: u64,
}

impl Sequences {
    /// Takes a packet of the file; they come in order.
    pub(super) fn take(&mut self, head: &Head<'_>, offset: u64, names: &mut Names) {
        let (is_first, is_lost) = match self.spans.get(&head.sequence).and_then(|spans| spans.last()) {
            Some(last) => (false, last.is_lost),
            None => (true, false),
        };
        self.losses += u64::from(head.dropped && !is_first);
        let loses = head.dropped && !head.clears() && !is_first;
        if (is_first || head.clears()) && self.generations.len() < MAX_GENERATIONS {
            let generation = self.generations.len() as u32;
            self.generations.push(Generation { number: generation, ..Generation::default() });
            self.spans.entry(head.sequence).or_default().push(Span { from: offset, generation, is_lost: loses });
        } else if loses != is_lost && loses {
            if let Some(spans) = self.spans.get_mut(&head.sequence) {
                let generation = spans.last().map_or(0, |span| span.generation);
                spans.push(Span { from: offset, generation, is_lost: true });
            }
        }
        let Some(span) = self.spans.get(&head.sequence).and_then(|spans| spans.last()) else { return };
        let Some(generation) = self.generations.get_mut(span.generation as usize) else { return };
        if let Some(defaults) = head.defaults {
            for (number, value) in Fields::new(defaults) {
                match number {
                    // One that no snapshot has is counted with the events.
                    58 => generation.clock = Some(u32::try_from(value.uint()).unwrap_or(u32::MAX)),
                    11 => {
                        for (number, uuid) in Fields::new(value.bytes()) {
                            match number {
                                11 => generation.track = Some(uuid.uint()),
                                31 | 45 if self.entries >= MAX_ENTRIES => self.left_out += 1,
                                31 if generation.counters.len() < MAX_COUNTERS => {
                                    generation.counters.push(uuid.uint());
                                    self.entries += 1;
                                }
                                45 if generation.double_counters.len() < MAX_COUNTERS => {
                                    generation.double_counters.push(uuid.uint());
                                    self.entries += 1;
                                }
                                _ => {}
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        for (number, entry) in Fields::new(head.interned.unwrap_or_default()) {
            let Some(table) = Interned::of(number) else {
                // At the bound a stack of any size is still taken: none is longer than 1,024 frames.
                match (self.entries >= MAX_ENTRIES, number) {
                    (true, 6 | 7 | 19) => self.left_out += 1,
                    (true, _) => {}
                    (false, _) => self.entries += generation.stacks.take(number, entry.bytes()).unwrap_or(0),
                }
                continue;
            };
            let (mut iid, mut text) = (0, &[][..]);
            for (number, value) in Fields::new(entry.bytes()) {
                match number {
                    1 => iid = value.uint(),
                    2 => text = value.bytes(),
                    _ => {}
                }
            }
            if self.entries >= MAX_ENTRIES {
                self.left_out += 1;
            } else if generation.names.insert((table, iid), names.add(text)).is_none() {
                self.entries += 1;
            }
        }
    }

    /// The tables for a packet of the sequence at `offset`, and whether they are complete.
    pub(super) fn at(&self, sequence: u32, offset: u64) -> Option<(&Generation, bool)> {
        let spans = self.spans.get(&sequence)?;
        let span = match spans.as_slice() {
            [only] => only,
            spans => spans.get(spans.partition_point(|span| span.from <= offset).checked_sub(1)?)?,
        };
        Some((self.generations.get(span.generation as usize)?, !span.is_lost))
    }

    /// The tables of a generation by its number.
    pub(super) fn generation(&self, number: u32) -> Option<&Generation> {
        self.generations.get(number as usize)
    }

    /// The tables of the sequence as of its last packet.
    pub(super) fn last(&mut self, sequence: u32) -> Option<&mut Generation> {
        let span = self.spans.get(&sequence)?.last()?;
        self.generations.get_mut(span.generation as usize)
    }

    /// The categories of all tables.
    pub(super) fn categories(&self) -> impl Iterator<Item = Name> + '_ {
        let names = self.generations.iter().flat_map(|generation| &generation.names);
        names.filter(|((table, _), _)| *table == Interned::Category).map(|(_, name)| *name)
    }

    /// The number of sequences.
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_belong_to_a_generation_and_losses_end_with_a_clearing() {
        let (mut sequences, mut names) = (Sequences::default(), Names::default());
        // InternedData{event_names{iid 1, name}}.
        let one = [0x12, 5, 8, 1, 0x12, 1, b'a'];
        let two = [0x12, 5, 8, 1, 0x12, 1, b'b'];
        let head = |flags, dropped, interned| Head { sequence: 7, flags, dropped, interned, ..Head::default() };
        for (at, packet) in [
            head(CLEARED, true, Some(&one[..])),
            head(NEEDED, false, None),
            head(CLEARED, false, None),
            head(NEEDED, false, Some(&two[..])),
            head(NEEDED, true, None),
            head(NEEDED, false, None),
            head(CLEARED | NEEDED, true, None),
        ]
        .iter()
        .enumerate()
        {
            sequences.take(packet, at as u64 * 10, &mut names);
        }
        let found = |offset| {
            let (generation, whole) = sequences.at(7, offset).unwrap();
            (names.text(generation.name(Interned::EventName, 1)), whole)
        };
        let expected =
            [(&b"a"[..], true), (b"a", true), (b"b", true), (b"b", true), (b"b", false), (b"b", false), (b"", true)];
        for (at, expected) in expected.into_iter().enumerate() {
            assert_eq!(found(at as u64 * 10 + 5), expected, "packet {at}");
        }
        assert_eq!(sequences.losses, 2);
        assert!(sequences.at(8, 0).is_none());
    }
}
