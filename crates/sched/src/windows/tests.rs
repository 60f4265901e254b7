use super::*;
use scxprof_base::sample::sched::{SchedTask, TaskState, WakenBy};

pub(super) fn event(time: u64, cpu: u32, what: SchedWhat) -> SchedEvent {
    SchedEvent { time, cpu, pid: 1, tid: 1, cgroup: 0, what }
}

pub(super) fn task(tid: u32, comm: &str) -> SchedTask {
    SchedTask { tid, prio: 120, comm: comm.into() }
}

/// The CPU goes on with this thread; 0 is idle.
fn switch(time: u64, cpu: u32, tid: u32, comm: &str) -> SchedEvent {
    let what = SchedWhat::Switch { prev: task(9, "prev"), state: TaskState::Sleeping, next: task(tid, comm) };
    event(time, cpu, what)
}

/// An event that changes nothing.
fn waking(time: u64, cpu: u32) -> SchedEvent {
    event(time, cpu, SchedWhat::Waking { task: task(99, "other"), target_cpu: 0, by: WakenBy::Thread })
}

fn hint(time: u64, tid: u32, hint: Option<u64>) -> SchedEvent {
    event(time, u32::MAX, SchedWhat::Hint { tid, hint })
}

pub(super) fn options(width: u64, categories: &[&str], cpus: &[u32]) -> WindowOptions {
    let categories = categories.iter().map(|text| Category::parse(text).unwrap()).collect();
    WindowOptions { width, categories, cpus: cpus.into() }
}

/// Lets switches leave the thread that the CPU runs, but for every `wrong`th event.
pub(super) fn consistent(events: &mut [SchedEvent], wrong: usize) {
    let mut running = std::collections::BTreeMap::new();
    for (number, event) in events.iter_mut().enumerate() {
        if let SchedWhat::Switch { prev, next, .. } = &mut event.what {
            if let Some(tid) = running.insert(event.cpu, next.tid).filter(|_| !(number + 1).is_multiple_of(wrong)) {
                prev.tid = tid;
            }
        } else if let SchedWhat::Exec { tid, old_tid } = event.what {
            running.entry(event.cpu).and_modify(|running| *running = if *running == old_tid { tid } else { *running });
        }
    }
}

/// All windows of a stream without gaps.
fn all(options: WindowOptions, events: &[SchedEvent]) -> Vec<Window> {
    let mut events = events.to_vec();
    consistent(&mut events, usize::MAX);
    as_is(options, &events)
}

/// All windows of a stream.
pub(super) fn as_is(options: WindowOptions, events: &[SchedEvent]) -> Vec<Window> {
    let (mut windows, mut found) = (Windows::new(options), Vec::new());
    let mut out = |window: &Window| found.push(window.clone());
    for event in events {
        windows.take(event, &mut out);
    }
    windows.finish(&mut out);
    found
}

/// Begin, width and columns of each window.
fn rows(windows: &[Window]) -> Vec<(u64, u64, &[u64])> {
    windows.iter().map(|window| (window.begin, window.width, &*window.ns)).collect()
}

#[test]
fn each_thread_is_in_the_first_category_that_matches() {
    let events = [
        switch(100, 0, 1, "web-1"),
        switch(104, 0, 0, "swapper/0"),
        switch(107, 0, 2, "db"),
        switch(112, 0, 3, "cron"),
        switch(118, 0, 1, "web-2"),
        switch(125, 0, 0, "swapper/0"),
    ];
    let found = all(options(10, &["web=web*", "web-2", "data=d?", "web=swapper*"], &[]), &events);
    // web, web-2, data, uncategorised, irq, softirq, idle, unknown.
    let expected: [(u64, u64, &[u64]); 3] = [
        (100, 10, &[4, 0, 3, 0, 0, 0, 3, 0]),
        (110, 10, &[2, 0, 2, 6, 0, 0, 0, 0]),
        (120, 5, &[5, 0, 0, 0, 0, 0, 0, 0]),
    ];
    assert_eq!(rows(&found), expected);
    assert_eq!(found[0].in_use(found[0].ns[0]).to_string(), "0.4");
    let columns = Windows::new(options(10, &["web=web*", "web-2", "data=d?", "web=swapper*"], &[]));
    assert_eq!(
        columns.columns(),
        ["web", "web-2", "data", "uncategorised", "irq", "softirq", "idle", "unknown"],
        "web has one column"
    );
}

