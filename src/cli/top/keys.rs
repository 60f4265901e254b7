//! The keys: a function from the model and a key to the model and the actions to take.

use std::path::PathBuf;
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::state::{first_shown, Asked, Kind, OfView, Over, Prompt, State, View};
use super::table::Sort;
use crate::session::By;

/// Characters of a filter or a path.
const MAX_TYPED: usize = 4096;
/// The file of a configuration, if no other is named.
const CELLS: &str = "cells.json";
/// The file of a report.
const REPORT: &str = "report.json";

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    /// With Ctrl; the letter is small.
    Ctrl(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    BackTab,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
}

impl Key {
    /// The key of an event, if it does anything here.
    pub(super) fn of(event: KeyEvent) -> Option<Self> {
        Some(match event.code {
            KeyCode::Char(letter) if event.modifiers.contains(KeyModifiers::CONTROL) => {
                Self::Ctrl(letter.to_ascii_lowercase())
            }
            KeyCode::Char(letter) if !event.modifiers.contains(KeyModifiers::ALT) => Self::Char(letter),
            KeyCode::Enter => Self::Enter,
            KeyCode::Esc => Self::Escape,
            KeyCode::Backspace => Self::Backspace,
            KeyCode::Tab => Self::Tab,
            KeyCode::BackTab => Self::BackTab,
            KeyCode::Up => Self::Up,
            KeyCode::Down => Self::Down,
            KeyCode::Left => Self::Left,
            KeyCode::Right => Self::Right,
            KeyCode::PageUp => Self::PageUp,
            KeyCode::PageDown => Self::PageDown,
            KeyCode::Home => Self::Home,
            KeyCode::End => Self::End,
            _ => return None,
        })
    }
}

/// The actions beside drawing the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    Quit,
    /// Ctrl-Z.
    Suspend,
    /// The whole screen is drawn anew.
    Redraw,
    /// The figures that are shown, or how often they are read, are others now.
    Refresh,
    SetInterval(Duration),
    /// Writes the configuration.
    Write(PathBuf, Replace),
    /// Writes the report.
    Report(PathBuf, Replace),
    /// Loads a configuration; `None` for none.
    Load(Option<PathBuf>),
    /// Samples the call stacks of the row with this key, whose details are open, or does so no more.
    Stacks(String),
}

/// Whether a file that exists is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replace {
    No,
    Yes,
}

/// The parts of the screen that keys depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// The keys of the rows, in order.
    pub(super) keys: Vec<String>,
    /// The heads of its columns.
    pub(super) heads: Vec<&'static str>,
    /// The column that it is sorted by.
    pub(super) sorted: Option<usize>,
    /// Lines of what covers the table.
    pub(super) over: usize,
    /// Rows or lines that have room.
    pub(super) height: usize,
}

/// The user has pressed a key.
pub(super) fn press(state: &mut State, key: Key, shown: &Shown) -> Action {
    state.message = None;
    match key {
        Key::Ctrl('c') => return Action::Quit,
        Key::Ctrl('z') => return Action::Suspend,
        Key::Ctrl('l') => return Action::Redraw,
        _ => {}
    }
    if let Some(prompt) = state.prompt.take() {
        return typed(state, prompt, key);
    }
    if state.over != Over::Nothing {
        return above(state, key, shown);
    }
    if moved(state, key, shown) {
        return Action::Nothing;
    }
    match key {
        Key::Char('q') => return Action::Quit,
        Key::Char('?' | 'h') => state.over = Over::Help(0, None),
        Key::Char(digit @ '1'..='7') => {
            let at = digit.to_digit(10).unwrap_or(1).saturating_sub(1) as usize;
            return show(state, View::ALL.get(at).copied().unwrap_or_default());
        }
        Key::Tab | Key::BackTab => {
            let count = View::ALL.len();
            let by = if key == Key::Tab { 1 } else { count - 1 };
            let next = View::ALL.get((state.view as usize + by) % count);
            return show(state, next.copied().unwrap_or_default());
        }
        Key::Char(letter @ ('c' | 'C')) => {
            let count = state.view.kinds().len();
            let of = state.of_view_mut();
            let by = if letter == 'c' { 1 } else { count - 1 };
            // What it was sorted by may be no column of the next one.
            let kind = (of.kind + by) % count;
            if kind != of.kind {
                *of = OfView { kind, ..Default::default() };
            }
            return Action::Refresh;
        }
        Key::Char(' ') => {
            state.is_frozen = !state.is_frozen;
            return Action::Refresh;
        }
        Key::Char('t') => state.is_total = !state.is_total,
        Key::Char('+' | '=') => return interval(state, true),
        Key::Char('-' | '_') => return interval(state, false),
        Key::Char('<' | 'O') | Key::Left => sort_by(state, shown, false),
        Key::Char('>' | 'o') | Key::Right => sort_by(state, shown, true),
        Key::Char('r') => {
            let sort = &mut state.of_view_mut().sort;
            sort.is_reversed = !sort.is_reversed;
        }
        Key::Char('/') => ask(state, Asked::Filter, state.filter.clone()),
        Key::Char('w') => ask(state, Asked::Write, CELLS.to_owned()),
        Key::Char('W') => ask(state, Asked::Report, REPORT.to_owned()),
        Key::Char('s') => ask(state, Asked::Load, String::new()),
        Key::Escape => state.filter.clear(),
        Key::Enter => {
            let at = state.selected(shown.keys.iter().map(String::as_str));
            if let Some(key) = shown.keys.get(at) {
                state.over = Over::Details(key.clone(), 0);
                return Action::Refresh;
            }
        }
        _ => {}
    }
    Action::Nothing
}

