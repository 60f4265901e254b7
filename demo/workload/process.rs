//! The processes and their threads: what they do with their memory.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::scenario::{Group, Kind, Scenario};
use crate::system::{drop_pages, end_with, fork, map, set_name, wait_for_child, From, Words, PAGE};

/// Pages that a thread drops and touches again in each round.
const DROPPED: usize = 4;
/// How long a thread works in a round, unless it is not let.
const BURST: Duration = Duration::from_millis(1);

/// Which process this is: of the scenario's, and for [`Kind::Mapped`] the group, the thread and the buffer's descriptor.
pub struct Role {
    pub process: usize,
    pub mapped: Option<(usize, usize, i32)>,
}

/// How its threads work.
#[derive(Clone, Copy)]
pub struct Pace {
    /// They never sleep.
    pub busy: bool,
    /// The threads of one process that share memory wait for each other, and so wake each other.
    pub wake: bool,
}

/// Runs it until it is killed; says `ready` on stdout when all its threads run.
pub fn run(scenario: &Scenario, role: &Role, pace: Pace) -> io::Result<()> {
    let unknown = || io::Error::other("unknown role");
    let process = scenario.processes.get(role.process).ok_or_else(unknown)?;
    match (process.kind, &role.mapped) {
        (Kind::Threads, None) => {
            set_name(process.name)?;
            let common = if scenario.counter { Common::Counter(map(PAGE, From::Private)?) } else { Common::None };
            run_threads(process.groups, None, common, pace)?;
        }
        (Kind::Mapped, &Some((group, thread, fd))) => {
            let group = process.groups.get(group).ok_or_else(unknown)?;
            let &(name, stores) = group.threads.get(thread).ok_or_else(unknown)?;
            let buffer = map(group.size, From::File(fd))?;
            let mut worker = Worker::new(name, buffer, stores, Common::None)?;
            worker.refault = Some(buffer);
            worker.round();
            say_ready()?;
            worker.run(pace.busy, None);
        }
        (Kind::Forked, None) => {
            set_name(process.name)?;
            return run_family(process.groups, pace);
        }
        _ => return Err(unknown()),
    }
    say_ready()?;
    park()
}

fn say_ready() -> io::Result<()> {
    writeln!(io::stdout(), "ready")
}

fn park() -> ! {
    loop {
        thread::park();
    }
}

/// Starts the threads of the groups, on buffers of their own or all on one, and returns when each has done a round.
fn run_threads(groups: &'static [Group], one: Option<Words>, common: Common, pace: Pace) -> io::Result<()> {
    let count: usize = groups.iter().map(|group| group.threads.len()).sum();
    let ready = Arc::new(Barrier::new(count + 1));
    for group in groups {
        // Mapped here, first touched by the threads: the main thread shares with none of them.
        let buffer = one.map_or_else(|| map(group.size, From::Private), Ok)?;
        let together = (pace.wake && group.threads.len() > 1).then(|| Arc::new(Barrier::new(group.threads.len())));
        for &(name, stores) in group.threads {
            let together = together.clone();
            let ready = Arc::clone(&ready);
            thread::Builder::new().spawn(move || {
                let worker = Worker::new(name, buffer, stores, common);
                let mut worker = worker.unwrap_or_else(|error| {
                    // Without one of its threads the picture is wrong: the supervisor ends the rest.
                    eprintln!("workload: {name}: {error}");
                    std::process::exit(1)
                });
                worker.round();
                ready.wait();
                worker.run(pace.busy, together.as_deref());
            })?;
        }
    }
    ready.wait();
    Ok(())
}

/// A parent that fills its memory, the children that it forks, and the threads of both.
fn run_family(groups: &'static [Group], pace: Pace) -> io::Result<()> {
    let Some((own, children)) = groups.split_at_checked(1) else { return Ok(()) };
    let size = own.iter().map(|group| group.size).sum();
    let (written, read) = (map(size, From::Private)?, map(size, From::Private)?);
    for word in written.iter().chain(read).step_by(PAGE / 64) {
        word.store(1, Ordering::Relaxed);
    }
    let running = map(PAGE, From::Family)?.first().ok_or_else(|| io::Error::other("no page"))?;
    let parent = std::process::id().cast_signed();
    for child in 0..children.len() {
        if fork()? {
            let started = end_with(parent, libc::SIGKILL).and_then(|()| {
                let own = children.get(child..=child).unwrap_or_default();
                run_threads(own, Some(written), Common::Inherited(read), pace)
            });
            if let Err(error) = started {
                eprintln!("workload: child {child}: {error}");
                std::process::exit(1);
            }
            running.fetch_add(1, Ordering::Relaxed);
            park();
        }
    }
    run_threads(own, Some(written), Common::Inherited(read), pace)?;
    let begin = Instant::now();
    while running.load(Ordering::Relaxed) < children.len() as u64 {
        if begin.elapsed() > Duration::from_secs(30) {
            return Err(io::Error::other("a child did not get ready"));
        }
        thread::sleep(Duration::from_millis(1));
    }
    say_ready()?;
    wait_for_child()?;
    Err(io::Error::other("a child ended early"))
}

