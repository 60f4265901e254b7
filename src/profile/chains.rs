//! The events of a recording that have call chains: which of them are one event to a person.

use perf_event_open_sys::bindings as sys;

use super::Profile;
use crate::sample::Source;
use scxprof_perf::reader::Event;
use scxprof_perf::record::sample_type;

/// `PERF_COUNT_SW_DUMMY`.
const DUMMY: u64 = 9;

/// An event with call chains. On hybrid CPUs it is one event of perf for each kind of core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChainEvent {
    /// The numbers of perf's events.
    pub numbers: Vec<u16>,
    /// Their names.
    names: Vec<String>,
    /// Their common name.
    pub name: String,
    /// It counts ns.
    pub is_clock: bool,
    key: Key,
}

/// The common part of perf's events that are one event for a user.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    kind: u32,
    config: u64,
    /// The name without the PMU, if the PMU is one kind of core.
    term: Option<(String, String)>,
}

/// The parts `PMU`, `TERM` and `MODIFIERS` of `PMU/TERM/MODIFIERS`.
fn parts(name: &str) -> Option<(&str, &str, &str)> {
    let (pmu, rest) = name.split_once('/')?;
    let (term, modifiers) = rest.rsplit_once('/')?;
    Some((pmu, term, modifiers))
}

/// PMUs of CPUs that have several kinds of cores: `cpu_core`, `cpu_atom`, `armv8_cortex_a53` and their like.
fn is_of_cores(pmu: &str) -> bool {
    ["cpu_", "armv8_", "armv9_", "apple_"].iter().any(|prefix| pmu.starts_with(prefix))
}

impl ChainEvent {
    fn of(number: u16, event: &Event) -> Self {
        let name = event.name.clone().unwrap_or_default();
        let (kind, config) = (event.attr.kind, event.attr.config);
        let is_generic = [sys::PERF_TYPE_HARDWARE, sys::PERF_TYPE_HW_CACHE].contains(&kind);
        let term = match parts(&name) {
            Some((pmu, term, modifiers)) if is_of_cores(pmu) => Some((term.to_owned(), modifiers.to_owned())),
            // The kernel takes the PMU from the upper half (PERF_PMU_TYPE_SHIFT).
            _ if is_generic && config >> 32 != 0 => {
                let (term, modifiers) = name.split_once(':').unwrap_or((&name, ""));
                Some((term.to_owned(), modifiers.to_owned()))
            }
            _ => None,
        };
        // A raw config means something else on another PMU, but a name does not.
        let config = if is_generic { config & 0xffff_ffff } else { 0 };
        let clocks = [sys::PERF_COUNT_SW_CPU_CLOCK, sys::PERF_COUNT_SW_TASK_CLOCK].map(u64::from);
        let is_clock = kind == sys::PERF_TYPE_SOFTWARE && clocks.contains(&event.attr.config);
        let kind = if is_generic { kind } else { sys::PERF_TYPE_RAW };
        Self { numbers: vec![number], names: vec![name.clone()], name, is_clock, key: Key { kind, config, term } }
    }

    /// True if `other` is the same event of other cores.
    fn is_same(&self, other: &Self) -> bool {
        let (Some((term, modifiers)), Some((its, its_modifiers))) = (&self.key.term, &other.key.term) else {
            return false;
        };
        let is_generic = self.key.kind != sys::PERF_TYPE_RAW;
        let same_name = term == its && (is_generic || !term.contains('='));
        let is_same = self.key.kind == other.key.kind && self.key.config == other.key.config;
        is_same && same_name && modifiers == its_modifiers && !other.names.iter().any(|name| self.names.contains(name))
    }

    fn add(&mut self, other: Self) {
        if let Some((term, modifiers)) = &self.key.term {
            let colon = if modifiers.is_empty() { "" } else { ":" };
            self.name = format!("{term}{colon}{modifiers}");
        }
        self.numbers.extend(other.numbers);
        self.names.extend(other.names);
    }

    /// True if a person may call it so: the common name, also without its modifiers.
    fn is_called(&self, name: &str) -> bool {
        let term = self.key.term.as_ref().is_some_and(|(term, _)| term == name);
        self.name == name || (self.numbers.len() > 1 && term)
    }
}

