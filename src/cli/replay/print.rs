//! A replay as people read it: the threads beside the recorded ones, and the loops.

use std::fmt::Write as _;

use super::super::times::us;
use super::ReplayArgs;
use scxprof_base::columns::{fitted, wrapped, Column};
use scxprof_replay::{Compared, Pair, ReplayTotals, Script};

fn percent(pair: &Pair) -> String {
    pair.difference().map_or("-".to_owned(), |difference| format!("{:+.1}", 100.0 * difference))
}

/// How the columns of threads give way: what was recorded stays with what was replayed.
const THREADS: [Column; 13] = [
    Column::name(0),
    Column::number(4),
    Column::number(0),
    Column::number(0),
    Column::number(1),
    Column::number(5),
    Column::number(6),
    Column::number(6),
    Column::number(3),
    Column::number(3),
    Column::number(4),
    Column::number(2),
    Column::number(2),
];
/// The same of loops.
const LOOPS: [Column; 9] = [
    Column::number(0),
    Column::number(0),
    Column::number(1),
    Column::number(2),
    Column::number(3),
    Column::number(5),
    Column::number(6),
    Column::number(4),
    Column::number(4),
];

/// Both tables, in lines of this width.
pub(super) fn table(
    args: &ReplayArgs,
    script: &Script,
    loops: &[ReplayTotals],
    compared: &Compared,
    width: Option<usize>,
) -> String {
    let ms = |ns: u64| format!("{:.3}", ns as f64 / 1e6);
    let count = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
    let head = [
        "THREAD", "TID", "RUN(ms)", "REPLAY", "%", "SWITCHES", "REPLAY", "%", "WAKEUPS", "REPLAY", "%", "WAIT(ms)",
        "REPLAY",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    let limit = if args.limit == 0 { usize::MAX } else { args.limit };
    let all = ("all".to_owned(), "-".to_owned(), &compared.total);
    let lines = compared.threads.iter().take(limit).map(|it| (it.comm.clone(), it.tid.to_string(), &it.fidelity));
    for (name, tid, fidelity) in lines.chain([all]) {
        let (run, switches, wakeups) = (&fidelity.run_ns, &fidelity.switches, &fidelity.wakeups);
        rows.push([
            name,
            tid,
            ms(run.recorded),
            run.replayed.map_or("-".to_owned(), ms),
            percent(run),
            switches.recorded.to_string(),
            count(switches.replayed),
            percent(switches),
            wakeups.recorded.to_string(),
            count(wakeups.replayed),
            percent(wakeups),
            ms(fidelity.wait_ns.recorded),
            fidelity.wait_ns.replayed.map_or("-".to_owned(), ms),
        ]);
    }
    let mut text = fitted(&rows, &THREADS, width);
    let shown = compared.threads.len().min(limit);
    let (threads, processes) = (compared.threads.len(), script.processes.len());
    let _ =
        write!(text, "{shown} of {threads} threads of {processes} processes, {:.3} s\n\n", script.window as f64 / 1e9);
    let head =
        ["LOOP", "TIME(s)", "WORK/s(M)", "WAKEUP P50(us)", "P99", "TIMER P50(us)", "P99", "MIGRATIONS", "MISSES(M)"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(loops.iter().enumerate().map(|(number, totals)| {
        let (wakeup, timer) = (&totals.wakeup_latency, &totals.timer_latency);
        [
            (number + 1).to_string(),
            format!("{:.3}", totals.duration_ns as f64 / 1e9),
            format!("{:.3}", totals.work_per_s / 1e6),
            us(wakeup.p50_ns),
            us(wakeup.p99_ns),
            us(timer.p50_ns),
            us(timer.p99_ns),
            totals.migrations.to_string(),
            totals.cache_misses.map_or("-".to_owned(), |misses| format!("{:.3}", misses as f64 / 1e6)),
        ]
    }));
    text += &fitted(&rows, &LOOPS, width);
    if loops.iter().any(|totals| totals.is_stopped) {
        text += "stopped before its end\n";
    }
    wrapped(&text, width)
}
