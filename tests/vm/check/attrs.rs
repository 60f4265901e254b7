//! Compares the events that scxprof opens with those of the guest's own `perf mem record`, field by field.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{bail, ensure, Context, Result};

use crate::truth;

/// A field in which the two may differ.
struct Difference {
    /// The events: of `all` PMUs, of one, or of the `leader` that Golden Cove needs for its loads.
    whose: &'static str,
    field: &'static str,
    /// The value that we use then.
    ours: fn(u64) -> bool,
    why: &'static str,
}

const fn may_differ(whose: &'static str, field: &'static str, ours: fn(u64) -> bool, why: &'static str) -> Difference {
    Difference { whose, field, ours, why }
}

const DIFFERENCES: &[Difference] = &[
    may_differ("leader", "precise_ip", |ours| ours == 0, "it only counts: its samples would take room in the ring"),
    may_differ("leader", "sample_period", |ours| ours == 0, "it only counts"),
    may_differ("leader", "sample_type.*", |ours| ours == 0, "it only counts"),
    may_differ("all", "size", |ours| ours >= 128, "each has the struct of its own headers"),
    may_differ("all", "freq", |ours| ours == 0, "a period is steered; only periods can be batched"),
    may_differ(
        "all",
        "sample_period",
        |ours| ours == 100_003 || ours == 1 << 20,
        "the period that steering begins with",
    ),
    may_differ("all", "use_clockid", |ours| ours == 1, "CLOCK_MONOTONIC, the clock of BPF programs"),
    may_differ("all", "clockid", |ours| ours == 1, "CLOCK_MONOTONIC"),
    may_differ("all", "watermark", |ours| ours == 1, "perf leaves it to the kernel when to wake it"),
    may_differ("all", "wakeup", |ours| ours == 256 * 4096 / 4, "a quarter of the ring, in bytes"),
    may_differ("all", "sample_type.CGROUP", |ours| ours == 1, "cells are cgroups"),
    may_differ("all", "sample_type.CPU", |ours| ours == 1, "loss is counted for each CPU"),
    may_differ("all", "sample_type.IDENTIFIER", |ours| ours == 1, "several events write into one ring"),
    may_differ("all", "sample_type.ID", |ours| ours == 0, "IDENTIFIER is the same at a fixed place"),
    may_differ("all", "read_format.TOTAL_TIME_ENABLED", |ours| ours == 1, "shows multiplexing"),
    may_differ("all", "read_format.TOTAL_TIME_RUNNING", |ours| ours == 1, "shows multiplexing"),
    may_differ("all", "read_format.LOST", |ours| ours == 1, "a ring that stays full has no LOST record"),
    may_differ("all", "inherit", |ours| ours == 0, "means nothing for whole CPUs"),
    may_differ("cpu", "exclude_kernel", |ours| ours == 1, "user accesses only, without --kernel"),
    may_differ("cpu", "exclude_guest", |ours| ours == 1, "a guest's addresses are not ours"),
    may_differ("cpu", "precise_ip", |ours| ours == 2, "3 cannot be scheduled for loads from Golden Cove on"),
    may_differ("cpu", "config1", |ours| ours == 30, "perf adds the bits of the ldlat=3 in sysfs to its threshold"),
    may_differ("ibs_op", "config", |ours| ours == 1 << 19, "cnt_ctl: ops, not cycles, which favour ops that wait"),
    may_differ("ibs_op", "config2", |ours| ours == 1, "swfilt, where it makes exclude_kernel legal"),
    may_differ("ibs_op", "exclude_kernel", |ours| ours == 1, "user accesses only, with swfilt"),
    may_differ(
        "ibs_op",
        "sample_type.PHYS_ADDR",
        |ours| ours == 1,
        "perf 6.1 gives it up where exclude_guest is refused",
    ),
    may_differ("ibs_op", "sample_type.DATA_PAGE_SIZE", |ours| ours == 1, "perf 6.1 gives it up likewise"),
    may_differ("ibs_op", "sample_type.WEIGHT_STRUCT", |ours| ours == 1, "perf 6.1 gives it up likewise"),
    may_differ("ibs_op", "sample_type.WEIGHT", |ours| ours == 0, "WEIGHT_STRUCT has it"),
];

const FLAGS: [&str; 39] = [
    "disabled",
    "inherit",
    "pinned",
    "exclusive",
    "exclude_user",
    "exclude_kernel",
    "exclude_hv",
    "exclude_idle",
    "mmap",
    "comm",
    "freq",
    "inherit_stat",
    "enable_on_exec",
    "task",
    "watermark",
    "precise_ip",
    "precise_ip",
    "mmap_data",
    "sample_id_all",
    "exclude_host",
    "exclude_guest",
    "exclude_callchain_kernel",
    "exclude_callchain_user",
    "mmap2",
    "comm_exec",
    "use_clockid",
    "context_switch",
    "write_backward",
    "namespaces",
    "ksymbol",
    "bpf_event",
    "aux_output",
    "cgroup",
    "text_poke",
    "build_id",
    "inherit_thread",
    "remove_on_exec",
    "sigtrap",
    "defer_callchain",
];