/// The events, those of the same name on several kinds of cores as one.
fn joined(events: impl Iterator<Item = ChainEvent>) -> Vec<ChainEvent> {
    let mut all: Vec<ChainEvent> = Vec::new();
    for event in events {
        match all.iter_mut().find(|known| known.is_same(&event)) {
            Some(known) => known.add(event),
            None => all.push(event),
        }
    }
    all
}

impl Profile {
    fn chain_events(&self) -> impl Iterator<Item = ChainEvent> + '_ {
        let aside = self.aside_event();
        // Other events of ours may have call chains, too, but not those of the program.
        let has_stacks = move |number: usize| match &self.meta {
            Some(meta) if meta.source != Source::Stacks.name() => {
                aside.is_some_and(|aside| usize::from(aside) == number)
            }
            _ => true,
        };
        let events = self.perf_data().into_iter().flat_map(|data| data.events().iter().enumerate());
        events.filter_map(move |(number, event)| {
            let attr = &event.attr;
            // perf opens it only for names and mappings.
            let is_dummy = attr.kind == sys::PERF_TYPE_SOFTWARE && attr.config == DUMMY;
            let has_chains = attr.layout.sample_type & sample_type::CALLCHAIN != 0;
            (has_chains && !is_dummy && has_stacks(number))
                .then(|| Some(ChainEvent::of(u16::try_from(number).ok()?, event)))?
        })
    }

    /// The events with call chains.
    pub(crate) fn stack_events(&self) -> Vec<ChainEvent> {
        joined(self.chain_events())
    }

    /// The event with call chains that is called `name`, or the first one. `None` if there is none.
    pub(crate) fn stack_event(&self, name: Option<&str>) -> Option<ChainEvent> {
        let mut all = self.stack_events().into_iter();
        let Some(name) = name else { return all.next() };
        all.find(|event| event.is_called(name)).or_else(|| self.chain_events().find(|event| event.name == name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u16, kind: u32, config: u64, name: &str) -> ChainEvent {
        let mut event = Event { name: Some(name.to_owned()), ..Event::default() };
        (event.attr.kind, event.attr.config) = (kind, config);
        ChainEvent::of(number, &event)
    }

    fn names(events: Vec<ChainEvent>) -> Vec<(String, Vec<u16>)> {
        joined(events.into_iter()).into_iter().map(|event| (event.name, event.numbers)).collect()
    }

    #[test]
    fn an_event_of_several_kinds_of_cores_is_one() {
        let of = |events: &[(u32, u64, &str)]| {
            let all = events.iter().enumerate();
            names(all.map(|(number, &(kind, config, name))| event(number as u16, kind, config, name)).collect())
        };
        let one = |name: &str, numbers: &[u16]| (name.to_owned(), numbers.to_vec());
        let (core, atom) = (4 << 32, 10 << 32);
        assert_eq!(
            of(&[
                (0, atom, "cpu_atom/cycles/P"),
                (0, core, "cpu_core/cycles/P"),
                (0, core | 1, "cpu_core/instructions/")
            ]),
            [one("cycles:P", &[0, 1]), one("cpu_core/instructions/", &[2])]
        );
        assert_eq!(of(&[(0, atom, "cycles:u"), (0, core, "cpu_core/cycles/u")]), [one("cycles:u", &[0, 1])]);
        // The event's name in sysfs, with the type of the PMU.
        assert_eq!(
            of(&[(4, 0x3c, "cpu_core/cpu-cycles/"), (10, 0x3d, "cpu_atom/cpu-cycles/")]),
            [one("cpu-cycles", &[0, 1])]
        );
        // Other modifiers, other terms, and the same twice.
        for pair in [
            [(0, atom, "cpu_atom/cycles/u"), (0, core, "cpu_core/cycles/k")],
            [(4, 1, "cpu_core/event=1/"), (10, 1, "cpu_atom/event=1/")],
            [(0, 0, "cycles"), (0, 0, "cycles")],
            [(1, 0, "cpu-clock:u"), (1, 0, "cpu-clock:k")],
        ] {
            assert_eq!(of(&pair).len(), 2, "{pair:?}");
        }
    }
}
