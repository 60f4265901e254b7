//! What meta.json adds to the records.

use std::path::Path;

use scxprof::profile::Profile;
use scxprof::sample::Source;
use serde_json::{json, Value};

use super::made::{self, Order};
use super::{replayed, said, scxprof};

const ORDER: Order = Order { big: false };

/// The file of a recorder of the timer source without samples.
pub const META: &[u8] = br#"{"format":1,"scxprof":"","source":"timer","clock":"CLOCK_MONOTONIC","begin":1,"begin_unix":1.0,"duration":1.0,"host":{"name":"","kernel":"","arch":"","cpu":"","cpus":0,"nodes":[],"page_size":0},"events":[],"identity":{"own_pid":1,"child_pid_namespace":false},"address_from":"OtherTool","samples":1,"accesses":1,"event_count":1,"loss":{"samples":0,"ring_full":0,"hardware":0,"channel_full":0,"malformed":0,"corrupt_rings":0,"side_band":0,"throttled":0,"own":0,"idle":0,"in_kernel":0,"no_memory_op":0,"below_ldlat":0,"bogus":0,"outside_pid_namespace":0,"exiting":0,"unnamed":0,"no_cgroup_path":0,"no_user_address":0,"late":0,"evicted":0},"cgroups":[[5,"2f61"]],"notes":[]}"#;

/// Writes it with these changes.
pub fn write(dir: &Path, changes: &Value) {
    let mut meta: Value = serde_json::from_slice(META).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        meta[key] = value.clone();
    }
    std::fs::write(dir.join("meta.json"), meta.to_string()).unwrap();
}

#[test]
fn cgroups_without_a_record_are_known() {
    let records: Vec<_> = made::records(ORDER).into_iter().skip(1).collect();
    let (dir, _) = made::write(&made::file(ORDER, &records));
    let path = b"/made \xff later";
    let hex: String = path.iter().map(|byte| format!("{byte:02x}")).collect();
    write(dir.path(), &json!({ "cgroups": [[5, hex]] }));
    let (collect, ..) = replayed(dir.path());
    assert!(collect.paths.iter().all(|of_sample| of_sample.as_deref() == Some(&path[..])));
}

#[test]
fn the_recorder_is_left_out_and_its_losses_count() {
    let (dir, _) = made::write(&made::file(ORDER, &made::records(ORDER)));
    let mut loss = serde_json::from_slice::<Value>(META).unwrap()["loss"].take();
    (loss["ring_full"], loss["side_band"]) = (1000.into(), 3.into());
    let identity = json!({ "own_pid": 100, "child_pid_namespace": false });
    write(dir.path(), &json!({ "identity": identity, "loss": loss, "notes": ["a fact"] }));
    let (collect, outcome, _) = replayed(dir.path());
    assert!(collect.samples.iter().all(|sample| sample.raw.pid != 100));
    assert_eq!((outcome.loss.own, outcome.loss.ring_full, outcome.loss.side_band), (20, 1000, 3));
    assert_eq!(Profile::open(dir.path()).unwrap().source(), Source::Timer);
    let path = dir.path().to_str().unwrap();
    let output = scxprof(&["extract", "-f", path]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("a fact"), "{}", said(&output));
    let output = scxprof(&["extract", "--max-loss", "100", "-f", path]);
    assert!(output.status.success(), "{}", said(&output));
}

/// Seconds in which the CPUs of the host were idle since the boot, all of them together.
fn idle_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let ticks = stat.lines().next().unwrap().split_whitespace().skip(4).take(2).map(|it| it.parse::<f64>().unwrap());
    // SAFETY: it takes a number.
    ticks.sum::<f64>() / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64
}

