//! The kind of host.

use std::fs;
use std::path::Path;

use super::check::{Check, Section};
use super::kernel::{Hierarchy, Kernel};
use crate::host::kallsyms::{Kallsyms, KallsymsError};
use crate::host::tracefs::TracefsError;
use crate::host::{proc, Roots};
use crate::outcome::FRAMES_HIDDEN;
use crate::sample::printable;
use scxprof_base::arch::Arch;

/// The consequence for the timer source if it cannot use the tick.
const OWN_CLOCK: &str = "without it the timer source takes a clock of its own";

pub(super) fn checks(roots: &Roots, kernel: &dyn Kernel) -> Vec<Check> {
    vec![
        hypervisor(roots),
        pid_namespace(roots, kernel),
        cgroups(kernel),
        tracefs(kernel),
        kallsyms(roots),
        frames(kernel),
        sched_ext(roots),
    ]
}

/// The text of a file, escaped for a terminal; `None` if it cannot be read or is empty.
fn text(path: &Path) -> Option<String> {
    let text = printable(fs::read(path).ok()?.trim_ascii());
    (!text.is_empty()).then_some(text)
}

/// A field of the first processor in `proc/cpuinfo`, with lines `name : value`.
fn cpuinfo(roots: &Roots, field: &str) -> Option<String> {
    let text = fs::read(roots.proc.join("cpuinfo")).ok()?;
    proc::field(&text, field).map(printable)
}

/// The processor's model; empty if procfs does not show it.
pub(super) fn cpu_model(roots: &Roots) -> String {
    let cpuinfo = fs::read(roots.proc.join("cpuinfo")).unwrap_or_default();
    proc::cpu_model(&cpuinfo).map(|model| printable(model.as_bytes())).unwrap_or_default()
}

/// Vendor and model of the machine (DMI), and the type of a paravirtual hypervisor.
fn machine(roots: &Roots) -> Option<String> {
    let names = ["class/dmi/id/sys_vendor", "class/dmi/id/product_name", "hypervisor/type"];
    let names: Vec<_> = names.iter().filter_map(|name| text(&roots.sys.join(name))).collect();
    (!names.is_empty()).then(|| names.join(" "))
}

fn hypervisor(roots: &Roots) -> Check {
    let name = "hypervisor";
    let machine = machine(roots);
    let called = machine.as_deref().map_or_else(String::new, |machine| format!(" ({machine})"));
    // The bit that a hypervisor sets for its guests (CPUID leaf 1, ecx bit 31); only x86 has it.
    let Some(flags) = cpuinfo(roots, "flags") else {
        return Check::not_tested(
            Section::Host,
            name,
            format!("the processor does not say whether it is virtual{called}"),
        );
    };
    if flags.split_whitespace().any(|flag| flag == "hypervisor") {
        let why = format!("a virtual machine{called}: it has a memory PMU only if its hypervisor gives it one");
        return Check::partly(Section::Host, name, why)
            .help("for pebs or ibs a bare-metal host, or a virtual PMU with precise events");
    }
    Check::works(Section::Host, name, format!("none{called}"))
}

fn pid_namespace(roots: &Roots, kernel: &dyn Kernel) -> Check {
    use crate::host::namespace::PidNamespace;
    let name = "pid-namespace";
    let namespace = kernel.pid_namespace();
    let Some((why, help)) = namespace.trouble(&roots.proc) else {
        return Check::works(Section::Host, name, "the host's");
    };
    match namespace {
        PidNamespace::ProcfsElsewhere { .. } => Check::fails(Section::Host, name, why),
        PidNamespace::Unknown { .. } => Check::not_tested(Section::Host, name, why),
        _ => Check::partly(Section::Host, name, why),
    }
    .help(help)
}

fn cgroups(kernel: &dyn Kernel) -> Check {
    let name = "cgroups";
    match kernel.hierarchy() {
        Ok(Hierarchy { warning: Some(warning), .. }) => Check::partly(Section::Host, name, warning),
        Ok(Hierarchy { kind, point, .. }) => {
            Check::works(Section::Host, name, format!("{} at {}", kind.name(), point.display()))
        }
        Err(error) => Check::fails(Section::Host, name, error.to_string()),
    }
}

fn tracefs(kernel: &dyn Kernel) -> Check {
    let name = "tracefs";
    let error = match kernel.tracefs() {
        Ok(Some(path)) => return Check::works(Section::Host, name, path.display().to_string()),
        Ok(None) => return Check::works(Section::Host, name, "not mounted; a private mount works"),
        Err(error) => error,
    };
    let errno = match &error {
        TracefsError::Mount { source, .. }
        | TracefsError::Closed { source, .. }
        | TracefsError::Read { source, .. } => source.raw_os_error(),
        TracefsError::NotANumber { .. } => None,
    };
    let check = Check::fails(Section::Host, name, error.to_string());
    match errno {
        Some(libc::EPERM | libc::EACCES) => check.help(format!("root; {OWN_CLOCK}")),
        _ => check.help(OWN_CLOCK),
    }
}

fn kallsyms(roots: &Roots) -> Check {
    let name = "kallsyms";
    if Arch::HOST.is_none() {
        return Check::not_tested(Section::Host, name, "the source timer is for x86-64 and arm64 only");
    }
    let error = match Kallsyms::read(&roots.proc) {
        Ok(symbols) if symbols.entries.is_empty() || symbols.handlers.is_empty() => {
            let why = "the tick's handler and the interrupt entries are not among the symbols";
            return Check::fails(Section::Host, name, why).help(OWN_CLOCK);
        }
        Ok(_) => return Check::works(Section::Host, name, "the tick's handler and the interrupt entries are known"),
        Err(error) => error,
    };
    let check = Check::fails(Section::Host, name, error.to_string());
    match error {
        KallsymsError::Hidden { .. } => check.help(format!("root or CAP_SYSLOG; {OWN_CLOCK}")),
        KallsymsError::Read { .. } => check.help(OWN_CLOCK),
    }
}

fn frames(kernel: &dyn Kernel) -> Check {
    let name = "frames";
    if kernel.frames_visible() {
        return Check::works(Section::Host, name, "/proc/PID/pagemap shows physical frames");
    }
    Check::fails(Section::Host, name, FRAMES_HIDDEN).help("CAP_SYS_ADMIN in the host's user namespace")
}

/// `kernel/sched_ext/state` and the name of the loaded scheduler in `root/ops` (Documentation/scheduler/sched-ext.rst).
fn sched_ext(roots: &Roots) -> Check {
    let name = "sched_ext";
    let dir = roots.sys.join("kernel/sched_ext");
    let Some(state) = text(&dir.join("state")) else {
        let why = format!("this kernel has no sched_ext ({} is not there)", dir.display());
        return Check::fails(Section::Host, name, why)
            .help("to load the result here, Linux 6.12 with CONFIG_SCHED_CLASS_EXT; it can be loaded on another host");
    };
    match text(&dir.join("root/ops")) {
        Some(scheduler) => Check::works(Section::Host, name, format!("{state}; {scheduler} is loaded")),
        None => Check::works(Section::Host, name, format!("{state}; no scheduler is loaded")),
    }
}
