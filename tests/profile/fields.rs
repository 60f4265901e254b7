//! The fields that docs/ describes are those that are written, by format.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use parquet::file::reader::{FileReader, SerializedFileReader};
use scxprof_trace::wire::Fields;
use serde_json::Value;

use super::{said, scxprof};

/// A format: the page and the section that describe it, objects of which the keys are compared below as well, and fields that this
/// recording does not have.
struct Format {
    /// How the headers of the compared tables begin.
    tables: &'static str,
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

/// The fields in the first columns of the tables of fields, whose headers begin with this.
fn in_tables(text: &str, header: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_of_fields = false;
    for line in text.lines() {
        if !line.starts_with('|') {
            is_of_fields = false;
        } else if line.starts_with(header) {
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

/// What differs between the metrics of a section and those of Prometheus's text format, whose names begin with `prefix`.
pub fn metrics_differ(
    (page, section, tables): (&'static str, &'static str, &'static str),
    (text, prefix): (&str, &str),
    absent: &'static [&'static str],
) -> Option<String> {
    let metrics = text.lines().filter(|line| !line.starts_with('#'));
    let name = |line: &str| line.split([' ', '{']).next().and_then(|name| name.strip_prefix(prefix)).map(str::to_owned);
    // As an object, for the names only.
    let metrics = metrics.map(|line| (name(line).unwrap_or_else(|| panic!("{line}: no {prefix}")), Value::Null));
    differs(&Format { tables, page, section, nested: &[], absent }, &[Value::Object(metrics.collect())])
}

/// What differs between the columns of a file of evidence and those in the tables of docs/evidence.md, of its key and its numbers.
fn columns_differ(path: &Path) -> Option<String> {
    let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
    let columns = reader.metadata().file_metadata().schema_descr().columns().iter();
    let written: BTreeSet<String> = columns.map(|column| column.name().to_owned()).collect();
    let text = section("evidence.md", "The table");
    let described = ["| key |", "| number"].iter().flat_map(|header| in_tables(&text, header)).collect();
    let different: Vec<_> = written.symmetric_difference(&described).collect();
    (!different.is_empty())
        .then(|| format!("docs/evidence.md, The table: only described, or only written: {different:?}"))
}

/// What differs between the labels and values of a profile in pprof's format and those that docs/stacks.md has.
fn pprof_differs(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    let all = |message, number: u32| Fields::new(message).filter(move |field| field.0 == number).map(|field| field.1);
    let texts: Vec<&str> = all(&bytes, 6).map(|text| std::str::from_utf8(text.bytes()).unwrap()).collect();
    // The labels are field 3 of a sample; the first field of a label is its name, and so is that of a kind of values.
    let name = |message| texts[all(message, 1).next().unwrap().uint() as usize].to_owned();
    let labels = all(&bytes, 2).flat_map(|sample| all(sample.bytes(), 3).map(|label| name(label.bytes())));
    let values: Vec<String> = all(&bytes, 1).map(|kind| name(kind.bytes())).collect();
    let page = section("stacks.md", "Results");
    let item = page.split("\n- ").find(|item| item.starts_with("`--pprof FILE`")).unwrap();
    let (of_values, of_labels) = item.split_once("labels").unwrap();
    // There are no hints here, and subcells are those of a configuration.
    let known: BTreeSet<String> = labels.chain(["hint", "subcell"].map(str::to_owned)).collect();
    let described = names(of_labels);
    // The other value has the event's name.
    let same = described == known && values.len() == 2 && names(of_values).contains(&values[0]);
    (!same).then(|| format!("docs/stacks.md, --pprof: described: {described:?}; written: {known:?}, values {values:?}"))
}

/// What differs, if anything does.
fn differs(format: &Format, values: &[Value]) -> Option<String> {
    let text = section(format.page, format.section);
    let mut written = BTreeSet::new();
    for value in values {
        keys(value, format.nested, &mut written);
    }
    let at = format!("docs/{}, {}", format.page, format.section);
    let described = names(&text);
    let unknown: Vec<_> = written.difference(&described).collect();
    let absent: BTreeSet<_> = format.absent.iter().map(|&name| name.to_owned()).collect();
    let gone: Vec<_> = in_tables(&text, format.tables)
        .into_iter()
        .filter(|name| !written.contains(name) && !absent.contains(name))
        .collect();
    let same = !written.is_empty() && unknown.is_empty() && gone.is_empty();
    (!same).then(|| format!("{at}: written and not described: {unknown:?}; described and not written: {gone:?}"))
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
    // A busy machine loses scheduling events.
    let more = ["--cmdline", "--max-loss=100", "--disable-archive", "-o"];
    let record = [&["record", "--source", "timer", "--sched", "--stacks"], &more[..]].concat();
    let recorded = scxprof(&[&record, &[&path("a"), "--"][..], &program].concat());
    if recorded.status.code() == Some(3) {
        println!("SKIP: described fields: {}", said(&recorded));
        return;
    }
    assert!(recorded.status.success(), "{}", said(&recorded));
    let processed = scxprof(&["process", "-f", &path("a"), "--max-loss=100", "-o", &path("lines")]);
    assert!(processed.status.success(), "{}", said(&processed));
    let json = |args: &[&str]| -> Vec<Value> {
        let output = scxprof(args);
        vec![serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{args:?}: {error}: {}", said(&output)))]
    };
    let format = |page, section, nested, absent| Format { tables: "| field", page, section, nested, absent };
    let mut different = Vec::new();
    let mut compare = |format: &Format, values: &[Value]| different.extend(differs(format, values));
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
        &json(&["stacks", "-f", &path("a"), "--pprof", &path("pprof"), "--json"]),
    );
    let of_others = &["dsqs", "dsq_unknown", "windows"];
    compare(
        &format("sched.md", "JSON", &["wakers"], of_others),
        &json(&["sched", "-f", &path("a"), "--wakers", "--json"]),
    );
    compare(&format("doctor.md", "JSON", &[], &["self_test"]), &json(&["doctor", "--json"]));

    let extract = ["extract", "-f", &path("a"), "--max-loss", "100", "--target-cpus", "8"];
    let files = ["-o", &path("cells.json"), "--report", &path("report.json"), "--evidence", &path("host.parquet")];
    let more = ["--prometheus", &path("gauges"), "--sharing-csv", &path("sharing.csv")];
    let extracted = scxprof(&[&extract[..], &files, &more].concat());
    assert!(extracted.status.success(), "{}", said(&extracted));
    // What only other options have, and what only reports with several cells have. The objects in the report have tests of their own, with other recordings.
    let of_report = &[
        "hints",
        "scheduling",
        "stacks",
        "wakeups",
        "smaller",
        "larger",
        "part",
        "misses",
        "memory",
        "identity",
        "option",
        "advice",
    ];
    let report = format("report.md", "The report", &["across_cells"], of_report);
    compare(&Format { tables: "| field |", ..report }, &lines_of_one(&at("report.json")));
    let gauges = fs::read_to_string(at("gauges")).unwrap();
    // One thread has no one to share with.
    let missing = &[
        "scxprof_locality_by_name_ratio",
        "scxprof_locality_ratio",
        "scxprof_sharing_avoidable_misses",
        "scxprof_subcell_confidence_ratio",
        "scxprof_subcell_locality_ratio",
    ];
    let of_gauges = metrics_differ(("report.md", "Files for other programs", "| gauge"), (&gauges, ""), missing);
    assert!(fs::read_to_string(at("sharing.csv")).unwrap().starts_with("a,b,misses"));
    compare(
        &format("report.md", "What changed: `scxprof diff`", &[], &[]),
        &json(&["diff", &path("report.json"), &path("cells.json"), "--json"]),
    );
    let score = [
        "score",
        "-f",
        &path("a"),
        "--config",
        &path("cells.json"),
        "--json",
        "--target-cpus",
        "8",
        "--max-loss",
        "100",
    ];
    compare(&format("score.md", "JSON", &["configurations", "cells", "subcells"], &[]), &json(&score));
    let merged = ["merge", &path("host.parquet"), "-o", &path("merged.json"), "--report", &path("merged.report.json")];
    let merged = scxprof(&merged);
    assert!(merged.status.success(), "{}", said(&merged));
    compare(&format("evidence.md", "The report", &[], &[]), &lines_of_one(&at("merged.report.json")));
    let trace = ["trace", "info", &path("a"), "--json"];
    compare(&format("traces.md", "The JSON of `trace info`", &["lost"], &["nodes", "observed_from_ns"]), &json(&trace));
    let replay = ["replay", "-f", &path("a"), "--comm", "^(sh|awk)$", "--overcommit", "--json"];
    compare(&format("replay.md", "What it prints", &["loops", "threads", "total"], &[]), &json(&replay));
    let others = [of_gauges, columns_differ(&at("host.parquet")), pprof_differs(&at("pprof"))];
    different.extend(others.into_iter().flatten());
    assert!(different.is_empty(), "{different:#?}");
}

fn lines_of_one(path: &Path) -> Vec<Value> {
    vec![serde_json::from_slice(&fs::read(path).unwrap()).unwrap()]
}
