//! Figures of a run as text for Prometheus.

use std::fmt::Write as _;

use super::model::Report;

/// Facts about the run that the report does not have.
#[derive(Debug, Clone, Default)]
pub struct RunFacts {
    /// Seconds since 1970.
    pub time: f64,
    /// Seconds that were sampled.
    pub seconds: f64,
    /// All samples that the kernel took, lost ones included.
    pub all_samples: u64,
    /// Samples that were lost, by the reason.
    pub lost: Vec<(&'static str, u64)>,
}

/// A sum of nothing is -0, which would be printed so.
fn plain(number: f64) -> f64 {
    number + 0.0
}

/// A metric as it is written: its name, what it says, and its values by labels.
struct Metric(&'static str, &'static str, Vec<(Vec<(&'static str, String)>, f64)>);

/// Figures of a run in the text format of Prometheus (exposition format 0.0.4), all of them gauges.
#[must_use]
pub fn prometheus(report: &Report, facts: &RunFacts) -> String {
    let one = |value: f64| vec![(Vec::new(), value)];
    let maybe = |value: Option<f64>| value.map(|value| (Vec::new(), value)).into_iter().collect();
    let subcells = || {
        report.cells.iter().flat_map(|cell| {
            let labels = |name: &str| vec![("cell", cell.name.clone()), ("subcell", name.to_owned())];
            cell.subcells.iter().map(move |subcell| (labels(&subcell.name), subcell))
        })
    };
    let lost = facts.lost.iter().map(|&(_, count)| count).fold(0, u64::saturating_add);
    let lost_part = if facts.all_samples == 0 { 0.0 } else { lost as f64 / facts.all_samples as f64 };
    let info = vec![("version", env!("CARGO_PKG_VERSION").to_owned()), ("source", report.source.clone())];
    let metrics = [
        Metric("info", "Version and source of the samples; always 1.", vec![(info, 1.0)]),
        Metric("timestamp_seconds", "When these values were written, in seconds since 1970.", one(facts.time)),
        Metric("sampled_seconds", "Seconds that were sampled.", one(facts.seconds)),
        Metric("samples", "Samples that the decision rests on.", one(report.samples)),
        Metric(
            "lost_samples",
            "Samples that were lost, by reason.",
            facts.lost.iter().map(|&(reason, count)| (vec![("reason", reason.to_owned())], count as f64)).collect(),
        ),
        Metric("lost_samples_ratio", "The part of all samples that was lost.", one(lost_part)),
        Metric(
            "locality_ratio",
            "The part of the avoidable misses that the configuration avoids.",
            maybe(report.locality),
        ),
        Metric(
            "locality_by_name_ratio",
            "The same for the configuration that names alone would give.",
            maybe(report.locality_by_name),
        ),
        Metric("stability", "Agreement of the two halves of the run (adjusted Rand index).", maybe(report.stability)),
        Metric(
            "subcell_threads",
            "Threads of a subcell.",
            subcells().map(|(labels, subcell)| (labels, subcell.threads.len() as f64)).collect(),
        ),
        Metric(
            "subcell_samples_ratio",
            "The part of all samples that are of a subcell's threads.",
            subcells().map(|(labels, subcell)| (labels, subcell.share)).collect(),
        ),
        Metric(
            "subcell_locality_ratio",
            "The part of the avoidable misses that a subcell avoids.",
            subcells().filter_map(|(labels, subcell)| Some((labels, subcell.locality?))).collect(),
        ),
        Metric(
            "subcell_confidence_ratio",
            "How sure a subcell's communities are, from 0 to 1.",
            subcells().filter_map(|(labels, subcell)| Some((labels, subcell.confidence?))).collect(),
        ),
        Metric(
            "sharing_avoidable_misses",
            "Possible misses that are avoided if two subcells, or the threads of one, use one cache.",
            report
                .sharing
                .iter()
                .map(|shared| (vec![("a", shared.a.clone()), ("b", shared.b.clone())], shared.misses))
                .collect(),
        ),
    ];
    let mut text = String::new();
    for Metric(name, help, values) in metrics.into_iter().filter(|metric| !metric.2.is_empty()) {
        let _ = writeln!(text, "# HELP scxprof_{name} {help}\n# TYPE scxprof_{name} gauge");
        for (labels, value) in values {
            let labels: Vec<String> =
                labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            let _ = writeln!(text, "scxprof_{name}{labels} {}", plain(value));
        }
    }
    text
}

/// The value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::report::text::tests::made;

    /// A metric, its labels and its value.
    type Series = (String, Vec<(String, String)>, f64);

    /// Reads the text format strictly: HELP and TYPE before the values of each metric, each series once.
    fn parse(text: &str) -> Vec<Series> {
        let (mut series, mut known, mut current) = (Vec::new(), Vec::new(), String::new());
        assert!(text.ends_with('\n'));
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, _) = help.split_once(' ').unwrap();
                assert!(!known.contains(&name), "{name} comes twice");
                assert_eq!(lines.next().unwrap(), format!("# TYPE {name} gauge"));
                known.push(name);
                name.clone_into(&mut current);
                continue;
            }
            let is_letter = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
            let name: String = line.chars().take_while(is_letter).collect();
            assert_eq!(name, current, "{line}");
            let mut rest = &line[name.len()..];
            let mut labels = Vec::new();
            if let Some(inner) = rest.strip_prefix('{') {
                rest = inner;
                loop {
                    let label: String = rest.chars().take_while(is_letter).collect();
                    rest = rest[label.len()..].strip_prefix("=\"").unwrap();
                    let mut value = String::new();
                    let mut chars = rest.char_indices();
                    let end = loop {
                        match chars.next().unwrap() {
                            (at, '"') => break at,
                            (_, '\\') => value.push(match chars.next().unwrap().1 {
                                'n' => '\n',
                                c @ ('\\' | '"') => c,
                                c => panic!("\\{c} in {line}"),
                            }),
                            (_, c) => value.push(c),
                        }
                    };
                    labels.push((label, value));
                    rest = &rest[end + 1..];
                    match rest.strip_prefix(',') {
                        Some(more) => rest = more,
                        None => break,
                    }
                }
                rest = rest.strip_prefix('}').unwrap();
            }
            let value: f64 = rest.strip_prefix(' ').unwrap().parse().unwrap();
            let is_there = series.iter().any(|(a, b, _)| (a, b) == (&name, &labels));
            assert!(!is_there, "{line} comes twice");
            series.push((name, labels, value));
        }
        series
    }

