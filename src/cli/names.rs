//! What the subcommands that name code share.

use std::path::PathBuf;
use std::time::SystemTime;

use crate::host::Roots;
use crate::profile::meta::Host;
use crate::profile::names::recorded_here;
use crate::profile::Meta;
use crate::resolve::SymbolOptions;

/// This program, which reads debug information in a process of its own.
pub(super) const SCXPROF: &str = "/proc/self/exe";

/// Where the code of a capture is named that began at `begin`; `None` for one of elsewhere.
pub(super) fn options(begin: Option<SystemTime>) -> SymbolOptions {
    SymbolOptions { begin, cache: cache(), ..SymbolOptions::default() }
}

/// perf's cache of files by their build id.
pub(super) fn cache() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    home.map(|home| PathBuf::from(home).join(".debug"))
}

/// When a profile's recording began, where it was made here.
pub(super) fn begin(meta: Option<&Meta>) -> Option<SystemTime> {
    recorded_here(meta?, &Host::here(&Roots::default()))
}