#[test]
fn a_capture_of_the_host_knows_its_cpu_time() {
    const TEST: &str = "a_capture_of_the_host_knows_its_cpu_time";
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("profile");
    for _ in 0..40 {
        let _ = std::fs::remove_dir_all(&out);
        let (begin, idle) = (std::time::Instant::now(), idle_seconds());
        let record = ["record", "--source", "timer", "-t", "0.5", "--max-loss", "100", "--disable-archive", "-o"];
        let output = scxprof(&[&record[..], &[out.to_str().unwrap()]].concat());
        let (idle, elapsed) = (idle_seconds() - idle, begin.elapsed().as_secs_f64());
        if output.status.code() == Some(3) {
            return println!("SKIP: {TEST}: {}", said(&output).trim());
        }
        assert!(output.status.success(), "{}", said(&output));
        let meta: Value = serde_json::from_slice(&std::fs::read(out.join("meta.json")).unwrap()).unwrap();
        let cpus = meta["host"]["cpus"].as_f64().unwrap();
        // What the capture had may be less than what we saw, which has its start.
        let busy = (elapsed * cpus - idle) + 0.02 * cpus;
        if let Some(used) = meta["cpu_seconds"].as_f64() {
            return assert!(used <= busy, "{used} of {busy} on {cpus} CPUs: {meta}");
        }
        // Some of it was in the capture, even if all other time was idle.
        let duration = meta["duration"].as_f64().unwrap();
        let least = (elapsed - 0.8 * duration) * cpus;
        assert!(idle < least, "idle for {idle} of {elapsed} s on {cpus} CPUs: {meta}");
    }
    println!("SKIP: {TEST}: the CPUs of this host are never idle");
}

#[test]
fn a_newer_format_is_refused() {
    let (dir, _) = made::write(&made::file(ORDER, &made::records(ORDER)));
    write(dir.path(), &json!({ "format": 2 }));
    let output = scxprof(&["process", "-f", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("format 2, and this scxprof reads up to 1"), "{}", said(&output));
}

#[test]
fn what_the_recorder_counted_holds() {
    let lost = |lost| made::record(ORDER, 2, 0, &[ORDER.u64(made::ID), ORDER.u64(lost), made::trailer(ORDER, 7)]);
    let records = [made::records(ORDER), vec![lost(5)]].concat();
    let (dir, _) = made::write(&made::file(ORDER, &records));
    std::fs::write(dir.path().join("hints.jsonl"), "").unwrap();
    let mut loss = serde_json::from_slice::<Value>(META).unwrap()["loss"].take();
    let mut with = |ring_full: u64| {
        (loss["ring_full"], loss["corrupt_rings"]) = (ring_full.into(), 2.into());
        let counts = ["at_start", "not_asked", "events", "dropped", "missed", "unreadable", "asked_again"];
        let mut hints: Value = counts.iter().map(|&name| (name.to_owned(), Value::from(6))).collect();
        for name in ["outside_pid_namespace", "tasks", "values", "above_limit", "not_kept", "late"] {
            hints[name] = 8.into();
        }
        (hints["samples_with"], hints["samples_without"]) = (9.into(), 9.into());
        (hints["probe"], hints["missing"]) = ("syscall".into(), "a reason".into());
        write(dir.path(), &json!({ "loss": loss, "event_count": 4321, "duration": 2.5, "hints": hints }));
        replayed(dir.path()).1
    };
    let outcome = with(3);
    assert_eq!((outcome.loss.ring_full, outcome.loss.corrupt_rings), (3, 2), "the record may speak of names");
    assert_eq!((outcome.events, outcome.duration.as_secs_f64()), (4321, 2.5));
    let hints = outcome.hints.unwrap();
    assert_eq!((hints.missing.as_deref(), hints.probe.is_some(), hints.counts.dropped), (Some("a reason"), true, 6));
    assert_eq!((hints.samples_without, hints.late), (42, 0), "what is counted again");
    assert_eq!(with(9).loss.ring_full, 9, "meta.json says more");
}

#[test]
fn only_a_source_that_recovers_is_joined() {
    let (dir, _) = made::write(&made::file(ORDER, &made::records(ORDER)));
    std::fs::write(dir.path().join("recovered.jsonl"), "").unwrap();
    write(dir.path(), &json!({}));
    assert_eq!(replayed(dir.path()).0.samples.len(), 42, "they have addresses of their own");
    write(dir.path(), &json!({ "address_from": "UserByMode" }));
    assert_eq!(replayed(dir.path()).0.samples.len(), 0, "nothing was recovered");
}
