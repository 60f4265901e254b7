//! Runs a real session and keeps all that it gives.

use scxprof::resolve::{topology, Cgroups, Roots};
use scxprof::sample::{Sample, Source};
use scxprof::sampler::attr::Features;
use scxprof::sampler::{Hardware, Options as SamplerOptions, Target};
use scxprof::session::{Options, Outcome, Progress, Session, SessionError, Sink};

/// Keeps every sample with the path of its cgroup.
#[derive(Default)]
pub struct Collect {
    pub samples: Vec<Sample>,
    pub paths: Vec<Option<Vec<u8>>>,
}

impl Sink for Collect {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        self.samples.push(*sample);
        self.paths.push(cgroups.path(sample.cgroup).map(|path| path.to_vec()));
    }
}

pub fn options(source: Source, target: Target, mmap_pages: usize) -> Options {
    let roots = Roots::default();
    Options {
        sampler: SamplerOptions {
            source,
            freq: None,
            target,
            cpus: topology::online_cpus(&roots).unwrap(),
            mmap_pages,
            workers: None,
            features: Features::all(),
            hardware: Hardware::default(),
            proc: roots.proc.clone(),
            sys: roots.sys.clone(),
            child_pid_namespace: false,
        },
        roots,
        hints: None,
        memory: 64 << 20,
    }
}

/// Captures until `stop` says so; `None`, with the reason printed, where this machine does not allow it.
pub fn capture_until(test: &str, options: &Options, stop: impl FnMut(Progress) -> bool) -> Option<(Collect, Outcome)> {
    let session = match Session::start(options) {
        Ok(session) => session,
        Err(SessionError::Sampler(error)) if error.is_unsupported() => {
            println!("SKIP: {test}: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let mut collect = Collect::default();
    let outcome = session.run(&mut collect, stop);
    Some((collect, outcome))
}
