//! The pages of made figures at three sizes, as files (`SCXPROF_BLESS=1` writes them again), and any keys at any size.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ratatui::backend::TestBackend;
use ratatui::style::Modifier;
use ratatui::Terminal;
use scxprof_base::escape;

use super::draw::{draw, Theme};
use super::keys::{press, tests::any_key, Action, Key, Replace, Shown};
use super::page::{Page, Size};
use super::run::Engine;
use super::stacks::{members, Members};
use super::state::{Kind, State, View};
use super::worker::Answer;
use crate::host::psi::{NoPressure, Pressure, Pressures, Stall};
use crate::report::{CellReport, Granule, LineSharing, LineThread, Report, SubcellKind, SubcellReport, ThreadReport};
use crate::sample::places::CpuPlaces;
use crate::sample::sched::{SchedEvent, SchedTask, SchedWhat, TaskState};
use crate::sample::{Access, Comm, RawSample, Task};
use crate::session::{
    AccessCounts, AccessLine, AccessLines, AnalysisOptions, Around, AroundNow, Batch, By, CacheNow, Cgroups, CpuNow,
    Feed, Group, Live, LiveOptions, Losses, OwnCost, Roots, SchedSink, SchedulerNow, Scheduling, SchedulingLines,
    SharingWindow, SideBand, Sink, Snapshot,
};
use crate::stacks::Thread;
use scxprof_sched::report::Order;

const NAMES: [&str; 6] = ["reader-a", "writer-a", "reader-b\x1b[2J", "wörker-with-a-lon", "loner", "\u{202e}odd"];

fn line(memory: &str, sharing: LineSharing) -> Granule {
    let thread = |at: u32, writes: bool| LineThread {
        pid: 70,
        tid: 71 + at,
        comm: Some(NAMES[at as usize].to_owned()),
        loads: 40,
        stores: if writes { 10 } else { 0 },
        hitm: 3,
        loaded: vec![[0, 7]],
        stored: if writes { vec![[8, 15]] } else { Vec::new() },
        symbol: None,
    };
    Granule {
        memory: memory.to_owned(),
        identity: None,
        symbol: None,
        accesses: 90.0,
        writes: 10.0,
        hitm: 6,
        transfers: Some(12.0),
        threads: 2,
        code: Vec::new(),
        sharing: Some(sharing),
        by_thread: vec![thread(0, false), thread(1, true)],
    }
}

fn report() -> Report {
    let thread = |at: u32| ThreadReport {
        pid: 70,
        tid: 71 + at,
        comm: Some(NAMES[at as usize].to_owned()),
        hint: None,
        samples: 50.0 - f64::from(at),
        verdict: "community 0".to_owned(),
    };
    let subcell = SubcellReport {
        name: "reader-a".to_owned(),
        kind: SubcellKind::Community,
        threads: vec![thread(0), thread(1)],
        lines: vec![line("counters+0x40 (shop)", LineSharing::False)],
        ..SubcellReport::default()
    };
    Report {
        headline: "2 groups: reader-a + writer-a, reader-b x2".to_owned(),
        cells: vec![CellReport { name: "allotment".to_owned(), subcells: vec![subcell, SubcellReport::default()] }],
        lines: vec![line("counters+0x40 (shop)", LineSharing::False), line("table+0x0 (shop)", LineSharing::True)],
        ..Report::default()
    }
}

fn counts(samples: f64) -> AccessCounts {
    AccessCounts { samples, located: samples, writes: samples / 4.0 }
}