#[test]
fn a_switch_from_another_thread_is_a_gap() {
    let events = [switch(0, 0, 1, "a"), waking(4, 0), switch(10, 0, 2, "a"), switch(15, 0, 0, "idle"), waking(20, 0)];
    let mut right = events;
    consistent(&mut right, usize::MAX);
    assert_eq!(rows(&as_is(options(20, &["a"], &[]), &right)), [(0, 20, &[15, 0, 0, 0, 5, 0][..])]);
    // 9 left the CPU that 1 had got: what it did since the event before is not known.
    let mut wrong = right;
    wrong[2] = events[2];
    assert_eq!(rows(&as_is(options(20, &["a"], &[]), &wrong)), [(0, 20, &[9, 0, 0, 0, 5, 6][..])]);
}

#[test]
fn an_interrupt_takes_the_time_of_what_it_interrupts() {
    use SchedWhat::{IrqEntry, IrqExit, SoftirqEntry, SoftirqExit};
    let events = [
        switch(0, 0, 1, "a"),
        event(2, 0, SoftirqEntry { vec: 3 }),
        event(3, 0, IrqEntry { irq: 7 }),
        event(4, 0, IrqEntry { irq: 8 }),
        event(6, 0, IrqExit { irq: 8 }),
        event(7, 0, IrqExit { irq: 7 }),
        event(9, 0, SoftirqExit { vec: 3 }),
        switch(10, 0, 0, "swapper/0"),
        event(12, 0, IrqEntry { irq: 7 }),
        event(14, 0, IrqExit { irq: 7 }),
        switch(20, 0, 1, "a"),
    ];
    let found = all(options(20, &["a"], &[]), &events);
    assert_eq!(rows(&found), [(0, 20, &[3, 0, 6, 3, 8, 0][..])]);
}

#[test]
fn a_switch_ends_interrupts_and_an_exit_alone_changes_nothing() {
    let events = [
        event(0, 0, SchedWhat::SoftirqEntry { vec: 1 }),
        event(1, 0, SchedWhat::IrqEntry { irq: 1 }),
        switch(2, 0, 1, "a"),
        event(5, 0, SchedWhat::IrqExit { irq: 1 }),
        event(6, 0, SchedWhat::SoftirqExit { vec: 1 }),
        switch(10, 0, 0, "swapper/0"),
    ];
    assert_eq!(rows(&all(options(10, &["a"], &[]), &events)), [(0, 10, &[8, 0, 1, 1, 0, 0][..])]);
}

#[test]
fn what_is_not_known_is_not_idle() {
    let events = [
        waking(0, 0),
        switch(3, 0, 1, "a"),
        waking(8, 0),
        event(10, 0, SchedWhat::Lost),
        event(12, 0, SchedWhat::IrqEntry { irq: 1 }),
        event(13, 0, SchedWhat::IrqExit { irq: 1 }),
        switch(15, 0, 2, "b"),
        waking(18, 0),
        waking(20, 1),
    ];
    // CPU 0 is unknown in 0 to 3, 8 to 12, 13 to 15 and 18 to 20.
    let found = all(options(20, &["a", "b"], &[]), &events);
    assert_eq!(rows(&found), [(0, 20, &[5, 3, 0, 1, 0, 0, 11 + 20][..])]);
    assert_eq!(found[0].cpus, 2);
}

#[test]
fn a_loss_of_no_known_cpu_is_one_of_all() {
    let events = [
        switch(0, 0, 1, "a"),
        switch(0, 1, 2, "a"),
        waking(4, 0),
        event(5, u32::MAX, SchedWhat::Lost),
        switch(8, 0, 1, "a"),
        waking(10, 0),
    ];
    assert_eq!(rows(&all(options(10, &["a"], &[]), &events)), [(0, 10, &[4 + 2, 0, 0, 0, 0, 4 + 10][..])]);
}

