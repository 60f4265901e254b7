//! A check, and the report with all checks.

use std::fmt;

use serde::Serialize;

use crate::sample::Source;
use crate::sampler::SamplerError;

/// How well something works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum CheckState {
    /// It works.
    #[serde(rename = "works")]
    Works,
    /// It works, but not fully.
    #[serde(rename = "partly")]
    Partly,
    /// It does not work here.
    #[serde(rename = "fails")]
    Fails,
    /// It could not be tried.
    #[serde(rename = "not tested")]
    NotTested,
}

impl CheckState {
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

impl fmt::Display for CheckState {
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

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// Its subject.
    pub section: Section,
    /// The name of a row; it stays the same from version to version.
    pub name: &'static str,
    /// Whether it works.
    pub state: CheckState,
    /// What was found if it works, else the reason why it does not.
    pub why: String,
    /// What would help; `None` if nothing is wrong or no remedy is known.
    pub help: Option<String>,
}

impl Check {
    /// It works; `why` says what was found.
    #[must_use]
    pub(crate) fn works(section: Section, name: &'static str, why: impl Into<String>) -> Self {
        Self { section, name, state: CheckState::Works, why: why.into(), help: None }
    }

    /// It works in part; `why` says what is missing.
    #[must_use]
    pub(crate) fn partly(section: Section, name: &'static str, why: impl Into<String>) -> Self {
        Self { state: CheckState::Partly, ..Self::works(section, name, why) }
    }

    /// It does not work; `why` gives the reason.
    #[must_use]
    pub(crate) fn fails(section: Section, name: &'static str, why: impl Into<String>) -> Self {
        Self { state: CheckState::Fails, ..Self::works(section, name, why) }
    }

    /// It was not tried; `why` gives the reason.
    #[must_use]
    pub(crate) fn not_tested(section: Section, name: &'static str, why: impl Into<String>) -> Self {
        Self { state: CheckState::NotTested, ..Self::works(section, name, why) }
    }

    /// The check with what would help.
    #[must_use]
    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// A failed attempt to sample, with the message that a run would print.
    #[must_use]
    pub(crate) fn failed(section: Section, name: &'static str, error: &SamplerError) -> Self {
        Self { help: error.help().map(str::to_owned), ..Self::fails(section, name, error.why()) }
    }
}

/// The reason and the remedy, as one sentence.
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
    /// True if at least one source works, at least for our own processes.
    #[must_use]
    pub fn any_source(&self) -> bool {
        self.usable().next().is_some()
    }

    /// The sources that work, at least for our own processes, in the order in which `auto` tries them.
    pub fn usable(&self) -> impl Iterator<Item = (Source, CheckState)> + '_ {
        self.checks
            .iter()
            .filter(|check| {
                check.section == Section::Sources && matches!(check.state, CheckState::Works | CheckState::Partly)
            })
            .filter_map(|check| Some((check.name.parse().ok()?, check.state)))
    }

    /// The check that explains why no source can work here.
    #[must_use]
    pub fn obstacle(&self) -> Option<&Check> {
        ["pid-namespace", "cgroups"]
            .into_iter()
            .filter_map(|name| self.check(name))
            .find(|check| check.state == CheckState::Fails)
    }

    /// The check with this name.
    #[must_use]
    pub fn check(&self, name: &str) -> Option<&Check> {
        self.checks.iter().find(|check| check.name == name)
    }
}
