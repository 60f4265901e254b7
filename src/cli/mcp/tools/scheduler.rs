//! The schedulers that configurations are made for, as an argument of tools.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::config;

/// The scheduler that a configuration is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Scheduler {
    /// scx_mitosis: cells of cgroups, and subcells of threads by name.
    #[default]
    Mitosis,
    /// scx_layered: layers of threads.
    Layered,
}

impl Scheduler {
    /// As the configuration's own type.
    pub(super) fn of_config(self) -> config::Scheduler {
        match self {
            Self::Mitosis => config::Scheduler::Mitosis,
            Self::Layered => config::Scheduler::Layered,
        }
    }

    /// As `--target` has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mitosis => "mitosis",
            Self::Layered => "layered",
        }
    }
}
