//! The JSON lines of wprof.

use proptest::prelude::*;
use scxprof_base::sample::sched::{SchedWhat, TaskState};
use scxprof_trace::analyze::*;
use scxprof_trace::{Source, TraceError, TraceWhat};

use super::files::*;

/// What one capture of wprof gave as a trace and as lines.
fn analyzed(bytes: Vec<u8>) -> (serde_json::Value, Whole) {
    let mut trace = open(bytes.clone()).unwrap();
    let mut analysis = Analysis::new(Options { limit: usize::MAX, ..Options::default() });
    while let Some(event) = trace.next_event().unwrap() {
        analysis.take(&event);
    }
    let report = serde_json::to_value(analysis.finish(&trace)).unwrap();
    (report, read(bytes))
}

/// A capture as lines, of the header and these.
fn lines(more: &[&str]) -> Vec<u8> {
    let header = r#"{"version":"3.1","timestamp":"2026-11-22T11:47:06.962Z","dur":1.0,"timer_freq_hz":100,"stack_cnt":0,
        "pmus":["instructions","cycles"],"metadata":{"kernel":"7.2.13","hostname":"h"}}"#;
    let header = header.replace('\n', "");
    let all: Vec<&str> = std::iter::once(header.as_str()).chain(more.iter().copied()).collect();
    (all.join("\n") + "\n").into_bytes()
}

#[test]
fn lines_of_a_capture_say_what_its_trace_does() {
    let Some(dir) = std::env::var_os("SCXPROF_FIXTURES") else {
        println!("SKIP: lines_of_a_capture_say_what_its_trace_does: SCXPROF_FIXTURES is not set");
        return;
    };
    let lines = std::fs::read(std::path::Path::new(&dir).join("traces/wprof.ndjson.gz")).unwrap();
    let ((mut of_lines, read), (mut of_trace, expected)) = (analyzed(lines), analyzed(fixture("wprof.pb.gz")));
    assert_eq!(read.info.source, Source::Wprof);
    assert_eq!(read.info.kernel, expected.info.kernel);
    assert!((read.info.begin_unix.unwrap() - expected.info.begin_unix.unwrap()).abs() < 1e-3);
    assert_eq!((read.info.duration_ns, read.info.stacks), (expected.info.duration_ns, expected.info.stacks));
    // wprof gives PREEMPTOR of R too, and begins what was on a CPU by another rule; nothing is made of either.
    for event in &expected.info.events {
        let is_exact = !event.name.starts_with("track:PREEMPT") && event.name != "track:no category";
        assert!(!is_exact || count(&read.info, &event.name) == event.count, "{event:?} {:?}", read.info.events);
    }
    let analyses = |report: &mut serde_json::Value| report["analyses"].take();
    let (of_lines, of_trace) = (analyses(&mut of_lines), analyses(&mut of_trace));
    let names: Vec<&String> = of_trace.as_object().unwrap().keys().collect();
    // wprof's lines have compound delays whatever its options.
    for name in names.into_iter().filter(|name| *name != "groups") {
        assert_eq!(of_lines[name], of_trace[name], "{name}");
    }
    assert_eq!(of_lines["compound_delay"]["delay"]["count"], 1307);
}

