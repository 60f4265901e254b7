//! From a recording to text, lines and a configuration.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::host::need_room;
use crate::result::{number, Comparison, Plot, Skip, BYTES, CPU, PEAK, WALL};
use crate::statistics::in_turn;
use crate::tools::{beside, size, words, Bench, Ended};

/// Bytes on disk for each sample: the recording, and the lines that `process` makes.
const BYTES_PER_SAMPLE: u64 = 500;
/// More where scx_characterize writes its text twice, and its lines.
const CHARACTERIZE_BYTES: u64 = 700;
const SECONDS: f64 = 3600.0;
const FIELDS: &str = "comm,pid,tid,cpu,time,event,ip,addr,phys_addr,data_src,weight,period";

/// What reads the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    PerfScript,
    Extract,
    ProcessToStdout,
    Process,
    ExtractLines,
    CharacterizeProcess,
    CharacterizeExtract,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Self::PerfScript => "perf script",
            Self::Extract => "scxprof extract",
            Self::ProcessToStdout => "scxprof process -o -",
            Self::Process => "scxprof process",
            Self::ExtractLines => "scxprof extract, from the lines",
            Self::CharacterizeProcess => "scx_characterize process",
            Self::CharacterizeExtract => "scx_characterize extract mem",
        }
    }
}

pub fn compare(bench: &Bench) -> Result<Comparison> {
    let perf = bench.perf()?;
    let mut tools = vec![Tool::PerfScript, Tool::Extract, Tool::ProcessToStdout, Tool::Process, Tool::ExtractLines];
    let mut compared = Comparison::new("files", "From a recording to an answer");
    let characterize = on_path("scx_characterize");
    if characterize {
        tools.extend([Tool::CharacterizeProcess, Tool::CharacterizeExtract]);
    } else {
        let reason = "not on the PATH".to_owned();
        compared.skipped.push(Skip { what: "files: scx_characterize".to_owned(), reason });
    }
    let most = bench.args.samples.iter().copied().max().unwrap_or(0);
    let each = BYTES_PER_SAMPLE + if characterize { CHARACTERIZE_BYTES } else { 0 };
    need_room(
        bench.work.path(),
        most.saturating_mul(each),
        &format!("a recording of {} samples", number(most as f64, 0)),
    )?;
    compared.measures = vec![WALL, CPU, PEAK, BYTES];
    compared.baseline = Some(Tool::PerfScript.name().to_owned());
    compared.method = vec![
        "A made recording (examples/make_profile: 256 threads of 64 processes on 8 CPUs) is read by each program in turn. It was \
         written just before, so it is in the page cache."
            .to_owned(),
        "perf script prints the fields of an access to /dev/null, `scxprof process -o -` lines of JSON likewise; `scxprof process` \
         writes them to a file, which `extract` then reads too."
            .to_owned(),
    ];
    let make_profile = beside("make_profile")?;
    let all = crate::host::cpus() as u32;
    let cpus = if bench.args.cpus.is_empty() { vec![all] } else { bench.args.cpus.clone() };
    for &samples in &bench.args.samples {
        let file = bench.clear("perf.data")?;
        bench.clear("perf.data.out")?;
        let path = file.display().to_string();
        let argv = words(&[&make_profile.display().to_string(), &samples.to_string(), &path]);
        bench.run(&argv, SECONDS, |_| ()).context("examples/make_profile, which `make versus-perf` builds")?;
        for &count in &cpus {
            let on = if count == all {
                String::new()
            } else {
                format!(", on {count} CPU{}", if count == 1 { "" } else { "s" })
            };
            let case = format!("{} samples{on}", number(samples as f64, 0));
            for (round, side) in in_turn(bench.args.rounds, tools.len()) {
                let Some(&tool) = tools.get(side) else { continue };
                let (ended, bytes) = read(bench, &perf, tool, &file, count)?;
                let written = bytes.map(|bytes| ("mb", bytes as f64 / 1e6));
                compared.add(&case, tool.name(), round, &ended, written.as_slice());
            }
        }
    }
    let plot = |key, title, values, decimals| Plot::Bars { key, title, values, decimals };
    compared.plots = vec![
        plot("wall_s", "Reading a recording: wall time", "seconds", 2),
        plot("cpu_s", "Reading a recording: CPU time", "CPU seconds", 2),
        plot("peak_mib", "Reading a recording: peak memory", "MiB", 0),
    ];
    Ok(compared)
}

/// Runs a tool on the recording; returns what it took, and the bytes that it wrote to files.
fn read(bench: &Bench, perf: &str, tool: Tool, file: &Path, cpus: u32) -> Result<(Ended, Option<u64>)> {
    let (path, scxprof) = (file.display().to_string(), bench.scxprof());
    let lines = bench.at("perf.data.out");
    // What scx_characterize takes is a directory.
    let dir = bench.at("characterize");
    let post = bench.at("characterize.post");
    let argv = match tool {
        Tool::PerfScript => words(&[perf, "script", "--ns", "-F", FIELDS, "-i", &path]),
        Tool::Extract => words(&[&scxprof, "extract", "-f", &path]),
        Tool::ProcessToStdout => words(&[&scxprof, "process", "-f", &path, "-o", "-"]),
        Tool::Process => {
            bench.clear("perf.data.out")?;
            words(&[&scxprof, "process", "-f", &path])
        }
        Tool::ExtractLines => {
            if !lines.exists() {
                bench.run(&words(&[&scxprof, "process", "-f", &path]), SECONDS, |_| ())?;
            }
            words(&[&scxprof, "extract", "-f", &lines.display().to_string()])
        }
        Tool::CharacterizeProcess => characterize_process(bench, file)?,
        Tool::CharacterizeExtract => {
            let jsonl = post.join("perf.mem.jsonl");
            if !jsonl.exists() {
                let argv = characterize_process(bench, file)?;
                bench.run(&argv, SECONDS, |_| ())?;
            }
            words(&["scx_characterize", "extract", "mem", "-f", &jsonl.display().to_string()])
        }
    };
    let ended = bench.run(&argv, SECONDS, |task| task.cpus = Some(cpus))?;
    let bytes = match tool {
        Tool::Process => Some(size(&lines)),
        Tool::CharacterizeProcess => Some(size(&post) + size(&dir.join("perf.mem.script"))),
        _ => None,
    };
    Ok((ended, bytes))
}

/// A fresh directory as `scx_characterize record` leaves it: without the text of perf script, which `process` would take over.
fn characterize_process(bench: &Bench, file: &Path) -> Result<Vec<String>> {
    bench.clear("characterize.post")?;
    let dir = bench.clear("characterize")?;
    fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
    fs::hard_link(file, dir.join("perf.mem.data")).with_context(|| dir.display().to_string())?;
    Ok(words(&["scx_characterize", "process", "-f", &dir.display().to_string()]))
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
