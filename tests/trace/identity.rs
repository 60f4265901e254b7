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
    let (lines, said) =
        lines(&[after(0, 0, &worker[..4]), after(950, 0, &worker[4..]), after(90, 1, &other)], "thread");
    assert_eq!((total(&lines, "t2", "sleep"), said.as_str()), (800, ""));
}

/// A process tree of this time: processes, and threads with their process.
fn tree(time: u64, processes: &[u64], threads: &[(u64, u64)]) -> Message {
    let tree = processes
        .iter()
        .fold(Message::new(), |tree, pid| tree.message(1, &Message::new().int(1, *pid).text(3, &format!("p{pid}"))));
    let tree = threads
        .iter()
        .fold(tree, |tree, (tid, pid)| tree.message(2, &Message::new().int(1, *tid).text(2, "t5").int(3, *pid)));
    packet(1).int(8, time).message(2, &tree)
}

#[test]
fn a_thread_number_that_is_used_again_counts_to_its_own_process() {
    let runs = [switch(100, 0, 0, 5), switch(200, 5, 1, 0), switch(400, 0, 0, 5), switch(450, 5, 1, 0)];
    let exit = event(190, 5, 238, &Message::new().text(1, "t5").int(2, 5).int(3, 10));
    let new = event(300, 20, 235, &Message::new().int(1, 5).text(2, "t20").int(3, 0x1_0000));
    let first = tree(10, &[10, 20], &[(5, 10)]);
    let known = bundle(0, false, &[&runs[..], &[exit.clone(), new.clone()]].concat());
    for (what, packets) in [
        ("a beginning and an end", vec![tree(10, &[10, 20], &[]), known]),
        ("a beginning", vec![first.clone(), bundle(0, false, &[&runs[..], &[new]].concat())]),
        ("an end", vec![tree(350, &[10, 20], &[(5, 20)]), bundle(0, false, &[&runs[..], &[exit]].concat())]),
        ("two lists of threads", vec![first, tree(350, &[], &[(5, 20)]), bundle(0, false, &runs)]),
    ] {
        let (lines, said) = lines(&packets, "process");
        let times = ["p10", "p20"].map(|name| total(&lines, name, "run"));
        assert_eq!((times, said.as_str()), ([100, 50], ""), "{what}");
        let pids: Vec<(u64, u32)> = read(file(&packets))
            .sched
            .iter()
            .filter(|event| event.tid == 5)
            .map(|event| (event.time, event.pid))
            .filter(|(time, _)| *time != 190)
            .collect();
        assert_eq!(pids, [(200, 10), (450, 20)], "{what}");
    }
}

#[test]
fn packets_of_other_machines_are_not_mixed_with_those_of_the_recorder() {
    let host = bundle(0, false, &[switch(100, 0, 0, 5), switch(200, 5, 1, 0)]);
    let guest =
        bundle(0, false, &[switch(120, 0, 0, 5), switch(150, 5, 1, 0), switch(180, 0, 0, 6), switch(190, 6, 1, 0)]);
    let guest = |machine| guest.clone().int(98, machine);
    let (both, said) = lines(&[guest(9), host], "thread");
    assert_eq!((both.len(), total(&both, "t5", "run")), (1, 100));
    assert!(said.contains("1 packets are of other machines"), "{said}");
    // Between packets of the host.
    let (first, last) = ([switch(100, 0, 0, 5), switch(200, 5, 1, 0)], [switch(300, 0, 0, 5), switch(310, 5, 1, 0)]);
    let (both, _) = lines(&[bundle(0, false, &first), guest(9), bundle(0, false, &last)], "thread");
    assert_eq!((both.len(), total(&both, "t5", "run")), (1, 110));
    // A trace of a guest alone.
    let (alone, said) = lines(&[guest(9)], "thread");
    assert_eq!((total(&alone, "t5", "run"), total(&alone, "t6", "run"), said.as_str()), (30, 10, ""));
}

/// The rows of a table: these columns of thread 5.
#[cfg(feature = "parquet")]
fn table<const N: usize>(tables: &Path, name: &str, columns: [&str; N]) -> Vec<[i64; N]> {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    let file = fs::File::open(tables.join(format!("{name}.parquet"))).unwrap();
    let number = |field: Option<&Field>| match field {
        Some(Field::Int(number)) => i64::from(*number),
        Some(Field::Long(number)) => *number,
        _ => -1,
    };
    let reader = SerializedFileReader::new(file).unwrap();
    let rows = reader.get_row_iter(None).unwrap().map(|row| row.unwrap().into_columns());
    let get = |row: &Vec<(String, Field)>, column| number(row.iter().find(|(name, _)| name == column).map(|it| &it.1));
    rows.filter(|row| get(row, "tid") == 5).map(|row| columns.map(|column| get(&row, column))).collect()
}

#[cfg(feature = "parquet")]
#[test]
fn a_thread_number_that_is_used_again_has_its_own_process_in_tables() {
    let dir = tempfile::tempdir().unwrap();
    let (path, tables) = (dir.path().join("trace"), dir.path().join("tables"));
    let runs = [
        switch(100, 0, 0, 5),
        // It ends.
        switch(200, 5, 16, 0),
        waking(380, 0, 5, 0),
        switch(400, 0, 0, 5),
        switch(450, 5, 1, 0),
        waking(480, 0, 5, 0),
        switch(500, 0, 0, 5),
    ];
    fs::write(&path, file(&[tree(10, &[10, 20], &[(5, 10)]), tree(350, &[], &[(5, 20)]), bundle(0, false, &runs)]))
        .unwrap();
    let output = scxprof(&["export", "-f", path.to_str().unwrap(), "--parquet", tables.to_str().unwrap()]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let runs = table(&tables, "sched", ["ts", "dur", "pid"]);
    assert_eq!(runs, [[100, 100, 10], [400, 50, 20], [500, -1, 20]]);
    let states = table(&tables, "thread_state", ["ts", "pid"]);
    assert_eq!(states, [[100, 10], [380, 20], [400, 20], [450, 20], [480, 20], [500, 20]]);
    assert_eq!(table(&tables, "thread", ["pid"]), [[10], [20]]);
}

#[test]
fn a_thread_that_is_woken_while_it_runs_has_its_sleep_counted_apart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let runs = [
        switch(1_000_000, 0, 0, 5),
        waking(2_000_000, 0, 5, 0),
        switch(3_000_000, 5, 1, 0),
        switch(8_000_000, 0, 0, 5),
        switch(9_000_000, 5, 1, 0),
    ];
    fs::write(&path, file(&[bundle(0, false, &runs)])).unwrap();
    let sched = |more: &[&str]| scxprof(&[&["sched", "-f", path.to_str().unwrap()], more].concat()).stdout;
    let document: Value = serde_json::from_slice(&sched(&["--by", "thread", "--json"])).unwrap();
    assert_eq!((&document["unwoken"], &document["unwoken_ns"]), (&1.into(), &5_000_000.into()));
    let lines = document["lines"].as_array().unwrap();
    assert_eq!(["run", "wait", "sleep"].map(|field| total(lines, "t5", field)), [3_000_000, 0, 0]);
    let table = String::from_utf8(sched(&[])).unwrap();
    let expected =
        "1 times a thread ran again without a wakeup that was seen: 5.000 ms are in none of WAIT, SLEEP and BLOCKED";
    assert!(table.contains(expected), "{table}");
}
