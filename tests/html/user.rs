//! What a user does with the page: search, sort, click, keys, links; and the numbers of all sections of a known recording.

use scxprof::report::Report;
use scxprof::sample::{Access, RawSample};
use scxprof::session::{Batch, Feed, SideBand};
use serde_json::{json, Value};

use super::browsed;

/// The seconds of the recording, and its records a second that were lost.
const SECONDS: u64 = 20;
const LOST: u64 = 3;

/// Three groups of threads, in 100 rounds a second: `alpha` writes the same 64 lines of one memory, `beta` of another; the threads
/// of `gamma` write one line, each its own 8 bytes, and a hundred lines of their own memory.
struct Known {
    round: u64,
}

const NAMES: [&str; 8] = ["alpha-1", "alpha-2", "alpha-3", "beta-1", "beta-2", "beta-3", "gamma-1", "gamma-2"];

impl Feed for Known {
    fn next_batch(&mut self) -> Option<Batch> {
        self.round += 1;
        let time = 1_000_000_000 + self.round * 10_000_000;
        let mut batch = Batch::until(time);
        for (tid, name) in (1..).zip(NAMES) {
            if self.round == 1 {
                batch.side_band(time, SideBand::Comm { pid: 1, tid, exec: false, comm: name.into() });
            }
            let turn = self.round * 7 + u64::from(tid);
            let addr = match name.as_bytes()[0] {
                b'a' => 0x10_0000 + turn % 64 * 64,
                b'b' => 0x20_0000 + turn % 64 * 64,
                _ => 0x30_0000 + u64::from(tid % 2) * 8,
            };
            batch.samples.push(RawSample {
                time,
                pid: 1,
                tid,
                addr,
                size: 8,
                access: Access::Store,
                ..RawSample::default()
            });
        }
        if self.round.is_multiple_of(100) {
            batch.side_band(time, SideBand::Lost { cpu: 0, lost: LOST });
        }
        (self.round < SECONDS * 100).then_some(batch)
    }
}

/// The report of the known recording, with scheduling and stacks that are not of it, to tell all numbers apart.
pub(super) fn known() -> Report {
    let options = scxprof::session::AnalysisOptions::for_cpus(64);
    let session = scxprof::Session::builder().feed(&mut Known { round: 0 }).analysis(options).run().unwrap();
    let mut report = serde_json::to_value(session.report().unwrap()).unwrap();
    let path = |name: &str| -> String {
        let cells = report["cells"].as_array().unwrap();
        let subcells = cells.iter().flat_map(|cell| cell["subcells"].as_array().unwrap());
        let of = |subcell: &&Value| subcell["name"].as_str().unwrap().starts_with(name);
        format!("rest/{}", subcells.clone().find(of).unwrap()["name"].as_str().unwrap())
    };
    let [alpha, beta, gamma] = ["alpha", "beta", "gamma"].map(path);
    let subcell = |name: &str, n: u64| {
        json!({"name": name, "threads": 3, "run_ns": n * 1_000_000_000, "wait_ns": n * 5_000_000, "waits": n * 10, "wait_max_ns": n * 1_000_000,
               "latency_p50_ns": n * 7_000, "latency_p99_ns": n * 70_000, "latency_max_ns": n * 700_000, "switches": n * 1_000,
               "involuntary": n * 100, "migrations": n * 11, "migrations_llc": n * 3, "migrations_node": n, "wakeups": n * 900, "latency_count": if n == 9 { 1 } else { n * 800 }, "losses": 0})
    };
    report["scheduling"] = json!({
        "seconds": 20.0,
        "subcells": [subcell(&alpha, 13), subcell(&beta, 9), subcell(&gamma, 4)],
        "wakeups": [{"a": alpha, "b": alpha, "wakeups": 4321}, {"a": beta, "b": gamma, "wakeups": 17}],
    });
    report["wakeups"] = json!({
        "all": {"wakeups": 4338, "subcell": 0.996, "llc": 0.75},
        "carrying": {"wakeups": 4321, "subcell": 1.0, "llc": 0.5}, "unsampled": 5,
    });
    report["stacks"] = json!({
        "event": "cpu-clock", "samples": 1500, "hidden": 2,
        "names": ["all", "alpha-1", "main", "parse", "copy", "do_syscall_64"],
        "subcells": [
            {"name": alpha, "samples": 1000, "nodes": [[-1, 0, 0, 1000], [0, 1, 0, 1000], [1, 2, 1, 990], [2, 3, 1, 600], [3, 4, 2, 150], [2, 5, 3, 300]]},
            {"name": beta, "samples": 500, "nodes": [[-1, 0, 0, 500], [0, 2, 1, 500]]},
        ],
    });
    report["lines"][0]["code"] = json!([
        {"sym": "count", "offset": 18, "dso": "/usr/bin/server", "accesses": 3998.0, "line": "/src/count.c:12", "inlined": ["add", "bump"]},
    ]);
    serde_json::from_value(report).unwrap()
}

