//! A recording of processes in cgroups of any name and number.

use crate::support::made::{file, record, switch, text, words, Event, ID, SWITCH};

/// TID, TIME, CPU, RAW, IDENTIFIER, CGROUP.
const SAMPLE_TYPE: u64 = 1 << 1 | 1 << 2 | 1 << 7 | 1 << 10 | 1 << 16 | 1 << 21;

/// A cgroup, with the trailer of a record that is no sample: TID, TIME, CPU, IDENTIFIER.
fn cgroup(id: u64, path: &[u8]) -> Vec<u8> {
    let size = (path.len() + 1).next_multiple_of(8);
    record(19, 2, &[words(&[id]), text(path, size), words(&[0, 1, 0, ID])].concat())
}

/// A switch from one thread to another, each the only one of its process; 0 is the idle task.
fn sample(time: u64, cgroup: u64, (prev, next): (u64, u64), state: u64) -> Vec<u8> {
    let raw = switch(("mock", prev), state, ("mock", next));
    record(9, 2, &[words(&[ID, prev | prev << 32, time, 0]), raw, words(&[cgroup])].concat())
}

/// perf.data of a process in each of these cgroups. It runs for 1 ms at the beginning and at the end, `sleep` ns apart.
pub fn in_cgroups(paths: &[Vec<u8>], sleep: u64) -> Vec<u8> {
    let mut data: Vec<u8> = (1..).zip(paths).flat_map(|(id, path)| cgroup(id, path)).collect();
    let all = paths.len() as u64;
    for round in 0..2 {
        for number in 0..all {
            let begin = 1_000_000 + round * (sleep + all * 1_000_000) + number * 1_000_000;
            data.extend(sample(begin, 0, (0, 1000 + number), 0));
            data.extend(sample(begin + 999_000, 1 + number, (1000 + number, 0), 1));
        }
    }
    file(&[Event { kind: 2, config: SWITCH, name: "sched:sched_switch", sample_type: SAMPLE_TYPE }], &data)
}
