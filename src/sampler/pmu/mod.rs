//! The PMUs that sysfs describes, and what they offer for sampling memory accesses. There is no table of processors.
//!
//! A PMU is a directory of `bus/event_source/devices`: `type` is `attr.type`, `format/*` gives the bits of `attr.config` to
//! `attr.config4` that a term sets, `events/*` are named lists of terms, `caps/*` are capabilities, and `cpus` (hybrid core
//! PMUs) or `cpumask` list where its events can be opened (Documentation/ABI/testing/sysfs-bus-event_source-devices-*).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::host;
use scxprof_base::cpus::parse_cpu_list;

mod offer;

pub use offer::{Ibs, Ldlat, NoIbs, NoPebs, NoSpe, Pebs, PebsPmu, SpePmu, MAX_LDLAT_IBS, MIN_LDLAT_IBS};

/// The kernel's list of PMUs, below the root of sysfs.
pub const DEVICES: &str = "bus/event_source/devices";

/// Why a PMU's directory cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PmuError {
    /// A file that cannot be read, or does not contain what the kernel writes there.
    #[error(transparent)]
    File(#[from] host::Error),
    /// A term that the PMU does not have.
    #[error("{} does not exist, so the PMU has no term \"{term}\"", path.display())]
    NoTerm {
        /// The file that would describe it.
        path: PathBuf,
        /// The term.
        term: String,
    },
    /// A value with more bits than its term.
    #[error("{term}={value:#x} does not fit: {} gives it {} bits", path.display(), field.bits.count_ones())]
    TooLarge {
        /// The file that describes the term.
        path: PathBuf,
        /// The term.
        term: String,
        /// Its value.
        value: u64,
        /// The bits of the term.
        field: Field,
    },
}

/// `attr.config`, `config1`, `config2`, `config3` and `config4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Config(pub [u64; 5]);

/// The bits that a term sets, such as `config1:0-15` or `config:0-7,32-35`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The index of the word in a [`Config`].
    pub word: usize,
    /// The bits; the lowest bit of a value goes to the lowest of them.
    pub bits: u64,
}

impl Field {
    /// Parses a file of `format`; `None` if it is malformed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (word, ranges) = text.trim().split_once(':')?;
        let word = word_index(word)?;
        let mut bits = 0;
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u32, u32) = (digits(first)?, digits(last)?);
            if first > last || last > 63 {
                return None;
            }
            bits |= (u64::MAX >> (63 - last)) & (u64::MAX << first);
        }
        Some(Self { word, bits })
    }

    /// Sets the field's bits to `value`; returns false and changes nothing if it does not fit.
    #[must_use]
    pub fn set(self, config: &mut Config, value: u64) -> bool {
        let Some(word) = config.0.get_mut(self.word) else { return false };
        let count = self.bits.count_ones();
        if count < 64 && value >> count != 0 {
            return false;
        }
        let positions = (0..64).filter(|bit| self.bits >> bit & 1 != 0);
        let spread = positions.enumerate().fold(0, |spread, (from, to)| spread | (value >> from & 1) << to);
        *word = *word & !self.bits | spread;
        true
    }

    /// The largest value that fits.
    #[must_use]
    pub fn max(self) -> u64 {
        let spare = 64 - self.bits.count_ones();
        u64::MAX.checked_shr(spare).unwrap_or(0)
    }
}

fn word_index(name: &str) -> Option<usize> {
    ["config", "config1", "config2", "config3", "config4"].iter().position(|&word| word == name)
}

fn digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// A PMU as its directory describes it. Texts are parsed only when they are needed, so unused ones cannot cause errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pmu {
    /// Its directory's name, such as `cpu_core`.
    pub name: String,
    /// Its directory.
    pub dir: PathBuf,
    /// `attr.type` of its events.
    pub kind: u32,
    /// `cpus`: the CPUs that a hybrid core PMU belongs to; `None` for all CPUs.
    pub cpus: Option<Vec<u32>>,
    /// `cpumask`: for an uncore event, one CPU for each unit; for SPE, all CPUs that have it. `None` if the file does
    /// not exist.
    pub cpumask: Option<Vec<u32>>,
    /// `format/*`.
    pub format: BTreeMap<String, String>,
    /// `events/*`, without the files for scale and unit.
    pub events: BTreeMap<String, String>,
    /// `caps/*`.
    pub caps: BTreeMap<String, String>,
}

