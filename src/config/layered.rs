//! Writes and reads the file of `scx_layered f:FILE`, within the limits of the scheduler.
//!
//! The facts are from scheds/rust/scx_layered of the sched-ext/scx repository: src/config.rs (what it parses), src/main.rs
//! (`verify_layer_specs`, `init_layers`), src/bpf/intf.h (the numbers) and src/layer_core_growth.rs.
//!
//! Each subcell is a layer, and the rest of a cell is one more. Their kinds:
//!
//! - Threads that share memory are `Confined`: only with this kind, threads never leave the layer's own CPUs. With
//!   `growth_algo` `StickyDynamic` these are whole last-level caches as long as the layer needs that many CPUs; the remainder
//!   comes from as few others as possible. (`Topo` without `llcs` spreads round-robin over all caches, and the default `Sticky`
//!   over the cores, which is the opposite of what is needed.)
//! - A class of threads without shared memory, and the rest of a cell, is `Grouped`: it has its own CPUs too, but its threads
//!   may use idle CPUs of others, because they lose little by it.
//! - The last layer, of all other threads, is `Grouped` too, and has at least one CPU of its own.
//!
//! A layer gets CPUs so that their utilization stays in `util_range`. scx_layered matches a thread again when it is renamed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::hint::MAX_HINT;
use crate::sample::Comm;
use scxprof_base::escape;

/// Layers (`MAX_LAYERS`).
pub const MAX_LAYERS: usize = 16;
/// Alternatives in the `matches` of a layer (`MAX_LAYER_MATCH_ORS`).
pub const MAX_ORS: usize = 32;
/// Conditions in one alternative (`NR_LAYER_MATCH_KINDS`).
pub const MAX_ANDS: usize = 26;
/// `CgroupRegex` conditions in all layers together (`MAX_CGROUP_REGEXES`); each use counts.
pub const MAX_REGEXES: usize = 16;
/// Bytes of a layer's name; the scheduler keeps as many again for the suffix of a template (`MAX_LAYER_NAME`).
pub const MAX_NAME: usize = 64;
/// Bytes of a cgroup's path, with a NUL at the end (`MAX_PATH`).
pub const MAX_PATH: usize = 4096;

/// Which threads a layer takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerMatch {
    /// The cgroup's path has this prefix; the path has no `/` at its beginning, but one at its end.
    CgroupPrefix(String),
    /// The same path contains this.
    CgroupContains(String),
    /// The full path, as for scx_mitosis, matches this.
    CgroupRegex(String),
    /// The thread's name has this prefix.
    CommPrefix(String),
    /// The thread's name does not have this prefix.
    CommPrefixExclude(String),
    /// The thread has this hint. It must be the only condition of its alternative, and occur in one layer only.
    HintEquals(u64),
}

/// How a layer gets CPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum LayerKind {
    /// Its threads run only on its own CPUs.
    Confined {
        /// The utilization, of 1, below which it loses CPUs and above which it gets more.
        util_range: (f64, f64),
        /// Which CPUs it gets next.
        growth_algo: Growth,
    },
    /// Its threads may also run on idle CPUs of others.
    Grouped {
        /// As for `Confined`.
        util_range: (f64, f64),
        /// As for `Confined`.
        growth_algo: Growth,
        /// How many CPUs it has at least and at most; not limited without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cpus_range: Option<(usize, usize)>,
    },
}

/// Which CPUs a layer gets next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Growth {
    /// Whole last-level caches; single cores if the host has only one cache.
    StickyDynamic,
}

const UTIL_RANGE: (f64, f64) = (0.5, 0.8);
/// The last layer has at least one of so many CPUs.
const REST_SHARE: usize = 16;

impl LayerKind {
    /// For threads that share memory.
    #[must_use]
    pub fn community() -> Self {
        Self::Confined { util_range: UTIL_RANGE, growth_algo: Growth::StickyDynamic }
    }

