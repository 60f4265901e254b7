//! A configuration that was read from a file: where its scheduler puts a thread.

use serde_json::Value;
use thiserror::Error;

use super::cell::{Cell, CellMatch, Subcell};
use super::consumer::Consumer;
use super::layered::{self, Layer, LayerMatch};
use super::mitosis;
use super::scheduler::Scheduler;

/// A loaded configuration of scx_mitosis or scx_layered.
#[derive(Debug, Clone)]
pub enum Placement {
    /// Of scx_mitosis.
    Mitosis(Vec<Cell>, Consumer),
    /// Of scx_layered.
    Layered(Vec<Layer>, layered::Consumer),
}

/// What gets CPUs of its own: a subcell of scx_mitosis, or a layer of scx_layered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The cell spec or the layer; `None` for the root's cell of scx_mitosis, if nothing takes the thread.
    pub cell: Option<String>,
    /// The cgroup that is the cell, as scx_mitosis makes a cell of each cgroup that a spec matches; empty for the root's cell and
    /// for layers.
    pub cgroup: Vec<u8>,
    /// The subcell; `None` in a cell that is not divided, and for a catch-all that is not written.
    pub subcell: Option<String>,
    /// No condition on the name or on the cgroup takes the thread, only what takes all others.
    pub is_rest: bool,
}

