//! The mock processes and threads: what runs after a fork.
//!
//! A forked child of a process with several threads may only do what is async-signal-safe (fork(2)). So nothing here takes memory
//! from the heap, panics or prints; what it needs was made before. The one exception is pthread_create(3), which glibc and musl
//! keep usable after a fork.

use std::ffi::{c_int, c_void, CString};
use std::sync::atomic::{AtomicU32, Ordering};

use super::board::{Arena, Board, Slot};
use super::calls::{
    bind, enter, errno, exit_thread, monotonic_ns, set_name, sleep_until, this_cpu, thread_time, usage, wait, wait_for,
    wake,
};
use super::memory::MockMemory;
use super::script::{Mock, MockProcess, Op, Script};
use super::worker::Worker;

/// Bytes of a mock thread's stack.
const STACK: usize = 64 << 10;
/// A mock thread works at most this number of ns before it reads its clock again.
const PIECE: u64 = 200_000;
/// The same for a thread that is to wake another one which does not sleep yet.
const SHORT_PIECE: u64 = 20_000;
/// How long, in ns, a thread waits without sleeping for one that it is to wake.
const PATIENCE: u64 = 30_000;
/// How often a thread that waits for the director looks whether it lives, and after what time without a sign it does not; ns.
const LOOK: u64 = 2_000_000_000;
const DEAD: u64 = 20_000_000_000;
/// How often the first process waits for those that have ended, and at the end of the replay; ns.
const REAP: u64 = 200_000_000;
const REAP_AT_END: u64 = 1_000_000;
/// How often a thread is woken that is about to sleep, before that is made superfluous.
const TRIES: u32 = 64;
/// Pieces that are shorter than this, in ns, are below what the clock costs.
const NEGLIGIBLE: u64 = 200;

/// All that the mock threads need, made before the first fork.
#[derive(Debug)]
pub(super) struct Stage<'a> {
    pub script: &'a Script,
    pub board: &'a Board,
    /// The start data of each thread.
    pub starts: Vec<Start<'a>>,
    /// `cgroup.procs` of each cgroup of the script; empty without cgroups.
    pub cgroups: Vec<CString>,
    /// Units of work in a ms of CPU time of this host.
    pub speed: u64,
    pub schedstat: CString,
    /// The memory of each thread, if they touch any.
    pub memory: &'a [MockMemory],
    pub arena: &'a Arena,
    /// The CPUs of each thread, if they are not those of all.
    pub cpus: Vec<Option<&'a [u32]>>,
    /// Units of work in a ms of CPU time of each thread, if it does an amount of work rather than runs for a time.
    pub rates: &'a [u64],
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Start<'a> {
    stage: *const Stage<'a>,
    number: u32,
}

impl<'a> Stage<'a> {
    /// Makes the starts, which point to the stage: it must not move afterwards.
    pub fn set(self: &mut Box<Self>) {
        let stage: *const Stage<'a> = &raw const **self;
        self.starts = (0..self.script.threads.len() as u32).map(|number| Start { stage, number }).collect();
    }

