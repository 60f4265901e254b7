//! The system calls of mock processes, all of them async-signal-safe.

use std::ffi::{c_int, CStr};
use std::sync::atomic::AtomicU32;

pub(super) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// True if the last call was interrupted.
pub(super) fn interrupted() -> bool {
    std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
}

/// Ends the calling thread; the last one ends its process.
pub(super) fn exit_thread() -> ! {
    // SAFETY: the thread's stack is not used any more, and no thread joins it.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    // SAFETY: never reached.
    unsafe { libc::_exit(0) }
}

/// Puts the calling process into the cgroup of this `cgroup.procs`.
pub(super) fn enter(path: &CStr) -> bool {
    // SAFETY: the path is a C string, and the descriptor is closed again.
    unsafe {
        let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file < 0 {
            return false;
        }
        let written = libc::write(file, c"0".as_ptr().cast(), 1);
        libc::close(file);
        written == 1
    }
}

pub(super) fn set_name(name: &[u8; 16]) {
    // SAFETY: the kernel reads up to a NUL, which the last of the 16 bytes is.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Waits until it is woken: true. False if `word` was not `value`.
pub(super) fn wait(word: &AtomicU32, value: u32) -> bool {
    let no_limit = std::ptr::null::<libc::timespec>();
    // SAFETY: futex(2) on a word that lives in a shared mapping; without a time limit.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, no_limit) == 0 }
}

/// The same, for at most this number of ns.
pub(super) fn wait_for(word: &AtomicU32, value: u32, ns: u64) {
    let limit = timespec(ns);
    // SAFETY: futex(2) on a word that lives in a shared mapping; the kernel reads the time limit, which is relative.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const limit) };
}

/// Wakes up to `count` threads that wait on `word`; returns how many.
pub(super) fn wake(word: &AtomicU32, count: c_int) -> i64 {
    // SAFETY: futex(2) on a word that lives in a shared mapping.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) }
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as libc::time_t, tv_nsec: (ns % 1_000_000_000) as libc::c_long }
}

fn clock(clock: libc::clockid_t) -> u64 {
    let mut now = timespec(0);
    // SAFETY: the kernel writes the time.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CLOCK_MONOTONIC in ns, the clock of all times of a replay.
pub(super) fn monotonic_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// ns of CPU time of the calling thread.
pub(super) fn thread_time() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

pub(super) fn sleep_until(time: u64) {
    let time = timespec(time);
    // SAFETY: the kernel reads the time. A signal ends the sleep early; there are none that do not end the process.
    unsafe {
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const time, std::ptr::null_mut());
    }
}

pub(super) fn this_cpu() -> c_int {
    // SAFETY: asks for the CPU that the thread runs on.
    unsafe { libc::sched_getcpu() }
}

/// Voluntary switches, involuntary ones, and ns runnable without a CPU, of the calling thread.
pub(super) fn usage(schedstat: &CStr) -> [u64; 3] {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes the structure; all zero is a valid value of it.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    [usage.ru_nvcsw as u64, usage.ru_nivcsw as u64, run_delay(schedstat).unwrap_or(0)]
}

/// The second number of `/proc/thread-self/schedstat` (Documentation/scheduler/sched-stats.rst).
fn run_delay(schedstat: &CStr) -> Option<u64> {
    let mut text = [0u8; 96];
    // SAFETY: the path is a C string, the kernel writes at most the bytes of the buffer, and the descriptor is closed again.
    let len = unsafe {
        let file = libc::open(schedstat.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return None;
        }
        let len = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        len
    };
    let text = text.get(..usize::try_from(len).ok()?)?;
    let digits = text.split(|&byte| byte == b' ').nth(1)?;
    digits.iter().try_fold(0u64, |sum, &digit| {
        let digit = u64::from(digit.checked_sub(b'0').filter(|&digit| digit < 10)?);
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Lets the calling thread, and those that it makes, run on these CPUs only.
pub(super) fn bind(cpus: &[u32]) {
    let mut set = [0u64; 256];
    for &cpu in cpus {
        if let Some(word) = set.get_mut(cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    // SAFETY: the kernel reads the bytes of the set.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(&set), set.as_ptr()) };
}
