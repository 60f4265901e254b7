//! A model of scx_layered with a configuration: which layer takes a thread, as far as what is known of the thread decides it.

use std::collections::BTreeSet;

use super::layer::{compiled, Layer, LayerMatch, LayeredError};
use super::parse::loads;
use crate::host::facts::{TaskFacts, Tasks};
use crate::sample::{Task, TaskHint};

/// `SCXCMD_PREFIX`, and the opcodes of joining and leaving (src/bpf/intf.h).
const COMMAND: [u8; 2] = 0x5c10_u16.to_le_bytes();
const JOIN: u8 = 1;
const LEAVE: u8 = 2;
/// Bytes of the cgroup that names a layer of a template (`name_suffix`).
const SUFFIX: usize = 64;

/// Loaded layers.
#[derive(Debug, Clone)]
pub struct Consumer {
    layers: Vec<Loaded>,
}

#[derive(Debug, Clone)]
struct Loaded {
    /// The cgroups; each makes a layer of this template.
    template: Option<Condition>,
    /// Some cgroup is known that the template's condition takes. Without one, the scheduler takes the layer as it is written.
    has_cgroup: bool,
    matches: Vec<Vec<Condition>>,
}

/// A condition with its expression compiled.
#[derive(Debug, Clone)]
enum Condition {
    Regex(regex::Regex),
    Other(LayerMatch),
}

impl Condition {
    fn kind(&self) -> &'static str {
        match self {
            Self::Regex(_) => "CgroupRegex",
            Self::Other(condition) => condition.kind(),
        }
    }
}

/// The layers that may take a thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Takers {
    /// Those that take it if an undecided condition holds, in the scheduler's order; each with the kinds of these
    /// conditions. The first one whose condition holds takes the thread.
    pub maybe: Vec<(usize, BTreeSet<&'static str>)>,
    /// The one that takes it if none of them holds; `None` if no layer takes every thread.
    pub otherwise: Option<usize>,
}

/// What is known of a thread.
struct Known<'a> {
    task: &'a Task<'a>,
    own: Option<&'a TaskFacts>,
    /// Of the main thread of its process, whose user, parent and namespace it has.
    main: Option<&'a TaskFacts>,
    process: Option<&'a [u8]>,
    /// In the form of `format_cgrp_path` in util.bpf.c, which ends a path with `/`.
    path: Vec<u8>,
}

impl Consumer {
    /// Loads a configuration, if the scheduler would.
    ///
    /// # Errors
    /// Those of [`loads`].
    pub fn new(layers: &[Layer]) -> Result<Self, LayeredError> {
        loads(layers)?;
        let load = |layer: &Layer, condition: &LayerMatch| match condition {
            LayerMatch::CgroupRegex(regex) => compiled(&layer.name, regex).map(Condition::Regex),
            other => Ok(Condition::Other(other.clone())),
        };
        let layers = layers.iter().map(|layer| {
            let ands = |ands: &Vec<LayerMatch>| ands.iter().map(|it| load(layer, it)).collect::<Result<Vec<_>, _>>();
            let template = layer.template.as_ref().map(|it| load(layer, it)).transpose()?;
            let matches = layer.matches.iter().map(ands).collect::<Result<Vec<_>, LayeredError>>()?;
            Ok(Loaded { template, has_cgroup: false, matches })
        });
        Ok(Self { layers: layers.collect::<Result<_, LayeredError>>()? })
    }

