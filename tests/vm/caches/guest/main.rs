//! Runs in the guest of `make proof`: starts workloads under schedulers with several configurations, and has the cache model of the
//! emulator count their misses (tests/vm/caches/README.md).
//!
//! ```text
//! proof-guest run machine=NAME llcs=2 workload=NAME,... scheduler=mitosis,... [rounds=5] [nones=3] [sample=10] [settle=0.15]
//!     [window=0.2] [arms=none,...] [kernel=yes]
//! proof-guest oracle llcs=2 workload=NAME,... [sample=2] [freq=1000] [kernel=yes]
//! proof-guest client PORT                          the client of memcached
//! ```

mod arms;
mod oracle;
mod plugin;
mod schedulers;
mod who;
mod workloads;

use std::collections::BTreeMap;
use std::fs;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use serde_json::json;

use arms::Arm;
use plugin::Page;
use schedulers::Scheduler;
use who::Who;
use workloads::Workload;

/// In which scx_layered gives layers their CPUs.
const LAYERS_GROW: Duration = Duration::from_secs(1);
/// The seed of the run that is sampled, which is that of no round.
const SAMPLED: u32 = 0;
/// Where boot.sh puts the BPF program.
const WHO: &str = "/lib/who.bpf.o";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = words.split_first().context("proof-guest run|oracle|client [KEY=VALUE...]")?;
    if command == "client" {
        return workloads::client(rest.first().context("no port")?.parse()?);
    }
    let options = Options::new(rest)?;
    let cpus = u32::try_from(thread::available_parallelism()?.get())?;
    let llcs: u32 = options.number("llcs", 2)?;
    let who = Who::new(WHO, (cpus / llcs.max(1)).max(1))?;
    let mut page = Page::new()?;
    match command.as_str() {
        "run" => {
            for workload in options.list("workload") {
                let plan = Plan::new(&options, workload, llcs, cpus)?;
                run(&plan, &options.list("scheduler"), &who, &mut page)
                    .with_context(|| format!("workload {workload}"))?;
            }
        }
        "oracle" => {
            let sampling = oracle::Sampling {
                seconds: options.text("sample", "2"),
                freq: options.text("freq", "1000"),
                kernel: options.text("kernel", "") == "yes",
            };
            for workload in options.list("workload") {
                oracle::check(workload, &sampling, &who, &mut page)?;
            }
        }
        _ => bail!("no command \"{command}\""),
    }
    Ok(())
}

/// KEY=VALUE.
struct Options(BTreeMap<String, String>);

impl Options {
    fn new(words: &[String]) -> Result<Self> {
        let pairs = words.iter().map(|word| {
            let (key, value) = word.split_once('=').with_context(|| format!("\"{word}\" is not KEY=VALUE"))?;
            anyhow::Ok((key.to_owned(), value.to_owned()))
        });
        pairs.collect::<Result<_>>().map(Self)
    }

    fn text<'a>(&'a self, key: &str, otherwise: &'a str) -> &'a str {
        self.0.get(key).map_or(otherwise, String::as_str)
    }

    fn list(&self, key: &str) -> Vec<&str> {
        self.text(key, "").split(',').filter(|word| !word.is_empty()).collect()
    }

    fn number<T: FromStr<Err: std::error::Error + Send + Sync + 'static>>(&self, key: &str, otherwise: T) -> Result<T> {
        self.0.get(key).map_or(Ok(otherwise), |text| text.parse().with_context(|| format!("{key}={text}")))
    }
}

/// What is run with one workload.
struct Plan<'a> {
    machine: &'a str,
    workload: &'a str,
    llcs: u32,
    cpus: u32,
    rounds: u32,
    /// How often the arm without a configuration runs in each round: where its threads are is chance, and all others are compared with it.
    nones: u32,
    sample: &'a str,
    /// It is sampled a second time, with kernel code.
    kernel: bool,
    /// How long the workload runs before misses are counted, so that the caches are as full as they get.
    settle: Duration,
    window: Duration,
    /// Only these arms; all where there is none.
    arms: Vec<&'a str>,
}

impl<'a> Plan<'a> {
    fn new(options: &'a Options, workload: &'a str, llcs: u32, cpus: u32) -> Result<Self> {
        Ok(Self {
            machine: options.text("machine", ""),
            workload,
            llcs,
            cpus,
            rounds: options.number("rounds", 5)?,
            nones: options.number("nones", 3)?,
            sample: options.text("sample", "10"),
            kernel: options.text("kernel", "") == "yes",
            settle: Duration::from_secs_f64(options.number("settle", 0.15)?),
            window: Duration::from_secs_f64(options.number("window", 0.2)?),
            arms: options.list("arms"),
        })
    }
}

