//! The table of how right the printed configuration is on programs of known sharing; `make truth` runs it.
//!
//! `truth [--scxprof BINARY] [--beside quiet,compilers,itself] [--live] [--keep DIR | --recorded DIR] [PROGRAM...]`
//!
//! Each program is recorded once for 30 s, on the whole host with the timer source, and judged by the configuration that
//! `scxprof extract` prints from its first 6, 15 and 30 s. With --live, `scxprof run` samples each one separately for these
//! times. --keep leaves the recordings and their truth in DIR, --recorded judges such recordings and runs no program. PROGRAM
//! may be NAME:THREADS.

#[path = "../capture.rs"]
mod capture;
#[path = "../programs.rs"]
mod programs;
#[path = "../score.rs"]
mod score;
#[path = "../servers.rs"]
mod servers;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, Context, Result};

use capture::Scxprof;
use programs::{Beside, Program, Programs, Scene};
use score::{Score, Thread};
use servers::Server;

/// Seconds of sampling that are judged.
const WINDOWS: [u32; 3] = [6, 15, 30];
/// Numbers of threads that the scenario of groups is judged with besides its own.
const FLEETS: [usize; 5] = [2, 5, 8, 32, 64];

struct Args {
    scxprof: PathBuf,
    beside: Vec<Beside>,
    live: bool,
    keep: Option<PathBuf>,
    recorded: Option<PathBuf>,
    programs: Vec<String>,
}

impl Args {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        // Examples are built beside the binary.
        let here = std::env::current_exe()?;
        let target = here.parent().and_then(Path::parent).context("no directory of binaries")?;
        let mut args = Self {
            scxprof: target.join("scxprof"),
            beside: Beside::ALL.to_vec(),
            live: false,
            keep: None,
            recorded: None,
            programs: Vec::new(),
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} takes a value"));
            match word.as_str() {
                "--scxprof" => args.scxprof = value()?.into(),
                "--beside" => {
                    let find = |name: &str| Beside::ALL.into_iter().find(|beside| beside.name() == name);
                    let find = |name: &str| find(name).with_context(|| format!("--beside {name}"));
                    args.beside = value()?.split(',').map(find).collect::<Result<_>>()?;
                }
                "--live" => args.live = true,
                "--keep" => args.keep = Some(value()?.into()),
                "--recorded" => args.recorded = Some(value()?.into()),
                option if option.starts_with('-') => bail!("there is no option {option}"),
                _ => args.programs.push(word),
            }
        }
        Ok(args)
    }
}

