//! The tables of the scheduling view.

use scxprof_base::columns::Column;
use scxprof_sched::dsqs::DsqLine;
use scxprof_sched::report::Line;

use super::state::{head, State};
use super::table::{Cell, Row, Table};
use crate::session::{By, Snapshot};

/// Why there is nothing of the scheduler.
fn no_scheduling(state: &State, now: &Snapshot) -> String {
    match (&now.scheduling, &state.refused) {
        (Some(_), _) => "no scheduling event came yet".to_owned(),
        (None, Some(refused)) => format!("no scheduling events: {refused}"),
        (None, None) if state.is_frozen => "the scheduling events were off when the page was frozen".to_owned(),
        (None, None) => "the scheduling events are being switched on".to_owned(),
    }
}

/// The key of a line: a thread's is its id.
pub(super) fn key_of(line: &Line) -> String {
    line.tid.map_or_else(|| format!("{} {:?} {:?}", line.name, line.pid, line.cgroup), |tid| tid.to_string())
}

/// What the scheduler did.
pub(super) fn scheduling(state: &State, by: By, now: &Snapshot) -> Table {
    let scheduling = now.scheduling.as_ref();
    let seconds = scheduling.map_or(0.0, |it| if state.is_total { it.total_s } else { it.window_s });
    let found = scheduling.and_then(|it| it.lines.iter().find(|lines| lines.by == by));
    let lines = found.map(|found| if state.is_total { &found.total } else { &found.window });
    let lines = lines.map(Vec::as_slice).unwrap_or_default();
    let part = |ns: u64| if seconds > 0.0 { Cell::percent(ns as f64 / 1e9 / seconds) } else { Cell::nothing() };
    let often = |count: u64| Cell::rate(count as f64, seconds);
    let row = |line: &Line| {
        let caches = line.migrations.node.saturating_add(line.migrations.nodes);
        let cells = vec![
            Cell::text(&line.name),
            Cell::id(line.tid.or(line.pid)),
            part(line.run.total_ns),
            part(line.wait.total_ns),
            Cell::us(line.latency.p50_ns),
            Cell::us(line.latency.p99_ns),
            Cell::us(line.latency.times.max_ns),
            often(line.switches),
            often(line.involuntary),
            often(line.wakeups),
            often(line.migrations.total),
            often(caches),
        ];
        Row::new(key_of(line), cells).marked(line.losses > 0)
    };
    let mut table = Table {
        heads: vec![
            (head(by), Column::name(0)),
            (if by == By::Thread { "TID" } else { "PID" }, Column::number(5)),
            ("RUN%", Column::number(0)),
            ("WAIT%", Column::number(1)),
            ("P50us", Column::number(2)),
            ("P99us", Column::number(1)),
            ("MAXus", Column::number(5)),
            ("SWITCH/s", Column::number(4)),
            ("PREEMPT/s", Column::number(7)),
            ("WAKEUP/s", Column::number(6)),
            ("MOVES/s", Column::number(4)),
            ("LLC-MOVES/s", Column::number(3)),
        ],
        rows: lines.iter().map(row).collect(),
        sorted: Some(2),
        empty: if by == By::Cell && now.configuration.is_none() {
            "no configuration is loaded: --config or the key s loads one".to_owned()
        } else {
            no_scheduling(state, now)
        },
        ..Table::default()
    };
    table.drop_unknown("PID");
    table
}

/// Its dispatch queues.
pub(super) fn dsqs(state: &State, now: &Snapshot) -> Table {
    let scheduling = now.scheduling.as_ref();
    let seconds = scheduling.map_or(0.0, |it| if state.is_total { it.total_s } else { it.window_s });
    let lines = scheduling.map(|it| if state.is_total { &it.dsqs } else { &it.dsqs_window });
    let row = |line: &DsqLine| {
        let cells = vec![
            Cell::text(&line.name),
            Cell::rate(line.inserted as f64, seconds),
            Cell::rate(line.dispatched as f64, seconds),
            Cell::count(line.depth),
            Cell::number(line.mean_depth, format!("{:.2}", line.mean_depth)),
            Cell::count(line.max_depth),
            Cell::us(line.wait.p50_ns),
            Cell::us(line.wait.p99_ns),
            Cell::us(line.slice.mean_ns),
        ];
        Row::new(&line.id, cells).marked(line.losses > 0)
    };
    Table {
        heads: vec![
            ("QUEUE", Column::name(0)),
            ("INSERT/s", Column::number(0)),
            ("DISPATCH/s", Column::number(3)),
            ("DEPTH", Column::number(4)),
            ("MEAN", Column::number(2)),
            ("MOST", Column::number(3)),
            ("P50us", Column::number(1)),
            ("P99us", Column::number(1)),
            ("SLICEus", Column::number(5)),
        ],
        rows: lines.map(|lines| lines.iter().map(row).collect()).unwrap_or_default(),
        sorted: Some(1),
        empty: if scheduling.is_some() {
            "no thread went through a dispatch queue: they are of sched_ext schedulers".to_owned()
        } else {
            no_scheduling(state, now)
        },
        ..Table::default()
    }
}