    /// For threads without shared memory but with a cell or a subcell.
    #[must_use]
    pub fn class() -> Self {
        Self::Grouped { util_range: UTIL_RANGE, growth_algo: Growth::StickyDynamic, cpus_range: None }
    }

    /// For all other threads, on a host of so many CPUs. A sixteenth of them is its own: an `Open` layer has no CPU left while the
    /// others are saturated, and the shell hangs.
    #[must_use]
    pub fn rest(target_cpus: usize) -> Self {
        let most = target_cpus.max(1);
        let cpus_range = Some(((most / REST_SHARE).max(1), most));
        Self::Grouped { util_range: UTIL_RANGE, growth_algo: Growth::StickyDynamic, cpus_range }
    }
}

/// A layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// Its name, for display only.
    pub name: String,
    /// Its threads: those that match all conditions of one of the lists.
    pub matches: Vec<Vec<LayerMatch>>,
    /// How it gets CPUs.
    pub kind: LayerKind,
}

/// Why the scheduler would reject a configuration, or would not do what it says.
#[derive(Debug, Clone, Error, PartialEq)]
#[non_exhaustive]
pub enum LayeredError {
    /// None, or more than [`MAX_LAYERS`].
    #[error("{0} layers; the scheduler takes 1 to {MAX_LAYERS}")]
    Layers(usize),
    /// Empty, not unique, with a NUL, or longer than [`MAX_NAME`].
    #[error("the name \"{0}\" of a layer is taken or not 1 to {MAX_NAME} bytes of text")]
    Name(String),
    /// The last layer has conditions, or another one has an alternative without.
    #[error("layer \"{0}\": only the last layer must take every thread, by one empty alternative")]
    CatchAll(String),
    /// None, or more than [`MAX_ORS`].
    #[error("layer \"{layer}\": {count} alternatives; the scheduler takes 1 to {MAX_ORS}")]
    Ors {
        /// The layer.
        layer: String,
        /// How many.
        count: usize,
    },
    /// More than [`MAX_ANDS`].
    #[error("layer \"{layer}\": {count} conditions in one alternative; the scheduler takes {MAX_ANDS}")]
    Ands {
        /// The layer.
        layer: String,
        /// How many.
        count: usize,
    },
    /// A prefix of a name that is empty, longer than a name or with a NUL, or a path that is empty, too long or with a NUL.
    #[error("layer \"{layer}\": {text:?} is not 1 to {limit} bytes without NUL")]
    Text {
        /// The layer.
        layer: String,
        /// The text.
        text: String,
        /// The most bytes allowed.
        limit: usize,
    },
    /// An expression that does not compile.
    #[error("layer \"{layer}\": the regular expression \"{regex}\" does not compile")]
    Regex {
        /// The layer.
        layer: String,
        /// The expression.
        regex: String,
    },
    /// More than [`MAX_REGEXES`].
    #[error("{0} uses of CgroupRegex; the scheduler takes {MAX_REGEXES}")]
    Regexes(usize),
    /// A hint above [`MAX_HINT`], beside other conditions, or in more than one place.
    #[error(
        "layer \"{layer}\": HintEquals {hint} is above {MAX_HINT}, not alone in its alternative, or there already"
    )]
    Hint {
        /// The layer.
        layer: String,
        /// The value.
        hint: u64,
    },
    /// A range of utilizations that is not within 0 to 1, or one of CPUs that is empty.
    #[error("layer \"{0}\": util_range or cpus_range is not from less to more")]
    Range(String),
}

