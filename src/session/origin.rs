//! Where the samples of a session come from.

use super::inlet::{Inlet, Unnamed};
use super::namer::Namer;
use super::order::Order;
use crate::outcome::Outcome;
use crate::resolve::Cgroups;
use crate::sample::Comm;
use crate::sampler::loss::Loss;
use scxprof_base::tables::Tables;

/// Whether there is more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filled {
    More,
    End,
}

/// An origin of samples: the kernel, a file, a caller. [`super::pipeline`] reads it until its end, and does everything else.
pub(super) trait Origin {
    type Sample: Unnamed;

    /// Puts the next samples into the inlet; an origin that waits for them returns after [`TICK`](super::stop::TICK).
    fn fill(&mut self, inlet: &mut Inlet<'_, Self::Sample>) -> Filled;

    /// The session must end: returns whether samples from before this moment are left.
    fn stop(&mut self, order: &mut Order<Self::Sample>) -> Filled {
        let _ = order;
        Filled::End
    }

    /// Reads the host again if names may be stale. Not called if each stage has a thread.
    fn look_again(&mut self, namer: &mut Namer, cgroups: &mut Cgroups, order: &mut Order<Self::Sample>) {
        let _ = (namer, cgroups, order);
    }

    /// What was lost, and what was left out, before samples were sorted.
    fn loss(&self) -> Loss;

    /// The same while it runs.
    fn loss_so_far(&self) -> Loss {
        self.loss()
    }

    /// Facts for the user so far, in sentences.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The names of processes, where the origin knows them itself.
    fn processes(&self) -> Option<Vec<(u32, Comm)>> {
        None
    }

    /// Adds the sizes of its tables.
    fn measure(&self, tables: &mut Tables) {
        let _ = tables;
    }

    /// Adds what it knows at the end to the outcome.
    fn end(self, outcome: &mut Outcome, ending: Ending<Self::Sample>);
}

/// What the stages after an origin have at the end.
pub(super) struct Ending<S> {
    pub(super) order: Order<S>,
    pub(super) namer: Namer,
    pub(super) cgroups: Cgroups,
}
