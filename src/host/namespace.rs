//! Namespaces: our pid namespace, and the numbers of a process's namespaces.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{number, pid_of, Roots};

/// The numbers of the initial user and pid namespaces (`PROC_USER_INIT_INO`, `PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_USER: u32 = 0xEFFF_FFFD;
const INITIAL_PID: u32 = 0xEFFF_FFFC;

/// True if our user namespace is the initial one; `None` if procfs does not tell.
#[must_use]
pub(crate) fn initial_user_namespace(roots: &Roots) -> Option<bool> {
    Some(number_of(&roots.proc.join("self/ns/user")).ok()? == INITIAL_USER)
}

/// The number in `ipc:[4026531839]`, the target of a link in `/proc/PID/ns`: the inode of the namespace.
///
/// # Errors
/// The link cannot be read, or has another form.
pub(crate) fn number_of(link: &Path) -> io::Result<u32> {
    let target = fs::read_link(link)?;
    let digits = target.as_os_str().as_bytes().split(|&byte| byte == b'[').nth(1).and_then(|it| it.strip_suffix(b"]"));
    let number = digits.and_then(|digits| u32::try_from(number(digits, 10)?).ok());
    number.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is not a link to a namespace"))
}

/// Our pid namespace: it decides what a pid of 0 in a sample means, and whether procfs shows the same pids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PidNamespace {
    /// Certainly the initial one: pid 0 is the idle task.
    Initial,
    /// Certainly a child: pid 0 is the idle task or any task outside the namespace.
    Child,
    /// procfs belongs to another pid namespace than ours, so its pids are not those in the samples.
    ProcfsElsewhere {
        /// Our pid.
        ours: u32,
        /// Our pid in that procfs.
        theirs: Option<u32>,
    },
    /// Unknown: the file could not be read.
    Unknown {
        /// Why.
        reason: String,
    },
}

impl PidNamespace {
    /// Why the threads of the host cannot be read under `proc`, and what would help.
    #[must_use]
    pub(crate) fn trouble(&self, proc: &Path) -> Option<(String, &'static str)> {
        match self {
            Self::Initial => None,
            Self::Child => Some((
                "a child pid namespace: tasks outside it are counted, and cannot be named".to_owned(),
                "start the container with --pid=host",
            )),
            Self::ProcfsElsewhere { ours, .. } => Some((
                format!(
                    "{} is of another pid namespace than ours (it does not know us as {ours}), so threads would get the names \
                     of others",
                    proc.display()
                ),
                "mount one that fits, as `unshare --pid --fork --mount-proc` does, or start the container with --pid=host",
            )),
            Self::Unknown { reason } => Some((format!("cannot tell which pid namespace this is: {reason}"), "mount procfs")),
        }
    }
}

/// Determines our pid namespace from the number of `proc/self/ns/pid` and our pid in `proc/self`.
#[must_use]
pub(crate) fn pid_namespace(roots: &Roots) -> PidNamespace {
    let own = roots.proc.join("self");
    let ours = std::process::id();
    let theirs = match fs::read_link(&own) {
        Ok(target) => pid_of(target.as_os_str()),
        // A procfs of a namespace that we are not in has no `self` for us.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && own.is_symlink() => None,
        Err(error) => return PidNamespace::Unknown { reason: format!("{}: {error}", own.display()) },
    };
    if theirs != Some(ours) {
        return PidNamespace::ProcfsElsewhere { ours, theirs };
    }
    let link = own.join("ns/pid");
    match number_of(&link) {
        Ok(INITIAL_PID) => PidNamespace::Initial,
        Ok(_) => PidNamespace::Child,
        Err(error) => PidNamespace::Unknown { reason: format!("{}: {error}", link.display()) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let link = dir.path().join(ours.to_string()).join("ns/pid");
        std::os::unix::fs::symlink("pid:[4026532200]", &link).unwrap();
        assert_eq!(pid_namespace(&roots), PidNamespace::Child);
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("pid:[4026531836]", &link).unwrap();
        assert_eq!(pid_namespace(&roots), PidNamespace::Initial);
    }

    #[test]
    fn this_host_has_a_namespace() {
        let roots = Roots::default();
        assert!(matches!(pid_namespace(&roots), PidNamespace::Initial | PidNamespace::Child));
        assert!(initial_user_namespace(&roots).is_some());
    }
}
