//! Truncated and changed files give what can be read, and report the damage.

use std::io::Cursor;

use proptest::prelude::*;
use scxprof::sample::{Method, RawSample, Sample, Source};
use scxprof::testing::profile::hints::{self, HintRecord, Hints};
use scxprof::testing::profile::jsonl;
use scxprof::testing::profile::recovered::{Names, Recovered, RecoveredWriter};
use scxprof::testing::profile::{Item, PerfData, Profile};

use super::compressed::{compressed, Zstd};
use super::made::{self, Order};
use super::{replayed, said, scxprof, Collect};
use crate::support::replay::replay;

const ORDER: Order = Order { big: false };

/// The readable records of these bytes, and whether anything is damaged; `None` if there can be no record.
fn count(bytes: &[u8]) -> Option<(usize, bool)> {
    let mut file = PerfData::open(Cursor::new(bytes)).ok()?;
    let mut records = 0;
    while let Some(item) = file.next_item().unwrap() {
        records += usize::from(matches!(item, Item::Record { .. }));
    }
    Some((records, file.damage().any()))
}

#[test]
fn every_prefix_gives_its_whole_records() {
    for order in [ORDER, Order { big: true }] {
        let records = made::records(order);
        let whole = made::named(order, &records);
        let data_end = made::file(order, &records).len();
        let data_at = data_end - records.concat().len();
        for len in 0..whole.len() {
            let result = count(&whole[..len]);
            if len >= data_end {
                assert_eq!(result, Some((49, false)), "{len} bytes: what is cut only names the event");
                continue;
            }
            if len < data_at {
                assert_eq!(result, None, "{len} bytes");
                continue;
            }
            let mut end = data_at;
            let complete = records.iter().take_while(|record| {
                end += record.len();
                end <= len
            });
            let expected = complete.filter(|record| record.len() > 8).count();
            assert_eq!(result, Some((expected, true)), "{len} bytes");
        }
        assert_eq!(count(&whole), Some((49, false)));
    }
}

#[test]
fn every_prefix_of_a_pipe_gives_its_whole_records() {
    for order in [ORDER, Order { big: true }] {
        let records = &made::records(order)[..20];
        let whole = made::pipe(order, records);
        let data_at = whole.len() - records.concat().len();
        for len in 16..=whole.len() {
            let mut end = data_at;
            let complete = records.iter().take_while(|record| {
                end += record.len();
                end <= len
            });
            let expected = complete.filter(|record| record.len() > 8).count();
            let (found, damaged) = count(&whole[..len]).unwrap();
            assert_eq!(found, expected, "{len} bytes");
            // A pipe has no length: between two records nothing is missing.
            assert!(len < whole.len() || !damaged, "{len} bytes");
        }
    }
}

#[test]
fn every_prefix_of_lines_gives_its_whole_lines() {
    let (_dir, path) = made::write(&made::file(ORDER, &made::records(ORDER)));
    let (collect, ..) = replayed(&path);
    let (mut lines, mut recovered) = (jsonl::Writer::new(Vec::new(), Source::Timer), Vec::new());
    let mut hints = Vec::new();
    let mut writer = RecoveredWriter::new(&mut recovered);
    for (sample, path) in collect.samples.iter().zip(&collect.paths).take(5) {
        lines.write(sample, path.as_deref(), None).unwrap();
        writer.add(
            &Sample { raw: RawSample { method: Some(Method::Emulated), ..sample.raw }, ..*sample },
            None,
            Names::default(),
        );
        let hint = HintRecord {
            tid: sample.raw.tid,
            pid: sample.raw.pid,
            hint: Some(1),
            time: sample.raw.time,
            snapshot: false,
        };
        hints::write(&mut hints, &hint).unwrap();
    }
    writer.finish().unwrap();
    let read_lines = |text: &[u8]| {
        let mut reader = jsonl::Reader::new(text);
        let mut read = 0;
        while reader.next_line().unwrap().is_some() {
            read += 1;
        }
        (read, reader.counts.unreadable)
    };
    let read_recovered = |text: &[u8]| {
        let mut reader = Recovered::new(text);
        let found = collect
            .samples
            .iter()
            .take(5)
            .map(|sample| reader.take(sample.raw.time, sample.raw.cpu, sample.raw.tid).len());
        (found.sum::<usize>(), reader.unreadable)
    };
    let read_hints = |text: &[u8]| {
        let mut reader = Hints::new(text);
        let mut read = 0;
        while reader.next_until(u64::MAX).is_some() {
            read += 1;
        }
        (read, reader.unreadable)
    };
    let check = |text: &[u8], read: &dyn Fn(&[u8]) -> (usize, u64)| {
        for len in 0..=text.len() {
            let cut = &text[..len];
            let whole = cut.split(|&byte| byte == b'\n').count() - 1;
            let rest = cut.split(|&byte| byte == b'\n').next_back().unwrap();
            // A line is whole with its last brace.
            let expected = match rest.last() {
                None => (whole, 0),
                Some(b'}') if text.get(len) == Some(&b'\n') => (whole + 1, 0),
                Some(_) => (whole, 1),
            };
            assert_eq!(read(cut), expected, "{:?}", String::from_utf8_lossy(rest));
        }
    };
    check(&lines.finish().unwrap(), &read_lines);
    check(&recovered, &read_recovered);
    check(&hints, &read_hints);
}

