use super::*;
use crate::sample::batch::SideBand;
use crate::sample::sched::{SchedEvent, SchedTask, SchedWhat, TaskState};
use crate::sample::{Access, Comm, RawSample, Sample};
use crate::session::{Batch, SchedSink};

const SECOND: u64 = 1_000_000_000;

/// Groups of four threads, each with memory of its own, in one process; a batch for every 10 ms. Thread n runs on CPU n mod 4.
struct Groups {
    count: u32,
    begin: u64,
    /// Times of the batches, ns.
    now: u64,
    end: u64,
    has_sched: bool,
}

impl Groups {
    fn new(seconds: u64) -> Self {
        Self::between(0, seconds)
    }

    /// What comes in this time.
    fn between(from: u64, to: u64) -> Self {
        let [begin, end] = [from, to].map(|seconds| (100 + seconds) * SECOND);
        Self { count: 3, begin, now: begin, end, has_sched: true }
    }
}

fn task(tid: u32) -> SchedTask {
    SchedTask { tid, prio: 120, comm: name(tid) }
}

fn name(tid: u32) -> Comm {
    if tid == 0 {
        return Comm::from("swapper");
    }
    Comm::from(["alpha", "beta", "gamma"][(tid as usize - 10) / 4 % 3])
}

impl Feed for Groups {
    fn next_batch(&mut self) -> Option<Batch> {
        if self.now >= self.end {
            return None;
        }
        let (time, threads) = (self.now, 4 * self.count);
        self.now += SECOND / 100;
        let mut batch = Batch::until(self.now);
        if time == self.begin {
            batch.side_band(0, SideBand::Comm { pid: 10, tid: 10, exec: false, comm: name(10) });
            for tid in 11..10 + threads {
                batch.side_band(0, SideBand::Comm { pid: 10, tid, exec: false, comm: name(tid) });
            }
        }
        for at in 0..threads {
            let (group, tid) = (at / 4, 10 + at);
            // A line that changes with time, so that threads of a group meet at it.
            let line = (time / (SECOND / 50)).wrapping_mul(7) % 512;
            let addr = 0x10_0000 * u64::from(group + 1) + line * 64;
            let access = if at % 4 == 0 { Access::Store } else { Access::Load };
            let time = time + u64::from(at) * 1000;
            let raw = RawSample { time, pid: 10, tid, cpu: at % 4, addr, access, size: 8, ..RawSample::default() };
            batch.samples.push(RawSample { period: 1, ..raw });
        }
        if self.has_sched {
            // Each CPU runs one thread of each group in turn for 10 ms.
            let turn = (time / (SECOND / 100)) as u32;
            for cpu in 0..4 {
                let of = |turn: u32| 10 + turn % self.count * 4 + cpu;
                let (prev, next) = (of(turn.wrapping_sub(1)), of(turn));
                let what = SchedWhat::Switch { prev: task(prev), state: TaskState::Runnable, next: task(next) };
                batch.sched.push(SchedEvent { time, cpu, pid: 10, tid: prev, cgroup: 0, what });
            }
        }
        Some(batch)
    }
}

fn options(sharing_window: u64) -> LiveOptions {
    LiveOptions { sharing_window: Duration::from_secs(sharing_window), ..LiveOptions::default() }
}

fn run(options: LiveOptions, feed: Groups) -> Live {
    let live = Live::start_feed(options, Box::new(feed)).unwrap();
    assert!(live.shared.wait(Duration::from_secs(300), |now| now.has_ended), "it does not end");
    live
}

