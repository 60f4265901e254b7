//! Decodes track events (protos/perfetto/trace/track_event/track_event.proto).

use super::event::{Arg, Args, Edge, TrackId};
use super::names::{Name, Names};
use super::sequence::{Generation, Interned};
use super::stacks::{StackId, Stacks};
use super::wire::{Fields, Packed, Value};

/// Annotations of an event that are kept.
const MAX_ARGS: usize = 64;
/// Annotations within annotations that are followed.
const MAX_NESTED: usize = 8;
/// Entries of dictionaries and arrays of an event that are looked at: a name is made for each.
const MAX_ENTRIES: usize = 4 * MAX_ARGS;
/// Bytes of a name with which the names of its entries begin.
const MAX_OUTER: usize = 128;

/// What a track event is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum TrackEventKind {
    Slice(Edge),
    /// A slice that begins here, with its duration in ns (`X` of Chrome).
    Complete(u64),
    /// With its value.
    Counter(f64),
    /// A type that is not known, such as a state.
    Other,
}

/// An event of a track.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TrackEvent {
    pub(super) track: TrackId,
    pub(super) kind: TrackEventKind,
    pub(super) category: Name,
    pub(super) name: Name,
    pub(super) flow: Option<u64>,
    pub(super) args: Args,
    pub(super) stack: Option<StackId>,
    /// That of its sequence: sums of counters begin anew with each.
    pub(super) generation: u32,
}

impl TrackEvent {
    /// A value of a counter.
    pub(super) fn counter(track: TrackId, value: f64, generation: u32) -> Self {
        let (category, name) = (Name::NONE, Name::NONE);
        Self {
            track,
            kind: TrackEventKind::Counter(value),
            category,
            name,
            flow: None,
            args: Args::default(),
            stack: None,
            generation,
        }
    }
}

/// The parts of a track event, before its names are looked up.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Parts {
    /// `TYPE_SLICE_BEGIN` 1, `_END` 2, `_INSTANT` 3, `_COUNTER` 4, `_STATE` 5; 0 if only `legacy_event` says it.
    kind: u64,
    pub(super) track: Option<u64>,
    /// The id of an asynchronous slice of Chrome, which has a track of its own.
    pub(super) legacy_id: Option<u64>,
    /// `timestamp_absolute_us`, where the packet has no time.
    pub(super) absolute_us: Option<u64>,
    /// It has values of extra counters.
    pub(super) has_counters: bool,
    pub(super) is_broken: bool,
}

impl Parts {
    pub(super) fn parse(event: &[u8]) -> Self {
        let mut parts = Self::default();
        let mut fields = Fields::new(event);
        for (number, value) in fields.by_ref() {
            match number {
                9 => parts.kind = value.uint(),
                11 => parts.track = Some(value.uint()),
                12 | 46 => parts.has_counters = true,
                16 => parts.absolute_us = Some(value.uint()),
                6 => {
                    let mut fields = Fields::new(value.bytes());
                    let id = fields.find(|(number, _)| matches!(number, 6 | 10 | 11));
                    parts.legacy_id = id.map(|(_, id)| id.uint());
                }
                _ => {}
            }
        }
        parts.is_broken = fields.is_broken();
        parts
    }
}

/// Finds the name of an entry of a table by its number.
trait Look: Fn(Interned, u64, &mut Names) -> Name {}

impl<F: Fn(Interned, u64, &mut Names) -> Name> Look for F {}

