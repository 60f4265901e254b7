//! Tables are read back with the reader of the crate `parquet`, and compared with what the tracker says.

use std::collections::BTreeMap;
use std::fs::File;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use proptest::prelude::*;

use super::*;
use scxprof_base::sample::sched::{SchedTask, TaskState, WakenBy};
use scxprof_base::sample::{Comm, DataSource, Task};
use scxprof_sched::{Fact, Facts, Threads, Why};

type Row = BTreeMap<String, Field>;
type Tables = BTreeMap<&'static str, Vec<Row>>;

const BOTH: Knows = Knows { priorities: true, contexts: true };

fn to_files() -> impl FnMut(ParquetTable) -> io::Result<File> {
    |_| tempfile::tempfile()
}

/// The rows of each table, and the metadata of the first.
fn read(finished: Finished<File>) -> (Tables, BTreeMap<String, String>) {
    let (mut tables, mut facts) = (Tables::new(), BTreeMap::new());
    for Written { table, rows, file } in finished.tables {
        let reader = SerializedFileReader::new(file).unwrap();
        let metadata = reader.metadata().file_metadata();
        facts = metadata
            .key_value_metadata()
            .into_iter()
            .flatten()
            .map(|it| (it.key.clone(), it.value.clone().unwrap()))
            .collect();
        let row = |row: parquet::record::Row| row.into_columns().into_iter().collect::<Row>();
        let all: Vec<Row> = reader.get_row_iter(None).unwrap().map(|it| row(it.unwrap())).collect();
        assert_eq!(all.len() as u64, rows, "{table:?}");
        tables.insert(table.name(), all);
    }
    (tables, facts)
}

/// Of whole numbers that have a value.
fn number(row: &Row, column: &str) -> Option<i64> {
    match &row[column] {
        Field::Null => None,
        Field::Int(value) => Some((*value).into()),
        Field::Long(value) => Some(*value),
        Field::ULong(value) => Some(*value as i64),
        other => panic!("{column}: {other:?}"),
    }
}

fn text<'a>(row: &'a Row, column: &str) -> Option<&'a str> {
    match &row[column] {
        Field::Null => None,
        Field::Str(text) => Some(text),
        other => panic!("{column}: {other:?}"),
    }
}

fn task(tid: u32) -> SchedTask {
    SchedTask { tid, prio: 120, comm: Comm::from(format!("t{tid}").as_str()) }
}

fn at(time: u64, cpu: u32, tid: u32, what: SchedWhat) -> SchedEvent {
    SchedEvent { time, cpu, pid: if tid == 0 { 0 } else { 50 }, tid, cgroup: 0, what }
}

fn of(events: &[SchedEvent]) -> Tables {
    let mut tables = ToTables::new(&mut to_files(), BOTH, None).unwrap();
    for event in events {
        tables.sched(event);
    }
    read(tables.finish().unwrap()).0
}

