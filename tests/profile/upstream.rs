//! The commands and files of scx_characterize, as its users have them.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::PoisonError;

use super::script::text;
use super::{made, said, BUILD_IDS};

/// Runs our binary in `directory`.
fn run_in(directory: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scxprof")).args(line.split(' ')).current_dir(directory).output().unwrap()
}

fn expect(output: &Output, code: i32, sentence: &str) {
    assert_eq!(output.status.code(), Some(code), "{}", said(output));
    assert!(said(output).contains(sentence), "{sentence}: {}", said(output));
}

/// The names in a directory, sorted.
fn names_in(directory: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(directory).unwrap().map(name).collect();
    names.sort();
    names
}

/// Packs files, as its `record` does, below the directory `name`.
fn archive(path: &Path, name: &str, files: &[(&str, &[u8])]) {
    let gz = flate2::write::GzEncoder::new(fs::File::create(path).unwrap(), flate2::Compression::fast());
    let mut tar = tar::Builder::new(gz);
    for (file, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        tar.append_data(&mut header, Path::new(name).join(file), *bytes).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap();
}

#[test]
fn an_archive_is_processed_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    archive(&dir.path().join("myprofile.tar.gz"), "myprofile", &[("perf.mem.script", text().as_bytes())]);
    // What its own `process` leaves beside the archive is neither read nor in the way.
    fs::create_dir(dir.path().join("myprofile")).unwrap();
    fs::write(dir.path().join("myprofile/perf.mem.script"), "planted\n").unwrap();
    let out = dir.path().join("myprofile.out");
    for _ in 0..2 {
        expect(&run_in(dir.path(), "process -f myprofile.tar.gz"), 0, "wrote myprofile.out/perf.jsonl");
        assert_eq!(names_in(&out), ["meta.json", "perf.jsonl"]);
        assert_eq!(fs::read_to_string(out.join("perf.jsonl")).unwrap().lines().count(), 100);
        assert_eq!(names_in(dir.path()), ["myprofile", "myprofile.out", "myprofile.tar.gz"]);
    }
    let extract = |line: &str| run_in(dir.path(), line);
    let found = extract("extract -f myprofile.out/perf.jsonl --target-cpus 64");
    expect(&found, 0, "");
    let as_upstream = extract("extract mem -f myprofile.out/perf.jsonl --target-cpus 64");
    assert_eq!(as_upstream.stdout, found.stdout, "{}", said(&as_upstream));
    expect(&extract("extract sched util -f x"), 2, "`scxprof sched -f PROFILE --windows 1ms --category NAME`");
}

#[test]
fn lines_of_another_profile_are_replaced_whole() {
    let (dir, path) = made::write(text().as_bytes());
    fs::rename(path, dir.path().join("perf.script")).unwrap();
    let lines = || fs::read(dir.path().join("out/perf.jsonl")).unwrap();
    expect(&run_in(dir.path(), "process -f perf.script -o out"), 0, "");
    let first = lines();
    expect(&run_in(dir.path(), "process -f perf.script -o out --comm web"), 0, "");
    assert!(lines().len() < first.len());
    // A reader that has the old lines open reads them to their end.
    let mut old = fs::File::open(dir.path().join("out/perf.jsonl")).unwrap();
    expect(&run_in(dir.path(), "process -f perf.script -o out"), 0, "");
    let mut read = Vec::new();
    std::io::Read::read_to_end(&mut old, &mut read).unwrap();
    assert!(read.len() < first.len() && lines() == first);
    // One that fails leaves what was there.
    fs::write(dir.path().join("broken.script"), "nothing of the kind\n").unwrap();
    let output = run_in(dir.path(), "process -f broken.script -o out");
    assert!(matches!(output.status.code(), Some(1 | 2 | 4)), "{}", said(&output));
    assert_eq!(names_in(dir.path()), ["broken.script", "out", "perf.script"]);
}

