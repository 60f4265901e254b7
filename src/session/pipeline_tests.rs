use std::time::Instant;

use super::inlet::Inlet;
use super::namer::{Accesses, Namer};
use super::order::Order;
use super::origin::{Ending, Filled, Origin};
use super::pipeline::{self, Pipeline, Stages};
use super::stop::{Progress, StopPoll};
use crate::outcome::Outcome;
use crate::resolve::Cgroups;
use crate::sample::batch::{Batch, PendingSample};
use crate::sample::sched::{SchedEvent, SchedWhat};
use crate::sample::{Comm, RawSample, Sample, SideBand, ThreadIndex, TimedSideBand};
use crate::sampler::loss::Loss;
use crate::sinks::Sink;

/// Batches of 100 ns with a sample each ns, in which a thread takes another name and another cgroup appears.
struct Made {
    round: u64,
    rounds: u64,
    /// Samples that come after the session was to end.
    left: u64,
    ended: bool,
}

fn made(rounds: u64) -> Made {
    Made { round: 0, rounds, left: 0, ended: false }
}

impl Origin for Made {
    type Sample = PendingSample;

    fn fill(&mut self, inlet: &mut Inlet<'_, PendingSample>) -> Filled {
        let begin = self.round * 100;
        let mut batch = Batch { complete_until: begin + 50, ..Batch::default() };
        if self.round == 0 {
            let comm = Comm::from("a");
            batch.side_band.push(TimedSideBand { time: 0, what: SideBand::Comm { pid: 1, tid: 1, exec: true, comm } });
        }
        // In the middle of what is not complete yet; each name is that of the round.
        let comm = Comm::from(format!("n{}", self.round).as_str());
        let time = begin + 70;
        batch.side_band.push(TimedSideBand { time, what: SideBand::Comm { pid: 1, tid: 1, exec: false, comm } });
        let path = format!("/c{}", self.round).into_bytes().into();
        batch.side_band.push(TimedSideBand { time, what: SideBand::Cgroup { id: 10 + self.round, path } });
        for at in (0..100).rev() {
            let cgroup = 10 + self.round - u64::from(at < 70 && self.round > 0);
            let raw = RawSample { time: begin + at, pid: 1, tid: 1, addr: 0x1000 + at, cgroup, ..RawSample::default() };
            batch.samples.push(PendingSample { raw, context: None });
        }
        let what = SchedWhat::Hint { tid: 1, hint: Some(self.round) };
        batch.sched.push(SchedEvent { time: begin + 80, cpu: 0, pid: 1, tid: 1, cgroup: 0, what });
        inlet.push(batch);
        self.round += 1;
        if self.ended {
            self.left = self.left.saturating_sub(1);
        }
        if self.round == self.rounds || self.ended && self.left == 0 {
            Filled::End
        } else {
            Filled::More
        }
    }

    fn stop(&mut self, _: &mut Order) -> Filled {
        self.ended = true;
        if self.left > 0 {
            Filled::More
        } else {
            Filled::End
        }
    }

    fn loss(&self) -> Loss {
        Loss { samples: self.round * 100, ..Loss::default() }
    }

    fn end(self, outcome: &mut Outcome, _: Ending<PendingSample>) {
        outcome.notes.push(format!("{} rounds", self.round));
    }
}

/// Time, record, name and path of the cgroup of a sample.
type Named = (u64, u64, Option<Comm>, Option<Vec<u8>>);

/// What came, in its order.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    samples: Vec<Named>,
    /// Each with the number of samples before it.
    sched: Vec<(usize, u64)>,
    last: Vec<(ThreadIndex, Comm)>,
}

impl Sink for Seen {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        let path = cgroups.path(sample.raw.cgroup).map(|path| path.to_vec());
        self.samples.push((sample.raw.time, sample.record, sample.comm, path));
    }

    fn sched(&mut self, events: &[SchedEvent], _: &mut Cgroups) {
        let before = self.samples.len();
        self.sched.extend(events.iter().map(|event| (before, event.time)));
    }

    fn ended(&mut self, names: &[(ThreadIndex, Comm)]) {
        self.last = names.to_vec();
    }
}

fn run(origin: Made, stages: Stages, limit: usize, ended: &mut dyn FnMut(Progress) -> bool) -> (Seen, Outcome) {
    let mut seen = Seen::default();
    let pipeline = Pipeline::new(Order::new(1, limit), Namer::recorded(1 << 20, false, Accesses::InSamples));
    let outcome = pipeline::run(pipeline, origin, stages, &mut seen, &mut StopPoll::new(Instant::now(), ended));
    (seen, outcome)
}

#[test]
fn stages_in_turn_and_in_threads_give_the_same() {
    // More than there is room for at once, and pieces that end in the middle of a batch.
    for (rounds, limit) in [(1, 1 << 20), (30, 1 << 20), (300, 1 << 10), (50, 1)] {
        let (turn, first) = run(made(rounds), Stages::InTurn, limit, &mut |_| false);
        let (threads, second) = run(made(rounds), Stages::InThreads, limit, &mut |_| false);
        assert_eq!(turn.samples.len() as u64, rounds * 100);
        assert_eq!(turn.sched.len() as u64, rounds);
        assert_eq!((first.samples, first.accesses, first.events), (rounds * 100, rounds * 100, rounds * 100));
        assert_eq!((second.samples, second.accesses, second.loss), (first.samples, first.accesses, first.loss));
        assert_eq!(first.notes, [format!("{rounds} rounds")]);
        assert_eq!(second.notes, first.notes);
        // With room for one sample, what is late depends on when each batch is released, which is the same too.
        assert_eq!(turn, threads, "{rounds} rounds, room for {limit}");
    }
}

#[test]
fn each_sample_has_the_name_and_the_cgroup_of_its_time() {
    let (seen, outcome) = run(made(20), Stages::InTurn, 1 << 20, &mut |_| false);
    assert_eq!((outcome.loss.late, outcome.loss.unnamed), (0, 0));
    for (at, (time, record, comm, path)) in (0..).zip(&seen.samples) {
        assert_eq!((*time, *record), (at, at + 1));
        // A record precedes a sample of the same time.
        let round = (at + 30) / 100;
        let name = if round == 0 { "a".to_owned() } else { format!("n{}", round - 1) };
        assert_eq!(*comm, Some(name.as_str().into()), "at {at}");
        let cgroup = if at < 70 { None } else { Some(format!("/c{}", round - 1).into_bytes()) };
        assert_eq!(*path, cgroup, "at {at}");
    }
    assert!(seen.sched.iter().all(|(before, time)| *before as u64 == *time), "{:?}", seen.sched);
    assert_eq!(seen.last.iter().map(|it| it.1).collect::<Vec<_>>(), [Comm::from("n19")]);
}

#[test]
fn what_happened_before_the_end_is_still_taken() {
    let (seen, _) = run(made(u64::MAX), Stages::InTurn, 1 << 20, &mut |_| true);
    assert!(seen.samples.is_empty());
    let (seen, outcome) = run(Made { left: 3, ..made(u64::MAX) }, Stages::InTurn, 1 << 20, &mut |_| true);
    assert_eq!((seen.samples.len(), outcome.samples), (300, 300));
    // The stages of a recording end within their look at the clock.
    let (seen, outcome) = run(made(u64::MAX), Stages::InThreads, 1 << 20, &mut |now| now.samples > 0);
    assert_eq!(seen.samples.len() as u64, outcome.samples);
}
