//! The source `wakeups`: threads that wake each other are one community, others are in none.

use std::collections::BTreeMap;
use std::io::{pipe, Read, Write};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::live::{alone, name, Spinning, ORDERS};

const GROUPS: [&str; 3] = ["alpha", "beta", "gamma"];
const SIZE: usize = 3;
/// How long the program runs.
const TIME: Duration = Duration::from_millis(2500);

/// The program: each group passes a byte around, the lone threads sleep and wake nobody.
pub fn rings() {
    let end = Instant::now() + TIME;
    let mut threads = Vec::new();
    for group in GROUPS {
        let pipes: Vec<_> = (0..SIZE).map(|_| pipe().unwrap()).collect();
        let (mut readers, mut writers): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
        // Each reads from its own and writes to the next.
        writers.rotate_left(1);
        writers[SIZE - 1].write_all(&[0]).unwrap();
        for (number, (mut reader, mut writer)) in readers.drain(..).zip(writers).enumerate() {
            threads.push(thread::spawn(move || {
                name(&format!("{group}-{number}"));
                let mut byte = [0];
                while reader.read_exact(&mut byte).is_ok() {
                    if Instant::now() > end || writer.write_all(&byte).is_err() {
                        break;
                    }
                    thread::sleep(Duration::from_micros(100));
                }
            }));
        }
    }
    for number in 0..SIZE {
        threads.push(thread::spawn(move || {
            name(&format!("lone-{number}"));
            while Instant::now() < end {
                thread::sleep(Duration::from_millis(1));
            }
        }));
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

/// The kind of each thread's subcell and its name, by the thread's name.
fn subcells(report: &Value) -> BTreeMap<String, (String, String)> {
    let mut found = BTreeMap::new();
    for subcell in report["cells"].as_array().unwrap().iter().flat_map(|cell| cell["subcells"].as_array().unwrap()) {
        for thread in subcell["threads"].as_array().unwrap() {
            let place = (subcell["kind"].as_str().unwrap().to_owned(), subcell["name"].as_str().unwrap().to_owned());
            found.insert(thread["comm"].as_str().unwrap().to_owned(), place);
        }
    }
    found
}

#[test]
fn groups_that_wake_each_other_are_found_and_nothing_else() {
    const TEST: &str = "groups_that_wake_each_other_are_found_and_nothing_else";
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report.json");
    let _alone = alone();
    let _spinning = Spinning::new();
    let program = std::env::current_exe().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_scxprof"))
        .args(["run", "--source", "wakeups", "--target-cpus", "64", "--max-loss", "100", "--report"])
        .arg(&report)
        .args(["--", "env", &format!("{ORDERS}=rings")])
        .arg(program)
        .args(["live::program", "--exact"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) {
        println!("SKIP: {TEST}: {}", text.trim());
        return;
    }
    assert!(output.status.success(), "{text}");
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["source"], "wakeups");
    assert!(report["coverage"].as_str().unwrap().starts_with("no accesses"), "{report}");
    let subcells = subcells(&report);
    for group in GROUPS {
        let of = |number: usize| subcells.get(&format!("{group}-{number}"));
        let first = of(0).unwrap_or_else(|| panic!("{subcells:?}"));
        assert_eq!(first.0, "community", "{subcells:?}");
        assert!((1..SIZE).all(|number| of(number) == Some(first)), "{subcells:?}");
        let others = subcells.iter().filter(|(name, place)| !name.starts_with(group) && *place == first);
        assert_eq!(others.count(), 0, "{subcells:?}");
    }
    assert!(subcells.iter().all(|(name, place)| !name.starts_with("lone") || place.0 != "community"), "{subcells:?}");
}
