//! The table of slices: those of tracks, which nest, and typed events that begin and end.

use std::io::Write;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use super::schema::ParquetTable;
use super::write::{Cell, Out};
use crate::raw::MAX_CPUS;

/// Slices that are open on a track; the oldest one will hardly end any more.
const MAX_OPEN: usize = 64;
/// Tracks with open slices, and open slices without a track.
const MAX_TRACKS: usize = 1 << 19;

/// Tracks of the interrupts of CPUs are numbered from here on, beyond those of a trace.
const INTERRUPTS: i64 = 1 << 32;

/// Where a slice is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// On a track of the trace.
    Track(u32),
    /// Interrupts, softirqs and interrupts between CPUs, of a CPU.
    Interrupts(u32),
    /// Something that overlaps with others of its kind: a request by device and sector, a wait by thread.
    Loose(Loose, u64, u64),
}

/// What has no track of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Loose {
    Block,
    Reclaim,
    Sync,
    Suspend,
    Work,
    Dsq,
}

/// What is known of a slice, or an instant, at one of its ends. Empty texts are not known.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) category: String,
    pub(super) name: String,
    pub(super) track: String,
    pub(super) cpu: u32,
    pub(super) tid: u32,
    pub(super) pid: u32,
    pub(super) args: Map<String, Value>,
}

/// A slice that has begun.
#[derive(Debug)]
struct Open {
    id: i64,
    from: u64,
    parent: Option<i64>,
    depth: usize,
    said: Said,
}

/// The slices that have begun and not ended.
#[derive(Debug, Default)]
pub(super) struct Slices {
    open: FxHashMap<Place, Vec<Open>>,
    next: i64,
    /// Those for which there was no room.
    pub(super) left_out: u64,
}

fn json(args: &Map<String, Value>) -> String {
    if args.is_empty() {
        return String::new();
    }
    serde_json::to_string(args).unwrap_or_default()
}

impl Open {
    fn write<W: Write + Send>(self, until: Option<u64>, place: Place, out: &mut Out<W>) {
        let Self { id, from, parent, depth, said } = self;
        let track = match place {
            Place::Track(track) => Cell::Int(track.into()),
            Place::Interrupts(cpu) => Cell::Int(INTERRUPTS + i64::from(cpu)),
            Place::Loose(..) => Cell::Null,
        };
        let args = json(&said.args);
        let row = [
            Cell::Int(id),
            Cell::uint(from),
            Cell::or_null(until.map(|until| Cell::uint(until.saturating_sub(from)))),
            track,
            Cell::text(&said.track),
            Cell::or_null(parent.map(Cell::Int)),
            Cell::uint(depth as u64),
            Cell::text(&said.category),
            Cell::text(&said.name),
            Cell::id(said.cpu),
            Cell::id(said.tid),
            Cell::id(said.pid),
            Cell::text(&args),
        ];
        out.row(ParquetTable::Slice, &row);
    }
}

impl Slices {
    fn id(&mut self) -> i64 {
        self.next += 1;
        self.next
    }

    /// Something without a duration, below the slice that is open.
    pub(super) fn instant<W: Write + Send>(&mut self, time: u64, place: Place, said: Said, out: &mut Out<W>) {
        let (parent, depth) = self.above(place);
        let id = self.id();
        Open { id, from: time, parent, depth, said }.write(Some(time), place, out);
    }

    /// The slice that is open at a place, and how many there are.
    fn above(&self, place: Place) -> (Option<i64>, usize) {
        self.open.get(&place).map_or((None, 0), |stack| (stack.last().map(|open| open.id), stack.len()))
    }

    pub(super) fn begin<W: Write + Send>(&mut self, time: u64, place: Place, said: Said, out: &mut Out<W>) {
        if matches!(place, Place::Interrupts(cpu) if cpu >= MAX_CPUS)
            || self.open.len() >= MAX_TRACKS && !self.open.contains_key(&place)
        {
            self.left_out += 1;
            return;
        }
        if matches!(place, Place::Loose(..)) {
            // The same began again: its end was not seen.
            self.drop_all(place, out);
        }
        let (parent, depth) = self.above(place);
        let id = self.id();
        let stack = self.open.entry(place).or_default();
        if stack.len() >= MAX_OPEN {
            stack.remove(0).write(None, place, out);
        }
        stack.push(Open { id, from: time, parent, depth, said });
    }

    /// Ends the innermost slice for which `is_its` is true, and adds what is said at the end. Those that an `Interrupts` track has
    /// within it cannot go on.
    pub(super) fn end<W: Write + Send>(
        &mut self,
        time: u64,
        place: Place,
        is_its: &dyn Fn(&Said) -> bool,
        args: Map<String, Value>,
        out: &mut Out<W>,
    ) {
        let Some(stack) = self.open.get_mut(&place) else { return };
        let Some(at) = stack.iter().rposition(|open| is_its(&open.said)) else { return };
        if matches!(place, Place::Interrupts(_)) {
            for inner in stack.drain(at + 1..) {
                inner.write(None, place, out);
            }
        }
        let mut open = stack.remove(at);
        open.said.args.extend(args);
        if stack.is_empty() {
            self.open.remove(&place);
        }
        open.write(Some(time), place, out);
    }

    /// Writes what is open at a place; it does not end.
    fn drop_all<W: Write + Send>(&mut self, place: Place, out: &mut Out<W>) {
        for open in self.open.remove(&place).unwrap_or_default() {
            open.write(None, place, out);
        }
    }

    /// Events of the CPU were lost: what ends from now on may be another one.
    pub(super) fn lost<W: Write + Send>(&mut self, cpu: u32, out: &mut Out<W>) {
        self.drop_where(|place| *place == Place::Interrupts(cpu) || matches!(place, Place::Loose(..)), out);
    }

    fn drop_where<W: Write + Send>(&mut self, is_one: impl Fn(&Place) -> bool, out: &mut Out<W>) {
        let mut places: Vec<(i64, Place)> = Vec::new();
        for (place, stack) in self.open.iter().filter(|(place, _)| is_one(place)) {
            places.push((stack.first().map_or(0, |open| open.id), *place));
        }
        places.sort_unstable_by_key(|(id, _)| *id);
        for (_, place) in places {
            self.drop_all(place, out);
        }
    }

    /// Writes what has not ended.
    pub(super) fn finish<W: Write + Send>(&mut self, out: &mut Out<W>) {
        self.drop_where(|_| true, out);
    }
}