#[test]
fn what_process_did_not_write_stays() {
    let (dir, path) = made::write(text().as_bytes());
    fs::rename(path, dir.path().join("perf.script")).unwrap();
    let out = dir.path().join("perf.script.out");
    let run = || run_in(dir.path(), "process -f perf.script");
    expect(&run(), 0, "");
    let meta = fs::read(out.join("meta.json")).unwrap();
    let more = |name: &str, bytes: &[u8]| fs::write(out.join(name), bytes).unwrap();
    let in_the_way = "perf.script.out exists already and is not what `process` wrote: it is never overwritten";
    // A note of the user, a recording, and metadata that is none.
    for name in ["notes.txt", "perf.data", "perf.jsonl.bak"] {
        more(name, b"mine");
        expect(&run(), 2, in_the_way);
        assert_eq!(fs::read(out.join(name)).unwrap(), b"mine");
        fs::remove_file(out.join(name)).unwrap();
    }
    more("meta.json", b"{\"mine\": true}");
    expect(&run(), 2, in_the_way);
    more("meta.json", &meta);
    fs::remove_file(out.join("perf.jsonl")).unwrap();
    fs::create_dir(out.join("perf.jsonl")).unwrap();
    expect(&run(), 2, in_the_way);
    fs::remove_dir(out.join("perf.jsonl")).unwrap();
    expect(&run(), 2, in_the_way);
    // A file, and a link to what `process` wrote elsewhere.
    expect(&run_in(dir.path(), "process -f perf.script -o other"), 0, "");
    fs::remove_dir_all(&out).unwrap();
    std::os::unix::fs::symlink("other", &out).unwrap();
    expect(&run(), 2, in_the_way);
    fs::remove_file(&out).unwrap();
    fs::write(&out, "mine").unwrap();
    expect(&run(), 2, in_the_way);
    assert_eq!(names_in(dir.path()), ["other", "perf.script", "perf.script.out"]);
}

#[test]
fn a_directory_is_not_in_the_way_of_an_archive() {
    let test = "a_directory_is_not_in_the_way_of_an_archive";
    let dir = tempfile::tempdir().unwrap();
    let record = |options: &str| run_in(dir.path(), &format!("record --source faults --timeout 0.2 {options} true"));
    let output = record("-o first");
    if output.status.code() == Some(3) {
        return println!("SKIP: {test}: {}", said(&output));
    }
    fs::create_dir(dir.path().join("x")).unwrap();
    fs::write(dir.path().join("x/perf.mem.data"), "of scx_characterize").unwrap();
    expect(&record("-o x.tar.gz"), 0, "wrote x.tar.gz");
    expect(&record("-o x"), 2, "x.tar.gz exists already");
    expect(&record("-o x --disable-archive"), 2, "x exists already");
    fs::remove_file(dir.path().join("x.tar.gz")).unwrap();
    expect(&record("-o x --disable-sched-trace"), 0, "wrote x.tar.gz");
    assert_eq!(fs::read(dir.path().join("x/perf.mem.data")).unwrap(), b"of scx_characterize");
    assert_eq!(names_in(dir.path()), ["first.tar.gz", "x", "x.tar.gz"]);
    expect(&record("-o y --disable-mem-trace"), 2, "accesses to memory are always recorded");
    // The text is what the records are, for who reads only text.
    expect(&record("-o y --enable-perf-script --disable-archive"), 0, "wrote y");
    let path = dir.path().join("y");
    assert!(names_in(&path).contains(&"perf.mem.script".to_owned()), "{:?}", names_in(&path));
    let accesses = |name: &str| {
        let output = run_in(&path, &format!("process -o - -f {name}"));
        expect(&output, 0, "");
        let lines = String::from_utf8(output.stdout).unwrap();
        let of = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            ["comm", "pid", "tid", "time", "ip", "addr", "cgroup"].map(|field| line[field].clone())
        };
        lines.lines().map(of).collect::<Vec<_>>()
    };
    let of_records = accesses("perf.data");
    assert!(!of_records.is_empty());
    assert_eq!(accesses("perf.mem.script"), of_records);
}

