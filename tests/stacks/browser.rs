//! The flame graph in a browser: what is drawn, zoom and search.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use super::{build, json, stacks};
use crate::support::chromium::browsed;

/// The width of the root, in pixels.
const WHOLE: f64 = 1180.0;

/// Text of a page.
fn plain(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

/// A frame: its name, samples and percentage, and its row.
#[derive(Debug)]
struct Drawn {
    name: String,
    samples: u64,
    percent: String,
    x: f64,
    y: f64,
    width: f64,
}

/// The frames, each after its caller.
fn drawn(page: &str) -> Vec<Drawn> {
    let frame = |part: &str| {
        let (title, rest) = part.split_once("<title>").unwrap().1.split_once("</title>").unwrap();
        let title = plain(title);
        let (name, numbers) = title.rsplit_once(": ").unwrap();
        let (samples, percent) = numbers.strip_suffix(" %").unwrap().split_once(" samples, ").unwrap();
        let attribute = |name: &str| -> f64 {
            let value = rest.split_once(&format!(" {name}=\"")).unwrap().1;
            value.split('"').next().unwrap().parse().unwrap()
        };
        let (samples, percent) = (samples.parse().unwrap(), percent.to_owned());
        Drawn {
            name: name.to_owned(),
            samples,
            percent,
            x: attribute("x"),
            y: attribute("y"),
            width: attribute("width"),
        }
    };
    page.split("<g data-x=").skip(1).map(frame).collect()
}

/// The samples of each name, those of frames within one of the same name once.
fn totals(frames: &[Drawn]) -> BTreeMap<&str, u64> {
    let mut totals = BTreeMap::new();
    let mut callers: Vec<&Drawn> = Vec::new();
    for frame in frames {
        callers.retain(|caller| caller.y < frame.y);
        if callers.iter().all(|caller| caller.name != frame.name) {
            *totals.entry(frame.name.as_str()).or_insert(0) += frame.samples;
        }
        callers.push(frame);
    }
    totals
}

#[test]
fn a_browser_shows_all_functions() {
    let test = "a_browser_shows_all_functions";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "browsed", &[]) else { return };
    let svg = dir.path().join("graph.svg");
    let [svg_path, program] = [&svg, &program].map(|path| path.to_str().unwrap());
    let graph = ["-e", "cpu-clock", "-F", "997", "--json", "--limit", "0", "--flame-graph", svg_path, "--"];
    let Some(output) = stacks(test, &[&graph[..], &[program, "parts", "60000"]].concat()) else { return };
    let found = json(&output);
    let Some((page, complaints)) = browsed(test, dir.path(), &svg, "") else { return };
    assert!(complaints.is_empty() && !page.contains("parsererror"), "{complaints:?}");
    assert!(page.contains(">Search</text>"), "the script did not run: {page}");
    let frames = drawn(&page);
    let totals = totals(&frames);
    let samples = found["samples"].as_u64().unwrap();
    assert_eq!(totals["all"], samples);
    let mut seen = 0;
    for symbol in found["symbols"].as_array().unwrap() {
        let (name, total) = (symbol["symbol"].as_str().unwrap(), symbol["total_samples"].as_u64().unwrap());
        let of_that_name = |other: &&Value| other["symbol"] == name;
        // Two functions may have one name; what is narrower than a third of a pixel is not drawn.
        if found["symbols"].as_array().unwrap().iter().filter(of_that_name).count() == 1 && total * 3000 > samples {
            assert_eq!(totals.get(name), Some(&total), "{name} in {frames:#?}");
            seen += 1;
        }
    }
    assert!(seen >= 4, "{found}");
    for frame in &frames {
        let part = frame.samples as f64 / samples as f64;
        assert!((frame.width - part * WHOLE).abs() < 0.02, "{frame:?} of {samples}");
        assert_eq!(frame.percent, format!("{:.2}", part * 100.0), "{frame:?} of {samples}");
    }
}