#[test]
fn every_prefix_of_a_compressed_file_gives_what_is_in_it() {
    for how in [Zstd::Raw, Zstd::Compressed, Zstd::Second] {
        let plain = &made::records(ORDER)[..20];
        let all = plain.iter().filter(|record| record.len() > 8).count();
        let records = compressed(ORDER, plain, how);
        let whole = made::file(ORDER, &records);
        let data_at = whole.len() - records.concat().len();
        let mut last = 0;
        for len in data_at..whole.len() {
            let (found, damaged) = count(&whole[..len]).unwrap();
            assert!(damaged && (last..=all).contains(&found), "{how:?}: {found} of {len} bytes after {last}");
            last = found;
        }
        assert_eq!(count(&whole), Some((all, false)), "{how:?}");
    }
}

#[test]
fn a_compressed_record_that_is_missing_ends_the_stream() {
    let mut records = compressed(ORDER, &made::records(ORDER), Zstd::Second);
    let at = records.iter().position(|record| record.len() == 8).unwrap();
    // Its header is no longer valid.
    records[at + 1][..8].fill(0);
    let (_dir, path) = made::write(&made::file(ORDER, &records));
    let (collect, _, damage) = replayed(&path);
    assert_eq!(collect.samples.len(), 8, "those of the first round");
    assert!(damage.iter().any(|line| line.contains("cannot be inflated")), "{damage:?}");
}

#[test]
fn a_compressed_bomb_is_bounded() {
    // Blocks that say one byte a hundred thousand times, in a stream with a window of 8 MiB.
    let blocks = 1000;
    let block = (100_000u32 << 3 | 1 << 1).to_le_bytes();
    let mut payload = b"\x28\xb5\x2f\xfd\0\x68".to_vec();
    for _ in 0..blocks {
        payload.extend([block[0], block[1], block[2], 0xff]);
    }
    let size = (8 + payload.len()) as u16;
    let record = [&81u32.to_le_bytes()[..], &[0, 0], &size.to_le_bytes(), &payload].concat();
    let (_dir, path) = made::write(&made::file(ORDER, &[record]));
    let (collect, _, damage) = replayed(&path);
    assert!(collect.samples.is_empty());
    assert!(damage.iter().any(|line| line.starts_with("1 compressed records cannot be inflated")), "{damage:?}");
    // A window larger than any of perf's.
    let record = [&[81, 0, 0, 0, 0, 0, 17, 0][..], b"\x28\xb5\x2f\xfd\0\x88\0\0\0"].concat();
    let (_dir, path) = made::write(&made::file(ORDER, &[record]));
    assert_eq!(replayed(&path).2.len(), 1);
}

