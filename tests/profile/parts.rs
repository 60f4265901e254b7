//! Profiles with a missing part, and what their lines contain.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use scxprof::profile::Profile;
use scxprof::sample::{Method, RawSample, Sample, Source};
use scxprof::testing::profile::recovered::{Names, RecoveredWriter};
use serde_json::{json, Value};
use tempfile::TempDir;

use super::made::{self, Order};
use super::meta::{self, META};
use super::{replayed, said, scxprof, Collect};

const ORDER: Order = Order { big: false };
/// The message for a profile without its recovered.jsonl.
const NO_ADDRESSES: &str = "recovered.jsonl is missing, which has the addresses";
const NONE_HAS: &str = "none of the 42 samples has a data address";

/// A profile of the timer source: the true addresses are only in recovered.jsonl, not in perf.data.
fn of_timer() -> (TempDir, PathBuf, Collect) {
    let (dir, path) = made::write(&made::file(ORDER, &made::records(ORDER)));
    let mut live = replayed(&path).0;
    assert_eq!(live.samples.len(), 42);
    let mut writer = RecoveredWriter::new(fs::File::create(dir.path().join("recovered.jsonl")).unwrap());
    for sample in &mut live.samples {
        *sample = Sample {
            raw: RawSample { method: Some(Method::Emulated), addr: sample.raw.addr + 64, size: 8, ..sample.raw },
            ..*sample
        };
        writer.add(sample, None, Names::default());
    }
    writer.finish().unwrap();
    meta::write(dir.path(), &json!({ "address_from": "UserByMode" }));
    (dir, path, live)
}

/// A perf.data as of `perf record -e cpu-clock`.
fn without_addresses() -> Vec<u8> {
    let records: Vec<_> = (0..42).map(|time| made::sample(ORDER, 1000 + time, 100, 100, 0, 5, 0)).collect();
    made::file(ORDER, &records)
}

fn addresses(collect: &Collect) -> Vec<u64> {
    collect.samples.iter().map(|sample| sample.raw.addr).collect()
}

