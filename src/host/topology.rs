//! The CPUs of the host, and lists of CPUs as the kernel writes them.

use std::fmt::Write;
use std::path::Path;

use super::{number, read, Error, Roots};
use crate::sample::places::CpuPlaces;

/// CPU numbers at and above this are rejected; Linux has at most 8192 (`NR_CPUS`, arch/x86/Kconfig).
pub(crate) const MAX_CPUS: u32 = 1 << 16;

/// The CPUs of a list in the kernel's format ("0-3,7"), ascending, each once; `None` if it is no such list.
///
/// The empty list is valid: sysfs writes it for a node without CPUs.
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
        // The list is checked before it grows: each part adds at most MAX_CPUS, and a part costs a byte of input.
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

/// CPUs, ascending, in the kernel's format: "0-3,7".
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

/// Where the CPUs are in the machine.
#[must_use]
pub fn places(roots: &Roots) -> CpuPlaces {
    let _ = roots;
    CpuPlaces::default()
}

/// The CPUs that can ever be online.
///
/// # Errors
/// `sys/devices/system/cpu/possible` cannot be read or is no CPU list.
pub(crate) fn possible_cpus(roots: &Roots) -> Result<Vec<u32>, Error> {
    cpu_list(&roots.sys.join("devices/system/cpu/possible"))
}

fn cpu_list(path: &Path) -> Result<Vec<u32>, Error> {
    let text = read(path)?;
    parse_cpu_list(&text).filter(|cpus| !cpus.is_empty()).ok_or_else(|| Error::Parse {
        path: path.to_owned(),
        text: String::from_utf8_lossy(&text).trim().to_owned(),
        reason: "expected a list of CPUs such as 0-3,7",
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        assert_eq!(possible_cpus(&roots).unwrap().len(), 8);
        fs::write(dir.path().join("devices/system/cpu/online"), "none\n").unwrap();
        assert!(online_cpus(&roots).unwrap_err().to_string().contains("\"none\""));
    }

    #[test]
    fn this_host_has_cpus() {
        let roots = Roots::default();
        let online = online_cpus(&roots).unwrap();
        assert!(!online.is_empty() && possible_cpus(&roots).unwrap().len() >= online.len());
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
