//! The section of build ids, in either byte order: it decides which file may name the code of a recording from elsewhere.

use std::sync::atomic::AtomicU64;

use scxprof::testing::elf::Elf;
use scxprof::testing::resolve::mapping::parse_line;
use scxprof::testing::resolve::Mapping;

use super::made::{self, Order};
use super::{said, scxprof};

/// The names of this test's own function in lines; the samples are at its beginning.
#[inline(never)]
extern "C" fn a_recorded_function(seed: u64) -> u64 {
    std::hint::black_box(seed).rotate_left(7) ^ 0x5eed
}

/// A page of variables.
#[repr(align(4096))]
struct Page([AtomicU64; 512]);

/// Variables of this program, which threads in a recording share.
static SHARED_BY_PARSERS: Page = Page([const { AtomicU64::new(1) }; 512]);
static SHARED_BY_WRITERS: Page = Page([const { AtomicU64::new(1) }; 512]);

/// The mapping of this process that has the address.
fn mapping_of(address: u64) -> Mapping {
    let maps = std::fs::read("/proc/self/maps").unwrap();
    let mut mappings = maps.split(|&byte| byte == b'\n').filter_map(parse_line);
    mappings.find(|mapping| mapping.start <= address && address < mapping.end()).unwrap()
}

fn function() -> u64 {
    a_recorded_function as *const () as usize as u64
}

/// The function's offset in this program's file.
fn offset() -> u64 {
    let mapping = mapping_of(function());
    function() - mapping.start + mapping.pgoff
}

/// A process with the code of `path` at `offset` at the ip of the samples.
fn records(order: Order, path: &[u8], offset: u64) -> Vec<Vec<u8>> {
    let code = made::mapping(order, 0, 100, [0x40_1000, 0x1000, offset], [5, 2], path);
    let mut records = vec![made::comm(order, 0, 100, 100, b"it"), code];
    records.extend((1..20).map(|step| made::sample(order, step * 1000, 100, 100, 0x1_0000 + step * 8, 5, 4096)));
    records
}

/// `sym` and `dso` of the first line.
fn named(bytes: &[u8]) -> (Option<String>, String) {
    let (dir, path) = made::write(bytes);
    let output = scxprof(&["process", "-f", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let lines = std::fs::read_to_string(dir.path().join("perf.data.out/perf.jsonl")).unwrap();
    let line: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    (
        line["sym"].as_str().filter(|sym| *sym != "[unknown]").map(ToOwned::to_owned),
        line["dso"].as_str().unwrap().to_owned(),
    )
}

/// The file of this program and its build id; `None`, with the skip printed, if it has none.
fn this_program(test: &str) -> Option<(String, Vec<u8>)> {
    let path = std::env::current_exe().unwrap();
    let elf = Elf::parse(&mut &std::fs::read(&path).unwrap()[..]).unwrap();
    let id = elf.build_id().map(<[u8]>::to_vec);
    if id.is_none() {
        println!("SKIP: {test}: this test has no build id");
    }
    Some((path.to_str().unwrap().to_owned(), id?))
}

#[test]
fn a_recording_from_elsewhere_is_named_by_what_has_its_build_id() {
    let test = "a_recording_from_elsewhere_is_named_by_what_has_its_build_id";
    let Some((path, id)) = this_program(test) else { return };
    let (path, id) = (path.as_str(), id.as_slice());
    for big in [false, true] {
        let order = Order { big };
        let records = records(order, path.as_bytes(), offset());
        let entry = |id: &[u8]| made::build_id(order, id, path.as_bytes());
        let with = |entries: &[Vec<u8>]| named(&made::file_with_build_ids(order, &records, &entries.concat()));
        let is_named = |(sym, dso): (Option<String>, String)| {
            assert_eq!(dso, path);
            assert!(sym.as_ref().is_none_or(|sym| sym.contains("a_recorded_function")), "{sym:?}");
            sym.is_some()
        };
        let other = made::build_id(order, &[7; 20], b"/bin/other");
        assert!(is_named(with(&[other.clone(), entry(id)])), "big endian: {big}");
        assert!(is_named(with(&[entry(id), entry(id)])), "two files of one build");
        assert!(!is_named(with(&[entry(&[7; 20])])), "this file is another build");
        assert!(!is_named(with(&[entry(id), entry(&[7; 20])])), "nobody knows which");
        assert!(!is_named(with(&[other])), "nothing is said of it");
        assert!(!is_named(with(&[entry(id)[..60].to_vec()])), "a damaged section");
        let piped = [&records[..], &[entry(id)]].concat();
        assert!(is_named(named(&made::pipe(order, &piped))), "from a pipe");
    }
}

#[test]
fn an_answer_that_is_printed_as_something_is_left_out_names_variables() {
    let test = "an_answer_that_is_printed_as_something_is_left_out_names_variables";
    let Some((path, id)) = this_program(test) else { return };
    let order = Order { big: cfg!(target_endian = "big") };
    let mut records = vec![made::cgroup(order, 0, 5, b"/a")];
    let threads = [["parse-1", "parse-2"], ["write-1", "write-2"]];
    for (name, tid) in threads.as_flattened().iter().zip(100..) {
        records.push(made::comm(order, 0, 100, tid, name.as_bytes()));
    }
    let places = [&SHARED_BY_PARSERS, &SHARED_BY_WRITERS].map(|page| page.0.as_ptr() as usize as u64);
    // As this process has them: the place of a variable in the file is known from that of the code, which is not that of the samples.
    for (address, prot) in [(function(), 5), (places[0], 3), (places[1], 3)] {
        let Mapping { start, len, pgoff, .. } = mapping_of(address);
        records.push(made::mapping(order, 0, 100, [start, len, pgoff], [prot, 2], path.as_bytes()));
    }
    records.extend((0..8000).map(|at: u64| {
        let (thread, line) = (at % 4, at / 4 % 64);
        let addr = places[thread as usize / 2] + line * 64;
        made::sample(order, 1000 + at * 1000, 100, 100 + thread as u32, addr, 5, 4096)
    }));
    let section = made::build_id(order, &id, path.as_bytes());
    let (dir, path) = made::write(&made::file_with_build_ids(order, &records, &section));
    let [path, csv] = [path, dir.path().join("sharing.csv")].map(|path| path.to_str().unwrap().to_owned());
    let extract = |more: &[&str]| {
        let output = scxprof(&[&["extract", "-f", &path][..], more].concat());
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    };
    // Two CPUs have room for one group.
    let answer = extract(&["--target-cpus", "2"]);
    assert!(answer.contains("2 groups: ") && answer.contains("; this host fits 1"), "{answer}");
    for variable in ["SHARED_BY_PARSERS", "SHARED_BY_WRITERS"] {
        assert!(answer.contains(variable), "{variable}: {answer}");
    }
    let unnamed = extract(&["--target-cpus", "2", "--no-symbols"]);
    assert!(unnamed.contains("; this host fits 1") && !unnamed.contains("SHARED_BY"), "{unnamed}");
    for more in [&[][..], &["--sharing-csv", &csv]] {
        let nothing = extract(&[&["--target-cpus", "64"], more].concat());
        assert!(!nothing.contains("groups: "), "nothing is left out: {nothing}");
    }
}
