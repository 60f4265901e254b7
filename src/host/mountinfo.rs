//! The mounts of our mount namespace, from `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
//!
//! Paths are bytes here: the crate procfs rejects all mounts if one has a path that is not UTF-8, and does not unescape paths.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::number;

/// A line `ID PARENT DEV ROOT POINT OPTIONS [TAGS...] - TYPE SOURCE SUPEROPTIONS`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountInfo<'a> {
    /// The device of its files, as `makedev` packs it.
    pub dev: u64,
    /// The directory of its file system that is mounted.
    pub root: Vec<u8>,
    /// The mount point.
    pub point: PathBuf,
    /// The type of the file system.
    pub kind: &'a [u8],
    /// The options of the file system, with commas between them.
    pub options: &'a [u8],
}

impl MountInfo<'_> {
    /// True if the file system has this option.
    pub(crate) fn has_option(&self, option: &str) -> bool {
        self.options.split(|&byte| byte == b',').any(|it| it == option.as_bytes())
    }
}

/// The mounts in the text of a mountinfo; malformed lines are left out.
pub(crate) fn parse(text: &[u8]) -> impl Iterator<Item = MountInfo<'_>> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line)
}

fn parse_line(line: &[u8]) -> Option<MountInfo<'_>> {
    let mut fields = line.split(|&byte| byte == b' ');
    number(fields.next()?, 10)?;
    let mut dev = fields.nth(1)?.splitn(2, |&byte| byte == b':');
    let mut half = || u32::try_from(number(dev.next()?, 10)?).ok();
    let dev = libc::makedev(half()?, half()?);
    let root = unescape(fields.next()?);
    let point = PathBuf::from(OsString::from_vec(unescape(fields.next()?)));
    fields.find(|&field| field == b"-")?;
    let kind = fields.next()?;
    Some(MountInfo { dev, root, point, kind, options: fields.nth(1).unwrap_or_default() })
}

/// Space, tab, newline and backslash are written as octal in mountinfo (`mangle` in fs/proc_namespace.c).
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        let octal = after.get(..3).filter(|_| first == b'\\').and_then(|digits| number(digits, 8));
        if let Some(byte) = octal.and_then(|byte| u8::try_from(byte).ok()) {
            plain.push(byte);
            rest = after.get(3..).unwrap_or_default();
        } else {
            plain.push(first);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read_and_their_escapes_undone() {
        let text = b"36 35 8:44 /a /mnt\\040b\xff rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
            x\n1 2 3\n30 1 0:22 / /\\134x rw - tmpfs none\n";
        let mounts: Vec<_> = parse(text).collect();
        assert_eq!(mounts.len(), 2);
        let (first, last) = (&mounts[0], &mounts[1]);
        assert_eq!((first.dev, &*first.root, first.kind), (libc::makedev(8, 44), &b"/a"[..], &b"ext3"[..]));
        assert_eq!(first.point.as_os_str().as_encoded_bytes(), b"/mnt b\xff");
        assert!(first.has_option("rw") && !first.has_option("errors") && !last.has_option("rw"));
        assert_eq!(last.point.to_str(), Some("/\\x"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_mounts_or_none(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&text).count();
        }

        #[test]
        fn line_like_bytes_are_a_mount_or_none(line in "[0-9 ]{0,9} 0:1 / [/\\\\0-9. ]{0,20} rw - cgroup2? [a-z ,_]{0,20}") {
            let _ = parse(line.as_bytes()).count();
        }
    }
}
