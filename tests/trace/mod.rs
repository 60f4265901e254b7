//! Traces of other tools: every event is read or counted, and times are those of other programs that read them.

mod analyze;
mod commands;
mod encode;
mod export;
mod golden;
mod hostile;
mod identity;
mod mutations;
mod others;
#[cfg(feature = "parquet")]
mod queries;
mod stacks;

use std::fs;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use scxprof::sample::sched::SchedEvent;
use scxprof::trace::{Event, Info, Trace, TraceError, TraceEvent};

/// A trace in memory.
type InMemory = Trace<Cursor<Vec<u8>>>;

/// All fixtures.
const ALL: [&str; 5] =
    ["minimal.pftrace", "ftrace-all.pftrace", "ftrace-compact.pftrace.gz", "wprof.pb.gz", "wprof-sched-tidpid.pb.gz"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/trace").join(name)
}

/// A fixture, unpacked.
fn fixture(name: &str) -> Vec<u8> {
    let bytes = fs::read(path(name)).unwrap();
    if Path::new(name).extension().is_none_or(|extension| extension != "gz") {
        return bytes;
    }
    let mut inflated = Vec::new();
    flate2::read::GzDecoder::new(&*bytes).read_to_end(&mut inflated).unwrap();
    inflated
}

fn open(bytes: Vec<u8>) -> Result<InMemory, TraceError> {
    Trace::open(Cursor::new(bytes))
}

/// What a trace has.
struct Whole {
    trace: InMemory,
    sched: Vec<SchedEvent>,
    others: Vec<TraceEvent>,
    info: Info,
}

/// Reads all of it; times must not go back.
fn read(bytes: Vec<u8>) -> Whole {
    let mut trace = open(bytes).unwrap();
    let (mut sched, mut others, mut last) = (Vec::new(), Vec::new(), 0);
    while let Some(event) = trace.next_event().unwrap() {
        assert!(event.time() >= last, "{event:?} comes after {last}");
        last = event.time();
        match event {
            Event::Sched(event) => sched.push(event),
            Event::Trace(event) => others.push(event),
        }
    }
    let info = trace.info();
    Whole { trace, sched, others, info }
}

/// The count of an event in the info.
fn count(info: &Info, name: &str) -> u64 {
    info.events.iter().chain(&info.unknown).find(|count| count.name == name).map_or(0, |count| count.count)
}
