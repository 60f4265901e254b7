//! `scxprof man`: the manual pages, from the text of `--help` and some additional text.

use std::path::PathBuf;

use anyhow::anyhow;
use clap::builder::{PossibleValue, StyledStr};
use clap::{Arg, Args, Command};
use clap_mangen::roff::{bold, italic, roman, Inline, Roff};
use clap_mangen::Man;

use super::failure::Failure;
use super::output::{Output, Readers};

mod text;

/// The heading of a release contains its date.
const CHANGES: &str = include_str!("../../../CHANGELOG.md");
const EXAMPLES: &str = "Examples:";
const EXIT_CODES: &str = "Exit codes:";

/// Write the manual pages into a directory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  scxprof man /usr/local/share/man/man1     a page for each subcommand
They bear the date of SOURCE_DATE_EPOCH (seconds since 1970), else that of the last release.")]
pub(super) struct ManArgs {
    /// An existing directory
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Writes `scxprof.1` and a page for each subcommand that `--help` lists.
pub(super) fn man(args: &ManArgs, command: Command) -> Result<(), Failure> {
    let date = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) if !seconds.is_empty() => date_of_epoch(&seconds)
            .ok_or_else(|| Failure::Usage(anyhow!("SOURCE_DATE_EPOCH={seconds}: not a number of seconds")))?,
        _ => date_of_release(CHANGES).unwrap_or_default().to_owned(),
    };
    for (name, page) in pages(command, &date).map_err(Failure::NoResult)? {
        let path = args.dir.join(name);
        let output = Output::open(Some(&path), Readers::All).map_err(Failure::Usage)?;
        output.write(page.as_bytes(), false).map_err(Failure::NoResult)?;
    }
    Ok(())
}

/// The date of a time since 1970, up to the year 9999.
fn date_of_epoch(seconds: &str) -> Option<String> {
    let seconds = seconds.parse::<u64>().ok().filter(|&seconds| seconds < 253_402_300_800)?;
    let (year, month, day) = scxprof_base::date::of_days(seconds / 86_400);
    Some(format!("{year:04}-{month:02}-{day:02}"))
}

/// The date in the first heading that has one.
fn date_of_release(changes: &str) -> Option<&str> {
    let is_date = |word: &&str| {
        word.len() == 10
            && word
                .bytes()
                .enumerate()
                .all(|(at, byte)| if at == 4 || at == 7 { byte == b'-' } else { byte.is_ascii_digit() })
    };
    let headings = changes.lines().filter(|line| line.starts_with("## "));
    headings.flat_map(|line| line.split([' ', '(', ')'])).find(is_date)
}

/// The name and the text of each page.
fn pages(command: Command, date: &str) -> anyhow::Result<Vec<(String, String)>> {
    let mut root = command.disable_help_subcommand(true).subcommand_help_heading("COMMANDS").mut_args(plain_help);
    root.build();
    let listed: Vec<_> =
        root.get_subcommands().filter(|it| !it.is_hide_set()).map(|it| it.clone().mut_args(plain_help)).collect();
    // Each subcommand's own ones stand after it.
    let with_below = listed.into_iter().flat_map(|command| {
        let below: Vec<_> = command
            .get_subcommands()
            .filter(|it| !it.is_hide_set())
            .map(|it| it.clone().mut_args(plain_help))
            .collect();
        std::iter::once(command).chain(below)
    });
    let commands: Vec<_> = std::iter::once(root.clone()).chain(with_below).collect();
    let names: Vec<_> = commands.iter().map(page_name).collect();
    let page = |command: &Command| {
        let others: Vec<_> = names.iter().filter(|&name| *name != page_name(command)).map(String::as_str).collect();
        Ok((format!("{}.1", page_name(command)), page(command, &root, &others, date)?))
    };
    commands.iter().map(page).collect()
}

/// `scxprof-run` of `scxprof run`.
fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

/// Appends defaults and possible values to the help, as in `--help`, and not as lists.
fn plain_help(arg: Arg) -> Arg {
    let help = arg.get_long_help().or(arg.get_help()).map(StyledStr::to_string);
    // A flag's values are true and false.
    let Some(mut help) = help.filter(|_| arg.get_action().takes_values()) else { return arg };
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !defaults.is_empty() {
        help = format!("{help} [default: {}]", defaults.join(", "));
    }
    let values = arg.get_possible_values();
    if !values.is_empty() {
        let values: Vec<_> = values.iter().map(PossibleValue::get_name).collect();
        help = format!("{help} [possible values: {}]", values.join(", "));
    }
    arg.long_help(help).hide_default_value(true).hide_possible_values(true)
}

