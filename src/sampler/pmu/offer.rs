//! What the PMUs offer for sampling memory accesses, or one sentence on why they do not (pure).

use std::path::PathBuf;

use thiserror::Error;

use super::{Config, Field, Pmu, PmuError, Pmus};
use crate::host;

/// The least latency in cycles that IBS can filter by (`perf_ibs_init()` in arch/x86/events/amd/ibs.c).
pub const MIN_LDLAT_IBS: u32 = 128;
/// The greatest latency in cycles that IBS can filter by.
pub const MAX_LDLAT_IBS: u32 = 2048;

/// Intel's load-latency and precise-store events, of each core PMU that has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pebs {
    /// One PMU; on hybrid processors one for each kind of core.
    pub pmus: Vec<PebsPmu>,
    /// The CPUs of core PMUs without `mem-loads`, by the PMU's name: they are not sampled.
    pub without: Vec<(String, Option<Vec<u32>>)>,
}

/// The PEBS events of one core PMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PebsPmu {
    /// The PMU's name.
    pub name: String,
    /// `attr.type`.
    pub kind: u32,
    /// The CPUs of the PMU; `None` for all.
    pub cpus: Option<Vec<u32>>,
    /// `mem-loads`, with its threshold in sysfs.
    pub loads: Config,
    /// The bits of the latency threshold.
    pub ldlat: Field,
    /// `mem-loads-aux`: if it exists, `mem-loads` opens only in a group that it leads.
    pub aux: Option<Config>,
    /// `mem-stores`.
    pub stores: Option<Config>,
    /// `caps/max_precise`: the greatest `attr.precise_ip`; `None` if the kernel does not show it.
    pub max_precise: Option<u8>,
}

impl PebsPmu {
    /// The event of loads that took at least `ldlat` cycles; `None` if the hardware has no such threshold.
    #[must_use]
    pub fn loads(&self, ldlat: u32) -> Option<Config> {
        let mut config = self.loads;
        self.ldlat.set(&mut config, u64::from(ldlat)).then_some(config)
    }
}

/// Why there are no PEBS events.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NoPebs {
    /// There is no PMU of the cores.
    #[error("no PMU of the CPU cores in {}", dir.display())]
    NoCorePmu {
        /// The directory that would contain it.
        dir: PathBuf,
    },
    /// The kernel lists the event only if it supports PEBS on this processor.
    #[error("no mem-loads event in {}: this kernel has no PEBS here", list(events))]
    NoMemLoads {
        /// The directories that would contain it.
        events: Vec<PathBuf>,
    },
    /// Without precision the event has no addresses.
    #[error("{} is 0: no precise samples, so no addresses", path.display())]
    Imprecise {
        /// The file that shows it.
        path: PathBuf,
    },
    /// A `mem-loads` of another kind, such as that of POWER.
    #[error("{} has no ldlat: its mem-loads is not a PEBS event", format.display())]
    NoLdlat {
        /// The directory that would contain it.
        format: PathBuf,
    },
    /// sysfs cannot be read, or does not contain what the kernel writes there.
    #[error(transparent)]
    Pmu(#[from] PmuError),
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
}

/// AMD's instruction-based sampling of ops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ibs {
    /// `attr.type`.
    pub kind: u32,
    /// `cnt_ctl=1`: it counts dispatched ops, not cycles, so that waiting ops are not sampled more often.
    pub ops: Config,
    /// The bit that makes `attr.exclude_*` legal: the kernel then filters samples itself (Linux 6.14). `None` if the
    /// kernel rejects exclusion.
    pub swfilt: Option<Field>,
    /// The hardware threshold for the latency.
    pub ldlat: Ldlat,
    /// True if ops that hit the L3 cache can be left out (`l3missonly`, Zen 4 and later).
    pub l3missonly: bool,
    /// `caps/zen4_ibs_extensions`.
    pub zen4_extensions: bool,
}

/// IBS's hardware threshold for the latency of loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ldlat {
    /// No `caps/ldlat`.
    None,
    /// There is a threshold, but it also leaves out every load that hits the L3 cache (Zen 5;
    /// arch/x86/events/amd/ibs.c).
    L3MissOnly(Field),
    /// There is a threshold without this side effect: processors later than Zen 5, which also have `caps/strmst` or
    /// `caps/rmtsocket` (Linux 7.1).
    Alone(Field),
}

