//! How wide text may be: as the terminal that it goes to.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// A narrower terminal is not believed.
const LEAST: usize = 20;

/// The columns of the terminal that a stream is; `COLUMNS` wins over what the terminal says. `None` where neither says it: then
/// text is as wide as it is.
pub(super) fn of(stream: &(impl AsFd + IsTerminal)) -> Option<usize> {
    let given = given(std::env::var_os("COLUMNS").as_deref());
    given.or_else(|| of_terminal(stream)).filter(|columns| *columns >= LEAST)
}

/// The columns of a terminal as it is now, however few.
pub(super) fn of_terminal(stream: &(impl AsFd + IsTerminal)) -> Option<usize> {
    if !stream.is_terminal() {
        return None;
    }
    tcgetwinsize(stream).ok().map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// A number of columns, in the words of an environment variable.
fn given(columns: Option<&OsStr>) -> Option<usize> {
    columns?.to_str()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_is_a_number_or_nothing() {
        assert_eq!(given(Some(OsStr::new("80"))), Some(80));
        for no in ["", "-1", "wide", "80x24"] {
            assert_eq!(given(Some(OsStr::new(no))), None, "{no}");
        }
        assert_eq!(given(None), None);
    }
}
