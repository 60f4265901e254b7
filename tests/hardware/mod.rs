//! The events that are opened on each machine with a sysfs in tests/fixtures/sysfs, field by field; and why none are on others.
use std::collections::BTreeMap;

use perf_event_open_sys::bindings::perf_event_attr;
use scxprof::host::{Error, Roots};
use scxprof::testing::host::topology::online_cpus;
use scxprof::testing::sampler::attr::{leader, sampling, Feature, Scope};
use scxprof::testing::sampler::hardware::{ibs, pebs, spe};
use scxprof::testing::sampler::plan::{Plan, Planned};
use scxprof::testing::sampler::pmu::{Config, Ldlat, NoIbs, NoPebs, NoSpe, PmuError, Pmus};
use scxprof::testing::sampler::{Hardware, Pace, SamplerError};

mod recordings;
mod verify;

use crate::support::sysfs;

/// IDENTIFIER, IP, TID, TIME, ADDR, CPU, PERIOD, WEIGHT_STRUCT, DATA_SRC, PHYS_ADDR, CGROUP, DATA_PAGE_SIZE.
const ALL: u64 = 0x169_818f;
/// The same without CGROUP and DATA_PAGE_SIZE.
const BATCHED: u64 = 0x109_818f;

/// Every field that is not 0, by its name in linux/perf_event.h.
fn fields(attr: &perf_event_attr) -> BTreeMap<&'static str, u64> {
    // SAFETY: all members of these unions are plain numbers.
    let (period, wakeup, config1, config2, aux) = unsafe {
        (
            attr.__bindgen_anon_1.sample_period,
            attr.__bindgen_anon_2.wakeup_watermark,
            attr.__bindgen_anon_3.config1,
            attr.__bindgen_anon_4.config2,
            attr.__bindgen_anon_5.aux_action,
        )
    };
    [
        ("type", attr.type_.into()),
        ("config", attr.config),
        ("sample_period", period),
        ("sample_type", attr.sample_type),
        ("read_format", attr.read_format),
        ("disabled", attr.disabled()),
        ("inherit", attr.inherit()),
        ("pinned", attr.pinned()),
        ("exclusive", attr.exclusive()),
        ("exclude_user", attr.exclude_user()),
        ("exclude_kernel", attr.exclude_kernel()),
        ("exclude_hv", attr.exclude_hv()),
        ("exclude_idle", attr.exclude_idle()),
        ("mmap", attr.mmap()),
        ("comm", attr.comm()),
        ("freq", attr.freq()),
        ("inherit_stat", attr.inherit_stat()),
        ("enable_on_exec", attr.enable_on_exec()),
        ("task", attr.task()),
        ("watermark", attr.watermark()),
        ("precise_ip", attr.precise_ip()),
        ("mmap_data", attr.mmap_data()),
        ("sample_id_all", attr.sample_id_all()),
        ("exclude_host", attr.exclude_host()),
        ("exclude_guest", attr.exclude_guest()),
        ("use_clockid", attr.use_clockid()),
        ("context_switch", attr.context_switch()),
        ("namespaces", attr.namespaces()),
        ("cgroup", attr.cgroup()),
        ("build_id", attr.build_id()),
        ("wakeup_watermark", wakeup.into()),
        ("config1", config1),
        ("config2", config2),
        ("config3", attr.config3),
        ("config4", attr.config4),
        ("branch_sample_type", attr.branch_sample_type),
        ("sample_regs_user", attr.sample_regs_user),
        ("sample_stack_user", attr.sample_stack_user.into()),
        ("clockid", attr.clockid as u64),
        ("sample_regs_intr", attr.sample_regs_intr),
        ("aux_watermark", attr.aux_watermark.into()),
        ("sample_max_stack", attr.sample_max_stack.into()),
        ("aux", aux.into()),
    ]
    .into_iter()
    .filter(|(_, value)| *value != 0)
    .collect()
}