/// One page.
fn page(command: &Command, root: &Command, others: &[&str], date: &str) -> anyhow::Result<String> {
    let name = page_name(command);
    let own = text::of(name.strip_prefix("scxprof-").unwrap_or_default());
    let help = |command: &Command| command.get_after_help().map(StyledStr::to_string).unwrap_or_default();
    let (own_help, root_help) = (help(command), help(root));
    let man = Man::new(command.clone());
    let mut body = Vec::new();
    man.render_name_section(&mut body)?;

    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).text(synopsis(command));
    roff.control("SH", ["DESCRIPTION"]);
    for (at, paragraph) in own.description.iter().enumerate() {
        if at > 0 {
            roff.control("PP", []);
        }
        roff.text(marked(paragraph));
    }
    roff.to_writer(&mut body)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut body)?;
    }
    man.render_options_section(&mut body)?;

    let mut roff = Roff::new();
    if own.samples {
        entries(&mut roff, "SOURCES", text::SOURCES);
    }
    examples(&mut roff, &part(&own_help, EXAMPLES));
    let codes = part(if own_help.contains(EXIT_CODES) { &own_help } else { &root_help }, EXIT_CODES);
    let takes_command = command.has_subcommands() || command.get_positionals().any(Arg::is_trailing_var_arg_set);
    exit_status(&mut roff, codes.iter().copied().filter(|line| takes_command || line.starts_with(' ')));
    entries(&mut roff, "ENVIRONMENT", own.environment);
    entries(&mut roff, "FILES", own.files);
    let ours = others.iter().map(|name| format!("{name}(1)"));
    let see_also: Vec<_> = ours.chain(own.see_also.iter().map(ToString::to_string)).collect();
    roff.control("SH", ["SEE ALSO"]).text([roman(see_also.join(", "))]);
    roff.to_writer(&mut body)?;

    let version = root.get_version().unwrap_or_default();
    let title = format!(".TH {} 1 \"{date}\" \"scxprof {version}\" \"User Commands\"\n", name.to_uppercase());
    // Lines are neither hyphenated nor justified, so that names and options stay as they are typed.
    let body = literal(&String::from_utf8(body)?).replace(".SH EXAMPLES\n.PP\n", ".SH EXAMPLES\n");
    Ok(format!("{title}.nh\n.ad l\n{body}"))
}

/// Replaces what roff's writer leaves to be typeset, such as ^ and ~ as accents, by the characters that a shell understands.
fn literal(text: &str) -> String {
    let apostrophes = Roff::new().render();
    let mut text = text.replace(&apostrophes, "");
    for (typeset, plain) in [(r"\*(Aq", r"\(aq"), (r"\\", r"\(rs"), ("^", r"\(ha"), ("~", r"\(ti"), ("`", r"\(ga")] {
        text = text.replace(typeset, plain);
    }
    text
}

/// The usage that `--help` begins with.
fn synopsis(command: &Command) -> Vec<Inline> {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let rest = usage.strip_prefix(name).unwrap_or(usage);
    let value = |(at, part): (usize, &str)| if at % 2 == 1 { italic(part) } else { roman(part) };
    std::iter::once(bold(name)).chain(rest.split(['<', '>']).enumerate().map(value)).collect()
}

/// Text with `` `this` `` in bold.
fn marked(text: &str) -> Vec<Inline> {
    let part = |(at, part): (usize, &str)| if at % 2 == 1 { bold(part) } else { roman(part) };
    text.split('`').enumerate().map(part).collect()
}

/// A section of tags and their descriptions.
fn entries(roff: &mut Roff, heading: &str, entries: &[(&str, &str)]) {
    if entries.is_empty() {
        return;
    }
    roff.control("SH", [heading]);
    for (tag, text) in entries {
        roff.control("TP", []).text([bold(*tag)]).text(marked(text));
    }
}

/// The lines of a help text below a heading, up to the next one.
fn part<'a>(help: &'a str, heading: &str) -> Vec<&'a str> {
    let below = help.lines().skip_while(|&line| line != heading).skip(1);
    below.take_while(|line| ![EXAMPLES, EXIT_CODES].contains(line)).collect()
}

/// Each example as a block that can be copied, after its description.
fn examples(roff: &mut Roff, lines: &[&str]) {
    if lines.is_empty() {
        return;
    }
    roff.control("SH", ["EXAMPLES"]);
    for &line in lines {
        let Some(line) = line.strip_prefix("  ") else {
            roff.control("PP", []).text(marked(line));
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let (example, what) =
            line.match_indices("  ").find(|(at, _)| *at >= indent).map_or((line, ""), |(at, _)| line.split_at(at));
        if !what.is_empty() {
            roff.control("PP", []).text(marked(&format!("{}:", capitalized(what.trim_start()))));
        }
        roff.control("PP", [])
            .control("RS", ["4"])
            .control("nf", [])
            .text([bold(example)])
            .control("fi", [])
            .control("RE", []);
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

/// Each code with its meaning, and the text about all of them.
fn exit_status<'a>(roff: &mut Roff, lines: impl Iterator<Item = &'a str>) {
    roff.control("SH", ["EXIT STATUS"]);
    for line in lines {
        match line.strip_prefix("  ").and_then(|line| line.split_once("  ")) {
            Some((code, meaning)) => roff.control("TP", []).text([bold(code)]).text(marked(&capitalized(meaning))),
            None => roff.control("PP", []).text(marked(line)),
        };
    }
}

#[cfg(test)]
mod tests;
