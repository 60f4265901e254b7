//! Internals for tests, benches and fuzzing; other programs must not rely on them. The feature `testing` enables this module,
//! and Cargo enables the feature for them.
//!
//! Each module re-exports the module of its name, including its private items.

#![allow(missing_docs)]

/// Re-exports modules that are private elsewhere.
macro_rules! modules {
    ($room:ident: $($name:ident)+) => {
        $(pub mod $name {
            pub use crate::$room::$name::*;
        })+
    };
}

pub mod cluster {
    pub use crate::cluster::*;
    modules!(cluster: layout quality score slices truth);
}

pub mod config {
    pub use crate::config::cell_specs::{CellKey, CellSpec, CgroupMatcher, SpecIndex};
    pub use crate::config::decide::decide;
    pub use crate::config::layers::{layers, layers_by_hint, Layers};
    pub use crate::config::members::{Affinity, CommunityIndex, Member, Members, Unknown, Verdict};
    pub use crate::config::tally::{CellIndex, CellTally, NameIndex, Tally};
    pub use crate::config::*;
}

pub mod elf {
    pub use scxprof_elf::*;
}

pub mod host {
    pub use crate::host::*;
    modules!(host: clock hierarchy limits namespace pagemap proc psi resctrl scx_stats tasks topology tracefs);
}

pub mod profile {
    pub use crate::profile::input::Records;
    pub use crate::profile::*;
    pub use scxprof_perf::buildid::BuildId;
    pub use scxprof_perf::format::{record_name, Attr};
    pub use scxprof_perf::reader::{Damage, Item, PerfData};
    pub use scxprof_perf::{format, reader, section, writer};
    modules!(profile: hints jsonl recovered script);
}

pub mod recover {
    pub use scxprof_recover::*;
}

pub mod report {
    pub use crate::report::summary::summary;
}

pub mod resolve {
    pub use crate::resolve::mapping::Mapping;
    pub use crate::resolve::maps::Maps;
    pub use crate::resolve::*;
    modules!(resolve: code mapping threads);
}

pub mod sampler {
    pub use crate::sampler::*;
    pub use scxprof_perf::{encode, record, spe, tracepoint};
}
