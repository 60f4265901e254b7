//! Notes: facts about a configuration that it does not show.

use std::fmt;
use std::sync::Arc;

use super::aligned_cell::AlignedCell;
use super::cell::CellName;
use super::layered::{MAX_LAYERS, MAX_REGEXES};
use super::members::Unknown;
use super::one_cell::OneCell;
use crate::cluster::MIN_ACCESSES;
use crate::hint::MAX_HINT;
use crate::sample::{printable, Comm};

/// A fact about the configuration that it does not show. Displayed as a sentence.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Note {
    /// Grouping by name alone avoids more misses, so a cell, or some communities of it, are configured that way.
    ByName {
        /// The cell.
        cell: String,
        /// The names of each community that is grouped by name, escaped for a terminal; empty if the cell is as a whole.
        groups: Vec<String>,
        /// The part of the avoidable misses that the communities' configuration avoids, from 0 to 1.
        by_sharing: f64,
        /// The part that grouping by name avoids.
        by_name: f64,
    },
    /// Threads without shared memory are in a community's subcell, because their names have a prefix of it.
    Strays {
        /// The cell.
        cell: String,
        /// The community's subcell.
        subcell: String,
        /// Their thread ids.
        threads: Vec<u32>,
    },
    /// No prefix takes the threads of a class and no others, so they stay with the catch-all.
    NotDescribable {
        /// The cell.
        cell: String,
        /// The class, escaped for a terminal.
        class: String,
        /// The class's share of the cell's samples, from 0 to 1.
        share: f64,
        /// A name that the class's prefix would take as well; `None` if no part of the name is UTF-8.
        takes: Option<Comm>,
        /// The thread with that name, if known.
        whose: Option<ThreadRef>,
    },
    /// More classes reach the share than there are subcells; these stay with the catch-all.
    TooManyClasses {
        /// The cell.
        cell: String,
        /// The classes without a subcell, most sampled first, escaped for a terminal.
        classes: Vec<String>,
        /// Their share of the cell's samples, from 0 to 1.
        share: f64,
    },
    /// A name that several communities of one cell have.
    OneName {
        /// The cell.
        cell: String,
        /// The name.
        name: Comm,
        /// The thread ids of each community with that name; the first community has the subcell of that name.
        communities: Vec<Vec<u32>>,
        /// Communities besides the first that share its subcell, because most of their threads have that name.
        merged: usize,
    },
    /// No prefix takes threads of a community and no others, so the whole community stays with the catch-all.
    CommunityRefused {
        /// The cell.
        cell: String,
        /// Its names, escaped for a terminal.
        threads: String,
        /// Its share of the cell's samples, from 0 to 1.
        share: f64,
        /// A name that its prefixes would take as well; `None` if no part of its names is UTF-8.
        takes: Option<Comm>,
        /// The thread with that name, if known.
        whose: Option<ThreadRef>,
    },
    /// A part of a community stays with the catch-all.
    LeftOut {
        /// The cell.
        cell: String,
        /// The community's subcell.
        subcell: String,
        /// The names, escaped for a terminal.
        names: Vec<String>,
        /// Their share of the cell's samples, from 0 to 1.
        share: f64,
        /// A thread whose name has one of them as a prefix, if known.
        whose: Option<ThreadRef>,
    },
    /// Threads with too few samples go to a community's subcell, because no prefix separates them.
    TakenAlong {
        /// The cell.
        cell: String,
        /// The community's subcell.
        subcell: String,
        /// The names, escaped for a terminal.
        names: Vec<String>,
    },
    /// Two communities have one subcell, because there are more communities than subcells.
    Merged {
        /// The cell.
        cell: String,
        /// The names of one, escaped for a terminal.
        one: String,
        /// Those of the other.
        other: String,
        /// The part of the accesses that the cell's communities share which this loses, from 0 to 1.
        loss: f64,
    },
    /// There are more communities than subcells; these stay with the catch-all.
    TooManyCommunities {
        /// The cell.
        cell: String,
        /// The names of each, escaped for a terminal.
        communities: Vec<String>,
        /// The part of the accesses that the cell's communities share which this loses, from 0 to 1.
        loss: f64,
    },
    /// Threads without a verdict.
    Unknown {
        /// The cell.
        cell: String,
        /// How many.
        threads: usize,
        /// Their share of the cell's samples, from 0 to 1.
        share: f64,
        /// Why.
        why: Unknown,
    },
    /// More cgroups need their own subcells than fit; these have the general ones.
    TooManySpecs {
        /// The cell.
        cell: String,
        /// The number of cgroups without their own subcells.
        cgroups: usize,
    },
    /// scx_layered takes fewer layers or expressions than needed.
    TooManyLayers {
        /// The names of those that are left out, the least valuable first.
        left_out: Vec<String>,
    },
    /// Layers that have `CgroupContains` where there was no room for `CgroupRegex`, which scx_layered may not find.
    UnsureLayers {
        /// Their names.
        layers: Vec<String>,
    },
    /// Layers that match communities by their processes, cgroups or threads, for this host.
    ThisHost {
        /// Their names.
        layers: Vec<String>,
        /// Those that have process ids.
        of_processes: Vec<String>,
        /// Those that have thread ids.
        of_threads: Vec<String>,
    },
    /// A hint of threads of several communities. A scheduler matches it completely, so no layer has it.
    HintOfSeveral {
        /// The value.
        hint: u64,
        /// How many communities.
        communities: usize,
        /// The part of all samples that its threads in communities have, from 0 to 1.
        share: f64,
    },
    /// A hint that schedulers ignore.
    HintAboveLimit {
        /// The value.
        hint: u64,
        /// The part of all samples that its threads in communities have, from 0 to 1.
        share: f64,
    },
    /// There were more names than can be distinguished.
    TooManyNames {
        /// The cell.
        cell: String,
        /// The share of the cell's samples without a known name, from 0 to 1.
        share: f64,
    },
    /// Threads of two cells share memory, but have different CPUs.
    AcrossCells {
        /// The cell with fewer possible misses, and the other one.
        cells: [CellName; 2],
        /// The part of the possible misses of the first that one cache for both would avoid, from 0 to 1.
        part: f64,
        /// How both become one cell.
        one_cell: OneCell,
    },
    /// The `--cell`s make the configuration worse than it would be without them.
    CellsCost {
        /// The part of the avoidable misses between any two threads of the host that the configuration avoids, from 0 to 1.
        with: f64,
        /// The same without the `--cell`s.
        without: f64,
    },
    /// More pairs of cells share memory than notes are written.
    MoreAcrossCells {
        /// How many more.
        pairs: usize,
    },
    /// Threads of a community share with others at one time than at another.
    PartnersChange {
        /// The cell.
        cell: String,
        /// The names of the community, escaped for a terminal.
        threads: String,
        /// When they changed, in seconds after the first sample; `None` for several times.
        at: Option<f64>,
        /// How much two moments have in common, relative to neighbouring ones, from 0 to 1.
        constancy: f64,
        /// The community is that of most of the run.
        is_mostly: bool,
    },
    /// A community shares only for a part of the run.
    OnlyThen {
        /// The cell.
        cell: String,
        /// The names of the community, escaped for a terminal.
        threads: String,
        /// From then on, in seconds after the first sample.
        from: f64,
        /// Until then.
        to: f64,
        /// In this part of the run, from 0 to 1.
        busy: f64,
    },
    /// More communities change than notes are written.
    MoreChange {
        /// How many more.
        communities: usize,
    },
    /// Subcells are left out, because scx_mitosis would exit with "Not enough CPUs" on a host of this size.
    FewCpus {
        /// CPUs of the host.
        target_cpus: usize,
        /// Cells with samples: one for each matched cgroup and the root's.
        cells: usize,
        /// The smallest number of CPUs of a cell.
        share: usize,
        /// The subcells that are left out, the least valuable, by their cells.
        left_out: Vec<(String, Vec<String>)>,
    },
    /// Groups are together in subcells that fit the last-level caches of the host.
    Aligned(AlignedCell),
    /// Groups that are not in the configuration, because the target host has too few CPUs.
    LeftOutOfHost {
        /// CPUs of the host.
        target_cpus: usize,
        /// Cells of the host, the root's too.
        cells: usize,
        /// Subcells of the cell that has most.
        subcells: usize,
        /// The subcells that are left out, the least valuable, by their cells. A cell without any is left out itself.
        left_out: Vec<(String, Vec<String>)>,
    },
}