#[test]
fn a_window_shows_what_a_run_over_the_same_samples_does() {
    // The window is longer than the feed.
    let live = run(options(3600), Groups::new(2));
    let snapshot = live.snapshot(&[By::Thread, By::Process, By::Cpu, By::Cell]);
    let mut once = Groups::new(2);
    let analysis = Session::builder().feed(&mut once).memory(MEMORY / OF_SESSION).run().unwrap();
    let mut expected = analysis.report().unwrap();
    let sharing = snapshot.sharing.clone().unwrap();
    let mut report = sharing.report.clone().unwrap();
    // Tables have the sizes of what else is kept.
    (expected.tables, report.tables) = Default::default();
    assert_eq!(report, expected);
    assert_eq!(live.analysis().unwrap().mitosis().unwrap(), analysis.mitosis().unwrap());
    assert_eq!(snapshot.groups.len(), 3, "{:?}", snapshot.groups);
    assert!(snapshot.groups.iter().all(|group| group.threads == 4 && group.kept.is_none()));
    assert_eq!((snapshot.state, snapshot.losses.samples, snapshot.losses.accesses), (LiveState::Ended, 2400, 2400));
    let faded = sharing.faded.as_ref().unwrap();
    assert_eq!(faded.communities.len(), 3, "{:?}", faded.communities);
    // The last accesses are all of them, and can be read again.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("last.jsonl");
    assert_eq!(live.write_accesses(std::fs::File::create(&path).unwrap()).unwrap(), 2400);
    let mut profile = crate::profile::Profile::open(&path).unwrap();
    let again = Session::builder().profile(&mut profile).run().unwrap().report().unwrap();
    assert_eq!(again.groups().count(), 3, "{}", again.headline);
    // Accesses add up whatever the lines are.
    for lines in snapshot.accesses.iter().filter(|lines| lines.by != By::Cell) {
        let total: f64 = lines.lines.iter().map(|line| line.total.samples).sum();
        assert!((total - 2400.0).abs() < 1e-3, "{lines:?}");
    }
}

#[test]
fn the_statistics_of_the_scheduler_are_those_of_a_run() {
    let live = run(options(3600), Groups::new(3));
    let snapshot = live.snapshot(&[By::Thread, By::Cpu, By::Process]);
    let scheduling = snapshot.scheduling.unwrap();
    let mut once = SchedSink::new(CpuPlaces::default(), None);
    let mut feed = Groups::new(3);
    Session::builder().feed(&mut feed).start().unwrap().run_into(&mut once, |_| false);
    for lines in &scheduling.lines {
        let expected = once.lines(lines.by, Order::Run, &|_| String::new());
        assert_eq!(lines.total, expected, "{:?}", lines.by);
    }
    assert_eq!(scheduling.events, once.events());
    // In the last complete second each CPU was busy all the time, and each thread had a third of one.
    let of = |by| scheduling.lines.iter().find(|lines| lines.by == by).unwrap();
    let cpus: u64 = of(By::Cpu).window.iter().map(|line| line.run.total_ns).sum();
    assert_eq!(cpus, 4 * SECOND);
    let threads = &of(By::Thread).window;
    assert_eq!(threads.len(), 12);
    assert!(threads.iter().all(|line| line.run.total_ns.abs_diff(SECOND / 3) <= SECOND / 100), "{threads:?}");
    let cpus: f64 = snapshot.groups.iter().map(|group| group.cpus.unwrap()).sum();
    assert!((cpus - 4.0).abs() < 1e-6, "{:?}", snapshot.groups);
}

#[test]
fn windows_follow_each_other_and_old_evidence_fades() {
    let live = run(options(5), Groups::new(30));
    let snapshot = live.snapshot(&[By::Thread]);
    let sharing = snapshot.sharing.unwrap();
    let report = sharing.report.as_ref().unwrap();
    // Windows of 2, 5, 5, 5, 5, 5 and 3 s.
    assert_eq!(live.shared.lock().windows, 7, "{}", sharing.number);
    assert_eq!(report.groups().count(), 3, "{:?}", report.headline);
    assert_eq!(sharing.faded.as_ref().unwrap().communities.len(), 3);
    assert!(sharing.configuration.is_some());
    let window: f64 = report.samples;
    assert!(window < 30.0 * 1200.0, "{window}");
}

#[test]
fn a_window_in_the_middle_is_as_if_it_were_alone() {
    // Windows of 2, 5 and 1 s; the last is too short.
    let live = run(options(5), Groups::new(8));
    assert_eq!(live.shared.lock().windows, 2);
    let mut alone = Groups::between(2, 7);
    let expected = Session::builder().feed(&mut alone).memory(MEMORY / OF_SESSION).run().unwrap().report().unwrap();
    let sharing = live.snapshot(&[]).sharing.unwrap();
    let report = sharing.report.as_ref().unwrap();
    assert_eq!((sharing.number, sharing.seconds), (1, 5.0));
    assert_eq!(report.cells, expected.cells);
    assert_eq!((&report.lines, &report.sharing, &report.hubs), (&expected.lines, &expected.sharing, &expected.hubs));
    assert_eq!(report.matrix, expected.matrix);
    assert_eq!((report.samples, report.locality), (expected.samples, expected.locality));
    assert_eq!((report.run.records, report.run.accesses), (expected.run.records, expected.run.accesses));
    assert_eq!(report.loss.get("samples"), Some(&6000));
}

