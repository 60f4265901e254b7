//! From samples to a configuration: golden files, and properties that hold for any samples.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use scxprof::sample::{printable, Comm};
use scxprof::testing::config::{
    decide, mitosis, Assigned, CellMatch, CellOptions, CellSpecs, Consumer, DecisionOptions, Members, Note, Tally,
};
use scxprof::testing::report::summary;

/// Samples: the cgroup's path, the thread's name, how many.
type Samples = Vec<(Vec<u8>, Vec<u8>, u32)>;

fn tallied(groups: &CellSpecs, samples: &Samples) -> Tally {
    let mut tally = Tally::default();
    for (path, comm, count) in samples {
        let cell = tally.cell(groups.assign(path));
        tally.add(cell, Some(Comm::new(comm)), f64::from(*count));
    }
    tally
}

/// Samples of a class, and the subcells that got them; `None` is the catch-all.
type Seen = (f64, BTreeSet<Option<usize>>);

/// Runs samples, one per line (`COUNT PATH COMM`; the name is the rest of the line), and compares with the files.
fn golden(name: &str, options: &CellOptions, target_cpus: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/config");
    let read = |ending: &str| std::fs::read_to_string(folder.join(format!("{name}.{ending}"))).unwrap_or_default();
    let samples = read("samples");
    let samples: Samples = samples
        .lines()
        .map(|line| {
            let mut fields = line.splitn(3, ' ');
            let mut field = || fields.next().unwrap();
            let count = field().parse().unwrap();
            (count, field().as_bytes().to_vec(), field().as_bytes().to_vec())
        })
        .map(|(count, path, comm)| (path, comm, count))
        .collect();
    let groups = CellSpecs::new(options).unwrap();
    let tally = tallied(&groups, &samples);
    let decision = decide(&groups, &tally, &Members::default(), &DecisionOptions::new(0.05, target_cpus)).unwrap();
    let json = mitosis::to_json(&decision.cells).unwrap();
    let mut text = summary(&groups, &tally, false);
    for note in &decision.notes {
        text.push_str(&note.to_string());
        text.push('\n');
    }
    for (ending, made) in [("json", json), ("txt", text)] {
        if std::env::var_os("SCXPROF_BLESS").is_some() {
            std::fs::write(folder.join(format!("{name}.{ending}")), &made).unwrap();
        }
        assert_eq!(made, read(ending), "{name}.{ending}");
    }
}

#[test]
fn golden_default() {
    golden("default", &CellOptions::default(), 64);
}

#[test]
fn golden_collisions() {
    golden("collisions", &CellOptions::default(), 12);
}

#[test]
fn golden_named_cells() {
    let mut options = CellOptions::default();
    options.cells = vec![r"db=/postgresql@[0-9]+-\w+\.service$".to_owned(), r#"odd "name"=\.scope$"#.to_owned()];
    options.workload = Some(r"/user\.slice".to_owned());
    golden("named-cells", &options, 8);
}

#[test]
fn the_example_of_the_scheduler_loads() {
    let json = r#"[{"name":"allotment","matches":{"CgroupRegex":"workload-tw-[^/]+\\.allotment\\.slice"},
        "subcells":[{"name":"hhvmworker","matches":[[{"CommPrefix":"hhvmworker"}]]},{"name":"rest","matches":[[]]}]},
        {"name":"workload.slice","matches":{"CgroupContains":"workload.slice"}},{"name":"rest","matches":{}}]"#;
    let cells = mitosis::parse(json).unwrap();
    let consumer = Consumer::new(&cells).unwrap();
    let path = b"/workload.slice/workload-tw-x.allotment.slice/task";
    assert_eq!(consumer.assign(path, b"hhvmworker12"), Assigned { cell: Some(0), subcell: Some(0) });
    assert_eq!(consumer.assign(path, b"hhvm"), Assigned { cell: Some(0), subcell: Some(1) });
    assert_eq!(mitosis::parse(&mitosis::to_json(&cells).unwrap()).unwrap(), cells);
}

/// The name without the number at its end, computed in another way than in the tool.
fn base(name: &[u8]) -> Vec<u8> {
    let mut base = name.to_vec();
    while base.last().is_some_and(u8::is_ascii_digit) {
        base.pop();
    }
    if base.is_empty() {
        name.to_vec()
    } else {
        base
    }
}