    /// Sets the existing cgroups, by their paths below `/sys/fs/cgroup`: templates depend on it.
    pub(crate) fn know_cgroups<'a>(&mut self, paths: impl Iterator<Item = &'a [u8]>) {
        if !self.layers.iter().any(|layer| layer.template.is_some()) {
            return;
        }
        for path in paths {
            for layer in &mut self.layers {
                layer.has_cgroup |= layer.template.as_ref().is_some_and(|template| takes_cgroup(template, path));
            }
        }
    }

    /// The layer of a thread, by its cgroup's path below `/sys/fs/cgroup` and its name, if nothing else decides it: the first that
    /// takes it.
    #[must_use]
    pub fn assign(&self, cgroup: &[u8], comm: &[u8]) -> Option<usize> {
        self.takers(&Task::new(cgroup, comm).hinted(None), &Tasks::default()).otherwise
    }

    /// The layers that may take a thread.
    ///
    /// A thread with a hint is in the layer that has the hint, whatever else matches (`maybe_refresh_task_layer_from_hint` in
    /// main.bpf.c), unless that depends on the load.
    #[must_use]
    pub fn takers(&self, task: &Task<'_>, tasks: &Tasks) -> Takers {
        let is_main = task.pid.is_some() && task.pid == task.tid;
        let process = task.pid.and_then(|pid| tasks.process(pid)).map(str::as_bytes);
        let known = Known {
            task,
            own: task.pid.zip(task.tid).and_then(|(pid, tid)| tasks.get(pid, tid)),
            main: task.pid.and_then(|pid| tasks.get(pid, pid)),
            process: process.or(task.process).or(is_main.then_some(task.comm)),
            path: formatted(task.cgroup),
        };
        let mut takers = Takers::default();
        if let TaskHint::Is(hint) = task.hint {
            if let Some((at, below)) = self.of_hint(hint) {
                if below.is_empty() {
                    return Takers { otherwise: Some(at), ..takers };
                }
                takers.maybe.push((at, below));
            }
        }
        for (at, layer) in self.layers.iter().enumerate() {
            let mut open = BTreeSet::new();
            match layer.takes(&known, &mut open) {
                Some(true) => {
                    takers.otherwise = Some(at);
                    break;
                }
                Some(false) => {}
                None => match takers.maybe.iter_mut().find(|it| it.0 == at) {
                    Some(it) => it.1.extend(open),
                    None => takers.maybe.push((at, open)),
                },
            }
        }
        // A layer that takes it in any case does not depend on anything.
        takers.maybe.retain(|it| Some(it.0) != takers.otherwise);
        takers
    }

    /// The layer of a hint, and the conditions on the load that it has besides.
    fn of_hint(&self, hint: u64) -> Option<(usize, BTreeSet<&'static str>)> {
        let is_its = |ands: &&Vec<Condition>| {
            ands.iter().any(|it| matches!(it, Condition::Other(LayerMatch::HintEquals(own)) if *own == hint))
        };
        let find = |(at, layer): (usize, &Loaded)| {
            let ands = layer.matches.iter().find(is_its)?;
            Some((at, ands.iter().map(Condition::kind).filter(|kind| *kind != "HintEquals").collect()))
        };
        self.layers.iter().enumerate().find_map(find)
    }

    /// What is added to the name of a layer that a template made for a thread's cgroup.
    pub(crate) fn suffix(&self, layer: usize, cgroup: &[u8]) -> Option<String> {
        let template = self.layers.get(layer)?.template.as_ref()?;
        let path = String::from_utf8_lossy(cgroup);
        let full = format!("/sys/fs/cgroup/{}/", path.trim_matches('/'));
        let from = full.char_indices().rev().nth(SUFFIX - 1).map_or(0, |(at, _)| at);
        takes_cgroup(template, cgroup).then(|| full.get(from..).unwrap_or_default().to_owned())
    }
}

/// The cgroup's path without `/` at its beginning, and with one at its end.
fn formatted(cgroup: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = cgroup.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).collect();
    let mut path = parts.join(&b'/');
    path.push(b'/');
    path
}

/// The path that expressions are matched against, in user space.
fn full(path: &[u8]) -> String {
    let full = String::from_utf8_lossy(&[b"/sys/fs/cgroup/".as_slice(), path].concat()).into_owned();
    full.trim_end_matches('/').to_owned()
}

/// True if a template makes a layer of a cgroup: its path in the file system is compared, which has no `/` at its end.
fn takes_cgroup(template: &Condition, cgroup: &[u8]) -> bool {
    let full = full(&formatted(cgroup));
    match template {
        Condition::Regex(regex) => regex.is_match(&full),
        Condition::Other(LayerMatch::CgroupSuffix(suffix)) => full.ends_with(suffix.as_str()),
        Condition::Other(_) => false,
    }
}

