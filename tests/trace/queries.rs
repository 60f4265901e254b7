//! docs/queries.md: its tables are those that are written, and its queries have the results that stand there in DuckDB. Some
//! numbers are compared with what other programs say of the same recordings.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::{json, Value};

use super::oracle::{Oracle, Sums};
use super::*;

fn scxprof(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scxprof")).args(args).output().unwrap()
}

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/queries.md")
}

/// A worked query.
struct Query {
    title: String,
    fixture: String,
    sql: String,
    result: String,
    /// Where the result stands in the document.
    at: (usize, usize),
}

/// The blocks of SQL in the document, each with the block of text after it.
fn worked(document: &str) -> Vec<Query> {
    let mut queries = Vec::new();
    let mut from = 0;
    while let Some(at) = document[from..].find("```sql\n-- ").map(|at| from + at) {
        let title = document[..at].rsplit("### ").next().unwrap().trim().to_owned();
        let begin = at + "```sql\n-- ".len();
        let end = begin + document[begin..].find("```").unwrap();
        let (fixture, sql) = document[begin..end].split_once('\n').unwrap();
        let text = end + document[end..].find("```text\n").unwrap() + "```text\n".len();
        let until = text + document[text..].find("```").unwrap();
        queries.push(Query {
            title,
            fixture: fixture.to_owned(),
            sql: sql.to_owned(),
            result: document[text..until].to_owned(),
            at: (text, until),
        });
        from = until;
    }
    queries
}

/// A value as all engines would print it: 5 and 5.0 are the same, and fractions have three places.
fn plain(value: &str) -> String {
    match value.parse::<f64>() {
        Ok(number) if value.contains(['.', 'e', 'E']) && number.is_finite() => {
            let text = format!("{number:.3}");
            let text = text.trim_end_matches('0').trim_end_matches('.');
            if text == "-0" { "0" } else { text }.to_owned()
        }
        _ => value.to_owned(),
    }
}

