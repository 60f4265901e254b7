//! Files of procfs that are lines of `name: value`: status, cpuinfo and meminfo.

use super::{number, read, Roots};

/// The value of the first line `name: value`, without the blanks around it.
pub(crate) fn field<'a>(text: &'a [u8], name: &str) -> Option<&'a [u8]> {
    text.split(|&byte| byte == b'\n').find_map(|line| {
        let at = line.iter().position(|&byte| byte == b':')?;
        let (key, value) = line.split_at(at);
        (key.trim_ascii() == name.as_bytes()).then(|| value.get(1..).unwrap_or_default().trim_ascii())
    })
}

/// The number at the beginning of a value: a figure of meminfo, in KiB, or the first of several.
pub(crate) fn first_number(value: &[u8]) -> Option<u64> {
    number(value.split(u8::is_ascii_whitespace).next()?, 10)
}

/// A field of our own `status` in procfs (proc(5)).
pub(crate) fn own_status(roots: &Roots, name: &str) -> Option<String> {
    let text = read(&roots.proc.join("self/status")).ok()?;
    Some(String::from_utf8_lossy(field(&text, name)?).into_owned())
}

/// A bit mask of our own `status`, such as `CapEff` (linux/capability.h) or `SigIgn`; `None` if procfs does not show it.
pub(crate) fn own_mask(roots: &Roots, name: &str) -> Option<u64> {
    number(own_status(roots, name)?.as_bytes(), 16)
}

/// The capabilities that we have, by their bits; `None` if procfs does not show them.
pub(crate) fn capabilities(roots: &Roots) -> Option<u64> {
    own_mask(roots, "CapEff")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_are_found_whatever_bytes_are_beside_them() {
        let status = b"Name:\ta: b\xff\nUid:\t1000\t0\t0\t0\nNSpid:\t77\t5\nCapEff:\t000001ffffffffff\n";
        assert_eq!(field(status, "Name"), Some(&b"a: b\xff"[..]));
        assert_eq!(field(status, "Uid").and_then(first_number), Some(1000));
        assert_eq!(field(status, "pid"), None);
        assert_eq!(field(b"model name\t: A\nmodel\t\t: 5\n", "model"), Some(&b"5"[..]));
        assert_eq!(field(b"MemTotal:       16316452 kB\n", "MemTotal").and_then(first_number), Some(16_316_452));
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_field_or_none(text in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = field(&text, "Uid").and_then(first_number);
        }
    }
}
