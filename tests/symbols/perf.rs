//! Compares with perf's names of the same samples.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use scxprof::host::Roots;
use scxprof::sample::CpuMode;
use scxprof::testing::profile::writer::{finished_round, PerfDataWriter};
use scxprof::testing::resolve::{symbolize, Maps, Modules, SymbolOptions};
use scxprof::testing::sampler::attr::{layout, sampling, EventSpec, Features, Scope};
use scxprof::testing::sampler::encode::encode;
use scxprof::testing::sampler::record::{Record, SampleId, SampleRecord};
use scxprof::testing::sampler::OpenEvents;

use super::{Programs, Running};

/// An instruction as `perf script -F ip,sym,symoff,dso` prints it.
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

/// Records the process for a while; `None` if perf cannot.
fn perf_script(pid: u32, recording: &Path) -> Option<String> {
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-e", "cpu-clock", "-F", "999", "-p", &pid.to_string(), "-o"]);
    record.arg(recording).args(["--", "sleep", "0.7"]).output().ok()?;
    script(recording)
}

/// perf's output for a recording; `None` if there is no perf.
fn script(recording: &Path) -> Option<String> {
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
                // perf extends a symbol without a size to the next one, and names stubs after their targets.
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

/// The range of the kernel's own code, and addresses in functions with a unique and with a repeated name. Code that only boots
/// the kernel is left out: we do not name it, because it is freed then.
fn kernel_addresses() -> (u64, u64, Vec<u64>) {
    let kallsyms = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let (mut start, mut end) = (0, 0);
    let mut addresses = Vec::new();
    let mut last = 0;
    for (number, line) in kallsyms.lines().enumerate() {
        let mut words = line.split_whitespace();
        let Some(address) = words.next().and_then(|word| u64::from_str_radix(word, 16).ok()) else { continue };
        match line.rsplit(' ').next() {
            Some("_text") => start = address,
            Some("_etext") => end = address,
            _ => {}
        }
        let is_code = words.next().is_some_and(|kind| "tTwW".contains(kind));
        if is_code && address != 0 && (address == last || number % 40 == 0) {
            addresses.extend([address, address + 3]);
        }
        last = address;
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses.retain(|&address| address < end);
    (start, end, addresses)
}

#[test]
fn the_kernel_is_named_as_perf_names_it() {
    let test = "the_kernel_is_named_as_perf_names_it";
    let (start, end, addresses) = kernel_addresses();
    if addresses.is_empty() {
        println!("SKIP: {test}: kallsyms hides its addresses");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    let attr = sampling(&EventSpec::minor_faults(), Features::all(), Scope::default(), 4096);
    let layout = layout(&attr);
    let events = [OpenEvents { name: "minor-faults".into(), attr, ids: vec![1], is_aside: false }];
    let mut writer = PerfDataWriter::new(
        BufWriter::new(File::create(&path).unwrap()),
        events.iter().map(OpenEvents::desc).collect(),
    )
    .unwrap();
    let mut bytes = Vec::new();
    let mapping = Record::Mmap {
        pid: u32::MAX,
        tid: 0,
        addr: start,
        len: end - start,
        pgoff: start,
        data: false,
        filename: b"[kernel.kallsyms]_text",
    };
    assert!(encode(&mapping, &SampleId::default(), 1, &layout, &mut bytes));
    for (time, &ip) in (1..).zip(&addresses) {
        let sample = SampleRecord { identifier: 1, ip, pid: 1, tid: 1, time, ..SampleRecord::default() };
        // Of the kernel's mode.
        assert!(encode(&Record::Sample(sample), &SampleId::default(), 1, &layout, &mut bytes));
    }
    bytes.extend(finished_round());
    writer.write(&bytes).unwrap();
    writer.finish(Vec::new()).unwrap();
    let Some(perf) = script(&path) else {
        println!("SKIP: {test}: perf is not here");
        return;
    };
    let perf: Vec<PerfName> = perf.lines().filter_map(parse_perf).collect();
    assert_eq!(perf.len(), addresses.len());
    let mut maps = Maps::recorded(1 << 20);
    let mut modules = Modules::new();
    let codes: Vec<_> =
        addresses.iter().map(|&ip| modules.locate(&mut maps, 1, CpuMode::Kernel, ip).unwrap()).collect();
    let options = SymbolOptions { begin: Some(SystemTime::now()), ..SymbolOptions::default() };
    let symbols = symbolize(&modules, codes.iter().copied(), &options);
    let mut others = 0;
    for (perf, &code) in perf.iter().zip(&codes) {
        let symbol = symbols.get(code).unwrap();
        let function = symbol.function.as_ref();
        let ours = function.map(|(name, offset)| (&**name, *offset));
        let theirs = perf.name.as_deref().map(|name| (name, perf.offset));
        // Another perf may choose another name of the same function.
        assert_eq!(ours.map(|it| it.1), theirs.map(|it| it.1), "{:x} is {theirs:?} to perf, {ours:?} to us", perf.ip);
        if ours != theirs {
            println!("{:x} is {theirs:?} to perf, {ours:?} to us", perf.ip);
            others += 1;
        }
    }
    println!("{others} of {} have another name", perf.len());
    assert!(others * 20 < perf.len());
}

/// A sample by its time and address, with its name and file.
type Named = BTreeMap<(String, u64), (Option<String>, String)>;

/// perf's names for the samples of a recording.
fn named_by_perf(programs: &Programs, recording: &Path) -> Named {
    let mut script = Command::new("perf");
    script.args(["script", "--ns", "-F", "time,ip,sym,dso", "-i"]).arg(recording).env("HOME", programs.path("home"));
    let output = script.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let line = |line: &str| {
        let (time, rest) = line.trim().split_once(':')?;
        let (ip, rest) = rest.trim().split_once(' ')?;
        let rest = rest.trim().strip_suffix(')')?;
        let at = rest.rfind(" (/").or_else(|| rest.rfind(" (["))?;
        let (symbol, dso) = (&rest[..at], rest[at + 2..].to_owned());
        // The version of a symbol is no part of its name.
        let symbol = symbol.split('@').next().filter(|_| symbol != "[unknown]" && !symbol.ends_with("@plt"));
        Some(((time.to_owned(), u64::from_str_radix(ip, 16).ok()?), (symbol.map(ToOwned::to_owned), dso)))
    };
    String::from_utf8_lossy(&output.stdout).lines().filter_map(line).collect()
}

/// Our names for them, as a recording from elsewhere: perf does not record which host it was.
fn named_by_us(programs: &Programs, recording: &Path) -> Named {
    let mut process = Command::new(env!("CARGO_BIN_EXE_scxprof"));
    process.arg("process").arg("-f").arg(recording).env("HOME", programs.path("home"));
    let output = process.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut out = recording.as_os_str().to_owned();
    out.push(".out");
    let lines = fs::read_to_string(Path::new(&out).join("perf.jsonl")).unwrap();
    fs::remove_dir_all(out).unwrap();
    let line = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |field: &str| line[field].as_str().filter(|text| *text != "[unknown]").map(ToOwned::to_owned);
        let ip = u64::from_str_radix(&text("ip").unwrap(), 16).unwrap();
        ((text("time").unwrap(), ip), (text("sym"), text("dso").unwrap_or_default()))
    };
    lines.lines().map(line).collect()
}

/// Compares the names of a program that runs now. Only perf names code of the JIT compiler, because it trusts any map with that
/// pid, and stubs and symbols without a size (at most one in twenty).
fn compare(test: &str, programs: &Programs, running: &Running, expect: bool) -> bool {
    let recording = programs.path("perf.data");
    fs::create_dir_all(programs.path("home")).unwrap();
    let mut same = 0;
    // A busy machine gives the program little time.
    for _ in 0..20 {
        let mut record = Command::new("perf");
        record.args(["record", "-q", "-e", "cpu-clock", "-F", "999", "-p", &running.pid().to_string(), "-o"]);
        record.arg(&recording).args(["--", "sleep", "0.7"]).env("HOME", programs.path("home"));
        if !record.output().is_ok_and(|output| output.status.success()) {
            println!("SKIP: {test}: perf is not here or may not record");
            return false;
        }
        let (perf, ours) = (named_by_perf(programs, &recording), named_by_us(programs, &recording));
        assert_eq!(perf.keys().collect::<Vec<_>>(), ours.keys().collect::<Vec<_>>());
        let (mut other, mut only_ours, mut only_perf) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        for ((at, (theirs, dso)), (name, own_dso)) in perf.iter().zip(ours.values()) {
            match (theirs, name) {
                _ if dso.contains("/perf-") => assert_eq!((name, own_dso.as_str()), (&None, "[anon]")),
                (Some(theirs), Some(name)) if theirs == name => {
                    assert_eq!(dso, own_dso, "{at:x?}");
                    same += usize::from(dso.contains("program"));
                }
                (Some(theirs), Some(name)) => drop(other.insert(format!("{theirs} is {name} to us"))),
                (Some(theirs), None) => *only_perf.entry((theirs, dso)).or_insert(0) += 1,
                (None, Some(name)) => drop(only_ours.insert((name, own_dso))),
                (None, None) => {}
            }
        }
        println!("of {} samples {same} are named alike in the program, otherwise: {other:?}", perf.len());
        println!("by perf alone {only_perf:?}, by us alone {only_ours:?}");
        assert!(only_perf.values().sum::<usize>() * 20 <= perf.len(), "names are missing");
        assert!(other.len() <= 5, "{other:?}");
        if same > 10 || !expect {
            break;
        }
    }
    assert_eq!(same > 10, expect, "{same}");
    true
}

#[test]
fn recordings_of_perf_are_named_as_perf_names_them() {
    let test = "recordings_of_perf_are_named_as_perf_names_them";
    let builds: [(&str, &str, &[&str]); 5] = [
        ("cc", "symbols.c", &["-O1", "-g0", "-pie", "-fPIE"]),
        ("cc", "symbols.c", &["-O1", "-g0", "-no-pie", "-fno-pie"]),
        ("cc", "symbols.c", &["-O1", "-g0", "-static"]),
        ("g++", "symbols.cpp", &["-O1"]),
        ("rustc", "symbols.rs", &["-O", "--edition=2021", "-Clink-arg=-Wl,--build-id"]),
    ];
    for (compiler, source, flags) in builds {
        let programs = Programs::new();
        let flags = if compiler == "rustc" { flags.to_vec() } else { [flags, &["-Wl,--build-id"]].concat() };
        let Some(program) = programs.build(compiler, source, &flags) else { continue };
        let running = Running::new(&mut Command::new(program));
        println!("{compiler} {flags:?}");
        if !compare(test, &programs, &running, true) {
            return;
        }
    }
}

#[test]
fn stripped_and_deleted_programs_are_named_as_perf_names_them() {
    let test = "stripped_and_deleted_programs_are_named_as_perf_names_them";
    let programs = Programs::new();
    let Some(program) = super::c(&programs, test, &["-Wl,--build-id"]) else { return };
    if !programs.run("objcopy", &["--only-keep-debug", "program", "program.debug"])
        || !programs.run("strip", &["program"])
        || !programs.run("objcopy", &["--add-gnu-debuglink=program.debug", "program"])
    {
        println!("SKIP: {test}: no objcopy and strip");
        return;
    }
    let running = Running::new(&mut Command::new(&program));
    if !compare(test, &programs, &running, true) {
        return;
    }
    // Without its cache perf does not know a deleted file, and neither do we from its recording.
    fs::remove_file(program).unwrap();
    let _ = fs::remove_dir_all(programs.path("home"));
    compare(test, &programs, &running, false);
}
