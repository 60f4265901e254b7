//! Tables: the report as the text that `-v` and `-vv` print.

use std::fmt::Write as _;

use super::model::{CellReport, Report, SubcellReport};
use scxprof_base::columns::{fitted, wrapped, Column};

/// Pairs of cells that are listed.
const PAIRS: usize = 8;

/// Which columns of subcells are cut or left out if a line has no room.
const COLUMNS: [Column; 8] = [
    Column::name(0).at_least(24),
    Column::number(1),
    Column::number(4),
    Column::number(3),
    Column::number(0),
    Column::number(5),
    Column::number(2),
    Column::name(6),
];

/// The table of subcells, and their locality compared with that of grouping by name; no line is longer than `width`.
#[must_use]
pub fn table(report: &Report, width: Option<usize>) -> String {
    let head = ["subcell", "threads", "samples", "share", "locality", "stability", "confidence", "hottest page"];
    let mut rows = vec![head.map(str::to_owned)];
    for cell in &report.cells {
        for subcell in cell.subcells.iter().filter(|subcell| !subcell.threads.is_empty() || subcell.samples >= 0.5) {
            rows.push(row(name_of(cell, subcell), subcell));
        }
    }
    let mut text = fitted(&rows, &COLUMNS, width);
    let percent = |part: f64| format!("{:.1}%", part * 100.0);
    if let (Some(own), Some(by_name)) = (report.locality, report.locality_by_name) {
        let _ = writeln!(text, "Locality captured: {} (grouping by name: {})", percent(own), percent(by_name));
    } else {
        let whose = if report.across_cells.is_empty() { "threads" } else { "threads of one cell" };
        let _ = writeln!(text, "Locality captured: - (no sharing between {whose} was found)");
    }
    if let Some(stability) = report.stability {
        // Two halves without a community agree on nothing.
        let found = report.cells.iter().flat_map(|cell| &cell.subcells).any(|subcell| subcell.stability.is_some());
        let stability = if found { format!("{stability:.2}") } else { "-".to_owned() };
        let _ = writeln!(text, "Agreement of the run's two halves: {stability}");
    }
    for pair in report.across_cells.iter().take(PAIRS) {
        let _ = writeln!(text, "Shared across cells: {}", pair.text());
    }
    wrapped(&text, width)
}

/// The name of a subcell in the tables; an undivided cell has its own name.
fn name_of(cell: &CellReport, subcell: &SubcellReport) -> String {
    if cell.subcells.len() > 1 {
        format!("{}/{}", cell.name, subcell.name)
    } else {
        cell.name.clone()
    }
}

fn row(name: String, subcell: &SubcellReport) -> [String; 8] {
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let percent = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{:.1}%", value * 100.0));
    let page =
        subcell.pages.first().map_or("-".to_owned(), |page| format!("{} ({:.0} accesses)", page.memory, page.accesses));
    [
        name,
        subcell.threads.len().to_string(),
        format!("{:.0}", subcell.samples),
        percent(Some(subcell.share)),
        percent(subcell.locality),
        number(subcell.stability),
        number(subcell.confidence),
        page,
    ]
}

