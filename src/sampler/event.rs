//! Parses the names of events, in perf's spelling, for the event profiler.
//!
//! Hardware, software and cache events are those of include/uapi/linux/perf_event.h. Events of PMUs come from sysfs,
//! and tracepoints from tracefs: there is no table of processors.

use perf_event_open_sys::bindings as sys;
use thiserror::Error;

use super::attr::{Callchain, EventSpec, Exclude, Feature, Features, Rate};
use super::pmu::{self, Config, Pmu, PmuError};
use crate::host::tracefs::{Tracefs, TracefsError};
use crate::host::Roots;
use crate::sample::batch::UserContext;

/// Default samples a second on each CPU.
pub const DEFAULT_FREQ: u64 = 99;
/// The most frames of a call chain that the kernel records (the default of `kernel.perf_event_max_stack`).
pub const MAX_STACK: u16 = 127;
/// The most bytes that the call chain of a queued sample takes: user and kernel frames, context markers, and allocation
/// overhead.
pub(crate) const CHAIN_SIZE: usize = (2 * MAX_STACK as usize + 4) * 8 + size_of::<UserContext>();
/// Most names in a message.
const LISTED: usize = 8;

/// The name of an event, its alias, and its config.
pub(super) type Row = (&'static str, &'static str, u32);

/// `PERF_TYPE_HARDWARE`.
pub(super) const HARDWARE: [Row; 10] = [
    ("cycles", "cpu-cycles", sys::PERF_COUNT_HW_CPU_CYCLES),
    ("instructions", "", sys::PERF_COUNT_HW_INSTRUCTIONS),
    ("cache-references", "", sys::PERF_COUNT_HW_CACHE_REFERENCES),
    ("cache-misses", "", sys::PERF_COUNT_HW_CACHE_MISSES),
    ("branches", "branch-instructions", sys::PERF_COUNT_HW_BRANCH_INSTRUCTIONS),
    ("branch-misses", "", sys::PERF_COUNT_HW_BRANCH_MISSES),
    ("bus-cycles", "", sys::PERF_COUNT_HW_BUS_CYCLES),
    ("stalled-cycles-frontend", "idle-cycles-frontend", sys::PERF_COUNT_HW_STALLED_CYCLES_FRONTEND),
    ("stalled-cycles-backend", "idle-cycles-backend", sys::PERF_COUNT_HW_STALLED_CYCLES_BACKEND),
    ("ref-cycles", "", sys::PERF_COUNT_HW_REF_CPU_CYCLES),
];

/// `PERF_TYPE_SOFTWARE`.
pub(super) const SOFTWARE: [Row; 10] = [
    ("cpu-clock", "", sys::PERF_COUNT_SW_CPU_CLOCK),
    ("task-clock", "", sys::PERF_COUNT_SW_TASK_CLOCK),
    ("page-faults", "faults", sys::PERF_COUNT_SW_PAGE_FAULTS),
    ("minor-faults", "", sys::PERF_COUNT_SW_PAGE_FAULTS_MIN),
    ("major-faults", "", sys::PERF_COUNT_SW_PAGE_FAULTS_MAJ),
    ("context-switches", "cs", sys::PERF_COUNT_SW_CONTEXT_SWITCHES),
    ("cpu-migrations", "migrations", sys::PERF_COUNT_SW_CPU_MIGRATIONS),
    ("alignment-faults", "", sys::PERF_COUNT_SW_ALIGNMENT_FAULTS),
    ("emulation-faults", "", sys::PERF_COUNT_SW_EMULATION_FAULTS),
    ("cgroup-switches", "", sys::PERF_COUNT_SW_CGROUP_SWITCHES),
];

/// `PERF_TYPE_HW_CACHE`: caches and operations; the index is the kernel's number.
pub(super) const CACHES: [&str; 7] = ["L1-dcache", "L1-icache", "LLC", "dTLB", "iTLB", "branch", "node"];
pub(super) const OPERATIONS: [(&str, &str); 3] =
    [("loads", "load-misses"), ("stores", "store-misses"), ("prefetches", "prefetch-misses")];
