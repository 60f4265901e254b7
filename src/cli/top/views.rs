//! The tables of the views, made from what is known now.

use std::collections::{BTreeMap, BTreeSet};

use scxprof_base::columns::Column;

use super::sched_views::{dsqs, scheduling};
use super::state::{head, Kind, State, View};
use super::table::{Cell, Row, Table};
use crate::host::psi::{NoPressure, Pressure, Pressures};
use crate::report::{Granule, LineSharing, Report};
use crate::session::{AccessCounts, AccessLine, AroundNow, By, CpuNow, Group, Snapshot};

const NUMBER: fn(u8) -> Column = Column::number;
const NAME: fn(u8) -> Column = Column::name;
/// A group is marked if the configuration keeps less than this part of it together.
const LEAST_KEPT: f64 = 0.5;
/// Losses are marked from this percentage of the samples on.
const MUCH_LOST: f64 = 1.0;

/// The table of the view, sorted and filtered.
pub(super) fn table(state: &State, now: &Snapshot, around: &AroundNow) -> Table {
    let mut table = match (state.view, state.kind()) {
        (View::Groups, _) => groups(now),
        (View::Threads | View::Processes, Kind::By(by)) => accesses(state, by, now, around),
        (View::Lines, _) => lines(now),
        (View::Scheduling, Kind::Dsqs) => dsqs(state, now),
        (View::Scheduling, Kind::By(by)) => scheduling(state, by, now),
        (View::Cpus, Kind::By(_)) => cpus(state, now),
        (View::Cpus, Kind::Caches) => caches(state, now, around),
        (View::Cpus, _) => figures(around),
        _ => losses(now, around),
    };
    table.filter(&state.filter);
    if table.rows.is_empty() && !state.filter.is_empty() {
        table.empty = format!("no row contains \"{}\"; Esc takes the filter away", state.filter);
    }
    table.sort(state.of_view().sort);
    table
}

/// The report of the last sharing window.
pub(super) fn report(now: &Snapshot) -> Option<&Report> {
    now.sharing.as_ref()?.report.as_ref()
}

/// Why there is no sharing to show.
fn no_sharing(now: &Snapshot, what: &str) -> String {
    match &now.sharing {
        None => "accesses are being sampled; the first result comes after some seconds".to_owned(),
        Some(window) if window.report.is_none() => {
            "no sample had the address of memory that threads can share".to_owned()
        }
        Some(window) => format!("{what} in the last {:.0} s", window.seconds),
    }
}

fn groups(now: &Snapshot) -> Table {
    let row = |group: &Group| {
        let cells = vec![
            Cell::text(&group.name),
            Cell::count(group.threads as u64),
            group.cpus.map_or_else(Cell::nothing, |cpus| Cell::number(cpus, format!("{cpus:.2}"))),
            Cell::rounded(group.samples),
            Cell::percent(group.share),
            Cell::percent_or(group.avoidable),
            Cell::percent_or(group.kept),
            group.hottest.as_deref().map_or_else(Cell::nothing, Cell::text),
            Cell::text(&group.names.join(", ")),
        ];
        Row::new(&group.name, cells).marked(group.kept.is_some_and(|kept| kept < LEAST_KEPT))
    };
    let mut table = Table {
        heads: vec![
            ("GROUP", NAME(0)),
            ("THREADS", NUMBER(3)),
            ("CPUS", NUMBER(5)),
            ("SAMPLES", NUMBER(6)),
            ("SHARE%", NUMBER(0)),
            ("AVOIDS%", NUMBER(1)),
            ("KEPT%", NUMBER(1)),
            ("HOTTEST MEMORY", NAME(2).at_least(24)),
            ("NAMES OF THREADS", NAME(4)),
        ],
        rows: now.groups.iter().map(row).collect(),
        sorted: Some(4),
        empty: no_sharing(now, "no threads share memory that they write"),
        ..Table::default()
    };
    table.drop_unknown("CPUS");
    table.drop_unknown("KEPT%");
    table
}

/// Counts of the last window or since the start, and the time that they are of.
fn counted(state: &State, now: &Snapshot, window: AccessCounts, total: AccessCounts) -> (AccessCounts, f64) {
    if state.is_total {
        (total, now.elapsed_s)
    } else {
        (window, now.window_s)
    }
}

