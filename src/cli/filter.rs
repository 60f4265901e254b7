//! Selective replay: which samples of a recording are looked at.

use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use regex::bytes::Regex;

use super::Failure;
use crate::resolve::cgroups::display_path;
use crate::resolve::Cgroups;
use crate::sample::Sample;
use crate::session::Sink;

/// Which samples to look at; a sample must pass all of these
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Selection")]
pub(super) struct FilterArgs {
    /// Only threads whose name matches (repeatable: any of them)
    #[arg(long, value_name = "REGEX")]
    comm: Vec<String>,
    /// Not threads whose name matches
    #[arg(long, value_name = "REGEX")]
    exclude_comm: Vec<String>,
    /// Only cgroups whose path matches; the path begins with /sys/fs/cgroup
    #[arg(long, value_name = "REGEX")]
    cgroup: Vec<String>,
    /// Not cgroups whose path matches
    #[arg(long, value_name = "REGEX")]
    exclude_cgroup: Vec<String>,
    /// Only these processes
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pid: Vec<u32>,
    /// Not these processes
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    exclude_pid: Vec<u32>,
    /// Only these threads
    #[arg(long, value_name = "TID", value_delimiter = ',')]
    tid: Vec<u32>,
    /// Not these threads
    #[arg(long, value_name = "TID", value_delimiter = ',')]
    exclude_tid: Vec<u32>,
    /// From so many seconds after the first sample on
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    from: Option<Duration>,
    /// Until so many seconds after the first sample
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    to: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "must be a number of seconds from 0 on".to_owned())
}

/// The selection, ready to be asked.
#[derive(Debug)]
pub(super) struct Filter {
    comm: [Vec<Regex>; 2],
    cgroup: [Vec<Regex>; 2],
    pid: [Vec<u32>; 2],
    tid: [Vec<u32>; 2],
    from: u64,
    to: Option<u64>,
    /// Time of the first sample.
    first: Option<u64>,
    /// The last cgroup that was looked at and what was found; most samples are of few cgroups.
    last_cgroup: Option<(Vec<u8>, bool)>,
    everything: bool,
    /// Accesses that were left out.
    pub(super) left_out: u64,
}

impl Filter {
    /// From the command line.
    pub(super) fn new(args: &FilterArgs) -> Result<Self, Failure> {
        let compile = |patterns: &[String], option: &str| {
            let one = |pattern: &String| {
                Regex::new(pattern).map_err(|error| Failure::Usage(anyhow!("--{option} {pattern}: {error}")))
            };
            patterns.iter().map(one).collect::<Result<Vec<_>, _>>()
        };
        let FilterArgs { pid, exclude_pid, tid, exclude_tid, from, to, .. } = args;
        if let (Some(from), Some(to)) = (from, to) {
            if from >= to {
                return Err(Failure::Usage(anyhow!("--from must be before --to")));
            }
        }
        let mut filter = Self {
            comm: [compile(&args.comm, "comm")?, compile(&args.exclude_comm, "exclude-comm")?],
            cgroup: [compile(&args.cgroup, "cgroup")?, compile(&args.exclude_cgroup, "exclude-cgroup")?],
            pid: [pid.clone(), exclude_pid.clone()],
            tid: [tid.clone(), exclude_tid.clone()],
            from: from.map_or(0, |from| from.as_nanos() as u64),
            to: to.map(|to| to.as_nanos() as u64),
            first: None,
            last_cgroup: None,
            everything: false,
            left_out: 0,
        };
        let names = filter.comm.iter().chain(&filter.cgroup).all(Vec::is_empty);
        let ids = filter.pid.iter().chain(&filter.tid).all(Vec::is_empty);
        filter.everything = names && ids && from.is_none() && to.is_none();
        Ok(filter)
    }

    /// True where the sample is to be looked at; else it is counted. Samples come in the order of time.
    pub(super) fn keeps(&mut self, sample: &Sample, cgroup: Option<&[u8]>) -> bool {
        if self.everything {
            return true;
        }
        let keeps = self.looks_at(sample, cgroup);
        self.left_out += u64::from(!keeps);
        keeps
    }