/// perf's aliases (tools/perf/util/evsel.c: `evsel__hw_cache`, `_op`, `_result`), in the same order.
const CACHE_NAMES: [&[&str]; 7] = [
    &["l1-dcache", "l1-d", "l1d", "l1-data"],
    &["l1-icache", "l1-i", "l1i", "l1-instruction"],
    &["llc", "l2"],
    &["dtlb", "d-tlb", "data-tlb"],
    &["itlb", "i-tlb", "instruction-tlb"],
    &["branch", "branches", "bpu", "btb", "bpc"],
    &["node"],
];
const OPERATION_NAMES: [&[&str]; 3] = [
    &["load", "loads", "read"],
    &["store", "stores", "write"],
    &["prefetch", "prefetches", "speculative-read", "speculative-load"],
];
const RESULT_NAMES: [&[&str]; 2] = [&["refs", "reference", "ops", "access"], &["misses", "miss"]];
/// Prefixes that say what kind of event follows.
const KINDS: [(&str, Prefix); 6] = [
    ("hw:", Prefix::Hardware),
    ("hardware:", Prefix::Hardware),
    ("sw:", Prefix::Software),
    ("software:", Prefix::Software),
    ("cache:", Prefix::Hardware),
    ("tracepoint:", Prefix::Tracepoint),
];
/// The fewest letters that can abbreviate a name.
const LEAST: usize = 4;

/// What kind of event a prefix names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prefix {
    None,
    Hardware,
    Software,
    Tracepoint,
}

/// Why the name of an event is invalid.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EventNameError {
    /// No event has this name.
    #[error("unknown event \"{name}\": {known}")]
    Unknown {
        /// The name.
        name: String,
        /// Names of available events.
        known: String,
    },
    /// The text after the name is none of the modifiers.
    #[error(
        "\"{modifiers}\" after the event: only u (user code), k (kernel code), D (pinned to the PMU) and up to three p \
         (precision) are known"
    )]
    Modifiers {
        /// The text after the name.
        modifiers: String,
    },
    /// The value of a term is not a number.
    #[error("\"{term}\" of the event is no term: they look like event=0x3c,umask=0x1")]
    Term {
        /// The term.
        term: String,
    },
    /// The PMU does not have it.
    #[error(transparent)]
    Pmu(#[from] PmuError),
    /// tracefs cannot be read, or has no such tracepoint.
    #[error("{0}; it takes root, or the right to read tracefs")]
    Tracefs(#[from] TracefsError),
}

/// An event without its rate.
struct Named {
    kind: u32,
    config: Config,
    /// Without a rate, each event is sampled, as in perf.
    is_rare: bool,
}

/// The event with the name `text`, with a call chain in each sample. The default of `rate` is 99 Hz on each CPU; of a
/// tracepoint, each hit is sampled.
///
/// # Errors
/// [`EventNameError`].
pub fn parse(text: &str, rate: Option<Rate>, roots: &Roots) -> Result<EventSpec, EventNameError> {
    let (name, modifiers) = split(text);
    let named = find(name, roots)?;
    let mut callchain = Callchain { user: true, kernel: true, max_stack: MAX_STACK };
    let (mut precise, mut is_pinned) = (0u8, false);
    for modifier in modifiers.chars() {
        match modifier {
            'u' => callchain.kernel = modifiers.contains('k'),
            'k' => callchain.user = modifiers.contains('u'),
            'p' if precise < 3 => precise += 1,
            'D' => is_pinned = true,
            _ => return Err(EventNameError::Modifiers { modifiers: modifiers.to_owned() }),
        }
    }
    let each = if named.is_rare { Rate::Period(1) } else { Rate::Frequency(DEFAULT_FREQ) };
    Ok(EventSpec {
        name: text.to_owned().into(),
        kind: named.kind,
        config: named.config,
        rate: rate.unwrap_or(each),
        precise,
        leader: None,
        exclude: Exclude::KernelAndGuest,
        filter: None,
        context: None,
        aux: None,
        callchain: Some(callchain),
        is_pinned,
        wants: Features::none().with(Feature::Cgroup).with(Feature::FormatLost).with(Feature::Kernel),
        is_sched: false,
    })
}

/// The event for CPU time that works on this host: cycles, or the CPU clock on hosts without a CPU PMU.
#[must_use]
pub fn default_name(roots: &Roots) -> &'static str {
    match pmu::Pmus::read(&roots.sys) {
        Ok(pmus) if !pmus.core.is_empty() => "cycles",
        _ => "cpu-clock",
    }
}

/// Splits the modifiers off a name: `cycles:u`, `cpu/event=1/u`, `sched:sched_switch`.
fn split(text: &str) -> (&str, &str) {
    if let Some(end) = text.rfind('/').filter(|end| text.find('/') != Some(*end)) {
        let (name, rest) = text.split_at(end + 1);
        return (name, rest.strip_prefix(':').unwrap_or(rest));
    }
    match text.rsplit_once(':') {
        Some((name, modifiers)) if !modifiers.is_empty() && modifiers.bytes().all(|byte| b"ukpD".contains(&byte)) => {
            (name, modifiers)
        }
        _ => (text, ""),
    }
}