/// Memory that all threads of a process use beside their buffers.
#[derive(Clone, Copy)]
enum Common {
    None,
    /// The first word is added to by every fourth access.
    Counter(Words),
    /// Read by every fourth access.
    Inherited(Words),
}

/// One thread: its memory, and its own stream of pseudo-random numbers.
struct Worker {
    buffer: Words,
    /// Of 16 accesses this many are stores.
    stores: u64,
    common: Common,
    /// Private to the thread: dropped and touched again in each round.
    scratch: Words,
    /// Shared with another process: some of its pages are dropped and touched again, which keeps what they hold.
    refault: Option<Words>,
    state: u64,
}

impl Worker {
    fn new(name: &str, buffer: Words, stores: u64, common: Common) -> io::Result<Self> {
        set_name(name)?;
        let scratch = map(DROPPED * PAGE, From::Private)?;
        // Any seed will do that is not 0 and not the same for two names (FNV-1a).
        let state = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Ok(Self { buffer, stores, common, scratch, refault: None, state: state | 1 })
    }

    /// With `together` the threads of a group wait for each other after each round: the last one wakes the others.
    fn run(&mut self, busy: bool, together: Option<&Barrier>) -> ! {
        loop {
            self.round();
            if let Some(together) = together {
                together.wait();
            }
            if !busy {
                // 6 to 13 ms: no fixed beat, so that no timer runs in step with it.
                thread::sleep(Duration::from_micros(6_000 + self.state % 7_000));
            }
        }
    }

    /// Some page faults, then a burst of accesses.
    fn round(&mut self) {
        drop_and_touch(self.scratch);
        if let Some(shared) = self.refault {
            let pages = shared.len() * 8 / PAGE;
            let first = (self.state >> 32) as usize % (pages - DROPPED + 1);
            let words = PAGE / 8;
            drop_and_touch(shared.get(first * words..(first + DROPPED) * words).unwrap_or_default());
        }
        let begin = Instant::now();
        while begin.elapsed() < BURST {
            self.state = accesses(self.buffer, self.stores, self.common, self.state);
            unit_of_work();
        }
    }
}

/// An instruction that does nothing, and that the cache model of `make proof` counts (tests/vm/caches).
fn unit_of_work() {
    // SAFETY: a nop.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(".byte 0x0f, 0x1f, 0x80", ".long 0x5cac0005", options(nostack, preserves_flags));
    }
}

/// Some thousand loads and stores all over the buffer, half of them in its first eighth; returns the next state.
#[inline(never)]
fn accesses(buffer: &[AtomicU64], stores: u64, common: Common, mut state: u64) -> u64 {
    let mask = buffer.len() - 1;
    let mut sum = 0_u64;
    for _ in 0..4096 {
        // Marsaglia's xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if state & 6 == 0 {
            match common {
                Common::None => {}
                Common::Counter(words) => {
                    if let Some(word) = words.first() {
                        word.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Common::Inherited(words) => {
                    if let Some(word) = words.get((state >> 8) as usize & (words.len() - 1)) {
                        sum = sum.wrapping_add(word.load(Ordering::Relaxed));
                    }
                }
            }
        }
        let hot = if state & 1 == 0 { mask >> 3 } else { mask };
        let Some(word) = buffer.get((state >> 8) as usize & hot) else { break };
        if (state >> 60) < stores {
            word.store(sum, Ordering::Relaxed);
        } else {
            sum = sum.wrapping_add(word.load(Ordering::Relaxed));
        }
    }
    std::hint::black_box(sum);
    state
}

/// Drops the pages and stores one word into each: one minor fault a page.
fn drop_and_touch(pages: Words) {
    drop_pages(pages);
    for page in pages.chunks(PAGE / 8) {
        if let Some(word) = page.first() {
            word.store(1, Ordering::Relaxed);
        }
    }
}