fn accesses() -> Vec<AccessLines> {
    let threads = NAMES.iter().zip(71..).map(|(name, tid)| AccessLine {
        name: (*name).to_owned(),
        pid: Some(70),
        tid: Some(tid),
        cgroup: Some("/workload.slice/a.service".to_owned()),
        subcell: (tid < 73).then(|| "allotment/reader-a".to_owned()),
        threads: 1,
        window: counts(f64::from(160 - tid)),
        total: counts(f64::from(1600 - tid)),
    });
    let whole = |name: &str, pid: Option<u32>, cgroup: Option<&str>, subcell: Option<&str>| AccessLine {
        name: name.to_owned(),
        pid,
        cgroup: cgroup.map(ToOwned::to_owned),
        subcell: subcell.map(ToOwned::to_owned),
        threads: 6,
        window: counts(500.0),
        total: counts(9000.0),
        ..AccessLine::default()
    };
    let path = "/workload.slice/a.service";
    vec![
        AccessLines { by: By::Thread, lines: threads.collect() },
        AccessLines {
            by: By::Process,
            lines: vec![whole("shop\x07", Some(70), None, None), whole("other", Some(9), None, None)],
        },
        AccessLines { by: By::Cgroup, lines: vec![whole(path, None, Some(path), None)] },
        AccessLines { by: By::Cell, lines: vec![whole("allotment/reader-a", None, None, Some("allotment/reader-a"))] },
    ]
}

/// Figures of all views.
fn made() -> (Snapshot, AroundNow) {
    let group = |name: &str, share: f64, kept: Option<f64>| Group {
        name: name.to_owned(),
        threads: 2,
        names: vec!["reader-a".to_owned(), "writer-a\x1b]0;x\x07".to_owned()],
        samples: share * 1000.0,
        share,
        cpus: None,
        avoidable: Some(share / 2.0),
        kept,
        hottest: Some("counters+0x40 (shop)".to_owned()),
    };
    let cpu = |cpu: u32| CpuNow {
        cpu,
        llc: Some(cpu / 2 * 2),
        node: Some(0),
        busy: Some(0.25 * f64::from(cpu % 4)),
        samples: 30.0,
        total_samples: 600.0,
    };
    let sharing = SharingWindow { number: 3, seconds: 10.0, report: Some(report()), ..SharingWindow::default() };
    let now = Snapshot {
        elapsed_s: 3723.4,
        source: "timer".to_owned(),
        window_s: 1.0,
        configuration: Some("cells.json".to_owned()),
        sharing: Some(Arc::new(sharing)),
        groups: vec![group("allotment/reader-b", 0.2, Some(1.0)), group("allotment/reader-a", 0.55, Some(0.25))],
        accesses: accesses(),
        scheduling: Some(scheduling()),
        cpus: (0..4).map(cpu).collect(),
        losses: Losses {
            samples: 5000,
            accesses: 6000,
            lost: 100,
            lost_percent: 2.0,
            lines: vec!["100 samples lost: the rings were full; try --mmap-pages 512".to_owned()],
            left_out: vec!["7 accesses of the kernel".to_owned()],
            ..Losses::default()
        },
        cost: OwnCost { cpu_s: 12.5, cpus: 0.004, rss_bytes: 34 << 20, evaluation_s: 0.021, ..OwnCost::default() },
        notes: vec!["pebs: this host has no memory events".to_owned()],
        ..Snapshot::default()
    };
    let pressure = Pressure { some: Stall { avg10: 12.5, avg60: 6.0, avg300: 1.0, total_us: 7 }, full: None };
    let pressures =
        Pressures { cpu: Ok(pressure), memory: Ok(pressure), io: Err(NoPressure::Absent("/x/io.pressure".to_owned())) };
    let cache = CacheNow { occupancy: Some(3 << 20), total: Some(2.5e9), local: Some(2e9), lack: None };
    let mut scheduler = SchedulerNow { figures: vec![("layers.a.util".to_owned(), 1.25)], ..SchedulerNow::default() };
    scheduler.kernel.name = Some("layered".to_owned());
    scheduler.kernel.events = [("SCX_EV_X".to_owned(), 7)].into();
    let around = AroundNow {
        scheduler: Some(scheduler),
        caches: [(0, cache), (2, CacheNow::default())].into(),
        cells: [("allotment/reader-a".to_owned(), cache)].into(),
        pressure: Some(pressures.clone()),
        cgroups: [("/workload.slice/a.service".to_owned(), pressures)].into(),
        ..AroundNow::default()
    };
    (now, around)
}

