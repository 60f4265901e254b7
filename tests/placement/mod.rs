//! What `vm-check placement` (tests/vm/check) reads of made traces, and what it counts: the measurement itself runs only in a guest.

use std::collections::{BTreeMap, BTreeSet};

#[path = "../vm/check/placement/tally.rs"]
mod tally;
#[path = "../vm/check/placement/trace.rs"]
mod trace;

use tally::Tally;
use trace::{Run, Trace};

const BEGIN: &str = "begin";

/// A line of tracefs's `trace`.
fn line(cpu: u32, micros: u64, event: &str) -> String {
    format!("          <idle>-0       [{cpu:03}] d..2.    1.{micros:06}: {event}\n")
}

fn switch(cpu: u32, micros: u64, tid: i32) -> String {
    let event = format!("sched_switch: prev_comm=x prev_pid=9 prev_prio=120 prev_state=R ==> next_comm=a next_pid=5 b next_pid={tid} next_prio=120");
    line(cpu, micros, &event)
}

fn dump(micros: u64, lines: &[&str]) -> String {
    let lines: Vec<String> = lines.iter().map(|it| line(0, micros, &format!("sched_ext_dump:   {it}"))).collect();
    line(0, micros, "tracing_mark_write: begin") + &lines.concat()
}

#[test]
fn a_trace_says_who_ran_and_whose_the_cpus_are() {
    let text = switch(1, 10, 7)
        + &dump(20, &["LAYER[0](a ) CPUS=) CPUS=00000001,80000002", "LAYER[0](a)-DSQ[0] nr_cpus=2 nr_queued=0 +0ms"])
        + &switch(1, 30, 8)
        + &dump(
            40,
            &[
                "CPU[3] cell=1 subcell=2 vtime=0 nr_queued=0",
                "Task[17] vtime=0 cell=1 subcell=2 llc=0",
                "Task[17] CPUS=ff",
            ],
        )
        + &switch(1, 50, 7);
    let trace = Trace::parse(&text, BEGIN).unwrap();
    let run = |tid, from: u64, to: u64| Run { tid, cpu: 1, from: 1_000_000 + from, to: 1_000_000 + to };
    assert_eq!(trace.runs, [run(7, 10, 30), run(8, 30, 50)]);
    assert_eq!(trace.dumps[0].assignment, BTreeMap::from([((0, 0), BTreeSet::from([1, 31, 32]))]));
    assert_eq!(trace.dumps[1].assignment, BTreeMap::from([((1, 2), BTreeSet::from([3]))]));
    assert_eq!(trace.dumps[1].threads, BTreeMap::from([(17, (1, 2))]));
}

#[test]
fn an_idle_subcell_lends_its_cpus_to_those_of_its_cell() {
    let cpus =
        |cell: u32, subcell: u32, cpu: u32| format!("CPU[{cpu}] cell={cell} subcell={subcell} vtime=0 nr_queued=0");
    let task = "Task[17] vtime=0 cell=1 subcell=4 llc=0".to_owned();
    let lines = [cpus(1, 1, 0), cpus(1, 2, 1), cpus(1, 3, 2), cpus(1, 4, 5), cpus(2, 1, 3), cpus(3, 1, 4), task];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let mut trace = Trace::parse(&dump(20, &lines), BEGIN).unwrap();
    // Subcell 3 of cell 1 and cell 3 have no threads; subcell 4 has one of another program.
    trace.dumps[0].renumber(&BTreeMap::from([((1, 1), (0, 5)), ((1, 2), (0, 6)), ((2, 1), (7, 0))]));
    let own = |place, cpus: &[u32]| (place, cpus.iter().copied().collect());
    let expected = BTreeMap::from([own((0, 5), &[0, 2]), own((0, 6), &[1, 2]), own((7, 0), &[3])]);
    assert_eq!(trace.dumps[0].assignment, expected);
}

#[test]
fn a_layer_without_cpus_has_none_whatever_its_mask() {
    let cpus = |count: u32| {
        let queue = format!("LAYER[2](b)-DSQ[18] nr_cpus={count} nr_queued=1 +2ms");
        Trace::parse(&dump(20, &[&queue, "LAYER[2](b) CPUS=0000ffff"]), BEGIN).unwrap().dumps[0].assignment[&(2, 0)]
            .len()
    };
    assert_eq!((cpus(0), cpus(16)), (0, 16));
}

#[test]
fn a_trace_that_lost_events_is_refused() {
    let text = |kept| format!("# entries-in-buffer/entries-written: {kept}/12   #P:8\n");
    assert!(Trace::parse(&text(12), BEGIN).is_ok());
    assert!(Trace::parse(&text(11), BEGIN).unwrap_err().to_string().contains("11 of 12"));
}

#[test]
fn time_counts_on_the_cpus_that_were_assigned_all_the_while() {
    let layer = |cpus: u32| format!("LAYER[0](a) CPUS={cpus:08x}");
    let cpus = [1, 1, 1, 2, 2, 2];
    let dumps: String = (0..).zip(cpus).map(|(at, cpus)| dump(at * 100, &[&layer(cpus)])).collect();
    let mut trace = Trace::parse(&dumps, BEGIN).unwrap();
    let run = |tid, cpu, from: u64, to: u64| Run { tid, cpu, from: 1_000_000 + from, to: 1_000_000 + to };
    // 100 to 200 and 400 to 500 count: the others are before a change, after it, or have no dump before them.
    trace.runs = vec![run(7, 0, 0, 500), run(8, 1, 450, 500), run(9, 0, 0, 500)];
    let places = BTreeMap::from([(7, (0, 0)), (8, (0, 0))]);
    let watched = Tally::watched(&trace.runs, &trace.dumps, &places);
    assert_eq!(watched.seconds(), (250e-6, 200e-6), "{}", watched.lines(&BTreeMap::new()));
    assert_eq!((watched.percent(), watched.places()), (60.0, 1));
    let fixed = Tally::fixed(&trace.runs, &trace.dumps[5].assignment, &places);
    assert!((fixed.percent() - 100.0 / 11.0).abs() < 1e-9, "{}", fixed.percent());
}
