//! Functions that the compiler put into their callers: those of `scxprof stacks` and of addr2line, for each address.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::perf::{record, samples};
use super::{compile, folded, stacks};

/// The functions at an address, the outermost first, as we mark them.
fn at(reader: &str, program: &Path, address: u64, known: &mut BTreeMap<u64, Vec<String>>) -> Vec<String> {
    let ask = || {
        let mut ask = Command::new(reader);
        let output = ask.args(["-i", "-f", "-e"]).arg(program).arg(format!("{address:#x}")).output().unwrap();
        // A line with the function and one with its source, for each, the innermost first.
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut names: Vec<String> = text.lines().step_by(2).map(ToOwned::to_owned).collect();
        names.reverse();
        for inlined in names.iter_mut().skip(1) {
            inlined.push_str("_[i]");
        }
        names
    };
    known.entry(address).or_insert_with(ask).clone()
}

#[test]
fn inlined_functions_are_those_of_addr2line() {
    let test = "inlined_functions_are_those_of_addr2line";
    // clang writes the ranges of a function by their index (DW_FORM_rnglistx in DWARF 5). addr2line of binutils 2.40 does not
    // understand it: it gives the line of the inlined function, and not the function. That of LLVM does.
    let builds: [(&str, &[&str], &str); 4] = [
        ("gcc", &["-O2", "-g"], "addr2line"),
        ("gcc", &["-O2", "-gdwarf-4", "-ffunction-sections"], "addr2line"),
        ("clang", &["-O2", "-gdwarf-4"], "addr2line"),
        ("clang", &["-O2", "-gdwarf-5"], "llvm-addr2line"),
    ];
    for (compiler, flags, reader) in builds {
        if Command::new(reader).arg("--version").output().is_err() {
            println!("SKIP: {test}: no {reader}");
            continue;
        }
        let dir = tempfile::tempdir().unwrap();
        let flags = [flags, &["-fno-omit-frame-pointer", "-Wl,--build-id"]].concat();
        let Some(program) = compile(test, &dir.path().join("calls"), compiler, "calls.c", &flags) else { continue };
        let Some(data) = record(test, dir.path(), &program, &["1500000"]) else { return };
        let (mut expected, mut known, mut deepest) = (BTreeMap::new(), BTreeMap::new(), 0);
        for (_, frames) in samples(&data, &dir.path().join("home")) {
            // The frames of the program, with those of an interrupt and of what runs main() left out.
            let is_of_program = |dso: &str| Path::new(dso) == program;
            let mut stack = Vec::new();
            for (frame, is_caller) in frames.iter().filter(|(frame, _)| is_of_program(&frame.dso)) {
                let functions = at(reader, &program, frame.address - u64::from(*is_caller), &mut known);
                deepest = deepest.max(functions.len());
                stack.splice(0..0, functions);
            }
            if stack.first().is_some_and(|first| first == "main") {
                *expected.entry(stack.join(";")).or_insert(0) += 1;
            }
        }
        let path = dir.path().join("folded");
        let args = ["-f", data.to_str().unwrap(), "--folded", path.to_str().unwrap()];
        if stacks(test, &args).is_none() {
            return;
        }
        let mut found: BTreeMap<String, u64> = BTreeMap::new();
        for (stack, samples) in folded(&path) {
            let frames = stack.split(';').skip_while(|frame| *frame != "main");
            let stack: Vec<_> = frames.take_while(|frame| !frame.ends_with("_[k]")).collect();
            if !stack.is_empty() {
                *found.entry(stack.join(";")).or_default() += samples;
            }
        }
        for stack in expected.keys().chain(found.keys()) {
            assert_eq!(found.get(stack), expected.get(stack), "{stack} of {expected:#?}, {found:#?}");
        }
        let all: u64 = found.values().sum();
        println!(
            "{compiler} {flags:?}: {all} samples, {} stacks, {} addresses, {deepest} functions at one",
            found.len(),
            known.len()
        );
        assert!(all > 100 && known.len() > 20 && deepest >= 4, "{all} samples, {} addresses, {deepest}", known.len());
    }
}