/// Lines as its `process` writes them, but with `op`, without which nothing is known to be shared: threads of one name in two
/// allotments, of which those with one hint share memory.
fn lines() -> String {
    let mut lines = String::new();
    for step in 0..600_u64 {
        for thread in 0..4_u64 {
            let (hint, allotment) = ([7, 9][(thread % 2) as usize], ["one", "two"][usize::from(thread > 2)]);
            let line = serde_json::json!({
                "comm": format!("alpha{thread}"), "tid": 200 + thread, "pid": 100, "time": format!("{}.{:06}", 10 + step / 10, step * 10 + thread),
                "addr": format!("{:x}", 0x7f00_0000_0000 + hint * 0x1000 + (step % 8) * 64),
                "cgroup": format!("/workload.slice/workload-tw-{allotment}.allotment.slice"), "ip": "401000", "sym": "f", "dso": "/x",
                "phys_addr": format!("{:x}", hint * 0x1000 + (step % 8) * 64), "data_page_size": 4096, "op": "store", "hint": hint,
            });
            writeln!(lines, "{line}").unwrap();
        }
    }
    lines
}

#[test]
fn the_summary_is_as_it_prints_it() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("perf.mem.jsonl"), lines()).unwrap();
    let output = run_in(dir.path(), "extract -v -f perf.mem.jsonl --target-cpus 64");
    expect(&output, 0, "\nworkload-tw-one.allotment.slice: 1800 samples (75.00%)\n  alpha0: 600 (33.33%)\n");
    expect(&output, 0, "\nworkload-tw-two.allotment.slice: 600 samples (25.00%)\n  alpha3: 600 (100.00%)\n");
}