    fn looks_at(&mut self, sample: &Sample, cgroup: Option<&[u8]>) -> bool {
        let first = *self.first.get_or_insert(sample.time);
        let since = sample.time.saturating_sub(first);
        if since < self.from || self.to.is_some_and(|to| since >= to) {
            return false;
        }
        let id = |[only, not]: &[Vec<u32>; 2], id: u32| (only.is_empty() || only.contains(&id)) && !not.contains(&id);
        if !id(&self.pid, sample.pid) || !id(&self.tid, sample.tid) {
            return false;
        }
        // A thread without a name is none that was asked for, and none that was to be left out.
        if !matches(&self.comm, sample.comm.as_ref().map(crate::sample::Comm::as_bytes)) {
            return false;
        }
        if self.cgroup.iter().all(Vec::is_empty) {
            return true;
        }
        let Some(path) = cgroup else { return matches(&self.cgroup, None) };
        if let Some((_, found)) = self.last_cgroup.as_ref().filter(|(last, _)| last == path) {
            return *found;
        }
        let found = matches(&self.cgroup, Some(&display_path(path)));
        self.last_cgroup = Some((path.to_vec(), found));
        found
    }
}

fn matches([only, not]: &[Vec<Regex>; 2], name: Option<&[u8]>) -> bool {
    let any = |patterns: &[Regex]| name.is_some_and(|name| patterns.iter().any(|pattern| pattern.is_match(name)));
    (only.is_empty() || any(only)) && !any(not)
}

/// Hands on what the filter keeps.
pub(super) struct Filtered<'a> {
    pub(super) filter: Filter,
    pub(super) sink: &'a mut dyn Sink,
}

impl Sink for Filtered<'_> {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        let path = if self.filter.everything { None } else { cgroups.path(sample.cgroup).map(|path| &**path) };
        if self.filter.keeps(sample, path) {
            self.sink.sample(sample, cgroups);
        }
    }

    fn samples(&mut self, samples: &[Sample], cgroups: &mut Cgroups) {
        if self.filter.everything {
            return self.sink.samples(samples, cgroups);
        }
        for sample in samples {
            self.sample(sample, cgroups);
        }
    }

    fn wants_code(&self) -> bool {
        self.sink.wants_code()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::sample::Comm;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        filter: FilterArgs,
    }

    fn kept(options: &[&str]) -> Vec<usize> {
        let args = Cli::parse_from([&["x"], options].concat());
        let mut filter = Filter::new(&args.filter).unwrap();
        let sample = |time: u64, pid, tid, comm: Option<&[u8]>| Sample {
            time: time * 1_000_000_000,
            pid,
            tid,
            comm: comm.map(Comm::new),
            ..Sample::default()
        };
        let samples = [
            (sample(100, 1, 1, Some(b"web")), Some(&b"/a b"[..])),
            (sample(101, 1, 2, Some(b"w\xff")), Some(&b"/a b"[..])),
            (sample(102, 3, 3, None), None),
            (sample(103, 4, 4, Some(b"db")), Some(&b"/db"[..])),
        ];
        (0..samples.len()).filter(|&index| filter.keeps(&samples[index].0, samples[index].1)).collect()
    }

    #[test]
    fn a_sample_must_pass_all() {
        assert_eq!(kept(&[]), [0, 1, 2, 3]);
        assert_eq!(kept(&["--comm", "^w"]), [0, 1]);
        assert_eq!(kept(&["--comm", "^w", "--comm", "^db$"]), [0, 1, 3]);
        assert_eq!(kept(&["--exclude-comm", "^w"]), [2, 3]);
        assert_eq!(kept(&["--comm", r"(?-u)^w\xff$"]), [1]);
        assert_eq!(kept(&["--cgroup", "^/sys/fs/cgroup/a b$"]), [0, 1]);
        assert_eq!(kept(&["--exclude-cgroup", "db"]), [0, 1, 2]);
        assert_eq!(kept(&["--pid", "1,4", "--exclude-tid", "2"]), [0, 3]);
        assert_eq!(kept(&["--tid", "2"]), [1]);
        assert_eq!(kept(&["--exclude-pid", "1"]), [2, 3]);
        assert_eq!(kept(&["--from", "1", "--to", "2.5"]), [1, 2]);
        assert_eq!(kept(&["--from", "1", "--to", "3"]), [1, 2], "from its beginning, up to its end");
        assert_eq!(kept(&["--from", "1.5"]), [2, 3]);
    }
}
