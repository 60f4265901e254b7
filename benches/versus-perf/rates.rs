//! Samples and losses from a low rate to as many as the host gives.

use std::time::Instant;

use anyhow::Result;

use crate::host::{cpus, need_root};
use crate::load::Faults;
use crate::result::{number, Comparison, Measure, Plot, CPU, LOST, PEAK, SAMPLES};
use crate::software::PERF_FAULTS;
use crate::statistics::in_turn;
use crate::tools::Bench;

const MADE: Measure = Measure { key: "made", heading: "faults/s made", decimals: 0, ratio: false };
const LOST_PERCENT: Measure = Measure { key: "lost_percent", heading: "lost %", decimals: 1, ratio: false };

pub fn compare(bench: &Bench) -> Result<Comparison> {
    need_root("rates")?;
    bench.perf()?;
    let mut compared = Comparison::new("rates", "Rates and losses");
    compared.measures = vec![MADE, SAMPLES, LOST, LOST_PERCENT, CPU, PEAK];
    compared.baseline = Some("perf record".to_owned());
    compared.method = vec![
        format!(
            "{} processes make minor faults at a rate, and at last as fast as they can. Each program samples the whole host for {} s, \
             in turn. \"Made\" is what the processes counted while the program ran: the program takes CPU time from them.",
            cpus(),
            bench.args.seconds
        ),
        "perf samples each fault (`-c 1`), whatever the rate. scxprof does too up to 100,000 a second and CPU; above it \
         lengthens the period. The samples are those of the whole host, so they are more than the load's faults."
            .to_owned(),
    ];
    let rates = bench.args.rates.iter().map(|rate| Some(*rate)).chain([None]);
    for rate in rates {
        let case = rate.map_or("as fast as they can".to_owned(), |rate| format!("{}/s", number(rate as f64, 0)));
        let faults = Faults::start(cpus(), rate)?;
        for (round, side) in in_turn(bench.args.rounds, 2) {
            let (before, begin) = (faults.made(), Instant::now());
            let (tool, mut captured) = if side == 0 {
                ("perf record", bench.perf_record(&[&PERF_FAULTS[..], &["--all-cgroups"]].concat(), true)?)
            } else {
                ("scxprof run", bench.scxprof_run(&["--source", "faults"])?)
            };
            let made = (faults.made() - before) as f64 / begin.elapsed().as_secs_f64();
            captured.values.push(("made", made));
            compared.add(&case, tool, round, &captured.ended, &captured.values);
        }
    }
    let axis = "faults a second that the load made (logarithmic)";
    let plot = |key, title, values| Plot::Lines { key, along: "made", title, values, axis, is_log: false };
    compared.plots = vec![
        plot("lost_percent", "Samples lost by rate", "lost samples, %"),
        plot("cpu_s", "CPU time of a capture by rate", "CPU seconds"),
    ];
    Ok(compared)
}