#[test]
fn a_loaded_configuration_is_judged_at_once() {
    let live = run(options(3600), Groups::new(2));
    let good = live.analysis().unwrap().mitosis().unwrap();
    assert!(live.load(Some(("bad.json".to_owned(), "{}".to_owned()))).is_err());
    assert_eq!(live.snapshot(&[]).configuration, None);
    live.load(Some(("good.json".to_owned(), good))).unwrap();
    let snapshot = live.snapshot(&[By::Cell, By::Thread]);
    assert_eq!(snapshot.configuration.as_deref(), Some("good.json"));
    assert!(snapshot.groups.iter().all(|group| group.kept.is_some()), "{:?}", snapshot.groups);
    let cells = &snapshot.accesses.first().unwrap().lines;
    assert!(cells.iter().map(|line| line.total.samples).sum::<f64>() > 2399.0, "{cells:?}");
    // What is in one subcell is kept, what is in a catch-all is not.
    let one = r#"[{"name": "rest", "matches": {}, "subcells": [
        {"name": "workers", "matches": [[{"CommPrefix": "alpha"}], [{"CommPrefix": "beta"}]]},
        {"name": "rest", "matches": [[]]}]}]"#;
    live.load(Some(("one.json".to_owned(), one.to_owned()))).unwrap();
    for group in live.snapshot(&[]).groups {
        let kept = if group.names == ["gamma"] { 0.0 } else { 1.0 };
        assert_eq!(group.kept, Some(kept), "{group:?}");
    }
    let two_thirds = live.score().unwrap();
    live.load(Some(("good.json".to_owned(), live.analysis().unwrap().mitosis().unwrap()))).unwrap();
    assert!(live.score().unwrap() <= two_thirds);
    live.load(None).unwrap();
    assert!(live.snapshot(&[]).groups.iter().all(|group| group.kept.is_none()));
    assert!(matches!(live.schedule(false), Err(LiveError::OfFeed)));
}

#[test]
fn it_stops_in_the_middle_and_what_cannot_be_sampled_is_an_error() {
    struct Endless(Groups);
    impl Feed for Endless {
        fn next_batch(&mut self) -> Option<Batch> {
            self.0.end = u64::MAX;
            self.0.next_batch()
        }
    }
    let live = Live::start_feed(options(5), Box::new(Endless(Groups::new(1)))).unwrap();
    assert!(live.wait_window(2, Duration::from_secs(120)));
    live.stop();
    let snapshot = live.snapshot(&[By::Thread]);
    assert_eq!(snapshot.state, LiveState::Ended);
    assert!(live.outcome().is_some() && snapshot.losses.samples > 0);
    let nobody = HostOptions { whose: crate::session::Whose::Pids(vec![u32::MAX - 5]), ..HostOptions::default() };
    let error = Live::start(options(5), nobody).unwrap_err();
    assert!(matches!(error, LiveError::Session(_)), "{error}");
}

/// Processes of four threads that share memory, each of which lives for twelve minutes in a cgroup of its own, under a name of its own;
/// after some hours, names and ids are used again. A batch is of a minute.
struct Churn {
    step: u64,
    steps: u64,
}

impl Churn {
    /// The number of the process whose thread has this place, and its thread id.
    fn thread(at: u32, step: u64) -> (u32, u32) {
        // They do not all change at once.
        let generation = (step + u64::from(at / 4) * 5) / 12;
        let process = generation as u32 % 25 * 3 + at / 4;
        (process, 100 + process * 4 + at % 4)
    }

    fn comm(process: u32) -> Comm {
        let letter = |at: u32| char::from(b'a' + (process / 26u32.pow(at) % 26) as u8);
        Comm::from(format!("{}{}{}{}x", letter(0), letter(1), letter(2), letter(3)).as_str())
    }
}