/// The canonical spelling: lower case, with hyphens. perf uses hyphens in names of hardware and software events, other
/// tools print underscores.
fn plain(name: &str) -> String {
    name.replace('_', "-").to_ascii_lowercase()
}

/// The type and config of the event in these tables that has this name, or the only one with a name that begins like
/// this.
fn in_tables(tables: &[(u32, &[Row])], bare: &str) -> Option<(u32, u32)> {
    let names = || tables.iter().flat_map(|(kind, rows)| rows.iter().flat_map(move |row| names_of(*kind, row)));
    if let Some((_, found)) = names().find(|(name, _)| *name == bare) {
        return Some(found);
    }
    let is_long = bare.len() >= LEAST;
    let mut found: Vec<(u32, u32)> =
        names().filter(|(name, _)| is_long && name.starts_with(bare)).map(|(_, found)| found).collect();
    found.sort_unstable();
    found.dedup();
    match found.as_slice() {
        [only] => Some(*only),
        _ => None,
    }
}

/// The names of an event, each with its config.
fn names_of(kind: u32, &(its, other, number): &Row) -> impl Iterator<Item = (&'static str, (u32, u32))> {
    [its, other].into_iter().filter(|name| !name.is_empty()).map(move |name| (name, (kind, number)))
}

fn find(name: &str, roots: &Roots) -> Result<Named, EventNameError> {
    let prefix = KINDS.iter().find_map(|(text, kind)| Some((*kind, name.strip_prefix(text)?)));
    let (only, bare) = prefix.unwrap_or((Prefix::None, name));
    if let Some((pmu, terms)) = name.strip_suffix('/').and_then(|name| name.split_once('/')) {
        // perf also lists these as events of PMUs without a sysfs directory.
        return match pmu {
            "software" | "hardware" | "tracepoint" if !terms.is_empty() && !terms.contains('=') => {
                find(&format!("{pmu}:{terms}"), roots)
            }
            _ => of_pmu(pmu, terms, roots),
        };
    }
    let text = plain(bare);
    let is_hardware = matches!(only, Prefix::None | Prefix::Hardware);
    let hardware = (sys::PERF_TYPE_HARDWARE, &HARDWARE[..]);
    let software = (sys::PERF_TYPE_SOFTWARE, &SOFTWARE[..]);
    let tables = match only {
        Prefix::None => vec![hardware, software],
        Prefix::Hardware => vec![hardware],
        Prefix::Software => vec![software],
        Prefix::Tracepoint => Vec::new(),
    };
    if let Some((kind, number)) = in_tables(&tables, &text) {
        return Ok(Named { kind, config: Config([u64::from(number), 0, 0, 0, 0]), is_rare: false });
    }
    if let Some(config) = cache(&text).filter(|_| is_hardware) {
        let config = Config([config, 0, 0, 0, 0]);
        return Ok(Named { kind: sys::PERF_TYPE_HW_CACHE, config, is_rare: false });
    }
    if let Some(config) = raw(bare).filter(|_| is_hardware) {
        return Ok(Named { kind: sys::PERF_TYPE_RAW, config: Config([config, 0, 0, 0, 0]), is_rare: false });
    }
    if let (Some((system, event)), Prefix::None | Prefix::Tracepoint) = (bare.split_once([':', '/']), only) {
        let is_name =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if is_name(system) && is_name(event) {
            let id = Tracefs::open(&roots.proc)?.event_id(&format!("{system}/{event}"))?;
            return Ok(Named { kind: sys::PERF_TYPE_TRACEPOINT, config: Config([id, 0, 0, 0, 0]), is_rare: true });
        }
    }
    Err(EventNameError::Unknown { name: name.to_owned(), known: known(name, roots) })
}

/// Parses a cache event to `PERF_COUNT_HW_CACHE_*`: cache | operation << 8 | result << 16. As in perf: a cache, then
/// operation and result in any order. The defaults are loads, and accesses (not misses).
fn cache(name: &str) -> Option<u64> {
    let names = CACHE_NAMES.iter().enumerate().flat_map(|(at, names)| names.iter().map(move |name| (at, *name)));
    // The longest matching cache name: l1-d for l1-dcache.
    let of_cache = names.filter_map(|(at, cache)| Some((at, cache.len(), name.strip_prefix(cache)?)));
    let (at, _, rest) = of_cache.filter(|(.., rest)| rest.starts_with('-')).max_by_key(|(_, length, _)| *length)?;
    let (mut operation, mut result) = (None, None);
    let mut rest = rest.strip_prefix('-').filter(|rest| !rest.is_empty())?;
    while !rest.is_empty() {
        let part = |names: &[&[&str]]| {
            let all = names.iter().enumerate().flat_map(|(at, names)| names.iter().map(move |name| (at, *name)));
            let of = all.filter_map(|(at, name)| Some((at, rest.strip_prefix(name)?)));
            of.filter(|(_, after)| after.is_empty() || after.starts_with('-')).min_by_key(|(_, after)| after.len())
        };
        let after = if let Some((at, after)) = part(&OPERATION_NAMES).filter(|_| operation.is_none()) {
            operation = Some(at);
            after
        } else {
            let (at, after) = part(&RESULT_NAMES).filter(|_| result.is_none())?;
            result = Some(at);
            after
        };
        rest = after.strip_prefix('-').unwrap_or(after);
    }
    Some(at as u64 | (operation.unwrap_or(0) as u64) << 8 | (result.unwrap_or(0) as u64) << 16)
}

