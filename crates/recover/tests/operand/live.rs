//! The programs sampled as they run: every candidate lies in its own group's memory, and enough samples give one.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use scxprof_recover::{Recovery, StackRange};

use super::perf::Ring;
use super::process::{mappings, Code};
use super::programs;

#[derive(Debug, Default)]
struct Tally {
    samples: usize,
    recovered: usize,
    candidates: usize,
    own: usize,
    other_group: usize,
    wrong_line: usize,
    unmapped: usize,
    methods: BTreeMap<&'static str, usize>,
    reasons: BTreeMap<&'static str, usize>,
}

/// Samples a program and checks the recovered addresses; at least `least` of the samples must give data outside the stack.
pub fn sample(name: &str, level: u8, least: f64) {
    let Some(built) = programs::build(name, level) else {
        println!("SKIP: {name} -O{level}: no cc");
        return;
    };
    let seconds = std::env::var("SCXPROF_SECONDS").ok().and_then(|value| value.parse().ok()).unwrap_or(1.0);
    let running = programs::start(&built.path, 600.0, 4);
    let mut rings = Vec::new();
    for thread in &running.threads {
        match Ring::open(thread.tid, 5000) {
            Ok(ring) => rings.push(ring),
            Err(error) => {
                println!("SKIP: {name} -O{level}: perf_event_open: {error}");
                return;
            }
        }
    }
    let mut codes: HashMap<i32, Code> =
        running.threads.iter().map(|thread| (thread.pid, Code::of(thread.pid))).collect();
    let maps: HashMap<i32, _> = running.threads.iter().map(|thread| (thread.pid, mappings(thread.pid))).collect();
    let mut samples = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs_f64(seconds) {
        std::thread::sleep(Duration::from_millis(10));
        for ring in &mut rings {
            ring.drain(|sample| samples.push(sample));
        }
    }
    drop(rings);
    let mut stacks: HashMap<i32, StackRange> = HashMap::new();
    for sample in &samples {
        let _ = stacks.entry(sample.tid).or_default().update(sample.regs.sp());
    }
    let threads: HashMap<i32, _> = running.threads.iter().map(|thread| (thread.tid, thread)).collect();
    for with_functions in [true, false] {
        let mut recovery = Recovery::new(1 << 22);
        let mut tally = Tally::default();
        for sample in &samples {
            let Some(thread) = threads.get(&sample.tid) else { continue };
            let (Some(code), Some(maps)) = (codes.get_mut(&thread.pid), maps.get(&thread.pid)) else { continue };
            code.with_functions = with_functions;
            tally.samples += 1;
            let range = stacks.entry(sample.tid).or_default().update(sample.regs.sp());
            let outcome = recovery.recover(&sample.regs, &sample.stack, range, code);
            if let Some(reason) = outcome.reason {
                *tally.reasons.entry(reason.name()).or_default() += 1;
            }
            let mut recovered = false;
            for candidate in outcome.candidates {
                *tally.methods.entry(candidate.method.name()).or_default() += 1;
                tally.candidates += 1;
                let Some(mapping) = maps.iter().find(|mapping| mapping.range.contains(&candidate.addr)) else {
                    tally.unmapped += 1;
                    continue;
                };
                recovered |=
                    mapping.path.is_empty() || mapping.path.starts_with("/dev/zero") || mapping.path == "[heap]";
                let parity = running.parity.get(&thread.group);
                for ((pid, group), buffer) in &running.buffers {
                    if *pid != thread.pid || !buffer.contains(&candidate.addr) {
                        continue;
                    }
                    if *group == thread.group {
                        tally.own += 1;
                        tally.wrong_line +=
                            usize::from(parity.is_some_and(|parity| candidate.addr / 64 % 2 != *parity));
                    } else if parity.is_none() {
                        tally.other_group += 1;
                    }
                }
            }
            tally.recovered += usize::from(recovered);
        }
        let share = tally.recovered as f64 / tally.samples.max(1) as f64;
        println!(
            "{name} -O{level} functions={with_functions}: yield {share:.4}, {tally:?}, {:?}",
            recovery.cache_counts()
        );
        assert_eq!(tally.other_group + tally.wrong_line + tally.unmapped, 0, "{name} -O{level}");
        if with_functions && tally.samples >= 200 {
            assert!(share >= least, "{name} -O{level}: yield {share}");
        }
    }
}
