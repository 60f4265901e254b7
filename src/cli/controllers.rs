//! What scx_mitosis needs of the cgroups of its cells: the cpu controller.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::capture;
use crate::config::Tally;
use crate::host::hierarchy::HierarchyKind;
use crate::resolve::Cgroups;

/// The commands that enable the controller for at most so many cgroups.
const COMMANDS: usize = 4;

/// A note if cells lack the cpu controller, with the commands that enable it; the scheduler would exit with an error.
pub(super) fn note(args: &capture::CaptureArgs, tally: &Tally) -> Option<String> {
    let cgroups = Cgroups::new(&args.watch.roots()).ok()?;
    let mount = cgroups.mount();
    if mount.kind != HierarchyKind::Unified {
        return None;
    }
    let cells = tally.cells().filter_map(|(_, cell)| cell.cgroup.as_deref()).filter(|path| !path.is_empty());
    let missing = missing(&mount.point, cells);
    if missing.is_empty() {
        return None;
    }
    let files: Vec<String> =
        missing.iter().take(COMMANDS).map(|dir| dir.join("cgroup.subtree_control").display().to_string()).collect();
    let more = if missing.len() > COMMANDS { " ..." } else { "" };
    Some(format!(
        "scx_mitosis needs the cpu controller in the cgroups of its cells, and some here lack it: echo +cpu | sudo tee {}{more} (or \
         start scx_mitosis with --cpu-controller-disabled)",
        files.join(" ")
    ))
}

/// The directories above these cgroups that do not pass the cpu controller on, from the root down.
fn missing<'a>(point: &Path, cells: impl Iterator<Item = &'a [u8]>) -> BTreeSet<PathBuf> {
    let lacks = |file: &Path| fs::read_to_string(file).is_ok_and(|text| !text.split_whitespace().any(|it| it == "cpu"));
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
    }
}
