//! meta.json: what a profile's records do not contain: how to read them, what was lost, and the host.

use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use perf_event_open_sys::bindings as sys;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::{ProfileError, FORMAT};
use crate::hint::HintCounts;
use crate::host::open;
use crate::host::{proc, topology, Roots};
use crate::sample::Source;
use crate::sampler::loss::Loss;
use crate::sampler::{AddressFrom, Identity};
use scxprof_base::cpus::parse_cpu_list;
use scxprof_base::escape;

/// Its name in the directory.
pub(crate) const NAME: &str = "meta.json";
/// The most bytes of it. Ours have a few thousand, and at most [`MAX_CGROUPS`] for the late cgroups.
const MAX_BYTES: u64 = 4 << 20;
/// Bytes of the cgroups without a record, as they are written.
pub(super) const MAX_CGROUPS: usize = 2 << 20;
/// The most notes, and sentences on damage, that are read.
const MAX_NOTES: usize = 100;

/// The metadata of a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Meta {
    /// The version of the directory's layout that it was written in.
    pub format: u32,
    /// Version of scxprof.
    pub scxprof: String,
    /// The source of the addresses, the name of a [`Source`](crate::sample::Source).
    pub source: String,
    /// The clock of all times.
    pub clock: String,
    /// CLOCK_MONOTONIC, ns, when the recording began.
    pub begin: u64,
    /// Seconds since 1970 at the same time.
    pub begin_unix: f64,
    /// Seconds from the first event enabled to the last disabled.
    pub duration: f64,
    /// CPU time in seconds of all threads of the host but the recorder's in this time; `None` if not all were sampled, or it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
    /// The host.
    pub host: Host,
    /// The events.
    pub events: Vec<MetaEvent>,
    /// The processes whose samples are left out.
    pub(crate) identity: Identity,
    /// How to read a sample.
    pub(crate) address_from: AddressFrom,
    /// With the source `wakeups`: the processes that were watched with those that they fork; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) watched: Option<Vec<u32>>,
    /// Samples of named threads, the accesses that they gave, and counted events.
    pub samples: u64,
    /// See `samples`.
    pub accesses: u64,
    /// See `samples`.
    pub event_count: u64,
    /// What was lost and left out.
    pub loss: Loss,
    /// Counts of the recovery, for the timer source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Value>,
    /// Counts of task hints, if they were followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hints: Option<HintCounts>,
    /// Cgroups without a record, by id: paths as hex.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cgroups: Vec<(u64, String)>,
    /// Features that the kernel rejected, and other facts.
    #[serde(default)]
    pub notes: Vec<String>,
    /// It was written when the recording began, and lacks what is known only at the end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
    /// The parts of the profile that could not be read when its lines were written, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damage: Vec<String>,
}

/// The fields that are read first. As a [`Value`] the whole file would take 20 times its bytes.
#[derive(Deserialize)]
struct Head {
    scxprof: Option<IgnoredAny>,
    format: Option<Value>,
}

/// The recorded host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Host {
    /// Its name.
    pub name: String,
    /// The id of the boot (`/proc/sys/kernel/random/boot_id`), empty if unknown.
    #[serde(default)]
    pub boot_id: String,
    /// `uname -r`.
    pub kernel: String,
    /// Architecture, as Rust names it.
    pub arch: String,
    /// Model of its CPUs.
    pub cpu: String,
    /// CPUs that were online.
    pub cpus: usize,
    /// CPUs of each NUMA node, in the kernel's list format.
    pub nodes: Vec<String>,
    /// Bytes of a page.
    pub page_size: usize,
}

/// An event of the recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MetaEvent {
    /// Its name in perf.
    pub name: String,
    /// Its samples are call stacks, beside those of memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stacks: bool,
    /// `attr.type`.
    #[serde(rename = "type")]
    pub kind: u32,
    /// `attr.config`.
    pub config: u64,
    /// `attr.sample_type`.
    pub sample_type: u64,
    /// `attr.sample_period` or `attr.sample_freq`.
    pub period_or_freq: u64,
    /// The number of open events.
    pub count: usize,
}

