//! Recordings of perf: each sample's stack as `perf script` and as `scxprof stacks` name it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{build, compile, folded, said, stacks};

/// The functions of a file as nm knows them.
#[derive(Debug, Default)]
struct Functions {
    /// The end and the names, by the beginning.
    by_address: BTreeMap<u64, (u64, BTreeSet<String>)>,
    /// Names without a size.
    endless: BTreeSet<String>,
    /// Where a part of the file is loaded: its offset in the file, its address, its length.
    segments: Vec<(u64, u64, u64)>,
}

/// A frame as perf prints it.
#[derive(Debug)]
pub(super) struct Frame {
    /// The offset in the file. It is nm's address of the code in what GNU ld links, and not in what LLD links.
    pub address: u64,
    name: Option<String>,
    offset: u64,
    pub dso: String,
}

impl Frame {
    /// `ADDRESS SYMBOL+0xOFFSET (FILE)`
    fn parse(line: &str) -> Self {
        let (address, rest) = line.trim().split_once(' ').unwrap();
        let (symbol, dso) = rest.trim().strip_suffix(')').unwrap().rsplit_once(" (").unwrap();
        let (name, offset) = symbol.rsplit_once("+0x").unwrap_or((symbol, "0"));
        Self {
            address: u64::from_str_radix(address, 16).unwrap(),
            name: (symbol != "[unknown]").then(|| name.to_owned()),
            offset: u64::from_str_radix(offset, 16).unwrap(),
            dso: dso.to_owned(),
        }
    }

    fn is_kernel(&self) -> bool {
        self.dso.starts_with('[') && !["[unknown]", "[vdso]"].contains(&self.dso.as_str())
    }

    /// What we call it if we have no name for it.
    fn module(&self) -> String {
        let name = self.dso.rsplit('/').next().unwrap();
        if name.starts_with('[') {
            name.to_owned()
        } else {
            format!("[{name}]")
        }
    }

    /// What we should call it, and where that is not what perf says, the reason.
    fn expected(&self, is_caller: bool, nm: &mut BTreeMap<String, Functions>) -> (String, Option<&'static str>) {
        let Some(name) = &self.name else { return (self.module(), None) };
        let functions = nm.entry(self.dso.clone()).or_insert_with(|| Functions::of(&self.dso));
        if is_caller && self.offset == 0 {
            // The call before this address does not return, and is the end of another function. perf names the address, we name
            // the call. nm knows which function that is; of code by hand without a size we are not certain.
            let (name, why) = (functions.at(self.address - 1), "a call at the end of a function");
            return (name.unwrap_or_else(|| self.module()), Some(why));
        }
        if name.ends_with("@plt") {
            return (self.module(), Some("a stub has no symbol; perf names it after its target"));
        }
        let (plain, version) = name.split_once('@').unwrap_or((name, ""));
        if functions.endless.contains(plain) && functions.at(self.address).is_none() {
            return (self.module(), Some("a symbol without a size; perf ends it where the next one begins"));
        }
        (plain.to_owned(), (!version.is_empty()).then_some("the version is no part of the name"))
    }
}

impl Functions {
    /// Reads the symbols of a file and of its debug file, none if it is no file.
    fn of(path: &str) -> Self {
        let mut all = Self::default();
        let notes = Command::new("readelf").args(["-n", path]).output().unwrap();
        let notes = String::from_utf8_lossy(&notes.stdout).into_owned();
        let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
        let debug = id.and_then(|id| id.split_at_checked(2));
        let debug = debug.map(|(first, rest)| format!("/usr/lib/debug/.build-id/{first}/{rest}.debug"));
        for (path, more) in [(Some(path), &["-D"][..]), (debug.as_deref(), &[]), (Some(path), &[])] {
            let Some(path) = path else { continue };
            let output = Command::new("nm").args(["-S", "-C", "--defined-only"]).args(more).arg(path).output().unwrap();
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                all.add(line);
            }
        }
        let headers = Command::new("readelf").args(["-lW", path]).output().unwrap();
        all.segments = String::from_utf8_lossy(&headers.stdout).lines().filter_map(loaded).collect();
        all
    }

    /// `ADDRESS [SIZE] KIND NAME[@VERSION]`
    fn add(&mut self, line: &str) {
        let number = |text| u64::from_str_radix(text, 16);
        let Some((Ok(start), rest)) = line.split_once(' ').map(|(start, rest)| (number(start), rest)) else { return };
        let (size, rest) = match rest.split_once(' ') {
            Some((size, rest)) if size.len() == 16 => (number(size).unwrap(), rest),
            _ => (0, rest),
        };
        let Some(("T" | "t" | "W" | "w" | "i", name)) = rest.split_once(' ') else { return };
        let name = name.split('@').next().unwrap().to_owned();
        if size == 0 {
            self.endless.insert(name);
        } else {
            let (end, names) = self.by_address.entry(start).or_default();
            *end = start + size;
            names.insert(name);
        }
    }

    /// The function at an offset of the file.
    fn at(&self, offset: u64) -> Option<String> {
        let segment = self.segments.iter().find(|(start, _, length)| (*start..start + length).contains(&offset));
        let address = segment.map_or(offset, |(start, address, _)| offset - start + address);
        let (_, (end, names)) = self.by_address.range(..=address).next_back()?;
        names.first().filter(|_| address < *end).cloned()
    }
}

