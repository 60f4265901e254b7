//! Counts what is not in the order of its time, thread by thread, as scx_characterize does.

use rustc_hash::{FxHashMap, FxHashSet};

/// Threads that are told apart; what later ones have is not looked at.
const MAX_THREADS: usize = 1 << 18;
/// Threads that are named.
const EXAMPLES: usize = 8;

/// What came after something later of the same thread.
#[derive(Debug, Default)]
pub struct Disorder {
    last: FxHashMap<u32, u64>,
    count: u64,
    threads: FxHashSet<u32>,
    examples: Vec<u32>,
}

impl Disorder {
    /// Looks at what comes next of a thread.
    pub fn observe(&mut self, tid: u32, time: u64) {
        if let Some(last) = self.last.get_mut(&tid) {
            if time < *last {
                self.count += 1;
                if self.threads.insert(tid) && self.examples.len() < EXAMPLES {
                    self.examples.push(tid);
                }
            }
            *last = time;
        } else if self.last.len() < MAX_THREADS {
            self.last.insert(tid, time);
        }
    }

    /// How many there were, in a sentence; `None` if all were in order.
    #[must_use]
    pub fn sentence(&self, what: &str, of: &str) -> Option<String> {
        let tids: Vec<String> = self.examples.iter().map(u32::to_string).collect();
        let more = if self.threads.len() > self.examples.len() { ", ..." } else { "" };
        (self.count > 0).then(|| {
            format!(
                "{} {what} of {} {} in {of} are out of order (tids {}{more}): they were sorted as far as there is memory",
                self.count,
                self.threads.len(),
                if self.threads.len() == 1 { "thread" } else { "threads" },
                tids.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_back_of_a_thread_counts() {
        let mut disorder = Disorder::default();
        for (tid, time) in [(1, 5), (2, 3), (1, 5), (2, 4), (1, 6)] {
            disorder.observe(tid, time);
        }
        assert_eq!(disorder.sentence("hints", "hints.jsonl"), None, "threads have times of their own");
        for (tid, time) in [(1, 2), (1, 3), (2, 1), (1, 1)] {
            disorder.observe(tid, time);
        }
        let said = disorder.sentence("hints", "hints.jsonl").unwrap();
        assert!(said.starts_with("3 hints of 2 threads in hints.jsonl are out of order (tids 1, 2): "), "{said}");
        for tid in 10..20 {
            disorder.observe(tid, 2);
            disorder.observe(tid, 1);
        }
        let said = disorder.sentence("hints", "hints.jsonl").unwrap();
        assert!(said.starts_with("13 hints of 12 threads") && said.contains("15, ...)"), "{said}");
    }
}