impl Loaded {
    /// Whether it takes a thread; `None` if that depends on conditions whose kinds are added to `open`.
    fn takes(&self, known: &Known<'_>, open: &mut BTreeSet<&'static str>) -> Option<bool> {
        let mut all = Some(false);
        for ands in &self.matches {
            let mut unknown = Vec::new();
            let fails = ands.iter().any(|condition| {
                let holds = known.holds(condition);
                if holds.is_none() {
                    unknown.push(condition.kind());
                }
                holds == Some(false)
            });
            if fails {
                continue;
            }
            if unknown.is_empty() {
                all = Some(true);
                break;
            }
            open.extend(unknown);
            all = None;
        }
        match &self.template {
            // Each layer that was made of it has one more condition.
            Some(template) if all != Some(false) && self.has_cgroup && !takes_cgroup(template, known.task.cgroup) => {
                Some(false)
            }
            _ => all,
        }
    }
}

impl Known<'_> {
    /// Whether a condition holds (`match_one` in main.bpf.c); `None` if it is not known.
    fn holds(&self, condition: &Condition) -> Option<bool> {
        let Task { comm, hint, pid, tid, .. } = *self.task;
        let condition = match condition {
            Condition::Regex(regex) => return Some(regex.is_match(&full(&self.path))),
            Condition::Other(condition) => condition,
        };
        let facts = self.own.or(self.main);
        let nice = || self.own?.nice;
        let namespace = || facts?.pid_ns;
        Some(match condition {
            LayerMatch::CgroupPrefix(text) => self.path.starts_with(text.as_bytes()),
            LayerMatch::CgroupSuffix(text) => self.path.ends_with(text.as_bytes()),
            LayerMatch::CgroupContains(text) => {
                text.is_empty() || self.path.windows(text.len()).any(|window| window == text.as_bytes())
            }
            LayerMatch::CommPrefix(text) => comm.starts_with(text.as_bytes()),
            LayerMatch::CommPrefixExclude(text) => !comm.starts_with(text.as_bytes()),
            LayerMatch::PcommPrefix(text) => self.process?.starts_with(text.as_bytes()),
            LayerMatch::PcommPrefixExclude(text) => !self.process?.starts_with(text.as_bytes()),
            LayerMatch::NiceAbove(than) => nice()? > *than,
            LayerMatch::NiceBelow(than) => nice()? < *than,
            LayerMatch::NiceEquals(to) => nice()? == *to,
            LayerMatch::UIDEquals(id) => facts?.uid? == *id,
            LayerMatch::GIDEquals(id) => facts?.gid? == *id,
            LayerMatch::PIDEquals(id) => tid? == *id,
            LayerMatch::PPIDEquals(id) => facts?.ppid? == *id,
            LayerMatch::TGIDEquals(id) => pid? == *id,
            LayerMatch::NSPIDEquals(of, id) => namespace()? == *of && self.own?.ns_tid? == *id,
            LayerMatch::NSEquals(of) => namespace()? == u64::from(*of),
            LayerMatch::IsGroupLeader(is_leader) => (pid? == tid?) == *is_leader,
            // It does not read the value.
            LayerMatch::IsKthread(_) => facts?.kthread?,
            LayerMatch::CmdJoin(name) => return joined(comm, name),
            LayerMatch::HintEquals(own) => match hint {
                TaskHint::Unknown => return None,
                TaskHint::None => false,
                TaskHint::Is(hint) => hint == *own,
            },
            LayerMatch::CgroupRegex(_)
            | LayerMatch::UsedGpuTid(_)
            | LayerMatch::UsedGpuPid(_)
            | LayerMatch::AvgRuntime(..)
            | LayerMatch::SystemCpuUtilBelow(_)
            | LayerMatch::DsqInsertBelow(_)
            | LayerMatch::NumaNode(_) => return None,
        })
    }
}

/// Whether a thread joined by its name. One with another name may have joined under an earlier one.
fn joined(comm: &[u8], name: &str) -> Option<bool> {
    match comm.strip_prefix(&COMMAND)?.split_first()? {
        (&JOIN, command) => Some(!command.is_empty() && command.starts_with(name.as_bytes())),
        (&LEAVE, _) => Some(false),
        _ => None,
    }
}
