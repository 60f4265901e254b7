//! What other programs read in our files: `go tool pprof`, and the Firefox Profiler.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{build, folded, json, stacks, unpacked};

/// Two programs that fork and replace each other, in all forms.
struct Written {
    dir: tempfile::TempDir,
    json: Value,
    /// The samples of each thread's name and stack, without the marks of kernel and inlined code.
    stacks: BTreeMap<String, u64>,
}

impl Written {
    fn new(test: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        build(test, dir.path(), "prog_a", &[])?;
        build(test, dir.path(), "prog_b", &["-DOTHER"])?;
        let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let [text, pprof, firefox, first, second] =
            [file("folded"), file("pprof"), file("firefox"), file("prog_a"), file("prog_b")];
        let files = ["--folded", &text, "--pprof", &pprof, "--firefox", &firefox, "--json", "--limit", "0", "--by"];
        let watched = ["thread", "-e", "cpu-clock", "-F", "1997", "--", &first, "storm", "150", &first, &second];
        let output = stacks(test, &[&files[..], &watched].concat())?;
        let mut all: BTreeMap<String, u64> = BTreeMap::new();
        for (stack, samples) in folded(Path::new(&text)) {
            *all.entry(stack.replace("_[k]", "").replace("_[i]", "")).or_default() += samples;
        }
        Some(Self { json: json(&output), stacks: all, dir })
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn samples(&self) -> u64 {
        self.json["samples"].as_u64().unwrap()
    }

    /// The samples of each thread id.
    fn threads(&self) -> BTreeMap<String, u64> {
        let mut threads: BTreeMap<String, u64> = BTreeMap::new();
        for group in self.json["groups"].as_array().unwrap() {
            *threads.entry(group["tid"].to_string()).or_default() += group["samples"].as_u64().unwrap();
        }
        threads
    }

    fn compare(&self, who: &str, found: &BTreeMap<String, u64>) {
        for stack in self.stacks.keys().chain(found.keys()) {
            assert_eq!(found.get(stack), self.stacks.get(stack), "{who}: {stack} of {found:#?}");
        }
        assert!(found.len() > 5 && found.values().sum::<u64>() == self.samples(), "{found:#?}");
    }
}

#[test]
fn pprof_reads_the_samples_that_we_count() {
    let test = "pprof_reads_the_samples_that_we_count";
    if !Command::new("go").arg("version").output().is_ok_and(|output| output.status.success()) {
        println!("SKIP: {test}: no go");
        return;
    }
    let Some(written) = Written::new(test) else { return };
    let pprof = |args: &[&str]| {
        let mut pprof = Command::new("go");
        pprof.args(["tool", "pprof", "-symbolize=none"]).args(args).arg(written.path("pprof"));
        let output = pprof.env("HOME", written.dir.path()).env("GOTOOLCHAIN", "local").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    // The lines of a sample: its labels, `SAMPLES   FUNCTION` of the innermost frame, and the other functions.
    let (mut stacks, mut threads) = (BTreeMap::new(), BTreeMap::new());
    for sample in pprof(&["-sample_index=samples", "-traces"]).split("-----------+").skip(1) {
        let (mut labels, mut samples, mut frames) = (BTreeMap::new(), 0, Vec::new());
        for line in sample.lines().skip(1).map(str::trim) {
            if samples > 0 {
                frames.push(line);
            } else if let Some((key, value)) = line.split_once(":  ") {
                labels.insert(key, value);
            } else if let Some((count, name)) = line.split_once("   ") {
                samples = count.parse().unwrap();
                frames.push(name);
            }
        }
        if samples > 0 {
            frames.push(labels["thread"]);
            frames.reverse();
            *stacks.entry(frames.join(";")).or_insert(0) += samples;
            *threads.entry(labels["tid"].to_owned()).or_insert(0) += samples;
        }
    }
    written.compare("pprof", &stacks);
    assert_eq!(threads, written.threads());

    // `FLAT FLAT% SUM% CUM CUM% FUNCTION`
    let all = ["-nodecount=0", "-nodefraction=0", "-edgefraction=0", "-sample_index=samples", "-top"];
    let top = pprof(&all);
    let mut functions: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    for line in top.lines().skip_while(|line| !line.contains("flat%")).skip(1) {
        let (mut rest, mut numbers) = (line.trim_start(), Vec::new());
        for _ in 0..5 {
            let (number, after) = rest.split_once(' ').unwrap();
            numbers.push(number.trim_end_matches('%'));
            rest = after.trim_start();
        }
        functions.entry(rest).or_default().push((numbers[0].parse().unwrap(), numbers[3].parse().unwrap()));
    }
    let mut symbols: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
    for symbol in written.json["symbols"].as_array().unwrap() {
        let number = |field: &str| symbol[field].as_u64().unwrap();
        let numbers = (number("self_samples"), number("total_samples"));
        symbols.entry(symbol["symbol"].as_str().unwrap()).or_default().push(numbers);
    }
    for (name, ours) in symbols {
        // pprof adds up functions of one name, as main() of both programs.
        let own = |lines: &[(u64, u64)]| lines.iter().map(|(own, _)| own).sum::<u64>();
        let theirs = &functions[name];
        assert!(own(theirs) == own(&ours) && (ours.len() > 1 || *theirs == ours), "{name}: {theirs:?}, {ours:?}");
    }
    assert_eq!(functions.values().flatten().map(|(own, _)| own).sum::<u64>(), written.samples());

    // Labels select.
    let one = written.json["groups"][0].clone();
    let focus = format!("-tagfocus=tid={}:{}", one["tid"], one["tid"]);
    let of_one = pprof(&[&focus, "-sample_index=samples", "-top"]);
    assert!(of_one.contains(&format!("Showing nodes accounting for {}, ", one["samples"])), "{one}: {of_one}");
    // A clock counts ns.
    let raw = pprof(&["-raw"]);
    assert!(raw.contains("samples/count cpu-clock/nanoseconds"), "{raw}");
}

/// A column of a table.
fn column<'a>(table: &'a Value, name: &str) -> &'a [Value] {
    let column = table[name].as_array().unwrap_or_else(|| panic!("no {name} in {table}"));
    assert_eq!(Some(column.len() as u64), table["length"].as_u64(), "{name}");
    column
}