/// Why a text is no configuration.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// It is not even JSON.
    #[error("no configuration of scx_mitosis or scx_layered: {0}")]
    Json(#[from] serde_json::Error),
    /// scx_mitosis would not read it.
    #[error("no configuration of scx_mitosis: {0}")]
    Mitosis(#[from] mitosis::ParseError),
    /// scx_mitosis would reject it.
    #[error("scx_mitosis rejects it: {0}")]
    MitosisRefused(#[from] mitosis::MitosisError),
    /// It has more than scxprof knows of scx_layered.
    #[error("no configuration of scx_layered that scxprof knows: {0}")]
    Layered(#[from] layered::ParseError),
    /// scx_layered would reject it.
    #[error("scx_layered rejects it: {0}")]
    LayeredRefused(#[from] layered::LayeredError),
}

impl Placement {
    /// Loads the text of a configuration: of scx_layered if an element has a `kind`, else of scx_mitosis.
    ///
    /// # Errors
    /// The scheduler would not load it, or it has conditions of scx_layered that scxprof does not know.
    pub fn parse(json: &str) -> Result<Self, PlacementError> {
        let value: Value = serde_json::from_str(json)?;
        let is_layered = value.as_array().into_iter().flatten().any(|element| element.get("kind").is_some());
        if is_layered {
            let layers = layered::parse(json)?;
            let consumer = layered::Consumer::new(&layers)?;
            return Ok(Self::Layered(layers, consumer));
        }
        let cells = mitosis::parse(json)?;
        let consumer = Consumer::new(&cells)?;
        Ok(Self::Mitosis(cells, consumer))
    }

    /// What takes a thread, by its cgroup's path below `/sys/fs/cgroup` and its name: `cell/subcell`, or a layer.
    #[must_use]
    pub fn name_of(&self, cgroup: &[u8], comm: &[u8]) -> String {
        self.taker(cgroup, comm).unwrap_or_else(|| "(no cell)".to_owned())
    }

    /// The cell and the subcell of a thread, or its layer; `None` if nothing takes it. A cell that is not divided has no subcell.
    #[must_use]
    pub fn place(&self, cgroup: &[u8], comm: &[u8]) -> Option<(String, Option<String>)> {
        match self {
            Self::Mitosis(cells, consumer) => {
                let assigned = consumer.assign(cgroup, comm);
                let cell = assigned.cell.and_then(|cell| cells.get(cell))?;
                let subcell = assigned.subcell.and_then(|subcell| cell.subcells.get(subcell));
                Some((cell.name.clone(), subcell.map(|subcell| subcell.name.clone())))
            }
            Self::Layered(..) => Some((self.taker(cgroup, comm)?, None)),
        }
    }

    /// A name for what gets CPUs of its own: as [`Placement::taker`], with the cgroup of the cell, as scx_mitosis makes a cell of
    /// each cgroup that a cell spec matches.
    #[must_use]
    pub fn group(&self, cgroup: &[u8], comm: &[u8]) -> Option<String> {
        let name = self.taker(cgroup, comm)?;
        Some(match self {
            Self::Mitosis(_, consumer) => {
                format!("{name} of {}", String::from_utf8_lossy(&consumer.cell_path(cgroup)))
            }
            Self::Layered(..) => name,
        })
    }

    /// What takes a thread, with this hint if that is known.
    #[must_use]
    pub fn place_of(&self, cgroup: &[u8], comm: &[u8], hint: Option<u64>) -> Place {
        match self {
            Self::Mitosis(cells, consumer) => {
                let assigned = consumer.assign(cgroup, comm);
                let cell = assigned.cell.and_then(|cell| cells.get(cell));
                let subcell = cell.and_then(|cell| cell.subcells.get(assigned.subcell?));
                let is_divided = cell.is_some_and(|cell| !cell.subcells.is_empty());
                let is_all = cell.is_none_or(|cell| cell.matches == CellMatch::All);
                let is_rest = match subcell {
                    Some(subcell) => subcell.is_catch_all(),
                    None => is_divided || is_all,
                };
                Place {
                    cell: cell.map(|cell| cell.name.clone()),
                    cgroup: consumer.cell_path(cgroup),
                    subcell: subcell.map(|subcell| subcell.name.clone()),
                    is_rest,
                }
            }
            Self::Layered(layers, consumer) => {
                let layer = consumer.assign_hinted(cgroup, comm, hint).and_then(|layer| layers.get(layer));
                let is_rest = layer.is_none_or(|layer| layer.matches.iter().all(Vec::is_empty));
                Place { cell: layer.map(|layer| layer.name.clone()), is_rest, ..Place::default() }
            }
        }
    }

    /// The part of the CPUs that each group has, and that its cell has; `groups` has all groups that have threads, with their
    /// samples.
    ///
    /// scx_mitosis gives every cell the same share, the root's too, and every subcell of a cell (`compute_targets`). Layers get CPUs
    /// by the time that their threads run, which samples are proportional to.
    #[must_use]
    pub fn cpus(&self, groups: &[(&Place, f64)]) -> Vec<(f64, f64)> {
        match self {
            Self::Mitosis(cells, _) => {
                let mut cgroups: Vec<&[u8]> =
                    groups.iter().map(|it| it.0.cgroup.as_slice()).chain([&b""[..]]).collect();
                cgroups.sort_unstable();
                cgroups.dedup();
                let subcells = |group: &Place| {
                    let cell = cells.iter().find(|cell| Some(&cell.name) == group.cell.as_ref());
                    let written = cell.map_or(0, |cell| cell.subcells.len());
                    let has_rest = cell.is_some_and(|cell| cell.subcells.iter().any(Subcell::is_catch_all));
                    written + usize::from(!has_rest)
                };
                let cell = 1.0 / cgroups.len() as f64;
                groups.iter().map(|it| (cell / subcells(it.0) as f64, cell)).collect()
            }
            Self::Layered(..) => {
                let all: f64 = groups.iter().map(|it| it.1).sum();
                let part = |samples: f64| if all > 0.0 { samples / all } else { 1.0 };
                groups.iter().map(|it| (part(it.1), part(it.1))).collect()
            }
        }
    }

    /// True if it has conditions on task hints.
    #[must_use]
    pub fn uses_hints(&self) -> bool {
        let is_hint = |it: &LayerMatch| matches!(it, LayerMatch::HintEquals(_));
        match self {
            Self::Mitosis(..) => false,
            Self::Layered(layers, _) => layers.iter().flat_map(|layer| layer.matches.iter().flatten()).any(is_hint),
        }
    }

    /// The scheduler that it is for.
    #[must_use]
    pub fn scheduler(&self) -> Scheduler {
        match self {
            Self::Mitosis(..) => Scheduler::Mitosis,
            Self::Layered(..) => Scheduler::Layered,
        }
    }

    /// The same as [`Placement::name_of`]; `None` if nothing takes it.
    #[must_use]
    pub fn taker(&self, cgroup: &[u8], comm: &[u8]) -> Option<String> {
        match self {
            Self::Mitosis(..) => Some(match self.place(cgroup, comm)? {
                (cell, Some(subcell)) => format!("{cell}/{subcell}"),
                (cell, None) => cell,
            }),
            Self::Layered(layers, consumer) => {
                consumer.assign(cgroup, comm).and_then(|layer| layers.get(layer)).map(|layer| layer.name.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_the_name_of_what_takes_it() {
        let mitosis = r#"[{"name": "web", "matches": {"CgroupContains": "web"}, "subcells": [
            {"name": "io", "matches": [[{"CommPrefix": "io-"}]]}, {"name": "rest", "matches": [[]]}]}]"#;
        let placement = Placement::parse(mitosis).unwrap();
        assert_eq!(placement.name_of(b"/web", b"io-1"), "web/io");
        assert_eq!(placement.name_of(b"/web", b"main"), "web/rest");
        assert_eq!(placement.name_of(b"/db", b"main"), "(no cell)");
        assert_eq!(
            (placement.taker(b"/web", b"io-1"), placement.taker(b"/db", b"main")),
            (Some("web/io".into()), None)
        );
        let groups = [&b"/a/web1/x"[..], b"/a/web1/y", b"/a/web2"].map(|path| placement.group(path, b"io-1").unwrap());
        assert!(groups[0] == groups[1] && groups[1] != groups[2], "{groups:?}");
        let layered = r#"[{"name": "io", "matches": [[{"CommPrefix": "io-"}]], "kind": {"Grouped": {"util_range": [0.1, 0.2], "growth_algo": "StickyDynamic"}}},
            {"name": "rest", "matches": [[]], "kind": {"Grouped": {"util_range": [0.1, 0.2], "growth_algo": "StickyDynamic"}}}]"#;
        let placement = Placement::parse(layered).unwrap();
        assert_eq!((placement.name_of(b"/x", b"io-1"), placement.name_of(b"/x", b"x")), ("io".into(), "rest".into()));
    }

    #[test]
    fn groups_share_the_cpus_as_the_scheduler_does_it() {
        let mitosis = r#"[{"name": "web", "matches": {"CgroupContains": "web"}, "subcells": [
            {"name": "io", "matches": [[{"CommPrefix": "io-"}]]}, {"name": "cpu", "matches": [[{"CommPrefix": "cpu-"}]]}]},
            {"name": "db", "matches": {"CgroupContains": "db"}}]"#;
        let placement = Placement::parse(mitosis).unwrap();
        let place = |cgroup: &str, comm: &str| placement.place_of(cgroup.as_bytes(), comm.as_bytes(), None);
        let groups = [("/web1", "io-1"), ("/web1", "main"), ("/web2/x", "io-1"), ("/db", "io-1"), ("/", "init")];
        let groups = groups.map(|(cgroup, comm)| place(cgroup, comm));
        assert_eq!(groups.each_ref().map(|it| it.is_rest), [false, true, false, false, true]);
        let paths = groups.each_ref().map(|it| String::from_utf8_lossy(&it.cgroup).into_owned());
        assert_eq!(paths, ["/web1", "/web1", "/web2", "/db", ""]);
        assert_eq!((groups[1].subcell.as_deref(), groups[4].cell.as_deref()), (None, None));
        // Three cells and the root's; the catch-all is there although it is not written.
        let parts = placement.cpus(&groups.each_ref().map(|it| (it, 1.0)));
        assert_eq!(parts.iter().map(|it| (1.0 / it.0).round() as u32).collect::<Vec<_>>(), [12, 12, 12, 4, 4]);
        assert!(parts.iter().all(|it| (it.1 - 0.25).abs() < 1e-9), "{parts:?}");
    }

    #[test]
    fn what_no_scheduler_loads_is_refused() {
        assert!(matches!(Placement::parse("{"), Err(PlacementError::Json(_))));
        assert!(matches!(Placement::parse("{}"), Err(PlacementError::Mitosis(_))));
        assert!(matches!(Placement::parse("[]"), Err(PlacementError::MitosisRefused(_))));
        assert!(matches!(Placement::parse(r#"[{"kind": 1}]"#), Err(PlacementError::Layered(_))));
    }
}