/// Lines with columns of one width.
fn lines(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

/// A trace, or samples, which the crate of traces does not know.
fn input(fixture: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/queries").join(fixture);
    if own.exists() {
        own
    } else {
        path(fixture)
    }
}

/// The tables of each fixture.
struct Exported {
    dir: tempfile::TempDir,
    fixtures: Vec<String>,
}

impl Exported {
    fn new(fixtures: impl IntoIterator<Item = String>) -> Self {
        let mut fixtures: Vec<String> = fixtures.into_iter().collect();
        fixtures.sort();
        fixtures.dedup();
        let exported = Self { dir: tempfile::tempdir().unwrap(), fixtures };
        for fixture in &exported.fixtures {
            let (from, to) = (input(fixture), exported.path(fixture));
            let output = scxprof(&["export", "-f", from.to_str().unwrap(), "--parquet", to.to_str().unwrap()]);
            assert!(output.status.success(), "{fixture}: {}", String::from_utf8_lossy(&output.stderr));
        }
        exported
    }

    fn path(&self, fixture: &str) -> PathBuf {
        self.dir.path().join(fixture)
    }

    /// The rows of each query, under the names of its columns; `None` without DuckDB.
    fn duckdb(&self, test: &str, queries: &[(&str, &str)]) -> Option<Vec<Vec<Vec<String>>>> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let python = target.join("duckdb/bin/python");
        if !target.join("duckdb/version").exists() {
            println!("SKIP: {test}: there is no DuckDB in {} (scripts/duckdb.sh installs it)", target.display());
            return None;
        }
        let number = |fixture: &str| self.fixtures.iter().position(|it| it == fixture).unwrap();
        let asked: Vec<Value> = queries.iter().map(|(fixture, sql)| json!([number(fixture), sql])).collect();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trace/queries.py");
        let mut child = Command::new(python)
            .arg(script)
            .args(self.fixtures.iter().map(|fixture| self.path(fixture)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&serde_json::to_vec(&asked).unwrap()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let answers: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let text = |value: &Value| match value {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            other => plain(&other.to_string()),
        };
        let row = |row: &Value| row.as_array().unwrap().iter().map(text).collect::<Vec<_>>();
        let rows = |(answer, (_, sql)): (&Value, &(&str, &str))| {
            assert!(answer.get("error").is_none(), "{sql}\n{answer}");
            let head = row(&answer["columns"]);
            std::iter::once(head).chain(answer["rows"].as_array().unwrap().iter().map(row)).collect()
        };
        assert_eq!(answers.len(), queries.len());
        Some(answers.iter().zip(queries).map(rows).collect())
    }
}

#[test]
fn queries_of_the_document_have_their_results() {
    let text = fs::read_to_string(document()).unwrap();
    let queries = worked(&text);
    assert_eq!(queries.len(), 20);
    let exported = Exported::new(queries.iter().map(|query| query.fixture.clone()));
    let asked: Vec<(&str, &str)> = queries.iter().map(|query| (query.fixture.as_str(), query.sql.as_str())).collect();
    let Some(found) = exported.duckdb("queries_of_the_document_have_their_results", &asked) else { return };
    if std::env::var_os("SCXPROF_BLESS").is_some() {
        let mut blessed = text.clone();
        for (query, rows) in queries.iter().zip(&found).rev() {
            blessed.replace_range(query.at.0..query.at.1, &lines(rows));
        }
        fs::write(document(), blessed).unwrap();
        return;
    }
    for (query, rows) in queries.iter().zip(&found) {
        assert!(rows.len() > 1, "{}: no rows", query.title);
        assert_eq!(lines(rows), query.result, "{}: SCXPROF_BLESS=1 writes it anew", query.title);
    }
}

#[test]
fn the_line_that_is_printed_runs_the_query_in_a_shell_again_and_again() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let [bin, here, temporary, tables] = ["bin", "here", "temporary", "its 'tables'"].map(at);
    for made in [&bin, &here, &temporary] {
        fs::create_dir(made).unwrap();
    }
    let fake = bin.join("duckdb");
    fs::write(&fake, "#!/bin/sh\nfor word in \"$PWD\" \"$@\"; do printf '<%s>\\n' \"$word\"; done\nexit \"$RESULT\"\n")
        .unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_scxprof"), bin.join("scxprof")).unwrap();
    // Its path is relative to the directory in which the line runs.
    fs::copy(path("wprof.pb.gz"), here.join("it's a trace")).unwrap();
    let exported =
        scxprof(&["export", "-f", path("wprof.pb.gz").to_str().unwrap(), "--parquet", tables.to_str().unwrap()]);
    assert!(exported.status.success(), "{exported:?}");
    let sql = "SELECT '$HOME', \"tid\" FROM `sched`";
    for (from, result) in [("it's a trace", 0), ("it's a trace", 1), (tables.to_str().unwrap(), 0), ("absent", 0)] {
        let output = scxprof(&["trace", "query", from, sql]);
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        let line = said.trim_end();
        assert_eq!(line.lines().count(), 1, "{line}");
        let of_shell = Command::new("sh")
            .args(["-c", line])
            .current_dir(&here)
            .env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()))
            .env("TMPDIR", &temporary)
            .env("RESULT", result.to_string())
            .output()
            .unwrap();
        let left = [&here, &temporary].map(|dir| fs::read_dir(dir).unwrap().count());
        assert_eq!(left, [1, 0], "{from}: the trace, and nothing");
        let found = String::from_utf8_lossy(&of_shell.stdout);
        if from == "absent" {
            assert!(!of_shell.status.success() && found.is_empty(), "{of_shell:?}");
            continue;
        }
        assert_eq!(of_shell.status.code(), Some(result), "{from}: {of_shell:?}");
        // What the query writes to a relative path stays where the line runs.
        assert!(found.starts_with(&format!("<{}>\n", here.canonicalize().unwrap().display())), "{found}");
        let quoted = tables.display().to_string().replace('\'', "''");
        let of_tables = if from == tables.to_str().unwrap() { quoted } else { temporary.display().to_string() };
        for name in scxprof::trace::parquet::ParquetTable::ALL.map(scxprof::trace::parquet::ParquetTable::name) {
            let (begin, end) = (format!("CREATE VIEW {name} AS FROM '{of_tables}/"), format!("{name}.parquet';"));
            let is_view = |line: &str| {
                let line = line.trim_matches(['<', '>']);
                line.starts_with(&begin) && line.ends_with(&end)
            };
            let said = String::from_utf8_lossy(&of_shell.stderr);
            assert!(found.lines().any(is_view), "{name}: {found}{said}");
        }
        assert!(found.ends_with(&format!("<-c>\n<{sql}>\n")), "{found}");
    }
}

/// Sums of a query with three columns: an id, ns, and how often.
fn sums(rows: &[Vec<String>]) -> Sums {
    let number = |row: &[String], at: usize| row[at].parse::<u64>().unwrap();
    rows.iter().skip(1).map(|row| (number(row, 0) as u32, (number(row, 1), number(row, 2)))).collect()
}

#[test]
fn sums_are_those_of_other_programs() {
    // What is computed of the fixtures by trace_processor, and by wprof itself (crates/trace/tests/fixtures/README.md).
    let exported = Exported::new(["wprof.pb.gz", "ftrace-all.pftrace", "minimal.pftrace"].map(ToOwned::to_owned));
    let run = "SELECT tid, SUM(dur), COUNT(dur) FROM sched WHERE dur IS NOT NULL GROUP BY tid";
    let wait = "SELECT tid, SUM(dur), COUNT(dur) FROM thread_state WHERE state IN ('runnable', 'preempted')
        AND dur IS NOT NULL GROUP BY tid";
    let latency = "SELECT tid, SUM(latency_ns), COUNT(*) FROM wakeup WHERE latency_ns IS NOT NULL GROUP BY tid";
    let fixtures: Vec<&str> = exported.fixtures.iter().map(String::as_str).collect();
    let asked: Vec<(&str, &str)> =
        fixtures.iter().flat_map(|fixture| [run, wait, latency].map(|sql| (*fixture, sql))).collect();
    let Some(found) = exported.duckdb("sums_are_those_of_other_programs", &asked) else { return };
    let mut compared: BTreeMap<&str, usize> = BTreeMap::new();
    for (fixture, found) in fixtures.iter().zip(found.chunks(3)) {
        let oracle = Oracle::read(&format!("{}.txt", fixture.split('.').next().unwrap()));
        // Not each has all of them.
        let kinds = [("run", &oracle.run), ("wait", &oracle.wait), ("latency", &oracle.latency)];
        for ((kind, expected), found) in kinds.iter().zip(found).filter(|((_, expected), _)| !expected.is_empty()) {
            assert_eq!(sums(found), **expected, "{fixture}: {kind}");
            *compared.entry(*kind).or_insert(0) += expected.len();
        }
    }
    assert!(compared["run"] > 50 && compared["wait"] > 10 && compared["latency"] > 10, "{compared:?}");
}