fn accesses(state: &State, by: By, now: &Snapshot, around: &AroundNow) -> Table {
    let has_cells = by != By::Cell || now.configuration.is_some();
    let found = now.accesses.iter().find(|lines| lines.by == by && has_cells);
    let lines = found.map(|found| found.lines.as_slice()).unwrap_or_default();
    let all: f64 = lines.iter().map(|line| counted(state, now, line.window, line.total).0.samples).sum();
    let share = |part: f64, all: f64| if all > 0.0 { Cell::percent(part / all) } else { Cell::nothing() };
    let has_ids = by == By::Thread;
    let rows = lines.iter().map(|line| {
        let (counts, seconds) = counted(state, now, line.window, line.total);
        let mut cells = vec![Cell::text(&line.name)];
        if has_ids {
            cells.push(Cell::id(line.tid));
        }
        if has_ids || by == By::Process {
            cells.push(Cell::id(line.pid));
        }
        if !has_ids {
            cells.push(Cell::count(line.threads));
        }
        cells.extend([
            Cell::rate(counts.samples, seconds),
            share(counts.samples, all),
            share(counts.writes, counts.located),
            Cell::rounded(line.total.samples),
        ]);
        match by {
            By::Thread => {
                cells.push(Cell::text(line.subcell.as_deref().unwrap_or_default()));
                cells.push(Cell::text(line.cgroup.as_deref().unwrap_or_default()));
            }
            By::Cgroup => {
                let path = line.cgroup.as_deref().unwrap_or(&line.name);
                cells.extend(pressed(around, &[path]));
            }
            By::Cell => {
                cells.extend(pressed(around, &cgroups_of(now, &line.name)));
                let cell = around.cells.get(&line.name);
                cells.push(megabytes(cell.and_then(|cell| cell.total)));
                cells.push(mebibytes(cell.and_then(|cell| cell.occupancy)));
            }
            _ => {}
        }
        Row::new(key_of_accesses(line), cells)
    });
    let mut heads = vec![(head(by), NAME(0))];
    let mut add = |name: &'static str, column: Column| heads.push((name, column));
    if has_ids {
        add("TID", NUMBER(2));
    }
    if has_ids || by == By::Process {
        add("PID", NUMBER(4));
    }
    if !has_ids {
        add("THREADS", NUMBER(3));
    }
    add("SAMPLES/s", NUMBER(1));
    add("SHARE%", NUMBER(0));
    add("WRITES%", NUMBER(2));
    add("TOTAL", NUMBER(5));
    match by {
        By::Thread => {
            add("ITS CELL", NAME(3));
            add("ITS CGROUP", NAME(6));
        }
        By::Cgroup => {
            add("PSI-CPU%", NUMBER(3));
            add("PSI-MEM%", NUMBER(4));
            add("PSI-IO%", NUMBER(4));
        }
        By::Cell => {
            add("PSI-CPU%", NUMBER(4));
            add("PSI-MEM%", NUMBER(6));
            add("PSI-IO%", NUMBER(6));
            add("MEMORY-MB/s", NUMBER(3));
            add("L3-MiB", NUMBER(3));
        }
        _ => {}
    }
    let sorted = heads.iter().position(|(name, _)| *name == "SHARE%");
    let empty = if by == By::Cell && now.configuration.is_none() {
        "no configuration is loaded: --config or the key s loads one".to_owned()
    } else {
        "no access was sampled yet".to_owned()
    };
    let left_out = Some(around.cgroups_left_out).filter(|&count| count > 0 && matches!(by, By::Cgroup | By::Cell));
    let note = left_out.map(|count| format!("PSI of all cgroups but {count}"));
    Table { heads, rows: rows.collect(), sorted, empty, note, ..Table::default() }
}

/// The cgroups of the threads of a cell.
fn cgroups_of<'a>(now: &'a Snapshot, cell: &str) -> Vec<&'a str> {
    let threads = now.accesses.iter().filter(|lines| lines.by == By::Thread).flat_map(|lines| &lines.lines);
    let own = threads.filter(|line| line.subcell.as_deref() == Some(cell));
    own.filter_map(|line| line.cgroup.as_deref()).collect::<BTreeSet<&str>>().into_iter().collect()
}

/// The pressure on CPU, memory and I/O: of several cgroups the highest.
fn pressed(around: &AroundNow, cgroups: &[&str]) -> [Cell; 3] {
    let most = |of: fn(&Pressures) -> &Result<Pressure, NoPressure>| {
        let known = cgroups.iter().filter_map(|path| of(around.cgroups.get(*path)?).as_ref().ok());
        let most = known.map(|pressure| pressure.some.avg10).max_by(f64::total_cmp);
        most.map_or_else(Cell::nothing, |most| Cell::number(most, format!("{most:.1}")))
    };
    [most(|it| &it.cpu), most(|it| &it.memory), most(|it| &it.io)]
}