impl Pmu {
    /// Reads the PMU in `dir`.
    ///
    /// # Errors
    /// [`PmuError::File`] for `type`, `cpus` and `cpumask`; files of terms are parsed when they are used.
    pub fn read(dir: &Path) -> Result<Self, PmuError> {
        let path = dir.join("type");
        let kind = read(&path)?;
        let kind = digits(&kind).ok_or(host::Error::Parse { path, text: kind, reason: "expected a number" })?;
        Ok(Self {
            name: dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            dir: dir.to_owned(),
            kind,
            cpus: cpu_list(&dir.join("cpus"))?,
            cpumask: cpu_list(&dir.join("cpumask"))?,
            format: texts(&dir.join("format"))?,
            events: texts(&dir.join("events"))?,
            caps: texts(&dir.join("caps"))?,
        })
    }

    /// True if a capability exists and is not 0.
    #[must_use]
    pub fn has_cap(&self, name: &str) -> bool {
        self.caps.get(name).is_some_and(|value| value != "0")
    }

    /// The bits of a term.
    ///
    /// # Errors
    /// [`PmuError::NoTerm`], or [`PmuError::File`] for a malformed one.
    pub fn field(&self, term: &str) -> Result<Field, PmuError> {
        let path = self.dir.join("format").join(term);
        let Some(text) = self.format.get(term) else { return Err(PmuError::NoTerm { path, term: term.to_owned() }) };
        let reason = "expected bits such as config1:0-15";
        Ok(Field::parse(text).ok_or_else(|| host::Error::Parse { path, text: text.clone(), reason })?)
    }

    /// Sets a term and replaces its previous value. (perf ORs the two: its ldlat=30 over the 3 of sysfs gives 31.)
    ///
    /// # Errors
    /// As [`Pmu::field`], and [`PmuError::TooLarge`].
    pub fn set(&self, config: &mut Config, term: &str, value: u64) -> Result<(), PmuError> {
        let field = match (self.format.contains_key(term), word_index(term)) {
            (false, Some(word)) => Field { word, bits: u64::MAX },
            _ => self.field(term)?,
        };
        if field.set(config, value) {
            return Ok(());
        }
        let path = self.dir.join("format").join(term);
        Err(PmuError::TooLarge { path, term: term.to_owned(), value, field })
    }

    /// The config of a named event; `None` if the PMU has no such event.
    ///
    /// # Errors
    /// [`PmuError`] for a list of terms that this PMU's `format` does not describe.
    pub fn event(&self, name: &str) -> Result<Option<Config>, PmuError> {
        let Some(terms) = self.events.get(name) else { return Ok(None) };
        let mut config = Config::default();
        for term in terms.split(',') {
            let (term, value) = term.split_once('=').unwrap_or((term, "1"));
            let parsed = match value.strip_prefix("0x") {
                Some(hex) if !hex.starts_with('+') => u64::from_str_radix(hex, 16).ok(),
                _ => digits(value),
            };
            let value = parsed.ok_or_else(|| host::Error::Parse {
                path: self.dir.join("events").join(name),
                text: terms.clone(),
                reason: "expected terms such as event=0xcd,umask=0x1",
            })?;
            self.set(&mut config, term, value)?;
        }
        Ok(Some(config))
    }
}

/// The PMUs of a host that can sample memory accesses; [`Pmus::pebs`], [`Pmus::ibs`] and [`Pmus::spe`] return what
/// they offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pmus {
    /// The directory of all PMUs.
    pub dir: PathBuf,
    /// The names of all PMUs, sorted.
    pub names: Vec<String>,
    /// The PMUs of the CPU cores, by name.
    pub core: Vec<Pmu>,
    /// AMD's instruction-based sampling of ops.
    pub ibs_op: Option<Pmu>,
    /// Arm's statistical profiling (`arm_spe_0` and so on), one for each kind of core.
    pub arm_spe: Vec<Pmu>,
    /// The kernel's page tables are unmapped while user code runs (`kpti` on arm64), as a protection against Meltdown.
    pub isolates_tables: bool,
}

