//! `scxprof completions`: what a shell offers, which is what `--help` lists.

use clap::{Args, Command};

use super::failure::Failure;
use super::output;

const EXAMPLES: &str = "\
Examples:
  scxprof completions bash > /etc/bash_completion.d/scxprof
  scxprof completions zsh > /usr/share/zsh/site-functions/_scxprof
  scxprof completions fish > ~/.config/fish/completions/scxprof.fish";

/// Print a shell's completions to stdout
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CompletionArgs {
    /// The shell
    shell: clap_complete::Shell,
}

/// Prints the script.
pub(super) fn run(args: &CompletionArgs, command: &Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut listed(command), "scxprof", &mut script);
    output::print(&script).map_err(Failure::NoResult)
}

/// The same command without hidden options and subcommands, which the generators would offer.
fn listed(command: &Command) -> Command {
    let options = command.get_arguments().filter(|arg| arg.is_positional() || !arg.is_hide_set());
    let below = command.get_subcommands().filter(|it| !it.is_hide_set());
    let mut listed = Command::new(command.get_name().to_owned())
        .disable_help_subcommand(command.is_disable_help_subcommand_set())
        .args(options.cloned())
        .subcommands(below.map(self::listed));
    if let Some(about) = command.get_about() {
        listed = listed.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        listed = listed.version(version.to_owned()).propagate_version(true);
    }
    listed
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// The long options that a command hides and, in the same words, does not have elsewhere.
    fn hidden(command: &Command, found: &mut Vec<(String, String)>) {
        for arg in command.get_arguments().filter(|arg| arg.is_hide_set()) {
            found.extend(arg.get_long().map(|long| (command.get_name().to_owned(), long.to_owned())));
        }
        command.get_subcommands().for_each(|command| hidden(command, found));
    }

    #[test]
    fn nothing_hidden_is_offered() {
        let command = super::super::Args::command();
        let mut options = Vec::new();
        hidden(&command, &mut options);
        assert!(options.len() > 3, "{options:?}");
        let mut listed = listed(&command);
        listed.build();
        for (name, option) in &options {
            let offered = listed.find_subcommand(name).unwrap();
            assert!(offered.get_arguments().all(|arg| arg.get_long() != Some(option)), "{name} --{option}");
        }
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut listed, "scxprof", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("min-share") && script.contains("analyze"), "{shell}: what is listed is offered");
            for hidden in ["hints-probe", "doctor-load", "DuckDB"] {
                assert!(!script.contains(hidden), "{shell}: {hidden}");
            }
        }
    }
}
