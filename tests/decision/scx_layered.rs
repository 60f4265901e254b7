//! The real scx_layered reads what scxprof writes, and scxprof reads and refuses what it reads and refuses.
//!
//! `SCX_LAYERED` names the program; otherwise it is the one that `make test-schedulers` builds, or the one in PATH.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use scxprof::testing::config::{decide, layered, layers, DecisionOptions, Layers, Note, Verdict};
use serde_json::{json, Value};

use super::express::{comm, input, path, verdict, GROUPS};

/// Decisions of random threads that are written.
const DECISIONS: usize = 40;

/// scx_layered, if it is here.
fn program(test: &str) -> Option<PathBuf> {
    let built =
        option_env!("CARGO_TARGET_TMPDIR").map(|tmp| Path::new(tmp).with_file_name("schedulers/bin/scx_layered"));
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&paths).map(|path| path.join("scx_layered"));
    let given = std::env::var_os("SCX_LAYERED").map(PathBuf::from);
    let found = given.into_iter().chain(built).chain(in_path).find(|path| path.is_file());
    if found.is_none() {
        println!("SKIP: {test}: no scx_layered, which `make test-schedulers` builds (SCX_LAYERED=FILE)");
    }
    found
}

/// What scx_layered makes of a configuration, or what it says against it.
fn printed(program: &Path, json: &str) -> Result<String, String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("layers.json");
    fs::write(&file, json).unwrap();
    let output = Command::new(program).arg("--print-and-exit").arg(format!("f:{}", file.display())).output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8(output.stdout).unwrap();
    // After warnings about options.
    Ok(text.split_once("specs=").expect("it prints its specs").1.to_owned())
}

/// The layers of random decisions.
fn written() -> impl Iterator<Item = Layers> {
    let mut runner = TestRunner::deterministic();
    let threads = proptest::collection::vec((path(), comm(), verdict(), 1..200_u32), 1..40);
    (0..DECISIONS).map(move |number| {
        let mut made = threads.new_tree(&mut runner).unwrap().current();
        // Random names hardly ever tell communities apart; those of every other decision do.
        for (_, comm, verdict, _) in made.iter_mut().filter(|_| number % 2 == 0) {
            if let Verdict::Community(community) = verdict {
                *community %= 4;
                *comm = [["reader", "writer", "loader", "poller"][*community as usize].as_bytes(), b"-", comm].concat();
            }
        }
        let threads: Vec<_> = made
            .iter()
            .map(|(path, comm, verdict, samples)| (*path, &comm[..], *verdict, f64::from(*samples)))
            .collect();
        let (tally, members) = input(&threads);
        let decision = decide(&GROUPS, &tally, &members, &DecisionOptions::new(0.05, 64)).unwrap();
        layers(&decision)
    })
}

#[test]
fn it_reads_what_is_written() {
    let Some(program) = program("it_reads_what_is_written") else { return };
    for (number, Layers { layers: written, .. }) in written().enumerate() {
        let json = layered::to_json(&written).unwrap();
        let read = printed(&program, &json).unwrap_or_else(|said| panic!("decision {number}: {said}\n{json}"));
        // What it prints has all options; what we know of them is what was written.
        assert_eq!(layered::parse(&read).unwrap(), written, "decision {number}");
    }
}

/// A layer can be left without CPUs where some layers grow by `StickyDynamic` and others do not, or where it must stay in some caches
/// that others fill (sched-ext/scx#3233).
#[test]
fn all_layers_grow_alike_and_in_any_cache() {
    let (mut confined, mut unsure) = (0, 0);
    for (number, made) in written().enumerate() {
        let json: Vec<Value> = serde_json::from_str(&layered::to_json(&made.layers).unwrap()).unwrap();
        let is_unsure = |name: &Value| {
            made.notes.iter().any(|note| match note {
                Note::UnsureLayers { layers } => layers.iter().any(|it| it == name),
                _ => false,
            })
        };
        for (at, layer) in (1..).zip(&json) {
            let (kind, options) = layer["kind"].as_object().unwrap().iter().next().unwrap();
            assert_eq!(options["growth_algo"], "StickyDynamic", "decision {number}: {layer}");
            let is_last = at == json.len();
            // The last layer takes what no other does, and is sure of a CPU.
            assert_eq!(is_last, layer["matches"] == json!([[]]), "decision {number}: {layer}");
            assert_eq!(is_last, options.get("cpus_range").is_some(), "decision {number}: {layer}");
            assert!(!is_last || kind == "Grouped", "decision {number}: {layer}");
            confined += usize::from(kind == "Confined");
            let written = ["util_range", "growth_algo", "cpus_range"];
            let others: Vec<_> =
                options.as_object().unwrap().keys().filter(|key| !written.contains(&&***key)).collect();
            assert!(others.is_empty(), "decision {number}: {others:?}");
            // It does not find what is contained in a path on every boot, so that is said.
            let contains = layer.to_string().contains("CgroupContains");
            assert_eq!(contains, is_unsure(&layer["name"]), "decision {number}: {layer}");
            unsure += usize::from(contains);
        }
    }
    assert!(confined > DECISIONS && unsure > 0, "{confined}, {unsure}");
}

