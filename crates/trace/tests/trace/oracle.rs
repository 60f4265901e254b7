//! What trace_processor and wprof say of a fixture.

use std::collections::BTreeMap;
use std::fs;

use super::files::path;

/// ns and how often.
pub type Sums = BTreeMap<u32, (u64, u64)>;

/// The sums of an oracle.
#[derive(Debug, Default, PartialEq)]
pub struct Oracle {
    pub run: Sums,
    pub idle: Sums,
    pub wait: Sums,
    pub latency: Sums,
    pub preempted: Sums,
    /// wprof's own delays, under 0.
    pub delay: Sums,
    pub pairs: BTreeMap<(u32, u32), u64>,
    pub events: BTreeMap<String, u64>,
}

impl Oracle {
    pub fn read(name: &str) -> Self {
        let mut oracle = Self::default();
        for line in fs::read_to_string(path(name)).unwrap().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [what, name, rest @ ..] = words.as_slice() else { panic!("{line}") };
            let numbers: Vec<u64> = rest.iter().map(|number| number.parse().unwrap()).collect();
            let sums = match (*what, numbers.as_slice()) {
                ("run", _) => &mut oracle.run,
                ("idle", _) => &mut oracle.idle,
                ("wait", _) => &mut oracle.wait,
                ("latency", _) => &mut oracle.latency,
                ("preempted", _) => &mut oracle.preempted,
                ("delay", _) => &mut oracle.delay,
                ("pair", &[wakee, count]) => {
                    oracle.pairs.insert((name.parse().unwrap(), wakee as u32), count);
                    continue;
                }
                ("event", &[count]) => {
                    oracle.events.insert((*name).to_owned(), count);
                    continue;
                }
                _ => panic!("{line}"),
            };
            sums.insert(name.parse().unwrap(), (numbers[0], numbers[1]));
        }
        oracle
    }
}
