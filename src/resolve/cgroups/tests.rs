//! Tests of cgroup paths on made-up trees and on this machine.

use super::*;

/// A hierarchy in a directory: the ids are the inodes of the file system that contains it, so handles fail there.
struct Tree {
    dir: tempfile::TempDir,
    roots: Roots,
}

impl Tree {
    fn new(own: &str, root: &str, kind: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc");
        let mount = dir.path().join("cg");
        fs::create_dir_all(proc.join("self")).unwrap();
        fs::create_dir_all(mount.join("a.slice/b c")).unwrap();
        fs::create_dir_all(mount.join(OsStr::from_bytes(b"\xff"))).unwrap();
        fs::write(mount.join("cgroup.procs"), "").unwrap();
        fs::write(proc.join("self/cgroup"), own).unwrap();
        let line = format!("41 31 0:38 {root} {} rw - {kind}\n", mount.display());
        fs::write(proc.join("self/mountinfo"), line).unwrap();
        Self { dir, roots: Roots { proc, ..Roots::default() } }
    }

    fn unified(root: &str) -> Self {
        Self::new("0::/\n", root, "cgroup2 cgroup2 rw")
    }

    fn id(&self, below: &str) -> u64 {
        fs::metadata(self.dir.path().join("cg").join(below)).unwrap().ino()
    }
}

fn path(cgroups: &mut Cgroups, id: u64) -> Option<Vec<u8>> {
    cgroups.path(id).map(|path| path.to_vec())
}

#[test]
fn the_walk_names_every_cgroup() {
    let tree = Tree::unified("/");
    let mut cgroups = Cgroups::new(&tree.roots).unwrap();
    cgroups.walk().unwrap();
    assert_eq!(path(&mut cgroups, tree.id("")), Some(b"/".to_vec()));
    assert_eq!(path(&mut cgroups, tree.id("a.slice/b c")), Some(b"/a.slice/b c".to_vec()));
    let odd = fs::metadata(tree.dir.path().join("cg").join(OsStr::from_bytes(b"\xff"))).unwrap().ino();
    assert_eq!(path(&mut cgroups, odd), Some(b"/\xff".to_vec()));
    assert_eq!(cgroups.paths.len(), 4);
    // A deleted cgroup keeps its path; an unknown one is looked up once.
    fs::remove_dir(tree.dir.path().join("cg").join(OsStr::from_bytes(b"\xff"))).unwrap();
    cgroups.walk().unwrap();
    assert_eq!(path(&mut cgroups, odd), Some(b"/\xff".to_vec()));
    assert_eq!((path(&mut cgroups, 1 << 60), path(&mut cgroups, 1 << 60), path(&mut cgroups, 0)), (None, None, None));
    assert_eq!(cgroups.missing.len(), 1);
}

#[test]
fn a_cgroup_without_others_in_it_is_not_read() {
    let tree = Tree::unified("/");
    let walked = |counts_children| {
        let mut cgroups = Cgroups::new(&tree.roots).unwrap();
        let read = cgroups.walk_all(counts_children).unwrap();
        let mut known: Vec<_> = cgroups.known().map(|(id, path)| (id, path.to_vec())).collect();
        known.sort_unstable();
        (read, known)
    };
    let (read, all) = walked(false);
    assert_eq!((read, all.len()), (4, 4));
    let links = |below: &str| fs::metadata(tree.dir.path().join("cg").join(below)).unwrap().nlink();
    if (links("a.slice"), links("a.slice/b c")) != (3, 2) {
        println!("SKIP: a_cgroup_without_others_in_it_is_not_read: this file system does not count directories");
        return;
    }
    assert_eq!(walked(true), (2, all));
}

#[test]
fn the_kernel_tells_whether_any_of_many_has_others_in_it() {
    let tree = Tree::unified("/");
    let many = tree.dir.path().join("cg/many");
    for name in 0..MANY {
        fs::create_dir_all(many.join(name.to_string())).unwrap();
    }
    fs::create_dir(many.join("0/in")).unwrap();
    let mut entries = fs::read_dir(&many).unwrap().flatten();
    if entries.any(|entry| entry.ino() != entry.metadata().unwrap().ino()) || fs::metadata(&many).unwrap().nlink() < 3 {
        println!("SKIP: the_kernel_tells_whether_any_of_many_has_others_in_it: this file system does not tell");
        return;
    }
    let named = |descendants: usize| {
        fs::write(many.join("cgroup.stat"), format!("nr_descendants {descendants}\nnr_dying_descendants 9\n")).unwrap();
        let mut cgroups = Cgroups::new(&tree.roots).unwrap();
        cgroups.walk_all(true).unwrap();
        let is_known = |below: &str| cgroups.known().any(|(id, _)| id == tree.id(below));
        (is_known("many/1"), is_known("many/0/in"))
    };
    assert_eq!(named(MANY + 1), (true, true));
    assert_eq!(named(MANY), (true, false), "it says that there is none");
}

