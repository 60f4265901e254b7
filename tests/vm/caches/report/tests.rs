//! The program as a whole, on a small output that was made by hand.

use std::fmt::Write as _;
use std::path::Path;

use crate::run;

/// A round of `units` units: misses by cause per 100 of them, most of them written.
fn round((workload, arm, number): (&str, &str, u32), misses: u64) -> String {
    let place = format!(
        "\"machine\":\"8 CPUs, 2 caches\",\"scheduler\":\"mitosis\",\"workload\":\"{workload}\",\"arm\":\"{arm}\""
    );
    let rest = "\"loads\":9,\"stores\":9,\"l1\":9,\"l2\":9,\"near\":0,\"upgrades\":0,\"kernel\":5";
    let group = |group: u32, units: u64, first: u64, written: u64| {
        format!(
            "{{\"group\":{group},\"instructions\":500000,\"units\":{units},\"first\":{first},\"capacity\":10,\"written\":{written},\
             \"transfers\":{written},{rest}}}"
        )
    };
    // The scheduler's own misses and units are not the workload's.
    format!(
        "{{\"begin\":{{{place},\"round\":{number}}}}}\n\
         {{\"window\":1,\"cpus\":8,\"llcs\":2,\"groups\":[{},{},{}],\"cpu\":[],\"table\":\"0x1000\"}}\n\
         {{\"end\":{{\"seconds\":0.5,\"switches\":9,\"migrations\":9,\"crossings\":5}}}}\n",
        group(3, 0, 77, 77),
        group(4, 60, 5, misses - 25),
        group(5, 40, 0, 0)
    )
}

/// Both workloads, two rounds of each arm.
fn made() -> String {
    let mut text = String::new();
    for (workload, arms) in [
        (
            "pairs",
            [
                ("crossed", -40, [300, 310]),
                ("name", 80, [100, 90]),
                ("scxprof", 80, [100, 90]),
                ("none", 0, [200, 200]),
            ],
        ),
        (
            "table",
            [
                ("crossed", -45, [264, 242]),
                ("name", -20, [210, 220]),
                ("scxprof", 90, [50, 60]),
                ("none", 0, [220, 200]),
            ],
        ),
    ] {
        for (arm, score, misses) in arms {
            for (number, misses) in (1..).zip(misses) {
                text += &round((workload, arm, number), misses);
            }
            let score = f64::from(score) / 100.0;
            let figure = format!("{{\"mid\":{score},\"low\":{},\"high\":{}}}", score - 0.05, score + 0.05);
            let figure = if arm == "none" { "null" } else { &figure };
            writeln!(text,
                "{{\"prediction\":{{\"machine\":\"8 CPUs, 2 caches\",\"scheduler\":\"mitosis\",\"workload\":\"{workload}\",\
                 \"arm\":\"{arm}\",\"score\":{figure},\"locality\":{figure},\"avoidable\":0.5}}}}"
            )
            .unwrap();
        }
    }
    // What RECORD counted is no round's window.
    text + "{\"oracle\":{\"workload\":\"pairs\",\"samples\":40,\"accesses\":30}}\n{\"window\":9,\"groups\":[]}\n\
            {\"asked\":30,\"found\":30}\n{\"control\":\"pairs\"}\n{\"asked\":30,\"found\":1}\n{\"misses\":2000,\"seen\":1500,\"pages\":3}\n"
}

/// Runs the program on a file of this text, with these words before it; returns what it printed.
fn with(dir: &Path, text: &str, words: &[&str]) -> (anyhow::Result<bool>, String) {
    std::fs::write(dir.join("out"), text).unwrap();
    let file = dir.join("out").display().to_string();
    let words: Vec<String> = words.iter().map(ToString::to_string).chain([file]).collect();
    let mut out = Vec::new();
    let done = run(&words, &mut out);
    (done, String::from_utf8(out).unwrap())
}

