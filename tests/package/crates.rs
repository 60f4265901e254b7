//! What `cargo package` packs, which is what `cargo install` of a published scxprof would build.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::install::files;
use super::path_with_cargo;

/// Packs all crates of the workspace into `package` of a directory; `None`, with a note, if this cargo cannot do that.
fn package(test: &str, target: &Path, more: &[&str]) -> Option<Output> {
    let cargo = || {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR")).env("PATH", path_with_cargo());
        cargo
    };
    let version = String::from_utf8(cargo().arg("--version").output().unwrap().stdout).unwrap();
    let mut numbers = version.split(['.', ' ']).filter_map(|word| word.parse::<u32>().ok());
    // Before, it looked for the other crates in the registry only.
    if (numbers.next(), numbers.next()) < (Some(1), Some(90)) {
        println!("SKIP: {test}: {} cannot pack crates that need each other (1.90 can)", version.trim());
        return None;
    }
    let arguments = ["package", "--workspace", "--allow-dirty", "--offline", "--target-dir"];
    Some(cargo().args(arguments).arg(target).args(more).output().unwrap())
}

/// The files that a source file includes when it is compiled.
fn included(path: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for macro_name in ["include_str!(\"", "include_bytes!(\"", "include!(\""] {
        for (at, _) in text.match_indices(macro_name) {
            let name = &text[at + macro_name.len()..];
            found.push(path.parent().unwrap().join(name.split('"').next().unwrap()));
        }
    }
    found
}

#[test]
fn the_crates_have_all_that_their_code_includes() {
    let dir = tempfile::tempdir().unwrap();
    let test = "the_crates_have_all_that_their_code_includes";
    let Some(output) = package(test, dir.path(), &["--no-verify"]) else { return };
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    // Files that cannot be checked out everywhere, dependencies without a version, and the like. There is no address to give yet.
    let warnings: BTreeSet<_> =
        said.lines().filter(|it| it.starts_with("warning: ") && !it.contains("no documentation, homepage")).collect();
    assert_eq!(warnings, BTreeSet::new());

    let mut crates = BTreeSet::new();
    for archive in fs::read_dir(dir.path().join("package")).unwrap() {
        let archive = archive.unwrap().path();
        if archive.extension().is_none_or(|it| it != "crate") {
            continue;
        }
        // Limits of crates.io.
        assert!(fs::metadata(&archive).unwrap().len() < 10 << 20, "{}", archive.display());
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(fs::File::open(&archive).unwrap()));
        archive.unpack(dir.path().join("unpacked")).unwrap();
    }
    let root = dir.path().join("unpacked");
    let mut included_files = 0;
    for file in files(&root) {
        crates.insert(file.iter().next().unwrap().to_str().unwrap().to_owned());
        if file.extension().is_some_and(|it| it == "rs") {
            let text = fs::read_to_string(root.join(&file)).unwrap();
            for included in included(&root.join(&file), &text) {
                included_files += 1;
                assert!(included.is_file(), "{} includes {}", file.display(), included.display());
            }
        }
    }
    assert!(included_files > 10, "{included_files}");
    let version = env!("CARGO_PKG_VERSION");
    let names = ["", "-base", "-elf", "-perf", "-recover", "-replay", "-sched", "-trace"];
    assert_eq!(crates, names.iter().map(|name| format!("scxprof{name}-{version}")).collect());
    // Of the programs for BPF, headers too.
    let bpf = root.join(format!("scxprof-{version}/src/bpf"));
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bpf");
    assert_eq!(files(&bpf), files(&ours));
}

#[test]
#[ignore = "builds all again, from the archives: make test-dist"]
fn the_crates_build_from_their_own_archives() {
    let dir = tempfile::tempdir().unwrap();
    let Some(output) = package("the_crates_build_from_their_own_archives", dir.path(), &[]) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let built = dir.path().join("debug/scxprof");
    let output = Command::new(&built).arg("--version").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), format!("scxprof {}", env!("CARGO_PKG_VERSION")));
}
