//! The events of a recording, their names, and the source of its samples.

use std::path::Path;

use scxprof::sample::Source;
use scxprof::testing::profile::{Item, PerfData, Profile};

use super::made::{self, Order};

const ORDER: Order = Order { big: false };
/// `PERF_TYPE_SOFTWARE`, `PERF_TYPE_RAW`; `PERF_COUNT_SW_PAGE_FAULTS_MIN`, `PERF_COUNT_SW_DUMMY`.
const SOFTWARE: u32 = 1;
const RAW: u32 = 4;
const MINOR_FAULTS: u64 = 5;
const DUMMY: u64 = 9;
const IDS: [u64; 3] = [made::ID, 78, 79];

/// A recording from a pipe of these events, by type, config and name, each with its id. The section that names them lists them
/// in reverse order, with or without ids.
fn recording(events: &[(u32, u64, &str)], with_ids: bool) -> Vec<u8> {
    let attr = |&(kind, config, _): &(u32, u64, &str)| {
        let mut attr = made::attr(ORDER);
        attr[..4].copy_from_slice(&ORDER.u32(kind));
        attr[8..16].copy_from_slice(&ORDER.u64(config));
        attr
    };
    let name = |(event, id): (&(u32, u64, &str), u64)| {
        let ids = if with_ids { vec![id] } else { vec![] };
        let name = made::text(event.2.as_bytes());
        let ids_of: Vec<u8> = ids.iter().flat_map(|&id| ORDER.u64(id)).collect();
        [attr(event), ORDER.u32(ids.len() as u32), ORDER.u32(name.len() as u32), name, ids_of].concat()
    };
    let named = events.iter().zip(IDS);
    let section: Vec<u8> = if with_ids { named.rev().flat_map(name).collect() } else { named.flat_map(name).collect() };
    let mut bytes = [&b"PERFILE2"[..], &ORDER.u64(16)].concat();
    for (event, id) in events.iter().zip(IDS) {
        bytes.extend(made::record(ORDER, 64, 0, &[attr(event), ORDER.u64(id)]));
    }
    // HEADER_FEATURE with EVENT_DESC.
    let feature = [ORDER.u64(12), ORDER.u32(events.len() as u32), ORDER.u32(104), section];
    bytes.extend(made::record(ORDER, 80, 0, &feature));
    for id in IDS.into_iter().take(events.len()) {
        let mut sample = made::sample(ORDER, 1000 + id, 100, 100, 0x1_0000, 5, 4096);
        sample[8..16].copy_from_slice(&ORDER.u64(id));
        bytes.extend(sample);
    }
    bytes
}

#[test]
fn events_are_named_by_their_ids_or_in_their_order() {
    let events = [(RAW, 0x1cd, "loads"), (RAW, 0x82d0, "stores"), (SOFTWARE, DUMMY, "dummy:HG")];
    for with_ids in [true, false] {
        let mut file = PerfData::open(std::io::Cursor::new(recording(&events, with_ids))).unwrap();
        let mut seen = Vec::new();
        while let Some(item) = file.next_item().unwrap() {
            let Item::Record { event, .. } = item else { panic!("there is no mark") };
            seen.push(event);
        }
        assert_eq!(seen, [0, 1, 2]);
        let named: Vec<_> = file.events().iter().map(|event| (event.attr.config, event.name.as_deref())).collect();
        assert_eq!(named, events.map(|(_, config, name)| (config, Some(name))), "with ids: {with_ids}");
    }
}

/// The tracing data of one tracepoint.
fn tracing(name: &str, id: u64) -> Vec<u8> {
    let format = format!("name: {name}\nID: {id}\nformat:\n");
    [
        &b"\x17\x08\x44tracing0.6\0\0\x08"[..],
        &ORDER.u32(4096),
        b"header_page\0",
        &ORDER.u64(0),
        b"header_event\0",
        &ORDER.u64(0),
        &ORDER.u32(0),
        &ORDER.u32(1),
        b"syscalls\0",
        &ORDER.u32(1),
        &ORDER.u64(format.len() as u64),
        format.as_bytes(),
    ]
    .concat()
}