/// Statistics of the scheduler: two threads take turns on a CPU for 2 s.
fn scheduling() -> Scheduling {
    let task = |tid: u32| SchedTask { tid, prio: 120, comm: Comm::from(NAMES[tid as usize - 71]) };
    let mut sink = SchedSink::new(CpuPlaces::default(), None).with_windows(1_000_000_000);
    let switch = |at: u64| {
        let (prev, next) = (71 + at as u32 % 2, 72 - at as u32 % 2);
        let what = SchedWhat::Switch { prev: task(prev), state: TaskState::Runnable, next: task(next) };
        SchedEvent { time: at * 10_000_000, cpu: 0, pid: 70, tid: prev, cgroup: 0, what }
    };
    let events: Vec<SchedEvent> = (0..=200).map(switch).collect();
    sink.sched(&events, &mut Cgroups::recorded());
    let cell_of = |_: &Task<'_>| "allotment/reader-a".to_owned();
    let lines = |by| SchedulingLines {
        by,
        window: sink.recent().unwrap().lines(by, Order::Run, sink.labels(), &cell_of),
        total: sink.lines(by, Order::Run, &cell_of),
    };
    let by = [By::Thread, By::Process, By::Cgroup, By::Cell, By::Cpu, By::Llc];
    Scheduling { window_s: 1.0, total_s: 2.0, events: 201, lines: by.map(lines).to_vec(), ..Scheduling::default() }
}

/// The text of a screen.
fn screen(terminal: &Terminal<TestBackend>) -> String {
    let buffer = terminal.backend().buffer();
    let rows = buffer.area.rows().map(|row| {
        let cells = row.columns().filter_map(|at| buffer.cell((at.x, at.y)));
        cells.map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned()
    });
    rows.collect::<Vec<_>>().join("\n")
}

/// Presses keys one after the other, each on the page that is shown then.
fn after(keys: &[Key], size: (u16, u16)) -> (State, Terminal<TestBackend>) {
    let (now, around) = made();
    let mut state = State::new(View::Groups, Duration::from_secs(1));
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    let mut shown = Shown::default();
    for key in std::iter::once(None).chain(keys.iter().copied().map(Some)) {
        if let Some(key) = key {
            press(&mut state, key, &shown);
        }
        terminal.draw(|frame| shown = draw(frame, Theme::None, &state, &now, &around).shown).unwrap();
    }
    (state, terminal)
}

fn keys(text: &str) -> Vec<Key> {
    text.chars().map(|letter| if letter == '\n' { Key::Enter } else { Key::Char(letter) }).collect()
}

