//! Layers: which threads each takes, and how it gets CPUs.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::hint::MAX_HINT;

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

/// Which threads a layer takes (`enum LayerMatch`). scxprof writes some of them, and reads all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum LayerMatch {
    /// The cgroup's path has this prefix; the path has no `/` at its beginning, but one at its end.
    CgroupPrefix(String),
    /// The same path has this suffix.
    CgroupSuffix(String),
    /// The same path contains this.
    CgroupContains(String),
    /// The full path, as for scx_mitosis, matches this.
    CgroupRegex(String),
    /// The thread's name has this prefix.
    CommPrefix(String),
    /// The thread's name does not have this prefix.
    CommPrefixExclude(String),
    /// The name of the process, which is that of its main thread, has this prefix.
    PcommPrefix(String),
    /// The name of the process does not have this prefix.
    PcommPrefixExclude(String),
    /// The thread's nice value is above this.
    NiceAbove(i32),
    /// The thread's nice value is below this.
    NiceBelow(i32),
    /// The thread's nice value is this.
    NiceEquals(i32),
    /// The effective user id.
    UIDEquals(u32),
    /// The effective group id.
    GIDEquals(u32),
    /// The thread id.
    PIDEquals(u32),
    /// The process id of the parent.
    PPIDEquals(u32),
    /// The process id.
    TGIDEquals(u32),
    /// The pid namespace, by its inode, and the thread id in it.
    NSPIDEquals(u64, u32),
    /// The pid namespace, by its inode.
    NSEquals(u32),
    /// The thread joined by a command: a name that begins with the bytes 0x10 0x5c and an opcode (examples/cmdjoin.c).
    CmdJoin(String),
    /// The thread is, or is not, the main thread of its process.
    IsGroupLeader(bool),
    /// The thread is a kernel thread, whatever is written: scx_layered 1.1.4 does not read the value.
    IsKthread(bool),
    /// The thread used a GPU, or did not.
    UsedGpuTid(bool),
    /// The process used a GPU, or did not.
    UsedGpuPid(bool),
    /// The thread runs at a time for this long, us: from the first, up to but without the second.
    AvgRuntime(u64, u64),
    /// The thread has this hint. It must be the only condition of its alternative but for the next two, and occur in one layer only.
    HintEquals(u64),
    /// All CPUs together are used less than this, from 0 to 1.
    SystemCpuUtilBelow(f64),
    /// Less than this part, from 0 to 1, of the layer's threads waits in a queue.
    DsqInsertBelow(f64),
    /// The thread may only run on CPUs of this NUMA node.
    NumaNode(u32),
}

impl LayerMatch {
    /// Its name in the file.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::CgroupPrefix(_) => "CgroupPrefix",
            Self::CgroupSuffix(_) => "CgroupSuffix",
            Self::CgroupContains(_) => "CgroupContains",
            Self::CgroupRegex(_) => "CgroupRegex",
            Self::CommPrefix(_) => "CommPrefix",
            Self::CommPrefixExclude(_) => "CommPrefixExclude",
            Self::PcommPrefix(_) => "PcommPrefix",
            Self::PcommPrefixExclude(_) => "PcommPrefixExclude",
            Self::NiceAbove(_) => "NiceAbove",
            Self::NiceBelow(_) => "NiceBelow",
            Self::NiceEquals(_) => "NiceEquals",
            Self::UIDEquals(_) => "UIDEquals",
            Self::GIDEquals(_) => "GIDEquals",
            Self::PIDEquals(_) => "PIDEquals",
            Self::PPIDEquals(_) => "PPIDEquals",
            Self::TGIDEquals(_) => "TGIDEquals",
            Self::NSPIDEquals(..) => "NSPIDEquals",
            Self::NSEquals(_) => "NSEquals",
            Self::CmdJoin(_) => "CmdJoin",
            Self::IsGroupLeader(_) => "IsGroupLeader",
            Self::IsKthread(_) => "IsKthread",
            Self::UsedGpuTid(_) => "UsedGpuTid",
            Self::UsedGpuPid(_) => "UsedGpuPid",
            Self::AvgRuntime(..) => "AvgRuntime",
            Self::HintEquals(_) => "HintEquals",
            Self::SystemCpuUtilBelow(_) => "SystemCpuUtilBelow",
            Self::DsqInsertBelow(_) => "DsqInsertBelow",
            Self::NumaNode(_) => "NumaNode",
        }
    }
}

