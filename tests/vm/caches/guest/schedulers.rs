//! The schedulers, and Linux's own with cpusets.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{bail, ensure, Context, Result};

use crate::arms::{Arm, Groups};
use crate::who::{Who, SCHEDULER};
use crate::workloads::wait_for;

const SAID: &str = "/tmp/scheduler.out";
/// The cgroup that the cpusets are in.
const CPUSETS: &str = "/sys/fs/cgroup/proof";

/// A scheduler that runs threads as a configuration says. It ends when this is dropped.
pub enum Scheduler {
    /// A sched_ext scheduler.
    Process(Child),
    /// A cgroup with a cpuset for each group; none without groups.
    Cpusets(Vec<PathBuf>),
}

impl Scheduler {
    /// Starts `mitosis`, `layered` or `cpusets` for the threads of these processes.
    pub fn start(name: &str, arm: &Arm, processes: &[u32], cpus: u32, who: &Who) -> Result<Self> {
        match name {
            "mitosis" => {
                let config = "/tmp/mitosis.json";
                fs::write(config, &arm.mitosis)?;
                Self::process(Command::new("scx_mitosis").args(["--cell-config", config]), name, who)
            }
            "layered" => {
                let config = "/tmp/layered.json";
                fs::write(config, &arm.layered)?;
                Self::process(Command::new("scx_layered").arg(format!("f:{config}")), name, who)
            }
            "cpusets" => cpusets(&arm.groups, processes, cpus).map(Self::Cpusets),
            _ => bail!("no scheduler \"{name}\""),
        }
    }

    /// Fails where the kernel has thrown the scheduler out, or it has ended.
    pub fn check(&mut self) -> Result<()> {
        let Self::Process(child) = self else { return Ok(()) };
        let state = fs::read_to_string("/sys/kernel/sched_ext/state")?;
        if state.trim() != "enabled" || child.try_wait()?.is_some() {
            bail!("the scheduler did not run to the end of the round:\n{}", fs::read_to_string(SAID)?);
        }
        Ok(())
    }

    fn process(command: &mut Command, ops: &str, who: &Who) -> Result<Self> {
        let out = fs::File::create(SAID)?;
        let child = command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).spawn();
        let mut child = child.with_context(|| format!("{command:?}"))?;
        who.put(child.id(), SCHEDULER)?;
        let runs = || {
            let read = |path| fs::read_to_string(path).unwrap_or_default();
            let enabled = read("/sys/kernel/sched_ext/root/ops").starts_with(ops)
                && read("/sys/kernel/sched_ext/state").trim() == "enabled";
            // scx_mitosis schedules before it has applied its configuration.
            enabled && (ops != "mitosis" || read(SAID).contains("Applied initial"))
        };
        wait_for("the scheduler does not start", || {
            if child.try_wait()?.is_some() {
                bail!("the scheduler has ended:\n{}", fs::read_to_string(SAID)?);
            }
            Ok(runs())
        })?;
        Ok(Self::Process(child))
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        match self {
            Self::Process(child) => {
                // SAFETY: it takes numbers; the child is not reaped yet.
                unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
                match child.wait() {
                    Ok(status) if status.success() => {}
                    other => eprintln!("scheduler: {other:?}\n{}", fs::read_to_string(SAID).unwrap_or_default()),
                }
            }
            // They are empty once the workload has ended.
            Self::Cpusets(made) => {
                for path in made.iter().rev() {
                    let removed = wait_for("a cpuset does not go", || Ok(fs::remove_dir(path).is_ok()));
                    if let Err(error) = removed {
                        eprintln!("{}: {error}", path.display());
                    }
                }
            }
        }
    }
}

/// Threaded cgroups with equal parts of the CPUs side by side, as scx_mitosis lays subcells out: the first for all threads of the
/// workload that have no group, then one for each group.
fn cpusets(groups: &Groups, processes: &[u32], cpus: u32) -> Result<Vec<PathBuf>> {
    let root = Path::new(CPUSETS);
    if groups.is_empty() {
        return Ok(Vec::new());
    }
    let parts = u32::try_from(groups.len())? + 1;
    ensure!(parts <= cpus, "{parts} cpusets for {cpus} CPUs");
    let write =
        |path: &Path, text: &str| fs::write(path, text).with_context(|| format!("{text} to {}", path.display()));
    write(&root.with_file_name("cgroup.subtree_control"), "+cpuset")?;
    fs::create_dir(root).context(CPUSETS)?;
    let mut made = vec![root.to_owned()];
    for process in processes {
        write(&root.join("cgroup.procs"), &process.to_string())?;
    }
    for part in 0..parts {
        let path = root.join(format!("group{part}"));
        fs::create_dir(&path)?;
        made.push(path.clone());
        write(&path.join("cgroup.type"), "threaded")?;
    }
    write(&root.join("cgroup.subtree_control"), "+cpuset")?;
    let mut first = 0;
    for part in 0..parts {
        let count = cpus / parts + u32::from(part < cpus % parts);
        write(&root.join(format!("group{part}/cpuset.cpus")), &format!("{first}-{}", first + count - 1))?;
        first += count;
    }
    for process in processes {
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let thread = thread?;
            // One that has just ended has no name.
            let Ok(name) = fs::read_to_string(thread.path().join("comm")) else { continue };
            let of = groups.iter().position(|group| group.iter().any(|prefix| name.starts_with(prefix.as_str())));
            let part = of.map_or(0, |at| at + 1);
            let file = root.join(format!("group{part}/cgroup.threads"));
            write(&file, &thread.file_name().to_string_lossy())?;
        }
    }
    Ok(made)
}
