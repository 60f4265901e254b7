//! Samples a load with known accesses with each source that works, and compares.

use std::cell::Cell;
use std::fmt::Write;
use std::io;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use super::check::{CheckState, Report};
use super::load::{Load, Worker};
use super::text;
use crate::host::Roots;
use crate::resolve::Cgroups;
use crate::sample::{Comm, MemoryId, MemoryScope, Sample, Source};
use crate::sampler::Target;
use crate::session::{self, HostOptions, Outcome, Session, Sink, Whose};

/// The number of accesses of each thread that suffices for a verdict.
const ENOUGH: u64 = 5;
/// If there are fewer, a capture continues, up to this many times its length.
const MAX_TIMES_LONGER: u32 = 4;

/// The result of testing one source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Tested {
    /// The source.
    pub source: &'static str,
    /// True if all accesses were right, and there were enough.
    pub passed: bool,
    /// What was wrong, one sentence each.
    pub failures: Vec<String>,
    /// Seconds of the capture.
    pub seconds: f64,
    /// Samples of the whole host, or of the load if only that may be sampled.
    pub samples: u64,
    /// Counts of the load's accesses.
    pub seen: SelfTestCounts,
    /// The part of the user samples that gave an address, if the source recovers addresses.
    pub recovered: Option<f64>,
    /// Percent of the samples that were lost.
    pub lost: f64,
}

/// Accesses of the load's threads, one or more per sample.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(crate) struct SelfTestCounts {
    /// Accesses by the load's threads.
    pub accesses: u64,
    /// Accesses by threads whose buffers this source can sample.
    pub judged: u64,
    /// Of these, accesses with an address in the thread's own buffer.
    pub own_buffer: u64,
    /// Accesses with an address in the buffer of another thread: wrong.
    pub other_buffer: u64,
    /// Accesses with another name than the thread has: wrong.
    pub wrong_name: u64,
    /// Accesses with another cgroup than the thread is in: wrong.
    pub wrong_cgroup: u64,
    /// Accesses with wrongly identified memory: wrong.
    pub wrong_place: u64,
    /// Accesses with a physical address.
    pub phys: u64,
    /// Accesses with the size of the page.
    pub page_size: u64,
    /// Threads of the load with a sample.
    pub threads: usize,
    /// Threads of the load.
    pub of_threads: usize,
}

/// Compares each sample with the description of the load.
struct Compare<'a> {
    workers: &'a [Worker],
    source: Source,
    seen: SelfTestCounts,
    /// Threads that must have samples, and still have too few.
    missing: &'a Cell<usize>,
    /// The cgroup of each worker, read at its first sample.
    cgroups: Vec<Option<u64>>,
    /// The file of the shared buffer, from the first sample.
    shared_file: Option<(MemoryScope, u64)>,
    /// Accesses of each worker.
    counts: Vec<u64>,
}

/// True if `source` can sample a worker: page faults occur only on pages that are dropped repeatedly.
fn sees(source: Source, worker: &Worker) -> bool {
    worker.shared || source != Source::Faults
}

impl Sink for Compare<'_> {
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups) {
        let Some(index) = self.workers.iter().position(|worker| worker.tid == sample.raw.tid) else { return };
        let (Some(worker), Some(cgroup), Some(count)) =
            (self.workers.get(index), self.cgroups.get_mut(index), self.counts.get_mut(index))
        else {
            return;
        };
        let seen = &mut self.seen;
        *count += 1;
        seen.accesses += 1;
        seen.phys += u64::from(sample.raw.phys != 0);
        seen.page_size += u64::from(sample.raw.page_size != 0);
        seen.wrong_name +=
            u64::from(sample.raw.pid != worker.pid || sample.comm != Some(Comm::from(worker.name.as_str())));
        let expected = *cgroup.get_or_insert_with(|| cgroups.of_thread(worker.pid, worker.tid).unwrap_or(0));
        seen.wrong_cgroup += u64::from(expected != 0 && sample.raw.cgroup != expected);
        let sees = sees(self.source, worker);
        seen.judged += u64::from(sees);
        if sees && *count == ENOUGH {
            self.missing.set(self.missing.get().saturating_sub(1));
        }
        if worker.contains(sample.raw.addr) {
            seen.own_buffer += u64::from(sees);
            let offset = sample.raw.addr - worker.begin;
            let right = match sample.memory {
                Some(MemoryId::Shared { scope, ino, offset: at }) if worker.shared => {
                    *self.shared_file.get_or_insert((scope, ino)) == (scope, ino) && at == offset
                }
                Some(MemoryId::Private { addr, .. }) => !worker.shared && addr == sample.raw.addr,
                _ => false,
            };
            seen.wrong_place += u64::from(!right);
        } else {
            let other = |other: &&Worker| other.tid != worker.tid && other.pid == worker.pid;
            let in_other = self.workers.iter().filter(other).any(|other| other.contains(sample.raw.addr));
            seen.other_buffer += u64::from(in_other);
        }
    }
}

