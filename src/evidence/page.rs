//! The page of a fleet: tables without any script.

use std::fmt::Write as _;

use super::report::{FleetReport, PairReport};
use scxprof_base::escape;

/// Classes and pairs that are shown.
const SHOWN: usize = 500;
const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem}\
table{border-collapse:collapse;margin:.5rem 0 1.5rem}th,td{border-bottom:1px solid #8886;padding:.2rem .8rem;text-align:left}\
td.n{text-align:right;font-variant-numeric:tabular-nums}pre{overflow:auto;background:#8881;padding:1rem}\
meter{width:8rem}@media(prefers-color-scheme:dark){body{background:#16181c;color:#dde}}";

/// Text in markup. What would hide or turn other text is shown as it is written.
fn text(raw: &str) -> String {
    escape::lines(raw).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn table(page: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    page.push_str("<table><tr>");
    for title in head {
        let _ = write!(page, "<th>{}</th>", text(title));
    }
    page.push_str("</tr>\n");
    for row in rows {
        page.push_str("<tr>");
        for cell in row {
            let is_number = cell.starts_with(|c: char| c.is_ascii_digit());
            let _ = write!(page, "<td{}>{}</td>", if is_number { " class=n" } else { "" }, cell);
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn place(cell: &str, cgroup: &str) -> String {
    if cgroup.is_empty() {
        text(cell)
    } else {
        format!("{} of {}", text(cell), text(cgroup))
    }
}

fn pair(pair: &PairReport) -> Vec<String> {
    let told = pair.told();
    let on = pair.part_sharing().map_or_else(
        || "-".to_owned(),
        |part| format!("<meter min=0 max=1 value={part:.3}></meter> {} of {told} runs", percent(part)),
    );
    let names = format!("{} and {}", text(&pair.a), text(&pair.b));
    vec![place(&pair.cell, &pair.cgroup), names, percent(pair.shared), on, format!("{:.0}", pair.avoidable)]
}

/// The page of a decision on evidence, with its configuration.
#[must_use]
pub fn fleet_page(report: &FleetReport, configuration: &str) -> String {
    let mut page = format!(
        "<!DOCTYPE html><html lang=en><meta charset=utf-8>\
         <meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=viewport content=\"width=device-width\"><title>scxprof: a fleet</title><style>{STYLE}</style>\n\
         <h1>Which classes of threads share memory on this fleet</h1>\n"
    );
    let _ = writeln!(
        page,
        "<p>{} runs of {} hosts, {:.0} samples in {:.1} s, {} lost. For hosts with {} CPUs and {} cells. Made by scxprof {}.</p>",
        report.runs, report.hosts, report.samples, report.seconds, report.lost, report.target_cpus, report.cells_of_host,
        text(&report.scxprof)
    );
    if let Some(locality) = report.locality {
        let found = report.locality_found.filter(|found| *found > locality + 0.0005);
        let found = found.map_or_else(String::new, |found| format!(" ({} with all groups)", percent(found)));
        let _ = writeln!(page, "<p>Locality: {}{found}.</p>", percent(locality));
    }
    let _ = writeln!(page, "<h2>Configuration</h2><pre>{}</pre>", text(configuration));
    for note in &report.notes {
        let _ = writeln!(page, "<p>Note: {}</p>", text(note));
    }
    page.push_str("<h2>Communities</h2>\n");
    let communities = report.communities.iter().map(|it| {
        vec![
            place(&it.cell, &it.cgroup),
            it.classes.iter().map(|it| text(it)).collect::<Vec<_>>().join(", "),
            percent(it.common),
        ]
    });
    table(&mut page, &["Cell", "Classes", "In common"], communities);
    page.push_str("<h2>Hosts on which threads share differently than on most</h2>\n");
    if report.outliers.is_empty() {
        page.push_str("<p>None.</p>\n");
    } else {
        let outliers = report.outliers.iter().map(|it| vec![text(&it.host), it.runs.to_string(), percent(it.differs)]);
        table(&mut page, &["Host", "Runs", "Of what it shares, is not as elsewhere"], outliers);
    }
    let head = ["Cell", "Pair", "Shared", "Share on", "Avoidable misses"];
    page.push_str("<h2>Pairs on which hosts disagree</h2>\n");
    if report.disagreements.is_empty() {
        page.push_str("<p>None.</p>\n");
    } else {
        table(&mut page, &head, report.disagreements.iter().map(pair));
    }
    page.push_str("<h2>Pairs that share most</h2>\n");
    table(&mut page, &head, report.pairs.iter().take(SHOWN).map(pair));
    page.push_str("<h2>Classes</h2>\n");
    let classes = report.classes.iter().take(SHOWN).map(|it| {
        let community = it.community.map_or_else(String::new, |it| (it + 1).to_string());
        let hint = it.hint.as_deref().map(text).unwrap_or_default();
        let (threads, samples) = (format!("{:.1}", it.threads), format!("{:.0}", it.samples));
        let (misses, lines) = (format!("{:.0}", it.misses), format!("{:.0}", it.lines));
        vec![
            place(&it.cell, &it.cgroup),
            text(&it.comm),
            hint,
            it.runs.to_string(),
            threads,
            samples,
            misses,
            lines,
            community,
        ]
    });
    let head = [
        "Cell",
        "Name",
        "Hint",
        "Runs",
        "Threads of a run",
        "Samples",
        "Possible misses",
        "Lines of a run",
        "Community",
    ];
    table(&mut page, &head, classes);
    page
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_text() {
        assert_eq!(super::text("<img src=x onerror=\"a\">&"), "&lt;img src=x onerror=&quot;a&quot;&gt;&amp;");
    }
}