/// Runs after the page: does what a user does, and keeps what is seen after each step.
const USER: &str = r##"<script>
(async () => {
    const $ = (selector, root = document) => root.querySelector(selector);
    const all = (selector, root = document) => [...root.querySelectorAll(selector)];
    const text = (element) => element?.textContent ?? null;
    const ready = () => document.documentElement.dataset.state;
    while (!ready()) await new Promise((done) => setTimeout(done, 10));
    const steps = {};
    const key = (key, element) => {
        const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
        element.dispatchEvent(event);
        return event.defaultPrevented;
    };
    const rows = (id) => all(`#${id} tbody`)[0] ? all("tr", all(`#${id} tbody`)[0]).map((row) => row.dataset.key) : [];
    const cells = (row) => all("td", row).map((cell) => cell.textContent.trim());
    const table = (label) => all(`[aria-label="${label}"] > table > tbody > tr`).map(cells);
    const search = $("#search");
    const find = (wanted) => {
        search.value = wanted;
        search.dispatchEvent(new Event("input"));
        return { threads: rows("threads"), matched: text($("#matched")), stacks: text($("#stacks p.dim")), frames: all(".flame .found").map(text) };
    };
    // A canvas that is read often is told of on the console; a copy of it is not.
    const pixelsOf = (canvas) => {
        const copy = document.createElement("canvas");
        copy.width = canvas.width;
        copy.height = canvas.height;
        const context = copy.getContext("2d", { willReadFrequently: true });
        context.drawImage(canvas, 0, 0);
        return context.getImageData(0, 0, copy.width, copy.height);
    };
    steps.sections = all("main > section").map((section) => [section.id, text($("h2", section))]);
    steps.nav = all("nav a").map((link) => link.getAttribute("href"));
    steps.scheduling = table("Scheduling by subcell");
    steps.wakeups = { table: table("Wakeups between subcells"), text: all("#scheduling > p").map(text) };
    steps.few = all("#scheduling .dim").filter((element) => element.closest("td")).map(text);
    steps.unseen = text($("#unseen"));
    steps.alarm = { isOpen: $("#unseen details").open, isMarked: $("#unseen").classList.contains("matters"), bad: all("#unseen .bad").map(text), tiles: all(".tile.bad").map(text) };
    steps.time = { text: text($("#time > p")), charts: all("#time .u-title").map(text), labels: all("#time .u-legend .u-label").map(text), table: table("Samples of each subcell"),
        painted: all("#time canvas").map((canvas) => new Set(new Uint32Array(pixelsOf(canvas).data.buffer)).size) };
    steps.frames = all(".flame [role=treeitem]").map((frame) => [frame.getAttribute("aria-label"), frame.style.left, frame.style.width, frame.style.top]);
    steps.own = table("Functions with most samples of their own");
    steps.lines = table("Hottest shared lines");
    steps.lineSort = all("#lines th").filter((head) => head.getAttribute("aria-sort") !== "none").map((head) => `${text(head)} ${head.getAttribute("aria-sort")}`);

    key("/", document.body);
    steps.focused = document.activeElement.id;
    steps.found = find("beta-2");
    steps.foundCode = find("parse");
    key("Escape", search);
    steps.escaped = { value: search.value, threads: rows("threads").length, matched: text($("#matched")) };

    const head = all("#threads th").find((head) => text(head) === "Thread");
    $("button", head).click();
    steps.sorted = { rows: rows("threads"), order: head.getAttribute("aria-sort") };
    $("button", head).click();
    steps.resorted = { rows: rows("threads"), order: head.getAttribute("aria-sort") };

    const open = () => $("#answer tbody tr button");
    open().click();
    steps.opened = { expanded: open().getAttribute("aria-expanded"), text: text(all("#answer tbody tr")[1]), focused: document.activeElement.getAttribute("aria-label"), address: location.hash };
    open().click();
    steps.closed = open().getAttribute("aria-expanded");

    const canvas = $("#matrix canvas");
    const pixel = (row, column) => {
        const [cell, { data, width }] = [canvas.width / 8, pixelsOf(canvas)];
        const at = 4 * (Math.floor((row + 0.6) * cell) * width + Math.floor((column + 0.6) * cell));
        return [...data.slice(at, at + 3)];
    };
    const sides = () => all("#matrix .side div").map(text);
    const point = (type, row, column) => {
        const box = canvas.getBoundingClientRect();
        const at = { clientX: box.left + (column + 0.5) * box.width / 8, clientY: box.top + (row + 0.5) * box.height / 8, bubbles: true };
        canvas.dispatchEvent(type === "click" ? new MouseEvent(type, at) : new PointerEvent(type, at));
    };
    steps.matrix = { sides: sides(), drawn: canvas.dataset.drawn, near: pixel(0, 1), far: pixel(0, 4) };
    point("pointermove", 0, 1);
    steps.tip = text($("#tip"));
    point("click", 0, 1);
    steps.pair = { text: text($("#matrix .panel")), address: location.hash };
    point("click", 2, 2);
    steps.thread = { text: text($("#matrix .panel")), address: location.hash };
    key("Home", canvas);
    steps.said = text($("#said"));
    steps.isTaken = [key("ArrowDown", canvas), key("x", canvas)];
    key("PageDown", canvas);
    steps.saidNext = text($("#said"));
    key("Enter", canvas);
    steps.entered = location.hash;
    key("Escape", canvas);
    steps.panel = text($("#matrix .panel"));
    $("#order").value = "name";
    $("#order").dispatchEvent(new Event("change"));
    steps.byName = { sides: sides(), groups: all("#matrix > div > button").map(text) };

    const lineButton = $("#lines tbody button");
    if (lineButton) lineButton.click();
    steps.line = text(all("#lines tbody tr")[1]);
    $("#only-false").click();
    steps.onlyFalse = all("#lines > div:last-child tbody:first-of-type > tr").length;

    const frame = (name) => all(".flame [role=treeitem]").find((frame) => frame.textContent === name);
    frame("parse").click();
    steps.zoomed = { text: text($("#stacks p.dim")), width: frame("parse").style.width, focused: text(document.activeElement) };
    key("ArrowUp", document.activeElement);
    steps.above = text(document.activeElement);
    key("Escape", document.activeElement);
    steps.unzoomed = frame("parse").style.width;
    const which = $("#stacks select");
    which.value = "1";
    which.dispatchEvent(new Event("change"));
    steps.other = all(".flame [role=treeitem]").map(text);

    const copy = all("#answer button").find((button) => text(button) === "Copy the configuration");
    const had = copy.textContent;
    copy.click();
    for (let tries = 0; copy.textContent === had && tries < 200; tries += 1) await new Promise((done) => setTimeout(done, 10));
    steps.copied = { button: text(copy), selected: getSelection().toString() };
    const theme = document.documentElement.dataset.theme;
    const back = getComputedStyle(document.body).backgroundColor;
    $("#theme").click();
    steps.theme = { isOther: document.documentElement.dataset.theme !== theme, back: getComputedStyle(document.body).backgroundColor !== back, charts: all("#time .u-title").length };
    location.hash = "#thread=5";
    await new Promise((done) => setTimeout(done, 50));
    steps.linked = { marked: all("#threads tr.marked").map((row) => row.dataset.key), panel: text($("#matrix .panel h3")) };
    find("beta");
    location.hash = "#thread=8";
    await new Promise((done) => setTimeout(done, 50));
    steps.linkedWhileSearching = { marked: all("#threads tr.marked").map((row) => row.dataset.key), matched: text($("#matched")) };
    location.hash = "#line=1";
    await new Promise((done) => setTimeout(done, 50));
    steps.linkedLine = all("#lines tr.marked").map((row) => row.dataset.key);
    location.hash = "#thread=999";
    await new Promise((done) => setTimeout(done, 50));
    steps.linkedToNone = text($("#matched"));
    steps.nameless = all("button, select, input, canvas, [role=treeitem], [tabindex]").filter((element) =>
        !element.closest("[role=img]") && !(element.getAttribute("aria-label") || element.textContent.trim() || (element.id && $(`label[for="${element.id}"]`)) || element.labels?.length)).map((element) => element.outerHTML.slice(0, 120));
    steps.ids = all("[id]").map((element) => element.id).filter((id, at, ids) => ids.indexOf(id) !== at);
    steps.requests = performance.getEntriesByType("resource").map((entry) => entry.name);
    const log = document.createElement("pre");
    log.id = "log";
    log.textContent = JSON.stringify(steps);
    document.body.append(log);
})();
</script></body>"##;

