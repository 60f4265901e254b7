//! The system calls on perf events (open, control, read) and the limits that apply to them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use perf_event_open_sys as perf;
use perf_event_open_sys::bindings as sys;
use thiserror::Error;

use super::attr::{self, EventSpec, Features, Scope};
use super::ring::Ring;
use crate::host::limits::sysctl;
use scxprof_perf::record::{Layout, ReadValue, Words};

/// What an event watches on its CPU.
#[derive(Debug, Clone, Copy)]
pub enum EventScope<'a> {
    /// Every task.
    All,
    /// One task and, with an inheriting attr, its children.
    Task(u32),
    /// The tasks of a cgroup and of those below it; a directory of the perf_event hierarchy.
    Cgroup(&'a OwnedFd),
}

/// An event that could not be opened, mapped or controlled.
#[derive(Debug, Error)]
#[error("{call} for {event} on CPU {cpu}: {source}")]
pub struct EventError {
    /// The call that failed.
    pub call: &'static str,
    /// The event's name in perf.
    pub event: Arc<str>,
    /// The CPU.
    pub cpu: u32,
    /// The errno.
    #[source]
    pub source: io::Error,
}

impl EventError {
    /// The errno, 0 if there was none.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.source.raw_os_error().unwrap_or(0)
    }
}

/// An open perf event, with its group leader if it has one.
#[derive(Debug)]
pub struct Event {
    fd: OwnedFd,
    /// Its name in perf.
    pub name: Arc<str>,
    /// The CPU that it watches.
    pub cpu: u32,
    /// The attr that it was opened with.
    pub attr: sys::perf_event_attr,
    leader: Option<Box<Event>>,
}

/// A sampling event, and its index in the plan.
#[derive(Debug)]
pub(super) struct Sampling {
    pub(super) event: Arc<Event>,
    pub(super) plan: usize,
    /// The count when the period was last adjusted.
    pub(super) last: u64,
}

impl Event {
    /// Opens an event; it stays disabled if the attr says so.
    ///
    /// # Errors
    /// The errno of perf_event_open(2), with the event and the CPU.
    pub fn open(name: &str, attr: &sys::perf_event_attr, watch: EventScope<'_>, cpu: u32) -> Result<Self, EventError> {
        Self::open_in(name, attr, watch, cpu, None)
    }

    /// Opens an event that samples into a ring of `pages` pages, with its leader and its filter.
    ///
    /// # Errors
    /// As [`Event::open`], and the errno of the ioctl that sets a filter.
    pub fn sampling(
        spec: &EventSpec,
        features: Features,
        scope: Scope,
        pages: usize,
        watch: EventScope<'_>,
        cpu: u32,
    ) -> Result<(Self, Layout), EventError> {
        let attr = attr::sampling(spec, features, scope, attr::watermark(pages));
        let leader = attr::leader(spec, features, scope).map(|leader| {
            Self::open_in(&format!("the group leader of {}", spec.name), &leader, watch, cpu, None).map(Box::new)
        });
        let event = Self::open_in(&spec.name, &attr, watch, cpu, leader.transpose()?)?;
        if let Some(filter) = &spec.filter {
            event.filter(filter)?;
        }
        Ok((event, attr::layout(&attr)))
    }

    fn open_in(
        name: &str,
        attr: &sys::perf_event_attr,
        watch: EventScope<'_>,
        cpu: u32,
        leader: Option<Box<Self>>,
    ) -> Result<Self, EventError> {
        let (pid, mut flags) = match watch {
            EventScope::All => (-1, 0),
            EventScope::Task(tid) => (tid as i32, 0),
            EventScope::Cgroup(directory) => (directory.as_raw_fd(), sys::PERF_FLAG_PID_CGROUP),
        };
        flags |= sys::PERF_FLAG_FD_CLOEXEC;
        let group = leader.as_ref().map_or(-1, |leader| leader.fd.as_raw_fd());
        // The kernel writes its own size into an attr that is too large, so pass a copy.
        let mut attr = *attr;
        // SAFETY: attr is a live perf_event_attr with a correct size field; the call has no other pointer.
        let fd = unsafe { perf::perf_event_open(&raw mut attr, pid, cpu as i32, group, u64::from(flags)) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(EventError { call: "perf_event_open", event: name.into(), cpu, source });
        }
        // SAFETY: fd was just returned by the kernel and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, name: name.into(), cpu, attr, leader })
    }

