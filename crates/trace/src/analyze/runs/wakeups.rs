//! The results of wakeups: how long each part took, which led to a run, and chains of them.

use serde::Serialize;

use super::{at, forget};
use crate::analyze::text_table::{ms, of_all, percent, share, us, Spread, TextTable};
use scxprof_sched::report::Labels;
use scxprof_sched::wakers::report::{self, ChainLine, LengthLine, Level};
use scxprof_sched::{Durations, Fact, Slot, Threads, Wakers, Why};

/// Parts of the latency of wakeups.
#[derive(Debug, Default)]
pub(super) struct Breakdown {
    /// When each thread was put on a run queue, since it left its CPU.
    queued: Vec<Option<u64>>,
    before: Durations,
    after: Durations,
    whole: Durations,
    without: u64,
}

impl Breakdown {
    /// `sched_wakeup`.
    pub(super) fn woken(&mut self, slot: Slot, time: u64) {
        at(&mut self.queued, slot).get_or_insert(time);
    }

    pub(super) fn fact(&mut self, fact: &Fact) {
        match *fact {
            // A wakeup while it ran is of no wait.
            Fact::Switched { prev: Some(slot), .. } | Fact::Touched { thread: slot } | Fact::Ended { thread: slot } => {
                forget(&mut self.queued, slot);
            }
            Fact::Waited { thread, from, until, why, .. } => {
                let queued = at(&mut self.queued, thread).take();
                match (why, queued.filter(|&queued| (from..=until).contains(&queued))) {
                    (Why::Woken(_), Some(queued)) => {
                        self.before.add(queued - from);
                        self.after.add(until - queued);
                        self.whole.add(until - from);
                    }
                    (Why::Woken(_), None) => self.without += 1,
                    _ => {}
                }
            }
            _ => {}
        }
    }

    pub(super) fn finish(&self) -> LatencyBreakdown {
        LatencyBreakdown {
            waking_to_wakeup: Spread::from(&self.before),
            wakeup_to_run: Spread::from(&self.after),
            latency: Spread::from(&self.whole),
            waking_part: share(self.before.sum(), self.whole.sum()),
            without_wakeup: self.without,
        }
    }
}

/// The result of `latency_breakdown`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LatencyBreakdown {
    /// From `sched_waking` to `sched_wakeup`: until the thread is on a run queue.
    pub waking_to_wakeup: Spread,
    /// From there until it has a CPU.
    pub wakeup_to_run: Spread,
    /// Both.
    pub latency: Spread,
    /// The first part of all time of both.
    pub waking_part: Option<f64>,
    /// Waits after a wakeup without a `sched_wakeup`: they are in none of these.
    pub without_wakeup: u64,
}

impl LatencyBreakdown {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let mut table = TextTable::of_spreads("Parts of the latency of wakeups", "PART");
        table.push_spread("sched_waking to sched_wakeup".to_owned(), &self.waking_to_wakeup);
        table.push_spread("sched_wakeup to the CPU".to_owned(), &self.wakeup_to_run);
        table.push_spread("both".to_owned(), &self.latency);
        let values = [
            ("sched_waking to sched_wakeup, % of the time", percent(self.waking_part)),
            ("waits without a sched_wakeup", self.without_wakeup.to_string()),
        ];
        vec![table, TextTable::of_values("", &values)]
    }
}

/// The result of each wakeup.
#[derive(Debug, Default)]
pub(super) struct Correlation {
    /// The wakeup that a thread has not run since.
    pending: Vec<bool>,
    counts: WakeupCorrelation,
}

impl Correlation {
    fn take(&mut self, slot: Slot) -> bool {
        self.pending.get_mut(slot as usize).is_some_and(std::mem::take)
    }

    pub(super) fn fact(&mut self, threads: &Threads, fact: &Fact) {
        match *fact {
            Fact::Woken { thread: slot, time, .. } => {
                self.counts.wakeups += 1;
                let waits = threads.get(slot).and_then(scxprof_sched::Thread::waits);
                let pending = at(&mut self.pending, slot);
                match waits {
                    None => self.counts.was_running += 1,
                    Some((since, Why::Woken(_) | Why::New)) if since == time && !*pending => *pending = true,
                    Some(_) => self.counts.was_runnable += 1,
                }
            }
            Fact::Waited { thread, why: Why::Woken(_) | Why::New, .. } => {
                self.counts.matched += u64::from(self.take(thread));
            }
            Fact::Switched { prev: Some(slot), .. } => self.counts.run_not_seen += u64::from(self.take(slot)),
            Fact::Touched { thread } => self.counts.lost += u64::from(self.take(thread)),
            Fact::Ended { thread } => self.counts.ended += u64::from(self.take(thread)),
            _ => {}
        }
    }

    pub(super) fn finish(mut self, no_room: u64) -> WakeupCorrelation {
        self.counts.still_waiting = self.pending.iter().filter(|pending| **pending).count() as u64;
        self.counts.matched_part = share(self.counts.matched, self.counts.wakeups);
        self.counts.no_room = no_room;
        self.counts
    }
}

