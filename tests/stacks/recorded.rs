//! Call stacks beside memory in one profile.

use std::process::Command;

use serde_json::Value;

use super::{build, json, said, SCXPROF};

fn run(args: &[&str]) -> std::process::Output {
    Command::new(SCXPROF).args(args).output().unwrap()
}

#[test]
fn a_profile_has_memory_and_call_stacks() {
    let test = "a_profile_has_memory_and_call_stacks";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "both", &[]) else { return };
    for unwind in ["fp", "dwarf"] {
        let profile = dir.path().join(unwind);
        let profile = profile.to_str().unwrap();
        let record = ["record", "-o", profile, "--disable-archive", "--unwind", unwind, "--stacks-freq", "499"];
        let watched = ["--stacks=cpu-clock:u", "--", program.to_str().unwrap(), "parts", "80000"];
        let output = run(&[&record[..], &watched].concat());
        if output.status.code() == Some(3) {
            println!("SKIP: {test}: {}", said(&output));
            return;
        }
        assert!(output.status.success(), "{}", said(&output));
        let meta = std::fs::read(format!("{profile}/meta.json")).unwrap();
        let meta: Value = serde_json::from_slice(&meta).unwrap();
        assert!(meta["cpu_seconds"].is_null(), "only the program was sampled: {meta}");
        let of_stacks = |event: &&Value| event["stacks"] == true;
        let events: Vec<&Value> = meta["events"].as_array().unwrap().iter().filter(of_stacks).collect();
        assert!(events.len() == 1 && events[0]["name"] == "cpu-clock:u", "{meta}");

        // The stacks are those of the program.
        let output = run(&["stacks", "-f", profile, "--json"]);
        let found = json(&output);
        let samples = found["samples"].as_u64().unwrap();
        assert!(samples > 100, "{samples}: {}", said(&output));
        let symbols = found["symbols"].as_array().unwrap();
        let line = |name: &str| symbols.iter().find(|line| line["symbol"] == name).unwrap();
        let (main, sixty) = (line("main"), line("sixty"));
        let [total, own] = [&main["total_samples"], &sixty["self_samples"]].map(|count| count.as_f64().unwrap());
        assert!(total >= 0.95 * samples as f64, "{main} of {samples}");
        // Five standard deviations, and the program's own chance.
        assert!((own / total - 0.6).abs() < 5.0 * (0.24 / total).sqrt() + 0.01, "{sixty} of {main}");
        assert_eq!(found["unwound"].is_object(), unwind == "dwarf", "{}", found["unwound"]);

        // The samples of memory are those that the capture counted, and none is of the other event.
        let lines = run(&["process", "-f", profile, "-o", "-"]);
        assert!(lines.status.success(), "{}", said(&lines));
        let count = String::from_utf8_lossy(&lines.stdout).lines().filter(|line| line.contains("\"pid\"")).count();
        assert_eq!(Some(count as u64), meta["accesses"].as_u64(), "{}", said(&lines));

        // perf opens it, and has the same number of samples.
        let data = format!("{profile}/perf.data");
        let Ok(output) = Command::new("perf").args(["script", "-F", "event,ip,sym", "-i", &data]).output() else {
            println!("SKIP: {test}: there is no perf to compare with");
            continue;
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let count = text.lines().filter(|line| line.trim_start().starts_with("cpu-clock:u:")).count();
        assert_eq!(count as u64, samples, "{}", said(&output));
    }
    let output = run(&["stacks", "-f", dir.path().join("fp").to_str().unwrap(), "-e", "page-faults"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("has no call chains of page-faults"), "{}", said(&output));
}

#[test]
fn what_cannot_be_recorded_is_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profile");
    for (args, reason) in [
        (&["--stacks=cpu-clok"][..], "--stacks cpu-clok: unknown event"),
        (&["--unwind", "dwarf"], "--stacks"),
        (&["--stacks", "--unwind", "dwarf,7"], "8 to 65528 bytes"),
        (&["--stacks", "--unwind", "lbr"], "not one of fp, dwarf"),
    ] {
        let output = run(&[&["record", "-t", "1", "-o", path.to_str().unwrap()], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
        assert!(said(&output).contains(reason), "{args:?}: {}", said(&output));
        assert!(!path.exists());
    }
}
