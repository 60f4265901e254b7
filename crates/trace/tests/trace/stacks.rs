//! Call stacks of traces.

use std::collections::BTreeMap;

use scxprof_trace::{StackFrame, TraceEvent, TraceWhat};

use super::encode::*;
use super::files::*;

fn function(read: &Whole, frame: &StackFrame) -> String {
    String::from_utf8_lossy(read.trace.names().text(frame.function)).into_owned()
}

/// The stacks of these events, as `outermost;...;innermost`.
fn folded(read: &Whole, stack: scxprof_trace::StackId) -> String {
    let frames = read.trace.stack(stack);
    let functions: Vec<String> = frames.iter().map(|frame| function(read, frame)).collect();
    functions.join(";")
}

#[test]
fn stacks_of_wprof_are_those_of_its_json() {
    let read = read(fixture("wprof.pb.gz"));
    let mut expected = BTreeMap::new();
    for line in String::from_utf8(fixture("wprof.stacks.gz")).unwrap().lines() {
        let [what, count, frames] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        expected.insert((what.to_owned(), frames.to_owned()), count.parse::<u64>().unwrap());
    }
    let mut found = BTreeMap::new();
    for event in &read.others {
        let TraceWhat::Stack { category, stack } = event.what else { continue };
        let what = match read.trace.names().text(category) {
            b"TIMER" => "timer",
            b"ONCPU" => "switch",
            category => panic!("{}", String::from_utf8_lossy(category)),
        };
        *found.entry((what.to_owned(), folded(&read, stack))).or_default() += 1;
    }
    let differing = || found.iter().find(|(stack, count)| expected.get(stack) != Some(count));
    assert!(expected == found, "{} stacks of {}: {:?}", found.len(), expected.len(), differing());
    assert_eq!(read.info.stacks, 300);
}

#[test]
fn samples_have_stacks_that_come_after_them() {
    let sample = |time, tid, stack| {
        packet(3).int(8, time).message(66, &Message::new().int(1, 2).int(2, 10).int(3, tid).int(4, stack).int(5, 2))
    };
    let entry = |iid, text: &str| Message::new().int(1, iid).text(2, text);
    let frame = |iid, function, pc| Message::new().int(1, iid).int(2, function).int(3, 1).int(4, pc);
    let interned = Message::new()
        .message(5, &entry(1, "main"))
        .message(5, &entry(2, "work"))
        .message(17, &entry(1, "/usr/bin/app"))
        .message(19, &Message::new().int(1, 1).int(7, 1))
        .message(6, &frame(1, 1, 0x10))
        .message(6, &frame(2, 2, 0x20))
        .message(7, &Message::new().int(1, 5).int(2, 1).int(2, 2))
        .message(7, &Message::new().int(1, 6).packed(2, &[1, 9]));
    let lost = packet(3).int(8, 40).message(66, &Message::new().int(3, 11).int(17, 7));
    let bytes = file(&[
        thread_track(1, 10, 11, "app"),
        sample(10, 11, 5),
        sample(20, 11, 5),
        sample(30, 11, 6),
        lost,
        packet(3).message(12, &interned),
    ]);
    let read = read(bytes);
    let mut found = Vec::new();
    for event in &read.others {
        let TraceWhat::Sample { stack, in_kernel: false } = event.what else { panic!("{event:?}") };
        assert_eq!((event.tid, event.pid), (11, 10));
        found.push((event.time, event.cpu, stack.map(|stack| folded(&read, stack))));
    }
    let whole = Some("main;work".to_owned());
    // Of the third stack a frame is not in the trace.
    let expected =
        [(10, 2, whole.clone()), (20, 2, whole), (30, 2, Some("main;".to_owned())), (40, TraceEvent::UNKNOWN, None)];
    assert_eq!(found, expected);
    let TraceWhat::Sample { stack: Some(stack), .. } = read.others[0].what else { panic!() };
    let frames = read.trace.stack(stack);
    assert_eq!(read.trace.names().text(frames[1].module), b"/usr/bin/app");
    assert_eq!((frames[1].rel_pc, read.info.stacks, read.info.lost.overruns), (0x20, 2, 7));
    assert!(read.info.events.iter().any(|event| event.name == "perf_sample" && event.count == 4));
}

#[test]
fn stacks_within_events_and_annotations_within_annotations_are_read() {
    let frame = |name: &str, line| Message::new().text(1, name).text(2, "main.cc").int(3, line);
    let callstack = Message::new().message(1, &frame("main", 3)).message(1, &frame("leaf", 9));
    let size = Message::new().text(10, "size").int(3, 64);
    let values =
        Message::new().text(10, "cpus").message(12, &Message::new().int(3, 4)).message(12, &Message::new().int(3, 6));
    let dictionary = Message::new().text(10, "request").message(11, &size).message(11, &values);
    let event = slice(3, 1, "app", "work").message(55, &callstack).message(4, &dictionary);
    let read = read(file(&[thread_track(1, 10, 11, "app"), packet(7).int(8, 50).message(11, &event)]));
    let [TraceEvent { what: TraceWhat::Slice { args, .. }, .. }, TraceEvent { what: TraceWhat::Stack { stack, .. }, .. }] =
        &read.others[..]
    else {
        panic!("{:?}", read.others)
    };
    let text = |name| String::from_utf8_lossy(read.trace.names().text(name)).into_owned();
    let args: Vec<String> = args.iter().map(|(name, value)| format!("{} {value:?}", text(name))).collect();
    assert_eq!(args, ["request.size Uint(64)", "request.cpus[0] Uint(4)", "request.cpus[1] Uint(6)"]);
    let frames: Vec<_> = read.trace.stack(*stack).iter().map(|frame| (text(frame.function), frame.line)).collect();
    assert_eq!(frames, [("main".to_owned(), 3), ("leaf".to_owned(), 9)]);
}