/// The result of `wakeup_correlation`. `wakeups` is the sum of `matched` and the reasons after it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct WakeupCorrelation {
    /// All wakeups, those of new threads included.
    pub wakeups: u64,
    /// Those after which the thread was seen to get a CPU.
    pub matched: u64,
    /// The same as a part.
    pub matched_part: Option<f64>,
    /// The thread ran at that time.
    pub was_running: u64,
    /// It was runnable already: woken before, or it had lost its CPU.
    pub was_runnable: u64,
    /// It left a CPU without having been seen to get it.
    pub run_not_seen: u64,
    /// Events were lost in between.
    pub lost: u64,
    /// It ended first.
    pub ended: u64,
    /// It had not run at the end of the trace.
    pub still_waiting: u64,
    /// Events of threads beyond the bound of threads that are followed: they are in no other number.
    pub no_room: u64,
}

impl WakeupCorrelation {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let values = [
            ("wakeups", self.wakeups),
            ("with the run that they led to", self.matched),
            ("thread ran already", self.was_running),
            ("thread was runnable already", self.was_runnable),
            ("beginning of the run was not seen", self.run_not_seen),
            ("events were lost", self.lost),
            ("thread ended first", self.ended),
            ("thread still waited at the end", self.still_waiting),
        ];
        let mut values: Vec<(&str, String)> = values.iter().map(|(name, count)| (*name, count.to_string())).collect();
        values.push(("with the run that they led to, %", percent(self.matched_part)));
        vec![TextTable::of_values("", &values)]
    }
}

/// The result of `wakeup_chains`: a thread that an interrupt wakes begins a chain; one that is woken by a thread with a chain
/// gets that chain and adds its own wait.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WakeupChains {
    /// Wakeups.
    pub wakeups: u64,
    /// Chains by their number of waits; one counts whenever a wait of it ends. 64 stands for that and more.
    pub lengths: Vec<LengthLine>,
    /// The sums of waits of chains shorter than 64.
    pub latency: Spread,
    /// Those of them with the greatest sum, one for each sequence of names.
    pub chains: Vec<Chain>,
}

/// A chain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chain {
    /// What it is.
    #[serde(flatten)]
    pub chain: ChainLine,
    /// Its waits as a part of those of the chain with the greatest sum.
    pub criticality: Option<f64>,
}

pub(super) fn chains((wakers, threads): (&Wakers, &Threads), limit: usize) -> WakeupChains {
    let report = report::report((wakers, threads), Level::Thread, 0, &Labels::default());
    let greatest = report.chains.first().map_or(0, |chain| chain.latency_ns);
    let chain = |chain: ChainLine| Chain { criticality: share(chain.latency_ns, greatest), chain };
    let latency = report.chain_latency;
    WakeupChains {
        wakeups: report.counts.wakeups,
        lengths: report.chain_lengths,
        latency: Spread {
            count: latency.times.count,
            total_ns: latency.times.total_ns,
            min_ns: latency.times.min_ns,
            mean_ns: latency.times.mean_ns,
            p50_ns: latency.p50_ns,
            p95_ns: latency.p95_ns,
            p99_ns: latency.p99_ns,
            p999_ns: None,
            max_ns: latency.times.max_ns,
        },
        chains: report.chains.into_iter().take(limit).map(chain).collect(),
    }
}

/// Lengths that a table shows.
const LENGTHS: usize = 10;

impl WakeupChains {
    pub(in crate::analyze) fn tables(&self) -> Vec<TextTable> {
        let mut all = TextTable::of_spreads("Sums of the waits of a chain", "CHAINS");
        all.push_spread("all".to_owned(), &self.latency);
        let title = of_all("Chains by their number of waits", self.lengths.len().min(LENGTHS), self.lengths.len());
        let mut lengths = TextTable::new(title, &["LENGTH", "COUNT", "MEAN(us)", "MAX(us)"]);
        for line in self.lengths.iter().take(LENGTHS) {
            let (count, mean, max) = (line.latency.count, us(line.latency.mean_ns), us(line.latency.max_ns));
            lengths.push(vec![line.length.to_string(), count.to_string(), mean, max]);
        }
        let head = ["SUM(ms)", "WAITS", "PREEMPTED", "CRITICALITY%", "LAST THREADS"];
        let mut chains = TextTable::new("Chains with the greatest sum", &head);
        for Chain { chain, criticality } in &self.chains {
            let names: Vec<String> =
                chain.threads.iter().map(|thread| format!("{}[{}]", thread.name, thread.tid)).collect();
            let path = if chain.is_cut { "... > " } else { "" }.to_owned() + &names.join(" > ");
            let numbers = [ms(chain.latency_ns), chain.length.to_string(), chain.preempted.to_string()];
            chains.push(numbers.into_iter().chain([percent(*criticality), path]).collect());
        }
        vec![all, lengths, chains]
    }
}
