//! The name of an event whose file has none, as perf makes it of the attr (`evsel__name` in tools/perf/util/evsel.c).

use perf_event_open_sys::bindings as sys;

use super::Attr;

const HARDWARE: [&str; 10] = [
    "cycles",
    "instructions",
    "cache-references",
    "cache-misses",
    "branches",
    "branch-misses",
    "bus-cycles",
    "stalled-cycles-frontend",
    "stalled-cycles-backend",
    "ref-cycles",
];
const SOFTWARE: [&str; 12] = [
    "cpu-clock",
    "task-clock",
    "page-faults",
    "context-switches",
    "cpu-migrations",
    "minor-faults",
    "major-faults",
    "alignment-faults",
    "emulation-faults",
    "dummy",
    "bpf-output",
    "cgroup-switches",
];
const CACHES: [&str; 7] = ["L1-dcache", "L1-icache", "LLC", "dTLB", "iTLB", "branch", "node"];
/// With and without what came of it.
const OPERATIONS: [(&str, &str); 3] = [("load", "loads"), ("store", "stores"), ("prefetch", "prefetches")];
/// The upper half has the PMU (`PERF_PMU_TYPE_SHIFT`).
const CONFIG: u64 = 0xffff_ffff;
/// Kinds of accesses to an address (`HW_BREAKPOINT_*`), by their bits.
const ACCESSES: [(u32, char); 3] = [(1, 'r'), (2, 'w'), (4, 'x')];

/// The name.
pub(super) fn name(attr: &Attr) -> String {
    let config = attr.config & CONFIG;
    let of = |names: &[&str], other: &str| {
        let name = usize::try_from(config).ok().and_then(|config| names.get(config).copied());
        name.unwrap_or(other).to_owned()
    };
    let name = match attr.kind {
        sys::PERF_TYPE_HARDWARE => of(&HARDWARE, "unknown-hardware"),
        sys::PERF_TYPE_SOFTWARE => of(&SOFTWARE, "unknown-software"),
        sys::PERF_TYPE_HW_CACHE => cache(config).unwrap_or_else(|| "unknown-ext-hardware-cache".to_owned()),
        sys::PERF_TYPE_RAW => format!("raw {:#x}", attr.config),
        sys::PERF_TYPE_BREAKPOINT => {
            let accesses = ACCESSES.iter().filter(|(bit, _)| attr.bp_type & bit != 0).map(|(_, letter)| letter);
            format!("mem:{:#x}:{}", attr.config1, accesses.collect::<String>())
        }
        sys::PERF_TYPE_TRACEPOINT => return "unknown tracepoint".to_owned(),
        kind => return format!("unknown attr type: {kind}"),
    };
    name + &modifiers(attr.flags)
}

fn cache(config: u64) -> Option<String> {
    let byte = |shift: u32| (config >> shift & 0xff) as usize;
    let (cache, (operation, all)) = (CACHES.get(byte(0))?, OPERATIONS.get(byte(8))?);
    match byte(16) {
        0 => Some(format!("{cache}-{all}")),
        1 => Some(format!("{cache}-{operation}-misses")),
        _ => None,
    }
}

/// `:u`, `:ppp` and their like (`evsel__add_modifiers`).
fn modifiers(flags: u64) -> String {
    let excludes = |bit: u32| flags >> bit & 1 != 0;
    let (user, kernel, hypervisor, host, guest) = (excludes(4), excludes(5), excludes(6), excludes(19), excludes(20));
    let precise = (flags >> 15 & 3) as usize;
    let mut text = String::new();
    let mut add = |letter, is_excluded: bool| {
        if !is_excluded {
            text.push(letter);
        }
    };
    let is_some_level = user || kernel || hypervisor;
    if is_some_level {
        add('k', kernel);
        add('u', user);
        add('h', hypervisor);
    }
    for _ in 0..precise {
        add('p', false);
    }
    // Events with other modifiers leave out guests as well.
    if host || guest == (is_some_level || precise > 0) {
        add('H', host);
        add('G', guest);
    }
    if text.is_empty() {
        text
    } else {
        format!(":{text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_perf() {
        const GUEST: u64 = 1 << 20;
        let named = |kind, config, flags| name(&Attr { kind, config, flags, ..Attr::default() });
        for (kind, config, flags, expected) in [
            (1, 2, GUEST, "page-faults"),
            (1, 0, GUEST, "cpu-clock"),
            (1, 99, GUEST, "unknown-software"),
            (0, 0, GUEST, "cycles"),
            (0, 4 << 32, GUEST, "cycles"),
            (0, 1, 0, "instructions:HG"),
            (0, 0, 1 << 5 | 1 << 6, "cycles:u"),
            (0, 0, 1 << 4 | 1 << 6 | GUEST, "cycles:kH"),
            (0, 0, 3 << 15, "cycles:ppp"),
            (3, 0x0001_0002, GUEST, "LLC-load-misses"),
            (3, 0x0000_0100, GUEST, "L1-dcache-stores"),
            (4, 0x1cd, GUEST, "raw 0x1cd"),
            (2, 7, 0, "unknown tracepoint"),
            (9, 7, 0, "unknown attr type: 9"),
        ] {
            assert_eq!(named(kind, config, flags), expected);
        }
        let attr = Attr { kind: 5, config1: 0x1000, bp_type: 3, flags: GUEST, ..Attr::default() };
        assert_eq!(name(&attr), "mem:0x1000:rw");
    }
}