#[test]
fn configurations_with_hints_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let all = lines().replace("-two.", "-one.");
    fs::write(dir.path().join("perf.mem.jsonl"), all).unwrap();
    let cell = |key: &str, matches: &str, subcells: &[(&str, &str)]| {
        let subcell = |(name, matches): &(&str, &str)| format!("{{\"name\":\"{name}\",\"{key}\":[[{matches}]]}}");
        let subcells: Vec<String> = subcells.iter().map(subcell).collect();
        format!("[{{\"name\":\"allotment\",\"{key}\":{matches},\"subcells\":[{}]}}]", subcells.join(","))
    };
    let allotment = r#"{"CgroupRegex":"workload-tw-[^/]+\\.allotment\\.slice"}"#;
    let alpha = r#"{"CommPrefix":"alpha"}"#;
    let hinted = [7, 9].map(|hint| format!("{alpha},{{\"Hint\":{hint}}}"));
    let by_hint = [("alpha@hint=7", hinted[0].as_str()), ("alpha@hint=9", hinted[1].as_str()), ("rest", "")];
    let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
    write("hints.json", cell("matches", allotment, &by_hint));
    write("names.json", cell("matches", allotment, &[("alpha0", r#"{"CommPrefix":"alpha0"}"#), ("alpha", alpha)]));
    write("old.json", cell("match", &format!("[[{allotment}]]"), &[("alpha", alpha), ("rest", "")]));
    let score = |name: &str| {
        let output = run_in(dir.path(), &format!("score -f perf.mem.jsonl --config {name} --json"));
        let json: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)));
        let subcells = json["configurations"][0]["cells"][0]["subcells"].as_array().unwrap();
        let threads = subcells.iter().map(|it| format!("{} {}", it["name"].as_str().unwrap(), it["threads"]));
        let threads = threads.collect::<Vec<_>>().join(", ");
        (json["configurations"][0]["locality"].as_f64().unwrap(), said(&output) + &threads)
    };
    let (locality, note) = score("hints.json");
    assert!(locality > 0.99 && note.ends_with("alpha@hint=7 2, alpha@hint=9 2"), "{locality} {note}");
    assert!(
        note.contains("note: --config hints.json: scx_mitosis itself rejects this configuration: it knows no `Hint`"),
        "{note}"
    );
    let (by_name, note) = score("names.json");
    assert!(by_name < 0.9 && !note.contains("scx_mitosis itself"), "{by_name} {note}");
    let (together, note) = score("old.json");
    assert!(together > 0.99, "{together}");
    assert!(note.contains("scx_mitosis itself does not load this as it is meant: it ignores `match`"), "{note}");
    let diff = |line: &str| run_in(dir.path(), &format!("diff {line}"));
    let output = diff("hints.json names.json");
    expect(&output, 1, "knows no `Hint`");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("- allotment/alpha@hint=7") && text.contains("matches alpha and hint=7"), "{text}");
    expect(&diff("hints.json hints.json"), 0, "");
    expect(
        &run_in(dir.path(), "sched --by cell --config hints.json -f perf.mem.jsonl"),
        1,
        "none are known here: threads count as if they had none",
    );
    write("wrong.json", cell("matches", r#"{"Cgroup":"x"}"#, &[("alpha", alpha)]));
    let output = run_in(dir.path(), "score -f perf.mem.jsonl --config wrong.json");
    expect(&output, 2, "cell \"allotment\": unknown variant `Cgroup`, expected `CgroupContains` or `CgroupRegex`");
}

#[test]
fn what_is_out_of_order_is_counted_and_sorted() {
    let dir = tempfile::tempdir().unwrap();
    let line = |tid: u32, time: &str| {
        format!(
            "{:>16} 1000/{tid} {time}: {:16x} /cg {:16x} f (/bar.so) {:16x} 4K\n",
            "delta", 0x7f00_0000_1000_u64, 0x40_1000, 0x3000
        )
    };
    let text = [(4004, "1.000000250"), (4004, "1.000000150"), (4005, "1.000000160")]
        .map(|(tid, time)| line(tid, time))
        .concat();
    let hint = |tid: u32, hint: u64, ns: u64| {
        format!("{{\"pid\":{tid},\"tgid\":1000,\"hints\":{hint},\"timestamp\":{}}}\n", 1_000_000_000 + ns)
    };
    let hints = [hint(4004, 9, 200), hint(4004, 7, 100), hint(4005, 3, 300), hint(4005, 2, 50)].concat();
    archive(
        &dir.path().join("p.tar.gz"),
        "p",
        &[("perf.mem.script", text.as_bytes()), ("hints.jsonl", hints.as_bytes())],
    );
    let output = run_in(dir.path(), "process -o - -f p.tar.gz");
    expect(&output, 0, "note: 2 hints of 2 threads in hints.jsonl are out of order (tids 4004, 4005)");
    expect(&output, 0, "note: 1 samples of 1 thread in perf's text are out of order (tids 4004)");
    let lines = String::from_utf8(output.stdout).unwrap();
    let of = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["hint"].clone();
    assert_eq!(lines.lines().map(of).collect::<Vec<_>>(), [7, 2, 9], "{lines}");
    // What is in order is not spoken of.
    archive(
        &dir.path().join("q.tar.gz"),
        "q",
        &[("perf.mem.script", line(1, "1.5").as_bytes()), ("hints.jsonl", hint(1, 1, 1).as_bytes())],
    );
    let output = run_in(dir.path(), "process -o - -f q.tar.gz");
    assert!(output.status.success() && !said(&output).contains("out of order"), "{}", said(&output));
}

/// The text of `perf script -F comm,pid,tid,cpu,time,event,trace` for two threads that take turns on a CPU, ten times.
fn sched_text() -> String {
    let mut text = String::new();
    let mut line = |comm: &str, tid: u32, us: u64, event: &str| {
        let ids = format!("{}/{tid}", if tid == 0 { 0 } else { 100 });
        writeln!(text, "{comm:>16} {ids:<13} [003] {}.{:06}: {event}", us / 1_000_000, us % 1_000_000).unwrap();
    };
    for step in 0..10 {
        let at = 1_000_000 + step * 1000;
        line("swapper", 0, at, "irq_vectors:reschedule_entry: vector=253");
        line("swapper", 0, at + 1, "sched:sched_waking: comm=web worker pid=101 prio=120 target_cpu=003");
        line("swapper", 0, at + 2, "irq_vectors:reschedule_exit: vector=253");
        line("swapper", 0, at + 10, "sched:sched_switch: swapper/3:0 [120] R ==> web worker:101 [120]");
        line("web worker", 101, at + 210, "sched:sched_stat_runtime: comm=web worker pid=101 runtime=200000 [ns]");
        line(
            "web worker",
            101,
            at + 210,
            "sched:sched_switch: prev_comm=web worker prev_pid=101 prev_prio=120 prev_state=S ==> next_comm=swapper/3 next_pid=0 next_prio=120",
        );
    }
    text
}

const SCHED_HINTS: &str = "{\"pid\":101,\"tgid\":100,\"hints\":7,\"timestamp\":1005000000}\n";

/// The hint of the thread, which it gets in the middle, decides which subcell and which layer it is in.
#[test]
fn scheduling_counts_for_the_hint_of_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let sched = sched_text();
    let files = [("perf.sched.script", sched.as_bytes()), ("hints.jsonl", SCHED_HINTS.as_bytes())];
    archive(&dir.path().join("hinted.tar.gz"), "hinted", &files);
    archive(&dir.path().join("unhinted.tar.gz"), "unhinted", &files[..1]);
    let cells = r#"[{"name": "all", "match": {"All": null}, "subcells": [
        {"name": "seven", "matches": [[{"CommPrefix": "web"}, {"Hint": 7}]]}, {"name": "zero", "matches": [[{"CommPrefix": "web"}]]}]}]"#;
    let kind = r#"{"Grouped": {"util_range": [0.1, 0.9]}}"#;
    let layers = format!(
        r#"[{{"name": "seven", "matches": [[{{"HintEquals": 7}}]], "kind": {kind}}}, {{"name": "rest", "matches": [[]], "kind": {kind}}}]"#
    );
    fs::write(dir.path().join("cells.json"), cells).unwrap();
    fs::write(dir.path().join("layers.json"), layers).unwrap();
    let lines = |profile: &str, config: &str, note: &str| -> Vec<(String, u64, u64)> {
        let output = run_in(dir.path(), &format!("sched --by cell --json --config {config}.json -f {profile}"));
        expect(&output, 0, note);
        let is_noted = String::from_utf8_lossy(&output.stderr).contains("none are known here");
        assert_eq!(is_noted, !note.is_empty(), "{output:?}");
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let line = |it: &serde_json::Value| {
            let number = |of: &serde_json::Value| of.as_u64().unwrap();
            (it["name"].as_str().unwrap().to_owned(), number(&it["run"]["total_ns"]), number(&it["switches"]))
        };
        let mut lines: Vec<_> = found["lines"].as_array().unwrap().iter().map(line).collect();
        lines.sort();
        lines
    };
    // Five slices of 200 us before the hint, and five after it.
    let parts = |names: [&str; 2], all: &[(String, u64, u64)]| {
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!([all[0].0.as_str(), all[1].0.as_str()], names, "{all:?}");
        assert_eq!((all[0].1, all[1].1, all[0].2, all[1].2), (1_000_000, 1_000_000, 5, 5), "{all:?}");
    };
    parts(["all/seven", "all/zero"], &lines("hinted.tar.gz", "cells", ""));
    parts(["rest", "seven"], &lines("hinted.tar.gz", "layers", ""));
    // Lines that have the hints of their threads themselves.
    expect(&run_in(dir.path(), "process -f hinted.tar.gz"), 0, "sched trace records");
    parts(["all/seven", "all/zero"], &lines("hinted.out/perf.sched.jsonl", "cells", ""));
    let of = |lines: Vec<(String, u64, u64)>| lines.into_iter().map(|it| it.0).collect::<Vec<_>>();
    assert_eq!(
        of(lines("unhinted.tar.gz", "cells", "note: --config: the configuration matches task hints")),
        ["all/zero"]
    );
    assert_eq!(of(lines("unhinted.tar.gz", "layers", "")), ["seven or rest"]);
}

