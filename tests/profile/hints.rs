//! Hints are combined with the samples of their time: hints.jsonl is read only as far as the samples are.

use std::fmt::Write;
use std::path::Path;

use scxprof::profile::Profile;
use scxprof::resolve::Cgroups;
use scxprof::sample::Sample;
use scxprof::session::Sink;
use scxprof::testing::profile::hints::{self, HintRecord};

use super::made::{self, Order};
use crate::support::replay::replay;

const ORDER: Order = Order { big: false };
/// Samples, each under a hint of its own: many times what is read, sorted or passed on at a time.
const STEPS: u64 = 60_000;
const MS: u64 = 1_000_000;

/// Keeps the hints of the samples, and how far the files had been read at the first of them.
struct LookOn<'a> {
    files: &'a [&'a Path],
    read: Vec<u64>,
    hints: Vec<Option<u64>>,
}

impl Sink for LookOn<'_> {
    fn sample(&mut self, sample: &Sample, _: &mut Cgroups) {
        if self.hints.is_empty() {
            self.read = self.files.iter().map(|file| read_so_far(file)).collect();
        }
        self.hints.push(sample.hint);
    }
}

/// How far this process has read a file that it has open, from procfs.
fn read_so_far(path: &Path) -> u64 {
    let mut open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let fd = open.find(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == path)).unwrap();
    let info = std::fs::read_to_string(Path::new("/proc/self/fdinfo").join(fd.file_name())).unwrap();
    info.lines().find_map(|line| line.strip_prefix("pos:")).unwrap().trim().parse().unwrap()
}

/// The time of the sample of a step; its hint comes half a step before it.
fn time_of(step: u64) -> u64 {
    (step + 1) * 10 * MS
}

/// Every sample of `data`, the content of a file named `name`, has its hint, and neither that file nor the hints were read too
/// early. `memory` is the limit of the replay.
fn check(name: &str, data: &[u8], memory: usize) {
    let dir = tempfile::tempdir().unwrap();
    // The path in procfs.
    let root = dir.path().canonicalize().unwrap();
    let (data_path, hints_path) = (root.join(name), root.join("hints.jsonl"));
    let mut lines = Vec::new();
    for step in 0..STEPS {
        let time = time_of(step) - 5 * MS;
        hints::write(&mut lines, &HintRecord { tid: 100, pid: 100, hint: Some(step), time, snapshot: false }).unwrap();
    }
    std::fs::write(&data_path, data).unwrap();
    std::fs::write(&hints_path, &lines).unwrap();
    let mut look_on = LookOn { files: &[&data_path, &hints_path], read: Vec::new(), hints: Vec::new() };
    let outcome = replay(&mut Profile::open(&root).unwrap(), memory, &mut look_on);
    let expected: Vec<_> = (0..STEPS).map(Some).collect();
    assert!(look_on.hints == expected, "{name} within {memory} bytes: not every sample has its hint");
    assert_eq!((outcome.loss.late, outcome.hints.unwrap().late), (0, 0), "{name} within {memory} bytes");
    for (file, read, size) in [("records", look_on.read[0], data.len()), ("hints", look_on.read[1], lines.len())] {
        assert!(read < size as u64 / 2, "{name} within {memory} bytes: {read} of {size} bytes of {file} at the start");
    }
}

fn samples() -> Vec<Vec<u8>> {
    let begin = made::comm(ORDER, 0, 100, 100, b"web");
    let samples = (0..STEPS).map(|step| made::sample(ORDER, time_of(step), 100, 100, 0x1_0000, 5, 4096));
    std::iter::once(begin).chain(samples).collect()
}

/// Room for a few hundred samples at a time.
const LITTLE: usize = 1 << 18;
/// Room for all.
const MUCH: usize = 64 << 20;

#[test]
fn each_round_takes_the_hints_of_its_time() {
    // Three samples per round, with enough time in between to release each round.
    let records = samples().chunks(3).flat_map(|round| [round.concat(), made::round(ORDER)]).collect::<Vec<_>>();
    check("perf.data", &made::file(ORDER, &records), MUCH);
}

#[test]
fn what_is_given_out_early_has_its_hints() {
    // An old perf writes no marks: samples are released when too many are held back.
    check("perf.data", &made::file(ORDER, &samples()), LITTLE);
}

#[test]
fn lines_of_text_have_their_hints() {
    let mut text = String::new();
    for step in 0..STEPS {
        let (time, addr) = (time_of(step), 0x7f00_0000_1000u64);
        let (seconds, ns) = (time / 1_000_000_000, time % 1_000_000_000);
        writeln!(text, "{:>16} 100/100 {seconds}.{ns:09}: {addr:16x} {:16x} f (/usr/bin/x)", "web", 0x40_1000).unwrap();
    }
    check("perf.script", text.as_bytes(), LITTLE);
}

#[test]
fn what_comes_too_late_to_be_put_in_order_is_counted() {
    let mut samples = samples();
    samples.reverse();
    let (_dir, path) = made::write(&made::file(ORDER, &samples));
    let mut look_on = LookOn { files: &[], read: Vec::new(), hints: Vec::new() };
    let outcome = replay(&mut Profile::open(&path).unwrap(), LITTLE, &mut look_on);
    assert_eq!(look_on.hints.len() as u64, STEPS, "it is not left out");
    assert!(outcome.loss.late > 0);
}
