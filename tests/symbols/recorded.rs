//! Names for the code of recordings: recorded code is named, and never from a file of another build.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use scxprof::testing::elf::Elf;

use super::{is_root, Programs, Running, C};

/// A program's recording, in the directory of the program.
struct Recording {
    programs: Programs,
    dir: PathBuf,
    program: PathBuf,
}

fn scxprof(programs: &Programs, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scxprof"));
    command.args(arguments).current_dir(programs.path("")).env("HOME", programs.path("home")).output().unwrap()
}

fn build(test: &str, flags: &[&str]) -> Option<(Programs, PathBuf)> {
    let programs = Programs::new();
    // Stubs that call other files have no name.
    let Some(program) = programs.build("cc", "symbols.c", &[C, &["-fno-plt"], flags].concat()) else {
        println!("SKIP: {test}: cannot build a C program with {flags:?}");
        return None;
    };
    Some((programs, program))
}

impl Recording {
    /// A recording of `symbols.c`, built with `flags`; `None` if this machine does not allow it.
    fn new(test: &str, flags: &[&str]) -> Option<Self> {
        let (programs, program) = build(test, flags)?;
        let running = Running::new(&mut Command::new(&program));
        Self::of(test, programs, program, &running)
    }

    /// A recording of a running program.
    fn of(test: &str, programs: Programs, program: PathBuf, running: &Running) -> Option<Self> {
        let pid = running.pid().to_string();
        let dir = programs.path("profile");
        let mut said = String::new();
        // On a busy machine a recording may have too few samples.
        for _ in 0..6 {
            let _ = fs::remove_dir_all(&dir);
            let record = ["record", "-t", "1", "--source", "timer", "--freq", "997", "--max-loss", "100"];
            let to = ["--disable-archive", "--samples-jsonl", "-o", "profile", "-p", &pid];
            let output = scxprof(&programs, &[&record[..], &to].concat());
            said = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.code() == Some(3) {
                println!("SKIP: {test}: {said}");
                return None;
            }
            let lines = fs::read_to_string(dir.join("recovered.jsonl")).unwrap_or_default();
            if lines.lines().count() > 20 {
                return Some(Self { programs, dir, program });
            }
        }
        panic!("too few samples: {said}");
    }

    /// The lines of `process`.
    fn processed(&self, options: &[&str]) -> String {
        let output = scxprof(&self.programs, &[&["process", "-f", "profile"], options].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let out = self.programs.path("profile.out");
        let lines = fs::read_to_string(out.join("perf.jsonl")).unwrap();
        fs::remove_dir_all(&out).unwrap();
        lines
    }

    /// The names of the program's functions in the lines of `process`.
    fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for line in self.processed(&[]).lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            if line["dso"].as_str().is_some_and(|dso| dso.contains("/program")) {
                names.insert(line["sym"].as_str().filter(|sym| *sym != "[unknown]").unwrap_or("none").to_owned());
            }
        }
        names
    }

    #[track_caller]
    fn expect_names(&self) {
        let names = self.names();
        assert!(names.contains("local_function") && !names.contains("none"), "{names:?}");
    }

    #[track_caller]
    fn expect_none(&self) {
        assert_eq!(self.names().into_iter().collect::<Vec<_>>(), ["none"]);
    }

    /// Makes it a recording of another host.
    fn move_elsewhere(&self) {
        let path = self.dir.join("meta.json");
        let mut meta: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let boot = &mut meta["host"]["boot_id"];
        assert!(boot.as_str().is_some_and(|boot| !boot.is_empty()), "{boot}");
        *boot = "another".into();
        fs::write(&path, serde_json::to_vec(&meta).unwrap()).unwrap();
    }

    /// Replaces the program by another build; the program is `kept` elsewhere.
    fn replace(&self, build_id: &str) -> PathBuf {
        let kept = self.programs.path("kept");
        fs::rename(&self.program, &kept).unwrap();
        self.programs.build("cc", "symbols.c", &["-O0", "-g0", build_id]).unwrap();
        kept
    }

    /// Stores a file where its build id alone finds it.
    fn put_by_build_id(&self, file: &Path) {
        let elf = Elf::parse(&mut &fs::read(file).unwrap()[..]).unwrap();
        let hex: String = elf.build_id().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        let (first, rest) = hex.split_at(2);
        let dir = self.programs.path("home/.debug/.build-id").join(first).join(rest);
        fs::create_dir_all(&dir).unwrap();
        fs::rename(file, dir.join("elf")).unwrap();
    }
}