/// How a layer gets CPUs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum LayerKind {
    /// Its threads run only on its own CPUs.
    Confined(Cpus),
    /// Its threads may also run on idle CPUs of others.
    Grouped(Cpus),
    /// It has no CPUs of its own, and uses those that the other layers leave.
    Open(Cpus),
}

/// Which CPUs a layer gets, and how many. The scheduler has more options, which say how a layer's threads are scheduled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpus {
    /// The utilization, from 0 to 1, below which it loses CPUs and above which it gets more; an `Open` layer has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub util_range: Option<(f64, f64)>,
    /// Which CPUs it gets next.
    #[serde(default)]
    pub growth_algo: Growth,
    /// How many CPUs it has at least and at most; not limited without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus_range: Option<(usize, usize)>,
}

/// Which CPUs a layer gets next (`enum LayerGrowthAlgo`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "scx_layered's own names; what scxprof does not write it only reads")]
pub enum Growth {
    #[default]
    Sticky,
    Linear,
    Reverse,
    Random,
    Topo,
    RoundRobin,
    BigLittle,
    LittleBig,
    NodeSpread,
    NodeSpreadReverse,
    NodeSpreadRandom,
    CpuSetSpread,
    CpuSetSpreadReverse,
    CpuSetSpreadRandom,
    RandomTopo,
    /// Whole last-level caches; single cores if the host has only one cache.
    StickyDynamic,
}

const UTIL_RANGE: (f64, f64) = (0.5, 0.8);
/// The last layer has at least one of this number of CPUs.
const REST_SHARE: usize = 16;

impl Cpus {
    /// Whole last-level caches.
    fn whole_caches(cpus_range: Option<(usize, usize)>) -> Self {
        Self { util_range: Some(UTIL_RANGE), growth_algo: Growth::StickyDynamic, cpus_range }
    }
}

impl LayerKind {
    /// For threads that share memory.
    #[must_use]
    pub fn community() -> Self {
        Self::Confined(Cpus::whole_caches(None))
    }

    /// For threads without shared memory but with a cell or a subcell.
    #[must_use]
    pub fn class() -> Self {
        Self::Grouped(Cpus::whole_caches(None))
    }

    /// For all other threads, on a host with `target_cpus` CPUs. A sixteenth of them is its own: an `Open` layer has no CPU left while the
    /// others are saturated, and the shell hangs.
    #[must_use]
    pub fn rest(target_cpus: usize) -> Self {
        let most = target_cpus.max(1);
        Self::Grouped(Cpus::whole_caches(Some(((most / REST_SHARE).max(1), most))))
    }

    /// Which CPUs it gets.
    #[must_use]
    pub fn cpus(&self) -> &Cpus {
        match self {
            Self::Confined(cpus) | Self::Grouped(cpus) | Self::Open(cpus) => cpus,
        }
    }
}

/// A layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// Its name, for display only.
    pub name: String,
    /// A condition on cgroups: the scheduler makes one layer of this for each cgroup that meets it when it starts. scxprof writes none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<LayerMatch>,
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
    /// The scheduler takes only one that every thread matches.
    #[error("the last layer, \"{0}\", must take every thread: \"matches\": [[]]")]
    LastLayer(String),
    /// [`LayerMatch::SystemCpuUtilBelow`] or [`LayerMatch::DsqInsertBelow`] without a hint.
    #[error("layer \"{0}\": SystemCpuUtilBelow and DsqInsertBelow need a HintEquals beside them")]
    Below(String),
    /// A part that is not from 0 to 1.
    #[error("layer \"{layer}\": {part} is not from 0 to 1")]
    Part {
        /// The layer.
        layer: String,
        /// The part.
        part: f64,
    },
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

/// A regular expression of a layer.
pub(super) fn compiled(layer: &str, regex: &str) -> Result<regex::Regex, LayeredError> {
    let refused = |_| LayeredError::Regex { layer: layer.to_owned(), regex: regex.to_owned() };
    regex::Regex::new(regex).map_err(refused)
}