fn run(plan: &Plan, schedulers: &[&str], who: &Who, page: &mut Page) -> Result<()> {
    let sampled = |end: &str, more: &[&str]| {
        let profile = format!("/tmp/{}{end}.tar.gz", plan.workload);
        workloads::sample(&Workload::start(plan.workload, SAMPLED)?, plan.sample, more, &profile, (|| (), || ()))?;
        anyhow::Ok(profile)
    };
    let profile = sampled("", &[])?;
    let kernel = if plan.kernel { Some(sampled("-kernel", &workloads::WITH_KERNEL)?) } else { None };
    // For whoever reads the console of a guest that takes an hour.
    println!("{} is sampled", plan.workload);
    let mut arms = arms::make(&profile, kernel.as_deref(), plan.llcs, plan.cpus)?;
    arms.retain(|arm| plan.arms.is_empty() || plan.arms.contains(&arm.name));
    for profile in [Some(profile), kernel].into_iter().flatten() {
        page.send(1, &fs::read(profile)?);
    }
    for scheduler in schedulers {
        // scx_layered gives layers CPUs by what they use, whatever the caches: there it is the same as scxprof's.
        let arms: Vec<&Arm> = arms.iter().filter(|arm| *scheduler != "layered" || arm.name != "each").collect();
        for arm in &arms {
            let score = if *scheduler == "layered" { &arm.layered_score } else { &arm.score };
            let (mid, of_kernel) = (&score["score"]["mid"], &arm.kernel_score["score"]["mid"]);
            println!(
                "{} {scheduler} {}: {:?} score {mid}, with kernel code {of_kernel}",
                plan.workload, arm.name, arm.groups
            );
            page.line(&json!({"prediction": {
                "machine": plan.machine, "scheduler": scheduler, "workload": plan.workload, "arm": arm.name,
                "score": score["score"], "locality": score["locality"], "avoidable": score["avoidable"],
                "with_kernel": arm.kernel_score, "groups": arm.groups,
            }}));
        }
        let again = (1..plan.nones).filter_map(|times| Some((*arms.iter().find(|arm| arm.name == "none")?, times)));
        let mut runs: Vec<(&Arm, u32)> = arms.iter().map(|arm| (*arm, 0)).chain(again).collect();
        for round in 1..=plan.rounds {
            // Another one begins each round, so that none has always the caches of files that the workload before it left.
            runs.rotate_left(usize::from(round > 1));
            for (arm, times) in &runs {
                one(plan, scheduler, arm, round + times * plan.rounds, who, page)
                    .with_context(|| format!("{scheduler}, arm {}", arm.name))?;
                println!("{} {scheduler} {}: round {round} of {} ended", plan.workload, arm.name, plan.rounds);
            }
        }
    }
    Ok(())
}

/// One round of one arm: the workload starts anew, then the scheduler, so that threads have their names when it first sees them.
fn one(plan: &Plan, scheduler: &str, arm: &Arm, round: u32, who: &Who, page: &mut Page) -> Result<()> {
    let workload = Workload::start(plan.workload, round)?;
    workload.put(who)?;
    workload.shuffle(round, plan.cpus)?;
    let processes = workload.processes()?;
    let mut running = workload.stopped_while(|| Scheduler::start(scheduler, arm, &processes, plan.cpus, who))?;
    page.line(&json!({"begin": {
        "machine": plan.machine, "scheduler": scheduler, "workload": plan.workload, "arm": arm.name, "round": round,
    }}));
    if scheduler == "layered" {
        // Layers get their CPUs by what their threads use, over some of its intervals.
        thread::sleep(LAYERS_GROW);
    }
    plugin::warm();
    thread::sleep(plan.settle);
    let (moves, units, begin) = (who.moves()?, workload.units()?, Instant::now());
    plugin::begin();
    thread::sleep(plan.window);
    plugin::end();
    let seconds = begin.elapsed().as_secs_f64();
    let units = workload.units()?.zip(units).map(|(after, before)| after - before);
    let moves = who.moves()?.since(moves);
    let places = workload.places()?;
    running.check()?;
    page.line(&json!({"end": {
        "seconds": seconds, "switches": moves.switches, "migrations": moves.migrations, "crossings": moves.crossings, "units": units,
        "by_instructions": workload.is_counted_by_instructions(), "places": places,
    }}));
    // The workload first: scx_layered gives CPUs back slowly.
    drop(workload);
    drop(running);
    Ok(())
}