/// A thread that keeps others out of a subcell by its name, which its program chose.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadRef {
    /// Its process.
    pub pid: u32,
    /// Its thread id.
    pub tid: u32,
    /// Its name.
    pub comm: Comm,
    /// The name of its process's first thread, if that was sampled.
    pub process: Option<Comm>,
    /// The path of its cgroup.
    pub cgroup: Option<Arc<[u8]>>,
    /// The user that it runs as, if the process still exists.
    pub uid: Option<u32>,
}

impl fmt::Display for ThreadRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, tid, comm, process, cgroup, uid } = self;
        write!(f, "\"{comm}\" is thread {tid} of process {pid}")?;
        if let Some(process) = process {
            write!(f, " (\"{process}\")")?;
        }
        if let Some(uid) = uid {
            write!(f, ", uid {uid}")?;
        }
        match cgroup {
            Some(cgroup) => {
                write!(f, ", in cgroup {}: --cell keeps a cgroup that is not trusted apart", printable(cgroup))
            }
            None => Ok(()),
        }
    }
}

impl Note {
    /// True if the configuration leaves out some of the groups. Then the groups are always shown.
    #[must_use]
    pub fn leaves_out(&self) -> bool {
        matches!(self, Self::LeftOutOfHost { .. })
    }

    /// The thread with a name that gets in the way of others, if the note is about that.
    pub fn thread_mut(&mut self) -> Option<&mut ThreadRef> {
        match self {
            Self::NotDescribable { whose, .. } | Self::CommunityRefused { whose, .. } | Self::LeftOut { whose, .. } => {
                whose.as_mut()
            }
            _ => None,
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotDescribable { cell, class, share, takes: Some(takes), whose } => {
                write!(
                    f,
                    "{cell}: threads called \"{class}\" ({:.1}% of its samples) stay in the subcell \"rest\": a prefix for \
                     them would also take \"{takes}\"",
                    share.min(1.0) * 100.0
                )?;
                say_whose(f, whose.as_ref())
            }
            Self::NotDescribable { cell, class, share, takes: None, .. } => write!(
                f,
                "{cell}: threads called \"{class}\" ({:.1}% of its samples) stay in the subcell \"rest\": their name does \
                 not begin with UTF-8 text",
                share.min(1.0) * 100.0
            ),
            Self::TooManyClasses { cell, classes, share } => {
                let what = match classes.len() {
                    1 => "1 class of threads too many for its subcells stays".to_owned(),
                    count => format!("{count} classes of threads too many for its subcells stay"),
                };
                write!(f, "{cell}: {what} in \"rest\" ({:.1}% of its samples): {}", share.min(1.0) * 100.0, list(classes, ", "))
            }
            Self::OneName { cell, name, communities, merged } => {
                let count = communities.len();
                let tids = |tids: &Vec<u32>| list(&tids.iter().map(u32::to_string).collect::<Vec<_>>(), " ");
                let tids = communities.iter().map(tids).collect::<Vec<_>>().join("; ");
                write!(f, "{cell}: {count} communities have threads called \"{name}\": names cannot tell them apart (tids {tids}); ")?;
                f.write_str(match count - 1 - merged.min(&(count - 1)) {
                    0 => "they have one subcell",
                    1 => "the threads of the last go to the subcell of the first",
                    _ => "these threads go to the subcell of the first",
                })?;
                f.write_str(". Separate processes can have a cgroup and a --cell each; scx_layered can also match task hints")
            }
            Self::CommunityRefused { cell, threads, share, takes, whose } => {
                let share = share.min(1.0) * 100.0;
                write!(f, "{cell}: {threads} share memory ({share:.1}% of its samples) but stay in \"rest\": ")?;
                match takes {
                    Some(takes) => write!(f, "a prefix for them would also take \"{takes}\"")?,
                    None => f.write_str("their names do not begin with UTF-8 text")?,
                }
                say_whose(f, whose.as_ref())
            }
            Self::LeftOut { cell, subcell, names, share, whose } => {
                write!(
                    f,
                    "{cell}: of the threads that share memory with \"{subcell}\", {} stay in \"rest\" ({:.1}% of its \
                     samples): no prefix is left that takes only them",
                    list(names, ", "),
                    share.min(1.0) * 100.0
                )?;
                say_whose(f, whose.as_ref())
            }
            Self::TakenAlong { cell, subcell, names } => {
                let (go, them) = if names.len() == 1 { ("goes", "it") } else { ("go", "them") };
                write!(f, "{cell}: {} {go} to the subcell \"{subcell}\" too, because no prefix ", list(names, ", "))?;
                write!(f, "separates {them}; there are too few samples of {them} to judge")
            }
            Self::Merged { cell, one, other, loss } => write!(
                f,
                "{cell}: {one} and {other} share memory with each other too and have one subcell, as there are not \
                 enough ({:.1}% of the locality lost)",
                loss * 100.0
            ),
            Self::TooManyCommunities { cell, communities, loss } => write!(
                f,
                "{cell}: there are not enough subcells for all that share memory; in \"rest\" stay ({:.1}% of the \
                 locality lost): {}",
                loss * 100.0,
                list(communities, "; ")
            ),
            Self::ByName { cell, groups, by_sharing, by_name } => {
                let (by_name, by_sharing) = (by_name * 100.0, by_sharing * 100.0);
                write!(f, "{cell}: grouping by name avoids {by_name:.0}% of the avoidable misses and grouping by shared ")?;
                write!(f, "memory {by_sharing:.0}%, so ")?;
                match groups.len() {
                    0 => f.write_str("this cell is grouped by name"),
                    _ => write!(f, "these threads are grouped by name: {}", list(groups, "; ")),
                }
            }
            Self::Strays { cell, subcell, threads } => {
                let ids: Vec<String> = threads.iter().map(ToString::to_string).collect();
                let (those, share) =
                    if threads.len() == 1 { ("thread", "shares") } else { ("threads", "share") };
                write!(
                    f,
                    "{cell}/{subcell} takes {those} {} by name, which {share} memory with no other thread of its cell",
                    list(&ids, ", ")
                )
            }
            Self::Unknown { cell, threads, share, why } => {
                let (noun, verb, each) =
                    if *threads == 1 { ("thread", "has", "") } else { ("threads", "have", " each") };
                let share = share.min(1.0) * 100.0;
                write!(f, "{cell}: {threads} {noun} ({share:.1}% of the cell's samples) ")?;
                let stay = "they stay in \"rest\" unless a subcell's prefix matches their names";
                match why {
                    Unknown::TooFewSamples => write!(
                        f,
                        "{verb} fewer than {MIN_ACCESSES} accesses{each}, too few to judge; {stay}. Sample longer (-t) or more \
                         often (--freq 1000; of pebs and ibs --rate)"
                    ),
                    Unknown::TooFewEvents => write!(
                        f,
                        "{verb} fewer than {MIN_ACCESSES} accesses{each}, too few to judge; {stay}. Sample longer (-t)"
                    ),
                    Unknown::FirstTouches => write!(f, "cannot be judged: {why}; they are told apart by name only"),
                    Unknown::TooFewMisses => write!(
                        f,
                        "{verb} too few possible misses{each} to judge; names decide. Sample longer (-t)"
                    ),
                    _ => write!(f, "cannot be judged: {why}; {stay}"),
                }
            }
            _ => self.fmt_limit(f),
        }
    }
}

