//! What is on the screen, as text: a title, figures of the whole, the names of the views, a table or what covers it, and
//! a line at the foot. `--once` prints the same.

use std::ops::Range;
use std::time::Duration;

use scxprof_base::escape;

use super::details::details;
use super::help;
use super::keys::{has_code, Shown};
use super::state::{first_shown, Asked, Kind, Over, State, View};
use super::table::{Mark, Table};
use super::views;
use crate::session::{AroundNow, By, LiveState, Snapshot};

/// On a lower screen only the title, the views and the foot stand beside the table.
const LOW: usize = 9;

/// How a line is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Head,
    Warning,
}

/// A line of the table or of what covers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BodyLine {
    pub(super) text: String,
    pub(super) style: Style,
    pub(super) is_selected: bool,
}

/// The screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) title: String,
    pub(super) summary: Option<String>,
    /// The names of the views, and which of them is shown.
    pub(super) tabs: Vec<(String, bool)>,
    /// What the table is about.
    pub(super) subtitle: Option<String>,
    /// The head of the column that it is sorted by.
    pub(super) sorted: Option<&'static str>,
    pub(super) body: Vec<BodyLine>,
    pub(super) foot: String,
    /// Where the cursor is at the foot.
    pub(super) cursor: Option<usize>,
    /// The parts of the screen that keys depend on.
    pub(super) shown: Shown,
}

/// The size of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) width: usize,
    pub(super) height: usize,
}

impl Page {
    /// What the model shows of what is known now.
    pub(super) fn new(state: &State, now: &Snapshot, around: &AroundNow, size: Size) -> Self {
        let is_low = size.height < LOW;
        let height = size.height.saturating_sub(if is_low { 3 } else { 5 });
        let table = views::table(state, now, around);
        let over = match &state.over {
            Over::Nothing => None,
            Over::Help(first, _) => Some((help::text().lines().map(ToOwned::to_owned).collect(), *first)),
            Over::Details(key, first) => Some((details(state, key, now, around, size.width), *first)),
        };
        let room = height.saturating_sub(usize::from(over.is_none()));
        // Only what is shown is formatted: each key draws anew.
        let at = state.selected(table.rows.iter().map(|row| row.key.as_str()));
        let first = first_shown(state.of_view().first, at, room, table.rows.len());
        let rows = if over.is_none() { first..first.saturating_add(room).min(table.rows.len()) } else { 0..0 };
        let mut page = Self::of(state, now, &table, rows, Some(size.width));
        page.shown.height = room;
        if let Some((lines, first)) = over {
            let lines: Vec<String> = lines;
            page.shown.over = lines.len();
            let first = first.min(lines.len().saturating_sub(height));
            page.body = lines.into_iter().skip(first).take(height).map(BodyLine::plain).collect();
        } else if !table.rows.is_empty() {
            if let Some(line) = page.body.get_mut((at + 1).saturating_sub(first)) {
                line.is_selected = true;
            }
            page.body.truncate(height);
        }
        if is_low {
            (page.summary, page.subtitle) = (None, None);
        }
        (page.foot, page.cursor) = foot(state, size.width);
        page
    }

    /// The same with all rows and without the foot, for a printed page.
    pub(super) fn whole(state: &State, now: &Snapshot, around: &AroundNow, width: Option<usize>) -> Self {
        let table = views::table(state, now, around);
        Self::of(state, now, &table, 0..table.rows.len(), width)
    }