#[test]
fn events_without_names_are_called_as_perf_calls_them() {
    // Without guests, as perf opens them.
    let event = |kind: u32, config: u64, id: u64| {
        let mut attr = made::attr(ORDER);
        attr[..4].copy_from_slice(&ORDER.u32(kind));
        attr[8..16].copy_from_slice(&ORDER.u64(config));
        attr[42] |= 1 << 4;
        (attr, vec![id])
    };
    let events = [event(SOFTWARE, 2, made::ID), event(SOFTWARE, 0, 78), event(2, 314, 79), event(2, 315, 80)];
    let records = made::records(ORDER);
    let bytes = made::of_events(ORDER, &events, &records, &[(1, tracing("sys_enter_read", 314))]);
    let file = PerfData::open(std::io::Cursor::new(&bytes)).unwrap();
    let names: Vec<_> = file.events().iter().map(|event| event.name.as_deref().unwrap_or("none")).collect();
    assert_eq!(names, ["page-faults", "cpu-clock", "syscalls:sys_enter_read", "unknown tracepoint"]);
    // Of these the file names one.
    let name = made::text(b"my faults");
    let desc = [ORDER.u32(1), ORDER.u32(104), events[0].0.clone(), ORDER.u32(1), ORDER.u32(name.len() as u32), name];
    let desc = [desc.concat(), ORDER.u64(made::ID)].concat();
    let bytes = made::of_events(ORDER, &events, &records, &[(1, tracing("sys_enter_read", 314)), (12, desc)]);
    let file = PerfData::open(std::io::Cursor::new(&bytes)).unwrap();
    let names: Vec<_> = file.events().iter().map(|event| event.name.as_deref().unwrap_or("none")).collect();
    assert_eq!(names, ["my faults", "cpu-clock", "syscalls:sys_enter_read", "unknown tracepoint"]);
    let (_dir, path) = made::write(&made::of_events(ORDER, &events[..1], &records, &[]));
    let output = super::scxprof(&["process", "-f", path.to_str().unwrap(), "-o", "-"]);
    let line = output.stdout.split(|&byte| byte == b'\n').next().unwrap();
    let line: serde_json::Value = serde_json::from_slice(line).unwrap();
    assert_eq!(line["event"], "page-faults");
}

#[test]
fn samples_are_counted_as_what_they_are() {
    let mut attr = made::attr(ORDER);
    attr[..4].copy_from_slice(&ORDER.u32(SOFTWARE));
    attr[8..16].copy_from_slice(&ORDER.u64(2));
    attr[42] |= 1 << 4;
    let mut records = made::records(ORDER);
    // No data source.
    for sample in records.iter_mut().filter(|record| record[0] == 9) {
        let at = sample.len() - 32;
        sample[at..at + 8].fill(0);
    }
    let (_dir, path) = made::write(&made::of_events(ORDER, &[(attr, vec![made::ID])], &records, &[]));
    let output = super::scxprof(&["trace", "info", path.to_str().unwrap(), "--json"]);
    let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(info["events"], serde_json::json!([{ "name": "page-faults", "count": 42 }]));
    assert_eq!(info["cpus_seen"], serde_json::json!([]), "no event of the scheduler");
}

#[test]
fn a_pipe_says_what_recorded_it() {
    for big in [false, true] {
        let order = Order { big };
        let text = |text: &str| {
            let mut padded = text.as_bytes().to_vec();
            padded.resize(64, 0);
            [order.u32(64), padded].concat()
        };
        let feature = |bit: u64, body: Vec<u8>| made::record(order, 80, 0, &[order.u64(bit), body]);
        let records = [
            feature(4, text("6.18.44-fc")),
            feature(5, text("6.1.187")),
            feature(7, [order.u32(16), order.u32(12)].concat()),
            // A second one does not replace the first.
            feature(4, text("7.0")),
        ];
        let records = [&records[..], &made::records(order)].concat();
        let (_dir, path) = made::write(&made::pipe(order, &records));
        let output = super::scxprof(&["trace", "info", path.to_str().unwrap(), "--json"]);
        let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((info["tool"].as_str(), info["kernel"].as_str()), (Some("perf 6.1.187"), Some("6.18.44-fc")));
        assert_eq!(info["cpus"], 12, "big: {big}");
        // Their like in a file that is no pipe are no sections of it.
        let (_dir, path) = made::write(&made::file(order, &records));
        let output = super::scxprof(&["trace", "info", path.to_str().unwrap(), "--json"]);
        let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(info["kernel"], "");
    }
}

#[test]
fn the_events_say_which_source_it_is() {
    let dummy = (SOFTWARE, DUMMY, "dummy:HG");
    let user_dummy = (SOFTWARE, DUMMY, "dummy:u");
    for (events, expected) in [
        (vec![(RAW, 0x1cd, "cpu/mem-loads,ldlat=30/P")], Source::Pebs),
        (vec![(RAW, 0x82d0, "cpu/mem-stores/P"), dummy], Source::Pebs),
        (vec![(9, 0, "ibs_op//")], Source::Ibs),
        (vec![(SOFTWARE, MINOR_FAULTS, "minor-faults"), dummy], Source::Faults),
        (vec![(SOFTWARE, MINOR_FAULTS, "minor-faults:u"), user_dummy], Source::Faults),
        (vec![(SOFTWARE, MINOR_FAULTS, "minor-faults"), (0, 0, "cycles")], Source::Recorded),
        (vec![(0, 0, "cycles")], Source::Recorded),
    ] {
        let (_dir, path) = made::write(&recording(&events, true));
        // A pipe names its events before its first sample, and the source must be known before that is read.
        let source = |path: &Path| Profile::open(path).unwrap().source();
        assert_eq!(source(&path), expected, "{events:?}");
    }
}

