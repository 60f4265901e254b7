//! Tests `scxprof doctor`: made-up hosts against golden files, and the real binary on this host.

mod hosts;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use hosts::{hosts, Host};
use scxprof::doctor::{examine_with, table, CheckState, Report, Style};
use serde_json::Value;

use crate::support::alone;

const SCXPROF: &str = env!("CARGO_BIN_EXE_scxprof");

/// The report without the parts that differ from run to run: the directories, the version, the architecture.
fn report(host: &Host) -> Report {
    let mut report = examine_with(&host.roots, host);
    (report.scxprof, report.arch) = ("0.0.0", "x86_64");
    let root = host.roots.proc.parent().unwrap().to_str().unwrap().to_owned();
    for check in &mut report.checks {
        check.why = check.why.replace(&root, "");
        check.help = check.help.take().map(|help| help.replace(&root, ""));
    }
    report
}

#[test]
fn made_hosts_are_described_as_the_golden_files_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/doctor");
    for (name, host) in hosts() {
        let report = report(&host);
        let json = serde_json::to_string_pretty(&report).unwrap() + "\n";
        let at = |width| table(&report, Style { width, ..Style::default() });
        let texts = [("txt", at(None)), ("80.txt", at(Some(80))), ("40.txt", at(Some(40))), ("json", json)];
        for (ending, text) in texts {
            let path = folder.join(format!("{name}.{ending}"));
            if std::env::var_os("SCXPROF_BLESS").is_some() {
                std::fs::write(&path, &text).unwrap();
            }
            let golden = std::fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(text, golden, "{}", path.display());
        }
    }
}

#[test]
fn no_line_is_longer_than_the_terminal() {
    for (name, host) in hosts() {
        let report = report(&host);
        for width in [120, 80, 70, 69, 40] {
            let text = table(&report, Style { width: Some(width), ..Style::default() });
            let longest = text.lines().map(|line| line.chars().count()).max();
            assert!(longest <= Some(width), "{name} at {width}:\n{text}");
            let words = |text: &str| text.split_whitespace().collect::<String>();
            assert_eq!(words(&text), words(&table(&report, Style::default())), "{name} at {width}: all is there");
        }
    }
}

#[test]
fn every_row_is_there_on_every_host_in_the_same_order() {
    let mut names: Option<Vec<_>> = None;
    for (host_name, host) in hosts() {
        let report = examine_with(&host.roots, &host);
        let found: Vec<_> = report.checks.iter().map(|check| check.name).collect();
        assert_eq!(names.get_or_insert_with(|| found.clone()), &found, "{host_name}");
        for check in &report.checks {
            assert!(!check.why.is_empty(), "{host_name}: {} says nothing", check.name);
            // Known remedies are given; a state of "works" needs none.
            assert!(check.state != CheckState::Works || check.help.is_none(), "{host_name}: {}", check.name);
        }
        assert_eq!(report.any_source(), host_name != "paranoid-3", "{host_name}");
        let obstacle = report.obstacle().map(|check| check.name);
        let expected = match host_name {
            "container" => Some("cgroups"),
            "old-kernel" => Some("pid-namespace"),
            _ => None,
        };
        assert_eq!(obstacle, expected, "{host_name}");
    }
}

#[test]
fn an_empty_host_is_described_too() {
    let (_, mut host) = hosts().swap_remove(0);
    let nowhere = tempfile::tempdir().unwrap();
    host.roots.proc = nowhere.path().join("proc");
    host.roots.sys = nowhere.path().join("sys");
    let report = examine_with(&host.roots, &host);
    assert!(!report.any_source());
    assert_eq!((report.cpus, report.cpu.as_str(), report.kernel.as_str()), (0, "", ""));
    assert!(table(&report, Style::default()).contains("Linux unknown"));
}

#[test]
fn colour_adds_escapes_and_nothing_else() {
    for (_, host) in hosts() {
        let report = examine_with(&host.roots, &host);
        let plain = table(&report, Style::default());
        let mut colour = table(&report, Style { color: true, ..Style::default() });
        assert!(!plain.contains('\x1b') && colour.contains('\x1b'));
        for escape in ["\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[0m"] {
            colour = colour.replace(escape, "");
        }
        assert_eq!(plain, colour);
        assert!(plain.lines().all(|line| line.chars().count() <= 100 || !line.trim().contains(' ')), "{plain}");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stdout)))
}

/// The check of a name in the JSON.
fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name} in {report:#}"))
}

/// True if sampling the host is allowed; otherwise prints why `test` is skipped.
fn may_sample(test: &str, report: &Value) -> bool {
    let faults = check(report, "faults");
    if faults["state"] == "works" {
        return true;
    }
    println!("SKIP: {test}: {}", faults["why"].as_str().unwrap());
    false
}

#[test]
fn this_host_is_described() {
    let output = Command::new(SCXPROF).args(["doctor", "--json"]).output().unwrap();
    let report = json(&output);
    assert_eq!(report["version"], 2);
    assert!(report.get("self_test").is_none());
    let any = ["pebs", "ibs", "timer", "faults"].iter().any(|source| {
        let state = &check(&report, source)["state"];
        state == "works" || state == "partly"
    });
    assert_eq!(output.status.code(), Some(if any { 0 } else { 3 }), "{}", text(&output.stderr));
    let table = Command::new(SCXPROF).arg("doctor").env_remove("NO_COLOR").output().unwrap();
    assert_eq!(table.status.code(), output.status.code());
    let table = text(&table.stdout);
    assert!(!table.contains('\x1b'), "stdout is no terminal");
    for check in report["checks"].as_array().unwrap() {
        let row = format!("  {:15}{}", check["name"].as_str().unwrap(), check["state"].as_str().unwrap());
        assert!(table.contains(&row), "no \"{row}\" in:\n{table}");
    }
    if !may_sample("what works as root", &report) {
        return;
    }
    assert!(any);
    assert_eq!(check(&report, "paranoid")["state"], "works");
    assert_eq!(check(&report, "phys")["state"], "works", "{report:#}");
    if cfg!(target_arch = "x86_64") {
        assert_eq!(check(&report, "timer")["state"], "works", "{report:#}");
    }
    // The first that works wins; for each before it, the run's message is that of doctor.
    let run = Command::new(SCXPROF).args(["run", "-v", "-t", "0.1"]).output().unwrap();
    let said = text(&run.stderr);
    for source in ["pebs", "ibs"] {
        let check = check(&report, source);
        if check["state"] == "works" {
            break;
        }
        assert!(said.contains(check["why"].as_str().unwrap()), "{said}\nagainst {check:#}");
    }
}

