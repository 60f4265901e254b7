//! What wprof says beside its slices: NUMA nodes, hardware counters, layers, requests and chains of waits.

use scxprof_trace::analyze::*;

use super::encode::{at, file, int_arg, packet, slice, text_arg, thread_track, wprof_tables, Message};
use super::files::*;

/// The result of an analyser.
macro_rules! result {
    ($report:expr, $id:ident) => {
        match $report.get(Id::$id) {
            Some(Findings::$id(result)) => &**result,
            other => panic!("{other:?} {:?}", $report.unavailable),
        }
    };
}

fn analyzed(packets: &[Message], options: Options) -> Report {
    let mut trace = open(file(packets)).unwrap();
    let mut analysis = Analysis::new(options);
    while let Some(event) = trace.next_event().unwrap() {
        analysis.take(&event);
    }
    analysis.finish(&trace)
}

fn by(by: By) -> Options {
    Options { by, limit: usize::MAX, ..Options::default() }
}

fn double_arg(name: &str, value: f64) -> Message {
    Message::new().text(10, name).double(5, value)
}

/// A run of the thread of a track on a CPU of a node that is idle before and after, and what its beginning and its end say.
fn run(track: u64, [from, until]: [u64; 2], [cpu, node]: [u64; 2], begin: &[Message], end: &[Message]) -> Vec<Message> {
    let said = |more: &[Message]| [&[int_arg("cpu", cpu), int_arg("numa_node", node)], more].concat();
    let idle = |time, kind| at(time, &slice(kind, 90 + cpu, "ONCPU", "swapper"), &said(&[]));
    vec![
        idle(from, 2),
        at(from, &slice(1, track, "ONCPU", "a"), &said(begin)),
        at(until, &slice(2, track, "ONCPU", "a"), &said(end)),
        idle(until, 1),
    ]
}

fn made(runs: &[Vec<Message>]) -> Vec<Message> {
    let tracks = vec![wprof_tables(), thread_track(1, 100, 100, "web"), thread_track(2, 200, 201, "batch")];
    // wprof's process of the idle threads.
    let idle = (0..9).map(|cpu| thread_track(90 + cpu, 2_000_000_000, cpu + 1, "swapper")).collect();
    [tracks, idle, runs.concat()].concat()
}

#[test]
fn moves_across_nodes_are_known_from_the_annotations() {
    let packets = made(&[
        run(1, [100, 200], [0, 0], &[], &[]),
        run(1, [300, 400], [1, 0], &[], &[]),
        run(1, [500, 600], [8, 1], &[], &[]),
        run(1, [700, 800], [8, 1], &[], &[]),
        run(1, [900, 1000], [0, 0], &[], &[]),
    ]);
    let report = analyzed(&packets, Options::default());
    let found = result!(report, MigrationPatterns).runs;
    let counts = [found.same_cpu, found.same_llc, found.other_llc, found.same_node, found.other_node, found.unknown];
    assert_eq!(counts, [1, 0, 0, 1, 2, 0]);
    let read = read(file(&packets));
    assert_eq!(read.info.nodes, [(0, vec![0, 1]), (1, vec![8])].into());
    // Caches that the user names say more than nodes, and nodes more than caches that differ.
    let mut places = scxprof_base::sample::places::CpuPlaces::default();
    for (cpu, llc) in [(0, 0), (1, 0), (8, 8)] {
        places.set(cpu, scxprof_base::sample::places::CpuPlace { core: cpu, llc, node: 0 });
    }
    let report = analyzed(&packets, Options { places, ..Options::default() });
    let found = result!(report, LlcLocality).runs;
    assert_eq!((found.same_llc, found.other_llc, found.other_node), (1, 0, 2));
}

#[test]
fn counters_are_summed_by_thread_name_and_layer() {
    let counted = |instructions, cycles, ipc| {
        [
            double_arg("pmu:instructions", instructions),
            double_arg("pmu:cpu-cycles:u", cycles),
            double_arg("pmu:ipc", ipc),
        ]
    };
    let layer = |id| [int_arg("scx_layer_id", id), int_arg("scx_dsq_id", 1)];
    let packets = made(&[
        run(1, [100, 200], [0, 0], &layer(3), &counted(3000.0, 1000.0, 3.0)),
        run(1, [300, 500], [0, 0], &layer(4), &counted(1000.0, 2000.0, 0.5)),
        run(2, [600, 650], [0, 0], &layer(4), &counted(50.0, 0.0, f64::NAN)),
    ]);
    let groups = |by_what| {
        let report = analyzed(&packets, by(by_what));
        let found = result!(report, Groups);
        let mut lines: Vec<_> = found
            .groups
            .iter()
            .map(|line| {
                let counters: Vec<(String, f64)> =
                    line.counters.iter().map(|counted| (counted.name.clone(), counted.sum)).collect();
                (line.group.clone(), line.run.total_ns, line.threads, counters, line.ipc)
            })
            .collect();
        lines.sort_by(|a, b| a.0.cmp(&b.0));
        lines
    };
    // A ratio is no count: its sum would say nothing.
    let sums =
        |instructions, cycles| vec![("instructions".to_owned(), instructions), ("cpu-cycles:u".to_owned(), cycles)];
    let layers = groups(By::Layer);
    assert_eq!(layers[0], ("layer 3".to_owned(), 100, 1, sums(3000.0, 1000.0), Some(3.0)));
    assert_eq!(layers[1], ("layer 4".to_owned(), 250, 2, sums(1050.0, 2000.0), Some(0.525)));
    let threads = groups(By::Thread);
    assert_eq!((threads[0].0.as_str(), threads[0].1, threads[0].4), ("a 100", 300, Some(4000.0 / 3000.0)));
    assert_eq!((threads[1].0.as_str(), threads[1].4), ("a 201", None));
    let processes: Vec<String> = groups(By::Process).into_iter().map(|line| line.0).collect();
    assert_eq!(processes, ["200", "a 100"]);
    assert_eq!(groups(By::Name)[0].2, 2);
    let of = |comm: &[u8]| format!("cell/{}", String::from_utf8_lossy(comm));
    let options = Options { subcells: Some(Subcells(std::sync::Arc::new(of))), ..by(By::Subcell) };
    let report = analyzed(&packets, options);
    assert_eq!(result!(report, Groups).groups[0].group, "cell/a");
}

