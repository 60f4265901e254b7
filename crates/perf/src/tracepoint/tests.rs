//! Tests of tracepoints by their descriptions: fields of any place, size and byte order, states, and records that are damaged.

use proptest::prelude::*;

use super::*;
use scxprof_base::sample::sched::TaskState;

const COMMON: &str = "format:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";

fn switch_format() -> String {
    format!(
        "name: sched_switch\nID: 310\n{COMMON}\
         \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
         \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
         \tfield:int prev_prio;\toffset:28;\tsize:4;\tsigned:1;\n\
         \tfield:long prev_state;\toffset:32;\tsize:8;\tsigned:1;\n\
         \tfield:char next_comm[16];\toffset:40;\tsize:16;\tsigned:0;\n\
         \tfield:pid_t next_pid;\toffset:56;\tsize:4;\tsigned:1;\n\
         \tfield:int next_prio;\toffset:60;\tsize:4;\tsigned:1;\n\nprint fmt: \"...\"\n"
    )
}

/// The names of newer kernels are elsewhere in the record.
fn migrate_format(is_new: bool) -> String {
    let (comm, at) = if is_new {
        ("__data_loc char[] comm;\toffset:8;\tsize:4", 12)
    } else {
        ("char comm[16];\toffset:8;\tsize:16", 24)
    };
    let int = |name: &str, word: u32| format!("\tfield:int {name};\toffset:{};\tsize:4;\tsigned:1;\n", at + 4 * word);
    format!(
        "name: sched_migrate_task\nID: 309\n{COMMON}\tfield:{comm};\tsigned:0;\n{}{}{}{}\nprint fmt: \"...\"\n",
        int("pid", 0).replace("int pid", "pid_t pid"),
        int("prio", 1),
        int("orig_cpu", 2),
        int("dest_cpu", 3),
    )
}

fn record(id: u16, fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = id.to_ne_bytes().to_vec();
    bytes.extend_from_slice(&[0; 6]);
    for field in fields {
        bytes.extend_from_slice(field);
    }
    bytes
}

