//! Whose a time is, and whether it was observed: buffers that were overwritten, threads and machines with the same numbers.

use serde_json::Value;

use super::commands::scxprof;
use super::encode::*;
use super::*;

/// `sched -f` of a trace with these packets: its lines as JSON, and what it said.
fn lines(packets: &[Message], by: &str) -> (Vec<Value>, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    fs::write(&path, file(packets)).unwrap();
    let output = scxprof(&["sched", "-f", path.to_str().unwrap(), "--by", by, "--json"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    (document["lines"].as_array().unwrap().clone(), said)
}

/// A field of the line of this name.
fn total(lines: &[Value], name: &str, field: &str) -> u64 {
    let line = lines.iter().find(|line| line["name"] == name).unwrap_or_else(|| panic!("no {name} in {lines:?}"));
    line[field]["total_ns"].as_u64().unwrap()
}

/// A bundle that says when the one before it ended.
fn after(previous_end: u64, cpu: u64, events: &[Message]) -> Message {
    let bundle = Message::new().int(1, cpu).int(10, previous_end);
    packet(1).message(1, &events.iter().fold(bundle, |bundle, event| bundle.message(2, event)))
}

#[test]
fn what_a_thread_does_before_all_cpus_are_observed_is_not_known() {
    // Thread 2 runs on CPU 0 and sleeps; it may run on CPU 1 in that time.
    let worker = [
        switch(100, 0, 0, 2),
        switch(200, 2, 1, 0),
        waking(900, 0, 2, 0),
        switch(910, 0, 0, 2),
        switch(1100, 2, 1, 0),
        waking(1200, 0, 2, 0),
        switch(1210, 0, 0, 2),
        switch(1300, 2, 1, 0),
    ];
    let other = [switch(1050, 0, 0, 3), switch(1250, 3, 1, 0)];
    let times = |previous_end| {
        let (lines, said) = lines(&[after(0, 0, &worker), after(previous_end, 1, &other)], "thread");
        assert_eq!(lines.iter().map(|line| line["losses"].as_u64().unwrap()).sum::<u64>(), 0);
        (["run", "sleep", "wait"].map(|field| total(&lines, "t2", field)), said.contains("not all CPUs were observed"))
    };
    assert_eq!(times(1000), ([380, 100, 10], true));
    // It is in each bundle of a trace that has everything.
    assert_eq!([times(0), times(50)], [([380, 800, 20], false), ([380, 800, 20], false)]);
    // One that contradicts the events.
    assert_eq!(times(u64::MAX), ([380, 100, 10], true));
    let (lines, said) = lines(&[after(0, 0, &worker[..4]), after(950, 0, &worker[4..]), after(90, 1, &other)], "thread");
    assert_eq!((total(&lines, "t2", "sleep"), said.as_str()), (800, ""));
}
