//! Profiles: written, read again, compared with perf, damaged.

mod buildid;
mod commands;
mod compressed;
mod damage;
mod events;
pub mod fields;
mod hints;
mod hostile;
mod layouts;
mod made;
mod mappings;
pub mod meta;
mod names;
mod parallel;
mod parts;
mod perf;
mod roundtrip;
mod script;
mod seeds;
pub mod spe;
mod upstream;

use std::path::Path;
use std::process::{Command, Output};

use crate::support::replay::replay;
use scxprof::profile::Profile;
use scxprof::resolve::Cgroups;
use scxprof::sample::Sample;
use scxprof::session::{Outcome, Sink};

/// While another profiler requests build ids, the kernel marks the mappings of others too (observed on 6.18), and perf 6.1 then
/// fails on its own recording: so tests that request them and tests that run `perf record` take turns.
pub static BUILD_IDS: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Keeps every sample with the path of its cgroup.
#[derive(Default, Debug, PartialEq)]
struct Collect {
    /// As they came.
    samples: Vec<Sample>,
    /// Of the same samples.
    paths: Vec<Option<Vec<u8>>>,
}

impl Sink for Collect {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        // The id of a cgroup comes from the kernel, and is the same in both.
        self.samples.push(*sample);
        self.paths.push(cgroups.path(sample.raw.cgroup).map(|path| path.to_vec()));
    }
}

/// The samples of a profile.
fn replayed(path: &Path) -> (Collect, Outcome, Vec<String>) {
    let mut profile = Profile::open(path).unwrap();
    let mut collect = Collect::default();
    let outcome = replay(&mut profile, 64 << 20, &mut collect);
    (collect, outcome, profile.damage())
}

/// Runs our binary.
fn scxprof(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scxprof")).args(args).output().unwrap()
}

/// Its output on stderr.
fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