impl Feed for Churn {
    fn next_batch(&mut self) -> Option<Batch> {
        let step = self.step;
        if step >= self.steps {
            return None;
        }
        self.step += 1;
        let time = (step + 1) * 60 * SECOND;
        let mut batch = Batch::until(time + 60 * SECOND);
        for at in 0..12 {
            let (process, tid) = Self::thread(at, step);
            let (pid, comm, cgroup) = (100 + process * 4, Self::comm(process), u64::from(process) + 1);
            let before = step.checked_sub(1).map(|step| Self::thread(at, step));
            let cpu = at % 4;
            if before.is_none_or(|before| before.1 != tid) {
                if let Some((process, tid)) = before {
                    batch.side_band(time, SideBand::Exit { pid: 100 + process * 4, tid });
                }
                let path = format!("/job-{process}").into_bytes().into_boxed_slice();
                batch.side_band(time, SideBand::Cgroup { id: cgroup, path });
                batch.side_band(time, SideBand::Comm { pid, tid, exec: false, comm });
            }
            for second in (0..60).step_by(10) {
                let time = time + 1000 + second * SECOND + u64::from(at) * 10;
                let addr = 0x10_0000 + (step * 60 + second) % 64 * 64;
                let access = if at % 4 == 0 { Access::Store } else { Access::Load };
                let raw = RawSample { time, pid, tid, cpu, addr, access, cgroup, size: 8, ..RawSample::default() };
                batch.samples.push(RawSample { period: 1, ..raw });
                let own = SchedTask { tid, prio: 120, comm };
                let idle = SchedTask { tid: 0, prio: 120, comm: "swapper".into() };
                let is_last = second == 50 && Self::thread(at, step + 1).1 != tid;
                let state = if is_last { TaskState::Dead } else { TaskState::Sleeping };
                let begin = SchedWhat::Switch { prev: idle, state: TaskState::Runnable, next: own };
                let end = SchedWhat::Switch { prev: own, state, next: idle };
                let at = time + u64::from(at / 4) * 100_000_000;
                batch.sched.push(SchedEvent { time: at, cpu, pid: 0, tid: 0, cgroup: 0, what: begin });
                batch.sched.push(SchedEvent { time: at + 50_000_000, cpu, pid, tid, cgroup, what: end });
            }
        }
        batch.sched.sort_by_key(|event| event.time);
        Some(batch)
    }
}

#[test]
fn a_day_takes_no_more_memory_than_some_hours() {
    let tables = |hours: u64| {
        let options = LiveOptions { interval: Duration::from_secs(30), memory: 16 << 20, ..options(600) };
        let live = Live::start_feed(options, Box::new(Churn { step: 0, steps: hours * 60 })).unwrap();
        // Somebody looks from time to time.
        while !live.shared.wait(Duration::from_millis(50), |now| now.has_ended) {
            let shown = live.snapshot(&[By::Thread, By::Process, By::Cgroup]);
            assert!(shown.groups.len() <= 64);
        }
        let (outcome, windows) = (live.outcome().unwrap(), live.shared.lock().windows);
        assert!(windows >= hours * 5, "{windows}");
        assert_eq!(outcome.samples, hours * 60 * 72);
        outcome.tables
    };
    let (few, day) = (tables(8), tables(24));
    for day in day.iter() {
        let few = few.iter().find(|few| few.name == day.name).unwrap();
        // These remember threads that have ended, up to a bound.
        let bound = match few.name.as_str() {
            "threads" => Some(6144),
            "accesses by thread and CPU" => Some(Counts::within(16 << 20).limit as u64),
            _ => None,
        };
        if let Some(bound) = bound {
            assert!(day.entries <= bound, "{day:?}");
            continue;
        }
        assert!(day.bytes <= few.bytes * 5 / 4 + 4096, "{}: {} and {} bytes", few.name, few.peak_bytes, day.peak_bytes);
    }
}

#[test]
fn the_last_accesses_are_kept_and_no_more() {
    let mut latest = Latest::within(10 * size_of::<Sample>());
    let sample = |time| Sample::from(RawSample { time, ..RawSample::default() });
    let times = |latest: &Latest| latest.copy().iter().map(|sample| sample.raw.time).collect::<Vec<u64>>();
    latest.add(&[1, 2, 3].map(sample));
    latest.add(&[4, 5, 6, 7, 8, 9, 10, 11].map(sample));
    assert_eq!(times(&latest), [2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    latest.add(&(20..50).map(sample).collect::<Vec<_>>());
    assert_eq!(times(&latest), (40..50).collect::<Vec<u64>>());
    latest.add(&[]);
    assert_eq!(latest.size().0, 10);
}