impl Note {
    /// Displays what cells share, and what the limits of the schedulers and of the host left out; nothing for other notes, which [`fmt::Display`]
    /// handles.
    fn fmt_limit(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManySpecs { cell, cgroups } => {
                write!(f, "{cell}: {cgroups} of its cgroups would need subcells of their own and have the general ones: ")?;
                write!(f, "scx_mitosis has {} cells", super::mitosis::MAX_CELLS)
            }
            Self::TooManyLayers { left_out } => {
                write!(f, "scx_layered takes {MAX_LAYERS} layers and {MAX_REGEXES} uses of CgroupRegex: ")?;
                write!(f, "{} left out, the least valuable first: {}", left_out.len(), list(left_out, ", "))
            }
            Self::UnsureLayers { layers } => {
                write!(f, "scx_layered takes {MAX_REGEXES} uses of CgroupRegex, so these layers have CgroupContains, which it does not ")?;
                write!(f, "find on every boot; their threads then stay with the rest of the cell: {}", list(layers, ", "))
            }
            Self::ThisHost { layers, of_processes, of_threads } => {
                write!(f, "names do not tell these apart, so they have layers for this host: {}", list(layers, ", "))?;
                for (id, all, of) in [("process", "processes", of_processes), ("thread", "threads", of_threads)] {
                    if !of.is_empty() {
                        write!(f, "; those with {id} ids hold until the {all} end: {}", list(of, ", "))?;
                    }
                }
                Ok(())
            }
            Self::HintOfSeveral { hint, communities, share } => write!(
                f,
                "hint {hint} ({:.1}% of the samples) is of threads in {communities} communities; a layer takes a hint whole, so \
                 none has it and the names of the threads decide",
                share * 100.0
            ),
            Self::HintAboveLimit { hint, share } => write!(
                f,
                "hint {hint} ({:.1}% of the samples) is above {MAX_HINT}, the largest that scx_layered takes; the names of its \
                 threads decide",
                share * 100.0
            ),
            Self::TooManyNames { cell, share } => write!(
                f,
                "{cell}: {:.1}% of its samples are of threads whose names were too many to be counted one by one; a \
                 prefix may take some of them",
                share.min(1.0) * 100.0
            ),
            Self::AcrossCells { cells: [smaller, larger], part, one_cell } => {
                let part = part * 100.0;
                write!(f, "{smaller} and {larger} share memory: one cache for both would avoid {part:.1}% of the possible ")?;
                write!(f, "misses of {smaller}, but each cell has CPUs of its own. If they need not be apart: {one_cell}")
            }
            Self::CellsCost { with, without } => write!(
                f,
                "with these --cell the locality of the whole host is {:.1} %, and without them {:.1} %: cells divide the CPUs, and \
                 threads of different cells share none",
                with * 100.0,
                without * 100.0
            ),
            Self::MoreAcrossCells { pairs: 1 } => f.write_str("1 more pair of cells shares memory: --report lists it"),
            Self::MoreAcrossCells { pairs } => {
                write!(f, "{pairs} more pairs of cells share memory: --report lists those that share most")
            }
            Self::PartnersChange { cell, threads, at: Some(at), is_mostly, .. } => {
                write!(f, "{cell}: {threads} share memory with other threads before {at:.1} s after the first sample than ")?;
                f.write_str(if *is_mostly {
                    "after it; their community is that of most of the run"
                } else {
                    "after it, and their community is a mixture of both. Sample the time that counts"
                })
            }
            Self::PartnersChange { cell, threads, at: None, constancy, .. } => write!(
                f,
                "{cell}: the threads with which {threads} share memory change several times (what two moments have in common is \
                 {:.0}% of what neighbouring ones have), and their community is a mixture",
                constancy * 100.0
            ),
            Self::OnlyThen { cell, threads, from, to, busy } => write!(
                f,
                "{cell}: {threads} share memory in {:.0}% of the run only, between {from:.1} and {to:.1} s after the first sample",
                busy * 100.0
            ),
            Self::MoreChange { communities: 1 } => f.write_str("1 more community is not the same all the time: --report lists it"),
            Self::MoreChange { communities } => {
                write!(f, "{communities} more communities are not the same all the time: --report lists them")
            }
            Self::FewCpus { target_cpus, cells, share, left_out } => {
                let cpus = |count: &usize| if *count == 1 { "1 CPU".to_owned() } else { format!("{count} CPUs") };
                write!(f, "scx_mitosis needs a CPU for every subcell, and ")?;
                match cells {
                    1 => write!(f, "the root's cell has {}: ", cpus(share))?,
                    _ => write!(f, "{cells} cells (with the root's) on a host of {target_cpus} have {} each: ", cpus(share))?,
                }
                let of_cell = |(cell, subcells): &(String, Vec<String>)| {
                    let subcells: Vec<String> = subcells.iter().map(|subcell| format!("\"{subcell}\"")).collect();
                    format!("{cell} is without {}", list(&subcells, ", "))
                };
                f.write_str(&list(&left_out.iter().map(of_cell).collect::<Vec<_>>(), "; "))?;
                f.write_str(" (--target-cpus names a larger host")?;
                f.write_str(if *cells > 1 { "; fewer --cell make fewer cells)" } else { ")" })
            }
            Self::LeftOutOfHost { target_cpus, cells, subcells, left_out } => {
                let of_cell = |(cell, subcells): &(String, Vec<String>)| {
                    let subcells: Vec<String> = subcells.iter().map(|subcell| format!("{cell}/{subcell}")).collect();
                    if subcells.is_empty() {
                        format!("the cell {cell}")
                    } else {
                        list(&subcells, ", ")
                    }
                };
                let cpus = if *target_cpus == 1 { "1 CPU".to_owned() } else { format!("{target_cpus} CPUs") };
                let needed = cells.saturating_mul(*subcells);
                let large = needed.max(64).checked_next_power_of_two().unwrap_or(needed);
                write!(f, "this host has {cpus}, so the configuration is without ")?;
                f.write_str(&first(NAMED, left_out.iter().map(of_cell), ", "))?;
                write!(f, ": scx_mitosis needs a CPU for each subcell ({needed} for all that was found")?;
                if *cells > 1 {
                    write!(f, ", as each of the {cells} cells gets as many CPUs as the one with {subcells} subcells")?;
                }
                write!(
                    f,
                    "). For a host of {large} CPUs: --target-cpus {large}; for scx_layered, which needs no CPU for each: --target \
                     layered"
                )
            }
            Self::Aligned(cell) => write!(f, "{cell}"),
            Self::ByName { .. }
            | Self::Strays { .. }
            | Self::NotDescribable { .. }
            | Self::TooManyClasses { .. }
            | Self::OneName { .. }
            | Self::CommunityRefused { .. }
            | Self::LeftOut { .. }
            | Self::TakenAlong { .. }
            | Self::Merged { .. }
            | Self::TooManyCommunities { .. }
            | Self::Unknown { .. } => Ok(()),
        }
    }
}

fn say_whose(f: &mut fmt::Formatter<'_>, whose: Option<&ThreadRef>) -> fmt::Result {
    whose.map_or(Ok(()), |whose| write!(f, "; {whose}"))
}

/// Cells of a list of what is left out.
const NAMED: usize = 4;

/// The first eight of a list.
fn list(items: &[String], between: &str) -> String {
    first(8, items.iter(), between)
}

/// The first entries of a list, and the number of further ones.
pub(super) fn first(most: usize, items: impl ExactSizeIterator<Item = impl ToString>, between: &str) -> String {
    let more = items.len().saturating_sub(most);
    let shown: Vec<String> = items.take(most).map(|item| item.to_string()).collect();
    shown.join(between) + &if more > 0 { format!(" and {more} more") } else { String::new() }
}