#[test]
fn names_with_markup_do_nothing_in_a_browser() {
    let test = "names_with_markup_do_nothing_in_a_browser";
    let dir = tempfile::tempdir().unwrap();
    // A name has 15 bytes at most. U+FFFF is no character of XML.
    let thread = "<b>&'\"\u{202e}\u{ffff}]]>";
    let function = "<script>document.title=\"owned\"</script>&amp;]]>\u{202e}</title><a href='javascript:1'>";
    let Some(program) = build(test, dir.path(), "plain", &[]) else { return };
    let odd = dir.path().join(thread);
    let mut rename = Command::new("objcopy");
    rename.arg(format!("--redefine-sym=sixty={function}")).arg(program).arg(&odd);
    if !rename.status().is_ok_and(|status| status.success()) {
        println!("SKIP: {test}: no objcopy");
        return;
    }
    let svg = dir.path().join("graph.svg");
    let [svg_path, program] = [&svg, &odd].map(|path| path.to_str().unwrap());
    let graph = ["-e", "cpu-clock", "-F", "997", "--flame-graph", svg_path, "--", program, "parts", "30000"];
    if stacks(test, &graph).is_none() {
        return;
    }
    // They are found too.
    let Some((page, complaints)) = browsed(test, dir.path(), &svg, "#search=owned") else { return };
    assert!(complaints.is_empty() && !page.contains("parsererror"), "{complaints:?}: {page}");
    assert!(page.contains(">Matched: ") && !page.contains(">Matched: 0.00 %"), "the script did not run: {page}");
    let frames = drawn(&page);
    let names: Vec<&str> = frames.iter().map(|frame| frame.name.as_str()).collect();
    let shown = |name: &str| name.replace('\u{202e}', "\\xe2\\x80\\xae").replace('\u{ffff}', "\\xef\\xbf\\xbf");
    for name in [thread, function] {
        assert!(names.contains(&shown(name).as_str()), "{name:?} is not in {names:?}");
    }
    assert!(!page.contains(['\u{202e}', '\u{ffff}']));
    // The elements are ours.
    let count = |element: &str| page.matches(&format!("<{element}")).count();
    assert_eq!((count("script"), count("a "), count("b"), count("title")), (1, 0, 0, 1 + frames.len()), "{page}");
    assert!(page.contains("samples of cpu-clock</title>"), "{page}");
}

/// Does what a user does, and keeps after each step: of each frame its name, whether it is seen, how wide, how bright, marked, and
/// its text; then the text of the buttons.
const USER: &str = r##"<script><![CDATA[
    const log = document.createElementNS(document.documentElement.namespaceURI, "desc");
    // The widest of each name: a sample in a function without its frame yet, or any more, lacks the caller.
    const named = {};
    const width = (group) => Number(group.querySelector("rect").getAttribute("width"));
    for (const group of document.querySelectorAll("g[data-n]")) {
        const name = group.querySelector("title").textContent.split(": ")[0];
        if (!named[name] || width(group) > width(named[name])) named[name] = group;
    }
    const frame = (name) => named[name];
    const click = (element) => element.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    const key = (key, ctrlKey) => {
        const event = new KeyboardEvent("keydown", { key, ctrlKey, bubbles: true, cancelable: true });
        document.documentElement.dispatchEvent(event);
        return event.defaultPrevented;
    };
    const said = (name) => document.querySelector("text." + name).textContent;
    const steps = [];
    const keep = () => steps.push({
        frames: Object.fromEntries(Object.entries(named).map(([name, group]) => [
            name,
            {
                seen: group.style.display !== "none",
                x: Number(group.querySelector("rect").getAttribute("x")),
                width: width(group),
                bright: group.style.opacity !== "0.5",
                marked: group.querySelector("rect").getAttribute("fill") === "#e600e6",
                text: group.querySelector("text") ? group.querySelector("text").textContent : "",
            },
        ])),
        reset: said("reset"), matched: said("matched"), address: location.hash,
    });
    const answers = (answer) => { window.prompt = () => answer; };
    keep();
    click(frame("thirty").querySelector("rect"));
    keep();
    answers("^(sixty|thirty)$");
    if (!key("f", true)) throw new Error("the browser's own search opens too");
    keep();
    click(frame("all").querySelector("rect"));
    keep();
    answers("main|sixty");
    key("F3", false);
    keep();
    answers("(");
    click(document.querySelector("text.search"));
    keep();
    answers(null);
    key("f", true);
    answers("");
    key("f", true);
    if (key("f", false)) throw new Error("a letter asks too");
    click(frame("ten"));
    click(document.querySelector("text.reset"));
    keep();
    log.setAttribute("class", "log");
    log.textContent = JSON.stringify(steps);
    document.documentElement.appendChild(log);
]]></script></svg>"##;

