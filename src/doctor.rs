//! Finds what a host can do for scxprof: tries each source and each of its requirements as a run would.
//!
//! [`examine`] asks the kernel and reads the host under its [`Roots`], and returns a [`Report`] of [`Check`]s. A check that
//! fails has the message of a run that fails.

use std::fmt;
use std::fs;

use serde::Serialize;

use crate::host::Roots;
use crate::sample::Source;
use crate::sampler::SamplerError;

mod bpf;
mod bpf_trials;
mod fields;
mod hardware;
mod host;
mod kernel;
pub(crate) mod load;
mod rights;
pub(crate) mod selftest;
mod table;

// For tests, which replace the kernel.
#[doc(hidden)]
pub use bpf_trials::{BpfTrial, BpfTrialError};
#[doc(hidden)]
pub use kernel::{Attempt, Hierarchy, Kernel, Watched};
pub use table::{table, Style};

/// The schema of the JSON (docs/doctor.md); raised if a field changes its meaning or is removed.
const VERSION: u32 = 2;

/// How well something works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum State {
    /// It works.
    #[serde(rename = "works")]
    Works,
    /// It works with less than it could give.
    #[serde(rename = "partly")]
    Partly,
    /// It does not work here.
    #[serde(rename = "fails")]
    Fails,
    /// It could not be tried.
    #[serde(rename = "not tested")]
    NotTested,
}

impl State {
    /// The word in the table and in the JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Partly => "partly",
            Self::Fails => "fails",
            Self::NotTested => "not tested",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The subject of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Section {
    /// A source of data addresses, in the order in which `auto` tries them.
    Sources,
    /// What the processor's PMU offers to the hardware sources.
    Hardware,
    /// The fields of samples.
    Fields,
    /// Our rights and limits.
    Rights,
    /// The kind of host.
    Host,
    /// What BPF can do here.
    Bpf,
}

impl Section {
    /// The heading in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sources => "Sources of data addresses",
            Self::Hardware => "Memory sampling by the processor",
            Self::Fields => "What samples carry",
            Self::Rights => "Rights and limits",
            Self::Host => "Host",
            Self::Bpf => "BPF",
        }
    }
}

/// One thing that was tried or read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// Its subject.
    pub section: Section,
    /// The name of a row; it stays the same from version to version.
    pub name: &'static str,
    /// Whether it works.
    pub state: State,
    /// If it works, what was found, else the reason why it does not.
    pub why: String,
    /// What would help; `None` if nothing is wrong or no remedy is known.
    pub help: Option<String>,
}

impl Check {
    /// It works; `why` says what was found.
    #[must_use]
    pub(crate) fn works(section: Section, name: &'static str, why: impl Into<String>) -> Self {
        Self { section, name, state: State::Works, why: why.into(), help: None }
    }

    /// It works in part; `why` says what is missing.
    #[must_use]
    pub(crate) fn partly(section: Section, name: &'static str, why: impl Into<String>) -> Self {
        Self { state: State::Partly, ..Self::works(section, name, why) }
    }

    /// It does not work; `why` gives the reason.
    #[must_use]
    pub(crate) fn fails(section: Section, name: &'static str, why: impl Into<String>) -> Self {
        Self { state: State::Fails, ..Self::works(section, name, why) }
    }

    /// It was not tried; `why` gives the reason.
    #[must_use]
    pub(crate) fn not_tested(section: Section, name: &'static str, why: impl Into<String>) -> Self {
        Self { state: State::NotTested, ..Self::works(section, name, why) }
    }

    /// The check with what would help.
    #[must_use]
    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// A failed attempt to sample, in the words of a failed run.
    #[must_use]
    pub(crate) fn failed(section: Section, name: &'static str, error: &SamplerError) -> Self {
        Self { help: error.help().map(str::to_owned), ..Self::fails(section, name, error.why()) }
    }
}

/// The reason and what would help, as one sentence.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.help {
            Some(help) => write!(f, "{}; {help}", self.why),
            None => f.write_str(&self.why),
        }
    }
}

