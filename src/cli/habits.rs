//! Command lines of perf and of scx_characterize that scxprof has under another name, or not at all: what does the same here, or what
//! to type instead.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use anyhow::anyhow;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::ArgMatches;

use super::failure::Failure;

/// Words after `scxprof` as perf and scx_characterize have them, and what does the same here. The first that fits counts.
const INSTEAD: &[(&[&str], &str)] = &[
    (
        &["c2c"],
        "`scxprof run -vv -- COMMAND`, or `sudo scxprof run -vv` for the host, whose hot lines say which threads and which code share a \
         cache line",
    ),
    (
        &["mem"],
        "`sudo scxprof record`, then `scxprof report` for the threads that share memory, or `scxprof process -o -` for each access",
    ),
    (&["stat"], "`scxprof stacks -e EVENT COMMAND`, which samples an event that `perf stat` counts"),
    (&["script"], "`scxprof process -o -`, which prints each access of the newest profile here as a line of JSON"),
    (
        &["annotate"],
        "`scxprof report -v` for the code that touches hot lines, or `scxprof stacks` for the source line of each function",
    ),
    (
        &["sched", "record"],
        "`sudo scxprof record --sched`, then `scxprof sched -f PROFILE`, or without a recording `sudo scxprof sched`",
    ),
    (&["sched", "latency"], "`sudo scxprof sched --by thread --sort latency`, which prints the threads that waited longest"),
    (
        &["sched", "timehist"],
        "`sudo scxprof record --sched`, then `scxprof export --perfetto FILE` for a trace to look at",
    ),
    (&["sched", "map"], "`sudo scxprof sched --by cpu`, which prints what each CPU did"),
    (&["sched", "replay"], "`scxprof replay -f PROFILE`, which runs a recorded workload again"),
    (
        &["list"],
        "`scxprof doctor` for what can be sampled on this host; `scxprof stacks -e EVENT` takes the names that `perf list` prints",
    ),
    (
        &["lock"],
        "`sudo scxprof stacks -e lock:contention_begin`, which prints the code that waits for locks of the kernel",
    ),
    (
        &["extract", "sched"],
        "`scxprof sched -f PROFILE --windows 1ms --category NAME`, which prints the CPU time of each name in each window",
    ),
    (&["kmem"], "`sudo scxprof stacks -e kmem:kmalloc`, which prints the code that allocates memory in the kernel"),
];

/// Subcommands, options that they lack and perf has, and what to do instead.
const OPTIONS: &[(&[&str], &[&str], &str)] = &[
    (
        &["run", "record", "stacks", "watch", "top"],
        &["-u", "--uid"],
        "processes are named by their ids: type `-p $(pgrep -d, -u USER)`",
    ),
    (
        &["run", "record", "watch", "top"],
        &["--tid"],
        "`-p PID` takes all threads of a process, and `scxprof report --tid TID` those of a profile that you want (`-t` is a time here)",
    ),
    (&["stacks"], &["--tid"], "`scxprof stacks -p PID --by thread` has a line for each thread of a process (`-t` is a time here)"),
    (&["run", "record", "stacks", "watch", "top"], &["-G"], "a cgroup is `--cgroup PATH`"),
    (&["run", "record", "sched", "stacks", "watch", "top"], &["-m"], "the pages of a ring are `--mmap-pages N`"),
    (
        &["run", "watch", "top", "sched"],
        &["-g", "--call-graph"],
        "`scxprof stacks` prints which code runs, and `scxprof record -g` records it beside memory",
    ),
    (
        &["run", "record", "watch"],
        &["-d", "--data", "--phys-data", "-W", "--weight", "--all-cgroups", "--data-page-size"],
        "leave it out, as all that the source can say of an access is always taken",
    ),
    (&["top"], &["-d", "--delay"], "the time between two frames is `--interval SECONDS`"),
    (&["top"], &["-s"], "`--sort HEAD` sorts by the column with that head, and `<` and `>` choose another one while it runs"),
    (
        &["sched"],
        &["-p", "--pid", "--tid", "-u", "--uid", "-G", "--cgroup"],
        "it always watches the whole host, and `--by thread`, `--by process` or `--by cgroup` has a line for each",
    ),
    (&["sched"], &["-F", "-c", "-e"], "leave it out, as each event of the scheduler is taken"),
    (
        &["record"],
        &["--disable-mem-trace"],
        "accesses to memory are always recorded, and `sudo scxprof sched -t 30` watches the scheduler alone",
    ),
    (&["report"], &["-n", "--show-nr-samples"], "leave it out, as the column `samples` is always printed"),
    (
        &["report"],
        &["-g", "--call-graph", "-s", "--sort", "-F", "--fields", "-d", "--dsos", "-S", "--symbols", "--children", "--no-children"],
        "it is about threads that share memory, and `scxprof stacks -f PROFILE` prints which functions use the CPU",
    ),
    (&["report"], &["--tui", "--gtk"], "`--html FILE` writes a page to look at"),
    (&["extract"], &["--json"], "the configuration is JSON, and so is the report that `--report FILE` writes"),
];

