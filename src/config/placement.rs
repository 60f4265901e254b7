//! A configuration that was read from a file: to which subcell or layer its scheduler assigns a thread.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use thiserror::Error;

use super::cell::{Cell, CellMatch, Subcell};
use super::consumer::Consumer;
use super::layered::{self, Layer, LayerMatch, Takers};
use super::mitosis;
use super::scheduler::Scheduler;
use crate::host::facts::Tasks;
use crate::sample::{Task, TaskHint};

/// Kinds of conditions that the cgroup, the name and the hint of a thread decide.
const DECIDED: [&str; 7] =
    ["CgroupPrefix", "CgroupSuffix", "CgroupContains", "CgroupRegex", "CommPrefix", "CommPrefixExclude", "HintEquals"];
/// Kinds of conditions that only the running scheduler can decide.
const CHANGES: [&str; 7] =
    ["AvgRuntime", "SystemCpuUtilBelow", "DsqInsertBelow", "UsedGpuTid", "UsedGpuPid", "CmdJoin", "NumaNode"];

/// A loaded configuration of scx_mitosis or scx_layered.
#[derive(Debug, Clone)]
pub struct Placement {
    loaded: Loaded,
    tasks: Arc<Tasks>,
}

#[derive(Debug, Clone)]
enum Loaded {
    Mitosis(Vec<Cell>, Consumer),
    Layered(Vec<Layer>, layered::Consumer),
}

/// A part of a configuration with its own CPUs: a subcell of scx_mitosis, or a layer of scx_layered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The cell spec or the layer; `None` for the root's cell of scx_mitosis, if nothing takes the thread. If several layers may
    /// take it, all of them: `short or rest`.
    pub cell: Option<String>,
    /// The cgroup that is the cell, as scx_mitosis makes a cell of each cgroup that a spec matches; empty for the root's cell and
    /// for layers.
    pub cgroup: Vec<u8>,
    /// The subcell; `None` in a cell that is not divided, and for a catch-all that is not written.
    pub subcell: Option<String>,
    /// No condition on the name or on the cgroup takes the thread, only a catch-all.
    pub is_rest: bool,
    /// The layers that may take the thread, because it is not known whether a deciding condition holds; in the scheduler's
    /// order. The last one takes it if none of these conditions holds.
    pub maybe: Vec<MayTake>,
}

/// A layer that may take a thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MayTake {
    /// Its name.
    pub layer: String,
    /// It takes every thread that no other layer takes.
    pub is_rest: bool,
    /// The kinds of the conditions on which it depends; none for the last.
    pub depends_on: BTreeSet<&'static str>,
}

impl Place {
    /// The same thread if this layer takes it.
    #[must_use]
    pub fn in_layer(layer: &MayTake) -> Self {
        Self { cell: Some(layer.layer.clone()), is_rest: layer.is_rest, ..Self::default() }
    }
}

