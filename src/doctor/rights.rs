//! Our rights and limits.

use std::fs;
use std::io;

use super::check::{Check, Section};
use super::kernel::Kernel;
use super::kernel::MMAP_PAGES;
use super::trial::Trial;
use crate::host::limits::sysctl;
use crate::host::{proc, topology, Roots};
use crate::sampler::open::{self, Privilege};
use crate::sampler::{SamplerError, MLOCK_HELP, NOFILE_HELP};

/// Capabilities by their bit in `CapEff` (linux/capability.h), and what each is for.
const CAPABILITIES: [(u32, &str, &str); 9] = [
    (38, "CAP_PERFMON", "events of every task and physical addresses"),
    (39, "CAP_BPF", "BPF programs"),
    (14, "CAP_IPC_LOCK", "rings beyond kernel.perf_event_mlock_kb"),
    (19, "CAP_SYS_PTRACE", "mappings and code of other users' processes"),
    (34, "CAP_SYSLOG", "addresses in /proc/kallsyms"),
    (2, "CAP_DAC_READ_SEARCH", "names of cgroups that no walk has seen"),
    (40, "CAP_CHECKPOINT_RESTORE", "files that processes map, though they are deleted or in a container"),
    (23, "CAP_SYS_NICE", "priorities that lose no samples on a busy host"),
    (21, "CAP_SYS_ADMIN", "physical frames of pages, and a tracefs mount of our own"),
];

pub(super) fn checks(roots: &Roots, kernel: &dyn Kernel, trials: &[Trial]) -> Vec<Check> {
    vec![
        capabilities(roots, kernel),
        paranoid(roots, trials),
        mlock(roots, kernel, trials),
        nofile(roots, kernel),
        lockdown(roots),
        seccomp(roots, trials),
    ]
}

/// True if no capability is missing, so that a rejection has another reason.
pub(super) fn all_are_held(roots: &Roots, kernel: &dyn Kernel) -> bool {
    let held = proc::capabilities(roots).unwrap_or(0);
    kernel.initial_user_namespace() != Some(false) && CAPABILITIES.iter().all(|(bit, ..)| held >> bit & 1 == 1)
}

fn capabilities(roots: &Roots, kernel: &dyn Kernel) -> Check {
    let name = "capabilities";
    let Some(held) = proc::capabilities(roots) else {
        return Check::not_tested(Section::Rights, name, "proc/self/status has no CapEff").help("mount procfs");
    };
    let lacking: Vec<_> = CAPABILITIES.iter().filter(|(bit, ..)| held >> bit & 1 == 0).collect();
    if kernel.initial_user_namespace() == Some(false) {
        return Check::partly(
            Section::Rights,
            name,
            "they are held in a child user namespace only, and the kernel asks for the host's",
        )
        .help("run outside the container or user namespace");
    }
    if lacking.is_empty() {
        let all: Vec<_> = CAPABILITIES.iter().map(|&(_, name, _)| name).collect();
        return Check::works(Section::Rights, name, format!("all that are of use: {}", all.join(", ")));
    }
    let list: Vec<_> = lacking.iter().map(|(_, name, purpose)| format!("{name} ({purpose})")).collect();
    let why = format!("lacking {}", list.join(", "));
    let check = if lacking.len() == CAPABILITIES.len() {
        Check::fails(Section::Rights, name, why)
    } else {
        Check::partly(Section::Rights, name, why)
    };
    check.help("run as root, or give them to the binary with setcap(8)")
}

fn paranoid(roots: &Roots, trials: &[Trial]) -> Check {
    let name = "paranoid";
    let Some(level) = sysctl(&roots.proc, "perf_event_paranoid") else {
        return Check::not_tested(Section::Rights, name, "kernel.perf_event_paranoid cannot be read")
            .help("a kernel with CONFIG_PERF_EVENTS, and procfs with its sys directory");
    };
    let is = format!("kernel.perf_event_paranoid is {level}");
    if trials.iter().any(|trial| trial.host.is_ok()) {
        return Check::works(Section::Rights, name, format!("{is} and does not restrict scxprof here"));
    }
    let forbidden = trials.iter().any(|trial| matches!(trial.host, Err(SamplerError::NotPermitted { .. })));
    let check = match (forbidden, trials.iter().any(|trial| trial.attempt().is_some())) {
        (true, true) => Check::partly(Section::Rights, name, is),
        (true, false) => Check::fails(Section::Rights, name, is),
        (false, _) => return Check::not_tested(Section::Rights, name, format!("{is}; no event can be opened")),
    };
    check.help(open::rights(&roots.proc, Privilege::All))
}