#[test]
fn a_loss_within_an_interrupt_ends_it() {
    let events = [
        switch(0, 0, 1, "a"),
        event(2, 0, SchedWhat::SoftirqEntry { vec: 1 }),
        event(3, 0, SchedWhat::IrqEntry { irq: 1 }),
        event(5, 0, SchedWhat::Lost),
        waking(10, 0),
    ];
    assert_eq!(rows(&all(options(10, &["a"], &[]), &events)), [(0, 10, &[2, 0, 0, 1, 0, 7][..])]);
}

#[test]
fn a_cpu_counts_from_the_first_window_that_is_open_or_from_the_start() {
    let events: Vec<SchedEvent> = (0..=4).map(|n| switch(n * 10, 0, 1, "a")).chain([switch(45, 3, 1, "b")]).collect();
    let cpus = |named: &[u32]| {
        let found = all(options(10, &["a"], named), &events);
        found.iter().map(|window| (window.cpus, window.ns[5])).collect::<Vec<_>>()
    };
    // The window from 30 to 40 was still open when CPU 3 came: nothing was known of the next.
    assert_eq!(cpus(&[]), [(1, 0), (1, 0), (1, 0), (2, 10), (2, 10)]);
    // The last one is 5 ns wide, and CPU 0 has no event in it.
    assert_eq!(cpus(&[0, 3]), [(2, 10), (2, 10), (2, 10), (2, 10), (2, 10)]);
    assert_eq!(cpus(&[0, 3, 7])[0], (3, 20));
}

#[test]
fn a_window_waits_for_a_cpu_that_is_silent() {
    let mut windows = Windows::new(options(10, &["a"], &[5]));
    let mut found: Vec<Window> = Vec::new();
    let mut events = vec![switch(0, 0, 1, "a")];
    events.extend((0..100).map(|n| switch(n * 10, 1, 0, "swapper/1")));
    events.extend([switch(992, 0, 0, "swapper/0"), waking(1001, 1)]);
    consistent(&mut events, usize::MAX);
    for event in &events {
        windows.take(event, &mut |window| found.push(window.clone()));
    }
    // CPU 5 has no event at all; nothing waits for it.
    assert_eq!(found.len(), 99);
    assert!(found.iter().all(|window| window.ns == [10, 0, 0, 0, 10, 10]), "{found:?}");
}

#[test]
fn a_cpu_that_is_silent_for_long_goes_on_and_nothing_is_taken_back() {
    let more = 50;
    let mut events = vec![switch(0, 0, 1, "a")];
    events.extend((0..=(MAX_OPEN + more) as u64).map(|n| waking(n * 10, 1)));
    let end = events.last().unwrap().time;
    events.extend([event(end + 1, 0, SchedWhat::Lost), switch(end + 5, 0, 1, "a"), waking(end + 9, 0)]);
    let found = all(options(10, &["a"], &[]), &events);
    assert_eq!(found.len(), MAX_OPEN + more + 1);
    let of_thread: Vec<u64> = found.iter().map(|window| window.ns[0]).collect();
    let went_on = of_thread.iter().take_while(|&&ns| ns == 10).count();
    assert_eq!(went_on, more + 1, "as many as had to be passed on");
    assert!(of_thread[went_on..MAX_OPEN + more].iter().all(|&ns| ns == 0), "the others are unknown after the loss");
    assert_eq!(of_thread[MAX_OPEN + more], 4);
}

