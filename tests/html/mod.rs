//! The page of a report in a browser. SKIP lines where there is none.

mod finding;
mod user;

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use base64::engine::general_purpose::STANDARD;
use base64::Engine as _;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use scxprof::report::html::{page, MAX_BYTES};
use scxprof::report::Report;
use scxprof::sample::{Access, RawSample};
use scxprof::session::{AnalysisOptions, Batch, Feed, SideBand};
use scxprof::Session;
use serde_json::Value;

/// Groups of threads; those of a group write the same pages.
struct Groups {
    /// The name of each thread, and its group.
    threads: Vec<(String, u64)>,
    rounds: u64,
    round: u64,
}

impl Feed for Groups {
    fn next_batch(&mut self) -> Option<Batch> {
        self.round += 1;
        let time = 1_000_000_000 + self.round * 10_000_000;
        let mut batch = Batch::until(time);
        for (tid, (name, group)) in (1..).zip(&self.threads) {
            if self.round == 1 {
                batch.side_band(time, SideBand::Comm { pid: 1, tid, exec: false, comm: name.as_str().into() });
            }
            let addr = (group + 1) * 0x10_0000 + (self.round * 7 + u64::from(tid)) % 64 * 64;
            batch.samples.push(RawSample { time, pid: 1, tid, addr, access: Access::Store, ..RawSample::default() });
        }
        (self.round < self.rounds).then_some(batch)
    }
}

fn report(threads: Vec<(String, u64)>, rounds: u64) -> Report {
    let mut feed = Groups { threads, rounds, round: 0 };
    Session::builder().feed(&mut feed).analysis(AnalysisOptions::for_cpus(64)).run().unwrap().report().unwrap()
}

/// What the scripts made of this page, opened at this address, and what the browser complained of.
fn browsed(test: &str, dir: &Path, html: &str, fragment: &str) -> Option<(String, Vec<String>)> {
    let file = dir.join("page.html");
    std::fs::write(&file, html).unwrap();
    crate::support::chromium::browsed(test, dir, &file, fragment)
}

/// What is before the scripts, whose texts are in the page whether they are shown or not.
fn without_scripts(dom: &str) -> &str {
    dom.split("<script").next().unwrap_or_default()
}

/// The page with its report changed.
fn changed(html: &str, change: impl FnOnce(&mut Value)) -> String {
    let (before, rest) = html.split_once("id=\"data\">").unwrap();
    let (data, after) = rest.split_once('<').unwrap();
    let mut report = serde_json::from_reader(GzDecoder::new(&*STANDARD.decode(data.trim()).unwrap())).unwrap();
    change(&mut report);
    let mut packed = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    serde_json::to_writer(&mut packed, &report).unwrap();
    format!("{before}id=\"data\">{}<{after}", STANDARD.encode(packed.finish().unwrap()))
}

/// Two groups of three threads.
fn small() -> Vec<(String, u64)> {
    ["alpha-1", "alpha-2", "alpha-3", "beta-1", "beta-2", "beta-3"]
        .into_iter()
        .map(|name| (name.to_owned(), u64::from(name.starts_with('b'))))
        .collect()
}

#[test]
fn every_section_has_the_numbers_of_the_report() {
    let test = "every_section_has_the_numbers_of_the_report";
    let dir = tempfile::tempdir().unwrap();
    let report = report(small(), 600);
    let html = page(&report).unwrap();
    let Some((dom, complaints)) = browsed(test, dir.path(), &html, "#thread=2") else { return };
    assert!(complaints.is_empty(), "{complaints:?}");
    assert!(dom.contains("data-state=\"ready\""), "{dom}");
    for id in ["answer", "unseen", "matrix", "lines", "time", "threads"] {
        assert!(dom.contains(&format!("<section id=\"{id}\"")), "{id}");
    }
    // Each subcell and thread has its row, with its samples.
    for cell in &report.cells {
        for subcell in &cell.subcells {
            let path = cell.path_of(subcell);
            let row = dom.split(&format!("<tr data-key=\"{path}\"")).nth(1).expect("a row");
            assert!(row.contains(&format!("data-value=\"{}\"", subcell.threads.len())), "{path}: {row}");
            for thread in &subcell.threads {
                let rows = dom.split("<section id=\"threads\"").nth(1).unwrap();
                let row = rows.split(&format!("<tr data-key=\"{}\"", thread.tid)).nth(1).expect("a row");
                let row = row.split("</tr>").next().unwrap();
                assert!(row.contains(&format!("data-value=\"{}\"", thread.samples)), "{row}");
                assert!(row.contains(thread.comm.as_deref().unwrap()), "{row}");
            }
        }
    }
    // Of six threads each shares with two others.
    assert!(dom.contains("data-drawn=\"12\""), "{:?}", dom.split("data-drawn").nth(1).map(|it| &it[..20]));
    // What the address names is marked and shown.
    assert!(dom.contains("<tr data-key=\"2\" class=\"marked\"") && dom.contains("Shares most with"), "{dom}");
    // The headline is that of the report.
    assert!(!report.headline.is_empty());
    assert!(dom.contains(&format!("<p class=\"lead\"><bdi class=\"name\">{}</bdi></p>", report.headline)), "{dom}");
    // The configuration, as it is printed.
    let text = report.configuration.text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    assert!(dom.contains(&text), "{text}");
    assert!(dom.contains("sudo scx_mitosis --cell-config cells.json"));
    // Of a run without losses one line tells what was not seen, and nothing is red.
    let shown = without_scripts(&dom);
    assert!(shown.contains("No sample was lost.") && shown.contains("on what this run does not see."), "{shown}");
    assert!(!shown.contains("\"tile bad\"") && !shown.contains("class=\"matters\""), "{shown}");
    let unseen = shown.split("<section id=\"unseen\"").nth(1).unwrap();
    assert!(unseen.contains("<details><summary>"), "{unseen}");
}

