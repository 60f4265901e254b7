//! Who runs where: the BPF program that tells the emulator's plugin, and the groups of the processes.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use anyhow::{ensure, Context, Result};
use libbpf_rs::{Link, MapCore, MapFlags, Object, ObjectBuilder};

use crate::plugin;

/// The groups with a meaning of their own; the workload's processes have those from [`FIRST`] on.
pub const TOOL: u32 = 2;
pub const SCHEDULER: u32 = 3;
pub const FIRST: u32 = 4;
/// One page of 8-byte entries.
const GROUPS: u32 = 512;

/// What the threads of the workload did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Moves {
    pub switches: u64,
    pub migrations: u64,
    /// Migrations to a CPU of another last-level cache.
    pub crossings: u64,
}

impl Moves {
    pub fn since(self, before: Self) -> Self {
        Self {
            switches: self.switches.saturating_sub(before.switches),
            migrations: self.migrations.saturating_sub(before.migrations),
            crossings: self.crossings.saturating_sub(before.crossings),
        }
    }
}

/// Tells the plugin who runs for as long as it lives.
pub struct Who {
    object: Object,
    _links: Vec<Link>,
}

impl Who {
    pub fn new(path: &str, cpus_of_a_cache: u32) -> Result<Self> {
        let mut open = ObjectBuilder::default().open_file(path).with_context(|| path.to_owned())?;
        for mut map in open.maps_mut() {
            if map.name().to_string_lossy().ends_with(".rodata") {
                if let Some(value) = map.initial_value_mut().and_then(|value| value.first_chunk_mut()) {
                    *value = cpus_of_a_cache.to_le_bytes();
                }
            }
        }
        let object = open.load()?;
        let links = object.progs_mut().map(|program| program.attach()).collect::<Result<_, _>>()?;
        let who = Self { object, _links: links };
        who.show_table()?;
        who.put(std::process::id(), TOOL)?;
        Ok(who)
    }

    fn map(&self, name: &str) -> Result<libbpf_rs::Map<'_>> {
        self.object.maps().find(|map| map.name() == name).with_context(|| format!("no map {name}"))
    }

    fn show_table(&self) -> Result<()> {
        let map = self.map("who")?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                GROUPS as usize * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        ensure!(page != libc::MAP_FAILED, "the map of who runs: {}", io::Error::last_os_error());
        plugin::table(NonNull::new(page.cast()).context("a page at address 0")?);
        Ok(())
    }

    /// This process, and those that it forks from now on, are of this group.
    pub fn put(&self, process: u32, group: u32) -> Result<()> {
        ensure!(group < GROUPS, "more processes than groups");
        Ok(self.map("groups")?.update(&process.to_ne_bytes(), &group.to_ne_bytes(), MapFlags::ANY)?)
    }

    /// What all threads of the workload did until now.
    pub fn moves(&self) -> Result<Moves> {
        let map = self.map("moved")?;
        let mut sum = Moves::default();
        for group in FIRST..GROUPS {
            let values = map.lookup_percpu(&group.to_ne_bytes(), MapFlags::ANY)?.context("no element")?;
            for value in values {
                let mut numbers = value.chunks_exact(8).map(|bytes| bytes.try_into().map_or(0, u64::from_ne_bytes));
                sum.switches += numbers.next().unwrap_or(0);
                sum.migrations += numbers.next().unwrap_or(0);
                sum.crossings += numbers.next().unwrap_or(0);
            }
        }
        let lost = self.map("lost")?.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)?.context("no element")?;
        ensure!(lost.iter().all(|byte| *byte == 0), "more processes than the map of groups holds");
        Ok(sum)
    }
}

/// The processes of a session, which is what a command and all that it starts are in, by id.
pub fn processes_of(session: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(process) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // SAFETY: it takes a number and returns one.
        let of = unsafe { libc::getsid(process) };
        if u32::try_from(of) == Ok(session) {
            found.push(process.unsigned_abs());
        }
    }
    found.sort_unstable();
    Ok(found)
}