#[test]
fn a_hint_changes_the_category_of_a_running_thread() {
    let categories = ["three=a*@hint=3", "any=a*", "zero=*@hint=0"];
    let dead = SchedWhat::Switch { prev: task(1, "a"), state: TaskState::Dead, next: task(2, "b") };
    let fork = |child| SchedWhat::Fork { parent: 2, child, comm: "b".into() };
    let cases: [(&str, Vec<SchedEvent>, [u64; 4]); 8] = [
        ("in mid-slice", vec![hint(4, 1, Some(3)), hint(7, 1, Some(4))], [3, 7, 0, 0]),
        ("deleted", vec![hint(2, 1, Some(3)), hint(7, 1, None)], [5, 5, 0, 0]),
        ("of another thread", vec![hint(2, 2, Some(3)), switch(4, 0, 2, "b")], [0, 4, 0, 6]),
        ("before it runs", vec![hint(2, 2, Some(0)), switch(4, 0, 2, "b")], [0, 4, 6, 0]),
        (
            "forgotten when it exits",
            vec![hint(2, 1, Some(3)), event(3, 0, SchedWhat::Exit { task: task(1, "a") }), switch(5, 0, 1, "a")],
            [3, 7, 0, 0],
        ),
        ("forgotten when it is dead", vec![hint(2, 1, Some(3)), event(3, 0, dead), switch(5, 0, 1, "a")], [1, 7, 0, 2]),
        ("forgotten by a fork", vec![hint(2, 2, Some(0)), event(3, 0, fork(2)), switch(5, 0, 2, "b")], [0, 5, 0, 5]),
        (
            "taken along by an exec",
            vec![
                hint(1, 1, Some(3)),
                hint(1, 7, Some(0)),
                event(2, 0, SchedWhat::Exec { tid: 7, old_tid: 1 }),
                hint(4, 1, Some(0)),
                switch(5, 0, 0, "swapper/0"),
                switch(6, 0, 7, "a"),
                hint(8, 7, None),
            ],
            [6, 3, 0, 0],
        ),
    ];
    for (what, mut events, expected) in cases {
        events.insert(0, switch(0, 0, 1, "a"));
        events.push(waking(10, 0));
        let found = all(options(10, &categories, &[]), &events);
        assert_eq!(found[0].ns[..4], expected, "{what}");
    }
}

#[test]
fn names_that_share_a_place_are_told_apart() {
    let names: Vec<String> = (0..10_000).map(|n| if n % 3 == 0 { format!("a{n}") } else { format!("b{n}") }).collect();
    let events: Vec<SchedEvent> =
        names.iter().chain(&names).zip(0..).map(|(name, time)| switch(time, 0, 1, name)).collect();
    let found = all(options(30_000, &["a*"], &[]), &events);
    let of_a = events[..events.len() - 1]
        .iter()
        .filter(|event| matches!(event.what, SchedWhat::Switch { next, .. } if next.comm.as_bytes()[0] == b'a'));
    assert_eq!(found[0].ns[0], of_a.count() as u64);
}

#[test]
fn hints_that_share_a_place_are_told_apart() {
    let five = |time: u64| time.is_multiple_of(2);
    let hints = (0..10_000).map(|time| hint(time, 1, Some(if five(time) { 5 } else { time })));
    let events: Vec<SchedEvent> = [switch(0, 0, 1, "a")].into_iter().chain(hints).chain([waking(10_000, 0)]).collect();
    let found = all(options(20_000, &["a@hint=5"], &[]), &events);
    // A hint of 5 too, at 5 ns.
    assert_eq!(found[0].ns[..2], [5_001, 4_999]);
}

#[test]
fn a_late_event_is_taken_at_the_time_of_its_cpu() {
    let events = [
        switch(10, 0, 1, "a"),
        switch(16, 0, 0, "swapper/0"),
        switch(12, 0, 2, "b"),
        switch(20, 0, 0, "swapper/0"),
        waking(3, 1),
    ];
    assert_eq!(rows(&all(options(10, &["a", "b"], &[]), &events)), [(10, 10, &[6, 4, 0, 0, 0, 0, 10][..])]);
}

#[test]
fn a_late_event_counts_no_time_twice() {
    let events = [
        switch(0, 0, 1, "a"),
        waking(8, 0),
        event(8, 0, SchedWhat::Lost),
        switch(3, 0, 2, "b"),
        waking(9, 0),
        waking(10, 1),
    ];
    assert_eq!(rows(&all(options(10, &["a", "b"], &[]), &events)), [(0, 10, &[8, 1, 0, 0, 0, 0, 11][..])]);
}