/// Checks for everything that the scheduler would reject, or would load but not do as written.
///
/// # Errors
/// The first violation.
pub fn check(layers: &[Layer]) -> Result<(), LayeredError> {
    if layers.is_empty() || layers.len() > MAX_LAYERS {
        return Err(LayeredError::Layers(layers.len()));
    }
    let mut names = BTreeSet::new();
    let mut regexes = 0;
    let mut hints = BTreeSet::new();
    for (index, layer) in layers.iter().enumerate() {
        let name = &layer.name;
        if name.is_empty() || name.len() > MAX_NAME || name.contains('\0') || !names.insert(name) {
            return Err(LayeredError::Name(name.clone()));
        }
        let is_last = index + 1 == layers.len();
        let count = layer.matches.len();
        if count == 0 || count > MAX_ORS {
            return Err(LayeredError::Ors { layer: name.clone(), count });
        }
        if is_last != layer.matches.iter().any(Vec::is_empty) || (is_last && count != 1) {
            return Err(LayeredError::CatchAll(name.clone()));
        }
        for ands in &layer.matches {
            if ands.len() > MAX_ANDS {
                return Err(LayeredError::Ands { layer: name.clone(), count: ands.len() });
            }
            for condition in ands {
                regexes += usize::from(matches!(condition, LayerMatch::CgroupRegex(_)));
                check_condition(name, condition)?;
                if let LayerMatch::HintEquals(hint) = *condition {
                    if hint > MAX_HINT || ands.len() > 1 || !hints.insert(hint) {
                        return Err(LayeredError::Hint { layer: name.clone(), hint });
                    }
                }
            }
        }
        let (LayerKind::Confined { util_range: (low, high), .. } | LayerKind::Grouped { util_range: (low, high), .. }) =
            layer.kind;
        let is_range = 0.0 <= low && low < high && high <= 1.0;
        let has_cpus = match layer.kind {
            LayerKind::Grouped { cpus_range: Some((least, most)), .. } => 0 < least && least <= most,
            _ => true,
        };
        if !is_range || !has_cpus {
            return Err(LayeredError::Range(name.clone()));
        }
    }
    if regexes > MAX_REGEXES {
        return Err(LayeredError::Regexes(regexes));
    }
    Ok(())
}

fn check_condition(layer: &str, condition: &LayerMatch) -> Result<(), LayeredError> {
    let (text, limit) = match condition {
        LayerMatch::CgroupPrefix(text) | LayerMatch::CgroupContains(text) => (text, MAX_PATH - 1),
        LayerMatch::CommPrefix(text) | LayerMatch::CommPrefixExclude(text) => (text, Comm::MAX),
        LayerMatch::HintEquals(_) => return Ok(()),
        LayerMatch::CgroupRegex(regex) => {
            let refused = || LayeredError::Regex { layer: layer.to_owned(), regex: regex.clone() };
            return regex::Regex::new(regex).map(|_| ()).map_err(|_| refused());
        }
    };
    if text.is_empty() || text.len() > limit || text.contains('\0') {
        return Err(LayeredError::Text { layer: layer.to_owned(), text: text.clone(), limit });
    }
    Ok(())
}

/// The configuration as the scheduler reads it, if it would accept it.
///
/// # Errors
/// Those of [`check`]; then there is no text.
pub fn to_json(layers: &[Layer]) -> Result<String, LayeredError> {
    check(layers)?;
    let layers: Vec<String> = layers.iter().map(layer_json).collect();
    Ok(escape::json(format!("[\n{}\n]\n", layers.join(",\n"))))
}

fn layer_json(layer: &Layer) -> String {
    // Texts, numbers and lists of them: serializing cannot fail.
    let json = |value: Result<String, serde_json::Error>| value.unwrap_or_default();
    let ors: Vec<String> = layer.matches.iter().map(|ands| json(serde_json::to_string(ands))).collect();
    let ors = if ors.len() == 1 { ors.concat() } else { format!("\n      {}\n    ", ors.join(",\n      ")) };
    format!(
        "  {{\n    \"name\": {},\n    \"matches\": [{ors}],\n    \"kind\": {}\n  }}",
        json(serde_json::to_string(&layer.name)),
        json(serde_json::to_string(&layer.kind))
    )
}

