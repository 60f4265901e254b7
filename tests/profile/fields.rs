//! The fields that docs/ describes are those that are written, by format.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{said, scxprof};

/// A format: the page and the section that describe it, objects of which the keys are compared below as well, and fields that this
/// recording does not have.
struct Format {
    page: &'static str,
    section: &'static str,
    nested: &'static [&'static str],
    absent: &'static [&'static str],
}

/// The part of a page below a heading, up to the next one of its level.
fn section(page: &str, heading: &str) -> String {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(page)).unwrap();
    let begin = text.find(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("{page} has no section {heading}"));
    let part = &text[begin + 1..];
    part[..part.find("\n## ").unwrap_or(part.len())].to_owned()
}

/// The words in backticks that may be the name of a field.
fn names(text: &str) -> BTreeSet<String> {
    let is_name =
        |word: &&str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    text.split('`').skip(1).step_by(2).filter(is_name).map(str::to_owned).collect()
}

/// The fields in the first columns of the tables of fields.
fn in_tables(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_of_fields = false;
    for line in text.lines() {
        if !line.starts_with('|') {
            is_of_fields = false;
        } else if line.starts_with("| field") {
            is_of_fields = true;
        } else if is_of_fields {
            found.extend(names(line.split('|').nth(1).unwrap_or_default()));
        }
    }
    found
}

fn keys(value: &Value, nested: &[&str], found: &mut BTreeSet<String>) {
    let Some(object) = value.as_object() else { return };
    for (key, value) in object {
        found.insert(key.clone());
        if nested.contains(&key.as_str()) {
            for value in value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice) {
                keys(value, nested, found);
            }
        }
    }
}

#[track_caller]
fn compare(format: &Format, values: &[Value]) {
    let text = section(format.page, format.section);
    let mut written = BTreeSet::new();
    for value in values {
        keys(value, format.nested, &mut written);
    }
    let at = format!("docs/{}, {}", format.page, format.section);
    assert!(!written.is_empty(), "{at}: nothing was written");
    let described = names(&text);
    let unknown: Vec<_> = written.difference(&described).collect();
    assert!(unknown.is_empty(), "{at}: these are written, and not described: {unknown:?}");
    let absent: BTreeSet<_> = format.absent.iter().map(|&name| name.to_owned()).collect();
    let gone: Vec<_> =
        in_tables(&text).into_iter().filter(|name| !written.contains(name) && !absent.contains(name)).collect();
    assert!(gone.is_empty(), "{at}: these are described, and not written: {gone:?}");
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn described_fields_are_written_and_written_ones_described() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    let program = ["sh", "-c", "timeout 4 awk 'BEGIN { while (1) seen[i++ % 10000] = i }'; true"];
    let record = ["record", "--source", "timer", "--sched", "--stacks", "--cmdline", "--disable-archive", "-o"];
    let recorded = scxprof(&[&record[..], &[&path("a"), "--"], &program].concat());
    if recorded.status.code() == Some(3) {
        println!("SKIP: described fields: {}", said(&recorded));
        return;
    }
    assert!(recorded.status.success(), "{}", said(&recorded));
    let processed = scxprof(&["process", "-f", &path("a"), "-o", &path("lines")]);
    assert!(processed.status.success(), "{}", said(&processed));
    let json = |args: &[&str]| -> Vec<Value> {
        let output = scxprof(args);
        vec![serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{args:?}: {error}: {}", said(&output)))]
    };
    let format = |page, section, nested, absent| Format { page, section, nested, absent };
    // What only other recordings have: names that are not UTF-8 or not known, hints, damage.
    let of_lines = &["unnamed", "comm_hex", "cgroup_hex", "hinted"];
    compare(&format("profile.md", "perf.jsonl", &[], of_lines), &lines(&at("lines/perf.jsonl")));
    compare(&format("profile.md", "perf.sched.jsonl", &[], &[]), &lines(&at("lines/perf.sched.jsonl")));
    compare(&format("profile.md", "recovered.jsonl", &["accesses"], &[]), &lines(&at("a/recovered.jsonl")));
    compare(&format("profile.md", "tasks.jsonl", &[], &["kthread"]), &lines(&at("a/tasks.jsonl")));
    // CPU time is that of a whole host.
    let of_meta = &["cpu_seconds", "hints", "unfinished", "damage", "cgroups", "notes"];
    compare(&format("profile.md", "meta.json", &[], of_meta), &lines_of_one(&at("a/meta.json")));
    compare(
        &format("stacks.md", "Results", &[], &["unwound", "groups"]),
        &json(&["stacks", "-f", &path("a"), "--json"]),
    );
    let of_others = &["dsqs", "dsq_unknown", "windows"];
    compare(
        &format("sched.md", "JSON", &["wakers"], of_others),
        &json(&["sched", "-f", &path("a"), "--wakers", "--json"]),
    );
    compare(&format("doctor.md", "JSON", &[], &["self_test"]), &json(&["doctor", "--json"]));
}

fn lines_of_one(path: &Path) -> Vec<Value> {
    vec![serde_json::from_slice(&fs::read(path).unwrap()).unwrap()]
}