#[test]
fn live_the_walk_finds_every_directory() {
    let skip = |reason: &dyn std::fmt::Display| println!("SKIP: live_the_walk_finds_every_directory: {reason}");
    let mut cgroups = match Cgroups::new(&Roots::default()) {
        Ok(cgroups) => cgroups,
        Err(error) => return skip(&error),
    };
    let name = format!("scxprof walk {}", std::process::id());
    let top = Made(cgroups.mount().point.join(&name));
    if let Err(error) = fs::create_dir(&top.0) {
        return skip(&error);
    }
    let inner = Made(top.0.join("a"));
    fs::create_dir(&inner.0).unwrap();
    let innermost = ["b", "c", "d", "e"].map(|below| Made(inner.0.join(below)));
    for made in &innermost {
        fs::create_dir(&made.0).unwrap();
    }
    cgroups.walk().unwrap();
    let found = cgroups.known().filter(|(_, path)| String::from_utf8_lossy(path).contains(&name));
    let mut found: Vec<u64> = found.map(|(id, _)| id).collect();
    found.sort_unstable();
    let made = [&top, &inner].into_iter().chain(&innermost);
    let mut made: Vec<u64> = made.map(|made| fs::metadata(&made.0).unwrap().ino()).collect();
    made.sort_unstable();
    drop(innermost);
    drop(inner);
    assert_eq!(found, made);
}

#[test]
fn records_name_new_cgroups() {
    let tree = Tree::unified("/docker/x");
    let mut cgroups = Cgroups::new(&tree.roots).unwrap();
    assert_eq!(path(&mut cgroups, 1 << 60), None);
    cgroups.record(1 << 60, b"/new one");
    cgroups.record(1 << 61, b"//enomem");
    assert_eq!(path(&mut cgroups, 1 << 60), Some(b"/new one".to_vec()));
    assert_eq!(path(&mut cgroups, 1 << 61), None);
    for id in 0..MAX_PATHS as u64 {
        cgroups.record((1 << 62) + id, b"/many");
    }
    assert_eq!((cgroups.paths.len(), cgroups.order.len(), cgroups.forgotten), (MAX_PATHS, MAX_PATHS, 1));
    assert_eq!(path(&mut cgroups, 1 << 60), None);
}

#[test]
fn a_part_of_the_hierarchy_keeps_its_full_paths() {
    let tree = Tree::unified("/docker/x");
    let mut cgroups = Cgroups::new(&tree.roots).unwrap();
    cgroups.walk().unwrap();
    assert_eq!(path(&mut cgroups, tree.id("")), Some(b"/docker/x".to_vec()));
    assert_eq!(path(&mut cgroups, tree.id("a.slice")), Some(b"/docker/x/a.slice".to_vec()));
    assert_eq!(cgroups.find(Path::new("/docker/x/a.slice")).unwrap().id, tree.id("a.slice"));
    assert_eq!(&*cgroups.find(Path::new("a.slice")).unwrap().path, b"/docker/x/a.slice");
}

#[test]
fn a_cgroup_is_found_by_any_of_its_names() {
    let tree = Tree::unified("/");
    let mut cgroups = Cgroups::new(&tree.roots).unwrap();
    let full = tree.dir.path().join("cg/a.slice/b c");
    for name in ["/a.slice/b c", "a.slice/b c", "a.slice/b c/", "/sys/fs/cgroup/a.slice/b c", full.to_str().unwrap()] {
        let found = cgroups.find(Path::new(name)).unwrap();
        assert_eq!(
            (found.id, &found.dir, &*found.path),
            (tree.id("a.slice/b c"), &full, &b"/a.slice/b c"[..]),
            "{name}"
        );
    }
    assert_eq!(&*cgroups.find(Path::new("/")).unwrap().path, b"/");
    for name in ["/none", "../proc", "cgroup.procs", "/a.slice/../../proc"] {
        let error = cgroups.find(Path::new(name)).unwrap_err();
        assert!(error.to_string().contains(tree.dir.path().join("cg").to_str().unwrap()), "{error}");
    }
}

