//! The fixtures against what trace_processor and wprof say of them.

use std::collections::BTreeMap;

use scxprof_base::sample::sched::SchedWhat;
use scxprof_sched::{Fact, Facts, Threads, Tracker, Why};
use scxprof_trace::{Edge, Source, TraceEvent, TraceWhat};

use super::files::{count, fixture, read, Whole};
use super::oracle::{Oracle, Sums};

/// Adds up what the tracker says.
#[derive(Debug, Default)]
struct Adds {
    oracle: Oracle,
    /// Threads that left their CPU in the state R: wprof has no waits of these.
    runnable: BTreeMap<u32, bool>,
    /// Thread ids of wakers.
    wakers: BTreeMap<u32, u32>,
    /// CPUs with switches in compact form, and how many so far: trace_processor leaves out the first one of each, and so the
    /// wait that it ends and the run that it begins.
    compact: BTreeMap<u32, u64>,
}

fn add(sums: &mut Sums, key: u32, ns: u64) {
    let sum = sums.entry(key).or_default();
    *sum = (sum.0 + ns, sum.1 + 1);
}

impl Facts for Adds {
    fn fact(&mut self, threads: &Threads, fact: &Fact) {
        let tid = |slot| threads.get(slot).unwrap().tid;
        if let Fact::Switched { cpu, .. } = *fact {
            self.compact.entry(cpu).and_modify(|count| *count += 1);
        }
        let sums = &mut self.oracle;
        match *fact {
            Fact::Ran { cpu, .. } | Fact::Waited { cpu, .. } if self.compact.get(&cpu) == Some(&1) => {}
            Fact::Ran { thread: Some(slot), from, until, .. } => add(&mut sums.run, tid(slot), until - from),
            Fact::Ran { cpu, from, until, .. } => add(&mut sums.idle, cpu, until - from),
            Fact::Switched { prev: Some(slot), state, .. } => {
                self.runnable.insert(tid(slot), state == scxprof_base::sample::sched::TaskState::Runnable);
            }
            Fact::Woken { waker: Some(slot), .. } => {
                self.wakers.insert(slot, tid(slot));
            }
            Fact::Waited { thread, from, until, why, .. } => {
                let tid = tid(thread);
                add(&mut sums.wait, tid, until - from);
                match why {
                    Why::Woken(waker) => {
                        add(&mut sums.latency, tid, until - from);
                        // One that has ended since has no id any more.
                        let of = |slot| Some(threads.get(slot).unwrap().tid).filter(|tid| *tid != u32::MAX);
                        let waker = waker.map_or(0, |slot| of(slot).unwrap_or_else(|| self.wakers[&slot]));
                        *sums.pairs.entry((waker, tid)).or_default() += 1;
                    }
                    Why::New => add(&mut sums.latency, tid, until - from),
                    Why::Preempted if self.runnable.get(&tid) == Some(&false) => {
                        add(&mut sums.preempted, tid, until - from);
                    }
                    Why::Preempted => {}
                }
            }
            _ => {}
        }
    }
}

fn sums(read: &Whole, compact: &[u32]) -> Oracle {
    let mut adds = Adds { compact: compact.iter().map(|cpu| (*cpu, 0)).collect(), ..Adds::default() };
    let mut tracker = Tracker::default();
    for event in &read.sched {
        tracker.take(event, &mut adds);
    }
    let gaps = tracker.gaps();
    assert_eq!((gaps.mismatches, gaps.losses, gaps.backwards, gaps.no_room), (0, 0, 0, 0));
    adds.oracle
}

#[test]
fn times_on_cpus_and_waits_are_those_of_trace_processor() {
    for (name, oracle, compact) in [
        ("minimal.pftrace", "minimal.txt", &[0][..]),
        ("ftrace-all.pftrace", "ftrace-all.txt", &[]),
        ("ftrace-compact.pftrace.gz", "ftrace-compact.txt", &[0, 1, 2, 3]),
        ("wprof-sched-tidpid.pb.gz", "wprof-sched-tidpid.txt", &[0, 1, 2, 3]),
    ] {
        let (found, oracle) = (sums(&read(fixture(name)), compact), Oracle::read(oracle));
        assert_eq!(found.run, oracle.run, "{name}: time on CPUs");
        assert_eq!(found.idle, oracle.idle, "{name}: idle time");
        assert_eq!(found.wait, oracle.wait, "{name}: waits");
    }
}

#[test]
fn slices_of_wprof_give_the_times_of_its_json() {
    let read = read(fixture("wprof.pb.gz"));
    assert_eq!(read.info.source, Source::Wprof);
    let (found, oracle) = (sums(&read, &[]), Oracle::read("wprof.txt"));
    assert_eq!(found.run, oracle.run);
    assert_eq!(found.idle, oracle.idle);
    assert_eq!(found.latency, oracle.latency);
    assert_eq!(found.preempted, oracle.preempted);
    assert_eq!(found.pairs, oracle.pairs);
    // wprof's own delays, which are printed in microseconds, count from the last wakeup of a runnable thread too.
    let mut delays = 0;
    for event in &read.others {
        if let TraceWhat::Waited { delay: Some(delay), .. } = event.what {
            delays += delay;
        }
    }
    assert_eq!(delays, oracle.delay[&0].0);
}

