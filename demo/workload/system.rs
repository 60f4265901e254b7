//! System calls.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

/// Bytes of a page, for the touching of pages; larger pages only mean fewer faults.
pub const PAGE: usize = 4096;

/// Memory of a mapping that is never unmapped. Relaxed atomics are plain moves on x86 and arm64.
pub type Words = &'static [AtomicU64];

/// Where the memory of a mapping is from.
#[derive(Clone, Copy)]
pub enum From {
    /// Private and anonymous.
    Private,
    /// Anonymous, shared with the children that are forked.
    Family,
    /// The shared memory of this descriptor.
    File(RawFd),
}

/// Maps `size` bytes for good.
pub fn map(size: usize, from: From) -> io::Result<Words> {
    let (flags, fd) = match from {
        From::Private => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
        From::Family => (libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1),
        From::File(fd) => (libc::MAP_SHARED, fd),
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), size, access, flags, fd, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // One huge page would swallow the faults. Kernels without huge pages refuse the advice, and need none.
    // SAFETY: the range is the mapping just made, and the advice changes nothing of what it holds.
    unsafe { libc::madvise(address, size, libc::MADV_NOHUGEPAGE) };
    // SAFETY: page-aligned, `size` bytes long, never unmapped, and all zero or what another process stored atomically.
    Ok(unsafe { std::slice::from_raw_parts(address.cast(), size / 8) })
}

/// Gives the pages back to the kernel.
pub fn drop_pages(pages: Words) {
    let address = pages.as_ptr().cast_mut().cast();
    // SAFETY: the words are a page-aligned part of a mapping made by `map`, which is never unmapped. After the call they
    // read as 0 where private and as before where shared; both are fine for atomics that hold nothing of meaning.
    unsafe { libc::madvise(address, std::mem::size_of_val(pages), libc::MADV_DONTNEED) };
}

/// Shared memory of `size` bytes, which the children inherit as an open file.
pub fn memfd(size: usize) -> io::Result<OwnedFd> {
    let name = CString::new("workload-app")?;
    // SAFETY: the name is a C string that outlives the call.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), 0) })?;
    // SAFETY: memfd_create gave the descriptor to us alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: ftruncate on a descriptor that is open for writing.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), size as libc::off_t) })?;
    Ok(fd)
}

/// Names the calling thread.
pub fn set_name(name: &str) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: the name is a C string that outlives the call; the kernel copies at most 16 bytes of it.
    check(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) }).map(drop)
}

/// Has the calling process end by `signal` when its parent, which must still be `parent`, does.
pub fn end_with(parent: i32, signal: i32) -> io::Result<()> {
    // SAFETY: prctl with plain numbers; it only sets the signal that this process gets when its parent ends.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) })?;
    if parent_id() == parent {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// Forks a process of one thread; true in the child.
pub fn fork() -> io::Result<bool> {
    // SAFETY: the caller has one thread, so that the child has all that the parent had.
    check(unsafe { libc::fork() }).map(|pid| pid == 0)
}

/// Waits until a child ends.
pub fn wait_for_child() -> io::Result<()> {
    // SAFETY: no status is asked for.
    check(unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) }).map(drop)
}

/// The first mount of type cgroup2 in /proc/self/mountinfo (proc_pid_mountinfo(5)): its fifth field is the mount point.
pub fn cgroup2_mount() -> io::Result<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let mount = table.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        filesystem.starts_with("cgroup2 ").then(|| mount.split(' ').nth(4)).flatten()
    });
    mount.map(PathBuf::from).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no cgroup2 file system is mounted"))
}

pub fn open_for_writing(path: &Path) -> io::Result<File> {
    let opened = File::options().write(true).open(path);
    opened.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

pub fn parent_id() -> i32 {
    // SAFETY: getppid takes nothing and cannot fail.
    unsafe { libc::getppid() }
}

pub fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