    fn error(&self, call: &'static str, source: io::Error) -> EventError {
        EventError { call, event: Arc::clone(&self.name), cpu: self.cpu, source }
    }

    fn control(&self, call: &'static str, result: i32) -> Result<(), EventError> {
        if result < 0 {
            return Err(self.error(call, io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Maps the ring of this event: `pages` pages of data, a power of two.
    ///
    /// # Errors
    /// The errno of mmap(2): EPERM if the locked-memory budget is too small, EINVAL if `pages` is no power of two.
    pub fn ring(&self, pages: usize) -> Result<Ring, EventError> {
        Ring::of_event(self.fd.as_fd(), pages).map_err(|source| self.error("mmap", source))
    }

    /// Maps the AUX area of this event beside its `ring`: `pages` pages, a power of two.
    ///
    /// # Errors
    /// As [`Event::ring`].
    pub fn aux_area(&self, ring: &mut Ring, pages: usize) -> Result<(), EventError> {
        ring.map_aux(self.fd.as_fd(), pages).map_err(|source| self.error("mmap (AUX area)", source))
    }

    /// Starts counting and sampling.
    ///
    /// # Errors
    /// The errno of the ioctl.
    pub fn enable(&self) -> Result<(), EventError> {
        let (event, flags) = match &self.leader {
            Some(leader) => (&leader.fd, sys::PERF_IOC_FLAG_GROUP),
            None => (&self.fd, 0),
        };
        // SAFETY: an ioctl without a pointer, on a perf event that we own.
        self.control("PERF_EVENT_IOC_ENABLE", unsafe { perf::ioctls::ENABLE(event.as_raw_fd(), flags) })
    }

    /// Stops counting and sampling; the content of the ring remains.
    ///
    /// # Errors
    /// The errno of the ioctl.
    pub fn disable(&self) -> Result<(), EventError> {
        // SAFETY: an ioctl without a pointer, on a perf event that we own.
        self.control("PERF_EVENT_IOC_DISABLE", unsafe { perf::ioctls::DISABLE(self.fd.as_raw_fd(), 0) })
    }

    /// Writes this event's records into the ring of `other`, which must watch the same CPU.
    ///
    /// # Errors
    /// The errno of the ioctl.
    pub fn output_to(&self, other: &Self) -> Result<(), EventError> {
        // SAFETY: the argument is a file descriptor, not a pointer; both are perf events that we own.
        let result = unsafe { perf::ioctls::SET_OUTPUT(self.fd.as_raw_fd(), other.fd.as_raw_fd()) };
        self.control("PERF_EVENT_IOC_SET_OUTPUT", result)
    }

    /// Counts hits of a tracepoint only if `filter` holds.
    ///
    /// # Errors
    /// The errno of the ioctl: EINVAL for a field that the tracepoint does not have.
    fn filter(&self, filter: &str) -> Result<(), EventError> {
        let error = |source| self.error("PERF_EVENT_IOC_SET_FILTER", source);
        let text = std::ffi::CString::new(filter).map_err(|invalid| error(invalid.into()))?;
        // SAFETY: the text is NUL-terminated and outlives the call, which only reads it.
        self.control("PERF_EVENT_IOC_SET_FILTER", unsafe {
            perf::ioctls::SET_FILTER(self.fd.as_raw_fd(), text.as_ptr().cast_mut())
        })
    }

    /// Runs a BPF program of type perf_event whenever this event samples.
    ///
    /// # Errors
    /// The errno of the ioctl.
    pub fn run_at_samples(&self, program: BorrowedFd<'_>) -> Result<(), EventError> {
        // SAFETY: the argument is a file descriptor, not a pointer; event and program stay open during the call.
        let result = unsafe { perf::ioctls::SET_BPF(self.fd.as_raw_fd(), program.as_raw_fd().cast_unsigned()) };
        self.control("PERF_EVENT_IOC_SET_BPF", result)
    }

    /// Sets the period from now on; not for an event with a frequency. Events that a child has already inherited keep
    /// their period.
    ///
    /// # Errors
    /// The errno of the ioctl: EINVAL for a period that the PMU does not support.
    pub fn set_period(&self, period: u64) -> Result<(), EventError> {
        let period = &raw const period;
        // SAFETY: the argument is a pointer to a live u64 (the wrapper takes it as a number), which the call only reads.
        self.control("PERF_EVENT_IOC_PERIOD", unsafe {
            perf::ioctls::PERIOD(self.fd.as_raw_fd(), period.expose_provenance() as u64)
        })
    }

    /// The id in the fields `ID` and `IDENTIFIER` of the event's records.
    ///
    /// # Errors
    /// The errno of the ioctl.
    pub fn id(&self) -> Result<u64, EventError> {
        let mut id = 0;
        // SAFETY: the call writes one u64, which is live.
        self.control("PERF_EVENT_IOC_ID", unsafe { perf::ioctls::ID(self.fd.as_raw_fd(), &raw mut id) })?;
        Ok(id)
    }

    /// The id and the number of lost samples so far, if any.
    #[must_use]
    pub fn lost(&self) -> Option<(u64, u64)> {
        let lost = self.read().ok()?.lost;
        (lost > 0).then_some((self.id().ok()?, lost))
    }

    /// True for an event that is pinned to the PMU and has no counter: reading it returns nothing (perf_event_open(2),
    /// `pinned`).
    #[must_use]
    pub fn is_refused(&self) -> bool {
        let nothing = |error: &EventError| error.source.kind() == io::ErrorKind::UnexpectedEof;
        self.attr.pinned() != 0 && self.read().as_ref().is_err_and(nothing)
    }

    /// The count, the times and the number of lost samples so far.
    ///
    /// # Errors
    /// The errno of read(2).
    pub fn read(&self) -> Result<ReadValue, EventError> {
        let error = |source| self.error("read", source);
        let mut bytes = [0u8; 64];
        let count = rustix::io::read(&self.fd, &mut bytes).map_err(|errno| error(errno.into()))?;
        let words = Words(bytes.get(..count).unwrap_or_default());
        ReadValue::decode(words, self.attr.read_format).ok_or_else(|| error(io::ErrorKind::UnexpectedEof.into()))
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The number of open files that are needed for `events` events on each of `places` CPUs (or pairs of CPU and task),
/// and for the program itself.
#[must_use]
pub fn files_needed(places: usize, events: usize) -> u64 {
    (places * events) as u64 + 64
}

/// Which tasks are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// Every task.
    All,
    /// Our own tasks.
    Own,
    /// Our own tasks, with an event that cannot exclude the kernel.
    OwnWithKernel,
}

/// The rights needed for sampling, with the current `kernel.perf_event_paranoid`.
#[must_use]
pub fn rights(proc: &Path, privilege: Privilege) -> String {
    let level = sysctl(proc, "perf_event_paranoid");
    let is = level.map_or_else(|| "it is not readable".to_owned(), |level| format!("it is {level}"));
    // Debian's and Ubuntu's kernels have levels above 2, the highest one of mainline.
    let above = match level {
        Some(3..) => "; above 2, which mainline kernels do not have, CAP_SYS_ADMIN may be needed",
        _ => "",
    };
    match privilege {
        Privilege::All => {
            let own = match level {
                Some(3..) => "",
                _ => "; your own processes can be sampled, by pid or as a command",
            };
            format!("sampling every task needs root, CAP_PERFMON or kernel.perf_event_paranoid <= 0 ({is}){above}{own}")
        }
        Privilege::OwnWithKernel => format!(
            "this PMU cannot leave out the kernel, so it needs root, CAP_PERFMON or kernel.perf_event_paranoid <= 1 \
             ({is}){above}"
        ),
        Privilege::Own => format!(
            "sampling a process needs to be its user and kernel.perf_event_paranoid <= 2 ({is}), or root or CAP_PERFMON{above}; \
             a container's seccomp profile can also forbid perf_event_open"
        ),
    }
}
