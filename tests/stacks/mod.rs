//! `scxprof stacks` on programs whose call stacks are known, and beside perf on the same recording.

mod browser;
mod chains;
mod dwarf;
mod inlined;
mod inputs;
mod library;
mod perf;
mod readers;
mod recorded;
mod switches;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const SCXPROF: &str = env!("CARGO_BIN_EXE_scxprof");
const FLAGS: [&str; 2] = ["-O0", "-g"];

/// Builds tests/programs/stacks.c as `name`; `None`, with the reason printed, if there is no compiler that can.
fn build(test: &str, dir: &Path, name: &str, more: &[&str]) -> Option<PathBuf> {
    compile(test, &dir.join(name), "cc", "stacks.c", &[&FLAGS, more].concat())
}

/// The same for any of tests/programs.
fn compile(test: &str, path: &Path, compiler: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let whole = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let output = Command::new(compiler).args(flags).arg(whole).arg("-o").arg(path).output();
    if output.as_ref().is_ok_and(|output| output.status.success()) {
        return Some(path.to_owned());
    }
    println!("SKIP: {test}: {compiler} cannot build tests/programs/{source}: {output:?}");
    None
}

/// A file of folded stacks: the samples of each.
fn folded(path: &Path) -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(path).unwrap();
    let line = |line: &str| {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        (stack.to_owned(), count.parse().unwrap())
    };
    text.lines().map(line).collect()
}

/// Runs `scxprof stacks`; `None`, with the reason printed, if the host does not allow it.
fn stacks(test: &str, args: &[&str]) -> Option<Output> {
    let output = Command::new(SCXPROF).arg("stacks").args(args).output().unwrap();
    // The kernel lowers that limit for the whole host if it finds sampling too expensive.
    if output.status.code() == Some(3) || said(&output).contains("kernel.perf_event_max_sample_rate") {
        println!("SKIP: {test}: {}", said(&output));
        return None;
    }
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    Some(output)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

/// What a gzipped file has, as text.
fn unpacked(path: &str) -> String {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn parts_of_the_time_are_those_of_the_program() {
    let test = "parts_of_the_time_are_those_of_the_program";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "parts", &[]) else { return };
    let program = program.to_str().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let [svg, pprof, firefox] = ["graph.svg", "pprof", "firefox"].map(file);
    let files = ["--flame-graph", &svg, "--pprof", &pprof, "--firefox", &firefox];
    let watched = ["-e", "cpu-clock", "-F", "997", "--json", "--", program, "parts", "160000"];
    let Some(output) = stacks(test, &[&files[..], &watched].concat()) else { return };
    let found = json(&output);
    assert_eq!(
        (&found["event"], &found["frequency_hz"], &found["state"]),
        (&"cpu-clock".into(), &997.into(), &"stopped".into())
    );
    let own = |name: &str| {
        let mut lines = found["symbols"].as_array().unwrap().iter();
        let line = lines.find(|line| line["symbol"] == name).unwrap();
        assert!(line["module"].as_str().unwrap().ends_with("/parts"), "{line}");
        assert!(line["source"].as_str().unwrap().contains("stacks.c:"), "{line}");
        line["self_samples"].as_u64().unwrap()
    };
    let parts = [("sixty", 0.6), ("thirty", 0.3), ("ten", 0.1)];
    let all: u64 = parts.iter().map(|(name, _)| own(name)).sum();
    assert!(all > 500, "{all} samples");
    for (name, part) in parts {
        // Five standard deviations of a binomial distribution, and the program's own chance.
        let margin = 5.0 * (part * (1.0 - part) / all as f64).sqrt() + 0.01;
        let found = own(name) as f64 / all as f64;
        assert!((found - part).abs() < margin, "{name}: {found:.3} of {all}, not {part} +- {margin:.3}");
    }
    let samples = found["samples"].as_u64().unwrap();
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains(&format!("{samples} samples of cpu-clock")) && svg.contains("<title>sixty: "), "{svg}");
    let firefox: Value = serde_json::from_str(&unpacked(&firefox)).unwrap();
    let threads = firefox["threads"].as_array().unwrap();
    assert_eq!(threads.iter().map(|thread| thread["samples"]["length"].as_u64().unwrap()).sum::<u64>(), samples);
    let pprof = unpacked(&pprof);
    assert!(["sixty", "thirty", "ten", "nanoseconds"].iter().all(|name| pprof.contains(name)));
}