/// The facts about a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The schema's version.
    pub version: u32,
    /// The version of scxprof.
    pub scxprof: &'static str,
    /// The kernel's release; empty if procfs does not show it.
    pub kernel: String,
    /// The architecture that scxprof was built for.
    pub arch: &'static str,
    /// The processor's model name; empty if procfs does not show it.
    pub cpu: String,
    /// The number of online CPUs; 0 if sysfs does not show it.
    pub cpus: usize,
    /// The checks, section by section.
    pub checks: Vec<Check>,
}

impl Report {
    /// True if at least one source works, if only for our own processes.
    #[must_use]
    pub fn any_source(&self) -> bool {
        self.usable().next().is_some()
    }

    /// The sources that work, if only for our own processes, in the order in which `auto` tries them.
    pub fn usable(&self) -> impl Iterator<Item = (Source, State)> + '_ {
        self.checks
            .iter()
            .filter(|check| check.section == Section::Sources && matches!(check.state, State::Works | State::Partly))
            .filter_map(|check| Some((check.name.parse().ok()?, check.state)))
    }

    /// The check that explains why no run can start here, with any source.
    #[must_use]
    pub fn obstacle(&self) -> Option<&Check> {
        ["pid-namespace", "cgroups"]
            .into_iter()
            .filter_map(|name| self.check(name))
            .find(|check| check.state == State::Fails)
    }

    /// The check with this name.
    #[must_use]
    pub fn check(&self, name: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.name == name)
    }
}

/// The result of trying a source.
#[derive(Debug)]
struct Trial {
    source: Source,
    /// Watching every task.
    host: Result<Attempt, SamplerError>,
    /// Watching a task of ours, if watching every task is forbidden.
    own: Option<Result<Attempt, SamplerError>>,
}

impl Trial {
    fn new(kernel: &dyn Kernel, source: Source) -> Self {
        let host = kernel.attempt(source, Watched::Host);
        let forbidden = matches!(host, Err(SamplerError::NotPermitted { .. } | SamplerError::NoTimer { .. }));
        Self { source, host, own: forbidden.then(|| kernel.attempt(source, Watched::Own)) }
    }

    /// The attempt that worked.
    fn attempt(&self) -> Option<&Attempt> {
        self.host.as_ref().ok().or_else(|| self.own.as_ref()?.as_ref().ok())
    }

    fn check(&self) -> Check {
        let name = self.source.name();
        match (&self.host, &self.own) {
            (Ok(attempt), _) => {
                let why = std::iter::once(&attempt.event).chain(&attempt.notes).map(String::as_str).collect::<Vec<_>>();
                Check::works(Section::Sources, name, why.join("; "))
            }
            (Err(error), Some(Ok(_))) => {
                let failed = Check::failed(Section::Sources, name, error);
                Check { state: State::Partly, why: format!("your own processes only: {}", failed.why), ..failed }
            }
            (Err(error), _) => Check::failed(Section::Sources, name, error),
        }
    }
}

/// Tries everything. Raises the soft `RLIMIT_NOFILE` of this process if the events need it, as `scxprof run` does.
#[must_use]
pub fn examine(roots: &Roots) -> Report {
    examine_with(roots, &kernel::Live::new(roots))
}

/// As [`examine`], with another kernel.
#[doc(hidden)]
#[must_use]
pub fn examine_with(roots: &Roots, kernel: &dyn Kernel) -> Report {
    let trials: Vec<_> = Source::ALL.into_iter().map(|source| Trial::new(kernel, source)).collect();
    let mut checks: Vec<_> = trials.iter().map(Trial::check).collect();
    checks.extend(hardware::checks(roots, &trials));
    checks.extend(fields::checks(&trials));
    checks.extend(rights::checks(roots, kernel, &trials));
    checks.extend(host::checks(roots, kernel));
    checks.extend(bpf::checks(roots, kernel));
    let sysctl = |name: &str| fs::read_to_string(roots.proc.join("sys/kernel").join(name)).unwrap_or_default();
    Report {
        version: VERSION,
        scxprof: env!("CARGO_PKG_VERSION"),
        kernel: sysctl("osrelease").trim().to_owned(),
        arch: std::env::consts::ARCH,
        cpu: host::cpu_model(roots),
        cpus: crate::host::topology::online_cpus(roots).map_or(0, |cpus| cpus.len()),
        checks,
    }
}
