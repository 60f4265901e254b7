//! The messages of commands about samples, losses and decisions: the sentences and tables, not when they are printed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::anyhow;

use super::hints;
use super::input::Damage;
use crate::config::Note;
use crate::host::phases::{Phase, Phases};
use crate::host::priority::NICE;
use crate::host::usage::own_cpu_ns;
use crate::outcome::FRAMES_HIDDEN;
use crate::report::{self, Report};
use crate::sample::Source;
use crate::sampler::loss::Loss;
use crate::session::{Outcome, RecoveryStats, Sampled};
use scxprof_base::columns;
use scxprof_recover::Unrecovered;

/// The letters of methods as [`crate::sample::Method`] has them, in words.
const METHODS: [(&str, &str); 7] = [
    ("a", "at the ip"),
    ("c", "before it, registers unchanged"),
    ("b", "after it, registers unchanged"),
    ("e", "after it, emulated"),
    ("i", "before it, computed backwards"),
    ("r", "before it, replayed"),
    ("m", "after it, with memory that may have changed"),
];

/// Why there are unresolved gathers: see [`Unrecovered::Gather`].
const GATHERS: &str =
    "Gathers and scatters: their indices are in vector registers. The kernel gives these only with PEBS of \
                       Intel cores, not with a timer";

/// A capture that was shorter may have no samples of what does use CPU time.
const SHORT: Duration = Duration::from_secs(1);

