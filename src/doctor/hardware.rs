//! What the processor's PMUs offer to pebs and ibs, from sysfs.

use super::check::{Check, Section};
use super::trial::Trial;
use crate::host::Roots;
use crate::sampler::pmu::{Ibs, Ldlat, Pebs, PebsPmu, Pmus, MAX_LDLAT_IBS, MIN_LDLAT_IBS};
use scxprof_base::arch::Arch;
use scxprof_base::cpus::format_cpu_list;

const PMU: &str = "pmu";
const PRECISE: &str = "precise";
const LDLAT: &str = "ldlat";

pub(super) fn checks(roots: &Roots, trials: &[Trial]) -> Vec<Check> {
    if Arch::HOST != Some(Arch::X86_64) {
        let pmu = Check::fails(Section::Hardware, PMU, "pebs and ibs are for x86-64 only");
        // Statistical Profiling Extension.
        let has_spe = roots.sys.join("bus/event_source/devices/arm_spe_0").exists();
        return none(if has_spe {
            pmu.help("scxprof reads what `perf record -a -e arm_spe_0//` recorded")
        } else {
            pmu
        });
    }
    let pmus = match Pmus::read(&roots.sys) {
        Ok(pmus) => pmus,
        Err(error) => return none(Check::fails(Section::Hardware, PMU, error.to_string())),
    };
    match (pmus.pebs(), pmus.ibs()) {
        (Ok(pebs), _) => {
            let taken = trials.iter().filter_map(Trial::attempt).find_map(|attempt| attempt.precise);
            of_pebs(&pebs, taken)
        }
        (_, Ok(ibs)) => of_ibs(&ibs),
        (Err(pebs), Err(ibs)) => {
            let why = format!("none samples memory accesses; pebs: {pebs}; ibs: {ibs}");
            let help = "a bare-metal host, or a guest whose hypervisor gives it a PMU with precise events; \
                        ibs may be switched off in the firmware";
            none(Check::fails(Section::Hardware, PMU, why).help(help))
        }
    }
}

fn none(pmu: Check) -> Vec<Check> {
    let why = "no PMU samples memory accesses";
    vec![pmu, Check::not_tested(Section::Hardware, PRECISE, why), Check::not_tested(Section::Hardware, LDLAT, why)]
}

/// A list with one entry for each PMU.
fn each(pmus: &[PebsPmu], what: impl Fn(&PebsPmu) -> String) -> String {
    pmus.iter().map(|pmu| format!("{}: {}", pmu.name, what(pmu))).collect::<Vec<_>>().join("; ")
}

/// `taken` is the `precise_ip` that the kernel accepted.
fn of_pebs(pebs: &Pebs, taken: Option<u8>) -> Vec<Check> {
    let cpus = |cpus: Option<&Vec<u32>>| {
        cpus.map_or_else(|| "all CPUs".to_owned(), |cpus| format!("CPUs {}", format_cpu_list(cpus)))
    };
    let why = each(&pebs.pmus, |pmu| {
        let aux = if pmu.aux.is_some() { " led by mem-loads-aux" } else { "" };
        let stores = if pmu.stores.is_some() { ", mem-stores" } else { "" };
        format!("mem-loads{aux}{stores} on {}", cpus(pmu.cpus.as_ref()))
    });
    let pmu = if pebs.without.is_empty() {
        Check::works(Section::Hardware, PMU, why)
    } else {
        let without = pebs.without.iter().map(|(name, without)| format!("{name} ({})", cpus(without.as_ref())));
        let without = without.collect::<Vec<_>>().join(", ");
        Check::partly(Section::Hardware, PMU, format!("{why}; nothing is sampled on the CPUs of {without}"))
    };
    let why = each(&pebs.pmus, |pmu| match pmu.max_precise {
        Some(level) => format!("precise_ip up to {level}"),
        None => "the kernel does not say (no caps/max_precise)".to_owned(),
    });
    let precise = match taken {
        Some(level) => Check::works(Section::Hardware, PRECISE, format!("{why}; the kernel took {level}")),
        None => Check::not_tested(Section::Hardware, PRECISE, format!("{why}; no event was opened")),
    };
    let why = each(&pebs.pmus, |pmu| format!("up to {} cycles", pmu.ldlat.max()));
    vec![pmu, precise, Check::works(Section::Hardware, LDLAT, why)]
}

fn of_ibs(ibs: &Ibs) -> Vec<Check> {
    let user = match ibs.swfilt {
        Some(_) => "the kernel leaves out samples of its own code (swfilt)",
        None => "samples of kernel code are left out here",
    };
    let pmu = Check::works(Section::Hardware, PMU, format!("ibs_op counts ops on all CPUs; {user}"));
    let precise = Check::works(Section::Hardware, PRECISE, "ibs_op: every sample is of one op");
    let here = "latency is compared here, after the sample";
    let ldlat = match ibs.ldlat {
        Ldlat::None => Check::partly(Section::Hardware, LDLAT, format!("ibs_op: no caps/ldlat; {here}"))
            .help("a later processor (Zen 5), and Linux 6.15"),
        Ldlat::L3MissOnly(_) => {
            let why =
                format!("ibs_op: its threshold leaves out loads that hit the L3 cache too, so it is not used; {here}");
            Check::partly(Section::Hardware, LDLAT, why)
        }
        Ldlat::Alone(_) => {
            let why = format!("ibs_op: from {MIN_LDLAT_IBS} to {MAX_LDLAT_IBS} cycles");
            Check::works(Section::Hardware, LDLAT, why)
        }
    };
    vec![pmu, precise, ldlat]
}