impl Pmus {
    /// Reads the PMUs below `sys`, the root of sysfs.
    ///
    /// # Errors
    /// [`PmuError`]. Only these PMUs are read.
    pub fn read(sys: &Path) -> Result<Self, PmuError> {
        let dir = sys.join(DEVICES);
        let names = names(&dir)?;
        // `cpu_show_meltdown()` in arch/arm64/kernel/cpufeature.c.
        let meltdown = fs::read(sys.join("devices/system/cpu/vulnerabilities/meltdown")).unwrap_or_default();
        let isolates_tables = meltdown.starts_with(b"Mitigation: PTI");
        let mut pmus = Self { dir, names, core: Vec::new(), ibs_op: None, arm_spe: Vec::new(), isolates_tables };
        for name in &pmus.names {
            let path = pmus.dir.join(name);
            if name == "ibs_op" {
                pmus.ibs_op = Some(Pmu::read(&path)?);
            } else if name.starts_with("arm_spe_") {
                pmus.arm_spe.push(Pmu::read(&path)?);
            } else if name == "cpu" || path.join("cpus").exists() {
                pmus.core.push(Pmu::read(&path)?);
            }
        }
        Ok(pmus)
    }
}

/// The names in a directory, sorted; PMUs and their files have names in ASCII.
fn names(dir: &Path) -> Result<Vec<String>, host::Error> {
    let error = |source| host::Error::Read { path: dir.to_owned(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(error)? {
        names.extend(entry.map_err(error)?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

fn read(path: &Path) -> Result<String, host::Error> {
    Ok(String::from_utf8_lossy(&host::read(path)?).trim().to_owned())
}

/// The files of a directory with their text; empty if there is no such directory.
fn texts(dir: &Path) -> Result<BTreeMap<String, String>, host::Error> {
    if !dir.is_dir() {
        return Ok(BTreeMap::new());
    }
    let mut texts = BTreeMap::new();
    for name in names(dir)?.into_iter().filter(|name| !name.contains('.')) {
        let text = read(&dir.join(&name))?;
        texts.insert(name, text);
    }
    Ok(texts)
}

fn cpu_list(path: &Path) -> Result<Option<Vec<u32>>, host::Error> {
    let text = match read(path) {
        Err(host::Error::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let reason = "expected a list of CPUs such as 0-3,7";
    let list = parse_cpu_list(text.as_bytes());
    list.map(Some).ok_or_else(|| host::Error::Parse { path: path.to_owned(), text, reason })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_of_the_kernel() {
        assert_eq!(Field::parse("config:0-7\n"), Some(Field { word: 0, bits: 0xff }));
        assert_eq!(Field::parse("config1:0-15"), Some(Field { word: 1, bits: 0xffff }));
        assert_eq!(Field::parse("config2:0"), Some(Field { word: 2, bits: 1 }));
        assert_eq!(Field::parse("config4:63"), Some(Field { word: 4, bits: 1 << 63 }));
        assert_eq!(Field::parse("config:0-7,32-35"), Some(Field { word: 0, bits: 0xf_0000_00ff }));
        assert_eq!(Field::parse("config3:0-63"), Some(Field { word: 3, bits: u64::MAX }));
        for wrong in
            ["", "config", "config5:0", "config:", "config:8-7", "config:0-64", "config:+1", "config:0,", "x:1"]
        {
            assert_eq!(Field::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_value_is_spread_over_the_ranges_and_replaces_what_was_there() {
        let field = Field::parse("config:0-7,32-35").unwrap();
        let mut config = Config([0xff00_0000_0000_55aa, 7, 0, 0, 0]);
        assert!(field.set(&mut config, 0xa3c));
        assert_eq!(config, Config([0xff00_000a_0000_553c, 7, 0, 0, 0]));
        assert!(!field.set(&mut config, 0x1000));
        assert_eq!(config.0[0], 0xff00_000a_0000_553c, "unchanged");
        assert_eq!(field.max(), 0xfff);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "\\PC{0,40}", value: u64) {
            if let Some(field) = Field::parse(&text) {
                let _ = field.set(&mut Config::default(), value);
            }
        }

        #[test]
        fn what_is_set_is_what_was_given(bits: u64, value: u64, before: u64) {
            let field = Field { word: 1, bits };
            let mut config = Config([0, before, 0, 0, 0]);
            let fits = value <= field.max();
            prop_assert_eq!(field.set(&mut config, value), fits);
            prop_assert_eq!(config.0[1] & !bits, before & !bits, "bits of others");
            if fits {
                let taken = (0..64).filter(|bit| bits >> bit & 1 != 0).enumerate();
                let read = taken.fold(0, |read, (to, from)| read | (config.0[1] >> from & 1) << to);
                prop_assert_eq!(read, value);
            }
        }
    }
}
