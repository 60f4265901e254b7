//! The damage of a profile, one sentence each.

use perf_event_open_sys::bindings as sys;

use super::super::{script, thread_cgroups};
use super::{Profile, Records};
use scxprof_perf::budget::RATIO;
use scxprof_perf::format::record_name;
use scxprof_perf::reader::Damage;
use scxprof_perf::record::Header;

/// The number of unparseable records that are listed.
const MAX_LISTED: usize = 1000;
/// The noun for a text without its end.
const CUT: &str = "the file ends within a line: what came after it is missing";

/// Lines of a text that are no samples.
#[derive(Debug)]
pub(crate) struct UnreadableLines {
    /// Their number.
    count: u64,
    /// All lines that are not empty.
    all: u64,
    /// The text has no other lines.
    is_all: bool,
    /// The sentence about them.
    pub(crate) sentence: String,
}

impl UnreadableLines {
    /// In percent of all lines.
    pub(crate) fn percent(&self) -> f64 {
        100.0 * self.count as f64 / self.all.max(1) as f64
    }
}

impl Profile {
    /// Notes that the last record could not be parsed.
    pub(crate) fn note_unparseable(&mut self, header: Option<Header>) {
        let Some(perf_data) = self.perf_data().filter(|_| self.unparseable.len() < MAX_LISTED) else { return };
        let kind = header.map_or("without a header", |header| record_name(header.kind));
        let at = perf_data.position();
        self.unparseable.push(format!("record {kind} at byte {at} of the records contradicts its own size"));
    }

    /// Notes why the samples could not be read to their end.
    pub(crate) fn note_failed(&mut self, error: Option<impl std::fmt::Display>) {
        let shown = self.shown();
        self.wrong.extend(error.map(|error| format!("{shown}: {error}")));
    }

    /// The file with the samples as the user knows it: the one of an archive lies in a temporary directory.
    fn shown(&self) -> String {
        let inside = self.unpacked.as_ref().and_then(|unpacked| self.data.strip_prefix(unpacked.dir.path()).ok());
        inside.map_or_else(|| self.data.clone(), |inside| self.path.join(inside)).display().to_string()
    }

    /// The number of samples so far, and of these the ones that could not even be recognized and are in no [`Loss`](crate::Loss).
    pub(crate) fn samples(&self) -> (u64, u64) {
        match &self.records {
            Records::PerfData(perf_data) => {
                let of_samples = perf_data.counts().filter(|(kind, _)| *kind == sys::PERF_RECORD_SAMPLE);
                let gaps = perf_data.damage().gaps;
                (of_samples.map(|(_, count)| count).sum::<u64>() + gaps, gaps)
            }
            Records::Script(lines) => (lines.lines, 0),
            Records::Lines(lines) => (lines.counts.lines, 0),
            Records::Sched(lines) => (lines.lines, 0),
        }
    }

    /// The records that could not be parsed, up to the bound, one sentence each.
    #[must_use]
    pub fn unparseable(&self) -> Vec<String> {
        match &self.records {
            Records::PerfData(_) | Records::Lines(_) | Records::Sched(_) => self.unparseable.clone(),
            Records::Script(lines) => {
                lines.listed.iter().map(|(line, why)| format!("line {line} is not a sample: {why}")).collect()
            }
        }
    }

    /// The lines of a text so far that are no samples; `None` if there are none. They count as lost samples
    /// ([`Loss::malformed`](crate::Loss::malformed)): a few of them make no damage.
    pub(crate) fn unreadable_lines(&self) -> Option<UnreadableLines> {
        let (count, all, of, first) = match &self.records {
            Records::PerfData(_) => return None,
            Records::Script(text) => {
                let (line, why) = text.listed.first()?;
                (text.unreadable, text.lines, "perf's text".to_owned(), format!("line {line}: {why}"))
            }
            Records::Sched(text) => {
                let first = format!("line {}", text.first_unreadable?);
                (text.unreadable, text.lines, self.shown(), first)
            }
            Records::Lines(text) => {
                let (line, why) = text.counts.first_unreadable.as_ref()?;
                let of = self.shown();
                (text.counts.unreadable, text.counts.lines, of, format!("line {line}: {why}"))
            }
        };
        let is_all = count == all;
        let help = if is_all && matches!(self.records, Records::Script(_)) {
            format!("; such text comes from `{}`", script::COMMAND)
        } else {
            String::new()
        };
        let what = if matches!(self.records, Records::Sched(_)) { "scheduling events" } else { "samples" };
        let sentence = format!("{count} of {all} lines of {of} are no {what} (the first is {first}){help}");
        Some(UnreadableLines { count, all, is_all, sentence })
    }

    /// What could not be read so far, one sentence each. A few lines of a text are lost samples, and are not listed.
    #[must_use]
    pub fn damage(&self) -> Vec<String> {
        let mut lines = self.wrong.clone();
        if self.unpacked.as_ref().is_some_and(|unpacked| unpacked.cut) {
            lines.push("the archive ends too early".to_owned());
        }
        match &self.records {
            Records::PerfData(perf_data) => damage_of(perf_data.damage(), &mut lines),
            Records::Script(text) if text.cut => lines.push(CUT.to_owned()),
            Records::Lines(text) if text.counts.cut => lines.push(CUT.to_owned()),
            Records::Sched(text) if text.cut => lines.push(CUT.to_owned()),
            Records::Script(_) | Records::Lines(_) | Records::Sched(_) => {}
        }
        lines.extend(self.unreadable_lines().filter(|lines| lines.is_all).map(|lines| lines.sentence));
        let unreadable = self.recovered.as_ref().map_or(0, |recovered| recovered.unreadable);
        if unreadable > 0 {
            lines.push(format!("{unreadable} lines of recovered.jsonl make no sense"));
        }
        let left_out = self.recovered.as_ref().map_or(0, |recovered| recovered.left_out);
        if left_out > 0 {
            lines.push(format!("{left_out} lines of recovered.jsonl found no sample while there was room for them"));
        }
        let unreadable = self.hints.as_ref().map_or(0, |hints| hints.unreadable);
        if unreadable > 0 {
            lines.push(format!("{unreadable} lines of hints.jsonl make no sense"));
        }
        let unreadable = self.thread_cgroups.as_ref().map_or(0, |cgroups| cgroups.unreadable);
        if unreadable > 0 {
            lines.push(format!("{unreadable} lines of {} make no sense", thread_cgroups::NAME));
        }
        lines
    }
}

fn damage_of(damage: Damage, lines: &mut Vec<String>) {
    let Damage { gaps, skipped, missing, cut, compressed, unflushed, oversized, unfinished } = damage;
    if missing > 0 {
        lines.push(format!("{missing} bytes of the records are missing at the end of perf.data"));
    }
    if cut {
        lines.push("perf.data ends within a record".to_owned());
    }
    if unfinished {
        lines.push("perf.data was not finished by its writer: it is read as far as it goes".to_owned());
    }
    if gaps > 0 {
        lines.push(format!("{skipped} bytes of perf.data make no sense ({gaps} places)"));
    }
    if compressed > 0 {
        lines.push(format!("{compressed} compressed records cannot be inflated (recording without -z helps)"));
    }
    if oversized {
        lines.push(format!(
            "what is compressed in perf.data is more than {RATIO} times as large as the file, which no recording is: it was read \
             as far as that"
        ));
    }
    if unflushed {
        lines.push(
            "the last of what `perf record -z` compressed is not in perf.data (recording without -z helps)".to_owned(),
        );
    }
}
