//! The surroundings of a live capture: the running scheduler and its figures, memory bandwidth and L3 occupancy by LLC, and how
//! long tasks wait for CPUs, memory and I/O.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;
use serde::Serialize;

use crate::host::hierarchy::Mount;
use crate::host::psi::{self, Pressures};
use crate::host::resctrl::{self, Figured, MonitoringGroup, NoFigure, Resctrl};
use crate::host::scx_stats::{socket, Numbers, SchedExt, StatsClient};
use crate::host::{priority, topology, Roots};

/// How long the scheduler may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The least time between two reads.
const LEAST: Duration = Duration::from_millis(500);
/// The number of cgroups whose pressure is read each time.
const MAX_CGROUPS: usize = 256;
/// The number of cells that are watched; the hardware has some hundred ids for groups, which other programs need too.
const MAX_CELLS: usize = 32;

/// The surroundings of a capture at a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AroundNow {
    /// The scheduler; `None` if the kernel has no sched_ext.
    pub scheduler: Option<SchedulerNow>,
    /// The last-level caches, by their lowest CPU, if resctrl shows them.
    pub caches: BTreeMap<u32, CacheNow>,
    /// The same of the cells that are watched, all caches together.
    pub cells: BTreeMap<String, CacheNow>,
    /// Why there are no figures of caches, or of some cells.
    pub no_caches: Option<String>,
    /// The pressure of the host; `None` if it was not read.
    pub pressure: Option<Pressures>,
    /// The pressure of cgroups, by their path.
    pub cgroups: BTreeMap<String, Pressures>,
    /// Cgroups whose pressure was not read, as there are more than 256.
    pub cgroups_left_out: usize,
}

/// The sched_ext scheduler.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SchedulerNow {
    /// The kernel's facts about it.
    #[serde(flatten)]
    pub kernel: SchedExt,
    /// Its own latest figures, by name.
    pub figures: Vec<(String, f64)>,
    /// The number of figures that were left out: beyond 4,096, nested too deep, or with too long a name.
    pub left_out: usize,
    /// Why there are no figures.
    pub no_figures: Option<String>,
}

/// A last-level cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CacheNow {
    /// Bytes that are in use.
    pub occupancy: Option<u64>,
    /// Bytes a second from and to memory.
    pub total: Option<f64>,
    /// The part of these bytes in memory of the cache's own node.
    pub local: Option<f64>,
    /// Why one of these is missing; `None` for rates at the first read.
    pub lack: Option<NoFigure>,
}

impl CacheNow {
    fn new(figures: &resctrl::Figures, rates: Option<resctrl::Rates>) -> Self {
        let rates = rates.unwrap_or_default();
        let lack = figures.occupancy.err().or(figures.total.err()).or(figures.local.err());
        Self { occupancy: figures.occupancy.ok(), total: rates.total, local: rates.local, lack }
    }

    /// The sum with another one; a value that one of them lacks is missing in the sum.
    fn plus(self, other: Self) -> Self {
        let add = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        Self {
            occupancy: self.occupancy.zip(other.occupancy).map(|(a, b)| a.saturating_add(b)),
            total: add(self.total, other.total),
            local: add(self.local, other.local),
            lack: self.lack.or(other.lack),
        }
    }
}

/// Reads the surroundings.
#[derive(Debug)]
pub struct Around {
    roots: Roots,
    resctrl: Result<Resctrl, String>,
    /// The lowest CPU of each cache, by its id.
    caches: BTreeMap<u32, u32>,
    before: Option<Figured>,
    /// The group of each cell, the threads in it, and its figures before.
    cells: BTreeMap<String, Watched>,
    /// Why a cell has no figures, or not those of all of its threads.
    no_cell: Option<String>,
    /// The time and the result of the last read.
    last: Option<(Instant, AroundNow)>,
    mount: Option<Mount>,
    figures: Arc<Mutex<Figures>>,
    ask: Option<SyncSender<()>>,
}

/// A cell whose threads are counted separately.
#[derive(Debug)]
struct Watched {
    group: MonitoringGroup,
    /// The threads that were put into it, or cannot be.
    tids: FxHashSet<u32>,
    /// Threads that cannot be put into it, because another program counts them or they are in another control group.
    left_out: usize,
    before: Option<Figured>,
}

/// The last answer of a scheduler.
#[derive(Debug, Default)]
struct Figures {
    numbers: Numbers,
    why: Option<String>,
}

