//! Lists of CPUs in the kernel's format, and what its files say of their caches.

use std::fmt::Write as _;
use std::ops::RangeInclusive;

/// CPU numbers at and above this are rejected; Linux has at most 8192 (`NR_CPUS`, arch/x86/Kconfig).
pub const MAX_CPUS: u32 = 1 << 16;

/// The CPUs of a list in the kernel's format ("0-3,7"), ascending, each once; `None` if it is no such list.
///
/// The empty list is valid: sysfs writes it for a node without CPUs.
#[must_use]
pub fn parse_cpu_list(text: &[u8]) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in cpu_ranges(text)? {
        // Each part adds at most MAX_CPUS.
        cpus.extend(part);
        if cpus.len() > MAX_CPUS as usize {
            cpus.sort_unstable();
            cpus.dedup();
        }
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

/// The parts of a list of CPUs in the kernel's format, as they are in the text; `None` if it is no such list.
#[must_use]
pub fn cpu_ranges(text: &[u8]) -> Option<Vec<RangeInclusive<u32>>> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return Some(Vec::new());
    }
    let range = |part: &[u8]| {
        let mut ends = part.splitn(2, |&byte| byte == b'-');
        let first = cpu(ends.next()?)?;
        let last = ends.next().map_or(Some(first), cpu)?;
        (first <= last).then_some(first..=last)
    };
    text.split(|&byte| byte == b',').map(range).collect()
}

fn cpu(digits: &[u8]) -> Option<u32> {
    // `parse` would take a sign.
    let digits =
        std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()))?;
    digits.parse().ok().filter(|&cpu| cpu < MAX_CPUS)
}

/// CPUs, ascending, in the kernel's format: "0-3,7".
#[must_use]
pub fn format_cpu_list(cpus: &[u32]) -> String {
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

/// True for the type of a cache that holds data.
#[must_use]
pub fn holds_data(kind: &[u8]) -> bool {
    matches!(kind, b"Data" | b"Unified")
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
