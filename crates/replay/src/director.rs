//! Runs a script: makes the mock processes, lets them begin at one time, and leaves nothing behind.

use std::cell::Cell;
use std::ffi::CString;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::board::{Arena, Board, Results};
use super::calls::{self, interrupted, monotonic_ns};
use super::error::ReplayError;
use super::groups::Groups;
use super::guard::Guard;
use super::layout::Layout;
use super::memory::Memory;
use super::mock::Stage;
use super::script::{Mock, Op, Script};
use super::worker;

/// A replay that should have ended this long ago, in ns, and goes on with nothing is stuck.
const STUCK: u64 = 10_000_000_000;
/// How often the director looks after the mock processes, in ns.
const TICK: u64 = 50_000_000;
/// How long the speed of this host is measured.
const CALIBRATION: Duration = Duration::from_millis(20);

fn system(what: &'static str) -> impl FnOnce(io::Error) -> ReplayError {
    move |source| ReplayError::System { what, source }
}

/// The result of a replay.
#[derive(Debug, Clone, Default)]
pub struct Played {
    /// When it began, CLOCK_MONOTONIC, ns.
    pub begin: u64,
    /// When all threads had done what they should, or when it was stopped.
    pub end: u64,
    /// Processes that could not go into their cgroup, and stayed where they were made.
    pub astray: u32,
    /// The results of each thread of the script.
    pub threads: Vec<Results>,
    /// It was stopped before its end.
    pub is_stopped: bool,
    /// How often what [`Director::counted`] counts happened in the mock processes; `None` where this host cannot count it.
    pub count: Option<u64>,
}

/// The count so far; `None` if there is none yet. Counting ends when this is dropped.
pub type Count = Box<dyn Fn() -> Option<u64>>;

/// Runs scripts.
pub struct Director<'a> {
    /// The script that is run.
    pub script: &'a Script,
    /// The CPUs that may be used; all that this process may use if empty.
    pub cpus: &'a [u32],
    /// The memory that the threads touch, if any.
    pub memory: Option<&'a Memory>,
    /// CPUs of each thread, if they are not those of all.
    pub layout: Option<&'a Layout>,
    /// Units of work in a ms of CPU time of each thread ([`Played::rates`]): threads do an amount of work then, however long it
    /// takes. Empty to let them run for the recorded time.
    pub rates: &'a [u64],
    /// Called when all threads are there that are from the beginning, before they begin.
    pub ready: Option<&'a dyn Fn() -> Result<(), ReplayError>>,
    /// The cgroups of the script on this host, if there are to be any.
    pub groups: Option<&'a Groups>,
    /// The guard that ends the mock processes if this process is killed; without one, it starts one.
    pub guard: Option<&'a Guard>,
    /// What is counted meanwhile: it is called with the first mock process before that makes the others, and begins to count in all
    /// of them. `None` if this host cannot count it.
    pub counted: Option<&'a dyn Fn(u32) -> Option<Count>>,
}

impl std::fmt::Debug for Director<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Director").field("threads", &self.script.threads.len()).finish_non_exhaustive()
    }
}

impl Played {
    /// Units of work in a ms of the recorded CPU time, of each thread: for [`Director::rates`].
    #[must_use]
    pub fn rates(&self, script: &Script) -> Vec<u64> {
        let rate = |(mock, results): (&Mock, &Results)| {
            let run: u64 = script.ops(mock).iter().map(|op| if let Op::Run(ns) = op { *ns } else { 0 }).sum();
            (u128::from(results.work) * 1_000_000 / u128::from(run.max(1))) as u64
        };
        script.threads.iter().zip(&self.threads).map(rate).collect()
    }
}

/// Units of work that this host does in a ms, at best.
fn speed() -> u64 {
    let begin = std::time::Instant::now();
    let mut best = 1;
    let mut units = 1000;
    while begin.elapsed() < CALIBRATION {
        let before = calls::thread_time();
        worker::work(units);
        let took = (calls::thread_time() - before).max(1);
        best = best.max(units * 1_000_000 / took);
        units = best.max(1000) / 4;
    }
    best
}