/// A copy of the binary that a user without rights may run.
fn public_binary() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("scxprof");
    std::fs::copy(SCXPROF, &path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    (dir, path)
}

#[test]
fn without_rights_run_says_what_doctor_says() {
    let test = "doctor without rights";
    let (_dir, binary) = public_binary();
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set=-all", "--"]);
        command.arg(&binary).args(arguments).output()
    };
    let Ok(output) = as_nobody(&["doctor", "--json"]) else {
        println!("SKIP: {test}: setpriv is not installed");
        return;
    };
    if text(&output.stderr).contains("setpriv:") || output.stdout.is_empty() {
        println!("SKIP: {test}: {}", text(&output.stderr).trim());
        return;
    }
    let report = json(&output);
    let faults = check(&report, "faults");
    if faults["state"] == "works" {
        println!("SKIP: {test}: kernel.perf_event_paranoid lets everybody sample");
        return;
    }
    assert_eq!(check(&report, "capabilities")["state"], "fails");
    assert_ne!(check(&report, "paranoid")["state"], "works");
    let why = faults["why"].as_str().unwrap();
    let why = why.strip_prefix("your own processes only: ").unwrap_or(why);
    let sentence = format!("{why}; {}", faults["help"].as_str().unwrap());
    assert!(sentence.contains("CAP_PERFMON or kernel.perf_event_paranoid"), "{sentence}");
    let run = as_nobody(&["run", "-v", "--source", "faults", "-t", "0.1"]).unwrap();
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(3), "{said}");
    assert!(said.contains(&sentence), "expected \"{sentence}\" in:\n{said}");
    let short = "error: sampling the whole host needs root or CAP_PERFMON (kernel.perf_event_paranoid is ";
    assert!(said.contains(short) && said.ends_with("or -- COMMAND. Details: scxprof doctor\n"), "{said}");
}

#[test]
fn the_self_test_passes_here_and_leaves_nothing_behind() {
    let _alone = alone();
    let described = json(&Command::new(SCXPROF).args(["doctor", "--json"]).output().unwrap());
    if !may_sample("self-test", &described) {
        return;
    }
    // Its stderr would block us if a load is left behind.
    let self_test = |arguments: &[&str]| {
        let mut command = Command::new(SCXPROF);
        command.args(["doctor", "--self-test"]).args(arguments).stderr(Stdio::null()).output().unwrap()
    };
    let output = self_test(&["-t", "1", "--json"]);
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    let tests = report["self_test"].as_array().unwrap();
    let works = |check: &&Value| check["section"] == "sources" && check["state"] != "fails";
    assert_eq!(tests.len(), report["checks"].as_array().unwrap().iter().filter(works).count());
    for test in tests {
        assert_eq!(test["passed"], true, "{test:#}");
        assert_eq!(test["seen"]["of_threads"], 4);
        assert!(test["seen"]["own_buffer"].as_u64().unwrap() > 0, "{test:#}");
    }
    // A child that outlived its parent would keep a CPU busy; it may take a moment to end.
    let mut left = loads();
    for _ in 0..100 {
        if left.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
        left = loads();
    }
    for pid in &left {
        let _ = Command::new("kill").args(["-KILL", pid]).status();
    }
    assert!(left.is_empty(), "the load is still there: {left:?}");

    let output = self_test(&["-t", "0.5"]);
    let block = text(&output.stdout);
    assert!(block.starts_with("--- scxprof self-test ---\n") && block.ends_with("--- end ---\n"), "{block}");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    // A name such as "vm" or "linux" is part of other words.
    if host.trim().len() > 5 {
        assert!(!block.contains(host.trim()), "{block}");
    }
    assert!(!block.contains(env!("CARGO_MANIFEST_DIR")) && !block.contains("/home/"), "{block}");
    assert!(block.contains(env!("CARGO_PKG_VERSION")) && block.contains("faults"), "{block}");
}

/// The processes of this binary that are a self-test's load.
fn loads() -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let is_load = |process: &PathBuf| {
        std::fs::read_link(process.join("exe")).is_ok_and(|exe| exe == Path::new(SCXPROF))
            && std::fs::read(process.join("cmdline")).is_ok_and(|line| text(&line).contains("doctor-load"))
    };
    processes.filter(is_load).map(|process| process.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn wrong_usage_is_2() {
    for arguments in [&["doctor", "-t", "1"][..], &["doctor", "--self-test", "-t", "0"], &["doctor", "now"]] {
        let output = Command::new(SCXPROF).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let help = text(&Command::new(SCXPROF).args(["doctor", "--help"]).output().unwrap().stdout);
    assert!(help.contains("3  no source works, or"), "{help}");
    let help = text(&Command::new(SCXPROF).arg("--help").output().unwrap().stdout);
    assert!(!help.contains("doctor-load"), "{help}");
}