/// The command line without a word of scx_characterize that has no meaning here: `extract mem -f FILE` is `extract -f FILE`. A profile
/// called `mem` is read where no other is named.
pub(super) fn without_kind(args: &[OsString]) -> Cow<'_, [OsString]> {
    let Some([command, kind, rest @ ..]) = args.get(1..) else { return args.into() };
    let names_file = |word: &OsString| {
        let word = word.as_encoded_bytes();
        word.starts_with(b"-f") || word == b"--file" || word.starts_with(b"--file=")
    };
    if command != "extract" || kind != "mem" || !rest.iter().any(names_file) {
        return args.into();
    }
    args.iter().enumerate().filter(|(at, _)| *at != 2).map(|(_, word)| word.clone()).collect()
}

/// The sentence for a command line of perf that scxprof does not have.
pub(super) fn check(args: &[OsString]) -> Result<(), Failure> {
    let words = args.get(1..).unwrap_or_default();
    let is = |known: &[&str]| words.len() >= known.len() && words.iter().zip(known).all(|(word, known)| word == known);
    match INSTEAD.iter().find(|(known, _)| is(known)) {
        Some((known, instead)) => Err(Failure::Usage(anyhow!("scxprof has no `{}`: type {instead}", known.join(" ")))),
        None => Ok(()),
    }
}

/// The sentence for an option of perf, if it is one that clap does not know.
pub(super) fn option(error: &clap::Error, args: &[OsString]) -> Option<Failure> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg) else { return None };
    let command = args.get(1)?.to_str()?;
    let (.., instead) = OPTIONS
        .iter()
        .find(|(commands, options, _)| commands.contains(&command) && options.contains(&given.as_str()))?;
    Some(Failure::Usage(anyhow!("{command} has no {given}: {instead}")))
}

/// Takes the tip to write `-- -x` out of an error: where a COMMAND may stand, it would run a program of that name, and no file of
/// ours has one.
pub(super) fn without_wrong_tips(error: &mut clap::Error) {
    let Some(ContextValue::StyledStrs(mut tips)) = error.remove(ContextKind::Suggested) else { return };
    tips.retain(|tip| !tip.to_string().contains("as a value"));
    if !tips.is_empty() {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
    }
}

/// Options by which something else than the COMMAND is sampled, and true if it then could not run at all.
const WHOSE: [(&str, &str, bool); 4] =
    [("pids", "-p", true), ("cgroup", "--cgroup", true), ("all", "-a", false), ("cpus", "-C", false)];

