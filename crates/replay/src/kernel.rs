//! Which threads are the kernel's. A recording of the whole host says it: they are of processes that map no memory. One of a
//! command has the mappings of that command alone; of other threads their cgroup, their process, their maker and their name tell it.

use std::collections::HashSet;
use std::hash::BuildHasher;

use rustc_hash::FxHashSet;

use super::plan::{Plan, Planned};

/// The first process of a host, which always maps memory: a recording that lacks it has not looked at all processes.
const INIT: u32 = 1;
/// The kernel's maker of threads (`kthreadd`, kernel/kthread.c).
const KTHREADD: &[u8] = b"kthreadd";

/// Names with which those of the kernel's threads begin: a name that ends with `/` has a CPU, a queue or an interrupt after it. From
/// the calls of `kthread_create*`, `alloc_workqueue` (rescuers) and `smpboot_register_percpu_thread` in Linux 6.18 and 7.2.
const BEGINNINGS: [&str; 46] = [
    "kworker/",
    "ksoftirqd/",
    "migration/",
    "cpuhp/",
    "idle_inject/",
    "irq/",
    "irq_work/",
    "rcu_",
    "rcuc/",
    "rcub/",
    "rcuog/",
    "rcuop/",
    "rcuos/",
    "rcu-",
    "kswapd",
    "kcompactd",
    "kdamond",
    "kpsimoused",
    "ksmd",
    "khugepaged",
    "khungtaskd",
    "kauditd",
    "kdevtmpfs",
    "kthreadd",
    "kthrotld",
    "kblockd",
    "kintegrityd",
    "kstrp",
    "kvm-",
    "vhost-",
    "napi/",
    "backlog_napi/",
    "jbd2/",
    "ext4-rsv-",
    "xfs-",
    "xfs_",
    "xfsaild/",
    "btrfs-",
    "md",
    "raid",
    "dm",
    "scsi_eh_",
    "scsi_tmf_",
    "nvme-",
    "watchdog",
    "pr/",
];
/// Whole names.
const NAMES: [&str; 20] = [
    "netns",
    "writeback",
    "oom_reaper",
    "pool_workqueue_release",
    "mm_percpu_wq",
    "inet_frag_wq",
    "slub_flushwq",
    "blkcg_punt_bio",
    "tpm_dev_wq",
    "ata_sff",
    "edac-poller",
    "devfreq_wq",
    "acpi_thermal_pm",
    "mld",
    "ipv6_addrconf",
    "psimon",
    "khvcd",
    "hwrng",
    "zswap-shrink",
    "kmmpd",
];

/// True if a recording has looked at the memory of all processes, by those that map some: without the first process of the host it is
/// that of a command, or of a few processes.
#[must_use]
pub fn knows_all<S: BuildHasher>(user: &HashSet<u32, S>) -> bool {
    user.contains(&INIT)
}

/// True if the thread is the kernel's. `user` are the processes that map memory; it is not empty.
pub(super) fn is_kernel(thread: &Planned, pid: u32, plan: &Plan, user: &FxHashSet<u32>) -> bool {
    if user.contains(&pid) {
        return false;
    }
    if knows_all(user) {
        return true;
    }
    // Its threads are processes of their own, in the root of all cgroups.
    let is_in_cgroup = plan.cgroups.get(&thread.cgroup).is_some_and(|path| path != b"/");
    if pid != thread.tid || is_in_cgroup {
        return false;
    }
    let maker = thread.made.and_then(|(by, _)| plan.threads.get(by as usize));
    maker.is_some_and(|maker| maker.comm.as_bytes() == KTHREADD) || is_name(thread.comm.as_bytes())
}

/// True for a name of the kernel's threads.
fn is_name(name: &[u8]) -> bool {
    let begins = |beginning: &str| {
        name.strip_prefix(beginning.as_bytes()).is_some_and(|rest| match beginning {
            // As md0_raid1 and dm-3, or with a number: names of programs begin so, too.
            "md" | "raid" | "dm" => {
                rest.first().is_some_and(|&byte| byte.is_ascii_digit() || byte == b'-' || byte == b'_')
            }
            _ => true,
        })
    };
    BEGINNINGS.iter().any(|beginning| begins(beginning)) || NAMES.iter().any(|known| known.as_bytes() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_kernel_are_told_from_those_of_programs() {
        for name in [
            "kworker/3:1H",
            "ksoftirqd/0",
            "migration/11",
            "rcu_preempt",
            "kswapd0",
            "md127_raid1",
            "dm-3",
            "oom_reaper",
        ] {
            assert!(is_name(name.as_bytes()), "{name}");
        }
        for name in
            ["tail", "mdadm", "dmesg", "worker/0", "tokio-rt-worker", "raidctl", "writebacker", "postgres", "init", ""]
        {
            assert!(!is_name(name.as_bytes()), "{name}");
        }
    }
}
