//! Profiles with nothing left but the text of `perf script`.

use std::path::{Path, PathBuf};

use scxprof::profile::Profile;
use scxprof::sample::{Comm, DataSource, MemoryId, RawSample, Sample};
use tempfile::TempDir;

use super::made::{self, Order};
use super::{replayed, said, scxprof};
use crate::support::replay::replay;

/// Two threads of two processes on the same page, one of them with a hint from the second line on.
pub fn text() -> String {
    let line = |comm, ids, time, addr: u64, cgroup| {
        format!(
            "{comm:>16} {ids:<15} {time}: {addr:16x} {cgroup} {:16x} f (/usr/bin/x y (deleted)){:16x} 64K\n",
            0x40_1000, 0x12_3000
        )
    };
    (0..50u64)
        .flat_map(|step| {
            [
                line(
                    "job 3/4",
                    "100/101",
                    format!("{}.000000", 10 + step),
                    0x7f00_0000_1000,
                    "/workload.slice/my app.slice",
                ),
                line(
                    "web",
                    "200/200",
                    format!("{}.000001", 10 + step),
                    0x7f11_0000_2000,
                    "/workload.slice/my app.slice",
                ),
            ]
        })
        .collect()
}

fn upstream(text: &str, name: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("scx_characterize-1");
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(inner.join(name), text).unwrap();
    std::fs::write(inner.join("perf.version"), "perf version 6.9\n").unwrap();
    std::fs::write(inner.join("hints.jsonl"), "{\"pid\":101,\"tgid\":100,\"hints\":7,\"timestamp\":10500000000}\n")
        .unwrap();
    (dir, inner)
}

