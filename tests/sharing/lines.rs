//! The table of hot lines on programs whose lines are known: true and false sharing are told apart, and the variable is named.

use serde_json::Value;

use super::family::{find, run_until_enough};
use super::programs::Running;
use crate::support::alone;

/// Seconds after which the programs end, were this test to be killed.
const LIFE: u32 = 120;

/// The hot lines of that variable.
fn lines_of<'a>(report: &'a Value, variable: &str) -> Vec<&'a Value> {
    let lines = report["lines"].as_array().unwrap().iter();
    lines.filter(|line| line["symbol"]["name"] == variable).collect()
}

#[test]
fn hot_lines_tell_true_from_false_sharing() {
    let test = "hot_lines_tell_true_from_false_sharing";
    let _alone = alone();
    // Each thread has a field of its own in the one line of `fields`; all threads increment all `counters`, each in a line.
    let names = ["falseshare", "contended"];
    let Some((_built, programs)) = find(test, &names) else { return };
    let start = |(program, tag): (_, &str)| Running::start(program, LIFE, tag, |_| {}).unwrap();
    let started: Vec<Running> = programs.iter().zip(["f", "c"]).map(start).collect();
    let threads: Vec<_> = started.iter().map(|running| running.threads.as_slice()).collect();
    let decision = match run_until_enough(&threads, &["-vv"]) {
        Ok(decision) => decision,
        Err(why) => return println!("SKIP: {test}: {why}"),
    };
    let report = &decision.report;
    let [fields, counters] = ["fields", "counters"].map(|variable| lines_of(report, variable));
    let said = &decision.said;
    let [only] = fields[..] else { panic!("{} lines of the fields\n{said}", fields.len()) };
    assert_eq!(only["sharing"], "false", "{only:#}");
    let by_thread = only["by_thread"].as_array().unwrap();
    assert_eq!(by_thread.len(), 6, "{only:#}");
    let mut bytes: Vec<&Value> = by_thread.iter().map(|thread| &thread["stored"]).collect();
    bytes.sort_by_key(|ranges| ranges[0][0].as_u64());
    let expected: Vec<Value> = (0..6).map(|field| serde_json::json!([[field * 8, field * 8 + 7]])).collect();
    assert_eq!(bytes, expected.iter().collect::<Vec<_>>(), "each thread has 8 bytes of its own");
    for thread in by_thread {
        assert_eq!(thread["symbol"]["name"], "fields", "{thread}");
        assert_eq!(thread["symbol"]["offset"], thread["stored"][0][0], "{thread}");
        assert!(thread["comm"].as_str().unwrap().starts_with('f'), "{thread}");
    }
    assert_eq!(only["identity"]["kind"], "private", "{only:#}");
    // The bytes of two lines can have the same place in the table, which depends on their addresses: then one of them has none.
    let (known, unknown): (Vec<&Value>, Vec<&Value>) =
        counters.into_iter().partition(|line| line["sharing"] != "unknown");
    assert!(known.len() > unknown.len(), "{said}");
    for line in known {
        assert_eq!(line["sharing"], "true", "{line:#}");
    }
    for line in unknown {
        let has_bytes = |thread: &Value| thread["stored"] != serde_json::json!([]);
        assert!(!line["by_thread"].as_array().unwrap().iter().any(has_bytes), "{line:#}");
    }
    // For people.
    let row = said.lines().find(|line| line.starts_with("fields+0x0 (family)")).unwrap_or_else(|| panic!("{said}"));
    assert!(row.split_whitespace().any(|word| word == "false"), "{row}");
    assert!(said.contains("written 40-47; fields+0x28 (family)"), "{said}");
}
