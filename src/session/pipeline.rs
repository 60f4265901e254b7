//! The way of all samples: an [`Origin`] fills an [`Order`], a [`Namer`] names what is complete, and the sinks take it.
//!
//! These are three stages, which pass pieces to each other. They take turns in the caller's thread, because a session of this host
//! must read the host again from time to time; or each has a thread, so that a recording is read by three CPUs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, ScopedJoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{bounded, Receiver, RecvTimeoutError, Sender};

use super::inlet::{Inlet, Next, Unfinished};
use super::namer::Namer;
use super::order::Order;
use super::origin::{Ending, Filled, Origin};
use super::piece::{Piece, READY};
use super::stop::{StopPoll, TICK};
use crate::host::phases::{Begun, Phase, Phases};
use crate::outcome::Outcome;
use crate::resolve::{AddressSpaces, Cgroups, Modules, Stacks};
use crate::sample::{Comm, Sample, SideBand, ThreadIndex};
use crate::sampler::loss::Loss;
use crate::sinks::{Meanwhile, Sink};
use scxprof_base::tables::{Tables, TablesHandle};

/// How often the sizes of the tables are measured.
const MEASURE: Duration = Duration::from_secs(1);
/// Pieces that may wait between two stages. Samples are sorted and released in bursts, so with few the stages wait for each other.
const WAITING: usize = 16;

/// What finds names: that of samples, and that of cgroups, which the sinks ask for.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) namer: Namer,
    pub(super) cgroups: Cgroups,
}

/// The pipeline between an origin and the sinks.
#[derive(Debug)]
pub(super) struct Pipeline<S> {
    pub(super) order: Order<S>,
    pub(super) names: Names,
    /// Reads what existed before the first record, if that takes long; then `names` is empty, and this reader returns the names to use.
    pub(super) snapshot: Option<JoinHandle<Names>>,
    /// Shows the sizes of the tables.
    pub(super) tables: TablesHandle,
}

/// How the stages run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stages {
    /// One after the other, in the caller's thread.
    InTurn,
    /// Each in a thread, if there are several CPUs.
    InThreads,
}

impl<S> Pipeline<S> {
    /// With names of recorded cgroups.
    pub(super) fn new(order: Order<S>, namer: Namer) -> Self {
        let names = Names { namer, cgroups: Cgroups::recorded() };
        Self { order, names, snapshot: None, tables: TablesHandle::default() }
    }
}

/// Passes the samples of `origin` to `sink` until their end, or until they must end.
pub(super) fn run<O: Origin + Send>(
    mut pipeline: Pipeline<O::Sample>,
    mut origin: O,
    stages: Stages,
    sink: &mut dyn Sink,
    ends: &mut StopPoll<'_>,
) -> Outcome {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    if stages == Stages::InTurn || cpus == 1 {
        return run_in_turn(pipeline, origin, sink, ends);
    }
    pipeline.names.namer.keep(sink);
    match in_threads(&mut pipeline, &mut origin, sink, ends) {
        Some(passed) => outcome(pipeline, origin, sink, passed),
        // Without room for threads, nothing was read yet.
        None => run_in_turn(pipeline, origin, sink, ends),
    }
}

/// The same, one stage after the other.
pub(super) fn run_in_turn<O: Origin>(
    mut pipeline: Pipeline<O::Sample>,
    mut origin: O,
    sink: &mut dyn Sink,
    ends: &mut StopPoll<'_>,
) -> Outcome {
    pipeline.names.namer.keep(sink);
    let passed = in_turn(&mut pipeline, &mut origin, sink, ends);
    outcome(pipeline, origin, sink, passed)
}

/// Adds the sizes of all tables.
fn measure<O: Origin>(names: &Names, order: &Order<O::Sample>, origin: &O, sink: &dyn Sink, tables: &mut Tables) {
    order.measure(tables);
    names.namer.measure(&names.cgroups, tables);
    origin.measure(tables);
    sink.measure(tables);
}

/// What the sinks may ask for while samples arrive.
struct Now<'a, O: Origin> {
    namer: &'a Namer,
    origin: &'a O,
    order: &'a Order<O::Sample>,
}