fn lines_of(out: &Path) -> Vec<serde_json::Value> {
    let lines = std::fs::read_to_string(out.join("perf.jsonl")).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_text_is_a_profile() {
    for name in ["perf.mem.script", "perf.script"] {
        let (_dir, path) = upstream(&text(), name);
        let output = scxprof(&["process", "-f", path.to_str().unwrap()]);
        assert!(output.status.success(), "{}", said(&output));
        let said = said(&output);
        assert!(said.contains("Parsed 100 of 100 records (0 are not memory samples, 0 unparseable)"), "{said}");
        assert!(
            said.contains("100 lines say no mapping") && said.contains("100 lines do not say whether they read"),
            "{said}"
        );
        let out = path.with_file_name("scx_characterize-1.out");
        let lines = lines_of(&out);
        assert_eq!(lines.len(), 100);
        assert_eq!((&lines[0]["comm"], &lines[0]["hint"]), (&"job 3/4".into(), &0.into()));
        assert_eq!((&lines[2]["hint"], &lines[3]["hint"]), (&7.into(), &0.into()));
        assert_eq!(lines[3]["cgroup"], "/workload.slice/my app.slice");
        assert_eq!((&lines[3]["data_page_size"], &lines[3]["phys_addr"]), (&65536.into(), &"123000".into()));
        let extract = |input: &Path| {
            let output = scxprof(&["extract", "--target-cpus", "64", "-v", "-f", input.to_str().unwrap()]);
            assert!(output.status.success(), "{}", self::said(&output));
            (String::from_utf8(output.stdout.clone()).unwrap(), self::said(&output))
        };
        let (from_text, said) = extract(&path);
        assert!(said.contains("lines say no mapping"), "{said}");
        assert!(from_text.contains("job 3/"), "{from_text}");
        assert_eq!(extract(&out).0, from_text, "by the lines of process");
        assert_eq!(extract(&path.join(name)).0, from_text, "the bare file");
    }
}

#[test]
fn it_may_be_in_an_archive() {
    let (dir, path) = upstream(&text(), "perf.mem.script");
    let archive = dir.path().join("x.tar.gz");
    let gz = flate2::write::GzEncoder::new(std::fs::File::create(&archive).unwrap(), flate2::Compression::fast());
    let mut tar = tar::Builder::new(gz);
    tar.append_dir_all("x", &path).unwrap();
    tar.into_inner().unwrap().finish().unwrap();
    let (collect, outcome, damage) = replayed(&archive);
    assert_eq!((collect.samples.len(), damage), (100, vec![]));
    assert_eq!(outcome.hints.unwrap().samples_with, 49);
    let Sample { comm, memory, thread, record, .. } = collect.samples[1];
    assert_eq!((comm, memory), (Some("web".into()), Some(MemoryId::Frame { phys: 0x12_3000 })));
    assert_eq!((thread == collect.samples[0].thread, thread == collect.samples[3].thread, record), (false, true, 2));
}

#[test]
fn records_come_before_their_text() {
    let order = Order { big: false };
    for (script, data) in [("perf.mem.script", "perf.mem.data"), ("perf.script", "perf.data")] {
        let (_dir, path) = upstream(&text(), script);
        std::fs::write(path.join(data), made::file(order, &made::records(order))).unwrap();
        assert_eq!(replayed(&path).0.samples.len(), 42, "{data}");
    }
}

#[test]
fn what_is_left_out_is_counted() {
    // PID/TID, address, data source, ip.
    let lines = [
        ("0/0", 0x7f00_0000_1000u64, 0x0681_0014u64, 0x40_1000),
        ("-1/-1", 0x7f00_0000_1000, 0x0681_0014, 0x40_1000),
        ("100/-1", 0x7f00_0000_1000, 0x0681_0014, 0x40_1000),
        ("100/100", 0, 0x0681_0014, 0),
        // No memory operation (`PERF_MEM_OP_NA`): without an address, and with one.
        ("100/100", 0, 1, 0x40_1000),
        ("100/100", 0x7f00_0000_1000, 1, 0x40_1000),
        ("100/100", 0x7f00_0000_1000, 0x0681_0014, 0x40_1000),
        ("200/200", 0xffff_8000_0000_1000, 0x0681_0014, 0x40_1000),
    ];
    let text = lines.iter().enumerate().map(|(at, (ids, addr, data_src, ip))| {
        let comm = if *ids == "200/200" { ":200" } else { "web" };
        format!("{comm:>16} {ids:<15} 10.{at:06}: {addr:16x} {data_src:16x} |OP LOAD|LVL N/A|SNP N/A {:>16} {ip:16x} f (/x)\n", 9)
    });
    let (_dir, path) = upstream(&text.collect::<String>(), "perf.script");
    let hints = "{\"pid\":200,\"tgid\":200,\"hints\":7,\"timestamp\":99000000000}\nno hint\n";
    std::fs::write(path.join("hints.jsonl"), hints).unwrap();
    let (collect, outcome, damage) = replayed(&path);
    let loss = outcome.loss;
    assert_eq!((loss.idle, loss.exiting, loss.bogus, loss.no_memory_op), (1, 2, 1, 1));
    assert_eq!((collect.samples.len(), loss.samples, loss.no_user_address, loss.unnamed), (3, 3, 1, 1));
    assert_eq!((outcome.hints.unwrap().tasks, damage.len()), (1, 1), "hints after the last line: {damage:?}");
}

#[test]
fn damaged_text_gives_what_can_be_read() {
    let text = text();
    let (first, second) = text.split_at(text.len() / 2);
    let damaged = format!("{first}perf: Segmentation fault\n{}", &second[..second.len() / 2 + 20]);
    let (_dir, path) = upstream(&damaged, "perf.mem.script");
    let output = scxprof(&["process", "-v", "-f", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let said = said(&output);
    assert!(
        said.contains("lines of perf's text are no samples (the first is line 51: it has no COMM PID/TID TIME:)"),
        "{said}"
    );
    assert!(said.contains("is not a sample: the file ends within it"), "{said}");
    assert_eq!(lines_of(&path.with_file_name("scx_characterize-1.out")).len(), 75);
    let (_dir, path) = upstream("nothing of the kind\n", "perf.mem.script");
    let output = scxprof(&["extract", "-f", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", self::said(&output));
    let said = self::said(&output);
    assert!(
        said.contains("no usable samples: the profile is damaged: 1 of 1 lines of perf's text are no samples"),
        "{said}"
    );
    assert!(said.contains("`perf script -F comm,pid,tid,time,addr,ip`"), "{said}");
    assert!(!said.contains("sample longer"), "a recording cannot: {said}");
}

#[test]
fn a_few_lines_that_are_no_samples_are_counted_and_no_damage() {
    let run = |text: &str, more: &[&str]| {
        let (_dir, path) = upstream(text, "perf.script");
        scxprof(&[&["process", "-o", "-", "-f", path.to_str().unwrap()], more].concat())
    };
    let (good, bad) = (text(), "perf: a warning\n");
    // 1 of 201 lines, then 1 of 101 with a lower and a higher bound, then 3 of 103.
    let output = run(&(good.repeat(2) + bad), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("1 of 201 lines of perf's text are no samples"), "{}", said(&output));
    assert!(
        said(&output).contains("Parsed 200 of 201 records (0 are not memory samples, 1 unparseable)"),
        "{}",
        said(&output)
    );
    for (text, max_loss, code) in [
        (good.clone() + bad, "0.5", 4),
        (good.clone() + bad, "1", 0),
        (good.clone() + &bad.repeat(3), "1", 4),
        (good.clone() + &bad.repeat(3), "5", 0),
    ] {
        let output = run(&text, &["--max-loss", max_loss]);
        assert_eq!(output.status.code(), Some(code), "{max_loss}: {}", said(&output));
    }
    // What is missing of a file that ends within a line is not known.
    let output = run(&good.repeat(2)[..good.len() * 2 - 20], &[]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    // The same for lines of our own.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.jsonl");
    let line = |at: u64| {
        let (tid, addr) = (10 + at % 2, 0x7f00 + at % 64 * 8);
        format!("{{\"comm\":\"web\",\"tid\":{tid},\"pid\":10,\"time\":\"5.{at:09}\",\"addr\":\"{addr:x}\",\"cgroup\":\"/a\",\"ip\":\"40\"}}\n")
    };
    let good: String = (0..400).map(line).collect();
    for (bad, max_loss, code) in [("{\"pid\":\n", "1", 0), ("{\"pid\":\n", "0.1", 4), ("{\"pid\":", "1", 4)] {
        std::fs::write(&path, good.clone() + bad).unwrap();
        let path = path.to_str().unwrap();
        let output = scxprof(&["extract", "-f", path, "--max-loss", max_loss, "--target-cpus", "8", "-o", "/dev/null"]);
        assert_eq!(output.status.code(), Some(code), "{max_loss}: {}", said(&output));
        assert!(said(&output).contains("1 of 401 lines of"), "{}", said(&output));
    }
}

#[test]
fn lines_are_put_in_order_of_time() {
    let text = text();
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    lines.reverse();
    let (_dir, path) = upstream(&lines.concat(), "perf.mem.script");
    let (collect, outcome, _) = replayed(&path);
    assert!(collect.samples.iter().map(|sample| sample.raw.time).is_sorted());
    assert_eq!((outcome.loss.late, outcome.hints.unwrap().samples_with), (0, 49));
    // Without room to wait they come late.
    let (_dir, path) = upstream(&lines.concat().repeat(30), "perf.script");
    let mut collect = super::Collect::default();
    let outcome = replay(&mut Profile::open(&path).unwrap(), 1 << 17, &mut collect);
    assert_eq!(collect.samples.len(), 3000);
    assert!(outcome.loss.late > 0);
}

/// The fields that the text has of a sample, in an order that does not depend on it, and what could not be read.
fn said_by_text(path: &Path, with_cpu: bool) -> (Vec<[u64; 10]>, Vec<String>) {
    let (collect, _, damage) = replayed(path);
    let mut samples: Vec<_> = collect
        .samples
        .iter()
        .map(|sample| {
            let Sample {
                raw:
                    RawSample {
                        time,
                        pid,
                        tid,
                        cpu,
                        ip,
                        addr,
                        phys,
                        page_size,
                        data_src: DataSource(data_src),
                        latency,
                        ..
                    },
                ..
            } = *sample;
            let cpu = if with_cpu { cpu } else { 0 };
            [time, pid.into(), tid.into(), cpu.into(), ip, addr, phys, page_size, data_src, latency.into()]
        })
        .collect();
    samples.sort_unstable();
    (samples, damage)
}

/// The text that perf prints of the records gives the same as the records. `fields` are those that they have.
pub fn compare(path: &Path, fields: &[&str], print: impl Fn(&str) -> String) {
    let has = |field: &&str| fields.contains(field);
    // Without its source the weight could not be distinguished from an address.
    let weight = if fields.contains(&"data_src") { &["data_src", "weight"][..] } else { &[] };
    let more: Vec<&str> =
        [&["cpu", "phys_addr", "data_page_size"][..], weight].concat().into_iter().filter(has).collect();
    let always = &["comm", "pid", "tid", "time", "addr", "ip", "sym", "dso"][..];
    compare_text(path, &print(&[always, &more].concat().join(",")), more.contains(&"cpu"));
    // Other fields are skipped.
    let unused: Vec<&str> = ["period", "event"].into_iter().filter(has).collect();
    compare_text(path, &print(&[always, &more, &unused].concat().join(",")), more.contains(&"cpu"));
}

fn compare_text(path: &Path, text: &str, with_cpu: bool) {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("perf.script");
    std::fs::write(&script, text).unwrap();
    let (ours, _) = said_by_text(path, with_cpu);
    let (theirs, damage) = said_by_text(&script, with_cpu);
    assert_eq!(damage, Vec::<String>::new());
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
    let names = |path: &Path| -> Vec<(u64, u32, Option<Comm>)> {
        let mut names: Vec<_> =
            replayed(path).0.samples.iter().map(|sample| (sample.raw.time, sample.raw.tid, sample.comm)).collect();
        names.sort_unstable();
        names
    };
    let (ours, theirs) = (names(path), names(&script));
    // perf guesses names for which it has no record, and we do not.
    let both: Vec<_> =
        ours.iter().zip(&theirs).filter(|(ours, theirs)| ours.2.is_some() && theirs.2.is_some()).collect();
    assert!(both.len() * 2 > ours.len(), "{} of {}", both.len(), ours.len());
    for (ours, theirs) in both {
        assert_eq!(ours, theirs);
    }
}