/// The command line with `-t TIME` in place of a COMMAND `sleep TIME`, if it is not the command that is sampled: in perf, it only says
/// how long. `None` if there is nothing to replace.
pub(super) fn with_time(args: &[OsString], matches: &ArgMatches) -> Result<Option<Vec<OsString>>, Failure> {
    let Some((name, below)) = matches.subcommand() else { return Ok(None) };
    // It says itself that it takes neither.
    if name == "watch" {
        return Ok(None);
    }
    let Ok(Some(command)) = below.try_get_raw("command") else { return Ok(None) };
    let command: Vec<&OsStr> = command.collect();
    let is_given = |id: &str| {
        below.try_contains_id(id).unwrap_or(false) && below.value_source(id) == Some(ValueSource::CommandLine)
    };
    let Some((_, option, is_instead)) = WHOSE.iter().find(|(id, ..)| is_given(id)) else { return Ok(None) };
    let words = command.join(OsStr::new(" "));
    let words = words.to_string_lossy();
    let Some(seconds) = slept(&command) else {
        if *is_instead {
            return Err(Failure::Usage(anyhow!(
                "with {option} no command is run: type how long to sample, such as `-t 5s`, in place of `{words}`"
            )));
        }
        return Ok(None);
    };
    if is_given("time") {
        // A COMMAND that is sampled with the whole host may take longer than that.
        if !is_instead {
            return Ok(None);
        }
        return Err(Failure::Usage(anyhow!(
            "-t cannot be used with `{words}`: with {option} both say how long to sample"
        )));
    }
    // It is the end of the line.
    let mut kept = args.get(..args.len().saturating_sub(command.len())).unwrap_or_default().to_vec();
    if kept.last().is_some_and(|last| last == "--") {
        kept.pop();
    }
    // After the name of the subcommand: there are no options before it.
    let at = kept.len().min(2);
    kept.splice(at..at, ["-t".into(), format!("{seconds}s").into()]);
    Ok(Some(kept))
}

