//! Selective replay: which samples of a recording are used.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use regex::bytes::Regex;

use super::args::moment;
use super::failure::Failure;
use crate::config::mistake;
use crate::resolve::cgroups::display_path;
use crate::resolve::Cgroups;
use crate::sample::{Comm, Sample};

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
    /// Only cgroups whose path matches, as /sys/fs/cgroup/a or as /a
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
    /// Start this long after the first sample, such as 10, 500ms or 1m
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = moment)]
    from: Option<Duration>,
    /// End this long after the first sample
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = moment)]
    to: Option<Duration>,
}

impl FilterArgs {
    /// True if every sample passes.
    pub(super) fn is_empty(&self) -> bool {
        self.to_string().is_empty()
    }
}

impl fmt::Display for FilterArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = |ids: &[u32]| ids.iter().map(u32::to_string).collect::<Vec<_>>();
        let time = |time: Option<Duration>| time.map(|time| time.as_secs_f64().to_string()).into_iter().collect();
        let options = [
            ("comm", self.comm.clone()),
            ("exclude-comm", self.exclude_comm.clone()),
            ("cgroup", self.cgroup.clone()),
            ("exclude-cgroup", self.exclude_cgroup.clone()),
            ("pid", ids(&self.pid)),
            ("exclude-pid", ids(&self.exclude_pid)),
            ("tid", ids(&self.tid)),
            ("exclude-tid", ids(&self.exclude_tid)),
            ("from", time(self.from)),
            ("to", time(self.to)),
        ];
        let given = options.iter().flat_map(|(option, values)| values.iter().map(move |it| format!("--{option} {it}")));
        f.write_str(&given.collect::<Vec<_>>().join(" "))
    }
}

/// The compiled selection.
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
    /// The options as given.
    asked: String,
    /// The last cgroup and its result; most samples belong to few cgroups.
    last_cgroup: Option<(Vec<u8>, bool)>,
    /// Accesses that were left out.
    pub(super) left_out: u64,
    /// True if any was kept.
    kept: bool,
    /// The contents of the recording, until a sample is kept.
    seen: SelectionCounts,
}

/// The values to select from, in the order of their first samples.
#[derive(Debug, Default)]
struct SelectionCounts {
    comms: BTreeSet<String>,
    cgroups: BTreeSet<String>,
    pids: BTreeSet<String>,
    tids: BTreeSet<String>,
    /// Time of the last sample.
    last: u64,
}

/// Values of each kind that are kept.
const MAX_SEEN: usize = 4096;
/// Of these, values that are printed.
const MAX_SAID: usize = 8;

impl SelectionCounts {
    fn add(&mut self, sample: &Sample, cgroup: Option<&[u8]>) {
        let add = |values: &mut BTreeSet<String>, value: Option<String>| {
            if values.len() < MAX_SEEN {
                values.extend(value);
            }
        };
        add(&mut self.comms, sample.comm.map(|comm| comm.to_string()));
        // Escaped for a terminal.
        add(&mut self.cgroups, cgroup.map(|path| path.escape_ascii().to_string()));
        add(&mut self.pids, Some(sample.raw.pid.to_string()));
        add(&mut self.tids, Some(sample.raw.tid.to_string()));
        self.last = self.last.max(sample.raw.time);
    }
}

impl Filter {
    /// From the command line.
    pub(super) fn new(args: &FilterArgs) -> Result<Self, Failure> {
        let compile = |patterns: &[String], option: &str| {
            let one = |pattern: &String| {
                Regex::new(pattern).map_err(|error| {
                    let (offset, reason) = mistake(pattern, &error);
                    let at = offset.map_or(String::new(), |offset| format!(" at byte {offset}"));
                    Failure::Usage(anyhow!("--{option} {pattern}: the regular expression is wrong{at}: {reason}"))
                })
            };
            patterns.iter().map(one).collect::<Result<Vec<_>, _>>()
        };
        let FilterArgs { pid, exclude_pid, tid, exclude_tid, from, to, .. } = args;
        if let (Some(from), Some(to)) = (from, to) {
            if from >= to {
                return Err(Failure::Usage(anyhow!("--from must be before --to")));
            }
        }
        Ok(Self {
            comm: [compile(&args.comm, "comm")?, compile(&args.exclude_comm, "exclude-comm")?],
            cgroup: [compile(&args.cgroup, "cgroup")?, compile(&args.exclude_cgroup, "exclude-cgroup")?],
            pid: [pid.clone(), exclude_pid.clone()],
            tid: [tid.clone(), exclude_tid.clone()],
            from: from.map_or(0, |from| from.as_nanos() as u64),
            to: to.map(|to| to.as_nanos() as u64),
            first: None,
            asked: args.to_string(),
            last_cgroup: None,
            left_out: 0,
            kept: false,
            seen: SelectionCounts::default(),
        })
    }