impl Director<'_> {
    /// Runs the script to its end, or until `stop` says so.
    ///
    /// # Errors
    /// Threads could not be made, or did not do what they should. Nothing is left behind then either.
    pub fn play(&self, stop: &dyn Fn() -> bool) -> Result<Played, ReplayError> {
        let script = self.script;
        let threads = script.threads.len();
        if threads == 0 {
            return Err(ReplayError::Nothing);
        }
        let board = Board::new(threads).map_err(system("share memory with mock threads"))?;
        for number in 0..threads as u32 {
            if let Some(slot) = board.slot(number) {
                slot.sleeps.store(u64::MAX, Ordering::Relaxed);
            }
        }
        let cgroups = self.groups.map_or(Vec::new(), |groups| groups.files().to_vec());
        let schedstat = CString::from(c"/proc/thread-self/schedstat");
        let arena = Arena::new(self.memory.map_or(0, |memory| memory.bytes));
        let arena = arena.map_err(system("map the memory that mock threads touch"))?;
        let mut stage = Box::new(Stage {
            script,
            board: &board,
            starts: Vec::new(),
            cgroups,
            speed: speed(),
            schedstat,
            memory: self.memory.map_or(&[], |memory| &memory.threads),
            arena: &arena,
            cpus: self.layout.map_or(Vec::new(), Layout::of_threads),
            rates: self.rates,
        });
        stage.set();
        let own = if self.guard.is_none() { Some(Guard::start(None)?) } else { None };
        let Some(guard) = self.guard.or(own.as_ref()) else { return Err(ReplayError::Nothing) };
        let family = Family::new(&stage, self.cpus, guard, self.counted)?;
        let played = family.direct(stop, self.ready);
        let count = family.count();
        drop(family);
        let (begin, end, is_stopped) = played?;
        let threads = (0..threads as u32).filter_map(|number| board.results(number)).collect();
        let astray = board.head().astray.load(Ordering::Relaxed);
        Ok(Played { begin, end, astray, threads, is_stopped, count })
    }
}

/// The mock processes, which are ended when it is dropped.
struct Family<'a> {
    stage: &'a Stage<'a>,
    /// The first process, whose group all are in.
    first: i32,
    guard: &'a Guard,
    /// A counter, and its count when the replay began.
    counter: Option<Count>,
    before: Cell<Option<u64>>,
}

impl<'a> Family<'a> {
    fn new(
        stage: &'a Stage<'a>,
        cpus: &[u32],
        guard: &'a Guard,
        counted: Option<&dyn Fn(u32) -> Option<Count>>,
    ) -> Result<Self, ReplayError> {
        let own = std::process::id().cast_signed();
        // What the first mock process does not see the end of becomes a child of ours, and not of the container's first process.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        // SAFETY: the child does only what the head of mock.rs says.
        let first = match unsafe { libc::fork() } {
            -1 => return Err(system("fork")(io::Error::last_os_error())),
            0 => become_first(stage, cpus, guard, own),
            first => first,
        };
        // Both do it, so that it is done when either goes on.
        // SAFETY: sets the process group of a child.
        unsafe { libc::setpgid(first, first) };
        if let Some(word) = guard.first() {
            word.store(u64::from(first.cast_unsigned()), Ordering::Release);
        }
        // Before it makes others, which inherit it. Most virtual machines have no PMU: the replay goes on without.
        let counter = counted.and_then(|counted| counted(first.cast_unsigned()));
        let family = Self { stage, first, guard, counter, before: Cell::new(None) };
        let head = stage.board.head();
        head.alive.store(monotonic_ns(), Ordering::Relaxed);
        head.open.store(1, Ordering::Release);
        calls::wake(&head.open, 1);
        Ok(family)
    }

    /// What was counted since the replay began.
    fn count(&self) -> Option<u64> {
        let (counter, before) = (self.counter.as_ref()?, self.before.get()?);
        Some(counter()?.saturating_sub(before))
    }

