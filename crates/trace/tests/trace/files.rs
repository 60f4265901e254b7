//! The traces of fixtures/, and any other, read whole.

use std::fs;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use scxprof_base::sample::sched::SchedEvent;
use scxprof_trace::{Event, Info, Trace, TraceError, TraceEvent};

/// A trace in memory.
pub type InMemory = Trace<Cursor<Vec<u8>>>;

/// All fixtures.
pub const ALL: [&str; 5] =
    ["minimal.pftrace", "ftrace-all.pftrace", "ftrace-compact.pftrace.gz", "wprof.pb.gz", "wprof-sched-tidpid.pb.gz"];

pub fn path(name: &str) -> PathBuf {
    Path::new(super::FIXTURES).join(name)
}

/// A fixture, unpacked.
pub fn fixture(name: &str) -> Vec<u8> {
    let bytes = fs::read(path(name)).unwrap();
    if Path::new(name).extension().is_none_or(|extension| extension != "gz") {
        return bytes;
    }
    let mut inflated = Vec::new();
    flate2::read::GzDecoder::new(&*bytes).read_to_end(&mut inflated).unwrap();
    inflated
}

pub fn open(bytes: Vec<u8>) -> Result<InMemory, TraceError> {
    Trace::open(Cursor::new(bytes))
}

/// What a trace has.
pub struct Whole {
    pub trace: InMemory,
    pub sched: Vec<SchedEvent>,
    pub others: Vec<TraceEvent>,
    pub info: Info,
}

/// Reads all of it; times must not go back.
pub fn read(bytes: Vec<u8>) -> Whole {
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
pub fn count(info: &Info, name: &str) -> u64 {
    info.events.iter().chain(&info.unknown).find(|count| count.name == name).map_or(0, |count| count.count)
}