impl Ibs {
    /// The event with the hardware's threshold at `ldlat` cycles; `None` if the hardware cannot do exactly that.
    #[must_use]
    pub fn with_ldlat(&self, ldlat: u32) -> Option<Config> {
        let Ldlat::Alone(field) = self.ldlat else { return None };
        let mut config = self.ops;
        let in_range = (MIN_LDLAT_IBS..=MAX_LDLAT_IBS).contains(&ldlat);
        (in_range && field.set(&mut config, u64::from(ldlat))).then_some(config)
    }
}

/// Why there is no IBS.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NoIbs {
    /// No such PMU.
    #[error("no PMU ibs_op in {}", dir.display())]
    NoIbsOp {
        /// The directory that would contain it.
        dir: PathBuf,
    },
    /// The IBS cannot count ops (the first processors with IBS).
    #[error("{} does not exist: this processor's IBS cannot count ops", path.display())]
    NoOpCount {
        /// The file of the term.
        path: PathBuf,
    },
    /// sysfs cannot be read, or does not contain what the kernel writes there.
    #[error(transparent)]
    Pmu(#[from] PmuError),
}

/// The statistical profiling (SPE) of one kind of core (drivers/perf/arm_spe_pmu.c).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpePmu {
    /// The PMU's name.
    pub name: String,
    /// `attr.type`.
    pub kind: u32,
    /// The CPUs of the PMU; `None` for all.
    pub cpus: Option<Vec<u32>>,
    /// Loads and stores with timestamps, at slightly random intervals.
    pub accesses: Config,
    /// The bits of the latency threshold, which applies to stores too.
    pub min_latency: Field,
    /// The bit that adds physical addresses, which need CAP_PERFMON.
    pub pa_enable: Field,
    /// `caps/min_interval`: the shortest period, in operations.
    pub min_interval: u64,
}

impl SpePmu {
    /// The event of accesses that took at least `ldlat` cycles; `None` if the hardware has no such threshold.
    #[must_use]
    pub fn at_least(&self, ldlat: u32) -> Option<Config> {
        let mut config = self.accesses;
        self.min_latency.set(&mut config, u64::from(ldlat)).then_some(config)
    }
}

/// The remedy for page-table isolation, with which the driver does not start (`arm_spe_pmu_device_probe()` in
/// drivers/perf/arm_spe_pmu.c).
const KPTI_HELP: &str =
    "boot the kernel with kpti=off, which ends its protection against Meltdown on processors that need it";
/// The requirements of SPE: the driver gets its interrupt from the firmware, and hypervisors hide SPE from guests. For
/// KASLR, page-table isolation may be on although sysfs says that the processor is not affected by Meltdown
/// (`kaslr_requires_kpti()` of arm64).
const SPE_HELP: &str =
    "a bare-metal host whose cores have SPE, a firmware that describes its interrupt (in ACPI's MADT, or a node \
     arm,statistical-profiling-extension-v1), its driver (sudo modprobe arm_spe_pmu), and a kernel without page-table isolation \
     (boot it with kpti=off if `sudo dmesg | grep arm_spe` says so)";

/// Why there is no SPE.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NoSpe {
    /// The hardware could not write its buffer while user code runs, because the kernel's page tables are unmapped
    /// then.
    #[error("no PMU arm_spe_0 in {}, for the kernel does not use SPE with page-table isolation (kpti); {KPTI_HELP}", dir.display())]
    Isolated {
        /// The directory that would contain it.
        dir: PathBuf,
    },
    /// No such PMU.
    #[error("no PMU arm_spe_0 in {}; {SPE_HELP}", dir.display())]
    NoArmSpe {
        /// The directory that would contain it.
        dir: PathBuf,
    },
    /// sysfs cannot be read, or does not contain what the kernel writes there.
    #[error(transparent)]
    Pmu(#[from] PmuError),
}

impl NoSpe {
    /// What would help, if known: the end of the error's message.
    #[must_use]
    pub fn help(&self) -> Option<&'static str> {
        match self {
            Self::Isolated { .. } => Some(KPTI_HELP),
            Self::NoArmSpe { .. } => Some(SPE_HELP),
            Self::Pmu(_) => None,
        }
    }
}

impl Pmus {
    /// The PEBS events: pure, from what was read of sysfs.
    ///
    /// # Errors
    /// [`NoPebs`], one sentence.
    pub fn pebs(&self) -> Result<Pebs, NoPebs> {
        if self.core.is_empty() {
            return Err(NoPebs::NoCorePmu { dir: self.dir.clone() });
        }
        let mut pebs = Pebs { pmus: Vec::new(), without: Vec::new() };
        let mut reason = None;
        for pmu in &self.core {
            match pebs_of(pmu) {
                Ok(found) => pebs.pmus.push(found),
                Err(why) => {
                    pebs.without.push((pmu.name.clone(), pmu.cpus.clone()));
                    reason.get_or_insert(why);
                }
            }
        }
        match reason {
            Some(NoPebs::NoMemLoads { .. }) if pebs.pmus.is_empty() => {
                Err(NoPebs::NoMemLoads { events: self.core.iter().map(|pmu| pmu.dir.join("events")).collect() })
            }
            Some(reason) if pebs.pmus.is_empty() => Err(reason),
            _ => Ok(pebs),
        }
    }