/// The key of a line of accesses: a thread's is its id.
pub(super) fn key_of_accesses(line: &AccessLine) -> String {
    line.tid.map_or_else(|| format!("{} {:?}", line.name, line.pid), |tid| tid.to_string())
}

/// How the threads of a line share it.
fn sharing(line: &Granule) -> &'static str {
    if line.is_waited_on() {
        "waited on"
    } else {
        line.sharing.map_or("-", LineSharing::name)
    }
}

/// The key of a line.
pub(super) fn key_of(line: &Granule) -> String {
    format!("{} {:?}", line.memory, line.identity)
}

fn lines(now: &Snapshot) -> Table {
    let row = |line: &Granule| {
        let cells = vec![
            Cell::text(&line.memory),
            Cell::text(sharing(line)),
            Cell::rounded(line.accesses),
            Cell::rounded(line.accesses - line.writes),
            Cell::rounded(line.writes),
            Cell::count(line.hitm),
            Cell::count(line.threads.into()),
            line.code.first().map_or_else(Cell::nothing, |code| Cell::text(&code.to_string())),
        ];
        Row::new(key_of(line), cells).marked(line.sharing == Some(LineSharing::False))
    };
    Table {
        heads: vec![
            ("HOT LINE", NAME(0).at_least(24)),
            ("HOW SHARED", NAME(2)),
            ("ACCESSES", NUMBER(0)),
            ("LOADS", NUMBER(5)),
            ("STORES", NUMBER(4)),
            ("HITM", NUMBER(3)),
            ("THREADS", NUMBER(6)),
            ("ITS CODE", NAME(1)),
        ],
        rows: report(now).map(|report| report.lines.iter().map(row).collect()).unwrap_or_default(),
        // Those first that cost most.
        sorted: None,
        empty: no_sharing(now, "no cache line was shared and written"),
        ..Table::default()
    }
}

/// The samples of CPUs and the time that they are of, as for [`counted`].
fn sampled(state: &State, now: &Snapshot, cpus: &[&CpuNow]) -> Cell {
    if state.is_total {
        Cell::rate(cpus.iter().map(|cpu| cpu.total_samples).sum(), now.elapsed_s)
    } else {
        Cell::rate(cpus.iter().map(|cpu| cpu.samples).sum(), now.window_s)
    }
}

fn cpus(state: &State, now: &Snapshot) -> Table {
    let row = |cpu: &CpuNow| {
        let cells = vec![
            Cell::count(cpu.cpu.into()),
            Cell::id(cpu.llc),
            Cell::id(cpu.node),
            Cell::percent_or(cpu.busy),
            sampled(state, now, &[cpu]),
        ];
        Row::new(cpu.cpu.to_string(), cells)
    };
    let heads = vec![
        ("CPU", NUMBER(0)),
        ("LLC", NUMBER(2)),
        ("NODE", NUMBER(3)),
        ("BUSY%", NUMBER(0)),
        ("SAMPLES/s", NUMBER(1)),
    ];
    Table {
        heads,
        rows: now.cpus.iter().map(row).collect(),
        sorted: Some(3),
        empty: "no CPU is known".to_owned(),
        ..Table::default()
    }
}

/// Bytes a second in megabytes.
fn megabytes(rate: Option<f64>) -> Cell {
    rate.map_or_else(Cell::nothing, |rate| Cell::number(rate, format!("{:.1}", rate / 1e6)))
}

fn mebibytes(bytes: Option<u64>) -> Cell {
    bytes.map_or_else(Cell::nothing, |bytes| Cell::number(bytes as f64, format!("{:.1}", bytes as f64 / 1_048_576.0)))
}

fn caches(state: &State, now: &Snapshot, around: &AroundNow) -> Table {
    let mut caches: BTreeMap<u32, Vec<&CpuNow>> = BTreeMap::new();
    for cpu in &now.cpus {
        if let Some(llc) = cpu.llc {
            caches.entry(llc).or_default().push(cpu);
        }
    }
    let rows = caches.iter().map(|(llc, cpus)| {
        let busy: Vec<f64> = cpus.iter().filter_map(|cpu| cpu.busy).collect();
        let mean = (!busy.is_empty()).then(|| busy.iter().sum::<f64>() / busy.len() as f64);
        let cache = around.caches.get(llc);
        let rates = cache.map(|cache| (cache.total, cache.local));
        let local = rates.and_then(|(total, local)| Some(local? / total.filter(|&total| total > 0.0)?));
        let cells = vec![
            Cell::count((*llc).into()),
            Cell::id(cpus.first().and_then(|cpu| cpu.node)),
            Cell::count(cpus.len() as u64),
            Cell::percent_or(mean),
            sampled(state, now, cpus),
            megabytes(cache.and_then(|cache| cache.total)),
            Cell::percent_or(local),
            mebibytes(cache.and_then(|cache| cache.occupancy)),
        ];
        Row::new(llc.to_string(), cells)
    });
    Table {
        heads: vec![
            ("LLC", NUMBER(0)),
            ("NODE", NUMBER(3)),
            ("CPUS", NUMBER(2)),
            ("BUSY%", NUMBER(0)),
            ("SAMPLES/s", NUMBER(2)),
            ("MEMORY-MB/s", NUMBER(1)),
            ("LOCAL%", NUMBER(2)),
            ("L3-MiB", NUMBER(1)),
        ],
        rows: rows.collect(),
        sorted: Some(3),
        empty: "the last-level caches of this host are not known".to_owned(),
        ..Table::default()
    }
}