    /// The first process of all: makes those that are there from the beginning, and ends when all have ended. It goes to the group
    /// of the guard then, so that it is not killed with the others and can wait for each of them: nothing else may.
    ///
    /// If `parent` has ended, it ends the others too: the guard may have been killed with it.
    pub fn launch(&self, guard: c_int, parent: c_int) -> ! {
        for process in self.script.processes.iter().filter(|process| process.is_initial) {
            if !self.fork(process) {
                break;
            }
        }
        // SAFETY: asks for the process's own group, and changes it. A signal to the guard's group is for the guard.
        let mocks = unsafe {
            let mocks = libc::getpgrp();
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_IGN);
            }
            libc::setpgid(0, guard);
            mocks
        };
        let head = self.board.head();
        loop {
            // SAFETY: waits for children of ours, without their status.
            let found = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
            match found {
                0 => {
                    let end = head.end.load(Ordering::Acquire);
                    wait_for(&head.end, end, if end == 0 { REAP } else { REAP_AT_END });
                    // SAFETY: asks for a number; then a signal to the group that this process has made, whose number no other has.
                    unsafe {
                        if libc::getppid() != parent {
                            libc::kill(-mocks, libc::SIGKILL);
                        }
                    }
                }
                -1 if errno() != libc::EINTR => break,
                _ => {}
            }
        }
        // SAFETY: ends the process without handlers of the parent's.
        unsafe { libc::_exit(0) }
    }

    /// False if it could not be made.
    fn fork(&self, process: &MockProcess) -> bool {
        // SAFETY: the child does only what this module's head says.
        match unsafe { libc::fork() } {
            0 => self.process(process),
            -1 => {
                self.fails(errno());
                false
            }
            _ => true,
        }
    }

    fn process(&self, process: &MockProcess) -> ! {
        // SAFETY: sets a disposition; the kernel reaps children by itself then.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        if let Some(path) = process.cgroup.and_then(|cgroup| self.cgroups.get(cgroup as usize)) {
            if !enter(path) {
                self.board.head().astray.fetch_add(1, Ordering::Relaxed);
            }
        }
        for &thread in &process.initial {
            self.thread(thread);
        }
        self.play(process.main);
        exit_thread()
    }

    /// Starts a thread of this process.
    fn thread(&self, number: u32) {
        let Some(start) = self.starts.get(number as usize) else { return };
        let error = start_thread(start);
        if error != 0 {
            self.fails(error);
        }
    }

    fn fails(&self, errno: c_int) {
        let head = self.board.head();
        head.failed.store(errno.max(1) as u32, Ordering::Release);
        wake(&head.done, c_int::MAX);
    }

    /// What a mock thread does.
    fn play(&self, number: u32) {
        let (Some(mock), Some(slot)) = (self.script.threads.get(number as usize), self.board.slot(number)) else {
            return;
        };
        let head = self.board.head();
        // SAFETY: asks for the thread's own id.
        slot.tid.store(unsafe { libc::gettid() } as u32, Ordering::Relaxed);
        if let Some(name) = self.script.names.get(mock.name as usize) {
            set_name(name);
        }
        // The parent's value is inherited. A lower one needs CAP_SYS_NICE; without it the replay goes on with the parent's value.
        // SAFETY: asks for and changes the nice value of the calling thread.
        unsafe {
            if libc::getpriority(libc::PRIO_PROCESS, 0) != c_int::from(mock.nice) {
                libc::setpriority(libc::PRIO_PROCESS, 0, c_int::from(mock.nice));
            }
        }
        if let Some(cpus) = self.cpus.get(number as usize).copied().flatten() {
            bind(cpus);
        }
        if mock.is_initial {
            head.ready.fetch_add(1, Ordering::Release);
            self.wait_for_director(&head.go);
        }
        let ops = self.script.ops(mock);
        if mock.is_active {
            let begins_asleep = matches!(ops.first(), Some(Op::Wait | Op::Sleep { .. }));
            let memory = self.memory.get(number as usize).copied().unwrap_or_default();
            let mut player = Player::new(self, slot, memory, !begins_asleep && mock.is_initial);
            player.rate = self.rates.get(number as usize).copied();
            player.worker.state ^= u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let exits = player.ops(ops);
            player.finish(mock, begins_asleep);
            if exits {
                self.is_done();
                return;
            }
        }
        self.is_done();
        self.wait_for_director(&head.end);
    }

    /// Waits until the director sets the word, as long as it lives: the guard may have been killed with it.
    fn wait_for_director(&self, word: &AtomicU32) {
        let head = self.board.head();
        while word.load(Ordering::Acquire) == 0 {
            wait_for(word, 0, LOOK);
            if monotonic_ns().saturating_sub(head.alive.load(Ordering::Relaxed)) > DEAD {
                // SAFETY: ends the process without handlers of the parent's.
                unsafe { libc::_exit(1) }
            }
        }
    }

    fn is_done(&self) {
        let done = &self.board.head().done;
        if done.fetch_add(1, Ordering::AcqRel) as usize + 1 >= self.script.threads.len() {
            wake(done, c_int::MAX);
        }
    }
}