impl<O: Origin> Meanwhile for Now<'_, O> {
    fn stacks(&self) -> Option<(&Stacks, &Modules)> {
        self.namer.stacks()
    }

    fn modules(&self) -> Modules {
        self.namer.modules()
    }

    fn address_spaces(&self) -> AddressSpaces {
        self.namer.address_spaces()
    }

    fn thread_names(&self) -> Vec<(ThreadIndex, Comm)> {
        self.namer.threads()
    }

    fn process_names(&self) -> Vec<(u32, Comm)> {
        self.origin.processes().unwrap_or_else(|| self.namer.processes())
    }

    fn complete_until(&self) -> u64 {
        self.order.released()
    }

    fn notes(&self) -> Vec<String> {
        self.origin.notes()
    }

    fn loss(&self) -> Loss {
        let mut loss = self.origin.loss_so_far();
        loss.add(self.namer.loss());
        (loss.late, loss.late_side_band) = (self.order.late, self.order.late_side_band);
        loss.sched.late = self.order.late_sched;
        loss
    }
}

/// What the sinks and the caller learn at the end.
fn outcome<O: Origin>(pipeline: Pipeline<O::Sample>, origin: O, sink: &mut dyn Sink, passed: Passed) -> Outcome {
    let Pipeline { order, mut names, tables, .. } = pipeline;
    sink.ended(&names.namer.threads());
    let processes = origin.processes().unwrap_or_else(|| names.namer.processes());
    sink.processes(&processes, &mut names.cgroups);
    tables.measure(|tables| measure(&names, &order, &origin, sink, tables));
    let Names { mut namer, cgroups } = names;
    let mut outcome = namer.outcome(origin.loss(), &cgroups);
    (outcome.loss.late, outcome.loss.late_side_band) = (order.late, order.late_side_band);
    outcome.loss.sched.late = order.late_sched;
    outcome.accesses = passed.accesses;
    outcome.phases = passed.phases;
    outcome.duration = Duration::from_nanos(order.last.saturating_sub(order.first));
    outcome.tables = tables.now();
    origin.end(&mut outcome, Ending { order, namer, cgroups });
    outcome
}

/// What came to the sinks, and what the stages took.
struct Passed {
    accesses: u64,
    phases: Phases,
}

/// The stages as phases.
const READ: &str = "read and sort";
const NAME: &str = "name";
const TAKE: &str = "give to the sinks";

/// The last two stages, for the first one in the same thread.
struct Rest<'s> {
    names: Names,
    sink: &'s mut dyn Sink,
    accesses: u64,
    /// Pieces so far.
    pieces: u64,
    /// The time that each took, by that of the first pieces and of one in [`TIMED`] of the others: a piece takes some us, and the clock
    /// a few per cent of that. Reading the thread's CPU time would take as long as the piece.
    named_for: Duration,
    took_for: Duration,
}

/// Of the later pieces, the time of one in so many is measured.
const TIMED: u32 = 16;
/// The first pieces, which take longer.
const FIRST: u64 = 64;

impl Next for Rest<'_> {
    fn take(&mut self, piece: &mut Piece) {
        let stands_for = match self.pieces {
            ..FIRST => 1,
            pieces if pieces.is_multiple_of(TIMED.into()) => TIMED,
            _ => 0,
        };
        self.pieces += 1;
        let begin = (stands_for > 0).then(Instant::now);
        self.names.namer.name(piece);
        let named = begin.map(|_| Instant::now());
        self.accesses += pass_on(piece, self.sink, &mut self.names.cgroups);
        if let (Some(begin), Some(named)) = (begin, named) {
            self.named_for += (named - begin) * stands_for;
            self.took_for += named.elapsed() * stands_for;
        }
    }
}

