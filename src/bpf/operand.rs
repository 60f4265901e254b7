//! The BPF programs that read memory around the registers of a timer's samples, at work until dropped.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use perf_event_open_sys::ioctls;

use super::probe::{quiet, refusal};
use super::{Clockwork, Refusal, SnapshotCounts, Step, Watched};
use crate::host::kallsyms::Kallsyms;
use crate::sampler::open::Event;
use crate::sampler::operand::Wanted;

/// operand.bpf.c, compiled.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/operand.bpf.o"));

/// Names of what is refused, for people.
const WHAT: &str = "memory around the registers";

/// Programs that take snapshots.
#[derive(Debug)]
pub(crate) struct Snapshots {
    object: Object,
    links: Vec<Link>,
    clockwork: Clockwork,
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
        let mut open = ObjectBuilder::default().open_memory(OBJECT).map_err(refused(Step::Open))?;
        for mut program in open.progs_mut() {
            let wanted = match program.name().to_str().unwrap_or_default() {
                "on_tick" => clockwork == Clockwork::Tick,
                "on_clock" => clockwork == Clockwork::Clock,
                _ => filter == 1,
            };
            program.set_autoload(wanted);
        }
        let mut config: Vec<u8> = handlers.iter().flat_map(|handler: &u64| handler.to_ne_bytes()).collect();
        config.extend([filter, 0].iter().flat_map(|number| number.to_ne_bytes()));
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name == "output" || name == "sampled" {
                map.set_max_entries(cpus).map_err(refused(Step::Open))?;
            } else if name.ends_with(".rodata") {
                map.set_initial_value(&config).map_err(refused(Step::Open))?;
            }
        }
        let object = open.load().map_err(refused(Step::Load))?;
        let mut snapshots = Self { object, links: Vec::new(), clockwork };
        match (filter, watched) {
            (1, Watched::Tasks(tids)) => {
                let tasks = snapshots.map("tasks")?;
                for tid in *tids {
                    tasks.update(&tid.to_ne_bytes(), &[1], MapFlags::ANY).map_err(refused(Step::Attach))?;
                }
            }
            (2, Watched::Cgroup(directory)) => {
                let value = directory.as_raw_fd().to_ne_bytes();
                snapshots
                    .map("cgroup")?
                    .update(&0u32.to_ne_bytes(), &value, MapFlags::ANY)
                    .map_err(refused(Step::Attach))?;
            }
            _ => {}
        }
        let mut links = Vec::new();
        for program in snapshots.object.progs_mut().filter(|program| program.autoload()) {
            if program.name() != "on_clock" {
                links.push(program.attach().map_err(refused(Step::Attach))?);
            }
        }
        snapshots.links = links;
        Ok(snapshots)
    }

    /// When snapshots are taken.
    pub(crate) fn clockwork(&self) -> Clockwork {
        self.clockwork
    }

    fn map(&self, name: &str) -> Result<MapHandle, Refusal> {
        let missing = || Refusal { what: WHAT, step: Step::Open, errno: 0, reason: format!("no map {name}") };
        let map = self.object.maps().find(|map| map.name() == name).ok_or_else(missing)?;
        MapHandle::try_from(&map).map_err(|error| refusal(WHAT, Step::Open, &error))
    }

    /// Writes the snapshots of a CPU as samples of `event`.
    ///
    /// # Errors
    /// What the kernel refused.
    pub(crate) fn write_to(&self, event: &Event) -> Result<(), Refusal> {
        let fd = event.as_fd().as_raw_fd().to_ne_bytes();
        for (map, value) in [("output", fd), ("sampled", 1u32.to_ne_bytes())] {
            self.map(map)?
                .update(&event.cpu.to_ne_bytes(), &value, MapFlags::ANY)
                .map_err(|error| refusal(WHAT, Step::Attach, &error))?;
        }
        Ok(())
    }

    /// Takes a snapshot whenever `event`, of a clock, would sample.
    ///
    /// # Errors
    /// What the kernel refused.
    pub(crate) fn take_at(&self, event: &Event) -> Result<(), Refusal> {
        let program = self.object.progs().find(|program| program.name() == "on_clock");
        let missing = || Refusal { what: WHAT, step: Step::Attach, errno: 0, reason: "no program".to_owned() };
        let program = program.ok_or_else(missing)?;
        // SAFETY: the argument is a file descriptor, not a pointer; event and program are open and ours.
        let result = unsafe { ioctls::SET_BPF(event.as_fd().as_raw_fd(), program.as_fd().as_raw_fd().cast_unsigned()) };
        if result < 0 {
            let error = std::io::Error::last_os_error();
            let errno = error.raw_os_error().unwrap_or(0);
            let reason = format!("PERF_EVENT_IOC_SET_BPF: {error}");
            return Err(Refusal { what: WHAT, step: Step::Attach, errno, reason });
        }
        Ok(())
    }

    /// Where user space says what the next samples are to bring.
    pub(crate) fn wanted(&self) -> Option<WantedMap> {
        self.map("wanted").ok().map(WantedMap)
    }

    /// What was counted so far.
    pub(crate) fn counts(&self) -> SnapshotCounts {
        let Ok(counters) = self.map("counters") else { return SnapshotCounts::default() };
        let sum = |counter: u32| -> u64 {
            let values = counters.lookup_percpu(&counter.to_ne_bytes(), MapFlags::ANY).ok().flatten();
            let number = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_ne_bytes);
            values.iter().flatten().map(number).sum()
        };
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
        // struct place and struct wanted of operand.bpf.c.
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