fn show(state: &mut State, view: View) -> Action {
    state.view = view;
    Action::Refresh
}

fn interval(state: &mut State, is_longer: bool) -> Action {
    state.change_interval(is_longer);
    Action::SetInterval(state.interval)
}

fn ask(state: &mut State, asked: Asked, text: String) {
    state.prompt = Some(Prompt { asked, text, replaces: false });
}

/// The column before or after the one that the table is sorted by.
fn sort_by(state: &mut State, shown: &Shown, is_next: bool) {
    let count = shown.heads.len().max(1);
    let next = match shown.sorted {
        Some(at) if is_next => (at + 1) % count,
        Some(at) => (at + count - 1) % count,
        None => 0,
    };
    state.of_view_mut().sort = Sort { head: shown.heads.get(next).copied(), is_reversed: false };
}

/// Selects another row; true if the key does that.
fn moved(state: &mut State, key: Key, shown: &Shown) -> bool {
    let count = shown.keys.len();
    let at = state.selected(shown.keys.iter().map(String::as_str));
    let Some(next) = step(key, at, shown.height, count) else { return false };
    let of = state.of_view_mut();
    of.at = next;
    of.selected = shown.keys.get(next).cloned();
    of.first = first_shown(of.first, next, shown.height, count);
    true
}

/// Where a key leads from a place among `count`.
fn step(key: Key, at: usize, height: usize, count: usize) -> Option<usize> {
    let last = count.saturating_sub(1);
    let page = height.saturating_sub(1).max(1);
    Some(match key {
        Key::Up | Key::Char('k') => at.saturating_sub(1),
        Key::Down | Key::Char('j') => at.saturating_add(1).min(last),
        Key::PageUp | Key::Ctrl('b') => at.saturating_sub(page),
        Key::PageDown | Key::Ctrl('f') => at.saturating_add(page).min(last),
        Key::Home | Key::Char('g') => 0,
        Key::End | Key::Char('G') => last,
        _ => return None,
    })
}

/// A key while help or details cover the table.
fn above(state: &mut State, key: Key, shown: &Shown) -> Action {
    let (Over::Help(first, _) | Over::Details(_, first)) = &mut state.over else { return Action::Nothing };
    // As many lines can be above as do not fit.
    let places = (shown.over + 1).saturating_sub(shown.height.max(1)).max(1);
    if let Some(next) = step(key, (*first).min(places - 1), shown.height, places) {
        *first = next;
        return Action::Nothing;
    }
    match key {
        Key::Char('q') => Action::Quit,
        Key::Char(' ') => {
            state.is_frozen = !state.is_frozen;
            Action::Refresh
        }
        Key::Char('p') => match &state.over {
            Over::Details(key, _) if has_code(state) => Action::Stacks(key.clone()),
            _ => Action::Nothing,
        },
        Key::Char('?' | 'h') | Key::Escape | Key::Enter | Key::Backspace => {
            state.over = match std::mem::take(&mut state.over) {
                Over::Details(row, first) if matches!(key, Key::Char(_)) => Over::Help(0, Some((row, first))),
                Over::Help(_, Some((row, first))) => Over::Details(row, first),
                _ => Over::Nothing,
            };
            Action::Refresh
        }
        _ => Action::Nothing,
    }
}

