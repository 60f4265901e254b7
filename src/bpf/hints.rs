//! Task hints: the map, the options, and the reasons why hints cannot be followed.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use super::refusal::Refusal;
use crate::hint::HintProbe;

/// The kernel truncates names of maps to this many bytes (`BPF_OBJ_NAME_LEN` minus the NUL).
const MAX_NAME: usize = 15;

/// How the user names a map.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapRef {
    /// A file in a bpffs.
    Path(PathBuf),
    /// The map's id in the kernel, `id:N`.
    Id(u32),
    /// The map's name, `name:NAME`; an error if several maps have it.
    Name(String),
}

/// Why a text does not name a map.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MapRefError {
    /// `id:` without a valid number.
    #[error("\"{0}\" is not the id of a map, a number from 1")]
    Id(String),
    /// `name:` without a name.
    #[error("there is no name after \"name:\"")]
    Name,
    /// The text is empty, or not a path.
    #[error("not the path of a pinned map, id:N or name:NAME")]
    Path,
}

impl FromStr for MapRef {
    type Err = MapRefError;

    fn from_str(text: &str) -> Result<Self, MapRefError> {
        if let Some(id) = text.strip_prefix("id:") {
            return match id.parse() {
                Ok(id) if id > 0 => Ok(Self::Id(id)),
                _ => Err(MapRefError::Id(id.to_owned())),
            };
        }
        if let Some(name) = text.strip_prefix("name:") {
            if name.is_empty() {
                return Err(MapRefError::Name);
            }
            return Ok(Self::Name(name.chars().take(MAX_NAME).collect()));
        }
        if text.is_empty() || text.contains('\0') {
            return Err(MapRefError::Path);
        }
        Ok(Self::Path(PathBuf::from(text)))
    }
}

impl fmt::Display for MapRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Id(id) => write!(f, "id:{id}"),
            Self::Name(name) => write!(f, "name:{name}"),
        }
    }
}

/// Why hints cannot be followed.
#[doc(hidden)]
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HintsError {
    /// Built without the feature.
    #[error("this scxprof was built without BPF (cargo feature \"bpf\")")]
    NotBuilt,
    /// The map cannot be opened.
    #[error("cannot open the hint map {map}: {reason}")]
    NoMap {
        /// As the user named it.
        map: MapRef,
        /// The reason, and what would help.
        reason: String,
    },
    /// The map is not a hint map.
    #[error("{map} is not a hint map: {reason}")]
    WrongMap {
        /// As the user named it.
        map: MapRef,
        /// What is wrong with it.
        reason: String,
    },
    /// No probe works.
    #[error("hint writes cannot be observed here: {}", list(.0))]
    NoProbe(Vec<Refusal>),
    /// A thread or a file that the watch needs is not available.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The errno and its text.
        source: std::io::Error,
    },
}

pub(super) fn list(refusals: &[Refusal]) -> String {
    refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Options for following hints.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HintOptions {
    /// The map.
    pub map: MapRef,
    /// The only probe to try; `None` for the best one that works.
    pub probe: Option<HintProbe>,
    /// Bytes of the ring between the kernel and this process: a power of two, at least a page; 8 MiB by default.
    pub ring_bytes: u32,
}

impl HintOptions {
    /// Follows `map` with the best probe that works.
    #[must_use]
    pub fn new(map: MapRef) -> Self {
        Self { map, probe: None, ring_bytes: 8 << 20 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_a_path_an_id_or_a_name() {
        assert_eq!("id:7".parse(), Ok(MapRef::Id(7)));
        assert_eq!("name:hints".parse(), Ok(MapRef::Name("hints".to_owned())));
        // The kernel truncates the name as well.
        assert_eq!("name:scx_layered_task_hint_map".parse(), Ok(MapRef::Name("scx_layered_tas".to_owned())));
        assert_eq!("/sys/fs/bpf/id:7".parse(), Ok(MapRef::Path("/sys/fs/bpf/id:7".into())));
        for wrong in ["", "id:", "id:0", "id:x", "id:-1", "id:4294967296", "name:", "a\0b"] {
            assert!(wrong.parse::<MapRef>().is_err(), "{wrong:?}");
        }
        for text in ["id:7", "name:hints", "/x y"] {
            assert_eq!(text.parse::<MapRef>().unwrap().to_string(), text);
        }
    }
}
