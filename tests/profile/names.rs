//! Names are bytes, from the records to the lines and the configuration.

use super::made::{self, Order};
use super::{said, scxprof};

const ORDER: Order = Order { big: false };

#[test]
fn names_survive_process_and_extract() {
    let (dir, path) = made::write(&made::file(ORDER, &made::records(ORDER)));
    let path = path.to_str().unwrap();
    let output = scxprof(&["process", "-f", path]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(
        said(&output).contains("Parsed 42 of 42 records (0 are not memory samples, 0 unparseable)"),
        "{}",
        said(&output)
    );
    let lines = std::fs::read_to_string(dir.path().join("perf.data.out/perf.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 42);
    assert_eq!(lines[1]["comm"], "job 3/4");
    assert_eq!(lines[1]["cgroup"], "/workload.slice/my app.slice");
    assert_eq!(lines[1].get("comm_hex"), None);
    assert_eq!(lines[0]["comm_hex"], "636166c3ff");
    assert_eq!(
        (&lines[0]["memory"], &lines[0]["ino"], &lines[0]["offset"]),
        (&"shared".into(), &9.into(), &0x2_0000.into())
    );
    assert_eq!((&lines[0]["time"], &lines[0]["phys_addr"]), (&"1.000000000".into(), &"100070000".into()));

    let jsonl = format!("{path}.out/perf.jsonl");
    let options = ["--target-cpus", "64", "--cell", r"app=my app\.slice$", "-v"];
    let from_profile = scxprof(&[&["extract", "-f", path], &options[..]].concat());
    let from_lines = scxprof(&[&["extract", "-f", &jsonl], &options[..]].concat());
    assert!(from_profile.status.success(), "{}", said(&from_profile));
    assert!(String::from_utf8_lossy(&from_profile.stdout).contains("my app"));
    assert_eq!(from_profile.stdout, from_lines.stdout);
    // A thread counts by its last name.
    assert!(said(&from_profile).contains("renamed") && !said(&from_profile).contains("job 3/4"));
    assert!(said(&from_profile).contains(r"caf\xc3\xff"));

    let only = scxprof(&["extract", "-f", path, "--comm", "^job 3/4$", "-v"]);
    assert!(said(&only).contains("job 3/4") && !said(&only).contains("renamed"), "{}", said(&only));
}

/// The phases that are said, each with two numbers.
fn phases(said: &str) -> Vec<&str> {
    let lines = said.lines().skip_while(|line| !line.starts_with("phase ")).skip(1);
    let cells = lines.map(|line| line.split("  ").filter(|cell| !cell.is_empty()).collect::<Vec<_>>());
    let is_time = |cell: &&str| *cell == "-" || cell.trim().parse::<f64>().is_ok_and(|seconds| seconds >= 0.0);
    let rows = cells.take_while(|row| row.len() == 3 && row[1..].iter().all(is_time));
    rows.map(|row| row[0]).collect()
}

#[test]
fn each_phase_is_said_with_its_time() {
    let (dir, path) = made::write(&made::file(ORDER, &made::records(ORDER)));
    let path = path.to_str().unwrap();
    let stages = ["read and sort", "name", "give to the sinks"];
    let extract = scxprof(&["extract", "-vv", "-f", path, "--target-cpus", "64"]);
    let decides = ["find groups", "make cells", "find where memory lies", "name code", "make the report"];
    let ends = ["print and write", "all that scxprof did"];
    assert_eq!(phases(&said(&extract)), [&stages[..], &decides, &ends].concat(), "{}", said(&extract));
    let process = scxprof(&["process", "-vv", "-f", path]);
    let all = [&["read for its code", "name code"][..], &stages, &ends[1..]].concat();
    assert_eq!(phases(&said(&process)), all, "{}", said(&process));
    std::fs::remove_dir_all(dir.path().join("perf.data.out")).unwrap();
    let unnamed = scxprof(&["process", "-vv", "--no-symbols", "-f", path]);
    assert_eq!(phases(&said(&unnamed)), [&stages[..], &ends[1..]].concat(), "{}", said(&unnamed));
    let brief = scxprof(&["extract", "-v", "-f", path, "--target-cpus", "64"]);
    assert!(phases(&said(&brief)).is_empty(), "{}", said(&brief));
}

#[test]
fn lines_are_the_same_from_every_machine() {
    let process = |path: &std::path::Path| {
        let output = scxprof(&["process", "-f", path.to_str().unwrap()]);
        assert!(output.status.success(), "{}", said(&output));
        let name = path.file_name().unwrap().to_str().unwrap();
        let out = path.with_file_name(format!("{}.out", name.trim_end_matches(".tar.gz")));
        std::fs::read_to_string(out.join("perf.jsonl")).unwrap()
    };
    let (_dir, path) = made::write(&made::file(ORDER, &made::records(ORDER)));
    let lines = process(&path);
    assert!(lines.contains("\"data_page_size\":65536"));
    let big = Order { big: true };
    let (dir, path) = made::write(&made::file(big, &made::records(big)));
    assert_eq!(process(&path), lines);
    let archive = dir.path().join("x.tar.gz");
    let gz = flate2::write::GzEncoder::new(std::fs::File::create(&archive).unwrap(), flate2::Compression::fast());
    let mut tar = tar::Builder::new(gz);
    tar.append_path_with_name(&path, "x/perf.data").unwrap();
    tar.into_inner().unwrap().finish().unwrap();
    assert_eq!(process(&archive), lines);
}

#[test]
fn what_is_there_is_not_overwritten() {
    let (dir, path) = made::write(&made::file(ORDER, &made::records(ORDER)));
    let out = dir.path().join("perf.data.out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("perf.jsonl"), "mine").unwrap();
    let output = scxprof(&["process", "-f", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert_eq!(std::fs::read(out.join("perf.jsonl")).unwrap(), b"mine");
    let dir_arg = dir.path().to_str().unwrap();
    for args in
        [vec!["-o", dir_arg, "--disable-archive"], vec!["-o", &format!("{dir_arg}/x"), "-f", path.to_str().unwrap()]]
    {
        let output = scxprof(&[&["record", "-t", "0.1"], &args[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains("exists already"), "{}", said(&output));
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2, "nothing was left behind");
}

#[test]
fn upstream_directories_are_profiles() {
    let order = ORDER;
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("some recording");
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(inner.join("perf.mem.data"), made::file(order, &made::records(order))).unwrap();
    // The second belongs to a thread that ended: the process that is forked later has its tid but not its hint.
    let hints = "{\"pid\":100,\"tgid\":100,\"hints\":7,\"timestamp\":1000005000}\n\
                 {\"pid\":300,\"tgid\":300,\"hints\":9,\"timestamp\":1000006000}\n";
    std::fs::write(inner.join("hints.jsonl"), hints).unwrap();
    let output = scxprof(&["process", "-f", dir.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let mut out = dir.path().as_os_str().to_owned();
    out.push(".out");
    let lines = std::fs::read_to_string(std::path::Path::new(&out).join("perf.jsonl")).unwrap();
    std::fs::remove_dir_all(&out).unwrap();
    let hints = |hint: u64| lines.lines().filter(|line| line.contains(&format!("\"hint\":{hint},"))).count();
    assert_eq!((hints(7), hints(0)), (15, 27));
}