/// Runs `extract`, which must end with this code and message.
#[track_caller]
fn extract(path: &Path, code: i32, sentence: &str) -> Vec<u8> {
    let output = scxprof(&["extract", "-f", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(code), "{}", said(&output));
    assert!(said(&output).contains(sentence), "{}", said(&output));
    assert_eq!(output.stdout.is_empty(), code == 1, "{}", said(&output));
    output.stdout
}

#[test]
fn records_are_read_with_what_lies_beside_them() {
    let (dir, path, live) = of_timer();
    for path in [dir.path(), &path] {
        let (collect, _, damage) = replayed(path);
        assert_eq!((addresses(&collect), &damage[..]), (addresses(&live), &[][..]), "{}", path.display());
    }
    assert_eq!(extract(dir.path(), 0, ""), extract(&path, 0, ""));
    let elsewhere = dir.path().join("other.data");
    fs::rename(&path, &elsewhere).unwrap();
    let profile = Profile::open(&elsewhere).unwrap();
    assert!(profile.meta.is_none(), "nobody knows that they belong together");
}

#[test]
fn a_profile_without_what_its_recorder_knew_is_damaged() {
    let (dir, path, live) = of_timer();
    let meta = dir.path().join("meta.json");
    let cut = fs::read(&meta).unwrap();
    for (left, said) in [
        (Some(&b""[..]), "meta.json is invalid (EOF while parsing a value"),
        (Some(&cut[..cut.len() / 2]), "meta.json is invalid (EOF while parsing"),
        (Some(b"{\"scxprof\":\"\",\"format\":1}"), "meta.json is invalid (missing field"),
        (None, "meta.json is missing"),
    ] {
        match left {
            Some(bytes) => fs::write(&meta, bytes).unwrap(),
            None => fs::remove_file(&meta).unwrap(),
        }
        for path in [dir.path(), &path] {
            let (collect, _, damage) = replayed(path);
            assert_eq!(addresses(&collect), addresses(&live), "what was recovered is there");
            assert!(damage.len() == 1 && damage[0].starts_with(said), "{damage:?}");
            assert_eq!(Profile::open(path).unwrap().source(), Source::Timer);
            extract(path, 4, said);
        }
    }
}

#[test]
fn a_meta_json_of_another_program_says_nothing() {
    let (dir, path) = made::write(&made::file(ORDER, &made::records(ORDER)));
    fs::write(dir.path().join("meta.json"), "{\"version\": 3, \"format\": 9}").unwrap();
    for path in [dir.path(), &path] {
        let (collect, _, damage) = replayed(path);
        assert_eq!((collect.samples.len(), damage), (42, vec![]));
    }
}

#[test]
fn a_timer_profile_without_its_addresses_gives_nothing() {
    let (dir, path, _) = of_timer();
    fs::remove_file(dir.path().join("recovered.jsonl")).unwrap();
    fs::write(&path, without_addresses()).unwrap();
    for path in [dir.path(), &path] {
        extract(path, 1, NO_ADDRESSES);
        extract(path, 1, NONE_HAS);
    }
    let output = scxprof(&["process", "-f", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    extract(&dir.path().join("perf.data.out"), 1, NO_ADDRESSES);
}

#[test]
fn a_recording_without_addresses_gives_nothing() {
    let (dir, path) = made::write(&without_addresses());
    let output = scxprof(&["process", "-f", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains(NONE_HAS), "{}", said(&output));
    let lines = dir.path().join("perf.data.out/perf.jsonl");
    assert_eq!(fs::read(&lines).unwrap().split(|&byte| byte == b'\n').count(), 43);
    for path in [&path, &lines] {
        extract(path, 1, NONE_HAS);
        extract(path, 1, "record with `perf mem record`, or with `perf record -d` of an event that has one");
    }
}

#[test]
fn a_recording_that_was_killed_is_read_as_far_as_it_goes() {
    let (dir, _, live) = of_timer();
    meta::write(
        dir.path(),
        &json!({ "address_from": "UserByMode", "unfinished": true, "event_count": 0, "duration": 0.0 }),
    );
    let (collect, outcome, damage) = replayed(dir.path());
    assert_eq!(addresses(&collect), addresses(&live));
    assert!(damage.len() == 1 && damage[0].starts_with("the recording was not finished"), "{damage:?}");
    assert!(outcome.events == 42 && outcome.duration.as_nanos() > 0, "as far as the records say");
    extract(dir.path(), 4, "the recording was not finished");
}

#[test]
fn lines_say_what_was_lost_and_damaged() {
    let bytes = made::file(ORDER, &made::records(ORDER));
    // All of it, cut, and the records of another program that say that some were lost.
    let mut loss = serde_json::from_slice::<Value>(META).unwrap()["loss"].take();
    loss["ring_full"] = 18.into();
    let lost = made::record(ORDER, 2, 0, &[ORDER.u64(made::ID), ORDER.u64(18), made::trailer(ORDER, 7)]);
    let others = made::file(ORDER, &[made::records(ORDER), vec![lost]].concat());
    for (bytes, meta, sentence) in [
        (&bytes[..], Some(json!({ "loss": loss, "notes": ["a fact"] })), "30.0 % of the samples were lost"),
        (&bytes[..bytes.len() - 100], None, "bytes of the records are missing at the end of perf.data"),
        (&others, None, "30.0 % of the samples were lost"),
    ] {
        let (dir, path) = made::write(bytes);
        if let Some(meta) = &meta {
            meta::write(dir.path(), meta);
        }
        extract(&path, 4, sentence);
        scxprof(&["process", "-f", path.to_str().unwrap()]);
        let out = dir.path().join("perf.data.out");
        extract(&out, 4, sentence);
        if meta.is_some() {
            extract(&out, 4, "a fact");
        }
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let modes = [&out, &out.join("perf.jsonl"), &out.join("meta.json")].map(|path| mode(path));
        assert_eq!(modes, [0o700, 0o600, 0o600], "they are for their owner alone");
    }
}
