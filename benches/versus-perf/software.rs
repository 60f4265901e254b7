//! Captures without a memory PMU: page faults, and the timer.

use anyhow::Result;

use crate::capture::Captured;
use crate::host::{cpus, need_root};
use crate::load::{Faults, Readers};
use crate::result::{number, Comparison, Plot, BYTES, CPU, LOST, PEAK, SAMPLES};
use crate::statistics::in_turn;
use crate::tools::Bench;

/// Faults a second of the load: what a host with much work has.
const RATE: u64 = 50_000;
/// Samples a second and CPU of the timer.
const FREQUENCY: &str = "1000";

/// What perf is asked for, which is what `--source faults` has.
pub const PERF_FAULTS: [&str; 10] =
    ["record", "-q", "-e", "minor-faults", "-c", "1", "-a", "-d", "--phys-data", "--data-page-size"];

pub fn compare(bench: &Bench) -> Result<Comparison> {
    need_root("software")?;
    bench.perf()?;
    let mut compared = Comparison::new("software", "Captures without a memory PMU");
    compared.measures = vec![CPU, PEAK, BYTES, SAMPLES, LOST];
    compared.baseline = Some("perf record".to_owned());
    compared.method = vec![
        format!(
            "Each program samples the whole host for {} s, in turn. The load of minor faults is {} processes that make {} faults a \
             second together; that of the timer is a process on each CPU that walks over 1 MiB.",
            bench.args.seconds,
            cpus(),
            number(RATE as f64, 0)
        ),
        "`scxprof run` decides at the end; the others only write what they sampled. perf writes registers and 512 bytes of stack \
         for the timer, which is what it needs to recover the addresses that scxprof has recovered when it ends."
            .to_owned(),
        "All have their default rings and priorities: scxprof 1 MiB a CPU and SCHED_FIFO for its readers, perf what the kernel \
         allows without asking."
            .to_owned(),
    ];
    let faults = Faults::start(cpus(), Some(RATE))?;
    let case = format!("minor faults, {} a second", number(RATE as f64, 0));
    for (round, side) in in_turn(bench.args.rounds, 3) {
        let (tool, captured) = match side {
            0 => ("perf record", bench.perf_record(&[&PERF_FAULTS[..], &["--all-cgroups"]].concat(), true)?),
            1 => ("scxprof run", bench.scxprof_run(&["--source", "faults"])?),
            _ => ("scxprof record", bench.scxprof_record(&["--source", "faults"])?),
        };
        add(&mut compared, &case, tool, round, &captured);
    }
    drop(faults);
    let readers = Readers::start(cpus())?;
    let case = format!("timer at {FREQUENCY} Hz");
    for (round, side) in in_turn(bench.args.rounds, 3) {
        let clock = ["--source", "timer", "--freq", FREQUENCY];
        let (tool, captured) = match side {
            0 => {
                let options = ["record", "-q", "-e", "cpu-clock", "-F", FREQUENCY, "-a", "--user-regs", "--call-graph"];
                ("perf record", bench.perf_record(&[&options[..], &["dwarf,512"]].concat(), true)?)
            }
            1 => ("scxprof run", bench.scxprof_run(&clock)?),
            _ => ("scxprof record", bench.scxprof_record(&clock)?),
        };
        add(&mut compared, &case, tool, round, &captured);
    }
    drop(readers);
    let plot = |key, title, values, decimals| Plot::Bars { key, title, values, decimals };
    compared.plots = vec![
        plot("cpu_s", "CPU time of a capture without a memory PMU", "CPU seconds", 2),
        plot("mb", "Bytes written by a capture without a memory PMU", "MB", 2),
    ];
    Ok(compared)
}

fn add(compared: &mut Comparison, case: &str, tool: &str, round: u32, captured: &Captured) {
    compared.add(case, tool, round, &captured.ended, &captured.values);
}
