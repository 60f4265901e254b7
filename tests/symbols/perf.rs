//! Beside perf's names of the same samples.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use scxprof::resolve::{symbolize, Maps, Modules, Roots, SymbolOptions};
use scxprof::sample::CpuMode;

use super::{Programs, Running};

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
