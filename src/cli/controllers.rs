//! The cpu controller, which scx_mitosis needs in the cgroups of its cells.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::capture;
use crate::config::Tally;
use crate::host::hierarchy::HierarchyKind;
use crate::resolve::Cgroups;

/// The most cgroups for which the commands that enable the controller are printed.
const COMMANDS: usize = 4;

/// A note if cells lack the cpu controller, with what helps: a scx_mitosis that needs it would exit with an error.
pub(super) fn note(args: &capture::CaptureArgs, tally: &Tally) -> Option<String> {
    let cgroups = Cgroups::new(&args.watch.roots()).ok()?;
    let mount = cgroups.mount();
    if mount.kind != HierarchyKind::Unified {
        return None;
    }
    let cells = tally.cells().filter_map(|(_, cell)| cell.cgroup.as_deref()).filter(|path| !path.is_empty());
    needs(&mount.point, cells)
}

/// The same for cells of the hierarchy that is mounted at `point`.
fn needs<'a>(point: &Path, cells: impl Iterator<Item = &'a [u8]>) -> Option<String> {
    let missing = missing(point, cells);
    if missing.is_empty() {
        return None;
    }
    let help = if lacks(&point.join("cgroup.controllers")) {
        // Nothing that is written to subtree_control helps there.
        "on this host cpu is a cgroup v1 controller, or none, so they cannot get it: such a scx_mitosis takes --cpu-controller-disabled"
            .to_owned()
    } else {
        let files: Vec<String> =
            missing.iter().take(COMMANDS).map(|dir| dir.join("cgroup.subtree_control").display().to_string()).collect();
        let more = if missing.len() > COMMANDS { " ..." } else { "" };
        format!("echo +cpu | sudo tee {}{more}", files.join(" "))
    };
    Some(format!(
        "a scx_mitosis from before September 2026 (without sched-ext/scx #3769) needs the cpu controller in the cgroups of its \
         cells, and some here lack it: {help}"
    ))
}

/// True if a file that lists controllers does not list cpu.
fn lacks(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|text| !text.split_whitespace().any(|it| it == "cpu"))
}

/// The directories above these cgroups that do not pass the cpu controller on, from the root down.
fn missing<'a>(point: &Path, cells: impl Iterator<Item = &'a [u8]>) -> BTreeSet<PathBuf> {
    let mut missing = BTreeSet::new();
    for cell in cells {
        let cell = Path::new(OsStr::from_bytes(cell));
        let below = cell.strip_prefix("/").unwrap_or(cell);
        if !lacks(&point.join(below).join("cgroup.controllers")) {
            continue;
        }
        let above =
            below
                .ancestors()
                .skip(1)
                .map(|dir| if dir.as_os_str().is_empty() { point.to_owned() } else { point.join(dir) });
        missing.extend(above.filter(|dir| lacks(&dir.join("cgroup.subtree_control"))));
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_pass_the_controller_on_is_found() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str, controllers: &str, subtree: &str| {
            let dir = root.path().join(path);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("cgroup.controllers"), controllers).unwrap();
            fs::write(dir.join("cgroup.subtree_control"), subtree).unwrap();
        };
        make("", "cpuset cpu io\n", "cpu\n");
        make("a", "cpu\n", "memory\n");
        make("a/b", "memory\n", "\n");
        make("a/b/c", "\n", "\n");
        make("d", "cpu\n", "\n");
        let missing = |cells: &[&str]| missing(root.path(), cells.iter().map(|cell| cell.as_bytes()));
        assert_eq!(missing(&["/d", "/gone"]), BTreeSet::new());
        assert_eq!(missing(&["/a/b/c", "/d"]), [root.path().join("a"), root.path().join("a/b")].into());
        let needs = |cells: &[&str]| needs(root.path(), cells.iter().map(|cell| cell.as_bytes()));
        assert_eq!(needs(&["/d"]), None);
        let file = root.path().join("a/cgroup.subtree_control");
        let note = needs(&["/a/b/c"]).unwrap();
        assert!(note.contains(&format!(": echo +cpu | sudo tee {}", file.display())), "{note}");
        // A host whose cpu controller is one of cgroup v1.
        make("", "cpuset io\n", "\n");
        make("d", "\n", "\n");
        let note = needs(&["/d"]).unwrap();
        assert!(note.contains("a cgroup v1 controller") && !note.contains("echo"), "{note}");
    }
}
