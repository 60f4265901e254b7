//! The real binary: `score`, and `run --score`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Two pairs of threads that share a buffer each, for 8 s; and a thread that shares nothing.
fn profile(directory: &Path) -> String {
    let mut text = String::new();
    for at in 0..8000u64 {
        // Any pair and any line of its buffer, so that no two slices of time are alike.
        let random = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (pair, place) = (random >> 60 & 1, at % 2);
        let comm = [["get-red", "put-red"], ["get-blue", "put-blue"]][pair as usize][place as usize];
        let (tid, addr) = (10 + pair * 2 + place, 0x7f00_0000 + pair * 0x10_0000 + (random >> 40) % 256 * 64);
        let time = format!("{}.{:09}", 5 + at / 1000, at % 1000 * 1_000_000);
        let mut line = |tid: u64, comm: &str, addr: u64| {
            let _ = writeln!(
                text,
                "{{\"comm\":\"{comm}\",\"tid\":{tid},\"pid\":10,\"time\":\"{time}\",\"addr\":\"{addr:x}\",\
                 \"cgroup\":\"/a\",\"op\":\"store\"}}"
            );
        };
        line(tid, comm, addr);
        if pair + place == 0 {
            line(20, "loner", 0x6f00_0000 + at / 4 % 256 * 64);
        }
    }
    let path = directory.join("perf.jsonl");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A configuration of one cell with subcells of these prefixes.
fn cells(directory: &Path, name: &str, subcells: &[&[&str]]) -> String {
    let matched = |prefixes: &&[&str]| {
        let ors: Vec<String> = prefixes.iter().map(|prefix| format!("[{{\"CommPrefix\": \"{prefix}\"}}]")).collect();
        format!("{{\"name\": \"{}\", \"matches\": [{}]}}", prefixes[0], ors.join(", "))
    };
    let mut all: Vec<String> = subcells.iter().map(matched).collect();
    all.push("{\"name\": \"rest\", \"matches\": [[]]}".to_owned());
    let path = directory.join(name);
    let text = format!("[{{\"name\": \"all\", \"matches\": {{}}, \"subcells\": [{}]}}]", all.join(", "));
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A configuration of scx_layered that matches hints.
fn layers_of_hints(directory: &Path) -> String {
    let kind = r#"{"Grouped": {"util_range": [0.1, 0.2], "growth_algo": "StickyDynamic"}}"#;
    let path = directory.join("hints.json");
    let layer = |name: &str, matches: &str| format!(r#"{{"name": "{name}", "matches": {matches}, "kind": {kind}}}"#);
    let layers = [layer("one", r#"[[{"HintEquals": 1}]]"#), layer("rest", "[[]]")];
    fs::write(&path, format!("[{}]", layers.join(", "))).unwrap();
    path.to_str().unwrap().to_owned()
}

fn scxprof(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scxprof")).args(arguments).output().unwrap()
}

#[track_caller]
fn expect(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn refusal(output: &Output, code: i32, sentence: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(expect(output, code).is_empty());
    let errors: Vec<&str> = said.lines().filter(|line| !line.starts_with("note: ")).collect();
    assert!(errors.len() == 1 && errors[0].contains(sentence), "{said}");
}

#[test]
fn scores_tell_good_configurations_from_bad_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = profile(directory.path());
    let good = cells(directory.path(), "good.json", &[&["get-red", "put-red"], &["get-blue", "put-blue"], &["loner"]]);
    let half = cells(directory.path(), "half.json", &[&["get-red", "put-red"], &["get-blue"], &["loner"]]);
    let bad = cells(directory.path(), "bad.json", &[&["get"], &["put"], &["loner"]]);
    let flat = directory.path().join("flat.json").to_str().unwrap().to_owned();
    fs::write(&flat, r#"[{"name": "all", "matches": {}}]"#).unwrap();
    let configs = ["--config", &good, "--config", &half, "--config", &bad, "--config", &flat];
    let all = [&["score", "-f", &path, "--target-cpus", "16"], &configs[..]].concat();
    let found: Value = serde_json::from_str(&expect(&scxprof(&[&all[..], &["--json"]].concat()), 0)).unwrap();
    let scores: Vec<&Value> = found["configurations"].as_array().unwrap().iter().collect();
    let part = |value: &Value| value.as_f64().unwrap();
    let values: Vec<f64> = scores.iter().map(|it| part(&it["score"])).collect();
    // Four subcells have half a cache each. Of two in different ones, one in three pairs is on one cache; of five threads without
    // subcells, 1.5 of the 4 others are near.
    let chance = 1.5 / 4.0;
    let apart = (1.0 / 3.0 - chance) / (1.0 - chance);
    let expected = [1.0, f64::midpoint(1.0, apart), apart, 0.0];
    assert!(values.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.05), "{values:?}");
    let interval = &scores[1]["interval"];
    assert!((1e-4..0.2).contains(&(part(&interval[1]) - part(&interval[0]))), "{interval}");
    // That of scxprof has the same subcells as the first.
    assert!((part(&found["best"]["score"]) - 1.0).abs() < 0.01, "{}", found["best"]);
    for (score, value) in scores.iter().zip(&values) {
        assert!(
            part(&score["interval"][0]) <= *value + 1e-9 && part(&score["interval"][1]) >= *value - 1e-9,
            "{score}"
        );
        assert!((part(&score["below_best"]) - (part(&found["best"]["score"]) - value)).abs() < 1e-9);
    }
    // Per subcell, what remains, and who is in the wrong place.
    let half = scores[1];
    let cell = &half["cells"][0];
    assert_eq!((cell["threads"].as_u64(), cell["cgroup"].is_null()), (Some(5), true));
    let subcells: Vec<(&str, u64)> = cell["subcells"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["name"].as_str().unwrap(), it["threads"].as_u64().unwrap()))
        .collect();
    assert_eq!((subcells[0], subcells.len()), (("get-red", 2), 4));
    assert!((part(&cell["subcells"][0]["avoids"]) - 0.5).abs() < 0.05 && part(&cell["at_most"]) > 0.999);
    let pair = &half["pairs"][0];
    assert_eq!((pair["a"].as_str(), pair["b"].as_str()), (Some("all/get-blue"), Some("all/rest")), "{pair}");
    let misplaced: Vec<&str> =
        half["misplaced"].as_array().unwrap().iter().map(|it| it["comm"].as_str().unwrap()).collect();
    assert_eq!(misplaced.len(), 2, "{misplaced:?}");
    assert!(misplaced.contains(&"get-blue") && misplaced.contains(&"put-blue"));
    let unmatched: Vec<&str> =
        half["unmatched"].as_array().unwrap().iter().map(|it| it["comm"].as_str().unwrap()).collect();
    assert_eq!(unmatched, ["put-blue"]);
    assert!(scores[0]["misplaced"].as_array().unwrap().is_empty() && scores[0]["pairs"].as_array().unwrap().is_empty());

    // For people, and to a file.
    let file = directory.path().join("score.txt").to_str().unwrap().to_owned();
    assert_eq!(expect(&scxprof(&[&all[..], &["-o", &file]].concat()), 0), "");
    let text = fs::read_to_string(&file).unwrap();
    for line in ["put-blue (1 thread) in all/rest: ", "  all/get-blue and all/rest: ", "(best) "] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // For CI.
    expect(&scxprof(&["score", "-f", &path, "--config", &good, "--at-least", "95", "--target-cpus", "16"]), 0);
    let low = scxprof(&[&all[..], &["--at-least", "95"]].concat());
    assert!(expect(&low, 5).contains("half.json"), "the result is printed all the same");
    let said = String::from_utf8_lossy(&low.stderr).into_owned();
    assert!(said.contains("half.json avoids 4") && said.contains("less than --at-least 95"), "{said}");
}

/// Two groups of four threads that each write to a buffer of their own.
fn two_groups(directory: &Path) -> String {
    let mut text = String::new();
    for at in 0..8000u64 {
        let random = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let thread = at % 8;
        let (comm, addr) =
            (["get", "put"][thread as usize / 4], 0x7f00_0000 + thread / 4 * 0x10_0000 + (random >> 40) % 256 * 64);
        let time = format!("{}.{:09}", 5 + at / 1000, at % 1000 * 1_000_000);
        let _ = writeln!(
            text,
            "{{\"comm\":\"{comm}-{thread}\",\"tid\":{},\"pid\":10,\"time\":\"{time}\",\"addr\":\"{addr:x}\",\
             \"cgroup\":\"/a\",\"op\":\"store\"}}",
            10 + thread
        );
    }
    let path = directory.join("perf.jsonl");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_configuration_fits_the_caches_that_are_known() {
    let directory = tempfile::tempdir().unwrap();
    let path = two_groups(directory.path());
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (file, report) = (at("cells.json"), at("report.json"));
    let subcells = |llcs: &str| -> (usize, String, Value) {
        let target = ["--target-cpus", "8", "--target-llcs", llcs];
        let made = scxprof(&[&["extract", "-f", &path, "-o", &file, "--report", &report][..], &target].concat());
        expect(&made, 0);
        let said = String::from_utf8_lossy(&made.stderr).into_owned();
        let read = |path: &str| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
        let count = read(&file)[0]["subcells"].as_array().unwrap().len();
        let report = read(&report);
        // The same number for the same configuration.
        let score = scxprof(&[&["score", "-f", &path, "--config", &file, "--json"][..], &target].concat());
        let score: Value = serde_json::from_str(&expect(&score, 0)).unwrap();
        assert_eq!(score["configurations"][0]["locality"], report["locality"]);
        assert!(report["locality"].as_f64().unwrap() > 0.99, "{said}");
        (count, said, report)
    };
    let (count, said, report) = subcells("2");
    assert!(count == 2 && said.contains("2 subcells fit the host's 2 last-level caches better than 3"), "{said}");
    let headline = report["headline"].as_str().unwrap();
    assert!(headline.starts_with("2 groups: ") && !headline.contains("this host fits"), "{headline}");
    let (count, said, _) = subcells("1");
    assert!(count == 3 && !said.contains("last-level caches"), "{said}");
}

#[test]
fn subcells_that_fit_the_caches_are_better_than_those_that_do_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = two_groups(directory.path());
    // Three subcells of 8 CPUs: "get" has CPUs 3 to 5, and both groups borrow idle ones of the first cache. Two have a cache each.
    let three = cells(directory.path(), "three.json", &[&["get"], &["put"]]);
    let two = cells(directory.path(), "two.json", &[&["put"]]);
    let score = |more: &[&str]| -> (Value, [[f64; 2]; 2]) {
        let args = ["score", "-f", &path, "--config", &three, "--config", &two, "--target-cpus", "8", "--json"];
        let found: Value = serde_json::from_str(&expect(&scxprof(&[&args[..], more].concat()), 0)).unwrap();
        let part = |at: usize, field: &str| found["configurations"][at][field].as_f64().unwrap();
        let parts = [0, 1].map(|at| [part(at, "locality"), part(at, "score")]);
        (found, parts)
    };
    let (known, [three_known, two_known]) = score(&["--target-llcs", "2"]);
    assert_eq!((&known["llcs"], &known["order"]), (&2.into(), &"known".into()));
    // One of three others is near, where three of seven are by chance.
    let (near, chance) = (1.0 / 3.0, 3.0 / 7.0);
    assert!((three_known[1] - (near - chance) / (1.0 - chance)).abs() < 0.05, "{three_known:?}");
    assert!(two_known[1] > 0.99, "{two_known:?}");
    // The catch-all is a place of its own.
    assert!(three_known[0] > 0.99 && two_known[0] > 0.99, "{three_known:?} {two_known:?}");
    // The order is unknown, and the catch-all keeps no threads together; with one cache, too.
    let (random, of_random) = score(&[]);
    assert_eq!((&random["llcs"], &random["order"]), (&2.into(), &"random".into()));
    // Each group is in the middle every second time, and on both caches then.
    let half = (2.0 / 3.0 - chance) / (1.0 - chance);
    assert!((of_random[1][0] - 0.5).abs() < 0.05 && (of_random[0][1] - half).abs() < 0.05, "{of_random:?}");
    assert_eq!(score(&["--target-llcs", "1"]), (random, of_random));
    // `--llcs` is for the model alone.
    let (given, of_given) = score(&["--target-llcs", "2", "--llcs", "4"]);
    assert_eq!((&given["llcs"], &given["order"]), (&4.into(), &"random".into()));
    assert!(of_given[1][0] > 0.99, "{of_given:?}");
    let args = ["score", "-f", &path, "--config", &two, "--target-cpus", "8"];
    let text = |more: &[&str]| expect(&scxprof(&[&args[..], more].concat()), 0);
    let sentence = "last-level caches with the CPUs that scx_mitosis gives to each subcell, less";
    let joined = text(&["--target-llcs", "2"]).replace('\n', " ");
    assert!(joined.contains(sentence) && !text(&[]).contains("scx_mitosis gives"), "{joined}");
}

#[test]
fn threads_that_sleep_seldom_run_on_the_cpus_of_others() {
    let directory = tempfile::tempdir().unwrap();
    two_groups(directory.path());
    let three = cells(directory.path(), "three.json", &[&["get"], &["put"]]);
    let path = directory.path().to_str().unwrap();
    let score = |cpu_seconds: f64, more: &[&str]| {
        let known = serde_json::json!({ "source": "mem", "duration": 8.0, "cpu_seconds": cpu_seconds });
        crate::profile::meta::write(directory.path(), &known);
        let target = ["--target-cpus", "8", "--target-llcs", "2", "--json"];
        let args = [&["score", "-f", path, "--config", &three][..], &target, more].concat();
        let found: Value = serde_json::from_str(&expect(&scxprof(&args), 0)).unwrap();
        found["configurations"][0]["score"].as_f64().unwrap()
    };
    // "get" has CPUs 3 to 5, and "put" 6 and 7; without a configuration three of seven others are near.
    let of = |get: f64, put: f64| (f64::midpoint(get, put) - 3.0 / 7.0) / (4.0 / 7.0);
    let asleep = of((5.0 / 9.0 * 4.0 - 1.0) / 3.0, 1.0);
    let awake = of(1.0 / 3.0, 1.0 / 3.0);
    let [much, little] = [8.0 * 8.0, 0.08].map(|cpu_seconds| score(cpu_seconds, &[]));
    assert!((much - awake).abs() < 0.05, "{much} {awake}");
    assert!((little - asleep).abs() < 0.05, "{little} {asleep}");
    let half = score(4.0 * 8.0, &[]);
    assert!(half > much + 0.1 && half < little - 0.1, "{much} {half} {little}");
    // The CPU time is that of all threads, and says nothing of a selection.
    let selected = score(0.08, &["--comm", "get|put"]);
    assert!((selected - much).abs() < 1e-9, "{selected} {much}");
}

#[test]
fn layers_have_scores_too() {
    let directory = tempfile::tempdir().unwrap();
    let path = profile(directory.path());
    let layers = directory.path().join("layers.json").to_str().unwrap().to_owned();
    expect(&scxprof(&["extract", "-f", &path, "--target", "layered", "--target-cpus", "16", "-o", &layers]), 0);
    let json = expect(&scxprof(&["score", "-f", &path, "--config", &layers, "--target-cpus", "16", "--json"]), 0);
    let found: Value = serde_json::from_str(&json).unwrap();
    let score = &found["configurations"][0];
    assert_eq!((&score["scheduler"], &found["best"]["scheduler"]), (&"layered".into(), &"layered".into()));
    assert!(score["score"].as_f64().unwrap() > 0.6 && score["below_best"].as_f64().unwrap().abs() < 1e-9, "{score}");
    // With more caches than 2 a layer with a large part of the samples is in several of them.
    let args = ["score", "-f", &path, "--config", &layers, "--target-cpus", "16", "--json", "--llcs", "8"];
    let wide: Value = serde_json::from_str(&expect(&scxprof(&args), 0)).unwrap();
    assert!(wide["configurations"][0]["score"].as_f64().unwrap() < 0.5, "{}", wide["configurations"][0]["score"]);
}

#[test]
fn groups_of_one_name_in_two_processes_have_a_layer_each_on_this_host() {
    let directory = tempfile::tempdir().unwrap();
    let mut text = String::new();
    for at in 0..6000u64 {
        let random = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (process, thread) = (random >> 60 & 1, at % 2);
        let (pid, addr) = (10 + 20 * process, 0x7f00_0000 + process * 0x10_0000 + (random >> 40) % 256 * 64);
        let _ = writeln!(
            text,
            "{{\"comm\":\"worker-{thread}\",\"tid\":{},\"pid\":{pid},\"time\":\"{}.{:09}\",\"addr\":\"{addr:x}\",\
             \"cgroup\":\"/a\",\"op\":\"store\"}}",
            pid + thread,
            5 + at / 1000,
            at % 1000 * 1_000_000
        );
    }
    let path = directory.path().join("perf.jsonl");
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let extract = |more: &[&str]| {
        let layers = directory.path().join("layers.json").to_str().unwrap().to_owned();
        let args = ["extract", "-f", path, "--target", "layered", "--target-cpus", "16", "-o", &layers];
        let output = scxprof(&[&args[..], more].concat());
        expect(&output, 0);
        let args = ["score", "-f", path, "--config", &layers, "--target-cpus", "16", "--json"];
        let found: Value = serde_json::from_str(&expect(&scxprof(&args), 0)).unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (fs::read_to_string(&layers).unwrap(), found["configurations"][0].clone(), said)
    };
    let (layers, score, said) = extract(&["--this-host"]);
    for pid in ["10", "30"] {
        assert!(layers.contains(&format!("[[{{\"TGIDEquals\":{pid}}}]]")), "{layers}");
    }
    assert!(score["locality"].as_f64().unwrap() > 0.99, "{score}");
    let busy: Vec<&Value> = score["cells"].as_array().unwrap().iter().filter(|it| it["threads"] == 2).collect();
    assert_eq!(busy.len(), 2, "each pair has a layer: {score}");
    assert!(said.contains("those with process ids hold until the processes end"), "{said}");
    let (layers, score, _) = extract(&[]);
    assert!(!layers.contains("TGIDEquals"), "{layers}");
    assert!(score["cells"].as_array().unwrap().iter().all(|it| it["threads"] != 2), "{score}");
    // It is for scx_layered alone.
    expect(&scxprof(&["extract", "-f", path, "--this-host"]), 2);
}

/// Layers with these matches, and one of all other threads.
fn layers(directory: &Path, name: &str, layers: &[(&str, &str)]) -> String {
    let kind = r#"{"Confined": {"util_range": [0.1, 0.9]}}"#;
    let layer =
        |(name, matches): &(&str, &str)| format!(r#"{{"name": "{name}", "matches": {matches}, "kind": {kind}}}"#);
    let all: Vec<String> = layers.iter().chain([&("rest", "[[]]")]).map(layer).collect();
    let path = directory.join(name);
    fs::write(&path, format!("[{}]", all.join(", "))).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn what_samples_do_not_decide_is_in_the_interval() {
    let directory = tempfile::tempdir().unwrap();
    let path = profile(directory.path());
    let score = |config: &str| {
        let output = scxprof(&["score", "-f", &path, "--config", config, "--target-cpus", "8", "--json"]);
        let found: Value = serde_json::from_str(&expect(&output, 0)).unwrap();
        (found["configurations"][0].clone(), String::from_utf8(output.stderr).unwrap())
    };
    // Every thread, or none, or any of them: together they are all kept, apart none.
    let short = layers(directory.path(), "short.json", &[("short", r#"[[{"AvgRuntime": [0, 100]}]]"#)]);
    let (found, _) = score(&short);
    assert_eq!((&found["locality"], found["locality_range"][0].as_f64()), (&0.0.into(), Some(0.0)), "{found}");
    assert!(found["locality_range"][1].as_f64().unwrap() > 0.99, "{found}");
    assert_eq!(
        found["depends"],
        serde_json::json!([{"layer": "short", "conditions": ["AvgRuntime"], "threads": 5, "share": 1.0}])
    );
    let text = expect(&scxprof(&["score", "-f", &path, "--config", &short, "--target-cpus", "8"]), 0);
    assert!(text.contains("0.0 to 100.0 %"), "{text}");
    assert!(text.contains("short (5 threads, 100.0 % of the samples): AvgRuntime: changes while"), "{text}");
    // For --at-least the least counts.
    expect(&scxprof(&["score", "-f", &path, "--config", &short, "--target-cpus", "8", "--at-least", "50"]), 5);
    // One pair has a layer for certain.
    let half =
        [("red", r#"[[{"CommPrefix": "get-red"}], [{"PIDEquals": 11}]]"#), ("gpu", r#"[[{"UsedGpuTid": true}]]"#)];
    let (found, _) = score(&layers(directory.path(), "half.json", &half));
    let (low, high) = (found["locality_range"][0].as_f64().unwrap(), found["locality_range"][1].as_f64().unwrap());
    assert!((0.4..0.6).contains(&low) && high > 0.99, "{found}");
    assert_eq!(found["depends"][0]["threads"], 3, "{found}");
    let interval = |at: usize| found["interval"][at].as_f64().unwrap();
    assert!(interval(1) - interval(0) > 0.1, "{found}");
    // What procfs said decides, where it was recorded.
    let by_facts = [("red", r#"[[{"NiceBelow": 0}]]"#), ("blue", r#"[[{"UIDEquals": 33}, {"PcommPrefix": "srv"}]]"#)];
    let by_facts = layers(directory.path(), "facts.json", &by_facts);
    let (found, _) = score(&by_facts);
    assert_eq!(found["depends"][0]["conditions"], serde_json::json!(["NiceBelow"]), "{found}");
    let task = |tid: u32, nice: i32, uid: u32| {
        format!("{{\"pid\":10,\"tid\":{tid},\"process\":\"srv\",\"nice\":{nice},\"uid\":{uid}}}\n")
    };
    let tasks = [(10, -5, 0), (11, -1, 33), (12, 0, 33), (13, 3, 33), (20, 0, 1)];
    let text: String = tasks.iter().map(|&(tid, nice, uid)| task(tid, nice, uid)).collect();
    fs::write(directory.path().join("tasks.jsonl"), text + "no line\n").unwrap();
    let (found, said) = score(&by_facts);
    assert!(found["locality"].as_f64().unwrap() > 0.99 && found["locality_range"].is_null(), "{found}");
    assert_eq!(found["depends"], serde_json::json!([]));
    assert!(said.contains("note: 1 lines of tasks.jsonl make no sense"), "{said}");
    // What the scheduler does otherwise than it is written.
    let (_, said) = score(&layers(directory.path(), "kernel.json", &[("user", r#"[[{"IsKthread": false}]]"#)]));
    assert!(said.contains("kernel.json: scx_layered 1.1.4 does not read the value of IsKthread"), "{said}");
    let (_, said) = score(&layers(directory.path(), "piece.json", &[("db", r#"[[{"CgroupContains": "db"}]]"#)]));
    assert!(said.contains("piece.json: scx_layered 1.1.4 reads a variable before it is set"), "{said}");
}

#[test]
fn a_recording_says_what_layers_match() {
    if !super::is_root("facts about threads") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // The shell itself forks for this, and so has page faults.
    let script = "while :; do x=$(/bin/true); done";
    let load = super::Load::of(Command::new("nice").args(["-n", "7", "sh", "-c", script]));
    let pid = load.0.id();
    let watched = pid.to_string();
    let record = |name: &str, more: &[&str]| {
        let out = directory.path().join(name);
        let args = [
            "record",
            "--source",
            "faults",
            "-t",
            "0.5",
            "--max-loss",
            "100",
            "--disable-archive",
            "-p",
            &watched,
            "-o",
        ];
        // On a busy host the shell, which gives way, may not run at all meanwhile.
        (0..60).find_map(|_| {
            let _ = fs::remove_dir_all(&out);
            expect(&scxprof(&[&args[..], &[out.to_str().unwrap()], more].concat()), 0);
            let text = fs::read_to_string(out.join("tasks.jsonl")).unwrap_or_default();
            let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            lines.find(|line| line["tid"] == pid)
        })
    };
    let [plain, whole] = [("plain", &[][..]), ("whole", &["--cmdline"])]
        .map(|(name, more)| record(name, more).expect("the shell has page faults at each fork"));
    // SAFETY: it takes numbers.
    let own = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let nice = (own + 7).min(19);
    assert_eq!((&plain["nice"], &plain["process"], &plain["kthread"]), (&nice.into(), &"sh".into(), &false.into()));
    assert_eq!((&plain["uid"], &plain["ppid"]), (&0.into(), &std::process::id().into()));
    assert!(plain.get("cmdline").is_none(), "it may hold secrets: {plain}");
    assert_eq!(whole["cmdline"], format!("sh -c {script}"));
    // Lines have it beside them too, as often as they are made.
    for _ in 0..2 {
        expect(&scxprof(&["process", "-f", directory.path().join("plain").to_str().unwrap()]), 0);
    }
    let read = |name: &str| fs::read(directory.path().join(name).join("tasks.jsonl")).unwrap();
    assert_eq!(read("plain"), read("plain.out"));
}

#[test]
fn what_has_no_score_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let path = profile(directory.path());
    let good = cells(directory.path(), "good.json", &[&["get-red", "put-red"]]);
    let write = |name: &str, text: &str| -> String {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let broken = write("broken.json", "[{");
    let layers = write(
        "layers.json",
        r#"[{"name": "rest", "matches": [[]], "kind": {"Grouped": {"util_range": [0.1, 0.2], "growth_algo": "StickyDynamic"}}}]"#,
    );
    let score = |more: &[&str]| scxprof(&[&["score", "-f", &path], more].concat());
    refusal(&score(&["--config", "/no/such/file"]), 2, "--config /no/such/file: No such file");
    refusal(&score(&["--config", "/dev/zero"]), 2, "--config /dev/zero: it is not a regular file");
    let large = write("large.json", "");
    fs::File::options().write(true).open(&large).unwrap().set_len((16 << 20) + 1).unwrap();
    refusal(&score(&["--config", &large]), 2, "large.json: it has more than 16 MiB");
    refusal(&score(&["--config", &broken]), 2, "no configuration of scx_mitosis or scx_layered");
    refusal(&score(&["--config", &good, "--config", &layers]), 2, "it is for another scheduler than");
    refusal(&scxprof(&["score", "-f", "/no/such/profile", "--config", &good]), 2, "/no/such/profile");
    refusal(&score(&["--config", &good, "--comm", "^nobody$"]), 1, "no access matches the selection");
    expect(&score(&["--config", &good, "--at-least", "101"]), 2);
    expect(&score(&[]), 2);
    // Nothing is shared, so nothing is too low.
    let alone = score(&["--config", &good, "--comm", "^loner$", "--at-least", "100", "--target-cpus", "4"]);
    assert!(expect(&alone, 0).contains("good.json"));
    assert!(String::from_utf8_lossy(&alone.stderr).contains("so no configuration matters"));
    // One CPU has no best configuration, but a score.
    let one = score(&["--config", &good, "--cell", "a=/a$", "--target-cpus", "1", "--json"]);
    let found: Value = serde_json::from_str(&expect(&one, 0)).unwrap();
    assert!(
        found["best"].is_null() && found["notes"][0].as_str().unwrap().contains("no best configuration"),
        "{found}"
    );
    // Too short a time for an interval.
    let first: String = fs::read_to_string(&path).unwrap().lines().take(300).map(|line| format!("{line}\n")).collect();
    let short =
        scxprof(&["score", "-f", &write("short.jsonl", &first), "--config", &good, "--json", "--target-cpus", "4"]);
    let found: Value = serde_json::from_str(&expect(&short, 0)).unwrap();
    assert!(found["configurations"][0]["interval"].is_null() && found["configurations"][0]["score"].is_number());
    assert!(String::from_utf8_lossy(&short.stderr).contains("too few slices"));
    // Of a live capture it replaces the configuration.
    refusal(&scxprof(&["run", "-t", "1", "--score", &broken]), 2, "--score ");
    expect(&scxprof(&["run", "-t", "1", "--at-least", "5"]), 2);
    expect(&scxprof(&["run", "-t", "1", "--json"]), 2);
    expect(&scxprof(&["run", "-t", "1", "--score", &good, "--sched"]), 2);
    // Without hints, which layers depend on them is said.
    let hints = layers_of_hints(directory.path());
    let found: Value = serde_json::from_str(&expect(&score(&["--config", &hints, "--json"]), 0)).unwrap();
    assert_eq!(found["configurations"][0]["depends"][0]["conditions"], serde_json::json!(["HintEquals"]), "{found}");
    // More cells than the host has CPUs.
    let cells = write("cells.json", r#"[{"name": "a", "matches": {"CgroupContains": "/a"}}]"#);
    let wide = expect(&score(&["--config", &cells, "--target-cpus", "1", "--json"]), 0);
    let found: Value = serde_json::from_str(&wide).unwrap();
    let notes: Vec<&str> = found["notes"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert!(notes.iter().any(|note| note.starts_with(&cells)), "{notes:?}");
}

#[test]
fn a_capture_can_be_scored() {
    const TEST: &str = "a_capture_can_be_scored";
    let directory = tempfile::tempdir().unwrap();
    let good = cells(directory.path(), "good.json", &[&["get-red", "put-red"]]);
    let args = ["run", "--source", "faults", "--max-loss", "100", "--score", &good, "--json", "--target-cpus", "4"];
    let command = ["--", "sh", "-c", "for n in 1 2 3 4 5 6 7 8 9; do /bin/true; done; exit 3"];
    let output = scxprof(&[&args[..], &command].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    if said.contains("error: ") {
        println!("SKIP: {TEST}: {}", said.trim());
        return;
    }
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["source"], "faults");
    assert!(found["configurations"][0]["name"].as_str().unwrap().ends_with("good.json"));
}
