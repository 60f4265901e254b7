//! Tests of event names, on a host with one PMU.

use proptest::prelude::*;

use super::*;

/// A host with one PMU.
fn host() -> (tempfile::TempDir, Roots) {
    let dir = tempfile::tempdir().unwrap();
    let pmu = dir.path().join(pmu::DEVICES).join("cpu");
    std::fs::create_dir_all(pmu.join("format")).unwrap();
    std::fs::create_dir_all(pmu.join("events")).unwrap();
    for (name, text) in [
        ("type", "4\n"),
        ("format/event", "config:0-7\n"),
        ("format/umask", "config:8-15\n"),
        ("format/edge", "config:18\n"),
        ("format/ldlat", "config1:0-15\n"),
        ("events/slots", "event=0x00,umask=0x4\n"),
    ] {
        std::fs::write(pmu.join(name), text).unwrap();
    }
    let roots = Roots { sys: dir.path().to_owned(), proc: dir.path().to_owned(), ..Roots::default() };
    (dir, roots)
}

#[test]
fn names_are_those_of_perf() {
    let (_dir, roots) = host();
    let numbers = |text: &str| {
        let spec = parse(text, None, &roots).unwrap();
        (spec.kind, spec.config.0[0])
    };
    // The expected type and config are those that `perf stat -vv -e` prints.
    for (text, expected) in [
        ("cycles", (0, 0)),
        ("hw:cpu-cycles", (0, 0)),
        ("instructions:u", (0, 1)),
        ("cache-misses", (0, 3)),
        ("sw:cpu-clock", (1, 0)),
        ("cs", (1, 3)),
        ("page-faults", (1, 2)),
        ("L1-dcache-loads", (3, 0)),
        ("L1-dcache-load-misses", (3, 0x1_0000)),
        ("LLC-stores", (3, 0x102)),
        ("dTLB-store-misses", (3, 0x1_0103)),
        ("node-prefetches", (3, 0x206)),
        ("r01c2", (4, 0x1c2)),
        // Other spellings that perf and other tools accept.
        ("cpu_cycles", (0, 0)),
        ("hardware:cpu_cycles:u", (0, 0)),
        ("Instructions", (0, 1)),
        ("instr", (0, 1)),
        ("cache_misses:u", (0, 3)),
        ("branch-instr", (0, 4)),
        ("stalled_cycles_backend", (0, 8)),
        ("software:page-faults", (1, 2)),
        ("software:page_faults:u", (1, 2)),
        ("software/cpu-clock/", (1, 0)),
        ("faults", (1, 2)),
        ("sw:faults", (1, 2)),
        ("context_switches", (1, 3)),
        ("hw:cpu-c", (0, 0)),
        ("sw:cpu-cl", (1, 0)),
        ("l1d-load-miss", (3, 0x1_0000)),
        ("L1_dcache_store_misses", (3, 0x1_0100)),
        ("LLC-miss", (3, 0x1_0002)),
        ("l2-prefetch-misses", (3, 0x1_0202)),
        ("cache:dTLB-read-refs", (3, 0x3)),
        ("iTLB-misses-loads", (3, 0x1_0004)),
        ("cpu/event=0x3c,umask=1/", (4, 0x13c)),
        ("cpu/event=60,edge/", (4, 0x4_003c)),
        ("cpu/slots/", (4, 0x400)),
        ("cpu/slots,edge/u", (4, 0x4_0400)),
    ] {
        assert_eq!(numbers(text), expected, "{text}");
    }
    let spec = parse("cpu/ldlat=30,event=0xcd/ppp", Some(Rate::Period(1000)), &roots).unwrap();
    assert_eq!((spec.config.0, spec.precise, spec.rate), ([0xcd, 30, 0, 0, 0], 3, Rate::Period(1000)));
    assert_eq!(parse("cycles", None, &roots).unwrap().rate, Rate::Frequency(99));
    let chain = |text: &str| {
        let chain = parse(text, None, &roots).unwrap().callchain.unwrap();
        (chain.user, chain.kernel)
    };
    assert_eq!(
        [chain("cycles"), chain("cycles:u"), chain("cycles:k"), chain("cycles:uk")]
            .map(|(user, kernel)| (user, kernel)),
        [(true, true), (true, false), (false, true), (true, true)]
    );
    assert_eq!(default_name(&roots), "cycles");
    assert_eq!(
        default_name(&Roots { sys: "/nowhere".into(), proc: "/nowhere".into(), ..Roots::default() }),
        "cpu-clock"
    );
}

#[test]
fn an_unknown_event_says_what_there_is() {
    let (_dir, roots) = host();
    let said = |text: &str| parse(text, None, &roots).unwrap_err().to_string();
    let text = said("cache-mises");
    assert!(text.starts_with("unknown event \"cache-mises\": there are cache-misses, cache-references, "), "{text}");
    assert!(text.contains("and 54 more") && text.contains("of the PMUs cpu"), "{text}");
    assert!(said("cpu/slot/").contains("the events of cpu are slots"));
    assert!(said("gpu/x/").contains("the PMUs of this host are cpu"));
    assert!(said("../cpu/x/").contains("unknown event"));
    assert!(said("cpu/event=x/").contains("\"event=x\" of the event is no term"));
    assert!(said("cpu/event=0x100/").contains("does not fit"));
    assert!(said("cpu/none=1/").contains("no term \"none\""));
    assert!(said("cpu/slots/x").contains("\"x\" after the event"));
    assert!(parse("cycles:Du", None, &roots).unwrap().is_pinned && !parse("cycles:u", None, &roots).unwrap().is_pinned);
    assert!(said("cycles:pppp").contains("\"pppp\" after the event"));
    assert!(said("hw:cpu-clock").contains("unknown event"));
    assert!(said("sw:cycles").contains("unknown event"));
    // Ambiguous or too short.
    for text in [
        "cpu-c",
        "cache",
        "branch-",
        "ins",
        "tracepoint:cycles",
        "software:cycles",
        "L1-dcache-loads-loads",
        "software//",
    ] {
        assert!(said(text).contains("unknown event"), "{text}");
    }
    assert!(said("").contains("unknown event"));
    assert!(parse("sched:no_such_tracepoint", None, &roots).is_err());
    // With a prefix, the name is searched in the same tables.
    let found = |text: &str| match parse(text, None, &roots) {
        Ok(spec) => Ok((spec.kind, spec.config.0[0])),
        Err(error) => Err(error.to_string()),
    };
    assert_eq!(found("tracepoint:sched:sched_switch"), found("sched:sched_switch"));
    assert_ne!(found("tracepoint:sched:sched_switch").map_err(|error| error.contains("unknown event")), Err(true));
}

proptest! {
    #[test]
    fn any_text_is_an_event_or_an_error(text in "\\PC{0,30}") {
        let (_dir, roots) = host();
        let _ = parse(&text, None, &roots);
    }
}