/// `LOAD OFFSET ADDRESS PHYSICAL FILE_SIZE ...`: the offset, the address and the size in the file.
fn loaded(line: &str) -> Option<(u64, u64, u64)> {
    let mut words = line.trim().strip_prefix("LOAD ")?.split_whitespace();
    let mut number = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let (offset, address, _, size) = (number()?, number()?, number()?, number()?);
    Some((offset, address, size))
}

/// Records a program by `perf record -g`; `None`, with the reason printed, if perf cannot.
pub(super) fn record(test: &str, dir: &Path, program: &Path, args: &[&str]) -> Option<PathBuf> {
    let (data, home) = (dir.join("perf.data"), dir.join("home"));
    // Where perf keeps what it needs to name the vdso.
    std::fs::create_dir_all(&home).unwrap();
    let options = ["record", "-q", "-g", "-F", "1997", "-e", "cpu-clock", "--buildid-all", "-o"];
    let mut record = Command::new("perf");
    record.args(options).arg(&data).arg("--").arg(program).args(args).env("HOME", home);
    let recorded = record.output();
    if recorded.as_ref().is_ok_and(|output| output.status.success()) {
        return Some(data);
    }
    println!("SKIP: {test}: perf record does not work: {recorded:?}");
    None
}

/// The samples of a recording: the thread's name and the frames, the innermost first, with whether the address is where a call
/// returns to.
pub(super) fn samples(data: &Path, home: &Path) -> Vec<(String, Vec<(Frame, bool)>)> {
    let mut script = Command::new("perf");
    script.args(["script", "--no-inline", "-F", "comm,ip,sym,symoff,dso", "-i"]).arg(data).env("HOME", home);
    let output = script.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    // A paragraph for each: the name, and a line for each frame.
    let paragraphs = text.split("\n\n").filter(|sample| !sample.trim().is_empty());
    let sample = |sample: &str| {
        let mut lines = sample.trim_start_matches('\n').lines();
        let comm = lines.next().unwrap().trim().to_owned();
        let mut was_kernel = true;
        let frames = lines.map(Frame::parse).map(|frame| {
            // The first is the sampled instruction, or where a program entered the kernel.
            let is_caller = !was_kernel || frame.is_kernel();
            was_kernel = frame.is_kernel();
            (frame, is_caller)
        });
        let mut frames: Vec<_> = frames.collect();
        if let Some((_, is_caller)) = frames.first_mut() {
            *is_caller = false;
        }
        (comm, frames)
    };
    paragraphs.map(sample).collect()
}

/// What perf says of a recording, in our words.
struct ByPerf {
    stacks: BTreeMap<String, u64>,
    /// Frames that should have other names than perf's, and why.
    others: BTreeSet<(String, String, &'static str)>,
    /// The first of the names of a function, by the others.
    aliases: BTreeMap<String, String>,
}

impl ByPerf {
    fn of(data: &Path, home: &Path) -> Self {
        let mut found = Self { stacks: BTreeMap::new(), others: BTreeSet::new(), aliases: BTreeMap::new() };
        let (mut nm, mut stacks) = (BTreeMap::new(), Vec::new());
        for (comm, frames) in samples(data, home) {
            let mut names = Vec::new();
            for (frame, is_caller) in frames {
                let (name, other) = frame.expected(is_caller, &mut nm);
                if let Some(why) = other {
                    found.others.insert((format!("{frame:x?}"), name.clone(), why));
                }
                names.push(if frame.is_kernel() { name + "_[k]" } else { name });
            }
            names.push(comm);
            names.reverse();
            stacks.push(names.join(";"));
        }
        for (_, names) in nm.values().flat_map(|functions| functions.by_address.values()) {
            let known = names.iter().find_map(|name| found.aliases.get(name)).or(names.first()).unwrap().clone();
            let all = names.iter().map(|name| (name.clone(), known.clone()));
            found.aliases.extend(all.filter(|_| names.len() > 1));
        }
        for stack in stacks {
            *found.stacks.entry(found.plain(&stack)).or_insert(0) += 1;
        }
        found
    }

