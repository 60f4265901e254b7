//! Loads and attaches the programs of one probe; without luck, says why.

use std::cell::RefCell;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Once;

use libbpf_rs::libbpf_sys::{bpf_obj_get_info_by_fd, bpf_prog_info};
use libbpf_rs::{set_print, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel};
use rustix::process::{Pid, PidfdFlags};

use super::map::{pid_namespace, HintMap};
use super::{Refusal, Step};
use crate::hint::{Counts, HintProbe};

/// hints.bpf.c, compiled.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hints.bpf.o"));

/// The skeleton of hints.bpf.c, which libbpf-cargo writes; of it, the types. Its `load` panics where a map is the one that was asked
/// for (`bpf_map__reuse_fd`): libbpf gives that map its own name, and the skeleton knows it by the one in the object.
#[allow(clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/hints.skel.rs"));
}
pub(super) use skeleton::types::event;
use skeleton::types::{config, rodata};

/// The iterator's name for people.
pub(super) const ITERATOR: &str = "iter/task";

/// `PID_FS_MAGIC` in linux/magic.h: what a pidfd is of since Linux 6.9.
const PID_FS_MAGIC: i64 = 0x5049_4446;

/// Programs at work, until dropped.
#[derive(Debug)]
pub(super) struct Loaded {
    pub object: Object,
    pub links: Vec<Link>,
}

/// What the kernel is asked with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    pub pid_namespace: u32,
    pub ring_bytes: u32,
}

/// Loads and attaches one probe for a map.
pub(super) fn probe(probe: HintProbe, map: Option<&HintMap>, setting: Setting) -> Result<Loaded, Refusal> {
    if probe == HintProbe::Syscall && !cfg!(target_arch = "x86_64") {
        let reason = "for x86-64 only".to_owned();
        return Err(Refusal { what: probe.name(), step: Step::Built, errno: 0, reason });
    }
    load(Some(probe), map, setting)
}

/// Loads and attaches the iterator of tasks for a map.
pub(super) fn iterator(map: Option<&HintMap>, setting: Setting) -> Result<Loaded, Refusal> {
    load(None, map, setting)
}

/// Tries each way to see hints, and the iterator, on a map of our own, and the memory around registers; nothing stays
/// attached.
///
/// `proc` is procfs, for our pid namespace.
#[must_use]
pub fn trials(proc: &Path) -> Vec<(&'static str, Result<(), Refusal>)> {
    let setting = Setting { pid_namespace: pid_namespace(proc).unwrap_or(0), ring_bytes: 1 << 16 };
    let probes = HintProbe::ALL.into_iter().map(|it| (it.name(), probe(it, None, setting).map(drop)));
    probes.chain([(ITERATOR, iterator(None, setting).map(drop)), super::operand::trial(proc)]).collect()
}

thread_local! {
    /// The first warning of libbpf since it was cleared.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps libbpf's messages from stderr, and the first one of what follows for [`refusal`].
pub(super) fn quiet() {
    static ONCE: Once = Once::new();
    SAID.with_borrow_mut(String::clear);
    ONCE.call_once(|| {
        set_print(Some((PrintLevel::Warn, |_, text| {
            SAID.with_borrow_mut(|said| {
                if said.is_empty() {
                    text.lines().next().unwrap_or_default().trim_start_matches("libbpf: ").clone_into(said);
                }
            });
        })));
    });
}

/// What the kernel said to a step, in libbpf's words if it has better ones. Right after the call that failed.
pub(super) fn refusal(what: &'static str, step: Step, error: &libbpf_rs::Error) -> Refusal {
    // libbpf leaves the errno behind.
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let reason = match SAID.take() {
        // libbpf's own guess, where the right to load programs is missing.
        said if said.contains("RLIMIT_MEMLOCK") => format!("{error} (it takes root, or CAP_BPF and CAP_PERFMON)"),
        said if said.is_empty() => error.to_string(),
        said => said,
    };
    Refusal { what, step, errno, reason }
}

/// The programs of hints.bpf.c that a probe takes, or the iterator.
fn programs(probe: Option<HintProbe>) -> &'static [&'static str] {
    match probe {
        Some(HintProbe::LocalStorageUpdate) => &["set_storage", "delete_storage", "task_exec", "task_exit"],
        Some(HintProbe::PidTaskStorageUpdateElem) => &["set_element", "delete_element", "task_exec", "task_exit"],
        Some(HintProbe::Syscall) => &["enter", "leave", "task_exec", "task_exit"],
        None => &["snapshot"],
    }
}

