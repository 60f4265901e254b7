//! Subcommands of perf that scxprof has under another name, or not at all: what to type here instead.

use std::ffi::OsString;

use anyhow::anyhow;

use super::failure::Failure;

/// Words after `scxprof` as perf has them, and what does the same here. The first that fits counts.
const INSTEAD: &[(&[&str], &str)] = &[
    (&["top"], "`sudo scxprof stacks -t 10`, which prints the functions that use the CPU"),
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
];

/// The sentence for a command line of perf that is none of scxprof.
pub(super) fn check(args: &[OsString]) -> Result<(), Failure> {
    let words = args.get(1..).unwrap_or_default();
    let is = |known: &[&str]| words.len() >= known.len() && words.iter().zip(known).all(|(word, known)| word == known);
    match INSTEAD.iter().find(|(known, _)| is(known)) {
        Some((known, instead)) => Err(Failure::Usage(anyhow!("scxprof has no `{}`: type {instead}", known.join(" ")))),
        None => Ok(()),
    }
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
    fn only_what_scxprof_has_not_is_answered() {
        let said = |line: &str| {
            let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
            check(&args).err().map(|failure| failure.sentence())
        };
        for line in ["top", "c2c record", "mem report -f x", "stat ls", "script", "annotate", "sched record -a"] {
            let said = said(&format!("scxprof {line}")).unwrap_or_else(|| panic!("{line}"));
            assert!(said.starts_with("scxprof has no `") && said.contains("type `") && !said.contains('\n'), "{said}");
        }
        for line in ["sched", "sched -- record", "sched --by cpu", "run top", "record sched record", "stacks"] {
            assert_eq!(said(&format!("scxprof {line}")), None, "{line}");
        }
    }
}
