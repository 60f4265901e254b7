//! What a reader concludes from the page: the finding first, what the configuration leaves out, and an alarm only where something matters.

use scxprof::report::html::page;
use scxprof::report::Report;
use serde_json::{json, Value};

use super::user::known;
use super::{browsed, changed};

/// Runs after the page; `SEEN` becomes what it is asked for.
const READER: &str = r#"<script>
(async () => {
    const $ = (selector, root = document) => root.querySelector(selector);
    const all = (selector, root = document) => [...root.querySelectorAll(selector)];
    const text = (element) => element?.textContent.replace(/\s+/g, " ").trim() ?? null;
    const table = (label) => all(`[aria-label="${label}"] > table > tbody > tr`).map((row) => all("td", row).map(text));
    while (!document.documentElement.dataset.state) await new Promise((done) => setTimeout(done, 10));
    const log = document.createElement("pre");
    log.id = "log";
    log.textContent = JSON.stringify(await (async () => { SEEN })());
    document.body.append(log);
})();
</script></body>"#;

/// What a script sees of a page; `None` without a browser.
fn seen(test: &str, html: &str, script: &str) -> Option<Value> {
    let dir = tempfile::tempdir().unwrap();
    let html = html.replace("</body>", &READER.replace("SEEN", script));
    let (dom, complaints) = browsed(test, dir.path(), &html, "")?;
    assert!(complaints.is_empty(), "{complaints:?}");
    let log = dom
        .split("<pre id=\"log\">")
        .nth(1)
        .and_then(|it| it.split("</pre>").next())
        .expect("the reader came to the end");
    Some(serde_json::from_str(&log.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")).unwrap())
}

/// The known recording on a host with room for one group.
fn small_host(report: &mut Value) {
    report["headline"] = json!("3 groups: alpha x3, beta x3, gamma x2; this host fits 1");
    report["locality"] = json!(0.477);
    report["locality_found"] = json!(0.899);
    report["locality_by_name"] = json!(0.25);
    report["limits"] = json!([
        "this host has 2 CPUs, so the configuration is without rest/beta-. For a host of 64 CPUs: --target-cpus 64"
    ]);
    report["notes"] = report["limits"].clone();
    report["run"]["target_cpus"] = json!(2);
    for subcell in report["cells"][0]["subcells"].as_array_mut().unwrap() {
        let name = subcell["name"].as_str().unwrap();
        let is_kept = name.starts_with("alpha") || name == "rest";
        subcell["in_configuration"] = if is_kept {
            json!(format!("{}/{name}", if name == "rest" { "rest" } else { "other" }))
        } else {
            Value::Null
        };
    }
}

#[test]
fn the_page_begins_with_the_finding_and_marks_what_is_left_out() {
    let test = "the_page_begins_with_the_finding_and_marks_what_is_left_out";
    let script = r##"
        const opened = all("#answer tbody tr.left-out")[0];
        $("button", opened).click();
        return { lead: text($("#answer .lead")), locality: text($("#answer .locality")), limits: all("#answer .limits li").map(text),
            falseSharing: all("#answer > p > a").map((link) => [text(link), link.getAttribute("href")]),
            leftOut: all("#answer tr.left-out").map((row) => text($(".tag", row))), tips: all("#answer tr.left-out .tag").map((tag) => tag.title),
            kept: all("#answer tbody tr:not(.left-out)[data-key]").map((row) => row.dataset.key), bars: all(".bar").map((bar) => bar.getAttribute("aria-label")),
            detail: text($("#answer tr.left-out + tr")), unseen: text($("#unseen")), elsewhere: all("#answer td:first-child .dim").map(text), heads: all("#answer th").map(text), page: text($("main")), matrix: all("#matrix .side div").map(text) };
    "##;
    let html = page(&known()).unwrap();
    let Some(saw) = seen(test, &changed(&html, small_host), script) else { return };
    assert_eq!(saw["lead"], "3 groups: alpha x3, beta x3, gamma x2; this host fits 1");
    let line = "gamma-1, gamma-2 use different bytes of one cache line of pid 1 0x300000, at count.c:12";
    assert_eq!(saw["falseSharing"], json!([[line, "#line=0"]]));
    assert_eq!(
        saw["locality"],
        "Locality 47.7 % (89.9 % with all groups); 25.0 % if threads were grouped by name alone."
    );
    let limit =
        "This host has 2 CPUs, so the configuration is without rest/beta-. For a host of 64 CPUs: --target-cpus 64";
    assert_eq!((&saw["limits"], &saw["tips"]), (&json!([limit]), &json!([limit, limit])));
    assert_eq!(saw["leftOut"], json!(["left out: this host has 2 CPUs", "left out: this host has 2 CPUs"]));
    let kept: Vec<&str> = saw["kept"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(saw["elsewhere"], json!(["in other/alpha-"]));
    assert!(kept.len() == 2 && kept[0].starts_with("rest/alpha") && kept[1] == "rest/rest", "{kept:?}");
    assert_eq!(
        saw["bars"],
        json!(["this configuration: 47.7 %", "with all groups: 89.9 %", "grouped by thread name alone: 25.0 %"])
    );
    assert!(
        saw["detail"].as_str().unwrap().starts_with("Left out of the configuration: this host has 2 CPUs."),
        "{saw}"
    );
    assert!(!saw["unseen"].as_str().unwrap().contains(&limit[1..]), "it is said once: {saw}");
    // The word is that of the table and of the score; and the matrix has all groups.
    let heads = saw["heads"].as_array().unwrap();
    assert!(heads.contains(&json!("Locality")) && !saw["page"].as_str().unwrap().contains("Keeps"), "{saw}");
    assert_eq!(saw["matrix"].as_array().unwrap().len(), 8);

    // Where all fits, or in a report of before, nothing is said of it.
    let all_fits = |report: &mut Value| (report["locality"], report["locality_found"]) = (json!(0.8992), json!(0.8994));
    let Some(saw) = seen(test, &changed(&html, all_fits), script_of_all()) else { return };
    assert!(saw["locality"].as_str().unwrap().starts_with("Locality 89.9 %; "), "{saw}");
    assert_eq!((&saw["limits"], &saw["leftOut"]), (&json!(0), &json!(0)));
    assert_eq!(saw["lead"].as_str().map(str::is_empty), Some(false));

    // Without any configuration the page says why, and still has the finding.
    let nothing_fits = |report: &mut Value| {
        small_host(report);
        report["configuration"]["text"] = json!("");
        report["locality"] = Value::Null;
    };
    let Some(saw) = seen(test, &changed(&html, nothing_fits), script_of_all()) else { return };
    assert_eq!(saw["locality"], "Locality - (89.9 % with all groups); 25.0 % if threads were grouped by name alone.");
    assert!(
        saw["answer"].as_str().unwrap().contains(&format!("No configuration{limit}Save the whole report as JSON")),
        "{saw}"
    );
}

/// What the answer says, in short.
fn script_of_all() -> &'static str {
    r##"return { lead: text($("#answer .lead")), locality: text($("#answer .locality")), limits: all(".limits").length, leftOut: all(".left-out").length, answer: text($("#answer")) };"##
}

/// A report with lines, hubs and stacks as a timer's profile may have them.
fn of_a_timer() -> Report {
    let mut report = serde_json::to_value(known()).unwrap();
    report["source"] = json!("timer");
    report["lines"][1]["sharing"] = json!("none");
    report["hubs"] = json!([{
        "memory": "of all", "identity": {"kind": "shared", "dev": 1, "ino": 2, "offset": 4096},
        "accesses": 50.0, "writes": 1.0, "hitm": 0, "threads": 8,
    }]);
    report["stacks"] = json!({
        "event": "cpu-clock", "samples": 100, "hidden": 0,
        "names": ["all", "main", "[unknown]", "work", "other"],
        "subcells": [{"name": "rest/alpha-", "samples": 100, "nodes": [
            [-1, 0, 0, 100], [0, 1, 1, 100], [1, 2, 1, 80], [2, 2, 1, 50], [3, 2, 1, 30], [4, 3, 1, 20], [3, 3, 1, 15], [2, 4, 1, 10], [1, 4, 1, 20],
        ]}],
    });
    serde_json::from_value(report).unwrap()
}

#[test]
fn the_page_says_what_its_source_cannot_see() {
    let test = "the_page_says_what_its_source_cannot_see";
    let script = r##"
        $("#lines tbody button").click();
        return { lines: table("Hottest shared lines"), threads: table("Threads of this line"), hubs: table("Hubs"), hint: text($("#stacks .flame + div")),
            frames: all(".flame [role=treeitem]").map((frame) => `${frame.textContent} | ${frame.getAttribute("aria-label")} | ${frame.style.left} ${frame.style.width} ${frame.style.top}`),
            own: table("Functions with most samples of their own") };
    "##;
    let Some(saw) = seen(test, &page(&of_a_timer()).unwrap(), script) else { return };
    // The fifth column is HITM; the second row shows the threads of the line that is open, the third is the next line.
    let (first, next) = (&saw["lines"][0], &saw["lines"][2]);
    assert_eq!((&first[4], &next[4], &next[1]), (&json!("-"), &json!("-"), &json!("no write sampled")));
    assert_eq!(saw["threads"][0][3], "-");
    assert_eq!(saw["hubs"], json!([["of all", "50", "1", "8"]]));
    let frames = [
        "all | all: 100 samples, 100.0 % | 0% 100% 0px",
        "main | main: 100 samples, 100.0 % | 0% 100% 17px",
        "[unknown] (up to 3 frames) | [unknown] (up to 3 frames): 80 samples, 80.0 % | 0% 80% 34px",
        "work | work: 35 samples, 35.0 % | 0% 35% 51px",
        "other | other: 10 samples, 10.0 % | 35% 10% 51px",
        "other | other: 20 samples, 20.0 % | 80% 20% 34px",
    ];
    assert_eq!(saw["frames"], json!(frames));
    let hint = saw["hint"].as_str().unwrap();
    assert!(
        hint.starts_with("80.0 % of the samples have frames without a name") && hint.contains("--unwind dwarf"),
        "{hint}"
    );
    // What was counted is still counted: 80 - 35 - 10 samples ended in code without a name.
    let own = json!([["[unknown]", "35", "35.0 %"], ["work", "35", "35.0 %"], ["other", "30", "30.0 %"]]);
    assert_eq!(saw["own"], own);
}

#[test]
fn only_what_matters_is_an_alarm() {
    let test = "only_what_matters_is_an_alarm";
    let script = r##"return { isOpen: $("#unseen details").open, isMarked: $("#unseen").classList.contains("matters"), bad: all("#unseen .bad").map(text),
        summary: text($("#unseen summary")), tiles: all(".tile.bad").map(text), lost: all(".tile").map(text).find((it) => it.includes("samples lost")) };"##;
    let mut report = serde_json::to_value(known()).unwrap();
    report["timeline"]["lost"] = json!([]);
    let html = page(&serde_json::from_value(report).unwrap()).unwrap();
    let lost = |percent: f64| {
        move |report: &mut Value| {
            report["run"]["lost_percent"] = json!(percent);
            report["run"]["lost"] = json!(["9 samples lost in full rings"]);
        }
    };
    let Some(few) = seen(test, &changed(&html, lost(0.05)), script) else { return };
    assert_eq!(
        (&few["isOpen"], &few["isMarked"], &few["bad"], &few["tiles"]),
        (&json!(false), &json!(false), &json!([]), &json!([]))
    );
    assert!(
        few["summary"].as_str().unwrap().starts_with("0.050 % of the samples were lost: too few to matter."),
        "{few}"
    );
    assert_eq!(few["lost"], "0.050 %samples lost");
    let Some(many) = seen(test, &changed(&html, lost(0.2)), script) else { return };
    assert_eq!((&many["isOpen"], &many["isMarked"]), (&json!(true), &json!(true)));
    assert_eq!(many["bad"], json!(["0.200 % of the samples were lost"]));
    assert_eq!(many["tiles"], json!(["0.200 %samples lost", "1thing may make this wrong"]));
    let damage = |report: &mut Value| {
        report["run"]["damage"] = json!(["its end is missing"]);
        report["loss"]["sched_events"] = json!(1000);
        report["loss"]["sched_dropped"] = json!(2);
        report["loss"]["sched_unsampled"] = json!(5);
        report["loss"]["dead_workers"] = json!(1);
    };
    let Some(damaged) = seen(test, &changed(&html, damage), script) else { return };
    let bad = [
        "Some CPUs were not sampled to the end: a ring was corrupt, or a thread that reads rings died",
        "0.7 % of the scheduling events were lost",
        "The profile is damaged: its end is missing",
    ];
    assert_eq!((&damaged["bad"], &damaged["isOpen"]), (&json!(bad), &json!(true)));
}

#[test]
fn threads_that_share_nothing_are_one_row_and_small_groups_have_labels() {
    let test = "threads_that_share_nothing_are_one_row_and_small_groups_have_labels";
    // A large group, eight pairs that are less high than a label, and threads that are alone.
    let large = (0..100).map(|thread| (format!("large-{thread}"), 0));
    let pairs =
        (0..16).map(|thread| (format!("pair{}-{thread}", char::from(b'a' + thread / 2)), 1 + u64::from(thread / 2)));
    let alone = (0..30).map(|thread| (format!("alone-{thread}"), 100 + thread));
    let report = super::report(large.chain(pairs).chain(alone).collect(), 300);
    let script = r##"
        const look = () => ({ chips: all("#matrix > div > button").map(text), others: text($(".others button")), isOpen: $(".others button").getAttribute("aria-expanded"), drawn: $("#matrix canvas").dataset.drawn,
            sides: all("#matrix .side div").map(text), tops: all("#matrix .side div").map((label) => parseFloat(label.style.top) / 100 * $("#matrix canvas").height) , lines: all(".leaders polyline").length });
        $("#order").value = "name";
        $("#order").dispatchEvent(new Event("change"));
        const first = look();
        $(".others button").click();
        const opened = look();
        $(".others button").click();
        return { first, opened, again: look(), isHidden: $(".others").hidden };
    "##;
    let Some(saw) = seen(test, &page(&report).unwrap(), script) else { return };
    let first = &saw["first"];
    assert_eq!((&first["others"], &first["isOpen"]), (&json!("+ 30 threads that share nothing"), &json!("false")));
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    let pairs: Vec<String> = ('a'..='h').map(|letter| format!("pair{letter}-")).collect();
    let labels = [vec!["large-".to_owned()], pairs].concat();
    assert_eq!(texts(&first["sides"]), labels);
    // The chips are in the order of the rows.
    let chips: Vec<String> = texts(&first["chips"]);
    assert_eq!(chips[0], "all (116)");
    assert_eq!(chips[1..].iter().map(|chip| chip.split(' ').next().unwrap()).collect::<Vec<_>>(), labels);
    // No label covers another, though their rows are less high; lines say whose they are.
    let tops: Vec<f64> = first["tops"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    assert!(tops.windows(2).all(|pair| pair[1] - pair[0] >= 12.99) && first["lines"].as_u64() > Some(0), "{first}");
    // The others come with their row, and share nothing there.
    let opened = &saw["opened"];
    assert_eq!(
        (&opened["others"], &opened["drawn"]),
        (&json!("Hide the 30 threads that share nothing"), &first["drawn"])
    );
    assert_eq!((&opened["chips"][0], &opened["chips"][1]), (&json!("all (146)"), &json!("alone- (30)")));
    assert_eq!((&saw["again"], &saw["isHidden"]), (first, &json!(false)));
}

#[test]
fn no_table_is_cut_off_on_a_usual_screen() {
    let test = "no_table_is_cut_off_on_a_usual_screen";
    let mut report = serde_json::to_value(known()).unwrap();
    for subcell in report["scheduling"]["subcells"].as_array_mut().unwrap() {
        subcell["name"] = json!("workload.slice/reader-a+writer-a");
        for (field, value) in subcell.as_object_mut().unwrap() {
            if field.ends_with("_ns") {
                *value = json!(987_654_321);
            } else if value.is_u64() {
                *value = json!(1_234_567);
            }
        }
    }
    let html = page(&serde_json::from_value(report).unwrap()).unwrap();
    let script = r#"
        $("main").style.width = "1280px";
        return all(".scroll").filter((box) => box.scrollWidth > box.clientWidth).map((box) => `${box.getAttribute("aria-label")}: ${box.scrollWidth} of ${box.clientWidth} pixels`);
    "#;
    let Some(saw) = seen(test, &html, script) else { return };
    assert_eq!(saw, json!([]));
}
