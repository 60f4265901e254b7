//! A cgroup for a test.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A cgroup for one program alone, removed when dropped.
pub struct Cgroup {
    directory: PathBuf,
    name: String,
}

impl Cgroup {
    /// Makes one.
    ///
    /// # Errors
    /// Why that is not possible here.
    pub fn new() -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let mut roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].into_iter().map(Path::new);
        let root = roots.find(|root| root.join("cgroup.controllers").exists()).ok_or("no cgroup2 at a usual place")?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("scxprof-sharing-{}-{number}", std::process::id());
        let directory = root.join(&name);
        fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok(Self { directory, name })
    }

    /// Makes one below it, which must be dropped before it.
    ///
    /// # Errors
    /// Why that is not possible here.
    pub fn child(&self, name: &str) -> Result<Self, String> {
        let (directory, name) = (self.directory.join(name), format!("{}/{name}", self.name));
        fs::create_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        Ok(Self { directory, name })
    }

    /// Moves a process into it.
    ///
    /// # Errors
    /// Why that is not possible here.
    pub fn add(&self, pid: u32) -> Result<(), String> {
        let procs = self.directory.join("cgroup.procs");
        fs::write(&procs, pid.to_string()).map_err(|error| format!("{}: {error}", procs.display()))
    }

    /// Starts the command in it.
    pub fn prepare(&self, command: &mut Command) {
        let procs = fs::File::options().write(true).open(self.directory.join("cgroup.procs")).unwrap();
        // 0 is the process that writes.
        // SAFETY: the write is a system call, and nothing else happens between fork and exec.
        unsafe { command.pre_exec(move || std::io::Write::write_all(&mut &procs, b"0")) };
    }

    /// The option that makes it a cell of this name.
    pub fn cell(&self, name: &str) -> String {
        format!("--cell={name}={}$", self.name)
    }

    /// Its path in scxprof.
    pub fn path(&self) -> String {
        format!("/{}", self.name)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The last task may still be on its way out.
        for _ in 0..100 {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