impl Compare<'_> {
    /// The verdict, after the end of the capture.
    fn finish(self, outcome: &Outcome) -> Tested {
        let Self { workers, source, mut seen, counts, .. } = self;
        seen.threads = counts.iter().filter(|&&count| count > 0).count();
        let unseen = workers.iter().zip(&counts).filter(|&(worker, &count)| sees(source, worker) && count < ENOUGH);
        let unseen = unseen.map(|(worker, count)| format!("only {count} accesses of {} were seen", worker.name));
        judge(source, seen, unseen.collect(), outcome)
    }
}

/// Samples for `seconds` with each source that works, longer if there were few samples; `command` must start the load.
///
/// # Errors
/// The load does not start.
pub(crate) fn run(
    report: &Report,
    roots: &Roots,
    seconds: Duration,
    mut command: impl FnMut() -> Command,
) -> io::Result<Vec<Tested>> {
    report
        .usable()
        .map(|(source, state)| {
            let load = Load::start(command())?;
            Ok(test(source, state, roots, seconds, &load.workers))
        })
        .collect()
}

fn test(source: Source, state: CheckState, roots: &Roots, seconds: Duration, workers: &[Worker]) -> Tested {
    let target = match state {
        CheckState::Works => Target::System,
        // Threads that the load's own process creates later inherit the event; threads that already ran do not.
        _ => Target::Tasks { tids: workers.iter().map(|worker| worker.tid).collect(), enable_on_exec: false },
    };
    let failed = |why: String| Tested {
        source: source.name(),
        passed: false,
        failures: vec![why],
        seconds: 0.0,
        samples: 0,
        seen: SelfTestCounts::default(),
        recovered: None,
        lost: 0.0,
    };
    let options = HostOptions { whose: Whose::Target(target), raise_open_files: true, ..HostOptions::source(source) };
    let session = match Session::builder().roots(roots.clone()).host(options).start() {
        Ok(session) => session,
        Err(error) => return failed(error.to_string()),
    };
    let missing = Cell::new(workers.iter().filter(|worker| sees(source, worker)).count());
    let mut compare = Compare {
        workers,
        source,
        seen: SelfTestCounts { of_threads: workers.len(), ..SelfTestCounts::default() },
        missing: &missing,
        cgroups: vec![None; workers.len()],
        shared_file: None,
        counts: vec![0; workers.len()],
    };
    let outcome = session.run_into(&mut compare, |progress| {
        progress.elapsed >= seconds && (missing.get() == 0 || progress.elapsed >= seconds * MAX_TIMES_LONGER)
    });
    compare.finish(&outcome)
}

fn judge(source: Source, seen: SelfTestCounts, mut failures: Vec<String>, outcome: &Outcome) -> Tested {
    let mut wrong = |count: u64, what: &str| {
        if count > 0 {
            failures.push(format!("{count} of {} accesses {what}", seen.accesses));
        }
    };
    wrong(seen.other_buffer, "are in the buffer of another thread");
    wrong(seen.wrong_name, "have the name of another thread");
    wrong(seen.wrong_cgroup, "have another cgroup than the thread");
    wrong(seen.wrong_place, "are in the thread's buffer and were taken for other memory");
    if seen.own_buffer * 2 < seen.judged {
        failures.push(format!("only {} of {} addresses are in the thread's buffer", seen.own_buffer, seen.judged));
    }
    Tested {
        source: source.name(),
        passed: failures.is_empty(),
        failures,
        seconds: outcome.duration.as_secs_f64(),
        samples: outcome.samples,
        recovered: outcome.recovery.as_ref().map(session::RecoveryStats::share),
        lost: outcome.loss.percent(),
        seen,
    }
}

