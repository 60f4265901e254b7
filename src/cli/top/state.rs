//! The state of the display: a pure model, which keys change and from which the screen is drawn.

use std::time::Duration;

use super::table::Sort;
use crate::session::By;

/// Intervals between two frames, in ms.
const INTERVALS: [u64; 9] = [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];

/// What a view is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub(super) enum View {
    /// Threads that share memory
    #[default]
    Groups,
    /// Accesses of each thread
    Threads,
    /// Accesses of each process, cgroup or cell
    Processes,
    /// Cache lines that threads share
    Lines,
    /// What the scheduler does
    Scheduling,
    /// CPUs, caches and the sched_ext scheduler
    Cpus,
    /// What was lost, and what the capture costs
    Losses,
}

/// What a row of a view is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// All rows of the view are of one kind.
    Only,
    /// Accesses or scheduling of these.
    By(By),
    /// Dispatch queues.
    Dsqs,
    /// Last-level caches.
    Caches,
    /// The scheduler's own figures.
    Figures,
}

impl View {
    pub(super) const ALL: [Self; 7] =
        [Self::Groups, Self::Threads, Self::Processes, Self::Lines, Self::Scheduling, Self::Cpus, Self::Losses];

    /// The views; one of them is shown at a time.
    pub(super) fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Groups | Self::Lines | Self::Losses => &[Kind::Only],
            Self::Threads => &[Kind::By(By::Thread)],
            Self::Processes => &[Kind::By(By::Process), Kind::By(By::Cgroup), Kind::By(By::Cell)],
            Self::Scheduling => &[
                Kind::By(By::Thread),
                Kind::By(By::Process),
                Kind::By(By::Cgroup),
                Kind::By(By::Cell),
                Kind::By(By::Cpu),
                Kind::By(By::Llc),
                Kind::Dsqs,
            ],
            Self::Cpus => &[Kind::By(By::Cpu), Kind::Caches, Kind::Figures],
        }
    }

    /// Its name beside its number.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Groups => "groups",
            Self::Threads => "threads",
            Self::Processes => "processes",
            Self::Lines => "lines",
            Self::Scheduling => "scheduling",
            Self::Cpus => "CPUs",
            Self::Losses => "losses",
        }
    }
}

impl Kind {
    /// The word for it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Only => "",
            Self::By(By::Cpu) => "CPU",
            Self::By(By::Thread) => "thread",
            Self::By(By::Process) => "process",
            Self::By(By::Cgroup) => "cgroup",
            Self::By(By::Cell) => "cell",
            Self::By(By::Llc) => "LLC",
            Self::By(By::Node) => "node",
            Self::Dsqs => "dispatch queue",
            Self::Caches => "last-level cache",
            Self::Figures => "figures of the scheduler",
        }
    }
}

/// The head of the column that says what a line is about.
pub(super) fn head(by: By) -> &'static str {
    match by {
        By::Cpu => "CPU",
        By::Thread => "THREAD",
        By::Process => "PROCESS",
        By::Cgroup => "CGROUP",
        By::Cell => "CELL",
        By::Llc => "LLC",
        By::Node => "NODE",
    }
}

/// The state of a view while another one is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OfView {
    /// A place in [`View::kinds`].
    pub(super) kind: usize,
    pub(super) sort: Sort,
    /// The key of the selected row, and its last position.
    pub(super) selected: Option<String>,
    pub(super) at: usize,
    /// The first row that is shown.
    pub(super) first: usize,
}

/// The question of the prompt at the foot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Filter,
    /// The file of a configuration to write.
    Write,
    /// The file of a report to write.
    Report,
    /// The file of a configuration to load.
    Load,
}

/// A line at the foot in which the user types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) asked: Asked,
    pub(super) text: String,
    /// The file exists, and Enter replaces it.
    pub(super) replaces: bool,
}

/// What covers the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Over {
    #[default]
    Nothing,
    /// The keys, from this line on, and the details below them, to which the user goes back.
    Help(usize, Option<(String, usize)>),
    /// The details of a row, by its key, from this line on.
    Details(String, usize),
}

impl Over {
    /// The row whose details are open, also below the help.
    pub(super) fn details(&self) -> Option<&str> {
        match self {
            Self::Details(key, _) | Self::Help(_, Some((key, _))) => Some(key),
            Self::Nothing | Self::Help(_, None) => None,
        }
    }
}

/// The model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub(super) view: View,
    views: [OfView; 7],
    pub(super) filter: String,
    pub(super) is_frozen: bool,
    /// Figures since the start, not of the last window.
    pub(super) is_total: bool,
    pub(super) interval: Duration,
    pub(super) prompt: Option<Prompt>,
    pub(super) over: Over,
    /// Why the scheduler's events could not be switched on.
    pub(super) refused: Option<String>,
    /// The message at the foot until the next key.
    pub(super) message: Option<String>,
    /// What the worker does now.
    pub(super) under_way: Option<String>,
    /// The code that the row with open details runs, if the user asked for it: a table.
    pub(super) code: Option<String>,
}

impl State {
    pub(super) fn new(view: View, interval: Duration) -> Self {
        Self {
            view,
            views: Default::default(),
            filter: String::new(),
            is_frozen: false,
            is_total: false,
            interval,
            prompt: None,
            over: Over::Nothing,
            message: None,
            under_way: None,
            refused: None,
            code: None,
        }
    }

    /// What the shown view remembers.
    pub(super) fn of_view(&self) -> &OfView {
        &self.views[self.view as usize]
    }

    /// The same to change it.
    pub(super) fn of_view_mut(&mut self) -> &mut OfView {
        &mut self.views[self.view as usize]
    }

    /// What a row is about.
    pub(super) fn kind(&self) -> Kind {
        let kinds = self.view.kinds();
        kinds.get(self.of_view().kind).or(kinds.first()).copied().unwrap_or(Kind::Only)
    }

    /// True while the scheduler's events are needed.
    pub(super) fn needs_scheduling(&self) -> bool {
        self.view == View::Scheduling
    }

    /// The lines of accesses and scheduling that are shown. Details are about threads too.
    pub(super) fn lines(&self) -> Vec<By> {
        let mut by = Vec::new();
        if let Kind::By(kind) = self.kind() {
            by.push(kind);
        }
        // The threads of a cell are counted apart.
        let needs_threads = self.over.details().is_some() || by == [By::Cell];
        if needs_threads && !by.contains(&By::Thread) {
            by.push(By::Thread);
        }
        by
    }

    /// The position of the selected row among rows with these keys: that of its key, else its last position.
    pub(super) fn selected<'a>(&self, mut keys: impl ExactSizeIterator<Item = &'a str>) -> usize {
        let of = self.of_view();
        let last = keys.len().saturating_sub(1);
        let found = of.selected.as_deref().and_then(|selected| keys.position(|key| key == selected));
        found.unwrap_or(of.at.min(last))
    }

    /// The next longer or shorter interval.
    pub(super) fn change_interval(&mut self, is_longer: bool) {
        let now = u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX);
        let next = if is_longer {
            INTERVALS.iter().find(|&&ms| ms > now)
        } else {
            INTERVALS.iter().rev().find(|&&ms| ms < now)
        };
        self.interval = next.map_or(self.interval, |&ms| Duration::from_millis(ms));
    }
}

/// The first row that is shown, so that the selected one is among `height` rows of `count`, and as it was if it can be.
pub(super) fn first_shown(before: usize, at: usize, height: usize, count: usize) -> usize {
    let height = height.max(1);
    let most = count.saturating_sub(height);
    before.max((at + 1).saturating_sub(height)).min(at).min(most)
}