#[test]
fn reading_goes_on_after_a_hole() {
    let records = made::records(ORDER);
    let mut bytes = made::file(ORDER, &records);
    let data_at = bytes.len() - records.concat().len();
    let at = data_at + records[..10].concat().len();
    bytes[at..at + 24].fill(0);
    let (_dir, path) = made::write(&bytes);
    let (collect, _, damage) = replayed(&path);
    assert_eq!(collect.samples.len(), 41, "one record was lost");
    assert_eq!(damage.len(), 1, "{damage:?}");
    let output = scxprof(&["extract", "-f", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(!output.stdout.is_empty(), "what could be read was used");
    assert!(said(&output).contains("of perf.data make no sense (1 places)"), "{}", said(&output));
}

#[test]
fn a_record_that_contradicts_itself_is_counted() {
    let mut records = made::records(ORDER);
    // A sample of half the fields.
    records[7] = [&[9, 0, 0, 0, 2, 0, 24, 0][..], &[1; 16]].concat();
    let (_dir, path) = made::write(&made::file(ORDER, &records));
    let output = scxprof(&["process", "-v", "-f", path.to_str().unwrap()]);
    assert!(
        said(&output).contains("Parsed 41 of 42 records (0 are not memory samples, 1 unparseable)"),
        "{}",
        said(&output)
    );
    assert!(said(&output).contains("record SAMPLE at byte"), "{}", said(&output));
}

#[test]
fn a_cut_file_ends_with_another_code() {
    let whole = made::file(ORDER, &made::records(ORDER));
    let (dir, path) = made::write(&whole[..whole.len() - 100]);
    let output = scxprof(&["process", "-f", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let lines = dir.path().join("perf.data.out/perf.jsonl");
    let text = std::fs::read(&lines).unwrap();
    std::fs::write(&lines, &text[..text.len() - 100]).unwrap();
    let output = scxprof(&["extract", "-f", lines.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("1 of 4"), "{}", said(&output));
    assert!(!output.stdout.is_empty());
    for bytes in [&b""[..], b"PERFILE2", b"nothing of the kind, but long enough to be looked at"] {
        std::fs::write(&path, bytes).unwrap();
        let output = scxprof(&["extract", "-f", path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_file_whose_writer_was_killed_is_read_as_far_as_it_goes() {
    let mut bytes = made::file(ORDER, &made::records(ORDER));
    // The size of the data is written at the end.
    bytes[48..56].fill(0);
    let (_dir, path) = made::write(&bytes);
    let (collect, _, damage) = replayed(&path);
    assert_eq!(collect.samples.len(), 42);
    assert_eq!(damage, ["perf.data was not finished by its writer: it is read as far as it goes"]);
}

#[test]
fn what_follows_a_record_without_being_in_its_size_is_passed_over() {
    let mut records = made::records(ORDER);
    // AUXTRACE: its size, offset, reference, index, tid, CPU.
    let words = [5000u64, 0, 0].map(|word| ORDER.u64(word)).concat();
    let trace = [made::record(ORDER, 71, 0, &[words, ORDER.u64(0), ORDER.u64(0)]), vec![9; 5000]].concat();
    records.insert(10, trace);
    let (_dir, path) = made::write(&made::file(ORDER, &records));
    let (collect, _, damage) = replayed(&path);
    assert_eq!((collect.samples.len(), damage), (42, vec![]));
}

/// An archive of the files in this order, without `missing` bytes of the last.
fn cut_archive(files: &[(&str, &[u8])], missing: usize) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tar.gz");
    let mut tar = tar::Builder::new(Vec::new());
    let mut end = 0;
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, *bytes).unwrap();
        end = tar.get_ref().len() - bytes.len().next_multiple_of(512) + bytes.len();
    }
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    std::io::Write::write_all(&mut gz, &tar.into_inner().unwrap()).unwrap();
    // As it is, behind the headers of gzip and of a block.
    let cut = &gz.finish().unwrap()[..15 + end - missing];
    std::fs::write(&path, cut).unwrap();
    (dir, path)
}

#[test]
fn an_archive_that_was_cut_says_so() {
    let data = made::file(ORDER, &made::records(ORDER));
    let notes = [b'.'; 3000];
    let (_dir, path) = cut_archive(&[("x/perf.data", &data), ("x/notes", &notes)], 1000);
    let (collect, _, damage) = replayed(&path);
    assert_eq!((collect.samples.len(), &damage[..]), (42, &["the archive ends too early".to_owned()][..]));
    let output = scxprof(&["extract", "-f", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    let (_dir, path) = cut_archive(&[("x/notes", &notes), ("x/perf.data", &data)], data.len() + 100);
    let error = Profile::open(&path).unwrap_err().to_string();
    assert!(error.contains("the archive ends before its records"), "{error}");
}

#[test]
fn of_two_profiles_none_is_chosen() {
    let (dir, path) = made::write(&made::file(ORDER, &made::records(ORDER)));
    for name in ["a", "b"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        std::fs::copy(&path, dir.path().join(name).join("perf.data")).unwrap();
    }
    std::fs::remove_file(path).unwrap();
    let error = Profile::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("no perf.data"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes_are_read_or_counted(
        big in any::<bool>(), changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20)
    ) {
        let order = Order { big };
        let mut bytes = made::file(order, &made::records(order));
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        let (_dir, path) = made::write(&bytes);
        if let Ok(mut profile) = Profile::open(&path) {
            let mut collect = Collect::default();
            let _ = replay(&mut profile, 1 << 20, &mut collect);
            prop_assert!(collect.samples.len() <= 100);
        }
    }

    #[test]
    fn any_bytes_are_a_file_or_none(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), piped in any::<bool>()) {
        let head: Vec<u8> = if piped { [&b"PERFILE2"[..], &16u64.to_le_bytes()].concat() } else { b"PERFILE2".to_vec() };
        bytes.splice(0..0, head);
        let _ = count(&bytes);
    }
}
