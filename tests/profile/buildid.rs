//! The section of build ids, in either byte order: it decides which file may name the code of a recording from elsewhere.

use scxprof::testing::elf::Elf;
use scxprof::testing::resolve::mapping::parse_line;

use super::made::{self, Order};
use super::{said, scxprof};

/// The names of this test's own function in lines; the samples are at its beginning.
#[inline(never)]
extern "C" fn a_recorded_function(seed: u64) -> u64 {
    std::hint::black_box(seed).rotate_left(7) ^ 0x5eed
}

/// The function's offset in this program's file.
fn offset() -> u64 {
    let address = a_recorded_function as *const () as usize as u64;
    let maps = std::fs::read("/proc/self/maps").unwrap();
    let mut mappings = maps.split(|&byte| byte == b'\n').filter_map(parse_line);
    let mapping = mappings.find(|mapping| mapping.start <= address && address < mapping.end()).unwrap();
    address - mapping.start + mapping.pgoff
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

#[test]
fn a_recording_from_elsewhere_is_named_by_what_has_its_build_id() {
    let path = std::env::current_exe().unwrap();
    let elf = Elf::parse(&mut &std::fs::read(&path).unwrap()[..]).unwrap();
    let Some(id) = elf.build_id() else {
        println!("SKIP: a_recording_from_elsewhere_is_named_by_what_has_its_build_id: this test has no build id");
        return;
    };
    let path = path.to_str().unwrap();
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
