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
    let (symbol, _) = with_notes(located, lines);
    symbol
}

/// The same, and what is said of the program.
fn with_notes(located: &Located, lines: bool) -> (Symbol, Vec<String>) {
    let scxprof = Path::new(env!("CARGO_BIN_EXE_scxprof"));
    let lines = lines.then(|| scxprof.to_owned());
    let options = SymbolOptions { begin: Some(located.begin), lines, ..SymbolOptions::default() };
    let code = located.codes["outer"];
    let symbols = symbolize(&located.modules, [code], &options);
    (symbols.get(code).unwrap().clone(), symbols.notes())
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
        assert_eq!(symbol.caller_line, None, "it is code of the program: {symbol:?}");
        let without = outer(&located, false);
        assert_eq!((without.function, without.line, without.inlined), (symbol.function, None, vec![]));
    }
}

#[test]
fn code_of_a_library_that_was_inlined_has_the_line_of_its_caller() {
    let test = "code_of_a_library_that_was_inlined_has_the_line_of_its_caller";
    let programs = Programs::new();
    let Some(program) = programs.build("cc", "inlined.c", &["-O1", "-g", "-DLIBRARY"]) else {
        println!("SKIP: {test}: cannot build inlined.c with cc");
        return;
    };
    let running = Running::new(&mut Command::new(&program));
    let symbol = outer(&Located::new(&running), true);
    assert_eq!(symbol.line.as_deref(), Some("/usr/include/inner.h:3"), "{symbol:?}");
    let caller = symbol.caller_line.clone().unwrap_or_else(|| panic!("no caller: {symbol:?}"));
    assert!(caller.ends_with("middle.c:4"), "{symbol:?}");
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

#[test]
fn compressed_debug_information_has_lines() {
    let test = "compressed_debug_information_has_lines";
    // gcc 12 has no -gz=zstd; objcopy 2.40 does it.
    let builds: [(&str, &[&str], &str); 6] = [
        ("cc", &["-gz=zlib"], ""),
        ("cc", &["-gz=zstd"], ""),
        ("clang", &["-gz=zlib"], ""),
        ("cc", &["-no-pie"], "--compress-debug-sections=zlib"),
        ("cc", &["-gdwarf-4"], "--compress-debug-sections=zlib-gnu"),
        ("cc", &["-gdwarf-5"], "--compress-debug-sections=zstd"),
    ];
    for (compiler, flags, compress) in builds {
        let programs = Programs::new();
        let built = programs.build(compiler, "inlined.c", &[&["-O1", "-g"], flags].concat());
        let is_done = built.is_some() && (compress.is_empty() || programs.run("objcopy", &[compress, "program"]));
        let Some(program) = built.filter(|_| is_done) else {
            println!("SKIP: {test}: cannot build with {compiler} {flags:?} {compress}");
            continue;
        };
        assert!(is_compressed(&fs::read(&program).unwrap()), "{compiler} {flags:?} {compress}: not compressed");
        let located = Located::new(&Running::new(&mut Command::new(program)));
        let (symbol, notes) = with_notes(&located, true);
        let line = symbol.line.clone().unwrap_or_else(|| panic!("{flags:?} {compress}: {symbol:?} {notes:?}"));
        assert!(line.ends_with(&expected("inlined.c")), "{symbol:?}");
        assert_eq!((symbol.inlined, notes), (vec!["middle".to_owned(), "inner".to_owned()], vec![]));
    }
}

/// The head of a compressed section of 64 bits: its method, its size, an alignment of 1 or 8; then zlib, or zstd.
fn head(program: &[u8]) -> Option<usize> {
    let is_head = |bytes: &[u8]| match bytes {
        [method @ (1 | 2), 0, 0, 0, 0, 0, 0, 0, _, _, _, 0, 0, 0, 0, 0, 1 | 8, 0, 0, 0, 0, 0, 0, 0, first, second] => {
            matches!((method, first, second), (1, 0x78, 0x01 | 0x5e | 0x9c | 0xda) | (2, 0x28, 0xb5))
        }
        _ => false,
    };
    program.windows(26).position(is_head)
}

fn is_compressed(program: &[u8]) -> bool {
    let has = |name: &[u8]| program.windows(name.len()).any(|bytes| bytes == name);
    head(program).is_some() || has(b".zdebug_info\0") && has(b"ZLIB\0\0\0\0")
}

#[test]
fn compressed_debug_information_that_cannot_be_read_is_named() {
    let test = "compressed_debug_information_that_cannot_be_read_is_named";
    // A method that does not exist, more bytes than memory, fewer than there are, and damage.
    let breaks: [(usize, &[u8], &str); 4] =
        [(0, &[7], "method 7"), (8, &[0, 0, 0, 0, 0, 1], "zlib"), (8, &[1, 0, 0], "zlib"), (40, &[0xff; 16], "zlib")];
    for (at, bytes, packing) in breaks {
        let programs = Programs::new();
        let Some(program) = programs.build("cc", "inlined.c", &["-O1", "-g", "-gz=zlib"]) else {
            println!("SKIP: {test}: cc cannot compress");
            return;
        };
        let mut damaged = fs::read(&program).unwrap();
        let at = head(&damaged).unwrap() + at;
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        fs::write(&program, damaged).unwrap();
        let located = Located::new(&Running::new(&mut Command::new(program)));
        let (symbol, notes) = with_notes(&located, true);
        assert!(symbol.function.is_some() && symbol.line.is_none(), "{symbol:?}");
        let [note] = &notes[..] else { panic!("{notes:?}") };
        let says = format!("program: no source lines, because the debug sections are compressed ({packing})");
        assert!(note.contains(&says), "{note}");
        // Lines that are not wanted are not missing.
        assert_eq!(with_notes(&located, false).1, Vec::<String>::new());
    }
}
