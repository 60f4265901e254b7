//! Call stacks of the scheduler's events in recordings of our own.

use std::process::Command;

use super::{json, said, SCXPROF};

fn run(args: &[&str]) -> std::process::Output {
    Command::new(SCXPROF).args(args).output().unwrap()
}

#[test]
fn a_recording_of_stacks_of_switches_has_them_and_no_other_event_is_lost() {
    let test = "a_recording_of_stacks_of_switches_has_them_and_no_other_event_is_lost";
    let dir = tempfile::tempdir().unwrap();
    for more in [&[][..], &["--sched"]] {
        let profile = dir.path().join(format!("profile{}", more.len()));
        let profile = profile.to_str().unwrap();
        let record = ["record", "-o", profile, "--disable-archive", "--max-loss", "100", "--stacks=sched:sched_switch"];
        // It sleeps 100 times.
        let program = ["--", "sh", "-c", "for i in $(seq 100); do sleep 0.002; done"];
        let output = run(&[&record[..], more, &program].concat());
        if output.status.code() == Some(3) {
            println!("SKIP: {test}: {}", said(&output));
            return;
        }
        assert!(output.status.success(), "{more:?}: {}", said(&output));
        let output = run(&["stacks", "-f", profile, "--max-loss", "100", "--json"]);
        assert!(output.status.success(), "{more:?}: {}", said(&output));
        assert!(!said(&output).contains("contradicts"), "{more:?}: {}", said(&output));
        let found = json(&output);
        assert_eq!(found["event"], "sched:sched_switch", "{more:?}: {}", said(&output));
        assert!(found["samples"].as_u64() > Some(100), "{more:?}: {}", found["samples"]);
        if more.is_empty() {
            continue;
        }
        // A kernel may count events that it gives no sample of, which is nothing of the stacks.
        let output = run(&["sched", "-f", profile, "--max-loss", "100", "--json"]);
        assert!(output.status.success(), "{}", said(&output));
        let loss = &json(&output)["loss"];
        assert!(loss["events"].as_u64() > Some(100), "{loss}");
        assert_eq!((&loss["malformed"], &loss["late"]), (&0.into(), &0.into()), "{}", said(&output));
        assert!(!said(&output).contains("contradicts"), "{}", said(&output));
    }
}