#[test]
fn a_click_zooms_and_ctrl_f_searches() {
    let test = "a_click_zooms_and_ctrl_f_searches";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "browsed", &[]) else { return };
    let svg = dir.path().join("graph.svg");
    let [svg_path, program] = [&svg, &program].map(|path| path.to_str().unwrap());
    let graph = ["-e", "cpu-clock:u", "-F", "997", "--no-lines", "--flame-graph", svg_path, "--", program];
    if stacks(test, &[&graph[..], &["parts", "60000"]].concat()).is_none() {
        return;
    }
    let text = std::fs::read_to_string(&svg).unwrap();
    let used = dir.path().join("used.svg");
    std::fs::write(&used, text.replace("</svg>", USER)).unwrap();
    let Some((page, complaints)) = browsed(test, dir.path(), &used, "") else { return };
    assert!(complaints.is_empty(), "{complaints:?}");
    let log = page.split_once("<desc class=\"log\">").unwrap().1.split_once("</desc>").unwrap().0;
    let steps: Value = serde_json::from_str(&plain(log)).unwrap();
    let steps = steps.as_array().unwrap();
    let frames = drawn(&text);
    let totals = totals(&frames);
    let percent = |names: &[&str]| {
        let samples: u64 = names.iter().map(|name| totals[name]).sum();
        format!("Matched: {:.2} %", samples as f64 * 100.0 / totals["all"] as f64)
    };
    let is = |step: usize, name: &str, what: &str| steps[step]["frames"][name][what].clone();
    let is_whole = |step, name: &str| {
        let found = ["x", "width"].map(|what| is(step, name, what).as_f64().unwrap().to_string());
        assert_eq!(found, ["10", "1180"], "{step} {name}");
    };
    let says = |step: usize, reset: &str, matched: &str| {
        assert_eq!((steps[step]["reset"].as_str(), steps[step]["matched"].as_str()), (Some(reset), Some(matched)));
    };

    // The script places frames as they are drawn without it.
    says(0, "", "");
    for frame in &frames {
        for (what, drawn) in [("x", frame.x), ("width", frame.width)] {
            let placed = is(0, &frame.name, what).as_f64().unwrap();
            assert!((placed - drawn).abs() < 0.02 || totals[frame.name.as_str()] > frame.samples, "{placed} {frame:?}");
        }
    }
    // Zoomed: the frame and its callers have the whole width, what is beside it is gone.
    says(1, "Reset zoom", "");
    for (name, bright) in [("thirty", true), ("main", false), ("all", false)] {
        is_whole(1, name);
        assert_eq!((is(1, name, "seen"), is(1, name, "bright")), (true.into(), bright.into()), "{name}");
    }
    assert_eq!((is(1, "sixty", "seen"), is(1, "ten", "seen")), (false.into(), false.into()));
    assert_eq!(is(1, "thirty", "text"), "thirty");
    let number = frames.iter().position(|frame| frame.name == "thirty").unwrap();
    assert_eq!(steps[1]["address"], format!("#zoom={number}"));
    // Found: the part of what is shown.
    says(2, "Reset zoom", "Matched: 100.00 %");
    assert_eq!((is(2, "thirty", "marked"), is(2, "main", "marked")), (true.into(), false.into()));
    // The root: all as it was, and still found.
    says(3, "", &percent(&["sixty", "thirty"]));
    for name in ["sixty", "thirty", "ten", "main", "all"] {
        for what in ["seen", "x", "width", "bright", "text"] {
            assert_eq!(is(3, name, what), is(0, name, what), "{name} {what}");
        }
    }
    assert_eq!((is(3, "sixty", "marked"), is(3, "ten", "marked")), (true.into(), false.into()));
    // What calls another that is found counts once.
    let mut callers: Vec<(f64, bool)> = Vec::new();
    let mut expected = 0;
    for frame in &frames {
        callers.retain(|caller| caller.0 < frame.y);
        let is_found = frame.name.contains("main") || frame.name.contains("sixty");
        expected += if is_found && callers.iter().all(|caller| !caller.1) { frame.samples } else { 0 };
        callers.push((frame.y, is_found));
    }
    says(4, "", &format!("Matched: {:.2} %", expected as f64 * 100.0 / totals["all"] as f64));
    says(5, "", "Not a regular expression: (");
    says(6, "", "");
    assert_eq!(steps[6]["frames"], steps[0]["frames"]);

    // An address that somebody sent.
    let fragment = format!("#zoom={number}&search=%5Et");
    let Some((page, _)) = browsed(test, dir.path(), &svg, &fragment) else { return };
    assert!(page.contains(">Matched: 100.00 %<") && page.contains(">Reset zoom<"), "{page}");
    let Some((page, complaints)) = browsed(test, dir.path(), &svg, "#zoom=99999999&search=(") else { return };
    assert!(complaints.is_empty() && page.contains(">Not a regular expression: (<"), "{complaints:?}: {page}");
}