    /// A page with these rows of a table.
    fn of(state: &State, now: &Snapshot, table: &Table, rows: Range<usize>, width: Option<usize>) -> Self {
        let mut body: Vec<BodyLine> = Vec::new();
        if table.rows.is_empty() {
            let text = scxprof_base::columns::wrapped(&table.empty, width);
            body.extend(text.lines().map(|line| BodyLine::plain(escape::line(line).into_owned())));
        } else {
            let begin = rows.start;
            for (at, text) in table.lines(width, rows).into_iter().enumerate() {
                let mark = at.checked_sub(1).and_then(|at| table.rows.get(begin + at)).map(|row| row.mark);
                let style = match mark {
                    None => Style::Head,
                    Some(Mark::Plain) => Style::Plain,
                    Some(Mark::Warning) => Style::Warning,
                };
                body.push(BodyLine { text, style, is_selected: false });
            }
        }
        let column = table.column(state.of_view().sort);
        let sorted = column.and_then(|at| table.heads.get(at)).map(|(head, _)| *head);
        Self {
            title: title(state, now),
            summary: Some(summary(state, now)),
            tabs: tabs(state, width),
            subtitle: Some(subtitle(state, now, (sorted, table.note.as_deref()))),
            sorted,
            body,
            foot: String::new(),
            cursor: None,
            shown: Shown {
                keys: table.rows.iter().map(|row| row.key.clone()).collect(),
                heads: table.heads.iter().map(|(head, _)| *head).collect(),
                sorted: column,
                over: 0,
                height: table.rows.len(),
            },
        }
    }

    /// As text, for a script.
    pub(super) fn text(&self) -> String {
        let head = std::iter::once(&self.title).chain(&self.summary).chain(&self.subtitle).map(String::as_str);
        let body = self.body.iter().map(|line| line.text.as_str());
        let mut text = head.chain([""]).chain(body).collect::<Vec<_>>().join("\n");
        text.push('\n');
        text
    }
}

impl BodyLine {
    fn plain(text: String) -> Self {
        Self { text, style: Style::Plain, is_selected: false }
    }
}