    /// The IBS event: pure, from what was read of sysfs.
    ///
    /// # Errors
    /// [`NoIbs`], one sentence.
    pub fn ibs(&self) -> Result<Ibs, NoIbs> {
        let Some(pmu) = &self.ibs_op else { return Err(NoIbs::NoIbsOp { dir: self.dir.clone() }) };
        let mut ops = Config::default();
        match pmu.set(&mut ops, "cnt_ctl", 1) {
            Err(PmuError::NoTerm { path, .. }) => return Err(NoIbs::NoOpCount { path }),
            other => other?,
        }
        let optional = |term: &str| match pmu.field(term) {
            Err(PmuError::NoTerm { .. }) => Ok(None),
            other => other.map(Some),
        };
        let ldlat = match optional("ldlat")? {
            Some(field) if pmu.has_cap("ldlat") => {
                if pmu.has_cap("strmst") || pmu.has_cap("rmtsocket") {
                    Ldlat::Alone(field)
                } else {
                    Ldlat::L3MissOnly(field)
                }
            }
            _ => Ldlat::None,
        };
        Ok(Ibs {
            kind: pmu.kind,
            ops,
            swfilt: optional("swfilt")?,
            ldlat,
            l3missonly: pmu.format.contains_key("l3missonly"),
            zen4_extensions: pmu.has_cap("zen4_ibs_extensions"),
        })
    }
}

impl Pmus {
    /// The SPE of each kind of core: pure, from what was read of sysfs.
    ///
    /// # Errors
    /// [`NoSpe`].
    pub fn spe(&self) -> Result<Vec<SpePmu>, NoSpe> {
        if self.arm_spe.is_empty() {
            let dir = self.dir.clone();
            return Err(if self.isolates_tables { NoSpe::Isolated { dir } } else { NoSpe::NoArmSpe { dir } });
        }
        self.arm_spe.iter().map(spe_of).collect()
    }
}

fn spe_of(pmu: &Pmu) -> Result<SpePmu, NoSpe> {
    let mut accesses = Config::default();
    for term in ["ts_enable", "load_filter", "store_filter", "jitter"] {
        pmu.set(&mut accesses, term, 1)?;
    }
    let path = pmu.dir.join("caps/min_interval");
    let text = pmu.caps.get("min_interval").cloned().unwrap_or_default();
    let min_interval = super::digits(&text).filter(|&interval| interval > 0);
    let error = || host::Error::Parse { path, text, reason: "expected a number of operations" };
    Ok(SpePmu {
        name: pmu.name.clone(),
        kind: pmu.kind,
        cpus: pmu.cpumask.clone(),
        accesses,
        min_latency: pmu.field("min_latency")?,
        pa_enable: pmu.field("pa_enable")?,
        min_interval: min_interval.ok_or_else(error).map_err(PmuError::from)?,
    })
}

fn pebs_of(pmu: &Pmu) -> Result<PebsPmu, NoPebs> {
    let Some(loads) = pmu.event("mem-loads")? else {
        return Err(NoPebs::NoMemLoads { events: vec![pmu.dir.join("events")] });
    };
    let ldlat = match pmu.field("ldlat") {
        Err(PmuError::NoTerm { .. }) => return Err(NoPebs::NoLdlat { format: pmu.dir.join("format") }),
        other => other?,
    };
    let path = pmu.dir.join("caps/max_precise");
    let max_precise = match pmu.caps.get("max_precise") {
        None => None,
        Some(text) => {
            let reason = "expected a number";
            let error = || host::Error::Parse { path: path.clone(), text: text.clone(), reason };
            Some(super::digits::<u8>(text).ok_or_else(error).map_err(PmuError::from)?)
        }
    };
    if max_precise == Some(0) {
        return Err(NoPebs::Imprecise { path });
    }
    Ok(PebsPmu {
        name: pmu.name.clone(),
        kind: pmu.kind,
        cpus: pmu.cpus.clone(),
        loads,
        ldlat,
        aux: pmu.event("mem-loads-aux")?,
        stores: pmu.event("mem-stores")?,
        max_precise,
    })
}
