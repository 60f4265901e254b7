//! The systemd unit in `contrib` grants what the timer source needs, and nothing more.

use std::path::Path;
use std::process::{Command, Output};

use super::programs::{build, start};
use crate::support::alone;

/// Runs our binary as the user nobody with these capabilities and options; `None` if that cannot be tried.
fn with(test: &str, capabilities: &[&str], options: &[&str], directory: &Path) -> Option<Output> {
    // The user nobody cannot read what cargo built.
    let copy = directory.join("scxprof");
    std::fs::copy(env!("CARGO_BIN_EXE_scxprof"), &copy).expect("a copy");
    let set = std::iter::once("-all".to_owned()).chain(capabilities.iter().map(|name| format!("+{name}")));
    let set = set.collect::<Vec<_>>().join(",");
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"])
        .args([format!("--inh-caps={set}"), format!("--ambient-caps={set}"), format!("--bounding-set={set}")])
        .arg(&copy)
        .args(["run", "-t", "2", "-vv"])
        .args(options)
        .current_dir(directory)
        .output();
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    match output {
        Ok(output) if output.status.code() != Some(127) && !said(&output).contains("setpriv:") => Some(output),
        Ok(output) => {
            println!("SKIP: {test}: {}", said(&output).trim());
            None
        }
        Err(error) => {
            println!("SKIP: {test}: setpriv: {error}");
            None
        }
    }
}

#[test]
fn the_rights_of_the_unit_are_enough_and_what_is_missing_with_fewer_is_said() {
    let test = "rights of the unit";
    let _alone = alone();
    let Some(built) = build("random", 2) else {
        println!("SKIP: {test}: no cc");
        return;
    };
    let unit = include_str!("../../contrib/scxprof.service");
    let line = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).expect(key).to_lowercase();
    let names = line("AmbientCapabilities=");
    assert_eq!(names, line("CapabilityBoundingSet="));
    let names: Vec<&str> = names.split(' ').map(|name| name.trim_start_matches("cap_")).collect();
    // Under /tmp, which other users can enter; the directory itself too.
    let directory = tempfile::tempdir_in("/tmp").expect("a directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).expect("its mode");
    let _running = start(&built.path, 600.0, 4);
    let Some(output) = with(test, &names, &["--source", "timer"], directory.path()) else { return };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(3) {
        println!("SKIP: {test}: {said}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(serde_json::from_slice::<serde_json::Value>(&output.stdout).is_ok(), "{said}");
    let recovered = |said: &str| -> f64 {
        let line = said.lines().find(|line| line.starts_with("Recovered:")).unwrap_or_default();
        line.split(['(', '%']).nth(1).and_then(|percent| percent.parse().ok()).unwrap_or(0.0)
    };
    println!("{test}: {} % recovered", recovered(&said));
    assert!(recovered(&said) > 60.0 && !said.contains("CAP_SYS_PTRACE"), "{said}");
    assert!(said.contains("Readers: SCHED_FIFO"), "{said}");
    // Without it, other users' processes cannot be read, and the run reports that.
    let fewer: Vec<&str> = names.iter().copied().filter(|name| *name != "sys_ptrace").collect();
    let Some(output) = with(test, &fewer, &["--source", "timer"], directory.path()) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("it takes CAP_SYS_PTRACE"), "{said}");
    // Kernel code: the unit's rights are enough, each of these is needed, and no other source stands in. In two seconds the random
    // accesses may never be sampled in the kernel; what copies by system calls is.
    let Some(built) = build("copies", 2) else { return println!("SKIP: {test}: no cc") };
    let _copies = start(&built.path, 600.0, 2);
    let Some(output) = with(test, &names, &["--kernel"], directory.path()) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) {
        println!("SKIP: {test}: kernel code: {said}");
        return;
    }
    assert!(said.contains(" kernel samples ("), "{said}");
    for (name, help) in [("bpf", "CAP_BPF"), ("syslog", "CAP_SYSLOG"), ("dac_read_search", "CAP_DAC_READ_SEARCH")] {
        let fewer: Vec<&str> = names.iter().copied().filter(|other| *other != name).collect();
        let Some(output) = with(test, &fewer, &["--kernel"], directory.path()) else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{name}: {said}");
        let line = said.lines().find(|line| line.contains("kernel code cannot be sampled here")).unwrap_or_default();
        assert!(line.contains(help), "{name}: {said}");
    }
}
