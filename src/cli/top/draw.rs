//! Draws the page on a terminal, in the colours of a theme.

use ratatui::layout::{Position, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::Frame;
use scxprof_base::escape;

use super::page::{self, Page, Size};
use super::state::State;
use crate::session::{AroundNow, Snapshot};

/// The colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Theme {
    /// For a dark background
    Dark,
    /// For a light background
    Light,
    /// No colours
    None,
}

/// The styles of a theme. Each says something without its colour too.
#[derive(Debug, Clone, Copy)]
struct Styles {
    title: Style,
    dim: Style,
    tab: Style,
    chosen: Style,
    head: Style,
    sorted: Style,
    warning: Style,
    message: Style,
}

impl Theme {
    fn styles(self) -> Styles {
        let (accent, warning, dim) = match self {
            Self::Dark => (Some(Color::Cyan), Some(Color::Yellow), Some(Color::Gray)),
            Self::Light => (Some(Color::Blue), Some(Color::Red), Some(Color::DarkGray)),
            Self::None => (None, None, None),
        };
        let plain = Style::new();
        let with = |color: Option<Color>| color.map_or(plain, |color| plain.fg(color));
        Styles {
            title: with(accent).add_modifier(Modifier::BOLD),
            dim: with(dim),
            tab: plain,
            chosen: plain.add_modifier(Modifier::REVERSED),
            head: with(accent).add_modifier(Modifier::BOLD),
            sorted: with(accent).add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
            warning: with(warning).add_modifier(Modifier::BOLD),
            message: plain.add_modifier(Modifier::BOLD),
        }
    }
}

/// Draws what the model shows of what is known now, and returns what keys depend on.
pub(super) fn draw(frame: &mut Frame<'_>, theme: Theme, state: &State, now: &Snapshot, around: &AroundNow) -> Page {
    let area = frame.area();
    let page = Page::new(state, now, around, Size { width: area.width.into(), height: area.height.into() });
    let styles = theme.styles();
    let mut rows = area.rows();
    let mut next = || rows.next().filter(|row| row.width > 0);
    if let Some(row) = next() {
        put(frame, row, &page.title, styles.title);
    }
    if let Some((text, row)) = page.summary.as_ref().and_then(|text| Some((text, next()?))) {
        put(frame, row, text, styles.dim);
    }
    if let Some(row) = next() {
        tabs(frame, row, &page, styles);
    }
    if let Some((text, row)) = page.subtitle.as_ref().and_then(|text| Some((text, next()?))) {
        put(frame, row, text, styles.dim);
    }
    let foot = Rect { y: area.bottom().saturating_sub(1), height: area.height.min(1), ..area };
    for line in &page.body {
        let Some(row) = next().filter(|row| row.y < foot.y) else { break };
        let style = match line.style {
            page::Style::Plain => Style::new(),
            page::Style::Head => styles.head,
            page::Style::Warning => styles.warning,
        };
        put(frame, row, &line.text, style);
        if line.is_selected {
            frame.buffer_mut().set_style(row, styles.chosen);
        }
        if line.style == page::Style::Head {
            underline(frame, row, line.text.as_str(), page.sorted, styles.sorted);
        }
    }
    if area.height > 2 {
        let style = if state.message.is_some() { styles.message } else { styles.dim };
        put(frame, foot, &page.foot, style);
        if let Some(cursor) = page.cursor {
            let at = u16::try_from(cursor).unwrap_or(u16::MAX).min(area.width.saturating_sub(1));
            frame.set_cursor_position(Position::new(area.x.saturating_add(at), foot.y));
        }
    }
    page
}

/// Writes a line, cut to the room. It contains no control characters, whoever chose its text.
fn put(frame: &mut Frame<'_>, row: Rect, text: &str, style: Style) {
    frame.buffer_mut().set_stringn(row.x, row.y, escape::line(text), row.width.into(), style);
}

fn tabs(frame: &mut Frame<'_>, row: Rect, page: &Page, styles: Styles) {
    let mut x = row.x;
    for (text, is_chosen) in &page.tabs {
        let room = usize::from(row.right().saturating_sub(x));
        if room == 0 {
            return;
        }
        let style = if *is_chosen { styles.chosen } else { styles.tab };
        x = frame.buffer_mut().set_stringn(x, row.y, format!(" {text} "), room, style).0;
    }
}

/// Marks the head of the column that the table is sorted by.
fn underline(frame: &mut Frame<'_>, row: Rect, heads: &str, sorted: Option<&str>, style: Style) {
    let Some(head) = sorted else { return };
    let is_blank = |text: &str, at: usize| text.as_bytes().get(at).is_none_or(|byte| *byte == b' ');
    let found = heads.match_indices(head).find(|(at, _)| {
        at.checked_sub(1).is_none_or(|before| is_blank(heads, before)) && is_blank(heads, at + head.len())
    });
    // Heads are ASCII, so that bytes are columns.
    let Some((at, _)) = found else { return };
    let (at, width) = (u16::try_from(at).unwrap_or(u16::MAX), u16::try_from(head.len()).unwrap_or(u16::MAX));
    let area = Rect { x: row.x.saturating_add(at), width, ..row }.intersection(row);
    frame.buffer_mut().set_style(area, style);
}
