//! From sharing threads to a configuration: known scenarios, judged by the written file alone, and properties.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use proptest::prelude::*;
use scxprof::sample::Comm;
use scxprof::testing::config::{
    decide, layered, layers, mitosis, Assigned, CellOptions, CellSpecs, Consumer, Decision, DecisionOptions, Member,
    Members, Note, Tally, Unknown, Verdict,
};

const SHOP: &str = "/workload.slice/workload-tw-demo.allotment.slice";
const APP: &str = "/workload.slice/app.service";
const OPTIONS: DecisionOptions = DecisionOptions::new(0.05, 64);

pub(super) static GROUPS: LazyLock<CellSpecs> = LazyLock::new(|| CellSpecs::new(&CellOptions::default()).unwrap());

/// A thread: its cgroup, its name, its verdict, its samples.
pub(super) type Thread<'a> = (&'a [u8], &'a [u8], Verdict, f64);

pub(super) fn input(threads: &[Thread<'_>]) -> (Tally, Members) {
    let mut tally = Tally::default();
    let mut members = Members::default();
    for ((path, comm, verdict, samples), thread) in threads.iter().zip(0..) {
        let cell = tally.cell(GROUPS.assign(path));
        let comm = Some(Comm::new(comm));
        tally.add(cell, comm, *samples);
        let (pid, tid) = (1, 100 + thread);
        members.threads.push(Member { thread, pid, tid, comm, hint: None, cell, samples: *samples, verdict: *verdict });
        if let Verdict::Community(community) = verdict {
            members.affinity.add(*community, *community, *samples);
        }
    }
    (tally, members)
}

fn decided(threads: &[Thread<'_>]) -> Decision {
    let (tally, members) = input(threads);
    decide(&GROUPS, &tally, &members, &OPTIONS).unwrap()
}

/// Where the written file puts a thread; threads in the catch-alls of different cells are apart.
fn places(decision: &Decision, threads: &[Thread<'_>]) -> Vec<Assigned> {
    let json = mitosis::to_json(&decision.cells).unwrap();
    let consumer = Consumer::new(&mitosis::parse(&json).unwrap()).unwrap();
    threads.iter().map(|(path, comm, ..)| consumer.assign(path, Comm::new(comm).as_bytes())).collect()
}

/// The adjusted Rand index, by its definition: pairs of threads that are together in both.
fn ari<A: Ord, B: Ord>(found: &[A], truth: &[B]) -> f64 {
    let pairs = |count: usize| (count * count.saturating_sub(1)) as f64 / 2.0;
    let (mut both, mut of_a, mut of_b) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for (a, b) in found.iter().zip(truth) {
        *both.entry((a, b)).or_insert(0) += 1;
        *of_a.entry(a).or_insert(0) += 1;
        *of_b.entry(b).or_insert(0) += 1;
    }
    let together: f64 = both.values().map(|&count| pairs(count)).sum();
    let (a, b): (f64, f64) =
        (of_a.values().map(|&count| pairs(count)).sum(), of_b.values().map(|&count| pairs(count)).sum());
    let expected = a * b / pairs(found.len()).max(1.0);
    let most = f64::midpoint(a, b);
    if (most - expected).abs() < f64::EPSILON {
        1.0
    } else {
        (together - expected) / (most - expected)
    }
}

/// Threads of one cgroup, 100 samples each; a thread with the label `None` shares nothing.
fn shop(threads: &[(&'static str, Option<u32>)]) -> Vec<Thread<'static>> {
    let verdict = |community: Option<u32>| community.map_or(Verdict::Alone, Verdict::Community);
    threads.iter().map(|(comm, it)| (SHOP.as_bytes(), comm.as_bytes(), verdict(*it), 100.0)).collect()
}

/// Decides and compares with the truth: a label for each thread.
fn agrees(threads: &[Thread<'_>], truth: &[&str]) -> Decision {
    let decision = decided(threads);
    let places = places(&decision, threads);
    assert!((ari(&places, truth) - 1.0).abs() < 1e-9, "{places:?} {:#?}", decision.cells);
    decision
}

#[test]
fn scenario_pairs_of_names_share_buffers() {
    let threads = shop(&[
        ("reader-a", Some(0)),
        ("writer-a", Some(0)),
        ("reader-b", Some(1)),
        ("writer-b", Some(1)),
        ("loner", None),
    ]);
    let decision = agrees(&threads, &["a", "a", "b", "b", "l"]);
    assert!(decision.notes.is_empty(), "{:?}", decision.notes);
    let names: Vec<_> = decision.cells[0].subcells.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["reader-a+writer-a", "reader-b+writer-b", "loner", "rest"]);
    assert_eq!(decision.bases[0][1].communities, [1]);
    assert_eq!(decision.bases[0][2].class.as_deref(), Some("loner"));
}

#[test]
fn scenario_a_counter_that_all_hammer() {
    let threads = shop(&[("reader-a", Some(0)), ("writer-a", Some(0)), ("reader-b", Some(1)), ("writer-b", Some(1))]);
    let (tally, mut members) = input(&threads);
    members.affinity.add(0, 1, 150.0);
    let decision = decide(&GROUPS, &tally, &members, &OPTIONS).unwrap();
    let found = places(&decision, &threads);
    assert!((ari(&found, &["a", "a", "b", "b"]) - 1.0).abs() < 1e-9, "{found:?}");
}

#[test]
fn scenario_nothing_is_shared() {
    let threads = shop(&[("alpha", None), ("beta", None), ("gamma", None)]);
    agrees(&threads, &["a", "b", "c"]);
    // As many as there are names: only those over the share have a subcell.
    let mut threads = shop(&[("alpha", None), ("beta", None), ("small", None)]);
    threads[2].3 = 5.0;
    let decision = agrees(&threads, &["a", "b", "rest"]);
    assert_eq!(decision.cells[0].subcells.len(), 3);
}

#[test]
fn scenario_two_processes_over_shared_memory() {
    let mut threads: Vec<Thread> = vec![
        (APP.as_bytes(), b"left", Verdict::Community(0), 100.0),
        (APP.as_bytes(), b"right", Verdict::Community(0), 100.0),
    ];
    threads.extend(shop(&[("web", None)]));
    threads.push((b"/", b"init", Verdict::Alone, 10.0));
    agrees(&threads, &["app", "app", "web", "init"]);
}

#[test]
fn scenario_web_beside_webserver() {
    let truth = ["ws", "ws", "web", "lone"];
    agrees(&shop(&[("webserver1", Some(0)), ("webserver2", Some(0)), ("web", None), ("loner", None)]), &truth);
    // In reverse order, and with a class in the way that is too small for its own subcell.
    let mut threads = shop(&[("web", Some(0)), ("web", Some(0)), ("webserver", None), ("loner", None)]);
    agrees(&threads, &truth);
    threads[2].3 = 1.0;
    let decision = agrees(&threads, &truth);
    assert_eq!(decision.cells[0].subcells[0].name, "webserver", "a small class that is in the way stands before");
}

#[test]
fn scenario_numbered_pools() {
    let names = ["pool-a1", "pool-a2", "pool-a8", "pool-b1", "pool-b2"];
    let threads: Vec<_> = names.iter().map(|&name| (name, Some(u32::from(name.contains('b'))))).collect();
    let decision = agrees(&shop(&threads), &["a", "a", "a", "b", "b"]);
    let prefixes: Vec<_> = decision.cells[0].subcells.iter().map(|it| it.matches.clone()).collect();
    assert_eq!(prefixes[..2], [vec![vec!["pool-a".to_owned()]], vec![vec!["pool-b".to_owned()]]]);
    agrees(
        &shop(&[
            ("p1", Some(0)),
            ("p2", Some(0)),
            ("p3", Some(1)),
            ("p4", Some(1)),
            ("p10", Some(2)),
            ("p11", Some(2)),
        ]),
        &["a", "a", "b", "b", "c", "c"],
    );
}

#[test]
fn scenario_a_parent_and_its_forked_children() {
    // Copy-on-write pages join no threads: each is alone, and a class takes the children because they have one name.
    let threads = shop(&[("parent", None), ("child", None), ("child", None), ("child", None)]);
    let decision = agrees(&threads, &["p", "c", "c", "c"]);
    assert!(decision.bases[0].iter().all(|basis| basis.communities.is_empty()));
}

#[test]
fn scenario_the_workload_of_make_run() {
    let truth = [
        ("reader-a", Some(0)),
        ("writer-a", Some(0)),
        ("reader-b", Some(1)),
        ("writer-b", Some(1)),
        ("pool-1", Some(2)),
        ("pool-2", Some(2)),
        ("pool-3", Some(2)),
        ("pool-4", Some(2)),
        ("webserver1", Some(3)),
        ("webserver2", Some(3)),
        ("web", None),
        ("loner", None),
    ];
    let labels: Vec<&str> = truth
        .iter()
        .map(|it| ["a", "b", "p", "ws"].get(it.1.unwrap_or(9) as usize))
        .zip(&truth)
        .map(|(label, it)| label.copied().unwrap_or(it.0))
        .collect();
    let decision = agrees(&shop(&truth), &labels);
    assert!(decision.notes.is_empty(), "{:?}", decision.notes);
}

fn said(decision: &Decision) -> String {
    decision.notes.iter().map(|note| format!("{note}\n")).collect()
}

#[test]
fn one_name_in_two_communities_is_reported_with_its_tids() {
    let decision =
        decided(&shop(&[("worker", Some(0)), ("worker", Some(0)), ("worker", Some(1)), ("worker", Some(1))]));
    let said = said(&decision);
    assert!(said.contains("2 communities have threads called \"worker\": names cannot tell them apart"), "{said}");
    assert!(said.contains("(tids 100 101; 102 103)"), "{said}");
    assert_eq!(decision.bases[0][0].communities, [0, 1], "they are mostly of that name");

    // If only a small part of a community has the name, that part goes along with the other.
    let mut threads =
        shop(&[("worker", Some(0)), ("worker", Some(0)), ("worker", Some(1)), ("db", Some(1)), ("log", Some(1))]);
    threads[3].3 = 1000.0;
    let found = places(&decided(&threads), &threads);
    assert_eq!(found[0], found[2]);
    assert_eq!(found[3], found[4]);
    assert_ne!(found[0], found[3]);
}

#[test]
fn the_least_valuable_communities_are_left_or_merged_by_the_locality_lost() {
    let names: Vec<String> = (0..9_u8)
        .flat_map(|at| {
            let letter = char::from(b'a' + at);
            [format!("{letter}-reader"), format!("{letter}-writer")]
        })
        .collect();
    let threads: Vec<Thread> = names
        .iter()
        .zip(0..)
        .map(|(name, at): (_, u32)| {
            (SHOP.as_bytes(), name.as_bytes(), Verdict::Community(at / 2), 200.0 - f64::from(at / 2))
        })
        .collect();
    let decision = decided(&threads);
    let text = said(&decision);
    assert!(text.contains("h-reader, h-writer") && text.contains("i-reader, i-writer"), "{text}");
    assert!(text.contains("% of the locality lost"), "{text}");
    assert_eq!(decision.cells[0].subcells.len(), 8);

    // Two that share much with each other are merged instead of leaving two out.
    let (tally, mut members) = input(&threads);
    members.affinity.add(0, 1, 300.0);
    members.affinity.add(7, 8, 10.0);
    let decision = decide(&GROUPS, &tally, &members, &OPTIONS).unwrap();
    let found = places(&decision, &threads);
    assert_eq!(found[0], found[2], "{}", said(&decision));
    assert_eq!(found[14], found[16]);
    assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), 7);
    let merged = |decision: &Decision| decision.notes.iter().filter(|note| matches!(note, Note::Merged { .. })).count();
    assert_eq!(merged(&decision), 2);

    // Two that share little are not merged: leaving the last one out loses less.
    let (tally, mut members) = input(&threads);
    members.affinity.add(0, 1, 1.0);
    let decision = decide(&GROUPS, &tally, &members, &OPTIONS).unwrap();
    let found = places(&decision, &threads);
    assert_ne!(found[0], found[2], "{}", said(&decision));
    assert_eq!(merged(&decision), 0);
}

#[test]
fn a_class_in_the_way_gets_a_subcell_only_where_there_is_room() {
    let names: Vec<[String; 2]> = ('a'..='g').map(|it| [format!("{it}-reader"), format!("{it}-writer")]).collect();
    let of = |communities: usize| -> Vec<Thread> {
        let members = names.iter().flatten().take(2 * communities).zip(0..);
        let mut threads: Vec<Thread> = members
            .map(|(name, at): (_, u32)| (SHOP.as_bytes(), name.as_bytes(), Verdict::Community(at / 2), 100.0))
            .collect();
        threads.push((SHOP.as_bytes(), b"a-reader-ahead", Verdict::Alone, 1.0));
        threads
    };
    // With seven there is no room for it, and the common prefix of the first cannot be used without it.
    for (communities, subcells) in [(6, 8), (7, 7)] {
        let threads = of(communities);
        let decision = decided(&threads);
        let found = places(&decision, &threads);
        assert_eq!(decision.cells[0].subcells.len(), subcells, "{}", said(&decision));
        assert_eq!(found[0], found[1]);
        assert_eq!(found.last() == found.first(), communities == 7, "{}", said(&decision));
    }
}

#[test]
fn too_few_samples_stay_in_rest_and_it_is_said() {
    let mut threads = shop(&[("web", Some(0)), ("db", Some(0)), ("rare", None)]);
    threads[2].2 = Verdict::Unknown(Unknown::TooFewSamples);
    let decision = decided(&threads);
    assert_eq!(decision.cells[0].subcells.len(), 2);
    assert!(said(&decision).contains("too few to judge; they stay in \"rest\""), "{}", said(&decision));
    // Threads that first touches cannot distinguish are in classes, because only their names are known.
    threads[2].2 = Verdict::Unknown(Unknown::FirstTouches);
    let decision = decided(&threads);
    assert_eq!(decision.cells[0].subcells.len(), 3);
    assert!(said(&decision).contains("first touches of pages cannot tell"), "{}", said(&decision));
}

#[test]
fn allotments_that_share_otherwise_have_a_spec_each() {
    let (a, b, c) =
        (b"/workload-tw-a.allotment.slice", b"/workload-tw-b.allotment.slice", b"/workload-tw-c.allotment.slice");
    let pair = |path: &'static [u8], names: [&'static str; 3], community: u32, samples| {
        [(names[0], true), (names[1], true), (names[2], false)].map(|(name, shares)| {
            let verdict = if shares { Verdict::Community(community) } else { Verdict::Alone };
            (path, name.as_bytes(), verdict, samples)
        })
    };
    // In b the log shares with the web server, in the others with the database; c is like a, the largest.
    let threads: Vec<Thread> = [
        pair(b, ["web", "log", "db"], 1, 200.0),
        pair(a, ["web", "db", "log"], 0, 300.0),
        pair(c, ["web", "db", "log"], 2, 100.0),
    ]
    .concat();
    let decision = decided(&threads);
    let names: Vec<_> = decision.cells.iter().map(|cell| cell.name.as_str()).collect();
    assert_eq!(names, ["allotment:workload-tw-b.allotment.slice", "allotment"]);
    let found = places(&decision, &threads);
    for (own, together) in found.chunks(3).zip(["web", "web", "web"]) {
        assert_eq!(own[0], own[1], "{together}");
        assert_ne!(own[0], own[2]);
    }
    // An allotment without samples gets the general subcells, a cgroup below one gets its ancestor's.
    let consumer = Consumer::new(&decision.cells).unwrap();
    assert_eq!(consumer.assign(b"/workload-tw-d.allotment.slice", b"web").cell, Some(1));
    assert_eq!(consumer.assign(b"/workload-tw-b.allotment.slice/task", b"web").cell, Some(0));
    assert_eq!(consumer.assign(b"/workload-tw-bXallotment.slice", b"web").cell, None);
    // Communities of different names do not get in each other's way.
    let threads: Vec<Thread> =
        [pair(a, ["web", "db", "log"], 0, 300.0), pair(b, ["left", "right", "log"], 1, 200.0)].concat();
    assert_eq!(decided(&threads).cells.len(), 1);
}

#[test]
fn a_community_of_several_allotments_joins_no_others() {
    let (a, b) = (&b"/workload-tw-a.allotment.slice"[..], &b"/workload-tw-b.allotment.slice"[..]);
    let pair = |path: &'static [u8], name: &'static str, community: u32| {
        [(path, name.as_bytes(), Verdict::Community(community), 100.0); 2]
    };
    // In b the community of a's writers has the name of a's readers.
    let threads = [pair(a, "reader", 1), pair(a, "writer", 2), pair(b, "reader", 2)].concat();
    let decision = agrees(&threads, &["r", "r", "w", "w", "r", "r"]);
    assert!(decision.notes.is_empty(), "{:?}", decision.notes);
    assert_eq!((decision.cells.len(), decision.cells[0].subcells.len()), (1, 3));
    // If it is alone, one subcell serves it in both.
    let threads = [pair(a, "left", 1), pair(b, "right", 1), pair(b, "other", 2)].concat();
    let decision = agrees(&threads, &["1", "1", "1", "1", "2", "2"]);
    assert_eq!(decision.cells[0].subcells.len(), 3);
    assert_eq!(decision.bases[0].iter().map(|basis| basis.communities.len()).collect::<Vec<_>>(), [1, 1, 0]);
}

#[test]
fn specs_are_bounded_and_it_is_said() {
    let paths: Vec<String> = (0..600).map(|at| format!("/workload-tw-{at}.allotment.slice")).collect();
    // One for those of the first kind, and one for each of the second as far as there is room.
    for (allotments, cells, too_many) in [(300, 151, 0), (600, 256, 45)] {
        let mut threads: Vec<Thread> = Vec::new();
        for (path, at) in paths.iter().take(allotments).zip(0..) {
            // Each allotment pairs its three names in one of two ways.
            for (name, shares) in [("web", true), ("db", at % 2 == 0), ("log", at % 2 == 1)] {
                let verdict = if shares { Verdict::Community(at) } else { Verdict::Alone };
                threads.push((path.as_bytes(), name.as_bytes(), verdict, 10.0));
            }
        }
        let decision = decided(&threads);
        assert_eq!(decision.cells.len(), cells);
        let note = Note::TooManySpecs { cell: "allotment".to_owned(), cgroups: too_many };
        assert_eq!(decision.notes.contains(&note), too_many > 0, "{}", said(&decision));
    }
    let different: Vec<Vec<u8>> = (0..900).map(|at| format!("x{:03}", at % 7 + at / 3 * 3).into_bytes()).collect();
    let threads: Vec<Thread> = different
        .iter()
        .zip(0_u32..)
        .map(|(name, at)| {
            let path = paths[(at / 3) as usize].as_bytes();
            (path, name.as_slice(), if at % 3 < 2 { Verdict::Community(at / 3) } else { Verdict::Alone }, 10.0)
        })
        .collect();
    let decision = decided(&threads);
    assert!(decision.cells.len() <= mitosis::MAX_CELLS);
    assert!(mitosis::to_json(&decision.cells).is_ok());
}

/// Threads, one per line (`SAMPLES VERDICT CGROUP COMM`): compares the configuration and the notes with the files.
fn golden(name: &str) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/config");
    let read = |ending: &str| std::fs::read_to_string(folder.join(format!("{name}.{ending}"))).unwrap_or_default();
    let lines = read("threads");
    let threads: Vec<Thread> = lines
        .lines()
        .map(|line| {
            let mut fields = line.splitn(4, ' ');
            let mut field = || fields.next().unwrap();
            let samples = field().parse().unwrap();
            let verdict = match field() {
                "alone" => Verdict::Alone,
                "rare" => Verdict::Unknown(Unknown::TooFewSamples),
                number => Verdict::Community(number.parse().unwrap()),
            };
            (field().as_bytes(), field().as_bytes(), verdict, samples)
        })
        .collect();
    let decision = decided(&threads);
    let made = layers(&decision);
    let text: String = decision.notes.iter().chain(&made.notes).map(|note| format!("{note}\n")).collect();
    let files = [
        ("json", mitosis::to_json(&decision.cells).unwrap()),
        ("layered.json", layered::to_json(&made.layers).unwrap()),
        ("txt", text),
    ];
    for (ending, made) in files {
        if std::env::var_os("SCXPROF_BLESS").is_some() {
            std::fs::write(folder.join(format!("{name}.{ending}")), &made).unwrap();
        }
        assert_eq!(made, read(ending), "{name}.{ending}");
    }
}

#[test]
fn golden_sharing() {
    golden("sharing");
}

#[test]
fn golden_sharing_allotments() {
    golden("sharing-allotments");
}

pub(super) fn comm() -> impl Strategy<Value = Vec<u8>> {
    let close = "[ab]{1,3}[0-9]{0,2}".prop_map(String::into_bytes);
    let real = prop::sample::select(vec![
        "web",
        "web1",
        "webserver",
        "pool-1",
        "pool-2",
        "pool-10",
        "pool-a1",
        "worker",
        "rest",
        "job 3/4",
        ":12",
        "7",
        "é1",
        "é",
    ])
    .prop_map(|name| name.as_bytes().to_vec());
    let broken = (prop::sample::select(vec![&b"caf"[..], b"a", b""]), prop::sample::select(vec![0xc3_u8, 0xff]))
        .prop_map(|(start, byte)| [start, &[byte]].concat());
    prop_oneof![6 => close, 4 => real, 1 => broken, 1 => prop::collection::vec(1..=255_u8, 0..18)]
}

pub(super) fn path() -> impl Strategy<Value = &'static [u8]> {
    prop::sample::select(vec![
        &b"/"[..],
        b"/workload.slice",
        b"/workload.slice/workload-tw-a.allotment.slice/x y",
        b"/workload-tw-b\xff.allotment.slice",
        b"/workload-tw-c.allotment.slice",
        b"/x/workload.slice",
    ])
}

pub(super) fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        8 => (0..12_u32).prop_map(Verdict::Community),
        3 => Just(Verdict::Alone),
        1 => Just(Verdict::Unknown(Unknown::TooFewSamples)),
        1 => Just(Verdict::Unknown(Unknown::FirstTouches)),
    ]
}