#[test]
fn numbers_are_those_of_the_analysers() {
    let exported = Exported::new(["wprof.pb.gz", "ftrace-compact.pftrace.gz"].map(ToOwned::to_owned));
    let irqs = "SELECT cpu, SUM(CASE WHEN category = 'softirq' THEN 1 ELSE 0 END) FROM slice
        WHERE category IN ('irq', 'softirq') AND dur IS NOT NULL GROUP BY cpu ORDER BY cpu";
    let states = "SELECT state, SUM(dur), COUNT(dur) FROM thread_state WHERE dur IS NOT NULL GROUP BY state";
    let asked: Vec<(&str, &str)> =
        exported.fixtures.iter().flat_map(|fixture| [irqs, states].map(|sql| (fixture.as_str(), sql))).collect();
    let Some(found) = exported.duckdb("numbers_are_those_of_the_analysers", &asked) else { return };
    for (fixture, found) in exported.fixtures.iter().zip(found.chunks(2)) {
        let path = path(fixture);
        let output = scxprof(&["trace", "analyze", path.to_str().unwrap(), "--json", "--limit", "0"]);
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        let cpus = value["analyses"]["irq_analysis"]["cpus"].as_array().unwrap();
        let expected: Vec<Vec<String>> =
            cpus.iter().map(|cpu| vec![cpu["cpu"].to_string(), cpu["softirqs"].to_string()]).collect();
        assert_eq!(found[0][1..], expected, "{fixture}");
        let total = &value["analyses"]["task_states"]["total"];
        let names = [
            ("running", "running"),
            ("sleeping", "sleeping"),
            ("blocked", "blocked"),
            ("runnable", "latency"),
            ("preempted", "resumed"),
        ];
        for (state, field) in names {
            let row = found[1].iter().find(|row| row[0] == state).unwrap();
            let expected = [&total[field]["total_ns"], &total[field]["count"]].map(Value::to_string);
            assert_eq!(row[1..], expected, "{fixture}: {state}");
        }
    }
}

#[test]
fn the_document_has_all_columns() {
    let text = fs::read_to_string(document()).unwrap();
    let mut documented: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut table = None;
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("### `").and_then(|rest| rest.split('`').next()) {
            table = Some(heading.to_owned());
        } else if line.starts_with('#') {
            table = None;
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let (Some(table), ["", column, kind, ..]) = (&table, cells.as_slice()) {
            if let Some(column) = column.strip_prefix('`').and_then(|column| column.strip_suffix('`')) {
                documented.entry(table.clone()).or_default().push((column.to_owned(), (*kind).to_owned()));
            }
        }
    }
    let written = scxprof::trace::parquet::ParquetTable::ALL.map(|table| {
        let columns = table.columns().iter().map(|(name, kind)| ((*name).to_owned(), kind.name().to_owned()));
        (table.name().to_owned(), columns.collect::<Vec<_>>())
    });
    assert_eq!(documented, BTreeMap::from(written));
}

#[test]
fn what_is_damaged_or_empty_has_its_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let (file, tables) = (dir.path().join("file"), dir.path().join("tables"));
    let export = |bytes: &[u8]| {
        fs::write(&file, bytes).unwrap();
        let output = scxprof(&["export", "-f", file.to_str().unwrap(), "--parquet", tables.to_str().unwrap()]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let names = || fs::read_dir(dir.path()).unwrap().map(|it| it.unwrap().file_name()).collect::<Vec<_>>();
    let (code, said) = export(b"");
    assert_eq!((code, names().len()), (Some(2), 1), "{said}");
    let bytes = fixture("ftrace-all.pftrace");
    let (code, said) = export(&bytes[..bytes.len() - 7]);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("the trace is damaged: the file ends within a packet"), "{said}");
    assert_eq!(fs::read_dir(&tables).unwrap().count(), 9);
    let (code, said) = export(&bytes);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("exists already; name a new directory, or an empty one"), "{said}");
    assert_eq!(names().len(), 2);
    let both = scxprof(&["export", "-f", "x", "--parquet", "a", "--perfetto", "b"]);
    assert_eq!(both.status.code(), Some(2));
}
