//! The comparisons, and their margins.

use std::collections::BTreeSet;

use crate::samples::{missing, Samples};

/// With fewer accesses, distributions are not compared.
const ENOUGH: usize = 300;
/// Samples that a recording may lose before its rate means nothing.
const LOST_PERCENT: f64 = 5.0;
/// Of the rates of two recordings one after the other.
const RATE_PERCENT: f64 = 20.0;
/// Of a share, beside three standard deviations: the workload does not do the same twice.
const SHARE_POINTS: f64 = 5.0;
/// Of a latency, and at least so many cycles.
const LATENCY_PERCENT: f64 = 15.0;
const LATENCY_CYCLES: f64 = 5.0;
/// Accesses in a recording of perf that one of two readers leaves out: scxprof leaves out those that cannot be right.
const READ_PERCENT: f64 = 1.0;

pub enum Verdict {
    Agrees,
    Differs,
    /// And why not.
    NotCompared(String),
}

impl Verdict {
    pub fn of(agrees: bool) -> Self {
        if agrees {
            Self::Agrees
        } else {
            Self::Differs
        }
    }
}

/// One comparison.
pub struct Row {
    pub what: String,
    pub scxprof: String,
    /// Of perf, or of the truth.
    pub other: String,
    pub margin: String,
    pub verdict: Verdict,
}

impl Row {
    pub fn new(what: &str, scxprof: String, other: String, margin: String, verdict: Verdict) -> Self {
        Self { what: what.to_owned(), scxprof, other, margin, verdict }
    }

    pub fn not_compared(what: &str, why: &str) -> Self {
        let dash = || "-".to_owned();
        Self::new(what, dash(), dash(), dash(), Verdict::NotCompared(why.to_owned()))
    }
}

fn percent(part: usize, of: usize) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

/// Two readers of one file. `exact`: they must have the same, which is so if scxprof wrote it.
pub fn readers(what: &str, scxprof: &Samples, perf: &Samples, exact: bool) -> Row {
    let (only_scxprof, only_perf) = (missing(scxprof, perf), missing(perf, scxprof));
    let few = |count: usize, of: &Samples| percent(count, of.accesses.len()) <= READ_PERCENT;
    let agrees = !scxprof.accesses.is_empty()
        && if exact { only_scxprof + only_perf == 0 } else { few(only_scxprof, scxprof) && few(only_perf, perf) };
    let shown =
        |samples: &Samples, only: usize| format!("{} accesses, {only} missing in the other", samples.accesses.len());
    let margin = if exact { "none".to_owned() } else { format!("{READ_PERCENT} %") };
    Row::new(what, shown(scxprof, only_scxprof), shown(perf, only_perf), margin, Verdict::of(agrees))
}

/// A recording of scxprof with one of perf, of the same work.
pub fn recordings(scxprof: &Samples, perf: &Samples) -> Vec<Row> {
    let mut rows = vec![share("samples with a data address", scxprof, perf, |it| (it.accesses.len(), it.count))];
    rows.push(share("accesses with a physical address", scxprof, perf, |it| (it.with_phys(), it.accesses.len())));
    let levels: BTreeSet<&String> = scxprof.levels.keys().chain(perf.levels.keys()).collect();
    for level in levels {
        let count = |it: &Samples| it.levels.get(level).copied().unwrap_or(0);
        // Of those that are rare on both sides, the number says nothing.
        if percent(count(scxprof), scxprof.accesses.len()) < 1.0 && percent(count(perf), perf.accesses.len()) < 1.0 {
            continue;
        }
        rows.push(share(&format!("data from: {level}"), scxprof, perf, |it| (count(it), it.accesses.len())));
    }
    rows.push(share("modified in another cache (HITM)", scxprof, perf, |it| (it.hitm, it.accesses.len())));
    rows.push(latency("median of the latency", scxprof, perf, 0.5));
    rows.push(latency("90th percentile of the latency", scxprof, perf, 0.9));
    rows
}

fn too_few(scxprof: &Samples, perf: &Samples) -> Option<Verdict> {
    let least = scxprof.accesses.len().min(perf.accesses.len());
    (least < ENOUGH).then(|| Verdict::NotCompared(format!("{least} accesses are fewer than {ENOUGH}")))
}

/// Accesses for each second that the workload ran: the programs that record take CPU time from it, each as much as it needs.
pub fn rate(scxprof: &Samples, perf: &Samples, scxprof_seconds: f64, perf_seconds: f64) -> Row {
    let of = |it: &Samples, seconds: f64| it.accesses.len() as f64 / seconds.max(0.01);
    let (a, b) = (of(scxprof, scxprof_seconds), of(perf, perf_seconds));
    let lost = |it: &Samples| 100.0 * it.lost as f64 / (it.records as f64 + it.lost as f64).max(1.0);
    let verdict = too_few(scxprof, perf).unwrap_or_else(|| {
        if lost(scxprof).max(lost(perf)) > LOST_PERCENT {
            Verdict::NotCompared(format!("lost: {:.1} % by scxprof, {:.1} % by perf", lost(scxprof), lost(perf)))
        } else {
            Verdict::of((a - b).abs() <= a.max(b) * RATE_PERCENT / 100.0)
        }
    });
    let shown = |it: &Samples, seconds: f64, rate: f64| format!("{} in {seconds:.1} s: {rate:.0}/s", it.accesses.len());
    let (shown_a, shown_b) = (shown(scxprof, scxprof_seconds, a), shown(perf, perf_seconds, b));
    let margin = format!("{RATE_PERCENT} %");
    Row::new("accesses, for each CPU second of the workload", shown_a, shown_b, margin, verdict)
}

fn share(what: &str, scxprof: &Samples, perf: &Samples, of: impl Fn(&Samples) -> (usize, usize)) -> Row {
    let ((a, of_a), (b, of_b)) = (of(scxprof), of(perf));
    let both = percent(a + b, of_a + of_b) / 100.0;
    let deviation = (both * (1.0 - both) * (1.0 / of_a.max(1) as f64 + 1.0 / of_b.max(1) as f64)).sqrt();
    let margin = SHARE_POINTS + 300.0 * deviation;
    let (a, b) = (percent(a, of_a), percent(b, of_b));
    let verdict = too_few(scxprof, perf).unwrap_or_else(|| Verdict::of((a - b).abs() <= margin));
    Row::new(what, format!("{a:.1} %"), format!("{b:.1} %"), format!("{margin:.1} points"), verdict)
}

fn latency(what: &str, scxprof: &Samples, perf: &Samples, quantile: f64) -> Row {
    match (scxprof.latency(quantile), perf.latency(quantile)) {
        (Some(a), Some(b)) => {
            let (shown_a, shown_b) = (format!("{a} cycles"), format!("{b} cycles"));
            let (a, b) = (a as f64, b as f64);
            let margin = (a.max(b) * LATENCY_PERCENT / 100.0).max(LATENCY_CYCLES);
            let verdict = too_few(scxprof, perf).unwrap_or_else(|| Verdict::of((a - b).abs() <= margin));
            Row::new(what, shown_a, shown_b, format!("{margin:.0} cycles"), verdict)
        }
        (None, None) => Row::not_compared(what, "no sample has a latency"),
        (a, _) => {
            let shown = |has: bool| if has { "some" } else { "no sample has one" }.to_owned();
            Row::new(what, shown(a.is_some()), shown(a.is_none()), "-".to_owned(), Verdict::Differs)
        }
    }
}