impl Meta {
    /// Of a recording by another program, which has none.
    pub(super) fn of_others(source: Source, identity: Identity, address_from: AddressFrom) -> Self {
        Self {
            format: FORMAT,
            scxprof: env!("CARGO_PKG_VERSION").to_owned(),
            source: source.name().to_owned(),
            clock: String::new(),
            begin: 0,
            begin_unix: 0.0,
            duration: 0.0,
            cpu_seconds: None,
            host: Host::default(),
            events: Vec::new(),
            identity,
            address_from,
            watched: None,
            samples: 0,
            accesses: 0,
            event_count: 0,
            loss: Loss::default(),
            recovery: None,
            hints: None,
            cgroups: Vec::new(),
            notes: Vec::new(),
            unfinished: false,
            damage: Vec::new(),
        }
    }

    /// Writes it into `dir`; it is on the disk when this returns. On failure, an earlier file stays.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), ProfileError> {
        let write = || {
            // Readable only by its owner, as tempfile creates it.
            let mut file = tempfile::NamedTempFile::new_in(dir)?;
            file.write_all((escape::json(serde_json::to_string_pretty(self)?) + "\n").as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(dir.join(NAME)).map(drop).map_err(|error| error.error)
        };
        write().map_err(|source| ProfileError::io("write", &dir.join(NAME), source))
    }

    /// Reads the meta.json of `dir`; `None` if there is none, or it belongs to another program.
    ///
    /// # Errors
    /// The file cannot be read ([`ProfileError::Io`]) or parsed ([`ProfileError::Meta`]), or has a newer format
    /// ([`ProfileError::Newer`]).
    pub(crate) fn read(dir: &Path) -> Result<Option<Self>, ProfileError> {
        let path = dir.join(NAME);
        let failed = |source| ProfileError::io("read", &path, source);
        let file = match open::regular_itself(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(failed(source)),
        };
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(ProfileError::Meta { path, reason: "it has more than 4 MiB".to_owned() });
        }
        let nonsense = |error: serde_json::Error| ProfileError::Meta { path: path.clone(), reason: error.to_string() };
        if !bytes.trim_ascii_start().starts_with(b"{") {
            return serde_json::from_slice::<IgnoredAny>(&bytes).map(|_| None).map_err(nonsense);
        }
        let head: Head = serde_json::from_slice(&bytes).map_err(nonsense)?;
        if head.scxprof.is_none() {
            return Ok(None);
        }
        if let Some(format) = head.format.as_ref().and_then(Value::as_u64).filter(|&format| format > FORMAT.into()) {
            return Err(ProfileError::Newer { path, format });
        }
        let mut meta: Self = serde_json::from_slice(&bytes).map_err(nonsense)?;
        meta.notes.truncate(MAX_NOTES);
        meta.damage.truncate(MAX_NOTES);
        Ok(Some(meta))
    }
}

impl Host {
    /// This host; fields that cannot be read are empty.
    #[must_use]
    pub(crate) fn here(roots: &Roots) -> Self {
        let text =
            |path: PathBuf| std::fs::read_to_string(path).map_or_else(|_| String::new(), |text| text.trim().to_owned());
        let sysctl = |name: &str| text(roots.proc.join("sys/kernel").join(name));
        let cpuinfo = std::fs::read(roots.proc.join("cpuinfo")).unwrap_or_default();
        let nodes = roots.sys.join("devices/system/node");
        let online = parse_cpu_list(text(nodes.join("online")).as_bytes()).unwrap_or_default();
        Self {
            name: sysctl("hostname"),
            boot_id: sysctl("random/boot_id"),
            kernel: sysctl("osrelease"),
            arch: std::env::consts::ARCH.to_owned(),
            cpu: proc::cpu_model(&cpuinfo).unwrap_or_default(),
            cpus: topology::online_cpus(roots).map_or(0, |cpus| cpus.len()),
            nodes: online.iter().map(|node| text(nodes.join(format!("node{node}/cpulist")))).collect(),
            page_size: rustix::param::page_size(),
        }
    }
}

/// The one field that is a period or a frequency.
pub(super) fn period_or_freq(attr: &sys::perf_event_attr) -> u64 {
    // SAFETY: both members of the union are u64.
    unsafe { attr.__bindgen_anon_1.sample_period }
}

/// Bytes as hex digits.
#[must_use]
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of hex digits; `None` for anything else.
#[must_use]
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_goes_both_ways() {
        let bytes = [0, 255, b'a', 0x80];
        assert_eq!(from_hex(&to_hex(&bytes)).as_deref(), Some(&bytes[..]));
        assert_eq!((from_hex("0"), from_hex("+1"), from_hex("zz")), (None, None, None));
    }
}