fn comm(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

#[test]
fn fields_are_found_by_their_description() {
    let mut decoder = SchedDecoder::new(false);
    assert!(decoder.add("sched:sched_switch", &switch_format()).unwrap());
    let bytes = record(
        310,
        &[
            &comm("a b"),
            &7u32.to_ne_bytes(),
            &120u32.to_ne_bytes(),
            &0x100u64.to_ne_bytes(),
            &comm("swapper/3"),
            &0u32.to_ne_bytes(),
            &120u32.to_ne_bytes(),
        ],
    );
    let prev = SchedTask { tid: 7, prio: 120, comm: Comm::from("a b") };
    let next = SchedTask { tid: 0, prio: 120, comm: Comm::from("swapper/3") };
    assert_eq!(decoder.decode(&bytes), Some(SchedWhat::Switch { prev, state: TaskState::Preempted, next }));
    assert_eq!(decoder.decode(&bytes[..bytes.len() - 5]), None, "its end is missing");
    assert_eq!(decoder.decode(&record(311, &[&[0; 56]])), None);
    // States of an older kernel, as its format says.
    let old = r#"print fmt: "%s%s", { 1, "S" }, { 16, "Z" }, { 64, "x" }, REC->prev_state & 4096 ? "+" : """#;
    let mut decoder = SchedDecoder::new(false);
    decoder.add("sched:sched_switch", &switch_format().replace("print fmt: \"...\"", old)).unwrap();
    for (bits, expected) in [(0x1000u64, TaskState::Preempted), (0x40, TaskState::Dead), (0x100, TaskState::Sleeping)] {
        let mut bytes = bytes.clone();
        bytes[32..40].copy_from_slice(&bits.to_ne_bytes());
        let Some(SchedWhat::Switch { state, .. }) = decoder.decode(&bytes) else { panic!() };
        assert_eq!(state, expected, "{bits:#x}");
    }
    for (is_new, names) in
        [(false, [&comm("mover")[..], b""]), (true, [&(0x0005_001c_u32).to_ne_bytes()[..], b"mover\0"])]
    {
        let mut decoder = SchedDecoder::new(false);
        decoder.add("sched:sched_migrate_task", &migrate_format(is_new)).unwrap();
        let numbers = [9u32, 100, 2, 3].map(u32::to_ne_bytes).concat();
        let bytes = record(309, &[names[0], &numbers, names[1]]);
        let task = SchedTask { tid: 9, prio: 100, comm: Comm::from("mover") };
        assert_eq!(decoder.decode(&bytes), Some(SchedWhat::Migrate { task, from: 2, to: 3 }), "{is_new}");
    }
}

#[test]
fn a_number_that_no_thread_has_is_no_other_thread_s() {
    let mut decoder = SchedDecoder::new(false);
    let text = "name: sched_process_fork\nID: 5\nformat:\n\
                \tfield:char child_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
                \tfield:long parent_pid;\toffset:24;\tsize:8;\tsigned:1;\n\
                \tfield:long child_pid;\toffset:32;\tsize:8;\tsigned:1;\n";
    assert_eq!(decoder.add("sched:sched_process_fork", text), Ok(true));
    let fork = |child: i64| {
        let what = decoder.decode(&record(5, &[&comm("x"), &1i64.to_ne_bytes(), &child.to_ne_bytes()]));
        what.map(|what| match what {
            SchedWhat::Fork { child, .. } => child,
            _ => unreachable!(),
        })
    };
    assert_eq!([7, -1, (1 << 32) + 1, i64::MIN].map(fork), [Some(7), Some(u32::MAX), None, None]);
}

#[test]
fn events_of_dispatch_queues_are_described_as_they_are_written() {
    let mut decoder = SchedDecoder::new(false);
    assert!(decoder.add(DSQ, DSQ_FORMAT).unwrap());
    assert!(decoder.knows(u64::from(DSQ_ID)));
    let dsq = |kind: u32, dsq: u64, slice: u64, prev: u32| {
        let (dsq, slice) = (dsq.to_ne_bytes(), slice.to_ne_bytes());
        let fields = [&kind.to_ne_bytes()[..], &7u32.to_ne_bytes(), &dsq, &slice, &prev.to_ne_bytes(), &[0; 4]];
        decoder.decode(&record(DSQ_ID, &fields))
    };
    let insert = |is_moved| Some(SchedWhat::DsqInsert { tid: 7, dsq: 5, slice: 9, is_moved });
    assert_eq!((dsq(0, 5, 9, 0), dsq(1, 5, 9, 0)), (insert(false), insert(true)));
    let switch = |dsq, slice| Some(SchedWhat::DsqSwitch { prev: 3, dsq, next: 7, slice });
    assert_eq!((dsq(2, 5, 9, 3), dsq(2, 1 << 63, 0, 3)), (switch(Some(5), Some(9)), switch(None, None)));
    assert_eq!(dsq(3, 5, 9, 0), None);
}

#[test]
fn a_recording_of_the_other_byte_order_is_read() {
    let mut decoder = SchedDecoder::new(true);
    decoder.add("sched:sched_switch", &switch_format()).unwrap();
    let bytes = record(
        310u16.swap_bytes(),
        &[
            &comm("x"),
            &7u32.swap_bytes().to_ne_bytes(),
            &[0; 4],
            &2u64.swap_bytes().to_ne_bytes(),
            &comm("y"),
            &9u32.swap_bytes().to_ne_bytes(),
            &[0; 4],
        ],
    );
    let Some(SchedWhat::Switch { prev, state, next }) = decoder.decode(&bytes) else { panic!() };
    assert_eq!((prev.tid, state, next.tid), (7, TaskState::Blocked, 9));
}

#[test]
fn what_cannot_be_read_is_refused() {
    let mut decoder = SchedDecoder::new(false);
    let text = switch_format().replace("prev_state", "state");
    let error = decoder.add("sched:sched_switch", &text).unwrap_err();
    assert_eq!(error.to_string(), "sched:sched_switch: the kernel gives no field prev_state that can be read");
    assert!(matches!(decoder.add("sched:sched_switch", "nothing"), Err(FormatError::Text { .. })));
    assert_eq!(decoder.add("sched:sched_pi_setprio", &switch_format()), Ok(false));
    assert_eq!(decoder.add("timer:sched_switch", &switch_format()), Ok(false));
    assert!(decoder.is_empty());
}

#[test]
fn a_wakeup_is_counted_once() {
    let waking = |name: &str, id: u32| {
        migrate_format(false)
            .replace("sched_migrate_task", name)
            .replace("orig_cpu", "target_cpu")
            .replace("309", &id.to_string())
    };
    let mut decoder = SchedDecoder::new(false);
    decoder.add("sched:sched_wakeup", &waking("sched_wakeup", 1)).unwrap();
    decoder.prefer_waking();
    assert!(decoder.knows(1));
    decoder.add("sched:sched_waking", &waking("sched_waking", 2)).unwrap();
    decoder.prefer_waking();
    assert!(!decoder.knows(1) && decoder.knows(2));
}

#[test]
fn states_are_those_of_the_kernel() {
    use TaskState::{Blocked, Dead, Preempted, Runnable, Sleeping};
    let states = [0, 1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80, 0x100].map(TaskState::new);
    let expected = [Runnable, Sleeping, Blocked, Sleeping, Sleeping, Dead, Dead, Sleeping, Sleeping, Preempted];
    assert_eq!(states, expected);
}

proptest! {
    #[test]
    fn any_text_and_any_record_is_safe(
        text in "(ID: ?[0-9]{1,6}\n)?(\tfield:[a-z_ \\[\\]]{0,20} (prev_comm|prev_pid|prev_state|next_comm|next_pid)(\\[16\\])?;\toffset:[0-9]{1,6};\tsize:[0-9]{1,3};\n){0,8}",
        raw in proptest::collection::vec(any::<u8>(), 0..80),
        swapped: bool,
    ) {
        let mut decoder = SchedDecoder::new(swapped);
        let _ = decoder.add("sched:sched_switch", &text);
        let _ = decoder.decode(&raw);
        decoder = SchedDecoder::new(swapped);
        decoder.add("sched:sched_migrate_task", &migrate_format(true)).unwrap();
        let mut raw = raw;
        if let Some(id) = raw.get_mut(..2) {
            id.copy_from_slice(&309u16.to_ne_bytes());
        }
        let _ = decoder.decode(&raw);
    }
}