/// A number in a column that counts the rows of another table.
fn number(value: &Value, rows: usize) -> usize {
    let number = value.as_u64().unwrap() as usize;
    assert!(number < rows, "{number} of {rows}");
    number
}

#[test]
fn tables_for_the_firefox_profiler_agree_with_each_other() {
    let test = "tables_for_the_firefox_profiler_agree_with_each_other";
    let Some(written) = Written::new(test) else { return };
    let whole: Value = serde_json::from_str(&unpacked(&written.path("firefox"))).unwrap();
    let categories = whole["meta"]["categories"].as_array().unwrap();
    let (mut stacks, mut threads) = (BTreeMap::new(), BTreeMap::new());
    for thread in whole["threads"].as_array().unwrap() {
        let texts = thread["stringArray"].as_array().unwrap();
        let functions = column(&thread["funcTable"], "name");
        let name = |function: usize| {
            // `FUNCTION (FILE)`
            let name = texts[number(&functions[function], texts.len())].as_str().unwrap();
            name.strip_suffix(')').and_then(|name| name.rsplit_once(" (")).map_or(name, |(name, _)| name)
        };
        let frames = &thread["frameTable"];
        let functions_of = column(frames, "func");
        for (function, category) in functions_of.iter().zip(column(frames, "category")) {
            number(function, functions.len());
            number(category, categories.len());
        }
        let (prefixes, frames) = (column(&thread["stackTable"], "prefix"), column(&thread["stackTable"], "frame"));
        for (row, (prefix, frame)) in prefixes.iter().zip(frames).enumerate() {
            number(frame, functions_of.len());
            // Each stack comes after the one that it continues: there is no circle.
            assert!(prefix.is_null() || number(prefix, row) < row);
        }
        let samples = &thread["samples"];
        let (weights, deltas) = (column(samples, "weight"), column(samples, "timeDeltas"));
        assert!(deltas.iter().all(|delta| delta.as_f64().unwrap() >= 0.0), "{deltas:?}");
        let tid = thread["tid"].as_str().unwrap().split('.').next().unwrap();
        for (stack, weight) in column(samples, "stack").iter().zip(weights) {
            let (mut stack, mut names) = (Some(number(stack, frames.len())), Vec::new());
            while let Some(row) = stack {
                names.push(name(functions_of[frames[row].as_u64().unwrap() as usize].as_u64().unwrap() as usize));
                stack = prefixes[row].as_u64().map(|row| row as usize);
            }
            names.reverse();
            *stacks.entry(names.join(";")).or_insert(0) += weight.as_u64().unwrap();
            *threads.entry(tid.to_owned()).or_insert(0) += weight.as_u64().unwrap();
        }
    }
    assert_eq!(threads, written.threads());
    // A main thread has the name of its process there, which may be that of a program before.
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for (stack, samples) in &written.stacks {
        *expected.entry(stack.split_once(';').unwrap().1.to_owned()).or_default() += samples;
    }
    assert_eq!(stacks, expected);
    assert!(stacks.keys().any(|stack| stack.ends_with(";main;only_b")), "{stacks:#?}");
}

