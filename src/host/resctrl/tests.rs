//! Tests on made trees; no kernel with resctrl is needed.

use super::super::topology::tests::fake_sysfs;
use super::*;

/// A tree as the kernel mounts it: two caches, `features`, and a procfs that names it.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new(features: &str) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        let point = tree.point();
        let mountinfo = format!("30 1 0:30 / {} rw - resctrl none rw\n", point.display());
        tree.write("proc/self/mountinfo", &format!("25 1 0:22 / /sys rw - sysfs sysfs rw\n{mountinfo}"));
        fs::create_dir_all(point.join("mon_groups")).unwrap();
        tree.write("r/info/L3_MON/mon_features", features);
        tree.write("r/info/L3_MON/num_rmids", "176\n");
        tree.write("r/tasks", "1\n");
        tree.figures("", 0, ["100", "1000", "900"]);
        tree.figures("", 1, ["200", "2000", "1900"]);
        tree
    }

    fn whole() -> Self {
        Self::new("llc_occupancy\nmbm_total_bytes\nmbm_total_bytes_config\nmbm_local_bytes\n")
    }

    fn point(&self) -> PathBuf {
        self.0.path().join("r")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn figures(&self, group: &str, cache: u32, figures: [&str; 3]) {
        for (name, figure) in NAMES.iter().zip(figures) {
            self.write(&format!("r/{group}/mon_data/mon_L3_{cache:02}/{name}"), &format!("{figure}\n"));
        }
    }

    fn roots(&self) -> Roots {
        Roots { proc: self.0.path().join("proc"), ..Roots::default() }
    }

    fn find(&self) -> Resctrl {
        Resctrl::find(&self.roots()).unwrap()
    }

    fn groups(&self) -> Vec<String> {
        let mut names: Vec<String> = directories(&self.point().join("mon_groups"))
            .map(|path| path.file_name().unwrap().display().to_string())
            .collect();
        names.sort();
        names
    }
}

fn of(figured: &Figured, cache: u32) -> [Result<u64, NoFigure>; 3] {
    let figures = figured.caches[&cache];
    [figures.occupancy, figures.total, figures.local]
}

#[test]
fn the_host_is_the_sum_of_the_control_groups() {
    let tree = Tree::whole();
    assert_eq!(of(&tree.find().of_host(), 1), [Ok(200), Ok(2000), Ok(1900)]);
    // A control group of somebody counts apart from the root; a monitoring group is in its parent already.
    tree.write("r/batch/tasks", "7\n");
    tree.figures("batch", 0, ["5", "50", "Unavailable"]);
    tree.figures("mon_groups/other", 0, ["1", "1", "1"]);
    let sum = tree.find().of_host();
    assert_eq!(of(&sum, 0), [Ok(105), Ok(1050), Err(NoFigure::Unavailable)]);
    assert_eq!((of(&sum, 1)[0], sum.caches.len()), (Ok(200), 2));
}