fn comm() -> impl Strategy<Value = Vec<u8>> {
    let bytes = prop::collection::vec(1..=255_u8, 0..18);
    let close = "[ab]{0,3}[0-9]{0,2}".prop_map(String::into_bytes);
    let broken =
        (prop::sample::select(vec![&b"caf"[..], b"a", b""]), prop::sample::select(vec![0xc3_u8, 0xff]), "[0-9]?")
            .prop_map(|(start, byte, end)| [start, &[byte], end.as_bytes()].concat());
    let real =
        prop::sample::select(vec!["rest", "web", "web1", "webserver", "a", "apache", "job 3/4", ":12", "7", "é1"])
            .prop_map(|name| name.as_bytes().to_vec());
    prop_oneof![1 => bytes, 5 => close, 2 => broken, 2 => real]
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        &b"/"[..],
        b"/workload.slice",
        b"/workload.slice/workload-tw-a.allotment.slice/x y",
        b"/workload-tw-b\xff.allotment.slice",
        b"/db.service/workload.slice",
        b"/workload.slice/db.service",
        b"/system.slice",
    ]);
    prop_oneof![6 => known.prop_map(<[u8]>::to_vec), 1 => prop::collection::vec(1..=255_u8, 0..30)]
}

fn samples() -> impl Strategy<Value = Samples> {
    let count = prop_oneof![4 => 1..10_u32, 1 => 100..1000_u32];
    prop::collection::vec((path(), comm(), count), 1..40)
}

static DEFAULT: LazyLock<CellSpecs> = LazyLock::new(|| CellSpecs::new(&CellOptions::default()).unwrap());
static NAMED: LazyLock<CellSpecs> = LazyLock::new(|| {
    let mut options = CellOptions::default();
    options.cells.push(r"db=/db\.service$".to_owned());
    CellSpecs::new(&options).unwrap()
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    /// The configuration loads, is read back unchanged, and puts each sampled thread where the decision intended.
    #[test]
    fn whatever_was_sampled_the_configuration_holds(
        samples in samples(),
        named in any::<bool>(),
        min_share in prop_oneof![Just(0.05), Just(0.0), 0.0..1.1],
        target_cpus in 0..200_usize,
    ) {
        let groups = if named { &*NAMED } else { &*DEFAULT };
        let tally = tallied(groups, &samples);
        let decision = decide(groups, &tally, &Members::default(), &DecisionOptions::new(min_share, target_cpus)).unwrap();
        let json = mitosis::to_json(&decision.cells).unwrap();
        prop_assert!(json.ends_with("]\n"));
        prop_assert_eq!(&mitosis::parse(&json).unwrap(), &decision.cells);
        let consumer = Consumer::new(&decision.cells).unwrap();

        // Where threads went, by cell spec: the bases in each subcell, and the samples and the subcells of each base.
        let mut inside: BTreeMap<(usize, usize), BTreeSet<Vec<u8>>> = BTreeMap::new();
        let mut places: BTreeMap<(usize, Vec<u8>), Seen> = BTreeMap::new();
        for (path, comm, count) in &samples {
            let comm = Comm::new(comm);
            let Assigned { cell, subcell } = consumer.assign(path, comm.as_bytes());
            let cell = cell.unwrap();
            prop_assert_eq!(&decision.cells[cell].name, &groups.specs()[groups.assign(path).spec].name);
            let own = subcell.filter(|&subcell| !decision.cells[cell].subcells[subcell].is_catch_all());
            prop_assert_eq!(subcell.is_none(), decision.cells[cell].subcells.is_empty());
            if let Some(own) = own {
                inside.entry((cell, own)).or_default().insert(base(comm.as_bytes()));
            }
            let memory = places.entry((cell, base(comm.as_bytes()))).or_default();
            memory.0 += f64::from(*count);
            memory.1.insert(own);
        }
        for bases in inside.values() {
            prop_assert_eq!(bases.len(), 1, "two classes in one subcell");
        }
        for ((cell, base), (count, subcells)) in &places {
            prop_assert_eq!(subcells.len(), 1, "a class in two subcells");
            let name = &decision.cells[*cell].name;
            let group = groups.specs().iter().position(|spec| spec.name == *name).unwrap();
            let class_is_said = decision.notes.iter().any(|note| match note {
                Note::NotDescribable { cell, class, .. } => cell == name && *class == printable(base),
                Note::TooManyClasses { cell, classes, .. } => cell == name && classes.contains(&printable(base)),
                _ => false,
            });
            if count / tally.spec_total(group) >= min_share {
                prop_assert!(class_is_said || !subcells.contains(&None), "{:?} is lost without a word", printable(base));
            }
            if class_is_said {
                prop_assert!(subcells.contains(&None), "{:?} is said to be in rest and is not", printable(base));
            }
        }
        for (index, cell) in decision.cells.iter().enumerate() {
            prop_assert!(cell.matches != CellMatch::All || index + 1 == decision.cells.len());
            for (subcell, _) in cell.subcells.iter().enumerate().filter(|(_, subcell)| !subcell.is_catch_all()) {
                prop_assert!(inside.contains_key(&(index, subcell)), "nobody goes to {}/{}", index, subcell);
            }
        }
        let texts: Vec<String> = decision.notes.iter().map(ToString::to_string).collect();
        prop_assert!(texts.iter().all(|text| !text.contains(|c: char| c.is_control())));
        prop_assert!(!summary(groups, &tally, true).contains("NaN"));
    }
}