/// The fields of every sampling attr, with special ones.
fn expected(special: &[(&'static str, u64)]) -> BTreeMap<&'static str, u64> {
    let common = [
        ("sample_type", ALL),
        ("read_format", 0x17),
        ("disabled", 1),
        ("watermark", 1),
        ("wakeup_watermark", 8192),
        ("sample_id_all", 1),
        ("use_clockid", 1),
        ("clockid", 1),
    ];
    let all: BTreeMap<_, _> = common.into_iter().chain(special.iter().copied()).collect();
    all.into_iter().filter(|(_, value)| *value != 0).collect()
}

/// The same for the leader of a group.
fn expected_leader(special: &[(&'static str, u64)]) -> BTreeMap<&'static str, u64> {
    let none = [("sample_type", 0), ("watermark", 0), ("wakeup_watermark", 0)];
    expected(&none.into_iter().chain(special.iter().copied()).collect::<Vec<_>>())
}

fn attr(event: &Planned) -> BTreeMap<&'static str, u64> {
    fields(&sampling(&event.spec, event.spec.wants, Scope::default(), 8192))
}

struct Machine {
    pmus: Pmus,
    cpus: Vec<u32>,
}

fn machine(name: &str) -> Machine {
    let root = sysfs::machine(name);
    let mut roots = Roots::default();
    root.path().clone_into(&mut roots.sys);
    Machine { pmus: Pmus::read(root.path()).unwrap(), cpus: online_cpus(&roots).unwrap() }
}

impl Machine {
    fn pebs(&self, hardware: &Hardware) -> Plan {
        pebs(&self.pmus.pebs().unwrap(), hardware, &self.cpus).unwrap()
    }

    fn ibs(&self, hardware: &Hardware) -> Plan {
        ibs(&self.pmus.ibs().unwrap(), hardware, &self.cpus)
    }

    fn spe(&self, hardware: &Hardware) -> Plan {
        spe(&self.pmus.spe().unwrap(), hardware, &self.cpus).unwrap()
    }
}

/// The default as changed by `set`.
fn hardware(set: impl FnOnce(&mut Hardware)) -> Hardware {
    let mut hardware = Hardware::default();
    set(&mut hardware);
    hardware
}

fn stores() -> Hardware {
    hardware(|it| it.stores = true)
}

#[test]
fn one_core_pmu_without_a_leader() {
    for (name, stores_config) in [("skylake", 0x82d0), ("ice-lake", 0x82d0), ("granite-rapids", 0x2cd)] {
        let machine = machine(name);
        let plan = machine.pebs(&stores());
        let [loads, stores] = &plan.events[..] else { panic!("{name}: {plan:?}") };
        assert_eq!((&*loads.spec.name, &*stores.spec.name), ("cpu/mem-loads,ldlat=10/", "cpu/mem-stores/"));
        assert_eq!((&loads.cpus, &stores.cpus), (&machine.cpus, &machine.cpus), "{name}");
        let precise = [("type", 4), ("precise_ip", 2), ("exclude_kernel", 1), ("exclude_guest", 1)];
        let special = [&precise[..], &[("config", 0x1cd), ("config1", 10), ("sample_period", 100_003)]].concat();
        assert_eq!(attr(loads), expected(&special), "{name}");
        let special = [&precise[..], &[("config", stores_config), ("sample_period", 100_003)]].concat();
        assert_eq!(attr(stores), expected(&special), "{name}");
        assert!(plan.events.iter().all(|event| leader(&event.spec, event.spec.wants, Scope::default()).is_none()));
        assert_eq!(plan.notes, [""; 0], "{name}");
    }
}

#[test]
fn sapphire_rapids_loads_are_led() {
    let plan = machine("sapphire-rapids").pebs(&stores());
    let [loads, stores] = &plan.events[..] else { panic!("{plan:?}") };
    let precise = [("type", 4), ("precise_ip", 2), ("exclude_kernel", 1), ("exclude_guest", 1)];
    // It starts with its leader, which only counts: no period, no precision.
    let special =
        [&precise[..], &[("config", 0x1cd), ("config1", 10), ("sample_period", 100_003), ("disabled", 0)]].concat();
    assert_eq!(attr(loads), expected(&special));
    let scope = Scope { inherit: true, enable_on_exec: true, ..Scope::default() };
    let led = fields(&sampling(&loads.spec, loads.spec.wants, scope, 8192));
    assert_eq!((led.get("enable_on_exec"), led.get("inherit")), (None, Some(&1)));
    let of = |scope| fields(&leader(&loads.spec, loads.spec.wants, scope).unwrap());
    let aux = [("type", 4), ("config", 0x8203), ("exclude_kernel", 1), ("exclude_guest", 1)];
    assert_eq!(of(Scope::default()), expected_leader(&aux));
    assert_eq!(of(scope), expected_leader(&[&aux[..], &[("enable_on_exec", 1), ("inherit", 1)]].concat()));
    let special = [&precise[..], &[("config", 0x2cd), ("sample_period", 100_003)]].concat();
    assert_eq!(attr(stores), expected(&special));
    assert_eq!(stores.spec.leader, None);
}

#[test]
fn hybrid_processors_have_an_event_for_each_kind_of_core() {
    for (name, led) in [("alder-lake", true), ("lunar-lake", false), ("arrow-lake-h", false)] {
        let machine = machine(name);
        let plan = machine.pebs(&stores());
        let mut cpus: Vec<u32> = Vec::new();
        for pair in plan.events.chunks(2) {
            let [loads, stores] = pair else { panic!("{plan:?}") };
            let (pmu, _) = loads.spec.name.split_once('/').unwrap();
            let pmu = machine.pmus.core.iter().find(|core| core.name == pmu).unwrap();
            assert_eq!(*stores.spec.name, format!("{}/mem-stores/", pmu.name));
            assert_eq!((Some(&loads.cpus), Some(&stores.cpus)), (pmu.cpus.as_ref(), pmu.cpus.as_ref()), "{name}");
            cpus.extend(&loads.cpus);
            let (kind, load, store, led) = match pmu.name.as_str() {
                "cpu_core" => (4, 0x1cd, 0x2cd, led),
                "cpu_atom" => (10, 0x5d0, 0x6d0, false),
                "cpu_lowpower" => (11, 0x5d0, 0x6d0, false),
                other => panic!("{other}"),
            };
            let common = [("type", kind), ("precise_ip", 2), ("exclude_kernel", 1), ("exclude_guest", 1)];
            let common = [&common[..], &[("sample_period", 100_003)]].concat();
            let special = [&common[..], &[("config", load), ("config1", 10), ("disabled", u64::from(!led))]].concat();
            assert_eq!(attr(loads), expected(&special), "{name} {}", pmu.name);
            assert_eq!(attr(stores), expected(&[&common[..], &[("config", store)]].concat()), "{name} {}", pmu.name);
            let config = loads.spec.leader.map(|leader| leader.0);
            assert_eq!(config, led.then_some([0x8203, 0, 0, 0, 0]), "{name} {}", pmu.name);
        }
        cpus.sort_unstable();
        assert_eq!(cpus, machine.cpus, "{name}: each CPU has its event once");
    }
}

#[test]
fn some_cpus_of_a_hybrid_processor() {
    let machine = machine("alder-lake");
    let offer = machine.pmus.pebs().unwrap();
    let plan = pebs(&offer, &Hardware::default(), &[3, 4]).unwrap();
    let [loads] = &plan.events[..] else { panic!("{plan:?}") };
    assert_eq!((&*loads.spec.name, &loads.cpus[..]), ("cpu_core/mem-loads,ldlat=10/", &[3, 4][..]));
    let plan = pebs(&offer, &Hardware::default(), &[15, 16, 28]).unwrap();
    assert_eq!(plan.events.iter().map(|event| &event.cpus[..]).collect::<Vec<_>>(), [&[16][..], &[15]]);
    assert_eq!(plan.notes, ["no mem-loads event on CPUs 28: nothing is sampled there"]);
    let error = pebs(&offer, &Hardware::default(), &[28, 29]).unwrap_err();
    assert!(matches!(&error, SamplerError::NoEventThere { cpus } if cpus == "28-29"), "{error}");
    assert!(error.is_unsupported(), "auto goes on");
}

#[test]
fn what_is_asked_of_pebs() {
    let machine = machine("skylake");
    let one = |hardware: Hardware| attr(&machine.pebs(&hardware).events[0]);
    let default = one(Hardware::default());
    let changed = |hardware: Hardware| {
        let now = one(hardware);
        let differs = |name: &&&str| now.get(**name) != default.get(**name);
        let names: std::collections::BTreeSet<_> = now.keys().chain(default.keys()).copied().collect();
        names.iter().filter(differs).map(|&name| (name, now.get(name).copied().unwrap_or(0))).collect::<Vec<_>>()
    };
    assert_eq!(changed(hardware(|it| it.ldlat = Some(300))), [("config1", 300)]);
    assert_eq!(changed(hardware(|it| it.pace = Pace::Period(2003))), [("sample_period", 2003)]);
    // A union: sample_freq.
    assert_eq!(changed(hardware(|it| it.pace = Pace::Frequency(4000))), [("freq", 1), ("sample_period", 4000)]);
    assert_eq!(changed(hardware(|it| it.kernel = true)), [("exclude_kernel", 0)]);
    assert_eq!(changed(hardware(|it| it.batched = true)), [("sample_type", BATCHED)]);
    let batched = machine.pebs(&hardware(|it| it.batched = true));
    let spec = &batched.events[0].spec;
    let clock = fields(&sampling(spec, spec.wants, Scope { sched_clock: true, ..Scope::default() }, 8192));
    assert_eq!((clock.get("use_clockid"), clock.get("clockid")), (None, None), "large PEBS keeps its own clock");

    let too_much = hardware(|it| it.ldlat = Some(65_536));
    let error = pebs(&machine.pmus.pebs().unwrap(), &too_much, &machine.cpus).unwrap_err();
    assert!(!error.is_unsupported() && error.to_string().contains("65535"), "{error}");
    let steer = machine.pebs(&hardware(|it| it.pace = Pace::Rate(200))).events[0].steer.unwrap();
    assert_eq!(steer.rate, 200);
    assert_eq!(machine.pebs(&hardware(|it| it.pace = Pace::Period(200))).events[0].steer, None);
}

#[test]
fn ibs_of_each_generation() {
    // config2 is swfilt, which makes exclude_kernel legal.
    for (name, filter) in [("zen3", 0), ("zen4", 1), ("zen5", 1), ("after-zen5", 1)] {
        let machine = machine(name);
        assert!(matches!(machine.pmus.pebs(), Err(NoPebs::NoMemLoads { .. })), "{name}");
        let plan = machine.ibs(&Hardware::default());
        let [ops] = &plan.events[..] else { panic!("{plan:?}") };
        assert_eq!((&*ops.spec.name, &ops.cpus), ("ibs_op/cnt_ctl=1/", &machine.cpus));
        let special = [
            ("type", 11),
            ("config", 1 << 19),
            ("config2", filter),
            ("exclude_kernel", filter),
            ("sample_period", 1 << 20),
        ];
        assert_eq!(attr(ops), expected(&special), "{name}");
        assert_eq!(plan.notes, [""; 0], "{name}");
        let steer = ops.steer.unwrap();
        assert!(steer.min >= 0x90 && steer.min.is_multiple_of(16) && steer.multiple == 16);
        let kernel = machine.ibs(&hardware(|it| it.kernel = true));
        assert_eq!(attr(&kernel.events[0]).get("exclude_kernel"), None, "{name}");
    }
    let zen = |name: &str| machine(name).pmus.ibs().unwrap();
    assert_eq!((zen("zen3").zen4_extensions, zen("zen3").l3missonly, zen("zen3").ldlat), (false, false, Ldlat::None));
    assert_eq!((zen("zen4").zen4_extensions, zen("zen4").l3missonly, zen("zen4").ldlat), (true, true, Ldlat::None));
    assert!(matches!(zen("zen5").ldlat, Ldlat::L3MissOnly(_)));
    assert!(matches!(zen("after-zen5").ldlat, Ldlat::Alone(_)));
}

#[test]
fn ibs_never_drops_more_than_the_threshold_says() {
    use scxprof::testing::sampler::plan::AddressFrom;
    let ask = |name: &str, ldlat| {
        let plan = machine(name).ibs(&hardware(|it| it.ldlat = Some(ldlat)));
        let AddressFrom::Hardware { ldlat, ops: true, user_only: true } = plan.address_from else { panic!("{plan:?}") };
        (attr(&plan.events[0]).get("config1").copied(), ldlat, plan.notes)
    };
    // Filter in hardware only if it has no side effect; then there is no note.
    assert_eq!(ask("after-zen5", 128), (Some(128), None, vec![]));
    assert_eq!(ask("after-zen5", 2048), (Some(2048), None, vec![]));
    for (name, ldlat, why) in [
        ("after-zen5", 127, "128 to 2048"),
        ("after-zen5", 2049, "128 to 2048"),
        ("zen5", 200, "hits of the L3 cache"),
        ("zen4", 200, "no threshold of its own"),
        ("zen3", 10, "no threshold of its own"),
    ] {
        let (config1, filter, notes) = ask(name, ldlat);
        assert_eq!((config1, filter), (None, Some(ldlat)), "{name}");
        assert!(notes.len() == 1 && notes[0].contains(why) && notes[0].contains("stores"), "{name}: {notes:?}");
    }
}

#[test]
fn ibs_periods_are_those_that_every_kernel_takes() {
    let machine = machine("zen4");
    for (asked, given) in [(100_000, 100_000), (100_001, 100_000), (100_009, 100_016), (1, 144), (144, 144)] {
        let plan = machine.ibs(&hardware(|it| it.pace = Pace::Period(asked)));
        assert_eq!(attr(&plan.events[0])["sample_period"], given, "{asked}");
        assert_eq!(plan.notes.len(), usize::from(asked != given), "a change is said");
    }
}

/// ts_enable, pa_enable, jitter, load_filter, store_filter.
const SPE: u64 = 1 | 1 << 1 | 1 << 16 | 1 << 33 | 1 << 34;

#[test]
fn what_is_asked_of_spe() {
    let machine = machine("neoverse");
    let plan = machine.spe(&Hardware::default());
    let [accesses] = &plan.events[..] else { panic!("{plan:?}") };
    assert_eq!(&*accesses.spec.name, "arm_spe_0/ts_enable=1,load_filter=1,store_filter=1,jitter=1/");
    assert_eq!((&accesses.cpus, plan.notes.len()), (&machine.cpus, 0));
    // No frequency, and exclude_idle stays 0: the driver refuses both.
    let special =
        [("type", 11), ("config", SPE), ("exclude_kernel", 1), ("sample_period", 1 << 20), ("sample_type", BATCHED)];
    assert_eq!(attr(accesses), expected(&special));
    let without = accesses.spec.wants.less(Feature::PhysAddr);
    let config = fields(&sampling(&accesses.spec, without, Scope::default(), 8192))["config"];
    assert_eq!(config, SPE & !2, "physical addresses need rights");
    let steer = accesses.steer.unwrap();
    assert!(steer.min >= 1024 && steer.min.is_multiple_of(256) && (steer.multiple, steer.rate) == (256, 1000));

    let one = |hardware: Hardware| {
        let plan = machine.spe(&hardware);
        (attr(&plan.events[0]), plan)
    };
    let (fields, plan) = one(hardware(|it| it.ldlat = Some(300)));
    assert_eq!((fields["config2"], plan.notes.len()), (300, 0));
    assert!(plan.events[0].spec.name.ends_with(",min_latency=300/"));
    let error = spe(&machine.pmus.spe().unwrap(), &hardware(|it| it.ldlat = Some(4096)), &machine.cpus).unwrap_err();
    assert!(!error.is_unsupported() && error.to_string().contains("4095"), "{error}");
    assert_eq!(one(hardware(|it| it.kernel = true)).0.get("exclude_kernel"), None);
    let (fields, plan) = one(hardware(|it| it.pace = Pace::Frequency(4000)));
    assert_eq!((fields.get("freq"), plan.events[0].steer.unwrap().rate), (None, 4000));
    assert!(plan.notes[0].starts_with("freq 4000: "), "{:?}", plan.notes);
    for (asked, given) in [(4096, 4096), (4097, 4096), (1, 1024), (1 << 40, 0xffff_ff00)] {
        let (fields, plan) = one(hardware(|it| it.pace = Pace::Period(asked)));
        assert_eq!((fields["sample_period"], plan.events[0].steer), (given, None), "{asked}");
        assert_eq!(plan.notes.len(), usize::from(asked != given), "a change is said");
    }
}

#[test]
fn each_kind_of_core_has_its_own_spe() {
    let machine = machine("big-little");
    let plan = machine.spe(&Hardware::default());
    let events: Vec<_> = plan.events.iter().map(|event| (event.spec.kind, &event.cpus[..])).collect();
    assert_eq!(events, [(11, &[0, 1, 2, 3][..]), (12, &[4, 5, 6, 7])]);
    assert_eq!(plan.notes, ["no SPE on CPUs 8-9: nothing is sampled there"]);
    let error = spe(&machine.pmus.spe().unwrap(), &Hardware::default(), &[8, 9]).unwrap_err();
    assert!(
        matches!(&error, SamplerError::NoEventThere { cpus } if cpus == "8-9") && error.is_unsupported(),
        "{error}"
    );
}

#[test]
fn why_there_is_no_spe() {
    let why = machine("neoverse-kpti").pmus.spe().unwrap_err();
    assert!(matches!(why, NoSpe::Isolated { .. }) && why.help().unwrap().contains("kpti=off"), "{why}");
    let why = machine("guest").pmus.spe().unwrap_err();
    assert!(matches!(why, NoSpe::NoArmSpe { .. }) && why.help().unwrap().contains("firmware"), "{why}");
    let error = SamplerError::from(why);
    assert_eq!(format!("{}; {}", error.why(), error.help().unwrap()), error.to_string());
    let tree = |text: &str| Pmus::read(sysfs::tree(text).path()).unwrap().spe().unwrap_err().to_string();
    let whole = std::fs::read_to_string("tests/fixtures/sysfs/neoverse.txt").unwrap();
    for (line, says) in [
        ("arm_spe_0/format/ts_enable config:0\n", "no term \"ts_enable\""),
        ("arm_spe_0/format/pa_enable config:1\n", "no term \"pa_enable\""),
        ("arm_spe_0/caps/min_interval 1024\n", "caps/min_interval"),
    ] {
        assert!(whole.contains(line));
        let said = tree(&whole.replace(line, ""));
        assert!(said.contains(says), "{said}");
    }
    assert!(tree(&whole.replace("min_interval 1024", "min_interval 0")).contains("expected a number of operations"));
}

#[test]
fn why_there_is_no_event() {
    let no_pmu = machine("no-pmu").pmus;
    assert!(matches!(no_pmu.pebs(), Err(NoPebs::NoCorePmu { .. })));
    assert!(matches!(no_pmu.ibs(), Err(NoIbs::NoIbsOp { .. })));
    let guest = machine("guest").pmus;
    let why = guest.pebs().unwrap_err().to_string();
    assert!(why.starts_with("no mem-loads event in ") && why.contains("/bus/event_source/devices/cpu/events"), "{why}");

    let tree = |text: &str| Pmus::read(sysfs::tree(text).path());
    let imprecise = "cpu/type 4\ncpu/caps/max_precise 0\ncpu/events/mem-loads event=0xcd,ldlat=3\n\
                     cpu/format/event config:0-7\ncpu/format/ldlat config1:0-15\n";
    let why = tree(imprecise).unwrap().pebs().unwrap_err();
    assert!(matches!(&why, NoPebs::Imprecise { path } if path.ends_with("cpu/caps/max_precise")), "{why}");
    let power = "cpu/type 4\ncpu/events/mem-loads event=0x34\ncpu/format/event config:0-7\n";
    assert!(matches!(tree(power).unwrap().pebs(), Err(NoPebs::NoLdlat { .. })));
    let old = "ibs_op/type 11\nibs_op/format/rand_en config:57\n";
    let why = tree(old).unwrap().ibs().unwrap_err();
    assert!(matches!(&why, NoIbs::NoOpCount { path } if path.ends_with("ibs_op/format/cnt_ctl")), "{why}");
}

#[test]
fn sysfs_that_is_not_as_the_kernel_writes_it() {
    let tree = |text: &str| Pmus::read(sysfs::tree(text).path());
    let path_of = |error: &PmuError| match error {
        PmuError::File(Error::Read { path, .. } | Error::Parse { path, .. }) | PmuError::NoTerm { path, .. } => {
            path.clone()
        }
        other => panic!("{other}"),
    };
    for (text, file) in [
        ("cpu/type four\n", "cpu/type"),
        ("cpu/type -1\n", "cpu/type"),
        ("cpu/type 4294967296\n", "cpu/type"),
        ("cpu/format/event config:0-7\n", "cpu/type"),
        ("cpu_core/type 4\ncpu_core/cpus 0-\n", "cpu_core/cpus"),
    ] {
        let error = tree(text).unwrap_err();
        assert!(path_of(&error).ends_with(file), "{text}: {error}");
        assert!(error.to_string().contains(file), "{error}");
    }
    let base = "cpu/type 4\ncpu/format/event config:0-7\ncpu/format/ldlat config1:0-15\n";
    for (line, file) in [
        ("cpu/events/mem-loads event=0xcd,umask=0x1,ldlat=3\n", "cpu/format/umask"),
        ("cpu/events/mem-loads event=0xzz,ldlat=3\n", "cpu/events/mem-loads"),
        ("cpu/events/mem-loads event=?,ldlat=3\n", "cpu/events/mem-loads"),
        ("cpu/events/mem-loads event=0xcd,ldlat=3\ncpu/format/event config9:0-7\n", "cpu/format/event"),
        ("cpu/events/mem-loads event=0xcd,ldlat=3\ncpu/caps/max_precise three\n", "cpu/caps/max_precise"),
    ] {
        let Err(NoPebs::Pmu(error)) = tree(&format!("{base}{line}")).unwrap().pebs() else { panic!("{line}") };
        assert!(path_of(&error).ends_with(file), "{line}: {error}");
    }
    let wide = format!("{base}cpu/events/mem-loads event=0x1cd,ldlat=3\n");
    let error = tree(&wide).unwrap().pebs().unwrap_err().to_string();
    assert!(error.starts_with("event=0x1cd does not fit: ") && error.ends_with("gives it 8 bits"), "{error}");
    // Unneeded parts must not cause errors.
    let odd = format!("{base}cpu/events/mem-loads event=0xcd,ldlat=3\ncpu/format/new whatever\ncpu/events/x y=z\n");
    let loads = tree(&odd).unwrap().pebs().unwrap().pmus[0].loads(10);
    assert_eq!(loads, Some(Config([0xcd, 10, 0, 0, 0])));
    // config words may be given as they are.
    let raw = format!("{base}cpu/events/mem-loads config=0x1cd,config1=0x3\n");
    assert_eq!(tree(&raw).unwrap().pebs().unwrap().pmus[0].loads, Config([0x1cd, 3, 0, 0, 0]));
}

#[test]
fn a_missing_root_is_an_error_with_its_path() {
    let error = Pmus::read(std::path::Path::new("/nonexistent/sys")).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/sys/bus/event_source/devices"), "{error}");
}

/// Runs `scxprof run` with these options: its exit code and its output.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_scxprof")).arg("run").args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_source_that_is_not_here_is_one_sentence_and_exit_code_3() {
    let here = Pmus::read(std::path::Path::new("/sys"));
    let why = |source| match (&here, source) {
        (Err(error), _) => Some(error.to_string()),
        (Ok(pmus), "pebs") => pmus.pebs().err().map(|why| why.to_string()),
        (Ok(pmus), _) => pmus.ibs().err().map(|why| why.to_string()),
    };
    for source in ["pebs", "ibs"] {
        let Some(why) = why(source) else {
            println!("SKIP: a source that is not here: {source} is");
            continue;
        };
        let (code, said) = run(&["--source", source, "-t", "1"]);
        assert_eq!((code, said), (Some(3), format!("error: source {source}: {why}. Details: scxprof doctor\n")));
    }
}

#[test]
fn spe_is_for_arm64() {
    if std::env::consts::ARCH == "aarch64" {
        println!("SKIP: spe is for arm64: this is one");
        return;
    }
    let (code, said) = run(&["--source", "spe", "-t", "1"]);
    assert_eq!((code, &*said), (Some(3), "error: source spe is for arm64 only. Details: scxprof doctor\n"));
}

#[test]
fn rates_exclude_each_other() {
    for pair in [["--rate", "--period"], ["--rate", "--freq"], ["--period", "--freq"]] {
        let (code, said) = run(&[pair[0], "100", pair[1], "100"]);
        assert_eq!(code, Some(2));
        assert!(said.contains("cannot be used with"), "{said}");
    }
    for wrong in [["--rate", "0"], ["--period", "0"], ["-l", "0"], ["-l", "65536"], ["--freq", "100001"]] {
        assert_eq!(run(&wrong).0, Some(2), "{wrong:?}");
    }
    assert_eq!(run(&["--exact", "--batched"]).0, Some(2));
}