fn figures(around: &AroundNow) -> Table {
    let mut rows = Vec::new();
    let mut empty = "this kernel has no sched_ext".to_owned();
    if let Some(scheduler) = &around.scheduler {
        let events = scheduler.kernel.events.iter().map(|(name, count)| (name.as_str(), *count as f64));
        let figures = scheduler.figures.iter().map(|(name, value)| (name.as_str(), *value));
        rows.extend(figures.chain(events).map(|(name, value)| {
            let text = if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.3}") };
            Row::new(name, vec![Cell::text(name), Cell::number(value, text)])
        }));
        empty = match (&scheduler.kernel.name, &scheduler.no_figures) {
            (None, _) => "no sched_ext scheduler is loaded".to_owned(),
            (Some(_), Some(why)) => why.clone(),
            (Some(name), None) => format!("{name} was asked for its figures"),
        };
    }
    Table { heads: vec![("FIGURE", NAME(0)), ("VALUE", NUMBER(0))], rows, empty, ..Table::default() }
}

fn losses(now: &Snapshot, around: &AroundNow) -> Table {
    let (losses, cost) = (&now.losses, &now.cost);
    let mut rows: Vec<Row> = Vec::new();
    let mut add = |what: &str, value: String, is_marked: bool| {
        let key = format!("{what} {value}");
        // The value of a figure changes, and its row stays the selected one.
        let is_sentence = ["note", "lost", "left out", "configuration"].contains(&what);
        let key = if is_sentence { key } else { what.to_owned() };
        rows.push(Row::new(key, vec![Cell::text(what), Cell::text(&value)]).marked(is_marked));
    };
    add("samples", losses.samples.to_string(), false);
    add("accesses", losses.accesses.to_string(), false);
    add("samples lost", format!("{} ({:.2} %)", losses.lost, losses.lost_percent), losses.lost_percent >= MUCH_LOST);
    if let Some(scheduling) = &now.scheduling {
        let (events, lost) = (scheduling.events, scheduling.lost);
        add("scheduling events", format!("{events}, {lost} lost"), lost > 0);
    }
    add("late windows", losses.late_windows.to_string(), losses.late_windows > 0);
    add("CPU of scxprof", format!("{:.2} % of a CPU, {:.1} s in all", cost.cpus * 100.0, cost.cpu_s), false);
    add("memory of scxprof", format!("{:.1} MiB", cost.rss_bytes as f64 / 1_048_576.0), false);
    add("memory of tables", cost.tables.to_string(), false);
    add("last evaluation", format!("{:.0} ms", cost.evaluation_s * 1e3), false);
    if let Some(pressure) = &around.pressure {
        for (what, of) in [("CPU", &pressure.cpu), ("memory", &pressure.memory), ("I/O", &pressure.io)] {
            let text = match of {
                Ok(it) => format!("{:.1} % of the last 10 s, {:.1} % of the last 60 s", it.some.avg10, it.some.avg60),
                Err(why) => why.to_string(),
            };
            add(&format!("waiting for {what}"), text, false);
        }
    }
    if let Some(interval) = now.sharing.as_ref().map(|sharing| &sharing.interval) {
        for line in interval.reason.iter().chain(&interval.limit) {
            add("configuration", line.clone(), false);
        }
    }
    for line in &losses.lines {
        add("lost", line.clone(), true);
    }
    for line in &losses.left_out {
        add("left out", line.clone(), false);
    }
    for line in now.notes.iter().chain(&around.no_caches) {
        add("note", line.clone(), false);
    }
    let heads = vec![("WHAT", NAME(0)), ("ITS VALUE", NAME(0))];
    Table { heads, rows, has_sentences: true, ..Table::default() }
}