/// Why a text is not a configuration.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// It is not JSON.
    #[error("no configuration of scx_mitosis or scx_layered: {0}")]
    Json(#[from] serde_json::Error),
    /// scx_mitosis would not read it.
    #[error("no configuration of scx_mitosis: {0}")]
    Mitosis(#[from] mitosis::ParseError),
    /// scx_mitosis would reject it.
    #[error("scx_mitosis rejects it: {0}")]
    MitosisRefused(#[from] mitosis::MitosisError),
    /// scx_layered would not read it.
    #[error("no configuration of scx_layered: {0}")]
    Layered(#[from] layered::ParseError),
    /// scx_layered would reject it.
    #[error("scx_layered rejects it: {0}")]
    LayeredRefused(#[from] layered::LayeredError),
}

/// True if elements are layers: only layers have a kind or a template, and lists of conditions at the top. Cells may have such lists
/// in the form of scx_characterize's pull request, which has `match` and subcells.
fn are_layers(elements: &[Value]) -> bool {
    let has = |names: [&str; 2]| elements.iter().any(|it| names.iter().any(|name| it.get(name).is_some()));
    let has_lists = || elements.iter().any(|it| it.get("matches").is_some_and(Value::is_array));
    has(["kind", "template"]) || has_lists() && !has(["match", "subcells"])
}

impl Placement {
    /// Loads the text of a configuration: of scx_layered if an element is a layer, else of scx_mitosis.
    ///
    /// # Errors
    /// The scheduler would not load it. Those that scx_characterize writes for scx_mitosis are loaded, see [`Placement::read`].
    pub fn parse(json: &str) -> Result<Self, PlacementError> {
        Self::read(json).map(|(placement, _)| placement)
    }

    /// The same, with a sentence on what scx_mitosis itself does not read, if scx_characterize wrote some of that.
    ///
    /// # Errors
    /// As [`Placement::parse`].
    pub fn read(json: &str) -> Result<(Self, Option<String>), PlacementError> {
        let value: Value = serde_json::from_str(json)?;
        let elements = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let (loaded, foreign) = if are_layers(elements) {
            let layers = layered::parse(json)?;
            let consumer = layered::Consumer::new(&layers)?;
            (Loaded::Layered(layers, consumer), None)
        } else {
            let (cells, foreign) = mitosis::read(json)?;
            // A configuration that the scheduler does not load need not be within its limits.
            let consumer = if foreign.is_some() { Consumer::unchecked(&cells)? } else { Consumer::new(&cells)? };
            (Loaded::Mitosis(cells, consumer), foreign)
        };
        Ok((Self { loaded, tasks: Arc::default() }, foreign))
    }

    /// Cells that are loaded.
    pub(crate) fn of_cells(cells: Vec<Cell>, consumer: Consumer) -> Self {
        Self { loaded: Loaded::Mitosis(cells, consumer), tasks: Arc::default() }
    }

    /// With facts about threads besides their names and cgroups.
    #[must_use]
    pub fn with_tasks(self, tasks: Arc<Tasks>) -> Self {
        Self { tasks, ..self }
    }

    /// Sets the existing cgroups, by their paths below `/sys/fs/cgroup`: a template of scx_layered makes a layer of each that it
    /// takes.
    pub fn know_cgroups<'a>(&mut self, paths: impl Iterator<Item = &'a [u8]>) {
        if let Loaded::Layered(_, consumer) = &mut self.loaded {
            consumer.know_cgroups(paths);
        }
    }

    /// The subcell (`cell/subcell`) or layer that takes a thread.
    #[must_use]
    pub fn name_of(&self, task: &Task<'_>) -> String {
        self.taker(task).unwrap_or_else(|| "(no cell)".to_owned())
    }

    /// The cell and the subcell of a thread, or its layer; `None` if nothing takes it. A cell that is not divided has no subcell.
    #[must_use]
    pub fn place(&self, task: &Task<'_>) -> Option<(String, Option<String>)> {
        let place = self.place_of(task);
        Some((place.cell?, place.subcell))
    }

    /// A name for a part with its own CPUs: as [`Placement::taker`], with the cgroup of the cell, as scx_mitosis makes a cell of
    /// each cgroup that a cell spec matches.
    #[must_use]
    pub fn group(&self, task: &Task<'_>) -> Option<String> {
        let name = self.taker(task)?;
        Some(match &self.loaded {
            Loaded::Mitosis(_, consumer) => {
                format!("{name} of {}", String::from_utf8_lossy(&consumer.cell_path(task.cgroup)))
            }
            Loaded::Layered(..) => name,
        })
    }

    /// The part that takes a thread.
    #[must_use]
    pub fn place_of(&self, task: &Task<'_>) -> Place {
        match &self.loaded {
            Loaded::Mitosis(cells, consumer) => {
                let hint = if let TaskHint::Is(hint) = task.hint { Some(hint) } else { None };
                let assigned = consumer.assign_hinted(task.cgroup, task.comm, hint);
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
                    cgroup: consumer.cell_path(task.cgroup),
                    subcell: subcell.map(|subcell| subcell.name.clone()),
                    is_rest,
                    maybe: Vec::new(),
                }
            }
            Loaded::Layered(layers, consumer) => {
                let Takers { maybe, otherwise } = consumer.takers(task, &self.tasks);
                let layer = |at: usize, depends_on| MayTake {
                    layer: layer_name(layers, at) + &consumer.suffix(at, task.cgroup).unwrap_or_default(),
                    is_rest: layers.get(at).is_none_or(|layer| layer.matches.iter().all(Vec::is_empty)),
                    depends_on,
                };
                let mut all: Vec<MayTake> = maybe.into_iter().map(|(at, depends_on)| layer(at, depends_on)).collect();
                all.extend(otherwise.map(|at| layer(at, BTreeSet::new())));
                match all.as_slice() {
                    [] => Place { is_rest: true, ..Place::default() },
                    [only] => Place::in_layer(only),
                    _ => Place { cell: Some(or(&all)), maybe: all, ..Place::default() },
                }
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
        match &self.loaded {
            Loaded::Mitosis(cells, _) => {
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
            Loaded::Layered(..) => {
                let all: f64 = groups.iter().map(|it| it.1).sum();
                let part = |samples: f64| if all > 0.0 { samples / all } else { 1.0 };
                groups.iter().map(|it| (part(it.1), part(it.1))).collect()
            }
        }
    }

    /// Its cells, if it is for scx_mitosis.
    pub(crate) fn cells(&self) -> Option<&[Cell]> {
        match &self.loaded {
            Loaded::Mitosis(cells, _) => Some(cells),
            Loaded::Layered(..) => None,
        }
    }

    /// True if it has conditions on task hints.
    #[must_use]
    pub fn uses_hints(&self) -> bool {
        let is_hinted = |subcell: &Subcell| subcell.hints.iter().any(Option::is_some);
        match &self.loaded {
            Loaded::Mitosis(cells, _) => cells.iter().flat_map(|cell| &cell.subcells).any(is_hinted),
            Loaded::Layered(..) => self.conditions().any(|it| matches!(it, LayerMatch::HintEquals(_))),
        }
    }

    /// True if conditions are on facts from procfs ([`Tasks`]).
    #[must_use]
    pub fn needs_tasks(&self) -> bool {
        self.undecided().iter().any(|kind| !CHANGES.contains(kind))
    }

    /// The kinds of conditions that the cgroup, the name and the hint of a thread do not decide.
    #[must_use]
    pub fn undecided(&self) -> BTreeSet<&'static str> {
        self.conditions().map(LayerMatch::kind).filter(|kind| !DECIDED.contains(kind)).collect()
    }

    /// Kinds of conditions that scx_layered 1.1.4 does not evaluate as they are written, one sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.conditions().any(|it| *it == LayerMatch::IsKthread(false)) {
            let text = "scx_layered 1.1.4 does not read the value of IsKthread: IsKthread(false) takes kernel threads too, and no others";
            warnings.push(text.to_owned());
        }
        if self.conditions().any(|it| matches!(it, LayerMatch::CgroupContains(_))) {
            let text = "scx_layered 1.1.4 reads a variable before it is set where it looks for CgroupContains, and does not find it \
                        on every boot; CgroupRegex and CgroupPrefix are matched as they are written";
            warnings.push(text.to_owned());
        }
        warnings
    }

    fn conditions(&self) -> impl Iterator<Item = &LayerMatch> {
        let layers: &[Layer] = match &self.loaded {
            Loaded::Mitosis(..) => &[],
            Loaded::Layered(layers, _) => layers,
        };
        layers.iter().flat_map(|layer| layer.matches.iter().flatten())
    }

    /// The scheduler that it is for.
    #[must_use]
    pub fn scheduler(&self) -> Scheduler {
        match self.loaded {
            Loaded::Mitosis(..) => Scheduler::Mitosis,
            Loaded::Layered(..) => Scheduler::Layered,
        }
    }

    /// The same as [`Placement::name_of`]; `None` if nothing takes it.
    #[must_use]
    pub fn taker(&self, task: &Task<'_>) -> Option<String> {
        Some(match self.place(task)? {
            (cell, Some(subcell)) => format!("{cell}/{subcell}"),
            (cell, None) => cell,
        })
    }
}

/// The name of a layer, with its number if an earlier one has the same.
fn layer_name(layers: &[Layer], at: usize) -> String {
    let Some(layer) = layers.get(at) else { return String::new() };
    let is_first = layers.iter().take(at).all(|earlier| earlier.name != layer.name);
    if is_first {
        layer.name.clone()
    } else {
        format!("{} (layer {})", layer.name, at + 1)
    }
}

/// The names of layers, for people.
fn or(layers: &[MayTake]) -> String {
    const MOST: usize = 3;
    let names: Vec<&str> = layers.iter().map(|it| it.layer.as_str()).collect();
    match names.len().checked_sub(MOST) {
        None | Some(0) => names.join(" or "),
        Some(more) => format!("{} or {} more", names.get(..MOST).unwrap_or_default().join(" or "), more),
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
        assert_eq!(placement.name_of(&Task::new(b"/web", b"io-1")), "web/io");
        assert_eq!(placement.name_of(&Task::new(b"/web", b"main")), "web/rest");
        assert_eq!(placement.name_of(&Task::new(b"/db", b"main")), "(no cell)");
        assert_eq!(
            (placement.taker(&Task::new(b"/web", b"io-1")), placement.taker(&Task::new(b"/db", b"main"))),
            (Some("web/io".into()), None)
        );
        let groups = [&b"/a/web1/x"[..], b"/a/web1/y", b"/a/web2"]
            .map(|path| placement.group(&Task::new(path, b"io-1")).unwrap());
        assert!(groups[0] == groups[1] && groups[1] != groups[2], "{groups:?}");
        let layered = r#"[{"name": "io", "matches": [[{"CommPrefix": "io-"}]], "kind": {"Grouped": {"util_range": [0.1, 0.2], "growth_algo": "StickyDynamic"}}},
            {"name": "rest", "matches": [[]], "kind": {"Grouped": {"util_range": [0.1, 0.2], "growth_algo": "StickyDynamic"}}}]"#;
        let placement = Placement::parse(layered).unwrap();
        assert_eq!(
            (placement.name_of(&Task::new(b"/x", b"io-1")), placement.name_of(&Task::new(b"/x", b"x"))),
            ("io".into(), "rest".into())
        );
    }

    #[test]
    fn groups_share_the_cpus_as_the_scheduler_does_it() {
        let mitosis = r#"[{"name": "web", "matches": {"CgroupContains": "web"}, "subcells": [
            {"name": "io", "matches": [[{"CommPrefix": "io-"}]]}, {"name": "cpu", "matches": [[{"CommPrefix": "cpu-"}]]}]},
            {"name": "db", "matches": {"CgroupContains": "db"}}]"#;
        let placement = Placement::parse(mitosis).unwrap();
        let place = |cgroup: &str, comm: &str| placement.place_of(&Task::new(cgroup.as_bytes(), comm.as_bytes()));
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
