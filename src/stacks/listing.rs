//! Tables of a profile: by function, and by thread, process, cgroup and subcell.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::profile::{percent, StackProfile, Thread};

/// What lines of a table stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Functions.
    Symbol,
    /// Threads.
    Thread,
    /// Processes.
    Process,
    /// Cgroups.
    Cgroup,
    /// Cells and subcells of a configuration.
    Subcell,
}

/// A function.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SymbolLine {
    /// Its name; `[FILE]` for all code of a file without names.
    pub symbol: String,
    /// The path of the file that contains it, escaped.
    pub module: String,
    /// `FILE:LINE` of most of its own samples; `None` if unknown.
    pub source: Option<String>,
    /// It is code of the kernel.
    pub is_kernel: bool,
    /// Samples in the function itself.
    pub self_samples: u64,
    /// The same in percent of all samples.
    pub self_percent: f64,
    /// Samples in the function or in what it called.
    pub total_samples: u64,
    /// The same in percent of all samples.
    pub total_percent: f64,
}

/// A thread, a process, a cgroup or a subcell.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct GroupLine {
    /// Its name.
    pub name: String,
    /// Process id, of threads and processes.
    pub pid: Option<u32>,
    /// Thread id, of threads.
    pub tid: Option<u32>,
    /// The hint, of threads that have one.
    pub hint: Option<u64>,
    /// Its cell and subcell, of threads, if there is a configuration.
    pub subcell: Option<String>,
    /// Samples.
    pub samples: u64,
    /// In percent of all samples.
    pub percent: f64,
    /// The function with most of its samples.
    pub top: String,
}

#[derive(Debug, Default)]
struct Sums {
    own: u64,
    total: u64,
    sources: FxHashMap<String, u64>,
}

/// The functions of the rows that `of` selects, the one with most samples of its own first.
#[must_use]
pub fn symbols(profile: &StackProfile, of: &dyn Fn(&Thread) -> bool) -> Vec<SymbolLine> {
    let mut sums: BTreeMap<(String, String, bool), Sums> = BTreeMap::new();
    let (mut all, mut seen) = (0, FxHashSet::default());
    // A frame has the same key wherever it stands.
    let keys: Vec<_> = profile
        .frames
        .iter()
        .map(|frame| (frame.name(), crate::sample::printable(&frame.module), frame.is_kernel))
        .collect();
    for row in &profile.rows {
        if !profile.thread(row).is_some_and(of) {
            continue;
        }
        all += row.samples;
        seen.clear();
        let frames = profile.stacks.get(row.stack as usize).map_or(&[][..], |frames| frames);
        for (at, &frame) in frames.iter().enumerate() {
            let Some(key) = keys.get(frame as usize) else { continue };
            let sum = sums.entry(key.clone()).or_default();
            // A function that calls itself has each sample once.
            if seen.insert(key) {
                sum.total += row.samples;
            }
            if at == 0 {
                sum.own += row.samples;
                if let Some(source) = profile.frames.get(frame as usize).and_then(super::Frame::source) {
                    *sum.sources.entry(source).or_default() += row.samples;
                }
            }
        }
    }
    let line = |((symbol, module, is_kernel), sum): ((String, String, bool), Sums)| SymbolLine {
        symbol,
        module,
        source: sum.sources.into_iter().max_by_key(|(source, count)| (*count, Reverse(source.clone()))).map(|it| it.0),
        is_kernel,
        self_samples: sum.own,
        self_percent: percent(sum.own, all),
        total_samples: sum.total,
        total_percent: percent(sum.total, all),
    };
    let mut lines: Vec<SymbolLine> = sums.into_iter().map(line).collect();
    lines.sort_by_key(|line| (Reverse(line.self_samples), Reverse(line.total_samples)));
    lines
}

type GroupKey = (String, Option<u32>, Option<u32>, Option<u64>, Option<String>);