#[test]
fn each_lack_of_a_figure_has_its_reason() {
    let tree = Tree::new("llc_occupancy\nmbm_total_bytes\n");
    for (text, reason) in [
        ("Unavailable", NoFigure::Unavailable),
        ("Error", NoFigure::Error),
        ("Unassigned", NoFigure::Unassigned),
        ("-1", NoFigure::Unreadable),
        ("99999999999999999999", NoFigure::Unreadable),
        ("", NoFigure::Unreadable),
    ] {
        tree.figures("", 0, ["7", text, "8"]);
        let found = tree.find().of_host();
        assert_eq!(of(&found, 0), [Ok(7), Err(reason), Err(NoFigure::NotCounted)], "{text}");
    }
    fs::remove_file(tree.point().join("mon_data/mon_L3_00/mbm_total_bytes")).unwrap();
    assert_eq!(of(&tree.find().of_host(), 0)[1], Err(NoFigure::Unreadable));
    // Other resources of newer kernels, and directories of caches that are halved (Sub-NUMA clustering).
    tree.write("r/mon_data/mon_PERF_PKG_00/core_energy", "1.5\n");
    tree.figures("mon_data/mon_L3_01", 0, ["1", "1", "1"]);
    assert_eq!(tree.find().of_host().caches.keys().copied().collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn each_lack_of_monitoring_has_its_reason() {
    let tree = Tree::whole();
    tree.write("proc/self/mountinfo", "25 1 0:22 / /sys rw - sysfs sysfs rw\n");
    assert!(matches!(Resctrl::find(&tree.roots()), Err(NoResctrl::NotMounted { .. })));
    let tree = Tree::new("\n");
    assert!(matches!(Resctrl::find(&tree.roots()), Err(NoResctrl::NoMonitoring { .. })));
    fs::remove_dir_all(tree.point().join("info/L3_MON")).unwrap();
    assert!(matches!(Resctrl::find(&tree.roots()), Err(NoResctrl::NoMonitoring { .. })));
    let found = Tree::whole().find();
    let reason = |errno| found.not_made("g".into(), io::Error::from_raw_os_error(errno));
    assert!(matches!(reason(libc::ENOSPC), NoResctrl::NoRmid { num_rmids: 176, .. }));
    assert!(matches!(reason(libc::EBUSY), NoResctrl::RmidsBusy { .. }));
    assert!(matches!(reason(libc::EROFS), NoResctrl::Denied { .. }));
    assert!(matches!(reason(libc::ENODEV), NoResctrl::Failed { .. }));
    // Without the directory of groups.
    let tree = Tree::whole();
    fs::remove_dir(tree.point().join("mon_groups")).unwrap();
    assert!(matches!(tree.find().make_group(), Err(NoResctrl::Failed { .. })));
}

#[test]
fn rates_are_of_the_time_between_and_not_of_what_begins_anew() {
    let figures = |total, local| Figures { occupancy: Ok(1), total, local };
    let at =
        |time, total, local| Figured { time, caches: [(3, figures(total, local))].into(), groups: vec!["r".into()] };
    let before = at(1_000_000_000, Ok(1000), Ok(500));
    let rates = |now: &Figured| now.rates_since(&before)[&3];
    let same = at(3_000_000_000, Ok(5000), Ok(500));
    assert_eq!(rates(&same), Rates { total: Some(2000.0), local: Some(0.0) });
    // A counter that was reset, one that is unavailable, and no time.
    let reset = at(3_000_000_000, Ok(999), Err(NoFigure::Unavailable));
    assert_eq!(rates(&reset), Rates::default());
    assert_eq!(rates(&at(1_000_000_000, Ok(5000), Ok(500))), Rates::default());
    assert_eq!(rates(&at(1, Ok(5000), Ok(500))), Rates::default());
    // Another cache, and other groups.
    assert_eq!(same.rates_since(&Figured { caches: BTreeMap::new(), ..before.clone() })[&3], Rates::default());
    assert_eq!(same.rates_since(&Figured { groups: vec!["r".into(), "x".into()], ..before })[&3], Rates::default());
}

#[test]
fn a_group_is_ours_until_it_is_dropped() {
    let tree = Tree::whole();
    let found = tree.find();
    let (first, second) = (found.make_group().unwrap(), found.make_group().unwrap());
    assert_ne!(first.path, second.path);
    assert!(tree.groups().iter().all(|name| maker(OsStr::new(name)) == Some(std::process::id())));
    // What begins meanwhile leaves them, although the made procfs does not have this process.
    drop(tree.find());
    assert_eq!(tree.groups().len(), 2);
    let name = first.path.file_name().unwrap().display().to_string();
    tree.figures(&format!("mon_groups/{name}"), 1, ["3", "30", "Unassigned"]);
    assert_eq!(of(&first.figures(), 1), [Ok(3), Ok(30), Err(NoFigure::Unassigned)]);
    assert_eq!(first.figures().rates_since(&second.figures())[&1], Rates::default());
    fs::remove_dir_all(first.path.join("mon_data")).unwrap();
    drop((first, second));
    assert_eq!(tree.groups(), [""; 0]);
}

#[test]
fn threads_that_somebody_counts_already_stay_in_their_group() {
    let tree = Tree::whole();
    tree.write("r/mon_groups/somebody/tasks", "70\n71\n");
    tree.write("r/mon_groups/scxprof-1-0/tasks", "72\n");
    tree.write("proc/1/stat", "");
    let found = tree.find();
    let group = found.make_group().unwrap();
    assert!(matches!(group.add(&[1]), Err(NoResctrl::Failed { .. })), "no file of tasks");
    let tasks = group.path.join("tasks");
    fs::write(&tasks, "").unwrap();
    let added = group.add(&[60, 70, 72, 61]).unwrap();
    assert_eq!(added, Added { added: 2, of_others: 2, ..Added::default() });
    assert_eq!(fs::read_to_string(&tasks).unwrap(), "60\n61\n");
    assert_eq!(fs::read_to_string(tree.point().join("mon_groups/somebody/tasks")).unwrap(), "70\n71\n");
    fs::remove_file(tasks).unwrap();
}

#[test]
fn only_what_dead_processes_of_ours_left_is_removed() {
    let tree = Tree::whole();
    let own = std::process::id();
    let stays = ["scxprof-7", "scxprof-x-1", "scxprof-8-1-2", "other", "scxprof--1", "scxprof-9-held"];
    for name in
        stays.iter().copied().chain(["scxprof-5-0", "scxprof-6-0", "scxprof-6-12", &format!("scxprof-{own}-99999")])
    {
        fs::create_dir(tree.point().join("mon_groups").join(name)).unwrap();
    }
    // 5 is another process now; 4 lives, perhaps in another pid namespace, and holds its group.
    tree.write("proc/5/stat", "");
    let far = tree.point().join("mon_groups/scxprof-4-0");
    fs::create_dir(&far).unwrap();
    let held = fs::File::open(&far).unwrap();
    lock(&held).unwrap();
    drop(tree.find());
    let mut expected: Vec<&str> = stays.iter().copied().chain(["scxprof-4-0"]).collect();
    expected.sort_unstable();
    assert_eq!(tree.groups(), expected);
    drop(held);
    drop(tree.find());
    assert!(!far.exists());
}

#[test]
fn caches_have_the_lowest_of_their_cpus() {
    let dir = tempfile::tempdir().unwrap();
    let roots = fake_sysfs(dir.path());
    assert_eq!(caches(&roots, &[0, 1]), BTreeMap::new(), "no ids");
    for cpu in 0..16 {
        let id = cpu % 8 / 2;
        for (index, id) in [(0, cpu), (2, id), (3, cpu)] {
            fs::write(dir.path().join(format!("devices/system/cpu/cpu{cpu}/cache/index{index}/id")), format!("{id}\n"))
                .unwrap();
        }
    }
    let cpus: Vec<u32> = (0..17).collect();
    assert_eq!(caches(&roots, &cpus), [(0, 0), (1, 2), (2, 4), (3, 6)].into());
}

/// What this host has, if it has it.
#[test]
fn this_host_monitors_or_says_why_not() {
    match Resctrl::find(&Roots::default()) {
        Ok(found) => assert!(!found.of_host().caches.is_empty()),
        Err(why) => println!("SKIP: this_host_monitors_or_says_why_not: {why}"),
    }
}
