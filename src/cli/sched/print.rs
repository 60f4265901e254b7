//! The result as a table and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::super::format;
use super::super::times::{incomplete, mark, ms, us};
use super::super::wakers::{self, FoundWakers};
use super::super::{dsqs, windows};
use super::{SchedArgs, What};
use crate::session::{SchedLoss, SchedSink};
use scxprof_base::columns::{fitted, wrapped, Column};
use scxprof_sched::dsqs::DsqLine;
use scxprof_sched::report::{By, Line};
use scxprof_sched::{Gaps, Summary};

/// The result as JSON.
#[derive(Debug, Serialize)]
struct Document<'a> {
    version: u32,
    by: What,
    /// From the first event to the last.
    window_ns: u64,
    events: u64,
    loss: SchedLoss,
    gaps: GapCounts,
    /// Threads that have ended; their statistics are added up by process, cgroup and name.
    threads_ended: u64,
    still_waiting: u64,
    longest_still_waiting_ns: u64,
    /// Times that a thread ran again without a wakeup, and ns in which it neither slept nor waited as far as is known.
    unwoken: u64,
    unwoken_ns: u64,
    total: &'a Line,
    scxprof: &'a Line,
    /// How many lines there are; `lines` has the first of them.
    line_count: usize,
    lines: &'a [Line],
    /// Dispatch queues, with --by dsq.
    #[serde(skip_serializing_if = "Option::is_none")]
    dsqs: Option<&'a [DsqLine]>,
    /// Times that a thread got a CPU from a dispatch queue that is not known, with --by dsq.
    #[serde(skip_serializing_if = "Option::is_none")]
    dsq_unknown: Option<u64>,
    /// CPUs in use in windows, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    windows: Option<&'a Summary>,
    /// Which threads wake each other, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    wakers: Option<&'a FoundWakers>,
    /// What the recording lacks, and other facts.
    notes: &'a [String],
}

#[derive(Debug, Serialize)]
struct GapCounts {
    losses: u64,
    mismatches: u64,
    backwards: u64,
    no_room: u64,
}

impl From<Gaps> for GapCounts {
    fn from(gaps: Gaps) -> Self {
        let Gaps { losses, mismatches, backwards, no_room } = gaps;
        Self { losses, mismatches, backwards, no_room }
    }
}

/// The lines, and what they are about.
pub(super) enum Lines {
    Of(By, Vec<Line>),
    Dsqs(Vec<DsqLine>),
}

/// What was found; `--json` prints all of it.
pub(super) struct Results {
    pub(super) stats: SchedSink,
    pub(super) loss: SchedLoss,
    pub(super) lines: Lines,
    pub(super) windows: Option<Summary>,
    pub(super) wakers: Option<FoundWakers>,
    /// What the recording lacks.
    pub(super) lacks: Vec<String>,
}

/// The table that was asked for, in lines of this width.
pub(super) fn text(args: &SchedArgs, results: &Results, width: Option<usize>) -> String {
    let Results { stats, loss, lines, windows, wakers, .. } = results;
    let text = match (windows, wakers, lines) {
        (Some(windows), ..) => windows::table(windows, width),
        (None, Some(wakers), _) => wakers::table(wakers, width),
        (None, None, Lines::Dsqs(dsqs)) => dsqs::table(dsqs, (stats, loss), width),
        (None, None, Lines::Of(by, lines)) => table(args, *by, (stats, loss), lines, width),
    };
    wrapped(&text, width)
}

/// All as JSON.
pub(super) fn document(args: &SchedArgs, results: &Results) -> anyhow::Result<String> {
    let Results { stats, loss, lines, windows, wakers, lacks } = results;
    let (lines, dsqs) = match lines {
        Lines::Of(_, lines) => (lines.as_slice(), None),
        Lines::Dsqs(dsqs) => (&[][..], Some(dsqs.as_slice())),
    };
    let (total, own) = stats.totals();
    let (still_waiting, longest_still_waiting_ns) = stats.still_waiting();
    let document = Document {
        version: 1,
        by: args.by,
        window_ns: stats.window(),
        events: stats.events(),
        loss: *loss,
        gaps: stats.gaps().into(),
        threads_ended: stats.folded(),
        still_waiting,
        longest_still_waiting_ns,
        unwoken: stats.unwoken().count,
        unwoken_ns: stats.unwoken().total_ns,
        total: &total,
        scxprof: &own,
        line_count: lines.len(),
        lines: shown(args, lines),
        dsqs,
        dsq_unknown: dsqs.map(|_| stats.unknown_dsqs()),
        windows: windows.as_ref(),
        wakers: wakers.as_ref(),
        notes: lacks,
    };
    format::json(&document)
}

fn shown<'a>(args: &SchedArgs, lines: &'a [Line]) -> &'a [Line] {
    if args.limit == 0 {
        return lines;
    }
    lines.get(..args.limit).unwrap_or(lines)
}