#[test]
fn names_do_nothing_but_be_shown() {
    let test = "names_do_nothing_but_be_shown";
    let dir = tempfile::tempdir().unwrap();
    // A name has 15 bytes at most.
    let names = ["<b>x</b>", "'\"><script>", "__proto__", "\u{202e}evil", "{{data}}", "</script>"];
    let threads = names.iter().map(|name| ((*name).to_owned(), 0)).collect();
    let mut report = report(threads, 300);
    let markup = "</script></title><img src=http://192.0.2.1/x onerror=document.title='owned'>\u{202e}";
    report.run.profile = Some(markup.to_owned());
    report.notes.push(markup.to_owned());
    report.cells[0].name = markup.to_owned();
    for line in &mut report.lines {
        line.memory = markup.to_owned();
    }
    let html = page(&report).unwrap();
    assert_eq!(html.matches("<script").count(), 2);
    let Some((dom, complaints)) = browsed(test, dir.path(), &html, "#subcell=<img>") else { return };
    assert!(complaints.is_empty(), "{complaints:?}");
    assert!(dom.contains("data-state=\"ready\""), "{dom}");
    assert!(!dom.contains("<img") && !dom.contains("<b>x</b>") && !dom.contains('\u{202e}'));
    assert_eq!(dom.matches("<script").count(), 2);
    assert!(dom.contains("&lt;b&gt;x&lt;/b&gt;") && dom.contains("__proto__") && dom.contains("{{data}}"));
    assert!(dom.contains("This report has no subcell"), "an address of nothing is told");
}

#[test]
fn two_thousand_threads_are_drawn() {
    let test = "two_thousand_threads_are_drawn";
    let dir = tempfile::tempdir().unwrap();
    let threads = (0..2_000).map(|thread| (format!("worker-{thread}"), thread % 20)).collect();
    let report = report(threads, 150);
    assert_eq!(report.matrix.threads.len(), 2_000);
    let html = page(&report).unwrap();
    assert!(html.len() <= MAX_BYTES, "{}", html.len());
    let Some((dom, complaints)) = browsed(test, dir.path(), &html, "") else { return };
    assert!(complaints.is_empty(), "{complaints:?}");
    let value = |name: &str| dom.split(&format!("data-{name}=\"")).nth(1).and_then(|it| it.split('"').next()).unwrap();
    let drawn: u32 = value("drawn").parse().unwrap();
    // 20 groups of 100 threads each.
    assert!(drawn > 100_000 && drawn <= 20 * 100 * 99, "{drawn}");
    println!("{drawn} pairs of 2,000 threads were drawn in {} ms", value("ms"));
}

#[test]
fn a_page_has_at_most_its_bytes_and_tells_what_has_no_room() {
    let test = "a_page_has_at_most_its_bytes_and_tells_what_has_no_room";
    let dir = tempfile::tempdir().unwrap();
    let mut report = report(small(), 300);
    let thread = report.cells[0].subcells[0].threads[0].clone();
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state >> 20
    };
    let threads = (0..150_000).map(|_| {
        let mut thread = thread.clone();
        (thread.tid, thread.comm) = (random() as u32, Some(format!("{:x}", random())));
        thread
    });
    report.cells[0].subcells[0].threads = threads.collect();
    // No time of this world.
    report.run.begin_unix = Some(1e300);
    let html = page(&report).unwrap();
    assert!(html.len() <= MAX_BYTES);
    let Some((dom, complaints)) = browsed(test, dir.path(), &html, "") else { return };
    assert!(complaints.is_empty(), "{complaints:?}");
    // The subcell has its whole number of threads.
    let shown = without_scripts(&dom);
    for part in [
        "data-value=\"150000\"",
        "threads with few samples are not in this page",
        "Save what this page has of the report",
    ] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
}

