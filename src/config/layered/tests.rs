//! What scx_layered 1.1.4 reads and does, by its sources, on made configurations.

use proptest::prelude::*;

use super::*;
use crate::host::facts::{TaskFacts, Tasks};
use crate::sample::{Task, TaskHint};

const REST: &str = r#"{"name": "rest", "matches": [[]], "kind": {"Open": {}}}"#;

/// Two layers: one with these matches, and the rest.
fn with(matches: &str) -> String {
    format!(r#"[{{"name": "it", "matches": {matches}, "kind": {{"Grouped": {{"util_range": [0.2, 0.9]}}}}}}, {REST}]"#)
}

fn consumer(matches: &str) -> Consumer {
    Consumer::new(&parse(&with(matches)).unwrap()).unwrap()
}

/// Whether the first layer takes a thread; `None` if that is not known.
fn takes(matches: &str, task: &Task<'_>, tasks: &Tasks) -> Option<bool> {
    let takers = consumer(matches).takers(task, tasks);
    takers.maybe.is_empty().then_some(takers.otherwise == Some(0))
}

fn facts() -> Tasks {
    let mut tasks = Tasks::default();
    let main = TaskFacts {
        pid: 70,
        tid: 70,
        process: Some("server".into()),
        ppid: Some(9),
        uid: Some(33),
        gid: Some(34),
        nice: Some(0),
        kthread: Some(false),
        pid_ns: Some(4_026_532_177),
        ns_tid: Some(10),
        cmdline: None,
    };
    tasks.add(TaskFacts { tid: 71, nice: Some(-5), ns_tid: Some(11), ..main.clone() });
    tasks.add(main);
    tasks.add(TaskFacts {
        pid: 2,
        tid: 2,
        kthread: Some(true),
        process: Some("kthreadd".into()),
        pid_ns: None,
        ..tasks.get(70, 70).unwrap().clone()
    });
    tasks
}

#[test]
fn each_kind_of_condition_decides_by_what_is_known() {
    let tasks = facts();
    let worker = Task::new(b"/web.slice/a.service", b"worker-1").ids(70, 71).hinted(Some(7));
    let main = Task { comm: b"server", tid: Some(70), ..worker };
    for (condition, of_worker, of_main) in [
        (r#"{"CgroupPrefix": "web.slice/"}"#, true, true),
        (r#"{"CgroupSuffix": "a.service/"}"#, true, true),
        (r#"{"CgroupSuffix": "a.service"}"#, false, false),
        (r#"{"CgroupContains": "slice/a"}"#, true, true),
        (r#"{"CgroupContains": ""}"#, true, true),
        (r#"{"CgroupRegex": "/a[.]service$"}"#, true, true),
        (r#"{"CommPrefix": "work"}"#, true, false),
        (r#"{"CommPrefixExclude": "work"}"#, false, true),
        (r#"{"PcommPrefix": "serv"}"#, true, true),
        (r#"{"PcommPrefixExclude": "serv"}"#, false, false),
        (r#"{"NiceAbove": -5}"#, false, true),
        (r#"{"NiceBelow": 0}"#, true, false),
        (r#"{"NiceEquals": -5}"#, true, false),
        (r#"{"UIDEquals": 33}"#, true, true),
        (r#"{"GIDEquals": 33}"#, false, false),
        (r#"{"PIDEquals": 71}"#, true, false),
        (r#"{"PPIDEquals": 9}"#, true, true),
        (r#"{"TGIDEquals": 70}"#, true, true),
        (r#"{"NSPIDEquals": [4026532177, 11]}"#, true, false),
        (r#"{"NSPIDEquals": [4026532178, 11]}"#, false, false),
        (r#"{"NSEquals": 4026532177}"#, true, true),
        (r#"{"IsGroupLeader": false}"#, true, false),
        (r#"{"IsGroupLeader": true}"#, false, true),
        (r#"{"IsKthread": true}"#, false, false),
        // The scheduler does not read the value.
        (r#"{"IsKthread": false}"#, false, false),
        (r#"{"HintEquals": 7}"#, true, true),
        (r#"{"HintEquals": 8}"#, false, false),
    ] {
        let matches = format!("[[{condition}]]");
        let found = [&worker, &main].map(|task| takes(&matches, task, &tasks));
        assert_eq!(found, [Some(of_worker), Some(of_main)], "{condition}");
    }
    let kernel = Task::new(b"/", b"kthreadd").ids(2, 2).hinted(None);
    for value in ["true", "false"] {
        assert_eq!(takes(&format!(r#"[[{{"IsKthread": {value}}}]]"#), &kernel, &tasks), Some(true));
    }
}

#[test]
fn what_is_not_known_leaves_each_way_open() {
    let (tasks, none) = (facts(), Tasks::default());
    let known = Task::new(b"/web", b"worker-1").ids(70, 71).hinted(None);
    let bare = Task::new(b"/web", b"worker-1");
    for condition in [
        r#"{"AvgRuntime": [0, 100]}"#,
        r#"{"UsedGpuTid": true}"#,
        r#"{"UsedGpuPid": false}"#,
        r#"{"NumaNode": 0}"#,
        r#"{"CmdJoin": "a"}"#,
    ] {
        assert_eq!(takes(&format!("[[{condition}]]"), &known, &tasks), None, "{condition}");
    }
    for condition in [
        r#"{"PcommPrefix": "s"}"#,
        r#"{"NiceAbove": 0}"#,
        r#"{"UIDEquals": 0}"#,
        r#"{"GIDEquals": 0}"#,
        r#"{"PIDEquals": 1}"#,
        r#"{"PPIDEquals": 1}"#,
        r#"{"TGIDEquals": 1}"#,
        r#"{"NSPIDEquals": [1, 1]}"#,
        r#"{"NSEquals": 1}"#,
        r#"{"IsGroupLeader": true}"#,
        r#"{"IsKthread": true}"#,
        r#"{"HintEquals": 1}"#,
    ] {
        assert_eq!(takes(&format!("[[{condition}]]"), &bare, &none), None, "{condition}");
        // Another condition may decide nevertheless.
        if !condition.contains("Hint") {
            let fails = format!(r#"[[{condition}, {{"CommPrefix": "x"}}]]"#);
            assert_eq!(takes(&fails, &bare, &none), Some(false), "{condition}");
        }
        let holds = format!(r#"[[{condition}], [{{"CommPrefix": "worker"}}]]"#);
        assert_eq!(takes(&holds, &bare, &none), Some(true), "{condition}");
    }
    // A process has its main thread's user and parent where the thread itself is not known, but not its nice value.
    let late = Task { tid: Some(79), ..known };
    assert_eq!(takes(r#"[[{"UIDEquals": 33}]]"#, &late, &tasks), Some(true));
    assert_eq!(takes(r#"[[{"NiceEquals": 0}]]"#, &late, &tasks), None);
    // A main thread has the name of its process.
    let main = bare.ids(5, 5);
    assert_eq!(takes(r#"[[{"PcommPrefix": "worker"}]]"#, &main, &none), Some(true));
    assert_eq!(takes(r#"[[{"PcommPrefix": "web"}]]"#, &bare.process(Some(b"web")), &none), Some(true));
}

#[test]
fn a_hint_precedes_unless_the_load_decides() {
    let json = format!(
        r#"[{{"name": "a", "matches": [[{{"CommPrefix": "a"}}]], "kind": {{"Open": {{}}}}}},
            {{"name": "h", "matches": [[{{"HintEquals": 3}}]], "kind": {{"Open": {{}}}}}},
            {{"name": "l", "matches": [[{{"HintEquals": 4}}, {{"SystemCpuUtilBelow": 0.5}}]], "kind": {{"Open": {{}}}}}}, {REST}]"#
    );
    let consumer = Consumer::new(&parse(&json).unwrap()).unwrap();
    let takers = |hint| consumer.takers(&Task::new(b"/", b"a").hinted(hint), &Tasks::default());
    assert_eq!((takers(None).otherwise, takers(Some(3)).otherwise), (Some(0), Some(1)));
    let open = takers(Some(4));
    assert_eq!((open.maybe.len(), open.maybe[0].0, open.otherwise), (1, 2, Some(0)));
    assert_eq!(Vec::from_iter(&open.maybe[0].1), [&"SystemCpuUtilBelow"]);
    let unknown = consumer.takers(&Task { hint: TaskHint::Unknown, ..Task::new(b"/", b"b") }, &Tasks::default());
    assert_eq!((unknown.maybe.iter().map(|it| it.0).collect::<Vec<_>>(), unknown.otherwise), (vec![1, 2], Some(3)));
}

#[test]
fn threads_join_by_their_names() {
    let name = |opcode: u8, layer: &[u8]| [&[0x10, 0x5c, opcode], layer].concat();
    let joins =
        |comm: &[u8]| takes(r#"[[{"CmdJoin": "fast"}]]"#, &Task::new(b"/", comm).hinted(None), &Tasks::default());
    assert_eq!(joins(&name(1, b"faster")), Some(true));
    assert_eq!(joins(&name(1, b"slow")), Some(false));
    assert_eq!(joins(&name(1, b"")), Some(false));
    assert_eq!(joins(&name(2, b"faster")), Some(false));
    assert_eq!(joins(b"worker"), None);
}

#[test]
fn a_template_is_a_layer_for_each_cgroup() {
    let json = format!(
        r#"[{{"name": "box-", "template": {{"CgroupRegex": "/box[0-9]+$"}}, "matches": [[{{"CommPrefix": "w"}}]],
            "kind": {{"Confined": {{"util_range": [0.2, 0.9]}}}}}}, {REST}]"#
    );
    let mut consumer = Consumer::new(&parse(&json).unwrap()).unwrap();
    let layer = |consumer: &Consumer, cgroup: &str, comm: &str| {
        let task = Task::new(cgroup.as_bytes(), comm.as_bytes()).hinted(None);
        let layer = consumer.takers(&task, &Tasks::default()).otherwise.unwrap();
        (layer, consumer.suffix(layer, cgroup.as_bytes()).unwrap_or_default())
    };
    // Without such a cgroup the layer is taken as it is.
    assert_eq!(layer(&consumer, "/other", "w1"), (0, String::new()));
    consumer.know_cgroups([&b"/other"[..], b"/a/box7", b"/a/box7/x"].into_iter());
    assert_eq!(layer(&consumer, "/other", "w1").0, 1);
    assert_eq!(layer(&consumer, "/a/box7", "w1"), (0, "/sys/fs/cgroup/a/box7/".to_owned()));
    assert_eq!(layer(&consumer, "/a/box7", "x").0, 1);
    let long = format!("/{}/box1", "é".repeat(90));
    let (_, suffix) = layer(&consumer, &long, "w");
    assert_eq!((suffix.chars().count(), suffix.ends_with("/box1/")), (64, true), "{suffix}");
}

#[test]
fn all_kinds_of_layers_and_their_options_are_read() {
    let json = r#"[
        {"name": "a", "comment": "x", "template": null, "matches": [[{"CommPrefix": "a"}]], "kind": {"Confined": {
            "util_range": [0.1, 2], "cpus_range": null, "cpus_range_frac": [0.1, 1], "membw_gb": 25, "protected": true,
            "min_exec_us": 100, "yield_ignore": 0.5, "slice_us": 800, "fifo": true, "preempt": true, "preempt_first": false,
            "exclusive": false, "allow_node_aligned": true, "skip_remote_node": false, "prev_over_idle_core": true, "weight": 7,
            "disallow_open_after_us": 1, "disallow_preempt_after_us": null, "xllc_mig_min_us": 10.5, "idle_smt": null,
            "growth_algo": "CpuSetSpreadReverse", "util_peak_half_life_ms": 5, "perf": 1024, "idle_resume_us": 3, "nodes": [0],
            "llcs": [1, 2], "placement": "Floating", "member_expire_ms": 9, "xnuma_threshold": [0.1, 0.2],
            "xnuma_threshold_delta": [0.1, 1], "unknown": {}}}},
        {"name": "b", "matches": [[{"NiceBelow": 0}]], "kind": {"Grouped": {"util_range": [0.1, 0.9], "util_includes_open_cputime": true,
            "idle_confined": true, "cpus_range": [0, 5]}}},
        {"name": "rest", "matches": [[]], "kind": {"Open": {"util_range": "ignored there", "growth_algo": "Topo"}}}]"#;
    let layers = parse(json).unwrap();
    loads(&layers).unwrap();
    let kinds: Vec<&LayerKind> = layers.iter().map(|layer| &layer.kind).collect();
    let cpus = |util_range, growth_algo, cpus_range| Cpus { util_range, growth_algo, cpus_range };
    assert_eq!(
        kinds,
        [
            &LayerKind::Confined(cpus(Some((0.1, 2.0)), Growth::CpuSetSpreadReverse, None)),
            &LayerKind::Grouped(cpus(Some((0.1, 0.9)), Growth::Sticky, Some((0, 5)))),
            &LayerKind::Open(cpus(None, Growth::Topo, None)),
        ]
    );
}

#[test]
fn a_wrong_file_is_refused_in_one_sentence_with_layer_field_and_what_is_allowed() {
    let kind = |kind: &str| format!(r#"[{{"name": "it", "matches": [[]], "kind": {kind}}}]"#);
    for (json, sentence) in [
        (
            with(r#"[[{"CommPrefx": "a"}]]"#),
            r#"layer "it", field matches[0][0]: "CommPrefx" is no condition of scx_layered, which has CgroupPrefix, "#,
        ),
        (with(r#"[[{"CommPrefx": "a"}]]"#), "; did you mean CommPrefix?"),
        (
            with(r#"[[], [{"NiceAbove": "5"}]]"#),
            r#"layer "it", field matches[1][0].NiceAbove: "5" is not a whole number from -2147483648 to 2147483647"#,
        ),
        (
            with(r#"[[{"UIDEquals": -1}]]"#),
            "field matches[0][0].UIDEquals: -1 is not a whole number from 0 to 4294967295",
        ),
        (with(r#"[[{"AvgRuntime": [1]}]]"#), "AvgRuntime: [1] is not a list of two whole numbers from 0 up"),
        (with(r#"[[{"CommPrefix": "a", "NiceAbove": 1}]]"#), "is no condition, which is an object with one key"),
        (with(r#"[[{"IsKthread": 1}]]"#), "IsKthread: 1 is not true or false"),
        (with(r#"[{"CommPrefix": "a"}]"#), r#"field matches[0]: {"CommPrefix":"a"} is not a list of conditions"#),
        (with(r#""a""#), r#"field matches: "a" is not a list of lists of conditions"#),
        (kind(r#"{"Closed": {}}"#), r#"layer "it", field kind: "Closed" is none of Confined, Grouped, Open"#),
        (kind(r#"{"Grouped": {}}"#), r#"layer "it", field kind.Grouped.util_range: it is missing"#),
        (kind(r#"{"Grouped": {"util_rnge": [0, 1]}}"#), r#"it is missing; it has "util_rnge""#),
        (
            kind(r#"{"Grouped": {"util_range": [0, 1], "slice_us": 1.5}}"#),
            "field kind.Grouped.slice_us: 1.5 is not a whole number from 0 up",
        ),
        (
            kind(r#"{"Open": {"growth_algo": "linear"}}"#),
            r#"field kind.Open.growth_algo: "linear" is none of Sticky, Linear, "#,
        ),
        (kind(r#"{"Open": {"placement": "x"}}"#), "is none of Standard, Sticky, Floating"),
        (kind(r#"{"Open": {"weight": null}}"#), "field kind.Open.weight: null is not a whole number"),
        (
            r#"[{"name": "a", "matchs": [[]], "kind": {"Open": {}}}]"#.to_owned(),
            r#"layer "a", field matches: it is missing; it has "matchs""#,
        ),
        (r#"[{"matches": [[]], "kind": {"Open": {}}}]"#.to_owned(), "layer 1, field name: it is missing"),
        (
            r#"[{"name": "a", "template": {"CommPrefix": "a"}, "matches": [[]], "kind": {"Open": {}}}]"#.to_owned(),
            "field template: CommPrefix cannot be one",
        ),
        ("[7]".to_owned(), "layer 1, itself: 7 is not an object"),
        (r#"{"kind": 1}"#.to_owned(), "a configuration of scx_layered is a list of layers"),
    ] {
        let error = parse(&json).unwrap_err().to_string();
        assert!(error.contains(sentence), "{json}\n{error}\n{sentence}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn what_the_scheduler_refuses_is_refused() {
    let layer = |number: usize| {
        format!(r#"{{"name": "l{number}", "matches": [[{{"CommPrefix": "a"}}]], "kind": {{"Open": {{}}}}}}"#)
    };
    let many = |count: usize| format!("[{}, {REST}]", (0..count).map(layer).collect::<Vec<_>>().join(", "));
    let ranged = |range: &str| with("[[]]").replace("[0.2, 0.9]", range);
    for (json, sentence) in [
        ("[]".to_owned(), "0 layers; the scheduler takes 1 to 16"),
        (many(16), "17 layers"),
        (format!("[{}]", layer(1)), r#"the last layer, "l1", must take every thread"#),
        (with("[]"), "0 alternatives"),
        (with(&format!("[{}]", ["[]"; 33].join(","))), "33 alternatives"),
        (with(&format!("[[{}]]", [r#"{"NiceAbove": 1}"#; 27].join(","))), "27 conditions"),
        (with(r#"[[{"CommPrefix": "0123456789abcdef"}]]"#), "is not 1 to 15 bytes"),
        (with(r#"[[{"CgroupRegex": "("}]]"#), "does not compile"),
        (with(r#"[[{"HintEquals": 1025}]]"#), "HintEquals 1025"),
        (with(r#"[[{"HintEquals": 1}, {"CommPrefix": "a"}]]"#), "HintEquals 1"),
        (with(r#"[[{"SystemCpuUtilBelow": 0.5}]]"#), "need a HintEquals beside them"),
        (with(r#"[[{"HintEquals": 1}, {"DsqInsertBelow": 1.5}]]"#), "1.5 is not from 0 to 1"),
        (ranged("[0.9, 0.2]"), "util_range or cpus_range"),
    ] {
        let error = loads(&parse(&json).unwrap()).unwrap_err().to_string();
        assert!(error.contains(sentence), "{json}\n{error}");
    }
    // Two names, conditions that all hold, and a prefix of nothing are no mistakes there.
    for json in [
        format!("[{}, {}, {REST}]", layer(1), layer(1)),
        with("[[]]"),
        with(r#"[[{"CommPrefix": ""}]]"#),
        with(r#"[[{"HintEquals": 1}], [{"HintEquals": 1}, {"DsqInsertBelow": 0.5}]]"#),
        many(15),
    ] {
        loads(&parse(&json).unwrap()).unwrap();
    }
}

/// JSON of any shape, with words that a configuration has.
fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let word = prop::sample::select(vec![
        "name",
        "matches",
        "kind",
        "template",
        "Open",
        "Grouped",
        "util_range",
        "CommPrefix",
        "AvgRuntime",
        "x",
    ]);
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(|it| serde_json::json!(it)),
        word.clone().prop_map(Into::into),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map(word.clone().prop_map(str::to_owned), inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_text_panics(value in any_json()) {
        if let Ok(layers) = parse(&value.to_string()) {
            if loads(&layers).is_ok() {
                let _ = Consumer::new(&layers).unwrap().takers(&Task::new(b"/a", b"b"), &Tasks::default());
            }
        }
    }

    #[test]
    fn every_condition_that_is_written_is_read_again(text in "[a-z/.]{0,9}", number: u32, pair: (u64, u64), nice: i32, part in 0.0..1.0f64, is: bool) {
        let all = vec![
            LayerMatch::CgroupPrefix(text.clone()), LayerMatch::CgroupSuffix(text.clone()), LayerMatch::CgroupContains(text.clone()),
            LayerMatch::CgroupRegex(text.clone()), LayerMatch::CommPrefix(text.clone()), LayerMatch::CommPrefixExclude(text.clone()),
            LayerMatch::PcommPrefix(text.clone()), LayerMatch::PcommPrefixExclude(text.clone()), LayerMatch::NiceAbove(nice),
            LayerMatch::NiceBelow(nice), LayerMatch::NiceEquals(nice), LayerMatch::UIDEquals(number), LayerMatch::GIDEquals(number),
            LayerMatch::PIDEquals(number), LayerMatch::PPIDEquals(number), LayerMatch::TGIDEquals(number),
            LayerMatch::NSPIDEquals(pair.0, number), LayerMatch::NSEquals(number), LayerMatch::CmdJoin(text),
            LayerMatch::IsGroupLeader(is), LayerMatch::IsKthread(is), LayerMatch::UsedGpuTid(is), LayerMatch::UsedGpuPid(is),
            LayerMatch::AvgRuntime(pair.0, pair.1), LayerMatch::HintEquals(pair.1), LayerMatch::SystemCpuUtilBelow(part),
            LayerMatch::DsqInsertBelow(part), LayerMatch::NumaNode(number),
        ];
        prop_assert_eq!(all.len(), 28);
        for condition in all {
            let json = serde_json::to_string(&condition).unwrap();
            prop_assert!(json.contains(condition.kind()));
            let layers = parse(&with(&format!("[[{json}]]"))).unwrap();
            // Numbers with a point may differ in the last digit.
            prop_assert_eq!(layers[0].matches[0][0].kind(), condition.kind());
        }
    }
}
