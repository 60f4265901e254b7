//! A fleet's evidence is added by `scxprof merge`, by DuckDB (fleet/merge.sql) and by Spark (fleet/merge_spark.py), in other orders
//! and in steps. The configuration and the report are the same, byte for byte.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{json, Value};

#[allow(dead_code)]
#[path = "../../examples/make_evidence.rs"]
mod make_evidence;

use make_evidence::{Fleet, GROUP};

const HOSTS: usize = 30;
const CELLS: usize = 2;
const CLASSES: usize = 10;
/// Hosts with other groups.
const OTHER: usize = 2;

fn scxprof(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scxprof")).args(args).output().unwrap()
}

fn in_project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// What scripts/duckdb.sh or scripts/pyspark.sh has installed; `None` without it.
fn installed(test: &str, name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    if !target.join(name).join("version").exists() {
        println!("SKIP: {test}: there is no {name} in {} (scripts/{name}.sh installs it)", target.display());
        return None;
    }
    Some(target.join(name))
}

/// A directory with evidence of hosts.
struct Made {
    dir: tempfile::TempDir,
    files: Vec<String>,
}

/// A configuration, and the report. They are long, so that a failed test does not print them.
#[derive(PartialEq)]
struct Decided(String, String);

impl std::fmt::Debug for Decided {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let begin: String = self.0.chars().take(200).collect();
        write!(f, "{begin}... ({} and {} bytes)", self.0.len(), self.1.len())
    }
}