/// True for a note that something about communities could not be done.
fn is_compromise(note: &Note) -> bool {
    matches!(
        note,
        Note::OneName { .. }
            | Note::CommunityRefused { .. }
            | Note::LeftOut { .. }
            | Note::Merged { .. }
            | Note::TooManyCommunities { .. }
            | Note::TooManySpecs { .. }
    )
}

fn cell_of_note(note: &Note) -> &str {
    match note {
        Note::OneName { cell, .. }
        | Note::CommunityRefused { cell, .. }
        | Note::LeftOut { cell, .. }
        | Note::Merged { cell, .. }
        | Note::TooManyCommunities { cell, .. }
        | Note::TooManySpecs { cell, .. } => cell,
        _ => "",
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    /// For any input, the output is within the limits; and without a note, each community has its own subcell.
    #[test]
    fn whoever_shares_the_configuration_holds(
        threads in prop::collection::vec((path(), comm(), verdict(), 1..200_u32), 1..40),
        between in prop::collection::vec((0..12_u32, 0..12_u32, 0..500_u32), 0..6),
        min_share in prop_oneof![Just(0.05), 0.0..1.0],
    ) {
        let threads: Vec<Thread> =
            threads.iter().map(|(path, comm, verdict, samples)| (*path, &comm[..], *verdict, f64::from(*samples))).collect();
        let (tally, mut members) = input(&threads);
        for (a, b, accesses) in between {
            members.affinity.add(a, b, f64::from(accesses));
        }
        let decision = decide(&GROUPS, &tally, &members, &DecisionOptions::new(min_share, 8)).unwrap();
        let json = mitosis::to_json(&decision.cells);
        prop_assert!(json.is_ok(), "{:?}", json);
        prop_assert_eq!(&mitosis::parse(&json.unwrap()).unwrap(), &decision.cells);
        prop_assert!(decision.notes.iter().all(|note| !note.to_string().contains(|c: char| c.is_control())));
        prop_assert_eq!(decision.cells.len(), decision.bases.len());
        for (cell, bases) in decision.cells.iter().zip(&decision.bases) {
            prop_assert_eq!(cell.subcells.len(), bases.len());
        }

        let places = places(&decision, &threads);
        let made = layers(&decision);
        let json = layered::to_json(&made.layers);
        prop_assert!(json.is_ok(), "{:?}", json);
        prop_assert_eq!(&layered::parse(&json.unwrap()).unwrap(), &made.layers);
        if made.notes.is_empty() {
            let consumer = layered::Consumer::new(&made.layers).unwrap();
            for ((path, comm, ..), place) in threads.iter().zip(&places) {
                let layer = consumer.assign(path, Comm::new(comm).as_bytes()).unwrap();
                let is_rest = |cell: usize, at: usize| decision.cells[cell].subcells[at].is_catch_all();
                let subcell = place.cell.and_then(|cell| place.subcell.filter(|&at| !is_rest(cell, at)));
                prop_assert_eq!(made.of[layer], (place.cell, subcell), "{:?} {:?}", path, made.layers);
            }
        }
        // The threads of each community in each of the scheduler's cells, and where they went.
        let mut sharing: BTreeMap<(u32, u32), Vec<usize>> = BTreeMap::new();
        for (member, at) in members.threads.iter().zip(0..) {
            if let Verdict::Community(community) = member.verdict {
                sharing.entry((member.cell, community)).or_default().push(at);
            }
        }
        sharing.retain(|_, threads| threads.len() > 1);
        for (&(cell, community), own) in &sharing {
            let spec = places[own[0]].cell.unwrap();
            let spec = &decision.cells[spec];
            if decision.notes.iter().any(|note| is_compromise(note) && cell_of_note(note) == spec.name) {
                continue;
            }
            let place = places[own[0]];
            prop_assert!(own.iter().all(|&at| places[at] == place), "community {} is torn", community);
            prop_assert!(place.subcell.is_some_and(|at| !spec.subcells[at].is_catch_all()), "{} has none", community);
            let names: BTreeSet<&[u8]> = own.iter().map(|&at| threads[at].1).collect();
            for (member, at) in members.threads.iter().zip(0..).filter(|(member, _)| member.cell == cell) {
                let is_known = matches!(member.verdict, Verdict::Alone | Verdict::Community(_));
                if is_known && !own.contains(&at) && !names.contains(threads[at].1) {
                    prop_assert_ne!(places[at], place, "{:?} is with community {}", threads[at], community);
                }
            }
        }
    }
}
