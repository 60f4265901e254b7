//! The real binary: evidence of hosts, and `merge`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Instant;

use parquet::basic::{Compression, Encoding};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::SerializedFileWriter;
use serde_json::Value;

use super::output::has_ended;
use crate::support::alone;

fn scxprof(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_scxprof")).args(arguments).output().unwrap()
}

#[track_caller]
fn expect(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The lines of a host: get and put share, or on a host that is `swapped`, get and log; in a cgroup with the host's number.
fn host(directory: &Path, number: u64, swapped: bool) -> PathBuf {
    let mut text = String::new();
    let names = ["get", "put", "log", "idle"];
    let partner = if swapped { 2 } else { 1 };
    for at in 0..600u64 {
        let thread = at % 4;
        let random = (number * 1_000_003 + at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let is_shared = (thread == 0 || thread == partner) && at / 4 % 2 == 0;
        let addr = if is_shared { 0x7f00_0000 } else { 0x6000_0000 + thread * 0x100_0000 } + random % 256 * 64;
        let _ = writeln!(
            text,
            "{{\"comm\":\"{}-{number}\",\"tid\":{},\"pid\":10,\"time\":\"5.{:09}\",\"addr\":\"{addr:x}\",\
             \"cgroup\":\"/workload.slice/workload-tw-{number}.allotment.slice\",\"op\":\"store\"}}",
            names[thread as usize],
            10 + thread,
            at * 1_000_000,
        );
    }
    let path = directory.join(format!("perf{number}.jsonl"));
    fs::write(&path, text).unwrap();
    path
}

/// Writes the evidence of a host.
fn evidence(directory: &Path, number: u64, swapped: bool, more: &[&str]) -> PathBuf {
    let lines = host(directory, number, swapped);
    let path = directory.join(format!("host{number}.parquet"));
    let to = path.to_str().unwrap();
    let cells = directory.join("cells.tmp");
    let all = ["extract", "-f", lines.to_str().unwrap(), "--target-cpus", "8", "-o", cells.to_str().unwrap()];
    expect(&scxprof(&[&all[..], &["--evidence", to], more].concat()), 0);
    fs::remove_file(cells).unwrap();
    fs::remove_file(lines).unwrap();
    path
}

#[test]
fn many_hosts_have_one_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> =
        (0..12).map(|at| evidence(directory.path(), at, at == 7, &["--host-name", "none"])).collect();
    let files: Vec<&str> = files.iter().map(|path| path.to_str().unwrap()).collect();
    let report = directory.path().join("report.json");
    let page = directory.path().join("page.html");
    let outputs = ["--report", report.to_str().unwrap(), "--html", page.to_str().unwrap()];
    let merge = |files: &[&str], more: &[&str]| scxprof(&[&["merge", "--target-cpus", "8"], files, more].concat());
    let whole = expect(&merge(&files, &outputs), 0);
    let config: Value = serde_json::from_str(&whole).unwrap();
    assert_eq!(config[0]["name"], "allotment");
    let subcells: Vec<&str> =
        config[0]["subcells"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert!(subcells.contains(&"get-+put-"), "{whole}");
    // The cgroups and the names are folded; one host disagrees.
    let facts: Value = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
    assert_eq!((facts["runs"].as_u64(), facts["hosts"].as_u64()), (Some(12), Some(12)));
    assert_eq!(facts["communities"][0]["cgroup"], "/workload.slice/workload-tw-*.allotment.slice");
    let disagreements = facts["disagreements"].as_array().unwrap();
    let pair = disagreements.iter().find(|it| it["a"] == "get-" && it["b"] == "put-").unwrap();
    assert_eq!((pair["sharing"].as_u64(), pair["apart"].as_u64()), (Some(11), Some(1)), "{pair}");
    assert_eq!(facts["outliers"].as_array().unwrap().len(), 1, "{}", facts["outliers"]);
    assert!(fs::read_to_string(&page).unwrap().contains("get- and put-"));

    // In any order, in steps, and of a directory.
    let mut reversed = files.clone();
    reversed.reverse();
    assert_eq!(expect(&merge(&reversed, &[]), 0), whole);
    let step = directory.path().join("step");
    fs::create_dir(&step).unwrap();
    for (name, part) in [("a", &files[..5]), ("b", &files[5..])] {
        let to = step.join(format!("{name}.parquet"));
        expect(&merge(part, &["--evidence", to.to_str().unwrap(), "-o", "/dev/null"]), 0);
    }
    let again = directory.path().join("again.json");
    let stepped = ["--report", again.to_str().unwrap()];
    assert_eq!(expect(&merge(&[step.to_str().unwrap()], &stepped), 0), whole);
    assert_eq!(fs::read(&again).unwrap(), fs::read(&report).unwrap());
    // A host that can load nothing of it: the facts are written, and say so.
    fs::remove_file(&page).unwrap();
    let one = scxprof(&[&["merge", "--target-cpus", "1"], &files[..], &outputs].concat());
    assert_eq!(expect(&one, 5), "");
    let facts: Value = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
    assert!(facts["locality"].as_f64() < facts["locality_found"].as_f64(), "{facts}");
    assert!(fs::read_to_string(&page).unwrap().contains("with all groups"));
    // For scx_layered.
    let layers: Value = serde_json::from_str(&expect(&merge(&files, &["--target", "layered"]), 0)).unwrap();
    assert!(layers[0]["kind"].is_object(), "{layers}");
}

#[test]
fn a_fleet_is_split_by_a_label() {
    let directory = tempfile::tempdir().unwrap();
    for at in 0..6 {
        evidence(directory.path(), at, at % 2 == 1, &["--label", if at % 2 == 1 { "logging" } else { "plain" }]);
    }
    let to = directory.path().join("configs");
    let all = ["merge", directory.path().to_str().unwrap(), "--target-cpus", "8"];
    let output = scxprof(&[&all[..], &["--split-by", "label", "-o", to.to_str().unwrap()]].concat());
    assert_eq!(expect(&output, 0), "");
    let has =
        |name: &str, subcell: &str| fs::read_to_string(to.join(name)).unwrap().contains(&format!("\"{subcell}\""));
    assert!(has("plain.json", "get-+put-") && has("logging.json", "get-+log-"));
    assert!(!has("plain.json", "get-+log-") && !has("logging.json", "get-+put-"));
}

#[test]
fn what_cannot_be_merged_is_refused_in_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let good = evidence(directory.path(), 1, false, &[]);
    let bytes = fs::read(&good).unwrap();
    let out = directory.path().join("cells.json");
    let refuse = |name: &str, bytes: &[u8], sentence: &str| {
        let path = directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        let files = [good.to_str().unwrap(), path.to_str().unwrap()];
        let output = scxprof(&["merge", files[0], files[1], "-o", out.to_str().unwrap(), "--target-cpus", "8"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name}: {said}");
        assert!(said.lines().count() == 1 && said.contains(sentence) && said.contains(name), "{name}: {said}");
        assert!(!out.exists(), "{name}");
    };
    refuse("empty.parquet", b"", "not a file of evidence, or damaged");
    refuse("foreign.parquet", b"{\"a\": 1}", "not a file of evidence, or damaged");
    for at in [bytes.len() / 3, bytes.len() / 2, bytes.len() - 1] {
        refuse("cut.parquet", &bytes[..at], "not a file of evidence, or damaged");
    }
    // Tables of another kind.
    let tables = directory.path().join("tables");
    let lines = host(directory.path(), 9, false);
    expect(&scxprof(&["export", "-f", lines.to_str().unwrap(), "--parquet", tables.to_str().unwrap()]), 0);
    refuse("sample.parquet", &fs::read(tables.join("sample.parquet")).unwrap(), "it has no column");
    // Other cell specs.
    let other = evidence(directory.path(), 2, false, &["--cell", "web=web"]);
    let sum = directory.path().join("sum.parquet");
    let out = out.to_str().unwrap();
    let both = ["merge", good.to_str().unwrap(), other.to_str().unwrap(), "--target-cpus", "8", "-o", out];
    let said = scxprof(&[&both[..], &["--evidence", sum.to_str().unwrap()]].concat());
    assert!(!sum.exists() && !Path::new(out).exists());
    assert!(expect(&said, 2).is_empty() && String::from_utf8_lossy(&said.stderr).contains("different cell specs"));
    for (more, sentence) in
        [(["--evidence", out], "--evidence names the same file as -o"), (["--report", "-"], "--report -: name a file")]
    {
        let same = scxprof(&[&both[..], &more].concat());
        assert!(expect(&same, 2).is_empty() && String::from_utf8_lossy(&same.stderr).contains(sentence), "{sentence}");
    }
    let wrong = scxprof(&["merge", good.to_str().unwrap(), "--fold", "("]);
    assert!(expect(&wrong, 2).is_empty() && String::from_utf8_lossy(&wrong.stderr).contains("--fold"));
    let nothing = tempfile::tempdir().unwrap();
    assert!(expect(&scxprof(&["merge", nothing.path().to_str().unwrap()]), 2).is_empty());
}

/// Merges a file with 512 MiB of address space and 10 s of CPU, and expects one sentence.
#[track_caller]
fn refused(path: &Path, more: &str, sentence: &str) {
    let limited = format!("ulimit -v 524288; ulimit -t 10; exec \"$0\" merge \"$1\" -o /dev/null {more}");
    let arguments = ["-c", &limited, env!("CARGO_BIN_EXE_scxprof"), path.to_str().unwrap()];
    let output = Command::new("sh").args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.lines().count() == 1 && said.contains(sentence), "{said}");
}

#[test]
fn what_a_footer_claims_takes_no_memory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hostile.parquet");
    let most = [0xff, 0xff, 0xff, 0xff, 0x07];
    let children = [0x15, 2, 0x19, 0x1c, 0x48, 1, b'r', 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0, 0];
    let schema = [0x15, 2, 0x19, 0x1c, 0x48, 1, b'r', 0, 0x16, 0];
    let footers: [Vec<u8>; 5] = [
        // Lists of 2^31 - 1 elements of the schema, row groups, and facts; columns within columns without end.
        [&[0x15, 2, 0x19, 0xfc][..], &most, &[0]].concat(),
        [&schema[..], &[0x19, 0xfc], &most, &[0]].concat(),
        [&schema[..], &[0x19, 0x0c, 0x19, 0xfc], &most, &[0]].concat(),
        children.to_vec(),
        [&[0x15, 2, 0x19, 0xfc, 0xc0, 0x9a, 0x0c][..], &[0x35, 0, 0x18, 0, 0x15, 2, 0].repeat(200_000), &[0]].concat(),
    ];
    for footer in footers {
        // Also with enough bytes behind it for the list to have a byte for each element.
        for more in [0, 8 << 20] {
            let len = footer.len() + more;
            let bytes = [b"PAR1", &footer[..], &vec![0; more], &(len as u32).to_le_bytes(), b"PAR1"].concat();
            fs::write(&path, bytes).unwrap();
            refused(&path, "", "its footer claims more");
        }
    }
}

