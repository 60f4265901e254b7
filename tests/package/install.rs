//! Where `make install` puts its files, that `make uninstall` removes them, and whether man and the shells accept the manual pages and
//! completions.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SCXPROF: &str = env!("CARGO_BIN_EXE_scxprof");
/// 2026-11-21.
const DATE: &str = "1795219200";
/// The units of contrib.
const UNITS: [&str; 2] = ["scxprof.service", "scxprof-watch.service"];
const PAGES: [&str; 24] = [
    "",
    "-run",
    "-record",
    "-process",
    "-extract",
    "-report",
    "-sched",
    "-replay",
    "-stacks",
    "-top",
    "-trace",
    "-trace-info",
    "-trace-analyze",
    "-trace-diff",
    "-trace-events",
    "-trace-timeline",
    "-export",
    "-diff",
    "-score",
    "-merge",
    "-watch",
    "-mcp",
    "-doctor",
    "-completions",
];

fn man(dir: &Path, date: &str) -> Output {
    Command::new(SCXPROF).arg("man").arg(dir).env("SOURCE_DATE_EPOCH", date).output().unwrap()
}

fn page(name: &str) -> String {
    format!("scxprof{name}.1")
}

/// The program's stdout and stderr; `None`, with a note, if it is not installed.
fn said(test: &str, program: &str, arguments: &[&str], file: &Path) -> Option<(String, String)> {
    match Command::new(program).args(arguments).arg(file).output() {
        Ok(output) => {
            let text = |bytes| String::from_utf8(bytes).unwrap();
            Some((text(output.stdout), text(output.stderr)))
        }
        Err(error) => {
            println!("SKIP: {test}: {program}: {error}");
            None
        }
    }
}

#[test]
fn pages_are_read_without_a_warning() {
    let test = "pages_are_read_without_a_warning";
    let dir = tempfile::tempdir().unwrap();
    assert!(man(dir.path(), DATE).status.success());
    let checks: [(&str, &[&str]); 3] = [
        ("groff", &["-man", "-ww", "-Tutf8", "-P-cbou"]),
        ("mandoc", &["-T", "lint", "-W", "warning"]),
        ("lexgrog", &["--man"]),
    ];
    for (program, arguments) in checks {
        for name in PAGES {
            let Some((printed, warned)) = said(test, program, arguments, &dir.path().join(page(name))) else { break };
            assert_eq!(warned, "", "{program}: {}", page(name));
            match program {
                "groff" => {
                    assert!(printed.contains("2026-11-21") && printed.contains("User Commands"), "{printed}");
                    // What `--help` shows can be copied.
                    let examples =
                        [("-run", r"db='db\.service$'"), ("-process", "--comm '^web'"), ("-record", "-t 30")];
                    for (_, example) in examples.iter().filter(|example| example.0 == name) {
                        assert!(printed.contains(example), "{example}:\n{printed}");
                    }
                }
                "mandoc" => assert_eq!(printed, "", "{}", page(name)),
                _ => assert!(printed.contains(&format!("\"scxprof{name} - ")), "{printed}"),
            }
        }
    }
}

#[test]
fn the_date_is_not_that_of_today() {
    let dir = tempfile::tempdir().unwrap();
    assert!(man(dir.path(), "86400").status.success());
    for name in PAGES {
        let text = fs::read_to_string(dir.path().join(page(name))).unwrap();
        assert!(text.lines().next().unwrap().contains(" 1 \"1970-01-02\" "), "{text}");
    }
    let output = man(dir.path(), "yesterday");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = man(&dir.path().join("none"), "");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// The files below `root`, by their paths from there.
pub(super) fn files(root: &Path) -> BTreeSet<PathBuf> {
    let mut directories = vec![root.to_owned()];
    let mut files = BTreeSet::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                files.insert(path.strip_prefix(root).unwrap().to_owned());
            }
        }
    }
    files
}

#[test]
fn all_is_installed_where_it_is_looked_for() {
    let test = "all_is_installed_where_it_is_looked_for";
    let dir = tempfile::tempdir().unwrap();
    // Instead of the release, which is not built here.
    fs::create_dir_all(dir.path().join("target/release")).unwrap();
    fs::copy(SCXPROF, dir.path().join("target/release/scxprof")).unwrap();
    let root = dir.path().join("root");
    let make = |target: &str| {
        let mut make = Command::new("make");
        make.args(["--silent", target, "PREFIX=/usr"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        make.arg(format!("DESTDIR={}", root.display()))
            .arg(format!("CARGO_TARGET_DIR={}/target", dir.path().display()));
        make.env("SOURCE_DATE_EPOCH", DATE).env_remove("MAKEFLAGS").output()
    };
    let output = match make("install") {
        Ok(output) => output,
        Err(error) => return println!("SKIP: {test}: make: {error}"),
    };
    assert!(output.status.success(), "{output:?}");
    let completions = [
        ("bash", "bash-completion/completions/scxprof"),
        ("zsh", "zsh/site-functions/_scxprof"),
        ("fish", "fish/vendor_completions.d/scxprof.fish"),
    ];
    let units = UNITS.map(|unit| Path::new("usr/lib/systemd/system").join(unit));
    let expected: BTreeSet<_> = PAGES
        .iter()
        .map(|name| format!("man/man1/{}", page(name)))
        .chain(completions.iter().map(|(_, file)| (*file).to_owned()))
        .map(|file| Path::new("usr/share").join(file))
        .chain(units.clone())
        .chain([PathBuf::from("usr/bin/scxprof")])
        .collect();
    assert_eq!(files(&root), expected);
    for unit in units {
        let unit = fs::read_to_string(root.join(unit)).unwrap();
        assert!(unit.contains("\nExecStart=/usr/bin/scxprof ") && !unit.contains("/usr/local"), "{unit}");
    }
    for (shell, file) in completions {
        let file = root.join("usr/share").join(file);
        assert!(fs::read_to_string(&file).unwrap().contains("min-share"), "{shell}");
        if let Some((_, warned)) = said(test, shell, &["-n"], &file) {
            assert_eq!(warned, "", "{shell}");
        }
    }
    let title = fs::read_to_string(root.join("usr/share/man/man1/scxprof.1")).unwrap();
    assert!(title.starts_with(".TH SCXPROF 1 \"2026-11-21\" "), "{title}");

    // Files of others stay.
    let other = root.join("usr/bin/scxprof-other");
    fs::write(&other, "").unwrap();
    let output = make("uninstall").unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(files(&root), BTreeSet::from([PathBuf::from("usr/bin/scxprof-other")]));
}
