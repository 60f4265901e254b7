//! Names of code in real programs, which say themselves where their functions are; and beside perf's names of the same samples.

#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks)] // A test that cannot go on must fail.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::SystemTime;

use scxprof::resolve::mapping::BuildId;
use scxprof::resolve::{symbolize, Mapping, Maps, Modules, Roots, Symbol, SymbolOptions};
use scxprof::sample::{CodeAddr, CpuMode};
use scxprof::sampler::operand::elf::Elf;

/// A directory of its own for a test's programs.
struct Programs {
    dir: tempfile::TempDir,
}

impl Programs {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Builds `tests/programs/SOURCE`; `None` where there is no such compiler, or it cannot do that.
    fn build(&self, compiler: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
        let path = self.path("program");
        let output = Command::new(compiler).args(flags).arg(source).arg("-o").arg(&path).output().ok()?;
        if !output.status.success() {
            println!("{compiler} {flags:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        output.status.success().then_some(path)
    }

    fn run(&self, tool: &str, arguments: &[&str]) -> bool {
        Command::new(tool).args(arguments).current_dir(&self.dir).status().is_ok_and(|status| status.success())
    }
}

/// A running program that has said where its functions are; it ends when dropped.
struct Running {
    child: Child,
    functions: BTreeMap<String, u64>,
}

impl Running {
    fn new(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut running = Self { child, functions: BTreeMap::new() };
        for line in BufReader::new(running.child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if line == "ready" {
                return running;
            }
            let (name, address) = line.strip_prefix("at ").unwrap().rsplit_once(' ').unwrap();
            running.functions.insert(name.to_owned(), u64::from_str_radix(address, 16).unwrap());
        }
        panic!("the program ended before it was ready");
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(format!("/tmp/perf-{}.map", self.child.id()));
    }
}

/// Where a program's functions are, to be named.
struct Located {
    modules: Modules,
    codes: BTreeMap<String, CodeAddr>,
    begin: SystemTime,
}

impl Located {
    /// Two bytes into each function, by what procfs says of the process.
    fn new(running: &Running) -> Self {
        Self::of(running, &mut Maps::new(&Roots::default(), 1 << 20))
    }

    fn of(running: &Running, maps: &mut Maps) -> Self {
        let mut modules = Modules::new();
        let codes = running.functions.iter().map(|(name, address)| {
            let code = modules.locate(maps, running.pid(), CpuMode::User, address + 2);
            (name.clone(), code.unwrap_or_else(|| panic!("{name} at {address:x} is nowhere")))
        });
        let codes = codes.collect();
        modules.finish(maps);
        Self { modules, codes, begin: SystemTime::now() }
    }

    fn symbols(&self) -> BTreeMap<String, Symbol> {
        let options = SymbolOptions { begin: Some(self.begin), ..SymbolOptions::default() };
        let symbols = symbolize(&self.modules, self.codes.values().copied(), &options);
        self.codes.iter().map(|(name, &code)| (name.clone(), symbols.get(code).unwrap().clone())).collect()
    }

    #[track_caller]
    fn expect_names(&self) {
        for (name, symbol) in self.symbols() {
            let found = symbol.function.clone().unwrap_or_else(|| panic!("{name} has no name: {symbol}"));
            assert!(found.0.contains(&name), "{name} is called {symbol}");
            assert_eq!(found.1, 2, "{symbol}");
        }
    }

    /// That no function of the program's file has a name.
    #[track_caller]
    fn expect_none(&self) {
        for (name, symbol) in self.symbols() {
            assert!(name == "jitted_function" || symbol.function.is_none(), "{name} is called {symbol}");
            let offset = self.codes[&name].offset;
            assert!(name == "jitted_function" || symbol.to_string() == format!("program+{offset:#x}"), "{symbol}");
        }
    }
}

const C: &[&str] = &["-O1", "-g0"];

fn c(programs: &Programs, test: &str, flags: &[&str]) -> Option<PathBuf> {
    let built = programs.build("cc", "symbols.c", &[C, flags].concat());
    if built.is_none() {
        println!("SKIP: {test}: cannot build a C program with {flags:?}");
    }
    built
}

fn is_root(test: &str) -> bool {
    // SAFETY: takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("SKIP: {test}: takes root");
    }
    root
}

#[test]
fn programs_that_run_and_that_have_ended() {
    let test = "programs_that_run_and_that_have_ended";
    let builds: [(&str, &str, &[&str]); 6] = [
        ("cc", "symbols.c", &["-O1", "-g0", "-pie", "-fPIE"]),
        ("cc", "symbols.c", &["-O1", "-g0", "-no-pie", "-fno-pie"]),
        ("cc", "symbols.c", &["-O1", "-g0", "-static"]),
        ("cc", "symbols.c", &["-O1", "-g", "-Wl,--build-id=none"]),
        ("g++", "symbols.cpp", &["-O1"]),
        ("rustc", "symbols.rs", &["-O", "--edition=2021"]),
    ];
    for (compiler, source, flags) in builds {
        let programs = Programs::new();
        let Some(program) = programs.build(compiler, source, flags) else {
            println!("SKIP: {test}: cannot build {source} with {compiler} {flags:?}");
            continue;
        };
        let running = Running::new(&mut Command::new(program));
        let mut located = Located::new(&running);
        located.expect_names();
        // The JIT compiler's map goes with the process here.
        drop(running);
        located.codes.remove("jitted_function");
        located.expect_names();
    }
}

#[test]
fn stripped_programs_are_named_from_their_debug_files() {
    let test = "stripped_programs_are_named_from_their_debug_files";
    for build_id in ["-Wl,--build-id=sha1", "-Wl,--build-id=none"] {
        let programs = Programs::new();
        let Some(program) = c(&programs, test, &[build_id]) else { return };
        if !programs.run("objcopy", &["--only-keep-debug", "program", "program.debug"])
            || !programs.run("strip", &["program"])
            || !programs.run("objcopy", &["--add-gnu-debuglink=program.debug", "program"])
        {
            println!("SKIP: {test}: no objcopy and strip");
            return;
        }
        let running = Running::new(&mut Command::new(program));
        let located = Located::new(&running);
        located.expect_names();
        fs::create_dir(programs.path(".debug")).unwrap();
        fs::rename(programs.path("program.debug"), programs.path(".debug/program.debug")).unwrap();
        located.expect_names();
        // A debug file of another build.
        let other = Programs::new();
        other.build("cc", "symbols.c", &["-O0", "-g", build_id]).unwrap();
        fs::copy(other.path("program"), programs.path(".debug/program.debug")).unwrap();
        located.expect_none();
        fs::remove_file(programs.path(".debug/program.debug")).unwrap();
        located.expect_none();
    }
}

#[test]
fn a_deleted_program_is_named_while_it_runs() {
    let test = "a_deleted_program_is_named_while_it_runs";
    let programs = Programs::new();
    let Some(program) = c(&programs, test, &[]).filter(|_| is_root(test)) else { return };
    let running = Running::new(&mut Command::new(&program));
    let before = Located::new(&running);
    fs::remove_file(&program).unwrap();
    before.expect_names();
    Located::new(&running).expect_names();
    // Another program under its name.
    programs.build("cc", "symbols.c", &["-O0"]).unwrap();
    before.expect_names();
    drop(running);
    before.expect_none();
}

#[test]
fn a_program_that_was_written_over_is_not_named() {
    let test = "a_program_that_was_written_over_is_not_named";
    let programs = Programs::new();
    let Some(program) = c(&programs, test, &[]) else { return };
    let running = Running::new(&mut Command::new(&program));
    let mut located = Located::new(&running);
    drop(running);
    located.codes.remove("jitted_function");
    located.expect_names();
    // The clock of files may stand still for some ms.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut bytes = fs::read(&program).unwrap();
    bytes.push(0);
    fs::write(&program, bytes).unwrap();
    located.expect_none();
}

#[test]
fn a_program_in_a_root_of_its_own() {
    let test = "a_program_in_a_root_of_its_own";
    let programs = Programs::new();
    let flags = ["-static", "-Wl,--build-id=sha1"];
    let Some(program) = c(&programs, test, &flags).filter(|_| is_root(test)) else { return };
    let root = std::ffi::CString::new(programs.dir.path().to_str().unwrap()).unwrap();
    let mut command = Command::new("/program");
    // SAFETY: chroot and chdir are async-signal-safe and the name was made before the fork.
    unsafe {
        command.pre_exec(move || {
            if libc::chroot(root.as_ptr()) == 0 && libc::chdir(c"/".as_ptr()) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    fs::create_dir(programs.path("tmp")).unwrap();
    let running = Running::new(&mut command);
    // As its records tell it: the path that it has in its root, and the build id.
    let id = Elf::parse(&mut &fs::read(&program).unwrap()[..]).unwrap();
    let id = BuildId::new(id.build_id().unwrap());
    let mut maps = Maps::new(&Roots::default(), 1 << 20);
    let seen = fs::read(format!("/proc/{}/maps", running.pid())).unwrap();
    maps.exec(running.pid());
    for line in seen.split(|&byte| byte == b'\n') {
        let Some(mapping) = scxprof::resolve::mapping::parse_line(line) else { continue };
        let is_program = mapping.path.ends_with(b"/program");
        let inner: Arc<[u8]> = if is_program { Arc::from(&b"/program"[..]) } else { Arc::clone(&mapping.path) };
        let (dev, ino, build_id) = if is_program { (0, 0, Some(id)) } else { (mapping.dev, mapping.ino, None) };
        maps.mmap(running.pid(), &Mapping { path: inner, dev, ino, build_id, ..mapping });
    }
    let located = Located::of(&running, &mut maps);
    located.expect_names();
    assert_eq!(&*located.symbols()["local_function"].dso, b"/program");
    fs::remove_file(&program).unwrap();
    located.expect_names();
    drop(running);
    located.expect_none();
}

/// An instruction as `perf script -F ip,sym,symoff,dso` has it.
#[derive(Debug)]
struct PerfName {
    ip: u64,
    name: Option<String>,
    offset: u64,
}

fn parse_perf(line: &str) -> Option<PerfName> {
    let (ip, rest) = line.trim().split_once(' ')?;
    let ip = u64::from_str_radix(ip, 16).ok()?;
    let (symbol, _dso) = rest.trim().rsplit_once(" (")?;
    if symbol == "[unknown]" {
        return Some(PerfName { ip, name: None, offset: 0 });
    }
    let (name, offset) = symbol.rsplit_once("+0x").unwrap_or((symbol, "0"));
    Some(PerfName { ip, name: Some(name.to_owned()), offset: u64::from_str_radix(offset, 16).ok()? })
}

/// Records the process for a while; `None` where perf cannot.
fn perf_script(pid: u32, recording: &Path) -> Option<String> {
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-e", "cpu-clock", "-F", "999", "-p", &pid.to_string(), "-o"]);
    record.arg(recording).args(["--", "sleep", "0.7"]).output().ok()?;
    let mut script = Command::new("perf");
    let output = script.args(["script", "-F", "ip,sym,symoff,dso", "-i"]).arg(recording).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn perf_names_the_same_samples_alike() {
    let test = "perf_names_the_same_samples_alike";
    let builds: [(&str, &str, &[&str]); 4] = [
        ("cc", "symbols.c", &["-O1", "-g0", "-pie", "-fPIE"]),
        ("cc", "symbols.c", &["-O1", "-g0", "-no-pie", "-fno-pie"]),
        ("g++", "symbols.cpp", &["-O1"]),
        ("rustc", "symbols.rs", &["-O", "--edition=2021"]),
    ];
    for (compiler, source, flags) in builds {
        let programs = Programs::new();
        let Some(program) = programs.build(compiler, source, flags) else { continue };
        let running = Running::new(&mut Command::new(program));
        let mut perf = Vec::new();
        // A busy machine gives the program little time.
        for _ in 0..20 {
            let Some(lines) = perf_script(running.pid(), &programs.path("perf.data")) else {
                println!("SKIP: {test}: perf is not here or may not record");
                return;
            };
            perf.extend(lines.lines().filter_map(parse_perf));
            if perf.len() > 20 {
                break;
            }
        }
        let mut maps = Maps::new(&Roots::default(), 1 << 20);
        let mut modules = Modules::new();
        let codes: Vec<_> =
            perf.iter().map(|it| modules.locate(&mut maps, running.pid(), CpuMode::Unknown, it.ip)).collect();
        let options = SymbolOptions { begin: Some(SystemTime::now()), ..SymbolOptions::default() };
        let symbols = symbolize(&modules, codes.iter().flatten().copied(), &options);
        let (mut same, mut only_perf, mut aliases) = (0, 0, 0);
        let mut other_names = BTreeSet::new();
        for (perf, code) in perf.iter().zip(&codes) {
            let ours = code.and_then(|code| symbols.get(code)).and_then(|symbol| symbol.function.clone());
            match (&perf.name, ours) {
                (None, None) => {}
                (Some(name), Some((own, offset))) => {
                    // Two names of one function are at the same distance. perf's demangler has another style.
                    assert_eq!(perf.offset, offset, "{perf:?} is {own}+{offset:#x} to us");
                    if *name == *own {
                        same += 1;
                    } else {
                        aliases += 1;
                        other_names.insert(format!("{name} is {own} to us"));
                    }
                }
                // perf stretches a symbol without a size to the next one, and names stubs after what they call.
                (Some(name), None) => {
                    println!("{name}+{:#x} has no name to us", perf.offset);
                    only_perf += 1;
                }
                (None, Some(own)) => println!("{own:?} has no name to perf ({perf:?})"),
            }
        }
        println!("{other_names:?}");
        println!("{source}: {same} same, {aliases} other name, {only_perf} only perf's, of {}", perf.len());
        assert!(same + aliases > 10, "too few to compare: {perf:?}");
        assert!(only_perf * 20 <= perf.len(), "{only_perf} of {} names are missing", perf.len());
    }
}

/// The instructions of all lines in a report.
fn code_of(report: &serde_json::Value) -> Vec<(String, String)> {
    let list = |value: &serde_json::Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let subcells = list(report, "cells").into_iter().flat_map(|cell| list(&cell, "subcells"));
    let lines = subcells.flat_map(|subcell| list(&subcell, "lines"));
    lines.flat_map(|line| list(&line, "code")).map(|code| (text(&code["sym"]), text(&code["dso"]))).collect()
}

#[test]
fn a_report_names_the_code_of_shared_lines() {
    let test = "a_report_names_the_code_of_shared_lines";
    let programs = Programs::new();
    let flags = ["-O1", "-g0", "-pthread", "-fno-inline"];
    let Some(program) = programs.build("cc", "queue.c", &flags) else {
        println!("SKIP: {test}: no C compiler");
        return;
    };
    let mut child = Command::new(program).arg("100").stdout(Stdio::null()).spawn().unwrap();
    let report = programs.path("report.json");
    let mut found = Vec::new();
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scxprof"));
        command.args(["run", "-t", "2", "--source", "timer", "--freq", "997", "--max-loss", "100", "-p"]);
        command.arg(child.id().to_string()).args(more).arg("--report").arg(&report).output().unwrap()
    };
    let (mut said, mut skipped) = (String::new(), false);
    // On a busy machine a capture may see too little.
    for _ in 0..6 {
        let output = run(&["-vv"]);
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(3) {
            println!("SKIP: {test}: {said}");
            skipped = true;
            break;
        }
        if output.status.success() {
            found = code_of(&serde_json::from_slice(&fs::read(&report).unwrap()).unwrap());
        }
        if !found.is_empty() {
            assert!(said.contains("hottest code of"), "{said}");
            let none = run(&["--no-symbols"]);
            if none.status.success() {
                assert_eq!(code_of(&serde_json::from_slice(&fs::read(&report).unwrap()).unwrap()), []);
            }
            break;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    if skipped {
        return;
    }
    let ours =
        |(sym, dso): &&(String, String)| ["produce", "consume"].contains(&sym.as_str()) && dso.ends_with("/program");
    assert!(found.iter().any(|it| ours(&it)), "{found:?}\n{said}");
}

#[test]
fn lines_of_a_profile_name_their_code() {
    let test = "lines_of_a_profile_name_their_code";
    let programs = Programs::new();
    let Some(program) = programs.build("cc", "queue.c", &["-O1", "-g0", "-pthread", "-fno-inline"]) else {
        println!("SKIP: {test}: no C compiler");
        return;
    };
    let mut child = Command::new(program).arg("100").stdout(Stdio::null()).spawn().unwrap();
    let pid = child.id().to_string();
    let scxprof = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_scxprof")).args(arguments).current_dir(&programs.dir).output().unwrap()
    };
    let (mut named, mut said) = (Vec::new(), String::new());
    // On a busy machine a recording may see too little.
    for number in 0..6 {
        let dir = format!("profile-{number}");
        let record = ["record", "-t", "1", "--source", "timer", "--freq", "997", "--max-loss", "100"];
        let output = scxprof(&[&record[..], &["--disable-archive", "-o", &dir, "-p", &pid]].concat());
        said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(3) {
            break;
        }
        let output = scxprof(&["process", "-f", &dir]);
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        let lines = fs::read_to_string(programs.path(&format!("{dir}.out/perf.jsonl"))).unwrap_or_default();
        let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        named = lines.filter_map(|line| line["sym"].as_str().map(ToOwned::to_owned)).collect();
        if !named.is_empty() {
            let plain = scxprof(&["extract", "-f", &format!("{dir}.out/perf.jsonl")]);
            assert!(matches!(plain.status.code(), Some(0 | 1)), "{plain:?}");
            break;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    if named.is_empty() && !said.contains("wrote") {
        println!("SKIP: {test}: {said}");
        return;
    }
    assert!(named.iter().any(|sym| ["produce", "consume"].contains(&sym.as_str())), "{named:?}\n{said}");
}