/// The groups, the one with most samples first. [`By::Symbol`] has none.
#[must_use]
pub fn by(profile: &StackProfile, what: By) -> Vec<GroupLine> {
    let or_unknown = |text: &str| if text.is_empty() { "(unknown)".to_owned() } else { text.to_owned() };
    let key = |thread: &Thread| -> Option<GroupKey> {
        Some(match what {
            By::Symbol => return None,
            By::Thread => {
                let Thread { comm, pid, tid, hint, subcell, .. } = thread;
                (or_unknown(comm), Some(*pid), Some(*tid), *hint, subcell.clone())
            }
            By::Process => (or_unknown(&thread.process), Some(thread.pid), None, None, None),
            By::Cgroup => (or_unknown(&thread.cgroup), None, None, None, None),
            By::Subcell => (thread.subcell.clone().unwrap_or_else(|| "(no cell)".to_owned()), None, None, None, None),
        })
    };
    let mut sums: BTreeMap<GroupKey, (u64, FxHashMap<u32, u64>)> = BTreeMap::new();
    for row in &profile.rows {
        let Some(key) = profile.thread(row).and_then(key) else { continue };
        let (samples, tops) = sums.entry(key).or_default();
        *samples += row.samples;
        let top = profile.stacks.get(row.stack as usize).and_then(|frames| frames.first());
        if let Some(&top) = top {
            *tops.entry(top).or_default() += row.samples;
        }
    }
    let all = profile.count();
    let line = |((name, pid, tid, hint, subcell), (samples, tops)): (GroupKey, (u64, FxHashMap<u32, u64>))| {
        let mut names: BTreeMap<String, u64> = BTreeMap::new();
        for (frame, samples) in tops {
            if let Some(frame) = profile.frames.get(frame as usize) {
                *names.entry(frame.name()).or_default() += samples;
            }
        }
        let top = names.into_iter().max_by_key(|(name, count)| (*count, Reverse(name.clone())));
        let top = top.map_or_else(String::new, |(name, _)| name);
        GroupLine { name, pid, tid, hint, subcell, samples, percent: percent(samples, all), top }
    };
    let mut lines: Vec<GroupLine> = sums.into_iter().map(line).collect();
    lines.sort_by_key(|line| Reverse(line.samples));
    lines
}

#[cfg(test)]
mod tests {
    use super::super::profile::tests::made;
    use super::*;

    #[test]
    fn own_samples_and_those_of_callees_are_told_apart() {
        let profile =
            made(&[("a", "main;work;leaf", 6), ("b", "main;work", 3), ("a", "main;work;work", 1), ("c", "other", 10)]);
        let lines = symbols(&profile, &|_| true);
        let found: Vec<_> =
            lines.iter().map(|line| (line.symbol.as_str(), line.self_samples, line.total_samples)).collect();
        assert_eq!(found, [("other", 10, 10), ("leaf", 6, 6), ("work", 4, 10), ("main", 0, 10)]);
        assert!((lines[1].self_percent - 30.0).abs() < 1e-9 && (lines[3].total_percent - 50.0).abs() < 1e-9);
        let of_a = symbols(&profile, &|thread| thread.comm == "a");
        assert!((of_a[0].self_percent - 600.0 / 7.0).abs() < 1e-9);
        assert_eq!(lines.iter().map(|line| line.self_samples).sum::<u64>(), profile.count());
    }

    #[test]
    fn threads_and_processes_are_groups() {
        let mut profile = made(&[("a", "main;work", 6), ("b", "main", 3), ("a", "main;leaf", 5)]);
        profile.threads[1].subcell = Some("web/io".to_owned());
        let names =
            |what| by(&profile, what).into_iter().map(|line| (line.name, line.samples, line.top)).collect::<Vec<_>>();
        let line = |name: &str, samples, top: &str| (name.to_owned(), samples, top.to_owned());
        assert_eq!(names(By::Thread), [line("a", 11, "work"), line("b", 3, "main")]);
        assert_eq!(names(By::Process), [line("app", 14, "work")]);
        assert_eq!(names(By::Cgroup), [line("(unknown)", 14, "work")]);
        assert_eq!(names(By::Subcell), [line("(no cell)", 11, "work"), line("web/io", 3, "main")]);
        assert!(names(By::Symbol).is_empty());
    }
}