/// A thread that is to be woken. In the recording it was its `nth` wait that this ended.
#[derive(Debug, Clone, Copy, Default)]
struct Wakeup {
    thread: u32,
    nth: u32,
    is_mutual: bool,
}

impl Wakeup {
    /// True if the thread has come to that wait, or waits for any wakeup: where several threads wake it, another one may be first.
    fn is_due(&self, slot: &Slot) -> bool {
        let arrived = slot.arrived.load(Ordering::SeqCst);
        arrived >= self.nth || arrived > slot.wakeups.load(Ordering::SeqCst)
    }
}

impl Slot {
    /// Wakes the thread, or lets its next wait end at once if it does not wait.
    fn give(&self) {
        let slot = self;
        slot.woken_at.store(monotonic_ns(), Ordering::Relaxed);
        let nth = slot.wakeups.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        if slot.arrived.load(Ordering::SeqCst) >= nth {
            // It has said that it will sleep, and does so in a moment.
            for _ in 0..TRIES {
                let has_left = slot.left.load(Ordering::SeqCst) >= nth;
                if has_left || wake(&slot.word, 1) > 0 {
                    return;
                }
            }
        }
        slot.word.fetch_add(1, Ordering::SeqCst);
        wake(&slot.word, 1);
    }
}

/// A thread on its way through its operations.
struct Player<'a> {
    stage: &'a Stage<'a>,
    slot: &'a Slot,
    /// The beginning of the replay.
    begin: u64,
    /// The thread's CPU time before its first operation, and when it has done what it should so far.
    base: u64,
    target: u64,
    /// Wakeups that it waited for.
    waited: u32,
    cpu: c_int,
    /// Units of work in a ms of CPU time, if it does an amount of work.
    rate: Option<u64>,
    /// Threads that it is to wake and that do not sleep yet.
    pending: [Wakeup; 8],
    pending_count: usize,
    /// Voluntary and involuntary switches, and ns of waits, before its first operation.
    before: [u64; 3],
    worker: Worker<'a>,
}

impl<'a> Player<'a> {
    fn new(stage: &'a Stage<'a>, slot: &'a Slot, memory: MockMemory, waits_for_begin: bool) -> Self {
        let begin = stage.board.head().begin.load(Ordering::Acquire);
        if waits_for_begin {
            sleep_until(begin);
        }
        let base = thread_time();
        let before = usage(&stage.schedstat);
        Self {
            stage,
            slot,
            begin,
            base,
            target: base,
            waited: 0,
            cpu: this_cpu(),
            rate: None,
            pending: [Wakeup::default(); 8],
            pending_count: 0,
            before,
            worker: Worker::new(stage.arena, stage.speed, memory),
        }
    }

    /// True if the thread is to end.
    fn ops(&mut self, ops: &[Op]) -> bool {
        for op in ops {
            match *op {
                Op::Run(ns) => self.run(ns),
                Op::Wake { thread, nth, is_mutual } => self.wake(Wakeup { thread, nth, is_mutual }),
                Op::Wait => {
                    self.wake_pending(true);
                    self.wait();
                }
                Op::Sleep { until, asleep } => {
                    self.wake_pending(true);
                    self.sleep(until, asleep);
                }
                Op::Fork(child) => self.fork(child),
                Op::Name(name) => {
                    if let Some(name) = self.stage.script.names.get(name as usize) {
                        set_name(name);
                    }
                }
                Op::Exit => {
                    self.wake_pending(true);
                    return true;
                }
            }
            self.slot.ops.fetch_add(1, Ordering::Relaxed);
        }
        self.wake_pending(true);
        false
    }

    /// Wakes a thread. In the recording it slept; if it does not sleep yet, the wakeup is delayed while this thread has other work.
    fn wake(&mut self, wakeup: Wakeup) {
        let Some(slot) = self.stage.board.slot(wakeup.thread) else { return };
        // It slept again in between.
        if self.pending.iter().take(self.pending_count).any(|before| before.thread == wakeup.thread) {
            self.wake_pending(true);
        }
        if !wakeup.is_due(slot) {
            if let Some(free) = self.pending.get_mut(self.pending_count) {
                *free = wakeup;
                self.pending_count += 1;
                return;
            }
        }
        slot.give();
    }