impl Made {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let hosts = dir.path().join("hosts");
        let fleet = Fleet { dir: hosts.clone(), hosts: HOSTS, cells: CELLS, classes: CLASSES, other: OTHER, seed: 7 };
        fleet.make().unwrap();
        let mut files: Vec<String> =
            fs::read_dir(&hosts).unwrap().map(|it| it.unwrap().path().to_str().unwrap().to_owned()).collect();
        files.sort();
        assert_eq!(files.len(), HOSTS);
        Self { dir, files }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// What `scxprof merge` decides; `more` are options.
    #[track_caller]
    fn merge(&self, files: &[String], more: &[&str]) -> Decided {
        let (cells, report) = (self.path("cells.json"), self.path("report.json"));
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let to = ["-o", &cells, "--report", &report];
        let output = scxprof(&[&["merge"], &files[..], &to, more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Decided(fs::read_to_string(cells).unwrap(), fs::read_to_string(report).unwrap())
    }

    /// What is decided on a file.
    #[track_caller]
    fn of(&self, name: &str) -> Decided {
        self.merge(&[self.path(name)], &[])
    }

    /// Files that must be refused: the first host's with a column changed. The fifth host has the same kernel and CPUs, and so the same
    /// keys.
    fn wrong(&self) -> Vec<(String, Value)> {
        let changes = [
            ("version", "2::BIGINT AS version"),
            ("negative", "(possible - 1)::BIGINT AS possible"),
            ("missing", "NULLIF(shared, 0) AS shared"),
            ("large", "9223372036854775807 AS misses"),
        ];
        let step = |(name, change): (&str, &str)| {
            let (from, to) = (&self.files[0], self.path(&format!("{name}.parquet")));
            let sql = format!("COPY (SELECT * REPLACE ({change}) FROM '{from}') TO '{to}' (COMPRESSION snappy)");
            (name.to_owned(), json!([{}, sql]))
        };
        changes.into_iter().map(step).collect()
    }
}

/// Runs a script with JSON on its stdin; its answers.
fn ask(command: &mut Command, asked: &Value) -> Vec<Value> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(asked.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn duckdb(venv: &Path, steps: &[Value]) -> Vec<Value> {
    ask(Command::new(venv.join("bin/python")).arg(in_project("tests/fleet/sql.py")), &json!(steps))
}

/// fleet/merge.sql of these files.
fn merge_sql(input: &Value, output: &str, hosts: &Value) -> Value {
    let sql = fs::read_to_string(in_project("fleet/merge.sql")).unwrap();
    json!([{"input": input, "output": output, "hosts": hosts}, sql])
}

#[test]
fn a_fleet_has_one_result_in_any_order_and_steps() {
    let made = Made::new();
    let whole = made.merge(&made.files, &[]);
    // It is the right one: the groups that were made, and the hosts with others.
    let report: Value = serde_json::from_str(&whole.1).unwrap();
    assert_eq!(report["runs"], HOSTS);
    assert_eq!(report["hosts"], HOSTS);
    let communities = report["communities"].as_array().unwrap();
    assert_eq!(communities.len(), CELLS * CLASSES / GROUP, "{communities:?}");
    let sizes = communities.iter().map(|it| it["classes"].as_array().unwrap().len());
    assert!(sizes.clone().all(|size| size == GROUP), "{communities:?}");
    let mut outliers: Vec<&str> =
        report["outliers"].as_array().unwrap().iter().map(|it| it["host"].as_str().unwrap()).collect();
    outliers.sort_unstable();
    assert_eq!(outliers, ["host000028", "host000029"]);

    let mut other = made.files.clone();
    other.reverse();
    assert_eq!(made.merge(&other, &[]), whole);
    // In three steps, and a host on its own.
    let mut parts = vec![other[0].clone()];
    for (number, files) in other[1..].chunks(10).enumerate() {
        let part = made.path(&format!("part{number}.parquet"));
        made.merge(files, &["--evidence", &part]);
        parts.push(part);
    }
    let all = made.path("all.parquet");
    assert_eq!(made.merge(&parts, &["--evidence", &all]), whole);
    assert_eq!(made.of("all.parquet"), whole);
    assert_ne!(made.merge(&other[1..], &[]), whole);
}

#[test]
fn duckdb_adds_the_same() {
    let Some(venv) = installed("duckdb_adds_the_same", "duckdb") else { return };
    let made = Made::new();
    let whole = made.merge(&made.files, &[]);
    // Directories with `=` are not columns.
    let (half, rest) = (made.path("cell=half"), made.path("cell=half/rest.parquet"));
    fs::create_dir(&half).unwrap();
    made.merge(&made.files[11..], &["--evidence", &rest]);
    let mut steps = vec![
        merge_sql(&json!(made.path("hosts/**/*.parquet")), &made.path("once.parquet"), &Value::Null),
        merge_sql(&json!(made.files[..11]), &format!("{half}/first.parquet"), &json!(true)),
        merge_sql(&json!(made.path("cell=half/*.parquet")), &made.path("steps.parquet"), &Value::Null),
        merge_sql(&json!(made.files), &made.path("without.parquet"), &json!(false)),
    ];
    let wrong = made.wrong();
    steps.extend(wrong.iter().map(|(_, step)| step.clone()));
    for (name, _) in &wrong {
        let input = json!([made.files[4], made.path(&format!("{name}.parquet")), made.files[2]]);
        steps.push(merge_sql(&input, &made.path("wrong.parquet"), &Value::Null));
    }
    let answers = duckdb(&venv, &steps);
    let (right, refused) = answers.split_at(steps.len() - wrong.len());
    assert!(right.iter().all(Value::is_null), "{right:?}");
    assert_eq!(made.of("once.parquet"), whole);
    assert_eq!(made.of("steps.parquet"), whole);
    let without = made.of("without.parquet");
    assert_eq!(without.0, whole.0);
    assert_eq!(serde_json::from_str::<Value>(&without.1).unwrap()["hosts"], 0);
    for ((name, _), error) in wrong.iter().zip(refused) {
        let said = if name == "large" { "INT64" } else { &format!("{name}.parquet: not evidence of version 1") };
        assert!(error.as_str().is_some_and(|error| error.contains(said)), "{name}: {error}");
        // So does scxprof.
        let (file, cells) = (made.path(&format!("{name}.parquet")), made.path("wrong.json"));
        let output = scxprof(&["merge", &made.files[4], &file, "-o", &cells]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains(&file), "{error}");
        assert!(name != "version" || error.contains("it is evidence of version 2"), "{error}");
        assert!(!Path::new(&cells).exists());
    }
}

#[test]
fn spark_adds_the_same() {
    let test = "spark_adds_the_same";
    let Some(venv) = installed(test, "pyspark") else { return };
    if Command::new("java").arg("-version").stderr(Stdio::null()).status().is_err() {
        println!("SKIP: {test}: there is no Java");
        return;
    }
    let made = Made::new();
    let whole = made.merge(&made.files, &[]);
    // Directories with `=` are not columns.
    let half = made.path("steps/cell=half");
    fs::create_dir_all(&half).unwrap();
    made.merge(&made.files[11..], &["--evidence", &format!("{half}/rest.parquet")]);
    fs::create_dir(made.path("first")).unwrap();
    for (number, file) in made.files[..11].iter().enumerate() {
        fs::copy(file, made.path(&format!("first/{number}.parquet"))).unwrap();
    }
    let mut runs = vec![
        json!([made.path("hosts"), made.path("once.parquet")]),
        json!([made.path("first"), format!("{half}/first.parquet")]),
        json!([made.path("steps"), made.path("steps.parquet")]),
        json!([made.path("hosts"), made.path("without.parquet"), "--no-hosts"]),
    ];
    // DuckDB makes the wrong files.
    let wrong = installed(test, "duckdb").map_or_else(Vec::new, |venv| {
        let wrong = made.wrong();
        let made = duckdb(&venv, &wrong.iter().map(|it| it.1.clone()).collect::<Vec<_>>());
        assert!(made.iter().all(Value::is_null), "{made:?}");
        wrong
    });
    for (name, _) in &wrong {
        fs::create_dir(made.path(name)).unwrap();
        fs::copy(&made.files[4], made.path(&format!("{name}/right.parquet"))).unwrap();
        fs::copy(made.path(&format!("{name}.parquet")), made.path(&format!("{name}/{name}.parquet"))).unwrap();
        runs.push(json!([made.path(name), made.path("wrong.parquet")]));
    }
    let mut spark = Command::new(venv.join("bin/python"));
    spark.arg(in_project("tests/fleet/spark.py")).arg(in_project("fleet"));
    let options = "--master local[1] --driver-memory 512m --conf spark.ui.enabled=false \
                   --conf spark.sql.shuffle.partitions=1 pyspark-shell";
    spark.env("PYSPARK_SUBMIT_ARGS", options).env("PYSPARK_PYTHON", venv.join("bin/python")).env_remove("SPARK_HOME");
    // This host may not know its own name.
    spark.env("SPARK_LOCAL_IP", "127.0.0.1").env("PYTHONDONTWRITEBYTECODE", "1");
    let answers = ask(&mut spark, &json!(runs));
    let (right, refused) = answers.split_at(runs.len() - wrong.len());
    assert!(right.iter().all(Value::is_null), "{right:?}");
    assert_eq!(made.of("once.parquet"), whole);
    assert_eq!(made.of("steps.parquet"), whole);
    let without = made.of("without.parquet");
    assert_eq!(without.0, whole.0);
    for ((name, _), error) in wrong.iter().zip(refused) {
        let said = if name == "large" { "overflow" } else { &format!("{name}.parquet: not evidence of version 1") };
        assert!(error.as_str().is_some_and(|error| error.contains(said)), "{name}: {error}");
    }
    assert!(!Path::new(&made.path("wrong.parquet")).exists());
}