#[test]
fn scheduling_events_lie_beside_memory() {
    let dir = tempfile::tempdir().unwrap();
    let sched = sched_text();
    let files = [("perf.sched.script", sched.as_bytes()), ("hints.jsonl", SCHED_HINTS.as_bytes())];
    archive(&dir.path().join("only.tar.gz"), "only", &files);
    let mem = text();
    archive(&dir.path().join("both.tar.gz"), "both", &[files[0], files[1], ("perf.mem.script", mem.as_bytes())]);
    expect(
        &run_in(dir.path(), "process -f only.tar.gz"),
        0,
        "Parsed 40 of 60 sched trace records (20 are of other events, 0 unparseable)",
    );
    assert_eq!(names_in(&dir.path().join("only.out")), ["meta.json", "perf.sched.jsonl"]);
    let output = run_in(dir.path(), "process -f both.tar.gz");
    expect(&output, 0, "Parsed 40 of 60 sched trace records");
    expect(&output, 0, "Parsed 100 of 100 records");
    assert_eq!(names_in(&dir.path().join("both.out")), ["meta.json", "perf.jsonl", "perf.sched.jsonl"]);
    let lines = fs::read_to_string(dir.path().join("only.out/perf.sched.jsonl")).unwrap();
    assert_eq!(lines, fs::read_to_string(dir.path().join("both.out/perf.sched.jsonl")).unwrap());
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let switches: Vec<_> = lines.iter().filter(|line| line["event"] == "sched:sched_switch").collect();
    assert_eq!((lines.len(), switches.len()), (40, 20));
    let first = switches[0];
    assert_eq!(first["trace"], "swapper/3:0 [120] R ==> web worker:101 [120]");
    let fields = serde_json::json!({
        "prev_comm": "swapper/3", "prev_pid": 0, "prev_prio": 120, "prev_state": "R", "next_comm": "web worker", "next_pid": 101,
        "next_prio": 120, "cpu_idle": false, "prev_idle": true, "prev_hint": 0, "next_hint": 0,
    });
    assert_eq!(first["fields"], fields);
    let ids = ["comm", "pid", "tid", "cpu", "time"].map(|field| first[field].clone());
    assert_eq!(serde_json::Value::from(ids.to_vec()), serde_json::json!(["swapper", 0, 0, 3, 1.00001]));
    // The hint is set in the middle.
    let hints: Vec<_> =
        switches.iter().map(|line| [line["hint"].as_u64(), line["fields"]["next_hint"].as_u64()]).collect();
    assert_eq!((hints[1], hints[9]), ([Some(0), Some(0)], [Some(0), Some(0)]));
    assert_eq!((hints[10], hints[11]), ([Some(0), Some(7)], [Some(7), Some(0)]));
    // All forms give the same statistics.
    let sched = |input: &str| {
        let output = run_in(dir.path(), &format!("sched --by thread --json -f {input}"));
        expect(&output, 0, "");
        let mut found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        found.as_object_mut().unwrap().remove("input");
        found.to_string()
    };
    let expected = sched("only.tar.gz");
    assert!(expected.contains("web worker"), "{expected}");
    fs::write(dir.path().join("sched.txt"), sched_text()).unwrap();
    for input in ["both.tar.gz", "only.out/perf.sched.jsonl", "both.out", "sched.txt"] {
        assert_eq!(sched(input), expected, "{input}");
    }
    expect(&run_in(dir.path(), "process -o - -f both.tar.gz"), 0, "written only to a directory");
    let to_stdout = run_in(dir.path(), "process -o - -f only.tar.gz");
    assert_eq!(to_stdout.stdout, fs::read(dir.path().join("only.out/perf.sched.jsonl")).unwrap());
    // Records of memory beside it, whose hints are no scheduling events of theirs.
    fs::create_dir(dir.path().join("records")).unwrap();
    let order = made::Order { big: false };
    for (name, bytes) in [files[0], files[1], ("perf.mem.data", &made::file(order, &made::records(order)))] {
        fs::write(dir.path().join("records").join(name), bytes).unwrap();
    }
    expect(&run_in(dir.path(), "process -f records"), 0, "Parsed 40 of 60 sched trace records");
    let lines = fs::read(dir.path().join("records.out/perf.sched.jsonl")).unwrap();
    assert_eq!(lines, to_stdout.stdout);
    // Memory is read where memory is wanted, and it is said where there is none.
    expect(&run_in(dir.path(), "extract -f both.tar.gz --target-cpus 64"), 0, "");
    expect(
        &run_in(dir.path(), "extract -f only.tar.gz"),
        2,
        "has scheduling events and no accesses to memory: `scxprof sched -f only.tar.gz`",
    );
    expect(&run_in(dir.path(), "sched --windows 5ms --category hinted=web*@hint=7 -f only.tar.gz"), 0, "");
}