/// How columns give way. Those of latency need the first of them, which says what they are.
const RUN: [Column; 7] = [
    Column::number(0),
    Column::number(1),
    Column::number(3),
    Column::number(6),
    Column::number(5),
    Column::number(5),
    Column::number(1),
];
const SLEEP: [Column; 2] = [Column::number(7); 2];
const LATENCY: [Column; 5] =
    [Column::number(2), Column::number(8), Column::number(6), Column::number(3), Column::number(4)];

fn table(
    args: &SchedArgs,
    by: By,
    (stats, loss): (&SchedSink, &SchedLoss),
    lines: &[Line],
    width: Option<usize>,
) -> String {
    let window = stats.window();
    let is_cpus = matches!(by, By::Cpu | By::Llc | By::Node);
    let what = match by {
        By::Thread => "THREAD",
        By::Process => "PROCESS",
        By::Cgroup => "CGROUP",
        By::Cell => "CELL",
        By::Cpu | By::Llc | By::Node => "CPUS",
    };
    let mut head = vec![what];
    let mut columns = vec![Column::name(0)];
    let (ids, ranks) = match by {
        By::Thread => (&["TID", "PID"][..], &[2, 4][..]),
        By::Process => (&["PID", "THREADS"][..], &[2, 4][..]),
        By::Cgroup | By::Cell => (&["THREADS"][..], &[4][..]),
        By::Cpu | By::Llc | By::Node => (&["NR", "IDLE(ms)", "UNKNOWN(ms)"][..], &[4, 2, 6][..]),
    };
    head.extend(ids);
    columns.extend(ranks.iter().map(|&rank| Column::number(rank)));
    head.extend(["RUN(ms)", "%CPU", "SWITCHES", "INVOL", "WAKEUPS", "MIGR", "WAIT(ms)"]);
    columns.extend(RUN);
    if !is_cpus {
        head.extend(["SLEEP(ms)", "BLOCKED(ms)"]);
        columns.extend(SLEEP);
    }
    head.extend(["LAT.MEAN(us)", "P50", "P95", "P99", "MAX"]);
    columns.extend(LATENCY);
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    let (total, own) = stats.totals();
    let id = |id: Option<u32>| id.map_or("-".to_owned(), |id| id.to_string());
    let row = |line: &Line| {
        let mark = mark(line.losses, line.switches + line.wakeups, loss);
        let mut row = vec![format!("{mark}{}", line.name)];
        row.extend(match (by, &line.cpu) {
            (_, Some(cpu)) => vec![cpu.cpus.to_string(), ms(cpu.idle_ns), ms(cpu.unknown_ns)],
            (By::Thread, _) => vec![id(line.tid), id(line.pid)],
            (By::Process, _) => vec![id(line.pid), line.threads.to_string()],
            _ => vec![line.threads.to_string()],
        });
        let cpus = line.cpu.as_ref().map_or(1, |cpu| cpu.cpus.max(1));
        let percent = 100.0 * line.run.total_ns as f64 / (window.max(1) as f64 * cpus as f64);
        row.extend([
            ms(line.run.total_ns),
            format!("{percent:.1}"),
            line.switches.to_string(),
            line.involuntary.to_string(),
            line.wakeups.to_string(),
            line.migrations.total.to_string(),
            ms(line.wait.total_ns),
        ]);
        if !is_cpus {
            row.extend([ms(line.sleep.total_ns), ms(line.blocked.total_ns)]);
        }
        let latency = &line.latency;
        row.extend([
            us(latency.times.mean_ns),
            us(latency.p50_ns),
            us(latency.p95_ns),
            us(latency.p99_ns),
            us(latency.times.max_ns),
        ]);
        row
    };
    let shown = shown(args, lines);
    rows.extend(shown.iter().map(row));
    let mut text = fitted(&rows, &columns, width);
    let seconds = window as f64 / 1e9;
    let _ = write!(text, "\n{} of {} lines, {seconds:.3} s, {} events", shown.len(), lines.len(), stats.events());
    let _ = write!(
        text,
        "\nAll threads: {} ms on CPUs, {} switches, {} wakeups, {} migrations; {} threads have ended",
        ms(total.run.total_ns),
        total.switches,
        total.wakeups,
        total.migrations.total,
        stats.folded()
    );
    if own.run.count > 0 {
        let _ =
            write!(text, "\nscxprof itself, left out: {} ms on CPUs, {} switches", ms(own.run.total_ns), own.switches);
    }
    let (waiting, longest) = stats.still_waiting();
    if waiting > 0 {
        let _ =
            write!(text, "\n{waiting} threads were waiting for a CPU at the end, the longest for {} ms", ms(longest));
    }
    let unwoken = stats.unwoken();
    if unwoken.count > 0 {
        let _ = write!(
            text,
            "\n{} times a thread ran again without a wakeup that was seen: {} ms are in none of WAIT, SLEEP and BLOCKED",
            unwoken.count,
            ms(unwoken.total_ns)
        );
    }
    if shown.iter().any(|line| !mark(line.losses, line.switches + line.wakeups, loss).is_empty()) {
        text += incomplete(stats);
    }
    text + "\n"
}
