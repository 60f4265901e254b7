//! Runs a real session and keeps all of its samples.

use scxprof::resolve::Cgroups;
use scxprof::sample::{Sample, Source};
use scxprof::session::{Error, HostOptions, NotStarted, Outcome, Progress, SessionError, Sink, Whose};
use scxprof::testing::sampler::Target;
use scxprof::Session;

/// Keeps every sample with the path of its cgroup.
#[derive(Default)]
pub struct Collect {
    pub samples: Vec<Sample>,
    pub paths: Vec<Option<Vec<u8>>>,
}

impl Sink for Collect {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        self.samples.push(*sample);
        self.paths.push(cgroups.path(sample.raw.cgroup).map(|path| path.to_vec()));
    }
}

pub fn options(source: Source, target: Target, mmap_pages: usize) -> HostOptions {
    HostOptions { whose: Whose::Target(target), mmap_pages, ..HostOptions::source(source) }
}

/// Captures until `stop` returns true, and finishes the recording if there is one; `None`, with the reason printed, if this
/// machine does not allow it.
pub fn capture_until(
    test: &str,
    options: HostOptions,
    stop: impl FnMut(Progress) -> bool,
) -> Option<(Collect, Outcome)> {
    let session = match Session::builder().host(options).start() {
        Ok(session) => session,
        Err(Error::Start(NotStarted { error: SessionError::Sampler(error), .. })) if error.is_unsupported() => {
            println!("SKIP: {test}: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let (mut collect, recorder) = (Collect::default(), session.recorder());
    let outcome = session.run_into(&mut collect, stop);
    if let Some(recorder) = recorder {
        recorder.finish(&outcome).expect("a recording can be finished");
    }
    Some((collect, outcome))
}