/// Asks for files in all ways of a page, and counts what its policy forbids.
const ASKING: &str = r#"<script>
let forbidden = 0;
addEventListener("securitypolicyviolation", () => { forbidden += 1; document.body.dataset.forbidden = forbidden; });
const add = (tag, attributes) => document.body.append(Object.assign(document.createElement(tag), attributes));
for (const tag of ["img", "video", "iframe"]) add(tag, { src: "URL/" + tag });
add("link", { rel: "stylesheet", href: "URL/style" });
fetch("URL/fetch").catch(() => {});
document.body.style.backgroundImage = "url(URL/background)";
</script></body>"#;

/// A server that answers nothing, and how many requests it had. Chromium may connect for a frame before it reads the page's policy;
/// only bytes are a request.
fn server() -> (String, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicU32::new(0));
    let counted = requests.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let counted = counted.clone();
            std::thread::spawn(move || {
                let has_bytes = stream.read(&mut [0]).is_ok_and(|bytes| bytes > 0);
                counted.fetch_add(u32::from(has_bytes), Ordering::SeqCst);
            });
        }
    });
    (url, requests)
}

#[test]
fn nothing_leaves_the_page() {
    let test = "nothing_leaves_the_page";
    let dir = tempfile::tempdir().unwrap();
    let (url, requests) = server();
    let asking = ASKING.replace("URL", &url);
    let html = page(&report(small(), 300)).unwrap().replace("</body>", &asking);
    let Some((dom, _)) = browsed(test, dir.path(), &html, "") else { return };
    let forbidden = dom.split("data-forbidden=\"").nth(1).and_then(|it| it.split('"').next()).expect("a policy");
    assert!(forbidden.parse::<u32>().unwrap() >= 6, "{forbidden}");
    assert_eq!(requests.load(Ordering::SeqCst), 0, "the page asked for a file");
    // Without the policy it asks.
    let open = html.replace("Content-Security-Policy", "other");
    if browsed(test, dir.path(), &open, "").is_some() {
        assert!(requests.load(Ordering::SeqCst) > 0, "nobody could have been asked");
    }
}

#[test]
fn the_page_of_a_profile_has_its_scheduling_and_stacks() {
    let test = "the_page_of_a_profile_has_its_scheduling_and_stacks";
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (profile, html, json) = (path("p"), path("p.html"), path("p.json"));
    let scxprof = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_scxprof")).args(args).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let loop_ = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let record = ["record", "--sched", "--stacks=cpu-clock", "--source", "timer", "--disable-archive", "-o", &profile];
    // What the kernel did not sample of an idle CPU is no matter here.
    let any_loss = ["--max-loss", "100"];
    let (code, said) = scxprof(&[&record[..], &any_loss, &["--", "sh", "-c", loop_]].concat());
    if code == Some(3) {
        println!("SKIP: {test}: {said}");
        return;
    }
    assert_eq!(code, Some(0), "{said}");
    let (code, said) =
        scxprof(&[&["report", "-f", &profile, "--html", &html, "--report", &json][..], &any_loss].concat());
    assert_eq!(code, Some(0), "{said}");
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let html = std::fs::read_to_string(&html).unwrap();
    let Some((dom, complaints)) = browsed(test, dir.path(), &html, "") else { return };
    assert!(complaints.is_empty(), "{complaints:?}");
    assert!(dom.contains("<section id=\"scheduling\"") && dom.contains("<section id=\"stacks\""), "{dom}");
    for subcell in report["scheduling"]["subcells"].as_array().unwrap() {
        let row = format!("<tr data-key=\"{}\"", subcell["name"].as_str().unwrap());
        let row = dom.split("<section id=\"scheduling\"").nth(1).unwrap().split(&row).nth(1).expect("a row");
        let row = row.split("</tr>").next().unwrap();
        for field in ["threads", "wait_ns", "switches", "migrations", "latency_count"] {
            assert!(row.contains(&format!("data-value=\"{}\"", subcell[field])), "{field} of {subcell}: {row}");
        }
    }
    let samples = report["stacks"]["subcells"][0]["samples"].as_u64().unwrap();
    assert!(samples > 0 && dom.contains("aria-label=\"all: "), "{samples}");
}

#[test]
fn the_library_is_the_one_of_the_lock() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/bundle.sh");
    let output = Command::new("bash").args([script, "--check"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(2) => println!("SKIP: the_library_is_the_one_of_the_lock: no npm, or no registry: {}", said.trim()),
        code => assert_eq!(code, Some(0), "{said}"),
    }
}