/// `rNNN`: the config of the CPU's PMU, in hexadecimal.
fn raw(name: &str) -> Option<u64> {
    let digits = name.strip_prefix('r').filter(|digits| (1..=16).contains(&digits.len()))?;
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// `PMU/TERM=VALUE,.../` or `PMU/EVENT/`, as sysfs describes them.
fn of_pmu(pmu: &str, terms: &str, roots: &Roots) -> Result<Named, EventNameError> {
    let dir = roots.sys.join(pmu::DEVICES).join(pmu);
    let is_name = !pmu.is_empty() && pmu.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
    if !is_name || pmu.starts_with('.') || !dir.is_dir() {
        let name = format!("{pmu}/{terms}/");
        return Err(EventNameError::Unknown { name, known: format!("the PMUs of this host are {}", pmus(roots)) });
    }
    let described = Pmu::read(&dir)?;
    let mut config = Config::default();
    for term in terms.split(',').filter(|term| !term.is_empty()) {
        let (name, value) = term.split_once('=').map_or((term, None), |(name, value)| (name, Some(value)));
        if value.is_none() {
            if let Some(named) = described.event(name)? {
                for (to, from) in config.0.iter_mut().zip(named.0) {
                    *to |= from;
                }
                continue;
            }
            if !described.format.contains_key(name) {
                let events: Vec<&str> = described.events.keys().map(String::as_str).collect();
                let known = format!("the events of {pmu} are {}", listed(name, &events));
                return Err(EventNameError::Unknown { name: format!("{pmu}/{terms}/"), known });
            }
        }
        let number = match value {
            None => Some(1),
            Some(value) => match value.strip_prefix("0x") {
                Some(hex) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => u64::from_str_radix(hex, 16).ok(),
                None if value.bytes().all(|byte| byte.is_ascii_digit()) => value.parse().ok(),
                _ => None,
            },
        };
        let Some(number) = number else { return Err(EventNameError::Term { term: term.to_owned() }) };
        described.set(&mut config, name, number)?;
    }
    Ok(Named { kind: described.kind, config, is_rare: false })
}

fn pmus(roots: &Roots) -> String {
    match pmu::Pmus::read(&roots.sys) {
        Ok(pmus) if !pmus.names.is_empty() => pmus.names.join(", "),
        _ => "not known".to_owned(),
    }
}

/// Names of available events, the most similar first.
fn known(name: &str, roots: &Roots) -> String {
    let tables = HARDWARE.iter().chain(&SOFTWARE).map(|(name, ..)| (*name).to_owned());
    let caches = CACHES.iter().flat_map(|cache| {
        OPERATIONS.iter().flat_map(move |(all, misses)| [format!("{cache}-{all}"), format!("{cache}-{misses}")])
    });
    let all: Vec<String> = tables.chain(caches).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    format!(
        "there are {}, rNNN (raw, hexadecimal), PMU/TERMS/ of the PMUs {}, and SYSTEM:NAME of tracefs",
        listed(name, &all),
        pmus(roots)
    )
}

/// The names with the longest common prefix with `name`, up to the limit for a message.
fn listed(name: &str, names: &[&str]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    let alike = |other: &str| {
        let lower = |text: &str| text.to_ascii_lowercase();
        let (name, other) = (lower(name), lower(other));
        let common = name.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        if !name.is_empty() && (other.contains(&name) || name.contains(&other)) {
            common + 4
        } else {
            common
        }
    };
    let mut sorted: Vec<&str> = names.to_vec();
    sorted.sort_by_key(|other| std::cmp::Reverse(alike(other)));
    let shown = sorted.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(LISTED);
    if more > 0 {
        format!("{shown} and {more} more")
    } else {
        shown
    }
}

#[cfg(test)]
#[path = "event_tests.rs"]
mod tests;