/// Why the scheduler cannot parse a file.
#[derive(Debug, Error)]
#[error("no layer configuration: {0}")]
pub struct ParseError(#[from] serde_json::Error);

/// Reads a configuration that [`to_json`] wrote; the scheduler has more conditions, kinds and options than are used here.
///
/// # Errors
/// Text that is no such list.
pub fn parse(json: &str) -> Result<Vec<Layer>, ParseError> {
    Ok(serde_json::from_str(json)?)
}

/// A model of scx_layered with a configuration: which layer takes a thread.
#[derive(Debug, Clone)]
pub struct Consumer {
    layers: Vec<Vec<Vec<Loaded>>>,
}

#[derive(Debug, Clone)]
enum Loaded {
    Prefix(Vec<u8>),
    Contains(Vec<u8>),
    Regex(regex::Regex),
    Comm(Vec<u8>),
    NotComm(Vec<u8>),
    Hint(u64),
}

impl Consumer {
    /// Loads a configuration, if the scheduler would.
    ///
    /// # Errors
    /// Those of [`check`].
    pub fn new(layers: &[Layer]) -> Result<Self, LayeredError> {
        check(layers)?;
        let load = |layer: &Layer, condition: &LayerMatch| {
            Ok(match condition {
                LayerMatch::CgroupPrefix(text) => Loaded::Prefix(text.clone().into_bytes()),
                LayerMatch::CgroupContains(text) => Loaded::Contains(text.clone().into_bytes()),
                LayerMatch::CgroupRegex(regex) => Loaded::Regex(
                    regex::Regex::new(regex)
                        .map_err(|_| LayeredError::Regex { layer: layer.name.clone(), regex: regex.clone() })?,
                ),
                LayerMatch::CommPrefix(text) => Loaded::Comm(text.clone().into_bytes()),
                LayerMatch::CommPrefixExclude(text) => Loaded::NotComm(text.clone().into_bytes()),
                LayerMatch::HintEquals(hint) => Loaded::Hint(*hint),
            })
        };
        let layers = layers.iter().map(|layer| {
            let ands = |ands: &Vec<LayerMatch>| ands.iter().map(|it| load(layer, it)).collect::<Result<Vec<_>, _>>();
            layer.matches.iter().map(ands).collect::<Result<Vec<_>, LayeredError>>()
        });
        Ok(Self { layers: layers.collect::<Result<_, _>>()? })
    }

    /// The layer of a thread, by its cgroup's path below `/sys/fs/cgroup` and its name: the first that takes it.
    ///
    /// `format_cgrp_path` in util.bpf.c ends a path with `/`; regular expressions are matched in user space against the path in
    /// the file system, for each cgroup separately.
    #[must_use]
    pub fn assign(&self, cgroup: &[u8], comm: &[u8]) -> Option<usize> {
        self.assign_hinted(cgroup, comm, None)
    }

    /// The layer of a thread with a hint: the one that has the hint, whatever else matches; without one, as for any thread
    /// (`maybe_refresh_task_layer_from_hint` in main.bpf.c).
    #[must_use]
    pub(crate) fn assign_hinted(&self, cgroup: &[u8], comm: &[u8], hint: Option<u64>) -> Option<usize> {
        let has_hint = |condition: &Loaded| matches!(condition, Loaded::Hint(own) if Some(*own) == hint);
        if let Some(at) = self.layers.iter().position(|layer| layer.iter().flatten().any(has_hint)) {
            return Some(at);
        }
        let parts: Vec<&[u8]> = cgroup.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).collect();
        let mut path = parts.join(&b'/');
        let full = String::from_utf8_lossy(&[b"/sys/fs/cgroup/".as_slice(), &path].concat()).into_owned();
        let full = full.trim_end_matches('/');
        path.push(b'/');
        let contains = |part: &[u8]| path.windows(part.len()).any(|window| window == part);
        let holds = |condition: &Loaded| match condition {
            Loaded::Prefix(prefix) => path.starts_with(prefix),
            Loaded::Contains(part) => contains(part),
            Loaded::Regex(regex) => regex.is_match(full),
            Loaded::Comm(prefix) => comm.starts_with(prefix),
            Loaded::NotComm(prefix) => !comm.starts_with(prefix),
            Loaded::Hint(_) => false,
        };
        self.layers.iter().position(|layer| layer.iter().any(|ands| ands.iter().all(holds)))
    }
}