#[test]
fn switches_wakeups_and_what_they_say_are_read() {
    let task =
        |name: &str, pid: u32, tid: u32| format!(r#"{{"tid":{tid},"pid":{pid},"comm":"{name}","pcomm":"main"}}"#);
    let idle = r#"{"pid":0,"comm":"swapper/2","pcomm":"swapper/2"}"#;
    let (a, b) = (task("a", 10, 11), task("b", 20, 21));
    let waking = format!(r#"{{"ts":0.000001000,"t":"waking","waker":{a},"wakee":{b},"cpu":1,"numa":0}}"#);
    let first = format!(
        r#"{{"ts":0.000003000,"t":"switch","prev":{idle},"next":{b},"cpu":2,"numa":1,"prev_state":"runnable","waking_ts":0.000001000,"waking_reason":"woken","waker":{a},"waking_cpu":1,"compound_delay":0.000005,"compound_chain_len":2}}"#
    );
    let second = format!(
        r#"{{"ts":0.000009000,"t":"switch","prev":{b},"next":{idle},"cpu":2,"prev_state":"uninterruptible_sleep","pmus":[300.0,100.0]}}"#
    );
    let dsq = format!(
        r#"{{"ts":0.000003000,"t":"scx_dsq","task":{b},"dur":0.000001,"start_ts":0.000002000,"cpu":2,"insert_type":"insert","dsq_id":-9223372036854775807,"layer_id":4}}"#
    );
    let begun =
        format!(r#"{{"ts":0.000004,"t":"req_event","task":{b},"cpu":2,"event":"begin","req_id":7,"req_name":"get"}}"#);
    let served = format!(
        r#"{{"ts":0.000008,"t":"req_event","task":{a},"cpu":1,"event":"clear","req_id":7,"req_name":"get","latency":0.000004}}"#
    );
    let (mut a_process, read) = analyzed(lines(&[&waking, &dsq, &first, &begun, &served, &second, ""]));
    let woken = read.sched.iter().find(|event| matches!(event.what, SchedWhat::Waking { .. })).unwrap();
    let SchedWhat::Waking { task, target_cpu, .. } = woken.what else { panic!() };
    assert_eq!((woken.time, woken.tid, woken.pid, task.tid, target_cpu), (1000, 11, 10, 21, 2));
    let switches: Vec<_> = read
        .sched
        .iter()
        .filter_map(|event| match event.what {
            SchedWhat::Switch { prev, state, next } => Some((event.time, prev.tid, state, next.tid)),
            _ => None,
        })
        .filter(|(time, ..)| *time > 0)
        .collect();
    assert_eq!(switches, [(3000, 0, TaskState::Sleeping, 21), (9000, 21, TaskState::Blocked, 0)]);
    let has_dsq = |event: &scxprof_trace::TraceEvent| {
        matches!(event.what, TraceWhat::Dsq { dsq: Some(0x8000_0000_0000_0001), layer: Some(4), .. })
    };
    assert!(read.others.iter().any(has_dsq), "{:?}", read.others);
    assert_eq!(read.info.nodes, [(0, vec![1]), (1, vec![2])].into());
    assert_eq!(read.info.damage, Vec::<String>::new());
    let analyses = a_process["analyses"].take();
    assert_eq!(analyses["requests"]["requests"][0]["total_ns"], 4000);
    assert_eq!(analyses["compound_delay"]["threads"][0]["longest_chain"], 2);
    assert_eq!(analyses["wakeup_latency"]["latency"]["max_ns"], 2000);
    let groups = analyses["groups"]["groups"].as_array().unwrap();
    let of_b = groups.iter().find(|line| line["group"] == "b").unwrap();
    assert_eq!((&of_b["ipc"], &of_b["run"]["total_ns"]), (&3.0.into(), &6000.into()));
}

#[test]
fn lines_that_make_no_sense_are_counted() {
    let task = r#"{"tid":5,"pid":5,"comm":"x"}"#;
    let good = format!(r#"{{"ts":0.5,"t":"task_exit","task":{task},"cpu":0}}"#);
    let cut = r#"{"ts":0.6,"t":"switch","prev":{"ti"#;
    let wrong = [r#"{"ts":-1,"t":"exec"}"#, "[]", "nonsense", r#"{"ts":1,"t":"switch","cpu":0}"#];
    let mut bytes = lines(&[&[good.as_str()], &wrong[..]].concat());
    bytes.extend(cut.as_bytes());
    let found = read(bytes);
    assert_eq!(count(&found.info, "track:EXIT"), 1);
    assert_eq!(
        found.info.damage,
        [
            "the file ends within a packet, as one does whose recorder was killed",
            "4 packets, bundles or events are malformed"
        ]
    );
}

#[test]
fn types_that_are_not_known_are_counted_by_their_name() {
    let line = r#"{"ts":0.25,"t":"cuda_api","task":{"tid":5,"pid":5,"comm":"x"},"cpu":3,"dur":0.1,"name":"launch"}"#;
    let found = read(lines(&[line]));
    assert_eq!(count(&found.info, "track:CUDA_API"), 1);
    assert_eq!((found.others[0].time, found.others[0].tid, found.others[0].cpu), (250_000_000, 5, 3));
}

#[test]
fn the_file_of_wprof_itself_is_refused_with_what_to_do() {
    let mut bytes = b"WPROF\0".to_vec();
    bytes.extend([200, 0]);
    bytes.extend([0; 300]);
    assert!(scxprof_trace::is_trace(&bytes));
    let whole = open(bytes.clone()).err().unwrap();
    assert!(matches!(whole, TraceError::WprofData { is_incomplete: false }), "{whole:?}");
    assert!(whole.to_string().contains("wprof -R -D"), "{whole}");
    bytes[8..16].fill(0xff);
    assert!(matches!(open(bytes), Err(TraceError::WprofData { is_incomplete: true })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_lines_are_read_or_counted(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
        numbers in prop::collection::vec(prop_oneof![any::<i64>().prop_map(|it| it.to_string()), any::<f64>().prop_map(|it| format!("{it:e}"))], 5),
    ) {
        let task = format!(r#"{{"tid":{},"pid":7,"comm":"x"}}"#, numbers[0]);
        let line = format!(
            r#"{{"ts":{},"t":"switch","prev":{task},"next":{{"pid":0,"comm":"swapper/{}"}},"cpu":1,"waking_ts":{},"pmus":[{}]}}"#,
            numbers[1], numbers[2], numbers[3], numbers[4]
        );
        let known = r#"{"ts":0.5,"t":"scx_dsq","task":{"tid":8,"pid":7,"comm":"y"},"dur":0.1,"cpu":1,"dsq_id":3,"layer_id":-1}"#;
        let mut bytes = lines(&[&line, known, r#"{"id":1,"frames":["[K] a+0x1","[U] b"],"srcs":["","x.c:9"]}"#]);
        let header = bytes.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        bytes.truncate(header + cut.index(bytes.len() - header + 1));
        for (at, byte) in &changes {
            if bytes.len() > header {
                let at = header + at.index(bytes.len() - header);
                bytes[at] = *byte;
            }
        }
        // It must end, in order of time, which `read` checks.
        read(bytes);
    }
}
