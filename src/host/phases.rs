//! The time that each phase of a command took.

use std::time::{Duration, Instant};

use super::priority::thread_cpu_ns;

/// One phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phase {
    /// What is done in it.
    pub name: &'static str,
    /// The time from its begin to its end. Phases that each have a thread overlap.
    pub wall: Duration,
    /// CPU time of its thread. Of stages that take turns in one thread, the last two have the time on the clock, as far as the thread had
    /// a CPU.
    pub cpu: Duration,
}

/// The phases so far, in the order in which they ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Phases(Vec<Phase>);

impl Phases {
    /// Does `work` as the phase `name`.
    pub fn measure<T>(&mut self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let began = Begun::now();
        let done = work();
        self.push(began.end(name));
        done
    }

    /// Adds a phase; several of one name are one.
    pub fn push(&mut self, phase: Phase) {
        if let Some(known) = self.0.iter_mut().find(|known| known.name == phase.name) {
            known.wall += phase.wall;
            known.cpu += phase.cpu;
        } else {
            self.0.push(phase);
        }
    }

    /// Adds those of `others`.
    pub fn extend(&mut self, others: &Self) {
        for &phase in others.all() {
            self.push(phase);
        }
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[Phase] {
        &self.0
    }
}

/// When a phase began, in the calling thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    at: Instant,
    cpu: u64,
}

impl Begun {
    pub(crate) fn now() -> Self {
        Self { at: Instant::now(), cpu: thread_cpu_ns() }
    }

    /// The phase until now. To be called in the same thread.
    pub(crate) fn end(self, name: &'static str) -> Phase {
        let cpu = Duration::from_nanos(thread_cpu_ns().saturating_sub(self.cpu));
        Phase { name, wall: self.at.elapsed(), cpu }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_of_one_name_add_up_and_keep_their_order() {
        let mut phases = Phases::default();
        assert_eq!(phases.measure("read", || 7), 7);
        let (wall, cpu) = (Duration::from_secs(2), Duration::from_secs(1));
        phases.push(Phase { name: "decide", wall, cpu });
        let mut all = phases.clone();
        all.extend(&phases);
        let names: Vec<_> = all.all().iter().map(|phase| phase.name).collect();
        assert_eq!(names, ["read", "decide"]);
        assert_eq!((all.all()[1].wall, all.all()[1].cpu), (wall * 2, cpu * 2));
    }
}