/// True if the rows of the view are groups, threads or processes, whose code can be sampled.
pub(super) fn has_code(state: &State) -> bool {
    let is_task = matches!(state.kind(), Kind::By(By::Thread | By::Process));
    state.view == View::Groups || is_task
}

/// A key while the user types.
fn typed(state: &mut State, mut prompt: Prompt, key: Key) -> Action {
    match key {
        Key::Escape => {
            if prompt.asked == Asked::Filter {
                state.filter.clear();
            }
            return Action::Nothing;
        }
        Key::Enter => return entered(state, prompt),
        Key::Backspace => {
            prompt.text.pop();
        }
        Key::Ctrl('u') => prompt.text.clear(),
        Key::Ctrl('w') => {
            let kept = prompt.text.trim_end().rfind(['/', ' ']).map_or(0, |at| at + 1);
            prompt.text.truncate(kept);
        }
        Key::Char(letter) if prompt.text.chars().count() < MAX_TYPED && !letter.is_control() => {
            prompt.text.push(letter);
        }
        _ => {}
    }
    prompt.replaces &= key == Key::Enter;
    if prompt.asked == Asked::Filter {
        state.filter.clone_from(&prompt.text);
    }
    state.prompt = Some(prompt);
    Action::Nothing
}

fn entered(state: &mut State, prompt: Prompt) -> Action {
    let Prompt { asked, text, replaces } = prompt;
    let replace = if replaces { Replace::Yes } else { Replace::No };
    match asked {
        Asked::Filter => {
            state.filter = text;
            Action::Nothing
        }
        Asked::Load => Action::Load((!text.is_empty()).then(|| PathBuf::from(text))),
        Asked::Write | Asked::Report if text.is_empty() => Action::Nothing,
        Asked::Write => Action::Write(PathBuf::from(text), replace),
        Asked::Report => Action::Report(PathBuf::from(text), replace),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADS: [&str; 9] = ["A", "B", "C", "D", "E", "F", "G", "H", "I"];

    fn shown(rows: usize) -> Shown {
        let keys = (0..rows).map(|row| format!("row {row}")).collect();
        Shown { keys, heads: HEADS[..4].to_vec(), sorted: Some(2), over: 30, height: 10 }
    }

    fn pressed(keys: &[Key], rows: usize) -> (State, Vec<Action>) {
        let mut state = State::new(View::Groups, Duration::from_secs(1));
        let shown = shown(rows);
        let actions = keys.iter().map(|&key| press(&mut state, key, &shown)).collect();
        (state, actions)
    }

    /// The characters of a text, as keys.
    fn text(text: &str) -> Vec<Key> {
        text.chars().map(Key::Char).collect()
    }

    #[test]
    fn digits_and_tab_choose_views() {
        for (at, view) in View::ALL.into_iter().enumerate() {
            let digit = char::from_digit(at as u32 + 1, 10).unwrap();
            assert_eq!(pressed(&[Key::Char(digit)], 0).0.view, view);
        }
        assert_eq!(pressed(&[Key::Tab], 0).0.view, View::Threads);
        assert_eq!(pressed(&[Key::BackTab], 0).0.view, View::Losses);
        assert_eq!(pressed(&[Key::Char('8'), Key::Char('0')], 0).0.view, View::Groups);
    }

    #[test]
    fn a_row_stays_selected_where_it_goes() {
        let (mut state, _) = pressed(&[Key::Down, Key::Down], 5);
        assert_eq!(state.of_view().selected.as_deref(), Some("row 2"));
        let order = ["row 4", "row 2", "row 0"];
        assert_eq!(state.selected(order.iter().copied()), 1);
        assert_eq!(state.selected(["a", "b"].iter().copied()), 1, "where it was, or the last");
        // Each view has its own.
        press(&mut state, Key::Char('2'), &shown(5));
        assert_eq!(state.of_view().selected, None);
    }

    #[test]
    fn pages_scroll_and_stop_at_the_ends() {
        let of = |keys: &[Key]| {
            let (state, _) = pressed(keys, 30);
            (state.of_view().at, state.of_view().first)
        };
        assert_eq!(of(&[Key::PageDown]), (9, 0));
        assert_eq!(of(&[Key::PageDown, Key::Down]), (10, 1));
        assert_eq!(of(&[Key::End]), (29, 20));
        assert_eq!(of(&[Key::End, Key::Up]), (28, 20));
        assert_eq!(of(&[Key::End, Key::Home]), (0, 0));
        assert_eq!(of(&[Key::Up]), (0, 0));
    }

    #[test]
    fn a_filter_holds_as_it_is_typed_and_escape_takes_it_away() {
        let keys = [text("/wq"), vec![Key::Backspace, Key::Char('1')]].concat();
        let (mut state, _) = pressed(&keys, 3);
        assert_eq!((state.filter.as_str(), state.view), ("w1", View::Groups));
        press(&mut state, Key::Enter, &shown(3));
        assert_eq!((state.filter.as_str(), &state.prompt), ("w1", &None));
        press(&mut state, Key::Escape, &shown(3));
        assert_eq!(state.filter, "");
        assert_eq!(pressed(&[text("/w"), vec![Key::Escape]].concat(), 3).0.filter, "");
    }

    #[test]
    fn files_are_asked_for() {
        let written = pressed(&[Key::Char('w'), Key::Enter], 0).1.pop();
        assert_eq!(written, Some(Action::Write("cells.json".into(), Replace::No)));
        let report = [vec![Key::Char('W'), Key::Ctrl('u')], text("/tmp/a b.html"), vec![Key::Enter]].concat();
        assert_eq!(pressed(&report, 0).1.pop(), Some(Action::Report("/tmp/a b.html".into(), Replace::No)));
        assert_eq!(pressed(&[Key::Char('s'), Key::Enter], 0).1.pop(), Some(Action::Load(None)));
        let load = [text("sx"), vec![Key::Enter]].concat();
        assert_eq!(pressed(&load, 0).1.pop(), Some(Action::Load(Some("x".into()))));
        assert_eq!(pressed(&[Key::Char('w'), Key::Ctrl('u'), Key::Enter], 0).1.pop(), Some(Action::Nothing));
        // A file that exists is replaced by a second Enter, unless its name is changed before.
        let (mut state, _) = pressed(&[], 0);
        let prompt = Prompt { asked: Asked::Write, text: "x".to_owned(), replaces: true };
        state.prompt = Some(prompt.clone());
        assert_eq!(press(&mut state, Key::Enter, &shown(0)), Action::Write("x".into(), Replace::Yes));
        state.prompt = Some(prompt);
        press(&mut state, Key::Char('y'), &shown(0));
        assert_eq!(press(&mut state, Key::Enter, &shown(0)), Action::Write("xy".into(), Replace::No));
    }

    #[test]
    fn details_are_of_the_selected_row_and_escape_goes_back() {
        let (mut state, actions) = pressed(&[Key::Down, Key::Enter, Key::Down, Key::End], 5);
        assert_eq!((&state.over, &actions[1]), (&Over::Details("row 1".to_owned(), 20), &Action::Refresh));
        press(&mut state, Key::Escape, &shown(5));
        assert_eq!(state.over, Over::Nothing);
        assert_eq!(pressed(&[Key::Enter], 0).0.over, Over::Nothing, "there is no row");
        let (state, actions) = pressed(&[Key::Char('?'), Key::PageDown, Key::Char('?'), Key::Char('q')], 5);
        assert_eq!((state.over, actions.last()), (Over::Nothing, Some(&Action::Quit)));
    }

    #[test]
    fn help_in_details_comes_back_to_them() {
        let keys = [Key::Down, Key::Enter, Key::Down, Key::Char('?'), Key::Down, Key::Escape];
        assert_eq!(pressed(&keys[..5], 5).0.over, Over::Help(1, Some(("row 1".to_owned(), 1))));
        assert_eq!(pressed(&keys, 5).0.over, Over::Details("row 1".to_owned(), 1));
        assert_eq!(pressed(&[&keys[..], &[Key::Escape]].concat(), 5).0.over, Over::Nothing);
        assert_eq!(pressed(&[Key::Char('?'), Key::Escape], 5).0.over, Over::Nothing);
    }

    #[test]
    fn stacks_are_of_groups_threads_and_processes_alone() {
        let last = |view: &str| pressed(&[text(view), vec![Key::Enter, Key::Char('p')]].concat(), 5).1.pop();
        assert_eq!(last("2j"), Some(Action::Stacks("row 1".to_owned())));
        for view in ["1", "3", "5", "5c"] {
            assert_eq!(last(view), Some(Action::Stacks("row 0".to_owned())), "{view}");
        }
        for view in ["3c", "4", "5cc", "5cccc", "6", "7", "?"] {
            assert_eq!(last(view), Some(Action::Nothing), "{view}");
        }
    }

    #[test]
    fn columns_are_chosen_in_a_circle() {
        let sort = |keys: &[Key]| pressed(keys, 3).0.of_view().sort;
        assert_eq!(sort(&[Key::Char('>')]).head, Some("D"));
        assert_eq!(sort(&[Key::Left]).head, Some("B"));
        assert!(sort(&[Key::Char('r')]).is_reversed && !sort(&[Key::Char('r'), Key::Char('o')]).is_reversed);
        let (state, actions) = pressed(&[Key::Char('3'), Key::Right, Key::Char('c')], 3);
        assert_eq!((state.of_view().sort.head, state.of_view().kind), (None, 1));
        assert_eq!(actions.last(), Some(&Action::Refresh));
    }

    #[test]
    fn intervals_and_freezing() {
        let (state, actions) = pressed(&[Key::Char('+'), Key::Char('-'), Key::Char('-')], 0);
        assert_eq!(state.interval, Duration::from_millis(500));
        assert_eq!(actions[0], Action::SetInterval(Duration::from_secs(2)));
        assert_eq!(pressed(&[Key::Char('-'); 20], 0).0.interval, Duration::from_millis(100));
        assert_eq!(pressed(&[Key::Char('+'); 20], 0).0.interval, Duration::from_secs(60));
        assert!(pressed(&[Key::Char(' ')], 0).0.is_frozen);
        assert!(!pressed(&[Key::Char(' '); 2], 0).0.is_frozen);
        for typing in ["/", "w", "s", "?", ""] {
            let keys = [text(typing), vec![Key::Ctrl('c'), Key::Ctrl('z')]].concat();
            assert_eq!(pressed(&keys, 1).1[typing.len()..], [Action::Quit, Action::Suspend], "{typing}");
        }
    }

    pub(in crate::cli::top) fn any_key() -> impl Strategy<Value = Key> {
        prop_oneof![
            4 => prop::sample::select("1234567?/wWsqcCtp+-<>or hjkgGzé\u{202e}\x1b".chars().collect::<Vec<_>>()).prop_map(Key::Char),
            1 => prop::sample::select("lubfwx".chars().collect::<Vec<_>>()).prop_map(Key::Ctrl),
            4 => prop::sample::select(vec![
                Key::Enter, Key::Escape, Key::Backspace, Key::Tab, Key::BackTab, Key::Up, Key::Down, Key::Left, Key::Right,
                Key::PageUp, Key::PageDown, Key::Home, Key::End,
            ]),
        ]
    }

    proptest! {
        #[test]
        fn any_keys_leave_a_model_that_holds(
            steps in prop::collection::vec((any_key(), 0..40usize, 0..30usize, 0..9usize, any::<Option<u8>>()), 0..60),
        ) {
            let mut state = State::new(View::Groups, Duration::from_secs(1));
            for (key, rows, height, columns, sorted) in steps {
                let shown = Shown { height, heads: HEADS[..columns].to_vec(), sorted: sorted.map(usize::from), over: rows * 2, ..shown(rows) };
                let before = state.clone();
                let action = press(&mut state, key, &shown);
                let of = state.of_view();
                prop_assert!(of.kind < state.view.kinds().len());
                let at = state.selected(shown.keys.iter().map(String::as_str));
                prop_assert!(at < rows.max(1));
                let first = first_shown(of.first, at, height, rows);
                prop_assert!(first <= at && at < first + height.max(1));
                prop_assert!(!state.filter.contains('\x1b'));
                if let Over::Details(key, first) = &state.over {
                    prop_assert!(before.over != Over::Nothing || shown.keys.contains(key));
                    prop_assert!(*first <= 80);
                }
                if action == Action::Suspend {
                    prop_assert_eq!(key, Key::Ctrl('z'));
                }
            }
        }
    }
}
