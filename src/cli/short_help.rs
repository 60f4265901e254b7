//! `-h`: the options that most people need, one line each. `--help` has all.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::{Arg, Command};

use super::args::TUNING;

/// Sections that only `--help` has.
const LEFT_OUT: [&str; 3] = [TUNING, "Selection", "Task hints"];
/// Options that only `--help` has.
const RARE: [&str; 18] = [
    "label",
    "host_name",
    "fold",
    "cgroup_root",
    "workload_cgroup_regex",
    "workload_allotment_cgroup_regex",
    "use_hints",
    "this_host",
    "no_symbols",
    "exact",
    "batched",
    "stacks_freq",
    "keep_memory",
    "samples_jsonl",
    "max_samples",
    "no_lines",
    "at_least",
    "prometheus",
];
/// The least width of an option's text.
const LEAST: usize = 20;

/// What `-h` prints, in lines of this width; `None` if the command line asks for `--help`.
pub(super) fn text(mut root: Command, args: &[OsString], width: usize) -> Option<String> {
    let words = args.get(1..).unwrap_or_default();
    // clap has seen one of both.
    if words.iter().any(|word| word == "--help") || words.first().is_some_and(|word| word == "help") {
        return None;
    }
    root.build();
    let mut command = &root;
    for word in words.iter().map(|word| word.to_string_lossy()) {
        match command.find_subcommand(&*word) {
            Some(below) => command = below,
            None => break,
        }
    }
    Some(of(command, width))
}

fn of(command: &Command, width: usize) -> String {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut text = format!("{about}\n\n{}\n", command.clone().render_usage());
    let mut sections: Vec<(String, Vec<[String; 2]>)> = Vec::new();
    let commands = command.get_subcommands().filter(|it| !it.is_hide_set() && it.get_name() != "help");
    let commands = commands
        .map(|it| [format!("  {}", it.get_name()), it.get_about().map(ToString::to_string).unwrap_or_default()]);
    sections.push(("Commands".to_owned(), commands.collect()));
    for arg in command.get_arguments().filter(|arg| is_common(arg)) {
        let heading = arg.get_help_heading().unwrap_or("Options");
        let line = [format!("  {}", name(arg)), first_clause(arg)];
        match sections.iter_mut().find(|(known, _)| known == heading) {
            Some((_, lines)) => lines.push(line),
            None => sections.push((heading.to_owned(), vec![line])),
        }
    }
    let all = sections.iter().flat_map(|(_, lines)| lines);
    let left = all.map(|[name, _]| name.chars().count()).max().unwrap_or(0);
    let room = width.saturating_sub(left + 2).max(LEAST);
    for (heading, lines) in sections.iter().filter(|(_, lines)| !lines.is_empty()) {
        let _ = writeln!(text, "\n{heading}:");
        for [name, help] in lines {
            let _ = writeln!(text, "{name:left$}  {}", cut(help, room));
        }
    }
    let _ = writeln!(text, "\n{} --help has all options, examples and exit codes.", name_of(command));
    text
}

fn name_of(command: &Command) -> &str {
    command.get_bin_name().unwrap_or_else(|| command.get_name())
}

fn is_common(arg: &Arg) -> bool {
    !arg.is_hide_set()
        && arg.get_help_heading().is_none_or(|heading| !LEFT_OUT.contains(&heading))
        && !RARE.contains(&arg.get_id().as_str())
}

/// As in `--help`: the short name, the long one and the value.
fn name(arg: &Arg) -> String {
    match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(_)) => format!("-{short}, {arg}"),
        (None, Some(_)) => format!("    {arg}"),
        _ => arg.to_string(),
    }
}

/// What an option does, without what is true of it besides.
fn first_clause(arg: &Arg) -> String {
    let help = without_asides(&arg.get_help().map(ToString::to_string).unwrap_or_default());
    let ends = ["; ", ". ", " [default"];
    let end = ends.iter().filter_map(|end| help.find(end)).min().unwrap_or(help.len());
    help.get(..end).unwrap_or(&help).to_owned()
}

/// Text without what is in parentheses.
fn without_asides(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, aside)) = rest.split_once(" (") {
        kept.push_str(before);
        rest = aside.split_once(')').map_or("", |(_, after)| after);
    }
    kept + rest
}

/// At most this number of characters, cut after a word.
fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let head: String = text.chars().take(room.saturating_sub(3)).collect();
    let end = head.rfind(' ').unwrap_or(head.len());
    format!("{}...", head.get(..end).unwrap_or_default().trim_end_matches([',', ':']))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Args;

    fn shown(line: &str, width: usize) -> Option<String> {
        let args: Vec<OsString> = line.split(' ').map(Into::into).collect();
        text(Args::command(), &args, width)
    }

    #[test]
    fn the_short_help_has_a_line_for_each_option() {
        for command in
            ["", " run", " record", " extract", " sched", " stacks", " watch", " top", " score", " trace analyze"]
        {
            let text = shown(&format!("scxprof{command} -h"), 80).unwrap();
            assert!(text.contains(&format!("Usage: scxprof{command}")), "{text}");
            assert!(text.contains(&format!("\nscxprof{command} --help has all options")), "{text}");
            let sections = text.lines().filter(|line| line.ends_with(':')).count();
            assert!((1..=5).contains(&sections), "{sections} sections: {text}");
            let options: Vec<&str> = text.lines().filter(|line| line.starts_with("  ")).collect();
            assert!(options.iter().all(|line| line.split_once("  ").is_some()), "{text}");
            let body = text.lines().skip(4);
            let left = options.iter().map(|line| line[2..].find("  ").unwrap_or(0)).max().unwrap_or(0);
            for line in body {
                assert!(line.chars().count() <= 80.max(left + 4 + LEAST), "{line}");
            }
            assert!(!text.contains("Examples:") && !text.contains("Exit codes:"), "{text}");
        }
        let run = shown("scxprof run -h", 100).unwrap();
        assert!(run.contains("\n  -t, --time <TIME>  ") && !run.contains("--mmap-pages"), "{run}");
        assert!(run.lines().count() < 50, "{run}");
    }

    #[test]
    fn only_the_first_clause_is_shown() {
        assert_eq!(without_asides("an archive (.tar.gz), a directory (or not)"), "an archive, a directory");
        assert_eq!(cut("one two three four", 12), "one two...");
        assert_eq!(cut("one two, three", 12), "one two...");
        assert_eq!(cut("one two", 7), "one two");
        let extract = shown("scxprof extract -h", 100).unwrap();
        assert!(extract.contains("The profile: an archive, a directory, perf.data"), "{extract}");
    }

    #[test]
    fn the_long_help_is_left_to_clap() {
        assert_eq!(shown("scxprof run --help", 80), None);
        assert_eq!(shown("scxprof --help", 80), None);
        assert_eq!(shown("scxprof help run", 80), None);
        assert!(shown("scxprof run -vh", 80).unwrap().contains("Usage: scxprof run"));
    }
}