#[test]
fn a_program_that_another_build_replaced_is_found_by_its_build_id_or_not_at_all() {
    let test = "a_program_that_another_build_replaced_is_found_by_its_build_id_or_not_at_all";
    let build_id = "-Wl,--build-id=sha1";
    let Some(recording) = Recording::new(test, &[build_id]) else { return };
    recording.expect_names();
    let kept = recording.replace(build_id);
    recording.expect_none();
    recording.move_elsewhere();
    recording.expect_none();
    recording.put_by_build_id(&kept);
    recording.expect_names();
}

#[test]
fn the_same_build_elsewhere_is_named() {
    let test = "the_same_build_elsewhere_is_named";
    let Some(recording) = Recording::new(test, &["-Wl,--build-id=sha1"]) else { return };
    recording.move_elsewhere();
    recording.expect_names();
    // As it is installed on another host: another inode, and newer than the recording.
    let copy = recording.programs.path("copy");
    fs::copy(&recording.program, &copy).unwrap();
    fs::rename(&copy, &recording.program).unwrap();
    recording.expect_names();
}

#[test]
fn a_program_without_a_build_id_is_named_where_it_is_the_same_file() {
    let test = "a_program_without_a_build_id_is_named_where_it_is_the_same_file";
    let Some(recording) = Recording::new(test, &["-Wl,--build-id=none"]) else { return };
    recording.expect_names();
    let kept = recording.replace("-Wl,--build-id=none");
    recording.expect_none();
    fs::rename(kept, &recording.program).unwrap();
    // Renaming changes the inode's time: it is unknown whether the file is the same.
    recording.expect_none();
    recording.move_elsewhere();
    recording.expect_none();
}

#[test]
fn the_lines_of_a_capture_are_those_of_its_recording() {
    let test = "the_lines_of_a_capture_are_those_of_its_recording";
    let Some(recording) = Recording::new(test, &[]) else { return };
    let captured = fs::read_to_string(recording.dir.join("perf.jsonl")).unwrap();
    assert!(captured.contains(r#""sym":"local_function","dso":""#), "{captured}");
    let processed = recording.processed(&[]);
    assert_eq!(captured.lines().count(), processed.lines().count());
    for (captured, processed) in captured.lines().zip(processed.lines()) {
        // Code of a JIT compiler is named while it runs.
        assert!(captured == processed || captured.ends_with(r#","dso":"[anon]"}"#), "{captured}\n{processed}");
    }
    let plain = recording.processed(&["--no-symbols"]);
    assert!(!plain.contains("\"dso\"") && !plain.contains("\"sym\""), "{plain}");
    let of = ["--disable-archive", "--samples-jsonl", "--no-symbols", "-o", "plain", "--max-loss", "100"];
    let output = scxprof(&recording.programs, &[&["record", "--source", "faults"], &of[..], &["--", "true"]].concat());
    assert!(output.status.success(), "{output:?}");
    let plain = fs::read_to_string(recording.programs.path("plain/perf.jsonl")).unwrap();
    assert!(plain.contains("\"ip\"") && !plain.contains("\"dso\""), "{plain}");
}

#[test]
fn a_program_in_a_container_is_named_while_it_runs() {
    let test = "a_program_in_a_container_is_named_while_it_runs";
    if !is_root(test) {
        return;
    }
    let Some((programs, program)) = build(test, &["-static", "-Wl,--build-id=sha1"]) else { return };
    // Its file is in a mount that only it sees, and so is its root.
    let start = "mount -t tmpfs none root && mkdir root/tmp && cp program root/ && exec chroot root /program";
    fs::create_dir(programs.path("root")).unwrap();
    let mut command = Command::new("unshare");
    let Some(running) = Running::try_new(command.args(["-m", "sh", "-c", start]).current_dir(programs.path(""))) else {
        println!("SKIP: {test}: no unshare, mount and chroot");
        return;
    };
    // Not that of the container.
    fs::write(&program, "another").unwrap();
    let Some(recording) = Recording::of(test, programs, program, &running) else { return };
    recording.expect_names();
    drop(running);
    recording.expect_none();
    // The recording contains the build id.
    let again = Programs::new();
    let flags = [C, &["-fno-plt", "-static", "-Wl,--build-id=sha1"]].concat();
    let kept = again.build("cc", "symbols.c", &flags).unwrap();
    let at = recording.programs.path("kept");
    fs::copy(kept, &at).unwrap();
    recording.put_by_build_id(&at);
    recording.expect_names();
}
