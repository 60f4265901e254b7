//! What a trace of a profile has, read by our own reader.

use super::*;
use crate::sample::sched::{TaskState, WakenBy};
use crate::sample::RawSample;
use scxprof_trace::{Edge, Event, Trace, TraceWhat};

fn at(time: u64, what: SchedWhat) -> SchedEvent {
    SchedEvent { time, cpu: 0, pid: 7, tid: 7, cgroup: 1, what }
}

fn task(tid: u32) -> SchedTask {
    SchedTask { tid, prio: 120, comm: Comm::from("worker") }
}

#[test]
fn dispatch_queues_are_tracks() {
    const MS: u64 = 1_000_000;
    let options = TraceOptions {
        place_of: &|_| None,
        by_hint: false,
        communities: FxHashMap::default(),
        places: CpuPlaces::default(),
        kernel: String::new(),
        real_time: None,
    };
    let mut sink = TraceSink::new(Vec::new(), options).unwrap();
    let insert = |tid, dsq, is_moved| SchedWhat::DsqInsert { tid, dsq, slice: 0, is_moved };
    let switch = |prev, next| SchedWhat::Switch { prev: task(prev), state: TaskState::Runnable, next: task(next) };
    let local = 0x8000_0000_0000_0002;
    let events = [
        at(10 * MS, insert(8, 0x2a, false)),
        at(12 * MS, insert(9, 0x2a, false)),
        at(14 * MS, insert(9, local, true)),
        at(20 * MS, switch(7, 8)),
        at(30 * MS, SchedWhat::DsqSwitch { prev: 8, dsq: Some(0x2a), next: 9, slice: None }),
        at(30 * MS, switch(8, 9)),
        // The last one never runs again.
        at(40 * MS, SchedWhat::Exit { task: task(9) }),
    ];
    sink.sched(&events, &mut Cgroups::recorded());
    let (bytes, counts) = sink.finish().unwrap();
    assert_eq!((counts.sched, counts.left_out), (7, 0));
    let mut trace = Trace::open(io::Cursor::new(bytes)).unwrap();
    let (mut slices, mut depths) = (Vec::new(), Vec::new());
    while let Some(event) = trace.next_event().unwrap() {
        let Event::Trace(event) = event else { continue };
        let named = |track| {
            let name = trace.tracks().get(track).map(|track| track.name).unwrap();
            String::from_utf8_lossy(trace.names().text(name)).into_owned()
        };
        match event.what {
            TraceWhat::Slice { edge, track, name, category, .. } => {
                assert!(edge == Edge::End || trace.names().text(category) == b"dsq");
                let name = String::from_utf8_lossy(trace.names().text(name)).into_owned();
                slices.push((event.time / MS, named(track), edge == Edge::Begin, name));
            }
            TraceWhat::Counter { value, track } if named(track).starts_with("DSQ") => {
                depths.push((event.time / MS, named(track), value as i64));
            }
            _ => {}
        }
    }
    let slice =
        |time, tid: u32, is_begin, name: &str| (time, format!("dispatch queue of {tid}"), is_begin, name.to_owned());
    assert_eq!(
        slices,
        [
            slice(10, 8, true, "DSQ 0x2a"),
            slice(12, 9, true, "DSQ 0x2a"),
            slice(14, 9, false, ""),
            slice(14, 9, true, "DSQ local"),
            slice(20, 8, false, ""),
            slice(30, 8, true, "DSQ 0x2a"),
            slice(30, 9, false, ""),
            slice(40, 8, false, ""),
        ]
    );
    let of = |name: &str| -> Vec<(u64, i64)> {
        depths.iter().filter(|(_, of, _)| of == name).map(|(time, _, depth)| (*time, *depth)).collect()
    };
    assert_eq!(of("DSQ 0x2a"), [(10, 1), (12, 2), (14, 1), (20, 0), (30, 1)]);
    assert_eq!(of("DSQ local"), [(14, 1), (30, 0)]);
    assert_eq!(trace.info().lost.ends_without_begin, 0);
}

fn waking(tid: u32) -> SchedWhat {
    SchedWhat::Waking { task: task(tid), target_cpu: 0, by: WakenBy::Softirq }
}