const SAMPLE_TYPES: [&str; 25] = [
    "IP",
    "TID",
    "TIME",
    "ADDR",
    "READ",
    "CALLCHAIN",
    "ID",
    "CPU",
    "PERIOD",
    "STREAM_ID",
    "RAW",
    "BRANCH_STACK",
    "REGS_USER",
    "STACK_USER",
    "WEIGHT",
    "DATA_SRC",
    "IDENTIFIER",
    "TRANSACTION",
    "REGS_INTR",
    "PHYS_ADDR",
    "AUX",
    "CGROUP",
    "DATA_PAGE_SIZE",
    "CODE_PAGE_SIZE",
    "WEIGHT_STRUCT",
];

const READ_FORMATS: [&str; 5] = ["TOTAL_TIME_ENABLED", "TOTAL_TIME_RUNNING", "ID", "GROUP", "LOST"];

/// The other fields of the struct (linux/perf_event.h): name, offset, bytes.
const WORDS: [(&str, usize, usize); 18] = [
    ("type", 0, 4),
    ("size", 4, 4),
    ("config", 8, 8),
    ("sample_period", 16, 8),
    ("wakeup", 48, 4),
    ("bp_type", 52, 4),
    ("config1", 56, 8),
    ("config2", 64, 8),
    ("branch_sample_type", 72, 8),
    ("sample_regs_user", 80, 8),
    ("sample_stack_user", 88, 4),
    ("clockid", 92, 4),
    ("sample_regs_intr", 96, 8),
    ("aux_watermark", 104, 4),
    ("sample_max_stack", 108, 2),
    ("aux_sample_size", 112, 4),
    ("sig_data", 120, 8),
    ("config3", 128, 8),
];

/// The config of mem-loads-aux.
const LEADER: u64 = 0x8203;

/// The fields that are not 0 in a `perf_event_attr`, by name; bits by their own names.
type Attr = BTreeMap<String, u64>;

fn word(bytes: &[u8], at: usize, len: usize) -> u64 {
    let part = bytes.get(at..at + len).unwrap_or_default();
    part.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

fn attr(bytes: &[u8]) -> Result<Attr> {
    let mut attr = Attr::new();
    for (name, at, len) in WORDS {
        attr.insert(name.to_owned(), word(bytes, at, len));
    }
    let bits = [("sample_type.", 24, &SAMPLE_TYPES[..]), ("read_format.", 32, &READ_FORMATS), ("", 40, &FLAGS)];
    for (prefix, at, names) in bits {
        let value = word(bytes, at, 8);
        ensure!(value >> names.len() == 0, "unknown bits in {prefix}{value:#x}");
        for (bit, name) in names.iter().enumerate() {
            // precise_ip has two bits.
            *attr.entry(format!("{prefix}{name}")).or_default() +=
                (value >> bit & 1) << u64::from(bit == 16 && prefix.is_empty());
        }
    }
    attr.retain(|_, value| *value != 0);
    Ok(attr)
}

/// The attrs that the PMU accepted, the last of each PMU and event: earlier ones are tried and closed again.
fn taken(file: &str) -> Result<BTreeMap<(String, u64), Attr>> {
    let text = fs::read_to_string(file).with_context(|| file.to_owned())?;
    let mut taken = BTreeMap::new();
    for line in text.lines() {
        let fields = truth::fields(line);
        let field = |name: &str| fields.get(name).copied().with_context(|| format!("no {name} in {line}"));
        if field("result")? == "0" {
            let bytes = truth::bytes(field("attr")?)?;
            let attr = attr(&bytes)?;
            let pmu = field("pmu")?.to_owned();
            // ibs_op has one event; its config says how it counts.
            let event = if pmu == "ibs_op" { 0 } else { attr.get("config").copied().unwrap_or(0) };
            taken.insert((pmu, event), attr);
        }
    }
    Ok(taken)
}

/// `vm-check attrs OURS PERF`: two copies of the module's `attrs`.
pub fn check(arguments: &[String]) -> Result<()> {
    let [ours, perf] = arguments else { bail!("vm-check attrs OURS PERF") };
    let (ours, perf) = (taken(ours)?, taken(perf)?);
    let events = |of: &BTreeMap<(String, u64), Attr>| of.keys().cloned().collect::<Vec<_>>();
    ensure!(events(&ours) == events(&perf), "events {:x?}, of perf {:x?}", events(&ours), events(&perf));
    let mut unexplained = 0;
    for (event, ours) in &ours {
        let Some(perf) = perf.get(event) else { continue };
        let leader = event.1 == LEADER;
        let names = ours.keys().chain(perf.keys()).collect::<BTreeSet<_>>();
        for name in names {
            let (our, their) = (ours.get(name).copied().unwrap_or(0), perf.get(name).copied().unwrap_or(0));
            if our == their {
                continue;
            }
            let reason = DIFFERENCES.iter().find(|difference| {
                let here = match difference.whose {
                    "all" => true,
                    "leader" => leader,
                    // cpu_core and cpu_atom too.
                    pmu => event.0.starts_with(pmu),
                };
                let field =
                    difference.field.strip_suffix('*').map_or(difference.field == name, |all| name.starts_with(all));
                here && field && (difference.ours)(our)
            });
            let why = reason.map_or("NOT EXPLAINED", |difference| difference.why);
            println!("{}/{:#x}/ {name}: {our:#x}, of perf {their:#x}: {why}", event.0, event.1);
            unexplained += usize::from(reason.is_none());
        }
    }
    ensure!(unexplained == 0, "{unexplained} differences that the table does not explain");
    println!("attrs: {} events as perf opens them", ours.len());
    Ok(())
}