/// Writes evidence with 600 rows, each with a value of 1 MiB in its first column.
fn long_values(path: &Path, properties: WriterPropertiesBuilder) {
    use scxprof::evidence::{Sum, KEY_NUMBERS, KEY_TEXTS};
    let sums = Sum::ALL.iter().map(|sum| sum.name());
    let texts = KEY_TEXTS.iter().map(|name| format!("required binary {name} (UTF8);"));
    let numbers = KEY_NUMBERS.into_iter().chain(sums).map(|name| format!("required int64 {name};"));
    let schema = format!("message evidence {{ {} }}", texts.chain(numbers).collect::<String>());
    let schema = Arc::new(parquet::schema::parser::parse_message_type(&schema).unwrap());
    let file = fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties.build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut value = vec![b'x'; 1 << 20];
    while let Some(mut column) = group.next_column().unwrap() {
        match column.untyped() {
            ColumnWriter::ByteArrayColumnWriter(writer) => {
                let values = vec![ByteArray::from(std::mem::take(&mut value)); 600];
                writer.write_batch(&values, None, None).unwrap();
            }
            ColumnWriter::Int64ColumnWriter(writer) => {
                writer.write_batch(&[1; 600], None, None).unwrap();
            }
            _ => unreachable!(),
        }
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn what_a_small_file_repeats_takes_no_memory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hostile.parquet");
    let properties = || WriterProperties::builder().set_statistics_enabled(EnabledStatistics::None);
    let delta = properties().set_dictionary_enabled(false);
    long_values(&path, delta.set_column_encoding("kind".into(), Encoding::DELTA_BYTE_ARRAY));
    refused(&path, "", "neither PLAIN nor a dictionary");
    // Each refers to the one in the dictionary.
    long_values(&path, properties().set_dictionary_page_size_limit(4 << 20));
    refused(&path, "", "a text is longer than a path");
    // 600 MiB in pages that Snappy makes small.
    let snappy = properties().set_compression(Compression::SNAPPY).set_dictionary_enabled(false);
    long_values(&path, snappy.set_data_page_size_limit(64 << 20).set_write_batch_size(600));
    refused(&path, "", "larger than any of evidence");
}

/// Whenever a signal comes, each result is there as a whole or not at all, and nothing else is.
#[test]
fn a_signal_ends_merging_and_leaves_no_part_of_a_file() {
    // From the beginning to the end of a merge.
    const TRIES: u32 = 40;
    let directory = tempfile::tempdir().unwrap();
    for number in 0..40 {
        evidence(directory.path(), number, false, &[]);
    }
    let start = |to: &Path| {
        let path = |name: &str| to.join(name).to_str().unwrap().to_owned();
        let mut command = Command::new(env!("CARGO_BIN_EXE_scxprof"));
        command.args(["merge", directory.path().to_str().unwrap(), "--target-cpus", "8"]);
        command.args(["-o", &path("cells"), "--evidence", &path("sum"), "--report", &path("report")]);
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    let all = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    expect(&start(all.path()).wait_with_output().unwrap(), 0);
    let (whole, mut ended) = (begin.elapsed(), 0);
    for at in 0..TRIES {
        let to = tempfile::tempdir().unwrap();
        let mut child = start(to.path());
        std::thread::sleep(whole * at / TRIES);
        // One, two of a kind, and the one that no program can handle.
        let signals = [&[libc::SIGTERM][..], &[libc::SIGINT, libc::SIGINT], &[libc::SIGKILL]][at as usize % 3];
        for &signal in signals {
            // SAFETY: a signal to a child that was not waited for.
            unsafe { libc::kill(child.id().cast_signed(), signal) };
        }
        assert!(has_ended(&mut child), "it goes on");
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        // Our own code, that of a second signal, or the kernel's, as of one before signals are handled.
        assert!(matches!(output.status.code(), None | Some(0 | 1 | 130)), "{:?}: {said}", output.status);
        ended += u32::from(!output.status.success());
        for entry in fs::read_dir(to.path()).unwrap() {
            let path = entry.unwrap().path();
            let is_whole = match path.file_name().unwrap().to_str().unwrap() {
                "cells" | "report" => serde_json::from_slice::<Value>(&fs::read(&path).unwrap()).is_ok(),
                "sum" => fs::read(&path).unwrap().ends_with(b"PAR1"),
                _ => false,
            };
            assert!(is_whole, "{} after {at}: {said}", path.display());
        }
    }
    println!("{ended} of {TRIES} were ended, each {whole:?} long");
    assert!(ended > 0);
}

#[test]
fn rows_take_no_more_than_memory_says() {
    let directory = tempfile::tempdir().unwrap();
    let path = evidence(directory.path(), 1, false, &[]);
    let parts = directory.path().join("many.parquet");
    let mut many = scxprof::evidence::Evidence::within(64 << 20);
    let scope = scxprof::evidence::Scope::default();
    for at in 0..20_000 {
        let class = scxprof::evidence::Class { comm: format!("{at}"), ..Default::default() };
        let key = scxprof::evidence::Key::of(scxprof::evidence::RowKind::Class, &scope, &class);
        many.add(key, &scxprof::evidence::Sums([1; 17])).unwrap();
    }
    scxprof::evidence::file::write(&many, fs::File::create(&parts).unwrap()).unwrap();
    refused(
        &parts,
        "--memory 8",
        "take more than 8 MiB: fold more of the cgroups' paths (--fold), or let them take more (--memory)",
    );
    refused(&parts, "--memory 64", "the files have no run");
    expect(&scxprof(&["merge", path.to_str().unwrap(), "--memory", "8", "--target-cpus", "8"]), 0);
}

#[test]
fn short_runs_of_the_example_workload_merge_to_its_truth() {
    const TEST: &str = "short_runs_of_the_example_workload_merge_to_its_truth";
    let directory = tempfile::tempdir().unwrap();
    let _alone = alone();
    let Some(_workload) = super::watches::Workload::start(TEST) else { return };
    let truth = directory.path().join("truth.json");
    let printed = Command::new(env!("CARGO_BIN_EXE_demo-workload")).arg("--print-truth").output().unwrap();
    fs::write(&truth, printed.stdout).unwrap();
    let evidence = directory.path().join("evidence");
    fs::create_dir(&evidence).unwrap();
    let cells = directory.path().join("cells.json");
    let merge = ["merge", evidence.to_str().unwrap(), "--target-cpus", "64", "-o", cells.to_str().unwrap()];
    let mut said = String::new();
    // Ten runs are enough where the machine is not busy with something else.
    for run in 0..40 {
        let to = evidence.join(format!("{run}.parquet"));
        let short =
            ["run", "-t", "0.7", "--source", "timer", "--max-loss", "100", "-o", "/dev/null", "--target-cpus", "64"];
        let output = scxprof(&[&short[..], &["--evidence", to.to_str().unwrap(), "--fold", "tw-[a-z]+"]].concat());
        if output.status.code() == Some(3) {
            println!("SKIP: {TEST}: {}", String::from_utf8_lossy(&output.stderr).trim());
            return;
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        if run < 9 {
            continue;
        }
        expect(&scxprof(&merge), 0);
        let compared = Command::new(env!("CARGO_BIN_EXE_demo-compare")).args([&truth, &cells]).output().unwrap();
        said = String::from_utf8_lossy(&compared.stdout).into_owned();
        if compared.status.success() {
            println!("{} runs: {said}", run + 1);
            return;
        }
    }
    panic!("{said}\n{}", fs::read_to_string(&cells).unwrap());
}