#[test]
fn what_is_not_known_is_null() {
    let switch = |prev, state, next| SchedWhat::Switch { prev: task(prev), state, next: task(next) };
    let wake = |tid, by| SchedWhat::Waking { task: task(tid), target_cpu: 1, by };
    let tables = of(&[
        // What ran before the first switch is not known for how long.
        at(100, 0, 7, switch(7, TaskState::Sleeping, 8)),
        at(130, 0, 8, wake(7, WakenBy::Thread)),
        // It waits already.
        at(140, 0, 8, wake(7, WakenBy::Interrupt)),
        at(150, 0, 8, switch(8, TaskState::Preempted, 7)),
        at(170, 0, 7, switch(7, TaskState::Blocked, 0)),
        at(200, 0, 0, wake(7, WakenBy::Interrupt)),
        at(220, 0, 0, switch(0, TaskState::Runnable, 8)),
    ]);
    let rows: Vec<_> = tables["sched"]
        .iter()
        .map(|row| ["ts", "dur", "cpu", "tid", "pid", "priority"].map(|column| number(row, column)))
        .collect();
    let some = Some::<i64>;
    let expected = [
        [some(100), some(50), some(0), some(8), some(50), some(120)],
        [some(150), some(20), some(0), some(7), some(50), some(120)],
        [some(220), None, some(0), some(8), some(50), None],
    ];
    assert_eq!(rows, expected);
    let ends: Vec<_> = tables["sched"].iter().map(|row| text(row, "end_state")).collect();
    assert_eq!(ends, [Some("R+"), Some("D"), None]);
    let mut states: Vec<_> = tables["thread_state"]
        .iter()
        .map(|row| {
            (number(row, "ts").unwrap(), number(row, "tid").unwrap(), text(row, "state").unwrap(), number(row, "dur"))
        })
        .collect();
    states.sort_unstable();
    let expected = [
        (100, 7, "sleeping", some(30)),
        (100, 8, "running", some(50)),
        (130, 7, "runnable", some(20)),
        (150, 7, "running", some(20)),
        (150, 8, "preempted", some(70)),
        (170, 7, "blocked", some(30)),
        (200, 7, "runnable", None),
        (220, 8, "running", None),
    ];
    assert_eq!(states, expected);
    let waker = |ts| {
        tables["thread_state"].iter().find(|row| number(row, "ts") == Some(ts)).map(|row| number(row, "waker_tid"))
    };
    assert_eq!([waker(130), waker(200)], [Some(Some(8)), Some(None)]);
    let mut wakeups: Vec<_> = tables["wakeup"]
        .iter()
        .map(|row| {
            (
                number(row, "ts").unwrap(),
                number(row, "waker_tid"),
                number(row, "latency_ns"),
                row["in_interrupt"].clone(),
            )
        })
        .collect();
    wakeups.sort_by_key(|row| row.0);
    let [yes, no] = [true, false].map(Field::Bool);
    let expected = [(130, some(8), some(20), no), (140, None, None, yes.clone()), (200, None, None, yes)];
    assert_eq!(wakeups, expected);
    let names: Vec<_> = tables["thread"].iter().map(|row| (number(row, "tid"), text(row, "comm"))).collect();
    assert_eq!(names, [(some(7), Some("t7")), (some(8), Some("t8"))]);
    assert_eq!(number(&tables["process"][0], "threads"), some(2));
}

#[test]
fn interrupts_nest_and_end_with_their_own() {
    let tables = of(&[
        at(10, 2, 7, SchedWhat::SoftirqEntry { vec: 3 }),
        at(12, 2, 7, SchedWhat::IrqEntry { irq: 30 }),
        at(15, 2, 7, SchedWhat::IrqExit { irq: 30 }),
        at(20, 2, 7, SchedWhat::SoftirqExit { vec: 3 }),
        // Its beginning was not seen; and one whose end is lost.
        at(30, 2, 7, SchedWhat::IrqExit { irq: 31 }),
        at(40, 2, 7, SchedWhat::IrqEntry { irq: 32 }),
        at(50, 2, 7, SchedWhat::Lost),
        at(60, 2, 7, SchedWhat::IrqExit { irq: 32 }),
    ]);
    let mut rows: Vec<_> = tables["slice"]
        .iter()
        .map(|row| {
            let numbers = ["ts", "dur", "parent_id", "depth", "cpu"].map(|column| number(row, column));
            (number(row, "id"), numbers, text(row, "name").unwrap())
        })
        .collect();
    rows.sort_unstable();
    let some = Some::<i64>;
    let expected = [
        (some(1), [some(10), some(10), None, some(0), some(2)], "net_rx"),
        (some(2), [some(12), some(3), some(1), some(1), some(2)], "30"),
        (some(3), [some(40), None, None, some(0), some(2)], "32"),
    ];
    assert_eq!(rows, expected);
    assert_eq!(text(&tables["event"][0], "name"), Some("lost"));
}