/// How long a capture was.
pub(super) fn lasted(duration: Duration) -> String {
    if duration < SHORT {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

/// The sampled tasks and time, for `-v`.
pub(super) fn source(sampled: &Sampled) -> String {
    let Sampled { decider, outcome, .. } = sampled;
    let source = decider.source();
    let Outcome { duration, events, samples, accesses, .. } = outcome;
    format!(
        "Source: {source} ({})\nSampled {}: {events} events, {samples} samples, {accesses} accesses\n",
        source.coverage(),
        lasted(*duration)
    )
}

/// The sampled tasks, and the source of the addresses, for `-v`.
pub(super) fn summary(verbose: u8, sampled: &Sampled) -> String {
    let Sampled { decider, outcome, .. } = sampled;
    let mut text = String::new();
    if let Some(priority) = outcome.realtime.filter(|_| verbose > 1) {
        let _ = writeln!(text, "Readers: SCHED_FIFO, priority {priority}, all else of scxprof nice {NICE}");
    }
    if let Some(recovery) = &outcome.recovery {
        text.push_str(&yield_text(verbose, recovery));
        text.push('\n');
    }
    text + &report::summary(decider.specs(), decider.tally(), verbose > 1)
}

/// Ends the answer at a terminal.
pub(super) fn to_write(verbose: u8) -> String {
    let more = if verbose == 0 { " -v shows more." } else { "" };
    format!("To write the configuration: -o FILE, or > FILE.{more}\n")
}

/// A part of the samples below this that is not judged is not news.
const FEW: f64 = 0.05;

/// False for a note that the answer has, and for one that tells a person nothing.
pub(super) fn is_news(note: &Note, verbose: u8) -> bool {
    match note {
        Note::LeftOutOfHost { .. } => false,
        Note::Unknown { share, .. } => verbose > 0 || *share >= FEW,
        _ => true,
    }
}

/// Messages about the samples: losses.
pub(super) fn say_sampled(verbose: u8, outcome: &Outcome) {
    let loss = outcome.loss;
    if let Some(hints) = &outcome.hints {
        hints::report(hints, verbose);
    }
    say_loss(&loss, verbose > 0 || outcome.accesses == 0);
    if verbose > 1 {
        loss.harmless().iter().for_each(|line| say!("note: {line}"));
    }
    if loss.lost() > 0 || verbose > 0 {
        say!("{:.3} % of the samples were lost ({} of {})", loss.percent(), loss.lost(), loss.total());
    }
}

/// Reports each `--cell` that matches nothing.
pub(super) fn say_unmatched(cells: &[String], sampled: &Sampled) {
    let specs = sampled.decider.specs().specs();
    for (index, (given, _)) in cells.iter().zip(specs).enumerate() {
        if sampled.decider.tally().spec_total(index) <= 0.0 {
            say!(
                "note: --cell {given}: no sampled cgroup matches it (earlier --cell options win); the cell is omitted"
            );
        }
    }
}

/// Reports what was lost, and what was `left_out` if requested.
pub(super) fn say_loss(loss: &Loss, left_out: bool) {
    let left_out = if left_out { loss.left_out() } else { Vec::new() };
    for line in left_out.into_iter().chain(loss.lines()) {
        say!("note: {line}");
    }
}

/// The timer source's yield, for display.
fn yield_text(verbose: u8, recovery: &RecoveryStats) -> String {
    let list = |counts: &BTreeMap<&str, u64>| {
        counts.iter().map(|(what, count)| format!("{what} {count}")).collect::<Vec<_>>().join(", ")
    };
    let mut lines = vec![format!(
        "Recovered: {} of {} user samples ({:.1}%){}",
        recovery.recovered,
        recovery.user_samples,
        recovery.share() * 100.0,
        if recovery.by_method.is_empty() || verbose < 2 {
            String::new()
        } else {
            let methods = METHODS.iter().filter_map(|(letter, words)| {
                recovery.by_method.get(letter).map(|count| format!("{letter} {count} ({words})"))
            });
            format!("; addresses by method: {}", methods.collect::<Vec<_>>().join(", "))
        }
    )];
    if !recovery.unrecovered.is_empty() {
        lines.push(format!("Not recoverable: {}", list(&recovery.unrecovered)));
    }
    if recovery.kernel_samples > 0 {
        let reasons = list(&recovery.kernel_unrecovered);
        lines.push(format!(
            "Recovered: {} of {} kernel samples ({:.1}%){}{reasons}",
            recovery.kernel_recovered,
            recovery.kernel_samples,
            recovery.kernel_recovered as f64 / recovery.kernel_samples as f64 * 100.0,
            if reasons.is_empty() { "" } else { "; not: " }
        ));
    }
    if recovery.operands > 0 {
        // Samples that gave an address can lack others: what a part of the code accesses may be missing.
        let reasons = list(&recovery.unresolved_operands);
        lines.push(format!(
            "Memory operands near the samples: {}, {:.1}% of them unresolved{}{reasons}",
            recovery.operands,
            recovery.unresolved_share() * 100.0,
            if reasons.is_empty() { "" } else { ": " }
        ));
    }
    if verbose > 1 {
        lines.extend(
            recovery.unresolved_places.iter().map(|place| {
                format!("Never resolved: the operand of {place}, {} times ({})", place.times, place.reason)
            }),
        );
    }
    if recovery.unresolved_operands.contains_key(Unrecovered::Gather.name()) {
        lines.push(GATHERS.to_owned());
    }
    if recovery.code_unsettled > 0 {
        lines.push(format!("Code in memory that may have changed since it ran: {} times", recovery.code_unsettled));
    }
    if recovery.absent_pages > 0 {
        lines.push(format!("Addresses without a page: {}", recovery.absent_pages));
    }
    if recovery.unmapped_pages > 0 {
        lines.push(format!(
            "Addresses in mappings that moved, before these were read again: {}",
            recovery.unmapped_pages
        ));
    }
    if !recovery.frames_visible {
        lines.push(FRAMES_HIDDEN.to_owned());
    }
    lines.join("\n")
}

/// The tables of `-v` and `-vv`, with rows of this width.
pub(super) fn tables(verbose: u8, report: &Report, width: Option<usize>) -> String {
    let mut text = report::table(report, width);
    if let Some(wakeups) = &report.wakeups {
        text.push_str(&wakeups.text());
    }
    if verbose > 1 {
        text.push_str(&report::matrix(report, width));
        text.push_str(&report::hot_lines(report, width));
    }
    text
}

/// What each phase took, and all threads of scxprof, in s.
pub(super) fn phases(phases: &Phases) -> String {
    let row = |name: &str, wall: String, cpu: f64| [name.to_owned(), wall, format!("{cpu:.3}")];
    let mut rows = vec![["phase".to_owned(), "wall s".to_owned(), "CPU s".to_owned()]];
    let phase = |it: &Phase| row(it.name, format!("{:.3}", it.wall.as_secs_f64()), it.cpu.as_secs_f64());
    rows.extend(phases.all().iter().map(phase));
    rows.push(row("all that scxprof did", "-".to_owned(), own_cpu_ns() as f64 / 1e9));
    columns::aligned(&rows)
}

/// What to do if no sample has an address of user memory, with `advice` if there is some; `None` if one has, or there are no samples.
pub(super) fn without_address(outcome: &Outcome, advice: Option<&str>) -> Option<String> {
    let Loss { no_user_address, no_memory_op, .. } = outcome.loss;
    let all = outcome.accesses + no_memory_op;
    if all == 0 || outcome.accesses > no_user_address {
        return None;
    }
    let advice = advice.map_or_else(String::new, |advice| format!(": {advice}"));
    Some(format!("none of the {all} samples has a data address{advice}"))
}

/// Why a capture has no samples.
pub(super) fn no_samples(outcome: &Outcome, source: Source) -> anyhow::Error {
    if let Some(sentence) = without_address(outcome, None) {
        return anyhow!("no usable samples: {sentence}");
    }
    anyhow!("no usable samples in {}{}", lasted(outcome.duration), why_none(outcome, source))
}

/// The same as the end of a sentence that says how long the capture was.
pub(super) fn why_none(outcome: &Outcome, source: Source) -> String {
    let events = outcome.events;
    if events == 0 {
        ": what was watched used almost no CPU time; sample longer (-t), or watch other processes".to_owned()
    } else if outcome.duration < SHORT {
        format!(", which is too short ({} counted): sample for longer", number(events, "event"))
    } else if source == Source::Wakeups {
        ": no thread that was watched woke another one".to_owned()
    } else {
        format!(": {}", of_no_use(outcome, "counted"))
    }
}

fn number(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The reasons why events gave no usable sample.
fn of_no_use(outcome: &Outcome, was: &str) -> String {
    let Outcome { events, loss, .. } = outcome;
    let (events, seen) = (number(*events, "event"), loss.seen());
    if seen == 0 {
        format!("{events} {was}, and none gave a sample")
    } else {
        let has_notes = !loss.left_out().is_empty() || !loss.lines().is_empty();
        let why = if has_notes { " (see the notes)" } else { "" };
        format!("{events} {was}, with {}, but none of use{why}", number(seen, "sample"))
    }
}

/// Why a recording has no samples.
pub(super) fn no_recorded_samples(
    outcome: &Outcome,
    addresses: Option<&str>,
    unselected: Option<String>,
    damage: &Damage,
) -> anyhow::Error {
    if let Some(unselected) = unselected {
        return anyhow!(unselected);
    }
    let damaged = damage.list().map(|list| format!("the profile is damaged: {list}"));
    let reasons: Vec<String> = damaged.into_iter().chain(without_address(outcome, addresses)).collect();
    if !reasons.is_empty() {
        anyhow!("no usable samples: {}", reasons.join("; "))
    } else if outcome.events == 0 {
        anyhow!("no usable samples: the recording has none")
    } else {
        anyhow!("no usable samples: {}", of_no_use(outcome, "recorded"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::UnresolvedPlace;

    #[test]
    fn why_there_are_no_samples_is_said_with_what_to_do() {
        let said = |ms, events, loss| {
            let outcome = Outcome { duration: Duration::from_millis(ms), events, loss, ..Outcome::default() };
            no_samples(&outcome, Source::Timer).to_string()
        };
        let idle = Loss { idle: 7, ..Loss::default() };
        let short = "no usable samples in 40 ms, which is too short (50 events counted): sample for longer";
        assert_eq!(said(40, 50, idle), short);
        let noted = "no usable samples in 5.0 s: 50 events counted, with 7 samples, but none of use (see the notes)";
        assert_eq!(said(5_000, 50, idle), noted);
        let bare = Loss { samples: 1, ..Loss::default() };
        assert_eq!(said(5_000, 1, bare), "no usable samples in 5.0 s: 1 event counted, with 1 sample, but none of use");
        let none = "no usable samples in 5.0 s: 2 events counted, and none gave a sample";
        assert_eq!(said(5_000, 2, Loss::default()), none);
        let calm = "no usable samples in 5.0 s: what was watched used almost no CPU time; sample longer (-t), or watch other processes";
        assert_eq!(said(5_000, 0, Loss::default()), calm);
        assert_eq!(said(300, 0, Loss::default()), calm.replace("5.0 s", "300 ms"));
    }

    #[test]
    fn more_is_offered_only_where_there_is_more() {
        assert!(to_write(0).ends_with(" -v shows more.\n"));
        assert!(!to_write(1).contains("-v") && !to_write(2).contains("-v"));
    }

    #[test]
    fn operands_without_an_address_stand_beside_the_samples_with_one() {
        let file = "/usr/lib/libx.so".to_owned();
        let reason = Unrecovered::Gather.name();
        let recovery = RecoveryStats {
            user_samples: 100,
            recovered: 99,
            operands: 400,
            unresolved_operands: [(reason, 90), (Unrecovered::Overwritten.name(), 10)].into(),
            unresolved_places: vec![UnresolvedPlace { file, offset: 0x1234, times: 90, reason }],
            frames_visible: true,
            ..RecoveryStats::default()
        };
        let operands =
            "Recovered: 99 of 100 user samples (99.0%)\nMemory operands near the samples: 400, 25.0% of them \
                        unresolved: gather or scatter 90, registers overwritten 10";
        assert_eq!(yield_text(1, &recovery), format!("{operands}\n{GATHERS}"));
        let place = "Never resolved: the operand of libx.so+0x1234, 90 times (gather or scatter)";
        assert_eq!(yield_text(2, &recovery), format!("{operands}\n{place}\n{GATHERS}"));
        let recovery = RecoveryStats { unresolved_operands: BTreeMap::new(), ..recovery };
        assert!(yield_text(1, &recovery).ends_with("\nMemory operands near the samples: 400, 0.0% of them unresolved"));
    }
}
