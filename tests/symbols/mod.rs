//! Names of code in real programs, which print where their functions are; and perf's names of the same samples.

mod code;
mod lines;
mod perf;
mod recorded;
mod written;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::SystemTime;

use scxprof::host::Roots;
use scxprof::sample::{CodeAddr, CpuMode};
use scxprof::testing::elf::Elf;
use scxprof::testing::profile::BuildId;
use scxprof::testing::resolve::{symbolize, Mapping, Maps, Modules, Symbol, SymbolOptions};

/// A directory for a test's programs.
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

    /// Builds `tests/programs/SOURCE`; `None` if there is no such compiler, or it cannot build it.
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

/// A running program that has printed where its functions are; it ends when dropped.
struct Running {
    child: Child,
    functions: BTreeMap<String, u64>,
}

impl Running {
    fn new(command: &mut Command) -> Self {
        Self::try_new(command).unwrap_or_else(|| panic!("it ended before it was ready"))
    }

    /// `None` if it ends before it is ready.
    fn try_new(command: &mut Command) -> Option<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let mut running = Self { child, functions: BTreeMap::new() };
        for line in BufReader::new(running.child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if line == "ready" {
                return Some(running);
            }
            let (name, address) = line.strip_prefix("at ").unwrap().rsplit_once(' ').unwrap();
            running.functions.insert(name.to_owned(), u64::from_str_radix(address, 16).unwrap());
        }
        None
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

/// The addresses of a program's functions, to be named.
struct Located {
    modules: Modules,
    codes: BTreeMap<String, CodeAddr>,
    begin: SystemTime,
}

impl Located {
    /// Two bytes into each function, by the process's mappings in procfs.
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

    /// Checks that no function of the program's file has a name.
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
        // The JIT compiler's map disappears with the process here.
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
    // The clock of files may not advance for some ms.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut bytes = fs::read(&program).unwrap();
    bytes.push(0);
    fs::write(&program, bytes).unwrap();
    located.expect_none();
    let (&code, options) = (located.codes.values().next().unwrap(), SymbolOptions::default());
    let notes = |begin| {
        let options = SymbolOptions { begin, ..options.clone() };
        symbolize(&located.modules, [code], &options).notes()
    };
    let [note] = &notes(Some(located.begin))[..] else { panic!("no note") };
    assert!(
        note.contains("program: no names, because the file has no build id") && note.contains("was changed"),
        "{note}"
    );
    assert_eq!(notes(Some(SystemTime::now())), Vec::<String>::new());
    // The mapping of another host says nothing of files here.
    let [note] = &notes(None)[..] else { panic!("no note") };
    assert!(note.contains("may be of another host"), "{note}");
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
    // As its records describe it: its path in its root, and the build id.
    let id = Elf::parse(&mut &fs::read(&program).unwrap()[..]).unwrap();
    let id = BuildId::new(id.build_id().unwrap());
    let mut maps = Maps::new(&Roots::default(), 1 << 20);
    let seen = fs::read(format!("/proc/{}/maps", running.pid())).unwrap();
    maps.exec(running.pid());
    for line in seen.split(|&byte| byte == b'\n') {
        let Some(mapping) = scxprof::testing::resolve::mapping::parse_line(line) else { continue };
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
