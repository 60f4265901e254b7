//! The schedulers that a configuration is for.

/// A scheduler that reads the configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheduler {
    /// scx_mitosis: each cell and each subcell needs a CPU of its own, so the CPUs limit their number.
    #[default]
    Mitosis,
    /// scx_layered: layers share CPUs.
    Layered,
}