    /// True if the sample is to be used; else it is counted. Samples come in the order of time.
    pub(super) fn keeps(&mut self, sample: &Sample, cgroups: &mut Cgroups) -> bool {
        self.keeps_of(sample, cgroups.path(sample.raw.cgroup).map(|path| &**path))
    }

    fn keeps_of(&mut self, sample: &Sample, cgroup: Option<&[u8]>) -> bool {
        let keeps = self.looks_at(sample, cgroup);
        self.left_out += u64::from(!keeps);
        self.kept |= keeps;
        if !self.kept {
            self.seen.add(sample, cgroup);
        }
        keeps
    }

    /// ns after the first event from which on, and until which, it is to be used.
    pub(super) fn window(&self) -> (u64, Option<u64>) {
        (self.from, self.to)
    }

    /// The values to select from, if the selection is empty.
    pub(super) fn nothing(&self) -> Option<String> {
        if self.kept || self.left_out == 0 {
            return None;
        }
        let used = |[only, not]: [bool; 2]| only || not;
        let mut there = Vec::new();
        for (asked, what, values) in [
            (used([0, 1].map(|at| !self.comm[at].is_empty())), "names", &self.seen.comms),
            (used([0, 1].map(|at| !self.cgroup[at].is_empty())), "cgroups", &self.seen.cgroups),
            (used([0, 1].map(|at| !self.pid[at].is_empty())), "processes", &self.seen.pids),
            (used([0, 1].map(|at| !self.tid[at].is_empty())), "threads", &self.seen.tids),
        ] {
            if !asked {
                continue;
            }
            let said: Vec<&str> = values.iter().take(MAX_SAID).map(String::as_str).collect();
            let more = match values.len().saturating_sub(MAX_SAID) {
                0 => String::new(),
                _ if values.len() >= MAX_SEEN => " and many more".to_owned(),
                more => format!(" and {more} more"),
            };
            there.push(if said.is_empty() {
                format!("no {what}")
            } else {
                format!("{what} {}{more}", said.join(", "))
            });
        }
        if self.from > 0 || self.to.is_some() {
            let span = Duration::from_nanos(self.seen.last.saturating_sub(self.first.unwrap_or_default()));
            there.push(format!("{:.1} seconds", span.as_secs_f64()));
        }
        Some(format!("no access matches the selection ({}); there are: {}", self.asked, there.join("; ")))
    }

    fn looks_at(&mut self, sample: &Sample, cgroup: Option<&[u8]>) -> bool {
        let first = *self.first.get_or_insert(sample.raw.time);
        let since = sample.raw.time.saturating_sub(first);
        if since < self.from || self.to.is_some_and(|to| since >= to) {
            return false;
        }
        self.looks_at_thread((sample.raw.pid, sample.raw.tid), sample.comm.as_ref(), cgroup)
    }

    /// True if the thread is to be used, whenever.
    pub(super) fn looks_at_thread(
        &mut self,
        (pid, tid): (u32, u32),
        comm: Option<&Comm>,
        cgroup: Option<&[u8]>,
    ) -> bool {
        let id = |[only, not]: &[Vec<u32>; 2], id: u32| (only.is_empty() || only.contains(&id)) && !not.contains(&id);
        if !id(&self.pid, pid) || !id(&self.tid, tid) {
            return false;
        }
        // A thread without a name is neither selected nor excluded.
        if !matches(&self.comm, comm.map(Comm::as_bytes)) {
            return false;
        }
        if self.cgroup.iter().all(Vec::is_empty) {
            return true;
        }
        let Some(path) = cgroup else { return matches(&self.cgroup, None) };
        if let Some((_, found)) = self.last_cgroup.as_ref().filter(|(last, _)| last == path) {
            return *found;
        }
        // As schedulers see it, and as in the lines of `process`.
        let [only, not] = &self.cgroup;
        let forms = [&display_path(path)[..], path];
        let any = |patterns: &[Regex]| forms.iter().any(|form| patterns.iter().any(|it| it.is_match(form)));
        let found = (only.is_empty() || any(only)) && !any(not);
        self.last_cgroup = Some((path.to_vec(), found));
        found
    }
}