#[test]
fn pages_are_as_they_were() {
    let pages = [
        "", "j", "\n", "2", "2\n", "2t>r", "2/read\n", "2/none\n", "3", "3c", "3c\n", "3cc", "4", "4\n", "5",
        "5cccccc", "6", "6c", "6cc", "7", "7\n", "?", " w", "W", "s",
    ];
    for (width, height) in [(80, 24), (120, 40), (40, 10)] {
        let mut text = String::new();
        for page in pages {
            let (_, terminal) = after(&keys(page), (width, height));
            let shown = screen(&terminal);
            assert!(
                shown.split('\n').count() == usize::from(height)
                    && !shown.replace('\n', "").contains(escape::is_hidden),
                "{page}"
            );
            let _ = writeln!(text, "=== {page:?}\n{shown}");
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/top/{width}x{height}.txt"));
        if std::env::var_os("SCXPROF_BLESS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, expected, "{}: SCXPROF_BLESS=1 writes it anew", path.display());
    }
}

#[test]
fn the_help_fits_on_a_small_screen() {
    let (_, terminal) = after(&keys("?"), (80, 24));
    let lines: Vec<String> = screen(&terminal).lines().map(ToOwned::to_owned).collect();
    assert!(lines.iter().skip(4).all(|line| line.chars().count() < 80), "{lines:#?}");
    let (_, terminal) = after(&keys("?"), (80, 40));
    assert!(screen(&terminal).contains("Ctrl-Z Ctrl-L  suspend"));
}

#[test]
fn a_printed_page_has_all_rows_and_no_more() {
    let (now, around) = made();
    let state = State::new(View::Threads, Duration::from_secs(1));
    let text = Page::whole(&state, &now, &around, None).text();
    assert_eq!(text.lines().count(), 4 + 1 + NAMES.len(), "{text}");
    assert!(text.contains(r"reader-b\x1b[2J") && text.contains("/workload.slice/a.service"), "{text}");
    assert!(!text.contains("q quit") && !text.contains("1 groups"), "{text}");
    let many = AroundNow { cgroups_left_out: 44, ..around.clone() };
    let cells = Page::whole(&State::new(View::Processes, Duration::from_secs(1)), &now, &many, None).text();
    assert!(!cells.contains("PSI"), "{cells}");
    let (of_cgroups, _) = after(&keys("3c"), (80, 24));
    assert_eq!(of_cgroups.kind(), Kind::By(By::Cgroup));
    let cgroups = Page::whole(&of_cgroups, &now, &many, None).text();
    assert!(cgroups.contains("PSI of all cgroups but 44"), "{cgroups}");
    let narrow = Page::whole(&state, &now, &around, Some(60));
    assert!(narrow.body.iter().all(|line| line.text.chars().count() <= 60));
}

#[test]
fn the_selected_row_and_the_sorted_column_are_marked_and_colours_are_of_the_theme() {
    let (state, mut terminal) = after(&keys("2j"), (80, 24));
    let (now, around) = made();
    let styles = |terminal: &Terminal<TestBackend>, row: u16| {
        let buffer = terminal.backend().buffer();
        (0..80).map(|x| buffer.cell((x, row)).unwrap().clone()).collect::<Vec<_>>()
    };
    let selected = |terminal: &Terminal<TestBackend>| {
        (5..23).filter(|row| styles(terminal, *row)[79].modifier.contains(Modifier::REVERSED)).collect::<Vec<_>>()
    };
    assert_eq!(selected(&terminal), [6]);
    let underlined: String = styles(&terminal, 4)
        .iter()
        .filter(|cell| cell.modifier.contains(Modifier::UNDERLINED))
        .map(ratatui::buffer::Cell::symbol)
        .collect();
    assert_eq!(underlined, "SHARE%");
    let has_colour = |terminal: &Terminal<TestBackend>| {
        terminal.backend().buffer().content().iter().any(|cell| cell.fg != ratatui::style::Color::Reset)
    };
    assert!(!has_colour(&terminal));
    for theme in [Theme::Dark, Theme::Light] {
        terminal.draw(|frame| drop(draw(frame, theme, &state, &now, &around))).unwrap();
        assert!(has_colour(&terminal), "{theme:?}");
    }
}

#[test]
fn an_empty_host_says_what_it_waits_for() {
    let (now, around) = (Snapshot::default(), AroundNow::default());
    for (view, expected) in [
        (View::Groups, "the first result comes after some seconds"),
        (View::Threads, "no access was sampled yet"),
        (View::Lines, "the first result comes"),
        (View::Scheduling, "the scheduling events are being switched on"),
        (View::Cpus, "no CPU is known"),
    ] {
        let text = Page::whole(&State::new(view, Duration::from_secs(1)), &now, &around, Some(80)).text();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn the_code_that_a_row_runs_stands_below_its_details() {
    let (now, around) = made();
    let (mut state, mut terminal) = after(&keys("2\n"), (80, 24));
    state.code = Some("CODE THAT RUNS, since p 7 s ago\nFUNCTION  SELF%\nspin_\x1b[2J  99.0\n".to_owned());
    terminal.draw(|frame| drop(draw(frame, Theme::None, &state, &now, &around))).unwrap();
    assert!(!screen(&terminal).contains("CODE THAT RUNS"), "it is further below");
    let mut terminal = Terminal::new(TestBackend::new(80, 40)).unwrap();
    terminal.draw(|frame| drop(draw(frame, Theme::None, &state, &now, &around))).unwrap();
    let shown = screen(&terminal);
    assert!(shown.contains("CODE THAT RUNS, since p 7 s ago\nFUNCTION  SELF%\nspin_\\x1b[2J  99.0"), "{shown}");
}

/// Two pairs; each writes to pages of its own.
struct Pairs(u64);

impl Feed for Pairs {
    fn next_batch(&mut self) -> Option<Batch> {
        self.0 += 1;
        let time = self.0 * 1_000_000;
        let mut batch = Batch::until(time);
        for tid in 1..=4 {
            let (name, begin) = if tid < 3 { ("reader", 0x10_0000) } else { ("writer", 0x20_0000) };
            batch.side_band(time, SideBand::Comm { pid: 1, tid, exec: false, comm: name.into() });
            let addr = begin + self.0 % 16 * 4096;
            batch.samples.push(RawSample { time, pid: 1, tid, addr, access: Access::Store, ..RawSample::default() });
        }
        (self.0 < 3000).then_some(batch)
    }
}

/// A capture of a feed that has ended, on a host that has nothing.
fn engine(directory: &Path) -> Engine {
    let roots = Roots {
        proc: directory.join("proc"),
        sys: directory.join("sys"),
        files: directory.to_owned(),
        ..Roots::default()
    };
    let options = LiveOptions { analysis: AnalysisOptions::for_cpus(16), ..LiveOptions::default() };
    let live = Live::start_feed(options, Box::new(Pairs(0))).unwrap();
    // Its thread may not have begun yet, and what is stopped then takes nothing.
    assert!(!live.wait_window(u64::MAX, Duration::from_secs(180)));
    let mut engine = Engine::new(live, Around::new(&roots)).unwrap();
    engine.stop_sampling();
    engine
}

/// What is said of an action in the end; meanwhile it is said what is under way.
fn acted(engine: &mut Engine, state: &mut State, action: Action) -> String {
    engine.act(state, action);
    let begin = Instant::now();
    while state.under_way.is_some() {
        assert!(begin.elapsed() < Duration::from_secs(180), "{:?}", state.under_way);
        engine.answers(state, Duration::from_millis(1));
    }
    state.message.take().unwrap_or_default()
}

#[test]
fn a_feed_is_shown_and_what_was_decided_is_written_and_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let mut engine = engine(directory.path());
    let mut state = State::new(View::Groups, Duration::from_secs(1));
    let text = |engine: &mut Engine, state: &State| {
        let (now, around) = engine.look(state);
        Page::whole(state, now, around, None).text()
    };
    let groups = text(&mut engine, &state);
    assert!(groups.contains("2 groups") && groups.contains("reader") && groups.contains("writer"), "{groups}");
    assert!(groups.contains("ENDED") && !groups.contains("KEPT%"), "{groups}");
    let file = |name: &str| directory.path().join(name);
    for (name, begins) in [("cells.json", "["), ("report.json", "{"), ("page.html", "<!"), ("accesses.jsonl", "{")] {
        let action = |replace| match name {
            "cells.json" => Action::Write(file(name), replace),
            _ => Action::Report(file(name), replace),
        };
        let said = acted(&mut engine, &mut state, action(Replace::No));
        assert!(said.starts_with("wrote "), "{said}");
        assert!(std::fs::read_to_string(file(name)).unwrap().trim_start().starts_with(begins), "{name}");
        // What is there is asked about, and then replaced.
        std::fs::write(file(name), "mine").unwrap();
        acted(&mut engine, &mut state, action(Replace::No));
        assert!(state.prompt.take().is_some_and(|prompt| prompt.replaces && prompt.text.ends_with(name)));
        assert_eq!(std::fs::read_to_string(file(name)).unwrap(), "mine");
        acted(&mut engine, &mut state, action(Replace::Yes));
        assert_ne!(std::fs::read_to_string(file(name)).unwrap(), "mine");
    }
    let load = |engine: &mut Engine, state: &mut State, path| acted(engine, state, Action::Load(path));
    assert!(load(&mut engine, &mut state, Some(file("report.json"))).contains("report.json"));
    assert!(!text(&mut engine, &state).contains("KEPT%"), "it is no configuration");
    assert!(load(&mut engine, &mut state, Some(file("cells.json"))).starts_with("loaded "));
    assert!(text(&mut engine, &state).contains("KEPT%"));
    state.view = View::Processes;
    state.of_view_mut().kind = 2;
    let cells = text(&mut engine, &state);
    assert!(cells.lines().any(|line| line.contains("reader") && line.contains(" 2 ")), "{cells}");
    load(&mut engine, &mut state, None);
    assert!(text(&mut engine, &state).contains("no configuration is loaded"));
    let said = acted(&mut engine, &mut state, Action::Write(Path::new("-").to_owned(), Replace::Yes));
    assert!(said.contains("name a file"), "{said}");
}

#[test]
fn nothing_is_written_before_something_was_found() {
    let directory = tempfile::tempdir().unwrap();
    let mut engine = engine(directory.path());
    let mut state = State::new(View::Groups, Duration::from_secs(1));
    for action in
        [Action::Write("/nonexistent/x".into(), Replace::No), Action::Report("/nonexistent/x".into(), Replace::No)]
    {
        let said = acted(&mut engine, &mut state, action);
        assert!(said.contains("wait for the first groups"), "{said}");
    }
}

#[test]
fn a_job_that_hangs_is_named_and_holds_up_neither_pages_nor_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let mut engine = engine(directory.path());
    let mut state = State::new(View::Groups, Duration::from_secs(1));
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let hang = move || {
        let _ = gone.recv();
        Answer::Said(Ok(String::new()))
    };
    engine.worker.give("writing /dead/x".to_owned(), hang).unwrap();
    let path = directory.path().join("cells.json");
    engine.act(&mut state, Action::Write(path.clone(), Replace::No));
    engine.answers(&mut state, Duration::ZERO);
    let (now, around) = engine.look(&state);
    let page = Page::new(&state, now, around, Size { width: 80, height: 24 });
    assert!(page.foot == "writing /dead/x ..." && page.title.contains("ENDED"), "{page:?}");
    let error = engine.stop().unwrap_err().to_string();
    assert_eq!(error, "writing /dead/x: it was not done at the end");
    assert!(!path.exists());
    drop(go);
}

#[test]
fn the_code_of_a_row_is_that_of_its_own_threads() {
    let (now, _) = made();
    let mut state = State::new(View::Groups, Duration::from_secs(1));
    let both = Members::Threads([(70, 71), (70, 72)].into());
    assert_eq!(members(&state, "allotment/reader-a", &now).unwrap(), both);
    state.view = View::Threads;
    let one = Members::Threads([(70, 73)].into());
    assert_eq!(members(&state, "73", &now).unwrap(), one);
    state.view = View::Processes;
    let process = members(&state, "shop\x07 Some(70)", &now).unwrap();
    assert_eq!(process, Members::Process(70));
    state.view = View::Scheduling;
    assert!(members(&state, "70", &now).unwrap_err().to_string().contains("gone"));
    let thread = members(&state, "71", &now);
    assert!(thread.as_ref().is_ok_and(|it| matches!(it, Members::Threads(_))), "{thread:?}");
    // A session of a process has the samples of its children too.
    let thread = |pid, tid| Thread { pid, tid, ..Thread::default() };
    assert!(process.has(&thread(70, 99)) && !process.has(&thread(98, 99)));
    assert!(one.has(&thread(70, 73)) && !one.has(&thread(70, 74)));
}

proptest! {
    #[test]
    fn any_keys_draw_at_any_size(
        steps in prop::collection::vec((any_key(), prop::option::weighted(0.2, (0..140u16, 0..50u16))), 1..40),
        is_empty: bool,
    ) {
        let (now, around) = if is_empty { Default::default() } else { made() };
        let mut state = State::new(View::Groups, Duration::from_secs(1));
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let mut shown = Shown::default();
        for (key, size) in steps {
            if let Some((width, height)) = size {
                terminal.backend_mut().resize(width, height);
            }
            press(&mut state, key, &shown);
            terminal.draw(|frame| shown = draw(frame, Theme::Dark, &state, &now, &around).shown).unwrap();
            prop_assert!(!screen(&terminal).replace('\n', "").contains(escape::is_hidden));
        }
    }
}
