//! How wide text may be: as the terminal that it goes to.

use std::io::IsTerminal;
use std::os::fd::AsFd;

/// A narrower terminal is not believed.
const LEAST: usize = 20;

/// The columns of the terminal that a stream is; `COLUMNS` wins over what the terminal says. `None` where neither says it: then
/// text is as wide as it is.
pub(super) fn of(stream: &(impl AsFd + IsTerminal)) -> Option<usize> {
    let given = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    let asked = || {
        let size = stream.is_terminal().then(|| rustix::termios::tcgetwinsize(stream).ok()).flatten()?;
        Some(usize::from(size.ws_col))
    };
    given.or_else(asked).filter(|columns| *columns >= LEAST)
}
