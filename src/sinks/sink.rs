//! Sinks, which take samples, and the selection of samples.

use crate::resolve::{AddressSpaces, Cgroups, Modules, Stacks};
use crate::sample::sched::SchedEvent;
use crate::sample::{Comm, Sample, ThreadIndex};
use crate::sampler::loss::Loss;
use scxprof_base::tables::Tables;
use scxprof_trace::Event;

/// The state of a capture while it runs.
pub trait Meanwhile {
    /// The call stacks so far, with the objects that contain their code; `None` if no sink wants them.
    fn stacks(&self) -> Option<(&Stacks, &Modules)>;

    /// The objects that contain the code of the samples so far; none if no sink wants code.
    fn modules(&self) -> Modules;

    /// The mappings of processes.
    fn address_spaces(&self) -> AddressSpaces;

    /// The last names of threads, as for [`Sink::ended`].
    fn thread_names(&self) -> Vec<(ThreadIndex, Comm)>;

    /// The names of processes, as for [`Sink::processes`].
    fn process_names(&self) -> Vec<(u32, Comm)>;

    /// Everything up to this time was given to the sinks, but for what came too late; CLOCK_MONOTONIC in ns, or the clock of a feed.
    fn complete_until(&self) -> u64;

    /// The notes of the capture so far, in sentences; a feed has none.
    fn notes(&self) -> Vec<String>;

    /// What was lost and left out so far. For a capture of the kernel's events this asks the kernel for the count of each event.
    fn loss(&self) -> Loss;
}

/// Receives samples in order of time.
pub trait Sink {
    /// Takes one sample. `cgroups` resolves its cgroup's id.
    fn sample(&mut self, sample: &Sample, cgroups: &mut Cgroups);

    /// Takes consecutive samples, as if each were passed to [`Sink::sample`].
    fn samples(&mut self, samples: &[Sample], cgroups: &mut Cgroups) {
        for sample in samples {
            self.sample(sample, cgroups);
        }
    }

    /// Takes consecutive events of the scheduler, in order of time with the samples; hints are among them where they are followed.
    /// There are none without `HostOptions::sched`, unless a recording has them.
    fn sched(&mut self, events: &[SchedEvent], cgroups: &mut Cgroups) {
        let _ = (events, cgroups);
    }

    /// Takes consecutive events of a trace, in order of time; by default only those of the scheduler, as [`Sink::sched`] does. A trace
    /// has no samples.
    fn events(&mut self, events: &[Event], cgroups: &mut Cgroups) {
        let sched: Vec<SchedEvent> = events.iter().filter_map(Event::scheduling).collect();
        self.sched(&sched, cgroups);
    }

    /// The last event was given; these are the names of processes (those of their main threads) by their id, as far as they are
    /// known. `cgroups` resolves the ids of cgroups.
    fn processes(&mut self, names: &[(u32, Comm)], cgroups: &mut Cgroups) {
        let _ = (names, cgroups);
    }

    /// The last sample was given; `names` are the last names of threads, as far as they are known. A thread may have taken another
    /// name since its last sample. Not called where samples are selected, and not for lines, which have names of their own.
    fn ended(&mut self, names: &[(ThreadIndex, Comm)]) {
        let _ = names;
    }

    /// Sets the sizes of its tables.
    fn measure(&self, tables: &mut Tables) {
        let _ = tables;
    }

    /// Lends what is known so far, from time to time while samples arrive: for a sink that has results before the end. Not for
    /// recordings, which are read in several threads.
    fn meanwhile(&mut self, now: &dyn Meanwhile, cgroups: &mut Cgroups) {
        let _ = (now, cgroups);
    }

    /// True if samples must contain the code that made the access ([`Sample::code`]), to be named at the end.
    fn wants_code(&self) -> bool {
        false
    }

    /// True if samples must contain their call stack ([`Sample::stack`](crate::sample::Sample)), which
    /// `Outcome::stacks` has at the end.
    fn wants_stacks(&self) -> bool {
        false
    }
}

/// Decides whether a sample is used, see `Builder::select`. `cgroups` resolves its cgroup's id.
pub type Select<'a> = &'a mut dyn FnMut(&Sample, &mut Cgroups) -> bool;