#[test]
fn a_stack_is_as_deep_as_the_program() {
    let test = "a_stack_is_as_deep_as_the_program";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "depth", &[]) else { return };
    let folded = dir.path().join("folded");
    for depth in ["1", "60"] {
        let args = [
            "-e",
            "cpu-clock:u",
            "-F",
            "499",
            "--no-lines",
            "--folded",
            folded.to_str().unwrap(),
            "--",
            program.to_str().unwrap(),
            "depth",
            depth,
        ];
        if stacks(test, &args).is_none() {
            return;
        }
        let text = std::fs::read_to_string(&folded).unwrap();
        let (mut whole, mut all) = (0, 0);
        for line in text.lines() {
            let (stack, count) = line.rsplit_once(' ').unwrap();
            let count: u64 = count.parse().unwrap();
            let frames: Vec<&str> = stack.split(';').collect();
            assert_eq!(frames[0], "depth");
            if *frames.last().unwrap() == "bottom" {
                all += count;
                let calls = frames.iter().filter(|frame| **frame == "down").count();
                whole += if calls.to_string() == depth && frames.contains(&"main") { count } else { 0 };
            }
        }
        assert!(all > 50, "{text}");
        // A function without its frame yet, or any more, hides its caller.
        assert!(whole * 100 >= all * 95, "{whole} of {all} stacks are whole: {text}");
    }
}

/// Programs that are started one after another come to about 5 s; with SCXPROF_STORM_SAMPLES=N (`make test-stacks-long`) captures
/// follow each other until there is this number of samples of them.
#[test]
fn no_sample_belongs_to_another_program() {
    let test = "no_sample_belongs_to_another_program";
    let wanted: u64 = std::env::var("SCXPROF_STORM_SAMPLES").map_or(200, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let Some(first) = build(test, dir.path(), "prog_a", &[]) else { return };
    let Some(second) = build(test, dir.path(), "prog_b", &["-DOTHER"]) else { return };
    let path = dir.path().join("folded");
    let [first, second] = [first, second].map(|path| path.to_str().unwrap().to_owned());
    let watched = ["-e", "cpu-clock", "-F", "1999", "--no-lines", "--folded", path.to_str().unwrap(), "--"];
    let args = [&watched[..], &[&first, "storm", "1200", &first, &second]].concat();
    let (mut counts, mut all, mut unknown, mut captures) = (BTreeMap::new(), 0, 0, 0);
    while counts.values().sum::<u64>() < wanted {
        if stacks(test, &args).is_none() {
            return;
        }
        captures += 1;
        for (stack, samples) in folded(&path) {
            let mut frames = stack.split(';');
            let comm = frames.next().unwrap();
            all += samples;
            unknown += if stack.ends_with("[unknown]") { samples } else { 0 };
            for frame in frames {
                let whose = match frame {
                    "only_a" | "[prog_a]" => "prog_a",
                    "only_b" | "[prog_b]" => "prog_b",
                    _ => continue,
                };
                assert_eq!(comm, whose, "{stack}");
                *counts.entry(whose).or_insert(0) += samples;
            }
        }
    }
    println!(
        "{captures} captures of 1200 programs: {all} samples, {unknown} in code of no known file, of each {counts:?}"
    );
    assert!(counts.len() == 2 && counts.values().all(|count| *count > 50), "{counts:?}");
    // An instruction is in a file, and that one is known as soon as it can run.
    assert!(unknown * 1000 <= all, "{unknown} of {all}");
}

#[test]
fn what_cannot_be_sampled_is_a_sentence() {
    let run = |args: &[&str]| {
        let output = Command::new(SCXPROF).arg("stacks").args(args).output().unwrap();
        (output.status.code(), said(&output))
    };
    let (code, error) = run(&["-e", "cpu-clok"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("unknown event \"cpu-clok\": there are cpu-clock, "), "{error}");
    let (code, error) = run(&["--by", "subcell", "-t", "1"]);
    assert!(code == Some(2) && error.contains("--by subcell needs --config"), "{error}");
    assert_eq!(run(&["-F", "0"]).0, Some(2));
    assert_eq!(run(&["-F", "99", "-c", "5"]).0, Some(2));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    let packed =
        std::fs::File::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/sched/perf-sched.data.gz"));
    let mut file = std::fs::File::create(&path).unwrap();
    std::io::copy(&mut flate2::read::GzDecoder::new(packed.unwrap()), &mut file).unwrap();
    let (code, error) = run(&["-f", path.to_str().unwrap()]);
    assert!(code == Some(1) && error.contains("has no call chains; `perf record -g` records them"), "{error}");
}