#[test]
fn a_made_output_gives_this_report() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (page, plots) = (path("page.md"), path("plots"));
    let words = ["--mislead", "table", "--markdown", &page, "--plots", &plots];
    let (done, said) = with(dir.path(), &made(), &words);
    assert_eq!(said, include_str!("made.txt"));
    assert!(done.unwrap());
    let page = std::fs::read_to_string(page).unwrap();
    let row = "| table | scxprof | 0.550 ±0.635 | 0.300 | 0.200 | 0.0500 | 0.300 | 0.100 | 73.8 % ±67.6 | 0.90 [0.85, 0.95] |";
    assert!(page.contains(row) && page.contains("\n|---|---|---:|"), "{page}");
    let read = |name: &str| std::fs::read_to_string(dir.path().join("plots").join(name)).unwrap();
    let (misses, score) = (read("proof-misses.svg"), read("proof-score.svg"));
    // One for each arm but none, and one for each in the legend.
    assert_eq!(misses.matches("<circle").count(), 6 + 3, "{misses}");
    assert_eq!(score.matches("<circle").count(), 6, "{score}");
    assert!(score.contains("rank correlation 0.94"), "{score}");
    assert!([&misses, &score].iter().all(|svg| !svg.contains("NaN") && svg.ends_with("</svg>\n")));
}

#[test]
fn a_verdict_that_does_not_hold_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let failed = |text: &str, words: &[&str], wanted: &str| {
        let (done, said) = with(dir.path(), text, words);
        let line = said.lines().find(|line| line.contains(wanted)).unwrap_or_else(|| panic!("{wanted}: {said}"));
        (done.unwrap(), line.trim_start().split("  ").next().unwrap().to_owned())
    };
    let of = |changed: &str, to: u64| {
        let misses = |arm: &str, misses: u64| if arm == changed { to } else { misses };
        let rounds = |(arm, old)| (1..4).map(move |at| round(("pairs", arm, at), misses(arm, old)));
        [("none", 200), ("name", 100), ("scxprof", 100), ("crossed", 300)]
            .into_iter()
            .flat_map(rounds)
            .collect::<String>()
    };
    let (bad, good) = ((false, "FAILED".to_owned()), "ok");
    // As many as by name is enough, but not where names mislead.
    assert_eq!(failed(&of("", 0), &[], "at least as many").1, good);
    assert_eq!(failed(&of("", 0), &["--mislead", "pairs"], "as names mislead").1, good);
    assert_eq!(failed(&of("scxprof", 101), &["--mislead", "pairs"], "at least as many").1, good);
    assert_eq!(failed(&of("scxprof", 101), &["--mislead", "pairs"], "as names mislead"), bad);
    assert_eq!(failed(&of("scxprof", 120), &[], "at least as many"), bad);
    // The rounds of a made output differ too much to tell.
    assert_eq!(failed(&made(), &[], "pairs, 8 CPUs, 2 caches: scxprof saves").1, "open");
    assert_eq!(failed(&of("", 0), &[], "crossed saves").1, good);
    assert_eq!(failed(&of("crossed", 199), &[], "crossed saves"), bad);
    assert_eq!(failed(&of("", 0), &["--at-least", "0.51"], "at least 51 %: 50.0 %"), bad);
    assert_eq!(failed(&of("", 0), &["--at-least", "0.5"], "at least 50 %: 50.0 %").1, good);
    // What is not there does not save anything.
    let without = of("", 0).replace("\"scxprof\"", "\"other\"");
    assert_eq!(failed(&without, &["--at-least", "0.5"], "it was not run"), bad);
    let without = of("", 0).replace("\"none\"", "\"other\"");
    assert_eq!(failed(&without, &["--at-least", "0.5"], "or none was not run"), bad);
    // Without scores the order of arms is not shown.
    assert_eq!(failed(&of("", 0), &[], "rank correlation of"), bad);
    // Each recovered access must have happened.
    let missing = made().replace("\"asked\":30,\"found\":30", "\"asked\":30,\"found\":29");
    assert_eq!(failed(&missing, &[], "29 of 30 recovered accesses"), bad);
    // An arm that was not run is no fault of another.
    let alone = round(("pairs", "scxprof", 1), 100);
    assert_eq!(failed(&alone, &[], "or none, was not run"), (true, "not judged".to_owned()));
}

