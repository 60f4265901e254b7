//! The events of this host that [`super::event`] knows by name, as lists.

use super::event::{CACHES, HARDWARE, OPERATIONS, SOFTWARE};
use super::pmu::{Pmu, Pmus, DEVICES};
use crate::host::tracefs::Tracefs;
use crate::host::Roots;

/// Events by their kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventList {
    /// The kinds, each with its names.
    pub(crate) events: Vec<(&'static str, Vec<String>)>,
    /// Why a list is empty.
    pub(crate) notes: Vec<String>,
}

/// All events with a known name. Only opening an event shows whether the hardware has it.
pub(crate) fn list(roots: &Roots) -> EventList {
    let mut notes = Vec::new();
    let names = |rows: &[super::event::Row]| rows.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let caches = CACHES.iter().flat_map(|cache| {
        OPERATIONS.iter().flat_map(move |(all, misses)| [format!("{cache}-{all}"), format!("{cache}-{misses}")])
    });
    let pmus = match Pmus::read(&roots.sys) {
        Ok(pmus) => pmus.names,
        Err(error) => {
            notes.push(format!("events of PMUs: {error}"));
            Vec::new()
        }
    };
    let of_pmu = |pmu: &String| {
        let described = Pmu::read(&roots.sys.join(DEVICES).join(pmu)).ok()?;
        Some(described.events.into_keys().map(|event| format!("{pmu}/{event}/")).collect::<Vec<_>>())
    };
    let of_pmus = pmus.iter().filter_map(of_pmu).flatten().collect();
    let tracepoints = Tracefs::open(&roots.proc).and_then(|tracefs| tracefs.tracepoints());
    let mut tracepoints = tracepoints.unwrap_or_else(|error| {
        notes.push(format!("tracepoints: {error}; it takes root, or the right to read tracefs"));
        Vec::new()
    });
    tracepoints.sort_unstable();
    let events = vec![
        ("hardware", names(&HARDWARE)),
        ("software", names(&SOFTWARE)),
        ("cache", caches.collect()),
        ("pmu", of_pmus),
        ("tracepoints", tracepoints),
    ];
    EventList { events, notes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listed_event_can_be_named() {
        let dir = tempfile::tempdir().unwrap();
        let (events, pmu) = (dir.path().join("t/events/timer/x"), dir.path().join("bus/event_source/devices/cpu"));
        for path in [&events, &pmu.join("events"), &pmu.join("format"), &dir.path().join("self")] {
            std::fs::create_dir_all(path).unwrap();
        }
        let write = |path: std::path::PathBuf, text: &str| std::fs::write(path, text).unwrap();
        write(events.join("id"), "417\n");
        write(dir.path().join("t/available_events"), "timer:x\n");
        write(pmu.join("type"), "4\n");
        write(pmu.join("format/event"), "config:0-7\n");
        write(pmu.join("events/loads"), "event=0x3c\n");
        write(
            dir.path().join("self/mountinfo"),
            &format!("23 1 0:12 / {}/t rw - tracefs nodev rw\n", dir.path().display()),
        );
        let roots = Roots { sys: dir.path().into(), proc: dir.path().into(), ..Roots::default() };
        let EventList { events, notes } = list(&roots);
        let of = |kind: &str| events.iter().find(|it| it.0 == kind).unwrap().1.clone();
        assert_eq!((of("tracepoints"), of("pmu"), notes), (vec!["timer:x".into()], vec!["cpu/loads/".into()], vec![]));
        for name in events.iter().flat_map(|(_, names)| names) {
            assert!(super::super::event::parse(name, None, &roots).is_ok(), "{name}");
        }
    }
}