#[test]
fn the_cgroup_of_a_thread_comes_from_procfs() {
    let tree = Tree::unified("/docker/x");
    let mut cgroups = Cgroups::new(&tree.roots).unwrap();
    fs::create_dir_all(tree.roots.proc.join("10/task/11")).unwrap();
    let mut of = |text: &str| {
        fs::write(tree.roots.proc.join("10/task/11/cgroup"), text).unwrap();
        cgroups.of_thread(10, 11)
    };
    assert_eq!(of("4:cpu:/\n0::/docker/x/a.slice/b c\n"), Some(tree.id("a.slice/b c")));
    assert_eq!(of("0::/docker/x\n"), Some(tree.id("")));
    for outside in
        ["0::/docker/xy\n", "0::/\n", "0::/docker/x/../y\n", "4:cpu:/\n", "0::/docker/x/gone (deleted)\n", ""]
    {
        assert_eq!(of(outside), None, "{outside}");
    }
    assert_eq!(cgroups.of_thread(10, 12), None);
    assert_eq!(path(&mut cgroups, tree.id("a.slice/b c")), Some(b"/docker/x/a.slice/b c".to_vec()));
}

#[test]
fn warns_where_v1_has_all_tasks_in_its_root() {
    let tree = Tree::new("3:perf_event:/\n0::/\n", "/", "cgroup cgroup rw,perf_event");
    let mut cgroups = Cgroups::new(&tree.roots).unwrap();
    cgroups.walk().unwrap();
    assert!(cgroups.warning().unwrap().contains("v1 perf_event"));
    fs::write(tree.dir.path().join("cg/a.slice/cgroup.procs"), "7\n").unwrap();
    cgroups.walk().unwrap();
    assert!(!cgroups.warning().unwrap_or_default().contains("v1"));
}

#[test]
fn a_given_directory_is_taken() {
    let tree = Tree::unified("/");
    let given = tree.dir.path().join("cg/a.slice");
    let roots = Roots { cgroup: Some(given.clone()), ..tree.roots.clone() };
    assert_eq!(Cgroups::new(&roots).unwrap().find(Path::new("b c")).unwrap().dir, given.join("b c"));
    let roots = Roots { cgroup: Some("/nonexistent".into()), ..tree.roots };
    assert!(matches!(Cgroups::new(&roots), Err(Error::Read { .. })));
}

#[test]
fn schedulers_see_paths_below_sys_fs_cgroup() {
    assert_eq!(display_path(b"/a/b"), b"/sys/fs/cgroup/a/b");
    assert_eq!(display_path(b"/"), b"/sys/fs/cgroup");
}

/// A cgroup of this machine that the test removes.
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn live_a_cgroup_is_named_by_handle_and_stays_named() {
    let skip = |reason: &dyn std::fmt::Display| {
        println!("SKIP: live_a_cgroup_is_named_by_handle_and_stays_named: {reason}");
    };
    let mut cgroups = match Cgroups::new(&Roots::default()) {
        Ok(cgroups) => cgroups,
        Err(error) => return skip(&error),
    };
    if let Err(error) = cgroups.walk() {
        return skip(&error);
    }
    let name = format!("scxprof test {}", std::process::id());
    let made = Made(cgroups.mount().point.join(&name));
    if let Err(error) = fs::create_dir(&made.0) {
        return skip(&error);
    }
    let id = fs::metadata(&made.0).unwrap().ino();
    let Some(found) = path(&mut cgroups, id) else {
        return skip(&"handles cannot be opened here");
    };
    let expected = cgroups.full_path(name.as_bytes()).to_vec();
    assert_eq!(found, expected);
    assert_eq!(cgroups.find(Path::new(&name)).unwrap().id, id);
    // A process in it is found in it; the process ends after the look-up.
    let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let moved = fs::write(made.0.join("cgroup.procs"), child.id().to_string());
    let of = cgroups.of_thread(child.id(), child.id());
    drop(child.stdin.take());
    child.wait().unwrap();
    match moved {
        Ok(()) => assert_eq!(of, Some(id)),
        Err(error) => skip(&error),
    }
    fs::remove_dir(&made.0).unwrap();
    assert_eq!(path(&mut cgroups, id), Some(expected));
    // A new table cannot know deleted cgroups.
    let mut fresh = Cgroups::new(&Roots::default()).unwrap();
    assert_eq!(fresh.path(id), None);
}

#[test]
fn paths_are_bounded_in_bytes() {
    let mut cgroups = Cgroups::recorded();
    let count = MAX_PATH_BYTES as u64 / 4000 + 100;
    for id in 1..=count {
        let path = [format!("/{id}").as_bytes(), &vec![b'x'; 4000][..]].concat();
        cgroups.record(id, &path);
        // The same record again takes no more memory.
        cgroups.record(id, &path);
        assert!(cgroups.path_bytes <= MAX_PATH_BYTES);
    }
    assert_eq!(cgroups.paths.values().map(|path| path.len()).sum::<usize>(), cgroups.path_bytes);
    let forgotten = cgroups.forgotten;
    assert!(forgotten >= 100 && cgroups.paths.len() as u64 == count - forgotten);
    assert!(cgroups.path(1).is_none() && cgroups.path(count).is_some());
    assert!(cgroups.left_out().unwrap().starts_with(&format!("{forgotten} paths of cgroups were forgotten")));
}