#[test]
fn hints_are_slices_and_waiting_threads_are_counted() {
    const MS: u64 = 1_000_000;
    let options = TraceOptions {
        place_of: &|_| None,
        by_hint: false,
        communities: FxHashMap::default(),
        places: CpuPlaces::default(),
        kernel: String::new(),
        real_time: None,
    };
    let mut sink = TraceSink::new(Vec::new(), options).unwrap();
    let hint = |hint| SchedWhat::Hint { tid: 7, hint };
    let events = [
        at(10 * MS, hint(Some(3))),
        at(11 * MS, waking(8)),
        at(12 * MS, waking(9)),
        // It waits already.
        at(13 * MS, waking(9)),
        at(20 * MS, hint(Some(0))),
        at(30 * MS, SchedWhat::Switch { prev: task(7), state: TaskState::Sleeping, next: task(8) }),
        at(40 * MS, SchedWhat::Switch { prev: task(8), state: TaskState::Preempted, next: task(9) }),
        at(50 * MS, hint(None)),
        at(60 * MS, SchedWhat::Lost),
    ];
    sink.sched(&events, &mut Cgroups::recorded());
    let (bytes, counts) = sink.finish().unwrap();
    assert_eq!((counts.sched, counts.left_out), (5, 0));
    let mut trace = Trace::open(io::Cursor::new(bytes)).unwrap();
    let (mut slices, mut depths, mut wakings) = (Vec::new(), Vec::new(), 0);
    while let Some(event) = trace.next_event().unwrap() {
        match event {
            Event::Sched(event) => {
                wakings += u32::from(matches!(event.what, SchedWhat::Waking { by: WakenBy::Softirq, .. }));
            }
            Event::Trace(event) => match event.what {
                TraceWhat::Slice { edge, name, .. } => slices.push((event.time / MS, edge, name)),
                TraceWhat::Counter { value, .. } => depths.push((event.time / MS, value as i64)),
                other => panic!("{other:?}"),
            },
        }
    }
    let slices: Vec<_> = slices
        .into_iter()
        .map(|(time, edge, name)| (time, edge, String::from_utf8_lossy(trace.names().text(name)).into_owned()))
        .filter(|(_, edge, _)| *edge != Edge::End)
        .map(|(time, _, name)| (time, name))
        .collect();
    assert_eq!(slices, [(10, "hint 3".to_owned()), (20, "hint 0".to_owned())]);
    assert_eq!(trace.info().lost.ends_without_begin, 0);
    // At 40 ms one gets the CPU and another one loses it; at 60 ms nothing is known any more.
    assert_eq!(depths, [(11, 1), (12, 2), (30, 1), (40, 2), (60, 0)]);
    assert_eq!(wakings, 3);
}

#[test]
fn an_access_is_in_the_subcell_of_the_hint_of_its_time() {
    let place_of = |task: &Task<'_>| Some(("cell".to_owned(), Some(format!("{:?}", task.hint))));
    let tracks = |by_hint| {
        let options = TraceOptions {
            place_of: &place_of,
            by_hint,
            communities: FxHashMap::default(),
            places: CpuPlaces::default(),
            kernel: String::new(),
            real_time: None,
        };
        let mut sink = TraceSink::new(Vec::new(), options).unwrap();
        let samples = [Some(3), Some(4), None, Some(3)].into_iter().zip(1..).map(|(hint, time)| {
            let raw = RawSample { time, pid: 7, tid: 7, cgroup: 1, access: Access::Load, ..RawSample::default() };
            Sample { comm: Some(Comm::from("worker")), hint, ..Sample::from(raw) }
        });
        sink.samples(&samples.collect::<Vec<_>>(), &mut Cgroups::recorded());
        let (bytes, _) = sink.finish().unwrap();
        let has = |name: &str| bytes.windows(name.len()).any(|it| it == name.as_bytes());
        let subcells: Vec<&str> = ["Is(3)", "Is(4)", "None", "Unknown"].into_iter().filter(|it| has(it)).collect();
        let mut trace = Trace::open(io::Cursor::new(&bytes)).unwrap();
        let mut tracks = Vec::new();
        while let Some(event) = trace.next_event().unwrap() {
            if let Event::Trace(scxprof_trace::TraceEvent { what: TraceWhat::Slice { track, .. }, .. }) = event {
                tracks.push(track);
            }
        }
        let first = |track| tracks.iter().position(|it| *it == track).unwrap();
        (subcells, tracks.iter().map(|&track| first(track)).collect::<Vec<_>>())
    };
    // The last access is on the track of the first.
    assert_eq!(tracks(true), (vec!["Is(3)", "Is(4)", "None"], vec![0, 1, 2, 0]));
    assert_eq!(tracks(false), (vec!["Unknown"], vec![0, 0, 0, 0]));
}
