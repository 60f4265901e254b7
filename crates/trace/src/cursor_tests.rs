use proptest::prelude::*;

use super::*;
use crate::ftrace::{Facts, Placed};
use crate::names::Names;
use crate::tally::Counts;
use crate::write::Message;
use scxprof_base::sample::sched::SchedWhat;

#[test]
fn a_late_event_does_not_keep_the_memory_of_its_chunk() {
    let event = |time| {
        let lost = Raw::Sched { cpu: 0, tid: 0, what: SchedWhat::Lost };
        Decoded { time, offset: 0, raw: lost }
    };
    let events: Vec<_> = (0..1000).map(event).collect();
    let mut cursor = Cursor::new(Events::Decoded(events.into_iter()));
    let before = cursor.bytes;
    for time in 0..1000 {
        let Events::Decoded(events) = &mut cursor.events else { panic!("{cursor:?}") };
        assert_eq!(events.next().map(|event| event.time), Some(time));
        cursor.shrink();
        let left = cursor.events.len() * size_of::<Decoded>();
        assert!(cursor.bytes <= before && cursor.bytes < 4 * left + before / 10, "{time}: {}", cursor.bytes);
    }
}

/// An event: its time, thread, field, two of its numbers, and how it is written.
type Written = (u64, u64, u32, [u64; 2], u8);

fn event((time, tid, field, [first, second], way): &Written) -> Vec<u8> {
    let mut inner = Message::new().bytes(1, b"a name").int(2, *first);
    if *way < 5 {
        inner = inner.bytes(3, b"another");
    } else {
        // As perfetto writes it.
        inner = inner.int(3, 120);
        if *field == 4 || *way == 6 {
            inner = inner.int(4, *second);
        }
        if *field == 4 {
            inner = inner.bytes(5, b"the next").int(6, *second).int(7, 120);
        }
    }
    if *field != 4 || *way < 5 {
        inner = inner.int(5, *second);
    }
    let mut event = Message::new();
    if way & 1 == 0 {
        event = event.int(1, *time);
    }
    event = event.int(2, *tid);
    if way & 2 != 0 {
        event = event.int(5, 0x10);
    }
    event = event.message(*field, &inner);
    if way & 4 != 0 {
        event = event.int(1, *time);
    }
    let mut event = event.as_bytes().to_vec();
    if *way == 9 {
        event.push(0);
    }
    event
}

fn a_bundle(events: &[Written]) -> Vec<u8> {
    let bundle = events.iter().fold(Message::new().int(1, 3), |bundle, written| bundle.bytes(2, &event(written)));
    bundle.as_bytes().to_vec()
}

/// What is taken of a bundle whose events are decoded when their time comes.
fn taken(bytes: &[u8], decoder: &mut Decoder<'_>) -> Option<Vec<(u64, Raw)>> {
    let Placed::Done(placing) = decoder.places(bytes, MAX_PENDING) else { return None };
    let (mut waiting, mut all) = (Waiting::default(), Vec::new());
    waiting.push_bundle(Bundled::of(placing, 7), &mut waiting.batch());
    let before = waiting.pending;
    while let Some(time) = waiting.first() {
        let raw = waiting.take(decoder, |cpu, tid, typed| all.push((time, Raw::of(cpu, tid, typed))));
        all.extend(raw.map(|raw| (time, raw)));
        assert!(waiting.pending <= before);
    }
    assert_eq!(waiting.pending, 0);
    Some(all)
}

fn written() -> impl Strategy<Value = Written> {
    let field = prop_oneof![
        Just(4u32),
        Just(20),
        Just(17),
        Just(361),
        Just(22),
        Just(45),
        Just(13),
        Just(3),
        Just(1),
        Just(327),
        3u32..500,
        Just(70_000),
    ];
    let number = prop_oneof![3 => 0u64..70_000, 1 => any::<u64>()];
    (0u64..1000, number.clone(), field, [number.clone(), number], 0u8..10)
}

proptest! {
    #[test]
    fn events_are_those_of_the_bundle_decoded_at_once(events in prop::collection::vec(written(), 40..200)) {
        let bytes = a_bundle(&events);
        let (facts, mut names, mut counts) = (Facts::default(), Names::default(), Counts::default());
        let mut expected = Vec::new();
        Decoder { facts: &facts, names: &mut names, counts: &mut counts }.bundle(&bytes, |time, raw| {
            expected.push((time, raw));
            true
        });
        expected.sort_by_key(|(time, _)| *time);
        let (mut names_then, mut counts_then) = (Names::default(), Counts::default());
        let mut decoder = Decoder { facts: &facts, names: &mut names_then, counts: &mut counts_then };
        prop_assert_eq!(taken(&bytes, &mut decoder), Some(expected));
        prop_assert_eq!(format!("{names:?}"), format!("{names_then:?}"));
        let sorted = |counts: &Counts| {
            let mut kinds: Vec<_> = counts.by_number.iter().map(|(kind, count)| (*kind, *count)).collect();
            kinds.sort_unstable();
            (kinds, counts.generic.len(), counts.malformed, counts.out_of_range)
        };
        prop_assert_eq!(sorted(&counts), sorted(&counts_then));
    }
}

#[test]
fn a_late_event_does_not_keep_the_memory_of_its_bundle() {
    // Of every ten, one is late, and one has a name.
    let field = |at: u64| if at % 10 == 5 { 361 } else { 20 };
    let late = |at: u64| if at.is_multiple_of(10) { 100_000 + at } else { at };
    let events: Vec<Written> = (1..=1000).map(|at| (late(at), at, field(at), [at, 1], 0)).collect();
    let bytes = a_bundle(&events);
    let (facts, mut names, mut counts) = (Facts::default(), Names::default(), Counts::default());
    let mut decoder = Decoder { facts: &facts, names: &mut names, counts: &mut counts };
    let Placed::Done(placing) = decoder.places(&bytes, MAX_PENDING) else { panic!("{}", bytes.len()) };
    let (mut waiting, mut last) = (Waiting::default(), 0);
    let mut batch = waiting.batch();
    waiting.push_bundle(Bundled::of(placing, 0), &mut batch);
    let before = waiting.pending;
    assert_eq!(batch.room, MAX_PENDING - before, "the rest of its chunk has no more room than there is");
    assert!(before < bytes.len() + 1000 * size_of::<Place>() + 100 * 400, "{before}");
    for left in (0..1000).rev() {
        let time = waiting.first().unwrap();
        let mut given = 0;
        let raw = waiting.take(&mut decoder, |_, _, _| given += 1);
        assert!(time > last && given + raw.iter().count() == 1);
        last = time;
        assert!(left == 0 || waiting.pending < 4 * (left + 64) * before / 1000 + 1000, "{left}: {}", waiting.pending);
    }
    assert_eq!(waiting.pending, 0);
    // No room for a bundle: nothing of it is taken.
    assert!(matches!(decoder.places(&bytes, bytes.len()), Placed::NoRoom));
}