/// What the user saw; `None` without a browser.
fn used(test: &str, report: &Report) -> Option<Value> {
    let dir = tempfile::tempdir().unwrap();
    let html = scxprof::report::html::page(report).unwrap().replace("</body>", USER);
    let (dom, complaints) = browsed(test, dir.path(), &html, "")?;
    assert!(complaints.is_empty(), "{complaints:?}");
    let log = dom.split("<pre id=\"log\">").nth(1).and_then(|it| it.split("</pre>").next());
    let log = log.expect("the user came to the end").replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    Some(serde_json::from_str(&log.replace("&nbsp;", "\u{a0}").replace("&amp;", "&")).unwrap())
}

/// Texts of a list.
fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect()
}

#[track_caller]
fn contains(value: &Value, parts: &[&str]) {
    let text = value.as_str().unwrap_or_else(|| panic!("{value} is no text"));
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn a_user_finds_all_numbers_of_a_known_recording() {
    let test = "a_user_finds_all_numbers_of_a_known_recording";
    let report = known();
    let Some(did) = used(test, &report) else { return };
    let sections = ["answer", "unseen", "matrix", "lines", "time", "scheduling", "stacks", "threads"];
    assert_eq!(texts(&did["nav"]), sections.map(|id| format!("#{id}")));
    let found: Vec<&str> = did["sections"].as_array().unwrap().iter().map(|it| it[0].as_str().unwrap()).collect();
    assert_eq!(found, sections);

    // What was not seen is told, with what was lost.
    let lost: u64 = report.timeline.lost.iter().sum();
    assert!(lost >= LOST * (SECONDS - 1), "{lost}");
    contains(&did["unseen"], &[&format!("{lost} records were lost"), "Of 5 wakeups", "2 samples of call stacks"]);
    assert!(!did["unseen"].as_str().unwrap().contains("No sample was lost"));
    let alarm = json!({"isOpen": true, "isMarked": true, "bad": [format!("{lost} records were lost")], "tiles": ["1thing may make this wrong"]});
    assert_eq!(did["alarm"], alarm);

    // The run over time: each subcell is an area, and its samples are those of the report.
    contains(
        &did["time"]["text"],
        &["Steps of 128.00 ms", "100.0 % of 15,992 samples gave an address", &format!("{lost} records")],
    );
    let labels = ["s", "rest/alpha-", "rest/gamma-", "rest/beta-", "s", "%", "s", "lost"];
    assert_eq!(texts(&did["time"]["labels"]), labels);
    assert!(did["time"]["painted"].as_array().unwrap().iter().all(|colours| colours.as_u64() > Some(10)), "{did}");
    for (row, samples) in did["time"]["table"].as_array().unwrap().iter().zip(["5,997", "3,998", "5,997", "0"]) {
        assert_eq!(row[1], samples, "{row}");
        // 100 samples a second of each thread; a step of 128 ms has 12 or 13 rounds.
        let rate = |at: usize| row[at].as_str().unwrap().parse::<f64>().unwrap();
        let threads = (f64::from(u32::from(samples != "0")) * rate(3) / 100.0).round();
        assert!(rate(2) >= threads * 93.0 && rate(3) <= threads * 102.0, "{row}");
    }

    // Scheduling, as it was given.
    let gamma = "rest/gamma-|3|0.20|20.00 ms|40|500.0 µs|4.00 ms|3,200|28.0 µs|280.0 µs|2.80 ms|4,000|400|44|12|4";
    assert_eq!(texts(&did["scheduling"][2]).join("|"), gamma);
    // Percentiles of one wakeup are grey.
    assert_eq!((&did["scheduling"][1][7], texts(&did["few"])), (&json!("1"), vec!["63.0 µs", "630.0 µs", "6.30 ms"]));
    assert_eq!(texts(&did["wakeups"]["table"][0]), ["rest/alpha-", "rest/alpha-", "4,321"]);
    assert_eq!(texts(&did["wakeups"]["table"][1]), ["rest/beta-", "rest/gamma-", "17"]);
    contains(&did["wakeups"]["text"][1], &["4,338", "99.6 %", "75.0 %"]);
    contains(&did["wakeups"]["text"][2], &["4,321", "100.0 %", "50.0 %"]);

    // Stacks: each frame with its part, below its caller.
    let frames: Vec<String> = did["frames"].as_array().unwrap().iter().map(|it| texts(it).join("|")).collect();
    assert!(frames.contains(&"copy: 150 samples, 15.0 %|0%|15%|68px".to_owned()), "{frames:?}");
    assert!(frames.contains(&"do_syscall_64: 300 samples, 30.0 %|60%|30%|51px".to_owned()), "{frames:?}");
    assert_eq!(texts(&did["own"][0]), ["parse", "450", "45.0 %"]);
    assert_eq!(texts(&did["own"][3]), ["main", "90", "9.0 %"]);
    contains(&did["zoomed"]["text"], &["600 samples of cpu-clock"]);
    assert_eq!((&did["zoomed"]["width"], &did["zoomed"]["focused"]), (&json!("100%"), &json!("parse")));
    assert_eq!((&did["above"], &did["unzoomed"]), (&json!("main"), &json!("60%")));
    assert_eq!(texts(&did["other"]), ["all", "main"]);

    let code = "count+0x12 (server) in inlined add, bump at count.c:12";
    // The line of false sharing is the hottest one, and its bytes are told.
    let transfers = report.lines[0].transfers.unwrap().round() as u64;
    let transfers = format!("{},{:03}", transfers / 1000, transfers % 1000);
    let hottest = ["+ pid 1 0x300000", "false sharing", "3,998", "3,998", "0", &transfers, "2", code];
    assert_eq!(texts(&did["lines"][0]), hottest);
    assert_eq!(texts(&did["lineSort"]), ["Transfers descending"]);
    contains(&did["line"], &["False sharing", "gamma-1 (7)01,9990-8-15", "gamma-2 (8)01,9990-0-7"]);
    assert_eq!(did["onlyFalse"], 1);
    assert!(did["lines"].as_array().unwrap()[1..].iter().all(|line| line[1] == "true sharing"), "{}", did["lines"]);
}

#[test]
fn a_user_searches_sorts_clicks_and_follows_links() {
    let test = "a_user_searches_sorts_clicks_and_follows_links";
    let report = known();
    let Some(did) = used(test, &report) else { return };
    assert_eq!(did["focused"], "search");
    assert_eq!(
        (texts(&did["found"]["threads"]), &did["found"]["matched"]),
        (vec!["5"], &json!("13 rows, 1 matrix thread"))
    );
    assert_eq!(
        (texts(&did["foundCode"]["frames"]), did["foundCode"]["threads"].as_array().unwrap().len()),
        (vec!["parse"], 0)
    );
    assert_eq!(did["foundCode"]["matched"], "0 rows, 1 frame");
    contains(&did["foundCode"]["stacks"], &["\"parse\" is in 60.0 % of the samples"]);
    assert_eq!(did["escaped"], json!({"value": "", "threads": 8, "matched": ""}));

    let tids = ["1", "2", "3", "4", "5", "6", "7", "8"];
    assert_eq!((texts(&did["sorted"]["rows"]), &did["sorted"]["order"]), (tids.to_vec(), &json!("ascending")));
    let rows: Vec<&str> = texts(&did["resorted"]["rows"]).into_iter().rev().collect();
    assert_eq!((rows, &did["resorted"]["order"]), (tids.to_vec(), &json!("descending")));
    assert_eq!((&did["opened"]["expanded"], &did["closed"]), (&json!("true"), &json!("false")));
    let first = did["opened"]["focused"].as_str().unwrap().strip_prefix("Details of rest/").unwrap();
    assert_eq!(did["opened"]["address"], format!("#subcell=rest%2F{first}"));
    contains(&did["opened"]["text"], &["Regions that its threads share", "3 threads"]);

    // The matrix: threads at its side, in the order of the table, pairs that share coloured, and what they share by pointer and by
    // keys.
    let names = [
        "alpha-1 (1)",
        "alpha-2 (2)",
        "alpha-3 (3)",
        "gamma-1 (7)",
        "gamma-2 (8)",
        "beta-1 (4)",
        "beta-2 (5)",
        "beta-3 (6)",
    ];
    assert_eq!(texts(&did["matrix"]["sides"]), names);
    assert_eq!(did["matrix"]["drawn"], "14");
    assert!(did["matrix"]["near"] == json!([251, 231, 38]) && did["matrix"]["far"] != did["matrix"]["near"], "{did}");
    contains(
        &did["tip"],
        &["alpha-1 (1), alpha-1, rest/alpha-", "alpha-2 (2)", "shared misses, 100.0 %", "1 common region"],
    );
    let index = |tid: u32| report.matrix.threads.iter().position(|thread| thread.tid == tid).unwrap() as u32;
    let of = |sharers: &[(u32, f64)], tid: u32| sharers.iter().find(|it| it.0 == index(tid)).map(|it| it.1);
    let regions = report.matrix.regions.iter().filter(|region| !region.hub);
    let least = regions.filter_map(|region| Some(of(&region.sharers, 1)?.min(of(&region.sharers, 2)?)));
    let misses = least.sum::<f64>().round() as u64;
    let misses = format!("{},{:03} shared misses", misses / 1000, misses % 1000);
    contains(&did["tip"], &[&misses]);
    contains(&did["pair"]["text"], &[&misses]);
    assert_eq!(did["pair"]["address"], "#pair=1,2");
    contains(
        &did["pair"]["text"],
        &["alpha-1 (1) and alpha-2 (2)", "pid 1 0x100000", "Lines that both touched", "true sharing"],
    );
    assert_eq!(did["thread"]["address"], "#thread=3");
    contains(&did["thread"]["text"], &["alpha-3 (3)", "1,999 samples", "Shares most with", "alpha-1 (1)rest/alpha-"]);
    contains(&did["said"], &["alpha-3 (3)", "alpha-1 (1)", "1 common region"]);
    assert_eq!(did["isTaken"], json!([true, false]));
    contains(&did["saidNext"], &["beta-1 (4)", "0 shared misses"]);
    assert_eq!((&did["entered"], &did["panel"]), (&json!("#pair=4,1"), &json!("")));
    assert_eq!(texts(&did["byName"]["groups"]), ["all (8)", "alpha- (3)", "beta- (3)", "gamma- (2)"]);
    assert_eq!(did["linked"], json!({"marked": ["5"], "panel": "beta-2 (5)"}));

    assert_eq!(did["linkedWhileSearching"], json!({"marked": ["8"], "matched": ""}));
    assert_eq!((&did["linkedLine"], &did["linkedToNone"]), (&json!(["1"]), &json!("This report has no thread 999.")));

    // A file may not use the clipboard: the text is selected instead.
    let selected = did["copied"]["selected"].as_str().unwrap();
    assert!(did["copied"]["button"] == "Copied" || selected.trim() == report.configuration.text.trim(), "{did}");
    assert_eq!(did["theme"], json!({"isOther": true, "back": true, "charts": 3}));
    // What a screen reader needs; and nothing was requested.
    assert_eq!((texts(&did["nameless"]), texts(&did["ids"])), (vec![], vec![]));
    assert_eq!(texts(&did["requests"]), Vec::<&str>::new());
}