#[test]
fn a_gap_that_is_too_long_has_no_windows() {
    let after = 10 * (MAX_GAP + 1) + 5;
    let events = [
        switch(0, 0, 1, "a"),
        waking(after, 0),
        switch(after + 2, 0, 1, "a"),
        waking(after + 4, 0),
        waking(u64::MAX, 0),
    ];
    let (mut windows, mut found) = (Windows::new(options(10, &["a"], &[])), Vec::new());
    for event in &events {
        windows.take(event, &mut |window| found.push(window.clone()));
    }
    windows.finish(&mut |window| found.push(window.clone()));
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(rows(&found[..2]), [(0, 10, &[0, 0, 0, 0, 0, 10][..]), (after - 5, 10, &[2, 0, 0, 0, 0, 8][..])]);
    assert_eq!(windows.left_out(), u64::MAX / 10 - 2);
    // One that is just as long as it may be.
    let found = all(options(10, &["a"], &[]), &[switch(0, 0, 1, "a"), waking(10 * MAX_GAP, 0)]);
    assert_eq!(found.len() as u64, MAX_GAP);
    assert!(found.iter().all(|window| window.ns[0] == 10));
}

#[test]
fn hints_are_bounded() {
    let mut windows = Windows::new(options(10, &["a@hint=1"], &[]));
    for tid in 0..(1 << 18) + 10 {
        windows.take(&hint(0, tid, Some(1)), &mut |_| {});
    }
    let mut tables = Tables::default();
    windows.measure(&mut tables);
    assert_eq!(tables.iter().find(|table| table.name == "window hints").unwrap().entries, 1 << 18);
}

/// A stream of windows of 100 ns on one CPU; "a" runs this number of ns in each.
fn stream(busy: &[u64], end: u64) -> Summary {
    let mut windows = Windows::new(options(100, &["a"], &[]));
    let mut events = Vec::new();
    for (&ns, begin) in busy.iter().zip((0..).step_by(100)) {
        events.extend([switch(begin, 0, 1, "a"), switch(begin + ns, 0, 0, "swapper/0")]);
    }
    events.push(waking(end, 0));
    consistent(&mut events, usize::MAX);
    for event in &events {
        windows.take(event, &mut |_| {});
    }
    windows.finish(&mut |_| {});
    windows.summary()
}

#[test]
fn the_summary_is_of_whole_windows() {
    let busy: Vec<u64> = (0..100).map(|n| if n < 50 { 0 } else { n }).collect();
    let summary = stream(&busy, 10_050);
    assert_eq!((summary.windows, summary.width), (100, 100), "without the last one, which is partial");
    let names: Vec<&str> = summary.columns.iter().map(|column| &*column.name).collect();
    assert_eq!(names, ["a", "uncategorised", "irq", "softirq", "idle", "unknown", "busy"]);
    let close =
        |found: f64, expected: f64| assert!((found - expected).abs() <= 0.0101 * expected, "{found} {expected}");
    for name in ["a", "busy"] {
        let column = summary.columns.iter().find(|column| column.name == name).unwrap();
        let sum: u64 = (50..100).sum();
        assert!((column.mean - sum as f64 / 1e4).abs() < 1e-12, "{column:?}");
        assert_eq!((column.p50, column.max), (0.0, 0.99), "0 is a value");
        close(column.p95, 0.94);
        close(column.p99, 0.98);
    }
    let unknown = &summary.columns[5];
    assert_eq!((unknown.mean, unknown.p99, unknown.max), (0.0, 0.0, 0.0));
    assert!(stream(&[30; 10], 1000).columns[0].p99 <= 0.3, "not above the maximum");
}

#[test]
fn a_partial_window_counts_if_it_is_the_only_one() {
    let summary = stream(&[20], 40);
    assert_eq!((summary.windows, summary.width), (1, 40));
    assert_eq!((summary.columns[0].mean, summary.columns[0].max), (0.5, 0.5));
    let none = Windows::new(options(100, &["a"], &[])).summary();
    assert!(none.windows == 0 && none.columns.iter().all(|column| column.mean == 0.0 && column.p50 == 0.0));
}