/// The Firefox Profiler's own command line, with a session of its own.
struct Profiler {
    program: PathBuf,
    dir: tempfile::TempDir,
}

impl Profiler {
    /// `None`, with the reason printed, without it.
    fn load(test: &str, path: &str) -> Option<Self> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("firefox");
        let program = target.join("node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js");
        if !target.join("version").exists() {
            println!("SKIP: {test}: no profiler-cli in {} (scripts/firefox.sh installs it)", target.display());
            return None;
        }
        let profiler = Self { program, dir: tempfile::tempdir().unwrap() };
        let loaded = profiler.run(&["load", path]);
        assert!(loaded.contains("View range"), "{loaded}");
        Some(profiler)
    }

    fn run(&self, args: &[&str]) -> String {
        let mut node = Command::new("node");
        let output = node.arg(&self.program).args(args).env("PROFILER_CLI_SESSION_DIR", self.dir.path()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[args, &["--json"]].concat())).unwrap()
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        // Its process would outlive the test.
        let mut node = Command::new("node");
        let _ =
            node.arg(&self.program).args(["stop", "--all"]).env("PROFILER_CLI_SESSION_DIR", self.dir.path()).output();
    }
}

#[test]
fn the_firefox_profiler_counts_what_we_count() {
    let test = "the_firefox_profiler_counts_what_we_count";
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = build(test, dir.path(), "parts", &[]) else { return };
    let file = dir.path().join("firefox").to_str().unwrap().to_owned();
    let watched = ["-F", "997", "--json", "--limit", "0", "--", program.to_str().unwrap(), "parts", "40000"];
    let event = ["-e", "cpu-clock", "--firefox", &file];
    let Some(output) = stacks(test, &[&event[..], &watched].concat()) else { return };
    let ours = json(&output);
    let Some(profiler) = Profiler::load(test, &file) else { return };
    let (mut found, mut samples) = (BTreeMap::<String, (u64, u64)>::new(), 0);
    for thread in profiler.json(&["thread", "list"])["threads"].as_array().unwrap() {
        let handle = thread["threadHandle"].as_str().unwrap();
        let of_thread = ["--thread", handle];
        samples += profiler.json(&[&["thread", "info"][..], &of_thread].concat())["sampleCount"].as_u64().unwrap();
        let functions = ["thread", "functions", "--limit", "0", "--include-idle"];
        for function in profiler.json(&[&functions[..], &of_thread].concat())["functions"].as_array().unwrap() {
            // `FUNCTION (FILE)`
            let name = function["name"].as_str().unwrap();
            let name = name.strip_suffix(')').and_then(|name| name.rsplit_once(" (")).map_or(name, |(name, _)| name);
            let sums = found.entry(name.to_owned()).or_default();
            sums.0 += function["selfSamples"].as_u64().unwrap();
            sums.1 += function["totalSamples"].as_u64().unwrap();
        }
    }
    assert_eq!(Some(samples), ours["samples"].as_u64());
    for name in ["main", "sixty", "thirty", "ten"] {
        let symbols = ours["symbols"].as_array().unwrap().iter().filter(|line| line["symbol"] == name);
        let number = |line: &Value, field: &str| line[field].as_u64().unwrap();
        let sum = |field: &str| symbols.clone().map(|line| number(line, field)).sum::<u64>();
        assert_eq!(found.get(name), Some(&(sum("self_samples"), sum("total_samples"))), "{name}: {found:#?}");
    }
}
