//! The load of the soak: processes, threads, cgroups, mappings and files that come and go. It takes less than a CPU.
//!
//! It is this test binary again, which runs the test `load` in the directory that its environment names until its stdin ends.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use memmap2::MmapMut;

const DIRECTORY: &str = "SCXPROF_SOAK_LOAD";
/// If it is set, CPU 1 goes offline and comes back: for virtual machines, as everything on the host notices.
pub const CPUS: &str = "SOAK_CPUS";
const PAGE: usize = 4096;
/// Mappings and processes that a part of the load holds at a time.
const HELD: usize = 8;

/// A part of the load: does the work of one round.
type Part = Box<dyn FnMut(u64) + Send>;

static STOP: AtomicBool = AtomicBool::new(false);

/// The load as a child; it ends when dropped.
pub struct Load(Child);

impl Load {
    pub fn start(directory: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["soak::load::load", "--exact", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    /// Ends it.
    pub fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success(), "the load failed");
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn load() {
    let Some(directory) = std::env::var_os(DIRECTORY).map(PathBuf::from) else { return };
    let cgroups = cgroups();
    let cpus = std::env::var_os(CPUS).is_some_and(|value| !value.is_empty());
    let mut parts: Vec<(&str, Part, u64)> = vec![
        ("processes", Box::new(process), 6),
        ("threads", Box::new(thread), 3),
        ("mappings", mappings(&directory), 5),
        ("programs", programs(&directory), 60),
        ("cgroups", in_cgroups(cgroups.clone()), 40),
        ("shared", shared(), 2),
    ];
    if cpus {
        parts.push(("cpus", Box::new(|_| toggle_cpu()), 1500));
    }
    let threads: Vec<_> = parts
        .into_iter()
        .map(|(name, mut part, pause)| {
            let run = move || {
                for round in 0.. {
                    if STOP.load(Ordering::Relaxed) {
                        break;
                    }
                    part(round);
                    std::thread::sleep(Duration::from_millis(pause));
                }
            };
            std::thread::Builder::new().name(name.to_owned()).spawn(run).unwrap()
        })
        .collect();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    STOP.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    if let Some(cgroups) = cgroups {
        let _ = fs::remove_dir(cgroups);
    }
}

/// A process that executes one program or two.
fn process(round: u64) {
    let command: &[&str] = if round.is_multiple_of(8) { &["sh", "-c", "exec true"] } else { &["true"] };
    assert!(Command::new(command[0]).args(&command[1..]).status().unwrap().success());
}

/// A thread with a name of its own.
fn thread(round: u64) {
    let touch =
        || std::hint::black_box(MmapMut::map_anon(8 * PAGE).unwrap()).iter_mut().step_by(PAGE).for_each(|it| *it = 1);
    let name = format!("job-{}", round % 5000);
    std::thread::Builder::new().name(name).spawn(touch).unwrap().join().unwrap();
}

/// Files that are deleted while they are mapped.
fn mappings(directory: &Path) -> Part {
    let directory = directory.to_owned();
    let mut held = std::collections::VecDeque::new();
    Box::new(move |round| {
        let path = directory.join(format!("mapped-{round}"));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(16 * PAGE as u64).unwrap();
        // SAFETY: no other process knows the file.
        let mut map = unsafe { MmapMut::map_mut(&file) }.unwrap();
        fs::remove_file(path).unwrap();
        map.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        held.push_back(map);
        if held.len() > HELD {
            held.pop_front();
        }
    })
}

/// Programs that are deleted while they run.
fn programs(directory: &Path) -> Part {
    let directory = directory.to_owned();
    let sleep = ["/bin/sleep", "/usr/bin/sleep"].into_iter().find(|path| Path::new(path).exists()).unwrap();
    let mut held = std::collections::VecDeque::new();
    Box::new(move |round| {
        let path = directory.join(format!("program-{round}"));
        // Not fs::copy here: a file that is open for writing in a child of another thread cannot be executed.
        assert!(Command::new("cp").arg(sleep).arg(&path).status().unwrap().success());
        // The name by which a program of many names knows what to do.
        held.push_back(Command::new(&path).arg0("sleep").arg("0.2").spawn().unwrap());
        fs::remove_file(path).unwrap();
        if held.len() > HELD || STOP.load(Ordering::Relaxed) {
            for mut child in held.drain(..) {
                assert!(child.wait().unwrap().success());
            }
        }
    })
}

/// A directory for cgroups; `None` if none can be made here.
fn cgroups() -> Option<PathBuf> {
    let mut roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].into_iter().map(Path::new);
    let root = roots.find(|root| root.join("cgroup.controllers").exists())?;
    let directory = root.join(format!("scxprof-soak-{}", std::process::id()));
    fs::create_dir(&directory).ok().map(|()| directory)
}

/// A process in a cgroup that is made for it and removed after it.
fn in_cgroups(cgroups: Option<PathBuf>) -> Part {
    Box::new(move |round| {
        let Some(cgroups) = &cgroups else { return };
        let directory = cgroups.join(format!("service-{round}"));
        fs::create_dir(&directory).unwrap();
        let procs = File::options().write(true).open(directory.join("cgroup.procs")).unwrap();
        let mut command = Command::new("true");
        // SAFETY: the write is a system call, and nothing else happens between fork and exec. 0 is the process that writes.
        unsafe { command.pre_exec(move || (&procs).write_all(b"0")) };
        assert!(command.status().unwrap().success());
        // The last task may still be on its way out.
        for _ in 0..100 {
            if fs::remove_dir(&directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{} is not empty", directory.display());
    })
}

/// Two threads that live as long as the load, and share memory.
fn shared() -> Part {
    let words: Arc<Vec<AtomicU64>> = Arc::new((0..1 << 16).map(|_| AtomicU64::new(0)).collect());
    let touch = |words: &[AtomicU64]| words.iter().step_by(8).for_each(|word| _ = word.fetch_add(1, Ordering::Relaxed));
    let others = Arc::clone(&words);
    let other = move || {
        while !STOP.load(Ordering::Relaxed) {
            touch(&others);
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    std::thread::Builder::new().name("shared-too".to_owned()).spawn(other).unwrap();
    Box::new(move |_| touch(&words))
}

/// CPU 1 goes offline, and is back at the end.
fn toggle_cpu() {
    let online = Path::new("/sys/devices/system/cpu/cpu1/online");
    fs::write(online, "0").unwrap();
    std::thread::sleep(Duration::from_millis(500));
    fs::write(online, "1").unwrap();
}
