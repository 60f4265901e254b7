//! Packages for Debian and Fedora, and the image.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::install::files;

const SCXPROF: &str = env!("CARGO_BIN_EXE_scxprof");

/// The name of the archive that `make dist` makes, with this ending.
fn name(ending: &str) -> String {
    format!("scxprof-{}-{}-linux{ending}", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH)
}

/// True if the program succeeds; SKIP and what it says if it does not: it needs a network, or rights.
fn succeeds(test: &str, command: &mut Command) -> bool {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        println!("SKIP: {test}: {command:?}: {}", said.lines().last().unwrap_or_default());
    }
    output.status.success()
}

/// The output of a program that must succeed.
fn output(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// True if the program can be started; SKIP and why if it cannot.
fn is_here(test: &str, program: &str) -> bool {
    let here = Command::new(program).arg("--version").output().is_ok();
    if !here {
        println!("SKIP: {test}: {program} is not installed");
    }
    here
}

/// The package of this kind, made in a target directory. With `binary`, of that program instead of the static one.
fn package(kind: &str, target: &Path, binary: Option<&Path>) -> PathBuf {
    let mut script = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/packages.sh"));
    script
        .arg(kind)
        .env("CARGO_TARGET_DIR", target)
        .env("MAX_SIZE", "64")
        .env("PATH", super::path_with_cargo())
        .env_remove("MAKEFLAGS");
    match binary {
        Some(binary) => script.env("BINARY", binary),
        None => script.env("QUICK", "1"),
    };
    output(&mut script);
    let made = fs::read_dir(target.join("dist")).unwrap().map(|entry| entry.unwrap().path());
    let made: Vec<_> = made.filter(|path| path.extension() == Some(OsStr::new(kind))).collect();
    assert_eq!(made.len(), 1, "{made:?}");
    made[0].clone()
}

/// Unpacks a package below a root directory.
fn unpack(kind: &str, package: &Path, root: &Path) {
    fs::create_dir_all(root).unwrap();
    if kind == "deb" {
        output(Command::new("dpkg-deb").arg("-x").args([package, root]));
    } else {
        let unpack = "rpm2cpio \"$1\" | cpio --quiet -idm";
        output(Command::new("sh").args(["-ec", unpack, "sh"]).arg(package).current_dir(root));
    }
}

/// What a package must have beside the binary, below `usr`.
fn has_what_is_installed(root: &Path) {
    let has = |file: &str| assert!(root.join(file).is_file(), "{file}");
    for name in ["", "-run", "-doctor"] {
        has(&format!("usr/share/man/man1/scxprof{name}.1"));
    }
    has("usr/share/bash-completion/completions/scxprof");
    has("usr/share/zsh/site-functions/_scxprof");
    has("usr/share/fish/vendor_completions.d/scxprof.fish");
    has("usr/share/doc/scxprof/LICENSE-MIT");
    assert!(root.join("usr/share/doc/scxprof/licences/clap").read_dir().unwrap().next().is_some());
    for unit in ["scxprof.service", "scxprof-watch.service"] {
        let unit = fs::read_to_string(root.join("usr/lib/systemd/system").join(unit)).unwrap();
        assert!(unit.contains("\nExecStart=/usr/bin/scxprof "), "{unit}");
    }
    let watch = fs::read_to_string(root.join("usr/lib/systemd/system/scxprof-watch.service")).unwrap();
    assert!(watch.contains("\n[Install]\n"), "it can be enabled: {watch}");
    let binary = fs::metadata(root.join("usr/bin/scxprof")).unwrap();
    assert_eq!(binary.permissions().mode() & 0o777, 0o755);
}

/// Nothing but what is installed.
fn has_nothing_else(root: &Path) {
    let places: BTreeSet<_> = files(root).iter().map(|file| file.iter().take(2).collect::<PathBuf>()).collect();
    assert_eq!(places, ["usr/bin", "usr/lib", "usr/share"].map(PathBuf::from).into());
}

/// All but the static binary: the packages have a program that starts that of this build.
#[test]
fn packages_have_what_is_installed() {
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("scxprof");
    fs::write(&binary, format!("#!/bin/sh\nexec '{SCXPROF}' \"$@\"\n")).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    let tools: [(&str, &[&str]); 2] =
        [("deb", &["cargo-deb", "dpkg-deb"]), ("rpm", &["cargo-generate-rpm", "rpm2cpio", "cpio"])];
    for (kind, tools) in tools {
        if tools.iter().all(|tool| is_here("packages_have_what_is_installed", tool)) {
            // Not into target/dist, where the user may have real ones.
            let package = package(kind, &dir.path().join(kind), Some(&binary));
            let name = package.file_name().unwrap().to_str().unwrap();
            assert!(name.contains(env!("CARGO_PKG_VERSION")), "{name}");
            let root = dir.path().join("root").join(kind);
            unpack(kind, &package, &root);
            has_what_is_installed(&root);
            has_nothing_else(&root);
        }
    }
}

/// Debian's package in a Debian of its own, the other one in an empty directory: both programs run there.
#[test]
#[ignore = "builds all again, as a static binary, and fetches a Debian: make test-dist"]
fn packages_run_in_roots_of_their_own() {
    let test = "packages_run_in_roots_of_their_own";
    let target = super::target();
    // Packages of other versions.
    let _ = fs::remove_dir_all(target.join("dist"));
    let dir = tempfile::tempdir().unwrap();
    let version = |root: &Path| {
        let said = output(Command::new("chroot").arg(root).args(["/usr/bin/scxprof", "--version"]));
        assert_eq!(String::from_utf8(said.stdout).unwrap().trim(), format!("scxprof {}", env!("CARGO_PKG_VERSION")));
    };
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return println!("SKIP: {test}: a root directory of its own takes root");
    }
    if ["cargo-deb", "debootstrap", "dpkg"].iter().all(|tool| is_here(test, tool)) {
        let deb = package("deb", &target, None);
        let root = dir.path().join("debian");
        if succeeds(test, Command::new("debootstrap").args(["--variant=minbase", "stable"]).arg(&root)) {
            fs::copy(&deb, root.join("scxprof.deb")).unwrap();
            let run = |arguments: &[&str]| output(Command::new("chroot").arg(&root).args(arguments));
            run(&["dpkg", "-i", "/scxprof.deb"]);
            version(&root);
            has_what_is_installed(&root);
            run(&["dpkg", "--purge", "scxprof"]);
            let gone = |file: &str| assert!(!root.join(file).exists(), "{file}");
            gone("usr/bin/scxprof");
            gone("usr/lib/systemd/system/scxprof.service");
        }
    }
    if ["cargo-generate-rpm", "rpm2cpio", "rpm", "cpio"].iter().all(|tool| is_here(test, tool)) {
        let rpm = package("rpm", &target, None);
        let requires = output(Command::new("rpm").args(["-qp", "--requires"]).arg(&rpm));
        let requires = String::from_utf8(requires.stdout).unwrap();
        assert!(requires.lines().all(|it| it.starts_with("rpmlib(")), "{requires}");
        let root = dir.path().join("rpm");
        unpack("rpm", &rpm, &root);
        has_what_is_installed(&root);
        version(&root);
    }
    if is_here(test, "podman") {
        let tree = target.join("dist").join(name(""));
        let containerfile = Path::new(env!("CARGO_MANIFEST_DIR")).join("Containerfile");
        let mut build = Command::new("podman");
        build.args(["build", "-q", "-t", IMAGE, "-f"]).args([&containerfile, &tree]);
        if !succeeds(test, &mut build) {
            return;
        }
        let _image = Image;
        let container = output(Command::new("podman").args(["create", IMAGE]));
        let container = String::from_utf8(container.stdout).unwrap().trim().to_owned();
        let root = dir.path().join("image");
        fs::create_dir(&root).unwrap();
        let unpack = "podman export \"$1\" | tar -x";
        output(Command::new("sh").args(["-ec", unpack, "sh", &container]).current_dir(&root));
        version(&root);
        succeeds(test, Command::new("podman").args(["run", "--rm", "--network=none", IMAGE, "--version"]));
    }
}

const IMAGE: &str = "scxprof-test";

/// The image and its containers, which end with the test.
struct Image;

impl Drop for Image {
    fn drop(&mut self) {
        let _ = Command::new("podman").args(["rmi", "--force", IMAGE]).output();
    }
}