    pub(in crate::report) fn nasty() -> Report {
        let mut report = made();
        report.cells[0].name = "a \"cell\"\\\n,".to_owned();
        report.sharing[0].a = "a \"cell\",/x".to_owned();
        report
    }

    #[test]
    fn prometheus_reads_all_values() {
        let facts =
            RunFacts { time: 1.5e9, seconds: 30.0, all_samples: 400, lost: vec![("ring_full", 3), ("hardware", 1)] };
        let report = nasty();
        let series = parse(&prometheus(&report, &facts));
        let value = |name: &str, wanted: &[(&str, &str)]| {
            let wanted: Vec<_> = wanted.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            series.iter().find(|it| it.0 == format!("scxprof_{name}") && it.1 == wanted).map(|it| it.2)
        };
        assert_eq!(value("samples", &[]), Some(report.samples));
        assert_eq!(value("timestamp_seconds", &[]), Some(1.5e9));
        assert_eq!(value("lost_samples", &[("reason", "ring_full")]), Some(3.0));
        assert_eq!(value("lost_samples_ratio", &[]), Some(0.01));
        assert_eq!(value("locality_ratio", &[]), report.locality);
        let labels = [("cell", "a \"cell\"\\\n,"), ("subcell", "reader-a+writer-a")];
        assert_eq!(value("subcell_samples_ratio", &labels), Some(report.cells[0].subcells[0].share));
        assert_eq!(
            value("sharing_avoidable_misses", &[("a", "a \"cell\",/x"), ("b", &report.sharing[0].b)]),
            Some(60.0)
        );
        // Unknown values are left out completely.
        let unknown = Report { locality: None, ..report };
        assert!(!prometheus(&unknown, &facts).contains("scxprof_locality_ratio"));
    }
}