impl Around {
    /// Finds the figures that exist below these directories.
    #[must_use]
    pub fn new(roots: &Roots) -> Self {
        let cpus = topology::online_cpus(roots).unwrap_or_default();
        Self {
            roots: roots.clone(),
            resctrl: Resctrl::find(roots).map_err(|why| why.to_string()),
            caches: resctrl::caches(roots, &cpus),
            before: None,
            cells: BTreeMap::new(),
            no_cell: None,
            last: None,
            mount: Mount::find(roots).ok(),
            figures: Arc::default(),
            ask: None,
        }
    }

    /// From now on, counts the use of caches and memory by the threads of these cells and by threads that these create later, each
    /// cell in a monitoring group of resctrl. Groups of other cells are removed. Threads that another program counts stay in its
    /// group.
    pub fn watch_cells(&mut self, cells: &BTreeMap<String, Vec<u32>>) {
        let Ok(resctrl) = &self.resctrl else { return };
        self.cells.retain(|name, _| cells.contains_key(name));
        self.no_cell = (cells.len() > MAX_CELLS).then(|| format!("only {MAX_CELLS} cells have figures of their own"));
        for (name, tids) in cells.iter().take(MAX_CELLS) {
            if !self.cells.contains_key(name) {
                match resctrl.make_group() {
                    Ok(group) => {
                        self.cells.insert(
                            name.clone(),
                            Watched { group, tids: FxHashSet::default(), left_out: 0, before: None },
                        );
                    }
                    Err(why) => {
                        self.no_cell = Some(why.to_string());
                        return;
                    }
                }
            }
            let Some(watched) = self.cells.get_mut(name) else { continue };
            let new: Vec<u32> = tids.iter().copied().filter(|tid| !watched.tids.contains(tid)).collect();
            watched.tids.retain(|tid| tids.contains(tid));
            if new.is_empty() {
                continue;
            }
            match watched.group.add(&new) {
                Ok(added) => {
                    watched.left_out += added.of_others + added.in_other_control_group + added.refused;
                    watched.tids.extend(new);
                }
                // They are tried again.
                Err(why) => self.no_cell = Some(why.to_string()),
            }
        }
        let left_out: usize = self.cells.values().map(|watched| watched.left_out).sum();
        if left_out > 0 && self.no_cell.is_none() {
            self.no_cell = Some(format!(
                "{left_out} threads of cells are in monitoring or control groups of others: cells without other threads have no figures"
            ));
        }
    }

    /// Reads everything; of cgroups only these paths, in the form that samples have. Within half a second it returns the same
    /// result again: to read costs interrupts on the CPUs whose caches are counted, and a rate needs time between two reads.
    pub fn look<'a>(&mut self, cgroups: impl Iterator<Item = &'a str>) -> AroundNow {
        if let Some((_, last)) = self.last.as_ref().filter(|(at, _)| at.elapsed() < LEAST) {
            return last.clone();
        }
        let now = self.look_again(cgroups);
        self.last = Some((Instant::now(), now.clone()));
        now
    }

    fn look_again<'a>(&mut self, cgroups: impl Iterator<Item = &'a str>) -> AroundNow {
        let (caches, no_caches) = self.caches();
        let cells = self.cells.iter_mut().map(|(name, watched)| {
            let found = watched.group.figures();
            let rates = watched.before.as_ref().map(|before| found.rates_since(before)).unwrap_or_default();
            let each = found.caches.iter().map(|(id, figures)| CacheNow::new(figures, rates.get(id).copied()));
            let sum = each.reduce(CacheNow::plus).unwrap_or_default();
            watched.before = Some(found);
            // What was not counted is not 0.
            let is_counted = watched.tids.len() > watched.left_out;
            (name.clone(), if is_counted { sum } else { CacheNow::default() })
        });
        let cells = cells.collect();
        let mut cgroups = cgroups;
        let pressures = |mount: &Mount| {
            let of = cgroups.by_ref().take(MAX_CGROUPS);
            of.map(|path| (path.to_owned(), psi::of_cgroup(mount, path.as_bytes()))).collect()
        };
        let pressures = self.mount.as_ref().map(pressures);
        // Without a hierarchy none is read, which is no bound of ours.
        let cgroups_left_out = if pressures.is_some() { cgroups.count() } else { 0 };
        AroundNow {
            scheduler: self.scheduler(),
            caches,
            cells,
            no_caches: no_caches.or_else(|| self.no_cell.clone()),
            pressure: Some(psi::of_host(&self.roots)),
            cgroups: pressures.unwrap_or_default(),
            cgroups_left_out,
        }
    }

    fn caches(&mut self) -> (BTreeMap<u32, CacheNow>, Option<String>) {
        let found = match &self.resctrl {
            Ok(resctrl) => resctrl.of_host(),
            Err(why) => return (BTreeMap::new(), Some(why.clone())),
        };
        let rates = self.before.as_ref().map(|before| found.rates_since(before)).unwrap_or_default();
        let caches = found
            .caches
            .iter()
            .filter_map(|(id, figures)| Some((*self.caches.get(id)?, CacheNow::new(figures, rates.get(id).copied()))));
        let caches = caches.collect();
        self.before = Some(found);
        (caches, None)
    }

    /// The scheduler; its figures answer the previous request, because the scheduler may take long to answer.
    fn scheduler(&mut self) -> Option<SchedulerNow> {
        let kernel = SchedExt::read(&self.roots)?;
        if kernel.name.is_none() {
            *self.figures.lock().unwrap_or_else(PoisonError::into_inner) = Figures::default();
            return Some(SchedulerNow { kernel, ..SchedulerNow::default() });
        }
        let ask = self.ask.take().or_else(|| asker(socket(&self.roots), Arc::clone(&self.figures)));
        // A question that waits already is as good.
        self.ask = ask.filter(|ask| !matches!(ask.try_send(()), Err(TrySendError::Disconnected(()))));
        let figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        Some(SchedulerNow {
            kernel,
            figures: figures.numbers.values.clone(),
            left_out: figures.numbers.left_out,
            no_figures: figures.why.clone(),
        })
    }
}

