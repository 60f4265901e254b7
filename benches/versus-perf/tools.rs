//! Runs scxprof, perf and programs beside them, and says what they could not do.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use anyhow::{anyhow, Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::Args;
use crate::host::{self, refused};
use crate::measure::{self, Task, Usage};

/// What `scxprof` says by its exit code where the result was written although samples were lost.
const LOST: i32 = 4;

/// The directory of recordings, which a signal must remove: they may be large.
static WORK: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Makes SIGINT, SIGTERM and SIGHUP remove the recordings before they end this program. What it started ends with it.
///
/// # Errors
/// The signals cannot be handled.
pub fn handle_signals() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("sigaction")?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            if let Ok(Some(work)) = WORK.lock().as_deref() {
                let _ = fs::remove_dir_all(work);
            }
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// The command line, and the programs that it names.
pub struct Bench {
    pub args: Args,
    pub scxprof: PathBuf,
    /// What `perf --version` says, once it was asked.
    perf_version: OnceLock<Option<String>>,
    /// For recordings; it is removed at the end.
    pub work: tempfile::TempDir,
}

/// A run that ended.
pub struct Ended {
    pub usage: Usage,
    /// As a shell would take it.
    pub command: String,
    pub stderr: String,
}

impl Bench {
    pub fn new(args: Args) -> Result<Self> {
        let scxprof = match &args.scxprof {
            Some(path) => path.clone(),
            None => beside("scxprof")?,
        };
        if host::version(&scxprof).is_none() {
            return Err(refused(format!(
                "cannot run {}: build it with `make versus-perf`, or name another with --scxprof",
                scxprof.display()
            )));
        }
        let parent = args.work.clone().unwrap_or_else(std::env::temp_dir);
        let work = tempfile::Builder::new()
            .prefix("versus-perf-")
            .tempdir_in(&parent)
            .map_err(|error| refused(format!("--work {}: {}", parent.display(), error.kind())))?;
        if let Ok(mut path) = WORK.lock() {
            *path = Some(work.path().to_owned());
        }
        Ok(Self { args, scxprof, perf_version: OnceLock::new(), work })
    }

    pub fn scxprof(&self) -> String {
        self.scxprof.display().to_string()
    }

    /// What `perf --version` says; `None` if it does not run.
    pub fn perf_version(&self) -> Option<&str> {
        self.perf_version.get_or_init(|| host::version(&self.args.perf)).as_deref()
    }

    /// perf, if it runs.
    ///
    /// # Errors
    /// One sentence: it does not.
    pub fn perf(&self) -> Result<String> {
        let perf = &self.args.perf;
        if self.perf_version().is_none() {
            return Err(refused(format!(
                "cannot run {}: install perf (Debian: apt-get install linux-perf), or name another with --perf",
                perf.display()
            )));
        }
        Ok(perf.display().to_string())
    }

    /// A path in the directory for recordings.
    pub fn at(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// Makes way for another recording of that name.
    pub fn clear(&self, name: &str) -> Result<PathBuf> {
        let path = self.at(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| path.display().to_string())
            }
            _ => Ok(path),
        }
    }

    /// Runs a command to its end; `options` may add to the task.
    ///
    /// # Errors
    /// It fails, with what it said, or does not end in time.
    pub fn run(&self, argv: &[String], seconds: f64, options: impl FnOnce(&mut Task)) -> Result<Ended> {
        let stderr = self.clear("stderr")?;
        let limit = seconds + 600.0;
        let mut task = Task { argv: argv.to_vec(), stderr, limit, ..Task::default() };
        options(&mut task);
        if let Some(stamp) = &task.stamp {
            // One that is left of another run would be taken for this one's.
            let _ = fs::remove_file(stamp);
        }
        progress(&shown(argv));
        let usage = measure::run(&task)?;
        let stderr = String::from_utf8_lossy(&fs::read(&task.stderr).unwrap_or_default()).into_owned();
        let command = shown(argv);
        if usage.timed_out {
            return Err(anyhow!("{command} did not end within {limit} s"));
        }
        if usage.status != 0 && !(usage.status == LOST && argv.first() == Some(&self.scxprof())) {
            return Err(self.failure(argv, &command, usage.status, &stderr));
        }
        Ok(Ended { usage, command, stderr })
    }

    /// Why a command failed, as a sentence.
    fn failure(&self, argv: &[String], command: &str, status: i32, stderr: &str) -> anyhow::Error {
        if argv.first().map(Path::new) == Some(&*self.args.perf) {
            let version = self.perf_version().unwrap_or("this perf");
            if let Some(option) = unknown_option(stderr) {
                return refused(format!(
                    "{version} is too old: it does not know {option}; name a newer one with --perf"
                ));
            }
            if ["No permission", "Permission denied", "perf_event_paranoid", "Operation not permitted"]
                .iter()
                .any(|words| stderr.contains(words))
            {
                return refused(format!(
                    "the kernel does not let {version} sample here: run this as root, outside a container"
                ));
            }
        }
        anyhow!("{command} failed ({status}): {}", last_words(stderr))
    }
}