/// The seconds of `sleep TIME...`, each with a unit or without, as sleep(1) of GNU takes them; `None` of any other command.
fn slept(command: &[&OsStr]) -> Option<f64> {
    let (program, times) = command.split_first()?;
    if Path::new(program).file_name() != Some(OsStr::new("sleep")) || times.is_empty() {
        return None;
    }
    let one = |time: &&OsStr| {
        let time = time.to_str()?;
        let units = [('s', 1.0), ('m', 60.0), ('h', 3_600.0), ('d', 86_400.0)];
        let with_unit = units.iter().find_map(|(unit, seconds)| Some((time.strip_suffix(*unit)?, *seconds)));
        let (number, unit) = with_unit.unwrap_or((time, 1.0));
        // `inf` and `nan` are numbers too.
        let is_number = number.starts_with(|c: char| c.is_ascii_digit() || c == '.');
        number.parse::<f64>().ok().filter(|_| is_number).map(|number| number * unit)
    };
    times.iter().map(one).sum::<Option<f64>>().filter(|sum| sum.is_finite())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Args;

    #[test]
    fn each_answer_is_about_what_scxprof_has() {
        let root = Args::command();
        for (known, instead) in INSTEAD {
            let name = known.join(" ");
            assert!(known.len() > 1 || root.find_subcommand(known[0]).is_none(), "{name} exists");
            let mut commands = instead.split('`').skip(1).step_by(2).filter(|it| it.contains("scxprof ")).peekable();
            assert!(commands.peek().is_some(), "{name}: {instead}");
            for command in commands {
                let words = command.trim_start_matches("sudo ").split(' ');
                let parsed = root.clone().try_get_matches_from(words);
                assert!(
                    parsed.is_ok(),
                    "{name}: {command}: {}",
                    parsed.err().map_or_else(String::new, |it| it.to_string())
                );
            }
        }
    }

    #[test]
    fn each_option_that_is_answered_is_none_of_scxprof() {
        let root = Args::command();
        for (commands, options, instead) in OPTIONS {
            for command in *commands {
                let subcommand = root.find_subcommand(command).unwrap_or_else(|| panic!("{command}"));
                for option in *options {
                    let is = |arg: &clap::Arg| match option.strip_prefix("--") {
                        Some(long) => {
                            arg.get_long_and_visible_aliases().is_some_and(|all| all.contains(&long))
                                || arg.get_all_aliases().is_some_and(|all| all.contains(&long))
                        }
                        None => arg
                            .get_short_and_visible_aliases()
                            .is_some_and(|all| all.contains(&option.chars().nth(1).unwrap())),
                    };
                    assert!(!subcommand.get_arguments().any(is), "{command} has {option}");
                }
            }
            for line in instead.split('`').skip(1).step_by(2).filter(|it| it.starts_with("scxprof ")) {
                let parsed = root.clone().try_get_matches_from(line.replace("PID", "1").replace("TID", "1").split(' '));
                assert!(parsed.is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn only_a_kind_that_names_nothing_is_left_out() {
        for (line, is) in [
            ("scxprof extract mem -f a.jsonl -v", "scxprof extract -f a.jsonl -v"),
            ("scxprof extract mem --use-hints --file=a", "scxprof extract --use-hints --file=a"),
            ("scxprof extract mem", "scxprof extract mem"),
            ("scxprof extract -f mem", "scxprof extract -f mem"),
            ("scxprof process mem -f a", "scxprof process mem -f a"),
            ("scxprof", "scxprof"),
        ] {
            let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
            assert_eq!(without_kind(&args).join(OsStr::new(" ")), is);
        }
    }

    #[test]
    fn a_time_to_sleep_is_that_of_gnu() {
        let of = |line: &str| slept(&line.split(' ').map(OsStr::new).collect::<Vec<_>>());
        for (line, seconds) in [
            ("sleep 3", 3.0),
            ("/usr/bin/sleep 0.5", 0.5),
            ("sleep .5s", 0.5),
            ("sleep 2m", 120.0),
            ("sleep 1h 1m 1", 3_661.0),
            ("sleep 1d", 86_400.0),
            ("sleep 1e1", 10.0),
        ] {
            assert_eq!(of(line), Some(seconds), "{line}");
        }
        for other in [
            "sleep",
            "sleep 3 x",
            "sleep 3ms",
            "sleep -1",
            "sleep inf",
            "sleep nan",
            "sleep infinity",
            "make 3",
            "sleepy 3",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn only_a_command_that_is_not_sampled_is_a_time() {
        let with = |line: &str| {
            let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
            let matches = Args::command().try_get_matches_from(&args).unwrap_or_else(|error| panic!("{line}: {error}"));
            let text = |args: Vec<OsString>| args.join(OsStr::new(" ")).into_string().unwrap();
            with_time(&args, &matches).map(|args| args.map(text)).map_err(|failure| failure.sentence())
        };
        for (line, is) in [
            ("scxprof record -F 999 -g -p 1 -- sleep 3", "scxprof record -t 3s -F 999 -g -p 1"),
            ("scxprof run -p 1 sleep 0.5", "scxprof run -t 0.5s -p 1"),
            ("scxprof stacks --cgroup /a sleep 1m 2", "scxprof stacks -t 62s --cgroup /a"),
            ("scxprof run -a -- sleep 3", "scxprof run -t 3s -a"),
            ("scxprof run -C 0 -- sleep 3", "scxprof run -t 3s -C 0"),
            ("scxprof sched -a -- sleep 3", "scxprof sched -t 3s -a"),
        ] {
            assert_eq!(with(line).unwrap().as_deref(), Some(is), "{line}");
        }
        for line in [
            "scxprof run -- sleep 3",
            "scxprof run -t 3 sleep 5",
            "scxprof run -a make",
            "scxprof run -p 1",
            "scxprof sched sleep 1",
            "scxprof watch -o x -p 1 sleep 3",
        ] {
            assert_eq!(with(line), Ok(None), "{line}");
        }
        assert!(with("scxprof run -p 1 -- make -j8").unwrap_err().ends_with("such as `-t 5s`, in place of `make -j8`"));
        assert!(with("scxprof record -t 5 -p 1 sleep 3").unwrap_err().starts_with("-t cannot be used with `sleep 3`"));
    }

    #[test]
    fn only_what_scxprof_has_not_is_answered() {
        let said = |line: &str| {
            let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
            check(&args).err().map(|failure| failure.sentence())
        };
        for line in [
            "c2c record",
            "mem report -f x",
            "stat ls",
            "script",
            "annotate",
            "sched record -a",
            "list",
            "lock report",
            "kmem stat",
        ] {
            let said = said(&format!("scxprof {line}")).unwrap_or_else(|| panic!("{line}"));
            assert!(said.starts_with("scxprof has no `") && said.contains("type `") && !said.contains('\n'), "{said}");
        }
        for line in ["sched", "sched -- record", "sched --by cpu", "run top", "record sched record", "stacks"] {
            assert_eq!(said(&format!("scxprof {line}")), None, "{line}");
        }
    }
}