/// A thread that requests the scheduler's figures on each message, and ends with the channel.
fn asker(path: PathBuf, figures: Arc<Mutex<Figures>>) -> Option<SyncSender<()>> {
    let (tell, told): (SyncSender<()>, Receiver<()>) = sync_channel(1);
    let ask = move || {
        let mut client = None;
        while told.recv().is_ok() {
            let answer = StatsClient::ask(&mut client, &path, PATIENCE);
            let mut figures = figures.lock().unwrap_or_else(PoisonError::into_inner);
            *figures = match answer {
                Ok(numbers) => Figures { numbers, why: None },
                Err(why) => Figures { why: Some(why.to_string()), ..Figures::default() },
            };
        }
    };
    priority::spawn("scx-stats", ask).ok().map(|_| tell)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::time::Instant;

    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A synthetic host: CPUs 0-3 with an L3 for two each, resctrl, and a cgroup with pressure.
    fn host(dir: &Path) -> Roots {
        let cpus = dir.join("sys/devices/system/cpu");
        write(&cpus.join("online"), "0-3\n");
        for cpu in 0..4 {
            let cache = cpus.join(format!("cpu{cpu}/cache/index0"));
            let first = cpu / 2 * 2;
            let files = [("level", "3".to_owned()), ("type", "Unified".to_owned()), ("id", (7 + cpu / 2).to_string())];
            for (name, text) in files.into_iter().chain([("shared_cpu_list", format!("{first}-{}", first + 1))]) {
                write(&cache.join(name), &text);
            }
        }
        let r = dir.join("r");
        write(
            &dir.join("proc/self/mountinfo"),
            &format!(
                "1 1 0:1 / {} rw - resctrl none rw\n2 1 0:2 / {} rw - cgroup2 none rw\n",
                r.display(),
                dir.join("cg").display()
            ),
        );
        write(&dir.join("proc/self/cgroup"), "0::/\n");
        write(&r.join("info/L3_MON/mon_features"), "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n");
        fs::create_dir_all(r.join("mon_groups")).unwrap();
        write(&dir.join("cg/a.slice/cpu.pressure"), "some avg10=1.00 avg60=2.00 avg300=3.00 total=4\n");
        figures(&r, 5, 1000);
        Roots { proc: dir.join("proc"), sys: dir.join("sys"), files: dir.to_owned(), cgroup: Some(dir.join("cg")) }
    }

    /// Both caches of a group have these figures.
    fn figures(group: &Path, occupancy: u64, bytes: u64) {
        for id in [7, 8] {
            for (name, figure) in
                [("llc_occupancy", occupancy), ("mbm_total_bytes", bytes), ("mbm_local_bytes", bytes / 2)]
            {
                write(&group.join(format!("mon_data/mon_L3_{id:02}/{name}")), &figure.to_string());
            }
        }
    }

    #[test]
    fn of_many_cgroups_the_rest_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let mut around = Around::new(&host(dir.path()));
        let paths: Vec<String> = (0..300).map(|number| format!("/{number}")).collect();
        let seen = around.look(paths.iter().map(String::as_str));
        assert_eq!((seen.cgroups.len(), seen.cgroups_left_out), (MAX_CGROUPS, 300 - MAX_CGROUPS));
    }

    #[test]
    fn caches_have_rates_from_the_second_look_on() {
        let dir = tempfile::tempdir().unwrap();
        let roots = host(dir.path());
        let mut around = Around::new(&roots);
        let first = around.look(["/a.slice", "/none"].into_iter());
        assert_eq!(first.caches.keys().copied().collect::<Vec<_>>(), [0, 2]);
        assert_eq!((first.caches[&0].occupancy, first.caches[&0].total, first.caches[&2].lack), (Some(5), None, None));
        assert_eq!(first.cgroups["/a.slice"].cpu.as_ref().unwrap().some.total_us, 4);
        let first_again = first.clone();
        assert!(first.cgroups["/none"].cpu.is_err() && first.pressure.unwrap().cpu.is_err());
        assert_eq!((first.scheduler, first.no_caches), (None, None));
        figures(&dir.path().join("r"), 6, 3000);
        assert_eq!(around.look(std::iter::empty()), first_again);
        let second = around.look_again(std::iter::empty());
        assert!(second.caches[&2].total.is_some_and(|rate| rate > 0.0));
        assert!((second.caches[&2].total.unwrap() / second.caches[&2].local.unwrap() - 2.0).abs() < 1e-9);
        fs::remove_file(dir.path().join("proc/self/mountinfo")).unwrap();
        assert!(Around::new(&roots).look(std::iter::empty()).no_caches.unwrap().contains("not mounted"));
    }

    #[test]
    fn cells_have_groups_of_their_own_while_they_are_watched() {
        let dir = tempfile::tempdir().unwrap();
        let roots = host(dir.path());
        let groups =
            || fs::read_dir(dir.path().join("r/mon_groups")).unwrap().map(|it| it.unwrap().path()).collect::<Vec<_>>();
        let mut around = Around::new(&roots);
        around.watch_cells(&[("web".to_owned(), vec![70, 71])].into());
        let [group] = &groups()[..] else { panic!("{:?}", groups()) };
        // The kernel makes these files with the directory, and removes them with it.
        write(&group.join("tasks"), "");
        figures(group, 3, 100);
        around.watch_cells(&[("web".to_owned(), vec![70, 72])].into());
        assert_eq!(fs::read_to_string(group.join("tasks")).unwrap(), "70\n72\n", "what failed is tried again");
        around.watch_cells(&[("web".to_owned(), vec![70, 72])].into());
        assert_eq!(fs::read_to_string(group.join("tasks")).unwrap(), "70\n72\n", "each is moved once");
        let web = around.look_again(std::iter::empty()).cells["web"];
        assert_eq!((web.occupancy, web.total), (Some(6), None));
        figures(group, 3, 200);
        assert!(around.look_again(std::iter::empty()).cells["web"].total.is_some_and(|rate| rate > 0.0));
        fs::remove_dir_all(group.join("mon_data")).unwrap();
        fs::remove_file(group.join("tasks")).unwrap();
        around.watch_cells(&BTreeMap::new());
        assert!(groups().is_empty());
        let many = (0..=MAX_CELLS).map(|at| (format!("cell {at}"), Vec::new())).collect();
        around.watch_cells(&many);
        assert_eq!(groups().len(), MAX_CELLS);
        assert!(around.look_again(std::iter::empty()).no_caches.unwrap().contains("only 32"));
        drop(around);
        assert!(groups().is_empty());
    }

    #[test]
    fn the_scheduler_is_asked_aside_and_again_after_it_was_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let roots = host(dir.path());
        let own = dir.path().join("sys/kernel/sched_ext");
        write(&own.join("state"), "enabled\n");
        let mut around = Around::new(&roots);
        assert_eq!(around.look(std::iter::empty()).scheduler.unwrap().kernel.name, None);
        write(&own.join("root/ops"), "layered\n");
        let mut until = |what: &str, is_so: &dyn Fn(&SchedulerNow) -> bool| {
            let begin = Instant::now();
            loop {
                let now = around.look(std::iter::empty()).scheduler.unwrap();
                if is_so(&now) {
                    return;
                }
                assert!(begin.elapsed() < Duration::from_secs(60), "{what}: {now:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        until("nobody listens", &|now| now.no_figures.as_ref().is_some_and(|why| why.contains("no scheduler")));
        fs::create_dir_all(socket(&roots).parent().unwrap()).unwrap();
        for value in [1.0, 2.0] {
            let _ = fs::remove_file(socket(&roots));
            let listener = UnixListener::bind(socket(&roots)).unwrap();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                // Two answers, and then it ends.
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                for _ in 0..2 {
                    lines.next();
                    let _ = writeln!(stream, "{{\"errno\":0,\"args\":{{\"resp\":{{\"util\":{value:.1}}}}}}}");
                }
            });
            until("figures", &|now| now.figures == [("util".to_owned(), value)]);
            until("its end", &|now| now.figures.is_empty() && now.no_figures.is_some());
            server.join().unwrap();
        }
    }
}