/// Seconds as `1:02:03`.
fn clock(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

fn interval(interval: Duration) -> String {
    format!("{} s", interval.as_secs_f64())
}

fn title(state: &State, now: &Snapshot) -> String {
    let mut words = vec!["scxprof top".to_owned()];
    if !now.source.is_empty() {
        words.push(format!("source {}", now.source));
    }
    words.push(format!("every {}", interval(state.interval)));
    words.push(format!("for {}", clock(now.elapsed_s)));
    if state.is_frozen {
        words.push("FROZEN".to_owned());
    }
    if now.state == LiveState::Ended {
        words.push("ENDED".to_owned());
    }
    words.join("  ")
}

fn summary(state: &State, now: &Snapshot) -> String {
    let mut words = Vec::new();
    let busy: Vec<f64> = now.cpus.iter().filter_map(|cpu| cpu.busy).collect();
    if !busy.is_empty() {
        let mean = busy.iter().sum::<f64>() / busy.len() as f64;
        words.push(format!("{} CPUs {:.0} % busy", busy.len(), mean * 100.0));
    }
    let window: f64 = now.cpus.iter().map(|cpu| cpu.samples).sum();
    let (samples, seconds) =
        if state.is_total { (now.losses.samples as f64, now.elapsed_s) } else { (window, now.window_s) };
    if seconds > 0.0 {
        words.push(format!("{:.0} samples/s", samples / seconds));
    }
    words.push(format!("{:.1} % lost", now.losses.lost_percent));
    words.push(format!("own {:.1} % CPU, {:.0} MiB", now.cost.cpus * 100.0, now.cost.rss_bytes as f64 / 1_048_576.0));
    if let Some(name) = &now.configuration {
        let kept = now.sharing.as_ref().and_then(|sharing| sharing.interval.locality);
        let kept = kept.map_or_else(String::new, |kept| format!(" keeps {:.1} %", kept * 100.0));
        words.push(format!("{}{kept}", escape::line(name)));
    }
    words.join("  ")
}

/// The names of the views; where they have no room, only that of the shown one beside the numbers.
fn tabs(state: &State, width: Option<usize>) -> Vec<(String, bool)> {
    let name = |view: View| match (view == state.view, state.kind()) {
        (true, Kind::By(_)) if view == View::Processes => state.kind().name(),
        _ => view.title(),
    };
    let named = |is_named: &dyn Fn(View) -> bool| -> Vec<(String, bool)> {
        let tab = |view: View| {
            let number = view as usize + 1;
            let text = if is_named(view) { format!("{number} {}", name(view)) } else { number.to_string() };
            (text, view == state.view)
        };
        View::ALL.map(tab).to_vec()
    };
    let all = named(&|_| true);
    let room: usize = all.iter().map(|(text, _)| text.chars().count() + 2).sum();
    if width.is_none_or(|width| room <= width) {
        return all;
    }
    named(&|view| view == state.view)
}

fn subtitle(state: &State, now: &Snapshot, (sorted, note): (Option<&str>, Option<&str>)) -> String {
    let kinds = state.view.kinds();
    let mut words = Vec::new();
    let window = now.sharing.as_ref();
    match state.view {
        View::Groups | View::Lines => words.extend(window.map(|window| format!("last {:.0} s", window.seconds))),
        View::Threads | View::Processes | View::Scheduling => {
            words.push(format!("by {}", state.kind().name()));
            words.push(if state.is_total { "since the start".to_owned() } else { "of the last window".to_owned() });
            // The kernel's own time, whatever the window.
            if state.view == View::Processes && state.kind() != Kind::By(By::Process) {
                words.push("PSI of the last 10 s".to_owned());
            }
        }
        View::Cpus => words.push(match state.kind() {
            Kind::Figures => "figures of the scheduler".to_owned(),
            kind if state.is_total => format!("by {}; samples since the start", kind.name()),
            kind => format!("by {}; of the last window", kind.name()),
        }),
        View::Losses => words.push("losses, cost, notes".to_owned()),
    }
    words.extend(note.map(str::to_owned));
    words.extend(sorted.map(|head| format!("sorted by {}", head.trim_start_matches("ITS "))));
    if !state.filter.is_empty() {
        words.push(format!("with \"{}\"", escape::line(&state.filter)));
    }
    if kinds.len() > 1 {
        words.push("c: others".to_owned());
    }
    // It is long, and is cut first.
    if matches!(state.view, View::Groups | View::Lines) {
        let headline = window.and_then(|window| window.report.as_ref()).map(|report| report.headline.as_str());
        words.extend(headline.filter(|it| !it.is_empty()).map(|it| escape::line(it).into_owned()));
    }
    words.join("; ")
}

/// The line at the foot, and where the cursor is in it.
fn foot(state: &State, width: usize) -> (String, Option<usize>) {
    if let Some(prompt) = &state.prompt {
        let asked = match prompt.asked {
            Asked::Filter => "rows with: ",
            _ if prompt.replaces => "it exists, Enter replaces it: ",
            Asked::Write => "write the configuration to: ",
            Asked::Report => "write the report (.json, .html, .jsonl) to: ",
            Asked::Load => "load the configuration: ",
        };
        let typed = escape::line(&prompt.text);
        // Of what is too long, the end is shown.
        let room = width.saturating_sub(asked.chars().count() + 1);
        let skipped = typed.chars().count().saturating_sub(room);
        let text: String = asked.chars().chain(typed.chars().skip(skipped)).collect();
        let cursor = text.chars().count();
        return (text, Some(cursor));
    }
    if let Some(message) = &state.message {
        return (escape::line(message).into_owned(), None);
    }
    if let Some(does) = &state.under_way {
        return (format!("{} ...", escape::line(does)), None);
    }
    let hints = match &state.over {
        Over::Nothing => {
            &["q quit", "? help", "1-7 view", "/ filter", "< > sort", "Enter details", "c kind", "space freeze"][..]
        }
        Over::Details(..) if has_code(state) => &["Esc back", "q quit", "p code that runs", "Up Down scroll"][..],
        _ => &["Esc back", "q quit", "Up Down PgUp PgDn scroll"][..],
    };
    let mut foot = String::new();
    for hint in hints {
        if foot.len() + hint.len() + 2 > width && !foot.is_empty() {
            break;
        }
        if !foot.is_empty() {
            foot += "  ";
        }
        foot += hint;
    }
    (foot, None)
}
