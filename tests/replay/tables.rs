//! Wakeups and runs of a recording, from the tables that `export --parquet` writes.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::Command;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};

use super::SCXPROF;

#[allow(dead_code)] // Each test binary uses a part of it.
/// Of each pair of names, how often a thread with the first woke one with the second; when each name was made, and when
/// it ran first, in ns.
pub struct Tables {
    pub wakes: BTreeMap<(String, String), u64>,
    pub made: BTreeMap<String, i64>,
    pub first_runs: BTreeMap<String, i64>,
}

fn rows(path: &Path) -> Vec<HashMap<String, Field>> {
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let columns = |row: Row| row.into_columns().into_iter().collect();
    reader.get_row_iter(None).unwrap().map(|row| columns(row.unwrap())).collect()
}

fn number(field: &Field) -> Option<i64> {
    match field {
        Field::Int(number) => Some(i64::from(*number)),
        Field::Long(number) => Some(*number),
        _ => None,
    }
}

impl Tables {
    /// Of the threads whose names `keep` holds.
    pub fn of(recording: &Path, keep: impl Fn(&str) -> bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tables = dir.path().join("tables");
        let mut command = Command::new(SCXPROF);
        let output =
            command.args(["export", "--max-loss", "100", "-f"]).arg(recording).arg("--parquet").arg(&tables).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut names = HashMap::new();
        for row in rows(&tables.join("thread.parquet")) {
            if let (Some(tid), Field::Str(name)) = (number(&row["tid"]), &row["comm"]) {
                if keep(name) {
                    names.insert(tid, name.clone());
                }
            }
        }
        let name = |field: &Field| number(field).and_then(|tid| names.get(&tid).cloned());
        let (mut wakes, mut made, mut first_runs) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for row in rows(&tables.join("wakeup.parquet")) {
            // An interrupt, such as one at the end of I/O, may have come while any thread ran.
            let in_interrupt = row["in_interrupt"] == Field::Bool(true);
            if let (Some(waker), Some(woken), false) = (name(&row["waker_tid"]), name(&row["tid"]), in_interrupt) {
                *wakes.entry((waker, woken)).or_default() += 1;
            }
            if let (Some(woken), Some(at), Field::Bool(true)) = (name(&row["tid"]), number(&row["ts"]), &row["is_new"])
            {
                made.insert(woken, at);
            }
        }
        for row in rows(&tables.join("sched.parquet")) {
            if let (Some(name), Some(at)) = (name(&row["tid"]), number(&row["ts"])) {
                let first = first_runs.entry(name).or_insert(at);
                *first = at.min(*first);
            }
        }
        Self { wakes, made, first_runs }
    }
}