/// A limit, for display.
fn limit(value: u64) -> String {
    if value == u64::MAX {
        "unlimited".to_owned()
    } else {
        value.to_string()
    }
}

fn mlock(roots: &Roots, kernel: &dyn Kernel, trials: &[Trial]) -> Check {
    let name = "mlock";
    let allowance = sysctl(&roots.proc, "perf_event_mlock_kb")
        .map_or_else(|| "cannot be read".to_owned(), |kib| format!("is {kib} KiB a CPU"));
    let memlock = kernel.locked_memory().kib();
    let limits = format!("kernel.perf_event_mlock_kb {allowance}, RLIMIT_MEMLOCK {memlock}");
    if let Some(error) = trials
        .iter()
        .filter_map(|trial| trial.host.as_ref().err())
        .find(|error| matches!(error, SamplerError::NoLockedMemory { .. }))
    {
        return Check::failed(Section::Rights, name, error);
    }
    match trials.iter().filter_map(Trial::attempt).map(|attempt| attempt.mmap_pages).min() {
        Some(pages) if pages < MMAP_PAGES => Check::partly(
            Section::Rights,
            name,
            format!("rings of {pages} instead of {MMAP_PAGES} pages a CPU: {limits}"),
        )
        .help(MLOCK_HELP),
        Some(pages) => Check::works(Section::Rights, name, format!("rings of {pages} pages a CPU; {limits}")),
        None => Check::not_tested(Section::Rights, name, format!("no ring was made; {limits}")),
    }
}

fn nofile(roots: &Roots, kernel: &dyn Kernel) -> Check {
    let name = "nofile";
    let cpus = topology::online_cpus(roots).map_or(1, |cpus| cpus.len());
    // A group leader, its member and the side-band: the most files that a source needs by default.
    let needed = open::files_needed(cpus, 3);
    let found = kernel.open_files();
    let why = format!(
        "sampling {cpus} CPUs takes {needed} open files and RLIMIT_NOFILE allows {} (hard limit {})",
        limit(found.soft),
        limit(found.hard)
    );
    if found.hard >= needed {
        Check::works(Section::Rights, name, why)
    } else {
        Check::fails(Section::Rights, name, why).help(NOFILE_HELP)
    }
}

/// `security/lockdown`, with the current level in brackets (kernel_lockdown(7)).
fn lockdown(roots: &Roots) -> Check {
    let name = "lockdown";
    let path = roots.sys.join("kernel/security/lockdown");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => {
            let absent = match error.kind() {
                io::ErrorKind::NotFound => ": no lockdown in this kernel, or no securityfs",
                _ => "",
            };
            return Check::not_tested(
                Section::Rights,
                name,
                format!("cannot read {}: {error}{absent}", path.display()),
            );
        }
    };
    match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(level, _)| level) {
        Some("confidentiality") => {
            let why = "the kernel is locked down (confidentiality): no tracefs, and no BPF program may read its memory";
            Check::partly(Section::Rights, name, why)
                .help("boot with lockdown=integrity, or without Secure Boot if that sets the level")
        }
        Some(level) => Check::works(Section::Rights, name, format!("{level}: nothing that scxprof does is forbidden")),
        None => Check::not_tested(Section::Rights, name, format!("{} holds {:?}", path.display(), text.trim())),
    }
}

fn seccomp(roots: &Roots, trials: &[Trial]) -> Check {
    let name = "seccomp";
    match proc::own_status(roots, "Seccomp").as_deref() {
        Some("0") => Check::works(Section::Rights, name, "no filter"),
        Some(_) if trials.iter().any(|trial| trial.host.is_ok()) => {
            Check::works(Section::Rights, name, "a filter is in force, and lets events be opened")
        }
        Some(_) => {
            let why = "a filter is in force, as in a container: it may be what forbids perf_event_open(2) and bpf(2)";
            Check::partly(Section::Rights, name, why).help("run without the container's seccomp profile")
        }
        None => Check::not_tested(Section::Rights, name, "proc/self/status has no Seccomp"),
    }
}