impl Rest<'_> {
    /// What the three stages took, which began in this thread when it `began`.
    fn phases(&self, began: Begun) -> Phases {
        let Phase { wall, cpu, .. } = began.end(READ);
        let rest = self.named_for + self.took_for;
        // They are estimates, and another thread may have had the CPU for a part of it.
        let within = |all: Duration| if rest > all { all.as_secs_f64() / rest.as_secs_f64() } else { 1.0 };
        let of_wall = [self.named_for, self.took_for].map(|it| it.mul_f64(within(wall)));
        let of_cpu = [self.named_for, self.took_for].map(|it| it.mul_f64(within(cpu)));
        let mut phases = Phases::default();
        let left = |all: Duration, [named, took]: [Duration; 2]| all.saturating_sub(named + took);
        phases.push(Phase { name: READ, wall: left(wall, of_wall), cpu: left(cpu, of_cpu) });
        for ((name, wall), cpu) in [NAME, TAKE].into_iter().zip(of_wall).zip(of_cpu) {
            phases.push(Phase { name, wall, cpu });
        }
        phases
    }
}

/// Runs the stages one after the other, piece by piece.
fn in_turn<O: Origin>(
    pipeline: &mut Pipeline<O::Sample>,
    origin: &mut O,
    sink: &mut dyn Sink,
    ends: &mut StopPoll<'_>,
) -> Passed {
    let began = Begun::now();
    let Pipeline { order, names, snapshot, tables } = pipeline;
    let empty = Names { namer: Namer::of_lines(false), cgroups: Cgroups::recorded() };
    let (named_for, took_for) = (Duration::ZERO, Duration::ZERO);
    let mut rest = Rest { names: std::mem::replace(names, empty), sink, accesses: 0, pieces: 0, named_for, took_for };
    let mut unfinished = Unfinished::new(READY);
    let mut measured = Instant::now();
    while !ends.met(rest.names.namer.records()) {
        if snapshot.as_ref().is_some_and(|snapshot| !snapshot.is_finished()) {
            if order.is_full() {
                // Reading procfs takes long. The workers count what they cannot pass on meanwhile.
                thread::sleep(TICK / 10);
            } else if origin.fill(&mut Inlet::closed(order)) == Filled::End {
                break;
            }
            continue;
        }
        if let Some(snapshot) = snapshot.take() {
            rest.seeded(snapshot);
        }
        let filled = origin.fill(&mut Inlet::new(order, &mut unfinished, &mut rest));
        if order.is_due() {
            Inlet::new(order, &mut unfinished, &mut rest).release_all();
            let Rest { names: Names { namer, cgroups }, sink, .. } = &mut rest;
            sink.meanwhile(&Now { namer, origin, order }, cgroups);
        }
        origin.look_again(&mut rest.names.namer, &mut rest.names.cgroups, order);
        if measured.elapsed() >= MEASURE {
            measured = Instant::now();
            tables.measure(|tables| measure(&rest.names, order, origin, rest.sink, tables));
        }
        if filled == Filled::End {
            break;
        }
    }
    let mut filled = origin.stop(order);
    if let Some(snapshot) = snapshot.take() {
        rest.seeded(snapshot);
    }
    while filled == Filled::More {
        filled = origin.fill(&mut Inlet::new(order, &mut unfinished, &mut rest));
        if order.is_due() {
            Inlet::new(order, &mut unfinished, &mut rest).release_all();
        }
    }
    order.end();
    Inlet::new(order, &mut unfinished, &mut rest).release_all();
    let passed = Passed { accesses: rest.accesses, phases: rest.phases(began) };
    *names = rest.names;
    passed
}

impl Rest<'_> {
    /// Takes the names of what existed, which it waits for.
    fn seeded(&mut self, snapshot: JoinHandle<Names>) {
        match snapshot.join() {
            Ok(names) => self.names = names,
            Err(_) => self.names.namer.failed("the thread that reads procfs died: no sample could be named".to_owned()),
        }
        self.names.namer.keep(self.sink);
    }
}

/// The second stage as the first one sees it, in another thread.
struct Second<'a> {
    to_names: Sender<Piece>,
    empty: Receiver<Piece>,
    stop: &'a AtomicBool,
}