/// All results as one block for a bug report, without names of hosts, users, cgroups or their files.
#[must_use]
pub(crate) fn block(report: &Report, tests: &[Tested]) -> String {
    let mut text = format!("--- scxprof self-test ---\nscxprof {}\n{}\n", report.scxprof, text::machine(report));
    // Writing to a String cannot fail.
    for test in tests {
        let verdict = if test.passed { "passed" } else { "FAILED" };
        let SelfTestCounts { accesses, judged, own_buffer, threads, of_threads, phys, page_size, .. } = test.seen;
        let _ = write!(
            text,
            "{:8}{verdict}: {:.1} s, {} samples, {accesses} accesses by {threads} of the load's {of_threads} threads; \
             {own_buffer} of {judged} addresses in the thread's own buffer, {phys} with a physical address, \
             {page_size} with a page size; ",
            test.source, test.seconds, test.samples
        );
        if let Some(recovered) = test.recovered {
            let _ = write!(text, "{:.1} % of all user samples gave an address; ", recovered * 100.0);
        }
        let _ = writeln!(text, "{:.3} % lost", test.lost);
        for failure in &test.failures {
            let _ = writeln!(text, "        {failure}");
        }
    }
    if tests.is_empty() {
        text.push_str("no source works, so nothing was sampled\n");
    }
    for check in &report.checks {
        // The sentence of a check that works may contain a path. For a check that fails, the reason matters.
        let _ = match check.state {
            CheckState::Works => writeln!(text, "{:15}{}", check.name, check.state),
            _ => writeln!(text, "{:15}{}: {}", check.name, check.state, check.why),
        };
    }
    text.push_str("--- end ---\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::Modules;
    use crate::sample::RawSample;

    fn worker(tid: u32, name: &str, shared: bool, begin: u64) -> Worker {
        Worker { pid: 70, tid, name: name.to_owned(), shared, begin, len: 0x1000 }
    }

    /// A hierarchy with the workers' process in the cgroup `x`; also returns the id of `x`.
    fn hierarchy() -> (tempfile::TempDir, Cgroups, u64) {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots { proc: dir.path().join("proc"), cgroup: Some(dir.path().join("cg")), ..Roots::default() };
        for path in ["proc/self", "proc/70/task/1", "proc/70/task/2", "cg/x"] {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        for path in ["proc/self/cgroup", "proc/70/cgroup", "proc/70/task/1/cgroup", "proc/70/task/2/cgroup"] {
            std::fs::write(dir.path().join(path), "0::/x\n").unwrap();
        }
        std::fs::write(dir.path().join("proc/self/mountinfo"), "").unwrap();
        let id = std::fs::metadata(dir.path().join("cg/x")).unwrap().ino();
        let mut cgroups = Cgroups::new(&roots).unwrap();
        cgroups.walk().unwrap();
        (dir, cgroups, id)
    }

    /// A change that makes a sample wrong.
    type Spoil = fn(&mut Sample);

    /// The result for samples that `change` makes wrong.
    fn judged(change: impl Fn(&mut Sample)) -> Tested {
        let (_dir, mut cgroups, cgroup) = hierarchy();
        let workers = [worker(1, "load-a", true, 0x10_000), worker(2, "load-b", false, 0x20_000)];
        let missing = Cell::new(workers.len());
        let mut compare = Compare {
            workers: &workers,
            source: Source::Timer,
            seen: SelfTestCounts { of_threads: 2, ..SelfTestCounts::default() },
            missing: &missing,
            cgroups: vec![None; 2],
            shared_file: None,
            counts: vec![0; 2],
        };
        for round in 0..10 {
            for worker in &workers {
                let addr = worker.begin + round * 8;
                let memory = if worker.shared {
                    MemoryId::Shared { scope: MemoryScope::device(1, 0), ino: 9, offset: round * 8 }
                } else {
                    MemoryId::Private { space: 3, addr }
                };
                let comm = Some(Comm::from(worker.name.as_str()));
                let mut sample = Sample {
                    raw: RawSample { pid: 70, tid: worker.tid, addr, cgroup, ..RawSample::default() },
                    comm,
                    memory: Some(memory),
                    ..Sample::default()
                };
                change(&mut sample);
                compare.sample(&sample, &mut cgroups);
            }
        }
        let outcome = Outcome {
            samples: 20,
            accesses: 20,
            events: 20,
            duration: Duration::from_secs(1),
            modules: Modules::new(),
            ..Outcome::default()
        };
        assert_eq!(compare.counts.iter().all(|&count| count >= ENOUGH), missing.get() == 0);
        compare.finish(&outcome)
    }

    #[test]
    fn what_is_right_passes_and_each_mistake_fails() {
        let right = judged(|_| {});
        assert!(right.passed, "{right:?}");
        assert_eq!((right.seen.own_buffer, right.seen.judged, right.seen.threads), (20, 20, 2));
        let mistakes: [(Spoil, &str); 8] = [
            (|sample| sample.comm = Some(Comm::from("other")), "20 of 20 accesses have the name of another thread"),
            (|sample| sample.raw.pid = 71, "have the name of another thread"),
            (|sample| sample.raw.cgroup += 1, "20 of 20 accesses have another cgroup"),
            (|sample| sample.raw.addr ^= 0x30_000, "20 of 20 accesses are in the buffer of another thread"),
            (|sample| sample.raw.addr = 8, "only 0 of 20 addresses are in the thread's buffer"),
            (
                |sample| sample.memory = None,
                "20 of 20 accesses are in the thread's buffer and were taken for other memory",
            ),
            (
                |sample| {
                    sample.memory = Some(MemoryId::Shared {
                        scope: MemoryScope::device(1, 0),
                        ino: sample.raw.addr,
                        offset: sample.raw.addr & 0xfff,
                    });
                },
                "were taken for other memory",
            ),
            (
                |sample| {
                    if sample.raw.tid == 2 {
                        sample.raw.tid = 3;
                    }
                },
                "only 0 accesses of load-b were seen",
            ),
        ];
        for (spoil, sentence) in mistakes {
            let tested = judged(spoil);
            assert!(!tested.passed, "{sentence}");
            assert!(tested.failures.iter().any(|failure| failure.contains(sentence)), "{sentence}: {tested:?}");
        }
    }
}
