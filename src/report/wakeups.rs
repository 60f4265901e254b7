//! Wakeups and the configuration: which part stays in a subcell, and which in a cache.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// Which wakeups of threads by threads the configuration keeps together. Wakeups by interrupts are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WakeupReport {
    /// All of them.
    pub all: Within,
    /// Those between threads that share memory according to the samples: they carry data.
    pub carrying: Within,
    /// Wakeups in which one thread has no samples, so it is not known whether the threads share memory.
    pub unsampled: u64,
}

/// Parts of wakeups.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Within {
    /// The wakeups.
    pub wakeups: u64,
    /// The part of them, from 0 to 1, whose threads are in one subcell (or layer) of the configuration, or in one catch-all; `null` if
    /// there are none.
    pub subcell: Option<f64>,
    /// The part of them, from 0 to 1, whose woken thread then ran on a CPU of the waker's last-level cache, while it was sampled; `null`
    /// if that is not known of any.
    pub llc: Option<f64>,
}

impl Within {
    /// `within` of `wakeups` are in one subcell, `near` of `known` in one last-level cache.
    pub(crate) fn new(wakeups: u64, within: u64, (near, known): (u64, u64)) -> Self {
        let part = |part: u64, of: u64| (of > 0).then(|| part as f64 / of as f64);
        Self { wakeups, subcell: part(within, wakeups), llc: part(near, known) }
    }
}

impl WakeupReport {
    /// Two lines for `-v`.
    #[must_use]
    pub fn text(&self) -> String {
        let percent = |part: Option<f64>| part.map_or("-".to_owned(), |part| format!("{:.1} %", 100.0 * part));
        let line = |what: &str, Within { wakeups, subcell, llc }: &Within| {
            format!("{what}: {wakeups}, within a subcell {}, within an LLC {}", percent(*subcell), percent(*llc))
        };
        let mut text = line("Wakeups by threads", &self.all);
        text += &line("\nOf these between threads that share memory", &self.carrying);
        if self.unsampled > 0 {
            let _ = write!(text, "; not known of {}, as one of their threads has no samples", self.unsampled);
        }
        text + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_nothing_are_not_known() {
        let carrying = Within::new(0, 0, (0, 0));
        let report = WakeupReport { all: Within::new(200, 50, (30, 40)), carrying, unsampled: 7 };
        assert_eq!(
            report.text(),
            "Wakeups by threads: 200, within a subcell 25.0 %, within an LLC 75.0 %\n\
             Of these between threads that share memory: 0, within a subcell -, within an LLC -; not known of 7, \
             as one of their threads has no samples\n"
        );
    }
}
