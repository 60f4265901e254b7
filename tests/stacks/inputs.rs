//! What others recorded as input, and what two inputs differ in.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{json, said, SCXPROF};

fn run(args: &[&str]) -> std::process::Output {
    Command::new(SCXPROF).arg("stacks").args(args).output().unwrap()
}

#[test]
fn the_stacks_of_a_trace_are_those_of_wprof() {
    let dir = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/trace/tests/fixtures");
    let trace = fixtures.join("wprof.pb.gz");
    let folded = dir.path().join("folded");
    // A line for each kind and stack: `timer COUNT FRAMES`.
    let truth = super::unpacked(fixtures.join("wprof.stacks.gz").to_str().unwrap());
    for (event, kind) in [("ONCPU", "switch"), ("TIMER", "timer")] {
        let output = run(&["-f", trace.to_str().unwrap(), "-e", event, "--folded", folded.to_str().unwrap(), "--json"]);
        assert!(output.status.success(), "{}", said(&output));
        let expected: u64 = truth
            .lines()
            .filter_map(|line| line.strip_prefix(kind)?.trim_start().split(' ').next()?.parse::<u64>().ok())
            .sum();
        assert!(expected > 0);
        assert_eq!((json(&output)["samples"].as_u64(), &json(&output)["event"]), (Some(expected), &event.into()));
        let text = std::fs::read_to_string(&folded).unwrap();
        // Stacks of several threads are several lines.
        for line in truth.lines().filter(|line| line.starts_with(kind)) {
            let [_, count, frames] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let frame = |frame: &str| match frame.strip_prefix("[K] ") {
                Some(function) => format!("{function}_[k]"),
                None => frame.trim_start_matches("[U] ").to_owned(),
            };
            let frames = frames.split(';').map(frame).collect::<Vec<_>>().join(";");
            let count_of = |line: &str| {
                let (stack, count) = line.rsplit_once(' ')?;
                (stack.split_once(';')?.1 == frames).then(|| count.parse::<u64>().unwrap())
            };
            assert_eq!(text.lines().filter_map(count_of).sum::<u64>(), count.parse::<u64>().unwrap(), "{line}");
        }
    }
    let output = run(&["-f", trace.to_str().unwrap(), "-e", "WAKER"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("has no call stacks of WAKER, but of ONCPU, TIMER"), "{}", said(&output));
}

#[test]
fn two_recordings_differ_in_their_parts() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let a = file("a", "web;main;parse 30\nweb;main;send 70\n");
    let b = file("b", "web;main;parse 600\nweb;main;send 300\ndb;main;sync 100\n");
    let output = run(&["--diff", &a, &b, "--json"]);
    let found = json(&output);
    assert_eq!((&found["a"]["samples"], &found["b"]["samples"]), (&Value::from(100), &Value::from(1000)));
    let first = &found["symbols"][0];
    assert_eq!((&first["symbol"], first["self"]["change"].as_f64()), (&"send".into(), Some(-40.0)), "{first}");
    let text = String::from_utf8(run(&["--diff", &a, &b]).stdout).unwrap();
    let expected = "\
FUNCTION  A-SELF%  B-SELF%  CHANGE    +-  A-TOTAL%  B-TOTAL%  CHANGE    +-  MODULE
send        70.00    30.00  -40.00  9.42     70.00     30.00  -40.00  9.42       -
parse       30.00    60.00  +30.00  9.48     30.00     60.00  +30.00  9.48       -
sync         0.00    10.00  +10.00  1.86      0.00     10.00  +10.00  1.86       -
main         0.00     0.00   +0.00  0.00    100.00    100.00   +0.00  0.00       -
";
    assert!(text.starts_with(expected), "{text}");
    // Folded text is an input like the others.
    let graph = dir.path().join("graph.svg");
    assert!(run(&["-f", &b, "--flame-graph", graph.to_str().unwrap()]).status.success());
    assert!(std::fs::read_to_string(graph).unwrap().contains("1000 samples"));
    for (args, code, reason) in [
        (&["--diff", &a][..], 2, "2 values required"),
        (&["--diff", &a, &b, "-F", "99"], 2, "cannot be used with"),
        (&["--diff", &a, "/nowhere"], 2, "/nowhere"),
        (&["--diff", &a, &file("c", "web;main 1\nnothing\n")], 2, "line 2 is no folded stack"),
        (&["-f", &file("d", "GIF89a")], 2, "is none of: a perf.data"),
        (&["-f", &file("e", "")], 1, "has no samples"),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(reason), "{args:?}: {}", said(&output));
    }
}

#[test]
fn folded_text_of_other_programs_is_counted_right() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("folded");
    let read = |text: &[u8]| {
        std::fs::write(&path, text).unwrap();
        let output = run(&["-f", path.to_str().unwrap(), "--json"]);
        assert!(output.status.success(), "{}", said(&output));
        let found = json(&output);
        (found["samples"].as_u64().unwrap(), found["stack_count"].as_u64().unwrap(), said(&output))
    };
    assert_eq!(read(b"a;b 3"), (3, 1, String::new()));
    assert_eq!(read(b"# tool: 3\n\nP;T;main:1;work:2 5\nP;T;main:1 3\n# duration: 23\n"), (8, 2, String::new()));
    let (samples, stacks, said) = read(b"w;a 31.5\nw;b 1.4\n");
    assert!((samples, stacks) == (329, 2) && said.contains("note: counts have fractions"), "{samples} {said}");
    let (samples, _, said) = read(b"w;a 10 20\nw;b 1 2\n");
    assert!(samples == 22 && said.contains("two counts"), "{samples} {said}");
    let output = run(&["-f", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("in 0.000 s, 2 stacks, "), "{text}");
}

#[test]
fn a_program_without_build_id_that_may_be_newer_than_the_recording_is_said() {
    let test = "a_program_without_build_id_that_may_be_newer_than_the_recording_is_said";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = super::build(test, dir.path(), "built", &["-Wl,--build-id=none"]) else { return };
    let Some(data) = super::perf::record(test, dir.path(), &program, &["parts", "20000"]) else { return };
    let output = run(&["-f", data.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("built: no names, because the"), "{}", said(&output));
    assert!(said(&output).contains("no build id"), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("[built]"));
}
