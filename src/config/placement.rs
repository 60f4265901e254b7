//! A configuration that was read from a file: where its scheduler puts a thread.

use serde_json::Value;
use thiserror::Error;

use super::cell::Cell;
use super::consumer::Consumer;
use super::layered::{self, Layer};
use super::mitosis;

/// A loaded configuration of scx_mitosis or scx_layered.
#[derive(Debug, Clone)]
pub enum Placement {
    /// Of scx_mitosis.
    Mitosis(Vec<Cell>, Consumer),
    /// Of scx_layered.
    Layered(Vec<Layer>, layered::Consumer),
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
    MitosisRefused(#[from] mitosis::Refused),
    /// It has more than scxprof knows of scx_layered.
    #[error("no configuration of scx_layered that scxprof knows: {0}")]
    Layered(#[from] layered::ParseError),
    /// scx_layered would reject it.
    #[error("scx_layered rejects it: {0}")]
    LayeredRefused(#[from] layered::Refused),
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
    fn what_no_scheduler_loads_is_refused() {
        assert!(matches!(Placement::parse("{"), Err(PlacementError::Json(_))));
        assert!(matches!(Placement::parse("{}"), Err(PlacementError::Mitosis(_))));
        assert!(matches!(Placement::parse("[]"), Err(PlacementError::MitosisRefused(_))));
        assert!(matches!(Placement::parse(r#"[{"kind": 1}]"#), Err(PlacementError::Layered(_))));
    }
}
