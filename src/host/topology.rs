//! CPUs, the pid namespace and capabilities: what the host looks like from where we stand.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::number;
use super::read;
use super::Error;
use super::Roots;

/// CPU numbers at and above this are refused; Linux has 8192 at the most (`NR_CPUS`, arch/x86/Kconfig).
pub(crate) const MAX_CPUS: u32 = 1 << 16;

/// The inode of the initial pid namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// The CPUs of a list as the kernel writes it ("0-3,7"), ascending, each once; `None` where it is no such list.
///
/// The empty list is a list: sysfs writes it for a node without CPUs.
#[must_use]
pub(crate) fn parse_cpu_list(text: &[u8]) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    let text = text.trim_ascii();
    if text.is_empty() {
        return Some(cpus);
    }
    for part in text.split(|&byte| byte == b',') {
        let mut ends = part.splitn(2, |&byte| byte == b'-');
        let first = cpu(ends.next()?)?;
        let last = ends.next().map_or(Some(first), cpu)?;
        // The list is checked before it grows: each part adds MAX_CPUS at the most, and a part costs a byte of input.
        if last < first {
            return None;
        }
        cpus.extend(first..=last);
        if cpus.len() > MAX_CPUS as usize {
            cpus.sort_unstable();
            cpus.dedup();
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

fn cpu(digits: &[u8]) -> Option<u32> {
    u32::try_from(number(digits, 10)?).ok().filter(|&cpu| cpu < MAX_CPUS)
}

/// CPUs, ascending, as the kernel writes them: "0-3,7".
#[must_use]
pub(crate) fn format_cpu_list(cpus: &[u32]) -> String {
    let mut text = String::new();
    let mut rest = cpus;
    while let Some(&first) = rest.first() {
        let run = rest.iter().zip(first..).take_while(|(&cpu, next)| cpu == *next).count();
        let (taken, left) = rest.split_at(run);
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = match taken {
            [.., last] if run > 1 => write!(text, "{comma}{first}-{last}"),
            _ => write!(text, "{comma}{first}"),
        };
        rest = left;
    }
    text
}

/// The CPUs that are online.
///
/// # Errors
/// `sys/devices/system/cpu/online` cannot be read or is no CPU list.
pub fn online_cpus(roots: &Roots) -> Result<Vec<u32>, Error> {
    cpu_list(&roots.sys.join("devices/system/cpu/online"))
}

/// How many CPUs can ever be online: the length of a BPF per-CPU value.
///
/// # Errors
/// `sys/devices/system/cpu/possible` cannot be read or is no CPU list.
pub(crate) fn possible_cpus(roots: &Roots) -> Result<usize, Error> {
    cpu_list(&roots.sys.join("devices/system/cpu/possible")).map(|cpus| cpus.len())
}

fn cpu_list(path: &Path) -> Result<Vec<u32>, Error> {
    let text = read(path)?;
    parse_cpu_list(&text).filter(|cpus| !cpus.is_empty()).ok_or_else(|| Error::Parse {
        path: path.to_owned(),
        text: String::from_utf8_lossy(&text).trim().to_owned(),
        reason: "expected a list of CPUs such as 0-3,7",
    })
}

/// A field of our own `status` in procfs (proc(5)).
pub(crate) fn own_status(roots: &Roots, field: &str) -> Option<String> {
    let text = read(&roots.proc.join("self/status")).ok()?;
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// The capabilities that we hold, by their bits (linux/capability.h); `None` where procfs does not say.
pub(crate) fn capabilities(roots: &Roots) -> Option<u64> {
    number(own_status(roots, "CapEff")?.as_bytes(), 16)
}

/// The inode of the initial user namespace (`PROC_USER_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// True where our user namespace is the initial one; `None` where procfs does not say.
#[must_use]
pub(crate) fn initial_user_namespace(roots: &Roots) -> Option<bool> {
    let metadata = fs::metadata(roots.proc.join("self/ns/user")).ok()?;
    Some(metadata.ino() == INITIAL_USER_NAMESPACE)
}

/// Which pid namespace we run in: it decides what a pid of 0 in a sample means, and whether procfs speaks of the same pids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PidNamespace {
    /// The initial one, for sure: pid 0 is the idle task.
    Initial,
    /// A child, for sure: pid 0 is the idle task or any task outside the namespace.
    Child,
    /// The procfs that we read is of another pid namespace than ours, so its pids are not those in the samples.
    ProcfsElsewhere {
        /// Our pid.
        ours: u32,
        /// Our pid as that procfs has it.
        theirs: Option<u32>,
    },
    /// Nobody can say: the file could not be read.
    Unknown {
        /// Why.
        reason: String,
    },
}

impl PidNamespace {
    /// What is wrong with it for reading the threads of the host under `proc`, and what would help.
    #[must_use]
    pub(crate) fn trouble(&self, proc: &Path) -> Option<(String, &'static str)> {
        match self {
            Self::Initial => None,
            Self::Child => Some((
                "a child pid namespace: tasks outside it are counted, and cannot be named".to_owned(),
                "run with --pid=host",
            )),
            Self::ProcfsElsewhere { ours, .. } => Some((
                format!(
                    "{} is of another pid namespace than ours (it does not know us as {ours}), so threads would get the names \
                     of others",
                    proc.display()
                ),
                "mount one that fits, as `unshare --pid --fork --mount-proc` does, or run with --pid=host",
            )),
            Self::Unknown { reason } => Some((format!("cannot tell which pid namespace this is: {reason}"), "mount procfs")),
        }
    }
}

/// Finds out which pid namespace we run in, from the inode of `proc/self/ns/pid` and our pid in `proc/self`.
#[must_use]
pub(crate) fn pid_namespace(roots: &Roots) -> PidNamespace {
    let own = roots.proc.join("self");
    let ours = std::process::id();
    let theirs = match fs::read_link(&own) {
        Ok(target) => super::pid_of(target.as_os_str()),
        // A procfs of a namespace that we are not in has no `self` for us.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && own.is_symlink() => None,
        Err(error) => return PidNamespace::Unknown { reason: format!("{}: {error}", own.display()) },
    };
    if theirs != Some(ours) {
        return PidNamespace::ProcfsElsewhere { ours, theirs };
    }
    let link = own.join("ns/pid");
    match fs::metadata(&link) {
        Ok(metadata) if metadata.ino() == INITIAL_PID_NAMESPACE => PidNamespace::Initial,
        Ok(_) => PidNamespace::Child,
        Err(error) => PidNamespace::Unknown { reason: format!("{}: {error}", link.display()) },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cpu_lists_of_the_kernel() {
        assert_eq!(parse_cpu_list(b"0-3,7\n"), Some(vec![0, 1, 2, 3, 7]));
        assert_eq!(parse_cpu_list(b"0\n"), Some(vec![0]));
        assert_eq!(parse_cpu_list(b"\n"), Some(vec![]));
        assert_eq!(format_cpu_list(&[0, 1, 2, 3, 7, 9, 10]), "0-3,7,9-10");
        for wrong in [&b"3-1"[..], b"a", b"1,,2", b"-1", b"1-", b"+1", b"0-65536", b"99999999999999999999"] {
            assert_eq!(parse_cpu_list(wrong), None, "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn cpus_are_read_under_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { sys: dir.path().into(), ..Roots::default() };
        assert!(matches!(online_cpus(&roots), Err(Error::Read { .. })));
        fs::create_dir_all(dir.path().join("devices/system/cpu")).unwrap();
        fs::write(dir.path().join("devices/system/cpu/online"), "0-1,4\n").unwrap();
        fs::write(dir.path().join("devices/system/cpu/possible"), "0-7\n").unwrap();
        assert_eq!(online_cpus(&roots).unwrap(), [0, 1, 4]);
        assert_eq!(possible_cpus(&roots).unwrap(), 8);
        fs::write(dir.path().join("devices/system/cpu/online"), "none\n").unwrap();
        assert!(online_cpus(&roots).unwrap_err().to_string().contains("\"none\""));
    }

    #[test]
    fn pid_namespace_is_told_from_procfs() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { proc: dir.path().into(), ..Roots::default() };
        assert!(matches!(pid_namespace(&roots), PidNamespace::Unknown { .. }));
        std::os::unix::fs::symlink("1", dir.path().join("self")).unwrap();
        let ours = std::process::id();
        assert_eq!(pid_namespace(&roots), PidNamespace::ProcfsElsewhere { ours, theirs: Some(1) });
        fs::remove_file(dir.path().join("self")).unwrap();
        std::os::unix::fs::symlink(ours.to_string(), dir.path().join("self")).unwrap();
        assert!(matches!(pid_namespace(&roots), PidNamespace::Unknown { .. }));
        fs::create_dir_all(dir.path().join(ours.to_string()).join("ns")).unwrap();
        fs::write(dir.path().join(ours.to_string()).join("ns/pid"), "").unwrap();
        assert_eq!(pid_namespace(&roots), PidNamespace::Child);
    }

    #[test]
    fn this_host_has_cpus_and_a_namespace() {
        let roots = Roots::default();
        let online = online_cpus(&roots).unwrap();
        assert!(!online.is_empty() && possible_cpus(&roots).unwrap() >= online.len());
        assert!(matches!(pid_namespace(&roots), PidNamespace::Initial | PidNamespace::Child));
    }

    proptest! {
        #[test]
        fn cpu_lists_survive_the_round_trip(cpus in proptest::collection::btree_set(0u32..2000, 0..200)) {
            let cpus: Vec<u32> = cpus.into_iter().collect();
            prop_assert_eq!(parse_cpu_list(format_cpu_list(&cpus).as_bytes()), Some(cpus));
        }

        #[test]
        fn any_bytes_are_a_list_or_none(text in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(cpus) = parse_cpu_list(&text) {
                prop_assert!(cpus.windows(2).all(|pair| pair[0] < pair[1]));
            }
        }

        #[test]
        fn list_like_bytes_are_a_list_or_none(text in "[0-9,\\- ]{0,40}") {
            if let Some(cpus) = parse_cpu_list(text.as_bytes()) {
                prop_assert!(cpus.windows(2).all(|pair| pair[0] < pair[1]));
                prop_assert!(cpus.len() <= MAX_CPUS as usize);
            }
        }
    }
}