#[test]
fn damaged_scheduling_text_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let text = sched_text();
    let damaged = format!("perf: Segmentation fault\n{}", &text[..text.len() - 20]);
    fs::create_dir(dir.path().join("p")).unwrap();
    fs::write(dir.path().join("p/perf.sched.script"), damaged).unwrap();
    let output = run_in(dir.path(), "process -f p");
    expect(&output, 4, "Parsed 39 of 61 sched trace records");
    expect(&output, 4, "2 of 61 lines of p/perf.sched.script are no scheduling events (the first is line 1)");
    fs::write(dir.path().join("p/perf.sched.script"), "nothing of the kind\n").unwrap();
    let output = run_in(dir.path(), "process -f p -o other");
    assert!(matches!(output.status.code(), Some(1 | 2)), "{}", said(&output));
    assert!(!dir.path().join("other").exists());
}

/// Its binary: that of the variable SCX_CHARACTERIZE, or the one on PATH; says if there is none, or if it cannot run.
fn its_binary(test: &str) -> Option<PathBuf> {
    let named = std::env::var_os("SCX_CHARACTERIZE").map(PathBuf::from);
    let on_path = || {
        std::env::split_paths(&std::env::var_os("PATH")?).map(|it| it.join("scx_characterize")).find(|it| it.is_file())
    };
    let found = named
        .or_else(on_path)
        .filter(|path| Command::new(path).arg("--help").output().is_ok_and(|it| it.status.success()));
    if found.is_none() {
        println!("SKIP: {test}: no scx_characterize (`cargo install scx_characterize`, or SCX_CHARACTERIZE=FILE)");
    }
    found
}