fn main() -> ExitCode {
    let done = Args::parse(std::env::args().skip(1)).and_then(|args| match &args.recorded {
        Some(directory) => judge_recorded(&args, directory),
        None => judge_programs(&args),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("truth: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The result of one program: a score of the configuration for each window, or why there is none.
type Row = Vec<Result<Score, String>>;

/// Prints the table while it is made, and counts.
#[derive(Default)]
struct Table {
    /// Scores, right ones, sum of indices, scores with wrong threads, scores with lost names; for each window.
    sums: [(u32, u32, f64, u32, u32); WINDOWS.len()],
}

impl Table {
    fn head() -> Self {
        println!(
            "Adjusted Rand index of the printed configuration (1 is all right); s: threads together with strangers;"
        );
        println!("l: names that lost all of those that they share memory with.\n");
        println!("| program | beside | threads | 6 s | 15 s | 30 s |\n|---|---|---|---|---|---|");
        Self::default()
    }

    fn row(&mut self, name: &str, beside: &str, threads: usize, row: &Row) {
        let cells: Vec<String> = row.iter().map(cell).collect();
        println!("| {name} | {beside} | {threads} | {} |", cells.join(" | "));
        for (sum, score) in self.sums.iter_mut().zip(row) {
            let Ok(score) = score else { continue };
            sum.0 += 1;
            sum.1 += u32::from(score.is_right());
            sum.2 += score.index;
            sum.3 += u32::from(score.strangers > 0);
            sum.4 += u32::from(score.lost > 0);
        }
    }

    fn end(&self) {
        println!();
        for (window, (scores, right, sum, strangers, lost)) in WINDOWS.iter().zip(self.sums) {
            let mean = sum / f64::from(scores.max(1));
            println!(
                "{window} s: {right} of {scores} right, mean index {mean:.2}; strangers together in {strangers}, names lost \
                 in {lost}"
            );
        }
    }
}

fn cell(score: &Result<Score, String>) -> String {
    match score {
        Ok(Score { index, strangers, lost }) => {
            let mut text = format!("{index:.2}");
            for (count, what) in [(strangers, 's'), (lost, 'l')] {
                if *count > 0 {
                    let _ = write!(text, " {count}{what}");
                }
            }
            text
        }
        Err(why) => why.clone(),
    }
}

/// The score of each window of a recording.
fn windows(scxprof: &Scxprof, recording: &Path, threads: &[Thread]) -> Row {
    let judge = |window: u32| {
        let decision =
            scxprof.extract(recording, &["--to", &window.to_string()]).map_err(|error| format!("{error:#}"))?;
        score::score(threads, &capture::own_cgroup(), &decision.json)
    };
    WINDOWS.into_iter().map(judge).collect()
}

fn judge_recorded(args: &Args, directory: &Path) -> Result<()> {
    let scxprof = Scxprof { binary: args.scxprof.clone() };
    let listed = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    let mut truths: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    truths.retain(|path| path.extension().is_some_and(|extension| extension == "truth"));
    truths.sort();
    let mut table = Table::head();
    for truth in truths {
        let stem = truth.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let found = Beside::ALL.into_iter().find_map(|it| Some((stem.strip_suffix(it.name())?.strip_suffix('-')?, it)));
        let (name, beside) = found.map_or((stem.as_str(), "quiet"), |(name, beside)| (name, beside.name()));
        if !args.programs.is_empty() && !args.programs.iter().any(|wanted| wanted == name) {
            continue;
        }
        let threads = score::threads(&fs::read_to_string(&truth)?);
        let row = windows(&scxprof, &truth.with_extension("jsonl"), &threads);
        table.row(name, beside, threads.len(), &row);
    }
    table.end();
    Ok(())
}

/// The requested programs and servers, or all.
fn chosen<'a>(args: &'a Args, programs: &Programs) -> Result<(Vec<Program>, Vec<&'a str>)> {
    let is_server = |name: &&str| Server::ALL.contains(name);
    let find = |name: &str| programs.find(name).with_context(|| format!("there is no program {name}"));
    if args.programs.is_empty() {
        let mut all = programs.all.clone();
        all.retain(|program| !program.is_of_kernel());
        all.extend(FLEETS.iter().filter_map(|threads| programs.find(&format!("fleet:{threads}"))));
        return Ok((all, Server::ALL.to_vec()));
    }
    let names = || args.programs.iter().map(String::as_str);
    let found = names().filter(|name| !is_server(name)).map(find).collect::<Result<_>>()?;
    Ok((found, names().filter(is_server).collect()))
}

fn judge_programs(args: &Args) -> Result<()> {
    let programs = Programs::build()?;
    let mut skipped = programs.skipped.clone();
    let (chosen, servers) = chosen(args, &programs)?;
    let scratch = tempfile::tempdir()?;
    let directory = args.keep.as_deref().unwrap_or(scratch.path());
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    // Long enough for all windows, each sampled separately.
    let seconds = 60 + WINDOWS.iter().sum::<u32>();
    let mut table = Table::head();
    for program in &chosen {
        for &beside in &args.beside {
            let scene = Scene::start(program, beside, seconds)?;
            let row = sample(args, directory, &program.name, beside, &scene.threads)?;
            table.row(&program.name, beside.name(), scene.threads.len(), &row);
        }
    }
    for name in servers {
        // The threads of a second instance would have the same names.
        for &beside in args.beside.iter().filter(|beside| **beside != Beside::Itself) {
            let server = match Server::start(name) {
                Ok(server) => server,
                Err(why) => {
                    skipped.push(format!("{name}: {why:#}"));
                    break;
                }
            };
            let compilers = (beside == Beside::Compilers).then(programs::Compilers::start).transpose()?;
            let row = sample(args, directory, name, beside, &server.threads)?;
            table.row(name, beside.name(), server.threads.len(), &row);
            drop(compilers);
        }
    }
    table.end();
    for why in skipped {
        println!("SKIP: {why}");
    }
    Ok(())
}

/// Samples the running program, and judges each window.
fn sample(args: &Args, directory: &Path, name: &str, beside: Beside, threads: &[Thread]) -> Result<Row> {
    let scxprof = Scxprof { binary: args.scxprof.clone() };
    if args.live {
        let judge = |window: u32| {
            let decision = scxprof.run(window.into(), &[]).map_err(|error| format!("{error:#}"))?;
            score::score(threads, &capture::own_cgroup(), &decision.json)
        };
        return Ok(WINDOWS.into_iter().map(judge).collect());
    }
    let stem = if beside == Beside::Nothing { name.to_owned() } else { format!("{name}-{}", beside.name()) };
    let recording = directory.join(format!("{stem}.jsonl"));
    scxprof.record(&recording, WINDOWS[WINDOWS.len() - 1])?;
    fs::write(directory.join(format!("{stem}.truth")), programs::truth(threads))?;
    let row = windows(&scxprof, &recording, threads);
    if args.keep.is_none() {
        fs::remove_file(&recording)?;
    }
    Ok(row)
}
