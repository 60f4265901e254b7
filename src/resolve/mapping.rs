//! A mapping, and the lines of `/proc/PID/maps`. Pure.

use std::sync::Arc;

use super::identity::scope;
use crate::host::number;
use crate::sample::MemoryScope;
use scxprof_perf::buildid::BuildId;

/// A mapped range of an address space, as a `PERF_RECORD_MMAP2` or a line of `/proc/PID/maps` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// The file offset of its beginning, bytes.
    pub pgoff: u64,
    /// `PROT_READ`, `PROT_WRITE`, `PROT_EXEC`.
    pub prot: u32,
    /// `MAP_SHARED` or `MAP_PRIVATE`.
    pub flags: u32,
    /// Device of the file, as `makedev` packs it; 0 if the record is in its build-id form.
    pub dev: u64,
    /// Inode of the file, 0 for anonymous memory and if the record is in its build-id form.
    pub ino: u64,
    /// Generation of the inode (`ioctl_iflags(2)`, `FS_IOC_GETVERSION`), 0 if unknown: procfs does not show it.
    pub generation: u32,
    /// What `ino` belongs to: the device, or what `resolve/identity.rs` replaces it with; `None` if that is unknown, so that `ino` does
    /// not identify the memory.
    pub scope: Option<MemoryScope>,
    /// Build id of the file, if the record has it.
    pub build_id: Option<BuildId>,
    /// Path as the kernel prints it, any bytes: `/memfd:x (deleted)`, `[heap]`, `//anon`.
    pub path: Arc<[u8]>,
}

impl Mapping {
    /// First address after it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// True for `MAP_SHARED`.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        // MAP_SHARED_VALIDATE is both bits, and the kernel reports it as MAP_SHARED.
        self.flags & libc::MAP_SHARED as u32 != 0
    }

    /// True for code.
    #[must_use]
    pub fn is_executable(&self) -> bool {
        self.prot & libc::PROT_EXEC as u32 != 0
    }

    /// True if two mappings of the same dev, inode and offset are the same memory.
    ///
    /// They are not for anonymous inodes (all perf and io_uring rings of a host have one inode) and for devices, the offsets of
    /// which are cookies with a meaning that depends on the open file.
    #[must_use]
    pub fn has_identity(&self) -> bool {
        let path = &*self.path;
        let device = path.starts_with(b"/dev/")
            && !path.starts_with(b"/dev/shm/")
            && !path.starts_with(b"/dev/hugepages/")
            // Shared anonymous memory, for which the kernel makes an inode.
            && path != b"/dev/zero (deleted)";
        !device && !path.starts_with(b"anon_inode:")
    }

    /// True if the inode's number is still unknown. Segment 0 of SysV shared memory has number 0, too.
    #[must_use]
    pub(super) fn lacks_inode(&self) -> bool {
        self.ino == 0 && self.scope == Some(MemoryScope::device(self.dev, 0))
    }

    /// The part of it in `[start, end)`, which must lie within it.
    pub(super) fn part(&self, start: u64, end: u64) -> Self {
        let pgoff = self.pgoff.wrapping_add(start.saturating_sub(self.start));
        Self { start, len: end.saturating_sub(start), pgoff, ..self.clone() }
    }
}

/// One line of `/proc/PID/maps` (`show_map_vma` in fs/proc/task_mmu.c):
/// `START-END PERMS OFFSET MAJOR:MINOR INODE    PATH`, all numbers but the inode in hex.
///
/// The path is everything after the blanks: any bytes, with a newline written as `\012`.
#[must_use]
pub fn parse_line(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut range = fields.next()?.splitn(2, |&byte| byte == b'-');
    let start = number(range.next()?, 16)?;
    let end = number(range.next()?, 16)?;
    let &[read, write, exec, shared] = fields.next()? else { return None };
    let pgoff = number(fields.next()?, 16)?;
    let mut dev = fields.next()?.splitn(2, |&byte| byte == b':');
    let major = u32::try_from(number(dev.next()?, 16)?).ok()?;
    let minor = u32::try_from(number(dev.next()?, 16)?).ok()?;
    let ino = number(fields.next()?, 10)?;
    let path = fields.next().unwrap_or_default();
    let mut prot = 0;
    for (flag, byte, bit) in
        [(read, b'r', libc::PROT_READ), (write, b'w', libc::PROT_WRITE), (exec, b'x', libc::PROT_EXEC)]
    {
        if flag == byte {
            prot |= bit as u32;
        }
    }
    let (dev, path) = (libc::makedev(major, minor), unescape(path));
    Some(Mapping {
        start,
        len: end.checked_sub(start)?,
        pgoff,
        prot,
        flags: if shared == b's' { libc::MAP_SHARED } else { libc::MAP_PRIVATE } as u32,
        dev,
        ino,
        generation: 0,
        scope: scope(dev, &path),
        build_id: None,
        path: path.into(),
    })
}

/// The path without leading blanks and with its newlines.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut rest = path.get(path.iter().take_while(|&&byte| byte == b' ').count()..).unwrap_or_default();
    let mut plain = Vec::with_capacity(rest.len());
    while let Some((&first, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            plain.push(b'\n');
            rest = after;
        } else {
            plain.push(first);
            rest = after;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Mapping {
        parse_line(text.as_bytes()).unwrap()
    }

    #[test]
    fn lines_of_the_kernel() {
        let code =
            line("7ff0b7b1a000-7ff0b7b24000 r-xp 00027000 fe:01 325843                     /usr/lib/ld linux.so.2");
        assert_eq!((code.start, code.end(), code.pgoff), (0x7ff0_b7b1_a000, 0x7ff0_b7b2_4000, 0x27000));
        assert_eq!((code.dev, code.ino), (libc::makedev(0xfe, 1), 325_843));
        assert!(code.is_executable() && !code.is_shared());
        assert_eq!(&*code.path, b"/usr/lib/ld linux.so.2");
        let anon = line("7ffc93078000-7ffc93099000 rw-s 00000000 00:01 1044 /dev/zero (deleted)");
        assert!(anon.is_shared() && anon.has_identity());
        assert_eq!(&*anon.path, b"/dev/zero (deleted)");
        assert_eq!(&*line("1000-2000 rw-p 00000000 00:00 0 ").path, b"");
        assert_eq!(&*line("1000-2000 rw-p 00000000 00:00 0").path, b"");
        let odd = parse_line(b"1000-2000 rw-s 00000000 00:01 7    /tmp/a\\012 b\xff\\ (deleted) (deleted)").unwrap();
        assert_eq!(&*odd.path, b"/tmp/a\n b\xff\\ (deleted) (deleted)");
    }

    #[test]
    fn what_is_no_line_is_none() {
        for wrong in
            ["", "x", "1000 rw-p 0 0:0 0", "2000-1000 rw-p 0 0:0 0", "1000-2000 rw- 0 0:0 0", "1-2 rwxp 0 0:0 x"]
        {
            assert_eq!(parse_line(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn rings_and_devices_have_no_identity() {
        for path in
            ["anon_inode:[perf_event]", "anon_inode:[io_uring]", "/dev/infiniband/uverbs0", "/dev/dri/renderD128"]
        {
            assert!(!line(&format!("1000-2000 rw-s 00000000 00:0e 9 {path}")).has_identity(), "{path}");
        }
        for path in ["/dev/shm/x", "/memfd:x (deleted)", "/SYSV00000000 (deleted)", "/devel/x", "/dev/zero (deleted)"] {
            assert!(line(&format!("1000-2000 rw-s 00000000 00:0e 9 {path}")).has_identity(), "{path}");
        }
    }
}