/// Decodes the event.
pub(super) fn decode(
    event: &[u8],
    parts: &Parts,
    track: TrackId,
    tables: Option<&Generation>,
    names: &mut Names,
    stacks: &mut Stacks,
) -> TrackEvent {
    // 0 is no entry; of another one that the tables lack the number is all that is known.
    let look = |table, iid, names: &mut Names| match tables.and_then(|tables| tables.find(table, iid)) {
        Some(name) => name,
        None if iid == 0 => Name::NONE,
        None => names.unknown(iid),
    };
    let (mut category, mut name, mut flow, mut value) = (Name::NONE, Name::NONE, None, 0.0);
    let (mut legacy, mut stack) = (None, None);
    let (mut args, mut entries) = (Vec::new(), MAX_ENTRIES);
    for (number, field) in Fields::new(event) {
        match (number, field) {
            (3, Value::Varint(iid)) if category.is_none() => category = look(Interned::Category, iid, names),
            (3, Value::Bytes(packed)) if category.is_none() => {
                category = Packed::new(packed).next().map_or(Name::NONE, |iid| look(Interned::Category, iid, names));
            }
            (22, Value::Bytes(text)) if category.is_none() => category = names.add(text),
            (10, _) => name = look(Interned::EventName, field.uint(), names),
            (23, Value::Bytes(text)) => name = names.add(text),
            (47, Value::Fixed64(id)) => flow = flow.or(Some(id)),
            (47, Value::Bytes(packed)) => {
                flow = flow.or(packed.first_chunk().map(|id| u64::from_le_bytes(*id)));
            }
            (30, Value::Varint(count)) => value = count as i64 as f64,
            (44, Value::Fixed64(_)) => value = field.float(),
            (6, Value::Bytes(event)) => legacy = Some(event),
            (55, Value::Bytes(callstack)) => stack = stacks.inline(callstack, names),
            (56, Value::Varint(iid)) if iid != 0 => {
                stack = tables.and_then(|tables| stacks.interned(tables.number, iid));
            }
            (4, Value::Bytes(annotation)) if args.len() < MAX_ARGS => {
                arg(annotation, &mut entries, &look, names, &mut args);
            }
            _ => {}
        }
    }
    let kind = match parts.kind {
        1 => TrackEventKind::Slice(Edge::Begin),
        2 => TrackEventKind::Slice(Edge::End),
        3 => TrackEventKind::Slice(Edge::Instant),
        4 => TrackEventKind::Counter(value),
        0 => legacy.map_or(TrackEventKind::Other, |legacy| phase(legacy, &mut name, &look, names)),
        _ => TrackEventKind::Other,
    };
    let generation = tables.map_or(0, |tables| tables.number);
    TrackEvent { track, kind, category, name, flow, args: Args(args.into_boxed_slice()), stack, generation }
}

/// The values of a field; each is alone or in a packed array.
fn values<'a, T: 'a, P: Iterator<Item = T> + 'a>(
    event: &'a [u8],
    field: u32,
    one: impl Fn(Value<'a>) -> Option<T> + 'a,
    packed: impl Fn(&'a [u8]) -> P + 'a,
) -> impl Iterator<Item = T> + 'a {
    let all = Fields::new(event).filter(move |(number, _)| *number == field);
    all.flat_map(move |(_, value)| one(value).into_iter().chain(packed(value.bytes())))
}

fn integers(event: &[u8], field: u32) -> impl Iterator<Item = u64> + '_ {
    let one = |value| if let Value::Varint(value) = value { Some(value) } else { None };
    values(event, field, one, Packed::new)
}

fn doubles(event: &[u8], field: u32) -> impl Iterator<Item = f64> + '_ {
    let one = |value: Value<'_>| matches!(value, Value::Fixed64(_)).then(|| value.float());
    values(event, field, one, |packed| packed.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)))
}

/// Gives the values of extra counters, with the uuids of their tracks: integers (12, tracks 31) and doubles (46, tracks 45), until
/// `out` takes no more. None are kept here, as an event may have any number of them.
pub(super) fn extra_counters(event: &[u8], tables: Option<&Generation>, mut out: impl FnMut(u64, f64) -> bool) {
    let defaults = tables.map_or(&[][..], |tables| &tables.counters);
    let values = integers(event, 12).map(|value| value as i64 as f64);
    if with_tracks(event, 31, defaults, values, &mut out) {
        let defaults = tables.map_or(&[][..], |tables| &tables.double_counters);
        with_tracks(event, 45, defaults, doubles(event, 46), &mut out);
    }
}