#[test]
fn a_sample_has_what_the_profile_has() {
    let mut tables = ToTables::new(
        &mut to_files(),
        BOTH,
        Some(&|task: &Task<'_>| task.cgroup.starts_with(b"/web").then(|| ("web".to_owned(), None))),
    )
    .unwrap();
    tables.says("source", "pebs");
    let raw = RawSample {
        time: 5,
        pid: 10,
        tid: 11,
        cpu: RawSample::NO_CPU,
        access: Access::Load,
        addr: u64::MAX - 7,
        cgroup: 3,
        latency: 40,
        data_src: DataSource(0),
        ..RawSample::default()
    };
    let memory = Some(MemoryId::Private { space: 2, addr: u64::MAX - 7 });
    let sample = Sample { comm: Some(Comm::new(b"io-\xff")), memory, hint: Some(u64::MAX), ..Sample::from(raw) };
    tables.cgroup(3, || Some(b"/web.slice".to_vec().into()));
    tables.sample(&sample);
    let (tables, facts) = read(tables.finish().unwrap());
    assert_eq!((facts["scxprof.schema"].as_str(), facts["scxprof.source"].as_str()), ("1", "pebs"));
    let row = &tables["sample"][0];
    assert_eq!((&row["address"], &row["memory_offset"]), (&Field::ULong(u64::MAX - 7), &Field::ULong(u64::MAX - 7)));
    assert_eq!(row["hint"], Field::ULong(u64::MAX));
    for column in ["cpu", "phys_address", "page_size", "ip", "mode", "data_src", "size"] {
        assert_eq!(row[column], Field::Null, "{column}");
    }
    assert_eq!(
        (text(row, "kind"), number(row, "latency"), number(row, "cgroup_id")),
        (Some("load"), Some(40), Some(3))
    );
    let thread = &tables["thread"][0];
    assert_eq!([text(thread, "comm"), text(thread, "cgroup")], [Some("io-\\xff"), Some("/web.slice")]);
    assert_eq!([text(thread, "cell"), text(thread, "subcell")], [Some("web"), None]);
    assert_eq!(thread["is_main"], Field::Bool(false));
}

#[test]
fn a_thread_is_in_the_subcell_of_its_last_hint() {
    let place_of = |task: &Task<'_>| Some((format!("{:?}", task.hint), None));
    let cells = |hints: [Option<u64>; 3]| -> Vec<String> {
        let mut tables = ToTables::new(&mut to_files(), BOTH, Some(&place_of)).unwrap();
        for (tid, (time, hint)) in [1, 1, 2].into_iter().zip((1..).zip(hints)) {
            let raw = RawSample { time, pid: 1, tid, ..RawSample::default() };
            tables.sample(&Sample { hint, ..Sample::from(raw) });
        }
        let (tables, _) = read(tables.finish().unwrap());
        tables["thread"].iter().map(|row| text(row, "cell").unwrap().to_owned()).collect()
    };
    assert_eq!(cells([Some(3), Some(4), None]), ["Is(4)", "None"]);
    // Nothing is known of hints where no thread has one.
    assert_eq!(cells([None; 3]), ["Unknown", "Unknown"]);
}

#[test]
fn rows_are_written_in_groups() {
    let mut tables = ToTables::new(&mut to_files(), BOTH, None).unwrap();
    let count = 3 * (1u64 << 16) + 5;
    for time in 0..count {
        tables.sample(&Sample::from(RawSample { time, pid: 1, tid: 1, ..RawSample::default() }));
    }
    let finished = tables.finish().unwrap();
    let sample = finished.tables.iter().find(|it| it.table == ParquetTable::Sample).unwrap();
    let reader = SerializedFileReader::new(sample.file.try_clone().unwrap()).unwrap();
    assert_eq!((sample.rows, reader.metadata().num_row_groups()), (count, 4));
    let rows =
        reader.metadata().row_groups().iter().map(parquet::file::metadata::RowGroupMetaData::num_rows).sum::<i64>();
    assert_eq!(rows as u64, count);
}

#[test]
fn a_full_disk_is_told() {
    #[derive(Debug)]
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let tables = ToTables::new(&mut |_| Ok(Full), BOTH, None).and_then(ToTables::finish);
    let error = tables.unwrap_err().to_string();
    assert!(error.contains(&io::Error::from(io::ErrorKind::StorageFull).to_string()), "{error}");
}

/// ns, how often, by thread and what it did.
type Sums = BTreeMap<(i64, String), (i64, u64)>;

#[derive(Debug, Default)]
struct Adds {
    sums: Sums,
    wakeups: u64,
}

impl Facts for Adds {
    fn fact(&mut self, threads: &Threads, fact: &Fact) {
        let (slot, name, ns) = match *fact {
            Fact::Ran { thread: Some(thread), from, until, .. } => (thread, "running", until - from),
            Fact::Waited { thread, from, until, why: Why::Preempted, .. } => (thread, "preempted", until - from),
            Fact::Waited { thread, from, until, .. } => (thread, "runnable", until - from),
            Fact::Slept { thread, from, until, is_blocked: true } => (thread, "blocked", until - from),
            Fact::Slept { thread, from, until, .. } => (thread, "sleeping", until - from),
            Fact::Woken { .. } => {
                self.wakeups += 1;
                return;
            }
            _ => return,
        };
        let tid = threads.get(slot).unwrap().tid.into();
        let sum = self.sums.entry((tid, name.to_owned())).or_default();
        *sum = (sum.0 + ns as i64, sum.1 + 1);
    }
}

fn made() -> impl Strategy<Value = SchedEvent> {
    let state = prop_oneof![
        Just(TaskState::Runnable),
        Just(TaskState::Preempted),
        Just(TaskState::Sleeping),
        Just(TaskState::Blocked),
        Just(TaskState::Dead),
    ];
    let by = prop_oneof![Just(WakenBy::Thread), Just(WakenBy::Softirq), Just(WakenBy::Interrupt)];
    let tid = || 0u32..6;
    let what = prop_oneof![
        8 => (tid(), state, tid()).prop_map(|(prev, state, next)| (prev, SchedWhat::Switch { prev: task(prev), state, next: task(next) })),
        6 => (tid(), tid(), by).prop_map(|(tid, woken, by)| (tid, SchedWhat::Waking { task: task(woken), target_cpu: 1, by })),
        1 => (tid(), tid()).prop_map(|(tid, woken)| (tid, SchedWhat::WakeupNew { task: task(woken), target_cpu: 0 })),
        1 => (tid(), tid()).prop_map(|(tid, child)| (tid, SchedWhat::Fork { parent: tid, child, comm: Comm::from("new") })),
        1 => (tid(), tid()).prop_map(|(tid, old_tid)| (tid, SchedWhat::Exec { tid, old_tid })),
        1 => tid().prop_map(|tid| (tid, SchedWhat::Lost)),
    ];
    (0u64..5, 0u32..3, what).prop_map(|(time, cpu, (tid, what))| at(time, cpu, tid, what))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sums_of_made_streams_are_those_of_the_tracker(mut events in prop::collection::vec(made(), 0..200)) {
        let mut time = 1;
        for event in &mut events {
            time += event.time;
            event.time = time;
        }
        let (mut tracker, mut adds) = (Tracker::default(), Adds::default());
        for event in &events {
            tracker.take(event, &mut adds);
        }
        let tables = of(&events);
        let mut sums = Sums::new();
        for row in &tables["thread_state"] {
            let key = (number(row, "tid").unwrap(), text(row, "state").unwrap().to_owned());
            let Some(ns) = number(row, "dur") else { continue };
            let sum = sums.entry(key).or_default();
            *sum = (sum.0 + ns, sum.1 + 1);
        }
        prop_assert_eq!(&sums, &adds.sums);
        let running: i64 = sums.iter().filter(|((_, name), _)| name == "running").map(|(_, (ns, _))| ns).sum();
        let ran: i64 = tables["sched"].iter().filter_map(|row| number(row, "dur")).sum();
        prop_assert_eq!(ran, running);
        prop_assert_eq!(tables["wakeup"].len() as u64, adds.wakeups);
        // A latency is the wait that the wakeup began.
        let latency: i64 = tables["wakeup"].iter().filter_map(|row| number(row, "latency_ns")).sum();
        let waits: i64 = sums.iter().filter(|((_, name), _)| name == "runnable").map(|(_, (ns, _))| ns).sum();
        prop_assert_eq!(latency, waits);
    }
}