    /// Wakes the threads that sleep now; with `all` the others too. Then, if the two wait for each other, the one that came first
    /// sleeps. In the recording one of the two slept as well, but it was the other one.
    fn wake_pending(&mut self, all: bool) {
        let mut left = 0;
        for at in 0..self.pending_count {
            let Some(&wakeup) = self.pending.get(at) else { break };
            let Some(slot) = self.stage.board.slot(wakeup.thread) else { continue };
            if wakeup.is_due(slot) {
                slot.give();
            } else if all {
                self.meet(wakeup, slot);
            } else if let Some(kept) = self.pending.get_mut(left) {
                *kept = wakeup;
                left += 1;
            }
        }
        self.pending_count = left;
    }

    /// Lets the other thread come to its wait: for a moment without sleeping, as it may be about to; else this thread sleeps, and the
    /// other one does not.
    fn meet(&mut self, wakeup: Wakeup, slot: &Slot) {
        // This takes CPU time, which a thread with many wakeups and little else to do cannot make up for.
        let is_over = self.rate.is_none() && thread_time() > self.target.saturating_add(PATIENCE);
        let patience = if is_over && wakeup.is_mutual { 0 } else { PATIENCE };
        let until = monotonic_ns().saturating_add(patience);
        while !wakeup.is_due(slot) && monotonic_ns() < until {
            // SAFETY: lets other threads of this CPU run, such as one that this thread has preempted.
            unsafe { libc::sched_yield() };
        }
        if !wakeup.is_mutual {
            return slot.give();
        }
        slot.watchers.fetch_add(1, Ordering::SeqCst);
        let mut slept = false;
        loop {
            let arrived = slot.arrived.load(Ordering::SeqCst);
            if wakeup.is_due(slot) {
                break;
            }
            slept |= wait(&slot.arrived, arrived);
        }
        slot.watchers.fetch_sub(1, Ordering::SeqCst);
        if slept {
            self.was_woken(slot.arrived_at.load(Ordering::Relaxed));
        }
        slot.give();
    }

    fn was_woken(&mut self, at: u64) {
        self.slot.latency.add(monotonic_ns().saturating_sub(at));
        self.slot.woken.fetch_add(1, Ordering::Relaxed);
        self.moved();
    }

    fn run(&mut self, ns: u64) {
        if let Some(rate) = self.rate {
            return self.run_amount((u128::from(ns) * u128::from(rate) / 1_000_000) as u64);
        }
        self.target = self.target.saturating_add(ns);
        let mut now = thread_time();
        let mut units = 0;
        while now.saturating_add(NEGLIGIBLE) < self.target {
            let left = self.target - now;
            // Not quite all of a long time: the rest is measured again.
            let most = if self.pending_count > 0 { SHORT_PIECE } else { PIECE };
            let piece = if left > 20_000 { (left - left / 16).min(most) } else { left };
            let part = (piece * self.worker.speed / 1_000_000).max(1);
            self.worker.work(part);
            units += part;
            if self.pending_count > 0 {
                self.wake_pending(false);
            }
            let before = std::mem::replace(&mut now, thread_time());
            self.slot.run.store(now.saturating_sub(self.base), Ordering::Relaxed);
            // Memory is faster or slower than it was.
            let took = now.saturating_sub(before);
            if took > 5_000 && self.pending_count == 0 {
                let speed = part.saturating_mul(1_000_000) / took;
                self.worker.speed = (self.worker.speed * 3 + speed.max(1)) / 4;
            }
        }
        self.slot.work.fetch_add(units, Ordering::Relaxed);
        self.slot.run.store(now.saturating_sub(self.base), Ordering::Relaxed);
        self.moved();
    }

    /// Does this number of units of work, however long it takes.
    fn run_amount(&mut self, units: u64) {
        let mut left = units;
        while left > 0 {
            let most = if self.pending_count > 0 { SHORT_PIECE } else { PIECE };
            let part = (most * self.stage.speed / 1_000_000).clamp(1, left);
            self.worker.work(part);
            left -= part;
            if self.pending_count > 0 {
                self.wake_pending(false);
            }
            self.slot.run.store(thread_time().saturating_sub(self.base), Ordering::Relaxed);
        }
        self.slot.work.fetch_add(units, Ordering::Relaxed);
        self.moved();
    }

