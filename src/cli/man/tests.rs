use clap::CommandFactory;

use super::*;

fn all() -> Vec<(String, String)> {
    pages(super::super::Args::command(), "2026-11-21").unwrap()
}

fn headings(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.strip_prefix(".SH ")).map(|heading| heading.trim_matches('"')).collect()
}

#[test]
fn each_subcommand_has_a_page_in_the_usual_order() {
    let pages = all();
    let names: Vec<_> = pages.iter().map(|(name, _)| name.as_str()).collect();
    let listed = ["scxprof.1", "scxprof-run.1", "scxprof-record.1", "scxprof-process.1", "scxprof-extract.1"];
    assert_eq!(
        names,
        [
            &listed[..],
            &[
                "scxprof-report.1",
                "scxprof-sched.1",
                "scxprof-replay.1",
                "scxprof-stacks.1",
                "scxprof-trace.1",
                "scxprof-trace-info.1",
                "scxprof-trace-analyze.1",
                "scxprof-trace-events.1",
                "scxprof-trace-timeline.1",
                "scxprof-trace-diff.1",
                "scxprof-export.1",
                "scxprof-diff.1",
                "scxprof-score.1",
                "scxprof-merge.1",
                "scxprof-watch.1",
                "scxprof-top.1",
                "scxprof-mcp.1",
                "scxprof-doctor.1",
                "scxprof-completions.1"
            ]
        ]
        .concat()
    );
    // One below another command is described by that, and not by one of its name.
    let of_trace = pages.iter().filter(|(name, _)| name.starts_with("scxprof-trace"));
    for (name, page) in of_trace {
        assert!(page.contains("the JSON lines of wprof"), "{name}: {page}");
    }
    let order = [
        "NAME",
        "SYNOPSIS",
        "DESCRIPTION",
        "COMMANDS",
        "OPTIONS",
        "INPUT",
        "WHAT TO WATCH",
        "HOW TO SAMPLE",
        "TASK HINTS",
        "HOW TO REPLAY",
        "TUNING",
        "RESULT",
        "SELECTION",
        "SOURCES",
        "EXAMPLES",
        "EXIT STATUS",
        "ENVIRONMENT",
        "FILES",
        "SEE ALSO",
    ];
    for (name, page) in &pages {
        let place = |heading: &&str| order.iter().position(|it| it == heading).unwrap_or_else(|| panic!("{heading}"));
        let places: Vec<_> = headings(page).iter().map(place).collect();
        assert!(places.is_sorted_by(|a, b| a < b), "{name}: {:?}", headings(page));
        for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"] {
            assert!(headings(page).contains(&heading), "{name}: {heading}");
        }
        assert_eq!(headings(page).contains(&"EXAMPLES"), name != "scxprof.1", "{name}");
        let title = page.lines().next().unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let upper = name.trim_end_matches(".1").to_uppercase();
        assert_eq!(title, format!(".TH {upper} 1 \"2026-11-21\" \"scxprof {version}\" \"User Commands\""));
        assert!(page.is_ascii(), "{name}");
        let below = page.split(".SH DESCRIPTION\n").nth(1).unwrap();
        assert!(!below.starts_with(".SH"), "{name} has no description");
    }
    let run = &pages[1].1;
    assert!(run.contains("\\fBscxprof run\\fR [OPTIONS] [COMMAND]...\n"), "{run}");
    assert!(run.contains("\\-\\-min\\-share"), "{run}");
    assert!(run.contains(".SH \"SEE ALSO\"\nscxprof(1), scxprof\\-record(1), "), "{run}");
    assert!(run.contains("With a COMMAND, 1, 3 and 5") && !pages[4].1.contains("With a COMMAND, 1, 3 and 5"));
}

#[test]
fn examples_survive_to_be_copied() {
    let mut roff = Roff::new();
    let lines = part(
        "Examples:\n  a 'b\\.c$' ^d ~e `f`  what `it` does\n    .g  -h\nThen:\n  i\nExit codes:\n  0  j",
        EXAMPLES,
    );
    examples(&mut roff, &lines);
    let block = |example: &str| format!(".PP\n.RS 4\n.nf\n\\fB{example}\\fR\n.fi\n.RE\n");
    let expected = [
        ".SH EXAMPLES\n.PP\nWhat \\fBit\\fR does:\n",
        &block(r"a \(aqb\(rs.c$\(aq \(had \(tie \(gaf\(ga"),
        ".PP\n\\-h:\n",
        &block("  .g"),
        ".PP\nThen:\n",
        &block("i"),
    ];
    assert_eq!(literal(&roff.render()), expected.concat());
}

#[test]
fn dates() {
    for (seconds, date) in [
        ("0", "1970-01-01"),
        ("951782400", "2000-02-29"),
        ("951868800", "2000-03-01"),
        ("1735689599", "2024-12-31"),
        ("4107542400", "2100-03-01"),
        ("253402300799", "9999-12-31"),
    ] {
        assert_eq!(date_of_epoch(seconds).as_deref(), Some(date));
    }
    for wrong in ["", "-1", "now", "253402300800", "99999999999999999999"] {
        assert_eq!(date_of_epoch(wrong), None, "{wrong}");
    }
    assert_eq!(date_of_release("# Changes\n\n## Unreleased\n\n- 2020-01-01\n"), None);
    assert_eq!(date_of_release("## Unreleased\n## 0.2.0 (2027-01-31)\n## 0.1.0 (2026-12-01)\n"), Some("2027-01-31"));
    assert_eq!(date_of_release("## 0.1.0 - 2026-12-01\n"), Some("2026-12-01"));
}