fn matches([only, not]: &[Vec<Regex>; 2], name: Option<&[u8]>) -> bool {
    let any = |patterns: &[Regex]| name.is_some_and(|name| patterns.iter().any(|pattern| pattern.is_match(name)));
    (only.is_empty() || any(only)) && !any(not)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::sample::Comm;
    use crate::sample::RawSample;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        filter: FilterArgs,
    }

    fn kept(options: &[&str]) -> Vec<usize> {
        let args = Cli::parse_from([&["x"], options].concat());
        let mut filter = Filter::new(&args.filter).unwrap();
        let sample = |time: u64, pid, tid, comm: Option<&[u8]>| Sample {
            raw: RawSample { time: time * 1_000_000_000, pid, tid, ..RawSample::default() },
            comm: comm.map(Comm::new),
            ..Sample::default()
        };
        let samples = [
            (sample(100, 1, 1, Some(b"web")), Some(&b"/a b"[..])),
            (sample(101, 1, 2, Some(b"w\xff")), Some(&b"/a b"[..])),
            (sample(102, 3, 3, None), None),
            (sample(103, 4, 4, Some(b"db")), Some(&b"/db"[..])),
        ];
        (0..samples.len()).filter(|&index| filter.keeps_of(&samples[index].0, samples[index].1)).collect()
    }

    #[test]
    fn a_selection_of_nothing_says_what_there_is() {
        let nothing = |options: &[&str]| {
            let args = Cli::parse_from([&["x"], options].concat());
            let mut filter = Filter::new(&args.filter).unwrap();
            for at in 0..20 {
                let comm = Some(Comm::new(format!("job {at:02}").as_bytes()));
                let sample = Sample {
                    raw: RawSample { time: at * 500_000_000, pid: 7, ..RawSample::default() },
                    comm,
                    ..Sample::default()
                };
                filter.keeps_of(&sample, Some(b"/a\n"));
            }
            filter.nothing()
        };
        assert_eq!(nothing(&["--comm", "5$"]), None);
        assert_eq!(nothing(&[]), None);
        let names = "names job 00, job 01, job 02, job 03, job 04, job 05, job 06, job 07 and 12 more";
        assert_eq!(
            nothing(&["--comm", "^web", "--cgroup", "^/b"]).unwrap(),
            format!("no access matches the selection (--comm ^web --cgroup ^/b); there are: {names}; cgroups /a\\n")
        );
        assert_eq!(
            nothing(&["--pid", "1,2", "--from", "100"]).unwrap(),
            "no access matches the selection (--pid 1 --pid 2 --from 100); there are: processes 7; 9.5 seconds"
        );
    }

    #[test]
    fn a_sample_must_pass_all() {
        assert_eq!(kept(&[]), [0, 1, 2, 3]);
        assert_eq!(kept(&["--comm", "^w"]), [0, 1]);
        assert_eq!(kept(&["--comm", "^w", "--comm", "^db$"]), [0, 1, 3]);
        assert_eq!(kept(&["--exclude-comm", "^w"]), [2, 3]);
        assert_eq!(kept(&["--comm", r"(?-u)^w\xff$"]), [1]);
        assert_eq!(kept(&["--cgroup", "^/sys/fs/cgroup/a b$"]), [0, 1]);
        assert_eq!(kept(&["--cgroup", "^/a b$"]), [0, 1], "as the lines have it");
        assert_eq!(kept(&["--exclude-cgroup", "^/db$", "--exclude-cgroup", "^/sys/fs/cgroup/a"]), [2]);
        assert_eq!(kept(&["--exclude-cgroup", "db"]), [0, 1, 2]);
        assert_eq!(kept(&["--pid", "1,4", "--exclude-tid", "2"]), [0, 3]);
        assert_eq!(kept(&["--tid", "2"]), [1]);
        assert_eq!(kept(&["--exclude-pid", "1"]), [2, 3]);
        assert_eq!(kept(&["--from", "1", "--to", "2.5"]), [1, 2]);
        assert_eq!(kept(&["--from", "1", "--to", "3"]), [1, 2], "from its beginning, up to its end");
        assert_eq!(kept(&["--from", "1.5"]), [2, 3]);
        let error = Cli::try_parse_from(["x", "--from", "-1"]).err().unwrap().to_string();
        assert!(error.contains("must be a number of seconds from 0 on"), "{error}");
    }
}