/// Says on a terminal, or where VERSUS_PERF_PROGRESS is set, what is being done: a comparison may take an hour.
pub fn progress(what: &str) {
    if std::io::stderr().is_terminal() || std::env::var_os("VERSUS_PERF_PROGRESS").is_some() {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        eprintln!("versus-perf: {:.1} s: {what}", BEGIN.get_or_init(Instant::now).elapsed().as_secs_f64());
    }
}

/// The option that perf rejected. Its parser has two ways to say it: "unknown option `x'" and "unknown switch `x'".
fn unknown_option(stderr: &str) -> Option<String> {
    let (_, rest) = stderr.split_once("unknown option `").or_else(|| stderr.split_once("unknown switch `"))?;
    let (option, _) = rest.split_once('\'')?;
    Some(if option.chars().count() == 1 { format!("-{option}") } else { format!("--{option}") })
}

fn last_words(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.iter().rev().take(3).rev().copied().collect::<Vec<_>>().join("; ")
}

/// A program that was built with this one: in the directory above that of the examples, or beside.
pub fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("the path of this program")?;
    let examples = own.parent().context("the directory of this program")?;
    let above = examples.parent().unwrap_or(examples).join(name);
    Ok(if above.exists() { above } else { examples.join(name) })
}

/// The words of a command.
pub fn words(text: &[&str]) -> Vec<String> {
    text.iter().map(|word| (*word).to_owned()).collect()
}

/// A command as a shell takes it.
pub fn shown(argv: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.,:+@%".contains(c);
    // Results are kept: paths on the machine that made them are of no use.
    let name = |word: &str| {
        Path::new(word).file_name().filter(|_| word.starts_with('/')).map(|name| name.to_string_lossy().into_owned())
    };
    let quoted = argv.iter().map(|word| name(word).unwrap_or_else(|| word.clone())).map(|word| {
        if !word.is_empty() && word.chars().all(plain) {
            word
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Bytes of a file, or of all files below a directory.
pub fn size(path: &Path) -> u64 {
    let Ok(stat) = fs::symlink_metadata(path) else { return 0 };
    if !stat.is_dir() {
        return stat.len();
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| size(&entry.path())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perf_does_not_know_is_named() {
        let said = "  Error: unknown option `all-cgroups'\n\n Usage: perf record";
        assert_eq!(unknown_option(said).unwrap(), "--all-cgroups");
        assert_eq!(unknown_option("Error: unknown switch `d'").unwrap(), "-d");
        assert_eq!(unknown_option("Error: something else"), None);
    }

    #[test]
    fn commands_are_shown_as_typed() {
        assert_eq!(shown(&words(&["sh", "-c", "sleep 1; : >'x'", ""])), r"sh -c 'sleep 1; : >'\''x'\''' ''");
        assert_eq!(shown(&words(&["/opt/a b/perf", "-o", "/tmp/x/perf.data", "a/b"])), "perf -o perf.data a/b");
    }
}