/// False if `out` took no more.
fn with_tracks(
    event: &[u8],
    field: u32,
    defaults: &[u64],
    values: impl Iterator<Item = f64>,
    out: &mut impl FnMut(u64, f64) -> bool,
) -> bool {
    let mut own = integers(event, field).peekable();
    let defaults = if own.peek().is_some() { &[] } else { defaults };
    own.chain(defaults.iter().copied()).zip(values).all(|(uuid, value)| out(uuid, value))
}

/// `LegacyEvent`: 1 name, 2 the phase of Chrome's JSON, 3 duration in microseconds.
fn phase(legacy: &[u8], name: &mut Name, look: &impl Look, names: &mut Names) -> TrackEventKind {
    let (mut phase, mut us) = (0, 0);
    for (number, value) in Fields::new(legacy) {
        match number {
            1 if name.is_none() => *name = look(Interned::EventName, value.uint(), names),
            2 => phase = value.uint(),
            3 => us = value.uint(),
            _ => {}
        }
    }
    match u8::try_from(phase) {
        Ok(b'X') => TrackEventKind::Complete(us.saturating_mul(1000)),
        Ok(b'B' | b'b') => TrackEventKind::Slice(Edge::Begin),
        Ok(b'E' | b'e') => TrackEventKind::Slice(Edge::End),
        Ok(b'i' | b'I' | b'R' | b'n') => TrackEventKind::Slice(Edge::Instant),
        _ => TrackEventKind::Other,
    }
}

/// `DebugAnnotation`. Values of a dictionary have names such as `request.size`, those of an array `sizes[0]`.
fn arg(annotation: &[u8], entries: &mut usize, look: &impl Look, names: &mut Names, out: &mut Vec<(Name, Arg)>) {
    let name = arg_name(annotation, look, names);
    nested(annotation, name, (0, entries), look, names, out);
}

fn arg_name(annotation: &[u8], look: &impl Look, names: &mut Names) -> Name {
    let mut name = Name::NONE;
    for (number, value) in Fields::new(annotation) {
        match number {
            1 => name = look(Interned::ArgName, value.uint(), names),
            10 => name = names.add(value.bytes()),
            _ => {}
        }
    }
    name
}

fn nested(
    annotation: &[u8],
    name: Name,
    (depth, entries): (usize, &mut usize),
    look: &impl Look,
    names: &mut Names,
    out: &mut Vec<(Name, Arg)>,
) {
    if depth >= MAX_NESTED || out.len() >= MAX_ARGS {
        return;
    }
    let mut at = 0;
    for (number, value) in Fields::new(annotation) {
        let arg = match number {
            2 | 3 | 7 => Arg::Uint(value.uint()),
            4 => Arg::Int(value.uint() as i64),
            5 => Arg::Double(value.float()),
            6 => Arg::Text(names.add(value.bytes())),
            17 => Arg::Text(look(Interned::Text, value.uint(), names)),
            11 | 12 => {
                let Some(left) = entries.checked_sub(1) else { return };
                *entries = left;
                let outer = names.text(name);
                let mut whole = outer.get(..MAX_OUTER).unwrap_or(outer).to_vec();
                if number == 11 {
                    let entry = arg_name(value.bytes(), look, names);
                    whole.extend(b".");
                    whole.extend(names.text(entry));
                } else {
                    whole.extend(format!("[{at}]").bytes());
                    at += 1;
                }
                let whole = names.add(&whole);
                nested(value.bytes(), whole, (depth + 1, entries), look, names, out);
                continue;
            }
            _ => continue,
        };
        if out.len() < MAX_ARGS {
            out.push((name, arg));
        }
        return;
    }
}
