//! What perf prints of scheduling events, on made text.

use serde_json::Value;

use super::*;
use crate::sample::sched::{SchedTask, TaskState};

fn events(text: &str) -> Vec<SchedEvent> {
    let mut reader = Reader::new(text.as_bytes());
    let events = std::iter::from_fn(|| reader.next_event().unwrap()).collect();
    assert_eq!((reader.unreadable, reader.cut), (0, false), "{text}");
    events
}

fn task(comm: &str, tid: u32, prio: i32) -> SchedTask {
    SchedTask { tid, prio, comm: comm.into() }
}

#[test]
fn both_forms_of_a_switch_are_read() {
    let expected = SchedWhat::Switch {
        prev: task("a ==> b:1 [2]", 31166, 120),
        state: TaskState::Preempted,
        next: task("x pid=3", 18, 0),
    };
    for trace in [
        "prev_comm=a ==> b:1 [2] prev_pid=31166 prev_prio=120 prev_state=R+ ==> next_comm=x pid=3 next_pid=18 next_prio=0",
        "a ==> b:1 [2]:31166 [120] R+ ==> x pid=3:18 [0]",
    ] {
        let line = format!("{:>16} {:>5}/{:<5} [001] 40111.264143:  sched:sched_switch: {trace}\n", "a ==> b:1 [2]", 31166, 31166);
        let found = events(&line);
        assert_eq!((found[0].time, found[0].cpu, found[0].pid), (40_111_264_143_000, 1, 31166));
        assert_eq!(found[0].what, expected, "{trace}");
    }
}

#[test]
fn what_is_written_is_read_again() {
    let all = [
        SchedWhat::Switch { prev: task("web", 7, 120), state: TaskState::Sleeping, next: task("swapper/1", 0, 120) },
        SchedWhat::Waking { task: task("io = 1", 9, 99), target_cpu: 1, by: WakenBy::Thread },
        SchedWhat::WakeupNew { task: task("new", 10, 120), target_cpu: 200 },
        SchedWhat::Migrate { task: task("io", 9, -1), from: 1, to: 3 },
        SchedWhat::Fork { parent: 7, child: 11, comm: "kid \"1\"".into() },
        SchedWhat::Exec { tid: 11, old_tid: 11 },
        SchedWhat::Exit { task: task("kid", 11, 120) },
        SchedWhat::Runtime { task: task("web", 7, 0), ns: 84136 },
        SchedWhat::IrqEntry { irq: 42 },
        SchedWhat::IrqExit { irq: 42 },
        SchedWhat::SoftirqEntry { vec: 3 },
        SchedWhat::SoftirqExit { vec: 3 },
        SchedWhat::Hint { tid: 7, hint: Some(640) },
        SchedWhat::Runtime { task: task("web", 7, 0), ns: 1 },
    ];
    let at = |(time, what)| SchedEvent { time, cpu: 3, pid: 7, tid: 7, cgroup: 0, what };
    let all: Vec<SchedEvent> = (40_111_264_143_001..).zip(all).map(at).collect();
    let mut text = Vec::new();
    let mut writer = Writer::new(&mut text);
    for event in &all {
        writer.write(event).unwrap();
    }
    assert_eq!(writer.lines, all.len() as u64 - 1);
    writer.finish().unwrap();
    let text = String::from_utf8(text).unwrap();
    let read = events(&text);
    let expected: Vec<_> = all.iter().map(|event| event.what).collect();
    assert_eq!(read.iter().map(|event| event.what).collect::<Vec<_>>(), expected, "{text}");
    assert!(read.iter().zip(&all).all(|(read, event)| read.time == event.time || event.what == expected[12]));
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&last["hint"], &last["fields"]["runtime"], &last["comm"]), (&640.into(), &1.into(), &"web".into()));
}

#[test]
fn a_waker_is_told_from_what_interrupts_it() {
    let line = |event: &str| format!("{:>16} 7/7 [000] 1.000001: {event}\n", "web");
    let waking = "sched:sched_waking: comm=io pid=9 prio=120 target_cpu=000";
    let lines = [
        waking,
        "irq_vectors:local_timer_entry: vector=236",
        waking,
        "irq_vectors:local_timer_exit: vector=236",
        "irq:softirq_entry: vec=1 [action=TIMER]",
        waking,
        "irq:softirq_exit: vec=1 [action=TIMER]",
        waking,
        "sched:sched_wakeup: io:9 [120] success=1 CPU:003",
    ];
    let by = events(&lines.map(line).concat()).into_iter().filter_map(|event| match event.what {
        SchedWhat::Waking { by, .. } => Some(by),
        _ => None,
    });
    assert_eq!(by.collect::<Vec<_>>(), [WakenBy::Thread, WakenBy::Interrupt, WakenBy::Softirq, WakenBy::Thread]);
    // Without sched_waking, the wakeup itself is read.
    let alone = events(&line(lines[8]));
    assert_eq!(alone[0].what, SchedWhat::Waking { task: task("io", 9, 120), target_cpu: 3, by: WakenBy::Thread });
}

#[test]
fn what_is_no_event_is_counted() {
    let good = "             web 7/7 [000] 1.000001: sched:sched_waking: comm=io pid=9 prio=120 target_cpu=000\n";
    let text = format!(
        "# header\n{good}perf: Segmentation fault\n{good}\
        web 7/7 [000] 1.000001: sched:sched_switch: who knows\nweb 7/7 [000] 1.0: nmi:nmi_handler: x delta_ns: 5\n{}",
        &good[..40]
    );
    let mut reader = Reader::new(text.as_bytes());
    assert_eq!(std::iter::from_fn(|| reader.next_event().unwrap()).count(), 2);
    assert_eq!((reader.lines, reader.unreadable, reader.first_unreadable, reader.others), (6, 3, Some(2), 1));
    assert!(reader.cut);
    assert!(
        is_sched(good.as_bytes())
            && !is_sched(b"             web 100/101 10.000001:             7f00           401000\n")
    );
    assert!(!is_sched(b"{\"pid\": 1, \"tid\": 1, \"time\": \"1.5\"}\n"));
}
