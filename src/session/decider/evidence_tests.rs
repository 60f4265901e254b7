//! Evidence of many simulated hosts, each of which sees too little, against the true groups.

use std::collections::BTreeMap;

use super::*;
use crate::cluster::quality::adjusted_rand_index;
use crate::cluster::truth::Scenario;
use crate::config::CellOptions;
use crate::evidence::{Evidence, Folds, Scope, Sums};

/// A name without a number at its end, so that it does not fold.
fn name(thread: u32) -> String {
    let letter = |at: u32| char::from(b'a' + (at % 26) as u8);
    format!("{}{}{}", letter(thread / 676), letter(thread / 26), letter(thread))
}

/// The evidence of one host that sees this stream; `thread_of` gives a thread's number on that host to its number in the fleet.
fn of_host(scenario: &Scenario, seed: u64, thread_of: &dyn Fn(u32) -> u32) -> Evidence {
    let mut decider = Decider::new(CellSpecs::new(&CellOptions::default()).unwrap(), Source::Timer, 16 << 20);
    let mut cgroups = Cgroups::recorded();
    cgroups.record(1, b"/app.slice");
    let mut samples = scenario.stream(seed).samples;
    for sample in &mut samples {
        let thread = thread_of(sample.thread);
        sample.comm = Some(Comm::from(name(thread).as_str()));
        (sample.raw.cgroup, sample.raw.pid) = (1, 9);
    }
    decider.samples(&samples, &mut cgroups);
    decider.evidence(&Scope::default(), &format!("host{seed}"), &Folds::none(), &Sums::default()).unwrap()
}

fn merged(scenario: &Scenario, hosts: u64) -> Evidence {
    let mut all = Evidence::default();
    (0..hosts).for_each(|seed| all.merge(&of_host(scenario, seed, &|thread| thread)).unwrap());
    all
}

/// How well the communities of classes are the true groups.
fn index(evidence: &Evidence, scenario: &Scenario) -> f64 {
    let truth = scenario.stream(0).truth;
    let found = evidence.decide(&config::DecisionOptions::new(0.05, 4096)).unwrap();
    let community: BTreeMap<&str, usize> =
        found.report.classes.iter().filter_map(|it| Some((it.comm.as_str(), it.community?))).collect();
    let label = |thread: u32| community.get(name(thread).as_str()).map_or(1_000_000 + thread, |it| *it as u32);
    adjusted_rand_index(&(0..truth.len() as u32).map(label).collect::<Vec<_>>(), &truth)
}

#[test]
fn hosts_that_each_see_too_little_add_up_to_the_truth() {
    for (name, base) in [
        ("plain", Scenario::default()),
        ("one page", Scenario { share: 0.2, pages: 1, ..Scenario::default() }),
        ("64 pages, 5 %", Scenario { share: 0.05, ..Scenario::default() }),
        ("256 pages, 5 %", Scenario { share: 0.05, pages: 256, ..Scenario::default() }),
        ("1,024 pages, 10 %", Scenario { share: 0.1, pages: 1024, ..Scenario::default() }),
        ("4,096 pages, 10 %", Scenario { share: 0.1, pages: 4096, ..Scenario::default() }),
        ("16 pairs", Scenario { share: 0.2, groups: 16, ..Scenario::default() }),
        ("1,024 pages", Scenario { share: 0.2, pages: 1024, ..Scenario::default() }),
        ("one line", Scenario { share: 0.2, one_line: true, ..Scenario::default() }),
        ("one group", Scenario { share: 0.2, groups: 1, threads: 16, ..Scenario::default() }),
        ("two groups", Scenario { share: 0.2, groups: 2, threads: 16, ..Scenario::default() }),
        ("dominant", Scenario { share: 0.2, dominant: 0.9, threads: 100, groups: 3, ..Scenario::default() }),
        ("loud", Scenario { share: 0.2, loud: 0.9, ..Scenario::default() }),
        ("overlap", Scenario { share: 0.22, overlap: 0.1, threads: 64, ..Scenario::default() }),
        ("drift", Scenario { share: 0.23, drift: 0.15, threads: 64, ..Scenario::default() }),
        ("globals", Scenario { share: 0.2, globals: 0.2, global_pages: 8, ..Scenario::default() }),
        ("processes", Scenario { share: 0.2, cross_process: true, ..Scenario::default() }),
        ("share 60 %", Scenario { share: 0.6, pages: 1024, ..Scenario::default() }),
        ("private", Scenario { groups: 0, ..Scenario::default() }),
    ] {
        let scenario = Scenario { samples: 40, ..base };
        let one = index(&of_host(&scenario, 1, &|thread| thread), &scenario);
        let all = merged(&scenario, 200);
        let of_all = index(&all, &scenario);
        println!("{name:14} one host {one:.2}, 200 hosts {of_all:.2}");
    }
}