/// Two layers: one with these matches and this kind, and the rest.
fn with(matches: &str, kind: &str) -> String {
    format!(
        r#"[{{"name": "it", "matches": {matches}, "kind": {kind}}}, {{"name": "rest", "matches": [[]], "kind": {{"Open": {{}}}}}}]"#
    )
}

#[test]
fn it_reads_and_refuses_the_same_files() {
    const GROUPED: &str = r#"{"Grouped": {"util_range": [0.1, 0.9]}}"#;
    let Some(program) = program("it_reads_and_refuses_the_same_files") else { return };
    let one = |condition: &str| with(&format!("[[{condition}]]"), GROUPED);
    let kind = |kind: &str| with(r#"[[{"CommPrefix": "a"}]]"#, kind);
    let option = |option: &str| kind(&format!(r#"{{"Confined": {{"util_range": [0.1, 0.9], {option}}}}}"#));
    let mut files = Vec::new();
    for name in [
        "CgroupPrefix",
        "CgroupSuffix",
        "CgroupContains",
        "CommPrefix",
        "CommPrefixExclude",
        "PcommPrefix",
        "PcommPrefixExclude",
        "CmdJoin",
        "Cgroupprefix",
    ] {
        files.extend([
            one(&format!(r#"{{"{name}": "a/"}}"#)),
            one(&format!(r#"{{"{name}": 1}}"#)),
            one(&format!(r#"{{"{name}": null}}"#)),
        ]);
    }
    for name in [
        "NiceAbove",
        "NiceBelow",
        "NiceEquals",
        "UIDEquals",
        "GIDEquals",
        "PIDEquals",
        "PPIDEquals",
        "TGIDEquals",
        "NSEquals",
        "HintEquals",
        "NumaNode",
        "SystemCpuUtilBelow",
        "DsqInsertBelow",
        "IsGroupLeader",
        "IsKthread",
        "UsedGpuTid",
        "UsedGpuPid",
        "AvgRuntime",
        "NSPIDEquals",
        "CgroupRegex",
    ] {
        for operand in [
            "0",
            "-1",
            "1.5",
            "4294967296",
            "true",
            r#""a""#,
            "[1, 2]",
            "[1]",
            "[1, -2]",
            "[1, 4294967296]",
            "[1, 2, 3]",
            "{}",
        ] {
            files.push(one(&format!(r#"{{"{name}": {operand}}}"#)));
        }
    }
    for text in [
        "[]",
        "[[]]",
        "[[], []]",
        "[{}]",
        "[[{}]]",
        r#"[["IsKthread"]]"#,
        r#"[[{"CommPrefix": "a", "NiceAbove": 1}]]"#,
        "{}",
        "null",
    ] {
        files.push(with(text, GROUPED));
    }
    for text in [
        r#""Open""#,
        r#"{"Open": null}"#,
        r#"{"Open": []}"#,
        r#"{"Open": {"util_range": "x"}}"#,
        r#"{"Grouped": {}}"#,
        r#"{"Confined": {"util_range": [0.1]}}"#,
        r#"{"open": {}}"#,
        r#"{"Open": {}, "Grouped": {}}"#,
        r#"{"Grouped": {"util_range": [1, 2], "idle_confined": 1}}"#,
    ] {
        files.push(kind(text));
    }
    for name in [
        "min_exec_us",
        "yield_ignore",
        "slice_us",
        "fifo",
        "preempt",
        "preempt_first",
        "exclusive",
        "allow_node_aligned",
        "skip_remote_node",
        "prev_over_idle_core",
        "weight",
        "disallow_open_after_us",
        "disallow_preempt_after_us",
        "xllc_mig_min_us",
        "idle_smt",
        "growth_algo",
        "util_peak_half_life_ms",
        "perf",
        "idle_resume_us",
        "nodes",
        "llcs",
        "placement",
        "member_expire_ms",
        "xnuma_threshold",
        "xnuma_threshold_delta",
        "cpus_range",
        "cpus_range_frac",
        "membw_gb",
        "protected",
        "unknown",
    ] {
        for value in
            ["1", "-1", "1.5", "true", "null", "[1, 2]", "[0.5, 1]", "[]", r#""Sticky""#, r#""Topo""#, "4294967296"]
        {
            files.push(option(&format!(r#""{name}": {value}"#)));
        }
    }
    files.extend(
        [
            "[]",
            "{}",
            "[7]",
            r#"[{"name": 1, "matches": [[]], "kind": {"Open": {}}}]"#,
            r#"[{"matches": [[]], "kind": {"Open": {}}}]"#,
            r#"[{"name": "a", "kind": {"Open": {}}}]"#,
            r#"[{"name": "a", "comment": null, "template": null, "matches": [[]], "kind": {"Open": {}}, "other": 1}]"#,
            r#"[{"name": "a", "comment": 5, "matches": [[]], "kind": {"Open": {}}}]"#,
        ]
        .map(str::to_owned),
    );
    let mut differ = Vec::new();
    for json in &files {
        let (ours, theirs) = (layered::parse(json), printed(&program, json));
        if ours.is_ok() != theirs.is_ok() {
            differ.push(format!(
                "{json}\n  ours: {:?}\n  scx_layered: {:?}",
                ours.map(drop).map_err(|it| it.to_string()),
                theirs.map(drop)
            ));
        }
    }
    assert!(differ.is_empty(), "{} of {}:\n{}", differ.len(), files.len(), differ.join("\n"));
    println!("{} files", files.len());
}

#[test]
fn its_own_example_loads() {
    let Some(program) = program("its_own_example_loads") else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("example.json");
    assert!(Command::new(&program).arg("--example").arg(&file).status().unwrap().success());
    let layers = layered::parse(&fs::read_to_string(&file).unwrap()).unwrap();
    layered::loads(&layers).unwrap();
    assert!(layers.len() > 2);
}

/// The names of the variants of an enum, or of the fields of a struct, in a source file.
fn names(source: &str, item: &str) -> Vec<String> {
    let begin = source.find(item).unwrap_or_else(|| panic!("no `{item}`"));
    let mut depth = 0;
    let mut names = Vec::new();
    for line in source[begin..].lines() {
        let text = line.split("//").next().unwrap().trim();
        // What is in parentheses, and in attributes, has no names of its own.
        let is_name = depth == 1 && !text.starts_with('#') && !text.is_empty();
        if is_name {
            let name = text.trim_start_matches("pub ");
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            names.extend((end > 0).then(|| name[..end].to_owned()));
        }
        depth += text.matches('{').count();
        depth -= text.matches('}').count();
        if depth == 0 && !names.is_empty() {
            break;
        }
    }
    names
}

/// A number of an enum of C.
fn number(source: &str, name: &str) -> usize {
    let line =
        source.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap_or_else(|| panic!("no {name}"));
    line.split('=')
        .nth(1)
        .unwrap()
        .trim()
        .trim_end_matches(|c: char| !c.is_ascii_digit())
        .split(',')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

#[test]
#[ignore = "reads the source of a release of scx_layered: make check-upstream"]
fn a_release_has_nothing_that_is_not_known() {
    let directory =
        std::env::var_os("SCX_LAYERED_SOURCE").expect("SCX_LAYERED_SOURCE names the directory of the crate");
    let read = |name: &str| {
        let path = Path::new(&directory).join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let (config, growth, limits) = (read("src/config.rs"), read("src/layer_core_growth.rs"), read("src/bpf/intf.h"));
    let known = layered::Known::new();
    let mut options = names(&config, "pub struct LayerCommon {");
    let kinds = config.split("pub enum LayerKind {").nth(1).unwrap().split("impl LayerKind").next().unwrap();
    options.extend(kinds.lines().filter_map(|line| {
        let (name, _) = line.trim().split_once(": ")?;
        (name.chars().all(|c| c.is_ascii_lowercase() || c == '_') && name != "common").then(|| name.to_owned())
    }));
    let mut news = Vec::new();
    for (what, ours, theirs) in [
        ("condition", &known.conditions, names(&config, "pub enum LayerMatch {")),
        ("kind of layer", &known.kinds, names(&config, "pub enum LayerKind {")),
        ("placement", &known.placements, names(&config, "pub enum LayerPlacement {")),
        ("growth algorithm", &known.growths, names(&growth, "pub enum LayerGrowthAlgo {")),
        ("option", &known.options, options),
    ] {
        assert!(theirs.len() > 2, "the source has no {what}: it is built otherwise than it was");
        news.extend(
            theirs.iter().filter(|name| !ours.contains(&name.as_str())).map(|name| format!("{what} {name} is new")),
        );
        news.extend(
            ours.iter()
                .filter(|name| !theirs.iter().any(|it| it == **name))
                .map(|name| format!("{what} {name} is gone")),
        );
    }
    for (name, ours) in [
        ("MAX_LAYERS", layered::MAX_LAYERS),
        ("MAX_LAYER_MATCH_ORS", layered::MAX_ORS),
        ("MAX_CGROUP_REGEXES", layered::MAX_REGEXES),
        ("MAX_PATH", layered::MAX_PATH),
        ("MAX_LAYER_NAME", 2 * layered::MAX_NAME),
        ("MAX_COMM", 16),
    ] {
        let theirs = number(&limits, name);
        if theirs != ours {
            news.push(format!("{name} is {theirs}, not {ours}"));
        }
    }
    let mut examples = 0;
    for entry in fs::read_dir(Path::new(&directory).join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            examples += 1;
            let read = layered::parse(&fs::read_to_string(&path).unwrap()).map_err(|error| error.to_string());
            let loaded = read.and_then(|layers| layered::loads(&layers).map_err(|error| error.to_string()));
            news.extend(loaded.err().map(|error| format!("{} is refused: {error}", path.display())));
        }
    }
    news.sort();
    news.dedup();
    assert!(news.is_empty(), "{}", news.join("\n"));
    println!("nothing new, and {examples} examples load");
}