#[test]
fn requests_have_their_times_and_their_names() {
    let request = |time, kind, track, name: &str, id, more: &[Message]| {
        let args = [&[text_arg("req_name", name), int_arg("req_id", id)], more].concat();
        at(time, &slice(kind, track, "REQUEST", name), &args)
    };
    let track = |uuid, name: &str| packet(7).message(60, &Message::new().int(1, uuid).text(2, name));
    let packets = made(&[
        run(1, [100, 200], [0, 0], &[], &[]),
        vec![
            track(11, "REQ:get (1)"),
            request(1_000, 1, 11, "get", 1, &[]),
            // Another thread of the same request.
            request(1_500, 1, 11, "get", 1, &[]),
            request(4_000, 2, 11, "get", 1, &[double_arg("req_latency_us", 3.0)]),
            request(5_000, 1, 12, "get", 2, &[]),
            request(6_000, 2, 12, "get", 2, &[]),
            // It began before the trace.
            request(20_000, 2, 13, "put", 3, &[double_arg("req_latency_us", 7.5)]),
            request(21_000, 1, 14, "put", 4, &[]),
            request(22_000, 2, 15, "put", 5, &[]),
        ],
    ]);
    let report = analyzed(&packets, Options::default());
    let found = result!(report, Requests);
    let lines: Vec<_> = found
        .requests
        .iter()
        .map(|line| (line.name.as_str(), line.latency.count, line.latency.total_ns, line.latency.max_ns))
        .collect();
    assert_eq!(lines, [("put", 1, 7_500, Some(7_500)), ("get", 2, 4_000, Some(3_000))]);
    assert_eq!((found.slowest[0].id, found.slowest[0].begin_ns, found.slowest[0].ns), (Some(3), 12_500, 7_500));
    assert_eq!((found.unpaired.begins, found.unpaired.ends), (1, 1));
    let without = analyzed(&made(&[run(1, [100, 200], [0, 0], &[], &[])]), Options::default());
    assert!(without.get(Id::Requests).is_none() && without.get(Id::CompoundDelay).is_none(), "{without:?}");
}

#[test]
fn chains_of_waits_are_added_up_by_thread() {
    let chain = |us, length| [double_arg("compound_delay_us", us), int_arg("compound_chain_len", length)];
    let packets = made(&[
        run(1, [100, 200], [0, 0], &chain(2.0, 1), &[]),
        run(1, [300, 500], [0, 0], &chain(6.0, 4), &[]),
        run(2, [600, 650], [0, 0], &chain(1.0, 1), &[]),
    ]);
    let report = analyzed(&packets, by(By::Thread));
    let found = result!(report, CompoundDelay);
    assert_eq!((found.delay.count, found.delay.total_ns, found.longest_chain), (3, 9_000, 4));
    assert_eq!(found.mean_chain, Some(2.0));
    let first = &found.threads[0];
    assert_eq!((first.thread.tid, first.delay.max_ns, first.longest_chain), (100, Some(6_000), 4));
    let lines = &result!(report, Groups).groups;
    let of = |name: &str| lines.iter().find(|line| line.group == name).unwrap().compound.unwrap().total_ns;
    assert_eq!((of("a 100"), of("a 201")), (8_000, 1_000));
}

#[test]
fn a_name_that_the_trace_does_not_have_is_its_number() {
    let event = Message::new().int(9, 3).int(11, 1).int(3, 77).int(10, 88);
    let arg = Message::new().int(1, 99).int(17, 66);
    let zero = Message::new().int(9, 3).int(11, 1);
    let packets = made(&[vec![at(10, &event, &[arg]), at(20, &zero, &[])]]);
    let found = read(file(&packets));
    let names = found.trace.names();
    let text = |name| String::from_utf8_lossy(names.text(name)).into_owned();
    let said: Vec<_> = found
        .others
        .iter()
        .map(|event| match &event.what {
            scxprof_trace::TraceWhat::Slice { category, name, args, .. } => {
                let args: Vec<String> = args
                    .iter()
                    .map(|(name, arg)| match arg {
                        scxprof_trace::Arg::Text(value) => format!("{}={}", text(name), text(value)),
                        other => panic!("{other:?}"),
                    })
                    .collect();
                (text(*category), text(*name), args.join(" "))
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let of = |category: &str, name: &str, args: &str| (category.to_owned(), name.to_owned(), args.to_owned());
    assert_eq!(said, [of("<iid:77>", "<iid:88>", "<iid:99>=<iid:66>"), of("", "", "")]);
    assert_eq!(count(&found.info, "track:<iid:77>"), 1);
}