    /// Begins the replay and waits for its end; returns both times, and whether it was stopped.
    fn direct(
        &self,
        stop: &dyn Fn() -> bool,
        when_ready: Option<&dyn Fn() -> Result<(), ReplayError>>,
    ) -> Result<(u64, u64, bool), ReplayError> {
        let (head, script) = (self.stage.board.head(), self.stage.script);
        let threads = script.threads.len();
        let initial = script.processes.iter().filter(|process| process.is_initial);
        let initial: usize = initial.map(|process| process.initial.len() + 1).sum();
        let (mut seen, mut since) = (0, monotonic_ns());
        loop {
            let ready = head.ready.load(Ordering::Acquire) as usize;
            if ready >= initial {
                break;
            }
            self.check(threads)?;
            if stop() {
                return Ok((0, 0, true));
            }
            let now = monotonic_ns();
            head.alive.store(now, Ordering::Relaxed);
            if std::mem::replace(&mut seen, ready) != ready {
                since = now;
            }
            if now > since.saturating_add(STUCK) {
                return Err(ReplayError::Died { missing: initial - ready, threads });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(when_ready) = when_ready {
            when_ready()?;
        }
        // A counter that has not run yet is at 0.
        self.before.set(self.counter.as_ref().map(|counter| counter().unwrap_or(0)));
        // Time to be woken for all of them.
        let begin = monotonic_ns() + 2_000_000 + 10_000 * initial as u64;
        head.begin.store(begin, Ordering::Release);
        head.go.store(1, Ordering::Release);
        calls::wake(&head.go, i32::MAX);
        let mut progress = (0, begin);
        loop {
            let done = head.done.load(Ordering::Acquire);
            let now = monotonic_ns();
            head.alive.store(now, Ordering::Relaxed);
            if done as usize >= threads {
                return Ok((begin, now, false));
            }
            self.check(threads)?;
            if stop() {
                return Ok((begin, now, true));
            }
            let slots = (0..threads as u32).filter_map(|number| self.stage.board.slot(number));
            let (done_so_far, sleeps_until) = slots.fold((0u64, 0), |(sum, until), slot| {
                let load = |it: &AtomicU64| it.load(Ordering::Relaxed);
                (sum.wrapping_add(load(&slot.ops)).wrapping_add(load(&slot.run)), until.max(load(&slot.sleeps_until)))
            });
            if done_so_far != progress.0 {
                progress = (done_so_far, now);
            }
            if now > progress.1.max(sleeps_until).saturating_add(STUCK) {
                return Err(ReplayError::Stuck { example: self.waiting(), missing: threads - done as usize, threads });
            }
            calls::wait_for(&head.done, done, TICK);
        }
    }

    /// A thread that has not done all that it had to: how far it is, and what it does.
    fn waiting(&self) -> String {
        let script = self.stage.script;
        let waiting = script.threads.iter().zip(0..).find_map(|(mock, number)| {
            let slot = self.stage.board.slot(number)?;
            let (at, ops) = (slot.ops.load(Ordering::Relaxed), script.ops(mock));
            let op = ops.get(at as usize)?;
            Some(format!("{} ({} in the recording: step {} of {}, {op:?})", mock.comm, mock.tid, at + 1, ops.len()))
        });
        waiting.unwrap_or_default()
    }

    /// Whether the mock processes are all right.
    fn check(&self, threads: usize) -> Result<(), ReplayError> {
        let head = self.stage.board.head();
        let failed = head.failed.load(Ordering::Acquire);
        if failed != 0 {
            let source = io::Error::from_raw_os_error(failed.cast_signed());
            return Err(ReplayError::Make { threads, source });
        }
        if has_ended(self.first) {
            let done = head.done.load(Ordering::Acquire) as usize;
            if done < threads {
                return Err(ReplayError::Died { missing: threads - done, threads });
            }
        }
        Ok(())
    }
}

impl Drop for Family<'_> {
    fn drop(&mut self) {
        let head = self.stage.board.head();
        head.end.store(1, Ordering::Release);
        calls::wake(&head.end, i32::MAX);
        // SAFETY: the process group of a child of ours that has not been waited for.
        unsafe { libc::kill(-self.first, libc::SIGKILL) };
        // The number may be another's once it has been waited for.
        if let Some(word) = self.guard.first() {
            word.store(0, Ordering::Release);
        }
        // It has waited for the others, as they are its children at the end.
        for pid in [self.first, -self.first] {
            // SAFETY: waits for children of ours, without their status.
            while unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) } >= 0 || interrupted() {}
        }
    }
}

/// True if the child has ended; it stays a zombie, so that its number stays its own.
fn has_ended(pid: i32) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the kernel writes the structure; all zero is a valid value of it; si_pid is 0 if the child has not ended.
    unsafe {
        libc::waitid(libc::P_PID, pid as libc::id_t, info.as_mut_ptr(), options) == 0
            && info.assume_init().si_pid() != 0
    }
}

/// The first mock process. Its parent is `parent`.
fn become_first(stage: &Stage<'_>, cpus: &[u32], guard: &Guard, parent: i32) -> ! {
    if let Some(word) = guard.first() {
        // SAFETY: asks for the process's own number.
        word.store(unsafe { libc::getpid() } as u64, Ordering::Release);
    }
    guard.leave_to_parent();
    // SAFETY: system calls with plain numbers, which change only this process.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(1);
        }
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_DFL);
        }
        // Orphans among the mock processes become its children.
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        // The kernel may otherwise end sleeps 50 us late; children have the same.
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
    }
    if !cpus.is_empty() {
        calls::bind(cpus);
    }
    let open = &stage.board.head().open;
    while open.load(Ordering::Acquire) == 0 {
        calls::wait(open, 0);
    }
    // From here on the guard ends it.
    // SAFETY: as above.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
    stage.launch(guard.pid(), parent)
}
