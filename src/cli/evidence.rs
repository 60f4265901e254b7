//! `--evidence FILE` of `run`, `extract` and `watch`: what a host adds to a fleet.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{anyhow, Context};
use clap::{Args, ValueEnum};
use sha2::{Digest, Sha256};

use super::args::RESULT;
use super::failure::Failure;
use super::output::{Output, Readers};
use crate::evidence::{file, Evidence, Folds, Key, RowKind, Scope};
use crate::profile::meta::Host;
use crate::sample::printable;
use crate::session::{Analysis, Sampled};

/// Bytes of a label.
const MAX_LABEL: usize = 256;

/// The options of a file of evidence.
#[derive(Debug, Clone, Args)]
pub(super) struct EvidenceArgs {
    /// Write the sharing between classes of threads to FILE (Parquet), for `scxprof merge` (schema: docs/evidence.md)
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    pub(super) evidence: Option<PathBuf>,
    /// With --evidence: a value for `merge --split-by label`, for example the host's service
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, help_heading = RESULT)]
    label: String,
    /// With --evidence: write the host's name, a hash of it, or a random number for each run
    #[arg(long, value_name = "HOW", default_value = "name", help_heading = RESULT)]
    host_name: HostName,
    /// With --evidence: replace what matches in cgroups' paths by `*` [default: UUIDs, ids in hexadecimal, numbers] (repeatable)
    #[arg(long = "fold", value_name = "REGEX", help_heading = RESULT)]
    folds: Vec<String>,
}

/// What stands for the name of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HostName {
    Name,
    Hash,
    #[value(name = "none")]
    Anonymous,
}

/// The destination of evidence, and the facts about the host in its rows.
#[derive(Debug)]
pub(super) struct EvidenceTo {
    pub(super) output: Output,
    facts: Facts,
}

/// What rows say of their host.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    scope: Scope,
    host: String,
    /// The host is a random number.
    is_anonymous: bool,
    folds: Folds,
}

/// The rules of `--fold`.
pub(super) fn folds(rules: &[String]) -> Result<Folds, Failure> {
    Folds::new(rules).map_err(|error| Failure::Usage(anyhow!("--fold: {error}")))
}

impl EvidenceArgs {
    /// Opens the destination, if there is one.
    pub(super) fn open(&self, host: impl FnOnce() -> Host) -> Result<Option<EvidenceTo>, Failure> {
        let Some(path) = &self.evidence else { return Ok(None) };
        if path == Path::new("-") {
            return Err(Failure::Usage(anyhow!("--evidence -: name a file; a table is not printed")));
        }
        let facts = self.facts(&host())?;
        let output = Output::open(Some(path), Readers::Owner).map_err(Failure::Usage)?;
        Ok(Some(EvidenceTo { output, facts }))
    }

    /// What rows say of this host.
    pub(super) fn facts(&self, host: &Host) -> Result<Facts, Failure> {
        if self.label.len() > MAX_LABEL {
            return Err(Failure::Usage(anyhow!("--label: it has more than {MAX_LABEL} bytes")));
        }
        let printed = |text: &str| printable(text.as_bytes());
        let scope = Scope {
            label: printed(&self.label),
            kernel: printed(&host.kernel),
            cpu: printed(&host.cpu),
            cpus: if host.cpus > 0 { host.cpus.to_string() } else { String::new() },
            ..Scope::default()
        };
        let name = match self.host_name {
            HostName::Name => printed(&host.name),
            HostName::Hash => hashed(&host.name),
            HostName::Anonymous => anonymous(),
        };
        let is_anonymous = self.host_name == HostName::Anonymous;
        Ok(Facts { scope, host: name, is_anonymous, folds: folds(&self.folds)? })
    }
}

/// A random number.
fn anonymous() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// The first 16 digits of the SHA-256 of a name.
fn hashed(name: &str) -> String {
    let digest = Sha256::digest(name.as_bytes());
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

impl Facts {
    /// The evidence of a slice of a watch, which judges configurations by the cgroups as they are called.
    pub(super) fn unfolded(&self, sampled: &Sampled) -> Result<Evidence, Failure> {
        let evidence = sampled.evidence(&self.scope, &self.host, &Folds::none());
        evidence.context("no evidence").map_err(Failure::NoResult)
    }

    /// What leaves the host of such evidence.
    pub(super) fn folded(&self, evidence: &Evidence) -> Result<Evidence, Failure> {
        let host = if self.is_anonymous { anonymous() } else { self.host.clone() };
        let key = |key: &Key| {
            let mut key = key.clone();
            if key.kind != RowKind::Spec {
                let (a, b) = (self.folds.fold(&key.a.cgroup), self.folds.fold(&key.b.cgroup));
                Arc::make_mut(&mut key.a).cgroup = a;
                Arc::make_mut(&mut key.b).cgroup = b;
            }
            if key.kind == RowKind::Host {
                key.host.clone_from(&host);
            }
            Some(key.ordered())
        };
        evidence.map(key).context("no evidence").map_err(Failure::NoResult)
    }

    /// The evidence of a run.
    pub(super) fn evidence(&self, found: &Analysis) -> Result<Evidence, Failure> {
        let evidence = found.evidence(&self.scope, &self.host, &self.folds);
        evidence.context("no evidence").map_err(Failure::NoResult)
    }
}

impl EvidenceTo {
    /// Writes the evidence of a run.
    pub(super) fn write(self, found: &Analysis) -> Result<(), Failure> {
        let evidence = self.facts.evidence(found)?;
        write(&evidence, self.output)
    }
}

/// Writes evidence.
pub(super) fn write(evidence: &Evidence, output: Output) -> Result<(), Failure> {
    let mut bytes = Vec::new();
    file::write(evidence, &mut bytes).context("cannot write the evidence").map_err(Failure::NoResult)?;
    output.write(&bytes, false).map_err(Failure::NoResult)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_tells_a_host_apart_and_is_not_its_name() {
        // sha256sum of "abc".
        assert_eq!(hashed("abc"), "ba7816bf8f01cfea");
        assert_ne!(hashed("web1"), hashed("web2"));
    }
}
