//! Two traces, and what is called a change.

use scxprof_trace::analyze::By;
use scxprof_trace::difference::{compare, Metric, TraceDifference, Verdict, Windowed};

use super::encode::{bundle, file, switch, waking, Message};
use super::files::*;

/// Numbers that look like chance, the same each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// On CPU 0 thread 1 is woken each millisecond, waits for about `latency` and runs for about `run`; on CPU 1 thread 2 does it with
/// numbers that do not change. A `third` thread does so on CPU 2.
fn trace(seed: u64, latency: u64, run: u64, third: bool) -> Vec<u8> {
    let mut chance = Chance(seed);
    let mut packets: Vec<Message> = Vec::new();
    for (cpu, tid, latency, run) in [(0, 1, latency, run), (1, 2, 50_000, 200_000), (2, 3, 10_000, 10_000)] {
        if tid == 3 && !third {
            continue;
        }
        let mut events = Vec::new();
        for at in 0..2_000u64 {
            let woken = 1_000_000 + at * 1_000_000 + chance.below(100_000);
            // Each tenth waits for much longer.
            let longer = if chance.below(10) == 0 { 3 } else { 1 };
            let begins = woken + latency / 2 * longer + chance.below(latency);
            let ends = begins + run / 2 + chance.below(run);
            events.extend([waking(woken, 0, tid, cpu), switch(begins, 0, 0, tid), switch(ends, tid, 1, 0)]);
        }
        packets.push(bundle(cpu, false, &events));
    }
    file(&packets)
}

fn compared(a: Vec<u8>, b: Vec<u8>) -> TraceDifference {
    let read = |bytes| {
        let mut trace = open(bytes).unwrap();
        let mut windowed = Windowed::new(By::Name, None);
        while let Some(event) = trace.next_event().unwrap() {
            windowed.take(&event);
        }
        windowed
    };
    compare(read(a), read(b))
}

fn verdict(found: &TraceDifference, group: &str, metric: Metric) -> Verdict {
    let line = found.lines.iter().find(|line| line.group == group && line.metric == metric);
    line.unwrap_or_else(|| panic!("{group} {metric:?} {found:?}")).verdict
}

#[test]
fn chance_is_no_change() {
    let (a, b) = (trace(1, 100_000, 200_000, false), trace(2, 100_000, 200_000, false));
    let same = compared(a.clone(), a.clone());
    assert!(same.lines.iter().all(|line| line.verdict == Verdict::NoChange && line.change == Some(0.0)), "{same:?}");
    let found = compared(a.clone(), b.clone());
    assert!(found.lines.iter().all(|line| line.verdict == Verdict::NoChange), "{found:?}");
    assert!(found.lines.iter().any(|line| line.change != Some(0.0)));
    assert_eq!(found, compared(a, b), "it is the same each time");
    assert!(found.method.windows.iter().all(|count| (32..=64).contains(count)), "{:?}", found.method);
}

#[test]
fn what_waits_longer_is_slower_and_others_are_not() {
    let (a, b) = (trace(1, 100_000, 200_000, false), trace(2, 130_000, 250_000, true));
    let found = compared(a.clone(), b.clone());
    assert_eq!(verdict(&found, "t1", Metric::WakeupLatency), Verdict::Slower);
    assert_eq!(verdict(&found, "t1", Metric::WakeupLatencyP99), Verdict::Slower);
    assert_eq!(verdict(&found, "t1", Metric::Waiting), Verdict::Slower);
    assert_eq!(verdict(&found, "t1", Metric::Running), Verdict::More);
    assert_eq!(verdict(&found, "t2", Metric::WakeupLatency), Verdict::NoChange);
    assert_eq!(verdict(&found, "t2", Metric::Running), Verdict::NoChange);
    assert_eq!(verdict(&found, "t3", Metric::WakeupLatency), Verdict::OnlyInB);
    // The change is about the one that was made, and within its interval.
    let line = &found.lines.iter().find(|line| line.group == "t1" && line.metric == Metric::WakeupLatency).unwrap();
    let (change, (low, high)) = (line.change.unwrap(), line.interval.unwrap());
    assert!((change - 0.3).abs() < 0.05 && low < change && change < high && high - low < 0.2, "{line:?}");
    assert_eq!(found.lines[0].verdict, Verdict::Slower, "what got slower is first");
    let back = compared(b, a);
    assert_eq!(verdict(&back, "t1", Metric::WakeupLatency), Verdict::Faster);
    assert_eq!(verdict(&back, "t1", Metric::Running), Verdict::Less);
    assert_eq!(verdict(&back, "t3", Metric::Running), Verdict::OnlyInA);
}

#[test]
fn rates_do_not_depend_on_how_long_a_trace_is() {
    let long = trace(1, 100_000, 200_000, false);
    // Half as long.
    let mut chance = Chance(3);
    let mut events = Vec::new();
    for at in 0..1_000u64 {
        let woken = 1_000_000 + at * 1_000_000 + chance.below(100_000);
        let begins = woken + 120_000 + chance.below(10_000);
        events.extend([
            waking(woken, 0, 1, 0),
            switch(begins, 0, 0, 1),
            switch(begins + 200_000 + chance.below(2), 1, 1, 0),
        ]);
    }
    let found = compared(long, file(&[bundle(0, false, &events)]));
    let line = found.lines.iter().find(|line| line.group == "t1" && line.metric == Metric::Running).unwrap();
    assert!(line.change.unwrap().abs() < 0.05, "{line:?}");
    assert!(found.duration_ns[0] > 19 * found.duration_ns[1] / 10);
}

#[test]
fn a_few_events_say_nothing() {
    let few = file(&[bundle(0, false, &[waking(10, 0, 1, 0), switch(20, 0, 0, 1), switch(30, 1, 1, 0)])]);
    let found = compared(few.clone(), few);
    assert!(!found.lines.is_empty() && found.lines.iter().all(|line| line.verdict == Verdict::TooFew), "{found:?}");
}