#[test]
fn a_round_without_an_end_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let cut = round(("pairs", "none", 3), 900);
    let cut = cut.split_inclusive('\n').take(2).collect::<String>();
    let (_, said) = with(dir.path(), &(cut + &made()), &[]);
    assert!(said.contains("a round without an end or without work is left out: "), "{said}");
    assert!(said.contains("out, line 1\n"), "{said}");
    let idle =
        round(("pairs", "none", 3), 900).replace("\"units\":60", "\"units\":0").replace("\"units\":40", "\"units\":0");
    let (_, said) = with(dir.path(), &(idle + &made()), &[]);
    assert!(said.contains("without work is left out: "), "{said}");
    assert!(said.contains(" 2.00 ±0.00 "), "{said}");
}

#[test]
fn arms_of_which_the_score_says_nothing_have_no_rank() {
    let dir = tempfile::tempdir().unwrap();
    let judged = |line: &str| line.contains("\"table\"") && line.contains("prediction");
    let unjudged: String = made()
        .lines()
        .map(|line| {
            let locality = line.find("\"locality\"").filter(|_| judged(line));
            let avoidable = line.find(",\"avoidable\"").unwrap_or(line.len());
            locality
                .map_or(format!("{line}\n"), |at| format!("{}\"locality\":null{}\n", &line[..at], &line[avoidable..]))
        })
        .collect();
    let (_, said) = with(dir.path(), &unjudged, &[]);
    let ranks: Vec<&str> = said.lines().skip_while(|line| !line.starts_with("Rank")).skip(2).take(3).collect();
    let counts = ranks.iter().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>()).collect::<Vec<_>>();
    assert_eq!(counts, [["pairs", "3"], ["table", "0"], ["all", "3"]], "{said}");
}

#[test]
fn instructions_are_the_work_where_the_guest_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let by_instructions = round(("build", "none", 1), 200)
        .replace("\"units\":60", "\"units\":0")
        .replace("\"units\":40", "\"units\":0")
        .replace("\"crossings\":5", "\"crossings\":5,\"by_instructions\":true");
    let (_, said) = with(dir.path(), &by_instructions, &[]);
    // Both groups have a million together, and 200 misses.
    assert!(said.contains("  build     none     200 "), "{said}");
}

#[test]
fn what_is_no_output_is_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let made = made();
    let (begin, window) = (made.lines().next().unwrap(), made.lines().nth(1).unwrap());
    for (text, words, wanted) in [
        ("", &[][..], "out: no line of a run"),
        ("{\"asked\":1", &[][..], "out, line 1: no JSON: EOF"),
        ("7", &[][..], "out, line 1: not a line of a run"),
        ("{\"other\":{}}", &[][..], "out, line 1: not a line of a run"),
        ("\n{\"begin\":{\"round\":1}}", &[][..], "out, line 2: missing field `machine`"),
        ("{\"end\":{\"seconds\":1,\"crossings\":1}}", &[][..], "line 1: the end of a round that has no begin"),
        (
            &format!("{begin}\n{{\"end\":{{\"seconds\":1,\"crossings\":1}}}}"),
            &[][..],
            "line 2: the end of a round that has no window",
        ),
        (&format!("{begin}\n{{\"window\":1,\"groups\":[{{}}]}}"), &[][..], "line 2: missing field `group`"),
        (&format!("{made}{made}"), &[][..], ": round 1 is there twice"),
        (&format!("{begin}\n{window}\n{window}"), &[][..], "line 3: a second window of one round"),
        ("{\"asked\":1,\"found\":1}", &[][..], "asked before a line of the oracle"),
        ("{\"oracle\":{\"workload\":\"a<b\",\"samples\":1,\"accesses\":1}}", &[][..], "the name \"a<b\" is not plain"),
        (&made, &["--mislead", "trees"][..], "--mislead: no workload trees was run"),
        (&made, &["--colour"][..], "no option --colour: proof-report ["),
        (&made, &["no such file"][..], "no such file: No such file or directory"),
    ] {
        let (done, said) = with(dir.path(), text, words);
        let sentence = format!("{:#}", done.unwrap_err());
        assert!(sentence.contains(wanted) && !sentence.contains('\n'), "{wanted}: {sentence}");
        assert_eq!(said, "", "{wanted}");
    }
    assert!(format!("{:#}", run(&[], &mut Vec::new()).unwrap_err()).starts_with("proof-report ["));
}