/// What the programs are told before they are loaded.
fn constants(map: Option<&HintMap>, setting: Setting) -> Vec<u8> {
    let mut bytes = vec![0; size_of::<rodata>()];
    for (field, value) in [
        (offset_of!(config, map_id), map.map_or(0, |map| map.id)),
        (offset_of!(config, pid_namespace), setting.pid_namespace),
        (offset_of!(config, pidfs), u32::from(has_pidfs())),
        (offset_of!(config, ring_size), setting.ring_bytes),
    ] {
        let at = offset_of!(rodata, config) + field;
        if let Some(to) = bytes.get_mut(at..at + size_of::<u32>()) {
            to.copy_from_slice(&value.to_ne_bytes());
        }
    }
    bytes
}

/// Loads and attaches the programs of a probe, or the iterator.
fn load(probe: Option<HintProbe>, map: Option<&HintMap>, setting: Setting) -> Result<Loaded, Refusal> {
    quiet();
    let what = probe.map_or(ITERATOR, HintProbe::name);
    let refused = |step| move |error: libbpf_rs::Error| refusal(what, step, &error);
    let mut open = ObjectBuilder::default().open_memory(OBJECT).map_err(refused(Step::Open))?;
    for mut program in open.progs_mut() {
        let wanted = program.name().to_str().is_some_and(|name| programs(probe).contains(&name));
        program.set_autoload(wanted);
    }
    for mut it in open.maps_mut() {
        let name = it.name().to_string_lossy().into_owned();
        match (name.as_str(), map) {
            ("ring", _) => it.set_max_entries(setting.ring_bytes).map_err(refused(Step::Open))?,
            ("hints", Some(map)) => it.reuse_fd(map.handle.as_fd()).map_err(refused(Step::Open))?,
            (name, _) if name.ends_with(".rodata") => {
                it.set_initial_value(&constants(map, setting)).map_err(refused(Step::Open))?;
            }
            _ => {}
        }
    }
    let object = open.load().map_err(refused(Step::Load))?;
    let mut links = Vec::new();
    for program in object.progs_mut().filter(|program| program.autoload()) {
        links.push(program.attach().map_err(refused(Step::Attach))?);
    }
    Ok(Loaded { object, links })
}

/// Opens a process, or with `PIDFD_THREAD` a thread, as a file.
pub(super) fn pidfd_open(pid: u32, flags: PidfdFlags) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::pidfd_open(pid, flags)?)
}

/// True if a pidfd is a file of pidfs, which has its pid in the inode.
fn has_pidfs() -> bool {
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    own.and_then(rustix::fs::fstatfs).is_ok_and(|fs| fs.f_type == PID_FS_MAGIC)
}

impl Loaded {
    pub(super) fn map(&self, name: &str) -> io::Result<MapHandle> {
        let mut maps = self.object.maps();
        let map = maps.find(|map| map.name() == name).ok_or(io::ErrorKind::NotFound)?;
        MapHandle::try_from(&map).map_err(|_| io::Error::last_os_error())
    }

    /// What the programs could not do.
    pub(super) fn counts(&self) -> Counts {
        let Ok(counters) = self.map("counters") else { return Counts::default() };
        let sum = |counter| sum(&counters, counter);
        // The order of the counters in hints.bpf.c.
        Counts {
            dropped: sum(0),
            unreadable: sum(1),
            outside_pid_namespace: sum(2),
            missed: sum(3) + self.recursion_misses(),
            ..Counts::default()
        }
    }

    /// Runs that the kernel left out because the program was running on that CPU already.
    fn recursion_misses(&self) -> u64 {
        let misses = |fd: std::os::fd::BorrowedFd<'_>| {
            let mut info = bpf_prog_info::default();
            let mut size = size_of::<bpf_prog_info>() as u32;
            // SAFETY: the descriptor is open, and the kernel writes at most `size` bytes to `info`; with no buffers named in
            // it, it follows no pointer.
            let result = unsafe { bpf_obj_get_info_by_fd(fd.as_raw_fd(), (&raw mut info).cast(), &raw mut size) };
            if result == 0 {
                info.recursion_misses
            } else {
                0
            }
        };
        self.object.progs().filter(libbpf_rs::Program::autoload).map(|program| misses(program.as_fd())).sum()
    }
}

/// A counter of all CPUs.
pub(super) fn sum(counters: &impl MapCore, counter: u32) -> u64 {
    let values = counters.lookup_percpu(&counter.to_ne_bytes(), MapFlags::ANY).ok().flatten();
    let number = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_ne_bytes);
    values.iter().flatten().map(number).sum()
}
