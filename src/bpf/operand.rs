//! The BPF programs that read memory around the registers of a timer's samples, at work until dropped.

use std::fmt;
use std::mem::{offset_of, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};

use super::probe::{quiet, refusal, sum};
use super::{Clockwork, Refusal, SnapshotCounts, Step, Watched};
use crate::host::kallsyms::Kallsyms;
use crate::recover::{Wanted, WANTED_LINES};

/// The skeleton of operand.bpf.c, which libbpf-cargo writes.
#[allow(clippy::all, clippy::pedantic, clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::expect_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/operand.skel.rs"));
}
use skeleton::types::{config, place, wanted};
use skeleton::{OperandSkel, OperandSkelBuilder};

/// Names of what is refused, for people.
const WHAT: &str = "memory around the registers";

/// Programs that take snapshots.
pub(crate) struct Snapshots {
    skeleton: OperandSkel<'static>,
    _links: Vec<Link>,
    clockwork: Clockwork,
}

impl fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshots").field("clockwork", &self.clockwork).finish_non_exhaustive()
    }
}

impl Snapshots {
    /// Loads the programs, and attaches those that need no event.
    ///
    /// # Errors
    /// What this kernel refused.
    pub(crate) fn load(clockwork: Clockwork, watched: &Watched<'_>, cpus: u32, proc: &Path) -> Result<Self, Refusal> {
        let refused = |step| move |error: libbpf_rs::Error| refusal(WHAT, step, &error);
        let failed = |step, reason: String| Refusal { what: WHAT, step, errno: 0, reason };
        let handlers = match clockwork {
            Clockwork::Tick => {
                let symbols = Kallsyms::read(proc).map_err(|error| failed(Step::Open, error.to_string()))?;
                let first = symbols.handlers.first().copied();
                let first = first.ok_or_else(|| failed(Step::Open, "the tick's function is not known".to_owned()))?;
                [first, symbols.handlers.get(1).copied().unwrap_or(first)]
            }
            Clockwork::Clock => [0; 2],
        };
        // On a clock the event that the program is attached to watches what is to be watched.
        let filter: u32 = match (clockwork, watched) {
            (Clockwork::Clock, _) | (_, Watched::Everything) => 0,
            (Clockwork::Tick, Watched::Tasks(_)) => 1,
            (Clockwork::Tick, Watched::Cgroup(_)) => 2,
        };
        quiet();
        // The skeleton borrows it for as long as the programs run. It is a pointer or two, and nobody gives it back.
        let room = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = OperandSkelBuilder::default().open(room).map_err(refused(Step::Open))?;
        open.progs.on_tick.set_autoload(clockwork == Clockwork::Tick);
        open.progs.on_clock.set_autoload(clockwork == Clockwork::Clock);
        open.progs.on_fork.set_autoload(filter == 1);
        open.progs.on_exit.set_autoload(filter == 1);
        if let Some(rodata) = &mut open.maps.rodata_data {
            rodata.config = config { handlers, watched: filter, unused: 0 };
        }
        open.maps.output.set_max_entries(cpus).map_err(refused(Step::Open))?;
        open.maps.sampled.set_max_entries(cpus).map_err(refused(Step::Open))?;
        let mut skeleton = open.load().map_err(refused(Step::Load))?;
        match (filter, watched) {
            (1, Watched::Tasks(tids)) => {
                for tid in *tids {
                    let tasks = &skeleton.maps.tasks;
                    tasks.update(&tid.to_ne_bytes(), &[1], MapFlags::ANY).map_err(refused(Step::Attach))?;
                }
            }
            (2, Watched::Cgroup(directory)) => {
                let value = directory.as_raw_fd().to_ne_bytes();
                let cgroup = &skeleton.maps.cgroup;
                cgroup.update(&0u32.to_ne_bytes(), &value, MapFlags::ANY).map_err(refused(Step::Attach))?;
            }
            _ => {}
        }
        let mut links = Vec::new();
        for program in skeleton.object_mut().progs_mut().filter(|program| program.autoload()) {
            if program.name() != "on_clock" {
                links.push(program.attach().map_err(refused(Step::Attach))?);
            }
        }
        Ok(Self { skeleton, _links: links, clockwork })
    }

    /// When snapshots are taken.
    pub(crate) fn clockwork(&self) -> Clockwork {
        self.clockwork
    }

    /// Writes the snapshots of a CPU as samples of `event`, a perf event there.
    ///
    /// # Errors
    /// What the kernel refused.
    pub(crate) fn write_to(&self, event: BorrowedFd<'_>, cpu: u32) -> Result<(), Refusal> {
        let fd = event.as_raw_fd().to_ne_bytes();
        let maps = &self.skeleton.maps;
        for (map, value) in [(&maps.output, fd), (&maps.sampled, 1u32.to_ne_bytes())] {
            map.update(&cpu.to_ne_bytes(), &value, MapFlags::ANY)
                .map_err(|error| refusal(WHAT, Step::Attach, &error))?;
        }
        Ok(())
    }

    /// The program that takes a snapshot whenever the event of a clock that it is attached to would sample.
    pub(crate) fn on_clock(&self) -> BorrowedFd<'_> {
        self.skeleton.progs.on_clock.as_fd()
    }

    /// Where user space says what the next samples are to bring.
    pub(crate) fn wanted(&self) -> Option<WantedMap> {
        MapHandle::try_from(&self.skeleton.maps.wanted).ok().map(WantedMap)
    }

    /// What was counted so far.
    pub(crate) fn counts(&self) -> SnapshotCounts {
        let sum = |counter| sum(&self.skeleton.maps.counters, counter);
        // The order of the counters in operand.bpf.c.
        SnapshotCounts { hits: sum(0), in_kernel: sum(1), unwatched: sum(2) }
    }
}

/// Which memory is read at which place in the code.
#[derive(Debug)]
pub(crate) struct WantedMap(MapHandle);

impl WantedMap {
    /// Has samples of `pid` at `ip` bring what is wanted. Where the kernel has no room they bring what they brought before.
    pub(crate) fn set(&self, pid: u32, ip: u64, wanted: &Wanted) {
        const { assert!(offset_of!(place, tgid) == 8 && size_of::<place>() == 16) };
        const { assert!(offset_of!(self::wanted, lines) == 8 && size_of::<self::wanted>() == 8 + 8 * WANTED_LINES) };
        let key = [&ip.to_ne_bytes()[..], &pid.to_ne_bytes(), &[0; 4]].concat();
        let lines = wanted.lines.iter().flat_map(|line| line.to_ne_bytes());
        let value: Vec<u8> = wanted.registers.to_ne_bytes().into_iter().chain([0; 4]).chain(lines).collect();
        let _ = self.0.update(&key, &value, MapFlags::ANY);
    }
}

/// Tries what a run of the timer source tries; nothing stays attached.
pub(super) fn trial(proc: &Path) -> (&'static str, Result<(), Refusal>) {
    let tick = Snapshots::load(Clockwork::Tick, &Watched::Everything, 1, proc);
    let tried = tick.or_else(|_| Snapshots::load(Clockwork::Clock, &Watched::Everything, 1, proc));
    (WHAT, tried.map(drop))
}