#[test]
fn every_event_of_wprof_is_read() {
    let (read, oracle) = (read(fixture("wprof.pb.gz")), Oracle::read("wprof.txt"));
    let sched = |is: fn(&SchedWhat) -> bool| read.sched.iter().filter(|event| is(&event.what)).count() as u64;
    let other = |is: fn(&TraceWhat) -> bool| read.others.iter().filter(|event| is(&event.what)).count() as u64;
    let events = &oracle.events;
    // What ran on the four CPUs at the beginning has a slice, and no switch.
    assert_eq!(sched(|what| matches!(what, SchedWhat::Switch { .. })), events["switch"] + 4);
    assert_eq!(sched(|what| matches!(what, SchedWhat::SoftirqEntry { vec } if *vec < 10)), events["softirq"]);
    assert_eq!(sched(|what| matches!(what, SchedWhat::SoftirqExit { vec } if *vec < 10)), events["softirq"]);
    assert_eq!(sched(|what| matches!(what, SchedWhat::Fork { .. })), events["fork"]);
    assert_eq!(sched(|what| matches!(what, SchedWhat::Exec { .. })), events["exec"]);
    assert_eq!(sched(|what| matches!(what, SchedWhat::Exit { .. })), events["task_exit"]);
    assert_eq!(sched(|what| matches!(what, SchedWhat::WakeupNew { .. })), events["wakeup_new"]);
    let wakings = sched(|what| matches!(what, SchedWhat::Waking { .. }));
    assert_eq!(wakings + read.info.lost.unnamed_wakeups, events["waking"]);
    assert_eq!(other(|what| matches!(what, TraceWhat::IpiEntry { .. })), events["ipi"]);
    assert_eq!(other(|what| matches!(what, TraceWhat::IpiExit { .. })), events["ipi"]);
    assert_eq!(other(|what| matches!(what, TraceWhat::IpiSend { .. })), events["ipi_send"]);
    assert_eq!(other(|what| matches!(what, TraceWhat::WorkBegin { .. })), events["wq"]);
    assert_eq!(other(|what| matches!(what, TraceWhat::WorkEnd { .. })), events["wq"]);
    assert_eq!(other(|what| matches!(what, TraceWhat::Rename { .. })), events["task_rename"]);
    assert_eq!(other(|what| matches!(what, TraceWhat::Free { .. })), events["task_free"]);
    let mut slices: BTreeMap<(String, bool), u64> = BTreeMap::new();
    for event in &read.others {
        if let TraceWhat::Slice { edge, category, .. } = event.what {
            let category = String::from_utf8_lossy(read.trace.names().text(category)).into_owned();
            *slices.entry((category, edge == Edge::Instant)).or_default() += 1;
        }
    }
    slices.remove(&(String::new(), true));
    let unnamed = read.info.lost.unnamed_wakeups;
    let mut expected = BTreeMap::from([
        (("PREEMPTEE".to_owned(), true), 117),
        (("PREEMPTOR".to_owned(), true), 124),
        (("TIMER".to_owned(), true), events["timer"]),
    ]);
    if unnamed > 0 {
        expected.insert(("WAKER".to_owned(), true), unnamed);
    }
    assert_eq!(slices, expected);
    assert!(read.others.iter().all(|event| event.tid != TraceEvent::UNKNOWN || event.pid == TraceEvent::UNKNOWN));
    assert!(!read.info.lost.any() || unnamed > 0, "{:?}", read.info.lost);
}

#[test]
fn every_ftrace_event_is_read_or_counted() {
    for (name, oracle, switches, wakings) in [
        // trace_processor leaves out the first switch of a CPU in compact form, and wakeups before it.
        ("minimal.pftrace", "minimal.txt", 1, 0),
        ("ftrace-all.pftrace", "ftrace-all.txt", 0, 0),
        ("ftrace-compact.pftrace.gz", "ftrace-compact.txt", 4, 2),
        ("wprof-sched-tidpid.pb.gz", "wprof-sched-tidpid.txt", 4, 0),
    ] {
        let read = read(fixture(name));
        let mut events = Oracle::read(oracle).events;
        *events.get_mut("sched_switch").unwrap() += switches;
        *events.get_mut("sched_waking").unwrap() += wakings;
        let ftrace = events.values().sum::<u64>();
        for (event, expected) in events {
            let event = if event == "ipi_send_cpu" { "ipi:ipi_send_cpu".to_owned() } else { event };
            assert_eq!(count(&read.info, &event), expected, "{name}: {event}");
        }
        let tracks = read.info.events.iter().filter(|count| count.name.starts_with("track:"));
        let tracks = tracks.map(|count| count.count).sum::<u64>();
        let all: u64 = read.info.events.iter().chain(&read.info.unknown).map(|count| count.count).sum();
        assert_eq!(all, ftrace + tracks, "{name}: {:?}", read.info.events);
        if tracks == 0 {
            assert_eq!((read.sched.len() + read.others.len()) as u64, all, "{name}");
        }
        assert_eq!(read.info.damage, Vec::<String>::new(), "{name}");
    }
}

#[test]
fn info_says_what_a_trace_is() {
    let of = |name: &str| read(fixture(name)).info;
    for (name, source, cpus, packets) in [
        ("minimal.pftrace", Source::Ftrace, 2, 14),
        ("ftrace-all.pftrace", Source::Ftrace, 4, 27),
        ("ftrace-compact.pftrace.gz", Source::Ftrace, 4, 40),
        ("wprof.pb.gz", Source::Wprof, 4, 8519),
        ("wprof-sched-tidpid.pb.gz", Source::Wprof, 4, 8523),
    ] {
        let info = of(name);
        assert_eq!((info.source, info.cpus, info.cpus_seen.len()), (source, cpus, cpus as usize), "{name}");
        assert_eq!(info.packets.iter().map(|count| count.count).sum::<u64>(), packets, "{name}");
        assert!(info.begin_unix.unwrap() > 1.6e9 && info.kernel.starts_with(['6', '7']), "{name}");
    }
    let info = of("wprof.pb.gz");
    assert_eq!(info.attributes[0].0, "uuid");
    assert_eq!((info.first_ns, info.last_ns), (0, 1_499_936_376));
}