#[test]
fn lines_say_their_event_and_no_cpu_that_was_not_recorded() {
    let lines = |path: &Path| -> Vec<serde_json::Value> {
        let output = super::scxprof(&["process", "-f", path.to_str().unwrap()]);
        assert!(output.status.success(), "{}", super::said(&output));
        let lines = std::fs::read_to_string(format!("{}.out/perf.jsonl", path.display())).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (_dir, path) = made::write(&recording(&[(RAW, 0x1cd, "loads"), (RAW, 0x82d0, "stores")], true));
    let said: Vec<_> = lines(&path).iter().map(|line| (line["event"].clone(), line.get("cpu").is_some())).collect();
    assert_eq!(said, [("loads".into(), true), ("stores".into(), true)]);
    // IDENTIFIER, IP, TID, TIME, ADDR.
    let mut attr = made::attr(ORDER);
    attr[24..32].copy_from_slice(&ORDER.u64(1 << 16 | 0b1111));
    let ids = [100u32, 100].map(|id| ORDER.u32(id)).concat();
    let words = |words: [u64; 2]| words.map(|word| ORDER.u64(word)).concat();
    let sample = made::record(ORDER, 9, 2, &[words([made::ID, 0x40_1000]), ids, words([5, 0x1_0000])]);
    let (_dir, path) = made::write(&made::of_events(ORDER, &[(attr, vec![made::ID])], &[sample], &[]));
    let without = lines(&path);
    assert_eq!((without.len(), without[0].get("cpu")), (1, None), "{without:?}");
}

#[test]
fn a_pipe_whose_events_come_last_is_refused() {
    let piped = recording(&[(SOFTWARE, MINOR_FAULTS, "minor-faults")], true);
    let (events, sample) = piped[16..].split_at(piped.len() - 16 - made::sample(ORDER, 0, 0, 0, 0, 0, 0).len());
    let (_dir, path) = made::write(&[&piped[..16], sample, events].concat());
    let output = super::scxprof(&["extract", "-f", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(super::said(&output).contains("record without --tail-synthesize"), "{}", super::said(&output));
}

#[test]
fn a_sample_without_a_period_has_that_of_its_event() {
    // IDENTIFIER, IP, TID, TIME, ADDR; the attr's period is 1000, of the second event it is a frequency.
    let mut attr = made::attr(ORDER);
    attr[24..32].copy_from_slice(&ORDER.u64(1 << 16 | 0b1111));
    let mut of_frequency = attr.clone();
    of_frequency[41] |= 1 << 2;
    let words = |words: [u64; 2]| words.map(|word| ORDER.u64(word)).concat();
    let sample = |id, time| {
        let ids = [100u32, 100].map(|id| ORDER.u32(id)).concat();
        made::record(ORDER, 9, 2, &[words([id, 0x40_1000]), ids, words([time, 0x1_0000])])
    };
    let events = [(attr, vec![made::ID]), (of_frequency, vec![78])];
    let samples = [sample(made::ID, 1), sample(78, 2), sample(made::ID, 3)];
    let (_dir, path) = made::write(&made::of_events(ORDER, &events, &samples, &[]));
    let (collect, ..) = super::replayed(&path);
    let periods: Vec<_> = collect.samples.iter().map(|sample| sample.raw.period).collect();
    assert_eq!(periods, [1000, 0, 1000]);
}

#[test]
fn what_has_no_time_is_in_the_order_of_the_file() {
    // IDENTIFIER, IP, TID, ADDR.
    let mut attr = made::attr(ORDER);
    attr[24..32].copy_from_slice(&ORDER.u64(1 << 16 | 0b1011));
    let ids = [100u32, 100].map(|id| ORDER.u32(id)).concat();
    let words = |words: &[u64]| words.iter().flat_map(|&word| ORDER.u64(word)).collect::<Vec<u8>>();
    let sample = |addr| made::record(ORDER, 9, 2, &[words(&[made::ID, 0x40_1000]), ids.clone(), words(&[addr])]);
    let comm = |name| made::record(ORDER, 3, 0, &[ids.clone(), made::text(name), ids.clone(), words(&[made::ID])]);
    let records =
        [comm(b"before"), sample(0x1_0000), made::round(ORDER), sample(0x1_1000), comm(b"after"), sample(0x1_2000)];
    let (_dir, path) = made::write(&made::of_events(ORDER, &[(attr, vec![made::ID])], &records, &[]));
    let (collect, outcome, _) = super::replayed(&path);
    let named = |sample: &scxprof::sample::Sample| (sample.comm.map(|comm| comm.to_string()), sample.raw.addr);
    let seen: Vec<_> = collect.samples.iter().map(named).collect();
    let expected = [("before", 0x1_0000), ("before", 0x1_1000), ("after", 0x1_2000)];
    assert_eq!(seen, expected.map(|(name, addr)| (Some(name.to_owned()), addr)));
    assert!(outcome.notes.iter().any(|note| note.contains("has no times")), "{:?}", outcome.notes);
}

#[test]
fn names_at_the_end_come_too_late_and_that_is_said() {
    let sample = |seconds: u64| made::sample(ORDER, seconds * 1_000_000_000, 100, 100, 0x1_0000, 5, 4096);
    let name = made::comm(ORDER, 0, 100, 100, b"late");
    let round = || made::round(ORDER);
    let notes = |records: &[Vec<u8>]| {
        let (_dir, path) = made::write(&made::file(ORDER, records));
        let (_, outcome, _) = super::replayed(&path);
        (outcome.loss.unnamed, outcome.notes)
    };
    let (unnamed, said) = notes(&[sample(1), round(), sample(2), round(), sample(3), round(), name.clone()]);
    assert!((1..3).contains(&unnamed));
    assert!(said.iter().any(|note| note.contains("record without --tail-synthesize")), "{said:?}");
    assert_eq!(notes(&[name.clone(), sample(1), round(), sample(2)]), (0, Vec::new()));
    assert_eq!(notes(&[sample(1), sample(2), name]), (0, Vec::new()), "it was in time");
}

#[test]
fn a_loss_that_perf_says_twice_is_counted_once() {
    let order = ORDER;
    let lost = |count| made::record(order, 2, 0, &[order.u64(made::ID), order.u64(count), made::trailer(order, 1)]);
    let lost_samples =
        |misc, count, time| made::record(order, 13, misc, &[order.u64(count), made::trailer(order, time)]);
    let sample = made::sample(order, 1000, 100, 100, 0x1_0000, 5, 4096);
    let loss = |more: &[Vec<u8>]| {
        let (_dir, path) = made::write(&made::file(order, &[&[sample.clone(), lost(7), lost(5)], more].concat()));
        let (_, outcome, damage) = super::replayed(&path);
        assert_eq!(damage, Vec::<String>::new());
        (outcome.loss.ring_full, outcome.loss.hardware)
    };
    assert_eq!(loss(&[]), (12, 0));
    // Two of the twelve were names; three samples were lost after the last record that says so.
    assert_eq!(loss(&[lost_samples(0, 9, 0), lost_samples(0, 4, 0)]), (13, 0), "of two events, at the end");
    assert_eq!(loss(&[lost_samples(0, 9, 2), lost_samples(0, 1, 3)]), (12, 10), "by the hardware");
    assert_eq!(loss(&[lost_samples(1 << 15, 9, 0)]), (12, 0), "a BPF filter dropped them");
}

/// ns of CPU that this thread needs to open a file with this many events that a section names without their ids.
fn cpu_time_of_names(count: usize) -> u64 {
    let events = vec![(made::attr(ORDER), vec![]); count];
    let entry = [made::attr(ORDER), ORDER.u32(0), ORDER.u32(8), made::text(b"name")].concat();
    let section = [&ORDER.u32(count as u32)[..], &ORDER.u32(104), &entry.repeat(count)].concat();
    // Without a record the file counts as unfinished, and has no sections.
    let bytes = made::of_events(ORDER, &events, &[made::round(ORDER)], &[(12, section)]);
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call only fills the structure.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    };
    let begin = now();
    let file = PerfData::open(std::io::Cursor::new(bytes)).unwrap();
    assert!(file.events().iter().all(|event| event.name.as_deref() == Some("name")));
    now() - begin
}

#[test]
fn each_event_is_named_without_a_look_at_all_others() {
    cpu_time_of_names(3_000);
    let (few, many) = (cpu_time_of_names(3_000), cpu_time_of_names(30_000));
    assert!(many < few * 40, "10 times as many took {many} ns in place of {few}");
}

#[test]
fn memory_of_guests_is_not_that_of_the_host() {
    let sample = |time, mode| {
        let mut sample = made::sample(ORDER, time, 100, 100, 0x1_0000, 5, 4096);
        sample[4] = sample[4] & !7 | mode;
        sample
    };
    // User code, the kernel of a guest, its user code.
    let samples = [2, 4, 5, 2, 5].into_iter().zip(1000..).map(|(mode, time)| sample(time, mode));
    let records: Vec<_> = std::iter::once(made::comm(ORDER, 1, 100, 100, b"qemu")).chain(samples).collect();
    let bytes = made::file(ORDER, &records);
    assert_eq!(made::read(&bytes).samples.iter().map(|it| it.raw.time).collect::<Vec<_>>(), [1000, 1003]);
}
