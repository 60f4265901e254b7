//! The accesses of a sample: one, several, a call stack, or none.

use std::fs::File;

use super::kernel::KernelRecovery;
use super::recovery::Recoverer;
use super::wakeups::Wakeups;
use crate::profile::recovered::Recovered;
use crate::resolve::Stacks;
use scxprof_base::tables::Tables;

/// Where the accesses of samples come from: one of these for all samples of a session.
#[derive(Debug)]
pub(in crate::session) enum Accesses {
    /// Each sample is one: the record has its address.
    InSamples,
    /// The same; accesses to the kernel's memory are judged.
    Judged(Box<KernelRecovery>),
    /// The same, judged when the profile was recorded.
    Told(Box<Recovered<File>>),
    /// From registers, stack and code: a sample gives several, or none.
    Recovered(Box<Recoverer>),
    /// Likewise, recovered when the profile was recorded.
    Joined(Box<Recovered<File>>),
    /// Each wakeup gives two; there are no samples.
    OfWakeups(Box<Wakeups>),
    /// Samples have call stacks instead.
    Stacks(Stacks),
    /// Each line is one, with its names.
    InLines,
    /// The same for lines that name their sample; the last sample's number.
    InNumberedLines(u64),
}

impl Accesses {
    /// True if samples come from records and are not accesses of another kind.
    pub(super) fn are_in_samples(&self) -> bool {
        matches!(self, Self::InSamples | Self::Judged(_) | Self::Told(_) | Self::Recovered(_) | Self::Joined(_))
    }

    /// True if a sample may give several.
    pub(super) fn are_several(&self) -> bool {
        matches!(self, Self::Recovered(_) | Self::Joined(_))
    }

    pub(super) fn measure(&self, tables: &mut Tables) {
        match self {
            Self::Judged(kernel) => kernel.measure(tables),
            Self::Recovered(recoverer) => recoverer.measure(tables),
            Self::Stacks(stacks) => stacks.measure(tables),
            Self::OfWakeups(wakeups) => {
                tables.set("pairs of threads that wake each other", wakeups.pairs(), wakeups.bytes());
            }
            Self::InSamples | Self::Told(_) | Self::Joined(_) | Self::InLines | Self::InNumberedLines(_) => {}
        }
    }
}
