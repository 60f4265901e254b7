//! The profiler of the library on a program whose functions are known.

use std::process::Command;
use std::time::Duration;

use scxprof::session::{parse_event, HostOptions, Profiler, ProfilerError, Whose};
use scxprof::stacks::{self, ProfilerState};

use super::build;

#[test]
fn results_come_while_it_runs() {
    let test = "results_come_while_it_runs";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "library", &[]) else { return };
    let mut child = Command::new(program).args(["parts", "100000000"]).spawn().unwrap();
    let pid = child.id();
    let event = parse_event("cpu-clock:u", None, &scxprof::host::Roots::default()).unwrap();
    let mut profiler = Profiler::new();
    let host = HostOptions { whose: Whose::Pids(vec![pid]), ..HostOptions::default() };
    let started = profiler.start(event.clone(), Some(100_000), move |capture| capture.host(host));
    let status = profiler.status();
    if started.is_ok() {
        let again = profiler.start(event, None, |capture| capture);
        assert!(matches!(again, Err(ProfilerError::Running)), "{again:?}");
        assert_eq!((status.state, &*status.event), (ProfilerState::Running, "cpu-clock:u"));
        while profiler.status().samples < 30 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let found = profiler.results();
        assert!(found.count() >= 30 && found.frequency == Some(99), "{found:?}");
        let symbols = stacks::symbols(&found, &|_| true);
        assert!(symbols.iter().any(|line| line.symbol == "sixty"), "{symbols:?}");
        assert_eq!(profiler.status().state, ProfilerState::Running);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    if let Err(error) = started {
        println!("SKIP: {test}: {error}");
        return;
    }
    // It ends with its process.
    while profiler.status().state == ProfilerState::Running {
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = profiler.status();
    assert!(status.state == ProfilerState::Stopped && status.lost.is_some(), "{status:?}");
    assert_eq!(profiler.results().count(), status.samples);
}
