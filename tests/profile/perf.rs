//! Compares with perf, if it is installed: the same records, the same fields, the same counts.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::PoisonError;
use std::time::Duration;

use scxprof::testing::profile::{record_name, Damage, Item, PerfData};
use scxprof::testing::sampler::record::{decode, sample_type as t, Layout, Record};

use super::{replayed, said, scxprof, BUILD_IDS};
use crate::support::fixtures::fixtures;

fn perf(args: &[&str], path: &Path) -> String {
    let output = Command::new("perf").args(args).arg("-i").arg(path).output().unwrap();
    assert!(output.status.success(), "perf {args:?}: {}", said(&output));
    assert!(!said(&output).contains("libtraceevent"), "perf {args:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn perf_records_beside_us() {
    let test = "perf_records_beside_us";
    let dir = tempfile::tempdir().unwrap();
    let recorded = || {
        let mut command = Command::new("perf");
        command.args(["record", "-q", "-o"]).arg(dir.path().join("perf.data")).args(["--", "true"]);
        command.output().is_ok_and(|output| output.status.success())
    };
    if !installed(test) {
        return;
    }
    let _turn = BUILD_IDS.lock().unwrap_or_else(PoisonError::into_inner);
    if !recorded() {
        return println!("SKIP: {test}: perf cannot record here, or another profiler is in its way");
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_scxprof"))
        .args(["run", "--source", "faults", "-t", "60"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It has started if it does not end; if it cannot start, it ends.
    std::thread::sleep(Duration::from_secs(1));
    let beside = recorded();
    let ended = child.try_wait().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    if ended.is_some() {
        return println!("SKIP: {test}: sampling the host is not allowed");
    }
    if !recorded() {
        return println!("SKIP: {test}: another profiler is in its way");
    }
    assert!(beside, "perf record fails while scxprof samples");
}

/// True if perf is installed.
pub fn installed(test: &str) -> bool {
    let found = Command::new("perf").arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        println!("SKIP: {test}: perf is not installed");
    }
    found
}

/// One field of every sample, as perf prints it.
fn field(path: &Path, name: &str) -> Vec<String> {
    let text = perf(&["script", "--ns", "-F", name], path);
    text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

struct Read {
    time: u64,
    pid: u32,
    tid: u32,
    fields: BTreeMap<&'static str, String>,
}

/// Compares all that perf prints of the file; false if its samples have no addresses, which the text needs.
pub fn compare(path: &Path) -> bool {
    let mut file = PerfData::open(File::open(path).unwrap()).unwrap();
    let mut samples = Vec::new();
    let mut first_layout = Layout::default();
    while let Some(item) = file.next_item().unwrap() {
        let Item::Record { bytes, event, layout, .. } = item else { continue };
        let (layout, Ok((_, Record::Sample(sample), _))) = (*layout, decode(bytes, layout)) else { continue };
        if samples.is_empty() {
            first_layout = layout;
        }
        let bits = layout.sample_type;
        let mut fields = BTreeMap::from([("event", event.to_string())]);
        let hex = |value: u64| format!("{value:x}");
        for (bit, name, text) in [
            (t::IP, "ip", hex(sample.ip)),
            (t::ADDR, "addr", hex(sample.addr)),
            (t::PHYS_ADDR, "phys_addr", hex(sample.phys_addr)),
            (t::DATA_SRC, "data_src", hex(sample.data_src)),
            (t::WEIGHT, "weight", sample.weight.to_string()),
            (t::WEIGHT_STRUCT, "weight", (sample.weight as u32).to_string()),
            (t::PERIOD, "period", sample.period.to_string()),
            (t::CPU, "cpu", format!("[{:03}]", sample.cpu)),
            (t::TIME, "time", format!("{}.{:09}:", sample.time / 1_000_000_000, sample.time % 1_000_000_000)),
        ] {
            // With a callchain perf prints that instead of the ip.
            if bits & bit != 0 && (name != "ip" || bits & t::CALLCHAIN == 0) {
                fields.insert(name, text);
            }
        }
        if bits & t::TID != 0 {
            fields.insert("pid", (sample.pid as i32).to_string());
            fields.insert("tid", (sample.tid as i32).to_string());
        }
        samples.push(Read { time: sample.time, pid: sample.pid, tid: sample.tid, fields });
    }
    // perf 6.1 may drop the end of what it compressed, without a message.
    let unflushed = file.damage().unflushed;
    if unflushed {
        println!("perf left out the end of what it compressed");
    }
    assert_eq!(file.damage(), Damage { unflushed, ..Damage::default() });
    samples.sort_by_key(|sample| sample.time);

    let names: Vec<String> = file.events().iter().map(|event| event.name.clone().unwrap_or_default()).collect();
    let first = samples.first().unwrap();
    let common: Vec<&str> = first
        .fields
        .keys()
        .copied()
        .filter(|name| samples.iter().all(|sample| sample.fields.contains_key(name)))
        .collect();
    assert!(common.len() >= 5, "{common:?}");
    for &name in &common {
        let theirs = field(path, name);
        assert_eq!(theirs.len(), samples.len(), "samples with {name}");
        for (index, (theirs, sample)) in theirs.iter().zip(&samples).enumerate() {
            let ours = &sample.fields[name];
            match name {
                "event" => {
                    let ours = &names[ours.parse::<usize>().unwrap()];
                    assert_eq!(theirs.trim_end_matches(':'), ours, "event of sample {index}");
                }
                // The words after it mean the same.
                "data_src" => assert_eq!(theirs.split_whitespace().next(), Some(ours.as_str()), "sample {index}"),
                _ => assert_eq!(theirs, ours, "{name} of sample {index}"),
            }
        }
    }

    // Names come from elsewhere.
    let (collect, outcome, _) = replayed(path);
    assert_eq!(outcome.loss.malformed, 0);
    let named: HashMap<(u64, u32, u32), Vec<u8>> = collect
        .samples
        .iter()
        .filter_map(|sample| {
            Some(((sample.raw.time, sample.raw.pid, sample.raw.tid), sample.comm?.as_bytes().to_vec()))
        })
        .collect();
    let mut compared = 0;
    for (theirs, sample) in field(path, "comm").iter().zip(&samples) {
        if let Some(ours) = named.get(&(sample.time, sample.pid, sample.tid)) {
            assert_eq!(theirs, String::from_utf8_lossy(ours).trim(), "name of {} at {}", sample.tid, sample.time);
            compared += 1;
        }
    }
    assert!(compared > 0, "no name was compared");

    let page_size = first_layout.sample_type & t::DATA_PAGE_SIZE != 0;
    let of_text: Vec<&str> = common.iter().copied().chain(page_size.then_some("data_page_size")).collect();
    let has_text = ["addr", "ip"].iter().all(|field| common.contains(field));
    if has_text {
        super::script::compare(path, &of_text, |fields| perf(&["script", "--ns", "-F", fields], path));
    }

    let stats = perf(&["report", "--stats"], path);
    let theirs: BTreeMap<&str, u64> = stats
        .lines()
        .skip_while(|line| !line.contains("Aggregated stats"))
        .skip(1)
        .take_while(|line| !line.trim_end().ends_with("stats:"))
        .filter_map(|line| {
            let (name, rest) = line.trim().split_once(" events:")?;
            Some((name, rest.split_whitespace().next()?.parse().ok()?))
        })
        .filter(|(name, _)| *name != "TOTAL")
        .collect();
    let ours: BTreeMap<&str, u64> = file.counts().map(|(kind, count)| (record_name(kind), count)).collect();
    assert_eq!(ours, theirs);
    has_text
}

#[test]
fn recordings_of_real_hardware_are_read_as_perf_reads_them() {
    let test = "recordings_of_real_hardware_are_read_as_perf_reads_them";
    if !installed(test) {
        return;
    }
    let Some(dir) = fixtures(test) else { return };
    let mut files = 0;
    for entry in std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display())).flatten() {
        println!("{}", entry.path().display());
        // perf rejects a file of another user.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf.data");
        std::fs::copy(entry.path(), &path).unwrap();
        let output = Command::new("perf").arg("script").arg("-i").arg(&path).output().unwrap();
        if output.status.success() {
            assert!(compare(&path), "the text was not compared");
            files += 1;
        } else {
            println!("SKIP: {test}: perf script of {}: {}", entry.path().display(), said(&output).trim());
        }
    }
    assert!(files > 0);
}

const LOAD: &str = "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done";

/// perf accepts our recording without complaint, and finds as many samples in it as we do.
fn assert_no_complaint(path: &Path, source: &str) {
    let mut file = PerfData::open(File::open(path).unwrap()).unwrap();
    let (mut samples, mut periods) = (0u64, 0u64);
    while let Some(item) = file.next_item().unwrap() {
        let Item::Record { bytes, layout, .. } = item else { continue };
        if let Record::Sample(sample) = decode(bytes, layout).unwrap().1 {
            samples += 1;
            periods += sample.period;
        }
    }
    let quiet = |args: &[&str]| {
        let output = Command::new("perf").args(args).arg("-i").arg(path).output().unwrap();
        assert!(output.status.success(), "perf {args:?}: {:?} {}", output.status, said(&output));
        let said = said(&output).to_lowercase();
        let complains = ["warn", "error", "assert", "fail", "can't", "cannot"].iter().any(|word| said.contains(word));
        // Losses of the rings are no fault of the file.
        assert!(!complains || said.contains("lost"), "perf {args:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for args in [&["report", "--stats"][..], &["evlist", "-v"], &["script"], &["buildid-list"]] {
        assert!(!quiet(args).is_empty(), "perf {args:?}");
    }
    let hidden = std::fs::read_to_string("/proc/kallsyms").is_ok_and(|symbols| symbols.starts_with("0000000000000000"));
    if hidden {
        println!("SKIP: our_recordings_are_read_by_perf: perf report: the kernel's addresses are hidden here");
        return;
    }
    let report = quiet(&["report", "--stdio"]);
    let counted: u64 = report
        .lines()
        .filter_map(|line| line.strip_prefix("# Event count (approx.): ")?.trim().parse::<u64>().ok())
        .sum();
    assert_eq!(counted, periods, "events of perf report");
    if source == "faults" {
        let report = quiet(&["mem", "report", "--stdio"]);
        assert!(report.contains("minor-faults"), "{report}");
        // Overhead, then samples.
        let rows = report.lines().filter(|line| !line.starts_with('#'));
        let counted: u64 = rows.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum();
        assert_eq!(counted, samples, "samples of perf mem report");
    }
}

#[test]
fn our_recordings_are_read_by_perf() {
    let test = "our_recordings_are_read_by_perf";
    if !installed(test) {
        return;
    }
    for source in ["faults", "timer"] {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("x");
        let out_arg = out.to_str().unwrap();
        let mut args = vec!["record", "--source", source, "--disable-archive", "--max-loss", "100", "-o", out_arg];
        args.extend(["--", "sh", "-c", LOAD]);
        let output = scxprof(&args);
        if output.status.code() == Some(3) {
            println!("SKIP: {test}: {source}: {}", said(&output).trim());
            continue;
        }
        assert!(output.status.success(), "{}", said(&output));
        let path = out.join("perf.data");
        assert_eq!(compare(&path), source == "faults", "the timer's samples have registers and no addresses");
        let header = perf(&["report", "--header-only", "-I"], &path);
        let cpu = Path::new("/sys/devices/system/cpu/cpu0");
        for (part, there) in [
            ("hostname", true),
            ("os release", true),
            ("nrcpus online", true),
            ("total memory", true),
            ("cmdline", true),
            ("sibling", cpu.join("topology/core_id").exists()),
            ("cache info", cpu.join("cache/index0").exists()),
        ] {
            assert!(!there || header.to_lowercase().contains(part), "{part} in {header}");
        }
        assert!(perf(&["evlist", "-v"], &path).contains("clockid: 1"));
        assert_no_complaint(&path, source);
        if source == "faults" {
            let ids = perf(&["buildid-list"], &path);
            assert!(
                ids.lines().any(|line| line.contains("libc") || line.contains("/sh") || line.contains("dash")),
                "{ids}"
            );
        }
    }
}

#[test]
fn recordings_of_perf_are_read_as_perf_reads_them() {
    let test = "recordings_of_perf_are_read_as_perf_reads_them";
    if !installed(test) {
        return;
    }
    let _turn = BUILD_IDS.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("perf.data");
    let record = |args: &[&str]| {
        let (output, options) = args.split_last().unwrap();
        let output = Command::new("perf")
            .args(["record", "-q", "-e", "minor-faults", "-c", "1", "-d", "--phys-data", "--data-page-size"])
            .args(options)
            .args(["-o", output])
            .args(["--", "sh", "-c", LOAD])
            .output()
            .unwrap();
        if !output.status.success() {
            println!("SKIP: {test}: perf record: {}", said(&output).trim());
        }
        output.status.success().then_some(output.stdout)
    };
    let name = path.to_str().unwrap();
    if record(&[name]).is_some() {
        assert!(compare(&path));
    }
    let options = Command::new("perf").args(["version", "--build-options"]).output().unwrap();
    if String::from_utf8_lossy(&options.stdout).contains("zstd: [ on") {
        for level in ["-z", "-z19"] {
            if record(&[level, name]).is_some() {
                assert!(compare(&path));
            }
        }
    } else {
        println!("SKIP: {test}: perf record -z: this perf has no zstd");
    }
    if let Some(piped) = record(&["-"]) {
        std::fs::write(&path, piped).unwrap();
        assert!(compare(&path));
    }
}
