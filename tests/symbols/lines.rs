//! Source lines and inlined functions, from the debug information of programs.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use super::{is_root, Located, Programs, Running};
use scxprof::resolve::{symbolize, Symbol, SymbolOptions};
use scxprof::sample::CodeAddr;

/// The name of the instruction that the program printed.
fn outer(located: &Located, lines: bool) -> Symbol {
    let scxprof = Path::new(env!("CARGO_BIN_EXE_scxprof"));
    let lines = lines.then(|| scxprof.to_owned());
    let options = SymbolOptions { begin: Some(located.begin), lines, ..SymbolOptions::default() };
    let code = located.codes["outer"];
    symbolize(&located.modules, [code], &options).get(code).unwrap().clone()
}

/// `FILE:LINE` of the line with the instruction, without the directory.
fn expected(source: &str) -> String {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source)).unwrap();
    let number = 1 + text.lines().position(|line| line.contains("here: nop")).unwrap();
    format!("{source}:{number}")
}

#[test]
fn an_instruction_has_its_line_and_the_functions_that_were_inlined() {
    let test = "an_instruction_has_its_line_and_the_functions_that_were_inlined";
    let builds: [(&str, &str, &[&str], [&str; 2]); 3] = [
        ("cc", "inlined.c", &["-O1", "-g"], ["middle", "inner"]),
        ("cc", "inlined.c", &["-O1", "-g", "-no-pie", "-gdwarf-4"], ["middle", "inner"]),
        ("rustc", "inlined.rs", &["-O", "-g", "--edition=2021"], ["inlined::place::middle", "inlined::place::inner"]),
    ];
    for (compiler, source, flags, inlined) in builds {
        let programs = Programs::new();
        let Some(program) = programs.build(compiler, source, flags) else {
            println!("SKIP: {test}: cannot build {source} with {compiler} {flags:?}");
            continue;
        };
        let running = Running::new(&mut Command::new(&program));
        let located = Located::new(&running);
        let symbol = outer(&located, true);
        assert!(symbol.function.as_ref().unwrap().0.ends_with("outer"), "{symbol:?}");
        let line = symbol.line.clone().unwrap_or_else(|| panic!("no line: {symbol:?}"));
        assert!(line.ends_with(&expected(source)), "{symbol:?}");
        // Names in C++ and Rust may be whole or not, as the compiler wrote them down.
        let matches = |(found, wanted): (&String, &str)| wanted == found || wanted.ends_with(&format!("::{found}"));
        assert!(symbol.inlined.len() == 2 && symbol.inlined.iter().zip(inlined).all(matches), "{symbol:?}");
        let without = outer(&located, false);
        assert_eq!((without.function, without.line, without.inlined), (symbol.function, None, vec![]));
    }
}

#[test]
fn the_last_of_many_instructions_has_its_line() {
    let test = "the_last_of_many_instructions_has_its_line";
    let programs = Programs::new();
    // Code before that of the program: a profile of call stacks has thousands of different instructions of one file.
    let before = programs.path("before.c");
    fs::write(
        &before,
        "__asm__(\".text; before: .fill 16384, 1, 0x90; .size before, 16384; .type before, @function\");",
    )
    .unwrap();
    let Some(program) = programs.build("cc", "inlined.c", &["-O1", "-g", before.to_str().unwrap()]) else {
        println!("SKIP: {test}: cannot build a C program");
        return;
    };
    let running = Running::new(&mut Command::new(program));
    let located = Located::new(&running);
    let code = located.codes["outer"];
    let codes = (0..12_000).map(|back| CodeAddr { offset: code.offset - back, ..code });
    let lines = Some(Path::new(env!("CARGO_BIN_EXE_scxprof")).to_owned());
    let options = SymbolOptions { begin: Some(located.begin), lines, ..SymbolOptions::default() };
    let symbols = symbolize(&located.modules, codes, &options);
    let symbol = symbols.get(code).unwrap();
    let line = symbol.line.clone().unwrap_or_else(|| panic!("no line: {symbol:?}"));
    assert!(line.ends_with(&expected("inlined.c")) && symbol.inlined.len() == 2, "{symbol:?}");
}

#[test]
fn a_debug_file_has_the_lines_of_a_stripped_program() {
    let test = "a_debug_file_has_the_lines_of_a_stripped_program";
    let programs = Programs::new();
    let Some(program) = programs.build("cc", "inlined.c", &["-O1", "-g"]) else {
        println!("SKIP: {test}: cannot build a C program");
        return;
    };
    if !programs.run("objcopy", &["--only-keep-debug", "program", "program.debug"])
        || !programs.run("strip", &["program"])
        || !programs.run("objcopy", &["--add-gnu-debuglink=program.debug", "program"])
    {
        println!("SKIP: {test}: no objcopy and strip");
        return;
    }
    let running = Running::new(&mut Command::new(program));
    let located = Located::new(&running);
    assert!(outer(&located, true).line.is_some_and(|line| line.ends_with(&expected("inlined.c"))));
    fs::remove_file(programs.path("program.debug")).unwrap();
    assert_eq!(outer(&located, true).line, None);
}

#[test]
fn debug_information_that_does_harm_costs_the_lines_alone() {
    let test = "debug_information_that_does_harm_costs_the_lines_alone";
    let programs = Programs::new();
    let Some(program) = programs.build("cc", "nested.c", &["-O1", "-g0"]) else {
        println!("SKIP: {test}: cannot build a C program");
        return;
    };
    let running = Running::new(&mut Command::new(program));
    let symbol = outer(&Located::new(&running), true);
    assert_eq!((symbol.function.unwrap().0.as_ref(), symbol.line, symbol.inlined), ("outer", None, vec![]));
}

#[test]
fn who_reads_debug_information_can_open_nothing_else() {
    let test = "who_reads_debug_information_can_open_nothing_else";
    let programs = Programs::new();
    let built = programs.build("cc", "inlined.c", &["-O1", "-g"]).filter(|_| is_root(test));
    let Some(program) = built else {
        println!("SKIP: {test}: cannot build a C program, or no root");
        return;
    };
    // A link to a file with the rest of the debug information, which is a pipe: opening it blocks until there is a writer.
    let pipe = programs.path("pipe");
    assert!(programs.run("mkfifo", &["pipe"]));
    let link = [pipe.as_os_str().as_encoded_bytes(), b"\0", &[7; 20]].concat();
    fs::write(programs.path("link"), link).unwrap();
    if !programs.run("objcopy", &["--add-section=.gnu_debugaltlink=link", "program"]) {
        println!("SKIP: {test}: no objcopy");
        return;
    }
    let running = Running::new(&mut Command::new(program));
    let symbol = outer(&Located::new(&running), true);
    assert!(symbol.function.is_some());
    let reader = fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(pipe);
    assert!(reader.is_err(), "somebody has the pipe open");
}
