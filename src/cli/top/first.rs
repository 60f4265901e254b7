//! What the command line says of the first page: the kind of its rows, their order, and which of them.

use anyhow::{anyhow, Result};
use clap::ValueEnum as _;

use super::state::{Kind, State, View};
use super::table::Sort;
use super::views;
use crate::session::{AroundNow, Snapshot};

/// `--by`, `--sort` and `--filter`, as they were given.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct First<'a> {
    pub(super) by: Option<&'a str>,
    pub(super) sort: Option<&'a str>,
    pub(super) filter: Option<&'a str>,
}

/// Lets the model begin with these.
///
/// # Errors
/// The view has no rows of this kind, or its table has no such column: the message lists those that it has.
pub(super) fn begin(state: &mut State, first: First<'_>) -> Result<()> {
    if let Some(wanted) = first.by {
        state.of_view_mut().kind = kind(state.view, wanted)?;
    }
    if let Some(wanted) = first.sort {
        let head = Some(column(state, wanted)?);
        state.of_view_mut().sort = Sort { head, is_reversed: false };
    }
    first.filter.unwrap_or_default().clone_into(&mut state.filter);
    Ok(())
}

/// Capital letters do not count, and a hyphen is as good as a blank.
fn is_same(name: &str, wanted: &str) -> bool {
    let plain = |text: &str| text.trim().to_lowercase().replace(['-', '_'], " ");
    plain(name) == plain(wanted)
}

/// The name of a view for `--view`.
fn name_of(view: View) -> String {
    view.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The names of the kinds of rows that a view has.
fn kinds_of(view: View) -> Vec<&'static str> {
    view.kinds().iter().map(|kind| kind.name()).filter(|name| !name.is_empty()).collect()
}

/// The place in [`View::kinds`] of the kind with this name.
fn kind(view: View, wanted: &str) -> Result<usize> {
    let is_wanted = |kind: &Kind| *kind != Kind::Only && is_same(kind.name(), wanted);
    if let Some(at) = view.kinds().iter().position(is_wanted) {
        return Ok(at);
    }
    let of_view = match kinds_of(view).as_slice() {
        [] => "rows of one kind alone".to_owned(),
        kinds => format!("rows by: {}", kinds.join(", ")),
    };
    let others: Vec<String> =
        View::ALL.into_iter().filter(|other| other.kinds().iter().any(is_wanted)).map(name_of).collect();
    let others = if others.is_empty() { String::new() } else { format!("; --view {} has this", others.join(" or ")) };
    Err(anyhow!("--by {wanted}: the view {} has {of_view}{others}", name_of(view)))
}

/// The head of the column with this name.
fn column(state: &State, wanted: &str) -> Result<&'static str> {
    // A table without rows has all columns.
    let table = views::table(&State::clone(state), &Snapshot::default(), &AroundNow::default());
    let shown = |head: &'static str| head.trim_start_matches("ITS ");
    let heads = || table.heads.iter().map(|(head, _)| *head);
    heads().find(|head| is_same(shown(head), wanted)).ok_or_else(|| {
        let heads: Vec<&str> = heads().map(shown).collect();
        anyhow!("--sort {wanted}: the columns of this table are: {}", heads.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn begun(view: View, first: First<'_>) -> Result<State, String> {
        let mut state = State::new(view, Duration::from_secs(1));
        begin(&mut state, first).map(|()| state).map_err(|error| error.to_string())
    }

    fn by(view: View, wanted: &str) -> Result<State, String> {
        begun(view, First { by: Some(wanted), ..First::default() })
    }

    #[test]
    fn each_kind_of_each_view_has_its_word() {
        for view in View::ALL {
            for (at, kind) in view.kinds().iter().enumerate().filter(|(_, kind)| **kind != Kind::Only) {
                for word in [kind.name().to_owned(), kind.name().to_uppercase(), kind.name().replace(' ', "-")] {
                    let state = by(view, &word).unwrap();
                    assert_eq!((state.of_view().kind, state.kind()), (at, *kind), "{view:?} {word}");
                }
            }
        }
    }

    #[test]
    fn another_word_is_refused_with_those_that_there_are() {
        for view in View::ALL {
            let error = by(view, "nothing").unwrap_err();
            assert!(kinds_of(view).iter().all(|name| error.contains(name)), "{error}");
            assert!(!error.contains('\n') && error.contains(&name_of(view)), "{error}");
        }
        let error = by(View::Groups, "cell").unwrap_err();
        assert!(error.contains("rows of one kind alone; --view processes or scheduling has this"), "{error}");
        let error = by(View::Cpus, "dispatch queue").unwrap_err();
        assert!(error.contains("last-level cache") && error.contains("--view scheduling has this"), "{error}");
        assert!(by(View::Groups, "").is_err(), "no kind has no name");
    }

    #[test]
    fn columns_are_those_of_the_kind() {
        let sorted = |view, by, wanted| begun(view, First { by, sort: Some(wanted), filter: Some("x") });
        let state = sorted(View::Processes, Some("cell"), "memory-mb/s").unwrap();
        assert_eq!((state.of_view().sort.head, state.filter.as_str()), (Some("MEMORY-MB/s"), "x"));
        assert_eq!(sorted(View::Threads, None, "cgroup").unwrap().of_view().sort.head, Some("ITS CGROUP"));
        // Columns that are left out where nothing is known of them.
        assert!(sorted(View::Groups, None, "KEPT%").is_ok() && sorted(View::Groups, None, "CPUS").is_ok());
        let error = sorted(View::Processes, Some("process"), "MEMORY-MB/s").unwrap_err();
        assert!(error.contains("PROCESS, PID, THREADS, SAMPLES/s"), "{error}");
    }
}