    /// A stack with one name for each function that has several: which of them is chosen says nothing.
    fn plain(&self, stack: &str) -> String {
        let plain = |name| self.aliases.get(name).map_or(name, String::as_str);
        stack.split(';').map(plain).collect::<Vec<_>>().join(";")
    }
}

/// Compares all samples of a program. The result is our stacks, and what perf names otherwise.
fn compare(test: &str, dir: &Path, program: &Path, args: &[&str]) -> Option<(BTreeMap<String, u64>, ByPerf)> {
    let data = record(test, dir, program, args)?;
    let perf = ByPerf::of(&data, &dir.join("home"));
    let path = dir.join("folded");
    let output = stacks(test, &["-f", data.to_str()?, "--no-lines", "--folded", path.to_str()?])?;
    assert!(String::from_utf8_lossy(&output.stdout).contains("samples of cpu-clock"), "{}", said(&output));
    let found = folded(&path);
    let mut ours: BTreeMap<String, u64> = BTreeMap::new();
    for (stack, samples) in &found {
        *ours.entry(perf.plain(stack)).or_default() += samples;
    }
    for stack in perf.stacks.keys().chain(ours.keys()) {
        let others = &perf.others;
        assert_eq!(ours.get(stack), perf.stacks.get(stack), "{stack} of {:#?}, {ours:#?}, {others:#?}", perf.stacks);
    }
    println!("{args:?}: {} samples, {} stacks, {:#?}", found.values().sum::<u64>(), found.len(), perf.others);
    Some((found, perf))
}

/// Samples of stacks that end so.
fn ending(stacks: &BTreeMap<String, u64>, end: &str) -> u64 {
    stacks.iter().filter(|(stack, _)| stack.ends_with(end)).map(|(_, samples)| samples).sum()
}

#[test]
fn a_recording_of_perf_gives_its_stacks() {
    let test = "a_recording_of_perf_gives_its_stacks";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "recorded", &[]) else { return };
    let Some((found, _)) = compare(test, dir.path(), &program, &["parts", "60000"]) else { return };
    assert!(ending(&found, ";main;sixty") > 50 && ending(&found, ";main;ten") > 10, "{found:?}");
}

#[test]
fn the_vdso_is_named_as_perf_names_it() {
    let test = "the_vdso_is_named_as_perf_names_it";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "clock", &[]) else { return };
    let Some((found, _)) = compare(test, dir.path(), &program, &["clock", "20000000"]) else { return };
    if ending(&found, "clock_gettime") == 0 {
        println!("SKIP: {test}: the C library does not use the vdso");
        return;
    }
    assert!(found.keys().any(|stack| stack.ends_with(";__vdso_clock_gettime")), "{found:?}");
}

#[test]
fn a_debug_file_names_a_stripped_program() {
    let test = "a_debug_file_names_a_stripped_program";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "stripped", &["-Wl,--build-id"]) else { return };
    let run = |tool: &str, args: &[&str]| {
        Command::new(tool).args(args).current_dir(&dir).status().is_ok_and(|status| status.success())
    };
    if !run("objcopy", &["--only-keep-debug", "stripped", "stripped.debug"])
        || !run("strip", &["stripped"])
        || !run("objcopy", &["--add-gnu-debuglink=stripped.debug", "stripped"])
    {
        println!("SKIP: {test}: no objcopy and strip");
        return;
    }
    let Some((found, _)) = compare(test, dir.path(), &program, &["parts", "60000"]) else { return };
    assert!(ending(&found, ";main;sixty") > 50, "{found:?}");
}

#[test]
fn a_call_that_does_not_return_is_in_its_function() {
    let test = "a_call_that_does_not_return_is_in_its_function";
    let dir = tempfile::tempdir().unwrap();
    let flags = ["-O1", "-fno-omit-frame-pointer", "-falign-functions=1", "-fno-toplevel-reorder"];
    let Some(program) = compile(test, &dir.path().join("never"), "gcc", "stacks.c", &flags) else { return };
    let Some((found, perf)) = compare(test, dir.path(), &program, &["never", "400000000"]) else { return };
    // bottom() has no frame and hides never().
    assert!(ending(&found, ";main;last;bottom") + ending(&found, ";main;last;never;bottom") > 50, "{found:?}");
    let is_it = |(frame, name, _): &(String, String, &str)| frame.contains("after_last") && name == "last";
    assert!(perf.others.iter().any(is_it), "perf named the call too, so this says nothing: {:?}", perf.others);
}

#[test]
fn names_of_templates_and_closures_are_those_of_perf() {
    let test = "names_of_templates_and_closures_are_those_of_perf";
    let builds: [(&str, &str, &[&str], &str, &str); 3] = [
        (
            "g++",
            "calls.cpp",
            &["-O1", "-std=c++17", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"],
            "60000",
            ";outer::(anonymous namespace)::spin<unsigned long, 2000>",
        ),
        (
            "clang++",
            "calls.cpp",
            &["-O1", "-std=c++17", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-gdwarf-4"],
            "60000",
            ";outer::(anonymous namespace)::spin<unsigned long, 2000>",
        ),
        (
            "rustc",
            "calls.rs",
            &["-O", "-g", "--edition=2021", "-Cforce-frame-pointers=yes", "-Clink-arg=-Wl,--build-id"],
            "180000",
            ";<calls::Spin<_> as calls::Work>::work",
        ),
    ];
    for (compiler, source, flags, rounds, end) in builds {
        let dir = tempfile::tempdir().unwrap();
        let Some(program) = compile(test, &dir.path().join("calls"), compiler, source, flags) else { continue };
        let Some((found, _)) = compare(test, dir.path(), &program, &[rounds]) else { return };
        assert!(ending(&found, end) > 20, "{found:#?}");
    }
}
