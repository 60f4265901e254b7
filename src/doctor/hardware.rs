//! What the processor's PMUs offer to the sources pebs, ibs and spe, according to sysfs.

use super::check::{Check, Section};
use super::trial::Trial;
use crate::host::Roots;
use crate::sampler::pmu::{Ibs, Ldlat, Pebs, PebsPmu, Pmus, SpePmu, MAX_LDLAT_IBS, MIN_LDLAT_IBS};
use scxprof_base::arch::Arch;
use scxprof_base::cpus::format_cpu_list;

const PMU: &str = "pmu";
const PRECISE: &str = "precise";
const LDLAT: &str = "ldlat";

pub(super) fn checks(roots: &Roots, trials: &[Trial]) -> Vec<Check> {
    let pmus = match Pmus::read(&roots.sys) {
        Ok(pmus) => pmus,
        Err(error) => return none(Check::fails(Section::Hardware, PMU, error.to_string())),
    };
    if Arch::HOST == Some(Arch::Arm64) {
        return of_arm64(&pmus);
    }
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

/// The checks of an arm64 host (pure, so that tests run on every host).
pub(super) fn of_arm64(pmus: &Pmus) -> Vec<Check> {
    let spe = match pmus.spe() {
        Ok(spe) => spe,
        Err(error) => {
            let why = error.to_string();
            return none(
                match error.help().and_then(|help| why.strip_suffix(help)?.strip_suffix("; ").zip(Some(help))) {
                    Some((why, help)) => Check::fails(Section::Hardware, PMU, why).help(help),
                    None => Check::fails(Section::Hardware, PMU, why),
                },
            );
        }
    };
    let list = |what: fn(&SpePmu) -> String| {
        spe.iter().map(|pmu| format!("{}: {}", pmu.name, what(pmu))).collect::<Vec<_>>().join("; ")
    };
    let cpus = |pmu: &SpePmu| {
        let cpus =
            pmu.cpus.as_ref().map_or_else(|| "all CPUs".to_owned(), |cpus| format!("CPUs {}", format_cpu_list(cpus)));
        format!("loads and stores on {cpus}, at most every {} operations", pmu.min_interval)
    };
    vec![
        Check::works(Section::Hardware, PMU, list(cpus)),
        Check::works(Section::Hardware, PRECISE, list(|_| "every sample is of one operation".to_owned())),
        Check::works(Section::Hardware, LDLAT, list(|pmu| format!("up to {} cycles", pmu.min_latency.max()))),
    ]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::pmu::Pmu;
    use std::path::PathBuf;

    fn pmus(arm_spe: Vec<Pmu>, isolates_tables: bool) -> Pmus {
        Pmus { dir: "/sys/devices".into(), names: Vec::new(), core: Vec::new(), ibs_op: None, arm_spe, isolates_tables }
    }

    fn arm_spe() -> Pmu {
        let format = [
            ("ts_enable", "config:0"),
            ("pa_enable", "config:1"),
            ("jitter", "config:16"),
            ("load_filter", "config:33"),
            ("store_filter", "config:34"),
            ("min_latency", "config2:0-11"),
        ];
        Pmu {
            name: "arm_spe_0".to_owned(),
            dir: PathBuf::new(),
            kind: 11,
            cpus: None,
            cpumask: Some(vec![0, 1, 2]),
            format: format.map(|(term, bits)| (term.to_owned(), bits.to_owned())).into(),
            events: std::collections::BTreeMap::new(),
            caps: [("min_interval".to_owned(), "1024".to_owned())].into(),
        }
    }

    #[test]
    fn an_arm64_host_is_told_what_its_spe_can_do_or_what_would_help() {
        let rows = |pmus: &Pmus| {
            let rows = of_arm64(pmus).into_iter().map(|check| (check.name, check.state.name(), check.to_string()));
            rows.collect::<Vec<_>>()
        };
        let works = rows(&pmus(vec![arm_spe()], false));
        assert_eq!(
            works[0],
            (PMU, "works", "arm_spe_0: loads and stores on CPUs 0-2, at most every 1024 operations".to_owned())
        );
        assert_eq!((works[1].1, works[2].2.as_str()), ("works", "arm_spe_0: up to 4095 cycles"));
        let isolated = rows(&pmus(Vec::new(), true));
        assert!(isolated[0].1 == "fails" && isolated[0].2.contains("boot the kernel with kpti=off"), "{isolated:?}");
        assert!(isolated[1].1 == "not tested", "{isolated:?}");
        let none = rows(&pmus(Vec::new(), false));
        assert!(none[0].1 == "fails" && none[0].2.contains("sudo modprobe arm_spe_pmu"), "{none:?}");
        assert!(none[0].2.contains("kpti=off"), "sysfs does not always tell: {none:?}");
        assert_eq!(none[0].2.matches("firmware").count(), 1, "the help is given once: {none:?}");
        let mut broken = arm_spe();
        broken.format.remove("jitter");
        let broken = rows(&pmus(vec![broken], false));
        assert!(broken[0].1 == "fails" && broken[0].2.contains("\"jitter\""), "{broken:?}");
    }
}
