//! Priorities of our own threads: what reads samples must not wait behind the threads that it watches.
//!
//! A thread is either raised ([`raise`]: nice -20, for as long as a guard lives) or real-time ([`set_realtime`]: SCHED_FIFO, which is
//! above the classes of sched_ext and of the fair scheduler whatever their cgroup; a sched_ext scheduler may ignore nice). Both set the
//! flag reset-on-fork, so that no process that we start inherits them; threads of ours that should be raised too are started with
//! [`spawn`].

use std::cell::Cell;
use std::io;
use std::marker::PhantomData;
use std::thread::{Builder, JoinHandle};

use rustix::time::{clock_gettime, ClockId};

/// The nice value of raised threads, the lowest there is.
pub const NICE: i32 = -20;

thread_local! {
    static IS_RAISED: Cell<bool> = const { Cell::new(false) };
}

/// Restores the nice value of the thread on which it was made, if it changed that.
#[derive(Debug)]
pub struct Raised {
    before: Option<libc::sched_attr>,
    /// It must be dropped by the thread that made it.
    not_send: PhantomData<*const ()>,
}

impl Raised {
    fn new(before: Option<libc::sched_attr>) -> Self {
        Self { before, not_send: PhantomData }
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            IS_RAISED.set(false);
            // A higher nice value is never refused. The flag reset-on-fork stays where we have no right to clear it, and means
            // nothing then.
            if set(before).is_err() {
                let _ = set(&libc::sched_attr { sched_flags: RESET_ON_FORK, ..*before });
            }
        }
    }
}

/// `SCHED_FLAG_RESET_ON_FORK` (linux/sched.h).
const RESET_ON_FORK: u64 = libc::SCHED_FLAG_RESET_ON_FORK as u64;

/// Gives the calling thread the nice value -20 until the guard is dropped. A thread that is raised already, that is real-time or
/// that has this nice value is left as it is.
///
/// # Errors
/// The errno of sched_setattr(2): EPERM without CAP_SYS_NICE and without a sufficient `RLIMIT_NICE`.
pub fn raise() -> io::Result<Raised> {
    let before = get()?;
    let is_fair = !matches!(before.sched_policy as i32, libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE);
    if IS_RAISED.get() || !is_fair || before.sched_nice <= NICE {
        return Ok(Raised::new(None));
    }
    set(&libc::sched_attr { sched_nice: NICE, sched_flags: before.sched_flags | RESET_ON_FORK, ..before })?;
    IS_RAISED.set(true);
    Ok(Raised::new(Some(before)))
}

/// Raises the calling thread where that is wanted and allowed; whether it is, the capture says.
pub(crate) fn raised(wanted: bool) -> Option<Raised> {
    wanted.then(raise)?.ok()
}

/// Gives the calling thread the policy SCHED_FIFO at `priority`, 1 to 99.
///
/// # Errors
/// The errno of sched_setattr(2): EPERM without CAP_SYS_NICE and without a sufficient `RLIMIT_RTPRIO`, or in a cgroup without
/// real-time bandwidth (CONFIG_RT_GROUP_SCHED).
pub fn set_realtime(priority: u8) -> io::Result<()> {
    let attr = libc::sched_attr {
        sched_policy: libc::SCHED_FIFO as u32,
        sched_flags: RESET_ON_FORK,
        sched_nice: 0,
        sched_priority: priority.into(),
        ..get()?
    };
    set(&attr)
}

/// Takes SCHED_FIFO from the calling thread, and gives it the nice value -20 where that is allowed.
///
/// # Errors
/// The errno of sched_setattr(2); lowering one's own priority always succeeds.
pub fn end_realtime() -> io::Result<()> {
    let before = get()?;
    let fair = libc::sched_attr { sched_policy: libc::SCHED_OTHER as u32, sched_priority: 0, ..before };
    set(&libc::sched_attr { sched_nice: NICE, ..fair }).or_else(|_| set(&libc::sched_attr { sched_nice: 0, ..fair }))
}

/// Whether a thread that another one starts is to be raised.
#[derive(Debug, Clone, Copy)]
pub struct Like {
    is_raised: bool,
}

/// What the calling thread is.
#[must_use]
pub fn like_caller() -> Like {
    Like { is_raised: IS_RAISED.get() }
}

impl Like {
    /// Raises the calling thread where that was; it goes on without where that is refused.
    #[must_use]
    pub fn apply(self) -> Option<Raised> {
        raised(self.is_raised)
    }
}

/// Starts a thread that is raised where its caller is.
///
/// # Errors
/// The errno of clone(2).
pub fn spawn<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    let like = like_caller();
    Builder::new().name(name.to_owned()).spawn(move || {
        let _raised = like.apply();
        work()
    })
}

/// CPU time of the calling thread so far, in ns.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
}

fn get() -> io::Result<libc::sched_attr> {
    let mut attr = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the call writes at most the given size into attr, which is live and of that size.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, attr.size, 0) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(attr)
}

fn set(attr: &libc::sched_attr) -> io::Result<()> {
    // SAFETY: the call reads attr, which is live and says its own size.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attr, 0) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policy and nice of the thread that asks.
    fn now() -> (i32, i32) {
        let attr = get().unwrap();
        (attr.sched_policy as i32, attr.sched_nice)
    }

    /// Runs on a thread of its own, so that no other test sees its priorities.
    fn alone(work: impl FnOnce() + Send + 'static) {
        std::thread::spawn(work).join().unwrap();
    }

    #[test]
    fn a_raised_thread_is_as_before_afterwards_and_its_children_never_are_raised() {
        alone(|| {
            let before = now();
            let raised = match raise() {
                Ok(raised) => raised,
                Err(error) => return println!("SKIP: a raised thread: sched_setattr: {error}"),
            };
            assert_eq!(now(), (before.0, NICE));
            drop(raise().unwrap());
            assert_eq!(now().1, NICE, "the guard within another one changes nothing");
            let nice = || {
                let stat = std::process::Command::new("cat").arg("/proc/self/stat").output().unwrap().stdout;
                let stat = String::from_utf8(stat).unwrap();
                // The 19th field, the 17th after the name (proc_pid_stat(5)).
                stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().parse::<i32>().unwrap()
            };
            assert_eq!(nice(), 0, "a process does not inherit it");
            assert_eq!(std::thread::spawn(now).join().unwrap().1, 0, "nor does a thread of anyone else");
            assert_eq!(spawn("ours", now).unwrap().join().unwrap().1, NICE);
            drop(raised);
            assert_eq!(now(), before);
            assert_eq!(spawn("ours", now).unwrap().join().unwrap(), before);
        });
    }

    #[test]
    fn real_time_ends_as_a_raised_thread() {
        alone(|| {
            if let Err(error) = set_realtime(1) {
                return println!("SKIP: real time: sched_setattr: {error}");
            }
            assert_eq!(now().0, libc::SCHED_FIFO);
            assert_eq!(get().unwrap().sched_priority, 1);
            drop(raise().unwrap());
            assert_eq!(now().0, libc::SCHED_FIFO, "a real-time thread needs no nice value");
            assert_eq!(std::thread::spawn(now).join().unwrap(), (libc::SCHED_OTHER, 0));
            end_realtime().unwrap();
            assert_eq!(now(), (libc::SCHED_OTHER, NICE));
        });
    }
}