impl Next for Second<'_> {
    fn take(&mut self, piece: &mut Piece) {
        let empty = self.empty.try_recv().unwrap_or_default();
        if self.to_names.send(std::mem::replace(piece, empty)).is_err() {
            // The second stage died; its panic is passed on.
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Runs each stage in a thread, the last one in the caller's; `None` if one cannot be started.
fn in_threads<O: Origin + Send>(
    pipeline: &mut Pipeline<O::Sample>,
    origin: &mut O,
    sink: &mut dyn Sink,
    ends: &mut StopPoll<'_>,
) -> Option<Passed> {
    let Pipeline { order, names: Names { namer, cgroups }, .. } = pipeline;
    let stop = &AtomicBool::new(false);
    let (to_names, from_reader) = bounded::<Piece>(WAITING);
    let (to_sink, from_names) = bounded::<Piece>(WAITING);
    // Pieces that are filled again.
    let (emptied, empty) = bounded::<Piece>(2 * WAITING);
    // What is moved into the closure ends with it, even by a panic of a sink: then no thread waits for another.
    thread::scope(move |scope| {
        let second = thread::Builder::new().name("names".to_owned());
        let second = second.spawn_scoped(scope, move || {
            let began = Begun::now();
            for mut piece in from_reader {
                namer.name(&mut piece);
                if to_sink.send(piece).is_err() {
                    break;
                }
            }
            began.end(NAME)
        });
        let second = second.ok()?;
        let first = thread::Builder::new().name("reader".to_owned());
        let first = first.spawn_scoped(scope, move || {
            let began = Begun::now();
            let mut unfinished = Unfinished::for_limit(order.limit());
            let mut second = Second { to_names, empty, stop };
            let mut filled = Filled::More;
            while filled == Filled::More && !stop.load(Ordering::Relaxed) {
                let mut inlet = Inlet::new(order, &mut unfinished, &mut second);
                filled = origin.fill(&mut inlet);
                inlet.release_due();
            }
            order.end();
            Inlet::new(order, &mut unfinished, &mut second).release_all();
            began.end(READ)
        });
        let first = first.ok()?;
        let began = Begun::now();
        let (mut records, mut accesses) = (0, 0);
        loop {
            match from_names.recv_timeout(TICK) {
                Ok(mut piece) => {
                    accesses += pass_on(&mut piece, sink, cgroups);
                    records = piece.records;
                    let _ = emptied.try_send(piece);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if !stop.load(Ordering::Relaxed) && ends.met(records) {
                stop.store(true, Ordering::Relaxed);
            }
        }
        let mut phases = Phases::default();
        let last = began.end(TAKE);
        let second = result(second);
        for phase in [result(first), second, last] {
            phases.push(phase);
        }
        Some(Passed { accesses, phases })
    })
}

/// The result of a thread; a panic there is one here.
fn result<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The last stage: passes the content of a piece to the sink, and leaves it empty; returns the number of accesses.
fn pass_on(piece: &mut Piece, sink: &mut dyn Sink, cgroups: &mut Cgroups) -> u64 {
    if !piece.events.is_empty() {
        sink.events(&piece.events, cgroups);
        piece.events.clear();
    }
    let samples = piece.samples.samples();
    let give = |samples: Option<&[Sample]>, sink: &mut dyn Sink, cgroups: &mut Cgroups| {
        for some in samples.unwrap_or_default().chunks(READY) {
            sink.samples(some, cgroups);
        }
    };
    let mut given = 0;
    let (mut sched, mut sched_given) = (piece.sched_until.drain(..).peekable(), 0);
    let mut sides = piece.side_band.drain(..).peekable();
    loop {
        // What is before a cgroup's path needs none of it.
        let (next_side, next_sched) = (sides.peek().map(|(at, _)| *at), sched.peek().map(|(at, _)| *at));
        let Some(before) = next_side.into_iter().chain(next_sched).min() else { break };
        give(samples.get(given..before), sink, cgroups);
        given = before;
        while let Some((_, what)) = sides.next_if(|(at, _)| *at <= before) {
            if let SideBand::Cgroup { id, path } = what {
                cgroups.record(id, &path);
            }
        }
        while let Some((_, until)) = sched.next_if(|(at, _)| *at <= before) {
            if let Some(events) = piece.sched.get(sched_given..until) {
                sink.sched(events, cgroups);
            }
            sched_given = until;
        }
    }
    give(samples.get(given..), sink, cgroups);
    let accesses = samples.len() as u64;
    drop((sides, sched));
    piece.samples.truncate(0);
    piece.sched.clear();
    accesses
}