    fn wait(&mut self) {
        let Slot { wakeups, word, arrived, arrived_at, watchers, .. } = self.slot;
        let is_woken = |waited: u32| wakeups.load(Ordering::SeqCst) > waited;
        let mut seen = word.load(Ordering::SeqCst);
        let mut may_pass = is_woken(self.waited);
        arrived_at.store(monotonic_ns(), Ordering::Relaxed);
        arrived.fetch_add(1, Ordering::SeqCst);
        // Who sleeps until this thread comes here would have woken it, and gives its wakeup now.
        if watchers.load(Ordering::SeqCst) > 0 && wake(arrived, c_int::MAX) > 0 {
            may_pass = true;
        }
        let mut slept = false;
        // Sleeps also if it is woken just now: that wakeup waits for it.
        while !may_pass {
            slept |= wait(word, seen);
            seen = word.load(Ordering::SeqCst);
            may_pass = is_woken(self.waited);
        }
        self.waited = self.waited.wrapping_add(1);
        self.slot.left.store(self.waited, Ordering::SeqCst);
        if slept {
            self.was_woken(self.slot.woken_at.load(Ordering::Relaxed));
        }
    }

    fn sleep(&mut self, until: u64, asleep: u32) {
        let half = u64::from(asleep) * 500;
        let until = self.begin.saturating_add(until).max(monotonic_ns().saturating_add(half));
        self.slot.sleeps_until.store(until, Ordering::Relaxed);
        sleep_until(until);
        self.slot.late.add(monotonic_ns().saturating_sub(until));
        self.moved();
    }

    fn fork(&self, child: u32) {
        let Some(mock) = self.stage.script.threads.get(child as usize) else { return };
        if !mock.is_main {
            self.stage.thread(child);
        } else if let Some(process) = self.stage.script.processes.get(mock.process as usize) {
            self.stage.fork(process);
        }
    }

    fn moved(&mut self) {
        let cpu = this_cpu();
        if std::mem::replace(&mut self.cpu, cpu) != cpu {
            self.slot.migrations.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Tells what the kernel counted.
    fn finish(&self, _: &Mock, begins_asleep: bool) {
        let [sleeps, preemptions, wait] = usage(&self.stage.schedstat);
        let [sleeps_before, preemptions_before, wait_before] = self.before;
        // In the recording it was asleep already.
        let sleeps = sleeps.saturating_sub(sleeps_before).saturating_sub(u64::from(begins_asleep));
        self.slot.run.store(thread_time().saturating_sub(self.base), Ordering::Relaxed);
        self.slot.preemptions.store(preemptions.saturating_sub(preemptions_before), Ordering::Relaxed);
        self.slot.wait.store(wait.saturating_sub(wait_before), Ordering::Relaxed);
        self.slot.sleeps.store(sleeps, Ordering::Release);
    }
}

extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: `start_thread` passes a `Start` of a stage; both are never freed as long as mock processes live: they end
    // by _exit, and are ended before the stage in the director.
    let start = unsafe { &*start.cast::<Start<'_>>() };
    // SAFETY: as above.
    let stage = unsafe { &*start.stage };
    stage.play(start.number);
    std::ptr::null_mut()
}

/// Starts a thread; returns an errno, or 0.
fn start_thread(start: &Start<'_>) -> c_int {
    let mut attr = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = std::mem::MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: the attributes are initialised before they are used and destroyed after it; `begin` takes a `Start`, which lives as
    // long as the process.
    unsafe {
        let error = libc::pthread_attr_init(attr.as_mut_ptr());
        if error != 0 {
            return error;
        }
        libc::pthread_attr_setstacksize(attr.as_mut_ptr(), STACK);
        libc::pthread_attr_setdetachstate(attr.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        let start: *const Start<'_> = start;
        let error = libc::pthread_create(thread.as_mut_ptr(), attr.as_ptr(), begin, start.cast_mut().cast());
        libc::pthread_attr_destroy(attr.as_mut_ptr());
        error
    }
}