/// The misses that are avoided between each two subcells as a matrix; those within one on its diagonal. Empty without sharing.
/// If `width` has no room for all, the last columns are left out.
#[must_use]
pub fn matrix(report: &Report, width: Option<usize>) -> String {
    // In the order of the table.
    let all = report.cells.iter().flat_map(|cell| cell.subcells.iter().map(|it| name_of(cell, it)));
    let shares = |name: &String| report.sharing.iter().any(|it| it.misses >= 0.5 && (it.a == *name || it.b == *name));
    let names: Vec<String> = all.filter(shares).collect();
    if names.is_empty() {
        return String::new();
    }
    let shared = |a: &str, b: &str| -> f64 {
        let is_pair = |it: &&super::model::Shared| (it.a == a && it.b == b) || (it.a == b && it.b == a);
        report.sharing.iter().filter(is_pair).map(|it| it.misses).sum()
    };
    let mut rows = vec![vec!["avoided misses".to_owned()]];
    if let Some(head) = rows.first_mut() {
        head.extend((1..=names.len()).map(|number| format!("[{number}]")));
    }
    for (a, number) in names.iter().zip(1..) {
        let mut row = vec![format!("[{number}] {a}")];
        row.extend(names.iter().map(|b| format!("{:.0}", shared(a, b).max(0.0) + 0.0)));
        rows.push(row);
    }
    fitted(&rows, &[], width)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cluster::Edge;
    use crate::config::{CellOptions, CellSpecs, DecisionOptions, Member, Members, Note, Tally, Unknown, Verdict};
    use crate::report::{
        report, CellName, CellSharing, Code, CommunityEvidence, DataSymbol, Evidence, Granule, Identity, LineSharing,
        LineThread, RegionReport, SubcellKind,
    };
    use crate::sample::Comm;

    const SHOP: &[u8] = b"/workload-tw-a.allotment.slice";

    /// Two pairs, a loner and a thread with too few samples; the parts of shared accesses by pairs of threads.
    pub(in crate::report) fn made() -> Report {
        let specs = CellSpecs::new(&CellOptions::default()).unwrap();
        let mut tally = Tally::default();
        let mut members = Members::default();
        let cell = tally.cell(specs.assign(SHOP));
        let pairs = [("reader-a", 0), ("writer-a", 0), ("reader-b", 1), ("writer-b", 1), ("lone\n", 8), ("rare", 9)];
        for ((name, community), thread) in pairs.into_iter().zip(0..) {
            let verdict = match community {
                8 => Verdict::Alone,
                9 => Verdict::Unknown(Unknown::TooFewSamples),
                community => Verdict::Community(community),
            };
            let samples = if community == 9 { 1.0 } else { 100.0 };
            let comm = Some(Comm::from(name));
            tally.add(cell, comm, samples);
            members.threads.push(Member { thread, pid: 7, tid: 70 + thread, comm, hint: None, cell, samples, verdict });
        }
        let options = DecisionOptions::new(0.05, 16);
        let found = crate::config::find(&specs, &tally, &members, &options, |_, _| None).unwrap();
        // Threads 0 and 1 have 60 % of the sharing, 2 and 3 30 %, 4 and 5 10 %.
        let shared = [(0, 1, 0.6), (2, 3, 0.3), (4, 5, 0.1)];
        let locality =
            |labels: &[u32]| shared.iter().filter(|(a, b, _)| labels[*a] == labels[*b]).map(|it| it.2).sum::<f64>();
        let sharing = |labels: &[u32]| {
            shared
                .iter()
                .map(|&(a, b, part)| Edge { a: labels[a], b: labels[b], misses: part * 100.0, share: part })
                .collect()
        };
        let page = |place: &str, accesses| Granule {
            memory: place.to_owned(),
            identity: Some(Identity::Private { pid: Some(7), addr: 0x1000 }),
            symbol: None,
            accesses,
            writes: 1.0,
            hitm: 0,
            transfers: None,
            threads: 2,
            code: vec![],
            sharing: None,
            by_thread: vec![],
        };
        let code = |sym: &str| Code {
            sym: Some(sym.to_owned()),
            offset: 0x12,
            dso: "/usr/bin/server".to_owned(),
            accesses: 4.0,
            line: Some("/src/queue.c:12".to_owned()),
            caller_line: None,
            inlined: vec!["insert".to_owned(), "lock".to_owned()],
        };
        let community = |place: &str| CommunityEvidence {
            stability: Some(0.9),
            confidence: 0.8,
            over_time: None,
            regions: vec![RegionReport {
                memory: place.to_owned(),
                identity: Some(Identity::Physical { addr: 0x1000 }),
                bytes: 4096,
                threads: 2,
                misses: 8.0,
                transfers: 1.0,
            }],
            pages: vec![page(place, 10.0)],
            lines: vec![Granule { code: vec![code("push")], ..page("heap+0x1040", 5.0) }],
        };
        let symbol = |name: &str| DataSymbol { name: name.to_owned(), offset: 0, dso: "/usr/bin/server".to_owned() };
        let thread = |tid, comm: &str, loads, stores, loaded: &[[u8; 2]], stored: &[[u8; 2]]| LineThread {
            pid: 7,
            tid,
            comm: Some(Comm::from(comm).to_string()),
            loads,
            stores,
            hitm: 0,
            loaded: loaded.to_vec(),
            stored: stored.to_vec(),
            symbol: Some(symbol(if stores == 0 { "total" } else { "next" })),
        };
        let line = Granule {
            identity: Some(Identity::Shared { dev: 1, ino: 2, offset: 64 }),
            symbol: Some(symbol("total")),
            threads: 3,
            code: vec![code("push")],
            sharing: Some(LineSharing::False),
            by_thread: vec![
                thread(70, "reader\n", 4, 0, &[[0, 7], [16, 16]], &[]),
                thread(71, "writer", 0, 1, &[], &[[8, 15]]),
            ],
            ..page("total+0x0 (server)", 5.0)
        };
        let evidence = Evidence {
            lines: vec![line],
            source: "timer",
            coverage: "what it sees",
            communities: vec![community("heap+0x1000"), community("heap+0x2000")],
            stability: Some(1.0),
            locality: Some(&locality),
            sharing: Some(&sharing),
            across_cells: vec![CellSharing {
                smaller: CellName { name: "allotment".to_owned(), cgroup: Some("/a".to_owned()) },
                larger: CellName { name: "rest".to_owned(), cgroup: None },
                part: 0.25,
                misses: 8.0,
                memory: "memfd:ring+0x0".to_owned(),
                identity: None,
                option: Some("a=^/sys/fs/cgroup/a$".to_owned()),
                advice: "do it".to_owned(),
            }],
            shares_across: vec![true, false, false, false, true, true],
            misses: Vec::new(),
            ..Evidence::default()
        };
        report((&specs, &tally), &members, &options, &found, &evidence).unwrap()
    }

    #[test]
    fn a_report_says_where_each_thread_goes_and_why() {
        let report = made();
        assert!((report.locality.unwrap() - 0.9).abs() < 1e-9);
        // By name each has its own subcell, so no two threads are together.
        assert_eq!(report.locality_by_name, Some(0.0));
        let subcells = &report.cells[0].subcells;
        let names: Vec<_> = subcells.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["reader-a+writer-a", "reader-b+writer-b", "lone\\x0a", "rest"]);
        assert_eq!(subcells[0].kind, SubcellKind::Community);
        assert_eq!((subcells[0].locality, subcells[0].confidence), (Some(0.6), Some(0.8)));
        assert_eq!(subcells[2].kind, SubcellKind::Class);
        assert_eq!((subcells[3].kind, subcells[3].locality), (SubcellKind::Rest, None));
        // Threads of communities and those that are not judged are what they were.
        let verdicts = [0, 2, 3].map(|at| subcells[at].threads[0].verdict.as_str());
        assert_eq!(verdicts, ["community 0", "shares with other cells", "unknown: too few samples"]);
        assert_eq!(subcells[0].threads.iter().map(|it| it.tid).collect::<Vec<_>>(), [70, 71]);
        assert!(report.notes.iter().any(|note| note.contains("too few to judge")));
        let json = report.to_json().unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }

    #[test]
    fn every_field_of_a_report_is_described() {
        fn keys(value: &serde_json::Value, found: &mut std::collections::BTreeSet<String>) {
            match value {
                serde_json::Value::Object(map) => map.iter().for_each(|(key, value)| {
                    found.insert(key.clone());
                    keys(value, found);
                }),
                serde_json::Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
                _ => {}
            }
        }
        let mut found = std::collections::BTreeSet::new();
        keys(&serde_json::from_str(&made().to_json().unwrap()).unwrap(), &mut found);
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/report.md");
        let text = std::fs::read_to_string(path).unwrap();
        let missing: Vec<_> = found.iter().filter(|key| !text.contains(&format!("`{key}`"))).collect();
        assert!(missing.is_empty(), "docs/report.md says nothing of {missing:?}");
    }

    #[test]
    fn tables_are_aligned() {
        let report = made();
        let text = table(&report, None);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("subcell                      threads  samples  share  locality"), "{text}");
        assert!(lines[1].starts_with("allotment/reader-a+writer-a        2      200  39.9%     60.0%"), "{text}");
        assert!(lines[1].ends_with("heap+0x1000 (10 accesses)"), "{text}");
        assert!(text.contains("Locality captured: 90.0% (grouping by name: 0.0%)\n"), "{text}");
        let across =
            "Shared across cells: allotment of /a and rest: 25.0% of the possible misses of allotment of /a, most in \
                      memfd:ring+0x0\n";
        assert!(text.ends_with(across), "{text}");
        let mut apart = report.clone();
        apart.across_cells.clear();
        apart.cells.iter_mut().flat_map(|cell| &mut cell.subcells).for_each(|subcell| subcell.stability = None);
        assert!(
            table(&apart, None).ends_with("Agreement of the run's two halves: -\n"),
            "nothing was found to agree on"
        );
        let text = matrix(&report, None);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("avoided misses"), "{text}");
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines.iter().any(|line| line.contains("reader-a+writer-a") && line.contains("60")), "{text}");
    }

    #[test]
    fn one_class_is_one() {
        let note = |classes: &[&str]| Note::TooManyClasses {
            cell: "c".to_owned(),
            classes: classes.iter().map(|&it| it.to_owned()).collect(),
            share: 0.5,
        };
        let one = "c: 1 class of threads too many for its subcells stays in \"rest\" (50.0% of its samples): a";
        assert_eq!(note(&["a"]).to_string(), one);
        assert!(note(&["a", "b"]).to_string().starts_with("c: 2 classes of threads too many for its subcells stay in"));
    }
}