/// A perf for it that samples page faults where it wants samples of memory, which few machines of tests have.
fn perf_of_faults(dir: &Path) -> PathBuf {
    let path = dir.join("perf");
    let script = "#!/bin/sh\nif [ \"$1\" = mem ]; then\n  for out; do :; done\n  exec perf record -q -e page-faults -c 1 -d --phys-data \
                  --data-page-size --all-cgroups -a -o \"$out\"\nfi\nexec perf \"$@\"\n";
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn its_own_profiles_are_read() {
    let test = "its_own_profiles_are_read";
    let Some(binary) = its_binary(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let _turn = BUILD_IDS.lock().unwrap_or_else(PoisonError::into_inner);
    let recorded = Command::new(&binary)
        .args(["record", "-o", "myprofile", "-t", "2"])
        .env("SCX_CHARACTERIZE_PERF", perf_of_faults(dir.path()))
        .current_dir(dir.path())
        .output()
        .unwrap();
    if !recorded.status.success() || !dir.path().join("myprofile.tar.gz").exists() {
        return println!(
            "SKIP: {test}: perf cannot record here: {}",
            said(&recorded).lines().next().unwrap_or_default()
        );
    }
    // What happened in two seconds on a machine that may be idle is unknown.
    let output = run_in(dir.path(), "process --max-loss 100 -f myprofile.tar.gz");
    expect(&output, 0, "sched trace records");
    assert_eq!(names_in(&dir.path().join("myprofile.out")), ["meta.json", "perf.jsonl", "perf.sched.jsonl"]);
    expect(&run_in(dir.path(), "sched --max-loss 100 -f myprofile.tar.gz"), 0, "");
    // With hints, which belong to both.
    let unpacked = Command::new("tar").args(["-xzf", "myprofile.tar.gz"]).current_dir(dir.path()).status().unwrap();
    assert!(unpacked.success());
    fs::write(dir.path().join("myprofile/hints.jsonl"), SCHED_HINTS).unwrap();
    expect(&run_in(dir.path(), "process --max-loss 100 -f myprofile"), 0, "sched trace records");
    let lines = |name: &str| fs::read_to_string(dir.path().join("myprofile.out").join(name)).unwrap().lines().count();
    if lines("perf.jsonl") == 0 {
        return println!("SKIP: {test}: nothing used memory meanwhile");
    }
    let extracted = run_in(dir.path(), "extract -v --max-loss 100 --target-cpus 64 -f myprofile.out/perf.jsonl");
    expect(&extracted, 0, "Total samples: ");
    // And back: its extractor reads the lines.
    let of_theirs = extracted_by(&binary, dir.path(), "mem -v -f myprofile.out/perf.jsonl");
    expect(&of_theirs, 0, &format!("Total samples: {}\n", lines("perf.jsonl")));
    expect(
        &extracted_by(&binary, dir.path(), "sched util --window-ms 100 -v -f myprofile.out/perf.sched.jsonl"),
        0,
        "sched util: ",
    );
}

fn extracted_by(binary: &Path, dir: &Path, line: &str) -> Output {
    Command::new(binary).arg("extract").args(line.split(' ')).current_dir(dir).output().unwrap()
}

#[test]
fn its_extractor_and_its_process_read_ours() {
    let test = "its_extractor_and_its_process_read_ours";
    let Some(binary) = its_binary(test) else { return };
    let dir = tempfile::tempdir().unwrap();
    let line = "record --source faults --max-loss 100 -o ours --enable-perf-script --disable-archive true";
    let recorded = run_in(dir.path(), line);
    if recorded.status.code() == Some(3) {
        return println!("SKIP: {test}: {}", said(&recorded));
    }
    expect(&recorded, 0, "wrote ours");
    expect(&run_in(dir.path(), "process -f ours"), 0, "wrote ours.out/perf.jsonl");
    let count = fs::read_to_string(dir.path().join("ours.out/perf.jsonl")).unwrap().lines().count();
    let total = format!("Total samples: {count}\n");
    expect(&extracted_by(&binary, dir.path(), "mem -v -f ours.out/perf.jsonl"), 0, &total);
    // Its process leaves out what has no physical address, as an ordinary user's samples have none.
    let processed = Command::new(&binary).args(["process", "-f", "ours"]).current_dir(dir.path()).output().unwrap();
    expect(&processed, 0, "");
    let said = String::from_utf8_lossy(&processed.stdout).into_owned();
    assert!(said.contains(&format!(" of {count} records")) && said.contains(", 0 unparseable)"), "{said}");
    // Lines of hints, threads without a name, without a cgroup and without a hint are no obstacle.
    fs::create_dir(dir.path().join("made")).unwrap();
    fs::write(
        dir.path().join("made/perf.script"),
        format!(
            "{}{:>16} 300/300         99.000000: {:16x} unknown {:16x} f (/x) {:16x} 4K\n",
            text(),
            ":300",
            0x7f00_0000_1000_u64,
            0x40_1000,
            0
        ),
    )
    .unwrap();
    fs::write(
        dir.path().join("made/hints.jsonl"),
        "{\"pid\":101,\"tgid\":100,\"hints\":7,\"timestamp\":10500000000}\n",
    )
    .unwrap();
    expect(&run_in(dir.path(), "process -f made"), 0, "");
    expect(&extracted_by(&binary, dir.path(), "mem --use-hints -v -f made.out/perf.jsonl"), 0, "Total samples: 101\n");
    // What it finds there with hints is what `score` reads.
    let found = extracted_by(
        &binary,
        dir.path(),
        "mem --use-hints -f made.out/perf.jsonl --workload-allotment-cgroup-regex app.slice",
    );
    fs::write(dir.path().join("cells.json"), &found.stdout).unwrap();
    let output = run_in(dir.path(), "score -f made.out/perf.jsonl --config cells.json");
    expect(&output, 0, "scx_mitosis itself rejects this configuration: it knows no `Hint`");
}
