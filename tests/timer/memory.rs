//! Memory around the registers is used while recording, but is only written to the files on request.

use std::fs;
use std::time::Duration;

use scxprof::sample::Method;
use scxprof::session::HostOptions;
use scxprof::testing::sampler::Target;

use super::programs::{build, start};
use super::{recovery, timer};
use crate::support::alone;
use crate::support::capture::capture_until;

/// Of the nodes that list.c follows.
const SECRET: &[u8] = b"what the list keeps to itself";

#[test]
fn a_recording_keeps_the_memory_only_where_it_was_asked_to() {
    let _alone = alone();
    let test = "keep-memory";
    let Some(built) = build("list", 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let running = start(&built.path, 600.0, 1);
    let tids: Vec<u32> = running.threads.iter().map(|thread| thread.tid as u32).collect();
    for keep in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let target = Target::Tasks { tids: tids.clone(), enable_on_exec: false };
        let options = HostOptions { record: Some(dir.path().into()), ..timer(target, Some(2000)) };
        let options = HostOptions { keep_memory: keep, ..options };
        // Until there are enough, on a busy machine too.
        let enough = |progress: scxprof::session::Progress| {
            progress.elapsed > Duration::from_secs(20)
                || (progress.samples > 1000 && progress.elapsed > Duration::from_secs(1))
        };
        let Some((got, outcome)) = capture_until(test, options, enough) else { return };
        let by_memory = got.samples.iter().filter(|sample| sample.raw.method == Some(Method::Racy)).count();
        println!("{test}: {by_memory} by memory of {}, {:?}", got.samples.len(), recovery(&outcome));
        if by_memory == 0 {
            println!("SKIP: {test}: no memory around the registers: {:?}", outcome.notes);
            return;
        }
        for file in ["perf.data", "recovered.jsonl"] {
            let bytes = fs::read(dir.path().join(file)).expect(file);
            let found = bytes.windows(SECRET.len()).any(|window| window == SECRET);
            assert_eq!(found, keep && file == "perf.data", "{file}, keep {keep}");
        }
        assert!(fs::read_to_string(dir.path().join("recovered.jsonl")).expect("lines").contains("\"m\""));
    }
}
