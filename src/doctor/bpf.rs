//! What BPF can do on this host. Each requirement of a hint probe is a trial.

use super::check::{Check, Section};
use super::kernel::Kernel;
use super::rights;
use crate::host::Roots;

/// What would help if the kernel denies BPF.
const RIGHTS: &str =
    "root, or CAP_BPF and CAP_PERFMON; lockdown or a container's seccomp profile can forbid it even so";

const POLICY: &str = "no right is missing: this kernel refuses it to every process (lockdown or another policy)";

pub(super) fn checks(roots: &Roots, kernel: &dyn Kernel) -> Vec<Check> {
    let path = roots.sys.join("kernel/btf/vmlinux");
    let btf = if path.is_file() {
        Check::works(Section::Bpf, "btf", "the kernel describes its types")
    } else {
        Check::fails(Section::Bpf, "btf", format!("{} is not there", path.display()))
            .help("a kernel with CONFIG_DEBUG_INFO_BTF")
    };
    let all_are_held = rights::all_are_held(roots, kernel);
    let tried = kernel.bpf_trials().into_iter().map(|trial| match trial.result {
        Ok(()) => Check::works(Section::Bpf, trial.name, trial.what),
        Err(error) => {
            let check = Check::fails(Section::Bpf, trial.name, error.why);
            // Rights help only if rights are missing.
            match error.errno {
                libc::EPERM | libc::EACCES if all_are_held => check.help(POLICY),
                libc::EPERM | libc::EACCES => check.help(RIGHTS),
                _ => check,
            }
        }
    });
    std::iter::once(btf).chain(tried).collect()
}
